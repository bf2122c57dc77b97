/* Element by element: activations and their gradients, sums, casts, rotary positions, bias
 * gradients. A thread reads all that it needs before it writes, so outputs may lie on inputs. */
#include "gpu/fp8_block.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256, EACH = 2; /* packs a thread, so that enough reads are under way */

/* Number u of a thread's packs; packs of a block are adjacent. */
DEVICE int64_t item_of(int u)
{
  return ((int64_t)blockIdx.x * EACH + u) * THREADS + threadIdx.x;
}

/* The logistic function of 2 * sqrt(2 / pi) * (x + 0.044715 x^3). */
DEVICE float gelu_gate(float x)
{
  return __fdividef(1.0f, 1.0f + __expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
}

/* tanh form of GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415), of which (1 + tanh(u)) / 2 is the
 * logistic function of 2 u */
DEVICE float gelu(float x)
{
  return x * gelu_gate(x);
}

DEVICE float gelu_slope(float x)
{
  const float s = gelu_gate(x);
  return s + x * s * (1.0f - s) * 1.5957691216057308f * (1.0f + 3.0f * 0.044715f * x * x);
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) add(int64_t n, const T *a, const T *b, T *out)
{
  pack<T, W> x[EACH], y[EACH];
  for (int u = 0; u < EACH; u++) {
    const int64_t i = item_of(u) * W;
    if (i < n) {
      x[u] = load<T, W>(a + i);
      y[u] = load<T, W>(b + i);
    }
  }
  for (int u = 0; u < EACH; u++) {
    const int64_t i = item_of(u) * W;
    if (i >= n)
      break;
    for (int k = 0; k < W; k++)
      x[u].at[k] = from_float<T>(to_float(x[u].at[k]) + to_float(y[u].at[k]));
    store<T, W>(out + i, x[u]);
  }
}

/* --- epilogues that the library does not fuse into a product ------------- */

/* For BIAS_GELU without a bias aux has it already. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    finish(int64_t rows, int64_t n, int64_t ld, enum epilogue epilogue, const T *bias, T *aux, T *c)
{
  const bool gelu_follows = epilogue == EPILOGUE_BIAS_GELU;
  int64_t at[EACH], column[EACH];
  pack<T, W> product[EACH], other[EACH];
  for (int e = 0; e < EACH; e++) {
    int64_t row;
    split(item_of(e), n / W, &row, &column[e]);
    column[e] *= W;
    at[e] = row < rows ? row * ld + column[e] : -1;
    if (at[e] < 0)
      continue;
    product[e] = gelu_follows ? load<T, W>(aux + at[e]) : load<T, W>(c + at[e]);
    if (epilogue == EPILOGUE_DGELU)
      other[e] = load<T, W>(aux + at[e]);
    else if (bias)
      other[e] = load<T, W>(bias + column[e]);
  }
  for (int e = 0; e < EACH; e++) {
    if (at[e] < 0)
      break;
    float v[W];
    for (int k = 0; k < W; k++)
      v[k] = to_float(product[e].at[k]);
    for (int k = 0; k < W && epilogue == EPILOGUE_DGELU; k++)
      v[k] *= gelu_slope(to_float(other[e].at[k]));
    for (int k = 0; k < W && epilogue != EPILOGUE_DGELU && bias; k++)
      v[k] += to_float(other[e].at[k]);
    if (gelu_follows) {
      const pack<T, W> pre = rounded<T, W>(v);
      if (bias)
        store<T, W>(aux + at[e], pre);
      for (int k = 0; k < W; k++)
        v[k] = gelu(to_float(pre.at[k]));
    }
    store<T, W>(c + at[e], rounded<T, W>(v));
  }
}

/* --- SwiGLU -------------------------------------------------------------- */

/* CODED: y is `code` and `scale`. A tile is 16 packs of a row, which 16 threads have. */
template <typename T, int W, bool CODED>
__global__ void __launch_bounds__(THREADS) swiglu(int64_t rows, int64_t F, const T *gu, T *y,
                                                  uint8_t *code, float *scale, fp8_tally *tally)
{
  seen_tiles seen;
  int64_t row[EACH], f[EACH];
  pack<T, W> g[EACH], u[EACH];
  for (int e = 0; e < EACH; e++) {
    split(item_of(e), F / W, &row[e], &f[e]);
    f[e] *= W;
    if (row[e] < rows) {
      g[e] = load<T, W>(gu + row[e] * 2 * F + f[e]);
      u[e] = load<T, W>(gu + row[e] * 2 * F + F + f[e]);
    }
  }
  for (int e = 0; e < EACH; e++) {
    if (row[e] >= rows)
      break;
    for (int k = 0; k < W; k++) {
      const float x = to_float(g[e].at[k]);
      g[e].at[k] = from_float<T>(__fdividef(x, 1.0f + __expf(-x)) * to_float(u[e].at[k]));
    }
    if constexpr (CODED)
      code_tile(g[e], code + row[e] * F + f[e], scale + f[e] / FP8_TILE * rows + row[e], &seen);
    else
      store<T, W>(y + row[e] * F + f[e], g[e]);
  }
  if constexpr (CODED)
    tally_block(seen, tally);
}

struct slopes {
  float g, u, y; /* gradients by g and by u, and the activation */
};

DEVICE slopes swiglu_slopes(float g, float u, float dy)
{
  const float s = __fdividef(1.0f, 1.0f + __expf(-g));
  return {dy * u * s * (1.0f + g * (1.0f - s)), dy * g * s, g * s * u};
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    swiglu_backward(int64_t rows, int64_t F, const T *gu, const T *dy, T *dgu, T *y)
{
  int64_t row, f;
  split((int64_t)blockIdx.x * THREADS + threadIdx.x, F / W, &row, &f);
  f *= W;
  if (row >= rows)
    return;
  const pack<T, W> g = load_once<T, W>(gu + row * 2 * F + f),
                   u = load_once<T, W>(gu + row * 2 * F + F + f), d = load<T, W>(dy + row * F + f);
  pack<T, W> dg, du, out;
  for (int k = 0; k < W; k++) {
    const slopes to = swiglu_slopes(to_float(g.at[k]), to_float(u.at[k]), to_float(d.at[k]));
    dg.at[k] = from_float<T>(to.g);
    du.at[k] = from_float<T>(to.u);
    out.at[k] = from_float<T>(to.y);
  }
  store<T, W>(dgu + row * 2 * F + f, dg);
  store<T, W>(dgu + row * 2 * F + F + f, du);
  if (y)
    store<T, W>(y + row * F + f, out);
}

/* The gradient by g (half 0) or u. */
template <bool TURNED>
DEVICE void code_slopes(const fp8_swiglu &op, const fp8_block::elements &x, int half, int64_t row,
                        int64_t f, seen_tiles *seen)
{
  const int64_t column = half * op.F + f, k = op.apart ? op.F : 2 * op.F;
  uint8_t *const code = op.code + (op.apart ? half * op.rows * op.F + f : column) + row * k;
  fp8_block::code_tiles<false>(x, k, code, op.scale + column / FP8_TILE * op.rows + row, seen);
  if constexpr (TURNED) {
    const int64_t tile = row / FP8_TILE, at = op.turned_apart
                                                  ? (half * (op.rows / FP8_TILE) + tile) * op.F + f
                                                  : tile * 2 * op.F + column;
    fp8_block::code_tiles<true>(x, op.rows, op.turned + column * op.rows + row,
                                op.turned_scale + at, seen);
  }
}

/* A block of threads makes 128 x 128 elements of the gradients by g and by u, and of the output. */
template <bool TURNED>
__global__ void __launch_bounds__(fp8_block::THREADS)
    swiglu_backward_coded(const fp8_swiglu op, fp8_tally *tally)
{
  constexpr int N = fp8_block::EACH, ROWS = fp8_block::ROWS;
  const fp8_block::place p = fp8_block::my_place();
  const int64_t row = (int64_t)blockIdx.y * FP8_TILE, local = (int64_t)blockIdx.x * FP8_TILE,
                f = op.first + local;
  const bf16 *gu = (const bf16 *)op.gu + (row + p.g * ROWS) * 2 * op.F + f + p.c * N,
             *dy = (const bf16 *)op.dy + (row + p.g * ROWS) * op.count + local + p.c * N;
  fp8_block::elements dg, du, y;
#pragma unroll
  for (int r = 0; r < ROWS; r++, gu += 2 * op.F, dy += op.count) {
    const pack<bf16, N> g = load<bf16, N>(gu), u = load<bf16, N>(gu + op.F), d = load<bf16, N>(dy);
    float by_g[N], by_u[N], out[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
      const slopes to = swiglu_slopes(to_float(g.at[i]), to_float(u.at[i]), to_float(d.at[i]));
      by_g[i] = to.g;
      by_u[i] = to.u;
      out[i] = to.y;
    }
    dg[r] = rounded<bf16, N>(by_g);
    du[r] = rounded<bf16, N>(by_u);
    y[r] = rounded<bf16, N>(out);
  }
  seen_tiles seen;
  if (op.y_turned)
    fp8_block::code_block<true>(y, op.rows, f, row, NULL, op.y_turned, op.y_turned_scale);
  code_slopes<TURNED>(op, dg, 0, row, f, &seen);
  code_slopes<TURNED>(op, du, 1, row, f, &seen);
  tally_block(seen, tally);
}

/* --- rotary positions: a block turns one token's heads; the angles are computed once --- */

constexpr int MOST_HALF = 512;
struct frequencies {
  float at[MOST_HALF];
};

template <typename T, int W>
__global__ void turn(const rope op, const __grid_constant__ frequencies inv_freq)
{
  __shared__ alignas(16) float cosine[MOST_HALF], sine[MOST_HALF];
  const int half = (int)(op.D / 2), packs = half / W;
  const int64_t row = blockIdx.x, position = op.position ? op.position[row] : op.past + row % op.T;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const float angle = __fmul_rn((float)position, inv_freq.at[i]);
    cosine[i] = cosf(angle);
    sine[i] = op.inverse ? -sinf(angle) : sinf(angle);
  }
  __syncthreads();
  T *x = (T *)op.x + row * op.stride;
  for (int item = threadIdx.x; item < (int)op.heads * packs; item += blockDim.x) {
    const int head = item / packs, i = item % packs * W;
    T *a = x + (int64_t)head * op.D + i, *b = a + half;
    pack<T, W> first = load<T, W>(a), second = load<T, W>(b);
    const pack<float, W> c = load<float, W>(cosine + i), s = load<float, W>(sine + i);
    for (int k = 0; k < W; k++) {
      const float p = to_float(first.at[k]), q = to_float(second.at[k]);
      first.at[k] = from_float<T>(p * c.at[k] - q * s.at[k]);
      second.at[k] = from_float<T>(q * c.at[k] + p * s.at[k]);
    }
    store<T, W>(a, first);
    store<T, W>(b, second);
  }
}

/* --- columns' sums ------------------------------------------------------- */

/* Rows of threads of a block; rows that a thread reads at a time; blocks of a multiprocessor */
constexpr int SUM_ROWS = 16, SUM_EACH = 8, SUM_LEAST = 4, SUM_BLOCKS = 2;

/* All blocks run at the same time, with equal work. A piece has n sums. There is one piece, or
 * there are at most 2 * multiprocessors * 32 * W / n. So sums take n floats, or at most 2 KiB per
 * multiprocessor. */
int bias_pieces(int multiprocessors, int64_t rows, int64_t n, int W)
{
  const int64_t most = SUM_BLOCKS * (int64_t)multiprocessors / pieces_of(n, 32 * W),
                pieces = pieces_of(rows, SUM_ROWS * SUM_LEAST);
  return (int)(pieces < most ? pieces : most > 0 ? most : 1);
}

/* Rows SUM_ROWS apart, N at a time as long as there are so many. */
template <typename T, int W, int N>
DEVICE void add_rows(int64_t ld, const T **from, int64_t *left, float *sum)
{
  for (; *left > SUM_ROWS * (N - 1); *left -= SUM_ROWS * N) {
    pack<T, W> x[N];
    for (int e = 0; e < N; e++, *from += SUM_ROWS * ld)
      x[e] = load<T, W>(*from);
    for (int e = 0; e < N; e++)
      for (int k = 0; k < W; k++)
        sum[k] += to_float(x[e].at[k]);
  }
}

/* Block (32, SUM_ROWS): 32 W columns, a piece of the rows; work[piece][n] */
template <typename T, int W>
__global__ void __launch_bounds__(32 * SUM_ROWS, SUM_BLOCKS)
    sum_columns(int64_t rows, int64_t n, int64_t ld, int64_t rows_each, const T *d, float *work)
{
  __shared__ float part[SUM_ROWS][32 * W];
  const int64_t column = ((int64_t)blockIdx.x * 32 + threadIdx.x) * W,
                begin = blockIdx.y * rows_each;
  const int64_t end = column >= n ? begin : begin + rows_each < rows ? begin + rows_each : rows;
  float sum[W] = {0};
  const T *from = d + (begin + threadIdx.y) * ld + column;
  int64_t left = end - begin - threadIdx.y; /* rows below */
  add_rows<T, W, SUM_EACH>(ld, &from, &left, sum);
  add_rows<T, W, SUM_LEAST>(ld, &from, &left, sum);
  add_rows<T, W, 1>(ld, &from, &left, sum);
  for (int k = 0; k < W; k++)
    part[threadIdx.y][threadIdx.x * W + k] = sum[k];
  __syncthreads();
  for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * W && (int64_t)blockIdx.x * 32 * W + i < n;
       i += 32 * SUM_ROWS) {
    float total = part[0][i];
    for (int y = 1; y < SUM_ROWS; y++)
      total += part[y][i];
    work[blockIdx.y * n + (int64_t)blockIdx.x * 32 * W + i] = total;
  }
}

