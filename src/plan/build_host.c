/* Masters, moments and reduced gradients are in host memory, and the device has only windows of
 * parameters. Inputs of blocks that wait for their backward pass are on the host or on NVMe.
 *
 * The walk is build.c's. This file adds the transfers. The h2d lane copies a unit to the device
 * before its visits. The d2h lane copies its gradient to the host after its backward pass. The
 * update of a unit, on the host lane, writes the copy that the next step fetches. Deferred updates
 * come after the metrics, in the order in which the next forward pass needs them, so each one is
 * done just before its unit is fetched. Immediate and speculative updates come when their gradient
 * is complete. Repairs of speculative units come in the order of deferred updates. */
#include <stdio.h>

#include "base/dtype.h"
#include "plan/builder.h"

/* ---- storage ---- */

void build_shared_copy(struct builder *b, int u)
{
  struct plan_unit *own = &b->plan->unit[u];
  own->shared =
      build_persistent(b, "working", u, TIER_SHARED, PURPOSE_WORKING, b->element, own->layout.flat);
  b->unit[u].shared = build_part(b, "working_trained", u, own->shared, false);
  if (own->master >= 0)
    own->working = build_mine(b, "working_mine", b->unit[u].shared, build_length(own->owned));
}

void build_host_grads(struct builder *b, int u)
{
  struct unit_buffers *unit = &b->unit[u];
  const int64_t mine = build_length(b->plan->unit[u].owned);
  if (b->plan->unit[u].policy.timing == TIMING_SPECULATIVE) {
    unit->grads = build_persistent(b, "grads", u, TIER_HOST, PURPOSE_GRADS, DTYPE_F32, mine);
    b->plan->unit[u].pending =
        build_persistent(b, "pending", u, TIER_HOST, PURPOSE_GRADS, DTYPE_F32, mine);
  } else {
    unit->grads = build_transient(b, "grads", u, TIER_HOST, PURPOSE_GRADS, DTYPE_F32, mine);
  }
  unit->shard = unit->grads;
  if (b->plan->unit[u].policy.sums != SUMS_DEVICE ||
      b->micros > 1) /* else it is squared before it leaves the device */
    unit->piece = build_piece(b, u, unit->grads);
}

/* ---- windows ---- */

/* One part of a unit, trained or frozen, and the place that this rank's elements are fetched to. */
struct fetched {
  int part, place;
};

/* From this rank's `source` (-1: there is no such part) to its place in the part. Data that are
 * encoded, or not in the type of the window, are put outside the part. */
static struct fetched fetch_part(struct builder *b, const struct window *window, int micro,
                                 bool frozen, int source)
{
  struct plan *plan = b->plan;
  if (source < 0)
    return (struct fetched){-1, -1};
  const int u = window->unit, part = build_part(b, frozen ? "frozen_window" : "trained_window", u,
                                                window->buffer, frozen);
  const int64_t elements = plan->buffer[source].elements;
  const enum dtype type = plan->buffer[source].dtype;
  int place = part;
  if (type != plan->unit[u].policy.window || build_encodes(b, u, source))
    place = build_transient(b, "uncast", u, TIER_DEVICE, PURPOSE_WINDOW, type, elements);
  else if (b->group > 1)
    place = build_mine(b, "mine", part, elements);
  BUILD(b, OP_FETCH, u, micro, source, place);
  return (struct fetched){part, place};
}

void build_host_window(struct builder *b, const struct window *window, int micro)
{
  const int u = window->unit;
  const struct plan_unit *own = &b->plan->unit[u];
  const bool codes = plan_gathers_codes(b->plan, u);
  if (own->shared >= 0) {
    BUILD(b, OP_FETCH, u, micro, own->shared, window->buffer);
    return;
  }
  const struct fetched trained =
      fetch_part(b, window, micro, false, own->working >= 0 ? own->working : own->master);
  if (!codes)
    build_gather(b, u, micro, trained.place, trained.part);
  const struct fetched frozen = fetch_part(b, window, micro, true, own->frozen);
  if (codes) { /* scales are of both parts */
    build_scales(b, u, trained.place, frozen.place);
    build_gather(b, u, micro, trained.place, trained.part);
  }
  build_gather(b, u, micro, frozen.place, frozen.part);
}

/* ---- gradients ---- */

