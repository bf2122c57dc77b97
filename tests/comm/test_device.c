/* MPI between devices that lie apart: given their memory, and staged through the host's. Oracles:
 * each member's data are a pure function of (member, element). Sums are those of a pairwise tree,
 * written here as recursion. Direct and staged MPI and the transport of host memory are compared
 * with the same values, bit for bit. That the host stays out of the device's memory is held by the
 * device, whose pointers name pages that cannot be read. */
/* ranks: 1 2 3 5 */
#include <stdlib.h>
#include <string.h>

#include "apart.h"
#include "base/team.h"
#include "comm/ops.h"
#include "data.h"
#include "device/lane.h"
#include "fixture.h"
#include "reduce.h"
#include "tests/test.h"

enum { MOST_RANKS = DATA_MEMBERS, COUNT = 1237, LANES = 3, ROUNDS = 6 };

/* Accesses of Open MPI are suppressed by the functions on their stacks, which have to be remembered
 * that long. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
  return "history_size=7";
}

/* Messages of as many bytes as they have at most: the whole part, pieces with a rest (the parts are
 * 4948 bytes and 2474), and fewer than an accumulator takes. */
static const int64_t pieces[] = {0, 1000, 612, 4948, 129};
enum { PIECES = sizeof pieces / sizeof pieces[0] };

static void with_device(struct device *device, const char *transport, const char *text,
                        void (*test)(struct device *device))
{
  comm_set_device(job, device);
  must(comm_set_transport(job, transport));
  assert_string_equal(comm_transport(job), transport);
  assert_string_equal(comm_transport_text(job), text);
  test(device);
  must(comm_set_transport(job, "mpi"));
  comm_set_device(job, NULL);
}

/* MPI with device memory, in both ways, and the transport of host memory. */
static void for_every_way(void (*test)(struct device *device))
{
  for (int direct = 0; direct < 2; direct++)
    for (int p = 0; p < PIECES; p++) {
      comm_mpi_force_stage(direct, pieces[p]);
      struct device *device = apart_create(direct);
      with_device(device, "mpi_device",
                  direct ? "mpi, with pointers to device memory"
                         : "mpi, staged through pinned memory of the host",
                  test);
      apart_destroy(device);
    }
  comm_mpi_force_stage(-1, 0);
  struct device *host;
  must(device_create("host", 0, DTYPE_F32, &host));
  with_device(host, "mpi", "mpi", test);
  device_destroy(host);
}

/* The arrays of one lane: the test's copies of the data on the device. */
struct worker {
  struct comm_group *group;
  struct device *device;
  struct lane *lane;
  struct mark *end;
  int salt;
  float *full, *staging, *shard;
  struct exactsum *sums;
  float mine[MOST_RANKS * COUNT + 1];
};

static void *take(struct device *device, size_t bytes)
{
  void *ptr;
  must(device->ops->alloc(device, MEM_META, bytes, &ptr));
  return ptr;
}

static void open_worker(struct worker *w, struct device *device, int salt)
{
  *w = (struct worker){.device = device, .salt = salt};
  must(comm_group_create(job, COMM_WORLD, 0, true, &w->group));
  assert_ptr_equal(w->group->transport,
                   device->model.host_memory ? &comm_mpi_transport : &comm_mpi_device_transport);
  must(device->ops->lane_create(device, "test", LANE_ROLE_COMPUTE, 1, &w->lane));
  must(device->ops->mark_create(device, &w->end));
  w->full = take(device, (MOST_RANKS * COUNT + 1) * sizeof(float));
  w->staging = take(device, 2 * MOST_RANKS * COUNT * sizeof(float));
  w->shard = take(device, COUNT * sizeof(float));
  w->sums = take(device, 2 * sizeof(struct exactsum));
}

static void close_worker(struct worker *w)
{
  void *const memory[] = {w->full, w->staging, w->shard, w->sums};
  w->device->ops->lane_destroy(w->lane);
  comm_group_destroy(w->group);
  w->device->ops->mark_destroy(w->end);
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
    w->device->ops->release(w->device, memory[i]);
}

