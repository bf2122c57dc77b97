/* The training loop: a step, the work after it, and the beginning and end of a run. */
#include "train/private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "exec/watchdog.h"
#include "layout/mesh.h"
#include "train/reference.h"

/* --- a step -------------------------------------------------------------- */

static enum status lost(struct train_run *run, const struct exec_result *result, const char *what,
                        const char *cure)
{
  char newest[64] = "no checkpoint was written yet";
  comm_must(run->comm, train_tell_step(run));
  if (train_finish_save(run) && train_leads(run))
    log_warn("%s", status_text());
  if (train_record_run(run, "lost", "not finite", INFINITY))
    log_warn("%s", status_text());
  if (run->saved_step >= 0)
    snprintf(newest, sizeof newest, "the newest checkpoint is from step %lld",
             (long long)run->saved_step);
  return status_set(
      STATUS_NONFINITE,
      "step %lld: loss %g, gradient norm %g: %sstopped without saving, %s; lower optim.lr%s",
      (long long)run->step, result->loss, result->grad_norm, what, newest, cure);
}

/* A skipped step has changed nothing. With immediate updates, which are already applied, skipping
 * is impossible, and their result is not saved. Skipping helps against single bad batches, not
 * against divergence. */
static enum status nonfinite(struct train_run *run, const struct exec_result *result)
{
  enum { MOST_IN_A_ROW = 10 };
  char times[64];
  if (run->deck->optim.nonfinite == NONFINITE_STOP)
    return lost(run, result, "",
                run->deck->optim.update == DECK_UPDATE_IMMEDIATE
                    ? ", or set optim.nonfinite=skip with optim.update=deferred"
                    : ", or set optim.nonfinite=skip");
  run->skipped++;
  snprintf(times, sizeof times, "not finite for %d steps in a row: ", MOST_IN_A_ROW);
  if (++run->bad == MOST_IN_A_ROW)
    return lost(run, result, times, "");
  if (train_leads(run))
    log_warn("step %lld: loss %g, gradient norm %g: not finite, skipped (%lld so far)",
             (long long)run->step, result->loss, result->grad_norm, (long long)run->skipped);
  return STATUS_OK;
}

static void take_step(struct train_run *run, struct train_step *step)
{
  const struct exec_result *result = &step->result;
  for (int s = 0; s < run->data.n; s++) {
    const double targets = exactsum_value(&result->targets_exact[s]);
    step->source[s] =
        (struct source_loss){exactsum_value(&result->loss_exact[s]) / targets, (int64_t)targets};
  }
  train_count_step(run, step);
  run->last = *step;
  if (isnan(run->first_loss))
    run->first_loss = result->loss;
  run->step++;
  run->samples += run->deck->data.batch;
  run->filled += step->counts.filled;
}

/* The optimizer's next update, from 1 on. */
static int64_t next_update(const struct train_run *run)
{
  return run->step - run->skipped + 1;
}

/* The warm-up's work ends first, and the executor of its plan is destroyed. */
static enum status end_warmup(struct train_run *run)
{
  if (!run->job->exec[JOB_WARMUP] || next_update(run) <= run->deck->compress.warmup)
    return STATUS_OK;
  comm_must(run->comm, train_tell_step(run));
  const enum status status = train_finish_save(run);
  if (status)
    return status;
  comm_must(run->comm, job_end_warmup(run->job));
  log_info("step %lld: the warm-up of compress.warmup=%lld updates is over", (long long)run->step,
           (long long)run->deck->compress.warmup);
  return STATUS_OK;
}

/* Counts the rows of step `step`, which may be the next one or the one after it. Collective. */
static enum status count_rows(struct train_run *run, int64_t step)
{
  return step < run->deck->run.steps ? data_count(run->job, &run->order, step, &run->counts)
                                     : STATUS_OK;
}

/* The step has no token that is trained. It counts, also for the learning rate, but it is no update
 * of the optimizer, and it has no record. */
