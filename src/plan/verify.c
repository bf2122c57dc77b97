/* Proof that a plan is safe and whole, from nothing but its input, instructions, waits and offsets; shares no code with what built, placed and ordered it.
 *
 * Happens-before comes from lane order and waits, as a vector clock per instruction. Every byte remembers its last change and the reads since, per lane (as in
 * FastTrack: Flanagan and Freund, PLDI 2009): an access is checked against those alone, because whatever came before them is ordered before them.
 * Bytes also remember whose value they hold. Two steps are walked, so that what crosses the step boundary is proven too. */
#include <string.h>

#include "base/mem.h"
#include "plan/internal.h"

/* Times count instructions over both steps; -1 is "never". */
struct span {
  int64_t begin, end;
  int owner; /* root buffer whose value is here, -1: none */
  int writer, reader[LANE_COUNT];
};

struct span_list {
  struct span *span;
  int n, room;
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

struct label {
  char text[128];
};

/* ---- words ---- */

static struct label name_of(const struct plan *plan, int time, int now)
{
  struct label label;
  plan_instr_name(plan, time % plan->n, label.text, sizeof label.text);
  size_t length = strlen(label.text);
  if (time / plan->n != now / plan->n)
    snprintf(label.text + length, sizeof label.text - length, " of the step before");
  return label;
}

static const char *verb(enum plan_access access)
{
  return access == ACCESS_READ ? "reads" : access == ACCESS_WRITE ? "writes" : "changes";
}

static enum status fail_instr(const struct plan *plan, int i, const char *why)
{
  return status_set(STATUS_PLAN, "%s %s", name_of(plan, i, i).text, why);
}

/* ---- form: the table in plan.h ---- */

static bool access_fits(char letter, enum plan_access access)
{
  switch (letter) {
  case 'r': return access == ACCESS_READ;
  case 'w': return access == ACCESS_WRITE;
  case 'a': return access == ACCESS_ADD;
  default: return access != ACCESS_READ;
  }
}

static enum status check_uses(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const struct op_traits *traits = &op_traits[instr->op];
  int required = (int)strlen(traits->uses), most = required + (int)strlen(traits->more);
  if (instr->n_use < required || instr->n_use > most)
    return fail_instr(plan, i, "has not the uses that its operation takes");
  for (int k = 0; k < instr->n_use; k++) {
    const struct plan_use *use = &instr->use[k];
    if (use->buffer < 0 || use->buffer >= plan->buffers)
      return fail_instr(plan, i, "uses a buffer that does not exist");
    if (!access_fits(k < required ? traits->uses[k] : traits->more[k - required], use->access))
      return status_set(STATUS_PLAN, "%s %s %s, which its operation does not do in that place", name_of(plan, i, i).text, verb(use->access),
                        plan->buffer[use->buffer].name);
    if (plan->buffer[use->buffer].unit >= 0 && plan->buffer[use->buffer].unit != instr->unit)
      return status_set(STATUS_PLAN, "%s uses %s, which belongs to another unit", name_of(plan, i, i).text, plan->buffer[use->buffer].name);
  }
  return STATUS_OK;
}

static enum status check_waits(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  if (instr->n_wait < 0 || instr->n_wait > PLAN_MAX_WAIT)
    return fail_instr(plan, i, "has more waits than fit");
  for (int w = 0; w < instr->n_wait; w++) {
    const struct plan_wait *wait = &instr->wait[w];
    if (wait->instr < 0 || wait->instr >= plan->n || wait->back < 0 || wait->back > 1)
      return fail_instr(plan, i, "waits for an instruction that does not exist");
    if (wait->back == 0 && wait->instr >= i)
      return status_set(STATUS_PLAN, "%s waits for %s, which does not come before it", name_of(plan, i, i).text, name_of(plan, wait->instr, i).text);
  }
  return STATUS_OK;
}

static enum status check_form(const struct plan *plan)
{
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    bool known = (unsigned)instr->op < OP_COUNT && instr->unit >= -1 && instr->unit < plan->input.model->units;
    if (!known || instr->micro < -1 || instr->micro >= plan->input.shape.micros)
      return status_set(STATUS_PLAN, "instruction #%d has an unknown operation, unit or micro-batch", i);
    if (instr->lane != op_traits[instr->op].lane)
      return fail_instr(plan, i, "is on the wrong lane");
    enum status status = check_uses(plan, i);
    if (!status)
      status = check_waits(plan, i);
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* ---- buffers ---- */

static struct place place_of(struct verifier *v, int buffer)
{
  const struct plan_buffer *b = &v->plan->buffer[buffer];
  return (struct place){&v->list[b->tier][b->persistent], b->offset, b->offset + b->bytes, plan_root(v->plan, buffer, NULL)};
}

static enum status check_buffer(const struct plan *plan, const struct plan_buffer *b)
{
  int64_t arena = b->persistent ? plan->persistent_bytes[b->tier] : plan->transient_bytes[b->tier];
  if (b->bytes < 0 || b->offset < 0 || b->offset > arena - b->bytes)
    return status_set(STATUS_PLAN, "%s does not lie inside its arena", b->name);
  if (b->parent < 0)
    return STATUS_OK;
  const struct plan_buffer *parent = &plan->buffer[b->parent];
  bool inside = b->parent_offset >= 0 && b->parent_offset <= parent->bytes - b->bytes && b->offset == parent->offset + b->parent_offset;
  if (!inside || b->tier != parent->tier || b->persistent != parent->persistent)
    return status_set(STATUS_PLAN, "%s does not lie inside %s, which it is a part of", b->name, parent->name);
  return STATUS_OK;
}

static enum status check_buffers(const struct plan *plan)
{
  for (int b = 0; b < plan->buffers; b++) {
    bool used = plan->buffer[b].first <= plan->buffer[b].last;
    enum status status = used ? check_buffer(plan, &plan->buffer[b]) : STATUS_OK;
    if (status)
      return status;
  }
  return STATUS_OK;
}

static enum status check_lifetimes(const struct plan *plan)
{
  for (int i = 0; i < plan->n; i++)
    for (int k = 0; k < plan->instr[i].n_use; k++) {
      const struct plan_buffer *b = &plan->buffer[plan->instr[i].use[k].buffer];
      if (i < b->first || i > b->last)
        return status_set(STATUS_PLAN, "%s %s %s outside of its lifetime, #%d to #%d", name_of(plan, i, i).text, verb(plan->instr[i].use[k].access),
                          b->name, b->first, b->last);
    }
  return STATUS_OK;
}

/* ---- nothing changes what is frozen ---- */

/* Of another unit than the instruction's nothing is used: see check_uses(). */
static enum status check_frozen_of(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  if (instr->unit < 0 || plan->frozen[instr->unit] < 0)
    return STATUS_OK;
  const struct plan_buffer *frozen = &plan->buffer[plan->frozen[instr->unit]];
  for (int k = 0; k < instr->n_use; k++) {
    const struct plan_buffer *used = &plan->buffer[instr->use[k].buffer];
    bool meets = used->persistent && used->tier == frozen->tier && used->offset < frozen->offset + frozen->bytes &&
                 frozen->offset < used->offset + used->bytes;
    if (meets && instr->use[k].access != ACCESS_READ)
      return status_set(STATUS_PLAN, "%s %s %s, but %s never changes", name_of(plan, i, i).text, verb(instr->use[k].access), used->name,
                        frozen->name);
  }
  return STATUS_OK;
}

static enum status check_frozen(const struct plan *plan)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < plan->n && !status; i++)
    status = check_frozen_of(plan, i);
  return status;
}

