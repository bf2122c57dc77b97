/* What all parts of src/plan ask of a plan: names, lanes, groups, bytes, and the hash that ranks
 * compare. It decides nothing. */
#include "plan/plan.h"

#include "base/hash.h"
#include "base/mem.h"
#include "plan/internal.h"
#include "plan/ops.h"

/* clang-format off */
static const char *const lane_names[LANE_COUNT] = {
    [LANE_COMPUTE] = "compute", [LANE_GATHER] = "gather", [LANE_REDUCE] = "reduce",
    [LANE_HOST] = "host", [LANE_IO] = "io", [LANE_H2D] = "h2d", [LANE_D2H] = "d2h",
    [LANE_DISK] = "disk"};
static const char *const tier_names[TIER_COUNT] = {
    [TIER_DEVICE] = "device", [TIER_HOST] = "host", [TIER_SHARED] = "shared",
    [TIER_DISK] = "disk"};
static const char *const purpose_names[PURPOSE_COUNT] = {
    [PURPOSE_PARAMS] = "parameters", [PURPOSE_WINDOW] = "gathered parameters",
    [PURPOSE_WORKING] = "working copy", [PURPOSE_STATE] = "optimizer state",
    [PURPOSE_RESIDUAL] = "residuals", [PURPOSE_GRADS] = "gradients",
    [PURPOSE_GRAD_WINDOW] = "whole-unit gradients", [PURPOSE_STAGING] = "staging",
    [PURPOSE_LANDED] = "landed gradients", [PURPOSE_ACTIVATIONS] = "activations",
    [PURPOSE_STREAM] = "residual stream", [PURPOSE_WORK] = "work", [PURPOSE_TOKENS] = "tokens",
    [PURPOSE_CACHE] = "keys and values", [PURPOSE_METRICS] = "results"};
/* clang-format on */

const char *plan_op_name(enum op op)
{
  return op_rows[op].name;
}
const char *plan_tier_name(enum plan_tier tier)
{
  return tier_names[tier];
}
const char *plan_lane_name(enum plan_lane lane)
{
  return lane_names[lane];
}
const char *plan_purpose_name(enum plan_purpose purpose)
{
  return purpose_names[purpose];
}

int plan_root(const struct plan *plan, int buffer, int64_t *offset)
{
  int64_t begin = 0;
  for (; plan->buffer[buffer].parent >= 0; buffer = plan->buffer[buffer].parent)
    begin += plan->buffer[buffer].parent_offset;
  if (offset)
    *offset = begin;
  return buffer;
}

bool plan_is_on_host(const struct plan *plan, int unit)
{
  return unit < 0 ? plan->on_host[LANE_HOST] : plan->unit[unit].policy.host;
}

bool plan_encodes(const struct plan *plan)
{
  for (int u = 0; u < plan->input.model->units && plan->input.mode == PLAN_TRAIN; u++)
    if (plan->unit[u].layout.trained > 0 &&
        !(plan->unit[u].policy.grads.ops->traits & CODEC_IDENTITY))
      return true;
  return false;
}

bool plan_keeps_residuals(const struct plan *plan)
{
  for (int u = 0; u < plan->input.model->units; u++)
    if (plan->unit[u].residual >= 0)
      return true;
  return false;
}

enum plan_lane plan_lane_of(const struct plan *plan, enum op op, int unit)
{
  const bool host = plan_is_on_host(plan, unit);
  if (op == OP_SQUARES && host && plan->squares >= 0)
    return LANE_HOST;
  return op == OP_UPDATE && plan->on_host[LANE_HOST] && !host ? LANE_REDUCE : op_rows[op].lane;
}

struct mesh plan_mesh(const struct plan_input *input)
{
  const struct deck_shape *shape = &input->shape;
  const int data = deck_data_ranks(shape), local = deck_local_data_ranks(shape),
            shard = input->strategy == STRATEGY_NO_SHARD ? data : shape->group,
            across = shape->two_hops && shard > local ? shard / local : 1;
  return (struct mesh){.size = {[AXIS_PIPELINE] = shape->mesh.pipeline,
                                [AXIS_REPLICA] = data / shard,
                                [AXIS_ACROSS] = across,
                                [AXIS_NODE] = shard / across / shape->mesh.expert,
                                [AXIS_EXPERT] = shape->mesh.expert,
                                [AXIS_CONTEXT] = shape->mesh.context,
                                [AXIS_TENSOR] = shape->mesh.tensor}};
}

bool plan_spans_nodes(const struct plan *plan)
{
  return mesh_ranks(&plan->mesh, MESH_ACROSS) > 1;
}

bool plan_gathers_by_nodes(const struct plan *plan, const struct instr *instr)
{
  return op_rows[instr->op].collective == COLLECTIVE_GATHER && plan_spans_nodes(plan) &&
         instr->attr.group == MESH_SHARD;
}

