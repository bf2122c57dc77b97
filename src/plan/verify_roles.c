/* Roles: each operand of an operation is the right buffer, with all of its elements. A sum is begun
 * once per step. */
#include "base/mem.h"
#include "plan/verify.h"

/* ---- the facts of an operand ---- */

/* Whether a residual is kept where the operand lies. verify_values() follows its copies. */
static bool is_home(const struct verify *v, const struct operand *operand)
{
  static const enum operand_place places[] = {[DECK_RESIDUAL_DEVICE] = PLACE_DEVICE,
                                              [DECK_RESIDUAL_HOST] = PLACE_HOST,
                                              [DECK_RESIDUAL_NVME] = PLACE_DISK};
  return operand->place == places[v->unit->policy.residual_tier];
}

/* The only buffer allowed as this operand; -1: none; ANY: any. */
enum { ANY = -2 };
static int buffer_of_role(const struct verify *v, const struct operand *operand)
{
  const struct plan *plan = v->plan;
  const bool stored = operand->role == ROLE_STORED_STATE, host = plan->on_host[LANE_REDUCE];
  switch (operand->role) {
  case ROLE_MASTER: return v->unit->master;
  case ROLE_WORKING: return v->unit->working;
  case ROLE_PENDING: return v->unit->pending;
  case ROLE_COPY: return v->unit->copy_mine;
  case ROLE_SCALES: return v->unit->scales;
  case ROLE_CODES: return v->unit->codes;
  case ROLE_RESIDUAL: return is_home(v, operand) ? v->unit->residual : ANY;
  case ROLE_STATE:
  case ROLE_STORED_STATE:
    if (stored == verify_state_on_disk(plan, v->instr->unit))
      return v->unit->state[operand->index];
    return stored ? -1 : ANY;
  case ROLE_METRICS: return plan->metrics;
  case ROLE_LOSS: return plan->loss;
  case ROLE_LOSS_HOST: return plan->loss_host;
  case ROLE_SUMMED_LOSS: return host ? plan->loss_host : plan->loss;
  case ROLE_SQUARES:
    return verify_squares_on_host(plan, v->instr->unit) ? plan->squares : plan->metrics;
  case ROLE_HOST_SQUARES: return plan->squares;
  default: return ANY;
  }
}

static void check_buffer(struct verify *v, int k, int buffer)
{
  const struct plan_use *use = &v->instr->use[k];
  if (buffer != ANY && use->buffer != buffer)
    verify_fail(v, "%s in the place of %s", verify_does(v->plan, use).text,
                buffer < 0 ? "nothing" : v->plan->buffer[buffer].name);
}

static void check_elements(struct verify *v, int k, int64_t elements)
{
  const struct plan_buffer *buffer = verify_used(v, k);
  if (buffer->elements != elements)
    verify_fail(v, "%s the %lld elements of %s where there must be %lld",
                verify_verb(v->instr->use[k].access), (long long)buffer->elements, buffer->name,
                (long long)elements);
}

static void check_type(struct verify *v, int k, enum dtype type)
{
  const struct plan_buffer *buffer = verify_used(v, k);
  if (buffer->dtype != type)
    verify_fail(v, "%s in %s where there must be %s", verify_does(v->plan, &v->instr->use[k]).text,
                dtype_name(buffer->dtype), dtype_name(type));
}

/* A rank updates its shard, or without sharding all. */
static int64_t owned_elements(const struct verify *v)
{
  return v->unit->layout.trained / verify_shards(v->plan);
}

/* A member gets a shard of the unit from a sum over its group, and over replicas a piece of that.
 * From a sum over its node it gets the shards of its index on all nodes. */
static int64_t part_elements(const struct verify *v)
{
  const mesh_set group = verify_group(v), cut = group == MESH_REPLICA  ? MESH_DATA
                                                : group == MESH_INSIDE ? MESH_INSIDE
                                                                       : MESH_SHARD;
  return v->unit->layout.trained / mesh_ranks(&v->plan->mesh, cut);
}

static struct layout_range stage_part(const struct verify *v)
{
  return model_stage_trained(v->plan->input.model, v->instr->stage, &v->unit->layout);
}

static int64_t message_bytes(const struct codec *codec, int64_t n)
{
  return (int64_t)codec->ops->bytes(codec, n);
}

static bool sends_plain(const struct verify *v)
{
  return v->instr->attr.codec.ops->traits & CODEC_IDENTITY;
}