static enum status skip_step(struct train_run *run)
{
  comm_must(run->comm, train_tell_step(run));
  job_skip_step(run->job, PLAN_TRAIN, job_trainer(run->job));
  run->step++;
  run->samples += run->deck->data.batch;
  run->skipped++;
  if (train_leads(run))
    log_warn("step %lld: no token is trained, skipped (%lld so far)", (long long)run->step,
             (long long)run->skipped);
  comm_must(run->comm, count_rows(run, run->step));
  return train_look_around(run, AFTER_STEP);
}

/* Ranks exchange messages during a step, because this delays no lane. Rank 0 also reports the step
 * before at that time. The duration of the first step is unknown, so ranks exchange messages after
 * it. */
static enum status one_step(struct train_run *run)
{
  enum status status = end_warmup(run);
  if (status)
    return status;
  struct exec *exec = job_trainer(run->job);
  const bool first = run->step == run->first;
  const double start = clock_s();
  if (first)
    comm_must(run->comm, count_rows(run, run->step));
  if (run->counts.targets == 0)
    return skip_step(run);
  struct train_step step = {
      .lr = optim_learning_rate(run->deck, run->step), .counts = run->counts, .untold = true};
  comm_must(run->comm, exec_set_targets(exec, run->counts.targets));
  const enum status begun = exec_begin(exec, run->step, next_update(run), step.lr);
  comm_must(run->comm, train_tell_step(run)); /* also if this step ends the run */
  comm_must(run->comm, begun);
  comm_must(run->comm, count_rows(run, run->step + 1));
  status = first ? STATUS_OK : train_look_around(run, DURING_STEP);
  if (status)
    return status;
  comm_must(run->comm, exec_end(exec, &step.result));
  run->warmed += exec == run->job->exec[JOB_WARMUP];
  step.seconds = clock_s() - start;
  take_step(run, &step);
  comm_must(run->comm, train_measure_messages(run));
  if (step.result.finite)
    run->bad = 0;
  else
    status = nonfinite(run, &step.result);
  return status || !first ? status : train_look_around(run, AFTER_STEP);
}

/* --- work after a step --------------------------------------------------- */

static bool interrupts(void *arg)
{
  struct train_run *run = arg;
  return train_look_around(run, DURING_VALIDATION) || run->leaving.cause;
}

/* A validation that is interrupted has no result. */
static enum status evaluate(struct train_run *run)
{
  struct evaluation e;
  comm_must(run->comm, exec_drain(job_trainer(run->job)));
  const bool whole = evaluator_run(&run->evaluator, run->deck->eval.batches, interrupts, run, &e);
  comm_must(run->comm, train_take_profile(run));
  if (!whole)
    return run->leaving.status;
  if (run->metrics.target_step == 0 && e.perplexity <= run->deck->eval.target) {
    run->metrics.target_step = run->step;
    run->metrics.target_s = run->metrics.steps_s;
  }
  run->eval = e;
  run->eval_step = run->step;
  if (run->best_step == 0 || e.loss < run->best_loss) {
    run->best_loss = e.loss;
    run->best_step = run->step;
  }
  if (run->data.pairs)
    log_info("step %lld: validation loss %.4f, accuracy %.4f, margin %.4f (%lld pairs, %.1f s)",
             (long long)run->step, e.loss, e.accuracy, e.margin, (long long)e.tokens, e.seconds);
  else
    log_info("step %lld: validation loss %.4f, perplexity %.2f (%lld tokens, %.1f s)",
             (long long)run->step, e.loss, e.perplexity, (long long)e.tokens, e.seconds);
  return comm_agree(run->comm, train_record_evaluation(run, &e));
}

/* The work after a step. Stopping comes first, because a job that must end may have seconds
 * left. */
