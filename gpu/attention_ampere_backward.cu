/* The backward pass on compute capability 8.0 and later, as in FlashAttention-2 (Dao 2023,
 * arXiv:2307.08691), with the order of work and of the sums of dQ of attention_schedule.h.
 *
 * A block takes items, BN keys of a head of k and v, and walks over the blocks of 64 queries that
 * see them. With S = Q K^T, P = exp2(S * scale * log2(e) - lse * log2(e)), dP = dO V^T and
 * dS = P * (dP - delta): dV += P^T dO, dK += dS^T Q, dQ += dS K. P and dS go through shared memory,
 * because each product cuts its result among the warps in another way. The sum of dQ comes from
 * device memory after the flag shows that it is this item's turn, and goes back there. The last
 * item of a sum writes dQ itself. */
#include "gpu/attention_ampere.cuh"
#include "gpu/attention_prepare.cuh"
#include "gpu/attention_schedule.h"

#include <cmath>

namespace {

using namespace attention_ampere;

struct backward_params {
  const __nv_bfloat16 *q, *k, *v, *dout;
  __nv_bfloat16 *dq, *dk, *dv;
  const float *stats; /* [B, H, query_blocks][2 * 64]: -lse * log2(e), then delta */
  float *dq_sum;      /* [B, H, query_blocks][D / 4][256]: fragments of 64 x D */
  int *flags;         /* [B, H, query_blocks]: how many key blocks were added */
  int *counter;       /* the next item */
  const int *first;   /* [B, tokens]: the first key that a query sees; NULL: 0 */
  int64_t q_stride, k_stride, v_stride, out_stride, dq_stride, dk_stride, dv_stride;
  int tokens, width, window, heads, kv_heads, group, all_kv_heads, query_blocks, key_blocks;
  float scale, scale_log2;
};

/* Q and dO have one stage or two. */
template <int D_, int BN_, int Q_STAGES_, int DO_STAGES_> struct backward_shape {
  static constexpr int D = D_, BM = ATTENTION_QUERIES, BN = BN_, Q_STAGES = Q_STAGES_,
                       DO_STAGES = DO_STAGES_, THREADS = 256;
  /* How warps cut results: scores into 2 x 4, of 32 queries each; dK and dV into pieces of 32 keys;
   * dQ into 2 x 4. */
  static constexpr int COLUMNS = BN / 4, KEY_WARPS = BN / 32, KV_COLUMNS = D * KEY_WARPS / 8,
                       Q_COLUMNS = D / 4;
  using q_tile = tile<D, BM, THREADS>;
  using kv_tile = tile<D, BN, THREADS>;
  using score_tile = tile<BN, BM, THREADS>;
  static constexpr uint32_t K = 0, V = K + kv_tile::BYTES, Q = V + kv_tile::BYTES,
                            DO = Q + Q_STAGES * q_tile::BYTES, P = DO + DO_STAGES * q_tile::BYTES,
                            DS = P + score_tile::BYTES, STATS = DS + score_tile::BYTES,
                            ITEM = STATS + 2 * BM * 8, BYTES = ITEM + 16;
  static_assert(D % 32 == 0 && (BN == 64 || BN == 128));
};

/* out [TILES of 16 rows][N columns] += a b^T over K columns, warp by warp. Operands lie at row
 * a_row of a tile A and at n of a tile B. */
template <class A, class B, bool TA, bool TB, int N, int K>
DEVICE void multiply(float (&out)[2][N / 8][4], uint32_t a, int row, uint32_t b, int column)
{
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    uint32_t x[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
      if (TA)
        A::a_transposed(x[m], a, row + 16 * m, k);
      else
        A::a(x[m], a, row + 16 * m, k);
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      uint32_t y[4];
      if (TB)
        B::b_transposed(y, b, column + n, k);
      else
        B::b(y, b, column + n, k);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        product(out[m][n / 8], x[m], y[0], y[1]);
        if (n + 8 < N)
          product(out[m][n / 8 + (n + 8 < N)], x[m], y[2], y[3]);
      }
    }
  }
}

