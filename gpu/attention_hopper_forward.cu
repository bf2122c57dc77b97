/* The forward pass of attention on Hopper, as in FlashAttention-3 (Shah et al. 2024,
 * arXiv:2407.08608). A block takes items, BM queries of a head,
 * until none is left. Warpgroup 0 feeds: one thread has the copy engine fetch Q, and K and V in
 * steps of BN keys, from the last keys that an item sees to the first. Each other warpgroup has 64
 * queries. It starts the product of a step's scores, then that of the previous step's
 * probabilities with V, and computes the softmax while the latter is under way. The warpgroups take
 * turns with the products, so that one's products run during another's softmax. */
#include "device/cuda_work.h"
#include "gpu/attention_tiles.cuh"
#include "gpu/kernels.h"

#include <cmath>

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#pragma nv_diag_suppress 177 /* kernels are empty here, so their parts are unused */
#endif

namespace {

using namespace attention_tiles;

/* Working warpgroups, of 64 queries each; a step's keys; stages of K and V, and of Q. */
template <int D_, int WORKERS_, int BN_, int STAGES_, int Q_STAGES_> struct shape {
  static constexpr int D = D_, WORKERS = WORKERS_, BM = 64 * WORKERS, BN = BN_, STAGES = STAGES_,
                       Q_STAGES = Q_STAGES_, THREADS = 128 * (WORKERS + 1), PANELS = (D + 63) / 64;
  /* The largest score so far is kept until another exceeds it much. Three warpgroups take turns, so
   * the time that this saves is hidden. */
  static constexpr bool LAZY = WORKERS == 2;
  static constexpr int FEED_REGISTERS = WORKERS == 2 ? 24 : 32,
                       WORK_REGISTERS = WORKERS == 2 ? 240 : 160;
  static constexpr uint32_t Q_TILE = PANELS * BM * ROW, KV_TILE = PANELS * BN * ROW, Q = 0,
                            K = Q + Q_STAGES * Q_TILE, V = K + STAGES * KV_TILE,
                            Q_FULL = V + STAGES * KV_TILE, Q_EMPTY = Q_FULL + 8 * Q_STAGES,
                            K_FULL = Q_EMPTY + 8 * Q_STAGES, K_EMPTY = K_FULL + 8 * STAGES,
                            V_FULL = K_EMPTY + 8 * STAGES, V_EMPTY = V_FULL + 8 * STAGES,
                            ITEM = V_EMPTY + 8 * STAGES, BYTES = ITEM + 4 * Q_STAGES;
  static_assert(BYTES <= 232448, "a block's shared memory");
  static_assert(BN % 16 == 0 && D % 16 == 0 && KV_TILE % 1024 == 0);
};

struct params {
  CUtensorMap q, k, v; /* [B][T][heads][D], boxes of 64 elements x BM or BN tokens */
  __nv_bfloat16 *out;
  float *lse;       /* NULL: not wanted */
  const int *first; /* [B, tokens]: the first key that a query sees; NULL: 0 */
  int *counter;     /* the next item */
  int64_t out_stride;
  int tokens, window, heads, group, all_heads, set, query_blocks, items;
  float scale_log2;
};

/* Items: heads in sets whose keys and values fit into the cache; in a set the last queries first,
 * which see the most keys. */
struct item {
  int b, h, m; /* sequence, head, query block */
};

DEVICE item item_at(const params &p, int i)
{
  const int s = i / (p.set * p.query_blocks), rest = i - s * p.set * p.query_blocks,
            left = p.all_heads - s * p.set, width = left < p.set ? left : p.set,
            order = rest / width, head = s * p.set + rest - order * width;
  return {head / p.heads, head % p.heads, p.query_blocks - 1 - order};
}

/* First key that query t of a sequence sees. */
template <bool LOWER> DEVICE int first_key(const params &p, int b, int t)
{
  if (!LOWER)
    return 0;
  const int first = p.first ? __ldg(p.first + (int64_t)b * p.tokens + t) : 0,
            near = p.window > 0 ? t - p.window + 1 : 0;
  return first > near ? first : near;
}

/* The steps of an item: from `last` down to `first`. All its queries see all keys of the steps
 * [full_first, full_last]. */
struct span {
  int first, last, full_first, full_last;
};

template <class S, bool LOWER> DEVICE span span_of(const params &p, const item &i)
{
  const int begin = i.m * S::BM, end = begin + S::BM < p.tokens ? begin + S::BM : p.tokens;
  span s = {0, (end - 1) / S::BN, 0, (begin + 1) / S::BN - 1};
  if (LOWER) {
    s.first = first_key<LOWER>(p, i.b, begin) / S::BN;
    s.full_first = (first_key<LOWER>(p, i.b, end - 1) + S::BN - 1) / S::BN;
  }
  return s;
}

/* --- the feeding thread -------------------------------------------------- */

template <class S, bool LOWER> struct feeder {
  const params &p;
  uint32_t base;
  ring<S::STAGES> k, v;
  ring<S::Q_STAGES> q;

  template <int ROWS>
  DEVICE void fetch(const CUtensorMap *map, uint32_t full, uint32_t to, int head, int t, int b)
  {
    barrier_arrive_expecting(full, S::PANELS * ROWS * ROW);
#pragma unroll
    for (int d = 0; d < S::PANELS; d++)
      load_box(to + d * ROWS * ROW, map, full, d * 64, head, t, b);
  }

  DEVICE void keys(int n, int head, int b)
  {
    barrier_wait(base + S::K_EMPTY + 8 * k.at, k.parity ^ 1);
    fetch<S::BN>(&p.k, base + S::K_FULL + 8 * k.at, base + S::K + k.at * S::KV_TILE, head,
                 n * S::BN, b);
    k.next();
  }

  DEVICE void values(int n, int head, int b)
  {
    barrier_wait(base + S::V_EMPTY + 8 * v.at, v.parity ^ 1);
    fetch<S::BN>(&p.v, base + S::V_FULL + 8 * v.at, base + S::V + v.at * S::KV_TILE, head,
                 n * S::BN, b);
    v.next();
  }

  DEVICE void run()
  {
    int i = atomicAdd(p.counter, 1);
    while (i < p.items) {
      const item at = item_at(p, i);
      const span s = span_of<S, LOWER>(p, at);
      const int head = at.h / p.group;
      keys(s.last, head, at.b);
      barrier_wait(base + S::Q_EMPTY + 8 * q.at, q.parity ^ 1);
      store_shared(base + S::ITEM + 4 * q.at, i);
      fetch<S::BM>(&p.q, base + S::Q_FULL + 8 * q.at, base + S::Q + q.at * S::Q_TILE, at.h,
                   at.m * S::BM, at.b);
      q.next();
      i = atomicAdd(p.counter, 1);
      for (int n = s.last - 1; n >= s.first; n--) {
        keys(n, head, at.b);
        values(n + 1, head, at.b);
      }
      values(s.first, head, at.b);
    }
    barrier_wait(base + S::Q_EMPTY + 8 * q.at, q.parity ^ 1);
    store_shared(base + S::ITEM + 4 * q.at, -1);
    barrier_arrive(base + S::Q_FULL + 8 * q.at);
  }
};

/* --- the working warpgroups ---------------------------------------------- */

template <class S, bool LOWER> struct worker {
  static constexpr int D = S::D, BN = S::BN;
  const params &p;
  uint32_t base;
  int which; /* of the item's 64 queries */
  ring<S::STAGES> k, v;
  ring<S::Q_STAGES> q;
  float out[D / 2], most[2], sum[2]; /* of this thread's two rows */
  int query, low[2];                 /* its first row, and the first keys that the rows see */
  item at;
  span s;

  DEVICE bool leads() const
  {
    return threadIdx.x % 32 == 0;
  }

  DEVICE void release(uint32_t empty)
  {
    __syncwarp();
    if (leads())
      barrier_arrive(empty);
  }

  DEVICE void await_turn()
  {
    named_wait(1 + which, 256);
  }

  DEVICE void pass_turn()
  {
    named_arrive(1 + (which + 1 < S::WORKERS ? which + 1 : 0), 256);
  }

  /* The assembler may move no computation that x depends on below this point. x is never negative.
   */
  DEVICE void hold(float x)
  {
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.f32 [%1], %0;\n}" ::"f"(x),
        "r"(base + S::ITEM)
        : "memory");
  }

  /* x = Q K^T */
  DEVICE void scores(float (&x)[BN / 2])
  {
    const uint64_t a = descriptor(base + S::Q + q.at * S::Q_TILE + which * 64 * ROW, 16),
                   b = descriptor(base + S::K + k.at * S::KV_TILE, 16);
    product_first<0, 0>(x, a, b);
#pragma unroll
    for (int j = 1; j < D / 16; j++)
      product_add<0, 0>(x, behind(a, j / 4 * S::BM * ROW + j % 4 * 32),
                        behind(b, j / 4 * BN * ROW + j % 4 * 32));
  }

  /* out += P V */
  DEVICE void accumulate(const uint32_t (&a)[BN / 4])
  {
    const uint64_t b = descriptor(base + S::V + v.at * S::KV_TILE, BN * ROW);
#pragma unroll
    for (int j = 0; j < BN / 16; j++)
      product_add<1>(out, a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3],
                     behind(b, j * K_STEP));
  }

  DEVICE void mask(float (&x)[BN / 2], int n)
  {
    const int column = n * BN + acc_column(threadIdx.x, 0);
#pragma unroll
    for (int e = 0; e < BN / 2; e++) {
      const int c = acc_column(0, e), row = e / 2 % 2;
      if (c > query + row * 8 - column || (LOWER && c < low[row] - column))
        x[e] = -INFINITY;
    }
  }

  /* Scores to probabilities, up to the factor 1 / sum. The caller multiplies earlier sums by
   * shrink. Only masked scores may all be -inf. */
  template <bool MASKED, bool FIRST> DEVICE void soften(float (&x)[BN / 2], float (&shrink)[2])
  {
#pragma unroll
    for (int row = 0; row < 2; row++) {
      float part[4];
#pragma unroll
      for (int e = 0; e < 4; e++)
        part[e] = fmaxf(x[8 * (e / 2) + e % 2 + 2 * row], x[8 * (e / 2) + 4 + e % 2 + 2 * row]);
#pragma unroll
      for (int e = 16; e < BN / 2; e += 4) {
        part[e / 4 % 2] = fmaxf(part[e / 4 % 2], x[e + 2 * row]);
        part[e / 4 % 2 + 2] = fmaxf(part[e / 4 % 2 + 2], x[e + 1 + 2 * row]);
      }
      float top = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
      if (!FIRST)
        top = fmaxf(top, most[row]);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      if (S::LAZY && !FIRST && (top - most[row]) * p.scale_log2 <= 8)
        top = most[row];
      const float from = MASKED && top == -INFINITY ? 0 : top * p.scale_log2;
      shrink[row] = FIRST ? 1 : exp2_fast(most[row] * p.scale_log2 - from);
      most[row] = top;
      float add[4] = {FIRST ? 0 : sum[row] * shrink[row], 0, 0, 0};
#pragma unroll
      for (int e = 0; e < BN / 2; e += 4) {
        float *y = x + e + 2 * row;
        y[0] = exp2_fast(fmaf(y[0], p.scale_log2, -from));
        y[1] = exp2_fast(fmaf(y[1], p.scale_log2, -from));
        add[e / 4 % 2] += y[0];
        add[e / 4 % 2 + 2] += y[1];
      }
      sum[row] = (add[0] + add[1]) + (add[2] + add[3]);
    }
  }

  DEVICE void rescale(const float (&shrink)[2])
  {
    if (S::LAZY && !__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1))
      return;
