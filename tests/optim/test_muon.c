/* Muon. Oracles: the polynomial of Newton-Schulz on known singular values, in fp64. The whole step
 * of a unit in fp64. Counting, element by element, gives the place of a state. A unit that is cut
 * into ranges is bitwise identical to the whole one. */
#include "tests/device/fixture.h"

#include <math.h>
#include <string.h>

#include "optim/optim.h"

enum { NORM_BIAS = 1 << PARAM_NORM | 1 << PARAM_BIAS, STATES = 3 };

/* The quintic, five times. */
static double polynomial(double x)
{
  for (int i = 0; i < 5; i++)
    x = 3.4445 * x - 4.7750 * x * x * x + 2.0315 * x * x * x * x * x;
  return x;
}

/* n columns of `length`, orthonormal (Gram-Schmidt, twice). */
static double *orthonormal(int64_t length, int64_t n)
{
  double *q = doubles_of(normals(length * n, 1), length * n);
  for (int64_t j = 0; j < 2 * n; j++) {
    double *v = q + j % n * length, norm = 0;
    for (int64_t k = 0; k < j % n; k++) {
      double dot = 0;
      for (int64_t i = 0; i < length; i++)
        dot += q[k * length + i] * v[i];
      for (int64_t i = 0; i < length; i++)
        v[i] -= dot * q[k * length + i];
    }
    for (int64_t i = 0; i < length; i++)
      norm += v[i] * v[i];
    for (int64_t i = 0; i < length; i++)
      v[i] /= sqrt(norm);
  }
  return q;
}

/* u diag(s) v^T, row-major. */
static double *compose(int64_t rows, int64_t cols, int64_t d, const double *u, const double *s,
                       const double *v)
{
  double *m = doubles(rows * cols);
  for (int64_t k = 0; k < d; k++)
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < cols; j++)
        m[i * cols + j] += u[k * rows + i] * s[k] * v[k * cols + j];
  return m;
}

/* Singular values from 1 down to 1/20 become the polynomial of their share of the norm. fp32: a few
 * hundred roundings. bf16: 2^-9 each, which the slope 3.4445^5 near zero makes larger. */
static void check_orthogonal(enum dtype compute, int64_t rows, int64_t cols, double size,
                             double tolerance)
{
  const int64_t d = rows < cols ? rows : cols, n = rows * cols;
  const struct optim_matrix *muon = optim_ops(OPTIM_muon)->matrix;
  struct device *mine;
  struct lane *lane;
  double norm = 0, *s = doubles(d), *want_s = doubles(d);
  const double *u = orthonormal(rows, d), *v = orthonormal(cols, d);
  for (int64_t k = 0; k < d; k++) {
    s[k] = size * pow(20, -(double)k / (double)(d > 1 ? d - 1 : 1));
    norm += s[k] * s[k];
  }
  for (int64_t k = 0; k < d; k++) {
    want_s[k] = polynomial(s[k] / sqrt(norm));
    assert_true(d == 1 || (want_s[k] > 0.65 && want_s[k] < 1.25));
  }
  const double *in64 = compose(rows, cols, d, u, s, v),
               *want = compose(rows, cols, d, u, want_s, v);
  float *in = nans(n), *out = nans(n);
  for (int64_t i = 0; i < n; i++)
    in[i] = (float)in64[i];
  assert_ok(device_create("host", 0, compute, &mine));
  assert_ok(mine->ops->lane_create(mine, "muon", LANE_ROLE_COMPUTE, 2, &lane));
  dtype_convert(out, compute, in, DTYPE_F32, (size_t)n);
  void *work = bytes(muon->workspace(compute, rows, cols));
  assert_ok(muon->transform(lane, compute, rows, cols, out, out, work));
  dtype_convert(in, DTYPE_F32, out, compute, (size_t)n);
  for (int64_t i = 0; i < n; i++)
    if (!(fabs(in[i] - want[i]) <= tolerance))
      fail_msg("%lld x %lld: %g, not %g", (long long)rows, (long long)cols, (double)in[i], want[i]);
  mine->ops->lane_destroy(lane);
  device_destroy(mine);
}

