/* Roles: each operand of an operation is the right buffer, with all of its elements. A sum is begun
 * once per step. */
#include "base/mem.h"
#include "plan/verify.h"

/* ---- the facts of an operand ---- */

/* Whether a residual is kept where the operand lies. verify_values() follows its copies. */
static bool is_home(const struct plan *plan, int unit, const struct operand *operand)
{
  static const enum operand_place places[] = {[DECK_RESIDUAL_DEVICE] = PLACE_DEVICE,
                                              [DECK_RESIDUAL_HOST] = PLACE_HOST,
                                              [DECK_RESIDUAL_NVME] = PLACE_DISK};
  return operand->place == places[plan->unit[unit].policy.residual_tier];
}

/* The only buffer allowed as this operand; -1: none; ANY: any. */
enum { ANY = -2 };
static int buffer_of_role(const struct plan *plan, int unit, const struct operand *operand)
{
  const bool stored = operand->role == ROLE_STORED_STATE;
  switch (operand->role) {
  case ROLE_MASTER: return plan->unit[unit].master;
  case ROLE_WORKING: return plan->unit[unit].working;
  case ROLE_PENDING: return plan->unit[unit].pending;
  case ROLE_STATE:
  case ROLE_STORED_STATE:
    return stored == verify_state_on_disk(plan, unit) ? plan->unit[unit].state[operand->index]
           : stored                                   ? -1
                                                      : ANY;
  case ROLE_METRICS: return plan->metrics;
  case ROLE_LOSS: return plan->loss;
  case ROLE_LOSS_HOST: return plan->loss_host;
  case ROLE_SUMMED_LOSS: return plan->on_host[LANE_REDUCE] ? plan->loss_host : plan->loss;
  case ROLE_SQUARES: return verify_squares_on_host(plan, unit) ? plan->squares : plan->metrics;
  case ROLE_HOST_SQUARES: return plan->squares;
  case ROLE_RESIDUAL: return is_home(plan, unit, operand) ? plan->unit[unit].residual : ANY;
  case ROLE_COPY: return plan->unit[unit].copy_mine;
  case ROLE_SCALES: return plan->unit[unit].scales;
  case ROLE_CODES: return plan->unit[unit].codes;
  default: return ANY;
  }
}

static enum status check_role(const struct plan *plan, int i, int k, int buffer)
{
  const struct plan_use *use = &plan->instr[i].use[k];
  if (use->buffer == buffer)
    return STATUS_OK;
  return verify_fail(plan, i, "%s %s in the place of %s", verify_verb(use->access),
                     plan->buffer[use->buffer].name,
                     buffer < 0 ? "nothing" : plan->buffer[buffer].name);
}

static enum status check_elements(const struct plan *plan, int i, int k, int64_t elements)
{
  const struct plan_use *use = &plan->instr[i].use[k];
  const struct plan_buffer *buffer = &plan->buffer[use->buffer];
  if (buffer->elements == elements)
    return STATUS_OK;
  return verify_fail(plan, i, "%s the %lld elements of %s where there must be %lld",
                     verify_verb(use->access), (long long)buffer->elements, buffer->name,
                     (long long)elements);
}

static enum status check_type(const struct plan *plan, int i, int k, enum dtype type)
{
  const struct plan_use *use = &plan->instr[i].use[k];
  const struct plan_buffer *buffer = &plan->buffer[use->buffer];
  if (buffer->dtype == type)
    return STATUS_OK;
  return verify_fail(plan, i, "%s %s in %s where there must be %s", verify_verb(use->access),
                     buffer->name, dtype_name(buffer->dtype), dtype_name(type));
}

/* A rank updates its shard, or without sharding all. */
static int64_t owned_elements(const struct plan *plan, int unit)
{
  const bool whole = plan->input.strategy == STRATEGY_NO_SHARD;
  return plan->unit[unit].layout.trained / (whole ? 1 : plan->input.shape.group);
}

/* A member gets a shard of the unit from a sum over its group, and over replicas a piece of that.
 * From a sum over its node it gets the shards of its index on all nodes. */
