/* The cost of a plan's instructions to the processor, by lane and by operation. Hardware counters
 * are read through PAPI, the rest from the kernel's account of a thread. For
 * run.counters, and for a whole process in sluice bench.
 *
 * Every thread counts for itself. The thread that drives a lane counts from the begin of an
 * instruction to its end. Each worker of the lane's team counts from the end of one instruction to
 * the end of the next, which includes a spin of microseconds before it sleeps. Threads of libraries
 * (MPI, a driver) and GPUs are not counted: a GPU's lanes count the cost of issuing the work.
 * Reading wakes the team. Hardware counts in user mode. */
#pragma once

#include "base/team.h"
#include "plan/plan.h"

struct op_counters; /* which events */

enum { OP_COUNTERS = 8 }; /* the most events */

enum op_counters_scope {
  COUNT_LANES,  /* each thread of a lane by itself */
  COUNT_PROCESS /* all threads; hardware counts the creating thread and threads started after */
};

/* The named events are cycles, instructions, l3_misses, memory_bytes, task_clock, page_faults and
 * context_switches. Any per-thread event that PAPI knows may be named too. memory_bytes is L3
 * misses times the length of a cache line: bytes read from memory on demand. NULL or "auto" takes
 * all named events that this machine has. Any other name that cannot be counted is an error with
 * its cure. Call it on the thread that drives the io lane. Local. */
enum status op_counters_create(enum op_counters_scope scope, int n, char *const names[],
                               struct op_counters **out);
void op_counters_destroy(struct op_counters *counters); /* takes NULL */

int op_counters_events(const struct op_counters *counters); /* 0 of NULL */
/* "cycles", "task_clock_ns", ... */
const char *op_counters_key(const struct op_counters *counters, int event);
/* Events of auto that are not counted, why, and the cure; "" if nothing is missing. */
const char *op_counters_note(const struct op_counters *counters);

/* Number of instructions, and their sum of each event. */
struct op_counters_sum {
  int64_t count, spent[OP_COUNTERS];
};

/* The threads of a lane, or the process. `team` NULL: one thread. The threads belong to the lane
 * until op_counters_lane_destroy(). */
struct op_counters_lane;
enum status op_counters_lane_create(const struct op_counters *counters, struct team *team,
                                    struct op_counters_lane **out);
void op_counters_lane_destroy(struct op_counters_lane *lane); /* takes NULL */

/* Called by the thread that drives the lane; start and stop take NULL. Nothing is allocated between
 * start and stop. A failure to read ends the counting of the lane with a warning. */
enum status op_counters_start(struct op_counters_lane *lane);
void op_counters_stop(struct op_counters_lane *lane);
void op_counters_begin(struct op_counters_lane *lane);
/* The counts since the last begin or read; -1: they are lost. */
void op_counters_read(struct op_counters_lane *lane, int64_t spent[OP_COUNTERS]);