static int64_t elements_of(const struct verify *v, const struct operand *operand)
{
  const struct plan *plan = v->plan;
  const struct layout_unit *layout = &v->unit->layout;
  const int unit = v->instr->unit;
  switch (operand->extent) {
  case EXTENT_UNIT: return layout->flat;
  case EXTENT_TRAINED: return layout->trained;
  case EXTENT_OWNED: return owned_elements(v);
  case EXTENT_PIECE: return layout->trained / mesh_ranks(&plan->mesh, MESH_DATA);
  case EXTENT_STATE: return verify_state_elements(plan, unit, operand->index);
  case EXTENT_FIRST: return verify_used(v, 0)->elements;
  case EXTENT_SUMMED: return verify_members(v) * part_elements(v);
  case EXTENT_PART: return part_elements(v);
  case EXTENT_RESIDUAL: return message_bytes(&v->unit->policy.residual, verify_encoded(plan, unit));
  case EXTENT_MEMBERS: return verify_members(v);
  case EXTENT_BATCH: return plan->input.shape.micro_batch;
  case EXTENT_STAGE: return stage_part(v).end - stage_part(v).begin;
  case EXTENT_SCALES: return model_fp8_bytes(plan->input.model, unit);
  case EXTENT_ONE: return 1;
  case EXTENT_MESSAGES:
    if (operand->type == TYPE_SENT && sends_plain(v))
      return verify_members(v) * part_elements(v);
    return verify_members(v) * message_bytes(&v->instr->attr.codec, part_elements(v));
  default: return -1;
  }
}

static enum dtype type_of(const struct verify *v, const struct operand *operand)
{
  switch (operand->type) {
  case TYPE_WINDOW: return verify_window_type(v->plan, v->instr->unit);
  case TYPE_COMPUTE: return v->unit->policy.compute;
  case TYPE_STATE: return state_type(v->plan->state[operand->index], v->unit->policy.state);
  case TYPE_TOKENS: return DTYPE_I32;
  case TYPE_FP64: return DTYPE_F64;
  case TYPE_BYTES: return DTYPE_U8;
  case TYPE_SENT: return sends_plain(v) ? DTYPE_F32 : DTYPE_U8;
  case TYPE_FIRST: return verify_used(v, 0)->dtype;
  default: return DTYPE_F32;
  }
}

/* The gradient that a stage writes lies in that of its unit. */
static void check_stage_part(struct verify *v, int k)
{
  int64_t offset;
  const struct plan_buffer *part = verify_used(v, k),
                           *whole =
                               &v->plan
                                    ->buffer[plan_root(v->plan, v->instr->use[k].buffer, &offset)];
  if (whole->elements != v->unit->layout.trained ||
      offset != stage_part(v).begin * (int64_t)dtype_size(part->dtype))
    verify_fail(v, "%s, which is not at its place in the gradient of its unit",
                verify_does(v->plan, &v->instr->use[k]).text);
}

static void check_facts(struct verify *v, int k)
{
  const struct operand *operand = &v->row->operand[k];
  check_buffer(v, k, buffer_of_role(v, operand));
  if (operand->extent != EXTENT_ANY)
    check_elements(v, k, elements_of(v, operand));
  if (operand->type != TYPE_ANY)
    check_type(v, k, type_of(v, operand));
  if (operand->extent == EXTENT_STAGE)
    check_stage_part(v, k);
}

/* An update must have the input's rule and random bits, and the learning rate of its unit. */
static void check_optimizer(struct verify *v)
{
  const struct attributes *attr = &v->instr->attr;
  const struct optim_settings *optim = &v->plan->input.optim;
  const enum op op = v->instr->op;
  const bool updates = v->row->updates, seeded = updates || v->row->coded || v->row->codes_params,
             steps = op == OP_UPDATE || op == OP_REPAIR;
  const double clip = op == OP_METRICS ? optim->clip : 0,
               lr_scale = steps ? v->unit->policy.lr_scale : 0,
               beta = op == OP_LOSS ? v->plan->input.beta : 0;
  if (attr->clip != clip)
    verify_fail(v, "clips to a norm of %g, where %g is asked for", attr->clip, clip);
  if (attr->beta != beta)
    verify_fail(v, "weighs pairs with beta %g, where %g is asked for", attr->beta, beta);
  if (attr->optimizer != (updates ? optim->name : (enum optimizer)0))
    verify_fail(v, "updates by another optimizer than the plan's");
  if (attr->fp8 != plan_op_fp8(v->plan, op, v->instr->unit))
    verify_fail(v, "has other products in fp8 than its unit");
  if (attr->lr_scale != lr_scale)
    verify_fail(v, "updates at %g of the learning rate, where %g is asked for", attr->lr_scale,
                lr_scale);
  if (attr->stochastic != (updates && optim->stochastic) ||
      attr->seed != (seeded ? optim->seed : 0))
    verify_fail(v, "rounds in another way, or with another seed, than the plan");
}

