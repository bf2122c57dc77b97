/* Causal attention by strips of query rows. A strip uses only the keys that one of its rows may
 * see, in chunks whose scores stay in cache. The largest score so far is subtracted (Milakov &
 * Gimelshein 2018, arXiv:1805.02867). Forward, a task is a strip of a head of a sequence; backward,
 * a head of a sequence. Heads that share a key/value head compute its gradients separately and add
 * them one after the other. */
#include "device/host/attention.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

int64_t attention_keys(const struct attention *op)
{
  int64_t all = op->past + op->tokens, seen = op->window ? op->window - 1 + QUERIES : all;
  return attention_floats(host_least(KEYS, host_least(seen, all)));
}

struct attention_job attention_start(struct lane *lane, const struct attention *op)
{
  return (struct attention_job){
      .op = op, .kernels = host_kernels(lane), .scale = 1 / sqrtf((float)op->head_width)};
}

const float *attention_kv(const struct attention *op, const void *x, int64_t stride,
                          int64_t sequence, int64_t kv_head)
{
  const int64_t apart =
      op->kv_batch_stride ? op->kv_batch_stride : (op->past + op->tokens) * stride;
  return (const float *)x + sequence * apart + kv_head * op->head_width;
}

struct seen attention_visible(const struct attention *op, const struct strip *strip, int64_t r)
{
  const int64_t position = op->past + (strip->row + r) / strip->stacked;
  const int64_t near = op->window && position >= op->window ? position - op->window + 1 : 0,
                first = strip->first ? strip->first[r] : 0;
  return (struct seen){near > first ? near : first, position + 1};
}

struct seen attention_range(const struct attention *op, const struct strip *strip)
{
  return (struct seen){attention_visible(op, strip, 0).from,
                       attention_visible(op, strip, strip->rows - 1).to};
}

/* Few rows, many keys: OpenBLAS would pack the keys first. */
static void product(struct attention_job *job, const struct gemm *g)
{
  if (g->m > NARROW) {
    host_gemm(g, &job->tally);
    return;
  }
  host_narrow(job->kernels, g, &job->tally);
}

void attention_scores(struct attention_job *job, const struct strip *strip, int64_t key, int64_t n)
{
  const struct attention *op = job->op;
  struct gemm g = {.trans_b = true, .m = strip->rows, .n = n, .k = op->head_width};
  g.alpha = job->scale;
  g.a = (struct view){strip->q, strip->q_stride};
  g.b = (struct view){strip->k + key * op->k_stride, op->k_stride};
  g.c = (struct target){strip->scores, attention_keys(op)};
  product(job, &g);
}

struct seen attention_mask(const struct attention *op, const struct strip *strip, int64_t r,
                           int64_t key, int64_t n, float *row)
{
  struct seen seen = attention_visible(op, strip, r);
  seen.to = seen.to < key ? 0 : host_least(seen.to - key, n);
  seen.from = seen.from < key ? 0 : host_least(seen.from - key, seen.to);
  memset(row, 0, (size_t)seen.from * sizeof *row);
  memset(row + seen.to, 0, (size_t)(n - seen.to) * sizeof *row);
  return seen;
}

/* Adds the scores of a row to its sum. The partial `out` is rescaled to the new largest score.
 */
static void meet_row(const struct attention_job *job, struct strip *strip, int64_t r, int64_t key,
                     int64_t n, bool first)
{
  float *row = strip->scores + r * attention_keys(job->op),
        *out = strip->out + r * strip->out_stride, before = strip->max[r];
  const struct seen seen = attention_mask(job->op, strip, r, key, n, row);
  if (seen.from == seen.to)
    return;
  float sum = job->kernels->softmax(seen.to - seen.from, row + seen.from, &strip->max[r]);
  if (first) {
    strip->sum[r] = sum;
    return;
  }
  if (strip->max[r] != before) {
    float shrink = expf(before - strip->max[r]);
    strip->sum[r] *= shrink;
    job->kernels->scale(job->op->head_width, shrink, out);
  }
  strip->sum[r] += sum;
}

