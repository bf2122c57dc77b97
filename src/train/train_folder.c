/* The folder of a run: what lies in it, that one run at a time writes it, and what the device learned, which stays there for the run that goes on. */
#include "train/train_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/file.h"

enum status train_folder_paths(struct train_run *run)
{
  run->checkpoint_dir = mem_printf("%s/ckpt", run->deck->run.dir);
  run->results_path = mem_printf("%s/results.jsonl", run->deck->run.dir);
  run->learned_path = mem_printf("%s/device.bin", run->deck->run.dir);
  return run->checkpoint_dir && run->results_path && run->learned_path ? STATUS_OK : STATUS_MEMORY;
}

enum status train_folder_refuse_used(struct train_run *run)
{
  int64_t used = 0;
  if (train_leads(run))
    used = file_exists(run->results_path) || file_exists(run->checkpoint_dir);
  const enum status status = comm_max_i64(run->comm, &used, 1);
  if (status || !used)
    return status;
  return status_set(STATUS_USAGE, "%s already holds a run: go on with it by --resume auto, or choose another run.dir", run->deck->run.dir);
}

enum status train_folder_lock(struct train_run *run)
{
  if (run->lock >= 0)
    return STATUS_OK;
  run->lock = open(run->deck->run.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (run->lock >= 0 && flock(run->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return status_set(STATUS_USAGE, "%s is being written by another run: wait for it, or choose another run.dir", run->deck->run.dir);
  return STATUS_OK;
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
  log_warn("%s cannot be used here, so bits may differ from here on: %s", run->learned_path, status_text());
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

static enum status make_folder(struct train_run *run)
{
  enum status status = file_make_folders(run->checkpoint_dir);
  if (status)
    return status;
  status = write_deck(run->deck);
  if (status)
    return status;
  char *log = mem_printf("%s/log.txt", run->deck->run.dir);
  status = log ? log_open_file(log) : STATUS_MEMORY;
  mem_free(log);
  return status;
}

static enum status open_results(struct train_run *run)
{
  enum status status = results_rewind(run->results_path, run->step);
  if (status)
    return status;
  return results_open(run->results_path, &run->results);
}

enum status train_folder_open(struct train_run *run)
{
  enum status status = make_folder(run);
  if (!status)
    status = train_folder_lock(run);
  if (!status)
    status = keep_learned(run);
  return status ? status : open_results(run);
}
