/* Learning rates of single units. Oracles: a run with factor 0.5 for all units is bitwise identical
 * to a run at half the rate. After one step each unit is bitwise identical to that unit in a run at
 * its own rate. */
/* ranks: 1 2 3 */

#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

static const char *const setups[] = {
    "prefetch=1",
    "no_shard",
    "shard_optim keep_working bf16",
    "prefetch=1 optim=lion moments=bf16 stochastic",
    "prefetch=1 optim=sgd",
    "prefetch=1 optim=adamw8bit",
    "prefetch=1 optim=muon llama",
    "prefetch=1 optim=muon bf16",
    "prefetch=1 host bf16 beside",
    "prefetch=1 host resident=2 llama",
    "prefetch=1 host no_clip immediate nvme_state=1",
    "host params_full cpu_reduce one_node",
};
enum { SETUPS = sizeof setups / sizeof *setups };

TEST(half_of_a_rate_is_half_the_rate)
{
  for (int s = 0; s < SETUPS; s++) {
    struct job_record whole = job_run(job_comm, "%s lr=0.01", setups[s]),
                      half = job_run(job_comm, "%s lr=0.005", setups[s]);
    job_same(&half, "%s lr=0.01 lr_scales=*:0.5", setups[s]);
    assert_true(whole.loss[1] != half.loss[1]);
    job_record_free(&whole);
    job_record_free(&half);
  }
}

/* All parameters after one step, and how many each unit has. */
struct moved {
  float *params;
  int units;
  int64_t n[JOB_BLOCKS + 2];
};

static struct moved move(const char *setup, int steps, const char *format, ...) JOB_FORMAT(3);
static struct moved move(const char *setup, int steps, const char *format, ...)
{
  JOB_TEXT(rates, format);
  struct job job;
  job_open(&job, job_comm, "%s %s", setup, rates);
  struct moved moved = {.units = job.model->units};
  if (steps > 0)
    (void)job_step(&job, 0);
  for (int u = 0; u < moved.units; u++)
    for (int p = 0; p < job.model->unit[u].params; p++)
      moved.n[u] += job.model->unit[u].layout.elements[p];
  moved.params = job_end(&job).params;
  return moved;
}

TEST(each_unit_has_its_own)
{
  static const double factor[] = {4, 1, 0.25, 1, 1};
  for (int s = 0; s < SETUPS; s++) {
    struct moved scaled = move(setups[s], 1, "lr=0.01 lr_scales=root:4,h.[02]:1,h.*:0.25"),
                 begin = move(setups[s], 0, " ");
    const float *mine = scaled.params, *before = begin.params;
    int64_t at = 0;
    for (int u = 0; u < scaled.units; u++) {
      struct moved alike = move(setups[s], 1, "lr=%.17g", 0.01 * factor[u]);
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
