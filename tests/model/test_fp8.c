/* Backward passes of a block in fp8. Oracles: gradients of a device that computes parts of a
 * product apart, bit for bit up to the first product that differs, and within a bound after it.
 * Gradients next to parameters that do not learn, and those of weights as codes, bit for bit.
 * Memory that a pass may not write. */

#include <math.h>

#include "base/rng.h"
#include "engine.h"
#include "tests/test.h"

enum { TOKENS = 256, WIDTH = 128, BLOCK = 1 };

static const struct model_shape shape = {.B = 1, .T = TOKENS};
static const int64_t stream_elements = TOKENS * WIDTH;
static const size_t stream = TOKENS * WIDTH * sizeof(uint16_t);

/* A block's gradients: of its parameters (engine.grads), and by its input. */
struct made {
  struct engine engine;
  uint16_t *d;
};

struct way {
  enum fp8_use use;
  bool by_sequence, gathered, tensor; /* gathered: weights are given as codes; tensor: operands
                                         have one scale */
  const char *frozen;                 /* NULL: all parameters learn */
  const char *lora;                   /* keys of adapters, NULL: none */
};

static void fill(uint16_t *to, const char *name, float std)
{
  float *x = calloc((size_t)stream_elements, sizeof *x);
  assert_non_null(x);
  rng_fill_normal(rng_key_make(5, name), 0, 0, stream_elements, 0, std, x);
  dtype_convert(to, DTYPE_BF16, x, DTYPE_F32, (size_t)stream_elements);
  free(x);
}

/* The width of the feed-forward part is five tiles, which FP8_ALL makes in parts of 256, 256 and
 * 128. */
static void create_engine(const struct way *way, struct engine *out)
{
  static const char *const computes[] = {
      [FP8_NOTHING] = "bf16", [FP8_PRODUCTS] = "fp8 run.fp8_gradients=false", [FP8_ALL] = "fp8"};
  char keys[512];
  snprintf(keys, sizeof keys,
           "arch=qwen2 layers=1 width=128 heads=2 ffn=640 context=256 vocab=64 tied=false "
           "run.compute=%s %s",
           computes[way->use], way->lora ? way->lora : "");
  engine_create_frozen(keys, way->frozen ? way->frozen : "", 2, out);
  out->device->model.by_sequence = way->by_sequence;
  out->device->fp8_tensor = way->tensor;
}

/* Weights become smaller, and blocks of 128 x 128 elements get different scales. */
static void spread(const struct engine *e)
{
  const struct model_unit *unit = &e->model->unit[BLOCK];
  for (int p = 0; p < unit->params; p++) {
    const struct model_param *param = &unit->param[p];
    uint16_t *const x = (uint16_t *)e->params[BLOCK] + unit->layout.offset[p];
    for (int64_t i = 0; i < unit->layout.elements[p] && param->kind == PARAM_WEIGHT; i++) {
      const int64_t block = i / param->shape[1] / FP8_TILE + i % param->shape[1] / FP8_TILE;
      x[i] = (uint16_t)(x[i] + (block % 3 - 2) * 128); /* times a power of two */
    }
  }
}

/* Codes and scales of a range, from the elements of `seen`. */
static struct model_params code_range(struct engine *e, struct layout_range range,
                                      struct layout_range seen)
{
  const struct layout_unit *layout = &e->model->unit[BLOCK].layout;
  const uint16_t *params = e->params[BLOCK];
  const size_t bytes = (size_t)model_fp8_bytes(e->model, BLOCK);
  const struct model_part part = {BLOCK, layout, range, DTYPE_BF16, params + range.begin},
                          measured = {BLOCK, layout, seen, DTYPE_BF16, params + seen.begin};
  uint8_t *codes = engine_alloc(e, (size_t)(range.end - range.begin));
  void *scales = engine_alloc(e, bytes);
  memset(scales, 0, bytes);
  must(model_fp8_measure(e->model, e->lane, &measured, scales));
  must(model_fp8_scale(e->model, e->lane, BLOCK, scales));
  must(model_fp8_code(e->model, e->lane, &part, scales, codes));
  return (struct model_params){.flat = codes, .scales = scales};
}

static void free_codes(struct engine *e, struct model_params params, int64_t elements)
{
  engine_free(e, (void *)params.flat, (size_t)elements);
  engine_free(e, (void *)params.scales, (size_t)model_fp8_bytes(e->model, BLOCK));
}

