/* Segments and the AdamW pass over a rank's range. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "optim/optim.h"
#include "tests/test.h"

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

struct fixture {
  struct device *device;
  struct lane *lane;
  struct model *model;
};

static int set_up(void **state)
{
  struct fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  must(device_create("host", 0, DTYPE_F32, &f->device));
  must(f->device->ops->lane_create(f->device, "host", LANE_ROLE_COMPUTE, 2, &f->lane));
  must(model_create(&config, &f->model));
  *state = f;
  return 0;
}

static int tear_down(void **state)
{
  struct fixture *f = *state;
  model_destroy(f->model);
  f->device->ops->lane_destroy(f->lane);
  device_destroy(f->device);
  free(f);
  return 0;
}

/* Oracle: element by element. Padding is left out: either answer is right there. */
static void check_segments(const struct model *model, int unit, unsigned exempt)
{
  struct optim_segments segments;
  const struct layout_unit *layout = &model->unit[unit].layout;
  must(optim_segments_create(optim_ops(OPTIM_adamw), model, unit, exempt, &segments));
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
      assert_int_equal(segments.at[i].decays, !(exempt & 1u << model->unit[unit].param[p].kind));
    }
  optim_segments_destroy(&segments);
}

TEST_WITH(test_segments, set_up, tear_down)
{
  struct fixture *f = *test_state;
  for (unsigned exempt = 0; exempt <= ALL; exempt++)
    for (int unit = 0; unit < f->model->units; unit++)
      check_segments(f->model, unit, exempt);
  struct optim_segments one = {0};
  must(optim_segments_create(optim_ops(OPTIM_adamw), f->model, 1, 0, &one));
  assert_int_equal(one.n, 1);
  optim_segments_destroy(&one);
  optim_segments_destroy(&one);
}

TEST_WITH(test_frozen_segments, set_up, tear_down)
{
  struct fixture *f = *test_state;
  static char some[] = "*.bias", whole[] = "transformer.h.0.*", *patterns[] = {some, whole};
  struct model *model;
  struct optim_segments none;
  for (int n = 1; n <= 2; n++) {
    must(model_create(&config, &model));
    must(model_freeze(model, n, patterns, 3));
    for (unsigned exempt = 0; exempt <= ALL; exempt++)
      for (int unit = 0; unit < f->model->units - (n - 1); unit++)
        check_segments(model, unit, exempt);
    must(optim_segments_create(optim_ops(OPTIM_adamw), model, 1, 0, &none));
    assert_int_equal(none.n, n == 1 ? 1 : 0);
    optim_segments_destroy(&none);
    model_destroy(model);
  }
}

/* The optimizer's arrays of one whole unit, with padding as of `flat`. */
struct owned {
  int64_t flat;
  float *master, *grad, *m, *v;
};

static float *random_floats(int64_t n, const char *purpose, float std)
{
  float *out = calloc((size_t)n, sizeof *out);
  assert_non_null(out);
  rng_fill_normal(rng_key_make(1, purpose), 0, 0, n, 0, std, out);
  return out;
}

static struct owned owned_create(int64_t flat)
{
  struct owned o = {flat, random_floats(flat, "master", 1), random_floats(flat, "grad", 1),
                    random_floats(flat, "m", 0.1f), random_floats(flat, "v", 0.1f)};
  for (int64_t i = 0; i < flat; i++)
    o.v[i] *= o.v[i];
  return o;
}

static void owned_destroy(struct owned *o)
{
  free(o->master);
  free(o->grad);
  free(o->m);
  free(o->v);
}

static const struct update some_step = {.lr = 0.01f,
                                        .beta1 = 0.9f,
                                        .beta2 = 0.95f,
                                        .eps = 1e-8f,
                                        .decay = 0.1f,
                                        .grad_scale = 0.5f,
                                        .bias1 = 1 - 0.9 * 0.9 * 0.9,
                                        .bias2 = 1 - 0.95 * 0.95 * 0.95};

static void update(struct fixture *f, const struct optim_segments *segments, struct layout_range r,
                   const struct update *op, struct owned *o)
{
  void *const state[] = {o->m + r.begin, o->v + r.begin};
  must(optim_update(f->lane, segments, r, op,
                    &(struct optim_arrays){o->master + r.begin, o->grad + r.begin, state, NULL}));
}

static void assert_same(const struct owned *a, const struct owned *b)
{
  size_t bytes = (size_t)a->flat * sizeof(float);
  assert_memory_equal(a->master, b->master, bytes);
  assert_memory_equal(a->m, b->m, bytes);
  assert_memory_equal(a->v, b->v, bytes);
}

/* Identity: shards of any length, cut anywhere, make the whole. Bytes after the parameters do not
 * change. */
