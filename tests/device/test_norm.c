/* Layer norm. Oracles: the formulas in fp64; bit equality over 1 to 4 threads and of a batch in one
 * call with the same batch sequence by sequence. Tolerances are relative to the largest element:
 * sums of at most 768 terms, errors of 1e-7 each that walk at random. */
#include "fixture.h"
#include "layernorm.h"

#include <math.h>
#include <string.h>

static const int64_t widths[] = {1, 40, 101, 768};
enum { WIDTHS = 4, B = 3, T = 13, R = B * T };
static const float eps = 1e-5f;

struct moments {
  double mean, rstd;
};

static struct moments moments_of(const float *x, int64_t C)
{
  struct moments m = {0};
  double squares = 0;
  for (int64_t i = 0; i < C; i++)
    m.mean += (double)x[i] / (double)C;
  for (int64_t i = 0; i < C; i++)
    squares += (x[i] - m.mean) * (x[i] - m.mean) / (double)C;
  m.rstd = 1 / sqrt(squares + eps);
  return m;
}

DEVICE_TEST(forward_is_the_formula)
{
  for (int w = 0; w < WIDTHS; w++)
    for (int with_add = 0; with_add < 2; with_add++) {
      int64_t C = widths[w], n = R * C;
      float *x = normals(n, 2), *add = normals(n, 3), *gamma = normals(C, 1), *beta = normals(C, 1),
            *first = NULL;
      double *want = doubles(n), *mean = doubles(R), *rstd = doubles(R);
      float *total = copy_of(x, n);
      for (int64_t i = 0; with_add && i < n; i++)
        total[i] = x[i] + add[i];
      for (int64_t r = 0; r < R; r++) {
        struct moments m = moments_of(total + r * C, C);
        mean[r] = m.mean, rstd[r] = m.rstd;
        for (int64_t i = 0; i < C; i++)
          want[r * C + i] = (total[r * C + i] - m.mean) * m.rstd * gamma[i] + beta[i];
      }
      for (int l = 0; l < LANE_SIZES; l++) {
        float *y = nans(n), *sum = nans(n), *got_mean = nans(R), *got_rstd = nans(R);
        assert_ok(layernorm(lanes[l], R, C, eps, x, with_add ? add : NULL, with_add ? sum : NULL,
                            gamma, beta, y, got_mean, got_rstd));
        assert_near(y, want, n, 2e-6);
        assert_near(got_mean, mean, R, 2e-6);
        assert_near(got_rstd, rstd, R, 2e-6);
        if (with_add)
          assert_same_bits(sum, total, (size_t)n * sizeof *sum);
        if (first)
          assert_same_bits(y, first, (size_t)n * sizeof *y);
        first = y;
      }
    }
}

DEVICE_TEST(sum_may_take_the_place_of_x)
{
  int64_t C = 40, n = R * C;
  float *x = normals(n, 2), *add = normals(n, 3), *gamma = normals(C, 1), *y = nans(n),
        *y2 = nans(n), *sum = nans(n), *mean = nans(R), *rstd = nans(R);
  assert_ok(layernorm(lanes[1], R, C, eps, x, add, sum, gamma, gamma, y, mean, rstd));
  assert_ok(layernorm(lanes[1], R, C, eps, x, add, x, gamma, gamma, y2, mean, rstd));
  assert_same_bits(x, sum, (size_t)n * sizeof *x);
  assert_same_bits(y, y2, (size_t)n * sizeof *y);
}

struct gradients {
  float *dx, *dgamma, *dbeta;
};

static void run_backward(struct lane *on, int64_t each, int64_t C, bool dx_accumulate,
                         bool accumulate, const float *dy, const float *x, const float *gamma,
                         const float *mean, const float *rstd, struct gradients to)
{
  void *work =
      bytes(device->model.layernorm_workspace(&device->model, each * T, C, team_size(on->team)));
  for (int64_t b = 0; b < B; b += each) {
    int64_t row = b * T, at = row * C, rows = (B - b < each ? B - b : each) * T;
    assert_ok(layernorm_backward(on, rows, C, T, dy + at, x + at, gamma, mean + row, rstd + row,
                                 dx_accumulate, to.dx + at, accumulate || b > 0, to.dgamma,
                                 to.dbeta, work));
  }
}