DEVICE int flag_load(const int *flag)
{
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory");
  return x;
}

DEVICE void flag_store(int *flag, int x)
{
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(x) : "memory");
}

template <class S> struct backward_block {
  static constexpr int D = S::D, BM = S::BM, BN = S::BN;
  using q_tile = typename S::q_tile;
  using kv_tile = typename S::kv_tile;
  using score_tile = typename S::score_tile;
  const backward_params &p;
  uint8_t *shared;
  uint32_t base;
  int warp;
  attention_seen seen; /* of the item's sequence */
  int b, n;
  float dk[2][S::KV_COLUMNS / 8][4], dv[2][S::KV_COLUMNS / 8][4];

  DEVICE uint32_t q_at(int stage) const
  {
    return base + S::Q + (S::Q_STAGES == 2 ? stage : 0) * q_tile::BYTES;
  }

  DEVICE uint32_t do_at(int stage) const
  {
    return base + S::DO + (S::DO_STAGES == 2 ? stage : 0) * q_tile::BYTES;
  }

  DEVICE void fetch_queries(int h, int m, int stage)
  {
    const int t = m * BM;
    q_tile::fetch(q_at(stage),
                  p.q + ((int64_t)b * p.tokens + t) * p.q_stride + (int64_t)h * p.width, p.q_stride,
                  p.tokens - t, p.width);
    if (threadIdx.x < BM / 2)
      copy16(base + S::STATS + stage * BM * 8 + threadIdx.x * 16,
             p.stats + (((int64_t)b * p.heads + h) * p.query_blocks + m) * (2 * BM) +
                 threadIdx.x * 4,
             true);
  }

  DEVICE void fetch_gradients(int h, int m, int stage)
  {
    const int t = m * BM;
    q_tile::fetch(do_at(stage),
                  p.dout + ((int64_t)b * p.tokens + t) * p.out_stride + (int64_t)h * p.width,
                  p.out_stride, p.tokens - t, p.width);
  }

  DEVICE void fetch_keys(int head)
  {
    const int t = n * BN;
    kv_tile::fetch(base + S::K,
                   p.k + ((int64_t)b * p.tokens + t) * p.k_stride + (int64_t)head * p.width,
                   p.k_stride, p.tokens - t, p.width);
    kv_tile::fetch(base + S::V,
                   p.v + ((int64_t)b * p.tokens + t) * p.v_stride + (int64_t)head * p.width,
                   p.v_stride, p.tokens - t, p.width);
  }

  DEVICE void store_scores(uint32_t at, const uint32_t (&x)[2][S::COLUMNS / 8][2])
  {
    const int row = warp % 2 * 32, column = warp / 2 * S::COLUMNS + column_of(0);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int c = 0; c < S::COLUMNS / 8; c++)
#pragma unroll
        for (int r = 0; r < 2; r++)
          *(uint32_t *)(shared + at + (row + 16 * m + row_of(2 * r)) * score_tile::PITCH +
                        (column + 8 * c) * 2) = x[m][c][r];
  }

  /* P and dS of query block m to shared memory. */
  DEVICE void score(int m, int stage)
  {
    const int row = warp % 2 * 32, column = warp / 2 * S::COLUMNS, query = m * BM + row,
              key = n * BN + column;
    const float *stats = (const float *)(shared + S::STATS) + stage * 2 * BM + row;
    const int last = query + 31 < p.tokens ? query + 31 : p.tokens - 1;
    float x[2][S::COLUMNS / 8][4], lse[2][2];
    uint32_t probability[2][S::COLUMNS / 8][2];
    clear(x);
    multiply<q_tile, kv_tile, false, false, S::COLUMNS, D>(x, q_at(stage), row, base + S::K,
                                                           column);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        lse[i][r] = stats[16 * i + row_of(2 * r)];
    const bool cut =
        (seen.first || seen.window) && query <= last && attention_first_key(&seen, last) > key;
    if (key + S::COLUMNS - 1 > query || cut)
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int t = query + 16 * i + row_of(2 * r),
                    low = cut && t < p.tokens ? attention_first_key(&seen, t) : 0;
#pragma unroll
          for (int c = 0; c < S::COLUMNS / 8; c++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
              const int at = key + 8 * c + column_of(e);
              if (at > t || at < low)
                x[i][c][e] = -INFINITY;
            }
        }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int c = 0; c < S::COLUMNS / 8; c++)
