/* Causal attention by blocks of query rows. A block meets only the keys that some row of it may see, all at once, so the softmax is exact in one pass and its
 * scores stay in cache. Forward, a task is a block of a head of a sequence; backward, a key/value head of a sequence, whose gradients it alone adds up. */
#include <math.h>
#include <string.h>

#include "device/host/host.h"

enum { BLOCK = 64 }; /* query rows */

struct attention_job {
  const struct attention *op;
  const struct attention_backward *back; /* NULL: forward */
  const struct kernels *kernels;
  struct gemm_tally tally;
  int64_t blocks;
  float scale;
};

/* One block of one head: pointers to its first element, and the keys [first_key, first_key + keys) that it may see. */
struct block {
  int64_t row, rows, first_key, keys, ld; /* ld: of the scores */
  int64_t q_at, kv_at, out_at, lse_at;    /* element offsets */
  float *scores, *dscores;
};

static int64_t round_up(int64_t n)
{
  return host_pieces(n, LANES) * LANES;
}

/* The most keys that a block can see, as a leading dimension. */
static int64_t widest(const struct attention *op)
{
  int64_t seen = op->window ? op->window - 1 + BLOCK : op->tokens;
  return round_up(seen < op->tokens ? seen : op->tokens);
}

static int64_t worker_floats(const struct attention *op)
{
  return 2 * BLOCK * widest(op);
}

size_t host_attention_workspace(struct device *device, const struct attention *op, int threads)
{
  (void)device;
  return (size_t)threads * (size_t)worker_floats(op) * sizeof(float);
}

static struct block block_at(const struct attention_job *job, int64_t sequence, int64_t head, int64_t index, int worker)
{
  const struct attention *op = job->op;
  struct block b = {.row = index * BLOCK};
  int64_t D = op->head_width, kv_head = head / (op->heads / op->kv_heads), token = sequence * op->tokens;
  b.rows = op->tokens - b.row < BLOCK ? op->tokens - b.row : BLOCK;
  b.first_key = op->window && b.row >= op->window ? b.row - op->window + 1 : 0;
  b.keys = b.row + b.rows - b.first_key;
  b.ld = round_up(b.keys);
  b.q_at = (token + b.row) * op->q_stride + head * D;
  b.kv_at = (token + b.first_key) * op->kv_stride + kv_head * D;
  b.out_at = (token + b.row) * op->out_stride + head * D;
  b.lse_at = (sequence * op->heads + head) * op->tokens + b.row;
  b.scores = (float *)op->work + worker * worker_floats(op);
  b.dscores = b.scores + BLOCK * widest(op);
  return b;
}

/* The keys [*from, *to) of the block that row r of it sees. */
static void visible(const struct attention *op, const struct block *b, int64_t r, int64_t *from, int64_t *to)
{
  int64_t token = b->row + r, first = op->window && token >= op->window ? token - op->window + 1 : 0;
  *from = first - b->first_key;
  *to = token + 1 - b->first_key;
}

static void zero_outside(float *row, int64_t from, int64_t to, int64_t n)
{
  memset(row, 0, (size_t)from * sizeof *row);
  memset(row + to, 0, (size_t)(n - to) * sizeof *row);
}

/* scores = scale q k^T */
static void make_scores(struct attention_job *job, const struct block *b)
{
  const struct attention *op = job->op;
  host_gemm(&(struct gemm){.trans_b = true,
                           .m = b->rows,
                           .n = b->keys,
                           .k = op->head_width,
                           .lda = op->q_stride,
                           .ldb = op->kv_stride,
                           .ldc = b->ld,
                           .alpha = job->scale,
                           .a = (const float *)op->q + b->q_at,
                           .b = (const float *)op->k + b->kv_at,
                           .c = b->scores},
            &job->tally);
}

static void run_forward(void *arg, int64_t i, int worker)
{
  struct attention_job *job = arg;
  const struct attention *op = job->op;
  int64_t pairs = op->batch * op->heads, pair = i % pairs;
  struct block b = block_at(job, pair / op->heads, pair % op->heads, job->blocks - 1 - i / pairs, worker); /* the longest first */
  float *out = (float *)op->out + b.out_at, sum[BLOCK];
  make_scores(job, &b);
  for (int64_t r = 0; r < b.rows; r++) {
    float *row = b.scores + r * b.ld, max;
    int64_t from, to;
    visible(op, &b, r, &from, &to);
    zero_outside(row, from, to, b.keys);
    sum[r] = job->kernels->softmax(to - from, row + from, &max);
    op->lse[b.lse_at + r] = max + logf(sum[r]);
  }
  host_gemm(&(struct gemm){.m = b.rows,
                           .n = op->head_width,
                           .k = b.keys,
                           .lda = b.ld,
                           .ldb = op->kv_stride,
                           .ldc = op->out_stride,
                           .alpha = 1,
                           .a = b.scores,
                           .b = (const float *)op->v + b.kv_at,
                           .c = out},
            &job->tally);
  for (int64_t r = 0; r < b.rows; r++)
    job->kernels->scale(op->head_width, 1 / sum[r], out + r * op->out_stride);
}

