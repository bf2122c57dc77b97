/* Bytes: conflicting accesses to the same bytes are ordered, and every read finds the buffer's own
 * value.
 *
 * Happens-before comes from lane order and waits, as a vector clock per instruction. Every byte
 * remembers its last change and the reads since, per lane (as in FastTrack: Flanagan and Freund,
 * PLDI 2009): an access is checked against these alone, because all earlier accesses are ordered
 * before them. Bytes also remember the buffer whose value they hold. Two steps are walked, so that
 * the step boundary is covered too. */
#include <string.h>

#include "base/mem.h"
#include "plan/verify.h"

/* Times count instructions over both steps; -1 is "never". */
struct span {
  int64_t begin, end;
  int owner; /* root buffer whose value is stored here, -1: none */
  int writer, reader[LANE_COUNT];
};

struct span_list {
  struct span *span;
  int n;
  int64_t room;
};

struct clock {
  int done[LANE_COUNT];
}; /* per lane, the latest time that is complete */

struct verifier {
  const struct plan *plan;
  struct span_list list[TIER_COUNT][2]; /* transient, persistent */
  struct clock *clock;                  /* [2n] when the instruction starts */
};

struct place {
  struct span_list *list;
  int64_t begin, end;
  int root;
};

static struct place place_of(struct verifier *v, int buffer)
{
  const struct plan_buffer *b = &v->plan->buffer[buffer];
  return (struct place){&v->list[b->tier][b->persistent], b->offset, b->offset + b->bytes,
                        plan_root(v->plan, buffer, NULL)};
}

/* ---- happens-before ---- */

static void join(struct verifier *v, struct clock *clock, int time)
{
  enum plan_lane lane = v->plan->instr[time % v->plan->n].lane;
  for (int l = 0; l < LANE_COUNT; l++)
    if (v->clock[time].done[l] > clock->done[l])
      clock->done[l] = v->clock[time].done[l];
  if (time > clock->done[lane])
    clock->done[lane] = time;
}

static void run_clocks(struct verifier *v)
{
  const struct plan *plan = v->plan;
  int previous[LANE_COUNT];
  for (int l = 0; l < LANE_COUNT; l++)
    previous[l] = -1;
  for (int time = 0; time < 2 * plan->n; time++) {
    const struct instr *instr = &plan->instr[time % plan->n];
    struct clock *clock = &v->clock[time];
    for (int l = 0; l < LANE_COUNT; l++)
      clock->done[l] = -1;
    if (previous[instr->lane] >= 0)
      join(v, clock, previous[instr->lane]);
    for (int w = 0; w < instr->n_wait; w++) {
      int step = time / plan->n - instr->wait[w].back;
      if (step >= 0)
        join(v, clock, step * plan->n + instr->wait[w].instr);
    }
    previous[instr->lane] = time;
  }
}

static bool is_before(const struct verifier *v, int earlier, int later)
{
  return v->clock[later].done[v->plan->instr[earlier % v->plan->n].lane] >= earlier;
}

/* ---- bytes ---- */

