/* The records of a run: the lines of results.jsonl, and the numbers that TensorBoard shows of them.
 * Each number stands here once, with its key and its name in TensorBoard. */
#include "train/private.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

static const double per_gb = 1e-9;

void train_begin(struct train_run *run, const char *kind, bool shown)
{
  if (shown)
    events_begin(run->events, run->step);
  if (!run->results || !kind)
    return;
  run->line = results_begin(run->results, kind);
  results_time(run->line);
  json_write_int(run->line, "step", run->step);
}

void train_put(struct train_run *run, const char *key, const char *scalar, double value)
{
  if (key && run->results)
    json_write_real(run->line, key, value);
  if (scalar && run->events)
    events_add(run->events, scalar, value);
}

void train_put_known(struct train_run *run, const char *key, const char *scalar, double value)
{
  train_put(run, key, isnan(value) ? NULL : scalar, value);
}

static void put_list(struct train_run *run, const char *key, int n,
                     const struct source_loss *source, bool tokens)
{
  json_write_open(run->line, key, '[');
  for (int s = 0; s < n; s++)
    json_write_real(run->line, NULL, tokens ? (double)source[s].tokens : source[s].loss);
  json_write_close(run->line, ']');
}

void train_put_sources(struct train_run *run, int n, const struct source_loss *source)
{
  if (n < 2 || !run->results)
    return;
  put_list(run, "source_loss", n, source, false);
  put_list(run, "source_tokens", n, source, true);
}

enum status train_end(struct train_run *run, const char *kind, bool shown)
{
  if (shown)
    events_end(run->events);
  return kind && run->results ? results_end(run->results) : STATUS_OK;
}

enum status train_record_save(struct train_run *run, const struct checkpoint_writer_report *report)
{
  if (!run->results)
    return STATUS_OK;
  run->line = results_begin(run->results, "save");
  results_time(run->line);
  json_write_int(run->line, "step", report->step);
  json_write_real(run->line, "seconds", report->seconds);
  json_write_real(run->line, "blocked_seconds", report->held_s);
  json_write_int(run->line, "bytes", report->bytes);
  return results_end(run->results);
}

int64_t train_step_tokens(const struct train_run *run)
{
  return run->deck->data.batch * run->job->shape.sequence;
}

double train_mean_tokens(const struct train_run *run)
{
  const int64_t steps = run->step - run->first;
  return steps > 0 ? (double)run->filled / (double)steps : (double)train_step_tokens(run);
}

/* Looks memory up every few seconds at most. */
static void look_at_memory(struct train_run *run)
{
  static const double every_s = 5;
  const double now = clock_s();
  struct train_memory *memory = &run->memory;
  struct device *device = run->job->device;
  int64_t used = 0, all = 0;
  if (memory->looked_s > 0 && now < memory->looked_s + every_s)
    return;
  memory->looked_s = now;
  memory->host = mem_resident_bytes();
  if (!device->ops->memory(device, &used, &all))
    memory->device = used;
  if (memory->host > memory->host_peak)
    memory->host_peak = memory->host;
  if (memory->device > memory->device_peak)
    memory->device_peak = memory->device;
}

/* bytes -1: not known. `scalar`, in GB, may be NULL. */
static void put_bytes(struct train_run *run, const char *key, const char *scalar, int64_t bytes)
{
  train_put(run, key, NULL, bytes >= 0 ? (double)bytes : NAN);
  if (bytes >= 0)
    train_put(run, NULL, scalar, per_gb * (double)bytes);
}

static void put_memory(struct train_run *run)
{
  const struct train_memory *memory = &run->memory;
  const bool apart = !run->job->device->model.host_memory;
  look_at_memory(run);
  put_bytes(run, "host_bytes", "memory/host_gb", memory->host);
  put_bytes(run, "host_peak_bytes", NULL, memory->host_peak);
  put_bytes(run, "device_bytes", "memory/device_gb", apart ? memory->device : -1);
  put_bytes(run, "device_peak_bytes", NULL, apart ? memory->device_peak : -1);
}

