/* The builder: the only place that knows strategies. It writes a step in an order that is correct
 * when run one instruction after another. A gather stands some visits before its use, and a reduce
 * some after its backward pass. These distances decide how much the lanes can overlap, and the
 * number of windows.
 *
 * Compute goes through `visits`, the uses of parameters in order. Per micro-batch these are the
 * model's stages: the embedding, those of the blocks forward, the head (loss), and those of the
 * blocks backward, down to the lowest one whose gradient is needed. While visit v computes, the
 * windows of visits v .. v + prefetch are held, no others: prefetch + 1 at most. So a unit that is
 * visited again within prefetch + 1 visits keeps its window, which costs no window and saves a
 * gather. An example is the last block from forward over the loss to backward. A unit that is
 * gathered once per step keeps its window from its first to its last visit. */
#include "base/mem.h"
#include "plan/builder.h"

/* ---- the request ---- */

static void place_lanes(struct plan *plan)
{
  plan->on_host[LANE_DISK] = true;
  for (int u = 0; u < plan->input.model->units; u++) {
    const struct unit_policy *policy = &plan->unit[u].policy;
    plan->on_host[LANE_HOST] |= policy->host;
    plan->on_host[LANE_REDUCE] |= policy->sums != SUMS_DEVICE;
    plan->on_host[LANE_GATHER] |= policy->working == WORKING_SHARED;
  }
}

static void list_states(struct builder *b)
{
  struct plan *plan = b->plan;
  const struct optim_ops *ops = optim_ops(plan->input.optim.name);
  plan->states = plan->input.mode == PLAN_TRAIN ? ops->n_states : 0;
  for (int s = 0; s < plan->states; s++)
    plan->state[s] = &ops->state[s];
}

static void choose(struct builder *b)
{
  const struct plan_input *input = &b->plan->input;
  const struct mesh *mesh = &b->plan->mesh;
  for (int u = 0; u < input->model->units; u++)
    b->plan->unit[u].policy = unit_policy_make(input, u);
  place_lanes(b->plan);
  b->host = b->plan->on_host[LANE_HOST];
  b->micros = (int)input->shape.micros;
  b->group = mesh_ranks(mesh, MESH_SHARD);
  b->replicas = mesh_ranks(mesh, MESH_REPLICA);
  b->shard_index = mesh_index(mesh, MESH_SHARD, input->rank);
  b->replica_index = mesh_index(mesh, MESH_REPLICA, input->rank);
  b->shards = b->group > 1 && input->strategy != STRATEGY_NO_SHARD;
  b->element = b->plan->unit[0].policy.compute; /* of all units */
  list_states(b);
}

/* ---- the part of a rank ---- */

/* Whether the frozen part is cast on its way into a window. */
static bool casts_frozen(const struct builder *b, int u)
{
  const struct plan_unit *own = &b->plan->unit[u];
  return own->layout.flat > own->layout.trained && own->policy.frozen != b->element;
}

/* Whether parameters go into windows: if they are sharded, in host memory, or of another type than
 * the compute type. */
static bool gathers(const struct builder *b, int u)
{
  return b->shards || b->host || b->element != DTYPE_F32 || casts_frozen(b, u);
}

/* Without shards, a frozen part of the window's type can be kept in its window. Then the window
 * stays from step to step, which pays only if at least half of it is frozen. Scales are made for
 * windows that something is gathered to. */
static bool keeps_frozen(const struct builder *b, int u)
{
  const struct plan_unit *own = &b->plan->unit[u];
  const bool codes = plan_gathers_codes(b->plan, u);
  return b->element != DTYPE_F32 && own->policy.frozen == own->policy.window && !b->shards &&
         !own->policy.host && own->layout.flat >= 2 * own->layout.trained &&
         (!codes || own->layout.trained > 0);
}

/* ZeRO-1 keeps whole parameters from step to step, around the master. If the compute type is
 * another one, or a codec is used, they are gathered again like any window. */
static bool stays_in_place(const struct builder *b, int u)
{
  return b->plan->input.strategy == STRATEGY_SHARD_OPTIM && b->element == DTYPE_F32 &&
         !b->plan->unit[u].policy.apart && !casts_frozen(b, u);
}

