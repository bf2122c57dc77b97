/* Values: every read finds the value that the instruction needs. Values are followed through one
 * step, with their types on the axes of the mesh. An update reads the complete sum and nothing
 * else: each micro-batch once, and each axis summed once. Data that return from another tier are
 * the data that were sent there. */
#include <string.h>

#include "base/mem.h"
#include "plan/verify.h"

enum kind {
  VALUE_OTHER,
  VALUE_TOKENS,
  VALUE_TARGETS,
  VALUE_WEIGHTS,
  VALUE_POSITIONS,
  VALUE_FIRST,
  VALUE_REFERENCE,
  VALUE_STREAM,
  VALUE_SAVED,
  VALUE_STREAM_GRADIENT,
  VALUE_GRADIENT,
  VALUE_MAGNITUDE, /* the largest magnitude of the gradients of a group's members */
  VALUE_ENCODED,   /* one message for each member of a group */
  VALUE_RECEIVED,  /* one message of each member of a group */
  VALUE_OLD_STATE, /* as the step before has left it */
  VALUE_STATE,
  VALUE_DIRECTION,
  VALUE_WORKING,
  VALUE_SPECULATION, /* the same, if the gradient is not clipped */
  VALUE_RESIDUAL,    /* after micros[0] sums of this step */
  VALUE_MEASURED,    /* the largest magnitudes of the unit's weights */
  VALUE_SCALES,
  VALUE_LOSS,
  VALUE_SQUARED,
  VALUE_METRICS
};

/* The type of a value on an axis. */
enum type { TYPE_SAME, TYPE_DIFFERENT, TYPE_CUT, TYPE_PARTIAL, TYPES };
static const char *const type_words[TYPES] = {"the same", "different", "cut", "a partial sum"};

/* The axes of each type, but TYPE_SAME: these are all others. */
struct axes {
  mesh_set of[TYPES];
};

/* The value of a buffer. A gradient is a sum over so many micro-batches, from `micro` on, of what
 * each stage of the unit adds. Messages hold the sum that each sender had. A stage's input may have
 * moved to another tier, then it is no longer here. */
struct value {
  enum kind kind;
  int unit, micro; /* unit: the stage, of streams and activations */
  int micros[MODEL_UNIT_STAGES];
  struct axes axes;
  mesh_set group; /* of messages: the group whose members exchange them, and the codec */
  struct codec codec;
  int state; /* number of the state, for VALUE_STATE and VALUE_OLD_STATE */
  bool gone;
};

static const char *const words_of[] = {
    [VALUE_OTHER] = "nothing",
    [VALUE_TOKENS] = "the tokens of its micro-batch",
    [VALUE_TARGETS] = "the targets of its micro-batch",
    [VALUE_WEIGHTS] = "the weights of the loss of its micro-batch",
    [VALUE_POSITIONS] = "the positions of its micro-batch",
    [VALUE_FIRST] = "the first tokens of documents of its micro-batch",
    [VALUE_REFERENCE] = "the log-likelihoods by the reference of its micro-batch",
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
    [VALUE_MEASURED] = "the largest magnitudes of the unit's weights",
    [VALUE_SCALES] = "the scales of the unit's weights",
    [VALUE_LOSS] = "the loss",
    [VALUE_SQUARED] = "the squares of gradients",
};

/* ---- types ---- */

/* The axes that have several ranks. */
static mesh_set axes_of(const struct plan *plan)
{
  mesh_set axes = MESH_NONE;
  for (int axis = 0; axis < MESH_AXES; axis++)
    axes |= plan->mesh.size[axis] > 1 ? 1u << axis : 0;
  return axes;
}

static mesh_set with_type(const struct verify *v, const struct axes *axes, enum type type)
{
  const mesh_set other = axes->of[TYPE_DIFFERENT] | axes->of[TYPE_CUT] | axes->of[TYPE_PARTIAL];
  return (type == TYPE_SAME ? ~other : axes->of[type]) & v->axes;
}

