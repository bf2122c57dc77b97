/* The inner loops of a matrix product, after Goto and van de Geijn (ACM TOMS 34, 2008). Operands
 * are packed into panels that are read from end to end, and a tile of c stays in registers. Part of
 * kernels_body.h.
 *
 * An element of c is one chain of additions over k, for any tile, panel and place in them. If the
 * processor has fused multiply-adds (all except "generic"), the chain uses them, at any width. */

#if defined __AVX512F__
enum { TILE_ROWS = 14 }; /* 28 of 32 registers hold the tile */
#elif defined NEON
enum { TILE_ROWS = 10 }; /* 20 of 32, because elements of a take the others */
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
#elif defined NEON
  return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

/* to[l][i] = from[i][l] for four rows i and four l. */
INLINE void transpose_quad(const float *from, int64_t ld, float *to, int64_t stride)
{
  const quadi low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
  quad a = *(const quad_memory *)from, b = *(const quad_memory *)(from + ld),
       c = *(const quad_memory *)(from + 2 * ld), d = *(const quad_memory *)(from + 3 * ld);
  quad ab = __builtin_shuffle(a, b, low), cd = __builtin_shuffle(c, d, low),
       ab2 = __builtin_shuffle(a, b, high), cd2 = __builtin_shuffle(c, d, high);
  *(quad_memory *)to = __builtin_shuffle(ab, cd, first);
  *(quad_memory *)(to + stride) = __builtin_shuffle(ab, cd, second);
  *(quad_memory *)(to + 2 * stride) = __builtin_shuffle(ab2, cd2, first);
  *(quad_memory *)(to + 3 * stride) = __builtin_shuffle(ab2, cd2, second);
}

/* A panel of `width` lanes (rows of a, or columns of b), to[l][lane] for l < k. The lanes are
 * adjacent in memory (`along`) or ld apart. Lanes past n are zero. */
INLINE void pack_panel(int width, bool along, int64_t n, int64_t k, const float *from, int64_t ld,
                       float *to)
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
INLINE void multiply_full(int64_t k, const float *a, const float *b, bool accumulate, float *c,
                          int64_t ldc)
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

static void multiply(int64_t k, const float *a, const float *b, int64_t rows, int64_t columns,
                     bool accumulate, struct target c)
{
  if (rows >= TILE_ROWS && columns >= TILE_COLUMNS) {
    multiply_full(k, a, b, accumulate, c.at, c.ld);
    return;
  }
  float tile[TILE_ROWS * TILE_COLUMNS];
  multiply_full(k, a, b, false, tile, TILE_COLUMNS);
  for (int64_t i = 0; i < rows && i < TILE_ROWS; i++)
    for (int64_t j = 0; j < columns && j < TILE_COLUMNS; j++) {
      float sum = tile[i * TILE_COLUMNS + j], *to = c.at + i * c.ld + j;
      *to = accumulate ? *to + sum : sum;
    }
}

/* Few rows of a, as when tokens are generated one by one: b is read once, directly from memory, at
 * memory bandwidth. The chains are the same. */

#if defined __AVX512F__
#define QUADS(a, b, c, d)                                                                          \
  {                                                                                                \
    a, b, c, d, a + 4, b + 4, c + 4, d + 4, a + 8, b + 8, c + 8, d + 8, a + 12, b + 12, c + 12,    \
        d + 12                                                                                     \
  }
enum {
  GROUPS = 1
}; /* of WIDTH columns at once: enough chains to hide the latency of an addition, not more streams
      than the hardware follows */
#elif defined __AVX2__
#define QUADS(a, b, c, d)                                                                          \
  {                                                                                                \
    a, b, c, d, a + 4, b + 4, c + 4, d + 4                                                         \
  }
enum { GROUPS = 2 };
#else
#define QUADS(a, b, c, d)                                                                          \
  {                                                                                                \
    a, b, c, d                                                                                     \
  }
enum { GROUPS = 2 };
#endif
enum {
  NARROW_STRIP = 512
}; /* columns whose sums stay in the first-level cache; a multiple of WIDTH */

