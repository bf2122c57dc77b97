#include <stdio.h>
#include <string.h>

#ifdef SLUICE_HAVE_CUDNN
#include "gpu/attention_cudnn.h"
#endif
#include "gpu/cuda.h"

enum { WORKSPACE = 64 << 20 };

/* --- return codes ------------------------------------------------------------------------------------------------------------------------------- */

enum status cuda_check(cudaError_t error, const char *what)
{
  if (error == cudaSuccess)
    return STATUS_OK;
  return status_set(error == cudaErrorMemoryAllocation ? STATUS_MEMORY : STATUS_LIBRARY, "CUDA: %s failed: %s (%s)", what, cudaGetErrorString(error),
                    cudaGetErrorName(error));
}

enum status cublas_check(cublasStatus_t error, const char *what)
{
  return error == CUBLAS_STATUS_SUCCESS ? STATUS_OK : status_set(STATUS_LIBRARY, "cuBLAS: %s failed: %s", what, cublasLtGetStatusString(error));
}

enum status cuda_check_launch(const char *kernel)
{
  return cuda_check(cudaGetLastError(), kernel);
}

/* --- memory --------------------------------------------------------------------------------------------------------------------------------------- */

static enum status cuda_alloc(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  void *block = NULL;
  (void)device;
  (void)tag;
  enum status status = cuda_check(cudaMalloc(&block, bytes), "allocating memory of the GPU");
  if (!status)
    status = cuda_check(cudaMemset(block, 0, bytes), "clearing memory of the GPU");
  if (status) {
    (void)cudaFree(block);
    return status;
  }
  *out = block;
  return STATUS_OK;
}

static void cuda_release(struct device *device, void *ptr)
{
  (void)device;
  (void)cudaFree(ptr);
}

/* --- lanes ---------------------------------------------------------------------------------------------------------------------------------------- */

static void lane_destroy(struct lane *lane)
{
  if (!lane)
    return;
  struct cuda_lane *cuda = cuda_lane(lane);
  if (cuda->stream) {
    (void)cudaStreamSynchronize(cuda->stream);
    (void)cudaStreamDestroy(cuda->stream);
  }
  (void)cudaFree(cuda->workspace);
  (void)cudaFree(cuda->bad_token);
  mem_free(lane);
}

static enum status lane_create(struct device *device, const char *name, int threads, struct lane **out)
{
  void *block;
  (void)threads;
  enum status status = mem_alloc(MEM_META, sizeof(struct cuda_lane), &block);
  if (status)
    return status;
  struct cuda_lane *cuda = block;
  cuda->lane.device = device;
  snprintf(cuda->lane.name, sizeof cuda->lane.name, "%s", name);
  status = cuda_check(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), "making a stream");
  if (status) {
    lane_destroy(&cuda->lane);
    return status;
  }
  *out = &cuda->lane;
  return STATUS_OK;
}

static enum status lane_reserve(struct lane *lane)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  if (cuda->workspace)
    return STATUS_OK;
  enum status status = cuda_check(cudaMalloc(&cuda->workspace, WORKSPACE), "allocating a lane's workspace");
  if (!status)
    status = cuda_check(cudaMalloc((void **)&cuda->bad_token, sizeof *cuda->bad_token), "allocating a lane's flags");
  if (!status)
    status = cuda_check(cudaMemset(cuda->bad_token, 0, sizeof *cuda->bad_token), "clearing a lane's flags");
  if (!status)
    cuda->workspace_bytes = WORKSPACE;
  return status;
}

enum status cuda_lane_room(struct lane *lane, size_t bytes, const char *what, void **out)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  enum status status = lane_reserve(lane);
  if (status)
    return status;
  if (bytes > cuda->workspace_bytes)
    return status_set(STATUS_UNSUPPORTED, "%s needs %zu bytes of workspace, a lane has %zu: lower data.micro_batch", what, bytes,
                      cuda->workspace_bytes);
  *out = cuda->workspace;
  return STATUS_OK;
}

static enum status zero(struct lane *lane, void *dst, size_t bytes)
{
  return cuda_check(cudaMemsetAsync(dst, 0, bytes, cuda_lane(lane)->stream), "clearing memory");
}

static enum status copy(struct lane *lane, void *dst, const void *src, size_t bytes)
{
  return cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda_lane(lane)->stream), "a copy");
}

/* --- operations ------------------------------------------------------------------------------------------------------------------------------------ */

