/* Hugging Face's configurations and names. Oracles: the fixtures' numbers, written here by hand;
 * one model said with the keys of transformers 5.x and of 4.x; print and read as inverses; the
 * tensors that transformers wrote. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/huggingface/safetensors.h"
#include "io/text/file.h"
#include "model/hf.h"
#include "tests/test.h"

static char dir[] = "/tmp/sluice-hf-XXXXXX";
static char config_path[64], log_path[64];

FIXTURE(start)
{
  if (!mkdtemp(dir))
    return -1;
  snprintf(config_path, sizeof config_path, "%s/config.json", dir);
  snprintf(log_path, sizeof log_path, "%s/log", dir);
  return 0;
}

FIXTURE(stop)
{
  unlink(config_path);
  unlink(log_path);
  return rmdir(dir);
}

static const char *fixture(const char *name, const char *file)
{
  static char path[4096];
  const char *top = getenv("top_srcdir");
  snprintf(path, sizeof path, "%s/tests/model/data/%s/%s", top ? top : ".", name, file);
  return path;
}

static struct hf_config read_config(const char *path)
{
  struct hf_config config = {0};
  const enum status status = hf_config_read(path, &config);
  assert_string_equal(status ? status_text() : "", "");
  return config;
}

static int64_t head_width(const struct model_config *model)
{
  return model->head_width ? model->head_width : model->width / model->heads;
}

static void same_config(const struct hf_config *a, const struct hf_config *b)
{
  assert_string_equal(a->model.arch, b->model.arch);
  assert_int_equal(a->model.layers, b->model.layers);
  assert_int_equal(a->model.width, b->model.width);
  assert_int_equal(a->model.heads, b->model.heads);
  assert_int_equal(a->model.context, b->model.context);
  assert_int_equal(a->model.vocab, b->model.vocab);
  assert_int_equal(a->model.kv_heads, b->model.kv_heads);
  assert_int_equal(head_width(&a->model), head_width(&b->model));
  assert_int_equal(a->model.ffn, b->model.ffn);
  assert_int_equal(a->model.window, b->model.window);
  assert_int_equal(a->model.window_from, b->model.window_from);
  assert_int_equal(a->model.tied, b->model.tied);
  assert_true(a->model.norm_eps == b->model.norm_eps && a->model.init_std == b->model.init_std);
  assert_true(a->model.rope.theta == b->model.rope.theta &&
              a->model.rope.factor == b->model.rope.factor);
  assert_true(a->model.rope.low_freq == b->model.rope.low_freq &&
              a->model.rope.high_freq == b->model.rope.high_freq);
  assert_int_equal(a->model.rope.scaling, b->model.rope.scaling);
  assert_int_equal(a->model.rope.original, b->model.rope.original);
  assert_int_equal(a->dtype, b->dtype);
  assert_memory_equal(&a->bos, &b->bos, sizeof a->bos);
  assert_memory_equal(&a->eos, &b->eos, sizeof a->eos);
}

#define PLAIN(base)                                                                                \
  {                                                                                                \
    .theta = (base)                                                                                \
  }

static struct hf_config read_changed(const char *name, const char *from, const char *to);

/* First of the tests, because the log opens with earlier warnings. */
TEST(unknown_keys_and_dropout_are_warned_of)
{
  char *text = NULL;
  size_t bytes = 0;
  assert_int_equal(log_open_file(log_path), STATUS_OK);
  (void)read_changed(
      "gpt2", NULL,
      "\"water_level\": 3, \"logit_scale\": 1.0, \"softcap\": null, \"head_bias\": false");
  assert_int_equal(log_open_file(NULL), STATUS_OK);
  assert_int_equal(file_read_all(log_path, 1 << 20, &text, &bytes), STATUS_OK);
  const char *dropout = strstr(text, "configured with dropout 0.1: Sluice trains without dropout"),
             *unknown = strstr(text, "water_level is ignored");
  assert_non_null(dropout);
  assert_null(
      strstr(dropout + 1, "configured with dropout")); /* once, though GPT-2 has three of them */
  assert_non_null(unknown);
  assert_null(strstr(unknown + 1, "water_level"));
  assert_non_null(strstr(text, "logit_scale is ignored")); /* one changes nothing */
  mem_free(text);
}

