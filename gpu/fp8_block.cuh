/* A block of threads codes 128 x 128 elements, which it holds in registers. Thread (g, c) of 16 x
 * 16 has 8 x 8 of them, rows 8 g and columns 8 c. Codes and scales are the host's bits. Private to
 * gpu/. */
#ifndef SLUICE_GPU_FP8_BLOCK_CUH
#define SLUICE_GPU_FP8_BLOCK_CUH

#include "gpu/fp8.cuh"

namespace fp8_block {

constexpr int EACH = 8, GROUPS = FP8_TILE / EACH, THREADS = GROUPS * GROUPS;

struct place {
  int g, c;
};

__device__ __forceinline__ place my_place()
{
  return {(int)threadIdx.x / GROUPS, (int)threadIdx.x % GROUPS};
}

/* The largest magnitudes of the thread's rows or columns, over all threads that share them. */
struct largest {
  uint32_t at[EACH];
};

__device__ __forceinline__ largest along_rows(const pack<bf16, EACH> (&x)[EACH])
{
  largest top;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++)
      most = max(most, magnitude(x[i].at[j]));
#pragma unroll
    for (int half = GROUPS / 2; half > 0; half /= 2)
      most = max(most, __shfl_xor_sync(ALL_LANES, most, half));
    top.at[i] = most;
  }
  return top;
}

__device__ __forceinline__ largest along_columns(const pack<bf16, EACH> (&x)[EACH])
{
  __shared__ uint32_t warps[THREADS / 32][FP8_TILE];
  const place p = my_place();
  largest top;
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
      most = max(most, magnitude(x[i].at[j]));
    most = max(most, __shfl_xor_sync(ALL_LANES, most, GROUPS));
    if (p.g % 2 == 0)
      warps[threadIdx.x / 32][p.c * EACH + j] = most;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    top.at[j] = 0;
    for (int w = 0; w < THREADS / 32; w++)
      top.at[j] = max(top.at[j], warps[w][p.c * EACH + j]);
  }
  return top;
}

/* Where x lies: row after row, 128 bytes of codes each. */
__device__ __forceinline__ void store_rows(const pack<bf16, EACH> (&x)[EACH],
                                           const float (&factor)[EACH], int64_t k, uint8_t *code)
{
  const place p = my_place();
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    float wide[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++)
      wide[j] = to_float(x[i].at[j]);
    const uint2 codes = {codes_of(wide, factor[i]), codes_of(wide + 4, factor[i])};
    *(uint2 *)(code + (p.g * EACH + i) * k + p.c * EACH) = codes;
  }
}

/* The transpose, through shared memory, so that the codes of a row leave together. Pieces of 8
 * bytes are exchanged within a row, so that threads meet in no bank. */
__device__ __forceinline__ void store_columns(const pack<bf16, EACH> (&x)[EACH],
                                              const float (&factor)[EACH], int64_t k, uint8_t *code)
{
  __shared__ uint2 turned[FP8_TILE][GROUPS];
  const place p = my_place();
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    float wide[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
      wide[i] = to_float(x[i].at[j]);
    turned[p.c * EACH + j][p.g ^ p.c] = {codes_of(wide, factor[j]), codes_of(wide + 4, factor[j])};
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int row = i * GROUPS + p.g;
    *(uint2 *)(code + row * k + p.c * EACH) = turned[row][p.c ^ (row / EACH)];
  }
}

/* Codes x in tiles, or x^T: to rows of k codes from `code`, and to 128 scales. A kernel may call it
 * again for other elements, because each call has barriers between its uses of shared memory. */
template <bool TRANSPOSED>
__device__ __forceinline__ void code_tiles(const pack<bf16, EACH> (&x)[EACH], int64_t k,
                                           uint8_t *code, float *scale, seen_tiles *seen)
{
  const place p = my_place();
  const largest top = TRANSPOSED ? along_columns(x) : along_rows(x);
  const bool writes = TRANSPOSED ? p.g == 0 : p.c == 0;
  float factor[EACH];
#pragma unroll
  for (int r = 0; r < EACH; r++) {
    const float value = fp8_scale(top.at[r]);
    factor[r] = factor_of(value);
    seen->add(top.at[r], EACH);
    if (writes)
      scale[(TRANSPOSED ? p.c : p.g) * EACH + r] = value;
  }
  if constexpr (TRANSPOSED)
    store_columns(x, factor, k, code);
  else
    store_rows(x, factor, k, code);
}

} // namespace fp8_block

#endif
