/* Shared by the files of the builder. build_input.c checks the request. build.c walks through the
 * step. build_grads.c handles gradients, build_host.c masters in host memory, build_acts.c
 * activations that wait in another tier, build_params.c codecs of parameters, and build_residual.c
 * residuals of messages. Private to src/plan. */
#ifndef SLUICE_PLAN_BUILDER_H
#define SLUICE_PLAN_BUILDER_H

#include "plan/internal.h"
#include "plan/ops.h"

/* A use of a unit's parameters. */
struct visit {
  enum op op;
  int unit, micro, window;
};
struct window {
  int unit, buffer;
  int first, last; /* visits */
};

struct sizes {
  int64_t tokens, x, saved, work_forward, work_forward_saved, work_backward, work_backward_tight,
      work_loss, logits, work_decode, cache;
};

/* Buffers of a unit, -1: none. */
struct unit_buffers {
  int params;  /* whole, persistent; -1: gathered into a window */
  int trained; /* of `params`, what is gathered around the master; -1: nothing */
  int shared;  /* the whole unit in the compute type, in the copy that the group shares */
  int grads;   /* what UPDATE reads */
  int shard;   /* what this rank gets of the sum over its group */
  int piece;   /* what no other rank has */
  int dparams; /* what the backward pass writes: `grads`, or a window on its way there */
  int sent[GROUP_COUNT], received[GROUP_COUNT]; /* messages in a staging buffer, by group */
  int since; /* the instruction from which on the gradient of the micro-batch at hand may be reduced
              */
  int landing;   /* and that from which on there is room for it on the host */
  int direction; /* of the update, of an optimizer of whole matrices */
  int x, saved;  /* of the micro-batch at hand: output and activations */
  int act;  /* of the micro-batch at hand, the block's input or activations in host memory; on NVMe,
               once it has been written */
  int x_in; /* of the micro-batch at hand, the block's input for its backward pass */
  int cache;                   /* keys and values of generation */
  int state[RULE_STATES];      /* copies of state on NVMe, in host memory, for the update at hand */
  int residual, residual_host; /* copies of a residual in another tier, for the ENCODE at hand */
  int residual_until; /* the visit until which `residual` is on its way back; -1: it is not */
};

struct builder {
  struct plan *plan;
  const struct model *model;
  int micros, group, replicas, shard_index, replica_index;
  bool shards;  /* parameters and what belongs to them */
  bool gathers; /* parameters into windows: where they are sharded, in host memory, or computed with
                   in another type than the masters' */
  enum dtype element; /* the type in which parameters are gathered and computed with */
  bool reduce_micros; /* each micro-batch by itself */
  bool host;   /* masters, moments and reduced gradients are in host memory, but for some units
                  (plan_is_on_host) */
  bool embeds; /* the embedding has a gradient */
  int lowest;  /* block at which the backward pass ends; one past the last block: there is none */
  struct sizes size;
  struct unit_buffers *unit;
  struct visit *visit;
  struct window *window;
  int visits, windows, next_window;
  int next_read, next_fetch; /* visits up to which activations have been asked back from NVMe, and
                                from host memory */
  int *pending, n_pending;   /* units whose gradients are ready to be reduced */
  int *d, staging;           /* d: of each micro-batch */
  int work;                  /* of codecs, next to `staging`; -1: none */
  int leaving; /* a gradient on its way to the host before the first backward pass, during which it
                  keeps its place; -1: none */
  int before, earlier; /* instructions before those gradients that became ready a visit ago were
                          reduced; two visits ago */
  int next_state;      /* units whose moments are on their way from NVMe */
  int now;             /* the visit at hand */
  bool squares, host_squares; /* some are summed already, into the metrics or into plan->squares */
  int64_t instr_room, buffer_room;
  enum status status; /* of the first instruction or buffer for which there was no memory: the walk
                         goes on, and what it adds from there on goes nowhere */
  struct instr nowhere;
};

/* ---- builder.c: sizes, buffers and instructions; the arrays of these grow, so that a pointer into
 * one is good until the next is added ---- */

/* Before anything is added: an index of a buffer is one from then on, whatever fails.
 * STATUS_MEMORY. */
enum status build_begin(struct builder *b);

/* Elements. */
int64_t build_length(struct layout_range range);
int64_t build_shard(const struct builder *b, int u); /* of the gradient, per rank of its group */

/* The scope of masters, their optimizer state, and frozen parameters. */
enum plan_scope build_scope(const struct builder *b);

int build_persistent(struct builder *b, const char *name, int unit, enum plan_tier tier,
                     enum plan_purpose purpose, enum dtype dtype, int64_t elements);
/* `elements` of `parent` from its element `from` on. */
int build_view(struct builder *b, const char *name, int parent, int64_t from, int64_t elements);
/* The `elements` of `whole` at this rank's place among its group. */
int build_mine(struct builder *b, const char *name, int whole, int64_t elements);
/* The trained or the frozen part of a buffer of a whole unit: itself where there is no other, -1
 * where there is no such part. */
int build_part(struct builder *b, const char *name, int u, int whole, bool frozen);
/* Belongs to unit `of` by name only, unless the values are those of its parameters. */
int build_transient(struct builder *b, const char *name, int of, enum plan_tier tier,
                    enum plan_purpose purpose, enum dtype dtype, int64_t elements);