static void run_block(const struct way *way, struct made *out)
{
  struct engine *const e = &out->engine;
  create_engine(way, e);
  spread(e);
  const struct model_ops *ops = e->model->ops;
  const struct device_model *device = &e->device->model;
  const size_t kept = ops->saved_bytes(e->model, 1, shape),
               forward = ops->work_bytes(e->model, device, shape, WORK_FORWARD_SAVED, 2),
               backward = ops->work_bytes(e->model, device, shape, WORK_BACKWARD, 2);
  uint16_t *x = engine_alloc(e, stream), *y = engine_alloc(e, stream);
  struct model_call call = engine_call(e, BLOCK, shape);
  const struct layout_range all = {0, e->model->unit[BLOCK].layout.flat};
  if (way->gathered)
    call.params = code_range(e, all, all);
  out->d = engine_alloc(e, stream);
  fill(x, "x", 1);
  fill(out->d, "d", 1e-3f);
  call.x_in = x, call.x_out = y, call.saved = engine_alloc(e, kept), call.d = out->d;
  call.work = engine_alloc(e, forward);
  must(ops->block_forward(&call));
  engine_free(e, call.work, forward);
  call.work = engine_alloc(e, backward);
  must(ops->block_backward(&call));
  engine_free(e, call.work, backward);
  engine_free(e, call.saved, kept);
  if (way->gathered)
    free_codes(e, call.params, all.end);
  engine_free(e, y, stream);
  engine_free(e, x, stream);
}

static void release(struct made *made)
{
  engine_free(&made->engine, made->d, stream);
  engine_destroy(&made->engine);
}

static double distance(int64_t n, const float *x, const float *y)
{
  double apart = 0, size = 0;
  for (int64_t i = 0; i < n; i++) {
    apart += pow((double)x[i] - (double)y[i], 2);
    size += pow((double)y[i], 2);
  }
  return sqrt(apart / size);
}

/* Parameters that learn in both. Names with one of the words have the same bits, all others are
 * within the bound. Returns the number of parameters compared bit by bit. */
static int compare(const struct made *a, const struct made *b, const char *const *words,
                   double bound)
{
  const struct model_unit *unit = &a->engine.model->unit[BLOCK],
                          *other = &b->engine.model->unit[BLOCK];
  int same = 0;
  for (int p = 0; p < unit->params; p++) {
    const float *x = engine_param(&a->engine, a->engine.grads, BLOCK, p),
                *y = engine_param(&b->engine, b->engine.grads, BLOCK, p);
    const int64_t n = unit->layout.elements[p];
    bool exact = false;
    for (const char *const *word = words; *word; word++)
      exact |= strstr(unit->param[p].name, *word) != NULL;
    if (unit->param[p].frozen || other->param[p].frozen)
      continue;
    const double off = distance(n, x, y);
    same += exact;
    if (exact ? memcmp(x, y, (size_t)n * sizeof *x) != 0 : !(off <= bound))
      fail_msg("%s: gradients are %.2e apart", unit->param[p].name, off);
  }
  return same;
}

static const enum fp8_use uses[] = {FP8_PRODUCTS, FP8_ALL};

/* On such devices one product computes the gradient by the input of gate and up, so dgate_up is one
 * operand. Weights of the feed-forward part learn before that product. */
TEST(parts_together_and_apart)
{
  static const char *const words[] = {"mlp.", NULL};
  for (int u = 0; u < 2; u++) {
    struct made apart, together;
    run_block(&(struct way){.use = uses[u], .by_sequence = true}, &apart);
    run_block(&(struct way){.use = uses[u]}, &together);
    assert_int_equal(compare(&apart, &together, words, 0.05), 3);
    release(&apart);
    release(&together);
  }
}

/* Weights next to a frozen one have gradients of their own, from transposes of their own. On
 * devices that do not work by sequence, a frozen part also takes the product of all parts apart. */
TEST(parts_that_do_not_learn)
{
  static const char *const all[] = {"", NULL}, *const mlp[] = {"mlp.", NULL};
  static const char *const frozen[] = {"*up_proj*",   "*q_proj*", "*k_proj*",
                                       "*down_proj*", "*o_proj*", "*mlp*"};
  for (int u = 0; u < 2; u++)
    for (int by_sequence = 0; by_sequence < 2; by_sequence++) {
      struct made whole;
      run_block(&(struct way){.use = uses[u], .by_sequence = by_sequence}, &whole);
      for (size_t i = 0; i < sizeof frozen / sizeof *frozen; i++) {
        struct made part;
        run_block(&(struct way){.use = uses[u], .by_sequence = by_sequence, .frozen = frozen[i]},
                  &part);
        const int same = compare(&part, &whole, by_sequence ? all : mlp, 0.05);
        assert_true(same >= (by_sequence ? 9 : i < 5 ? 2 : 0));
        if (by_sequence)
          assert_memory_equal(part.d, whole.d, stream);
        release(&part);
      }
      release(&whole);
    }
}

/* Products that code weights are the oracle of those that read gathered codes. */
TEST(weights_may_be_codes)
{
  static const char *const all[] = {"", NULL};
  for (int i = 0; i < 4; i++) {
    const struct way way = {.use = uses[i / 2], .tensor = i % 2};
    struct way codes = way;
    struct made coded, gathered;
    codes.gathered = true;
    run_block(&way, &coded);
    run_block(&codes, &gathered);
    assert_int_equal(compare(&coded, &gathered, all, 0), 12);
    assert_memory_equal(coded.d, gathered.d, stream);
    release(&coded);
    release(&gathered);
  }
}

/* With one scale per operand each layer has operands of its own. So results depend neither on
 * frozen neighbours nor on the kind of device. They are near those of scales per group. */
