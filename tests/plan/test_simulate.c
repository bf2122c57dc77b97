/* The simulator. Oracles: closed forms where nothing overlaps, bounds where something does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fixture.h"
#include "plan/internal.h"

enum { BLOCKS = 8 };

static struct model model;

static struct plan_forecast forecast(const struct point *point, const struct plan_rates *rates)
{
  struct plan_input input = fixture_input(&model, point, 0);
  struct plan *plan;
  struct plan_forecast out;
  assert_int_equal(plan_create(&input, &plan), STATUS_OK);
  assert_int_equal(plan_simulate(plan, rates, &out), STATUS_OK);
  plan_destroy(plan);
  return out;
}

static void expect_near(double got, double want)
{
  if (!(fabs(got - want) <= 1e-9 * fabs(want)))
    fail_msg("%.12g is not %.12g", got, want);
}

static double block_s(double rate)
{
  return 24.0 * 2 * 16 * 24 * 24 / rate;
}
static double head_s(double rate)
{
  return 2.0 * 2 * 16 * 24 * 97 / rate;
}

static int64_t flat_bytes(int unit, int ranks)
{
  struct layout_unit packed;
  assert_int_equal(layout_unit_pack(model.unit[unit].params, model.unit[unit].layout.elements, NULL, ranks, &packed), STATUS_OK);
  int64_t bytes = packed.flat * 4;
  layout_unit_free(&packed);
  return bytes;
}

static void a_rate_of_zero_costs_nothing(void **state)
{
  (void)state;
  struct plan_forecast f =
      forecast(&(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 1, 1, 2, true, TIED, FREEZE_NOTHING}, &(struct plan_rates){0});
  assert_true(f.step_s == 0 && f.exposed_comm_s == 0);
  for (int lane = 0; lane < LANE_COUNT; lane++)
    assert_true(f.busy_s[lane] == 0);
}

/* Forward once, backward twice, the head three times, recompute once more. */
static void compute_alone_takes_its_operations(void **state)
{
  (void)state;
  const struct plan_rates rates = {.gemm_flops = 1e9};
  for (int micros = 1; micros <= 3; micros++)
    for (int recompute = 0; recompute <= 1; recompute++) {
      double want = micros * ((3 + recompute) * BLOCKS * block_s(1e9) + 3 * head_s(1e9));
      struct plan_forecast f =
          forecast(&(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 1, recompute, micros, true, TIED, FREEZE_NOTHING}, &rates);
      expect_near(f.step_s, want);
      expect_near(f.busy_s[LANE_COMPUTE], want);
      assert_true(fabs(f.exposed_comm_s) < 1e-12);
    }
  struct plan_forecast f = forecast(&(struct point){PLAN_EVAL, STRATEGY_FULL_SHARD, 4, 4, 1, 0, 1, true, TIED, FREEZE_NOTHING}, &rates);
  expect_near(f.step_s, BLOCKS * block_s(1e9) + head_s(1e9));
  f = forecast(&(struct point){PLAN_GENERATE, STRATEGY_FULL_SHARD, 4, 4, 1, 0, 1, true, TIED, FREEZE_NOTHING}, &rates);
  expect_near(f.step_s, BLOCKS * block_s(1e9) + head_s(1e9) / 16);
}

/* Where nothing is trained a gradient is passed on, which is half of a backward pass, or nothing is, below the lowest that learns. */
static void what_is_frozen_costs_less(void **state)
{
  (void)state;
  static const struct {
    enum freeze freeze;
    int blocks, heads; /* how often their products are taken */
  } row[] = {{FREEZE_ODD, 3 * BLOCKS, 3}, {FREEZE_LOW, 3 * BLOCKS - 2, 3}, {FREEZE_MIDDLE, 3 * BLOCKS - 1, 2}, {FREEZE_BUT_HEAD, BLOCKS, 3}};
  const struct plan_rates rates = {.gemm_flops = 1e9};
  struct model tied = model;
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
    const struct point point = {PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 1, 0, 1, true, UNTIED, row[r].freeze};
    fixture_model_of(&model, BLOCKS, &point);
    struct plan_forecast f = forecast(&point, &rates);
    expect_near(f.busy_s[LANE_COMPUTE], row[r].blocks * block_s(1e9) + row[r].heads * head_s(1e9));
    fixture_free(&model);
  }
  model = tied;
}

