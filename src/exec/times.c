/* When instructions began and ended, by the marks that their lanes set: for the profile and for traces. */
#include <string.h>

#include "base/mem.h"
#include "exec/engine.h"

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

enum status exec_marks_create(struct exec *exec)
{
  void *block;
  enum status status = mem_alloc(MEM_META, (size_t)exec->plan->n * sizeof *exec->span, &block);
  if (status)
    return status;
  exec->span = block;
  for (int i = 0; !status && i < exec->plan->n; i++) {
    struct device *device = exec_device_of(exec, exec->plan->instr[i].lane);
    plan_instr_name(exec->plan, i, exec->span[i].name, sizeof exec->span[i].name);
    status = create_marks(device, 2, exec->span[i].begin);
    if (!status)
      status = create_marks(device, 2, exec->span[i].end);
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
  enum status status = exec->config.device->ops->mark_set(exec->driver[LANE_IO].lane, exec->base[0][n % BASES]);
  for (int lane = 0; !status && lane < LANE_COUNT; lane++) {
    struct lane *host = exec->driver[lane].lane;
    if (host && exec_is_beside(exec, lane)) /* any of them: to the host device a mark is a time */
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

static enum status trace_one(struct exec *exec, int index, int64_t n, double seconds)
{
  const enum plan_lane lane = exec->plan->instr[index].lane;
  struct exec_event event = {.step = exec->args[n & 1].step, .instr = index, .rested = n == exec->drained + 1};
  struct mark *base = exec->base[exec_is_beside(exec, lane)][n % BASES];
  double begin;
  enum status status = exec_device_of(exec, lane)->ops->mark_seconds(base, exec->span[index].begin[n & 1], &begin);
  if (status)
    return status;
  event.begin_s = exec->trace_s + begin;
  event.end_s = event.begin_s + seconds;
  event.spent = exec_spent(exec, index, n);
  exec->config.trace(exec->config.trace_arg, &event);
  return STATUS_OK;
}

static enum status time_lane(struct exec *exec, struct driver *driver, int64_t n)
{
  const struct device_ops *ops = driver->lane ? driver->lane->device->ops : NULL;
  enum status status = STATUS_OK;
  for (int i = 0; !status && i < driver->n; i++) {
    const struct span *span = &exec->span[driver->instr[i]];
    double busy = 0, waited = 0;
    if (i > 0)
      status = ops->mark_seconds(exec->span[driver->instr[i - 1]].end[n & 1], span->begin[n & 1], &waited);
    if (!status)
      status = ops->mark_seconds(span->begin[n & 1], span->end[n & 1], &busy);
    if (!status && exec_is_traced(exec, exec->args[n & 1].step))
      status = trace_one(exec, driver->instr[i], n, busy);
    driver->wait_s += waited;
    driver->busy_s += busy;
    driver->op_s[exec->plan->instr[driver->instr[i]].op] += busy;
  }
  return status;
}

/* Times of two marks hours apart would be coarse: the release of each step is placed by that of the step before. */
static enum status place_step(struct exec *exec, int64_t n)
{
  double since = 0;
  const int64_t step = exec->args[n & 1].step;
  if (n == 1 || !exec_is_traced(exec, step) || !exec_is_traced(exec, step - 1))
    return STATUS_OK;
  const enum status status = exec->config.device->ops->mark_seconds(exec->base[0][(n - 1) % BASES], exec->base[0][n % BASES], &since);
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
      status = time_lane(exec, &exec->driver[lane], step);
    exec->timed = step;
  }
  return status;
}

static void add_totals(struct class_total sum[CLASS_COUNT], const struct class_total more[CLASS_COUNT])
{
  for (int c = 0; c < CLASS_COUNT; c++) {
    sum[c].calls += more[c].calls;
    sum[c].seconds += more[c].seconds;
    sum[c].work += more[c].work;
  }
}

enum status exec_measured(struct exec *exec, struct class_total total[CLASS_COUNT])
{
  struct class_total sum[CLASS_COUNT] = {0};
  enum status status = STATUS_OK;
  for (int lane = 0; !status && lane < LANE_COUNT; lane++) {
    struct class_total of_lane[CLASS_COUNT];
    if (!exec->driver[lane].thread)
      continue;
    status = exec->driver[lane].lane->device->ops->measured(exec->driver[lane].lane, of_lane);
    if (!status)
      add_totals(sum, of_lane);
  }
  if (!status)
    memcpy(total, sum, sizeof sum);
  return status;
}

const struct op_counters_sum *exec_counted(const struct exec *exec, enum plan_lane lane)
{
  return exec->driver[lane].counters ? op_counters_sums(exec->driver[lane].counters) : NULL;
}

void exec_profile(struct exec *exec, struct exec_profile *out)
{
  struct exec_profile profile = {0};
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    struct driver *driver = &exec->driver[lane];
    profile.busy_s[lane] = driver->busy_s;
    profile.wait_s[lane] = driver->wait_s;
    driver->busy_s = driver->wait_s = 0;
    for (int op = 0; op < OP_COUNT; op++) {
      profile.op_s[op] += driver->op_s[op];
      driver->op_s[op] = 0;
    }
  }
  struct lane *compute = exec->driver[LANE_COMPUTE].lane;
  if (compute) {
    profile.matmul_s = 1e-9 * (double)compute->matmul_ns;
    profile.matmul_flops = (double)compute->matmul_flops;
    compute->matmul_ns = compute->matmul_flops = 0;
  }
  *out = profile;
}
