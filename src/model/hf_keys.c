/* A table says how each key of config.json is used. Keys that are in no table are refused or
 * ignored. */
#include "model/hf_private.h"

#include <string.h>

#include "base/log.h"

/* --- the table of keys --------------------------------------------------- */

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
  DROPOUT /* for training by other programs */
};

struct rule {
  const char *key;
  unsigned of;
  enum how how;
  size_t offset; /* in struct hf_config */
  double least, most;
  bool required, nullable; /* null counts as 0 for READ_WHOLE, and as missing for others */
};

#define AT(field) offsetof(struct hf_config, field)

/* Ranges are those of the deck's keys. */
static const struct rule rules[] = {
    {.key = "vocab_size",
     .of = OF_ALL,
     .how = READ_WHOLE,
     .offset = AT(model.vocab),
     .least = 2,
     .most = INT32_MAX,
     .required = true},
    {.key = "n_embd",
     .of = OF_GPT2,
     .how = READ_WHOLE,
     .offset = AT(model.width),
     .least = 1,
     .most = 1 << 20,
     .required = true},
    {.key = "hidden_size",
     .of = OF_ROPE,
     .how = READ_WHOLE,
     .offset = AT(model.width),
     .least = 1,
     .most = 1 << 20,
     .required = true},
    {.key = "n_layer",
     .of = OF_GPT2,
     .how = READ_WHOLE,
     .offset = AT(model.layers),
     .least = 1,
     .most = 65536,
     .required = true},
    {.key = "num_hidden_layers",
     .of = OF_ROPE,
     .how = READ_WHOLE,
     .offset = AT(model.layers),
     .least = 1,
     .most = 65536,
     .required = true},
    {.key = "n_head",
     .of = OF_GPT2,
     .how = READ_WHOLE,
     .offset = AT(model.heads),
     .least = 1,
     .most = 1 << 16,
     .required = true},
    {.key = "num_attention_heads",
     .of = OF_ROPE,
     .how = READ_WHOLE,
     .offset = AT(model.heads),
     .least = 1,
     .most = 1 << 16,
     .required = true},
    {.key = "num_key_value_heads",
     .of = OF_ROPE,
     .how = READ_WHOLE,
     .offset = AT(model.kv_heads),
     .least = 1,
     .most = 1 << 16,
     .nullable = true},
    {.key = "head_dim",
     .of = OF_ROPE,
     .how = READ_WHOLE,
     .offset = AT(model.head_width),
     .least = 1,
     .most = MODEL_MOST_HEAD_WIDTH,
     .nullable = true},
    {.key = "n_inner",
     .of = OF_GPT2,
     .how = READ_WHOLE,
     .offset = AT(model.ffn),
     .least = 1,
     .most = 1 << 24,
     .nullable = true},
    {.key = "intermediate_size",
     .of = OF_ROPE,
     .how = READ_WHOLE,
     .offset = AT(model.ffn),
     .least = 1,
     .most = 1 << 24,
     .required = true},
    {.key = "n_positions",
     .of = OF_GPT2,
     .how = READ_WHOLE,
     .offset = AT(model.context),
     .least = 1,
     .most = 1 << 26},
    {.key = "max_position_embeddings",
     .of = OF_ROPE,
     .how = READ_WHOLE,
     .offset = AT(model.context),
     .least = 1,
     .most = 1 << 26},
    {.key = "layer_norm_epsilon",
     .of = OF_GPT2,
     .how = READ_REAL,
     .offset = AT(model.norm_eps),
     .least = 1e-30,
     .most = 1},
    {.key = "rms_norm_eps",
     .of = OF_ROPE,
     .how = READ_REAL,
     .offset = AT(model.norm_eps),
     .least = 1e-30,
     .most = 1},
    {.key = "initializer_range",
     .of = OF_ALL,
     .how = READ_REAL,
     .offset = AT(model.init_std),
     .least = 0,
     .most = 10},
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

/* Read by hf_read.c, hf_rope.c and hf_window.c. */
static const struct names elsewhere[] = {
    {OF_ALL, {"model_type", "architectures", "dtype", "torch_dtype"}},
    {OF_ROPE,
     {"rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings",
      "layer_types"}},
    {OF_QWEN2 | OF_QWEN3 | OF_MISTRAL, {"sliding_window"}},
    {OF_QWEN2 | OF_QWEN3, {"use_sliding_window", "max_window_layers"}},
};

/* These keys change no result. For example, qwen2's biases do not depend on attention_bias. */
static const struct names harmless[] = {
    {OF_QWEN2, {"attention_bias"}},
    {OF_ROPE, {"pretraining_tp"}},
    {OF_GPT2,
     {"n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
      "summary_proj_to_labels", "summary_first_dropout"}},
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

/* --- one key ------------------------------------------------------------- */

/* A member that exists and is not null. */
/* -1 stands for none. */
static enum status add_token(const struct json_node *node, struct hf_tokens *out)
{
  int64_t id = -1;
  enum status status = json_get_whole(node, -1, INT32_MAX, &id);
  if (!status && id >= 0)
    out->id[out->n++] = id;
  return status;
}

enum status hf_read_tokens(const struct json_node *node, struct hf_tokens *out)
{
  struct hf_tokens tokens = {0};
  enum status status = STATUS_OK;
  if (json_kind(node) != JSON_ARRAY)
    status = add_token(node, &tokens);
  else if (json_length(node) < 1 || json_length(node) > HF_TOKENS_MOST)
    status = json_fail(node,
                       json_length(node) < 1 ? "is empty, where token ids belong"
                                             : "has more than %d token ids",
                       HF_TOKENS_MOST);
  else
    for (node = json_first(node); node && !status; node = json_next(node))
      status = add_token(node, &tokens);
  if (!status)
    *out = tokens;
  return status;
}

enum status hf_read_real(const struct json_node *node, double least, double most, double *out)
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

enum status hf_check_one(const struct json_node *node)
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
  return json_fail(node, "is \"%.40s\": Sluice's %s has the activation %s", name, family->arch,
                   family->activation);
}

static enum status note_dropout(const struct json_node *node, double *dropout)
{
  double value = 0;
  enum status status = json_get_real(node, &value);
  if (!status && value > *dropout)
    *dropout = value;
  return status;
}

static enum status apply(const struct rule *rule, const struct json_node *node,
                         const struct hf_family *family, struct hf_config *out, double *dropout)
{
  void *field = (char *)out + rule->offset;
  if (rule->nullable && json_kind(node) == JSON_NULL) {
    if (rule->how == READ_WHOLE)
      *(int64_t *)field = 0;
    return STATUS_OK;
  }
  switch (rule->how) {
  case READ_WHOLE: return json_get_whole(node, (int64_t)rule->least, (int64_t)rule->most, field);
  case READ_REAL: return hf_read_real(node, rule->least, rule->most, field);
  case READ_BOOL: return json_get_bool(node, field);
  case READ_TOKENS: return hf_read_tokens(node, field);
  case MUST_BE_TRUE: return check_bool(node, true);
  case MUST_BE_FALSE: return check_bool(node, false);
  case MUST_BE_ONE: return hf_check_one(node);
  case MUST_BE_EMPTY: return check_empty(node);
  case ACTIVATION: return check_activation(node, family);
  case DROPOUT: return note_dropout(node, dropout);
  }
  return STATUS_OK;
}

enum status hf_apply_rules(const struct json_node *root, const struct hf_family *family,
                           struct hf_config *out)
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

static bool is_among(const struct names *names, size_t n, const char *key,
                     const struct hf_family *family)
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

/* Whether a key's name suggests that results depend on it. */
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
  case JSON_NUMBER:
    return json_get_real(node, &number) == STATUS_OK && (number == 0 || number == 1);
  default: return false;
  }
}

enum status hf_check_unknown(const char *path, const struct json_node *root,
                             const struct hf_family *family)
{
  for (const struct json_node *node = json_first(root); node; node = json_next(node)) {
    const char *key = json_key(node, NULL);
    if (is_known(key, family))
      continue;
    if (sounds_numeric(key) && !is_off(node))
      return json_fail(
          node, "is given: it is no key of a %s that Sluice knows, and may change its numbers",
          family->arch);
    log_warn("%s: %.80s is ignored: it is no key of a %s that Sluice knows", path, key,
             family->arch);
  }
  return STATUS_OK;
}
