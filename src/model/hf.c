/* Reading config.json. A table says for each key what becomes of it; the rest is what takes more than one key: rotary positions, windows. */
#include "model/hf.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "io/json_tree.h"
#include "model/hf_family.h"

enum { CONFIG_MOST = 1 << 20 };

const struct hf_family hf_families[HF_FAMILIES] = {
    {.arch = "gpt2",
     .bit = OF_GPT2,
     .causal = "GPT2LMHeadModel",
     .base = "GPT2Model",
     .prefix = "transformer.",
     .activation = "gelu_new",
     .tied = true,
     .context = 1024,
     .norm_eps = 1e-5},
    {.arch = "llama",
     .bit = OF_LLAMA,
     .causal = "LlamaForCausalLM",
     .base = "LlamaModel",
     .prefix = "model.",
     .activation = "silu",
     .context = 2048,
     .norm_eps = 1e-6},
    {.arch = "qwen2",
     .bit = OF_QWEN2,
     .causal = "Qwen2ForCausalLM",
     .base = "Qwen2Model",
     .prefix = "model.",
     .activation = "silu",
     .kv_heads = 32,
     .context = 32768,
     .window = 4096,
     .window_from = 28,
     .norm_eps = 1e-6},
    {.arch = "qwen3",
     .bit = OF_QWEN3,
     .causal = "Qwen3ForCausalLM",
     .base = "Qwen3Model",
     .prefix = "model.",
     .activation = "silu",
     .kv_heads = 32,
     .head_width = 128,
     .context = 32768,
     .window = 4096,
     .window_from = 28,
     .norm_eps = 1e-6},
    {.arch = "mistral",
     .bit = OF_MISTRAL,
     .causal = "MistralForCausalLM",
     .base = "MistralModel",
     .prefix = "model.",
     .activation = "silu",
     .kv_heads = 8,
     .context = 131072,
     .window = 4096,
     .norm_eps = 1e-6},
};

const struct hf_family *hf_family_find(const char *arch)
{
  for (int i = 0; i < HF_FAMILIES; i++)
    if (!strcmp(hf_families[i].arch, arch))
      return &hf_families[i];
  return NULL;
}

/* --- the table of keys ---------------------------------------------------------------------------------------------------------- */

enum how {
  READ_WHOLE,
  READ_REAL,
  READ_BOOL,
  READ_TOKENS, /* an id, or a list of them */
  MUST_BE_TRUE,
  MUST_BE_FALSE,
  MUST_BE_ONE,
  MUST_BE_EMPTY, /* null, or an array or object without members */
  ACTIVATION,
  DROPOUT /* of training elsewhere */
};

struct rule {
  const char *key;
  unsigned of;
  enum how how;
  size_t offset; /* in struct hf_config */
  double least, most;
  bool required, nullable; /* null: 0 for READ_WHOLE, as if it were not there for others */
};

#define AT(field) offsetof(struct hf_config, field)

