/* Quantised messages, one template for every rule of src/compress/rule. To decode, a warp takes a
 * frame. To encode, it takes a frame, a block or several blocks. This is compiled without fused
 * multiply-adds (gpu/local.mk), because messages are the host's bits. */
#include "compress/rule/quantise.h"
#include "device/rounding.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256;

struct task {
  struct quantise op;
  int64_t n, blocks, frame, frames; /* of a vector; frame: elements */
  int64_t stride, codes;            /* bytes: of a message, before its codes */
  int parts;
  rounding_key key; /* of elements below 2^32 */
};

DEVICE int lane_of()
{
  return (int)threadIdx.x % QUANT_LANES;
}

/* The number of this warp in its vector. */
DEVICE int64_t warp_of()
{
  return ((int64_t)blockIdx.x * THREADS + threadIdx.x) / QUANT_LANES;
}

/* Transforms of the elements that a lane shares with three others. */
DEVICE void rotate_rows(float *x)
{
#pragma unroll
  for (int half = QUANT_ROTATED / 2; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < QUANT_ROTATED; k++)
      if (!(k & half)) {
        const float sum = x[k] + x[k + half], difference = x[k] - x[k + half];
        x[k] = sum;
        x[k + half] = difference;
      }
#pragma unroll
  for (int half = 16; half >= 8; half /= 2)
#pragma unroll
    for (int k = 0; k < QUANT_ROTATED; k++) {
      const float other = __shfl_xor_sync(ALL_LANES, x[k], half);
      x[k] = lane_of() & half ? other - x[k] : x[k] + other;
    }
#pragma unroll
  for (int k = 0; k < QUANT_ROTATED; k++)
    x[k] *= QUANT_ROTATION;
}

template <int N> DEVICE void rotate(float (&x)[N])
{
  static_assert(N % QUANT_ROTATED == 0, "a chunk holds whole transforms");
#pragma unroll
  for (int k = 0; k < N; k += QUANT_ROTATED)
    rotate_rows(x + k);
}

/* A lane's elements in chunk c of a frame of m elements. */
template <quantiser R>
DEVICE void read_chunk(const float *frame, int m, int c, float (&v)[quant_chunk_of(R)])
{
  constexpr int chunk = quant_chunk_of(R);
  const float *from = frame + c * chunk * QUANT_LANES + lane_of();
  const int rest = m - c * chunk * QUANT_LANES;
  const bool whole = rest >= chunk * QUANT_LANES;
#pragma unroll
  for (int k = 0; k < chunk; k++)
    v[k] = whole || k * QUANT_LANES + lane_of() < rest ? from[k * QUANT_LANES] : 0;
  if constexpr (quant_needs_of(R) & QUANT_ROTATE)
    rotate(v);
}

constexpr __host__ __device__ bool needs_max(quantiser rule)
{
  return !(quant_needs_of(rule) & (QUANT_SUMS | QUANT_GLOBAL));
}

/* Adds an element to a lane's statistics of its block. */
template <quantiser R> DEVICE void count_element(float v, quant_stats *s)
{
  constexpr int needs = quant_needs_of(R);
  if (needs_max(R))
    s->max = f32_from_bits(max(f32_bits(s->max), f32_bits(v) & 0x7fffffff));
  if (needs & QUANT_SIGNS) {
    s->positive += v < 0 ? 0 : v;
    s->negative += v < 0 ? -v : 0;
    s->negatives += v < 0 ? 1 : 0;
  }
  if (needs & QUANT_MAGNITUDES)
    s->magnitudes += quant_magnitude(v);
  if (needs & QUANT_SQUARES)
    s->squares += v * v;
}

/* Sums of N values over all lanes, in the order of quantise.h: lanes 32 / N * i and on get that of
 * value i. A step halves the distance of lanes that are added, and the number of values of a lane.
 */
template <int N> DEVICE float sum_lanes(const float (&x)[N], int distance = 16)
{
  static_assert(N <= QUANT_LANES && (N & (N - 1)) == 0, "a power of two");
  if constexpr (N == 1) {
    return lanes_sum(x[0], 2 * distance);
  } else {
    const bool upper = lane_of() & distance;
    float sum[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const float other = __shfl_xor_sync(ALL_LANES, upper ? x[i] : x[i + N / 2], distance);
      sum[i] = (upper ? x[i + N / 2] : x[i]) + other;
    }
    return sum_lanes<N / 2>(sum, distance / 2);
  }
}

