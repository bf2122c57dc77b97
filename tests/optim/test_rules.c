/* Every elementwise optimizer. Oracles: the formula in fp64, with the bound of the roundings of
 * each type. Every cut, number of threads and instruction set is bitwise identical. Stochastic
 * rounding has its mean. Absent arrays equal arrays of zeros. */
#include "tests/device/fixture.h"

#include <math.h>
#include <string.h>

#include "device/moments.h"
#include "device/rounding.h"
#include "optim/optim.h"

enum { N = 1003, TYPES = 3 };
static const enum dtype types[TYPES] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* A step in fp64. `terms`: size of the numbers that make the new parameter and each state, to which
 * the errors of fp32 are relative. */
struct element {
  double p, state[RULE_STATES], terms, state_terms[RULE_STATES];
};

static struct element adamw(const struct update *op, double g, struct element e)
{
  const double shrunk = e.p * (1 - op->lr * op->decay), m = e.state[0], v = e.state[1];
  e.state[0] = op->beta1 * m + (1 - op->beta1) * g;
  e.state[1] = op->beta2 * v + (1 - op->beta2) * g * g;
  e.state_terms[0] = fabs(m) + fabs(g);
  e.state_terms[1] = e.state[1];
  const double scale = op->lr / op->bias1 / (sqrt(e.state[1] / op->bias2) + op->eps);
  e.terms = fabs(e.p) + scale * e.state_terms[0];
  e.p = shrunk - scale * e.state[0];
  return e;
}

/* The sign of a sum near zero depends on its rounding: no bound holds there. */
static struct element lion(const struct update *op, double g, struct element e)
{
  const double m = e.state[0], c = op->beta1 * m + (1 - op->beta1) * g;
  e.state_terms[0] = fabs(m) + fabs(g);
  e.terms =
      fabs(e.p) + fabs(op->lr) + (fabs(c) <= 1e-6 * e.state_terms[0] ? 2e6 * fabs(op->lr) : 0);
  e.p = e.p * (1 - op->lr * op->decay) - op->lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
  e.state[0] = op->beta2 * m + (1 - op->beta2) * g;
  return e;
}

static struct element sgd(const struct update *op, double g, struct element e)
{
  const double b = op->momentum * e.state[0] + g;
  e.state_terms[0] = fabs(e.state[0]) + fabs(g);
  e.terms = fabs(e.p) + 2 * fabs(op->lr) * e.state_terms[0];
  e.p = e.p * (1 - op->lr * op->decay) - op->lr * (op->nesterov ? g + op->momentum * b : b);
  e.state[0] = b;
  return e;
}

static struct element (*const formula[])(const struct update *op, double g, struct element e) = {
    [OPTIM_adamw] = adamw, [OPTIM_adamw8bit] = adamw, [OPTIM_lion] = lion, [OPTIM_sgd] = sgd};

static bool next_rule(struct update *op)
{
  op->rule++;
  return optim_states(op->rule) > 0;
}

static struct update settings(int step)
{
  return (struct update){.lr = 1e-2,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .decay = 0.1,
                         .momentum = 0.8,
                         .nesterov = step % 2,
                         .grad_scale = 0.5f,
                         .bias1 = 1 - pow(0.9, step),
                         .bias2 = 1 - pow(0.95, step),
                         .seed = (uint64_t)step};
}

/* master, gradient, copy and states of `n` elements, in the types of an update. */
struct arrays {
  void *master, *grad, *copy, *state[RULE_STATES];
};

static void *at(void *array, enum dtype type, int64_t i)
{
  return (char *)array + dtype_bytes(type, i);
}

static void *typed(enum dtype type, const float *x, int64_t n)
{
  void *out = bytes((size_t)n * sizeof(float));
  dtype_convert(out, type, x, DTYPE_F32, (size_t)n);
  return out;
}

static struct arrays arrays_make(const struct update *op, int64_t n)
{
  struct arrays a = {
      typed(op->master, normals(n, 1), n), typed(op->grad, normals(n, 1), n), nans(n), {NULL}};
  for (int s = 0; s < RULE_STATES; s++) {
    float *x = normals(n, 0.1f);
    for (int64_t i = 0; i < n; i++)
      x[i] *= i % 3 == 0 ? 1e-6f * x[i] : x[i]; /* subnormal in fp16; none is negative, for roots */
    a.state[s] = bytes((size_t)n * sizeof(float));
    moments_encode(a.state[s], op->states, optim_ops(op->rule)->state[s].code, x, (size_t)n);
  }
  return a;
}

