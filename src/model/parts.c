/* Products, norms and their gradients, as the blocks and the head call them. */
#include "model/parts.h"

#include <inttypes.h>

#include "model/decoder.h"

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

int64_t shape_rows(struct model_shape s)
{
  int64_t rows;
  return __builtin_mul_overflow(s.B, s.T, &rows) ? INT64_MAX : rows;
}

const void *element_at(const void *base, int64_t elements, enum dtype type)
{
  return base ? (const char *)base + (size_t)elements * dtype_size(type) : NULL;
}

struct flat flat_of(const struct model *model, int unit, struct model_params params, void *grads)
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
  if (p < 0)
    return NULL;
  if (flat->scales && flat->unit->param[p].kind != PARAM_WEIGHT)
    return beside_scales(flat, p);
  return element_at(flat->params, flat->unit->layout.offset[p],
                    flat->scales ? DTYPE_F8_E4M3 : flat->type);
}

void *flat_grad(const struct flat *flat, int p)
{
  if (p < 0 || !flat->grads || flat->unit->param[p].frozen)
    return NULL;
  return (char *)flat->grads + (size_t)flat->unit->layout.offset[p] * GRADIENT_BYTES;
}

bool model_is_transposed(const struct model *model)
{
  return !(model->architecture->features & FEATURE_CONV1D);
}

/* A and B of adapters are, also next to weights that are not. */
static bool is_transposed(const struct flat *flat, int weight)
{
  const int unit = (int)(flat->unit - flat->model->unit);
  return unit == flat->model->head || flat->unit->param[weight].kind == PARAM_ADAPTER ||
         model_is_transposed(flat->model);
}

struct linear linear_bind(const struct flat *flat, int weight, int bias)
{
  const struct model_param *param = &flat->unit->param[weight];
  const bool transposed = is_transposed(flat, weight);
  const int64_t in = param->shape[transposed], out = param->shape[!transposed];
  const bool codes = flat->scales && param->kind == PARAM_WEIGHT;
  return (struct linear){.in = in,
                         .out = out,
                         .x_stride = in,
                         .y_stride = out,
                         .weight_stride = param->shape[1],
                         .transposed = transposed,
                         .weight = flat_param(flat, weight),
                         .bias = flat_param(flat, bias),
                         .whole = flat_param(flat, weight),
                         .weight_scale = codes ? beside_scales(flat, weight) : NULL,
                         .dweight = flat_grad(flat, weight),
                         .dbias = flat_grad(flat, bias)};
}