#pragma unroll
    for (int e = 0; e < D / 2; e++)
      out[e] *= shrink[e / 2 % 2];
  }

  DEVICE void round(const float (&x)[BN / 2], uint32_t (&probability)[BN / 4])
  {
#pragma unroll
    for (int e = 0; e < BN / 4; e++)
      probability[e] = pack(x[2 * e], x[2 * e + 1]);
  }

  /* After the products of scores that used Q and K's place. */
  DEVICE void release_keys(int n)
  {
    release(base + S::K_EMPTY + 8 * k.at);
    k.next();
    if (n == s.first)
      release(base + S::Q_EMPTY + 8 * q.at);
  }

  DEVICE void release_values()
  {
    release(base + S::V_EMPTY + 8 * v.at);
    v.next();
  }

  template <bool MASKED> DEVICE void step(int n, uint32_t (&probability)[BN / 4])
  {
    float x[BN / 2], shrink[2];
    barrier_wait(base + S::K_FULL + 8 * k.at, k.parity);
    await_turn();
    product_fence();
    scores(x);
    product_commit();
    barrier_wait(base + S::V_FULL + 8 * v.at, v.parity);
    product_fence();
    accumulate(probability);
    product_commit();
    pass_turn();
    product_wait<1>();
    pin(x);
    release_keys(n);
    if (MASKED)
      mask(x, n);
    soften<MASKED, false>(x, shrink);
    pin(x);
    hold(sum[0] + sum[1]);
    product_wait<0>();
    pin(out);
    pin(probability);
    release_values();
    round(x, probability);
    rescale(shrink);
    pin(probability);
    pin(out);
  }

  /* The steps of an item after its first. */
  DEVICE void walk(uint32_t (&probability)[BN / 4])
  {
    int n = s.last - 1;
#pragma unroll 1
    for (; n >= s.first && n > s.full_last; n--)
      step<true>(n, probability);
#pragma unroll 1
    for (; n >= (LOWER && s.full_first > s.first ? s.full_first : s.first); n--)
      step<false>(n, probability);
    if (LOWER)
#pragma unroll 1
      for (; n >= s.first; n--)
        step<true>(n, probability);
    q.next();
  }

  /* AFTER: the last product of the item before, and its end. Then the first step of the next item.
   * False: there is none. */
  template <bool AFTER> DEVICE bool begin(uint32_t (&probability)[BN / 4])
  {
    float x[BN / 2], shrink[2];
    if (AFTER) {
      barrier_wait(base + S::V_FULL + 8 * v.at, v.parity);
      product_fence();
      accumulate(probability);
      product_commit();
    }
    barrier_wait(base + S::Q_FULL + 8 * q.at, q.parity);
    const int i = __shfl_sync(~0u, load_shared(base + S::ITEM + 4 * q.at), 0);
    if (i < 0) {
      if (AFTER) {
        product_wait<0>();
        pin(out);
        finish();
      }
      return false;
    }
    barrier_wait(base + S::K_FULL + 8 * k.at, k.parity);
    product_fence();
    scores(x);
    product_commit();
    if (AFTER) {
      product_wait<1>();
      pin(out);
      pin(probability);
      release_values();
      finish();
    }
    at = item_at(p, i);
    s = span_of<S, LOWER>(p, at);
    query = at.m * S::BM + which * 64 + acc_row(threadIdx.x % 128, 0);
    if (LOWER)
#pragma unroll
      for (int row = 0; row < 2; row++) {
        const int t = query + row * 8;
        low[row] = first_key<LOWER>(p, at.b, t < p.tokens ? t : p.tokens - 1);
      }
    product_wait<0>();
    pin(x);
    release_keys(s.last);
    mask(x, s.last);
    soften<true, true>(x, shrink);
    round(x, probability);
#pragma unroll
    for (int e = 0; e < D / 2; e++)
      out[e] = 0;
    pin(probability);
    pin(out);
    return true;
  }

  DEVICE void finish()
  {
    float each[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
      sum[row] += __shfl_xor_sync(~0u, sum[row], 1);
      sum[row] += __shfl_xor_sync(~0u, sum[row], 2);
      each[row] = __fdividef(1, sum[row]);
      const int t = query + row * 8;
      if (p.lse && threadIdx.x % 4 == 0 && t < p.tokens)
        p.lse[((int64_t)at.b * p.heads + at.h) * p.tokens + t] =
            (most[row] * p.scale_log2 + __log2f(sum[row])) * (1 / LOG2_E);
    }
#pragma unroll
    for (int e = 0; e < D / 2; e++)
      out[e] *= each[e / 2 % 2];
    const int row = at.m * S::BM + which * 64;
    write_rows<D>(p.out + ((int64_t)at.b * p.tokens + row) * p.out_stride + (int64_t)at.h * D,
                  p.out_stride, acc_row(threadIdx.x % 128, 0), p.tokens - row, out, 1.0f);
  }

  DEVICE void run()
  {
    uint32_t probability[BN / 4];
    if (which == 0)
      named_arrive(1, 256);
    if (!begin<false>(probability))
      return;
#pragma unroll 1
    do
      walk(probability);
    while (begin<true>(probability));
  }
};

