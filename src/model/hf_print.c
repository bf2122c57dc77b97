/* Writing config.json with the keys of transformers 4.x, as in most published models. Every version
 * reads them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "model/hf.h"
#include "model/hf_private.h"

enum { TEXT_MOST = 4096 };

#define put(text, ...) append_text(text, TEXT_MOST, __VA_ARGS__)

/* Every member except the first, "model_type", follows a comma. */
static void put_text(char *text, const char *key, const char *value)
{
  put(text, ",\n  \"%s\": \"%s\"", key, value);
}

static void put_whole(char *text, const char *key, int64_t value)
{
  put(text, ",\n  \"%s\": %lld", key, (long long)value);
}

static void put_bool(char *text, const char *key, bool value)
{
  put(text, ",\n  \"%s\": %s", key, value ? "true" : "false");
}

/* 0: null */
static void put_or_null(char *text, const char *key, int64_t value)
{
  if (value)
    put_whole(text, key, value);
  else
    put(text, ",\n  \"%s\": null", key);
}

static void put_tokens(char *text, const char *key, const struct hf_tokens *tokens)
{
  if (tokens->n == HF_TOKENS_NONE)
    put_or_null(text, key, 0);
  if (tokens->n == 1)
    put_whole(text, key, tokens->id[0]);
  if (tokens->n <= 1)
    return;
  put(text, ",\n  \"%s\": [", key);
  for (int i = 0; i < tokens->n; i++)
    put(text, i ? ", %lld" : "%lld", (long long)tokens->id[i]);
  put(text, "]");
}

/* The shortest that reads back, written as Python writes it: 1000000.0, 1e-06. */
static void put_number(char *text, double value)
{
  char digits[40];
  int precision = 1;
  for (; precision < 17; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, value);
    if (strtod(digits, NULL) == value)
      break;
  }
  const int exponent = value == 0 ? 0 : (int)floor(log10(fabs(value)));
  const bool plain = exponent >= -4 && exponent < 16;
  snprintf(digits, sizeof digits, plain ? "%.*f" : "%.*g",
           plain ? (precision - 1 > exponent ? precision - 1 - exponent : 1) : precision, value);
  put(text, "%s", digits);
}

static void put_real(char *text, const char *key, double value)
{
  put(text, ",\n  \"%s\": ", key);
  put_number(text, value);
}

static void put_gpt2(char *text, const struct model_config *model)
{
  put_whole(text, "n_positions", model->context);
  put_whole(text, "n_ctx", model->context);
  put_whole(text, "n_embd", model->width);
  put_whole(text, "n_layer", model->layers);
  put_whole(text, "n_head", model->heads);
  put_or_null(text, "n_inner", model->ffn != 4 * model->width ? model->ffn : 0);
  put_text(text, "activation_function", "gelu_new");
  put_real(text, "layer_norm_epsilon", model->norm_eps);
  put_real(text, "resid_pdrop", 0); /* as it was trained here */
  put_real(text, "embd_pdrop", 0);
  put_real(text, "attn_pdrop", 0);
}

static void put_rope(char *text, const struct rope_config *rope)
{
  put_real(text, "rope_theta", rope->theta != 0 ? rope->theta : 10000);
  if (rope->scaling == ROPE_PLAIN) {
    put_or_null(text, "rope_scaling", 0);
    return;
  }
  put(text, ",\n  \"rope_scaling\": {\n    \"factor\": ");
  put_number(text, rope->factor);
  if (rope->scaling == ROPE_LLAMA3) {
    put(text, ",\n    \"high_freq_factor\": ");
    put_number(text, rope->high_freq);
    put(text, ",\n    \"low_freq_factor\": ");
    put_number(text, rope->low_freq);
    put(text, ",\n    \"original_max_position_embeddings\": %lld", (long long)rope->original);
  }
  put(text, ",\n    \"rope_type\": \"%s\"\n  }",
      rope->scaling == ROPE_LLAMA3 ? "llama3" : "linear");
}

static void put_windows(char *text, const struct hf_family *family,
                        const struct model_config *model)
{
  if (!family->window)
    return;
  put_or_null(text, "sliding_window", model->window);
  if (family->bit == OF_MISTRAL)
    return;
  put_bool(text, "use_sliding_window", model->window > 0);
  put_whole(text, "max_window_layers", model->window ? model->window_from : model->layers);
}

static void put_decoder(char *text, const struct hf_family *family,
                        const struct model_config *model)
{
  const int64_t head_width = model->head_width ? model->head_width : model->width / model->heads;
  put_whole(text, "hidden_size", model->width);
  put_whole(text, "intermediate_size", model->ffn);
  put_whole(text, "num_hidden_layers", model->layers);
  put_whole(text, "num_attention_heads", model->heads);
  put_whole(text, "num_key_value_heads", model->kv_heads ? model->kv_heads : model->heads);
  if (family->bit != OF_QWEN2 ||
      head_width * model->heads != model->width) /* because some versions do not have this key */
    put_whole(text, "head_dim", head_width);
  put_text(text, "hidden_act", family->activation);
  put_whole(text, "max_position_embeddings", model->context);
  put_real(text, "rms_norm_eps", model->norm_eps);
  put_rope(text, &model->rope);
  put_windows(text, family, model);
  if (family->bit & (OF_LLAMA | OF_QWEN3))
    put_bool(text, "attention_bias", false);
  if (family->bit == OF_LLAMA)
    put_bool(text, "mlp_bias", false);
  put_real(text, "attention_dropout", 0);
}

static const char *dtype_text(enum dtype type)
{
  return type == DTYPE_BF16 ? "bfloat16" : type == DTYPE_F16 ? "float16" : "float32";
}

enum status hf_config_print(const struct hf_config *config, char **out)
{
  const struct model_config *model = &config->model;
  const struct hf_family *family = hf_family_find(model->arch);
  char text[TEXT_MOST] = "";
  if (!family)
    return status_set(STATUS_UNSUPPORTED,
                      "there is no Hugging Face configuration of the architecture %s", model->arch);
  put(text, "{\n  \"model_type\": \"%s\",\n  \"architectures\": [\n    \"%s\"\n  ]", family->arch,
      family->causal);
  put_whole(text, "vocab_size", model->vocab);
  if (family->bit == OF_GPT2)
    put_gpt2(text, model);
  else
    put_decoder(text, family, model);
  put_real(text, "initializer_range", model->init_std);
  put_bool(text, "tie_word_embeddings", model->tied);
  put_tokens(text, "bos_token_id", &config->bos);
  put_tokens(text, "eos_token_id", &config->eos);
  put_bool(text, "use_cache", true);
  put_text(text, "torch_dtype", dtype_text(config->dtype));
  put(text, "\n}\n");
  if (strlen(text) == TEXT_MOST - 1)
    return status_set(STATUS_INTERNAL, "a config.json of more than %d bytes", TEXT_MOST);
  *out = mem_strdup(text);
  return *out ? STATUS_OK : STATUS_MEMORY;
}
