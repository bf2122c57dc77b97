/* Vectors in NormalFloat4 (compress/rule/nf4.h). A thread takes words of 8 codes, and 8 threads a
 * block of elements. This is compiled without fused multiply-adds (gpu/local.mk). */
#include "compress/rule/nf4.h"
#include "gpu/common.cuh"
#include "gpu/kernels.h"

namespace {

constexpr int THREADS = 256, WORDS = 4 /* of a thread */, BLOCK_WORDS = NF4_BLOCK / NF4_WORD;

/* Zeros follow codes and magnitudes: a lane writes a zero for a word after the last block. */
__global__ void __launch_bounds__(THREADS) code_words(int64_t n, const float *x, char *message)
{
  const int64_t w = (int64_t)blockIdx.x * THREADS + threadIdx.x, begin = w * NF4_WORD,
                words = nf4_blocks(n) * BLOCK_WORDS, codes = nf4_code_bytes(n) / 4,
                magnitudes = (nf4_bytes(n) - nf4_code_bytes(n)) / 4;
  float value[NF4_WORD];
  uint32_t largest = 0, word = 0;
#pragma unroll
  for (int i = 0; i < NF4_WORD; i++) {
    value[i] = begin + i < n ? x[begin + i] : 0;
    largest = max(largest, f32_bits(value[i]) & 0x7fffffff);
  }
#pragma unroll
  for (int offset = BLOCK_WORDS / 2; offset > 0; offset /= 2)
    largest = max(largest, shuffle(largest, offset));
  const float magnitude = nf4_magnitude(largest), inverse = nf4_inverse(magnitude);
#pragma unroll
  for (int i = 0; i < NF4_WORD; i++)
    word |= nf4_code(value[i], inverse) << nf4_shift(i);
  if (w < codes)
    ((uint32_t *)message)[w] = w < words ? word : 0;
  if (w % BLOCK_WORDS == 0 && w / BLOCK_WORDS < magnitudes)
    ((float *)message)[codes + w / BLOCK_WORDS] = w < words ? magnitude : 0;
}

/* A row of the grid is a message. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    decode_words(int64_t n, int first, const char *messages, int64_t stride, T *out)
{
  __shared__ float value[16];
  if (threadIdx.x < 16) {
    constexpr float all[] = {NF4_VALUES};
    float mine = all[0];
#pragma unroll
    for (int i = 1; i < 16; i++)
      mine = threadIdx.x == i ? all[i] : mine;
    value[threadIdx.x] = mine;
  }
  __syncthreads();
  const int64_t part = first + blockIdx.y, words = (n + NF4_WORD - 1) / NF4_WORD,
                mine = (int64_t)blockIdx.x * (THREADS * WORDS) + threadIdx.x;
  const uint32_t *code = (const uint32_t *)(messages + part * stride);
  const float *magnitude = (const float *)(messages + part * stride + nf4_code_bytes(n));
  uint32_t word[WORDS];
  float scale[WORDS];
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const int64_t w = mine + k * THREADS;
    word[k] = w < words ? __ldcs(code + w) : 0;
    scale[k] = w < words ? magnitude[w / BLOCK_WORDS] : 0;
  }
  out += part * n;
#pragma unroll
  for (int k = 0; k < WORDS; k++) {
    const int64_t begin = (mine + k * THREADS) * NF4_WORD;
    float x[NF4_WORD];
#pragma unroll
    for (int i = 0; i < NF4_WORD; i++)
      x[i] = value[word[k] >> nf4_shift(i) & 15] * scale[k];
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

void gpu_nf4_code(const gpu_launch *launch, int64_t n, const float *x, void *message)
{
  const int64_t codes = nf4_code_bytes(n) / 4,
                magnitudes = (nf4_bytes(n) - nf4_code_bytes(n)) / 4 * BLOCK_WORDS,
                words = codes > magnitudes ? codes : magnitudes;
  if (n > 0)
    code_words<<<(unsigned)pieces_of(words, THREADS), THREADS, 0, launch->stream>>>(
        n, x, (char *)message);
}

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