enum { MOST_NORM = 32768, MOST_HALF = 512, MOST_HEAD = 256 };

static enum status check_norm(int64_t C)
{
  return C <= MOST_NORM ? STATUS_OK
                        : status_set(STATUS_UNSUPPORTED, "a norm over %lld elements: the GPU's kernels take up to %d", (long long)C, MOST_NORM);
}

static enum status bias_gradient(struct lane *lane, int64_t rows, int64_t n, int64_t tile, int64_t ld, const void *d, bool accumulate, void *db)
{
  const struct gpu_launch launch = cuda_launch(lane);
  void *work = NULL;
  (void)tile;
  enum status status = cuda_lane_room(lane, gpu_bias_workspace(launch.multiprocessors, rows, n), "a bias gradient", &work);
  if (status)
    return status;
  gpu_bias_gradient(&launch, rows, n, ld, d, accumulate, db, work);
  return cuda_check_launch("a bias gradient");
}

static enum status layernorm(struct lane *lane, int64_t rows, int64_t C, float eps, const void *x, const void *add, void *sum, const void *gamma,
                             const void *beta, void *y, float *mean, float *rstd)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const struct gpu_norm op = {.rows = rows,
                              .groups = 1,
                              .C = C,
                              .x_stride = C,
                              .y_stride = C,
                              .eps = eps,
                              .x = x,
                              .add = add,
                              .gamma = gamma,
                              .beta = beta,
                              .sum = sum,
                              .y = y,
                              .mean = mean,
                              .rstd = rstd};
  enum status status = check_norm(C);
  if (status)
    return status;
  gpu_norm_forward(&launch, &op);
  return cuda_check_launch("a layer norm");
}

static enum status layernorm_backward(struct lane *lane, int64_t rows, int64_t C, int64_t tile, const void *dy, const void *x, const void *gamma,
                                      const float *mean, const float *rstd, bool dx_accumulate, void *dx, bool accumulate, void *dgamma, void *dbeta,
                                      void *work)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const struct gpu_norm_backward op = {.rows = rows,
                                       .groups = 1,
                                       .C = C,
                                       .x_stride = C,
                                       .dy_stride = C,
                                       .dx_stride = C,
                                       .dy = dy,
                                       .x = x,
                                       .gamma = gamma,
                                       .mean = mean,
                                       .rstd = rstd,
                                       .dx_accumulate = dx_accumulate,
                                       .accumulate = accumulate,
                                       .dx = dx,
                                       .dgamma = dgamma,
                                       .dbeta = dbeta,
                                       .work = work};
  (void)tile;
  enum status status = check_norm(C);
  if (status)
    return status;
  gpu_norm_gradient(&launch, &op);
  return cuda_check_launch("a layer norm's gradient");
}

static size_t layernorm_workspace(struct device *device, int64_t rows, int64_t C, int threads)
{
  (void)threads;
  return gpu_norm_workspace(cuda_device(device)->multiprocessors, rows, 1, C);
}

static enum status rmsnorm(struct lane *lane, const struct rmsnorm *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const struct gpu_norm norm = {.rows = op->rows,
                                .groups = op->groups,
                                .C = op->C,
                                .x_stride = op->x_stride,
                                .y_stride = op->y_stride,
                                .eps = op->eps,
                                .x = op->x,
                                .add = op->add,
                                .gamma = op->gamma,
                                .sum = op->sum,
                                .y = op->y,
                                .rstd = op->rstd};
  enum status status = check_norm(op->C);
  if (status)
    return status;
  gpu_norm_forward(&launch, &norm);
  return cuda_check_launch("a root mean square norm");
}

static enum status rmsnorm_backward(struct lane *lane, const struct rmsnorm_backward *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  const struct gpu_norm_backward norm = {.rows = op->rows,
                                         .groups = op->groups,
                                         .C = op->C,
                                         .x_stride = op->x_stride,
                                         .dy_stride = op->dy_stride,
                                         .dx_stride = op->dx_stride,
                                         .dy = op->dy,
                                         .x = op->x,
                                         .gamma = op->gamma,
                                         .rstd = op->rstd,
                                         .dx_accumulate = op->dx_accumulate,
                                         .accumulate = op->accumulate,
                                         .dx = op->dx,
                                         .dgamma = op->dgamma,
                                         .work = op->work};
  enum status status = check_norm(op->C);
  if (status)
    return status;
  gpu_norm_gradient(&launch, &norm);
  return cuda_check_launch("a root mean square norm's gradient");
}