#pragma unroll
        for (int r = 0; r < 2; r++)
          probability[i][c][r] = pack(exp2_fast(fmaf(x[i][c][2 * r], p.scale_log2, lse[i][r])),
                                      exp2_fast(fmaf(x[i][c][2 * r + 1], p.scale_log2, lse[i][r])));
    store_scores(S::P, probability);
    clear(x);
    multiply<q_tile, kv_tile, false, false, S::COLUMNS, D>(x, do_at(stage), row, base + S::V,
                                                           column);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float delta = stats[BM + 16 * i + row_of(2 * r)];
#pragma unroll
        for (int c = 0; c < S::COLUMNS / 8; c++) {
          const uint32_t two = probability[i][c][r];
          probability[i][c][r] =
              pack(__uint_as_float(two << 16) * (x[i][c][2 * r] - delta),
                   __uint_as_float(two & 0xffff0000) * (x[i][c][2 * r + 1] - delta));
        }
      }
    store_scores(S::DS, probability);
  }

  /* The sum of dQ so far, and what follows. */
  DEVICE void load_sum(float (&dq)[2][S::Q_COLUMNS / 8][4], int64_t block) const
  {
    const float4 *from = (const float4 *)p.dq_sum + block * (BM * D / 4) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int c = 0; c < S::Q_COLUMNS / 8; c++)
        *(float4 *)dq[i][c] = __ldcg(from + (i * (S::Q_COLUMNS / 8) + c) * S::THREADS);
  }

  DEVICE void store_sum(const float (&dq)[2][S::Q_COLUMNS / 8][4], int64_t block) const
  {
    float4 *to = (float4 *)p.dq_sum + block * (BM * D / 4) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int c = 0; c < S::Q_COLUMNS / 8; c++)
        __stcg(to + (i * (S::Q_COLUMNS / 8) + c) * S::THREADS, *(const float4 *)dq[i][c]);
  }

  template <int N>
  DEVICE void write(__nv_bfloat16 *to, int64_t stride, int row, int column, int token,
                    const float (&x)[2][N][4], float scale) const
  {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int at = row + 16 * i + row_of(2 * r);
        if (token + at >= p.tokens)
          continue;
#pragma unroll
        for (int c = 0; c < N; c++)
          if (column + 8 * c < p.width)
            *(uint32_t *)(to + at * stride + column + 8 * c + column_of(0)) =
                pack(x[i][c][2 * r] * scale, x[i][c][2 * r + 1] * scale);
      }
  }

  DEVICE void run_item(int i)
  {
    const attention_item item = attention_item_at(i, p.all_kv_heads, p.key_blocks);
    const int head = item.head % p.kv_heads;
    b = item.head / p.kv_heads;
    n = item.n;
    seen = {p.first ? p.first + (int64_t)b * p.tokens : NULL, p.tokens, p.window, BN};
    const int meets = attention_meets(&seen, n), diagonal = attention_diagonal(&seen, n),
              steps = meets * p.group, begin = attention_begin(&seen, &item, meets),
              turn = item.up ? 1 : -1;
    int h = head * p.group, m = begin, done = -1, told = 0; /* done: a block whose flag waits */
    fetch_keys(head);
    fetch_queries(h, m, 0);
    fetch_gradients(h, m, 0);
    copy_commit();
    clear(dk);
    clear(dv);
    for (int step = 0; step < steps; step++) {
      const int stage = step % 2, block = (b * p.heads + h) * p.query_blocks + m,
                place = attention_place(&seen, &item, m), terms = attention_terms(&seen, m);
      int next_h = h, next_m = m + turn;
      if (next_m == diagonal + meets || next_m < diagonal) {
        next_m = begin;
        next_h++;
      }
      const bool more = step + 1 < steps;
      copy_wait<0>();
      __syncthreads(); /* Q, dO and statistics are there, and the previous sum is stored */
      if (done >= 0 && threadIdx.x == 0)
        flag_store(p.flags + done, told);
      if (S::Q_STAGES == 2 && more)
        fetch_queries(next_h, next_m, stage ^ 1);
      if (S::DO_STAGES == 2 && more)
        fetch_gradients(next_h, next_m, stage ^ 1);
      copy_commit();
      score(m, stage);
      if (place > 0 && threadIdx.x == 0)
        while (flag_load(p.flags + block) != place)
          ;
      __syncthreads(); /* P and dS are there, and it is this item's turn */
      float dq[2][S::Q_COLUMNS / 8][4];
      if (place > 0)
        load_sum(dq, block);
      else
        clear(dq);
      multiply<score_tile, q_tile, true, true, S::KV_COLUMNS, BM>(
          dv, base + S::P, warp % S::KEY_WARPS * 32, do_at(stage),
          warp / S::KEY_WARPS * S::KV_COLUMNS);
      if (S::DO_STAGES == 1) {
        __syncthreads(); /* dO was read */
        if (more)
          fetch_gradients(next_h, next_m, 0);
        copy_commit();
      }
      multiply<score_tile, q_tile, true, true, S::KV_COLUMNS, BM>(
          dk, base + S::DS, warp % S::KEY_WARPS * 32, q_at(stage),
          warp / S::KEY_WARPS * S::KV_COLUMNS);
      if (S::Q_STAGES == 1) {
        __syncthreads(); /* Q was read */
        if (more)
          fetch_queries(next_h, next_m, stage ^ 1);
        copy_commit();
      }
      multiply<score_tile, kv_tile, false, true, S::Q_COLUMNS, BN>(
          dq, base + S::DS, warp % 2 * 32, base + S::K, warp / 2 * S::Q_COLUMNS);
      done = -1;
      if (place == terms - 1)
        write(p.dq + ((int64_t)b * p.tokens + m * BM) * p.dq_stride + (int64_t)h * p.width,
              p.dq_stride, warp % 2 * 32, warp / 2 * S::Q_COLUMNS, m * BM, dq, p.scale);
      else {
        store_sum(dq, block);
        done = block;
        told = place + 1;
      }
      h = next_h;
      m = next_m;
    }
    const int64_t token = (int64_t)b * p.tokens + n * BN;
    const int row = warp % S::KEY_WARPS * 32, column = warp / S::KEY_WARPS * S::KV_COLUMNS;
    write(p.dv + token * p.dv_stride + (int64_t)head * p.width, p.dv_stride, row, column, n * BN,
          dv, 1.0f);
    write(p.dk + token * p.dk_stride + (int64_t)head * p.width, p.dk_stride, row, column, n * BN,
          dk, p.scale);
    if (threadIdx.x == 0)
      *(int *)(shared + S::ITEM) = atomicAdd(p.counter, 1);
    __syncthreads(); /* the last sum is stored, all tiles were read */
    if (done >= 0 && threadIdx.x == 0)
      flag_store(p.flags + done, told);
  }
};