/* --- casts --------------------------------------------------------------- */

constexpr int CAST = 4; /* packs of 4 elements a thread: 16 bytes of fp32, so that a warp reads and
                           writes whole lines at a time */

template <typename From, typename To, int W>
__global__ void __launch_bounds__(THREADS) cast(int64_t n, const From *from, To *to)
{
  const int64_t first = ((int64_t)blockIdx.x * CAST * THREADS + threadIdx.x) * W;
  pack<From, W> x[CAST];
  for (int u = 0; u < CAST; u++)
    if (first + u * THREADS * W + W <= n)
      x[u] = load_once<From, W>(from + first + u * THREADS * W);
  for (int u = 0; u < CAST; u++) {
    const int64_t i = first + u * THREADS * W;
    if (i + W <= n) {
      float v[W];
      for (int k = 0; k < W; k++)
        v[k] = to_float(x[u].at[k]);
      store<To, W>(to + i, rounded<To, W>(v));
    } else {
      for (int64_t k = i; k < n; k++)
        to[k] = from_float<To>(to_float(from[k]));
    }
  }
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) subtract(int64_t n, const T *from, float *x)
{
  const int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
  if (first + W <= n) {
    const pack<T, W> less = load_once<T, W>(from + first);
    pack<float, W> v = load<float, W>(x + first);
    for (int k = 0; k < W; k++)
      v.at[k] -= to_float(less.at[k]);
    store<float, W>(x + first, v);
  } else {
    for (int64_t k = first; k < n; k++)
      x[k] -= to_float(from[k]);
  }
}

