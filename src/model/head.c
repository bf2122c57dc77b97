/* The head in chunks of rows, so that the logits of all rows never exist at once. A loss of pairs
 * takes two passes over them, because a token's gradient depends on the whole conversation. */
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
  struct norm_room norm;
  void *y;      /* [rows, C] after the norm */
  void *logits; /* [rows, V], then their gradient */
  double *loss; /* [rows] */
  void *dy;     /* [rows, C] */
};

static struct head_work lay_work(struct carve *from, const struct head *head,
                                 const struct device_model *device, int64_t rows,
                                 enum model_work what)
{
  size_t element = dtype_size(head->type);
  struct head_work w = {.norm = norm_room_carve(from, rows)};
  w.y = carve(from, rows, head->norm.width, element);
  if (what != WORK_LOGITS || head->type != DTYPE_F32)
    w.logits = carve(from, rows, logits_of(head, device).y_stride, element);
  if (what == WORK_LOGITS)
    return w;
  w.loss = carve(from, rows, 1, sizeof(double));
  if (what == WORK_LOSS)
    return w;
  w.dy = carve(from, rows, head->norm.width, element);
  w.norm.work = carve(from, 0, 0, 0); /* last, because the device decides its size */
  return w;
}

/* The room of a loss of pairs. */
struct pair_work {
  struct exactsum *score;      /* [B] losses of sequences */
  float *weight;               /* [B, T] */
  double *loss, *margin, *won; /* [B / 2] */
};

static struct pair_work lay_pairs(struct carve *from, struct model_shape s)
{
  struct pair_work w = {.score = carve(from, s.B, 1, sizeof(struct exactsum))};
  w.weight = carve(from, s.B, s.T, sizeof(float));
  w.loss = carve(from, s.B / 2, 1, sizeof(double));
  w.margin = carve(from, s.B / 2, 1, sizeof(double));
  w.won = carve(from, s.B / 2, 1, sizeof(double));
  return w;
}

struct head head_bind(const struct model *model, struct model_params params, void *grads)
{
  const struct flat flat = flat_of(model, model->head, params, grads);
  const int norm = model->head ? HEAD_NORM : root_param(model, ROOT_NORM),
            weight = model->head ? HEAD_WEIGHT : root_param(model, ROOT_TOKENS);
  return (struct head){.norm = norm_bind(&flat, norm, root_param(model, ROOT_NORM_BIAS)),
                       .linear = linear_bind(&flat, weight, -1),
                       .type = model->config.compute};
}

double head_flops(const struct model *model, struct model_shape s)
{
  return 2 * (double)s.B * (double)s.T * (double)model->config.width * (double)model->config.vocab;
}

size_t head_work_bytes(const struct head *head, const struct device_model *device,
                       struct model_shape s, enum model_work what)
{
  int64_t rows =
      what == WORK_LOGITS ? s.B : chunk_rows(device, span_of(device, s), head->linear.out);
  struct carve total = {0};
  if (what == WORK_PREFERENCES)
    lay_pairs(&total, s);
  lay_work(&total, head, device, rows, what);
  if (what == WORK_LOSS_GRADIENT || what == WORK_PREFERENCES)
    carve(&total, 1, (int64_t)norm_workspace(&head->norm, device, rows), 1);
  return total.used;
}

/* Sums of the losses of rows: one per sequence (apart), or those of the sequences' sources. */
struct sums {
  struct exactsum *of; /* NULL: none is wanted */
  const int32_t *sources;
  bool apart;
};

static int64_t sum_of(const struct sums *sums, int64_t sequence)
{
  return sums->apart ? sequence : sums->sources ? sums->sources[sequence] : 0;
}

/* Adds up the losses of rows [first, first + n), of which each sequence has T. */
static void sum_losses(const struct sums *sums, const struct pass *pass, const double *loss,
                       int64_t T, int64_t first, int64_t n)
{
  const int64_t end = first + n;
  for (int64_t begin = first, next; begin < end && sums->of; begin = next) {
    next = begin + 1;
    while (next < end && sum_of(sums, next / T) == sum_of(sums, begin / T))
      next = (next / T + 1) * T;
    next = next < end ? next : end;
    PASS_RUN(pass, sum_exact, next - begin, loss + begin - first,
             sums->of + sum_of(sums, begin / T));
  }
}

/* The tokens [first, first + pass->rows) of the call. */
static void chunk_loss(const struct model_call *call, const struct head *head,
                       const struct pass *pass, const struct head_work *w, const struct sums *sums,
                       int64_t first)
{
  const struct linear linear = logits_of(head, &pass->lane->device->model);
  const int64_t at = first * head->norm.width;
  const float *weights = call->batch.weights;
  const void *x = element_at(call->x_in, at, head->type);
  norm_forward(pass, &head->norm, x, NULL, NULL, w->y, w->norm);
  linear_forward(pass, &linear, w->y, NULL, NULL, w->logits);
  const struct cross_entropy op = {.rows = pass->rows,
                                   .V = head->linear.out,
                                   .ld = linear.y_stride,
                                   .logits = w->logits,
                                   .target = call->batch.targets + first,
                                   .weight = weights ? weights + first : NULL,
                                   .scale = call->scale,
                                   .gradient = call->d != NULL,
                                   .loss = w->loss};
  PASS_RUN(pass, cross_entropy, &op);
  sum_losses(sums, pass, w->loss, call->shape.T, first, pass->rows);
  if (!call->d)
    return;
  linear_backward_params(pass, &linear, w->y, w->logits);
  linear_backward_input(pass, &linear, w->logits, w->dy);
  norm_backward(pass, &head->norm, w->dy, x, w->norm, false,
                (void *)element_at(call->d, at, head->type));
}

