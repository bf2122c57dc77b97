/* The checkpoints of a folder: finding the newest good one, deleting old ones, setting aside
 * checkpoints of another history. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/open.h"
#include "io/checkpoint/private.h"
#include "io/text/file.h"
#include "io/text/scratch.h"

#define NAME_FORMAT "step-%08lld.h5"
enum { NAME_BYTES = 64 };

struct file_path checkpoint_folder_path(const char *dir, int64_t step)
{
  char name[NAME_BYTES];
  snprintf(name, sizeof name, NAME_FORMAT, (long long)step);
  return file_path(dir, name);
}

/* Exactly the names that this module makes: a user's step-1.h5 or step-00000001.h5.bak is not
 * touched. */
static bool parse_name(const char *name, int64_t *step)
{
  char again[NAME_BYTES];
  if (strncmp(name, "step-", 5) != 0)
    return false;
  errno = 0;
  long long value = strtoll(name + 5, NULL, 10);
  if (errno != 0 || value < 0)
    return false;
  snprintf(again, sizeof again, NAME_FORMAT, value);
  *step = value;
  return strcmp(name, again) == 0;
}

static int compare_steps(const void *a, const void *b)
{
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

/* The folder of a save that is not complete. */
static bool is_unfinished(const char *name)
{
  char file[NAME_BYTES];
  int64_t step;
  int length;
  if (!scratch_parse(name, &length) || length >= NAME_BYTES)
    return false;
  snprintf(file, sizeof file, "%.*s", length, name + 1);
  return parse_name(file, &step);
}

static enum status scan(const char *dir, bool clean, int64_t **steps, int64_t *n)
{
  int64_t room = 0, step;
  enum status status = STATUS_OK;
  DIR *folder = opendir(dir);
  if (!folder)
    return errno == ENOENT ? STATUS_OK : open_failed(errno, "open the folder", dir);
  errno = 0; /* because only errno distinguishes the end from a failure */
  for (struct dirent *item; !status && (item = readdir(folder)); errno = 0) {
    if (clean && is_unfinished(item->d_name)) {
      scratch_clear(dir, item->d_name);
    } else if (parse_name(item->d_name, &step)) {
      status = mem_grow(MEM_META, (void **)steps, &room, *n + 1, sizeof **steps);
      if (!status)
        (*steps)[(*n)++] = step;
    }
  }
  if (!status && errno != 0)
    status = open_failed(errno, "list the folder", dir);
  closedir(folder); /* was only read */
  return status;
}

enum status checkpoint_folder_scan(const char *dir, bool clean, int64_t **steps, int64_t *n)
{
  int64_t *list = NULL, count = 0;
  const enum status status = scan(dir, clean, &list, &count);
  if (status) {
    mem_free(list);
    return status;
  }
  if (count > 1)
    qsort(list, (size_t)count, sizeof *list, compare_steps);
  *steps = list;
  *n = count;
  return STATUS_OK;
}

enum status checkpoint_count(const char *dir, bool clean, int64_t *n)
{
  int64_t *steps = NULL;
  *n = 0;
  const enum status status = checkpoint_folder_scan(dir, clean, &steps, n);
  mem_free(steps);
  return status;
}

/* A folder whose checkpoints are all damaged is not empty, because a new start in it would lose
 * them. `resumes`: the caller continues a run. The current sentence says what is wrong with the
 * last one tried. */
static enum status refuse_all(const char *dir, int64_t n, bool resumes)
{
  return status_set(STATUS_INPUT,
                    "none of the %lld checkpoint%s in %s can be used: %s (the last one tried: %s)",
                    (long long)n, n == 1 ? "" : "s", dir,
                    resumes ? "name a good one by --resume FILE, or move these away to start afresh"
                            : "name a good one from elsewhere, or restore one from a copy",
                    status_text());
}

/* A damaged file is skipped: *path_out stays NULL. Any other failure ends the search. */
static enum status try_step(struct comm *comm, const char *dir, int64_t step, checkpoint_use *use,
                            void *arg, char **path_out)
{
  bool damaged = false;
  char *path = mem_strdup(checkpoint_folder_path(dir, step).text);
  const enum status status =
      comm_agree(comm, path ? STATUS_OK : STATUS_MEMORY) ?: use(arg, path, &damaged);
  if (!status) {
    *path_out = path;
    return STATUS_OK;
  }
  mem_free(path);
  if (!damaged || (status != STATUS_INPUT && status != STATUS_IO))
    return status;
  if (comm_rank(comm) == 0)
    log_warn("skipped a checkpoint: %s", status_text());
  return STATUS_OK;
}

/* Newest first. Rank 0 has the list. */
enum status checkpoint_use_newest(struct comm *comm, const char *dir, bool clean,
                                  checkpoint_use *use, void *arg, char **path_out)
{
  int64_t *steps = NULL, n = 0;
  *path_out = NULL;
  enum status status = comm_agree(
      comm, comm_rank(comm) == 0 ? checkpoint_folder_scan(dir, clean, &steps, &n) : STATUS_OK);
  status = status ?: comm_broadcast(comm, &n, sizeof n, 0);
  for (int64_t i = n - 1; i >= 0 && !status && !*path_out; i--) {
    int64_t step = steps ? steps[i] : 0;
    status = comm_broadcast(comm, &step, sizeof step, 0)
                 ?: try_step(comm, dir, step, use, arg, path_out);
  }
  mem_free(steps);
  return status || *path_out || n == 0 ? status : refuse_all(dir, n, clean);
}

static enum status verify(void *arg, const char *path, bool *damaged)
{
  *damaged = true;
  return checkpoint_verify(arg, path);
}

enum status checkpoint_find(struct comm *comm, const char *dir, bool clean, char **path_out)
{
  return checkpoint_use_newest(comm, dir, clean, verify, comm, path_out);
}

/* The first of PATH.stale, PATH.stale-2, PATH.stale-3, ... that is free: nothing is replaced. */
static char *stale_name(const char *path)
{
  struct stat info;
  char *name = mem_printf("%s.stale", path);
  for (int i = 2; name && lstat(name, &info) == 0; i++) {
    mem_free(name);
    name = mem_printf("%s.stale-%d", path, i);
  }
  return name;
}

static enum status rename_stale(const char *dir, int64_t step)
{
  const struct file_path path = checkpoint_folder_path(dir, step);
  char *stale = stale_name(path.text);
  enum status status = stale ? STATUS_OK : STATUS_MEMORY;
  if (!status && rename(path.text, stale) != 0)
    status = status_set(STATUS_IO, "cannot rename %s to %s: %s", path.text, stale, strerror(errno));
  status = status ?: file_sync_folder_of(stale);
  mem_free(stale);
  return status;
}

/* Newest first, so that the rest has no gap if it fails midway. */
static enum status set_aside(const char *dir, int64_t after)
{
  int64_t *steps = NULL, n = 0, aside = 0;
  enum status status = checkpoint_folder_scan(dir, false, &steps, &n);
  for (int64_t i = n - 1; i >= 0 && steps[i] > after && !status; i--) {
    status = rename_stale(dir, steps[i]);
    aside += !status;
  }
  mem_free(steps);
  if (aside > 0)
    log_warn("%s: %lld checkpoint%s of steps after %lld set aside as *.stale, which stay until you "
             "delete them",
             dir, (long long)aside, aside == 1 ? "" : "s", (long long)after);
  return status;
}

enum status checkpoint_set_aside(struct comm *comm, const char *dir, int64_t step)
{
  return comm_agree(comm, comm_rank(comm) == 0 ? set_aside(dir, step) : STATUS_OK);
}

/* A file that cannot be read is not known to be the run's. */
static bool is_of_run(const char *path, uint64_t run)
{
  uint64_t writer = 0;
  hid_t file = H5I_INVALID_HID;
  const enum status status =
      hdf5_open(path, false, &file) ?: hdf5_get_number(file, "run", DTYPE_U64, &writer);
  return !hdf5_close(file, status) && writer == run;
}

/* Newest first. *left: how many may still be kept. */
static enum status keep_or_remove(const char *dir, int64_t step, bool always, uint64_t run,
                                  int64_t *left)
{
  if (*left <= 0 && always)
    return STATUS_OK;
  const struct file_path path = checkpoint_folder_path(dir, step);
  if (is_of_run(path.text, run) && --*left < 0 && unlink(path.text) != 0 && errno != ENOENT)
    return open_failed(errno, "remove the old checkpoint", path.text);
  return STATUS_OK;
}

static enum status prune(const char *dir, int64_t keep, int64_t keep_every, int64_t saved,
                         uint64_t run)
{
  int64_t *steps = NULL, n = 0, left = keep - (saved >= 0);
  enum status status = keep > 0 ? checkpoint_folder_scan(dir, false, &steps, &n) : STATUS_OK;
  for (int64_t i = n - 1; i >= 0 && !status; i--)
    if (steps[i] != saved)
      status =
          keep_or_remove(dir, steps[i], keep_every > 0 && steps[i] % keep_every == 0, run, &left);
  mem_free(steps);
  return status;
}

enum status checkpoint_prune(struct comm *comm, const char *dir, int64_t keep, int64_t keep_every,
                             int64_t saved, uint64_t run)
{
  return comm_agree(comm,
                    comm_rank(comm) == 0 ? prune(dir, keep, keep_every, saved, run) : STATUS_OK);
}
