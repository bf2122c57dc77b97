/* After the backward pass: sums of gradients over ranks, exact sums for loss and norm, and the
 * outcome of a step. */
#include "base/exactsum_value.h"
#include "base/preference.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256;

/* --- sums over parts: adjacent pairs first, as the host's tree ----------- */

constexpr int RUN =
    8; /* parts whose subtree is added at once: all of its loads are under way together */
/* Levels of runs: for a node, for a thousand ranks, and for INT_MAX parts. */
constexpr int FEW = 1, MANY = 7, ALL = 28;

template <typename T> struct parts {
  const T *base;
  int64_t stride;
  int count;
};

template <int W> DEVICE pack<float, W> plus(const pack<float, W> &a, const pack<float, W> &b)
{
  pack<float, W> sum;
#pragma unroll
  for (int k = 0; k < W; k++)
    sum.at[k] = a.at[k] + b.at[k];
  return sum;
}

/* The subtree over parts [first, first + N), N a power of 2. */
template <int N, typename T, int W>
DEVICE pack<float, W> add_run(const parts<T> &p, int first, int64_t at)
{
  if constexpr (N > 1) {
    const pack<float, W> left = add_run<N / 2, T, W>(p, first, at),
                         right = add_run<N / 2, T, W>(p, first + N / 2, at);
    return plus(left, right);
  } else {
    const pack<T, W> part = load_once<T, W>(p.base + first * p.stride + at);
    pack<float, W> wide;
#pragma unroll
    for (int k = 0; k < W; k++)
      wide.at[k] = to_float(part.at[k]);
    return wide;
  }
}

/* A binary counter of complete subtrees, starting with subtrees of RUN parts. The rest at the end
 * is joined from the right. Fewer than RUN << LEVELS parts. */
template <typename T, int W, int LEVELS>
__global__ void add_parts(int64_t n, const parts<T> p, bool accumulate, float *dst)
{
  const int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (at >= n)
    return;
  const int runs = p.count / RUN;
  pack<float, W> tree[LEVELS] = {}, sum = {};
  for (int i = 0; i < runs; i++) {
    sum = add_run<RUN, T, W>(p, i * RUN, at);
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
      const int below = (1 << level) - 1, all = 2 * below + 1;
      if ((i & all) == below) /* the levels below have carried */
        tree[level] = sum;
      else if ((i & all) == all)
        sum = plus(tree[level], sum);
    }
  }
  int rest = p.count;
  bool any = false;
  const auto join = [&](const pack<float, W> &left) {
    sum = any ? plus(left, sum) : left;
    any = true;
  };
  if (p.count & 1)
    join(add_run<1, T, W>(p, rest -= 1, at));
  if (p.count & 2)
    join(add_run<2, T, W>(p, rest -= 2, at));
  if (p.count & 4)
    join(add_run<4, T, W>(p, rest -= 4, at));
#pragma unroll
  for (int level = 0; level < LEVELS; level++)
    if (runs >> level & 1)
      join(tree[level]);
  store<float, W>(dst + at, accumulate ? plus(load<float, W>(dst + at), sum) : sum);
}

/* Subtrees of all levels are kept in registers, which have room for those of 4 elements. */
template <typename T, int W>
void run_parts(const gpu_launch *launch, int64_t n, const parts<T> &p, bool accumulate, float *dst)
{
  constexpr int FEWER = W < 4 ? W : 4;
  if (p.count < RUN << FEW)
    for_items(launch, n / W, add_parts<T, W, FEW>, n, p, accumulate, dst);
  else if (p.count < RUN << MANY)
    for_items(launch, n / W, add_parts<T, W, MANY>, n, p, accumulate, dst);
  else
    for_items(launch, n / FEWER, add_parts<T, FEWER, ALL>, n, p, accumulate, dst);
}

/* --- exact sums: base/exactsum.h's digits, which integer additions fill in any order to the
 * same bits ----------------------------------------------- */

struct accumulator {
  unsigned long long digit[EXACTSUM_DIGITS], special[3];
};

struct term {
  int digit;         /* the lowest of three */
  long long part[3]; /* with the sign */
};

/* False for zero, which adds nothing, and for a value that is not finite, which is counted. */
__device__ bool term_of(accumulator *a, double x, term *out)
{
  const unsigned long long bits = (unsigned long long)__double_as_longlong(x);
  const int exponent = (int)(bits >> 52 & 0x7ff);
  unsigned long long mantissa = bits & ((1ull << 52) - 1);
  if (exponent == 0x7ff) {
    atomicAdd(&a->special[mantissa ? 0 : bits >> 63 ? 2 : 1], 1ull);
    return false;
  }
  if (exponent > 0)
    mantissa |= 1ull << 52;
  const int place = exponent > 0 ? exponent - 1 : 0, shift = place & 31;
  const unsigned long long low = mantissa << shift;
  const long long sign = bits >> 63 ? -1 : 1;
  out->digit = place >> 5;
  out->part[0] = sign * (long long)(low & 0xffffffff);
  out->part[1] = sign * (long long)(low >> 32);
  out->part[2] = sign * (long long)(shift ? mantissa >> (64 - shift) : 0);
  return mantissa != 0;
}