/* --- arrivals per barrier ------------------------------------------------ */

template <class S> DEVICE void init_barriers(uint32_t base)
{
  for (int i = 0; i < S::Q_STAGES; i++) {
    barrier_init(base + S::Q_FULL + 8 * i, 1);
    barrier_init(base + S::Q_EMPTY + 8 * i, 4 * S::WORKERS);
  }
  for (int i = 0; i < S::STAGES; i++) {
    barrier_init(base + S::K_FULL + 8 * i, 1);
    barrier_init(base + S::K_EMPTY + 8 * i, 4 * S::WORKERS);
    barrier_init(base + S::V_FULL + 8 * i, 1);
    barrier_init(base + S::V_EMPTY + 8 * i, 4 * S::WORKERS);
  }
  barrier_init_fence();
}

template <class S, bool LOWER>
__global__ void __launch_bounds__(S::THREADS, 1) forward(const __grid_constant__ params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), role = warp / 4;
  if (threadIdx.x == 0)
    init_barriers<S>(base);
  __syncthreads();
  if (role == 0) {
    registers_down<S::FEED_REGISTERS>();
    if (threadIdx.x == 0)
      feeder<S, LOWER>{p, base}.run();
  } else {
    registers_up<S::WORK_REGISTERS>();
    worker<S, LOWER>{p, base, role - 1}.run();
  }
