/* Numbers of a run for TensorBoard, and the numbers that they share with results.jsonl. */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "train/private.h"

static const double per_gb = 1e-9;

const struct train_memory *train_look_at_memory(struct train_run *run)
{
  static const double every_s = 5;
  const double now = clock_s();
  struct train_memory *memory = &run->memory;
  struct device *device = run->job->device;
  int64_t used = 0, all = 0;
  if (memory->looked_s > 0 && now < memory->looked_s + every_s)
    return memory;
  memory->looked_s = now;
  memory->host = mem_resident_bytes();
  if (!device->ops->memory(device, &used, &all))
    memory->device = used;
  if (memory->host > memory->host_peak)
    memory->host_peak = memory->host;
  if (memory->device > memory->device_peak)
    memory->device_peak = memory->device;
  return memory;
}

double train_mfu(const struct train_run *run, double seconds)
{
  const double peak = 1e12 * run->deck->run.peak * comm_ranks(run->comm);
  return peak > 0 ? job_step_flops(run->job) / seconds / peak : NAN;
}

static void add_known(struct events *events, const char *name, double value)
{
  if (!isnan(value))
    events_add(events, name, value);
}

void train_show_step(struct train_run *run, const struct train_step *step)
{
  const double tokens = (double)train_step_tokens(run);
  struct events *events = run->events;
  if (!events)
    return;
  const struct train_memory *memory = train_look_at_memory(run);
  events_begin(events, run->step);
  events_add(events, "loss/train", step->result.loss);
  events_add(events, "optimizer/learning_rate", step->lr);
  events_add(events, "optimizer/gradient_norm", step->result.grad_norm);
  if (step->result.fp8) {
    events_add(events, "fp8/amax", train_fp8_amax(step));
    events_add(events, "fp8/saturated", (double)step->result.tally.saturated);
  }
  events_add(events, "speed/tokens_per_s", tokens / step->seconds);
  events_add(events, "speed/step_s", step->seconds);
  add_known(events, "speed/mfu", train_mfu(run, step->seconds));
  if (memory->host >= 0)
    events_add(events, "memory/host_gb", per_gb * (double)memory->host);
  if (!run->job->device->model.host_memory)
    events_add(events, "memory/device_gb", per_gb * (double)memory->device);
  events_end(events);
}

void train_show_evaluation(struct train_run *run, const struct evaluation *e)
{
  events_begin(run->events, run->step);
  events_add(run->events, "loss/validation", e->loss);
  events_add(run->events, "validation/perplexity", e->perplexity);
  events_add(run->events, "validation/bits_per_byte", e->bits_per_byte);
  events_end(run->events);
}

void train_show_messages(struct train_run *run, double error, double cosine, double residual)
{
  events_begin(run->events, run->step);
  add_known(run->events, "compression/grad_rel_error", error);
  add_known(run->events, "compression/grad_cos_sim", cosine);
  add_known(run->events, "compression/residual_norm", residual);
  events_end(run->events);
}

void train_show_lanes(struct train_run *run, const struct train_lanes *lanes)
{
  events_begin(run->events, run->step);
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    char name[64];
    snprintf(name, sizeof name, "lanes_busy/%s", plan_lane_name((enum plan_lane)lane));
    if (lanes->busy[lane] > 0)
      events_add(run->events, name, lanes->busy[lane]);
  }
  events_end(run->events);
}