static size_t rmsnorm_workspace(struct device *device, int64_t rows, int64_t groups, int64_t C, int threads)
{
  (void)threads;
  return gpu_norm_workspace(cuda_device(device)->multiprocessors, rows, groups, C);
}

static enum status rope(struct lane *lane, const struct rope *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (op->D % 2 != 0 || op->D / 2 > MOST_HALF)
    return status_set(STATUS_UNSUPPORTED, "rotary positions of heads of %lld elements: even, and at most %d", (long long)op->D, 2 * MOST_HALF);
  gpu_rope(&launch, op);
  return cuda_check_launch("rotary positions");
}

static enum status swiglu(struct lane *lane, int64_t rows, int64_t F, const void *gu, void *y)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_swiglu(&launch, rows, F, gu, y);
  return cuda_check_launch("SwiGLU");
}

static enum status swiglu_backward(struct lane *lane, int64_t rows, int64_t F, const void *gu, const void *dy, void *dgu, void *y)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_swiglu_backward(&launch, rows, F, gu, dy, dgu, y);
  return cuda_check_launch("SwiGLU's gradient");
}

#ifdef SLUICE_HAVE_CUDNN
/* cuDNN's graphs are for bf16 and whole sequences; the plain kernels do the rest. */
static bool wants_cudnn(const struct device *device, const struct attention *op)
{
  return cuda_device(device)->cudnn && device->compute == DTYPE_BF16 && op->past == 0 && op->kv_batch_stride == 0 && op->lse &&
         op->head_width % 8 == 0;
}
#endif

static size_t attention_workspace(struct device *device, const struct attention *op, int threads)
{
  (void)device;
  (void)threads;
  size_t most = gpu_attention_workspace(op);
#ifdef SLUICE_HAVE_CUDNN
  struct attention whole = *op;
  static float lse;
  whole.lse = &lse;
  const struct attention_backward both = {.forward = whole, .dq_stride = op->q_stride, .dk_stride = op->k_stride, .dv_stride = op->v_stride};
  for (int backward = 0; wants_cudnn(device, &whole) && backward < 2; backward++) {
    size_t bytes = 0;
    if (!cudnn_attention_workspace(cuda_device(device)->cudnn, &both, backward, &bytes) && bytes > most)
      most = bytes;
  }
#endif
  return most;
}

static enum status attention(struct lane *lane, const struct attention *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (op->head_width > MOST_HEAD)
    return status_set(STATUS_UNSUPPORTED, "attention heads of %lld elements: at most %d", (long long)op->head_width, MOST_HEAD);
#ifdef SLUICE_HAVE_CUDNN
  if (wants_cudnn(lane->device, op)) {
    enum status status = cudnn_attention_forward(cuda_device(lane->device)->cudnn, launch.stream, op);
    if (status != STATUS_UNSUPPORTED)
      return status;
  }
#endif
  gpu_attention(&launch, op);
  return cuda_check_launch("attention");
}

static enum status attention_backward(struct lane *lane, const struct attention_backward *op)
{
  const struct gpu_launch launch = cuda_launch(lane);
#ifdef SLUICE_HAVE_CUDNN
  if (wants_cudnn(lane->device, &op->forward)) {
    enum status status = cudnn_attention_backward(cuda_device(lane->device)->cudnn, launch.stream, op);
    if (status != STATUS_UNSUPPORTED)
      return status;
  }
#endif
  gpu_attention_backward(&launch, op);
  return cuda_check_launch("attention's gradient");
}

static enum status embedding(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V, const int32_t *token, const void *wte, const void *wpe,
                             void *x)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = lane_reserve(lane);
  if (status)
    return status;
  gpu_embedding(&launch, rows, T, C, V, token, wte, wpe, x, cuda_lane(lane)->bad_token);
  return cuda_check_launch("an embedding");
}

static enum status embedding_backward(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V, const int32_t *token, const void *dx,
                                      void *dwte, bool wpe_accumulate, void *dwpe)
{
  const struct gpu_launch launch = cuda_launch(lane);
  void *work = NULL;
  (void)V;
  enum status status = cuda_lane_room(lane, gpu_embedding_workspace(rows), "an embedding's gradient", &work);
  if (status)
    return status;
  gpu_embedding_backward(&launch, rows, T, C, token, dx, dwte, wpe_accumulate, dwpe, work);
  return cuda_check_launch("an embedding's gradient");
}

