/* From the deck to the policy of each unit. No other file of src/plan reads deck_policy. */
#include "plan/policy.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
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
  const int block = input->model->unit[unit].block;
  return block >= 0 && pattern->n > 0 ? (enum deck_keep)pattern->of[block % pattern->n]
                                      : KEEP_ACTIVATIONS;
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

static enum status make_codec(const struct deck_codec *asked, bool feedback, struct codec *out)
{
  char text[2 * DECK_UNIT_TEXT];
  const struct codec_settings settings = settings_of(asked);
  return codec_make(name_of(asked, text, sizeof text), &settings, feedback, out);
}

/* Selects the settings of several codecs that this codec has, or those that it does not have. */
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

/* If units have codecs of their own, each setting must belong to at least one of them. */
static enum status check_settings(const struct deck_policy *asked)
{
  char text[2 * DECK_UNIT_TEXT];
  struct codec codec;
  struct codec_settings rest = settings_of(&asked->grads);
  const char *name = name_of(&asked->grads, text, sizeof text);
  enum status status = STATUS_OK;
  for (int i = 0; i < asked->units.n && !status; i++) {
    status = codec_make(asked->units.of[i].value, NULL, false, &codec);
    if (!status)
      rest = select_settings(rest, &codec, false);
  }
  return status ? status : codec_make(name, &rest, false, &codec);
}

/* NULL: no pattern matches the unit's name. */
static const char *value_of(const struct deck_units *units, const char *unit)
{
  for (int i = 0; i < units->n; i++)
    if (fnmatch(units->of[i].pattern, unit, 0) == 0)
      return units->of[i].value;
  return NULL;
}

/* deck_check() has seen that the values are numbers. */
static double lr_scale_of(const struct deck_policy *asked, const char *unit)
{
  const char *factor = value_of(&asked->lr_scale, unit);
  return factor ? strtod(factor, NULL) : 1;
}

