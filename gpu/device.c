#include "config.h"

#include "gpu/cuda.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#include "base/log.h"
#ifdef SLUICE_HAVE_CUDNN
#include "gpu/attention_cudnn.h"
#endif
#ifdef HAVE_NCCL
#include "gpu/nccl.h"
#endif

/* --- return codes ------------------------------------------------------------------------------------------------------------------------------- */

enum status cuda_check(cudaError_t error, const char *what)
{
  if (error == cudaSuccess)
    return STATUS_OK;
  (void)cudaGetLastError(); /* told here, and not once more by lane_check() */
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

static enum status enter(struct device *device)
{
  return cuda_check(cudaSetDevice(cuda_device(device)->ordinal), "taking a GPU");
}

/* Where there is NCCL, memory that it can open to other GPUs. MPI opens memory by handles that only cudaMalloc's has. */
static enum status take_memory(const struct device *device, size_t bytes, void **out)
{
#ifdef HAVE_NCCL
  if (!device->plain_memory)
    return nccl_memory_create(bytes, out);
#else
  (void)device;
#endif
  return cuda_check(cudaMalloc(out, bytes), "allocating memory of the GPU");
}

static void give_memory(const struct device *device, void *block)
{
#ifdef HAVE_NCCL
  if (!device->plain_memory) {
    nccl_memory_destroy(block);
    return;
  }
#else
  (void)device;
#endif
  (void)cudaFree(block);
}

static enum status note_block(struct device *device, enum mem_tag tag, size_t bytes, void *ptr)
{
  struct cuda_device *cuda = cuda_device(device);
  pthread_mutex_lock(&cuda->mutex);
  enum status status = mem_grow(MEM_META, (void **)&cuda->block, &cuda->blocks_room, cuda->blocks + 1, (int64_t)sizeof *cuda->block);
  if (!status)
    cuda->block[cuda->blocks++] = (struct cuda_block){.ptr = ptr, .bytes = bytes, .tag = tag};
  pthread_mutex_unlock(&cuda->mutex);
  if (!status)
    mem_note(tag, (int64_t)bytes);
  return status;
}

static void forget_block(struct device *device, const void *ptr)
{
  struct cuda_device *cuda = cuda_device(device);
  pthread_mutex_lock(&cuda->mutex);
  for (int64_t i = 0; i < cuda->blocks; i++)
    if (cuda->block[i].ptr == ptr) {
      mem_note(cuda->block[i].tag, -(int64_t)cuda->block[i].bytes);
      cuda->block[i] = cuda->block[--cuda->blocks];
      break;
    }
  pthread_mutex_unlock(&cuda->mutex);
}

/* Streams of lanes do not wait for the default stream, in which memory is cleared. */
static enum status clear(void *block, size_t bytes)
{
  enum status status = cuda_check(cudaMemset(block, 0, bytes), "clearing memory of the GPU");
  return status ? status : cuda_check(cudaStreamSynchronize(NULL), "clearing memory of the GPU");
}

static enum status cuda_alloc(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  void *block = NULL;
  enum status status = take_memory(device, bytes ? bytes : 1, &block);
  if (status)
    return status;
  status = clear(block, bytes);
  if (!status)
    status = note_block(device, tag, bytes, block);
  if (status) {
    give_memory(device, block);
    return status;
  }
  *out = block;
  return STATUS_OK;
}

/* Forgotten first: another thread may be given the same place at once. */
static void cuda_release(struct device *device, void *ptr)
{
  if (!ptr)
    return;
  forget_block(device, ptr);
  give_memory(device, ptr);
}

static enum status cuda_alloc_host(struct device *device, enum mem_tag tag, size_t bytes, void **out)
{
  void *block = NULL;
  enum status status =
      cuda_check(cudaHostAlloc(&block, bytes ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped), "allocating pinned memory of the host");
  if (status)
    return status;
  status = note_block(device, tag, bytes, block);
  if (status) {
    (void)cudaFreeHost(block);
    return status;
  }
  memset(block, 0, bytes);
  *out = block;
  return STATUS_OK;
}

static void cuda_release_host(struct device *device, void *ptr)
{
  if (!ptr)
    return;
  forget_block(device, ptr);
  (void)cudaFreeHost(ptr);
}

static enum status cuda_pin(struct device *device, void *ptr, size_t bytes)
{
  (void)device;
  return cuda_check(cudaHostRegister(ptr, bytes, cudaHostRegisterPortable), "pinning memory of the host");
}

static void cuda_unpin(struct device *device, void *ptr)
{
  (void)device;
  const cudaError_t error = ptr ? cudaHostUnregister(ptr) : cudaSuccess;
  if (!error)
    return;
  (void)cudaGetLastError(); /* or a lane would be told of it */
  log_warn("CUDA: memory of the host stays pinned: %s", cudaGetErrorString(error));
}

static enum status cuda_memory(struct device *device, int64_t *used, int64_t *all)
{
  size_t unused = 0, total = 0;
  (void)device;
  enum status status = cuda_check(cudaMemGetInfo(&unused, &total), "asking for the GPU's memory");
  if (status)
    return status;
  *used = (int64_t)(total - unused);
  *all = (int64_t)total;
  return STATUS_OK;
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
  if (cuda->background) {
    (void)cudaStreamSynchronize(cuda->background);
    (void)cudaStreamDestroy(cuda->background);
  }
  if (cuda->turn)
    (void)cudaEventDestroy(cuda->turn);
  cuda_measure_end(&cuda->measure);
  (void)cudaFree(cuda->workspace);
  cuda_release_host(lane->device, cuda->fault);
  mem_free(lane);
}

/* Communication is to start as soon as it can, also where the GPU is full of the blocks of a product: what it waits for is behind it already, and others wait for it. What is summed and updated
 * beside the compute lane is to take what that leaves. A lane's name, which is the plan's, is all that a device knows of what will be on it. */
static enum status create_streams(struct cuda_lane *cuda)
{
  const char *name = cuda->lane.name;
  const bool reduces = strcmp(name, "reduce") == 0;
  int least = 0, greatest = 0;
  enum status status = cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for the priorities of streams");
  if (status)
    return status;
  const int priority = reduces || strcmp(name, "gather") == 0 ? greatest : strcmp(name, "compute") == 0 ? (least + greatest) / 2 : least;
  status = cuda_check(cudaStreamCreateWithPriority(&cuda->stream, cudaStreamNonBlocking, priority), "making a stream");
  if (!status && reduces)
    status = cuda_check(cudaStreamCreateWithPriority(&cuda->background, cudaStreamNonBlocking, least), "making a stream");
  if (!status && reduces)
    status = cuda_check(cudaEventCreateWithFlags(&cuda->turn, cudaEventDisableTiming), "making an event");
  return status;
}

/* What is on `then` from now on comes after all that is on `now`. */
static enum status take_turns(struct cuda_lane *cuda, cudaStream_t now, cudaStream_t then)
{
  enum status status = cuda_check(cudaEventRecord(cuda->turn, now), "recording an event");
  return status ? status : cuda_check(cudaStreamWaitEvent(then, cuda->turn, 0), "waiting for an event");
}

/* Where a pass over memory goes that nobody waits for yet: on a lane that communicates its multiprocessors are those that the compute lane leaves, in the lane's order all the same. */
static enum status background_begin(struct lane *lane, struct gpu_launch *out)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  *out = cuda_launch(lane);
  if (!cuda->background)
    return STATUS_OK;
  out->stream = cuda->background;
  return take_turns(cuda, cuda->stream, cuda->background);
}