static const struct {
  const char *name;
  struct hf_config config;
  // clang-format off: one row a model
} models[] = {
    {"gpt2",
     {{.arch = "gpt2",
       .layers = 2,
       .width = 30,
       .heads = 3,
       .context = 40,
       .vocab = 67,
       .tied = true,
       .norm_eps = 1e-5,
       .init_std = 0.02},
      DTYPE_F32,
      {1, {66}},
      {1, {66}}}},
    {"llama",
     {{.arch = "llama",
       .layers = 2,
       .width = 48,
       .heads = 6,
       .context = 64,
       .vocab = 61,
       .kv_heads = 2,
       .head_width = 8,
       .ffn = 40,
       .norm_eps = 1e-5,
       .init_std = 0.02,
       .rope = PLAIN(10000)},
      DTYPE_F32,
      {1, {1}},
      {1, {2}}}},
    {"llama3",
     {{.arch = "llama",
       .layers = 2,
       .width = 32,
       .heads = 4,
       .context = 512,
       .vocab = 61,
       .kv_heads = 2,
       .head_width = 16,
       .ffn = 48,
       .tied = true,
       .norm_eps = 1e-5,
       .init_std = 0.02,
       .rope = {.theta = 1000,
                .scaling = ROPE_LLAMA3,
                .factor = 8,
                .low_freq = 1,
                .high_freq = 4,
                .original = 64}},
      DTYPE_F32,
      {1, {1}},
      {1, {2}}}},
    {"qwen2",
     {{.arch = "qwen2",
       .layers = 2,
       .width = 36,
       .heads = 3,
       .context = 128,
       .vocab = 83,
       .kv_heads = 1,
       .ffn = 44,
       .tied = true,
       .norm_eps = 1e-6,
       .init_std = 0.02,
       .rope = PLAIN(1e6)},
      DTYPE_F32,
      {1, {1}},
      {1, {2}}}},
    {"qwen3",
     {{.arch = "qwen3",
       .layers = 2,
       .width = 32,
       .heads = 4,
       .context = 128,
       .vocab = 64,
       .kv_heads = 2,
       .head_width = 20,
       .ffn = 40,
       .norm_eps = 1e-6,
       .init_std = 0.02,
       .rope = PLAIN(1e6)},
      DTYPE_F32,
      {1, {1}},
      {1, {2}}}},
    {"mistral",
     {{.arch = "mistral",
       .layers = 2,
       .width = 40,
       .heads = 5,
       .context = 64,
       .vocab = 71,
       .kv_heads = 1,
       .head_width = 12,
       .ffn = 36,
       .window = 8,
       .norm_eps = 1e-5,
       .init_std = 0.02,
       .rope = PLAIN(10000)},
      DTYPE_F32,
      {1, {1}},
      {1, {2}}}},
};
// clang-format on
enum { MODELS = sizeof models / sizeof *models };

TEST(configurations_of_both_versions_are_read)
{
  for (int m = 0; m < MODELS; m++) {
    const struct hf_config new = read_config(fixture(models[m].name, "config.json")),
                           old = read_config(fixture(models[m].name, "config.hub.json"));
    same_config(&new, &models[m].config);
    same_config(&old, &models[m].config);
  }
  assert_int_equal(read_config(fixture("qwen2-bf16", "config.json")).dtype, DTYPE_BF16);
  assert_int_equal(read_config(fixture("mistral-fp16", "config.json")).dtype, DTYPE_F16);
}

TEST(printed_configurations_read_back)
{
  for (int m = 0; m < MODELS; m++)
    for (int variant = 0; variant < 4; variant++) {
      struct hf_config config = models[m].config;
      char *text = NULL;
      if (variant & 1) {
        config.dtype = DTYPE_BF16;
        config.bos = (struct hf_tokens){0};
        config.eos = (struct hf_tokens){3, {5, 6, 7}};
        config.model.norm_eps = 1.2345678901234567e-6;
      }
      if (variant & 2 && config.model.rope.theta != 0) {
        config.model.tied = !config.model.tied;
        config.model.rope =
            (struct rope_config){.theta = 5e5, .scaling = ROPE_LINEAR, .factor = 2.5};
        if (!strcmp(config.model.arch, "qwen3")) {
          config.model.window = 17;
          config.model.window_from = 1;
        }
      } else if (variant & 2) {
        config.model.ffn = 77;
      }
      assert_int_equal(hf_config_print(&config, &text), STATUS_OK);
      assert_int_equal(file_write_all(config_path, text, strlen(text)), STATUS_OK);
      mem_free(text);
      const struct hf_config again = read_config(config_path);
      same_config(&again, &config);
    }
}

