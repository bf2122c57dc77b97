/* The control plane. Oracle: each rank computes serially what every rank has put in. */
/* ranks: 1 2 3 5 */
#include <limits.h>
#include <mpi.h>

#include "base/mem.h"
#include "comm/messages.h"
#include "comm/watchdog_channel.h"
#include "config.h"
#include "fixture.h"
#include "tests/test.h"

enum { NOWHERE = -1, MOST_LOST = 4 };
static int fails_on = NOWHERE; /* the rank that does not learn of the communicator */
/* A communicator that MPI made although a call failed. A rank that knows it cannot free it alone,
 * and other ranks do not know it. */
static MPI_Comm lost[MOST_LOST];
static int n_lost;

static int tell_of(int error, const MPI_Comm *made)
{
  if (fails_on == NOWHERE)
    return error;
  assert_in_range(n_lost, 0, MOST_LOST - 1);
  lost[n_lost++] = *made;
  return comm_rank(job) == fails_on ? MPI_ERR_NO_MEM : error;
}

static void free_lost(void)
{
  while (n_lost > 0)
    assert_int_equal(MPI_Comm_free(&lost[--n_lost]), MPI_SUCCESS);
}

int MPI_Comm_dup(MPI_Comm from, MPI_Comm *out)
{
  return tell_of(PMPI_Comm_dup(from, out), out);
}

int MPI_Comm_split(MPI_Comm from, int color, int key, MPI_Comm *out)
{
  return tell_of(PMPI_Comm_split(from, color, key, out), out);
}

TEST(ranks_are_numbered)
{
  int rank = comm_rank(job), ranks = comm_ranks(job);
  assert_in_range(rank, 0, ranks - 1);
  /* All ranks of a test are on one node. */
  assert_int_equal(comm_local_rank(job), rank);
  assert_int_equal(comm_local_ranks(job), ranks);
  assert_non_null(comm_mpi(job));
  assert_non_null(strstr(comm_description(job), ", thread multiple, "));
  int64_t sum = rank;
  must(comm_sum_i64(job, &sum, 1));
  assert_int_equal(sum, (int64_t)ranks * (ranks - 1) / 2);
}

/* Files by which Open MPI's ranks of a node find the memory that they share are Open MPI's to
 * remove. Oracle: the kernel, which tells of each mapped file whether its name is gone. */
TEST(files_of_mpi_stay)
{
  char line[4096];
  int segments = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  assert_non_null(maps);
  while (fgets(line, sizeof line, maps))
    if (strstr(line, "/vader_segment.") || strstr(line, "/sm_segment.")) { /* Open MPI 4, 5 */
      segments++;
      assert_null(strstr(line, "(deleted)"));
    }
  assert_int_equal(fclose(maps), 0);
  if (segments == 0)
    skip();
}

TEST(broadcast_from_every_root)
{
  unsigned char data[1000];
  for (int limited = 0; limited < 2; limited++) {
    comm_mpi_set_count_limit(limited ? 7 : INT_MAX); /* 142 whole pieces and a rest of 6 */
    for (int root = 0; root < comm_ranks(job); root++) {
      for (int i = 0; i < 1000; i++)
        data[i] = (unsigned char)(comm_rank(job) == root ? i * 7 + root : 255);
      must(comm_broadcast(job, data, sizeof data, root));
      for (int i = 0; i < 1000; i++)
        assert_int_equal(data[i], (unsigned char)(i * 7 + root));
    }
  }
  comm_mpi_set_count_limit(INT_MAX);
  must(comm_broadcast(job, NULL, 0, 0));
}

TEST(text_arrives_as_a_copy)
{
  for (int root = 0; root < comm_ranks(job); root++) {
    char *mine = mem_printf("from rank %d", root), *text = comm_rank(job) == root ? mine : NULL;
    must(comm_broadcast_text(job, &text, root));
    assert_string_equal(text, mine);
    assert_true((text == mine) == (comm_rank(job) == root));
    if (text != mine)
      mem_free(text);
    mem_free(mine);
  }
}

TEST(sums_and_maxima)
{
  for (int limited = 0; limited < 2; limited++) {
    comm_mpi_set_count_limit(limited ? 2 : INT_MAX);
    int64_t sum[5], most[5];
    double real[5];
    for (int i = 0; i < 5; i++) {
      sum[i] = most[i] = ((int64_t)1 << 40) * i - 3 * comm_rank(job);
      real[i] = -1.5 * i - comm_rank(job);
    }
    must(comm_sum_i64(job, sum, 5));
    must(comm_max_i64(job, most, 5));
    must(comm_max_f64(job, real, 5));
    for (int i = 0; i < 5; i++) {
      int64_t expected = 0;
      for (int r = 0; r < comm_ranks(job); r++)
        expected += ((int64_t)1 << 40) * i - 3 * r;
      assert_int_equal(sum[i], expected);
      assert_int_equal(most[i], ((int64_t)1 << 40) * i);
      assert_true(real[i] == -1.5 * i);
    }
  }
  comm_mpi_set_count_limit(INT_MAX);
}

