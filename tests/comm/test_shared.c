/* Memory that the ranks of a block share, and the barrier that orders their stores. Oracles: each
 * member writes a pure function of (rank, round, element). The kernel says which addresses are
 * mapped. A machine of several nodes is simulated by giving ranks their nodes. Calls of MPI are
 * made to fail. */
/* ranks: 1 2 3 4 5 */
#include <errno.h>
#include <mpi.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/ops.h"
#include "fixture.h"
#include "tests/test.h"

static bool allocate_fails, lock_fails;

int MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base,
                            MPI_Win *window)
{
  return allocate_fails ? MPI_ERR_NO_MEM
                        : PMPI_Win_allocate_shared(size, unit, info, comm, base, window);
}

int MPI_Win_lock_all(int hints, MPI_Win window)
{
  const int error = PMPI_Win_lock_all(hints, window);
  return lock_fails ? MPI_ERR_RMA_SYNC : error;
}

static void nap(int64_t microseconds)
{
  (void)nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL);
}

static struct comm_shared *share(int size, int64_t bytes)
{
  struct comm_shared *shared = NULL;
  must(comm_shared_create(job, size, bytes, &shared));
  assert_non_null(shared);
  return shared;
}

static struct comm_group *group_of(int size)
{
  struct comm_group *group;
  must(comm_group_create(job, comm_evenly(job, size, 1), true, &group));
  return group;
}

enum { PART = 3001 };

static int32_t value(int rank, int round, int i)
{
  return rank * 1000003 + round * 7919 + i;
}

static void every_part_is_seen_by_all(int size)
{
  const int64_t page = sysconf(_SC_PAGESIZE),
                bytes = (int64_t)size * PART * (int64_t)sizeof(int32_t);
  const int first = comm_rank(job) / size * size, place = comm_rank(job) - first;
  struct comm_shared *shared = share(size, bytes);
  struct comm_group *group = group_of(size);
  int32_t *memory = comm_shared_memory(shared);
  assert_int_equal((intptr_t)memory % page, 0);
  for (int64_t i = 0; i < (bytes + page - 1) / page * page; i++) /* to the end of the last page */
    assert_int_equal(((char *)memory)[i], 0);
  must(comm_group_barrier(group));
  for (int round = 1; round <= 2; round++) {
    for (int i = 0; i < PART; i++)
      memory[place * PART + i] = value(comm_rank(job), round, i);
    must(comm_group_barrier(group));
    for (int i = 0; i < size * PART; i++)
      assert_int_equal(memory[i], value(first + i / PART, round, i % PART));
    must(comm_group_barrier(group));
  }
  comm_group_destroy(group);
  comm_shared_destroy(shared);
}

static bool is_mapped(void *ptr, int64_t bytes)
{
  unsigned char present[1 << 12];
  assert_in_range(bytes / sysconf(_SC_PAGESIZE), 1, sizeof present);
  if (mincore(ptr, (size_t)bytes, present) == 0)
    return true;
  assert_int_equal(errno, ENOMEM);
  return false;
}

static void shared_memory_ends_with_its_owner(int size)
{
  const int64_t bytes = 4 << 20;
  const struct mem_usage before = mem_usage(MEM_ARENA_PERSISTENT);
  struct comm_shared *shared = share(size, bytes);
  void *memory = comm_shared_memory(shared);
  assert_true(is_mapped(memory, bytes));
  /* One copy counts once: by the block's first member. */
  const int64_t counted = mem_usage(MEM_ARENA_PERSISTENT).bytes - before.bytes;
  assert_true(comm_rank(job) % size == 0 ? counted >= bytes : counted == 0);
  comm_shared_destroy(shared);
  assert_false(is_mapped(memory, bytes));
  assert_int_equal(mem_usage(MEM_ARENA_PERSISTENT).bytes, before.bytes);
}

static void refuse(int size)
{
  struct comm_shared *shared = NULL;
  assert_int_equal(comm_shared_create(job, size, 1000, &shared), STATUS_UNSUPPORTED);
  assert_null(shared);
  must_say("so all must run on one node");
  must_say("shard.group=node with shard.strategy=hybrid_shard, or transfer.params=shard");
}

