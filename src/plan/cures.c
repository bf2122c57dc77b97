#include "plan/cures.h"

enum { MOST_PARTS = 7, MOST_SEEN = 64 };
enum { SHARDED = VARY_BIT(VARY_SHARD_ALL) | VARY_BIT(VARY_REDUCE_EACH) };
enum { TRANSFERS = VARY_BIT(VARY_PARAMS_SHARD) | VARY_BIT(VARY_GRADS_DEVICE) };
enum { MOMENTS_ON_NVME = VARY_BIT(VARY_MOMENTS_NVME) | VARY_BIT(VARY_MOMENTS_NVME_ALL) };

bool rooms_is_short(const struct rooms *rooms, enum room room)
{
  return rooms->have[room] >= 0 && rooms->need[room] > rooms->have[room];
}

bool rooms_fit(const struct rooms *rooms)
{
  bool fit = true;
  for (int room = 0; room < ROOMS; room++)
    fit &= !rooms_is_short(rooms, (enum room)room);
  return fit;
}

/* ---- the keys, in the order of what they cost ---- */

/* All changes together; and what may do without the others, in that order. */
struct set {
  unsigned all, part[MOST_PARTS];
  bool quiet;       /* if it does not help */
  bool weighs_host; /* is for where the host's memory is known, and may be what is short then */
};

/* Of a memory that is short; the first set keeps numbers, and where things lie. */
struct remedy {
  unsigned least; /* all that helps against long sequences and few ranks is beside these */
  const struct set *set;
  int sets;
};

/* Which keep the numbers come first. */
enum {
  DEVICE_LEAST = SHARDED | TRANSFERS | VARY_BIT(VARY_WORKING_GATHER) | VARY_BIT(VARY_RESIDENT_NONE) | VARY_BIT(VARY_WORKSPACE_TIGHT) |
                 VARY_BIT(VARY_RECOMPUTE) | VARY_BIT(VARY_MICRO_ONE),
  DEVICE_HOST =
      SHARDED | TRANSFERS | VARY_BIT(VARY_STATE_HOST) | VARY_BIT(VARY_RESIDENT_NONE) | VARY_BIT(VARY_INPUTS_HOST) | VARY_BIT(VARY_MICRO_ONE),
  DEVICE_HOST_LESS = DEVICE_HOST | VARY_BIT(VARY_MOMENTS_BF16)
};
static const struct set of_device[] = {{DEVICE_LEAST,
                                        {VARY_BIT(VARY_WORKING_GATHER), VARY_BIT(VARY_RESIDENT_NONE), VARY_BIT(VARY_WORKSPACE_TIGHT),
                                         VARY_BIT(VARY_KEEP_HOST), VARY_BIT(VARY_MICRO_ONE), SHARDED, VARY_BIT(VARY_RECOMPUTE)},
                                        .quiet = false},
                                       {DEVICE_LEAST | VARY_BIT(VARY_MOMENTS_BF16), {VARY_BIT(VARY_MOMENTS_BF16)}, .quiet = true},
                                       {DEVICE_HOST, {SHARDED | VARY_BIT(VARY_STATE_HOST)}, .quiet = false},
                                       {DEVICE_HOST_LESS, {0}, .quiet = true, .weighs_host = true},
                                       {DEVICE_HOST_LESS | MOMENTS_ON_NVME, {0}, .quiet = false, .weighs_host = true},
                                       {DEVICE_LEAST | VARY_BIT(VARY_PREFETCH_NONE), {VARY_BIT(VARY_PREFETCH_NONE)}, .quiet = true}};

/* What GPUs leave to their hosts. */
enum { NODE_LEAST = SHARDED | VARY_BIT(VARY_GRADS_DEVICE) | MOMENTS_ON_NVME };
static const struct set of_node[] = {{NODE_LEAST | VARY_BIT(VARY_RECOMPUTE),
                                      {VARY_BIT(VARY_KEEP_DEVICE), VARY_BIT(VARY_RECOMPUTE), VARY_BIT(VARY_GRADS_DEVICE), SHARDED, MOMENTS_ON_NVME},
                                      .quiet = false},
                                     {NODE_LEAST | VARY_BIT(VARY_INPUTS_NVME), {VARY_BIT(VARY_INPUTS_NVME)}, .quiet = true},
                                     {NODE_LEAST | VARY_BIT(VARY_RECOMPUTE) | VARY_BIT(VARY_MOMENTS_BF16),
                                      {VARY_BIT(VARY_MOMENTS_BF16), VARY_BIT(VARY_MOMENTS_BF16) | VARY_BIT(VARY_KEEP_DEVICE)},
                                      .quiet = false}};

