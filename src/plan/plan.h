/* The plan: a training step as a flat list of instructions over a fixed set of buffers. It is
 * built, placed, ordered and verified before the first step. The memory layout, verify, the
 * simulator, the printer and the executor read the same structure. Knows nothing of MPI, CUDA or
 * HDF5.
 *
 * - plan_build() makes instructions and buffers, in an order that is correct when instructions run
 *   one after another.
 * - plan_place() computes lifetimes, and from them offsets in one persistent and one transient
 *   arena per tier.
 * - plan_order() adds the fewest waits that make concurrent lanes equal to that order.
 * - plan_verify() proves from the result alone: every read follows its write, no bytes are reused
 *   in flight, and no part of a sum or update is missing.
 *
 * A plan is cyclic: the first instruction of step s + 1 follows the last one of step s. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "compress/compress.h"
#include "compress/nf4.h"
#include "deck/deck.h"
#include "device/device.h"
#include "layout/mesh.h"
#include "model/model.h"
#include "optim/optim.h"
#include "plan/policy.h"

/* Operations. src/plan/ops.c has one row for each: lane, group, operands, and the functions of
 * verify, the simulator and the executor. */
/* clang-format off */
enum op {
  OP_LOAD, OP_GATHER, OP_MEASURE, OP_MERGE, OP_SCALE, OP_ENCODE_PARAMS, OP_GATHER_MESSAGES,
  OP_DECODE_PARAMS, OP_EMBED, OP_FORWARD, OP_RECOMPUTE, OP_LOSS, OP_LOGITS, OP_DECODE, OP_BACKWARD,
  OP_EMBED_BACKWARD, OP_RELEASE, OP_MAGNITUDE, OP_ENCODE, OP_READ_RESIDUAL, OP_FETCH_RESIDUAL,
  OP_SAVE_RESIDUAL, OP_WRITE_RESIDUAL, OP_EXCHANGE, OP_DECODE_SUM, OP_GATHER_GRADS, OP_SQUARES,
  OP_METRICS, OP_DIRECTION, OP_GATHER_DIRECTION, OP_UPDATE, OP_REPAIR, OP_FETCH, OP_PUBLISH,
  OP_SAVE_ACT, OP_WRITE_ACT, OP_READ_ACT, OP_FETCH_ACT, OP_FETCH_GRAD, OP_ACCUMULATE,
  OP_READ_STATE, OP_WRITE_STATE, OP_FETCH_LOSS, OP_SUM_SHARED, OP_COUNT
};

/* Operands, by position. An operand that is absent has buffer -1 and shifts no other. */
enum { PLAN_MAX_STATE = OPTIM_STATES }; /* kinds of optimizer state */
enum { LOAD_TOKENS, LOAD_TARGETS, LOAD_WEIGHTS, LOAD_POSITIONS, LOAD_FIRST, LOAD_REFERENCE };
enum { GATHER_SHARD, GATHER_WHOLE, GATHER_BY_SCALES };
enum { MEASURE_TRAINED, MEASURE_FROZEN, MEASURE_SCALES };
enum { MERGE_SCALES };
enum { SCALE_SCALES, SCALE_TRAINED, SCALE_CODES };
/* COPY: this rank's part. DIFFERENCE: fp32, of shard and copy. */
enum { ENCODE_PARAMS_SHARD, ENCODE_PARAMS_MESSAGE, ENCODE_PARAMS_COPY, ENCODE_PARAMS_DIFFERENCE,
       ENCODE_PARAMS_WORK };
enum { GATHER_MESSAGES_MINE, GATHER_MESSAGES_ALL };
enum { DECODE_PARAMS_MESSAGES, DECODE_PARAMS_WHOLE, DECODE_PARAMS_WORK };
enum { EMBED_PARAMS, EMBED_TOKENS, EMBED_OUT, EMBED_POSITIONS };
/* FORWARD and RECOMPUTE */
enum { FORWARD_PARAMS, FORWARD_IN, FORWARD_OUT, FORWARD_WORK, FORWARD_SAVED, FORWARD_SCALES,
       FORWARD_POSITIONS, FORWARD_FIRST };
