/* The loss over validation data, the same on any number of ranks. */
#include "train/evaluate.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/preference.h"
#include "exec/watchdog.h"
#include "layout/mesh.h"

const char evaluator_cure[] = "; eval.every=0 trains without validation";

static struct evaluator begin(struct job *job)
{
  const struct plan *plan = job->plan[PLAN_EVAL];
  return (struct evaluator){.job = job,
                            .scan = {.apart = job_scores_rows(job->deck),
                                     .micro_batch = plan->input.shape.micro_batch,
                                     .sequence = plan->input.shape.sequence,
                                     .rank = mesh_index(&plan->mesh, MESH_BATCH, plan->input.rank),
                                     .ranks = mesh_ranks(&plan->mesh, MESH_BATCH)}};
}

enum status evaluator_open_choices(struct job *job, const struct choices *choices,
                                   struct evaluator *out)
{
  *out = begin(job);
  out->scan.choices = choices;
  return job_start(job, PLAN_EVAL, data_load_scan, &out->scan);
}

enum status evaluator_start(struct job *job, struct evaluator *out)
{
  *out = begin(job);
  return job_start(job, PLAN_EVAL, data_load_scan, &out->scan);
}

enum status evaluator_open(struct job *job, const struct data_maker *maker, struct evaluator *out)
{
  *out = begin(job);
  watchdog_start(job->start, "opening the validation data");
  enum status status =
      data_open(job->comm, job->deck, SPLIT_VAL, out->scan.sequence, maker, &out->scan.data);
  if (!status && out->scan.data.pairs)
    status = comm_agree(job->comm, mem_new(MEM_DATA, data_scan_rows(&out->scan), &out->score));
  status = status ?: job_start(job, PLAN_EVAL, data_load_scan, &out->scan);
  if (status)
    evaluator_close(out);
  return status;
}

void evaluator_close(struct evaluator *evaluator)
{
  data_close(&evaluator->scan.data);
  mem_free(evaluator->score);
  evaluator->score = NULL;
}

/* Of each source: its losses, and its targets. */
struct losses {
  struct exactsum loss[DECK_SOURCES];
  int64_t targets[DECK_SOURCES];
};

/* What becomes of the result of a step, whose first row is `row`. */
typedef void take_result(const struct data_scan *scan, int64_t row,
                         const struct exec_result *result, void *to);

static void add_result(const struct data_scan *scan, int64_t row, const struct exec_result *result,
                       void *to)
{
  struct losses *losses = to;
  (void)row;
  for (int s = 0; s < scan->data.n; s++) {
    exactsum_merge(&losses->loss[s], &result->loss_exact[s]);
    exactsum_normalize(&losses->loss[s]);
    losses->targets[s] += (int64_t)exactsum_value(&result->targets_exact[s]);
  }
}

static void conclude(const struct data_scan *scan, struct losses *losses, struct evaluation *out)
{
  struct exactsum *all = &losses->loss[0];
  double bytes = 0, tokens = 0, untrained = 0;
  *out = (struct evaluation){.sources = scan->data.n, .accuracy = NAN, .margin = NAN};
  for (int s = 0; s < scan->data.n; s++) {
    const struct data_source *source = &scan->data.of[s];
    out->of[s] = (struct source_loss){exactsum_value(&losses->loss[s]) / (double)losses->targets[s],
                                      losses->targets[s]};
    out->tokens += losses->targets[s];
    out->limited |= scan->most > 0 && scan->most < source->rows;
    bytes += (double)token_set_bytes(source->set);
    tokens += (double)token_set_stream(source->set).tokens;
    untrained += (double)token_set_untrained(source->set);
    out->all += token_set_stream(source->set).tokens - 1 - token_set_untrained(source->set);
    if (s > 0)
      exactsum_merge(all, &losses->loss[s]);
    exactsum_normalize(all);
  }
  out->loss = exactsum_value(all) / (double)out->tokens;
  out->perplexity = exp(out->loss);
  /* The text of the tokens that are scored is known if all are. */
  out->bits_per_byte = untrained > 0 ? NAN : out->loss / M_LN2 / (bytes / tokens);
}

