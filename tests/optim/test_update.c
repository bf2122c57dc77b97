/* Segments and the AdamW pass over a rank's range. */

#include "tests/device/fixture.h"

#include <math.h>
#include <string.h>

#include "optim/optim.h"

static const struct model_config config = {.arch = "gpt2",
                                           .layers = 1,
                                           .width = 15,
                                           .heads = 3,
                                           .context = 13,
                                           .vocab = 37,
                                           .tied = true,
                                           .norm_eps = 1e-5,
                                           .init_std = 0.02};
enum {
  NORM_BIAS = 1 << PARAM_NORM | 1 << PARAM_BIAS,
  ALL = NORM_BIAS | 1 << PARAM_EMBEDDING | 1 << PARAM_WEIGHT
};

static struct model *model;

FIXTURE(set_up)
{
  must(model_create(&config, &model));
  return fixture_create(test_state);
}

FIXTURE(tear_down)
{
  model_destroy(model);
  return fixture_destroy(test_state);
}

static struct optim_segments segments_of(const struct model *of, int unit, unsigned exempt)
{
  struct optim_segments segments;
  must(optim_segments_create(optim_ops(OPTIM_adamw), of, unit, exempt, &segments));
  return segments;
}

/* Oracle: element by element. Padding is left out: either answer is right there. */
static void check_segments(const struct model *of, int unit, unsigned exempt)
{
  struct optim_segments segments = segments_of(of, unit, exempt);
  const struct layout_unit *layout = &of->unit[unit].layout;
  assert_int_equal(segments.at[0].begin, 0);
  assert_int_equal(segments.at[segments.n - 1].end, layout->used);
  for (int i = 1; i < segments.n; i++) {
    assert_true(segments.at[i].begin == segments.at[i - 1].end);
    assert_true(segments.at[i].decays != segments.at[i - 1].decays);
  }
  for (int p = 0; p < layout->params; p++)
    for (int64_t e = layout->offset[p]; e < layout->offset[p] + layout->elements[p]; e++) {
      if (layout->frozen[p]) {
        assert_true(e >= layout->used);
        continue;
      }
      int i = 0;
      while (segments.at[i].end <= e)
        i++;
      assert_int_equal(segments.at[i].decays, !(exempt & 1u << of->unit[unit].param[p].kind));
    }
  optim_segments_destroy(&segments);
}

DEVICE_TEST(test_segments)
{
  for (unsigned exempt = 0; exempt <= ALL; exempt++)
    for (int unit = 0; unit < model->units; unit++)
      check_segments(model, unit, exempt);
  struct optim_segments one = segments_of(model, 1, 0);
  assert_int_equal(one.n, 1);
  optim_segments_destroy(&one);
  optim_segments_destroy(&one);
}

DEVICE_TEST(test_frozen_segments)
{
  static char some[] = "*.bias", whole[] = "transformer.h.0.*", *patterns[] = {some, whole};
  for (int n = 1; n <= 2; n++) {
    struct model *frozen;
    must(model_create(&config, &frozen));
    must(model_freeze(frozen, n, patterns, 3));
    for (unsigned exempt = 0; exempt <= ALL; exempt++)
      for (int unit = 0; unit < model->units - (n - 1); unit++)
        check_segments(frozen, unit, exempt);
    struct optim_segments none = segments_of(frozen, 1, 0);
    assert_int_equal(none.n, n == 1 ? 1 : 0);
    optim_segments_destroy(&none);
    model_destroy(frozen);
  }
}

/* Arrays of one whole unit of `flat` elements, in the types of an update. */
enum { ARRAYS = 5 };
struct arrays {
  int64_t flat;
  enum dtype type[ARRAYS];
  char *at[ARRAYS]; /* master, gradient, two states, copy */
};

static struct arrays arrays_create(const struct update *op, int64_t flat)
{
  struct arrays a = {flat, {op->master, op->grad, op->states, op->states, op->copy}, {NULL}};
  for (int i = 0; i < ARRAYS; i++) {
    float *x = normals(flat, i < 2 ? 1 : 0.1f);
    for (int64_t e = 0; e < flat && i == 3; e++)
      x[e] *= x[e];
    a.at[i] = bytes((size_t)flat * sizeof *x);
    dtype_convert(a.at[i], a.type[i], x, DTYPE_F32, (size_t)flat);
  }
  return a;
}

static struct arrays arrays_copy(const struct arrays *a)
{
  struct arrays copy = *a;
  for (int i = 0; i < ARRAYS; i++)
    copy.at[i] = (char *)copy_of((float *)(void *)a->at[i], a->flat);
  return copy;
}

static const struct update some_step = {.lr = 0.01f,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.95f,
                                        .eps = 1e-8f,
                                        .decay = 0.1f,
                                        .grad_scale = 0.5f,
                                        .bias1 = 1 - 0.9 * 0.9 * 0.9,
                                        .bias2 = 1 - 0.95 * 0.95 * 0.95};