enum { LOSS_PARAMS, LOSS_IN, LOSS_TARGETS, LOSS_SUM, LOSS_WORK, LOSS_D, LOSS_GRADS, LOSS_WEIGHTS,
       LOSS_REFERENCE };
enum { LOGITS_PARAMS, LOGITS_IN, LOGITS_WORK, LOGITS_OUT };
enum { DECODE_PARAMS, DECODE_IN, DECODE_OUT, DECODE_WORK, DECODE_CACHE };
enum { BACKWARD_PARAMS, BACKWARD_IN, BACKWARD_SAVED, BACKWARD_D, BACKWARD_WORK, BACKWARD_GRADS,
       BACKWARD_SCALES, BACKWARD_POSITIONS, BACKWARD_FIRST };
enum { EMBED_BACKWARD_TOKENS, EMBED_BACKWARD_D, EMBED_BACKWARD_GRADS, EMBED_BACKWARD_POSITIONS };
enum { RELEASE_PARAMS };
enum { MAGNITUDE_GRADS, MAGNITUDE_ALL, MAGNITUDE_LARGEST, MAGNITUDE_RESIDUAL, MAGNITUDE_WORK };
enum { ENCODE_GRADS, ENCODE_MESSAGES, ENCODE_RESIDUAL, ENCODE_WORK, ENCODE_LARGEST };
enum { EXCHANGE_SENT, EXCHANGE_RECEIVED }; /* sent: messages, or the gradient itself */
enum { DECODE_SUM_MESSAGES, DECODE_SUM_SHARD, DECODE_SUM_WORK };
enum { GATHER_GRADS_PIECE, GATHER_GRADS_WHOLE };
enum { SQUARES_GRADS, SQUARES_SUM };
enum { METRICS_LOSS, METRICS_OUT, METRICS_SQUARES };
enum { DIRECTION_METRICS, DIRECTION_GRADS, DIRECTION_OUT, DIRECTION_STATE };
enum { GATHER_DIRECTION_PIECE, GATHER_DIRECTION_WHOLE };
/* DIRECTION: of the whole trained part. PENDING: the gradient of the step before, of a speculative
 * unit. */
enum { UPDATE_METRICS, UPDATE_GRADS, UPDATE_MASTER, UPDATE_WORKING, UPDATE_DIRECTION, UPDATE_WORK,
       UPDATE_PENDING, UPDATE_STATE };
enum { REPAIR_METRICS, REPAIR_GRADS, REPAIR_MASTER, REPAIR_WORKING, REPAIR_STATE };
/* FETCH, PUBLISH, FETCH_GRAD, FETCH_LOSS, and the moves of activations and residuals */
enum { MOVE_FROM, MOVE_TO };
enum { ACCUMULATE_LANDED, ACCUMULATE_GRADS };
enum { STATE_FROM, STATE_TO = STATE_FROM + RULE_STATES }; /* READ_STATE and WRITE_STATE */
enum { SUM_SHARED_SENT, SUM_SHARED_SHARD };
/* clang-format on */

/* An access is a read, a write of a new value, or a change of the old value. What an operation does
 * with its operands stands at its row in ops.c.
 *
 * - The batch and logits are in TIER_HOST if device memory is not host memory. So are masters,
 *   state and reduced gradients of units with policy.host, and metrics unless gradients are summed
 *   on the device.
 * - Operations of the lanes in plan->on_host work on host memory, all others on device memory, and
 *   copies on both.
 * - A unit's window has a trained and a frozen part, each gathered from a shard of its own.
 *   Gradients, states, reductions, SQUARES and UPDATE are of trained parts only. No BACKWARD runs
 *   for a block if nothing in it and before it is trained.
 *
 * The lanes of a step, each in its order, and the arenas that they work on:
 *
 *   io      LOAD ----.                    arenas per tier:  persistent           transient
 *   gather  GATHER --+-.                    device  | masters, states, grads | windows, work |
 *   compute          FORWARD .. BACKWARD    host    | the same, offloaded    | landed grads  |
 *   reduce              ENCODE .. METRICS   shared  | one copy per group     | one per rank  |
 *   host                        UPDATE      disk    | states, residuals      | activations   |
 *   h2d d2h disk: FETCH, SAVE_ACT, READ_STATE: copies between tiers */