TEST(agreement_is_on_the_lowest_failing_rank)
{
  int rank = comm_rank(job), ranks = comm_ranks(job);
  must(comm_agree(job, STATUS_OK));
  for (int lowest = 0; lowest < ranks; lowest++) {
    for (int others = 0; others < 2;
         others++) { /* alone, or all later calls fail too, in another way */
      enum status mine = STATUS_OK;
      if (rank == lowest)
        mine = status_set(STATUS_INPUT, "shard %d is damaged", lowest);
      else if (others && rank > lowest)
        mine = status_set(STATUS_IO, "not this one");
      assert_int_equal(comm_agree(job, mine), STATUS_INPUT);
      char expected[64];
      snprintf(expected, sizeof expected, "rank %d: shard %d is damaged", lowest, lowest);
      assert_string_equal(status_text(), ranks > 1 ? expected : strstr(expected, "shard"));
    }
  }
}

/* Oracle: the sentence of the first agreement. */
TEST(an_agreed_failure_names_its_rank_once)
{
  const int last = comm_ranks(job) - 1;
  char first[128];
  enum status mine = comm_rank(job) == last ? status_set(STATUS_IO, "no disk") : STATUS_OK;
  assert_int_equal(comm_agree(job, mine), STATUS_IO);
  snprintf(first, sizeof first, "run: %s", status_text());
  mine = status_prefix(STATUS_IO, "run");
  assert_int_equal(comm_agree(job, mine), STATUS_IO);
  assert_string_equal(status_text(), first);
}

/* The same words with another code are another failure. */
TEST(a_failure_of_all_ranks_names_none)
{
  const bool first = comm_rank(job) == 0;
  enum status mine = status_set(STATUS_USAGE, "one word too many");
  assert_int_equal(comm_agree(job, mine), STATUS_USAGE);
  assert_string_equal(status_text(), "one word too many");
  mine = status_set(first ? STATUS_IO : STATUS_USAGE, "one word too many");
  assert_int_equal(comm_agree(job, mine), STATUS_IO);
  assert_string_equal(status_text(),
                      comm_ranks(job) > 1 ? "rank 0: one word too many" : "one word too many");
}

TEST(a_difference_names_the_rank)
{
  enum { BYTES = 10000 };
  static char data[BYTES];
  int rank = comm_rank(job), ranks = comm_ranks(job);
  for (int i = 0; i < BYTES; i++)
    data[i] = (char)i;
  must(comm_check_same(job, "the plan", data, BYTES));
  must(comm_check_same(job, "nothing", NULL, 0));
  for (int odd = 1; odd < ranks; odd++) {
    for (int way = 0; way < 3; way++) { /* the last byte, a shorter one, a longer one */
      char expected[64];
      int64_t bytes = BYTES - 1;
      if (rank >= odd && way > 0)
        bytes += way == 1 ? -5000 : 1;
      data[BYTES - 2] ^= rank >= odd && way == 0;
      assert_int_equal(comm_check_same(job, "the plan", data, bytes), STATUS_INPUT);
      data[BYTES - 2] ^= rank >= odd && way == 0;
      snprintf(expected, sizeof expected, "the plan of rank %d differs", odd);
      must_say(expected);
    }
  }
}

TEST(an_error_of_mpi_is_told)
{
  int64_t value = 1;
  must_fail(comm_broadcast(job, &value, sizeof value, comm_ranks(job)), STATUS_LIBRARY,
            failed("MPI_Ibcast", MPI_ERR_ROOT));
  assert_null(strchr(status_text(), '\n'));
  must(comm_barrier(job)); /* and the job goes on */
}

TEST(more_than_mpi_can_count_is_refused)
{
  char byte = 0;
  comm_mpi_set_count_limit(1);
  assert_int_equal(comm_broadcast(job, &byte, (int64_t)INT_MAX + 1, 0), STATUS_UNSUPPORTED);
  comm_mpi_set_count_limit(INT_MAX);
}

/* Rank r has r elements of 5 bytes, or all have none. Oracle: the bytes, from rank and place. */
TEST(elements_of_all_ranks_are_gathered)
{
  enum { SIZE = 5 };
  const int rank = comm_rank(job), ranks = comm_ranks(job);
  unsigned char mine[8 * SIZE], *bytes;
  void *all = NULL;
  for (int i = 0; i < rank * SIZE; i++)
    mine[i] = (unsigned char)(50 * rank + i);
  for (int some = 0; some < 2; some++) {
    int64_t n = some * rank, at = 0;
    must(comm_mpi_gather(job, MEM_META, mine, SIZE, &n, &all));
    assert_int_equal(n, some * ranks * (ranks - 1) / 2);
    bytes = all;
    for (int r = 0; r < some * ranks; r++)
      for (int i = 0; i < r * SIZE; i++)
        assert_int_equal(bytes[at++], (unsigned char)(50 * r + i));
    mem_free(all);
  }
  int64_t n = 3;
  comm_mpi_set_count_limit(3 * ranks - 1);
  must_fail(comm_mpi_gather(job, MEM_META, mine, SIZE, &n, &all), STATUS_UNSUPPORTED,
            "elements are more than one MPI call can gather");
  assert_int_equal(n, 3);
  comm_mpi_set_count_limit(INT_MAX);
}

