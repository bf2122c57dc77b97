/* Checkpoints of a run: saving at a step, and the initial state. */
#include "train/private.h"

#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "exec/watchdog.h"
#include "job/choose.h"
#include "job/model_source.h"
#include "job/weights.h"

/* --- saving -------------------------------------------------------------- */

enum status train_finish_save(struct train_run *run)
{
  struct checkpoint_writer_report report;
  if (!checkpoint_writer_is_pending(run->writer))
    return STATUS_OK;
  const enum status status = checkpoint_writer_finish(run->writer, &report);
  if (status)
    return status;
  run->saved_step = report.step;
  run->save_s = report.seconds;
  return comm_agree(run->comm, train_record_save(run, &report));
}

/* With fp8 it also says which scales `auto` selected. */
static const char *compute_of(const struct train_run *run)
{
  const bool tensor = run->deck->run.compute == DECK_COMPUTE_FP8 && run->job->device->fp8_tensor;
  return tensor ? "fp8-tensor" : run->job->place.precision;
}

enum status train_save(struct train_run *run, bool leaving)
{
  enum status status = train_finish_save(run);
  if (status)
    return status;
  const double start = clock_s();
  struct checkpoint_meta meta = {.step = run->step,
                                 .samples = run->samples,
                                 .skipped = run->skipped,
                                 .ranks = comm_ranks(run->comm),
                                 .seed = (uint64_t)run->deck->run.seed,
                                 .run = run->id,
                                 .data = data_stream(&run->data),
                                 .version = (char *)PACKAGE_VERSION};
  if (run->job->shape.two_hops)
    meta.local_ranks = run->job->shape.local_ranks;
  snprintf(meta.compute, sizeof meta.compute, "%s", compute_of(run));
  if (run->job->model->lora_rank > 0) {
    meta.base_sum = run->job->base_sum;
    snprintf(meta.base, sizeof meta.base, "%s", run->job->base);
  }
  comm_must(run->comm, exec_drain(job_trainer(run->job)));
  status = comm_agree(run->comm, options_print_yaml(run->deck->set, &meta.deck))
               ?: checkpoint_writer_save(run->writer, &meta, !leaving, run->bad == 0, start);
  mem_free(meta.deck);
  return status || !leaving ? status : train_finish_save(run);
}

/* --- beginning ----------------------------------------------------------- */

/* A frozen parameter has no moments. So a checkpoint with other frozen parameters lacks state that
 * this run needs, or has state that it cannot use. */
static enum status compare_frozen(const struct model *saved, const struct model *model,
                                  const char *path)
{
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++)
      if (saved->unit[u].param[p].frozen != model->unit[u].param[p].frozen)
        return status_usage(
            "%s was saved with %s %s, which this deck %s (train.freeze): resume with "
            "the train.freeze of its deck (sluice ckpt show), "
            "or begin a run of its own with train.init=%s",
            path, model->unit[u].param[p].name,
            saved->unit[u].param[p].frozen ? "frozen" : "trained",
            model->unit[u].param[p].frozen ? "freezes" : "trains", path);
  return STATUS_OK;
}

static enum status check_optimizer(const struct train_run *run, const char *path,
                                   const struct deck *saved)
{
  const struct optim_ops *before = optim_ops((enum optimizer)saved->optim.name),
                         *now = optim_ops((enum optimizer)run->deck->optim.name);
  if (before == now)
    return STATUS_OK;
  return status_usage(
      "%s has the optimizer state of %s, and this deck sets optim.name=%s: resume with "
      "optim.name=%s, or begin a run of its own with train.init=%s",
      path, before->name, now->name, before->name, path);
}

static enum status check_frozen(const struct train_run *run, const char *path,
                                const struct deck *saved)
{
  struct model *model = NULL;
  enum status status =
      job_model(saved, run->job->place.compute, comm_ranks(run->comm), &model)
          ?: weights_match_adapters(run->job, path, saved, model)
          ?: compare_frozen(model, run->job->model, path);
  model_destroy(model);
  return status;
}

/* Resolves zeros, which mean values derived from other keys, and the automatic compute type and
 * scales. */
