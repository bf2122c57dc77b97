/* The result of a plan. Oracle: a second interpreter that knows no plan. The plans of all ranks run
 * on real arenas, with integer arithmetic modulo 2^32 instead of a model. Every operation hashes
 * everything that it reads into everything that it writes. Collectives move and add words between
 * the arenas of the ranks. A value that may be lost is overwritten with rubbish. After some steps
 * each rank's masters and moments must be those of a straightforward loop over ranks and
 * micro-batches that holds everything whole. So every update saw the sum over all ranks and
 * micro-batches of gradients of the right parameters, and the norm counted every element once.
 * Instructions run in the plan's order, and in random orders that heed nothing but lanes and waits.
 * In a 16-bit type parameters are the upper half of their master, and moments the lower half of
 * what they were. In fp8 a parameter is a byte that depends on it and on the unit's scales, and
 * these are sums over all of its parameters. */

#include "base/mem.h"
#include "fixture.h"
#include "plan/internal.h"
#include "tests/test.h"

enum {
  BLOCKS = 3,
  MOST_STAGES = 3 * BLOCKS + 2,
  MOST_UNITS = MOST_STAGES,
  STEPS = 3,
  MOST_RANKS = 12,
  RUBBISH = 0x5bad
};

static uint32_t mix(uint32_t a, uint32_t b)
{
  a = (a ^ b * UINT32_C(0x9e3779b1)) * UINT32_C(0x85ebca6b);
  return a ^ a >> 15;
}

struct words {
  uint32_t *at;
  int64_t n;
};

static uint32_t digest(struct words w)
{
  uint32_t sum = 0;
  for (int64_t i = 0; i < w.n; i++)
    sum += w.at[i] * (uint32_t)(2 * i + 1);
  return sum;
}

/* For 16-bit elements. */
static uint16_t *halves(struct words w)
{
  return (uint16_t *)w.at;
}

static uint16_t cast(uint32_t x)
{
  return (uint16_t)(x >> 16);
}

static uint32_t digest_params(struct words w, bool half)
{
  uint32_t sum = 0;
  if (!half)
    return digest(w);
  for (int64_t i = 0; i < 2 * w.n; i++)
    sum += halves(w)[i] * (uint32_t)(2 * i + 1);
  return sum;
}

static uint8_t *codes(struct words w)
{
  return (uint8_t *)w.at;
}

static uint8_t code(uint16_t x, uint32_t scales)
{
  return (uint8_t)(mix(x, scales) >> 7);
}

static uint32_t digest_codes(struct words w, uint32_t scales)
{
  uint32_t sum = mix(8, scales);
  for (int64_t i = 0; i < 4 * w.n; i++)
    sum += codes(w)[i] * (uint32_t)(2 * i + 1);
  return sum;
}

static void fill(struct words w, uint32_t seed, bool add)
{
  for (int64_t i = 0; i < w.n; i++)
    w.at[i] = (add ? w.at[i] : 0) + mix(seed, (uint32_t)i);
}

static void spoil(struct words w)
{
  fill(w, RUBBISH, false);
}

/* ---- the arithmetic that both sides share ---- */

/* Of an operation, and of what it reads. */
static uint32_t mix_all(const uint32_t *of, size_t n)
{
  uint32_t seed = of[0];
  for (size_t i = 1; i < n; i++)
    seed = mix(seed, of[i]);
  return seed;
}
#define SEED(...)                                                                                  \
  mix_all((const uint32_t[]){__VA_ARGS__}, sizeof(uint32_t[]){__VA_ARGS__} / sizeof(uint32_t))
enum { EMBED = 1, FORWARD, SAVED, LOSS, BACKWARD, EMBED_BACKWARD };

static uint32_t squares(struct words w)
{
  uint32_t sum = 0;
  for (int64_t i = 0; i < w.n; i++)
    sum += w.at[i] * w.at[i];
  return sum;
}

static uint32_t adam_m(uint32_t m, uint32_t g, bool half)
{
  return (3 * m + g) & (half ? 0xffff : ~UINT32_C(0));
}
static uint32_t adam_v(uint32_t v, uint32_t g, bool half)
{
  return (5 * v + g * g) & (half ? 0xffff : ~UINT32_C(0));
}
static uint32_t adam_step(uint32_t m, uint32_t v, uint32_t metrics)
{
  return 7 * m + mix(v, metrics);
}

/* ---- the loop that knows no plan ---- */

/* Parameters are whole units, frozen part and all; the rest is of trained parts. */
struct truth {
  const struct model *model;
  bool half, half_moments, immediate;
  struct words p[MOST_UNITS], m[MOST_UNITS], v[MOST_UNITS], g[MOST_UNITS];
  struct words scales[MOST_UNITS]; /* of units in fp8 */
  uint32_t loss[STEPS];
};

static uint32_t *new_words(int64_t n)
{
  void *at;
  must(mem_alloc(MEM_META, (size_t)n * sizeof(uint32_t), &at));
  return at;
}

static struct words make_words(int64_t n)
{
  return (struct words){n > 0 ? new_words(n) : NULL, n};
}

static void truth_create(struct truth *t, const struct plan *plan)
{
  const struct plan_input *input = &plan->input;
  *t = (struct truth){.model = input->model,
                      .half = input->device->compute != DTYPE_F32,
                      .half_moments = input->policy.moments != DTYPE_F32,
                      .immediate = input->policy.immediate};
  for (int u = 0; u < t->model->units; u++) {
    int64_t trained = plan->unit[u].layout.trained;
    t->p[u] = make_words(plan->unit[u].layout.flat);
    t->m[u] = make_words(trained);
    t->v[u] = make_words(trained);
    t->g[u] = make_words(trained);
    t->scales[u] =
        make_words(plan->unit[u].scales < 0 ? 0 : plan->buffer[plan->unit[u].scales].bytes / 4);
    fill(t->p[u], (uint32_t)(1000 + u), false);
  }
}

static void truth_destroy(struct truth *t)
{
  for (int u = 0; u < t->model->units; u++) {
    const struct words all[] = {t->p[u], t->m[u], t->v[u], t->g[u], t->scales[u]};
    for (int k = 0; k < 5; k++)
      mem_free(all[k].at);
  }
}

static uint32_t truth_codes(const struct truth *t, int u)
{
  const struct words scales = t->scales[u], bytes = make_words(t->p[u].n / 4);
  memset(scales.at, 0, (size_t)scales.n * sizeof(uint32_t));
  for (int64_t i = 0; i < t->p[u].n; i++)
    scales.at[i % scales.n] += cast(t->p[u].at[i]);
  const uint32_t sum = digest(scales);
  for (int64_t i = 0; i < t->p[u].n; i++)
    codes(bytes)[i] = code(cast(t->p[u].at[i]), sum);
  const uint32_t out = digest_codes(bytes, sum);
  mem_free(bytes.at);
  return out;
}

