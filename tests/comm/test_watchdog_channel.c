/* The reports of the ranks of a stuck job. Oracle: what was sent, a pure function of the rank. */
/* ranks: 1 2 3 5 */
#include <time.h>

#include <mpi.h>

#include "base/clock.h"
#include "comm/watchdog_channel.h"
#include "fixture.h"
#include "tests/test.h"

enum { MOST_RANKS = 8 };

struct state {
  int64_t rank, square;
  char text[9000]; /* more than MPI sends before the other side takes it */
};

static struct state state_of(int rank)
{
  struct state state = {.rank = rank, .square = rank * rank};
  memset(state.text, 'a' + rank, sizeof state.text);
  return state;
}

static struct state states[MOST_RANKS], mine;
static bool answered[MOST_RANKS];

static struct watchdog_channel *create(void)
{
  struct watchdog_channel *channel = NULL;
  must(watchdog_channel_create(job, sizeof(struct state), &channel));
  return channel;
}

static bool is_wanted(struct watchdog_channel *channel)
{
  bool wanted = true;
  must(watchdog_channel_wanted(channel, &wanted));
  return wanted;
}

static void wait_until_wanted(struct watchdog_channel *channel)
{
  const struct timespec pause = {.tv_nsec = 1000000};
  while (!is_wanted(channel))
    (void)nanosleep(&pause, NULL);
}

static void is_that_of(const struct state *state, int rank)
{
  const struct state expected = state_of(rank);
  assert_memory_equal(state, &expected, sizeof expected);
}

/* Asked over and over, each time all say the same. */
TEST(all_answer)
{
  struct watchdog_channel *channel = create();
  mine = state_of(comm_rank(job));
  assert_false(is_wanted(channel));
  must(comm_barrier(job));
  for (int round = 0; round < 3; round++) {
    if (comm_rank(job) == 0) {
      memset(states, 0, sizeof states);
      must(watchdog_channel_collect(channel, 60, states, answered));
      for (int r = 0; r < comm_ranks(job); r++) {
        assert_true(answered[r]);
        if (r > 0)
          is_that_of(&states[r], r);
      }
    } else {
      wait_until_wanted(channel);
      must(watchdog_channel_answer(channel, &mine, 60));
    }
  }
  assert_false(is_wanted(channel));
  watchdog_channel_destroy(channel);
}

/* The last rank raises the alarm, and answers; the others are silent. */
TEST(one_raises_an_alarm)
{
  struct watchdog_channel *channel = create();
  const int last = comm_ranks(job) - 1;
  mine = state_of(comm_rank(job));
  if (last > 0 && comm_rank(job) == last) {
    must(watchdog_channel_alarm(channel));
    wait_until_wanted(channel);
    must(watchdog_channel_answer(channel, &mine, 60));
  }
  if (comm_rank(job) == 0) {
    const double begin = clock_s();
    if (last > 0)
      wait_until_wanted(channel);
    must(watchdog_channel_collect(channel, 1, states, answered));
    assert_true(last < 2 || clock_s() - begin >= 1);
    for (int r = 0; r <= last; r++) {
      assert_int_equal(answered[r], r == 0 || r == last);
      if (r > 0 && answered[r])
        is_that_of(&states[r], r);
    }
  }
  must(comm_barrier(job));
  watchdog_channel_destroy(channel);
}

/* A late answer to the first question does not count as an answer to the second. */
TEST(a_late_answer_is_dropped)
{
  struct watchdog_channel *channel = create();
  const struct state old = state_of(MOST_RANKS);
  mine = state_of(comm_rank(job));
  if (comm_rank(job) == 0)
    must(watchdog_channel_collect(channel, 0.01, states, answered));
  must(comm_barrier(job));
  if (comm_rank(job) != 0) {
    wait_until_wanted(channel);
    must(watchdog_channel_answer(channel, &old, 0.01));
  }
  must(comm_barrier(job));
  if (comm_rank(job) == 0) {
    for (const double end = clock_s() + 0.2; clock_s() < end;)
      assert_false(is_wanted(channel)); /* it is no alarm */
    must(watchdog_channel_collect(channel, 60, states, answered));
    for (int r = 1; r < comm_ranks(job); r++)
      is_that_of(&states[r], r);
  } else {
    wait_until_wanted(channel);
    must(watchdog_channel_answer(channel, &mine, 60));
  }
  watchdog_channel_destroy(channel);
}

/* While `broken`, this program's MPI sends nothing, and complains of what it frees. */
static bool broken;

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm members,
              MPI_Request *request)
{
  return broken ? MPI_ERR_RANK : PMPI_Isend(data, count, type, to, tag, members, request);
}

int MPI_Request_free(MPI_Request *request)
{
  const int code = PMPI_Request_free(request);
  return broken ? MPI_ERR_REQUEST : code;
}

TEST(the_first_failure_is_told)
{
  struct watchdog_channel *channel = create();
  const bool asks = comm_rank(job) == 0 && comm_ranks(job) > 1;
  char told[64] = "";
  enum status status = STATUS_LIBRARY;
  broken = asks;
  if (asks) {
    status = watchdog_channel_collect(channel, 60, states, answered);
    snprintf(told, sizeof told, "%s", status_text());
  }
  broken = false;
  must(comm_barrier(job));
  watchdog_channel_destroy(channel);
  assert_int_equal(status, STATUS_LIBRARY);
  if (asks && strncmp(told, "MPI_Isend", 9) != 0)
    fail_msg("the cause was MPI_Isend, told is: %s", told);
}

TEST(without_mpi_there_is_nobody)
{
  struct comm *fake;
  struct watchdog_channel *channel;
  mine = state_of(1);
  must(comm_create_fake(1, 3, 3, &fake));
  must(watchdog_channel_create(fake, sizeof mine, &channel));
  assert_false(is_wanted(channel));
  must(watchdog_channel_answer(channel, &mine, 60));
  must(watchdog_channel_alarm(channel));
  must(watchdog_channel_collect(channel, 60, states, answered));
  assert_true(!answered[0] && answered[1] && !answered[2]);
  watchdog_channel_destroy(channel);
  comm_destroy(fake);
}

TEST(a_state_of_no_size)
{
  struct watchdog_channel *channel = NULL;
  must_fail(watchdog_channel_create(job, 0, &channel), STATUS_INTERNAL, "a state of 0 bytes");
  assert_null(channel);
  assert_int_equal(watchdog_channel_create(job, INT64_C(1) << 31, &channel), STATUS_INTERNAL);
  watchdog_channel_destroy(NULL);
}

TEST_MAIN(start_job, stop_job)
