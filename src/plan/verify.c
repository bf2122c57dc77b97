/* Proof that a plan is safe and whole, from nothing but its input, instructions, waits and offsets; shares no code with what built, placed and ordered it.
 *
 * Happens-before comes from lane order and waits, as a vector clock per instruction. Every byte remembers its last change and the reads since, per lane (as in
 * FastTrack: Flanagan and Freund, PLDI 2009): an access is checked against those alone, because whatever came before them is ordered before them.
 * Bytes also remember whose value they hold. Two steps are walked, so that what crosses the step boundary is proven too. With that known, values are followed
 * through one step: an update reads the whole sum and nothing else, and what comes back from another tier is what went there. */
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

/* Where gradients add up on the host and metrics are made on the device. */
static bool squares_on_host(const struct plan *plan)
{
  const struct plan_input *input = &plan->input;
  return input->mode == PLAN_TRAIN && input->shape.host_state && !input->shape.cpu_reduce && input->shape.micros > 1;
}

static enum status check_form(const struct plan *plan)
{
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    bool known = (unsigned)instr->op < OP_COUNT && instr->unit >= -1 && instr->unit < plan->input.model->units;
    if (!known || instr->micro < -1 || instr->micro >= plan->input.shape.micros)
      return status_set(STATUS_PLAN, "instruction #%d has an unknown operation, unit or micro-batch", i);
    if (instr->lane != (instr->op == OP_SQUARES && squares_on_host(plan) ? LANE_HOST : op_traits[instr->op].lane))
      return fail_instr(plan, i, "is on the wrong lane");
    enum status status = check_uses(plan, i);
    if (!status)
      status = check_waits(plan, i);
    if (status)
      return status;
  }
  return STATUS_OK;
}

/* ---- lanes and tiers ---- */

static enum status check_lanes(const struct plan *plan)
{
  const struct deck_shape *shape = &plan->input.shape;
  bool host = shape->host_state;
  const bool want[LANE_COUNT] = {
      [LANE_HOST] = host, [LANE_DISK] = true, [LANE_REDUCE] = host && shape->cpu_reduce, [LANE_GATHER] = host && shape->params_full};
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (plan->on_host[lane] != want[lane])
      return status_set(STATUS_PLAN, "the %s lane works on the %s's memory where it must work on the %s's", plan_lane_name((enum plan_lane)lane),
                        plan->on_host[lane] ? "host" : "device", want[lane] ? "host" : "device");
  return STATUS_OK;
}

enum { DEVICE = 1 << TIER_DEVICE, HOST = 1 << TIER_HOST, SHARED = 1 << TIER_SHARED, DISK = 1 << TIER_DISK };

/* What goes in and out of a step. */
static unsigned outside_tiers(const struct plan *plan)
{
  return plan->input.device->host_memory ? DEVICE : HOST;
}

/* Whether gradients land in memory that the members of a group share, and are added up there. */
static bool sums_shared(const struct plan *plan)
{
  const struct deck_shape *shape = &plan->input.shape;
  return shape->host_state && shape->cpu_reduce && shape->one_node && shape->group > 1;
}

/* Where gradients are reduced, and the metrics with them. */
static unsigned reduce_tiers(const struct plan *plan)
{
  return plan->on_host[LANE_REDUCE] ? HOST : DEVICE;
}

static unsigned tiers_of_update(const struct plan *plan, enum op op, int k)
{
  if (!plan->input.shape.host_state)
    return DEVICE;
  if (op == OP_ADAM && k == 0)
    return reduce_tiers(plan);
  return k == (op == OP_ADAM ? 5 : 4) ? HOST | SHARED : HOST;
}

/* Tiers, as bits, where use k of an operation may lie. */
static unsigned tiers_of(const struct plan *plan, enum op op, int k)
{
  switch (op) {
  case OP_LOAD: return outside_tiers(plan);
  case OP_EMBED: return k == 1 ? outside_tiers(plan) : DEVICE;
  case OP_EMBED_BACKWARD: return k == 0 ? outside_tiers(plan) : DEVICE;
  case OP_LOGITS: return k == 3 ? outside_tiers(plan) : DEVICE;
  case OP_LOSS: return k == 2 ? outside_tiers(plan) : DEVICE;
  case OP_REDUCE:
  case OP_REPLICA_REDUCE:
  case OP_GATHER_GRADS: return reduce_tiers(plan);
  case OP_SQUARES: return squares_on_host(plan) ? HOST : reduce_tiers(plan);
  case OP_METRICS: return k == 2 ? HOST : reduce_tiers(plan);
  case OP_ADAM:
  case OP_ADAM_NOW: return tiers_of_update(plan, op, k);
  case OP_FETCH: return k == 0 ? HOST | SHARED : DEVICE;
  case OP_PUBLISH: return SHARED;
  case OP_SAVE_ACT:
  case OP_FETCH_LOSS: return k == 0 ? DEVICE : HOST;
  case OP_FETCH_GRAD: return k == 0 ? DEVICE : sums_shared(plan) ? SHARED : HOST;
  case OP_SUM_SHARED: return k == 0 ? SHARED : HOST;
  case OP_FETCH_ACT: return k == 0 ? HOST : DEVICE;
  case OP_WRITE_ACT: return k == 0 ? HOST : DISK;
  case OP_READ_ACT: return k == 0 ? DISK : HOST;
  case OP_ACCUMULATE: return HOST;
  case OP_READ_STATE: return k < 2 ? DISK : HOST;
  case OP_WRITE_STATE: return k < 2 ? HOST : DISK;
  default: return DEVICE;
  }
}

/* What lands of gradients, and that alone, each member of a group has for itself in the memory that it shares. */
static bool lands(enum op op)
{
  return op == OP_FETCH_GRAD || op == OP_SUM_SHARED;
}

