/* Quantised messages: a warp per block, one template for every rule of src/compress/rule. It is
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
  int64_t n, blocks, stride, codes; /* blocks of a vector; bytes: of a message, before its codes */
  int parts;
};

__device__ __forceinline__ int lane_of()
{
  return (int)threadIdx.x % QUANT_LANES;
}

/* The block of this warp among all blocks of all vectors. */
__device__ __forceinline__ int64_t number_of()
{
  return ((int64_t)blockIdx.x * THREADS + threadIdx.x) / QUANT_LANES;
}

/* The Walsh-Hadamard transform over the lanes. */
__device__ __forceinline__ float rotate(float x)
{
#pragma unroll
  for (int half = QUANT_LANES / 2; half > 0; half /= 2) {
    const float other = __shfl_xor_sync(ALL_LANES, x, half);
    x = lane_of() & half ? other - x : x + other;
  }
  return x * QUANT_ROTATION;
}

/* Elements of a lane: EACH of them are kept in registers, or (0) they are read again. */
template <quantiser R, int EACH> struct elements {
  const float *x;
  int64_t m; /* the block has no more */
  bool zeros;
  float kept[EACH > 0 ? EACH : 1];

  __device__ __forceinline__ float read(int j) const
  {
    const int64_t i = (int64_t)j * QUANT_LANES + lane_of();
    const float v = i < m ? x[i] : 0;
    return quant_needs_of(R) & QUANT_ROTATE ? rotate(v) : v;
  }
  __device__ __forceinline__ float at(int j) const
  {
    if constexpr (EACH > 0)
      return zeros ? 0 : kept[j];
    const float v = read(j);
    return zeros ? 0 : v;
  }
};

template <quantiser R, typename E>
__device__ __forceinline__ quant_stats stats_of(const E &x, int each)
{
  constexpr int needs = quant_needs_of(R);
  quant_stats s = {};
  uint32_t top = 0;
#pragma unroll 8
  for (int j = 0; j < each; j++) {
    const float v = x.at(j);
    top = max(top, quant_bits(v) & 0x7fffffff);
    if (needs & QUANT_SIGNS) {
      s.positive += v < 0 ? 0 : v;
      s.negative += v < 0 ? -v : 0;
      s.negatives += v < 0 ? 1 : 0;
    }
    if (needs & QUANT_SQUARES)
      s.squares += v * v;
  }
  s.max = quant_float(__reduce_max_sync(ALL_LANES, top));
  s.n = (float)x.m;
  if (needs & QUANT_SIGNS) {
    s.positive = warp_sum(s.positive);
    s.negative = warp_sum(s.negative);
    s.negatives = warp_sum(s.negatives);
  }
  if (needs & QUANT_SQUARES)
    s.squares = warp_sum(s.squares);
  return s;
}

template <quantiser R, int EACH>
__global__ void __launch_bounds__(THREADS)
    quantise_blocks(const task t, const float *x, char *messages)
{
  constexpr int bits = quant_bits_of(R), word = 32 / bits, scales = quant_scales_of(R);
  const int64_t number = number_of(), part = number / t.blocks, block = number % t.blocks;
  const int each = EACH > 0 ? EACH : (int)t.op.block / QUANT_LANES;
  const int64_t before = block * t.op.block, first = number * t.op.block;
  if (part >= t.parts)
    return;
  elements<R, EACH> mine = {x + part * t.n + before, min(t.op.block, t.n - before), false, {}};
  if constexpr (EACH > 0) {
#pragma unroll
    for (int j = 0; j < EACH; j++)
      mine.kept[j] = mine.read(j);
  }
  quant_scale scale;
  mine.zeros = !quant_settle(R, stats_of<R>(mine, each), &t.op, &scale);
  char *message = messages + part * t.stride;
  if (lane_of() < scales)
    ((float *)message)[lane_of() * t.blocks + block] = scale.at[lane_of() ? 1 : 0];
  uint32_t *to = (uint32_t *)(message + t.codes) + block * (t.op.block / word) + lane_of();
  const rounding_key key = rounding_key_make(t.op.seed, first);
#pragma unroll
  for (int w = 0; w < each / word; w++) {
    uint32_t packed = 0;
#pragma unroll
    for (int k = 0; k < word; k++) {
      const int j = w * word + k;
      const uint32_t i = (uint32_t)first + j * QUANT_LANES + lane_of();
      const uint32_t random = quant_needs_of(R) & QUANT_RANDOM ? rounding_mix(key, i) : 0;
      packed |= quant_code(R, mine.at(j), scale, &t.op, random) << (k * bits);
    }
    to[w * QUANT_LANES] = packed;
  }
}

/* Zeros between the scales and the codes of a message. */
__global__ void fill_gaps(const task t, int scales, char *messages)
{
  float *to = (float *)(messages + blockIdx.x * t.stride);
  const int64_t i = t.blocks * scales + threadIdx.x;
  if (i < t.codes / 4)
    to[i] = 0;
}

/* sum = the sum over parts of N numbers each, in the order of sum_parts: a binary counter of
 * complete subtrees. Fewer than 1 << LEVELS parts. */
