/* Ends a job in which nothing moves. A thread looks a few times within the limit whether anything
 * has moved since its last look. For a step that is under way, any instruction that has begun or
 * completed counts; for a task that the caller names, the progress that the caller reports. Where
 * nothing has, or where the carrier of a collective met an error, it has rank 0 ask all ranks what
 * they are at. If a rank is busy with work of its own and has moved within the limit, the others go
 * on waiting. Otherwise rank 0 ends the job with a report on stderr: the current work of each lane
 * of each rank, and the rank for which the others wait. Ranks that do not answer it within seconds
 * are marked, and where rank 0 itself is gone, another one tells of itself. Between steps nothing
 * is watched but the tasks. */
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

/* Work of the caller outside of the steps, of each kind at most one at a time. Each is watched
 * separately, whether steps go on or not. All ranks do the same ones in the same order. */
enum watchdog_task {
  TASK_MEET,
  TASK_SAVE,
  TASK_START,
  TASK_COUNT
}; /* a meeting of the ranks, during a step or after it; a checkpoint, also after the steps;
      watchdog_start() */
/* The state of a task. `moved` changes as long as the task goes on. `doing` is a constant text for
 * "in the checkpoint, DOING", or NULL. `waits`: the task waits for the other ranks. */
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
