/* Values: every read finds the value that the instruction needs. Values are followed through one
 * step. An update reads the complete sum and nothing else. Data that return from another tier are
 * the data that were sent there. */
#include "base/mem.h"
#include "plan/verify.h"

enum kind {
  VALUE_OTHER,
  VALUE_TOKENS,
  VALUE_STREAM,
  VALUE_SAVED,
  VALUE_STREAM_GRADIENT,
  VALUE_GRADIENT,
  VALUE_MAGNITUDE, /* the largest magnitude of the gradients of a group's members */
  VALUE_ENCODED,   /* one message for each member of a group */
  VALUE_RECEIVED,  /* one message of each member of a group */
  VALUE_OLD_STATE, /* as the step before has left it */
  VALUE_STATE,
  VALUE_DIRECTION, /* of this rank's range, or with `ranks` > 1 of all */
  VALUE_WORKING,
  VALUE_SPECULATION, /* the same, if the gradient is not clipped */
  VALUE_RESIDUAL     /* after `micros` sums of this step */
};

/* The value of a buffer. A gradient is a sum over so many ranks and micro-batches, from `micro` on,
 * of the parts of the unit itself and of the embedding. Messages hold the sum that each sender had.
 * A block's input may have moved to another tier, then it is no longer here. */
struct value {
  enum kind kind;
  int unit, micro;
  int ranks, micros,
      embeds;            /* micros of VALUE_RESIDUAL: number of sums of this step that changed it */
  enum plan_group group; /* of messages: the group whose members exchange them, and the codec */
  struct codec codec;
  int state; /* number of the state, for VALUE_STATE and VALUE_OLD_STATE */
  bool gone;
};

static const char *const words_of[] = {
    [VALUE_OTHER] = "nothing",
    [VALUE_TOKENS] = "the tokens of its micro-batch",
    [VALUE_STREAM] = "the block's input",
    [VALUE_SAVED] = "the block's activations",
    [VALUE_STREAM_GRADIENT] = "the gradient by the block's output",
    [VALUE_GRADIENT] = "the unit's gradient",
    [VALUE_MAGNITUDE] = "the largest magnitude of the unit's gradient",
    [VALUE_ENCODED] = "the messages of the unit's gradient",
    [VALUE_RECEIVED] = "the messages of the unit's gradient from all members of its group",
    [VALUE_OLD_STATE] = "the unit's state from the disk",
    [VALUE_STATE] = "the unit's state after its update",
    [VALUE_DIRECTION] = "the direction of the unit's matrices",
    [VALUE_WORKING] = "the unit's parameters after their update",
    [VALUE_SPECULATION] = "the unit's parameters after an update without clipping",
    [VALUE_RESIDUAL] = "what the messages of the unit have lost",
};

struct walker {
  const struct plan *plan;
  struct value *value; /* by buffer */
  int *next;           /* by buffer: see verify_families() */
  int now;             /* instruction */
};

static int buffer_of(const struct walker *w, int k)
{
  return w->plan->instr[w->now].use[k].buffer;
}

/* A part has the whole's value until it gets one of its own. */
static struct value value_of(const struct walker *w, int k)
{
  int buffer = buffer_of(w, k);
  while (w->value[buffer].kind == VALUE_OTHER && w->plan->buffer[buffer].parent >= 0)
    buffer = w->plan->buffer[buffer].parent;
  return w->value[buffer];
}

/* Sets a value. Other buffers of the same family that share bytes lose their value. */
static void set_value(const struct walker *w, int k, struct value value)
{
  int buffer = buffer_of(w, k);
  const struct plan_buffer *set = &w->plan->buffer[buffer];
  for (int b = plan_root(w->plan, buffer, NULL); b >= 0; b = w->next[b]) {
    const struct plan_buffer *other = &w->plan->buffer[b];
    if (other->offset < set->offset + set->bytes && set->offset < other->offset + other->bytes)
      w->value[b] = (struct value){0};
  }
  w->value[buffer] = value;
}

static enum status expect(const struct walker *w, int k, enum kind kind, int unit, int micro)
{
  struct value value = value_of(w, k);
  if (value.kind == kind && value.unit == unit && value.micro == micro)
    return STATUS_OK;
  return verify_fail(w->plan, w->now, "reads %s, which is not %s",
                     w->plan->buffer[buffer_of(w, k)].name, words_of[kind]);
}

