/* Attention by the kernels that cuda_work_kernel() chooses. Its answer depends on the shape and the
 * GPU only, so settings do not change results. */
#include "gpu/cuda.h"

#include "device/cuda_work.h"

/* Kernels read op->first for every pair of tiles, so they get a copy in device memory. */
static enum status fetch_first(struct lane *lane, struct attention *op)
{
  const size_t bytes = (size_t)(op->batch * op->tokens) * sizeof *op->first;
  if (!op->first)
    return STATUS_OK;
  enum status status = cuda_lane_reserve(lane);
  if (!status && bytes > CUDA_WORKSPACE)
    status =
        status_set(STATUS_UNSUPPORTED,
                   "the table of documents of %lld tokens does not fit: lower data.micro_batch",
                   (long long)(op->batch * op->tokens));
  status = status ?: cuda_copy(lane, cuda_lane(lane)->workspace, op->first, bytes);
  op->first = cuda_lane(lane)->workspace;
  return status;
}

static bool is_aligned(const void *p, int64_t stride)
{
  return (uintptr_t)p % 16 == 0 && stride % 8 == 0;
}

static enum status check_aligned(const struct attention_backward *op)
{
  const struct attention *f = &op->forward;
  if (is_aligned(f->q, f->q_stride) && is_aligned(f->k, f->k_stride) &&
      is_aligned(f->v, f->v_stride) && is_aligned(f->out, f->out_stride) &&
      is_aligned(op->dout, 0) && is_aligned(op->dq, op->dq_stride) &&
      is_aligned(op->dk, op->dk_stride) && is_aligned(op->dv, op->dv_stride) &&
      is_aligned(f->work, 0))
    return STATUS_OK;
  return status_set(STATUS_INTERNAL,
                    "attention: pointers and strides must be multiples of 16 bytes");
}

enum status cuda_attention(struct lane *lane, const struct attention *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const enum cuda_work_kernel kernel = cuda_work_kernel(&lane->device->model, op, false);
  struct attention copy = *op;
  enum status status = fetch_first(lane, &copy);
  if (!status && op->head_width > DEVICE_CUDA_MOST_HEAD)
    status = status_set(STATUS_INTERNAL, "attention heads of %lld elements: at most %d",
                        (long long)op->head_width, DEVICE_CUDA_MOST_HEAD);
  if (kernel != CUDA_WORK_PLAIN)
    status = status ?: check_aligned(&(struct attention_backward){.forward = copy});
  if (status)
    return status;
  if (kernel == CUDA_WORK_HOPPER)
    return cuda_check(gpu_attention_hopper(&launch, &copy), "attention");
  if (kernel == CUDA_WORK_AMPERE)
    return cuda_check(gpu_attention_ampere(&launch, &copy), "attention");
  gpu_attention(&launch, &copy);
  return cuda_check_launch("attention");
}

enum status cuda_attention_backward(struct lane *lane, const struct attention_backward *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const enum cuda_work_kernel kernel = cuda_work_kernel(&lane->device->model, &op->forward, true);
  struct attention_backward copy = *op;
  enum status status = fetch_first(lane, &copy.forward);
  if (kernel != CUDA_WORK_PLAIN)
    status = status ?: check_aligned(&copy);
  if (status)
    return status;
  if (kernel == CUDA_WORK_HOPPER)
    return cuda_check(gpu_attention_hopper_backward(&launch, &copy), "attention's gradient");
  if (kernel == CUDA_WORK_AMPERE)
    return cuda_check(gpu_attention_ampere_backward(&launch, &copy), "attention's gradient");
  gpu_attention_backward(&launch, &copy);
  return cuda_check_launch("attention's gradient");
}