/* The shard axis has one name if all of its factors are meant. */
static struct mesh_name name_axes(const struct verify *v, mesh_set set)
{
  const mesh_set shard = v->axes & MESH_SHARD;
  return mesh_name(shard && (set & shard) == shard ? set | MESH_SHARD : set);
}

/* The buffer's value must have this type on each axis of the set. */
static void expect_type(struct verify *v, int buffer, const struct axes *axes, mesh_set set,
                        enum type type)
{
  const mesh_set wrong = set & v->axes & ~with_type(v, axes, type);
  for (enum type is = TYPE_SAME; is < TYPES && wrong; is++)
    if (wrong & with_type(v, axes, is))
      verify_fail(v, "reads %s, which is %s on the axis %s, where it must be %s",
                  v->plan->buffer[buffer].name, type_words[is],
                  name_axes(v, wrong & with_type(v, axes, is)).text, type_words[type]);
}

static void expect_types(struct verify *v, int buffer, const struct axes *axes,
                         const struct axes *expected)
{
  for (enum type type = TYPE_SAME; type < TYPES; type++)
    expect_type(v, buffer, axes, with_type(v, expected, type), type);
}

/* The types after the operation, on the axes of its group; a local operation changes all axes of
 * its type. */
static struct axes change(struct verify *v, int buffer, struct axes axes)
{
  static const struct {
    enum type from, to;
  } changes[] = {[AXES_CONTRACT] = {TYPE_DIFFERENT, TYPE_PARTIAL},
                 [AXES_SCATTER] = {TYPE_PARTIAL, TYPE_CUT},
                 [AXES_SUM] = {TYPE_PARTIAL, TYPE_SAME},
                 [AXES_GATHER] = {TYPE_CUT, TYPE_SAME},
                 [AXES_SQUARE] = {TYPE_CUT, TYPE_PARTIAL}};
  const enum type from = changes[v->row->axes].from, to = changes[v->row->axes].to;
  const bool local = v->row->axes == AXES_CONTRACT || v->row->axes == AXES_SQUARE;
  const mesh_set set = local ? axes.of[from] : v->instr->attr.group & v->axes;
  expect_type(v, buffer, &axes, set, from);
  if (v->row->axes == AXES_SUM)
    expect_type(v, buffer, &axes, MESH_WORLD & ~set, TYPE_SAME);
  axes.of[from] &= ~set;
  axes.of[to] |= set;
  return axes;
}

/* ---- values ---- */

/* The part of a gradient that is this rank's on some axes on which the whole is the same. */
static void cut(const struct verify *v, const struct plan_buffer *part,
                const struct plan_buffer *whole, struct axes *axes)
{
  static const mesh_set sets[] = {MESH_REPLICA, MESH_SHARD, MESH_DATA};
  const struct mesh *mesh = &v->plan->mesh;
  for (int i = 0; i < 3; i++) {
    const mesh_set set = sets[i] & v->axes;
    if (part->elements < whole->elements && !(set & ~with_type(v, axes, TYPE_SAME)) &&
        part->elements * mesh_ranks(mesh, set) == whole->elements &&
        part->offset - whole->offset == mesh_index(mesh, set, v->plan->input.rank) * part->bytes) {
      axes->of[TYPE_CUT] |= set;
      return;
    }
  }
}

/* A part has the whole's value until it gets one of its own. */
static struct value value_of(const struct verify *v, int k)
{
  const int part = v->instr->use[k].buffer;
  int buffer = part;
  while (v->value[buffer].kind == VALUE_OTHER && v->plan->buffer[buffer].parent >= 0)
    buffer = v->plan->buffer[buffer].parent;
  struct value value = v->value[buffer];
  if (value.kind == VALUE_GRADIENT)
    cut(v, &v->plan->buffer[part], &v->plan->buffer[buffer], &value.axes);
  return value;
}

