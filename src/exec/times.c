/* Begin and end of instructions, from the marks that their lanes set. For the profile and for
 * traces. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "exec/engine.h"
#include "plan/ops.h"

static enum status create_marks(struct device *device, int n, struct mark *marks[])
{
  enum status status = STATUS_OK;
  for (int i = 0; !status && i < n; i++)
    status = device->ops->mark_create(device, &marks[i]);
  return status;
}

static void destroy_marks(struct device *device, int n, struct mark *const marks[])
{
  for (int i = 0; i < n; i++)
    device->ops->mark_destroy(marks[i]);
}

static struct device *base_device(const struct exec *exec, bool beside)
{
  return beside && exec->config.host ? exec->config.host : exec->config.device;
}

static bool is_comm(const struct plan *plan, const struct instr *instr)
{
  return op_rows[instr->op].part == PART_COMM && plan_instr_ranks(plan, instr) > 1;
}

enum status exec_marks_create(struct exec *exec)
{
  enum status status = mem_new(MEM_META, exec->plan->n, &exec->span);
  for (int i = 0; !status && i < exec->plan->n; i++) {
    struct device *device = exec_device_of(exec, exec->plan->instr[i].lane);
    plan_instr_name(exec->plan, i, exec->span[i].name, sizeof exec->span[i].name);
    exec->span[i].comm = is_comm(exec->plan, &exec->plan->instr[i]);
    exec->span[i].turn = -1;
    status = create_marks(device, 2, exec->span[i].begin);
    status = status ?: create_marks(device, 2, exec->span[i].end);
  }
  for (int beside = 0; !status && beside < 2; beside++)
    status = create_marks(base_device(exec, beside), BASES, exec->base[beside]);
  return status;
}

void exec_marks_destroy(struct exec *exec)
{
  for (int i = 0; exec->span && i < exec->plan->n; i++) {
    struct device *device = exec_device_of(exec, exec->plan->instr[i].lane);
    destroy_marks(device, 2, exec->span[i].begin);
    destroy_marks(device, 2, exec->span[i].end);
  }
  for (int beside = 0; beside < 2; beside++)
    destroy_marks(base_device(exec, beside), BASES, exec->base[beside]);
  mem_free(exec->span);
}

enum status exec_mark_release(struct exec *exec, int64_t n)
{
  enum status status =
      exec->config.device->ops->mark_set(exec->driver[LANE_IO].lane, exec->base[0][n % BASES]);
  for (int lane = 0; !status && lane < LANE_COUNT; lane++) {
    struct lane *host = exec->driver[lane].lane;
    if (host && exec_is_beside(exec, lane)) /* either device works: a host mark is only a time */
      return host->device->ops->mark_set(host, exec->base[1][n % BASES]);
  }
  return status;
}

bool exec_is_traced(const struct exec *exec, int64_t step)
{
  return exec->config.trace && step >= exec->config.trace_from && step < exec->config.trace_to;
}

int64_t *exec_spent(const struct exec *exec, int index, int64_t n)
{
  return exec->spent ? exec->spent[(n & 1) * exec->plan->n + index] : NULL;
}

static void trace_one(struct exec *exec, int index, int64_t n, struct stretch ran)
{
  const double since_s = exec->trace_s - exec->release_s;
  const struct exec_event event = {.step = exec->args[n % KEPT].step,
                                   .instr = index,
                                   .rested = n == exec->drained + 1,
                                   .begin_s = since_s + ran.begin_s,
                                   .end_s = since_s + ran.end_s,
                                   .spent = exec_spent(exec, index, n)};
  exec->config.trace(exec->config.trace_arg, &event);
}

static enum status time_instr(const struct exec *exec, int index, int64_t n, struct stretch *out)
{
  const enum plan_lane lane = exec->plan->instr[index].lane;
  const struct device_ops *ops = exec_device_of(exec, lane)->ops;
  const struct span *span = &exec->span[index];
  double begin, busy;
  enum status status = ops->mark_seconds(exec->base[exec_is_beside(exec, lane)][n % BASES],
                                         span->begin[n & 1], &begin);
  status = status ?: ops->mark_seconds(span->begin[n & 1], span->end[n & 1], &busy);
  if (!status)
    *out = (struct stretch){exec->release_s + begin, exec->release_s + begin + busy};
  return status;
}

static bool is_profiled(const struct exec *exec, int64_t step)
{
  return step >= exec->profile_from;
}

static void count_instr(struct exec *exec, enum plan_lane lane, int i, const struct stretch *ran)
{
  const int index = exec->driver[lane].instr[i];
  const enum op op = exec->plan->instr[index].op;
  const double busy = ran[i].end_s - ran[i].begin_s;
  struct exec_profile *profile = &exec->profile;
  profile->wait_s[lane] += i > 0 ? fmax(0, ran[i].begin_s - ran[i - 1].end_s) : 0;
  profile->busy_s[lane] += busy;
  profile->op_s[op] += busy;
  profile->comm_s[op] += exec->span[index].comm ? busy : 0;
}

static void count_spent(struct driver *driver, int index, int64_t n)
{
  const int64_t *spent = exec_spent(driver->exec, index, n);
  struct op_counters_sum *sum = &driver->counted[driver->exec->plan->instr[index].op];
  if (!spent || *spent < 0)
    return;
  sum->count++;
  for (int e = 0; e < OP_COUNTERS; e++)
    sum->spent[e] += spent[e];
}