static uint32_t truth_params(const struct truth *t, int u)
{
  uint32_t sum = 0;
  if (t->scales[u].n > 0)
    return truth_codes(t, u);
  if (!t->half)
    return digest(t->p[u]);
  for (int64_t i = 0; i < t->p[u].n; i++)
    sum += cast(t->p[u].at[i]) * (uint32_t)(2 * i + 1);
  return sum;
}

static int64_t words_of(const struct plan *plan, const char *name)
{
  for (int b = 0; b < plan->buffers; b++)
    if (strcmp(plan->buffer[b].name, name) == 0)
      return plan->buffer[b].bytes / 4;
  return 0; /* no activations where no block learns */
}

/* The gradients of the stage's parameters, which follow those of the stages before it. */
static struct words truth_part(const struct truth *t, const struct plan *plan, int stage)
{
  const int u = t->model->stage[stage].unit;
  const struct layout_range part = model_stage_trained(t->model, stage, &plan->unit[u].layout);
  return (struct words){t->g[u].at ? t->g[u].at + part.begin : NULL, part.end - part.begin};
}

/* The backward pass goes through all, whoever learns. */
static uint32_t truth_micro(struct truth *t, const struct plan *plan, uint32_t load)
{
  uint32_t p[MOST_UNITS] = {0}, x[MOST_STAGES], saved[MOST_STAGES];
  struct words tokens = make_words(words_of(plan, "tokens")),
               targets = make_words(words_of(plan, "tokens")),
               stream = make_words(words_of(plan, "x.root"));
  const struct model_stage *of = t->model->stage;
  const int head = t->model->head, end = t->model->stages - 1;
  fill(tokens, load, false);
  fill(targets, load + 1, false);
  for (int u = 0; u < t->model->units; u++)
    p[u] = truth_params(t, u);
  fill(stream, SEED(EMBED, p[0], digest(tokens)), false);
  for (int s = 1; s < end; s++) {
    char name[40];
    snprintf(name, sizeof name, "saved.%s", of[s].name);
    struct words kept = make_words(words_of(plan, name));
    x[s - 1] = digest(stream);
    fill(kept, SEED(SAVED, p[of[s].unit], x[s - 1]), false);
    saved[s] = digest(kept);
    fill(stream, SEED(FORWARD, p[of[s].unit], x[s - 1]), false);
    mem_free(kept.at);
  }
  uint32_t loss = SEED(LOSS, p[head], digest(stream), digest(targets));
  fill(t->g[head], loss, true);
  fill(stream, loss + 1, false);
  for (int s = end - 1; s >= 1; s--) {
    uint32_t seed = SEED(BACKWARD, p[of[s].unit], x[s - 1], saved[s], digest(stream));
    fill(truth_part(t, plan, s), seed, true);
    fill(stream, seed + 1, true);
  }
  bool embeds = false; /* the kinds, as model.h has them */
  for (int i = 0; i < t->model->unit[0].params; i++)
    embeds |=
        !t->model->unit[0].param[i].frozen && t->model->unit[0].param[i].kind == PARAM_EMBEDDING;
  if (embeds)
    fill(t->g[0], SEED(EMBED_BACKWARD, digest(tokens), digest(stream)), true);
  mem_free(tokens.at);
  mem_free(targets.at);
  mem_free(stream.at);
  return loss;
}

static void truth_step(struct truth *t, const struct plan *plan, int step)
{
  for (int u = 0; u < t->model->units; u++)
    if (t->g[u].n > 0)
      memset(t->g[u].at, 0, (size_t)t->g[u].n * sizeof(uint32_t));
  for (int rank = 0; rank < plan->input.ranks; rank++)
    for (int m = 0; m < plan->input.shape.micros; m++)
      t->loss[step] += truth_micro(t, plan, SEED((uint32_t)step, (uint32_t)rank, (uint32_t)m));
  uint32_t metrics = 0;
  for (int u = 0; u < t->model->units; u++)
    metrics += squares(t->g[u]);
  metrics = t->immediate ? 0 : mix(metrics, t->loss[step]);
  for (int u = 0; u < t->model->units; u++)
    for (int64_t i = 0; i < t->g[u].n; i++) {
      t->m[u].at[i] = adam_m(t->m[u].at[i], t->g[u].at[i], t->half_moments);
      t->v[u].at[i] = adam_v(t->v[u].at[i], t->g[u].at[i], t->half_moments);
      t->p[u].at[i] += adam_step(t->m[u].at[i], t->v[u].at[i], metrics);
    }
}

/* ---- a codec whose messages lose nothing and are not the gradient ---- */

/* Its capacity is smaller for a vector longer than those of the plans, because messages that save
 * nothing are refused. */
static int64_t inverted_bytes(const struct codec *codec, int64_t n)
{
  (void)codec;
  return n >= 1 << 20 ? n : n * (int64_t)sizeof(uint32_t);
}

static const struct codec_ops inverted = {.name = "inverted", .bytes = inverted_bytes};
/* A second one receives the largest word of the group. */
static const struct codec_ops bounded = {
    .name = "bounded", .traits = CODEC_NEEDS_MAX, .bytes = inverted_bytes};

typedef enum status make(const char *name, const struct codec_settings *settings, bool feedback,
                         struct codec *out);
make __real_codec_make, __wrap_codec_make;
enum status __wrap_codec_make(const char *name, const struct codec_settings *settings,
                              bool feedback, struct codec *out)
{
  const bool inverts = name && strcmp(name, inverted.name) == 0,
             bounds = name && strcmp(name, bounded.name) == 0;
  if (!inverts && !bounds)
    return __real_codec_make(name, settings, feedback, out);
  *out = (struct codec){.ops = inverts ? &inverted : &bounded};
  return STATUS_OK;
}

/* ---- the machine that runs plans ---- */

struct machine {
  int ranks;
  struct model model;
  struct plan *plan[MOST_RANKS];
  bool half, half_moments;
  uint32_t *arena[MOST_RANKS][TIER_COUNT][2]; /* transient, persistent; members of a shard group
                                                 have one persistent TIER_SHARED */
  uint32_t loss[STEPS];
  int step;                         /* that the current instruction belongs to */
  uint32_t norm[MOST_RANKS][STEPS]; /* what METRICS has found */
  bool measured[MOST_RANKS][STEPS]; /* whether it has */
};

static struct words words_at(const struct machine *m, int rank, int buffer)
{
  const struct plan_buffer *b = &m->plan[rank]->buffer[buffer];
  return (struct words){m->arena[rank][b->tier][b->persistent] + b->offset / 4, b->bytes / 4};
}