enum status unit_policy_codec(const struct deck_policy *asked, const char *unit, struct codec *out)
{
  char text[2 * DECK_UNIT_TEXT];
  struct codec_settings settings = settings_of(&asked->grads);
  const char *own = value_of(&asked->units, unit);
  const char *name = own ? own : name_of(&asked->grads, text, sizeof text);
  const bool feedback = asked->feedback != NULL;
  if (asked->warmup)
    return codec_make(NULL, NULL, false, out);
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

struct encoded unit_policy_encoded(const struct plan_input *input)
{
  const struct mesh mesh = plan_mesh(input);
  if (!input->shape.two_hops)
    return (struct encoded){1, 1};
  return (struct encoded){mesh_ranks(&mesh, MESH_INSIDE), mesh_ranks(&mesh, MESH_ACROSS)};
}

/* The sum of a code of each member fits into 8 bits. */
static enum status check_members(const struct plan_input *input, const char *codec)
{
  const struct mesh mesh = plan_mesh(input);
  const int group = mesh_ranks(&mesh, MESH_SHARD) / unit_policy_encoded(input).parts,
            replicas = mesh_ranks(&mesh, MESH_REPLICA), all = group > replicas ? group : replicas;
  if (all <= CODEC_MOST_PARTS)
    return STATUS_OK;
  return status_set(STATUS_UNSUPPORTED,
                    "compress.grads.codec=%s with %d ranks in a group: it has levels for at most "
                    "%d, so use another codec%s",
                    codec, all, CODEC_MOST_PARTS,
                    input->shape.two_hops ? "" : ", or shard.hops=2 on nodes of several ranks");
}

/* A unit's codec between these ranks. Hosts that reduce have no scratch memory for a codec. */
static enum status check_unit(const struct plan_input *input, const char *unit)
{
  const struct deck_policy *asked = &input->policy;
  struct codec codec;
  enum status status = unit_policy_codec(asked, unit, &codec);
  if (!status && codec.ops->traits & CODEC_NEEDS_MAX)
    status = check_members(input, codec.ops->name);
  if (status || !asked->host_state || !asked->cpu_reduce)
    return status;
  if (asked->sample > 0 && !(codec.ops->traits & CODEC_IDENTITY))
    return status_set(STATUS_UNSUPPORTED,
                      "compress.sample=%lld needs scratch memory, which hosts that reduce "
                      "gradients do not have: use transfer.grads=gpu_reduce, or compress.sample=0",
                      (long long)asked->sample);
  if (codec_work(&codec, 1, 1) == 0 && !(codec.ops->traits & CODEC_NEEDS_MAX))
    return STATUS_OK;
  return status_set(STATUS_UNSUPPORTED,
                    "compress.grads.codec=%s needs scratch memory, which hosts that reduce "
                    "gradients do not have: use transfer.grads=gpu_reduce, or another codec",
                    codec.ops->name);
}

static bool names_a_unit(const char *pattern, const struct model *model)
{
  for (int u = 0; u < model->units; u++)
    if (fnmatch(pattern, model->unit[u].name, 0) == 0)
      return true;
  return false;
}

static enum status check_patterns(const char *key, const struct deck_units *units,
                                  const struct model *model)
{
  for (int i = 0; i < units->n; i++)
    if (!names_a_unit(units->of[i].pattern, model))
      return status_usage("%s: no unit of this model is named \"%s\"; units are \"%s\" to \"%s\"",
                          key, units->of[i].pattern, model->unit[0].name,
                          model->unit[model->units - 1].name);
  return STATUS_OK;
}

/* Checks patterns and codecs, for any ranks. *any: the gradients of some unit are encoded. */
static enum status check_names(const struct plan_input *input, bool *any)
{
  const struct deck_policy *asked = &input->policy;
  const struct model *model = input->model;
  struct codec codec;
  enum status status = check_settings(asked);
  *any = false;
  status = status ?: check_patterns("compress.grads.units", &asked->units, model);
  for (int u = 0; u < model->units && !status; u++) {
    status = unit_policy_codec(asked, model->unit[u].name, &codec);
    *any |= !status && !(codec.ops->traits & CODEC_IDENTITY);
  }
  return status;
}

static enum status check_codecs(const struct plan_input *input)
{
  const struct deck_policy *asked = &input->policy;
  const bool host = asked->host_state && asked->cpu_reduce;
  struct codec residual;
  bool any;
  enum status status = unit_policy_residual(asked->feedback, &residual) ?: check_names(input, &any);
  if (status || input->ranks == 1 || !any)
    return status;
  const struct mesh mesh = plan_mesh(input);
  const int group = mesh_ranks(&mesh, MESH_SHARD), replicas = mesh_ranks(&mesh, MESH_REPLICA);
  if (asked->feedback && group > unit_policy_encoded(input).parts && replicas > 1)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.feedback=%s with %d replicas of shards, whose sums are encoded "
                      "twice: use another shard.strategy than hybrid_shard, shard.group=node on "
                      "several nodes, or compress.feedback=off",
                      asked->feedback, replicas);
  if (host && asked->feedback)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.feedback=%s is for gradients that devices reduce: use "
                      "transfer.grads=gpu_reduce, or compress.feedback=off",
                      asked->feedback);
  if (asked->feedback && replicas > 1 && asked->residual != DECK_RESIDUAL_DEVICE)
    return status_set(STATUS_UNSUPPORTED,
                      "tiers.residual moves residuals of whole units, but hybrid_shard has those "
                      "of shards: set tiers.residual=device");
  for (int u = 0; u < input->model->units && !status; u++)
    status = check_unit(input, input->model->unit[u].name);
  return status;
}

/* A lossless codec keeps the values of windows. */
static enum status make_weights(const struct plan_input *input, struct codec *out)
{
  const enum status status = make_codec(&input->policy.weights, input->policy.difference, out);
  out->type = input->device->compute;
  return status;
}

static bool gathers(const struct plan_input *input)
{
  return input->strategy != STRATEGY_NO_SHARD && input->shape.group > 1;
}