static enum status time_lane(struct exec *exec, enum plan_lane lane, int64_t n)
{
  struct driver *driver = &exec->driver[lane];
  const int64_t step = exec->args[n % KEPT].step;
  struct stretch *ran = driver->ran[n & 1];
  enum status status = STATUS_OK;
  for (int i = 0; !status && i < driver->n; i++) {
    status = time_instr(exec, driver->instr[i], n, &ran[i]);
    if (status)
      return status;
    count_spent(driver, driver->instr[i], n);
    if (exec_is_traced(exec, step))
      trace_one(exec, driver->instr[i], n, ran[i]);
    if (is_profiled(exec, step))
      count_instr(exec, lane, i, ran);
  }
  return status;
}

/* The part of `one` in which any of the n stretches `by` ran. They are in order and do not overlap.
 * `from` skips stretches that end before `one` begins. It is 0 at first, and kept for a later
 * `one`. */
static double covered(struct stretch one, int n, const struct stretch *by, int *from)
{
  double sum = 0;
  while (*from < n && by[*from].end_s <= one.begin_s)
    ++*from;
  for (int i = *from; i < n && by[i].begin_s < one.end_s; i++)
    sum += fmax(0, fmin(one.end_s, by[i].end_s) - fmax(one.begin_s, by[i].begin_s));
  return sum;
}

/* Hidden time of a lane's collectives of step n, next to the compute lane in step `other`. */
static void count_hidden(struct exec *exec, const struct driver *driver, int64_t n, int64_t other)
{
  const struct driver *compute = &exec->driver[LANE_COMPUTE];
  const struct stretch *ran = driver->ran[n & 1], *by = compute->ran[other & 1];
  int from = 0;
  for (int i = 0; i < driver->n; i++)
    if (exec->span[driver->instr[i]].comm)
      exec->profile.hidden_s += covered(ran[i], compute->n, by, &from);
}

/* At most two steps are in flight. So each pair of overlapping steps is visited once, when the
 * times of the second are read. */
static void count_overlap(struct exec *exec, int64_t n)
{
  const int64_t step = exec->args[n % KEPT].step;
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    const struct driver *driver = &exec->driver[lane];
    if (is_profiled(exec, step))
      count_hidden(exec, driver, n, n);
    if (is_profiled(exec, step) && n > 1)
      count_hidden(exec, driver, n, n - 1);
    if (is_profiled(exec, step - 1) && n > 1)
      count_hidden(exec, driver, n - 1, n);
  }
  exec->profile.steps += is_profiled(exec, step);
}

/* The time between two marks that are hours apart is imprecise. So the release of each step is
 * measured from that of the step before. */
static enum status place_step(struct exec *exec, int64_t n)
{
  double since = 0;
  const int64_t step = exec->args[n % KEPT].step;
  if (n == 1)
    return STATUS_OK;
  const enum status status = exec->config.device->ops->mark_seconds(
      exec->base[0][(n - 1) % BASES], exec->base[0][n % BASES], &since);
  exec->release_s += since;
  if (exec_is_traced(exec, step) && exec_is_traced(exec, step - 1))
    exec->trace_s += since;
  return status;
}

enum status exec_take_times(struct exec *exec, int64_t n)
{
  enum status status = STATUS_OK;
  while (!status && exec->timed < n) {
    const int64_t step = exec->timed + 1;
    status = place_step(exec, step);
    for (int lane = 0; !status && lane < LANE_COUNT; lane++)
      status = time_lane(exec, lane, step);
    if (!status)
      count_overlap(exec, step);
    exec->timed = step;
  }
  return status;
}

enum status exec_measured(struct exec *exec, struct class_total total[CLASS_COUNT])
{
  struct class_total sum[CLASS_COUNT] = {0}, of_lane[CLASS_COUNT];
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    const struct driver *driver = &exec->driver[lane];
    if (!driver->thread)
      continue;
    const enum status status = driver->lane->device->ops->measured(driver->lane, of_lane);
    if (status)
      return status;
    for (int c = 0; c < CLASS_COUNT; c++) {
      sum[c].calls += of_lane[c].calls;
      sum[c].seconds += of_lane[c].seconds;
      sum[c].work += of_lane[c].work;
    }
  }
  memcpy(total, sum, sizeof sum);
  return STATUS_OK;
}

const struct op_counters_sum *exec_counted(const struct exec *exec, enum plan_lane lane)
{
  return exec->driver[lane].counters ? exec->driver[lane].counted : NULL;
}

void exec_profile(struct exec *exec, struct exec_profile *out)
{
  struct lane *compute = exec->driver[LANE_COMPUTE].lane;
  *out = exec->profile;
  exec->profile = (struct exec_profile){0};
  if (!compute)
    return;
  out->matmul_s = 1e-9 * (double)compute->matmul_ns;
  out->matmul_flops = (double)compute->matmul_flops;
  compute->matmul_ns = compute->matmul_flops = 0;
}

void exec_profile_from(struct exec *exec, int64_t step)
{
  exec->profile_from = step;
}
