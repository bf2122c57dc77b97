/* The folder of a run: its files, and a lock so that one run at a time writes to it. It keeps the
 * algorithms that the device measured, for resumed runs. */
#include "train/private.h"

#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/checkpoint/checkpoint.h"
#include "io/text/file.h"
#include "io/text/stripes.h"

enum status train_folder_paths(struct train_run *run)
{
  run->checkpoint_dir = mem_printf("%s/ckpt", run->deck->run.dir);
  run->results_path = mem_printf("%s/results.jsonl", run->deck->run.dir);
  run->learned_path = mem_printf("%s/device.bin", run->deck->run.dir);
  return run->checkpoint_dir && run->results_path && run->learned_path ? STATUS_OK : STATUS_MEMORY;
}

/* ckpt/ may be a link to a folder that another run writes, too. */
static enum status lock_checkpoints(struct train_run *run)
{
  return run->checkpoint_lock.fd < 0
             ? folder_lock(run->checkpoint_dir, "run.dir, or remove the link",
                           &run->checkpoint_lock)
             : STATUS_OK;
}

/* In the root, its files would stand among those of the system. */
static enum status check_place(const struct train_run *run)
{
  const char *dir = run->deck->run.dir;
  struct stat named, root;
  if (stat(dir, &named) != 0 || stat("/", &root) != 0 || named.st_dev != root.st_dev ||
      named.st_ino != root.st_ino)
    return file_check_folders(run->checkpoint_dir);
  return status_set(STATUS_USAGE,
                    "run.dir is %s, the root of all files: choose a folder for this run", dir);
}

enum status train_folder_take(struct train_run *run)
{
  enum status status = check_place(run);
  if (!status)
    status = folder_lock(run->deck->run.dir, "run.dir", &run->lock);
  return status || !file_is_folder(run->checkpoint_dir) ? status : lock_checkpoints(run);
}

void train_folder_release(struct train_run *run)
{
  if (run->checkpoint_dir)
    folder_unlock(run->checkpoint_dir, &run->checkpoint_lock);
  folder_unlock(run->deck->run.dir, &run->lock);
}

static enum status look_for_run(const struct train_run *run, bool *used)
{
  int64_t checkpoints = 0;
  enum status status = results_have_steps(run->results_path, used);
  if (!status)
    status = checkpoint_count(run->checkpoint_dir, false, &checkpoints);
  *used = *used || checkpoints > 0;
  return status;
}

enum status train_folder_refuse(const struct deck *deck)
{
  return status_set(
      STATUS_USAGE,
      "%s already holds a run: continue it with --resume auto, or choose another run.dir",
      deck->run.dir);
}

static enum status refuse_used(const struct train_run *run)
{
  bool used = false;
  const enum status status = look_for_run(run, &used);
  return status || !used ? status : train_folder_refuse(run->deck);
}

enum status train_folder_refuse_used(struct train_run *run)
{
  const enum status status = comm_agree(run->comm, train_leads(run) ? refuse_used(run) : STATUS_OK);
  if (!status && train_leads(run) && file_exists(run->results_path))
    log_info("%s holds a run that failed before its first step: this run uses the folder",
             run->deck->run.dir);
  return status;
}

/* As write_deck(), open_log() and results_open() find it. */
static enum status check_files(const char *dir)
{
  char *deck = mem_printf("%s/deck.yaml", dir), *log = mem_printf("%s/log.txt", dir),
       *results = mem_printf("%s/results.jsonl", dir);
  enum status status = deck && log && results ? file_check_write(deck, 0) : STATUS_MEMORY;
  if (!status)
    status = results_check(log);
  if (!status)
    status = results_check(results);
  mem_free(results);
  mem_free(log);
  mem_free(deck);
  return status;
}

enum status train_folder_check(const struct train_run *run, bool *used)
{
  const char *dir = run->deck->run.dir;
  enum status status = check_place(run);
  if (status || !file_exists(dir))
    return status;
  status = folder_lock_check(dir, "run.dir");
  if (!status)
    status = folder_lock_check(run->checkpoint_dir, "run.dir, or remove the link");
  if (!status)
    status = look_for_run(run, used);
  return status ? status : check_files(dir);
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

/* A failure only makes saves slower. */
static void spread_checkpoints(const struct train_run *run)
{
  const char *dir = run->checkpoint_dir;
  struct stripes stripes;
  bool set;
  if (stripes_spread(dir, &stripes, &set))
    log_warn("checkpoints may be written slowly: %s", status_text());
  else if (stripes.lustre)
    log_info("%s is on Lustre: a checkpoint is on %s%s", dir, stripes_text(&stripes).text,
             set ? ", in stripes of 4 MiB" : ", as the folder's layout says");
}

enum status train_folder_open(struct train_run *run)
{
  enum status status = lock_checkpoints(run);
  if (!status)
    status = write_deck(run->deck);
  if (!status)
    status = open_log(run->deck);
  if (!status)
    spread_checkpoints(run);
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