TEST(one_scale_per_operand)
{
  static const char *const all[] = {"", NULL}, *const none[] = {NULL};
  for (int u = 0; u < 2; u++) {
    struct made groups, whole, part;
    run_block(&(struct way){.use = uses[u], .by_sequence = true}, &groups);
    run_block(&(struct way){.use = uses[u], .by_sequence = true, .tensor = true}, &whole);
    assert_int_equal(compare(&whole, &groups, none, 0.05), 0);
    assert_true(memcmp(whole.d, groups.d, stream) != 0);
    run_block(&(struct way){.use = uses[u], .tensor = true}, &part);
    assert_int_equal(compare(&part, &whole, all, 0), 12);
    release(&part);
    run_block(&(struct way){.use = uses[u], .tensor = true, .frozen = "*up_proj*"}, &part);
    assert_int_equal(compare(&part, &whole, all, 0), 11);
    release(&part);
    release(&whole);
    release(&groups);
  }
}

/* In bf16 gradients are others, but not by much. */
TEST(gradients_are_near_bf16)
{
  static const char *const none[] = {NULL};
  struct made half;
  run_block(&(struct way){.use = FP8_NOTHING, .by_sequence = true}, &half);
  for (int u = 0; u < 2; u++) {
    struct made fp8;
    run_block(&(struct way){.use = uses[u], .by_sequence = true}, &fp8);
    assert_int_equal(compare(&fp8, &half, none, 0.15), 0);
    assert_true(memcmp(fp8.d, half.d, stream) != 0);
    release(&fp8);
  }
  release(&half);
}

/* Adapters read inputs in bf16 next to codes of the base, of which no gradient is wanted. So
 * FP8_ALL is FP8_PRODUCTS. Some layers have none. */
TEST(adapters)
{
  static const char *const all[] = {"", NULL}, *const none[] = {NULL};
  static const char *const lora[] = {
      "lora.rank=5", "lora.rank=8 lora.targets=[*.k_proj.weight,*.down_proj.weight]",
      "lora.rank=1 lora.targets=[*.o_proj.weight,*.up_proj.weight]"};
  for (int i = 0; i < 3; i++)
    for (int tensor = 0; tensor < 2; tensor++) {
      const struct way way = {.use = FP8_ALL, .tensor = tensor, .lora = lora[i]};
      struct way products = way, half = way;
      struct made asked, gathered, near;
      products.use = FP8_PRODUCTS, products.gathered = true;
      half.use = FP8_NOTHING;
      run_block(&way, &asked);
      run_block(&products, &gathered);
      run_block(&half, &near);
      assert_int_equal(compare(&asked, &gathered, all, 0), i == 0 ? 14 : 4);
      assert_memory_equal(asked.d, gathered.d, stream);
      assert_int_equal(compare(&asked, &near, none, 0.25), 0); /* measured: 0.16 */
      assert_true(memcmp(asked.d, near.d, stream) != 0);
      release(&asked);
      release(&gathered);
      release(&near);
    }
}

/* A rank codes its part of a base by all elements of the blocks that the part cuts. Oracle: the
 * codes that one owner of all elements makes. */
TEST(parts_of_a_base_are_coded_alone)
{
  static const int counts[] = {1, 2, 3, 5, 11};
  struct engine e;
  int differ = 0;
  create_engine(&(struct way){.use = FP8_PRODUCTS, .lora = "lora.rank=5"}, &e);
  const struct model_unit *unit = &e.model->unit[BLOCK];
  const struct layout_range base = layout_part(&unit->layout, true);
  for (int p = 0; p < unit->params; p++) { /* 16 rows are larger than the next 16 of a block */
    uint16_t *const x = (uint16_t *)e.params[BLOCK] + unit->layout.offset[p];
    for (int64_t i = 0; i < unit->layout.elements[p] && unit->param[p].kind == PARAM_WEIGHT; i++)
      x[i] = (uint16_t)(x[i] - i / unit->param[p].shape[1] % FP8_TILE / 16 * 128);
  }
  const struct model_params whole = code_range(&e, base, base);
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (int i = 0; i < counts[c]; i++) {
      const int64_t n = (base.end - base.begin) / counts[c] / 4 * 4, begin = base.begin + i * n;
      const struct layout_range own = {begin, begin + n},
                                seen = model_fp8_blocks(e.model, BLOCK, &unit->layout, own);
      const struct model_params part = code_range(&e, own, seen), blind = code_range(&e, own, own);
      const uint8_t *want = (const uint8_t *)whole.flat + (begin - base.begin);
      assert_true(seen.begin >= base.begin && seen.end <= base.end);
      assert_memory_equal(part.flat, want, (size_t)n);
      differ += memcmp(blind.flat, want, (size_t)n) != 0;
      free_codes(&e, part, n);
      free_codes(&e, blind, n);
    }
  assert_true(differ > 8);
  free_codes(&e, whole, base.end - base.begin);
  engine_destroy(&e);
}

TEST_MAIN(NULL, NULL)
