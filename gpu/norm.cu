/* Layer norm and root mean square norm, forward and backward, one pass over memory each. The limit
 * is the number of bytes in flight. So a row belongs to as few threads as can hold it, mostly to
 * one warp, whose sums need no barrier.
 *
 * Forward: a row is read into registers, all of it at once. Backward: teams of warps take rows in
 * turn. Each thread copies its part of the next rows into its own shared memory, and sums the
 * weight gradients of its columns in registers. A second kernel adds the results of the blocks. The
 * grid depends on the shape and the GPU only, so the sums have one order. */
#include <cuda_pipeline.h>

#include "device/cuda_work.h"
#include "gpu/fp8.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int MOST_THREADS = 512, MOST_C = 32768;

/* Packs that a thread holds of the longest rows. */
template <int W> constexpr int MOST_PACKS = MOST_C / MOST_THREADS / W;

struct shape {
  int packs, threads, rows; /* a thread's part of a row; blockDim is (threads, rows) */
};

/* Threads for a row of at most 32 packs: several such rows share a warp. */
int lanes_of(int64_t all)
{
  int lanes = 8;
  while (lanes < all)
    lanes *= 2;
  return lanes;
}

int warps_of(int64_t threads)
{
  return (int)pieces_of(threads, 32) * 32;
}

template <typename T> DEVICE T row_lanes_sum(T x, int packs)
{
  return packs == 1 ? lanes_sum(x, blockDim.x < 32 ? (int)blockDim.x : 32) : warp_sum(x);
}

/* Sum over the values that the warps of a row have left. */
template <typename T> DEVICE T add_warps(const T *shared)
{
  T sum = shared[0];
  for (int w = 1; w < (int)blockDim.x / 32; w++)
    sum = sum + shared[w];
  return sum;
}

/* --- forward ------------------------------------------------------------- */

constexpr int FORWARD_THREADS = 128; /* of a block of short rows */

/* A row of more than one warp has a block of its own. */
template <int P> DEVICE float row_sum(float x, float *shared)
{
  x = row_lanes_sum(x, P);
  if (blockDim.x <= 32)
    return x;
  __syncthreads(); /* the last sum has been read */
  if (threadIdx.x % 32 == 0)
    shared[threadIdx.x / 32] = x;
  __syncthreads();
  return add_warps(shared);
}

/* Keeps bf16 as it was read. The compiler would convert it early and need twice the registers.
 */
template <typename T, int W, int P> DEVICE void keep_packed(pack<T, W> *x)
{
  if constexpr (sizeof(T) == 2 && W == 8)
#pragma unroll
    for (int p = 0; p < P; p++)
      for (int i = 0; i < 4; i++)
        asm volatile("" : "+r"(reinterpret_cast<int *>(&x[p])[i]));
}

/* Blocks of a multiprocessor that registers must leave room for. 0: any. */
template <int P, bool RMS, bool ADD, bool CODED>
constexpr int FEWEST = (P == 16 && RMS && CODED && !ADD) ? 4 : 0;

/* A thread's packs of a row: elements first + p * step, as long as they are below C. */
struct strip {
  int first, step, C;
};

struct statistics {
  float mean, rstd;
};

/* The row at element `at`, or its sum with op.add, which is stored too. */
template <typename T, int W, int P, bool ADD>
DEVICE void load_row(const row_norm &op, int64_t at, const strip &s, pack<T, W> (&a)[P])
{
  pack<T, W> b[P];
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int c = s.first + p * s.step;
    if (c < s.C) {
      a[p] = load_once<T, W>((const T *)op.x + at + c);
      if constexpr (ADD)
        b[p] = load_once<T, W>((const T *)op.add + at + c);
    }
  }
