/* Attention: by cuDNN where it is there and knows the shape, else by the plain kernels
 * (attention.cu). cuDNN's gradient is cut into pieces that fit its workspace. If the scores of a
 * piece take much of the GPU's memory, the plain kernels compute the gradient, because they keep
 * none. On Hopper the gradient is our own kernel (attention_hopper.cu) if it knows the shape,
 * because it is faster and keeps no scores (tests/gpu/bench_ops measures both). */
#include "gpu/cuda.h"

#ifdef SLUICE_HAVE_CUDNN
#include "base/log.h"
#include "gpu/attention_cudnn.h"
#endif

static size_t larger(size_t a, size_t b)
{
  return a > b ? a : b;
}

static bool wants_hopper(const struct device *device, const struct attention *op)
{
  return cuda_device(device)->hopper && device->model.compute == DTYPE_BF16 &&
         gpu_attention_hopper_knows(op);
}

static enum status lacks_room(const struct attention_backward *op, size_t need)
{
  return status_set(STATUS_INTERNAL,
                    "the gradient of attention has a workspace of %zu bytes and needs at least %zu",
                    op->work_bytes, need);
}

static enum status hopper_backward(const struct gpu_launch *launch,
                                   const struct attention_backward *op)
{
  const size_t need = gpu_attention_hopper_workspace(&op->forward);
  if (op->work_bytes > 0 && op->work_bytes < need)
    return lacks_room(op, need);
  if (!gpu_attention_hopper_aligned(op))
    return status_set(
        STATUS_INTERNAL,
        "the gradient of attention: pointers and strides must be multiples of 16 bytes");
  return cuda_check(gpu_attention_hopper_backward(launch, op), "the gradient of attention");
}

#ifdef SLUICE_HAVE_CUDNN
/* cuDNN's graphs are for bf16 and whole sequences; the plain kernels do the rest. */
static bool wants_cudnn(const struct device *device, const struct attention *op)
{
  return cuda_device(device)->cudnn && device->model.compute == DTYPE_BF16 && op->past == 0 &&
         op->kv_batch_stride == 0 && op->lse && op->head_width % 8 == 0;
}

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

/* cuDNN's deterministic backward pass keeps the scores [T, T] of all its input, in 16 bits. So it
 * gets as many sequences at a time as fit a limit. If one sequence needs more than the limit, it
 * gets as many of its heads as fit. */
static int64_t pieces_within(int64_t n, double bytes_each, double most)
{
  int64_t pieces = 1;
  while (pieces < n && (n % pieces != 0 || (double)(n / pieces) * bytes_each > most))
    pieces++;
  return pieces;
}

/* The shape of a piece, and the number of pieces. */
struct cut {
  struct attention piece;
  int64_t sequences, groups;
};

static struct cut cut_within(const struct attention *op, double most)
{
  const double scores = 2.0 * (double)op->tokens * (double)op->tokens,
               group = scores * (double)(op->heads / op->kv_heads);
  struct cut cut = {.piece = *op, .groups = 1};
  cut.sequences = pieces_within(op->batch, scores * (double)op->heads, most);
  if (cut.sequences == op->batch)
    cut.groups = pieces_within(op->kv_heads, group, most);
  cut.piece.batch /= cut.sequences;
  cut.piece.heads /= cut.groups;
  cut.piece.kv_heads /= cut.groups;
  return cut;
}

/* Whether the GPU has room for the gradient's smallest piece next to a model. The answer depends on
 * the shape and the GPU only, and not on the workspace, so that settings do not change results. */
