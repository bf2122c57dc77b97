/* Windows: fetch -> gather -> use -> release. A codec encodes before the gather and decodes after
 * it. Every instruction that reads a unit's parameters finds all of them, and no window stays open
 * after the step. */
#include "base/mem.h"
#include "plan/verify.h"

/* The part of a unit that a buffer holds: nothing; this rank's shard of the trained or the frozen
 * part, which the group must still gather; or the whole. Messages of shards are still to be
 * gathered, and then to be decoded. */
enum held {
  HELD_NOT,
  HELD_SHARD,
  HELD_FROZEN_SHARD,
  HELD_MESSAGE,
  HELD_FROZEN_MESSAGE,
  HELD_MESSAGES,
  HELD_FROZEN_MESSAGES,
  HELD_WHOLE
};

struct windows {
  const struct plan *plan;
  enum held *held; /* by buffer */
  int *next;       /* by buffer: see verify_families() */
};

/* Whether one of the two parts of a whole unit is present. It may always be on this rank, if the
 * compute type is fp32, or be gathered into the buffer or a part of it. */
static bool part_is_there(const struct windows *w, int buffer, bool frozen)
{
  const struct plan *plan = w->plan;
  int u = plan->buffer[buffer].unit, mine = frozen ? plan->unit[u].frozen : plan->unit[u].master;
  const int64_t size = (int64_t)dtype_size(plan->buffer[buffer].dtype);
  int64_t trained = plan->unit[u].layout.trained * size, all = plan->unit[u].layout.flat * size;
  int64_t begin = frozen ? trained : 0, end = frozen ? all : trained, offset;
  if (begin == end || (frozen && buffer == plan->unit[u].copy))
    return true;
  bool stays = mine >= 0 && plan->buffer[mine].dtype == plan->buffer[buffer].dtype;
  if (stays && plan_root(plan, mine, &offset) == buffer && offset == begin &&
      plan->buffer[mine].bytes == end - begin)
    return true;
  for (int b = buffer; b >= 0; b = w->next[b])
    if (w->held[b] == HELD_WHOLE && plan_root(plan, b, &offset) == buffer && offset <= begin &&
        offset + plan->buffer[b].bytes >= end)
      return true;
  return false;
}

static enum status check_params(const struct windows *w, int i, int buffer)
{
  const struct plan *plan = w->plan;
  const struct plan_buffer *params = &plan->buffer[buffer];
  int unit = plan->instr[i].unit;
  if (params->unit != unit)
    return verify_fail(plan, i, "reads %s, which are not its parameters", params->name);
  if (params->elements != plan->unit[unit].layout.flat)
    return verify_fail(plan, i, "reads %s, which are not all of its parameters", params->name);
  if (!part_is_there(w, buffer, false) || !part_is_there(w, buffer, true))
    return verify_fail(plan, i, "reads %s, which is not gathered", params->name);
  return STATUS_OK;
}

/* The elements of the unit that a FETCH brings; none if its source holds no parameters. */
static struct layout_range range_of_source(const struct plan *plan, int unit, int buffer)
{
  if (plan->unit[unit].policy.working == WORKING_SHARED)
    return buffer == plan->unit[unit].shared
               ? (struct layout_range){0, plan->unit[unit].layout.flat}
               : (struct layout_range){0, 0};
  if (buffer == plan->unit[unit].frozen)
    return plan->unit[unit].frozen_owned;
  const int source =
      verify_has_working(plan, unit) ? plan->unit[unit].working : plan->unit[unit].master;
  return buffer == source ? plan->unit[unit].owned : (struct layout_range){0, 0};
}

/* Shards that are cast or coded on their way wait outside of windows. */
static bool waits_outside(const struct plan *plan, int unit, int buffer, struct layout_range range)
{
  const struct plan_buffer *b = &plan->buffer[buffer];
  return b->unit == unit && b->parent < 0 &&
         (b->dtype == DTYPE_F32 || plan_gathers_codes(plan, unit)) &&
         b->elements == range.end - range.begin;
}

