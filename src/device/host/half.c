/* The host device in bf16: operands are widened, the operation runs in fp32, and its outputs are
 * rounded (to nearest, ties to even). Activations and parameters are bf16, gradients of parameters
 * and statistics fp32. It is an oracle for devices that compute in bf16, and serves tests of the
 * engine. It is not fast. */
#include "device/host/host.h"

enum { MOST_OUTPUTS = 3 };

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

/* A call: the bytes of the lane's room used so far, the outputs, and the first failure. */
struct call {
  struct lane *lane;
  int taken, outputs;
  enum status status;
  struct {
    const float *wide;
    void *x;
    struct extent e;
  } output[MOST_OUTPUTS];
};

/* fp32 room with the layout of x. NULL for NULL. */
static float *blank(struct call *call, const void *x, struct extent e)
{
  if (!x || call->status)
    return NULL;
  struct widened *to = &((struct host_lane *)call->lane)->widened[call->taken++];
  int64_t need = elements(&e);
  call->status = mem_grow(MEM_META, &to->floats, &to->room, need > 0 ? need : 1, sizeof(float));
  return to->floats;
}

static float *widen(struct call *call, const void *x, struct extent e)
{
  float *wide = blank(call, x, e);
  if (wide && !call->status)
    convert(&e, wide, DTYPE_F32, x, DTYPE_BF16);
  return wide;
}

/* Room for an output, which end_call() rounds to x. */
static float *output(struct call *call, void *x, struct extent e)
{
  float *wide = blank(call, x, e);
  if (wide)
    call->output[call->outputs++] = (typeof(call->output[0])){wide, x, e};
  return wide;
}

/* The same for an output that may accumulate. */
static float *added(struct call *call, void *x, struct extent e, bool accumulate)
{
  float *wide = output(call, x, e);
  if (wide && accumulate && !call->status)
    convert(&e, wide, DTYPE_F32, x, DTYPE_BF16);
  return wide;
}

static enum status end_call(const struct call *call, enum status status)
{
  for (int i = 0; i < call->outputs && !status; i++)
    convert(&call->output[i].e, call->output[i].x, DTYPE_BF16, call->output[i].wide, DTYPE_F32);
  return status;
}

static const float *decode(struct call *call, int64_t n, int64_t k, bool blocks, const void *code,
                           const float *scale)
{
  float *wide = blank(call, code, vector(n * k));
  if (wide && !call->status)
    host_fp8_decode(n, k, blocks, call->lane->device->fp8_tensor, code, scale, wide);
  return wide;
}

/* Values of codes are exact, products and sums are those of fp32. A weight gradient
 * is added up one sequence after the other. */
static enum status multiply_fp8(struct call *call, const struct matmul *op, struct matmul *wide)
{
  const int64_t tile = op->gradient && op->tile ? op->tile : op->k;
  enum status status = call->status;
  wide->a_scale = wide->b_scale = NULL;
  for (int64_t from = 0; from < op->k && !status; from += tile) {
    struct matmul part = *wide;
    part.a = (const float *)wide->a + from;
    part.b = (const float *)wide->b + from;
    part.k = from + tile < op->k ? tile : op->k - from;
    part.accumulate = op->accumulate || from > 0;
    status = host_matmul(call->lane, &part);
  }
  return status;
}

/* A weight gradient (trans_a, gradient) is fp32, and so is what is added to it. */
static enum status matmul(struct lane *lane, const struct matmul *op)
{
  struct call call = {.lane = lane};
  const struct extent c = matrix(op->m, op->n, op->ldc);
  struct matmul wide = *op;
  if (op->a_scale) {
    wide.a = decode(&call, op->m, op->k, op->a_blocks, op->a, op->a_scale);
    wide.b = decode(&call, op->n, op->k, !op->a_blocks, op->b, op->b_scale);
  } else {
    wide.a = widen(&call, op->a,
                   op->trans_a ? matrix(op->k, op->m, op->lda) : matrix(op->m, op->k, op->lda));
    wide.b = widen(&call, op->b,
                   op->trans_b ? matrix(op->n, op->k, op->ldb) : matrix(op->k, op->n, op->ldb));
  }
  wide.bias = widen(&call, op->bias, vector(op->n));
  wide.aux =
      op->epilogue == EPILOGUE_BIAS_GELU ? output(&call, op->aux, c) : widen(&call, op->aux, c);
  if (!op->trans_a && !op->gradient) {
    wide.c = added(&call, op->c, c, op->accumulate);
    wide.add = widen(&call, op->add, c);
  }
  if (op->a_scale)
    return end_call(&call, multiply_fp8(&call, op, &wide));
  return end_call(&call, call.status ? call.status : host_matmul(lane, &wide));
}

