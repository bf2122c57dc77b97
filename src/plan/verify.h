/* Shared by the parts of verify. plan_verify() runs them in this order, and each may use the proofs
 * of those before it. Each sets STATUS_PLAN with the fault, and changes nothing in the plan. Verify
 * shares no code with the builder, the placement and the ordering, except the tables of internal.h.
 * Private to verify*.c.
 *
 * - verify_form(): instructions against the rows of ops.c, lanes, tiers, arenas, lifetimes. Frozen
 *   parameters never change. Afterwards indices are valid.
 * - verify_windows(): fetch -> gather -> use -> release of the units' parameters.
 * - verify_bytes(): happens-before of all conflicting accesses to bytes, through two steps, also in
 *   memory that a shard group shares.
 * - verify_counts(): the number of each operation of a unit, in a micro-batch and in the step.
 * - verify_roles(): the buffer of each operand, and its size. Each sum is begun once.
 * - verify_scopes(): buffers with a shard, the whole unit, or a rank's own values.
 * - verify_values(): the value of each buffer during the step. Sums are complete, moments belong to
 *   their unit, and inputs return from the tier that they were sent to.
 *
 * verify.c has the messages and the families of buffers. verify_shape.c derives facts from the
 * input alone. */
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
/* Times count instructions over two steps. Writes "FORWARD h.3 (#41, compute)", and "of the step
 * before" if `now` is in the next step. */
struct verify_label verify_name(const struct plan *plan, int time, int now);
const char *verify_verb(enum plan_access access);
/* "(instruction) (why)" */
enum status verify_fail(const struct plan *plan, int time, const char *why, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- buffers ---- */

/* next[buffers] (mem_free): for each buffer the next one of its family. The list begins with the
 * root; -1: the last. */
enum status verify_families(const struct plan *plan, int **next);
/* The type in which parameters are gathered and used. */
enum dtype verify_window_type(const struct plan *plan, int unit);
/* Whether the buffer is exactly these elements' place in a window of the unit. */
bool verify_is_place(const struct plan *plan, int unit, int buffer, struct layout_range range);

/* ---- requirements of the input ---- */

bool verify_is_block(const struct plan *plan, int unit);
bool verify_recomputes(const struct plan *plan, int block); /* the block keeps its input alone */
/* Conditions of ops.h. For unit -1, verify_learns() is false. Masters, moments and reduced
 * gradients of a unit (-1: of any unit) are in host memory if verify_on_host(). A unit has matrices
 * that are updated as a whole if verify_has_matrices(). The update writes a working copy if
 * verify_has_working(). */
bool verify_embedding_learns(
    const struct plan *plan); /* the embedding's matrices, whatever else is in their unit */
/* Whether the gradient with respect to a block's output is needed: by the block, a block before it,
 * or the embedding. */
bool verify_passes_back(const struct plan *plan, int block);
/* The most elements of state s that a rank keeps of a unit; 0: the unit does not have it. */
int64_t verify_state_elements(const struct plan *plan, int unit, int s);
/* Whether this operand must be present. */
bool verify_wants(const struct plan *plan, const struct instr *instr,
                  const struct operand *operand);
/* Bytes of the scales of a unit that is gathered in fp8, shared evenly by the members. */
int64_t verify_scale_bytes(const struct plan *plan, int unit);
bool verify_state_on_disk(const struct plan *plan, int unit);
bool verify_squares_on_host(
    const struct plan *plan,
    int unit); /* its gradients add up on the host and metrics are made on the device */
bool verify_sums_shared(const struct plan *plan,
                        int unit); /* gradients are copied to memory that the members of a group
                                      share, and are added up there */
/* Whether the unit's gradients are sent without encoding. */
bool verify_sends_gradients(const struct plan *plan, int unit);
/* The codec of messages between members of the instruction's group. */
struct codec verify_codec(const struct plan *plan, const struct instr *instr);
/* Elements of the unit's gradient that a rank encodes, 0: none. */
int64_t verify_encoded(const struct plan *plan, int unit);
/* Whether the unit's parameters are sent as messages of a codec. */
bool verify_encodes_params(const struct plan *plan, int unit);
/* A reduction may be over either group. verify_values() proves that it is the right one. */
enum plan_group verify_group(const struct plan *plan, const struct instr *instr);
int64_t verify_members(const struct plan *plan, const struct instr *instr); /* of verify_group() */

#endif
