/* Sizes of the GPU implementation's workspaces. Each kernel lays its workspace out with the
 * functions of this file or takes at most their bytes. */
#include "device/cuda_work.h"

static int64_t blocks_of(int64_t n, int64_t each)
{
  return (n + each - 1) / each;
}

static bool is_hopper_width(int64_t D, bool backward)
{
  return D == 64 || D == 128 || (!backward && (D == 80 || D == 96 || D == 256));
}

enum cuda_work_kernel cuda_work_kernel(const struct device_model *model, const struct attention *op,
                                       bool backward)
{
  const int64_t queries = blocks_of(op->tokens, CUDA_WORK_QUERIES);
  if (model->compute != DTYPE_BF16 || op->head_width % 8 != 0 || op->past > 0 ||
      op->kv_batch_stride != 0 || op->heads % op->kv_heads != 0 || op->batch * op->heads >= 65536 ||
      op->tokens >= 1 << 24 || op->batch * op->heads * queries >= INT32_MAX / CUDA_WORK_PLACE ||
      (backward && op->head_width > 128 && model->gpu.shared < CUDA_WORK_WIDE))
    return CUDA_WORK_PLAIN;
  return model->gpu.hopper && is_hopper_width(op->head_width, backward) ? CUDA_WORK_HOPPER
                                                                        : CUDA_WORK_AMPERE;
}

int cuda_work_heads_at_once(const struct attention *op)
{
  const int64_t cache = 32 << 20, most = op->batch * op->kv_heads,
                groups = cache / (op->tokens * op->head_width * 4);
  return (int)((groups < 1 ? 1 : groups < most ? groups : most) * (op->heads / op->kv_heads));
}

struct cuda_work_room cuda_work_gradient_room(const struct attention *op)
{
  const size_t blocks = (size_t)(op->batch * op->heads * blocks_of(op->tokens, CUDA_WORK_QUERIES));
  const size_t unit = 256, rows = blocks * CUDA_WORK_QUERIES;
  const int64_t D = op->head_width, width = D <= 64 ? 64 : D <= 96 ? 96 : D <= 128 ? 128 : 256;
  struct cuda_work_room work = {.flags = unit};
  work.stats = work.flags + (blocks * sizeof(int32_t) + unit - 1) / unit * unit;
  work.sums = work.stats + rows * 2 * sizeof(float); /* 64 rows of two are whole units */
  work.bytes = work.sums + rows * (size_t)width * sizeof(float);
  return work;
}

size_t cuda_work_plain(const struct attention *op)
{
  return (size_t)(op->batch * op->heads * op->tokens) * sizeof(float);
}

size_t cuda_work_attention(const struct device_model *model, const struct attention *op,
                           int threads)
{
  (void)threads;
  if (!op->backward || cuda_work_kernel(model, op, true) == CUDA_WORK_PLAIN)
    return cuda_work_plain(op);
  return cuda_work_gradient_room(op).bytes;
}

size_t cuda_work_norm(const struct device_model *model, bool centred, int64_t rows, int64_t groups,
                      int64_t C)
{
  const int64_t most = CUDA_WORK_NORM_BLOCKS * (int64_t)model->gpu.multiprocessors,
                pieces = rows * groups, blocks = pieces < most ? pieces : most;
  (void)centred;
  return 2 * (size_t)blocks * (size_t)C * sizeof(float);
}
