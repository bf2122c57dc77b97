/* SwiGLU. Oracles: the formulas in fp64, whose gradient is compared with finite differences.
 * Results are bitwise identical over 1 to 4 threads, over the instruction sets, and for all rows in
 * one call and row by row. */
#include "fixture.h"

#include <math.h>

static const int64_t shapes[][2] = {{1, 1},    {77, 40},   {3, 101},
                                    {77, 120}, {40, 1376}, {1, 20000}}; /* rows, F */
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static double sigmoid(double x)
{
  return 1 / (1 + exp(-x));
}

static double silu_slope(double g)
{
  return sigmoid(g) * (1 + g * (1 - sigmoid(g)));
}

struct sample {
  double gu[2], dy;
};

static double sample_loss(void *arg)
{
  const struct sample *s = arg;
  return s->dy * s->gu[0] * sigmoid(s->gu[0]) * s->gu[1];
}

DEVICE_TEST(the_twin_has_its_own_gradient)
{
  for (double g = -8; g <= 8; g += 0.37) {
    struct sample s = {{g, 1.3}, 0.7};
    double gradient[2] = {s.dy * s.gu[1] * silu_slope(g), s.dy * g * sigmoid(g)};
    assert_is_gradient(sample_loss, &s, s.gu, gradient, 2, 1, 1e-8);
  }
}

DEVICE_TEST(forward_and_backward_are_the_formulas)
{
  for (int i = 0; i < SHAPES; i++) {
    int64_t rows = shapes[i][0], F = shapes[i][1], n = rows * F;
    float *gu = normals(2 * n, 3), *dy = normals(n, 1), *first_y = NULL, *first = NULL;
    double *y = doubles(n), *dgu = doubles(2 * n);
    for (int64_t at = 0; at < n; at++) {
      int64_t g_at = at / F * 2 * F + at % F, u_at = g_at + F;
      double g = gu[g_at], u = gu[u_at];
      y[at] = g * sigmoid(g) * u;
      dgu[g_at] = dy[at] * u * silu_slope(g);
      dgu[u_at] = dy[at] * g * sigmoid(g);
    }
    for (int v = 0; fixture_use(v); v++)
      for (int l = 0; l < LANE_SIZES; l++) {
        float *got_y = nans(n), *got = nans(2 * n), *again = nans(n);
        assert_ok(ops->swiglu(lanes[l], rows, F, gu, got_y));
        assert_ok(ops->swiglu_backward(lanes[l], rows, F, gu, dy, got, again));
        assert_near(got_y, y, n, 5e-7);
        assert_near(got, dgu, 2 * n, 5e-7);
        assert_same_bits(again, got_y, (size_t)n * sizeof *got_y);
        for (int64_t r = 0; r < rows; r++)
          assert_ok(ops->swiglu(lanes[l], 1, F, gu + r * 2 * F, again + r * F));
        assert_same_bits(again, got_y, (size_t)n * sizeof *got_y);
        if (first) {
          assert_same_bits(got_y, first_y, (size_t)n * sizeof *got_y);
          assert_same_bits(got, first, (size_t)(2 * n) * sizeof *got);
        }
        first_y = got_y, first = got;
      }
  }
  fixture_use(-1);
}

/* Each element against its own twin, from where the sigmoid is nothing to where it is one. */
DEVICE_TEST(elements_are_close_one_by_one)
{
  for (int v = 0; fixture_use(v); v++)
    for (double at = -80; at <= 80; at += 0.013) {
      float gu[2] = {(float)at, 1}, dy = 1, y, dgu[2];
      double g = gu[0], want = g * sigmoid(g),
             tolerance = 5e-7 + 2e-7 * fabs(g) *
                                    (g < 0); /* an error of e in g is one of e g in the left tail */
      assert_ok(ops->swiglu(lanes[0], 1, 1, gu, &y));
      assert_ok(ops->swiglu_backward(lanes[0], 1, 1, gu, &dy, dgu, NULL));
      assert_true(fabs(y - want) <= tolerance * fabs(want));
      assert_true(dgu[1] == y);
      assert_true(fabs(dgu[0] - silu_slope(g)) <= 5e-7);
    }
  for (int v = 0; fixture_use(v); v++) {
    float gu[8] = {1e30f, -1e30f, NAN, -200, 1, 1, 1, 1}, y[4];
    assert_ok(ops->swiglu(lanes[0], 1, 4, gu, y));
    assert_true(y[0] == 1e30f && fabsf(y[1]) < 1e-7f && isnan(y[2]) && fabsf(y[3]) < 1e-35f);
  }
  fixture_use(-1);
}

DEVICE_TEST(results_may_take_the_place_of_inputs)
{
  int64_t rows = 77, F = 101, n = rows * F;
  float *gu = normals(2 * n, 2), *dy = normals(n, 1), *dgu = nans(2 * n), *y = nans(n),
        *within = copy_of(gu, 2 * n), *both = copy_of(dy, n);
  assert_ok(ops->swiglu_backward(lanes[1], rows, F, gu, dy, dgu, y));
  assert_ok(ops->swiglu_backward(lanes[1], rows, F, within, both, within, both));
  assert_same_bits(within, dgu, (size_t)(2 * n) * sizeof *gu);
  assert_same_bits(both, y, (size_t)n * sizeof *y);
}

DEVICE_TEST(guards_fire)
{
  float x[4] = {0};
  assert_int_equal(ops->swiglu(lanes[0], -1, 1, x, x), STATUS_INTERNAL);
  assert_int_equal(ops->swiglu(lanes[0], 1, -1, x, x), STATUS_INTERNAL);
  assert_int_equal(ops->swiglu_backward(lanes[0], -1, 1, x, x, x, NULL), STATUS_INTERNAL);
  assert_int_equal(ops->swiglu_backward(lanes[0], 1, -1, x, x, x, NULL), STATUS_INTERNAL);
}

TEST_MAIN(fixture_create, fixture_destroy)
