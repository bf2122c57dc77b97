/* Layer norms and root mean square norms. Oracles: the formulas in fp64, whose gradient is compared
 * with finite differences. Results are bitwise identical over 1 to 4 threads, over the instruction
 * sets, and for a batch in one call and sequence by sequence. Tolerances are relative to the
 * largest element: sums of at most 768 terms, errors of 1e-7 each that walk at random. */
#include "fixture.h"

#include <math.h>

static const float eps = 1e-5f;

/* centred: a layer norm, whose rows are contiguous. */
struct shape {
  bool centred;
  int64_t B, T, groups, C;
};
static const struct shape shapes[] = {
    {false, 1, 1, 1, 1},   {false, 3, 77, 1, 40}, {false, 2, 150, 1, 101}, {false, 3, 13, 1, 768},
    {false, 3, 77, 3, 40}, {false, 2, 5, 6, 120}, {false, 1, 3, 130, 7},   {true, 3, 13, 1, 1},
    {true, 3, 13, 1, 40},  {true, 3, 13, 1, 101}, {true, 3, 13, 1, 768}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct moments {
  double mean, rstd;
};

static struct moments moments_of(bool centred, int64_t C, const double *x)
{
  struct moments m = {0};
  double squares = 0;
  for (int64_t i = 0; i < C && centred; i++)
    m.mean += x[i] / (double)C;
  for (int64_t i = 0; i < C; i++)
    squares += (x[i] - m.mean) * (x[i] - m.mean) / (double)C;
  m.rstd = 1 / sqrt(squares + eps);
  return m;
}

/* A piece of C elements, and gradients: dx =, the others +=. */
struct twin {
  bool centred;
  int64_t C;
  double *x, *gamma, *beta, *dy, *y, *dx, *dgamma, *dbeta;
};

static void twin_forward(const struct twin *t)
{
  const struct moments m = moments_of(t->centred, t->C, t->x);
  for (int64_t i = 0; i < t->C; i++)
    t->y[i] = (t->x[i] - m.mean) * m.rstd * t->gamma[i] + (t->centred ? t->beta[i] : 0);
}

static void twin_backward(const struct twin *t)
{
  const struct moments m = moments_of(t->centred, t->C, t->x);
  double mean_g = 0, mean_gn = 0;
  for (int64_t i = 0; i < t->C; i++) {
    const double normal = (t->x[i] - m.mean) * m.rstd, g = t->dy[i] * t->gamma[i] / (double)t->C;
    mean_g += t->centred ? g : 0;
    mean_gn += g * normal;
    t->dgamma[i] += t->dy[i] * normal;
    t->dbeta[i] += t->dy[i];
  }
  for (int64_t i = 0; i < t->C; i++)
    t->dx[i] = m.rstd * (t->dy[i] * t->gamma[i] - mean_g - (t->x[i] - m.mean) * m.rstd * mean_gn);
}

static double sample_loss(void *arg)
{
  const struct twin *t = arg;
  double sum = 0;
  twin_forward(t);
  for (int i = 0; i < t->C; i++)
    sum += t->y[i] * t->dy[i];
  return sum;
}

DEVICE_TEST(the_twin_has_its_own_gradient)
{
  enum { N = 40 };
  for (int centred = 0; centred < 2; centred++) {
    struct twin t = {centred,
                     N,
                     doubles_of(normals(N, 2), N),
                     doubles_of(normals(N, 1), N),
                     doubles_of(normals(N, 1), N),
                     doubles_of(normals(N, 1), N)};
    t.y = doubles(N), t.dx = doubles(N), t.dgamma = doubles(N), t.dbeta = doubles(N);
    twin_backward(&t);
    assert_is_gradient(sample_loss, &t, t.x, t.dx, N, 1, 1e-8);
    assert_is_gradient(sample_loss, &t, t.gamma, t.dgamma, N, 1, 1e-8);
    if (centred)
      assert_is_gradient(sample_loss, &t, t.beta, t.dbeta, N, 1, 1e-8);
  }
}

/* Rows of n elements out of rows of ld. */
static float *compact(const float *x, int64_t rows, int64_t n, int64_t ld)
{
  float *y = nans(rows * n);
  for (int64_t r = 0; r < rows; r++)
    memcpy(y + r * n, x + r * ld, (size_t)n * sizeof *y);
  return y;
}

static void check_forward(const struct shape *s, bool with_add)
{
  const int64_t rows = s->B * s->T, n = s->groups * s->C, x_stride = n + (s->centred ? 0 : 5),
                y_stride = n + (s->centred ? 0 : 2), pieces = rows * s->groups;
  const double tolerance = s->centred ? 2e-6 : 1e-6;
  float *x = normals(rows * x_stride, 2), *add = normals(rows * x_stride, 3),
        *gamma = normals(s->C, 1), *beta = normals(s->C, 1), *first = NULL,
        *total = compact(x, rows, n, x_stride);
  for (int64_t i = 0; with_add && i < rows * n; i++)
    total[i] += add[i / n * x_stride + i % n];
  double *mean = doubles(pieces), *rstd = doubles(pieces), *want = doubles(rows * n),
         *wide = doubles_of(total, rows * n), *wide_gamma = doubles_of(gamma, s->C),
         *wide_beta = doubles_of(beta, s->C);
  for (int64_t p = 0; p < pieces; p++) {
    const struct twin twin = {s->centred, s->C,      wide + p * s->C,
                              wide_gamma, wide_beta, .y = want + p * s->C};
    const struct moments m = moments_of(s->centred, s->C, twin.x);
    mean[p] = m.mean, rstd[p] = m.rstd;
    twin_forward(&twin);
  }
  for (int v = 0; fixture_use(v); v++)
    for (int l = 0; l < LANE_SIZES; l++) {
      float *y = nans(rows * y_stride), *sum = nans(rows * x_stride), *got = nans(pieces),
            *got_mean = nans(pieces);
      struct row_norm op = {.rows = rows, .groups = s->groups, .C = s->C, .x_stride = x_stride};
      op.y_stride = y_stride, op.eps = eps, op.x = x, op.gamma = gamma, op.y = y, op.rstd = got;
      op.beta = beta, op.mean = s->centred ? got_mean : NULL;
      if (with_add)
        op.add = add, op.sum = sum;
      assert_ok(ops->norm(lanes[l], &op));
      assert_near(compact(y, rows, n, y_stride), want, rows * n, tolerance);
      assert_near(got, rstd, pieces, tolerance);
      if (s->centred)
        assert_near(got_mean, mean, pieces, tolerance);
      if (with_add)
        assert_same_bits(compact(sum, rows, n, x_stride), total, (size_t)(rows * n) * sizeof *sum);
      if (first)
        assert_same_bits(y, first, (size_t)(rows * y_stride) * sizeof *y);
      first = y;
    }
  fixture_use(-1);
}

DEVICE_TEST(forward_is_the_formula)
{
  for (int i = 0; i < SHAPES; i++)
    for (int with_add = 0; with_add <= (shapes[i].groups == 1); with_add++)
      check_forward(&shapes[i], with_add);
}

DEVICE_TEST(results_may_take_the_place_of_inputs)
{
  const int64_t rows = 77, C = 101, n = rows * C;
  const size_t size = (size_t)n * sizeof(float);
  for (int centred = 0; centred < 2; centred++) {
    float *x = normals(n, 2), *y = nans(n), *within = copy_of(x, n), *sum = nans(n),
          *both = copy_of(x, n), *y2 = nans(n);
    struct row_norm op = {.rows = rows, .groups = 1, .C = C, .x_stride = C, .y_stride = C};
    op.eps = eps, op.x = x, op.gamma = normals(C, 1), op.beta = normals(C, 1), op.y = y;
    op.rstd = nans(rows), op.mean = centred ? nans(rows) : NULL;
    assert_ok(ops->norm(lanes[1], &op));
    op.x = op.y = within;
    assert_ok(ops->norm(lanes[1], &op));
    assert_same_bits(within, y, size);
    op.x = x, op.add = normals(n, 3), op.sum = sum, op.y = y;
    assert_ok(ops->norm(lanes[1], &op));
    op.x = op.sum = both, op.y = y2;
    assert_ok(ops->norm(lanes[1], &op));
    assert_same_bits(both, sum, size);
    assert_same_bits(y2, y, size);
  }
}

struct gradients {
  float *dx, *dgamma, *dbeta;
};

static void run_backward(struct lane *on, const struct shape *s, int64_t each,
                         struct row_norm_backward op, struct gradients to)
{
  const struct device_model *model = &device->model;
  op.groups = s->groups, op.C = s->C, op.tile = s->T, op.dgamma = to.dgamma, op.dbeta = to.dbeta;
  op.work = bytes(model->norm_workspace(model, s->centred, each * s->T, s->groups, s->C));
  for (int64_t b = 0; b < s->B; b += each) {
    struct row_norm_backward part = op;
    const int64_t row = b * s->T;
    part.rows = (s->B - b < each ? s->B - b : each) * s->T;
    part.x = (const float *)op.x + row * op.x_stride;
    part.dy = (const float *)op.dy + row * op.dy_stride;
    part.dx = to.dx + row * op.dx_stride, part.rstd = op.rstd + row * s->groups;
    part.mean = s->centred ? op.mean + row : NULL;
    part.accumulate = op.accumulate || b > 0;
    assert_ok(ops->norm_backward(on, &part));
  }
}

static void check_backward(const struct shape *s, bool to_dx, bool to_gamma)
{
  const int64_t rows = s->B * s->T, n = s->groups * s->C, x_stride = n + (s->centred ? 0 : 5),
                dy_stride = n + (s->centred ? 0 : 2), dx_stride = n + (s->centred ? 0 : 9),
                pieces = rows * s->groups, C = s->C;
  const double tolerance = s->centred ? 5e-6 : 3e-6;
  float *x = normals(rows * x_stride, 2), *dy = normals(rows * dy_stride, 1),
        *gamma = normals(C, 1), *mean = nans(pieces), *rstd = nans(pieces);
  const struct gradients start = {to_dx ? normals(rows * dx_stride, 1) : nans(rows * dx_stride),
                                  to_gamma ? normals(C, 1) : nans(C),
                                  to_gamma ? normals(C, 1) : nans(C)};
  double *wide = doubles_of(compact(x, rows, n, x_stride), rows * n),
         *wide_dy = doubles_of(compact(dy, rows, n, dy_stride), rows * n),
         *wide_gamma = doubles_of(gamma, C), *dx = doubles(rows * n),
         *dgamma = to_gamma ? doubles_of(start.dgamma, C) : doubles(C),
         *dbeta = to_gamma ? doubles_of(start.dbeta, C) : doubles(C);
  for (int64_t p = 0; p < pieces; p++) {
    const struct moments m = moments_of(s->centred, C, wide + p * C);
    mean[p] = (float)m.mean, rstd[p] = (float)m.rstd;
    twin_backward(&(struct twin){s->centred, C, wide + p * C, wide_gamma, NULL, wide_dy + p * C,
                                 NULL, dx + p * C, dgamma, dbeta});
  }
  for (int64_t i = 0; i < rows * n && to_dx; i++)
    dx[i] += start.dx[i / n * dx_stride + i % n];
  const struct row_norm_backward op = {.x_stride = x_stride,
                                       .dy_stride = dy_stride,
                                       .dx_stride = dx_stride,
                                       .dy = dy,
                                       .x = x,
                                       .gamma = gamma,
                                       .mean = mean,
                                       .rstd = rstd,
                                       .dx_accumulate = to_dx,
                                       .accumulate = to_gamma};
  struct gradients first = {0};
  for (int v = 0; fixture_use(v); v++)
    for (int l = 0; l < LANE_SIZES; l++)
      for (int64_t each = 1; each <= s->B; each++) {
        const struct gradients got = {copy_of(start.dx, rows * dx_stride), copy_of(start.dgamma, C),
                                      copy_of(start.dbeta, C)};
        run_backward(lanes[l], s, each, op, got);
        if (C > 1) /* of a single column dx is 0: what is left is rounding */
          assert_near(compact(got.dx, rows, n, dx_stride), dx, rows * n, tolerance);
        assert_near(got.dgamma, dgamma, C, C > 1 || !s->centred ? tolerance : 1);
        if (s->centred)
          assert_near(got.dbeta, dbeta, C, tolerance);
        if (first.dx) {
          assert_same_bits(got.dx, first.dx, (size_t)(rows * dx_stride) * sizeof(float));
          assert_same_bits(got.dgamma, first.dgamma, (size_t)C * sizeof(float));
          assert_same_bits(got.dbeta, first.dbeta, (size_t)C * sizeof(float));
        }
        first = got;
      }
  fixture_use(-1);
}

DEVICE_TEST(backward_is_the_formula_however_it_is_split)
{
  for (int i = 0; i < SHAPES; i++)
    for (int accumulate = 0; accumulate < 4; accumulate++) {
      check_backward(&shapes[i], accumulate & 1, accumulate & 2);
      fixture_release(NULL);
    }
}

DEVICE_TEST(dx_may_take_the_place_of_dy_and_sums_may_be_left_out)
{
  static const struct shape both[] = {{false, 2, 77, 3, 40}, {true, 3, 13, 1, 101}};
  for (const struct shape *s = both; s < both + 2; s++) {
    const int64_t rows = s->B * s->T, stride = s->groups * s->C, n = rows * stride;
    const size_t size = (size_t)n * sizeof(float), row = (size_t)s->C * sizeof(float);
    struct row_norm_backward op = {.x_stride = stride, .dy_stride = stride, .dx_stride = stride};
    op.dy = normals(n, 1), op.x = normals(n, 2), op.gamma = normals(s->C, 1);
    op.mean = normals(rows, 1), op.rstd = normals(rows * s->groups, 1);
    const struct gradients all = {nans(n), nans(s->C), nans(s->C)},
                           within = {copy_of(op.dy, n), nans(s->C), nans(s->C)};
    run_backward(lanes[2], s, s->B, op, all);
    for (int kept = 0; kept < 4; kept++) {
      const struct gradients some = {nans(n), kept & 1 ? nans(s->C) : NULL,
                                     kept & 2 ? nans(s->C) : NULL};
      run_backward(lanes[2], s, s->B, op, some);
      assert_same_bits(some.dx, all.dx, size);
      if (some.dgamma)
        assert_same_bits(some.dgamma, all.dgamma, row);
      if (some.dbeta)
        assert_same_bits(some.dbeta, all.dbeta, row);
    }
    op.dy = within.dx;
    run_backward(lanes[2], s, s->B, op, within);
    assert_same_bits(within.dx, all.dx, size);
    assert_same_bits(within.dgamma, all.dgamma, row);
    assert_same_bits(within.dbeta, all.dbeta, row);
  }
}

/* An uneven last tile, and no tile at all: the same sum but for its order. */
DEVICE_TEST(tiles_need_not_divide_the_rows)
{
  const int64_t rows = 200, C = 40;
  struct row_norm_backward op = {.rows = rows, .groups = 1, .C = C, .x_stride = C, .dy_stride = C};
  const float *x = op.x = normals(rows * C, 2), *dy = op.dy = normals(rows * C, 1);
  const float *rstd = op.rstd = normals(rows, 1);
  op.dx_stride = C, op.dx = nans(rows * C), op.gamma = normals(C, 1), op.dgamma = nans(C);
  op.work = bytes(device->model.norm_workspace(&device->model, false, rows, 1, C));
  double *want = doubles(C);
  for (int64_t i = 0; i < rows * C; i++)
    want[i % C] += (double)dy[i] * x[i] * rstd[i / C];
  for (op.tile = 0; op.tile <= 260; op.tile += 26) { /* 7 or 3 sequences, 1.5, one */
    assert_ok(ops->norm_backward(lanes[1], &op));
    assert_near(op.dgamma, want, C, 3e-6);
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