template <typename From, typename To>
void run_cast(const gpu_launch *launch, int64_t n, const void *from, void *to)
{
  if (((uintptr_t)from | (uintptr_t)to) % 16 == 0)
    for_items(launch, pieces_of(n, 4 * CAST), cast<From, To, 4>, n, from, to);
  else
    for_items(launch, pieces_of(n, CAST), cast<From, To, 1>, n, from, to);
}

} // namespace

void gpu_add(const gpu_launch *launch, int64_t n, const void *a, const void *b, void *out)
{
  with_packs(launch, n, n, {a, b, out}, [&]<typename T, int W>(packs<T, W>) {
    for_items(launch, pieces_of(n, W * EACH), add<T, W>, n, a, b, out);
  });
}

void gpu_finish(const gpu_launch *launch, int64_t rows, int64_t n, int64_t ld,
                enum epilogue epilogue, const void *bias, void *aux, void *c)
{
  if (epilogue != EPILOGUE_NONE)
    with_packs(launch, n, ld, {bias, aux, c}, [&]<typename T, int W>(packs<T, W>) {
      for_items(launch, pieces_of(rows * (n / W), EACH), finish<T, W>, rows, n, ld, epilogue, bias,
                aux, c);
    });
}

void gpu_swiglu(const gpu_launch *launch, int64_t rows, int64_t F, const void *gu, void *y)
{
  with_packs(launch, F, F, {gu, y}, [&]<typename T, int W>(packs<T, W>) {
    for_items(launch, pieces_of(rows * (F / W), EACH), swiglu<T, W, false>, rows, F, gu, y, nullptr,
              nullptr, nullptr);
  });
}