/* Whole parameters from step to step, or a copy of them. */
static bool keeps_units(const struct builder *b, int u)
{
  return stays_in_place(b, u) || keeps_frozen(b, u) ||
         (build_encodes_params(b, u) && b->plan->unit[u].policy.difference);
}

static enum status pack_unit(struct builder *b, int u)
{
  const struct layout_unit *unit = &b->model->unit[u].layout;
  struct plan *plan = b->plan;
  struct layout_unit *layout = &plan->unit[u].layout;
  int64_t bytes;
  enum status status = layout_unit_pack(unit->params, unit->elements, unit->room, unit->frozen,
                                        plan->input.ranks, layout);
  status = status ?: layout_mul(layout->flat, sizeof(float), &bytes);
  if (status)
    return status;
  if (layout->trained < layout->flat && b->model->ranks != plan->input.ranks)
    return status_set(STATUS_INTERNAL,
                      "%s has frozen parameters and was packed for %d ranks, the plan is for %d",
                      b->model->unit[u].name, b->model->ranks, plan->input.ranks);
  const int group = b->shards ? b->group : 1, index = b->shard_index % group;
  plan->unit[u].owned = layout_shard(layout, false, group, index);
  plan->unit[u].frozen_owned =
      stays_in_place(b, u) ? layout_part(layout, true) : layout_shard(layout, true, group, index);
  return optim_segments_create(optim_ops(plan->input.optim.name), b->model, u,
                               plan->input.optim.exempt_kinds, &plan->unit[u].segments);
}

/* In unit 0 the backward pass of the embedding writes the gradients of the embeddings; the other
 * gradients are the head's. */
static bool trains_embedding(const struct builder *b)
{
  const struct model_unit *unit = &b->model->unit[0];
  bool trains = false;
  for (int p = 0; p < unit->params; p++)
    trains |=
        !unit->layout.frozen[p] && (b->model->head > 0 || unit->param[p].kind == PARAM_EMBEDDING);
  return trains;
}

/* Vectors that messages of the unit's gradient stand for: one per rank, and one per replica. */
static enum status check_codec(const struct builder *b, int u)
{
  const struct codec *codec = &b->plan->unit[u].policy.grads;
  const char *name = b->model->unit[u].name;
  const int64_t part = b->plan->unit[u].layout.trained / b->group;
  enum status status = STATUS_OK;
  if (b->group > 1)
    status = codec_check(codec, part, name);
  if (!status && b->replicas > 1)
    status = codec_check(codec, part / b->replicas, name);
  return status;
}

static enum status pack_units(struct builder *b)
{
  int64_t trained = 0;
  for (int u = 0; u < b->model->units; u++) {
    enum status status = pack_unit(b, u);
    if (!status && b->plan->input.mode == PLAN_TRAIN)
      status = check_codec(b, u);
    if (status)
      return status;
    trained |= b->plan->unit[u].layout.trained;
  }
  if (trained == 0 && b->plan->input.mode == PLAN_TRAIN)
    return status_usage("train.freeze: all parameters are frozen, nothing is left to train");
  b->embeds = trains_embedding(b);
  const struct model_stage *stage = b->model->stage;
  for (b->lowest = 1; !b->embeds && stage[b->lowest].kind == STAGE_BLOCK &&
                      b->plan->unit[stage[b->lowest].unit].layout.trained == 0;)
    b->lowest++;
  return STATUS_OK;
}

/* ---- visits and windows ---- */

/* ZeRO-1 has the frozen parameters in place, and so a whole frozen unit. The same holds for a
 * copy. */
static bool has_window(const struct builder *b, int u)
{
  return gathers(b, u) && (!keeps_units(b, u) || b->plan->unit[u].layout.trained > 0);
}

/* A window for visit v, or the one that the unit still has. */
static int window_of_visit(struct builder *b, int *last_window, int v)
{
  const struct plan_input *input = &b->plan->input;
  int unit = b->visit[v].unit, w = last_window[unit];
  if (w < 0 ||
      (!b->plan->unit[unit].policy.gather_once && v - b->window[w].last - 1 > input->prefetch)) {
    w = last_window[unit] = b->windows++;
    b->window[w] = (struct window){.unit = unit, .first = v, .buffer = -1};
  }
  b->window[w].last = v;
  return w;
}

