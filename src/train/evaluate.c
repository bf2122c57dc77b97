/* The loss over validation data, the same on any number of ranks. */
#include "train/evaluate.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "exec/watchdog.h"

const char evaluator_cure[] = "; eval.every=0 trains without validation";

enum status evaluator_open_data(struct comm *comm, const struct deck *deck,
                                const struct data_maker *maker, struct token_set **out)
{
  const bool own = *deck->data.val || !*deck->data.train;
  const struct data_source from = {own ? "data.val" : "data.train",
                                   own ? deck->data.val : deck->data.train, SPLIT_VAL, 1, maker};
  return data_open(comm, deck, &from, out);
}

enum status evaluator_open(struct job *job, const struct data_maker *maker, struct evaluator *out)
{
  const struct plan *plan = job->plan[PLAN_EVAL];
  *out = (struct evaluator){.job = job,
                            .scan = {.micro_batch = plan->input.shape.micro_batch,
                                     .sequence = plan->input.shape.sequence,
                                     .rank = comm_rank(job->comm),
                                     .ranks = comm_ranks(job->comm)}};
  watchdog_start(job->start, "opening %s",
                 *job->deck->data.val ? job->deck->data.val : job->deck->data.train);
  enum status status = evaluator_open_data(job->comm, job->deck, maker, &out->scan.set)
                           ?: job_start(job, PLAN_EVAL, data_load_scan, &out->scan);
  if (status)
    evaluator_close(out);
  return status;
}

void evaluator_close(struct evaluator *evaluator)
{
  token_set_close(evaluator->scan.set);
  evaluator->scan.set = NULL;
}

static bool run_steps(struct evaluator *evaluator, bool (*interrupts)(void *arg), void *arg,
                      struct exactsum *sum)
{
  const struct data_scan *scan = &evaluator->scan;
  const int64_t windows = (scan->scored + scan->sequence - 1) / scan->sequence;
  const int64_t per_step = scan->micro_batch * scan->ranks;
  const int64_t steps = (windows + per_step - 1) / per_step;
  struct job *job = evaluator->job;
  struct exec *exec = job->exec[PLAN_EVAL];
  const double start = clock_s();
  bool whole = true;
  job_read_ahead(job, PLAN_EVAL, evaluator->next_step, steps);
  for (int64_t i = 0; i < steps && whole; i++) {
    struct exec_result result;
    comm_must(job->comm, exec_set_targets(exec, data_scan_targets(scan, evaluator->next_step)));
    comm_must(job->comm, exec_step(exec, evaluator->next_step++, 0, 0.0, &result));
    exactsum_merge(sum, result.loss_exact);
    exactsum_normalize(sum);
    if (interrupts)
      whole = i + 1 == steps || !interrupts(arg);
    else
      log_progress(5, "evaluated %lld of %lld sequences, %.0f s left",
                   (long long)(i + 1 < steps ? (i + 1) * per_step : windows), (long long)windows,
                   (clock_s() - start) / (double)(i + 1) * (double)(steps - i - 1));
  }
  if (!interrupts)
    log_progress_end();
  comm_must(job->comm, exec_drain(exec));
  return whole;
}

bool evaluator_run(struct evaluator *evaluator, int64_t batches, bool (*interrupts)(void *arg),
                   void *arg, struct evaluation *out)
{
  struct data_scan *scan = &evaluator->scan;
  const int64_t T = scan->sequence, batch = evaluator->job->deck->data.batch;
  const int64_t all = token_set_stream(scan->set).tokens - 1;
  scan->scored = batches > 0 && batches <= all / T / batch ? batches * batch * T : all;
  scan->first_step = evaluator->next_step;

  const double start = clock_s();
  struct exactsum sum;
  exactsum_zero(&sum);
  if (!run_steps(evaluator, interrupts, arg, &sum))
    return false;
  const double loss = exactsum_value(&sum) / (double)scan->scored;
  const double bytes_per_token =
      (double)token_set_bytes(scan->set) / (double)token_set_stream(scan->set).tokens;
  *out = (struct evaluation){.loss = loss,
                             .perplexity = exp(loss),
                             .bits_per_byte = loss / M_LN2 / bytes_per_token,
                             .tokens = scan->scored,
                             .all = all,
                             .seconds = clock_s() - start};
  return true;
}
