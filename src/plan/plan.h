/* The plan: a training step as a flat list of instructions over a fixed set of buffers. Built, placed, ordered and verified before the first step; the same
 * structure is read by the memory layout, verify, the simulator, the printer and the executor. Knows nothing of MPI, CUDA or HDF5.
 *
 *   plan_build()   instructions and buffers, in an order that is correct when run one after another
 *   plan_place()   lifetimes -> offsets in one persistent and one transient arena a tier
 *   plan_order()   the fewest waits that make the lanes' concurrency equal to that order
 *   plan_verify()  proof, from nothing but the result: every read follows its write, no bytes are reused in flight, no part of a sum or update is missing
 *
 * A plan is cyclic: after the last instruction of step s comes the first of step s + 1. */
#ifndef SLUICE_PLAN_PLAN_H
#define SLUICE_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "deck/deck.h"
#include "device/device.h"
#include "model/model.h"

/* op            lane     uses, by position (see the enums below; verify holds every plan against this table)
 * LOAD          io       = tokens                                              tokens and targets of a micro-batch
 * GATHER        gather   shard, = params                                       all-gather of a unit, or of one of its parts, over the shard group, in the compute
 *                                                                              type: a shard of another type is cast first, and where it is whole that is all. From
 *                                                                              the working copy, where there is one (shape.keep_working)
 * EMBED         compute  params, tokens, = x
 * FORWARD       compute  params, x_in, = x_out, = work [, = saved]
 * RECOMPUTE     compute  params, x_in, = work, = saved
 * LOSS          compute  params, x, tokens, = or + loss, = work [, = d [, = or + grads]]
 * LOGITS        compute  params, x, = work, = logits
 * DECODE        compute  params, x_in, = x_out, = work, + cache                new tokens behind those in the cache (PLAN_GENERATE)
 * BACKWARD      compute  params, x_in, saved, + d, = work [, = or + grads]     without them where the unit is frozen
 * EMBED_BACKWARD compute tokens, d, = or + grads                             "=" where the head has a unit of its own
 * RELEASE       compute  params                                                the gathered window ends here
 * REDUCE        reduce   + grads, = staging, = or + shard                      reduce-scatter over the shard group
 * SUM_SHARED     reduce  + landed, = or + grads                                the same as REDUCE where the members of the shard group have landed theirs in memory that
 *                                                                              they share: each adds up what it owns where all of them lie (shape.cpu_reduce, one_node)
 * REPLICA_REDUCE reduce  + shard, = staging, = piece                           reduce-scatter of the shard over the replicas
 * GATHER_GRADS  reduce   piece, = shard                                        all-gather of gradients (over replicas, or over the shard group without sharding)
 * SQUARES       reduce   piece, = or + metrics                                 this rank's part of the squared global norm
 * METRICS       reduce   + loss, = or + metrics [, squares]                    exact sums over all ranks; clip factor; finite or not
 * ADAM          host     metrics, grads, + master, + m, + v [, = working]
 * Where what a block keeps waits in another tier for its backward pass (shape.activations), wherever the masters are. x: its input, or saved, its activations
 * SAVE_ACT      d2h      x, = act                                              to host memory
 * WRITE_ACT     disk     act, = slot
 * READ_ACT      disk     slot, = act
 * FETCH_ACT     h2d      act, = x
 * With masters in host memory (shape.host_state):
 * FETCH         h2d      source, = params                                      parameters to the device: a unit's window, this rank's part of it at its place, or its
 *                                                                              frozen shard; from the working copy, or from the master where it is computed with
 * PUBLISH       gather   working_part, = working                               what the members of the shard group have written into the copy that they share is
 *                                                                              there for all of them (shape.params_full)
 * FETCH_GRAD    d2h      grads, = landed                                       a gradient to the host: the reduced shard, or the whole unit (shape.cpu_reduce)
 * ACCUMULATE    host     landed, + grads
 * FETCH_LOSS    d2h      loss, = loss_host                                     with cpu_reduce: what METRICS reads and sums, there
 * READ_STATE    disk     m_slot, v_slot, = m, = v
 * WRITE_STATE   disk     m, v, = m_slot, = v_slot
 * ADAM_NOW      host     grads, + master, + m, + v [, = working]               without the metrics (shape.immediate)
 * In brackets: where the mode or the unit has it. Reads are bare, "=" writes a new value, "+" changes the value that is there. What follows from the access, for
 * whoever executes it:
 *   - loss and metrics with "=" are zeroed first: the first LOSS and the first SQUARES of a step, and METRICS where nothing was squared (PLAN_EVAL).
 *   - what the host writes or reads (tokens, logits) lies in TIER_HOST where the device's memory is not the host's. With host_state so do masters, moments and reduced gradients; with
 *     cpu_reduce also metrics. Operations of the lanes that plan->on_host names work on the host's memory, everybody else's on the device's (and copies on both).
 *   - where gradients of several micro-batches add up on the host and metrics lie on the device, SQUARES are made by the host lane and sum into a buffer of their own (plan->squares), which
 *     METRICS adds to what is in metrics.
 *   - of the first shape.resident units all is done as without host_state, but that ADAM and ADAM_NOW are on the reduce lane, which works on the device, that gradients are reduced after each
 *     micro-batch into staging of their own, and that no working copy is kept.
 *   - REPLICA_REDUCE and GATHER_GRADS: with host_state and without cpu_reduce in each micro-batch, on the device, before FETCH_GRAD.
 *   - GATHER of a shard that lies at its place in the window gathers in place, without a cast: a FETCH has brought it in the compute type, or it is the master.
 *     The working copy needs no cast either.
 *   - grads with "=": the model writes every parameter and the gaps between them (accumulate = false); the elements behind the last one, layout[unit].used to
 *     trained, are zeroed by the executor, so that sums and norms see zeros there.
 *   - shard of REDUCE with "+" accumulates over micro-batches. It may be a part of grads (a view at its place): then it is "=".
 *   - shard of GATHER and piece of GATHER_GRADS may be parts of what is gathered, at their place. Whole and part tell the group's size.
 *   - TIER_SHARED's transient arena, of landed gradients, is not one for all: each member of the group has a region of its own, with the same offsets, which the others read during
 *     SUM_SHARED alone: that waits for all of them first and last.
 * Groups: GATHER, REDUCE and SUM_SHARED the shard group, REPLICA_REDUCE the replicas, GATHER_GRADS the replicas or, with STRATEGY_NO_SHARD, the shard group; METRICS the
 * world. Frozen parameters: a unit's window is its trained part and its frozen part, each gathered by a GATHER of its own from a shard of its own (where parameters
 * stay in place, the frozen part is there all the time and never gathered); gradients, moments, REDUCE, SQUARES and ADAM are of trained parts only, and a unit
 * without one has none of them; nor is there a BACKWARD of a block below which, it included, nothing is trained. micro is -1 where an instruction stands for the
 * whole step. RELEASE does nothing by itself; parameters that stay in place (ZeRO-1) are released too, because from the update on they are old. */
