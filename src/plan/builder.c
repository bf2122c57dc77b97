/* Sizes, buffers and instructions of a plan that is being built. */
#include "plan/builder.h"

#include <limits.h>
#include <stdio.h>

#include "base/mem.h"

int64_t build_length(struct layout_range range)
{
  return range.end - range.begin;
}

int64_t build_shard(const struct builder *b, int u)
{
  return b->plan->unit[u].layout.trained / b->group;
}

static enum status grow_buffers(struct builder *b)
{
  struct plan *plan = b->plan;
  return mem_grow(MEM_META, (void **)&plan->buffer, &b->buffer_room, (int64_t)plan->buffers + 1,
                  sizeof *plan->buffer);
}

static enum status grow_instructions(struct builder *b)
{
  struct plan *plan = b->plan;
  return mem_grow(MEM_META, (void **)&plan->instr, &b->instr_room, (int64_t)plan->n + 1,
                  sizeof *plan->instr);
}

enum status build_begin(struct builder *b)
{
  const enum status status = grow_buffers(b);
  return status ? status : grow_instructions(b);
}

static void name_buffer(struct plan_buffer *buffer, const char *name, const char *of)
{
  snprintf(buffer->name, sizeof buffer->name, "%s%s%s", name, of ? "." : "", of ? of : "");
}

static int add_buffer(struct builder *b, const char *name, int unit, struct plan_buffer buffer)
{
  struct plan *plan = b->plan;
  buffer.bytes = dtype_bytes(buffer.dtype, buffer.elements);
  name_buffer(&buffer, name, unit < 0 ? NULL : b->model->unit[unit].name);
  b->status = b->status ?: grow_buffers(b);
  if (b->status)
    return 0;
  plan->buffer[plan->buffers] = buffer;
  return plan->buffers++;
}

int build_persistent(struct builder *b, const char *name, int unit, enum plan_tier tier,
                     enum plan_purpose purpose, enum dtype dtype, int64_t elements)
{
  struct plan_buffer buffer = {.tier = tier, .purpose = purpose, .dtype = dtype, .unit = unit};
  buffer.elements = elements;
  buffer.parent = -1;
  buffer.persistent = true;
  buffer.last = INT_MAX;
  return add_buffer(b, name, unit, buffer);
}

int build_view(struct builder *b, const char *name, int of, int parent, int64_t from,
               int64_t elements)
{
  struct plan_buffer view = b->plan->buffer[parent];
  view.parent = parent;
  view.parent_offset = from * (int64_t)dtype_size(view.dtype);
  view.elements = elements;
  return add_buffer(b, name, of, view);
}

int build_mine(struct builder *b, const char *name, int whole, int64_t elements)
{
  return build_view(b, name, b->plan->buffer[whole].unit, whole, b->shard_index * elements,
                    elements);
}

int build_piece(struct builder *b, int u, int shard)
{
  const int64_t piece = build_shard(b, u) / b->replicas;
  return b->replicas > 1 ? build_view(b, "piece", u, shard, b->replica_index * piece, piece)
                         : shard;
}

int build_part(struct builder *b, const char *name, int u, int whole, bool frozen)
{
  const struct layout_unit *layout = &b->plan->unit[u].layout;
  const struct layout_range part = layout_part(layout, frozen);
  const int64_t elements = build_length(part);
  if (elements == 0)
    return -1;
  return elements == layout->flat ? whole : build_view(b, name, u, whole, part.begin, elements);
}

static bool is_of_unit(enum plan_purpose purpose)
{
  return purpose == PURPOSE_WINDOW || purpose == PURPOSE_GRADS || purpose == PURPOSE_GRAD_WINDOW ||
         purpose == PURPOSE_LANDED || purpose == PURPOSE_ACTIVATIONS || purpose == PURPOSE_RESIDUAL;
}

int build_transient(struct builder *b, const char *name, int of, enum plan_tier tier,
                    enum plan_purpose purpose, enum dtype dtype, int64_t elements)
{
  struct plan_buffer buffer = {.tier = tier, .purpose = purpose, .dtype = dtype};
  buffer.elements = elements;
  buffer.unit = is_of_unit(purpose) ? of : -1;
  buffer.parent = -1;
  buffer.first = INT_MAX;
  buffer.last = -1;
  return add_buffer(b, name, of, buffer);
}

