/* Lustre's interface, as lustre_user.h of its sources declares it
 * (lustre/include/uapi/linux/lustre), which few sites install. */
#include "io/text/stripes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/text/file_system.h"

#define LL_IOC_LOV_SETSTRIPE _IOW('f', 154, long)
#define LL_IOC_LOV_GETSTRIPE _IOW('f', 155, long)
#define LL_IOC_GETOBDCOUNT _IOR('f', 168, long)

/* struct lov_user_md_v1 without its objects, which a folder has not. */
struct layout {
  uint32_t magic, pattern;
  uint64_t object[2];
  uint32_t stripe_size;
  uint16_t stripe_count, stripe_offset;
};
_Static_assert(sizeof(struct layout) == 32, "the kernel reads 32 bytes");
/* Version 3 is version 1 with the name of a pool of OSTs after it. */
enum { MAGIC_V1 = 0x0bd10bd0, MAGIC_V3 = 0x0bd30bd0, RAID0 = 1, ANY_OST = 0xffff };
/* Lustre's answer may be longer than a layout, but no longer than an extended attribute. */
union answer {
  struct layout layout;
  char bytes[1 << 16];
};

enum { STRIPES = 32, STRIPE_BYTES = 4 << 20 }; /* as sites advise for large files */

static enum status cannot(const char *what, const char *dir)
{
  return status_set(STATUS_IO, "cannot %s the Lustre layout of %s: %s", what, dir, strerror(errno));
}

/* The root of the file system that holds the folder, in place. */
static void climb(char *path)
{
  struct stat here, above;
  char *slash;
  while (stat(path, &here) == 0 && (slash = strrchr(path, '/')) && slash[1]) {
    const char kept = slash[slash == path];
    slash[slash == path] = '\0';
    if (stat(path, &above) == 0 && above.st_dev == here.st_dev)
      continue;
    slash[slash == path] = kept;
    return;
  }
}

/* The layout of an open folder. False with errno ENODATA if none was set. Recent versions of Lustre
 * then answer with the layout of the file system's root. */
static bool ask(int folder, union answer *out)
{
  memset(out, 0, sizeof out->layout);
  return ioctl(folder, LL_IOC_LOV_GETSTRIPE, out) == 0;
}

static bool equals_root(const char *dir, const struct layout *layout)
{
  char *path = realpath(dir, NULL);
  union answer root;
  bool equal = false;
  if (path) {
    climb(path);
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    equal = folder >= 0 && ask(folder, &root) && !memcmp(&root.layout, layout, sizeof *layout);
    if (folder >= 0)
      (void)close(folder);
  }
  free(path);
  return equal;
}

static enum status read_open(const char *dir, int folder, struct stripes *out)
{
  union answer answer;
  int osts = 0; /* asks for OSTs, and not for metadata targets */
  if (ioctl(folder, LL_IOC_GETOBDCOUNT, &osts) == 0)
    out->osts = osts;
  if (!ask(folder, &answer)) {
    out->count = 1;
    return errno == ENODATA ? STATUS_OK : cannot("read", dir);
  }
  const struct layout *layout = &answer.layout;
  const bool pool = layout->magic == MAGIC_V3;
  if (layout->magic == MAGIC_V1 || pool)
    out->count = layout->stripe_count > 0 ? layout->stripe_count : 1; /* 0: the default, mostly 1 */
  out->own = pool || !equals_root(dir, layout); /* a new layout would leave the pool */
  return STATUS_OK;
}

static enum status read_nearest(const char *dir, struct stripes *out)
{
  const int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return cannot("read", dir);
  const enum status status = read_open(dir, folder, out);
  (void)close(folder);
  return status;
}

enum status stripes_read(const char *dir, struct stripes *out)
{
  struct file_system system;
  char *nearest = NULL;
  *out = (struct stripes){.lustre = false};
  enum status status = file_system_read(dir, &system);
  out->lustre = !status && !strcmp(system.type, "lustre");
  if (status || !out->lustre)
    return status;
  status = file_system_find_nearest(dir, &nearest) ?: read_nearest(nearest, out);
  mem_free(nearest);
  return status;
}

enum status stripes_spread(const char *dir, struct stripes *out, bool *set)
{
  enum status status = stripes_read(dir, out);
  *set = false;
  if (status || !out->lustre || out->own || out->count != 1 || out->osts == 1)
    return status;
  const int count = out->osts > 0 && out->osts < STRIPES ? out->osts : STRIPES;
  const struct layout layout = {.magic = MAGIC_V1,
                                .pattern = RAID0,
                                .stripe_size = STRIPE_BYTES,
                                .stripe_count = (uint16_t)count,
                                .stripe_offset = ANY_OST};
  const int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0 || ioctl(folder, LL_IOC_LOV_SETSTRIPE, &layout) != 0)
    status = cannot("set", dir);
  if (folder >= 0)
    (void)close(folder);
  if (status)
    return status;
  *set = true;
  out->count = count;
  return STATUS_OK;
}

struct stripes_text stripes_text(const struct stripes *stripes)
{
  struct stripes_text out;
  char of[24] = "";
  if (stripes->osts > 0)
    snprintf(of, sizeof of, " of %d", stripes->osts);
  if (stripes->count == 0)
    snprintf(out.text, sizeof out.text, "OSTs by its size");
  else if (stripes->count == STRIPES_ALL)
    snprintf(out.text, sizeof out.text, "all%s OSTs", of);
  else
    snprintf(out.text, sizeof out.text, "%d%s OST%s", stripes->count, of,
             stripes->count == 1 && !*of ? "" : "s");
  return out;
}