/* The gradient of a speculative unit and the pending one change places after each step. */
static struct words exchanged(const struct machine *m, int rank, int buffer)
{
  const struct plan *plan = m->plan[rank];
  struct words w = words_at(m, rank, buffer);
  const int root = plan_root(plan, buffer, NULL);
  for (int u = 0; u < m->model.units && m->step % 2; u++) {
    const int pending = plan->unit[u].pending;
    if (pending < 0)
      continue;
    const int grads = plan->instr[fixture_find(plan, OP_UPDATE, u, -1)].use[UPDATE_GRADS].buffer;
    if (root == grads || root == pending)
      w.at += words_at(m, rank, root == grads ? pending : grads).at - words_at(m, rank, root).at;
  }
  return w;
}

static struct words use_words(const struct machine *m, int rank, int i, int k)
{
  return exchanged(m, rank, m->plan[rank]->instr[i].use[k].buffer);
}

/* Fills buffers of parameters, and of moments, which begin as zero, in their type. */
static uint32_t element(struct words w, int64_t i, bool half)
{
  return half ? halves(w)[i] : w.at[i];
}

static void set_element(struct words w, int64_t i, uint32_t value, bool half)
{
  if (half)
    halves(w)[i] = (uint16_t)value;
  else
    w.at[i] = value;
}

static void load_part(struct machine *m, int rank, int buffer, struct layout_range range,
                      const struct words *whole, bool half)
{
  if (buffer < 0)
    return;
  struct words part = words_at(m, rank, buffer);
  const int64_t n = part.n * (half ? 2 : 1);
  assert_true(n == range.end - range.begin ||
              (m->plan[rank]->buffer[buffer].dtype == DTYPE_U8 && n > range.end - range.begin));
  for (int64_t i = 0; i < range.end - range.begin; i++)
    set_element(part, i, whole->at[range.begin + i] >> (half ? 16 : 0), half);
}

/* Messages of frozen parts become their elements, or the other way round. */
static void invert_frozen(const struct machine *m, int rank, int u)
{
  const struct plan_unit *unit = &m->plan[rank]->unit[u];
  if (unit->frozen < 0 || unit->policy.frozen != DTYPE_U8)
    return;
  const struct words w = words_at(m, rank, unit->frozen);
  for (int64_t e = 0; e < w.n; e++)
    w.at[e] = ~w.at[e];
}

/* The rest of a buffer around a master is rubbish until it is gathered. */
static void load_masters(struct machine *m, const struct truth *t)
{
  for (int rank = 0; rank < m->ranks; rank++)
    for (int u = 0; u < m->model.units; u++) {
      const struct plan *plan = m->plan[rank];
      if (plan->unit[u].master >= 0)
        spoil(words_at(m, rank, plan_root(plan, plan->unit[u].master, NULL)));
      load_part(m, rank, plan->unit[u].master, plan->unit[u].owned, &t->p[u], false);
      load_part(m, rank, plan->unit[u].frozen, plan->unit[u].frozen_owned, &t->p[u],
                plan->unit[u].policy.frozen == DTYPE_BF16);
      invert_frozen(m, rank, u);
      load_part(m, rank, plan->unit[u].shared, (struct layout_range){0, plan->unit[u].layout.flat},
                &t->p[u], m->half);
      load_part(m, rank, plan->unit[u].working, plan->unit[u].owned, &t->p[u], m->half);
      load_part(m, rank, plan->unit[u].copy, (struct layout_range){0, plan->unit[u].layout.flat},
                &t->p[u], m->half);
    }
}

static void create_arenas(struct machine *m, int rank)
{
  const struct plan *plan = m->plan[rank];
  int first = rank / plan->input.shape.group * plan->input.shape.group;
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    m->arena[rank][tier][0] = new_words(plan->transient_bytes[tier] / 4);
    m->arena[rank][tier][1] = tier == TIER_SHARED && rank > first
                                  ? m->arena[first][tier][1]
                                  : new_words(plan->persistent_bytes[tier] / 4);
  }
}

static void machine_create(struct machine *m, const struct point *point)
{
  *m = (struct machine){
      .ranks = point->ranks, .half = point->half, .half_moments = point->moments != DTYPE_F32};
  fixture_model_of(&m->model, BLOCKS, point);
  for (int rank = 0; rank < m->ranks; rank++) {
    m->plan[rank] = fixture_plan(&m->model, point, rank);
    create_arenas(m, rank);
  }
}

static void machine_destroy(struct machine *m)
{
  for (int rank = 0; rank < m->ranks; rank++) {
    bool first = mesh_index(&m->plan[rank]->mesh, MESH_SHARD, rank) == 0;
    for (int tier = 0; tier < TIER_COUNT; tier++) {
      mem_free(m->arena[rank][tier][0]);
      if (tier != TIER_SHARED || first)
        mem_free(m->arena[rank][tier][1]);
    }
    plan_destroy(m->plan[rank]);
  }
  fixture_free(&m->model);
}

/* Members of rank's group for a collective: every `stride`-th rank from `first`. */
struct members {
  int first, stride, n, index;
};

static struct members members_of(const struct machine *m, int rank, int i)
{
  const struct plan *plan = m->plan[rank];
  const struct deck_shape *shape = &plan->input.shape;
  const int local = shape->local_ranks;
  if (plan->instr[i].attr.group == MESH_INSIDE)
    return (struct members){rank / local * local, 1, local, rank % local};
  if (plan->instr[i].attr.group == MESH_ACROSS)
    return (struct members){rank / shape->group * shape->group + rank % local, local,
                            shape->group / local, rank % shape->group / local};
  if (plan->instr[i].attr.group == MESH_NONE)
    return (struct members){rank, 1, 1, 0};
  bool replicas =
      plan->instr[i].attr.group == MESH_REPLICA ||
      (plan->instr[i].op == OP_GATHER_GRADS && plan->input.strategy != STRATEGY_NO_SHARD);
  if (replicas)
    return (struct members){rank % shape->group, shape->group, shape->ranks / shape->group,
                            rank / shape->group};
  return (struct members){rank / shape->group * shape->group, 1, shape->group, rank % shape->group};
}

static const struct plan_buffer *use_buffer(const struct machine *m, int rank, int i, int k)
{
  const struct plan *plan = m->plan[rank];
  return plan->instr[i].use[k].buffer < 0 ? NULL : &plan->buffer[plan->instr[i].use[k].buffer];
}

/* Element e of a shard, in fp32 or 16 bits. */
static uint16_t upper(const struct machine *m, int rank, int i, int k, int64_t e)
{
  const struct words w = use_words(m, rank, i, k);
  return use_buffer(m, rank, i, k)->dtype == DTYPE_F32 ? cast(w.at[e]) : halves(w)[e];
}