static struct arrays arrays_copy(const struct arrays *a, int64_t n)
{
  return (struct arrays){copy_of(a->master, n),
                         a->grad,
                         copy_of(a->copy, n),
                         {copy_of(a->state[0], n), copy_of(a->state[1], n)}};
}

static struct arrays arrays_at(const struct update *op, const struct arrays *a, int64_t i)
{
  struct arrays b = {
      at(a->master, op->master, i), at(a->grad, op->grad, i), at(a->copy, op->copy, i), {NULL}};
  for (int s = 0; s < RULE_STATES; s++)
    b.state[s] = at(a->state[s], op->states, i);
  return b;
}

static void run(struct lane *lane, const struct update *op, int64_t n, const struct arrays *a)
{
  assert_ok(ops->update(lane, n, op, a->master, a->grad, a->state, a->copy));
}

static void assert_same(const struct update *op, const struct arrays *a, const struct arrays *b,
                        int64_t n)
{
  assert_same_bits(a->master, b->master, (size_t)n * dtype_size(op->master));
  assert_same_bits(a->copy, b->copy, (size_t)n * dtype_size(op->copy));
  for (int s = 0; s < optim_states(op->rule); s++)
    assert_same_bits(a->state[s], b->state[s], (size_t)dtype_bytes(op->states, n));
}

static float get(void *array, enum dtype type, int64_t i)
{
  float x;
  dtype_convert(&x, DTYPE_F32, at(array, type, i), type, 1);
  return x;
}

/* The number that a code of a state stands for, and the number whose code is rounded. */
static double decoded(const struct update *op, int s, double stored)
{
  const double x = op->states == DTYPE_F16 ? stored / 4096 : stored;
  const bool root = optim_ops(op->rule)->state[s].code == STATE_ROOT && op->states == DTYPE_F16;
  return root ? x * x : x;
}

static double encoded(const struct update *op, int s, double x)
{
  if (op->states != DTYPE_F16)
    return x;
  x = optim_ops(op->rule)->state[s].code == STATE_ROOT ? sqrt(x) : x;
  return fmax(-65504, fmin(65504, x * 4096));
}

/* Distance of neighbours of `type` at x, half of it to nearest, and a dozen roundings of fp32. */
static double tolerance(enum dtype type, bool stochastic, double x, double terms)
{
  double distance = 0;
  if (type != DTYPE_F32) {
    const int least = type == DTYPE_BF16 ? -126 : -14, mantissa = type == DTYPE_BF16 ? 7 : 10;
    const int exponent = x == 0 ? least : ilogb(x) + 1; /* x may be just below a power of two */
    distance = ldexp(1, (exponent > least ? exponent : least) - mantissa);
  }
  return (stochastic ? 1 : 0.5) * distance + 1e-6 * terms + 1e-44;
}

static void assert_close(double got, double want, double tolerance)
{
  if (!(fabs(got - want) <= tolerance))
    fail_msg("%.9g, not %.9g within %.3g", got, want, tolerance);
}

static void check_element(const struct update *op, const struct arrays *got,
                          const struct arrays *start, int64_t i)
{
  struct element e = {.p = get(start->master, op->master, i)};
  const int states = optim_states(op->rule);
  for (int s = 0; s < states; s++)
    e.state[s] = decoded(op, s, get(start->state[s], op->states, i));
  const double g = get(start->grad, op->grad, i) * (double)op->grad_scale;
  e = formula[op->rule](op, g, e);
  assert_close(get(got->copy, op->copy, i), e.p, tolerance(op->copy, false, e.p, e.terms));
  assert_close(get(got->master, op->master, i), e.p,
               tolerance(op->master, op->stochastic, e.p, e.terms));
  for (int s = 0; s < states; s++) {
    const double want = encoded(op, s, e.state[s]), terms = encoded(op, s, e.state_terms[s]);
    assert_close(get(got->state[s], op->states, i), want,
                 tolerance(op->states, op->stochastic, want, terms));
  }
}

