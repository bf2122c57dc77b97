/* The host device in bf16: operands are widened, the operation runs in fp32, and its outputs are
 * rounded (to nearest, ties to even). Activations and parameters are bf16, gradients of parameters
 * and statistics fp32. It is an oracle for devices that compute in bf16, and serves tests of the
 * engine. It is not fast. */
#include "device/host/host.h"

/* `batch` pieces, `apart` elements apart, of `rows` rows of `columns` elements, `ld` apart. */
struct extent {
  int64_t batch, apart, rows, columns, ld;
};

static struct extent matrix(int64_t rows, int64_t columns, int64_t ld)
{
  return (struct extent){.batch = 1, .rows = rows, .columns = columns, .ld = ld};
}

static struct extent vector(int64_t n)
{
  return matrix(1, n, n);
}

static int64_t elements(const struct extent *e)
{
  return e->batch < 1 || e->rows < 1 || e->columns < 1
             ? 0
             : (e->batch - 1) * e->apart + (e->rows - 1) * e->ld + e->columns;
}

static void convert(const struct extent *e, void *dst, enum dtype to, const void *src,
                    enum dtype from)
{
  for (int64_t b = 0; b < e->batch; b++)
    for (int64_t r = 0; r < e->rows && e->columns > 0; r++) {
      int64_t at = b * e->apart + r * e->ld;
      dtype_convert((char *)dst + at * (int64_t)dtype_size(to), to,
                    (const char *)src + at * (int64_t)dtype_size(from), from, (size_t)e->columns);
    }
}

/* The call reads the operand, writes it, or both. NONE: the operand stays as it is. */
enum use { NONE, IN, OUT, BOTH };

/* `at` is the address of the pointer to the operand, which is set to fp32 room. */
struct operand {
  enum use use;
  void *at;
  struct extent e;
};

/* A call: the rooms of the lane used so far, the outputs, and the first failure. */
struct call {
  struct lane *lane;
  int taken, outputs;
  enum status status;
  struct {
    const float *wide;
    void *x;
    struct extent e;
  } output[HOST_WIDENED];
};

/* fp32 room with the layout `e`. */
static float *room(struct call *call, struct extent e)
{
  if (call->status)
    return NULL;
  struct widened *to = &((struct host_lane *)call->lane)->widened[call->taken++];
  int64_t need = elements(&e);
  call->status = mem_grow(MEM_META, &to->floats, &to->room, need > 0 ? need : 1, sizeof(float));
  return to->floats;
}

/* Gives each operand up to the one without address its room. NULL stays. */
static void widen(struct call *call, const struct operand *o)
{
  for (; o->at; o++) {
    void *x;
    memcpy(&x, o->at, sizeof x);
    float *const wide = o->use == NONE || !x ? NULL : room(call, o->e);
    if (!wide || call->status)
      continue;
    if (o->use != OUT)
      convert(&o->e, wide, DTYPE_F32, x, DTYPE_BF16);
    if (o->use != IN)
      call->output[call->outputs++] = (typeof(call->output[0])){wide, x, o->e};
    memcpy(o->at, &wide, sizeof wide);
  }
}

/* Rounds the outputs. */
static enum status narrow(const struct call *call, enum status status)
{
  for (int i = 0; i < call->outputs && !status; i++)
    convert(&call->output[i].e, call->output[i].x, DTYPE_BF16, call->output[i].wide, DTYPE_F32);
  return status;
}

/* The layout [batch, tokens, heads, head width] of queries, of new keys, and of all keys, which
 * include the cache. */
static struct extent queries(const struct attention *op, int64_t stride)
{
  return matrix(op->batch * op->tokens, op->heads * op->head_width, stride);
}

static struct extent new_keys(const struct attention *op, int64_t stride)
{
  return matrix(op->batch * op->tokens, op->kv_heads * op->head_width, stride);
}

static struct extent keys(const struct attention *op, int64_t stride)
{
  struct extent e = new_keys(op, stride);
  e.batch = op->batch;
  e.rows = op->past + op->tokens;
  e.apart = op->kv_batch_stride ? op->kv_batch_stride : e.rows * stride;
  return e;
}

