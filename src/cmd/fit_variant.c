/* A plan once more, with other keys. */
#include "base/mem.h"
#include "cmd/fit_private.h"

static const char *const keys[FIT_CHANGES] = {
    [FIT_SHARD_ALL] = "shard.strategy=full_shard",
    [FIT_REDUCE_EACH] = "shard.reduce=micro",
    [FIT_STATE_HOST] = "tiers.params=host, tiers.optimizer=host",
    [FIT_PARAMS_SHARD] = "transfer.params=shard",
    [FIT_GRADS_DEVICE] = "transfer.grads=gpu_reduce",
    [FIT_WORKING_GATHER] = "tiers.working=gather",
    [FIT_RESIDENT_NONE] = "tiers.resident=0",
    [FIT_KEEP_DEVICE] = "tiers.activations=keep",
    [FIT_KEEP_HOST] = "tiers.activations=keep_host:2",
    [FIT_RECOMPUTE] = "tiers.activations=recompute",
    [FIT_INPUTS_HOST] = "tiers.activations=host",
    [FIT_INPUTS_NVME] = "tiers.activations=nvme",
    [FIT_MOMENTS_BF16] = "optim.moments=bf16 (which changes the numbers)",
    [FIT_MOMENTS_NVME] = "optim.state=nvme",
    [FIT_MICRO_ONE] = "data.micro_batch=1",
};

static bool set(bool *value, bool to)
{
  const bool changes = *value != to;
  *value = to;
  return changes;
}

static bool shard_all(struct plan_input *input)
{
  if (input->strategy == STRATEGY_FULL_SHARD || input->ranks == 1)
    return false;
  input->strategy = STRATEGY_FULL_SHARD;
  input->shape.group = input->ranks;
  input->shape.replicas = 1;
  return true;
}

static bool take_one_sequence(struct plan_input *input)
{
  if (input->shape.micro_batch == 1)
    return false;
  input->shape.micro_batch = 1;
  if (input->mode == PLAN_TRAIN)
    input->shape.micros = input->shape.rank_batch;
  else
    input->shape.rank_batch = 1;
  return true;
}

static bool keep_as(struct plan_input *input, const char *text)
{
  return deck_parse_activations(text, input->model->blocks, &input->shape.activations);
}

/* Only where it is less in the memory that is short. */
static bool change_activations(struct plan_input *input, enum fit_change change)
{
  const struct deck_pattern *now = &input->shape.activations;
  const bool kept = deck_keeps(now, KEEP_ACTIVATIONS), kept_host = deck_keeps(now, KEEP_ACTIVATIONS_HOST);
  const bool recomputed = deck_keeps(now, KEEP_INPUT), inputs_host = deck_keeps(now, KEEP_INPUT_HOST);
  switch (change) {
  case FIT_KEEP_DEVICE: return kept_host && keep_as(input, "keep");
  case FIT_KEEP_HOST: return kept && !kept_host && !recomputed && !inputs_host && keep_as(input, "keep_host:2");
  case FIT_RECOMPUTE: return (kept || kept_host) && keep_as(input, "recompute");
  case FIT_INPUTS_HOST: return (kept || kept_host || recomputed) && keep_as(input, "host");
  default: return (kept_host || inputs_host) && keep_as(input, "nvme");
  }
}

static bool move_state(struct plan_input *input)
{
  input->shape.keep_working = false;
  return set(&input->shape.host_state, true);
}

static bool let_none_stay(struct plan_input *input)
{
  const bool changes = input->shape.resident > 0;
  input->shape.resident = 0;
  return changes;
}

static bool shrink_moments(struct plan_input *input)
{
  const bool changes = input->shape.moments == DTYPE_F32;
  input->shape.moments = changes ? DTYPE_BF16 : input->shape.moments;
  return changes;
}

static bool move_moments(struct plan_input *input)
{
  const bool changes = input->shape.host_state && input->shape.nvme_state < 1;
  input->shape.nvme_state = changes ? 1 : input->shape.nvme_state;
  return changes;
}

/* Whether it changes anything. */
static bool apply(struct plan_input *input, enum fit_change change)
{
  struct deck_shape *shape = &input->shape;
  if (change == FIT_SHARD_ALL)
    return shard_all(input);
  if (change == FIT_MICRO_ONE)
    return take_one_sequence(input);
  if (input->mode != PLAN_TRAIN)
    return false;
  switch (change) {
  case FIT_REDUCE_EACH: return set(&shape->reduce_every_micro, true);
  case FIT_STATE_HOST: return move_state(input);
  case FIT_PARAMS_SHARD: return set(&shape->params_full, false);
  case FIT_GRADS_DEVICE: return set(&shape->cpu_reduce, false);
  case FIT_WORKING_GATHER: return set(&shape->keep_working, false) && input->device->compute != DTYPE_F32;
  case FIT_RESIDENT_NONE: return let_none_stay(input);
  case FIT_MOMENTS_BF16: return shrink_moments(input);
  case FIT_MOMENTS_NVME: return move_moments(input);
  default: return change_activations(input, change);
  }
}

struct fit_variant fit_vary(const struct plan *plan, unsigned changes)
{
  struct fit_variant variant = {.input = plan->input};
  for (int c = 0; c < FIT_CHANGES; c++)
    if (changes & FIT_BIT(c) && apply(&variant.input, (enum fit_change)c))
      variant.made |= FIT_BIT(c);
  return variant;
}

enum status fit_build(struct fit_variant *variant)
{
  return variant->made ? plan_create(&variant->input, &variant->plan) : STATUS_OK;
}

static void name_changes(unsigned made, FILE *to)
{
  const char *between = "";
  for (int c = 0; c < FIT_CHANGES; c++)
    if (made & FIT_BIT(c)) {
      made &= ~FIT_BIT(c);
      fprintf(to, "%s%s", between, keys[c]);
      between = made & (made - 1) ? ", " : " and ";
    }
}

void fit_print_variant(const struct fit_variant *variant, const struct plan *plan, const struct fit_room *room, FILE *to)
{
  fprintf(to, "with ");
  name_changes(variant->made, to);
  if (fit_device_is_short(plan, room))
    fprintf(to, " a rank needs %s of its GPU", mem_amount(plan_tier_bytes(variant->plan, TIER_DEVICE)).text);
  if (fit_device_is_short(plan, room) && (room->host_bytes > 0 || variant->made & FIT_BIT(FIT_STATE_HOST)))
    fprintf(to, ", and a node %s", mem_amount(fit_node_bytes(variant->plan, room)).text);
  if (!fit_device_is_short(plan, room))
    fprintf(to, " a node needs %s", mem_amount(fit_node_bytes(variant->plan, room)).text);
  fprintf(to, ": %s\n", fit_fits(variant->plan, room) ? "fits" : "does not fit either");
}

bool fit_needs_less(const struct plan *least, const struct plan *plan, const struct fit_room *room)
{
  if (fit_device_is_short(plan, room))
    return plan_tier_bytes(least, TIER_DEVICE) < plan_tier_bytes(plan, TIER_DEVICE) ||
           (room->host_bytes > 0 && fit_node_bytes(least, room) < fit_node_bytes(plan, room));
  return fit_node_bytes(least, room) < fit_node_bytes(plan, room);
}
