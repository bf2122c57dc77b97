/* Sizes of the GPU implementation's workspaces. Each kernel lays its workspace out with the
 * functions of this file or takes at most their bytes. */
#include "device/cuda_work.h"

static size_t larger(size_t a, size_t b)
{
  return a > b ? a : b;
}

static int64_t blocks_of(int64_t n, int64_t each)
{
  return (n + each - 1) / each;
}

/* ---- our own kernels ---- */

bool cuda_work_hopper_knows(const struct attention *op)
{
  const int64_t queries = blocks_of(op->tokens, CUDA_WORK_QUERIES),
                keys = blocks_of(op->tokens, CUDA_WORK_KEYS);
  return (op->head_width == 64 || op->head_width == 128) && op->past == 0 &&
         op->kv_batch_stride == 0 && op->lse && (op->window == 0 || op->window >= op->tokens) &&
         op->heads % op->kv_heads == 0 && op->batch * op->heads < 65536 && op->tokens < 1 << 24 &&
         op->batch * op->kv_heads * keys < INT32_MAX - 1024 &&
         op->batch * op->heads * queries < INT32_MAX / CUDA_WORK_PLACE;
}

struct cuda_work_room cuda_work_hopper_room(const struct attention *op)
{
  const size_t blocks = (size_t)(op->batch * op->heads * blocks_of(op->tokens, CUDA_WORK_QUERIES));
  const size_t unit = 256, rows = blocks * CUDA_WORK_QUERIES;
  struct cuda_work_room work = {.flags = unit};
  work.stats = work.flags + (blocks * sizeof(int32_t) + unit - 1) / unit * unit;
  work.sums = work.stats + rows * 2 * sizeof(float); /* 64 rows of two are whole units */
  work.bytes = work.sums + rows * (size_t)op->head_width * sizeof(float);
  return work;
}

size_t cuda_work_plain(const struct attention *op)
{
  return (size_t)(op->batch * op->heads * op->tokens) * sizeof(float);
}

bool cuda_work_wants_hopper(const struct device_model *model, const struct attention *op)
{
  return model->gpu.hopper && model->compute == DTYPE_BF16 && cuda_work_hopper_knows(op);
}

/* ---- cuDNN ---- */

/* cuDNN's graphs are for bf16 and whole sequences without documents. Plain kernels do the rest. */
bool cuda_work_wants_cudnn(const struct device_model *model, const struct attention *op)
{
  return model->gpu.cudnn && model->compute == DTYPE_BF16 && op->past == 0 &&
         op->kv_batch_stride == 0 && op->lse && !op->first && op->head_width % 8 == 0;
}

static int64_t pieces_within(int64_t n, double bytes_each, double most)
{
  int64_t pieces = 1;
  while (pieces < n && (n % pieces != 0 || (double)(n / pieces) * bytes_each > most))
    pieces++;
  return pieces;
}

struct cuda_work_cut cuda_work_cut_within(const struct attention *op, double most)
{
  const double scores = 2.0 * (double)op->tokens * (double)op->tokens,
               group = scores * (double)(op->heads / op->kv_heads);
  struct cuda_work_cut cut = {.piece = *op, .groups = 1};
  cut.sequences = pieces_within(op->batch, scores * (double)op->heads, most);
  if (cut.sequences == op->batch)
    cut.groups = pieces_within(op->kv_heads, group, most);
  cut.piece.batch /= cut.sequences;
  cut.piece.heads /= cut.groups;
  cut.piece.kv_heads /= cut.groups;
  return cut;
}

double cuda_work_scores(const struct device_model *model, const struct attention *op)
{
  const struct attention piece = cuda_work_cut_within(op, (double)model->gpu.least_scores).piece;
  return 2.0 * (double)(piece.batch * piece.heads) * (double)op->tokens * (double)op->tokens;
}

bool cuda_work_scores_fit(const struct device_model *model, const struct attention *op)
{
  return cuda_work_scores(model, op) <= (double)model->gpu.memory / 2;
}

size_t cuda_work_cudnn_most(const struct device_model *model, const struct attention_backward *op,
                            bool backward)
{
  const struct attention *f = &op->forward;
  const size_t heads = (size_t)(f->batch * f->heads),
               T = (size_t)blocks_of(f->tokens, CUDA_WORK_KEYS) * CUDA_WORK_KEYS;
  (void)model;
  if (!backward)
    return cuda_work_plain(f);
  return heads * T * (2 * T + sizeof(float) * (1 + 3 * (size_t)f->head_width));
}

/* With gradients laid out as q, k and v are, or as a fused qkv that contains v. */
static size_t gradient_piece(const struct device_model *model, const struct attention *op,
                             int64_t most)
{
  const struct cuda_work_cut cut = cuda_work_cut_within(op, (double)most);
  const struct attention_backward apart = {.forward = cut.piece,
                                           .dq_stride = op->q_stride,
                                           .dk_stride = op->k_stride,
                                           .dv_stride = op->v_stride},
                                  fused = {.forward = cut.piece,
                                           .dq_stride = op->v_stride,
                                           .dk_stride = op->v_stride,
                                           .dv_stride = op->v_stride};
  return larger(model->cudnn_workspace(model, &apart, true),
                model->cudnn_workspace(model, &fused, true));
}

static size_t cudnn_gradient(const struct device_model *model, const struct attention *op)
{
  int64_t most = model->gpu.most_scores;
  size_t bytes = gradient_piece(model, op, most);
  while (op->room == ATTENTION_TIGHT && most > model->gpu.least_scores)
    bytes = gradient_piece(model, op, most /= 2);
  return bytes;
}

/* ---- operations ---- */

size_t cuda_work_attention(const struct device_model *model, const struct attention *op,
                           int threads)
{
  float lse; /* never read, but if it is NULL nothing is kept for a gradient */
  struct attention kept = *op;
  (void)threads;
  kept.lse = &lse;
  const bool cudnn = cuda_work_wants_cudnn(model, &kept);
  size_t bytes = cuda_work_plain(op);
  if (cudnn)
    bytes = larger(
        bytes, model->cudnn_workspace(model, &(struct attention_backward){.forward = kept}, false));
  if (op->room == ATTENTION_FORWARD)
    return bytes;
  if (cuda_work_wants_hopper(model, &kept))
    return larger(bytes, cuda_work_hopper_room(op).bytes);
  return cudnn && cuda_work_scores_fit(model, &kept) ? larger(bytes, cudnn_gradient(model, &kept))
                                                     : bytes;
}

size_t cuda_work_norm(const struct device_model *model, bool centred, int64_t rows, int64_t groups,
                      int64_t C)
{
  const int64_t most = CUDA_WORK_NORM_BLOCKS * (int64_t)model->gpu.multiprocessors,
                pieces = rows * groups, blocks = pieces < most ? pieces : most;
  (void)centred;
  return 2 * (size_t)blocks * (size_t)C * sizeof(float);
}