/* Quads that lie `step` apart, loaded one after the other. */
INLINE vec load_quads(const float *from, int64_t step)
{
#if defined __AVX512F__
  __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(from));
  x = _mm512_insertf32x4(x, _mm_loadu_ps(from + step), 1);
  x = _mm512_insertf32x4(x, _mm_loadu_ps(from + 2 * step), 2);
  return (vec)_mm512_insertf32x4(x, _mm_loadu_ps(from + 3 * step), 3);
#elif defined __AVX2__
  return (vec)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)),
                                   _mm_loadu_ps(from + step), 1);
#else
  (void)step;
  return *(const vec_memory *)from;
#endif
}

/* to[l][j] = from[j * ld + l] for four l. */
INLINE void load_transposed(const float *from, int64_t ld, vec to[4])
{
  const veci low = QUADS(0, WIDTH, 1, WIDTH + 1), high = QUADS(2, WIDTH + 2, 3, WIDTH + 3);
  const veci first = QUADS(0, 1, WIDTH, WIDTH + 1), second = QUADS(2, 3, WIDTH + 2, WIDTH + 3);
  vec a = load_quads(from, 4 * ld), b = load_quads(from + ld, 4 * ld),
      c = load_quads(from + 2 * ld, 4 * ld), d = load_quads(from + 3 * ld, 4 * ld);
  vec ab = __builtin_shuffle(a, b, low), cd = __builtin_shuffle(c, d, low),
      ab2 = __builtin_shuffle(a, b, high), cd2 = __builtin_shuffle(c, d, high);
  to[0] = __builtin_shuffle(ab, cd, first);
  to[1] = __builtin_shuffle(ab, cd, second);
  to[2] = __builtin_shuffle(ab2, cd2, first);
  to[3] = __builtin_shuffle(ab2, cd2, second);
}

/* The first n of WIDTH elements, `step` apart; zeros after them. */
INLINE vec load_some(const float *from, int64_t step, int64_t n)
{
  float lanes[WIDTH];
  for (int j = 0; j < WIDTH; j++)
    lanes[j] = j < n ? from[j * step] : 0;
  return *(const vec_memory *)lanes;
}

/* Terms from l on of the chains of m rows and of columns [j, n) that do not fill a vector:
 * sum[i][j], rows NARROW_STRIP apart. */
static void extend_some(const struct gemm *g, int m, int64_t j, int64_t n, int64_t l, float *sum)
{
  const int64_t step = g->trans_b ? g->b.ld : 1, next = g->trans_b ? 1 : g->b.ld;
  for (; l < g->k; l++)
    for (int64_t at = j; at < n; at += WIDTH) {
      vec x = load_some(g->b.at + l * next + at * step, step, n - at);
      for (int i = 0; i < m; i++) {
        vec_memory *to = (vec_memory *)(sum + i * NARROW_STRIP + at);
        *to = vec_fma(vec_all(g->a.at[i * g->a.ld + l]), x, *to);
      }
    }
}

/* Columns of b that lie in rows of memory: `groups` of WIDTH of them from j on, as many
 * terms as are a multiple of 4. Rows are often a power of two apart, so the lines of all rows
 * compete for one set of the first-level cache. So a line is used up before those of the next group
 * are loaded, and prefetched lines go to the second level. */
INLINE void chain_across(int m, int groups, const struct gemm *op, int64_t column, float *sums)
{
  enum { AHEAD = 128 };
  const int64_t k = op->k / 4 * 4, lda = op->a.ld, ldb = op->b.ld;
  const float *const a = op->a.at, *const b = op->b.at + column * ldb;
  float *const to = sums + column;
  const int64_t below =
      groups * WIDTH * ldb +
      (k > AHEAD ? AHEAD - k : 0); /* after the end of a row: the rows that come next */
  vec sum[NARROW][GROUPS];
#pragma GCC unroll 8
  for (int i = 0; i < m; i++)
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
      sum[i][g] = vec_all(0);
  for (int64_t line = 0; line < k; line += LANES)
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
      const float *from = b + g * WIDTH * ldb;
      for (int j = 0; j < WIDTH; j++)
        __builtin_prefetch(from + j * ldb + line + (line + AHEAD < k ? AHEAD : below), 0, 2);
      for (int64_t l = line; l < k && l < line + LANES; l += 4) {
        vec x[4];
        load_transposed(from + l, ldb, x);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++)
#pragma GCC unroll 8
          for (int i = 0; i < m; i++)
            sum[i][g] = vec_fma(vec_all(a[i * lda + l + q]), x[q], sum[i][g]);
      }
    }