/* ---- gather -> use -> release ---- */

static bool reads_params(enum op op)
{
  return op == OP_EMBED || op == OP_FORWARD || op == OP_RECOMPUTE || op == OP_LOSS || op == OP_LOGITS || op == OP_DECODE || op == OP_BACKWARD;
}

/* Bytes of an element of gathered parameters; everything else of a unit is fp32. */
static int64_t element_of(const struct plan *plan)
{
  return (int64_t)dtype_size(plan->input.device->compute);
}

/* Whether one of the two parts of a whole unit is there: on this rank all the time, or gathered into the buffer or a part of it. */
static bool part_is_there(const struct plan *plan, int buffer, bool frozen, const bool *open)
{
  int u = plan->buffer[buffer].unit, mine = frozen ? plan->frozen[u] : plan->master[u];
  int64_t trained = plan->layout[u].trained * element_of(plan), all = plan->layout[u].flat * element_of(plan);
  int64_t begin = frozen ? trained : 0, bytes = frozen ? all - trained : trained, offset;
  if (bytes == 0)
    return true;
  if (mine >= 0 && plan_root(plan, mine, &offset) == buffer && offset == begin && plan->buffer[mine].bytes == bytes)
    return true;
  for (int b = 0; b < plan->buffers; b++)
    if (open[b] && plan_root(plan, b, &offset) == buffer && offset == begin && plan->buffer[b].bytes == bytes)
      return true;
  return false;
}

