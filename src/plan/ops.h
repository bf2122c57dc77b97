/* One row per operation: the facts that the builder, verify, the simulator, the printer, the trace
 * and the executor share. A new operation is a row in ops.c, the functions that the row names, and
 * a handler in src/exec/handlers.c.
 *
 * verify proves ordering, byte spans and lifetimes of values by itself. It takes from a row only
 * what an operation is. */
#pragma once

#include "plan/plan.h"

/* Whether an operand may be read, written, changed, or begin or continue a sum. */
/* SPEND: read. With feedback, or if errors of messages are measured, it is overwritten with useless
 * values. */
enum operand_access { OPERAND_READ, OPERAND_WRITE, OPERAND_ADD, OPERAND_SUM, OPERAND_SPEND };

/* The tiers of an operand. */
/* clang-format off */
enum operand_place {
  PLACE_DEVICE, PLACE_HOST, PLACE_DISK, PLACE_SHARED,
  PLACE_OUTSIDE, /* the batch and logits, which the program reads and writes between steps */
  PLACE_REDUCE,  /* the memory of the reduce lane */
  PLACE_STATE,   /* masters and reduced gradients of the unit */
  PLACE_SQUARES, /* the memory of the lane that squares the unit's gradient */
  PLACE_SOURCE,  /* parameters in host memory, shared or not */
  PLACE_WORKING, /* the working copy that the update writes */
  PLACE_LANDED,  /* gradients on the host */
  PLACE_ENCODED  /* messages for other ranks: of the reduce lane, or in memory that they share */
};
/* clang-format on */

/* The element type of an operand. */
/* clang-format off */
enum operand_type {
  TYPE_ANY,
  TYPE_WINDOW,  /* in which parameters are gathered */
  TYPE_COMPUTE, /* of values that units pass to each other */
  TYPE_GRADIENT, TYPE_MASTER, TYPE_STATE, TYPE_TOKENS, TYPE_FP32, TYPE_FP64,
  TYPE_BYTES, /* of private data of a model or the executor, and of messages */
  TYPE_SENT,  /* of data that the codec sends: messages, or the gradient itself */
  TYPE_FIRST  /* that of operand 0 */
};
/* clang-format on */

/* The elements of an operand. They are those of the whole unit, its trained part, this rank's
 * range, or the part that no other rank has. They may also be those of an optimizer state or of
 * operand 0. A sum over a group has three more: a member's gradient, the part that a member gets,
 * and the messages that bring it. A residual is a message of the unit's gradient too. */
/* clang-format off */
enum operand_extent {
  EXTENT_ANY, EXTENT_UNIT, EXTENT_TRAINED, EXTENT_OWNED, EXTENT_PIECE, EXTENT_STATE, EXTENT_FIRST,
  EXTENT_SUMMED, EXTENT_PART, EXTENT_MESSAGES, EXTENT_RESIDUAL,
  EXTENT_MEMBERS, /* one for each member of the group */
  EXTENT_SCALES,  /* bytes, of a unit that is gathered in fp8 */
  EXTENT_BATCH,   /* one for each sequence of a micro-batch */
  EXTENT_STAGE,   /* of the stage's part of its unit's gradient, at its place there */
  EXTENT_ONE
};
/* clang-format on */

/* The required buffer, if the plan has only one. */
/* clang-format off */
enum operand_role {
  ROLE_ANY, ROLE_MASTER, ROLE_WORKING, ROLE_PENDING,
  ROLE_STATE,        /* the state itself, or its copy in memory if the state is on NVMe */
  ROLE_STORED_STATE, /* the state itself */
  ROLE_METRICS, ROLE_LOSS, ROLE_LOSS_HOST,
  ROLE_SUMMED_LOSS, /* the loss that METRICS sums */
  ROLE_SQUARES,     /* the sum of the unit's squares */
  ROLE_HOST_SQUARES,
  ROLE_RESIDUAL, /* the residual, or its copy that moves between tiers */
  ROLE_SCALES, ROLE_CODES,
  ROLE_COPY /* this rank's part of the copy that differences are added to */
};
/* clang-format on */

/* A condition on a unit (-1: none) and the input. */
typedef bool unit_holds(const struct plan *plan, int unit);

struct operand {
  const char *name; /* NULL: the operation has no such operand */
  enum operand_access access;
  enum operand_place place;
  enum operand_type type;
  enum operand_extent extent;
  enum operand_role role;
  unit_holds *wanted; /* condition of an optional operand; NULL: always present, or for TYPE_STATE
                         if the unit has that state */
  int index;          /* number of the state, for TYPE_STATE */
};

/* The way in which an operation moves data between ranks. */
/* clang-format off */
enum op_collective {
  COLLECTIVE_NONE, COLLECTIVE_BARRIER, COLLECTIVE_GATHER, COLLECTIVE_EXCHANGE, COLLECTIVE_REDUCE,
  COLLECTIVE_TREE /* of a few words */
};
/* clang-format on */

/* How an operation changes the types of its value on the axes of the mesh: of a collective on those
 * of its group. On an axis a value is the same on all members, different, a part that the members
 * have cut, or a partial sum.
 *
 * CONTRACT: different -> partial, because the weights are the same. SCATTER: partial -> cut, which
 * is a sum. SUM: partial -> same, on all axes. GATHER: cut -> same. SQUARE: cut -> partial. */
/* clang-format off */
enum op_axes { AXES_KEEP, AXES_CONTRACT, AXES_SCATTER, AXES_SUM, AXES_GATHER, AXES_SQUARE };
/* clang-format on */