static const char *codec_name(const struct codec *codec, const char *none)
{
  return codec->ops ? codec->ops->name : none;
}

/* Ranks that send messages of one codec and receive messages of another would add up noise.
 * verify_values() proves that ENCODE and DECODE_SUM have the codec of the messages.
 * verify_windows() proves it for messages of parameters. */
static void check_codec(struct verify *v)
{
  const struct codec *mine = &v->instr->attr.codec;
  if (v->row->coded) {
    const struct codec codec = verify_codec(v);
    const bool sends = v->row->collective != COLLECTIVE_NONE;
    if (!mine->ops || (sends && !codec_equal(&codec, mine)))
      verify_fail(v, "sends gradients by codec %s, and its unit's travel by codec %s",
                  codec_name(mine, "(absent)"), codec.ops->name);
  } else if (!v->row->codes_params && mine->ops)
    verify_fail(v, "has a codec and no messages");
  const struct codec *residual = &v->instr->attr.residual;
  const enum op op = v->instr->op;
  if ((op == OP_MAGNITUDE || op == OP_ENCODE) && residual->ops != v->unit->policy.residual.ops)
    verify_fail(v, "has residuals in codec %s, and its unit's are in codec %s",
                codec_name(residual, "none"), codec_name(&v->unit->policy.residual, "none"));
}

/* A member's shards of all nodes are not adjacent. Each node's block is added up by itself. */
static void check_attributes(struct verify *v)
{
  const struct attributes *attr = &v->instr->attr;
  if (attr->group != verify_group(v)) {
    verify_fail(v, "meets another group than its own");
    return;
  }
  const int nodes = attr->group == MESH_INSIDE ? mesh_ranks(&v->plan->mesh, MESH_ACROSS) : 1,
            blocks = v->row->coded ? nodes : 0;
  check_optimizer(v);
  if (attr->blocks != blocks)
    verify_fail(v, "adds up %d blocks where there must be %d", attr->blocks, blocks);
  check_codec(v);
}

/* ---- beyond the facts ---- */

/* Whether operand `part` lies so many bytes after the beginning of `whole`, in one family. */
static bool lies_at(const struct verify *v, int part, int whole, int64_t bytes)
{
  int64_t at, begin;
  return plan_root(v->plan, v->instr->use[part].buffer, &at) ==
             plan_root(v->plan, v->instr->use[whole].buffer, &begin) &&
         at - begin == bytes;
}

/* The optimizer writes this rank's part of the working copy, at its place in the whole unit if the
 * group shares the copy. */
static void check_working(struct verify *v)
{
  const int working = v->unit->working;
  const bool placed = v->unit->policy.working == WORKING_SHARED
                          ? plan_root(v->plan, working, NULL) == v->unit->shared &&
                                verify_is_place(v, working, v->unit->owned)
                          : v->plan->buffer[working].parent < 0;
  if (!placed)
    verify_fail(v, "writes %s, which is not at its place in the unit",
                v->plan->buffer[working].name);
}

/* The norm of this step must be known. */
static void check_norm(struct verify *v)
{
  for (int k = 0; k < v->now; k++)
    if (v->plan->instr[k].op == OP_METRICS)
      return;
  verify_fail(v, "reads the norm of the gradient before METRICS");
}

/* The bytes of the two gradients change places after each step, so nothing else may lie there. */
static void check_pending(struct verify *v)
{
  const struct plan_buffer *grads = verify_used(v, UPDATE_GRADS),
                           *pending = verify_used(v, UPDATE_PENDING);
  const bool both = grads->persistent && pending->persistent,
             whole = grads->parent < 0 && pending->parent < 0;
  if (!both || !whole || grads->tier != pending->tier || grads->bytes != pending->bytes)
    verify_fail(v, "keeps %s in %s, which cannot change places", grads->name, pending->name);
}

