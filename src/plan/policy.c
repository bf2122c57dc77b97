#include "plan/policy.h"

#include <fnmatch.h>
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

/* "topk+int8": a codec, and that of the values that it selects. NULL: none. */
static const char *name_of(const struct deck_codec *asked, char *text, size_t size)
{
  if (!asked->values)
    return asked->codec;
  snprintf(text, size, "%s+%s", asked->codec ? asked->codec : "none", asked->values);
  return text;
}

static struct codec_settings settings_of(const struct deck_codec *asked)
{
  return (struct codec_settings){.block = asked->block,
                                 .levels = asked->levels,
                                 .rank = asked->rank,
                                 .density = asked->density,
                                 .threshold = asked->threshold};
}

/* Of settings for several codecs: those that this one has, or those that it does not have. */
static struct codec_settings select_settings(struct codec_settings all, const struct codec *codec,
                                             bool has)
{
  const struct codec_settings *usual = &codec->ops->usual;
  const bool levels = usual->levels > 0 || (codec->values && codec->values->usual.levels > 0);
  return (struct codec_settings){
      .block = (usual->block > 0) == has ? all.block : 0,
      .levels = levels == has ? all.levels : 0,
      .rank = (usual->rank > 0) == has ? all.rank : 0,
      .density = (usual->density > 0) == has ? all.density : 0,
      .threshold = (usual->threshold > 0) == has ? all.threshold : 0,
  };
}

/* If units have codecs of their own, one of them at least has each setting. */
static enum status check_settings(const struct deck_policy *asked)
{
  char text[2 * DECK_UNIT_TEXT];
  struct codec codec;
  struct codec_settings rest = settings_of(&asked->grads);
  const char *name = name_of(&asked->grads, text, sizeof text);
  enum status status = STATUS_OK;
  for (int i = 0; i < asked->units.n && !status; i++) {
    status = codec_make(asked->units.of[i].codec, NULL, false, &codec);
    if (!status)
      rest = select_settings(rest, &codec, false);
  }
  return status ? status : codec_make(name, &rest, false, &codec);
}

enum status unit_policy_codec(const struct deck_policy *asked, const char *unit, struct codec *out)
{
  char text[2 * DECK_UNIT_TEXT];
  struct codec_settings settings = settings_of(&asked->grads);
  const char *name = name_of(&asked->grads, text, sizeof text);
  const bool feedback = asked->feedback != NULL;
  int i = 0;
  if (asked->warmup)
    return codec_make(NULL, NULL, false, out);
  while (i < asked->units.n && fnmatch(asked->units.of[i].pattern, unit, 0) != 0)
    i++;
  if (i < asked->units.n)
    name = asked->units.of[i].codec;
  enum status status = STATUS_OK;
  if (asked->units.n > 0) {
    status = codec_make(name, NULL, feedback, out);
    if (!status)
      settings = select_settings(settings, out, true);
  }
  return status ? status : codec_make(name, &settings, feedback, out);
}

enum status unit_policy_residual(const char *feedback, struct codec *out)
{
  if (feedback)
    return codec_make(strcmp(feedback, "fp32") ? feedback : NULL, NULL, false, out);
  *out = (struct codec){0};
  return STATUS_OK;
}

/* A unit's sums on hosts, which keep nothing for a codec. */
static enum status check_host_codec(const char *unit, const struct deck_policy *asked)
{
  struct codec codec;
  const enum status status = unit_policy_codec(asked, unit, &codec);
  if (!status && asked->sample > 0 && !(codec.ops->traits & CODEC_IDENTITY))
    return status_set(STATUS_UNSUPPORTED,
                      "compress.sample=%lld needs memory to work in, which hosts that reduce "
                      "gradients do not have: use transfer.grads=gpu_reduce, or compress.sample=0",
                      (long long)asked->sample);
  if (status || codec_work(&codec, 1, 1) == 0)
    return status;
  return status_set(STATUS_UNSUPPORTED,
                    "compress.grads.codec=%s needs memory to work in, which hosts that reduce "
                    "gradients do not have: use transfer.grads=gpu_reduce, or another codec",
                    codec.ops->name);
}

static enum status check_pattern(const struct model *model, const char *pattern)
{
  for (int u = 0; u < model->units; u++)
    if (fnmatch(pattern, model->unit[u].name, 0) == 0)
      return STATUS_OK;
  return status_set(STATUS_USAGE,
                    "compress.grads.units: no unit of this model is named \"%s\"; units are "
                    "\"%s\" to \"%s\"",
                    pattern, model->unit[0].name, model->unit[model->units - 1].name);
}

static enum status check_units(const struct plan_input *input, bool host)
{
  const struct deck_policy *asked = &input->policy;
  const struct model *model = input->model;
  struct codec codec;
  enum status status = check_settings(asked);
  for (int i = 0; i < asked->units.n && !status; i++)
    status = check_pattern(model, asked->units.of[i].pattern);
  for (int u = 0; u < model->units && !status; u++)
    status = host ? check_host_codec(model->unit[u].name, asked)
                  : unit_policy_codec(asked, model->unit[u].name, &codec);
  return status;
}

static enum status check_codecs(const struct plan_input *input)
{
  const struct deck_policy *asked = &input->policy;
  const bool host = asked->host_state && asked->cpu_reduce && input->ranks > 1;
  struct codec residual;
  enum status status = unit_policy_residual(asked->feedback, &residual);
  if (!status && asked->feedback && input->ranks > 1 && input->strategy != STRATEGY_NO_SHARD &&
      input->shape.replicas > 1)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.feedback=%s with %d replicas of shards, whose sums are encoded "
                      "twice: use another shard.strategy than hybrid_shard, or "
                      "compress.feedback=off",
                      asked->feedback, input->shape.replicas);
  if (!status && host && asked->feedback)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.feedback=%s is for gradients that devices reduce: use "
                      "transfer.grads=gpu_reduce, or compress.feedback=off",
                      asked->feedback);
  return status ? status : check_units(input, host);
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
  const int group = input->strategy == STRATEGY_NO_SHARD ? input->ranks : input->shape.group;
  const bool meets = asked->host_state && group > 1, full = meets && asked->params_full,
             reduces = meets && asked->cpu_reduce, narrow = input->device->compute != DTYPE_F32;
  struct unit_policy policy = {.host = is_on_host(asked, full || reduces, unit),
                               .window = input->device->compute,
                               .state = asked->moments,
                               .each_micro =
                                   asked->host_state || (group > 1 && asked->reduce_every_micro),
                               .immediate = asked->immediate,
                               .residual_tier = asked->residual,
                               .tight = asked->tight,
                               .sample = asked->sample,
                               .keep = keep_of(input, unit)};
  (void)unit_policy_codec(asked, input->model->unit[unit].name,
                          &policy.grads); /* see unit_policy_check() */
  if (!(policy.grads.ops->traits & CODEC_IDENTITY))
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
