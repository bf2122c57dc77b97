/* The registry, GPT-2's parameter tables, initial values, sizes, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static const struct model_config gpt2_124m = {
    .arch = "gpt2", .layers = 12, .width = 768, .heads = 12, .context = 1024, .vocab = 50257, .norm_eps = 1e-5, .init_std = 0.02};
static const struct model_config little = {
    .arch = "gpt2", .layers = 2, .width = 48, .heads = 4, .context = 16, .vocab = 211, .norm_eps = 1e-5, .init_std = 0.02};

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

static void check_unit(const struct model_unit *unit, const char *name, const struct row *rows, int n)
{
  assert_string_equal(unit->name, name);
  assert_int_equal(unit->params, n);
  for (int p = 0; p < n; p++) {
    assert_string_equal(unit->param[p].name, rows[p].name);
    assert_int_equal(unit->param[p].kind, rows[p].kind);
    assert_int_equal(unit->param[p].ndim, rows[p].shape[1] ? 2 : 1);
    assert_int_equal(unit->param[p].shape[0], rows[p].shape[0]);
    assert_int_equal(unit->param[p].shape[1], rows[p].shape[1]);
    assert_int_equal(unit->layout.elements[p], rows[p].shape[0] * (rows[p].shape[1] ? rows[p].shape[1] : 1));
  }
}

/* Oracle: state_dict() of Hugging Face's GPT2LMHeadModel for "gpt2", and its published number of parameters. */
static void test_tables(void **state)
{
  (void)state;
  static const struct row root[] = {{"transformer.wte.weight", PARAM_EMBEDDING, {50257, 768}},
                                    {"transformer.wpe.weight", PARAM_EMBEDDING, {1024, 768}},
                                    {"transformer.ln_f.weight", PARAM_NORM, {768}},
                                    {"transformer.ln_f.bias", PARAM_NORM, {768}}};
  static const struct row last[] = {{"transformer.h.11.ln_1.weight", PARAM_NORM, {768}},
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
static void test_init_of_ranges(void **state)
{
  (void)state;
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
static void test_init_statistics(void **state)
{
  (void)state;
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

static void test_init_by_name_and_seed(void **state)
{
  (void)state;
  struct model *model = create(&little);
  int p = find_param(&model->unit[1], "attn.c_proj.weight");
  size_t bytes = (size_t)model->unit[1].layout.elements[p] * sizeof(float);
  float *one = init_whole(model, 5, 1, p), *again = init_whole(model, 5, 1, p), *other_block = init_whole(model, 5, 2, p),
        *other_seed = init_whole(model, 6, 1, p);
  assert_memory_equal(one, again, bytes);
  assert_memory_not_equal(one, other_block, bytes);
  assert_memory_not_equal(one, other_seed, bytes);
  free(one);
  free(again);
  free(other_block);
  free(other_seed);
  model_destroy(model);
}

static void test_decay(void **state)
{
  (void)state;
  struct model *model = create(&little);
  const unsigned exempt = 1u << PARAM_NORM | 1u << PARAM_BIAS;
  assert_true(model_decays(model, 0, find_param(&model->unit[0], "wte.weight"), exempt));
  assert_true(model_decays(model, 1, find_param(&model->unit[1], "mlp.c_fc.weight"), exempt));
  assert_false(model_decays(model, 1, find_param(&model->unit[1], "mlp.c_fc.bias"), exempt));
  assert_false(model_decays(model, 1, find_param(&model->unit[1], "ln_1.weight"), exempt));
  assert_false(model_decays(model, 0, find_param(&model->unit[0], "wte.weight"), 1u << PARAM_EMBEDDING));
  assert_true(model_decays(model, 1, find_param(&model->unit[1], "ln_1.bias"), 0));
  model_destroy(model);
}

/* Oracle: counted by hand. A block's matrices have 12 C^2 elements, each multiplied and added once a token; attention multiplies C elements twice for
 * each of T^2 / 2 pairs. */
static void test_flops(void **state)
{
  (void)state;
  struct model *model = create(&gpt2_124m);
  const struct model_shape s = {.B = 4, .T = 256};
  double block = 2.0 * 1024 * 12 * 768 * 768 + 4.0 * 2 * 2 * (256.0 * 256 / 2) * 768, head = 2.0 * 1024 * 768 * 50257;
  assert_true(model->ops->block_flops(model, s) == block);
  assert_true(model->ops->head_flops(model, s) == head);
  model_destroy(model);
}

static void test_sizes(void **state)
{
  (void)state;
  struct engine e;
  engine_create(&little, 1, &e);
  const struct model_ops *ops = e.model->ops;
  const struct model_shape s = {.B = 3, .T = 16}, huge = {.B = INT64_C(1) << 61, .T = 16};
  int64_t rows = s.B * s.T;
  assert_int_equal(model_stream_bytes(e.model, e.device, s), rows * 48 * 4);
  assert_int_equal(ops->saved_bytes(e.model, e.device, s), rows * (13 * 48 + 4) * 4); /* all pieces are multiples of 64 bytes here */
  assert_true(ops->work_bytes(e.model, e.device, s, WORK_FORWARD_SAVED, 1) + ops->saved_bytes(e.model, e.device, s) ==
              ops->work_bytes(e.model, e.device, s, WORK_FORWARD, 1));
  /* The head's work does not grow with the batch, nor beyond a chunk with the sequence. */
  const struct model_shape one = {.B = 1, .T = 16};
  assert_int_equal(ops->work_bytes(e.model, e.device, s, WORK_LOSS_GRADIENT, 1), ops->work_bytes(e.model, e.device, one, WORK_LOSS_GRADIENT, 1));
  assert_true(model_stream_bytes(e.model, e.device, huge) == SIZE_MAX);
  assert_true(ops->saved_bytes(e.model, e.device, huge) == SIZE_MAX);
  assert_true(ops->work_bytes(e.model, e.device, huge, WORK_FORWARD, 1) == SIZE_MAX);
  assert_true(ops->work_bytes(e.model, e.device, huge, WORK_BACKWARD, 1) == SIZE_MAX);
  engine_destroy(&e);
}

static void test_logits_never_whole(void **state)
{
  (void)state;
  struct engine e;
  const struct model_config config = {
      .arch = "gpt2", .layers = 1, .width = 8, .heads = 1, .context = 8192, .vocab = 50257, .norm_eps = 1e-5, .init_std = 0.02};
  engine_create(&config, 1, &e);
  const struct model_shape s = {.B = 8, .T = 8192};
  size_t chunk = e.model->ops->work_bytes(e.model, e.device, s, WORK_LOSS_GRADIENT, 1);
  assert_true(chunk < (size_t)72 << 20); /* the whole matrix: 12 GiB */
  engine_destroy(&e);
}

static void expect_refusal(struct model_config config, enum status code, const char *words)
{
  struct model *model = NULL;
  assert_int_equal(model_create(&config, &model), code);
  assert_null(model);
  if (!strstr(status_text(), words))
    fail_msg("\"%s\" does not say \"%s\"", status_text(), words);
}

static struct model_config with(int64_t layers, int64_t width, int64_t heads, int64_t context, int64_t vocab)
{
  return (struct model_config){
      .arch = "gpt2", .layers = layers, .width = width, .heads = heads, .context = context, .vocab = vocab, .norm_eps = 1e-5, .init_std = 0.02};
}

static void test_guards(void **state)
{
  (void)state;
  struct model_config config = little;
  config.arch = "gpt9";
  expect_refusal(config, STATUS_USAGE, "there is no architecture \"gpt9\"; this build knows: gpt2");
  expect_refusal(with(0, 48, 4, 16, 211), STATUS_USAGE, "model.layers is 0");
  expect_refusal(with(65537, 48, 4, 16, 211), STATUS_USAGE, "model.layers is 65537");
  expect_refusal(with(1, 0, 4, 16, 211), STATUS_USAGE, "model.width is 0");
  expect_refusal(with(1, 48, -4, 16, 211), STATUS_USAGE, "model.heads is -4");
  expect_refusal(with(1, 48, 4, 0, 211), STATUS_USAGE, "model.context is 0");
  expect_refusal(with(1, 48, 4, 16, INT64_C(1) << 31), STATUS_USAGE, "model.vocab is 2147483648");
  expect_refusal(with(1, 50, 4, 16, 211), STATUS_USAGE, "model.width 50 cannot be split over model.heads 4");
  config = little;
  config.norm_eps = 0;
  expect_refusal(config, STATUS_USAGE, "model.norm_eps");
  config = little;
  config.init_std = NAN;
  expect_refusal(config, STATUS_USAGE, "model.init_std");
}

/* Sizes whose product, or whose sum, passes 2^62. */
static void test_overflow(void **state)
{
  (void)state;
  expect_refusal(with(1, INT32_MAX, 1, INT32_MAX, INT32_MAX), STATUS_USAGE, "2^62");
  expect_refusal(with(3, INT64_C(1) << 30, 1, 1, INT32_MAX), STATUS_USAGE, "2^62");
}

static void test_long_sequence_and_bad_token(void **state)
{
  (void)state;
  struct engine e;
  struct batch batch;
  engine_create(&little, 1, &e);
  batch_create((struct model_shape){.B = 1, .T = 17}, little.vocab, &batch);
  size_t bytes = model_stream_bytes(e.model, e.device, batch.shape);
  void *x = engine_alloc(&e, bytes);
  assert_int_equal(e.model->ops->embed(e.model, e.lane, batch.shape, e.params[0], batch.token, x), STATUS_USAGE);
  assert_non_null(strstr(status_text(), "17 tokens does not fit model.context 16"));
  batch.shape.T = 16;
  batch.token[9] = 211;
  assert_int_equal(e.model->ops->embed(e.model, e.lane, batch.shape, e.params[0], batch.token, x), STATUS_INPUT);
  assert_non_null(strstr(status_text(), "211"));
  engine_free(&e, x, bytes);
  batch_destroy(&batch);
  engine_destroy(&e);
}

static void test_logits_are_fp32(void **state)
{
  (void)state;
  struct engine e;
  float logits[211];
  engine_create(&little, 1, &e);
  struct device half = {.ops = e.device->ops, .compute = DTYPE_BF16, .gradient = DTYPE_F32};
  struct lane lane = {.device = &half};
  assert_int_equal(e.model->ops->head_logits(e.model, &lane, (struct model_shape){1, 1}, e.params[0], logits, 0, logits, logits), STATUS_UNSUPPORTED);
  assert_non_null(strstr(status_text(), "bf16"));
  engine_destroy(&e);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tables),
      cmocka_unit_test(test_init_of_ranges),
      cmocka_unit_test(test_init_statistics),
      cmocka_unit_test(test_init_by_name_and_seed),
      cmocka_unit_test(test_decay),
      cmocka_unit_test(test_flops),
      cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_logits_never_whole),
      cmocka_unit_test(test_guards),
      cmocka_unit_test(test_overflow),
      cmocka_unit_test(test_long_sequence_and_bad_token),
      cmocka_unit_test(test_logits_are_fp32),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