static enum status background_end(struct lane *lane, const char *kernel)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  enum status status = cuda_check_launch(kernel);
  return status || !cuda->background ? status : take_turns(cuda, cuda->background, cuda->stream);
}

static enum status lane_create(struct device *device, const char *name, int threads, struct lane **out)
{
  void *block, *fault = NULL, *fault_there = NULL;
  (void)threads;
  enum status status = mem_alloc(MEM_META, sizeof(struct cuda_lane), &block);
  if (status)
    return status;
  struct cuda_lane *cuda = block;
  cuda->lane.device = device;
  snprintf(cuda->lane.name, sizeof cuda->lane.name, "%s", name);
  status = create_streams(cuda);
  if (!status)
    status = cuda_alloc_host(device, MEM_META, sizeof *cuda->fault, &fault);
  cuda->fault = fault;
  if (!status)
    status = cuda_check(cudaHostGetDevicePointer(&fault_there, fault, 0), "mapping memory of the host");
  cuda->fault_there = fault_there;
  if (status) {
    lane_destroy(&cuda->lane);
    return status;
  }
  *out = &cuda->lane;
  return STATUS_OK;
}

enum status cuda_lane_reserve(struct lane *lane)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  return cuda->workspace ? STATUS_OK : cuda_check(cudaMalloc(&cuda->workspace, CUDA_WORKSPACE), "allocating a lane's workspace");
}

