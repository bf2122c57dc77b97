/* The registry, parameter tables, frequencies, initial values, sizes, what is frozen, and what is
 * refused. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "tests/test.h"

/* clang-format off */
static const struct model_config gpt2_124m = {
    .arch = "gpt2", .layers = 12, .width = 768, .heads = 12, .context = 1024, .vocab = 50257,
    .tied = true, .norm_eps = 1e-5, .init_std = 0.02};
static const struct model_config little = {
    .arch = "gpt2", .layers = 2, .width = 48, .heads = 4, .context = 16, .vocab = 211,
    .tied = true, .norm_eps = 1e-5, .init_std = 0.02};
static const struct model_config small_qwen3 = {
    .arch = "qwen3", .layers = 3, .width = 48, .heads = 6, .kv_heads = 2, .head_width = 20,
    .ffn = 32, .context = 16, .vocab = 211, .norm_eps = 1e-6, .init_std = 0.02};

/* As their config.json has them. */
enum {
  LLAMA_7B, LLAMA_8B, LLAMA_1B, QWEN2_05B, QWEN2_7B, QWEN3_8B, QWEN3_14B, MISTRAL_7B, PUBLISHED
};
static const struct {
  struct model_config config;
  int64_t parameters;
} published[PUBLISHED] = {
    [LLAMA_7B] = {{.arch = "llama", .layers = 32, .width = 4096, .heads = 32, .ffn = 11008,
                   .context = 4096, .vocab = 32000, .norm_eps = 1e-5, .init_std = 0.02},
                  6738415616},
    [LLAMA_8B] = {{.arch = "llama", .layers = 32, .width = 4096, .heads = 32, .kv_heads = 8,
                   .ffn = 14336, .context = 131072, .vocab = 128256, .norm_eps = 1e-5,
                   .init_std = 0.02,
                   .rope = {.theta = 5e5, .scaling = ROPE_LLAMA3, .factor = 8, .low_freq = 1,
                            .high_freq = 4, .original = 8192}}, 8030261248},
    [LLAMA_1B] = {{.arch = "llama", .layers = 16, .width = 2048, .heads = 32, .kv_heads = 8,
                   .head_width = 64, .ffn = 8192, .context = 131072, .vocab = 128256, .tied = true,
                   .norm_eps = 1e-5, .init_std = 0.02,
                   .rope = {.theta = 5e5, .scaling = ROPE_LLAMA3, .factor = 32, .low_freq = 1,
                            .high_freq = 4, .original = 8192}}, 1235814400},
    [QWEN2_05B] = {{.arch = "qwen2", .layers = 24, .width = 896, .heads = 14, .kv_heads = 2,
                    .ffn = 4864, .context = 32768, .vocab = 151936, .tied = true, .norm_eps = 1e-5,
                    .init_std = 0.02, .rope = {.theta = 1e6}}, 494032768},
    [QWEN2_7B] = {{.arch = "qwen2", .layers = 28, .width = 3584, .heads = 28, .kv_heads = 4,
                   .ffn = 18944, .context = 131072, .vocab = 152064, .norm_eps = 1e-5,
                   .init_std = 0.02, .rope = {.theta = 1e6}}, 7615616512},
    [QWEN3_8B] = {{.arch = "qwen3", .layers = 36, .width = 4096, .heads = 32, .kv_heads = 8,
                   .head_width = 128, .ffn = 12288, .context = 40960, .vocab = 151936,
                   .norm_eps = 1e-5, .init_std = 0.02, .rope = {.theta = 1e6}}, 8190735360},
    [QWEN3_14B] = {{.arch = "qwen3", .layers = 40, .width = 5120, .heads = 40, .kv_heads = 8,
                    .head_width = 128, .ffn = 17408, .context = 40960, .vocab = 151936,
                    .norm_eps = 1e-5, .init_std = 0.02, .rope = {.theta = 1e6}}, 14768307200},
    [MISTRAL_7B] = {{.arch = "mistral", .layers = 32, .width = 4096, .heads = 32, .kv_heads = 8,
                     .ffn = 14336, .context = 32768, .vocab = 32000, .window = 4096,
                     .norm_eps = 1e-5, .init_std = 0.02}, 7241732096},
};
/* clang-format on */

static struct model *create(const struct model_config *config)
{
  struct model *model;
  must(model_create(config, &model));
  return model;
}

struct row {
  const char *name;
  enum param_kind kind;
  int64_t shape[2];
};

static void check_unit(const struct model_unit *unit, const char *name, const struct row *rows,
                       int n)
{
  assert_string_equal(unit->name, name);
  assert_int_equal(unit->params, n);
  for (int p = 0; p < n; p++) {
    assert_string_equal(unit->param[p].name, rows[p].name);
    assert_int_equal(unit->param[p].kind, rows[p].kind);
    assert_int_equal(unit->param[p].ndim, rows[p].shape[1] ? 2 : 1);
    assert_int_equal(unit->param[p].shape[0], rows[p].shape[0]);
    assert_int_equal(unit->param[p].shape[1], rows[p].shape[1]);
    assert_int_equal(unit->layout.elements[p],
                     rows[p].shape[0] * (rows[p].shape[1] ? rows[p].shape[1] : 1));
  }
}

/* Oracle: state_dict() of Hugging Face's GPT2LMHeadModel for "gpt2", and its published number of
 * parameters. */
