/* Writing config.json with the keys of transformers 4.x, as in most published models. Every version
 * reads them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "io/text/json_write.h"
#include "model/hf_private.h"

/* 0: null */
static void put_or_null(struct json_writer *to, const char *key, int64_t value)
{
  if (value)
    json_write_int(to, key, value);
  else
    json_write_text(to, key, NULL);
}

static void put_tokens(struct json_writer *to, const char *key, const struct hf_tokens *tokens)
{
  if (tokens->n == HF_TOKENS_NONE)
    json_write_text(to, key, NULL);
  if (tokens->n == 1)
    json_write_int(to, key, tokens->id[0]);
  if (tokens->n <= 1)
    return;
  json_write_open(to, key, '[');
  for (int i = 0; i < tokens->n; i++)
    json_write_int(to, NULL, tokens->id[i]);
  json_write_close(to, ']');
}

/* The shortest that reads back, written as Python writes it: 1000000.0, 1e-06. */
static void put_real(struct json_writer *to, const char *key, double value)
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
  json_write_number(to, key, digits);
}

static void put_gpt2(struct json_writer *to, const struct model_config *model)
{
  json_write_int(to, "n_positions", model->context);
  json_write_int(to, "n_ctx", model->context);
  json_write_int(to, "n_embd", model->width);
  json_write_int(to, "n_layer", model->layers);
  json_write_int(to, "n_head", model->heads);
  put_or_null(to, "n_inner", model->ffn != 4 * model->width ? model->ffn : 0);
  json_write_text(to, "activation_function", "gelu_new");
  put_real(to, "layer_norm_epsilon", model->norm_eps);
  put_real(to, "resid_pdrop", 0); /* as it was trained here */
  put_real(to, "embd_pdrop", 0);
  put_real(to, "attn_pdrop", 0);
}

static void put_rope(struct json_writer *to, const struct rope_config *rope)
{
  put_real(to, "rope_theta", rope->theta != 0 ? rope->theta : 10000);
  if (rope->scaling == ROPE_PLAIN) {
    put_or_null(to, "rope_scaling", 0);
    return;
  }
  json_write_open(to, "rope_scaling", '{');
  put_real(to, "factor", rope->factor);
  if (rope->scaling == ROPE_LLAMA3) {
    put_real(to, "high_freq_factor", rope->high_freq);
    put_real(to, "low_freq_factor", rope->low_freq);
    json_write_int(to, "original_max_position_embeddings", rope->original);
  }
  json_write_text(to, "rope_type", rope->scaling == ROPE_LLAMA3 ? "llama3" : "linear");
  json_write_close(to, '}');
}

static void put_windows(struct json_writer *to, const struct hf_family *family,
                        const struct model_config *model)
{
  if (!family->window)
    return;
  put_or_null(to, "sliding_window", model->window);
  if (family->bit == OF_MISTRAL)
    return;
  json_write_bool(to, "use_sliding_window", model->window > 0);
  json_write_int(to, "max_window_layers", model->window ? model->window_from : model->layers);
}

static void put_decoder(struct json_writer *to, const struct hf_family *family,
                        const struct model_config *model)
{
  const int64_t head_width = model->head_width ? model->head_width : model->width / model->heads;
  json_write_int(to, "hidden_size", model->width);
  json_write_int(to, "intermediate_size", model->ffn);
  json_write_int(to, "num_hidden_layers", model->layers);
  json_write_int(to, "num_attention_heads", model->heads);
  json_write_int(to, "num_key_value_heads", model->kv_heads ? model->kv_heads : model->heads);
  if (family->bit != OF_QWEN2 ||
      head_width * model->heads != model->width) /* because some versions do not have this key */
    json_write_int(to, "head_dim", head_width);
  json_write_text(to, "hidden_act", family->activation);
  json_write_int(to, "max_position_embeddings", model->context);
  put_real(to, "rms_norm_eps", model->norm_eps);
  put_rope(to, &model->rope);
  put_windows(to, family, model);
  if (family->bit & (OF_LLAMA | OF_QWEN3))
    json_write_bool(to, "attention_bias", false);
  if (family->bit == OF_LLAMA)
    json_write_bool(to, "mlp_bias", false);
  put_real(to, "attention_dropout", 0);
}

static void put_config(struct json_writer *to, const struct hf_family *family,
                       const struct hf_config *config)
{
  const struct model_config *model = &config->model;
  json_write_open(to, NULL, '{');
  json_write_text(to, "model_type", family->arch);
  json_write_open(to, "architectures", '[');
  json_write_text(to, NULL, family->causal);
  json_write_close(to, ']');
  json_write_int(to, "vocab_size", model->vocab);
  if (family->bit == OF_GPT2)
    put_gpt2(to, model);
  else
    put_decoder(to, family, model);
  put_real(to, "initializer_range", model->init_std);
  json_write_bool(to, "tie_word_embeddings", model->tied);
  put_tokens(to, "bos_token_id", &config->bos);
  put_tokens(to, "eos_token_id", &config->eos);
  json_write_bool(to, "use_cache", true);
  json_write_text(to, "torch_dtype", hf_dtypes[config->dtype]);
  json_write_close(to, '}');
}

enum status hf_config_print(const struct hf_config *config, char **out)
{
  const struct hf_family *family = hf_family_find(config->model.arch);
  char *text = NULL;
  size_t bytes;
  if (!family)
    return status_set(STATUS_UNSUPPORTED,
                      "there is no Hugging Face configuration of the architecture %s",
                      config->model.arch);
  struct json_writer json = {.to = open_memstream(&text, &bytes)};
  if (json.to)
    put_config(&json, family, config);
  enum status status = STATUS_OK;
  if (!json.to || fclose(json.to) != 0)
    status = status_set(STATUS_MEMORY, "no memory for the text of config.json");
  else if (!(*out = mem_strdup(text)))
    status = STATUS_MEMORY;
  free(text);
  return status;
}
