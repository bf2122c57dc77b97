/* Quantised messages: a warp per frame, one template for every rule of src/compress/rule. It is
 * compiled without fused multiply-adds (gpu/local.mk), because messages are the host's bits. */
#include "compress/rule/quantise.h"
#include "device/rounding.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256;
constexpr unsigned ALL_LANES = 0xFFFFFFFF;

struct task {
  struct quantise op;
  int64_t n, blocks, frame, frames; /* of a vector; frame: elements */
  int64_t stride, codes;            /* bytes: of a message, before its codes */
  int parts;
  rounding_key key; /* of elements below 2^32 */
};

__device__ __forceinline__ int lane_of()
{
  return (int)threadIdx.x % QUANT_LANES;
}

/* The frame of this warp in its vector. */
__device__ __forceinline__ int64_t frame_of()
{
  return ((int64_t)blockIdx.x * THREADS + threadIdx.x) / QUANT_LANES;
}

/* Transforms of the elements that a lane shares with three others. */
__device__ __forceinline__ void rotate_rows(float *x)
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

template <int N> __device__ __forceinline__ void rotate(float (&x)[N])
{
  static_assert(N % QUANT_ROTATED == 0, "a chunk holds whole transforms");
#pragma unroll
  for (int k = 0; k < N; k += QUANT_ROTATED)
    rotate_rows(x + k);
}

/* Elements of a lane, chunk by chunk: EACH of them are kept in registers, or (0) they are read
 * again. */
template <quantiser R, int EACH> struct elements {
  static constexpr int chunk = quant_chunk_of(R);
  const float *x; /* of the lane */
  int m;          /* the frame has no more */
  bool zeros;
  float kept[EACH > 0 ? EACH / chunk : 1][chunk];

  __device__ __forceinline__ void read(int c, float (&v)[chunk]) const
  {
    const float *from = x + c * chunk * QUANT_LANES;
    const int rest = m - c * chunk * QUANT_LANES - lane_of();
    const bool whole = rest + lane_of() >= chunk * QUANT_LANES;
#pragma unroll
    for (int k = 0; k < chunk; k++)
      v[k] = whole || k * QUANT_LANES < rest ? from[k * QUANT_LANES] : 0;
    if constexpr (quant_needs_of(R) & QUANT_ROTATE)
      rotate(v);
  }
  __device__ __forceinline__ void keep()
  {
#pragma unroll
    for (int c = 0; c < EACH / chunk; c++)
      read(c, kept[c]);
  }
  __device__ __forceinline__ void clear()
  {
    zeros = true;
    if constexpr (EACH > 0)
#pragma unroll
      for (int c = 0; c < EACH / chunk; c++)
#pragma unroll
        for (int k = 0; k < chunk; k++)
          kept[c][k] = 0;
  }
  __device__ __forceinline__ void get(int c, float (&v)[chunk]) const
  {
    if constexpr (EACH == 0)
      read(c, v);
#pragma unroll
    for (int k = 0; k < chunk; k++)
      v[k] = EACH > 0 ? kept[EACH > 0 ? c : 0][k] : zeros ? 0 : v[k];
  }
};

template <quantiser R, int EACH>
__device__ __forceinline__ quant_stats stats_of(const elements<R, EACH> &x, int chunks)
{
  constexpr int needs = quant_needs_of(R), chunk = quant_chunk_of(R);
  quant_stats s = {};
  uint32_t top = 0;
#pragma unroll(EACH > 0 ? EACH / chunk : 1)
  for (int c = 0; c < chunks; c++) {
    float values[chunk];
    x.get(c, values);
#pragma unroll
    for (int k = 0; k < chunk; k++) {
      const float v = values[k];
      if (!(needs & QUANT_SUMS))
        top = max(top, quant_bits(v) & 0x7fffffff);
      if (needs & QUANT_SIGNS) {
        s.positive += v < 0 ? 0 : v;
        s.negative += v < 0 ? -v : 0;
        s.negatives += v < 0 ? 1 : 0;
      }
      if (needs & QUANT_MAGNITUDES)
        s.magnitudes += quant_magnitude(v);
      if (needs & QUANT_SQUARES)
        s.squares += v * v;
    }
  }
  if (!(needs & QUANT_SUMS))
    s.max = quant_float(__reduce_max_sync(ALL_LANES, top));
  s.n = (float)x.m;
  if (needs & QUANT_SIGNS) {
    s.positive = warp_sum(s.positive);
    s.negative = warp_sum(s.negative);
    s.negatives = warp_sum(s.negatives);
  }
  if (needs & QUANT_MAGNITUDES)
    s.magnitudes = warp_sum(s.magnitudes);
  if (needs & QUANT_SQUARES)
    s.squares = warp_sum(s.squares);
  return s;
}