enum op {
  OP_LOAD, OP_GATHER, OP_EMBED, OP_FORWARD, OP_RECOMPUTE, OP_LOSS, OP_LOGITS, OP_DECODE, OP_BACKWARD, OP_EMBED_BACKWARD, OP_RELEASE, OP_REDUCE, OP_REPLICA_REDUCE,
  OP_GATHER_GRADS, OP_SQUARES, OP_METRICS, OP_ADAM, OP_FETCH, OP_PUBLISH, OP_SAVE_ACT, OP_WRITE_ACT, OP_READ_ACT, OP_FETCH_ACT, OP_FETCH_GRAD, OP_ACCUMULATE,
  OP_READ_STATE, OP_WRITE_STATE, OP_ADAM_NOW, OP_FETCH_LOSS, OP_SUM_SHARED, OP_COUNT
};
enum plan_lane { LANE_COMPUTE, LANE_GATHER, LANE_REDUCE, LANE_HOST, LANE_IO, LANE_H2D, LANE_D2H, LANE_DISK, LANE_COUNT };
/* What can run beside the compute lane, and be imagined to take no time: collectives, copies between tiers, updates on the host, the disk. */
enum plan_part { PART_COMM, PART_COPY, PART_UPDATE, PART_DISK, PART_NOTHING };
enum plan_access { ACCESS_READ, ACCESS_WRITE, ACCESS_ADD };
/* Memory of the device; of the host, which lanes reach; of the host, which all members of a shard group reach, at the same offsets: what is persistent is one copy for all of them, what is
 * transient each has for itself; a file on the node's disk. */
enum plan_tier { TIER_DEVICE, TIER_HOST, TIER_SHARED, TIER_DISK, TIER_COUNT };
enum plan_purpose {
  PURPOSE_PARAMS,      /* this rank's master weights */
  PURPOSE_WINDOW,      /* gathered parameters */
  PURPOSE_WORKING,     /* copy of the parameters in the compute type, beside the masters */
  PURPOSE_MOMENTS,
  PURPOSE_GRADS,       /* this rank's reduced gradients */
  PURPOSE_GRAD_WINDOW, /* whole-unit gradients before they are reduced */
  PURPOSE_STAGING,     /* receive side of the reduce; moments on their way from and to the disk */
  PURPOSE_LANDED,      /* gradients on the host that are not reduced or not added yet */
  PURPOSE_ACTIVATIONS, /* kept from forward to backward */
  PURPOSE_STREAM,      /* residual stream and its gradient */
  PURPOSE_WORK,
  PURPOSE_TOKENS,
  PURPOSE_CACHE,       /* keys and values of the tokens generated so far */
  PURPOSE_METRICS,
  PURPOSE_COUNT
};