/* Where hosts compute. */
enum {
  HOST_LESS = SHARDED | VARY_BIT(VARY_GRADS_DEVICE) | VARY_BIT(VARY_WORKING_GATHER) | MOMENTS_ON_NVME | VARY_BIT(VARY_MICRO_ONE),
  HOST_LEAST = HOST_LESS | VARY_BIT(VARY_RECOMPUTE)
};
static const struct set of_host[] = {
    {HOST_LEAST,
     {VARY_BIT(VARY_WORKING_GATHER), VARY_BIT(VARY_GRADS_DEVICE), VARY_BIT(VARY_MICRO_ONE), SHARDED, VARY_BIT(VARY_RECOMPUTE), MOMENTS_ON_NVME},
     .quiet = false},
    {HOST_LEAST | VARY_BIT(VARY_MOMENTS_BF16), {VARY_BIT(VARY_MOMENTS_BF16)}, .quiet = true},
    {HOST_LESS | VARY_BIT(VARY_INPUTS_NVME), {VARY_BIT(VARY_INPUTS_NVME)}, .quiet = true}};

/* What the ranks of a node share. */
static const struct set of_shared[] = {{TRANSFERS, {VARY_BIT(VARY_PARAMS_SHARD), VARY_BIT(VARY_GRADS_DEVICE)}, .quiet = true}};

static const struct set of_disk[] = {
    {VARY_BIT(VARY_INPUTS_BACK) | VARY_BIT(VARY_MOMENTS_BACK),
     {VARY_BIT(VARY_MOMENTS_HALF), VARY_BIT(VARY_MOMENTS_BACK), VARY_BIT(VARY_INPUTS_BACK), VARY_BIT(VARY_RECOMPUTE_BACK)},
     .quiet = true},
    {VARY_BIT(VARY_RECOMPUTE_BACK) | VARY_BIT(VARY_MOMENTS_BACK), {0}, .quiet = true},
    {VARY_BIT(VARY_INPUTS_BACK) | VARY_BIT(VARY_MOMENTS_BF16), {VARY_BIT(VARY_MOMENTS_BF16)}, .quiet = true}};

static struct remedy remedy_of(enum room room, bool apart)
{
  enum { DEVICE_SETS = sizeof of_device / sizeof *of_device, NODE_SETS = sizeof of_node / sizeof *of_node };
  enum { HOST_SETS = sizeof of_host / sizeof *of_host, DISK_SETS = sizeof of_disk / sizeof *of_disk };
  switch (room) {
  case ROOM_DEVICE: return (struct remedy){DEVICE_LEAST, of_device, DEVICE_SETS};
  case ROOM_HOST: return apart ? (struct remedy){NODE_LEAST, of_node, NODE_SETS} : (struct remedy){HOST_LEAST, of_host, HOST_SETS};
  case ROOM_SHARED: return (struct remedy){TRANSFERS, of_shared, 1};
  default: return (struct remedy){VARY_BIT(VARY_INPUTS_BACK) | VARY_BIT(VARY_MOMENTS_BACK), of_disk, DISK_SETS};
  }
}

/* ---- trying them ---- */

struct search {
  const struct cure_case *job;
  enum room room; /* that is short */
  struct rooms now;
  int told; /* that fit */
  unsigned seen[MOST_SEEN];
  int n_seen;
  cure_tell *tell;
  void *to;
};

static void judge(const struct cure_case *job, const struct variant *variant, struct rooms *out)
{
  job->judge(job->arg, variant->n, (const struct plan *const *)variant->plan, out);
}

/* What is there to be destroyed in any case. `first`: this set of keys was not tried before. */
static enum status try_changes(struct search *s, unsigned changes, struct cure *out, bool *first)
{
  *out = (struct cure){.variant = vary(s->job->n, s->job->plans, changes)};
  *first = out->variant.made != 0;
  for (int i = 0; i < s->n_seen; i++)
    *first &= s->seen[i] != out->variant.made;
  if (!*first)
    return STATUS_OK;
  if (s->n_seen < MOST_SEEN)
    s->seen[s->n_seen++] = out->variant.made;
  const enum status status = vary_build(&out->variant);
  *first = !status && out->variant.plan[0];
  if (!*first)
    return status;
  judge(s->job, &out->variant, &out->rooms);
  out->fits = rooms_fit(&out->rooms);
  return STATUS_OK;
}

static void tell(struct search *s, const struct cure *cure)
{
  s->tell(s->to, cure);
  s->told += cure->fits;
}

static bool needs_less(const struct search *s, const struct cure *cure)
{
  const struct rooms *than = &s->now, *rooms = &cure->rooms;
  return rooms->need[s->room] < than->need[s->room] ||
         (s->room == ROOM_DEVICE && rooms->have[ROOM_HOST] >= 0 && rooms->need[ROOM_HOST] < than->need[ROOM_HOST]);
}

/* All together bound what a part can do, so that parts are tried only where one of them may fit. */
static enum status tell_least(struct search *s, const struct set *set, const struct cure *all)
{
  enum status status = STATUS_OK;
  for (int p = 0; p < MOST_PARTS && set->part[p] && !status && s->told < s->job->most; p++) {
    struct cure part;
    bool first;
    status = try_changes(s, set->part[p], &part, &first);
    if (first && part.fits)
      tell(s, &part);
    vary_destroy(&part.variant);
  }
  if (!status && s->told == 0)
    tell(s, all);
  return status;
}