/* Sets a value. Other buffers of the same family that share bytes lose their value. */
static void set_buffer(struct verify *v, int buffer, struct value value)
{
  const struct plan_buffer *set = &v->plan->buffer[buffer];
  for (int b = plan_root(v->plan, buffer, NULL); b >= 0; b = v->next[b]) {
    const struct plan_buffer *other = &v->plan->buffer[b];
    if (other->offset < set->offset + set->bytes && set->offset < other->offset + other->bytes)
      v->value[b] = (struct value){0};
  }
  v->value[buffer] = value;
}

static void set_value(struct verify *v, int k, struct value value)
{
  set_buffer(v, v->instr->use[k].buffer, value);
}

/* A value of the instruction's micro-batch: a stream has it after a stage. Each data rank has other
 * sequences. */
static void set_of(struct verify *v, int k, enum kind kind, int unit)
{
  set_value(v, k,
            (struct value){.kind = kind,
                           .unit = unit,
                           .micro = v->instr->micro,
                           .axes.of[TYPE_DIFFERENT] = MESH_DATA});
}

/* A value of the instruction's unit and the step. */
static void set_step(struct verify *v, int k, enum kind kind, int state)
{
  set_value(v, k, (struct value){.kind = kind, .unit = v->instr->unit, .state = state});
}

static void expect(struct verify *v, int k, enum kind kind, int unit, int micro)
{
  const struct value value = value_of(v, k);
  if (value.kind != kind || value.unit != unit || value.micro != micro)
    verify_fail(v, "reads %s, which is not %s", verify_used(v, k)->name, words_of[kind]);
}

/* A value of the instruction's micro-batch. */
static void expect_of(struct verify *v, int k, enum kind kind, int unit)
{
  expect(v, k, kind, unit, v->instr->micro);
}

/* Checks what a stage keeps for its backward pass: its input, or its activations. */
static void expect_kept(struct verify *v, int k, bool input)
{
  expect_of(v, k, input ? VALUE_STREAM : VALUE_SAVED, v->instr->stage - input);
  if (value_of(v, k).gone)
    verify_fail(v, "reads %s, from where it has gone to another tier", verify_used(v, k)->name);
}

/* A move of a stage's activations, to another tier or back. */
void value_kept(struct verify *v)
{
  expect_kept(v, MOVE_FROM, verify_recomputes(v->plan, v->instr->unit));
  set_value(v, MOVE_TO, value_of(v, MOVE_FROM));
  v->value[v->instr->use[MOVE_FROM].buffer].gone = true;
}

/* `more` continues the sum in `buffer`, in the order of the micro-batches, at the micro-batch
 * `next`. */
static void continue_sum(struct verify *v, int buffer, struct value sum, struct value more,
                         int next)
{
  if (sum.kind != VALUE_GRADIENT || sum.unit != more.unit || next != more.micro)
    verify_fail(v, "adds to %s, which is not the sum over the micro-batches before it",
                v->plan->buffer[buffer].name);
  expect_types(v, buffer, &sum.axes, &more.axes);
  for (int i = 0; i < MODEL_UNIT_STAGES; i++)
    sum.micros[i] += more.micros[i];
  set_buffer(v, buffer, sum);
}

/* The backward pass of a stage begins or continues its part of the sum of its unit. A part that it
 * begins leaves those of the later stages, if they are of the same micro-batch. It is by operand
 * d. */
static void add_gradient(struct verify *v, int k, int d)
{
  const int part = v->instr->use[k].buffer, whole = plan_root(v->plan, part, NULL),
            nth = v->stage->nth;
  struct value more = {.kind = VALUE_GRADIENT,
                       .unit = v->instr->unit,
                       .micro = v->instr->micro,
                       .axes = change(v, v->instr->use[d].buffer, value_of(v, d).axes)};
  const struct value there = v->value[whole];
  const bool later = part != whole && there.kind == VALUE_GRADIENT && there.unit == more.unit &&
                     there.micro == more.micro && there.micros[nth] == 0 &&
                     memcmp(&there.axes, &more.axes, sizeof more.axes) == 0;
  const struct value sum = v->instr->use[k].access == ACCESS_ADD || later ? there : more;
  more.micros[nth] = 1;
  continue_sum(v, whole, sum, more, sum.micro + sum.micros[nth]);
}