enum status cuda_lane_room(struct lane *lane, size_t bytes, const char *what, void **out)
{
  enum status status = cuda_lane_reserve(lane);
  if (status)
    return status;
  if (bytes > CUDA_WORKSPACE)
    return status_set(STATUS_UNSUPPORTED, "%s needs %zu bytes of workspace, a lane has %d: lower data.micro_batch", what, bytes, CUDA_WORKSPACE);
  *out = cuda_lane(lane)->workspace;
  return STATUS_OK;
}

static enum status lane_check(struct lane *lane)
{
  struct cuda_lane *cuda = cuda_lane(lane);
  const uint64_t fault = __atomic_load_n(cuda->fault, __ATOMIC_RELAXED);
  if (fault)
    return status_set(
        STATUS_INPUT,
        "%s %" PRId64 " of the batch is %d, outside the vocabulary of %" PRId64 ": the data was made with another tokenizer than model.vocab says",
        gpu_fault_is_target(fault) ? "target" : "token", gpu_fault_row(fault), (int)gpu_fault_id(fault), (int64_t)atomic_load(&cuda->vocabulary));
  cudaError_t error = cudaPeekAtLastError();
  if (!error)
    error = cudaStreamQuery(cuda->stream);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError(); /* it is no error, but is kept as one */
    return STATUS_OK;
  }
  return cuda_check(error, "the work of a lane");
}

/* --- marks ---------------------------------------------------------------------------------------------------------------------------------------- */

struct mark {
  cudaEvent_t event;
  atomic_bool set; /* a watchdog asks while a driver sets */
};

static void mark_destroy(struct mark *mark)
{
  if (!mark)
    return;
  if (mark->event)
    (void)cudaEventDestroy(mark->event);
  mem_free(mark);
}

static enum status mark_create(struct device *device, struct mark **out)
{
  void *block;
  (void)device;
  enum status status = mem_alloc(MEM_META, sizeof(struct mark), &block);
  if (status)
    return status;
  struct mark *mark = block;
  status = cuda_check(cudaEventCreateWithFlags(&mark->event, cudaEventBlockingSync), "making an event");
  if (status) {
    mark_destroy(mark);
    return status;
  }
  *out = mark;
  return STATUS_OK;
}

static enum status mark_set(struct lane *lane, struct mark *mark)
{
  atomic_store(&mark->set, true);
  return cuda_check(cudaEventRecord(mark->event, cuda_lane(lane)->stream), "recording an event");
}

static enum status mark_follow(struct lane *lane, struct mark *mark)
{
  return cuda_check(cudaStreamWaitEvent(cuda_lane(lane)->stream, mark->event, 0), "following an event");
}

static void label(struct lane *lane, const char *text)
{
  (void)lane;
  if (text)
    (void)nvtxRangePushA(text);
  else
    (void)nvtxRangePop();
}

static enum status mark_wait(struct mark *mark)
{
  return cuda_check(cudaEventSynchronize(mark->event), "waiting for an event");
}

static bool mark_reached(struct mark *mark)
{
  if (!atomic_load(&mark->set) || cudaEventQuery(mark->event) != cudaErrorNotReady)
    return true;
  (void)cudaGetLastError(); /* it is no error, but is kept as one, for the next launch of this thread */
  return false;
}

static enum status mark_seconds(struct mark *from, struct mark *to, double *out)
{
  float ms = 0;
  if (!atomic_load(&from->set) || !atomic_load(&to->set))
    return status_set(STATUS_INTERNAL, "the time between two marks was asked for, of which one was never set");
  enum status status = cuda_check(cudaEventElapsedTime(&ms, from->event, to->event), "asking for the time between two events");
  if (!status)
    *out = (double)ms * 1e-3;
  return status;
}

/* --- copies --------------------------------------------------------------------------------------------------------------------------------------- */

static enum status zero(struct lane *lane, void *dst, size_t bytes)
{
  return cuda_check(cudaMemsetAsync(dst, 0, bytes, cuda_lane(lane)->stream), "clearing memory");
}

