/* A table says how each key of config.json is used. Keys that are in no table are refused or
 * ignored. */
#include "model/hf_private.h"

#include <math.h>
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
  size_t at; /* in struct hf_config */
  double least, most;
  enum { OPTIONAL, REQUIRED, NULLABLE } need; /* null: 0 for READ_WHOLE, missing for others */
};

#define AT(field) offsetof(struct hf_config, field)

/* Ranges are those of the deck's keys. */
/* clang-format off */
static const struct rule rules[] = {
    {"vocab_size", OF_ALL, READ_WHOLE, AT(model.vocab), 2, INT32_MAX, REQUIRED},
    {"n_embd", OF_GPT2, READ_WHOLE, AT(model.width), 1, 1 << 20, REQUIRED},
    {"hidden_size", OF_ROPE, READ_WHOLE, AT(model.width), 1, 1 << 20, REQUIRED},
    {"n_layer", OF_GPT2, READ_WHOLE, AT(model.layers), 1, 65536, REQUIRED},
    {"num_hidden_layers", OF_ROPE, READ_WHOLE, AT(model.layers), 1, 65536, REQUIRED},
    {"n_head", OF_GPT2, READ_WHOLE, AT(model.heads), 1, 1 << 16, REQUIRED},
    {"num_attention_heads", OF_ROPE, READ_WHOLE, AT(model.heads), 1, 1 << 16, REQUIRED},
    {"num_key_value_heads", OF_ROPE, READ_WHOLE, AT(model.kv_heads), 1, 1 << 16, NULLABLE},
    {"head_dim", OF_ROPE, READ_WHOLE, AT(model.head_width), 1, MODEL_MOST_HEAD_WIDTH, NULLABLE},
    {"n_inner", OF_GPT2, READ_WHOLE, AT(model.ffn), 1, 1 << 24, NULLABLE},
    {"intermediate_size", OF_ROPE, READ_WHOLE, AT(model.ffn), 1, 1 << 24, REQUIRED},
    {"n_positions", OF_GPT2, READ_WHOLE, AT(model.context), 1, 1 << 26, OPTIONAL},
    {"max_position_embeddings", OF_ROPE, READ_WHOLE, AT(model.context), 1, 1 << 26, OPTIONAL},
    {"layer_norm_epsilon", OF_GPT2, READ_REAL, AT(model.norm_eps), 1e-30, 1, OPTIONAL},
    {"rms_norm_eps", OF_ROPE, READ_REAL, AT(model.norm_eps), 1e-30, 1, OPTIONAL},
    {"initializer_range", OF_ALL, READ_REAL, AT(model.init_std), 0, 10, OPTIONAL},
    {"tie_word_embeddings", OF_ALL, READ_BOOL, .at = AT(model.tied)},
    {"bos_token_id", OF_ALL, READ_TOKENS, AT(bos), .need = NULLABLE},
    {"eos_token_id", OF_ALL, READ_TOKENS, AT(eos), .need = NULLABLE},
    {"activation_function", OF_GPT2, .how = ACTIVATION},
    {"hidden_act", OF_ROPE, .how = ACTIVATION},
    {"resid_pdrop", OF_GPT2, DROPOUT, .need = NULLABLE},
    {"embd_pdrop", OF_GPT2, DROPOUT, .need = NULLABLE},
    {"attn_pdrop", OF_GPT2, DROPOUT, .need = NULLABLE},
    {"attention_dropout", OF_ROPE, DROPOUT, .need = NULLABLE},
    {"scale_attn_weights", OF_GPT2, .how = MUST_BE_TRUE},
    {"scale_attn_by_inverse_layer_idx", OF_GPT2, .how = MUST_BE_FALSE},
    {"add_cross_attention", OF_ALL, .how = MUST_BE_FALSE},
    {"is_encoder_decoder", OF_ALL, .how = MUST_BE_FALSE},
    {"attention_bias", OF_LLAMA | OF_QWEN3 | OF_MISTRAL, .how = MUST_BE_FALSE},
    {"mlp_bias", OF_ROPE, .how = MUST_BE_FALSE},
    {"rope_interleaved", OF_ROPE, .how = MUST_BE_FALSE},
    {"use_mrope", OF_ROPE, .how = MUST_BE_FALSE},
    {"partial_rotary_factor", OF_ROPE, MUST_BE_ONE, .need = NULLABLE},
    {"quantization_config", OF_ALL, .how = MUST_BE_EMPTY},
    {"per_layer_config", OF_ALL, .how = MUST_BE_EMPTY},
    {"pruned_heads", OF_ALL, .how = MUST_BE_EMPTY},
};
/* clang-format on */
enum { RULES = sizeof rules / sizeof *rules };

