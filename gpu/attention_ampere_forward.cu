/* The forward pass on compute capability 8.0 and later, as in FlashAttention-2 (Dao 2023,
 * arXiv:2307.08691). A block has BM queries of a head, and walks over its keys from the last ones
 * that it sees to the first, BN at a time. A warp has BM / WARPS queries. */
#include "gpu/attention_ampere.cuh"

#include <cmath>

namespace {

using namespace attention_ampere;

struct forward_params {
  const __nv_bfloat16 *q, *k, *v;
  __nv_bfloat16 *out;
  float *lse;       /* NULL: not wanted */
  const int *first; /* [B, tokens]: the first key that a query sees; NULL: 0 */
  int64_t q_stride, k_stride, v_stride, out_stride, k_batch, v_batch;
  int tokens, width, window, heads, group, all_heads, set, query_blocks;
  float scale_log2;
};

template <int D_, int TILES_, int BN_> struct forward_shape {
  static constexpr int D = D_, WARPS = 4, TILES = TILES_ /* of 16 queries, per warp */,
                       BM = 16 * TILES * WARPS, BN = BN_, THREADS = 32 * WARPS;
  using q_tile = tile<D, BM, THREADS>;
  using kv_tile = tile<D, BN, THREADS>;
  static constexpr uint32_t Q = 0, K = Q + q_tile::BYTES, V = K + kv_tile::BYTES,
                            BYTES = V + kv_tile::BYTES;
  static_assert(BYTES <= 99 << 10, "what GPUs of compute capability 8.6 have");
};

template <class S> struct forward_warp {
  static constexpr int D = S::D, BN = S::BN, TILES = S::TILES;
  using q_tile = typename S::q_tile;
  using kv_tile = typename S::kv_tile;
  const forward_params &p;
  uint32_t base;
  int b, query; /* sequence, the warp's first query */
  float out[TILES][D / 8][4], most[TILES][2], sum[TILES][2];

  DEVICE int first_key(int t) const
  {
    t = t < p.tokens ? t : p.tokens - 1;
    const int first = p.first ? __ldg(p.first + (int64_t)b * p.tokens + t) : 0,
              near = p.window > 0 ? t - p.window + 1 : 0;
    return first > near ? first : near;
  }

  DEVICE void scores(float (&x)[TILES][BN / 8][4]) const
  {
    const int row = threadIdx.x / 32 * 16 * TILES;
    clear(x);
#pragma unroll
    for (int k = 0; k < D; k += 16) {
      uint32_t q[TILES][4];
#pragma unroll
      for (int m = 0; m < TILES; m++)
        q_tile::a(q[m], base + S::Q, row + 16 * m, k);
#pragma unroll
      for (int n = 0; n < BN; n += 16) {
        uint32_t key[4];
        kv_tile::b(key, base + S::K, n, k);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          product(x[m][n / 8], q[m], key[0], key[1]);
          product(x[m][n / 8 + 1], q[m], key[2], key[3]);
        }
      }
    }
  }

  DEVICE void mask(float (&x)[TILES][BN / 8][4], int key) const
  {
    int low[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++)
      for (int r = 0; r < 2; r++)
        low[m][r] = first_key(query + m * 16 + row_of(2 * r));
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int n = 0; n < BN / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int at = key + n * 8 + column_of(e);
          if (at > query + m * 16 + row_of(e) || at < low[m][e / 2])
            x[m][n][e] = -INFINITY;
        }
  }

  /* Scores to probabilities, up to the factor 1 / sum. The largest score so far is kept until
   * another exceeds it much, because then nothing is rescaled. */
  DEVICE void soften(float (&x)[TILES][BN / 8][4])
  {
    float top[TILES][2], shrink[TILES][2];
    bool same = true;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float other = -INFINITY;
        top[m][r] = most[m][r];
#pragma unroll
        for (int n = 0; n < BN / 8; n++) {
          top[m][r] = fmaxf(top[m][r], x[m][n][2 * r]);
          other = fmaxf(other, x[m][n][2 * r + 1]);
        }
        top[m][r] = fmaxf(top[m][r], other);
      }
#pragma unroll
    for (int d = 1; d <= 2; d++)
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
          top[m][r] = fmaxf(top[m][r], __shfl_xor_sync(~0u, top[m][r], d));
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if ((top[m][r] - most[m][r]) * p.scale_log2 <= 8)
          top[m][r] = most[m][r];
        const float from = top[m][r] == -INFINITY ? 0 : top[m][r] * p.scale_log2;
        shrink[m][r] = exp2_fast(most[m][r] * p.scale_log2 - from);
        same = same && shrink[m][r] == 1;
        most[m][r] = top[m][r];
        float add = sum[m][r] * shrink[m][r], more = 0;
