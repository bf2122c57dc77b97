/* The control planes of a job and of its sibling run on two threads under MPI_THREAD_MULTIPLE.
 * Oracle: what every member has is a pure function of (member, call, element). Lanes that run at
 * the same time are in test_device.c. */
/* ranks: 2 3 4 5 */
#include <time.h>

#include "base/clock.h"
#include "base/team.h"
#include "comm/comm.h"
#include "fixture.h"
#include "tests/test.h"

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