#pragma GCC unroll 8
  for (int i = 0; i < m; i++)
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
      *(vec_memory *)(to + i * NARROW_STRIP + g * WIDTH) = sum[i][g];
}

INLINE void narrow_across(int m, const struct gemm *g, float *sum)
{
  const int groups = m > 2 ? 1 : GROUPS; /* many rows give enough chains */
  int64_t j = 0;
  for (; j + groups * WIDTH <= g->n; j += groups * WIDTH)
    chain_across(m, groups, g, j, sum);
  extend_some(g, m, 0, j, g->k / 4 * 4, sum);
  extend_some(g, m, j, g->n, 0, sum);
}

/* Rows of b as they lie in memory: four terms for as many columns as fill vectors. */
INLINE void narrow_along(int m, const struct gemm *g, float *sum)
{
  const int64_t full = g->n / WIDTH * WIDTH, quads = g->k / 4 * 4, lda = g->a.ld, ldb = g->b.ld,
                ahead = g->n < NARROW_STRIP / 2 ? 16 : 4; /* rows: a few kilobytes */
  const float *const a = g->a.at, *const b = g->b.at;
  for (int64_t l = 0; l < quads; l += 4)
    for (int64_t j = 0; j < full; j += WIDTH) {
      const float *from = b + l * ldb + j;
      vec x[4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; q++) {
        x[q] = *(const vec_memory *)(from + q * ldb);
        if (j % LANES == 0)
          __builtin_prefetch(from + (ahead + q) * ldb);
      }
#pragma GCC unroll 8
      for (int i = 0; i < m; i++) {
        vec_memory *to = (vec_memory *)(sum + i * NARROW_STRIP + j);
        vec chain = *to;
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++)
          chain = vec_fma(vec_all(a[i * lda + l + q]), x[q], chain);
        *to = chain;
      }
    }
  extend_some(g, m, 0, full, quads, sum);
  extend_some(g, m, full, g->n, 0, sum);
}

INLINE void narrow_rows(int m, const struct gemm *g, float *sum)
{
  if (g->trans_b)
    narrow_across(m, g, sum);
  else
    narrow_along(m, g, sum);
}

/* Rows in groups of the largest power of two, a constant for the compiler. After the first group b
 * comes from cache. */
static void multiply_narrow(const struct gemm *g)
{
  float sum[NARROW * NARROW_STRIP];
  struct gemm strip = *g;
  for (int64_t j = 0; j < g->n; j += NARROW_STRIP) {
    strip.b.at = g->b.at + (g->trans_b ? j * g->b.ld : j);
    strip.n = g->n - j < NARROW_STRIP ? g->n - j : NARROW_STRIP;
    for (int64_t row = 0, rows; row < g->m; row += rows) {
      const int64_t left = g->m - row;
      strip.a.at = g->a.at + row * g->a.ld;
      rows = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      memset(sum, 0, sizeof *sum * (size_t)(rows * NARROW_STRIP));
      switch (rows) {
      case 8: narrow_rows(8, &strip, sum); break;
      case 4: narrow_rows(4, &strip, sum); break;
      case 2: narrow_rows(2, &strip, sum); break;
      default: narrow_rows(1, &strip, sum);
      }
      for (int64_t i = 0; i < rows; i++)
        for (int64_t l = 0; l < strip.n; l++) {
          float *to = g->c.at + (row + i) * g->c.ld + j + l;
          *to = g->accumulate ? *to + sum[i * NARROW_STRIP + l] : sum[i * NARROW_STRIP + l];
        }
    }
  }
}
