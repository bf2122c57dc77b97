/* Generation: tokens one at a time, or some at a time, against the whole sequence at once. Oracle: logits of the forward pass, and the same bits for sequences that share a call.
 * What differs is the order of sums inside attention: measured as up to 1.2e-6; the bound leaves a factor of ten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "shapes.h"

static const struct model_shape shape = {.B = 3, .T = 37};
static const double bound = 1.2e-5;

static void assert_close(const char *label, int64_t position, int64_t n, const float *got, const float *expected)
{
  double error = 0, norm = 0;
  for (int64_t i = 0; i < n; i++) {
    error += pow((double)got[i] - (double)expected[i], 2);
    norm += pow(expected[i], 2);
  }
  if (!(sqrt(error) <= bound * sqrt(norm))) /* NaN fails */
    fail_msg("%s: position %lld: error %.3g of %.3g", label, (long long)position, sqrt(error), sqrt(norm));
}

struct fixture {
  struct engine engine;
  struct batch batch;
  struct caches caches;
  int64_t V;
  float *got, *expected; /* [B, V] */
};

static void create(const struct model_config *config, struct fixture *f)
{
  engine_create(config, 2, &f->engine);
  batch_create(shape, config->vocab, &f->batch);
  caches_create(&f->engine, shape.B, config->context, &f->caches);
  f->V = config->vocab;
  f->got = calloc((size_t)(shape.B * f->V), sizeof(float));
  f->expected = calloc((size_t)(shape.B * f->V), sizeof(float));
  assert_true(f->got && f->expected);
}

static void destroy(struct fixture *f)
{
  free(f->got);
  free(f->expected);
  caches_destroy(&f->engine, &f->caches);
  batch_destroy(&f->batch);
  engine_destroy(&f->engine);
}

/* Tokens [past, past + T) of all sequences, one sequence behind the other. */
static void decode(struct fixture *f, int64_t past, int64_t T)
{
  int32_t *token = calloc((size_t)(shape.B * T), sizeof *token);
  assert_non_null(token);
  for (int64_t b = 0; b < shape.B; b++)
    memcpy(token + b * T, f->batch.token + b * shape.T + past, (size_t)T * sizeof *token);
  engine_decode(&f->engine, &f->caches, past, T, token, f->got);
  free(token);
}

static void check(struct fixture *f, const char *label, int64_t position)
{
  engine_logits(&f->engine, &f->batch, position, f->expected);
  assert_close(label, position, shape.B * f->V, f->got, f->expected);
}

static void test_token_by_token(void **state)
{
  (void)state;
  for (int i = 0; i < shape_count; i++) {
    struct fixture f;
    create(&shape_cases[i].config, &f);
    for (int64_t t = 0; t < shape.T; t++) {
      decode(&f, t, 1);
      check(&f, shape_cases[i].label, t);
    }
    destroy(&f);
  }
}

static void test_prompt_in_chunks(void **state)
{
  (void)state;
  static const int64_t cuts[][5] = {{37}, {5, 32}, {20, 1, 16}, {1, 1, 30, 4, 1}};
  for (int i = 0; i < shape_count; i++) {
    struct fixture f;
    create(&shape_cases[i].config, &f);
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++)
      for (int64_t past = 0, n = 0; past < shape.T; past += cuts[c][n++]) {
        decode(&f, past, cuts[c][n]);
        check(&f, shape_cases[i].label, past + cuts[c][n] - 1);
      }
    destroy(&f);
  }
}

/* A whole prompt at once is the forward pass, bit for bit. */
static void test_whole_prompt(void **state)
{
  (void)state;
  for (int i = 0; i < shape_count; i++) {
    struct fixture f;
    create(&shape_cases[i].config, &f);
    decode(&f, 0, shape.T);
    engine_logits(&f.engine, &f.batch, shape.T - 1, f.expected);
    assert_memory_equal(f.got, f.expected, (size_t)(shape.B * f.V) * sizeof(float));
    destroy(&f);
  }
}

static void test_cache_bytes(void **state)
{
  (void)state;
  struct engine e;
  engine_create(&shape_cases[1].config, 1, &e);
  assert_int_equal(e.model->ops->cache_bytes(e.model, e.device, 3, 64), 3 * 64 * 2 * 2 * 10 * 4);
  assert_true(e.model->ops->cache_bytes(e.model, e.device, INT64_C(1) << 40, INT64_C(1) << 40) == SIZE_MAX);
  engine_destroy(&e);
}

/* Tokens behind the end of the context. */
static void test_context_is_full(void **state)
{
  (void)state;
  for (int i = 0; i < shape_count; i++) {
    struct engine e;
    const int32_t token[2] = {1, 2};
    engine_create(&shape_cases[i].config, 1, &e);
    const struct model_shape s = {.B = 1, .T = 2};
    size_t bytes = model_stream_bytes(e.model, e.device, s);
    void *x = engine_alloc(&e, bytes);
    must(e.model->ops->embed(e.model, e.lane, s, 38, e.params[0], token, x));
    assert_int_equal(e.model->ops->embed(e.model, e.lane, s, 39, e.params[0], token, x), STATUS_USAGE);
    assert_non_null(strstr(status_text(), "41 tokens does not fit model.context 40"));
    engine_free(&e, x, bytes);
    engine_destroy(&e);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_token_by_token), cmocka_unit_test(test_prompt_in_chunks), cmocka_unit_test(test_whole_prompt),
      cmocka_unit_test(test_cache_bytes),    cmocka_unit_test(test_context_is_full),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