__device__ void add_parts_of(accumulator *a, const term &t)
{
  for (int k = 0; k < 3; k++)
    if (t.part[k])
      atomicAdd(&a->digit[t.digit + k], (unsigned long long)t.part[k]);
}

/* One term per thread, in whole warps. Terms mostly have the same exponent. So a warp first adds up
 * terms that go to the same digits. */
__device__ void add_warp(accumulator *a, double x)
{
  term t = {0, {0, 0, 0}};
  bool waits = term_of(a, x, &t);
  for (unsigned left = __ballot_sync(ALL_LANES, waits); left;
       left = __ballot_sync(ALL_LANES, waits)) {
    const int leader = __ffs(left) - 1, digit = __shfl_sync(ALL_LANES, t.digit, leader);
    const bool now = waits && t.digit == digit;
    term sum = {digit, {0, 0, 0}};
    for (int k = 0; k < 3; k++)
      sum.part[k] = warp_sum(now ? t.part[k] : 0ll);
    if ((int)threadIdx.x % 32 == leader)
      add_parts_of(a, sum);
    waits = waits && !now;
  }
}

__device__ void clear(accumulator *a)
{
  unsigned long long *word = a->digit;
  for (int i = threadIdx.x; i < EXACTSUM_WORDS; i += blockDim.x)
    word[i] = 0;
  __syncthreads();
}

/* Digits of a block are below 2^32 times its terms, so no carries are needed before they are added
 * to the sum. */
__device__ void add_out(const accumulator *a, exactsum *sum)
{
  __syncthreads();
  const unsigned long long *word = a->digit;
  for (int i = threadIdx.x; i < EXACTSUM_WORDS; i += blockDim.x)
    if (word[i])
      atomicAdd((unsigned long long *)sum + i, word[i]);
}

__global__ void add_terms(int64_t n, const double *value, exactsum *sum)
{
  __shared__ accumulator mine;
  clear(&mine);
  for (int64_t first = (int64_t)blockIdx.x * THREADS; first < n;
       first += (int64_t)gridDim.x * THREADS)
    add_warp(&mine, first + threadIdx.x < n ? value[first + threadIdx.x] : 0);
  add_out(&mine, sum);
}

constexpr int BLOCK = 256; /* elements whose squares are one term */

/* Four threads square a block in the order of the host's kernels, in double: 16 interleaved sums,
 * of which a thread has four, over 16 rows; then a tree over the 16. The result of a block is one
 * term. The last block is filled with zeros, which change nothing. */
template <int W>
__global__ void __launch_bounds__(THREADS) square_blocks(int64_t n, const float *x, exactsum *sum)
{
  constexpr int TEAM = 4, LANES = 16, TEAMS = 32 / TEAM; /* teams of a warp */
  __shared__ accumulator mine;
  clear(&mine);
  const int64_t warps = (int64_t)gridDim.x * THREADS / 32;
  const int team = threadIdx.x % 32 / TEAM, member = threadIdx.x % TEAM;
  for (int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32 * TEAMS;
       first * BLOCK < n; first += warps * TEAMS) {
    double square[4] = {};
#pragma unroll 8
    for (int row = 0; row < BLOCK / LANES; row++) {
      const int64_t at = (first + team) * BLOCK + row * LANES + member * 4;
      pack<float, 4> v;
      if (W == 4 && at + 4 <= n)
        v = load<float, 4>(x + at);
      else
        for (int k = 0; k < 4; k++)
          v.at[k] = at + k < n ? x[at + k] : 0;
      for (int k = 0; k < 4; k++)
        square[k] += (double)v.at[k] * (double)v.at[k];
    }
    for (int half = TEAM / 2; half > 0; half /= 2)
      for (int k = 0; k < 4; k++)
        square[k] += __shfl_down_sync(ALL_LANES, square[k], half, TEAM);
    add_warp(&mine, member == 0 ? (square[0] + square[2]) + (square[1] + square[3]) : 0);
  }
  add_out(&mine, sum);
}

__device__ void copy_sum(exactsum *to, const exactsum *from)
{
  for (int i = threadIdx.x; i < EXACTSUM_WORDS; i += blockDim.x)
    ((long long *)to)[i] = ((const long long *)from)[i];
}

/* One block: adds *other (NULL: nothing), which is normalized, to *sum and normalizes it. All
 * threads load and store digits, one thread propagates carries. */
