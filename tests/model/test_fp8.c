/* Backward passes of a block in fp8. Oracles: gradients of a device that computes parts of a
 * product apart, bit for bit up to the first product that differs, and within a bound after it.
 * Gradients next to parameters that do not learn, and those of weights as codes, bit for bit.
 * Memory that a pass may not write. */

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "device/lane.h"
#include "model/model.h"
#include "tests/test.h"

enum { TOKENS = 256, WIDTH = 128, BLOCK = 1, WATCH = 64, NAN_BYTE = 0xff };

static const struct model_shape shape = {.B = 1, .T = TOKENS};

/* A block's gradients: of its parameters, and by its input. */
struct made {
  struct device *device;
  struct lane *lane;
  struct model *model;
  float *grads;
  uint16_t *d;
};

struct way {
  enum fp8_use use;
  bool by_sequence, gathered, tensor; /* gathered: weights are given as codes; tensor: operands
                                         have one scale */
  char *frozen;                       /* NULL: all parameters learn */
};

static void *take(size_t bytes)
{
  void *memory;
  must(mem_alloc(MEM_DATA, bytes + WATCH, &memory));
  memset(memory, NAN_BYTE, bytes + WATCH);
  return memory;
}

static void give(void *memory, size_t bytes)
{
  for (size_t i = 0; i < WATCH; i++)
    assert_int_equal(((unsigned char *)memory)[bytes + i], NAN_BYTE);
  mem_free(memory);
}

static void fill(uint16_t *to, int64_t n, const char *name, float mean, float std)
{
  float *x;
  must(mem_new(MEM_DATA, n, &x));
  rng_fill_normal(rng_key_make(5, name), 0, 0, n, mean, std, x);
  dtype_convert(to, DTYPE_BF16, x, DTYPE_F32, (size_t)n);
  mem_free(x);
}

static void create_model(const struct way *way, struct made *out)
{
  const struct model_config config = {
      .arch = "qwen2",
      .layers = 1,
      .width = WIDTH,
      .heads = 2,
      .kv_heads = 2,
      .head_width = 64,
      .ffn = 5 * FP8_TILE, /* which FP8_ALL makes in parts of 256, 256 and 128 */
      .context = TOKENS,
      .vocab = 64,
      .norm_eps = 1e-5,
      .init_std = 0.02,
      .rope = {.theta = 10000},
      .compute = DTYPE_BF16};
  must(device_create("host", 0, DTYPE_BF16, &out->device));
  out->device->model.by_sequence = way->by_sequence;
  out->device->fp8_tensor = way->tensor;
  must(out->device->ops->lane_create(out->device, "compute", LANE_ROLE_COMPUTE, 2, &out->lane));
  must(model_create(&config, &out->model));
  if (way->frozen)
    must(model_freeze(out->model, 1, &(char *){way->frozen}, 1));
  must(model_use_fp8(out->model, way->use, 0, NULL));
}

static int64_t flat_elements(const struct layout_unit *layout)
{
  return layout->frozen_used > layout->used ? layout->frozen_used : layout->used;
}

/* Blocks of 128 x 128 elements have different scales. */
static void spread(const struct model_param *param, uint16_t *x, int64_t n)
{
  for (int64_t i = 0; i < n && param->kind == PARAM_WEIGHT; i++) {
    const int64_t block = i / param->shape[1] / FP8_TILE + i % param->shape[1] / FP8_TILE;
    x[i] = (uint16_t)(x[i] + (block % 3 << 7)); /* times a power of two */
  }
}

static uint16_t *make_params(const struct model_unit *unit)
{
  uint16_t *params = take((size_t)flat_elements(&unit->layout) * sizeof *params);
  memset(params, 0, (size_t)flat_elements(&unit->layout) * sizeof *params);
  for (int p = 0; p < unit->params; p++) {
    uint16_t *const x = params + unit->layout.offset[p];
    fill(x, unit->layout.elements[p], unit->param[p].name, unit->param[p].init == INIT_ONE ? 1 : 0,
         0.05f);
    spread(&unit->param[p], x, unit->layout.elements[p]);
  }
  return params;
}