static void add_visit(struct builder *b, enum op op, int stage, int micro)
{
  b->visit[b->visits++] = (struct visit){op, stage, b->model->stage[stage].unit, micro, -1};
}

static void list_visits(struct builder *b, int *last_window)
{
  static const enum op evaluates[] = {[STAGE_EMBED] = OP_EMBED, OP_FORWARD, OP_LOSS},
                       generates[] = {[STAGE_EMBED] = OP_EMBED, OP_DECODE, OP_LOGITS};
  const enum plan_mode mode = b->plan->input.mode;
  const struct model *model = b->model;
  for (int m = 0; m < b->micros; m++) {
    for (int s = 0; s < model->stages; s++)
      add_visit(b, (mode == PLAN_GENERATE ? generates : evaluates)[model->stage[s].kind], s, m);
    for (int s = model->stages - 2; s >= b->lowest && mode == PLAN_TRAIN; s--)
      add_visit(b, OP_BACKWARD, s, m);
  }
  for (int u = 0; u < b->model->units; u++)
    last_window[u] = -1;
  for (int v = 0; v < b->visits; v++)
    if (has_window(b, b->visit[v].unit))
      b->visit[v].window = window_of_visit(b, last_window, v);
}

/* ---- storage ---- */

static enum plan_tier tier_of_host(const struct builder *b)
{
  return b->plan->input.device->host_memory ? TIER_DEVICE : TIER_HOST;
}

/* This rank's parts, if the whole unit is gathered. */
static void add_parts(struct builder *b, int u, enum plan_tier tier)
{
  struct plan_unit *own = &b->plan->unit[u];
  const int64_t mine = build_length(own->owned), frozen = build_length(own->frozen_owned);
  if (mine > 0)
    own->master = build_persistent(b, "master", u, tier, PURPOSE_PARAMS, DTYPE_F32, mine);
  if (keeps_frozen(b, u)) {
    b->unit[u].params = build_persistent(b, "params", u, tier, PURPOSE_PARAMS, own->policy.window,
                                         own->layout.flat);
    b->unit[u].trained = build_part(b, "trained_window", u, b->unit[u].params, false);
    own->frozen = build_part(b, "frozen", u, b->unit[u].params, true);
  } else if (frozen > 0)
    own->frozen =
        build_persistent(b, "frozen", u, tier, PURPOSE_PARAMS, own->policy.frozen,
                         own->policy.frozen == DTYPE_U8 ? plan_message_bytes(b->plan, u) : frozen);
  if (own->policy.frozen == DTYPE_F8_E4M3)
    own->kept = build_persistent(b, "kept", u, TIER_DEVICE, PURPOSE_PARAMS, DTYPE_U8,
                                 model_fp8_kept_bytes(b->model, u));
  if (own->policy.working == WORKING_SHARED)
    build_shared_copy(b, u);
  else if (mine > 0 && own->policy.working == WORKING_OWN)
    own->working = build_persistent(b, "working", u, tier, PURPOSE_WORKING, b->element, mine);
}

static void add_params(struct builder *b, int u)
{
  struct unit_buffers *unit = &b->unit[u];
  struct plan_unit *own = &b->plan->unit[u];
  const int64_t mine = build_length(own->owned);
  const bool host = plan_is_on_host(b->plan, u);
  if (host || (gathers(b, u) && !stays_in_place(b, u))) {
    add_parts(b, u, host ? TIER_HOST : TIER_DEVICE);
    return;
  }
  unit->params =
      build_persistent(b, "params", u, TIER_DEVICE, PURPOSE_PARAMS, b->element, own->layout.flat);
  if (!gathers(b, u)) {
    own->master = build_part(b, "master", u, unit->params, false);
  } else if (mine > 0) {
    unit->trained = build_part(b, "trained_window", u, unit->params, false);
    own->master = build_mine(b, "master", unit->trained, mine);
  }
  own->frozen = build_part(b, "frozen", u, unit->params, true);
}

static bool learns(const struct builder *b, int u)
{
  return b->plan->input.mode == PLAN_TRAIN && b->plan->unit[u].layout.trained > 0;
}