static enum status copy(struct lane *lane, void *dst, const void *src, size_t bytes)
{
  if (dst == src || bytes == 0)
    return STATUS_OK;
  return cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda_lane(lane)->stream), "a copy");
}

static enum status copy_rows(struct lane *lane, int64_t rows, size_t bytes, void *dst, size_t dst_stride, const void *src, size_t src_stride)
{
  if (rows < 0 || dst_stride < bytes || src_stride < bytes)
    return status_set(STATUS_INTERNAL, "a copy of %" PRId64 " rows of %zu bytes, %zu apart, to rows %zu apart", rows, bytes, src_stride, dst_stride);
  if (rows == 0 || bytes == 0 || (dst == src && dst_stride == src_stride))
    return STATUS_OK;
  return cuda_check(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, (size_t)rows, cudaMemcpyDefault, cuda_lane(lane)->stream),
                    "a copy of rows");
}

static enum status cast(struct lane *lane, int64_t n, enum dtype from, const void *src, enum dtype to, void *dst)
{
  const struct gpu_launch launch = cuda_launch(lane);
  if (from == to)
    return copy(lane, dst, src, (size_t)n * dtype_size(from));
  if (from == DTYPE_F32 && to == DTYPE_BF16)
    gpu_narrow(&launch, n, src, dst);
  else if (from == DTYPE_BF16 && to == DTYPE_F32)
    gpu_widen(&launch, n, src, dst);
  else
    return status_set(STATUS_UNSUPPORTED, "a device converts between fp32 and bf16, not from %s to %s", dtype_name(from), dtype_name(to));
  return cuda_check_launch("a conversion");
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
static size_t larger(size_t a, size_t b)
{
  return a > b ? a : b;
}

/* cuDNN's graphs are for bf16 and whole sequences; the plain kernels do the rest. */
static bool wants_cudnn(const struct device *device, const struct attention *op)
{
  return cuda_device(device)->cudnn && device->compute == DTYPE_BF16 && op->past == 0 && op->kv_batch_stride == 0 && op->lse &&
         op->head_width % 8 == 0;
}

static void *half_at(const void *base, int64_t elements)
{
  return (uint16_t *)base + elements;
}

static void warn_of_plain_attention(struct device *device)
{
  struct cuda_device *cuda = cuda_device(device);
  if (!cuda->warned)
    log_warn("attention of this shape is computed by a plain kernel, which is slow: %s", status_text());
  cuda->warned = true;
}

/* cuDNN's deterministic backward pass keeps the scores [T, T] of all that it works on, in 16 bits: it is given as many sequences at a time as need no more than a limit, or where one
 * sequence needs more, as many of its heads. */
static int64_t pieces_within(int64_t n, double bytes_each, double most)
{
  int64_t pieces = 1;
  while (pieces < n && (n % pieces != 0 || (double)(n / pieces) * bytes_each > most))
    pieces++;
  return pieces;
}

/* The shape of a piece, and how many of them there are. */
struct cut {
  struct attention piece;
  int64_t sequences, groups;
};

static struct cut cut_within(const struct attention *op, double most)
{
  const double scores = 2.0 * (double)op->tokens * (double)op->tokens, group = scores * (double)(op->heads / op->kv_heads);
  struct cut cut = {.piece = *op, .groups = 1};
  cut.sequences = pieces_within(op->batch, scores * (double)op->heads, most);
  if (cut.sequences == op->batch)
    cut.groups = pieces_within(op->kv_heads, group, most);
  cut.piece.batch /= cut.sequences;
  cut.piece.heads /= cut.groups;
  cut.piece.kv_heads /= cut.groups;
  return cut;
}

/* The part of op that begins with sequence b and the group g of heads; op's own shape is the part's. */
static struct attention_backward part_of(const struct attention_backward *op, const struct attention *piece, int64_t b, int64_t g)
{
  const int64_t D = piece->head_width, T = piece->tokens, h = g * piece->heads * D, k = g * piece->kv_heads * D;
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

/* Limits go from most_scores down to least_scores by halves. The first whose workspace fits into op->work_bytes; 0: the first. */
static enum status choose_cut(const struct cuda_device *cuda, const struct attention_backward *op, struct cut *out)
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
      return status_set(STATUS_INTERNAL, "the gradient of attention has %zu bytes to work in, and cannot do with less than %zu", op->work_bytes,
                        need);
  }
}

