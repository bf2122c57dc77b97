/* Root mean square norm. Oracles: the formulas in fp64, whose gradient is compared with finite
 * differences. Results are bitwise identical over 1 to 4 threads, over the instruction sets, and
 * for a batch in one call and sequence by sequence. Tolerances are relative to the largest element:
 * sums of at most 768 terms, errors of 1e-7 each that walk at random. */
#include "fixture.h"

#include <math.h>
#include <string.h>

static const float eps = 1e-5f;

struct shape {
  int64_t B, T, groups, C;
};
static const struct shape shapes[] = {{1, 1, 1, 1},    {3, 77, 1, 40}, {2, 150, 1, 101},
                                      {3, 13, 1, 768}, {3, 77, 3, 40}, {2, 5, 6, 120},
                                      {1, 3, 130, 7}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static double rstd_of(const double *x, int64_t C)
{
  double squares = 0;
  for (int64_t i = 0; i < C; i++)
    squares += x[i] * x[i];
  return 1 / sqrt(squares / (double)C + eps);
}

static void twin_forward(int64_t C, const double *x, const double *gamma, double *y)
{
  double rstd = rstd_of(x, C);
  for (int64_t i = 0; i < C; i++)
    y[i] = x[i] * rstd * gamma[i];
}

/* dx =, dgamma += */
static void twin_backward(int64_t C, const double *dy, const double *x, const double *gamma,
                          double *dx, double *dgamma)
{
  double rstd = rstd_of(x, C), mean = 0;
  for (int64_t i = 0; i < C; i++) {
    mean += dy[i] * gamma[i] * x[i] * rstd / (double)C;
    dgamma[i] += dy[i] * x[i] * rstd;
  }
  for (int64_t i = 0; i < C; i++)
    dx[i] = rstd * (dy[i] * gamma[i] - x[i] * rstd * mean);
}

struct sample {
  double x[40], gamma[40], dy[40];
};

static double sample_loss(void *arg)
{
  const struct sample *s = arg;
  double y[40], sum = 0;
  twin_forward(40, s->x, s->gamma, y);
  for (int i = 0; i < 40; i++)
    sum += y[i] * s->dy[i];
  return sum;
}

DEVICE_TEST(the_twin_has_its_own_gradient)
{
  struct sample s;
  double dx[40], dgamma[40] = {0};
  memcpy(s.x, doubles_of(normals(40, 2), 40), sizeof s.x);
  memcpy(s.gamma, doubles_of(normals(40, 1), 40), sizeof s.gamma);
  memcpy(s.dy, doubles_of(normals(40, 1), 40), sizeof s.dy);
  twin_backward(40, s.dy, s.x, s.gamma, dx, dgamma);
  assert_is_gradient(sample_loss, &s, s.x, dx, 40, 1, 1e-8);
  assert_is_gradient(sample_loss, &s, s.gamma, dgamma, 40, 1, 1e-8);
}

/* Rows of n elements out of rows of ld. */
static float *compact(const float *x, int64_t rows, int64_t n, int64_t ld)
{
  float *y = nans(rows * n);
  for (int64_t r = 0; r < rows; r++)
    memcpy(y + r * n, x + r * ld, (size_t)n * sizeof *y);
  return y;
}

DEVICE_TEST(forward_is_the_formula)
{
  for (int i = 0; i < SHAPES; i++)
    for (int with_add = 0; with_add <= (shapes[i].groups == 1); with_add++) {
      const struct shape *s = &shapes[i];
      int64_t rows = s->B * s->T, n = s->groups * s->C, x_stride = n + 5, y_stride = n + 2,
              pieces = rows * s->groups;
      float *x = normals(rows * x_stride, 2), *add = normals(rows * x_stride, 3),
            *gamma = normals(s->C, 1), *first = NULL;
      float *total = compact(x, rows, n, x_stride);
      for (int64_t r = 0; with_add && r < rows; r++)
        for (int64_t j = 0; j < n; j++)
          total[r * n + j] = x[r * x_stride + j] + add[r * x_stride + j];
      double *wide = doubles_of(total, rows * n), *want = doubles(rows * n),
             *rstd = doubles(pieces), *wide_gamma = doubles_of(gamma, s->C);
      for (int64_t p = 0; p < pieces; p++) {
        twin_forward(s->C, wide + p * s->C, wide_gamma, want + p * s->C);
        rstd[p] = rstd_of(wide + p * s->C, s->C);
      }
      for (int v = 0; fixture_use(v); v++)
        for (int l = 0; l < LANE_SIZES; l++) {
          float *y = nans(rows * y_stride), *sum = nans(rows * x_stride), *got = nans(pieces);
          struct row_norm op = {.rows = rows, .groups = s->groups, .C = s->C, .x_stride = x_stride};
          op.y_stride = y_stride, op.eps = eps, op.x = x, op.gamma = gamma, op.y = y, op.rstd = got;
          if (with_add)
            op.add = add, op.sum = sum;
          assert_ok(ops->norm(lanes[l], &op));
          assert_near(compact(y, rows, n, y_stride), want, rows * n, 1e-6);
          assert_near(got, rstd, pieces, 1e-6);
          if (with_add)
            assert_same_bits(compact(sum, rows, n, x_stride), total,
                             (size_t)(rows * n) * sizeof *sum);
          if (first)
            assert_same_bits(y, first, (size_t)(rows * y_stride) * sizeof *y);
          first = y;
        }
    }
  fixture_use(-1);
}

DEVICE_TEST(results_may_take_the_place_of_inputs)
{
  int64_t rows = 77, C = 101, n = rows * C;
  float *x = normals(n, 2), *add = normals(n, 3), *gamma = normals(C, 1), *rstd = nans(rows),
        *y = nans(n), *within = copy_of(x, n);
  struct row_norm op = {.rows = rows, .groups = 1, .C = C, .x_stride = C, .y_stride = C};
  op.eps = eps, op.x = x, op.gamma = gamma, op.y = y, op.rstd = rstd;
  assert_ok(ops->norm(lanes[1], &op));
  op.x = op.y = within;
  assert_ok(ops->norm(lanes[1], &op));
  assert_same_bits(within, y, (size_t)n * sizeof *y);
  float *sum = nans(n), *both = copy_of(x, n), *y2 = nans(n);
  op.x = x, op.add = add, op.sum = sum, op.y = y;
  assert_ok(ops->norm(lanes[1], &op));
  op.x = op.sum = both, op.y = y2;
  assert_ok(ops->norm(lanes[1], &op));
  assert_same_bits(both, sum, (size_t)n * sizeof *y);
  assert_same_bits(y2, y, (size_t)n * sizeof *y);
}

struct gradients {
  float *dx, *dgamma;
};

static void run_backward(struct lane *on, const struct shape *s, int64_t each,
                         struct row_norm_backward op)
{
  void *work =
      nans((int64_t)(device->model.rmsnorm_workspace(&device->model, each * s->T, s->groups, s->C,
                                                     team_size(on->team)) /
                     sizeof(float)));
  for (int64_t b = 0; b < s->B; b += each) {
    struct row_norm_backward part = op;
    int64_t row = b * s->T;
    part.rows = (s->B - b < each ? s->B - b : each) * s->T;
    part.x = (const float *)op.x + row * op.x_stride;
    part.dy = (const float *)op.dy + row * op.dy_stride;
    part.dx = (float *)op.dx + row * op.dx_stride, part.rstd = op.rstd + row * s->groups;
    part.accumulate = op.accumulate || b > 0, part.work = work;
    assert_ok(ops->norm_backward(on, &part));
  }
}

static void check_backward(const struct shape *s, bool to_dx, bool to_gamma)
{
  int64_t rows = s->B * s->T, n = s->groups * s->C, x_stride = n + 5, dy_stride = n + 2,
          dx_stride = n + 9, pieces = rows * s->groups;
  float *x = normals(rows * x_stride, 2), *dy = normals(rows * dy_stride, 1),
        *gamma = normals(s->C, 1), *rstd = nans(pieces);
  double *wide = doubles_of(compact(x, rows, n, x_stride), rows * n),
         *wide_dy = doubles_of(compact(dy, rows, n, dy_stride), rows * n),
         *wide_gamma = doubles_of(gamma, s->C), *dx = doubles(rows * n), *dgamma = doubles(s->C);
  struct gradients start = {to_dx ? normals(rows * dx_stride, 1) : nans(rows * dx_stride),
                            to_gamma ? normals(s->C, 1) : nans(s->C)},
                   first = {0};
  for (int64_t i = 0; i < s->C && to_gamma; i++)
    dgamma[i] = start.dgamma[i];
  for (int64_t p = 0; p < pieces; p++) {
    rstd[p] = (float)rstd_of(wide + p * s->C, s->C);
    twin_backward(s->C, wide_dy + p * s->C, wide + p * s->C, wide_gamma, dx + p * s->C, dgamma);
  }
  for (int64_t i = 0; i < rows * n && to_dx; i++)
    dx[i] += start.dx[i / n * dx_stride + i % n];
  for (int v = 0; fixture_use(v); v++)
    for (int l = 0; l < LANE_SIZES; l++)
      for (int64_t each = 1; each <= s->B; each++) {
        struct gradients got = {copy_of(start.dx, rows * dx_stride), copy_of(start.dgamma, s->C)};
        run_backward(lanes[l], s, each,
                     (struct row_norm_backward){.groups = s->groups,
                                                .C = s->C,
                                                .tile = s->T,
                                                .x_stride = x_stride,
                                                .dy_stride = dy_stride,
                                                .dx_stride = dx_stride,
                                                .dy = dy,
                                                .x = x,
                                                .gamma = gamma,
                                                .rstd = rstd,
                                                .dx_accumulate = to_dx,
                                                .accumulate = to_gamma,
                                                .dx = got.dx,
                                                .dgamma = got.dgamma});
        if (s->C > 1) /* of a single column dx is 0: what is left is rounding */
          assert_near(compact(got.dx, rows, n, dx_stride), dx, rows * n, 3e-6);
        assert_near(got.dgamma, dgamma, s->C, 3e-6);
        if (first.dx) {
          assert_same_bits(got.dx, first.dx, (size_t)(rows * dx_stride) * sizeof(float));
          assert_same_bits(got.dgamma, first.dgamma, (size_t)s->C * sizeof(float));
        }
        first = got;
      }
  fixture_use(-1);
}

DEVICE_TEST(backward_is_the_formula_however_it_is_split)
{
  for (int i = 0; i < SHAPES; i++)
    for (int accumulate = 0; accumulate < 4; accumulate++)
      check_backward(&shapes[i], accumulate & 1, accumulate & 2);
}

DEVICE_TEST(dx_may_take_the_place_of_dy_and_dgamma_may_be_left_out)
{
  const struct shape s = {2, 77, 3, 40};
  int64_t rows = s.B * s.T, n = rows * s.groups * s.C, stride = s.groups * s.C;
  float *x = normals(n, 2), *dy = normals(n, 1), *gamma = normals(s.C, 1),
        *rstd = normals(rows * s.groups, 1), *apart = nans(n), *within = copy_of(dy, n),
        *alone = nans(n), *dgamma = nans(s.C), *dgamma2 = nans(s.C);
  struct row_norm_backward op = {.groups = s.groups, .C = s.C, .tile = s.T, .x_stride = stride};
  op.dy_stride = stride, op.dx_stride = stride, op.dy = dy, op.x = x, op.gamma = gamma;
  op.rstd = rstd, op.dx = apart, op.dgamma = dgamma;
  run_backward(lanes[2], &s, s.B, op);
  op.dy = op.dx = within;
  op.dgamma = dgamma2;
  run_backward(lanes[2], &s, s.B, op);
  op.dy = dy, op.dx = alone, op.dgamma = NULL;
  run_backward(lanes[2], &s, s.B, op);
  assert_same_bits(within, apart, (size_t)n * sizeof *apart);
  assert_same_bits(alone, apart, (size_t)n * sizeof *apart);
  assert_same_bits(dgamma2, dgamma, (size_t)s.C * sizeof *dgamma);
}

/* An uneven last tile, and no tile at all: the same sum but for its order. */
DEVICE_TEST(tiles_need_not_divide_the_rows)
{
  int64_t rows = 200, C = 40;
  float *x = normals(rows * C, 2), *dy = normals(rows * C, 1), *gamma = normals(C, 1),
        *rstd = normals(rows, 1), *dx = nans(rows * C);
  double *want = doubles(C);
  for (int64_t i = 0; i < rows * C; i++)
    want[i % C] += (double)dy[i] * x[i] * rstd[i / C];
  for (int64_t tile = 0; tile <= 260; tile += 26) { /* 7 or 3 sequences, 1.5, one */
    float *dgamma = nans(C);
    void *work = nans(
        (int64_t)(device->model.rmsnorm_workspace(&device->model, rows, 1, C, 2) / sizeof(float)));
    struct row_norm_backward op = {.rows = rows, .groups = 1, .C = C, .tile = tile, .x_stride = C};
    op.dy_stride = C, op.dx_stride = C, op.dy = dy, op.x = x, op.gamma = gamma, op.rstd = rstd;
    op.dx = dx, op.dgamma = dgamma, op.work = work;
    assert_ok(ops->norm_backward(lanes[1], &op));
    assert_near(dgamma, want, C, 3e-6);
  }
}

DEVICE_TEST(guards_fire)
{
  float x[16] = {0};
  struct row_norm good = {.rows = 2, .groups = 2, .C = 4, .x_stride = 8, .y_stride = 8, .x = x};
  good.gamma = x, good.y = x, good.rstd = x;
  struct row_norm bad[] = {good, good, good, good, good, good};
  bad[0].rows = -1, bad[1].groups = 0, bad[2].C = 0, bad[3].x_stride = 7, bad[4].y_stride = 7;
  bad[5].add = x;
  for (int i = 0; i < 6; i++)
    assert_int_equal(ops->norm(lanes[0], &bad[i]), STATUS_INTERNAL);
  struct row_norm_backward back = {.rows = 2, .groups = 2, .C = 4, .x_stride = 8, .dy_stride = 8};
  back.dx_stride = 8, back.dy = x, back.x = x, back.gamma = x, back.rstd = x, back.dx = x;
  struct row_norm_backward worse[] = {back, back, back, back, back, back, back};
  worse[0].rows = -1, worse[1].groups = 0, worse[2].C = -4, worse[3].x_stride = 7;
  worse[4].dy_stride = 7, worse[5].dx_stride = 7, worse[6].tile = -1;
  for (int i = 0; i < 7; i++)
    assert_int_equal(ops->norm_backward(lanes[0], &worse[i]), STATUS_INTERNAL);
}

TEST_MAIN(fixture_create, fixture_destroy)