/* Ranges are those of the deck's keys. */
static const struct rule rules[] = {
    {.key = "vocab_size", .of = OF_ALL, .how = READ_WHOLE, .offset = AT(model.vocab), .least = 2, .most = INT32_MAX, .required = true},
    {.key = "n_embd", .of = OF_GPT2, .how = READ_WHOLE, .offset = AT(model.width), .least = 1, .most = 1 << 20, .required = true},
    {.key = "hidden_size", .of = OF_ROPE, .how = READ_WHOLE, .offset = AT(model.width), .least = 1, .most = 1 << 20, .required = true},
    {.key = "n_layer", .of = OF_GPT2, .how = READ_WHOLE, .offset = AT(model.layers), .least = 1, .most = 65536, .required = true},
    {.key = "num_hidden_layers", .of = OF_ROPE, .how = READ_WHOLE, .offset = AT(model.layers), .least = 1, .most = 65536, .required = true},
    {.key = "n_head", .of = OF_GPT2, .how = READ_WHOLE, .offset = AT(model.heads), .least = 1, .most = 1 << 16, .required = true},
    {.key = "num_attention_heads", .of = OF_ROPE, .how = READ_WHOLE, .offset = AT(model.heads), .least = 1, .most = 1 << 16, .required = true},
    {.key = "num_key_value_heads", .of = OF_ROPE, .how = READ_WHOLE, .offset = AT(model.kv_heads), .least = 1, .most = 1 << 16, .nullable = true},
    {.key = "head_dim", .of = OF_ROPE, .how = READ_WHOLE, .offset = AT(model.head_width), .least = 1, .most = 1 << 16, .nullable = true},
    {.key = "n_inner", .of = OF_GPT2, .how = READ_WHOLE, .offset = AT(model.ffn), .least = 1, .most = 1 << 24, .nullable = true},
    {.key = "intermediate_size", .of = OF_ROPE, .how = READ_WHOLE, .offset = AT(model.ffn), .least = 1, .most = 1 << 24, .required = true},
    {.key = "n_positions", .of = OF_GPT2, .how = READ_WHOLE, .offset = AT(model.context), .least = 1, .most = 1 << 26},
    {.key = "max_position_embeddings", .of = OF_ROPE, .how = READ_WHOLE, .offset = AT(model.context), .least = 1, .most = 1 << 26},
    {.key = "layer_norm_epsilon", .of = OF_GPT2, .how = READ_REAL, .offset = AT(model.norm_eps), .least = 1e-30, .most = 1},
    {.key = "rms_norm_eps", .of = OF_ROPE, .how = READ_REAL, .offset = AT(model.norm_eps), .least = 1e-30, .most = 1},
    {.key = "initializer_range", .of = OF_ALL, .how = READ_REAL, .offset = AT(model.init_std), .least = 0, .most = 10},
    {.key = "tie_word_embeddings", .of = OF_ALL, .how = READ_BOOL, .offset = AT(model.tied)},
    {.key = "bos_token_id", .of = OF_ALL, .how = READ_TOKENS, .offset = AT(bos), .nullable = true},
    {.key = "eos_token_id", .of = OF_ALL, .how = READ_TOKENS, .offset = AT(eos), .nullable = true},
    {.key = "activation_function", .of = OF_GPT2, .how = ACTIVATION},
    {.key = "hidden_act", .of = OF_ROPE, .how = ACTIVATION},
    {.key = "resid_pdrop", .of = OF_GPT2, .how = DROPOUT, .nullable = true},
    {.key = "embd_pdrop", .of = OF_GPT2, .how = DROPOUT, .nullable = true},
    {.key = "attn_pdrop", .of = OF_GPT2, .how = DROPOUT, .nullable = true},
    {.key = "attention_dropout", .of = OF_ROPE, .how = DROPOUT, .nullable = true},
    {.key = "scale_attn_weights", .of = OF_GPT2, .how = MUST_BE_TRUE},
    {.key = "scale_attn_by_inverse_layer_idx", .of = OF_GPT2, .how = MUST_BE_FALSE},
    {.key = "add_cross_attention", .of = OF_ALL, .how = MUST_BE_FALSE},
    {.key = "is_encoder_decoder", .of = OF_ALL, .how = MUST_BE_FALSE},
    {.key = "attention_bias", .of = OF_LLAMA | OF_QWEN3 | OF_MISTRAL, .how = MUST_BE_FALSE},
    {.key = "mlp_bias", .of = OF_ROPE, .how = MUST_BE_FALSE},
    {.key = "rope_interleaved", .of = OF_ROPE, .how = MUST_BE_FALSE},
    {.key = "use_mrope", .of = OF_ROPE, .how = MUST_BE_FALSE},
    {.key = "partial_rotary_factor", .of = OF_ROPE, .how = MUST_BE_ONE, .nullable = true},
    {.key = "quantization_config", .of = OF_ALL, .how = MUST_BE_EMPTY},
    {.key = "per_layer_config", .of = OF_ALL, .how = MUST_BE_EMPTY},
    {.key = "pruned_heads", .of = OF_ALL, .how = MUST_BE_EMPTY},
};
enum { RULES = sizeof rules / sizeof *rules };