static enum status expect_here(const struct walker *w, int k, enum kind kind, int unit)
{
  enum status status = expect(w, k, kind, unit, w->plan->instr[w->now].micro);
  if (status || !value_of(w, k).gone)
    return status;
  return verify_fail(w->plan, w->now, "reads %s, from where it has gone to another tier",
                     w->plan->buffer[buffer_of(w, k)].name);
}

/* Checks an input of a block's backward pass. */
static enum status expect_input(const struct walker *w, int k)
{
  return expect_here(w, k, VALUE_STREAM, w->plan->instr[w->now].unit - 1);
}

static enum status expect_saved(const struct walker *w, int k)
{
  return expect_here(w, k, VALUE_SAVED, w->plan->instr[w->now].unit);
}

/* A move of a block's activations, to another tier or back. */
enum status value_kept(const struct walker *w)
{
  enum status status = verify_recomputes(w->plan, w->plan->instr[w->now].unit)
                           ? expect_input(w, MOVE_FROM)
                           : expect_saved(w, MOVE_FROM);
  if (status)
    return status;
  set_value(w, MOVE_TO, value_of(w, MOVE_FROM));
  w->value[buffer_of(w, MOVE_FROM)].gone = true;
  return STATUS_OK;
}

/* The backward pass begins or continues a sum, in the order of the micro-batches. */
static enum status add_gradient(const struct walker *w, int k)
{
  const struct instr *instr = &w->plan->instr[w->now];
  bool embeds = instr->op == OP_EMBED_BACKWARD;
  struct value sum = {
      .kind = VALUE_GRADIENT, .unit = instr->unit, .micro = instr->micro, .ranks = 1};
  if (instr->use[k].access == ACCESS_ADD)
    sum = value_of(w, k);
  int next = sum.micro + (embeds ? sum.embeds : sum.micros);
  if (sum.kind != VALUE_GRADIENT || sum.unit != instr->unit || sum.ranks != 1 ||
      next != instr->micro)
    return verify_fail(w->plan, w->now,
                       "adds to %s, which is not the sum over the micro-batches before it",
                       w->plan->buffer[buffer_of(w, k)].name);
  *(embeds ? &sum.embeds : &sum.micros) += 1;
  set_value(w, k, sum);
  return STATUS_OK;
}

/* One sum continues where the other ends. */
static enum status join_sums(const struct walker *w, int k, struct value more)
{
  struct value sum = value_of(w, k);
  int behind = sum.micro + (sum.micros > sum.embeds ? sum.micros : sum.embeds);
  if (sum.kind != VALUE_GRADIENT || sum.unit != more.unit || sum.ranks != more.ranks ||
      behind != more.micro)
    return verify_fail(w->plan, w->now,
                       "adds to %s, which is not the sum over the micro-batches before it",
                       w->plan->buffer[buffer_of(w, k)].name);
  sum.micros += more.micros;
  sum.embeds += more.embeds;
  set_value(w, k, sum);
  return STATUS_OK;
}

/* The sum must be of its unit and, if the instruction has one, of this micro-batch. */
static enum status expect_sum(const struct walker *w, int k, enum kind kind)
{
  const struct instr *instr = &w->plan->instr[w->now];
  return expect(w, k, kind, instr->unit, instr->micro < 0 ? value_of(w, k).micro : instr->micro);
}

static enum status expect_gradient(const struct walker *w, int k)
{
  return expect_sum(w, k, VALUE_GRADIENT);
}

/* Ranks over which a member of the group has summed the data that it sends: itself alone, or all
 * ranks of its shard group or node. */
static int summed_ranks(const struct plan *plan, enum plan_group group)
{
  switch (group) {
  case GROUP_REPLICAS: return plan->input.shape.group;
  case GROUP_ACROSS: return plan->input.shape.local_ranks;
  default: return 1;
  }
}

static enum status expect_own_sum(const struct walker *w, int k)
{
  const struct instr *instr = &w->plan->instr[w->now];
  const int ranks = summed_ranks(w->plan, instr->attr.group);
  const enum status status = expect_gradient(w, k);
  if (status || value_of(w, k).ranks == ranks)
    return status;
  return verify_fail(w->plan, w->now,
                     "reads %s, the sum over %d ranks where its group adds up sums over %d",
                     w->plan->buffer[buffer_of(w, k)].name, value_of(w, k).ranks, ranks);
}