/* A row per operation: WIDENED, and its operands; WIDENED_OP for an operation of one struct, the
 * struct, and the operands in its copy; or OWN, a function below. */
/* clang-format off */
#define HALF_matmul OWN,
#define HALF_bias_gradient WIDENED, {IN, &d, matrix(rows, n, ld)}
#define HALF_norm OWN,
#define HALF_norm_backward WIDENED_OP, struct row_norm_backward,                                   \
  {IN, &copy.dy, matrix(op->rows, op->groups * op->C, op->dy_stride)},                             \
  {IN, &copy.x, matrix(op->rows, op->groups * op->C, op->x_stride)},                               \
  {IN, &copy.gamma, vector(op->C)},                                                                \
  {op->dx_accumulate ? BOTH : OUT, &copy.dx,                                                       \
   matrix(op->rows, op->groups * op->C, op->dx_stride)}
#define HALF_rope WIDENED_OP, struct rope,                                                         \
  {BOTH, &copy.x, matrix(op->rows, op->heads * op->D, op->stride)}
#define HALF_swiglu WIDENED, {IN, &gu, vector(rows * 2 * F)}, {OUT, &y, vector(rows * F)}
#define HALF_swiglu_backward WIDENED,                                                              \
  {IN, &gu, vector(rows * 2 * F)}, {IN, &dy, vector(rows * F)},                                    \
  {OUT, &dgu, vector(rows * 2 * F)}, {OUT, &y, vector(rows * F)}
#define HALF_attention WIDENED_OP, struct attention,                                               \
  {IN, &copy.q, queries(op, op->q_stride)},                                                        \
  {IN, &copy.k, keys(op, op->k_stride)},                                                           \
  {IN, &copy.v, keys(op, op->v_stride)},                                                           \
  {OUT, &copy.out, queries(op, op->out_stride)}
#define HALF_attention_backward WIDENED_OP, struct attention_backward,                             \
  {IN, &copy.forward.q, queries(&op->forward, op->forward.q_stride)},                              \
  {IN, &copy.forward.k, keys(&op->forward, op->forward.k_stride)},                                 \
  {IN, &copy.forward.v, keys(&op->forward, op->forward.v_stride)},                                 \
  {IN, &copy.forward.out, queries(&op->forward, op->forward.out_stride)},                          \
  {IN, &copy.dout, queries(&op->forward, op->forward.out_stride)},                                 \
  {OUT, &copy.dq, queries(&op->forward, op->dq_stride)},                                           \
  {OUT, &copy.dk, new_keys(&op->forward, op->dk_stride)},                                          \
  {OUT, &copy.dv, new_keys(&op->forward, op->dv_stride)}
#define HALF_embedding WIDENED,                                                                    \
  {IN, &wte, vector(op->V * op->C)},                                                               \
  {IN, &wpe, vector((op->position ? op->P : op->rows < op->T ? op->rows : op->T) * op->C)},        \
  {OUT, &x, vector(op->rows * op->C)}
#define HALF_embedding_backward WIDENED, {IN, &dx, vector(op->rows * op->C)}
#define HALF_cross_entropy WIDENED_OP, struct cross_entropy,                                       \
  {op->gradient ? BOTH : IN, &copy.logits, matrix(op->rows, op->ld, op->ld)}
#define HALF_add WIDENED, {IN, &a, vector(n)}, {IN, &b, vector(n)}, {OUT, &out, vector(n)}
/* clang-format on */