/* One sum continues where the other ends. */
static void join_sums(struct verify *v, int k, struct value more)
{
  const struct value sum = value_of(v, k);
  int most = 0;
  for (int i = 0; i < MODEL_UNIT_STAGES; i++)
    most = sum.micros[i] > most ? sum.micros[i] : most;
  continue_sum(v, v->instr->use[k].buffer, sum, more, sum.micro + most);
}

/* The sum must be of its unit and, if the instruction has one, of this micro-batch. */
static void expect_sum(struct verify *v, int k, enum kind kind)
{
  const int micro = v->instr->micro;
  expect(v, k, kind, v->instr->unit, micro < 0 ? value_of(v, k).micro : micro);
}

/* Each member has a sum of its own, which the group will add up. */
static void expect_own_sum(struct verify *v, int k)
{
  const struct value value = value_of(v, k);
  expect_sum(v, k, VALUE_GRADIENT);
  expect_type(v, v->instr->use[k].buffer, &value.axes, v->instr->attr.group, TYPE_PARTIAL);
}

/* Messages between the members of the instruction's group, by its codec. */
static void expect_messages(struct verify *v, int k, enum kind kind)
{
  const struct attributes *attr = &v->instr->attr;
  const struct value value = value_of(v, k);
  const bool group = value.group == attr->group;
  expect_sum(v, k, kind);
  if (!group || !codec_equal(&value.codec, &attr->codec))
    verify_fail(v, "reads %s, messages of another %s than its own", verify_used(v, k)->name,
                group ? "codec" : "group");
}

/* Messages, or the gradient itself if the codec sends it as it is. */
static void expect_sent(struct verify *v, int k)
{
  if (v->instr->attr.codec.ops->traits & CODEC_IDENTITY)
    expect_own_sum(v, k);
  else
    expect_messages(v, k, VALUE_ENCODED);
}

static void set_messages(struct verify *v, int from, int to, enum kind kind)
{
  struct value value = value_of(v, from);
  value.kind = kind;
  value.group = v->instr->attr.group;
  value.codec = v->instr->attr.codec;
  set_value(v, to, value);
}

/* The sum of all members' data, which begins a sum or continues another one. */
static void sum_messages(struct verify *v, int from, int to)
{
  struct value sum = value_of(v, from);
  sum.kind = VALUE_GRADIENT;
  sum.axes = change(v, v->instr->use[from].buffer, sum.axes);
  if (v->instr->use[to].access == ACCESS_ADD)
    join_sums(v, to, sum);
  else
    set_value(v, to, sum);
}

/* Each ENCODE reads the residual that the previous ENCODE of the unit wrote. Before the first sum
 * of a step, a residual in its own tier is as the step before left it. */
static void expect_residual(struct verify *v, int k, int sums)
{
  struct value value = value_of(v, k);
  const char *const name = verify_used(v, k)->name;
  if (value.kind == VALUE_OTHER && v->instr->use[k].buffer == v->unit->residual)
    value = (struct value){.kind = VALUE_RESIDUAL, .unit = v->instr->unit};
  if (value.kind != VALUE_RESIDUAL || value.unit != v->instr->unit)
    verify_fail(v, "reads %s, which is not %s", name, words_of[VALUE_RESIDUAL]);
  if (value.micros[0] != sums)
    verify_fail(v, "reads %s as %d sums of this step have left it, where %d have", name,
                value.micros[0], sums);
}

static void set_residual(struct verify *v, int k, int sums)
{
  set_value(v, k, (struct value){.kind = VALUE_RESIDUAL, .unit = v->instr->unit, .micros = {sums}});
}

/* Sums of the unit before the instruction's. */
static int sums_before(const struct verify *v)
{
  return v->instr->micro > 0 ? v->instr->micro : 0;
}