/* Over the ranks, each trained element is updated once: each rank updates its shard, and replicas
 * update the same shard by the same gradient. */
void check_update(struct verify *v)
{
  const int rank = v->plan->input.rank;
  const struct layout_range all = layout_part(&v->unit->layout, false);
  const int64_t mine = owned_elements(v),
                begin = mine < all.end ? mesh_index(&v->plan->mesh, MESH_SHARD, rank) * mine : 0;
  if (v->unit->owned.begin != begin || v->unit->owned.end != begin + mine)
    verify_fail(v, "updates another part of the unit than this rank's");
  if (verify_has(v, UPDATE_WORK) &&
      verify_used(v, UPDATE_WORK)->elements <
          (int64_t)optim_transform_workspace(&v->unit->segments, v->unit->policy.compute, all))
    verify_fail(v, "has too little room for a matrix of the unit");
  if (verify_has(v, UPDATE_METRICS))
    check_norm(v);
  if (verify_has(v, UPDATE_PENDING))
    check_pending(v);
  if (verify_has_working(v->plan, v->instr->unit))
    check_working(v);
}

/* UPDATE of the unit has written the same part of the working copy, from the same gradient. */
void check_repair(struct verify *v)
{
  const struct instr *update = v->instr;
  check_norm(v);
  while (update > v->plan->instr && !(update->op == OP_UPDATE && update->unit == v->instr->unit))
    update--;
  if (update->use[UPDATE_GRADS].buffer != v->instr->use[REPAIR_GRADS].buffer)
    verify_fail(v, "repairs by %s, which is not the gradient of its unit's UPDATE",
                verify_used(v, REPAIR_GRADS)->name);
}

/* The direction of this rank's range, at its place in that of the trained part. */
void check_gather_direction(struct verify *v)
{
  const int64_t type = (int64_t)dtype_size(verify_used(v, GATHER_DIRECTION_WHOLE)->dtype);
  if (!lies_at(v, GATHER_DIRECTION_PIECE, GATHER_DIRECTION_WHOLE, v->unit->owned.begin * type))
    verify_fail(v, "gathers %s, which is not at its place in the unit",
                verify_used(v, GATHER_DIRECTION_PIECE)->name);
}

/* Whether operand k has room for a codec that works on so many elements. */
static void check_work(struct verify *v, int k, const struct codec *codec, int64_t n, int parts)
{
  if (verify_has(v, k) && codec->ops && verify_used(v, k)->bytes < codec_work(codec, n, parts))
    verify_fail(v, "has too little room for its codec %s", codec->ops->name);
}

/* The residual is decoded. */
void check_magnitude(struct verify *v)
{
  check_work(v, MAGNITUDE_WORK, &v->unit->policy.residual, verify_members(v) * part_elements(v), 1);
}

/* A sample follows the scratch memory of both codecs. */
void check_encode(struct verify *v)
{
  const struct unit_policy *policy = &v->unit->policy;
  const int64_t part = part_elements(v);
  const int members = (int)verify_members(v);
  check_work(v, ENCODE_WORK, &policy->grads, part, members);
  check_work(v, ENCODE_WORK, &policy->residual, part * members, 1);
  if (policy->sample == 0 || v->status)
    return;
  const int64_t coded = codec_work(&policy->grads, part, members),
                lost = policy->residual.ops ? codec_work(&policy->residual, part * members, 1) : 0,
                rest = verify_used(v, ENCODE_WORK)->bytes - plan_sample_bytes(part);
  if (rest < 0 || rest / 256 * 256 < (coded > lost ? coded : lost))
    verify_fail(v, "has too little room to measure what its messages lose");
}

void check_decode_sum(struct verify *v)
{
  check_work(v, DECODE_SUM_WORK, &v->unit->policy.grads, part_elements(v), (int)verify_members(v));
}

/* verify_windows() proves that the shard is this rank's. */
void check_encode_params(struct verify *v)
{
  const struct codec *codec = &v->instr->attr.codec;
  const int64_t n = verify_used(v, ENCODE_PARAMS_SHARD)->elements;
  const int copy = v->instr->use[ENCODE_PARAMS_COPY].buffer;
  check_elements(v, ENCODE_PARAMS_MESSAGE, message_bytes(codec, n));
  check_work(v, ENCODE_PARAMS_WORK, codec, n, 1);
  if (copy >= 0 && (plan_root(v->plan, copy, NULL) != v->unit->copy ||
                    !verify_is_place(v, copy, v->unit->owned)))
    verify_fail(v, "reads %s, which is not at its place in the unit", v->plan->buffer[copy].name);
}