/* The strategies that release whole units only at the end of a step. */
static bool keeps_units(enum deck_strategy strategy)
{
  return strategy == STRATEGY_SHARD_GRAD_OP || strategy == STRATEGY_SHARD_OPTIM;
}

/* The key of the type of frozen parameters. */
static const char *frozen_key(const struct plan_input *input)
{
  return input->model->lora_rank > 0 ? "lora.base" : "train.frozen";
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
  if (asked->difference && asked->frozen)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.delta=true keeps whole units in the compute type: use "
                      "%s=fp32, or compress.weights.delta=false",
                      frozen_key(input));
  if (asked->difference && !keeps_units(input->strategy))
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.delta=true needs whole units from step to step: use "
                      "shard.strategy=shard_grad_op or shard_optim, or "
                      "compress.weights.delta=false");
  return STATUS_OK;
}

/* Messages must be smaller than the data that they encode. If blocks are in fp8, codecs are judged
 * by their codes. */
static enum status check_weights(const struct plan_input *input)
{
  enum { MANY = 1 << 20 };
  const struct deck_policy *asked = &input->policy;
  const enum dtype window = input->model->fp8 ? DTYPE_F8_E4M3 : input->device->compute;
  struct codec codec;
  if (!asked->weights.codec)
    return STATUS_OK;
  enum status status = make_weights(input, &codec);
  if (!status && input->ranks > 1)
    status = check_gathers(input);
  if (status || !gathers(input))
    return status;
  if (codec.ops->traits & (CODEC_FOR_SUMS | CODEC_NEEDS_MAX))
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s is for sums of gradients: use another codec",
                      codec.ops->name);
  if (codec.ops->traits & CODEC_VARIABLE && asked->difference)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s loses nothing of whole parameters, but it would "
                      "of differences: use compress.weights.delta=false, or another codec",
                      codec.ops->name);
  if (codec.ops->traits & CODEC_SPARSE && !asked->difference)
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s would send some of the parameters and none of the "
                      "others: use compress.weights.delta=true, or another codec",
                      codec.ops->name);
  if (codec_usual_bytes(&codec, MANY) >= (double)(MANY * dtype_size(window)))
    return status_set(STATUS_UNSUPPORTED,
                      "compress.weights.codec=%s saves nothing, because parameters are gathered in "
                      "%s: use another codec, or none",
                      codec.ops->name, dtype_name(window));
  return STATUS_OK;
}

/* Units whose frozen part has no weights of a block keep it in bf16 instead of codes. */
static enum status frozen_codec(const struct plan_input *input, int unit, struct codec *out)
{
  const enum status status = codec_make_frozen(input->policy.frozen, out);
  return status || codec_type(out) != DTYPE_U8 || model_codes_frozen(input->model, unit)
             ? status
             : codec_make(codec_bf16.name, NULL, false, out);
}

/* Messages of frozen parameters are gathered on the device, then decoded into windows. */
static enum status check_frozen(const struct plan_input *input)
{
  const struct deck_policy *asked = &input->policy;
  const char *const key = frozen_key(input);
  struct codec codec;
  const enum status status = codec_make_frozen(asked->frozen, &codec);
  if (status || codec_type(&codec) != DTYPE_U8)
    return status;
  if (asked->host_state && asked->params_full)
    return status_set(STATUS_UNSUPPORTED,
                      "%s=%s is decoded on the device, and with transfer.params=full ranks share "
                      "decoded units: use transfer.params=shard, or %s=bf16",
                      key, asked->frozen, key);
  return STATUS_OK;
}

/* Otherwise another rule would update all parameters. */
static bool trains_matrices(const struct plan_input *input)
{
  const struct optim_ops *ops = optim_ops(input->optim.name);
  const struct model *model = input->model;
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++)
      if (optim_is_matrix(ops, model, u, p))
        return true;
  return false;
}