template <int N, typename F> DEVICE float sum_of(const quant_stats (&part)[N], const F &field)
{
  float x[N];
#pragma unroll
  for (int i = 0; i < N; i++)
    x[i] = field(part[i]);
  return sum_lanes<N>(x);
}

/* Combines the lanes' statistics of N blocks. Lanes 32 / N * i and on get those of block i, and
 * lanes that are left over get zeros. */
template <quantiser R, int N> DEVICE quant_stats stats_of(const quant_stats (&part)[N])
{
  constexpr int needs = quant_needs_of(R);
  quant_stats s = {};
  if constexpr (needs_max(R))
#pragma unroll
    for (int i = 0; i < N; i++) {
      const unsigned top = __reduce_max_sync(ALL_LANES, f32_bits(part[i].max));
      s.max = lane_of() / (QUANT_LANES / N) == i ? f32_from_bits(top) : s.max;
    }
  if constexpr (needs & QUANT_SIGNS) {
    s.positive = sum_of(part, [](const quant_stats &p) { return p.positive; });
    s.negative = sum_of(part, [](const quant_stats &p) { return p.negative; });
    s.negatives = sum_of(part, [](const quant_stats &p) { return p.negatives; });
  }
  if constexpr (needs & QUANT_MAGNITUDES)
    s.magnitudes = sum_of(part, [](const quant_stats &p) { return p.magnitudes; });
  if constexpr (needs & QUANT_SQUARES)
    s.squares = sum_of(part, [](const quant_stats &p) { return p.squares; });
  return s;
}

/* The scales of a block, which this lane writes to the message if it `writes` and the vector has
 * the block. False: its elements count as zeros. */
template <quantiser R>
DEVICE bool settle(const task &t, quant_stats stats, int64_t block, bool writes, char *message,
                   quant_scale *scale)
{
  constexpr bool global = quant_needs_of(R) & QUANT_GLOBAL;
  if constexpr (global)
    stats.max = *t.op.largest;
  stats.n = (float)min(t.op.block, t.n - block * t.op.block);
  const bool finite = quant_settle(R, stats, &t.op, scale);
  if (writes && block < (global ? 1 : t.blocks))
#pragma unroll
    for (int i = 0; i < quant_scales_of(R); i++)
      ((uint16_t *)message)[i * t.blocks + block] = quant_half(scale->at[i]);
  return finite;
}

/* All lanes get the scale of one lane. A rule without needs reads the inverse only. */
template <quantiser R> DEVICE quant_scale scale_from(const quant_scale &own, int lane)
{
  quant_scale scale = {{0, 0}, __shfl_sync(ALL_LANES, own.inverse, lane)};
  if constexpr (quant_needs_of(R) != 0)
#pragma unroll
    for (int i = 0; i < quant_scales_of(R); i++)
      scale.at[i] = __shfl_sync(ALL_LANES, own.at[i], lane);
  return scale;
}

/* Codes of a chunk, in a word. */
template <quantiser R, typename F>
DEVICE uint32_t encode_chunk(const float (&x)[quant_chunk_of(R)], const F &scale_of,
                             const quantise &op, uint32_t *state)
{
  uint32_t random = 0, word = 0, unit = 1;
#pragma unroll
  for (int k = 0; k < quant_chunk_of(R); k++, unit *= quant_codes_of(R)) {
    if (quant_needs_of(R) & QUANT_RANDOM) {
      random = k & 1 ? random >> 16 : quant_random(*state);
      *state = k & 1 ? *state : quant_next(*state);
    }
    word += unit * quant_code(R, x[k], scale_of(k), &op, random & 0xffff);
  }
  return word;
}

/* Zeros between the scales and the codes of a message. */
DEVICE void fill_gap(const task &t, char *message)
{
  for (int64_t i = quant_scale_count(&t.op, t.n) + lane_of(); i < t.codes / 2; i += QUANT_LANES)
    ((uint16_t *)message)[i] = 0;
}

/* 64-bit products are slow on a GPU, and few vectors have 2^32 elements. */
DEVICE rounding_key key_of(const task &t, int64_t element)
{
  return element >> 32 ? rounding_key_make(t.op.seed, element) : t.key;
}