/* --- changed configurations ---------------------------------------------- */

/* config.json of a model with `from` replaced by `to`; from NULL: `to` is added as a member. */
static void put_changed(const char *name, const char *from, const char *to)
{
  char *text = NULL;
  size_t bytes = 0;
  assert_int_equal(file_read_all(fixture(name, "config.json"), 1 << 20, &text, &bytes), STATUS_OK);
  char *at = strstr(text, from ? from : "{"), *changed = NULL;
  if (!at)
    fail_msg("%s is not in the config.json of %s", from, name);
  changed = from ? mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from))
                 : mem_printf("{%s,%s", to, at + 1);
  assert_int_equal(file_write_all(config_path, changed, strlen(changed)), STATUS_OK);
  mem_free(changed);
  mem_free(text);
}

static struct hf_config read_changed(const char *name, const char *from, const char *to)
{
  put_changed(name, from, to);
  return read_config(config_path);
}

TEST(unsupported_features_are_refused_by_name)
{
  static const struct {
    const char *name, *from, *to, *sentence;
  } bad[] = {
      {"llama", "\"llama\"", "\"bert\"",
       "model_type is \"bert\"; Sluice knows gpt2, llama, qwen2, qwen3, mistral"},
      {"llama", "\"model_type\": \"llama\"", "\"model_kind\": 1", "has no model_type"},
      {"llama", "LlamaForCausalLM", "LlamaForSequenceClassification",
       "architectures[0] is \"LlamaForSequenceClassification\"; Sluice reads LlamaForCausalLM and "
       "LlamaModel"},
      {"gpt2", "GPT2LMHeadModel", "GPT2DoubleHeadsModel",
       "architectures[0] is \"GPT2DoubleHeadsModel\""},
      {"llama", "\"silu\"", "\"gelu\"",
       "hidden_act is \"gelu\": Sluice's llama has the activation silu"},
      {"gpt2", "\"gelu_new\"", "\"relu\"",
       "activation_function is \"relu\": Sluice's gpt2 has the activation gelu_new"},
      {"gpt2", "\"gelu_new\"", "\"gelu\"", "activation_function is \"gelu\""},
      {"llama", "\"attention_bias\": false", "\"attention_bias\": true",
       "attention_bias is true, which Sluice does not compute"},
      {"qwen3", "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias is true"},
      {"llama", "\"mlp_bias\": false", "\"mlp_bias\": true", "mlp_bias is true"},
      {"gpt2", "\"scale_attn_weights\": true", "\"scale_attn_weights\": false",
       "scale_attn_weights is false"},
      {"gpt2", "\"scale_attn_by_inverse_layer_idx\": false",
       "\"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx is true"},
      {"gpt2", "\"add_cross_attention\": false", "\"add_cross_attention\": true",
       "add_cross_attention is true"},
      {"llama", NULL, "\"quantization_config\": {\"bits\": 4}", "quantization_config is given"},
      {"llama", NULL, "\"per_layer_config\": {\"0\": {}}", "per_layer_config is given"},
      {"gpt2", NULL, "\"pruned_heads\": {\"0\": [1]}", "pruned_heads is given"},
      {"llama", NULL, "\"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5"},
      {"llama", "\"rope_type\": \"default\"",
       "\"rope_type\": \"default\", \"partial_rotary_factor\": 0.25",
       "rope_parameters.partial_rotary_factor is 0.25"},
      {"llama", "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"",
       "rope_parameters.rope_type is \"yarn\"; Sluice knows the rope types default, linear and "
       "llama3"},
      {"llama", "\"rope_type\": \"default\"", "\"rope_type\": \"dynamic\", \"factor\": 2.0",
       "\"dynamic\""},
      {"llama", NULL, "\"rope_scaling\": {\"type\": \"longrope\"}",
       "rope_scaling.type is \"longrope\""},
      {"llama", NULL, "\"rope_scaling\": {\"type\": \"linear\"}", "rope_scaling has no factor"},
      {"llama", NULL, "\"rope_scaling\": 3", "rope_scaling is not an object"},
      {"llama", "\"rope_type\": \"default\"",
       "\"rope_type\": \"default\", \"attention_factor\": 1.5",
       "rope_parameters.attention_factor is given"},
      {"llama", "\"rope_theta\": 10000.0", "\"rope_theta\": 0", "rope_parameters.rope_theta is 0"},
      {"llama3", "\"low_freq_factor\": 1.0,", "", "rope_parameters has no low_freq_factor"},
      {"llama3", "\"original_max_position_embeddings\": 64,", "",
       "rope_parameters has no original_max_position_embeddings"},
      {"llama3", NULL, "\"original_max_position_embeddings\": 128",
       "original_max_position_embeddings is 128, and 64 next to"},
      {"llama", "\"float32\"", "\"float8_e4m3fn\"",
       "dtype is \"float8_e4m3fn\"; Sluice reads float32, bfloat16 and float16"},
      {"llama", "\"vocab_size\": 61", "\"vocab_sizes\": 61",
       "has no vocab_size, which a llama needs"},
      {"llama", "\"vocab_size\": 61", "\"vocab_size\": 9223372036854775808",
       "too big integer near '9223372036854775808'"},
      {"llama", "\"hidden_size\": 48", "\"hidden_size\": 48.0", "hidden_size is 48.0"},
      {"llama", "\"hidden_size\": 48", "\"hidden_size\": -1", "hidden_size is -1"},
      {"llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": \"1e-05\"",
       "rms_norm_eps is a text, where a number belongs"},
      {"llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 2",
       "rms_norm_eps is 2, where a number from 1e-30 to 1 belongs"},
      {"llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0",
       "rms_norm_eps is 0, where a number from 1e-30 to 1 belongs"},
      {"gpt2", "\"layer_norm_epsilon\": 1e-05", "\"layer_norm_epsilon\": 0.0",
       "layer_norm_epsilon is 0"},
      {"gpt2", "\"n_head\": 3", "\"n_head\": 4", "n_embd is 30, which n_head 4 does not divide"},
      {"llama", "\"head_dim\": 8",
       "\"head_dim\": null, \"softcap\": 0.0, \"output_bias\": false, \"cap\": 30.0",
       "cap is given: it is no key of a llama"},
      {"qwen2", "\"num_attention_heads\": 3", "\"num_attention_heads\": 37",
       "hidden_size is 36, which num_attention_heads 37 does not divide, and there is no head_dim"},
      {"gpt2", "\"n_embd\": 30", "\"n_embd\": 196611",
       "n_embd is 196611, which gives each of 3 heads more than 65536 elements"},
      {"llama", NULL, "\"embedding_multiplier\": 12",
       "embedding_multiplier is given: it is no key of a llama that Sluice knows, and may change "
       "its numbers"},
      {"llama", NULL, "\"logits_scaling\": 8.0", "logits_scaling is given"},
      {"llama", NULL, "\"logit_scale\": [1]", "logit_scale is given"},
      {"qwen3", NULL, "\"final_logit_softcapping\": 30.0", "final_logit_softcapping is given"},
      {"gpt2", NULL, "\"lm_head_bias\": true", "lm_head_bias is given"},
      {"llama", NULL, "\"rope_scaling\": {\"factor\": 2.0}",
       "rope_scaling.factor is given, but the rope type is default, which does not use it"},
      {"llama", "\"rope_type\": \"default\"", "\"rope_type\": \"default\", \"factor\": 8.0",
       "rope_parameters.factor is given, but the rope type is default"},
      {"llama", "\"rope_type\": \"default\"",
       "\"rope_type\": \"linear\", \"factor\": 8.0, \"low_freq_factor\": 1.0",
       "rope_parameters.low_freq_factor is given, but the rope type is linear"},
      {"llama", NULL, "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}",
       "rope_scaling and rope_parameters disagree: leave one of them out"},
      {"llama", "\"rope_type\": \"default\"\n  }",
       "\"rope_type\": \"dynamic\"}, \"rope_scaling\": {\"rope_type\": \"default\"}",
       "rope_parameters.rope_type is \"dynamic\""},
      {"llama", NULL, "\"rope_theta\": 5000",
       "rope_theta is 5000, and 10000 in rope_parameters: they must agree"},
      {"llama", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": null",
       "tie_word_embeddings is null"},
      {"llama", NULL, "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
       "layer_types does not agree with the sliding window, which is 0"},
      {"mistral", NULL, "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
       "layer_types does not agree with the sliding window, which is 8"},
      {"qwen2", "\"full_attention\",", "\"sliding_attention\",",
       "layer_types[1] is full_attention after"},
      {"qwen2", "\"full_attention\"\n", "\"sliding_attention\"\n", "layer_types does not agree"},
      {"qwen2", "\"full_attention\",", "\"linear_attention\",",
       "layer_types[0] is \"linear_attention\""},
      {"qwen2", "\"full_attention\",", "", "layer_types is not an array of 2 names"},
      {"llama", "\"bos_token_id\": 1", "\"bos_token_id\": []", "bos_token_id is empty"},
      {"llama", "\"bos_token_id\": 1",
       "\"bos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
       "bos_token_id has more than 16 token ids"},
      {"llama", "{", "[", "a JSON"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct hf_config config = {0};
    put_changed(bad[i].name, bad[i].from, bad[i].to);
    const enum status status = hf_config_read(config_path, &config);
    if (status == STATUS_OK)
      fail_msg("accepted: %s with %s", bad[i].name, bad[i].to);
    assert_int_equal(status, STATUS_INPUT);
    if (!strstr(status_text(), config_path) ||
        (!strstr(status_text(), bad[i].sentence) && strcmp(bad[i].to, "[") != 0))
      fail_msg("%s with %s\nsays: %s\nnot:  %s", bad[i].name, bad[i].to, status_text(),
               bad[i].sentence);
    assert_null(config.model.arch);
  }
  struct hf_config config;
  unlink(config_path);
  assert_int_equal(hf_config_read(config_path, &config), STATUS_INPUT);
}

TEST(defaults_are_those_of_transformers)
{
  struct hf_config c = read_changed("mistral", "\"num_key_value_heads\": 1,", "");
  assert_int_equal(c.model.kv_heads, 8);
  c = read_changed("mistral", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": null");
  assert_int_equal(c.model.kv_heads, 0); /* as many as heads */
  c = read_changed("mistral", "\"sliding_window\": 8,", "");
  assert_int_equal(c.model.window, 4096);
  c = read_changed("mistral", "\"sliding_window\": 8", "\"sliding_window\": null");
  assert_int_equal(c.model.window, 0);
  c = read_changed("qwen3", "\"head_dim\": 20,", "");
  assert_int_equal(c.model.head_width, 128);
  c = read_changed("llama", "\"head_dim\": 8", "\"head_dim\": null");
  assert_int_equal(c.model.head_width, 0);
  c = read_changed("llama", "\"num_key_value_heads\": 2,", "");
  assert_int_equal(c.model.kv_heads, 0);
  c = read_changed("llama", "\"tie_word_embeddings\": false,", "");
  assert_false(c.model.tied);
  c = read_changed("gpt2", "\"tie_word_embeddings\": true,", "");
  assert_true(c.model.tied);
  c = read_changed("llama", "\"rms_norm_eps\": 1e-05,", "");
  assert_true(c.model.norm_eps == 1e-6);
  c = read_changed("gpt2", "\"n_embd\": 30", "\"n_embd\": 196608"); /* the widest 3 heads */
  assert_int_equal(c.model.width, 196608);
  c = read_changed("gpt2", "\"n_positions\": 40,", "");
  assert_int_equal(c.model.context, 1024);
  c = read_changed("llama", "\"max_position_embeddings\": 64,", "");
  assert_int_equal(c.model.context, 2048);
  c = read_changed("llama", "\"dtype\": \"float32\"", "\"torch_dtype\": \"torch.bfloat16\"");
  assert_int_equal(c.dtype, DTYPE_BF16);
  c = read_changed("qwen2-bf16", NULL, "\"torch_dtype\": \"float16\""); /* dtype goes first */
  assert_int_equal(c.dtype, DTYPE_BF16);
  c = read_changed("qwen2-bf16", "\"dtype\": \"bfloat16\"", "\"dtype\": null");
  assert_int_equal(c.dtype, DTYPE_F32);
  c = read_changed("llama", "\"eos_token_id\": 2", "\"eos_token_id\": [7, 8, 9]");
  assert_true(c.eos.n == 3 && c.eos.id[0] == 7 && c.eos.id[1] == 8 && c.eos.id[2] == 9);
  c = read_changed("llama", "\"eos_token_id\": 2", "\"eos_token_id\": null");
  assert_int_equal(c.eos.n, 0);
  c = read_changed("llama", "\"eos_token_id\": 2", "\"eos_token_id\": -1");
  assert_int_equal(c.eos.n, 0);
  c = read_changed("gpt2", "\"n_inner\": null", "\"n_inner\": 96");
  assert_int_equal(c.model.ffn, 96);
  c = read_changed("gpt2", "\"gelu_new\"", "\"gelu_pytorch_tanh\"");
  c = read_changed("llama", "LlamaForCausalLM", "LlamaModel");
  c = read_changed("llama", "\"silu\"", "\"swish\"");
}

TEST(rotary_positions_are_said_in_three_ways)
{
  struct hf_config c =
      read_changed("llama", "\"rope_parameters\": {",
                   "\"rope_theta\": 5000, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}, "
                   "\"rope_parameters\": null, \"_x\": {");
  assert_int_equal(c.model.rope.scaling, ROPE_LINEAR);
  assert_true(c.model.rope.factor == 4 && c.model.rope.theta == 5000);
  c = read_changed("llama", "\"rope_type\": \"default\"",
                   "\"rope_type\": \"linear\", \"factor\": 4}, \"rope_scaling\": {\"type\": "
                   "\"linear\", \"factor\": 4.0");
  assert_int_equal(c.model.rope.scaling, ROPE_LINEAR); /* said twice */
  c = read_changed("llama", "\"rope_theta\": 10000.0,", "");
  assert_true(c.model.rope.theta == 10000);
  c = read_changed("llama", NULL, "\"rope_scaling\": {}, \"rope_theta\": 10000");
  assert_true(c.model.rope.theta == 10000 &&
              c.model.rope.scaling == ROPE_PLAIN); /* of rope_parameters */
  c = read_changed("llama3", NULL, "\"original_max_position_embeddings\": 64");
  assert_int_equal(c.model.rope.original, 64);
}

TEST(windows_begin_at_some_block)
{
  struct hf_config c = read_changed("qwen2", "\"sliding_window\": null", "\"sliding_window\": 16");
  assert_int_equal(c.model.window, 0); /* use_sliding_window is false */
  c = read_changed("qwen2", "\"use_sliding_window\": false", "\"use_sliding_window\": true");
  assert_int_equal(c.model.window,
                   0); /* sliding_window is null, and both blocks are full_attention */
  static const struct {
    const char *types;
    int64_t first, window, from;
  } cases[] = {{"\"full_attention\", \"sliding_attention\"", 28, 16, 1},
               {"\"sliding_attention\", \"sliding_attention\"", 28, 16, 0},
               {"\"full_attention\", \"full_attention\"", 0, 0, 0},
               {NULL, 28, 0, 0},
               {NULL, 1, 16, 1},
               {NULL, 0, 16, 0},
               {NULL, 2, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    snprintf(
        text, sizeof text,
        "{\"model_type\": \"qwen3\", \"vocab_size\": 9, \"hidden_size\": 8, \"intermediate_size\": "
        "8, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 2, "
        "\"use_sliding_window\": true, \"sliding_window\": 16, \"max_window_layers\": %lld%s%s%s}",
        (long long)cases[i].first, cases[i].types ? ", \"layer_types\": [" : "",
        cases[i].types ? cases[i].types : "", cases[i].types ? "]" : "");
    assert_int_equal(file_write_all(config_path, text, strlen(text)), STATUS_OK);
    c = read_config(config_path);
    assert_int_equal(c.model.window, cases[i].window);
    assert_int_equal(c.model.window_from, cases[i].from);
    assert_int_equal(c.model.kv_heads, 32);
  }
}

TEST(configurations_of_other_programs_give_no_warning)
{
  char *text = NULL;
  size_t bytes = 0;
  unlink(log_path);
  assert_int_equal(log_open_file(log_path), STATUS_OK);
  for (int m = 0; m < MODELS; m++) {
    (void)read_config(fixture(models[m].name, "config.json"));
    (void)read_config(fixture(models[m].name, "config.hub.json"));
  }
  assert_int_equal(log_open_file(NULL), STATUS_OK);
  assert_int_equal(file_read_all(log_path, 1 << 20, &text, &bytes), STATUS_OK);
  assert_null(strstr(text, "is ignored"));
  mem_free(text);
}

/* --- names --------------------------------------------------------------- */

static const struct model_param *find_param(const struct model *model, const char *name)
{
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++) {
      const struct model_param *param = &model->unit[u].param[p];
      const char *base = hf_base_name(model, param->name);
      if (!strcmp(param->name, name) || (base && !strcmp(base, name)))
        return param;
    }
  return NULL;
}

TEST(every_tensor_of_a_file_is_a_parameter_or_a_known_extra)
{
  static const char *const names[] = {"gpt2",  "gpt2-hub", "llama",   "llama3",
                                      "qwen2", "qwen3",    "mistral", "odd"};
  for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
    const struct hf_config config = read_config(fixture(names[m], "config.json"));
    struct safetensors *file = NULL;
    struct model *model = NULL;
    int64_t parameters = 0, found = 0;
    const enum status status = model_create(&config.model, &model);
    assert_string_equal(status ? status_text() : "", "");
    assert_int_equal(safetensors_open(fixture(names[m], "model.safetensors"), &file), STATUS_OK);
    for (int u = 0; u < model->units; u++)
      parameters += model->unit[u].params;
    for (int64_t t = 0; t < safetensors_count(file); t++) {
      const struct st_tensor *tensor = safetensors_at(file, t);
      const struct model_param *param = find_param(model, tensor->name);
      found += param != NULL;
      if (!param)
        assert_int_equal(hf_extra(model, tensor->name), HF_EXTRA_BUFFER);
      else
        assert_memory_equal(param->shape, tensor->shape,
                            (size_t)param->ndim * sizeof *param->shape);
    }
    assert_int_equal(found, parameters);
    safetensors_close(file);
    model_destroy(model);
  }
}

