/* The CUDA device: lanes are streams, tokens are events. One file a topic; kernels in *.cu behind kernels.h. Private to gpu/. */
#ifndef SLUICE_GPU_CUDA_H
#define SLUICE_GPU_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "device/device.h"
#include "device/lane.h"
#include "gpu/kernels.h"

extern const struct device_ops cuda_ops;
enum status cuda_device_create(enum dtype compute, struct device **out);

/* The one reader of CUDA's and cuBLAS' return codes: STATUS_LIBRARY (STATUS_MEMORY where memory ran out) with "WHAT: name of the error". */
enum status cuda_check(cudaError_t error, const char *what);
enum status cublas_check(cublasStatus_t error, const char *what);
/* After a launch. */
enum status cuda_check_launch(const char *kernel);

struct matmul_cache; /* algorithms by shape */
struct cudnn_attention;

struct cuda_device {
  struct device device; /* first: a device is one of these */
  int ordinal, multiprocessors;
  char name[256];
  cublasLtHandle_t blas;
  struct matmul_cache *algorithms;
  struct cudnn_attention *cudnn; /* NULL: without cuDNN */
};

struct cuda_lane {
  struct lane lane; /* first: a lane is one of these */
  cudaStream_t stream;
  void *workspace;  /* of cuBLAS and of the operations that have no room of their own; one at a time, in the stream's order */
  size_t workspace_bytes;
  unsigned long long *bad_token; /* device */
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

enum status matmul_cache_create(const struct cuda_device *device, struct matmul_cache **out);
void matmul_cache_destroy(struct matmul_cache *cache); /* writes what it learned; takes NULL */
enum status cuda_matmul(struct lane *lane, const struct matmul *op);

/* Room in the lane's workspace, or STATUS_UNSUPPORTED naming `what`. */
enum status cuda_lane_room(struct lane *lane, size_t bytes, const char *what, void **out);

#endif