/* Clears the gradients of the head's unit that the backward pass does not write. */
static enum status clear_rest(const struct model_call *call)
{
  const struct model *model = call->model;
  const struct model_unit *unit = &model->unit[model->head];
  const struct flat flat = flat_of(model, model->head, (struct model_params){0}, call->grads);
  const int positions = model->head ? -1 : root_param(model, ROOT_POSITIONS);
  void *dpositions = flat_grad(&flat, positions);
  enum status status = unit_zero_gaps(model, model->stages - 1, call->lane, call->grads);
  if (!status && dpositions)
    status = call->lane->device->ops->zero(
        call->lane, dpositions, (size_t)unit->layout.elements[positions] * GRADIENT_BYTES);
  return status;
}

static enum status all_chunks(const struct model_call *call, struct carve room,
                              const struct sums *sums)
{
  const struct head head = head_bind(call->model, call->params, call->grads);
  const struct device_model *device = &call->lane->device->model;
  const int64_t span = span_of(device, call->shape),
                most = chunk_rows(device, span, head.linear.out);
  const struct head_work w =
      lay_work(&room, &head, device, most, call->d ? WORK_LOSS_GRADIENT : WORK_LOSS);
  enum status status = call->d && !call->accumulate ? clear_rest(call) : STATUS_OK;
  for (int64_t begin = 0; begin < shape_rows(call->shape); begin += span)
    for (int64_t t = 0; t < span; t += most) {
      const int64_t rows = span - t < most ? span - t : most, first = begin + t;
      const struct pass pass = {.lane = call->lane,
                                .status = &status,
                                .rows = rows,
                                .tile = rows,
                                .type = head.type,
                                .accumulate = call->accumulate || first > 0};
      chunk_loss(call, &head, &pass, &w, sums, first);
    }
  return status;
}

/* The weights of the tokens of pairs. */
static enum status weigh_pairs(const struct model_call *call, struct carve room,
                               const struct pair_work *w)
{
  struct model_call scoring = *call;
  scoring.d = NULL;
  enum status status =
      call->lane->device->ops->zero(call->lane, w->score, (size_t)call->shape.B * sizeof *w->score);
  const struct pass pass = {.lane = call->lane, .status = &status};
  const int64_t pairs = call->shape.B / 2;
  const struct preference op = {
      pairs,     call->shape.T, call->beta, w->score, call->batch.reference,
      w->weight, w->loss,       w->margin,  w->won};
  const struct sums scores = {.of = w->score, .apart = true},
                    losses = {call->loss, call->batch.sources, false};
  status = status ?: all_chunks(&scoring, room, &scores);
  PASS_RUN(&pass, prefer, &op);
  for (int64_t k = 0; k < pairs; k++)
    sum_losses(&losses, &pass, w->loss + k, 1, 2 * k, 1);
  PASS_RUN(&pass, sum_exact, pairs, w->margin, &call->preferred[0]);
  PASS_RUN(&pass, sum_exact, pairs, w->won, &call->preferred[1]);
  return status;
}

enum status head_loss(const struct model_call *call)
{
  struct carve room = {.base = call->work};
  struct model_call pairs = *call;
  if (!call->batch.reference)
    return all_chunks(call, room, &(struct sums){call->loss, call->batch.sources, false});
  const struct pair_work w = lay_pairs(&room, call->shape);
  pairs.batch.weights = w.weight;
  return weigh_pairs(call, room, &w) ?: all_chunks(&pairs, room, &(struct sums){.of = NULL});
}

enum status head_logits(const struct model_call *call)
{
  const struct head head = head_bind(call->model, call->params, NULL);
  const struct device_model *device = &call->lane->device->model;
  const struct linear linear = logits_of(&head, device);
  const struct model_shape s = call->shape;
  const int64_t V = head.linear.out, C = head.norm.width;
  struct carve room = {.base = call->work};
  const struct head_work w = lay_work(&room, &head, device, s.B, WORK_LOGITS);
  enum status status = STATUS_OK;
  struct pass row = {.lane = call->lane,
                     .status = &status,
                     .rows = 1,
                     .tile = 1,
                     .type = head.type},
              all = row;
  all.rows = s.B;
  for (int64_t b = 0; b < s.B; b++) {
    const void *from = element_at(call->x_in, (b * s.T + call->position) * C, head.type);
    const struct norm_room norm = {w.norm.mean + b, w.norm.rstd + b, NULL};
    norm_forward(&row, &head.norm, from, NULL, NULL, (void *)element_at(w.y, b * C, head.type),
                 norm);
  }
  if (head.type == DTYPE_F32) {
    linear_forward(&all, &head.linear, w.y, NULL, NULL, call->logits);
    return status;
  }
  linear_forward(&all, &linear, w.y, NULL, NULL, w.logits);
  for (int64_t b = 0; b < s.B; b++)
    PASS_RUN(&all, cast, V, head.type, element_at(w.logits, b * linear.y_stride, head.type),
             DTYPE_F32, call->logits + b * V);
  return status;
}
