/* The token board. Oracles: order seen through tokens: a value written before a signal is read
 * after the wait. The clock of CPU time shows that waiting threads sleep. ThreadSanitizer checks
 * the board in its build. */
#include <time.h>

#include "base/mem.h"
#include "base/team.h"
#include "device/lane.h"
#include "tests/test.h"

static void sleep_ms(long ms)
{
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

TEST(counts_are_reached_and_stay)
{
  struct token_board *board;
  assert_int_equal(token_board_create(3, &board), STATUS_OK);
  assert_true(token_is_done(board, 1, 0));
  assert_false(token_is_done(board, 1, 1));
  token_signal(board, 1, 1);
  token_signal(board, 1, 2);
  assert_true(token_is_done(board, 1, 1));
  assert_true(token_is_done(board, 1, 2));
  assert_false(token_is_done(board, 1, 3));
  assert_false(token_is_done(board, 0, 1));
  assert_false(token_is_done(board, 2, 1));
  assert_int_equal(token_wait(board, 1, 2), STATUS_OK);
  token_board_destroy(board);
  token_board_destroy(NULL);
  assert_int_equal(token_board_create(-1, &board), STATUS_INTERNAL);
}

/* A ring of threads hands a plain integer round: thread i waits for its left neighbour, adds one,
 * signals. Any lost wake-up hangs, any reordering miscounts. */
enum { RING = 3, ROUNDS = 2000 };
struct ring {
  struct token_board *board;
  int64_t value;
  int64_t calls;
};
struct ring_member {
  struct ring *ring;
  int index;
};

static enum status go_round(void *arg)
{
  struct ring_member *me = arg;
  for (int64_t round = 1; round <= ROUNDS; round++) {
    int left = (me->index + RING - 1) % RING;
    enum status status = token_wait(me->ring->board, left, me->index == 0 ? round - 1 : round);
    if (status)
      return status;
    me->ring->value++;
    token_signal(me->ring->board, me->index, round);
  }
  return STATUS_OK;
}

TEST(a_ring_of_waits_loses_nothing)
{
  struct ring ring = {0};
  struct ring_member member[RING];
  struct thread *thread[RING];
  assert_int_equal(token_board_create(RING, &ring.board), STATUS_OK);
  for (int i = 0; i < RING; i++) {
    member[i] = (struct ring_member){&ring, i};
    assert_int_equal(thread_start("ring", go_round, &member[i], &thread[i]), STATUS_OK);
  }
  for (int i = 0; i < RING; i++)
    assert_int_equal(thread_join(thread[i]), STATUS_OK);
  assert_int_equal(ring.value, RING * ROUNDS);
  token_board_destroy(ring.board);
}

struct waiter {
  struct token_board *board;
  int64_t cpu_ns;
};

static enum status wait_and_measure(void *arg)
{
  struct waiter *waiter = arg;
  struct timespec cpu;
  enum status status = token_wait(waiter->board, 0, 1);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  waiter->cpu_ns = (int64_t)cpu.tv_sec * 1000000000 + cpu.tv_nsec;
  return status;
}

TEST(a_long_wait_sleeps_and_allocates_nothing)
{
  struct waiter waiter[2] = {0};
  struct thread *thread[2];
  assert_int_equal(token_board_create(1, &waiter[0].board), STATUS_OK);
  waiter[1].board = waiter[0].board;
  for (int i = 0; i < 2; i++)
    assert_int_equal(thread_start("waiter", wait_and_measure, &waiter[i], &thread[i]), STATUS_OK);
  int64_t calls =
      mem_calls(); /* starting threads took some; waiting, sleeping and signalling take none */
  sleep_ms(300);
  token_signal(waiter[0].board, 0, 1);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(thread_join(thread[i]), STATUS_OK);
    assert_in_range(waiter[i].cpu_ns, 0,
                    60 * 1000000); /* a fifth of the wait; a spinning one takes all of it */
  }
  assert_int_equal(mem_calls(), calls);
  token_board_destroy(waiter[0].board);
}

TEST(abort_wakes_everyone_and_stays)
{
  struct waiter waiter[2] = {0};
  struct thread *thread[2];
  assert_int_equal(token_board_create(1, &waiter[0].board), STATUS_OK);
  waiter[1].board = waiter[0].board;
  for (int i = 0; i < 2; i++)
    assert_int_equal(thread_start("waiter", wait_and_measure, &waiter[i], &thread[i]), STATUS_OK);
  sleep_ms(20);
  token_abort(waiter[0].board);
  for (int i = 0; i < 2; i++)
    must_fail(thread_join(thread[i]), STATUS_ABORTED, "another lane");
  token_signal(waiter[0].board, 0, 1);
  assert_int_equal(token_wait(waiter[0].board, 0, 1), STATUS_ABORTED);
  token_board_destroy(waiter[0].board);
}

TEST_MAIN(NULL, NULL)