#pragma unroll
  for (int p = 0; ADD && p < P; p++) {
    const int c = s.first + p * s.step;
    if (c >= s.C)
      break;
    float v[W];
    for (int i = 0; i < W; i++)
      v[i] = to_float(a[p].at[i]) + to_float(b[p].at[i]);
    a[p] = rounded<T, W>(v);
    store<T, W>((T *)op.sum + at + c, a[p]);
  }
}

/* The sum of f(x) over the row. */
template <typename T, int W, int P, typename F>
DEVICE float sum_row(pack<T, W> (&a)[P], const strip &s, float *shared, const F &f)
{
  float sum = 0;
  keep_packed<T, W, P>(a);
#pragma unroll
  for (int p = 0; p < P; p++) {
    if (s.first + p * s.step >= s.C)
      break;
    for (int i = 0; i < W; i++)
      sum += f(to_float(a[p].at[i]));
  }
  return row_sum<P>(sum, shared);
}

/* The mean (0 for the root mean square), and one over the deviation. */
template <bool RMS, typename T, int W, int P>
DEVICE statistics row_moments(const row_norm &op, pack<T, W> (&a)[P], const strip &s, float *shared)
{
  float mean = 0, squares;
  if constexpr (RMS) {
    squares = sum_row(a, s, shared, [](float x) { return x * x; });
  } else {
    mean = sum_row(a, s, shared, [](float x) { return x; }) / (float)op.C;
    squares = sum_row(a, s, shared, [mean](float x) { return (x - mean) * (x - mean); });
  }
  return {mean, rsqrtf(squares / (float)op.C + op.eps)};
}

/* CODED: y is op.code and op.scale. A tile is 16 packs, which 16 neighbouring threads have. */
template <bool RMS, bool CODED, typename T, int W, int P>
DEVICE void store_row(const row_norm &op, pack<T, W> (&a)[P], const strip &s, statistics of,
                      int64_t row, T *y, seen_tiles *seen)
{
  keep_packed<T, W, P>(a);
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int c = s.first + p * s.step;
    if (c >= s.C)
      break;
    const pack<T, W> gamma = load<T, W>((const T *)op.gamma + c);
    pack<T, W> beta;
    if (!RMS)
      beta = load<T, W>((const T *)op.beta + c);
    float v[W];
    for (int i = 0; i < W; i++) {
      const float hat = (to_float(a[p].at[i]) - of.mean) * of.rstd;
      v[i] = RMS ? hat * to_float(gamma.at[i]) : hat * to_float(gamma.at[i]) + to_float(beta.at[i]);
    }
    if constexpr (CODED)
      code_tile(rounded<T, W>(v), op.code + row * op.C + c, op.scale + c / FP8_TILE * op.rows + row,
                seen);
    else
      store<T, W>(y + c, rounded<T, W>(v));
  }
}

template <typename T, int W, int P, bool RMS, bool ADD, bool CODED>
__global__ void __launch_bounds__(W == 8 && P == 16 ? FORWARD_THREADS : MOST_THREADS,
                                  FEWEST<P, RMS, ADD, CODED>)
    forward(const row_norm op, fp8_tally *tally)
{
  __shared__ float shared[MOST_THREADS / 32];
  const int64_t piece = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
  const bool there = piece < op.rows * op.groups;
  int64_t row = 0, group = 0;
  split(there ? piece : 0, op.groups, &row, &group);
  const strip s = {(int)threadIdx.x * W, (int)blockDim.x * W, there ? (int)op.C : 0};
  pack<T, W> a[P];
  load_row<T, W, P, ADD>(op, row * op.x_stride + group * op.C, s, a);
  const statistics of = row_moments<RMS>(op, a, s, shared);
  if (!CODED && !there)
    return;
  if (there && threadIdx.x == 0) {
    op.rstd[piece] = of.rstd;
    if (!RMS)
      op.mean[piece] = of.mean;
  }
  seen_tiles seen;
  store_row<RMS, CODED>(op, a, s, of, row, (T *)op.y + row * op.y_stride + group * op.C, &seen);
  if constexpr (CODED)
    tally_block(seen, tally);
}

