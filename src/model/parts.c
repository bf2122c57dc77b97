/* Products, norms and their gradients, as the blocks and the head call them. */
#include "model/parts.h"

#include <inttypes.h>

#include "model/unit.h"

void *carve(struct carve *from, int64_t rows, int64_t width, size_t element)
{
  enum { ALIGN = 64 };
  size_t begin = from->used, bytes;
  if (__builtin_mul_overflow(rows, width, &bytes) ||
      __builtin_mul_overflow(bytes, element, &bytes) ||
      __builtin_add_overflow(bytes, ALIGN - 1, &bytes) ||
      __builtin_add_overflow(begin, bytes / ALIGN * ALIGN, &from->used))
    from->used = SIZE_MAX;
  return from->base ? from->base + begin : NULL;
}

void carve_beyond(struct carve *from, const struct carve *copy)
{
  if (copy->used > from->used)
    from->used = copy->used;
}

void carve_behind(struct carve *from, const struct carve *other)
{
  if (__builtin_add_overflow(from->used, other->used, &from->used))
    from->used = SIZE_MAX;
}

enum status carve_rest(const struct carve *from, int64_t bytes, size_t *out)
{
  if (bytes < 0 || (size_t)bytes <= from->used)
    return status_set(STATUS_INTERNAL,
                      "a pass through a block has %" PRId64
                      " bytes of workspace, and needs more than %zu",
                      bytes, from->used);
  *out = (size_t)bytes - from->used;
  return STATUS_OK;
}

int64_t shape_rows(struct model_shape s)
{
  int64_t rows;
  return __builtin_mul_overflow(s.B, s.T, &rows) ? INT64_MAX : rows;
}

const void *element_at(const void *base, int64_t elements, enum dtype type)
{
  return base ? (const char *)base + (size_t)elements * dtype_size(type) : NULL;
}

struct flat flat_of(const struct model *model, int unit, const void *params, void *grads)
{
  return flat_of_block(model, unit, (struct model_params){.flat = params}, grads);
}

struct flat flat_of_block(const struct model *model, int unit, struct model_params params,
                          void *grads)
{
  return (struct flat){.model = model,
                       .unit = &model->unit[unit],
                       .params = params.flat,
                       .scales = params.scales,
                       .grads = grads,
                       .type = model->config.compute};
}

static const void *beside_scales(const struct flat *flat, int p)
{
  const int unit = (int)(flat->unit - flat->model->unit);
  return (const char *)flat->scales + model_fp8_offset(flat->model, unit, p);
}

const void *flat_param(const struct flat *flat, int p)
{
  const bool weight = flat->unit->param[p].kind == PARAM_WEIGHT;
  if (flat->scales && !weight)
    return beside_scales(flat, p);
  return element_at(flat->params, flat->unit->layout.offset[p],
                    flat->scales ? DTYPE_F8_E4M3 : flat->type);
}

const float *flat_scale(const struct flat *flat, int p)
{
  return flat->scales ? beside_scales(flat, p) : NULL;
}

void *flat_grad(const struct flat *flat, int p)
{
  if (!flat->grads || flat->unit->param[p].frozen)
    return NULL;
  return (char *)flat->grads + (size_t)flat->unit->layout.offset[p] * GRADIENT_BYTES;
}

/* Of matrices only those of blocks may be [in, out]. */
static bool is_transposed(const struct flat *flat)
{
  const int unit = (int)(flat->unit - flat->model->unit);
  return unit == flat->model->head || !(model_features(flat->model) & FEATURE_CONV1D);
}

struct linear linear_bind(const struct flat *flat, int weight, int bias)
{
  const bool transposed = is_transposed(flat);
  const int64_t *shape = flat->unit->param[weight].shape;
  struct linear l = {.in = shape[transposed],
                     .out = shape[!transposed],
                     .y_stride = shape[!transposed],
                     .weight_stride = shape[1],
                     .transposed = transposed,
                     .weight = flat_param(flat, weight),
                     .whole = flat_param(flat, weight),
                     .weight_scale = flat_scale(flat, weight),
                     .dweight = flat_grad(flat, weight)};
  if (bias >= 0) {
    l.bias = flat_param(flat, bias);
    l.dbias = flat_grad(flat, bias);
  }
  return l;
}

