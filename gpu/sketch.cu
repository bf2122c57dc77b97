/* Sketched messages (compress/rule/sketch.h). One block of threads per block of a vector. Counters
 * are integers, so atomic additions give the bits of the host. */
#include <float.h>

#include "compress/rule/select.h"
#include "compress/rule/sketch.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = SKETCH_LANES, WARPS = THREADS / 32;

struct task {
  sketch op;
  int64_t n, blocks, stride;
  int parts; /* that are summed */
};

DEVICE sketch_head *head_of(const task &t, char *messages, int64_t part, int64_t block)
{
  return (sketch_head *)(messages + part * t.stride + block * sketch_block_bytes(&t.op));
}

DEVICE void make_keys(const task &t, int64_t block, sketch_key (&key)[SKETCH_ROWS])
{
  for (int row = 0; row < SKETCH_ROWS; row++)
    key[row] = sketch_key_make(&t.op, block, row);
}

/* Infinity or NaN if there is one. */
__device__ float largest_of(int m, const float *x)
{
  uint32_t most = 0;
  for (int i = threadIdx.x; i < m; i += THREADS)
    most = max(most, __float_as_uint(x[i]) & 0x7fffffff);
  return __uint_as_float(over_block<WARPS>(most));
}

__device__ double fold(double own)
{
  __shared__ double lane[THREADS];
  lane[threadIdx.x] = own;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if ((int)threadIdx.x < half)
      lane[threadIdx.x] += lane[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = lane[0];
  __syncthreads();
  return sum;
}

/* The largest number that `keep` magnitudes reach, 1 at least. */
__device__ int32_t find_threshold(int m, const int32_t *estimate, int keep)
{
  int32_t threshold = 0;
  for (int bit = SKETCH_TOP_BIT; bit >= 0; bit--) {
    const int32_t next = threshold | 1 << bit;
    int reached = 0;
    for (int i = threadIdx.x; i < m; i += THREADS)
      reached += sketch_magnitude(estimate[i]) >= next;
    threshold = (int)over_block<WARPS, true>(reached) >= keep ? next : threshold;
    __syncthreads();
  }
  return max(threshold, 1);
}

/* A thread has a lane of the sums. */
__device__ sketch_head settle(int m, const float *x, const int32_t *estimate, float step, int keep)
{
  const int32_t threshold = find_threshold(m, estimate, min(keep, m));
  double product = 0, square = 0;
  for (int i = threadIdx.x; i < m; i += THREADS) {
    const double e = sketch_magnitude(estimate[i]) >= threshold ? estimate[i] : 0;
    product += (double)x[i] * e;
    square += e * e;
  }
  product = fold(product);
  const sketch_head head = {sketch_scale(step, product, fold(square)), threshold};
  return head;
}

/* Counters of finite elements. */
__device__ void count(const task &t, const sketch_key (&key)[SKETCH_ROWS], int m, const float *x,
                      float inverse, int32_t *counters)
{
  const uint32_t columns = sketch_columns(&t.op);
  for (int i = threadIdx.x; i < m; i += THREADS) {
    const int32_t value = sketch_round(x[i] * inverse);
    for (int row = 0; row < SKETCH_ROWS; row++) {
      const uint32_t hash = sketch_hash(key[row], i);
      atomicAdd(&counters[row * columns + sketch_column(hash, columns)],
                sketch_signed(hash, value));
    }
  }
}

__global__ void __launch_bounds__(THREADS)
    sketch_blocks_of(const task t, const float *x, char *messages)
{
  __shared__ int32_t counters[SKETCH_ROWS * SKETCH_WIDTH * SKETCH_MOST_KEEP],
      estimate[SKETCH_MOST_BLOCK];
  const int64_t part = blockIdx.x / t.blocks, block = blockIdx.x % t.blocks;
  const int m = (int)sketch_length(&t.op, t.n, block);
  const uint32_t columns = sketch_columns(&t.op);
  const int32_t limit = sketch_limit(&t.op);
  x += part * t.n + block * t.op.block;
  const float largest = largest_of(m, x);
  const bool finite = largest <= FLT_MAX, counts = finite && largest >= SKETCH_LEAST;
  sketch_head *head = head_of(t, messages, part, block), found;
  sketch_key key[SKETCH_ROWS];
  make_keys(t, block, key);
  for (int c = threadIdx.x; c < SKETCH_ROWS * (int)columns; c += THREADS)
    counters[c] = 0;
  __syncthreads();
  if (counts)
    count(t, key, m, x, (float)limit / largest, counters);
  __syncthreads();
  for (int c = threadIdx.x; c < SKETCH_ROWS * (int)columns; c += THREADS)
    ((int32_t *)(head + 1))[c] = counters[c];
  found = {finite ? 0 : __uint_as_float(0x7fc00000), finite ? INT32_MAX : 0};
  if (counts) {
    for (int i = threadIdx.x; i < m; i += THREADS)
      estimate[i] = sketch_estimate(key, columns, limit, counters, i);
    found = settle(m, x, estimate, largest / (float)limit, (int)t.op.keep);
  }
  if (threadIdx.x == 0)
    *head = found;
}

__global__ void __launch_bounds__(THREADS)
    unsketch_blocks(const task t, char *messages, enum scatter_mode mode, float *out)
{
  const int64_t first = blockIdx.x / t.blocks, block = blockIdx.x % t.blocks;
  const int m = (int)sketch_length(&t.op, t.n, block);
  const uint32_t columns = sketch_columns(&t.op);
  const int32_t limit = sketch_limit(&t.op);
  sketch_key key[SKETCH_ROWS];
  make_keys(t, block, key);
  out += first * t.n + block * t.op.block;
  for (int i = threadIdx.x; i < m; i += THREADS) {
    float sum = mode == SCATTER_SET ? 0 : out[i];
    for (int64_t part = first; part < first + t.parts; part++) {
      const sketch_head *head = head_of(t, messages, part, block);
      const float value =
          sketch_value(*head, sketch_estimate(key, columns, limit, (const int32_t *)(head + 1), i));
      sum = mode == SCATTER_SUBTRACT ? sum - value : sum + value;
    }
    out[i] = sum;
  }
}

} // namespace

void gpu_sketch(const gpu_launch *launch, const sketch *op, int64_t n, int parts, const float *x,
                void *messages)
{
  const task t = {*op, n, sketch_blocks(op, n), sketch_bytes(op, n), parts};
  if (parts * t.blocks > 0)
    sketch_blocks_of<<<(unsigned)(parts * t.blocks), THREADS, 0, launch->stream>>>(
        t, x, (char *)messages);
}

void gpu_unsketch(const gpu_launch *launch, const sketch *op, int64_t n, int parts,
                  const void *messages, int64_t stride, enum scatter_mode mode, float *out)
{
  const bool sum = mode != SCATTER_SUBTRACT;
  const task t = {*op, n, sketch_blocks(op, n), stride, sum ? parts : 1};
  const unsigned grid = (unsigned)((sum ? 1 : parts) * t.blocks);
  if (grid > 0)
    unsketch_blocks<<<grid, THREADS, 0, launch->stream>>>(t, (char *)messages, mode, out);
}
