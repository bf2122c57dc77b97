/* The loss of pairs. Oracles: the losses of the conversations, each by itself; finite differences;
 * the same pairs, cut another way. */
#include <math.h>

#include "base/rng.h"
#include "engine.h"
#include "tests/test.h"

enum { PAIRS = 3, SEQUENCES = 2 * PAIRS, T = 37, WIDTH = 72 };
static const double beta = 0.3;

/* Uniform numbers of mean 0 and variance 1. */
static double noise(struct rng_key key, uint64_t hi, uint64_t lo)
{
  return sqrt(12) * (rng_uniform(key, hi, lo) - 0.5);
}

static bool is_near(double a, double b)
{
  return fabs(a - b) <= 1e-12 * fabs(b);
}

struct pairs {
  struct engine engine;
  struct batch batch;
  float x[SEQUENCES * T * WIDTH], d[SEQUENCES * T * WIDTH];
  double reference[SEQUENCES];
  struct exactsum loss[SEQUENCES], preferred[2];
};

static void pairs_create(const char *keys, struct pairs *p)
{
  const struct model_shape shape = {.B = SEQUENCES, .T = T};
  const struct rng_key key = rng_key_make(5, "pairs");
  memset(p, 0, sizeof *p);
  engine_create(keys, 2, &p->engine);
  batch_create(shape, p->engine.model->config.vocab, &p->batch);
  for (uint64_t i = 0; i < SEQUENCES * T * WIDTH; i++)
    p->x[i] = (float)noise(key, 0, i);
  for (uint64_t b = 0; b < SEQUENCES; b++)
    p->reference[b] = -150 + 4 * noise(key, 1, b);
}

static void pairs_destroy(struct pairs *p)
{
  batch_destroy(&p->batch);
  engine_destroy(&p->engine);
}

/* Adds the losses of sequences [first, first + n) to the sums of `sources`. With references their
 * gradients go to p->d, and by `accumulate` to the engine's. */
static void score(struct pairs *p, int64_t first, int64_t n, int32_t *sources, bool pairs,
                  bool accumulate)
{
  struct engine *e = &p->engine;
  const int64_t at = first * T * e->model->config.width;
  struct model_call call =
      engine_call(e, e->model->stages - 1, (struct model_shape){.B = n, .T = T});
  const size_t bytes = e->model->ops->work_bytes(e->model, &e->device->model, call.shape,
                                                 pairs ? WORK_PREFERENCES : WORK_LOSS, e->threads);
  call.batch = batch_at(&p->batch, first * T);
  call.batch.sources = sources;
  call.batch.reference = pairs ? p->reference + first : NULL;
  call.beta = beta, call.scale = 1, call.loss = p->loss, call.preferred = p->preferred;
  call.x_in = p->x + at, call.d = pairs ? p->d + at : NULL, call.accumulate = accumulate;
  call.work = engine_alloc(e, bytes);
  must(e->model->ops->head_loss(&call));
  engine_free(e, call.work, bytes);
}

static void clear(struct pairs *p)
{
  memset(p->loss, 0, sizeof p->loss);
  memset(p->preferred, 0, sizeof p->preferred);
}

static double total(struct pairs *p)
{
  clear(p);
  score(p, 0, SEQUENCES, NULL, true, false);
  return exactsum_value(&p->loss[0]);
}

static void check_sums(struct pairs *p)
{
  int32_t each[SEQUENCES], mixed[SEQUENCES] = {0, 0, 1, 1, 0, 0};
  double nll[SEQUENCES], loss[2] = {0}, margins = 0, won = 0;
  for (int32_t b = 0; b < SEQUENCES; b++)
    each[b] = b;
  clear(p);
  score(p, 0, SEQUENCES, each, false, false);
  for (int b = 0; b < SEQUENCES; b++)
    nll[b] = exactsum_value(&p->loss[b]);
  for (int k = 0; k < PAIRS; k++) {
    const double *r = p->reference + 2 * k,
                 margin = beta * ((-nll[2 * k] - r[0]) - (-nll[2 * k + 1] - r[1]));
    loss[k == 1] += log(1 + exp(-margin));
    margins += margin;
    won += margin > 0;
  }
  assert_true(fabs(margins) > 0.1);
  clear(p);
  score(p, 0, SEQUENCES, mixed, true, false);
  assert_true(is_near(exactsum_value(&p->loss[0]), loss[0]));
  assert_true(is_near(exactsum_value(&p->loss[1]), loss[1]));
  assert_true(is_near(exactsum_value(&p->preferred[0]), margins));
  assert_true(exactsum_value(&p->preferred[1]) == won);
}