static int64_t part_elements(const struct plan *plan, const struct instr *instr)
{
  const int64_t trained = plan->unit[instr->unit].layout.trained;
  switch (verify_group(plan, instr)) {
  case GROUP_REPLICAS: return trained / plan->input.ranks;
  case GROUP_NODE: return trained / plan->input.shape.local_ranks;
  default: return trained / plan->input.shape.group;
  }
}

/* Messages are counted in bytes. */
static int64_t message_elements(const struct plan *plan, const struct instr *instr,
                                const struct operand *operand)
{
  const struct codec *codec = &instr->attr.codec;
  const bool plain = operand->type == TYPE_SENT && codec->ops->traits & CODEC_IDENTITY;
  const int64_t part = part_elements(plan, instr);
  return verify_members(plan, instr) * (plain ? part : codec->ops->bytes(codec, part));
}

/* One message of all that this rank sends. */
static int64_t residual_elements(const struct plan *plan, int unit)
{
  const struct codec *codec = &plan->unit[unit].policy.residual;
  return codec->ops->bytes(codec, verify_encoded(plan, unit));
}

static int64_t elements_of(const struct plan *plan, const struct instr *instr,
                           const struct operand *operand)
{
  const struct layout_unit *layout = instr->unit < 0 ? NULL : &plan->unit[instr->unit].layout;
  switch (operand->extent) {
  case EXTENT_UNIT: return layout->flat;
  case EXTENT_TRAINED: return layout->trained;
  case EXTENT_OWNED: return owned_elements(plan, instr->unit);
  case EXTENT_PIECE: return layout->trained / plan->input.ranks;
  case EXTENT_STATE: return verify_state_elements(plan, instr->unit, operand->index);
  case EXTENT_FIRST: return plan->buffer[instr->use[0].buffer].elements;
  case EXTENT_SUMMED: return verify_members(plan, instr) * part_elements(plan, instr);
  case EXTENT_PART: return part_elements(plan, instr);
  case EXTENT_RESIDUAL: return residual_elements(plan, instr->unit);
  case EXTENT_MEMBERS: return verify_members(plan, instr);
  case EXTENT_SCALES: return verify_scale_bytes(plan, instr->unit);
  case EXTENT_ONE: return 1;
  case EXTENT_MESSAGES: return message_elements(plan, instr, operand);
  default: return -1;
  }
}

static enum dtype type_of(const struct plan *plan, const struct instr *instr,
                          const struct operand *operand)
{
  switch (operand->type) {
  case TYPE_WINDOW: return verify_window_type(plan, instr->unit);
  case TYPE_COMPUTE: return plan->unit[instr->unit < 0 ? 0 : instr->unit].policy.compute;
  case TYPE_STATE: return plan->unit[instr->unit].policy.state;
  case TYPE_TOKENS: return DTYPE_I32;
  case TYPE_BYTES: return DTYPE_U8;
  case TYPE_SENT: return instr->attr.codec.ops->traits & CODEC_IDENTITY ? DTYPE_F32 : DTYPE_U8;
  case TYPE_FIRST: return plan->buffer[instr->use[0].buffer].dtype;
  default: return DTYPE_F32;
  }
}

static enum status check_facts(const struct plan *plan, int i, int k)
{
  const struct instr *instr = &plan->instr[i];
  const struct operand *operand = &op_rows[instr->op].operand[k];
  const int buffer = buffer_of_role(plan, instr->unit, operand);
  enum status status = buffer == ANY ? STATUS_OK : check_role(plan, i, k, buffer);
  if (!status && operand->extent != EXTENT_ANY)
    status = check_elements(plan, i, k, elements_of(plan, instr, operand));
  return status || operand->type == TYPE_ANY
             ? status
             : check_type(plan, i, k, type_of(plan, instr, operand));
}

/* The error for an update with another rule than the input's, another learning rate than its
 * unit's, or other random bits. */
