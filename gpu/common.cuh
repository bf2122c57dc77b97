/* Shared by the kernels: 16-byte accesses, sums over a warp in a fixed order, types to float and
 * back, sums over pieces of work. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <initializer_list>
#include <stdint.h>
#include <type_traits>

#include "gpu/kernels.h"

typedef __nv_bfloat16 bf16;

/* W elements that are loaded and stored together: in accesses of 16 bytes if rows allow it, else
 * one by one. */
template <typename T, int W> struct alignas(sizeof(T) * W) pack {
  T at[W];
};

/* An access of a pack: 16 bytes, 8, or the whole of a smaller one. */
template <typename T, int W>
using word_of = std::conditional_t<sizeof(T) * W % 16 == 0, int4,
                                   std::conditional_t<sizeof(T) * W == 8, int2, pack<T, W>>>;

/* ONCE: read once and not again soon, so the caches may drop it first. */
template <typename T, int W, bool ONCE = false> DEVICE pack<T, W> load(const T *from)
{
  using word = word_of<T, W>;
  pack<T, W> value;
  for (int i = 0; i < (int)(sizeof value / sizeof(word)); i++)
    if constexpr (ONCE && !std::is_same_v<word, pack<T, W>>)
      reinterpret_cast<word *>(&value)[i] = __ldcs(reinterpret_cast<const word *>(from) + i);
    else
      reinterpret_cast<word *>(&value)[i] = reinterpret_cast<const word *>(from)[i];
  return value;
}

template <typename T, int W> DEVICE pack<T, W> load_once(const T *from)
{
  return load<T, W, true>(from);
}

template <typename T, int W> DEVICE void store(T *to, const pack<T, W> &value)
{
  using word = word_of<T, W>;
  for (int i = 0; i < (int)(sizeof value / sizeof(word)); i++)
    reinterpret_cast<word *>(to)[i] = reinterpret_cast<const word *>(&value)[i];
}

DEVICE float to_float(float x)
{
  return x;
}
DEVICE float to_float(bf16 x)
{
  return __bfloat162float(x);
}
DEVICE float to_float(__half x)
{
  return __half2float(x);
}
template <typename T> DEVICE T from_float(float x);
template <> DEVICE float from_float<float>(float x)
{
  return x;
}
template <> DEVICE bf16 from_float<bf16>(float x)
{
  return __float2bfloat16_rn(x);
}
template <> DEVICE __half from_float<__half>(float x)
{
  return __float2half_rn(x);
}

/* Nearest, ties to even; of bf16 two at a time. */
template <typename T, int W> DEVICE pack<T, W> rounded(const float *x)
{
  pack<T, W> out;
  if constexpr (std::is_same_v<T, bf16> && W % 2 == 0) {
    for (int i = 0; i < W / 2; i++)
      reinterpret_cast<__nv_bfloat162 *>(&out)[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
  } else {
    for (int i = 0; i < W; i++)
      out.at[i] = from_float<T>(x[i]);
  }
  return out;
}

DEVICE float2 operator+(float2 a, float2 b)
{
  return make_float2(a.x + b.x, a.y + b.y);
}

DEVICE float2 shuffle(float2 x, int offset)
{
  return make_float2(__shfl_xor_sync(0xFFFFFFFF, x.x, offset),
                     __shfl_xor_sync(0xFFFFFFFF, x.y, offset));
}
template <typename T> DEVICE T shuffle(T x, int offset)
{
  return __shfl_xor_sync(0xFFFFFFFF, x, offset);
}

/* Over `lanes` neighbours, a power of 2; all 32 threads of the warp must call it. */
template <typename T> DEVICE T lanes_sum(T x, int lanes)
{
  for (int offset = lanes / 2; offset > 0; offset /= 2)
    x = x + shuffle(x, offset);
  return x;
}

template <typename T> DEVICE T warp_sum(T x)
{
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    x = x + shuffle(x, offset);
  return x;
}

constexpr unsigned ALL_LANES = 0xFFFFFFFF;

/* Sum over this lane and the lanes before it. */
template <typename T> DEVICE T warp_scan(T x)
{
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const T other = __shfl_up_sync(ALL_LANES, x, distance);
    x += threadIdx.x % 32 >= distance ? other : 0;
  }
  return x;
}

