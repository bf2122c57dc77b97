/* Low-rank messages: factors of vectors, and sums of their products. It is compiled without fused
 * multiply-adds (gpu/local.mk), because messages are the host's bits. */
#include "compress/rule/lowrank.h"
#include "device/rounding.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int MANY_THREADS = 1024, MANY_WARPS = MANY_THREADS / 32; /* of a basis */
constexpr int ROWS = 4;                                            /* of a warp, or of a thread */

struct task {
  struct lowrank op;
  struct factors factors;
  int64_t n, rows; /* of a vector */
  int parts;
};

/* The basis or the coefficients of a message. */
DEVICE float *part_of(const task &t, float *array, int64_t part)
{
  return (float *)((char *)array + part * t.factors.stride);
}

DEVICE float element(const float *x, int64_t n, int64_t i)
{
  return i < n ? x[i] : 0;
}

__global__ void __launch_bounds__(THREADS) start_coefficients(const task t)
{
  const int64_t each = t.rows * t.op.rank, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  int64_t part, at;
  split(i, each, &part, &at);
  if (part < t.parts)
    part_of(t, t.factors.coefficients, part)[at] = lowrank_uniform(rounding_bits(t.op.seed, i));
}

/* C^T M of a band: a thread has a column of M, and K rows of the result. */
template <int K>
__global__ void __launch_bounds__(THREADS)
    collect_band(const task t, int64_t band, int64_t bands, const float *x, float *sums)
{
  const int64_t column = (int64_t)blockIdx.y * THREADS + threadIdx.x;
  const int k0 = blockIdx.z * K;
  int64_t part, number;
  split(blockIdx.x, bands, &part, &number);
  if (column >= t.op.block)
    return;
  const int64_t first = number * band, last = min(first + band, t.rows);
  const float *c = part_of(t, t.factors.coefficients, part), *from = x + part * t.n;
  float sum[K] = {};
#pragma unroll 8
  for (int64_t row = first; row < last; row++) {
    const float v = element(from, t.n, row * t.op.block + column);
    for (int k = 0; k < K; k++)
      if (k0 + k < t.op.rank)
        sum[k] += c[row * t.op.rank + k0 + k] * v;
  }
  for (int k = 0; k < K; k++)
    if (k0 + k < t.op.rank)
      sums[((int64_t)blockIdx.x * t.op.rank + k0 + k) * t.op.block + column] = sum[k];
}

/* The product of two rows by a warp, in each of its lanes. */
__device__ float row_product(int64_t block, const float *a, const float *b)
{
  float sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x % 32; i < block; i += 32)
    sum += a[i] * b[i];
  return warp_sum(sum);
}

/* v -= its components along rows i < k of the basis. All threads of the block. */
__device__ void remove_components(int64_t block, int k, const float *basis, float *v)
{
  __shared__ float along[LOWRANK_MOST_RANK];
  const int warp = threadIdx.x / 32;
  for (int i = warp; i < k; i += MANY_WARPS) {
    const float product = row_product(block, v, basis + i * block);
    if (threadIdx.x % 32 == 0)
      along[i] = product;
  }
  __syncthreads();
  for (int64_t at = threadIdx.x; at < block; at += MANY_THREADS) {
    float value = v[at];
    for (int i = 0; i < k; i++)
      value -= along[i] * basis[i * block + at];
    v[at] = value;
  }
  __syncthreads();
}

/* The same number in all threads of the block. */
__device__ float squares_of(int64_t block, const float *v)
{
  __shared__ float squares;
  if (threadIdx.x < 32) {
    const float sum = row_product(block, v, v);
    if (threadIdx.x == 0)
      squares = sum;
  }
  __syncthreads();
  const float all = squares;
  __syncthreads();
  return all;
}

__device__ uint32_t largest_of(int64_t block, const float *v)
{
  uint32_t top = 0;
  for (int64_t at = threadIdx.x; at < block; at += MANY_THREADS)
    top = max(top, lowrank_magnitude(v[at]));
  top = over_block<MANY_WARPS>(top);
  __syncthreads();
  return top;
}

__device__ void scale_row(int64_t block, float factor, float *v)
{
  for (int64_t at = threadIdx.x; at < block; at += MANY_THREADS)
    v[at] *= factor;
  __syncthreads();
}

/* A block of threads has the basis of a message. */
__global__ void __launch_bounds__(MANY_THREADS) orthonormalise(const task t, bool last)
{
  __shared__ float scales[LOWRANK_MOST_RANK];
  const int64_t block = t.op.block;
  float *basis = part_of(t, t.factors.basis, blockIdx.x);
  for (int k = 0; k < t.op.rank; k++) {
    float *v = basis + k * block;
    const float scale = lowrank_scale(largest_of(block, v));
    if (threadIdx.x == 0)
      scales[k] = scale;
    scale_row(block, scale, v);
    remove_components(block, k, basis, v);
    const float before = squares_of(block, v);
    remove_components(block, k, basis, v);
    const float after = squares_of(block, v);
    if (lowrank_depends(before, after))
      for (int64_t at = threadIdx.x; at < block; at += MANY_THREADS)
        v[at] = 0;
    else
      scale_row(block, 1 / sqrtf(after), v);
    __syncthreads();
  }
  for (int k = 0; k < t.op.rank && !last; k++)
    scale_row(block, scales[k], basis + k * block);
}

