/* The input that both kernels of attention's backward pass share: per query
 * delta = rowsum(dO * O) and -lse * log2(e), padded to whole query blocks. */
#pragma once

#include <cuda_bf16.h>

#include "gpu/attention_schedule.h"
#include "gpu/kernels.h"

namespace {

/* A block has 64 queries of a head. LANES threads have a row. */
template <int LANES>
__global__ void __launch_bounds__(256)
    prepare(const attention_backward op, float *stats, int *flags, int *counter)
{
  constexpr int BM = ATTENTION_QUERIES, ROWS = 256 / LANES;
  const attention &f = op.forward;
  const int T = (int)f.tokens, D = (int)f.head_width, m = blockIdx.x, b = blockIdx.y / (int)f.heads,
            h = blockIdx.y % (int)f.heads;
  const int64_t block = (int64_t)blockIdx.y * gridDim.x + m;
  if (threadIdx.x == 0)
    flags[block] = 0;
  if (m == 0 && blockIdx.y == 0 && threadIdx.x == 0)
    *counter = 0;
#pragma unroll
  for (int i = 0; i < BM / ROWS; i++) {
    const int t = m * BM + i * ROWS + threadIdx.x / LANES, chunk = threadIdx.x % LANES;
    const int64_t at = ((int64_t)b * T + t) * f.out_stride + (int64_t)h * D + chunk * 8;
    uint4 o = {}, g = {};
    if (t < T && chunk * 8 < D) {
      o = __ldg((const uint4 *)((const __nv_bfloat16 *)f.out + at));
      g = __ldg((const uint4 *)((const __nv_bfloat16 *)op.dout + at));
    }
    const uint32_t x[4] = {o.x, o.y, o.z, o.w}, y[4] = {g.x, g.y, g.z, g.w};
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      sum = fmaf(__uint_as_float(x[e] << 16), __uint_as_float(y[e] << 16), sum);
      sum = fmaf(__uint_as_float(x[e] & 0xffff0000), __uint_as_float(y[e] & 0xffff0000), sum);
    }
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2)
      sum += __shfl_xor_sync(~0u, sum, d);
    if (chunk == 0) {
      float *to = stats + block * (2 * BM) + t - m * BM;
      to[BM] = sum;
      to[0] = t < T ? -f.lse[(int64_t)blockIdx.y * T + t] * 1.4426950408889634f
                    : -INFINITY; /* P is 0 */
    }
  }
}

/* stats [batch, heads, query blocks][2 * 64]. Also clears flags and counter. */
cudaError_t attention_prepare(cudaStream_t stream, const attention_backward *op, float *stats,
                              int *flags, int *counter)
{
  const attention &f = op->forward;
  const dim3 blocks((unsigned)((f.tokens + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES),
                    (unsigned)(f.batch * f.heads));
  const auto kernel = f.head_width <= 64    ? prepare<8>
                      : f.head_width <= 128 ? prepare<16>
                                            : prepare<32>;
  kernel<<<blocks, 256, 0, stream>>>(*op, stats, flags, counter);
  return cudaGetLastError();
}

} // namespace