/* Keys without a rule. */
struct names {
  unsigned of;
  const char *key[36];
};

/* Read by functions below. */
static const struct names elsewhere[] = {
    {OF_ALL, {"model_type", "architectures", "dtype", "torch_dtype"}},
    {OF_ROPE, {"rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings", "layer_types"}},
    {OF_QWEN2 | OF_QWEN3 | OF_MISTRAL, {"sliding_window"}},
    {OF_QWEN2 | OF_QWEN3, {"use_sliding_window", "max_window_layers"}},
};

/* Change no number: qwen2's biases do not depend on attention_bias, the products' cutting not on the result, and so on. */
static const struct names harmless[] = {
    {OF_QWEN2, {"attention_bias"}},
    {OF_ROPE, {"pretraining_tp"}},
    {OF_GPT2,
     {"n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
      "summary_first_dropout"}},
    {OF_ALL,
     {"chunk_size_feed_forward",
      "gradient_checkpointing",
      "use_cache",
      "pad_token_id",
      "sep_token_id",
      "decoder_start_token_id",
      "transformers_version",
      "name_or_path",
      "_name_or_path",
      "_commit_hash",
      "_num_labels",
      "attn_implementation",
      "_attn_implementation",
      "_attn_implementation_autoset",
      "output_attentions",
      "output_hidden_states",
      "output_past",
      "return_dict",
      "torchscript",
      "tokenizer_class",
      "task_specific_params",
      "problem_type",
      "finetuning_task",
      "num_labels",
      "id2label",
      "label2id",
      "max_length",
      "do_sample",
      "temperature",
      "top_k",
      "top_p",
      "repetition_penalty"}},
};

/* --- one key -------------------------------------------------------------------------------------------------------------------- */

/* A member that is there and not null. */
static const struct json_node *find_said(const struct json_node *object, const char *key)
{
  const struct json_node *node = json_find(object, key);
  return node && json_kind(node) != JSON_NULL ? node : NULL;
}

/* -1 stands for none. */
static enum status add_token(const struct json_node *node, struct hf_tokens *out)
{
  int64_t id = -1;
  enum status status = json_get_whole(node, -1, INT32_MAX, &id);
  if (!status && id >= 0)
    out->id[out->n++] = id;
  return status;
}

static enum status read_tokens(const struct json_node *node, struct hf_tokens *out)
{
  struct hf_tokens tokens = {0};
  enum status status = STATUS_OK;
  if (json_kind(node) != JSON_ARRAY)
    status = add_token(node, &tokens);
  else if (json_length(node) < 1 || json_length(node) > HF_TOKENS_MOST)
    status = json_fail(node, json_length(node) < 1 ? "is empty, where token ids belong" : "has more than %d token ids", HF_TOKENS_MOST);
  else
    for (node = json_first(node); node && !status; node = json_next(node))
      status = add_token(node, &tokens);
  if (!status)
    *out = tokens;
  return status;
}

static enum status read_real(const struct json_node *node, double least, double most, double *out)
{
  double value = 0;
  enum status status = json_get_real(node, &value);
  if (status)
    return status;
  if (value < least || value > most)
    return json_fail(node, "is %g, where a number from %g to %g belongs", value, least, most);
  *out = value;
  return STATUS_OK;
}

static enum status check_bool(const struct json_node *node, bool wanted)
{
  bool truth = false;
  enum status status = json_get_bool(node, &truth);
  if (status || truth == wanted)
    return status;
  return json_fail(node, "is %s, which Sluice does not compute", truth ? "true" : "false");
}

static enum status check_one(const struct json_node *node)
{
  double value = 0;
  enum status status = json_get_real(node, &value);
  if (status || value == 1)
    return status;
  return json_fail(node, "is %g; Sluice turns all of a head's elements, as 1 says", value);
}