static enum status check_tiers(const struct plan *plan, int i)
{
  static const char *const names[TIER_COUNT] = {
      [TIER_DEVICE] = "on the device", [TIER_HOST] = "in host memory", [TIER_SHARED] = "in shared memory", [TIER_DISK] = "on the disk"};
  const struct instr *instr = &plan->instr[i];
  for (int k = 0; k < instr->n_use; k++) {
    const struct plan_buffer *buffer = &plan->buffer[instr->use[k].buffer];
    if (!(tiers_of(plan, instr->op, k) >> buffer->tier & 1))
      return status_set(STATUS_PLAN, "%s %s %s, which lies %s, where it must not lie", name_of(plan, i, i).text, verb(instr->use[k].access),
                        buffer->name, names[buffer->tier]);
    if (buffer->tier == TIER_SHARED && buffer->persistent == lands(instr->op))
      return status_set(STATUS_PLAN, "%s %s %s, of which %s", name_of(plan, i, i).text, verb(instr->use[k].access), buffer->name,
                        buffer->persistent ? "the members of its group have one between them" : "each member of its group has one of its own");
  }
  return STATUS_OK;
}

static enum status check_places(const struct plan *plan)
{
  enum status status = check_lanes(plan);
  for (int i = 0; i < plan->n && !status; i++)
    status = check_tiers(plan, i);
  return status;
}

/* ---- buffers ---- */

static struct place place_of(struct verifier *v, int buffer)
{
  const struct plan_buffer *b = &v->plan->buffer[buffer];
  return (struct place){&v->list[b->tier][b->persistent], b->offset, b->offset + b->bytes, plan_root(v->plan, buffer, NULL)};
}

