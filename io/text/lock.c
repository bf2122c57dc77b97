/* The lock file holds the name of its job, for the message to the next one. */
#include "io/text/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/open.h"
#include "io/text/file.h"

enum { HOLDER_BYTES = 300 };
static const char file_name[] = ".lock";

static bool is_taken(int reason)
{
  return reason == EWOULDBLOCK || reason == EACCES;
}

/* 0, or the reason. Some file systems have only one of both kinds of locks. */
static int lock_now(int fd)
{
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  if (flock(fd, LOCK_EX | LOCK_NB) == 0)
    return 0;
  const int reason = errno;
  if (is_taken(reason) || reason == ESTALE)
    return reason;
  if (fcntl(fd, F_OFD_SETLK, &whole) == 0)
    return 0;
  return is_taken(errno) ? errno : reason;
}

/* The line is only for messages, so a full disk does not matter. */
static void write_holder(int fd)
{
  static const char *const jobs[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"};
  char host[128] = "", text[HOLDER_BYTES];
  const char *job = NULL;
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs && !job; i++)
    job = getenv(jobs[i]);
  if (gethostname(host, sizeof host - 1) != 0)
    snprintf(host, sizeof host, "an unknown host");
  const int n = snprintf(text, sizeof text, "process %d on %s%s%.60s\n", (int)getpid(), host,
                         job ? ", job " : "", job ? job : "");
  if (ftruncate(fd, 0) != 0 || write(fd, text, (size_t)n) != n)
    return;
}

/* Names the holder by the line that it wrote, if there is one. */
static enum status refuse(int fd, const char *dir, const char *key)
{
  char line[HOLDER_BYTES] = "";
  const bool named = pread(fd, line, sizeof line - 1, 0) > 0;
  return status_usage(
      "%s is being written by another run%s%.*s%s: wait for it, or choose another %s", dir,
      named ? " (" : "", (int)strcspn(line, "\n"), line, named ? ")" : "", key);
}

/* The folder may have been removed between our open() and our lock, by the run that made it. */
static bool is_still(int fd, const char *path)
{
  struct stat ours, named;
  return fstat(fd, &ours) == 0 && lstat(path, &named) == 0 && ours.st_dev == named.st_dev &&
         ours.st_ino == named.st_ino;
}

/* out->fd stays -1 if the file has vanished. `made`: without the lock the folder may still be
 * another run's. */
static enum status take(const char *dir, const char *path, const char *key, bool made,
                        struct folder_lock *out)
{
  int fd = -1;
  const enum status status = open_regular(path, OPEN_APPEND, &fd);
  if (status)
    return file_exists(dir) ? status : STATUS_OK;
  const int reason = lock_now(fd);
  if (is_taken(reason)) {
    refuse(fd, dir, key);
    close(fd);
    return STATUS_USAGE;
  }
  if (reason == ESTALE || !is_still(fd, path)) {
    close(fd);
    return STATUS_OK;
  }
  static bool warned; /* a run folder and its ckpt/ are mostly on one file system */
  if (reason && !warned)
    log_warn("%s cannot be locked (%s): a second run in it would not be refused, so start only one",
             dir, strerror(reason));
  warned = warned || reason;
  write_holder(fd);
  *out = (struct folder_lock){.fd = fd, .made = made && !reason};
  return STATUS_OK;
}

enum status folder_lock(const char *dir, const char *key, struct folder_lock *out)
{
  enum { TRIES = 10 };
  const struct file_path path = file_path(dir, file_name);
  enum status status = STATUS_OK;
  *out = (struct folder_lock){.fd = -1};
  for (int i = 0; i < TRIES && !status && out->fd < 0; i++) {
    const bool made = !file_exists(dir);
    status = file_make_folders(dir) ?: take(dir, path.text, key, made, out);
  }
  if (status || out->fd >= 0)
    return status;
  return status_set(STATUS_IO, "the folder %s disappears whenever it is made: choose another %s",
                    dir, key);
}

enum status folder_lock_check(const char *dir, const char *key)
{
  const struct file_path path = file_path(dir, file_name);
  int fd = -1;
  enum status status = STATUS_OK;
  if (file_exists(path.text))
    status = open_regular(path.text, OPEN_UPDATE, &fd);
  if (fd >= 0 && is_taken(lock_now(fd)))
    status = refuse(fd, dir, key);
  if (fd >= 0)
    close(fd); /* nothing was written */
  return status;
}

void folder_unlock(const char *dir, struct folder_lock *lock)
{
  const struct file_path path = file_path(dir, file_name);
  if (lock->fd >= 0 && is_still(lock->fd, path.text) && unlink(path.text) == 0 && lock->made)
    (void)rmdir(dir); /* only if it is empty: the start failed before it wrote */
  if (lock->fd >= 0)
    close(lock->fd); /* its text is for messages only */
  *lock = (struct folder_lock){.fd = -1};
}
