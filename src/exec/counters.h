/* What the processor and the kernel count about this process while it runs: hardware counters through PAPI; where it has none to give, the kernel's account
 * of the process, because PAPI's own software events cannot follow threads there (PAPI 7 asks for a hardware event before it lets any be inherited).
 *
 * Counters are an extra: nothing here fails. What cannot be counted is not, and counters_note() says why. NULL is a handle that counts nothing. */
#ifndef SLUICE_EXEC_COUNTERS_H
#define SLUICE_EXEC_COUNTERS_H

#include <stdint.h>

enum counter {
  COUNTER_CYCLES, /* hardware: in user mode, by the creating thread and by threads started after counters_create(), which may still run */
  COUNTER_INSTRUCTIONS,
  COUNTER_L3_MISSES,
  COUNTER_TASK_CLOCK, /* kernel: by all threads of the process */
  COUNTER_PAGE_FAULTS,
  COUNTER_CONTEXT_SWITCHES,
  COUNTER_KINDS
};

const char *counter_name(enum counter counter); /* "cycles", ..., fit for a key */
const char *counter_unit(enum counter counter); /* "ns" for the task clock, "" for plain counts */

struct counters;

/* Start to count. NULL when memory is out. Local; one thread makes all calls on a handle. */
struct counters *counters_create(void);
void counters_destroy(struct counters *counters); /* takes NULL */

/* How many kinds are counted. */
int counters_events(const struct counters *counters);

/* What is not counted, why, and the cure; "" where nothing is missing. Valid until the next call on the handle. */
const char *counters_note(const struct counters *counters);

/* What was counted since the last read, or since creation; -1 for kinds that are not counted. */
void counters_read(struct counters *counters, int64_t value[COUNTER_KINDS]);

#endif
