/* Windows of parameters: gather -> use -> release, asserted at every step of that way. */
#include <inttypes.h>

#include "exec/handlers.h"

/* Gather -> get -> release: a window holds one unit of one step from its GATHERs to its RELEASE,
 * and no other instruction may touch its bytes. A GATHER writes the window itself, or parts of it.
 * The list of windows that are held is short, so no check walks through all buffers. */
static enum status refuse_window(const struct call *call, int buffer, const char *why)
{
  char name[96];
  plan_instr_name(call->exec->plan, call->index, name, sizeof name);
  return status_set(STATUS_INTERNAL, "%s in step %" PRId64 ": the window %s %s", name,
                    call->args->step, call->exec->plan->buffer[buffer].name, why);
}

static bool bytes_overlap(const struct exec *exec, int a, int b)
{
  const char *pa = exec->pointer[0][a], *pb = exec->pointer[0][b];
  return pa < pb + exec->plan->buffer[b].bytes && pb < pa + exec->plan->buffer[a].bytes;
}

static bool is_part(const struct exec *exec, int part, int window)
{
  return part == window || exec->plan->buffer[part].parent == window;
}

enum status open_window(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  bool free = true;
  if (exec->plan->buffer[buffer].unit != call->instr->unit)
    return refuse_window(call, buffer, "belongs to another unit");
  pthread_mutex_lock(&exec->mutex);
  for (int h = 0; h < exec->n_held; h++)
    free &= !bytes_overlap(exec, exec->held[h].buffer, buffer);
  pthread_mutex_unlock(&exec->mutex);
  return free ? STATUS_OK : refuse_window(call, buffer, "lies over one that has not been released");
}

/* The window is held from here on, if the buffer is not gathered further into another one. */
void hold_window(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  if (!exec->is_window[buffer])
    return;
  pthread_mutex_lock(&exec->mutex);
  exec->held[exec->n_held++] = (struct held){buffer, call->n};
  pthread_mutex_unlock(&exec->mutex);
}

/* The step whose parameters a part of a window holds; 0: none. */
static int64_t step_of(struct exec *exec, int buffer)
{
  int64_t step = 0;
  pthread_mutex_lock(&exec->mutex);
  for (int h = 0; h < exec->n_held; h++)
    if (exec->held[h].buffer == buffer)
      step = exec->held[h].step;
  pthread_mutex_unlock(&exec->mutex);
  return step;
}

static enum status refuse_part(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  for (int b = 0; b < exec->plan->buffers; b++) {
    const int64_t step =
        exec->is_window[b] && is_part(exec, b, buffer) ? step_of(exec, b) : call->n;
    if (step != call->n)
      return refuse_window(call, b,
                           step ? "holds the parameters of another step" : "has not been gathered");
  }
  return STATUS_OK;
}

enum status check_window(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  int parts = 0;
  if (exec->plan->buffer[buffer].unit != call->instr->unit)
    return refuse_window(call, buffer, "belongs to another unit");
  pthread_mutex_lock(&exec->mutex);
  for (int h = 0; h < exec->n_held; h++)
    parts += exec->held[h].step == call->n && is_part(exec, exec->held[h].buffer, buffer);
  pthread_mutex_unlock(&exec->mutex);
  return parts == exec->parts[buffer] ? STATUS_OK : refuse_part(call, buffer);
}

/* This rank's trained or frozen part of a unit in fp8, which operand k holds. */
static struct model_part part_of(const struct call *call, int k, bool frozen)
{
  const struct plan *plan = call->exec->plan;
  const int unit = call->instr->unit;
  return (struct model_part){.unit = unit,
                             .layout = &plan->unit[unit].layout,
                             .range =
                                 frozen ? plan->unit[unit].frozen_owned : plan->unit[unit].owned,
                             .type = buffer_of(call, k)->dtype,
                             .x = use(call, k)};
}

