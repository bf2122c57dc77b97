/* Layer norm and root mean square norm, forward and backward, one pass over memory each: a row is held in registers by its threads.
 *
 * Backward: a block walks over a contiguous piece of the rows and sums the weight gradients of its columns in registers; a second kernel adds the pieces in their
 * order. The grid depends on the shape and the number of multiprocessors only, so the sums have one order. */
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int MOST_THREADS = 512, ROW_PACKS = 8; /* packs that a thread holds of a row */

struct shape {
  int threads, rows; /* of a block: blockDim is (threads, rows) */
};

/* Threads for C elements in packs of W: a power of two of warps, few enough that each has work. */
shape block_shape(int64_t C, int W)
{
  int threads = 32;
  while (threads < MOST_THREADS && (int64_t)threads * W * 2 <= C)
    threads *= 2;
  int rows = threads >= 128 ? 1 : 128 / threads;
  return {threads, rows};
}

template <typename T, int W, int P, bool RMS> __global__ void __launch_bounds__(MOST_THREADS) forward(const gpu_norm op)
{
  extern __shared__ float shared[];
  float *mine = shared + threadIdx.y * 32;
  const int64_t piece = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, pieces = op.rows * op.groups;
  const bool there = piece < pieces;
  const int64_t row = there ? piece / op.groups : 0, group = there ? piece % op.groups : 0, at = row * op.x_stride + group * op.C;
  const T *x = (const T *)op.x + at, *add = op.add ? (const T *)op.add + at : nullptr;
  float v[P][W];
  float sum = 0;
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
    const bool inside = there && c < op.C;
    pack<T, W> a;
    if (inside)
      a = load<T, W>(x + c);
    if (inside && add) {
      const pack<T, W> b = load_once<T, W>(add + c);
      for (int i = 0; i < W; i++)
        a.at[i] = from_float<T>(to_float(a.at[i]) + to_float(b.at[i]));
      store<T, W>((T *)op.sum + at + c, a);
    }
    for (int i = 0; i < W; i++) {
      v[p][i] = inside ? to_float(a.at[i]) : 0;
      sum += v[p][i];
    }
  }
  const float mean = RMS ? 0 : row_sum(sum, mine) / (float)op.C;
  float squares = 0;
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
    for (int i = 0; i < W; i++) {
      const float d = there && c < op.C ? v[p][i] - mean : 0;
      squares += d * d;
    }
  }
  const float rstd = rsqrtf(row_sum(squares, mine) / (float)op.C + op.eps);
  if (!there)
    return;
  if (threadIdx.x == 0) {
    op.rstd[piece] = rstd;
    if (!RMS)
      op.mean[piece] = mean;
  }
  T *y = (T *)op.y + row * op.y_stride + group * op.C;
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
    if (c >= op.C)
      break;
    const pack<T, W> gamma = load<T, W>((const T *)op.gamma + c);
    pack<T, W> out, beta;
    if (!RMS)
      beta = load<T, W>((const T *)op.beta + c);
    for (int i = 0; i < W; i++) {
      const float hat = (v[p][i] - mean) * rstd;
      out.at[i] = from_float<T>(RMS ? hat * to_float(gamma.at[i]) : hat * to_float(gamma.at[i]) + to_float(beta.at[i]));
    }
    store<T, W>(y + c, out);
  }
}

template <typename T, int W, bool RMS> void launch_forward(const gpu_launch *launch, const gpu_norm *op)
{
  const shape s = block_shape(op->C, W);
  const dim3 block(s.threads, s.rows);
  const unsigned grid = (unsigned)pieces_of(op->rows * op->groups, s.rows);
  const size_t bytes = (size_t)s.rows * 32 * sizeof(float);
  const int64_t packs = pieces_of(op->C, (int64_t)s.threads * W);
  if (packs <= 1)
    forward<T, W, 1, RMS><<<grid, block, bytes, launch->stream>>>(*op);
  else if (packs <= 2)
    forward<T, W, 2, RMS><<<grid, block, bytes, launch->stream>>>(*op);
  else if (packs <= 4)
    forward<T, W, 4, RMS><<<grid, block, bytes, launch->stream>>>(*op);
  else
    forward<T, W, ROW_PACKS * 8 / W, RMS><<<grid, block, bytes, launch->stream>>>(*op);
}