static enum status check_optimizer(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const struct attributes *attr = &instr->attr;
  const struct optim_settings *optim = &plan->input.optim;
  const bool updates = op_rows[instr->op].updates,
             seeded = updates || op_rows[instr->op].coded || op_rows[instr->op].codes_params;
  const double clip = instr->op == OP_METRICS ? optim->clip : 0;
  const bool steps = instr->op == OP_UPDATE || instr->op == OP_REPAIR;
  const double lr_scale = steps ? plan->unit[instr->unit].policy.lr_scale : 0;
  if (attr->clip != clip)
    return verify_fail(plan, i, "clips to a norm of %g, where %g is asked for", attr->clip, clip);
  if (attr->optimizer != (updates ? optim->name : (enum optimizer)0))
    return verify_fail(plan, i, "updates by another optimizer than the plan's");
  if (attr->fp8 != plan_op_fp8(plan, instr->op, instr->unit))
    return verify_fail(plan, i, "has other products in fp8 than its unit");
  if (attr->lr_scale != lr_scale)
    return verify_fail(plan, i, "updates at %g of the learning rate, where %g is asked for",
                       attr->lr_scale, lr_scale);
  if (attr->stochastic != (updates && optim->stochastic) ||
      attr->seed != (seeded ? optim->seed : 0))
    return verify_fail(plan, i, "rounds in another way, or with another seed, than the plan");
  return STATUS_OK;
}

/* Ranks that send messages of one codec and receive messages of another would add up noise.
 * verify_values() proves that ENCODE and DECODE_SUM have the codec of the messages. */
static enum status check_codec(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const bool sends = op_rows[instr->op].collective != COLLECTIVE_NONE;
  const struct codec *mine = &instr->attr.codec, codec = verify_codec(plan, instr);
  if (mine->ops && (!sends || codec_equal(&codec, mine)))
    return STATUS_OK;
  return verify_fail(plan, i, "sends gradients by codec %s, and its unit's travel by codec %s",
                     mine->ops ? mine->ops->name : "(absent)", codec.ops->name);
}

/* A member's shards of all nodes are not adjacent. Each node's block is added up by itself. */
static enum status check_blocks(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const bool coded = op_rows[instr->op].coded;
  const int64_t blocks = !coded ? 0
                         : instr->attr.group == GROUP_NODE
                             ? plan->input.ranks / plan->input.shape.local_ranks
                             : 1;
  if (instr->attr.blocks == blocks)
    return STATUS_OK;
  return verify_fail(plan, i, "adds up %d blocks where there must be %lld", instr->attr.blocks,
                     (long long)blocks);
}

/* All members must decode the messages that all members encode. */
static enum status check_params_codec(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const struct codec *mine = &instr->attr.codec, *codec = &plan->unit[instr->unit].policy.weights;
  if (mine->ops && codec->ops && codec_equal(codec, mine))
    return STATUS_OK;
  return verify_fail(plan, i, "has parameters in codec %s, and its unit's travel in codec %s",
                     mine->ops ? mine->ops->name : "(absent)",
                     codec->ops ? codec->ops->name : "none");
}

static enum status check_attributes(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  if (instr->attr.group != verify_group(plan, instr))
    return verify_fail(plan, i, "meets another group than its own");
  enum status status = check_optimizer(plan, i);
  if (!status)
    status = check_blocks(plan, i);
  if (status)
    return status;
  if (op_rows[instr->op].coded)
    return check_codec(plan, i);
  if (op_rows[instr->op].codes_params)
    return check_params_codec(plan, i);
  return instr->attr.codec.ops ? verify_fail(plan, i, "has a codec and no messages") : STATUS_OK;
}

/* ---- beyond the facts ---- */

/* The optimizer writes this rank's part of the working copy, at its place in the whole unit if the
 * group shares the copy. */
static enum status check_working(const struct plan *plan, int i)
{
  const int unit = plan->instr[i].unit, shared = plan->unit[unit].shared,
            working = plan->unit[unit].working;
  const bool whole = plan->unit[unit].policy.working == WORKING_SHARED;
  if (whole ? plan_root(plan, working, NULL) != shared ||
                  !verify_is_place(plan, unit, working, plan->unit[unit].owned)
            : plan->buffer[working].parent >= 0)
    return verify_fail(plan, i, "writes %s, which is not at its place in the unit",
                       plan->buffer[working].name);
  return STATUS_OK;
}

