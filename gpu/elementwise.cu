/* Element by element: activations and their gradients, sums, casts, rotary positions, bias gradients. */
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256;

unsigned grid_of(int64_t items)
{
  return (unsigned)pieces_of(items, THREADS);
}

/* tanh form of GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415) */
__device__ __forceinline__ float gelu(float x)
{
  const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanhf(u));
}

__device__ __forceinline__ float gelu_slope(float x)
{
  const float square = x * x, t = tanhf(0.7978845608028654f * (x + 0.044715f * x * square));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * square);
}

struct forward_gelu {
  __device__ float operator()(float pre, float) const { return gelu(pre); }
};
struct backward_gelu {
  __device__ float operator()(float pre, float d) const { return d * gelu_slope(pre); }
};
struct sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

template <typename T, int W, typename F> __global__ void apply(int64_t n, const T *a, const T *b, T *out, F f)
{
  const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (i >= n)
    return;
  const pack<T, W> x = load<T, W>(a + i), y = load<T, W>(b + i);
  pack<T, W> z;
  for (int k = 0; k < W; k++)
    z.at[k] = from_float<T>(f(to_float(x.at[k]), to_float(y.at[k])));
  store<T, W>(out + i, z);
}

template <typename T, int W, typename F> void run(const gpu_launch *launch, int64_t n, const void *a, const void *b, void *out, F f)
{
  apply<T, W, F><<<grid_of(n / W), THREADS, 0, launch->stream>>>(n, (const T *)a, (const T *)b, (T *)out, f);
}

template <typename F> void choose(const gpu_launch *launch, int64_t n, const void *a, const void *b, void *out, F f)
{
  if (n == 0)
    return;
  if (launch->bf16) {
    if (rows_pack(8, 2, n, n, a, b, out, NULL))
      run<bf16, 8>(launch, n, a, b, out, f);
    else
      run<bf16, 1>(launch, n, a, b, out, f);
  } else if (rows_pack(4, 4, n, n, a, b, out, NULL)) {
    run<float, 4>(launch, n, a, b, out, f);
  } else {
    run<float, 1>(launch, n, a, b, out, f);
  }
}

/* --- SwiGLU ----------------------------------------------------------------------------------------------------------------------------------- */

template <typename T, int W> __global__ void swiglu(int64_t rows, int64_t F, const T *gu, T *y)
{
  const int64_t packs = F / W, item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= rows * packs)
    return;
  const int64_t row = item / packs, f = item % packs * W;
  const pack<T, W> g = load<T, W>(gu + row * 2 * F + f), u = load<T, W>(gu + row * 2 * F + F + f);
  pack<T, W> out;
  for (int k = 0; k < W; k++) {
    const float x = to_float(g.at[k]);
    out.at[k] = from_float<T>(x / (1.0f + __expf(-x)) * to_float(u.at[k]));
  }
  store<T, W>(y + row * F + f, out);
}

template <typename T, int W> __global__ void swiglu_backward(int64_t rows, int64_t F, const T *gu, const T *dy, T *dgu, T *y)
{
  const int64_t packs = F / W, item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= rows * packs)
    return;
  const int64_t row = item / packs, f = item % packs * W;
  const pack<T, W> g = load_once<T, W>(gu + row * 2 * F + f), u = load_once<T, W>(gu + row * 2 * F + F + f), d = load<T, W>(dy + row * F + f);
  pack<T, W> dg, du, out;
  for (int k = 0; k < W; k++) {
    const float x = to_float(g.at[k]), up = to_float(u.at[k]), dout = to_float(d.at[k]);
    const float s = 1.0f / (1.0f + __expf(-x));
    dg.at[k] = from_float<T>(dout * up * s * (1.0f + x * (1.0f - s)));
    du.at[k] = from_float<T>(dout * x * s);
    out.at[k] = from_float<T>(x * s * up);
  }
  store<T, W>(dgu + row * 2 * F + f, dg);
  store<T, W>(dgu + row * 2 * F + F + f, du);
  if (y)
    store<T, W>(y + row * F + f, out);
}

/* --- rotary positions: a block turns one token's heads; the angles are computed once --------------------------------------------------------------- */

constexpr int MOST_HALF = 512;
struct frequencies {
  float at[MOST_HALF];
};

