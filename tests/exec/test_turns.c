/* Enqueued collectives are issued in the plan's order, whatever lanes they are on. Oracle: the
 * list of the plan, step by step. Gathers are delayed; the same delays change the order if
 * collectives are not enqueued. */
/* ranks: 2 3 */
#include <pthread.h>

#include "base/clock.h"
#include "job.h"
#include "plan/ops.h"
#include "tests/test.h"

enum { STEPS = 6, MOST = 4096 };

static bool enqueued;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const void *called[MOST]; /* memory that the collectives of this rank complete, in order */
static int calls;

static void note(const void *whole)
{
  pthread_mutex_lock(&mutex);
  if (calls < MOST)
    called[calls] = whole;
  calls++;
  pthread_mutex_unlock(&mutex);
}

bool __wrap_comm_group_is_enqueued(const struct comm_group *group);
bool __wrap_comm_group_is_enqueued(const struct comm_group *group)
{
  (void)group;
  return enqueued;
}

enum status __real_comm_all_gather(struct comm_group *, struct lane *, const void *, int64_t, bool,
                                   void *);
enum status __wrap_comm_all_gather(struct comm_group *, struct lane *, const void *, int64_t, bool,
                                   void *);
enum status __wrap_comm_all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                                   int64_t bytes, bool varying, void *full)
{
  note(full);
  enum status status = __real_comm_all_gather(group, lane, shard, bytes, varying, full);
  clock_sleep_until(clock_s() + 2e-3);
  return status;
}

enum status __real_comm_exchange(struct comm_group *, struct lane *, const void *, int64_t, bool,
                                 void *);
enum status __wrap_comm_exchange(struct comm_group *, struct lane *, const void *, int64_t, bool,
                                 void *);
enum status __wrap_comm_exchange(struct comm_group *group, struct lane *lane, const void *sent,
                                 int64_t bytes, bool varying, void *received)
{
  note(received);
  return __real_comm_exchange(group, lane, sent, bytes, varying, received);
}

enum status __real_comm_group_sum_exact(struct comm_group *, struct lane *, struct exactsum *, int);
enum status __wrap_comm_group_sum_exact(struct comm_group *, struct lane *, struct exactsum *, int);
enum status __wrap_comm_group_sum_exact(struct comm_group *group, struct lane *lane,
                                        struct exactsum *sums, int n)
{
  note(sums);
  return __real_comm_group_sum_exact(group, lane, sums, n);
}

static const void *completed_by(const struct job *job, const struct instr *instr)
{
  const struct op_row *row = &op_rows[instr->op];
  if (row->collective == COLLECTIVE_TREE)
    return &((struct plan_metrics *)exec_pointer(job->exec, instr->use[METRICS_OUT].buffer))
                ->squares;
  return exec_pointer(job->exec, instr->use[row->whole].buffer);
}

/* How many calls of STEPS steps are not at their place in the plan's order. */
static int displaced(const struct job *job)
{
  int at = 0, wrong = 0;
  for (int step = 0; step < STEPS; step++)
    for (int i = 0; i < job->plan->n; i++)
      if (op_rows[job->plan->instr[i].op].collective != COLLECTIVE_NONE)
        wrong += called[at++] != completed_by(job, &job->plan->instr[i]);
  assert_int_equal(at, calls);
  assert_true(at > 0 && at <= MOST);
  return wrong;
}

static int run(const char *setup, bool with)
{
  struct job job;
  enqueued = with;
  job_open(&job, job_comm, "%s", setup);
  calls = 0;
  for (int step = 0; step < STEPS; step++)
    (void)job_step(&job, step);
  must(exec_drain(job.exec));
  const int wrong = displaced(&job);
  job_close(&job);
  return wrong;
}

TEST(enqueued_collectives_keep_the_order_of_the_plan)
{
  static const char *const setups[] = {"prefetch=1", "prefetch=2 no_clip micros=3",
                                       "shard_grad_op micros=3 each_micro"};
  for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++)
    assert_int_equal(run(setups[i], true), 0);
}

TEST(others_are_issued_as_soon_as_they_can_be)
{
  assert_true(run("prefetch=1", false) > 0);
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
