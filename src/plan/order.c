/* The fewest waits that make concurrent lanes keep the plan's order. Two instructions conflict if
 * they touch the same bytes and at least one changes them. The latest conflict of an instruction on
 * each lane suffices. A conflict needs no wait if the lane's own order and the other waits already
 * imply it (vector clocks: Fidge 1988, Mattern 1989). The step is unrolled twice and the second
 * copy's waits are taken. So conflicts with the step before become waits with back = 1. Earlier
 * steps need no waits, because a lane finishes its instruction of one step before it starts it in
 * the next. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "plan/internal.h"

/* Moments count instructions over both copies, from 1; 0 is "never". */
struct moments {
  int on[LANE_COUNT];
};

/* The arenas, end to end, are cut wherever a buffer begins or ends; every buffer is a run of whole
 * segments. */
struct segment {
  struct moments read, written;
};
struct run {
  int begin, end;
};

struct orderer {
  struct plan *plan;
  struct segment *segment;
  struct run *run;        /* [buffers] */
  struct moments *before; /* [2n + 1] the moments that are complete before an instruction starts */
  int latest[LANE_COUNT]; /* moment of each lane's last instruction so far */
};

static int64_t address(const struct plan *plan, int buffer)
{
  int64_t base = 0;
  const struct plan_buffer *b = &plan->buffer[buffer];
  for (int tier = 0; tier < (int)b->tier; tier++)
    base += plan_tier_bytes(plan, (enum plan_tier)tier);
  if (!b->persistent)
    base += plan->persistent_bytes[b->tier];
  return base + b->offset;
}

static int by_value(const void *left, const void *right)
{
  int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return (a > b) - (a < b);
}

static int find(const int64_t *cut, int cuts, int64_t at)
{
  const int64_t *found = bsearch(&at, cut, (size_t)cuts, sizeof *cut, by_value);
  return (int)(found - cut);
}

static void cut_arenas(const struct plan *plan, int64_t *cut, struct run *run)
{
  int ends = 0, cuts = 0;
  for (int b = 0; b < plan->buffers; b++) {
    cut[ends++] = address(plan, b);
    cut[ends++] = address(plan, b) + plan->buffer[b].bytes;
  }
  qsort(cut, (size_t)ends, sizeof *cut, by_value);
  for (int i = 0; i < ends; i++)
    if (cuts == 0 || cut[i] != cut[cuts - 1])
      cut[cuts++] = cut[i];
  for (int b = 0; b < plan->buffers; b++) {
    int64_t begin = address(plan, b);
    run[b] = (struct run){find(cut, cuts, begin), find(cut, cuts, begin + plan->buffer[b].bytes)};
  }
}

static void merge(struct moments *into, const struct moments *other)
{
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (other->on[lane] > into->on[lane])
      into->on[lane] = other->on[lane];
}

static void merge_with(struct orderer *o, struct moments *into, enum plan_lane lane, int moment)
{
  merge(into, &o->before[moment]);
  if (moment > into->on[lane])
    into->on[lane] = moment;
}

static struct moments conflicts(const struct orderer *o, const struct instr *instr)
{
  struct moments latest = {0};
  for (int k = 0; k < PLAN_MAX_USE; k++) {
    if (instr->use[k].buffer < 0)
      continue;
    const struct run *run = &o->run[instr->use[k].buffer];
    for (int s = run->begin; s < run->end; s++) {
      merge(&latest, &o->segment[s].written);
      if (instr->use[k].access != ACCESS_READ)
        merge(&latest, &o->segment[s].read);
    }
  }
  return latest;
}

/* A change comes after all earlier uses, so an instruction after the change is after them too.
 * Reads are recorded first, because an instruction may change a buffer that it reads. */
static void record(struct orderer *o, const struct instr *instr, int moment)
{
  for (int change = 0; change <= 1; change++)
    for (int k = 0; k < PLAN_MAX_USE; k++) {
      if (instr->use[k].buffer < 0 || (instr->use[k].access != ACCESS_READ) != change)
        continue;
      const struct run *run = &o->run[instr->use[k].buffer];
      for (int s = run->begin; s < run->end; s++) {
        if (change)
          memset(&o->segment[s], 0, sizeof o->segment[s]);
        (change ? &o->segment[s].written : &o->segment[s].read)->on[instr->lane] = moment;
      }
    }
}

/* Keeps the entries of `latest` that neither `known` nor another entry implies. */
static void reduce(const struct orderer *o, const struct moments *known, struct moments *latest)
{
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (latest->on[lane] <= known->on[lane])
      latest->on[lane] = 0;
  const struct moments all = *latest;
  for (int lane = 0; lane < LANE_COUNT; lane++)
    for (int other = 0; other < LANE_COUNT; other++)
      if (other != lane && all.on[other] && o->before[all.on[other]].on[lane] >= all.on[lane])
        latest->on[lane] = 0;
}

static void order_one(struct orderer *o, int moment)
{
  int n = o->plan->n;
  struct instr *instr = &o->plan->instr[(moment - 1) % n];
  struct moments *before = &o->before[moment], latest = conflicts(o, instr);
  if (o->latest[instr->lane])
    merge_with(o, before, instr->lane, o->latest[instr->lane]);
  reduce(o, before, &latest);

  instr->n_wait = 0;
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    if (!latest.on[lane])
      continue;
    bool this_step = (latest.on[lane] - 1) / n == (moment - 1) / n;
    instr->wait[instr->n_wait++] =
        (struct plan_wait){.instr = (latest.on[lane] - 1) % n, .back = this_step ? 0 : 1};
    merge_with(o, before, (enum plan_lane)lane, latest.on[lane]);
  }
  record(o, instr, moment);
  o->latest[instr->lane] = moment;
}

enum status plan_order(struct plan *plan)
{
  struct orderer o = {.plan = plan};
  int64_t *cut = NULL;
  enum status status = mem_new(MEM_META, 2 * plan->buffers, &cut);
  status = status ?: mem_new(MEM_META, 2 * plan->buffers, &o.segment);
  status = status ?: mem_new(MEM_META, plan->buffers, &o.run);
  status = status ?: mem_new(MEM_META, 2 * plan->n + 1, &o.before);
  if (!status) {
    cut_arenas(plan, cut, o.run);
    for (int moment = 1; moment <= 2 * plan->n; moment++)
      order_one(&o, moment);
  }
  mem_free(o.before);
  mem_free(o.run);
  mem_free(o.segment);
  mem_free(cut);
  return status;
}