struct tally;   /* the number of each operation that a unit or a stage has in a micro-batch:
                   verify_counts.c */
struct verify;  /* an instruction that is verified: verify.h */
struct pricing; /* an instruction and the rates by which it is priced: simulate.c */
struct cost;    /* seconds and bytes: simulate.c */

/* The units that need an operation, or the stages of the row's kind, for each of their
 * micro-batches or once per step. A gradient is reduced, also over replicas, in each micro-batch or
 * once per step.
 */
enum due_unit { UNIT_ANY, UNIT_NONE, UNIT_EACH, UNIT_TRAINED };
enum due_when { EACH_MICRO, EACH_LATER_MICRO, EACH_STEP, WHEN_REDUCED, WHEN_REPLICAS_MEET };

/* UNIT_ANY: any number. Otherwise one for each unit and time if `holds` returns true (NULL:
 * always). */
struct due {
  enum due_unit unit;
  enum due_when when;
  unit_holds *holds;
};

/* The required number for a unit (-1: none) and micro-batch (-1: the step). */
typedef int op_due(const struct plan *plan, int unit, int micro, const struct tally *tally);
typedef void op_check(struct verify *v);
typedef struct cost op_cost(const struct pricing *p);
typedef double op_flops(const struct pricing *p);

struct op_row {
  const char *name;
  const char *without; /* the consequence if one is missing */
  enum plan_lane lane;
  enum plan_part part;
  mesh_set group;
  enum op_collective collective;
  enum op_axes axes;
  int whole;             /* of a collective: the operand that consists of all ranks' parts */
  bool coded;            /* gradients over ranks, sent as messages of attr.codec */
  bool codes_params;     /* parameters over ranks, sent as messages of attr.codec */
  bool extra;            /* a collective that only some codecs need */
  bool updates;          /* by the optimizer of attr */
  bool in_place;         /* operands of one buffer family may overlap */
  bool fp8;              /* multiplies with the weights of a block, which may be in fp8 */
  bool params;           /* operand 0 is the unit's parameters, gathered */
  enum stage_kind stage; /* the stages that it is of; STAGE_NONE: it is of units, or of none */
  struct operand operand[PLAN_MAX_USE];
  struct due one;  /* at most one for a unit and micro-batch */
  op_due *due;     /* or any rule; NULL: `one` is the rule */
  op_check *check; /* checks beyond the facts of the operands; NULL: none */
  op_check *value; /* NULL: it changes no value that verify follows */
  op_flops *flops; /* NULL: counts no floating-point operations */
  op_cost *cost;   /* NULL: it takes no time */
};

extern const struct op_row op_rows[OP_COUNT];

/* The products of the operation that are in fp8. */
enum fp8_use plan_op_fp8(const struct plan *plan, enum op op, int unit);

/* ---- verify_shape.c ---- */
unit_holds verify_trains, verify_evaluates, verify_generates, verify_learns,
    verify_trains_embedding;
unit_holds verify_needs_backward, verify_needs_recompute, verify_wants_saved;
unit_holds verify_on_host, verify_sums_on_device, verify_exchanges_shared, verify_shares_copy;
unit_holds verify_has_weights, verify_has_positions, verify_has_documents, verify_has_pairs;
unit_holds verify_embeds_positions, verify_turns_positions;
unit_holds verify_has_trained, verify_has_frozen, verify_keeps_codes;
unit_holds verify_keeps_copy, verify_wants_params_work;
unit_holds verify_spends, verify_wants_largest, verify_wants_encode_work, verify_wants_decode_work;
unit_holds verify_has_residual, verify_moves_residual, verify_stores_residual;
unit_holds verify_gathers_grads, verify_has_matrices, verify_gathers_matrices;
unit_holds verify_has_working, verify_speculates, verify_moves_state;
unit_holds verify_wants_metrics, verify_wants_squares, verify_loss_on_host;

/* ---- verify_counts.c ---- */
op_due due_merge, due_messages, due_encode_params, due_gather_messages, due_magnitude, due_encode,
    due_exchange, due_kept_on_host, due_kept_on_disk;

/* ---- verify_roles.c ---- */
op_check check_encode_params, check_gather_messages, check_decode_params;
op_check check_measure, check_scale, check_gather, check_decode, check_gather_grads, check_encode,
    check_decode_sum;
op_check check_magnitude, check_metrics, check_gather_direction, check_update, check_repair;
op_check check_publish;

/* ---- verify_values.c ---- */
op_check value_measure, value_merge, value_scale;
op_check value_load, value_embed, value_embed_backward, value_forward, value_recompute, value_loss;
op_check value_logits, value_backward, value_kept, value_encode, value_exchange, value_decode_sum;
op_check value_magnitude, value_sum_shared, value_gradient;
op_check value_accumulate, value_squares, value_fetch_loss, value_metrics, value_update,
    value_repair, value_publish;
op_check value_read_state;
op_check value_write_state, value_direction, value_gather_direction, value_residual;

/* ---- simulate.c ---- */
op_cost cost_operands, cost_flops, cost_embed, cost_embed_backward, cost_copy, cost_disk;
op_cost cost_encode, cost_decode_sum, cost_encode_params, cost_decode_params, cost_magnitude;
op_cost cost_barrier, cost_tree, cost_all_reduce, cost_gather, cost_exchange, cost_sum_shared;
op_cost cost_update, cost_repair;
op_flops flops_block, flops_backward, flops_loss, flops_logits;
