/* Whether a run must leave before its last step: the cost of staying, and the common decision of
 * all ranks at the end of a step. */
#include "train/private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/log.h"
#include "exec/watchdog.h"
#include "io/checkpoint/checkpoint.h"
#include "io/text/file.h"
#include "job/state.h"
#include "train/signals.h"

double train_seconds_left(const struct train_run *run, const char **limit)
{
  const double own = run->end_s - clock_s(), job = run->job_end_s - 1e-9 * (double)clock_wall_ns();
  *limit = job < own ? "the end of the job" : "run.minutes";
  return fmin(own, job);
}

enum status train_prepare_stop(struct train_run *run)
{
  enum status status = STATUS_OK;
  run->stop_file.path = file_path(run->deck->run.dir, "STOP");
  if (run->deck->run.minutes > 0)
    run->end_s = run->start_s + 60 * run->deck->run.minutes;
  if (train_leads(run))
    status = stop_find_end(getenv("SLURM_JOB_END_TIME"), 1e-9 * (double)clock_wall_ns(),
                           &run->job_end_s);
  return status ? status : signals_install(train_leads(run));
}

/* The estimate before the first evaluation: a sequence takes at most as long as in a training
 * step. */
static double evaluation_cost(const struct train_run *run)
{
  const struct deck *deck = run->deck;
  if (run->eval_step > 0)
    return run->eval.seconds;
  const int64_t all =
      data_stream(&run->evaluator.scan.data).tokens / run->job->shape.sequence / deck->data.batch +
      1;
  const int64_t batches =
      deck->eval.batches > 0 && deck->eval.batches < all ? deck->eval.batches : all;
  return (double)batches * stats_high(&run->stats);
}

static double save_cost(const struct train_run *run)
{
  if (run->save_s > 0)
    return run->save_s;
  const int ranks = comm_ranks(run->comm),
            nodes = (ranks + comm_local_ranks(run->comm) - 1) / comm_local_ranks(run->comm);
  return stop_guess_save(job_state_snapshot_bytes(run->job) * ranks, nodes);
}

/* A checkpoint that is written during the steps must be complete before the last one begins. While
 * a step runs, its whole cost may still be ahead. A validation can be left at any time. */
static struct stop_costs costs_of_staying(struct train_run *run, enum train_moment moment)
{
  const double save_s = save_cost(run);
  const bool under_way = moment == DURING_STEP, validating = moment == DURING_VALIDATION;
  const int64_t after = run->step + under_way;
  const int saves = checkpoint_writer_is_writing(run->writer) +
                    (!validating && train_is_due(after, run->deck->checkpoint.every));
  return (struct stop_costs){
      .due_s =
          (!validating && train_validates(run, after) ? evaluation_cost(run) : 0) + saves * save_s,
      .step_s = (1 + under_way) * stats_high(&run->stats),
      .save_s = save_s};
}

static void explain(const struct train_run *run, struct train_leaving *leaving)
{
  const bool file = leaving->cause == STOP_FILE;
  const char *reason = file ? run->stop_file.reason : "";
  snprintf(leaving->why, sizeof leaving->why, "%s%s%s",
           leaving->cause == STOP_SIGNAL ? signals_name(leaving->signal)
           : file                        ? "file STOP"
                                         : "time limit",
           *reason ? ": " : "", reason);
}

enum status train_look_around(struct train_run *run, enum train_moment moment)
{
  static const char *const when[] = {
      [AFTER_STEP] = "after", [DURING_STEP] = "during", [DURING_VALIDATION] = "validating"};
  enum { SIGNAL, WRITING, CAUSE, LEFT_MS, N };
  const char *limit;
  const double left_s = fmax(train_seconds_left(run, &limit), 0); /* rank 0's counts */
  int64_t of_any[N] = {
      [SIGNAL] = signals_pending(), [WRITING] = checkpoint_writer_is_writing(run->writer)};
  struct train_leaving *leaving = &run->leaving;
  if (train_leads(run)) {
    leaving->costs = costs_of_staying(run, moment);
    leaving->guessed = run->save_s == 0;
    of_any[CAUSE] = stop_file_take(&run->stop_file, clock_s()) ? STOP_FILE
                    : left_s < stop_lead(&leaving->costs)      ? STOP_END
                                                               : STOP_NOT;
    of_any[LEFT_MS] = isfinite(left_s) ? (int64_t)(1e3 * left_s) : INT64_MAX;
  }
  watchdog_enter(watchdog_of(job_trainer(run->job)), TASK_MEET, NULL,
                 "the meeting of all ranks %s step %lld", when[moment],
                 (long long)(run->step + (moment == DURING_STEP)));
  comm_must(run->comm, comm_max_i64(run->comm, of_any, N));
  watchdog_leave(watchdog_of(job_trainer(run->job)), TASK_MEET);
  leaving->signal = (int)of_any[SIGNAL];
  const bool by_file =
      of_any[CAUSE] == STOP_FILE; /* which removes it, so no rank will see it again */
  leaving->cause = leaving->signal && !by_file ? STOP_SIGNAL : (enum stop_cause)of_any[CAUSE];
  leaving->left_s = of_any[LEFT_MS] < INT64_MAX ? 1e-3 * (double)of_any[LEFT_MS] : INFINITY;
  explain(run, leaving);
  leaving->status = of_any[WRITING] ? STATUS_OK : train_finish_save(run);
  return leaving->status;
}