TEST(test_tables)
{
  static const struct row root[] = {{"transformer.wte.weight", PARAM_EMBEDDING, {50257, 768}},
                                    {"transformer.wpe.weight", PARAM_EMBEDDING, {1024, 768}},
                                    {"transformer.ln_f.weight", PARAM_NORM, {768}},
                                    {"transformer.ln_f.bias", PARAM_NORM, {768}}};
  static const struct row last[] = {
      {"transformer.h.11.ln_1.weight", PARAM_NORM, {768}},
      {"transformer.h.11.ln_1.bias", PARAM_NORM, {768}},
      {"transformer.h.11.attn.c_attn.weight", PARAM_WEIGHT, {768, 2304}},
      {"transformer.h.11.attn.c_attn.bias", PARAM_BIAS, {2304}},
      {"transformer.h.11.attn.c_proj.weight", PARAM_WEIGHT, {768, 768}},
      {"transformer.h.11.attn.c_proj.bias", PARAM_BIAS, {768}},
      {"transformer.h.11.ln_2.weight", PARAM_NORM, {768}},
      {"transformer.h.11.ln_2.bias", PARAM_NORM, {768}},
      {"transformer.h.11.mlp.c_fc.weight", PARAM_WEIGHT, {768, 3072}},
      {"transformer.h.11.mlp.c_fc.bias", PARAM_BIAS, {3072}},
      {"transformer.h.11.mlp.c_proj.weight", PARAM_WEIGHT, {3072, 768}},
      {"transformer.h.11.mlp.c_proj.bias", PARAM_BIAS, {768}}};
  struct model *model = create(&gpt2_124m);
  assert_int_equal(model->blocks, 12);
  assert_int_equal(model->units, 13);
  check_unit(&model->unit[0], "root", root, 4);
  check_unit(&model->unit[12], "h.11", last, 12);
  assert_int_equal(model->parameters, 124439808);
  assert_string_equal(model->config.arch, "gpt2");
  model_destroy(model);
}

/* Oracle: state_dict() of Hugging Face's Qwen2ForCausalLM for "Qwen2.5-0.5B", LlamaForCausalLM for
 * "Llama-3.1-8B", Qwen3ForCausalLM for "Qwen3-8B"; what comes in between is the same for all.
 * Weights of one input stand together. */
TEST(test_decoder_tables)
{
  static const struct row tied[] = {{"model.embed_tokens.weight", PARAM_EMBEDDING, {151936, 896}},
                                    {"model.norm.weight", PARAM_NORM, {896}}};
  static const struct row qwen2[] = {
      {"model.layers.23.input_layernorm.weight", PARAM_NORM, {896}},
      {"model.layers.23.self_attn.q_proj.weight", PARAM_WEIGHT, {896, 896}},
      {"model.layers.23.self_attn.k_proj.weight", PARAM_WEIGHT, {128, 896}},
      {"model.layers.23.self_attn.v_proj.weight", PARAM_WEIGHT, {128, 896}},
      {"model.layers.23.self_attn.q_proj.bias", PARAM_BIAS, {896}},
      {"model.layers.23.self_attn.k_proj.bias", PARAM_BIAS, {128}},
      {"model.layers.23.self_attn.v_proj.bias", PARAM_BIAS, {128}},
      {"model.layers.23.self_attn.o_proj.weight", PARAM_WEIGHT, {896, 896}},
      {"model.layers.23.post_attention_layernorm.weight", PARAM_NORM, {896}},
      {"model.layers.23.mlp.gate_proj.weight", PARAM_WEIGHT, {4864, 896}},
      {"model.layers.23.mlp.up_proj.weight", PARAM_WEIGHT, {4864, 896}},
      {"model.layers.23.mlp.down_proj.weight", PARAM_WEIGHT, {896, 4864}}};
  static const struct row root[] = {{"model.embed_tokens.weight", PARAM_EMBEDDING, {128256, 4096}}};
  static const struct row head[] = {{"model.norm.weight", PARAM_NORM, {4096}},
                                    {"lm_head.weight", PARAM_WEIGHT, {128256, 4096}}};
  static const struct row llama[] = {
      {"model.layers.0.input_layernorm.weight", PARAM_NORM, {4096}},
      {"model.layers.0.self_attn.q_proj.weight", PARAM_WEIGHT, {4096, 4096}},
      {"model.layers.0.self_attn.k_proj.weight", PARAM_WEIGHT, {1024, 4096}},
      {"model.layers.0.self_attn.v_proj.weight", PARAM_WEIGHT, {1024, 4096}},
      {"model.layers.0.self_attn.o_proj.weight", PARAM_WEIGHT, {4096, 4096}},
      {"model.layers.0.post_attention_layernorm.weight", PARAM_NORM, {4096}},
      {"model.layers.0.mlp.gate_proj.weight", PARAM_WEIGHT, {14336, 4096}},
      {"model.layers.0.mlp.up_proj.weight", PARAM_WEIGHT, {14336, 4096}},
      {"model.layers.0.mlp.down_proj.weight", PARAM_WEIGHT, {4096, 14336}}};
  static const struct row qwen3[] = {
      {"model.layers.1.input_layernorm.weight", PARAM_NORM, {48}},
      {"model.layers.1.self_attn.q_proj.weight", PARAM_WEIGHT, {120, 48}},
      {"model.layers.1.self_attn.k_proj.weight", PARAM_WEIGHT, {40, 48}},
      {"model.layers.1.self_attn.v_proj.weight", PARAM_WEIGHT, {40, 48}},
      {"model.layers.1.self_attn.q_norm.weight", PARAM_NORM, {20}},
      {"model.layers.1.self_attn.k_norm.weight", PARAM_NORM, {20}},
      {"model.layers.1.self_attn.o_proj.weight", PARAM_WEIGHT, {48, 120}},
      {"model.layers.1.post_attention_layernorm.weight", PARAM_NORM, {48}},
      {"model.layers.1.mlp.gate_proj.weight", PARAM_WEIGHT, {32, 48}},
      {"model.layers.1.mlp.up_proj.weight", PARAM_WEIGHT, {32, 48}},
      {"model.layers.1.mlp.down_proj.weight", PARAM_WEIGHT, {48, 32}}};
  struct model *model = create(&published[QWEN2_05B].config);
  assert_int_equal(model->units, 25);
  assert_int_equal(model->head, 0);
  check_unit(&model->unit[0], "root", tied, 2);
  check_unit(&model->unit[24], "h.23", qwen2, 12);
  model_destroy(model);

  model = create(&published[LLAMA_8B].config);
  assert_int_equal(model->units, 34);
  assert_int_equal(model->head, 33);
  check_unit(&model->unit[0], "root", root, 1);
  check_unit(&model->unit[1], "h.0", llama, 9);
  check_unit(&model->unit[33], "head", head, 2);
  model_destroy(model);

  model = create(&small_qwen3);
  check_unit(&model->unit[2], "h.1", qwen3, 11);
  model_destroy(model);
}

