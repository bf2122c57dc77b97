/* The inner loops of a matrix product, in the manner of Goto and van de Geijn (ACM TOMS 34, 2008): operands packed into panels that are read from end to end, and
 * a tile of c kept in registers. Part of kernels_body.h.
 *
 * An element of c is one chain of additions over k, whatever the tile, the panel or the place in them. Where the processor has fused multiply-adds (all but
 * "generic") the chain is made of those, whatever their width. */

#if defined __AVX512F__
enum { TILE_ROWS = 14 }; /* 28 of 32 registers hold the tile */
#else
enum { TILE_ROWS = 6 }; /* 12 of 16 */
#endif
enum { TILE_COLUMNS = 2 * WIDTH };

typedef float quad __attribute__((vector_size(16)));
typedef float quad_memory __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t quadi __attribute__((vector_size(16)));

INLINE vec vec_fma(vec a, vec b, vec c)
{
#if defined __AVX512F__
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined __FMA__ && defined __AVX2__
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

/* to[l][i] = from[i][l] for four rows i and four l. */
INLINE void transpose_quad(const float *from, int64_t ld, float *to, int64_t stride)
{
  const quadi low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
  quad a = *(const quad_memory *)from, b = *(const quad_memory *)(from + ld), c = *(const quad_memory *)(from + 2 * ld),
       d = *(const quad_memory *)(from + 3 * ld);
  quad ab = __builtin_shuffle(a, b, low), cd = __builtin_shuffle(c, d, low), ab2 = __builtin_shuffle(a, b, high), cd2 = __builtin_shuffle(c, d, high);
  *(quad_memory *)to = __builtin_shuffle(ab, cd, first);
  *(quad_memory *)(to + stride) = __builtin_shuffle(ab, cd, second);
  *(quad_memory *)(to + 2 * stride) = __builtin_shuffle(ab2, cd2, first);
  *(quad_memory *)(to + 3 * stride) = __builtin_shuffle(ab2, cd2, second);
}

/* A panel of `width` lanes (rows of a, or columns of b), to[l][lane] for l < k, from lanes that lie next to each other in memory (`along`) or ld apart. Lanes
 * past n are zero. */
INLINE void pack_panel(int width, bool along, int64_t n, int64_t k, const float *from, int64_t ld, float *to)
{
  int64_t l = 0;
  if (n < width) {
    for (; l < k; l++)
      for (int i = 0; i < width; i++)
        to[l * width + i] = i < n ? from[along ? l * ld + i : i * ld + l] : 0;
    return;
  }
  if (along) {
    for (; l < k; l++)
      for (int i = 0; i < width; i++)
        to[l * width + i] = from[l * ld + i];
    return;
  }
  for (; l + 4 <= k; l += 4) {
    for (int i = 0; i + 4 <= width; i += 4)
      transpose_quad(from + i * ld + l, ld, to + l * width + i, width);
    for (int i = width / 4 * 4; i < width; i++)
      for (int j = 0; j < 4; j++)
        to[(l + j) * width + i] = from[i * ld + l + j];
  }
  for (; l < k; l++)
    for (int i = 0; i < width; i++)
      to[l * width + i] = from[i * ld + l];
}

static void pack_rows(bool along, int64_t n, int64_t k, const float *from, int64_t ld, float *to)
{
  pack_panel(TILE_ROWS, along, n, k, from, ld, to);
}

static void pack_columns(bool along, int64_t n, int64_t k, const float *from, int64_t ld, float *to)
{
  pack_panel(TILE_COLUMNS, along, n, k, from, ld, to);
}

/* A whole tile: c = (accumulate ? c : 0) + a b. */
INLINE void multiply_full(int64_t k, const float *a, const float *b, bool accumulate, float *c, int64_t ldc)
{
  vec sum[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int i = 0; i < TILE_ROWS; i++) {
    __builtin_prefetch(c + i * ldc, 1);
    sum[i][0] = sum[i][1] = vec_all(0);
  }
  for (int64_t l = 0; l < k; l++, a += TILE_ROWS, b += TILE_COLUMNS) {
    vec left = *(const vec_memory *)b, right = *(const vec_memory *)(b + WIDTH);
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++) {
      vec x = vec_all(a[i]);
      sum[i][0] = vec_fma(x, left, sum[i][0]);
      sum[i][1] = vec_fma(x, right, sum[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < TILE_ROWS; i++) {
    vec_memory *to = (vec_memory *)(c + i * ldc), *next = (vec_memory *)(c + i * ldc + WIDTH);
    *to = accumulate ? (vec)*to + sum[i][0] : sum[i][0];
    *next = accumulate ? (vec)*next + sum[i][1] : sum[i][1];
  }
}

static void multiply(int64_t k, const float *a, const float *b, int64_t rows, int64_t columns, bool accumulate, float *c, int64_t ldc)
{
  if (rows >= TILE_ROWS && columns >= TILE_COLUMNS) {
    multiply_full(k, a, b, accumulate, c, ldc);
    return;
  }
  float tile[TILE_ROWS * TILE_COLUMNS];
  multiply_full(k, a, b, false, tile, TILE_COLUMNS);
  for (int64_t i = 0; i < rows && i < TILE_ROWS; i++)
    for (int64_t j = 0; j < columns && j < TILE_COLUMNS; j++) {
      float sum = tile[i * TILE_COLUMNS + j];
      c[i * ldc + j] = accumulate ? c[i * ldc + j] + sum : sum;
    }
}