/* Keys without a rule. */
struct names {
  unsigned of;
  const char *key[36];
};

/* clang-format off */
static const struct names unruled[] = {
    /* Read by hf_read.c, hf_rope.c and hf_window.c. */
    {OF_ALL, {"model_type", "architectures", "dtype", "torch_dtype"}},
    {OF_ROPE, {"rope_theta", "rope_scaling", "rope_parameters", "layer_types",
               "original_max_position_embeddings"}},
    {OF_QWEN2 | OF_QWEN3 | OF_MISTRAL, {"sliding_window"}},
    {OF_QWEN2 | OF_QWEN3, {"use_sliding_window", "max_window_layers"}},
    /* These keys change no result. For example, qwen2's biases do not depend on attention_bias. */
    {OF_QWEN2, {"attention_bias"}},
    {OF_ROPE, {"pretraining_tp"}},
    {OF_GPT2, {"n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj",
               "summary_activation", "summary_proj_to_labels", "summary_first_dropout"}},
    {OF_ALL, {"chunk_size_feed_forward", "gradient_checkpointing", "use_cache", "pad_token_id",
              "sep_token_id", "decoder_start_token_id", "transformers_version", "name_or_path",
              "_name_or_path", "_commit_hash", "_num_labels", "attn_implementation",
              "_attn_implementation", "_attn_implementation_autoset", "output_attentions",
              "output_hidden_states", "output_past", "return_dict", "torchscript",
              "tokenizer_class", "task_specific_params", "problem_type", "finetuning_task",
              "num_labels", "id2label", "label2id", "max_length", "do_sample", "temperature",
              "top_k", "top_p", "repetition_penalty"}},
};
/* clang-format on */

/* --- one key ------------------------------------------------------------- */

/* -1 stands for none. */
static void add_token(struct json_node node, struct hf_tokens *out)
{
  const int64_t id = json_get_whole(node, -1, INT32_MAX);
  if (id >= 0)
    out->id[out->n++] = id;
}

struct hf_tokens hf_read_tokens(struct json_node node)
{
  struct hf_tokens tokens = {0};
  if (!json_is_array(node.value))
    add_token(node, &tokens);
  else if (json_length(node) == 0)
    json_fail(node, "is empty, where token ids belong");
  else if (json_length(node) > HF_TOKENS_MOST)
    json_fail(node, "has more than %d token ids", HF_TOKENS_MOST);
  else
    for (struct json_node item = json_first(node); json_more(item); item = json_next(item))
      add_token(item, &tokens);
  return tokens;
}

double hf_read_real(struct json_node node, double least, double most)
{
  const double value = json_get_real(node);
  if (value < least || value > most)
    json_fail(node, "is %g, where a number from %g to %g belongs", value, least, most);
  return value;
}

static void check_bool(struct json_node node, bool wanted)
{
  const bool truth = json_get_bool(node);
  if (truth != wanted)
    json_fail(node, "is %s, which Sluice does not compute", truth ? "true" : "false");
}