static enum status cudnn_backward(struct lane *lane, const struct attention_backward *op)
{
  struct cut cut;
  enum status status = choose_cut(cuda_device(lane->device), op, &cut);
  for (int64_t s = 0; s < cut.sequences && !status; s++)
    for (int64_t g = 0; g < cut.groups && !status; g++) {
      const struct attention_backward part = part_of(op, &cut.piece, s * cut.piece.batch, g);
      status = cudnn_attention_backward(cuda_device(lane->device)->cudnn, cuda_lane(lane)->stream, &part);
    }
  return status;
}

/* What a graph needs, which this builds, so that no call has to; 0 where cuDNN has none. */
static size_t graph_workspace(struct device *device, const struct attention_backward *op, bool backward)
{
  size_t bytes = 0;
  if (cudnn_attention_workspace(cuda_device(device)->cudnn, op, backward, &bytes))
    warn_of_plain_attention(device);
  return bytes;
}

/* With gradients that lie as q, k and v do, or as a fused qkv of which v is a part. */
static size_t gradient_workspace(struct device *device, const struct attention *op, int64_t most)
{
  const struct cut cut = cut_within(op, (double)most);
  const struct attention_backward apart = {.forward = cut.piece, .dq_stride = op->q_stride, .dk_stride = op->k_stride, .dv_stride = op->v_stride},
                                  fused = {.forward = cut.piece, .dq_stride = op->v_stride, .dk_stride = op->v_stride, .dv_stride = op->v_stride};
  return larger(graph_workspace(device, &apart, true), graph_workspace(device, &fused, true));
}

static size_t cudnn_workspace(struct device *device, const struct attention *op)
{
  const struct cuda_device *cuda = cuda_device(device);
  const struct attention_backward whole = {.forward = *op};
  const size_t forward = graph_workspace(device, &whole, false);
  if (op->room == ATTENTION_FORWARD)
    return forward;
  int64_t most = cuda->most_scores;
  size_t backward = gradient_workspace(device, op, most);
  while (op->room == ATTENTION_TIGHT && most > cuda->least_scores)
    backward = gradient_workspace(device, op, most /= 2);
  return larger(forward, backward);
}
#endif

static size_t attention_workspace(struct device *device, const struct attention *op, int threads)
{
  (void)threads;
  const size_t plain = gpu_attention_workspace(op);
#ifndef SLUICE_HAVE_CUDNN
  (void)device;
  return plain;
#else
  float lse; /* pointers are not read, but without this one the plain kernel would be asked */
  struct attention kept = *op;
  kept.lse = &lse;
  return larger(plain, wants_cudnn(device, &kept) ? cudnn_workspace(device, &kept) : 0);
#endif
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
    enum status status = cudnn_backward(lane, op);
    if (status != STATUS_UNSUPPORTED)
      return status;
  }
#endif
  if (op->work_bytes > 0 && op->work_bytes < gpu_attention_workspace(&op->forward))
    return status_set(STATUS_INTERNAL, "the gradient of attention has %zu bytes to work in, and cannot do with less than %zu", op->work_bytes,
                      gpu_attention_workspace(&op->forward));
  gpu_attention_backward(&launch, op);
  return cuda_check_launch("attention's gradient");
}

static enum status embedding(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V, const int32_t *token, const void *wte, const void *wpe,
                             void *x)
{
  const struct gpu_launch launch = cuda_launch(lane);
  atomic_store(&cuda_lane(lane)->vocabulary, V);
  gpu_embedding(&launch, rows, T, C, V, token, wte, wpe, x, cuda_lane(lane)->fault_there);
  return cuda_check_launch("an embedding");
}

static enum status embedding_backward(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V, const int32_t *token, const void *dx,
                                      void *dwte, bool wpe_accumulate, void *dwpe)
{
  const struct gpu_launch launch = cuda_launch(lane);
  void *work = NULL;
  size_t bytes = 0;
  enum status status = STATUS_OK;
  if (dwte)
    status = cuda_check(gpu_embedding_workspace(rows, C, V, &bytes), "asking what an embedding's gradient needs");
  if (dwte && !status)
    status = cuda_lane_room(lane, bytes, "an embedding's gradient", &work);
  if (status)
    return status;
  return cuda_check(gpu_embedding_backward(&launch, rows, T, C, V, token, dx, dwte, wpe_accumulate, dwpe, work), "an embedding's gradient");
}

