/* AdamW. Oracles: the formula in fp64, as torch.optim.AdamW documents it (decay on the parameter first, bias corrections on step and denominator), over many
 * steps; and the same operations in fp32 in torch's order, bit for bit, for any number of threads and any cut of the range. */
#include "fixture.h"

#include <math.h>
#include <string.h>

enum { N = 2 * 32768 + 77, STEPS = 25 };

static struct adamw settings(int step, double decay)
{
  return (struct adamw){.lr = 1e-2,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .decay = decay,
                        .grad_scale = 0.5f,
                        .bias1 = 1 - pow(0.9, step),
                        .bias2 = 1 - pow(0.95, step)};
}

struct state64 {
  double *p, *m, *v;
};

static void step64(const struct adamw *op, int64_t n, const float *grad, struct state64 s)
{
  for (int64_t i = 0; i < n; i++) {
    double g = (double)grad[i] * op->grad_scale;
    s.p[i] *= 1 - op->lr * op->decay;
    s.m[i] = op->beta1 * s.m[i] + (1 - op->beta1) * g;
    s.v[i] = op->beta2 * s.v[i] + (1 - op->beta2) * g * g;
    s.p[i] -= op->lr * (s.m[i] / op->bias1) / (sqrt(s.v[i] / op->bias2) + op->eps);
  }
}

/* Steps are at most lr in size here and each is good to a few 1e-7 of itself, parameters are rounded once a step: 25 roundings of numbers below 8. */
static void many_steps_stay_with_the_formula(void **state)
{
  (void)state;
  enum { FEW = 1001 };
  for (int with_decay = 0; with_decay < 2; with_decay++) {
    float *p = normals(FEW, 1), *m = bytes(FEW * sizeof *m), *v = bytes(FEW * sizeof *v), *copy = nans(FEW);
    struct state64 want = {doubles(FEW), doubles(FEW), doubles(FEW)};
    for (int i = 0; i < FEW; i++)
      want.p[i] = p[i];
    for (int step = 1; step <= STEPS; step++) {
      struct adamw op = settings(step, with_decay ? 0.1 : 0);
      float *grad = normals(FEW, step % 2 ? 1e-3f : 10);
      grad[0] = 0; /* never any gradient: only the decay acts */
      assert_ok(ops->adamw(lanes[1], FEW, &op, p, grad, m, v, copy));
      step64(&op, FEW, grad, want);
      assert_same_bits(copy, p, FEW * sizeof *p);
    }
    for (int i = 0; i < FEW; i++) {
      assert_true(fabs(p[i] - want.p[i]) <= STEPS * (6e-8 * fmax(1, fabs(want.p[i])) + 1e-2 * 5e-7));
      assert_true(fabs(m[i] - want.m[i]) <= 1e-5); /* of moments of size 1 */
      assert_true(fabs(v[i] - want.v[i]) <= 2e-6 * want.v[i]);
    }
  }
}

static void one_step_is_torchs_sequence_of_operations(void **state)
{
  (void)state;
  float *p = normals(N, 1), *m = normals(N, 0.1f), *v = normals(N, 0.1f), *grad = normals(N, 1), *want_p = copy_of(p, N), *want_m = copy_of(m, N),
        *want_v = nans(N);
  struct adamw op = settings(3, 0.1);
  const float shrink = (float)(1 - op.lr * op.decay), rest1 = (float)(1 - op.beta1), beta2 = (float)op.beta2, rest2 = (float)(1 - op.beta2),
              eps = (float)op.eps;
  const float root2 = (float)sqrt(op.bias2), step = (float)(op.lr / op.bias1);
  for (int i = 0; i < N; i++) {
    v[i] = v[i] * v[i];
    volatile float g = grad[i] * op.grad_scale, x = p[i] * shrink, away = g - m[i], towards = rest1 * away, kept = v[i] * beta2,
                   part = rest2 * g; /* one rounding each */
    volatile float square = part * g, moment = m[i] + towards, second = kept + square, root = sqrtf(second), corrected = root / root2,
                   below = corrected + eps;
    volatile float above = step * moment, move = above / below;
    want_p[i] = x - move;
    want_m[i] = moment;
    want_v[i] = second;
  }
  for (int l = 0; l < LANE_SIZES; l++)
    for (int64_t cut = 0; cut < N; cut += 29989) {
      float *p2 = copy_of(p, N), *m2 = copy_of(m, N), *v2 = copy_of(v, N), *copy = nans(N);
      assert_ok(ops->adamw(lanes[l], cut, &op, p2, grad, m2, v2, copy));
      assert_ok(ops->adamw(lanes[l], N - cut, &op, p2 + cut, grad + cut, m2 + cut, v2 + cut, copy + cut));
      assert_same_bits(p2, want_p, N * sizeof *p);
      assert_same_bits(m2, want_m, N * sizeof *m);
      assert_same_bits(v2, want_v, N * sizeof *v);
      assert_same_bits(copy, want_p, N * sizeof *p);
    }
}

static void outcome_scales_or_stops(void **state)
{
  (void)state;
  float *grad = normals(N, 1), *p = normals(N, 1), *m = normals(N, 1), *v = bytes(N * sizeof *v), *copy = normals(N, 1);
  float *p2 = copy_of(p, N), *m2 = copy_of(m, N), *v2 = copy_of(v, N), *copy2 = copy_of(copy, N);
  struct outcome outcome = {.grad_norm = INFINITY, .scale = 0.375, .finite = 0};
  struct adamw by_outcome = settings(3, 0.1), by_hand = settings(3, 0.1);
  by_hand.grad_scale = 0.375f;
  by_outcome.grad_scale = NAN; /* not read */
  by_outcome.outcome = &outcome;
  assert_ok(ops->adamw(lanes[1], N, &by_outcome, p, grad, m, v, copy));
  assert_same_bits(p, p2, N * sizeof *p);
  assert_same_bits(m, m2, N * sizeof *m);
  assert_same_bits(v, v2, N * sizeof *v);
  assert_same_bits(copy, copy2, N * sizeof *copy);
  outcome.finite = 1;
  assert_ok(ops->adamw(lanes[1], N, &by_outcome, p, grad, m, v, copy));
  assert_ok(ops->adamw(lanes[1], N, &by_hand, p2, grad, m2, v2, copy2));
  assert_same_bits(p, p2, N * sizeof *p);
  assert_same_bits(m, m2, N * sizeof *m);
  assert_same_bits(v, v2, N * sizeof *v);
  assert_same_bits(copy, copy2, N * sizeof *copy);
  assert_true(isfinite(p[0]) && memcmp(p, m, sizeof *p) != 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      DEVICE_TEST(many_steps_stay_with_the_formula),
      DEVICE_TEST(one_step_is_torchs_sequence_of_operations),
      DEVICE_TEST(outcome_scales_or_stops),
  };
  return RUN_DEVICE_TESTS(tests);
}