static enum status check_params(const struct plan *plan, int i, int buffer, const bool *open)
{
  const struct plan_buffer *params = &plan->buffer[buffer];
  int unit = plan->instr[i].unit;
  if (params->unit != unit)
    return status_set(STATUS_PLAN, "%s reads %s, which are not its parameters", name_of(plan, i, i).text, params->name);
  if (params->bytes != plan->layout[unit].flat * element_of(plan))
    return status_set(STATUS_PLAN, "%s reads %s, which are not all of its parameters", name_of(plan, i, i).text, params->name);
  if (!part_is_there(plan, buffer, false, open) || !part_is_there(plan, buffer, true, open))
    return status_set(STATUS_PLAN, "%s reads %s, which is not gathered", name_of(plan, i, i).text, params->name);
  return STATUS_OK;
}

static enum status open_window(const struct plan *plan, int i, bool *open)
{
  int buffer = plan->instr[i].use[1].buffer;
  if (open[buffer])
    return status_set(STATUS_PLAN, "%s gathers %s, which has not been released", name_of(plan, i, i).text, plan->buffer[buffer].name);
  open[buffer] = true;
  return STATUS_OK;
}

/* A window is closed as a whole. */
static enum status close_window(const struct plan *plan, int i, bool *open)
{
  int buffer = plan->instr[i].use[0].buffer, closed = 0;
  for (int b = 0; b < plan->buffers; b++)
    if (open[b] && plan_root(plan, b, NULL) == buffer) {
      open[b] = false;
      closed++;
    }
  if (closed == 0)
    return status_set(STATUS_PLAN, "%s releases %s, which is not gathered", name_of(plan, i, i).text, plan->buffer[buffer].name);
  return STATUS_OK;
}

static enum status check_window(const struct plan *plan, int i, bool *open)
{
  const struct instr *instr = &plan->instr[i];
  if (instr->op == OP_GATHER)
    return open_window(plan, i, open);
  if (instr->op == OP_RELEASE)
    return close_window(plan, i, open);
  return reads_params(instr->op) ? check_params(plan, i, instr->use[0].buffer, open) : STATUS_OK;
}

static enum status walk_windows(const struct plan *plan, bool *open)
{
  for (int i = 0; i < plan->n; i++) {
    enum status status = check_window(plan, i, open);
    if (status)
      return status;
  }
  for (int b = 0; b < plan->buffers; b++)
    if (open[b])
      return status_set(STATUS_PLAN, "%s is gathered and never released", plan->buffer[b].name);
  return STATUS_OK;
}

static enum status check_windows(const struct plan *plan)
{
  void *open;
  enum status status = mem_alloc(MEM_META, (size_t)plan->buffers * sizeof(bool), &open);
  if (status)
    return status;
  status = walk_windows(plan, open);
  mem_free(open);
  return status;
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

/* The first span that ends behind `at`. */
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
  if (list->n + more <= list->room)
    return STATUS_OK;
  int room = 2 * (list->n + more);
  void *span = list->span;
  enum status status = mem_resize(MEM_META, (size_t)room * sizeof *list->span, &span);
  if (status)
    return status;
  list->span = span;
  list->room = room;
  return STATUS_OK;
}

/* Make a span begin at `at`. */
static void split(struct span_list *list, int64_t at)
{
  int s = find_span(list, at);
  if (s == list->n || list->span[s].begin == at)
    return;
  memmove(&list->span[s + 1], &list->span[s], (size_t)(list->n - s) * sizeof *list->span);
  list->span[s].end = list->span[s + 1].begin = at;
  list->n++;
}

static const struct span fresh = {.owner = -1, .writer = -1, .reader = {[0 ... LANE_COUNT - 1] = -1}};

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
  enum status status = make_span_room(list, 2);
  if (status || place->begin == place->end)
    return status;
  split(list, place->begin);
  split(list, place->end);
  int first = find_span(list, place->begin), behind = find_span(list, place->end);
  memmove(&list->span[first + 1], &list->span[behind], (size_t)(list->n - behind) * sizeof *list->span);
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
  enum status status = make_span_room(list, 2);
  if (status || place->begin == place->end)
    return status;
  split(list, place->begin);
  split(list, place->end);
  for (int s = find_span(list, place->begin); s < list->n && list->span[s].begin < place->end; s++)
    list->span[s].reader[lane] = time;
  return STATUS_OK;
}

/* What instruction `time` changed (or read) in the span: one of its uses meets it. */
static const struct plan_use *used_there(struct verifier *v, int time, bool change, const struct span_list *list, const struct span *span)
{
  const struct instr *instr = &v->plan->instr[time % v->plan->n];
  const struct plan_use *found = instr->use;
  for (int k = 0; k < instr->n_use; k++) {
    struct place place = place_of(v, instr->use[k].buffer);
    if ((instr->use[k].access != ACCESS_READ) == change && place.list == list && place.end > span->begin && place.begin < span->end)
      found = &instr->use[k];
  }
  return found;
}