void attention_meet(struct attention_job *job, struct strip *strip, struct seen keys)
{
  const struct attention *op = job->op;
  for (int64_t r = 0; r < strip->rows; r++) {
    strip->max[r] = -INFINITY;
    strip->sum[r] = 0;
  }
  for (int64_t key = keys.from; key < keys.to; key += KEYS) {
    int64_t n = host_least(KEYS, keys.to - key);
    attention_scores(job, strip, key, n);
    for (int64_t r = 0; r < strip->rows; r++)
      meet_row(job, strip, r, key, n, key == keys.from);
    struct gemm g = {.m = strip->rows, .n = op->head_width, .k = n, .alpha = 1};
    g.accumulate = key > keys.from;
    g.a = (struct view){strip->scores, attention_keys(op)};
    g.b = (struct view){strip->v + key * op->v_stride, op->v_stride};
    g.c = (struct target){strip->out, strip->out_stride};
    product(job, &g);
  }
}

/* Workspace of a worker: scores and their gradients. If heads share keys, also the gradients of
 * keys and values of one head. */
static int64_t score_floats(const struct attention *op)
{
  return QUERIES * attention_keys(op);
}

static int64_t shared_floats(const struct attention *op)
{
  return op->heads == op->kv_heads ? 0 : attention_floats(op->tokens * op->head_width);
}

static int64_t worker_floats(const struct attention *op)
{
  return 2 * score_floats(op) + 2 * shared_floats(op);
}

static int64_t turn_floats(const struct attention *op)
{
  return attention_floats(op->batch * op->kv_heads * (int64_t)(sizeof(int64_t) / sizeof(float)));
}

size_t host_attention_workspace(const struct device_model *model, const struct attention *op,
                                int threads)
{
  (void)model;
  int64_t floats = op->past ? attention_cached_floats(op, threads)
                            : turn_floats(op) + threads * worker_floats(op);
  return (size_t)floats * sizeof(float);
}

struct training_job {
  struct attention_job base; /* first: base is one of these */
  const struct attention_backward *back;
  int64_t *turn; /* [batch, kv_heads]: heads that have added their gradients */
  pthread_mutex_t mutex;
  pthread_cond_t turned;
  float *work;
  int64_t strips; /* of a head */
};

static void training_start(struct lane *lane, const struct attention *op, struct training_job *job)
{
  job->base = attention_start(lane, op);
  job->turn = op->work;
  job->work = (float *)op->work + turn_floats(op);
  job->strips = host_pieces(op->tokens, QUERIES);
}

static struct strip strip_at(const struct training_job *job, int64_t sequence, int64_t head,
                             int64_t index, int worker)
{
  const struct attention *op = job->base.op;
  int64_t row = index * QUERIES, token = sequence * op->tokens + row, D = op->head_width,
          kv_head = head / (op->heads / op->kv_heads);
  return (struct strip){.row = row,
                        .rows = host_least(QUERIES, op->tokens - row),
                        .stacked = 1,
                        .q_stride = op->q_stride,
                        .out_stride = op->out_stride,
                        .q = (const float *)op->q + token * op->q_stride + head * D,
                        .k = attention_kv(op, op->k, op->k_stride, sequence, kv_head),
                        .v = attention_kv(op, op->v, op->v_stride, sequence, kv_head),
                        .first = op->first ? op->first + token : NULL,
                        .out = (float *)op->out + token * op->out_stride + head * D,
                        .scores = job->work + worker * worker_floats(op)};
}

static void run_forward(void *arg, int64_t i, int worker)
{
  struct training_job *job = arg;
  const struct attention *op = job->base.op;
  int64_t pairs = op->batch * op->heads, pair = i % pairs;
  struct strip strip = strip_at(job, pair / op->heads, pair % op->heads,
                                job->strips - 1 - i / pairs, worker); /* the longest first */
  attention_meet(&job->base, &strip, attention_range(op, &strip));
  for (int64_t r = 0; r < strip.rows; r++) {
    job->base.kernels->scale(op->head_width, 1 / strip.sum[r], strip.out + r * op->out_stride);
    if (op->lse)
      op->lse[pair * op->tokens + strip.row + r] = strip.max[r] + logf(strip.sum[r]);
  }
}

/* Gradients of a head: of its queries, and by the keys and values of its sequence. dq, dk and dv
 * begin at the sequence's first token. */
struct head {
  struct target dq, dk, dv;
  const float *dout, *lse;
  float *dscores;
};

/* scores = p, dscores = the gradient by the scaled scores (Dao et al. 2022, arXiv:2205.14135,
 * appendix B: delta = dout . out). */
