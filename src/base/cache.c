/* Files of the user's cache: their folder, and their replacement by whole files. */
#include "base/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

char *cache_path(const char *name)
{
  const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char *folder = xdg && *xdg     ? mem_strdup(xdg)
                 : home && *home ? mem_printf("%s/.cache", home)
                                 : NULL;
  if (!folder)
    return NULL;
  (void)mkdir(folder, 0700);
  char *path = mem_printf("%s/sluice-%s", folder, name);
  for (char *c = path ? path + strlen(folder) + 1 : NULL; c && *c; c++)
    if (*c == ' ' || *c == '/')
      *c = '-';
  mem_free(folder);
  return path;
}

static bool write_bytes(int file, const char *data, size_t bytes)
{
  for (ssize_t n = 0; bytes > 0; data += n, bytes -= (size_t)n) {
    n = write(file, data, bytes);
    if (n < 0 && errno == EINTR)
      n = 0;
    else if (n <= 0)
      return false;
  }
  return !fsync(file) || errno == EINVAL; /* EINVAL: this file system has no such thing */
}

static bool sync_folder(const char *path)
{
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0)
    return false;
  const bool good = !fsync(folder) || errno == EINVAL;
  return !close(folder) && good;
}

/* Each process has a temporary file of its own. */
static bool replace_file(const char *path, const void *data, size_t bytes)
{
  char *temporary = mem_printf("%s.XXXXXX", path), *folder = mem_strdup(path);
  const int file = temporary && folder ? mkstemp(temporary) : -1;
  bool good = file >= 0 && write_bytes(file, data, bytes);
  if (file >= 0) {
    good = !close(file) && good && !rename(temporary, path);
    if (!good)
      (void)unlink(temporary);
  }
  if (good) {
    *strrchr(folder, '/') = '\0';
    good = sync_folder(folder);
  }
  mem_free(temporary);
  mem_free(folder);
  return good;
}

bool cache_write(const char *path, const void *data, size_t bytes)
{
  if (replace_file(path, data, bytes))
    return true;
  log_debug("%s was not written: %s", path, strerror(errno));
  return false;
}

/* The number of files in the folder whose names begin so. *oldest: one of them. mem_free. */
static int count_files(DIR *folder, const char *begins, char **oldest)
{
  int n = 0;
  struct timespec first = {0};
  rewinddir(folder);
  for (struct dirent *item; (item = readdir(folder));) {
    struct stat info;
    if (strncmp(item->d_name, begins, strlen(begins)) != 0 ||
        fstatat(dirfd(folder), item->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    const struct timespec written = info.st_mtim;
    if (n++ > 0 && (written.tv_sec > first.tv_sec ||
                    (written.tv_sec == first.tv_sec && written.tv_nsec >= first.tv_nsec)))
      continue;
    first = written;
    mem_free(*oldest);
    *oldest = mem_strdup(item->d_name);
  }
  return n;
}

void cache_trim(const char *kind, int most)
{
  char *path = mem_printf("%s-", kind), *begins = path ? cache_path(path) : NULL;
  char *const name = begins ? strrchr(begins, '/') : NULL;
  mem_free(path);
  if (name)
    *name = '\0';
  DIR *folder = begins ? opendir(begins) : NULL;
  for (bool more = folder; more;) {
    char *oldest = NULL;
    more = count_files(folder, name + 1, &oldest) > most && oldest &&
           unlinkat(dirfd(folder), oldest, 0) == 0;
    mem_free(oldest);
  }
  if (folder)
    (void)closedir(folder);
  mem_free(begins);
}