/* clang-format off */
enum plan_lane {
  LANE_COMPUTE, LANE_GATHER, LANE_REDUCE, LANE_HOST, LANE_IO, LANE_H2D, LANE_D2H, LANE_DISK,
  LANE_COUNT
};
/* clang-format on */
/* Work that can overlap with the compute lane, and that a forecast can leave out: collectives,
 * copies between tiers, updates on the host, the disk. */
enum plan_part { PART_COMM, PART_COPY, PART_UPDATE, PART_DISK, PART_NOTHING };
enum plan_access { ACCESS_READ, ACCESS_WRITE, ACCESS_ADD };
/* TIER_DEVICE: memory of the device. TIER_HOST: host memory that lanes can access. TIER_SHARED:
 * host memory that all members of a shard group can access, at the same offsets. Its persistent
 * buffers exist once for all members, transient ones once per member. TIER_DISK: a file on the
 * node's disk. */
enum plan_tier { TIER_DEVICE, TIER_HOST, TIER_SHARED, TIER_DISK, TIER_COUNT };
/* clang-format off */
enum plan_purpose {
  PURPOSE_PARAMS,      /* this rank's master weights */
  PURPOSE_WINDOW,      /* gathered parameters */
  PURPOSE_WORKING,     /* copy of the parameters in the compute type, next to the masters */
  PURPOSE_STATE,       /* of the optimizer */
  PURPOSE_RESIDUAL,    /* residuals: errors of this rank's messages of gradients */
  PURPOSE_GRADS,       /* this rank's reduced gradients */
  PURPOSE_GRAD_WINDOW, /* whole-unit gradients before they are reduced */
  PURPOSE_STAGING, /* messages of gradients and parameters; scales and codes of fp8; states that are
                      copied from and to the disk; directions of whole matrices */
  PURPOSE_LANDED,  /* gradients on the host that are not reduced or not added yet */
  PURPOSE_ACTIVATIONS, /* kept from forward to backward */
  PURPOSE_STREAM,      /* residual stream and its gradient */
  PURPOSE_WORK, PURPOSE_TOKENS,
  PURPOSE_CACHE, /* keys and values of the tokens generated so far */
  PURPOSE_METRICS, PURPOSE_COUNT
};
/* clang-format on */

enum { PLAN_MAX_WAIT = LANE_COUNT, PLAN_MAX_USE = UPDATE_STATE + PLAN_MAX_STATE };

struct plan_use {
  int buffer; /* -1: absent */
  enum plan_access access;
};
struct plan_wait {
  int instr;
  int back;
}; /* instruction index, 0: of this step, 1: of the step before */

/* The attributes of an instruction that change results or sizes, in addition to its operands. The
 * hash that ranks compare covers them. Verify checks them, the simulator prices them, and the trace
 * reports them. */
struct attributes {
  mesh_set group;     /* whose members take part, or get and send messages; on each lane it has a
                       * communicator of its own. MESH_NONE: none */
  struct codec codec; /* of op_rows[].coded and .codes_params: of the messages; elsewhere ops is
                       * NULL */
  int blocks; /* of op_rows[].coded: number of blocks of the gradient, one after another. The group
                 adds up each block by itself, and the parts that a member gets lie one after
                 another. Elsewhere 0. */
  struct codec residual; /* MAGNITUDE, ENCODE: of the unit's residuals; ops NULL: it has none */
  int64_t sample;  /* ENCODE: steps between measurements of the errors of its messages; 0: never */
  double clip;     /* METRICS: largest norm of the gradient; 0: any */
  double lr_scale; /* UPDATE: factor of the learning rate. Elsewhere 0. */
  double beta;     /* LOSS: plan_input.beta. Elsewhere 0. */
  /* The optimizer of op_rows[].updates. Its settings are those of plan_input.optim. */
  enum optimizer optimizer;
  enum fp8_use fp8; /* op_rows[].fp8: products of the unit that are in fp8 */
  bool stochastic;  /* rounding of masters and states of 16 bits */
  uint64_t seed;    /* of random bits, with the update and the unit; also of coded rows */
};

struct instr {
  enum op op;
  int unit, stage, micro; /* -1: none. stage: number of the model's, which reads the unit */
  enum plan_lane lane;
  struct attributes attr;
  int n_wait;
  struct plan_wait wait[PLAN_MAX_WAIT];
  struct plan_use use[PLAN_MAX_USE];
};

