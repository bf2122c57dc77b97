#include "model/parts.h"

void *carve(struct carve *from, int64_t rows, int64_t width, size_t element)
{
  enum { ALIGN = 64 };
  size_t begin = from->used, bytes;
  if (__builtin_mul_overflow(rows, width, &bytes) || __builtin_mul_overflow(bytes, element, &bytes) ||
      __builtin_add_overflow(bytes, ALIGN - 1, &bytes) || __builtin_add_overflow(begin, bytes / ALIGN * ALIGN, &from->used))
    from->used = SIZE_MAX;
  return from->base ? from->base + begin : NULL;
}

int64_t shape_rows(struct model_shape s)
{
  int64_t rows;
  return __builtin_mul_overflow(s.B, s.T, &rows) ? INT64_MAX : rows;
}

const void *flat_param(const struct flat *flat, int p)
{
  return flat->params ? (const char *)flat->params + (size_t)flat->unit->layout.offset[p] * dtype_size(flat->device->compute) : NULL;
}

void *flat_grad(const struct flat *flat, int p)
{
  return flat->grads ? (char *)flat->grads + (size_t)flat->unit->layout.offset[p] * dtype_size(flat->device->gradient) : NULL;
}

struct linear linear_bind(const struct flat *flat, int weight, int bias, bool transposed)
{
  const int64_t *shape = flat->unit->param[weight].shape;
  struct linear l = {.in = shape[transposed],
                     .out = shape[!transposed],
                     .transposed = transposed,
                     .weight = flat_param(flat, weight),
                     .dweight = flat_grad(flat, weight)};
  if (bias >= 0) {
    l.bias = flat_param(flat, bias);
    l.dbias = flat_grad(flat, bias);
  }
  return l;
}

static int64_t weight_ld(const struct linear *l)
{
  return l->transposed ? l->in : l->out;
}

static enum status multiply(const struct pass *pass, const struct linear *l, const void *x, void *y, enum epilogue epilogue, void *aux)
{
  return pass->lane->device->ops->matmul(pass->lane, &(struct matmul){.m = pass->rows,
                                                                      .n = l->out,
                                                                      .k = l->in,
                                                                      .tile = pass->tile,
                                                                      .trans_b = l->transposed,
                                                                      .a = x,
                                                                      .lda = l->in,
                                                                      .b = l->weight,
                                                                      .ldb = weight_ld(l),
                                                                      .c = y,
                                                                      .ldc = l->out,
                                                                      .epilogue = epilogue,
                                                                      .bias = l->bias,
                                                                      .aux = aux});
}

enum status linear_forward(const struct pass *pass, const struct linear *l, const void *x, void *y)
{
  return multiply(pass, l, x, y, l->bias ? EPILOGUE_BIAS : EPILOGUE_NONE, NULL);
}

enum status linear_gelu_forward(const struct pass *pass, const struct linear *l, const void *x, void *pre, void *y)
{
  return multiply(pass, l, x, y, EPILOGUE_BIAS_GELU, pre);
}

enum status linear_backward_params(const struct pass *pass, const struct linear *l, const void *x, const void *dy)
{
  const struct device_ops *ops = pass->lane->device->ops;
  struct matmul dweight = {.m = l->in,
                           .n = l->out,
                           .k = pass->rows,
                           .tile = pass->tile,
                           .trans_a = true,
                           .accumulate = pass->accumulate,
                           .a = x,
                           .lda = l->in,
                           .b = dy,
                           .ldb = l->out,
                           .c = l->dweight,
                           .ldc = l->out};
  if (l->transposed) { /* dy^T x instead of x^T dy */
    dweight.m = l->out;
    dweight.n = l->in;
    dweight.a = dy;
    dweight.lda = l->out;
    dweight.b = x;
    dweight.ldb = l->in;
    dweight.ldc = l->in;
  }
  enum status status = ops->matmul(pass->lane, &dweight);
  if (status == STATUS_OK && l->dbias)
    status = ops->bias_gradient(pass->lane, pass->rows, l->out, pass->tile, dy, pass->accumulate, l->dbias);
  return status;
}

enum status linear_backward_input(const struct pass *pass, const struct linear *l, const void *dy, const void *pre, void *dx)
{
  return pass->lane->device->ops->matmul(pass->lane, &(struct matmul){.m = pass->rows,
                                                                      .n = l->in,
                                                                      .k = l->out,
                                                                      .tile = pass->tile,
                                                                      .trans_b = !l->transposed,
                                                                      .a = dy,
                                                                      .lda = l->out,
                                                                      .b = l->weight,
                                                                      .ldb = weight_ld(l),
                                                                      .c = dx,
                                                                      .ldc = l->in,
                                                                      .epilogue = pre ? EPILOGUE_DGELU : EPILOGUE_NONE,
                                                                      .aux = (void *)pre}); /* read only with DGELU */
}

struct norm norm_bind(const struct flat *flat, int weight, int bias, double eps)
{
  return (struct norm){.width = flat->unit->param[weight].shape[0],
                       .eps = (float)eps,
                       .weight = flat_param(flat, weight),
                       .bias = flat_param(flat, bias),
                       .dweight = flat_grad(flat, weight),
                       .dbias = flat_grad(flat, bias)};
}

struct norm_stats norm_stats_carve(struct carve *from, int64_t rows)
{
  float *mean = carve(from, rows, 1, sizeof(float)), *rstd = carve(from, rows, 1, sizeof(float));
  return (struct norm_stats){mean, rstd};
}

enum status norm_forward(const struct pass *pass, const struct norm *n, const void *x, const void *add, void *sum, void *y, struct norm_stats stats)
{
  return pass->lane->device->ops->layernorm(pass->lane, pass->rows, n->width, n->eps, x, add, sum, n->weight, n->bias, y, stats.mean, stats.rstd);
}

enum status norm_backward(const struct pass *pass, const struct norm *n, const void *dy, const void *x, struct norm_stats stats, bool add_to_dx,
                          void *dx, void *work)
{
  return pass->lane->device->ops->layernorm_backward(pass->lane, pass->rows, n->width, pass->tile, dy, x, n->weight, stats.mean, stats.rstd,
                                                     add_to_dx, dx, pass->accumulate, n->dweight, n->dbias, work);
}