static void update(const struct optim_segments *segments, struct layout_range r,
                   const struct update *op, const struct arrays *a)
{
  char *at[ARRAYS];
  for (int i = 0; i < ARRAYS; i++)
    at[i] = a->at[i] + r.begin * (int64_t)dtype_size(a->type[i]);
  assert_ok(optim_update(lanes[1], segments, r, op,
                         &(struct optim_arrays){at[0], at[1], (void **)&at[2], at[4]}));
}

/* Identity: shards of any length, cut anywhere, make the whole. Bytes after the parameters do not
 * change. In arrays of other types pointers advance by their sizes, and the random bits are those
 * of an element's place in the unit, not in the range. */
static void check_ranges(struct update op)
{
  struct optim_segments segments = segments_of(model, 1, NORM_BIAS);
  const int64_t flat = model->unit[1].layout.flat + 512, used = model->unit[1].layout.used;
  const struct arrays before = arrays_create(&op, flat), whole = arrays_copy(&before),
                      parts = arrays_copy(&before);
  assert_true(segments.n > 2);
  update(&segments, (struct layout_range){0, flat}, &op, &whole);
  op.first = 12345; /* is set by the call */
  for (int64_t begin = 0, length = 1; begin < flat; begin += length, length = length * 3 % 409 + 1)
    update(&segments, (struct layout_range){begin, begin + length < flat ? begin + length : flat},
           &op, &parts);
  for (int i = 0; i < ARRAYS; i++) {
    const int64_t end = used * (int64_t)dtype_size(op.master);
    assert_same_bits(whole.at[i], parts.at[i], (size_t)flat * sizeof(float));
    if (i == 0)
      assert_same_bits(whole.at[i] + end, before.at[i] + end,
                       (size_t)(flat - used) * dtype_size(op.master));
  }
  assert_memory_not_equal(whole.at[0], before.at[0], sizeof(float));
  optim_segments_destroy(&segments);
}

DEVICE_TEST(ranges_make_the_whole)
{
  struct update small = some_step;
  small.grad = small.states = DTYPE_BF16, small.copy = DTYPE_F16, small.stochastic = true;
  small.seed = 7;
  check_ranges(some_step);
  check_ranges(small);
}

/* One element through ten steps in double, from the formulas of Loshchilov & Hutter. */
struct element {
  double p, m, v;
};

static void element_step(struct element *e, double g, int t, double lr, double decay)
{
  const double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  e->p -= lr * decay * e->p;
  e->m = beta1 * e->m + (1 - beta1) * g;
  e->v = beta2 * e->v + (1 - beta2) * g * g;
  e->p -= lr * (e->m / (1 - pow(beta1, t))) / (sqrt(e->v / (1 - pow(beta2, t))) + eps);
}

/* Oracle: the formulas in double. Ten steps of a dozen fp32 roundings each, 2^-24 of numbers around
 * 1: 1e-5 is ten times that. */
DEVICE_TEST(test_ten_steps)
{
  enum { STEPS = 10 };
  const struct model_unit *unit = &model->unit[1];
  struct optim_segments segments = segments_of(model, 1, NORM_BIAS);
  const int64_t flat = unit->layout.flat;
  const struct arrays a = arrays_create(&some_step, flat);
  const float *master = (const void *)a.at[0];
  struct element *twin = bytes((size_t)flat * sizeof *twin);
  memset(a.at[2], 0, (size_t)flat * sizeof *master);
  memset(a.at[3], 0, (size_t)flat * sizeof *master);
  for (int64_t i = 0; i < flat; i++)
    twin[i].p = master[i];
  for (int t = 1; t <= STEPS; t++) {
    const double lr = 0.1 / t, scale = 1.0 / (1 + t % 3);
    const float *grad = normals(flat, 1);
    struct update op = {.lr = (float)lr, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    op.decay = 0.5f, op.grad_scale = (float)scale;
    op.bias1 = 1 - pow(0.9, t);
    op.bias2 = 1 - pow(0.95, t);
    memcpy(a.at[1], grad, (size_t)flat * sizeof *grad);
    update(&segments, (struct layout_range){0, flat}, &op, &a);
    for (int p = 0; p < unit->params; p++) {
      const int64_t begin = unit->layout.offset[p];
      for (int64_t i = begin; i < begin + unit->layout.elements[p]; i++)
        element_step(&twin[i], grad[i] * scale, t, lr,
                     unit->param[p].kind == PARAM_WEIGHT ? 0.5 : 0);
    }
  }
  for (int p = 0; p < unit->params; p++)
    for (int64_t i = unit->layout.offset[p]; i < unit->layout.offset[p] + unit->layout.elements[p];
         i++)
      if (!(fabs(master[i] - twin[i].p) <= 1e-5))
        fail_msg("%s: %.9g, not %.9g", unit->param[p].name, (double)master[i], twin[i].p);
  optim_segments_destroy(&segments);
}

TEST_MAIN(set_up, tear_down)