static void add_to_scales(struct machine *m, int rank, int i, int k, struct layout_range range)
{
  const struct words scales = use_words(m, rank, i, MEASURE_SCALES);
  if (!use_buffer(m, rank, i, k))
    return;
  assert_int_equal(use_buffer(m, rank, i, k)->elements, range.end - range.begin);
  for (int64_t e = range.begin; e < range.end; e++)
    scales.at[e % scales.n] += upper(m, rank, i, k, e - range.begin);
}

static void measure(struct machine *m, int i)
{
  for (int rank = 0; rank < m->ranks; rank++) {
    const struct plan *plan = m->plan[rank];
    const struct words scales = use_words(m, rank, i, MEASURE_SCALES);
    memset(scales.at, 0, (size_t)scales.n * sizeof(uint32_t));
    add_to_scales(m, rank, i, MEASURE_TRAINED, plan->unit[plan->instr[i].unit].owned);
    add_to_scales(m, rank, i, MEASURE_FROZEN, plan->unit[plan->instr[i].unit].frozen_owned);
  }
}

/* The first member has all sums first, then the others copy them. */
static void merge_scales(struct machine *m, int i)
{
  for (int copies = 0; copies < 2; copies++)
    for (int rank = 0; rank < m->ranks; rank++) {
      const struct members members = members_of(m, rank, i);
      const struct words mine = use_words(m, rank, i, MERGE_SCALES),
                         all = use_words(m, members.first, i, MERGE_SCALES);
      for (int64_t e = 0; e < mine.n && rank != members.first; e++)
        if (copies)
          mine.at[e] = all.at[e];
        else
          all.at[e] += mine.at[e];
    }
}

static void scale(struct machine *m, int i)
{
  for (int rank = 0; rank < m->ranks; rank++) {
    if (!use_buffer(m, rank, i, SCALE_CODES))
      continue;
    const struct words to = use_words(m, rank, i, SCALE_CODES);
    const uint32_t sum = digest(use_words(m, rank, i, SCALE_SCALES));
    for (int64_t e = 0; e < 4 * to.n; e++)
      codes(to)[e] = code(upper(m, rank, i, SCALE_TRAINED, e), sum);
  }
}

/* Member k's part in fp8. */
static void gather_codes(struct machine *m, int rank, int i, int k, int peer)
{
  const struct words whole = use_words(m, rank, i, GATHER_WHOLE);
  const int64_t n = use_buffer(m, peer, i, GATHER_SHARD)->elements;
  const uint32_t sum = digest(use_words(m, peer, i, GATHER_BY_SCALES));
  assert_int_equal(n * members_of(m, rank, i).n, 4 * whole.n);
  for (int64_t e = 0; e < n; e++)
    codes(whole)[k * n + e] = code(upper(m, peer, i, GATHER_SHARD, e), sum);
}

/* Gathers of masters in another type cast them. */
static void all_gather(struct machine *m, int i)
{
  for (int rank = 0; rank < m->ranks; rank++) {
    struct members members = members_of(m, rank, i);
    struct words whole = use_words(m, rank, i, 1);
    for (int k = 0; k < members.n; k++) {
      struct words part = use_words(m, members.first + k * members.stride, i, 0);
      if (use_buffer(m, rank, i, 1)->dtype == DTYPE_F8_E4M3 &&
          use_buffer(m, rank, i, 0)->dtype != DTYPE_F8_E4M3) {
        gather_codes(m, rank, i, k, members.first + k * members.stride);
        continue;
      }
      if (part.n * members.n == whole.n) {
        memmove(whole.at + k * part.n, part.at, (size_t)part.n * sizeof(uint32_t));
        continue;
      }
      assert_true(m->half && part.n * members.n == 2 * whole.n);
      for (int64_t e = 0; e < part.n; e++)
        halves(whole)[k * part.n + e] = cast(part.at[e]);
    }
  }
}

/* A message is the gradient with each bit inverted, unless it is the gradient itself. */
static uint32_t decoded(const struct instr *instr, uint32_t word)
{
  return instr->attr.codec.ops->traits & CODEC_IDENTITY ? word : ~word;
}

static void exchange_block(struct machine *m, int i, int rank, int64_t begin, int64_t words)
{
  const struct members members = members_of(m, rank, i);
  const struct words received = use_words(m, rank, i, EXCHANGE_RECEIVED);
  const int64_t part = words / members.n;
  for (int k = 0; k < members.n; k++) {
    const struct words sent = use_words(m, members.first + k * members.stride, i, EXCHANGE_SENT);
    assert_int_equal(sent.n, received.n);
    memcpy(received.at + begin + k * part, sent.at + begin + members.index * part,
           (size_t)part * sizeof(uint32_t));
  }
}

static uint32_t largest_word(struct words w)
{
  uint32_t largest = 0;
  for (int64_t e = 0; e < w.n; e++)
    largest = w.at[e] > largest ? w.at[e] : largest;
  return largest;
}

static void find_magnitude(struct machine *m, int i)
{
  for (int rank = 0; rank < m->ranks; rank++) {
    const struct members members = members_of(m, rank, i);
    const struct words all = use_words(m, rank, i, MAGNITUDE_ALL);
    assert_int_equal(all.n, members.n);
    for (int k = 0; k < members.n; k++)
      all.at[k] =
          largest_word(use_words(m, members.first + k * members.stride, i, MAGNITUDE_GRADS));
    use_words(m, rank, i, MAGNITUDE_LARGEST).at[0] = largest_word(all);
  }
}

static void exchange(struct machine *m, int i)
{
  const int blocks = m->plan[0]->instr[i].attr.blocks;
  for (int rank = 0; rank < m->ranks; rank++) {
    const int64_t words = use_words(m, rank, i, EXCHANGE_RECEIVED).n / blocks;
    for (int b = 0; b < blocks; b++)
      exchange_block(m, i, rank, b * words, words);
  }
}

static void decode_block(const struct instr *instr, struct words messages, struct words shard)
{
  for (int64_t e = 0; e < shard.n; e++) {
    uint32_t sum = instr->use[DECODE_SUM_SHARD].access == ACCESS_ADD ? shard.at[e] : 0;
    for (int64_t at = e; at < messages.n; at += shard.n)
      sum += decoded(instr, messages.at[at]);
    shard.at[e] = sum;
  }
}

static void decode_sum(const struct instr *instr, struct words messages, struct words shard)
{
  const int blocks = instr->attr.blocks;
  const int64_t words = messages.n / blocks, part = shard.n / blocks;
  for (int b = 0; b < blocks; b++)
    decode_block(instr, (struct words){messages.at + b * words, words},
                 (struct words){shard.at + b * part, part});
}

