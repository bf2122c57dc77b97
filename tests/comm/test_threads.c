/* Two lanes at once under MPI_THREAD_MULTIPLE, each in its own group, beside the control plane on the main thread. Oracle: what every member has is a
 * pure function of (member, round, element). */
/* ranks: 2 3 4 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/team.h"
#include "comm/comm.h"
#include "device/device.h"
#include "device/lane.h"

static struct comm *job;

enum { COUNT = 512, MOST_RANKS = 4, ROUNDS = 40 };

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
  enum status status = comm_all_gather(w->group, w->lane, w->shard, COUNT, DTYPE_F32, w->full);
  for (int i = 0; !status && i < size * COUNT; i++)
    if (w->full[i] != value(w->salt, i / COUNT, round, i % COUNT))
      return status_set(STATUS_INTERNAL, "all-gather %d of round %d is wrong at %d", w->salt, round, i);
  return status;
}

static enum status reduce_round(struct worker *w, int round)
{
  int index = comm_group_index(w->group), size = comm_group_size(w->group);
  for (int i = 0; i < size * COUNT; i++)
    w->full[i] = value(w->salt, index, round, i);
  enum status status = comm_reduce_scatter(w->group, w->lane, w->full, COUNT, DTYPE_F32, w->staging, false, w->shard);
  for (int i = 0; !status && i < COUNT; i++) {
    float expected = 0;
    for (int m = 0; m < size; m++)
      expected += value(w->salt, m, round, index * COUNT + i);
    if (w->shard[i] != expected)
      return status_set(STATUS_INTERNAL, "reduce-scatter %d of round %d is wrong at %d", w->salt, round, i);
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

static void lanes_do_not_share_an_order(void **state)
{
  (void)state;
  static struct worker workers[2];
  struct device *device;
  struct thread *threads[2];
  assert_int_equal(device_create("host", 0, DTYPE_F32, &device), STATUS_OK);
  for (int t = 0; t < 2; t++) {
    workers[t].salt = t + 1;
    assert_int_equal(comm_group_create(job, COMM_WORLD, 0, &workers[t].group), STATUS_OK);
    assert_int_equal(device->ops->lane_create(device, "test", 1, &workers[t].lane), STATUS_OK);
  }
  for (int t = 0; t < 2; t++) { /* the other way round on odd ranks */
    int which = t ^ (comm_rank(job) & 1);
    assert_int_equal(thread_start("worker", work, &workers[which], &threads[which]), STATUS_OK);
  }
  for (int round = 0; round < ROUNDS; round++) {
    int64_t sum = round;
    assert_int_equal(comm_sum_i64(job, &sum, 1), STATUS_OK);
    assert_int_equal(sum, (int64_t)round * comm_ranks(job));
  }
  for (int t = 0; t < 2; t++) {
    enum status status = thread_join(threads[t]);
    if (status)
      print_error("%s\n", status_text());
    assert_int_equal(status, STATUS_OK);
  }
  for (int t = 0; t < 2; t++) {
    device->ops->lane_destroy(workers[t].lane);
    comm_group_destroy(workers[t].group);
  }
  device_destroy(device);
}

static int start(void **state)
{
  (void)state;
  static char name[] = "test", *args[] = {name, NULL};
  int argc = 1;
  char **argv = args;
  return comm_create_mpi(&argc, &argv, &job);
}

static int stop(void **state)
{
  (void)state;
  comm_destroy(job);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(lanes_do_not_share_an_order)};
  return cmocka_run_group_tests(tests, start, stop);
}
