#include "job/advise.h"

#include <stdio.h>
#include <string.h>

#include "base/append.h"

enum { MOST_TOLD = 3 };

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

/* ---- one variant ---- */

/* Parameters, moments and gradients. More ranks split them, except with no_shard and
 * hybrid_shard. */
static double divided_bytes(const struct plan *plan, enum plan_tier tier)
{
  const enum deck_strategy strategy = plan->input.strategy;
  if (strategy == STRATEGY_NO_SHARD || strategy == STRATEGY_HYBRID_SHARD)
    return 0;
  return (double)(plan->persistent_bytes[tier] +
                  plan_purpose_bytes(plan, tier, PURPOSE_GRADS, false));
}

static enum status measure(const struct advise_case *job, const struct plan *const plan[],
                           const struct plan_rates *rates, struct advise_measure *out)
{
  *out = (struct advise_measure){.rooms = {.need = {0}}};
  const struct device_model *device = plan[0]->input.device;
  const int ranks = plan[0]->input.ranks;
  job->judge(job->arg, job->n, plan, &out->rooms);
  out->grows = (double)(device_model_reserve(device, ranks > 1 ? ranks : 2) -
                        device_model_reserve(device, ranks));
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    out->tier[tier] = (double)plan_tier_bytes(plan[0], (enum plan_tier)tier);
    out->divided[tier] = divided_bytes(plan[0], (enum plan_tier)tier);
  }
  out->tier[TIER_SHARED] = (double)plan_shared_bytes(plan[0]);
  return rates ? plan_simulate(plan[0], rates, &out->forecast) : STATUS_OK;
}

/* The same as `plan`, of the job itself, but with another deck. Only predicted times need waits
 * (`ordered`). */
static enum status plan_deck(const struct advise_case *job, const struct plan *plan,
                             const struct deck *deck, bool ordered, struct plan **out)
{
  const struct plan_input *now = &plan->input;
  struct plan_input input = {.mode = now->mode,
                             .rank = job->ranks > 0 ? 0 : now->rank,
                             .ranks = job->ranks > 0 ? job->ranks : now->ranks,
                             .model = now->model,
                             .device = now->device,
                             .threads = now->threads};
  enum status status = job_shape(deck, job->use, job->local_ranks, &input);
  if (status)
    return status;
  input.policy.warmup = now->policy.warmup;
  if (input.shape.group == now->shape.group) /* the ranks have agreed on their nodes */
    input.policy.one_node = now->policy.one_node;
  status = plan_build(&input, out);
  if (!status)
    status = plan_place(*out);
  return status || !ordered ? status : plan_order(*out);
}

static enum status measure_deck(const struct advise_case *job, const struct deck *deck,
                                const struct plan_rates *rates, struct advise_measure *out)
{
  struct plan *plan[JOB_PLANS] = {NULL};
  enum status status = STATUS_OK;
  for (int p = 0; p < job->n && !status; p++)
    status = plan_deck(job, job->plans[p], deck, rates, &plan[p]);
  if (!status)
    status = measure(job, (const struct plan *const *)plan, rates, out);
  for (int p = 0; p < job->n; p++)
    plan_destroy(plan[p]);
  return status;
}

/* Keys that contradict each other, or that this build does not support, are no failure of the
 * search. */
