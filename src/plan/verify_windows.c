/* Windows: fetch -> gather -> use -> release. A codec encodes before the gather and decodes after
 * it. Every instruction that reads a unit's parameters finds all of them, and no window stays open
 * after the step. */
#include "base/mem.h"
#include "plan/verify.h"

/* A buffer holds one part of a unit in one of these states:
 * - HELD_SHARD: this rank's shard, which the group must still gather.
 * - HELD_MESSAGE: a message of that shard, which the group must still gather.
 * - HELD_MESSAGES: the messages of all members, which must still be decoded.
 * - HELD_WHOLE: all of it.
 * FROZEN is added to the first three if the part is the frozen one. */
enum held { HELD_NOT, HELD_SHARD, HELD_MESSAGE, HELD_MESSAGES, HELD_WHOLE, FROZEN = 8 };

static enum held held_in(const struct verify *v, int buffer)
{
  return (enum held)(v->mark[buffer] & ~FROZEN);
}

/* Whether one of the two parts of a whole unit is present. It may always be on this rank, if the
 * compute type is fp32, or be gathered into the buffer or a part of it. */
static bool part_is_there(const struct verify *v, int buffer, bool frozen)
{
  const struct plan *plan = v->plan;
  const struct plan_unit *unit = v->unit;
  const int mine = frozen ? unit->frozen : unit->master;
  const int64_t size = (int64_t)dtype_size(plan->buffer[buffer].dtype);
  const struct layout_range part = layout_part(&unit->layout, frozen);
  const int64_t begin = part.begin * size, end = part.end * size;
  int64_t offset;
  if (begin == end || (frozen && buffer == unit->copy))
    return true;
  const bool stays = mine >= 0 && plan->buffer[mine].dtype == plan->buffer[buffer].dtype;
  if (stays && plan_root(plan, mine, &offset) == buffer && offset == begin &&
      plan->buffer[mine].bytes == end - begin)
    return true;
  for (int b = buffer; b >= 0; b = v->next[b])
    if (held_in(v, b) == HELD_WHOLE && plan_root(plan, b, &offset) == buffer && offset <= begin &&
        offset + plan->buffer[b].bytes >= end)
      return true;
  return false;
}

static void check_params(struct verify *v)
{
  const struct plan_buffer *params = verify_used(v, 0);
  if (params->unit != v->instr->unit)
    verify_fail(v, "reads %s, which are not its parameters", params->name);
  else if (params->elements != v->unit->layout.flat)
    verify_fail(v, "reads %s, which are not all of its parameters", params->name);
  else if (!part_is_there(v, v->instr->use[0].buffer, false) ||
           !part_is_there(v, v->instr->use[0].buffer, true))
    verify_fail(v, "reads %s, which is not gathered", params->name);
}

/* `fault` names the operand. */
static void expect(struct verify *v, int k, enum held what, const char *fault)
{
  if (held_in(v, v->instr->use[k].buffer) != what)
    verify_fail(v, fault, verify_used(v, k)->name);
}

static bool is_frozen(const struct verify *v, int k)
{
  return v->mark[v->instr->use[k].buffer] & FROZEN;
}

/* Operand k gets something of a part. */
static void hold(struct verify *v, int k, enum held what, bool frozen)
{
  v->mark[v->instr->use[k].buffer] = what | (frozen ? FROZEN : 0);
}

/* Operand `to` gets something, and `from` no longer has it. */
static void pass_on(struct verify *v, int from, int to, enum held what, bool frozen)
{
  hold(v, from, HELD_NOT, false);
  hold(v, to, what, frozen);
}

/* All members must decode the parameters that all members encode. */
static void check_codec(struct verify *v, bool frozen)
{
  const struct codec *mine = &v->instr->attr.codec,
                     *codec = frozen && verify_keeps_messages(v->plan, v->instr->unit)
                                  ? &v->unit->policy.base
                                  : &v->unit->policy.weights;
  if (!mine->ops || !codec->ops || !codec_equal(codec, mine))
    verify_fail(v, "has parameters in codec %s, and its unit's travel in codec %s",
                mine->ops ? mine->ops->name : "(absent)", codec->ops ? codec->ops->name : "none");
}

/* Whether operand k is the message as which this rank's frozen part is kept. */
static bool is_kept(const struct verify *v, int k)
{
  return verify_keeps_messages(v->plan, v->instr->unit) &&
         v->instr->use[k].buffer == v->unit->frozen;
}

