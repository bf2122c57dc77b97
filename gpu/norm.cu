/* Layer norm and root mean square norm, forward and backward, one pass over memory each: a row is held in registers by its threads.
 *
 * Backward: blocks take rows in turns, read the next ones while they work on these, and sum the weight gradients of their columns in registers; a second kernel adds
 * what the blocks found. The grid depends on the shape and the number of multiprocessors only, so the sums have one order. */
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int MOST_THREADS = 512, FORWARD_THREADS = 256, MOST_C = 32768;

/* Packs that a thread holds of the longest rows. */
template <int W> constexpr int MOST_PACKS = MOST_C / MOST_THREADS / W;

struct shape {
  int packs, threads, rows; /* a thread's part of a row; blockDim is (threads, rows) */
};

/* As few packs a thread as a row of at most MOST_THREADS threads allows, as few threads as those packs need, and as many short rows as fill `block` threads. */
template <int W> shape block_shape(int64_t C, int block)
{
  const int64_t all = pieces_of(C, W);
  int packs = 1;
  while (packs * MOST_THREADS < all)
    packs = packs < 4 ? packs * 2 : MOST_PACKS<W>;
  const int threads = (int)pieces_of(pieces_of(all, packs), 32) * 32;
  return {packs, threads, packs == 1 && threads < block ? block / threads : 1};
}

template <typename T, int W, int P, bool RMS> __global__ void __launch_bounds__(MOST_THREADS) forward(const gpu_norm op)
{
  __shared__ float sums[MOST_THREADS / 32];
  float *mine = sums + threadIdx.y * (blockDim.x / 32);
  const int64_t piece = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
  const bool there = piece < op.rows * op.groups;
  int64_t row = 0, group = 0;
  split(there ? piece : 0, op.groups, &row, &group);
  const int64_t at = row * op.x_stride + group * op.C;
  const T *x = (const T *)op.x + at, *add = op.add ? (const T *)op.add + at : nullptr;
  pack<T, W> a[P], b[P];
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
    if (there && c < op.C) {
      a[p] = load<T, W>(x + c);
      if (add)
        b[p] = load_once<T, W>(add + c);
    }
  }
  float v[P][W], sum = 0;
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
    const bool inside = there && c < op.C;
    if (inside && add) {
      for (int i = 0; i < W; i++)
        a[p].at[i] = from_float<T>(to_float(a[p].at[i]) + to_float(b[p].at[i]));
      store<T, W>((T *)op.sum + at + c, a[p]);
    }
    for (int i = 0; i < W; i++) {
      v[p][i] = inside ? to_float(a[p].at[i]) : 0;
      sum += v[p][i];
    }
  }
  const float mean = RMS ? 0 : row_sum(sum, mine) / (float)op.C;
  float squares = 0;
#pragma unroll
  for (int p = 0; p < P; p++) {
    const bool inside = there && ((int64_t)p * blockDim.x + threadIdx.x) * W < op.C;
    for (int i = 0; i < W; i++) {
      const float d = inside ? v[p][i] - mean : 0;
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
#pragma unroll
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
  const shape s = block_shape<W>(op->C, FORWARD_THREADS);
  const dim3 block(s.threads, s.rows);
  const unsigned grid = (unsigned)pieces_of(op->rows * op->groups, s.rows);
  if (s.packs == 1)
    forward<T, W, 1, RMS><<<grid, block, 0, launch->stream>>>(*op);
  else if (s.packs == 2)
    forward<T, W, 2, RMS><<<grid, block, 0, launch->stream>>>(*op);
  else if (s.packs == 4)
    forward<T, W, 4, RMS><<<grid, block, 0, launch->stream>>>(*op);
  else
    forward<T, W, MOST_PACKS<W>, RMS><<<grid, block, 0, launch->stream>>>(*op);
}

template <typename T, int W> void choose_forward(const gpu_launch *launch, const gpu_norm *op)
{
  if (op->mean)
    launch_forward<T, W, false>(launch, op);
  else
    launch_forward<T, W, true>(launch, op);
}

/* --- backward -------------------------------------------------------------------------------------------------------------------------------- */

/* Blocks that a multiprocessor holds at a time: P packs cost about 40 P registers. */
constexpr int blocks_each(int P)
{
  return P == 1 ? 2 : 1;
}

int backward_blocks(int multiprocessors, int64_t pieces, int rows, int packs)
{
  const int64_t most = blocks_each(packs) * (int64_t)multiprocessors, all = pieces_of(pieces, rows);
  return (int)(all < most ? all : most);
}

/* One piece of a row, as its thread holds it. */
template <typename T, int W, int P> struct operands {
  pack<T, W> x[P], dy[P];
  float mean, rstd;
};

struct spot {
  int64_t row, group;
  bool there;
};

__device__ __forceinline__ spot spot_of(const gpu_norm_backward &op, int64_t piece)
{
  spot s;
  s.there = piece < op.rows * op.groups;
  split(s.there ? piece : 0, op.groups, &s.row, &s.group);
  return s;
}

template <typename T, int W, int P, bool RMS>
__device__ __forceinline__ void fetch(const gpu_norm_backward &op, int64_t piece, operands<T, W, P> *out)
{
  const spot s = spot_of(op, piece);
  if (!s.there)
    return;
  const T *x = (const T *)op.x + s.row * op.x_stride + s.group * op.C, *dy = (const T *)op.dy + s.row * op.dy_stride + s.group * op.C;
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
    if (c < op.C) {
      out->x[p] = load_once<T, W>(x + c);
      out->dy[p] = load<T, W>(dy + c);
    }
  }
  out->rstd = op.rstd[piece];
  out->mean = RMS ? 0 : op.mean[piece];
}