DEVICE uint32_t state_of(const task &t, int64_t element)
{
  return rounding_mix(key_of(t, element), (uint32_t)element + (uint32_t)lane_of());
}

/* A warp takes a block, whose elements it reads twice. */
template <quantiser R>
__global__ void __launch_bounds__(THREADS)
    quantise_reread(const task t, int first_part, const float *x, char *messages)
{
  constexpr int chunk = quant_chunk_of(R);
  constexpr bool global = quant_needs_of(R) & QUANT_GLOBAL;
  const int64_t part = first_part + blockIdx.y, block = warp_of(), before = block * t.op.block;
  const int chunks = (int)t.op.block / QUANT_LANES / chunk;
  if (block >= t.blocks)
    return;
  const int m = (int)min(t.op.block, t.n - before);
  const float *from = x + part * t.n + before;
  quant_stats stats[1] = {};
  for (int c = 0; c < chunks && !global; c++) {
    float values[chunk];
    read_chunk<R>(from, m, c, values);
#pragma unroll
    for (int k = 0; k < chunk; k++)
      count_element<R>(values[k], &stats[0]);
  }
  char *message = messages + part * t.stride;
  quant_scale scale;
  const bool finite = settle<R>(t, stats_of<R>(stats), block, lane_of() == 0, message, &scale);
  if (block == t.blocks - 1)
    fill_gap(t, message);
  uint32_t *to = (uint32_t *)(message + t.codes) + before / chunk + lane_of();
  uint32_t state = state_of(t, part * t.blocks * t.op.block + before);
  for (int c = 0; c < chunks; c++) {
    float values[chunk];
    read_chunk<R>(from, m, c, values);
#pragma unroll
    for (int k = 0; k < chunk; k++)
      values[k] = finite ? values[k] : 0;
    to[c * QUANT_LANES] = encode_chunk<R>(
        values, [&](int) { return scale; }, t.op, &state);
  }
}

constexpr int LEAST_ROWS = 32; /* that a warp keeps, so that few warps divide */

/* Rows that a warp encodes, an element per lane each. `rows`: those of a block. */
constexpr __host__ __device__ int rows_of(quantiser rule, int rows)
{
  return quant_has_frames(rule) ? (int)quant_frame_of(rule, rows * QUANT_LANES) / QUANT_LANES
         : rows < LEAST_ROWS    ? LEAST_ROWS
                                : rows;
}

/* A warp takes a frame, or blocks of ROWS rows, and keeps all elements. Each lane computes the
 * scale of one block. */
template <quantiser R, int ROWS>
__global__ void __launch_bounds__(THREADS)
    quantise_kept(const task t, int first_part, const float *x, char *messages)
{
  constexpr int chunk = quant_chunk_of(R), rows = rows_of(R, ROWS), blocks = rows / ROWS;
  constexpr int lanes = QUANT_LANES / blocks; /* of a block */
  constexpr bool frames = quant_has_frames(R), random = quant_needs_of(R) & QUANT_RANDOM;
  static_assert(rows % chunk == 0 && rows % ROWS == 0, "whole words and whole blocks");
  static_assert(!random || ROWS % chunk == 0, "a word of codes has one state of random bits");
  const int64_t part = first_part + blockIdx.y, warp = warp_of(), first = warp * blocks;
  const int64_t before = warp * (rows * QUANT_LANES);
  if (first >= t.blocks)
    return;
  const int m = (int)min((int64_t)rows * QUANT_LANES, t.n - before);
  float kept[rows / chunk][chunk];
#pragma unroll
  for (int c = 0; c < rows / chunk; c++)
    read_chunk<R>(x + part * t.n + before, m, c, kept[c]);
  quant_stats stats[blocks] = {};
#pragma unroll
  for (int row = 0; row < rows; row++)
    count_element<R>(kept[row / chunk][row % chunk], &stats[row / ROWS]);
  char *message = messages + part * t.stride;
  quant_scale own, scale[blocks];
  const int mine = lane_of() / lanes;
  const unsigned finite =
      __ballot_sync(ALL_LANES, settle<R>(t, stats_of<R>(stats), first + mine,
                                         mine < blocks && lane_of() % lanes == 0, message, &own));
#pragma unroll
  for (int b = 0; b < blocks; b++)
    scale[b] = scale_from<R>(own, b * lanes);
#pragma unroll
  for (int row = 0; row < rows; row++)
    if (!(finite >> row / ROWS * lanes & 1))
      kept[row / chunk][row % chunk] = 0;
  if (first + blocks >= t.blocks)
    fill_gap(t, message);
  uint32_t *to = (uint32_t *)(message + t.codes) + warp * (rows / chunk * QUANT_LANES) + lane_of();
  const int rows_left = (int)min((int64_t)blocks, t.blocks - first) * ROWS;
  uint32_t state = 0;
#pragma unroll
  for (int c = 0; c < rows / chunk; c++) {
    if (random && c * chunk % ROWS == 0)
      state = state_of(t, part * t.blocks * t.op.block + before + c * chunk * QUANT_LANES);
    const uint32_t word = encode_chunk<R>(
        kept[c], [&](int k) { return scale[(c * chunk + k) / ROWS]; }, t.op, &state);
    if (frames || blocks == 1 || c * chunk < rows_left) /* a frame is filled with zeros */
      to[c * QUANT_LANES] = word;
  }
}