/* The scales of the blocks of a frame whose EACH elements of a lane are kept, ROWS of them in a
 * block. A block that is not finite becomes zeros. Lane i writes the scale of block i, if the
 * vector has it. */
template <quantiser R, int EACH, int ROWS>
__device__ __forceinline__ void settle_rows(const task &t, int64_t first, elements<R, EACH> &x,
                                            float (&inverse)[EACH / ROWS], uint16_t *scales)
{
  constexpr int chunk = quant_chunk_of(R);
  static_assert(quant_needs_of(R) == 0 && quant_scales_of(R) == 1, "rules of frames");
  quant_stats stats = {};
#pragma unroll
  for (int b = 0; b < EACH / ROWS; b++) {
    uint32_t top = 0;
#pragma unroll
    for (int row = b * ROWS; row < (b + 1) * ROWS; row++)
      top = max(top, quant_bits(x.kept[row / chunk][row % chunk]) & 0x7fffffff);
    top = __reduce_max_sync(ALL_LANES, top);
    stats.max = lane_of() == b ? quant_float(top) : stats.max;
  }
  quant_scale mine; /* lane i divides for block i */
  const unsigned finite = __ballot_sync(ALL_LANES, quant_settle(R, stats, &t.op, &mine));
  if (lane_of() < EACH / ROWS && first + lane_of() < t.blocks)
    scales[first + lane_of()] = quant_half(mine.at[0]);
#pragma unroll
  for (int b = 0; b < EACH / ROWS; b++) {
    inverse[b] = __shfl_sync(ALL_LANES, mine.inverse, b);
#pragma unroll
    for (int row = b * ROWS; row < (b + 1) * ROWS; row++)
      x.kept[row / chunk][row % chunk] = finite >> b & 1 ? x.kept[row / chunk][row % chunk] : 0;
  }
}

/* Codes of a chunk, in a word. */
template <quantiser R, typename F>
__device__ __forceinline__ uint32_t encode_chunk(const float (&x)[quant_chunk_of(R)],
                                                 const F &scale_of, const quantise &op,
                                                 uint32_t *state)
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
__device__ __forceinline__ void fill_gap(const task &t, char *message)
{
  for (int64_t i = quant_scale_count(&t.op, t.n) + lane_of(); i < t.codes / 2; i += QUANT_LANES)
    ((uint16_t *)message)[i] = 0;
}

/* 64-bit products are slow on a GPU, and few vectors have 2^32 elements. */
__device__ __forceinline__ rounding_key key_of(const task &t, int64_t element)
{
  return element >> 32 ? rounding_key_make(t.op.seed, element) : t.key;
}