int build_stream(struct builder *b, const char *name, int of, enum plan_tier tier,
                 enum plan_purpose purpose, int64_t bytes)
{
  return build_transient(b, name, of, tier, purpose, b->element,
                         bytes / (int64_t)dtype_size(b->element));
}

int build_bytes(struct builder *b, const char *name, int of, enum plan_tier tier,
                enum plan_purpose purpose, int64_t bytes)
{
  return build_transient(b, name, of, tier, purpose, DTYPE_U8, bytes);
}

int build_name(struct builder *b, int buffer, const char *name, int stage)
{
  name_buffer(&b->plan->buffer[buffer], name, b->model->stage[stage].name);
  return buffer;
}

int build_outside(struct builder *b, const char *name, enum plan_tier tier,
                  enum plan_purpose purpose, enum dtype dtype, int64_t elements)
{
  const int buffer = build_transient(b, name, -1, tier, purpose, dtype, elements);
  b->plan->buffer[buffer].first = 0;
  b->plan->buffer[buffer].last = INT_MAX;
  return buffer;
}

struct instr *build_emit(struct builder *b, enum op op, int of, int micro)
{
  b->status = b->status ?: grow_instructions(b);
  struct instr *instr = b->status ? &b->scrap : &b->plan->instr[b->plan->n++];
  const struct op_row *row = &op_rows[op];
  const int stage = row->stage ? of : -1, unit = row->stage ? b->model->stage[of].unit : of;
  const struct optim_settings *optim = &b->plan->input.optim;
  const struct unit_policy *policy = unit < 0 ? NULL : &b->plan->unit[unit].policy;
  struct attributes *attr = &instr->attr;
  *instr = (struct instr){.op = op,
                          .unit = unit,
                          .stage = stage,
                          .micro = micro,
                          .lane = plan_lane_of(b->plan, op, unit)};
  for (int k = 0; k < PLAN_MAX_USE; k++)
    instr->use[k].buffer = -1;
  attr->group = row->group;
  attr->fp8 = plan_op_fp8(b->plan, op, unit);
  attr->blocks = row->coded;
  if (row->coded || row->codes_params)
    attr->codec = row->coded ? policy->grads : policy->weights;
  if (row->coded || row->codes_params || row->updates)
    attr->seed = optim->seed;
  if (op == OP_MAGNITUDE || op == OP_ENCODE)
    attr->residual = policy->residual;
  if (op == OP_ENCODE)
    attr->sample = policy->sample;
  if (op == OP_METRICS)
    attr->clip = optim->clip;
  if (op == OP_UPDATE || op == OP_REPAIR)
    attr->lr_scale = policy->lr_scale;
  if (op == OP_LOSS)
    attr->beta = b->plan->input.beta;
  if (row->updates) {
    attr->optimizer = optim->name;
    attr->stochastic = optim->stochastic;
  }
  return instr;
}

void build_use(struct instr *instr, int k, int buffer)
{
  static const enum plan_access access[] = {[OPERAND_READ] = ACCESS_READ,
                                            [OPERAND_WRITE] = ACCESS_WRITE,
                                            [OPERAND_ADD] = ACCESS_ADD,
                                            [OPERAND_SUM] = ACCESS_WRITE,
                                            [OPERAND_SPEND] = ACCESS_READ};
  if (buffer >= 0)
    instr->use[k] = (struct plan_use){buffer, access[op_rows[instr->op].operand[k].access]};
}

void build_sum(struct instr *instr, int k, int buffer, bool adds)
{
  instr->use[k] = (struct plan_use){buffer, adds ? ACCESS_ADD : ACCESS_WRITE};
}

struct instr *build_instr(struct builder *b, enum op op, int of, int micro, int n,
                          const int *buffers)
{
  struct instr *instr = build_emit(b, op, of, micro);
  for (int k = 0; k < n; k++)
    build_use(instr, k, buffers[k]);
  return instr;
}