static enum status bias_gradient(struct lane *lane, int64_t rows, int64_t n, int64_t tile,
                                 int64_t ld, const void *d, bool accumulate, void *db)
{
  struct call call = {.lane = lane};
  const float *wide = widen(&call, d, matrix(rows, n, ld));
  return call.status ? call.status
                     : host_bias_gradient(lane, rows, n, tile, ld, wide, accumulate, db);
}

/* An output in bf16, in tiles along its rows. */
static enum status code_rows(struct lane *lane, int64_t rows, int64_t columns, const void *x,
                             uint8_t *code, float *scale)
{
  const struct fp8_quantise op = {
      .rows = rows, .columns = columns, .ld = columns, .x = x, .code = code, .scale = scale};
  return host_fp8_quantise(lane, &op);
}

static enum status norm(struct lane *lane, const struct row_norm *op)
{
  struct call call = {.lane = lane};
  const struct extent x = matrix(op->rows, op->groups * op->C, op->x_stride),
                      y = matrix(op->rows, op->groups * op->C, op->y_stride);
  struct row_norm wide = *op;
  wide.x = widen(&call, op->x, x);
  wide.add = widen(&call, op->add, x);
  wide.sum = output(&call, op->add ? op->sum : NULL, x);
  wide.gamma = widen(&call, op->gamma, vector(op->C));
  wide.beta = widen(&call, op->beta, vector(op->C));
  void *const out = op->code ? blank(&call, op->code, y) : op->y;
  wide.y = output(&call, out, y);
  const enum status status = end_call(&call, call.status ? call.status : host_norm(lane, &wide));
  return status || !op->code ? status : code_rows(lane, op->rows, op->C, out, op->code, op->scale);
}

static enum status norm_backward(struct lane *lane, const struct row_norm_backward *op)
{
  struct call call = {.lane = lane};
  const int64_t columns = op->groups * op->C;
  const struct extent dx = matrix(op->rows, columns, op->dx_stride);
  struct row_norm_backward wide = *op;
  wide.dy = widen(&call, op->dy, matrix(op->rows, columns, op->dy_stride));
  wide.x = widen(&call, op->x, matrix(op->rows, columns, op->x_stride));
  wide.gamma = widen(&call, op->gamma, vector(op->C));
  wide.dx = added(&call, op->dx, dx, op->dx_accumulate);
  return end_call(&call, call.status ? call.status : host_norm_backward(lane, &wide));
}

static enum status rope(struct lane *lane, const struct rope *op)
{
  struct call call = {.lane = lane};
  const struct extent x = matrix(op->rows, op->heads * op->D, op->stride);
  struct rope wide = *op;
  wide.x = added(&call, op->x, x, true);
  return end_call(&call, call.status ? call.status : host_rope(lane, &wide));
}

static enum status swiglu(struct lane *lane, int64_t rows, int64_t F, const void *gu, void *y)
{
  struct call call = {.lane = lane};
  const float *wide_gu = widen(&call, gu, vector(rows * 2 * F));
  float *wide_y = output(&call, y, vector(rows * F));
  return end_call(&call, call.status ? call.status : host_swiglu(lane, rows, F, wide_gu, wide_y));
}

static enum status swiglu_coded(struct lane *lane, int64_t rows, int64_t F, const void *gu,
                                uint8_t *code, float *scale)
{
  struct call call = {.lane = lane};
  const float *wide_gu = widen(&call, gu, vector(rows * 2 * F));
  void *const y = blank(&call, code, vector(rows * F));
  float *wide_y = output(&call, y, vector(rows * F));
  const enum status status =
      end_call(&call, call.status ? call.status : host_swiglu(lane, rows, F, wide_gu, wide_y));
  return status ? status : code_rows(lane, rows, F, y, code, scale);
}

static enum status swiglu_backward(struct lane *lane, int64_t rows, int64_t F, const void *gu,
                                   const void *dy, void *dgu, void *y)
{
  struct call call = {.lane = lane};
  const float *wide_gu = widen(&call, gu, vector(rows * 2 * F)),
              *wide_dy = widen(&call, dy, vector(rows * F));
  float *wide_dgu = output(&call, dgu, vector(rows * 2 * F)),
        *wide_y = output(&call, y, vector(rows * F));
  return end_call(
      &call, call.status ? call.status
                         : host_swiglu_backward(lane, rows, F, wide_gu, wide_dy, wide_dgu, wide_y));
}