/* Three steps with each combination of types, each from what the last one stored. */
DEVICE_TEST(steps_are_the_formula_in_every_type)
{
  for (struct update rule = {0}; optim_states(rule.rule) > 0; next_rule(&rule))
    for (int kind = 0; kind < 2 * TYPES * TYPES * TYPES * TYPES; kind++) {
      struct update op = settings(1);
      op.rule = rule.rule, op.master = types[kind % TYPES], op.grad = types[kind / TYPES % TYPES];
      op.states = types[kind / (TYPES * TYPES) % TYPES];
      op.copy = types[kind / (TYPES * TYPES * TYPES) % TYPES], op.stochastic = kind % 2;
      struct arrays start = arrays_make(&op, N);
      for (int step = 1; step <= 3; step++) {
        const int64_t skip = kind % 5; /* odd addresses */
        struct update next = settings(step);
        op.nesterov = next.nesterov, op.bias1 = next.bias1, op.bias2 = next.bias2,
        op.seed = next.seed;
        struct arrays got = arrays_copy(&start, N), part = arrays_at(&op, &got, skip);
        run(lanes[1], &op, N - skip, &part);
        for (int64_t i = skip; i < N; i++)
          check_element(&op, &got, &start, i);
        start = got;
      }
      fixture_release(NULL);
    }
}

/* Roundings add up: each step is good to a few 1e-7 of its length. */
DEVICE_TEST(many_steps_stay_with_the_formula)
{
  enum { STEPS = 25 };
  for (struct update op = settings(1); optim_states(op.rule) > 0; next_rule(&op)) {
    struct arrays a = {
        normals(N, 1), NULL, nans(N), {bytes(N * sizeof(float)), bytes(N * sizeof(float))}};
    struct element *want = bytes(N * sizeof *want);
    double way = 0;
    for (int i = 0; i < N; i++)
      want[i].p = ((float *)a.master)[i];
    for (int step = 1; step <= STEPS; step++) {
      struct update now = settings(step);
      now.rule = op.rule;
      a.grad = normals(N, 1);
      run(lanes[2], &now, N, &a);
      for (int i = 0; i < N; i++) {
        want[i] = formula[op.rule](&now, ((float *)a.grad)[i] * 0.5, want[i]);
        way = fmax(way, want[i].terms);
      }
    }
    for (int i = 0; i < N; i++)
      assert_close(((float *)a.master)[i], want[i].p, STEPS * 2e-7 * way);
  }
}

DEVICE_TEST(bits_do_not_depend_on_cuts_threads_or_kernels)
{
  enum { LONG = 3 * 32768 + 11 };
  for (struct update op = settings(3); optim_states(op.rule) > 0;
       op.states == DTYPE_BF16 || next_rule(&op)) {
    op.states = op.states == DTYPE_BF16 ? DTYPE_BLOCK8 : DTYPE_BF16;
    op.master = op.copy = DTYPE_BF16, op.stochastic = true;
    op.first = ((int64_t)1 << 32) - 40000;
    const struct arrays start = arrays_make(&op, LONG), want = arrays_copy(&start, LONG);
    fixture_use(0);
    run(lanes[0], &op, LONG, &want);
    for (int variant = 0; fixture_use(variant); variant++) {
      const struct arrays got = arrays_copy(&start, LONG);
      for (int64_t from = 0, n = 1; from < LONG; from += n, n = n * 7 % 30011 + 1) {
        n = (n + dtype_block(op.states) - 1) / dtype_block(op.states) * dtype_block(op.states);
        n = n < LONG - from ? n : LONG - from;
        struct update cut = op;
        cut.first += from;
        const struct arrays part = arrays_at(&op, &got, from);
        run(lanes[variant % LANE_SIZES], &cut, n, &part);
      }
      assert_same(&op, &got, &want, LONG);
    }
    fixture_use(-1);
    fixture_release(NULL);
  }
}

/* Many times the same element: the mean of what is stored is the number in fp32, within five
 * standard deviations of a draw between two neighbours. */
static void assert_mean(void *array, enum dtype type, int64_t n, double want)
{
  double mean = 0, most = -INFINITY, least = INFINITY;
  for (int64_t i = 0; i < n; i++) {
    const double x = get(array, type, i);
    mean += x / (double)n;
    most = fmax(most, x);
    least = fmin(least, x);
  }
  assert_true(least < want && want < most);
  assert_close(mean, want, 2.5 * (most - least) / sqrt((double)n) + (most - least) * 0x1p-16);
}

