/* Moves between tiers. */
#include "base/clock.h"
#include "exec/handlers.h"

static enum status copy(const struct call *call)
{
  const struct exec_config *config = &call->exec->config;
  const double rate = config->device->model.host_memory ? config->copy_rate : 0, start = clock_s();
  enum status status = call->lane->device->ops->copy(
      call->lane, use(call, MOVE_TO), use(call, MOVE_FROM), (size_t)use_bytes(call, MOVE_TO));
  if (!status && rate > 0)
    clock_sleep_until(start + (double)use_bytes(call, MOVE_TO) / rate);
  return status;
}

/* One of the operands is on the disk. */
static enum status move_disk(const struct call *call, int from, int to)
{
  const struct exec_memory *memory = call->exec->config.memory;
  const struct plan *plan = call->exec->plan;
  return buffer_of(call, to)->tier == TIER_DISK
             ? exec_memory_write(memory, plan, call->instr->use[to].buffer, 0, use_bytes(call, to),
                                 use(call, from))
             : exec_memory_read(memory, plan, call->instr->use[from].buffer, 0,
                                use_bytes(call, from), use(call, to));
}

enum status run_move(const struct call *call)
{
  return use(call, MOVE_FROM) && use(call, MOVE_TO) ? copy(call)
                                                    : move_disk(call, MOVE_FROM, MOVE_TO);
}

enum status run_move_states(const struct call *call)
{
  enum status status = STATUS_OK;
  for (int s = 0; s < RULE_STATES && !status; s++)
    if (call->instr->use[STATE_FROM + s].buffer >= 0)
      status = move_disk(call, STATE_FROM + s, STATE_TO + s);
  return status;
}

enum status run_publish(const struct call *call)
{
  return comm_group_barrier(group_of(call));
}
