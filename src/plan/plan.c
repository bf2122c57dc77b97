#include "plan/plan.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "plan/internal.h"

const struct op_traits op_traits[OP_COUNT] = {
    [OP_LOAD] = {"LOAD", LANE_IO, "w", "", false, false},
    [OP_GATHER] = {"GATHER", LANE_GATHER, "rw", "", true, true},
    [OP_EMBED] = {"EMBED", LANE_COMPUTE, "rrw", "", false, false},
    [OP_FORWARD] = {"FORWARD", LANE_COMPUTE, "rrww", "w", false, false},
    [OP_RECOMPUTE] = {"RECOMPUTE", LANE_COMPUTE, "rrww", "", false, false},
    [OP_LOSS] = {"LOSS", LANE_COMPUTE, "rrr*w", "w*", false, false},
    [OP_LOGITS] = {"LOGITS", LANE_COMPUTE, "rrww", "", false, false},
    [OP_DECODE] = {"DECODE", LANE_COMPUTE, "rrwwa", "", false, false},
    [OP_BACKWARD] = {"BACKWARD", LANE_COMPUTE, "rrraw", "*", false, false},
    [OP_EMBED_BACKWARD] = {"EMBED_BACKWARD", LANE_COMPUTE, "rr*", "", false, false},
    [OP_RELEASE] = {"RELEASE", LANE_COMPUTE, "r", "", false, false},
    [OP_REDUCE] = {"REDUCE", LANE_REDUCE, "aw*", "", true, true},
    [OP_REPLICA_REDUCE] = {"REPLICA_REDUCE", LANE_REDUCE, "aww", "", true, true},
    [OP_GATHER_GRADS] = {"GATHER_GRADS", LANE_REDUCE, "rw", "", true, true},
    [OP_SQUARES] = {"SQUARES", LANE_REDUCE, "r*", "", false, false},
    [OP_METRICS] = {"METRICS", LANE_REDUCE, "a*", "r", true, false},
    [OP_ADAM] = {"ADAM", LANE_HOST, "rraaa", "w", false, false},
    [OP_FETCH] = {"FETCH", LANE_H2D, "rw", "", false, false},
    [OP_PUBLISH] = {"PUBLISH", LANE_GATHER, "rw", "", true, true},
    [OP_SAVE_ACT] = {"SAVE_ACT", LANE_D2H, "rw", "", false, false},
    [OP_WRITE_ACT] = {"WRITE_ACT", LANE_DISK, "rw", "", false, false},
    [OP_READ_ACT] = {"READ_ACT", LANE_DISK, "rw", "", false, false},
    [OP_FETCH_ACT] = {"FETCH_ACT", LANE_H2D, "rw", "", false, false},
    [OP_FETCH_GRAD] = {"FETCH_GRAD", LANE_D2H, "rw", "", false, false},
    [OP_ACCUMULATE] = {"ACCUMULATE", LANE_HOST, "ra", "", false, false},
    [OP_READ_STATE] = {"READ_STATE", LANE_DISK, "rrww", "", false, false},
    [OP_WRITE_STATE] = {"WRITE_STATE", LANE_DISK, "rrww", "", false, false},
    [OP_ADAM_NOW] = {"ADAM_NOW", LANE_HOST, "raaa", "w", false, false},
    [OP_FETCH_LOSS] = {"FETCH_LOSS", LANE_D2H, "rw", "", false, false},
    [OP_SUM_SHARED] = {"SUM_SHARED", LANE_REDUCE, "a*", "", true, false},
};

static const char *const lane_names[LANE_COUNT] = {
    [LANE_COMPUTE] = "compute", [LANE_GATHER] = "gather", [LANE_REDUCE] = "reduce", [LANE_HOST] = "host",
    [LANE_IO] = "io",           [LANE_H2D] = "h2d",       [LANE_D2H] = "d2h",       [LANE_DISK] = "disk",
};

static const char *const purpose_names[PURPOSE_COUNT] = {
    [PURPOSE_PARAMS] = "parameters",
    [PURPOSE_WINDOW] = "gathered parameters",
    [PURPOSE_WORKING] = "working copy",
    [PURPOSE_MOMENTS] = "moments",
    [PURPOSE_GRADS] = "gradients",
    [PURPOSE_GRAD_WINDOW] = "whole-unit gradients",
    [PURPOSE_STAGING] = "staging",
    [PURPOSE_LANDED] = "landed gradients",
    [PURPOSE_ACTIVATIONS] = "activations",
    [PURPOSE_STREAM] = "residual stream",
    [PURPOSE_WORK] = "work",
    [PURPOSE_TOKENS] = "tokens",
    [PURPOSE_CACHE] = "keys and values",
    [PURPOSE_METRICS] = "results",
};

const char *plan_op_name(enum op op)
{
  return op_traits[op].name;
}
const char *plan_lane_name(enum plan_lane lane)
{
  return lane_names[lane];
}
const char *plan_purpose_name(enum plan_purpose purpose)
{
  return purpose_names[purpose];
}

