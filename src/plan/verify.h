/* What the parts of verify share. plan_verify() runs them in this order, each on what those before
 * it have proven; each says by status_set(STATUS_PLAN, ...) what is wrong and leaves the plan as it
 * is. Nothing here is shared with what builds, places and orders plans, but the tables of
 * internal.h. Private to verify*.c.
 *
 *   verify_form()     instructions against the table in plan.h, lanes, tiers, arenas, lifetimes;
 * the frozen is never changed. Indices are sound from here on verify_windows()  fetch -> gather ->
 * use -> release of the units' parameters verify_bytes()    happens-before, and all that meets over
 * the same bytes, through two steps; what a shard group shares verify_counts()   how many of each
 * operation a unit has in a micro-batch and in the step verify_roles()    which buffer, of which
 * size, stands in which place of an operation; each sum is begun once verify_scopes()   which
 * buffers have a shard, the whole unit, or a rank's own values verify_values()   what each buffer
 * holds as the step goes on: sums are whole, moments are the unit's, inputs come back from where
 * they went
 *
 * verify.c has the words and the families of buffers, verify_shape.c what follows from the input
 * alone. */
#ifndef SLUICE_PLAN_VERIFY_H
#define SLUICE_PLAN_VERIFY_H

#include "plan/internal.h"
#include "plan/ops.h"

/* All Local, pure. Errors: STATUS_PLAN, STATUS_MEMORY. */
enum status verify_form(const struct plan *plan);
enum status verify_windows(const struct plan *plan);
enum status verify_bytes(const struct plan *plan);
enum status verify_counts(const struct plan *plan);
enum status verify_roles(const struct plan *plan);
enum status verify_scopes(const struct plan *plan);
enum status verify_values(const struct plan *plan);

/* ---- words ---- */

struct verify_label {
  char text[128];
};
/* Times count instructions over two steps. "FORWARD h.3 (#41, compute)", and "of the step before"
 * where `now` is of the one after. */
struct verify_label verify_name(const struct plan *plan, int time, int now);
const char *verify_verb(enum plan_access access);
/* "(instruction) (why)" */
enum status verify_fail(const struct plan *plan, int time, const char *why, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- buffers ---- */

/* next[buffers], the caller's to mem_free: for each buffer another one of its family, a list that
 * begins with the root; -1: the last. */
enum status verify_families(const struct plan *plan, int **next);
/* The type in which parameters are gathered and computed with. */
enum dtype verify_window_type(const struct plan *plan, int unit);
/* Whether the buffer is exactly these elements' place in a window of the unit. */
bool verify_is_place(const struct plan *plan, int unit, int buffer, struct layout_range range);

/* ---- what the input asks for ---- */

bool verify_is_block(const struct plan *plan, int unit);
bool verify_recomputes(const struct plan *plan, int block); /* the block keeps its input alone */
/* verify_learns(): false for -1. verify_on_host(): whether masters, moments and reduced gradients
 * of a unit (-1: of any unit) are in host memory. verify_has_matrices(): whether it has matrices
 * that are updated as a whole. verify_has_working(): whether the update leaves a copy to compute
 * with. See ops.h. */
bool verify_embedding_learns(
    const struct plan *plan); /* the embedding's matrices, whatever else is in their unit */
/* Somebody needs the gradient with respect to a block's output: it, a block before it, or the
 * embedding. */
bool verify_passes_back(const struct plan *plan, int block);
/* The most elements of state s that a rank keeps of a unit; 0: the unit does not have it. */
int64_t verify_state_elements(const struct plan *plan, int unit, int s);
/* Must this operand be there? */
bool verify_wants(const struct plan *plan, const struct instr *instr,
                  const struct operand *operand);
bool verify_state_on_disk(const struct plan *plan, int unit);
bool verify_squares_on_host(
    const struct plan *plan,
    int unit); /* its gradients add up on the host and metrics are made on the device */
bool verify_sums_shared(const struct plan *plan,
                        int unit); /* gradients land in memory that the members of a group share,
                                      and are added up there */
/* Whether the unit's gradients travel as they are, so that nothing is encoded. */
bool verify_sends_gradients(const struct plan *plan, int unit);
/* The codec of messages between members of the instruction's group. */
struct codec verify_codec(const struct plan *plan, const struct instr *instr);
/* Elements of the unit's gradient that a rank encodes, 0: none. */
int64_t verify_encoded(const struct plan *plan, int unit);
/* Whether the unit's parameters travel as messages of a codec. */
bool verify_encodes_params(const struct plan *plan, int unit);
/* A reduction may be over either group: verify_values() proves that it is over the right one. */
enum plan_group verify_group(const struct plan *plan, const struct instr *instr);
int64_t verify_members(const struct plan *plan, const struct instr *instr); /* of verify_group() */

#endif
