/* Shared by the files of the builder. build_input.c checks the request. build.c walks through the
 * step. build_grads.c handles gradients, and build_host.c masters in host memory. build_acts.c
 * handles activations in another tier. build_params.c handles codecs of parameters, and
 * build_residual.c residuals of messages. Private to src/plan. */
#pragma once

#include "plan/internal.h"
#include "plan/ops.h"

/* A use of a unit's parameters by a stage. */
struct visit {
  enum op op;
  int stage, unit, micro, window;
};
struct window {
  int unit, buffer;
  int first, last; /* visits */
};

struct sizes {
  int64_t x, work_forward, work_forward_saved, work_backward, work_loss, logits, work_decode;
};

/* Buffers of a unit, -1: none. */
struct unit_buffers {
  int params;  /* whole, persistent; -1: gathered into a window */
  int trained; /* part of `params` that is gathered around the master; -1: none */
  int shared;  /* the whole unit in the compute type, in the copy that the group shares */
  int grads;   /* gradient that UPDATE reads */
  int shard;   /* this rank's part of the sum over its group */
  int piece;   /* part that no other rank has */
  int dparams; /* written by the backward pass: `grads`, or a whole gradient before its reduction */
  int sent[MESH_AXES], received[MESH_AXES]; /* messages in a staging buffer, by the slowest axis of
                                               their group */
  int reduce_from;        /* first instruction that may reduce the current micro-batch's gradient */
  int host_room_from;     /* first instruction at which the host has room for it */
  int direction;          /* of the update, of an optimizer of whole matrices */
  int state[RULE_STATES]; /* copies, in host memory, of state on NVMe, for the current update */
  int residual, residual_host; /* copies of a residual in another tier, for the current ENCODE */
  bool scaled;                 /* SCALE has been added */
  int residual_until;          /* the visit until which `residual` is copied back; -1: none */
};

/* Buffers of a stage. All but the cache are those of the current micro-batch. */
struct stage_buffers {
  int x, saved; /* output and activations */
  int act;      /* its input or activations in host memory, or on NVMe after they were written */
  int x_in;     /* its input for its backward pass */
  int part;     /* its part of its unit's dparams; 0: none yet */
  int cache;    /* keys and values of generation */
  int64_t saved_bytes, cache_bytes;
};

struct builder {
  struct plan *plan;
  const struct model *model;
  int micros, group, replicas, shard_index, replica_index;
  bool shards;        /* parameters and their state are sharded */
  enum dtype element; /* the type in which parameters are gathered and computed with */
  bool host;   /* masters, moments and reduced gradients are in host memory, except for some units
                  (plan_is_on_host) */
  bool embeds; /* the embedding has a gradient */
  int lowest;  /* stage at which the backward pass ends; that of the head: no backward pass */
  struct sizes size;
  struct unit_buffers *unit;
  struct stage_buffers *stage;
  struct visit *visit;
  struct window *window;
  int visits, windows, next_window;
  int next_read, next_fetch; /* visits up to which activations have been requested from NVMe, and
                                from host memory */
  int *pending, n_pending;   /* units whose gradients are ready to be reduced */
  int *d, staging;           /* d: of each micro-batch */
  int merged_late;           /* units of MERGEs so far that the step before updates late */
  int work;                  /* of codecs, next to `staging`; -1: none */
  int messages;              /* of encoded parameters, for all blocks; -1: none yet */
  int head_gradient;   /* copied to the host from before the first backward pass on, and keeps its
                          memory during that pass; -1: none */
  int end_of_visit[2]; /* number of instructions up to the end of the visit before this one, and of
                          the one before that, without their reductions */
  int next_state;      /* units whose moments have been requested from NVMe */
  int visit_now;
  bool squares, host_squares; /* a sum has been begun, in the metrics or in plan->squares */
  int64_t instr_room, buffer_room;
  enum status status; /* of the first instruction or buffer for which there was no memory; the walk
                         continues, and its further additions are dropped */
  struct instr scrap; /* takes what is written after a failure */
};

