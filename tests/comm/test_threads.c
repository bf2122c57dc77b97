/* Two lanes run at the same time under MPI_THREAD_MULTIPLE, each in its own group, next to the
 * control plane on the main thread. The control planes of a job and of its sibling run on two
 * threads. Oracle: what every member has is a pure function of (member, round, element). */
/* ranks: 2 3 4 5 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/team.h"
#include "comm/comm.h"
#include "device/device.h"
#include "device/lane.h"
#include "fixture.h"
#include "reduce.h"
#include "tests/test.h"

enum { COUNT = 512, MOST_RANKS = 5, ROUNDS = 40 };

struct worker {
  struct comm_group *group;
  struct lane *lane;
  int salt;
  float full[MOST_RANKS * COUNT], staging[MOST_RANKS * COUNT], shard[COUNT];
};

/* Small integers: their sums are exact. */
static float value(int salt, int rank, int round, int i)
{
  return (float)((salt * 31 + rank * 17 + round * 7 + i) % 1009);
}

static enum status gather_round(struct worker *w, int round)
{
  int index = comm_group_index(w->group), size = comm_group_size(w->group);
  for (int i = 0; i < COUNT; i++)
    w->shard[i] = value(w->salt, index, round, i);
  enum status status = comm_all_gather(w->group, w->lane, w->shard, COUNT * sizeof(float), w->full);
  for (int i = 0; !status && i < size * COUNT; i++)
    if (w->full[i] != value(w->salt, i / COUNT, round, i % COUNT))
      return status_set(STATUS_INTERNAL, "all-gather %d of round %d is wrong at %d", w->salt, round,
                        i);
  return status;
}

static enum status reduce_round(struct worker *w, int round)
{
  int index = comm_group_index(w->group), size = comm_group_size(w->group);
  for (int i = 0; i < size * COUNT; i++)
    w->full[i] = value(w->salt, index, round, i);
  enum status status =
      reduce_scatter(w->group, w->lane, w->full, COUNT, DTYPE_F32, w->staging, false, w->shard);
  for (int i = 0; !status && i < COUNT; i++) {
    float expected = 0;
    for (int m = 0; m < size; m++)
      expected += value(w->salt, m, round, index * COUNT + i);
    if (w->shard[i] != expected)
      return status_set(STATUS_INTERNAL, "reduce-scatter %d of round %d is wrong at %d", w->salt,
                        round, i);
  }
  return status;
}

static enum status work(void *arg)
{
  struct worker *w = arg;
  enum status status = STATUS_OK;
  for (int round = 0; !status && round < ROUNDS; round++) {
    status = gather_round(w, round);
    if (!status)
      status = reduce_round(w, round);
  }
  return status;
}

TEST(lanes_do_not_share_an_order)
{
  static struct worker workers[2];
  struct device *device;
  struct thread *threads[2];
  must(device_create("host", 0, DTYPE_F32, &device));
  for (int t = 0; t < 2; t++) {
    workers[t].salt = t + 1;
    must(comm_group_create(job, COMM_WORLD, 0, &workers[t].group));
    must(device->ops->lane_create(device, "test", LANE_ROLE_COMPUTE, 1, &workers[t].lane));
  }
  for (int t = 0; t < 2; t++) { /* the other way round on odd ranks */
    int which = t ^ (comm_rank(job) & 1);
    must(thread_start("worker", work, &workers[which], &threads[which]));
  }
  for (int round = 0; round < ROUNDS; round++) {
    int64_t sum = round;
    must(comm_sum_i64(job, &sum, 1));
    assert_int_equal(sum, (int64_t)round * comm_ranks(job));
  }
  for (int t = 0; t < 2; t++) {
    enum status status = thread_join(threads[t]);
    if (status)
      print_error("%s\n", status_text());
    must(status);
  }
  for (int t = 0; t < 2; t++) {
    device->ops->lane_destroy(workers[t].lane);
    comm_group_destroy(workers[t].group);
  }
  device_destroy(device);
}

enum { CALLS = 300, MOST_BYTES = 5000 };

struct caller {
  struct comm *comm;
  int salt;
};

