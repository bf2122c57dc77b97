/* Sampling and the data order. Oracles: the softmax computed in the test, and a plain reference
 * that sorts. Identities hold: options that must change nothing, and options that must be greedy.
 * The order of one rank is compared with that of many. */
#include <math.h>

#include "base/rng.h"
#include "tests/test.h"
#include "train/data.h"
#include "train/sample.h"

enum { V = 7, DRAWS = 20000 };
static const float logits[V] = {0.5f, 2.0f, -1.0f, 1.0f, 1.5f, -INFINITY, 0.0f};

/* Frequencies of DRAWS draws against probabilities: within four standard deviations. */
static void check_frequencies(const struct sample_options *options, const double *expected)
{
  int count[V] = {0};
  uint64_t scratch[V];
  for (int i = 0; i < DRAWS; i++)
    count[sample_token(logits, V, options, i, scratch)]++;
  for (int v = 0; v < V; v++)
    assert_true(fabs(count[v] - expected[v] * DRAWS) <=
                4 * sqrt(expected[v] * (1 - expected[v]) * DRAWS));
}

TEST(test_frequencies_follow_the_softmax)
{
  const struct sample_options options = {.temperature = 0.7, .top_p = 1, .seed = 11};
  double p[V], total = 0;
  for (int v = 0; v < V; v++)
    total += exp(logits[v] / 0.7);
  for (int v = 0; v < V; v++)
    p[v] = exp(logits[v] / 0.7) / total;
  assert_true(p[5] == 0);
  check_frequencies(&options, p);
}

/* At temperature 1 the likelier ones have 0.429, 0.260, 0.158 of the five that top_k leaves: 0.8
 * needs the first three. */
TEST(test_frequencies_in_the_nucleus)
{
  const struct sample_options options = {.temperature = 1, .top_k = 5, .top_p = 0.8, .seed = 12};
  const double total = exp(2.0) + exp(1.5) + exp(1.0);
  const double p[V] = {[1] = exp(2.0) / total, [4] = exp(1.5) / total, [3] = exp(1.0) / total};
  check_frequencies(&options, p);
}

TEST(test_top_k_and_zero_temperature)
{
  struct sample_options options = {.temperature = 3, .top_k = 2, .top_p = 1, .seed = 1};
  uint64_t scratch[V];
  int seen1 = 0, seen4 = 0;
  for (int i = 0; i < 200; i++) {
    const int32_t token = sample_token(logits, V, &options, i, scratch);
    assert_true(token == 1 || token == 4);
    seen1 += token == 1;
    seen4 += token == 4;
  }
  assert_true(seen1 > 0 && seen4 > 0);
  options = (struct sample_options){.temperature = 0, .top_p = 1};
  assert_int_equal(sample_token(logits, V, &options, 3, scratch), 1);
}

/* ---- the plain twin: sorted, in long double */

enum { TWIN_MOST = 700 };
struct candidate {
  float logit;
  int id;
  long double p;
};

static int by_rank(const void *a, const void *b)
{
  const struct candidate *x = a, *y = b;
  if (x->logit != y->logit)
    return x->logit < y->logit ? 1 : -1;
  return x->id - y->id;
}

static int by_id(const void *a, const void *b)
{
  return ((const struct candidate *)a)->id - ((const struct candidate *)b)->id;
}

static int twin(const float *values, int n, const struct sample_options *options, int64_t draw)
{
  struct candidate c[TWIN_MOST];
  for (int i = 0; i < n; i++)
    c[i] = (struct candidate){.logit = values[i], .id = i};
  qsort(c, (size_t)n, sizeof *c, by_rank);
  int left = options->top_k > 0 && options->top_k < n ? (int)options->top_k : n;
  long double total = 0, sum = 0;
  for (int i = 0; i < left; i++) {
    c[i].p = expl(((long double)c[i].logit - (long double)c[0].logit) /
                  (long double)options->temperature);
    total += c[i].p;
  }
  for (int i = 0; i < left; i++) {
    sum += c[i].p;
    if (sum >= (long double)options->top_p * total) {
      left = i + 1;
      total = sum;
    }
  }
  qsort(c, (size_t)left, sizeof *c, by_id);
  long double point =
      (long double)rng_uniform(rng_key_make(options->seed, "sample"), 0, (uint64_t)draw) * total;
  for (int i = 0; i < left; i++) {
    point -= c[i].p;
    if (point < 0)
      return c[i].id;
  }
  return c[left - 1].id;
}

/* Logits of all signs, with many equal ones: multiples of `grain`. */
static void fill_logits(uint64_t seed, int n, float spread, float grain, float *out)
{
  const struct rng_key key = rng_key_make(seed, "logits");
  rng_fill_normal(key, 0, 0, n, -1.0f, spread, out);
  for (int i = 0; i < n; i++)
    out[i] = grain > 0 ? grain * roundf(out[i] / grain) : out[i];
}

TEST(test_agrees_with_the_twin)
{
  static const double temperatures[] = {0.3, 1, 1.7, 40},
                      shares[] = {1e-9, 0.1, 0.5, 0.9, 0.999, 1};
  static const int sizes[] = {1, 2, 37, 256, TWIN_MOST}, ks[] = {0, 1, 5, 36, 100000};
  static const float grains[] = {0, 0.5f, 3};
  float values[TWIN_MOST];
  uint64_t scratch[TWIN_MOST], seed = 0;
  for (size_t s = 0; s < 5; s++)
    for (size_t g = 0; g < 3; g++)
      for (size_t t = 0; t < 4; t++)
        for (size_t k = 0; k < 5; k++)
          for (size_t p = 0; p < 6; p++, seed++) {
            fill_logits(seed, sizes[s], 3, grains[g], values);
            const struct sample_options options = {
                .temperature = temperatures[t], .top_k = ks[k], .top_p = shares[p], .seed = seed};
            for (int64_t draw = 0; draw < 4; draw++)
              assert_int_equal(sample_token(values, sizes[s], &options, draw, scratch),
                               twin(values, sizes[s], &options, draw));
          }
}

