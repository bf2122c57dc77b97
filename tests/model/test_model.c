/* The registry, parameter tables, frequencies, initial values, sizes, what is frozen, and what is
 * refused. */

#include <math.h>

#include "base/append.h"
#include "engine.h"
#include "tests/rows.h"

static const char path[] = "tests/model/models.txt",
                  little[] = "arch=gpt2 layers=2 width=48 heads=4 context=16 vocab=211",
                  small_qwen3[] =
                      "arch=qwen3 layers=3 width=48 heads=6 kv_heads=2 head_width=20 ffn=32 "
                      "context=16 vocab=211 tied=false norm_eps=1e-6",
                  llama_8b[] = "arch=llama layers=32 width=4096 heads=32 kv_heads=8 ffn=14336 "
                               "context=131072 vocab=128256 tied=false rope_theta=5e5 "
                               "rope_scaling=llama3 rope_factor=8 rope_low_freq=1 "
                               "rope_high_freq=4 rope_original=8192";

/* Keys, and more of them that count instead of the same ones before. */
static struct model *create_with(const char *keys, const char *more)
{
  struct model *model;
  char all[512];
  snprintf(all, sizeof all, "%s %s", keys, more);
  must(engine_model(all, 1, &model));
  return model;
}

static struct model *create(const char *keys)
{
  return create_with(keys, "");
}

static void check_unit(const char *given, const char *expected)
{
  static const char *const kinds[] = {[PARAM_WEIGHT] = "weight",
                                      [PARAM_BIAS] = "bias",
                                      [PARAM_NORM] = "norm",
                                      [PARAM_EMBEDDING] = "embedding",
                                      [PARAM_ADAPTER] = "adapter"};
  char text[ROWS_LONGEST] = "", *keys;
  const long u = strtol(given, &keys, 10);
  struct model *model = create(keys);
  const struct model_unit *unit = &model->unit[u];
  append_text(text, sizeof text, "%s of %d, head %d", unit->name, model->units, model->head);
  for (int p = 0; p < unit->params; p++) {
    const struct model_param *param = &unit->param[p];
    append_text(text, sizeof text, " %s %s", param->name, kinds[param->kind]);
    int64_t elements = 1;
    for (int d = 0; d < param->ndim; elements *= param->shape[d++])
      append_text(text, sizeof text, d ? "x%lld" : " %lld", (long long)param->shape[d]);
    assert_int_equal(unit->layout.elements[p], elements);
  }
  assert_string_equal(text, expected);
  model_destroy(model);
}

TEST(test_tables)
{
  rows_each(path, "units", check_unit);
}

static void check_parameters(const char *keys, const char *expected)
{
  struct model *model = create(keys);
  assert_int_equal(model->parameters, strtoll(expected, NULL, 10));
  model_destroy(model);
}

TEST(test_published_sizes)
{
  rows_each(path, "parameters", check_parameters);
}

TEST(test_zeros_are_resolved)
{
  struct model *model = create(little);
  assert_int_equal(model->config.kv_heads, 4);
  assert_int_equal(model->config.head_width, 12);
  assert_int_equal(model->config.ffn, 192);
  assert_null(model->inv_freq);
  model_destroy(model);
  model = create("arch=llama width=4096 heads=32 ffn=11008");
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
  /* clang-format off */
  static const struct {
    int i;
    double value;
  } expected[] = {{0, 1}, {1, 0x1.a11582p-1}, {28, 0x1.a4ee40p-9}, {30, 0x1.67a23ap-10},
                  {31, 0x1.c12f3cp-11}, {33, 0x1.47e210p-12}, {35, 0x1.90d10cp-14},
                  {36, 0x1.46831ap-14}, {40, 0x1.1f91f0p-15}, {63, 0x1.4985fep-22}};
  /* clang-format on */
  struct model *model = create(llama_8b);
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
    check_frequency(model, expected[i].i, expected[i].value);
  model_destroy(model);

  model = create("arch=llama width=4096 heads=32 ffn=11008 rope_theta=1e6 rope_scaling=linear "
                 "rope_factor=2.5"); /* by the formula */
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
  struct model *model = create(little);
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
  struct model *model = create(little);
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
  struct model *model = create(little);
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
  struct model *model = create(little);
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
  struct model *model = create("");
  const struct model_shape s = {.B = 4, .T = 256};
  double block = 2.0 * 1024 * 12 * 768 * 768 + 4.0 * 2 * 2 * (256.0 * 256 / 2) * 768,
         head = 2.0 * 1024 * 768 * 50257;
  assert_true(model->ops->block_flops(model, 1, s) == block);
  assert_true(model->ops->head_flops(model, s) == head);
  assert_true(model->ops->attention_flops(model, 1, s) == 4.0 * 2 * 2 * (256.0 * 256 / 2) * 768);
  const struct model_shape documents = {.B = 4, .T = 256, .squares = 200.0 * 200 + 40 * 40};
  assert_true(block - model->ops->block_flops(model, 1, documents) ==
              4.0 * 2 * 2 * (256.0 * 256 - 200.0 * 200 - 40 * 40) / 2 * 768);
  assert_true(model_trained_share(model, 1) == 1);
  model_destroy(model);
  model = create("lora.rank=8"); /* of matrices 4, 2, 5 and 5 widths long and high */
  assert_true(model->ops->block_flops(model, 1, s) == block + 2.0 * 1024 * 8 * 16 * 768);
  assert_true(model_trained_share(model, 0) == 0);
  assert_true(model_trained_share(model, 1) == 8.0 * 16 / (12 * 768 + 8 * 16));
  model_destroy(model);
}

