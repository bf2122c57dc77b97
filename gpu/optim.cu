/* What follows the backward pass: sums of gradients over ranks, exact sums for loss and norm, AdamW. */
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256;

/* --- sums over parts: adjacent pairs first, as the host's tree ------------------------------------------------------------------------------------ */

constexpr int DEPTH = 32;

struct parts {
  const float *base, *own;
  int64_t stride;
  int count, self;
};

__device__ __forceinline__ float4 part_at(const parts &p, int i, int64_t at)
{
  const float *from = p.own && i == p.self ? p.own : p.base + i * p.stride;
  return *reinterpret_cast<const float4 *>(from + at);
}

__device__ __forceinline__ float4 plus(float4 a, float4 b)
{
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* A binary counter of subtrees: after part i the sums of complete subtrees lie on the stack; what is left at the end is joined from the right. */
__global__ void add_parts(int64_t packs, const parts p, bool accumulate, float *dst)
{
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= packs)
    return;
  const int64_t at = i * 4;
  float4 stack[DEPTH];
  int height = 0;
  for (int k = 0; k < p.count; k++) {
    float4 sum = part_at(p, k, at);
    for (int bits = k; bits & 1; bits >>= 1)
      sum = plus(stack[--height], sum);
    stack[height++] = sum;
  }
  float4 sum = stack[--height];
  while (height > 0)
    sum = plus(stack[--height], sum);
  float4 *to = reinterpret_cast<float4 *>(dst + at);
  *to = accumulate ? plus(*to, sum) : sum;
}

/* --- exact sums: base/exactsum.h's digits, which integer additions fill in any order to the same bits ----------------------------------------------- */

__device__ void add_digits(unsigned long long *digit, unsigned long long *special, double x)
{
  const unsigned long long bits = (unsigned long long)__double_as_longlong(x);
  const int exponent = (int)(bits >> 52 & 0x7ff);
  unsigned long long mantissa = bits & ((1ull << 52) - 1);
  if (bits << 1 == 0)
    return;
  if (exponent == 0x7ff) {
    atomicAdd(&special[mantissa ? 0 : bits >> 63 ? 2 : 1], 1ull);
    return;
  }
  if (exponent > 0)
    mantissa |= 1ull << 52;
  const int place = exponent > 0 ? exponent - 1 : 0, shift = place & 31;
  const unsigned long long low = mantissa << shift, high = shift ? mantissa >> (64 - shift) : 0;
  const unsigned long long part[3] = {low & 0xffffffff, low >> 32, high};
  const bool negative = bits >> 63;
  for (int k = 0; k < 3; k++)
    if (part[k])
      atomicAdd(&digit[(place >> 5) + k], negative ? 0ull - part[k] : part[k]);
}

struct accumulator {
  unsigned long long digit[EXACTSUM_DIGITS], special[3];
};

__device__ void clear(accumulator *a)
{
  unsigned long long *word = a->digit;
  for (int i = threadIdx.x; i < EXACTSUM_WORDS; i += blockDim.x)
    word[i] = 0;
  __syncthreads();
}

/* Digits of a block are below 2^32 times its terms: they go out without carries. */
__device__ void add_out(accumulator *a, exactsum *sum)
{
  __syncthreads();
  const unsigned long long *word = a->digit;
  for (int i = threadIdx.x; i < EXACTSUM_WORDS; i += blockDim.x)
    if (word[i])
      atomicAdd((unsigned long long *)sum + i, word[i]);
}

__global__ void add_terms(int64_t n, const double *term, exactsum *sum)
{
  __shared__ accumulator mine;
  clear(&mine);
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
    add_digits(mine.digit, mine.special, term[i]);
  add_out(&mine, sum);
}

/* A warp squares a block of 256 elements, in double and in a fixed order; its sum is one term. */
__global__ void square_blocks(int64_t blocks, int64_t n, const float *x, exactsum *sum)
{
  __shared__ accumulator mine;
  clear(&mine);
  const int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
  const int lane = threadIdx.x % 32;
  for (int64_t b = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; b < blocks; b += warps) {
    double square = 0;
    for (int64_t i = b * 256 + lane; i < b * 256 + 256 && i < n; i += 32)
      square += (double)x[i] * (double)x[i];
    square = warp_sum(square);
    if (lane == 0)
      add_digits(mine.digit, mine.special, square);
  }
  add_out(&mine, sum);
}