/* dx = rstd (g - mean(g) - hat mean(g hat)), g = dy gamma; without mean(g) for the root mean square. */
template <typename T, int W, int P, bool RMS> __global__ void __launch_bounds__(MOST_THREADS, blocks_each(P)) backward(const gpu_norm_backward op)
{
  extern __shared__ float columns[]; /* [rows][C] where a block has several rows */
  __shared__ float2 sums[MOST_THREADS / 32];
  float2 *mine = sums + threadIdx.y * (blockDim.x / 32);
  const int64_t pieces = op.rows * op.groups, step = (int64_t)gridDim.x * blockDim.y;
  float dgamma[P][W], dbeta[P][W];
  pack<T, W> gamma[P];
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
    if (c < op.C)
      gamma[p] = load<T, W>((const T *)op.gamma + c);
    for (int i = 0; i < W; i++)
      dgamma[p][i] = dbeta[p][i] = 0;
  }
  operands<T, W, P> now, next;
  int64_t first = (int64_t)blockIdx.x * blockDim.y;
  fetch<T, W, P, RMS>(op, first + threadIdx.y, &now);
  for (; first < pieces; first += step, now = next) { /* all threads of a block together: the sums wait for each other */
    const spot s = spot_of(op, first + threadIdx.y);
    T *dx = (T *)op.dx + s.row * op.dx_stride + s.group * op.C;
    fetch<T, W, P, RMS>(op, first + step + threadIdx.y, &next);
    pack<T, W> out[P];
    float2 sum = make_float2(0, 0); /* of g, and of g hat */
#pragma unroll
    for (int p = 0; p < P; p++) {
      const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
      if (!s.there || c >= op.C)
        break;
      if (op.dx_accumulate)
        out[p] = load<T, W>(dx + c);
      for (int i = 0; i < W; i++) {
        const float d = to_float(now.dy[p].at[i]), hat = (to_float(now.x[p].at[i]) - now.mean) * now.rstd, g = d * to_float(gamma[p].at[i]);
        dgamma[p][i] += d * hat;
        dbeta[p][i] += d;
        sum.x += g;
        sum.y += g * hat;
      }
    }
    sum = row_sum(sum, mine);
    const float mean_g = RMS ? 0 : sum.x / (float)op.C, mean_dot = sum.y / (float)op.C;
#pragma unroll
    for (int p = 0; p < P; p++) {
      const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
      if (!s.there || c >= op.C)
        break;
      for (int i = 0; i < W; i++) {
        const float hat = (to_float(now.x[p].at[i]) - now.mean) * now.rstd, g = to_float(now.dy[p].at[i]) * to_float(gamma[p].at[i]);
        const float d = now.rstd * (g - mean_g - hat * mean_dot);
        out[p].at[i] = from_float<T>(op.dx_accumulate ? to_float(out[p].at[i]) + d : d);
      }
      store<T, W>(dx + c, out[p]);
    }
  }
  if (!op.dgamma && !op.dbeta)
    return;
    /* The rows of the block, one after the other, are this block's piece: work[2][gridDim.x][C]. */
#pragma unroll
  for (int what = 0; what < (RMS ? 1 : 2); what++) {
    float *out = op.work + ((int64_t)what * gridDim.x + blockIdx.x) * op.C, *to = blockDim.y > 1 ? columns + threadIdx.y * op.C : out;
    __syncthreads(); /* what lies in the columns has been read */
#pragma unroll
    for (int p = 0; p < P; p++) {
      const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
      for (int i = 0; i < W && c < op.C; i++)
        to[c + i] = what ? dbeta[p][i] : dgamma[p][i];
    }
    if (blockDim.y == 1)
      continue;
    __syncthreads();
    for (int64_t c = threadIdx.y * blockDim.x + threadIdx.x; c < op.C; c += (int64_t)blockDim.x * blockDim.y) {
      float sum = columns[c];
      for (int y = 1; y < (int)blockDim.y; y++)
        sum += columns[y * op.C + c];
      out[c] = sum;
    }
  }
}

template <typename T, int W, bool RMS> void launch_backward(const gpu_launch *launch, const gpu_norm_backward *op)
{
  const shape s = block_shape<W>(op->C, MOST_THREADS);
  const int blocks = backward_blocks(launch->multiprocessors, op->rows * op->groups, s.rows, s.packs);
  const dim3 block(s.threads, s.rows);
  /* Several rows a block are rows of one pack a thread: at most MOST_THREADS * W columns in all, 16 KiB. */
  const size_t bytes = s.rows > 1 ? (size_t)s.rows * (size_t)op->C * sizeof(float) : 0;
  if (s.packs == 1)
    backward<T, W, 1, RMS><<<blocks, block, bytes, launch->stream>>>(*op);
  else if (s.packs == 2)
    backward<T, W, 2, RMS><<<blocks, block, bytes, launch->stream>>>(*op);
  else if (s.packs == 4)
    backward<T, W, 4, RMS><<<blocks, block, bytes, launch->stream>>>(*op);
  else
    backward<T, W, MOST_PACKS<W>, RMS><<<blocks, block, bytes, launch->stream>>>(*op);
  if (op->dgamma || op->dbeta)
    add_pieces<PIECE_ROWS><<<pieces_grid(op->C, RMS ? 1 : 2), dim3(32, PIECE_ROWS), 0, launch->stream>>>(op->C, blocks, op->work, op->accumulate,
                                                                                                         op->dgamma, op->dbeta);
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
  return 2 * (size_t)backward_blocks(multiprocessors, rows * groups, 1, 1) * (size_t)C * sizeof(float);
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
