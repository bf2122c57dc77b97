/* Settings for memory that other programs use in part, on the last rank alone. Oracle: the needs of
 * the plans that the chosen settings make. */
/* ranks: 1 3 */
#include "job/choose.h"
#include "job/private.h"
#include "job/rates.h"
#include "tests/job/fixture.h"
#include "tests/test.h"

static struct comm *comm;

/* Kernels cannot run on memory that the host cannot touch. */
enum status __wrap_job_rates(struct job *job, struct plan_rates *out);
enum status __wrap_job_rates(struct job *job, struct plan_rates *out)
{
  (void)job, (void)out;
  return status_set(STATUS_UNSUPPORTED, "nothing is measured here");
}

/* Chooses while `room` bytes of a device of 64 GiB are free for plans on the last rank, and half of
 * the device on others. Returns the need of the plan with the chosen settings. */
static int64_t choose(int64_t room, int64_t *micro)
{
  const int64_t all = INT64_C(1) << 36;
  const int ranks = comm_ranks(comm);
  struct deck deck;
  struct job job;
  struct chosen chosen;
  must(fixture_load(&deck, "model.arch=gpt2 model.layers=4 model.width=64 model.heads=2 "
                           "model.context=64 model.vocab=301 data.batch=48 data.sequence=64 "
                           "run.threads=1 comm.timeout=0 run.compute=bf16"));
  fixture_open(&job, &deck, comm, comm_rank(comm), ranks, true);
  int64_t used = all / 2;
  if (comm_rank(comm) == ranks - 1)
    used += device_model_room(&job.device->model, ranks, all / 2, all) - room;
  apart_set_memory(used, all);
  must(job_choose(&job, JOB_TRAIN, &chosen));
  fixture_close(&job);
  apart_set_memory(-1, 0);
  *micro = deck.data.micro_batch;
  fixture_open(&job, &deck, comm, comm_rank(comm), ranks, true);
  const struct plan *plans[] = {job.plan[PLAN_TRAIN]};
  const struct job_need need = job_need(1, plans, 1, false);
  fixture_end(&job);
  return need.device.persistent + need.device.transient;
}

TEST(settings_fit_into_free_memory)
{
  int64_t whole_micro, micro;
  const int64_t whole = choose(INT64_C(1) << 34, &whole_micro), room = whole / 4;
  assert_true(choose(room, &micro) <= room);
  assert_true(micro > 0 && micro != whole_micro);
}

/* The order of sums does not depend on memory that is in use, as long as the job fits. */
TEST(free_memory_that_is_enough_changes_nothing)
{
  int64_t whole_micro, micro;
  const int64_t whole = choose(INT64_C(1) << 34, &whole_micro);
  assert_int_equal(choose(whole, &micro), whole);
  assert_int_equal(micro, whole_micro);
}

int main(int argc, char **argv)
{
  if (comm_create_mpi(&argc, &argv, &comm))
    return 1;
  const int failed = test_run(NULL, NULL);
  comm_destroy(comm);
  return failed;
}