void hf_check_one(struct json_node node)
{
  const double value = json_get_real(node);
  if (value != 1)
    json_fail(node, "is %g; Sluice turns all of a head's elements, as 1 says", value);
}

static void check_empty(struct json_node node)
{
  const bool holds = json_is_array(node.value) || json_is_object(node.value);
  if (!json_is_null(node.value) && (!holds || json_length(node) > 0))
    json_fail(node, "is given: Sluice does not read such models");
}

/* GELU with tanh and SiLU have two names each. */
static void check_activation(struct json_node node, const struct hf_family *family)
{
  const char *name = json_get_text(node),
             *alias = family->bit == OF_GPT2 ? "gelu_pytorch_tanh" : "swish";
  if (strcmp(name, family->activation) != 0 && strcmp(name, alias) != 0)
    json_fail(node, "is \"%.40s\": Sluice's %s has the activation %s", name, family->arch,
              family->activation);
}

static void apply(const struct rule *rule, struct json_node node, const struct hf_family *family,
                  struct hf_config *out, double *dropout)
{
  void *field = (char *)out + rule->at;
  if (rule->need == NULLABLE && json_is_null(node.value)) {
    if (rule->how == READ_WHOLE)
      *(int64_t *)field = 0;
    return;
  }
  switch (rule->how) {
  case READ_WHOLE:
    *(int64_t *)field = json_get_whole(node, (int64_t)rule->least, (int64_t)rule->most);
    break;
  case READ_REAL: *(double *)field = hf_read_real(node, rule->least, rule->most); break;
  case READ_BOOL: *(bool *)field = json_get_bool(node); break;
  case READ_TOKENS: *(struct hf_tokens *)field = hf_read_tokens(node); break;
  case MUST_BE_TRUE: check_bool(node, true); break;
  case MUST_BE_FALSE: check_bool(node, false); break;
  case MUST_BE_ONE: hf_check_one(node); break;
  case MUST_BE_EMPTY: check_empty(node); break;
  case ACTIVATION: check_activation(node, family); break;
  case DROPOUT: *dropout = fmax(*dropout, json_get_real(node)); break;
  }
}

void hf_apply_rules(struct json_node root, const struct hf_family *family, struct hf_config *out)
{
  double dropout = 0;
  for (int i = 0; i < RULES; i++) {
    const struct rule *rule = &rules[i];
    const struct json_node node = json_find(root, rule->key);
    if (!(rule->of & family->bit))
      continue;
    if (node.value)
      apply(rule, node, family, out, &dropout);
    else if (rule->need == REQUIRED)
      json_fail(root, "has no %s, which a %s needs", rule->key, family->arch);
  }
  if (!root.file->status && dropout > 0)
    log_warn("the model was configured with dropout %g: Sluice trains without dropout", dropout);
}

static bool is_known(const char *key, const struct hf_family *family)
{
  for (int i = 0; i < RULES; i++)
    if (rules[i].of & family->bit && !strcmp(rules[i].key, key))
      return true;
  for (size_t i = 0; i < sizeof unruled / sizeof *unruled; i++)
    for (const char *const *name = unruled[i].key; *name && unruled[i].of & family->bit; name++)
      if (!strcmp(*name, key))
        return true;
  return false;
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
static bool is_off(const json_t *value)
{
  const double number = json_number_value(value);
  return json_is_null(value) || json_is_false(value) ||
         (json_is_number(value) && (number == 0 || number == 1));
}

void hf_check_unknown(struct json_node root, const struct hf_family *family)
{
  for (struct json_node node = json_first(root); json_more(node); node = json_next(node)) {
    if (is_known(node.key, family))
      continue;
    if (sounds_numeric(node.key) && !is_off(node.value))
      json_fail(node,
                "is given: it is no key of a %s that Sluice knows, and may change its numbers",
                family->arch);
    else
      log_warn("%s: %.80s is ignored: it is no key of a %s that Sluice knows", root.file->path,
               node.key, family->arch);
  }
}