/* Whatever lies at the place of this rank's in the members' own memory. */
static struct words peer_words(const struct machine *m, int rank, int i, int peer)
{
  const struct plan_buffer *landed = &m->plan[rank]->buffer[m->plan[rank]->instr[i].use[0].buffer];
  assert_false(landed->persistent);
  return (struct words){m->arena[peer][TIER_SHARED][0] + landed->offset / 4, landed->bytes / 4};
}

/* Everybody has read before anybody goes on. */
static void sum_shared(struct machine *m, int i)
{
  for (int rank = 0; rank < m->ranks; rank++) {
    const struct members members = members_of(m, rank, i);
    const struct words shard = use_words(m, rank, i, 1);
    assert_int_equal(use_words(m, rank, i, 0).n, shard.n * members.n);
    for (int64_t e = 0; e < shard.n; e++) {
      uint32_t sum = m->plan[rank]->instr[i].use[1].access == ACCESS_ADD ? shard.at[e] : 0;
      for (int k = 0; k < members.n; k++)
        sum += decoded(&m->plan[rank]->instr[i],
                       peer_words(m, rank, i, members.first + k).at[members.index * shard.n + e]);
      shard.at[e] = sum;
    }
  }
  for (int rank = 0; rank < m->ranks; rank++)
    spoil(use_words(m, rank, i, 0));
}

static void all_reduce_metrics(struct machine *m, int i, int step)
{
  uint32_t loss = 0, norm = 0;
  for (int rank = 0; rank < m->ranks; rank++) {
    loss += use_words(m, rank, i, 0).at[0];
    const struct instr *instr = &m->plan[rank]->instr[i];
    norm += (instr->use[1].access == ACCESS_ADD ? use_words(m, rank, i, 1).at[0] : 0) +
            (instr->use[METRICS_SQUARES].buffer >= 0 ? use_words(m, rank, i, METRICS_SQUARES).at[0]
                                                     : 0);
  }
  for (int rank = 0; rank < m->ranks; rank++) {
    use_words(m, rank, i, 1).at[0] = m->norm[rank][step] = mix(norm, loss);
    m->measured[rank][step] = true;
  }
  m->loss[step] = loss;
}

static void run_head(struct words *w, const struct plan_use *use, bool learns, bool half)
{
  uint32_t seed = SEED(LOSS, digest_params(w[0], half), digest(w[1]), digest(w[2]));
  if (use[3].access == ACCESS_WRITE)
    memset(w[3].at, 0, (size_t)w[3].n * sizeof(uint32_t));
  w[3].at[0] += seed;
  spoil(w[4]);
  if (learns)
    fill(w[6], seed, use[6].access == ACCESS_ADD);
  fill(w[5], seed + 1, false);
}

static void copy(struct words from, struct words to)
{
  assert_int_equal(from.n, to.n);
  memcpy(to.at, from.at, (size_t)to.n * sizeof(uint32_t));
}

static void write_working(const struct machine *m, struct words working, int64_t i, uint32_t master)
{
  set_element(working, i, m->half ? cast(master) : master, m->half);
}

static void run_adam(const struct machine *m, struct words *w, bool works, uint32_t metrics)
{
  const struct words grads = w[UPDATE_GRADS], master = w[UPDATE_MASTER], moment1 = w[UPDATE_STATE],
                     moment2 = w[UPDATE_STATE + 1], working = w[UPDATE_WORKING];
  for (int64_t i = 0; i < grads.n; i++) {
    uint32_t g = grads.at[i],
             first = adam_m(element(moment1, i, m->half_moments), g, m->half_moments),
             second = adam_v(element(moment2, i, m->half_moments), g, m->half_moments);
    set_element(moment1, i, first, m->half_moments);
    set_element(moment2, i, second, m->half_moments);
    master.at[i] += adam_step(first, second, metrics);
    if (works)
      write_working(m, working, i, master.at[i]);
  }
}

/* The element of the master after an update that changes nothing else. */
static uint32_t look_ahead(const struct machine *m, uint32_t g, uint32_t master,
                           struct words moment1, struct words moment2, int64_t i, uint32_t metrics)
{
  const uint32_t first = adam_m(element(moment1, i, m->half_moments), g, m->half_moments),
                 second = adam_v(element(moment2, i, m->half_moments), g, m->half_moments);
  return master + adam_step(first, second, metrics);
}

/* The gradient of the step before, whose norm METRICS has found. */
static void run_pending(const struct machine *m, int rank, const struct words *w)
{
  struct words before[PLAN_MAX_USE];
  if (m->step == 0)
    return;
  assert_true(m->measured[rank][m->step - 1]);
  memcpy(before, w, sizeof before);
  before[UPDATE_GRADS] = w[UPDATE_PENDING];
  run_adam(m, before, false, m->norm[rank][m->step - 1]);
}

/* All steps are clipped, so the working copy is wrong until REPAIR. */
static void run_speculation(const struct machine *m, int rank, const struct words *w)
{
  run_pending(m, rank, w);
  for (int64_t i = 0; i < w[UPDATE_GRADS].n; i++)
    write_working(m, w[UPDATE_WORKING], i,
                  look_ahead(m, w[UPDATE_GRADS].at[i], w[UPDATE_MASTER].at[i], w[UPDATE_STATE],
                             w[UPDATE_STATE + 1], i, 0));
}

static void run_repair(const struct machine *m, const struct words *w)
{
  for (int64_t i = 0; i < w[REPAIR_GRADS].n; i++)
    write_working(m, w[REPAIR_WORKING], i,
                  look_ahead(m, w[REPAIR_GRADS].at[i], w[REPAIR_MASTER].at[i], w[REPAIR_STATE],
                             w[REPAIR_STATE + 1], i, w[REPAIR_METRICS].at[0]));
}

/* After the last step. */
static void settle(struct machine *m)
{
  struct words w[PLAN_MAX_USE];
  m->step = STEPS;
  for (int rank = 0; rank < m->ranks; rank++)
    for (int i = 0; i < m->plan[rank]->n; i++) {
      const struct instr *instr = &m->plan[rank]->instr[i];
      if (instr->op != OP_UPDATE || instr->use[UPDATE_PENDING].buffer < 0)
        continue;
      for (int k = 0; k < PLAN_MAX_USE; k++)
        w[k] = instr->use[k].buffer < 0 ? (struct words){0} : use_words(m, rank, i, k);
      run_pending(m, rank, w);
    }
}

/* Nothing is lost. A residual holds as many times the name of its unit as it has been used. A
 * gradient that was sent becomes rubbish. */
