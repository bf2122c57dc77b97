/* Sparse messages: elements chosen from vectors, and put back. One block of threads per block of a
 * vector. A block of the usual size is kept in registers, and its few large elements are put into
 * shared memory, where the search for the smallest chosen key reads them. Other blocks are read
 * again and again, from the caches. */
#include "compress/rule/select.h"
#include "device/rounding.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32, OWN = SELECT_BINS / THREADS;

#define KEYED(name, ...)                                                                           \
  struct name##_rule {                                                                             \
    static constexpr bool ranked = name##_ranked;                                                  \
    static DEVICE uint32_t key(const selection &op, float x)                                       \
    {                                                                                              \
      return name##_key(&op, x);                                                                   \
    }                                                                                              \
  };
CODEC_KEYED(KEYED)

/* Elements with larger keys are chosen, and the first `ties` elements with this key. */
struct cut {
  uint32_t key, ties;
};

/* Threads read every OWN-th bin. The gaps avoid bank conflicts. */
constexpr int SLOTS = SELECT_BINS + SELECT_BINS / 32;
DEVICE int slot_of(int bin)
{
  return bin + bin / 32;
}

/* Searches from the top bin down for the bin with the ties-th key. *found gets the bin and the rank
 * of this key in it. With fewer keys *found does not change. */
__device__ void find_digit(const uint32_t *count, uint32_t ties, cut *found)
{
  const int top = SELECT_BINS - 1 - threadIdx.x * OWN;
  uint32_t own = 0, all;
  for (int i = 0; i < OWN; i++)
    own += count[slot_of(top - i)];
  const uint32_t until = block_scan<WARPS>(own, &all);
  uint32_t before = until - own;
  if (before >= ties || until < ties)
    return;
  int digit = top;
  for (; before + count[slot_of(digit)] < ties; digit--)
    before += count[slot_of(digit)];
  *found = {(uint32_t)digit, ties - before};
}

/* A warp's share of n elements: consecutive ones, in rows of one element per lane. EACH rows are
 * kept in registers, or (0) elements are read again. map: the numbers of the elements in their
 * block, NULL: they are the block. */
template <typename R, int EACH> struct share {
  const selection &op;
  const float *x;
  const uint16_t *map;
  int begin, end;
  float kept[EACH > 0 ? EACH : 1];

  DEVICE share(const selection &op, int n, const float *x, const uint16_t *map)
      : op(op), x(x), map(map)
  {
    const int warp = threadIdx.x / 32, length = (n + THREADS - 1) / THREADS * 32;
    begin = min(warp * length, n);
    end = min(begin + length, n);
    if constexpr (EACH > 0)
      for (int row = 0; row < EACH; row++)
        kept[row] = read(row);
  }
  DEVICE int rows() const
  {
    return EACH > 0 ? EACH : (end - begin + 31) / 32;
  }
  DEVICE int index(int row) const
  {
    return begin + row * 32 + threadIdx.x % 32;
  }
  DEVICE uint16_t number(int row) const
  {
    return map ? map[index(row)] : (uint16_t)index(row);
  }
  /* 0 after the last element. */
  DEVICE float read(int row) const
  {
    return index(row) < end ? x[index(row)] : 0;
  }
  DEVICE float value(int row) const
  {
    if constexpr (EACH > 0)
      return kept[row];
    return read(row);
  }
  DEVICE uint32_t key(int row) const
  {
    return R::key(op, value(row));
  }
};

/* A key that is not above the smallest chosen one. Powers of two below the largest magnitude are
 * tried, two at a time, so that the search reads few elements. 1: none of these. */
template <typename R, int EACH> __device__ uint32_t least_key(const share<R, EACH> &mine)
{
  constexpr int TRIES = 8, MANTISSA = 23;
  uint32_t top = 0;
#pragma unroll(EACH > 0 ? EACH : 4)
  for (int row = 0; row < mine.rows(); row++)
    top = max(top, mine.key(row));
  uint32_t exponent = over_block<WARPS>(top) >> MANTISSA;
  for (int i = 0; i < TRIES && exponent > 1; i += 2, exponent -= 2) {
    const uint32_t high = exponent << MANTISSA, low = (exponent - 1) << MANTISSA;
    uint32_t n = 0; /* two numbers of at most SELECT_MOST_BLOCK */
#pragma unroll(EACH > 0 ? EACH : 4)
    for (int row = 0; row < mine.rows(); row++) {
      const uint32_t k = mine.key(row);
      n += (k >= high ? 1u << 16 : 0) + (k >= low ? 1 : 0);
    }
    __syncthreads(); /* the result before is read */
    n = over_block<WARPS, true>(n);
    if (n >> 16 >= mine.op.keep)
      return high;
    if ((n & 0xffff) >= mine.op.keep)
      return low;
  }
  return 1;
}