/* Tiles have a scale per 128 elements. Blocks have fewer, also with the rest up to the pitch. */
struct fp8_operand fp8_operand_carve(struct carve *from, int64_t rows, int64_t width)
{
  struct fp8_operand operand;
  int64_t elements;
  if (__builtin_mul_overflow(rows, width, &elements)) {
    from->used = SIZE_MAX;
    return (struct fp8_operand){NULL, NULL};
  }
  operand.code = carve(from, elements, 1, 1);
  operand.scale = carve(from, elements / FP8_TILE, 1, sizeof(float));
  return operand;
}

/* The same operand without its first elements, which are whole tiles. No operand stays none. */
static struct fp8_operand further(struct fp8_operand operand, int64_t elements)
{
  if (!operand.code)
    return operand;
  return (struct fp8_operand){operand.code + elements, operand.scale + elements / FP8_TILE};
}

struct fp8_room fp8_carve(struct carve *from, const struct model *model,
                          const struct fp8_sizes *sizes)
{
  struct fp8_room room = {0};
  int64_t b = 0;
  if (!model->fp8)
    return room;
  if (model->fp8 == FP8_ALL && __builtin_mul_overflow(sizes->rows, sizes->x_width, &b)) {
    from->used = SIZE_MAX;
    return room;
  }
  room.a = fp8_operand_carve(from, sizes->rows, sizes->width);
  room.b = fp8_operand_carve(from, b > sizes->weight ? b : sizes->weight, 1);
  if (model->fp8 == FP8_ALL && sizes->dy_width)
    room.turned = fp8_operand_carve(from, sizes->rows, sizes->dy_width);
  return room;
}

struct fp8_room fp8_of(const struct model *model, int unit, struct fp8_room room)
{
  room.use = model->unit[unit].fp8;
  return room;
}

/* Whether products of the pass read one scale per operand. Then layers are not joined, because each
 * has scales of its own. */
static bool one_scale(const struct pass *pass)
{
  return pass->fp8.use && pass->lane->device->fp8_tensor;
}

/* An operand of n x k in groups, before a product. */
static enum status unify(const struct pass *pass, int64_t n, int64_t k, bool blocks, uint8_t *code,
                         float *scale)
{
  const struct fp8_unify op = {.n = n, .k = k, .blocks = blocks, .code = code, .scale = scale};
  return one_scale(pass) ? pass->lane->device->ops->fp8_unify(pass->lane, &op) : STATUS_OK;
}

/* The product of a, which is coded here unless it is NULL and in codes, and of b in codes. */
static enum status multiply_coded(const struct pass *pass, struct matmul *op,
                                  const struct fp8_quantise *a, const uint8_t *b,
                                  const float *b_scale)
{
  const struct device_ops *ops = pass->lane->device->ops;
  op->a = a->code;
  op->a_scale = a->scale;
  op->b = b;
  op->b_scale = b_scale;
  op->lda = op->ldb = op->k;
  op->trans_a = false;
  op->trans_b = true;
  enum status status = a->x ? ops->fp8_quantise(pass->lane, a) : STATUS_OK;
  if (!status)
    status = unify(pass, op->m, op->k, a->blocks, a->code, a->scale);
  return status ? status : ops->matmul(pass->lane, op);
}

/* The scale that a whole weight of rows x columns has in codes, at the start of `room`. */
static enum status find_scale(const struct pass *pass, int64_t rows, int64_t columns,
                              const void *whole, float *room)
{
  const struct device_ops *ops = pass->lane->device->ops;
  const struct fp8_part all = {
      .columns = columns, .end = rows * columns, .type = pass->type, .x = whole, .scale = room};
  enum status status =
      ops->zero(pass->lane, room, (size_t)(rows / FP8_TILE * fp8_pitch(columns)) * sizeof *room);
  if (!status)
    status = ops->fp8_largest(pass->lane, &all);
  return status ? status : ops->fp8_scales(pass->lane, rows, columns, room);
}

/* The weight b of a product as codes [n, k]. They were gathered, or are transposed or coded here.
 * With one scale per operand, codes made here need the scale of the whole weight, because gathered
 * codes have it. find_scale() writes it after the scales of b. The room has a scale per FP8_TILE
 * elements, and both need far fewer. */