/* Messages between the members of the instruction's group, by its codec. */
static enum status expect_messages(const struct walker *w, int k, enum kind kind)
{
  const struct attributes *attr = &w->plan->instr[w->now].attr;
  const struct value value = value_of(w, k);
  const enum status status = expect_sum(w, k, kind);
  if (status || (value.group == attr->group && codec_equal(&value.codec, &attr->codec)))
    return status;
  return verify_fail(w->plan, w->now, "reads %s, messages of another %s than its own",
                     w->plan->buffer[buffer_of(w, k)].name,
                     value.group == attr->group ? "codec" : "group");
}

/* Messages, or the gradient itself if the codec sends it as it is. */
static enum status expect_sent(const struct walker *w, int k)
{
  const struct codec *codec = &w->plan->instr[w->now].attr.codec;
  return codec->ops->traits & CODEC_IDENTITY ? expect_own_sum(w, k)
                                             : expect_messages(w, k, VALUE_ENCODED);
}

static void set_messages(const struct walker *w, int from, int to, enum kind kind)
{
  const struct attributes *attr = &w->plan->instr[w->now].attr;
  struct value value = value_of(w, from);
  value.kind = kind;
  value.group = attr->group;
  value.codec = attr->codec;
  set_value(w, to, value);
}

/* The sum of all members' data, which begins a sum or continues another one. */
static enum status sum_messages(const struct walker *w, int from, int to)
{
  const struct instr *instr = &w->plan->instr[w->now];
  struct value sum = value_of(w, from);
  sum.kind = VALUE_GRADIENT;
  sum.ranks *= (int)verify_members(w->plan, instr);
  if (instr->use[to].access == ACCESS_ADD)
    return join_sums(w, to, sum);
  set_value(w, to, sum);
  return STATUS_OK;
}

/* Before the first sum of a step, a residual in its own tier is as the step before left it. */
static struct value residual_at(const struct walker *w, int k)
{
  const int unit = w->plan->instr[w->now].unit;
  const struct value value = value_of(w, k);
  const bool old = value.kind == VALUE_OTHER && buffer_of(w, k) == w->plan->unit[unit].residual;
  return old ? (struct value){.kind = VALUE_RESIDUAL, .unit = unit} : value;
}

/* Each ENCODE reads the residual that the previous ENCODE of the unit wrote. */
static enum status expect_residual(const struct walker *w, int k, int sums)
{
  const struct instr *instr = &w->plan->instr[w->now];
  const struct value value = residual_at(w, k);
  const char *const name = w->plan->buffer[buffer_of(w, k)].name;
  if (value.kind != VALUE_RESIDUAL || value.unit != instr->unit)
    return verify_fail(w->plan, w->now, "reads %s, which is not %s", name,
                       words_of[VALUE_RESIDUAL]);
  if (value.micros == sums)
    return STATUS_OK;
  return verify_fail(w->plan, w->now,
                     "reads %s as %d sums of this step have left it, where %d have", name,
                     value.micros, sums);
}

/* Reads the residual before the instruction's sum. */
static int sums_before(const struct walker *w)
{
  const int micro = w->plan->instr[w->now].micro;
  return micro > 0 ? micro : 0;
}

static void set_residual(const struct walker *w, int k, int sums)
{
  const int unit = w->plan->instr[w->now].unit;
  set_value(w, k, (struct value){.kind = VALUE_RESIDUAL, .unit = unit, .micros = sums});
}

/* Moves a residual to ENCODE, or back from it. */
enum status value_residual(const struct walker *w)
{
  const enum op op = w->plan->instr[w->now].op;
  const bool back = op == OP_SAVE_RESIDUAL || op == OP_WRITE_RESIDUAL;
  const int sums = sums_before(w) + back;
  const enum status status = expect_residual(w, MOVE_FROM, sums);
  if (status)
    return status;
  set_residual(w, MOVE_TO, sums);
  if (buffer_of(w, MOVE_FROM) != w->plan->unit[w->plan->instr[w->now].unit].residual)
    set_value(w, MOVE_FROM, (struct value){0}); /* a copy has moved on */
  return STATUS_OK;
}