/* The sum over parts FIRST to FIRST + COUNT - 1, a power of two, in the order of sum_parts. */
template <int FIRST, int COUNT, typename F> DEVICE float sum_few(const F &value)
{
  if constexpr (COUNT == 1)
    return value(FIRST);
  else
    return sum_few<FIRST, COUNT / 2>(value) + sum_few<FIRST + COUNT / 2, COUNT / 2>(value);
}

constexpr int ANY_LEVELS = 31; /* of a sum over any number of parts */

/* Messages of one vector. PARTS of them, 0: t.parts. */
template <quantiser R, int PARTS> struct received {
  static constexpr int chunk = quant_chunk_of(R), scales = quant_scales_of(R);
  static constexpr bool votes = quant_needs_of(R) & QUANT_VOTES, frames = quant_has_frames(R);
  const task &t;
  const char *messages;
  int64_t frame, block;                     /* block: the first one of the frame */
  int shift;                                /* a block has 2^shift elements of a lane */
  quant_scale scale[PARTS > 0 ? PARTS : 1]; /* of a frame's only block, or lane i has block i's */

  DEVICE quant_scale scale_of(int part) const
  {
    const bool global = quant_needs_of(R) & QUANT_GLOBAL;
    const int64_t mine = frames ? min(block + lane_of(), t.blocks - 1) : block;
    const uint16_t *at = (const uint16_t *)(messages + part * t.stride) + (global ? 0 : mine);
    return {{quant_from_half(at[0]), quant_from_half(at[scales > 1 ? t.blocks : 0])}, 0};
  }
  /* The scale of element k of a lane, from what the lanes have. */
  DEVICE quant_scale scale_at(quant_scale own, int k) const
  {
    if constexpr (frames)
      return {{__shfl_sync(ALL_LANES, own.at[0], k >> shift), 0}, 0};
    return own;
  }
  DEVICE uint32_t word_of(int part, int c) const
  {
    const char *codes = messages + part * t.stride + t.codes;
    const uint32_t *from = (const uint32_t *)codes + frame * ((int)t.frame / chunk) + lane_of();
    return __ldcs(from + c * QUANT_LANES);
  }
  /* The number of the lowest code of a word, which loses it. */
  static DEVICE float take_value(uint32_t *word, quant_scale scale)
  {
    constexpr uint32_t codes = quant_codes_of(R);
    const uint32_t code = *word % codes;
    *word /= codes;
    return quant_value(R, code, votes ? quant_scale{{1, 1}, 0} : scale);
  }
  DEVICE void read_scales()
  {
    if constexpr (PARTS > 0)
#pragma unroll
      for (int part = 0; part < PARTS; part++)
        scale[part] = scale_of(part);
  }
  DEVICE float sum_of_scales() const
  {
    if constexpr (PARTS > 0)
      return sum_few<0, PARTS>([&](int part) { return scale[part].at[0]; });
    float sum[1];
    sum_tree<ANY_LEVELS, 1>(
        t.parts, [&](int part, float(&to)[1]) { to[0] = scale_of(part).at[0]; }, sum);
    return sum[0];
  }
  DEVICE void sum_chunk(int c, float (&sum)[chunk]) const
  {
    if constexpr (PARTS > 0) {
      uint32_t word[PARTS];
#pragma unroll
      for (int part = 0; part < PARTS; part++)
        word[part] = word_of(part, c);
#pragma unroll
      for (int k = 0; k < chunk; k++)
        sum[k] = sum_few<0, PARTS>([&](int part) {
          return take_value(&word[part], scale_at(scale[part], c * chunk + k));
        });
    } else {
      const auto value = [&](int part, float(&to)[chunk]) {
        uint32_t word = word_of(part, c);
        const quant_scale own = scale_of(part);
#pragma unroll
        for (int k = 0; k < chunk; k++)
          to[k] = take_value(&word, scale_at(own, c * chunk + k));
      };
      sum_tree<ANY_LEVELS, chunk>(t.parts, value, sum);
    }
  }
};

