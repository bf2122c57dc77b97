/* Checkpoints of a run: saving at a step, and the state that it begins with. */
#include "train/train_private.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "exec/watchdog.h"
#include "train/origin.h"
#include "train/weights.h"

/* --- saving ----------------------------------------------------------------------------------------------------------------------- */

enum status train_finish_save(struct train_run *run)
{
  struct saver_report report;
  if (!saver_is_pending(run->saver))
    return STATUS_OK;
  const enum status status = saver_finish(run->saver, &report);
  if (status)
    return status;
  run->saved_step = report.step;
  run->save_s = report.seconds;
  return comm_agree(run->comm, train_record_save(run, &report));
}

static enum status begin_save(struct train_run *run, bool behind)
{
  const double start = clock_s();
  struct checkpoint_meta meta = {.step = run->step,
                                 .samples = run->samples,
                                 .skipped = run->skipped,
                                 .ranks = comm_ranks(run->comm),
                                 .seed = (uint64_t)run->deck->run.seed,
                                 .data = token_set_stream(run->order.set),
                                 .version = (char *)PACKAGE_VERSION};
  enum status status = exec_drain(run->job->exec[PLAN_TRAIN]);
  if (status)
    comm_abort(run->comm, status);
  status = comm_agree(run->comm, options_print_yaml(run->deck->set, &meta.deck));
  if (!status)
    status = saver_save(run->saver, &meta, behind, run->bad == 0, start);
  mem_free(meta.deck);
  return status;
}

enum status train_save(struct train_run *run, bool leaving)
{
  enum status status = train_finish_save(run);
  if (!status)
    status = begin_save(run, !leaving);
  if (!status && leaving)
    status = train_finish_save(run);
  return status;
}

/* --- beginning -------------------------------------------------------------------------------------------------------------------- */

/* A frozen parameter has no moments: a run that froze others has not the state that this one needs, or has more than it can go on with. */
static enum status compare_frozen(const struct model *saved, const struct model *model, const char *path)
{
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++)
      if (saved->unit[u].param[p].frozen != model->unit[u].param[p].frozen)
        return status_set(STATUS_USAGE,
                          "%s was saved with %s %s, which this deck %s (train.freeze): resume with the train.freeze of its deck (sluice ckpt show), "
                          "or begin a run of its own with train.init=%s",
                          path, model->unit[u].param[p].name, saved->unit[u].param[p].frozen ? "frozen" : "trained",
                          model->unit[u].param[p].frozen ? "freezes" : "trains", path);
  return STATUS_OK;
}

static enum status check_frozen(const struct train_run *run, const char *path,
                                const struct deck *saved)
{
  struct model *model = NULL;
  enum status status = job_model(saved, comm_ranks(run->comm), &model);
  if (!status)
    status = compare_frozen(model, run->job->model, path);
  model_destroy(model);
  return status;
}

static enum status check_saved(const struct train_run *run, const char *path,
                               const struct checkpoint_meta *meta, struct deck *saved)
{
  enum status status = deck_load_text(saved, path, meta->deck, strlen(meta->deck), 0, NULL);
  if (!status)
    status = origin_check(saved, path, run->deck);
  if (!status)
    status = check_frozen(run, path, saved);
  return status;
}

static enum status take_up(struct train_run *run, const char *path,
                           const struct checkpoint_meta *meta)
{
  run->first = run->step = run->saved_step = meta->step;
  run->samples = meta->samples;
  run->skipped = meta->skipped;
  run->learned = meta->data;
  run->from = mem_strdup(path);
  if (meta->seed != (uint64_t)run->deck->run.seed && train_leads(run))
    log_warn("%s was made with run.seed %llu, this deck has %lld: the data order changes here", path,
             (unsigned long long)meta->seed, (long long)run->deck->run.seed);
  log_info("resumed from %s: step %lld, %lld samples seen, written by %lld rank%s", path,
           (long long)meta->step, (long long)meta->samples, (long long)meta->ranks,
           meta->ranks == 1 ? "" : "s");
  return run->from ? STATUS_OK : STATUS_MEMORY;
}

/* The model and its frozen parameters stay as they were. Other keys may differ
 * between the run that saved and the run that goes on. Checkpoints of later steps belong to another
 * history from here on. */
static enum status resume_from(void *arg, const char *path, bool *damaged)
{
  struct train_run *run = arg;
  struct checkpoint_meta meta = {0};
  struct deck saved = {0};
  enum status status = checkpoint_read_meta(run->comm, path, &meta);
  *damaged = status != STATUS_OK;
  if (!status)
    status = comm_agree(run->comm, check_saved(run, path, &meta, &saved));
  if (!status)
    status = weights_resume(run->job, path, damaged);
  if (!status)
    status = checkpoint_set_aside(run->comm, run->checkpoint_dir, meta.step);
  if (!status)
    status = comm_agree(run->comm, take_up(run, path, &meta));
  deck_destroy(&saved);
  checkpoint_meta_free(&meta);
  return status;
}

enum status train_start_state(struct train_run *run, const char *resume)
{
  if (!strcmp(resume, "none"))
    return weights_start(run->job);
  bool damaged;
  if (strcmp(resume, "auto") != 0)
    return resume_from(run, resume, &damaged);

  char *path = NULL;
  watchdog_start(run->job->start, "looking for a checkpoint in %s", run->checkpoint_dir);
  enum status status = checkpoint_use_newest(run->comm, run->checkpoint_dir, true, resume_from, run, &path);
  if (!status && !path) {
    status = weights_start(run->job);
    log_info("nothing to resume in %s: starting at step 0", run->checkpoint_dir);
  }
  mem_free(path);
  return status;
}

/* --- data ------------------------------------------------------------------------------------------------------------------------ */

enum status train_open_data(struct train_run *run)
{
  const struct deck *deck = run->deck;
  struct data_maker maker;
  watchdog_start(run->job->start, "opening %s", deck->data.train);
  enum status status = data_maker_find(run->comm, run->from ? run->from : deck->train.init, &maker);
  if (!status)
    status = data_open(run->comm, deck, "data.train", deck->data.train, SPLIT_TRAIN,
                       run->job->shape.sequence, &maker, &run->order.set);
  return status;
}