static int64_t state_elements(const struct builder *b, int s, int u)
{
  const struct plan *plan = b->plan;
  const int64_t mine = build_length(plan->unit[u].owned);
  int64_t most = 0;
  for (int64_t at = 0; mine > 0 && at < plan->unit[u].layout.trained; at += mine) {
    const struct layout_range range = {at, at + mine};
    const int64_t n = optim_state_elements(&plan->unit[u].segments, s, range);
    most = n > most ? n : most;
  }
  return most;
}

static int add_state(struct builder *b, int s, int u)
{
  const struct unit_policy *policy = &b->plan->unit[u].policy;
  const int64_t elements = learns(b, u) ? state_elements(b, s, u) : 0;
  const enum plan_tier tier = policy->disk ? TIER_DISK : policy->host ? TIER_HOST : TIER_DEVICE;
  if (elements == 0)
    return -1;
  return build_persistent(b, b->plan->state[s]->name, u, tier, PURPOSE_STATE,
                          state_type(b->plan->state[s], policy->state), elements);
}

/* It covers all elements that this rank encodes, because the error of its messages stays on this
 * rank. */
static int add_residual(struct builder *b, int u)
{
  const struct codec *codec = &b->plan->unit[u].policy.residual;
  const int64_t elements = build_encoded(b, u);
  if (!codec->ops || !learns(b, u) || elements == 0)
    return -1;
  static const enum plan_tier tiers[] = {[DECK_RESIDUAL_DEVICE] = TIER_DEVICE,
                                         [DECK_RESIDUAL_HOST] = TIER_HOST,
                                         [DECK_RESIDUAL_NVME] = TIER_DISK};
  return build_persistent(b, "residual", u, tiers[b->plan->unit[u].policy.residual_tier],
                          PURPOSE_RESIDUAL, DTYPE_U8, codec->ops->bytes(codec, elements));
}

/* Reduced gradients live only from the first reduce to the update. If a step is one micro-batch,
 * they use the memory of activations that the backward pass no longer needs. Gradients of whole
 * units that wait for the norm live in the largest part of the step. */
static void add_grads(struct builder *b, int u)
{
  struct unit_buffers *unit = &b->unit[u];
  const struct plan_unit *own = &b->plan->unit[u];
  const int64_t mine = build_length(own->owned);
  if (!learns(b, u))
    return;
  if (plan_is_on_host(b->plan, u)) {
    build_host_grads(b, u);
    return;
  }
  const bool once = b->micros == 1 && (b->host || own->policy.timing == TIMING_IMMEDIATE);
  unit->grads = build_grads_whole(b, u) && !once
                    ? build_persistent(b, "grads", u, TIER_DEVICE, PURPOSE_GRADS, DTYPE_F32, mine)
                    : build_transient(b, "grads", u, TIER_DEVICE, PURPOSE_GRADS, DTYPE_F32, mine);
  unit->shard = !b->shards && b->group > 1 ? build_mine(b, "shard", unit->grads, build_shard(b, u))
                                           : unit->grads;
  unit->piece = build_piece(b, u, unit->shard);
}

static bool learns_on_host(const struct builder *b)
{
  for (int u = 0; u < b->model->units; u++)
    if (plan_is_on_host(b->plan, u) && learns(b, u))
      return true;
  return false;
}

/* The memory in which the ranks sum them. */
static void add_metrics(struct builder *b)
{
  struct plan *plan = b->plan;
  const bool on_host = plan->on_host[LANE_REDUCE];
  plan->metrics = build_outside(b, "metrics", on_host ? TIER_HOST : TIER_DEVICE, PURPOSE_METRICS,
                                DTYPE_U8, plan_metrics_bytes(&plan->input));
  if (on_host)
    plan->loss_host = build_outside(b, "loss_host", TIER_HOST, PURPOSE_METRICS, DTYPE_U8,
                                    plan->buffer[plan->loss].bytes);
  else if (b->micros > 1 && learns_on_host(b))
    plan->squares =
        build_outside(b, "squares", TIER_HOST, PURPOSE_METRICS, DTYPE_U8, sizeof(struct exactsum));
}

/* A number per token of a micro-batch, if the data have it. */
static int add_input(struct builder *b, const char *name, enum dtype type, bool there)
{
  const struct deck_shape *shape = &b->plan->input.shape;
  return there ? build_outside(b, name, tier_of_host(b), PURPOSE_TOKENS, type,
                               shape->micro_batch * shape->sequence)
               : -1;
}