void gpu_swiglu_coded(const gpu_launch *launch, int64_t rows, int64_t F, const void *gu,
                      uint8_t *code, float *scale)
{
  for_items(launch, pieces_of(rows * (F / TILE_EACH), EACH), swiglu<bf16, TILE_EACH, true>, rows, F,
            gu, nullptr, code, scale, launch->tally);
}

void gpu_swiglu_backward(const gpu_launch *launch, int64_t rows, int64_t F, const void *gu,
                         const void *dy, void *dgu, void *y)
{
  with_packs(launch, F, F, {gu, dy, dgu, y}, [&]<typename T, int W>(packs<T, W>) {
    for_items(launch, rows * (F / W), swiglu_backward<T, W>, rows, F, gu, dy, dgu, y);
  });
}

void gpu_swiglu_backward_coded(const gpu_launch *launch, const fp8_swiglu *op)
{
  const dim3 grid((unsigned)(op->count / FP8_TILE), (unsigned)(op->rows / FP8_TILE));
  if (grid.x == 0 || grid.y == 0)
    return;
  with_bool(op->turned, [&](auto turned) {
    swiglu_backward_coded<turned.value>
        <<<grid, fp8_block::THREADS, 0, launch->stream>>>(*op, launch->tally);
  });
}

void gpu_rope(const gpu_launch *launch, const rope *op)
{
  if (op->rows == 0 || op->heads == 0)
    return;
  frequencies inv_freq;
  for (int64_t i = 0; i < op->D / 2; i++)
    inv_freq.at[i] = op->inv_freq[i];
  with_packs(launch, op->D / 2, op->stride, {op->x}, [&]<typename T, int W>(packs<T, W>) {
    const int64_t threads = pieces_of(op->heads * (op->D / 2 / W), 32) * 32;
    turn<T, W>
        <<<(unsigned)op->rows, (unsigned)(threads < 256 ? threads : 256), 0, launch->stream>>>(
            *op, inv_freq);
  });
}