/* Codes FP8_TILE columns of the gradient by g (half 0) or u (1), and puts them into the operand.
 * `room` holds the codes of these columns alone. x is [rows, 2 count] in bf16. */
static enum status code_columns(struct lane *lane, const struct fp8_swiglu *op, const uint16_t *x,
                                int half, int64_t at, uint8_t *room)
{
  const int64_t f = op->first + at, column = half * op->F + f, k = op->apart ? op->F : 2 * op->F;
  const struct fp8_quantise piece = {.rows = op->rows,
                                     .columns = FP8_TILE,
                                     .ld = 2 * op->count,
                                     .x = x + half * op->count + at,
                                     .code = room,
                                     .scale = op->scale + column / FP8_TILE * op->rows};
  uint8_t *const to = op->code + (op->apart ? half * op->rows * op->F + f : column);
  const enum status status = host_fp8_quantise(lane, &piece);
  for (int64_t r = 0; r < op->rows && !status; r++)
    memcpy(to + r * k, room + r * FP8_TILE, FP8_TILE);
  return status;
}

/* Likewise of the transpose. `room` holds the scales. */
static enum status turn_columns(struct lane *lane, const struct fp8_swiglu *op, const uint16_t *x,
                                int half, int64_t at, float *room)
{
  const int64_t f = op->first + at, column = half * op->F + f, tiles = op->rows / FP8_TILE,
                n = op->turned_apart ? op->F : 2 * op->F;
  const struct fp8_quantise piece = {.rows = op->rows,
                                     .columns = FP8_TILE,
                                     .ld = 2 * op->count,
                                     .x = x + half * op->count + at,
                                     .transposed = true,
                                     .code = op->turned + column * op->rows,
                                     .scale = room};
  float *const to = op->turned_scale + (op->turned_apart ? half * tiles * op->F + f : column);
  const enum status status = host_fp8_quantise(lane, &piece);
  for (int64_t t = 0; t < tiles && !status; t++)
    memcpy(to + t * n, room + t * FP8_TILE, FP8_TILE * sizeof *room);
  return status;
}

static enum status code_swiglu(struct lane *lane, const struct fp8_swiglu *op, const uint16_t *dgu,
                               const uint16_t *y, float *room)
{
  enum status status = STATUS_OK;
  for (int half = 0; half < 2; half++)
    for (int64_t at = 0; at < op->count && !status; at += FP8_TILE) {
      status = code_columns(lane, op, dgu, half, at, (uint8_t *)room);
      if (!status && op->turned)
        status = turn_columns(lane, op, dgu, half, at, room);
    }
  if (status || !op->y_turned)
    return status;
  const int64_t pitch = fp8_pitch(op->rows);
  const struct fp8_quantise output = {.rows = op->rows,
                                      .columns = op->count,
                                      .ld = op->count,
                                      .x = y,
                                      .blocks = true,
                                      .transposed = true,
                                      .code = op->y_turned + op->first * op->rows,
                                      .scale = op->y_turned_scale + op->first / FP8_TILE * pitch};
  return host_fp8_quantise(lane, &output);
}

static enum status swiglu_backward_coded(struct lane *lane, const struct fp8_swiglu *op)
{
  struct call call = {.lane = lane};
  const int64_t n = op->rows * op->count;
  const enum status wrong = device_check_swiglu(op);
  if (wrong)
    return wrong;
  uint16_t *const half_gu = (uint16_t *)blank(&call, op->gu, vector(2 * n));
  for (int64_t r = 0; r < 2 * op->rows && !call.status; r++)
    memcpy(half_gu + r * op->count, (const uint16_t *)op->gu + r * op->F + op->first,
           (size_t)op->count * sizeof *half_gu);
  const float *gu = widen(&call, half_gu, vector(2 * n)), *dy = widen(&call, op->dy, vector(n));
  void *const dgu = blank(&call, op->code, vector(2 * n)), *const y =
                                                               blank(&call, op->code, vector(n));
  float *room = blank(&call, op->code, vector(op->rows * FP8_TILE)),
        *wide_dgu = output(&call, dgu, vector(2 * n)), *wide_y = output(&call, y, vector(n));
  const enum status status =
      end_call(&call, call.status ? call.status
                                  : host_swiglu_backward(lane, op->rows, op->count, gu, dy,
                                                         wide_dgu, wide_y));
  return status ? status : code_swiglu(lane, op, dgu, y, room);
}

/* The layout [batch, tokens, heads, head width] of the queries, and of the keys, which include the
 * cache. */
static struct extent queries(const struct attention *op, int64_t stride)
{
  return matrix(op->batch * op->tokens, op->heads * op->head_width, stride);
}