enum status run_measure(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  const bool keeps = call->exec->plan->unit[call->instr->unit].kept >= 0;
  const size_t bytes = (size_t)use_bytes(call, MEASURE_SCALES),
               kept = keeps ? (size_t)use_bytes(call, MEASURE_FROZEN) : 0;
  char *const scales = use(call, MEASURE_SCALES);
  enum status status = ops->zero(call->lane, scales + kept, bytes - kept);
  if (keeps && !status)
    status = ops->copy(call->lane, scales, use(call, MEASURE_FROZEN), kept);
  for (int frozen = 0; frozen <= 1 && !status; frozen++) {
    const int k = frozen ? MEASURE_FROZEN : MEASURE_TRAINED;
    if (!use(call, k) || (frozen && keeps))
      continue;
    const struct model_part part = part_of(call, k, frozen);
    status = model_fp8_measure(model_of(call), call->lane, &part, scales);
  }
  return status;
}

enum status run_merge(const struct call *call)
{
  return comm_group_max_u32(group_of(call), call->lane, use(call, MERGE_SCALES),
                            use_bytes(call, MERGE_SCALES) / (int64_t)sizeof(uint32_t));
}

enum status run_scale(const struct call *call)
{
  const struct model *model = model_of(call);
  void *const scales = use(call, SCALE_SCALES);
  const enum status status = model_fp8_scale(model, call->lane, call->instr->unit, scales);
  if (status || !use(call, SCALE_CODES))
    return status;
  const struct model_part part = part_of(call, SCALE_TRAINED, false);
  return model_fp8_code(model, call->lane, &part, scales, use(call, SCALE_CODES));
}

/* This rank's part of a window, from a shard of another type. */
static enum status convert_shard(const struct call *call, void *place)
{
  const struct plan *plan = call->exec->plan;
  const struct plan_buffer *shard = buffer_of(call, GATHER_SHARD),
                           *window = buffer_of(call, GATHER_WHOLE);
  if (!use(call, GATHER_BY_SCALES))
    return call->lane->device->ops->cast(call->lane, shard->elements, shard->dtype,
                                         use(call, GATHER_SHARD), window->dtype, place);
  const int64_t begin = window->parent < 0 ? 0 : window->parent_offset; /* a byte per element */
  const bool frozen = begin >= plan->unit[call->instr->unit].layout.trained;
  const struct model_part part = part_of(call, GATHER_SHARD, frozen);
  return model_fp8_code(model_of(call), call->lane, &part, use(call, GATHER_BY_SCALES), place);
}

/* If the types differ, this rank's part of a window is cast from its shard, in place. The
 * all-gather brings the other ranks' parts. */
enum status run_gather(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  struct comm_group *group = group_of(call);
  const struct plan_buffer *shard = buffer_of(call, GATHER_SHARD),
                           *window = buffer_of(call, GATHER_WHOLE);
  const int64_t count = shard->elements;
  const bool casts = shard->dtype != window->dtype;
  if (!casts && group)
    return comm_all_gather(group, call->lane, use(call, GATHER_SHARD), shard->bytes, false,
                           use(call, GATHER_WHOLE));
  const int64_t size = (int64_t)dtype_size(window->dtype);
  void *place =
      (char *)use(call, GATHER_WHOLE) + (group ? comm_group_index(group) * count * size : 0);
  enum status status =
      casts ? convert_shard(call, place)
            : ops->copy(call->lane, place, use(call, GATHER_SHARD), (size_t)(count * size));
  return status || !group ? status
                          : comm_all_gather(group, call->lane, place, count * size, false,
                                            use(call, GATHER_WHOLE));
}

enum status run_release(const struct call *call)
{
  struct exec *exec = call->exec;
  int kept = 0;
  pthread_mutex_lock(&exec->mutex);
  for (int h = 0; h < exec->n_held; h++)
    if (!is_part(exec, exec->held[h].buffer, call->instr->use[RELEASE_PARAMS].buffer))
      exec->held[kept++] = exec->held[h];
  exec->n_held = kept;
  pthread_mutex_unlock(&exec->mutex);
  return STATUS_OK;
}
