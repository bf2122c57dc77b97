/* The records of a run: the lines of results.jsonl, and the line of progress. */
#include "train/private.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum status train_record_save(struct train_run *run, const struct checkpoint_writer_report *report)
{
  if (!run->results)
    return STATUS_OK;
  results_begin(run->results, "save");
  results_time(run->results);
  results_int(run->results, "step", report->step);
  results_real(run->results, "seconds", report->seconds);
  results_real(run->results, "blocked_seconds", report->held_s);
  results_int(run->results, "bytes", report->bytes);
  return results_end(run->results);
}

int64_t train_step_tokens(const struct train_run *run)
{
  return run->deck->data.batch * run->job->shape.sequence;
}

/* -1: not known. */
static void record_bytes(struct results *results, const char *key, int64_t bytes)
{
  results_real(results, key, bytes >= 0 ? (double)bytes : NAN);
}

static void record_memory(struct train_run *run)
{
  const struct train_memory *memory = train_look_at_memory(run);
  const bool apart = !run->job->device->model.host_memory;
  record_bytes(run->results, "host_bytes", memory->host);
  record_bytes(run->results, "host_peak_bytes", memory->host_peak);
  record_bytes(run->results, "device_bytes", apart ? memory->device : -1);
  record_bytes(run->results, "device_peak_bytes", apart ? memory->device_peak : -1);
}

static enum status record_step(struct train_run *run, const struct train_step *last)
{
  if (!run->results)
    return STATUS_OK;
  results_begin(run->results, "step");
  results_time(run->results);
  results_int(run->results, "step", run->step);
  results_real(run->results, "loss", last->result.loss);
  results_real(run->results, "train_loss", last->result.loss);
  results_real(run->results, "grad_norm", last->result.grad_norm);
  if (last->result.fp8) {
    results_real(run->results, "fp8_amax", train_fp8_amax(last));
    results_int(run->results, "fp8_saturated", (int64_t)last->result.tally.saturated);
  }
  results_real(run->results, "lr", last->lr);
  results_int(run->results, "samples", run->samples);
  results_int(run->results, "tokens", run->samples * run->job->shape.sequence);
  results_real(run->results, "seconds", last->seconds);
  results_real(run->results, "tokens_per_s", (double)train_step_tokens(run) / last->seconds);
  results_real(run->results, "mfu", train_mfu(run, last->seconds));
  record_memory(run);
  return results_end(run->results);
}

/* Over all ranks. */
static enum status merge_tally(struct comm *comm, struct fp8_tally *tally)
{
  int64_t largest = tally->largest, saturated = (int64_t)tally->saturated;
  enum status status = comm_max_i64(comm, &largest, 1);
  if (!status)
    status = comm_sum_i64(comm, &saturated, 1);
  if (!status)
    *tally = (struct fp8_tally){.saturated = (uint64_t)saturated, .largest = (uint32_t)largest};
  return status;
}

double train_fp8_amax(const struct train_step *step)
{
  return quant_float(step->result.tally.largest);
}

/* The counts of steps and samples are still those of the step before. */
enum status train_tell_step(struct train_run *run)
{
  if (!run->last.untold)
    return STATUS_OK;
  run->last.untold = false;
  enum status status =
      run->last.result.fp8 ? merge_tally(run->comm, &run->last.result.tally) : STATUS_OK;
  if (!status)
    status = record_step(run, &run->last);
  train_show_step(run, &run->last);
  if (!status)
    train_say_step(run, &run->last);
  return status;
}

enum status train_record_evaluation(struct train_run *run, const struct evaluation *e)
{
  train_show_evaluation(run, e);
  if (!run->results)
    return STATUS_OK;
  results_begin(run->results, "eval");
  results_time(run->results);
  results_int(run->results, "step", run->step);
  results_real(run->results, "loss", e->loss);
  results_real(run->results, "perplexity", e->perplexity);
  results_real(run->results, "val_loss", e->loss);
  results_real(run->results, "val_ppl", e->perplexity);
  results_real(run->results, "bits_per_byte", e->bits_per_byte);
  results_int(run->results, "tokens", e->tokens);
  results_real(run->results, "seconds", e->seconds);
  return results_end(run->results);
}