static void make_score_gradients(struct training_job *job, const struct strip *strip,
                                 const struct head *head, const float *delta, int64_t key,
                                 int64_t n)
{
  const struct attention *op = job->base.op;
  const int64_t ld = attention_keys(op);
  attention_scores(&job->base, strip, key, n);
  struct gemm g = {.trans_b = true, .m = strip->rows, .n = n, .k = op->head_width, .alpha = 1};
  g.a = (struct view){head->dout + strip->row * op->out_stride, op->out_stride};
  g.b = (struct view){strip->v + key * op->v_stride, op->v_stride};
  g.c = (struct target){head->dscores, ld};
  host_gemm(&g, &job->base.tally);
  for (int64_t r = 0; r < strip->rows; r++) {
    float *p = strip->scores + r * ld, *dp = head->dscores + r * ld;
    attention_mask(op, strip, r, key, n, p);
    const struct seen seen = attention_mask(op, strip, r, key, n, dp);
    job->base.kernels->softmax_backward(seen.to - seen.from, head->lse[strip->row + r], delta[r],
                                        p + seen.from, dp + seen.from);
  }
}

/* Rows [key, key + n) of `to` += alpha a^T b over the strip's rows, a being scores or their
 * gradients. */
static void add_to_keys(struct training_job *job, struct target to, int64_t key, int64_t n,
                        struct gemm product)
{
  product.trans_a = product.accumulate = true;
  product.m = n;
  product.n = job->base.op->head_width;
  product.c = (struct target){to.at + key * to.ld, to.ld};
  host_gemm(&product, &job->base.tally);
}

static void run_strip_backward(struct training_job *job, const struct strip *strip,
                               const struct head *head)
{
  const struct attention *op = job->base.op;
  const int64_t ld = attention_keys(op);
  const struct view p = {strip->scores, ld}, ds = {head->dscores, ld}, q = {strip->q, op->q_stride},
                    dout = {head->dout + strip->row * op->out_stride, op->out_stride};
  const struct seen seen = attention_range(op, strip);
  const struct target dq = {head->dq.at + strip->row * head->dq.ld, head->dq.ld};
  float delta[QUERIES], scale = job->base.scale;
  for (int64_t r = 0; r < strip->rows; r++)
    delta[r] = job->base.kernels->dot(op->head_width, dout.at + r * dout.ld,
                                      strip->out + r * op->out_stride);
  for (int64_t key = seen.from; key < seen.to; key += KEYS) {
    const int64_t n = host_least(KEYS, seen.to - key), rows = strip->rows;
    make_score_gradients(job, strip, head, delta, key, n);
    add_to_keys(job, head->dv, key, n, (struct gemm){.k = rows, .alpha = 1, .a = p, .b = dout});
    add_to_keys(job, head->dk, key, n, (struct gemm){.k = rows, .alpha = scale, .a = ds, .b = q});
    struct gemm g = {.m = rows, .n = op->head_width, .k = n, .alpha = scale, .a = ds, .c = dq};
    g.accumulate = key > seen.from;
    g.b = (struct view){strip->k + key * op->k_stride, op->k_stride};
    host_gemm(&g, &job->base.tally);
  }
}

static void zero_rows(int64_t rows, int64_t n, struct target x)
{
  for (int64_t r = 0; r < rows; r++)
    memset(x.at + r * x.ld, 0, (size_t)n * sizeof *x.at);
}

static void add_rows(const struct training_job *job, bool accumulate, const float *x,
                     struct target to)
{
  int64_t D = job->base.op->head_width;
  for (int64_t t = 0; t < job->base.op->tokens; t++)
    if (accumulate)
      job->base.kernels->add(D, to.at + t * to.ld, x + t * D, to.at + t * to.ld);
    else
      memcpy(to.at + t * to.ld, x + t * D, (size_t)D * sizeof *x);
}

/* Head `index` of those that share a key/value head adds its part after all heads before it. This
 * cannot deadlock: tasks are handed out in order, so the earlier heads are done or running. */
static void add_in_turn(struct training_job *job, int64_t shared, int64_t index,
                        const struct head *part, struct target dk, struct target dv)
{
  pthread_mutex_lock(&job->mutex);
  while (job->turn[shared] != index)
    pthread_cond_wait(&job->turned, &job->mutex);
  pthread_mutex_unlock(&job->mutex);
  add_rows(job, index > 0, part->dk.at, dk);
  add_rows(job, index > 0, part->dv.at, dv);
  pthread_mutex_lock(&job->mutex);
  job->turn[shared]++;
  pthread_cond_broadcast(&job->turned);
  pthread_mutex_unlock(&job->mutex);
}