template <int W> shape forward_shape(int64_t C)
{
  const int64_t all = pieces_of(C, W);
  constexpr int FEW = W > 1 ? 4 : MOST_PACKS<W>; /* of a row of several warps */
  if (W > 1 && all <= 32)
    return {1, lanes_of(all), FORWARD_THREADS / lanes_of(all)};
  const int each = (int)pieces_of(all, 32);
  if (each <= (W == 4 ? 8 : 16))
    return {W == 1 || each > 8 ? 16 : each <= 3 ? 3 : each <= 4 ? 4 : 8, 32, FORWARD_THREADS / 32};
  const int packs = all <= (int64_t)FEW * MOST_THREADS ? FEW : MOST_PACKS<W>;
  return {packs, warps_of(pieces_of(all, packs)), 1};
}

template <typename T, int W, int P>
void run_forward(const gpu_launch *launch, const row_norm *op, const shape &s)
{
  const dim3 block(s.threads, s.rows);
  const unsigned grid = (unsigned)pieces_of(op->rows * op->groups, s.rows);
  const auto coded = [&](auto is_coded) {
    with_bool(!op->mean, [&](auto rms) {
      with_bool(op->add, [&](auto add) {
        forward<T, W, P, rms.value, add.value, is_coded.value>
            <<<grid, block, 0, launch->stream>>>(*op, launch->tally);
      });
    });
  };
  if constexpr (sizeof(T) == 2 && W == TILE_EACH)
    with_bool(op->code, coded);
  else
    coded(std::false_type());
}

/* --- backward ------------------------------------------------------------ */

enum operand { X, DY, DX, OPERANDS };

/* Rows of a team that fit into shared memory. 0: rows are read when it is their turn, and again for
 * the result. */
template <int W, int P>
constexpr int STAGES_OF = W == 1 || P > 8 ? 0
                          : P <= 2        ? 4
                          : P == 3        ? 3
                          : P == 4        ? 2
                                          : 1;

/* Blocks that a multiprocessor holds at a time. */
constexpr int blocks_each(int P)
{
  return P == 1 ? CUDA_WORK_NORM_BLOCKS : 1;
}

template <typename T> struct place {
  const T *x, *dy;
  T *dx;
  bool there;
};

template <typename T> DEVICE place<T> place_of(const row_norm_backward &op, int64_t piece)
{
  int64_t row = piece, group = 0;
  if (piece >= op.rows * op.groups)
    return {nullptr, nullptr, nullptr, false};
  if (op.groups > 1)
    split(piece, op.groups, &row, &group);
  const int64_t c = group * op.C;
  return {(const T *)op.x + row * op.x_stride + c, (const T *)op.dy + row * op.dy_stride + c,
          (T *)op.dx + row * op.dx_stride + c, true};
}

/* Sum over the threads of a team's row. `shared` has two places per warp, used alternately, so that
 * one barrier per sum is enough. */
template <int P> DEVICE float2 team_sum(float2 x, float2 *shared)
{
  x = row_lanes_sum(x, P);
  if (blockDim.x <= 32)
    return x;
  if (threadIdx.x % 32 == 0)
    shared[threadIdx.x / 32] = x;
  asm volatile("bar.sync %0, %1;" ::"r"(1 + (int)threadIdx.y), "r"((int)blockDim.x) : "memory");
  return add_warps(shared);
}

/* A thread's part of the shared memory, which no other thread touches. */
template <typename T, int W, int P> struct ring {
  int4 *room;
  int threads;
  DEVICE pack<T, W> *at(int stage, operand what, int p) const
  {
    return reinterpret_cast<pack<T, W> *>(room +
                                          (int64_t)((stage * OPERANDS + what) * P + p) * threads);
  }
};