/* Oracle: the published numbers of parameters. */
TEST(test_published_sizes)
{
  for (int i = 0; i < PUBLISHED; i++) {
    struct model *model = create(&published[i].config);
    assert_int_equal(model->parameters, published[i].parameters);
    model_destroy(model);
  }
}

TEST(test_zeros_are_resolved)
{
  struct model *model = create(&little);
  assert_int_equal(model->config.kv_heads, 4);
  assert_int_equal(model->config.head_width, 12);
  assert_int_equal(model->config.ffn, 192);
  assert_null(model->inv_freq);
  model_destroy(model);
  model = create(&published[LLAMA_7B].config);
  assert_int_equal(model->config.kv_heads, 32);
  assert_int_equal(model->config.head_width, 128);
  assert_true(model->config.rope.theta == 10000);
  model_destroy(model);
}

static void check_frequency(const struct model *model, int i, double expected)
{
  double error = fabs(model->inv_freq[i] - expected);
  if (!(error <= 0x1p-23 * expected)) /* one step of fp32 */
    fail_msg("frequency %d is %a, not %a", i, (double)model->inv_freq[i], expected);
}

/* Oracle: LlamaRotaryEmbedding(config).inv_freq of transformers 5 for Llama-3.1-8B: short waves,
 * the mixed ones, long ones. */
TEST(test_frequencies)
{
  static const struct {
    int i;
    double value;
  } expected[] = {{0, 1},
                  {1, 0x1.a11582p-1},
                  {28, 0x1.a4ee40p-9},
                  {30, 0x1.67a23ap-10},
                  {31, 0x1.c12f3cp-11},
                  {33, 0x1.47e210p-12},
                  {35, 0x1.90d10cp-14},
                  {36, 0x1.46831ap-14},
                  {40, 0x1.1f91f0p-15},
                  {63, 0x1.4985fep-22}};
  struct model *model = create(&published[LLAMA_8B].config);
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
    check_frequency(model, expected[i].i, expected[i].value);
  model_destroy(model);

  struct model_config config = published[LLAMA_7B].config; /* by the formula */
  config.rope = (struct rope_config){.theta = 1e6, .scaling = ROPE_LINEAR, .factor = 2.5};
  model = create(&config);
  for (int i = 0; i < 64; i += 9)
    assert_true(fabs(model->inv_freq[i] / (pow(1e6, -2.0 * i / 128) / 2.5) - 1) < 4e-7);
  model_destroy(model);
}

static int find_param(const struct model_unit *unit, const char *name)
{
  for (int p = 0; p < unit->params; p++)
    if (strstr(unit->param[p].name, name))
      return p;
  fail_msg("no %s", name);
  return -1;
}

static float *init_whole(const struct model *model, uint64_t seed, int u, int p)
{
  int64_t n = model->unit[u].layout.elements[p];
  float *out = malloc((size_t)n * sizeof *out);
  assert_non_null(out);
  model_init_param(model, seed, u, p, (struct layout_range){0, n}, out);
  return out;
}

/* Identity: the whole is its parts, wherever it is cut. */
TEST(test_init_of_ranges)
{
  struct model *model = create(&little);
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++) {
      int64_t n = model->unit[u].layout.elements[p];
      float *whole = init_whole(model, 5, u, p), *parts = malloc((size_t)n * sizeof *parts);
      assert_non_null(parts);
      for (int64_t begin = 0, length = 1; begin < n; begin += length, length = length % 61 + 7) {
        int64_t end = begin + length < n ? begin + length : n;
        model_init_param(model, 5, u, p, (struct layout_range){begin, end}, parts + begin);
      }
      assert_memory_equal(whole, parts, (size_t)n * sizeof *parts);
      free(whole);
      free(parts);
    }
  model_destroy(model);
}