/* Moves a residual to ENCODE, or back from it. */
void value_residual(struct verify *v)
{
  const bool back = v->instr->op == OP_SAVE_RESIDUAL || v->instr->op == OP_WRITE_RESIDUAL;
  const int sums = sums_before(v) + back;
  expect_residual(v, MOVE_FROM, sums);
  set_residual(v, MOVE_TO, sums);
  if (v->instr->use[MOVE_FROM].buffer != v->unit->residual)
    set_value(v, MOVE_FROM, (struct value){0}); /* a copy has moved on */
}

/* A gradient to which a residual was added is still a gradient. */
void value_magnitude(struct verify *v)
{
  expect_own_sum(v, MAGNITUDE_GRADS);
  if (verify_has(v, MAGNITUDE_RESIDUAL))
    expect_residual(v, MAGNITUDE_RESIDUAL, sums_before(v));
  set_messages(v, MAGNITUDE_GRADS, MAGNITUDE_LARGEST, VALUE_MAGNITUDE);
}

/* The largest magnitude must be that of the encoded data, over all members that encode. */
static void expect_largest(struct verify *v)
{
  const struct value sum = value_of(v, ENCODE_GRADS), of = value_of(v, ENCODE_LARGEST);
  expect_messages(v, ENCODE_LARGEST, VALUE_MAGNITUDE);
  if (sum.micro != of.micro || memcmp(sum.micros, of.micros, sizeof sum.micros) != 0)
    verify_fail(v, "reads %s, the largest magnitude of another sum",
                verify_used(v, ENCODE_LARGEST)->name);
  expect_types(v, v->instr->use[ENCODE_LARGEST].buffer, &of.axes, &sum.axes);
}

void value_encode(struct verify *v)
{
  expect_own_sum(v, ENCODE_GRADS);
  if (verify_has(v, ENCODE_LARGEST))
    expect_largest(v);
  if (verify_has(v, ENCODE_RESIDUAL)) {
    expect_residual(v, ENCODE_RESIDUAL, sums_before(v));
    set_residual(v, ENCODE_RESIDUAL, sums_before(v) + 1);
  }
  set_messages(v, ENCODE_GRADS, ENCODE_MESSAGES, VALUE_ENCODED);
  if (v->instr->use[ENCODE_GRADS].access == ACCESS_ADD) /* the error of the message */
    set_value(v, ENCODE_GRADS, (struct value){0});
}

void value_exchange(struct verify *v)
{
  expect_sent(v, EXCHANGE_SENT);
  set_messages(v, EXCHANGE_SENT, EXCHANGE_RECEIVED, VALUE_RECEIVED);
}

void value_decode_sum(struct verify *v)
{
  expect_messages(v, DECODE_SUM_MESSAGES, VALUE_RECEIVED);
  sum_messages(v, DECODE_SUM_MESSAGES, DECODE_SUM_SHARD);
}

void value_sum_shared(struct verify *v)
{
  expect_sent(v, SUM_SHARED_SENT);
  sum_messages(v, SUM_SHARED_SENT, SUM_SHARED_SHARD);
}

/* A gradient that is moved, or gathered. */
void value_gradient(struct verify *v)
{
  struct value value = value_of(v, MOVE_FROM);
  expect_sum(v, MOVE_FROM, VALUE_GRADIENT);
  if (v->row->axes == AXES_GATHER)
    value.axes = change(v, v->instr->use[MOVE_FROM].buffer, value.axes);
  set_value(v, MOVE_TO, value);
}

void value_accumulate(struct verify *v)
{
  expect_sum(v, ACCUMULATE_LANDED, VALUE_GRADIENT);
  join_sums(v, ACCUMULATE_GRADS, value_of(v, ACCUMULATE_LANDED));
}

/* The sum must have each micro-batch of each stage of the unit once, and be complete on all axes:
 * cut on those of the set. */