static enum status check_empty(const struct json_node *node)
{
  const enum json_kind kind = json_kind(node);
  if (kind == JSON_NULL || ((kind == JSON_ARRAY || kind == JSON_OBJECT) && json_length(node) == 0))
    return STATUS_OK;
  return json_fail(node, "is given: Sluice does not read such models");
}

/* GELU with tanh and SiLU have two names each. */
static enum status check_activation(const struct json_node *node, const struct hf_family *family)
{
  const char *name = NULL, *alias = family->bit == OF_GPT2 ? "gelu_pytorch_tanh" : "swish";
  enum status status = json_get_text(node, &name, NULL);
  if (status || !strcmp(name, family->activation) || !strcmp(name, alias))
    return status;
  return json_fail(node, "is \"%.40s\": Sluice's %s has the activation %s", name, family->arch, family->activation);
}

static enum status note_dropout(const struct json_node *node, double *dropout)
{
  double value = 0;
  enum status status = json_get_real(node, &value);
  if (!status && value > *dropout)
    *dropout = value;
  return status;
}

static enum status apply(const struct rule *rule, const struct json_node *node, const struct hf_family *family, struct hf_config *out,
                         double *dropout)
{
  void *field = (char *)out + rule->offset;
  if (rule->nullable && json_kind(node) == JSON_NULL) {
    if (rule->how == READ_WHOLE)
      *(int64_t *)field = 0;
    return STATUS_OK;
  }
  switch (rule->how) {
  case READ_WHOLE: return json_get_whole(node, (int64_t)rule->least, (int64_t)rule->most, field);
  case READ_REAL: return read_real(node, rule->least, rule->most, field);
  case READ_BOOL: return json_get_bool(node, field);
  case READ_TOKENS: return read_tokens(node, field);
  case MUST_BE_TRUE: return check_bool(node, true);
  case MUST_BE_FALSE: return check_bool(node, false);
  case MUST_BE_ONE: return check_one(node);
  case MUST_BE_EMPTY: return check_empty(node);
  case ACTIVATION: return check_activation(node, family);
  case DROPOUT: return note_dropout(node, dropout);
  }
  return STATUS_OK;
}

static enum status apply_rules(const struct json_node *root, const struct hf_family *family, struct hf_config *out)
{
  double dropout = 0;
  enum status status = STATUS_OK;
  for (int i = 0; i < RULES && !status; i++) {
    const struct rule *rule = &rules[i];
    const struct json_node *node = json_find(root, rule->key);
    if (!(rule->of & family->bit))
      continue;
    if (node)
      status = apply(rule, node, family, out, &dropout);
    else if (rule->required)
      status = json_fail(root, "has no %s, which a %s needs", rule->key, family->arch);
  }
  if (!status && dropout > 0)
    log_warn("the model was configured with dropout %g: Sluice trains without dropout", dropout);
  return status;
}

static bool is_among(const struct names *names, size_t n, const char *key, const struct hf_family *family)
{
  for (size_t i = 0; i < n; i++)
    for (const char *const *name = names[i].key; *name && names[i].of & family->bit; name++)
      if (!strcmp(*name, key))
        return true;
  return false;
}

static bool is_known(const char *key, const struct hf_family *family)
{
  for (int i = 0; i < RULES; i++)
    if (rules[i].of & family->bit && !strcmp(rules[i].key, key))
      return true;
  return is_among(elsewhere, sizeof elsewhere / sizeof *elsewhere, key, family) ||
         is_among(harmless, sizeof harmless / sizeof *harmless, key, family);
}