static void check_constant(const struct model *model, int u, const char *name, float value)
{
  int p = find_param(&model->unit[u], name);
  float *x = init_whole(model, 5, u, p);
  for (int64_t i = 0; i < model->unit[u].layout.elements[p]; i++)
    assert_true(x[i] == value);
  free(x);
}

/* Oracle: mean and deviation of n normal numbers, five of their own standard errors wide. */
static void check_normal(const struct model *model, int u, const char *name, double std)
{
  int p = find_param(&model->unit[u], name);
  int64_t n = model->unit[u].layout.elements[p];
  float *x = init_whole(model, 5, u, p);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; i++) {
    sum += x[i];
    squares += (double)x[i] * x[i];
  }
  free(x);
  assert_true(fabs(sum / (double)n) < 5 * std / sqrt((double)n));
  assert_true(fabs(sqrt(squares / (double)n) - std) < 5 * std / sqrt(2 * (double)n));
}

/* Oracle: section 2.3 of the GPT-2 paper. */
TEST(test_init_statistics)
{
  struct model *model = create(&little);
  check_normal(model, 0, "wte.weight", 0.02);
  check_normal(model, 0, "wpe.weight", 0.02);
  check_constant(model, 0, "ln_f.weight", 1);
  check_constant(model, 0, "ln_f.bias", 0);
  check_normal(model, 2, "attn.c_attn.weight", 0.02);
  check_normal(model, 2, "mlp.c_fc.weight", 0.02);
  check_normal(model, 2, "attn.c_proj.weight", 0.02 / sqrt(2 * 2));
  check_normal(model, 2, "mlp.c_proj.weight", 0.02 / sqrt(2 * 2));
  check_constant(model, 1, "ln_1.weight", 1);
  check_constant(model, 1, "ln_2.bias", 0);
  check_constant(model, 1, "attn.c_attn.bias", 0);
  check_constant(model, 1, "mlp.c_proj.bias", 0);
  model_destroy(model);
}

TEST(test_init_by_name_and_seed)
{
  struct model *model = create(&little);
  int p = find_param(&model->unit[1], "attn.c_proj.weight");
  size_t bytes = (size_t)model->unit[1].layout.elements[p] * sizeof(float);
  float *one = init_whole(model, 5, 1, p), *again = init_whole(model, 5, 1, p),
        *other_block = init_whole(model, 5, 2, p), *other_seed = init_whole(model, 6, 1, p);
  assert_memory_equal(one, again, bytes);
  assert_memory_not_equal(one, other_block, bytes);
  assert_memory_not_equal(one, other_seed, bytes);
  free(one);
  free(again);
  free(other_block);
  free(other_seed);
  model_destroy(model);
}

TEST(test_decay)
{
  struct model *model = create(&little);
  const unsigned exempt = 1u << PARAM_NORM | 1u << PARAM_BIAS;
  assert_true(model_decays(model, 0, find_param(&model->unit[0], "wte.weight"), exempt));
  assert_true(model_decays(model, 1, find_param(&model->unit[1], "mlp.c_fc.weight"), exempt));
  assert_false(model_decays(model, 1, find_param(&model->unit[1], "mlp.c_fc.bias"), exempt));
  assert_false(model_decays(model, 1, find_param(&model->unit[1], "ln_1.weight"), exempt));
  assert_false(
      model_decays(model, 0, find_param(&model->unit[0], "wte.weight"), 1u << PARAM_EMBEDDING));
  assert_true(model_decays(model, 1, find_param(&model->unit[1], "ln_1.bias"), 0));
  model_destroy(model);
}

/* Oracle: counted by hand. A block's matrices have 12 C^2 elements, each multiplied and added once
 * a token; attention multiplies C elements twice for each of T^2 / 2 pairs. */
TEST(test_flops)
{
  struct model *model = create(&gpt2_124m);
  const struct model_shape s = {.B = 4, .T = 256};
  double block = 2.0 * 1024 * 12 * 768 * 768 + 4.0 * 2 * 2 * (256.0 * 256 / 2) * 768,
         head = 2.0 * 1024 * 768 * 50257;
  assert_true(model->ops->block_flops(model, s) == block);
  assert_true(model->ops->head_flops(model, s) == head);
  model_destroy(model);
}

/* Counted by hand. A token has 2 x multiply-adds with q 48 x 120, k and v 48 x 40 each, o 120 x 48,
 * three times 48 x 32; a pair of tokens 2 x 2 x 120. The last of three blocks has a window of 5:
 * its sums have T - 5 full windows and the 5 before them. The reported number is the mean over the
 * blocks. */
TEST(test_decoder_flops)
{
  struct model_config config = small_qwen3;
  const struct model_shape s = {.B = 2, .T = 12};
  double tokens = 24, projections = 2 * tokens * 48 * (120 + 40 + 40 + 120 + 3 * 32);
  struct model *model = create(&config);
  assert_true(model->ops->block_flops(model, s) == projections + 2 * (12.0 * 12 / 2) * 4 * 120);
  assert_true(model->ops->head_flops(model, s) == 2 * tokens * 48 * 211);
  model_destroy(model);
  config.window = 5;
  config.window_from = 2;
  model = create(&config);
  double mean =
      projections + 2 * (2 * (12.0 * 12 / 2) + (12.0 - 5) * 5 + 5.0 * 5 / 2) / 3 * 4 * 120;
  assert_true(fabs(model->ops->block_flops(model, s) - mean) < 1e-6 * mean);
  model_destroy(model);
}