/* On the device it lives from the moment when its unit's reduce may start, during the next backward
 * pass. On the host, which has more memory, two units live at the same time, so that one is copied
 * while the other is updated. */
static int land(struct builder *b, const char *name, int u, enum plan_tier tier,
                enum plan_purpose purpose, enum dtype dtype, int64_t elements)
{
  const int buffer = build_transient(b, name, u, tier, purpose, dtype, elements);
  b->plan->buffer[buffer].first =
      tier == TIER_DEVICE ? b->unit[u].reduce_from : b->unit[u].host_room_from;
  return buffer;
}

/* The reduction has no staging buffer. */
static void reduce_scatter(struct builder *b, struct reduction r)
{
  const struct plan_buffer whole = b->plan->buffer[r.whole];
  r.staging = land(b, "staging", r.unit, whole.tier, PURPOSE_STAGING, DTYPE_U8,
                   build_staging_bytes(b, r.group, r.unit, whole.elements));
  build_reduce(b, r);
}

/* Members read each other's messages, or gradients, in memory that they share. */
static void sum_shared(struct builder *b, int u, int micro, int landed, bool adds)
{
  int sent = landed;
  if (!build_sends_gradients(b, MESH_SHARD, u)) {
    sent = land(b, "messages", u, TIER_SHARED, PURPOSE_STAGING, DTYPE_U8,
                build_message_bytes(b, MESH_SHARD, u, b->plan->unit[u].layout.trained));
    build_encode(b, &(struct reduction){MESH_SHARD, u, micro, landed, sent}, sent, -1);
  }
  build_sum(BUILD(b, OP_SUM_SHARED, u, micro, sent), SUM_SHARED_SHARD, b->unit[u].grads, adds);
}

/* The gradient of an untied head is copied from before the first backward pass on, which does not
 * wait for the copy. */
static void leave(struct builder *b, int u, int gradient)
{
  if (u > 0 && u == b->model->head)
    b->head_gradient = gradient;
}

/* The whole gradient goes to the host. The ranks reduce it as their devices would, or, on one node,
 * in shared memory. */
static void reduce_on_host(struct builder *b, int u, int m)
{
  const struct unit_buffers *unit = &b->unit[u];
  const bool shares = b->plan->unit[u].policy.sums == SUMS_SHARED;
  const bool sends = build_sends_gradients(b, MESH_SHARD, u);
  const enum plan_tier tier = shares && sends ? TIER_SHARED : TIER_HOST;
  const int micro = b->plan->unit[u].policy.each_micro ? m : -1,
            landed = land(b, "landed", u, tier, PURPOSE_LANDED, DTYPE_F32,
                          b->plan->unit[u].layout.trained);
  BUILD(b, OP_FETCH_GRAD, u, micro, unit->dparams, landed);
  leave(b, u, unit->dparams);
  if (shares)
    sum_shared(b, u, micro, landed, m > 0);
  else
    reduce_scatter(
        b, (struct reduction){MESH_SHARD, u, micro, landed, .part = unit->grads, .adds = m > 0});
  if (m < b->micros - 1)
    return;
  if (b->replicas > 1)
    reduce_scatter(b, (struct reduction){MESH_REPLICA, u, -1, unit->grads, .part = unit->piece});
  build_norm(b, u);
  if (b->replicas > 1)
    BUILD(b, OP_GATHER_GRADS, u, -1, unit->piece, unit->grads);
}

/* The devices reduce, and each one's part of the sum goes to the host. */
static void reduce_on_device(struct builder *b, int u, int m)
{
  struct unit_buffers *unit = &b->unit[u];
  const int micro = b->plan->unit[u].policy.each_micro ? m : -1;
  int shard = unit->dparams;
  if (b->group > 1) {
    shard = land(b, "shard", u, TIER_DEVICE, PURPOSE_GRADS, DTYPE_F32, build_shard(b, u));
    reduce_scatter(b, (struct reduction){MESH_SHARD, u, micro, unit->dparams, .part = shard});
  }
  const int piece = build_piece(b, u, shard);
  if (b->replicas > 1)
    reduce_scatter(b, (struct reduction){MESH_REPLICA, u, micro, shard, .part = piece});
  if (b->micros == 1) {
    unit->piece = piece;
    build_norm(b, u);
  }
  if (b->replicas > 1)
    BUILD(b, OP_GATHER_GRADS, u, micro, piece, shard);
  const int landed =
      m > 0 ? land(b, "landed", u, TIER_HOST, PURPOSE_LANDED, DTYPE_F32, build_shard(b, u))
            : unit->grads;
  BUILD(b, OP_FETCH_GRAD, u, micro, shard, landed);
  leave(b, u, shard);
  if (m > 0)
    BUILD(b, OP_ACCUMULATE, u, micro, landed, unit->grads);
  if (b->micros > 1 && m == b->micros - 1)
    build_norm(b, u);
}

