/* Cross entropy. Oracle: the definition in fp64; bit equality over 1, 2, 3 threads. Tolerance of
 * the loss: exponentials are good to 1.8e-7 and add up in blocks of 1024 in fp32, so their
 * logarithm is good to 1e-6; the logits themselves enter exactly. The gradient has the same
 * tolerance, relative to its largest element. */
#include "fixture.h"

#include <math.h>

static void check(int64_t rows, int64_t V, int64_t ld, float std, double loss_tolerance,
                  bool weights)
{
  const float scale = 0.125f;
  float *logits = normals(rows * ld, std), *weight = normals(rows, 1), *first = NULL;
  int32_t *target = bytes((size_t)rows * sizeof *target);
  double *want_loss = doubles(rows), *want = doubles(rows * ld);
  for (int64_t r = 0; r < rows; r++) {
    const float *row = logits + r * ld;
    double max = -INFINITY, sum = 0;
    weight[r] = !weights ? 1 : r % 6 == 1 ? 0 : weight[r];
    target[r] = r % 5 == 2 ? -1 : (int32_t)(r * 37 % V);
    for (int64_t i = 0; i < V; i++)
      max = row[i] > max ? row[i] : max;
    for (int64_t i = 0; i < V; i++)
      sum += exp(row[i] - max);
    want_loss[r] = target[r] < 0 ? 0 : weight[r] * (log(sum) + max - row[target[r]]);
    for (int64_t i = 0; i < V; i++)
      want[r * ld + i] =
          target[r] < 0 ? 0 : scale * weight[r] * (exp(row[i] - max) / sum - (i == target[r]));
    for (int64_t i = V; i < ld; i++)
      want[r * ld + i] = 0;
  }
  for (int l = 0; l < LANE_SIZES; l++)
    for (int gradient = 0; gradient < 2; gradient++) {
      float *got = copy_of(logits, rows * ld);
      double *loss = bytes((size_t)rows * sizeof *loss);
      assert_ok(ops->cross_entropy(lanes[l], &(struct cross_entropy){rows, V, ld, got, target,
                                                                     weights ? weight : NULL, scale,
                                                                     gradient, loss}));
      for (int64_t r = 0; r < rows; r++)
        assert_true(fabs(loss[r] - want_loss[r]) <= loss_tolerance * fabsf(weight[r]));
      if (!gradient) {
        assert_same_bits(got, logits, (size_t)(rows * ld) * sizeof *got);
        continue;
      }
      for (int64_t r = 0; r < rows; r++) {
        if (target[r] >= 0)
          assert_near(got + r * ld, want + r * ld, V, 2e-6);
        for (int64_t i = 0; i < ld; i++)
          assert_true(fabs(got[r * ld + i] - want[r * ld + i]) <= 2e-6 * scale * fabsf(weight[r]) ||
                      i >= V);
        for (int64_t i = 0; i < V && target[r] < 0; i++)
          assert_true(got[r * ld + i] == 0);
        for (int64_t i = V; i < ld; i++)
          assert_true(got[r * ld + i] == 0);
      }
      if (first)
        assert_same_bits(got, first, (size_t)(rows * ld) * sizeof *got);
      first = got;
    }
}

DEVICE_TEST(loss_and_gradient_are_the_definition)
{
  check(77, 101, 110, 3, 1e-6, false);
  check(77, 101, 110, 3, 1e-6, true);
  check(9, 1, 1, 3, 1e-6, false);   /* one word: loss 0 */
  check(5, 16, 16, 0, 1e-6, false); /* all alike: log V */
  check(3, 50257, 50257, 2, 1e-6, true);
  check(7, 1025, 1030, 60, 1e-5, false); /* logits of several hundred: one word takes all */
}

DEVICE_TEST(a_bad_target_is_named)
{
  static const int32_t bad[] = {11, -2, INT32_MAX, INT32_MIN};
  float *logits = normals(3 * 11, 1), *before = copy_of(logits, 3 * 11);
  double loss[3];
  for (int i = 0; i < 4; i++) {
    int32_t target[3] = {0, -1, bad[i]};
    const struct cross_entropy op = {3, 11, 11, logits, target, NULL, 1, true, loss};
    must_fail(ops->cross_entropy(lanes[1], &op), STATUS_INPUT, "target 2 of the batch");
    assert_same_bits(logits, before, 33 * sizeof *logits);
  }
}

DEVICE_TEST(non_finite_logits_show_in_the_loss)
{
  static const float bad[] = {NAN, INFINITY};
  for (int i = 0; i < 2; i++) {
    float *logits = normals(101, 1);
    int32_t target = 3;
    double loss;
    logits[50] = bad[i];
    const struct cross_entropy op = {1, 101, 101, logits, &target, NULL, 1, true, &loss};
    assert_ok(ops->cross_entropy(lanes[0], &op));
    assert_false(isfinite(loss));
  }
}

/* Oracle: the definition. Margins so large that their exponential is no number lose no sum. */
DEVICE_TEST(preferences_are_the_definition)
{
  enum { PAIRS = 4, T = 3 };
  static const double nll[2 * PAIRS] = {7, 7, 20, 33.5, 41, 30, 3e6, 5},
                              reference[2 * PAIRS] = {-7, -7, -25, -31, -40, -30, -8, -9},
                              beta = 0.4, margin[PAIRS] = {0, 3, -0.4, -1199998.4};
  struct exactsum score[2 * PAIRS] = {0};
  float weight[2 * PAIRS * T];
  double loss[PAIRS], got[PAIRS], won[PAIRS];
  for (int b = 0; b < 2 * PAIRS; b++) {
    exactsum_add(&score[b], nll[b]);
    exactsum_normalize(&score[b]);
  }
  assert_ok(ops->prefer(
      lanes[0], &(struct preference){PAIRS, T, beta, score, reference, weight, loss, got, won}));
  for (int k = 0; k < PAIRS; k++) {
    const double m = margin[k], wanted = m < -700 ? -m : log(1 + exp(-m)),
                 slope = m < -700 ? beta : beta / (1 + exp(m));
    assert_true(fabs(got[k] - m) <= 1e-9 && fabs(loss[k] - wanted) <= 1e-9);
    assert_true(won[k] == (m > 0));
    for (int t = 0; t < 2 * T; t++)
      assert_true(weight[2 * k * T + t] == (float)(t < T ? slope : -slope));
  }
}

TEST_MAIN(fixture_create, fixture_destroy)