/* This rank's message must be at its place among those of all members. A kept message may be in
 * another buffer. */
void check_gather_messages(struct verify *v)
{
  const int64_t bytes = verify_used(v, GATHER_MESSAGES_MINE)->bytes, members = verify_members(v),
                index = mesh_index(&v->plan->mesh, verify_group(v), v->plan->input.rank);
  const bool apart = verify_keeps_messages(v->plan, v->instr->unit) &&
                     plan_root(v->plan, v->instr->use[GATHER_MESSAGES_MINE].buffer, NULL) !=
                         plan_root(v->plan, v->instr->use[GATHER_MESSAGES_ALL].buffer, NULL);
  if (!apart && !lies_at(v, GATHER_MESSAGES_MINE, GATHER_MESSAGES_ALL, index * bytes))
    verify_fail(v, "gathers %s, which is not at its place among the messages",
                verify_used(v, GATHER_MESSAGES_MINE)->name);
  check_elements(v, GATHER_MESSAGES_ALL, members * bytes);
}

/* Differences are added to the copy, and other messages make a new window. */
void check_decode_params(struct verify *v)
{
  const struct codec *codec = &v->instr->attr.codec;
  const struct plan_use *whole = &v->instr->use[DECODE_PARAMS_WHOLE];
  const int root = plan_root(v->plan, whole->buffer, NULL),
            mine[] = {v->unit->master, v->unit->frozen};
  const int64_t members = verify_members(v),
                n = verify_used(v, DECODE_PARAMS_WHOLE)->elements / members;
  const bool keeps = verify_keeps_copy(v->plan, v->instr->unit);
  if (keeps != (root == v->unit->copy) || keeps != (whole->access == ACCESS_ADD))
    verify_fail(v, "%s: differences are added to a copy, other messages write a window",
                verify_does(v->plan, whole).text);
  for (int m = 0; m < 2; m++)
    if (mine[m] >= 0 && root == plan_root(v->plan, mine[m], NULL))
      verify_fail(v, "decodes %s over the parameters that it holds",
                  verify_used(v, DECODE_PARAMS_WHOLE)->name);
  const bool kept = verify_keeps_messages(v->plan, v->instr->unit) &&
                    verify_is_place(v, whole->buffer, layout_part(&v->unit->layout, true));
  check_elements(
      v, DECODE_PARAMS_MESSAGES,
      members * (kept ? plan_message_bytes(v->plan, v->instr->unit) : message_bytes(codec, n)));
  check_work(v, DECODE_PARAMS_WORK, codec, n, (int)members);
}

void check_publish(struct verify *v)
{
  const int whole = v->instr->use[MOVE_TO].buffer;
  if (plan_root(v->plan, whole, NULL) != v->unit->shared ||
      !verify_is_place(v, whole, layout_part(&v->unit->layout, false)))
    verify_fail(v, "writes %s, which is not what its group updates of the copy that it shares",
                v->plan->buffer[whole].name);
}

void check_metrics(struct verify *v)
{
  check_elements(v, METRICS_LOSS, plan_losses(&v->plan->input) * (int64_t)sizeof(struct exactsum));
  check_elements(v, METRICS_OUT, plan_metrics_bytes(&v->plan->input));
}

void check_gather_grads(struct verify *v)
{
  check_elements(v, GATHER_GRADS_PIECE,
                 verify_used(v, GATHER_GRADS_WHOLE)->elements / verify_members(v));
}

/* This rank's trained or frozen shard on the device. For masters in host memory see
 * verify_windows(). */
static void check_shard(struct verify *v, int k, int shard)
{
  if (verify_has(v, k) && !verify_on_host(v->plan, v->instr->unit))
    check_buffer(v, k, shard);
}

void check_measure(struct verify *v)
{
  check_shard(v, MEASURE_TRAINED, v->unit->master);
  if (v->unit->kept >= 0)
    check_buffer(v, MEASURE_FROZEN, v->unit->kept);
  else
    check_shard(v, MEASURE_FROZEN, v->unit->frozen);
}

void check_scale(struct verify *v)
{
  check_shard(v, SCALE_TRAINED, v->unit->master);
}