static enum status after_step(struct train_run *run)
{
  const struct deck *deck = run->deck;
  const bool last = run->step == deck->run.steps, evaluates = train_validates(run, run->step);
  if (last || run->leaving.cause || evaluates || train_is_due(run->step, deck->checkpoint.every))
    comm_must(run->comm, train_tell_step(run));
  const enum status status = evaluates && !run->leaving.cause ? evaluate(run) : STATUS_OK;
  if (status)
    return status;
  if (evaluates && run->leaving.cause)
    log_info("step %lld: no validation, because of %s", (long long)run->step, run->leaving.why);
  const bool stops = run->leaving.cause && !last, leaves = stops || last;
  if (stops)
    train_say_why(run);
  if (!stops && !train_is_due(run->step, deck->checkpoint.every) &&
      !(last && deck->checkpoint.at_end))
    return STATUS_OK;
  log_progress_end();
  if (run->bad && !leaves) {
    if (train_leads(run))
      log_warn("step %lld was not finite: no checkpoint is written after it", (long long)run->step);
    return STATUS_OK;
  }
  if (run->bad && train_leads(run))
    log_warn("step %lld was not finite and has changed nothing: the state before it is saved, and "
             "older checkpoints are kept",
             (long long)run->step);
  return train_save(run, leaves);
}

static enum status loop(struct train_run *run)
{
  enum status status = STATUS_OK;
  while (!status && !run->leaving.cause && run->step < run->deck->run.steps)
    status = one_step(run) ?: after_step(run);
  if (status)
    return status;
  log_progress_end();
  return train_finish_save(run);
}

/* --- beginning and end of a run ------------------------------------------ */

/* The loss over a few sequences depends on their text, so the best step of the run means little. */
static void warn_of_few(const struct train_run *run)
{
  enum { FEW = 8 };
  const struct data_scan *scan = &run->evaluator.scan;
  const int64_t sequence = scan->sequence, tokens = data_stream(&scan->data).tokens;
  if (tokens <= FEW * sequence)
    log_warn(
        "%s holds %lld tokens for validation, %.1f sequences of %lld: losses over fewer than %d "
        "sequences say little; prepare the text again with a larger val, such as val=0.05, or "
        "use more text",
        scan->data.of[0].dir, (long long)tokens, (double)(tokens - 1) / (double)sequence,
        (long long)sequence, FEW);
}

static enum status open_validation(struct train_run *run)
{
  const struct data_maker maker = {.id = data_stream(&run->data).tokenizer,
                                   .of = run->data.of[0].dir};
  const enum status status = evaluator_open(run->job, &maker, &run->evaluator);
  if (status == STATUS_INPUT)
    return status_set(status, "%s%s", status_text(), evaluator_cure);
  if (!status && train_leads(run))
    warn_of_few(run);
  return status;
}

/* The parameters of a new run are those of the reference. */
static enum status take_references(struct train_run *run)
{
  struct data_sources *val = run->deck->eval.every ? &run->evaluator.scan.data : NULL;
  if (run->from)
    return reference_take(run->comm, run->deck, SPLIT_TRAIN, &run->data)
               ?: (val ? reference_take(run->comm, run->deck, SPLIT_VAL, val) : STATUS_OK);
  log_info("computing the log-likelihoods of the reference");
  return reference_make(&run->evaluator, &run->data)
      ?: (val ? reference_make(&run->evaluator, val) : STATUS_OK)
      ?: reference_keep(run->comm, run->deck, &run->data, val);
}

static enum status start_data(struct train_run *run)
{
  const struct deck *deck = run->deck;
  enum status status = train_open_data(run);
  if (status)
    return status;
  run->order.shape = run->job->shape;
  run->order.seed = (uint64_t)deck->run.seed;
  run->order.data = &run->data;
  run->order.batch = deck->data.batch;
  run->order.rank = mesh_index(&run->job->plan[PLAN_TRAIN]->mesh, MESH_BATCH, comm_rank(run->comm));
  run->order.first_step = run->step;
  run->order.first_sample = run->samples;
  /* Rank 0 broadcasts its results when plans start. */
  status = comm_agree(run->comm, train_leads(run) ? train_folder_recall(run) : STATUS_OK)
               ?: job_start(run->job, PLAN_TRAIN, data_load_train, &run->order);
  if (!status && next_update(run) <= deck->compress.warmup)
    status = job_start_warmup(run->job);
  if (status || job_training(deck) == JOB_TRAIN)
    return status;
  return (deck->eval.every ? open_validation(run) : evaluator_start(run->job, &run->evaluator))
             ?: (run->data.pairs ? take_references(run) : STATUS_OK);
}
static enum status prepare_state(struct train_run *run, struct deck *deck, const char *resume)
{
  train_folder_paths(run);
  enum status status = job_begin(run->comm, deck, &run->job);
  if (status)
    return status;
  watchdog_start(run->job->start, "taking %s", deck->run.dir);
  status = comm_agree(run->comm, train_prepare_stop(run))
               ?: comm_agree(run->comm, train_leads(run) ? train_folder_take(run) : STATUS_OK);
  if (!status && train_leads(run)) /* the lock is held, so the file is not for another run */
    stop_file_drop(&run->stop_file);
  if (!status && !strcmp(resume, "none"))
    status = train_folder_refuse_used(run);
  return status ? status : train_start_state(run, resume);
}

