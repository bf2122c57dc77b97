/* The folder of an unfinished file, reached through its descriptor only. */
#include "io/text/scratch.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "io/text/file.h"

static const char mark[] = ".tmp-", unique[] = "XXXXXX", descriptors[] = "/proc/self/fd/";
enum { OTHERS = 077 };

/* Facts that tell a folder of this user from those of others. File systems may map users, or
 * have no modes, so facts of two folders are compared. */
struct owner {
  uint64_t user, mode;
};

static int open_folder(const char *path)
{
  return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static enum status read_owner(const struct scratch *scratch, struct owner *out)
{
  struct stat info;
  if (fstat(scratch->fd, &info) != 0)
    return open_failed(errno, "look at", scratch->folder);
  *out = (struct owner){.user = info.st_uid, .mode = info.st_mode & OTHERS};
  return STATUS_OK;
}

static enum status refuse(const struct scratch *scratch)
{
  return status_set(STATUS_IO,
                    "another user has replaced %s: take the right to write its folder from others",
                    scratch->folder);
}

static enum status name_file(struct scratch *scratch)
{
  scratch->file = mem_printf("%s%d/%s", descriptors, scratch->fd, basename(scratch->folder));
  return scratch->file ? STATUS_OK : STATUS_MEMORY;
}

/* The new file has the owner that this file system gives to this user. If another user's folder had
 * taken the name by now, its owner would be different. */
static enum status make_file(struct scratch *scratch)
{
  struct owner owner = {0};
  struct stat info;
  (void)fchmod(scratch->fd, 0700); /* some file systems have no modes */
  const int file =
      openat(scratch->fd, basename(scratch->folder), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0)
    return open_failed(errno, "create a file in", scratch->folder);
  enum status status =
      fstat(file, &info) == 0 ? STATUS_OK : open_failed(errno, "look at", scratch->folder);
  close(file); /* nothing was written */
  status = status ?: read_owner(scratch, &owner);
  return status || owner.user == info.st_uid ? status : refuse(scratch);
}

static enum status make_folder(const char *final, struct scratch *scratch)
{
  const char *name = basename(final);
  char *folder = mem_printf("%.*s.%s%s%s", (int)(name - final), final, name, mark, unique);
  if (!folder)
    return STATUS_MEMORY;
  if (!mkdtemp(folder)) {
    const enum status status = open_failed(errno, "make a folder for", final);
    mem_free(folder);
    return status;
  }
  *scratch = (struct scratch){.folder = folder, .fd = open_folder(folder), .makes = true};
  if (scratch->fd < 0)
    return errno == ELOOP || errno == ENOTDIR ? refuse(scratch)
                                              : open_failed(errno, "open the folder", folder);
  (void)flock(scratch->fd, LOCK_SH | LOCK_NB); /* for scratch_clear() */
  return STATUS_OK;
}

void scratch_sweep(const char *final)
{
  char *dir = file_folder_of(final);
  DIR *folder = dir ? opendir(dir) : NULL;
  const size_t bytes = strlen(basename(final));
  int length;
  for (struct dirent *entry; folder && (entry = readdir(folder));)
    if (scratch_parse(entry->d_name, &length) && (size_t)length == bytes &&
        !strncmp(entry->d_name + 1, basename(final), bytes))
      scratch_clear(dir, entry->d_name);
  if (folder)
    closedir(folder);
  mem_free(dir);
}

enum status scratch_make(const char *final, struct scratch *out)
{
  struct scratch made = {0};
  enum status status = make_folder(final, &made) ?: make_file(&made) ?: name_file(&made);
  if (status)
    scratch_drop(&made);
  else
    *out = made;
  return status;
}

static enum status join(const struct owner *owner, struct scratch *scratch)
{
  struct owner found;
  scratch->fd = open_folder(scratch->folder);
  if (scratch->fd < 0 && (errno == ELOOP || errno == ENOTDIR))
    return refuse(scratch);
  if (scratch->fd < 0)
    return status_set(STATUS_IO, "%s, which rank 0 made, cannot be opened here: %s%s",
                      scratch->folder, strerror(errno),
                      errno == ENOENT ? "; the folder must be on a file system that all nodes share"
                                      : "");
  enum status status = read_owner(scratch, &found);
  if (!status && (found.user != owner->user || found.mode != owner->mode))
    status = refuse(scratch);
  return status ?: name_file(scratch);
}

enum status scratch_share(struct comm *comm, struct scratch *scratch)
{
  struct owner owner = {0};
  const bool first = comm_rank(comm) == 0;
  return comm_broadcast_text(comm, &scratch->folder, 0)
         ?: comm_agree(comm, first ? read_owner(scratch, &owner) : STATUS_OK)
         ?: comm_broadcast(comm, &owner, sizeof owner, 0)
         ?: comm_agree(comm, first ? STATUS_OK : join(&owner, scratch));
}

enum status scratch_publish(struct scratch *scratch, const char *final)
{
  return scratch_explain(scratch, file_sync_rename(scratch->file, final));
}

/* Files only: Sluice makes no folders there. */
static void empty(int fd)
{
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
  for (struct dirent *entry; dir && (entry = readdir(dir));)
    (void)unlinkat(fd, entry->d_name, 0);
  if (dir)
    closedir(dir);
  else if (copy >= 0)
    close(copy);
}

void scratch_drop(struct scratch *scratch)
{
  if (scratch->folder && scratch->fd >= 0) {
    if (scratch->makes)
      empty(scratch->fd);
    close(scratch->fd); /* a folder */
  }
  if (scratch->folder && scratch->makes)
    (void)rmdir(scratch->folder); /* the next save removes a folder that stays */
  mem_free(scratch->folder);
  mem_free(scratch->file);
  *scratch = (struct scratch){0};
}

enum status scratch_explain(const struct scratch *scratch, enum status status)
{
  char sentence[2048];
  const char *at = status && scratch->folder ? strstr(status_text(), descriptors) : NULL;
  if (!at)
    return status;
  const char *rest = at + strlen(descriptors);
  rest += strspn(rest, "0123456789");
  snprintf(sentence, sizeof sentence, "%.*s%.*s%s", (int)(at - status_text()), status_text(),
           (int)(basename(scratch->folder) - scratch->folder), scratch->folder, rest + 1);
  return status_set(status, "%s", sentence);
}

bool scratch_parse(const char *entry, int *length)
{
  const size_t tail = strlen(mark) + strlen(unique), bytes = strlen(entry);
  if (entry[0] != '.' || bytes < tail + 2 || strncmp(entry + bytes - tail, mark, strlen(mark)) != 0)
    return false;
  for (const char *c = entry + bytes - strlen(unique); *c; c++)
    if (!isalnum((unsigned char)*c))
      return false;
  *length = (int)(bytes - tail - 1);
  return true;
}

static bool is_own(int fd)
{
  struct stat info;
  return fstat(fd, &info) == 0 && info.st_uid == geteuid() && !(info.st_mode & OTHERS);
}

void scratch_clear(const char *dir, const char *entry)
{
  const struct file_path path = file_path(dir, entry);
  const int fd = open_folder(path.text);
  if (fd >= 0 && is_own(fd) && (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)) {
    empty(fd);
    (void)rmdir(path.text); /* faults do not matter, because it only takes room */
  }
  if (fd >= 0)
    close(fd);
}