static enum status record_step(struct train_run *run, const struct train_step *last)
{
  const struct data_counts *counts = &last->counts;
  const bool whole = data_is_whole(&run->data);
  const double samples = (double)run->samples, tokens = (double)counts->filled,
               flops =
                   job_step_flops(run->job, counts->filled, whole ? 0 : (double)counts->squares),
               peak = 1e12 * run->deck->run.peak * comm_ranks(run->comm);
  if (!run->results && !run->events)
    return STATUS_OK;
  train_begin(run, "step", true);
  train_put(run, "loss", "loss/train", last->result.loss);
  train_put(run, "train_loss", NULL, last->result.loss);
  if (run->data.pairs) {
    train_put(run, "accuracy", "preferences/accuracy", last->result.accuracy);
    train_put(run, "margin", "preferences/margin", last->result.margin);
  }
  train_put(run, "grad_norm", "optimizer/gradient_norm", last->result.grad_norm);
  if (last->result.fp8) {
    train_put(run, "fp8_amax", "fp8/amax", f32_from_bits(last->result.tally.largest));
    train_put(run, "fp8_saturated", "fp8/saturated", (double)last->result.tally.saturated);
  }
  train_put(run, "lr", "optimizer/learning_rate", last->lr);
  train_put(run, "samples", NULL, samples);
  train_put(run, "tokens", NULL, samples * (double)run->job->shape.sequence);
  train_put(run, "seconds", "speed/step_s", last->seconds);
  train_put(run, "tokens_per_s", "speed/tokens_per_s", tokens / last->seconds);
  train_put_known(run, "mfu", "speed/mfu", peak > 0 ? flops / last->seconds / peak : NAN);
  put_memory(run);
  if (!whole) {
    train_put(run, run->data.pairs ? "pairs" : "trained", NULL, (double)counts->targets);
    train_put(run, "filled", "data/filled", tokens / (double)train_step_tokens(run));
  }
  train_put_sources(run, run->data.n, last->source);
  return train_end(run, "step", true);
}

/* The counts of steps and samples are still those of the step before. */
enum status train_tell_step(struct train_run *run)
{
  if (!run->last.untold)
    return STATUS_OK;
  run->last.untold = false;
  struct fp8_tally *tally = &run->last.result.tally; /* over all ranks from here on */
  int64_t largest = tally->largest, saturated = (int64_t)tally->saturated;
  enum status status = STATUS_OK;
  if (run->last.result.fp8)
    status = comm_max_i64(run->comm, &largest, 1) ?: comm_sum_i64(run->comm, &saturated, 1);
  *tally = (struct fp8_tally){.saturated = (uint64_t)saturated, .largest = (uint32_t)largest};
  status = status ?: record_step(run, &run->last);
  if (!status)
    train_say_step(run, &run->last);
  return status;
}

enum status train_record_evaluation(struct train_run *run, const struct evaluation *e)
{
  train_begin(run, "eval", true);
  train_put(run, "loss", "loss/validation", e->loss);
  train_put_known(run, "perplexity", "validation/perplexity", e->perplexity);
  train_put(run, "val_loss", NULL, e->loss);
  train_put(run, "val_ppl", NULL, e->perplexity);
  if (run->data.pairs) {
    train_put(run, "accuracy", "validation/accuracy", e->accuracy);
    train_put(run, "margin", "validation/margin", e->margin);
  }
  train_put_known(run, "bits_per_byte", "validation/bits_per_byte", e->bits_per_byte);
  train_put(run, run->data.pairs ? "pairs" : "tokens", NULL, (double)e->tokens);
  train_put(run, "seconds", NULL, e->seconds);
  train_put_sources(run, e->sources, e->of);
  return train_end(run, "eval", true);
}