static enum status encode_residual(const struct walker *w)
{
  const enum status status = expect_residual(w, ENCODE_RESIDUAL, sums_before(w));
  if (!status)
    set_residual(w, ENCODE_RESIDUAL, sums_before(w) + 1);
  return status;
}

/* A gradient to which a residual was added is still a gradient. */
enum status value_magnitude(const struct walker *w)
{
  enum status status = expect_own_sum(w, MAGNITUDE_GRADS);
  if (!status && w->plan->instr[w->now].use[MAGNITUDE_RESIDUAL].buffer >= 0)
    status = expect_residual(w, MAGNITUDE_RESIDUAL, sums_before(w));
  if (!status)
    set_messages(w, MAGNITUDE_GRADS, MAGNITUDE_LARGEST, VALUE_MAGNITUDE);
  return status;
}

/* The largest magnitude must be that of the encoded data, over all members that encode. */
static enum status expect_largest(const struct walker *w)
{
  const struct value sum = value_of(w, ENCODE_GRADS), of = value_of(w, ENCODE_LARGEST);
  const enum status status = expect_messages(w, ENCODE_LARGEST, VALUE_MAGNITUDE);
  if (status || (sum.micro == of.micro && sum.micros == of.micros && sum.embeds == of.embeds))
    return status;
  return verify_fail(w->plan, w->now, "reads %s, the largest magnitude of another sum",
                     w->plan->buffer[buffer_of(w, ENCODE_LARGEST)].name);
}

enum status value_encode(const struct walker *w)
{
  enum status status = expect_own_sum(w, ENCODE_GRADS);
  if (!status && w->plan->instr[w->now].use[ENCODE_LARGEST].buffer >= 0)
    status = expect_largest(w);
  if (!status && w->plan->instr[w->now].use[ENCODE_RESIDUAL].buffer >= 0)
    status = encode_residual(w);
  if (status)
    return status;
  set_messages(w, ENCODE_GRADS, ENCODE_MESSAGES, VALUE_ENCODED);
  if (w->plan->instr[w->now].use[ENCODE_GRADS].access == ACCESS_ADD)
    set_value(w, ENCODE_GRADS,
              (struct value){0}); /* the error of the message, no longer a gradient */
  return STATUS_OK;
}

enum status value_exchange(const struct walker *w)
{
  const enum status status = expect_sent(w, EXCHANGE_SENT);
  if (!status)
    set_messages(w, EXCHANGE_SENT, EXCHANGE_RECEIVED, VALUE_RECEIVED);
  return status;
}

enum status value_decode_sum(const struct walker *w)
{
  const enum status status = expect_messages(w, DECODE_SUM_MESSAGES, VALUE_RECEIVED);
  return status ? status : sum_messages(w, DECODE_SUM_MESSAGES, DECODE_SUM_SHARD);
}

enum status value_sum_shared(const struct walker *w)
{
  const enum status status = expect_sent(w, SUM_SHARED_SENT);
  return status ? status : sum_messages(w, SUM_SHARED_SENT, SUM_SHARED_SHARD);
}

/* A gradient that is moved without a change. */
enum status value_gradient(const struct walker *w)
{
  enum status status = expect_gradient(w, MOVE_FROM);
  if (!status)
    set_value(w, MOVE_TO, value_of(w, MOVE_FROM));
  return status;
}

enum status value_accumulate(const struct walker *w)
{
  const enum status status = expect_gradient(w, ACCUMULATE_LANDED);
  return status ? status : join_sums(w, ACCUMULATE_GRADS, value_of(w, ACCUMULATE_LANDED));
}

/* The sum must have each rank and each micro-batch once. */
static enum status expect_whole_sum(const struct walker *w, int k)
{
  const struct plan_input *input = &w->plan->input;
  int unit = w->plan->instr[w->now].unit, micros = (int)input->shape.micros;
  struct value sum = value_of(w, k);
  enum status status = expect(w, k, VALUE_GRADIENT, unit, 0);
  if (status)
    return status;
  bool own = verify_is_block(w->plan, unit) || unit == input->model->head,
       embeds = unit == 0 && verify_embedding_learns(w->plan);
  if (sum.ranks == input->ranks && sum.micros == (own ? micros : 0) &&
      sum.embeds == (embeds ? micros : 0))
    return STATUS_OK;
  return verify_fail(w->plan, w->now,
                     "reads %s, the sum over %d of %d ranks and %d of %d micro-batches",
                     w->plan->buffer[buffer_of(w, k)].name, sum.ranks, input->ranks,
                     own ? sum.micros : sum.embeds, micros);
}

