/* Gradients: where backward passes write them, their transfer to the rank that owns them, the norm,
 * the metrics and the update. */
#include "plan/builder.h"

/* In two hops, messages within a node are not encoded. The shard group is in a node, or its node is
 * a group of its own. */
static struct codec codec_of(const struct builder *b, mesh_set group, int u)
{
  const bool node = group == MESH_INSIDE || group == MESH_SHARD;
  return node && b->plan->input.shape.two_hops ? codec_as_it_is : b->plan->unit[u].policy.grads;
}

/* The sum over the ranks of a node has a part for each node. */
static bool has_hops(const struct builder *b, mesh_set group)
{
  return group == MESH_SHARD && plan_spans_nodes(b->plan);
}

static int64_t partial_elements(const struct builder *b, int64_t elements)
{
  return elements / mesh_ranks(&b->plan->mesh, MESH_INSIDE);
}

int64_t build_encoded(const struct builder *b, int u)
{
  if (build_sends_gradients(b, MESH_REPLICA, u) || b->plan->input.ranks == 1)
    return 0;
  return b->plan->unit[u].layout.trained / unit_policy_encoded(&b->plan->input).parts;
}

static void set_group(const struct builder *b, struct instr *instr, mesh_set group)
{
  instr->attr.group = group;
  instr->attr.codec = codec_of(b, group, instr->unit);
  instr->attr.blocks = group == MESH_INSIDE ? mesh_ranks(&b->plan->mesh, MESH_ACROSS) : 1;
}

/* Scratch memory of the codec that makes messages of `elements`, or sums them up. */
static int64_t sum_work(const struct builder *b, mesh_set group, int u, int64_t elements)
{
  const int members = mesh_ranks(&b->plan->mesh, group);
  const struct codec codec = codec_of(b, group, u);
  return codec_work(&codec, elements / members, members);
}

/* The same with the residual's codec, which makes one message, and with the memory to measure
 * errors. */
static int64_t encode_work(const struct builder *b, mesh_set group, int u, int64_t elements)
{
  const struct codec *residual = &b->plan->unit[u].policy.residual;
  const int64_t sum = sum_work(b, group, u, elements),
                lost = residual->ops ? codec_work(residual, elements, 1) : 0,
                most = lost > sum ? lost : sum;
  if (!b->plan->unit[u].policy.sample || build_sends_gradients(b, group, u))
    return most;
  return (most + 255) / 256 * 256 + plan_sample_bytes(elements / mesh_ranks(&b->plan->mesh, group));
}

/* The largest work space of a sum over a group, or of the second sum of two hops. */
static int64_t most_work(const struct builder *b, mesh_set group, int u, int64_t elements)
{
  return has_hops(b, group) ? encode_work(b, MESH_ACROSS, u, partial_elements(b, elements))
                            : encode_work(b, group, u, elements);
}

/* A buffer next to a staging buffer, which lives from the moment when the staging buffer may be
 * used. */
static int beside(struct builder *b, const char *name, int u, int staging, enum dtype dtype,
                  int64_t elements)
{
  const struct plan_buffer other = b->plan->buffer[staging];
  const int buffer = build_transient(b, name, u, other.tier, PURPOSE_STAGING, dtype, elements);
  b->plan->buffer[buffer].first = other.first;
  return buffer;
}

static int codec_work_at(struct builder *b, int u, int staging, int64_t bytes)
{
  return beside(b, "codec_work", u, staging, DTYPE_U8, bytes);
}

static void use_work(struct builder *b, struct instr *instr, int k, int staging, int64_t bytes)
{
  if (bytes > 0)
    build_use(instr, k, b->work >= 0 ? b->work : codec_work_at(b, instr->unit, staging, bytes));
}

/* One staging buffer for all units: the reduce lane uses it for one collective after the other. It
 * lives from the moment when the first of them may start. */