/* Elements of a lane's chunk, to[32 k] of those below m. */
template <int N, typename T>
DEVICE void put(enum quant_mode mode, int64_t m, const float (&sum)[N], T *to)
{
  const bool whole = m >= N * QUANT_LANES;
  if (mode == QUANT_SET || mode == QUANT_SET_EACH) {
#pragma unroll
    for (int k = 0; k < N; k++)
      if (whole || k * QUANT_LANES + lane_of() < m)
        to[k * QUANT_LANES] = from_float<T>(sum[k]);
    return;
  }
#pragma unroll
  for (int k = 0; k < N; k++)
    if (whole || k * QUANT_LANES + lane_of() < m)
      to[k * QUANT_LANES] = from_float<T>(to_float(to[k * QUANT_LANES]) +
                                          (mode == QUANT_SUBTRACT ? -sum[k] : sum[k]));
}

template <quantiser R, int PARTS, typename T>
__global__ void __launch_bounds__(THREADS)
    dequantise_frames(const task t, int first_vector, const char *messages, enum quant_mode mode,
                      T *out)
{
  constexpr int chunk = quant_chunk_of(R);
  const int64_t vector = first_vector + blockIdx.y, frame = warp_of();
  if (frame >= t.frames)
    return;
  const int shift = quant_log2(t.op.block / QUANT_LANES);
  const int64_t block = quant_has_frames(R) ? frame * (t.frame / QUANT_LANES >> shift) : frame;
  received<R, PARTS> from = {t, messages + vector * t.stride, frame, block, shift, {}};
  from.read_scales();
  const float total = from.votes ? from.sum_of_scales() : 0;
  const int64_t before = frame * t.frame, m = min(t.frame, t.n - before);
  T *to = out + vector * t.n + before + lane_of();
  for (int c = 0; c * chunk * QUANT_LANES < m; c++, to += chunk * QUANT_LANES) {
    float sum[chunk];
    from.sum_chunk(c, sum);
    if constexpr (quant_needs_of(R) & QUANT_ROTATE)
      rotate(sum);
#pragma unroll
    for (int k = 0; k < chunk; k++)
      if (from.votes)
        sum[k] = (sum[k] > 0 ? 1.0f : sum[k] < 0 ? -1.0f : 0.0f) * total;
    put<chunk>(mode, m - c * chunk * QUANT_LANES, sum, to);
  }
}

/* Four elements at a time if these are aligned to 16 bytes. */
template <int EACH>
__global__ void __launch_bounds__(THREADS) max_magnitude(int64_t n, const float *x, unsigned *out)
{
  const int64_t step = (int64_t)gridDim.x * THREADS, pieces = n / EACH;
  const int64_t mine = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  unsigned top = 0;
  for (int64_t i = mine; i < pieces; i += step) {
    const pack<float, EACH> v = load<float, EACH>(x + i * EACH);
#pragma unroll
    for (int k = 0; k < EACH; k++)
      top = max(top, f32_bits(v.at[k]) & 0x7fffffff);
  }
  if (mine < n % EACH)
    top = max(top, f32_bits(x[pieces * EACH + mine]) & 0x7fffffff);
  top = __reduce_max_sync(ALL_LANES, top);
  if (lane_of() == 0)
    atomicMax(out, top);
}

task task_of(const struct quantise *op, int64_t n, int parts, int64_t stride)
{
  return {*op,
          n,
          quant_blocks(op, n),
          quant_frame(op),
          quant_frames(op, n),
          stride,
          quant_scale_bytes(op, n),
          parts,
          rounding_key_make(op->seed, 0)};
}