static struct deck spell_out(const struct deck *deck, const char *compute)
{
  struct deck full = *deck;
  if (full.run.compute == DECK_COMPUTE_AUTO)
    full.run.compute = strcmp(compute, "fp32") ? DECK_COMPUTE_BF16 : DECK_COMPUTE_FP32;
  if (full.run.compute != DECK_COMPUTE_FP8) { /* not read, so a resume must not report a change */
    full.run.fp8_gradients = false;
    full.run.fp8_scales = DECK_FP8_SCALES_AUTO;
  } else if (full.run.fp8_scales == DECK_FP8_SCALES_AUTO) {
    full.run.fp8_scales =
        strcmp(compute, "fp8-tensor") ? DECK_FP8_SCALES_GROUPS : DECK_FP8_SCALES_TENSOR;
  }
  if (full.data.sequence == 0)
    full.data.sequence = full.model.context;
  if (full.optim.schedule == SCHEDULE_CONSTANT)
    full.optim.decay_steps = 0;
  else if (full.optim.decay_steps == 0)
    full.optim.decay_steps = full.run.steps;
  return full;
}

static const char reorder[] = "the samples would come in another order, some twice and some never";

/* One line per key that changes the mathematics or the order of samples, or that was chosen.
 * `refused`: the checkpoint whose order of samples must stay. Then nothing is logged. A checkpoint
 * of another program may lack its compute type, which then counts as the current one. */
static enum status compare_decks(const struct train_run *run, const struct checkpoint_meta *meta,
                                 const struct deck *saved, const char *refused)
{
  const char *compute = compute_of(run);
  const struct deck old = spell_out(saved, *meta->compute ? meta->compute : compute),
                    own = spell_out(run->deck, compute); /* the originals own the texts */
  enum status status = STATUS_OK;
  for (const struct option *option = deck_table; option->name && !status; option++) {
    char *before = NULL, *now = NULL;
    if ((option->effect == EFFECT_NONE && !option->chosen) ||
        (refused && option->effect != EFFECT_ORDER))
      continue;
    status = options_print_value(option, &old, &before) ?: options_print_value(option, &own, &now);
    const bool changed = !status && strcmp(before, now) != 0;
    if (changed && refused)
      status =
          status_usage("%s is %s, but %s was trained with %s: %s; set %s=%s, or data.reorder=true",
                       option->name, now, refused, before, reorder, option->name, before);
    else if (changed)
      log_info("changed: %s: %s -> %s", option->name, before, now);
    mem_free(before);
    mem_free(now);
  }
  return status;
}

static enum status create_job(struct train_run *run)
{
  return job_create(run->job, job_training(run->deck));
}

/* With the choices of `saved`, the deck of the checkpoint. What was made for a checkpoint that
 * turned out to be damaged goes first. */
static enum status create_like(struct train_run *run, const char *path,
                               const struct checkpoint_meta *meta, const struct deck *saved)
{
  struct deck *deck = run->job->deck;
  bool taken = false;
  job_clear(run->job);
  enum status status = comm_agree(run->comm, deck_unchoose(deck));
  if (!status && meta->ranks == comm_ranks(run->comm))
    status = choose_resumed(run->comm, saved, path, deck, &taken);
  status = status ?: create_job(run);
  if (status != STATUS_MEMORY || !taken)
    return status;
  job_clear(run->job);
  return choose_again(run->comm, path, deck) ?: create_job(run);
}

/* `saved`: the deck of the checkpoint. Without samples there is no order yet. */
static enum status check_saved(const struct train_run *run, const char *path,
                               const struct checkpoint_meta *meta, const struct deck *saved)
{
  enum status status = model_source_check(saved, path, run->deck)
      ?: check_optimizer(run, path, saved)
      ?: check_frozen(run, path, saved);
  if (status || run->deck->data.reorder || meta->samples == 0)
    return status;
  return compare_decks(run, meta, saved, path);
}