static enum status prepare_loop(struct train_run *run)
{
  enum { MOST_TIMES = 1 << 16 }; /* the summary's percentiles are those of the last steps */
  const int64_t left = run->deck->run.steps - run->step;
  enum status status = start_data(run);
  if (!status)
    job_read_ahead(run->job, PLAN_TRAIN, run->step, run->deck->run.steps - run->step);
  watchdog_start(run->job->start, "opening %s", run->deck->run.dir);
  /* Checkpoints of later steps belong to another history from here on. */
  if (!status && run->from)
    status = checkpoint_set_aside(run->comm, run->checkpoint_dir.text, run->step);
  status = status
      ?: comm_agree(run->comm, train_leads(run) ? train_folder_open(run) : STATUS_OK)
      ?: train_record_start(run)
      ?: comm_agree(run->comm, stats_create(left < MOST_TIMES ? left : MOST_TIMES, &run->stats))
      ?: comm_agree(run->comm, train_metrics_create(run))
      ?: checkpoint_writer_create(run->job, run->checkpoint_dir.text, &run->writer);
  if (!status && train_leads(run))
    train_say_head(run);
  watchdog_started(run->job->start);
  return status;
}

static void release(struct train_run *run)
{
  checkpoint_writer_destroy(run->writer);
  job_destroy(run->job);
  evaluator_close(&run->evaluator);
  data_close(&run->data);
  events_close(run->events);
  stats_destroy(&run->stats);
  mem_free(run->metrics.sample);
  train_folder_release(run);
  mem_free(run->from);
}

static enum status run_loop(struct train_run *run, enum train_end *end)
{
  enum status status = prepare_loop(run) ?: loop(run);
  *end = run->step < run->deck->run.steps ? TRAIN_UNFINISHED : TRAIN_FINISHED;
  if (!status && run->job->counters)
    status = comm_agree(run->comm, train_record_counters(run));
  if (!status && run->deck->train.trace.n > 0)
    status = comm_agree(run->comm, train_record_trace(run));
  const bool done = !status;
  if (done)
    status = train_record_run(run, *end == TRAIN_FINISHED ? "finished" : "unfinished",
                              *end == TRAIN_FINISHED ? "last step" : run->leaving.why,
                              run->leaving.left_s);
  const enum status closing = results_close(run->results);
  status = status ?: closing;
  status = done ? comm_agree(run->comm, status) : status;
  if (!status)
    train_say_end(run, *end);
  return status;
}

enum status train_run(struct comm *comm, struct deck *deck, const char *resume, enum train_end *end)
{
  struct train_run run = {.comm = comm,
                          .deck = deck,
                          .saved_step = -1,
                          .first_loss = NAN,
                          .leaving = {.left_s = INFINITY},
                          .lock = {.fd = -1},
                          .checkpoint_lock = {.fd = -1},
                          .start_s = clock_s(),
                          .end_s = INFINITY,
                          .job_end_s = INFINITY};
  *end = TRAIN_FINISHED;
  enum status status = prepare_state(&run, deck, resume);
  if (!status && run.step >= deck->run.steps)
    log_info("nothing to do: the run is already at step %lld of %lld", (long long)run.step,
             (long long)deck->run.steps);
  else if (!status)
    status = run_loop(&run, end);
  release(&run);
  return status;
}
