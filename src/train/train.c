#include "train/train.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "exec/watchdog.h"
#include "io/file.h"
#include "io/results.h"
#include "train/evaluate.h"
#include "train/job_state.h"
#include "train/origin.h"
#include "train/saver.h"
#include "train/signals.h"
#include "train/stats.h"
#include "train/stop.h"
#include "train/weights.h"

/* A run under way. */
struct run {
  struct comm *comm;
  const struct deck *deck;
  struct job *job;
  struct evaluator evaluator;
  struct data_order order;
  struct results *results; /* rank 0 */
  struct saver *saver;
  struct stats stats;
  char *checkpoint_dir, *results_path, *learned_path;
  int64_t first, step, skipped, bad; /* step: completed steps; bad: how many of the last ones were skipped in a row */
  int64_t samples;
  double start_s, last_loss, save_s, eval_s; /* save_s, eval_s: of the last one, 0: none yet */
  struct stop_steps recent;
  struct stop_file stop_file; /* rank 0 */
  double end_s;               /* of the job, in seconds since 1970; INFINITY: nobody says. Rank 0's is heeded */
  int lock;                   /* rank 0: the run folder, while this run writes it; -1: not open */
  int64_t saved_step;         /* of the newest checkpoint of this run, -1: none */
};

static bool leads(const struct run *run)
{
  return comm_rank(run->comm) == 0;
}

/* --- the run folder ------------------------------------------------------------------------------------------------------------- */

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

static enum status open_folder(struct run *run)
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

static enum status open_results(struct run *run)
{
  enum status status = results_rewind(run->results_path, run->step);
  if (status)
    return status;
  return results_open(run->results_path, &run->results);
}

static enum status run_paths(struct run *run)
{
  run->checkpoint_dir = mem_printf("%s/ckpt", run->deck->run.dir);
  run->results_path = mem_printf("%s/results.jsonl", run->deck->run.dir);
  run->learned_path = mem_printf("%s/device.bin", run->deck->run.dir);
  return run->checkpoint_dir && run->results_path && run->learned_path ? STATUS_OK : STATUS_MEMORY;
}

/* --- what the device learned ---------------------------------------------------------------------------------------------------- */

/* A run that goes on computes with the algorithms that it began with, whatever has been learned elsewhere since. Another device, or another version of its libraries, has its own. */
static enum status recall(const struct run *run)
{
  enum { MOST = 1 << 26 };
  struct device *device = run->job->device;
  char *data = NULL;
  size_t bytes = 0;
  if (!file_exists(run->learned_path))
    return STATUS_OK;
  enum status status = file_read_all(run->learned_path, MOST, &data, &bytes);
  if (status)
    return status;
  status = device->ops->learn(device, data, (int64_t)bytes);
  mem_free(data);
  if (status != STATUS_INPUT)
    return status;
  log_warn("%s cannot be used here, so bits may differ from here on: %s", run->learned_path, status_text());
  return STATUS_OK;
}

static enum status keep_learned(const struct run *run)
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

/* --- checkpoints ---------------------------------------------------------------------------------------------------------------- */

static enum status record_save(struct run *run, const struct saver_report *report)
{
  if (!run->results)
    return STATUS_OK;
  results_begin(run->results, "save");
  results_int(run->results, "step", report->step);
  results_real(run->results, "seconds", report->seconds);
  results_real(run->results, "blocked_seconds", report->held_s);
  results_int(run->results, "bytes", report->bytes);
  return results_end(run->results);
}

/* Waits for what is written behind the steps. */
static enum status finish_save(struct run *run)
{
  struct saver_report report;
  if (!saver_is_pending(run->saver))
    return STATUS_OK;
  const enum status status = saver_finish(run->saver, &report);
  if (status)
    return status;
  run->saved_step = report.step;
  run->save_s = report.seconds;
  return comm_agree(run->comm, record_save(run, &report));
}