/* A frame of one block. */
template <quantiser R, int EACH>
__global__ void __launch_bounds__(THREADS)
    quantise_blocks(const task t, int first_part, const float *x, char *messages)
{
  constexpr int chunk = quant_chunk_of(R), scales = quant_scales_of(R);
  const int64_t part = first_part + blockIdx.y, block = frame_of();
  const int chunks = (EACH > 0 ? EACH : (int)t.op.block / QUANT_LANES) / chunk;
  const int64_t before = block * t.op.block, first = (part * t.blocks + block) * t.op.block;
  if (block >= t.blocks)
    return;
  const int m = (int)min(t.op.block, t.n - before);
  elements<R, EACH> mine = {x + part * t.n + before + lane_of(), m, false, {}};
  if constexpr (EACH > 0)
    mine.keep();
  quant_scale scale;
  constexpr bool global = quant_needs_of(R) & QUANT_GLOBAL;
  quant_stats stats = {};
  if constexpr (global)
    stats.max = *t.op.largest;
  else
    stats = stats_of<R, EACH>(mine, chunks);
  if (!quant_settle(R, stats, &t.op, &scale))
    mine.clear();
  char *message = messages + part * t.stride;
  if (lane_of() < scales && (!global || block == 0))
    ((uint16_t *)message)[lane_of() * t.blocks + block] = quant_half(scale.at[lane_of() ? 1 : 0]);
  if (block == t.blocks - 1)
    fill_gap(t, message);
  uint32_t *to = (uint32_t *)(message + t.codes) + block * ((int)t.op.block / chunk) + lane_of();
  uint32_t state = rounding_mix(key_of(t, first), (uint32_t)first + (uint32_t)lane_of());
#pragma unroll(EACH > 0 ? EACH / chunk : 1)
  for (int c = 0; c < chunks; c++) {
    float values[chunk];
    mine.get(c, values);
    to[c * QUANT_LANES] = encode_chunk<R>(
        values, [&](int) { return scale; }, t.op, &state);
  }
}

/* A frame of several blocks of ROWS elements of a lane. */
template <quantiser R, int ROWS>
__global__ void __launch_bounds__(THREADS)
    quantise_frames(const task t, int first_part, const float *x, char *messages)
{
  constexpr int chunk = quant_chunk_of(R);
  constexpr int each = (int)quant_frame_of(R, ROWS * QUANT_LANES) / QUANT_LANES;
  const int64_t part = first_part + blockIdx.y, frame = frame_of(), before = frame * t.frame;
  if (frame >= t.frames)
    return;
  elements<R, each> mine = {
      x + part * t.n + before + lane_of(), (int)min(t.frame, t.n - before), false, {}};
  mine.keep();
  char *message = messages + part * t.stride;
  float inverse[each / ROWS];
  settle_rows<R, each, ROWS>(t, frame * (each / ROWS), mine, inverse, (uint16_t *)message);
  if (frame == t.frames - 1)
    fill_gap(t, message);
  uint32_t *to = (uint32_t *)(message + t.codes) + frame * (each / chunk * QUANT_LANES) + lane_of();
#pragma unroll
  for (int c = 0; c < each / chunk; c++)
    to[c * QUANT_LANES] = encode_chunk<R>(
        mine.kept[c],
        [&](int k) {
          return quant_scale{{0, 0}, inverse[(c * chunk + k) / ROWS]};
        },
        t.op, nullptr);
}