#define OWN(name, parameters, arguments, ...)
#define WIDENED(name, parameters, arguments, ...)                                                  \
  enum status half_##name parameters                                                               \
  {                                                                                                \
    struct call call = {.lane = lane};                                                             \
    widen(&call, (struct operand[]){__VA_ARGS__, {0}});                                            \
    return narrow(&call, call.status ?: host_##name arguments);                                    \
  }
#define WIDENED_OP(name, parameters, arguments, type, ...)                                         \
  enum status half_##name parameters                                                               \
  {                                                                                                \
    struct call call = {.lane = lane};                                                             \
    type copy = *op;                                                                               \
    widen(&call, (struct operand[]){__VA_ARGS__, {0}});                                            \
    return narrow(&call, call.status ?: host_##name(lane, &copy));                                 \
  }
#define DEFINE(name, parameters, arguments, half) DEFINE_AS(name, parameters, arguments, half)
#define DEFINE_AS(name, parameters, arguments, how, ...)                                           \
  how(name, parameters, arguments, __VA_ARGS__)
#define OPERATION(name, parameters, arguments, kind, work)
#define TYPED(name, parameters, arguments, kind, work)                                             \
  DEFINE(name, parameters, arguments, HALF_##name)
#include "device/operations.h"

static const float *decode(struct call *call, int64_t n, int64_t k, bool blocks, const void *code,
                           const float *scale)
{
  float *wide = room(call, vector(n * k));
  if (!call->status)
    host_fp8_decode(n, k, blocks, call->lane->device->fp8_tensor, code, scale, wide);
  return wide;
}

/* Values of codes are exact, products and sums are those of fp32. A weight gradient
 * is added up one sequence after the other. */
static enum status multiply_fp8(struct call *call, const struct matmul *op)
{
  const int64_t tile = op->gradient && op->tile ? op->tile : op->k;
  struct matmul wide = *op;
  wide.a = decode(call, op->m, op->k, op->a_blocks, op->a, op->a_scale);
  wide.b = decode(call, op->n, op->k, !op->a_blocks, op->b, op->b_scale);
  wide.a_scale = wide.b_scale = NULL;
  enum status status = call->status;
  for (int64_t from = 0; from < op->k && !status; from += tile) {
    struct matmul part = wide;
    part.a = (const float *)wide.a + from;
    part.b = (const float *)wide.b + from;
    part.k = from + tile < op->k ? tile : op->k - from;
    part.accumulate = op->accumulate || from > 0;
    status = host_matmul(call->lane, &part);
  }
  return status;
}

/* A weight gradient (trans_a, gradient) is fp32, and so is what is added to it. */
enum status half_matmul(struct lane *lane, const struct matmul *given)
{
  struct matmul copy = *given, *const op = &copy;
  struct call call = {.lane = lane};
  const struct extent c = matrix(op->m, op->n, op->ldc);
  const bool half = !op->trans_a && !op->gradient;
  const enum use in = op->a_scale ? NONE : IN;
  /* clang-format off */
  widen(&call, (struct operand[]){
      {in, &op->a, op->trans_a ? matrix(op->k, op->m, op->lda) : matrix(op->m, op->k, op->lda)},
      {in, &op->b, op->trans_b ? matrix(op->n, op->k, op->ldb) : matrix(op->k, op->n, op->ldb)},
      {IN, &op->bias, vector(op->n)},
      {op->epilogue == EPILOGUE_BIAS_GELU ? OUT : IN, &op->aux, c},
      {!half ? NONE : op->accumulate ? BOTH : OUT, &op->c, c},
      {half ? IN : NONE, &op->add, c},
      {0}});
  /* clang-format on */
  if (op->a_scale)
    return narrow(&call, multiply_fp8(&call, op));
  return narrow(&call, call.status ? call.status : host_matmul(lane, op));
}

/* An output in bf16, in tiles along its rows. */
static enum status code_rows(struct lane *lane, int64_t rows, int64_t columns, const void *x,
                             uint8_t *code, float *scale)
{
  const struct fp8_quantise op = {
      .rows = rows, .columns = columns, .ld = columns, .x = x, .code = code, .scale = scale};
  return host_fp8_quantise(lane, &op);
}

enum status half_norm(struct lane *lane, const struct row_norm *given)
{
  struct row_norm copy = *given, *const op = &copy;
  struct call call = {.lane = lane};
  const struct extent x = matrix(op->rows, op->groups * op->C, op->x_stride),
                      y = matrix(op->rows, op->groups * op->C, op->y_stride);
  void *const out = op->y = op->code ? room(&call, y) : op->y;
  /* clang-format off */
  widen(&call, (struct operand[]){
      {IN, &op->x, x},
      {IN, &op->add, x},
      {op->add ? OUT : NONE, &op->sum, x},
      {IN, &op->gamma, vector(op->C)},
      {IN, &op->beta, vector(op->C)},
      {OUT, &op->y, y},
      {0}});
  /* clang-format on */
  const enum status status = narrow(&call, call.status ? call.status : host_norm(lane, op));
  return status || !op->code ? status : code_rows(lane, op->rows, op->C, out, op->code, op->scale);
}

enum status host_swiglu_coded(struct lane *lane, int64_t rows, int64_t F, const void *gu,
                              uint8_t *code, float *scale)
{
  struct call call = {.lane = lane, .status = host_check_fp8(lane)};
  void *const out = room(&call, vector(rows * F)), *y = out;
  widen(&call,
        (struct operand[]){{IN, &gu, vector(rows * 2 * F)}, {OUT, &y, vector(rows * F)}, {0}});
  const enum status status =
      narrow(&call, call.status ? call.status : host_swiglu(lane, rows, F, gu, y));
  return status ? status : code_rows(lane, rows, F, out, code, scale);
}

/* The gradients by g and by u, and their transposes, go to places within operands. dgu is
 * [rows, 2 count] in bf16. */
static enum status code_swiglu(struct lane *lane, const struct fp8_swiglu *op, const uint16_t *dgu,
                               const uint16_t *y)
{
  const int64_t n = op->rows, F = op->F, tiles = n / FP8_TILE, ld = 2 * op->count;
  for (int half = 0; half < 2; half++) {
    const int64_t column = half * F + op->first;
    struct fp8_quantise piece = {.rows = n, .columns = op->count, .ld = ld};
    piece.x = dgu + half * op->count;
    piece.code = op->code + (op->apart ? half * n * F + op->first : column);
    piece.scale = op->scale + column / FP8_TILE * n;
    host_fp8_code_into(lane, &piece, op->apart ? F : 2 * F, n);
    if (!op->turned)
      continue;
    piece.transposed = true;
    piece.code = op->turned + column * n;
    piece.scale = op->turned_scale + (op->turned_apart ? half * tiles * F + op->first : column);
    host_fp8_code_into(lane, &piece, n, op->turned_apart ? F : 2 * F);
  }
  if (!op->y_turned)
    return STATUS_OK;
  struct fp8_quantise output = {.rows = n, .columns = op->count, .ld = op->count, .x = y};
  output.blocks = output.transposed = true;
  output.code = op->y_turned + op->first * n;
  output.scale = op->y_turned_scale + op->first / FP8_TILE * fp8_pitch(n);
  return host_fp8_quantise(lane, &output);
}

enum status host_swiglu_backward_coded(struct lane *lane, const struct fp8_swiglu *op)
{
  struct call call = {.lane = lane};
  const int64_t n = op->rows * op->count;
  enum status status = host_check_fp8(lane) ?: device_check_swiglu(op);
  if (status)
    return status;
  uint16_t *const half_gu = (uint16_t *)room(&call, vector(2 * n));
  for (int64_t r = 0; r < 2 * op->rows && !call.status; r++)
    memcpy(half_gu + r * op->count, (const uint16_t *)op->gu + r * op->F + op->first,
           (size_t)op->count * sizeof *half_gu);
  const void *gu = half_gu, *dy = op->dy;
  void *const half_dgu = room(&call, vector(2 * n)), *dgu = half_dgu;
  void *const half_y = room(&call, vector(n)), *y = half_y;
  /* clang-format off */
  widen(&call, (struct operand[]){
      {IN, &gu, vector(2 * n)},
      {IN, &dy, vector(n)},
      {OUT, &dgu, vector(2 * n)},
      {OUT, &y, vector(n)},
      {0}});
  /* clang-format on */
  status =
      narrow(&call, call.status ? call.status
                                : host_swiglu_backward(lane, op->rows, op->count, gu, dy, dgu, y));
  return status ? status : code_swiglu(lane, op, half_dgu, half_y);
}