__global__ void carry(const exactsum *other, exactsum *sum)
{
  __shared__ exactsum mine;
  for (int i = threadIdx.x; i < EXACTSUM_WORDS; i += blockDim.x)
    ((long long *)&mine)[i] =
        ((const long long *)sum)[i] + (other ? ((const long long *)other)[i] : 0);
  __syncthreads();
  if (threadIdx.x == 0)
    exactsum_carry(mine.digit);
  __syncthreads();
  copy_sum(sum, &mine);
}

constexpr int SUM_THREADS = 96;

/* A warp's first thread for either sum. */
__global__ void end_step(const exactsum *loss, const exactsum *squares, double clip, outcome *out)
{
  __shared__ exactsum sum[2];
  __shared__ double value[2];
  copy_sum(&sum[0], loss);
  copy_sum(&sum[1], squares);
  __syncthreads();
  if (threadIdx.x % 32 == 0 && threadIdx.x < 64)
    value[threadIdx.x / 32] = exactsum_take_value(&sum[threadIdx.x / 32]);
  __syncthreads();
  if (threadIdx.x > 0)
    return;
  const double norm = sqrt(value[1]);
  out->loss_sum = value[0];
  out->grad_norm = norm;
  out->scale = clip > 0 && norm > clip ? clip / norm : 1;
  out->finite = isfinite(value[0]) && isfinite(norm);
}

/* A block per pair: a warp's first thread for either conversation. */
__global__ void prefer_pairs(preference op)
{
  __shared__ exactsum sum[2];
  __shared__ double value[2];
  const int64_t k = blockIdx.x;
  copy_sum(&sum[0], op.score + 2 * k);
  copy_sum(&sum[1], op.score + 2 * k + 1);
  __syncthreads();
  if (threadIdx.x % 32 == 0 && threadIdx.x < 64)
    value[threadIdx.x / 32] = exactsum_take_value(&sum[threadIdx.x / 32]);
  __syncthreads();
  const double margin = preference_margin(op.beta, value, op.reference + 2 * k);
  const float weight = (float)(op.beta / (1 + exp(margin)));
  for (int64_t t = threadIdx.x; t < 2 * op.T; t += blockDim.x)
    op.weight[2 * k * op.T + t] = t < op.T ? weight : -weight;
  if (threadIdx.x > 0)
    return;
  op.margin[k] = margin;
  op.loss[k] = preference_loss(margin);
  op.won[k] = margin > 0;
}

} // namespace

void gpu_sum_parts(const gpu_launch *launch, int64_t n, int count, enum dtype type,
                   const void *base, int64_t stride, bool accumulate, void *dst)
{
  if (n == 0)
    return;
  with_dtype(type, [&](auto t) {
    using T = decltype(t);
    constexpr int W = 16 / (int)sizeof(T);
    const parts<T> p = {(const T *)base, stride, count};
    if ((uintptr_t)dst % 16 == 0 && rows_pack(W, sizeof(T), n, stride, {base}))
      run_parts<T, W>(launch, n, p, accumulate, (float *)dst);
    else
      run_parts<T, 1>(launch, n, p, accumulate, (float *)dst);
  });
}

void gpu_sum_exact(const gpu_launch *launch, int64_t n, const double *value, exactsum *sum)
{
  const unsigned grid = blocks_within(launch, pieces_of(n, THREADS), 2);
  if (n > 0)
    add_terms<<<grid, THREADS, 0, launch->stream>>>(n, value, sum);
  carry<<<1, SUM_THREADS, 0, launch->stream>>>(NULL, sum);
}

void gpu_sum_squares(const gpu_launch *launch, int64_t n, const void *from, exactsum *sum)
{
  const float *x = (const float *)from;
  const auto kernel = (uintptr_t)x % 16 == 0 ? square_blocks<4> : square_blocks<1>;
  const unsigned grid = blocks_within(launch, pieces_of(pieces_of(n, BLOCK), THREADS / 4), 8);
  if (n > 0)
    kernel<<<grid, THREADS, 0, launch->stream>>>(n, x, sum);
  carry<<<1, SUM_THREADS, 0, launch->stream>>>(NULL, sum);
}

void gpu_merge_exact(const gpu_launch *launch, const exactsum *other, exactsum *sum)
{
  carry<<<1, SUM_THREADS, 0, launch->stream>>>(other, sum);
}

void gpu_conclude(const gpu_launch *launch, const exactsum *loss, const exactsum *squares,
                  double clip, outcome *out)
{
  end_step<<<1, SUM_THREADS, 0, launch->stream>>>(loss, squares, clip, out);
}

void gpu_prefer(const gpu_launch *launch, const preference *op)
{
  if (op->pairs > 0)
    prefer_pairs<<<(unsigned)op->pairs, SUM_THREADS, 0, launch->stream>>>(*op);
}
