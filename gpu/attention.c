/* Attention: by cuDNN where it is there and knows the shape, else by the plain kernels
 * (attention.cu). cuDNN's gradient is cut into pieces that fit its workspace. If the scores of a
 * piece take much of the GPU's memory, the plain kernels compute the gradient, because they keep
 * none. On Hopper the gradient is our own kernel (attention_hopper.cu) if it knows the shape,
 * because it is faster and keeps no scores (tests/gpu/bench_ops measures both). With documents,
 * cuDNN is not used. */
#include "gpu/cuda.h"

#include "device/cuda_work.h"

#ifdef SLUICE_HAVE_CUDNN
#include "base/log.h"
#include "gpu/attention_cudnn.h"
#endif

static enum status lacks_room(const struct attention_backward *op, size_t need)
{
  return status_set(STATUS_INTERNAL,
                    "the gradient of attention has a workspace of %zu bytes and needs at least %zu",
                    op->work_bytes, need);
}

static enum status hopper_backward(const struct gpu_launch *launch,
                                   const struct attention_backward *op)
{
  const size_t need = cuda_work_hopper_room(&op->forward).bytes;
  if (op->work_bytes > 0 && op->work_bytes < need)
    return lacks_room(op, need);
  if (!gpu_attention_hopper_aligned(op))
    return status_set(
        STATUS_INTERNAL,
        "the gradient of attention: pointers and strides must be multiples of 16 bytes");
  return cuda_check(gpu_attention_hopper_backward(launch, op), "the gradient of attention");
}

#ifdef SLUICE_HAVE_CUDNN
static void *half_at(const void *base, int64_t elements)
{
  return (uint16_t *)base + elements;
}

static void warn_of_plain_attention(struct device *device)
{
  struct cuda_device *cuda = cuda_device(device);
  if (!cuda->warned)
    log_warn_alike("attention of this shape is computed by a plain kernel, which is slow: %s",
                   status_text());
  cuda->warned = true;
}

static bool wants_cudnn_gradient(struct device *device, const struct attention *op)
{
  const struct device_model *model = &device->model;
  if (!cuda_work_wants_cudnn(model, op))
    return false;
  if (cuda_work_scores_fit(model, op))
    return true;
  status_set(STATUS_UNSUPPORTED, "cuDNN's gradient would keep scores of %s, and the GPU has %s",
             mem_amount(cuda_work_scores(model, op)).text,
             mem_amount((double)model->gpu.memory).text);
  warn_of_plain_attention(device);
  return false;
}

/* Warns before the first step. */
size_t cuda_attention_workspace(const struct device_model *model, const struct attention *op,
                                int threads)
{
  float lse; /* never read */
  struct attention kept = *op;
  kept.lse = &lse;
  if (op->room != ATTENTION_FORWARD && !cuda_work_wants_hopper(model, &kept))
    (void)wants_cudnn_gradient(model->device, &kept);
  return cuda_work_attention(model, op, threads);
}

/* The part of op that begins with sequence b and the group g of heads; op's own shape is the
 * part's. */
static struct attention_backward part_of(const struct attention_backward *op,
                                         const struct attention *piece, int64_t b, int64_t g)
{
  const int64_t D = piece->head_width, T = piece->tokens, h = g * piece->heads * D,
                k = g * piece->kv_heads * D;
  struct attention_backward part = *op;
  struct attention *f = &part.forward;
  f->batch = piece->batch;
  f->heads = piece->heads;
  f->kv_heads = piece->kv_heads;
  f->q = half_at(f->q, b * T * f->q_stride + h);
  f->k = half_at(f->k, b * T * f->k_stride + k);
  f->v = half_at(f->v, b * T * f->v_stride + k);
  f->out = half_at(f->out, b * T * f->out_stride + h);
  f->lse += (b * op->forward.heads + g * piece->heads) * T;
  part.dout = half_at(part.dout, b * T * f->out_stride + h);
  part.dq = half_at(part.dq, b * T * part.dq_stride + h);
  part.dk = half_at(part.dk, b * T * part.dk_stride + k);
  part.dv = half_at(part.dv, b * T * part.dv_stride + k);
  return part;
}

