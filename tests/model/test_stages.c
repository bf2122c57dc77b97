/* Blocks as several stages, in every architecture. Oracle: the same model with one stage per block,
 * bit for bit in fp32. In bf16 the stream is rounded between the stages. There the bits are those
 * of stages with units of their own. Gradients that a stage leaves alone are not numbers. */
#include <math.h>

#include "base/append.h"
#include "engine.h"
#include "stages.h"
#include "tests/test.h"

static const struct stage_row *const lists[] = {stages_shared, stages_own};

static void create(const struct stage_row *stages, const char *keys, const char *frozen,
                   struct engine *out)
{
  stages_next = stages;
  engine_create_frozen(keys, frozen, 2, out);
  stages_next = NULL;
}

/* The gradient of a parameter, NULL: it has none. */
static const float *gradient_of(const struct engine *e, const char *name, int64_t *elements)
{
  for (int u = 0; u < e->model->units; u++)
    for (int p = 0; p < e->model->unit[u].params; p++)
      if (strcmp(e->model->unit[u].param[p].name, name) == 0) {
        *elements = e->model->unit[u].layout.elements[p];
        return e->model->unit[u].param[p].frozen ? NULL : engine_param(e, e->grads, u, p);
      }
  fail_msg("there is no %s", name);
  return NULL;
}

static void assert_same_gradients(const struct engine *one, const struct engine *many)
{
  int64_t n = 0, m = 0;
  assert_int_equal(many->model->parameters, one->model->parameters);
  for (int u = 0; u < one->model->units; u++)
    for (int p = 0; p < one->model->unit[u].params; p++) {
      const char *name = one->model->unit[u].param[p].name;
      const float *x = gradient_of(one, name, &n), *y = gradient_of(many, name, &m);
      assert_true(n == m && !x == !y);
      if (x && memcmp(x, y, (size_t)n * sizeof *x))
        fail_msg("%s has another gradient", name);
    }
}

/* Relative distance of all gradients. */
static double distance(const struct engine *a, const struct engine *b)
{
  double apart = 0, all = 0;
  int64_t n = 0;
  for (int u = 0; u < a->model->units; u++)
    for (int p = 0; p < a->model->unit[u].params; p++) {
      const char *name = a->model->unit[u].param[p].name;
      const float *x = gradient_of(a, name, &n), *y = gradient_of(b, name, &n);
      for (int64_t i = 0; x && i < n; i++) {
        apart += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        all += (double)x[i] * x[i];
      }
    }
  return sqrt(apart / all);
}

/* What lies between parameters is summed with them. */
static void assert_gaps_are_zero(const struct engine *e, int u)
{
  const struct layout_unit *layout = &e->model->unit[u].layout;
  int64_t end = 0;
  for (int p = 0; p < layout->params; p++) {
    if (layout->frozen[p])
      continue;
    for (; end < layout->offset[p]; end++)
      assert_true(((const float *)e->grads[u])[end] == 0);
    end = layout->offset[p] + layout->elements[p];
  }
}

static struct exactsum step(const struct stage_row *stages, const char *keys, const char *frozen,
                            struct model_shape shape, struct cut cut, struct engine *out)
{
  struct batch batch;
  create(stages, keys, frozen, out);
  batch_create(shape, out->model->config.vocab, &batch);
  if (cut.input)
    batch_extend(&batch, out->model->config.context, false);
  const struct exactsum loss = engine_step(out, &batch, cut);
  for (int u = 0; u < out->model->units; u++)
    assert_gaps_are_zero(out, u);
  batch_destroy(&batch);
  return loss;
}

/* finer: a type of computation. If there is one, gradients may differ by no more than the rounding
 * of the model's own type. */
static void compare(const char *keys, const char *frozen, struct model_shape shape, struct cut cut,
                    const char *finer)
{
  struct engine one, shared, own;
  const struct exactsum loss[] = {step(NULL, keys, frozen, shape, cut, &one),
                                  step(stages_shared, keys, frozen, shape, cut, &shared),
                                  step(stages_own, keys, frozen, shape, cut, &own)};
  assert_int_equal(shared.model->stages, 2 + 2 * one.model->blocks);
  assert_int_equal(shared.model->units, one.model->units);
  assert_int_equal(own.model->stages, shared.model->stages);
  assert_int_equal(own.model->units, one.model->units + one.model->blocks);
  assert_memory_equal(&loss[2], &loss[1], sizeof *loss);
  assert_same_gradients(&shared, &own);
  if (finer) {
    struct engine exact;
    char more[300];
    snprintf(more, sizeof more, "%s run.compute=%s", keys, finer);
    step(NULL, more, frozen, shape, cut, &exact);
    assert_true(distance(&one, &shared) < distance(&exact, &one));
    engine_destroy(&exact);
  } else {
    assert_memory_equal(&loss[0], &loss[1], sizeof *loss);
    assert_same_gradients(&one, &shared);
  }
  engine_destroy(&one);
  engine_destroy(&shared);
  engine_destroy(&own);
}

TEST(gradients_are_those_of_whole_blocks)
{
  static const struct cut cuts[] = {{.micro = 4},
                                    {.micro = 1, .recompute = true},
                                    {.micro = 2, .recompute = true, .input = INPUT_EXTENDED}};
  for (int s = 0; s < shape_count; s++)
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
      compare(shapes[s], "", (struct model_shape){.B = 4, .T = 37}, cuts[c], NULL);
}

TEST(frozen_parts)
{
  static const char *const frozen[] = {"*mlp*", "*attn*", "*norm*", "*.1.*", "*.[02].*attn*"};
  for (size_t f = 0; f < sizeof frozen / sizeof *frozen; f++)
    compare(shapes[1], frozen[f], (struct model_shape){.B = 2, .T = 13}, (struct cut){.micro = 1},
            NULL);
}