static enum status cross_entropy(struct lane *lane, int64_t rows, int64_t V, int64_t ld, void *logits, const int32_t *target, float scale,
                                 bool gradient, double *loss)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_cross_entropy(&launch, rows, V, ld, logits, target, scale, gradient, loss);
  return cuda_check_launch("the classifier");
}

static enum status add(struct lane *lane, int64_t n, const void *a, const void *b, void *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_add(&launch, n, a, b, out);
  return cuda_check_launch("an addition");
}

static enum status sum_parts(struct lane *lane, int64_t n, int parts, const void *base, int64_t stride, int self, const void *own, bool accumulate,
                             void *dst)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_sum_parts(&launch, n, parts, base, stride, self, own, accumulate, dst);
  return cuda_check_launch("a sum over ranks");
}

static enum status sum_squares(struct lane *lane, int64_t n, const void *x, struct exactsum *sum)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_sum_squares(&launch, n, x, sum);
  return cuda_check_launch("a sum of squares");
}

static enum status adamw(struct lane *lane, int64_t n, const struct adamw *op, float *master, const void *grad, float *m, float *v, void *copy)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_adamw(&launch, n, op, NULL, NULL, master, grad, m, v, copy);
  return cuda_check_launch("AdamW");
}

/* --- the device -------------------------------------------------------------------------------------------------------------------------------------- */

static void destroy(struct device *device)
{
  struct cuda_device *cuda = cuda_device(device);
  matmul_cache_destroy(cuda->algorithms);
#ifdef SLUICE_HAVE_CUDNN
  cudnn_attention_destroy(cuda->cudnn);
#endif
  if (cuda->blas)
    (void)cublasLtDestroy(cuda->blas);
  mem_free(cuda);
}

const struct device_ops cuda_ops = {
    .name = "cuda",
    .destroy = destroy,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .lane_create = lane_create,
    .lane_destroy = lane_destroy,
    .lane_reserve = lane_reserve,
    .zero = zero,
    .copy = copy,
    .matmul = cuda_matmul,
    .bias_gradient = bias_gradient,
    .layernorm = layernorm,
    .layernorm_backward = layernorm_backward,
    .layernorm_workspace = layernorm_workspace,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rmsnorm_workspace = rmsnorm_workspace,
    .rope = rope,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .attention_workspace = attention_workspace,
    .attention = attention,
    .attention_backward = attention_backward,
    .embedding = embedding,
    .embedding_backward = embedding_backward,
    .cross_entropy = cross_entropy,
    .add = add,
    .sum_parts = sum_parts,
    .sum_squares = sum_squares,
    .adamw = adamw,
};

static enum status start(struct cuda_device *cuda)
{
  struct cudaDeviceProp properties;
  int count = 0;
  enum status status = cuda_check(cudaGetDeviceCount(&count), "counting the GPUs");
  if (!status && count == 0)
    status = status_set(STATUS_UNSUPPORTED, "there is no GPU here: use the host device");
  if (!status)
    status = cuda_check(cudaGetDevice(&cuda->ordinal), "asking for the current GPU");
  if (!status)
    status = cuda_check(cudaGetDeviceProperties(&properties, cuda->ordinal), "asking for the GPU's properties");
  if (status)
    return status;
  cuda->multiprocessors = properties.multiProcessorCount;
  snprintf(cuda->name, sizeof cuda->name, "%s", properties.name);
  status = cublas_check(cublasLtCreate(&cuda->blas), "starting the library");
  if (!status)
    status = matmul_cache_create(cuda, &cuda->algorithms);
#ifdef SLUICE_HAVE_CUDNN
  if (!status)
    status = cudnn_attention_create(&cuda->cudnn);
#endif
  return status;
}

enum status cuda_device_create(enum dtype compute, struct device **out)
{
  void *block;
  if (compute != DTYPE_F32 && compute != DTYPE_BF16)
    return status_set(STATUS_UNSUPPORTED, "the CUDA device computes in fp32 or bf16, not in %s", dtype_name(compute));
  enum status status = mem_alloc(MEM_META, sizeof(struct cuda_device), &block);
  if (status)
    return status;
  struct cuda_device *cuda = block;
  cuda->device = (struct device){.ops = &cuda_ops, .compute = compute, .gradient = DTYPE_F32};
  status = start(cuda);
  if (status) {
    destroy(&cuda->device);
    return status;
  }
  *out = &cuda->device;
  return STATUS_OK;
}