enum status value_squares(const struct walker *w)
{
  return expect_whole_sum(w, SQUARES_GRADS);
}

static enum status expect_state(const struct walker *w, int k, enum kind kind, int state)
{
  const int unit = w->plan->instr[w->now].unit;
  if (value_of(w, k).kind == kind && value_of(w, k).state != state)
    kind = VALUE_OTHER; /* another state than the one that belongs there */
  return expect(w, k, kind, unit, 0);
}

static void set_state(const struct walker *w, int k, enum kind kind, int state)
{
  set_value(w, k,
            (struct value){.kind = kind, .unit = w->plan->instr[w->now].unit, .state = state});
}

/* The ranks whose ranges together are the unit. */
static int shards_of(const struct walker *w)
{
  const struct plan_input *input = &w->plan->input;
  return input->strategy == STRATEGY_NO_SHARD ? 1 : input->shape.group;
}

enum status value_direction(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  const enum status status = expect_whole_sum(w, DIRECTION_GRADS);
  if (status)
    return status;
  set_state(w, DIRECTION_STATE, VALUE_STATE, 0);
  set_value(w, DIRECTION_OUT,
            (struct value){.kind = VALUE_DIRECTION, .unit = instr->unit, .ranks = 1});
  return STATUS_OK;
}

enum status value_gather_direction(const struct walker *w)
{
  const int unit = w->plan->instr[w->now].unit;
  const enum status status = expect(w, GATHER_DIRECTION_PIECE, VALUE_DIRECTION, unit, 0);
  if (!status)
    set_value(w, GATHER_DIRECTION_WHOLE,
              (struct value){.kind = VALUE_DIRECTION, .unit = unit, .ranks = shards_of(w)});
  return status;
}

/* UPDATE works in place, so afterwards the buffer is no direction. */
static enum status spend_direction(const struct walker *w)
{
  const enum status status =
      expect(w, UPDATE_DIRECTION, VALUE_DIRECTION, w->plan->instr[w->now].unit, 0);
  if (status)
    return status;
  if (value_of(w, UPDATE_DIRECTION).ranks != shards_of(w))
    return verify_fail(w->plan, w->now, "reads a direction that the ranks have not gathered");
  set_value(w, UPDATE_DIRECTION, (struct value){0});
  return STATUS_OK;
}

/* The state on the disk is as the step before left it, whatever copies are in memory. */
enum status value_update(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  const bool on_disk = verify_state_on_disk(w->plan, instr->unit);
  enum status status = expect_whole_sum(w, UPDATE_GRADS);
  if (!status && instr->use[UPDATE_DIRECTION].buffer >= 0)
    status = spend_direction(w);
  for (int s = 0; s < w->plan->states && !status; s++) {
    if (instr->use[UPDATE_STATE + s].buffer < 0)
      continue;
    if (on_disk)
      status = expect_state(w, UPDATE_STATE + s, VALUE_OLD_STATE, s);
    if (!status)
      set_state(w, UPDATE_STATE + s, VALUE_STATE, s);
  }
  const enum kind kind =
      verify_speculates(w->plan, instr->unit) ? VALUE_SPECULATION : VALUE_WORKING;
  if (!status && instr->use[UPDATE_WORKING].buffer >= 0)
    set_value(w, UPDATE_WORKING, (struct value){.kind = kind, .unit = instr->unit});
  return status;
}

enum status value_repair(const struct walker *w)
{
  const int unit = w->plan->instr[w->now].unit;
  enum status status = expect_whole_sum(w, REPAIR_GRADS);
  if (!status)
    status = expect(w, REPAIR_WORKING, VALUE_SPECULATION, unit, 0);
  if (!status)
    set_value(w, REPAIR_WORKING, (struct value){.kind = VALUE_WORKING, .unit = unit});
  return status;
}

enum status value_publish(const struct walker *w)
{
  return expect(w, MOVE_FROM, VALUE_WORKING, w->plan->instr[w->now].unit, 0);
}

enum status value_read_state(const struct walker *w)
{
  for (int s = 0; s < w->plan->states; s++)
    if (w->plan->instr[w->now].use[STATE_TO + s].buffer >= 0)
      set_state(w, STATE_TO + s, VALUE_OLD_STATE, s);
  return STATUS_OK;
}