static enum status cross_entropy(struct lane *lane, int64_t rows, int64_t V, int64_t ld, void *logits, const int32_t *target, float scale,
                                 bool gradient, double *loss)
{
  const struct gpu_launch launch = cuda_launch(lane);
  atomic_store(&cuda_lane(lane)->vocabulary, V);
  gpu_cross_entropy(&launch, rows, V, ld, logits, target, scale, gradient, loss, cuda_lane(lane)->fault_there);
  return cuda_check_launch("the classifier");
}

static enum status add(struct lane *lane, int64_t n, const void *a, const void *b, void *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_add(&launch, n, a, b, out);
  return cuda_check_launch("an addition");
}

static enum status sum_parts(struct lane *lane, int64_t n, int parts, enum dtype type, const void *base, int64_t stride, int self, const void *own,
                             bool accumulate, void *dst)
{
  struct gpu_launch launch;
  if (parts < 1)
    return status_set(STATUS_INTERNAL, "a sum over %d parts", parts);
  if (parts > GPU_MOST_PARTS)
    return status_set(STATUS_UNSUPPORTED, "a sum over %d parts: the GPU's kernels take up to %d", parts, GPU_MOST_PARTS);
  if (type != DTYPE_F32 && type != DTYPE_BF16)
    return status_set(STATUS_UNSUPPORTED, "a device sums parts of fp32 or bf16, not of %s", dtype_name(type));
  enum status status = background_begin(lane, &launch);
  if (status)
    return status;
  gpu_sum_parts(&launch, n, parts, type, base, stride, self, own, accumulate, dst);
  return background_end(lane, "a sum over ranks");
}

static enum status sum_exact(struct lane *lane, int64_t n, const double *term, struct exactsum *sum)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_sum_exact(&launch, n, term, sum);
  return cuda_check_launch("an exact sum");
}

static enum status conclude(struct lane *lane, const struct exactsum *loss, const struct exactsum *squares, double clip, struct outcome *out)
{
  const struct gpu_launch launch = cuda_launch(lane);
  gpu_conclude(&launch, loss, squares, clip, out);
  return cuda_check_launch("the end of a step");
}

static enum status sum_squares(struct lane *lane, int64_t n, const void *x, struct exactsum *sum)
{
  struct gpu_launch launch;
  enum status status = background_begin(lane, &launch);
  if (status)
    return status;
  gpu_sum_squares(&launch, n, x, sum);
  return background_end(lane, "a sum of squares");
}

static enum status check_adamw(const struct adamw *op, bool copies)
{
  if (op->master != DTYPE_F32)
    return status_set(STATUS_UNSUPPORTED, "the CUDA device updates masters of fp32, not of %s", dtype_name(op->master));
  if (op->grad != DTYPE_F32 && op->grad != DTYPE_BF16)
    return status_set(STATUS_UNSUPPORTED, "the CUDA device updates by gradients of fp32 or bf16, not of %s", dtype_name(op->grad));
  if (op->moments != DTYPE_F32 && op->moments != DTYPE_BF16 && op->moments != DTYPE_F16)
    return status_set(STATUS_UNSUPPORTED, "the CUDA device keeps moments in fp32, bf16 or fp16, not in %s", dtype_name(op->moments));
  if (copies && op->copy != DTYPE_F32 && op->copy != DTYPE_BF16)
    return status_set(STATUS_UNSUPPORTED, "the CUDA device makes working copies in fp32 or bf16, not in %s", dtype_name(op->copy));
  return STATUS_OK;
}

static enum status adamw(struct lane *lane, int64_t n, const struct adamw *op, void *master, const void *grad, void *m, void *v, void *working)
{
  const struct gpu_launch launch = cuda_launch(lane);
  enum status status = check_adamw(op, working);
  if (status)
    return status;
  gpu_adamw(&launch, n, op, master, grad, m, v, working);
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
  pthread_mutex_destroy(&cuda->mutex);
  mem_free(cuda->block);
  mem_free(cuda);
}