template <typename T> __global__ void turn(const rope op, const __grid_constant__ frequencies inv_freq)
{
  __shared__ float cosine[MOST_HALF], sine[MOST_HALF];
  const int half = (int)(op.D / 2);
  const int64_t row = blockIdx.x, position = op.past + row % op.T;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const float angle = __fmul_rn((float)position, inv_freq.at[i]);
    cosine[i] = cosf(angle);
    sine[i] = op.inverse ? -sinf(angle) : sinf(angle);
  }
  __syncthreads();
  T *x = (T *)op.x + row * op.stride;
  for (int item = threadIdx.x; item < (int)op.heads * half; item += blockDim.x) {
    const int head = item / half, i = item % half;
    T *a = x + (int64_t)head * op.D + i, *b = a + half;
    const float p = to_float(*a), q = to_float(*b);
    *a = from_float<T>(p * cosine[i] - q * sine[i]);
    *b = from_float<T>(q * cosine[i] + p * sine[i]);
  }
}

/* --- columns' sums ------------------------------------------------------------------------------------------------------------------------------- */

int bias_pieces(int multiprocessors, int64_t rows, int64_t n)
{
  const int64_t columns = pieces_of(n, 32), most = pieces_of(4 * (int64_t)multiprocessors, columns);
  const int64_t pieces = pieces_of(rows, 64);
  return (int)(pieces < most ? pieces : most);
}

/* Block (32, 8): 32 columns, a piece of the rows; work[piece][n] */
template <typename T> __global__ void sum_columns(int64_t rows, int64_t n, int64_t ld, int64_t rows_each, const T *d, float *work)
{
  __shared__ float part[8][33];
  const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x, begin = blockIdx.y * rows_each;
  const int64_t end = begin + rows_each < rows ? begin + rows_each : rows;
  float sum = 0;
  if (column < n)
    for (int64_t r = begin + threadIdx.y; r < end; r += 8)
      sum += to_float(d[r * ld + column]);
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= n)
    return;
  for (int y = 1; y < 8; y++)
    sum += part[y][threadIdx.x];
  work[blockIdx.y * n + column] = sum;
}

__global__ void add_columns(int64_t n, int pieces, const float *work, bool accumulate, float *db)
{
  const int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= n)
    return;
  float sum = 0;
  for (int p = 0; p < pieces; p++)
    sum += work[p * n + column];
  db[column] = accumulate ? db[column] + sum : sum;
}

template <typename T> __global__ void add_bias(int64_t rows, int64_t n, int64_t ld, const T *bias, T *c)
{
  const int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= rows * n)
    return;
  T *at = c + item / n * ld + item % n;
  *at = from_float<T>(to_float(*at) + to_float(bias[item % n]));
}

__global__ void cast(int64_t n, const float *from, bf16 *to)
{
  const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
  for (int64_t k = i; k < i + 4 && k < n; k++)
    to[k] = from_float<bf16>(from[k]);
}

} // namespace

void gpu_gelu(const gpu_launch *launch, int64_t n, const void *pre, void *y)
{
  choose(launch, n, pre, pre, y, forward_gelu());
}

void gpu_gelu_backward(const gpu_launch *launch, int64_t n, const void *pre, void *d)
{
  choose(launch, n, pre, d, d, backward_gelu());
}

void gpu_add(const gpu_launch *launch, int64_t n, const void *a, const void *b, void *out)
{
  choose(launch, n, a, b, out, sum());
}

void gpu_swiglu(const gpu_launch *launch, int64_t rows, int64_t F, const void *gu, void *y)
{
  if (rows * F == 0)
    return;
  if (launch->bf16) {
    if (rows_pack(8, 2, F, F, gu, y, NULL, NULL))
      swiglu<bf16, 8><<<grid_of(rows * F / 8), THREADS, 0, launch->stream>>>(rows, F, (const bf16 *)gu, (bf16 *)y);
    else
      swiglu<bf16, 1><<<grid_of(rows * F), THREADS, 0, launch->stream>>>(rows, F, (const bf16 *)gu, (bf16 *)y);
  } else if (rows_pack(4, 4, F, F, gu, y, NULL, NULL)) {
    swiglu<float, 4><<<grid_of(rows * F / 4), THREADS, 0, launch->stream>>>(rows, F, (const float *)gu, (float *)y);
  } else {
    swiglu<float, 1><<<grid_of(rows * F), THREADS, 0, launch->stream>>>(rows, F, (const float *)gu, (float *)y);
  }
}

