/* The work of the warpgroups of the kernel `gradient` in attention_hopper.cu, which lists their
 * roles. A block's roles are synchronised by barriers alone.
 *
 * Tiles and accumulators lie as attention_tiles.cuh says. A thread that waits for a barrier waits
 * for each of its phases in turn. No thread can be two phases late, see `note`. */
#pragma once

#include "gpu/attention_schedule.h"
#include "gpu/attention_tiles.cuh"

namespace attention_roles {

using namespace attention_tiles;

constexpr int BM = ATTENTION_QUERIES, BN = CUDA_WORK_KEYS, THREADS = 512;
constexpr int FEED_REGISTERS = 32, KEYS_REGISTERS = 208, QUERIES_REGISTERS = 64;
static_assert(FEED_REGISTERS + 2 * KEYS_REGISTERS + QUERIES_REGISTERS <= 512,
              "a multiprocessor has 512 registers for a thread of each of 4 warpgroups together");

struct params {
  CUtensorMap q, k, v, dout; /* [B][T][heads][D], boxes of 64 elements x 64 or 128 tokens */
  float *stats;              /* [B, H, query_blocks][2 * BM]: -lse * log2(e), then delta */
  float *dq_sum;             /* [B, H, query_blocks][D / 64][8][128][4]: fragments of 64 x 64 */
  int *flags;                /* [B, H, query_blocks]: how many key blocks were added */
  int *counter;              /* the next item */
  __nv_bfloat16 *dq, *dk, *dv;
  int64_t dq_stride, dk_stride, dv_stride;
  int tokens, heads, kv_heads, group, query_blocks, key_blocks, all_kv_heads /* of the batch */;
  float scale, scale_log2;
  const int *first; /* [B, tokens]: the first key that a query sees; NULL: 0 */
  int window;
};

template <bool LOWER> DEVICE attention_seen seen_in(const params &p, int b)
{
  if (!LOWER)
    return {NULL, p.tokens, 0, BN};
  return {p.first ? p.first + (int64_t)b * p.tokens : NULL, p.tokens, p.window, BN};
}

/* Shared memory, in bytes from its beginning, and its barriers. */
template <int D> struct plan {
  static constexpr int STAGES = D == 128 ? 3 : 4, KV_STAGES = D == 128 ? 1 : 2,
                       NOTES = D == 128 ? 8 : 16, PARTS = D / 64;
  static constexpr uint32_t KV_TILE = BN * D * 2, Q_TILE = BM * D * 2, DS_TILE = BN * BM * 2,
                            SUM_TILE = BM * 64 * 4;
  static constexpr uint32_t K = 0, V = K + KV_STAGES * KV_TILE, Q = V + KV_STAGES * KV_TILE,
                            DO = Q + STAGES * Q_TILE, DS = DO + STAGES * Q_TILE,
                            SUM = DS + 2 * DS_TILE, STATS = SUM + 2 * SUM_TILE,
                            BARRIERS = STATS + STAGES * BM * 8;
  static constexpr uint32_t Q_FULL = BARRIERS, Q_EMPTY = Q_FULL + 8 * STAGES,
                            DO_FULL = Q_EMPTY + 8 * STAGES, DO_EMPTY = DO_FULL + 8 * STAGES,
                            DS_FULL = DO_EMPTY + 8 * STAGES, DS_EMPTY = DS_FULL + 8 * 2,
                            KV_FULL = DS_EMPTY + 8 * 2, KV_EMPTY = KV_FULL + 8 * KV_STAGES,
                            TOLD = KV_EMPTY + 8 * KV_STAGES, SUM_FULL = TOLD + 8 * NOTES,
                            SUM_EMPTY = SUM_FULL + 8 * 4, NOTE = (SUM_EMPTY + 8 * 2 + 15) / 16 * 16,
                            FIRST = NOTE + 16 * NOTES, BYTES = FIRST + 16;
  static_assert(BYTES <= 232448, "a block's shared memory");
};

/* A note of the feeding thread about step c, in a ring of NOTES. Step c + NOTES is fed when the
 * keys have finished step c + NOTES - STAGES. Then the queries have finished the product of two
 * steps earlier, so at least step c + 1's room in SUM was given back. So by then all threads have
 * read step c's note and waited for its barriers, and thread 64 has also read the note of step
 * 0. */
struct note {
  int what; /* LAST: last step of the item; STOP: and of the block; from bit FROM on: number of
               query blocks since the key block's first one */
  int item;
  int block; /* (b * H + h) * query_blocks + m */
  int place; /* BEGIN, END: of the sum; KV_PARITY, KV_AT: of the stage with K and V; from bit PLACE
                on: number of earlier key blocks */
};
enum { LAST = 1, STOP = 2, FROM = 4, BEGIN = 1, END = 2, KV_PARITY = 4, KV_AT = 8 };
enum { PLACE = CUDA_WORK_PLACE };

template <int D> DEVICE uint32_t note_at(uint32_t base, uint32_t step)
{
  return base + plan<D>::NOTE + 16 * (step % plan<D>::NOTES);
}

template <int D> DEVICE void wait_for_note(uint32_t base, uint32_t step)
{
  using P = plan<D>;
  barrier_wait(base + P::TOLD + 8 * (step % P::NOTES), step / P::NOTES % 2);
}

/* --- products of tiles --------------------------------------------------- */

/* x = A B^T over the head's width: A 64 rows of a key tile, B a query tile. */
template <int D> DEVICE void scores(float (&x)[32], uint32_t keys, uint32_t queries)
{
  const uint64_t a = descriptor(keys, 16), b = descriptor(queries, 16);
  product_first<0, 0>(x, a, b);
#pragma unroll
  for (int k = 1; k < D / 16; k++)
    product_add<0, 0>(x, behind(a, k / 4 * BN * ROW + k % 4 * 32),
                      behind(b, k / 4 * BM * ROW + k % 4 * 32));
}

/* x += A^T B over a tile's queries, A from registers. */
template <int D>
DEVICE void accumulate(float (&x)[D / 2], const uint32_t (&a)[16], uint32_t queries)
{
  const uint64_t b = descriptor(queries, BM * ROW);
#pragma unroll
  for (int k = 0; k < BM / 16; k++)
    product_add<1>(x, a[4 * k], a[4 * k + 1], a[4 * k + 2], a[4 * k + 3], behind(b, k * K_STEP));
}

/* --- the feeding thread -------------------------------------------------- */

template <int D, bool LOWER> struct feeder {
  using P = plan<D>;
  const params &p;
  uint32_t base, step = 0;
  ring<P::STAGES> stage;
  ring<P::KV_STAGES> kv;

  DEVICE void keys(const attention_item &item, int b)
  {
    const uint32_t full = base + P::KV_FULL + 8 * kv.at, to = kv.at * P::KV_TILE;
    barrier_wait(base + P::KV_EMPTY + 8 * kv.at, kv.parity ^ 1);
    barrier_arrive_expecting(full, 2 * P::KV_TILE);
    for (int d = 0; d < D; d += 64) {
      load_box(base + P::K + to + d / 64 * BN * ROW, &p.k, full, d, item.head % p.kv_heads,
               item.n * BN, b);
      load_box(base + P::V + to + d / 64 * BN * ROW, &p.v, full, d, item.head % p.kv_heads,
               item.n * BN, b);
    }
  }

  DEVICE void tell(const note &n)
  {
    store_shared4(note_at<D>(base, step), n.what, n.item, n.block, n.place);
    barrier_arrive(base + P::TOLD + 8 * (step % P::NOTES));
    step++;
  }

  DEVICE void queries(int h, int m, int b, int block)
  {
    const uint32_t q_full = base + P::Q_FULL + 8 * stage.at,
                   do_full = base + P::DO_FULL + 8 * stage.at, to = stage.at * P::Q_TILE;
    barrier_arrive_expecting(q_full, P::Q_TILE + BM * 8);
    for (int d = 0; d < D; d += 64)
      load_box(base + P::Q + to + d / 64 * BM * ROW, &p.q, q_full, d, h, m * BM, b);
    load_bulk(base + P::STATS + stage.at * BM * 8, p.stats + (int64_t)block * (2 * BM), BM * 8,
              q_full);
    barrier_wait(base + P::DO_EMPTY + 8 * stage.at, stage.parity ^ 1);
    barrier_arrive_expecting(do_full, P::Q_TILE);
    for (int d = 0; d < D; d += 64)
      load_box(base + P::DO + to + d / 64 * BM * ROW, &p.dout, do_full, d, h, m * BM, b);
    stage.next();
  }

  /* All items of this block, the first one taken already. The next one is taken two steps before
   * the end. An idle block would begin it sooner, so it is not taken earlier. */
  DEVICE void run(int i)
  {
    const int items = p.all_kv_heads * p.key_blocks;
    for (int next = 0; i < items; i = next) {
      const attention_item item = attention_item_at(i, p.all_kv_heads, p.key_blocks);
      const int b = item.head / p.kv_heads;
      const attention_seen seen = seen_in<LOWER>(p, b);
      const int meets = attention_meets(&seen, item.n),
                first = attention_begin(&seen, &item, meets),
                diagonal = attention_diagonal(&seen, item.n);
      int h = item.head % p.kv_heads * p.group, m = first, left = p.group * meets;
      keys(item, b);
      if (left == 1)
        next = atomicAdd(p.counter, 1);
      while (left > 0) {
        if (left == 2)
          next = atomicAdd(p.counter, 1);
        left--;
        barrier_wait(base + P::Q_EMPTY + 8 * stage.at, stage.parity ^ 1);
        const int place = attention_place(&seen, &item, m),
                  block = (b * p.heads + h) * p.query_blocks + m;
        note n;
        n.what = (m - diagonal) * FROM | (left == 0 ? LAST : 0) |
                 (left == 0 && next >= items ? STOP : 0);
        n.item = i;
        n.block = block;
        n.place = place * PLACE | (place == 0 ? BEGIN : 0) |
                  (place == attention_terms(&seen, m) - 1 ? END : 0) | kv.parity * KV_PARITY |
                  kv.at * KV_AT;
        tell(n);
        queries(h, m, b, block);
        m += item.up ? 1 : -1;
        if (m == diagonal + meets || m < diagonal) { /* the next head of the group */
          m = first;
          h++;
        }
      }
      kv.next();
    }
  }
};

/* --- the keys' warpgroups ------------------------------------------------ */

/* Masks the scores of keys that come after the query, in a block on the diagonal. */
DEVICE void mask(float (&x)[32])
{
  const int t = threadIdx.x % 128, ahead = acc_row(t, 0) - acc_column(t, 0);
#pragma unroll
  for (int e = 0; e < 32; e++)
    if (ahead + acc_row(0, e) > acc_column(0, e))
      x[e] = -INFINITY;
}

/* A tile: 64 queries, and 64 keys. */
struct tile {
  attention_seen seen;
  int query, key; /* the first ones */