/* The host reads the device's memory only after it has waited for the lane. */
static enum status settle(struct worker *w)
{
  enum status status = w->device->ops->mark_set(w->lane, w->end);
  return status ? status : w->device->ops->mark_wait(w->end);
}

/* The lane itself makes what is sent, so that it is late: the transport has to wait for it. */
static enum status fill(struct worker *w, void *to, int64_t n)
{
  const int rank = comm_rank(job);
  for (int64_t i = 0; i < n; i++)
    w->mine[i] = data_value(w->salt, rank, i);
  return w->device->ops->copy(w->lane, to, w->mine, (size_t)n * sizeof(float));
}

static enum status gather_round(struct worker *w, bool in_place)
{
  const int index = comm_group_index(w->group), size = comm_group_size(w->group);
  static const float guard = 0.5f;
  static _Thread_local float got[MOST_RANKS * COUNT + 1];
  apart_put(w->full + size * COUNT, &guard, sizeof guard);
  float *from = in_place ? w->full + index * COUNT : w->shard;
  enum status status = fill(w, from, COUNT);
  if (!status)
    status = comm_all_gather(w->group, w->lane, from, COUNT * sizeof(float), w->full);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->full, (size_t)(size * COUNT + 1) * sizeof(float), got);
  for (int i = 0; i < size * COUNT; i++)
    if (got[i] != data_value(w->salt, i / COUNT, i % COUNT))
      return status_set(STATUS_INTERNAL, "an all-gather of lane %d is wrong at %d", w->salt, i);
  return got[size * COUNT] == guard
             ? STATUS_OK
             : status_set(STATUS_INTERNAL, "an all-gather of lane %d writes behind its end",
                          w->salt);
}

/* Lengths that are no multiple of an element, and of a piece only by chance. */
static enum status exchange_round(struct worker *w, int round)
{
  static const int64_t lengths[ROUNDS] = {1, 3, 611, 1000, 2475, COUNT * sizeof(float) - 1};
  static _Thread_local unsigned char mine[MOST_RANKS * COUNT * sizeof(float)], got[sizeof mine + 1];
  const int index = comm_group_index(w->group), size = comm_group_size(w->group);
  const int64_t bytes = lengths[round], all = size * bytes;
  for (int64_t i = 0; i < all; i++)
    mine[i] = data_byte(w->salt, index, (int)(i / bytes), i % bytes);
  const unsigned char guard = 0xee;
  apart_put((char *)w->staging + all, &guard, 1);
  enum status status = w->device->ops->copy(w->lane, w->full, mine, (size_t)all);
  if (!status)
    status = comm_exchange(w->group, w->lane, w->full, bytes, false, w->staging);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->staging, (size_t)all + 1, got);
  for (int64_t i = 0; i < all; i++)
    if (got[i] != data_byte(w->salt, (int)(i / bytes), index, i % bytes))
      return status_set(STATUS_INTERNAL, "an exchange of lane %d is wrong at %d", w->salt, (int)i);
  return got[all] == guard
             ? STATUS_OK
             : status_set(STATUS_INTERNAL, "an exchange of lane %d writes after its end", w->salt);
}

static enum status varying_round(struct worker *w, int round)
{
  static const int64_t lengths[ROUNDS] = {16, 24, 616, 1000, 2480, COUNT * sizeof(float) - 8};
  static _Thread_local unsigned char mine[MOST_RANKS * COUNT * sizeof(float)], got[sizeof mine],
      expected[COUNT * sizeof(float)];
  const int index = comm_group_index(w->group), size = comm_group_size(w->group);
  const int64_t bytes = lengths[round], all = size * bytes;
  memset(got, 0xee, sizeof got);
  apart_put(w->staging, got, (size_t)all);
  memset(mine, 0xee, sizeof mine);
  for (int m = 0; m < size; m++)
    data_message(w->salt, index, m, bytes, mine + m * bytes);
  enum status status = w->device->ops->copy(w->lane, w->full, mine, (size_t)all);
  if (!status)
    status = comm_exchange(w->group, w->lane, w->full, bytes, true, w->staging);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->staging, (size_t)all, got);
  for (int m = 0; m < size; m++) {
    memset(expected, 0xee, sizeof expected);
    data_message(w->salt, m, index, bytes, expected);
    if (memcmp(got + m * bytes, expected, (size_t)bytes) != 0)
      return status_set(STATUS_INTERNAL, "a message of lane %d from member %d is wrong", w->salt,
                        m);
  }
  return STATUS_OK;
}