dim3 grid_of(int64_t warps, int rows)
{
  return dim3((unsigned)pieces_of(warps, THREADS / QUANT_LANES), (unsigned)min(rows, MOST_ROWS));
}

using quantise_kernel = void(const task, int, const float *, char *);

template <quantiser R>
void run_quantise(cudaStream_t stream, const task &t, const float *x, char *messages)
{
  constexpr int usual = quant_usual_block_of(R) / QUANT_LANES;
  const int rows = (int)t.op.block / QUANT_LANES;
  const bool several = quant_has_frames(R) || rows == usual;
  const int64_t warps = several ? pieces_of(t.blocks, rows_of(R, rows) / rows) : t.blocks;
  quantise_kernel *kernel;
  if constexpr (quant_has_frames(R))
    kernel = rows == 1   ? quantise_kept<R, 1>
             : rows == 2 ? quantise_kept<R, 2>
             : rows == 4 ? quantise_kept<R, 4>
                         : quantise_kept<R, 8>;
  else
    kernel = several ? quantise_kept<R, usual> : quantise_reread<R>;
  for (int first = 0; first < t.parts; first += MOST_ROWS)
    kernel<<<grid_of(warps, t.parts - first), THREADS, 0, stream>>>(t, first, x, messages);
}

/* The usual numbers of parts have a kernel of their own. bf16 is for modes that take each message
 * by itself. */
template <quantiser R, typename T>
void run_dequantise(cudaStream_t stream, const task &t, const char *messages, enum quant_mode mode,
                    T *out)
{
  const bool each = quant_takes_each(mode);
  const int parts = each ? 1 : t.parts, vectors = each ? t.parts : 1;
  auto kernel = dequantise_frames<R, 1, T>;
  if constexpr (sizeof(T) == sizeof(float))
    kernel = parts == 1   ? dequantise_frames<R, 1, T>
             : parts == 2 ? dequantise_frames<R, 2, T>
             : parts == 4 ? dequantise_frames<R, 4, T>
             : parts == 8 ? dequantise_frames<R, 8, T>
                          : dequantise_frames<R, 0, T>;
  for (int first = 0; first < vectors; first += MOST_ROWS)
    kernel<<<grid_of(t.frames, vectors - first), THREADS, 0, stream>>>(t, first, messages, mode,
                                                                       out);
}

} // namespace

/* A maximum of integers, which has no order. *out is 0 before. */
void gpu_max_magnitude(const gpu_launch *launch, int64_t n, const float *x, float *out)
{
  const auto kernel = (uintptr_t)x % 16 == 0 ? max_magnitude<4> : max_magnitude<1>;
  const unsigned grid = blocks_within(launch, pieces_of(pieces_of(n, 4), THREADS), 8);
  if (n > 0)
    kernel<<<grid, THREADS, 0, launch->stream>>>(n, x, (unsigned *)out);
}

#define QUANT_CASE(name, kind, title, source)                                                      \
  case QUANT_##name: run_quantise<QUANT_##name>(launch->stream, t, x, (char *)messages); break;
void gpu_quantise(const gpu_launch *launch, const struct quantise *op, int64_t n, int parts,
                  const float *x, void *messages)
{
  const task t = task_of(op, n, parts, quant_bytes(op, n));
  if (n == 0)
    return;
  switch (op->rule) {
    CODEC_QUANTISERS(QUANT_CASE)
  default: break;
  }
}
#undef QUANT_CASE

#define QUANT_CASE(name, kind, title, source)                                                      \
  case QUANT_##name:                                                                               \
    with_bf16(type == DTYPE_BF16, [&](auto to) {                                                   \
      run_dequantise<QUANT_##name>(launch->stream, t, (const char *)messages, mode,                \
                                   (decltype(to) *)out);                                           \
    });                                                                                            \
    break;
void gpu_dequantise(const gpu_launch *launch, const struct quantise *op, int64_t n, int parts,
                    const void *messages, int64_t stride, enum quant_mode mode, enum dtype type,
                    void *out)
{
  const task t = task_of(op, n, parts, stride);
  if (n == 0)
    return;
  switch (op->rule) {
    CODEC_QUANTISERS(QUANT_CASE)
  default: break;
  }
}
#undef QUANT_CASE