/* A histogram of the next digit of all keys that may still be the smallest chosen one. */
template <typename R, int EACH>
__device__ cut narrow_cut(const share<R, EACH> &mine, int pass, uint32_t least, cut known)
{
  __shared__ uint32_t count[SLOTS];
  __shared__ cut found;
  for (int i = threadIdx.x; i < SLOTS; i += THREADS)
    count[i] = 0;
  if (threadIdx.x == 0)
    found = {0, known.ties};
  __syncthreads();
#pragma unroll(EACH > 0 ? EACH : 4)
  for (int row = 0; row < mine.rows(); row++) {
    const uint32_t k = mine.key(row);
    if (k >= least && (k ^ known.key) >> select_known(pass) == 0)
      atomicAdd(&count[slot_of(select_digit(k, pass))], 1u);
  }
  __syncthreads();
  find_digit(count, known.ties, &found);
  __syncthreads();
  const cut next = {known.key | found.key << select_shift(pass), found.ties};
  __syncthreads();
  return next;
}

/* Elements of a warp's share: of larger keys than the cut's in x, of the cut's key in y. Without
 * TIES the cut has no ties. */
template <bool TIES, typename R, int EACH>
__device__ uint2 count_share(const share<R, EACH> &mine, cut cut)
{
  uint2 count = {0, 0};
#pragma unroll(EACH > 0 ? EACH : 4)
  for (int row = 0; row < mine.rows(); row++) {
    const uint32_t k = mine.key(row);
    count.x += k > cut.key;
    count.y += TIES && k == cut.key && k > 0;
  }
  return {(uint32_t)__reduce_add_sync(ALL_LANES, count.x),
          (uint32_t)__reduce_add_sync(ALL_LANES, count.y)};
}

/* Slots of a block, with indices or bits. Bits are in shared memory. */
struct sink {
  uint16_t *indices;
  uint32_t *bits;
  float *values;

  DEVICE void put(uint32_t slot, uint16_t number, float value) const
  {
    if (bits)
      atomicOr(&bits[number / 32], 1u << number % 32);
    else
      indices[slot] = number;
    values[slot] = value;
  }
};

/* The same elements to their slots, after those `before` the share. Returns the slots in use. */
template <bool TIES, typename R, int EACH>
__device__ uint32_t store_share(const share<R, EACH> &mine, cut cut, uint2 before, const sink &to)
{
  const uint32_t lower = (1u << threadIdx.x % 32) - 1;
#pragma unroll(EACH > 0 ? EACH : 1)
  for (int row = 0; row < mine.rows(); row++) {
    const uint32_t k = mine.key(row);
    const bool larger = k > cut.key, equal = TIES && k == cut.key && k > 0;
    if (!__any_sync(ALL_LANES, larger || equal))
      continue;
    const uint32_t all_larger = __ballot_sync(ALL_LANES, larger),
                   all_equal = __ballot_sync(ALL_LANES, equal),
                   ties = before.y + __popc(all_equal & lower);
    if (larger || (equal && ties < cut.ties)) {
      const uint32_t slot = before.x + __popc(all_larger & lower) + min(ties, cut.ties);
      to.put(slot, mine.number(row), mine.value(row));
    }
    before.x += __popc(all_larger);
    before.y += __popc(all_equal);
  }
  return before.x + min(before.y, cut.ties);
}

/* The elements of all shares to their slots. Shares are consecutive, so that slots ascend. Returns
 * the slots in use. All threads may read them then. */
template <bool TIES, typename R, int EACH>
__device__ uint32_t store_chosen(const share<R, EACH> &mine, cut cut, const sink &to)
{
  __shared__ uint2 count[WARPS];
  __shared__ uint32_t used;
  const int warp = threadIdx.x / 32;
  const uint2 own = count_share<TIES>(mine, cut);
  if (threadIdx.x % 32 == 0)
    count[warp] = own;
  __syncthreads();
  uint2 before = {0, 0};
  for (int w = 0; w < warp; w++)
    before.x += count[w].x, before.y += count[w].y;
  const uint32_t until = store_share<TIES>(mine, cut, before, to);
  if (threadIdx.x == THREADS - 1)
    used = until;
  __syncthreads();
  return used;
}

