/* Learning rates of single units. Oracles: a run with factor 0.5 for all units is bitwise identical
 * to a run at half the rate. After one step each unit is bitwise identical to that unit in a run at
 * its own rate. */
/* ranks: 1 2 3 */
#include <string.h>

#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

static const struct job_setup setups[] = {
    {.prefetch = 1},
    {.strategy = STRATEGY_NO_SHARD},
    {.strategy = STRATEGY_SHARD_OPTIM, .keep_working = true, .half = true},
    {.prefetch = 1, .optim = OPTIM_lion, .moments = DTYPE_BF16, .stochastic = true},
    {.prefetch = 1, .optim = OPTIM_sgd},
    {.prefetch = 1, .optim = OPTIM_muon, .llama = true},
    {.prefetch = 1, .optim = OPTIM_muon, .half = true},
    {.prefetch = 1, .host = true, .half = true, .beside = true},
    {.prefetch = 1, .host = true, .resident = 2, .llama = true},
    {.prefetch = 1, .host = true, .no_clip = true, .immediate = true, .nvme_state = 1},
    {.host = true, .params_full = true, .cpu_reduce = true, .one_node = true},
};
enum { SETUPS = sizeof setups / sizeof *setups };

static const double rate = 0.01;

static struct job_record run(int setup, double lr, struct deck_units lr_scale)
{
  struct job_setup scaled = setups[setup];
  scaled.lr = lr;
  scaled.lr_scale = lr_scale;
  return job_run(job_comm, &scaled);
}

TEST(half_of_a_rate_is_half_the_rate)
{
  for (int s = 0; s < SETUPS; s++) {
    struct job_record whole = run(s, rate, (struct deck_units){0}),
                      half = run(s, rate / 2, (struct deck_units){0}),
                      scaled = run(s, rate, (struct deck_units){1, {{"*", "0.5"}}});
    job_assert_same(&scaled, &half);
    assert_true(whole.loss[1] != half.loss[1]);
    job_record_free(&whole);
    job_record_free(&half);
    job_record_free(&scaled);
  }
}

/* All parameters after one step, and how many each unit has. */
struct moved {
  float *params;
  int units;
  int64_t n[JOB_BLOCKS + 2];
};

static struct moved move(int setup, double lr, struct deck_units lr_scale)
{
  struct job job;
  struct job_setup scaled = setups[setup];
  scaled.lr = lr;
  scaled.lr_scale = lr_scale;
  job_open(&job, job_comm, &scaled);
  struct moved moved = {.units = job.model->units};
  if (lr > 0)
    (void)job_step(&job, 0);
  moved.params = job_collect(&job);
  for (int u = 0; u < moved.units; u++)
    for (int p = 0; p < job.model->unit[u].params; p++)
      moved.n[u] += job.model->unit[u].layout.elements[p];
  job_close(&job);
  return moved;
}

TEST(each_unit_has_its_own)
{
  const struct deck_units lr_scale = {3, {{"root", "4"}, {"h.[02]", "1"}, {"h.*", "0.25"}}};
  static const double factor[] = {4, 1, 0.25, 1, 1};
  for (int s = 0; s < SETUPS; s++) {
    struct moved scaled = move(s, rate, lr_scale), begin = move(s, 0, (struct deck_units){0});
    const float *mine = scaled.params, *before = begin.params;
    int64_t at = 0;
    for (int u = 0; u < scaled.units; u++) {
      struct moved alike = move(s, rate * factor[u], (struct deck_units){0});
      const size_t bytes = (size_t)scaled.n[u] * sizeof(float);
      assert_memory_equal(mine + at, alike.params + at, bytes);
      assert_memory_not_equal(mine + at, before + at, bytes);
      at += scaled.n[u];
      mem_free(alike.params);
    }
    mem_free(scaled.params);
    mem_free(begin.params);
  }
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