static void run_encode(const struct instr *instr, struct words *w)
{
  const uint32_t name = 1 + (uint32_t)instr->unit;
  assert_int_equal(w[ENCODE_GRADS].n, w[ENCODE_MESSAGES].n);
  if (w[ENCODE_LARGEST].n > 0)
    assert_true(largest_word(w[ENCODE_GRADS]) <= w[ENCODE_LARGEST].at[0]);
  for (int64_t e = 0; e < w[ENCODE_GRADS].n; e++)
    w[ENCODE_MESSAGES].at[e] = ~w[ENCODE_GRADS].at[e];
  if (w[ENCODE_RESIDUAL].n == 0)
    return;
  assert_int_equal(w[ENCODE_RESIDUAL].n, w[ENCODE_GRADS].n);
  for (int64_t e = 0; e < w[ENCODE_RESIDUAL].n; e++) {
    uint32_t *at = &w[ENCODE_RESIDUAL].at[e];
    assert_int_equal(*at % name, 0);
    *at += name;
  }
  spoil(w[ENCODE_GRADS]);
}

static uint32_t count_encodes(const struct plan *plan, int unit)
{
  uint32_t n = 0;
  for (int i = 0; i < plan->n; i++)
    n += plan->instr[i].op == OP_ENCODE && plan->instr[i].unit == unit;
  return n;
}

static void compare_residuals(const struct machine *m)
{
  for (int rank = 0; rank < m->ranks; rank++)
    for (int u = 0; u < m->model.units; u++) {
      if (m->plan[rank]->unit[u].residual < 0)
        continue;
      const struct words residual = words_at(m, rank, m->plan[rank]->unit[u].residual);
      const uint32_t uses = STEPS * count_encodes(m->plan[rank], u);
      for (int64_t e = 0; e < residual.n; e++)
        assert_int_equal(residual.at[e], uses * (1 + (uint32_t)u));
    }
}

static uint32_t wide(struct words w, int64_t i, bool half)
{
  return half ? (uint32_t)halves(w)[i] << 16 : w.at[i];
}

static void encode_params(const struct machine *m, struct words *w)
{
  const struct words shard = w[ENCODE_PARAMS_SHARD], message = w[ENCODE_PARAMS_MESSAGE],
                     copy = w[ENCODE_PARAMS_COPY];
  assert_int_equal(message.n, shard.n);
  for (int64_t e = 0; e < shard.n; e++)
    message.at[e] = ~(shard.at[e] - (copy.n > 0 ? wide(copy, e, m->half) : 0));
  spoil(w[ENCODE_PARAMS_DIFFERENCE]);
}

/* A message may have parameters beside its elements, which are elements too. */
static void decode_params(const struct machine *m, int rank, int i, struct words *w)
{
  const struct instr *instr = &m->plan[rank]->instr[i];
  const int members = members_of(m, rank, i).n;
  const bool adds = instr->use[DECODE_PARAMS_WHOLE].access == ACCESS_ADD;
  const struct words messages = w[DECODE_PARAMS_MESSAGES], whole = w[DECODE_PARAMS_WHOLE];
  const int64_t elements = whole.n * (m->half ? 2 : 1), n = elements / members,
                stride = messages.n / members;
  assert_true(stride >= n);
  for (int64_t e = 0; e < elements; e++) {
    const uint32_t value =
        ~messages.at[e / n * stride + e % n] + (adds ? wide(whole, e, m->half) : 0);
    write_working(m, whole, e, value);
  }
}

/* The parameters, operand 0. */
static uint32_t digest_operand(const struct plan *plan, const struct instr *instr,
                               const struct words *w, bool half)
{
  const bool coded = instr->attr.fp8 && plan_gathers_codes(plan, instr->unit);
  const int scales = instr->op == OP_BACKWARD ? BACKWARD_SCALES : FORWARD_SCALES;
  return coded ? digest_codes(w[0], digest(w[scales])) : digest_params(w[0], half);
}

static void run_local(const struct machine *m, int rank, int i, int step)
{
  const struct instr *instr = &m->plan[rank]->instr[i];
  struct words w[PLAN_MAX_USE];
  uint32_t seed;
  for (int k = 0; k < PLAN_MAX_USE; k++)
    w[k] = instr->use[k].buffer < 0 ? (struct words){0} : use_words(m, rank, i, k);
  const uint32_t params = digest_operand(m->plan[rank], instr, w, m->half);
  switch (instr->op) {
  case OP_LOAD:
    seed = SEED((uint32_t)step, (uint32_t)rank, (uint32_t)instr->micro);
    fill(w[LOAD_TOKENS], seed, false);
    fill(w[LOAD_TARGETS], seed + 1, false);
    break;
  case OP_EMBED: fill(w[2], SEED(EMBED, params, digest(w[1])), false); break;
  case OP_FORWARD:
    fill(w[2], SEED(FORWARD, params, digest(w[1])), false);
    if (instr->use[FORWARD_SAVED].buffer >= 0)
      fill(w[FORWARD_SAVED], SEED(SAVED, params, digest(w[1])), false);
    spoil(w[3]);
    break;
  case OP_RECOMPUTE:
    fill(w[FORWARD_SAVED], SEED(SAVED, params, digest(w[1])), false);
    spoil(w[FORWARD_WORK]);
    break;
  case OP_LOSS: run_head(w, instr->use, instr->use[LOSS_GRADS].buffer >= 0, m->half); break;
  case OP_BACKWARD:
    seed = SEED(BACKWARD, params, digest(w[1]), digest(w[2]), digest(w[3]));
    if (instr->use[BACKWARD_GRADS].buffer >= 0)
      fill(w[5], seed, instr->use[5].access == ACCESS_ADD);
    fill(w[3], seed + 1, true);
    spoil(w[4]);
    break;
  case OP_EMBED_BACKWARD:
    fill(w[2], SEED(EMBED_BACKWARD, digest(w[0]), digest(w[1])),
         instr->use[2].access == ACCESS_ADD);
    break;
  case OP_RELEASE:
    if (!m->plan[rank]->buffer[instr->use[0].buffer].persistent)
      spoil(w[0]);
    break;
  case OP_SQUARES:
    w[1].at[0] = (instr->use[1].access == ACCESS_ADD ? w[1].at[0] : 0) + squares(w[0]);
    break;
  case OP_REPAIR: run_repair(m, w); break;
  case OP_UPDATE:
    if (w[UPDATE_PENDING].n > 0) {
      run_speculation(m, rank, w);
      break;
    }
    run_adam(m, w, w[UPDATE_WORKING].n > 0, w[UPDATE_METRICS].n > 0 ? w[UPDATE_METRICS].at[0] : 0);
    break;
  case OP_FETCH:
  case OP_SAVE_ACT:
  case OP_WRITE_ACT:
  case OP_READ_ACT:
  case OP_FETCH_ACT:
  case OP_FETCH_GRAD:
  case OP_READ_RESIDUAL:
  case OP_FETCH_RESIDUAL:
  case OP_SAVE_RESIDUAL:
  case OP_WRITE_RESIDUAL:
  case OP_FETCH_LOSS: copy(w[0], w[1]); break;
  case OP_ENCODE_PARAMS: encode_params(m, w); break;
  case OP_DECODE_PARAMS: decode_params(m, rank, i, w); break;
  case OP_ENCODE: run_encode(instr, w); break;
  case OP_DECODE_SUM: decode_sum(instr, w[0], w[1]); break;
  case OP_ACCUMULATE:
    for (int64_t e = 0; e < w[1].n; e++)
      w[1].at[e] += w[0].at[e];
    break;
  case OP_READ_STATE:
  case OP_WRITE_STATE:
    copy(w[STATE_FROM], w[STATE_TO]);
    copy(w[STATE_FROM + 1], w[STATE_TO + 1]);
    break;
  case OP_PUBLISH: break; /* the memory is one: ranks that keep step see each other's writes */
  default: fail_msg("%s has no meaning", plan_op_name(instr->op));
  }
}