static enum status take_up(struct train_run *run, const char *path,
                           const struct checkpoint_meta *meta, const struct deck *saved)
{
  run->first = run->step = run->saved_step = meta->step;
  run->samples = meta->samples;
  run->skipped = meta->skipped;
  run->learned = meta->data;
  run->from = mem_strdup(path);
  log_info("resumed from %s: step %lld, %lld samples seen, written by %lld rank%s", path,
           (long long)meta->step, (long long)meta->samples, (long long)meta->ranks,
           plural(meta->ranks));
  return run->from ? compare_decks(run, meta, saved, NULL) : STATUS_MEMORY;
}

/* The model, its frozen parameters and the order of samples stay as they were. Other keys may
 * differ between the run that saved and the run that continues. */
static enum status resume_from(void *arg, const char *path, bool *damaged)
{
  struct train_run *run = arg;
  struct checkpoint_meta meta = {0};
  struct deck saved = {0};
  watchdog_start(run->job->start, "reading %s", path);
  enum status status = checkpoint_read_meta(run->comm, path, &meta);
  *damaged = status != STATUS_OK;
  status = status
      ?: comm_agree(run->comm,
                    deck_load_text(&saved, path, meta.deck, strlen(meta.deck), 0, NULL))
      ?: create_like(run, path, &meta, &saved)
      ?: comm_agree(run->comm, check_saved(run, path, &meta, &saved))
      ?: weights_resume(run->job, path, damaged)
      ?: comm_agree(run->comm, take_up(run, path, &meta, &saved));
  deck_destroy(&saved);
  checkpoint_meta_free(&meta);
  return status;
}

enum status train_start_state(struct train_run *run, const char *resume)
{
  if (!strcmp(resume, "none"))
    return create_job(run) ?: weights_start(run->job);
  bool damaged;
  if (strcmp(resume, "auto") != 0)
    return resume_from(run, resume, &damaged);

  char *path = NULL;
  watchdog_start(run->job->start, "looking for a checkpoint in %s", run->checkpoint_dir.text);
  enum status status =
      checkpoint_use_newest(run->comm, run->checkpoint_dir.text, true, resume_from, run, &path);
  if (!status && !path) {
    status = create_job(run) ?: weights_start(run->job);
    log_info("nothing to resume in %s: starting at step 0", run->checkpoint_dir.text);
  }
  mem_free(path);
  return status;
}

/* --- data ---------------------------------------------------------------- */

/* `dir`: of the data. */
static enum status compare_tokens(const struct train_run *run, const struct token_stream *now,
                                  const char *dir)
{
  const struct token_stream *before = &run->learned;
  if (!*before->tokenizer.name) {
    if (comm_rank(run->comm) == 0)
      log_warn("data.train: %s does not record its training tokens, so they cannot be compared "
               "with those of %s",
               run->from, dir);
    return STATUS_OK;
  }
  if (before->tokens == now->tokens && before->crc32 == now->crc32)
    return STATUS_OK;
  if (!run->deck->data.reorder)
    return status_usage("data.train: %s (%lld tokens) has other tokens, documents or masks than "
                        "the data that %s was trained on (%lld tokens): use that data, or set "
                        "data.reorder=true",
                        dir, (long long)now->tokens, run->from, (long long)before->tokens);
  log_info("changed: data.train: %lld tokens -> %lld tokens of %s", (long long)before->tokens,
           (long long)now->tokens, dir);
  return STATUS_OK;
}

/* The tokens that the checkpoint was trained on, in the same order, in whatever folders. */
static enum status compare_stream(const struct train_run *run)
{
  const struct token_stream now = data_stream(&run->data);
  char *dir = NULL;
  if (!run->from || run->samples == 0)
    return STATUS_OK;
  const enum status status =
      options_print_named(run->deck->set, "data.train", &dir) ?: compare_tokens(run, &now, dir);
  mem_free(dir);
  return status;
}

enum status train_open_data(struct train_run *run)
{
  const struct deck *deck = run->deck;
  struct data_maker maker;
  watchdog_start(run->job->start, "opening %s", options_first(&deck->data.train));
  return data_maker_find(run->comm, run->from ? run->from : deck->train.init, &maker)
      ?: data_open(run->comm, deck, SPLIT_TRAIN, run->job->shape.sequence, &maker, &run->data)
      ?: compare_stream(run);
}
