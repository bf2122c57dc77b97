/* Files and folders: reading whole files, and files that exist only when they are complete. */
#include "io/text/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"

static enum status failed(const char *doing, const char *path)
{
  return open_failed(errno, doing, path);
}

char *file_folder_of(const char *path)
{
  const char *slash = strrchr(path, '/');
  return slash ? mem_printf("%.*s", (int)(slash - path) + (slash == path), path) : mem_strdup(".");
}

enum status file_sync_folder_of(const char *path)
{
  char *folder = file_folder_of(path);
  if (!folder)
    return STATUS_MEMORY;
  enum status status = STATUS_OK;
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    status = failed("open the folder", folder);
  } else {
    if (fsync(fd) != 0 && errno != EINVAL)
      status = failed("flush the folder", folder); /* EINVAL: this file system has no such thing */
    if (close(fd) != 0 && !status)
      status = failed("close the folder", folder);
  }
  mem_free(folder);
  return status;
}

/* The error of mkdir(2), if no folder has the name. */
static enum status is_folder_or(const char *path, int reason)
{
  struct stat info;
  if (stat(path, &info) == 0) {
    if (S_ISDIR(info.st_mode))
      return STATUS_OK;
    return status_set(STATUS_IO,
                      "cannot make the folder %s: a file of that name is in the way; remove it or "
                      "choose another folder",
                      path);
  }
  return open_failed(reason, "make the folder", path);
}

static enum status make_folder(const char *path)
{
  if (mkdir(path, 0777) == 0)
    return file_sync_folder_of(
        path); /* otherwise a crash of the machine would lose what is made in it */
  return is_folder_or(path, errno);
}

/* Calls `act` for the folders of a path, the outermost first. */
static enum status for_folders(const char *path, enum status (*act)(const char *part))
{
  if (!path[0])
    return status_usage("a folder's name is empty");
  char *part = mem_strdup(path);
  if (!part)
    return STATUS_MEMORY;
  enum status status = STATUS_OK;
  for (char *slash = strchr(part + 1, '/'); slash && !status; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    status = act(part);
    *slash = '/';
  }
  status = status ?: act(part);
  mem_free(part);
  return status;
}

enum status file_make_folders(const char *path)
{
  return for_folders(path, make_folder);
}

/* A folder whose parent is missing, too, was checked with that. */
static enum status check_folder(const char *path)
{
  struct stat info;
  if (lstat(path, &info) == 0)
    return is_folder_or(path, EEXIST);
  char *parent = file_folder_of(path);
  const int reason = parent && access(parent, W_OK | X_OK) != 0 && errno != ENOENT ? errno : 0;
  const enum status status = parent ? STATUS_OK : STATUS_MEMORY;
  mem_free(parent);
  return reason ? open_failed(reason, "make the folder", path) : status;
}

enum status file_check_folders(const char *path)
{
  return for_folders(path, check_folder);
}

enum status file_sync_open(int fd, const char *name)
{
  return fsync(fd) == 0 ? STATUS_OK : failed("flush to the disk", name);
}

enum status file_sync(const char *path)
{
  int fd = -1;
  enum status status = open_regular(path, OPEN_OWN, &fd);
  if (status)
    return status;
  status = file_sync_open(fd, path);
  if (close(fd) != 0 && !status)
    status = failed("close", path);
  return status;
}

enum status file_sync_rename(const char *temporary, const char *final)
{
  enum status status = file_sync(temporary);
  if (!status && rename(temporary, final) != 0)
    status = failed("rename the finished file to", final);
  if (status != STATUS_OK) {
    unlink(temporary); /* the first failure is the one to report */
    return status;
  }
  return file_sync_folder_of(final);
}

enum status file_write_open(int fd, const char *name, const char *data, size_t bytes)
{
  while (bytes > 0) {
    ssize_t done = write(fd, data, bytes);
    if (done < 0 && errno == EINTR)
      continue;
    if (done < 0)
      return failed("write", name);
    data += done;
    bytes -= (size_t)done;
  }
  return STATUS_OK;
}