template <typename T, int W> void choose_forward(const gpu_launch *launch, const gpu_norm *op)
{
  if (op->mean)
    launch_forward<T, W, false>(launch, op);
  else
    launch_forward<T, W, true>(launch, op);
}

/* --- backward -------------------------------------------------------------------------------------------------------------------------------- */

int backward_blocks(int multiprocessors, int64_t pieces, int rows)
{
  const int64_t most = 2 * (int64_t)multiprocessors, all = pieces_of(pieces, rows);
  return (int)(all < most ? all : most);
}

/* dx = rstd (g - mean(g) - hat mean(g hat)), g = dy gamma; without mean(g) for the root mean square. */
template <typename T, int W, int P, bool RMS> __global__ void __launch_bounds__(MOST_THREADS) backward(const gpu_norm_backward op, int64_t pieces_each)
{
  extern __shared__ float shared[];
  float *mine = shared + threadIdx.y * 32;
  const int64_t pieces = op.rows * op.groups, begin = (int64_t)blockIdx.x * pieces_each;
  const int64_t end = begin + pieces_each < pieces ? begin + pieces_each : pieces;
  float dgamma[P][W], dbeta[P][W], gamma[P][W];
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
    pack<T, W> g;
    if (c < op.C)
      g = load<T, W>((const T *)op.gamma + c);
    for (int i = 0; i < W; i++) {
      dgamma[p][i] = dbeta[p][i] = 0;
      gamma[p][i] = c < op.C ? to_float(g.at[i]) : 0;
    }
  }
  for (int64_t first = begin; first < end; first += blockDim.y) {
    const int64_t piece = first + threadIdx.y;
    const bool there = piece < end;
    const int64_t row = there ? piece / op.groups : 0, group = there ? piece % op.groups : 0;
    const T *x = (const T *)op.x + row * op.x_stride + group * op.C, *dy = (const T *)op.dy + row * op.dy_stride + group * op.C;
    T *dx = (T *)op.dx + row * op.dx_stride + group * op.C;
    const float rstd = there ? op.rstd[piece] : 0, mean = there && !RMS ? op.mean[piece] : 0;
    float hat[P][W], g[P][W], sum = 0, dot = 0;
    for (int p = 0; p < P; p++) {
      const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
      const bool inside = there && c < op.C;
      pack<T, W> a, b;
      if (inside) {
        a = load_once<T, W>(x + c);
        b = load<T, W>(dy + c);
      }
      for (int i = 0; i < W; i++) {
        const float d = inside ? to_float(b.at[i]) : 0;
        hat[p][i] = inside ? (to_float(a.at[i]) - mean) * rstd : 0;
        g[p][i] = d * gamma[p][i];
        dgamma[p][i] += d * hat[p][i];
        dbeta[p][i] += d;
        sum += g[p][i];
        dot += g[p][i] * hat[p][i];
      }
    }
    const float mean_g = RMS ? 0 : row_sum(sum, mine) / (float)op.C, mean_dot = row_sum(dot, mine) / (float)op.C;
    for (int p = 0; p < P; p++) {
      const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
      if (!there || c >= op.C)
        break;
      pack<T, W> out;
      if (op.dx_accumulate)
        out = load<T, W>(dx + c);
      for (int i = 0; i < W; i++) {
        const float d = rstd * (g[p][i] - mean_g - hat[p][i] * mean_dot);
        out.at[i] = from_float<T>(op.dx_accumulate ? to_float(out.at[i]) + d : d);
      }
      store<T, W>(dx + c, out);
    }
  }
  if (!op.dgamma && !op.dbeta)
    return;
  /* The rows of the block, one after the other, then out as this block's piece: work[2][gridDim.x][C]. */
  float *columns = shared + blockDim.y * 32;
  for (int what = 0; what < (RMS ? 1 : 2); what++) {
    for (int y = 0; y < (int)blockDim.y; y++) {
      __syncthreads();
      for (int p = 0; p < P && (int)threadIdx.y == y; p++) {
        const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
        for (int i = 0; i < W && c < op.C; i++) {
          const float value = what ? dbeta[p][i] : dgamma[p][i];
          columns[c + i] = y ? columns[c + i] + value : value;
        }
      }
    }
    __syncthreads();
    float *out = op.work + ((int64_t)what * gridDim.x + blockIdx.x) * op.C;
    for (int64_t c = threadIdx.y * blockDim.x + threadIdx.x; c < op.C; c += (int64_t)blockDim.x * blockDim.y)
      out[c] = columns[c];
  }
}