  DEVICE bool sees() const
  {
    return attention_first_key(&seen, query) <= key + 63;
  }

  /* Masks the scores of keys before the first one that a query sees. */
  DEVICE void hide(float (&x)[32]) const
  {
    const int left = seen.tokens - query;
    if (attention_first_key(&seen, query + (left < BM ? left : BM) - 1) <= key)
      return;
    const int t = threadIdx.x % 128, row = key + acc_row(t, 0);
#pragma unroll
    for (int e = 0; e < 32; e++) {
      const int column = acc_column(t, e);
      if (column < left && row + acc_row(0, e) < attention_first_key(&seen, query + column))
        x[e] = -INFINITY;
    }
  }
};

template <int D, bool LOWER> struct keys_worker {
  using P = plan<D>;
  const params &p;
  uint32_t base;
  int half; /* which 64 keys */
  uint32_t step = 0;
  ring<P::STAGES> stage;
  ring<P::KV_STAGES> kv;
  ring<2> ds_ring;
  float dk[D / 2], dv[D / 2];

  DEVICE bool leads() const
  {
    return threadIdx.x % 32 == 0;
  }

  /* dS^T to shared memory, [128 keys][64 queries], as matrices of 8 x 8 whose rows the lanes
   * hold. */
  DEVICE void hand_over(const uint32_t (&ds)[16])
  {
    const int t = threadIdx.x % 128, lane = t % 32,
              key = half * 64 + t / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
    const uint32_t to =
        base + P::DS + ds_ring.at * P::DS_TILE + ((key * ROW + lane / 16 * 16) ^ (key % 8 * 16));
    barrier_wait(base + P::DS_EMPTY + 8 * ds_ring.at, ds_ring.parity ^ 1);
#pragma unroll
    for (int j = 0; j < 4; j++)
      store_matrices(to ^ (j << 5), ds[4 * j], ds[4 * j + 1], ds[4 * j + 2], ds[4 * j + 3]);
    proxy_fence_shared();
    __syncwarp();
    if (leads())
      barrier_arrive(base + P::DS_FULL + 8 * ds_ring.at);
    ds_ring.next();
  }

  /* A step whose queries see none of these keys: dS is 0, and there is no other work. */
  DEVICE void pass()
  {
    const uint32_t none[16] = {};
    hand_over(none);
    barrier_wait(base + P::DO_FULL + 8 * stage.at, stage.parity);
    __syncwarp();
    barrier_arrive(base + P::Q_EMPTY + 8 * stage.at);
    if (leads())
      barrier_arrive(base + P::DO_EMPTY + 8 * stage.at);
    stage.next();
  }

  /* P^T from S^T. */
  DEVICE void probabilities(const float (&x)[32], uint32_t lse, uint32_t (&out)[16])
  {
#pragma unroll
    for (int c = 0; c < 8; c++) {
      const float2 l = load_shared2(lse + 32 * c);
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        out[2 * c + e / 2] = pack(exp2_fast(fmaf(x[4 * c + e], p.scale_log2, l.x)),
                                  exp2_fast(fmaf(x[4 * c + e + 1], p.scale_log2, l.y)));
    }
  }

  /* dS^T from dP^T and the rounded P^T, for which there are registers. */
  DEVICE void gradients(const float (&x)[32], uint32_t delta, const uint32_t (&probability)[16],
                        uint32_t (&out)[16])
  {
#pragma unroll
    for (int c = 0; c < 8; c++) {
      const float2 d = load_shared2(delta + 32 * c);
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const uint32_t two = probability[2 * c + e / 2];
        out[2 * c + e / 2] =
            pack(low_of(two) * (x[4 * c + e] - d.x), high_of(two) * (x[4 * c + e + 1] - d.y));
      }
    }
  }