TEST(test_what_changes_nothing_and_what_is_greedy)
{
  enum { N = 300 };
  float values[N];
  uint64_t scratch[N];
  fill_logits(7, N, 2, 0.25f, values);
  values[17] = values[18] = 40; /* two likeliest */
  const struct sample_options plain = {.temperature = 30, .top_p = 1, .seed = 3};
  struct sample_options all = plain, greedy[] = {plain, plain, plain};
  all.top_k = N;
  greedy[0].top_k = 1;
  greedy[1].top_p = 1e-12;
  greedy[2].temperature = 0;
  for (int64_t draw = 0; draw < 100; draw++) {
    const int32_t token = sample_token(values, N, &plain, draw, scratch);
    assert_int_equal(token, sample_token(values, N, &all, draw, scratch));
    for (int i = 0; i < 3; i++)
      assert_int_equal(sample_token(values, N, &greedy[i], draw, scratch),
                       17); /* of equals the lower id */
  }
}

TEST(test_zeros_of_both_signs_are_equal)
{
  const float values[4] = {-0.0f, 0.0f, -1, 0.0f};
  const struct sample_options options = {.temperature = 1, .top_k = 1, .top_p = 1, .seed = 3};
  uint64_t scratch[4];
  for (int64_t draw = 0; draw < 20; draw++)
    assert_int_equal(sample_token(values, 4, &options, draw, scratch), 0);
}

static int32_t row[10];
static struct data_sources made = {.n = 1, .of = {{.row = 9, .token = row}}};

static struct data_order order_of(int rank, int ranks, int64_t micro)
{
  const int64_t batch = 12;
  return (struct data_order){.data = &made,
                             .seed = 5,
                             .batch = batch,
                             .rank = rank,
                             .shape = {.ranks = ranks,
                                       .rank_batch = batch / ranks,
                                       .micro_batch = micro,
                                       .micros = batch / ranks / micro,
                                       .sequence = 9}};
}

/* A step's samples, in order, whoever loads them and in which portions. */
static void load_step(int ranks, int64_t micro, int64_t step, int32_t *tokens, int32_t *targets)
{
  for (int rank = 0; rank < ranks; rank++) {
    struct data_order order = order_of(rank, ranks, micro);
    for (int m = 0; m < order.shape.micros; m++) {
      const int64_t at = (rank * order.shape.rank_batch + m * micro) * 9;
      const struct model_batch batch = {.tokens = tokens + at, .targets = targets + at};
      must(data_load_train(&order, step, m, &batch));
    }
  }
}

TEST(test_samples_of_a_step_do_not_depend_on_ranks)
{
  int32_t tokens[2][12 * 9], targets[2][12 * 9];
  static const struct {
    int ranks;
    int64_t micro;
  } cuts[] = {{1, 1}, {2, 3}, {3, 2}, {4, 1}, {6, 2}, {12, 1}};
  must(token_set_make(&(struct token_made){.seed = 5, .vocab = 50}, &made.of[0].set));
  made.of[0].rows = token_set_windows(made.of[0].set, 9);
  load_step(1, 12, 3, tokens[0], targets[0]);
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
    load_step(cuts[i].ranks, cuts[i].micro, 3, tokens[1], targets[1]);
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
  }
  load_step(1, 12, 4, tokens[1], targets[1]);
  assert_memory_not_equal(tokens[0], tokens[1], sizeof tokens[0]);
  for (int t = 0; t + 1 < 9; t++)
    assert_int_equal(targets[0][t], tokens[0][t + 1]); /* a target is the next token */
  token_set_close(made.of[0].set);
}

/* Shares of sources, in 2^-32 of what earlier sources leave. Oracles: a source's samples are 0, 1,
 * 2 and so on; any first samples have each source's part of them, to less than the number of
 * sources. */
TEST(test_sources_get_their_shares)
{
  enum { SAMPLES = 10000 };
  static const struct {
    int n;
    uint32_t share[4];
    double part[4];
  } rows[] = {{1, {1}, {1}},
              {2, {3006477107u}, {0.7, 0.3}},
              {2, {UINT32_MAX}, {1, 0}},
              {2, {1}, {0, 1}},
              {3, {1u << 31, 1u << 30}, {0.5, 0.125, 0.375}},
              {4, {1u << 30, 1431655765u, 1u << 31}, {0.25, 0.25, 0.25, 0.25}}};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    struct data_sources data = {.n = rows[r].n};
    int64_t seen[4] = {0}, number;
    for (int s = 0; s < data.n; s++)
      data.of[s].share = rows[r].share[s];
    for (int64_t i = 0; i < SAMPLES; i++) {
      const int s = data_choose(&data, i, &number);
      assert_int_equal(number, seen[s]++);
      for (int k = 0; k < data.n; k++) {
        assert_int_equal(data_part(&data, k, i + 1), seen[k]);
        assert_true(fabs((double)seen[k] - rows[r].part[k] * (double)(i + 1)) < data.n);
      }
    }
    const int64_t far = INT64_C(1) << 50;
    const int s = data_choose(&data, far, &number);
    assert_int_equal(number, data_part(&data, s, far));
    assert_int_equal(number + 1, data_part(&data, s, far + 1));
  }
}

TEST_MAIN(NULL, NULL)