static enum status unless_impossible(enum status status)
{
  return status == STATUS_USAGE || status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

enum status advise_try(const struct advise_case *job, const char *assignments,
                       const struct plan_rates *rates, struct advice *out)
{
  struct deck deck;
  *out = (struct advice){.name = ""};
  enum status status = deck_vary(job->deck, assignments, &deck, out->name, sizeof out->name);
  if (!status) {
    status = measure_deck(job, &deck, rates, &out->measure);
    deck_destroy(&deck);
  }
  if (status)
    return unless_impossible(status);
  out->possible = true;
  out->fits = rooms_fit(&out->measure.rooms);
  return STATUS_OK;
}

enum status advise_plan(const struct advise_case *job, const char *assignments, bool ordered,
                        struct plan **out)
{
  struct deck deck;
  char changes[sizeof((struct advice *)0)->name];
  *out = NULL;
  enum status status = deck_vary(job->deck, assignments, &deck, changes, sizeof changes);
  if (!status) {
    status = plan_deck(job, job->plans[0], &deck, ordered, out);
    deck_destroy(&deck);
  }
  if (status) {
    plan_destroy(*out);
    *out = NULL;
  }
  return unless_impossible(status);
}

void advise_append_name(const struct advice *advice, char *text, size_t size)
{
  append_text(text, size, "%s%s", advice->name,
              advice->changes_numbers ? " (which changes the numbers)" : "");
}

void advise_append_hopes(const struct advise_hopes *hopes, const char *keys, char *text,
                         size_t size)
{
  const char *const needs[] = {hopes->keys ? keys : NULL,
                               hopes->full_shard ? "shard.strategy=full_shard" : NULL,
                               hopes->shorter ? "a much shorter data.sequence" : NULL};
  const char *between = " with ";
  for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
    if (needs[i]) {
      append_text(text, size, "%s%s", between, needs[i]);
      between = " and ";
    }
}

/* ---- what may be changed ---- */

/* Cheapest first. Only one value of a key is advised. A change that does not lower the need for a
 * memory that is short is never advised, so one list serves all memories. */
static const struct candidate {
  const char *set;
  bool numbers;
} candidates[] = {{"tiers.working=gather", false},
                  {"tiers.resident=0", false},
                  {"shard.gathered=0", false},
                  {"tiers.workspace=tight", false},
                  {"tiers.residual=host", false},
                  {"tiers.activations=keep", false},
                  {"tiers.activations=keep_host:2", false},
                  {"data.micro_batch=1", false},
                  {"shard.strategy=full_shard", false},
                  {"shard.strategy=full_shard shard.group=auto", false},
                  {"shard.reduce=micro", false},
                  {"transfer.params=shard", false},
                  {"transfer.grads=gpu_reduce", false},
                  {"tiers.activations=recompute", false},
                  {"tiers.params=host tiers.optimizer=host", false},
                  {"tiers.activations=host", false},
                  {"tiers.activations=nvme", false},
                  {"optim.update=deferred", false},
                  {"tiers.residual=nvme", false},
                  {"optim.state_share=0.5", false},
                  {"optim.state=host optim.state_share=1", false},
                  {"optim.state=nvme", false},
                  {"optim.state_share=1", false},
                  {"shard.prefetch=0", false},
                  {"optim.moments=bf16", true}};
enum { CANDIDATES = sizeof candidates / sizeof *candidates };

static bool same_key(const struct candidate *a, const struct candidate *b)
{
  const size_t length = strcspn(a->set, "=");
  return length == strcspn(b->set, "=") && strncmp(a->set, b->set, length) == 0;
}

/* ---- trying them ---- */

struct search {
  const struct advise_case *job;
  struct advise_measure now; /* of the plans */
  struct advice same;        /* of the deck, measured as its variants are */
  bool idle[CANDIDATES];     /* changes nothing in this deck */
  bool with[CANDIDATES];     /* changes together */
  struct advice together;
  int told;
  advise_tell *tell;
  void *to;
};

static void tell(struct search *s, const struct advice *advice)
{
  s->tell(s->to, advice);
  s->told += advice->fits;
}

/* Whether a memory that is too small in `now` is needed less than in `than`. */
static bool lowers(const struct rooms *now, const struct advice *than, const struct advice *advice)
{
  bool lower = false;
  for (int room = 0; room < ROOMS; room++)
    lower |= rooms_is_short(now, (enum room)room) &&
             advice->measure.rooms.need[room] < than->measure.rooms.need[room];
  return lower && advice->possible && *advice->name;
}

/* Whether another candidate for the same key was reported. */
static bool is_told(const bool told[CANDIDATES], int c)
{
  for (int other = 0; other < c; other++)
    if (told[other] && same_key(&candidates[other], &candidates[c]))
      return true;
  return false;
}

static enum status try_alone(struct search *s)
{
  bool told[CANDIDATES] = {false};
  enum status status = STATUS_OK;
  for (int c = 0; c < CANDIDATES && !status && s->told < MOST_TOLD; c++) {
    struct advice advice;
    if (is_told(told, c))
      continue;
    status = advise_try(s->job, candidates[c].set, NULL, &advice);
    advice.changes_numbers = candidates[c].numbers;
    s->idle[c] = advice.possible && !memcmp(advice.measure.rooms.need, s->same.measure.rooms.need,
                                            sizeof s->now.rooms.need);
    told[c] = !status && advice.fits && lowers(&s->now.rooms, &s->same, &advice);
    if (told[c])
      tell(s, &advice);
  }
  return status;
}

/* Joins the chosen assignments, and `length` (NULL: none). */
static enum status try_together(const struct advise_case *job, const bool with[CANDIDATES],
                                const char *length, struct advice *out)
{
  char set[sizeof out->name] = "";
  bool numbers = false;
  for (int c = 0; c < CANDIDATES; c++)
    if (with[c]) {
      append_text(set, sizeof set, "%s ", candidates[c].set);
      numbers |= candidates[c].numbers;
    }
  append_text(set, sizeof set, "%s", length ? length : "");
  const enum status status = advise_try(job, set, NULL, out);
  out->changes_numbers = numbers;
  return status;
}

/* Adds one change after the other, each of which lowers a need that is too large, until all
 * fits. */
static enum status add_changes(struct search *s)
{
  enum status status = STATUS_OK;
  const struct rooms *now = &s->now.rooms;
  s->together = s->same;
  s->together.fits = false;
  for (int c = 0; c < CANDIDATES && !status && !s->together.fits; c++) {
    bool with[CANDIDATES];
    struct advice advice;
    if (s->idle[c])
      continue;
    for (int other = 0; other < CANDIDATES; other++)
      with[other] = s->with[other] && !same_key(&candidates[other], &candidates[c]);
    with[c] = true;
    status = try_together(s->job, with, NULL, &advice);
    if (status || !lowers(now, &s->together, &advice))
      continue;
    memcpy(s->with, with, sizeof with);
    s->together = advice;
    now = &s->together.measure.rooms;
  }
  return status;
}

/* Drops superfluous changes. */
static enum status drop_changes(struct search *s)
{
  enum status status = STATUS_OK;
  for (int c = CANDIDATES - 1; c >= 0 && !status; c--) {
    struct advice advice;
    if (!s->with[c])
      continue;
    s->with[c] = false;
    status = try_together(s->job, s->with, NULL, &advice);
    if (!status && advice.fits)
      s->together = advice;
    else
      s->with[c] = true;
  }
  return status;
}

/* ---- cures other than keys ---- */

static bool splits(const struct advise_measure *measure)
{
  return measure->divided[TIER_DEVICE] + measure->divided[TIER_HOST] > 0;
}

/* Whether the rest fits if so many ranks split memory that a rank's part is negligible. False if
 * ranks split nothing. */
static bool leaves_room(const struct advise_measure *measure)
{
  const double *tier = measure->tier, *divided = measure->divided;
  const struct rooms *rooms = &measure->rooms;
  if (!splits(measure))
    return false;
  if (rooms->have[ROOM_DEVICE] >= 0)
    return rooms->need[ROOM_DEVICE] - divided[TIER_DEVICE] + measure->grows <=
           rooms->have[ROOM_DEVICE];
  return tier[TIER_DEVICE] - divided[TIER_DEVICE] + tier[TIER_HOST] - divided[TIER_HOST] <=
         rooms->have[ROOM_HOST];
}

/* `parts`: 2 for half of the tokens. In generation the sequence is the capacity of the cache. */
static void name_length(const struct advise_case *job, int64_t parts, char *out, size_t size)
{
  const struct plan_input *input = &job->plans[0]->input;
  const int64_t now = input->mode == PLAN_GENERATE ? input->capacity : input->shape.sequence;
  snprintf(out, size, "data.sequence=%lld", (long long)((now + parts - 1) / parts));
}

static enum status try_lengths(struct search *s, bool *room)
{
  static const struct {
    int parts;
    bool together;
  } lengths[] = {{2, false}, {8, false}, {8, true}};
  static const bool none[CANDIDATES] = {false};
  enum status status = STATUS_OK;
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths && !status && s->told == 0; i++) {
    char length[48];
    struct advice advice;
    name_length(s->job, lengths[i].parts, length, sizeof length);
    status = try_together(s->job, lengths[i].together ? s->with : none, length, &advice);
    if (!status && advice.fits && lowers(&s->now.rooms, &s->same, &advice))
      tell(s, &advice);
    *room = !status && advice.possible && leaves_room(&advice.measure);
  }
  return status;
}