static void run_instr(struct machine *m, int i, int step)
{
  m->step = step;
  switch (m->plan[0]->instr[i].op) {
  case OP_GATHER:
  case OP_GATHER_MESSAGES:
  case OP_GATHER_GRADS: all_gather(m, i); break;
  case OP_MAGNITUDE: find_magnitude(m, i); break;
  case OP_MEASURE: measure(m, i); break;
  case OP_MERGE: merge_scales(m, i); break;
  case OP_SCALE: scale(m, i); break;
  case OP_EXCHANGE: exchange(m, i); break;
  case OP_SUM_SHARED: sum_shared(m, i); break;
  case OP_METRICS: all_reduce_metrics(m, i, step); break;
  default:
    for (int rank = 0; rank < m->ranks; rank++)
      run_local(m, rank, i, step);
  }
}

static void run_in_order(struct machine *m)
{
  for (int step = 0; step < STEPS; step++)
    for (int i = 0; i < m->plan[0]->n; i++)
      run_instr(m, i, step);
}

/* The next instruction of a lane, at or behind `at` in all steps; -1 at the end. */
static int next_on_lane(const struct plan *plan, enum plan_lane lane, int at)
{
  for (; at < STEPS * plan->n; at++)
    if (plan->instr[at % plan->n].lane == lane)
      return at;
  return -1;
}

/* On all ranks: their shards lie at different places, and so their plans may wait for different
 * things. */
static bool may_run(const struct machine *m, const int *done, int at)
{
  int n = m->plan[0]->n;
  for (int rank = 0; rank < m->ranks; rank++) {
    const struct instr *instr = &m->plan[rank]->instr[at % n];
    for (int w = 0; w < instr->n_wait; w++)
      if (done[instr->wait[w].instr] < at / n + 1 - instr->wait[w].back)
        return false;
  }
  return true;
}

/* Any lane that can goes on; `favourite` goes on whenever it can. Ranks keep step, as collectives
 * make them. */
static void run_at_random(struct machine *m, uint32_t seed, enum plan_lane favourite)
{
  const struct plan *plan = m->plan[0];
  int at[LANE_COUNT], left = STEPS * plan->n;
  int *done = (int *)new_words(plan->n);
  for (int lane = 0; lane < LANE_COUNT; lane++)
    at[lane] = next_on_lane(plan, (enum plan_lane)lane, 0);
  for (uint32_t draw = 0; left > 0; draw++) {
    assert_true(draw < UINT32_C(1000000)); /* a plan that hangs */
    bool favoured = at[favourite] >= 0 && may_run(m, done, at[favourite]);
    enum plan_lane lane = favoured ? favourite : (enum plan_lane)(mix(seed, draw) % LANE_COUNT);
    if (at[lane] < 0 || !may_run(m, done, at[lane]))
      continue;
    run_instr(m, at[lane] % plan->n, at[lane] / plan->n);
    done[at[lane] % plan->n]++;
    at[lane] = next_on_lane(plan, lane, at[lane] + 1);
    left--;
  }
  mem_free(done);
}

/* half: the part is of 16-bit elements; upper: the upper halves of the truth's. */
static void compare_part(const struct machine *m, int rank, int buffer, struct layout_range range,
                         const struct words *whole, bool half, bool upper,
                         const struct point *point)
{
  if (buffer < 0)
    return;
  struct words part = words_at(m, rank, buffer);
  for (int64_t i = 0; i < range.end - range.begin; i++) {
    uint32_t want = whole->at[range.begin + i];
    if (element(part, i, half) != (half && upper ? cast(want) : want))
      fail_msg("%s: %s of rank %d", fixture_name(point), m->plan[rank]->buffer[buffer].name, rank);
  }
}

static void compare_with_truth(const struct machine *m, const struct truth *t,
                               const struct point *point)
{
  for (int step = 0; step < STEPS; step++)
    if (m->loss[step] != t->loss[step])
      fail_msg("%s: loss of step %d", fixture_name(point), step);
  for (int rank = 0; rank < m->ranks; rank++)
    for (int u = 0; u < m->model.units; u++) {
      const struct plan *plan = m->plan[rank];
      compare_part(m, rank, plan->unit[u].master, plan->unit[u].owned, &t->p[u], false, false,
                   point);
      invert_frozen(m, rank, u);
      compare_part(m, rank, plan->unit[u].frozen, plan->unit[u].frozen_owned, &t->p[u],
                   plan->unit[u].policy.frozen == DTYPE_BF16, true, point);
      compare_part(m, rank, plan->unit[u].working, plan->unit[u].owned, &t->p[u], m->half, true,
                   point);
      compare_part(m, rank, plan->unit[u].shared,
                   (struct layout_range){0, plan->unit[u].layout.flat}, &t->p[u], m->half, true,
                   point);
      compare_part(m, rank, plan->unit[u].state[0], plan->unit[u].owned, &t->m[u], m->half_moments,
                   false, point);
      compare_part(m, rank, plan->unit[u].state[1], plan->unit[u].owned, &t->v[u], m->half_moments,
                   false, point);
    }
}

static bool point_takes_feedback(const struct point *point)
{
  return !point->cpu_reduce && (point->ranks == point->group || point->local_ranks >= point->group);
}

static bool point_gathers(const struct point *point)
{
  return point->strategy != STRATEGY_NO_SHARD && !point->params_full && !point->keep_working;
}

/* Points of a grid take turns with the codecs, too, and with feedback where there can be, and with
 * the memory that keeps what messages lose. */