/* A GATHER moves the trained part, from the masters or their copy, or the frozen part, from the
 * frozen shards, each to its place. */
void check_gather(struct verify *v)
{
  const struct plan *plan = v->plan;
  const int unit = v->instr->unit, shard = v->instr->use[GATHER_SHARD].buffer;
  const enum dtype type = verify_used(v, GATHER_SHARD)->dtype;
  if (type == DTYPE_U8 || (verify_encodes_params(plan, unit) && type == DTYPE_F32))
    verify_fail(
        v, "gathers parameters as they are, and its unit's travel in codec %s",
        codec_name(type == DTYPE_U8 ? &v->unit->policy.base : &v->unit->policy.weights, "none"));
  if (verify_on_host(plan, unit)) /* see check_fetched() */
    return;
  const bool frozen = shard == v->unit->frozen, coded = verify_keeps_codes(plan, unit),
             copied = !frozen && (coded || verify_has_working(plan, unit));
  const struct layout_range part = layout_part(&v->unit->layout, frozen);
  const enum dtype window = verify_window_type(plan, unit);
  int64_t offset;
  check_buffer(v, GATHER_SHARD,
               frozen   ? shard
               : coded  ? v->unit->codes
               : copied ? v->unit->working
                        : v->unit->master);
  check_elements(v, GATHER_SHARD, (part.end - part.begin) / verify_members(v));
  check_type(v, GATHER_SHARD, frozen ? v->unit->policy.frozen : copied ? window : DTYPE_F32);
  check_elements(v, GATHER_WHOLE, part.end - part.begin);
  plan_root(plan, v->instr->use[GATHER_WHOLE].buffer, &offset);
  if (offset != part.begin * (int64_t)dtype_size(window))
    verify_fail(v, "gathers %s to the wrong place in the unit", verify_used(v, GATHER_WHOLE)->name);
}

void check_decode(struct verify *v)
{
  const struct plan_input *input = &v->plan->input;
  const struct plan_buffer *cache = verify_used(v, DECODE_CACHE);
  if (cache->purpose != PURPOSE_CACHE || !cache->persistent || cache->unit != v->instr->unit)
    verify_fail(v, "changes %s in the place of its keys and values", cache->name);
  if ((uint64_t)cache->bytes < input->model->ops->cache_bytes(input->model, v->instr->stage,
                                                              input->shape.micro_batch,
                                                              input->capacity))
    verify_fail(v, "adds to %s, which is too small for %lld tokens", cache->name,
                (long long)input->capacity);
}

/* A sum is begun once per step. `mark`, per buffer: 1 + the instruction that began it, 0: none
 * yet. */
static void check_sum(struct verify *v, int k)
{
  const struct plan_use *use = &v->instr->use[k];
  if (v->row->operand[k].access != OPERAND_SUM || use->access != ACCESS_WRITE)
    return;
  if (v->mark[use->buffer])
    verify_fail(v, "writes %s and so loses what %s has put there", verify_used(v, k)->name,
                verify_name(v, v->mark[use->buffer] - 1).text);
  v->mark[use->buffer] = v->now + 1;
}

static void check_roles(struct verify *v)
{
  check_attributes(v);
  for (int k = 0; k < PLAN_MAX_USE && !v->status; k++)
    if (verify_has(v, k))
      check_facts(v, k);
  if (v->row->check && !v->status)
    v->row->check(v);
  for (int k = 0; k < PLAN_MAX_USE && !v->status; k++)
    if (verify_has(v, k))
      check_sum(v, k);
}

/* The plan's states must be those of the optimizer. */
static enum status check_states(const struct plan *plan)
{
  const struct optim_ops *ops = optim_ops(plan->input.optim.name);
  const int n = plan->input.mode == PLAN_TRAIN ? ops->n_states : 0;
  bool equal = plan->states == n;
  for (int s = 0; s < n && equal; s++)
    equal = plan->state[s] == &ops->state[s];
  if (equal)
    return STATUS_OK;
  return status_set(STATUS_PLAN, "the plan's %d states are not the %d of %s", plan->states, n,
                    ops->name);
}

enum status verify_roles(const struct plan *plan)
{
  struct verify v = {.plan = plan, .status = check_states(plan)};
  v.status = v.status ?: mem_new(MEM_META, plan->buffers, &v.mark);
  verify_walk(&v, check_roles);
  mem_free(v.mark);
  return v.status;
}