template <int LEVELS, int N, typename F>
__device__ __forceinline__ void sum_tree(int parts, const F &value, float (&sum)[N])
{
  float tree[LEVELS][N];
  for (int i = 0; i < parts; i++) {
    value(i, sum);
#pragma unroll
    for (int level = 0; level < LEVELS; level++) {
      const int below = (1 << level) - 1, all = 2 * below + 1;
      if ((i & all) == below)
        for (int k = 0; k < N; k++)
          tree[level][k] = sum[k];
      else if ((i & all) == all)
        for (int k = 0; k < N; k++)
          sum[k] = tree[level][k] + sum[k];
    }
  }
  bool any = false;
#pragma unroll
  for (int level = 0; level < LEVELS; level++)
    if (parts >> level & 1) {
      for (int k = 0; k < N; k++)
        sum[k] = any ? tree[level][k] + sum[k] : tree[level][k];
      any = true;
    }
}

template <quantiser R, int LEVELS, typename T>
__global__ void __launch_bounds__(THREADS)
    dequantise_blocks(const task t, const char *messages, enum quant_mode mode, T *out)
{
  constexpr int bits = quant_bits_of(R), word = 32 / bits;
  constexpr bool votes = quant_needs_of(R) & QUANT_VOTES;
  const int64_t number = number_of(), vector = number / t.blocks, block = number % t.blocks;
  const bool sets = mode == QUANT_SET || mode == QUANT_SET_EACH;
  const int parts = quant_takes_each(mode) ? 1 : t.parts;
  if (vector >= (quant_takes_each(mode) ? t.parts : 1))
    return;
  messages += vector * t.stride;
  const auto scale_of = [&](int part) {
    const float *at = (const float *)(messages + part * t.stride) + block;
    const quant_scale scale = {{at[0], at[quant_scales_of(R) > 1 ? t.blocks : 0]}, 0};
    return scale;
  };
  float total[1] = {0};
  if constexpr (votes)
    sum_tree<LEVELS, 1>(
        parts, [&](int part, float(&to)[1]) { to[0] = scale_of(part).at[0]; }, total);
  const int64_t before = block * t.op.block, m = min(t.op.block, t.n - before);
  for (int w = 0; (int64_t)w * word * QUANT_LANES < m; w++) {
    const auto value = [&](int part, float(&to)[word]) {
      const uint32_t *from = (const uint32_t *)(messages + part * t.stride + t.codes) +
                             block * (t.op.block / word) + w * QUANT_LANES + lane_of();
      const uint32_t packed = __ldcs(from);
      const quant_scale scale = votes ? quant_scale{{1, 1}, 0} : scale_of(part);
#pragma unroll
      for (int k = 0; k < word; k++)
        to[k] = quant_value(R, packed >> (k * bits) & ((1u << bits) - 1), scale);
    };
    float sum[word];
    sum_tree<LEVELS, word>(parts, value, sum);
#pragma unroll
    for (int k = 0; k < word; k++) {
      const int64_t i = ((int64_t)w * word + k) * QUANT_LANES + lane_of();
      T *to = out + vector * t.n + before + i;
      float v = sum[k];
      if (quant_needs_of(R) & QUANT_ROTATE)
        v = rotate(v);
      if (votes)
        v = (v > 0 ? 1.0f : v < 0 ? -1.0f : 0.0f) * total[0];
      if (i < m)
        *to = from_float<T>(sets                     ? v
                            : mode == QUANT_SUBTRACT ? to_float(*to) - v
                                                     : to_float(*to) + v);
    }
  }
}

task task_of(const struct quantise *op, int64_t n, int parts, int64_t stride)
{
  return {*op, n, quant_blocks(op, n), stride, quant_scale_bytes(op, n), parts};
}

unsigned grid_of(int64_t blocks)
{
  return (unsigned)pieces_of(blocks, THREADS / QUANT_LANES);
}

template <quantiser R>
void run_quantise(cudaStream_t stream, const task &t, const float *x, char *messages)
{
  constexpr int usual = quant_bits_of(R) == 1 ? 1024 : 256; /* as compress/quantiser.c has it */
  const unsigned grid = grid_of(t.parts * t.blocks);
  fill_gaps<<<(unsigned)t.parts, QUANT_LINE / 4, 0, stream>>>(t, quant_scales_of(R), messages);
  if (t.op.block == usual)
    quantise_blocks<R, usual / QUANT_LANES><<<grid, THREADS, 0, stream>>>(t, x, messages);
  else
    quantise_blocks<R, 0><<<grid, THREADS, 0, stream>>>(t, x, messages);
}

/* Subtrees are kept in registers if parts are few. */
template <quantiser R>
void run_dequantise(cudaStream_t stream, const task &t, const char *messages, enum quant_mode mode,
                    enum dtype type, void *out)
{
  constexpr int FEW = 4, MANY = 31;
  const bool each = quant_takes_each(mode);
  const unsigned grid = grid_of((each ? t.parts : 1) * t.blocks);
  if (type == DTYPE_BF16)
    dequantise_blocks<R, FEW><<<grid, THREADS, 0, stream>>>(t, messages, mode, (bf16 *)out);
  else if (t.parts < 1 << FEW || each)
    dequantise_blocks<R, FEW><<<grid, THREADS, 0, stream>>>(t, messages, mode, (float *)out);
  else
    dequantise_blocks<R, MANY><<<grid, THREADS, 0, stream>>>(t, messages, mode, (float *)out);
}

} // namespace

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
    run_dequantise<QUANT_##name>(launch->stream, t, (const char *)messages, mode, type, out);      \
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