static void check_point(const struct point *given, int how)
{
  const bool keeps =
      given->strategy == STRATEGY_SHARD_GRAD_OP || given->strategy == STRATEGY_SHARD_OPTIM;
  struct point coded = *given;
  coded.codec = how % 2 ? inverted.name : NULL;
  if (how % 4 == 3 && !given->cpu_reduce)
    coded.codec = bounded.name;
  if (coded.codec && point_takes_feedback(given))
    coded.feedback = "fp32";
  if (given->local_ranks == 0 || given->ranks == given->group)
    coded.residual = (enum deck_residual)(how / 2 % 3);
  coded.weights = how % 3 && point_gathers(given) ? inverted.name : NULL;
  coded.difference = coded.weights && keeps && how % 3 == 1;
  coded.mixed = coded.codec && how % 4 == 1;
  coded.fp8 = given->half && how % 5 < 3;
  if (how % 2 && !coded.difference)
    coded.base = how % 4 == 1 && given->half && !coded.fp8 && !given->params_full ? inverted.name
                 : given->half                                                    ? "bf16"
                                                                                  : NULL;
  const struct point *point = &coded;
  struct machine m;
  struct truth t;
  machine_create(&m, point);
  truth_create(&t, m.plan[0]);
  load_masters(&m, &t);
  if (how == 0)
    run_in_order(&m);
  else
    run_at_random(&m, (uint32_t)how, (enum plan_lane)(how % LANE_COUNT));
  settle(&m);
  for (int step = 0; step < STEPS; step++)
    truth_step(&t, m.plan[0], step);
  compare_with_truth(&m, &t, point);
  compare_residuals(&m);
  truth_destroy(&t);
  machine_destroy(&m);
}

static void check_some(void *arg, const struct point *point)
{
  int *count = arg;
  if (*count % 13 == 0) /* which divides no period of the grid: every choice is met */
    check_point(point, *count / 13 % 6);
  (*count)++;
}

TEST(updates_are_those_of_a_plain_loop)
{
  int count = 0;
  fixture_grid(check_some, &count);
}

TEST(heads_and_frozen_parts_too)
{
  int count = 0;
  fixture_variants(check_some, &count);
}

TEST(masters_in_host_memory_too)
{
  int count = 0;
  fixture_host(43, check_some, &count);
}

TEST(any_order_that_heeds_lanes_and_waits_will_do)
{
  static const char *const on_host[] = {
      "full_shard ranks=2 prefetch=1 micros=2 host keep=input_host",
      "full_shard ranks=2 micros=2 keep=activations_host",
      "full_shard ranks=3 bf16 host params_full cpu_reduce nvme_state=1 moments=fp16 "
      "keep=input_nvme",
      "hybrid_shard ranks=6 group=3 prefetch=1 micros=2 host params_full cpu_reduce one_node "
      "immediate",
      "hybrid_shard ranks=4 group=2 prefetch=1 micros=2 bf16 host params_full immediate "
      "nvme_state=0.5 keep=input",
      "full_shard prefetch=2 micros=3 untied freeze=odd bf16 host immediate",
      "full_shard ranks=2 prefetch=1 bf16 host speculative keep=input",
      "hybrid_shard ranks=4 group=2 prefetch=1 micros=2 untied host speculative resident=1 "
      "moments=bf16",
      "full_shard ranks=3 micros=2 bf16 host params_full cpu_reduce one_node speculative "
      "nvme_state=0.5",
  };
  for (int how = 1; how <= 25; how++) {
    check_point(fixture_point("full_shard ranks=3 prefetch=1 recompute=2 micros=2 each_micro"),
                how);
    check_point(fixture_point("hybrid_shard ranks=4 group=2 prefetch=2 micros=2"), how);
    check_point(fixture_point("no_shard ranks=2 recompute=1 micros=3 each_micro"), how);
    check_point(
        fixture_point("full_shard ranks=3 prefetch=1 micros=2 each_micro untied freeze=odd"), how);
    check_point(fixture_point("shard_optim ranks=2 prefetch=1 recompute=1 micros=2 freeze=odd"),
                how);
    check_point(
        fixture_point("hybrid_shard ranks=4 group=2 micros=2 each_micro untied freeze=middle"),
        how);
    for (size_t h = 0; h < sizeof on_host / sizeof *on_host; h++)
      check_point(fixture_point("%s", on_host[h]), how);
  }
}

/* Ranks of a node add up their gradients before nodes exchange them, encoded or not. */
TEST(nodes_may_add_up_first)
{
  static const char *const points[] = {
      "full_shard ranks=4 prefetch=1 micros=0 local_ranks=2",
      "full_shard ranks=6 micros=0 untied local_ranks=3",
      "shard_grad_op ranks=6 prefetch=2 micros=0 local_ranks=2",
      "shard_optim ranks=4 micros=0 freeze=odd local_ranks=2",
      "no_shard ranks=6 prefetch=1 micros=0 local_ranks=2",
      "no_shard ranks=3 micros=0 local_ranks=1",
      "hybrid_shard ranks=6 group=3 micros=0 bf16 local_ranks=3",
      "hybrid_shard ranks=4 group=1 prefetch=1 micros=0 local_ranks=1",
      "hybrid_shard ranks=4 micros=0 bf16 local_ranks=2",
      "hybrid_shard ranks=8 group=4 micros=0 local_ranks=2",
      "hybrid_shard ranks=8 group=2 micros=0 bf16 local_ranks=4",
      "hybrid_shard ranks=12 group=6 prefetch=1 micros=0 untied local_ranks=2",
      "full_shard ranks=4 micros=0 host local_ranks=2",
      "hybrid_shard ranks=6 group=2 micros=0 host immediate local_ranks=2",
      "full_shard ranks=4 micros=0 local_ranks=4",
  };
  for (size_t i = 0; i < sizeof points / sizeof *points; i++)
    for (int how = 0; how < 12; how++) {
      struct point point = *fixture_point("%s", points[i]);
      point.micros = 1 + how / 2 % 3;
      point.reduce_every_micro = how % 4 < 2;
      check_point(&point, how);
    }
}

/* Evidence that the comparison can fail: without its waits a plan computes something else. */
TEST(without_waits_the_result_is_another)
{
  const struct point point = *fixture_point("full_shard ranks=2 prefetch=1");
  struct machine m;
  struct truth t;
  machine_create(&m, &point);
  truth_create(&t, m.plan[0]);
  load_masters(&m, &t);
  for (int rank = 0; rank < m.ranks; rank++)
    for (int i = 0; i < m.plan[rank]->n; i++)
      m.plan[rank]->instr[i].n_wait = 0;
  run_at_random(&m, 1, LANE_COMPUTE);
  truth_step(&t, m.plan[0], 0);
  assert_int_not_equal(m.loss[0], t.loss[0]);
  truth_destroy(&t);
  machine_destroy(&m);
}

TEST_MAIN(NULL, NULL)