DEVICE_TEST(backward_is_the_formula_however_it_is_split)
{
  for (int w = 0; w < WIDTHS; w++)
    for (int accumulate = 0; accumulate < 4; accumulate++) {
      int64_t C = widths[w], n = R * C;
      bool to_dx = accumulate & 1, to_parameters = accumulate & 2;
      float *x = normals(n, 2), *dy = normals(n, 1), *gamma = normals(C, 1), *beta = normals(C, 1),
            *y = nans(n), *mean = nans(R), *rstd = nans(R);
      assert_ok(layernorm(lanes[0], R, C, eps, x, NULL, NULL, gamma, beta, y, mean, rstd));
      struct gradients start = {to_dx ? normals(n, 1) : nans(n),
                                to_parameters ? normals(C, 1) : nans(C),
                                to_parameters ? normals(C, 1) : nans(C)},
                       first = {0};
      double *dx = doubles(n), *dgamma = doubles(C), *dbeta = doubles(C);
      for (int64_t i = 0; i < C && to_parameters; i++)
        dgamma[i] = start.dgamma[i], dbeta[i] = start.dbeta[i];
      for (int64_t r = 0; r < R; r++) {
        struct moments m = moments_of(x + r * C, C);
        double g1 = 0, g2 = 0;
        for (int64_t i = 0; i < C; i++) {
          double normal = (x[r * C + i] - m.mean) * m.rstd, d = dy[r * C + i];
          g1 += d * gamma[i] / (double)C;
          g2 += d * gamma[i] * normal / (double)C;
          dgamma[i] += d * normal;
          dbeta[i] += d;
        }
        for (int64_t i = 0; i < C; i++) {
          double normal = (x[r * C + i] - m.mean) * m.rstd;
          dx[r * C + i] = (to_dx ? start.dx[r * C + i] : 0) +
                          m.rstd * ((double)dy[r * C + i] * gamma[i] - g1 - normal * g2);
        }
      }
      for (int l = 0; l < LANE_SIZES; l++)
        for (int64_t each = 1; each <= B; each++) {
          struct gradients got = {copy_of(start.dx, n), copy_of(start.dgamma, C),
                                  copy_of(start.dbeta, C)};
          run_backward(lanes[l], each, C, to_dx, to_parameters, dy, x, gamma, mean, rstd, got);
          if (C > 1) /* of a single column dx is 0: what is left is rounding */
            assert_near(got.dx, dx, n, 5e-6);
          assert_near(got.dgamma, dgamma, C, C > 1 ? 5e-6 : 1);
          assert_near(got.dbeta, dbeta, C, 5e-6);
          if (first.dx) {
            assert_same_bits(got.dx, first.dx, (size_t)n * sizeof(float));
            assert_same_bits(got.dgamma, first.dgamma, (size_t)C * sizeof(float));
            assert_same_bits(got.dbeta, first.dbeta, (size_t)C * sizeof(float));
          }
          first = got;
        }
    }
}

DEVICE_TEST(dx_may_take_the_place_of_dy)
{
  int64_t C = 101, n = R * C;
  float *x = normals(n, 2), *dy = normals(n, 1), *gamma = normals(C, 1), *y = nans(n),
        *mean = nans(R), *rstd = nans(R);
  assert_ok(layernorm(lanes[0], R, C, eps, x, NULL, NULL, gamma, gamma, y, mean, rstd));
  struct gradients apart = {nans(n), nans(C), nans(C)}, within = {copy_of(dy, n), nans(C), nans(C)};
  run_backward(lanes[2], B, C, false, false, dy, x, gamma, mean, rstd, apart);
  run_backward(lanes[2], B, C, false, false, within.dx, x, gamma, mean, rstd, within);
  assert_same_bits(apart.dx, within.dx, (size_t)n * sizeof(float));
  assert_same_bits(apart.dgamma, within.dgamma, (size_t)C * sizeof(float));
  assert_same_bits(apart.dbeta, within.dbeta, (size_t)C * sizeof(float));
}

DEVICE_TEST(gradients_of_parameters_may_be_left_out)
{
  int64_t C = 101, n = R * C;
  float *x = normals(n, 2), *dy = normals(n, 1), *gamma = normals(C, 1), *y = nans(n),
        *mean = nans(R), *rstd = nans(R);
  assert_ok(layernorm(lanes[0], R, C, eps, x, NULL, NULL, gamma, gamma, y, mean, rstd));
  struct gradients all = {nans(n), nans(C), nans(C)}, some = {nans(n), nans(C), nans(C)};
  run_backward(lanes[2], B, C, false, false, dy, x, gamma, mean, rstd, all);
  run_backward(lanes[2], B, C, false, false, dy, x, gamma, mean, rstd,
               (struct gradients){some.dx, some.dgamma, NULL});
  assert_same_bits(all.dgamma, some.dgamma, (size_t)C * sizeof(float));
  run_backward(lanes[2], B, C, false, false, dy, x, gamma, mean, rstd,
               (struct gradients){some.dx, NULL, some.dbeta});
  assert_same_bits(all.dbeta, some.dbeta, (size_t)C * sizeof(float));
  run_backward(lanes[2], B, C, false, false, dy, x, gamma, mean, rstd,
               (struct gradients){some.dx, NULL, NULL});
  assert_same_bits(all.dx, some.dx, (size_t)n * sizeof(float));
}

TEST_MAIN(fixture_create, fixture_destroy)
