#include "plan/policy.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

/* The first `resident` units stay on the device, unless the group shares parameters or adds up
 * gradients on the host. */
static bool is_on_host(const struct deck_policy *asked, bool shares, int unit)
{
  return asked->host_state && (shares || unit >= asked->resident);
}

/* A share of the units in host memory, spread evenly. */
static bool is_on_disk(const struct deck_policy *asked, int unit)
{
  const int64_t nth = unit - asked->resident;
  return (int64_t)(asked->nvme_state * (double)(nth + 1)) >
         (int64_t)(asked->nvme_state * (double)nth);
}

static enum deck_keep keep_of(const struct plan_input *input, int unit)
{
  const struct deck_pattern *pattern = &input->policy.activations;
  const bool block = unit > 0 && unit <= input->model->blocks;
  return block && pattern->n > 0 ? (enum deck_keep)pattern->of[(unit - 1) % pattern->n] : KEEP_ACTIVATIONS;
}

/* "topk+int8": a codec, and that of the values that it selects. */
static enum status make_codec(const struct deck_codec *asked, bool feedback, struct codec *out)
{
  const struct codec_settings settings = {.block = asked->block,
                                          .levels = asked->levels,
                                          .rank = asked->rank,
                                          .density = asked->density,
                                          .threshold = asked->threshold};
  char name[64];
  if (asked->values)
    snprintf(name, sizeof name, "%s+%s", asked->codec ? asked->codec : "none", asked->values);
  return codec_make(asked->values ? name : asked->codec, &settings, feedback, out);
}

enum status unit_policy_residual(const char *feedback, struct codec *out)
{
  if (feedback)
    return codec_make(strcmp(feedback, "fp32") ? feedback : NULL, NULL, false, out);
  *out = (struct codec){0};
  return STATUS_OK;
}

static int group_of(const struct plan_input *input)
{
  return input->strategy == STRATEGY_NO_SHARD ? input->ranks : input->shape.group;
}

enum across unit_policy_across(const struct plan_input *input)
{
  const int local = input->shape.local_ranks;
  if (!input->policy.across_nodes || input->ranks == 1)
    return ACROSS_RANKS;
  if (local == 0 || local >= input->ranks)
    return ACROSS_NOTHING;
  if (group_of(input) < input->ranks)
    return ACROSS_REPLICAS;
  return local > 1 ? ACROSS_NODES : ACROSS_RANKS;
}

struct encoded unit_policy_encoded(const struct plan_input *input)
{
  const struct deck_shape *shape = &input->shape;
  switch (unit_policy_across(input)) {
  case ACROSS_REPLICAS: return (struct encoded){.parts = shape->group, .blocks = 1};
  case ACROSS_NODES:
    return (struct encoded){.parts = shape->local_ranks,
                            .blocks = input->ranks / shape->local_ranks};
  default: return (struct encoded){.parts = 1, .blocks = 1};
  }
}

static enum status check_across(const struct plan_input *input, enum across across)
{
  const int ranks = input->ranks, group = group_of(input), local = input->shape.local_ranks;
  if (!input->policy.across_nodes || across == ACROSS_NOTHING)
    return STATUS_OK;
  if (ranks % local != 0)
    return status_set(STATUS_USAGE,
                      "compress.across is node, but %d ranks do not fill nodes of %d: start the "
                      "same number of ranks on every node, or set compress.across=ranks",
                      ranks, local);
  if (across == ACROSS_REPLICAS && group != local)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.across is node, but groups have %d ranks and nodes have %d: set "
                      "shard.group=node, or compress.across=ranks",
                      group, local);
  if (input->policy.host_state && input->policy.cpu_reduce)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.across=node is for gradients that devices reduce: set "
                      "transfer.grads=gpu_reduce, or compress.across=ranks");
  return STATUS_OK;
}

/* The sum of a code of each member fits into 8 bits. */
static enum status check_members(const struct plan_input *input, enum across across,
                                 const char *codec)
{
  const int group = group_of(input), replicas = input->ranks / group;
  const int all = across == ACROSS_NODES      ? input->ranks / input->shape.local_ranks
                  : across == ACROSS_REPLICAS ? replicas
                  : group > replicas          ? group
                                              : replicas;
  if (all <= CODEC_MOST_PARTS)
    return STATUS_OK;
  return status_set(STATUS_UNSUPPORTED,
                    "compress.grads.codec=%s with %d ranks in a group: it has levels for at most "
                    "%d, so use another codec, or compress.across=node",
                    codec, all, CODEC_MOST_PARTS);
}