static enum status fail_race(struct verifier *v, int time, const struct plan_use *use, int other, const struct plan_use *there)
{
  const struct plan *plan = v->plan;
  return status_set(STATUS_PLAN, "%s %s %s while %s %s %s over the same bytes: nothing orders them", name_of(plan, time, time).text,
                    verb(use->access), plan->buffer[use->buffer].name, name_of(plan, other, time).text, verb(there->access),
                    plan->buffer[there->buffer].name);
}

static enum status check_race(struct verifier *v, int time, const struct plan_use *use, const struct span_list *list, const struct span *span)
{
  if (span->writer >= 0 && !is_before(v, span->writer, time))
    return fail_race(v, time, use, span->writer, used_there(v, span->writer, true, list, span));
  for (int lane = 0; lane < LANE_COUNT && use->access != ACCESS_READ; lane++)
    if (span->reader[lane] >= 0 && !is_before(v, span->reader[lane], time))
      return fail_race(v, time, use, span->reader[lane], used_there(v, span->reader[lane], false, list, span));
  return STATUS_OK;
}

static bool lies_in(const struct plan *plan, int buffer, int root, int64_t begin, int64_t end)
{
  if (buffer < 0 || plan_root(plan, buffer, NULL) != root)
    return false;
  return begin >= plan->buffer[buffer].offset && end <= plan->buffer[buffer].offset + plan->buffer[buffer].bytes;
}

/* Whether the bytes mean something from step to step: this rank's masters, frozen parameters, moments and caches. What is gathered around a master is as old as
 * its gradients. */
static bool carries(const struct plan *plan, int root, int64_t begin, int64_t end)
{
  const struct plan_buffer *buffer = &plan->buffer[root];
  if (!buffer->persistent || buffer->unit < 0)
    return false;
  if (buffer->purpose != PURPOSE_PARAMS)
    return buffer->purpose == PURPOSE_MOMENTS || buffer->purpose == PURPOSE_CACHE;
  return lies_in(plan, plan->master[buffer->unit], root, begin, end) || lies_in(plan, plan->frozen[buffer->unit], root, begin, end);
}

static bool carries_over(const struct plan *plan, const struct place *place, const struct span *span)
{
  int64_t begin = span->begin > place->begin ? span->begin : place->begin, end = span->end < place->end ? span->end : place->end;
  return carries(plan, place->root, begin, end);
}

/* What is read or added to must be the buffer's own value: written in this step, unless it carries over from the one before. */
static enum status check_value(struct verifier *v, int time, const struct plan_use *use, const struct place *place, const struct span *span)
{
  const struct plan *plan = v->plan;
  const struct plan_buffer *buffer = &plan->buffer[use->buffer];
  bool now = span->writer >= 0 && span->writer / plan->n == time / plan->n;
  if (use->access == ACCESS_WRITE || (span->owner == place->root && (now || carries_over(plan, place, span))))
    return STATUS_OK;
  if (!now)
    return status_set(STATUS_PLAN, "%s %s %s before anything has written it in this step", name_of(plan, time, time).text, verb(use->access),
                      buffer->name);
  return status_set(STATUS_PLAN, "%s %s %s, but %s has written %s over its bytes", name_of(plan, time, time).text, verb(use->access), buffer->name,
                    name_of(plan, span->writer, time).text, plan->buffer[used_there(v, span->writer, true, place->list, span)->buffer].name);
}