/* C = M V^T: a warp has ROWS rows of M, and K columns of C at a time. */
template <int K>
__global__ void __launch_bounds__(THREADS) project_rows(const task t, const float *x)
{
  const int64_t block = t.op.block, lane = threadIdx.x % 32;
  int64_t part, first;
  split((int64_t)blockIdx.x * WARPS + threadIdx.x / 32, (t.rows + ROWS - 1) / ROWS, &part, &first);
  first *= ROWS;
  if (part >= t.parts)
    return;
  const float *basis = part_of(t, t.factors.basis, part), *from = x + part * t.n;
  float *c = part_of(t, t.factors.coefficients, part);
  for (int k0 = 0; k0 < t.op.rank; k0 += K) {
    float sum[ROWS][K] = {};
#pragma unroll 2
    for (int64_t at = lane; at < block; at += 32) {
      float row[ROWS];
      for (int r = 0; r < ROWS; r++)
        row[r] = element(from, t.n, (first + r) * block + at);
      for (int k = 0; k < K; k++) {
        const float v = k0 + k < t.op.rank ? basis[(k0 + k) * block + at] : 0;
        for (int r = 0; r < ROWS; r++)
          sum[r][k] += row[r] * v;
      }
    }
    for (int r = 0; r < ROWS; r++)
      for (int k = 0; k < K; k++) {
        const float product = warp_sum(sum[r][k]);
        if (lane == 0 && first + r < t.rows && k0 + k < t.op.rank)
          c[(first + r) * t.op.rank + k0 + k] = product;
      }
  }
}

/* A thread has a column of ROWS rows of the sum. */
template <int LEVELS>
__global__ void __launch_bounds__(THREADS)
    expand_rows(const task t, enum quant_mode mode, float *out)
{
  const int64_t column = (int64_t)blockIdx.y * THREADS + threadIdx.x;
  const int rank = t.op.rank;
  int64_t vector, first;
  split(blockIdx.x, (t.rows + ROWS - 1) / ROWS, &vector, &first);
  first *= ROWS;
  if (column >= t.op.block)
    return;
  const auto value = [&](int part, float(&to)[ROWS]) {
    const float *basis = part_of(t, t.factors.basis, vector + part) + column,
                *c = part_of(t, t.factors.coefficients, vector + part);
    for (int r = 0; r < ROWS; r++)
      to[r] = 0;
#pragma unroll 4
    for (int k = 0; k < rank; k++) {
      const float v = basis[k * t.op.block];
      for (int r = 0; r < ROWS; r++)
        to[r] += c[min(first + r, t.rows - 1) * rank + k] * v;
    }
  };
  float sum[ROWS];
  sum_tree<LEVELS, ROWS>(mode == QUANT_SUBTRACT ? 1 : t.parts, value, sum);
  for (int r = 0; r < ROWS; r++) {
    const int64_t i = (first + r) * t.op.block + column;
    float *to = out + vector * t.n + i;
    if (i < t.n)
      *to = mode == QUANT_SET ? sum[r] : mode == QUANT_ADD ? *to + sum[r] : *to - sum[r];
  }
}

task task_of(const struct lowrank *op, int64_t n, int parts, const struct factors *factors)
{
  return {*op, *factors, n, lowrank_rows(op, n), parts};
}

/* Columns of a few ranks are kept in registers. */
template <int K>
void run_round(const gpu_launch *launch, const task &t, const float *x, bool last, float *sums)
{
  const int64_t bands = lowrank_bands(t.rows), size = t.op.rank * t.op.block;
  const dim3 grid((unsigned)(t.parts * bands), (unsigned)pieces_of(t.op.block, THREADS),
                  (unsigned)pieces_of(t.op.rank, K));
  collect_band<K><<<grid, THREADS, 0, launch->stream>>>(t, lowrank_band(t.rows), bands, x, sums);
  for (int part = 0; part < t.parts; part++)
    gpu_sum_parts(launch, size, (int)bands, DTYPE_F32, sums + part * bands * size, size, false,
                  (float *)((char *)t.factors.basis + part * t.factors.stride));
  orthonormalise<<<(unsigned)t.parts, MANY_THREADS, 0, launch->stream>>>(t, last);
  project_rows<K><<<(unsigned)pieces_of(t.parts * pieces_of(t.rows, ROWS), WARPS), THREADS, 0,
                    launch->stream>>>(t, x);
}

} // namespace

void gpu_factorise(const gpu_launch *launch, const struct lowrank *op, int64_t n, int parts,
                   const float *x, const struct factors *factors, float *work)
{
  constexpr int FEW = 4, MANY = 8;
  const task t = task_of(op, n, parts, factors);
  if (n == 0)
    return;
  for_items<THREADS>(launch, parts * t.rows * op->rank, start_coefficients, t);
  for (int round = 1; round <= op->rounds; round++)
    if (op->rank <= FEW)
      run_round<FEW>(launch, t, x, round == op->rounds, work);
    else
      run_round<MANY>(launch, t, x, round == op->rounds, work);
}

void gpu_expand(const gpu_launch *launch, const struct lowrank *op, int64_t n, int parts,
                const struct factors *factors, enum quant_mode mode, float *out)
{
  constexpr int FEW = 4, MANY = 31; /* levels of a sum over parts */
  const task t = task_of(op, n, parts, factors);
  const bool apart = mode == QUANT_SUBTRACT;
  const dim3 grid((unsigned)((apart ? parts : 1) * pieces_of(t.rows, ROWS)),
                  (unsigned)pieces_of(op->block, THREADS));
  if (n == 0)
    return;
  const auto kernel = apart || parts < 1 << FEW ? expand_rows<FEW> : expand_rows<MANY>;
  kernel<<<grid, THREADS, 0, launch->stream>>>(t, mode, out);
}