static enum status fetch(const struct windows *w, int i)
{
  const struct plan *plan = w->plan;
  const struct instr *instr = &plan->instr[i];
  const struct layout_unit *layout = &plan->unit[instr->unit].layout;
  int from = instr->use[MOVE_FROM].buffer, to = instr->use[MOVE_TO].buffer;
  struct layout_range range = range_of_source(plan, instr->unit, from);
  bool frozen = range.begin >= layout->trained,
       placed = verify_is_place(plan, instr->unit, to, range);
  if (range.begin == range.end)
    return verify_fail(plan, i, "reads %s in the place of the unit's parameters",
                       plan->buffer[from].name);
  if (!placed && !waits_outside(plan, instr->unit, to, range))
    return verify_fail(plan, i, "fetches %s to the wrong place in the unit", plan->buffer[to].name);
  if (plan->buffer[from].bytes != plan->buffer[to].bytes ||
      plan->buffer[from].dtype != plan->buffer[to].dtype)
    return verify_fail(plan, i, "copies the %lld bytes of %s into the %lld of %s",
                       (long long)plan->buffer[from].bytes, plan->buffer[from].name,
                       (long long)plan->buffer[to].bytes, plan->buffer[to].name);
  if (w->held[to] != HELD_NOT)
    return verify_fail(plan, i, "fetches %s, which has not been released", plan->buffer[to].name);
  int64_t part = frozen ? layout->flat - layout->trained : layout->trained;
  w->held[to] = placed && range.end - range.begin >= part ? HELD_WHOLE
                : frozen                                  ? HELD_FROZEN_SHARD
                                                          : HELD_SHARD;
  return STATUS_OK;
}

/* With masters in host memory a FETCH has copied the shard to its place in the window, or next to
 * it, and a cast follows. */
static enum status check_fetched(const struct windows *w, int i)
{
  const struct plan *plan = w->plan;
  const struct instr *instr = &plan->instr[i];
  const struct layout_unit *layout = &plan->unit[instr->unit].layout;
  int from = instr->use[GATHER_SHARD].buffer, to = instr->use[GATHER_WHOLE].buffer;
  bool frozen = w->held[from] == HELD_FROZEN_SHARD;
  if (w->held[from] != HELD_SHARD && !frozen)
    return verify_fail(plan, i, "gathers from %s, which nothing has fetched",
                       plan->buffer[from].name);
  struct layout_range part = frozen ? (struct layout_range){layout->trained, layout->flat}
                                    : (struct layout_range){0, layout->trained};
  bool same =
      plan->buffer[from].parent < 0 || plan_root(plan, from, NULL) == plan_root(plan, to, NULL);
  if (!same || !verify_is_place(plan, instr->unit, to, part))
    return verify_fail(plan, i, "gathers %s to the wrong place in the unit", plan->buffer[to].name);
  return STATUS_OK;
}

static enum status gather(const struct windows *w, int i)
{
  const struct plan *plan = w->plan;
  int from = plan->instr[i].use[GATHER_SHARD].buffer, to = plan->instr[i].use[GATHER_WHOLE].buffer;
  if (w->held[to] != HELD_NOT)
    return verify_fail(plan, i, "gathers %s, which has not been released", plan->buffer[to].name);
  enum status status = verify_on_host(plan, plan->instr[i].unit) ? check_fetched(w, i) : STATUS_OK;
  w->held[from] = HELD_NOT;
  w->held[to] = HELD_WHOLE;
  return status;
}

static enum status check_here(const struct windows *w, int i, int k, enum held held)
{
  const int buffer = w->plan->instr[i].use[k].buffer;
  if (buffer < 0 || !verify_on_host(w->plan, w->plan->instr[i].unit) || w->held[buffer] == held)
    return STATUS_OK;
  return verify_fail(w->plan, i, "reads %s, which nothing has fetched",
                     w->plan->buffer[buffer].name);
}

static enum status measure(const struct windows *w, int i)
{
  const enum status status = check_here(w, i, MEASURE_TRAINED, HELD_SHARD);
  return status ? status : check_here(w, i, MEASURE_FROZEN, HELD_FROZEN_SHARD);
}

/* The elements of the unit that a message of `from` stands for are trained or frozen. */
static bool is_frozen_shard(const struct windows *w, int unit, int from)
{
  return verify_on_host(w->plan, unit) ? w->held[from] == HELD_FROZEN_SHARD
                                       : from == w->plan->unit[unit].frozen;
}

static enum status encode(const struct windows *w, int i)
{
  const struct plan *plan = w->plan;
  const struct instr *instr = &plan->instr[i];
  const int from = instr->use[ENCODE_PARAMS_SHARD].buffer,
            to = instr->use[ENCODE_PARAMS_MESSAGE].buffer;
  const bool host = verify_on_host(plan, instr->unit),
             frozen = is_frozen_shard(w, instr->unit, from);
  if (host && !frozen && w->held[from] != HELD_SHARD)
    return verify_fail(plan, i, "encodes %s, which nothing has fetched", plan->buffer[from].name);
  if (!host && !frozen && from != plan->unit[instr->unit].master)
    return verify_fail(plan, i, "reads %s in the place of the unit's parameters",
                       plan->buffer[from].name);
  w->held[from] = HELD_NOT;
  w->held[to] = frozen ? HELD_FROZEN_MESSAGE : HELD_MESSAGE;
  return STATUS_OK;
}

