/* The CUDA device: lanes are streams, marks are events. One file per topic; kernels are in *.cu,
 * declared in kernels.h. Private to gpu/. */
#pragma once

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
                             .shared = lane->device->model.gpu.shared,
                             .tally = cuda_lane(lane)->tally,
                             .fp8_tensor = lane->device->fp8_tensor,
                             .fault = cuda_lane(lane)->fault_there,
                             .work = cuda_lane(lane)->workspace,
                             .bytes = CUDA_WORKSPACE};
}

/* The slots of cuda_ops that are no operations, as device.h says: memory.c, lane.c, mark.c,
 * measure.c, matmul.c. */
/* clang-format off */
#define CUDA_SLOTS(SLOT)                                                                           \
  SLOT(alloc) SLOT(release) SLOT(alloc_host) SLOT(release_host) SLOT(pin) SLOT(unpin)              \
  SLOT(memory) SLOT(zero) SLOT(copy) SLOT(copy_rows)                                               \
  SLOT(lane_create) SLOT(lane_destroy) SLOT(lane_reserve) SLOT(lane_check) SLOT(label)             \
  SLOT(fp8_tally) SLOT(mark_create) SLOT(mark_destroy) SLOT(mark_set) SLOT(mark_follow)            \
  SLOT(mark_wait) SLOT(mark_reached) SLOT(mark_seconds) SLOT(measure) SLOT(measured)               \
  SLOT(learned) SLOT(learn)
/* clang-format on */
#define CUDA_SLOT(name) typeof(*cuda_ops.name) cuda_##name;
CUDA_SLOTS(CUDA_SLOT)
#undef CUDA_SLOT
/* operations.c, attention.c, matmul.c, and around each of them measure.c: */
#define OPERATION(name, parameters, arguments, kind, work)                                         \
  enum status cuda_##name parameters;                                                              \
  enum status cuda_timed_##name parameters;
#include "device/operations.h"

void cuda_measure_end(struct cuda_measure *measure);

enum status matmul_cache_create(const struct cuda_device *device, struct matmul_cache **out);
void matmul_cache_destroy(struct matmul_cache *cache); /* takes NULL */