void gpu_swiglu_backward(const gpu_launch *launch, int64_t rows, int64_t F, const void *gu, const void *dy, void *dgu, void *y)
{
  if (rows * F == 0)
    return;
  if (launch->bf16) {
    if (rows_pack(8, 2, F, F, gu, dy, dgu, y))
      swiglu_backward<bf16, 8>
          <<<grid_of(rows * F / 8), THREADS, 0, launch->stream>>>(rows, F, (const bf16 *)gu, (const bf16 *)dy, (bf16 *)dgu, (bf16 *)y);
    else
      swiglu_backward<bf16, 1>
          <<<grid_of(rows * F), THREADS, 0, launch->stream>>>(rows, F, (const bf16 *)gu, (const bf16 *)dy, (bf16 *)dgu, (bf16 *)y);
  } else if (rows_pack(4, 4, F, F, gu, dy, dgu, y)) {
    swiglu_backward<float, 4>
        <<<grid_of(rows * F / 4), THREADS, 0, launch->stream>>>(rows, F, (const float *)gu, (const float *)dy, (float *)dgu, (float *)y);
  } else {
    swiglu_backward<float, 1>
        <<<grid_of(rows * F), THREADS, 0, launch->stream>>>(rows, F, (const float *)gu, (const float *)dy, (float *)dgu, (float *)y);
  }
}

void gpu_rope(const gpu_launch *launch, const rope *op)
{
  if (op->rows == 0)
    return;
  frequencies inv_freq;
  for (int64_t i = 0; i < op->D / 2; i++)
    inv_freq.at[i] = op->inv_freq[i];
  const int64_t items = op->heads * op->D / 2;
  const unsigned threads = items < 64 ? 32 : items < 256 ? 64 : items < 1024 ? 128 : 256;
  if (launch->bf16)
    turn<bf16><<<(unsigned)op->rows, threads, 0, launch->stream>>>(*op, inv_freq);
  else
    turn<float><<<(unsigned)op->rows, threads, 0, launch->stream>>>(*op, inv_freq);
}

size_t gpu_bias_workspace(int multiprocessors, int64_t rows, int64_t n)
{
  return (size_t)bias_pieces(multiprocessors, rows, n) * (size_t)n * sizeof(float);
}

void gpu_bias_gradient(const gpu_launch *launch, int64_t rows, int64_t n, int64_t ld, const void *d, bool accumulate, float *db, float *work)
{
  if (rows == 0 || n == 0)
    return;
  const int pieces = bias_pieces(launch->multiprocessors, rows, n);
  const int64_t each = pieces_of(rows, pieces);
  const dim3 block(32, 8), grid((unsigned)pieces_of(n, 32), (unsigned)pieces);
  if (launch->bf16)
    sum_columns<bf16><<<grid, block, 0, launch->stream>>>(rows, n, ld, each, (const bf16 *)d, work);
  else
    sum_columns<float><<<grid, block, 0, launch->stream>>>(rows, n, ld, each, (const float *)d, work);
  add_columns<<<(unsigned)pieces_of(n, 128), 128, 0, launch->stream>>>(n, pieces, work, accumulate, db);
}

void gpu_add_bias(const gpu_launch *launch, int64_t rows, int64_t n, int64_t ld, const void *bias, void *c)
{
  if (rows * n == 0)
    return;
  if (launch->bf16)
    add_bias<bf16><<<grid_of(rows * n), THREADS, 0, launch->stream>>>(rows, n, ld, (const bf16 *)bias, (bf16 *)c);
  else
    add_bias<float><<<grid_of(rows * n), THREADS, 0, launch->stream>>>(rows, n, ld, (const float *)bias, (float *)c);
}

void gpu_cast(const gpu_launch *launch, int64_t n, const float *from, void *to)
{
  if (n == 0)
    return;
  if (launch->bf16)
    cast<<<grid_of(pieces_of(n, 4)), THREADS, 0, launch->stream>>>(n, from, (bf16 *)to);
  else
    cudaMemcpyAsync(to, from, (size_t)n * sizeof(float), cudaMemcpyDeviceToDevice, launch->stream);
}