static enum status try_set(struct search *s, const struct set *set)
{
  struct cure all;
  bool first;
  if (s->told == s->job->most || (set->weighs_host && s->now.have[ROOM_HOST] < 0))
    return STATUS_OK;
  enum status status = try_changes(s, set->all, &all, &first);
  if (first && all.fits)
    status = tell_least(s, set, &all);
  else if (first && !set->quiet && s->told == 0 && needs_less(s, &all))
    tell(s, &all);
  vary_destroy(&all.variant);
  return status;
}

static enum status try_lengths(struct search *s, unsigned least)
{
  const struct set sets[] = {{VARY_BIT(VARY_LENGTH_HALF), {0}, .quiet = true},
                             {VARY_BIT(VARY_LENGTH_EIGHTH), {0}, .quiet = true},
                             {least | VARY_BIT(VARY_LENGTH_EIGHTH), {0}, .quiet = true}};
  enum status status = STATUS_OK;
  for (int i = 0; i < 3 && !status && s->told == 0; i++)
    status = try_set(s, &sets[i]);
  return status;
}

/* ---- what no key can do ---- */

/* With so many ranks that what they share takes nothing, unless `with_shared`. */
static bool leaves_room(const struct plan *plan, const struct rooms *rooms, bool with_shared)
{
  int64_t bytes = plan_tier_bytes(plan, TIER_DEVICE) + plan_tier_bytes(plan, TIER_HOST);
  int64_t shared = plan->persistent_bytes[TIER_DEVICE] + plan_purpose_bytes(plan, TIER_DEVICE, PURPOSE_GRADS, false);
  if (rooms->have[ROOM_DEVICE] >= 0)
    return rooms->need[ROOM_DEVICE] - (with_shared ? 0 : (double)shared) <= rooms->have[ROOM_DEVICE];
  if (with_shared)
    return rooms->need[ROOM_HOST] <= rooms->have[ROOM_HOST];
  shared += plan->persistent_bytes[TIER_HOST] + plan_purpose_bytes(plan, TIER_HOST, PURPOSE_GRADS, false);
  return (double)(bytes - shared) <= rooms->have[ROOM_HOST];
}

/* With the keys that help most, and with a much shorter sequence besides. */
static enum status find_hopes(const struct cure_case *job, unsigned least, struct cure_hopes *out)
{
  struct variant now = vary(job->n, job->plans, least), brief = vary(job->n, job->plans, least | VARY_BIT(VARY_LENGTH_EIGHTH));
  struct rooms rooms_now, rooms_brief;
  enum status status = vary_build(&now);
  if (!status)
    status = vary_build(&brief);
  const struct plan *plan = now.plan[0] ? now.plan[0] : job->plans[0], *shorter = brief.plan[0] ? brief.plan[0] : plan;
  if (!status) {
    job->judge(job->arg, job->n, now.plan[0] ? (const struct plan *const *)now.plan : job->plans, &rooms_now);
    rooms_brief = rooms_now;
    if (brief.plan[0])
      judge(job, &brief, &rooms_brief);
    *out = (struct cure_hopes){.wanted = true,
                               .ranks = leaves_room(plan, &rooms_now, false),
                               .sequence = leaves_room(shorter, &rooms_brief, true),
                               .both = leaves_room(shorter, &rooms_brief, false),
                               .nodes = rooms_is_short(&rooms_now, ROOM_HOST)};
  }
  vary_destroy(&brief);
  vary_destroy(&now);
  return status;
}

static enum room first_short(const struct rooms *rooms)
{
  int room = 0;
  while (room < ROOM_DISK && !rooms_is_short(rooms, (enum room)room))
    room++;
  return (enum room)room;
}

enum status cures_find(const struct cure_case *job, cure_tell *tell_cure, void *to, bool *fits, struct cure_hopes *hopes)
{
  struct search s = {.job = job, .tell = tell_cure, .to = to};
  job->judge(job->arg, job->n, job->plans, &s.now);
  s.room = first_short(&s.now);
  const struct remedy remedy = remedy_of(s.room, job->apart);
  enum status status = try_set(&s, &remedy.set[0]);
  const bool wanted = s.told == 0 && (s.room == ROOM_DEVICE || (s.room == ROOM_HOST && !job->apart));
  for (int i = 1; i < remedy.sets && !status; i++)
    status = try_set(&s, &remedy.set[i]);
  if (!status && job->lengths && s.told == 0)
    status = try_lengths(&s, remedy.least);
  *hopes = (struct cure_hopes){.wanted = false};
  if (!status && wanted)
    status = find_hopes(job, remedy.least, hopes);
  *fits = s.told > 0;
  return status;
}