/* The norm of this step must be known. */
static enum status check_norm(const struct plan *plan, int i)
{
  for (int k = 0; k < i; k++)
    if (plan->instr[k].op == OP_METRICS)
      return STATUS_OK;
  return verify_fail(plan, i, "reads the norm of the gradient before METRICS");
}

/* The bytes of the two gradients change places after each step, so nothing else may lie there. */
static enum status check_pending(const struct plan *plan, int i)
{
  const struct plan_use *use = plan->instr[i].use;
  const struct plan_buffer *grads = &plan->buffer[use[UPDATE_GRADS].buffer],
                           *pending = &plan->buffer[use[UPDATE_PENDING].buffer];
  const bool both = grads->persistent && pending->persistent,
             whole = grads->parent < 0 && pending->parent < 0;
  if (both && whole && grads->tier == pending->tier && grads->bytes == pending->bytes)
    return STATUS_OK;
  return verify_fail(plan, i, "keeps %s in %s, which cannot change places", grads->name,
                     pending->name);
}

/* Over the ranks, each trained element is updated once: each rank updates its shard, and replicas
 * update the same shard by the same gradient. */
enum status check_update(const struct plan *plan, int i)
{
  const struct plan_input *input = &plan->input;
  const struct instr *instr = &plan->instr[i];
  const int unit = instr->unit;
  const int64_t mine = owned_elements(plan, unit),
                begin = mine < plan->unit[unit].layout.trained
                            ? input->rank % input->shape.group * mine
                            : 0;
  if (plan->unit[unit].owned.begin != begin || plan->unit[unit].owned.end != begin + mine)
    return verify_fail(plan, i, "updates another part of the unit than this rank's");
  const struct layout_range all = {0, plan->unit[unit].layout.trained};
  if (instr->use[UPDATE_WORK].buffer >= 0 &&
      plan->buffer[instr->use[UPDATE_WORK].buffer].elements <
          (int64_t)optim_transform_workspace(&plan->unit[unit].segments,
                                             plan->unit[unit].policy.compute, all))
    return verify_fail(plan, i, "has too little room for a matrix of the unit");
  enum status status = STATUS_OK;
  if (instr->use[UPDATE_METRICS].buffer >= 0)
    status = check_norm(plan, i);
  if (!status && instr->use[UPDATE_PENDING].buffer >= 0)
    status = check_pending(plan, i);
  return status || !verify_has_working(plan, unit) ? status : check_working(plan, i);
}

/* UPDATE of the unit has written the same part of the working copy, from the same gradient. */
enum status check_repair(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const enum status status = check_norm(plan, i);
  int update = i;
  while (update > 0 &&
         !(plan->instr[update].op == OP_UPDATE && plan->instr[update].unit == instr->unit))
    update--;
  if (status || plan->instr[update].use[UPDATE_GRADS].buffer == instr->use[REPAIR_GRADS].buffer)
    return status;
  return verify_fail(plan, i, "repairs by %s, which is not the gradient of its unit's UPDATE",
                     plan->buffer[instr->use[REPAIR_GRADS].buffer].name);
}

/* The direction of this rank's range, at its place in that of the trained part. */
enum status check_gather_direction(const struct plan *plan, int i)
{
  const struct plan_use *use = plan->instr[i].use;
  const int piece = use[GATHER_DIRECTION_PIECE].buffer, whole = use[GATHER_DIRECTION_WHOLE].buffer;
  int64_t at, begin;
  const bool inside = plan_root(plan, piece, &at) == plan_root(plan, whole, &begin);
  const int64_t place =
      plan->unit[plan->instr[i].unit].owned.begin * (int64_t)dtype_size(plan->buffer[whole].dtype);
  if (!inside || at - begin != place)
    return verify_fail(plan, i, "gathers %s, which is not at its place in the unit",
                       plan->buffer[piece].name);
  return STATUS_OK;
}

