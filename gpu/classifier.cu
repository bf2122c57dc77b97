/* Softmax, loss and its gradient of a row of logits, in place: a block a row, which is read twice (maximum and sum in one pass, by the online method of
 * Milakov & Gimelshein 2018, arXiv:1805.02867) and written once. */
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 1024;

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) classify(int64_t V, int64_t ld, T *logits, const int32_t *targets, float scale, bool gradient, double *loss)
{
  __shared__ float shared[32];
  T *row = logits + (int64_t)blockIdx.x * ld;
  const int32_t target = targets[blockIdx.x];
  const int64_t packs = V / W;
  if (target < 0) {
    if (threadIdx.x == 0)
      loss[blockIdx.x] = 0;
    for (int64_t v = threadIdx.x; gradient && v < V; v += THREADS)
      row[v] = from_float<T>(0);
    return;
  }
  float most = -INFINITY, total = 0;
  for (int64_t i = threadIdx.x; i < packs; i += THREADS) {
    const pack<T, W> x = load<T, W>(row + i * W);
    float here = most;
    for (int k = 0; k < W; k++)
      here = fmaxf(here, to_float(x.at[k]));
    if (here > most) {
      total *= __expf(most - here);
      most = here;
    }
    for (int k = 0; k < W; k++)
      total += to_float(x.at[k]) == -INFINITY ? 0 : __expf(to_float(x.at[k]) - most);
  }
  const float peak = row_max(most, shared);
  const float sum = row_sum(most == -INFINITY ? 0 : total * __expf(most - peak), shared);
  const float chosen = to_float(row[target]);
  if (threadIdx.x == 0)
    loss[blockIdx.x] = (double)logf(sum) + ((double)peak - (double)chosen);
  if (!gradient)
    return;
  __syncthreads(); /* row[target] has been read */
  const float share = scale / sum;
  for (int64_t i = threadIdx.x; i < packs; i += THREADS) {
    pack<T, W> x = load<T, W>(row + i * W);
    for (int k = 0; k < W; k++) {
      const float p = __expf(to_float(x.at[k]) - peak) * share;
      x.at[k] = from_float<T>(i * W + k == target ? p - scale : p);
    }
    store<T, W>(row + i * W, x);
  }
}

} // namespace

void gpu_cross_entropy(const gpu_launch *launch, int64_t rows, int64_t V, int64_t ld, void *logits, const int32_t *target, float scale, bool gradient,
                       double *loss)
{
  if (rows == 0)
    return;
  const unsigned grid = (unsigned)rows;
  cudaStream_t s = launch->stream;
  if (launch->bf16) {
    if (rows_pack(8, 2, V, ld, logits, NULL, NULL, NULL))
      classify<bf16, 8><<<grid, THREADS, 0, s>>>(V, ld, (bf16 *)logits, target, scale, gradient, loss);
    else
      classify<bf16, 1><<<grid, THREADS, 0, s>>>(V, ld, (bf16 *)logits, target, scale, gradient, loss);
  } else if (rows_pack(4, 4, V, ld, logits, NULL, NULL, NULL)) {
    classify<float, 4><<<grid, THREADS, 0, s>>>(V, ld, (float *)logits, target, scale, gradient, loss);
  } else {
    classify<float, 1><<<grid, THREADS, 0, s>>>(V, ld, (float *)logits, target, scale, gradient, loss);
  }
}
