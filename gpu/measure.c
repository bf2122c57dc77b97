/* What operations take, by class: while a lane is measured, each stands between two events. The operations themselves are cuda_ops'. */
#include "config.h"

#include <string.h>

#include "gpu/cuda.h"

/* --- events ----------------------------------------------------------------------------------------------------------------------------------------- */

/* Events are kept with the lane, for whoever measures again. */
static enum status make_sample(struct cuda_measure *measure)
{
  struct cuda_sample sample = {.begin = NULL};
  enum status status = mem_grow(MEM_META, (void **)&measure->sample, &measure->room, measure->made + 1, (int64_t)sizeof *measure->sample);
  if (!status)
    status = cuda_check(cudaEventCreate(&sample.begin), "making an event");
  if (status)
    return status;
  status = cuda_check(cudaEventCreate(&sample.end), "making an event");
  if (status) {
    (void)cudaEventDestroy(sample.begin);
    return status;
  }
  measure->sample[measure->made++] = sample;
  return STATUS_OK;
}

static enum status begin(struct lane *lane, enum device_class kind, double work)
{
  struct cuda_measure *measure = &cuda_lane(lane)->measure;
  if (!measure->on)
    return STATUS_OK;
  enum status status = measure->n < measure->made ? STATUS_OK : make_sample(measure);
  if (status)
    return status;
  struct cuda_sample *sample = &measure->sample[measure->n];
  sample->kind = kind;
  sample->work = work;
  return cuda_check(cudaEventRecord(sample->begin, cuda_lane(lane)->stream), "recording an event");
}

/* Behind an operation, whose status is passed on. One that failed leaves its sample to the next. */
static enum status end(struct lane *lane, enum status status)
{
  struct cuda_measure *measure = &cuda_lane(lane)->measure;
  if (status || !measure->on)
    return status;
  return cuda_check(cudaEventRecord(measure->sample[measure->n++].end, cuda_lane(lane)->stream), "recording an event");
}

enum status cuda_measure(struct lane *lane, bool on)
{
  struct cuda_measure *measure = &cuda_lane(lane)->measure;
  if (on)
    measure->n = 0;
  measure->on = on;
  return STATUS_OK;
}

enum status cuda_measured(struct lane *lane, struct class_total total[CLASS_COUNT])
{
  const struct cuda_measure *measure = &cuda_lane(lane)->measure;
  struct class_total sum[CLASS_COUNT] = {0};
  enum status status = cuda_check(cudaStreamSynchronize(cuda_lane(lane)->stream), "waiting for a lane");
  for (int64_t i = 0; i < measure->n && !status; i++) {
    const struct cuda_sample *sample = &measure->sample[i];
    float ms = 0;
    status = cuda_check(cudaEventElapsedTime(&ms, sample->begin, sample->end), "asking for the time between two events");
    sum[sample->kind].calls++;
    sum[sample->kind].seconds += 1e-3 * (double)ms;
    sum[sample->kind].work += sample->work;
  }
  if (!status)
    memcpy(total, sum, sizeof sum);
  return status;
}

void cuda_measure_end(struct cuda_measure *measure)
{
  for (int64_t i = 0; i < measure->made; i++) {
    (void)cudaEventDestroy(measure->sample[i].begin);
    (void)cudaEventDestroy(measure->sample[i].end);
  }
  mem_free(measure->sample);
  *measure = (struct cuda_measure){.on = false};
}

/* --- work ------------------------------------------------------------------------------------------------------------------------------------------- */

/* Bytes of n elements of the compute type. */
static double bytes_of(const struct lane *lane, double n)
{
  return n * (double)dtype_size(lane->device->compute);
}

/* Pairs of a query and a key that it sees, of one head of one sequence. Queries see one key more each until their window is full. */
static double pairs_of(const struct attention *op)
{
  const double T = (double)op->tokens, past = (double)op->past, window = (double)op->window;
  const int64_t until_full = op->window > 0 ? op->window - op->past : op->tokens;
  const double growing = until_full >= op->tokens ? T : until_full > 0 ? (double)until_full : 0;
  return growing * past + growing * (growing + 1) / 2 + (T - growing) * window;
}

static double attention_flops(const struct attention *op, int products)
{
  return 2.0 * products * pairs_of(op) * (double)op->head_width * (double)op->heads * (double)op->batch;
}

/* --- operations ------------------------------------------------------------------------------------------------------------------------------------- */

static enum status cast(struct lane *lane, int64_t n, enum dtype from, const void *src, enum dtype to, void *dst)
{
  enum status status = begin(lane, CLASS_SUMS, (double)n * (double)(dtype_size(from) + dtype_size(to)));
  return status ? status : end(lane, cuda_ops.cast(lane, n, from, src, to, dst));
}

