#include "fuzz.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILES = 8, FOLDER_ROOM = 256, PATH_ROOM = FOLDER_ROOM + 64 };

static struct {
  char path[PATH_ROOM], name[64];
  int fd;
  bool linked;
} file[FILES];
static int files;
static char folder[FOLDER_ROOM];

static void remove_files(void)
{
  for (int i = 0; i < files; i++)
    if (file[i].linked)
      unlink(file[i].path);
  rmdir(folder);
}

void fuzz_expect(bool good, const char *sentence)
{
  if (good)
    return;
  fprintf(stderr, "finding: %s\n", sentence);
  remove_files();
  abort();
}

bool fuzz_accepted(enum status status)
{
  if (status == STATUS_OK)
    return true;
  if (status != STATUS_INPUT && status != STATUS_USAGE && status != STATUS_UNSUPPORTED) {
    fprintf(stderr, "%s: %s\n", status_name(status), status_text());
    fuzz_expect(false, "what is wrong with an input is no fault of the system or of Sluice");
  }
  fuzz_expect(status_text()[0], "an input is refused without a sentence");
  return false;
}

static void system_expect(bool good, const char *doing)
{
  if (good)
    return;
  fprintf(stderr, "cannot %s: %s\n", doing, strerror(errno));
  exit(1);
}

const char *fuzz_folder(void)
{
  if (folder[0])
    return folder;
  const char *where = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/sluice-fuzz-XXXXXX", where && where[0] ? where : "/tmp");
  system_expect(mkdtemp(folder), "make a temporary folder");
  atexit(remove_files);
  return folder;
}

static int add_file(const char *name)
{
  fuzz_expect(files < FILES, "a target has too many files");
  int fd = memfd_create(name, MFD_CLOEXEC);
  system_expect(fd >= 0, "make a file in memory");
  snprintf(file[files].name, sizeof file[files].name, "%s", name);
  snprintf(file[files].path, sizeof file[files].path, "%s/%s", fuzz_folder(), name);
  file[files].fd = fd;
  return files++;
}

/* A link to the file in memory: nothing is written to a disk, and the name has the ending that a
 * parser goes by. */
static void set_link(int i, bool wanted)
{
  char memory[64];
  if (file[i].linked == wanted)
    return;
  snprintf(memory, sizeof memory, "/proc/self/fd/%d", file[i].fd);
  system_expect((wanted ? symlink(memory, file[i].path) : unlink(file[i].path)) == 0,
                "make or remove a link");
  file[i].linked = wanted;
}

const char *fuzz_file(const char *name, const void *data, size_t bytes)
{
  int i = 0;
  while (i < files && strcmp(file[i].name, name) != 0)
    i++;
  if (i == files)
    i = add_file(name);
  set_link(i, data != NULL);
  if (!data)
    return file[i].path;
  system_expect(ftruncate(file[i].fd, 0) == 0, "empty a file");
  system_expect(pwrite(file[i].fd, data, bytes, 0) == (ssize_t)bytes, "write a file");
  return file[i].path;
}

struct fuzz_piece fuzz_cut(struct fuzz_piece *rest)
{
  const char *zero = rest->bytes ? memchr(rest->text, '\0', rest->bytes) : NULL;
  struct fuzz_piece piece = {rest->text, zero ? (size_t)(zero - rest->text) : rest->bytes};
  const size_t taken = piece.bytes + (zero != NULL);
  rest->text += taken;
  rest->bytes -= taken;
  return piece;
}