/* ---- builder.c: sizes, buffers and instructions. Their arrays grow, so a pointer into one is
 * valid until the next is added ---- */

/* Call it before anything is added. Afterwards every function returns a valid index of a buffer,
 * even after a failure. STATUS_MEMORY. */
enum status build_begin(struct builder *b);

/* Elements. */
int64_t build_length(struct layout_range range);
int64_t build_shard(const struct builder *b, int u); /* of the gradient, per rank of its group */

int build_persistent(struct builder *b, const char *name, int unit, enum plan_tier tier,
                     enum plan_purpose purpose, enum dtype dtype, int64_t elements);
/* `elements` of `parent` from its element `from` on. It belongs to unit `of` by name only. */
int build_view(struct builder *b, const char *name, int of, int parent, int64_t from,
               int64_t elements);
/* The `elements` of `whole` at this rank's place among its group. */
int build_mine(struct builder *b, const char *name, int whole, int64_t elements);
/* The part of a shard that no replica has. */
int build_piece(struct builder *b, int u, int shard);
/* The trained or the frozen part of a buffer of a whole unit: the buffer itself if there is no
 * other part, -1 if there is no such part. */
int build_part(struct builder *b, const char *name, int u, int whole, bool frozen);
/* It belongs to unit `of` by name only, unless its values are those of the unit's parameters. */
int build_transient(struct builder *b, const char *name, int of, enum plan_tier tier,
                    enum plan_purpose purpose, enum dtype dtype, int64_t elements);
/* Values that a block computes with, of `bytes` bytes in the compute type. */
int build_stream(struct builder *b, const char *name, int of, enum plan_tier tier,
                 enum plan_purpose purpose, int64_t bytes);
/* A buffer whose contents only the model can read. */
int build_bytes(struct builder *b, const char *name, int of, enum plan_tier tier,
                enum plan_purpose purpose, int64_t bytes);
/* Names a buffer after a stage. The buffer. */
int build_name(struct builder *b, int buffer, const char *name, int stage);
/* Keeps its bytes during the whole step, because it is loaded before its step or read from outside
 * after it. */
int build_outside(struct builder *b, const char *name, enum plan_tier tier,
                  enum plan_purpose purpose, enum dtype dtype, int64_t elements);
/* Appends an instruction without operands, with the attributes of its row. It is of stage `of` if
 * its row is of stages, and of unit `of` otherwise; -1: none. */
struct instr *build_emit(struct builder *b, enum op op, int of, int micro);
/* With operands 0 to n - 1, -1: absent. BUILD() evaluates them in any order. */
struct instr *build_instr(struct builder *b, enum op op, int of, int micro, int n,
                          const int *buffers);
#define BUILD(b, op, of, micro, ...)                                                               \
  build_instr(b, op, of, micro, sizeof(int[]){__VA_ARGS__} / sizeof(int),                          \
              (const int[]){__VA_ARGS__})
/* Operand k is `buffer`, with the access that the operation has there. */
void build_use(struct instr *instr, int k, int buffer);
/* The same for an operand that may begin or continue a sum. */
void build_sum(struct instr *instr, int k, int buffer, bool adds);

/* All-gather of a part of a unit, also by a codec, or a cast if this rank has all of it. Nothing if
 * the part is at its place, or if there is no such part. */
void build_gather(struct builder *b, int unit, int micro, int shard, int whole);
/* Before the first GATHER of a step: the scales of a unit that is gathered in fp8, from this rank's
 * shards (-1: none). The buffer that the trained part is gathered from. */
int build_scales(struct builder *b, int unit, int trained, int frozen);

/* ---- build_input.c ---- */

enum status build_check_input(
    const struct plan_input *input); /* STATUS_USAGE, STATUS_UNSUPPORTED */
/* b->size, and the bytes of b->stage. STATUS_USAGE: one is too large for 64 bits. */
enum status build_measure(struct builder *b);

/* ---- build_grads.c ---- */

/* The gradient that the backward pass of the instruction's stage writes, if any: operand k is its
 * part of the gradient of its unit. The first one of a sum writes, later ones add. A tied embedding
 * adds to what the head wrote. */
