/* Launchers of the kernels: enqueue and return. The caller reads cudaGetLastError(). `bf16`:
 * activations and parameters are bf16, else fp32. Shapes as in device/device.h. Gradients of
 * parameters, statistics and workspaces are fp32. Private to gpu/. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"

/* A function of kernels, which has no call of its own. */
#define DEVICE __device__ __forceinline__

struct gpu_launch {
  cudaStream_t stream;
  bool bf16;
  int multiprocessors;
  int shared;              /* bytes of shared memory that a block may have */
  struct fp8_tally *tally; /* the lane's, in device memory */
  bool fp8_tensor;         /* all blocks of a weight in fp8 get the largest scale */
  unsigned long long *fault;
  /* The lane's workspace if it was reserved. CUDA_WORKSPACE bytes suffice for any shape, and no
   * result depends on their number. */
  void *work;
  size_t bytes;
  cudaError_t *error; /* of a library that the launcher calls. cudaErrorMemoryAllocation: too few
                         bytes */
};

/* The launcher of each operation in device/operations.h, with the parameters of its slot, which the
 * caller has checked. There is no gpu_matmul or gpu_speculate. */
#define GPU_REST(first, ...) __VA_ARGS__
#define OPERATION(name, parameters, arguments, kind, work)                                         \
  void gpu_##name(const struct gpu_launch *launch, GPU_REST parameters);
#include "device/operations.h"

/* The epilogue of a product that was stored to c, or for BIAS_GELU to aux, without one. bias NULL:
 * it has been added. */
void gpu_finish(const struct gpu_launch *launch, int64_t rows, int64_t n, int64_t ld,
                enum epilogue epilogue, const void *bias, void *aux, void *c);

/* A kernel's report to the host about a token or a target outside the vocabulary, in one word that
 * the host can read at any time. 0: no report. Such a row is taken as zeros, such a target as
 * -1. */
static inline bool gpu_fault_is_target(uint64_t fault)
{
  return fault >> 63;
}
static inline int64_t gpu_fault_row(uint64_t fault)
{
  return (int64_t)(fault >> 32 & 0x7fffffff) - 1;
}
static inline int32_t gpu_fault_id(uint64_t fault)
{
  return (int32_t)(uint32_t)fault;
}

/* Attention in bf16 as cuda_work_kernel() chooses: on Hopper (attention_hopper_forward.cu,
 * attention_hopper.cu), and from compute capability 8.0 on (attention_ampere_forward.cu,
 * attention_ampere_backward.cu). compiled: whether there are kernels for Hopper in the image that
 * this GPU runs. Pointers must be multiples of 16 bytes, and strides of 8 elements. Results do not
 * depend on the number of free multiprocessors. */
cudaError_t gpu_attention_hopper_compiled(bool *out);
cudaError_t gpu_attention_hopper(const struct gpu_launch *launch, const struct attention *op);
cudaError_t gpu_attention_hopper_backward(const struct gpu_launch *launch,
                                          const struct attention_backward *op);
cudaError_t gpu_attention_ampere(const struct gpu_launch *launch, const struct attention *op);
cudaError_t gpu_attention_ampere_backward(const struct gpu_launch *launch,
                                          const struct attention_backward *op);

#ifdef __cplusplus
}
#endif
