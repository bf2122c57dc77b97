/* What instructions cost the processor: hardware counters through PAPI and the kernel's account of threads, by lane and by kind of instruction. For the deck's run.counters.
 *
 * Every thread counts for itself: the one that drives a lane from the begin of an instruction to its end, each worker of the lane's team from the end of one instruction to the end of the
 * next, a spin of microseconds before it sleeps included. Not in it: what threads of libraries do (MPI's, a driver's), and what a GPU does - its lanes count what it takes to issue the work.
 * To read wakes the team. Hardware counts in user mode. */
#ifndef SLUICE_EXEC_TALLY_H
#define SLUICE_EXEC_TALLY_H

#include "base/team.h"
#include "deck/deck.h"
#include "plan/plan.h"

struct tally; /* which events */

/* "auto", or names: cycles, instructions, l3_misses, memory_bytes (L3 misses times the length of a cache line: what was read from memory on demand), task_clock, page_faults,
 * context_switches, and whatever PAPI calls an event of a thread. auto takes all of the former that there are; a name that cannot be counted is an error with its cure. By the thread that
 * drives the io lane. Local. */
enum status tally_create(const struct option_strings *names, struct tally **out);
void tally_destroy(struct tally *tally); /* takes NULL */

int tally_events(const struct tally *tally);                  /* 0 of NULL */
const char *tally_key(const struct tally *tally, int event);  /* "cycles", "task_clock_ns", ... */
const char *tally_note(const struct tally *tally);            /* what of auto is not counted, why, and the cure; "" where nothing is missing */

/* Of instructions: how many, and what they took of each event. */
struct tally_sum { int64_t count, spent[DECK_COUNTERS]; };

/* The threads of a lane. `team` NULL: one. They belong to the lane until tally_lane_destroy(). */
struct tally_lane;
enum status tally_lane_create(const struct tally *tally, struct team *team, struct tally_lane **out);
void tally_lane_destroy(struct tally_lane *lane); /* takes NULL */

/* These are for the thread that drives the lane; the first two take NULL. Nothing is allocated between start and stop. What cannot be read ends the counting of the lane with a warning. */
enum status tally_start(struct tally_lane *lane);
void tally_stop(struct tally_lane *lane);
void tally_begin(struct tally_lane *lane);
/* spent: what the instruction took, -1 where it was not counted; may be NULL. */
void tally_end(struct tally_lane *lane, enum op op, int64_t spent[DECK_COUNTERS]);

/* [OP_COUNT]. While no instruction runs. */
const struct tally_sum *tally_sums(const struct tally_lane *lane);

#endif