/* Tiles have a scale per 128 elements. Blocks have fewer, also with the rest up to the pitch. */
struct fp8_operand fp8_operand_carve(struct carve *from, int64_t rows, int64_t width)
{
  const uint64_t elements = (uint64_t)rows * (uint64_t)width; /* carve() finds an overflow */
  uint8_t *const code = carve(from, rows, width, 1);
  return (struct fp8_operand){code, carve(from, (int64_t)(elements / FP8_TILE), 1, sizeof(float))};
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

/* Whether products of the pass read one scale per operand. Then layers are not joined, because each
 * has scales of its own. */
static bool one_scale(const struct pass *pass)
{
  return pass->fp8.use && pass->lane->device->fp8_tensor;
}

/* An operand in codes, before a product. It is coded here, unless x is NULL. */
static void code(const struct pass *pass, const struct fp8_quantise *x)
{
  const struct fp8_unify one = {.n = x->transposed ? x->columns : x->rows,
                                .k = x->transposed ? x->rows : x->columns,
                                .blocks = x->blocks,
                                .code = x->code,
                                .scale = x->scale};
  if (x->x)
    PASS_RUN(pass, fp8_quantise, x);
  if (one_scale(pass))
    PASS_RUN(pass, fp8_unify, &one);
}

static void multiply_coded(const struct pass *pass, struct matmul op, struct fp8_operand a,
                           struct fp8_operand b)
{
  op.a = a.code;
  op.a_scale = a.scale;
  op.b = b.code;
  op.b_scale = b.scale;
  op.lda = op.ldb = op.k;
  op.trans_a = false;
  op.trans_b = true;
  PASS_RUN(pass, matmul, &op);
}

/* The scale that a whole weight of rows x columns has in codes, at the start of `room`. */
static void find_scale(const struct pass *pass, int64_t rows, int64_t columns, const void *whole,
                       float *room)
{
  const struct fp8_part all = {
      .columns = columns, .end = rows * columns, .type = pass->type, .x = whole, .scale = room};
  PASS_RUN(pass, zero, room, (size_t)(rows / FP8_TILE * fp8_pitch(columns)) * sizeof *room);
  PASS_RUN(pass, fp8_largest, &all);
  PASS_RUN(pass, fp8_scales, rows, columns, room);
}

/* The weight b of a product as codes [n, k]. They were gathered, or are transposed or coded here.
 * With one scale per operand, codes made here need the scale of the whole weight, because gathered
 * codes have it. find_scale() writes it after the scales of b. The room has a scale per FP8_TILE
 * elements, and both need far fewer. */
static struct fp8_operand code_weight(const struct pass *pass, const struct matmul *op,
                                      const struct linear *l)
{
  const struct fp8_operand room = pass->fp8.b;
  const int64_t rows = op->trans_b ? op->n : op->k, columns = op->trans_b ? op->k : op->n;
  if (l->weight_scale && op->trans_b)
    return (struct fp8_operand){(uint8_t *)op->b, (float *)l->weight_scale}; /* read only */
  if (l->weight_scale) {
    const struct fp8_turn turn = {.rows = rows,
                                  .columns = columns,
                                  .ld = op->ldb,
                                  .code = op->b,
                                  .scale = l->weight_scale,
                                  .turned = room.code,
                                  .turned_scale = room.scale};
    PASS_RUN(pass, fp8_turn, &turn);
    return room;
  }
  float *const given = one_scale(pass) ? room.scale + op->n / FP8_TILE * fp8_pitch(op->k) : NULL;
  const struct fp8_quantise b = {.rows = rows,
                                 .columns = columns,
                                 .ld = op->ldb,
                                 .x = op->b,
                                 .blocks = true,
                                 .transposed = !op->trans_b,
                                 .given = given,
                                 .code = room.code,
                                 .scale = room.scale};
  if (given)
    find_scale(pass, rows, op->ldb, l->whole, given);
  PASS_RUN(pass, fp8_quantise, &b);
  return room;
}

/* A product of activations or their gradients and the weight of a layer. */
static void product(const struct pass *pass, struct matmul op, const struct linear *l)
{
  const struct fp8_operand room = pass->fp8.a;
  const struct fp8_quantise a = {.rows = op.m,
                                 .columns = op.k,
                                 .ld = op.lda,
                                 .x = op.a,
                                 .code = room.code,
                                 .scale = room.scale};
  if (!pass->fp8.use) {
    PASS_RUN(pass, matmul, &op);
    return;
  }
  const struct fp8_operand weight = code_weight(pass, &op, l);
  code(pass, &a);
  multiply_coded(pass, op, room, weight);
}

/* The transpose of x, in blocks or in tiles. */
static void code_turned(const struct pass *pass, int64_t columns, const void *x, int64_t ld,
                        bool blocks, struct fp8_operand room)
{
  code(pass, &(struct fp8_quantise){.rows = pass->rows,
                                    .columns = columns,
                                    .ld = ld,
                                    .x = x,
                                    .blocks = blocks,
                                    .transposed = true,
                                    .code = room.code,
                                    .scale = room.scale});
}

/* The product of a weight gradient, a^T b over the rows of both. x is b if `b_is_x`, else a. Its
 * transpose is coded in blocks, and that of dy in tiles. An operand that is NULL is in codes
 * already: x in the room b, dy in `turned`. */
static void gradient_product(const struct pass *pass, struct matmul op, bool b_is_x)
{
  const struct fp8_room *room = &pass->fp8;
  const struct fp8_operand dy = room->coded ? room->turned : room->a, a = b_is_x ? dy : room->b,
                           b = b_is_x ? room->b : dy;
  if (room->use != FP8_ALL) {
    PASS_RUN(pass, matmul, &op);
    return;
  }
  op.gradient = true;
  op.a_blocks = !b_is_x;
  code_turned(pass, op.n, op.b, op.ldb, b_is_x, b);
  code_turned(pass, op.m, op.a, op.lda, !b_is_x, a);
  multiply_coded(pass, op, a, b);
}

void linear_forward(const struct pass *pass, const struct linear *l, const void *x, const void *add,
                    void *pre, void *y)
{
  const struct matmul op = {.m = pass->rows,
                            .n = l->out,
                            .k = l->in,
                            .tile = pass->tile,
                            .trans_b = l->transposed,
                            .a = x,
                            .lda = l->x_stride,
                            .b = l->weight,
                            .ldb = l->weight_stride,
                            .c = y,
                            .ldc = l->y_stride,
                            .epilogue = pre       ? EPILOGUE_BIAS_GELU
                                        : l->bias ? EPILOGUE_BIAS
                                                  : EPILOGUE_NONE,
                            .bias = l->bias,
                            .aux = pre,
                            .add = add,
                            .scale = l->y_scale};
  product(pass, op, l);
}

static void weight_gradient(const struct pass *pass, const struct linear *l, const void *x,
                            const void *dy)
{
  const bool t = l->transposed; /* dy^T x instead of x^T dy */
  const struct matmul dweight = {.m = t ? l->out : l->in,
                                 .n = t ? l->in : l->out,
                                 .k = pass->rows,
                                 .tile = pass->tile,
                                 .trans_a = true,
                                 .accumulate = pass->accumulate,
                                 .a = t ? dy : x,
                                 .lda = t ? l->y_stride : l->x_stride,
                                 .b = t ? x : dy,
                                 .ldb = t ? l->x_stride : l->y_stride,
                                 .c = l->dweight,
                                 .ldc = t ? l->in : l->out};
  gradient_product(pass, dweight, t);
}

void linear_backward_params(const struct pass *pass, const struct linear *l, const void *x,
                            const void *dy)
{
  const bool turned = pass->fp8.coded && pass->fp8.use == FP8_ALL;
  if (l->dweight)
    weight_gradient(pass, l, x, turned ? NULL : dy);
  if (l->dbias)
    PASS_RUN(pass, bias_gradient, pass->rows, l->out, pass->tile, l->y_stride, dy, pass->accumulate,
             l->dbias);
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
                         .ldc = l->x_stride,
                         .scale = l->dx_scale};
}

