/* Softmax, loss and its gradient of a row of logits, in place. Blocks take rows in turn. As much of
 * a row as fits lies in shared memory. One pass over it gives maximum and sum by the online method
 * of Milakov & Gimelshein (2018, arXiv:1805.02867), and a second pass gives the gradient. After it
 * the same places are filled with the next row, so that memory is always busy. The rest of the row
 * is read twice. Exponentials are powers of 2, which the chip computes directly. */
#include <cuda_pipeline.h>

#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int MOST_THREADS = 1024, EACH = 4, STAGES = 4,
              MOST_SLOTS = 14; /* a thread has `slots` places in shared memory, EACH of a stage */
constexpr float LOG2_E = 1.44269504f;
constexpr double LN_2 = 0.69314718055994531;

struct rows {
  int64_t n, ld;
  int V, slots;
  const int32_t *target;
  const float *weight;
  float scale;
  bool gradient;
  double *loss;
  unsigned long long *fault;
};

DEVICE float power_of_2(float x)
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* exp(x) * 2^-most */
DEVICE float scaled_exp(float x, float most)
{
  return power_of_2(fmaf(x, LOG2_E, -most));
}

struct online {
  float most, total; /* largest x * LOG2_E; sum of 2^(x * LOG2_E - most) */
};

template <typename T, int W> DEVICE void take_in(online *o, const pack<T, W> &x)
{
  float here = to_float(x.at[0]);
  for (int k = 1; k < W; k++)
    here = fmaxf(here, to_float(x.at[k]));
  if (here == -INFINITY) /* while -infinity is the maximum, nothing is subtracted from it */
    return;
  here *= LOG2_E;
  if (here > o->most) {
    o->total *= power_of_2(o->most - here);
    o->most = here;
  }
  for (int k = 0; k < W; k++)
    o->total += scaled_exp(to_float(x.at[k]), o->most);
}

DEVICE online join_warp(online o)
{
  const float most = warp_max(o.most);
  return {most, warp_sum(o.most == -INFINITY ? o.total : o.total * power_of_2(o.most - most))};
}

/* Over the block, the same on all threads. `part` must not be the one of the last call, because
 * other threads may still read that. */
DEVICE online join(online o, online *part)
{
  const int lane = threadIdx.x % 32;
  o = join_warp(o);
  if (lane == 0)
    part[threadIdx.x / 32] = o;
  __syncthreads();
  return join_warp(lane < (int)blockDim.x / 32 ? part[lane] : online{-INFINITY, 0});
}

/* The results of the first pass that the second one needs. */
struct result {
  float most, share, scale;
  int target; /* -1: the gradient is 0 */
};

/* The result for elements first .. first + W of a row. */
template <typename T, int W>
DEVICE pack<T, W> gradient_of(const result &now, int first, const pack<T, W> &x)
{
  float p[W];
  for (int k = 0; k < W; k++)
    p[k] = now.target < 0 ? 0 : scaled_exp(to_float(x.at[k]), now.most) * now.share;
  if (now.target >= first && now.target < first + W)
    for (int k = 0; k < W; k++)
      p[k] -= first + k == now.target ? now.scale : 0;
  return rounded<T, W>(p);
}

/* Waits until at most `left` groups of copies are under way. */
DEVICE void wait(int left)
{
  switch (left) {
  case 0: return __pipeline_wait_prior(0);
  case 1: return __pipeline_wait_prior(1);
  case 2: return __pipeline_wait_prior(2);
  default: return __pipeline_wait_prior(3);
  }
}

/* Copies the thread's packs of one stage, which are blockDim.x packs apart. A row of NULL is an
 * empty group of copies. */
template <typename T, int W> DEVICE void fill(int4 *room, const T *row, int stage, int kept)
{
  static_assert(STAGES * EACH >= MOST_SLOTS && STAGES == 4, "the stages of wait()");
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const int i = (stage * EACH + e) * (int)blockDim.x + (int)threadIdx.x;
    if (row && i < kept)
      __pipeline_memcpy_async(room + i, row + (int64_t)i * W, 16);
  }
  __pipeline_commit();
}

/* EACH of the thread's packs from i on. */
template <typename T, int W> DEVICE void read_some(pack<T, W> *x, const T *row, int i, int packs)
{
#pragma unroll
  for (int e = 0; e < EACH; e++)
    if (i + e * (int)blockDim.x < packs)
      x[e] = load<T, W>(row + (int64_t)(i + e * (int)blockDim.x) * W);
}

/* `there`: the next row of this block, or NULL. */
template <typename T, int W>
DEVICE online first_pass(const rows &op, const T *row, const T *there, int4 *room, int packs,
                         int kept)
{
  const int threads = blockDim.x, rest = kept + threadIdx.x, tail = packs * W + threadIdx.x;
  online mine = {-INFINITY, 0};
  pack<T, W> x[EACH];
  read_some<T, W>(x, row, rest, packs);
  for (int stage = 0; stage < STAGES; stage++) {
    wait(op.gradient ? STAGES - 1 - stage : STAGES - 1);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int i = (stage * EACH + e) * threads + (int)threadIdx.x;
      if (i < kept)
        take_in<T, W>(&mine, reinterpret_cast<pack<T, W> *>(room)[i]);
    }
    if (!op.gradient)
      fill<T, W>(room, there, stage, kept);
  }
  for (int first = rest; first < packs; first += threads * EACH) {
    if (first != rest)
      read_some<T, W>(x, row, first, packs);
#pragma unroll
    for (int e = 0; e < EACH; e++)
      if (first + e * threads < packs)
        take_in<T, W>(&mine, x[e]);
  }
  if (tail < op.V)
    take_in<T, 1>(&mine, load<T, 1>(row + tail));
  return mine;
}