enum { PLAN_MAX_WAIT = LANE_COUNT, PLAN_MAX_USE = 8 };

struct plan_use { int buffer; enum plan_access access; };
struct plan_wait { int instr; int back; }; /* instruction index, 0: of this step, 1: of the step before */

struct instr {
  enum op op;
  int unit, micro;     /* -1: none */
  enum plan_lane lane;
  enum dtype wire;     /* of REDUCE, REPLICA_REDUCE, SUM_SHARED: type in which gradients are sent */
  int n_wait, n_use;
  struct plan_wait wait[PLAN_MAX_WAIT];
  struct plan_use use[PLAN_MAX_USE];
};

struct plan_buffer {
  char name[32];       /* "params.h.3", "saved.h.3" */
  enum plan_tier tier;
  enum plan_purpose purpose;
  int unit;            /* -1: none */
  /* Lives in the persistent arena, where its bytes are its own from step to step. Of the values only those of masters, frozen shards,
   * PURPOSE_WORKING, PURPOSE_MOMENTS and PURPOSE_CACHE carry over; everything else, gradients and what is gathered around a master included, has to be written anew in each
   * step before it is read or added to. */
  bool persistent;
  int parent;          /* -1, or a buffer that this one is a part of, from byte `parent_offset` */
  int64_t parent_offset;
  int64_t bytes;
  int64_t offset;      /* in its arena, by plan_place */
  int first, last;     /* instructions of its lifetime, by plan_place (persistent: 0, n - 1); plan_build may ask for a longer one than the uses need */
};

enum plan_mode { PLAN_TRAIN, PLAN_EVAL, PLAN_GENERATE };

struct plan_input {
  enum plan_mode mode;
  int rank, ranks;
  enum deck_strategy strategy;
  struct deck_shape shape;    /* PLAN_GENERATE: `sequence` is the most new tokens of a step */
  int64_t capacity;           /* PLAN_GENERATE: tokens a sequence in the cache */
  int prefetch;               /* units gathered ahead of their use */
  const struct model *model;  /* packed for `ranks` (model_freeze), or nothing frozen */
  const struct device_model *device; /* that the plan is for */
  int threads;                /* of the compute lane, for workspace sizes */
};

struct plan {
  struct plan_input input;             /* as given; without sharding, shape is one group of all ranks */
  int64_t tight_saves;                 /* bytes of workspace less of a backward pass that shape.tight lets; 0: it changes nothing */
  int n, buffers;
  struct instr *instr;
  struct plan_buffer *buffer;
  int64_t persistent_bytes[TIER_COUNT], transient_bytes[TIER_COUNT];
  /* Buffers by meaning, index or -1; arrays of model->units. */
  int *master, *moment1, *moment2;     /* what the optimizer owns on this rank; moments -1 unless PLAN_TRAIN; all -1 where the unit is frozen */
  int *working;                        /* this rank's part of the copy in the compute type, in the masters' tier or shared; -1: none (or frozen) */
  bool on_host[LANE_COUNT];            /* lanes whose operations work on the host's memory, where the device's is apart */
  struct layout_range *owned;          /* flat range (elements) of those */
  int *frozen;                         /* this rank's frozen parameters, -1: none */
  struct layout_range *frozen_owned;   /* flat range of those, inside [layout.trained, layout.flat) */
  struct layout_unit *layout;          /* each unit packed for `ranks` */
  /* Transient, but with their bytes to themselves all step long: loaded ahead, and read by the caller until the next step is released. */
  int *tokens;                         /* per micro-batch: int32 tokens [B, T], then targets [B, T] */
  int loss, metrics, logits;           /* `loss`: struct exactsum; `metrics`: struct plan_metrics; logits [B, V] fp32; -1 where the mode has none */
  int squares, loss_host;              /* struct exactsum on the host, see METRICS and FETCH_LOSS; -1: none */
  int *shared;                         /* the whole unit in the copy that the shard group shares (shape.params_full), its frozen part included; -1: none */
};