struct plan_buffer {
  char name[32]; /* "params.h.3", "saved.h.3" */
  enum plan_tier tier;
  enum plan_purpose purpose;
  enum dtype dtype; /* DTYPE_U8: private data of a model or the executor */
  int64_t elements;
  int unit; /* -1: none */
  /* In the persistent arena, where it keeps its bytes from step to step. Only the values of
   * masters, frozen shards, pending gradients, PURPOSE_WORKING, PURPOSE_STATE, PURPOSE_RESIDUAL and
   * PURPOSE_CACHE carry over. All others, including gradients and windows gathered around a master,
   * must be written again in each step before they are read or added to. */
  bool persistent;
  int parent; /* -1, or a buffer that this one is a part of, from byte `parent_offset` */
  int64_t parent_offset;
  int64_t bytes;   /* of its elements */
  int64_t offset;  /* in its arena, by plan_place */
  int first, last; /* instructions of its lifetime, by plan_place (persistent: 0, n - 1); plan_build
                      may request a longer one than the uses need */
};

enum plan_mode { PLAN_TRAIN, PLAN_EVAL, PLAN_GENERATE };

struct plan_input {
  enum plan_mode mode;
  int rank, ranks;
  enum deck_strategy strategy;
  struct deck_shape shape; /* PLAN_GENERATE: `sequence` is the most new tokens of a step */
  struct deck_policy
      policy;       /* for all units; only policy.c reads it, other files read plan_unit.policy */
  int64_t capacity; /* PLAN_GENERATE: tokens per sequence in the cache */
  int prefetch;     /* units gathered ahead of their use */
  const struct model *model;          /* packed for `ranks` (model_freeze), or nothing frozen */
  const struct device_model *device;  /* that the plan is for */
  int threads;                        /* of the compute lane, for workspace sizes */
  struct optim_settings optim;        /* equal on all ranks */
  bool weights, positions, documents; /* optional arrays of struct model_batch that the data have;
                                         PLAN_GENERATE: none */
  int sources;                        /* of the data, whose losses are summed apart; 0: one */
  double beta;    /* of PLAN_TRAIN, above 0: the loss is that of pairs (struct preference), whose
                     sequences lie one after the other, and a target is a pair; 0: of tokens */
  double squares; /* for forecasts: deck_rows.squares */
};

/* A unit's flat buffer, packed for all ranks, as four ranks of a shard group own it:
 *
 *   0                                   layout.trained                      layout.flat
 *   | rank 0 | rank 1 | rank 2 | rank 3 | rank 0 | rank 1 | rank 2 | rank 3 |
 *   |<------- trained parameters ------>|<------- frozen parameters ------->|
 *            '-owned-'                           '-------' frozen_owned, of rank 1
 *
 * `master`, `working`, states and gradients of a rank are of `owned`. `frozen` is of
 * `frozen_owned`. A window, `copy` and `shared` are the whole line.
 *
 * Buffers have an index or -1. */
struct plan_unit {
  struct unit_policy policy;
  struct layout_unit layout;
  struct optim_segments segments;
  struct layout_range owned, frozen_owned; /* flat ranges, in elements */
  int master;   /* this rank's part of the trained parameters; -1: the unit is frozen */
  int frozen;   /* this rank's part of the frozen parameters */
  int kept;     /* of frozen parameters in codes that products read: what MEASURE would make of
                   them, see model_fp8_kept_bytes() */
  int residual; /* this rank's residual, a message of policy.residual */
  int working;  /* this rank's part of the copy in the compute type, in the masters' tier or shared
                 */
  int shared; /* the whole unit, with its frozen part, in the shard group's copy (WORKING_SHARED) */
  int pending;   /* of a speculative unit: the gradient that its masters lack */
  int copy;      /* the whole unit in the compute type, to which each rank adds all differences */
  int copy_mine; /* this rank's part of its trained elements */
  int scales;    /* of a unit that is gathered in fp8: see model_fp8_bytes(). A part of the scales
                    that one MERGE makes. */
  int codes; /* of this rank's trained part, from the unit's first GATHER of a step to its last; -1:
              * each GATHER makes them */
  /* Packed as by optim_state_offset(). The size is the largest of any rank of the group, so that
   * all ranks place buffers in the same way. */
  int state[PLAN_MAX_STATE];
};

