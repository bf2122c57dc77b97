/* The thread of a lane: issues each instruction after the tokens that it waits for, in the plan's
 * order. After a failure it issues nothing more. */
#include "exec/engine.h"

enum status exec_failure(struct exec *exec)
{
  pthread_mutex_lock(&exec->mutex);
  const enum status status = status_restore(&exec->failure);
  pthread_mutex_unlock(&exec->mutex);
  return status;
}

enum status exec_fail(struct exec *exec, enum status status)
{
  pthread_mutex_lock(&exec->mutex);
  status_keep(&exec->failure, status);
  pthread_mutex_unlock(&exec->mutex);
  token_abort(exec->board);
  return exec_failure(exec);
}

/* Makes this lane follow running work of another lane. Lanes whose work runs on the calling thread
 * (io, and host lanes next to a device) wait until it ends. If a host lane next to a device has
 * signalled work, that work has ended. */
static enum status wait_for(struct driver *driver, int instr, int64_t n)
{
  struct exec *exec = driver->exec;
  const struct device_ops *ops = exec->config.device->ops;
  const enum plan_lane mine = (enum plan_lane)(driver - exec->driver),
                       theirs = exec->plan->instr[instr].lane;
  struct mark *end = exec->span[instr].end[n & 1];
  enum status status = token_wait(exec->board, instr, n);
  if (status || exec_is_beside(exec, theirs))
    return status;
  return mine == LANE_IO || exec_is_beside(exec, mine) ? ops->mark_wait(end)
                                                       : ops->mark_follow(driver->lane, end);
}

static enum status wait_for_all(struct driver *driver, const struct instr *instr, int64_t n)
{
  enum status status = STATUS_OK;
  for (int w = 0; !status && w < instr->n_wait; w++) {
    int64_t step = n - instr->wait[w].back;
    if (step > 0) /* the first step has no predecessor */
      status = wait_for(driver, instr->wait[w].instr, step);
  }
  return status;
}

bool exec_waits_for_turn(const struct exec *exec, int index, int64_t n)
{
  const struct span *span = &exec->span[index];
  return span->turn >= 0 && !token_is_done(exec->board, span->turn, n - span->turn_back);
}

/* The thread waits until the collective before this one is issued. The lane does not wait for its
 * end. */
static enum status wait_for_turn(struct exec *exec, int index, int64_t n)
{
  const struct span *span = &exec->span[index];
  return exec_waits_for_turn(exec, index, n)
             ? token_wait(exec->board, span->turn, n - span->turn_back)
             : STATUS_OK;
}

static enum status run_one(struct driver *driver, int index, int64_t n)
{
  struct exec *exec = driver->exec;
  const struct device_ops *ops = driver->lane->device->ops;
  const struct span *span = &exec->span[index];
  if (driver->counters)
    op_counters_begin(driver->counters);
  enum status status = ops->mark_set(driver->lane, span->begin[n & 1]);
  ops->label(driver->lane, span->name);
  status = status ?: exec_run(exec, driver->lane, index, n);
  if (!status && index == exec->tallied)
    status = ops->fp8_tally(driver->lane, &exec->results->tally[n % KEPT]);
  ops->label(driver->lane, NULL);
  status = status ?: ops->mark_set(driver->lane, span->end[n & 1]);
  if (!status && driver->counters)
    op_counters_read(driver->counters, exec_spent(exec, index, n));
  return status;
}

enum status driver_step(struct driver *driver, int64_t n)
{
  struct exec *exec = driver->exec;
  for (int i = 0; i < driver->n; i++) {
    int index = driver->instr[i];
    enum status status = wait_for_all(driver, &exec->plan->instr[index], n);
    status = status ?: wait_for_turn(exec, index, n) ?: run_one(driver, index, n);
    if (status)
      return status;
    token_signal(exec->board, index, n);
  }
  return STATUS_OK;
}

/* Measures the time of a lane's operations in traced steps, without delaying other lanes. */
static enum status measure_step(struct driver *driver, int64_t n)
{
  const bool wanted = exec_is_traced(driver->exec, driver->exec->args[n % KEPT].step);
  if (wanted == driver->measures)
    return STATUS_OK;
  driver->measures = wanted;
  return driver->lane->device->ops->measure(driver->lane, wanted);
}

enum status driver_loop(void *arg)
{
  struct driver *driver = arg;
  struct exec *exec = driver->exec;
  enum status status = exec->config.device->ops->enter(exec->config.device);
  status = status ?: op_counters_start(driver->counters);
  for (int64_t n = 1; !status; n++) {
    status = token_wait(exec->board, exec->plan->n, n);
    status = status ?: measure_step(driver, n) ?: driver_step(driver, n);
  }
  if (status != STATUS_ABORTED)
    (void)exec_fail(exec, status); /* exec_step() and exec_drain() report it */
  op_counters_stop(driver->counters);
  return STATUS_OK;
}

/* Lanes run in order, so the last instruction of each stands for all of it. */
static enum status wait_for_lanes(struct exec *exec, int64_t n, bool complete)
{
  enum status status = STATUS_OK;
  for (int lane = 0; !status && n > 0 && lane < LANE_COUNT; lane++) {
    const struct driver *driver = &exec->driver[lane];
    if (driver->n == 0)
      continue;
    const int last = driver->instr[driver->n - 1];
    status = token_wait(exec->board, last, n);
    if (!status && complete)
      status = exec_device_of(exec, lane)->ops->mark_wait(exec->span[last].end[n & 1]);
  }
  return status == STATUS_ABORTED ? exec_failure(exec) : status;
}

enum status exec_wait_issued(struct exec *exec, int64_t n)
{
  return wait_for_lanes(exec, n, false);
}

enum status exec_wait_complete(struct exec *exec, int64_t n)
{
  return wait_for_lanes(exec, n, true);
}