static enum status begin_save(struct run *run, bool behind)
{
  const double start = clock_s();
  struct checkpoint_meta meta = {.step = run->step,
                                 .samples = run->samples,
                                 .skipped = run->skipped,
                                 .ranks = comm_ranks(run->comm),
                                 .seed = (uint64_t)run->deck->run.seed,
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

/* One at a time. Without steps to come there is nothing to write behind. After a step that was skipped older ones stay: what is saved then may be a model that is lost. */
static enum status save(struct run *run, bool leaving)
{
  enum status status = finish_save(run);
  if (!status)
    status = begin_save(run, !leaving);
  if (!status && leaving)
    status = finish_save(run);
  return status;
}

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

static enum status check_frozen(const struct run *run, const char *path, const char *saved_deck)
{
  struct deck saved = {0};
  struct model *model = NULL;
  enum status status = deck_load_text(&saved, path, saved_deck, strlen(saved_deck), 0, NULL);
  if (!status)
    status = origin_check(&saved, path, run->deck);
  if (!status)
    status = job_model(&saved, comm_ranks(run->comm), &model);
  if (!status)
    status = compare_frozen(model, run->job->model, path);
  model_destroy(model);
  deck_destroy(&saved);
  return status;
}

/* Anything but the model and what of it is frozen may differ between the run that saved and the run that goes on. Checkpoints of later steps belong to another history from here on. */
static enum status resume_from(struct run *run, const char *path)
{
  struct checkpoint_meta meta = {0};
  enum status status = checkpoint_read_meta(run->comm, path, &meta);
  if (!status)
    status = comm_agree(run->comm, check_frozen(run, path, meta.deck));
  if (!status)
    status = weights_load(run->job, path, true);
  if (!status)
    status = checkpoint_set_aside(run->comm, run->checkpoint_dir, meta.step);
  if (!status) {
    run->first = run->step = run->saved_step = meta.step;
    run->samples = meta.samples;
    run->skipped = meta.skipped;
    if (meta.seed != (uint64_t)run->deck->run.seed && leads(run))
      log_warn("%s was made with run.seed %llu, this deck has %lld: the data order changes here", path, (unsigned long long)meta.seed,
               (long long)run->deck->run.seed);
    log_info("resumed from %s: step %lld, %lld samples seen, written by %lld rank%s", path, (long long)meta.step, (long long)meta.samples,
             (long long)meta.ranks, meta.ranks == 1 ? "" : "s");
  }
  checkpoint_meta_free(&meta);
  return status;
}

static enum status refuse_used_folder(struct run *run)
{
  int64_t used = 0;
  if (leads(run))
    used = file_exists(run->results_path) || file_exists(run->checkpoint_dir);
  const enum status status = comm_max_i64(run->comm, &used, 1);
  if (status || !used)
    return status;
  return status_set(STATUS_USAGE, "%s already holds a run: go on with it by --resume auto, or choose another run.dir", run->deck->run.dir);
}

static enum status start_state(struct run *run, const char *resume)
{
  if (!strcmp(resume, "none"))
    return weights_start(run->job);
  if (strcmp(resume, "auto") != 0)
    return resume_from(run, resume);