/* Params as codes and scales, as one owner of all of them makes them. */
static struct model_params code_params(const struct made *made, const uint16_t *params)
{
  const struct model_unit *unit = &made->model->unit[BLOCK];
  const size_t bytes = (size_t)model_fp8_bytes(made->model, BLOCK);
  struct model_fp8_part all = {.range = {0, unit->layout.used}, .unit = BLOCK};
  all.layout = &unit->layout, all.type = DTYPE_BF16, all.x = params;
  uint8_t *codes = take((size_t)unit->layout.used);
  void *scales = take(bytes);
  memset(scales, 0, bytes);
  must(model_fp8_measure(made->model, made->lane, &all, scales));
  must(model_fp8_scale(made->model, made->lane, BLOCK, scales));
  must(model_fp8_code(made->model, made->lane, &all, scales, codes));
  return (struct model_params){.flat = codes, .scales = scales};
}

static void run_block(const struct way *way, struct made *out)
{
  create_model(way, out);
  const struct model_ops *ops = out->model->ops;
  const struct model_unit *unit = &out->model->unit[BLOCK];
  const int64_t rows = TOKENS * WIDTH;
  const size_t stream = (size_t)rows * sizeof(uint16_t), kept = ops->saved_bytes(out->model, shape),
               forward =
                   ops->work_bytes(out->model, &out->device->model, shape, WORK_FORWARD_SAVED, 2),
               backward = ops->work_bytes(out->model, &out->device->model, shape, WORK_BACKWARD, 2);
  uint16_t *x = take(stream), *y = take(stream), *params = make_params(unit);
  void *saved = take(kept), *work = take(forward);
  struct model_params given = {.flat = params};
  if (way->gathered)
    given = code_params(out, params);
  out->grads = take((size_t)unit->layout.used * sizeof(float));
  out->d = take(stream);
  fill(x, rows, "x", 0, 1);
  fill(out->d, rows, "d", 0, 1e-3f);
  struct model_call call = {.model = out->model, .lane = out->lane, .unit = BLOCK, .shape = shape};
  call.params = given, call.x_in = x, call.x_out = y, call.saved = saved, call.d = out->d;
  call.grads = out->grads, call.work = work, call.work_bytes = (int64_t)backward;
  must(ops->block_forward(&call));
  give(work, forward);
  work = call.work = take(backward);
  must(ops->block_backward(&call));
  give(work, backward);
  give(saved, kept);
  if (way->gathered) {
    give((void *)given.flat, (size_t)unit->layout.used);
    give((void *)given.scales, (size_t)model_fp8_bytes(out->model, BLOCK));
  }
  give(params, (size_t)flat_elements(&unit->layout) * sizeof *params);
  give(y, stream);
  give(x, stream);
}

static void release(struct made *made)
{
  give(made->d, (size_t)(TOKENS * WIDTH) * sizeof *made->d);
  give(made->grads, (size_t)made->model->unit[BLOCK].layout.used * sizeof(float));
  model_destroy(made->model);
  made->device->ops->lane_destroy(made->lane);
  device_destroy(made->device);
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
  const struct model_unit *unit = &a->model->unit[BLOCK], *other = &b->model->unit[BLOCK];
  int same = 0;
  for (int p = 0; p < unit->params; p++) {
    const float *x = a->grads + unit->layout.offset[p], *y = b->grads + other->layout.offset[p];
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
  static char *const frozen[] = {"*up_proj*",   "*q_proj*", "*k_proj*",
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
          assert_memory_equal(part.d, whole.d, (size_t)(TOKENS * WIDTH) * sizeof *part.d);
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
    assert_memory_equal(coded.d, gathered.d, (size_t)(TOKENS * WIDTH) * sizeof *coded.d);
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
    assert_true(memcmp(whole.d, groups.d, (size_t)(TOKENS * WIDTH) * sizeof *whole.d) != 0);
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
    assert_true(memcmp(fp8.d, half.d, (size_t)(TOKENS * WIDTH) * sizeof *fp8.d) != 0);
    release(&fp8);
  }
  release(&half);
}

TEST_MAIN(NULL, NULL)