TEST(extras_are_told_apart)
{
  const struct {
    const char *model, *name;
    enum hf_extra extra;
  } cases[] = {
      {"gpt2", "transformer.h.1.attn.bias", HF_EXTRA_BUFFER},
      {"gpt2", "h.11.attn.masked_bias", HF_EXTRA_BUFFER},
      {"gpt2", "h.attn.bias", HF_EXTRA_UNKNOWN},
      {"gpt2", "h.1.attn.biases", HF_EXTRA_UNKNOWN},
      {"gpt2", "h.1x.attn.bias", HF_EXTRA_UNKNOWN},
      {"gpt2", "lm_head.weight", HF_EXTRA_TIED_HEAD},
      {"gpt2", "layers.0.self_attn.rotary_emb.inv_freq", HF_EXTRA_UNKNOWN},
      {"llama", "model.layers.0.self_attn.rotary_emb.inv_freq", HF_EXTRA_BUFFER},
      {"llama", "model.rotary_emb.inv_freq", HF_EXTRA_BUFFER},
      {"llama", "lm_head.weight", HF_EXTRA_UNKNOWN}, /* untied: a parameter, or too many */
      {"llama", "h.0.attn.bias", HF_EXTRA_UNKNOWN},
      {"llama3", "lm_head.weight", HF_EXTRA_TIED_HEAD},
      {"llama3", "lm_head.bias", HF_EXTRA_UNKNOWN},
      {"qwen2", "", HF_EXTRA_UNKNOWN},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const struct hf_config config = read_config(fixture(cases[i].model, "config.json"));
    struct model *model = NULL;
    assert_int_equal(model_create(&config.model, &model), STATUS_OK);
    assert_int_equal(hf_extra(model, cases[i].name), cases[i].extra);
    model_destroy(model);
  }
}

TEST(the_unprintable_is_refused)
{
  char *text = NULL;
  const struct hf_config config = {.model = {.arch = "mamba"}};
  assert_int_equal(hf_config_print(&config, &text), STATUS_UNSUPPORTED);
  assert_null(text);
}

TEST_MAIN(start, stop)