static enum status check_buffer(const struct plan *plan, const struct plan_buffer *b)
{
  if ((unsigned)b->tier >= TIER_COUNT)
    return status_set(STATUS_PLAN, "%s lies in no tier", b->name);
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

/* ---- fetch -> gather -> use -> release ---- */

/* What of a unit has been brought into a buffer: nothing, this rank's shard of the trained or the frozen part, which the group has still to gather,
 * or what is whole. */
enum held { HELD_NOT, HELD_SHARD, HELD_FROZEN_SHARD, HELD_WHOLE };

static bool reads_params(enum op op)
{
  return op == OP_EMBED || op == OP_FORWARD || op == OP_RECOMPUTE || op == OP_LOSS || op == OP_LOGITS || op == OP_DECODE || op == OP_BACKWARD;
}

/* Bytes of an element of gathered parameters; everything else of a unit is fp32. */
static int64_t element_of(const struct plan *plan)
{
  return (int64_t)dtype_size(plan->input.device->compute);
}

/* Whether one of the two parts of a whole unit is there: on this rank all the time, or brought into the buffer or a part of it. */
static bool part_is_there(const struct plan *plan, int buffer, bool frozen, const enum held *held)
{
  int u = plan->buffer[buffer].unit, mine = frozen ? plan->frozen[u] : plan->master[u];
  int64_t trained = plan->layout[u].trained * element_of(plan), all = plan->layout[u].flat * element_of(plan);
  int64_t begin = frozen ? trained : 0, end = frozen ? all : trained, offset;
  if (begin == end)
    return true;
  if (mine >= 0 && plan_root(plan, mine, &offset) == buffer && offset == begin && plan->buffer[mine].bytes == end - begin)
    return true;
  for (int b = 0; b < plan->buffers; b++)
    if (held[b] == HELD_WHOLE && plan_root(plan, b, &offset) == buffer && offset <= begin && offset + plan->buffer[b].bytes >= end)
      return true;
  return false;
}

static enum status check_params(const struct plan *plan, int i, int buffer, const enum held *held)
{
  const struct plan_buffer *params = &plan->buffer[buffer];
  int unit = plan->instr[i].unit;
  if (params->unit != unit)
    return status_set(STATUS_PLAN, "%s reads %s, which are not its parameters", name_of(plan, i, i).text, params->name);
  if (params->bytes != plan->layout[unit].flat * element_of(plan))
    return status_set(STATUS_PLAN, "%s reads %s, which are not all of its parameters", name_of(plan, i, i).text, params->name);
  if (!part_is_there(plan, buffer, false, held) || !part_is_there(plan, buffer, true, held))
    return status_set(STATUS_PLAN, "%s reads %s, which is not gathered", name_of(plan, i, i).text, params->name);
  return STATUS_OK;
}

/* Which elements of the unit a FETCH brings; none: it reads what no parameters are. */
static struct layout_range range_of_source(const struct plan *plan, int unit, int buffer)
{
  if (plan->input.shape.params_full)
    return buffer == plan->shared[unit] ? (struct layout_range){0, plan->layout[unit].flat} : (struct layout_range){0, 0};
  if (buffer == plan->frozen[unit])
    return plan->frozen_owned[unit];
  bool master = plan->input.device->compute == DTYPE_F32;
  return buffer == (master ? plan->master[unit] : plan->working[unit]) ? plan->owned[unit] : (struct layout_range){0, 0};
}

/* Whether the buffer is exactly these elements' place in a window. */
static bool is_place_of(const struct plan *plan, int unit, int buffer, struct layout_range range)
{
  int64_t offset, element = element_of(plan);
  const struct plan_buffer *window = &plan->buffer[plan_root(plan, buffer, &offset)];
  return window->unit == unit && window->bytes == plan->layout[unit].flat * element && offset == range.begin * element &&
         plan->buffer[buffer].bytes == (range.end - range.begin) * element;
}

/* Shards that are cast on their way wait outside of windows. */
static bool waits_outside(const struct plan *plan, int unit, int buffer, struct layout_range range)
{
  const struct plan_buffer *b = &plan->buffer[buffer];
  return b->unit == unit && b->parent < 0 && b->bytes == (range.end - range.begin) * (int64_t)sizeof(float);
}

static enum status fetch(const struct plan *plan, int i, enum held *held)
{
  const struct instr *instr = &plan->instr[i];
  const struct layout_unit *layout = &plan->layout[instr->unit];
  int from = instr->use[0].buffer, to = instr->use[1].buffer;
  struct layout_range range = range_of_source(plan, instr->unit, from);
  bool frozen = range.begin >= layout->trained, placed = is_place_of(plan, instr->unit, to, range);
  if (range.begin == range.end)
    return status_set(STATUS_PLAN, "%s reads %s in the place of the unit's parameters", name_of(plan, i, i).text, plan->buffer[from].name);
  if (!placed && !(frozen && waits_outside(plan, instr->unit, to, range)))
    return status_set(STATUS_PLAN, "%s fetches %s to the wrong place in the unit", name_of(plan, i, i).text, plan->buffer[to].name);
  if (plan->buffer[from].bytes != plan->buffer[to].bytes)
    return status_set(STATUS_PLAN, "%s copies the %lld bytes of %s into the %lld of %s", name_of(plan, i, i).text,
                      (long long)plan->buffer[from].bytes, plan->buffer[from].name, (long long)plan->buffer[to].bytes, plan->buffer[to].name);
  if (held[to] != HELD_NOT)
    return status_set(STATUS_PLAN, "%s fetches %s, which has not been released", name_of(plan, i, i).text, plan->buffer[to].name);
  int64_t part = frozen ? layout->flat - layout->trained : layout->trained;
  held[to] = placed && range.end - range.begin >= part ? HELD_WHOLE : frozen ? HELD_FROZEN_SHARD : HELD_SHARD;
  return STATUS_OK;
}

/* With masters in host memory a FETCH has brought the shard, to its place in the window, or beside it, from where it is cast. */
static enum status check_fetched(const struct plan *plan, int i, const enum held *held)
{
  const struct instr *instr = &plan->instr[i];
  const struct layout_unit *layout = &plan->layout[instr->unit];
  int from = instr->use[0].buffer, to = instr->use[1].buffer;
  bool frozen = held[from] == HELD_FROZEN_SHARD;
  if (held[from] != HELD_SHARD && !frozen)
    return status_set(STATUS_PLAN, "%s gathers from %s, which nothing has fetched", name_of(plan, i, i).text, plan->buffer[from].name);
  struct layout_range part = frozen ? (struct layout_range){layout->trained, layout->flat} : (struct layout_range){0, layout->trained};
  bool same = plan->buffer[from].parent < 0 || plan_root(plan, from, NULL) == plan_root(plan, to, NULL);
  if (!same || !is_place_of(plan, instr->unit, to, part))
    return status_set(STATUS_PLAN, "%s gathers %s to the wrong place in the unit", name_of(plan, i, i).text, plan->buffer[to].name);
  return STATUS_OK;
}

static enum status gather(const struct plan *plan, int i, enum held *held)
{
  int from = plan->instr[i].use[0].buffer, to = plan->instr[i].use[1].buffer;
  if (held[to] != HELD_NOT)
    return status_set(STATUS_PLAN, "%s gathers %s, which has not been released", name_of(plan, i, i).text, plan->buffer[to].name);
  enum status status = plan->input.shape.host_state ? check_fetched(plan, i, held) : STATUS_OK;
  held[from] = HELD_NOT;
  held[to] = HELD_WHOLE;
  return status;
}

/* A window is closed as a whole. */
static enum status close_window(const struct plan *plan, int i, enum held *held)
{
  int buffer = plan->instr[i].use[0].buffer, closed = 0;
  for (int b = 0; b < plan->buffers; b++)
    if (held[b] == HELD_WHOLE && plan_root(plan, b, NULL) == buffer) {
      held[b] = HELD_NOT;
      closed++;
    }
  if (closed == 0)
    return status_set(STATUS_PLAN, "%s releases %s, which is not gathered", name_of(plan, i, i).text, plan->buffer[buffer].name);
  return STATUS_OK;
}

static enum status check_window(const struct plan *plan, int i, enum held *held)
{
  const struct instr *instr = &plan->instr[i];
  switch (instr->op) {
  case OP_FETCH: return fetch(plan, i, held);
  case OP_GATHER: return gather(plan, i, held);
  case OP_RELEASE: return close_window(plan, i, held);
  default: return reads_params(instr->op) ? check_params(plan, i, instr->use[0].buffer, held) : STATUS_OK;
  }
}

static enum status walk_windows(const struct plan *plan, enum held *held)
{
  for (int i = 0; i < plan->n; i++) {
    enum status status = check_window(plan, i, held);
    if (status)
      return status;
  }
  for (int b = 0; b < plan->buffers; b++)
    if (held[b] != HELD_NOT)
      return status_set(STATUS_PLAN, held[b] == HELD_WHOLE ? "%s is gathered and never released" : "%s is fetched and never gathered",
                        plan->buffer[b].name);
  return STATUS_OK;
}

static enum status check_windows(const struct plan *plan)
{
  void *held;
  enum status status = mem_alloc(MEM_META, (size_t)plan->buffers * sizeof(enum held), &held);
  if (status)
    return status;
  status = walk_windows(plan, held);
  mem_free(held);
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

/* Whether the bytes mean something from step to step: this rank's masters, frozen parameters, moments and caches, and the copy that is computed with. What is
 * gathered around a master is as old as its gradients. */
static bool carries(const struct plan *plan, int root, int64_t begin, int64_t end)
{
  const struct plan_buffer *buffer = &plan->buffer[root];
  if (!buffer->persistent || buffer->unit < 0)
    return false;
  if (buffer->purpose != PURPOSE_PARAMS)
    return buffer->purpose == PURPOSE_MOMENTS || buffer->purpose == PURPOSE_CACHE || buffer->purpose == PURPOSE_WORKING;
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

/* Ranks of the shard group have all come as far. */
static bool meets_group(enum op op)
{
  return op == OP_REDUCE || op == OP_SUM_SHARED || op == OP_METRICS || op == OP_PUBLISH;
}

/* What one rank writes into the copy that its group shares, others may be reading: their plans are this one, so a collective has to lie between. That
 * of the next step's reads is PUBLISH. */
static enum status check_sharing_of(const struct verifier *v, int update)
{
  const struct plan *plan = v->plan;
  const struct instr *instr = plan->instr;
  for (int f = 0; f < update; f++) {
    if (instr[f].op != OP_FETCH || instr[f].unit != instr[update].unit)
      continue;
    int c = update - 1;
    while (c > f && !(meets_group(instr[c].op) && is_before(v, f, c) && is_before(v, c, update)))
      c--;
    if (c == f)
      return status_set(STATUS_PLAN, "%s writes what other ranks may still be reading by %s: no collective lies between",
                        name_of(plan, update, update).text, name_of(plan, f, update).text);
  }
  return STATUS_OK;
}

static enum status check_sharing(const struct verifier *v)
{
  const struct plan *plan = v->plan;
  enum status status = STATUS_OK;
  for (int i = 0; i < plan->n && plan->input.shape.params_full && !status; i++)
    if (plan->instr[i].op == OP_ADAM || plan->instr[i].op == OP_ADAM_NOW)
      status = check_sharing_of(v, i);
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
  if (!status)
    status = check_sharing(&v);
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
    [OP_SUM_SHARED] = "its gradient would lack the other ranks' part",
    [OP_REPLICA_REDUCE] = "its gradient would lack the other replicas' part",
    [OP_GATHER_GRADS] = "it would be updated by a partial gradient",
    [OP_SQUARES] = "the gradient norm would lack a part",
    [OP_METRICS] = "loss and gradient norm would lack the other ranks' part",
    [OP_ADAM] = "its parameters would never change",
    [OP_ADAM_NOW] = "its parameters would never change",
    [OP_RECOMPUTE] = "its activations would be gone",
    [OP_PUBLISH] = "ranks would compute with parameters that others are still writing",
    [OP_SAVE_ACT] = "its input would be gone",
    [OP_WRITE_ACT] = "its input would be gone",
    [OP_READ_ACT] = "its input would not come back",
    [OP_FETCH_ACT] = "its input would not come back",
    [OP_FETCH_GRAD] = "its gradient would not come to the host",
    [OP_ACCUMULATE] = "its gradient would lack a part",
    [OP_READ_STATE] = "it would be updated without its moments",
    [OP_WRITE_STATE] = "its moments would never change",
    [OP_FETCH_LOSS] = "the loss would not come to the host",
};

/* Each micro-batch is reduced by itself, under its own number; otherwise the step is, under none. What goes to the host goes there from each. */
static bool reduces_micros(const struct plan *plan)
{
  const struct deck_shape *shape = &plan->input.shape;
  return (shape->reduce_every_micro || shape->host_state) && shape->micros > 1;
}

/* Whether replicas meet in each micro-batch, because what the devices send to the host is complete. */
static bool meets_micros(const struct plan *plan)
{
  return plan->input.shape.host_state && !plan->input.shape.cpu_reduce && reduces_micros(plan);
}

/* Whether what lands on the host is added there, because it has been reduced before, or need not be. */
static bool adds_on_host(const struct plan *plan)
{
  return plan->input.shape.host_state && (!plan->input.shape.cpu_reduce || plan->input.shape.group == 1);
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

static enum deck_keep keep_of(const struct plan *plan, int block)
{
  const struct deck_pattern *pattern = &plan->input.shape.activations;
  return pattern->n > 0 ? (enum deck_keep)pattern->of[(block - 1) % pattern->n] : KEEP_ACTIVATIONS;
}

static bool state_on_disk(const struct plan *plan, int unit)
{
  return learns(plan, unit) && plan->moment1[unit] >= 0 && plan->buffer[plan->moment1[unit]].tier == TIER_DISK;
}

/* Of what lies between the forward and the backward pass of a block. An input that is wanted back almost at once may stay, whatever the deck says. */
static int due_between(const struct plan *plan, enum op op, int unit, const struct tally *tally)
{
  if (!is_block(plan, unit) || plan->input.mode != PLAN_TRAIN || !passes_back(plan, unit))
    return 0;
  enum deck_keep keep = keep_of(plan, unit);
  bool leaves = tally->of[OP_SAVE_ACT] > 0 && (keep == KEEP_INPUT_HOST || keep == KEEP_INPUT_NVME);
  switch (op) {
  case OP_RECOMPUTE: return keep != KEEP_ACTIVATIONS;
  case OP_SAVE_ACT:
  case OP_FETCH_ACT: return leaves;
  default: return leaves && keep == KEEP_INPUT_NVME;
  }
}

/* Of what only masters in host memory need; `micro` as below. */
static bool is_due_on_host(const struct plan *plan, enum op op, int unit, int micro)
{
  const struct deck_shape *shape = &plan->input.shape;
  if (!shape->host_state || !learns(plan, unit))
    return false;
  switch (op) {
  case OP_FETCH_GRAD: return (micro < 0) == !reduces_micros(plan);
  case OP_ACCUMULATE: return micro > 0 && adds_on_host(plan);
  case OP_READ_STATE:
  case OP_WRITE_STATE: return micro < 0 && state_on_disk(plan, unit);
  case OP_ADAM_NOW: return micro < 0 && shape->immediate;
  default: return micro < 0 && shape->params_full;
  }
}

/* How many of an operation there must be for a unit (-1: none) and micro-batch (-1: the step), beside those of `tally`; -1: as many as there are. */
static int due(const struct plan *plan, enum op op, int unit, int micro, const struct tally *tally)
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
  case OP_REDUCE:
  case OP_SUM_SHARED:
    return learns(plan, unit) && input->shape.group > 1 && whole == !reduces_micros(plan) && (op == OP_SUM_SHARED) == sums_shared(plan);
  case OP_REPLICA_REDUCE: return learns(plan, unit) && input->shape.replicas > 1 && whole == !meets_micros(plan);
  case OP_GATHER_GRADS:
    return learns(plan, unit) && whole == !meets_micros(plan) &&
           (input->shape.replicas > 1 || (input->strategy == STRATEGY_NO_SHARD && input->shape.group > 1));
  case OP_SQUARES: return learns(plan, unit) && whole;
  case OP_ADAM: return learns(plan, unit) && whole && !(input->shape.host_state && input->shape.immediate);
  case OP_RECOMPUTE:
  case OP_SAVE_ACT:
  case OP_WRITE_ACT:
  case OP_READ_ACT:
  case OP_FETCH_ACT: return whole ? 0 : due_between(plan, op, unit, tally);
  case OP_PUBLISH:
  case OP_FETCH_GRAD:
  case OP_ACCUMULATE:
  case OP_READ_STATE:
  case OP_WRITE_STATE:
  case OP_ADAM_NOW: return is_due_on_host(plan, op, unit, micro);
  case OP_METRICS: return unit < 0 && whole && !generate;
  case OP_FETCH_LOSS: return unit < 0 && whole && !generate && input->shape.host_state && input->shape.cpu_reduce;
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
    int needed = due(plan, (enum op)op, unit, micro, tally);
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
                    buffer < 0 ? "nothing" : plan->buffer[buffer].name);
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

static bool has_working(const struct plan *plan)
{
  return plan->input.shape.host_state && (plan->input.shape.params_full || plan->input.device->compute != DTYPE_F32);
}

/* Of the copy that is computed with, the optimizer writes this rank's part, at its place in the whole unit where the group shares that. */
static enum status check_working(const struct plan *plan, int i, int k)
{
  int unit = plan->instr[i].unit, shared = plan->shared[unit], working = plan->working[unit];
  struct layout_range mine = plan->owned[unit];
  enum status status = check_role(plan, i, k, working);
  if (!status)
    status = check_size_of(plan, i, k, (mine.end - mine.begin) * element_of(plan));
  if (status)
    return status;
  bool whole = plan->input.shape.params_full;
  if (whole ? plan_root(plan, working, NULL) != shared || !is_place_of(plan, unit, working, mine) : plan->buffer[working].parent >= 0)
    return status_set(STATUS_PLAN, "%s writes %s, which is not at its place in the unit", name_of(plan, i, i).text, plan->buffer[working].name);
  return STATUS_OK;
}

/* Use k is a moment, `moment`: where it lies on the disk, a copy of it. Use k + 1 of ADAM is the other one. */
static enum status check_moment(const struct plan *plan, int i, int k, int moment)
{
  const struct layout_range mine = plan->owned[plan->instr[i].unit];
  enum status status = check_size_of(plan, i, k, (mine.end - mine.begin) * (int64_t)dtype_size(plan->input.shape.moments));
  return status || state_on_disk(plan, plan->instr[i].unit) ? status : check_role(plan, i, k, moment);
}

/* Over the ranks, what each of them updates is all that is trained, once: its shard, or with replicas the same shard by the same gradient. `first`: use of the
 * gradient, behind which are master, moments and working copy. */
static enum status check_update(const struct plan *plan, int i, int first)
{
  const struct plan_input *input = &plan->input;
  const struct instr *instr = &plan->instr[i];
  int unit = instr->unit;
  bool whole = input->strategy == STRATEGY_NO_SHARD || input->shape.group == 1;
  int64_t mine = plan->layout[unit].trained / (whole ? 1 : input->shape.group), begin = whole ? 0 : input->rank % input->shape.group * mine;
  if (plan->owned[unit].begin != begin || plan->owned[unit].end != begin + mine)
    return fail_instr(plan, i, "updates another part of the unit than this rank's");
  if ((instr->n_use > first + 4) != has_working(plan))
    return fail_instr(plan, i, has_working(plan) ? "does not write what is computed with" : "writes a copy that nobody computes with");
  enum status status = check_bytes_of(plan, i, first, mine);
  if (!status)
    status = check_bytes_of(plan, i, first + 1, mine);
  if (!status)
    status = check_role(plan, i, first + 1, plan->master[unit]);
  if (!status)
    status = check_moment(plan, i, first + 2, plan->moment1[unit]);
  if (!status)
    status = check_moment(plan, i, first + 3, plan->moment2[unit]);
  if (!status && has_working(plan))
    status = check_working(plan, i, first + 4);
  return status;
}

/* `first`: use of the first moment on the disk, `other`: of the one in memory. */
static enum status check_state(const struct plan *plan, int i, int first, int other)
{
  int unit = plan->instr[i].unit;
  enum status status = check_role(plan, i, first, plan->moment1[unit]);
  if (!status)
    status = check_role(plan, i, first + 1, plan->moment2[unit]);
  for (int k = 0; k < 2 && !status; k++)
    status = check_moment(plan, i, first + k, plan->instr[i].use[first + k].buffer);
  for (int k = 0; k < 2 && !status; k++)
    status = check_moment(plan, i, other + k, plan->instr[i].use[other + k].buffer);
  return status;
}

static enum status check_publish(const struct plan *plan, int i)
{
  int unit = plan->instr[i].unit, whole = plan->instr[i].use[1].buffer;
  enum status status = check_role(plan, i, 0, plan->working[unit]);
  if (status)
    return status;
  if (plan_root(plan, whole, NULL) != plan->shared[unit] || !is_place_of(plan, unit, whole, (struct layout_range){0, plan->layout[unit].trained}))
    return status_set(STATUS_PLAN, "%s writes %s, which is not what its group updates of the copy that it shares", name_of(plan, i, i).text,
                      plan->buffer[whole].name);
  return STATUS_OK;
}

/* What is copied is all of it. */
static enum status check_copy(const struct plan *plan, int i)
{
  return check_size_of(plan, i, 1, plan->buffer[plan->instr[i].use[0].buffer].bytes);
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
  return check_role(plan, i, 1, squares_on_host(plan) ? plan->squares : plan->metrics);
}

static bool sums_on_host(const struct plan *plan)
{
  return plan->input.shape.host_state && plan->input.shape.cpu_reduce;
}

static enum status check_metrics(const struct plan *plan, int i)
{
  enum status status = check_role(plan, i, 0, sums_on_host(plan) ? plan->loss_host : plan->loss);
  if (!status)
    status = check_role(plan, i, 1, plan->metrics);
  if (!status)
    status = check_size_of(plan, i, 1, sizeof(struct plan_metrics));
  if (status)
    return status;
  if ((plan->instr[i].n_use > 2) != squares_on_host(plan))
    return fail_instr(plan, i, squares_on_host(plan) ? "does not read the squares" : "reads squares that are in the metrics");
  return squares_on_host(plan) ? check_role(plan, i, 2, plan->squares) : STATUS_OK;
}

static enum status check_fetch_loss(const struct plan *plan, int i)
{
  enum status status = check_role(plan, i, 0, plan->loss);
  return status ? status : check_role(plan, i, 1, plan->loss_host);
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

/* Each member reads its shard of what all have landed, as far from the beginning as its own part of the unit is. */
static enum status check_sum_shared(const struct plan *plan, int i)
{
  const enum status status = check_bytes_of(plan, i, 0, plan->layout[plan->instr[i].unit].trained);
  return status ? status : check_part(plan, i, 0, 1);
}

/* What is gathered is the trained part, from the masters, or the frozen part, from the frozen shards, each to its place. */
static enum status check_gather(const struct plan *plan, int i)
{
  const struct instr *instr = &plan->instr[i];
  if (plan->input.shape.host_state) /* see check_fetched() */
    return STATUS_OK;
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
  case OP_SUM_SHARED: return check_sum_shared(plan, i);
  case OP_GATHER_GRADS: return check_part(plan, i, 1, 0);
  case OP_SQUARES: return check_squares(plan, i);
  case OP_METRICS: return check_metrics(plan, i);
  case OP_ADAM: status = check_role(plan, i, 0, plan->metrics); return status ? status : check_update(plan, i, 1);
  case OP_ADAM_NOW: return check_update(plan, i, 0);
  case OP_PUBLISH: return check_publish(plan, i);
  case OP_READ_STATE: return check_state(plan, i, 0, 2);
  case OP_WRITE_STATE: return check_state(plan, i, 2, 0);
  case OP_FETCH_LOSS: status = check_fetch_loss(plan, i); return status ? status : check_copy(plan, i);
  case OP_SAVE_ACT:
  case OP_WRITE_ACT:
  case OP_READ_ACT:
  case OP_FETCH_ACT:
  case OP_FETCH_GRAD:
  case OP_ACCUMULATE: return check_copy(plan, i);
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

/* ---- values: what is read is what it is taken for ---- */

enum kind {
  VALUE_OTHER,
  VALUE_TOKENS,
  VALUE_STREAM,
  VALUE_SAVED,
  VALUE_STREAM_GRADIENT,
  VALUE_GRADIENT,
  VALUE_OLD_MOMENT1, /* as the step before has left it */
  VALUE_OLD_MOMENT2,
  VALUE_MOMENT1,
  VALUE_MOMENT2,
  VALUE_WORKING
};

/* What a buffer holds. Of a gradient: the sum over so many ranks and micro-batches, from `micro` on, of what the unit itself and of what the
 * embedding contributes; of a block's input: whether it has gone on to another tier, so that it is no longer here. */
struct value {
  enum kind kind;
  int unit, micro;
  int ranks, micros, embeds;
  bool gone;
};

static const char *const words_of[] = {
    [VALUE_OTHER] = "nothing",
    [VALUE_TOKENS] = "the tokens of its micro-batch",
    [VALUE_STREAM] = "the block's input",
    [VALUE_SAVED] = "the block's activations",
    [VALUE_STREAM_GRADIENT] = "the gradient by the block's output",
    [VALUE_GRADIENT] = "the unit's gradient",
    [VALUE_OLD_MOMENT1] = "the unit's first moment from the disk",
    [VALUE_OLD_MOMENT2] = "the unit's second moment from the disk",
    [VALUE_MOMENT1] = "the unit's first moment after its update",
    [VALUE_MOMENT2] = "the unit's second moment after its update",
    [VALUE_WORKING] = "the unit's parameters after their update",
};

struct walker {
  const struct plan *plan;
  struct value *value; /* by buffer */
  int *next;           /* by buffer: another one of its family, a list that begins with the root; -1: the last */
  int now;             /* instruction */
};

static void link_families(struct walker *w)
{
  for (int b = 0; b < w->plan->buffers; b++)
    w->next[b] = -1;
  for (int b = 0; b < w->plan->buffers; b++) {
    int root = plan_root(w->plan, b, NULL);
    if (root == b)
      continue;
    w->next[b] = w->next[root];
    w->next[root] = b;
  }
}

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

/* Of the same family, whatever shares bytes loses its value. */
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
  return status_set(STATUS_PLAN, "%s reads %s, which is not %s", name_of(w->plan, w->now, w->now).text, w->plan->buffer[buffer_of(w, k)].name,
                    words_of[kind]);
}

/* A block's input, for its backward pass. */
static enum status expect_input(const struct walker *w, int k)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status = expect(w, k, VALUE_STREAM, instr->unit - 1, instr->micro);
  if (status || !value_of(w, k).gone)
    return status;
  return status_set(STATUS_PLAN, "%s reads %s, from where it has gone to another tier", name_of(w->plan, w->now, w->now).text,
                    w->plan->buffer[buffer_of(w, k)].name);
}

static enum status move_input(const struct walker *w)
{
  enum status status = expect_input(w, 0);
  if (status)
    return status;
  set_value(w, 1, value_of(w, 0));
  w->value[buffer_of(w, 0)].gone = true;
  return STATUS_OK;
}

/* The backward pass begins a sum or goes on with it, in the order of the micro-batches. */
static enum status add_gradient(const struct walker *w, int k)
{
  const struct instr *instr = &w->plan->instr[w->now];
  bool embeds = instr->op == OP_EMBED_BACKWARD;
  struct value sum = {.kind = VALUE_GRADIENT, .unit = instr->unit, .micro = instr->micro, .ranks = 1};
  if (instr->use[k].access == ACCESS_ADD)
    sum = value_of(w, k);
  int next = sum.micro + (embeds ? sum.embeds : sum.micros);
  if (sum.kind != VALUE_GRADIENT || sum.unit != instr->unit || sum.ranks != 1 || next != instr->micro)
    return status_set(STATUS_PLAN, "%s adds to %s, which is not the sum over the micro-batches before it", name_of(w->plan, w->now, w->now).text,
                      w->plan->buffer[buffer_of(w, k)].name);
  *(embeds ? &sum.embeds : &sum.micros) += 1;
  set_value(w, k, sum);
  return STATUS_OK;
}

/* One sum goes on where the other ends. */
static enum status join_sums(const struct walker *w, int k, struct value more)
{
  struct value sum = value_of(w, k);
  int behind = sum.micro + (sum.micros > sum.embeds ? sum.micros : sum.embeds);
  if (sum.kind != VALUE_GRADIENT || sum.unit != more.unit || sum.ranks != more.ranks || behind != more.micro)
    return status_set(STATUS_PLAN, "%s adds to %s, which is not the sum over the micro-batches before it", name_of(w->plan, w->now, w->now).text,
                      w->plan->buffer[buffer_of(w, k)].name);
  sum.micros += more.micros;
  sum.embeds += more.embeds;
  set_value(w, k, sum);
  return STATUS_OK;
}

/* Of its unit and of this micro-batch, where the instruction has one. */
static enum status expect_gradient(const struct walker *w, int k)
{
  const struct instr *instr = &w->plan->instr[w->now];
  return expect(w, k, VALUE_GRADIENT, instr->unit, instr->micro < 0 ? value_of(w, k).micro : instr->micro);
}

/* What is reduced is each member's own sum; it is spent. `to`: use of the result. */
static enum status reduce_sums(const struct walker *w, int to)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status = expect_gradient(w, 0);
  if (status)
    return status;
  struct value sum = value_of(w, 0);
  sum.ranks *= (int)members_of(w->plan, instr->op);
  set_value(w, 0, (struct value){0});
  if (instr->use[to].access == ACCESS_ADD)
    return join_sums(w, to, sum);
  set_value(w, to, sum);
  return STATUS_OK;
}

static enum status move_gradient(const struct walker *w)
{
  enum status status = expect_gradient(w, 0);
  if (!status)
    set_value(w, 1, value_of(w, 0));
  return status;
}

/* Every rank's and every micro-batch's, once. */
static enum status expect_whole_sum(const struct walker *w, int k)
{
  const struct plan_input *input = &w->plan->input;
  int unit = w->plan->instr[w->now].unit, micros = (int)input->shape.micros;
  struct value sum = value_of(w, k);
  enum status status = expect(w, k, VALUE_GRADIENT, unit, 0);
  if (status)
    return status;
  bool own = is_block(w->plan, unit) || unit == input->model->head, embeds = unit == 0 && embedding_learns(w->plan);
  if (sum.ranks == input->ranks && sum.micros == (own ? micros : 0) && sum.embeds == (embeds ? micros : 0))
    return STATUS_OK;
  return status_set(STATUS_PLAN, "%s reads %s, the sum over %d of %d ranks and %d of %d micro-batches", name_of(w->plan, w->now, w->now).text,
                    w->plan->buffer[buffer_of(w, k)].name, sum.ranks, input->ranks, own ? sum.micros : sum.embeds, micros);
}

/* On the disk moments are as the step before has left them, whatever copies of them are in memory. */
static enum status update(const struct walker *w, int first)
{
  const struct instr *instr = &w->plan->instr[w->now];
  bool on_disk = state_on_disk(w->plan, instr->unit);
  enum status status = expect_whole_sum(w, first);
  if (!status && on_disk)
    status = expect(w, first + 2, VALUE_OLD_MOMENT1, instr->unit, 0);
  if (!status && on_disk)
    status = expect(w, first + 3, VALUE_OLD_MOMENT2, instr->unit, 0);
  if (status)
    return status;
  set_value(w, first + 2, (struct value){.kind = VALUE_MOMENT1, .unit = instr->unit});
  set_value(w, first + 3, (struct value){.kind = VALUE_MOMENT2, .unit = instr->unit});
  if (instr->n_use > first + 4)
    set_value(w, first + 4, (struct value){.kind = VALUE_WORKING, .unit = instr->unit});
  return STATUS_OK;
}

static void read_state(const struct walker *w)
{
  int unit = w->plan->instr[w->now].unit;
  set_value(w, 2, (struct value){.kind = VALUE_OLD_MOMENT1, .unit = unit});
  set_value(w, 3, (struct value){.kind = VALUE_OLD_MOMENT2, .unit = unit});
}

static enum status write_state(const struct walker *w)
{
  int unit = w->plan->instr[w->now].unit;
  enum status status = expect(w, 0, VALUE_MOMENT1, unit, 0);
  return status ? status : expect(w, 1, VALUE_MOMENT2, unit, 0);
}

static enum status walk_forward(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status = instr->op == OP_RECOMPUTE ? expect_input(w, 1) : expect(w, 1, VALUE_STREAM, instr->unit - 1, instr->micro);
  if (status)
    return status;
  if (instr->op != OP_RECOMPUTE)
    set_value(w, 2, (struct value){.kind = VALUE_STREAM, .unit = instr->unit, .micro = instr->micro});
  int saved = instr->op == OP_RECOMPUTE ? 3 : instr->op == OP_FORWARD && instr->n_use > 4 ? 4 : -1;
  if (saved >= 0)
    set_value(w, saved, (struct value){.kind = VALUE_SAVED, .unit = instr->unit, .micro = instr->micro});
  return STATUS_OK;
}

static enum status walk_head(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  int last = w->plan->input.model->blocks;
  enum status status = expect(w, 1, VALUE_STREAM, last, instr->micro);
  if (!status && instr->op == OP_LOSS)
    status = expect(w, 2, VALUE_TOKENS, -1, instr->micro);
  if (status || instr->op == OP_LOGITS || instr->n_use < 6)
    return status;
  set_value(w, 5, (struct value){.kind = VALUE_STREAM_GRADIENT, .unit = last, .micro = instr->micro});
  return instr->n_use > 6 ? add_gradient(w, 6) : STATUS_OK;
}

static enum status walk_backward(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status = expect_input(w, 1);
  if (!status)
    status = expect(w, 2, VALUE_SAVED, instr->unit, instr->micro);
  if (!status)
    status = expect(w, 3, VALUE_STREAM_GRADIENT, instr->unit, instr->micro);
  if (status)
    return status;
  set_value(w, 3, (struct value){.kind = VALUE_STREAM_GRADIENT, .unit = instr->unit - 1, .micro = instr->micro});
  return instr->n_use > 5 ? add_gradient(w, 5) : STATUS_OK;
}

static enum status walk_embedding(const struct walker *w, bool back)
{
  int micro = w->plan->instr[w->now].micro;
  enum status status = expect(w, back ? 0 : 1, VALUE_TOKENS, -1, micro);
  if (!status && !back)
    set_value(w, 2, (struct value){.kind = VALUE_STREAM, .micro = micro});
  if (status || !back)
    return status;
  status = expect(w, 1, VALUE_STREAM_GRADIENT, 0, micro);
  return status ? status : add_gradient(w, 2);
}

static enum status walk_value(const struct walker *w)
{
  const struct instr *instr = &w->plan->instr[w->now];
  enum status status;
  switch (instr->op) {
  case OP_LOAD: set_value(w, 0, (struct value){.kind = VALUE_TOKENS, .unit = -1, .micro = instr->micro}); return STATUS_OK;
  case OP_EMBED: return walk_embedding(w, false);
  case OP_FORWARD:
  case OP_DECODE:
  case OP_RECOMPUTE: return walk_forward(w);
  case OP_LOSS:
  case OP_LOGITS: return walk_head(w);
  case OP_BACKWARD: return walk_backward(w);
  case OP_EMBED_BACKWARD: return walk_embedding(w, true);
  case OP_SAVE_ACT:
  case OP_WRITE_ACT:
  case OP_READ_ACT:
  case OP_FETCH_ACT: return move_input(w);
  case OP_REDUCE:
  case OP_REPLICA_REDUCE: return reduce_sums(w, 2);
  case OP_SUM_SHARED: return reduce_sums(w, 1);
  case OP_GATHER_GRADS:
  case OP_FETCH_GRAD: return move_gradient(w);
  case OP_ACCUMULATE: status = expect_gradient(w, 0); return status ? status : join_sums(w, 1, value_of(w, 0));
  case OP_SQUARES: return expect_whole_sum(w, 0);
  case OP_ADAM: return update(w, 1);
  case OP_ADAM_NOW: return update(w, 0);
  case OP_PUBLISH: return expect(w, 0, VALUE_WORKING, instr->unit, 0);
  case OP_READ_STATE: read_state(w); return STATUS_OK;
  case OP_WRITE_STATE: return write_state(w);
  default: return STATUS_OK;
  }
}

static enum status check_values(const struct plan *plan)
{
  struct walker w = {.plan = plan};
  void *value = NULL, *next = NULL;
  enum status status = mem_alloc(MEM_META, (size_t)plan->buffers * sizeof *w.value, &value);
  if (!status)
    status = mem_alloc(MEM_META, (size_t)plan->buffers * sizeof *w.next, &next);
  if (!status) {
    w.value = value;
    w.next = next;
    link_families(&w);
  }
  for (; w.now < plan->n && !status; w.now++)
    status = walk_value(&w);
  mem_free(next);
  mem_free(value);
  return status;
}

enum status plan_verify(const struct plan *plan)
{
  enum status status = check_form(plan);
  if (!status)
    status = check_buffers(plan);
  if (!status)
    status = check_places(plan);
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
  if (!status)
    status = check_values(plan);
  return status;
}