/* A block that finds no item ends, so any number of the grid's blocks may run at a time. */
template <class S>
__global__ void __launch_bounds__(S::THREADS, 1) backward(const backward_params p)
{
  extern __shared__ __align__(16) uint8_t shared[];
  if (threadIdx.x == 0)
    *(int *)(shared + S::ITEM) = atomicAdd(p.counter, 1);
  __syncthreads();
  backward_block<S> block = {p, shared, shared_address(shared), (int)threadIdx.x / 32};
  for (int i = *(int *)(shared + S::ITEM); i < p.all_kv_heads * p.key_blocks;
       i = *(int *)(shared + S::ITEM))
    block.run_item(i);
}

/* --- the host's side ----------------------------------------------------- */

backward_params params_of(const attention_backward *op, int keys)
{
  const attention *f = &op->forward;
  const cuda_work_room r = cuda_work_gradient_room(f);
  char *work = (char *)f->work;
  backward_params p = {};
  p.q = (const __nv_bfloat16 *)f->q;
  p.k = (const __nv_bfloat16 *)f->k;
  p.v = (const __nv_bfloat16 *)f->v;
  p.dout = (const __nv_bfloat16 *)op->dout;
  p.dq = (__nv_bfloat16 *)op->dq;
  p.dk = (__nv_bfloat16 *)op->dk;
  p.dv = (__nv_bfloat16 *)op->dv;
  p.counter = (int *)work;
  p.flags = (int *)(work + r.flags);
  p.stats = (const float *)(work + r.stats);
  p.dq_sum = (float *)(work + r.sums);
  p.first = f->first;
  p.q_stride = f->q_stride;
  p.k_stride = f->k_stride;
  p.v_stride = f->v_stride;
  p.out_stride = f->out_stride;
  p.dq_stride = op->dq_stride;
  p.dk_stride = op->dk_stride;
  p.dv_stride = op->dv_stride;
  p.tokens = (int)f->tokens;
  p.width = (int)f->head_width;
  p.window = f->window < f->tokens ? (int)f->window : 0;
  p.heads = (int)f->heads;
  p.kv_heads = (int)f->kv_heads;
  p.group = p.heads / p.kv_heads;
  p.all_kv_heads = (int)(f->batch * f->kv_heads);
  p.query_blocks = (p.tokens + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES;
  p.key_blocks = (p.tokens + keys - 1) / keys;
  p.scale = 1.0f / std::sqrt((float)f->head_width);
  p.scale_log2 = p.scale * LOG2_E;
  return p;
}

template <class S> cudaError_t enqueue(const gpu_launch *launch, const attention_backward *op)
{
  const backward_params p = params_of(op, S::BN);
  const auto kernel = backward<S>;
  cudaError_t error =
      attention_prepare(launch->stream, op, (float *)p.stats, p.flags, p.counter)
          ?: cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
  if (error != cudaSuccess)
    return error;
  const int items = p.all_kv_heads * p.key_blocks,
            grid = items < launch->multiprocessors ? items : launch->multiprocessors;
  kernel<<<(unsigned)grid, S::THREADS, S::BYTES, launch->stream>>>(p);
  return cudaGetLastError();
}

/* By S, or by SMALL where S does not fit into a multiprocessor. */
template <class S, class SMALL>
cudaError_t enqueue_either(const gpu_launch *launch, const attention_backward *op)
{
  return (uint32_t)launch->shared >= S::BYTES ? enqueue<S>(launch, op) : enqueue<SMALL>(launch, op);
}

} // namespace

cudaError_t gpu_attention_ampere_backward(const gpu_launch *launch, const attention_backward *op)
{
  const int64_t D = op->forward.head_width;
  using small_64 = backward_shape<64, 128, 1, 1>;
  using small_96 = backward_shape<96, 64, 1, 1>;
  using small_128 = backward_shape<128, 64, 1, 1>;
  using wide = backward_shape<256, 64, 1, 1>;
  static_assert(small_64::BYTES <= 99 << 10 && small_96::BYTES <= 99 << 10 &&
                small_128::BYTES <= 99 << 10 && wide::BYTES <= CUDA_WORK_WIDE);
  return D <= 64    ? enqueue_either<backward_shape<64, 128, 2, 2>, small_64>(launch, op)
         : D <= 96  ? enqueue_either<backward_shape<96, 128, 2, 2>, small_96>(launch, op)
         : D <= 128 ? enqueue_either<backward_shape<128, 128, 2, 1>, small_128>(launch, op)
                    : enqueue<wide>(launch, op);
}