template <typename T, int W>
DEVICE void second_pass(const rows &op, const result &now, T *row, const T *there, int4 *room,
                        int packs, int kept)
{
  const int threads = blockDim.x, rest = kept + threadIdx.x, tail = packs * W + threadIdx.x;
  pack<T, W> x[EACH];
  read_some<T, W>(x, row, rest, packs);
  for (int stage = 0; stage < STAGES; stage++) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int i = (stage * EACH + e) * threads + (int)threadIdx.x;
      if (i < kept)
        store<T, W>(row + (int64_t)i * W,
                    gradient_of<T, W>(now, i * W, reinterpret_cast<pack<T, W> *>(room)[i]));
    }
    fill<T, W>(room, there, stage, kept);
  }
  for (int first = rest; first < packs; first += threads * EACH) {
    if (first != rest)
      read_some<T, W>(x, row, first, packs);
#pragma unroll
    for (int e = 0; e < EACH; e++)
      if (first + e * threads < packs)
        store<T, W>(row + (int64_t)(first + e * threads) * W,
                    gradient_of<T, W>(now, (first + e * threads) * W, x[e]));
  }
  if (tail < op.V)
    store<T, 1>(row + tail, gradient_of<T, 1>(now, tail, load<T, 1>(row + tail)));
  for (int64_t i = op.V + (int64_t)threadIdx.x; i < op.ld; i += threads)
    row[i] = from_float<T>(0);
}

template <typename T, int W>
__global__ void __launch_bounds__(MOST_THREADS) classify(const rows op, T *logits)
{
  extern __shared__ int4
      room[]; /* slots * blockDim.x packs: a thread fills and reads its own only */
  __shared__ online part[2][MOST_THREADS / 32];
  const int packs = op.V / W, places = op.slots * (int)blockDim.x,
            kept = places < packs ? places : packs;
  int turn = 0;
  int32_t target = op.target[blockIdx.x];
  for (int stage = 0; stage < STAGES; stage++)
    fill<T, W>(room, logits + blockIdx.x * op.ld, stage, kept);
  for (int64_t r = blockIdx.x; r < op.n; r += gridDim.x, turn ^= 1) {
    const int64_t next = r + gridDim.x;
    T *row = logits + r * op.ld;
    const T *there = next < op.n ? logits + next * op.ld : nullptr;
    const int32_t next_target = there ? op.target[next] : -1;
    const bool counts = target >= 0 && target < op.V, tells = threadIdx.x == 0;
    const float weight = op.weight ? op.weight[r] : 1, scale = op.scale * weight;
    const float wanted = tells && counts
                             ? to_float(row[target])
                             : 0; /* read before any thread's second pass overwrites it */
    if (tells && !counts && target != -1)
      report(op.fault, r, target, true);
    const online all = join(first_pass<T, W>(op, row, there, room, packs, kept), part[turn]);
    if (op.gradient)
      second_pass<T, W>(op, {all.most, scale / all.total, scale, counts ? target : -1}, row, there,
                        room, packs, kept);
    if (tells)
      op.loss[r] =
          counts ? weight * ((double)logf(all.total) + ((double)all.most * LN_2 - (double)wanted))
                 : 0;
    target = next_target;
  }
}

/* Two blocks share a multiprocessor if a row fits into half of its shared memory. */
template <typename T, int W> void run(const gpu_launch *launch, rows op, void *logits)
{
  const int64_t packs = sizeof(T) * W == 16 ? op.V / W : 0;
  const bool shared = packs <= MOST_SLOTS * MOST_THREADS / 2;
  const int threads = shared ? MOST_THREADS / 2 : MOST_THREADS;
  const int64_t blocks = (shared ? 2 : 1) * (int64_t)launch->multiprocessors,
                slots = pieces_of(packs, threads);
  op.slots = (int)(slots < MOST_SLOTS ? slots : MOST_SLOTS);
  while (cudaFuncSetAttribute(classify<T, W>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              op.slots * threads * 16) &&
         op.slots > 0) {
    (void)cudaGetLastError(); /* a GPU with less: more of the row is read again */
    op.slots--;
  }
  classify<T, W><<<(unsigned)(op.n < blocks ? op.n : blocks), threads,
                   (size_t)op.slots * threads * 16, launch->stream>>>(op, (T *)logits);
}

} // namespace

void gpu_cross_entropy(const gpu_launch *launch, const cross_entropy *all)
{
  const rows op = {all->rows,   all->ld,    (int)all->V,   0,         all->target,
                   all->weight, all->scale, all->gradient, all->loss, launch->fault};
  if (op.n == 0)
    return;
  with_packs(launch, 0, op.ld, {all->logits},
             [&]<typename T, int W>(packs<T, W>) { run<T, W>(launch, op, all->logits); });
}
