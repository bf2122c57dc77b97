/* The head in chunks of rows, so that the logits of all rows never exist at once. */
#include "model/decoder.h"

/* Logits and their gradient exist for one chunk of tokens at a time (as in Liger Kernel, Hsu et al.
 * 2024, arXiv:2410.10989). On a device that works by sequence, chunks are cut within one sequence.
 * They depend on T and V only, and gradients are added chunk after chunk. So results are bitwise
 * identical for any split into micro-batches. On other devices all tokens are one span. */

enum { CHUNK_ROWS_LEAST = 64 }; /* below, the products are too thin */

static int64_t round_up(int64_t n, int64_t multiple)
{
  return n > INT64_MAX - multiple ? n : (n + multiple - 1) / multiple * multiple;
}

static int64_t span_of(const struct device_model *device, struct model_shape s)
{
  return device->by_sequence ? s.T : shape_rows(s);
}

static int64_t chunk_rows(const struct device_model *device, int64_t span, int64_t V)
{
  int64_t most =
      device->chunk_logits / V < CHUNK_ROWS_LEAST ? CHUNK_ROWS_LEAST : device->chunk_logits / V;
  int64_t chunks = span / most + (span % most > 0),
          rows = round_up(span / chunks + (span % chunks > 0), device->row_multiple);
  return rows < span ? rows : span;
}

/* The head's matrix with additional rows, if the device needs longer rows of logits. These rows are
 * zero (struct unit_row, padded), and so are their gradients. */
static struct linear logits_of(const struct head *head, const struct device_model *device)
{
  struct linear linear = head->linear;
  linear.out = linear.y_stride = round_up(linear.out, device->row_multiple);
  return linear;
}

struct head_work {
  struct norm_stats stats;
  void *y;      /* [rows, C] after the norm */
  void *logits; /* [rows, V], then their gradient */
  double *loss; /* [rows] */
  void *dy;     /* [rows, C] */
  void *scratch;
};

static struct head_work lay_work(struct carve *from, const struct head *head,
                                 const struct device_model *device, int64_t rows,
                                 enum model_work what)
{
  size_t element = dtype_size(head->type);
  struct head_work w = {.stats = norm_stats_carve(from, rows)};
  w.y = carve(from, rows, head->norm.width, element);
  if (what != WORK_LOGITS || head->type != DTYPE_F32)
    w.logits = carve(from, rows, logits_of(head, device).y_stride, element);
  if (what == WORK_LOGITS)
    return w;
  w.loss = carve(from, rows, 1, sizeof(double));
  if (what == WORK_LOSS)
    return w;
  w.dy = carve(from, rows, head->norm.width, element);
  w.scratch = carve(from, 0, 0, 0); /* last, because the device decides its size */
  return w;
}

struct head head_bind(const struct model *model, const void *params, void *grads)
{
  const struct flat flat = flat_of(model, model->head, params, grads);
  struct head head = {.type = model->config.compute};
  if (model->head) {
    head.norm = norm_bind(&flat, HEAD_NORM, -1);
    head.linear = linear_bind(&flat, HEAD_WEIGHT, -1);
  } else {
    head.norm = norm_bind(&flat, root_param(model, ROOT_NORM), root_param(model, ROOT_NORM_BIAS));
    head.linear = linear_bind(&flat, root_param(model, ROOT_TOKENS), -1);
  }
  return head;
}

double head_flops(const struct model *model, struct model_shape s)
{
  return 2 * (double)s.B * (double)s.T * (double)model->config.width * (double)model->config.vocab;
}

size_t head_work_bytes(const struct head *head, const struct device_model *device,
                       struct model_shape s, enum model_work what, int threads)
{
  int64_t rows =
      what == WORK_LOGITS ? s.B : chunk_rows(device, span_of(device, s), head->linear.out);
  struct carve total = {0};
  lay_work(&total, head, device, rows, what);
  if (what == WORK_LOSS_GRADIENT)
    carve(&total, 1, (int64_t)norm_workspace(&head->norm, device, rows, threads), 1);
  return total.used;
}

static enum status chunk_loss(const struct head *head, const struct pass *pass,
                              const struct head_work *w, const void *x, const int32_t *target,
                              float scale, bool gradient, struct exactsum *loss)
{
  const struct device_ops *ops = pass->lane->device->ops;
  const struct linear linear = logits_of(head, &pass->lane->device->model);
  enum status status = norm_forward(pass, &head->norm, x, NULL, NULL, w->y, w->stats);
  if (status == STATUS_OK)
    status = linear_forward(pass, &linear, w->y, w->logits);
  if (status == STATUS_OK)
    status = ops->cross_entropy(pass->lane, pass->rows, head->linear.out, linear.y_stride,
                                w->logits, target, scale, gradient, w->loss);
  if (status == STATUS_OK)
    status = ops->sum_exact(pass->lane, pass->rows, w->loss, loss);
  return status;
}