/* Also for a piece that does not exist, because there is one group of copies per piece. */
template <typename T, int W, int P>
DEVICE void fetch(const row_norm_backward &op, const ring<T, W, P> &to, int stage, int64_t piece)
{
  const place<T> from = place_of<T>(op, piece);
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int c = (p * (int)blockDim.x + (int)threadIdx.x) * W;
    if (!from.there || c >= (int)op.C)
      break;
    __pipeline_memcpy_async(to.at(stage, X, p), from.x + c, 16);
    __pipeline_memcpy_async(to.at(stage, DY, p), from.dy + c, 16);
    if (op.dx_accumulate)
      __pipeline_memcpy_async(to.at(stage, DX, p), from.dx + c, 16);
  }
  __pipeline_commit();
}

template <bool RMS> DEVICE statistics statistics_of(const row_norm_backward &op, int64_t piece)
{
  if (piece >= op.rows * op.groups)
    return {0, 0};
  return {RMS ? 0 : op.mean[piece], op.rstd[piece]};
}

/* The sums of the block's rows, one after the other, are this block's piece:
 * work[array][gridDim.x][C]. `columns`: [rows][C], where a block has several rows. */
template <int W, int P>
__device__ void leave_sums(const row_norm_backward &op, int array, const float sum[P][W],
                           float *columns)
{
  float *out = (float *)op.work + ((int64_t)array * gridDim.x + blockIdx.x) * op.C,
        *to = blockDim.y > 1 ? columns + threadIdx.y * op.C : out;
  __syncthreads(); /* what lies in the columns has been read */
#pragma unroll
  for (int p = 0; p < P; p++) {
    const int64_t c = ((int64_t)p * blockDim.x + threadIdx.x) * W;
#pragma unroll
    for (int i = 0; i < W; i++)
      if (c < op.C)
        to[c + i] = sum[p][i];
  }
  if (blockDim.y == 1)
    return;
  __syncthreads();
  for (int64_t c = threadIdx.y * blockDim.x + threadIdx.x; c < op.C;
       c += (int64_t)blockDim.x * blockDim.y) {
    float total = columns[c];
    for (int y = 1; y < (int)blockDim.y; y++)
      total += columns[y * op.C + c];
    out[c] = total;
  }
}

/* Pack p of an operand of a row, from the thread's shared memory or from `from`. */
template <typename T, int W, int P>
DEVICE pack<T, W> row_pack(const ring<T, W, P> &mine, int stage, operand what, int p, const T *from)
{
  if constexpr (STAGES_OF < W, P >> 0)
    return *mine.at(stage, what, p);
  else
    return load<T, W>(from);
}

