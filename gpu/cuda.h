/* The CUDA device: lanes are streams, marks are events. One file a topic; kernels in *.cu behind kernels.h. Private to gpu/. */
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

/* The one reader of CUDA's and cuBLAS' return codes: STATUS_LIBRARY (STATUS_MEMORY where memory ran out) with "WHAT: name of the error". */
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
  struct device_ops ops; /* the device's: cuda_ops, and around its operations what measures them */
  int ordinal, multiprocessors;
  pthread_mutex_t mutex; /* of the blocks */
  int64_t blocks, blocks_room;
  struct cuda_block *block;
  char name[256];
  bool keeps_cache; /* learned() writes what is new to the user's cache; it is read in any case */
  cublasLtHandle_t blas;
  struct matmul_cache *algorithms;
  struct cudnn_attention *cudnn; /* NULL: without cuDNN */
  bool warned;                   /* that attention is slow */
  int64_t most_scores;           /* bytes that the backward pass of attention keeps at a time, if it can be cut so */
  int64_t least_scores;          /* the same where room is tight */
};

enum { CUDA_WORKSPACE = 64 << 20 };

/* An operation that was put on a lane while it was measured. */
struct cuda_sample {
  cudaEvent_t begin, end;
  enum device_class kind;
  double work;
};

/* on, n: the thread's that puts work on the lane. Samples up to `made` have events, those up to n are of operations. */
struct cuda_measure {
  bool on;
  int64_t n, made, room;
  struct cuda_sample *sample;
};

struct cuda_lane {
  struct lane lane; /* first: a lane is one of these */
  cudaStream_t stream;
  cudaStream_t background; /* of a lane that communicates, for passes that can wait; else NULL */
  cudaEvent_t turn;        /* between the two */
  void *workspace; /* CUDA_WORKSPACE bytes, of cuBLAS and of the operations that have no room of their own; one at a time, in the stream's order */
  uint64_t *fault; /* pinned: gpu_fault_row() and its neighbours say what it tells */
  unsigned long long *fault_there;
  _Atomic int64_t vocabulary; /* of the last operation on tokens */
  struct cuda_measure measure;
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
                             .bf16 = lane->device->compute == DTYPE_BF16,
                             .multiprocessors = cuda_device(lane->device)->multiprocessors};
}

/* The workspace, which the first call takes. */
enum status cuda_lane_reserve(struct lane *lane);
/* Room in it, or STATUS_UNSUPPORTED naming `what`. */
enum status cuda_lane_room(struct lane *lane, size_t bytes, const char *what, void **out);

/* device_ops.measure and .measured. */
enum status cuda_measure(struct lane *lane, bool on);
enum status cuda_measured(struct lane *lane, struct class_total total[CLASS_COUNT]);
/* Put in place of the operations of a table, which has cuda_ops', those that measure them where that is on. */
void cuda_measure_operations(struct device_ops *ops);
void cuda_measure_end(struct cuda_measure *measure);

enum status matmul_cache_create(const struct cuda_device *device, struct matmul_cache **out);
void matmul_cache_destroy(struct matmul_cache *cache); /* takes NULL */
enum status cuda_matmul(struct lane *lane, const struct matmul *op);
/* device_ops.learned and .learn. Any thread. */
enum status cuda_learned(struct device *device, void **out, int64_t *bytes);
enum status cuda_learn(struct device *device, const void *data, int64_t bytes);

#endif