/* The chosen elements of a block, and unused slots after them. `least` is a key that is not above
 * the smallest chosen one. */
template <typename R, int EACH>
__device__ void choose(const share<R, EACH> &mine, uint32_t least, const sink &to)
{
  cut cut = {R::ranked ? 0u : 1u, (uint32_t)mine.op.keep};
  for (int pass = 0; R::ranked && pass < SELECT_PASSES; pass++)
    cut = narrow_cut(mine, pass, least, cut);
  const uint32_t used = store_chosen<true>(mine, cut, to);
  for (int slot = used + threadIdx.x; slot < mine.op.keep; slot += THREADS) {
    if (!to.bits)
      to.indices[slot] = SELECT_UNUSED;
    to.values[slot] = 0;
  }
}

/* A row of the grid per vector. */
template <typename R, int EACH>
__global__ void __launch_bounds__(THREADS)
    select_keyed(const selection op, int64_t n, int first, const float *x, const slots slots)
{
  const int64_t part = first + blockIdx.y, block = blockIdx.x;
  const share<R, EACH> mine(op, (int)select_length(&op, n, block), x + part * n + block * op.block,
                            NULL);
  constexpr int words = (EACH > 0 ? EACH * THREADS : SELECT_MOST_BLOCK) / 32;
  __shared__ uint32_t chosen[words];
  uint32_t *bits = select_bits(&op, &slots, part, block);
  const sink to = {select_indices(&op, &slots, part, block), bits ? chosen : NULL,
                   select_values(&op, &slots, part, block)};
  for (int w = threadIdx.x; bits && w < select_words(&op); w += THREADS)
    chosen[w] = 0; /* store_chosen() lets all threads meet before it sets bits */
  const uint32_t least = R::ranked ? least_key(mine) : 0;
  if constexpr (R::ranked && EACH > 0) {
    __shared__ float large[EACH * THREADS];
    __shared__ uint16_t number[EACH * THREADS];
    const uint32_t count = store_chosen<false>(mine, {least - 1, 0}, {number, NULL, large});
    choose(share<R, 0>(op, (int)count, large, number), least, to);
  } else {
    choose(mine, least, to);
  }
  for (int w = threadIdx.x; bits && w < select_words(&op); w += THREADS)
    bits[w] = chosen[w];
}

template <typename R>
void run_select(cudaStream_t stream, const selection &op, int64_t n, int parts, const float *x,
                const slots &slots)
{
  constexpr int usual = 4096; /* the same condition as in compress/sparsifier.c */
  const auto kernel = op.block == usual ? select_keyed<R, usual / THREADS> : select_keyed<R, 0>;
  for (int first = 0; first < parts; first += MOST_ROWS) {
    const dim3 grid((unsigned)select_blocks(&op, n), (unsigned)min(parts - first, MOST_ROWS));
    kernel<<<grid, THREADS, 0, stream>>>(op, n, first, x, slots);
  }
}

/* A thread per slot. */
__global__ void __launch_bounds__(THREADS)
    select_random(const selection op, int64_t n, int64_t blocks, int64_t all, const float *x,
                  const slots slots)
{
  const int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (item >= all)
    return;
  int64_t row, slot, part, block;
  split(item, op.keep, &row, &slot);
  split(row, blocks, &part, &block);
  const int64_t i = randomk_index(&op, rounding_bits(op.seed, block), slot);
  const float *from = x + part * n + block * op.block;
  select_values(&op, &slots, part, block)[slot] =
      i < select_length(&op, n, block) ? from[i] * op.scale : 0;
}