enum status unit_policy_check(const struct plan_input *input)
{
  const struct deck_policy *asked = &input->policy;
  const struct optim_ops *ops = optim_ops(input->optim.name);
  if (asked->host_state && !deck_shards_params(input->strategy) && input->ranks > 1)
    return status_usage("masters in host memory are sharded: use full_shard or hybrid_shard");
  if (asked->host_state && asked->resident >= input->model->units)
    return status_usage("tiers.resident is %lld, but the model has %d units, of which at least one "
                        "must be in host memory: lower it, or set tiers.params=device and "
                        "tiers.optimizer=device",
                        (long long)asked->resident, input->model->units);
  if (input->mode == PLAN_TRAIN && ops->matrix &&
      (asked->host_state || asked->immediate || asked->speculative))
    return status_set(STATUS_UNSUPPORTED,
                      "optim.name=%s updates whole matrices, on the device and after the norm: set "
                      "tiers.optimizer and tiers.params to device and optim.update to deferred",
                      ops->name);
  if (input->mode == PLAN_TRAIN && ops->matrix && !trains_matrices(input))
    return status_usage("optim.name=%s is for weight matrices of blocks, and none of them is "
                        "trained (lora.rank, train.freeze): use adamw",
                        ops->name);
  if (asked->moments != DTYPE_F32 && asked->moments != DTYPE_BF16 && asked->moments != DTYPE_F16)
    return status_set(STATUS_UNSUPPORTED, "moments in %s: they are kept in fp32, bf16 or fp16",
                      dtype_name(asked->moments));
  enum status status = check_patterns("optim.lr_scale", &asked->lr_scale, input->model);
  if (!status && asked->gathered > input->model->units)
    return status_usage("shard.gathered is %lld, but the model has %d units: lower it",
                        (long long)asked->gathered, input->model->units);
  return status ?: check_codecs(input) ?: check_weights(input) ?: check_frozen(input);
}

/* Masters in host memory come to the device for each use. By default a cast that no other rank
 * takes part in is made once: it is short, but so are the steps of models that fit one device.
 * Codes are there to save memory, so they are decoded for each use. */
static bool gathers_once(const struct plan_input *input, int unit)
{
  struct codec codec;
  const bool coded = !frozen_codec(input, unit, &codec) && codec_type(&codec) == DTYPE_U8;
  const int64_t asked = input->policy.gathered, units = input->model->units,
                once = asked >= 0                ? asked
                       : gathers(input) || coded ? 0
                                                 : units;
  if (input->policy.host_state)
    return false;
  return keeps_units(input->strategy) || (input->mode != PLAN_TRAIN && !gathers(input) && !coded) ||
         (input->mode == PLAN_TRAIN && unit < once);
}

/* Updates as soon as gradients are complete: some wait until the backward pass is over, and run
 * during the next forward pass. Updates that keep up with the backward pass lose nothing by this.
 * If updates are slower, the forward pass hides a quarter of them, which is its share of a step
 * that recomputes. The waiting updates are spread evenly, from the last block on, which the forward
 * pass needs last. So the other updates have work all the time. An untied head does not wait,
 * because its gradient comes when the host lane is still idle, and the next step's loss would wait
 * for it. */
static bool waits_for_forward(const struct plan_input *input, int unit)
{
  enum { EVERY = 4 };
  const int block = input->model->unit[unit].block;
  return block >= 0 && (input->model->blocks - 1 - block) % EVERY == 0;
}

static void set_place(const struct plan_input *input, int unit, struct unit_policy *policy)
{
  const struct deck_policy *asked = &input->policy;
  const struct mesh mesh = plan_mesh(input);
  const bool meets = asked->host_state && mesh_ranks(&mesh, MESH_SHARD) > 1,
             full = meets && asked->params_full;
  if (full)
    policy->working = WORKING_SHARED;
  if (meets && asked->cpu_reduce)
    policy->sums = asked->one_node ? SUMS_SHARED : SUMS_HOST;
  policy->host = is_on_host(asked, full || policy->sums != SUMS_DEVICE, unit);
  policy->disk = policy->host && is_on_disk(asked, unit);
}