static enum status matmul(struct lane *lane, const struct matmul *op)
{
  enum status status = begin(lane, CLASS_PRODUCTS, 2.0 * (double)op->m * (double)op->n * (double)op->k);
  return status ? status : end(lane, cuda_ops.matmul(lane, op));
}

static enum status bias_gradient(struct lane *lane, int64_t rows, int64_t n, int64_t tile, int64_t ld, const void *d, bool accumulate, void *db)
{
  enum status status = begin(lane, CLASS_ACTIVATIONS, bytes_of(lane, (double)rows * (double)n));
  return status ? status : end(lane, cuda_ops.bias_gradient(lane, rows, n, tile, ld, d, accumulate, db));
}

static enum status layernorm(struct lane *lane, int64_t rows, int64_t C, float eps, const void *x, const void *add, void *sum, const void *gamma,
                             const void *beta, void *y, float *mean, float *rstd)
{
  enum status status = begin(lane, CLASS_NORMS, bytes_of(lane, (add ? 4.0 : 2.0) * (double)rows * (double)C));
  return status ? status : end(lane, cuda_ops.layernorm(lane, rows, C, eps, x, add, sum, gamma, beta, y, mean, rstd));
}

static enum status layernorm_backward(struct lane *lane, int64_t rows, int64_t C, int64_t tile, const void *dy, const void *x, const void *gamma,
                                      const float *mean, const float *rstd, bool dx_accumulate, void *dx, bool accumulate, void *dgamma, void *dbeta,
                                      void *work)
{
  enum status status = begin(lane, CLASS_NORMS, bytes_of(lane, (dx_accumulate ? 4.0 : 3.0) * (double)rows * (double)C));
  return status ? status
                : end(lane,
                      cuda_ops.layernorm_backward(lane, rows, C, tile, dy, x, gamma, mean, rstd, dx_accumulate, dx, accumulate, dgamma, dbeta, work));
}

static enum status rmsnorm(struct lane *lane, const struct rmsnorm *op)
{
  enum status status = begin(lane, CLASS_NORMS, bytes_of(lane, (op->add ? 4.0 : 2.0) * (double)op->rows * (double)op->groups * (double)op->C));
  return status ? status : end(lane, cuda_ops.rmsnorm(lane, op));
}

static enum status rmsnorm_backward(struct lane *lane, const struct rmsnorm_backward *op)
{
  const double elements = (double)op->rows * (double)op->groups * (double)op->C;
  enum status status = begin(lane, CLASS_NORMS, bytes_of(lane, (op->dx_accumulate ? 4.0 : 3.0) * elements));
  return status ? status : end(lane, cuda_ops.rmsnorm_backward(lane, op));
}

static enum status rope(struct lane *lane, const struct rope *op)
{
  enum status status = begin(lane, CLASS_ACTIVATIONS, bytes_of(lane, 2.0 * (double)op->rows * (double)op->heads * (double)op->D));
  return status ? status : end(lane, cuda_ops.rope(lane, op));
}

static enum status swiglu(struct lane *lane, int64_t rows, int64_t F, const void *gu, void *y)
{
  enum status status = begin(lane, CLASS_ACTIVATIONS, bytes_of(lane, 3.0 * (double)rows * (double)F));
  return status ? status : end(lane, cuda_ops.swiglu(lane, rows, F, gu, y));
}

static enum status swiglu_backward(struct lane *lane, int64_t rows, int64_t F, const void *gu, const void *dy, void *dgu, void *y)
{
  enum status status = begin(lane, CLASS_ACTIVATIONS, bytes_of(lane, (y ? 6.0 : 5.0) * (double)rows * (double)F));
  return status ? status : end(lane, cuda_ops.swiglu_backward(lane, rows, F, gu, dy, dgu, y));
}

static enum status attention(struct lane *lane, const struct attention *op)
{
  enum status status = begin(lane, CLASS_ATTENTION, attention_flops(op, 2));
  return status ? status : end(lane, cuda_ops.attention(lane, op));
}

static enum status attention_backward(struct lane *lane, const struct attention_backward *op)
{
  enum status status = begin(lane, CLASS_ATTENTION, attention_flops(&op->forward, 5));
  return status ? status : end(lane, cuda_ops.attention_backward(lane, op));
}

static enum status embedding(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V, const int32_t *token, const void *wte, const void *wpe,
                             void *x)
{
  const double table = (double)rows * (double)C, positions = wpe ? (double)T * (double)C : 0;
  enum status status = begin(lane, CLASS_EMBEDDING, bytes_of(lane, 2 * table + positions));
  return status ? status : end(lane, cuda_ops.embedding(lane, rows, T, C, V, token, wte, wpe, x));
}