enum status train_record_run(struct train_run *run, const char *end, const char *reason,
                             double left_s)
{
  char hash[17];
  int64_t device_bytes = 0, device_all = 0, varying = comm_sent_varying(run->comm).exchanged;
  struct device *device = run->job->device;
  enum status status = comm_sum_i64(run->comm, &varying, 1)
      ?: comm_agree(run->comm, exec_drain(run->job->exec[PLAN_TRAIN]))
      ?: train_take_profile(run);
  if (status || !run->results)
    return status;
  status = device->ops->memory(device, &device_bytes, &device_all);
  if (status)
    return status;
  const int64_t resident = mem_resident_bytes();
  deck_hash(run->deck, hash);
  run->line = results_begin(run->results, "run");
  results_time(run->line);
  json_write_text(run->line, "end", end);
  json_write_text(run->line, "reason", reason);
  if (isfinite(left_s))
    json_write_real(run->line, "left_seconds", left_s);
  results_origin(run->line);
  train_record_job(run->line, run->job);
  json_write_text(run->line, "deck", hash);
  json_write_int(run->line, "seed", run->deck->run.seed);
  json_write_int(run->line, "device_bytes", device_bytes);
  json_write_int(run->line, "first_step", run->first);
  json_write_int(run->line, "step", run->step);
  json_write_int(run->line, "skipped", run->skipped);
  json_write_real(run->line, "loss", run->last.result.loss);
  json_write_real(run->line, "seconds", clock_s() - run->start_s);
  json_write_real(run->line, "save_seconds", run->save_s);
  const double mean = run->metrics.timed > 0 ? stats_mean(&run->stats) : NAN;
  train_record_times(run, "step_", 1);
  json_write_real(run->line, "tokens_per_s", train_mean_tokens(run) / mean);
  json_write_int(run->line, "planned_bytes", job_planned_bytes(run->job));
  json_write_int(run->line, "arena_bytes",
                 mem_usage(MEM_ARENA_PERSISTENT).bytes + mem_usage(MEM_ARENA_TRANSIENT).bytes);
  json_write_int(run->line, "resident_start_bytes", run->job->resident_start);
  json_write_int(run->line, "resident_bytes", resident);
  json_write_int(run->line, "allocations", mem_calls());
  train_record_metrics(run, device->model.host_memory ? resident : device_bytes, varying);
  return results_end(run->results);
}

enum status train_record_trace(struct train_run *run)
{
  struct trace_summary sum;
  enum status status = job_end_trace(run->job, &sum);
  if (status || !run->results || sum.steps == 0)
    return status;
  trace_record(results_begin(run->results, "trace"), &sum);
  return results_end(run->results);
}

/* Sums of this rank since it began: a lane's instructions of one kind, or of all kinds together. */
static enum status record_sum(struct train_run *run, enum plan_lane lane, const char *op,
                              const struct op_counters_sum *sum)
{
  const struct op_counters *counters = run->job->counters;
  train_begin(run, "counters", false);
  json_write_int(run->line, "first_step", run->first);
  json_write_text(run->line, "lane", plan_lane_name(lane));
  json_write_text(run->line, "op", op);
  json_write_int(run->line, "count", sum->count);
  for (int e = 0; e < op_counters_events(counters); e++)
    json_write_int(run->line, op_counters_key(counters, e), sum->spent[e]);
  return results_end(run->results);
}

static enum status record_lane(struct train_run *run, enum plan_lane lane)
{
  const struct op_counters_sum *sums = exec_counted(run->job->exec[PLAN_TRAIN], lane);
  struct op_counters_sum all = {0};
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

enum status train_record_counters(struct train_run *run)
{
  enum status status = exec_drain(run->job->exec[PLAN_TRAIN]);
  for (int lane = 0; lane < LANE_COUNT && !status && run->results; lane++)
    status = record_lane(run, (enum plan_lane)lane);
  return status;
}
