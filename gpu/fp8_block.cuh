/* A block of threads codes 128 x 128 elements, which it holds in registers. Thread (g, c) of 32 x
 * 16 has 4 x 8 of them, rows 4 g and columns 8 c. Codes and scales are the host's bits. Private to
 * gpu/. */
#pragma once

#include "gpu/fp8.cuh"

namespace fp8_block {

constexpr int ROWS = 4, EACH = 8, GROUPS = FP8_TILE / EACH, THREADS = FP8_TILE / ROWS * GROUPS,
              WARPS = THREADS / 32, WORDS = EACH / 2;

struct place {
  int g, c;
};

DEVICE place my_place()
{
  return {(int)threadIdx.x / GROUPS, (int)threadIdx.x % GROUPS};
}

/* The thread's elements. */
typedef pack<bf16, EACH> elements[ROWS];

/* Two magnitudes of bf16 in a word, which compare as numbers of 16 bits. */
DEVICE uint32_t magnitudes(const pack<bf16, EACH> &x, int word)
{
  return reinterpret_cast<const uint32_t *>(&x)[word] & 0x7fff7fff;
}

/* The largest magnitude of `first`, and that of `second`, packed in a word. */
DEVICE uint32_t larger_of(uint32_t first, uint32_t second)
{
  return __vmaxu2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
}

/* The thread's columns in pairs, over its rows. */
DEVICE uint32_t over_rows(const elements &x, int word)
{
  uint32_t pair = 0;
  for (int r = 0; r < ROWS; r += 2)
    pair = __vimax3_u16x2(pair, magnitudes(x[r], word), magnitudes(x[r + 1], word));
  return pair;
}

/* Pair i of the largest magnitudes of the thread's rows, or columns, over all threads that share
 * them. */
DEVICE void along_rows(const elements &x, uint32_t (&pair)[ROWS / 2])
{
  for (int i = 0; i < ROWS / 2; i++) {
    uint32_t most[2] = {0, 0};
    for (int r = 0; r < 2; r++)
      for (int w = 0; w < WORDS; w += 2)
        most[r] =
            __vimax3_u16x2(most[r], magnitudes(x[2 * i + r], w), magnitudes(x[2 * i + r], w + 1));
    pair[i] = larger_of(most[0], most[1]);
    for (int half = GROUPS / 2; half > 0; half /= 2)
      pair[i] = __vmaxu2(pair[i], __shfl_xor_sync(ALL_LANES, pair[i], half));
  }
}

/* Eight threads reduce each pair of columns. Rows are padded by 4 words, so reads have no bank
 * conflicts. */
DEVICE void along_columns(const elements &x, uint32_t (&pair)[WORDS])
{
  constexpr int PAIRS = FP8_TILE / 2, SHARE = THREADS / PAIRS;
  __shared__ alignas(16) uint32_t warps[WARPS][PAIRS + 4];
  __shared__ alignas(16) uint32_t columns[PAIRS];
  const place p = my_place();
  const int t = threadIdx.x;
  for (int w = 0; w < WORDS; w++) {
    pair[w] = over_rows(x, w);
    pair[w] = __vmaxu2(pair[w], __shfl_xor_sync(ALL_LANES, pair[w], GROUPS));
  }
  if (p.g % 2 == 0)
    *(uint4 *)&warps[t / 32][p.c * WORDS] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
  __syncthreads();
  uint32_t most = 0;
  for (int w = 0; w < WARPS; w += SHARE)
    most = __vmaxu2(most, warps[w + t % SHARE][t / SHARE]);
  for (int half = SHARE / 2; half > 0; half /= 2)
    most = __vmaxu2(most, __shfl_xor_sync(ALL_LANES, most, half));
  if (t % SHARE == 0)
    columns[t / SHARE] = most;
  __syncthreads();
  const uint4 mine = *(const uint4 *)&columns[p.c * WORDS];
  pair[0] = mine.x;
  pair[1] = mine.y;
  pair[2] = mine.z;
  pair[3] = mine.w;
}

/* Where x lies: row after row, 128 bytes of codes each. */
DEVICE void store_rows(const elements &x, const float (&factor)[ROWS], int64_t k, uint8_t *code)
{
  const place p = my_place();
  for (int r = 0; r < ROWS; r++) {
    float wide[EACH];
    for (int j = 0; j < EACH; j++)
      wide[j] = to_float(x[r].at[j]);
    const uint2 codes = {codes_of(wide, factor[r]), codes_of(wide + 4, factor[r])};
    *(uint2 *)(code + (p.g * ROWS + r) * k + p.c * EACH) = codes;
  }
}

/* The transpose, through shared memory, so that the codes of a row leave together. Words of a row
 * are swizzled, which avoids bank conflicts. Pairs of words stay adjacent. */
DEVICE void store_columns(const elements &x, const float (&factor)[EACH], int64_t k, uint8_t *code)
{
  __shared__ alignas(16) uint32_t turned[FP8_TILE][FP8_TILE / ROWS];
  const place p = my_place();
  for (int j = 0; j < EACH; j++) {
    float wide[ROWS];
    for (int r = 0; r < ROWS; r++)
      wide[r] = to_float(x[r].at[j]);
    turned[p.c * EACH + j][p.g ^ (2 * p.c)] = codes_of(wide, factor[j]);
  }
  __syncthreads();
  for (int i = 0; i < FP8_TILE * GROUPS / THREADS; i++) {
    const int row = i * (THREADS / GROUPS) + p.g;
    *(uint2 *)(code + row * k + p.c * EACH) =
        *(const uint2 *)&turned[row][(2 * p.c) ^ (2 * (row / EACH))];
  }
}

/* Codes x in tiles, or x^T: to rows of k codes from `code`, and to 128 scales. A kernel may call it
 * again for other elements, because each call has barriers between its uses of shared memory. */
template <bool TRANSPOSED>
DEVICE void code_tiles(const elements &x, int64_t k, uint8_t *code, float *scale, seen_tiles *seen)
{
  constexpr int N = TRANSPOSED ? EACH : ROWS;
  const place p = my_place();
  const bool writes = TRANSPOSED ? p.g == 0 : p.c == 0;
  uint32_t pair[N / 2];
  float factor[N];
  if constexpr (TRANSPOSED)
    along_columns(x, pair);
  else
    along_rows(x, pair);
  for (int i = 0; i < N; i++) {
    const uint32_t most = i % 2 ? pair[i / 2] & 0xffff0000 : pair[i / 2] << 16;
    const float value = fp8_scale(most);
    factor[i] = factor_of(value);
    seen->add(most, TRANSPOSED ? ROWS : EACH);
    if (writes)
      scale[(TRANSPOSED ? p.c : p.g) * N + i] = value;
  }
  if constexpr (TRANSPOSED)
    store_columns(x, factor, k, code);
  else
    store_rows(x, factor, k, code);
}

DEVICE uint32_t of_block(const elements &x)
{
  const uint32_t pair = __vmaxu2(__vmaxu2(over_rows(x, 0), over_rows(x, 1)),
                                 __vmaxu2(over_rows(x, 2), over_rows(x, 3)));
  return over_block<WARPS>(max(pair << 16, pair & 0xffff0000));
}

/* Codes x or x^T as the block at (row, column) of an operand in blocks, with rows of k codes.
 * given: NULL, or its scale. */
template <bool TRANSPOSED>
DEVICE void code_block(const elements &x, int64_t k, int64_t row, int64_t column,
                       const float *given, uint8_t *code, float *scale)
{
  constexpr int N = TRANSPOSED ? EACH : ROWS;
  const float value = given ? *given : fp8_scale(of_block(x));
  float factor[N];
  for (int i = 0; i < N; i++)
    factor[i] = factor_of(value);
  const int64_t pitch = fp8_pitch(k), tile = column / FP8_TILE, rest = pitch - k / FP8_TILE;
  float *const scales = scale + row / FP8_TILE * pitch;
  if (threadIdx.x == 0)
    scales[tile] = value;
  if (tile == 0 && threadIdx.x < rest)
    scales[k / FP8_TILE + threadIdx.x] = 0;
  if constexpr (TRANSPOSED)
    store_columns(x, factor, k, code + row * k + column);
  else
    store_rows(x, factor, k, code + row * k + column);
}

} // namespace fp8_block
