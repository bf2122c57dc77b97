/* Choices that must not change a bit of the loss or of any gradient, in every architecture. Oracle:
 * the same step, cut another way. */

#include <math.h>

#include "base/rng.h"
#include "engine.h"
#include "model/parts.h"
#include "tests/test.h"

static const struct model_shape shape = {.B = 4, .T = 37};

/* A step's results. */
struct made {
  struct engine engine;
  struct exactsum loss;
};

static void run(const char *keys, const char *frozen, struct model_shape s, int threads,
                struct cut cut, struct made *out)
{
  struct batch batch;
  engine_create_frozen(keys, frozen, threads, &out->engine);
  batch_create(s, out->engine.model->config.vocab, &batch);
  if (cut.input)
    batch_extend(&batch, out->engine.model->config.context, cut.input == INPUT_TRIVIAL);
  out->loss = engine_step(&out->engine, &batch, cut);
  batch_destroy(&batch);
}

static void release(struct made *a, struct made *b)
{
  engine_destroy(&a->engine);
  engine_destroy(&b->engine);
}

static void assert_same_param(const char *label, const struct made *a, const struct made *b, int u,
                              int p)
{
  const struct model_unit *unit = &a->engine.model->unit[u];
  const float *x = engine_param(&a->engine, a->engine.grads, u, p),
              *y = engine_param(&b->engine, b->engine.grads, u, p);
  for (int64_t i = 0; i < unit->layout.elements[p]; i++)
    if (memcmp(&x[i], &y[i], sizeof(float)))
      fail_msg("%s: %s[%lld]: %a is not %a", label, unit->param[p].name, (long long)i, (double)x[i],
               (double)y[i]);
}

/* Parameters that are trained in both runs. */
static void assert_same(const char *label, const struct made *a, const struct made *b)
{
  assert_memory_equal(&a->loss, &b->loss, sizeof a->loss);
  for (int u = 0; u < a->engine.model->units; u++)
    for (int p = 0; p < a->engine.model->unit[u].params; p++)
      if (!a->engine.model->unit[u].param[p].frozen && !b->engine.model->unit[u].param[p].frozen)
        assert_same_param(label, a, b, u, p);
}

static void compare(int threads, struct cut cut, int other_threads, struct cut other)
{
  for (int i = 0; i < shape_count; i++) {
    struct made a, b;
    run(shapes[i], "", shape, threads, cut, &a);
    run(shapes[i], "", shape, other_threads, other, &b);
    assert_same(shapes[i], &a, &b);
    release(&a, &b);
  }
}

TEST(test_twice)
{
  compare(2, (struct cut){.micro = 4}, 2, (struct cut){.micro = 4});
}

TEST(test_recompute)
{
  compare(2, (struct cut){.micro = 4}, 2, (struct cut){.micro = 4, .recompute = true});
}

TEST(test_threads)
{
  compare(1, (struct cut){.micro = 4}, 2, (struct cut){.micro = 4});
  compare(1, (struct cut){.micro = 4}, 3, (struct cut){.micro = 4});
  compare(1, (struct cut){.micro = 1}, 3, (struct cut){.micro = 1});
}

/* Weights, positions and documents: values that change nothing, and others. */
TEST(test_extended_input)
{
  const struct cut extended = {4, .late_embedding = true, .input = INPUT_EXTENDED};
  compare(2, (struct cut){.micro = 4}, 3, (struct cut){.micro = 4, .input = INPUT_TRIVIAL});
  compare(2, (struct cut){.micro = 1}, 2, (struct cut){1, true, .input = INPUT_TRIVIAL});
  compare(1, extended, 3, (struct cut){2, true, true, INPUT_EXTENDED});
}

/* With the embedding's gradient added after all heads' in both. */
TEST(test_micro_batches)
{
  struct cut whole = {.micro = 4, .late_embedding = true};
  compare(2, whole, 2, (struct cut){.micro = 1, .late_embedding = true});
  compare(2, whole, 2, (struct cut){.micro = 2, .late_embedding = true});
}

/* With it added micro-batch by micro-batch, a tied matrix is summed in another order (head,
 * embedding, head, ...): the same within rounding. All else is the same bits, and so is an
 * embedding of its own. */