void linear_backward_input(const struct pass *pass, const struct linear *l, const void *dy,
                           void *dx)
{
  product(pass, input_gradient(pass, l, dy, dx), l);
}

struct linear linear_inputs(const struct pass *pass, const struct linear *l, int64_t first,
                            int64_t count)
{
  struct linear part = *l;
  part.in = part.x_stride = count;
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

/* The layers as products compute them: each one, or all as one layer. */
static struct fused products_of(const struct fused *f, bool apart)
{
  struct fused products = *f;
  if (!apart && f->parts > 1) {
    products.parts = 1;
    products.part[0].out = f->out;
  }
  return products;
}

void fused_forward(const struct pass *pass, const struct fused *f, const void *x, const void *add,
                   void *pre, void *y)
{
  const struct fused by = products_of(f, !f->joined || one_scale(pass));
  for (int64_t i = 0, column = 0; i < by.parts; column += by.part[i++].out)
    linear_forward(pass, &by.part[i], i > 0 && pass->fp8.use ? NULL : x,
                   element_at(add, column, pass->type), (void *)element_at(pre, column, pass->type),
                   (void *)element_at(y, column, pass->type)); /* x is in codes after the first */
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

/* dy is coded as it is, as its transpose, or both in one pass over it. */
struct coding {
  bool plain, turned;
};

static void code_columns(const struct pass *pass, const struct fused *f, const void *dy,
                         int64_t column, int64_t width, struct coding what)
{
  const struct fp8_operand a = further(pass->fp8.a, pass->rows * column),
                           t = further(pass->fp8.turned, pass->rows * column),
                           y = what.plain ? a : t;
  const bool both = what.plain && what.turned;
  const struct fp8_quantise op = {.rows = pass->rows,
                                  .columns = width,
                                  .ld = f->part[0].y_stride,
                                  .x = element_at(dy, column, pass->type),
                                  .transposed = !what.plain,
                                  .code = y.code,
                                  .scale = y.scale,
                                  .turned = both ? t.code : NULL,
                                  .turned_scale = both ? t.scale : NULL};
  PASS_RUN(pass, fp8_quantise, &op);
}

static void code_parts(const struct pass *pass, const struct fused *f, const void *dy, bool apart,
                       struct coding what)
{
  const struct fused by = products_of(f, apart);
  for (int64_t i = 0, column = 0; i < by.parts; column += by.part[i++].out)
    code_columns(pass, f, dy, column, by.part[i].out, what);
}

void fused_code(struct pass *pass, const struct fused *f, const void *dy)
{
  const bool apart = fused_apart(pass, f), turned_apart = fused_gradients_apart(pass, f),
             turned = pass->fp8.use == FP8_ALL && fused_trains(f),
             together = turned && apart == turned_apart;
  if (!pass->fp8.use)
    return;
  pass->fp8.coded = true;
  code_parts(pass, f, dy, apart, (struct coding){true, together});
  if (turned && !together)
    code_parts(pass, f, dy, turned_apart, (struct coding){false, true});
}

void fused_backward_params(const struct pass *pass, const struct fused *f, const void *x,
                           const void *dy)
{
  const struct fused by = products_of(f, fused_gradients_apart(pass, f));
  for (int64_t i = 0, column = 0; i < by.parts; column += by.part[i++].out) {
    const struct pass part = pass_of_part(pass, column);
    linear_backward_params(&part, &by.part[i], x, element_at(dy, column, pass->type));
    if (pass->fp8.use == FP8_ALL && by.part[i].dweight)
      x = NULL; /* in codes now, for the next part */
  }
}

void fused_backward_input(const struct pass *pass, const struct fused *f, const void *dy,
                          const void *add, const void *pre, void *dx)
{
  const struct fused by = products_of(f, fused_apart(pass, f));
  for (int64_t i = 0, column = 0; i < by.parts; column += by.part[i++].out) {
    const struct pass part = pass_of_part(pass, column);
    struct matmul op = input_gradient(pass, &by.part[i], element_at(dy, column, pass->type), dx);
    op.add = i > 0 ? NULL : add;
    op.accumulate = i > 0;
    op.epilogue = pre ? EPILOGUE_DGELU : EPILOGUE_NONE;
    op.aux = (void *)pre; /* read only with DGELU */
    product(&part, op, &by.part[i]);
  }
}

/* ---- layers with adapters ---- */

/* Elements between rows of t = s A x, so that rows are aligned for any rank. */
static int64_t narrow_stride(int64_t columns)
{
  enum { ALIGN = 8 };
  return (columns + ALIGN - 1) / ALIGN * ALIGN;
}

void *narrow_carve(struct carve *from, const struct model *model, int64_t rows, int parts)
{
  return carve(from, rows, narrow_stride(model->lora_rank * parts),
               dtype_size(model->config.compute));
}

struct layer layer_bind(const struct flat *flat, int parts, const int *weight, const int *bias,
                        void *t)
{
  struct layer l = {.whole = fused_bind(flat, parts, weight, bias), .t = t};
  int a[FUSED_MOST] = {0}, n = 0;
  for (int64_t i = 0, column = 0; i < parts; column += l.whole.part[i++].out) {
    const struct model_param *param = &flat->unit->param[weight[i]];
    if (param->adapter.a) {
      l.wide[n] = linear_bind(flat, param->adapter.b, -1);
      l.column[n] = column;
      a[n++] = param->adapter.a;
    }
  }
  l.narrow = fused_bind(flat, n, a, NULL);
  for (int i = 0; i < n; i++) {
    l.narrow.part[i].y_stride = l.wide[i].x_stride = narrow_stride(l.narrow.out);
    l.narrow.part[i].y_scale = l.wide[i].dx_scale = flat->model->lora_scale;
    l.wide[i].y_stride = l.whole.out;
  }
  return l;
}

/* The pass for products of adapters, which are in the compute type. */
static struct pass pass_of_adapters(const struct pass *pass)
{
  struct pass adapters = *pass;
  adapters.fp8 = (struct fp8_room){0};
  return adapters;
}

/* The columns of an adapter in t or dt, and in y or dy. */
static void *narrow_at(const struct pass *pass, const struct layer *l, int i, void *t)
{
  return (void *)element_at(t, i * l->wide[i].in, pass->type);
}

static void *wide_at(const struct pass *pass, const struct layer *l, int i, const void *y)
{
  return (void *)element_at(y, l->column[i], pass->type);
}

void layer_forward(const struct pass *pass, const struct layer *l, const void *x, const void *add,
                   void *pre, void *y)
{
  const struct pass adapters = pass_of_adapters(pass);
  const bool last = l->whole.parts == 1; /* an activation follows the sum */
  layer_narrow(pass, l, x);
  if (!last)
    fused_forward(pass, &l->whole, x, add, pre, y);
  for (int i = 0; i < l->narrow.parts; i++) {
    void *const part = wide_at(pass, l, i, y);
    linear_forward(&adapters, &l->wide[i], narrow_at(pass, l, i, l->t), last ? add : part, NULL,
                   part);
  }
  if (last)
    fused_forward(pass, &l->whole, x, layer_adapts(l) ? y : add, pre, y);
}

void layer_narrow(const struct pass *pass, const struct layer *l, const void *x)
{
  const struct pass adapters = pass_of_adapters(pass);
  fused_forward(&adapters, &l->narrow, x, NULL, NULL, l->t);
}

void layer_backward_narrow(const struct pass *pass, const struct layer *l, const void *dy)
{
  const struct pass adapters = pass_of_adapters(pass);
  for (int i = 0; i < l->narrow.parts; i++)
    linear_backward_input(&adapters, &l->wide[i], wide_at(pass, l, i, dy),
                          narrow_at(pass, l, i, pass->dt));
}

void layer_backward_params(const struct pass *pass, const struct layer *l, const void *x,
                           const void *dy)
{
  const struct pass adapters = pass_of_adapters(pass);
  for (int i = 0; i < l->narrow.parts; i++)
    linear_backward_params(&adapters, &l->wide[i], narrow_at(pass, l, i, l->t),
                           wide_at(pass, l, i, dy));
  fused_backward_params(&adapters, &l->narrow, x, pass->dt);
  fused_backward_params(pass, &l->whole, x, dy);
}

void layer_backward_input(const struct pass *pass, const struct layer *l, const void *dy,
                          const void *pre, void *dx)
{
  const struct pass adapters = pass_of_adapters(pass);
  fused_backward_input(&adapters, &l->narrow, pass->dt, NULL, NULL, dx);
  fused_backward_input(pass, &l->whole, dy, layer_adapts(l) ? dx : NULL, pre, dx);
}

void layer_backward(const struct pass *pass, const struct layer *l, const void *x, const void *dy,
                    const void *pre, void *dx)
{
  struct pass coded = *pass;
  layer_backward_narrow(pass, l, dy);
  fused_code(&coded, &l->whole, dy);
  layer_backward_params(&coded, l, x, dy);
  layer_backward_input(&coded, l, dy, pre, dx);
}

struct norm norm_bind(const struct flat *flat, int weight, int bias)
{
  if (weight < 0)
    return (struct norm){0};
  return (struct norm){.rms = bias < 0,
                       .width = flat->unit->param[weight].shape[0],
                       .eps = (float)flat->model->config.norm_eps,
                       .weight = flat_param(flat, weight),
                       .bias = flat_param(flat, bias),
                       .dweight = flat_grad(flat, weight),
                       .dbias = flat_grad(flat, bias)};
}

struct norm_room norm_room_carve(struct carve *from, int64_t rows)
{
  float *mean = carve(from, rows, 1, sizeof(float)), *rstd = carve(from, rows, 1, sizeof(float));
  return (struct norm_room){mean, rstd, NULL};
}

size_t norm_workspace(const struct norm *n, const struct device_model *device, int64_t rows)
{
  return device->norm_workspace(device, !n->rms, rows, 1, n->width);
}

void norm_forward(const struct pass *pass, const struct norm *n, const void *x, const void *add,
                  void *sum, void *y, struct norm_room room)
{
  const struct row_norm op = {.rows = pass->rows,
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
                              .mean = n->rms ? NULL : room.mean,
                              .rstd = room.rstd,
                              .code = y ? NULL : pass->fp8.a.code,
                              .scale = y ? NULL : pass->fp8.a.scale};
  PASS_RUN(pass, norm, &op);
}

void norm_backward(const struct pass *pass, const struct norm *n, const void *dy, const void *x,
                   struct norm_room room, bool add_to_dx, void *dx)
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
                                       .mean = n->rms ? NULL : room.mean,
                                       .rstd = room.rstd,
                                       .dx_accumulate = add_to_dx,
                                       .accumulate = pass->accumulate,
                                       .dx = dx,
                                       .dgamma = n->dweight,
                                       .dbeta = n->dbias,
                                       .work = room.work};
  PASS_RUN(pass, norm_backward, &op);
}