static enum status embedding_backward(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V, const int32_t *token, const void *dx,
                                      void *dwte, bool wpe_accumulate, void *dwpe)
{
  const double tokens = dwte ? 2.0 * (double)(rows < V ? rows : V) : 0, positions = dwpe ? (wpe_accumulate ? 2.0 : 1.0) * (double)T : 0;
  const double bytes = bytes_of(lane, (double)rows * (double)C) + (double)sizeof(float) * (tokens + positions) * (double)C;
  enum status status = begin(lane, CLASS_EMBEDDING, bytes);
  return status ? status : end(lane, cuda_ops.embedding_backward(lane, rows, T, C, V, token, dx, dwte, wpe_accumulate, dwpe));
}

static enum status cross_entropy(struct lane *lane, int64_t rows, int64_t V, int64_t ld, void *logits, const int32_t *target, float scale,
                                 bool gradient, double *loss)
{
  enum status status = begin(lane, CLASS_CLASSIFIER, bytes_of(lane, (double)rows * (double)(gradient ? V + ld : V)));
  return status ? status : end(lane, cuda_ops.cross_entropy(lane, rows, V, ld, logits, target, scale, gradient, loss));
}

static enum status add(struct lane *lane, int64_t n, const void *a, const void *b, void *out)
{
  enum status status = begin(lane, CLASS_ACTIVATIONS, bytes_of(lane, 3.0 * (double)n));
  return status ? status : end(lane, cuda_ops.add(lane, n, a, b, out));
}

static enum status sum_parts(struct lane *lane, int64_t n, int parts, enum dtype type, const void *base, int64_t stride, bool accumulate, void *dst)
{
  const double each = (double)parts * (double)dtype_size(type) + (accumulate ? 2.0 : 1.0) * (double)sizeof(float);
  enum status status = begin(lane, CLASS_SUMS, (double)n * each);
  return status ? status : end(lane, cuda_ops.sum_parts(lane, n, parts, type, base, stride, accumulate, dst));
}

static enum status sum_exact(struct lane *lane, int64_t n, const double *term, struct exactsum *sum)
{
  enum status status = begin(lane, CLASS_SUMS, (double)n * (double)sizeof *term);
  return status ? status : end(lane, cuda_ops.sum_exact(lane, n, term, sum));
}

static enum status merge_exact(struct lane *lane, const struct exactsum *other, struct exactsum *sum)
{
  enum status status = begin(lane, CLASS_SUMS, (double)(2 * sizeof *sum + sizeof *other));
  return status ? status : end(lane, cuda_ops.merge_exact(lane, other, sum));
}

static enum status conclude(struct lane *lane, const struct exactsum *loss, const struct exactsum *squares, double clip, struct outcome *out)
{
  enum status status = begin(lane, CLASS_SUMS, (double)(sizeof *loss + sizeof *squares + sizeof *out));
  return status ? status : end(lane, cuda_ops.conclude(lane, loss, squares, clip, out));
}

static enum status sum_squares(struct lane *lane, int64_t n, const void *x, struct exactsum *sum)
{
  enum status status = begin(lane, CLASS_SUMS, (double)n * (double)sizeof(float));
  return status ? status : end(lane, cuda_ops.sum_squares(lane, n, x, sum));
}

static enum status update(struct lane *lane, int64_t n, const struct update *op, void *master,
                          const void *grad, void *const *state, void *working)
{
  size_t each = dtype_size(op->grad) + (working ? dtype_size(op->copy) : 0) +
                (master ? 2 * dtype_size(op->master) : 0);
  for (int s = 0; s < optim_states(op->rule); s++)
    each += state[s] ? 2 * dtype_size(op->states) : 0;
  enum status status = begin(lane, CLASS_UPDATE, (double)n * (double)each);
  return status ? status : end(lane, cuda_ops.update(lane, n, op, master, grad, state, working));
}

void cuda_measure_operations(struct device_ops *ops)
{
  ops->cast = cast;
  ops->matmul = matmul;
  ops->bias_gradient = bias_gradient;
  ops->layernorm = layernorm;
  ops->layernorm_backward = layernorm_backward;
  ops->rmsnorm = rmsnorm;
  ops->rmsnorm_backward = rmsnorm_backward;
  ops->rope = rope;
  ops->swiglu = swiglu;
  ops->swiglu_backward = swiglu_backward;
  ops->attention = attention;
  ops->attention_backward = attention_backward;
  ops->embedding = embedding;
  ops->embedding_backward = embedding_backward;
  ops->cross_entropy = cross_entropy;
  ops->add = add;
  ops->sum_parts = sum_parts;
  ops->sum_exact = sum_exact;
  ops->merge_exact = merge_exact;
  ops->conclude = conclude;
  ops->sum_squares = sum_squares;
  ops->update = update;
}