/* Counted by hand. A token has 2 x multiply-adds with q 48 x 120, k and v 48 x 40 each, o 120 x 48,
 * three times 48 x 32; a pair of tokens 2 x 2 x 120. The last of three blocks has a window of 5:
 * its sums have T - 5 full windows and the 5 before them. The reported number is the mean over the
 * blocks. */
TEST(test_decoder_flops)
{
  const struct model_shape s = {.B = 2, .T = 12};
  double tokens = 24, projections = 2 * tokens * 48 * (120 + 40 + 40 + 120 + 3 * 32);
  struct model *model = create(small_qwen3);
  assert_true(model->ops->block_flops(model, 1, s) == projections + 2 * (12.0 * 12 / 2) * 4 * 120);
  assert_true(model->ops->head_flops(model, s) == 2 * tokens * 48 * 211);
  model_destroy(model);
  model = create_with(small_qwen3, "window=5 window_from=2");
  double mean =
      projections + 2 * (2 * (12.0 * 12 / 2) + (12.0 - 5) * 5 + 5.0 * 5 / 2) / 3 * 4 * 120;
  assert_true(fabs(model->ops->block_flops(model, 1, s) - mean) < 1e-6 * mean);
  /* Documents of 8 and 4: fewer pairs than 12 in all, and fewer than the window has. */
  const struct model_shape documents = {.B = 2, .T = 12, .squares = 8.0 * 8 + 4 * 4};
  mean = projections + 2 * (2 * (80.0 / 2) + 80.0 / 2) / 3 * 4 * 120;
  assert_true(fabs(model->ops->block_flops(model, 1, documents) - mean) < 1e-6 * mean);
  model_destroy(model);
}

TEST(test_sizes)
{
  struct engine e;
  engine_create(little, 1, &e);
  const struct model_ops *ops = e.model->ops;
  const struct model_shape s = {.B = 3, .T = 16}, huge = {.B = INT64_C(1) << 61, .T = 16};
  int64_t rows = s.B * s.T;
  assert_int_equal(model_stream_bytes(e.model, s), rows * 48 * 4);
  assert_int_equal(ops->saved_bytes(e.model, 1, s),
                   rows * (13 * 48 + 4) * 4); /* all pieces are multiples of 64 bytes here */
  assert_true(ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD_SAVED, 1) +
                  ops->saved_bytes(e.model, 1, s) ==
              ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD, 1));
  /* The head's work does not grow with the batch, nor beyond a chunk with the sequence. */
  const struct model_shape one = {.B = 1, .T = 16};
  assert_int_equal(ops->work_bytes(e.model, &e.device->model, s, WORK_LOSS_GRADIENT, 1),
                   ops->work_bytes(e.model, &e.device->model, one, WORK_LOSS_GRADIENT, 1));
  assert_true(model_stream_bytes(e.model, huge) == SIZE_MAX);
  assert_true(ops->saved_bytes(e.model, 1, huge) == SIZE_MAX);
  assert_true(ops->work_bytes(e.model, &e.device->model, huge, WORK_FORWARD, 1) == SIZE_MAX);
  assert_true(ops->work_bytes(e.model, &e.device->model, huge, WORK_BACKWARD, 1) == SIZE_MAX);
  const struct model_shape large = {.B = (int64_t)(SIZE_MAX / (13 * 48 * 4 + 48 * 4)) / 16,
                                    .T = 16}; /* the activations alone are possible, but not
                                                 together with the workspace of a pass */
  assert_true(ops->saved_bytes(e.model, 1, large) < SIZE_MAX);
  assert_true(ops->work_bytes(e.model, &e.device->model, large, WORK_FORWARD, 1) == SIZE_MAX);
  engine_destroy(&e);
}

/* Oracle: counted by hand from what decoder.c says it keeps. Recomputing needs no more than
 * keeping. */