TEST(test_sizes)
{
  struct engine e;
  engine_create(&little, 1, &e);
  const struct model_ops *ops = e.model->ops;
  const struct model_shape s = {.B = 3, .T = 16}, huge = {.B = INT64_C(1) << 61, .T = 16};
  int64_t rows = s.B * s.T;
  assert_int_equal(model_stream_bytes(e.model, s), rows * 48 * 4);
  assert_int_equal(ops->saved_bytes(e.model, s),
                   rows * (13 * 48 + 4) * 4); /* all pieces are multiples of 64 bytes here */
  assert_true(ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD_SAVED, 1) +
                  ops->saved_bytes(e.model, s) ==
              ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD, 1));
  /* The head's work does not grow with the batch, nor beyond a chunk with the sequence. */
  const struct model_shape one = {.B = 1, .T = 16};
  assert_int_equal(ops->work_bytes(e.model, &e.device->model, s, WORK_LOSS_GRADIENT, 1),
                   ops->work_bytes(e.model, &e.device->model, one, WORK_LOSS_GRADIENT, 1));
  assert_true(model_stream_bytes(e.model, huge) == SIZE_MAX);
  assert_true(ops->saved_bytes(e.model, huge) == SIZE_MAX);
  assert_true(ops->work_bytes(e.model, &e.device->model, huge, WORK_FORWARD, 1) == SIZE_MAX);
  assert_true(ops->work_bytes(e.model, &e.device->model, huge, WORK_BACKWARD, 1) == SIZE_MAX);
  assert_true(ops->work_bytes(e.model, &e.device->model, huge, WORK_BACKWARD_TIGHT, 1) == SIZE_MAX);
  const struct model_shape large = {.B = (int64_t)(SIZE_MAX / (13 * 48 * 4 + 48 * 4)) / 16,
                                    .T = 16}; /* the activations alone are possible, but not
                                                 together with the workspace of a pass */
  assert_true(ops->saved_bytes(e.model, large) < SIZE_MAX);
  assert_true(ops->work_bytes(e.model, &e.device->model, large, WORK_FORWARD, 1) == SIZE_MAX);
  engine_destroy(&e);
}

/* Oracle: counted by hand from what decoder.c says it keeps. Recomputing needs no more than
 * keeping. */
TEST(test_decoder_sizes)
{
  struct engine e;
  engine_create(&small_qwen3, 1, &e);
  const struct model_ops *ops = e.model->ops;
  const struct model_shape s = {.B = 4, .T = 16}, huge = {.B = INT64_C(1) << 61, .T = 16};
  int64_t rows = s.B * s.T;
  assert_int_equal(ops->saved_bytes(e.model, s), rows * (200 + 120 + 48 + 2 * 32 + 6) * 4);
  assert_true(ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD_SAVED, 1) +
                  ops->saved_bytes(e.model, s) ==
              ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD, 1));
  assert_true(ops->saved_bytes(e.model, huge) == SIZE_MAX);
  for (int what = WORK_FORWARD; what <= WORK_DECODE; what++)
    if (what < WORK_LOSS || what > WORK_LOGITS)
      assert_true(ops->work_bytes(e.model, &e.device->model, huge, what, 1) == SIZE_MAX);
  engine_destroy(&e);
}

/* Attention that makes use of much room, of less, or in its forward pass of none, and remembers
 * what its gradient was given. */
static const size_t room_for[] = {
    [ATTENTION_BEST] = 1 << 20, [ATTENTION_TIGHT] = 1 << 18, [ATTENTION_FORWARD] = 0};
static struct {
  const struct device_ops *real;
  size_t (*real_workspace)(const struct device_model *model, const struct attention *op,
                           int threads);
  const char *work;
  size_t bytes;
} watch;

static size_t roomy_workspace(const struct device_model *model, const struct attention *op,
                              int threads)
{
  return room_for[op->room] + watch.real_workspace(model, op, threads);
}

static enum status watched_gradient(struct lane *lane, const struct attention_backward *op)
{
  watch.work = op->forward.work;
  watch.bytes = op->work_bytes;
  return watch.real->attention_backward(lane, op);
}

/* One block's pass back in `bytes` of work; a sum of what comes out. */
static double pass_back(struct engine *e, struct model_shape s, const void *x, void *saved,
                        size_t bytes)
{
  const size_t stream = model_stream_bytes(e->model, s);
  float *d = engine_alloc(e, stream);
  char *work = engine_alloc(e, bytes);
  double sum = 0;
  for (size_t i = 0; i < stream / sizeof *d; i++)
    d[i] = (float)(i % 17) - 8;
  struct model_call call = engine_call(e, 1, s);
  call.x_in = x, call.saved = saved, call.d = d, call.work = work, call.work_bytes = (int64_t)bytes;
  must(e->model->ops->block_backward(&call));
  assert_ptr_equal(watch.work + watch.bytes, work + bytes); /* all that is left */
  for (size_t i = 0; i < stream / sizeof *d; i++)
    sum += (double)d[i] * (double)(i % 13);
  engine_free(e, work, bytes);
  engine_free(e, d, stream);
  return sum;
}