static enum status code_weight(const struct pass *pass, const struct matmul *op,
                               const struct linear *l, struct fp8_operand *out)
{
  const struct device_ops *ops = pass->lane->device->ops;
  const struct fp8_operand *room = &pass->fp8.b;
  const float *const scale = l->weight_scale;
  float *const given =
      one_scale(pass) && !scale ? room->scale + op->n / FP8_TILE * fp8_pitch(op->k) : NULL;
  const struct fp8_quantise b = {.rows = op->trans_b ? op->n : op->k,
                                 .columns = op->trans_b ? op->k : op->n,
                                 .ld = op->ldb,
                                 .x = op->b,
                                 .blocks = true,
                                 .transposed = !op->trans_b,
                                 .given = given,
                                 .code = room->code,
                                 .scale = room->scale};
  const struct fp8_turn turn = {.rows = b.rows,
                                .columns = b.columns,
                                .ld = b.ld,
                                .code = op->b,
                                .scale = scale,
                                .turned = room->code,
                                .turned_scale = room->scale};
  enum status status = STATUS_OK;
  *out = *room;
  if (given)
    status = find_scale(pass, b.rows, b.ld, l->whole, given);
  if (status)
    return status;
  if (!scale)
    return ops->fp8_quantise(pass->lane, &b);
  if (b.transposed)
    return ops->fp8_turn(pass->lane, &turn);
  *out = (struct fp8_operand){(uint8_t *)op->b, (float *)scale}; /* read only */
  return STATUS_OK;
}

/* A product of activations or their gradients and the weight of a layer. */
static enum status product(const struct pass *pass, struct matmul op, const struct linear *l)
{
  const struct fp8_room *room = &pass->fp8;
  struct fp8_operand weight;
  if (!room->use)
    return pass->lane->device->ops->matmul(pass->lane, &op);
  const struct fp8_quantise a = {.rows = op.m,
                                 .columns = op.k,
                                 .ld = op.lda,
                                 .x = op.a,
                                 .code = room->a.code,
                                 .scale = room->a.scale};
  const enum status status = code_weight(pass, &op, l, &weight);
  return status ? status : multiply_coded(pass, &op, &a, weight.code, weight.scale);
}

/* The product of a weight gradient, a^T b over the rows of both. x is b if `b_is_x`, else a. Its
 * transpose is coded in blocks, and that of dy in tiles. An operand that is NULL is in codes
 * already: x in the room b, dy in `turned`. */
static enum status gradient_product(const struct pass *pass, struct matmul op, bool b_is_x)
{
  const struct fp8_room *room = &pass->fp8;
  const struct fp8_operand *dy_room = pass->fp8.coded ? &room->turned : &room->a,
                           *a_room = b_is_x ? dy_room : &room->b,
                           *b_room = b_is_x ? &room->b : dy_room;
  if (room->use != FP8_ALL)
    return pass->lane->device->ops->matmul(pass->lane, &op);
  const struct fp8_quantise a = {.rows = op.k,
                                 .columns = op.m,
                                 .ld = op.lda,
                                 .x = op.a,
                                 .blocks = !b_is_x,
                                 .transposed = true,
                                 .code = a_room->code,
                                 .scale = a_room->scale};
  const struct fp8_quantise b = {.rows = op.k,
                                 .columns = op.n,
                                 .ld = op.ldb,
                                 .x = op.b,
                                 .blocks = b_is_x,
                                 .transposed = true,
                                 .code = b_room->code,
                                 .scale = b_room->scale};
  op.gradient = true;
  op.a_blocks = !b_is_x;
  enum status status = b.x ? pass->lane->device->ops->fp8_quantise(pass->lane, &b) : STATUS_OK;
  if (!status)
    status = unify(pass, op.n, op.k, b.blocks, b.code, b.scale);
  return status ? status : multiply_coded(pass, &op, &a, b.code, b.scale);
}

static enum status multiply(const struct pass *pass, const struct linear *l, const void *x,
                            const void *add, void *y, enum epilogue epilogue, void *aux)
{
  return product(pass,
                 (struct matmul){.m = pass->rows,
                                 .n = l->out,
                                 .k = l->in,
                                 .tile = pass->tile,
                                 .trans_b = l->transposed,
                                 .a = x,
                                 .lda = l->in,
                                 .b = l->weight,
                                 .ldb = l->weight_stride,
                                 .c = y,
                                 .ldc = l->y_stride,
                                 .epilogue = epilogue,
                                 .bias = l->bias,
                                 .aux = aux,
                                 .add = add},
                 l);
}

enum status linear_forward(const struct pass *pass, const struct linear *l, const void *x, void *y)
{
  return linear_forward_add(pass, l, x, NULL, y);
}