/* Whether operand k has room for a codec that works on so many elements. */
static enum status check_work(const struct plan *plan, int i, int k, const struct codec *codec,
                              int64_t n, int parts)
{
  const struct plan_use *use = &plan->instr[i].use[k];
  if (use->buffer < 0 || !codec->ops ||
      plan->buffer[use->buffer].bytes >= codec_work(codec, n, parts))
    return STATUS_OK;
  return verify_fail(plan, i, "has too little room for its codec %s", codec->ops->name);
}

/* The sample follows the scratch memory of both codecs. */
static enum status check_sample(const struct plan *plan, int i, int64_t part, int members)
{
  const struct instr *instr = &plan->instr[i];
  const struct unit_policy *policy = &plan->unit[instr->unit].policy;
  const int64_t coded = codec_work(&policy->grads, part, members),
                lost = policy->residual.ops ? codec_work(&policy->residual, part * members, 1) : 0,
                bytes = plan->buffer[instr->use[ENCODE_WORK].buffer].bytes,
                rest = bytes - plan_sample_bytes(part);
  if (rest < 0 || rest / 256 * 256 < (coded > lost ? coded : lost))
    return verify_fail(plan, i, "has too little room to measure what its messages lose");
  return STATUS_OK;
}

/* The residual is decoded. */
enum status check_magnitude(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const int64_t elements = verify_members(plan, instr) * part_elements(plan, instr);
  return check_work(plan, i, MAGNITUDE_WORK, &plan->unit[instr->unit].policy.residual, elements, 1);
}

enum status check_encode(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const int64_t part = part_elements(plan, instr);
  const int members = (int)verify_members(plan, instr);
  const struct unit_policy *policy = &plan->unit[instr->unit].policy;
  enum status status = check_work(plan, i, ENCODE_WORK, &policy->grads, part, members);
  if (!status)
    status = check_work(plan, i, ENCODE_WORK, &policy->residual, part * members, 1);
  return status || policy->sample == 0 ? status : check_sample(plan, i, part, members);
}

enum status check_decode_sum(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  return check_work(plan, i, DECODE_SUM_WORK, &plan->unit[instr->unit].policy.grads,
                    part_elements(plan, instr), (int)verify_members(plan, instr));
}

/* The elements of one member's part, trained or frozen, of a window or a copy that is decoded. */
static int64_t decoded_elements(const struct plan *plan, const struct instr *instr)
{
  return plan->buffer[instr->use[DECODE_PARAMS_WHOLE].buffer].elements /
         verify_members(plan, instr);
}

/* verify_windows() proves that the shard is this rank's. */
enum status check_encode_params(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const struct codec *codec = &instr->attr.codec;
  const int64_t n = plan->buffer[instr->use[ENCODE_PARAMS_SHARD].buffer].elements;
  const int copy = instr->use[ENCODE_PARAMS_COPY].buffer;
  enum status status = check_elements(plan, i, ENCODE_PARAMS_MESSAGE, codec->ops->bytes(codec, n));
  if (!status)
    status = check_work(plan, i, ENCODE_PARAMS_WORK, codec, n, 1);
  if (status || copy < 0)
    return status;
  if (plan_root(plan, copy, NULL) != plan->unit[instr->unit].copy ||
      !verify_is_place(plan, instr->unit, copy, plan->unit[instr->unit].owned))
    return verify_fail(plan, i, "reads %s, which is not at its place in the unit",
                       plan->buffer[copy].name);
  return STATUS_OK;
}

/* This rank's message must be at its place among those of all members. */
enum status check_gather_messages(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const int mine = instr->use[GATHER_MESSAGES_MINE].buffer,
            all = instr->use[GATHER_MESSAGES_ALL].buffer;
  const int64_t bytes = plan->buffer[mine].bytes, members = verify_members(plan, instr),
                index = plan->input.rank % members;
  int64_t at, begin;
  const bool inside = plan_root(plan, mine, &at) == plan_root(plan, all, &begin);
  if (!inside || at - begin != index * bytes)
    return verify_fail(plan, i, "gathers %s, which is not at its place among the messages",
                       plan->buffer[mine].name);
  return check_elements(plan, i, GATHER_MESSAGES_ALL, members * bytes);
}

