/* Softmax, loss and its gradient of a row of logits, in place: a block a row. Maximum and sum come of one pass by the online method of Milakov & Gimelshein (2018,
 * arXiv:1805.02867), which keeps as much of the row as fits in shared memory; the gradient is a second pass over that and the rest. */
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int MOST_THREADS = 1024, EACH = 4; /* packs that a thread reads at a time */
constexpr int KEPT_TWO = 112 << 10,
              KEPT_ONE = 224 << 10; /* bytes that a row may keep where two blocks share a multiprocessor, and where one has it */

struct online {
  float most, total;
};

__device__ __forceinline__ void take_in(online *o, float x)
{
  if (x > o->most) {
    o->total *= __expf(o->most - x);
    o->most = x;
  }
  if (x != -INFINITY) /* of which nothing is to be subtracted while it is the maximum */
    o->total += __expf(x - o->most);
}

template <typename T, int W> __device__ __forceinline__ void take_in(online *o, const pack<T, W> &x)
{
  float here = to_float(x.at[0]);
  for (int k = 1; k < W; k++)
    here = fmaxf(here, to_float(x.at[k]));
  if (here == -INFINITY)
    return;
  if (here > o->most) {
    o->total *= __expf(o->most - here);
    o->most = here;
  }
  for (int k = 0; k < W; k++)
    o->total += __expf(to_float(x.at[k]) - o->most);
}

template <typename T, int W> __device__ void clear_row(int V, T *row)
{
  pack<T, W> zero;
  for (int k = 0; k < W; k++)
    zero.at[k] = from_float<T>(0);
  for (int i = threadIdx.x; i < V / W; i += (int)blockDim.x)
    store<T, W>(row + (int64_t)i * W, zero);
  if ((int)threadIdx.x < V % W)
    row[V / W * W + threadIdx.x] = from_float<T>(0);
}

/* `kept`: packs of the row that find room in shared memory. */
template <typename T, int W>
__global__ void __launch_bounds__(MOST_THREADS)
    classify(int V, int64_t ld, int kept, T *logits, const int32_t *targets, float scale, bool gradient, double *loss, unsigned long long *fault)
{
  extern __shared__ int4 room[];
  __shared__ float shared[MOST_THREADS / 32];
  pack<T, W> *keep = reinterpret_cast<pack<T, W> *>(room);
  T *row = logits + (int64_t)blockIdx.x * ld;
  const int32_t target = targets[blockIdx.x];
  const int threads = blockDim.x, packs = V / W, tail = packs * W + threadIdx.x; /* what fills no pack: an element for each of the first threads */
  if (target < 0 || target >= V) {
    if (threadIdx.x == 0) {
      loss[blockIdx.x] = 0;
      if (target != -1)
        report(fault, blockIdx.x, target, true);
    }
    if (gradient)
      clear_row<T, W>(V, row);
    return;
  }
  online mine = {-INFINITY, 0};
  for (int first = threadIdx.x; first < packs; first += threads * EACH) {
    pack<T, W> x[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++)
      if (first + e * threads < packs)
        x[e] = load<T, W>(row + (int64_t)(first + e * threads) * W);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int i = first + e * threads;
      if (i >= packs)
        break;
      if (i < kept)
        keep[i] = x[e];
      take_in<T, W>(&mine, x[e]);
    }
  }
  if (tail < V)
    take_in(&mine, to_float(row[tail]));
  const float peak = row_max(mine.most, shared);
  const float sum = row_sum(mine.most == -INFINITY ? mine.total : mine.total * __expf(mine.most - peak), shared);
  if (threadIdx.x == 0)
    loss[blockIdx.x] = (double)logf(sum) + ((double)peak - (double)to_float(row[target]));
  if (!gradient)
    return;
  __syncthreads(); /* row[target] has been read */
  const float share = scale / sum;
  for (int i = threadIdx.x; i < packs; i += threads) {
    pack<T, W> x = i < kept ? keep[i] : load<T, W>(row + (int64_t)i * W); /* a thread finds what it kept itself */
    for (int k = 0; k < W; k++) {
      const float p = __expf(to_float(x.at[k]) - peak) * share;
      x.at[k] = from_float<T>(i * W + k == target ? p - scale : p);
    }
    store<T, W>(row + (int64_t)i * W, x);
  }
  if (tail < V) {
    const float p = __expf(to_float(row[tail]) - peak) * share;
    row[tail] = from_float<T>(tail == target ? p - scale : p);
  }
}

template <typename T, int W>
void run(const gpu_launch *launch, int64_t rows, int64_t V, int64_t ld, void *logits, const int32_t *target, float scale, bool gradient, double *loss,
         unsigned long long *fault)
{
  const int64_t bytes = V / W * W * (int64_t)sizeof(T);
  int64_t kept = 0;
  if (gradient && sizeof(T) * W == 16) /* packs that are accessed as such */
    kept = bytes < KEPT_ONE ? bytes : KEPT_ONE;
  if (kept > 0 && cudaFuncSetAttribute(classify<T, W>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)kept)) {
    (void)cudaGetLastError(); /* a chip with less: the row is read again */
    kept = 0;
  }
  const int threads = kept > 0 && kept <= KEPT_TWO ? MOST_THREADS / 2 : MOST_THREADS;
  classify<T, W>
      <<<(unsigned)rows, threads, (size_t)kept, launch->stream>>>((int)V, ld, (int)(kept / 16), (T *)logits, target, scale, gradient, loss, fault);
}

} // namespace

void gpu_cross_entropy(const gpu_launch *launch, int64_t rows, int64_t V, int64_t ld, void *logits, const int32_t *target, float scale, bool gradient,
                       double *loss, unsigned long long *fault)
{
  if (rows == 0)
    return;
  if (launch->bf16) {
    if (rows_pack(8, 2, 0, ld, logits, NULL, NULL, NULL))
      run<bf16, 8>(launch, rows, V, ld, logits, target, scale, gradient, loss, fault);
    else
      run<bf16, 1>(launch, rows, V, ld, logits, target, scale, gradient, loss, fault);
  } else if (rows_pack(4, 4, 0, ld, logits, NULL, NULL, NULL)) {
    run<float, 4>(launch, rows, V, ld, logits, target, scale, gradient, loss, fault);
  } else {
    run<float, 1>(launch, rows, V, ld, logits, target, scale, gradient, loss, fault);
  }
}