/* All ranks say the same, also those whose own block lies inside a node. */
TEST(a_block_that_spans_nodes_is_refused)
{
  const int ranks = comm_ranks(job), last = ranks - 1, node = job->node;
  assert_int_equal(node, 0);
  if (ranks == 1)
    return;
  job->node = comm_rank(job) == last ? last : 0;
  refuse(ranks);
  if (ranks == 4)
    refuse(2);
  comm_shared_destroy(share(1, 1000));
  if (ranks == 4) {
    job->node = comm_rank(job) / 2 * 2;
    comm_shared_destroy(share(2, 1000));
    refuse(4);
  }
  job->node = node;
  comm_shared_destroy(share(ranks, 1000));
}

static void more_than_there_is_room_for(int size)
{
  struct comm_shared *shared = NULL;
  assert_int_equal(comm_shared_create(job, size, (int64_t)1 << 60, &shared), STATUS_MEMORY);
  assert_null(shared);
  if (size > 1) {
    must_say("EiB of /dev/shm, which has room for ");
    must_say("transfer.params=shard");
  }
}

TEST(room_is_looked_for_first)
{
  if (comm_ranks(job) == 1)
    return;
  struct comm_shared *shared = NULL;
  assert_int_equal(setenv("OMPI_MCA_osc_sm_backing_directory", "/proc", 1),
                   0); /* where Open MPI would keep it */
  assert_string_equal(comm_shared_folder(), "/proc");
  assert_int_equal(comm_shared_create(job, comm_ranks(job), 1000, &shared), STATUS_MEMORY);
  assert_int_equal(unsetenv("OMPI_MCA_osc_sm_backing_directory"), 0);
  must_say(" of /proc, which has room for 0 B: ");
}

TEST(senseless_requests_are_refused)
{
  struct comm_shared *shared = NULL;
  assert_int_equal(comm_shared_create(job, comm_ranks(job) + 1, 1000, &shared), STATUS_USAGE);
  assert_int_equal(comm_shared_create(job, 0, 1000, &shared), STATUS_USAGE);
  assert_int_equal(comm_shared_create(job, 1, -1, &shared), STATUS_USAGE);
  assert_int_equal(comm_shared_create(job, 1, INT64_MAX, &shared), STATUS_USAGE);
  assert_null(shared);
}

TEST(a_failure_of_one_is_that_of_all)
{
  const int ranks = comm_ranks(job);
  struct comm_shared *shared = NULL;
  if (ranks == 1)
    return;
  allocate_fails = true;
  assert_int_equal(comm_shared_create(job, ranks, 1000, &shared), STATUS_LIBRARY);
  /* it fails on all ranks alike, so no rank is named */
  assert_ptr_equal(strstr(status_text(), failed("MPI_Win_allocate_shared", MPI_ERR_NO_MEM)),
                   status_text());
  allocate_fails = false;
  lock_fails = comm_rank(job) == ranks - 1;
  must_fail(comm_shared_create(job, ranks, 1000, &shared), STATUS_LIBRARY,
            failed("MPI_Win_lock_all", MPI_ERR_RMA_SYNC));
  lock_fails = false;
  assert_null(shared);
  comm_shared_destroy(share(ranks, 1000)); /* and the job goes on */
}

/* Members come to each round at different times, and another member is late in each round. A member
 * that did not wait for it would read the values of the round before. */
static void no_rank_passes_before_the_last(int size)
{
  enum { ROUNDS = 60 };
  const int place = comm_rank(job) % size;
  struct comm_shared *shared = share(size, size * (int64_t)sizeof(int64_t));
  struct comm_group *group = group_of(size);
  int64_t *counter = comm_shared_memory(shared);
  for (int64_t round = 1; round <= ROUNDS; round++) {
    if (round % size == place)
      nap(500);
    counter[place] = round;
    must(comm_group_barrier(group));
    for (int i = 0; i < size; i++)
      assert_int_equal(counter[i], round);
    must(comm_group_barrier(group));
  }
  comm_group_destroy(group);
  comm_shared_destroy(shared);
}

TEST(blocks_of_every_size)
{
  for (int size = 1; size <= comm_ranks(job); size++)
    if (comm_ranks(job) % size == 0) {
      every_part_is_seen_by_all(size);
      shared_memory_ends_with_its_owner(size);
      more_than_there_is_room_for(size);
      no_rank_passes_before_the_last(size);
    }
  comm_shared_destroy(NULL);
}

TEST_MAIN(start_job, stop_job)