DEVICE_TEST(stochastic_rounding_is_unbiased)
{
  enum { DRAWS = 1 << 16 };
  for (struct update op = settings(2); optim_states(op.rule) > 0; next_rule(&op))
    for (int type = 1; type < TYPES; type++) {
      op.master = op.states = types[type];
      op.stochastic = true;
      struct element e = {.p = 1.5, .state = {0.25, 0.25}};
      float *p = nans(DRAWS), *g = nans(DRAWS), *x = nans(DRAWS);
      for (int i = 0; i < DRAWS; i++)
        p[i] = 1.5f, g[i] = 0.3f, x[i] = 0.25f;
      struct arrays a = {typed(op.master, p, DRAWS), g, nans(DRAWS), {NULL}};
      for (int s = 0; s < RULE_STATES; s++) {
        a.state[s] = bytes(DRAWS * sizeof(float));
        moments_encode(a.state[s], op.states, optim_ops(op.rule)->state[s].code, x, DRAWS);
      }
      run(lanes[1], &op, DRAWS, &a);
      e = formula[op.rule](&op, 0.3f * 0.5, e);
      assert_mean(a.master, op.master, DRAWS, e.p);
      for (int s = 0; s < optim_states(op.rule); s++)
        assert_mean(a.state[s], op.states, DRAWS, encoded(&op, s, e.state[s]));
      fixture_release(NULL);
    }
}

DEVICE_TEST(absent_state_is_zero)
{
  for (struct update op = settings(1); optim_states(op.rule) > 0; next_rule(&op))
    for (int kept = 0; kept < 2; kept++) {
      op.copy = kept ? DTYPE_BF16 : DTYPE_F32;
      const struct arrays none = {
          NULL, normals(N, 1), nans(N), {kept ? normals(N, 1) : NULL, NULL}};
      const struct arrays zero = {
          bytes(N * sizeof(float)),
          none.grad,
          nans(N),
          {kept ? copy_of(none.state[0], N) : bytes(N * sizeof(float)), bytes(N * sizeof(float))}};
      run(lanes[1], &op, N, &none);
      run(lanes[1], &op, N, &zero);
      assert_same_bits(none.copy, zero.copy, N * dtype_size(op.copy));
      if (kept)
        assert_same_bits(none.state[0], zero.state[0], N * sizeof(float));
    }
}

/* Outcomes of a step: none is known, not clipped, clipped, not finite. */
enum { OUTCOMES = 4 };
static const struct outcome outcomes[OUTCOMES] = {
    {.scale = 1}, {.scale = 1, .finite = true}, {.scale = 0.37, .finite = true}, {.scale = 0.37}};

static struct update with_outcome(struct update op, int which)
{
  op.outcome = which <= 0 ? NULL : &outcomes[which];
  return op;
}

/* Oracle: the two updates, one after another. The second one works on copies of masters and states,
 * which are thrown away. One that is not finite leaves a copy of the master, rounded. */
static void check_speculation(const struct update *known, const struct update *next, int64_t n)
{
  const struct arrays start = arrays_make(next, n), got = arrays_copy(&start, n),
                      want = arrays_copy(&start, n);
  const void *pending = typed(next->grad, normals(n, 1), n);
  if (known)
    assert_ok(ops->update(lanes[1], n, known, want.master, pending, want.state, NULL));
  const struct arrays ahead = arrays_copy(&want, n);
  if (next->outcome && !next->outcome->finite)
    assert_ok(ops->cast(lanes[1], n, next->master, want.master, next->copy, want.copy));
  else
    assert_ok(ops->update(lanes[1], n, next, ahead.master, start.grad, ahead.state, want.copy));
  assert_ok(ops->speculate(lanes[2], n, known, pending, next, start.grad, got.master, got.state,
                           got.copy));
  assert_same(next, &got, &want, n);
  fixture_release(NULL);
}

DEVICE_TEST(speculation_is_two_updates)
{
  enum { LONG = 2 * 32768 + 4096 + 5 };
  int turn = 0;
  for (struct update rule = settings(1); optim_states(rule.rule) > 0; next_rule(&rule))
    for (int first = -1; first < OUTCOMES; first++)
      for (int second = 0; second < OUTCOMES; second++, turn++) {
        struct update before = settings(1), after = settings(2);
        before.rule = after.rule = rule.rule;
        before.states = after.states = turn % 4 < TYPES ? types[turn % 4] : DTYPE_BLOCK8;
        before.copy = after.copy = types[turn / TYPES % TYPES];
        before.stochastic = after.stochastic = turn % 2;
        before.first = after.first = turn % 5 * ((int64_t)1 << 30) + 4032;
        before = with_outcome(before, first);
        after = with_outcome(after, second);
        check_speculation(first < 0 ? NULL : &before, &after, turn % 2 ? LONG : N);
      }
}

TEST_MAIN(fixture_create, fixture_destroy)
