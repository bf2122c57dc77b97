/* Opening without following what another user may have put in place of a file. */
#include "base/open.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATIENCE_S = 3 }; /* for the first byte of a pipe */
enum { MODE = 0666 };    /* minus the user's umask, because groups may share folders */

static const int flags_of[] = {
    [OPEN_READ] = O_RDONLY,
    [OPEN_STREAM] = O_RDONLY,
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

static bool is_socket(const char *path)
{
  struct stat info;
  return stat(path, &info) == 0 && S_ISSOCK(info.st_mode);
}

/* Whether the user made the file. */
static bool is_given(enum open_as as)
{
  return as == OPEN_READ || as == OPEN_STREAM;
}

static enum status code_of(enum open_as as)
{
  return is_given(as) || as == OPEN_OWN ? STATUS_INPUT : STATUS_IO;
}

static enum status refuse_kind(enum open_as as, const char *path, const char *kind)
{
  return status_set(code_of(as), "%s is %s, and a regular file is expected%s", path, kind,
                    is_given(as) ? "" : "; remove it");
}

/* A pipe without a reader, opened to write to, is ENXIO. */
static enum status explain(int error, enum open_as as, const char *path)
{
  if (error == ELOOP && is_link(path))
    return status_set(
        STATUS_IO, "cannot open %s: it is a symbolic link, which may lead to any file; remove it",
        path);
  if (error == ENXIO && is_socket(path))
    return refuse_kind(as, path, "a socket");
  return is_given(as) ? open_unreadable(error, path) : open_failed(error, doing(as), path);
}

/* The pipe of a shell has a writer. One with a name in a folder may have none. */
static bool has_writer(int fd, const char *path)
{
  struct pollfd pipe = {.fd = fd, .events = POLLIN};
  return !strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6) ||
         poll(&pipe, 1, 1000 * PATIENCE_S) != 0;
}

static enum status prepare_stream(int fd, mode_t mode, const char *path)
{
  if (S_ISFIFO(mode) && !has_writer(fd, path))
    return status_set(STATUS_INPUT,
                      "%s is a pipe to which no program has written for %d s; name a file", path,
                      PATIENCE_S);
  return fcntl(fd, F_SETFL, 0) == 0 ? STATUS_OK : open_failed(errno, "look at", path);
}

static enum status check_kind(int fd, enum open_as as, const char *path)
{
  struct stat info;
  if (fstat(fd, &info) != 0)
    return open_failed(errno, "look at", path);
  if (S_ISREG(info.st_mode))
    return STATUS_OK;
  if (S_ISDIR(info.st_mode))
    return status_set(code_of(as), "%s is a folder; a file is expected", path);
  if (as == OPEN_STREAM && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)))
    return prepare_stream(fd, info.st_mode, path);
  return refuse_kind(as, path, S_ISFIFO(info.st_mode) ? "a pipe" : "a device");
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