/* Without prefetch a gather and the visit that it serves follow one another. */
static void without_prefetch_a_forward_pass_is_a_chain(void **state)
{
  (void)state;
  const struct plan_rates rates = {.gemm_flops = 1e9, .link_bytes = 1e8, .link_latency_s = 3e-6};
  const int ranks = 4;
  double gathers = 0;
  for (int u = 0; u <= BLOCKS; u++)
    gathers += (u == 0 ? 2 : 1) * ((double)flat_bytes(u, ranks) * (ranks - 1) / ranks / 1e8 + 3e-6 * (ranks - 1));
  double metrics = 2 * 2 * (sizeof(struct exactsum) / 1e8 + 3e-6);
  struct plan_forecast f = forecast(&(struct point){PLAN_EVAL, STRATEGY_FULL_SHARD, ranks, ranks, 0, 0, 1, true, TIED, FREEZE_NOTHING}, &rates);
  expect_near(f.busy_s[LANE_GATHER], gathers);
  expect_near(f.busy_s[LANE_REDUCE], metrics);
  expect_near(f.busy_s[LANE_COMPUTE], BLOCKS * block_s(1e9) + head_s(1e9));
  expect_near(f.step_s, f.busy_s[LANE_GATHER] + f.busy_s[LANE_COMPUTE]); /* the next step's first gather goes on during METRICS */
  expect_near(f.exposed_comm_s, f.busy_s[LANE_GATHER]);
}

static void a_step_lies_between_its_busiest_lane_and_the_sum_of_all(void **state)
{
  (void)state;
  const struct plan_rates rates = {.gemm_flops = 1e9, .memory_bytes = 1e9, .link_bytes = 1e8, .link_latency_s = 1e-6};
  for (int strategy = 0; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int prefetch = 0; prefetch < 3; prefetch++) {
      int group = strategy == STRATEGY_HYBRID_SHARD ? 2 : 4;
      struct plan_forecast f =
          forecast(&(struct point){PLAN_TRAIN, (enum deck_strategy)strategy, 4, group, prefetch, 0, 2, true, TIED, FREEZE_NOTHING}, &rates);
      double sum = 0;
      for (int lane = 0; lane < LANE_COUNT; lane++) {
        assert_true(f.step_s >= f.busy_s[lane] * (1 - 1e-9));
        sum += f.busy_s[lane];
      }
      assert_true(f.step_s <= sum * (1 + 1e-9));
      assert_true(f.exposed_comm_s > 0 && f.exposed_comm_s < f.busy_s[LANE_GATHER] + f.busy_s[LANE_REDUCE]);
    }
}

static void prefetch_hides_gathers_behind_compute(void **state)
{
  (void)state;
  /* a gather takes half as long as a block */
  const struct plan_rates rates = {.gemm_flops = 1e9, .link_bytes = (double)flat_bytes(1, 4) * 3 / 4 / (0.5 * block_s(1e9))};
  struct point point = {PLAN_TRAIN, STRATEGY_FULL_SHARD, 4, 4, 0, 0, 1, true, TIED, FREEZE_NOTHING};
  struct plan_forecast none = forecast(&point, &rates);
  point.prefetch = 1;
  struct plan_forecast one = forecast(&point, &rates);
  point.prefetch = 2;
  struct plan_forecast two = forecast(&point, &rates);
  assert_true(one.step_s < none.step_s && two.step_s <= one.step_s * (1 + 1e-9));
  assert_true(none.exposed_comm_s > 2 * one.exposed_comm_s); /* those show that find no free memory to be gathered into ahead of their use */
  assert_true(one.exposed_comm_s < 5 * block_s(1e9));        /* only those at the ends of the step */
}

static void updates_and_norms_take_their_traffic(void **state)
{
  (void)state;
  const struct plan_rates rates = {.memory_bytes = 1e9};
  struct plan_forecast f = forecast(&(struct point){PLAN_TRAIN, STRATEGY_FULL_SHARD, 2, 2, 1, 0, 1, true, TIED, FREEZE_NOTHING}, &rates);
  double shards = 0;
  for (int u = 0; u <= BLOCKS; u++)
    shards += (double)flat_bytes(u, 2) / 2;
  /* gradient read, master and moments read and written; and the metrics once a unit */
  expect_near(f.busy_s[LANE_HOST], (7 * shards + (BLOCKS + 1) * (double)sizeof(struct plan_metrics)) / 1e9);
  assert_true(f.busy_s[LANE_REDUCE] >= shards / 1e9 && f.busy_s[LANE_REDUCE] < 1.1 * shards / 1e9 + 1e-4);
}

static int make_model(void **state)
{
  (void)state;
  fixture_model(&model, BLOCKS);
  return 0;
}

static int free_model(void **state)
{
  (void)state;
  fixture_free(&model);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rate_of_zero_costs_nothing),
      cmocka_unit_test(compute_alone_takes_its_operations),
      cmocka_unit_test(what_is_frozen_costs_less),
      cmocka_unit_test(without_prefetch_a_forward_pass_is_a_chain),
      cmocka_unit_test(a_step_lies_between_its_busiest_lane_and_the_sum_of_all),
      cmocka_unit_test(prefetch_hides_gathers_behind_compute),
      cmocka_unit_test(updates_and_norms_take_their_traffic),
  };
  return cmocka_run_group_tests(tests, make_model, free_model);
}