TEST(groups_divide_the_ranks)
{
  struct comm_group *group;
  assert_int_equal(comm_group_create(job, comm_evenly(job, comm_ranks(job) + 1, 1), true, &group),
                   STATUS_USAGE);
  assert_int_equal(comm_group_create(job, comm_evenly(job, 1, comm_ranks(job) + 1), true, &group),
                   STATUS_USAGE);
  assert_int_equal(comm_group_create(job, comm_evenly(job, 0, 1), true, &group), STATUS_USAGE);
}

/* The last rank is in a group of its own, all are alone in one group, or the last rank is a member
 * that its group does not have. */
TEST(members_agree_on_their_group)
{
  const int ranks = comm_ranks(job), last = ranks - 1;
  const bool wrong = comm_rank(job) == last;
  struct comm_group *group;
  struct comm_members members = comm_evenly(job, ranks, 1);
  members.index = wrong ? 0 : members.index;
  members.first = wrong ? last : 0;
  if (ranks > 1)
    must_fail(comm_group_create(job, members, true, &group), STATUS_INTERNAL,
              "ranks are in the group of rank 0");
  members = comm_evenly(job, 1, 1);
  members.first = 0;
  if (ranks > 1)
    must_fail(comm_group_create(job, members, true, &group), STATUS_INTERNAL,
              "but it takes itself for member 0 of 1");
  members = comm_evenly(job, ranks, 1);
  members.index = wrong ? ranks : members.index;
  must_fail(comm_group_create(job, members, true, &group), STATUS_USAGE,
            "ranks cannot be split into such groups");
}

TEST(transports_are_those_of_the_build)
{
  struct comm_group *group;
  must_fail(comm_set_transport(job, "gloo"), STATUS_UNSUPPORTED,
            "this build has no transport 'gloo'; it has: mpi");
#ifdef HAVE_NCCL
  must(comm_set_transport(job, "nccl"));
#else
  must_fail(
      comm_set_transport(job, "nccl"), STATUS_UNSUPPORTED,
      "'nccl'; it has: mpi, mpi_device: configure it with --with-nccl, or set comm.backend=mpi");
#endif
  must(comm_set_transport(job, "mpi"));
  must(comm_group_create(job, comm_evenly(job, comm_ranks(job), 1), true, &group));
  must(comm_group_register(group, &group, sizeof group));
  must(comm_group_check(group));
  comm_group_destroy(group);
  comm_destroy(NULL);
}

/* Where one rank alone gets no communicator all of them turn back, and come together again. */
TEST(a_communicator_is_had_by_all_or_by_none)
{
  const int last = comm_ranks(job) - 1;
  struct comm *sibling = NULL;
  struct comm_group *group = NULL;
  struct watchdog_channel *channel = NULL;
  struct comm_shared *shared = NULL;
  char split[640], *text = split;
  snprintf(split, sizeof split, "rank %d: %s", last, failed("MPI_Comm_split", MPI_ERR_NO_MEM));
  if (last == 0)
    text = strchr(split, ' ') + strlen(" 0: ");
  fails_on = last;
  must_fail(comm_group_create(job, comm_evenly(job, comm_ranks(job), 1), true, &group),
            STATUS_LIBRARY, text);
  must_fail(comm_create_sibling(job, &sibling), STATUS_LIBRARY,
            failed("MPI_Comm_dup", MPI_ERR_NO_MEM));
  if (last > 0) {
    must_fail(watchdog_channel_create(job, 8, &channel), STATUS_LIBRARY,
              failed("MPI_Comm_dup", MPI_ERR_NO_MEM));
    must_fail(comm_shared_create(job, last + 1, 8, &shared), STATUS_LIBRARY, text);
  }
  fails_on = NOWHERE;
  free_lost();
  assert_true(!sibling && !group && !channel && !shared);
  must(comm_group_create(job, comm_evenly(job, comm_ranks(job), 1), true, &group));
  comm_group_destroy(group);
}

/* The same number everywhere, also where what one call does is several. */
TEST(calls_are_counted)
{
  int64_t before, after;
  bool waits = true;
  comm_calls(job, &before, &waits);
  assert_false(waits);
  must(comm_barrier(job));
  comm_calls(job, &after, &waits);
  assert_int_equal(after, before + 1);
  must(comm_agree(job, STATUS_OK));
  comm_calls(job, &after, &waits);
  assert_false(waits);
  must(comm_check_same(job, "the number of calls", &after, sizeof after));
}

TEST_MAIN(start_job, stop_job)
