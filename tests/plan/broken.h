/* Sound plans to break, and what has to be done so that verify sees the break and nothing else. */
#ifndef SLUICE_TESTS_PLAN_BROKEN_H
#define SLUICE_TESTS_PLAN_BROKEN_H

#include "fixture.h"

/* For fixture_point(). Those of `host` have masters in host memory. */
extern const char broken_full_shard[], broken_shard_optim[], broken_hybrid_shard[],
    broken_no_shard[], broken_no_shard_micros[], broken_host_device[], broken_host_shared[],
    broken_host_one_node[];

/* A sound plan of the last rank. Its model is that of the last call: one plan at a time. */
struct plan *broken_start(const struct point *point);
int broken_end(void **state); /* the teardown of the program's tests */

/* After a change of the instructions: waits as they need. Lifetimes, which count instructions, are
 * not to complain first. */
void broken_settle(struct plan *plan);
/* And every buffer with bytes of its own all the time, so that what is written over gives nothing
 * away. */
void broken_spread(struct plan *plan);
/* Another number of elements of the same type. */
void broken_resize(struct plan *plan, int buffer, int64_t elements);
/* A new buffer: the first elements of another one. */
int broken_view(struct plan *plan, int parent, int64_t elements);
/* Without instruction i, settled. */
void broken_delete(struct plan *plan, int i);
/* The plan is refused with these words, and destroyed. */
void broken_refused(struct plan *plan, const char *words);
/* A sound plan without the first such instruction of a unit (-1: of any) is refused with these
 * words. */
void broken_without(const struct point *point, enum op op, int unit, const char *words);

#endif
