/* Moves between tiers. */
#include "base/clock.h"
#include "exec/handlers.h"

/* A copy between tiers. */
enum status run_move(const struct call *call)
{
  const struct exec_config *config = &call->exec->config;
  const double rate = config->device->model.host_memory ? config->copy_rate : 0, start = clock_s();
  enum status status = call->lane->device->ops->copy(
      call->lane, use(call, MOVE_TO), use(call, MOVE_FROM), (size_t)use_bytes(call, MOVE_TO));
  if (!status && rate > 0)
    clock_sleep_until(start + (double)use_bytes(call, MOVE_TO) / rate);
  return status;
}

enum status run_publish(const struct call *call)
{
  return comm_group_barrier(group_of(call));
}

/* Operand `slot` is on the disk. */
static enum status to_disk(const struct call *call, int from, int slot)
{
  return exec_memory_write(call->exec->config.memory, call->exec->plan,
                           call->instr->use[slot].buffer, 0, use_bytes(call, slot),
                           use(call, from));
}

static enum status from_disk(const struct call *call, int slot, int to)
{
  return exec_memory_read(call->exec->config.memory, call->exec->plan,
                          call->instr->use[slot].buffer, 0, use_bytes(call, slot), use(call, to));
}

enum status run_write(const struct call *call)
{
  return to_disk(call, MOVE_FROM, MOVE_TO);
}

enum status run_read(const struct call *call)
{
  return from_disk(call, MOVE_FROM, MOVE_TO);
}

static enum status move_states(const struct call *call, int in_memory,
                               enum status (*move)(const struct call *call, int from, int to))
{
  enum status status = STATUS_OK;
  for (int s = 0; s < RULE_STATES && !status; s++)
    if (use(call, in_memory + s))
      status = move(call, STATE_FROM + s, STATE_TO + s);
  return status;
}

enum status run_read_state(const struct call *call)
{
  return move_states(call, STATE_TO, from_disk);
}

enum status run_write_state(const struct call *call)
{
  return move_states(call, STATE_FROM, to_disk);
}