TEST(test_micro_batches_tied)
{
  for (int i = 0; i < shape_count; i++) {
    struct made a, b;
    run(shapes[i], "", shape, 2, (struct cut){.micro = 4}, &a);
    run(shapes[i], "", shape, 2, (struct cut){.micro = 1}, &b);
    if (a.engine.grads[0] && a.engine.model->head == 0) {
      float *x = engine_param(&a.engine, a.engine.grads, 0, 0),
            *y = engine_param(&b.engine, b.engine.grads, 0, 0);
      int64_t n = a.engine.model->unit[0].layout.elements[0];
      double error = 0, norm = 0;
      for (int64_t e = 0; e < n; e++) {
        error += pow((double)x[e] - (double)y[e], 2);
        norm += pow(x[e], 2);
      }
      assert_true(sqrt(error) <=
                  1e-7 * sqrt(norm)); /* a few roundings of 2^-24 in some of the elements */
      memcpy(x, y, (size_t)n * sizeof(float));
    }
    assert_same(shapes[i], &a, &b);
    release(&a, &b);
  }
}

/* Sequences whose logits come in two chunks. */
TEST(test_micro_batches_in_chunks)
{
  static const char wide[] = "arch=gpt2 layers=1 width=3 heads=1 context=65 vocab=270000";
  const struct model_shape two = {.B = 2, .T = 65};
  struct made a, b;
  run(wide, "", two, 2, (struct cut){.micro = 2, .late_embedding = true}, &a);
  run(wide, "", two, 1, (struct cut){.micro = 1, .late_embedding = true}, &b);
  assert_same("wide", &a, &b);
  release(&a, &b);
}

TEST(test_evaluation)
{
  for (int i = 0; i < shape_count; i++) {
    struct engine engine;
    struct batch batch;
    engine_create(shapes[i], 2, &engine);
    batch_create(shape, engine.model->config.vocab, &batch);
    struct exactsum trained = engine_step(&engine, &batch, (struct cut){.micro = 4}),
                    evaluated = engine_evaluate(&engine, &batch);
    assert_true(exactsum_value(&trained) > 0);
    assert_memory_equal(&trained, &evaluated, sizeof trained);
    batch_destroy(&batch);
    engine_destroy(&engine);
  }
}

/* Gradients of trained parameters, also of those below and next to frozen ones. */
static void compare_frozen(const char *keys, const struct made *all, const char *pattern)
{
  struct made some;
  run(keys, pattern, shape, 2, (struct cut){.micro = 2}, &some);
  assert_true(some.engine.model->frozen > 0);
  assert_same(pattern, all, &some);
  engine_destroy(&some.engine);
}

TEST(test_frozen)
{
  static const char *const patterns[] = {"*.weight",      "*.h.0.*",      "*.layers.1.*",
                                         "*_proj.weight", "*norm.weight", "*.?_proj.*"};
  for (int i = 0; i < shape_count && !strstr(shapes[i], "lora."); i++) {
    struct made all;
    run(shapes[i], "", shape, 2, (struct cut){.micro = 2}, &all);
    const struct model *model = all.engine.model;
    for (int u = 0; u < model->units;
         u += u == model->blocks ? 1 : model->blocks) /* the ends, and the last block */
      for (int p = 0; p < model->unit[u].params; p++)
        compare_frozen(shapes[i], &all, model->unit[u].param[p].name);
    for (size_t n = 0; n < sizeof patterns / sizeof patterns[0]; n++) {
      struct model *probe;
      char keys[512];
      snprintf(keys, sizeof keys, "%s train.freeze=[%s]", shapes[i], patterns[n]);
      if (engine_model(keys, 1, &probe))
        continue; /* some architecture has no such names, or no others */
      model_destroy(probe);
      compare_frozen(shapes[i], &all, patterns[n]);
    }
    engine_destroy(&all.engine);
  }
}

static void find_qkv(const struct model_unit *unit, const char *kind, int at[3])
{
  for (int i = 0; i < 3; i++)
    for (int p = 0; p < unit->params; p++) {
      char name[32];
      snprintf(name, sizeof name, "%c_proj.%s", "qkv"[i], kind);
      at[i] = strstr(unit->param[p].name, name) ? p : at[i];
    }
}

static struct fused bind_qkv(const struct engine *engine)
{
  const struct flat flat =
      flat_of(engine->model, 1, (struct model_params){.flat = engine->params[1]}, engine->grads[1]);
  int weight[3] = {0}, bias[3] = {0};
  find_qkv(flat.unit, "weight", weight);
  find_qkv(flat.unit, "bias", bias);
  return fused_bind(&flat, 3, weight, bias);
}