static void expect_whole_sum(struct verify *v, int k, mesh_set set)
{
  const struct plan_input *input = &v->plan->input;
  const struct model *model = input->model;
  const int unit = v->instr->unit, micros = (int)input->shape.micros;
  const struct value sum = value_of(v, k);
  expect(v, k, VALUE_GRADIENT, unit, 0);
  for (int s = 0; s < model->stages; s++) {
    const struct model_stage *stage = &model->stage[s];
    const bool learns = stage->kind != STAGE_EMBED || verify_embedding_learns(v->plan);
    if (stage->unit == unit && sum.micros[stage->nth] != (learns ? micros : 0))
      verify_fail(v, "reads %s, the sum over %d of %d micro-batches", verify_used(v, k)->name,
                  sum.micros[stage->nth], micros);
  }
  expect_type(v, v->instr->use[k].buffer, &sum.axes, set, TYPE_CUT);
  expect_type(v, v->instr->use[k].buffer, &sum.axes, MESH_WORLD & ~set, TYPE_SAME);
}

/* The axes on which a rank has a part of the parameters that it updates. */
static mesh_set shard_axes(const struct verify *v)
{
  return verify_shards(v->plan) > 1 ? MESH_SHARD : MESH_NONE;
}

/* Each element is squared on one rank. */
void value_squares(struct verify *v)
{
  const struct axes axes = value_of(v, SQUARES_GRADS).axes;
  expect_whole_sum(v, SQUARES_GRADS, MESH_DATA);
  set_value(v, SQUARES_SUM,
            (struct value){.kind = VALUE_SQUARED,
                           .unit = -1,
                           .axes = change(v, v->instr->use[SQUARES_GRADS].buffer, axes)});
}

/* ---- the loss and the norm ---- */

void value_fetch_loss(struct verify *v)
{
  expect(v, MOVE_FROM, VALUE_LOSS, -1, 0);
  set_value(v, MOVE_TO, value_of(v, MOVE_FROM));
}

static void expect_total(struct verify *v, int k, enum kind kind)
{
  expect(v, k, kind, -1, 0);
  (void)change(v, v->instr->use[k].buffer, value_of(v, k).axes);
}

void value_metrics(struct verify *v)
{
  expect_total(v, METRICS_LOSS, VALUE_LOSS);
  if (v->instr->use[METRICS_OUT].access == ACCESS_ADD)
    expect_total(v, METRICS_OUT, VALUE_SQUARED);
  if (verify_has(v, METRICS_SQUARES))
    expect_total(v, METRICS_SQUARES, VALUE_SQUARED);
  set_value(v, METRICS_OUT, (struct value){.kind = VALUE_METRICS, .unit = -1});
}

/* Another state than the one that belongs there is nothing. */
static void expect_state(struct verify *v, int k, enum kind kind, int state)
{
  const struct value value = value_of(v, k);
  expect(v, k, value.kind == kind && value.state != state ? VALUE_OTHER : kind, v->instr->unit, 0);
}

void value_direction(struct verify *v)
{
  expect_whole_sum(v, DIRECTION_GRADS, shard_axes(v));
  set_step(v, DIRECTION_STATE, VALUE_STATE, 0);
  set_value(v, DIRECTION_OUT,
            (struct value){.kind = VALUE_DIRECTION,
                           .unit = v->instr->unit,
                           .axes.of[TYPE_CUT] = shard_axes(v)});
}

void value_gather_direction(struct verify *v)
{
  struct value value = value_of(v, GATHER_DIRECTION_PIECE);
  expect(v, GATHER_DIRECTION_PIECE, VALUE_DIRECTION, v->instr->unit, 0);
  value.axes = change(v, v->instr->use[GATHER_DIRECTION_PIECE].buffer, value.axes);
  set_value(v, GATHER_DIRECTION_WHOLE, value);
}

/* UPDATE works in place, so afterwards the buffer is no direction. */
static void spend_direction(struct verify *v)
{
  const struct axes axes = value_of(v, UPDATE_DIRECTION).axes;
  expect(v, UPDATE_DIRECTION, VALUE_DIRECTION, v->instr->unit, 0);
  expect_type(v, v->instr->use[UPDATE_DIRECTION].buffer, &axes, MESH_WORLD, TYPE_SAME);
  set_value(v, UPDATE_DIRECTION, (struct value){0});
}