static void add_staging(struct builder *b)
{
  int64_t most = 0, work = 0;
  for (int u = 0; u < b->model->units; u++)
    for (int replicas = 0; replicas <= 1; replicas++) {
      const mesh_set group = replicas ? MESH_REPLICA : MESH_SHARD;
      const int64_t elements = replicas ? build_shard(b, u) : b->plan->unit[u].layout.trained;
      const int64_t bytes = build_staging_bytes(b, group, u, elements),
                    more = most_work(b, group, u, elements);
      most = bytes > most ? bytes : most;
      work = more > work ? more : work;
    }
  b->staging = build_bytes(b, "staging", -1, TIER_DEVICE, PURPOSE_STAGING, most);
  b->plan->buffer[b->staging].first = b->plan->n;
  if (work > 0)
    b->work = codec_work_at(b, -1, b->staging, work);
}

/* Each resident unit has a buffer of its own, because these are few. The embedding's is larger than
 * the room after the first block's backward pass. */
static int staging_of(struct builder *b, mesh_set group, int u, int64_t elements)
{
  if (!b->host)
    return b->staging;
  const int staging = build_bytes(b, "staging", u, TIER_DEVICE, PURPOSE_STAGING,
                                  build_staging_bytes(b, group, u, elements));
  b->plan->buffer[staging].first = b->unit[u].reduce_from;
  return staging;
}

bool build_sends_gradients(const struct builder *b, mesh_set group, int u)
{
  return codec_of(b, group, u).ops->traits & CODEC_IDENTITY;
}

int64_t build_message_bytes(const struct builder *b, mesh_set group, int u, int64_t elements)
{
  const struct codec codec = codec_of(b, group, u);
  const int members = mesh_ranks(&b->plan->mesh, group);
  return members * codec.ops->bytes(&codec, elements / members);
}

