#include "plan/vary.h"

#include <stdio.h>

#include "base/append.h"

static const char *const keys[VARY_CHANGES] = {
    [VARY_SHARD_ALL] = "shard.strategy=full_shard",
    [VARY_REDUCE_EACH] = "shard.reduce=micro",
    [VARY_STATE_HOST] = "tiers.params=host, tiers.optimizer=host",
    [VARY_PARAMS_SHARD] = "transfer.params=shard",
    [VARY_GRADS_DEVICE] = "transfer.grads=gpu_reduce",
    [VARY_WORKING_GATHER] = "tiers.working=gather",
    [VARY_RESIDENT_NONE] = "tiers.resident=0",
    [VARY_WORKSPACE_TIGHT] = "tiers.workspace=tight",
    [VARY_KEEP_DEVICE] = "tiers.activations=keep",
    [VARY_KEEP_HOST] = "tiers.activations=keep_host:2",
    [VARY_RECOMPUTE] = "tiers.activations=recompute",
    [VARY_INPUTS_HOST] = "tiers.activations=host",
    [VARY_INPUTS_NVME] = "tiers.activations=nvme",
    [VARY_INPUTS_BACK] = "tiers.activations=host",
    [VARY_RECOMPUTE_BACK] = "tiers.activations=recompute",
    [VARY_MOMENTS_BF16] = "optim.moments=bf16 (which changes the numbers)",
    [VARY_MOMENTS_NVME] = "optim.state=nvme",
    [VARY_MOMENTS_NVME_ALL] = "optim.state_share=1",
    [VARY_MOMENTS_HALF] = "optim.state_share=0.5",
    [VARY_MOMENTS_BACK] = "optim.state_share=0",
    [VARY_PREFETCH_NONE] = "shard.prefetch=0",
    [VARY_MICRO_ONE] = "data.micro_batch=1",
};

static bool set(bool *value, bool to)
{
  const bool changes = *value != to;
  *value = to;
  return changes;
}

