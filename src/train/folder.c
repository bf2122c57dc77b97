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

void train_folder_paths(struct train_run *run)
{
  run->checkpoint_dir = file_path(run->deck->run.dir, "ckpt");
  run->results_path = file_path(run->deck->run.dir, "results.jsonl");
  run->learned_path = file_path(run->deck->run.dir, "device.bin");
}

/* ckpt/ may be a link to a folder that another run writes, too. */
static enum status lock_checkpoints(struct train_run *run)
{
  return run->checkpoint_lock.fd < 0
             ? folder_lock(run->checkpoint_dir.text, "run.dir, or remove the link",
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
    return file_check_folders(run->checkpoint_dir.text);
  return status_usage("run.dir is %s, the root of all files: choose a folder for this run", dir);
}

enum status train_folder_take(struct train_run *run)
{
  enum status status = check_place(run) ?: folder_lock(run->deck->run.dir, "run.dir", &run->lock);
  return status || !file_is_folder(run->checkpoint_dir.text) ? status : lock_checkpoints(run);
}

void train_folder_release(struct train_run *run)
{
  folder_unlock(run->checkpoint_dir.text, &run->checkpoint_lock);
  folder_unlock(run->deck->run.dir, &run->lock);
}

static enum status look_for_run(const struct train_run *run, bool *used)
{
  int64_t checkpoints = 0;
  enum status status = results_have_steps(run->results_path.text, used)
                           ?: checkpoint_count(run->checkpoint_dir.text, false, &checkpoints);
  *used = *used || checkpoints > 0;
  return status;
}

enum status train_folder_refuse(const struct deck *deck)
{
  return status_usage(
      "%s already holds a run: continue it with --resume auto, or choose another run.dir",
      deck->run.dir);
}

enum status train_folder_refuse_used(struct train_run *run)
{
  bool used = false;
  enum status status = train_leads(run) ? look_for_run(run, &used) : STATUS_OK;
  if (!status && used)
    status = train_folder_refuse(run->deck);
  status = comm_agree(run->comm, status);
  if (!status && train_leads(run) && file_exists(run->results_path.text))
    log_info("%s holds a run that failed before its first step: this run uses the folder",
             run->deck->run.dir);
  return status;
}

enum status train_folder_check(const struct train_run *run, bool *used)
{
  const char *dir = run->deck->run.dir;
  enum status status = check_place(run);
  if (status || !file_exists(dir))
    return status;
  /* The files are found as write_deck(), log_open_file() and results_open() find them. */
  return folder_lock_check(dir, "run.dir")
      ?: folder_lock_check(run->checkpoint_dir.text, "run.dir, or remove the link")
      ?: look_for_run(run, used)
      ?: file_check_write(file_path(dir, "deck.yaml").text, 0)
      ?: results_check(file_path(dir, "log.txt").text)
      ?: results_check(run->results_path.text);
}

enum status train_folder_recall(const struct train_run *run)
{
  enum { MOST = 1 << 26 };
  struct device *device = run->job->device;
  char *data = NULL;
  size_t bytes = 0;
  if (!file_exists(run->learned_path.text))
    return STATUS_OK;
  enum status status = file_read_own(run->learned_path.text, MOST, &data, &bytes);
  if (status)
    return status;
  status = device->ops->learn(device, data, (int64_t)bytes);
  mem_free(data);
  if (status != STATUS_INPUT)
    return status;
  log_warn("%s cannot be used here, so results may differ bitwise from now on: %s",
           run->learned_path.text, status_text());
  return STATUS_OK;
}

static enum status keep_learned(const struct train_run *run)
{
  struct device *device = run->job->device;
  void *data = NULL;
  int64_t bytes = 0;
  enum status status = device->ops->learned(device, &data, &bytes);
  if (!status && bytes > 0)
    status = file_write_all(run->learned_path.text, data, (size_t)bytes);
  mem_free(data);
  return status;
}

static enum status write_deck(const struct deck *deck)
{
  char *yaml = NULL;
  enum status status =
      options_print_yaml(deck->set, &yaml)
          ?: file_write_all(file_path(deck->run.dir, "deck.yaml").text, yaml, strlen(yaml));
  mem_free(yaml);
  return status;
}

/* A failure only makes saves slower. */
static void spread_checkpoints(const struct train_run *run)
{
  const char *dir = run->checkpoint_dir.text;
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
  const char *dir = run->deck->run.dir;
  enum status status = lock_checkpoints(run)
      ?: write_deck(run->deck)
      ?: log_open_file(file_path(dir, "log.txt").text);
  if (!status)
    spread_checkpoints(run);
  status = status
      ?: keep_learned(run)
      ?: results_rewind(run->results_path.text, run->step)
      ?: results_open(run->results_path.text, &run->results);
  if (!status && events_rewind(dir, run->step)) /* a failure must not end the run */
    log_warn("TensorBoard may show steps twice: %s", status_text());
  if (!status && run->deck->run.tensorboard)
    run->events = events_open(dir, run->step);
  return status;
}
