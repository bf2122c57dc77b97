/* Sampling and the data order. Oracles: the softmax worked out in the test, and the order of one rank against that of many. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "train/data.h"
#include "train/generate.h"

enum { V = 7, DRAWS = 20000 };
static const float logits[V] = {0.5f, 2.0f, -1.0f, 1.0f, 1.5f, -INFINITY, 0.0f};

static void test_frequencies_follow_the_softmax(void **state)
{
  (void)state;
  const struct generate_options options = {.temperature = 0.7, .seed = 11};
  int count[V] = {0};
  float scratch[V];
  for (int i = 0; i < DRAWS; i++)
    count[generate_sample(logits, V, &options, i, scratch)]++;
  double total = 0;
  for (int v = 0; v < V; v++)
    total += exp(logits[v] / 0.7);
  for (int v = 0; v < V; v++) {
    const double p = exp(logits[v] / 0.7) / total;
    assert_true(fabs(count[v] - p * DRAWS) <= 4 * sqrt(p * (1 - p) * DRAWS)); /* four standard deviations */
  }
  assert_int_equal(count[5], 0);
}

static void test_top_k_and_zero_temperature(void **state)
{
  (void)state;
  struct generate_options options = {.temperature = 3, .top_k = 2, .seed = 1};
  float scratch[V];
  int seen1 = 0, seen4 = 0;
  for (int i = 0; i < 200; i++) {
    const int32_t token = generate_sample(logits, V, &options, i, scratch);
    assert_true(token == 1 || token == 4);
    seen1 += token == 1;
    seen4 += token == 4;
  }
  assert_true(seen1 > 0 && seen4 > 0);
  options = (struct generate_options){.temperature = 0};
  assert_int_equal(generate_sample(logits, V, &options, 3, scratch), 1);
}

static struct data_order order_of(int rank, int ranks, int64_t micro)
{
  const int64_t batch = 12;
  return (struct data_order){
      .seed = 5,
      .vocab = 50,
      .batch = batch,
      .rank = rank,
      .shape = {.ranks = ranks, .rank_batch = batch / ranks, .micro_batch = micro, .micros = batch / ranks / micro, .sequence = 9}};
}

/* A step's samples, in order, whoever loads them and in which portions. */
static void load_step(int ranks, int64_t micro, int64_t step, int32_t *tokens, int32_t *targets)
{
  for (int rank = 0; rank < ranks; rank++) {
    struct data_order order = order_of(rank, ranks, micro);
    for (int m = 0; m < order.shape.micros; m++) {
      const int64_t at = (rank * order.shape.rank_batch + m * micro) * 9;
      assert_int_equal(data_load_train(&order, step, m, tokens + at, targets + at), STATUS_OK);
    }
  }
}

static void test_samples_of_a_step_do_not_depend_on_ranks(void **state)
{
  (void)state;
  int32_t tokens[2][12 * 9], targets[2][12 * 9];
  static const struct {
    int ranks;
    int64_t micro;
  } cuts[] = {{1, 1}, {2, 3}, {3, 2}, {4, 1}, {6, 2}, {12, 1}};
  load_step(1, 12, 3, tokens[0], targets[0]);
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
    load_step(cuts[i].ranks, cuts[i].micro, 3, tokens[1], targets[1]);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
  }
  load_step(1, 12, 4, tokens[1], targets[1]);
  assert_memory_not_equal(tokens[0], tokens[1], sizeof tokens[0]);
  for (int t = 0; t + 1 < 9; t++)
    assert_int_equal(targets[0][t], tokens[0][t + 1]); /* a target is the next token */
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_frequencies_follow_the_softmax),
      cmocka_unit_test(test_top_k_and_zero_temperature),
      cmocka_unit_test(test_samples_of_a_step_do_not_depend_on_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