/* Content of the metrics buffer. */
struct plan_metrics { struct exactsum squares, loss; struct outcome outcome; struct exactsum landed; }; /* landed: plan->squares on the device, where METRICS adds them */

/* Persistent buffers lie in the order of the plan, parameters first: the persistent arenas of plans of one job, same strategy and ranks, start alike.
 * With reduce_every_micro a replicated shard is summed over the micro-batches before it meets its replicas, once a step; in all else strategies on the
 * same ranks with the same reduce_every_micro do the same sums in the same order (groups of 2^k: see device.h, sum_parts). */

/* With host_state a plan does in the same order what one without does, where shape.replicas is 1 or micros is 1, and shape.group is over 1 or micros is 1: the same bits. */

/* All steps: build, place, order, verify. Free with plan_destroy. Errors: STATUS_USAGE (a size overflows), STATUS_PLAN. Local, pure: no memory is reserved. */
enum status plan_create(const struct plan_input *input, struct plan **out);
void plan_destroy(struct plan *plan); /* takes NULL */

enum status plan_build(const struct plan_input *input, struct plan **out);
enum status plan_place(struct plan *plan);
enum status plan_order(struct plan *plan);
/* STATUS_PLAN: "FORWARD h.3 (#41, compute) reads params.h.3 while GATHER h.5 (#37, gather) writes params.h.5 over the same bytes: nothing orders them". */
enum status plan_verify(const struct plan *plan);

/* A 64-bit hash of all collectives in order: op, unit, group, bytes, type on the wire, lane, and
 * the offset of memory that members read from each other. Equal on all ranks of a sound job. */
uint64_t plan_collective_hash(const struct plan *plan);

/* Instruction list, one a line; and the table of bytes per tier by purpose. `plan_print` ends lines with the waits: "<- #12 GATHER h.3". */
void plan_print(const struct plan *plan, FILE *to);
void plan_print_memory(const struct plan *plan, FILE *to);
/* Of both arenas of a tier. */
int64_t plan_tier_bytes(const struct plan *plan, enum plan_tier tier);
/* Bytes of TIER_SHARED that the members of a shard group have together. */
int64_t plan_shared_bytes(const struct plan *plan);
/* Bytes of one purpose at the moment when its tier's total is highest, and whether persistent or not. */
int64_t plan_purpose_bytes(const struct plan *plan, enum plan_tier tier, enum plan_purpose purpose, bool persistent);

/* Whether masters, moments and reduced gradients of a unit (-1: of units) are in host memory. */
bool plan_is_on_host(const struct plan *plan, int unit);
/* PART_NOTHING: none of the others. */
enum plan_part plan_op_part(enum op op);
/* The lane that an operation of a unit (-1: none) runs on in this plan. */
enum plan_lane plan_lane_of(const struct plan *plan, enum op op, int unit);
/* Ranks that take part in a collective; 1 for other instructions. */
int plan_instr_ranks(const struct plan *plan, const struct instr *instr);
/* Whether an operation sums gradients over ranks. They are sent as instr->wire. */
bool plan_op_sums(enum op op);
/* Bytes of the whole buffer of a collective, in the type in which it is sent. */
int64_t plan_instr_bytes(const struct plan *plan, const struct instr *instr);

const char *plan_op_name(enum op op);
const char *plan_lane_name(enum plan_lane lane);
const char *plan_purpose_name(enum plan_purpose purpose);
/* "FORWARD h.3 m0 (#41, compute)" into out. */
void plan_instr_name(const struct plan *plan, int index, char *out, size_t size);

/* Predicted seconds of a step in the steady state, each lane's busy time and the exposed communication (how much shorter the step would be if collectives took
 * no time), from measured rates; a rate of 0 costs nothing. */
struct plan_rates {
  double gemm_flops, memory_bytes; /* of the device */
  double link_bytes, link_latency_s;
  double h2d_bytes, d2h_bytes;     /* copies between tiers, of this rank while all ranks of a node copy, both ways at once */
  double h2d_alone_bytes, d2h_alone_bytes; /* likewise while no other rank of the node copies; 0: as fast as with them */
  double host_bytes;               /* memory of the host, of this rank while all ranks of a node use it, read and written bytes counted alike */
  double host_link_bytes;          /* between ranks on hosts (cpu_reduce) */
  double disk_write_bytes, disk_read_bytes;
};
/* exposed: how much shorter the step would be if enum plan_part's took no time, each by itself. */
struct plan_forecast { double step_s, busy_s[LANE_COUNT], exposed_comm_s, exposed_copy_s, exposed_update_s, exposed_disk_s; };
enum status plan_simulate(const struct plan *plan, const struct plan_rates *rates, struct plan_forecast *out);

#endif