#pragma unroll
        for (int n = 0; n < BN / 8; n++) {
          float *y = x[m][n] + 2 * r;
          y[0] = exp2_fast(fmaf(y[0], p.scale_log2, -from));
          y[1] = exp2_fast(fmaf(y[1], p.scale_log2, -from));
          add += y[0];
          more += y[1];
        }
        sum[m][r] = add + more;
      }
    if (!__all_sync(~0u, same))
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            out[m][d][e] *= shrink[m][e / 2];
  }

  DEVICE void accumulate(const float (&x)[TILES][BN / 8][4])
  {
#pragma unroll
    for (int k = 0; k < BN; k += 16) {
      uint32_t a[TILES][4];
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float *y = x[m][k / 8 + e / 2] + e % 2 * 2;
          a[m][e] = pack(y[0], y[1]);
        }
#pragma unroll
      for (int d = 0; d < D; d += 16) {
        uint32_t value[4];
        kv_tile::b_transposed(value, base + S::V, d, k);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          product(out[m][d / 8], a[m], value[0], value[1]);
          product(out[m][d / 8 + 1], a[m], value[2], value[3]);
        }
      }
    }
  }

  DEVICE void begin()
  {
    clear(out);
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        most[m][r] = -INFINITY;
        sum[m][r] = 0;
      }
  }

  DEVICE void finish(int head)
  {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float all = sum[m][r];
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        const float each = __fdividef(1, all);
        const int t = query + m * 16 + row_of(2 * r);
        if (t >= p.tokens)
          continue;
        if (p.lse && threadIdx.x % 4 == 0)
          p.lse[((int64_t)b * p.heads + head) * p.tokens + t] =
              (most[m][r] * p.scale_log2 + __log2f(all)) * (1 / LOG2_E);
        __nv_bfloat16 *to = p.out + ((int64_t)b * p.tokens + t) * p.out_stride +
                            (int64_t)head * p.width + column_of(0);
#pragma unroll
        for (int d = 0; d < D / 8; d++)
          if (d * 8 < p.width)
            *(uint32_t *)(to + d * 8) = pack(out[m][d][2 * r] * each, out[m][d][2 * r + 1] * each);
      }
  }
};

template <class S> __global__ void __launch_bounds__(S::THREADS, 2) forward(const forward_params p)
{
  extern __shared__ __align__(16) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int i = blockIdx.x, s = i / (p.set * p.query_blocks), rest = i - s * p.set * p.query_blocks,
            left = p.all_heads - s * p.set, width = left < p.set ? left : p.set,
            order = rest / width, at = s * p.set + rest - order * width, b = at / p.heads,
            head = at % p.heads, begin = (p.query_blocks - 1 - order) * S::BM,
            end = begin + S::BM < p.tokens ? begin + S::BM : p.tokens,
            query = begin + (int)threadIdx.x / 32 * 16 * S::TILES;
  const __nv_bfloat16 *k = p.k + b * p.k_batch + (int64_t)(head / p.group) * p.width,
                      *v = p.v + b * p.v_batch + (int64_t)(head / p.group) * p.width;
  forward_warp<S> warp = {p, base, b, query};
  const int first = warp.first_key(begin) / S::BN, last = (end - 1) / S::BN,
            low = warp.first_key(query + 16 * S::TILES - 1);
  S::q_tile::fetch(base + S::Q,
                   p.q + ((int64_t)b * p.tokens + begin) * p.q_stride + (int64_t)head * p.width,
                   p.q_stride, end - begin, p.width);
  S::kv_tile::fetch(base + S::K, k + (int64_t)last * S::BN * p.k_stride, p.k_stride,
                    p.tokens - last * S::BN, p.width);
  copy_commit();
  warp.begin();
  for (int n = last; n >= first; n--) {
    const int key = n * S::BN;
    const bool sees = key<query + 16 * S::TILES, masked = key + S::BN - 1> query ||
                      key < low; /* for some of the warp's rows */
    float x[S::TILES][S::BN / 8][4];
    copy_wait<0>();
    __syncthreads(); /* K is there, and the previous V was read */
    S::kv_tile::fetch(base + S::V, v + (int64_t)key * p.v_stride, p.v_stride, p.tokens - key,
                      p.width);
    copy_commit();
    if (sees)
      warp.scores(x);
    copy_wait<0>();
    __syncthreads(); /* V is there, and K was read */
    if (n > first)
      S::kv_tile::fetch(base + S::K, k + (int64_t)(key - S::BN) * p.k_stride, p.k_stride,
                        p.tokens - key + S::BN, p.width);
    copy_commit();
    if (sees) {
      if (masked)
        warp.mask(x, key);
      warp.soften(x);
      warp.accumulate(x);
    }
  }
  warp.finish(head);
}

/* --- the host's side ----------------------------------------------------- */

template <class S> cudaError_t enqueue(const gpu_launch *launch, const attention *op)
{
  const auto kernel = forward<S>;
  forward_params p = {};
  p.q = (const __nv_bfloat16 *)op->q;
  p.k = (const __nv_bfloat16 *)op->k;
  p.v = (const __nv_bfloat16 *)op->v;
  p.out = (__nv_bfloat16 *)op->out;
  p.lse = op->lse;
  p.first = op->first;
  p.q_stride = op->q_stride;
  p.k_stride = op->k_stride;
  p.v_stride = op->v_stride;
  p.out_stride = op->out_stride;
  p.k_batch = op->tokens * op->k_stride;
  p.v_batch = op->tokens * op->v_stride;
  p.tokens = (int)op->tokens;
  p.width = (int)op->head_width;
  p.window = op->window < op->tokens ? (int)op->window : 0;
  p.heads = (int)op->heads;
  p.group = (int)(op->heads / op->kv_heads);
  p.all_heads = (int)(op->batch * op->heads);
  p.set = cuda_work_heads_at_once(op);
  p.query_blocks = (p.tokens + S::BM - 1) / S::BM;
  p.scale_log2 = LOG2_E / std::sqrt((float)op->head_width);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
  if (error != cudaSuccess)
    return error;
  kernel<<<(unsigned)(p.all_heads * p.query_blocks), S::THREADS, S::BYTES, launch->stream>>>(p);
  return cudaGetLastError();
}

} // namespace

cudaError_t gpu_attention_ampere(const gpu_launch *launch, const attention *op)
{
  const int64_t D = op->head_width;
  return D <= 64    ? enqueue<forward_shape<64, 2, 128>>(launch, op)
         : D <= 96  ? enqueue<forward_shape<96, 2, 64>>(launch, op)
         : D <= 128 ? enqueue<forward_shape<128, 2, 64>>(launch, op)
                    : enqueue<forward_shape<256, 1, 64>>(launch, op);
}