TEST_WITH(test_update_of_ranges, set_up, tear_down)
{
  struct fixture *f = *test_state;
  struct optim_segments segments;
  must(optim_segments_create(optim_ops(OPTIM_adamw), f->model, 1, NORM_BIAS, &segments));
  assert_true(segments.n > 2);
  int64_t flat = f->model->unit[1].layout.flat + 512, used = f->model->unit[1].layout.used;
  struct owned whole = owned_create(flat), parts = owned_create(flat), before = owned_create(flat);
  update(f, &segments, (struct layout_range){0, flat}, &some_step, &whole);
  for (int64_t begin = 0, length = 1; begin < flat; begin += length, length = length * 3 % 409 + 1)
    update(f, &segments,
           (struct layout_range){begin, begin + length < flat ? begin + length : flat}, &some_step,
           &parts);
  assert_same(&whole, &parts);
  assert_memory_not_equal(whole.master, before.master, sizeof(float));
  assert_memory_equal(whole.master + used, before.master + used,
                      (size_t)(flat - used) * sizeof(float));
  owned_destroy(&whole);
  owned_destroy(&parts);
  owned_destroy(&before);
  optim_segments_destroy(&segments);
}

/* Identity, as above, for arrays of other types: pointers advance by their sizes, and the random
 * bits are those of an element's place in the unit, not in the range. */
TEST_WITH(test_update_of_small_types, set_up, tear_down)
{
  enum { ARRAYS = 5 };
  struct fixture *f = *test_state;
  struct optim_segments segments;
  must(optim_segments_create(optim_ops(OPTIM_adamw), f->model, 1, NORM_BIAS, &segments));
  const int64_t flat = f->model->unit[1].layout.flat;
  struct owned start = owned_create(flat);
  struct update op = some_step;
  op.grad = op.states = DTYPE_BF16, op.copy = DTYPE_F16, op.stochastic = true, op.seed = 7;
  const enum dtype type[ARRAYS] = {DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_F16};
  const float *from[ARRAYS] = {start.master, start.grad, start.m, start.v, start.master};
  char *whole[ARRAYS], *parts[ARRAYS];
  for (int i = 0; i < ARRAYS; i++) {
    whole[i] = calloc((size_t)flat, sizeof(float));
    parts[i] = calloc((size_t)flat, sizeof(float));
    assert_true(whole[i] && parts[i]);
    dtype_convert(whole[i], type[i], from[i], DTYPE_F32, (size_t)flat);
    dtype_convert(parts[i], type[i], from[i], DTYPE_F32, (size_t)flat);
  }
  must(optim_update(f->lane, &segments, (struct layout_range){0, flat}, &op,
                    &(struct optim_arrays){whole[0], whole[1], (void **)&whole[2], whole[4]}));
  for (int64_t begin = 0, length = 1; begin < flat;
       begin += length, length = length * 3 % 409 + 1) {
    char *at[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
      at[i] = parts[i] + begin * (int64_t)dtype_size(type[i]);
    op.first = 12345; /* is set by the call */
    must(optim_update(f->lane, &segments,
                      (struct layout_range){begin, begin + length < flat ? begin + length : flat},
                      &op, &(struct optim_arrays){at[0], at[1], (void **)&at[2], at[4]}));
  }
  for (int i = 0; i < ARRAYS; i++) {
    assert_memory_equal(whole[i], parts[i], (size_t)flat * sizeof(float));
    free(whole[i]);
    free(parts[i]);
  }
  owned_destroy(&start);
  optim_segments_destroy(&segments);
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
TEST_WITH(test_ten_steps, set_up, tear_down)
{
  enum { STEPS = 10 };
  struct fixture *f = *test_state;
  const struct model_unit *unit = &f->model->unit[1];
  struct optim_segments segments;
  must(optim_segments_create(optim_ops(OPTIM_adamw), f->model, 1, NORM_BIAS, &segments));
  int64_t flat = unit->layout.flat;
  struct owned o = owned_create(flat);
  memset(o.m, 0, (size_t)flat * sizeof *o.m);
  memset(o.v, 0, (size_t)flat * sizeof *o.v);
  struct element *twin = calloc((size_t)flat, sizeof *twin);
  assert_non_null(twin);
  for (int64_t i = 0; i < flat; i++)
    twin[i].p = o.master[i];

  for (int t = 1; t <= STEPS; t++) {
    double lr = 0.1 / t, scale = 1.0 / (1 + t % 3);
    struct update op = {.lr = (float)lr, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    op.decay = 0.5f, op.grad_scale = (float)scale;
    op.bias1 = 1 - pow(0.9, t);
    op.bias2 = 1 - pow(0.95, t);
    rng_fill_normal(rng_key_make(2, "grad"), (uint64_t)t, 0, flat, 0, 1, o.grad);
    update(f, &segments, (struct layout_range){0, flat}, &op, &o);
    for (int p = 0; p < unit->params; p++) {
      double decay = unit->param[p].kind == PARAM_WEIGHT ? 0.5 : 0;
      for (int64_t i = unit->layout.offset[p];
           i < unit->layout.offset[p] + unit->layout.elements[p]; i++)
        element_step(&twin[i], o.grad[i] * scale, t, lr, decay);
    }
  }
  for (int p = 0; p < unit->params; p++)
    for (int64_t i = unit->layout.offset[p]; i < unit->layout.offset[p] + unit->layout.elements[p];
         i++)
      if (!(fabs(o.master[i] - twin[i].p) <= 1e-5))
        fail_msg("%s: %.9g, not %.9g", unit->param[p].name, (double)o.master[i], twin[i].p);
  free(twin);
  owned_destroy(&o);
  optim_segments_destroy(&segments);
}

TEST_MAIN(NULL, NULL)
