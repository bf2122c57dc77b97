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

static enum status check_codecs(const struct plan_input *input)
{
  const struct deck_policy *asked = &input->policy;
  const bool host = asked->host_state && asked->cpu_reduce;
  struct codec codec, residual;
  enum status status = make_codec(&asked->grads, asked->feedback != NULL, &codec);
  if (!status)
    status = unit_policy_residual(asked->feedback, &residual);
  if (status || input->ranks == 1)
    return status;
  if (asked->feedback && input->strategy != STRATEGY_NO_SHARD && input->shape.replicas > 1)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.feedback=%s with %d replicas of shards, whose sums are encoded "
                      "twice: use another shard.strategy than hybrid_shard, or "
                      "compress.feedback=off",
                      asked->feedback, input->shape.replicas);
  if (host && asked->feedback)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.feedback=%s is for gradients that devices reduce: use "
                      "transfer.grads=gpu_reduce, or compress.feedback=off",
                      asked->feedback);
  if (host && codec_work(&codec, 1, 1) > 0)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.grads.codec=%s needs memory to work in, which hosts that reduce "
                      "gradients do not have: use transfer.grads=gpu_reduce, or another codec",
                      codec.ops->name);
  return STATUS_OK;
}

static bool gathers(const struct plan_input *input)
{
  return input->strategy != STRATEGY_NO_SHARD && input->shape.group > 1;
}

static bool keeps_units(enum deck_strategy strategy)
{
  return strategy == STRATEGY_SHARD_GRAD_OP || strategy == STRATEGY_SHARD_OPTIM;
}

/* Whether masters are gathered, by the strategy and between the tiers. */
static enum status check_gathers(const struct plan_input *input)
{
  const struct deck_policy *asked = &input->policy;
  const char *name = asked->weights.codec;
  if (input->strategy == STRATEGY_NO_SHARD)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s is for parameters that are gathered, and no_shard "
                      "gathers none: use another shard.strategy, or compress.weights.codec=none",
                      name);
  if (asked->host_state && asked->params_full)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s is for parameters that are gathered, and with "
                      "transfer.params=full each rank copies whole units: use "
                      "transfer.params=shard, or compress.weights.codec=none",
                      name);
  if (asked->keep_working)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s encodes masters, so that a working copy would not "
                      "be used: use tiers.working=gather, or compress.weights.codec=none",
                      name);
  if (asked->difference && !keeps_units(input->strategy))
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.difference=true needs whole units from step to step: use "
                      "shard.strategy=shard_grad_op or shard_optim, or "
                      "compress.weights.difference=false");
  return STATUS_OK;
}

/* Messages must be smaller than what they stand for. */
static enum status check_weights(const struct plan_input *input)
{
  enum { MANY = 1 << 20 };
  const struct deck_policy *asked = &input->policy;
  const enum dtype window = input->device->compute;
  struct codec codec;
  if (!asked->weights.codec)
    return STATUS_OK;
  enum status status = make_codec(&asked->weights, asked->difference, &codec);
  if (!status && input->ranks > 1)
    status = check_gathers(input);
  if (status || !gathers(input))
    return status;
  if (!codec.ops->decode)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s is for sums of gradients: use another codec",
                      codec.ops->name);
  if (codec.ops->traits & CODEC_SPARSE && !asked->difference)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s would send some of the parameters and none of the "
                      "others: use compress.weights.difference=true, or another codec",
                      codec.ops->name);
  if (codec.ops->bytes(&codec, MANY) >= MANY * (int64_t)dtype_size(window))
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s saves nothing, because parameters are gathered in "
                      "%s: use another codec, or none",
                      codec.ops->name, dtype_name(window));
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
  const enum status status = check_codecs(input);
  return status ? status : check_weights(input);
}

struct unit_policy unit_policy_make(const struct plan_input *input, int unit)
{
  const struct deck_policy *asked = &input->policy;
  const int group = input->strategy == STRATEGY_NO_SHARD ? input->ranks : input->shape.group;
  const bool meets = asked->host_state && group > 1, full = meets && asked->params_full,
             reduces = meets && asked->cpu_reduce, narrow = input->device->compute != DTYPE_F32,
             coded = asked->weights.codec && gathers(input);
  struct unit_policy policy = {.host = is_on_host(asked, full || reduces, unit),
                               .window = input->device->compute,
                               .state = asked->moments,
                               .each_micro =
                                   asked->host_state || (group > 1 && asked->reduce_every_micro),
                               .immediate = asked->immediate,
                               .tight = asked->tight,
                               .keep = keep_of(input, unit)};
  (void)make_codec(&asked->grads, asked->feedback != NULL, &policy.grads); /* see unit_policy_check() */
  (void)unit_policy_residual(asked->feedback, &policy.residual);
  policy.apart = coded;
  policy.difference = coded && asked->difference;
  if (coded && input->mode == PLAN_TRAIN)
    (void)make_codec(&asked->weights, asked->difference, &policy.weights);
  policy.disk = policy.host && is_on_disk(asked, unit);
  if (full)
    policy.working = WORKING_SHARED;
  else if (narrow && !coded && (policy.host || (!asked->host_state && asked->keep_working)))
    policy.working = WORKING_OWN;
  if (reduces)
    policy.sums = asked->one_node ? SUMS_SHARED : SUMS_HOST;
  return policy;
}
