/* The CUDA device: lanes are streams, marks are events. One file per topic; kernels are in *.cu,
 * declared in kernels.h. Private to gpu/. */
#ifndef SLUICE_GPU_CUDA_H
#define SLUICE_GPU_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device/device.h"
#include "device/lane.h"
#include "gpu/gpu.h"
#include "gpu/kernels.h"

/* The one check of CUDA's and cuBLAS' return codes: STATUS_LIBRARY (STATUS_MEMORY if memory ran
 * out) with "WHAT: name of the error". */
enum status cuda_check(cudaError_t error, const char *what);
enum status cublas_check(cublasStatus_t error, const char *what);
/* After a launch. */
enum status cuda_check_launch(const char *kernel);

struct matmul_cache; /* descriptors and algorithms by shape */
struct cudnn_attention;

/* Memory by alloc() or alloc_host(), for mem_usage(). */
struct cuda_block {
  void *ptr;
  size_t bytes;
  enum mem_tag tag;
};

struct cuda_device {
  struct device device; /* first: a device is one of these */
  int ordinal;
  pthread_mutex_t mutex; /* of the blocks */
  int64_t blocks, blocks_room;
  struct cuda_block *block;
  char name[256];
  bool
      keeps_cache; /* learned() writes new results to the user's cache, which is read in any case */
  cublasLtHandle_t blas;
  struct matmul_cache *algorithms;
  struct cudnn_attention *cudnn; /* NULL: without cuDNN */
  bool warned;                   /* that attention is slow */
};

enum { CUDA_WORKSPACE = DEVICE_CUDA_WORKSPACE };

/* An operation that was put on a lane while it was measured. */
struct cuda_sample {
  cudaEvent_t begin, end;
  enum device_class kind;
  double work;
};

/* on, n: only for the thread that puts work on the lane. Samples up to `made` have events, samples
 * up to n belong to operations. */
struct cuda_measure {
  bool on;
  int64_t n, made, room;
  struct cuda_sample *sample;
};

struct cuda_lane {
  struct lane lane; /* first: a lane is one of these */
  cudaStream_t stream;
  void *workspace; /* CUDA_WORKSPACE bytes, for cuBLAS and for operations without a workspace of
                      their own; one at a time, in the stream's order */
  uint64_t *fault; /* pinned: gpu_fault_row() and its neighbours decode it */
  unsigned long long *fault_there;
  _Atomic int64_t vocabulary; /* of the last operation on tokens */
  struct cuda_measure measure;
  struct fp8_tally *tally; /* in device memory */
};

static inline struct cuda_device *cuda_device(const struct device *device)
{
  return (struct cuda_device *)device;
}

static inline struct cuda_lane *cuda_lane(const struct lane *lane)
{
  return (struct cuda_lane *)lane;
}

static inline struct gpu_launch cuda_launch(const struct lane *lane)
{
  return (struct gpu_launch){.stream = cuda_lane(lane)->stream,
                             .bf16 = lane->device->model.compute == DTYPE_BF16,
                             .multiprocessors = lane->device->model.gpu.multiprocessors,
                             .tally = cuda_lane(lane)->tally,
                             .fp8_tensor = lane->device->fp8_tensor,
                             .fault = cuda_lane(lane)->fault_there,
                             .work = cuda_lane(lane)->workspace,
                             .bytes = CUDA_WORKSPACE};
}

/* The workspace, which the first call allocates. */
enum status cuda_lane_reserve(struct lane *lane);

/* The slots of cuda_ops, as device.h says. memory.c: */
enum status cuda_alloc(struct device *device, enum mem_tag tag, size_t bytes, void **out);
void cuda_release(struct device *device, void *ptr); /* takes NULL */
enum status cuda_alloc_host(struct device *device, enum mem_tag tag, size_t bytes, void **out);
void cuda_release_host(struct device *device, void *ptr); /* takes NULL */
enum status cuda_pin(struct device *device, void *ptr, size_t bytes);
void cuda_unpin(struct device *device, void *ptr);
enum status cuda_memory(struct device *device, int64_t *used, int64_t *all);
enum status cuda_zero(struct lane *lane, void *dst, size_t bytes);
enum status cuda_copy(struct lane *lane, void *dst, const void *src, size_t bytes);
enum status cuda_copy_rows(struct lane *lane, int64_t rows, size_t bytes, void *dst,
                           size_t dst_stride, const void *src, size_t src_stride);
/* lane.c, besides cuda_lane_reserve(): */
enum status cuda_lane_create(struct device *device, const char *name, enum lane_role role,
                             int threads, struct lane **out);
void cuda_lane_destroy(struct lane *lane); /* takes NULL; waits for the lane */
enum status cuda_lane_check(struct lane *lane);
void cuda_label(struct lane *lane, const char *text);
enum status cuda_fp8_tally(struct lane *lane, struct fp8_tally *out);
/* mark.c: */
enum status cuda_mark_create(struct device *device, struct mark **out);
void cuda_mark_destroy(struct mark *mark); /* takes NULL */
enum status cuda_mark_set(struct lane *lane, struct mark *mark);
enum status cuda_mark_follow(struct lane *lane, struct mark *mark);
enum status cuda_mark_wait(struct mark *mark);
bool cuda_mark_reached(struct mark *mark);
enum status cuda_mark_seconds(struct mark *from, struct mark *to, double *out);
/* operations.c, attention.c, matmul.c, and around each of them measure.c: */
#define OPERATION(name, parameters, arguments, kind, work)                                         \
  enum status cuda_##name parameters;                                                              \
  enum status cuda_timed_##name parameters;
#include "device/operations.h"
size_t cuda_attention_workspace(const struct device_model *model, const struct attention *op,
                                int threads);
/* device_model.cudnn_workspace. Builds the graph, so that no later call must; 0 if cuDNN has none.
 */
size_t cuda_cudnn_workspace(const struct device_model *model, const struct attention_backward *op,
                            bool backward);

/* device_ops.measure and .measured. */
enum status cuda_measure(struct lane *lane, bool on);
enum status cuda_measured(struct lane *lane, struct class_total total[CLASS_COUNT]);
void cuda_measure_end(struct cuda_measure *measure);

enum status matmul_cache_create(const struct cuda_device *device, struct matmul_cache **out);
void matmul_cache_destroy(struct matmul_cache *cache); /* takes NULL */
/* device_ops.learned and .learn. Any thread. */
enum status cuda_learned(struct device *device, void **out, int64_t *bytes);
enum status cuda_learn(struct device *device, const void *data, int64_t bytes);

#endif
