#include "model/parts.h"

/* Logits and their gradient exist for one chunk of tokens at a time (as in Liger Kernel, Hsu et al. 2024, arXiv:2410.10989, but cut by tokens within one
 * sequence). The chunk depends on T and V only and gradients are added chunk after chunk, so the split into micro-batches changes no bit. */

enum { CHUNK_LOGITS = 1 << 24, CHUNK_ROWS_LEAST = 64 }; /* elements: 64 MiB of fp32; rows: below, the products are too thin */

static int64_t chunk_rows(int64_t T, int64_t V)
{
  int64_t most = CHUNK_LOGITS / V < CHUNK_ROWS_LEAST ? CHUNK_ROWS_LEAST : CHUNK_LOGITS / V;
  int64_t chunks = (T + most - 1) / most;
  return (T + chunks - 1) / chunks;
}

struct head_work {
  struct norm_stats stats;
  void *y;      /* [rows, C] after the norm */
  void *logits; /* [rows, V], then their gradient */
  double *loss; /* [rows] */
  void *dy;     /* [rows, C] */
  void *scratch;
};

static struct head_work lay_work(struct carve *from, const struct head *head, const struct device *device, int64_t rows, enum model_work what)
{
  size_t element = dtype_size(device->compute);
  struct head_work w = {.stats = norm_stats_carve(from, rows)};
  w.y = carve(from, rows, head->norm.width, element);
  if (what == WORK_LOGITS)
    return w;
  w.logits = carve(from, rows, head->linear.out, element);
  w.loss = carve(from, rows, 1, sizeof(double));
  if (what == WORK_LOSS)
    return w;
  w.dy = carve(from, rows, head->norm.width, element);
  w.scratch = carve(from, 0, 0, 0); /* last: its size is the device's affair */
  return w;
}

double head_flops(const struct model *model, struct model_shape s)
{
  return 2 * (double)s.B * (double)s.T * (double)model->config.width * (double)model->config.vocab;
}

size_t head_work_bytes(const struct head *head, struct device *device, struct model_shape s, enum model_work what, int threads)
{
  int64_t rows = what == WORK_LOGITS ? s.B : chunk_rows(s.T, head->linear.out);
  struct carve total = {0};
  lay_work(&total, head, device, rows, what);
  if (what == WORK_LOSS_GRADIENT)
    carve(&total, 1, (int64_t)norm_workspace(&head->norm, device, rows, threads), 1);
  return total.used;
}

static enum status chunk_loss(const struct head *head, const struct pass *pass, const struct head_work *w, const void *x, const int32_t *target,
                              float scale, bool gradient, struct exactsum *loss)
{
  int64_t V = head->linear.out;
  enum status status = norm_forward(pass, &head->norm, x, NULL, NULL, w->y, w->stats);
  if (status == STATUS_OK)
    status = linear_forward(pass, &head->linear, w->y, w->logits);
  if (status == STATUS_OK)
    status = pass->lane->device->ops->cross_entropy(pass->lane, pass->rows, V, V, w->logits, target, scale, gradient, w->loss);
  if (status)
    return status;
  for (int64_t r = 0; r < pass->rows; r++)
    exactsum_add(loss, w->loss[r]);
  return STATUS_OK;
}

static enum status chunk_backward(const struct head *head, const struct pass *pass, const struct head_work *w, const void *x, void *d)
{
  enum status status = linear_backward_params(pass, &head->linear, w->y, w->logits);
  if (status == STATUS_OK)
    status = linear_backward_input(pass, &head->linear, w->logits, NULL, w->dy);
  if (status == STATUS_OK)
    status = norm_backward(pass, &head->norm, w->dy, x, w->stats, false, d, w->scratch);
  return status;
}

enum status head_loss(const struct head *head, struct lane *lane, struct model_shape s, const void *x, const int32_t *target, float scale,
                      struct exactsum *loss, void *d, bool accumulate, void *work)
{
  int64_t most = chunk_rows(s.T, head->linear.out);
  size_t row_bytes = (size_t)head->norm.width * dtype_size(lane->device->compute);
  struct carve room = {.base = work};
  struct head_work w = lay_work(&room, head, lane->device, most, d ? WORK_LOSS_GRADIENT : WORK_LOSS);
  for (int64_t b = 0; b < s.B; b++)
    for (int64_t t = 0; t < s.T; t += most) {
      int64_t rows = s.T - t < most ? s.T - t : most, first = b * s.T + t;
      size_t at = (size_t)first * row_bytes;
      struct pass pass = {.lane = lane, .rows = rows, .tile = rows, .accumulate = accumulate || first > 0};
      enum status status = chunk_loss(head, &pass, &w, (const char *)x + at, target + first, scale, d != NULL, loss);
      if (status == STATUS_OK && d)
        status = chunk_backward(head, &pass, &w, (const char *)x + at, (char *)d + at);
      if (status)
        return status;
    }
  exactsum_normalize(loss);
  return STATUS_OK;
}

enum status head_logits(const struct head *head, struct lane *lane, struct model_shape s, const void *x, int64_t position, float *logits, void *work)
{
  if (lane->device->compute != DTYPE_F32)
    return status_set(STATUS_UNSUPPORTED, "logits are fp32, and device %s computes in %s: generate with fp32", lane->device->ops->name,
                      dtype_name(lane->device->compute));
  size_t row_bytes = (size_t)head->norm.width * dtype_size(lane->device->compute);
  struct carve room = {.base = work};
  struct head_work w = lay_work(&room, head, lane->device, s.B, WORK_LOGITS);
  struct pass row = {.lane = lane, .rows = 1, .tile = 1}, all = {.lane = lane, .rows = s.B, .tile = 1};
  for (int64_t b = 0; b < s.B; b++) {
    const char *from = (const char *)x + (size_t)(b * s.T + position) * row_bytes;
    struct norm_stats stats = {w.stats.mean + b, w.stats.rstd + b};
    enum status status = norm_forward(&row, &head->norm, from, NULL, NULL, (char *)w.y + (size_t)b * row_bytes, stats);
    if (status)
      return status;
  }
  return linear_forward(&all, &head->linear, w.y, logits);
}