static enum status chunk_backward(const struct head *head, const struct pass *pass,
                                  const struct head_work *w, const void *x, void *d)
{
  const struct linear linear = logits_of(head, &pass->lane->device->model);
  enum status status = linear_backward_params(pass, &linear, w->y, w->logits);
  if (status == STATUS_OK)
    status = linear_backward_input(pass, &linear, w->logits, NULL, w->dy);
  if (status == STATUS_OK)
    status = norm_backward(pass, &head->norm, w->dy, x, w->stats, false, d, w->scratch);
  return status;
}

/* Clears the gradients of the head's unit that the backward pass does not write. */
static enum status clear_rest(const struct model *model, struct lane *lane, void *grads)
{
  const struct model_unit *unit = &model->unit[model->head];
  const struct flat flat = flat_of(model, model->head, NULL, grads);
  const int positions = model->head ? -1 : root_param(model, ROOT_POSITIONS);
  void *dpositions = positions < 0 ? NULL : flat_grad(&flat, positions);
  enum status status = unit_zero_gaps(unit, lane, grads);
  if (status == STATUS_OK && dpositions)
    status = lane->device->ops->zero(lane, dpositions,
                                     (size_t)unit->layout.elements[positions] * GRADIENT_BYTES);
  return status;
}

enum status head_loss(const struct model *model, struct lane *lane, struct model_shape s,
                      const void *params, const void *x, const int32_t *target, float scale,
                      struct exactsum *loss, void *d, bool accumulate, void *grads, void *work)
{
  const struct head bound = head_bind(model, params, grads), *head = &bound;
  enum status status = d && !accumulate ? clear_rest(model, lane, grads) : STATUS_OK;
  if (status)
    return status;
  const struct device_model *device = &lane->device->model;
  const int64_t span = span_of(device, s), most = chunk_rows(device, span, head->linear.out);
  size_t row_bytes = (size_t)head->norm.width * dtype_size(head->type);
  struct carve room = {.base = work};
  struct head_work w = lay_work(&room, head, device, most, d ? WORK_LOSS_GRADIENT : WORK_LOSS);
  for (int64_t begin = 0; begin < shape_rows(s); begin += span)
    for (int64_t t = 0; t < span; t += most) {
      int64_t rows = span - t < most ? span - t : most, first = begin + t;
      size_t at = (size_t)first * row_bytes;
      struct pass pass = {.lane = lane,
                          .rows = rows,
                          .tile = rows,
                          .type = head->type,
                          .accumulate = accumulate || first > 0};
      status =
          chunk_loss(head, &pass, &w, (const char *)x + at, target + first, scale, d != NULL, loss);
      if (status == STATUS_OK && d)
        status = chunk_backward(head, &pass, &w, (const char *)x + at, (char *)d + at);
      if (status)
        return status;
    }
  return STATUS_OK;
}

enum status head_logits(const struct model *model, struct lane *lane, struct model_shape s,
                        const void *params, const void *x, int64_t position, float *logits,
                        void *work)
{
  const struct head bound = head_bind(model, params, NULL), *head = &bound;
  const struct device_model *device = &lane->device->model;
  const struct linear linear = logits_of(head, device);
  const int64_t V = head->linear.out;
  size_t row_bytes = (size_t)head->norm.width * dtype_size(head->type);
  struct carve room = {.base = work};
  struct head_work w = lay_work(&room, head, device, s.B, WORK_LOGITS);
  struct pass row = {.lane = lane, .rows = 1, .tile = 1, .type = head->type},
              all = {.lane = lane, .rows = s.B, .tile = 1, .type = head->type};
  for (int64_t b = 0; b < s.B; b++) {
    const char *from = (const char *)x + (size_t)(b * s.T + position) * row_bytes;
    struct norm_stats stats = {w.stats.mean + b, w.stats.rstd + b};
    enum status status = norm_forward(&row, &head->norm, from, NULL, NULL,
                                      (char *)w.y + (size_t)b * row_bytes, stats);
    if (status)
      return status;
  }
  if (head->type == DTYPE_F32)
    return linear_forward(&all, &head->linear, w.y, logits);
  enum status status = linear_forward(&all, &linear, w.y, w.logits);
  for (int64_t b = 0; status == STATUS_OK && b < s.B; b++)
    status = lane->device->ops->cast(lane, V, head->type,
                                     element_at(w.logits, b * linear.y_stride, head->type),
                                     DTYPE_F32, logits + b * V);
  return status;
}