static enum status check_access(struct verifier *v, int time, const struct plan_use *use)
{
  struct place place = place_of(v, use->buffer);
  for (int s = find_span(place.list, place.begin); s < place.list->n && place.list->span[s].begin < place.end; s++) {
    const struct span *span = &place.list->span[s];
    enum status status = check_race(v, time, use, place.list, span);
    if (!status)
      status = check_value(v, time, use, &place, span);
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* Uses of one instruction do not meet, unless it works in place. */
static enum status check_inside(struct verifier *v, int i)
{
  const struct plan *plan = v->plan;
  const struct instr *instr = &plan->instr[i];
  for (int k = 1; k < instr->n_use; k++)
    for (int j = 0; j < k; j++) {
      const struct plan_use *a = &instr->use[j], *b = &instr->use[k];
      struct place left = place_of(v, a->buffer), right = place_of(v, b->buffer);
      if (a->access == ACCESS_READ && b->access == ACCESS_READ)
        continue;
      if (left.list != right.list || left.begin >= right.end || right.begin >= left.end)
        continue;
      if (op_traits[instr->op].in_place && left.root == right.root)
        continue;
      return status_set(STATUS_PLAN, "%s %s %s and %s %s over the same bytes", name_of(plan, i, i).text, verb(a->access),
                        plan->buffer[a->buffer].name, verb(b->access), plan->buffer[b->buffer].name);
    }
  return STATUS_OK;
}

static enum status walk_one(struct verifier *v, int time)
{
  const struct instr *instr = &v->plan->instr[time % v->plan->n];
  enum status status = check_inside(v, time % v->plan->n);
  for (int k = 0; k < instr->n_use && !status; k++)
    status = check_access(v, time, &instr->use[k]);
  for (int k = 0; k < instr->n_use && !status; k++) {
    struct place place = place_of(v, instr->use[k].buffer);
    if (instr->use[k].access == ACCESS_READ)
      status = read_span(&place, time, instr->lane);
  }
  for (int k = 0; k < instr->n_use && !status; k++) {
    struct place place = place_of(v, instr->use[k].buffer);
    if (instr->use[k].access != ACCESS_READ)
      status = write_span(&place, time);
  }
  return status;
}

/* A span is then inside or outside of the buffer: what carries over ends with it. */
static enum status cut_at(struct verifier *v, int buffer)
{
  if (buffer < 0)
    return STATUS_OK;
  struct place place = place_of(v, buffer);
  enum status status = make_span_room(place.list, 2);
  if (!status) {
    split(place.list, place.begin);
    split(place.list, place.end);
  }
  return status;
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
    for (int s = find_span(place.list, place.begin); s < place.list->n && place.list->span[s].begin < place.end; s++)
      if (place.list->span[s].owner >= 0)
        return status_set(STATUS_PLAN, "%s and %s are persistent and share bytes", plan->buffer[place.list->span[s].owner].name,
                          plan->buffer[b].name);
    status = write_span(&place, -1);
  }
  for (int u = 0; u < plan->input.model->units && !status; u++) {
    status = cut_at(v, plan->master[u]);
    if (!status)
      status = cut_at(v, plan->frozen[u]);
  }
  return status;
}

static enum status check_bytes(const struct plan *plan)
{
  struct verifier v = {.plan = plan};
  void *clock;
  enum status status = mem_alloc(MEM_META, 2 * (size_t)plan->n * sizeof *v.clock, &clock);
  if (status)
    return status;
  v.clock = clock;
  run_clocks(&v);
  status = start(&v);
  for (int time = 0; time < 2 * plan->n && !status; time++)
    status = walk_one(&v, time);
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    mem_free(v.list[tier][0].span);
    mem_free(v.list[tier][1].span);
  }
  mem_free(v.clock);
  return status;
}

/* ---- nothing is missing: a sum lacks no part, and every unit learns what it has to ---- */

struct tally {
  int of[OP_COUNT];
};

/* What would be wrong without it. */
static const char *const loss_of[OP_COUNT] = {
    [OP_LOAD] = "it would work on old tokens",
    [OP_EMBED] = "nothing would enter the first block",
    [OP_FORWARD] = "nothing would pass through it",
    [OP_LOSS] = "the loss would lack a part",
    [OP_LOGITS] = "there would be no result",
    [OP_DECODE] = "nothing would pass through it",
    [OP_BACKWARD] = "its gradient would lack a part",
    [OP_EMBED_BACKWARD] = "its gradient would lack a part",
    [OP_REDUCE] = "its gradient would lack the other ranks' part",
    [OP_REPLICA_REDUCE] = "its gradient would lack the other replicas' part",
    [OP_GATHER_GRADS] = "it would be updated by a partial gradient",
    [OP_SQUARES] = "the gradient norm would lack a part",
    [OP_METRICS] = "loss and gradient norm would lack the other ranks' part",
    [OP_ADAM] = "its parameters would never change",
};

/* Each micro-batch is reduced by itself, under its own number; otherwise the step is, under none. */
static bool reduces_micros(const struct plan *plan)
{
  return plan->input.shape.reduce_every_micro && plan->input.shape.micros > 1;
}

static bool learns(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->input.mode == PLAN_TRAIN && plan->layout[unit].trained > 0;
}

/* The embedding's matrices, whatever else is in their unit. */
static bool embedding_learns(const struct plan *plan)
{
  const struct model_unit *unit = &plan->input.model->unit[0];
  for (int p = 0; p < unit->params; p++)
    if (learns(plan, 0) && !plan->layout[0].frozen[p] && (plan->input.model->head > 0 || unit->param[p].kind == PARAM_EMBEDDING))
      return true;
  return false;
}

