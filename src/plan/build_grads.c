/* Gradients and what is made of them: where backward passes write them, their way to the rank that owns them, the norm, the metrics and the update. */
#include "plan/builder.h"

/* One for all: the reduce lane uses it for one collective after the other. Its bytes are its own from where the first of them may start. */
static void add_staging(struct builder *b)
{
  int64_t most = 0;
  for (int u = 0; u < b->model->units; u++)
    if (b->plan->layout[u].trained > most)
      most = b->plan->layout[u].trained;
  b->staging = build_transient(b, "staging", -1, TIER_DEVICE, PURPOSE_STAGING, DTYPE_F32, most);
  b->plan->buffer[b->staging].first = b->plan->n;
}

/* Of resident units, which are few, each has one of its own: the embedding's is larger than what there is room for behind the first block's backward pass. */
static int staging_of(struct builder *b, int u, int64_t elements)
{
  if (!b->host)
    return b->staging;
  const int staging = build_transient(b, "staging", u, TIER_DEVICE, PURPOSE_STAGING, DTYPE_F32, elements);
  b->plan->buffer[staging].first = b->unit[u].since;
  return staging;
}

bool build_grads_whole(const struct builder *b, int u)
{
  return !plan_is_on_host(b->plan, u) && (b->group == 1 || (b->plan->input.strategy == STRATEGY_NO_SHARD && !b->reduce_micros));
}

void build_use_gradient(struct builder *b, struct instr *instr, int k, int u, int m)
{
  struct unit_buffers *unit = &b->unit[u];
  const bool whole = build_grads_whole(b, u), fresh = m == 0 || (b->reduce_micros && !whole);
  if (unit->grads < 0)
    return;
  if (fresh)
    unit->dparams = whole ? unit->grads
                          : build_transient(b, "dparams", u, TIER_DEVICE, PURPOSE_GRAD_WINDOW, DTYPE_F32,
                                            b->plan->layout[u].trained);
  build_sum(instr, k, unit->dparams, !fresh);
}

void build_norm(struct builder *b, int u)
{
  const struct plan *plan = b->plan;
  const bool host = plan->squares >= 0 && plan_is_on_host(plan, u);
  bool *begun = host ? &b->host_squares : &b->squares;
  struct instr *squares = build_emit(b, OP_SQUARES, u, -1);
  build_use(squares, SQUARES_GRADS, b->unit[u].piece);
  build_sum(squares, SQUARES_SUM, host ? plan->squares : plan->metrics, *begun);
  *begun = true;
}

/* Over the replicas, or without sharding over the group that has reduced together. */
static void emit_gather_grads(struct builder *b, int u, int part, int whole)
{
  struct instr *gather = build_emit(b, OP_GATHER_GRADS, u, -1);
  build_use(gather, GATHER_GRADS_PIECE, part);
  build_use(gather, GATHER_GRADS_WHOLE, whole);
  if (b->replicas == 1)
    gather->attr.group = GROUP_REDUCE;
}

/* Flat shards cut matrices. The ranks gather what they have of the unit's direction, and each makes
 * whole matrices of those that its range meets. */
static void emit_direction(struct builder *b, int u)
{
  const struct plan *plan = b->plan;
  const int64_t mine = build_length(plan->owned[u]), trained = plan->layout[u].trained;
  struct unit_buffers *unit = &b->unit[u];
  if (plan->master[u] < 0 || !optim_has_matrices(&plan->segments[u]))
    return;
  unit->direction = build_transient(b, "direction", u, TIER_DEVICE, PURPOSE_STAGING, b->element, trained);
  const int piece = mine < trained ? build_view(b, "direction_mine", unit->direction, b->shard_index * mine, mine)
                                   : unit->direction;
  struct instr *direction = build_emit(b, OP_DIRECTION, u, -1);
  build_use(direction, DIRECTION_METRICS, plan->metrics);
  build_use(direction, DIRECTION_GRADS, unit->grads);
  build_use(direction, DIRECTION_OUT, piece);
  build_use(direction, DIRECTION_STATE, plan->state[0].buffer[u]);
  if (piece == unit->direction)
    return;
  struct instr *gather = build_emit(b, OP_GATHER_DIRECTION, u, -1);
  build_use(gather, GATHER_DIRECTION_PIECE, piece);
  build_use(gather, GATHER_DIRECTION_WHOLE, unit->direction);
}

/* Room for any matrix of the unit. */
static int transform_work(struct builder *b, int u)
{
  const struct plan *plan = b->plan;
  const struct layout_range all = {0, plan->layout[u].trained};
  const size_t bytes = optim_transform_workspace(&plan->segments[u], plan->input.device, all);
  return build_bytes(b, "work", u, TIER_DEVICE, PURPOSE_WORK, (int64_t)bytes);
}