/* Whether a key's name tells that numbers depend on it. */
static bool sounds_numeric(const char *key)
{
  static const char *const parts[] = {"multiplier", "scale", "scaling", "cap", "bias"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (strstr(key, parts[i]))
      return true;
  return false;
}

/* Null, false, nothing added, or multiplied by one. */
static bool is_off(const struct json_node *node)
{
  double number = 0;
  bool flag = false;
  switch (json_kind(node)) {
  case JSON_NULL: return true;
  case JSON_BOOL: return json_get_bool(node, &flag) == STATUS_OK && !flag;
  case JSON_NUMBER: return json_get_real(node, &number) == STATUS_OK && (number == 0 || number == 1);
  default: return false;
  }
}

static enum status check_unknown(const char *path, const struct json_node *root, const struct hf_family *family)
{
  for (const struct json_node *node = json_first(root); node; node = json_next(node)) {
    const char *key = json_key(node, NULL);
    if (is_known(key, family))
      continue;
    if (sounds_numeric(key) && !is_off(node))
      return json_fail(node, "is given: it is no key of a %s that Sluice knows, and may change its numbers", family->arch);
    log_warn("%s: %.80s is passed over: it is no key of a %s that Sluice knows", path, key, family->arch);
  }
  return STATUS_OK;
}

/* --- what takes more than one key ----------------------------------------------------------------------------------------------- */

static enum status read_type(const struct json_node *root, const struct hf_family **out)
{
  const char *name = NULL;
  const struct json_node *node = json_find(root, "model_type");
  if (json_kind(root) != JSON_OBJECT || !node)
    return json_fail(root, "has no model_type: is it the config.json of a model?");
  enum status status = json_get_text(node, &name, NULL);
  if (status)
    return status;
  *out = hf_family_find(name);
  return *out ? STATUS_OK : json_fail(node, "is \"%.40s\"; Sluice knows gpt2, llama, qwen2, qwen3 and mistral", name);
}

static enum status check_classes(const struct json_node *root, const struct hf_family *family)
{
  const struct json_node *node = find_said(root, "architectures");
  enum status status = node && json_kind(node) != JSON_ARRAY ? json_fail(node, "is not an array of names") : STATUS_OK;
  for (const struct json_node *item = node ? json_first(node) : NULL; item && !status; item = json_next(item)) {
    const char *name = NULL;
    status = json_get_text(item, &name, NULL);
    if (!status && strcmp(name, family->causal) != 0 && strcmp(name, family->base) != 0)
      status = json_fail(item, "is \"%.60s\"; Sluice reads %s and %s", name, family->causal, family->base);
  }
  return status;
}

static enum status read_dtype(const struct json_node *root, enum dtype *out)
{
  static const struct {
    const char *name;
    enum dtype type;
  } names[] = {{"float32", DTYPE_F32}, {"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}};
  const struct json_node *node = find_said(root, "dtype");
  const char *name = NULL;
  if (!node)
    node = find_said(root, "torch_dtype");
  if (!node)
    return STATUS_OK;
  enum status status = json_get_text(node, &name, NULL);
  if (status)
    return status;
  const char *bare = !strncmp(name, "torch.", 6) ? name + 6 : name;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(bare, names[i].name)) {
      *out = names[i].type;
      return STATUS_OK;
    }
  return json_fail(node, "is \"%.40s\"; Sluice reads float32, bfloat16 and float16", name);
}

static enum status check_rope_keys(const struct json_node *rope)
{
  static const char *const known[] = {"rope_type",
                                      "type",
                                      "rope_theta",
                                      "factor",
                                      "low_freq_factor",
                                      "high_freq_factor",
                                      "original_max_position_embeddings",
                                      "partial_rotary_factor"};
  for (const struct json_node *node = json_first(rope); node; node = json_next(node)) {
    size_t i = 0;
    while (i < sizeof known / sizeof *known && strcmp(known[i], json_key(node, NULL)) != 0)
      i++;
    if (i == sizeof known / sizeof *known)
      return json_fail(node, "is given: Sluice knows no such parameter of rotary positions");
  }
  const struct json_node *partial = find_said(rope, "partial_rotary_factor");
  return partial ? check_one(partial) : STATUS_OK;
}

static const char *const rope_types[] = {[ROPE_PLAIN] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3"};

static enum status read_scaling(const struct json_node *rope, int *scaling)
{
  const struct json_node *node = find_said(rope, "rope_type");
  const char *name = NULL;
  if (!node)
    node = find_said(rope, "type");
  if (!node)
    return STATUS_OK;
  enum status status = json_get_text(node, &name, NULL);
  if (status)
    return status;
  for (int i = 0; i < 3; i++)
    if (!strcmp(rope_types[i], name)) {
      *scaling = i;
      return STATUS_OK;
    }
  return json_fail(node, "is \"%.40s\"; Sluice knows the rope types default, linear and llama3", name);
}

static enum status refuse_unused(const struct json_node *rope, int scaling)
{
  static const struct {
    const char *key;
    int least; /* the first type that uses it */
  } numbers[] = {{"factor", ROPE_LINEAR},
                 {"low_freq_factor", ROPE_LLAMA3},
                 {"high_freq_factor", ROPE_LLAMA3},
                 {"original_max_position_embeddings", ROPE_LLAMA3}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    const struct json_node *node = find_said(rope, numbers[i].key);
    if (node && scaling < numbers[i].least)
      return json_fail(node, "is given, but the rope type is %s, which does not use it", rope_types[scaling]);
  }
  return STATUS_OK;
}

static enum status read_rope_number(const struct json_node *rope, const char *key, double *out)
{
  const struct json_node *node = find_said(rope, key);
  if (!node)
    return json_fail(rope, "has no %s, which its rope type needs", key);
  return read_real(node, 0, 1e6, out);
}

/* Older versions say it once more beside. */
static enum status read_original(const struct json_node *root, const struct json_node *rope, int64_t *out)
{
  const struct json_node *node = find_said(rope, "original_max_position_embeddings"), *beside = find_said(root, "original_max_position_embeddings");
  int64_t other = 0;
  if (!node)
    return json_fail(rope, "has no original_max_position_embeddings, which its rope type needs");
  enum status status = json_get_whole(node, 1, 1 << 26, out);
  if (!status && beside)
    status = json_get_whole(beside, 1, 1 << 26, &other);
  if (!status && beside && other != *out)
    status = json_fail(beside, "is %lld, and %lld beside the rope type: they must agree", (long long)other, (long long)*out);
  return status;
}

/* theta NULL: as it is. */
static enum status read_theta(const struct json_node *theta, double *out)
{
  return theta ? read_real(theta, 1, 1e12, out) : STATUS_OK;
}

/* One object of parameters; `out` holds what is not said there. */
static enum status read_rope_object(const struct json_node *root, const struct json_node *rope, struct rope_config *out)
{
  if (json_kind(rope) != JSON_OBJECT)
    return json_fail(rope, "is not an object");
  const struct json_node *theta = find_said(rope, "rope_theta");
  enum status status = read_theta(theta, &out->theta);
  if (!status)
    status = read_scaling(rope, &out->scaling);
  if (!status)
    status = check_rope_keys(rope);
  if (!status)
    status = refuse_unused(rope, out->scaling);
  if (!status && out->scaling != ROPE_PLAIN)
    status = read_rope_number(rope, "factor", &out->factor);
  if (status || out->scaling != ROPE_LLAMA3)
    return status;
  status = read_rope_number(rope, "low_freq_factor", &out->low_freq);
  if (!status)
    status = read_rope_number(rope, "high_freq_factor", &out->high_freq);
  return status ? status : read_original(root, rope, &out->original);
}

static bool same_rope(const struct rope_config *a, const struct rope_config *b)
{
  return a->theta == b->theta && a->scaling == b->scaling && a->factor == b->factor && a->low_freq == b->low_freq && a->high_freq == b->high_freq &&
         a->original == b->original;
}

/* 5.x writes rope_parameters, which holds all; 4.x rope_theta, and rope_scaling where there is any. What is said twice must be the same. */
static enum status read_rope(const struct json_node *root, struct rope_config *out)
{
  const struct json_node *old = find_said(root, "rope_scaling"), *new = find_said(root, "rope_parameters"), *theta = find_said(root, "rope_theta");
  out->theta = 10000;
  enum status status = read_theta(theta, &out->theta);
  struct rope_config plain = *out, first = plain, second = plain;
  const bool scaled = old && (json_kind(old) != JSON_OBJECT || json_length(old) > 0);
  if (!status && new)
    status = read_rope_object(root, new, &second);
  if (!theta)
    first.theta = second.theta; /* which 4.x has beside rope_scaling */
  if (!status && scaled)
    status = read_rope_object(root, old, &first);
  if (status)
    return status;
  if (scaled && new && !same_rope(&first, &second))
    return json_fail(old, "and rope_parameters disagree: leave one of them out");
  if (theta && new &&second.theta != plain.theta)
    return json_fail(theta, "is %g, and %g in rope_parameters: they must agree", plain.theta, second.theta);
  *out = scaled ? first : second;
  return STATUS_OK;
}

/* Blocks 0 .. from - 1 see everything, those from there on have the window. */
static enum status read_layer_types(const struct json_node *node, const struct model_config *model, int64_t *from)
{
  int64_t i = 0;
  *from = model->layers;
  if (json_kind(node) != JSON_ARRAY || json_length(node) != model->layers)
    return json_fail(node, "is not an array of %lld names, one a block", (long long)model->layers);
  for (const struct json_node *item = json_first(node); item; item = json_next(item), i++) {
    const char *name = NULL;
    enum status status = json_get_text(item, &name, NULL);
    if (status)
      return status;
    const bool slides = !strcmp(name, "sliding_attention");
    if (!slides && strcmp(name, "full_attention") != 0)
      return json_fail(item, "is \"%.40s\"; Sluice knows full_attention and sliding_attention", name);
    if (!slides && *from < i)
      return json_fail(item, "is full_attention behind a block of sliding_attention; in Sluice all blocks from some one on have the window");
    if (slides && *from == model->layers)
      *from = i;
  }
  return STATUS_OK;
}

/* The window as the keys other than layer_types say it. */
static enum status read_window(const struct json_node *root, const struct hf_family *family, int64_t *window, int64_t *from)
{
  const struct json_node *node = json_find(root, "sliding_window"), *use = json_find(root, "use_sliding_window"),
                         *first = json_find(root, "max_window_layers");
  const bool optional = family->bit & (OF_QWEN2 | OF_QWEN3);
  bool used = !optional;
  enum status status = STATUS_OK;
  *window = family->window;
  *from = family->window_from;
  if (node && json_kind(node) == JSON_NULL)
    *window = 0;
  else if (node)
    status = json_get_whole(node, 1, 1 << 26, window);
  if (!status && optional && use)
    status = json_get_bool(use, &used);
  if (!status && optional && first)
    status = json_get_whole(first, 0, INT32_MAX, from);
  if (!used)
    *window = 0;
  return status;
}

static enum status read_windows(const struct json_node *root, const struct hf_family *family, struct model_config *out)
{
  const struct json_node *types = find_said(root, "layer_types");
  int64_t window = 0, from = 0, listed = 0;
  enum status status = family->window ? read_window(root, family, &window, &from) : STATUS_OK;
  if (!status && types)
    status = read_layer_types(types, out, &listed);
  if (status)
    return status;
  const bool fixed = !(family->bit & (OF_QWEN2 | OF_QWEN3)); /* where the list decides nothing */
  if (types && ((listed < out->layers && !window) || (fixed && window && listed > 0)))
    return json_fail(types, "does not agree with the sliding window, which is %lld", (long long)window);
  if (types && !fixed)
    from = listed;
  if (window && from < out->layers) {
    out->window = window;
    out->window_from = from;
  }
  return STATUS_OK;
}

/* A head's width that is not said is the rest of a division. */
static enum status check_heads(const struct json_node *root, const struct hf_family *family, const struct model_config *model)
{
  const bool gpt2 = family->bit == OF_GPT2;
  if (model->head_width || model->width % model->heads == 0)
    return STATUS_OK;
  return json_fail(json_find(root, gpt2 ? "n_embd" : "hidden_size"), "is %lld, which %s %lld does not divide%s", (long long)model->width,
                   gpt2 ? "n_head" : "num_attention_heads", (long long)model->heads, gpt2 ? "" : ", and there is no head_dim");
}

static enum status read_root(const char *path, const struct json_node *root, struct hf_config *out)
{
  const struct hf_family *family = NULL;
  enum status status = read_type(root, &family);
  if (status)
    return status;
  struct hf_config config = {.model = {.arch = family->arch,
                                       .context = family->context,
                                       .head_width = family->head_width,
                                       .kv_heads = family->kv_heads,
                                       .tied = family->tied,
                                       .norm_eps = family->norm_eps,
                                       .init_std = 0.02},
                             .dtype = DTYPE_F32};
  status = check_classes(root, family);
  if (!status)
    status = apply_rules(root, family, &config);
  if (!status)
    status = check_heads(root, family, &config.model);
  if (!status)
    status = read_dtype(root, &config.dtype);
  if (!status && family->bit & OF_ROPE)
    status = read_rope(root, &config.model.rope);
  if (!status && family->bit & OF_ROPE)
    status = read_windows(root, family, &config.model);
  if (!status)
    status = check_unknown(path, root, family);
  if (!status)
    *out = config;
  return status;
}

enum status hf_config_read(const char *path, struct hf_config *out)
{
  struct json_tree *tree = NULL;
  enum status status = json_tree_read(path, CONFIG_MOST, &tree);
  if (!status)
    status = read_root(path, json_tree_root(tree), out);
  json_tree_free(tree);
  return status;
}

enum status hf_config_tokens(const char *path, struct hf_tokens *bos, struct hf_tokens *eos)
{
  struct json_tree *tree = NULL;
  enum status status = json_tree_read(path, CONFIG_MOST, &tree);
  if (status)
    return status;
  const struct json_node *root = json_tree_root(tree), *first = find_said(root, "bos_token_id"), *last = find_said(root, "eos_token_id");
  struct hf_tokens begin = {0}, end = {0};
  if (first)
    status = read_tokens(first, &begin);
  if (!status && last)
    status = read_tokens(last, &end);
  json_tree_free(tree);
  if (status)
    return status;
  *bos = begin;
  *eos = end;
  return STATUS_OK;
}

/* --- names of tensors ----------------------------------------------------------------------------------------------------------- */

const char *hf_base_name(const struct model *model, const char *name)
{
  const struct hf_family *family = hf_family_find(model->config.arch);
  const size_t bytes = family ? strlen(family->prefix) : 0;
  return family && !strncmp(name, family->prefix, bytes) ? name + bytes : NULL;
}

const char *hf_embedding_name(const struct model *model)
{
  return !strcmp(model->config.arch, "gpt2") ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

/* What follows "BLOCKS.7." in a name, or NULL. */
static const char *inside_block(const char *name, const char *blocks)
{
  const size_t bytes = strlen(blocks);
  if (strncmp(name, blocks, bytes) != 0 || !isdigit((unsigned char)name[bytes]))
    return NULL;
  const char *rest = name + bytes + strspn(name + bytes, "0123456789");
  return *rest == '.' ? rest + 1 : NULL;
}

enum hf_extra hf_extra(const struct model *model, const char *name)
{
  const bool gpt2 = !strcmp(model->config.arch, "gpt2");
  const char *base = hf_base_name(model, name), *buffer = inside_block(base ? base : name, gpt2 ? "h." : "layers.");
  if (model->config.tied && !strcmp(name, "lm_head.weight"))
    return HF_EXTRA_TIED_HEAD;
  if (buffer && gpt2 && (!strcmp(buffer, "attn.bias") || !strcmp(buffer, "attn.masked_bias")))
    return HF_EXTRA_BUFFER;
  if (buffer && !gpt2 && !strcmp(buffer, "self_attn.rotary_emb.inv_freq"))
    return HF_EXTRA_BUFFER;
  if (!gpt2 && !strcmp(base ? base : name, "rotary_emb.inv_freq"))
    return HF_EXTRA_BUFFER;
  return HF_EXTRA_UNKNOWN;
}