static void check_tight_room(struct engine *e)
{
  const struct model_ops *ops = e->model->ops;
  const struct model_shape s = {.B = 2, .T = 16};
  const size_t stream = model_stream_bytes(e->model, s), kept = ops->saved_bytes(e->model, s),
               forward = ops->work_bytes(e->model, &e->device->model, s, WORK_FORWARD_SAVED, 1);
  struct device_ops watching = *e->device->ops;
  watch.real = e->device->ops;
  watch.real_workspace = e->device->model.attention_workspace;
  e->device->model.attention_workspace = roomy_workspace;
  watching.attention_backward = watched_gradient;
  e->device->ops = &watching;
  const size_t best = ops->work_bytes(e->model, &e->device->model, s, WORK_BACKWARD, 1),
               tight = ops->work_bytes(e->model, &e->device->model, s, WORK_BACKWARD_TIGHT, 1);
  assert_int_equal(best - tight, room_for[ATTENTION_BEST] - room_for[ATTENTION_TIGHT]);
  assert_int_equal(ops->work_bytes(e->model, &e->device->model, s, WORK_FORWARD_SAVED, 1), forward);

  float *x = engine_alloc(e, stream);
  void *saved = engine_alloc(e, kept), *work = engine_alloc(e, forward);
  for (size_t i = 0; i < stream / sizeof *x; i++)
    x[i] = (float)(i % 11) - 5;
  struct model_call call = engine_call(e, 1, s);
  call.x_in = x, call.saved = saved, call.work = work, call.d = x;
  must(ops->block_forward(&call));
  const double want = pass_back(e, s, x, saved, best);
  assert_true(watch.bytes >= room_for[ATTENTION_BEST]);
  assert_true(pass_back(e, s, x, saved, tight) == want);
  assert_in_range(watch.bytes, room_for[ATTENTION_TIGHT], room_for[ATTENTION_BEST]);
  assert_true(pass_back(e, s, x, saved, (tight + best) / 2) == want);
  for (int64_t bytes = -1; bytes <= 64; bytes += 65) {
    call.work_bytes = bytes;
    assert_int_equal(ops->block_backward(&call), STATUS_INTERNAL);
    assert_non_null(strstr(status_text(), "bytes of workspace"));
  }
  engine_free(e, work, forward);
  engine_free(e, saved, kept);
  engine_free(e, x, stream);
  e->device->ops = watch.real;
  e->device->model.attention_workspace = watch.real_workspace;
}

/* Oracle: what the device's attention asks for, and the end of the memory that a block was given.
 */
TEST(test_tight_room)
{
  const struct model_config *configs[] = {&little, &small_qwen3};
  for (int i = 0; i < 2; i++) {
    struct engine e;
    engine_create(configs[i], 1, &e);
    check_tight_room(&e);
    assert_int_equal(
        e.model->ops->work_bytes(e.model, &e.device->model, (struct model_shape){.B = 2, .T = 16},
                                 WORK_BACKWARD, 1),
        e.model->ops->work_bytes(e.model, &e.device->model, (struct model_shape){.B = 2, .T = 16},
                                 WORK_BACKWARD_TIGHT, 1));
    engine_destroy(&e);
  }
}

static size_t window_workspace(const struct device_model *model, const struct attention *op,
                               int threads)
{
  (void)model, (void)threads;
  return op->window ? 1 << 20 : 1 << 18;
}

/* Oracle: a device that wants more for a window, which only the last block has. */
TEST(test_window_room)
{
  struct engine e;
  struct model_config config = small_qwen3;
  const struct model_shape s = {.B = 2, .T = 16};
  size_t bytes[2];
  for (int last = 0; last < 2; last++) {
    config.window = last ? 5 : 0;
    config.window_from = last ? config.layers - 1 : 0;
    engine_create(&config, 1, &e);
    e.device->model.attention_workspace = window_workspace;
    bytes[last] = e.model->ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD, 1);
    engine_destroy(&e);
  }
  assert_int_equal(bytes[1] - bytes[0], (1 << 20) - (1 << 18));
}

TEST(test_logits_never_whole)
{
  struct engine e;
  struct model_config config = {.arch = "gpt2", .layers = 1, .width = 8, .heads = 1};
  config.context = 8192, config.vocab = 50257, config.tied = true, config.norm_eps = 1e-5;
  config.init_std = 0.02;
  engine_create(&config, 1, &e);
  const struct model_shape s = {.B = 8, .T = 8192};
  size_t chunk = e.model->ops->work_bytes(e.model, &e.device->model, s, WORK_LOSS_GRADIENT, 1);
  assert_true(chunk < (size_t)72 << 20); /* the whole matrix: 12 GiB */
  engine_destroy(&e);
}

static void expect_refusal(struct model_config config, const char *words)
{
  struct model *model = NULL;
  assert_int_equal(model_create(&config, &model), STATUS_USAGE);
  assert_null(model);
  if (!strstr(status_text(), words))
    fail_msg("\"%s\" does not say \"%s\"", status_text(), words);
}

/* A copy of `base`, named config, is changed and refused. */
#define REFUSE(base, change, words)                                                                \
  do {                                                                                             \
    struct model_config config = base;                                                             \
    change;                                                                                        \
    expect_refusal(config, words);                                                                 \
  } while (0)