/* The columns are summed in passes, so that the lane's workspace suffices for any number of
 * them. */
void gpu_bias_gradient(const gpu_launch *launch, int64_t rows, int64_t n, int64_t, int64_t ld,
                       const void *d, bool accumulate, void *db)
{
  const int64_t most = (int64_t)(launch->bytes / sizeof(float)), size = launch->bf16 ? 2 : 4;
  float *work = (float *)launch->work;
  for (int64_t first = 0; first < n && rows > 0; first += most) {
    const int64_t columns = n - first < most ? n - first : most;
    const void *from = (const char *)d + first * size;
    with_packs(launch, columns, ld, {from}, [&]<typename T, int W>(packs<T, W>) {
      const int64_t pieces = bias_pieces(launch->multiprocessors, rows, columns, W),
                    least = SUM_ROWS * SUM_LEAST,
                    each = pieces_of(pieces_of(rows, pieces), least) * least;
      const dim3 block(32, SUM_ROWS),
          grid((unsigned)pieces_of(columns, 32 * W), (unsigned)pieces_of(rows, each));
      sum_columns<T, W>
          <<<grid, block, 0, launch->stream>>>(rows, columns, ld, each, (const T *)from, work);
      sum_pieces(launch, columns, 1, (int)grid.y, work, accumulate, (float *)db + first, nullptr);
    });
  }
}

void gpu_cast(const gpu_launch *launch, int64_t n, enum dtype from, const void *src, enum dtype to,
              void *dst)
{
  const auto with_narrow = [](enum dtype type, const auto &run) {
    type == DTYPE_BF16 ? run(bf16()) : run(__half());
  };
  if (to == DTYPE_F32)
    with_narrow(from, [&]<typename T>(T) { run_cast<T, float>(launch, n, src, dst); });
  else
    with_narrow(to, [&]<typename T>(T) { run_cast<float, T>(launch, n, src, dst); });
}

void gpu_subtract(const gpu_launch *launch, int64_t n, enum dtype type, const void *from, float *x)
{
  const bool wide = ((uintptr_t)from | (uintptr_t)x) % 16 == 0;
  with_dtype(type, [&]<typename T>(T) {
    for_items(launch, wide ? pieces_of(n, 4) : n, wide ? subtract<T, 4> : subtract<T, 1>, n, from,
              x);
  });
}