/* Limits go from most_scores down to least_scores by halves. Returns the shape of the first limit
 * whose workspace fits into op->work_bytes. With work_bytes 0 it is the first limit. */
static enum status choose_cut(const struct device *device, const struct attention_backward *op,
                              struct cuda_work_cut *out)
{
  const struct device_gpu *gpu = &device->model.gpu;
  size_t need = 0;
  for (int64_t most = gpu->most_scores;; most /= 2) {
    *out = cuda_work_cut_within(&op->forward, (double)most);
    if (op->work_bytes == 0)
      return STATUS_OK;
    const struct attention_backward part = part_of(op, &out->piece, 0, 0);
    enum status status = cudnn_attention_workspace(cuda_device(device)->cudnn, &part, true, &need);
    if (status || need <= op->work_bytes)
      return status;
    if (most <= gpu->least_scores)
      return lacks_room(op, need);
  }
}

static enum status cudnn_backward(struct lane *lane, const struct attention_backward *op)
{
  struct cuda_work_cut cut;
  enum status status = choose_cut(lane->device, op, &cut);
  for (int64_t s = 0; s < cut.sequences && !status; s++)
    for (int64_t g = 0; g < cut.groups && !status; g++) {
      const struct attention_backward part = part_of(op, &cut.piece, s * cut.piece.batch, g);
      status = cudnn_attention_run(cuda_device(lane->device)->cudnn, cuda_lane(lane)->stream, &part,
                                   true);
    }
  return status;
}

size_t cuda_cudnn_workspace(const struct device_model *model, const struct attention_backward *op,
                            bool backward)
{
  size_t bytes = 0;
  if (cudnn_attention_workspace(cuda_device(model->device)->cudnn, op, backward, &bytes))
    warn_of_plain_attention(model->device);
  return bytes;
}
#endif

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

static enum status attend(struct lane *lane, const struct attention *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (op->head_width > DEVICE_CUDA_MOST_HEAD)
    return status_set(STATUS_INTERNAL, "attention heads of %lld elements: at most %d",
                      (long long)op->head_width, DEVICE_CUDA_MOST_HEAD);
#ifdef SLUICE_HAVE_CUDNN
  struct attention one = *op;
  one.first = NULL;
  if (op->first && cuda_work_wants_cudnn(&lane->device->model, &one)) {
    status_set(STATUS_UNSUPPORTED, "cuDNN's attention cannot separate documents");
    warn_of_plain_attention(lane->device);
  } else if (cuda_work_wants_cudnn(&lane->device->model, op)) {
    const struct attention_backward whole = {.forward = *op};
    enum status status =
        cudnn_attention_run(cuda_device(lane->device)->cudnn, launch.stream, &whole, false);
    if (status != STATUS_UNSUPPORTED)
      return status;
  }
#endif
  gpu_attention(&launch, op);
  return cuda_check_launch("attention");
}

enum status cuda_attention(struct lane *lane, const struct attention *op)
{
  struct attention copy = *op;
  const enum status status = fetch_first(lane, &copy);
  return status ? status : attend(lane, &copy);
}

static enum status attend_backward(struct lane *lane, const struct attention_backward *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (cuda_work_wants_hopper(&lane->device->model, &op->forward))
    return hopper_backward(&launch, op);
#ifdef SLUICE_HAVE_CUDNN
  if (wants_cudnn_gradient(lane->device, &op->forward)) {
    enum status status = cudnn_backward(lane, op);
    if (status != STATUS_UNSUPPORTED)
      return status;
  }
#endif
  if (op->work_bytes > 0 && op->work_bytes < cuda_work_plain(&op->forward))
    return lacks_room(op, cuda_work_plain(&op->forward));
  gpu_attention_backward(&launch, op);
  return cuda_check_launch("attention's gradient");
}

enum status cuda_attention_backward(struct lane *lane, const struct attention_backward *op)
{
  struct attention_backward copy = *op;
  const enum status status = fetch_first(lane, &copy.forward);
  return status ? status : attend_backward(lane, &copy);
}