/* The sum over parts FIRST to FIRST + COUNT - 1, a power of two, in the order of sum_parts. */
template <int FIRST, int COUNT, typename F> __device__ __forceinline__ float sum_few(const F &value)
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

  __device__ __forceinline__ quant_scale scale_of(int part) const
  {
    const bool global = quant_needs_of(R) & QUANT_GLOBAL;
    const int64_t mine = frames ? min(block + lane_of(), t.blocks - 1) : block;
    const uint16_t *at = (const uint16_t *)(messages + part * t.stride) + (global ? 0 : mine);
    return {{quant_from_half(at[0]), quant_from_half(at[scales > 1 ? t.blocks : 0])}, 0};
  }
  /* The scale of element k of a lane, from what the lanes have. */
  __device__ __forceinline__ quant_scale scale_at(quant_scale own, int k) const
  {
    if constexpr (frames)
      return {{__shfl_sync(ALL_LANES, own.at[0], k >> shift), 0}, 0};
    return own;
  }
  __device__ __forceinline__ uint32_t word_of(int part, int c) const
  {
    const char *codes = messages + part * t.stride + t.codes;
    const uint32_t *from = (const uint32_t *)codes + frame * ((int)t.frame / chunk) + lane_of();
    return __ldcs(from + c * QUANT_LANES);
  }
  /* The number of the lowest code of a word, which loses it. */
  static __device__ __forceinline__ float take_value(uint32_t *word, quant_scale scale)
  {
    constexpr uint32_t codes = quant_codes_of(R);
    const uint32_t code = *word % codes;
    *word /= codes;
    return quant_value(R, code, votes ? quant_scale{{1, 1}, 0} : scale);
  }
  __device__ __forceinline__ void read_scales()
  {
    if constexpr (PARTS > 0)
#pragma unroll
      for (int part = 0; part < PARTS; part++)
        scale[part] = scale_of(part);
  }
  __device__ __forceinline__ float sum_of_scales() const
  {
    if constexpr (PARTS > 0)
      return sum_few<0, PARTS>([&](int part) { return scale[part].at[0]; });
    float sum[1];
    sum_tree<ANY_LEVELS, 1>(
        t.parts, [&](int part, float(&to)[1]) { to[0] = scale_of(part).at[0]; }, sum);
    return sum[0];
  }
  __device__ __forceinline__ void sum_chunk(int c, float (&sum)[chunk]) const
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
__device__ __forceinline__ void put(enum quant_mode mode, int64_t m, const float (&sum)[N], T *to)
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
  const int64_t vector = first_vector + blockIdx.y, frame = frame_of();
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
    float v[EACH];
    if constexpr (EACH == 4)
      *(float4 *)v = ((const float4 *)x)[i];
    else
      v[0] = x[i];
#pragma unroll
    for (int k = 0; k < EACH; k++)
      top = max(top, quant_bits(v[k]) & 0x7fffffff);
  }
  if (mine < n % EACH)
    top = max(top, quant_bits(x[pieces * EACH + mine]) & 0x7fffffff);
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

dim3 grid_of(int64_t frames, int rows)
{
  return dim3((unsigned)pieces_of(frames, THREADS / QUANT_LANES), (unsigned)min(rows, MOST_ROWS));
}

using quantise_kernel = void(const task, int, const float *, char *);

template <quantiser R> quantise_kernel *kernel_of(int64_t block)
{
  constexpr int usual = quant_usual_block_of(R);
  if constexpr (quant_has_frames(R))
    return block == 32    ? quantise_frames<R, 1>
           : block == 64  ? quantise_frames<R, 2>
           : block == 128 ? quantise_frames<R, 4>
                          : quantise_frames<R, 8>;
  else
    return block == usual ? quantise_blocks<R, usual / QUANT_LANES> : quantise_blocks<R, 0>;
}

template <quantiser R>
void run_quantise(cudaStream_t stream, const task &t, const float *x, char *messages)
{
  quantise_kernel *kernel = kernel_of<R>(t.op.block);
  for (int first = 0; first < t.parts; first += MOST_ROWS)
    kernel<<<grid_of(t.frames, t.parts - first), THREADS, 0, stream>>>(t, first, x, messages);
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
  const bool aligned = (uintptr_t)x % 16 == 0;
  const int64_t blocks = pieces_of(pieces_of(n, 4), THREADS),
                most = 8 * (int64_t)launch->multiprocessors;
  const unsigned grid = (unsigned)(blocks < most ? blocks : most);
  if (n > 0 && aligned)
    max_magnitude<4><<<grid, THREADS, 0, launch->stream>>>(n, x, (unsigned *)out);
  else if (n > 0)
    max_magnitude<1><<<grid, THREADS, 0, launch->stream>>>(n, x, (unsigned *)out);
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
    if (type == DTYPE_BF16)                                                                        \
      run_dequantise<QUANT_##name>(launch->stream, t, (const char *)messages, mode, (bf16 *)out);  \
    else                                                                                           \
      run_dequantise<QUANT_##name>(launch->stream, t, (const char *)messages, mode, (float *)out); \
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