static bool wants_cudnn_gradient(struct device *device, const struct attention *op)
{
  const struct cuda_device *cuda = cuda_device(device);
  if (!wants_cudnn(device, op))
    return false;
  const struct attention piece = cut_within(op, (double)cuda->least_scores).piece;
  const double scores =
      2.0 * (double)(piece.batch * piece.heads) * (double)op->tokens * (double)op->tokens;
  if (scores <= (double)cuda->memory / 2)
    return true;
  status_set(STATUS_UNSUPPORTED, "cuDNN's gradient would keep scores of %s, and the GPU has %s",
             mem_amount(scores).text, mem_amount((double)cuda->memory).text);
  warn_of_plain_attention(device);
  return false;
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
static enum status choose_cut(const struct cuda_device *cuda, const struct attention_backward *op,
                              struct cut *out)
{
  size_t need = 0;
  for (int64_t most = cuda->most_scores;; most /= 2) {
    *out = cut_within(&op->forward, (double)most);
    if (op->work_bytes == 0)
      return STATUS_OK;
    const struct attention_backward part = part_of(op, &out->piece, 0, 0);
    enum status status = cudnn_attention_workspace(cuda->cudnn, &part, true, &need);
    if (status || need <= op->work_bytes)
      return status;
    if (most <= cuda->least_scores)
      return lacks_room(op, need);
  }
}

static enum status cudnn_backward(struct lane *lane, const struct attention_backward *op)
{
  struct cut cut;
  enum status status = choose_cut(cuda_device(lane->device), op, &cut);
  for (int64_t s = 0; s < cut.sequences && !status; s++)
    for (int64_t g = 0; g < cut.groups && !status; g++) {
      const struct attention_backward part = part_of(op, &cut.piece, s * cut.piece.batch, g);
      status = cudnn_attention_backward(cuda_device(lane->device)->cudnn, cuda_lane(lane)->stream,
                                        &part);
    }
  return status;
}

/* Workspace of a graph, which this function builds so that no later call must; 0 if cuDNN has
 * none. */
static size_t graph_workspace(struct device *device, const struct attention_backward *op,
                              bool backward)
{
  size_t bytes = 0;
  if (cudnn_attention_workspace(cuda_device(device)->cudnn, op, backward, &bytes))
    warn_of_plain_attention(device);
  return bytes;
}

/* With gradients laid out as q, k and v are, or as a fused qkv that contains v. */
static size_t gradient_workspace(struct device *device, const struct attention *op, int64_t most)
{
  const struct cut cut = cut_within(op, (double)most);
  const struct attention_backward apart = {.forward = cut.piece,
                                           .dq_stride = op->q_stride,
                                           .dk_stride = op->k_stride,
                                           .dv_stride = op->v_stride},
                                  fused = {.forward = cut.piece,
                                           .dq_stride = op->v_stride,
                                           .dk_stride = op->v_stride,
                                           .dv_stride = op->v_stride};
  return larger(graph_workspace(device, &apart, true), graph_workspace(device, &fused, true));
}

static size_t cudnn_workspace(struct device *device, const struct attention *op)
{
  const struct cuda_device *cuda = cuda_device(device);
  const struct attention_backward whole = {.forward = *op};
  const size_t forward = graph_workspace(device, &whole, false);
  if (op->room == ATTENTION_FORWARD || wants_hopper(device, op) ||
      !wants_cudnn_gradient(device, op))
    return forward;
  int64_t most = cuda->most_scores;
  size_t backward = gradient_workspace(device, op, most);
  while (op->room == ATTENTION_TIGHT && most > cuda->least_scores)
    backward = gradient_workspace(device, op, most /= 2);
  return larger(forward, backward);
}
#endif

size_t cuda_attention_workspace(const struct device_model *model, const struct attention *op,
                                int threads)
{
  struct device *device = model->device;
  (void)threads;
  float lse; /* never read, but if it is NULL nothing is kept for a gradient */
  struct attention kept = *op;
  kept.lse = &lse;
  size_t bytes = gpu_attention_workspace(op);
  if (op->room != ATTENTION_FORWARD && wants_hopper(device, &kept))
    bytes = larger(bytes, gpu_attention_hopper_workspace(op));
#ifdef SLUICE_HAVE_CUDNN
  if (wants_cudnn(device, &kept))
    bytes = larger(bytes, cudnn_workspace(device, &kept));
#endif
  return bytes;
}

enum status cuda_attention(struct lane *lane, const struct attention *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (op->head_width > DEVICE_CUDA_MOST_HEAD)
    return status_set(STATUS_INTERNAL, "attention heads of %lld elements: at most %d",
                      (long long)op->head_width, DEVICE_CUDA_MOST_HEAD);
#ifdef SLUICE_HAVE_CUDNN
  if (wants_cudnn(lane->device, op)) {
    enum status status =
        cudnn_attention_forward(cuda_device(lane->device)->cudnn, launch.stream, op);
    if (status != STATUS_UNSUPPORTED)
      return status;
  }
#endif
  gpu_attention(&launch, op);
  return cuda_check_launch("attention");
}

enum status cuda_attention_backward(struct lane *lane, const struct attention_backward *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (wants_hopper(lane->device, &op->forward))
    return hopper_backward(&launch, op);
#ifdef SLUICE_HAVE_CUDNN
  if (wants_cudnn_gradient(lane->device, &op->forward)) {
    enum status status = cudnn_backward(lane, op);
    if (status != STATUS_UNSUPPORTED)
      return status;
  }
#endif
  if (op->work_bytes > 0 && op->work_bytes < gpu_attention_workspace(&op->forward))
    return lacks_room(op, gpu_attention_workspace(&op->forward));
  gpu_attention_backward(&launch, op);
  return cuda_check_launch("attention's gradient");
}
