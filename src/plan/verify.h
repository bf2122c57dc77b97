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
 * - verify_values(): the value of each buffer during the step, and its type on each axis of the
 *   mesh. Sums are complete, moments belong to their unit, and inputs return from the tier that
 *   they were sent to.
 *
 * verify.c has the messages and the families of buffers. verify_shape.c derives facts from the
 * input alone. */
#pragma once

#include "plan/internal.h"
#include "plan/ops.h"

/* All Local, pure. Errors: STATUS_PLAN, STATUS_MEMORY. */
enum status verify_form(const struct plan *plan);
enum status verify_windows(const struct plan *plan);
enum status verify_bytes(const struct plan *plan);
enum status verify_counts(const struct plan *plan);
enum status verify_roles(const struct plan *plan);
enum status verify_values(const struct plan *plan);

/* ---- the walk ---- */

/* A part of verify at an instruction. */
struct verify {
  const struct plan *plan;
  enum status status; /* the first fault */
  int now;            /* time: instructions are counted over two steps */
  const struct instr *instr;
  const struct op_row *row;
  const struct plan_unit *unit;    /* of the instruction; of unit 0 if it has none */
  const struct model_stage *stage; /* of the instruction; of stage 0 if it has none */
  int *next;                       /* by buffer: see verify_families() */
  int *mark;                       /* by buffer: what the part remembers (mem_free) */
  struct value *value;             /* by buffer: verify_values.c (mem_free) */
  mesh_set axes;                   /* that have several ranks: verify_values.c */
};

void verify_at(struct verify *v, int time);
/* Calls `check` for each instruction, up to the first fault. */
void verify_walk(struct verify *v, op_check *check);
/* The first fault: "(instruction) (why)". Later ones are ignored. */
void verify_fail(struct verify *v, const char *why, ...) __attribute__((format(printf, 2, 3)));
/* Whether the instruction has operand k, and its buffer. */
static inline bool verify_has(const struct verify *v, int k)
{
  return v->instr->use[k].buffer >= 0;
}
static inline const struct plan_buffer *verify_used(const struct verify *v, int k)
{
  return &v->plan->buffer[v->instr->use[k].buffer];
}

/* ---- words ---- */

struct verify_label {
  char text[128];
};
/* "FORWARD h.3 (#41, compute)", and "of the step before" if v->now is in the next step. */
struct verify_label verify_name(const struct verify *v, int time);
const char *verify_verb(enum plan_access access);
/* "reads params.h.3" */
struct verify_label verify_does(const struct plan *plan, const struct plan_use *use);

/* ---- buffers ---- */

/* Makes v->next (mem_free): for each buffer the next one of its family. The list begins with the
 * root; -1: the last. */
void verify_families(struct verify *v);
/* The type in which parameters are gathered and used. */
enum dtype verify_window_type(const struct plan *plan, int unit);
/* Whether the buffer is exactly these elements' place in a window of the unit. */
bool verify_is_place(const struct verify *v, int buffer, struct layout_range range);

/* ---- requirements of the input ---- */

/* Conditions in addition to those of ops.h. For unit -1, verify_learns() is false. */
unit_holds verify_recomputes;      /* the block keeps its input alone */
unit_holds verify_state_on_disk;   /* of the unit's optimizer */
unit_holds verify_squares_on_host; /* gradients add up on the host, metrics are of the device */
unit_holds verify_sums_shared;     /* gradients add up in memory that the group shares */
unit_holds verify_sends_gradients; /* without encoding */
unit_holds verify_encodes_params;  /* they are sent as messages of a codec */
unit_holds verify_keeps_messages;  /* frozen shards are messages between their uses, too */
/* The embedding's matrices, whatever else is in their unit. */
bool verify_embedding_learns(const struct plan *plan);
/* Whether the gradient with respect to the output of a block's unit is needed: by the unit, one
 * before it, or the embedding. */
bool verify_passes_back(const struct plan *plan, int unit);
/* The most elements of state s that a rank keeps of a unit; 0: the unit does not have it. */
int64_t verify_state_elements(const struct plan *plan, int unit, int s);
/* Whether this operand must be present. */
bool verify_wants(const struct verify *v, const struct operand *operand);
/* The codec of messages between members of the instruction's group. */
struct codec verify_codec(const struct verify *v);
/* Whether a shard group reduces first in each of its nodes, then between them. */
bool verify_spans_nodes(const struct plan *plan);
/* Elements of the unit's gradient that a rank encodes, 0: none. */
int64_t verify_encoded(const struct plan *plan, int unit);
/* A reduction may be over either group. verify_values() proves that it is the right one. */
mesh_set verify_group(const struct verify *v);
int64_t verify_members(const struct verify *v); /* of verify_group() */
/* Members of the group that share the elements of a unit. */
int verify_shards(const struct plan *plan);