__global__ void add_pieces(const float *work, int pieces, int64_t C, bool accumulate, float *to)
{
  const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= C)
    return;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < pieces; i++)
    sum += work[i * C + c];
  to[c] = accumulate ? to[c] + sum : sum;
}

template <typename T, int W, int P, bool RMS> void run_backward(const gpu_launch *launch, const gpu_norm_backward *op, shape s, int blocks)
{
  const dim3 block(s.threads, s.rows);
  const int64_t pieces = op->rows * op->groups, each = pieces_of(pieces, blocks);
  const size_t bytes = ((size_t)s.rows * 32 + (size_t)op->C) * sizeof(float);
  if (bytes > 48 * 1024)
    cudaFuncSetAttribute(backward<T, W, P, RMS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  backward<T, W, P, RMS><<<blocks, block, bytes, launch->stream>>>(*op, each);
}

template <typename T, int W, bool RMS> void launch_backward(const gpu_launch *launch, const gpu_norm_backward *op)
{
  const shape s = block_shape(op->C, W);
  const int blocks = backward_blocks(launch->multiprocessors, op->rows * op->groups, s.rows);
  const int64_t packs = pieces_of(op->C, (int64_t)s.threads * W);
  if (packs <= 1)
    run_backward<T, W, 1, RMS>(launch, op, s, blocks);
  else if (packs <= 2)
    run_backward<T, W, 2, RMS>(launch, op, s, blocks);
  else
    run_backward<T, W, ROW_PACKS * 8 / W, RMS>(launch, op, s, blocks);
  const unsigned grid = (unsigned)pieces_of(op->C, 128);
  if (op->dgamma)
    add_pieces<<<grid, 128, 0, launch->stream>>>(op->work, blocks, op->C, op->accumulate, op->dgamma);
  if (op->dbeta)
    add_pieces<<<grid, 128, 0, launch->stream>>>(op->work + (int64_t)blocks * op->C, blocks, op->C, op->accumulate, op->dbeta);
}

template <typename T, int W> void choose_backward(const gpu_launch *launch, const gpu_norm_backward *op)
{
  if (op->mean)
    launch_backward<T, W, false>(launch, op);
  else
    launch_backward<T, W, true>(launch, op);
}

} // namespace

size_t gpu_norm_workspace(int multiprocessors, int64_t rows, int64_t groups, int64_t C)
{
  return 2 * (size_t)backward_blocks(multiprocessors, rows * groups, 1) * (size_t)C * sizeof(float);
}

void gpu_norm_forward(const gpu_launch *launch, const gpu_norm *op)
{
  if (op->rows == 0)
    return;
  const int64_t strides = op->x_stride | op->y_stride;
  const uintptr_t more = (uintptr_t)op->gamma | (uintptr_t)op->beta;
  if (launch->bf16) {
    if (rows_pack(8, 2, op->C, strides, op->x, op->y, op->add, op->sum) && more % 16 == 0)
      choose_forward<bf16, 8>(launch, op);
    else
      choose_forward<bf16, 1>(launch, op);
  } else if (rows_pack(4, 4, op->C, strides, op->x, op->y, op->add, op->sum) && more % 16 == 0) {
    choose_forward<float, 4>(launch, op);
  } else {
    choose_forward<float, 1>(launch, op);
  }
}

void gpu_norm_gradient(const gpu_launch *launch, const gpu_norm_backward *op)
{
  if (op->rows == 0)
    return;
  const int64_t strides = op->x_stride | op->dy_stride | op->dx_stride;
  if (launch->bf16) {
    if (rows_pack(8, 2, op->C, strides, op->x, op->dy, op->dx, op->gamma))
      choose_backward<bf16, 8>(launch, op);
    else
      choose_backward<bf16, 1>(launch, op);
  } else if (rows_pack(4, 4, op->C, strides, op->x, op->dy, op->dx, op->gamma)) {
    choose_backward<float, 4>(launch, op);
  } else {
    choose_backward<float, 1>(launch, op);
  }
}