static struct plan_batch add_batch(struct builder *b)
{
  const struct plan_input *input = &b->plan->input;
  struct plan_batch batch = {.tokens = add_input(b, "tokens", DTYPE_I32, true)};
  batch.targets = add_input(b, "targets", DTYPE_I32, input->mode != PLAN_GENERATE);
  batch.weights = add_input(b, "weights", DTYPE_F32, input->weights);
  batch.positions = add_input(b, "positions", DTYPE_I32, input->positions);
  batch.first = add_input(b, "first", DTYPE_I32, input->documents);
  batch.reference = input->beta > 0 ? build_outside(b, "reference", tier_of_host(b), PURPOSE_TOKENS,
                                                    DTYPE_F64, input->shape.micro_batch)
                                    : -1;
  return batch;
}

static void add_cache(struct builder *b, int stage)
{
  struct stage_buffers *own = &b->stage[stage];
  own->cache = build_persistent(b, "cache", b->model->stage[stage].unit, TIER_DEVICE, PURPOSE_CACHE,
                                DTYPE_U8, own->cache_bytes);
  build_name(b, own->cache, "cache", stage);
}

/* Parameters come first, so that all plans of a job have them at the same place. Residuals come
 * after gradients, because the plan of a warm-up has none. */
static void add_storage(struct builder *b)
{
  struct plan *plan = b->plan;
  int units = b->model->units;
  for (int u = 0; u < units; u++)
    add_params(b, u);
  for (int s = 0; s < plan->states; s++)
    for (int u = 0; u < units; u++)
      plan->unit[u].state[s] = add_state(b, s, u);
  for (int u = 0; u < units; u++)
    build_copy(b, u);
  for (int u = 0; u < units; u++)
    add_grads(b, u);
  for (int u = 0; u < units; u++)
    plan->unit[u].residual = add_residual(b, u);
  for (int s = 0; s < b->model->stages && plan->input.mode == PLAN_GENERATE; s++)
    if (b->model->stage[s].kind == STAGE_BLOCK)
      add_cache(b, s);

  for (int m = 0; m < b->micros; m++)
    plan->batch[m] = add_batch(b);
  if (plan->input.mode == PLAN_GENERATE) {
    plan->logits = build_outside(b, "logits", tier_of_host(b), PURPOSE_METRICS, DTYPE_F32,
                                 b->size.logits / (int64_t)sizeof(float));
  } else {
    plan->loss = build_outside(b, "loss", TIER_DEVICE, PURPOSE_METRICS, DTYPE_U8,
                               plan_losses(&plan->input) * (int64_t)sizeof(struct exactsum));
    add_metrics(b);
  }
}

/* ---- the walk ---- */

static int build_work(struct builder *b, int64_t bytes)
{
  return build_bytes(b, "work", -1, TIER_DEVICE, PURPOSE_WORK, bytes);
}

/* -1: the window serves all micro-batches. */
static int micro_of(const struct builder *b, const struct visit *visit)
{
  return b->plan->unit[visit->unit].policy.gather_once ? -1 : visit->micro;
}

static void open_window(struct builder *b, struct window *window)
{
  const int u = window->unit, micro = micro_of(b, &b->visit[window->first]),
            master = b->plan->unit[u].master, frozen = b->plan->unit[u].frozen,
            working = b->plan->unit[u].working;
  window->buffer = b->unit[u].params;
  if (window->buffer >= 0) {
    build_gather(b, u, micro, build_scales(b, u, working >= 0 ? working : master, frozen),
                 b->unit[u].trained);
    return;
  }
  window->buffer = build_transient(b, "params", u, TIER_DEVICE, PURPOSE_WINDOW,
                                   b->plan->unit[u].policy.window, b->plan->unit[u].layout.flat);
  if (plan_is_on_host(b->plan, u)) {
    build_host_window(b, window, micro);
    return;
  }
  const int trained = build_scales(b, u, working >= 0 ? working : master, frozen);
  build_gather(b, u, micro, trained, build_part(b, "trained_window", u, window->buffer, false));
  build_gather(b, u, micro, frozen, build_part(b, "frozen_window", u, window->buffer, true));
}