/* One product or three: output, parameters' gradients and input's gradient. Oracle: the other way.
 */
TEST(test_fused)
{
  enum { ROWS = 37, WIDTH = 64, OUT = 128 + 2 * 64 };
  static float x[ROWS * WIDTH], dy[ROWS * OUT], y[2][ROWS * OUT], dx[2][ROWS * WIDTH];
  struct engine joined, apart, mixed;
  engine_create(shapes[4], 2, &joined);
  engine_create_frozen(shapes[4], "*q_proj.weight", 2, &apart);
  engine_create_frozen(shapes[4], "*v_proj.bias", 2, &mixed);
  struct fused a = bind_qkv(&joined), b = bind_qkv(&apart), c = bind_qkv(&mixed);
  assert_true(a.joined && a.gradients_joined && a.out == OUT && a.part[0].in == WIDTH);
  assert_true(!b.joined && !b.gradients_joined && !b.part[0].dweight && b.part[0].dbias);
  assert_true(!c.gradients_joined && c.part[2].dweight && !c.part[2].dbias);

  rng_fill_normal(rng_key_make(1, "x"), 0, 0, ROWS * WIDTH, 0, 1, x);
  rng_fill_normal(rng_key_make(1, "dy"), 0, 0, ROWS * OUT, 0, 1, dy);
  enum status status = STATUS_OK;
  struct pass one = {.lane = joined.lane, .status = &status, .rows = ROWS, .tile = 20},
              other = {.lane = apart.lane, .status = &status, .rows = ROWS, .tile = 20};
  fused_forward(&one, &a, x, NULL, NULL, y[0]);
  fused_forward(&other, &b, x, NULL, NULL, y[1]);
  assert_memory_equal(y[0], y[1], sizeof y[0]);
  fused_backward_input(&one, &a, dy, NULL, NULL, dx[0]);
  fused_backward_input(&other, &b, dy, NULL, NULL, dx[1]);
  assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
  fused_backward_params(&one, &a, x, dy);
  fused_backward_params(&other, &b, x, dy);
  must(status);
  for (int i = 1; i < 3; i++)
    assert_memory_equal(a.part[i].dweight, b.part[i].dweight,
                        (size_t)(a.part[i].in * a.part[i].out) * sizeof(float));
  for (int i = 0; i < 3; i++)
    assert_memory_equal(a.part[i].dbias, b.part[i].dbias, (size_t)a.part[i].out * sizeof(float));
  engine_destroy(&joined);
  engine_destroy(&apart);
  engine_destroy(&mixed);
}

/* A of layers with the same input are one product where they are adjacent. Oracle: the offsets. */
TEST(test_adapters_are_joined)
{
  static const char *const keys = "arch=llama layers=1 heads=2 kv_heads=1 head_width=8 ffn=%d "
                                  "width=%d vocab=9 context=9 lora.rank=%d lora.targets=[%s]";
  static const struct {
    int width, rank, parts;
    bool joined;
    int64_t column[3];
    const char *targets;
  } row[] = {{64, 3, 3, true, {0, 16, 24}, "*_proj.weight"},
             {64, 3, 2, true, {0, 24}, "*[qv]_proj.weight"},
             {64, 3, 1, true, {16}, "*k_proj.weight"},
             {32, 6, 3, true, {0, 16, 24}, "*_proj.weight"},
             {32, 3, 3, false, {0, 16, 24}, "*_proj.weight"},
             {64, 3, 0, true, {0}, "*up_proj.weight"}};
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    const struct model_unit *unit;
    struct model *model;
    char text[256];
    int at[3] = {0};
    snprintf(text, sizeof text, keys, 16, row[i].width, row[i].rank, row[i].targets);
    must(engine_model(text, 1, &model));
    unit = &model->unit[1];
    find_qkv(unit, "weight", at);
    const struct flat flat = flat_of(model, 1, (struct model_params){0}, NULL);
    const struct layer l = layer_bind(&flat, 3, at, NULL, NULL);
    assert_int_equal(l.narrow.parts, row[i].parts);
    assert_int_equal(l.narrow.joined, row[i].joined);
    assert_int_equal(l.narrow.out, row[i].parts * row[i].rank);
    for (int n = 0; n < row[i].parts; n++) {
      assert_int_equal(l.column[n], row[i].column[n]);
      assert_int_equal(l.wide[n].y_stride, 32);
    }
    model_destroy(model);
  }
}

TEST_MAIN(NULL, NULL)