static enum status check_sum(const struct worker *w, enum dtype wire, const float *before,
                             const float *got)
{
  const int index = comm_group_index(w->group), size = comm_group_size(w->group);
  for (int i = 0; i < COUNT; i++) {
    float terms[MOST_RANKS];
    for (int m = 0; m < size; m++)
      terms[m] = data_arrives(size, wire, data_value(w->salt, m, index * COUNT + i));
    const float sum = data_tree_sum(terms, size), expected = before ? before[i] + sum : sum;
    if (memcmp(&got[i], &expected, sizeof expected) != 0)
      return status_set(STATUS_INTERNAL, "a reduce-scatter of lane %d by %s is wrong at %d",
                        w->salt, dtype_name(wire), i);
  }
  return STATUS_OK;
}

static enum status reduce_round(struct worker *w, enum dtype wire, bool accumulate)
{
  static _Thread_local float got[COUNT], before[COUNT];
  enum status status = fill(w, w->full, comm_group_size(w->group) * COUNT);
  for (int i = 0; i < COUNT; i++)
    before[i] = 0.25f * (float)i;
  if (!status)
    status = w->device->ops->copy(w->lane, w->shard, before, sizeof before);
  if (!status)
    status =
        reduce_scatter(w->group, w->lane, w->full, COUNT, wire, w->staging, accumulate, w->shard);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->shard, sizeof got, got);
  return check_sum(w, wire, accumulate ? before : NULL, got);
}

static enum status sum_round(struct worker *w)
{
  static const int members[] = {0, 1, 2, 3, 4};
  struct exactsum mine[2], expected[2], got[2];
  data_sum(w->salt, 1, &(int){comm_rank(job)}, mine);
  data_sum(w->salt, comm_group_size(w->group), members, expected);
  enum status status = w->device->ops->copy(w->lane, w->sums, mine, sizeof mine);
  if (!status)
    status = comm_group_sum_exact(w->group, w->lane, w->sums, 2);
  if (!status)
    status = settle(w);
  if (status)
    return status;
  apart_get(w->sums, sizeof got, got);
  return memcmp(got, expected, sizeof got) == 0
             ? STATUS_OK
             : status_set(STATUS_INTERNAL, "an exact sum of lane %d is wrong", w->salt);
}

static enum status work(void *arg)
{
  struct worker *w = arg;
  enum status status = STATUS_OK;
  for (int round = 0; !status && round < ROUNDS; round++) {
    status = gather_round(w, round % 2);
    if (!status)
      status = exchange_round(w, round);
    if (!status)
      status = varying_round(w, round);
    if (!status)
      status = reduce_round(w, round % 3 == 1 ? DTYPE_BF16 : DTYPE_F32, round % 2);
    if (!status)
      status = sum_round(w);
  }
  return status;
}

static void use_one_lane(struct device *device)
{
  static struct worker w;
  open_worker(&w, device, 1);
  must(work(&w));
  close_worker(&w);
}

TEST(one_lane_in_pieces_of_all_sizes)
{
  for_every_way(use_one_lane);
}