/* The first span that ends after `at`. */
static int find_span(const struct span_list *list, int64_t at)
{
  int low = 0, high = list->n;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (list->span[middle].end <= at)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static enum status make_span_room(struct span_list *list, int more)
{
  return mem_grow(MEM_META, (void **)&list->span, &list->room, list->n + more, sizeof *list->span);
}

/* Make a span begin at `at`. */
static void split_at(struct span_list *list, int64_t at)
{
  int s = find_span(list, at);
  if (s == list->n || list->span[s].begin == at)
    return;
  memmove(&list->span[s + 1], &list->span[s], (size_t)(list->n - s) * sizeof *list->span);
  list->span[s].end = list->span[s + 1].begin = at;
  list->n++;
}

/* Spans are then inside or outside of the place. */
static enum status split(const struct place *place)
{
  enum status status = make_span_room(place->list, 2);
  if (status)
    return status;
  split_at(place->list, place->begin);
  split_at(place->list, place->end);
  return STATUS_OK;
}

static const struct span fresh = {
    .owner = -1, .writer = -1, .reader = {[0 ... LANE_COUNT - 1] = -1}};

static enum status start_arena(struct span_list *list, int64_t bytes)
{
  enum status status = make_span_room(list, 1);
  if (status || bytes == 0)
    return status;
  list->span[0] = fresh;
  list->span[0].end = bytes;
  list->n = 1;
  return STATUS_OK;
}

/* One span of `place` alone, as if `time` (-1: before the first step) had written it. */
static enum status write_span(const struct place *place, int time)
{
  struct span_list *list = place->list;
  enum status status = split(place);
  if (status || place->begin == place->end)
    return status;
  int first = find_span(list, place->begin), behind = find_span(list, place->end);
  memmove(&list->span[first + 1], &list->span[behind],
          (size_t)(list->n - behind) * sizeof *list->span);
  list->n -= behind - first - 1;
  list->span[first] = fresh;
  list->span[first].begin = place->begin;
  list->span[first].end = place->end;
  list->span[first].owner = place->root;
  list->span[first].writer = time;
  return STATUS_OK;
}

static enum status read_span(const struct place *place, int time, enum plan_lane lane)
{
  struct span_list *list = place->list;
  enum status status = split(place);
  if (status || place->begin == place->end)
    return status;
  for (int s = find_span(list, place->begin); s < list->n && list->span[s].begin < place->end; s++)
    list->span[s].reader[lane] = time;
  return STATUS_OK;
}

/* The use by which instruction `time` changed (or read) bytes in the span. */
static const struct plan_use *used_there(struct verifier *v, int time, bool change,
                                         const struct span_list *list, const struct span *span)
{
  const struct instr *instr = &v->plan->instr[time % v->plan->n];
  const struct plan_use *found = instr->use;
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    if (instr->use[k].buffer < 0)
      continue;
    struct place place = place_of(v, instr->use[k].buffer);
    if ((instr->use[k].access != ACCESS_READ) == change && place.list == list &&
        place.end > span->begin && place.begin < span->end)
      found = &instr->use[k];
  }
  return found;
}

static enum status fail_race(struct verifier *v, int time, const struct plan_use *use, int other,
                             const struct plan_use *there)
{
  const struct plan *plan = v->plan;
  return verify_fail(plan, time, "%s %s while %s %s %s over the same bytes: nothing orders them",
                     verify_verb(use->access), plan->buffer[use->buffer].name,
                     verify_name(plan, other, time).text, verify_verb(there->access),
                     plan->buffer[there->buffer].name);
}

static enum status check_race(struct verifier *v, int time, const struct plan_use *use,
                              const struct span_list *list, const struct span *span)
{
  if (span->writer >= 0 && !is_before(v, span->writer, time))
    return fail_race(v, time, use, span->writer, used_there(v, span->writer, true, list, span));
  for (int lane = 0; lane < LANE_COUNT && use->access != ACCESS_READ; lane++)
    if (span->reader[lane] >= 0 && !is_before(v, span->reader[lane], time))
      return fail_race(v, time, use, span->reader[lane],
                       used_there(v, span->reader[lane], false, list, span));
  return STATUS_OK;
}

static bool lies_in(const struct plan *plan, int buffer, int root, int64_t begin, int64_t end)
{
  if (buffer < 0 || plan_root(plan, buffer, NULL) != root)
    return false;
  return begin >= plan->buffer[buffer].offset &&
         end <= plan->buffer[buffer].offset + plan->buffer[buffer].bytes;
}

/* Whether the value carries over from step to step: this rank's masters, frozen parameters,
 * moments, pending gradients and caches, and the working copy. A window gathered around a master
 * does not. */
