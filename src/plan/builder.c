/* Sizes, buffers and instructions of a plan that is being built. */
#include "plan/builder.h"

#include <limits.h>
#include <stdio.h>

#include "base/mem.h"

int64_t build_bytes_of(struct layout_range range)
{
  return (range.end - range.begin) * (int64_t)sizeof(float);
}

int64_t build_unit_bytes(const struct builder *b, int u)
{
  return b->plan->layout[u].flat * b->element;
}

int64_t build_trained_bytes(const struct builder *b, int u)
{
  return b->plan->layout[u].trained * (int64_t)sizeof(float);
}

int64_t build_shard_bytes(const struct builder *b, int u)
{
  return build_trained_bytes(b, u) / b->group;
}

static enum status grow_buffers(struct builder *b)
{
  struct plan *plan = b->plan;
  return mem_grow(MEM_META, (void **)&plan->buffer, &b->buffer_room, (int64_t)plan->buffers + 1, sizeof *plan->buffer);
}

static enum status grow_instructions(struct builder *b)
{
  struct plan *plan = b->plan;
  return mem_grow(MEM_META, (void **)&plan->instr, &b->instr_room, (int64_t)plan->n + 1, sizeof *plan->instr);
}

enum status build_begin(struct builder *b)
{
  const enum status status = grow_buffers(b);
  return status ? status : grow_instructions(b);
}

enum status build_end(const struct builder *b)
{
  const struct plan *plan = b->plan;
  for (int i = 0; i < plan->n && !b->status; i++)
    if (plan->instr[i].n_use > PLAN_MAX_USE)
      return status_set(STATUS_INTERNAL, "%s uses %d buffers, and an instruction can name %d", plan_op_name(plan->instr[i].op), plan->instr[i].n_use,
                        PLAN_MAX_USE);
  return b->status;
}

static int add_buffer(struct builder *b, const char *name, int unit, struct plan_buffer buffer)
{
  struct plan *plan = b->plan;
  if (unit < 0)
    snprintf(buffer.name, sizeof buffer.name, "%s", name);
  else
    snprintf(buffer.name, sizeof buffer.name, "%s.%s", name, b->model->unit[unit].name);
  if (!b->status)
    b->status = grow_buffers(b);
  if (b->status)
    return 0;
  plan->buffer[plan->buffers] = buffer;
  return plan->buffers++;
}

int build_persistent(struct builder *b, const char *name, int unit, enum plan_tier tier, enum plan_purpose purpose, int64_t bytes)
{
  const struct plan_buffer buffer = {
      .tier = tier, .purpose = purpose, .unit = unit, .persistent = true, .parent = -1, .bytes = bytes, .last = INT_MAX};
  return add_buffer(b, name, unit, buffer);
}

int build_view(struct builder *b, const char *name, int parent, int64_t offset, int64_t bytes)
{
  struct plan_buffer view = b->plan->buffer[parent];
  view.parent = parent;
  view.parent_offset = offset;
  view.bytes = bytes;
  return add_buffer(b, name, view.unit, view);
}

int build_part(struct builder *b, const char *name, int u, int whole, bool frozen)
{
  int64_t trained = b->plan->layout[u].trained * b->element, all = build_unit_bytes(b, u), begin = frozen ? trained : 0,
          bytes = frozen ? all - trained : trained;
  if (bytes == 0)
    return -1;
  return bytes == all ? whole : build_view(b, name, whole, begin, bytes);
}

static bool is_of_unit(enum plan_purpose purpose)
{
  return purpose == PURPOSE_WINDOW || purpose == PURPOSE_GRADS || purpose == PURPOSE_GRAD_WINDOW || purpose == PURPOSE_LANDED ||
         purpose == PURPOSE_ACTIVATIONS;
}

int build_transient(struct builder *b, const char *name, int of, enum plan_tier tier, enum plan_purpose purpose, int64_t bytes)
{
  const struct plan_buffer buffer = {
      .tier = tier, .purpose = purpose, .unit = is_of_unit(purpose) ? of : -1, .parent = -1, .bytes = bytes, .first = INT_MAX, .last = -1};
  return add_buffer(b, name, of, buffer);
}

int build_outside(struct builder *b, const char *name, enum plan_tier tier, enum plan_purpose purpose, int64_t bytes)
{
  return add_buffer(b, name, -1, (struct plan_buffer){.tier = tier, .purpose = purpose, .unit = -1, .parent = -1, .bytes = bytes, .last = INT_MAX});
}

struct instr *build_emit(struct builder *b, enum op op, int unit, int micro)
{
  if (!b->status)
    b->status = grow_instructions(b);
  struct instr *instr = b->status ? &b->nowhere : &b->plan->instr[b->plan->n++];
  *instr = (struct instr){.op = op, .unit = unit, .micro = micro, .lane = plan_lane_of(b->plan, op, unit)};
  return instr;
}

struct instr *build_emit_sum(struct builder *b, enum op op, int unit, int micro)
{
  struct instr *sum = build_emit(b, op, unit, micro);
  sum->wire = b->plan->input.shape.wire;
  return sum;
}

void build_use(struct instr *instr, int buffer, enum plan_access access)
{
  if (instr->n_use < PLAN_MAX_USE)
    instr->use[instr->n_use] = (struct plan_use){buffer, access};
  instr->n_use++; /* more than there may be: build_end() refuses them */
}

void build_move(struct builder *b, enum op op, int unit, int micro, int from, int to)
{
  struct instr *move = build_emit(b, op, unit, micro);
  build_use(move, from, ACCESS_READ);
  build_use(move, to, ACCESS_WRITE);
}