/* --- AdamW -------------------------------------------------------------------------------------------------------------------------------------- */

struct scalars {
  float shrink, rest1, beta2, rest2, root2, eps, step, grad_scale;
};

template <typename T, int W>
__global__ void update(int64_t n, const scalars k, const double *scale, const int64_t *finite, float *master, const float *grad, float *m, float *v, T *copy)
{
  if (finite && !*finite)
    return;
  const float factor = scale ? (float)*scale : k.grad_scale;
  const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (i >= n)
    return;
  pack<float, W> p = load_once<float, W>(master + i), g = load_once<float, W>(grad + i), m1 = load_once<float, W>(m + i),
                 m2 = load_once<float, W>(v + i);
  pack<T, W> out;
  for (int j = 0; j < W; j++) {
    const float d = g.at[j] * factor;
    m1.at[j] += k.rest1 * (d - m1.at[j]);
    m2.at[j] = k.beta2 * m2.at[j] + k.rest2 * d * d;
    p.at[j] = k.shrink * p.at[j] - k.step * m1.at[j] / (sqrtf(m2.at[j]) / k.root2 + k.eps);
    out.at[j] = from_float<T>(p.at[j]);
  }
  store<float, W>(master + i, p);
  store<float, W>(m + i, m1);
  store<float, W>(v + i, m2);
  if (copy)
    store<T, W>(copy + i, out);
}

template <typename T, int W>
void launch_update(const gpu_launch *launch, int64_t n, const scalars *k, const double *scale, const int64_t *finite, float *master, const float *grad,
                   float *m, float *v, void *copy)
{
  const unsigned grid = (unsigned)pieces_of(n / W, THREADS);
  update<T, W><<<grid, THREADS, 0, launch->stream>>>(n, *k, scale, finite, master, grad, m, v, (T *)copy);
}

} // namespace

void gpu_sum_parts(const gpu_launch *launch, int64_t n, int count, const float *base, int64_t stride, int self, const float *own, bool accumulate, float *dst)
{
  if (n == 0)
    return;
  const parts p = {base, own, stride, count, self};
  add_parts<<<(unsigned)pieces_of(n / 4, THREADS), THREADS, 0, launch->stream>>>(n / 4, p, accumulate, dst);
}

void gpu_add_exact(const gpu_launch *launch, int64_t n, const double *term, exactsum *sum)
{
  if (n == 0)
    return;
  const int64_t blocks = pieces_of(n, THREADS), most = launch->multiprocessors;
  add_terms<<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, launch->stream>>>(n, term, sum);
}

void gpu_sum_squares(const gpu_launch *launch, int64_t n, const float *x, exactsum *sum)
{
  if (n == 0)
    return;
  const int64_t blocks = pieces_of(n, 256), grid = pieces_of(blocks, THREADS / 32), most = 4 * (int64_t)launch->multiprocessors;
  square_blocks<<<(unsigned)(grid < most ? grid : most), THREADS, 0, launch->stream>>>(blocks, n, x, sum);
}

void gpu_adamw(const gpu_launch *launch, int64_t n, const adamw *op, const double *scale, const int64_t *finite, float *master, const float *grad, float *m,
               float *v, void *copy)
{
  if (n == 0)
    return;
  const scalars k = {.shrink = (float)(1 - op->lr * op->decay),
                     .rest1 = (float)(1 - op->beta1),
                     .beta2 = (float)op->beta2,
                     .rest2 = (float)(1 - op->beta2),
                     .root2 = (float)sqrt(op->bias2),
                     .eps = (float)op->eps,
                     .step = (float)(op->lr / op->bias1),
                     .grad_scale = op->grad_scale};
  const bool wide = n % 4 == 0 && ((uintptr_t)master | (uintptr_t)grad | (uintptr_t)m | (uintptr_t)v) % 16 == 0 && (uintptr_t)copy % (launch->bf16 ? 8 : 16) == 0;
  if (launch->bf16) {
    if (wide)
      launch_update<bf16, 4>(launch, n, &k, scale, finite, master, grad, m, v, copy);
    else
      launch_update<bf16, 1>(launch, n, &k, scale, finite, master, grad, m, v, copy);
  } else if (wide) {
    launch_update<float, 4>(launch, n, &k, scale, finite, master, grad, m, v, copy);
  } else {
    launch_update<float, 1>(launch, n, &k, scale, finite, master, grad, m, v, copy);
  }
}