static bool carries_over(const struct plan *plan, const struct place *place,
                         const struct span *span)
{
  const int root = place->root;
  const int64_t begin = span->begin > place->begin ? span->begin : place->begin,
                end = span->end < place->end ? span->end : place->end;
  const struct plan_buffer *buffer = &plan->buffer[root];
  if (!buffer->persistent || buffer->unit < 0)
    return false;
  if (root == plan->unit[buffer->unit].pending)
    return true;
  if (buffer->purpose != PURPOSE_PARAMS)
    return buffer->purpose == PURPOSE_STATE || buffer->purpose == PURPOSE_RESIDUAL ||
           buffer->purpose == PURPOSE_CACHE || buffer->purpose == PURPOSE_WORKING;
  return lies_in(plan, plan->unit[buffer->unit].master, root, begin, end) ||
         lies_in(plan, plan->unit[buffer->unit].frozen, root, begin, end);
}

/* A value that is read or added to must be the buffer's own: written in this step, unless it
 * carries over from the step before. */
static enum status check_value(struct verifier *v, int time, const struct plan_use *use,
                               const struct place *place, const struct span *span)
{
  const struct plan *plan = v->plan;
  const struct plan_buffer *buffer = &plan->buffer[use->buffer];
  bool now = span->writer >= 0 && span->writer / plan->n == time / plan->n;
  if (use->access == ACCESS_WRITE ||
      (span->owner == place->root && (now || carries_over(plan, place, span))))
    return STATUS_OK;
  if (!now)
    return verify_fail(plan, time, "%s %s before anything has written it in this step",
                       verify_verb(use->access), buffer->name);
  return verify_fail(
      plan, time, "%s %s, but %s has written %s over its bytes", verify_verb(use->access),
      buffer->name, verify_name(plan, span->writer, time).text,
      plan->buffer[used_there(v, span->writer, true, place->list, span)->buffer].name);
}