/* Whether the gradient by a block's output is for anybody: the block, one before it, or the embedding. */
static bool passes_back(const struct plan *plan, int unit)
{
  if (embedding_learns(plan))
    return true;
  for (int u = 1; u <= unit; u++)
    if (learns(plan, u))
      return true;
  return false;
}

static bool is_block(const struct plan *plan, int unit)
{
  return unit > 0 && unit <= plan->input.model->blocks;
}

/* How many of an operation there must be for a unit (-1: none) and micro-batch (-1: the step); -1: as many as there are. */
static int due(const struct plan *plan, enum op op, int unit, int micro)
{
  const struct plan_input *input = &plan->input;
  bool train = input->mode == PLAN_TRAIN, generate = input->mode == PLAN_GENERATE, whole = micro < 0;
  switch (op) {
  case OP_LOAD: return unit < 0 && !whole;
  case OP_EMBED: return unit == 0 && !whole;
  case OP_FORWARD: return is_block(plan, unit) && !whole && !generate;
  case OP_DECODE: return is_block(plan, unit) && !whole && generate;
  case OP_LOSS: return unit == input->model->head && !whole && !generate;
  case OP_LOGITS: return unit == input->model->head && !whole && generate;
  case OP_BACKWARD: return is_block(plan, unit) && !whole && train && passes_back(plan, unit);
  case OP_EMBED_BACKWARD: return unit == 0 && !whole && embedding_learns(plan);
  case OP_REDUCE: return learns(plan, unit) && input->shape.group > 1 && whole == !reduces_micros(plan);
  case OP_REPLICA_REDUCE: return learns(plan, unit) && whole && input->shape.replicas > 1;
  case OP_GATHER_GRADS:
    return learns(plan, unit) && whole && (input->shape.replicas > 1 || (input->strategy == STRATEGY_NO_SHARD && input->shape.group > 1));
  case OP_SQUARES:
  case OP_ADAM: return learns(plan, unit) && whole;
  case OP_METRICS: return unit < 0 && whole && !generate;
  default: return -1;
  }
}

static enum status check_tally(const struct plan *plan, const struct tally *tally, int unit, int micro)
{
  const char *name = unit < 0 ? "the step" : plan->input.model->unit[unit].name;
  char when[40] = "";
  if (micro >= 0)
    snprintf(when, sizeof when, " in micro-batch %d", micro);
  for (int op = 0; op < OP_COUNT; op++) {
    int needed = due(plan, (enum op)op, unit, micro);
    if (needed < 0 || tally->of[op] == needed)
      continue;
    if (tally->of[op] == 0)
      return status_set(STATUS_PLAN, "%s has no %s%s: %s", name, op_traits[op].name, when, loss_of[op]);
    return status_set(STATUS_PLAN, "%s has %d %s%s where there must be %d", name, tally->of[op], op_traits[op].name,
                      micro >= 0 ? when : " for the whole step", needed);
  }
  return STATUS_OK;
}

static enum status check_counts(const struct plan *plan)
{
  int units = plan->input.model->units, micros = (int)plan->input.shape.micros;
  size_t width = (size_t)micros + 1;
  void *block;
  enum status status = mem_alloc(MEM_META, ((size_t)units + 1) * width * sizeof(struct tally), &block);
  if (status)
    return status;
  struct tally *tally = block;
  for (int i = 0; i < plan->n; i++)
    tally[(size_t)(plan->instr[i].unit + 1) * width + (size_t)(plan->instr[i].micro + 1)].of[plan->instr[i].op]++;
  for (int unit = -1; unit < units && !status; unit++)
    for (int micro = -1; micro < micros && !status; micro++)
      status = check_tally(plan, &tally[(size_t)(unit + 1) * width + (size_t)(micro + 1)], unit, micro);
  mem_free(block);
  return status;
}

static enum status check_role(const struct plan *plan, int i, int k, int buffer)
{
  const struct plan_use *use = &plan->instr[i].use[k];
  if (use->buffer == buffer)
    return STATUS_OK;
  return status_set(STATUS_PLAN, "%s %s %s in the place of %s", name_of(plan, i, i).text, verb(use->access), plan->buffer[use->buffer].name,
                    plan->buffer[buffer].name);
}