/* The buffers of struct model_batch; -1: absent. */
struct plan_batch {
  int tokens, targets, weights, positions, first, reference;
};

struct plan {
  struct plan_input input;
  struct mesh mesh; /* plan_mesh() */
  int n, buffers;
  struct instr *instr;
  struct plan_buffer *buffer;
  struct plan_unit *unit; /* [model->units] */
  int64_t persistent_bytes[TIER_COUNT], transient_bytes[TIER_COUNT];
  int fullest[TIER_COUNT]; /* the first instruction at which most transient bytes live */
  int states;
  const struct state_row *state[PLAN_MAX_STATE]; /* of the optimizer; none unless PLAN_TRAIN */
  bool on_host[LANE_COUNT]; /* lanes whose operations work on host memory, if device memory is
                               separate */
  /* Transient, but they keep their bytes during the whole step. They are loaded ahead, and the
   * caller reads them until the next step is released. */
  struct plan_batch *batch;  /* per micro-batch */
  int loss, metrics, logits; /* `loss`: struct exactsum of each source; `metrics`: struct
                                plan_metrics; logits [B, V] fp32; -1 if the mode has none */
  int squares, loss_host;    /* struct exactsum on the host, see METRICS and FETCH_LOSS; -1: none.
                                loss_host: of each source */
};

/* Content of the metrics buffer. The ranks add up `squares` and `of`. */
struct plan_metrics {
  struct outcome outcome;
  struct exactsum scratch; /* of METRICS: plan->squares on its device, then the whole loss */
  struct exactsum squares;
  struct exactsum of[]; /* the losses of plan_sources() sources, of pairs the two sums of
                           model_call.preferred, then the sources' numbers of targets */
};
/* Sources of a plan's data, the sums that LOSS adds to, those that the ranks add up, and bytes of
 * the metrics. Pure. */
static inline int plan_sources(const struct plan_input *input)
{
  return input->sources > 1 ? input->sources : 1;
}
static inline int plan_losses(const struct plan_input *input)
{
  return plan_sources(input) + (input->beta > 0 ? 2 : 0);
}
static inline int plan_sums(const struct plan_input *input)
{
  return 1 + plan_losses(input) + plan_sources(input);
}
static inline int64_t plan_metrics_bytes(const struct plan_input *input)
{
  return (int64_t)(sizeof(struct plan_metrics) +
                   (size_t)(plan_sums(input) - 1) * sizeof(struct exactsum));
}

/* Sums of squares by which ENCODE measures its messages. All but `residual` are of a sample. */
struct plan_sample {
  struct exactsum elements;
  struct exactsum lost; /* elements minus decoded elements */
  struct exactsum decoded;
  struct exactsum residual; /* all elements; zero without feedback */
};
enum { PLAN_SAMPLE = 1 << 16 };
/* Number of measured elements in a message of `n`: whole blocks of its codec. Pure. */
int64_t plan_sampled(int64_t n);
/* Bytes at the end of ENCODE_WORK for that: a copy of the elements, and the sums. Pure. */
int64_t plan_sample_bytes(int64_t n);

/* Persistent buffers are in the order of the plan, parameters first. So the persistent arenas of
 * the plans of one job, with the same strategy and ranks, start in the same way. With
 * policy.each_micro a replicated shard is summed over the micro-batches before it is summed over
 * its replicas, once per step. Otherwise all strategies on the same ranks with the same each_micro
 * do the same sums in the same order (groups of 2^k: see device.h, sum_parts). */

/* A plan with masters in host memory does the same sums in the same order as a plan without, so
 * results are bitwise identical. This holds if micros is 1, or if there are no replicas and
 * shard groups have several ranks. */

/* All steps: build, place, order, verify. Free with plan_destroy. Errors: STATUS_USAGE (a size
 * overflows), STATUS_PLAN. Local, pure: no memory is reserved. */
enum status plan_create(const struct plan_input *input, struct plan **out);
void plan_destroy(struct plan *plan); /* takes NULL */