const struct device_ops cuda_ops = {
    .name = "cuda",
    .destroy = destroy,
    .enter = enter,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .alloc_host = cuda_alloc_host,
    .release_host = cuda_release_host,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .memory = cuda_memory,
    .lane_create = lane_create,
    .lane_destroy = lane_destroy,
    .lane_reserve = cuda_lane_reserve,
    .label = label,
    .lane_check = lane_check,
    .measure = cuda_measure,
    .measured = cuda_measured,
    .mark_create = mark_create,
    .mark_destroy = mark_destroy,
    .mark_set = mark_set,
    .mark_follow = mark_follow,
    .mark_wait = mark_wait,
    .mark_reached = mark_reached,
    .mark_seconds = mark_seconds,
    .learned = cuda_learned,
    .learn = cuda_learn,
    .zero = zero,
    .copy = copy,
    .copy_rows = copy_rows,
    .cast = cast,
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
    .sum_exact = sum_exact,
    .conclude = conclude,
    .sum_squares = sum_squares,
    .adamw = adamw,
};

/* Without any driver, or where it sees no GPU, there is none; everything else is a machine that wants mending. */
static enum status count_gpus(int *out)
{
  int count = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaErrorInsufficientDriver && !cudaDriverGetVersion(&driver) && driver == 0)) {
    (void)cudaGetLastError();
    count = 0;
  } else if (error) {
    return cuda_check(error, "counting the GPUs");
  }
  *out = count;
  return STATUS_OK;
}

int cuda_device_count(void)
{
  int count = 0;
  return count_gpus(&count) ? -1 : count;
}

enum status cuda_device_bus(int ordinal, char *out, int size)
{
  return cuda_check(cudaDeviceGetPCIBusId(out, size, ordinal), "asking for the place of a GPU");
}

static enum status find(struct cuda_device *cuda)
{
  struct cudaDeviceProp properties;
  int count = 0;
  enum status status = count_gpus(&count);
  if (!status && count == 0)
    status = status_set(STATUS_UNSUPPORTED, "there is no GPU here: use the host device");
  if (!status && cuda->ordinal >= count)
    status = status_set(STATUS_UNSUPPORTED, "GPU %d was asked for, of the %d that this process sees", cuda->ordinal, count);
  if (!status)
    status = enter(&cuda->device);
  if (!status)
    status = cuda_check(cudaGetDeviceProperties(&properties, cuda->ordinal), "asking for the GPU's properties");
  if (status)
    return status;
  cuda->multiprocessors = properties.multiProcessorCount;
  snprintf(cuda->name, sizeof cuda->name, "%s", properties.name);
  snprintf(cuda->device.product, sizeof cuda->device.product, "%.95s", properties.name);
  for (int i = 0; i < 16; i++)
    snprintf(cuda->device.id + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
  return STATUS_OK;
}

static enum status start(struct cuda_device *cuda)
{
  enum status status = find(cuda);
  if (!status)
    status = cublas_check(cublasLtCreate(&cuda->blas), "starting the library");
  if (!status)
    status = matmul_cache_create(cuda, &cuda->algorithms);
#ifdef SLUICE_HAVE_CUDNN
  if (!status)
    status = cudnn_attention_create(&cuda->cudnn);
#endif
  return status;
}

enum status cuda_device_create(int ordinal, enum dtype compute, struct device **out)
{
  const int64_t most_scores = INT64_C(1) << 32, least_scores = INT64_C(1) << 30;
  void *block;
  if (compute != DTYPE_F32 && compute != DTYPE_BF16)
    return status_set(STATUS_UNSUPPORTED, "the CUDA device computes in fp32 or bf16, not in %s", dtype_name(compute));
  if (ordinal < 0)
    return status_set(STATUS_INTERNAL, "GPU %d was asked for", ordinal);
  enum status status = mem_alloc(MEM_META, sizeof(struct cuda_device), &block);
  if (status)
    return status;
  struct cuda_device *cuda = block;
  *cuda = (struct cuda_device){.device = {.ops = &cuda->ops,
                                          .compute = compute,
                                          .gradient = DTYPE_F32,
                                          .chunk_logits = DEVICE_CUDA_CHUNK_LOGITS,
                                          .row_multiple = DEVICE_CUDA_ROW_MULTIPLE},
                               .ops = cuda_ops,
                               .most_scores = most_scores,
                               .least_scores = least_scores,
                               .ordinal = ordinal,
                               .keeps_cache = true};
  cuda_measure_operations(&cuda->ops);
  pthread_mutex_init(&cuda->mutex, NULL); /* with default attributes this does not fail on Linux */
  status = start(cuda);
  if (status) {
    destroy(&cuda->device);
    return status;
  }
  *out = &cuda->device;
  return STATUS_OK;
}