enum status file_write_all(const char *path, const void *data, size_t bytes)
{
  char *temporary = mem_printf("%s.tmp", path);
  if (!temporary)
    return STATUS_MEMORY;
  int fd = -1;
  enum status status = open_regular(temporary, OPEN_NEW, &fd);
  if (!status) {
    status = file_write_open(fd, temporary, data, bytes);
    if (close(fd) != 0 && !status)
      status = failed("close", temporary);
    if (!status)
      status = file_sync_rename(temporary, path);
    else
      unlink(temporary);
  }
  mem_free(temporary);
  return status;
}

int64_t file_read_at(int fd, void *to, size_t bytes, int64_t at)
{
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd, (char *)to + done, bytes - done, (off_t)at + (off_t)done);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return -1;
    if (got == 0)
      break;
    done += (size_t)got;
  }
  return (int64_t)done;
}

/* Linux moves less than 2 GiB in one call. A call that moves nothing has met a full disk. */
enum status file_write_at(int fd, const char *name, const void *data, size_t bytes, int64_t at)
{
  for (size_t done = 0; done < bytes;) {
    const ssize_t put =
        pwrite(fd, (const char *)data + done, bytes - done, (off_t)at + (off_t)done);
    if (put < 0 && errno == EINTR)
      continue;
    if (put == 0)
      errno = ENOSPC;
    if (put <= 0)
      return failed("write", name);
    done += (size_t)put;
  }
  return STATUS_OK;
}

static enum status read_from(int fd, const char *path, size_t most, size_t room, char **out,
                             size_t *bytes)
{
  char *text = NULL;
  size_t used = 0;
  enum status status = mem_resize(MEM_META, room + 1, (void **)&text);
  while (!status) {
    if (used == room) {
      room = room < most / 2
                 ? room * 2
                 : most + 1; /* one byte more than `most`, to notice a file that is too big */
      status = mem_resize(MEM_META, room + 1, (void **)&text);
      if (status != STATUS_OK)
        break;
    }
    ssize_t got = read(fd, text + used, room - used);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      status = failed("read", path);
    if (got <= 0)
      break;
    used += (size_t)got;
    if (used > most)
      status =
          status_set(STATUS_INPUT,
                     "%s holds more than the %zu bytes that are allowed here; it is the wrong file",
                     path, most);
  }
  if (status != STATUS_OK) {
    mem_free(text);
    return status;
  }
  text[used] = '\0';
  *out = text;
  *bytes = used;
  return STATUS_OK;
}

static enum status read_open(int fd, const char *path, size_t most, char **out, size_t *bytes)
{
  struct stat info;
  if (fstat(fd, &info) != 0)
    return failed("read", path);
  if (S_ISDIR(info.st_mode))
    return status_set(STATUS_INPUT, "%s is a folder; a file is expected", path);
  if (info.st_size > 0 && (uint64_t)info.st_size > most)
    return status_set(STATUS_INPUT,
                      "%s holds %lld bytes, %zu are allowed here; it is the wrong file", path,
                      (long long)info.st_size, most);
  const size_t room = info.st_size > 0 ? (size_t)info.st_size + 1 : 4096; /* /proc says 0 */
  return read_from(fd, path, most, room <= most ? room : most + 1, out, bytes);
}

static enum status read_as(enum open_as as, const char *path, size_t most, char **out,
                           size_t *bytes)
{
  int fd = STDIN_FILENO;
  enum status status = (path ? open_regular(path, as, &fd) : STATUS_OK)
                           ?: read_open(fd, path ? path : "standard input", most, out, bytes);
  if (fd != STDIN_FILENO)
    close(fd); /* was only read: nothing can be lost */
  return status;
}

enum status file_read_all(const char *path, size_t most, char **out, size_t *bytes)
{
  return read_as(OPEN_READ, path, most, out, bytes);
}

enum status file_read_own(const char *path, size_t most, char **out, size_t *bytes)
{
  return read_as(OPEN_OWN, path, most, out, bytes);
}

