/* Lanes and tokens. A lane runs its work in order; a token is completion that others can wait for.
 *
 * On the host device a lane is the thread that drives it, with a team of workers for data-parallel
 * math. A token is a counter: the number of times its instruction has completed. Waiting for "the
 * completion of step s" is waiting for the counter to pass s. Tokens never go back. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/team.h"

struct device;

struct lane {
  struct device *device;
  struct team *team; /* NULL: the driving thread alone */
  char name[16];
  int64_t matmul_ns; /* time spent in matrix products by this lane, for `sluice bench` */
  int64_t matmul_flops;
};

/* A place where threads wait for tokens: one per executor. */
struct token_board;
enum status token_board_create(int64_t tokens, struct token_board **out);
void token_board_destroy(struct token_board *board);
/* Completion number `count` (1-based) of token `index`: signal it, wait until it is reached.
 * Waiting spins shortly, then sleeps. */
void token_signal(struct token_board *board, int64_t index, int64_t count);
/* STATUS_ABORTED if token_abort() was called. */
enum status token_wait(struct token_board *board, int64_t index, int64_t count);
bool token_is_done(struct token_board *board, int64_t index, int64_t count);
void token_abort(struct token_board *board);
