/* Ends a job in which nothing moves. A thread of each executor looks a few times within the limit whether any instruction has begun or completed since; where a step is under way and
 * none has, or where the carrier of a collective met an error, it ends the job with a report on stderr: what each lane of each rank is at, and whom everybody waits for. Rank 0
 * prints for all; ranks that do not answer it within seconds are marked, and where rank 0 itself is gone, each tells of itself. Between steps nothing is watched but the tasks that the
 * caller names. */
#ifndef SLUICE_EXEC_WATCHDOG_H
#define SLUICE_EXEC_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct exec;
struct watchdog;

/* For an executor whose lanes run. limit_s > 0, the same on all ranks. Collective. */
enum status watchdog_create(struct exec *exec, double limit_s, struct watchdog **out);
/* When the executor is at rest, and before its lanes end. Takes NULL. Collective. */
void watchdog_destroy(struct watchdog *watchdog);

/* What the caller does beside the steps, of each kind at most one thing at a time: it is watched by itself, whether steps go on or not. All ranks do the same ones in the same order. */
enum watchdog_task { TASK_MEET, TASK_SAVE, TASK_COUNT }; /* meeting the other ranks after a step; a checkpoint, also behind the steps */
/* Where it is: `moved` changes as long as it goes on, `doing` is a constant text for "in the checkpoint, DOING" or NULL, `waits` says that the other ranks are what it waits for. */
struct watchdog_place { int64_t moved; const char *doing; bool waits; };
typedef void watchdog_ask(struct watchdog_place *out); /* called on another thread */

/* From now on, until watchdog_leave(). `name`: "the checkpoint of step 40". `ask` NULL: nothing tells, and it waits for the other ranks from its beginning. Nothing
 * without a watchdog, or with exec NULL. Any thread. Local. */
void watchdog_enter(struct exec *exec, enum watchdog_task task, watchdog_ask *ask, const char *name, ...) __attribute__((format(printf, 4, 5)));
void watchdog_leave(struct exec *exec, enum watchdog_task task);

#endif