bool plan_is_varying(const struct instr *instr)
{
  const struct codec_ops *ops = instr->attr.codec.ops;
  return ops && ops->traits & CODEC_VARIABLE;
}

double plan_sent_share(const struct instr *instr)
{
  const struct codec *codec = &instr->attr.codec;
  const int64_t n = 1 << 20;
  return codec->ops ? codec_usual_bytes(codec, n) / (double)codec->ops->bytes(codec, n) : 1;
}

int plan_instr_ranks(const struct plan *plan, const struct instr *instr)
{
  return op_rows[instr->op].collective == COLLECTIVE_NONE
             ? 1
             : mesh_ranks(&plan->mesh, instr->attr.group);
}

int64_t plan_instr_bytes(const struct plan *plan, const struct instr *instr)
{
  const int whole = instr->use[op_rows[instr->op].whole].buffer;
  return whole < 0 ? 0 : plan->buffer[whole].bytes;
}

int64_t plan_sampled(int64_t n)
{
  return n < PLAN_SAMPLE ? n : PLAN_SAMPLE;
}

int64_t plan_sample_bytes(int64_t n)
{
  const int64_t bytes =
      plan_sampled(n) * (int64_t)sizeof(float) + (int64_t)sizeof(struct plan_sample);
  return (bytes + 255) / 256 * 256;
}

int64_t plan_tier_bytes(const struct plan *plan, enum plan_tier tier)
{
  return plan->persistent_bytes[tier] + plan->transient_bytes[tier];
}

int64_t plan_shared_bytes(const struct plan *plan)
{
  return plan->persistent_bytes[TIER_SHARED] +
         mesh_ranks(&plan->mesh, MESH_SHARD) * plan->transient_bytes[TIER_SHARED];
}

bool plan_gathers_codes(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->unit[unit].policy.window != plan->unit[unit].policy.compute;
}

enum fp8_use plan_op_fp8(const struct plan *plan, enum op op, int unit)
{
  return op_rows[op].fp8 ? plan->input.model->unit[unit].fp8 : FP8_NOTHING;
}

static uint64_t hash_settings(uint64_t hash, const struct optim_settings *optim)
{
  const double number[] = {optim->beta1, optim->beta2,    optim->eps,
                           optim->decay, optim->momentum, optim->nesterov};
  hash = hash_bytes(hash, number, sizeof number);
  return hash_bytes(hash, &optim->exempt_kinds, sizeof optim->exempt_kinds);
}

uint64_t plan_collective_hash(const struct plan *plan)
{
  uint64_t hash = hash_settings(HASH_START, &plan->input.optim);
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    const bool collective = op_rows[instr->op].collective != COLLECTIVE_NONE;
    if (!collective && !op_rows[instr->op].updates && !instr->attr.fp8 && instr->attr.beta == 0)
      continue;
    const bool reads_others = instr->op == OP_SUM_SHARED;
    const struct attributes *attr = &instr->attr;
    const int64_t bytes = collective ? plan_instr_bytes(plan, instr) : 0,
                  place =
                      reads_others ? plan->buffer[instr->use[SUM_SHARED_SENT].buffer].offset : 0;
    /* clang-format off */
    const int64_t word[] = {
        instr->op, instr->unit, instr->stage, plan_instr_ranks(plan, instr), bytes, attr->group,
        attr->blocks, attr->optimizer, attr->stochastic, attr->fp8, (int64_t)attr->seed,
        instr->lane, place};
    /* clang-format on */
    hash = hash_bytes(hash, word, sizeof word);
    hash = hash_bytes(hash, &instr->attr.clip, sizeof instr->attr.clip);
    hash = hash_bytes(hash, &instr->attr.lr_scale, sizeof instr->attr.lr_scale);
    hash = hash_bytes(hash, &instr->attr.beta, sizeof instr->attr.beta);
    hash = codec_hash(hash, &instr->attr.codec);
  }
  return hash;
}

enum status plan_create(const struct plan_input *input, struct plan **out)
{
  struct plan *plan = NULL;
  const enum status status =
      plan_build(input, &plan) ?: plan_place(plan) ?: plan_order(plan) ?: plan_verify(plan);
  if (status)
    plan_destroy(plan);
  else
    *out = plan;
  return status;
}

void plan_destroy(struct plan *plan)
{
  if (!plan)
    return;
  for (int u = 0; plan->unit && u < plan->input.model->units; u++) {
    layout_unit_free(&plan->unit[u].layout);
    optim_segments_destroy(&plan->unit[u].segments);
  }
  mem_free(plan->unit);
  mem_free(plan->instr);
  mem_free(plan->buffer);
  mem_free(plan->batch);
  mem_free(plan);
}