static enum status check_size_of(const struct plan *plan, int i, int k, int64_t bytes)
{
  const struct plan_buffer *buffer = &plan->buffer[plan->instr[i].use[k].buffer];
  if (buffer->bytes == bytes)
    return STATUS_OK;
  return status_set(STATUS_PLAN, "%s %s the %lld bytes of %s where there must be %lld", name_of(plan, i, i).text, verb(plan->instr[i].use[k].access),
                    (long long)buffer->bytes, buffer->name, (long long)bytes);
}

static enum status check_bytes_of(const struct plan *plan, int i, int k, int64_t elements)
{
  return check_size_of(plan, i, k, elements * (int64_t)sizeof(float));
}

/* Over the ranks, what each of them updates is all that is trained, once: its shard, or with replicas the same shard by the same gradient. */
static enum status check_update(const struct plan *plan, int i)
{
  const struct plan_input *input = &plan->input;
  int unit = plan->instr[i].unit;
  bool whole = input->strategy == STRATEGY_NO_SHARD || input->shape.group == 1;
  int64_t mine = plan->layout[unit].trained / (whole ? 1 : input->shape.group), begin = whole ? 0 : input->rank % input->shape.group * mine;
  if (plan->owned[unit].begin != begin || plan->owned[unit].end != begin + mine)
    return fail_instr(plan, i, "updates another part of the unit than this rank's");
  enum status status = STATUS_OK;
  for (int k = 1; k <= 4 && !status; k++)
    status = check_bytes_of(plan, i, k, mine);
  if (!status)
    status = check_role(plan, i, 0, plan->metrics);
  if (!status)
    status = check_role(plan, i, 2, plan->master[unit]);
  if (!status)
    status = check_role(plan, i, 3, plan->moment1[unit]);
  if (!status)
    status = check_role(plan, i, 4, plan->moment2[unit]);
  return status;
}

/* The norm takes every gradient once: each rank squares what no other rank has. */
static enum status check_squares(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const struct plan_buffer *piece = &plan->buffer[instr->use[0].buffer];
  int64_t bytes = plan->layout[instr->unit].trained / plan->input.ranks * (int64_t)sizeof(float);
  if (piece->bytes != bytes)
    return status_set(STATUS_PLAN, "%s squares the %lld bytes of %s where %lld are this rank's part", name_of(plan, i, i).text,
                      (long long)piece->bytes, piece->name, (long long)bytes);
  return check_role(plan, i, 1, plan->metrics);
}

/* Who takes part, from the shape alone. */
static int64_t members_of(const struct plan *plan, enum op op)
{
  const struct plan_input *input = &plan->input;
  bool whole = input->strategy == STRATEGY_NO_SHARD;
  switch (op) {
  case OP_GATHER: return whole ? 1 : input->shape.group;
  case OP_REPLICA_REDUCE: return input->shape.replicas;
  case OP_GATHER_GRADS: return whole ? input->shape.group : input->shape.replicas;
  default: return input->shape.group;
  }
}

/* Of a whole that the members share evenly, use `part` is one part. */
static enum status check_part(const struct plan *plan, int i, int whole, int part)
{
  const struct instr *instr = &plan->instr[i];
  return check_size_of(plan, i, part, plan->buffer[instr->use[whole].buffer].bytes / members_of(plan, instr->op));
}

/* A reduced shard inside of what is reduced takes its place: added, this rank's part would count twice. And what all send must be received somewhere. */
static enum status check_reduce(const struct plan *plan, int i)
{
  const struct plan_use *use = plan->instr[i].use;
  enum status status = check_part(plan, i, 0, 2);
  if (status)
    return status;
  if (plan->buffer[use[1].buffer].bytes < plan->buffer[use[0].buffer].bytes)
    return status_set(STATUS_PLAN, "%s receives into %s, which is smaller than %s", name_of(plan, i, i).text, plan->buffer[use[1].buffer].name,
                      plan->buffer[use[0].buffer].name);
  if (use[2].access == ACCESS_ADD && plan_root(plan, use[0].buffer, NULL) == plan_root(plan, use[2].buffer, NULL))
    return status_set(STATUS_PLAN, "%s adds to %s, which is a part of what it reduces", name_of(plan, i, i).text, plan->buffer[use[2].buffer].name);
  return STATUS_OK;
}

/* What is gathered is the trained part, from the masters, or the frozen part, from the frozen shards, each to its place. */
static enum status check_gather(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  const struct layout_unit *layout = &plan->layout[instr->unit];
  bool frozen = instr->use[0].buffer == plan->frozen[instr->unit];
  int64_t begin = frozen ? layout->trained : 0, elements = frozen ? layout->flat - layout->trained : layout->trained, offset;
  enum status status = frozen ? STATUS_OK : check_role(plan, i, 0, plan->master[instr->unit]);
  if (!status)
    status = check_bytes_of(plan, i, 0, elements / members_of(plan, OP_GATHER));
  if (!status)
    status = check_size_of(plan, i, 1, elements * element_of(plan));
  plan_root(plan, instr->use[1].buffer, &offset);
  if (!status && offset != begin * element_of(plan))
    return status_set(STATUS_PLAN, "%s gathers %s to the wrong place in the unit", name_of(plan, i, i).text, plan->buffer[instr->use[1].buffer].name);
  return status;
}