static struct extent keys(const struct attention *op, int64_t stride)
{
  const int64_t rows = op->past + op->tokens;
  return (struct extent){.batch = op->batch,
                         .apart = op->kv_batch_stride ? op->kv_batch_stride : rows * stride,
                         .rows = rows,
                         .columns = op->kv_heads * op->head_width,
                         .ld = stride};
}

static void widen_attention(struct call *call, const struct attention *op, struct attention *wide)
{
  wide->q = widen(call, op->q, queries(op, op->q_stride));
  wide->k = widen(call, op->k, keys(op, op->k_stride));
  wide->v = widen(call, op->v, keys(op, op->v_stride));
}

static enum status attention(struct lane *lane, const struct attention *op)
{
  struct call call = {.lane = lane};
  struct attention wide = *op;
  widen_attention(&call, op, &wide);
  wide.out = output(&call, op->out, queries(op, op->out_stride));
  return end_call(&call, call.status ? call.status : host_attention(lane, &wide));
}

static enum status attention_backward(struct lane *lane, const struct attention_backward *op)
{
  struct call call = {.lane = lane};
  const struct attention *forward = &op->forward;
  const struct extent dq = queries(forward, op->dq_stride);
  const struct extent dk = matrix(forward->batch * forward->tokens,
                                  forward->kv_heads * forward->head_width, op->dk_stride);
  const struct extent dv = matrix(forward->batch * forward->tokens,
                                  forward->kv_heads * forward->head_width, op->dv_stride);
  struct attention_backward wide = *op;
  widen_attention(&call, forward, &wide.forward);
  wide.forward.out = widen(&call, forward->out, queries(forward, forward->out_stride));
  wide.dout = widen(&call, op->dout, queries(forward, forward->out_stride));
  wide.dq = output(&call, op->dq, dq);
  wide.dk = output(&call, op->dk, dk);
  wide.dv = output(&call, op->dv, dv);
  return end_call(&call, call.status ? call.status : host_attention_backward(lane, &wide));
}

static enum status embedding(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V,
                             const int32_t *token, const void *wte, const void *wpe, void *x)
{
  struct call call = {.lane = lane};
  const float *words = widen(&call, wte, vector(V * C)),
              *positions = widen(&call, wpe, vector((rows < T ? rows : T) * C));
  float *wide = output(&call, x, vector(rows * C));
  return end_call(&call, call.status
                             ? call.status
                             : host_embedding(lane, rows, T, C, V, token, words, positions, wide));
}

static enum status embedding_backward(struct lane *lane, int64_t rows, int64_t T, int64_t C,
                                      int64_t V, const int32_t *token, const void *dx, void *dwte,
                                      bool wpe_accumulate, void *dwpe)
{
  struct call call = {.lane = lane};
  const float *wide = widen(&call, dx, vector(rows * C));
  return call.status ? call.status
                     : host_embedding_backward(lane, rows, T, C, V, token, wide, dwte,
                                               wpe_accumulate, dwpe);
}

static enum status cross_entropy(struct lane *lane, int64_t rows, int64_t V, int64_t ld,
                                 void *logits, const int32_t *target, float scale, bool gradient,
                                 double *loss)
{
  struct call call = {.lane = lane};
  const struct extent all = matrix(rows, ld, ld);
  float *wide = gradient ? added(&call, logits, all, true) : widen(&call, logits, all);
  return end_call(&call, call.status ? call.status
                                     : host_cross_entropy(lane, rows, V, ld, wide, target, scale,
                                                          gradient, loss));
}

static enum status add(struct lane *lane, int64_t n, const void *a, const void *b, void *out)
{
  struct call call = {.lane = lane};
  const float *wide_a = widen(&call, a, vector(n)), *wide_b = widen(&call, b, vector(n));
  float *wide = output(&call, out, vector(n));
  return end_call(&call, call.status ? call.status : host_add(lane, n, wide_a, wide_b, wide));
}

const struct device_ops host_half_ops = {
    HOST_COMMON_OPS,
    .matmul = matmul,
    .fp8_quantise = host_fp8_quantise,
    .bias_gradient = bias_gradient,
    .norm = norm,
    .norm_backward = norm_backward,
    .rope = rope,
    .swiglu = swiglu,
    .swiglu_coded = swiglu_coded,
    .swiglu_backward = swiglu_backward,
    .swiglu_backward_coded = swiglu_backward_coded,
    .attention = attention,
    .attention_backward = attention_backward,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .cross_entropy = cross_entropy,
    .add = add,
};