static void say_steps(const struct train_run *run, enum train_end end)
{
  const double seconds = clock_s() - run->start_s, step_s = stats_mean(&run->stats);
  const int64_t s = (int64_t)(seconds + 0.5);
  char of[64] = "", losses[128] = "", since[48] = "";
  if (end == TRAIN_UNFINISHED)
    snprintf(of, sizeof of, " to step %lld of %lld", (long long)run->step,
             (long long)run->deck->run.steps);
  if (run->first > 0)
    snprintf(since, sizeof since, " since step %lld", (long long)run->first);
  if (run->eval_step > 0)
    snprintf(losses, sizeof losses, "; validation loss %.4f at step %lld, best%s %.4f at step %lld",
             run->eval.loss, (long long)run->eval_step, since, run->best_loss,
             (long long)run->best_step);
  log_info("%s: %lld step%s%s in %lld:%02lld:%02lld, %.0f tokens/s%s",
           end == TRAIN_FINISHED ? "finished" : "unfinished", (long long)(run->step - run->first),
           plural(run->step - run->first), of, (long long)(s / 3600), (long long)(s / 60 % 60),
           (long long)(s % 60), step_s > 0 ? train_mean_tokens(run) / step_s : 0, losses);
}

static void say_tokens(const struct train_run *run)
{
  const int64_t tokens = run->filled;
  char all[64] = "";
  if (run->first > 0)
    snprintf(all, sizeof all, " since the start, %lld in all",
             (long long)(run->samples * run->job->shape.sequence));
  log_info("tokens: %lld%s; training loss %.4f at step %lld, %.4f at step %lld", (long long)tokens,
           all, run->first_loss, (long long)run->first + 1, run->last.result.loss,
           (long long)run->step);
}

void train_say_end(const struct train_run *run, enum train_end end)
{
  char next[512] = "sluice report";
  if (!train_leads(run))
    return;
  const struct file_path path = checkpoint_folder_path(run->checkpoint_dir.text, run->saved_step);
  const bool saved = run->saved_step >= 0 && file_exists(path.text);
  say_steps(run, end);
  say_tokens(run);
  log_info("newest checkpoint: %s", saved ? path.text : "none");
  append_word(next, sizeof next, run->deck->run.dir);
  if (saved) {
    append_text(next, sizeof next, "; sluice generate");
    append_word(next, sizeof next, run->deck->run.dir);
  }
  if (end == TRAIN_FINISHED)
    log_info("next: %s", next);
}

void train_say_why(const struct train_run *run)
{
  const struct train_leaving *leaving = &run->leaving;
  const struct stop_costs *costs = &leaving->costs;
  char left[48] = "", due[64] = "", kept[224] = "";
  if (isfinite(leaving->left_s))
    snprintf(left, sizeof left, ": %.1f s were left", leaving->left_s);
  if (costs->due_s > 0)
    snprintf(due, sizeof due, "due validations and checkpoints (%.2f s), ", costs->due_s);
  if (leaving->cause == STOP_END)
    snprintf(kept, sizeof kept,
             ", %.1f s are reserved: %ssteps (%.2f s), a checkpoint (%.2f s%s), 25 %% more, and %g "
             "s to end",
             stop_lead(costs), due, costs->step_s, costs->save_s,
             leaving->guessed ? ", not measured yet" : "", STOP_MARGIN_S);
  log_progress_end();
  if (train_leads(run))
    log_warn("%s: stopping after step %lld%s%s", leaving->why, (long long)run->step, left, kept);
}