/* unit_policy_check() has made the same codecs. */
static void set_codecs(const struct plan_input *input, int unit, struct unit_policy *policy)
{
  const struct deck_policy *asked = &input->policy;
  (void)frozen_codec(input, unit, &policy->base);
  policy->frozen = codec_type(&policy->base);
  policy->apart = asked->weights.codec && gathers(input);
  policy->difference = policy->apart && asked->difference;
  (void)unit_policy_codec(asked, input->model->unit[unit].name, &policy->grads);
  if (!(policy->grads.ops->traits & CODEC_IDENTITY))
    (void)unit_policy_residual(asked->feedback, &policy->residual);
  if (policy->apart && input->mode == PLAN_TRAIN)
    (void)make_weights(input, &policy->weights);
}

/* State on NVMe would have to be read again for a repair. Parameters that are sent as messages of a
 * codec have no working copy. */
static void set_timing(const struct plan_input *input, int unit, struct unit_policy *policy)
{
  policy->waits = waits_for_forward(input, unit);
  if (input->policy.immediate)
    policy->timing = TIMING_IMMEDIATE;
  else if (input->policy.speculative && policy->host && !policy->disk && !policy->apart &&
           !policy->waits)
    policy->timing = TIMING_SPECULATIVE;
  else
    policy->waits = true;
}

static void set_working(const struct plan_input *input, struct unit_policy *policy)
{
  const struct deck_policy *asked = &input->policy;
  const bool narrow = input->device->compute != DTYPE_F32,
             copied = policy->host || (!asked->host_state && asked->keep_working);
  if (policy->working == WORKING_NONE &&
      ((narrow && !policy->apart && copied) || policy->timing == TIMING_SPECULATIVE))
    policy->working = WORKING_OWN;
}

/* Codes that products read have a scale per block of a weight, and are made once of a base that is
 * never saved. With one scale per weight, no rank could make them of its part. */
static bool keeps_products(const struct plan_input *input, const struct unit_policy *policy)
{
  return input->model->lora_rank > 0 && input->device->fp8 == FP8_SCALES_GROUPS &&
         policy->frozen == DTYPE_U8 && policy->base.ops == &codec_e4m3;
}

/* Units in fp8 are gathered as codes of the weights, and keep them instead of a working copy on the
 * device. Products of other units code the weights that they read, also those that a message was
 * decoded to. Generation has too few rows for fp8. */
static void set_window(const struct plan_input *input, int unit, struct unit_policy *policy)
{
  const bool coded = input->model->unit[unit].fp8 && input->mode != PLAN_GENERATE &&
                     !policy->apart && policy->working != WORKING_SHARED;
  if (coded && keeps_products(input, policy))
    policy->frozen = DTYPE_F8_E4M3;
  const bool codes = coded && policy->frozen != DTYPE_U8, device = codes && !policy->host;
  policy->window = codes ? DTYPE_F8_E4M3 : policy->compute;
  policy->keeps_codes = device && policy->working == WORKING_OWN && !policy->gather_once;
  if (device)
    policy->working = WORKING_NONE;
}

struct unit_policy unit_policy_make(const struct plan_input *input, int unit)
{
  const struct deck_policy *asked = &input->policy;
  const struct mesh mesh = plan_mesh(input);
  /* clang-format off */
  struct unit_policy policy = {
      .compute = input->device->compute,
      .state = asked->moments, .lr_scale = lr_scale_of(asked, input->model->unit[unit].name),
      .residual_tier = asked->residual, .sample = asked->sample,
      .gather_once = gathers_once(input, unit),
      .each_micro = input->shape.micros > 1 &&
                    (asked->host_state ||
                     (mesh_ranks(&mesh, MESH_SHARD) > 1 && asked->reduce_every_micro)),
      .keep = keep_of(input, unit)};
  /* clang-format on */
  set_place(input, unit, &policy);
  set_codecs(input, unit, &policy);
  set_timing(input, unit, &policy);
  set_working(input, &policy);
  set_window(input, unit, &policy);
  return policy;
}