enum status linear_forward_add(const struct pass *pass, const struct linear *l, const void *x,
                               const void *add, void *y)
{
  return multiply(pass, l, x, add, y, l->bias ? EPILOGUE_BIAS : EPILOGUE_NONE, NULL);
}

enum status linear_gelu_forward(const struct pass *pass, const struct linear *l, const void *x,
                                void *pre, void *y)
{
  return multiply(pass, l, x, NULL, y, EPILOGUE_BIAS_GELU, pre);
}

static enum status weight_gradient(const struct pass *pass, const struct linear *l, const void *x,
                                   const void *dy)
{
  struct matmul dweight = {.m = l->in,
                           .n = l->out,
                           .k = pass->rows,
                           .tile = pass->tile,
                           .trans_a = true,
                           .accumulate = pass->accumulate,
                           .a = x,
                           .lda = l->in,
                           .b = dy,
                           .ldb = l->y_stride,
                           .c = l->dweight,
                           .ldc = l->out};
  if (l->transposed) { /* dy^T x instead of x^T dy */
    dweight.m = l->out;
    dweight.n = l->in;
    dweight.a = dy;
    dweight.lda = l->y_stride;
    dweight.b = x;
    dweight.ldb = l->in;
    dweight.ldc = l->in;
  }
  return gradient_product(pass, dweight, l->transposed);
}

enum status linear_backward_params(const struct pass *pass, const struct linear *l, const void *x,
                                   const void *dy)
{
  const bool turned = pass->fp8.coded && pass->fp8.use == FP8_ALL;
  enum status status = l->dweight ? weight_gradient(pass, l, x, turned ? NULL : dy) : STATUS_OK;
  if (status == STATUS_OK && l->dbias)
    status = pass->lane->device->ops->bias_gradient(pass->lane, pass->rows, l->out, pass->tile,
                                                    l->y_stride, dy, pass->accumulate, l->dbias);
  return status;
}

static struct matmul input_gradient(const struct pass *pass, const struct linear *l, const void *dy,
                                    void *dx)
{
  return (struct matmul){.m = pass->rows,
                         .n = l->in,
                         .k = l->out,
                         .tile = pass->tile,
                         .trans_b = !l->transposed,
                         .a = pass->fp8.coded ? NULL : dy,
                         .lda = l->y_stride,
                         .b = l->weight,
                         .ldb = l->weight_stride,
                         .c = dx,
                         .ldc = l->in};
}

enum status linear_backward_input(const struct pass *pass, const struct linear *l, const void *dy,
                                  const void *pre, void *dx)
{
  struct matmul op = input_gradient(pass, l, dy, dx);
  op.epilogue = pre ? EPILOGUE_DGELU : EPILOGUE_NONE;
  op.aux = (void *)pre; /* read only with DGELU */
  return product(pass, op, l);
}

struct linear linear_inputs(const struct pass *pass, const struct linear *l, int64_t first,
                            int64_t count)
{
  struct linear part = *l;
  part.in = count;
  part.weight = element_at(l->weight, first, l->weight_scale ? DTYPE_F8_E4M3 : pass->type);
  if (l->weight_scale)
    part.weight_scale = l->weight_scale + first / FP8_TILE;
  return part;
}

/* Whether n parameters are adjacent, without gaps. */
static bool adjoin(const struct layout_unit *layout, int n, const int *param)
{
  for (int i = 0; i + 1 < n; i++)
    if (layout->offset[param[i]] + layout->elements[param[i]] != layout->offset[param[i + 1]])
      return false;
  return true;
}

/* Whether the scales of weights in codes, and the biases next to them, are adjacent too. */
static bool scales_adjoin(const struct fused *f)
{
  for (int i = 0; i + 1 < f->parts; i++) {
    const struct linear *l = &f->part[i], *next = &f->part[i + 1];
    const int64_t scales = l->out / FP8_TILE * fp8_pitch(l->in);
    if (l->weight_scale && l->weight_scale + scales != next->weight_scale)
      return false;
    if (l->weight_scale && l->bias && (const uint16_t *)l->bias + l->out != next->bias)
      return false;
  }
  return true;
}

static bool all_trained_or_none(const struct model_unit *unit, int n, const int *param)
{
  for (int i = 1; i < n; i++)
    if (unit->param[param[i]].frozen != unit->param[param[0]].frozen)
      return false;
  return true;
}

