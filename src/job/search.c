/* Variants are rows of text. Each is resolved, planned and priced as a deck. */
#include "job/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "job/choose.h"

/* FEW: micro-batches of a step that is planned roughly. MOST_WORK: instructions that a descent may
 * plan, about a second. MOST_ADVICE: for advice. */
enum { FEW = 4, MOST_WORK = 150000, MOST_ADVICE = 10 * MOST_WORK };

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

struct changes {
  char text[640];
};

static bool is_key(const char *word, const char *key)
{
  return strncmp(word, key, strlen(key)) == 0 && word[strlen(key)] == '=';
}

/* In generation the sequence is the capacity of the cache. */
static int64_t value_of(const struct search *job, const char *word)
{
  const struct plan_input *input = &job->plans[0]->input;
  if (is_key(word, "data.micro_batch"))
    return input->shape.rank_batch;
  if (is_key(word, "shard.group"))
    return job->local_ranks;
  return input->mode == PLAN_GENERATE ? input->capacity : input->shape.sequence;
}

static void expand_word(const struct search *job, const char *word, struct changes *out)
{
  const char *value = strchr(word, '=') + 1;
  const long long factor = strtoll(value + (*value == '*' || *value == '/'), NULL, 10);
  const long long now = *value == '*' || *value == '/' ? value_of(job, word) : 0;
  append_text(out->text, sizeof out->text, "%s%.*s", *out->text ? " " : "", (int)(value - word),
              word);
  if (*value == '*')
    append_text(out->text, sizeof out->text, "%lld", now * factor);
  else if (*value == '/')
    append_text(out->text, sizeof out->text, "%lld", (now + factor - 1) / factor);
  else if (strcmp(value, "units") == 0)
    append_text(out->text, sizeof out->text, "%d", job->plans[0]->input.model->units);
  else
    append_text(out->text, sizeof out->text, "%s", value);
}