void plan_instr_name(const struct plan *plan, int index, char *out, size_t size)
{
  const struct instr *instr = &plan->instr[index];
  char micro[16] = "";
  if (instr->micro >= 0)
    snprintf(micro, sizeof micro, " m%d", instr->micro);
  snprintf(out, size, "%s%s%s%s (#%d, %s)", op_traits[instr->op].name, instr->unit >= 0 ? " " : "",
           instr->unit >= 0 ? plan->input.model->unit[instr->unit].name : "", micro, index, lane_names[instr->lane]);
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
  const struct deck_shape *shape = &plan->input.shape;
  return shape->host_state && (unit < 0 || unit >= shape->resident);
}

enum plan_lane plan_lane_of(const struct plan *plan, enum op op, int unit)
{
  const bool host = plan_is_on_host(plan, unit);
  if (op == OP_SQUARES && host && plan->squares >= 0)
    return LANE_HOST;
  return (op == OP_ADAM || op == OP_ADAM_NOW) && plan->on_host[LANE_HOST] && !host ? LANE_REDUCE : op_traits[op].lane;
}

enum plan_part plan_op_part(enum op op)
{
  switch (op) {
  case OP_FETCH:
  case OP_FETCH_ACT:
  case OP_SAVE_ACT:
  case OP_FETCH_GRAD:
  case OP_FETCH_LOSS: return PART_COPY;
  case OP_READ_ACT:
  case OP_WRITE_ACT:
  case OP_READ_STATE:
  case OP_WRITE_STATE: return PART_DISK;
  case OP_ADAM:
  case OP_ADAM_NOW:
  case OP_ACCUMULATE: return PART_UPDATE;
  default: return op_traits[op].collective ? PART_COMM : PART_NOTHING;
  }
}

int plan_instr_ranks(const struct plan *plan, const struct instr *instr)
{
  const struct deck_shape *shape = &plan->input.shape;
  switch (instr->op) {
  case OP_GATHER: return plan->input.strategy == STRATEGY_NO_SHARD ? 1 : shape->group;
  case OP_PUBLISH:
  case OP_SUM_SHARED:
  case OP_REDUCE: return shape->group;
  case OP_REPLICA_REDUCE: return shape->replicas;
  case OP_GATHER_GRADS: return plan->input.strategy == STRATEGY_NO_SHARD ? shape->group : shape->replicas;
  case OP_METRICS: return shape->ranks;
  default: return 1;
  }
}

bool plan_op_sums(enum op op)
{
  return op == OP_REDUCE || op == OP_REPLICA_REDUCE || op == OP_SUM_SHARED;
}

int64_t plan_instr_bytes(const struct plan *plan, const struct instr *instr)
{
  const bool gathers =
      instr->op == OP_GATHER || instr->op == OP_GATHER_GRADS || instr->op == OP_PUBLISH;
  const int64_t bytes = plan->buffer[instr->use[gathers ? 1 : 0].buffer].bytes;
  return plan_op_sums(instr->op) ? bytes / (int64_t)sizeof(float) * (int64_t)dtype_size(instr->wire)
                                 : bytes;
}

int64_t plan_tier_bytes(const struct plan *plan, enum plan_tier tier)
{
  return plan->persistent_bytes[tier] + plan->transient_bytes[tier];
}

int64_t plan_shared_bytes(const struct plan *plan)
{
  return plan->persistent_bytes[TIER_SHARED] + plan->input.shape.group * plan->transient_bytes[TIER_SHARED];
}

uint64_t plan_collective_hash(const struct plan *plan)
{
  uint64_t hash = HASH_START;
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    if (!op_traits[instr->op].collective)
      continue;
    const int64_t place = instr->op == OP_SUM_SHARED ? plan->buffer[instr->use[0].buffer].offset : 0;
    const int64_t word[] = {instr->op,
                            instr->unit,
                            plan_instr_ranks(plan, instr),
                            plan_instr_bytes(plan, instr),
                            instr->wire,
                            instr->lane,
                            place};
    hash = hash_bytes(hash, word, sizeof word);
  }
  return hash;
}

enum status plan_create(const struct plan_input *input, struct plan **out)
{
  struct plan *plan;
  enum status status = plan_build(input, &plan);
  if (status)
    return status;
  status = plan_place(plan);
  if (!status)
    status = plan_order(plan);
  if (!status)
    status = plan_verify(plan);
  if (status) {
    plan_destroy(plan);
    return status;
  }
  *out = plan;
  return STATUS_OK;
}

void plan_destroy(struct plan *plan)
{
  if (!plan)
    return;
  for (int u = 0; plan->layout && u < plan->input.model->units; u++)
    layout_unit_free(&plan->layout[u]);
  mem_free(plan->instr);
  mem_free(plan->buffer);
  mem_free(plan->master);
  mem_free(plan->moment1);
  mem_free(plan->moment2);
  mem_free(plan->working);
  mem_free(plan->shared);
  mem_free(plan->owned);
  mem_free(plan->frozen);
  mem_free(plan->frozen_owned);
  mem_free(plan->layout);
  mem_free(plan->tokens);
  mem_free(plan);
}