/* Scores are one row after another, of all sources. */
static void conclude_pairs(const struct data_scan *scan, double beta, const double *score,
                           struct evaluation *out)
{
  double margins = 0, losses = 0;
  int64_t won = 0;
  *out = (struct evaluation){.perplexity = NAN, .bits_per_byte = NAN, .sources = scan->data.n};
  for (int s = 0; s < scan->data.n; s++) {
    const struct data_source *source = &scan->data.of[s];
    const int64_t rows = data_scan_rows_of(scan, s), pairs = rows / 2;
    double loss = 0;
    for (int64_t r = 0; r < rows; r += 2) {
      const double margin =
          preference_margin(beta, (double[]){-score[r], -score[r + 1]}, source->reference + r);
      loss += preference_loss(margin);
      margins += margin;
      won += margin > 0;
    }
    score += rows;
    losses += loss;
    out->of[s] = (struct source_loss){loss / (double)pairs, pairs};
    out->tokens += pairs;
    out->all += source->rows / 2;
    out->limited |= rows < source->rows;
  }
  out->loss = losses / (double)out->tokens;
  out->margin = margins / (double)out->tokens;
  out->accuracy = (double)won / (double)out->tokens;
}

/* The next step, if any of its tokens is scored. */
static void run_step(struct evaluator *evaluator, int64_t row, take_result *take, void *to)
{
  struct job *job = evaluator->job;
  struct exec *exec = job->exec[PLAN_EVAL];
  struct exec_result result;
  const int64_t step = evaluator->next_step++;
  comm_must(job->comm, job_await_read(job, PLAN_EVAL, step));
  int64_t targets = evaluator->scan.counts[step & 1].targets;
  comm_must(job->comm, comm_sum_i64(job->comm, &targets, 1));
  if (targets == 0) {
    job_skip_step(job, PLAN_EVAL, exec);
    return;
  }
  comm_must(job->comm, exec_set_targets(exec, targets));
  comm_must(job->comm, exec_step(exec, step, 0, 0.0, &result));
  take(&evaluator->scan, row, &result, to);
}

static bool run_steps(struct evaluator *evaluator, bool (*interrupts)(void *arg), void *arg,
                      take_result *take, void *to)
{
  const struct data_scan *scan = &evaluator->scan;
  const int64_t per_step = scan->micro_batch * scan->ranks, rows = data_scan_rows(scan);
  const int64_t steps = (rows + per_step - 1) / per_step;
  struct job *job = evaluator->job;
  struct exec *exec = job->exec[PLAN_EVAL];
  const double start = clock_s();
  bool whole = true;
  job_read_ahead(job, PLAN_EVAL, evaluator->next_step, steps);
  for (int64_t i = 0; i < steps && whole; i++) {
    run_step(evaluator, i * per_step, take, to);
    if (interrupts)
      whole = i + 1 == steps || !interrupts(arg);
    else
      log_progress(5, "evaluated %lld of %lld sequences, %.0f s left",
                   (long long)(i + 1 < steps ? (i + 1) * per_step : rows), (long long)rows,
                   (clock_s() - start) / (double)(i + 1) * (double)(steps - i - 1));
  }
  if (!interrupts)
    log_progress_end();
  comm_must(job->comm, exec_drain(exec));
  return whole;
}

static void take_scores(const struct data_scan *scan, int64_t row, const struct exec_result *result,
                        void *to)
{
  const int64_t rows = data_scan_rows(scan), end = row + scan->micro_batch * scan->ranks;
  double *score = to;
  for (int64_t r = row; r < rows && r < end; r++)
    score[r] = -exactsum_value(&result->loss_exact[r - row]);
}

bool evaluator_run(struct evaluator *evaluator, int64_t batches, bool (*interrupts)(void *arg),
                   void *arg, struct evaluation *out)
{
  double *const score = evaluator->score;
  struct data_scan *scan = &evaluator->scan;
  const int64_t batch = evaluator->job->deck->data.batch;
  const double start = clock_s();
  struct losses losses;
  for (int s = 0; s < scan->data.n; s++) {
    exactsum_zero(&losses.loss[s]);
    losses.targets[s] = 0;
  }
  scan->most = batches > INT64_MAX / batch ? 0 : batches * batch;
  if (score)
    scan->most += scan->most % 2;
  scan->first_step = evaluator->next_step;
  if (!run_steps(evaluator, interrupts, arg, score ? take_scores : add_result,
                 score ? (void *)score : &losses))
    return false;
  if (score)
    conclude_pairs(scan, evaluator->job->deck->train.beta, score, out);
  else
    conclude(scan, &losses, out);
  out->seconds = clock_s() - start;
  return true;
}

void evaluator_score(struct evaluator *evaluator, double *score)
{
  evaluator->scan.first_step = evaluator->next_step;
  (void)run_steps(evaluator, NULL, NULL, take_scores, score);
}