/* The elements of the unit that a FETCH brings; none if its source holds no parameters. */
static struct layout_range range_of_source(const struct verify *v, int buffer)
{
  const struct plan_unit *unit = v->unit;
  const int source = verify_has_working(v->plan, v->instr->unit) ? unit->working : unit->master;
  if (unit->policy.working == WORKING_SHARED)
    return (struct layout_range){0, buffer == unit->shared ? unit->layout.flat : 0};
  if (buffer == unit->frozen)
    return unit->frozen_owned;
  return buffer == source ? unit->owned : (struct layout_range){0, 0};
}

/* Shards that are cast or coded on their way wait outside of windows. */
static bool waits_outside(const struct verify *v, const struct plan_buffer *b, int64_t elements)
{
  const int unit = v->instr->unit;
  return b->unit == unit && b->parent < 0 && b->elements == elements &&
         (b->dtype == DTYPE_F32 || b->dtype != verify_window_type(v->plan, unit));
}

static void fetch(struct verify *v)
{
  const struct plan_buffer *from = verify_used(v, MOVE_FROM), *to = verify_used(v, MOVE_TO);
  const struct layout_range range = range_of_source(v, v->instr->use[MOVE_FROM].buffer);
  const int64_t elements = range.end - range.begin;
  const bool frozen = range.begin >= v->unit->layout.trained,
             placed = verify_is_place(v, v->instr->use[MOVE_TO].buffer, range);
  const struct layout_range part = layout_part(&v->unit->layout, frozen);
  const bool kept = is_kept(v, MOVE_FROM);
  if (elements == 0)
    verify_fail(v, "reads %s in the place of the unit's parameters", from->name);
  if (!placed && !waits_outside(v, to, kept ? from->elements : elements))
    verify_fail(v, "fetches %s to the wrong place in the unit", to->name);
  if (from->bytes != to->bytes || from->dtype != to->dtype)
    verify_fail(v, "copies the %lld bytes of %s into the %lld of %s", (long long)from->bytes,
                from->name, (long long)to->bytes, to->name);
  expect(v, MOVE_TO, HELD_NOT, "fetches %s, which has not been released");
  hold(v, MOVE_TO,
       kept                                          ? HELD_MESSAGE
       : placed && elements >= part.end - part.begin ? HELD_WHOLE
                                                     : HELD_SHARD,
       frozen);
}

/* With masters in host memory a FETCH has copied the shard to its place in the window, or next to
 * it, and a cast follows. */
static void check_fetched(struct verify *v)
{
  const int from = v->instr->use[GATHER_SHARD].buffer, to = v->instr->use[GATHER_WHOLE].buffer;
  const bool same = v->plan->buffer[from].parent < 0 ||
                    plan_root(v->plan, from, NULL) == plan_root(v->plan, to, NULL);
  expect(v, GATHER_SHARD, HELD_SHARD, "gathers from %s, which nothing has fetched");
  if (!same || !verify_is_place(v, to, layout_part(&v->unit->layout, is_frozen(v, GATHER_SHARD))))
    verify_fail(v, "gathers %s to the wrong place in the unit", v->plan->buffer[to].name);
}

static void gather(struct verify *v)
{
  expect(v, GATHER_WHOLE, HELD_NOT, "gathers %s, which has not been released");
  if (verify_on_host(v->plan, v->instr->unit))
    check_fetched(v);
  pass_on(v, GATHER_SHARD, GATHER_WHOLE, HELD_WHOLE, false);
}

static void check_here(struct verify *v, int k, bool frozen)
{
  const int shard = HELD_SHARD | (frozen ? FROZEN : 0);
  if (verify_has(v, k) && verify_on_host(v->plan, v->instr->unit) &&
      v->mark[v->instr->use[k].buffer] != shard)
    verify_fail(v, "reads %s, which nothing has fetched", verify_used(v, k)->name);
}

static void encode(struct verify *v)
{
  const int from = v->instr->use[ENCODE_PARAMS_SHARD].buffer;
  const bool host = verify_on_host(v->plan, v->instr->unit),
             frozen = host ? is_frozen(v, ENCODE_PARAMS_SHARD) : from == v->unit->frozen;
  if (host)
    expect(v, ENCODE_PARAMS_SHARD, HELD_SHARD, "encodes %s, which nothing has fetched");
  else if (!frozen && from != v->unit->master)
    verify_fail(v, "reads %s in the place of the unit's parameters", v->plan->buffer[from].name);
  check_codec(v, frozen);
  pass_on(v, ENCODE_PARAMS_SHARD, ENCODE_PARAMS_MESSAGE, HELD_MESSAGE, frozen);
}