static enum status check_access(struct verifier *v, int time, const struct plan_use *use)
{
  struct place place = place_of(v, use->buffer);
  for (int s = find_span(place.list, place.begin);
       s < place.list->n && place.list->span[s].begin < place.end; s++) {
    const struct span *span = &place.list->span[s];
    enum status status = check_race(v, time, use, place.list, span);
    if (!status)
      status = check_value(v, time, use, &place, span);
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* Uses of one instruction must not overlap, unless it works in place. */
static enum status check_inside(struct verifier *v, int i)
{
  const struct plan *plan = v->plan;
  const struct instr *instr = &plan->instr[i];
  for (int k = 1; k < PLAN_MAX_USE; k++)
    for (int j = 0; j < k; j++) {
      const struct plan_use *a = &instr->use[j], *b = &instr->use[k];
      if (a->buffer < 0 || b->buffer < 0)
        continue;
      struct place left = place_of(v, a->buffer), right = place_of(v, b->buffer);
      if (a->access == ACCESS_READ && b->access == ACCESS_READ)
        continue;
      if (left.list != right.list || left.begin >= right.end || right.begin >= left.end)
        continue;
      if (op_rows[instr->op].in_place && left.root == right.root)
        continue;
      return verify_fail(plan, i, "%s %s and %s %s over the same bytes", verify_verb(a->access),
                         plan->buffer[a->buffer].name, verify_verb(b->access),
                         plan->buffer[b->buffer].name);
    }
  return STATUS_OK;
}

static enum status walk_one(struct verifier *v, int time)
{
  const struct instr *instr = &v->plan->instr[time % v->plan->n];
  enum status status = check_inside(v, time % v->plan->n);
  for (int k = 0; k < PLAN_MAX_USE && !status; k++)
    if (instr->use[k].buffer >= 0)
      status = check_access(v, time, &instr->use[k]);
  for (int change = 0; change <= 1; change++)
    for (int k = 0; k < PLAN_MAX_USE && !status; k++) {
      if (instr->use[k].buffer < 0 || (instr->use[k].access != ACCESS_READ) != change)
        continue;
      struct place place = place_of(v, instr->use[k].buffer);
      status = change ? write_span(&place, time) : read_span(&place, time, instr->lane);
    }
  return status;
}

/* A span is then inside or outside the buffer, so that carrying over ends with the buffer. */
static enum status cut_at(struct verifier *v, int buffer)
{
  if (buffer < 0)
    return STATUS_OK;
  struct place place = place_of(v, buffer);
  return split(&place);
}

/* Persistent buffers own their bytes before the first step, each its own. */
static enum status start(struct verifier *v)
{
  const struct plan *plan = v->plan;
  enum status status = STATUS_OK;
  for (int tier = 0; tier < TIER_COUNT && !status; tier++) {
    status = start_arena(&v->list[tier][0], plan->transient_bytes[tier]);
    if (!status)
      status = start_arena(&v->list[tier][1], plan->persistent_bytes[tier]);
  }
  for (int b = 0; b < plan->buffers && !status; b++) {
    if (!plan->buffer[b].persistent || plan->buffer[b].parent >= 0)
      continue;
    struct place place = place_of(v, b);
    for (int s = find_span(place.list, place.begin);
         s < place.list->n && place.list->span[s].begin < place.end; s++)
      if (place.list->span[s].owner >= 0)
        return status_set(STATUS_PLAN, "%s and %s are persistent and share bytes",
                          plan->buffer[place.list->span[s].owner].name, plan->buffer[b].name);
    status = write_span(&place, -1);
  }
  for (int u = 0; u < plan->input.model->units && !status; u++) {
    status = cut_at(v, plan->unit[u].master);
    if (!status)
      status = cut_at(v, plan->unit[u].frozen);
  }
  return status;
}

/* All ranks of the shard group have reached this collective. */
static bool meets_group(const struct instr *instr)
{
  const bool exchanges = instr->op == OP_EXCHANGE && instr->attr.group == GROUP_REDUCE;
  return instr->op == OP_PUBLISH || exchanges || instr->op == OP_SUM_SHARED ||
         instr->op == OP_METRICS;
}

/* One rank writes into the copy that its group shares while others may read it. Their plans are
 * equal to this one, so a collective must lie between the write and the reads. For the reads of the
 * next step it is PUBLISH. */
static enum status check_sharing_of(const struct verifier *v, int update)
{
  const struct plan *plan = v->plan;
  const struct instr *instr = plan->instr;
  for (int f = 0; f < update; f++) {
    if (instr[f].op != OP_FETCH || instr[f].unit != instr[update].unit)
      continue;
    int c = update - 1;
    while (c > f && !(meets_group(&instr[c]) && is_before(v, f, c) && is_before(v, c, update)))
      c--;
    if (c == f)
      return verify_fail(
          plan, update,
          "writes what other ranks may still be reading by %s: no collective lies between",
          verify_name(plan, f, update).text);
  }
  return STATUS_OK;
}

static enum status check_sharing(const struct verifier *v)
{
  const struct plan *plan = v->plan;
  enum status status = STATUS_OK;
  for (int i = 0; i < plan->n && plan->on_host[LANE_GATHER] && !status; i++)
    if (plan->instr[i].op == OP_UPDATE || plan->instr[i].op == OP_REPAIR)
      status = check_sharing_of(v, i);
  return status;
}

enum status verify_bytes(const struct plan *plan)
{
  struct verifier v = {.plan = plan};
  enum status status = mem_new(MEM_META, 2 * plan->n, &v.clock);
  if (status)
    return status;
  run_clocks(&v);
  status = start(&v);
  for (int time = 0; time < 2 * plan->n && !status; time++)
    status = walk_one(&v, time);
  if (!status)
    status = check_sharing(&v);
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    mem_free(v.list[tier][0].span);
    mem_free(v.list[tier][1].span);
  }
  mem_free(v.clock);
  return status;
}
