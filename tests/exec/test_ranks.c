/* P ranks against one. Oracle: the same batch on one rank without MPI, within bounds that follow from fp32 rounding of sums in another order (below). */
/* ranks: 2 3 4 5 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "job.h"

static struct comm *comm;

/* The first loss sums the same terms exactly. A gradient is a sum over 720 tokens: its relative error by order is below 720 / 2^24 = 4e-5 of its terms'
 * magnitude; three steps of 0.01 carry it into parameters of about 0.2 and losses of about 4. */
static const double loss_bound = 1e-6, norm_bound = 1e-5, param_bound = 2e-5;

static void agree_with_one_rank(const struct job_setup *setup, const struct job_record *one)
{
  struct job_record many = job_run(comm, setup);
  double worst = 0;
  assert_true(many.loss[0] == one->loss[0]);
  for (int step = 0; step < JOB_STEPS; step++) {
    assert_true(fabs(many.loss[step] - one->loss[step]) <= loss_bound * one->loss[step]);
    assert_true(fabs(many.grad_norm[step] - one->grad_norm[step]) <= norm_bound * one->grad_norm[step]);
  }
  assert_int_equal(many.n, one->n);
  for (int64_t i = 0; i < one->n; i++)
    worst = fmax(worst, fabs((double)many.params[i] - one->params[i]));
  if (comm_rank(comm) == 0)
    print_message("%d ranks against one: parameters differ by %.2g at most\n", comm_ranks(comm), worst);
  assert_true(worst <= param_bound);
  job_record_free(&many);
}

static void ranks_agree_with_one(void **state)
{
  (void)state;
  struct comm *alone;
  assert_int_equal(comm_create_fake(0, 1, 1, &alone), STATUS_OK);
  struct job_record one = job_run(alone, &(struct job_setup){.prefetch = 1});
  agree_with_one_rank(&(struct job_setup){.prefetch = 1}, &one);
  agree_with_one_rank(&(struct job_setup){.strategy = STRATEGY_SHARD_GRAD_OP, .micros = 3, .reduce_every_micro = true}, &one);
  job_record_free(&one);
  comm_destroy(alone);
}

/* One rank's part of one weight is not a number: no rank updates. */
static void all_ranks_skip_what_one_finds_not_finite(void **state)
{
  (void)state;
  struct job job;
  job_open(&job, comm, &(struct job_setup){.prefetch = 1});
  if (comm_rank(comm) == comm_ranks(comm) - 1)
    *(float *)exec_pointer(job.exec, job.plan->master[1]) = NAN;
  float *before = job_collect(&job);
  assert_false(job_step(&job, 0).finite);
  float *after = job_collect(&job);
  assert_memory_equal(after, before, (size_t)job_parameters(&job) * sizeof *after);
  mem_free(before);
  mem_free(after);
  job_close(&job);
}

static int start(void **state)
{
  (void)state;
  comm = job_start_mpi();
  return comm ? 0 : -1;
}

static int stop(void **state)
{
  (void)state;
  comm_destroy(comm);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_agree_with_one), cmocka_unit_test(all_ranks_skip_what_one_finds_not_finite)};
  return cmocka_run_group_tests(tests, start, stop);
}
