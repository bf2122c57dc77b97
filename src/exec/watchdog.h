/* Ends a job that makes no progress. A thread looks for progress several times within the limit. In
 * a running step, each instruction that begins or completes is progress. In a task of the caller,
 * the caller reports progress. Without progress, or after an error of a transport, rank 0 asks all
 * ranks for their state. If a rank is busy with its own work and has made progress within the
 * limit, the others continue to wait. Otherwise rank 0 ends the job with a report on stderr: the
 * current work of each lane of each rank, and the rank for which the others wait. Ranks that do not
 * answer within seconds are marked. If rank 0 itself does not answer, another rank reports its own
 * state. Between steps only tasks are watched. */
#pragma once

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
/* Call it when the executor is at rest, before its lanes end. Takes NULL. Collective. */
void watchdog_destroy(struct watchdog *watchdog);

/* Work of the caller outside the steps, at most one of each kind at a time. Each is watched
 * separately, with or without running steps. All ranks have the same tasks in the same order. */
enum watchdog_task {
  TASK_MEET,
  TASK_SAVE,
  TASK_START,
  TASK_COUNT
}; /* a meeting of the ranks, during a step or after it; a checkpoint, also after the steps;
      watchdog_start() */
/* The state of a task. A task that makes progress changes `moved`. `doing` is a constant text for
 * "in the checkpoint, DOING", or NULL. `waits`: the task waits for the other ranks. */
struct watchdog_place {
  int64_t moved;
  const char *doing;
  bool waits;
};
typedef void watchdog_ask(struct watchdog_place *out); /* called on another thread */

/* Begins a task, until watchdog_leave(). `name`: "the checkpoint of step 40". `ask` NULL: the task
 * reports no progress, and waits for other ranks from its beginning. Takes NULL. Any thread.
 * Local. */
void watchdog_enter(struct watchdog *watchdog, enum watchdog_task task, watchdog_ask *ask,
                    const char *name, ...) __attribute__((format(printf, 4, 5)));
void watchdog_leave(struct watchdog *watchdog, enum watchdog_task task);

/* The watchdog of an executor. NULL: it has none, or exec is NULL. Local. */
struct watchdog *watchdog_of(const struct exec *exec);

/* A phase of the job's start, until the next one or watchdog_started(). `name`: "opening
 * data/wiki". Its progress is the beginning and end of collective calls (comm_calls()), and
 * progress_add(). Takes NULL. Local. */
#define watchdog_start(watchdog, ...) watchdog_enter(watchdog, TASK_START, NULL, __VA_ARGS__)
#define watchdog_started(watchdog) watchdog_leave(watchdog, TASK_START)