static bool lies_around(const struct plan *plan, int whole, int mine)
{
  return mine >= 0 && plan_root(plan, whole, NULL) == plan_root(plan, mine, NULL);
}

/* Differences are added to the copy, and other messages make a new window. */
enum status check_decode_params(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const struct codec *codec = &instr->attr.codec;
  const struct plan_use *whole = &instr->use[DECODE_PARAMS_WHOLE];
  const int64_t n = decoded_elements(plan, instr), members = verify_members(plan, instr);
  const bool keeps = verify_keeps_copy(plan, instr->unit);
  if (keeps != (plan_root(plan, whole->buffer, NULL) == plan->unit[instr->unit].copy) ||
      keeps != (whole->access == ACCESS_ADD))
    return verify_fail(plan, i,
                       "%s %s: differences are added to a copy, other messages write a window",
                       verify_verb(whole->access), plan->buffer[whole->buffer].name);
  if (lies_around(plan, whole->buffer, plan->unit[instr->unit].master) ||
      lies_around(plan, whole->buffer, plan->unit[instr->unit].frozen))
    return verify_fail(plan, i, "decodes %s over the parameters that it holds",
                       plan->buffer[whole->buffer].name);
  const enum status status =
      check_elements(plan, i, DECODE_PARAMS_MESSAGES, members * codec->ops->bytes(codec, n));
  return status ? status : check_work(plan, i, DECODE_PARAMS_WORK, codec, n, (int)members);
}

enum status check_publish(const struct plan *plan, int i)
{
  const int unit = plan->instr[i].unit, whole = plan->instr[i].use[MOVE_TO].buffer;
  if (plan_root(plan, whole, NULL) != plan->unit[unit].shared ||
      !verify_is_place(plan, unit, whole,
                       (struct layout_range){0, plan->unit[unit].layout.trained}))
    return verify_fail(plan, i,
                       "writes %s, which is not what its group updates of the copy that it shares",
                       plan->buffer[whole].name);
  return STATUS_OK;
}

enum status check_metrics(const struct plan *plan, int i)
{
  return check_elements(plan, i, METRICS_OUT, sizeof(struct plan_metrics));
}

/* Operand `part` is one part of a whole that the members share evenly. */
static enum status check_part(const struct plan *plan, int i, int whole, int part)
{
  const struct instr *instr = &plan->instr[i];
  return check_elements(
      plan, i, part, plan->buffer[instr->use[whole].buffer].elements / verify_members(plan, instr));
}

enum status check_gather_grads(const struct plan *plan, int i)
{
  return check_part(plan, i, GATHER_GRADS_WHOLE, GATHER_GRADS_PIECE);
}

/* This rank's trained or frozen shard on the device. For masters in host memory see
 * verify_windows(). */
static enum status check_shard(const struct plan *plan, int i, int k, bool frozen)
{
  const int unit = plan->instr[i].unit;
  if (plan->instr[i].use[k].buffer < 0 || verify_on_host(plan, unit))
    return STATUS_OK;
  return check_role(plan, i, k, frozen ? plan->unit[unit].frozen : plan->unit[unit].master);
}

enum status check_measure(const struct plan *plan, int i)
{
  const enum status status = check_shard(plan, i, MEASURE_TRAINED, false);
  return status ? status : check_shard(plan, i, MEASURE_FROZEN, true);
}

enum status check_scales(const struct plan *plan, int i)
{
  return check_shard(plan, i, SCALES_TRAINED, false);
}

/* A GATHER moves the trained part, from the masters or their copy, or the frozen part, from the
 * frozen shards, each to its place. */