/* Started in another order on each rank, at the same time as the control plane on this thread. */
static void use_lanes_at_once(struct device *device)
{
  static struct worker workers[LANES];
  struct thread *threads[LANES];
  for (int t = 0; t < LANES; t++)
    open_worker(&workers[t], device, t + 1);
  for (int t = 0; t < LANES; t++) {
    const int which = (t + comm_rank(job)) % LANES;
    must(thread_start("worker", work, &workers[which], &threads[which]));
  }
  for (int round = 0; round < ROUNDS; round++) {
    int64_t sum = round;
    must(comm_sum_i64(job, &sum, 1));
    assert_int_equal(sum, (int64_t)round * comm_ranks(job));
  }
  for (int t = 0; t < LANES; t++)
    must(thread_join(threads[t]));
  for (int t = 0; t < LANES; t++)
    close_worker(&workers[t]);
}

TEST(lanes_do_not_share_an_order)
{
  for_every_way(use_lanes_at_once);
}

/* A step allocates nothing. */
static void use_twice_and_count(struct device *device)
{
  static struct worker w;
  open_worker(&w, device, 2);
  must(work(&w));
  const int64_t before = mem_calls();
  must(work(&w));
  assert_int_equal(mem_calls(), before);
  close_worker(&w);
}

TEST(a_step_allocates_nothing)
{
  for_every_way(use_twice_and_count);
}

/* The host groups of an offloading job exist next to the device's groups, and use host memory
 * only. */
TEST(the_host_s_groups_stay_as_they_are)
{
  struct device *device = apart_create(false);
  struct comm_group *group;
  comm_set_device(job, device);
  must(comm_set_transport(job, "mpi"));
  assert_string_equal(comm_transport_text(job), "mpi");
  must(comm_group_create(job, COMM_WORLD, 0, true, &group));
  assert_ptr_equal(group->transport, &comm_mpi_transport);
  comm_group_destroy(group);
  comm_set_device(job, NULL);
  apart_destroy(device);
}

/* Memory of the host needs no staging, whatever MPI says of CUDA; a device apart does, where MPI
 * does not take its memory: that of most distributions does not. */
TEST(mpi_is_asked)
{
  struct device *device = apart_create(false);
  const bool aware = strstr(comm_description(job), ", CUDA-aware") != NULL;
  assert_string_equal(comm_mpi_device_way(device),
                      aware ? "mpi, with pointers to device memory"
                            : "mpi, staged through pinned memory of the host");
  device->model.host_memory = true;
  assert_string_equal(comm_mpi_device_way(device), "mpi, with pointers to device memory");
  device->model.host_memory = false;
  apart_destroy(device);
}

TEST(a_device_has_to_be_named)
{
  struct comm_group *group;
  if (comm_ranks(job) == 1)
    return;
  must(comm_set_transport(job, "mpi_device"));
  assert_int_equal(comm_group_create(job, COMM_WORLD, 0, true, &group), STATUS_INTERNAL);
  assert_string_equal(status_text(), "MPI cannot move device memory, because no device is set");
  must(comm_set_transport(job, "mpi"));
}

static enum status no_host_memory(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  (void)device, (void)tag, (void)bytes, (void)out;
  return status_set(STATUS_MEMORY, "no pinned memory is left");
}

/* On one rank alone: all of them fail, and nothing is left behind. */
TEST(failing_is_a_collective_decision)
{
  if (comm_ranks(job) == 1)
    return;
  struct device *device = apart_create(false);
  struct device_ops ops = *device->ops;
  const struct device_ops *const usual = device->ops;
  struct comm_group *group;
  ops.alloc_host = no_host_memory;
  if (comm_rank(job) == 1)
    device->ops = &ops;
  comm_set_device(job, device);
  must(comm_set_transport(job, "mpi_device"));
  assert_int_equal(comm_group_create(job, COMM_WORLD, 0, true, &group), STATUS_MEMORY);
  assert_string_equal(status_text(), "rank 1: no pinned memory is left");
  device->ops = usual;
  must(comm_set_transport(job, "mpi"));
  comm_set_device(job, NULL);
  apart_destroy(device);
}

TEST_MAIN(start_job, stop_job)