enum status file_read_stream(const char *path, size_t most, char **out, size_t *bytes)
{
  return read_as(OPEN_STREAM, path, most, out, bytes);
}

/* `error`: why `bytes` could not be reserved. */
static enum status refuse_room(int fd, int error, const char *path, int64_t bytes)
{
  struct statvfs info;
  char doing[120];
  if ((error != ENOSPC && error != EDQUOT) || fstatvfs(fd, &info) != 0)
    return open_failed(error, "make room for", path);
  snprintf(doing, sizeof doing, "make room for %s (%s are free) in", mem_amount((double)bytes).text,
           mem_amount((double)info.f_bavail * (double)info.f_frsize).text);
  return open_failed(error, doing, path);
}

/* For file systems that cannot reserve space: compares with the space that is free now. */
static enum status compare_free_space(int fd, const char *path, int64_t bytes)
{
  struct statvfs info;
  if (fstatvfs(fd, &info) != 0)
    return failed("ask for the free space at", path);
  if (info.f_bavail >= (uint64_t)bytes / info.f_frsize + 1)
    return STATUS_OK;
  return refuse_room(fd, ENOSPC, path, bytes);
}

enum status file_reserve_open(int fd, const char *name, int64_t bytes)
{
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < (rlim_t)bytes)
    return status_set(STATUS_IO,
                      "%s needs %lld bytes and this process may write files of %llu at most; raise "
                      "the limit (ulimit -f)",
                      name, (long long)bytes, (unsigned long long)limit.rlim_cur);
  int done;
  do
    done = bytes > 0 ? fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes) : 0;
  while (done != 0 && errno == EINTR);
  if (done == 0)
    return STATUS_OK;
  return errno == EOPNOTSUPP || errno == ENOSYS ? compare_free_space(fd, name, bytes)
                                                : refuse_room(fd, errno, name, bytes);
}

static enum status reserve(const char *path, enum open_as as, int64_t bytes)
{
  int fd = -1;
  enum status status = open_regular(path, as, &fd);
  if (status)
    return status;
  status = file_reserve_open(fd, path, bytes);
  if (close(fd) != 0 && !status)
    status = failed("close", path);
  return status;
}

enum status file_create(const char *path, int64_t bytes)
{
  return reserve(path, OPEN_NEW, bytes);
}

enum status file_reserve(const char *path, int64_t bytes)
{
  return reserve(path, OPEN_UPDATE, bytes);
}

enum status file_check_write(const char *path, int64_t bytes)
{
  if (file_is_folder(path))
    return status_set(STATUS_IO, "cannot write %s: it is a folder; name a file in it", path);
  char *temporary = mem_printf("%s.tmp", path);
  if (!temporary)
    return STATUS_MEMORY;
  const enum status status = file_create(temporary, bytes);
  unlink(temporary); /* removes the file that could not be made */
  mem_free(temporary);
  return status;
}

struct file_path file_path(const char *folder, const char *name)
{
  struct file_path path;
  snprintf(path.text, sizeof path.text, "%s/%s", folder, name);
  return path;
}

bool file_exists(const char *path)
{
  struct stat info;
  return stat(path, &info) == 0;
}

bool file_is_folder(const char *path)
{
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

struct file_base file_base(const char *path)
{
  struct file_base base = {" in "};
  if (*path == '/' || !getcwd(base.text + 4, sizeof base.text - 4))
    *base.text = '\0';
  return base;
}

bool file_is_hub_name(const char *path)
{
  const char *slash = strchr(path, '/');
  if (!slash || slash == path || !slash[1] || strchr(slash + 1, '/') || path[0] == '.' ||
      path[0] == '~' || !strncmp(path, "models/", 7) || file_exists(path))
    return false;
  char *owner = mem_printf("%.*s", (int)(slash - path), path);
  const bool name = owner && !file_exists(owner);
  mem_free(owner);
  return name;
}

int64_t file_size(const char *path)
{
  struct stat info;
  return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}