struct fused fused_bind(const struct flat *flat, int parts, const int *weight, const int *bias)
{
  const struct model_unit *unit = flat->unit;
  struct fused f = {.parts = parts};
  for (int i = 0; i < parts; i++) {
    f.part[i] = linear_bind(flat, weight[i], bias ? bias[i] : -1);
    f.out += f.part[i].out;
  }
  for (int i = 0; i < parts; i++)
    f.part[i].y_stride = f.out;
  f.joined = adjoin(&unit->layout, parts, weight) &&
             (!bias || adjoin(&unit->layout, parts, bias)) && scales_adjoin(&f);
  f.gradients_joined = f.joined && all_trained_or_none(unit, parts, weight) &&
                       (!bias || all_trained_or_none(unit, parts, bias));
  return f;
}

static struct linear join(const struct fused *f)
{
  struct linear all = f->part[0];
  all.out = f->out;
  return all;
}

enum status fused_forward(const struct pass *pass, const struct fused *f, const void *x, void *y)
{
  const struct linear all = join(f);
  if (f->joined && !one_scale(pass))
    return linear_forward(pass, &all, x, y);
  for (int64_t i = 0, column = 0; i < f->parts; column += f->part[i++].out) {
    enum status status =
        linear_forward(pass, &f->part[i], x, (void *)element_at(y, column, pass->type));
    if (status)
      return status;
  }
  return STATUS_OK;
}

bool fused_apart(const struct pass *pass, const struct fused *f)
{
  return f->parts > 1 && (!f->joined || one_scale(pass) || pass->lane->device->model.by_sequence);
}

bool fused_gradients_apart(const struct pass *pass, const struct fused *f)
{
  return f->parts > 1 && (!f->gradients_joined || (one_scale(pass) && pass->fp8.use == FP8_ALL));
}

bool fused_trains(const struct fused *f)
{
  for (int i = 0; i < f->parts; i++)
    if (f->part[i].dweight)
      return true;
  return false;
}

/* The rooms of codes begin at a part's. */
static struct pass pass_of_part(const struct pass *pass, int64_t column)
{
  struct pass part = *pass;
  if (part.fp8.coded) {
    part.fp8.a = further(part.fp8.a, pass->rows * column);
    part.fp8.turned = further(part.fp8.turned, pass->rows * column);
  }
  return part;
}

/* `width` columns of dy, or their transpose, or both. */
static enum status code_columns(const struct pass *pass, const struct fused *f, const void *dy,
                                int64_t column, int64_t width, bool plain, bool turned)
{
  const struct fp8_operand a = further(pass->fp8.a, pass->rows * column),
                           t = further(pass->fp8.turned, pass->rows * column), y = plain ? a : t;
  const bool both = plain && turned;
  const struct fp8_quantise op = {.rows = pass->rows,
                                  .columns = width,
                                  .ld = f->part[0].y_stride,
                                  .x = element_at(dy, column, pass->type),
                                  .transposed = !plain,
                                  .code = y.code,
                                  .scale = y.scale,
                                  .turned = both ? t.code : NULL,
                                  .turned_scale = both ? t.scale : NULL};
  return pass->lane->device->ops->fp8_quantise(pass->lane, &op);
}

static enum status code_parts(const struct pass *pass, const struct fused *f, const void *dy,
                              bool apart, bool plain, bool turned)
{
  enum status status = STATUS_OK;
  if (!apart)
    return code_columns(pass, f, dy, 0, f->out, plain, turned);
  for (int64_t i = 0, column = 0; i < f->parts && !status; column += f->part[i++].out)
    status = code_columns(pass, f, dy, column, f->part[i].out, plain, turned);
  return status;
}

enum status fused_code(struct pass *pass, const struct fused *f, const void *dy)
{
  const bool apart = fused_apart(pass, f), turned_apart = fused_gradients_apart(pass, f),
             turned = pass->fp8.use == FP8_ALL && fused_trains(f),
             together = turned && apart == turned_apart;
  if (!pass->fp8.use)
    return STATUS_OK;
  pass->fp8.coded = true;
  const enum status status = code_parts(pass, f, dy, apart, true, together);
  return status || !turned || together ? status
                                       : code_parts(pass, f, dy, turned_apart, false, true);
}

static enum status linear_code(struct pass *pass, const struct linear *l, const void *dy)
{
  const struct fused f = {.parts = 1, .out = l->out, .part = {*l}};
  return fused_code(pass, &f, dy);
}