TEST(bf16_and_fp8)
{
  static const char *const computes[] = {"bf16", "fp8", "fp8 run.fp8_gradients=false",
                                         "fp8 lora.rank=4"},
                           *const models[] = {"qwen3 ffn=640 tied=false", "gpt2"};
  for (int c = 0; c < 4; c++)
    for (int m = 0; m < 2; m++) {
      char keys[256];
      snprintf(keys, sizeof keys,
               "layers=2 width=128 heads=2 context=256 vocab=64 arch=%s run.compute=%s", models[m],
               computes[c]);
      compare(keys, "", (struct model_shape){.B = 2, .T = 128},
              (struct cut){.micro = 1, .recompute = m}, c > 0 ? "bf16" : "fp32");
    }
}

/* Logits by a cache, of a chunk and of single tokens; those of an evaluation. */
static void decode(const struct stage_row *stages, const char *keys, float *logits)
{
  enum { T = 9, CAPACITY = 20 };
  int32_t token[T];
  struct engine e;
  struct caches caches;
  struct batch batch;
  create(stages, keys, "", &e);
  const int64_t V = e.model->config.vocab;
  for (int t = 0; t < T; t++)
    token[t] = (int32_t)(t * 31 % V);
  caches_create(&e, 1, CAPACITY, &caches);
  engine_decode(&e, &caches, 0, 5, token, logits);
  for (int t = 5; t < T; t++)
    engine_decode(&e, &caches, t, 1, token + t, logits + (t - 4) * V);
  caches_destroy(&e, &caches);
  batch_create((struct model_shape){.B = 1, .T = T}, V, &batch);
  engine_logits(&e, &batch, T - 1, logits + 5 * V);
  batch_destroy(&batch);
  engine_destroy(&e);
}

TEST(logits_are_those_of_whole_blocks)
{
  enum { MOST = 6 * 301 };
  static float want[MOST], got[MOST];
  for (int s = 0; s < shape_count; s++)
    for (int l = 0; l < 2; l++) {
      memset(want, 0, sizeof want);
      memset(got, 0, sizeof got);
      decode(NULL, shapes[s], want);
      decode(lists[l], shapes[s], got);
      assert_memory_equal(got, want, sizeof want);
    }
}

/* Counted by hand: what decoder.c says that a block keeps, less the stream between the stages. */
TEST(sizes_and_work_of_stages_are_those_of_the_block)
{
  const struct model_shape s = {.B = 4, .T = 16};
  const size_t middle = 4 * 16 * 72 * sizeof(float);
  for (int l = 0; l < 2; l++) {
    struct engine one, many;
    create(NULL, shapes[0], "", &one);
    create(lists[l], shapes[0], "", &many);
    const struct model_ops *ops = one.model->ops;
    for (int b = 0; b < one.model->blocks; b++) {
      const int of = 1 + b, first = 1 + 2 * b;
      size_t saved = middle, cache = 0;
      double flops = 0, attention = 0;
      for (int t = first; t < first + 2; t++) {
        assert_int_equal(many.model->stage[t].block, b);
        saved += ops->saved_bytes(many.model, t, s);
        cache += ops->cache_bytes(many.model, t, 4, 20);
        flops += ops->block_flops(many.model, t, s);
        attention += ops->attention_flops(many.model, t, s);
      }
      assert_int_equal(saved, ops->saved_bytes(one.model, of, s));
      assert_int_equal(cache, ops->cache_bytes(one.model, of, 4, 20));
      assert_true(flops == ops->block_flops(one.model, of, s));
      assert_true(attention == ops->attention_flops(one.model, of, s));
      assert_int_equal(ops->cache_bytes(many.model, first + 1, 4, 20), 0);
    }
    engine_destroy(&one);
    engine_destroy(&many);
  }
}

/* The parts of a unit's gradient tile it. */
TEST(parts_of_gradients_follow_one_another)
{
  static const char *const frozen[] = {"", "*mlp*", "*attn*", "*norm*"};
  for (int l = 0; l < 2; l++)
    for (size_t f = 0; f < sizeof frozen / sizeof *frozen; f++) {
      struct engine e;
      create(lists[l], shapes[1], frozen[f], &e);
      for (int u = 0; u < e.model->units; u++) {
        const struct layout_unit *layout = &e.model->unit[u].layout;
        int64_t end = 0;
        for (int t = 1; t < e.model->stages - 1; t++) {
          const struct layout_range part = model_stage_trained(e.model, t, layout);
          if (e.model->stage[t].unit != u)
            continue;
          assert_true(part.begin == end && part.end >= end);
          end = part.end;
        }
        if (e.model->unit[u].block >= 0)
          assert_int_equal(end, layout->trained);
      }
      engine_destroy(&e);
    }
}

TEST(stages_and_units_have_names)
{
  static const char *const stages[2][4] = {{"root", "h.0.attention", "h.0.mlp", "h.1.attention"},
                                           {"root", "h.0.attention", "h.0.mlp", "h.1.attention"}},
                           *const units[2][4] = {
                               {"root", "h.0", "h.1", "h.2"},
                               {"root", "h.0.attention", "h.0.mlp", "h.1.attention"}};
  for (int l = 0; l < 2; l++) {
    struct engine e;
    create(lists[l], shapes[1], "", &e);
    for (int i = 0; i < 4; i++) {
      assert_string_equal(e.model->stage[i].name, stages[l][i]);
      assert_string_equal(e.model->unit[i].name, units[l][i]);
    }
    assert_string_equal(e.model->stage[e.model->stages - 1].name, "head");
    engine_destroy(&e);
  }
}

TEST_MAIN(NULL, NULL)
