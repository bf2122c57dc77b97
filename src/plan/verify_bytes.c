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
  struct verify at; /* the walk */
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

static void make_span_room(struct verifier *v, struct span_list *list, int more)
{
  if (!v->at.status)
    v->at.status =
        mem_grow(MEM_META, (void **)&list->span, &list->room, list->n + more, sizeof *list->span);
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

/* Spans are then inside or outside of the place. Returns false if it has no bytes. */
static bool split(struct verifier *v, const struct place *place)
{
  make_span_room(v, place->list, 2);
  if (v->at.status)
    return false;
  split_at(place->list, place->begin);
  split_at(place->list, place->end);
  return place->begin < place->end;
}

static const struct span fresh = {
    .owner = -1, .writer = -1, .reader = {[0 ... LANE_COUNT - 1] = -1}};

static void start_arena(struct verifier *v, struct span_list *list, int64_t bytes)
{
  make_span_room(v, list, 1);
  if (v->at.status || bytes == 0)
    return;
  list->span[0] = fresh;
  list->span[0].end = bytes;
  list->n = 1;
}

/* One span of `place` alone, as if `time` (-1: before the first step) had written it. */
static void write_span(struct verifier *v, const struct place *place, int time)
{
  struct span_list *list = place->list;
  if (!split(v, place))
    return;
  const int first = find_span(list, place->begin), behind = find_span(list, place->end);
  struct span *span = &list->span[first];
  memmove(span + 1, &list->span[behind], (size_t)(list->n - behind) * sizeof *span);
  list->n -= behind - first - 1;
  *span = fresh;
  span->begin = place->begin;
  span->end = place->end;
  span->owner = place->root;
  span->writer = time;
}

static void read_span(struct verifier *v, const struct place *place)
{
  struct span_list *list = place->list;
  if (!split(v, place))
    return;
  for (int s = find_span(list, place->begin); s < list->n && list->span[s].begin < place->end; s++)
    list->span[s].reader[v->at.instr->lane] = v->at.now;
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

static void check_order(struct verifier *v, const struct plan_use *use, int other, bool change,
                        const struct span_list *list, const struct span *span)
{
  if (other < 0 || is_before(v, other, v->at.now))
    return;
  verify_fail(&v->at, "%s while %s %s over the same bytes: nothing orders them",
              verify_does(v->plan, use).text, verify_name(&v->at, other).text,
              verify_does(v->plan, used_there(v, other, change, list, span)).text);
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
         lies_in(plan, plan->unit[buffer->unit].frozen, root, begin, end) ||
         root == plan->unit[buffer->unit].kept;
}

/* A value that is read or added to must be the buffer's own: written in this step, unless it
 * carries over from the step before. */
static void check_value(struct verifier *v, const struct plan_use *use, const struct place *place,
                        const struct span *span)
{
  const int n = v->plan->n;
  const bool now = span->writer >= 0 && span->writer / n == v->at.now / n;
  if (use->access == ACCESS_WRITE ||
      (span->owner == place->root && (now || carries_over(v->plan, place, span))))
    return;
  if (!now)
    verify_fail(&v->at, "%s before anything has written it in this step",
                verify_does(v->plan, use).text);
  else
    verify_fail(&v->at, "%s, but %s has written %s over its bytes", verify_does(v->plan, use).text,
                verify_name(&v->at, span->writer).text,
                v->plan->buffer[used_there(v, span->writer, true, place->list, span)->buffer].name);
}

static void check_access(struct verifier *v, const struct plan_use *use)
{
  const struct place place = place_of(v, use->buffer);
  for (int s = find_span(place.list, place.begin);
       s < place.list->n && place.list->span[s].begin < place.end; s++) {
    const struct span *span = &place.list->span[s];
    check_order(v, use, span->writer, true, place.list, span);
    for (int lane = 0; lane < LANE_COUNT && use->access != ACCESS_READ; lane++)
      check_order(v, use, span->reader[lane], false, place.list, span);
    check_value(v, use, &place, span);
  }
}

/* Uses of one instruction must not overlap, unless it works in place. */
static void check_pair(struct verifier *v, const struct plan_use *a, const struct plan_use *b)
{
  if (a->buffer < 0 || b->buffer < 0 || (a->access == ACCESS_READ && b->access == ACCESS_READ))
    return;
  const struct place left = place_of(v, a->buffer), right = place_of(v, b->buffer);
  const bool meet = left.list == right.list && left.begin < right.end && right.begin < left.end;
  if (meet && !(v->at.row->in_place && left.root == right.root))
    verify_fail(&v->at, "%s and %s over the same bytes", verify_does(v->plan, a).text,
                verify_does(v->plan, b).text);
}

static void walk_one(struct verifier *v)
{
  const struct plan_use *use = v->at.instr->use;
  for (int k = 1; k < PLAN_MAX_USE; k++)
    for (int j = 0; j < k; j++)
      check_pair(v, &use[j], &use[k]);
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (use[k].buffer >= 0)
      check_access(v, &use[k]);
  for (int change = 0; change <= 1; change++)
    for (int k = 0; k < PLAN_MAX_USE; k++) {
      if (use[k].buffer < 0 || (use[k].access != ACCESS_READ) != change)
        continue;
      const struct place place = place_of(v, use[k].buffer);
      if (change)
        write_span(v, &place, v->at.now);
      else
        read_span(v, &place);
    }
}

/* Persistent buffers own their bytes before the first step, each its own. */
static void start(struct verifier *v)
{
  const struct plan *plan = v->plan;
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    start_arena(v, &v->list[tier][0], plan->transient_bytes[tier]);
    start_arena(v, &v->list[tier][1], plan->persistent_bytes[tier]);
  }
  for (int b = 0; b < plan->buffers && !v->at.status; b++) {
    if (!plan->buffer[b].persistent || plan->buffer[b].parent >= 0)
      continue;
    const struct place place = place_of(v, b);
    for (int s = find_span(place.list, place.begin);
         s < place.list->n && place.list->span[s].begin < place.end && !v->at.status; s++)
      if (place.list->span[s].owner >= 0)
        v->at.status =
            status_set(STATUS_PLAN, "%s and %s are persistent and share bytes",
                       plan->buffer[place.list->span[s].owner].name, plan->buffer[b].name);
    write_span(v, &place, -1);
  }
  /* Carrying over ends with the buffer, so a span must be inside or outside of it. */
  for (int b = 0; b < plan->buffers && !v->at.status; b++) {
    if (!plan->buffer[b].persistent || plan->buffer[b].parent < 0)
      continue;
    const struct place place = place_of(v, b);
    split(v, &place);
  }
}

/* All ranks of the shard group have reached this collective. */
static bool meets_group(const struct instr *instr)
{
  const bool exchanges = instr->op == OP_EXCHANGE && instr->attr.group == MESH_SHARD;
  return instr->op == OP_PUBLISH || exchanges || instr->op == OP_SUM_SHARED ||
         instr->op == OP_METRICS;
}

/* One rank writes into the copy that its group shares while others may read it. Their plans are
 * equal to this one, so a collective must lie between the write and the reads. For the reads of the
 * next step it is PUBLISH. */
static void check_sharing_of(struct verifier *v, int update)
{
  const struct instr *instr = v->plan->instr;
  verify_at(&v->at, update);
  for (int f = 0; f < update; f++) {
    if (instr[f].op != OP_FETCH || instr[f].unit != instr[update].unit)
      continue;
    int c = update - 1;
    while (c > f && !(meets_group(&instr[c]) && is_before(v, f, c) && is_before(v, c, update)))
      c--;
    if (c == f)
      verify_fail(&v->at,
                  "writes what other ranks may still be reading by %s: no collective lies between",
                  verify_name(&v->at, f).text);
  }
}

enum status verify_bytes(const struct plan *plan)
{
  struct verifier v = {.plan = plan, .at.plan = plan};
  v.at.status = mem_new(MEM_META, 2 * plan->n, &v.clock);
  if (v.at.status)
    return v.at.status;
  run_clocks(&v);
  start(&v);
  for (int time = 0; time < 2 * plan->n && !v.at.status; time++) {
    verify_at(&v.at, time);
    walk_one(&v);
  }
  for (int i = 0; i < plan->n && plan->on_host[LANE_GATHER] && !v.at.status; i++)
    if (plan->instr[i].op == OP_UPDATE || plan->instr[i].op == OP_REPAIR)
      check_sharing_of(&v, i);
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    mem_free(v.list[tier][0].span);
    mem_free(v.list[tier][1].span);
  }
  mem_free(v.clock);
  return v.at.status;
}