TEST(test_decoder_sizes)
{
  struct engine e;
  engine_create(small_qwen3, 1, &e);
  const struct model_ops *ops = e.model->ops;
  const struct model_shape s = {.B = 4, .T = 16}, huge = {.B = INT64_C(1) << 61, .T = 16};
  int64_t rows = s.B * s.T;
  assert_int_equal(ops->saved_bytes(e.model, 1, s), rows * (200 + 120 + 48 + 2 * 32 + 6) * 4);
  assert_true(ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD_SAVED, 1) +
                  ops->saved_bytes(e.model, 1, s) ==
              ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD, 1));
  assert_true(ops->saved_bytes(e.model, 1, huge) == SIZE_MAX);
  for (int what = WORK_FORWARD; what <= WORK_DECODE; what++)
    if (what < WORK_LOSS || what > WORK_LOGITS)
      assert_true(ops->work_bytes(e.model, &e.device->model, huge, what, 1) == SIZE_MAX);
  engine_destroy(&e);
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
  const struct model_shape s = {.B = 2, .T = 16};
  size_t bytes[2];
  for (int last = 0; last < 2; last++) {
    engine_create_model(create_with(small_qwen3, last ? "window=5 window_from=2" : ""), 1, &e);
    e.device->model.attention_workspace = window_workspace;
    bytes[last] = e.model->ops->work_bytes(e.model, &e.device->model, s, WORK_FORWARD, 1);
    engine_destroy(&e);
  }
  assert_int_equal(bytes[1] - bytes[0], (1 << 20) - (1 << 18));
}

TEST(test_logits_never_whole)
{
  struct engine e;
  engine_create("layers=1 width=8 heads=1 context=8192", 1, &e);
  const struct model_shape s = {.B = 8, .T = 8192};
  size_t chunk = e.model->ops->work_bytes(e.model, &e.device->model, s, WORK_LOSS_GRADIENT, 1);
  assert_true(chunk < (size_t)72 << 20); /* the whole matrix: 12 GiB */
  engine_destroy(&e);
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
  struct model *model = create(small_qwen3);
  int64_t before = model->unit[1].layout.offset[1];
  assert_int_equal(model_freeze(model, 1, (char *[]){"*"}, 3), STATUS_USAGE);
  check_packed(model, 1); /* nothing was changed */
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

static void check_refusal(const char *keys, const char *words)
{
  struct model *model = NULL;
  must_fail(engine_model(keys, 2, &model), STATUS_USAGE, words);
  assert_null(model);
}

static void check_refused_gpt2(const char *more, const char *words)
{
  char keys[512];
  snprintf(keys, sizeof keys, "%s %s", little, more);
  check_refusal(keys, words);
}

static void check_refused_qwen3(const char *more, const char *words)
{
  char keys[512];
  snprintf(keys, sizeof keys, "%s %s", small_qwen3, more);
  check_refusal(keys, words);
}

TEST(test_guards)
{
  rows_each(path, "refused, of a small gpt2", check_refused_gpt2);
  rows_each(path, "refused, of a small qwen3", check_refused_qwen3);
  model_destroy(create_with(little, "kv_heads=4 head_width=12")); /* as it is anyway */
  model_destroy(create_with(little, "heads=1 width=65536 head_width=65536 kv_heads=1"));
}

/* Sizes whose sum passes 2^62: of a unit, and of all units. */
TEST(test_overflow)
{
  struct model *model = NULL;
  struct model_config wide = {.arch = "qwen3",
                              .layers = 1,
                              .width = INT32_MAX,
                              .heads = 1 << 20,
                              .kv_heads = 1 << 20,
                              .head_width = 512,
                              .ffn = (1 << 30) - 1,
                              .context = 16,
                              .vocab = 211,
                              .norm_eps = 1e-6};
  must_fail(model_create(&wide, &model), STATUS_USAGE, "2^62");
  wide.width = 1 << 20;
  wide.layers = 65536;
  must_fail(model_create(&wide, &model), STATUS_USAGE, "2^62");
}

TEST(test_long_sequence_and_bad_token)
{
  struct engine e;
  struct batch batch;
  engine_create(little, 1, &e);
  batch_create((struct model_shape){.B = 1, .T = 17}, 211, &batch);
  size_t bytes = model_stream_bytes(e.model, batch.shape);
  void *x = engine_alloc(&e, bytes);
  struct model_call call = engine_call(&e, 0, batch.shape);
  call.batch.tokens = batch.token;
  call.x_out = x;
  must_fail(e.model->ops->embed(&call), STATUS_USAGE, "17 tokens does not fit model.context 16");
  call.shape.T = 16;
  batch.token[9] = 211;
  must_fail(e.model->ops->embed(&call), STATUS_INPUT, "211");
  engine_free(&e, x, bytes);
  batch_destroy(&batch);
  engine_destroy(&e);
}

TEST_MAIN(NULL, NULL)