static bool shard_all(struct plan_input *input)
{
  const bool same_group = input->shape.group == input->ranks; /* a larger one may span nodes, and share no memory */
  if (input->strategy == STRATEGY_FULL_SHARD || input->ranks == 1 || (input->shape.params_full && !same_group))
    return false;
  input->shape.one_node &= same_group;
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
static bool change_activations(struct plan_input *input, enum vary_change change)
{
  const struct deck_pattern *now = &input->shape.activations;
  const bool kept = deck_keeps(now, KEEP_ACTIVATIONS), kept_host = deck_keeps(now, KEEP_ACTIVATIONS_HOST);
  const bool recomputed = deck_keeps(now, KEEP_INPUT), inputs_host = deck_keeps(now, KEEP_INPUT_HOST);
  const bool in_host_memory = kept_host || inputs_host || (input->device->host_memory && (kept || recomputed));
  switch (change) {
  case VARY_KEEP_DEVICE: return kept_host && keep_as(input, "keep");
  case VARY_KEEP_HOST: return kept && !kept_host && !recomputed && !inputs_host && keep_as(input, "keep_host:2");
  case VARY_RECOMPUTE: return (kept || kept_host) && keep_as(input, "recompute");
  case VARY_INPUTS_HOST: return (kept || kept_host || recomputed) && keep_as(input, "host");
  case VARY_INPUTS_NVME: return in_host_memory && keep_as(input, "nvme");
  case VARY_INPUTS_BACK: return deck_keeps(now, KEEP_INPUT_NVME) && keep_as(input, "host");
  default: return deck_keeps(now, KEEP_INPUT_NVME) && keep_as(input, "recompute");
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

/* A share of them on NVMe. */
static bool move_moments(struct plan_input *input, bool may, double share)
{
  const bool changes = input->shape.host_state && may;
  input->shape.nvme_state = changes ? share : input->shape.nvme_state;
  return changes;
}

static bool shorten(struct plan_input *input, int64_t parts)
{
  int64_t *length = input->mode == PLAN_GENERATE ? &input->capacity : &input->shape.sequence;
  const bool changes = *length > 1;
  *length = (*length + parts - 1) / parts;
  if (input->mode == PLAN_GENERATE && input->shape.sequence > *length)
    input->shape.sequence = *length;
  return changes;
}

static bool fetch_late(struct plan_input *input)
{
  const bool changes = input->prefetch > 0;
  input->prefetch = 0;
  return changes;
}

/* Of training alone. */
static bool apply_to_training(const struct plan *plan, struct plan_input *input, enum vary_change change)
{
  struct deck_shape *shape = &input->shape;
  switch (change) {
  case VARY_REDUCE_EACH: return set(&shape->reduce_every_micro, true);
  case VARY_STATE_HOST: return move_state(input);
  case VARY_PARAMS_SHARD: return set(&shape->params_full, false);
  case VARY_GRADS_DEVICE: return set(&shape->cpu_reduce, false);
  case VARY_WORKING_GATHER: return set(&shape->keep_working, false) && input->device->compute != DTYPE_F32;
  case VARY_RESIDENT_NONE: return let_none_stay(input);
  case VARY_WORKSPACE_TIGHT: return plan->tight_saves > 0 && set(&shape->tight, true);
  case VARY_MOMENTS_BF16: return shrink_moments(input);
  case VARY_MOMENTS_NVME: return move_moments(input, shape->nvme_state == 0, 1);
  case VARY_MOMENTS_NVME_ALL: return move_moments(input, shape->nvme_state > 0 && shape->nvme_state < 1, 1);
  case VARY_MOMENTS_HALF: return move_moments(input, shape->nvme_state > 0.5, 0.5);
  case VARY_MOMENTS_BACK: return move_moments(input, shape->nvme_state > 0, 0);
  default: return change_activations(input, change);
  }
}

/* Whether it changes anything. */
static bool apply(const struct plan *plan, bool train, struct plan_input *input, enum vary_change change)
{
  switch (change) {
  case VARY_SHARD_ALL: return shard_all(input);
  case VARY_PREFETCH_NONE: return fetch_late(input);
  case VARY_MICRO_ONE: return take_one_sequence(input);
  case VARY_LENGTH_HALF: return shorten(input, 2);
  case VARY_LENGTH_EIGHTH: return shorten(input, 8);
  default: return train && apply_to_training(plan, input, change);
  }
}

struct variant vary(int n, const struct plan *const plans[], unsigned changes)
{
  struct variant variant = {.n = n};
  const bool train = plans[0]->input.mode == PLAN_TRAIN;
  for (int p = n - 1; p >= 0; p--) { /* evaluation during training lies in the training's storage, and changes with it */
    variant.input[p] = plans[p]->input;
    variant.made = 0;
    for (int c = 0; c < VARY_CHANGES; c++)
      if (changes & VARY_BIT(c) && apply(plans[0], train, &variant.input[p], (enum vary_change)c))
        variant.made |= VARY_BIT(c);
  }
  return variant;
}

enum status vary_build(struct variant *variant)
{
  enum status status = STATUS_OK;
  for (int p = 0; p < variant->n && variant->made && !status; p++)
    status = plan_create(&variant->input[p], &variant->plan[p]);
  if (status)
    vary_destroy(variant);
  return status == STATUS_USAGE ? STATUS_OK : status;
}

void vary_destroy(struct variant *variant)
{
  for (int p = 0; p < variant->n; p++) {
    plan_destroy(variant->plan[p]);
    variant->plan[p] = NULL;
  }
}

static void name_change(const struct variant *variant, int change, char *out, size_t size)
{
  const struct plan_input *input = &variant->input[0];
  if (keys[change])
    snprintf(out, size, "%s", keys[change]);
  else if (input->mode == PLAN_GENERATE)
    snprintf(out, size, "context=%lld", (long long)input->capacity);
  else
    snprintf(out, size, "data.sequence=%lld", (long long)input->shape.sequence);
}

struct variant_name vary_name(const struct variant *variant)
{
  struct variant_name name = {.text = ""};
  const char *between = "";
  unsigned made = variant->made;
  for (int c = 0; c < VARY_CHANGES; c++)
    if (made & VARY_BIT(c)) {
      char key[64];
      made &= ~VARY_BIT(c);
      name_change(variant, c, key, sizeof key);
      append_text(name.text, sizeof name.text, "%s%s", between, key);
      between = made & (made - 1) ? ", " : " and ";
    }
  return name;
}