DEVICE_TEST(singular_values_follow_the_polynomial)
{
  static const int64_t shapes[][2] = {{1, 1}, {1, 9}, {48, 48}, {33, 70}, {70, 33}, {17, 128}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    for (double size = 1e-9; size < 1e7; size *= 1e5) {
      check_orthogonal(DTYPE_F32, shapes[i][0], shapes[i][1], size, 2e-5);
      check_orthogonal(DTYPE_BF16, shapes[i][0], shapes[i][1], size, 0.06);
      fixture_release(NULL);
    }
}

DEVICE_TEST(zero_stays_zero)
{
  const struct optim_matrix *muon = optim_ops(OPTIM_muon)->matrix;
  float *x = bytes(12 * sizeof *x), *out = nans(12);
  assert_ok(
      muon->transform(lanes[0], DTYPE_F32, 3, 4, x, out, bytes(muon->workspace(DTYPE_F32, 3, 4))));
  assert_same_bits(out, x, 12 * sizeof *x);
}

static struct model *make_model(void)
{
  struct model_config config = {.arch = "gpt2", .layers = 1, .width = 15, .heads = 3};
  config.context = 13, config.vocab = 37, config.tied = true, config.norm_eps = 1e-5;
  config.init_std = 0.02;
  struct model *model;
  assert_ok(model_create(&config, &model));
  return model;
}

/* Every element's place in each state is the number of earlier elements that have it. */
DEVICE_TEST(states_are_packed)
{
  struct model *model = make_model();
  struct optim_segments segments;
  for (enum optimizer optimizer = 0; optimizer < OPTIM_COUNT; optimizer++)
    for (int unit = 0; unit < model->units; unit++) {
      const struct optim_ops *optim = optim_ops(optimizer);
      const struct layout_unit *layout = &model->unit[unit].layout;
      assert_ok(optim_segments_create(optim, model, unit, NORM_BIAS, &segments));
      for (int s = 0; s < optim->n_states; s++) {
        int64_t before = 0;
        for (int p = 0; p < layout->params; p++) {
          const int64_t end = p + 1 < layout->params ? layout->offset[p + 1] : layout->used;
          const bool matrix =
              optimizer == OPTIM_muon && unit == 1 && model->unit[unit].param[p].ndim == 2;
          const enum state_of of = optim->state[s].of;
          for (int64_t e = layout->offset[p]; e < end; e++) {
            assert_int_equal(optim_state_offset(&segments, s, e), before);
            before += of == STATE_OF_ALL || (of == STATE_OF_MATRICES) == matrix;
          }
        }
        const struct layout_range all = {0, layout->used};
        assert_int_equal(optim_state_elements(&segments, s, all), before);
        assert_int_equal(optim_state_offset(&segments, s, layout->flat),
                         optim->state[s].of == STATE_OF_ALL ? layout->flat : before);
      }
      optim_segments_destroy(&segments);
    }
  model_destroy(model);
}

/* One rank's part of a unit: a range, with packed states. */
struct shard {
  struct layout_range r;
  float *state[STATES];
};

/* A step of all shards, the window gathered. */
static void step(const struct optim_segments *segments, const struct update *op, int n,
                 struct shard *shard, float *master, const float *grad, float *copy, int64_t flat)
{
  float *window = nans(flat);
  for (int i = 0; i < n; i++)
    assert_ok(optim_direction(lanes[i % LANE_SIZES], segments, shard[i].r, op,
                              grad + shard[i].r.begin, (void **)shard[i].state, window));
  for (int i = 0; i < n; i++) {
    const struct layout_range r = shard[i].r;
    float *mine = copy_of(window, flat);
    assert_ok(optim_transform(lanes[1], segments, r, DTYPE_F32, mine,
                              bytes(optim_transform_workspace(segments, DTYPE_F32, r))));
    assert_ok(optim_apply(lanes[i % LANE_SIZES], segments, r, op, master + r.begin, mine,
                          copy + r.begin));
    const struct optim_arrays arrays = {master + r.begin, grad + r.begin, (void **)shard[i].state,
                                        copy + r.begin};
    assert_ok(optim_update(lanes[i % LANE_SIZES], segments, r, op, &arrays));
  }
}

static struct shard make_shard(const struct optim_segments *segments, struct layout_range r)
{
  struct shard shard = {.r = r};
  for (int s = 0; s < STATES; s++)
    shard.state[s] = bytes((size_t)optim_state_elements(segments, s, r) * sizeof(float) + 1);
  return shard;
}

static void orthogonalize64(int64_t rows, int64_t cols, double *x)
{
  const int64_t n = rows * cols;
  double norm = 0, *a = doubles(rows * rows), *ax = doubles(n), *aax = doubles(n);
  for (int64_t i = 0; i < n; i++)
    norm += x[i] * x[i];
  for (int64_t i = 0; i < n; i++)
    x[i] /= sqrt(norm);
  for (int iteration = 0; iteration < 5; iteration++) {
    memset(a, 0, (size_t)(rows * rows) * sizeof *a);
    memset(ax, 0, (size_t)n * sizeof *ax);
    memset(aax, 0, (size_t)n * sizeof *aax);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < rows; j++)
        for (int64_t k = 0; k < cols; k++)
          a[i * rows + j] += x[i * cols + k] * x[j * cols + k];
    for (int pass = 0; pass < 2; pass++)
      for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < rows; j++)
          for (int64_t k = 0; k < cols; k++)
            (pass ? aax : ax)[i * cols + k] += a[i * rows + j] * (pass ? ax : x)[j * cols + k];
    for (int64_t i = 0; i < n; i++)
      x[i] = 3.4445 * x[i] - 4.7750 * ax[i] + 2.0315 * aax[i];
  }
}

static struct update settings(int t)
{
  return (struct update){.lr = 1e-2,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .decay = 0.1,
                         .momentum = 0.9,
                         .grad_scale = NAN,
                         .bias1 = 1 - pow(0.9, t),
                         .bias2 = 1 - pow(0.95, t)};
}