static int64_t aligned(int64_t bytes)
{
  return (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

static bool needs_max(const struct builder *b, mesh_set group, int u)
{
  return codec_of(b, group, u).ops->traits & CODEC_NEEDS_MAX;
}

/* Messages to send, those received, and the largest magnitude. */
static int64_t hop_bytes(const struct builder *b, mesh_set group, int u, int64_t elements)
{
  const int64_t bytes = build_message_bytes(b, group, u, elements);
  if (needs_max(b, group, u))
    return aligned(2 * bytes) + PLAN_ALIGN;
  return (build_sends_gradients(b, group, u) ? 1 : 2) * bytes;
}

/* The offset of the messages, which follow the sum over a node. */
static int64_t partial_bytes(const struct builder *b, int64_t elements)
{
  return aligned(partial_elements(b, elements) * (int64_t)sizeof(float));
}

/* Messages of the second hop use the memory of those of the first one. */
int64_t build_staging_bytes(const struct builder *b, mesh_set group, int u, int64_t elements)
{
  if (!has_hops(b, group))
    return hop_bytes(b, group, u, elements);
  const int64_t first = hop_bytes(b, MESH_INSIDE, u, elements),
                second = hop_bytes(b, MESH_ACROSS, u, partial_elements(b, elements));
  return partial_bytes(b, elements) + (first > second ? first : second);
}

/* Messages in a staging buffer, or all of it. Micro-batches that share the buffer share them. */
static int messages_in(struct builder *b, const char *name, int u, int staging, int64_t from,
                       int64_t bytes, int *known)
{
  if (b->plan->buffer[staging].bytes == bytes)
    return staging;
  if (*known >= 0 && b->plan->buffer[*known].parent == staging)
    return *known;
  return *known = build_view(b, name, u, staging, from, bytes);
}

/* `elements` fp32 elements from byte `at` of a staging buffer on. */
static int floats_in(struct builder *b, const char *name, int u, int staging, int64_t at,
                     int64_t elements)
{
  const int view = build_view(b, name, u, staging, at, elements * (int64_t)sizeof(float));
  b->plan->buffer[view].dtype = DTYPE_F32;
  b->plan->buffer[view].elements = elements;
  return view;
}

/* The buffer of the largest magnitude, at byte `at` of the staging buffer. `all`: the members' own
 * magnitudes. */
static int find_largest(struct builder *b, const struct reduction *r, int64_t at)
{
  const int u = r->unit, residual = build_residual_here(b, u),
            members = mesh_ranks(&b->plan->mesh, r->group),
            all = beside(b, "magnitudes", u, r->staging, DTYPE_F32, members),
            largest = floats_in(b, "largest", u, r->staging, at, 1);
  struct instr *find = BUILD(b, OP_MAGNITUDE, u, r->micro, r->whole, all, largest, residual);
  set_group(b, find, r->group);
  if (residual >= 0)
    find->use[MAGNITUDE_GRADS].access = ACCESS_ADD;
  use_work(b, find, MAGNITUDE_WORK, r->staging,
           encode_work(b, r->group, u, b->plan->buffer[r->whole].elements));
  return largest;
}

void build_encode(struct builder *b, const struct reduction *r, int messages, int largest)
{
  const int u = r->unit, residual = build_residual_here(b, u);
  struct instr *encode =
      BUILD(b, OP_ENCODE, u, r->micro, r->whole, messages, residual, -1, largest);
  set_group(b, encode, r->group);
  if (residual >= 0 || b->plan->unit[u].policy.sample > 0)
    encode->use[ENCODE_GRADS].access = ACCESS_ADD;
  use_work(b, encode, ENCODE_WORK, r->staging,
           encode_work(b, r->group, u, b->plan->buffer[r->whole].elements));
  build_save_residual(b, u, r->micro);
}

/* With messages at byte `at` of the staging buffer. */
static void reduce_over(struct builder *b, struct reduction r, int64_t at)
{
  struct unit_buffers *unit = &b->unit[r.unit];
  const int64_t elements = b->plan->buffer[r.whole].elements,
                bytes = build_message_bytes(b, r.group, r.unit, elements);
  const bool encodes = !build_sends_gradients(b, r.group, r.unit);
  const int slowest = __builtin_ctz(r.group);
  int sent = r.whole;
  if (encodes) {
    const int largest =
        needs_max(b, r.group, r.unit) ? find_largest(b, &r, at + aligned(2 * bytes)) : -1;
    sent = messages_in(b, "sent", r.unit, r.staging, at, bytes, &unit->sent[slowest]);
    build_encode(b, &r, sent, largest);
  }
  const int received = messages_in(b, "received", r.unit, r.staging, at + (encodes ? bytes : 0),
                                   bytes, &unit->received[slowest]);
  set_group(b, BUILD(b, OP_EXCHANGE, r.unit, r.micro, sent, received), r.group);
  struct instr *sum = BUILD(b, OP_DECODE_SUM, r.unit, r.micro, received);
  set_group(b, sum, r.group);
  build_sum(sum, DECODE_SUM_SHARD, r.part, r.adds);
  use_work(b, sum, DECODE_SUM_WORK, r.staging, sum_work(b, r.group, r.unit, elements));
}

void build_reduce(struct builder *b, struct reduction r)
{
  if (!has_hops(b, r.group)) {
    reduce_over(b, r, 0);
    return;
  }
  const int64_t elements = b->plan->buffer[r.whole].elements, at = partial_bytes(b, elements);
  struct reduction node = r;
  node.group = MESH_INSIDE;
  node.adds = false;
  node.part = floats_in(b, "partial", r.unit, r.staging, 0, partial_elements(b, elements));
  reduce_over(b, node, at);
  r.group = MESH_ACROSS;
  r.whole = node.part;
  reduce_over(b, r, at);
}

bool build_grads_whole(const struct builder *b, int u)
{
  return !plan_is_on_host(b->plan, u) &&
         (b->group == 1 ||
          (b->plan->input.strategy == STRATEGY_NO_SHARD && !b->plan->unit[u].policy.each_micro));
}

static int part_of_stage(struct builder *b, int stage, int whole)
{
  const int u = b->model->stage[stage].unit;
  const struct layout_unit *layout = &b->plan->unit[u].layout;
  const struct layout_range part = model_stage_trained(b->model, stage, layout);
  int *const own = &b->stage[stage].part;
  if (build_length(part) == layout->trained)
    return whole;
  if (*own == 0 || b->plan->buffer[*own].parent != whole)
    *own = build_name(b, build_view(b, "dparams", u, whole, part.begin, build_length(part)),
                      "dparams", stage);
  return *own;
}

void build_use_gradient(struct builder *b, struct instr *instr, int k)
{
  const int u = instr->unit;
  const struct model_stage *stage = &b->model->stage[instr->stage];
  struct unit_buffers *unit = &b->unit[u];
  const bool whole = build_grads_whole(b, u),
             fresh = instr->micro == 0 || (b->plan->unit[u].policy.each_micro && !whole),
             after_head = stage->kind == STAGE_EMBED && !stage->last;
  if (unit->grads < 0)
    return;
  if (fresh && stage->last)
    unit->dparams = whole ? unit->grads
                          : build_transient(b, "dparams", u, TIER_DEVICE, PURPOSE_GRAD_WINDOW,
                                            DTYPE_F32, b->plan->unit[u].layout.trained);
  build_sum(instr, k, part_of_stage(b, instr->stage, unit->dparams), !fresh || after_head);
}

bool build_completes(const struct builder *b, int stage)
{
  const struct model_stage *at = &b->model->stage[stage];
  switch (at->kind) {
  case STAGE_EMBED: return b->embeds;
  case STAGE_HEAD: return at->nth == 0 || !b->embeds;
  default: return at->nth == 0 && stage >= b->lowest;
  }
}

void build_norm(struct builder *b, int u)
{
  const struct plan *plan = b->plan;
  const bool host = plan->squares >= 0 && plan_is_on_host(plan, u);
  bool *begun = host ? &b->host_squares : &b->squares;
  struct instr *squares = BUILD(b, OP_SQUARES, u, -1, b->unit[u].piece);
  build_sum(squares, SQUARES_SUM, host ? plan->squares : plan->metrics, *begun);
  *begun = true;
}

/* Over the replicas, or without sharding over the group that has reduced together. */
static void emit_gather_grads(struct builder *b, int u, int part, int whole)
{
  struct instr *gather = BUILD(b, OP_GATHER_GRADS, u, -1, part, whole);
  if (b->replicas == 1)
    gather->attr.group = MESH_SHARD;
}

/* Flat shards cut matrices. The ranks gather their parts of the unit's direction. Each rank
 * transforms the matrices that intersect its range. */
static void emit_direction(struct builder *b, int u)
{
  const struct plan *plan = b->plan;
  const int64_t mine = build_length(plan->unit[u].owned), trained = plan->unit[u].layout.trained;
  struct unit_buffers *unit = &b->unit[u];
  if (!optim_has_matrices(&plan->unit[u].segments))
    return;
  unit->direction =
      build_transient(b, "direction", u, TIER_DEVICE, PURPOSE_STAGING, b->element, trained);
  const int piece =
      mine < trained ? build_mine(b, "direction_mine", unit->direction, mine) : unit->direction;
  BUILD(b, OP_DIRECTION, u, -1, plan->metrics, unit->grads, piece, plan->unit[u].state[0]);
  if (piece != unit->direction)
    BUILD(b, OP_GATHER_DIRECTION, u, -1, piece, unit->direction);
}

/* Room for any matrix of the unit. */
static int transform_work(struct builder *b, int u)
{
  const struct plan_unit *own = &b->plan->unit[u];
  const struct layout_range all = {0, own->layout.trained};
  if (!optim_has_matrices(&own->segments))
    return -1;
  return build_bytes(b, "work", u, TIER_DEVICE, PURPOSE_WORK,
                     (int64_t)optim_transform_workspace(&own->segments, b->element, all));
}

void build_update(struct builder *b, int u)
{
  const struct plan *plan = b->plan;
  const struct plan_unit *own = &plan->unit[u];
  const int work = transform_work(b, u);
  struct instr *update =
      BUILD(b, OP_UPDATE, u, -1, own->policy.timing == TIMING_DEFERRED ? plan->metrics : -1,
            b->unit[u].grads, own->master, own->working, work < 0 ? -1 : b->unit[u].direction, work,
            own->pending);
  for (int s = 0; s < plan->states; s++)
    if (own->state[s] >= 0 && plan->state[s]->of != STATE_OF_MATRICES)
      build_use(update, UPDATE_STATE + s, own->policy.disk ? b->unit[u].state[s] : own->state[s]);
}

/* From the whole gradient of a micro-batch (or of the step) to the gradient that UPDATE reads, and
 * the update if it waits for no other unit. */
static void emit_reduce(struct builder *b, int u, int m)
{
  const struct unit_buffers *unit = &b->unit[u];
  if (plan_is_on_host(b->plan, u)) {
    build_host_reduce(b, u, m);
    return;
  }
  if (b->group > 1) {
    const int staging = staging_of(b, MESH_SHARD, u, b->plan->unit[u].layout.trained);
    build_reduce(b, (struct reduction){MESH_SHARD, u, b->plan->unit[u].policy.each_micro ? m : -1,
                                       unit->dparams, staging, unit->shard,
                                       b->plan->unit[u].policy.each_micro && m > 0});
  }
  if (m < b->micros - 1)
    return;
  if (b->replicas > 1) {
    const int staging = staging_of(b, MESH_REPLICA, u, build_shard(b, u));
    build_reduce(b, (struct reduction){MESH_REPLICA, u, -1, unit->shard, staging, unit->piece});
  }
  build_norm(b, u);
  if (b->replicas > 1)
    emit_gather_grads(b, u, unit->piece, unit->shard);
  if (unit->shard != unit->grads)
    emit_gather_grads(b, u, unit->shard, unit->grads);
  if (b->plan->unit[u].policy.timing == TIMING_IMMEDIATE)
    build_update(b, u);
}

void build_add_pending(struct builder *b, int u, int m)
{
  if (b->unit[u].grads < 0)
    return;
  if (plan_is_on_host(b->plan, u))
    build_host_pending(b, u, m);
  else if (b->host)
    b->unit[u].reduce_from = b->plan->n;
  else if (b->staging < 0 && b->plan->input.ranks > 1)
    add_staging(b);
  struct plan_buffer *grads = &b->plan->buffer[b->unit[u].grads];
  if (grads->first >
      b->plan->n) /* from the moment when the reduce may start, during the next backward pass */
    grads->first = b->plan->n;
  b->pending[b->n_pending++] = u;
}

void build_reduce_pending(struct builder *b, int m)
{
  for (int i = 0; i < b->n_pending; i++)
    emit_reduce(b, b->pending[i], m);
  b->n_pending = 0;
}

/* Whether there is an update that waits until the end of the step. Immediate updates run when their
 * gradients are complete. */
static bool waits_on_device(const struct builder *b, int u)
{
  return u >= 0 && u < b->model->units && b->plan->unit[u].master >= 0 &&
         !plan_is_on_host(b->plan, u) && b->plan->unit[u].policy.timing == TIMING_DEFERRED;
}

/* The root first: its parameters are the first to be used, and so gathered, in the next step. The
 * direction of the next unit is gathered at the same time. */
void build_updates(struct builder *b)
{
  for (int u = 0; u <= b->model->units; u++) {
    if (waits_on_device(b, u))
      emit_direction(b, u);
    if (waits_on_device(b, u - 1))
      build_update(b, u - 1);
  }
  if (b->host)
    build_host_updates(b);
}

void build_metrics(struct builder *b)
{
  const struct plan *plan = b->plan;
  const int loss = plan->loss_host >= 0 ? plan->loss_host : plan->loss;
  if (plan->loss_host >= 0)
    BUILD(b, OP_FETCH_LOSS, -1, -1, plan->loss, plan->loss_host);
  struct instr *metrics = BUILD(b, OP_METRICS, -1, -1, loss, -1, plan->squares);
  build_sum(metrics, METRICS_OUT, plan->metrics, b->squares);
}