/* `parts` messages are added to one vector, one after the other. */
template <bool RANDOM, typename T>
__global__ void __launch_bounds__(THREADS)
    scatter_parts(const selection op, int64_t n, int64_t first, int parts, const slots slots,
                  enum scatter_mode mode, T *out)
{
  first += blockIdx.y;
  const int64_t block = blockIdx.x, length = select_length(&op, n, block);
  const uint32_t bits = RANDOM ? rounding_bits(op.seed, block) : 0;
  T *to = out + first * n + block * op.block;
  for (int64_t i = threadIdx.x; mode == SCATTER_SET && i < length; i += THREADS)
    to[i] = from_float<T>(0);
  for (int64_t part = first; part < first + parts; part++) {
    const uint16_t *indices = RANDOM ? NULL : select_indices(&op, &slots, part, block);
    const float *values = select_values(&op, &slots, part, block);
    __syncthreads();
    for (int64_t slot = threadIdx.x; slot < op.keep; slot += THREADS) {
      const int64_t i = RANDOM ? randomk_index(&op, bits, slot) : indices[slot];
      const float value = mode == SCATTER_SUBTRACT ? -values[slot] : values[slot];
      if (i < length)
        to[i] = from_float<T>(to_float(to[i]) + value);
    }
  }
}

/* before[w]: bits that are set in the words below w. All threads may read them then. */
__device__ void count_before(int words, const uint32_t *bits, uint32_t *before)
{
  const int each = (words + THREADS - 1) / THREADS, begin = min((int)threadIdx.x * each, words),
            end = min(begin + each, words);
  uint32_t own = 0, all;
  for (int w = begin; w < end; w++)
    own += __popc(bits[w]);
  __syncthreads(); /* the sums and counts of the message before are read */
  uint32_t at = block_scan<WARPS>(own, &all) - own;
  for (int w = begin; w < end; w++) {
    before[w] = at;
    at += __popc(bits[w]);
  }
  __syncthreads();
}

/* The same of messages with bits: a thread per element. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    scatter_bits(const selection op, int64_t n, int64_t first, int parts, const slots slots,
                 enum scatter_mode mode, T *out)
{
  __shared__ uint32_t before[SELECT_MOST_BLOCK / 32];
  first += blockIdx.y;
  const int64_t block = blockIdx.x;
  const int length = (int)select_length(&op, n, block), lane = threadIdx.x % 32;
  T *to = out + first * n + block * op.block;
  for (int64_t part = first; part < first + parts; part++) {
    const uint32_t *bits = select_bits(&op, &slots, part, block);
    const float *values = select_values(&op, &slots, part, block);
    const bool sets = mode == SCATTER_SET && part == first;
    count_before((int)select_words(&op), bits, before);
    for (int i = threadIdx.x; i < length; i += THREADS) {
      const uint32_t word = bits[i / 32], slot = before[i / 32] + __popc(word & ((1u << lane) - 1));
      const bool arrives = word >> lane & 1 && slot < op.keep;
      const float value = !arrives ? 0 : mode == SCATTER_SUBTRACT ? -values[slot] : values[slot];
      if (arrives || sets)
        to[i] = from_float<T>((sets ? 0 : to_float(to[i])) + value);
    }
  }
}

template <typename T>
void scatter_as(cudaStream_t stream, const selection &op, int64_t n, int parts, const slots &slots,
                enum scatter_mode mode, T *out)
{
  const bool each = scatter_takes_each(mode);
  const int vectors = each ? parts : 1, together = each ? 1 : parts;
  const auto kernel = op.rule == SELECT_randomk ? scatter_parts<true, T>
                      : slots.bits              ? scatter_bits<T>
                                                : scatter_parts<false, T>;
  if (n == 0)
    return;
  for (int first = 0; first < vectors; first += MOST_ROWS) {
    const dim3 grid((unsigned)select_blocks(&op, n), (unsigned)min(vectors - first, MOST_ROWS));
    kernel<<<grid, THREADS, 0, stream>>>(op, n, first, together, slots, mode, out);
  }
}

} // namespace

void gpu_select(const gpu_launch *launch, const selection *op, int64_t n, int parts, const float *x,
                const slots *slots)
{
  const int64_t blocks = select_blocks(op, n), all = parts * blocks * op->keep;
  if (all == 0)
    return;
#define SELECT_CASE(name, ...)                                                                     \
  case SELECT_##name: run_select<name##_rule>(launch->stream, *op, n, parts, x, *slots); break;
  switch (op->rule) {
    CODEC_KEYED(SELECT_CASE)
  case SELECT_randomk: for_items(launch, all, select_random, *op, n, blocks, all, x, *slots); break;
  }
}

void gpu_scatter(const gpu_launch *launch, const selection *op, int64_t n, int parts,
                 const slots *slots, enum scatter_mode mode, enum dtype type, void *out)
{
  with_bf16(type == DTYPE_BF16, [&](auto t) {
    scatter_as(launch->stream, *op, n, parts, *slots, mode, (decltype(t) *)out);
  });
}