enum status value_write_state(const struct walker *w)
{
  enum status status = STATUS_OK;
  for (int s = 0; s < w->plan->states && !status; s++)
    if (w->plan->instr[w->now].use[STATE_FROM + s].buffer >= 0)
      status = expect_state(w, STATE_FROM + s, VALUE_STATE, s);
  return status;
}

/* ---- the forward and the backward pass ---- */

/* The value that a stream has after a unit. */
static struct value stream(const struct instr *instr, enum kind kind, int unit)
{
  return (struct value){.kind = kind, .unit = unit, .micro = instr->micro};
}

enum status value_load(const struct walker *w)
{
  set_value(w, LOAD_TOKENS, stream(&w->plan->instr[w->now], VALUE_TOKENS, -1));
  return STATUS_OK;
}

enum status value_embed(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  const enum status status = expect(w, EMBED_TOKENS, VALUE_TOKENS, -1, instr->micro);
  if (!status)
    set_value(w, EMBED_OUT, stream(instr, VALUE_STREAM, 0));
  return status;
}

/* FORWARD and DECODE, whose operands up to `out` are the same. */
enum status value_forward(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  const enum status status = expect(w, FORWARD_IN, VALUE_STREAM, instr->unit - 1, instr->micro);
  if (status)
    return status;
  set_value(w, FORWARD_OUT, stream(instr, VALUE_STREAM, instr->unit));
  if (instr->op == OP_FORWARD && instr->use[FORWARD_SAVED].buffer >= 0)
    set_value(w, FORWARD_SAVED, stream(instr, VALUE_SAVED, instr->unit));
  return STATUS_OK;
}

enum status value_recompute(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  const enum status status = expect_input(w, FORWARD_IN);
  if (!status)
    set_value(w, FORWARD_SAVED, stream(instr, VALUE_SAVED, instr->unit));
  return status;
}

enum status value_logits(const struct walker *w)
{
  return expect(w, LOGITS_IN, VALUE_STREAM, w->plan->input.model->blocks,
                w->plan->instr[w->now].micro);
}

enum status value_loss(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  const int last = w->plan->input.model->blocks;
  enum status status = expect(w, LOSS_IN, VALUE_STREAM, last, instr->micro);
  if (!status)
    status = expect(w, LOSS_TOKENS, VALUE_TOKENS, -1, instr->micro);
  if (status || instr->use[LOSS_D].buffer < 0)
    return status;
  set_value(w, LOSS_D, stream(instr, VALUE_STREAM_GRADIENT, last));
  return instr->use[LOSS_GRADS].buffer < 0 ? STATUS_OK : add_gradient(w, LOSS_GRADS);
}

enum status value_backward(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status = expect_input(w, BACKWARD_IN);
  if (!status)
    status = expect_saved(w, BACKWARD_SAVED);
  if (!status)
    status = expect(w, BACKWARD_D, VALUE_STREAM_GRADIENT, instr->unit, instr->micro);
  if (status)
    return status;
  set_value(w, BACKWARD_D, stream(instr, VALUE_STREAM_GRADIENT, instr->unit - 1));
  return instr->use[BACKWARD_GRADS].buffer < 0 ? STATUS_OK : add_gradient(w, BACKWARD_GRADS);
}

enum status value_embed_backward(const struct walker *w)
{
  const int micro = w->plan->instr[w->now].micro;
  enum status status = expect(w, EMBED_BACKWARD_TOKENS, VALUE_TOKENS, -1, micro);
  if (!status)
    status = expect(w, EMBED_BACKWARD_D, VALUE_STREAM_GRADIENT, 0, micro);
  return status ? status : add_gradient(w, EMBED_BACKWARD_GRADS);
}

enum status verify_values(const struct plan *plan)
{
  struct walker w = {.plan = plan};
  enum status status = mem_new(MEM_META, plan->buffers, &w.value);
  if (!status)
    status = verify_families(plan, &w.next);
  for (; w.now < plan->n && !status; w.now++)
    status =
        op_rows[plan->instr[w.now].op].value ? op_rows[plan->instr[w.now].op].value(&w) : STATUS_OK;
  mem_free(w.next);
  mem_free(w.value);
  return status;
}