/* Who has a gradient to write writes it, and nobody else: `before` uses come before it, `k` is its place. */
static enum status check_gradient(const struct plan *plan, int i, int before, int k)
{
  const struct instr *instr = &plan->instr[i];
  bool wanted = learns(plan, instr->unit);
  if (plan->input.mode == PLAN_TRAIN && instr->n_use < before)
    return fail_instr(plan, i, "passes no gradient on");
  if (wanted != (instr->n_use > k))
    return fail_instr(plan, i, wanted ? "writes no gradient of its unit, which is trained" : "writes a gradient where there is none");
  return wanted ? check_bytes_of(plan, i, k, plan->layout[instr->unit].trained) : STATUS_OK;
}

static enum status check_decode(const struct plan *plan, int i)
{
  const struct plan_input *input = &plan->input;
  const struct plan_buffer *cache = &plan->buffer[plan->instr[i].use[4].buffer];
  if (cache->purpose != PURPOSE_CACHE || !cache->persistent || cache->unit != plan->instr[i].unit)
    return status_set(STATUS_PLAN, "%s changes %s in the place of its keys and values", name_of(plan, i, i).text, cache->name);
  size_t needed = input->model->ops->cache_bytes(input->model, input->device, input->shape.micro_batch, input->capacity);
  if ((uint64_t)cache->bytes < needed)
    return status_set(STATUS_PLAN, "%s adds to %s, which is too small for %lld tokens", name_of(plan, i, i).text, cache->name,
                      (long long)input->capacity);
  return STATUS_OK;
}

static enum status check_roles(const struct plan *plan, int i)
{
  enum status status;
  switch (plan->instr[i].op) {
  case OP_GATHER: return check_gather(plan, i);
  case OP_LOSS: status = check_role(plan, i, 3, plan->loss); return status ? status : check_gradient(plan, i, 6, 6);
  case OP_DECODE: return check_decode(plan, i);
  case OP_BACKWARD: return check_gradient(plan, i, 5, 5);
  case OP_EMBED_BACKWARD: return check_gradient(plan, i, 3, 2);
  case OP_REDUCE:
  case OP_REPLICA_REDUCE: return check_reduce(plan, i);
  case OP_GATHER_GRADS: return check_part(plan, i, 1, 0);
  case OP_SQUARES: return check_squares(plan, i);
  case OP_METRICS: status = check_role(plan, i, 0, plan->loss); return status ? status : check_role(plan, i, 1, plan->metrics);
  case OP_ADAM: return check_update(plan, i);
  default: return STATUS_OK;
  }
}

/* A sum is begun once a step. `begun`, per buffer: 1 + the instruction that did, 0: none yet. */
static enum status check_sums(const struct plan *plan, int i, int *begun)
{
  const struct instr *instr = &plan->instr[i];
  const struct op_traits *traits = &op_traits[instr->op];
  int required = (int)strlen(traits->uses);
  for (int k = 0; k < instr->n_use; k++) {
    const struct plan_use *use = &instr->use[k];
    if ((k < required ? traits->uses[k] : traits->more[k - required]) != '*' || use->access != ACCESS_WRITE)
      continue;
    if (begun[use->buffer])
      return status_set(STATUS_PLAN, "%s writes %s and so loses what %s has put there", name_of(plan, i, i).text, plan->buffer[use->buffer].name,
                        name_of(plan, begun[use->buffer] - 1, i).text);
    begun[use->buffer] = i + 1;
  }
  return STATUS_OK;
}

static enum status check_complete(const struct plan *plan)
{
  void *begun;
  enum status status = check_counts(plan);
  if (status)
    return status;
  status = mem_alloc(MEM_META, (size_t)plan->buffers * sizeof(int), &begun);
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

enum status plan_verify(const struct plan *plan)
{
  enum status status = check_form(plan);
  if (!status)
    status = check_buffers(plan);
  if (!status)
    status = check_lifetimes(plan);
  if (!status)
    status = check_frozen(plan);
  if (!status)
    status = check_windows(plan);
  if (!status)
    status = check_bytes(plan);
  if (!status)
    status = check_complete(plan);
  return status;
}