void build_update(struct builder *b, int u)
{
  const int work = optim_has_matrices(&b->plan->segments[u]) ? transform_work(b, u) : -1;
  const struct plan *plan = b->plan;
  struct instr *update = build_emit(b, OP_UPDATE, u, -1);
  if (!plan->policy[u].immediate)
    build_use(update, UPDATE_METRICS, plan->metrics);
  build_use(update, UPDATE_GRADS, b->unit[u].grads);
  build_use(update, UPDATE_MASTER, plan->master[u]);
  if (plan->working[u] >= 0)
    build_use(update, UPDATE_WORKING, plan->working[u]);
  if (work >= 0) {
    build_use(update, UPDATE_DIRECTION, b->unit[u].direction);
    build_use(update, UPDATE_WORK, work);
  }
  for (int s = 0; s < plan->states; s++)
    if (plan->state[s].buffer[u] >= 0 && plan->state[s].row->of != STATE_OF_MATRICES)
      build_use(update, UPDATE_STATE + s, plan->policy[u].disk ? b->unit[u].state[s] : plan->state[s].buffer[u]);
}

static void emit_update(struct builder *b, int u)
{
  if (b->plan->master[u] >= 0)
    build_update(b, u);
}

/* From the whole gradient of a micro-batch (or of the step) to what UPDATE reads, and the update where it waits for no other unit. */
static void emit_reduce(struct builder *b, int u, int m)
{
  const struct unit_buffers *unit = &b->unit[u];
  if (plan_is_on_host(b->plan, u)) {
    build_host_reduce(b, u, m);
    return;
  }
  if (b->group > 1) {
    const int staging = staging_of(b, u, b->plan->layout[u].trained);
    struct instr *reduce = build_emit(b, OP_REDUCE, u, b->reduce_micros ? m : -1);
    build_use(reduce, REDUCE_FULL, unit->dparams);
    build_use(reduce, REDUCE_STAGING, staging);
    build_sum(reduce, REDUCE_SHARD, unit->shard, b->reduce_micros && m > 0);
  }
  if (m < b->micros - 1)
    return;
  if (b->replicas > 1) {
    const int staging = staging_of(b, u, build_shard(b, u));
    struct instr *reduce = build_emit(b, OP_REPLICA_REDUCE, u, -1);
    build_use(reduce, REDUCE_FULL, unit->shard);
    build_use(reduce, REDUCE_STAGING, staging);
    build_use(reduce, REDUCE_SHARD, unit->piece);
  }
  build_norm(b, u);
  if (b->replicas > 1)
    emit_gather_grads(b, u, unit->piece, unit->shard);
  if (unit->shard != unit->grads)
    emit_gather_grads(b, u, unit->shard, unit->grads);
  if (b->plan->policy[u].immediate)
    emit_update(b, u);
}

void build_add_pending(struct builder *b, int u, int m)
{
  if (b->unit[u].grads < 0)
    return;
  if (plan_is_on_host(b->plan, u))
    build_host_pending(b, u, m);
  else if (b->host)
    b->unit[u].since = b->plan->n;
  else if (b->staging < 0 && b->plan->input.ranks > 1)
    add_staging(b);
  struct plan_buffer *grads = &b->plan->buffer[b->unit[u].grads];
  if (grads->first > b->plan->n) /* from where the reduce may start, beside the next backward pass */
    grads->first = b->plan->n;
  b->pending[b->n_pending++] = u;
}

void build_reduce_pending(struct builder *b, int m)
{
  for (int i = 0; i < b->n_pending; i++)
    emit_reduce(b, b->pending[i], m);
  b->n_pending = 0;
}

/* Immediate ones stand where their gradients are complete. */
static bool waits_on_device(const struct builder *b, int u)
{
  return u >= 0 && u < b->model->units && !plan_is_on_host(b->plan, u) && !b->plan->policy[u].immediate;
}

/* The root first: its parameters are the first to be used, and so gathered, in the next step. The
 * direction of the next unit travels meanwhile. */
void build_updates(struct builder *b)
{
  for (int u = 0; u <= b->model->units; u++) {
    if (waits_on_device(b, u))
      emit_direction(b, u);
    if (waits_on_device(b, u - 1))
      emit_update(b, u - 1);
  }
  if (b->host)
    build_host_updates(b);
}

void build_metrics(struct builder *b)
{
  const struct plan *plan = b->plan;
  if (plan->loss_host >= 0)
    build_move(b, OP_FETCH_LOSS, -1, -1, plan->loss, plan->loss_host);
  struct instr *metrics = build_emit(b, OP_METRICS, -1, -1);
  build_use(metrics, METRICS_LOSS, plan->loss_host >= 0 ? plan->loss_host : plan->loss);
  build_sum(metrics, METRICS_OUT, plan->metrics, b->squares);
  if (plan->squares >= 0)
    build_use(metrics, METRICS_SQUARES, plan->squares);
}