#endif
}

/* --- the host's side ----------------------------------------------------- */

template <class S> cudaError_t enqueue(const gpu_launch *launch, const attention *op)
{
  const int64_t D = op->head_width, B = op->batch, T = op->tokens;
  params p = {};
  p.out = (__nv_bfloat16 *)op->out;
  p.lse = op->lse;
  p.first = op->first;
  p.counter = (int *)op->work;
  p.out_stride = op->out_stride;
  p.tokens = (int)T;
  p.window = op->window < T ? (int)op->window : 0;
  p.heads = (int)op->heads;
  p.group = (int)(op->heads / op->kv_heads);
  p.all_heads = (int)(B * op->heads);
  p.set = cuda_work_heads_at_once(op);
  p.query_blocks = (p.tokens + S::BM - 1) / S::BM;
  p.items = p.all_heads * p.query_blocks;
  p.scale_log2 = LOG2_E / std::sqrt((float)D);
  const auto kernel = p.first || p.window ? forward<S, true> : forward<S, false>;
  const cudaError_t error =
      encode(&p.q, op->q, D, op->heads, T, B, op->q_stride, S::BM)
          ?: encode(&p.k, op->k, D, op->kv_heads, T, B, op->k_stride, S::BN)
          ?: encode(&p.v, op->v, D, op->kv_heads, T, B, op->v_stride, S::BN)
          ?: cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)S::BYTES)
          ?: cudaMemsetAsync(p.counter, 0, sizeof *p.counter, launch->stream);
  if (error != cudaSuccess)
    return error;
  const int grid = p.items < launch->multiprocessors ? p.items : launch->multiprocessors;
  kernel<<<(unsigned)grid, S::THREADS, S::BYTES, launch->stream>>>(p);
  return cudaGetLastError();
}

} // namespace

cudaError_t gpu_attention_hopper(const gpu_launch *launch, const attention *op)
{
  switch (op->head_width) {
  case 64: /* few steps: shorter items */
    return op->tokens <= 1024 ? enqueue<shape<64, 2, 128, 3, 2>>(launch, op)
                              : enqueue<shape<64, 3, 128, 3, 2>>(launch, op);
  case 80: return enqueue<shape<80, 2, 128, 2, 1>>(launch, op);
  case 96: return enqueue<shape<96, 2, 128, 2, 1>>(launch, op);
  case 128: return enqueue<shape<128, 2, 128, 2, 1>>(launch, op);
  default: return enqueue<shape<256, 2, 80, 2, 1>>(launch, op);
  }
}