static enum status gather_messages(const struct windows *w, int i)
{
  const struct instr *instr = &w->plan->instr[i];
  const int from = instr->use[GATHER_MESSAGES_MINE].buffer,
            to = instr->use[GATHER_MESSAGES_ALL].buffer;
  const enum held held = w->held[from];
  if (held != HELD_MESSAGE && held != HELD_FROZEN_MESSAGE)
    return verify_fail(w->plan, i, "gathers %s, which is no message of the unit's parameters",
                       w->plan->buffer[from].name);
  w->held[from] = HELD_NOT;
  w->held[to] = held == HELD_MESSAGE ? HELD_MESSAGES : HELD_FROZEN_MESSAGES;
  return STATUS_OK;
}

static enum status decode(const struct windows *w, int i)
{
  const struct plan *plan = w->plan;
  const struct instr *instr = &plan->instr[i];
  const struct layout_unit *layout = &plan->unit[instr->unit].layout;
  const int from = instr->use[DECODE_PARAMS_MESSAGES].buffer,
            to = instr->use[DECODE_PARAMS_WHOLE].buffer;
  const bool frozen = w->held[from] == HELD_FROZEN_MESSAGES;
  const struct layout_range part = {frozen ? layout->trained : 0,
                                    frozen ? layout->flat : layout->trained};
  if (!frozen && w->held[from] != HELD_MESSAGES)
    return verify_fail(plan, i, "decodes %s, which does not hold the messages of all members",
                       plan->buffer[from].name);
  if (w->held[to] != HELD_NOT)
    return verify_fail(plan, i, "decodes into %s, which has not been released",
                       plan->buffer[to].name);
  if (!verify_is_place(plan, instr->unit, to, part))
    return verify_fail(plan, i, "decodes %s to the wrong place in the unit", plan->buffer[to].name);
  w->held[from] = HELD_NOT;
  w->held[to] = HELD_WHOLE;
  return STATUS_OK;
}

/* A window is closed as a whole. */
static enum status close_window(const struct windows *w, int i)
{
  const struct plan *plan = w->plan;
  int buffer = plan->instr[i].use[RELEASE_PARAMS].buffer, closed = 0;
  for (int b = buffer; b >= 0; b = w->next[b])
    if (w->held[b] == HELD_WHOLE && plan_root(plan, b, NULL) == buffer) {
      w->held[b] = HELD_NOT;
      closed++;
    }
  if (closed == 0)
    return verify_fail(plan, i, "releases %s, which is not gathered", plan->buffer[buffer].name);
  return STATUS_OK;
}

static enum status check_window(const struct windows *w, int i)
{
  const struct instr *instr = &w->plan->instr[i];
  switch (instr->op) {
  case OP_FETCH: return fetch(w, i);
  case OP_GATHER: return gather(w, i);
  case OP_MEASURE: return measure(w, i);
  case OP_GATHER_SCALES: return check_here(w, i, SCALES_TRAINED, HELD_SHARD);
  case OP_ENCODE_PARAMS: return encode(w, i);
  case OP_GATHER_MESSAGES: return gather_messages(w, i);
  case OP_DECODE_PARAMS: return decode(w, i);
  case OP_RELEASE: return close_window(w, i);
  default: return op_rows[instr->op].params ? check_params(w, i, instr->use[0].buffer) : STATUS_OK;
  }
}

static const char *left_open(enum held held)
{
  switch (held) {
  case HELD_WHOLE: return "%s is gathered and never released";
  case HELD_SHARD:
  case HELD_FROZEN_SHARD: return "%s is fetched and never gathered";
  default: return "%s has messages that are never decoded";
  }
}

static enum status walk_windows(const struct windows *w)
{
  const struct plan *plan = w->plan;
  for (int i = 0; i < plan->n; i++) {
    enum status status = check_window(w, i);
    if (status)
      return status;
  }
  for (int b = 0; b < plan->buffers; b++)
    if (w->held[b] != HELD_NOT)
      return status_set(STATUS_PLAN, left_open(w->held[b]), plan->buffer[b].name);
  return STATUS_OK;
}

enum status verify_windows(const struct plan *plan)
{
  struct windows w = {.plan = plan};
  enum status status = mem_new(MEM_META, plan->buffers, &w.held);
  if (!status)
    status = verify_families(plan, &w.next);
  if (!status)
    status = walk_windows(&w);
  mem_free(w.next);
  mem_free(w.held);
  return status;
}