/* Gathers of windows whose first visit is at most `ahead` visits after v. */
static void emit_gathers(struct builder *b, int v, int ahead)
{
  for (; b->next_window < b->windows; b->next_window++) {
    if (b->window[b->next_window].first - v > ahead)
      return;
    open_window(b, &b->window[b->next_window]);
  }
}

static int stream_of(struct builder *b, int stage)
{
  const int x =
      build_stream(b, "x", b->model->stage[stage].unit, TIER_DEVICE, PURPOSE_STREAM, b->size.x);
  return b->stage[stage].x = build_name(b, x, "x", stage);
}

static int saved_of(struct builder *b, int stage)
{
  const int saved = build_bytes(b, "saved", b->model->stage[stage].unit, TIER_DEVICE,
                                PURPOSE_ACTIVATIONS, b->stage[stage].saved_bytes);
  return b->stage[stage].saved = build_name(b, saved, "saved", stage);
}

/* Positions are rows of an embedding, or they rotate the heads of each block. */
static int positions_of(const struct builder *b, int m, bool rotate)
{
  return (b->model->inv_freq != NULL) == rotate ? b->plan->batch[m].positions : -1;
}

static void emit_embed(struct builder *b, const struct visit *visit, int params)
{
  const int m = visit->micro;
  BUILD(b, OP_EMBED, visit->stage, m, params, b->plan->batch[m].tokens, stream_of(b, visit->stage),
        positions_of(b, m, false));
}

static void emit_forward(struct builder *b, const struct visit *visit, int params)
{
  const int s = visit->stage, in = b->stage[s - 1].x, out = stream_of(b, s);
  const bool keeps = b->plan->input.mode == PLAN_TRAIN && s >= b->lowest && !build_recomputes(b, s);
  const int work = build_work(b, keeps ? b->size.work_forward_saved : b->size.work_forward);
  b->stage[s].x_in = in; /* unless it is saved elsewhere */
  BUILD(b, OP_FORWARD, s, visit->micro, params, in, out, work, keeps ? saved_of(b, s) : -1,
        b->plan->unit[visit->unit].scales, positions_of(b, visit->micro, true),
        b->plan->batch[visit->micro].first);
}

static void emit_decode(struct builder *b, const struct visit *visit, int params)
{
  const int s = visit->stage, out = stream_of(b, s), work = build_work(b, b->size.work_decode);
  BUILD(b, OP_DECODE, s, visit->micro, params, b->stage[s - 1].x, out, work, b->stage[s].cache);
}

static void emit_logits(struct builder *b, const struct visit *visit, int params)
{
  BUILD(b, OP_LOGITS, visit->stage, visit->micro, params, b->stage[visit->stage - 1].x,
        build_work(b, b->size.work_loss), b->plan->logits);
}

static void emit_loss(struct builder *b, const struct visit *visit, int params)
{
  const struct plan *plan = b->plan;
  const int work = build_work(b, b->size.work_loss);
  struct instr *loss =
      BUILD(b, OP_LOSS, visit->stage, visit->micro, params, b->stage[visit->stage - 1].x,
            plan->batch[visit->micro].targets, plan->loss, work);
  build_sum(loss, LOSS_SUM, plan->loss, visit->micro > 0);
  build_use(loss, LOSS_WEIGHTS, plan->batch[visit->micro].weights);
  build_use(loss, LOSS_REFERENCE, plan->batch[visit->micro].reference);
  if (plan->input.mode != PLAN_TRAIN)
    return;
  b->d[visit->micro] = build_stream(b, "d", -1, TIER_DEVICE, PURPOSE_STREAM, b->size.x);
  build_use(loss, LOSS_D, b->d[visit->micro]);
  build_use_gradient(b, loss, LOSS_GRADS);
}

static void emit_recompute(struct builder *b, const struct visit *visit, int params)
{
  const int s = visit->stage, saved = saved_of(b, s),
            work = build_work(b, b->size.work_forward_saved);
  BUILD(b, OP_RECOMPUTE, s, visit->micro, params, b->stage[s].x_in, -1, work, saved,
        b->plan->unit[visit->unit].scales, positions_of(b, visit->micro, true),
        b->plan->batch[visit->micro].first);
}