enum status check_gather(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const int unit = instr->unit, shard = instr->use[GATHER_SHARD].buffer,
            whole = instr->use[GATHER_WHOLE].buffer;
  if (verify_encodes_params(plan, unit))
    return verify_fail(plan, i, "gathers parameters as they are, and its unit's travel in codec %s",
                       plan->unit[unit].policy.weights.ops->name);
  if (verify_on_host(plan, unit)) /* see check_fetched() */
    return STATUS_OK;
  const struct layout_unit *layout = &plan->unit[unit].layout;
  const bool frozen = shard == plan->unit[unit].frozen, coded = verify_keeps_codes(plan, unit),
             copied = !frozen && (coded || verify_has_working(plan, unit));
  const int64_t begin = frozen ? layout->trained : 0,
                elements = frozen ? layout->flat - layout->trained : layout->trained;
  int64_t offset;
  const int source = coded    ? plan->unit[unit].codes
                     : copied ? plan->unit[unit].working
                              : plan->unit[unit].master;
  enum status status = frozen ? STATUS_OK : check_role(plan, i, GATHER_SHARD, source);
  if (!status)
    status = check_elements(plan, i, GATHER_SHARD, elements / verify_members(plan, instr));
  if (!status)
    status = check_type(plan, i, GATHER_SHARD, copied ? verify_window_type(plan, unit) : DTYPE_F32);
  if (!status)
    status = check_elements(plan, i, GATHER_WHOLE, elements);
  plan_root(plan, whole, &offset);
  if (!status && offset != begin * (int64_t)dtype_size(verify_window_type(plan, unit)))
    return verify_fail(plan, i, "gathers %s to the wrong place in the unit",
                       plan->buffer[whole].name);
  return status;
}

enum status check_decode(const struct plan *plan, int i)
{
  const struct plan_input *input = &plan->input;
  const struct plan_buffer *cache = &plan->buffer[plan->instr[i].use[DECODE_CACHE].buffer];
  if (cache->purpose != PURPOSE_CACHE || !cache->persistent || cache->unit != plan->instr[i].unit)
    return verify_fail(plan, i, "changes %s in the place of its keys and values", cache->name);
  size_t needed =
      input->model->ops->cache_bytes(input->model, input->shape.micro_batch, input->capacity);
  if ((uint64_t)cache->bytes < needed)
    return verify_fail(plan, i, "adds to %s, which is too small for %lld tokens", cache->name,
                       (long long)input->capacity);
  return STATUS_OK;
}

static enum status check_roles(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  op_check *const check = op_rows[instr->op].check;
  enum status status = check_attributes(plan, i);
  for (int k = 0; k < PLAN_MAX_USE && !status; k++)
    if (instr->use[k].buffer >= 0)
      status = check_facts(plan, i, k);
  return status || !check ? status : check(plan, i);
}

/* A sum is begun once per step. `begun`, per buffer: 1 + the instruction that began it, 0: none
 * yet. */
static enum status check_sums(const struct plan *plan, int i, int *begun)
{
  const struct instr *instr = &plan->instr[i];
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    const struct plan_use *use = &instr->use[k];
    if (use->buffer < 0 || op_rows[instr->op].operand[k].access != OPERAND_SUM ||
        use->access != ACCESS_WRITE)
      continue;
    if (begun[use->buffer])
      return verify_fail(plan, i, "writes %s and so loses what %s has put there",
                         plan->buffer[use->buffer].name,
                         verify_name(plan, begun[use->buffer] - 1, i).text);
    begun[use->buffer] = i + 1;
  }
  return STATUS_OK;
}

/* The plan's states must be those of the optimizer. */
static enum status check_states(const struct plan *plan)
{
  const struct optim_ops *ops = optim_ops(plan->input.optim.name);
  const int n = plan->input.mode == PLAN_TRAIN ? ops->n_states : 0;
  bool equal = plan->states == n;
  for (int s = 0; s < n && equal; s++)
    equal =
        plan->state[s].row == &ops->state[s] && plan->state[s].dtype == plan->unit[0].policy.state;
  if (equal)
    return STATUS_OK;
  return status_set(STATUS_PLAN, "the plan's %d states are not the %d of %s", plan->states, n,
                    ops->name);
}

enum status verify_roles(const struct plan *plan)
{
  int *begun;
  enum status status = check_states(plan);
  if (!status)
    status = mem_new(MEM_META, plan->buffers, &begun);
  if (status)
    return status;
  for (int i = 0; i < plan->n && !status; i++) {
    status = check_roles(plan, i);
    if (!status)
      status = check_sums(plan, i, begun);
  }
  mem_free(begun);
  return status;
}