void build_use_gradient(struct builder *b, struct instr *instr, int k);
/* Whether backward passes write the whole gradient that UPDATE reads. */
bool build_grads_whole(const struct builder *b, int u);
/* Whether the gradient of a stage's unit is complete after the backward pass of the stage. */
bool build_completes(const struct builder *b, int stage);
/* The first function records that the gradient of a unit is complete, for micro-batch m or the
 * step. The second one reduces the recorded ones. */
void build_add_pending(struct builder *b, int u, int m);
void build_reduce_pending(struct builder *b, int m);
/* Whether members of `group` send the unit's gradients without a codec. */
bool build_sends_gradients(const struct builder *b, mesh_set group, int u);
/* Elements of the unit's gradient that this rank encodes, 0: none. */
int64_t build_encoded(const struct builder *b, int u);
/* Bytes of the messages by which members of `group` get the sum of their `elements` elements. */
int64_t build_message_bytes(const struct builder *b, mesh_set group, int u, int64_t elements);
/* Bytes of a staging buffer for build_reduce(): messages to send, unless gradients are sent as they
 * are, and received ones. */
int64_t build_staging_bytes(const struct builder *b, mesh_set group, int u, int64_t elements);
/* The sum of `whole` over the group, of which this rank gets a part: part = or += it. The scratch
 * memory of the codec is next to `staging`. */
struct reduction {
  mesh_set group;
  int unit, micro, whole, staging, part;
  bool adds;
};
/* Encodes `whole` as messages into another buffer. largest: the largest magnitude, -1: the codec
 * needs none. */
void build_encode(struct builder *b, const struct reduction *r, int messages, int largest);
void build_reduce(struct builder *b, struct reduction r);
void build_norm(struct builder *b, int u);
void build_metrics(struct builder *b);
/* The update of a unit. If updates are immediate, it does not use the metrics. */
void build_update(struct builder *b, int u);
void build_updates(struct builder *b);

/* ---- build_host.c ---- */

/* The copy of the parameters that the shard group shares, and this rank's part of it. */
void build_shared_copy(struct builder *b, int u);
void build_host_grads(struct builder *b, int u);
/* FETCH, and GATHER if each rank fetches its part only. */
void build_host_window(struct builder *b, const struct window *window, int micro);
/* The first function records that the gradient of a unit for micro-batch m is ready. The second one
 * moves it to the gradient that UPDATE reads, and adds the square and an immediate update. */
void build_host_pending(struct builder *b, int u, int m);
void build_host_reduce(struct builder *b, int u, int m);
void build_host_updates(struct builder *b);

/* ---- build_params.c ---- */

/* Whether the unit's parameters are sent as messages of a codec. */
bool build_encodes_params(const struct builder *b, int u);
/* Whether this shard of the unit is encoded for that. Only fp32 shards are. */
bool build_encodes(const struct builder *b, int u, int shard);
/* With differences: the copy of the whole unit, which replaces its windows. */
void build_copy(struct builder *b, int u);
/* Gathers one part of a unit, trained or frozen, as messages. `source` is this rank's part on the
 * device, in fp32 or as a message. `whole` is the part's place in the window, or in the copy. */
void build_coded_gather(struct builder *b, int u, int micro, int source, int whole);

/* ---- build_acts.c ---- */

/* Whether a stage's activations are computed again from its input. */
bool build_recomputes(const struct builder *b, int stage);
/* Before visit v: saves its stage's input to the tier that keeps it. After visit v: saves its
 * stage's activations. */
void build_save_act(struct builder *b, int v, bool input);
/* Before visit v: fetches the data that later visits will need. */
void build_fetch_acts(struct builder *b, int v);

/* ---- build_residual.c ---- */

/* After visit v: residuals of gradients that will be complete soon come to the device. */
void build_fetch_residuals(struct builder *b, int v);
/* The buffer that ENCODE changes, -1: none; and its way back. */
int build_residual_here(const struct builder *b, int u);
void build_save_residual(struct builder *b, int u, int micro);