static void emit_backward(struct builder *b, const struct visit *visit, int params)
{
  const int s = visit->stage;
  if (build_recomputes(b, s))
    emit_recompute(b, visit, params);
  const int work = build_work(b, b->size.work_backward);
  struct instr *backward =
      BUILD(b, OP_BACKWARD, s, visit->micro, params, b->stage[s].x_in, b->stage[s].saved,
            b->d[visit->micro], work, -1, b->plan->unit[visit->unit].scales,
            positions_of(b, visit->micro, true), b->plan->batch[visit->micro].first);
  build_use_gradient(b, backward, BACKWARD_GRADS);
}

static void emit_embed_backward(struct builder *b, int m)
{
  struct instr *backward = BUILD(b, OP_EMBED_BACKWARD, 0, m, b->plan->batch[m].tokens, b->d[m], -1,
                                 positions_of(b, m, false));
  build_use_gradient(b, backward, EMBED_BACKWARD_GRADS);
}

/* Gathers of later visits run during a visit. Their memory must not become the memory of the
 * visit's results, which would have to wait for these gathers. So it is kept until the last
 * instruction so far: buffers from `from` up to `to`, and the shared buffer of messages. */
static void keep_buffers(struct builder *b, int from, int to)
{
  struct plan_buffer *buffer = b->plan->buffer;
  for (int i = from; i < to; i++)
    if (!buffer[i].persistent && buffer[i].parent < 0)
      buffer[i].last = b->plan->n - 1;
  if (b->messages >= 0)
    buffer[b->messages].last = b->plan->n - 1;
}

static void emit_visit(struct builder *b, int v)
{
  const struct visit *visit = &b->visit[v];
  emit_gathers(b, v, 0);
  const int before = b->plan->buffers;
  emit_gathers(b, v, b->plan->input.prefetch);
  const int after = b->plan->buffers;
  build_fetch_acts(b, v);
  build_save_act(b, v, true);
  int params = visit->window >= 0 ? b->window[visit->window].buffer : b->unit[visit->unit].params;
  switch (visit->op) {
  case OP_EMBED: emit_embed(b, visit, params); break;
  case OP_FORWARD: emit_forward(b, visit, params); break;
  case OP_DECODE: emit_decode(b, visit, params); break;
  case OP_BACKWARD: emit_backward(b, visit, params); break;
  case OP_LOGITS: emit_logits(b, visit, params); break;
  default: emit_loss(b, visit, params);
  }
  if (after > before)
    keep_buffers(b, before, after);
  build_save_act(b, v, false);
  if (visit->window >= 0 && b->window[visit->window].last == v)
    BUILD(b, OP_RELEASE, visit->unit, micro_of(b, visit), params);
}

/* A tied embedding adds to what the head wrote. If the step is one sum, the embedding's part of all
 * micro-batches comes after the head's of all, as if they were one batch. So results are bitwise
 * identical for any cut into micro-batches. It costs a `d` per micro-batch. */
static void end_walk(struct builder *b, int m, bool ready)
{
  if (!b->embeds)
    return;
  bool at_once = b->plan->unit[0].policy.each_micro || b->model->head > 0;
  for (int k = at_once ? m : 0; k <= m && (at_once || ready); k++)
    emit_embed_backward(b, k);
  if (ready)
    build_add_pending(b, 0, m);
}

/* Gradients that were ready before this visit are reduced after it. Their window is reused only
 * after it, so they are transferred while it computes. The embedding is too short a visit to hide
 * them.
 *
 * The gradient of an untied head is the largest of all, and comes when memory is fullest. If memory
 * matters more than the time of its transfer, it leaves the device before the first backward
 * pass. */
static void emit_reduces(struct builder *b, const struct visit *visit)
{
  int u = visit->unit, m = visit->micro;
  bool ready = b->plan->unit[u].policy.each_micro || m == b->micros - 1;
  b->end_of_visit[1] = b->end_of_visit[0];
  b->end_of_visit[0] = b->plan->n;
  if (visit->op == OP_FORWARD)
    build_reduce_pending(b, m - 1);
  if (visit->op == OP_LOSS && ready && build_completes(b, visit->stage)) {
    build_add_pending(b, u, m);
    if (b->host)
      build_reduce_pending(b, m);
  }
  if (visit->op != OP_BACKWARD)
    return;
  if (b->head_gradient >= 0)
    b->plan->buffer[b->head_gradient].last = b->plan->n - 1;
  b->head_gradient = -1;
  build_reduce_pending(b, m);
  if (ready && build_completes(b, visit->stage))
    build_add_pending(b, u, m);
  if (visit->stage == b->lowest)
    end_walk(b, m, ready);
}

