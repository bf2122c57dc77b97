/* What must not change a bit of the loss or of any gradient. Oracle: the same step, cut another way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static const struct model_config small = {
    .arch = "gpt2", .layers = 3, .width = 72, .heads = 3, .context = 40, .vocab = 301, .norm_eps = 1e-5, .init_std = 0.02};
static const struct model_shape shape = {.B = 4, .T = 37};

/* A step's results. */
struct outcome {
  struct exactsum loss;
  float **grads;
  int units;
  int64_t *used;
};

static struct outcome run(const struct model_config *config, struct model_shape s, int threads, struct cut cut)
{
  struct engine engine;
  struct batch batch;
  engine_create(config, threads, &engine);
  batch_create(s, config->vocab, &batch);
  struct outcome out = {.units = engine.model->units};
  out.loss = engine_step(&engine, &batch, cut);
  out.grads = calloc((size_t)out.units, sizeof *out.grads);
  out.used = calloc((size_t)out.units, sizeof *out.used);
  assert_true(out.grads && out.used);
  for (int u = 0; u < out.units; u++) {
    out.used[u] = engine.model->unit[u].layout.used;
    size_t bytes = (size_t)out.used[u] * sizeof(float);
    out.grads[u] = malloc(bytes);
    assert_non_null(out.grads[u]);
    memcpy(out.grads[u], engine.grads[u], bytes);
  }
  batch_destroy(&batch);
  engine_destroy(&engine);
  return out;
}

static void release(struct outcome *out)
{
  for (int u = 0; u < out->units; u++)
    free(out->grads[u]);
  free(out->grads);
  free(out->used);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
  assert_memory_equal(&a->loss, &b->loss, sizeof a->loss);
  for (int u = 0; u < a->units; u++)
    for (int64_t i = 0; i < a->used[u]; i++)
      if (memcmp(&a->grads[u][i], &b->grads[u][i], sizeof(float)))
        fail_msg("unit %d element %lld: %a is not %a", u, (long long)i, (double)a->grads[u][i], (double)b->grads[u][i]);
}

static void compare(int threads, struct cut cut, int other_threads, struct cut other)
{
  struct outcome a = run(&small, shape, threads, cut), b = run(&small, shape, other_threads, other);
  assert_same(&a, &b);
  release(&a);
  release(&b);
}

static void test_twice(void **state)
{
  (void)state;
  compare(2, (struct cut){.micro = 4}, 2, (struct cut){.micro = 4});
}

static void test_recompute(void **state)
{
  (void)state;
  compare(2, (struct cut){.micro = 4}, 2, (struct cut){.micro = 4, .recompute = true});
}

static void test_threads(void **state)
{
  (void)state;
  compare(1, (struct cut){.micro = 4}, 2, (struct cut){.micro = 4});
  compare(1, (struct cut){.micro = 4}, 3, (struct cut){.micro = 4});
  compare(1, (struct cut){.micro = 1}, 3, (struct cut){.micro = 1});
}

/* With the embedding's gradient added after all heads' in both. */
static void test_micro_batches(void **state)
{
  (void)state;
  struct cut whole = {.micro = 4, .late_embedding = true};
  compare(2, whole, 2, (struct cut){.micro = 1, .late_embedding = true});
  compare(2, whole, 2, (struct cut){.micro = 2, .late_embedding = true});
}

/* With it added micro-batch by micro-batch, the tied matrix is summed in another order (head, embedding, head, ...): the same within rounding. All else
 * is the same bits. */
static void test_micro_batches_tied(void **state)
{
  (void)state;
  struct outcome a = run(&small, shape, 2, (struct cut){.micro = 4}), b = run(&small, shape, 2, (struct cut){.micro = 1});
  int64_t tied = small.vocab * small.width; /* first in the root unit */
  double error = 0, norm = 0;
  for (int64_t i = 0; i < tied; i++) {
    error += pow((double)a.grads[0][i] - (double)b.grads[0][i], 2);
    norm += pow(a.grads[0][i], 2);
  }
  assert_true(sqrt(error) <= 1e-7 * sqrt(norm)); /* a few roundings of 2^-24 in some of the elements */
  memcpy(a.grads[0], b.grads[0], (size_t)tied * sizeof(float));
  assert_same(&a, &b);
  release(&a);
  release(&b);
}

/* Sequences whose logits come in two chunks. */
static void test_micro_batches_in_chunks(void **state)
{
  (void)state;
  const struct model_config wide = {
      .arch = "gpt2", .layers = 1, .width = 3, .heads = 1, .context = 65, .vocab = 270000, .norm_eps = 1e-5, .init_std = 0.02};
  const struct model_shape two = {.B = 2, .T = 65};
  struct outcome a = run(&wide, two, 2, (struct cut){.micro = 2, .late_embedding = true}),
                 b = run(&wide, two, 1, (struct cut){.micro = 1, .late_embedding = true});
  assert_same(&a, &b);
  release(&a);
  release(&b);
}

static void test_evaluation(void **state)
{
  (void)state;
  struct engine engine;
  struct batch batch;
  engine_create(&small, 2, &engine);
  batch_create(shape, small.vocab, &batch);
  struct exactsum trained = engine_step(&engine, &batch, (struct cut){.micro = 4}), evaluated = engine_evaluate(&engine, &batch);
  assert_true(exactsum_value(&trained) > 0);
  assert_memory_equal(&trained, &evaluated, sizeof trained);
  batch_destroy(&batch);
  engine_destroy(&engine);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_twice),         cmocka_unit_test(test_recompute),          cmocka_unit_test(test_threads),
      cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_micro_batches_tied), cmocka_unit_test(test_micro_batches_in_chunks),
      cmocka_unit_test(test_evaluation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