/* scores = p, dscores = the gradient by the scaled scores (Dao et al. 2022, arXiv:2205.14135, appendix B: delta = dout . out). */
static void make_score_gradients(struct attention_job *job, const struct block *b)
{
  const struct attention *op = job->op;
  const float *out = (const float *)op->out + b->out_at, *dout = (const float *)job->back->dout + b->out_at;
  make_scores(job, b);
  host_gemm(&(struct gemm){.trans_b = true,
                           .m = b->rows,
                           .n = b->keys,
                           .k = op->head_width,
                           .lda = op->out_stride,
                           .ldb = op->kv_stride,
                           .ldc = b->ld,
                           .alpha = 1,
                           .a = dout,
                           .b = (const float *)op->v + b->kv_at,
                           .c = b->dscores},
            &job->tally);
  for (int64_t r = 0; r < b->rows; r++) {
    float *p = b->scores + r * b->ld, *dp = b->dscores + r * b->ld;
    int64_t from, to;
    visible(op, b, r, &from, &to);
    zero_outside(p, from, to, b->keys);
    zero_outside(dp, from, to, b->keys);
    float delta = job->kernels->dot(op->head_width, dout + r * op->out_stride, out + r * op->out_stride);
    job->kernels->softmax_backward(to - from, op->lse[b->lse_at + r], delta, p + from, dp + from);
  }
}

static void run_block_backward(struct attention_job *job, const struct block *b)
{
  const struct attention *op = job->op;
  const struct attention_backward *back = job->back;
  int64_t D = op->head_width;
  make_score_gradients(job, b);
  host_gemm(&(struct gemm){.trans_a = true,
                           .accumulate = true,
                           .m = b->keys,
                           .n = D,
                           .k = b->rows,
                           .lda = b->ld,
                           .ldb = op->out_stride,
                           .ldc = op->kv_stride,
                           .alpha = 1,
                           .a = b->scores,
                           .b = (const float *)back->dout + b->out_at,
                           .c = (float *)back->dv + b->kv_at},
            &job->tally);
  host_gemm(&(struct gemm){.trans_a = true,
                           .accumulate = true,
                           .m = b->keys,
                           .n = D,
                           .k = b->rows,
                           .lda = b->ld,
                           .ldb = op->q_stride,
                           .ldc = op->kv_stride,
                           .alpha = job->scale,
                           .a = b->dscores,
                           .b = (const float *)op->q + b->q_at,
                           .c = (float *)back->dk + b->kv_at},
            &job->tally);
  host_gemm(&(struct gemm){.m = b->rows,
                           .n = D,
                           .k = b->keys,
                           .lda = b->ld,
                           .ldb = op->kv_stride,
                           .ldc = op->q_stride,
                           .alpha = job->scale,
                           .a = b->dscores,
                           .b = (const float *)op->k + b->kv_at,
                           .c = (float *)back->dq + b->q_at},
            &job->tally);
}

static void run_backward(void *arg, int64_t i, int worker)
{
  struct attention_job *job = arg;
  const struct attention *op = job->op;
  int64_t sequence = i / op->kv_heads, kv_head = i % op->kv_heads, group = op->heads / op->kv_heads;
  for (int64_t t = 0; t < op->tokens; t++) {
    int64_t at = (sequence * op->tokens + t) * op->kv_stride + kv_head * op->head_width;
    memset((float *)job->back->dk + at, 0, (size_t)op->head_width * sizeof(float));
    memset((float *)job->back->dv + at, 0, (size_t)op->head_width * sizeof(float));
  }
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
    for (int64_t index = 0; index < job->blocks; index++) {
      struct block b = block_at(job, sequence, head, index, worker);
      run_block_backward(job, &b);
    }
}

static enum status check(const struct attention *op)
{
  enum status status;
  if (op->kv_heads < 1 || op->heads % op->kv_heads != 0)
    return status_set(STATUS_INTERNAL, "attention with %lld heads over %lld key/value heads: the first must be a multiple of the second",
                      (long long)op->heads, (long long)op->kv_heads);
  if ((status = host_check_blas("leading dimension", op->q_stride)) || (status = host_check_blas("leading dimension", op->kv_stride)) ||
      (status = host_check_blas("leading dimension", op->out_stride)) || (status = host_check_blas("a sum of length", round_up(op->tokens))))
    return status;
  return STATUS_OK;
}

static struct attention_job job_of(struct lane *lane, const struct attention *op)
{
  return (struct attention_job){
      .op = op, .kernels = host_kernels(lane), .blocks = host_pieces(op->tokens, BLOCK), .scale = 1 / sqrtf((float)op->head_width)};
}

enum status host_attention(struct lane *lane, const struct attention *op)
{
  enum status status = check(op);
  if (status)
    return status;
  struct attention_job job = job_of(lane, op);
  host_run_tasks(lane, op->batch * op->heads * job.blocks, run_forward, &job);
  host_tally(lane, &job.tally);
  return STATUS_OK;
}

enum status host_attention_backward(struct lane *lane, const struct attention_backward *back)
{
  enum status status = check(&back->forward);
  if (status)
    return status;
  struct attention_job job = job_of(lane, &back->forward);
  job.back = back;
  host_run_tasks(lane, back->forward.batch * back->forward.kv_heads, run_backward, &job);
  host_tally(lane, &job.tally);
  return STATUS_OK;
}