static void emit_step(struct builder *b)
{
  enum plan_mode mode = b->plan->input.mode;
  for (int m = 0; m < b->micros; m++) {
    const struct plan_batch *batch = &b->plan->batch[m];
    BUILD(b, OP_LOAD, -1, m, batch->tokens, batch->targets, batch->weights, batch->positions,
          batch->first, batch->reference);
  }
  for (int v = 0; v < b->visits; v++) {
    emit_visit(b, v);
    if (mode != PLAN_TRAIN)
      continue;
    build_fetch_residuals(b, v);
    emit_reduces(b, &b->visit[v]);
  }
  if (mode == PLAN_GENERATE)
    return;
  build_reduce_pending(b, b->micros - 1);
  build_metrics(b);
  if (mode == PLAN_TRAIN)
    build_updates(b);
}

/* ---- */

static void alloc(struct builder *b)
{
  /* clang-format off */
  static const struct plan_unit no_unit = {
      .master = -1, .frozen = -1, .residual = -1, .working = -1, .shared = -1, .pending = -1,
      .copy = -1, .copy_mine = -1, .kept = -1, .scales = -1, .codes = -1,
      .state = {[0 ... PLAN_MAX_STATE - 1] = -1}};
  static const struct unit_buffers no_buffers = {
      .params = -1, .trained = -1, .shared = -1, .grads = -1, .shard = -1, .piece = -1,
      .residual_until = -1, .sent = {[0 ... MESH_AXES - 1] = -1},
      .received = {[0 ... MESH_AXES - 1] = -1}};
  /* clang-format on */
  const int units = b->model->units;
  const int stages = b->model->stages;
  const int64_t micros = b->plan->input.shape.micros, visits = micros * 2 * stages;
  b->status = mem_new(MEM_META, units, &b->plan->unit);
  b->status = b->status ?: mem_new(MEM_META, micros, &b->plan->batch);
  b->status = b->status ?: mem_new(MEM_META, micros, &b->d);
  b->status = b->status ?: mem_new(MEM_META, units, &b->unit);
  b->status = b->status ?: mem_new(MEM_META, stages, &b->stage);
  b->status = b->status ?: mem_new(MEM_META, units, &b->pending);
  b->status = b->status ?: mem_new(MEM_META, visits, &b->visit);
  b->status = b->status ?: mem_new(MEM_META, visits, &b->window);
  for (int u = 0; u < units && !b->status; u++) {
    b->plan->unit[u] = no_unit;
    b->unit[u] = no_buffers;
  }
}

static void build(struct builder *b)
{
  choose(b);
  b->status = build_measure(b) ?: pack_units(b);
  if (b->status)
    return;
  list_visits(b, b->pending); /* which is still empty: room for one number per unit */
  b->status = build_begin(b);
  if (b->status)
    return;
  add_storage(b);
  emit_step(b);
}

enum status plan_build(const struct plan_input *input, struct plan **out)
{
  struct builder b = {.model = input->model, .staging = -1, .work = -1};
  b.head_gradient = b.messages = -1;
  enum status status = build_check_input(input);
  status = status ?: mem_new(MEM_META, 1, &b.plan);
  if (status)
    return status;
  b.plan->input = *input;
  b.plan->mesh = plan_mesh(input);
  b.plan->loss = b.plan->metrics = b.plan->logits = b.plan->squares = b.plan->loss_host = -1;
  alloc(&b);
  if (!b.status)
    build(&b);
  mem_free(b.d);
  mem_free(b.unit);
  mem_free(b.stage);
  mem_free(b.pending);
  mem_free(b.visit);
  mem_free(b.window);
  if (b.status)
    plan_destroy(b.plan);
  else
    *out = b.plan;
  return b.status;
}