enum status train_record_lanes(struct train_run *run, const struct train_lanes *lanes)
{
  train_show_lanes(run, lanes);
  if (!run->results)
    return STATUS_OK;
  results_begin(run->results, "lanes");
  results_time(run->results);
  results_int(run->results, "step", run->step);
  results_int(run->results, "steps", lanes->steps);
  results_real(run->results, "seconds", lanes->seconds);
  results_begin_object(run->results, "busy");
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (lanes->busy[lane] > 0)
      results_real(run->results, plan_lane_name((enum plan_lane)lane), lanes->busy[lane]);
  results_end_object(run->results);
  results_int(run->results, "slowest_rank", lanes->slowest);
  results_real(run->results, "slowest_seconds", lanes->slowest_s);
  results_int(run->results, "fastest_rank", lanes->fastest);
  results_real(run->results, "fastest_seconds", lanes->fastest_s);
  return results_end(run->results);
}

enum status train_record_run(struct train_run *run, const char *end, const char *reason,
                             double left_s)
{
  char hash[17];
  int64_t device_bytes = 0, device_all = 0, varying = comm_sent_varying(run->comm);
  struct device *device = run->job->device;
  enum status status = comm_sum_i64(run->comm, &varying, 1);
  if (!status)
    status = comm_agree(run->comm, exec_drain(run->job->exec[PLAN_TRAIN]));
  if (!status)
    status = train_take_profile(run);
  if (status || !run->results)
    return status;
  status = device->ops->memory(device, &device_bytes, &device_all);
  if (status)
    return status;
  const int64_t resident = mem_resident_bytes();
  deck_hash(run->deck, hash);
  results_begin(run->results, "run");
  results_time(run->results);
  results_text(run->results, "end", end);
  results_text(run->results, "reason", reason);
  if (isfinite(left_s))
    results_real(run->results, "left_seconds", left_s);
  results_origin(run->results);
  results_text(run->results, "mpi", comm_description(run->comm));
  results_text(run->results, "deck", hash);
  results_int(run->results, "seed", run->deck->run.seed);
  results_int(run->results, "ranks", comm_ranks(run->comm));
  results_int(run->results, "threads", run->job->threads);
  results_text(run->results, "device", run->job->place.device);
  results_text(run->results, "compute", run->job->place.precision);
  results_text(run->results, "transport", run->job->place.transport);
  results_int(run->results, "device_bytes", device_bytes);
  results_int(run->results, "parameters", run->job->model->parameters);
  results_int(run->results, "first_step", run->first);
  results_int(run->results, "step", run->step);
  results_int(run->results, "skipped", run->skipped);
  results_real(run->results, "loss", run->last.result.loss);
  results_real(run->results, "seconds", clock_s() - run->start_s);
  results_real(run->results, "save_seconds", run->save_s);
  const bool timed = run->metrics.timed > 0;
  const double mean = timed ? stats_mean(&run->stats) : NAN;
  results_real(run->results, "step_mean", mean);
  results_real(run->results, "step_p50", timed ? stats_percentile(&run->stats, 50) : NAN);
  results_real(run->results, "step_p90", timed ? stats_percentile(&run->stats, 90) : NAN);
  results_real(run->results, "step_p95", timed ? stats_percentile(&run->stats, 95) : NAN);
  results_real(run->results, "tokens_per_s", (double)train_step_tokens(run) / mean);
  results_int(run->results, "planned_bytes", job_planned_bytes(run->job));
  results_int(run->results, "arena_bytes",
              mem_usage(MEM_ARENA_PERSISTENT).bytes + mem_usage(MEM_ARENA_TRANSIENT).bytes);
  results_int(run->results, "resident_start_bytes", run->job->resident_start);
  results_int(run->results, "resident_bytes", resident);
  results_int(run->results, "allocations", mem_calls());
  train_record_metrics(run, device->model.host_memory ? resident : device_bytes, varying);
  return results_end(run->results);
}

enum status train_record_trace(struct train_run *run)
{
  struct trace_summary sum;
  enum status status = job_end_trace(run->job, &sum);
  if (status || !run->results || sum.steps == 0)
    return status;
  return trace_record(run->results, &sum);
}

/* Sums of this rank since it began: a lane's instructions of one kind, or of all kinds together. */
static enum status record_sum(struct train_run *run, enum plan_lane lane, const char *op,
                              const struct op_counters_sum *sum)
{
  const struct op_counters *counters = run->job->counters;
  results_begin(run->results, "counters");
  results_time(run->results);
  results_int(run->results, "step", run->step);
  results_int(run->results, "first_step", run->first);
  results_text(run->results, "lane", plan_lane_name(lane));
  results_text(run->results, "op", op);
  results_int(run->results, "count", sum->count);
  for (int e = 0; e < op_counters_events(counters); e++)
    results_int(run->results, op_counters_key(counters, e), sum->spent[e]);
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