/* STATUS_USAGE: too many micro-batches for a plan, which plan_build() refuses, too. Pure. */
enum status plan_check_length(const struct plan_input *input);
enum status plan_build(const struct plan_input *input, struct plan **out);
enum status plan_place(struct plan *plan);
enum status plan_order(struct plan *plan);
/* STATUS_PLAN: "FORWARD h.3 (#41, compute) reads params.h.3 while GATHER h.5 (#37, gather) writes
 * params.h.5 over the same bytes: nothing orders them". */
enum status plan_verify(const struct plan *plan);

/* A 64-bit hash of all collectives and updates in order: op, unit, lane, group, bytes, attributes,
 * the optimizer's settings, and the offset of memory that members read from each other. Equal on
 * all ranks of a valid job. */
uint64_t plan_collective_hash(const struct plan *plan);

/* Instruction list, one per line, and the table of bytes per tier by purpose. `plan_print` ends
 * lines with the waits: "<- #12 GATHER h.3". */
void plan_print(const struct plan *plan, FILE *to);
void plan_print_memory(const struct plan *plan, FILE *to);
/* The buffers of that name, and each instruction that uses some of their bytes. STATUS_USAGE: there
 * is no such buffer. */
enum status plan_print_uses(const struct plan *plan, const char *buffer, FILE *to);
/* Bytes of both arenas of a tier. */
int64_t plan_tier_bytes(const struct plan *plan, enum plan_tier tier);
/* Bytes of TIER_SHARED of all members of a shard group together. */
int64_t plan_shared_bytes(const struct plan *plan);
/* Bytes of one purpose, persistent or transient, at the moment when its tier's total is highest. */
int64_t plan_purpose_bytes(const struct plan *plan, enum plan_tier tier, enum plan_purpose purpose,
                           bool persistent);

/* Whether masters, state and reduced gradients of a unit (-1: of any unit) are in host memory. */
bool plan_is_on_host(const struct plan *plan, int unit);
/* Names of the codecs of gradients, each once, in the order of units: "bf16, none". Local. */
void plan_print_codecs(const struct plan *plan, char *out, size_t size);
/* Whether gradients of any unit are encoded. */
bool plan_encodes(const struct plan *plan);
/* Whether any unit has residuals. */
bool plan_keeps_residuals(const struct plan *plan);
/* Whether a unit is gathered as codes of fp8, not in the compute type. */
bool plan_gathers_codes(const struct plan *plan, int unit);
/* Whether a unit's frozen part is made of fp32 elements on the host, before the first step. */
bool plan_keeps_message(const struct plan *plan, int unit);
/* The elements that it is made of. They have all of frozen_owned. */
struct layout_range plan_message_range(const struct plan *plan, int unit);
/* A rank's frozen part of a unit as a message, if policy.frozen is DTYPE_U8: its size in bytes, and
 * the message of x, in which only weights are left. In nf4 it is complete after nf4_complete(), and
 * `kept` gets the magnitudes, one per NF4_BLOCK elements. Or, with plan_unit.kept, its codes and
 * what is kept next to them, in host memory: then, and in nf4, the lane is of a host device. Local.
 */
int64_t plan_message_bytes(const struct plan *plan, int unit);
enum status plan_message_encode(const struct plan *plan, int unit, struct lane *lane, float *x,
                                void *message, void *kept);
/* Numbers in the scales of a unit's whole frozen part, 0: it is not in nf4. Pure. */
int64_t plan_message_scales(const struct plan *plan, int unit);
/* The frozen parameters of a unit in the order of its parameters, into param[layout->params], or
 * nowhere (NULL). Returns their number. Pure. */
int plan_message_params(const struct layout_unit *layout, struct nf4_param *param);
/* x = the frozen part from the messages of all members of its group, one after the other, or with
 * members = 1 from the message of this rank. Enqueued on the lane. Local. */
enum status plan_message_decode(const struct plan *plan, int unit, struct lane *lane, int members,
                                const void *messages, enum dtype type, void *x);
/* The lane that an operation of a unit (-1: none) runs on in this plan. */
enum plan_lane plan_lane_of(const struct plan *plan, enum op op, int unit);
/* Without sharding all data ranks are one shard group, whose members reduce together. Pure. */
struct mesh plan_mesh(const struct plan_input *input);
/* Whether collectives of a shard group run in its nodes first, then between them. Otherwise such a
 * group is in a node, or its collectives have one hop. */