/* The derivative of the loss along a direction of n elements from `at` on, twice. */
static void check_direction(struct pairs *p, const char *label, float *at, const float *gradient,
                            int64_t n)
{
  const struct rng_key key = rng_key_make(6, "direction");
  const double step = 1e-3;
  double product = 0, scale = 0, side[2];
  float *was = calloc((size_t)n, sizeof *was);
  assert_non_null(was);
  memcpy(was, at, (size_t)n * sizeof *was);
  for (int64_t i = 0; i < n; i++) {
    const double v = noise(key, 0, (uint64_t)i);
    product += v * (double)gradient[i];
    scale += (double)gradient[i] * (double)gradient[i];
  }
  for (int s = 0; s < 2; s++) {
    for (int64_t i = 0; i < n; i++)
      at[i] = was[i] + (float)((s ? -step : step) * noise(key, 0, (uint64_t)i));
    side[s] = total(p);
  }
  memcpy(at, was, (size_t)n * sizeof *was);
  free(was);
  const double got = (side[0] - side[1]) / (2 * step);
  if (!(scale > 0) || fabs(got - product) > 2e-2 * sqrt(scale))
    fail_msg("%s: %g along a direction, by its gradient %g of norm %g", label, got, product,
             sqrt(scale));
}

static void check_gradient(struct pairs *p)
{
  const struct engine *e = &p->engine;
  const int64_t rows = SEQUENCES * T * e->model->config.width;
  const struct model_unit *unit = &e->model->unit[e->model->head];
  float *d = calloc((size_t)rows, sizeof *d), *grads = calloc((size_t)unit->layout.used, sizeof *d);
  assert_true(d && grads);
  (void)total(p);
  memcpy(d, p->d, (size_t)rows * sizeof *d);
  memcpy(grads, e->grads[e->model->head], (size_t)unit->layout.used * sizeof *d);
  check_direction(p, "input", p->x, d, rows);
  for (int i = 0; i < unit->params; i++)
    if (!unit->param[i].frozen &&
        (strstr(unit->param[i].name, "norm") || strstr(unit->param[i].name, "head")))
      check_direction(p, unit->param[i].name, engine_param(e, e->params, e->model->head, i),
                      grads + (engine_param(e, e->grads, e->model->head, i) -
                               (float *)e->grads[e->model->head]),
                      unit->layout.elements[i]);
  free(d);
  free(grads);
}

static void check_cut(struct pairs *p)
{
  const struct model_unit *unit = &p->engine.model->unit[p->engine.model->head];
  const size_t bytes = (size_t)unit->layout.used * sizeof(float);
  struct pairs *other = calloc(1, sizeof *other);
  assert_non_null(other);
  (void)total(p);
  *other = *p;
  void *grads = malloc(bytes);
  assert_non_null(grads);
  memcpy(grads, p->engine.grads[p->engine.model->head], bytes);
  clear(p);
  memset(p->d, 0, sizeof p->d);
  for (int k = 0; k < PAIRS; k++)
    score(p, 2 * k, 2, NULL, true, k > 0);
  assert_memory_equal(p->loss, other->loss, sizeof p->loss);
  assert_memory_equal(p->preferred, other->preferred, sizeof p->preferred);
  assert_memory_equal(p->d, other->d, sizeof p->d);
  assert_memory_equal(p->engine.grads[p->engine.model->head], grads, bytes);
  free(grads);
  free(other);
}

TEST(test_pairs)
{
  for (int i = 0; i < shape_count; i++) {
    struct pairs *p = calloc(1, sizeof *p);
    assert_non_null(p);
    pairs_create(shapes[i], p);
    check_sums(p);
    check_gradient(p);
    check_cut(p);
    pairs_destroy(p);
    free(p);
  }
}

/* Equal models have no margin: the loss is log 2, and nobody wins. */
TEST(test_equal_models)
{
  struct pairs *p = calloc(1, sizeof *p);
  int32_t each[SEQUENCES];
  assert_non_null(p);
  pairs_create(shapes[0], p);
  for (int32_t b = 0; b < SEQUENCES; b++)
    each[b] = b;
  score(p, 0, SEQUENCES, each, false, false);
  for (int b = 0; b < SEQUENCES; b++)
    p->reference[b] = -exactsum_value(&p->loss[b]);
  assert_true(total(p) == PAIRS * log1p(1));
  assert_true(exactsum_value(&p->preferred[0]) == 0 && exactsum_value(&p->preferred[1]) == 0);
  pairs_destroy(p);
  free(p);
}

TEST_MAIN(NULL, NULL)
