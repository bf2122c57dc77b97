/* Tokens are flags that waiting threads spin on, then sleep on. */
#include "device/lane.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"

/* A thread polls for about 10 microseconds before it sleeps. Lanes outnumber cores, so a spinning
 * thread delays the lane that it waits for. */
enum { SPINS = 300 };

/* A waiter announces itself in `waiters` and looks again before it sleeps; a signaller raises the
 * counter and looks for waiters afterwards. Both orders are sequentially consistent, so one of the
 * two sees the other. */
struct token_board {
  _Atomic int waiters;
  _Atomic bool aborted;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  _Atomic int64_t done[]; /* by token: completions so far */
};

enum status token_board_create(int64_t tokens, struct token_board **out)
{
  struct token_board *board;
  if (tokens < 0)
    return status_set(STATUS_INTERNAL, "a token board of %lld tokens was asked for",
                      (long long)tokens);
  enum status status =
      mem_alloc(MEM_META, sizeof *board + (size_t)tokens * sizeof *board->done, (void **)&board);
  if (status)
    return status;
  pthread_mutex_init(&board->mutex, NULL); /* with default attributes these do not fail on Linux */
  pthread_cond_init(&board->changed, NULL);
  *out = board;
  return STATUS_OK;
}

void token_board_destroy(struct token_board *board)
{
  if (!board)
    return;
  pthread_cond_destroy(&board->changed);
  pthread_mutex_destroy(&board->mutex);
  mem_free(board);
}

static void wake(struct token_board *board)
{
  if (atomic_load(&board->waiters) == 0)
    return;
  pthread_mutex_lock(&board->mutex);
  pthread_cond_broadcast(&board->changed);
  pthread_mutex_unlock(&board->mutex);
}

void token_signal(struct token_board *board, int64_t index, int64_t count)
{
  atomic_store(&board->done[index], count);
  wake(board);
}

bool token_is_done(struct token_board *board, int64_t index, int64_t count)
{
  return atomic_load(&board->done[index]) >= count;
}

static bool is_over(struct token_board *board, int64_t index, int64_t count)
{
  return token_is_done(board, index, count) || atomic_load(&board->aborted);
}

static inline void relax(void)
{
#if defined __x86_64__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("yield");
#endif
}

static void sleep_until_over(struct token_board *board, int64_t index, int64_t count)
{
  pthread_mutex_lock(&board->mutex);
  atomic_fetch_add(&board->waiters, 1);
  while (!is_over(board, index, count))
    pthread_cond_wait(&board->changed, &board->mutex);
  atomic_fetch_sub(&board->waiters, 1);
  pthread_mutex_unlock(&board->mutex);
}

enum status token_wait(struct token_board *board, int64_t index, int64_t count)
{
  for (int spin = 0; spin < SPINS && !is_over(board, index, count); spin++)
    relax();
  if (!is_over(board, index, count))
    sleep_until_over(board, index, count);
  if (atomic_load(&board->aborted))
    return status_set(STATUS_ABORTED, "another lane failed first");
  return STATUS_OK;
}

void token_abort(struct token_board *board)
{
  atomic_store(&board->aborted, true);
  wake(board);
}