bool plan_spans_nodes(const struct plan *plan);
/* Whether it is an all-gather between nodes, then in each of them. */
bool plan_gathers_by_nodes(const struct plan *plan, const struct instr *instr);
/* Whether its messages have varying lengths. */
bool plan_is_varying(const struct instr *instr);
/* The share of its messages that usually is sent. 1, unless they have varying lengths. */
double plan_sent_share(const struct instr *instr);
/* Ranks that take part in a collective; 1 for other instructions. */
int plan_instr_ranks(const struct plan *plan, const struct instr *instr);
/* Bytes of the whole buffer of a collective, as sent. */
int64_t plan_instr_bytes(const struct plan *plan, const struct instr *instr);

const char *plan_op_name(enum op op);
const char *plan_lane_name(enum plan_lane lane);
/* As in keys of records: "device", "host", "shared", "disk". */
const char *plan_tier_name(enum plan_tier tier);
const char *plan_purpose_name(enum plan_purpose purpose);
/* "FORWARD h.3 m0 (#41, compute)" into out. */
void plan_instr_name(const struct plan *plan, int index, char *out, size_t size);

/* Prediction from measured rates: seconds of a step in the steady state, each lane's busy time, and
 * the exposed communication. The last is the time by which the step would be shorter if collectives
 * took no time. Work with a rate of 0 takes no time. */
struct plan_rates {
  double gemm_flops, memory_bytes;                  /* of the device */
  double forward_flops, backward_flops, loss_flops; /* of the model's passes; 0: gemm_flops */
  double link_bytes, link_latency_s;
  double node_link_bytes;   /* inside each of several nodes; 0: link_bytes */
  double across_link_bytes; /* in the hop between nodes of an all-gather of two hops; 0: an equal
                               part of link_bytes */
  /* Exchanges: bytes that a rank receives, and latency of each of its messages. `exchange`: from
   * other nodes if there are several; 0: across_link_bytes, or an equal part of link_bytes.
   * `node_exchange`: inside each of several nodes; 0: node_link_bytes. `across_exchange`: between
   * the ranks with one index; 0: exchange_bytes. 0 for the latency: that of a ring. */
  double exchange_bytes, node_exchange_bytes, across_exchange_bytes, exchange_latency_s;
  double node_latency_s; /* of a hop inside each of several nodes; 0: link_latency_s */
  double contention;     /* the part of the device that a collective on it takes from the
                            compute lane while it runs; 0: none */
  double spread;         /* of the ranks' speeds of computing: standard deviation by mean */
  double spread_ranks;   /* ranks of which the slowest was measured; 0: a rank of mean speed */
  double h2d_bytes, d2h_bytes; /* copies between tiers, of this rank while all ranks of a node copy,
                                  both ways at once */
  double h2d_alone_bytes, d2h_alone_bytes; /* likewise while no other rank of the node copies; 0: as
                                              fast as with them */
  double host_bytes; /* host memory of this rank, while all ranks of a node use it; read and written
                        bytes count the same */
  double host_link_bytes; /* between ranks on hosts (cpu_reduce) */
  double disk_write_bytes, disk_read_bytes;
  /* Bytes of fp32 elements that a codec encodes, and that it decodes and sums, on the device. 0: as
   * fast as memory_bytes allows to read and write them. Each call takes a latency too, if the rate
   * is known. */
  double encode_bytes[CODECS], decode_bytes[CODECS];
  double encode_latency_s[CODECS], decode_latency_s[CODECS];
  bool clipped;   /* predict one of many steps whose norms are above optim.clip */
  bool step_only; /* predict step_s and busy_s alone, in a fifth of the time */
};
/* exposed: time by which the step would be shorter if one enum plan_part took no time. */
struct plan_forecast {
  double step_s, busy_s[LANE_COUNT], exposed_comm_s, exposed_copy_s, exposed_update_s,
      exposed_disk_s;
};
/* Floating-point operations that the cost of `op` counts in a step of this rank; 0: none. */
double plan_op_flops(const struct plan *plan, enum op op);
enum status plan_simulate(const struct plan *plan, const struct plan_rates *rates,
                          struct plan_forecast *out);