static void run_backward(void *arg, int64_t pair, int worker)
{
  struct training_job *job = arg;
  const struct attention *op = job->base.op;
  const struct attention_backward *back = job->back;
  int64_t sequence = pair / op->heads, index = pair % op->heads, group = op->heads / op->kv_heads,
          D = op->head_width, token = sequence * op->tokens;
  const int64_t kv = index / group * D;
  const struct target dk = {(float *)back->dk + token * back->dk_stride + kv, back->dk_stride},
                      dv = {(float *)back->dv + token * back->dv_stride + kv, back->dv_stride},
                      dq = {(float *)back->dq + token * back->dq_stride + index * D,
                            back->dq_stride};
  float *scores = job->work + worker * worker_floats(op), *part = scores + 2 * score_floats(op);
  const struct head head = {.dq = dq,
                            .dk = group > 1 ? (struct target){part, D} : dk,
                            .dv = group > 1 ? (struct target){part + shared_floats(op), D} : dv,
                            .dout = (const float *)back->dout + token * op->out_stride + index * D,
                            .lse = op->lse + pair * op->tokens,
                            .dscores = scores + score_floats(op)};
  zero_rows(op->tokens, D, head.dk);
  zero_rows(op->tokens, D, head.dv);
  for (int64_t i = 0; i < job->strips; i++) {
    struct strip strip = strip_at(job, sequence, index, i, worker);
    run_strip_backward(job, &strip, &head);
  }
  if (group > 1)
    add_in_turn(job, pair / group, index % group, &head, dk, dv);
}

/* back: NULL, or the backward pass of op. */
static enum status check(const struct attention *op, const struct attention_backward *back)
{
  if (op->kv_heads < 1 || op->heads < 1 || op->heads % op->kv_heads != 0)
    return status_set(STATUS_INTERNAL,
                      "attention with %lld heads over %lld key/value heads: the first must be a "
                      "multiple of the second",
                      (long long)op->heads, (long long)op->kv_heads);
  if (op->batch < 0 || op->tokens < 0 || op->head_width < 1 || op->window < 0 || op->past < 0 ||
      op->kv_batch_stride < 0)
    return status_set(STATUS_INTERNAL,
                      "attention over %lld x %lld tokens after %lld, heads of width %lld, a window "
                      "of %lld, %lld elements a sequence",
                      (long long)op->batch, (long long)op->tokens, (long long)op->past,
                      (long long)op->head_width, (long long)op->window,
                      (long long)op->kv_batch_stride);
  if (op->past && op->first)
    return status_set(STATUS_INTERNAL, "attention to %lld cached tokens cannot separate documents",
                      (long long)op->past);
  const int64_t strides[] = {op->q_stride,
                             op->k_stride,
                             op->v_stride,
                             op->out_stride,
                             back ? back->dq_stride : 0,
                             back ? back->dk_stride : 0,
                             back ? back->dv_stride : 0};
  enum status status = host_check_blas("a sum of length", op->head_width);
  for (size_t i = 0; i < sizeof strides / sizeof *strides && !status; i++)
    status = host_check_blas("leading dimension", strides[i]);
  return status;
}

enum status host_attention(struct lane *lane, const struct attention *op)
{
  enum status status = check(op, NULL);
  if (status)
    return status;
  if (op->past) {
    attention_cached(lane, op);
    return STATUS_OK;
  }
  struct training_job job = {0};
  training_start(lane, op, &job);
  host_run_tasks(lane, op->batch * op->heads * job.strips, run_forward, &job);
  host_tally(lane, &job.base.tally);
  return STATUS_OK;
}

enum status host_attention_backward(struct lane *lane, const struct attention_backward *back)
{
  const struct attention *op = &back->forward;
  enum status status = check(op, back);
  if (status)
    return status;
  if (op->past)
    return status_set(STATUS_INTERNAL, "attention to %lld cached tokens has no backward pass",
                      (long long)op->past);
  if (!op->lse)
    return status_set(STATUS_INTERNAL, "attention's backward pass needs the log-sum-exp that its "
                                       "forward pass was not asked to keep");
  struct training_job job = {
      .back = back, .mutex = PTHREAD_MUTEX_INITIALIZER, .turned = PTHREAD_COND_INITIALIZER};
  training_start(lane, op, &job);
  for (int64_t i = 0; i < op->batch * op->kv_heads; i++)
    job.turn[i] = 0;
  host_run_tasks(lane, op->batch * op->heads, run_backward, &job);
  host_tally(lane, &job.base.tally);
  return STATUS_OK;
}