static struct changes expand(const struct search *job, const char *changes)
{
  struct changes words, out = {""};
  char *rest = NULL;
  snprintf(words.text, sizeof words.text, "%s", changes);
  for (char *word = strtok_r(words.text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
    expand_word(job, word, &out);
  return out;
}

static bool changes_numbers(const char *changes)
{
  for (const struct option *option = deck_table; option->name; option++) {
    const char *at = strstr(changes, option->name);
    if (option->effect != EFFECT_NONE && !option->chosen && at && is_key(at, option->name))
      return true;
  }
  return false;
}

/* Plans the same mode as `plan`, which is of the job itself, for another deck on other ranks. The
 * plan has no waits, because only predicted times need them. A step has at most `most_micros`
 * micro-batches, so that it is planned faster. 0: any number. */
static enum status plan_deck(const struct search *job, const struct plan *plan,
                             const struct deck *deck, const struct choice *at,
                             const struct model *model, int64_t most_micros, struct plan **out)
{
  const struct plan_input *now = &plan->input;
  const int local_ranks = at->local_ranks;
  const bool same = at->ranks == now->ranks && local_ranks == job->local_ranks;
  struct plan_input input = {.mode = now->mode,
                             .rank = same ? now->rank : 0,
                             .ranks = at->ranks,
                             .model = model ? model : now->model,
                             .device = now->device,
                             .threads = now->threads};
  enum status status = job_shape(deck, job->use, local_ranks, &input) ?: plan_check_length(&input);
  if (status)
    return status;
  input.policy.warmup = now->policy.warmup;
  if (most_micros > 0 && input.shape.micros > most_micros) {
    input.shape.micros = most_micros;
    input.shape.rank_batch = most_micros * input.shape.micro_batch;
  }
  input.shape.uneven = job->plans[0]->input.shape.uneven;
  input.shape.two_hops &= !input.shape.uneven;
  if (same && input.shape.group == now->shape.group) /* the ranks have agreed on their nodes */
    input.policy.one_node = now->policy.one_node;
  return plan_build(&input, out) ?: plan_place(*out);
}

enum status search_price(const struct plan *plan, const struct plan_rates *rates, double *step_s)
{
  struct plan_rates step = *rates;
  struct plan_forecast forecast;
  step.step_only = true;
  const enum status status = plan_simulate(plan, &step, &forecast);
  if (!status)
    *step_s = forecast.step_s;
  return status;
}

/* Measures a step of at most `most_micros` micro-batches. 0: all of them. */
static enum status measure_some(const struct search *job, const struct deck *deck,
                                const struct model *model, int64_t most_micros, struct choice *out)
{
  struct plan *plan[JOB_PLANS] = {NULL};
  enum status status = STATUS_OK;
  for (int p = 0; p < job->n && !status; p++)
    status = plan_deck(job, job->plans[p], deck, out, model, most_micros, &plan[p]);
  if (!status)
    job->judge(job->arg, out->local_ranks, job->n, (const struct plan *const *)plan, &out->rooms);
  if (!status && job->links)
    out->sent = (double)(plan_traffic(plan[0], job->links).all /
                         traffic_nodes(out->ranks, job->links->local_ranks));
  if (!status && job->rates && (!job->fitting || rooms_fit(&out->rooms)))
    status = plan_order(plan[0]) ?: search_price(plan[0], job->rates, &out->step_s);
  if (!status) {
    for (int p = 0; p < job->n; p++)
      out->instructions += plan[p]->n;
    out->micros = deck->data.batch / (out->ranks * plan[0]->input.shape.micro_batch);
  }
  for (int p = 0; p < job->n; p++)
    plan_destroy(plan[p]);
  return status;
}

/* Each micro-batch beyond FEW takes as much of everything as the last one of them. */
static enum status extrapolate(const struct search *job, const struct deck *deck,
                               const struct model *model, struct choice *out)
{
  const double more = (double)(out->micros - FEW);
  struct choice less = *out;
  const enum status status = measure_some(job, deck, model, FEW - 1, &less);
  if (status)
    return status;
  out->instructions = less.instructions;
  out->step_s += more * (out->step_s - less.step_s);
  out->sent += more * (out->sent - less.sent);
  for (int room = 0; room < ROOMS; room++)
    out->rooms.need[room] += more * fmax(0, out->rooms.need[room] - less.rooms.need[room]);
  return STATUS_OK;
}

static enum status measure(const struct search *job, const struct deck *deck, struct choice *out)
{
  struct model *model = NULL;
  const struct plan_input *now = &job->plans[0]->input;
  enum status status = STATUS_OK;
  if (now->model->frozen > 0 && out->ranks != now->ranks) /* it is packed for now->ranks */
    status = job_model(deck, now->model->config.compute, out->ranks, &model);
  status = status ?: measure_some(job, deck, model, job->rough ? FEW : 0, out);
  if (!status && job->rough && out->micros > FEW)
    status = extrapolate(job, deck, model, out);
  model_destroy(model);
  return status;
}

/* Keys that contradict each other, or that this build does not support, are no failure of the
 * search. */
static enum status unless_impossible(enum status status)
{
  return status == STATUS_USAGE || status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

enum status search_try(const struct search *job, const char *changes, int ranks, int local_ranks,
                       struct choice *out)
{
  const struct plan_input *input = &job->plans[0]->input;
  const struct changes set = expand(job, changes);
  struct deck deck;
  *out = (struct choice){.ranks = ranks > 0 ? ranks : input->ranks,
                         .local_ranks = ranks > 0 ? local_ranks : job->local_ranks};
  enum status status = deck_vary(job->deck, set.text, &deck, out->changes, sizeof out->changes);
  if (status)
    return unless_impossible(status);
  status = measure(job, &deck, out);
  deck_destroy(&deck);
  out->possible = !status;
  out->fits = !status && rooms_fit(&out->rooms);
  out->changes_numbers = changes_numbers(out->changes);
  return unless_impossible(status);
}

enum status search_plan(const struct search *job, const char *changes, struct plan **out)
{
  struct deck deck;
  struct changes differ;
  const struct choice at = {.ranks = job->plans[0]->input.ranks, .local_ranks = job->local_ranks};
  *out = NULL;
  enum status status = deck_vary(job->deck, changes, &deck, differ.text, sizeof differ.text);
  if (status)
    return unless_impossible(status);
  status = plan_deck(job, job->plans[0], &deck, &at, NULL, 0, out) ?: plan_order(*out);
  deck_destroy(&deck);
  if (status) {
    plan_destroy(*out);
    *out = NULL;
  }
  return unless_impossible(status);
}

void search_append_changes(const struct choice *choice, char *text, size_t size)
{
  const bool clips = strstr(choice->changes, "optim.clip=0");
  append_text(text, size, "%s%s", choice->changes,
              clips ? " (gradients do not wait for the norm, which changes the numbers)"
              : choice->changes_numbers ? " (which changes the numbers)"
                                        : "");
}

/* ---- the best settings ---- */

/* Bytes by which memories are too small. */
static double missing(const struct rooms *rooms)
{
  double bytes = 0;
  for (int room = 0; room < ROOMS; room++)
    if (rooms_is_short(rooms, (enum room)room))
      bytes += rooms->need[room] - rooms->have[room];
  return bytes;
}

static bool is_alike(const struct choice *a, const struct choice *b)
{
  return a->step_s == b->step_s && a->sent == b->sent &&
         !memcmp(a->rooms.need, b->rooms.need, sizeof a->rooms.need);
}

/* 0: it takes only time. 1: a disk too. From 2 on: it changes the numbers. */
static int cost_of(const struct choice *choice)
{
  return 2 * choice->changes_numbers + (choice->rooms.need[ROOM_DISK] > 0);
}

/* A choice that fits is better than one that is too large, then the cheaper one, then the faster
 * one. */
static bool is_better(const struct choice *a, const struct choice *b)
{
  if (!a->fits || !b->fits)
    return a->fits != b->fits ? a->fits : missing(&a->rooms) < missing(&b->rooms);
  return cost_of(a) != cost_of(b) ? cost_of(a) < cost_of(b) : a->step_s < b->step_s;
}

/* Keeps the list sorted, and each choice once. */
static void insert(const struct choice *new, struct settings *list)
{
  int at = list->n < SEARCH_SETTINGS ? list->n : SEARCH_SETTINGS - 1;
  for (int i = 0; i < list->n; i++)
    if (is_alike(&list->of[i], new))
      return;
  if (list->n == SEARCH_SETTINGS && !is_better(new, &list->of[at]))
    return;
  for (; at > 0 && is_better(new, &list->of[at - 1]); at--)
    list->of[at] = list->of[at - 1];
  list->of[at] = *new;
  list->n += list->n < SEARCH_SETTINGS;
}

/* Moves a choice to the front, from its place in the list or in place of the last one. */
static void put_first(const struct choice *best, struct settings *list)
{
  int at = 0;
  while (at < list->n - 1 && !is_alike(&list->of[at], best))
    at++;
  memmove(&list->of[1], &list->of[0], (size_t)at * sizeof list->of[0]);
  list->of[0] = *best;
}

/* Values of keys. value[0] has all keys of the axis that the program may choose, and their
 * defaults. None of their values changes what is learned. */
#define STRATEGY(name, group) "shard.strategy=" name " shard.group=" group
#define MASTERS "tiers.params=host tiers.optimizer=host"
enum { SUMS = 1, NODES = 2, TIERS = 4, LENGTH = 8, CODEC = 16 };
/* clang-format off */
static const struct axis {
  int traits;    /* SUMS: another value may change the order of sums. TIERS: on one rank and with
                    hybrid_shard. NODES: only if all nodes have as many ranks. LENGTH: only if all
                    others are not enough. CODEC: between nodes, by measured rates, and not advised
                    because it takes memory */
  int chosen[2]; /* the first values, which the program may choose on a host and on a device with
                    memory of its own. The others are only advised */
  const char *value[8];
} axes[] = {
    {SUMS | NODES, {5, 5},
     {STRATEGY("full_shard", "auto"), STRATEGY("hybrid_shard", "*1"),
      STRATEGY("hybrid_shard", "*2"), STRATEGY("hybrid_shard", "*4"),
      STRATEGY("hybrid_shard", "*8")}},
    {SUMS, {8, 8},
     {"data.micro_batch=0", "data.micro_batch=/2", "data.micro_batch=/4", "data.micro_batch=/8",
      "data.micro_batch=/16", "data.micro_batch=/32", "data.micro_batch=/64",
      "data.micro_batch=1"}},
    {0, {4, 6},
     {"tiers.activations=keep", "tiers.activations=recompute:4", "tiers.activations=recompute:2",
      "tiers.activations=recompute", "tiers.activations=keep_host:2", "tiers.activations=host",
      "tiers.activations=nvme"}},
    {TIERS, {0, 2},
     {"tiers.params=device tiers.optimizer=device", MASTERS,
      MASTERS " optim.state=host optim.state_share=1", MASTERS " optim.state=nvme"}},
    {TIERS, {0, 4},
     {"tiers.resident=0", "tiers.resident=1", "tiers.resident=3", "tiers.resident=6"}},
    {0, {6, 6},
     {"shard.gathered=-1", "shard.gathered=units", "shard.gathered=12", "shard.gathered=4",
      "shard.gathered=1", "shard.gathered=0"}},
    {0, {2, 2}, {"tiers.working=gather", "tiers.working=keep"}},
    {0, {4, 4}, {"shard.prefetch=1", "shard.prefetch=2", "shard.prefetch=3", "shard.prefetch=0"}},
    {CODEC, {2, 2}, {"compress.grads.codec=none", "compress.grads.codec=exponent"}},
    {CODEC, {2, 2}, {"compress.weights.codec=none", "compress.weights.codec=exponent"}},
    {0, {0}, {"tiers.residual=host", "tiers.residual=nvme"}},
    {0, {0}, {"shard.reduce=micro"}},
    {0, {0}, {"transfer.params=shard"}},
    {0, {0}, {"transfer.grads=gpu_reduce"}},
    {0, {0}, {"optim.state_share=1", "optim.state_share=0.5"}},
    {0, {0}, {"optim.update=deferred", "optim.clip=0 optim.update=immediate shard.gathered=0"}},
    {0, {0}, {"optim.moments=bf16"}},
    {0, {0}, {"train.frozen=bf16", "train.frozen=fp8", "train.frozen=nf4"}},
    {0, {0}, {"lora.base=fp8", "lora.base=nf4"}},
    {LENGTH, {0}, {"data.sequence=/2", "data.sequence=/8"}},
};
/* clang-format on */
enum { AXES = sizeof axes / sizeof *axes, VALUES = sizeof axes->value / sizeof *axes->value };

const char *search_axis_value(int axis, int value, bool *sums)
{
  if (axis >= AXES || value >= axes[axis].chosen[true])
    return NULL;
  *sums = axes[axis].traits & SUMS;
  return axes[axis].value[value];
}

bool search_may_choose(const char *key, const char *value)
{
  for (int a = 0; a < AXES; a++) {
    if (!(axes[a].traits & CODEC) || !is_key(axes[a].value[0], key))
      continue;
    for (int v = 0; axes[a].value[v]; v++)
      if (!strcmp(strchr(axes[a].value[v], '=') + 1, value))
        return true;
    return false;
  }
  return true;
}

/* With `same` it looks for advice: also values of keys that the deck sets, and only those that
 * lower the need of a memory that is short in `now`. */
struct descent {
  const struct search *job;
  bool sums;          /* axes that may change the order of sums, too */
  bool lengths;       /* LENGTH, too */
  int at[AXES];       /* values of the best choice, counted from 1; 0: that of the deck */
  int64_t work, most; /* instructions that were planned, and that may be */
  struct settings *out;
  struct choice best;
  const struct choice *same; /* the deck, measured as its variants are */
  struct rooms now;          /* of the plans */
};

/* Whether the deck leaves the choice of the axis' keys to the program. Units with codecs of their
 * own leave none for gradients to the others. */
static bool leaves(const struct deck *deck, const struct axis *axis, bool apart, bool nodes)
{
  bool free = axis->chosen[apart] > 0 && (!(axis->traits & CODEC) || nodes) &&
              (deck->compress.units.n == 0 || !is_key(axis->value[0], "compress.grads.codec"));
  for (const struct option *option = deck_table; option->name; option++) {
    const char *at = option->chosen ? strstr(axis->value[0], option->name) : NULL;
    free &= !at || !is_key(at, option->name) || options_is_free(deck->set, option);
  }
  return free;
}

bool search_is_free(const struct deck *deck, bool apart, bool nodes)
{
  bool free = false;
  for (int a = 0; a < AXES; a++)
    free |= leaves(deck, &axes[a], apart, nodes);
  return free;
}

const char *search_codec(const struct deck *deck, bool nodes)
{
  for (int a = 0; a < AXES; a++)
    if (axes[a].traits & CODEC && leaves(deck, &axes[a], true, nodes))
      return strchr(axes[a].value[1], '=') + 1;
  return NULL;
}

/* Whether the axis may change the order of sums of the best choice. */
static bool is_of_sums(const struct descent *d, const struct axis *axis)
{
  const bool hybrid = d->at[0] > 0 || d->job->deck->shard.strategy == STRATEGY_HYBRID_SHARD;
  return axis->traits & SUMS ||
         (axis->traits & TIERS && (hybrid || d->job->plans[0]->input.ranks == 1));
}

static bool is_apart(const struct descent *d)
{
  return !d->job->plans[0]->input.device->host_memory;
}

static bool is_free(const struct descent *d, const struct axis *axis)
{
  const struct search *job = d->job;
  const bool known = job->rates && job->rates->encode_bytes[CODEC_exponent] > 0;
  return (d->sums || !is_of_sums(d, axis)) &&
         !(job->plans[0]->input.shape.uneven && axis->traits & NODES) &&
         (d->lengths || !(axis->traits & LENGTH)) &&
         (!(axis->traits & CODEC) || (known && !d->same)) &&
         (d->same ||
          leaves(job->deck, axis, is_apart(d), job->local_ranks < job->plans[0]->input.ranks));
}

/* `all`: of all axes, otherwise of those of the order of sums. */
static struct changes changes_at(const struct descent *d, const int at[AXES], bool all)
{
  struct changes set = {""};
  for (int a = 0; a < AXES; a++)
    if (at[a] > 0 && (all || is_of_sums(d, &axes[a])))
      append_text(set.text, sizeof set.text, "%s%s", *set.text ? " " : "",
                  axes[a].value[at[a] - 1]);
  return set;
}

/* Whether a memory that is short is needed less than by the deck. */
static bool lowers(const struct descent *d, const struct choice *choice)
{
  bool lower = false;
  for (int room = 0; room < ROOMS; room++)
    lower |= rooms_is_short(&d->now, (enum room)room) &&
             choice->rooms.need[room] < d->same->rooms.need[room];
  return lower;
}

static enum status try_point(struct descent *d, const int at[AXES], struct choice *out)
{
  const enum status status = search_try(d->job, changes_at(d, at, true).text, 0, 0, out);
  d->work += out->instructions;
  out->possible &= !d->same || lowers(d, out);
  if (!status && out->possible && !d->same)
    insert(out, d->out);
  return status;
}

/* A gain below the first is within the error of a forecast, and is not worth another value than the
 * default. A loss below the second is worth a return to it. */
static const double least_gain = 0.01, most_loss = 0.002;

bool search_gains(const struct choice *choice, const struct choice *than)
{
  return choice->step_s <= (1 - least_gain) * than->step_s;
}

static bool is_worth(const struct choice *choice, const struct choice *best, bool is_default)
{
  if (!choice->possible)
    return false;
  if (!choice->fits || !best->fits || cost_of(choice) != cost_of(best))
    return is_better(choice, best);
  return is_default ? choice->step_s <= (1 + most_loss) * best->step_s : search_gains(choice, best);
}

/* The best value of one axis while all others stay. */
static enum status descend_axis(struct descent *d, int axis)
{
  const int values = d->same ? VALUES : axes[axis].chosen[is_apart(d)];
  int best = d->at[axis], at[AXES];
  enum status status = STATUS_OK;
  memcpy(at, d->at, sizeof at);
  for (int v = 0; v <= values && !status && d->work < d->most; v++) {
    struct choice choice;
    at[axis] = v;
    if (v == d->at[axis] || (v > 0 && !axes[axis].value[v - 1]) || (v == 1 && !d->same))
      continue;
    status = try_point(d, at, &choice);
    if (!status && is_worth(&choice, &d->best, v == 0)) {
      d->best = choice;
      best = v;
    }
  }
  d->at[axis] = best;
  return status;
}

/* Coordinate descent. It ends when no axis has a better value, or after a fixed amount of work, so
 * that the result does not depend on the speed of this processor. */
static enum status descend(struct descent *d)
{
  bool moves = true;
  enum status status = STATUS_OK;
  while (moves && !status && d->work < d->most) {
    const struct choice before = d->best;
    for (int a = 0; a < AXES && !status; a++)
      if (is_free(d, &axes[a]))
        status = descend_axis(d, a);
    moves = strcmp(before.changes, d->best.changes) != 0;
  }
  return status;
}

enum status search_best(const struct search *job, bool sums, struct settings *out)
{
  struct descent d = {.job = job, .sums = sums, .most = MOST_WORK, .out = out};
  out->n = 0;
  const enum status status = try_point(&d, d.at, &d.best) ?: descend(&d);
  out->best = d.best;
  put_first(&d.best, out);
  snprintf(out->sums, sizeof out->sums, "%s", expand(job, changes_at(&d, d.at, false).text).text);
  return status;
}

/* ---- keys that make it fit ---- */

/* Keeps the best choice, if the plans of the whole step fit. */
static enum status advise(struct descent *d, const struct search *job)
{
  struct choice choice;
  if (!d->best.fits)
    return STATUS_OK;
  const enum status status = search_try(job, d->best.changes, 0, 0, &choice);
  choice.step_s = d->best.step_s;
  if (!status && choice.fits)
    insert(&choice, d->out);
  return status;
}

/* The best value of each axis. */
static enum status try_alone(struct descent *d, const struct search *job)
{
  enum status status = STATUS_OK;
  for (int a = 0; a < AXES && !status; a++) {
    d->best = *d->same;
    d->work = 0;
    if (is_free(d, &axes[a]))
      status = descend_axis(d, a) ?: advise(d, job);
    d->at[a] = 0;
  }
  return status;
}

/* Drops superfluous changes. */
static enum status drop_changes(struct descent *d)
{
  enum status status = STATUS_OK;
  for (int a = AXES - 1; a >= 0 && !status; a--) {
    struct choice choice;
    const int value = d->at[a];
    d->at[a] = 0;
    if (value > 0)
      status = try_point(d, d->at, &choice);
    if (value > 0 && !status && choice.possible && choice.fits)
      d->best = choice;
    else
      d->at[a] = value;
  }
  return status;
}

/* Shorter sequences only if all else is not enough. `*together`: all else. */
static enum status try_together(struct descent *d, const struct search *job,
                                struct choice *together)
{
  d->best = *d->same;
  d->work = 0;
  enum status status = descend(d);
  *together = d->best;
  if (!status && !d->best.fits) {
    d->work = 0;
    d->lengths = true;
    status = descend(d);
  }
  if (!status && d->best.fits)
    status = drop_changes(d);
  return status ?: advise(d, job);
}

/* ---- more ranks that make it fit ---- */

enum { MOST_RANKS = 4096 };

/* Numbers of ranks with which the batch can be split, or grows to a sequence per micro-batch. A
 * node has `local` ranks, or all of them. */
struct counts {
  int n, local, ranks[MOST_RANKS];
};

/* Sequences of a batch that `ranks` ranks can share; 0: none. The two of a pair stay together. */
static int64_t batch_for(const struct search *job, int ranks)
{
  const struct deck *deck = job->deck;
  const int64_t least = deck->train.objective == OBJECTIVE_DPO ? 2 : 1,
                micro = deck->data.micro_batch > 0 ? deck->data.micro_batch : least,
                each = micro * ranks;
  if (job->use == JOB_EVAL || job->use == JOB_GENERATE || deck->data.batch % each == 0)
    return deck->data.batch;
  return each > deck->data.batch ? each : 0;
}

static void list_counts(const struct search *job, int local, struct counts *out)
{
  const int now = job->plans[0]->input.ranks;
  const bool fewer = local < job->local_ranks;
  out->n = 0;
  out->local = local;
  for (int ranks = fewer ? now : now + 1; ranks <= MOST_RANKS; ranks++)
    if ((ranks <= local || ranks % local == 0) && batch_for(job, ranks) > 0)
      out->ranks[out->n++] = ranks;
}

/* Fewer nodes, or as many nodes with fewer ranks. */
static bool is_smaller(const struct choice *a, const struct choice *b)
{
  const int of_a = (a->ranks + a->local_ranks - 1) / a->local_ranks,
            of_b = (b->ranks + b->local_ranks - 1) / b->local_ranks;
  return of_a != of_b ? of_a < of_b : a->ranks < b->ranks;
}

static enum status try_count(const struct search *job, const char *changes,
                             const struct counts *counts, int i, struct choice *out)
{
  const int ranks = counts->ranks[i], local = ranks < counts->local ? ranks : counts->local;
  struct changes set = {""};
  append_text(set.text, sizeof set.text, "%s data.batch=%lld", changes,
              (long long)batch_for(job, ranks));
  return search_try(job, set.text, ranks, local, out);
}

/* The first of the next larger numbers that fits, in steps of a factor of four, and the last one
 * before it. Far too many ranks may need more, because their parts are padded. */
static enum status bracket(const struct search *job, const char *changes,
                           const struct counts *counts, int *low, int *high, struct choice *out)
{
  enum { FACTOR = 4 };
  enum status status = STATUS_OK;
  *low = -1;
  for (int i = 0; i < counts->n && !status && !out->fits; *low = *high) {
    *high = i;
    status = try_count(job, changes, counts, i, out);
    if (out->fits)
      break;
    for (const int next = FACTOR * counts->ranks[i]; i < counts->n && counts->ranks[i] < next; i++)
      ;
  }
  return status;
}

/* Bisects for the smallest number that fits. *best: the smallest so far, or what the most ranks
 * need. */
static enum status bisect(const struct search *job, const char *changes,
                          const struct counts *counts, struct choice *best)
{
  struct choice choice = {.fits = false};
  int low, high = 0;
  enum status status = bracket(job, changes, counts, &low, &high, &choice);
  while (high - low > 1 && choice.fits && !status) {
    struct choice other;
    const int middle = low + (high - low) / 2;
    status = try_count(job, changes, counts, middle, &other);
    *(other.fits ? &high : &low) = middle;
    if (other.fits)
      choice = other;
  }
  if (!best->fits || (choice.fits && is_smaller(&choice, best)))
    *best = choice;
  return status;
}

/* Nodes with fewer ranks have more host memory for each, which matters only if it is short. */
static enum status try_ranks(const struct search *job, const struct rooms *now, const char *changes,
                             struct choice *best)
{
  const bool apart = !job->plans[0]->input.device->host_memory;
  struct counts *counts;
  enum status status = mem_new(MEM_META, 1, &counts);
  *best = (struct choice){.fits = false};
  for (int local = apart && job->node_ranks > 0 ? job->node_ranks : job->local_ranks;
       local > 0 && !status; local /= 2) {
    list_counts(job, local, counts);
    status = bisect(job, changes, counts, best);
    if (!rooms_is_short(now, ROOM_HOST) && !rooms_is_short(&best->rooms, ROOM_HOST))
      break;
  }
  mem_free(counts);
  return status;
}

/* full_shard splits all that ranks can split. */
static enum status try_more_ranks(const struct search *job, const struct rooms *now,
                                  const char *together, struct settings *out)
{
  static const char *const more[] = {"", "shard.strategy=full_shard shard.group=auto",
                                     "data.sequence=/8",
                                     "shard.strategy=full_shard shard.group=auto data.sequence=/8"};
  enum status status = STATUS_OK;
  struct choice best = {.fits = false};
  const int most = out->n == 0 ? 4 : 2;
  for (int i = 0; i < most && !best.fits; i++)
    for (int keys = 0; keys <= (out->n == 0) && !status && !best.fits; keys++) {
      struct changes set = {""};
      append_text(set.text, sizeof set.text, "%s %s", keys ? together : "", more[i]);
      status = try_ranks(job, now, set.text, &best);
    }
  if (!status && best.fits)
    out->of[out->n++] = best;
  return status;
}

/* Choices are priced with the rates of the job, or by nominal ones. */
enum status search_cures(const struct search *job, struct settings *out)
{
  const struct plan_input *input = &job->plans[0]->input;
  const struct plan_rates nominal =
      choose_nominal_rates(input->device, input->ranks, job->local_ranks);
  struct plan_rates rates = job->rates ? *job->rates : nominal;
  struct search priced = *job, whole = *job;
  struct choice same, together = {""};
  struct descent d = {.job = &priced, .sums = true, .most = MOST_ADVICE, .out = out, .same = &same};
  out->n = 0;
  choose_fill_rates(&nominal, &rates);
  priced.rates = &rates;
  priced.rough = priced.fitting = true;
  whole.rates = NULL;
  job->judge(job->arg, job->local_ranks, job->n, job->plans, &d.now);
  enum status status = search_try(&priced, "", 0, 0, &same);
  same.fits = false;
  status = status ?: try_alone(&d, &whole);
  if (!status && out->n == 0)
    status = try_together(&d, &whole, &together);
  out->n -= out->n == SEARCH_SETTINGS;
  if (!status && (rooms_is_short(&d.now, ROOM_DEVICE) || rooms_is_short(&d.now, ROOM_HOST)))
    status = try_more_ranks(&whole, &d.now, together.changes, out);
  if (!status && out->n == 0 && *together.changes)
    status = search_try(&whole, together.changes, 0, 0, &out->of[out->n++]);
  return status;
}