static enum status broadcast_call(const struct caller *caller, int call)
{
  const int bytes = 1 + call * 37 % MOST_BYTES,
            root = (call + caller->salt) % comm_ranks(caller->comm);
  unsigned char data[MOST_BYTES] = {0};
  for (int i = 0; comm_rank(caller->comm) == root && i < bytes; i++)
    data[i] = (unsigned char)(caller->salt + call * 3 + i);
  enum status status = comm_broadcast(caller->comm, data, bytes, root);
  for (int i = 0; !status && i < bytes; i++)
    if (data[i] != (unsigned char)(caller->salt + call * 3 + i))
      return status_set(STATUS_INTERNAL, "broadcast %d of %d is wrong at %d", call, caller->salt,
                        i);
  return status;
}

static enum status sum_call(const struct caller *caller, int call)
{
  const int ranks = comm_ranks(caller->comm);
  int64_t sum[3];
  for (int i = 0; i < 3; i++)
    sum[i] = comm_rank(caller->comm) + (int64_t)caller->salt * call * i;
  enum status status = comm_sum_i64(caller->comm, sum, 3);
  for (int i = 0; !status && i < 3; i++)
    if (sum[i] != (int64_t)ranks * (ranks - 1) / 2 + (int64_t)ranks * caller->salt * call * i)
      return status_set(STATUS_INTERNAL, "sum %d of %d is wrong at %d", call, caller->salt, i);
  return status;
}

static enum status agree_call(const struct caller *caller, int call)
{
  const bool fails = comm_rank(caller->comm) == call % comm_ranks(caller->comm);
  char expected[64];
  snprintf(expected, sizeof expected, "rank %d: call %d of %d", call % comm_ranks(caller->comm),
           call, caller->salt);
  if (comm_agree(caller->comm, fails ? status_set(STATUS_IO, "call %d of %d", call, caller->salt)
                                     : STATUS_OK) == STATUS_IO &&
      strcmp(status_text(), expected) == 0)
    return STATUS_OK;
  return status_set(STATUS_INTERNAL, "agreement %d of %d is not on '%s'", call, caller->salt,
                    expected);
}

/* Each thread has a sequence of its own, the same on all ranks; how the two mix differs from rank
 * to rank. */
static enum status call_much(void *arg)
{
  static enum status (*const calls[])(const struct caller *caller,
                                      int call) = {broadcast_call, sum_call, agree_call};
  const struct caller *caller = arg;
  enum status status = STATUS_OK;
  for (int call = 0; !status && call < CALLS; call++) {
    if (call * (caller->salt + comm_rank(caller->comm)) % 17 == 5)
      (void)nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    status = calls[(call * caller->salt + call / 7) % 3](caller, call);
  }
  return status;
}

TEST(siblings_do_not_share_an_order)
{
  struct comm *sibling;
  struct thread *thread;
  must(comm_create_sibling(job, &sibling));
  assert_int_equal(comm_rank(sibling), comm_rank(job));
  assert_int_equal(comm_ranks(sibling), comm_ranks(job));
  assert_int_equal(comm_local_rank(sibling), comm_local_rank(job));
  assert_int_equal(comm_local_ranks(sibling), comm_local_ranks(job));
  assert_string_equal(comm_description(sibling), comm_description(job));
  assert_ptr_not_equal(comm_mpi(sibling), comm_mpi(job));
  struct caller one = {.comm = job, .salt = 1}, other = {.comm = sibling, .salt = 4};
  must(thread_start("sibling", call_much, &other, &thread));
  enum status mine = call_much(&one);
  if (mine)
    print_error("%s\n", status_text());
  enum status its = thread_join(thread);
  if (its)
    print_error("%s\n", status_text());
  must(mine);
  must(its);
  comm_destroy(sibling);
  must(comm_barrier(job)); /* which MPI has not ended with */
}

static enum status wait_for_all(void *arg)
{
  return comm_barrier(arg);
}

/* On even ranks the barrier of the sibling comes after the barrier of the job, on odd ranks before
 * it. With one common order for both no rank would pass. */
TEST(siblings_do_not_wait_for_each_other)
{
  struct comm *sibling;
  struct thread *thread;
  must(comm_create_sibling(job, &sibling));
  struct comm *const first = comm_rank(job) % 2 ? sibling : job, *const then =
                                                                     first == job ? sibling : job;
  must(thread_start("first", wait_for_all, first, &thread));
  const double end_s = clock_s() + 0.02;
  while (clock_s() < end_s)
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  must(comm_barrier(then));
  must(thread_join(thread));
  comm_destroy(sibling);
}

TEST_MAIN(start_job, stop_job)