/* Operand k must be a message of this rank's part. *frozen: of its frozen part. */
static void expect_message(struct verify *v, int k, const char *fault, bool *frozen)
{
  const bool kept = !verify_on_host(v->plan, v->instr->unit) && is_kept(v, k);
  *frozen = kept || is_frozen(v, k);
  if (!kept)
    expect(v, k, HELD_MESSAGE, fault);
}

static void gather_messages(struct verify *v)
{
  bool frozen;
  expect_message(v, GATHER_MESSAGES_MINE,
                 "gathers %s, which is no message of the unit's parameters", &frozen);
  check_codec(v, frozen);
  pass_on(v, GATHER_MESSAGES_MINE, GATHER_MESSAGES_ALL, HELD_MESSAGES, frozen);
}

/* Without shards, one message is the whole part. */
static void decode(struct verify *v)
{
  static const char fault[] = "decodes %s, which does not hold the messages of all members";
  const int to = v->instr->use[DECODE_PARAMS_WHOLE].buffer;
  bool frozen = is_frozen(v, DECODE_PARAMS_MESSAGES);
  if (verify_shards(v->plan) == 1)
    expect_message(v, DECODE_PARAMS_MESSAGES, fault, &frozen);
  else
    expect(v, DECODE_PARAMS_MESSAGES, HELD_MESSAGES, fault);
  expect(v, DECODE_PARAMS_WHOLE, HELD_NOT, "decodes into %s, which has not been released");
  check_codec(v, frozen);
  if (!verify_is_place(v, to, layout_part(&v->unit->layout, frozen)))
    verify_fail(v, "decodes %s to the wrong place in the unit", v->plan->buffer[to].name);
  pass_on(v, DECODE_PARAMS_MESSAGES, DECODE_PARAMS_WHOLE, HELD_WHOLE, frozen);
}

/* A window is closed as a whole. */
static void close_window(struct verify *v)
{
  const int buffer = v->instr->use[RELEASE_PARAMS].buffer;
  int closed = 0;
  for (int b = buffer; b >= 0; b = v->next[b])
    if (held_in(v, b) == HELD_WHOLE && plan_root(v->plan, b, NULL) == buffer) {
      v->mark[b] = HELD_NOT;
      closed++;
    }
  if (closed == 0)
    verify_fail(v, "releases %s, which is not gathered", v->plan->buffer[buffer].name);
}

static void check_window(struct verify *v)
{
  switch (v->instr->op) {
  case OP_FETCH: fetch(v); break;
  case OP_GATHER: gather(v); break;
  case OP_MEASURE:
    check_here(v, MEASURE_TRAINED, false);
    if (v->unit->kept < 0) /* it is on the device */
      check_here(v, MEASURE_FROZEN, true);
    break;
  case OP_SCALE: check_here(v, SCALE_TRAINED, false); break;
  case OP_ENCODE_PARAMS: encode(v); break;
  case OP_GATHER_MESSAGES: gather_messages(v); break;
  case OP_DECODE_PARAMS: decode(v); break;
  case OP_RELEASE: close_window(v); break;
  default:
    if (v->row->params)
      check_params(v);
  }
}

enum status verify_windows(const struct plan *plan)
{
  static const char *const left_open[] = {[HELD_SHARD] = "%s is fetched and never gathered",
                                          [HELD_MESSAGE] = "%s has messages that are never decoded",
                                          [HELD_MESSAGES] =
                                              "%s has messages that are never decoded",
                                          [HELD_WHOLE] = "%s is gathered and never released"};
  struct verify v = {.plan = plan};
  v.status = mem_new(MEM_META, plan->buffers, &v.mark);
  verify_families(&v);
  verify_walk(&v, check_window);
  for (int b = 0; b < plan->buffers && !v.status; b++)
    if (held_in(&v, b) != HELD_NOT)
      v.status = status_set(STATUS_PLAN, left_open[held_in(&v, b)], plan->buffer[b].name);
  mem_free(v.next);
  mem_free(v.mark);
  return v.status;
}
