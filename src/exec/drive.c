#include <stdio.h>

#include "base/clock.h"
#include "exec/engine.h"

enum status exec_failure(struct exec *exec)
{
  pthread_mutex_lock(&exec->mutex);
  enum status status = exec->failed;
  if (status)
    status_set(status, "%s", exec->failure);
  pthread_mutex_unlock(&exec->mutex);
  return status;
}

enum status exec_fail(struct exec *exec, enum status status)
{
  pthread_mutex_lock(&exec->mutex);
  if (!exec->failed) {
    exec->failed = status;
    snprintf(exec->failure, sizeof exec->failure, "%s", status_text());
  }
  pthread_mutex_unlock(&exec->mutex);
  token_abort(exec->board);
  return exec_failure(exec);
}

static enum status wait_for_tokens(struct exec *exec, const struct instr *instr, int64_t n)
{
  enum status status = STATUS_OK;
  for (int w = 0; !status && w < instr->n_wait; w++) {
    int64_t count = n - instr->wait[w].back;
    if (count > 0) /* there is no step before the first */
      status = token_wait(exec->board, instr->wait[w].instr, count);
  }
  return status;
}

enum status driver_step(struct driver *driver, int64_t n)
{
  struct exec *exec = driver->exec;
  for (int i = 0; i < driver->n; i++) {
    int index = driver->instr[i];
    const struct instr *instr = &exec->plan->instr[index];
    int64_t begin = clock_ns();
    enum status status = wait_for_tokens(exec, instr, n);
    int64_t ready = clock_ns();
    if (!status)
      status = exec_run(exec, driver->lane, index, n);
    int64_t end = clock_ns();
    driver->wait_ns += ready - begin;
    driver->busy_ns += end - ready;
    driver->op_ns[instr->op] += end - ready;
    if (status)
      return status;
    token_signal(exec->board, index, n);
  }
  return STATUS_OK;
}

enum status driver_loop(void *arg)
{
  struct driver *driver = arg;
  struct exec *exec = driver->exec;
  enum status status = STATUS_OK;
  for (int64_t n = 1; !status; n++) {
    status = token_wait(exec->board, exec->plan->n, n);
    if (!status)
      status = driver_step(driver, n);
  }
  if (status != STATUS_ABORTED)
    (void)exec_fail(exec, status); /* exec_step() and exec_drain() tell of it */
  return STATUS_OK;
}