/* Sum over this thread of a block and the threads before it, and over all. Before another call all
 * threads must meet. */
template <int WARPS, typename T> DEVICE T block_scan(T x, T *all)
{
  __shared__ T warps[WARPS];
  x = warp_scan(x);
  if (threadIdx.x % 32 == 31)
    warps[threadIdx.x / 32] = x;
  __syncthreads();
  *all = 0;
  for (int w = 0; w < WARPS; w++) {
    x += w < (int)threadIdx.x / 32 ? warps[w] : 0;
    *all += warps[w];
  }
  return x;
}

/* The largest number of a block's threads, or their sum, likewise. */
template <int WARPS, bool SUM = false> DEVICE uint32_t over_block(uint32_t x)
{
  __shared__ uint32_t warps[WARPS];
  x = SUM ? __reduce_add_sync(ALL_LANES, x) : __reduce_max_sync(ALL_LANES, x);
  if (threadIdx.x % 32 == 0)
    warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = warps[0];
  for (int w = 1; w < WARPS; w++)
    x = SUM ? x + warps[w] : max(x, warps[w]);
  return x;
}

DEVICE float warp_max(float x)
{
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, offset));
  return x;
}

/* Reports a token or a target outside the vocabulary to the host, see gpu_fault. If there are
 * several reports, one of them stays. */
DEVICE void report(unsigned long long *fault, int64_t row, int32_t id, bool target)
{
  *(volatile unsigned long long *)fault =
      (target ? 1ull << 63 : 0) | (unsigned long long)(row + 1) << 32 | (uint32_t)id;
}

/* sum = the sum over parts of N numbers each, in the order of sum_parts: a binary counter of
 * complete subtrees. Fewer than 1 << LEVELS parts. */
template <int LEVELS, int N, typename F>
DEVICE void sum_tree(int parts, const F &value, float (&sum)[N])
{
  float tree[LEVELS][N];
  for (int i = 0; i < parts; i++) {
    value(i, sum);
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
      const int below = (1 << level) - 1, all = 2 * below + 1;
      if ((i & all) == below)
        for (int k = 0; k < N; k++)
          tree[level][k] = sum[k];
      else if ((i & all) == all)
        for (int k = 0; k < N; k++)
          sum[k] = tree[level][k] + sum[k];
    }
  }
  bool any = false;
#pragma unroll
  for (int level = 0; level < LEVELS; level++)
    if (parts >> level & 1) {
      for (int k = 0; k < N; k++)
        sum[k] = any ? tree[level][k] + sum[k] : tree[level][k];
      any = true;
    }
}

/* item = row * width + column. 64-bit division is slow and seldom needed. */
DEVICE void split(int64_t item, int64_t width, int64_t *row, int64_t *column)
{
  if (((item | width) >> 32) == 0) {
    const uint32_t r = (uint32_t)item / (uint32_t)width;
    *row = r;
    *column = (uint32_t)item - r * (uint32_t)width;
  } else {
    *row = item / width;
    *column = item % width;
  }
}

constexpr int MOST_ROWS = 65535; /* of a grid */

static inline int64_t pieces_of(int64_t n, int64_t size)
{
  return (n + size - 1) / size;
}

/* As many blocks, and at most `each` per multiprocessor. */
static inline unsigned blocks_within(const gpu_launch *launch, int64_t blocks, int each)
{
  const int64_t most = each * (int64_t)launch->multiprocessors;
  return (unsigned)(blocks < most ? blocks : most);
}