/* A thread's columns: weights, and the sums of their gradients over its rows. */
template <typename T, int W, int P> struct columns {
  pack<T, W> gamma[P];
  float dgamma[P][W], dbeta[P][W];
  static DEVICE int at(int p)
  {
    return (p * (int)blockDim.x + (int)threadIdx.x) * W;
  }
  DEVICE void start(const row_norm_backward &op)
  {
#pragma unroll
    for (int p = 0; p < P; p++) {
      if (at(p) < (int)op.C)
        gamma[p] = load<T, W>((const T *)op.gamma + at(p));
      for (int i = 0; i < W; i++)
        dgamma[p][i] = dbeta[p][i] = 0;
    }
  }
  /* Adds a row. Returns the thread's part of the sums of g and of g hat. */
  DEVICE float2 add(const row_norm_backward &op, const ring<T, W, P> &mine, int stage,
                    const place<T> &row, statistics now)
  {
    float2 sum = make_float2(0, 0);
    keep_packed<T, W, P>(gamma);
#pragma unroll
    for (int p = 0; p < P; p++) {
      const int c = at(p);
      if (!row.there || c >= (int)op.C)
        break;
      const pack<T, W> x = row_pack(mine, stage, X, p, row.x + c),
                       dy = row_pack(mine, stage, DY, p, row.dy + c);
      for (int i = 0; i < W; i++) {
        const float d = to_float(dy.at[i]), hat = (to_float(x.at[i]) - now.mean) * now.rstd,
                    g = d * to_float(gamma[p].at[i]);
        dgamma[p][i] += d * hat;
        dbeta[p][i] += d;
        sum.x += g;
        sum.y += g * hat;
      }
    }
    return sum;
  }
  /* dx = rstd (g - mean(g) - hat mean(g hat)), g = dy gamma; without mean(g) for the root mean
   * square. */
  DEVICE void store_dx(const row_norm_backward &op, const ring<T, W, P> &mine, int stage,
                       const place<T> &row, statistics now, float2 mean) const
  {
#pragma unroll
    for (int p = 0; p < P; p++) {
      const int c = at(p);
      if (!row.there || c >= (int)op.C)
        break;
      const pack<T, W> x = row_pack(mine, stage, X, p, row.x + c),
                       dy = row_pack(mine, stage, DY, p, row.dy + c);
      float d[W];
      for (int i = 0; i < W; i++) {
        const float hat = (to_float(x.at[i]) - now.mean) * now.rstd,
                    g = to_float(dy.at[i]) * to_float(gamma[p].at[i]);
        d[i] = now.rstd * (g - mean.x - hat * mean.y);
      }
      if (op.dx_accumulate) {
        const pack<T, W> before = row_pack(mine, stage, DX, p, (const T *)row.dx + c);
        for (int i = 0; i < W; i++)
          d[i] += to_float(before.at[i]);
      }
      store<T, W>(row.dx + c, rounded<T, W>(d));
    }
  }
};

template <typename T, int W, int P, bool RMS>
__global__ void __launch_bounds__(MOST_THREADS, blocks_each(P)) backward(const row_norm_backward op)
{
  constexpr int STAGES = STAGES_OF<W, P>;
  extern __shared__ int4 room[];
  __shared__ float2 shared[2][MOST_THREADS / 32];
  const ring<T, W, P> mine = {room + threadIdx.y * blockDim.x + threadIdx.x,
                              (int)(blockDim.x * blockDim.y)};
  const int64_t pieces = op.rows * op.groups, step = (int64_t)gridDim.x * blockDim.y;
  columns<T, W, P> own;
  int64_t piece = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
#pragma unroll
  for (int stage = 0; stage < STAGES; stage++)
    fetch(op, mine, stage, piece + stage * step);
  own.start(op);
  int stage = 0, turn = 0;
  statistics now = statistics_of<RMS>(op, piece);
  /* All threads of a block take the same number of turns, with a row or without, because short rows
   * share a warp. */
  for (int64_t first = piece - threadIdx.y; first < pieces; first += step, piece += step) {
    const place<T> row = place_of<T>(op, piece);
    const statistics next = statistics_of<RMS>(op, piece + step);
    if (STAGES > 0)
      __pipeline_wait_prior(STAGES > 0 ? STAGES - 1 : 0);
    const float2 sum = team_sum<P>(own.add(op, mine, stage, row, now),
                                   shared[turn] + threadIdx.y * (blockDim.x / 32));
    own.store_dx(op, mine, stage, row, now,
                 make_float2(RMS ? 0 : sum.x / (float)(int)op.C, sum.y / (float)(int)op.C));
    if (STAGES > 0)
      fetch(op, mine, stage, piece + STAGES * step);
    stage = stage + 1 < STAGES ? stage + 1 : 0;
    turn ^= 1;
    now = next;
  }
  if (!op.dgamma && !op.dbeta)
    return;
  __pipeline_wait_prior(0); /* the columns take the place of the rows */
  leave_sums<W, P>(op, 0, own.dgamma, reinterpret_cast<float *>(room));
  if (!RMS)
    leave_sums<W, P>(op, 1, own.dbeta, reinterpret_cast<float *>(room));
}

/* At most `threads` threads per block; rows is 0 if one row takes more. At most 4 packs per thread,
 * so that their sums fit in registers, except for the longest rows. */