enum status linear_backward(const struct pass *pass, const struct linear *l, const void *x,
                            const void *dy, const void *pre, void *dx)
{
  struct pass coded = *pass;
  enum status status = linear_code(&coded, l, dy);
  if (!status)
    status = linear_backward_params(&coded, l, x, dy);
  return status ? status : linear_backward_input(&coded, l, dy, pre, dx);
}

enum status fused_backward_params(const struct pass *pass, const struct fused *f, const void *x,
                                  const void *dy)
{
  const struct linear all = join(f);
  if (!fused_gradients_apart(pass, f))
    return linear_backward_params(pass, &all, x, dy);
  for (int64_t i = 0, column = 0; i < f->parts; column += f->part[i++].out) {
    const struct pass part = pass_of_part(pass, column);
    enum status status =
        linear_backward_params(&part, &f->part[i], x, element_at(dy, column, pass->type));
    if (status)
      return status;
    if (pass->fp8.use == FP8_ALL && f->part[i].dweight)
      x = NULL; /* in codes now, for the next part */
  }
  return STATUS_OK;
}

enum status fused_backward_input(const struct pass *pass, const struct fused *f, const void *dy,
                                 void *dx)
{
  const struct linear all = join(f);
  if (!fused_apart(pass, f))
    return linear_backward_input(pass, &all, dy, NULL, dx);
  for (int64_t i = 0, column = 0; i < f->parts; column += f->part[i++].out) {
    const struct pass part = pass_of_part(pass, column);
    struct matmul op = input_gradient(pass, &f->part[i], element_at(dy, column, pass->type), dx);
    op.accumulate = i > 0;
    enum status status = product(&part, op, &f->part[i]);
    if (status)
      return status;
  }
  return STATUS_OK;
}

struct norm norm_bind(const struct flat *flat, int weight, int bias)
{
  if (weight < 0)
    return (struct norm){0};
  struct norm n = {.rms = bias < 0,
                   .width = flat->unit->param[weight].shape[0],
                   .eps = (float)flat->model->config.norm_eps,
                   .weight = flat_param(flat, weight),
                   .dweight = flat_grad(flat, weight)};
  if (bias >= 0) {
    n.bias = flat_param(flat, bias);
    n.dbias = flat_grad(flat, bias);
  }
  return n;
}

struct norm_stats norm_stats_carve(struct carve *from, int64_t rows)
{
  float *mean = carve(from, rows, 1, sizeof(float)), *rstd = carve(from, rows, 1, sizeof(float));
  return (struct norm_stats){mean, rstd};
}

size_t norm_workspace(const struct norm *n, const struct device_model *device, int64_t rows,
                      int threads)
{
  return n->rms ? device->rmsnorm_workspace(device, rows, 1, n->width, threads)
                : device->layernorm_workspace(device, rows, n->width, threads);
}

enum status norm_forward(const struct pass *pass, const struct norm *n, const void *x,
                         const void *add, void *sum, void *y, struct norm_stats stats)
{
  return pass->lane->device->ops->norm(pass->lane,
                                       &(struct row_norm){.rows = pass->rows,
                                                          .groups = 1,
                                                          .C = n->width,
                                                          .x_stride = n->width,
                                                          .y_stride = n->width,
                                                          .eps = n->eps,
                                                          .x = x,
                                                          .add = add,
                                                          .sum = sum,
                                                          .gamma = n->weight,
                                                          .beta = n->bias,
                                                          .y = y,
                                                          .mean = n->rms ? NULL : stats.mean,
                                                          .rstd = stats.rstd,
                                                          .code = y ? NULL : pass->fp8.a.code,
                                                          .scale = y ? NULL : pass->fp8.a.scale});
}

enum status norm_backward(const struct pass *pass, const struct norm *n, const void *dy,
                          const void *x, struct norm_stats stats, bool add_to_dx, void *dx,
                          void *work)
{
  const struct row_norm_backward op = {.rows = pass->rows,
                                       .groups = 1,
                                       .C = n->width,
                                       .tile = pass->tile,
                                       .x_stride = n->width,
                                       .dy_stride = n->width,
                                       .dx_stride = n->width,
                                       .dy = dy,
                                       .x = x,
                                       .gamma = n->weight,
                                       .mean = n->rms ? NULL : stats.mean,
                                       .rstd = stats.rstd,
                                       .dx_accumulate = add_to_dx,
                                       .accumulate = pass->accumulate,
                                       .dx = dx,
                                       .dgamma = n->dweight,
                                       .dbeta = n->dbias,
                                       .work = work};
  return pass->lane->device->ops->norm_backward(pass->lane, &op);
}