/* A thread per item. Arguments become the kernel's types, because the pointers of operations have
 * none. */
template <int THREADS = 256, typename... P, typename... A>
static void for_items(const gpu_launch *launch, int64_t items, void (*kernel)(P...), A... args)
{
  if (items > 0)
    kernel<<<(unsigned)pieces_of(items, THREADS), THREADS, 0, launch->stream>>>(
        static_cast<P>(args)...);
}

/* Sums of columns lie in pieces, work[array][piece][n]. They are added in an order that depends on
 * the number of pieces only: array 0 to `a`, array 1 to `b`, of which either may be NULL. Block
 * (32, ROWS). */
template <int ROWS>
__global__ void add_pieces(int64_t n, int pieces, const float *work, bool accumulate, float *a,
                           float *b)
{
  __shared__ float part[ROWS][33];
  const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
  float *to = blockIdx.y ? b : a;
  if (!to)
    return;
  const float *from = work + (int64_t)blockIdx.y * pieces * n + column;
  float sum = 0;
  if (column < n) {
#pragma unroll 8
    for (int i = threadIdx.y; i < pieces; i += ROWS)
      sum += from[i * n];
  }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= n)
    return;
  for (int y = 1; y < ROWS; y++)
    sum += part[y][threadIdx.x];
  to[column] = accumulate ? to[column] + sum : sum;
}

template <int ROWS = 16>
static inline void sum_pieces(const gpu_launch *launch, int64_t n, int arrays, int pieces,
                              const void *work, bool accumulate, void *a, void *b)
{
  const dim3 grid((unsigned)pieces_of(n, 32), (unsigned)arrays), block(32, ROWS);
  add_pieces<ROWS><<<grid, block, 0, launch->stream>>>(n, pieces, (const float *)work, accumulate,
                                                       (float *)a, (float *)b);
}

/* Whether rows of C elements, `stride` apart, can be read W at a time from all of these
 * addresses. */
static inline bool rows_pack(int W, size_t element, int64_t C, int64_t stride,
                             std::initializer_list<const void *> arrays)
{
  uintptr_t bits = 0;
  for (const void *array : arrays)
    bits |= (uintptr_t)array;
  return C % W == 0 && stride % W == 0 && bits % ((uintptr_t)W * element) == 0;
}

/* A kernel is compiled for packs of W elements. */
template <typename T, int W> struct packs {
};

/* Runs run(packs) for the compute type, with packs of 16 bytes if all rows allow it. */
template <typename F>
static inline void with_packs(const gpu_launch *launch, int64_t C, int64_t stride,
                              std::initializer_list<const void *> arrays, const F &run)
{
  const bool wide =
      launch->bf16 ? rows_pack(8, 2, C, stride, arrays) : rows_pack(4, 4, C, stride, arrays);
  if (launch->bf16 && wide)
    run(packs<bf16, 8>());
  else if (launch->bf16)
    run(packs<bf16, 1>());
  else if (wide)
    run(packs<float, 4>());
  else
    run(packs<float, 1>());
}

/* Run run() with a value of the type that a kernel is compiled for, which is fp32 or bf16. */
template <typename F> static inline void with_bf16(bool is_bf16, const F &run)
{
  if (is_bf16)
    run(bf16());
  else
    run(0.0f);
}
/* The same for fp32, bf16 and fp16. */
template <typename F> static inline void with_dtype(enum dtype type, const F &run)
{
  if (type == DTYPE_F16)
    run(__half());
  else
    with_bf16(type == DTYPE_BF16, run);
}

/* Run run() with the constant that a kernel is compiled for. */
template <typename F> static inline void with_bool(bool value, const F &run)
{
  if (value)
    run(std::true_type());
  else
    run(std::false_type());
}
/* The first of N that is `value`. */
template <int... N, typename F> static inline void with_int(int value, const F &run)
{
  (void)((value == N && (run(std::integral_constant<int, N>()), true)) || ...);
}