/* Without shards a rank has all of a unit. */
static void gather_from(const struct builder *b, struct instr *gather)
{
  if (!b->shards)
    gather->attr.group = MESH_NONE;
}

void build_gather(struct builder *b, int unit, int micro, int shard, int whole)
{
  if (shard == whole)
    return;
  if (build_encodes(b, unit, shard) || b->plan->buffer[shard].dtype == DTYPE_U8)
    build_coded_gather(b, unit, micro, shard, whole);
  else
    gather_from(b, BUILD(b, OP_GATHER, unit, micro, shard, whole, b->plan->unit[unit].scales));
}

/* ---- scales of units that are gathered in fp8 ---- */

/* Whether the step before updates the unit while this step's forward pass may run already. */
static bool is_updated_late(const struct builder *b, int u)
{
  const struct plan_unit *own = &b->plan->unit[u];
  return b->plan->input.mode == PLAN_TRAIN && own->layout.trained > 0 &&
         own->policy.timing == TIMING_DEFERRED;
}

/* Whether shards of the unit are on the device, and have no scales yet. */
static bool can_be_measured(const struct builder *b, int u)
{
  return plan_gathers_codes(b->plan, u) && !plan_is_on_host(b->plan, u) &&
         b->plan->unit[u].scales < 0;
}

/* The unit's scales are the last of `merged`, which grows. */
static void measure(struct builder *b, int u, int trained, int frozen, int merged)
{
  struct plan *plan = b->plan;
  const int64_t before = plan->buffer[merged].elements, bytes = model_fp8_bytes(b->model, u);
  const int scales = build_view(b, "scales", u, merged, before, bytes);
  plan->buffer[merged].elements = plan->buffer[merged].bytes = before + bytes;
  plan->buffer[scales].unit = u;
  plan->unit[u].scales = scales;
  BUILD(b, OP_MEASURE, u, -1, trained, plan->unit[u].kept >= 0 ? plan->unit[u].kept : frozen,
        scales);
}

/* A MERGE costs as many messages for all units as for one. But it waits for the updates of its
 * units, which run next to the forward pass of units before them. So it has all units that are
 * ready, and of the others one more than all MERGEs before it: 1, 2, 4, 8. */
static void measure_from(struct builder *b, int first, int trained, int frozen)
{
  const int merged = build_bytes(b, "merged", first, TIER_DEVICE, PURPOSE_STAGING, 0);
  const bool alone = !b->shards || plan_is_on_host(b->plan, first);
  const int most = b->merged_late + 1;
  int late = is_updated_late(b, first);
  measure(b, first, trained, frozen, merged);
  for (int u = first + 1; u < b->model->units && !alone; u++) {
    if (!can_be_measured(b, u) || (is_updated_late(b, u) && late == most))
      continue;
    measure(b, u, b->plan->unit[u].master, b->plan->unit[u].frozen, merged);
    late += is_updated_late(b, u);
  }
  b->merged_late += late;
  if (b->shards)
    BUILD(b, OP_MERGE, -1, -1, merged);
}

static void scale(struct builder *b, int u, int trained)
{
  struct plan *plan = b->plan;
  struct plan_unit *own = &plan->unit[u];
  const bool keeps = own->policy.keeps_codes && trained >= 0;
  b->unit[u].scaled = true;
  if (keeps) {
    own->codes = build_transient(b, "codes", u, TIER_DEVICE, PURPOSE_STAGING, DTYPE_F8_E4M3,
                                 plan->buffer[trained].elements);
    plan->buffer[own->codes].unit = u;
  }
  BUILD(b, OP_SCALE, u, -1, own->scales, keeps ? trained : -1, own->codes);
}

int build_scales(struct builder *b, int unit, int trained, int frozen)
{
  const struct plan_unit *own = &b->plan->unit[unit];
  if (!plan_gathers_codes(b->plan, unit))
    return trained;
  if (own->scales < 0)
    measure_from(b, unit, trained, frozen);
  if (!b->unit[unit].scaled)
    scale(b, unit, trained);
  return own->codes < 0 ? trained : own->codes;
}