/* The state on the disk is as the step before left it, whatever copies are in memory. */
void value_update(struct verify *v)
{
  const int unit = v->instr->unit;
  expect_whole_sum(v, UPDATE_GRADS, shard_axes(v));
  if (verify_has(v, UPDATE_DIRECTION))
    spend_direction(v);
  for (int s = 0; s < v->plan->states; s++) {
    if (!verify_has(v, UPDATE_STATE + s))
      continue;
    if (verify_state_on_disk(v->plan, unit))
      expect_state(v, UPDATE_STATE + s, VALUE_OLD_STATE, s);
    set_step(v, UPDATE_STATE + s, VALUE_STATE, s);
  }
  if (verify_has(v, UPDATE_WORKING))
    set_step(v, UPDATE_WORKING,
             verify_speculates(v->plan, unit) ? VALUE_SPECULATION : VALUE_WORKING, 0);
}

void value_repair(struct verify *v)
{
  expect_whole_sum(v, REPAIR_GRADS, shard_axes(v));
  expect(v, REPAIR_WORKING, VALUE_SPECULATION, v->instr->unit, 0);
  set_step(v, REPAIR_WORKING, VALUE_WORKING, 0);
}

void value_publish(struct verify *v)
{
  expect(v, MOVE_FROM, VALUE_WORKING, v->instr->unit, 0);
}

void value_read_state(struct verify *v)
{
  for (int s = 0; s < v->plan->states; s++)
    if (verify_has(v, STATE_TO + s))
      set_step(v, STATE_TO + s, VALUE_OLD_STATE, s);
}

void value_write_state(struct verify *v)
{
  for (int s = 0; s < v->plan->states; s++)
    if (verify_has(v, STATE_FROM + s))
      expect_state(v, STATE_FROM + s, VALUE_STATE, s);
}

/* ---- scales of weights in fp8 ---- */

void value_measure(struct verify *v)
{
  const struct axes shard = {.of[TYPE_CUT] = shard_axes(v)};
  set_value(v, MEASURE_SCALES,
            (struct value){.kind = VALUE_MEASURED,
                           .unit = v->instr->unit,
                           .axes = change(v, v->unit->master, shard)});
}

/* Of all units whose scales lie in the operand. */
void value_merge(struct verify *v)
{
  const struct plan_buffer *merged = verify_used(v, MERGE_SCALES);
  for (int b = plan_root(v->plan, v->instr->use[MERGE_SCALES].buffer, NULL); b >= 0;
       b = v->next[b]) {
    const struct plan_buffer *scales = &v->plan->buffer[b];
    if (v->value[b].kind == VALUE_MEASURED && scales->offset >= merged->offset &&
        scales->offset + scales->bytes <= merged->offset + merged->bytes)
      v->value[b].axes = change(v, b, v->value[b].axes);
  }
}

void value_scale(struct verify *v)
{
  const mesh_set apart = value_of(v, SCALE_SCALES).axes.of[TYPE_PARTIAL] & v->axes;
  expect(v, SCALE_SCALES, VALUE_MEASURED, v->instr->unit, 0);
  if (apart)
    verify_fail(v, "reads %s, which no MERGE has made the same on the axis %s",
                verify_used(v, SCALE_SCALES)->name, name_axes(v, apart).text);
  set_step(v, SCALE_SCALES, VALUE_SCALES, 0);
}

/* Codes and products, before their own values. */
static void expect_scales(struct verify *v)
{
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (verify_has(v, k) && v->row->operand[k].role == ROLE_SCALES &&
        v->row->operand[k].access == OPERAND_READ)
      expect(v, k, VALUE_SCALES, v->instr->unit, 0);
}

/* ---- the forward and the backward pass ---- */

void value_load(struct verify *v)
{
  for (int k = LOAD_TOKENS; k <= LOAD_REFERENCE; k++)
    if (verify_has(v, k))
      set_of(v, k, VALUE_TOKENS + (enum kind)k, -1);
}

/* An optional input of the micro-batch. */
static void expect_batch(struct verify *v, int k, enum kind kind)
{
  if (verify_has(v, k))
    expect_of(v, k, kind, -1);
}

