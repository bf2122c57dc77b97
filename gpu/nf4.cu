/* Vectors in NormalFloat4 (compress/rule/nf4.h). A thread block first decodes its magnitudes. Then
 * a thread takes words of 8 codes, and 8 threads a block of elements. This is compiled without
 * fused multiply-adds (gpu/local.mk). */
#include "compress/rule/nf4.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256, WORDS = 4 /* of a thread */, BLOCK_WORDS = NF4_BLOCK / NF4_WORD,
              BLOCKS = THREADS * WORDS / BLOCK_WORDS; /* of elements */

/* Fractions of the largest deviation between 0 and 1. */
__constant__ float steps[] = {NF4_STEPS};

/* The magnitude of a block of a message. */
__device__ float magnitude_of(int64_t n, const char *message, int64_t block)
{
  const uint8_t code = ((const uint8_t *)message)[nf4_code_bytes(n) + block];
  const nf4_segment *segments = (const nf4_segment *)(message + nf4_segments_at(n));
  const int64_t count = ((const int64_t *)segments)[-1];
  const nf4_segment *own = nf4_segment_of(segments, count, block);
  const float *scales = (const float *)(segments + count);
  return nf4_decoded_magnitude(nf4_fraction(code, steps), scales[nf4_scale_of(own, block)],
                               own->mean);
}

/* A row of the grid is a message. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    decode_words(int64_t n, int first, const char *messages, int64_t stride, T *out)
{
  __shared__ float value[16], magnitude[BLOCKS];
  const int64_t part = first + blockIdx.y, words = (n + NF4_WORD - 1) / NF4_WORD,
                mine = (int64_t)blockIdx.x * (THREADS * WORDS) + threadIdx.x,
                block = (int64_t)blockIdx.x * BLOCKS + threadIdx.x;
  const uint32_t *code = (const uint32_t *)(messages + part * stride);
  uint32_t word[WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const int64_t w = mine + k * THREADS;
    word[k] = w < words ? __ldcs(code + w) : 0;
  }
  if (threadIdx.x < 16) {
    constexpr float all[] = {NF4_VALUES};
    float own = all[0];
#pragma unroll
    for (int i = 1; i < 16; i++)
      own = threadIdx.x == i ? all[i] : own;
    value[threadIdx.x] = own;
  }
  if (threadIdx.x < BLOCKS && block < nf4_blocks(n))
    magnitude[threadIdx.x] = magnitude_of(n, messages + part * stride, block);
  __syncthreads();
  out += part * n;
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const int64_t w = mine + k * THREADS, begin = w * NF4_WORD;
    const float scale = magnitude[(threadIdx.x + k * THREADS) / BLOCK_WORDS];
    float x[NF4_WORD];
#pragma unroll
    for (int i = 0; i < NF4_WORD; i++)
      x[i] = value[word[k] >> nf4_shift(i) & 15] * scale;
    if (begin + NF4_WORD <= n) {
      store<T, NF4_WORD>(out + begin, rounded<T, NF4_WORD>(x));
    } else {
#pragma unroll
      for (int i = 0; i < NF4_WORD; i++)
        if (begin + i < n)
          out[begin + i] = from_float<T>(x[i]);
    }
  }
}

} // namespace

void gpu_nf4_decode(const gpu_launch *launch, int64_t n, int parts, const void *messages,
                    int64_t stride, enum dtype type, void *out)
{
  const unsigned blocks = (unsigned)pieces_of(pieces_of(n, NF4_WORD), THREADS * WORDS);
  for (int first = 0; first < parts && n > 0; first += MOST_ROWS)
    with_bf16(type == DTYPE_BF16, [&](auto to) {
      decode_words<<<dim3(blocks, (unsigned)min(parts - first, MOST_ROWS)), THREADS, 0,
                     launch->stream>>>(n, first, (const char *)messages, stride,
                                       (decltype(to) *)out);
    });
}