  /* A step; Q is there. One block of registers holds S, then dP, while dV's product is under way.
   * With `last` the next step's Q is not waited for. */
  DEVICE void advance(int from, bool last, const tile &at, uint32_t k, uint32_t v)
  {
    const uint32_t lse = base + P::STATS + stage.at * BM * 8 + threadIdx.x % 4 * 8,
                   delta = lse + BM * 4;
    const uint32_t q = base + P::Q + stage.at * P::Q_TILE,
                   dout = base + P::DO + stage.at * P::Q_TILE;
    float x[32];
    uint32_t probability[16], ds[16];
    product_fence();
    scores<D>(x, k, q);
    product_commit();
    product_wait<0>();
    pin(x);
    if (from == half)
      mask(x);
    if (LOWER)
      at.hide(x);
    probabilities(x, lse, probability);
    pin(probability);
    barrier_wait(base + P::DO_FULL + 8 * stage.at, stage.parity);
    product_fence();
    scores<D>(x, v, dout);
    product_commit();
    accumulate<D>(dv, probability, dout);
    product_commit();
    product_wait<1>(); /* dP is there, dV under way */
    pin(x);
    if (last && leads())
      barrier_arrive(base + P::KV_EMPTY + 8 * kv.at);
    gradients(x, delta, probability, ds);
    pin(ds);
    product_fence();
    accumulate<D>(dk, ds, q);
    product_commit();
    hand_over(ds);
    product_wait<1>(); /* dV is done */
    pin(probability);
    if (leads())
      barrier_arrive(base + P::DO_EMPTY + 8 * stage.at);
    const uint32_t q_empty = base + P::Q_EMPTY + 8 * stage.at;
    stage.next();
    if (!last)
      barrier_wait(base + P::Q_FULL + 8 * stage.at, stage.parity);
    product_wait<0>(); /* dK is done */
    pin(ds);
    barrier_arrive(q_empty);
  }

