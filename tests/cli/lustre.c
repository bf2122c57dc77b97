/* No test, but a library that lustre.sh has the program load before all others (LD_PRELOAD). It
 * imitates Lustre below the folder LUSTRE: statfs() names it, and three ioctls keep the layout of a
 * folder in its file .layout. As in Lustre, a new folder has the layout of its parent, and a folder
 * without one answers with that of the root, LUSTRE itself, if there is one. LUSTRE_FAILS: no
 * layout can be set. LUSTRE_MUTE: none can be read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { LAYOUT = 32, OSTS = 48 };

static const char *below(const char *path)
{
  static char whole[PATH_MAX];
  const char *root = getenv("LUSTRE");
  return root && realpath(path, whole) && !strncmp(whole, root, strlen(root)) ? whole : NULL;
}

int statfs(const char *path, struct statfs *info)
{
  int (*real)(const char *, struct statfs *) =
      (int (*)(const char *, struct statfs *))(uintptr_t)dlsym(RTLD_NEXT, "statfs");
  const int error = real(path, info);
  if (!error && below(path))
    info->f_type = 0x0bd00bd0;
  return error;
}

static int load(const char *folder, void *out)
{
  char path[PATH_MAX + 16];
  snprintf(path, sizeof path, "%s/.layout", folder);
  const int file = open(path, O_RDONLY);
  const ssize_t n = file < 0 ? -1 : read(file, out, LAYOUT);
  if (file >= 0)
    close(file);
  return n == LAYOUT ? 0 : -1;
}

static int keep(const char *folder, const void *layout)
{
  char path[PATH_MAX + 16];
  if (getenv("LUSTRE_FAILS")) {
    errno = EPERM;
    return -1;
  }
  snprintf(path, sizeof path, "%s/.layout", folder);
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const ssize_t n = file < 0 ? -1 : write(file, layout, LAYOUT);
  if (file >= 0)
    close(file);
  return n == LAYOUT ? 0 : -1;
}

int ioctl(int fd, unsigned long request, ...)
{
  char link[64];
  va_list values;
  va_start(values, request);
  void *argument = va_arg(values, void *);
  va_end(values);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (request == _IOW('f', 155, long) && getenv("LUSTRE_MUTE")) {
    errno = EIO;
    return -1;
  }
  if (request == _IOW('f', 155, long)) {
    const char *folder = below(link);
    if ((folder && !load(folder, argument)) || !load(getenv("LUSTRE"), argument))
      return 0;
    errno = ENODATA;
    return -1;
  }
  if (request == _IOW('f', 154, long))
    return keep(below(link), argument);
  if (request == _IOR('f', 168, long)) {
    const int of_metadata = *(int *)argument;
    *(int *)argument = of_metadata ? 2 : OSTS;
    return 0;
  }
  int (*real)(int, unsigned long, ...) =
      (int (*)(int, unsigned long, ...))(uintptr_t)dlsym(RTLD_NEXT, "ioctl");
  return real(fd, request, argument);
}

int mkdir(const char *path, mode_t mode)
{
  int (*real)(const char *, mode_t) =
      (int (*)(const char *, mode_t))(uintptr_t)dlsym(RTLD_NEXT, "mkdir");
  char parent[PATH_MAX];
  char layout[LAYOUT];
  const int error = real(path, mode);
  snprintf(parent, sizeof parent, "%s/..", path);
  const char *whole = error ? NULL : below(parent);
  if (whole && strcmp(whole, getenv("LUSTRE")) != 0 && !load(whole, layout))
    (void)keep(path, layout);
  return error;
}
