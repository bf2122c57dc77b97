/* P ranks against one, and what they decide together. Oracle: the same batch on one rank without
 * MPI, within bounds that follow from fp32 rounding of sums in another order (below). */
/* ranks: 2 3 4 5 */
#include <math.h>

#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

/* The first loss sums the same terms exactly. A gradient is a sum over 720 tokens. Its relative
 * error by order is below 720 / 2^24 = 4e-5 of the magnitude of its terms. Three steps of 0.01
 * carry it into parameters of about 0.2 and losses of about 4. */
static const double loss_bound = 1e-6, norm_bound = 1e-5, param_bound = 2e-5;

static void agree_with_one_rank(const char *setup, const struct job_record *one)
{
  struct job_record many = job_run(job_comm, "%s", setup);
  double worst = 0;
  assert_true(many.loss[0] == one->loss[0]);
  for (int step = 0; step < JOB_STEPS; step++) {
    assert_true(fabs(many.loss[step] - one->loss[step]) <= loss_bound * one->loss[step]);
    assert_true(fabs(many.grad_norm[step] - one->grad_norm[step]) <=
                norm_bound * one->grad_norm[step]);
  }
  assert_int_equal(many.n, one->n);
  for (int64_t i = 0; i < one->n; i++)
    worst = fmax(worst, fabs((double)many.params[i] - one->params[i]));
  if (comm_rank(job_comm) == 0)
    print_message("%d ranks against one: parameters differ by %.2g at most\n", comm_ranks(job_comm),
                  worst);
  assert_true(worst <= param_bound);
  job_record_free(&many);
}

TEST(ranks_agree_with_one)
{
  struct comm *alone;
  must(comm_create_fake(0, 1, 1, &alone));
  struct job_record one = job_run(alone, "prefetch=1");
  agree_with_one_rank("prefetch=1", &one);
  agree_with_one_rank("shard_grad_op micros=3 each_micro", &one);
  job_record_free(&one);
  comm_destroy(alone);
}

/* One rank's part of one weight is not a number: no rank updates. */
TEST(all_ranks_skip_what_one_finds_not_finite)
{
  struct job job;
  job_open(&job, job_comm, "prefetch=1");
  if (comm_rank(job_comm) == comm_ranks(job_comm) - 1)
    *(float *)exec_pointer(job.exec, job.plan->unit[1].master) = NAN;
  float *before = job_collect(&job);
  assert_false(job_step(&job, 0).finite);
  float *after = job_collect(&job);
  assert_memory_equal(after, before, (size_t)job_parameters(&job) * sizeof *after);
  mem_free(before);
  mem_free(after);
  job_close(&job);
}

/* ---- memory that the device of one rank does not take ---- */

static int pinned, asked, refused; /* refused: which of the pins that are asked for */

static enum status count_pin(struct device *device, void *ptr, size_t bytes)
{
  (void)device, (void)ptr, (void)bytes;
  if (++asked == refused)
    return status_set(STATUS_MEMORY, "no more than %d", pinned);
  pinned++;
  return STATUS_OK;
}

static void count_unpin(struct device *device, void *ptr)
{
  (void)device, (void)ptr;
  pinned--;
}

static void expect_pins(const struct job *job, struct device *device, int refuse)
{
  const struct plan *const plans[] = {job->plan};
  struct exec_memory memory = {.device = device};
  const bool last = comm_rank(job_comm) == comm_ranks(job_comm) - 1;
  asked = 0;
  refused = last ? refuse : 0;
  const enum status status = exec_memory_create(device, job_comm, "", plans, 1, &memory);
  assert_int_equal(status, refuse > 0 ? STATUS_MEMORY : STATUS_OK);
  assert_int_equal(pinned, refuse > 0 ? 0 : 2);
  if (!status)
    exec_memory_destroy(&memory);
  assert_int_equal(pinned, 0);
}

/* Memory that the ranks of a node share, and each rank's region for the others to read. Oracle: as
 * many are unpinned as were pinned, on the ranks whose devices took the memory too. */
TEST(all_ranks_give_up_memory_that_one_cannot_pin)
{
  struct job job;
  job_plan(&job, job_comm, "prefetch=1 host params_full cpu_reduce one_node");
  struct device_ops ops = *job.device->ops;
  struct device device = *job.device;
  ops.pin = count_pin;
  ops.unpin = count_unpin;
  device.ops = &ops;
  for (int refuse = 0; refuse <= 2; refuse++)
    expect_pins(&job, &device, refuse);
  job_close(&job);
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