  DEVICE tile tile_of(int from) const
  {
    if (!LOWER)
      return {};
    const int block = __shfl_sync(~0u, load_shared(note_at<D>(base, step) + 8), 0),
              b = block / p.query_blocks / p.heads, query = block % p.query_blocks * BM;
    return {seen_in<LOWER>(p, b), query, query - from * BM + half * 64};
  }

  DEVICE bool sees(int from, const tile &at) const
  {
    return from >= half && (!LOWER || at.sees());
  }

  /* The steps of an item, whose number it returns. */
  DEVICE int walk(bool *stop)
  {
    const uint32_t k = base + P::K + kv.at * P::KV_TILE + half * 64 * ROW,
                   v = base + P::V + kv.at * P::KV_TILE + half * 64 * ROW;
    for (bool last = false, there = false;; step++) {
      if (!there)
        barrier_wait(base + P::Q_FULL + 8 * stage.at, stage.parity);
      const int what = __shfl_sync(~0u, load_shared(note_at<D>(base, step)), 0), from = what / FROM;
      const tile at = tile_of(from);
      last = what & LAST;
      there = sees(from, at) && !last;
      if (sees(from, at))
        advance(from, last, at, k, v);
      else {
        if (last && leads())
          barrier_arrive(base + P::KV_EMPTY + 8 * kv.at);
        pass();
      }
      if (last) {
        *stop = what & STOP;
        return load_shared(note_at<D>(base, step++) + 4);
      }
    }
  }

