#include "base/open.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODE = 0666 }; /* minus the user's umask, because groups may share folders */

static const int flags_of[] = {
    [OPEN_READ] = O_RDONLY,
    [OPEN_OWN] = O_RDONLY | O_NOFOLLOW,
    [OPEN_UPDATE] = O_RDWR | O_NOFOLLOW,
    [OPEN_APPEND] = O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW,
    [OPEN_NEW] = O_WRONLY | O_CREAT | O_EXCL,
};

static const char *doing(enum open_as as)
{
  return as == OPEN_NEW ? "create" : "open";
}

enum status open_failed(int error, const char *doing, const char *path)
{
  const char *cure = error == ENOSPC || error == EDQUOT
                         ? "; free some space or choose another folder"
                     : error == EACCES || error == EPERM ? "; check its permissions"
                                                         : "";
  return status_set(STATUS_IO, "cannot %s %s: %s%s", doing, path, strerror(error), cure);
}

enum status open_unreadable(int error, const char *path)
{
  if (error == ENOENT || error == ENOTDIR)
    return status_set(STATUS_INPUT, "cannot open %s: %s", path, strerror(error));
  return open_failed(error, "open", path);
}

static bool is_link(const char *path)
{
  struct stat info;
  return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

/* A pipe without a reader, opened to write to, is ENXIO. */
static enum status explain(int error, enum open_as as, const char *path)
{
  if (error == ELOOP && is_link(path))
    return status_set(
        STATUS_IO, "cannot open %s: it is a symbolic link, which may lead to any file; remove it",
        path);
  return as == OPEN_READ ? open_unreadable(error, path) : open_failed(error, doing(as), path);
}

static enum status check_kind(int fd, enum open_as as, const char *path)
{
  const enum status code = as == OPEN_READ || as == OPEN_OWN ? STATUS_INPUT : STATUS_IO;
  struct stat info;
  if (fstat(fd, &info) != 0)
    return open_failed(errno, "look at", path);
  if (S_ISREG(info.st_mode))
    return STATUS_OK;
  if (S_ISDIR(info.st_mode))
    return status_set(code, "%s is a folder; a file is expected", path);
  return status_set(code, "%s is %s, and a regular file is expected; remove it", path,
                    S_ISFIFO(info.st_mode) ? "a pipe" : "a device");
}

enum status open_regular(const char *path, enum open_as as, int *out)
{
  if (as == OPEN_NEW && unlink(path) != 0 && errno != ENOENT)
    return open_failed(errno, "replace", path);
  const int fd = open(path, flags_of[as] | O_NONBLOCK | O_CLOEXEC, MODE);
  if (fd < 0)
    return explain(errno, as, path);
  const enum status status = check_kind(fd, as, path);
  if (status) {
    close(fd);
    return status;
  }
  *out = fd;
  return STATUS_OK;
}

bool open_read_text(const char *path, char *text, size_t size)
{
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
  if (file >= 0)
    close(file);
  if (length <= 0)
    return false;
  text[length] = '\0';
  return true;
}
