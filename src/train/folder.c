/* The folder of a run: its files, and a lock so that one run at a time writes to it. It keeps the
 * algorithms that the device measured, for resumed runs. */
#include "train/private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/open.h"
#include "io/checkpoint/checkpoint.h"
#include "io/text/file.h"

enum status train_folder_paths(struct train_run *run)
{
  run->checkpoint_dir = mem_printf("%s/ckpt", run->deck->run.dir);
  run->results_path = mem_printf("%s/results.jsonl", run->deck->run.dir);
  run->learned_path = mem_printf("%s/device.bin", run->deck->run.dir);
  return run->checkpoint_dir && run->results_path && run->learned_path ? STATUS_OK : STATUS_MEMORY;
}

/* `made`: the folder did not exist before. Without the lock it may still be another run's. */
static enum status lock(struct train_run *run, const char *dir, bool made)
{
  if (flock(run->lock, LOCK_EX | LOCK_NB) == 0) {
    run->made_folder = made;
    return STATUS_OK;
  }
  if (errno == EWOULDBLOCK)
    return status_set(STATUS_USAGE,
                      "%s is being written by another run: wait for it, or choose another run.dir",
                      dir);
  log_warn("%s cannot be locked (%s): a second run in it would not be refused, so start only one",
           dir, strerror(errno));
  return STATUS_OK;
}

/* A run that fails removes the folder that it made, perhaps between our open() and our lock. */
static bool is_still(int fd, const char *dir)
{
  struct stat ours, named;
  return fstat(fd, &ours) == 0 && stat(dir, &named) == 0 && ours.st_dev == named.st_dev &&
         ours.st_ino == named.st_ino;
}

static enum status make_and_lock(struct train_run *run)
{
  const char *dir = run->deck->run.dir;
  const bool made = !file_exists(dir);
  enum status status = file_make_folders(dir);
  if (status)
    return status;
  run->lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return run->lock >= 0 ? lock(run, dir, made) : open_failed(errno, "open the folder", dir);
}

enum status train_folder_take(struct train_run *run)
{
  enum { TRIES = 10 };
  const char *dir = run->deck->run.dir;
  for (int i = 0; i < TRIES; i++) {
    const enum status status = make_and_lock(run);
    if (status || is_still(run->lock, dir))
      return status;
    close(run->lock);
    run->lock = -1;
    run->made_folder = false;
  }
  return status_set(STATUS_IO,
                    "the folder %s disappears whenever it is made: choose another run.dir", dir);
}

void train_folder_release(struct train_run *run)
{
  if (run->made_folder)
    (void)rmdir(run->deck->run.dir); /* only if it is empty: the start failed before it wrote */
  if (run->lock >= 0)
    close(run->lock);
}

static enum status look_for_run(const struct train_run *run, bool *used)
{
  int64_t checkpoints = 0;
  enum status status = results_have_steps(run->results_path, used);
  if (!status)
    status = checkpoint_count(run->checkpoint_dir, &checkpoints);
  *used = *used || checkpoints > 0;
  return status;
}

static enum status refuse_used(const struct train_run *run)
{
  bool used = false;
  const enum status status = look_for_run(run, &used);
  if (status)
    return status;
  if (used)
    return status_set(
        STATUS_USAGE,
        "%s already holds a run: continue it with --resume auto, or choose another run.dir",
        run->deck->run.dir);
  if (file_exists(run->results_path))
    log_info("%s holds a run that failed before its first step: this run uses the folder",
             run->deck->run.dir);
  return STATUS_OK;
}

enum status train_folder_refuse_used(struct train_run *run)
{
  return comm_agree(run->comm, train_leads(run) ? refuse_used(run) : STATUS_OK);
}

enum status train_folder_recall(const struct train_run *run)
{
  enum { MOST = 1 << 26 };
  struct device *device = run->job->device;
  char *data = NULL;
  size_t bytes = 0;
  if (!file_exists(run->learned_path))
    return STATUS_OK;
  enum status status = file_read_own(run->learned_path, MOST, &data, &bytes);
  if (status)
    return status;
  status = device->ops->learn(device, data, (int64_t)bytes);
  mem_free(data);
  if (status != STATUS_INPUT)
    return status;
  log_warn("%s cannot be used here, so results may differ bitwise from now on: %s",
           run->learned_path, status_text());
  return STATUS_OK;
}

static enum status keep_learned(const struct train_run *run)
{
  struct device *device = run->job->device;
  void *data = NULL;
  int64_t bytes = 0;
  enum status status = device->ops->learned(device, &data, &bytes);
  if (!status && bytes > 0)
    status = file_write_all(run->learned_path, data, (size_t)bytes);
  mem_free(data);
  return status;
}

static enum status write_deck(const struct deck *deck)
{
  char *yaml = NULL;
  enum status status = options_print_yaml(deck->set, &yaml);
  if (status)
    return status;
  char *path = mem_printf("%s/deck.yaml", deck->run.dir);
  status = path ? file_write_all(path, yaml, strlen(yaml)) : STATUS_MEMORY;
  mem_free(path);
  mem_free(yaml);
  return status;
}

static enum status open_log(const struct deck *deck)
{
  char *log = mem_printf("%s/log.txt", deck->run.dir);
  const enum status status = log ? log_open_file(log) : STATUS_MEMORY;
  mem_free(log);
  return status;
}

/* A failure of the event file must not end a run. */
static void open_events(struct train_run *run)
{
  const struct deck *deck = run->deck;
  if (events_rewind(deck->run.dir, run->step))
    log_warn("TensorBoard may show steps twice: %s", status_text());
  if (deck->run.tensorboard)
    run->events = events_open(deck->run.dir, run->step);
}

enum status train_folder_open(struct train_run *run)
{
  enum status status = file_make_folders(run->checkpoint_dir);
  if (!status)
    status = write_deck(run->deck);
  if (!status)
    status = open_log(run->deck);
  if (!status)
    status = keep_learned(run);
  if (!status)
    status = results_rewind(run->results_path, run->step);
  if (!status)
    status = results_open(run->results_path, &run->results);
  if (!status)
    open_events(run);
  return status;
}
