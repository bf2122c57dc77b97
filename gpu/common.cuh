/* What the kernels share: 16-byte accesses, sums over a warp and a block in a fixed order, types to float and back. */
#ifndef SLUICE_GPU_COMMON_CUH
#define SLUICE_GPU_COMMON_CUH

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

/* W elements that travel as one access: 16 bytes where rows allow it, else 1 element. */
template <typename T, int W> struct alignas(sizeof(T) * W) pack {
  T at[W];
};

template <typename T, int W> __device__ __forceinline__ pack<T, W> load(const T *from)
{
  return *reinterpret_cast<const pack<T, W> *>(from);
}

/* Read once and not again soon: past the first level of cache. */
template <typename T, int W> __device__ __forceinline__ pack<T, W> load_once(const T *from)
{
  if constexpr (sizeof(T) * W == 16) {
    const int4 bits = __ldcs(reinterpret_cast<const int4 *>(from));
    return *reinterpret_cast<const pack<T, W> *>(&bits);
  } else {
    return load<T, W>(from);
  }
}

template <typename T, int W> __device__ __forceinline__ void store(T *to, const pack<T, W> &value)
{
  *reinterpret_cast<pack<T, W> *>(to) = value;
}

__device__ __forceinline__ float to_float(float x)
{
  return x;
}
__device__ __forceinline__ float to_float(bf16 x)
{
  return __bfloat162float(x);
}
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
  return x;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
  return __float2bfloat16_rn(x);
}

template <typename T> __device__ __forceinline__ T warp_sum(T x)
{
  for (int offset = 16; offset > 0; offset /= 2)
    x += __shfl_xor_sync(0xFFFFFFFF, x, offset);
  return x;
}

__device__ __forceinline__ float warp_max(float x)
{
  for (int offset = 16; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, offset));
  return x;
}

/* Sum over the blockDim.x threads of one row, the same on all of them; `shared` holds 32 values a row. All threads of the block must call it. */
template <typename T> __device__ __forceinline__ T row_sum(T x, T *shared)
{
  x = warp_sum(x);
  const int warps = blockDim.x / 32;
  if (warps == 1)
    return x;
  __syncthreads(); /* the last sum has been read */
  if (threadIdx.x % 32 == 0)
    shared[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = 0;
  for (int w = 0; w < warps; w++)
    sum += shared[w];
  return sum;
}

__device__ __forceinline__ float row_max(float x, float *shared)
{
  x = warp_max(x);
  const int warps = blockDim.x / 32;
  if (warps == 1)
    return x;
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    shared[threadIdx.x / 32] = x;
  __syncthreads();
  float most = shared[0];
  for (int w = 1; w < warps; w++)
    most = fmaxf(most, shared[w]);
  return most;
}

/* Whether rows of C elements, `stride` apart, can be read W at a time from all of these places. */
static inline bool rows_pack(int W, size_t element, int64_t C, int64_t stride, const void *a, const void *b, const void *c, const void *d)
{
  const uintptr_t bytes = (uintptr_t)W * element, bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
  return C % W == 0 && stride % W == 0 && bits % bytes == 0;
}

static inline int64_t pieces_of(int64_t n, int64_t size)
{
  return (n + size - 1) / size;
}

#endif
