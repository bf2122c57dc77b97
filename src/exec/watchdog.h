/* Ends a job in which nothing moves. A thread looks a few times within the limit whether anything
 * has moved since: of an executor's steps, where one is under way, any instruction that has begun
 * or completed; of a task that the caller names, what it tells. Where nothing has, or where the
 * carrier of a collective met an error, it has rank 0 ask all ranks what they are at. Where one of
 * them does something by itself and has moved within the limit, the others go on waiting; else rank
 * 0 ends the job with a report on stderr: what each lane of each rank is at, and whom everybody
 * waits for. Ranks that do not answer it within seconds are marked, and where rank 0 itself is
 * gone, another one tells of itself. Between steps nothing is watched but the tasks. */
#ifndef SLUICE_EXEC_WATCHDOG_H
#define SLUICE_EXEC_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct comm;
struct exec;
struct watchdog;

/* For an executor whose lanes run, or with exec NULL for what comes before. limit_s > 0, the same
 * on all ranks. Collective. */
enum status watchdog_create(struct comm *comm, struct exec *exec, double limit_s,
                            struct watchdog **out);
/* When the executor is at rest, and before its lanes end. Takes NULL. Collective. */
void watchdog_destroy(struct watchdog *watchdog);

/* What the caller does beside the steps, of each kind at most one thing at a time: it is watched by
 * itself, whether steps go on or not. All ranks do the same ones in the same order. */
enum watchdog_task {
  TASK_MEET,
  TASK_SAVE,
  TASK_START,
  TASK_COUNT
}; /* meeting the other ranks, beside a step or after it; a checkpoint, also behind the steps;
      watchdog_start() */
/* Where it is: `moved` changes as long as it goes on, `doing` is a constant text for "in the
 * checkpoint, DOING" or NULL, `waits` says that the other ranks are what it waits for. */
struct watchdog_place {
  int64_t moved;
  const char *doing;
  bool waits;
};
typedef void watchdog_ask(struct watchdog_place *out); /* called on another thread */

/* From now on, until watchdog_leave(). `name`: "the checkpoint of step 40". `ask` NULL: nothing
 * tells, and it waits for the other ranks from its beginning. Nothing without a watchdog, or with
 * exec NULL. Any thread. Local. */
void watchdog_enter(struct exec *exec, enum watchdog_task task, watchdog_ask *ask, const char *name,
                    ...) __attribute__((format(printf, 4, 5)));
void watchdog_leave(struct exec *exec, enum watchdog_task task);

/* A phase of the job's start, until the next one or watchdog_started(). `name`: "opening
 * data/wiki". It moves when this rank begins or ends a call for all ranks (comm_calls()), and with
 * progress_add(). Takes NULL. Local. */
void watchdog_start(struct watchdog *watchdog, const char *name, ...)
    __attribute__((format(printf, 2, 3)));
void watchdog_started(struct watchdog *watchdog);

#endif