template <int W> shape backward_shape(int64_t C, int threads)
{
  const int64_t all = pieces_of(C, W);
  shape s;
  if (W == 1) {
    s.packs = all <= 128 ? 4 : MOST_PACKS<W>;
    s.threads = warps_of(pieces_of(all, s.packs));
    s.rows = all <= 128 ? threads / s.threads : 1;
  } else if (all <= 32) {
    s = {1, lanes_of(all), threads / lanes_of(all)};
  } else if (all <= 4 * MOST_THREADS) {
    s.threads = (int)pieces_of(all, 4 * 32) * 32;
    s.packs = (int)pieces_of(all, s.threads);
    s.rows = threads / s.threads;
  } else {
    s = {MOST_PACKS<W>, MOST_THREADS, threads / MOST_THREADS};
  }
  return s;
}

/* False if the GPU has too little shared memory. */
template <typename T, int W, int P, bool RMS>
bool run_backward(const gpu_launch *launch, const row_norm_backward *op, const shape &s)
{
  const size_t rows = (size_t)STAGES_OF<W, P> * OPERANDS * P * s.threads * s.rows * sizeof(int4);
  const size_t columns = s.rows > 1 ? (size_t)s.rows * (size_t)op->C * sizeof(float) : 0,
               bytes = rows > columns ? rows : columns;
  if (cudaFuncSetAttribute(backward<T, W, P, RMS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           (int)bytes)) {
    (void)cudaGetLastError();
    return false;
  }
  const int blocks =
      (int)blocks_within(launch, pieces_of(op->rows * op->groups, s.rows), blocks_each(P));
  backward<T, W, P, RMS><<<blocks, dim3(s.threads, s.rows), bytes, launch->stream>>>(*op);
  if (op->dgamma || op->dbeta)
    sum_pieces(launch, op->C, RMS ? 1 : 2, blocks, op->work, op->accumulate, op->dgamma, op->dbeta);
  return true;
}

template <typename T, int W>
bool choose_backward(const gpu_launch *launch, const row_norm_backward *op)
{
  bool done = false;
  for (int threads = MOST_THREADS; threads >= 128 && !done; threads /= 2) {
    const shape s = backward_shape<W>(op->C, threads);
    const auto run = [&](auto packs) {
      with_bool(!op->mean, [&](auto rms) {
        done = run_backward<T, W, packs.value, rms.value>(launch, op, s);
      });
    };
    if (s.rows == 0)
      continue;
    if constexpr (W > 1)
      with_int<MOST_PACKS<W>, 1, 2, 3, 4>(s.packs, run);
    else
      with_int<MOST_PACKS<W>, 4>(s.packs, run);
  }
  return done;
}

} // namespace

void gpu_norm(const gpu_launch *launch, const row_norm *op)
{
  if (op->rows == 0)
    return;
  with_packs(launch, op->C, op->x_stride | op->y_stride,
             {op->x, op->y, op->add, op->sum, op->gamma, op->beta},
             [&]<typename T, int W>(packs<T, W>) {
               const shape s = forward_shape<W>(op->C);
               const auto run = [&](auto packs) { run_forward<T, W, packs.value>(launch, op, s); };
               if constexpr (W > 1)
                 with_int<MOST_PACKS<W>, 16, 1, 3, 4, 8>(s.packs, run);
               else
                 with_int<MOST_PACKS<W>, 16>(s.packs, run);
             });
}

void gpu_norm_backward(const gpu_launch *launch, const row_norm_backward *op)
{
  if (op->rows == 0)
    return;
  with_packs(launch, op->C, op->x_stride | op->dy_stride | op->dx_stride,
             {op->x, op->dy, op->dx, op->gamma}, [&]<typename T, int W>(packs<T, W>) {
               if (W == 1 || !choose_backward<T, W>(launch, op))
                 (void)choose_backward<T, 1>(launch, op); /* any GPU has its shared memory */
             });
}