  char *path = NULL;
  enum status status = checkpoint_find(run->comm, run->checkpoint_dir, true, &path);
  if (status)
    return status;
  if (path) {
    status = resume_from(run, path);
  } else {
    status = weights_start(run->job);
    log_info("nothing to resume in %s: starting at step 0", run->checkpoint_dir);
  }
  mem_free(path);
  return status;
}

/* --- records -------------------------------------------------------------------------------------------------------------------- */

static int64_t step_tokens(const struct run *run)
{
  return run->deck->data.batch * run->job->shape.sequence;
}

static enum status record_step(struct run *run, const struct exec_result *result, double lr, double seconds)
{
  if (!run->results)
    return STATUS_OK;
  results_begin(run->results, "step");
  results_int(run->results, "step", run->step);
  results_real(run->results, "loss", result->loss);
  results_real(run->results, "grad_norm", result->grad_norm);
  results_real(run->results, "lr", lr);
  results_int(run->results, "samples", run->samples);
  results_real(run->results, "seconds", seconds);
  results_real(run->results, "tokens_per_s", (double)step_tokens(run) / seconds);
  return results_end(run->results);
}

static void show_step(struct run *run, const struct exec_result *result, double lr)
{
  const double recent = stats_recent(&run->stats, 20);
  const double left = recent * (double)(run->deck->run.steps - run->step);
  log_progress(2, "step %lld/%lld  loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s  ETA %lld:%02lld:%02lld", (long long)run->step,
               (long long)run->deck->run.steps, result->loss, result->grad_norm, lr, (double)step_tokens(run) / recent, (long long)left / 3600,
               (long long)left / 60 % 60, (long long)left % 60);
}

/* Why the run leaves: the same on all ranks but for `why`. */
struct leaving {
  enum stop_cause cause;
  int signal;
  double left_s;           /* of the job's time, INFINITY: unknown */
  struct stop_costs costs; /* of staying; rank 0's */
  bool guessed;            /* what saving costs: no checkpoint was written yet; rank 0's */
  char why[224];           /* for people */
};

static enum status record_run(struct run *run, const char *end, const char *reason, double left_s)
{
  char hash[17];
  int64_t device_bytes = 0, device_all = 0;
  struct device *device = run->job->device;
  if (!run->results)
    return STATUS_OK;
  const enum status status = device->ops->memory(device, &device_bytes, &device_all);
  if (status)
    return status;
  deck_hash(run->deck, hash);
  results_begin(run->results, "run");
  results_text(run->results, "end", end);
  results_text(run->results, "reason", reason);
  if (isfinite(left_s))
    results_real(run->results, "left_seconds", left_s);
  results_text(run->results, "version", PACKAGE_VERSION);
  results_text(run->results, "mpi", comm_description(run->comm));
  results_text(run->results, "deck", hash);
  results_int(run->results, "seed", run->deck->run.seed);
  results_int(run->results, "ranks", comm_ranks(run->comm));
  results_int(run->results, "threads", run->job->threads);
  results_text(run->results, "device", run->job->place.device);
  results_text(run->results, "compute", dtype_name(run->job->place.compute));
  results_text(run->results, "carrier", run->job->place.carrier);
  results_int(run->results, "device_bytes", device_bytes);
  results_int(run->results, "parameters", run->job->model->parameters);
  results_int(run->results, "first_step", run->first);
  results_int(run->results, "step", run->step);
  results_int(run->results, "skipped", run->skipped);
  results_real(run->results, "loss", run->last_loss);
  results_real(run->results, "seconds", clock_s() - run->start_s);
  results_real(run->results, "save_seconds", run->save_s);
  const double mean = stats_mean(&run->stats);
  results_real(run->results, "step_mean", mean);
  results_real(run->results, "step_p50", stats_percentile(&run->stats, 50));
  results_real(run->results, "step_p90", stats_percentile(&run->stats, 90));
  results_real(run->results, "step_p95", stats_percentile(&run->stats, 95));
  results_real(run->results, "tokens_per_s", mean > 0 ? (double)step_tokens(run) / mean : 0);
  results_int(run->results, "planned_bytes", job_planned_bytes(run->job));
  results_int(run->results, "arena_bytes", mem_usage(MEM_ARENA_PERSISTENT).bytes + mem_usage(MEM_ARENA_TRANSIENT).bytes);
  results_int(run->results, "resident_start_bytes", run->job->resident_start);
  results_int(run->results, "resident_bytes", mem_resident_bytes());
  results_int(run->results, "allocations", mem_calls());
  return results_end(run->results);
}

/* --- the loop ------------------------------------------------------------------------------------------------------------------- */

static enum status record_evaluation(struct run *run, const struct evaluation *e)
{
  if (!run->results)
    return STATUS_OK;
  results_begin(run->results, "eval");
  results_int(run->results, "step", run->step);
  results_real(run->results, "loss", e->loss);
  results_real(run->results, "perplexity", e->perplexity);
  results_real(run->results, "bits_per_byte", e->bits_per_byte);
  results_int(run->results, "tokens", e->tokens);
  results_real(run->results, "seconds", e->seconds);
  return results_end(run->results);
}

static enum status evaluate(struct run *run)
{
  struct evaluation e;
  enum status status = exec_drain(run->job->exec[PLAN_TRAIN]);
  if (status)
    comm_abort(run->comm, status);
  status = evaluator_run(&run->evaluator, run->deck->eval.batches, false, &e);
  if (status)
    return status;
  run->eval_s = e.seconds;
  log_info("step %lld: validation loss %.4f, perplexity %.2f (%lld tokens, %.1f s)", (long long)run->step, e.loss, e.perplexity, (long long)e.tokens,
           e.seconds);
  return comm_agree(run->comm, record_evaluation(run, &e));
}

static enum status lost(struct run *run, const struct exec_result *result, const char *what, const char *cure)
{
  char newest[64] = "no checkpoint was written yet";
  if (finish_save(run) && leads(run))
    log_warn("%s", status_text());
  if (record_run(run, "lost", "not finite", INFINITY))
    log_warn("%s", status_text());
  if (run->saved_step >= 0)
    snprintf(newest, sizeof newest, "the newest checkpoint is from step %lld", (long long)run->saved_step);
  return status_set(STATUS_NONFINITE, "step %lld: loss %g, gradient norm %g: %sstopped without saving, %s; lower optim.lr%s", (long long)run->step,
                    result->loss, result->grad_norm, what, newest, cure);
}

/* Where the job goes on, such a step has changed nothing. Immediate updates have been made, but there is no skipping with them: what they changed is not saved. Skipping forgives a bad batch now
 * and then, not a model that is lost. */
static enum status nonfinite(struct run *run, const struct exec_result *result)
{
  enum { MOST_IN_A_ROW = 10 };
  char times[64];
  if (run->deck->optim.nonfinite == NONFINITE_STOP)
    return lost(run, result, "",
                run->deck->optim.update == DECK_UPDATE_IMMEDIATE ? ", or set optim.nonfinite=skip with optim.update=deferred"
                                                                 : ", or set optim.nonfinite=skip");
  run->skipped++;
  snprintf(times, sizeof times, "not finite for %d steps in a row: ", MOST_IN_A_ROW);
  if (++run->bad == MOST_IN_A_ROW)
    return lost(run, result, times, "");
  if (leads(run))
    log_warn("step %lld: loss %g, gradient norm %g: not finite, skipped (%lld so far)", (long long)run->step, result->loss, result->grad_norm,
             (long long)run->skipped);
  return STATUS_OK;
}

static enum status one_step(struct run *run)
{
  const double start = clock_s();
  const double lr = optim_learning_rate(run->deck, run->step);
  struct exec_result result;
  enum status status = exec_step(run->job->exec[PLAN_TRAIN], run->step, run->step - run->skipped + 1, lr, &result);
  if (status)
    comm_abort(run->comm, status);
  const double seconds = clock_s() - start;
  run->step++;
  run->samples += run->deck->data.batch;
  run->last_loss = result.loss;
  stats_add(&run->stats, seconds);
  stop_steps_add(&run->recent, seconds);
  status = record_step(run, &result, lr, seconds);
  if (status)
    comm_abort(run->comm, status);
  show_step(run, &result, lr);
  if (!result.finite)
    return nonfinite(run, &result);
  run->bad = 0;
  return STATUS_OK;
}

static bool due(int64_t step, int64_t every)
{
  return every > 0 && step % every == 0;
}

/* One that was not measured yet: no sequence takes longer than in a step of the training. */
static double evaluation_cost(const struct run *run)
{
  const struct deck *deck = run->deck;
  if (run->eval_s > 0)
    return run->eval_s;
  const int64_t all = token_set_tokens(run->evaluator.scan.set) / run->job->shape.sequence / deck->data.batch + 1;
  const int64_t batches = deck->eval.batches > 0 && deck->eval.batches < all ? deck->eval.batches : all;
  return (double)batches * stop_steps_high(&run->recent);
}

static double save_cost(const struct run *run)
{
  if (run->save_s > 0)
    return run->save_s;
  const int ranks = comm_ranks(run->comm), nodes = (ranks + comm_local_ranks(run->comm) - 1) / comm_local_ranks(run->comm);
  return stop_guess_save(job_state_snapshot_bytes(run->job) * ranks, nodes);
}

/* A checkpoint that is written behind the steps has to be complete before the last one begins. */
static struct stop_costs costs_of_staying(struct run *run)
{
  const struct deck *deck = run->deck;
  const double save_s = save_cost(run);
  const int saves = saver_is_writing(run->saver) + due(run->step, deck->checkpoint.every);
  return (struct stop_costs){.due_s = (due(run->step, deck->eval.every) ? evaluation_cost(run) : 0) + saves * save_s,
                             .step_s = stop_steps_high(&run->recent),
                             .save_s = save_s};
}

static double unix_now(void)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What rank 0 knows beside signals. */
static enum stop_cause look_at_file_and_clock(struct run *run, double left_s, struct leaving *leaving)
{
  leaving->costs = costs_of_staying(run);
  leaving->guessed = run->save_s == 0;
  if (stop_file_take(&run->stop_file, clock_s()))
    return STOP_FILE;
  return left_s < stop_lead(&leaving->costs) ? STOP_END : STOP_NOT;
}

static void explain(const struct run *run, struct leaving *leaving)
{
  const char *reason = run->stop_file.reason;
  if (leaving->cause == STOP_SIGNAL)
    snprintf(leaving->why, sizeof leaving->why, "%s", signals_name(leaving->signal));
  else if (leaving->cause == STOP_FILE)
    snprintf(leaving->why, sizeof leaving->why, "file STOP%s%s", *reason ? ": " : "", reason);
  else
    snprintf(leaving->why, sizeof leaving->why, "time limit");
}

/* Has any rank been asked to stop, is there a reason to, and has a checkpoint been written behind the steps? The answers are the same everywhere. */
static enum status look_around(struct run *run, struct leaving *leaving)
{
  enum { SIGNAL, WRITING, CAUSE, LEFT_MS, N };
  const double left_s = leads(run) ? fmax(run->end_s - unix_now(), 0) : 0;
  int64_t of_any[N] = {[SIGNAL] = signals_pending(), [WRITING] = saver_is_writing(run->saver)};
  if (leads(run)) {
    of_any[CAUSE] = look_at_file_and_clock(run, left_s, leaving);
    of_any[LEFT_MS] = isfinite(left_s) ? (int64_t)(1e3 * left_s) : INT64_MAX;
  }
  watchdog_enter(run->job->exec[PLAN_TRAIN], TASK_MEET, NULL, "the meeting of all ranks after step %lld", (long long)run->step);
  const enum status status = comm_max_i64(run->comm, of_any, N);
  if (status)
    comm_abort(run->comm, status);
  watchdog_leave(run->job->exec[PLAN_TRAIN], TASK_MEET);
  leaving->signal = (int)of_any[SIGNAL];
  const bool by_file = of_any[CAUSE] == STOP_FILE; /* which is gone: nobody will see it again */
  leaving->cause = leaving->signal && !by_file ? STOP_SIGNAL : (enum stop_cause)of_any[CAUSE];
  leaving->left_s = of_any[LEFT_MS] < INT64_MAX ? 1e-3 * (double)of_any[LEFT_MS] : INFINITY;
  explain(run, leaving);
  return of_any[WRITING] ? STATUS_OK : finish_save(run);
}

static void say_why(const struct run *run, const struct leaving *leaving)
{
  const struct stop_costs *costs = &leaving->costs;
  char left[48] = "", due[64] = "", kept[224] = "";
  if (isfinite(leaving->left_s))
    snprintf(left, sizeof left, ": %.1f s are left", leaving->left_s);
  if (costs->due_s > 0)
    snprintf(due, sizeof due, "what is due before the next step (%.2f s), ", costs->due_s);
  if (leaving->cause == STOP_END)
    snprintf(kept, sizeof kept, ", %.1f s are kept back: %sa step (%.2f s), a checkpoint (%.2f s%s), a quarter more, and %g s to end",
             stop_lead(costs), due, costs->step_s, costs->save_s, leaving->guessed ? ", not measured yet" : "", STOP_MARGIN_S);
  log_progress_end();
  if (leads(run))
    log_warn("%s: leaving after step %lld%s%s", leaving->why, (long long)run->step, left, kept);
}

/* What follows a step, stopping first: a job that was told to end may have seconds left. */
static enum status after_step(struct run *run, struct leaving *leaving, enum train_end *end, bool *leave)
{
  const struct deck *deck = run->deck;
  const bool last = run->step == deck->run.steps;
  enum status status = look_around(run, leaving);
  const bool stops = leaving->cause && !last;
  if (!status && !stops && due(run->step, deck->eval.every))
    status = evaluate(run);
  if (status)
    return status;
  if (stops) {
    say_why(run, leaving);
    *end = TRAIN_UNFINISHED;
  }
  *leave = stops || last;
  if (!stops && !due(run->step, deck->checkpoint.every) && !(last && deck->checkpoint.at_end))
    return STATUS_OK;
  log_progress_end();
  if (run->bad && !*leave) {
    if (leads(run))
      log_warn("step %lld was not finite: no checkpoint is written after it", (long long)run->step);
    return STATUS_OK;
  }
  if (run->bad && leads(run))
    log_warn("step %lld was not finite and has changed nothing: the state before it is saved, and older checkpoints are kept", (long long)run->step);
  return save(run, *leave);
}

static enum status loop(struct run *run, struct leaving *leaving, enum train_end *end)
{
  bool leave = false;
  *end = TRAIN_FINISHED;
  while (!leave) {
    enum status status = one_step(run);
    if (!status)
      status = after_step(run, leaving, end, &leave);
    if (status)
      return status;
  }
  log_progress_end();
  return finish_save(run);
}

static enum status start_data(struct run *run)
{
  const struct deck *deck = run->deck;
  enum status status = data_open(run->comm, "data.train", deck->data.train, deck->train.init, SPLIT_TRAIN, deck->model.vocab,
                                 run->job->shape.sequence, &run->order.set);
  if (status)
    return status;
  status = token_set_verify(run->comm, run->order.set);
  if (status)
    return status;
  run->order.shape = run->job->shape;
  run->order.seed = (uint64_t)deck->run.seed;
  run->order.windows = token_set_windows(run->order.set, run->job->shape.sequence);
  run->order.vocab = deck->model.vocab;
  run->order.batch = deck->data.batch;
  run->order.rank = comm_rank(run->comm);
  run->order.first_step = run->step;
  run->order.first_sample = run->samples;
  status = comm_agree(run->comm, leads(run) ? recall(run) : STATUS_OK); /* rank 0 tells the others what it knows when plans start */
  if (!status)
    status = job_start(run->job, PLAN_TRAIN, data_load_train, &run->order);
  if (status || !deck->eval.every)
    return status;
  return evaluator_open(run->job, &run->evaluator);
}

/* The summary's percentiles are those of the last steps. */
static int64_t remembered_steps(const struct run *run)
{
  enum { MOST = 1 << 16 };
  const int64_t left = run->deck->run.steps - run->step;
  return left < MOST ? left : MOST;
}

/* One run at a time writes a folder. Where the file system knows no locks, none is taken. */
static enum status lock_folder(struct run *run)
{
  if (run->lock >= 0)
    return STATUS_OK;
  run->lock = open(run->deck->run.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (run->lock >= 0 && flock(run->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return status_set(STATUS_USAGE, "%s is being written by another run: wait for it, or choose another run.dir", run->deck->run.dir);
  return STATUS_OK;
}

static enum status open_run(struct run *run)
{
  enum status status = open_folder(run);
  if (!status)
    status = lock_folder(run);
  if (!status)
    status = keep_learned(run);
  return status ? status : open_results(run);
}

/* When this run has to be over, and who may tell it to stop: from the beginning, since a job may be told while it is still starting. */
static enum status prepare_stop(struct run *run)
{
  enum status status = stop_file_open(run->deck->run.dir, &run->stop_file);
  if (!status && leads(run))
    status = stop_find_end(getenv("SLURM_JOB_END_TIME"), run->deck->run.minutes, unix_now(), &run->end_s);
  return status ? status : signals_install();
}

static enum status prepare_state(struct run *run, const char *resume)
{
  enum status status = comm_agree(run->comm, run_paths(run));
  if (!status)
    status = comm_agree(run->comm, prepare_stop(run));
  if (!status && !*resume)
    status = status_set(STATUS_USAGE, "resume is empty: say none, auto, or a checkpoint's path");
  if (!status && !strcmp(resume, "none"))
    status = refuse_used_folder(run);
  if (!status)
    status = comm_agree(run->comm, leads(run) ? lock_folder(run) : STATUS_OK);
  if (!status)
    status = job_create(run->comm, run->deck, run->deck->eval.every ? JOB_TRAIN_AND_EVAL : JOB_TRAIN, &run->job);
  return status ? status : start_state(run, resume);
}

static enum status prepare_loop(struct run *run)
{
  enum status status = start_data(run);
  if (!status)
    status = comm_agree(run->comm, leads(run) ? open_run(run) : STATUS_OK);
  if (!status)
    status = comm_agree(run->comm, stats_create(remembered_steps(run), &run->stats));
  if (!status)
    status = saver_create(run->job, run->checkpoint_dir, &run->saver);
  return status;
}

static void release(struct run *run)
{
  saver_destroy(run->saver);
  if (run->job)
    job_destroy(run->job);
  evaluator_close(&run->evaluator);
  token_set_close(run->order.set);
  stats_destroy(&run->stats);
  stop_file_close(&run->stop_file);
  mem_free(run->checkpoint_dir);
  mem_free(run->results_path);
  mem_free(run->learned_path);
  if (run->lock >= 0)
    close(run->lock);
}

static enum status record_trace(struct run *run)
{
  struct trace_summary sum;
  enum status status = job_end_trace(run->job, &sum);
  if (status || !run->results || sum.steps == 0)
    return status;
  results_begin(run->results, "trace");
  results_int(run->results, "first", sum.first);
  results_int(run->results, "steps", sum.steps);
  results_real(run->results, "seconds", sum.seconds);
  results_real(run->results, "communication_seconds", sum.communication_s);
  results_real(run->results, "exposed_seconds", sum.exposed_s);
  results_real(run->results, "overlap", sum.overlap);
  results_real(run->results, "link_bytes_per_s", sum.link_bytes_s);
  results_real(run->results, "gather_bytes_per_s", sum.kind[OP_GATHER].wire_bytes / sum.kind[OP_GATHER].seconds);
  results_real(run->results, "reduce_bytes_per_s", sum.kind[OP_REDUCE].wire_bytes / sum.kind[OP_REDUCE].seconds);
  return results_end(run->results);
}

/* Of this rank since it began: a lane's instructions of one kind, or of all kinds together. */
static enum status record_sum(struct run *run, enum plan_lane lane, const char *op, const struct tally_sum *sum)
{
  const struct tally *tally = run->job->tally;
  results_begin(run->results, "counters");
  results_int(run->results, "step", run->step);
  results_int(run->results, "first_step", run->first);
  results_text(run->results, "lane", plan_lane_name(lane));
  results_text(run->results, "op", op);
  results_int(run->results, "count", sum->count);
  for (int e = 0; e < tally_events(tally); e++)
    results_int(run->results, tally_key(tally, e), sum->spent[e]);
  return results_end(run->results);
}

static enum status record_lane(struct run *run, enum plan_lane lane)
{
  const struct tally_sum *sums = exec_tallied(run->job->exec[PLAN_TRAIN], lane);
  struct tally_sum all = {0};
  enum status status = STATUS_OK;
  for (int op = 0; sums && op < OP_COUNT && !status; op++) {
    if (sums[op].count == 0)
      continue;
    all.count += sums[op].count;
    for (int e = 0; e < DECK_COUNTERS; e++)
      all.spent[e] += sums[op].spent[e];
    status = record_sum(run, lane, plan_op_name((enum op)op), &sums[op]);
  }
  return status || all.count == 0 ? status : record_sum(run, lane, "all", &all);
}

static enum status record_tally(struct run *run)
{
  enum status status = exec_drain(run->job->exec[PLAN_TRAIN]);
  for (int lane = 0; lane < LANE_COUNT && !status && run->results; lane++)
    status = record_lane(run, (enum plan_lane)lane);
  return status;
}

static enum status run_loop(struct run *run, enum train_end *end)
{
  struct leaving leaving = {.left_s = INFINITY};
  enum status status = prepare_loop(run);
  if (!status)
    status = loop(run, &leaving, end);
  if (!status && run->job->tally)
    status = comm_agree(run->comm, record_tally(run));
  if (!status && run->deck->train.trace.n > 0)
    status = comm_agree(run->comm, record_trace(run));
  const bool done = !status;
  if (done)
    status = record_run(run, *end == TRAIN_FINISHED ? "finished" : "unfinished", *end == TRAIN_FINISHED ? "last step" : leaving.why, leaving.left_s);
  const enum status closing = results_close(run->results);
  if (!status)
    status = closing;
  return done ? comm_agree(run->comm, status) : status;
}

enum status train_run(struct comm *comm, const struct deck *deck, const char *resume, enum train_end *end)
{
  struct run run = {.comm = comm, .deck = deck, .saved_step = -1, .lock = -1, .start_s = clock_s(), .end_s = INFINITY};
  *end = TRAIN_FINISHED;
  enum status status = prepare_state(&run, resume);
  if (!status && run.step >= deck->run.steps)
    log_info("nothing to do: step %lld of %lld is reached", (long long)run.step, (long long)deck->run.steps);
  else if (!status)
    status = run_loop(&run, end);
  release(&run);
  return status;
}