/* Tries full_shard on at least two ranks, because a single rank gathers nothing. If full_shard
 * alone is not enough, and no advice fits, tries it together with the other changes. */
static enum status try_full_shard(const struct search *s, struct advise_hopes *hopes)
{
  static const bool none[CANDIDATES] = {false};
  struct advise_case more = *s->job;
  enum status status = STATUS_OK;
  if (more.ranks == 0)
    more.ranks = more.plans[0]->input.ranks;
  if (more.ranks < 2)
    more.ranks = 2;
  for (int keys = 0; keys <= (s->told == 0) && !status && !hopes->full_shard; keys++) {
    struct advice advice;
    status = try_together(&more, keys ? s->with : none, "shard.strategy=full_shard", &advice);
    if (!status && advice.possible && leaves_room(&advice.measure))
      *hopes = (struct advise_hopes){.ranks = true, .keys = keys, .full_shard = true};
  }
  return status;
}

enum status advise_fit(const struct advise_case *job, advise_tell *tell_advice, void *to,
                       bool *fits, struct advise_hopes *hopes)
{
  struct search s = {.job = job, .tell = tell_advice, .to = to};
  enum status status = measure(job, job->plans, NULL, &s.now);
  if (!status)
    status = advise_try(job, "", NULL, &s.same);
  if (!status)
    status = try_alone(&s);
  if (!status && s.told == 0)
    status = add_changes(&s);
  if (!status && s.together.fits)
    status = drop_changes(&s);
  if (!status && s.together.fits)
    tell(&s, &s.together);
  *hopes = (struct advise_hopes){.ranks = leaves_room(&s.now)};
  if (!status && s.told == 0) {
    bool shorter = false;
    const bool together = leaves_room(&s.together.measure);
    status = try_lengths(&s, &shorter);
    if (!hopes->ranks && s.told == 0 && (together || shorter))
      *hopes =
          (struct advise_hopes){.ranks = true, .keys = *s.together.name != 0, .shorter = !together};
  }
  if (!status && !splits(&s.now) && (!hopes->ranks || hopes->shorter))
    status = try_full_shard(&s, hopes);
  if (!status && s.told == 0 && *s.together.name)
    tell(&s, &s.together);
  *fits = s.told > 0;
  return status;
}