TEST(test_guards)
{
  REFUSE(little, config.arch = "gpt9",
         "there is no architecture \"gpt9\"; this build knows: gpt2, llama, mistral, qwen2, qwen3");
  REFUSE(little, config.layers = 0, "model.layers is 0");
  REFUSE(little, config.layers = 65537, "model.layers is 65537");
  REFUSE(little, config.width = 0, "model.width is 0");
  REFUSE(little, config.heads = -4, "model.heads is -4");
  REFUSE(little, config.context = 0, "model.context is 0");
  REFUSE(little, config.vocab = INT64_C(1) << 31, "model.vocab is 2147483648");
  REFUSE(little, config.width = 50, "model.width 50 cannot be split over model.heads 4");
  REFUSE(little, config.norm_eps = 0, "model.norm_eps");
  REFUSE(little, config.init_std = NAN, "model.init_std");
}

/* Keys that GPT-2 does not have. */
TEST(test_absent_keys)
{
  struct model_config same = little;
  same.kv_heads = 4; /* as it is anyway */
  same.head_width = 12;
  model_destroy(create(&same));
  same.heads = 1, same.width = same.head_width = MODEL_MOST_HEAD_WIDTH, same.kv_heads = 1;
  model_destroy(create(&same));
  same = little;
  REFUSE(same, config.tied = false, "model.tied is false: the head of gpt2 is its embedding");
  REFUSE(little, config.kv_heads = 2, "model.kv_heads is 2: gpt2");
  REFUSE(little, config.head_width = 16, "model.head_width is 16: in gpt2");
  REFUSE(little, (config.heads = 1, config.width = 65537),
         "model.width 65537 over model.heads 1 gives heads of 65537 elements, more than 65536");
  REFUSE(little, config.window = 8, "model.window is 8: gpt2");
  REFUSE(little, config.window_from = 1, "model.window_from is 1: gpt2");
  REFUSE(little, config.rope.theta = 10000, "model.rope_theta is given, but gpt2");
  REFUSE(little, config.rope.scaling = ROPE_LINEAR, "model.rope_scaling is given");
  REFUSE(little, config.rope.factor = NAN, "model.rope_factor is given");
  REFUSE(little, config.rope.low_freq = 1, "model.rope_low_freq is given");
  REFUSE(little, config.rope.high_freq = 4, "model.rope_high_freq is given");
  REFUSE(little, config.rope.original = 8192, "model.rope_original is given");
}

static struct model_config qwen3_of_heads(int64_t heads, int64_t kv_heads, int64_t head_width)
{
  struct model_config config = small_qwen3;
  config.heads = heads, config.kv_heads = kv_heads, config.head_width = head_width;
  return config;
}

TEST(test_decoder_guards)
{
  expect_refusal(qwen3_of_heads(6, 4, 20),
                 "model.kv_heads is 4, which does not divide model.heads 6");
  expect_refusal(qwen3_of_heads(6, 12, 20),
                 "model.kv_heads is 12, which does not divide model.heads 6");
  expect_refusal(qwen3_of_heads(6, -1, 20), "model.kv_heads is -1");
  expect_refusal(qwen3_of_heads(5, 5, 0),
                 "model.width 48 cannot be split over model.heads 5: make it a multiple, or give "
                 "model.head_width");
  expect_refusal(qwen3_of_heads(16, 16, 0), "model.head_width is 3: rotary positions");
  expect_refusal(qwen3_of_heads(6, 2, 21), "model.head_width is 21: rotary positions");
  expect_refusal(qwen3_of_heads(6, 2, INT64_C(1) << 31), "model.head_width is 2147483648");
  expect_refusal(qwen3_of_heads(6, 2, 65538), "model.head_width is 65538: qwen3 takes 0 to 65536");
  REFUSE(small_qwen3, config.ffn = 0, "model.ffn is 0: qwen3 needs");
  REFUSE(small_qwen3, config.ffn = INT64_MAX, "model.ffn is 9223372036854775807");
  REFUSE(small_qwen3, config.ffn = 1 << 30,
         "the gate and up projections of a token are 2147483648 elements, more than 2147483647: "
         "lower model.ffn");
  expect_refusal(qwen3_of_heads(1 << 20, 1 << 19, 1024),
                 "the queries, keys and values of a token are 2147483648 elements, more than "
                 "2147483647: lower model.heads");
}