/* ---- updates ---- */

/* From the disk to copies in host memory, or back. */
static void move_state(struct builder *b, enum op op, int u)
{
  const struct plan_unit *own = &b->plan->unit[u];
  const bool reads = op == OP_READ_STATE;
  if (own->master < 0 || !own->policy.disk)
    return;
  struct instr *move = build_emit(b, op, u, -1);
  for (int s = 0; s < b->plan->states; s++) {
    const int stored = own->state[s];
    int *here = &b->unit[u].state[s];
    char name[32];
    if (stored < 0)
      continue;
    snprintf(name, sizeof name, "%s_here", b->plan->state[s]->name);
    if (reads)
      *here = build_transient(b, name, u, TIER_HOST, PURPOSE_STAGING, b->plan->buffer[stored].dtype,
                              b->plan->buffer[stored].elements);
    build_use(move, STATE_FROM + s, reads ? stored : *here);
    build_use(move, STATE_TO + s, reads ? *here : stored);
  }
}

/* The working copy of a speculative unit is right from here on. */
static void repair(struct builder *b, int u)
{
  const struct plan *plan = b->plan;
  const struct plan_unit *own = &plan->unit[u];
  struct instr *repair =
      BUILD(b, OP_REPAIR, u, -1, plan->metrics, b->unit[u].grads, own->master, own->working);
  for (int s = 0; s < plan->states; s++)
    build_use(repair, REPAIR_STATE + s, own->state[s]);
}

static void publish(struct builder *b, int u)
{
  const struct plan *plan = b->plan;
  if (plan->unit[u].shared >= 0)
    BUILD(b, OP_PUBLISH, u, -1, plan->unit[u].working, b->unit[u].shared);
}

static void update(struct builder *b, int u)
{
  build_update(b, u);
  move_state(b, OP_WRITE_STATE, u);
  if (b->plan->unit[u].policy.timing != TIMING_SPECULATIVE)
    publish(b, u);
}

/* Reduced gradients have memory of their own, apart from those of the two units before, which the
 * host lane may still use. An update seldom ends exactly when the next gradient comes. If a
 * gradient had to wait for memory, the d2h lane would wait too, and then the reduce and the compute
 * lane. */
void build_host_pending(struct builder *b, int u, int m)
{
  struct plan_buffer *grads = &b->plan->buffer[b->unit[u].grads];
  b->unit[u].reduce_from = b->plan->n;
  b->unit[u].host_room_from = b->end_of_visit[0];
  if (grads->first > b->end_of_visit[1])
    grads->first = b->end_of_visit[1];
  if (m == b->micros - 1 && !b->plan->unit[u].policy.waits)
    move_state(b, OP_READ_STATE, u);
}

void build_host_reduce(struct builder *b, int u, int m)
{
  if (b->plan->unit[u].policy.sums != SUMS_DEVICE)
    reduce_on_host(b, u, m);
  else
    reduce_on_device(b, u, m);
  if (m == b->micros - 1 && !b->plan->unit[u].policy.waits)
    update(b, u);
}

void build_host_updates(struct builder *b)
{
  const struct plan *plan = b->plan;
  for (int u = 0; u < b->model->units; u++) {
    for (; b->next_state < b->model->units && b->next_state - u <= plan->input.prefetch + 1;
         b->next_state++)
      if (plan->unit[b->next_state].policy.waits)
        move_state(b, OP_READ_STATE, b->next_state);
    if (plan->unit[u].master < 0 || !plan_is_on_host(plan, u))
      continue;
    if (plan->unit[u].policy.waits) {
      update(b, u);
    } else if (plan->unit[u].policy.timing == TIMING_SPECULATIVE) {
      repair(b, u);
      publish(b, u);
    }
  }
}