static enum status check_codecs(const struct plan_input *input)
{
  const struct deck_policy *asked = &input->policy;
  const bool host = asked->host_state && asked->cpu_reduce;
  struct codec codec, residual;
  enum status status = make_codec(&asked->grads, asked->feedback != NULL, &codec);
  if (!status)
    status = unit_policy_residual(asked->feedback, &residual);
  if (status || input->ranks == 1 || codec.ops->traits & CODEC_IDENTITY)
    return status;
  const enum across across = unit_policy_across(input);
  status = check_across(input, across);
  if (status || across == ACROSS_NOTHING)
    return status;
  if (asked->feedback && across == ACROSS_RANKS && group_of(input) < input->ranks)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.feedback=%s with %d replicas of shards, whose sums are encoded "
                      "twice: use another shard.strategy than hybrid_shard, "
                      "compress.across=node, or compress.feedback=off",
                      asked->feedback, input->shape.replicas);
  if (host && asked->feedback)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.feedback=%s is for gradients that devices reduce: use "
                      "transfer.grads=gpu_reduce, or compress.feedback=off",
                      asked->feedback);
  if (codec.ops->traits & CODEC_NEEDS_MAX)
    status = check_members(input, across, codec.ops->name);
  if (status)
    return status;
  if (host && (codec_work(&codec, 1, 1) > 0 || codec.ops->traits & CODEC_NEEDS_MAX))
    return status_set(STATUS_UNSUPPORTED,
                      "compress.grads.codec=%s needs memory to work in, which hosts that reduce "
                      "gradients do not have: use transfer.grads=gpu_reduce, or another codec",
                      codec.ops->name);
  return STATUS_OK;
}

enum status unit_policy_check(const struct plan_input *input)
{
  const struct deck_policy *asked = &input->policy;
  const struct optim_ops *ops = optim_ops(input->optim.name);
  const bool shards =
      input->strategy == STRATEGY_FULL_SHARD || input->strategy == STRATEGY_HYBRID_SHARD;
  if (asked->host_state && !shards && input->ranks > 1)
    return status_set(STATUS_USAGE,
                      "masters in host memory are sharded: use full_shard or hybrid_shard");
  if (asked->host_state && asked->resident >= input->model->units)
    return status_set(STATUS_USAGE,
                      "tiers.resident is %lld, but the model has %d units, of which one at least "
                      "is to be in host memory: lower it, or set tiers.params=device and "
                      "tiers.optimizer=device",
                      (long long)asked->resident, input->model->units);
  if (input->mode == PLAN_TRAIN && ops->matrix && (asked->host_state || asked->immediate))
    return status_set(STATUS_UNSUPPORTED,
                      "optim.name=%s updates whole matrices, on the device and after the norm: set "
                      "tiers.optimizer and tiers.params to device and optim.update to deferred",
                      ops->name);
  if (asked->moments != DTYPE_F32 && asked->moments != DTYPE_BF16 && asked->moments != DTYPE_F16)
    return status_set(STATUS_UNSUPPORTED, "moments in %s: they are kept in fp32, bf16 or fp16",
                      dtype_name(asked->moments));
  return check_codecs(input);
}

struct unit_policy unit_policy_make(const struct plan_input *input, int unit)
{
  const struct deck_policy *asked = &input->policy;
  const int group = group_of(input);
  const bool meets = asked->host_state && group > 1, full = meets && asked->params_full,
             reduces = meets && asked->cpu_reduce, narrow = input->device->compute != DTYPE_F32;
  struct unit_policy policy = {.host = is_on_host(asked, full || reduces, unit),
                               .window = input->device->compute,
                               .state = asked->moments,
                               .each_micro =
                                   asked->host_state || (group > 1 && asked->reduce_every_micro),
                               .immediate = asked->immediate,
                               .tight = asked->tight,
                               .keep = keep_of(input, unit)};
  (void)make_codec(&asked->grads, asked->feedback != NULL, &policy.grads); /* see unit_policy_check() */
  if (!(policy.grads.ops->traits & CODEC_IDENTITY))
    policy.across = unit_policy_across(input);
  if (policy.across == ACROSS_NOTHING)
    policy.grads = codec_as_it_is;
  else
    (void)unit_policy_residual(asked->feedback, &policy.residual);
  policy.disk = policy.host && is_on_disk(asked, unit);
  if (full)
    policy.working = WORKING_SHARED;
  else if (narrow && (policy.host || (!asked->host_state && asked->keep_working)))
    policy.working = WORKING_OWN;
  if (reduces)
    policy.sums = asked->one_node ? SUMS_SHARED : SUMS_HOST;
  return policy;
}