TEST(test_window_guards)
{
  static const struct {
    const char *arch;
    int64_t window, window_from;
    const char *says;
  } cases[] = {
      {"qwen3", -1, 0, "model.window is -1"},
      {"qwen3", 4, -1, "model.window_from is -1"},
      {"qwen3", 0, 2, "model.window_from is 2, but no model.window"},
      {"qwen3", 4, 3, "model.window_from is 3, but the last of the 3 blocks is 2"},
      {"llama", 4, 0, "model.window is 4: llama"},
      {"mistral", 4, 1, "model.window_from is 1: mistral"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    REFUSE(small_qwen3,
           (config.arch = cases[i].arch, config.window = cases[i].window,
            config.window_from = cases[i].window_from),
           cases[i].says);
}

TEST(test_rope_guards)
{
  static const struct {
    struct rope_config rope;
    const char *says;
  } cases[] = {
      {{.theta = -1}, "model.rope_theta is -1"},
      {{.theta = INFINITY}, "model.rope_theta is inf"},
      {{.scaling = 3}, "model.rope_scaling 3"},
      {{.factor = 2}, "model.rope_factor is 2: model.rope_scaling none does not use it"},
      {{.scaling = ROPE_LINEAR}, "model.rope_factor is 0: model.rope_scaling linear needs it"},
      {{.scaling = ROPE_LINEAR, .factor = NAN}, "model.rope_factor is nan"},
      {{.scaling = ROPE_LINEAR, .factor = 0.5}, "model.rope_factor is 0.5"},
      {{.scaling = ROPE_LINEAR, .factor = 2, .high_freq = 4},
       "model.rope_high_freq is 4: model.rope_scaling linear does not use it"},
      {{.scaling = ROPE_LLAMA3, .factor = 8, .high_freq = 4, .original = 64},
       "model.rope_low_freq is 0: model.rope_scaling llama3 needs it"},
      {{.scaling = ROPE_LLAMA3, .factor = 8, .low_freq = 1, .original = 64},
       "model.rope_high_freq is 0"},
      {{.scaling = ROPE_LLAMA3, .factor = 8, .low_freq = 1, .high_freq = 4},
       "model.rope_original is 0"},
      {{.scaling = ROPE_LLAMA3, .factor = 8, .low_freq = 4, .high_freq = 4, .original = 64},
       "model.rope_high_freq is 4: it must be greater"},
      {{.scaling = ROPE_LLAMA3, .factor = 8, .low_freq = 1, .high_freq = 4, .original = INT64_MAX},
       "model.rope_original is 9223372036854775807"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    REFUSE(small_qwen3, config.rope = cases[i].rope, cases[i].says);
}

static void check_packed(const struct model *model, int ranks)
{
  int64_t frozen = 0;
  assert_int_equal(model->ranks, ranks);
  for (int u = 0; u < model->units; u++) {
    const struct model_unit *unit = &model->unit[u];
    assert_int_equal(unit->layout.ranks, ranks);
    for (int p = 0; p < unit->params; p++) {
      int64_t offset = unit->layout.offset[p];
      assert_true(unit->layout.frozen[p] == unit->param[p].frozen);
      assert_true(unit->param[p].frozen
                      ? offset >= unit->layout.trained
                      : offset + unit->layout.elements[p] <= unit->layout.trained);
      frozen += unit->param[p].frozen ? unit->layout.elements[p] : 0;
    }
  }
  assert_int_equal(model->frozen, frozen);
}

/* Oracle: counted by hand, and layout.h. */
TEST(test_freeze)
{
  struct model *model = create(&small_qwen3);
  int64_t before = model->unit[1].layout.offset[1];
  must(model_freeze(model, 0, NULL, 3));
  check_packed(model, 3);
  assert_int_equal(model->frozen, 0);
  assert_int_equal(model->unit[1].layout.offset[1], before);

  char *const patterns[] = {"model.layers.[01].*", "*.k_norm.weight", "lm_head.weight"};
  must(model_freeze(model, 3, patterns, 5));
  check_packed(model, 5);
  int64_t block = 48 + 48 * (120 + 40 + 40) + 20 + 20 + 120 * 48 + 48 + 3 * 48 * 32;
  assert_int_equal(model->frozen, 2 * block + 20 + 211 * 48);
  assert_int_equal(model->unit[1].layout.trained, 0);
  assert_false(model->unit[0].param[0].frozen);
  assert_true(model->unit[4].param[1].frozen && !model->unit[4].param[0].frozen);
  assert_int_equal(model->parameters, 2 * 211 * 48 + 48 + 3 * block);
  model_destroy(model);
}

TEST(test_freeze_guards)
{
  struct model *model = create(&little);
  char *const missing[] = {"*.bias", "model.layers.*"}, *const everything[] = {"*.weight", "*"};
  assert_int_equal(model_freeze(model, 2, missing, 2), STATUS_USAGE);
  assert_non_null(strstr(status_text(),
                         "train.freeze: no parameter of this model is named \"model.layers.*\"; "
                         "names look like \"transformer.h.0.ln_1.weight\""));
  assert_int_equal(model_freeze(model, 2, everything, 2), STATUS_USAGE);
  assert_non_null(strstr(status_text(), "train.freeze: with \"*\" all parameters are frozen"));
  assert_int_equal(model->frozen, 0); /* nothing was changed */
  check_packed(model, 1);
  model_destroy(model);
}

/* Sizes whose sum passes 2^62: of a unit, and of all units. */
TEST(test_overflow)
{
  struct model_config wide = small_qwen3;
  wide.layers = 1, wide.width = INT32_MAX, wide.heads = wide.kv_heads = 1 << 20;
  wide.head_width = 512, wide.ffn = (1 << 30) - 1;
  expect_refusal(wide, "2^62");
  wide.width = 1 << 20;
  wide.layers = 65536;
  expect_refusal(wide, "2^62");
}

TEST(test_long_sequence_and_bad_token)
{
  struct engine e;
  struct batch batch;
  engine_create(&little, 1, &e);
  batch_create((struct model_shape){.B = 1, .T = 17}, little.vocab, &batch);
  size_t bytes = model_stream_bytes(e.model, batch.shape);
  void *x = engine_alloc(&e, bytes);
  struct model_call call = engine_call(&e, 0, batch.shape);
  call.token = batch.token;
  call.x_out = x;
  assert_int_equal(e.model->ops->embed(&call), STATUS_USAGE);
  assert_non_null(strstr(status_text(), "17 tokens does not fit model.context 16"));
  call.shape.T = 16;
  batch.token[9] = 211;
  assert_int_equal(e.model->ops->embed(&call), STATUS_INPUT);
  assert_non_null(strstr(status_text(), "211"));
  engine_free(&e, x, bytes);
  batch_destroy(&batch);
  engine_destroy(&e);
}

TEST_MAIN(NULL, NULL)