/* p, momentum or m, v of one unit in fp64. */
static void step64(const struct model *model, const struct update *op, const float *grad,
                   double scale, double *p, double *m, double *v)
{
  const struct model_unit *unit = &model->unit[1];
  for (int k = 0; k < unit->params; k++) {
    const struct model_param *param = &unit->param[k];
    const int64_t begin = unit->layout.offset[k], n = unit->layout.elements[k];
    const double decay = param->kind == PARAM_WEIGHT ? op->decay : 0;
    double *x = doubles(n);
    for (int64_t i = 0; i < n; i++) {
      const int64_t e = begin + i;
      const double g = grad[e] * scale;
      p[e] *= 1 - op->lr * decay;
      if (param->ndim == 2) {
        m[e] = op->momentum * m[e] + g;
        x[i] = g + op->momentum * m[e];
        continue;
      }
      m[e] = op->beta1 * m[e] + (1 - op->beta1) * g;
      v[e] = op->beta2 * v[e] + (1 - op->beta2) * g * g;
      p[e] -= op->lr / op->bias1 * m[e] / (sqrt(v[e] / op->bias2) + op->eps);
    }
    if (param->ndim != 2)
      continue;
    const double length =
        0.2 * sqrt((double)(param->shape[0] > param->shape[1] ? param->shape[0] : param->shape[1]));
    orthogonalize64(param->shape[0], param->shape[1], x);
    for (int64_t i = 0; i < n; i++)
      p[begin + i] -= op->lr * length * x[i];
  }
}

/* Three steps of a block, whole and in ranges that cut matrices anywhere. The gradient is
 * clipped: the outcome's scale is in the momentum, not in the step. */
DEVICE_TEST(steps_are_the_formula_for_any_ranges)
{
  enum { STEPS = 3, MOST = 64 };
  struct model *model = make_model();
  struct optim_segments segments;
  struct shard whole, part[MOST];
  int parts = 0;
  assert_ok(optim_segments_create(optim_ops(OPTIM_muon), model, 1, NORM_BIAS, &segments));
  const struct layout_unit *layout = &model->unit[1].layout;
  const int64_t flat = layout->flat;
  whole = make_shard(&segments, (struct layout_range){0, flat});
  for (int64_t begin = 0, length = 1; begin < flat; begin += length, length = length * 3 % 409 + 1)
    part[parts++] = make_shard(
        &segments, (struct layout_range){begin, begin + length < flat ? begin + length : flat});
  assert_in_range(parts, 10, MOST);
  float *p = normals(flat, 0.5f), *q = copy_of(p, flat), *copy = nans(flat),
        *copy2 = copy_of(copy, flat);
  double *want = doubles_of(p, flat), *m = doubles(flat), *v = doubles(flat);
  for (int t = 1; t <= STEPS; t++) {
    const struct outcome outcome = {.scale = 0.25, .finite = 1};
    struct update op = settings(t);
    op.outcome = &outcome;
    const float *grad = normals(flat, 1);
    step(&segments, &op, 1, &whole, p, grad, copy, flat);
    step(&segments, &op, parts, part, q, grad, copy2, flat);
    step64(model, &op, grad, outcome.scale, want, m, v);
    assert_same_bits(p, q, (size_t)flat * sizeof *p);
    assert_same_bits(copy, copy2, (size_t)flat * sizeof *p);
  }
  for (int k = 0; k < layout->params; k++)
    for (int64_t e = layout->offset[k]; e < layout->offset[k] + layout->elements[k]; e++) {
      assert_true(copy[e] == p[e]);
      if (!(fabs(p[e] - want[e]) <= 2e-6)) /* steps are at most 0.02 and good to 1e-5 of that */
        fail_msg("%s: %.9g, not %.9g", model->unit[1].param[k].name, (double)p[e], want[e]);
    }
  optim_segments_destroy(&segments);
  model_destroy(model);
}

/* A step that is not finite changes nothing, whatever lies in the window. */
DEVICE_TEST(a_step_that_is_not_finite_changes_nothing)
{
  struct model *model = make_model();
  struct optim_segments segments;
  const struct outcome outcome = {.scale = NAN, .finite = 0};
  struct update op = settings(1);
  op.outcome = &outcome;
  assert_ok(optim_segments_create(optim_ops(OPTIM_muon), model, 1, NORM_BIAS, &segments));
  const int64_t flat = model->unit[1].layout.flat;
  struct shard whole = make_shard(&segments, (struct layout_range){0, flat});
  float *p = normals(flat, 1), *before = copy_of(p, flat), *copy = nans(flat),
        *unwritten = nans(flat);
  step(&segments, &op, 1, &whole, p, normals(flat, 1), copy, flat);
  assert_same_bits(p, before, (size_t)flat * sizeof *p);
  assert_same_bits(copy, unwritten, (size_t)flat * sizeof *p);
  for (int64_t i = 0; i < optim_state_elements(&segments, 0, whole.r); i++)
    assert_true(whole.state[0][i] == 0);
  optim_segments_destroy(&segments);
  model_destroy(model);
}

TEST_MAIN(fixture_create, fixture_destroy)
