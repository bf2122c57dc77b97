/* Ends a job in which nothing moves. A thread of each executor looks a few times within the limit whether any instruction has begun or completed since; where a step is under way and
 * none has, or where the carrier of a collective met an error, it ends the job with a report on stderr: what each lane of each rank is at, and whom everybody waits for. Rank 0
 * prints for all; ranks that do not answer it within seconds are marked, and where rank 0 itself is gone, each tells of itself. Between steps nothing is watched. */
#ifndef SLUICE_EXEC_WATCHDOG_H
#define SLUICE_EXEC_WATCHDOG_H

#include "base/status.h"

struct exec;
struct watchdog;

/* For an executor whose lanes run. limit_s > 0, the same on all ranks. Collective. */
enum status watchdog_create(struct exec *exec, double limit_s, struct watchdog **out);
/* When the executor is at rest, and before its lanes end. Takes NULL. Collective. */
void watchdog_destroy(struct watchdog *watchdog);

#endif