  DEVICE void run()
  {
    const int t = threadIdx.x % 128;
    for (bool stop = false; !stop;) {
      barrier_wait(base + P::KV_FULL + 8 * kv.at, kv.parity);
#pragma unroll
      for (int e = 0; e < D / 2; e++)
        dk[e] = dv[e] = 0;
      const int i = walk(&stop);
      pin(dk);
      pin(dv);
      const attention_item item = attention_item_at(i, p.all_kv_heads, p.key_blocks);
      const int b = item.head / p.kv_heads, key = item.n * BN + half * 64, rows = p.tokens - key;
      const int64_t token = (int64_t)b * p.tokens + key,
                    column = (int64_t)(item.head % p.kv_heads) * D;
      write_rows<D>(p.dv + token * p.dv_stride + column, p.dv_stride, acc_row(t, 0), rows, dv,
                    1.0f);
      write_rows<D>(p.dk + token * p.dk_stride + column, p.dk_stride, acc_row(t, 0), rows, dk,
                    p.scale);
      kv.next();
    }
  }
};

/* --- the queries' warpgroup, and the threads that add -------------------- */

template <int D> DEVICE void multiply_queries(uint32_t base)
{
  using P = plan<D>;
  const int t = threadIdx.x % 128, lane = t % 32;
  for (uint32_t step = 0;; step++) {
    const uint32_t told = note_at<D>(base, step), ds = base + P::DS + step % 2 * P::DS_TILE;
    barrier_wait(base + P::DS_FULL + 8 * (step % 2), step / 2 % 2);
    const int what = __shfl_sync(~0u, load_shared(told), 0),
              place = __shfl_sync(~0u, load_shared(told + 12), 0);
    const uint32_t kv = P::KV_STAGES == 1 ? 0 : place / KV_AT % 2,
                   k = base + P::K + kv * P::KV_TILE;
    barrier_wait(base + P::KV_FULL + 8 * kv, place / KV_PARITY % 2);
    float x[32];
#pragma unroll 1 /* registers */
    for (int part = 0; part < P::PARTS; part++) {
      const uint32_t u = step * P::PARTS + part, to = base + P::SUM + u % 2 * P::SUM_TILE + 16 * t;
      const uint64_t a = descriptor(ds, BM * ROW), b = descriptor(k + part * BN * ROW, BN * ROW);
      __syncwarp();
      product_fence();
      product_first<1, 1>(x, a, b);
#pragma unroll
      for (int j = 1; j < BN / 16; j++)
        product_add<1, 1>(x, behind(a, j * K_STEP), behind(b, j * K_STEP));
      product_commit();
      barrier_wait(base + P::SUM_EMPTY + 8 * (u % 2), u / 2 % 2 ^ 1);
      __syncwarp();
      product_wait<0>();
      pin(x);
      if (part == P::PARTS - 1 && lane == 0) {
        barrier_arrive(base + P::DS_EMPTY + 8 * (step % 2));
        if (what & LAST)
          barrier_arrive(base + P::KV_EMPTY + 8 * kv);
      }
#pragma unroll
      for (int i = 0; i < 8; i++)
        store_shared4(to + 16 * 128 * i, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
      proxy_fence_shared();
      __syncwarp();
      if (lane == 0)
        barrier_arrive(base + P::SUM_FULL + 8 * (u % 4));
    }
    if (what & STOP)
      break;
  }
}

/* Is this step the block's last one? */
template <int D> DEVICE bool stops(uint32_t base, uint32_t step)
{
  wait_for_note<D>(base, step);
  return load_shared(note_at<D>(base, step)) & STOP;
}

/* Every other step from `first` on. Room in SUM is given back only after the next step's note is
 * read, because afterwards the note may be overwritten. The next step belongs to the other adding
 * thread. */
template <int D> DEVICE void add_to_sums(const params &p, uint32_t base, uint32_t first)
{
  using P = plan<D>;
  bool stop = first == 1 && stops<D>(base, 0);
  for (uint32_t step = first; !stop; step += 2) {
    stop = stops<D>(base, step);
    const int block = load_shared(note_at<D>(base, step) + 8),
              place = load_shared(note_at<D>(base, step) + 12);
    if (!(place & BEGIN)) {
      while (flag_load(p.flags + block) != place / PLACE)
        ;
      proxy_fence_global();
    }
#pragma unroll
    for (int part = 0; part < P::PARTS; part++) {
      const uint32_t u = step * P::PARTS + part, from = base + P::SUM + u % 2 * P::SUM_TILE;
      float *to = p.dq_sum + ((int64_t)block * P::PARTS + part) * (BM * 64);
      barrier_wait(base + P::SUM_FULL + 8 * (u % 4), u / 4 % 2);
      if (place & BEGIN)
        store_bulk(to, from, P::SUM_TILE);
      else
        add_bulk(to, from, P::SUM_TILE);
      bulk_commit();
    }
    stop = stop || stops<D>(base, step + 1);
#pragma unroll
    for (int part = 0; part < P::PARTS; part++) {
      if (part == P::PARTS - 1)
        bulk_wait_read<0>();
      else
        bulk_wait_read<1>();
      barrier_arrive(base + P::SUM_EMPTY + 8 * ((step * P::PARTS + part) % 2));
    }
    if (!(place & END)) {
      bulk_wait<0>();
      proxy_fence_global();
      flag_store(p.flags + block, place / PLACE + 1);
    }
  }
  bulk_wait<0>();
}

/* --- arrivals per barrier ------------------------------------------------ */

template <int D> DEVICE void init_barriers(uint32_t base)
{
  using P = plan<D>;
  for (int i = 0; i < P::STAGES; i++) {
    barrier_init(base + P::Q_FULL + 8 * i, 1);
    barrier_init(base + P::DO_FULL + 8 * i, 1);
    barrier_init(base + P::Q_EMPTY + 8 * i,
                 256); /* the keys' threads, which read lse and delta themselves */
    barrier_init(base + P::DO_EMPTY + 8 * i, 8); /* their warps: dO is read by products alone */
  }
  for (int i = 0; i < 2; i++) {
    barrier_init(base + P::DS_FULL + 8 * i, 8);
    barrier_init(base + P::DS_EMPTY + 8 * i, 4); /* the queries' */
    barrier_init(base + P::SUM_EMPTY + 8 * i, 1);
  }
  for (int i = 0; i < 4; i++)
    barrier_init(base + P::SUM_FULL + 8 * i, 4);
  for (int i = 0; i < P::NOTES; i++)
    barrier_init(base + P::TOLD + 8 * i, 1);
  for (int i = 0; i < P::KV_STAGES; i++) {
    barrier_init(base + P::KV_FULL + 8 * i, 1);
    barrier_init(base + P::KV_EMPTY + 8 * i, 12);
  }
  barrier_init_fence();
}

} // namespace attention_roles