/* Values that a block computes with, of `bytes` bytes in the compute type. */
int build_stream(struct builder *b, const char *name, int of, enum plan_tier tier,
                 enum plan_purpose purpose, int64_t bytes);
/* A buffer whose contents only the model can read. */
int build_bytes(struct builder *b, const char *name, int of, enum plan_tier tier,
                enum plan_purpose purpose, int64_t bytes);
/* Holds its bytes all step long: what is loaded ahead of its step or read from outside after it. */
int build_outside(struct builder *b, const char *name, enum plan_tier tier,
                  enum plan_purpose purpose, enum dtype dtype, int64_t elements);
/* After all instructions so far, without operands, with the attributes of its row. */
struct instr *build_emit(struct builder *b, enum op op, int unit, int micro);
/* Operand k is `buffer`, with the access that the operation has there. */
void build_use(struct instr *instr, int k, int buffer);
/* The same for an operand that may begin a sum or go on with it. */
void build_sum(struct instr *instr, int k, int buffer, bool adds);
/* An operation that reads one buffer, its first operand, and writes another, its second. */
struct instr *build_move(struct builder *b, enum op op, int unit, int micro, int from, int to);

/* All-gather of a part of a unit, or a cast where this rank has all of it. */
void build_gather(struct builder *b, int unit, int micro, int shard, int whole);

/* ---- build_input.c ---- */

enum status build_check_input(
    const struct plan_input *input); /* STATUS_USAGE, STATUS_UNSUPPORTED */
enum status build_measure(const struct plan_input *input,
                          struct sizes *size); /* STATUS_USAGE: one is too large for 64 bits */

/* ---- build_grads.c ---- */

/* The gradient that the backward pass of micro-batch m writes for unit u, if any. The first one of
 * a sum writes, later ones add. */
void build_use_gradient(struct builder *b, struct instr *instr, int k, int u, int m);
/* Whether backward passes write what UPDATE reads, all of it. */
bool build_grads_whole(const struct builder *b, int u);
/* The gradient of a unit is complete, for micro-batch m or the step; and those that are go from the
 * whole gradient to what UPDATE reads. */
void build_add_pending(struct builder *b, int u, int m);
void build_reduce_pending(struct builder *b, int m);
/* Whether the unit's gradients travel between members of `group` as they are. */
bool build_sends_gradients(const struct builder *b, enum plan_group group, int u);
/* Elements of the unit's gradient that this rank encodes, 0: none. */
int64_t build_encoded(const struct builder *b, int u);
/* Bytes of the messages by which members of `group` get the sum of their `elements` elements. */
int64_t build_message_bytes(const struct builder *b, enum plan_group group, int u,
                            int64_t elements);
/* Bytes of a staging buffer for build_reduce(): messages to be sent, unless gradients are, and
 * received ones. */
int64_t build_staging_bytes(const struct builder *b, enum plan_group group, int u,
                            int64_t elements);
/* `whole` as messages into another buffer. `staging` lies where the codec works, and when. largest:
 * the largest magnitude, -1: the codec needs none. */
void build_encode(struct builder *b, enum plan_group group, int u, int micro, int whole,
                  int messages, int staging, int largest);
/* part = or += this rank's part of the sum of `whole` over `group`. */
void build_reduce(struct builder *b, enum plan_group group, int u, int micro, int whole,
                  int staging, int part, bool adds);
void build_norm(struct builder *b, int u);
void build_metrics(struct builder *b);
/* The update of a unit; in a plan of immediate ones without the metrics. */
void build_update(struct builder *b, int u);
void build_updates(struct builder *b);

/* ---- build_host.c ---- */

void build_host_params(struct builder *b, int u);
void build_host_grads(struct builder *b, int u);
/* FETCH, and GATHER where each rank has brought its part. */
void build_host_window(struct builder *b, struct window *window, int micro);
/* The gradient of a unit by micro-batch m is ready; and its way to what UPDATE reads, its square
 * and, where that is immediate, the update. */
void build_host_pending(struct builder *b, int u, int m);
void build_host_reduce(struct builder *b, int u, int m);
void build_host_updates(struct builder *b);

/* ---- build_params.c ---- */

/* Whether the unit's parameters travel as messages of a codec. */
bool build_encodes_params(const struct builder *b, int u);
/* With differences: the copy of the whole unit, which takes the place of its windows. */
void build_copy(struct builder *b, int u);
/* One part of a unit, trained or frozen: this rank's `source`, in fp32 on the device, as messages
 * to its place in the window, or to the copy. */
void build_coded_gather(struct builder *b, int u, int micro, int source, int whole);

/* ---- build_acts.c ---- */

bool build_recomputes(const struct builder *b,
                      int u); /* what the block keeps is computed again, from its input */
/* Before visit v: saves its block's input to the tier that keeps it. After visit v: saves all that
 * its block keeps. */
void build_save_input(struct builder *b, int v);
void build_save_activations(struct builder *b, int v);
/* Before visit v: fetches the data that later visits will need. */
void build_fetch_acts(struct builder *b, int v);

/* ---- build_residual.c ---- */

/* After visit v: residuals of gradients that will be complete soon come to the device. */
void build_fetch_residuals(struct builder *b, int v);
/* The buffer that ENCODE changes, -1: none; and its way back. */
int build_residual_here(const struct builder *b, int u);
void build_save_residual(struct builder *b, int u, int micro);

#endif