void value_embed(struct verify *v)
{
  expect_of(v, EMBED_TOKENS, VALUE_TOKENS, -1);
  expect_batch(v, EMBED_POSITIONS, VALUE_POSITIONS);
  set_of(v, EMBED_OUT, VALUE_STREAM, v->instr->stage);
}

static void expect_heads(struct verify *v, int positions, int first)
{
  expect_batch(v, positions, VALUE_POSITIONS);
  expect_batch(v, first, VALUE_FIRST);
}

/* FORWARD and DECODE, whose operands up to `out` are the same. */
void value_forward(struct verify *v)
{
  expect_heads(v, FORWARD_POSITIONS, FORWARD_FIRST);
  expect_of(v, FORWARD_IN, VALUE_STREAM, v->instr->stage - 1);
  set_of(v, FORWARD_OUT, VALUE_STREAM, v->instr->stage);
  if (v->instr->op == OP_FORWARD && verify_has(v, FORWARD_SAVED))
    set_of(v, FORWARD_SAVED, VALUE_SAVED, v->instr->stage);
}

void value_recompute(struct verify *v)
{
  expect_heads(v, FORWARD_POSITIONS, FORWARD_FIRST);
  expect_kept(v, FORWARD_IN, true);
  set_of(v, FORWARD_SAVED, VALUE_SAVED, v->instr->stage);
}

void value_logits(struct verify *v)
{
  expect_of(v, LOGITS_IN, VALUE_STREAM, v->instr->stage - 1);
}

void value_loss(struct verify *v)
{
  const int last = v->instr->stage - 1;
  expect_of(v, LOSS_IN, VALUE_STREAM, last);
  expect_of(v, LOSS_TARGETS, VALUE_TARGETS, -1);
  expect_batch(v, LOSS_WEIGHTS, VALUE_WEIGHTS);
  expect_batch(v, LOSS_REFERENCE, VALUE_REFERENCE);
  set_value(
      v, LOSS_SUM,
      (struct value){.kind = VALUE_LOSS,
                     .unit = -1,
                     .axes = change(v, v->instr->use[LOSS_IN].buffer, value_of(v, LOSS_IN).axes)});
  if (verify_has(v, LOSS_D))
    set_of(v, LOSS_D, VALUE_STREAM_GRADIENT, last);
  if (verify_has(v, LOSS_GRADS))
    add_gradient(v, LOSS_GRADS, LOSS_IN);
}

void value_backward(struct verify *v)
{
  expect_heads(v, BACKWARD_POSITIONS, BACKWARD_FIRST);
  expect_kept(v, BACKWARD_IN, true);
  expect_kept(v, BACKWARD_SAVED, false);
  expect_of(v, BACKWARD_D, VALUE_STREAM_GRADIENT, v->instr->stage);
  set_of(v, BACKWARD_D, VALUE_STREAM_GRADIENT, v->instr->stage - 1);
  if (verify_has(v, BACKWARD_GRADS))
    add_gradient(v, BACKWARD_GRADS, BACKWARD_D);
}

void value_embed_backward(struct verify *v)
{
  expect_of(v, EMBED_BACKWARD_TOKENS, VALUE_TOKENS, -1);
  expect_batch(v, EMBED_BACKWARD_POSITIONS, VALUE_POSITIONS);
  expect_of(v, EMBED_BACKWARD_D, VALUE_STREAM_GRADIENT, v->instr->stage);
  add_gradient(v, EMBED_BACKWARD_GRADS, EMBED_BACKWARD_D);
}

static void walk_value(struct verify *v)
{
  expect_scales(v);
  if (v->row->value)
    v->row->value(v);
}

enum status verify_values(const struct plan *plan)
{
  struct verify v = {.plan = plan, .axes = axes_of(plan)};
  v.status = mem_new(MEM_META, plan->buffers, &v.value);
  verify_families(&v);
  verify_walk(&v, walk_value);
  mem_free(v.next);
  mem_free(v.value);
  return v.status;
}
