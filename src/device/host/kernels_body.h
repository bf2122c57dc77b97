/* The body of kernels_*.c, compiled once for each instruction set. Before it: the target, and
 * KERNELS, the name of the table. Included once per file, so it has no guard. */

#if defined __AVX512F__
enum { WIDTH = 16 };
#elif defined __AVX2__
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
enum { VECTORS = LANES / WIDTH };

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t veci __attribute__((vector_size(4 * WIDTH)));
typedef float vec_memory __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
struct pack {
  vec v[VECTORS];
}; /* LANES floats */

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_all(float x)
{
  return x - (vec){0}; /* x - 0 and not x + 0, which would lose the sign of a zero */
}

INLINE vec vec_select(veci mask, vec yes, vec no)
{
  return (vec)((mask & (veci)yes) | (~mask & (veci)no));
}

/* The second operand if either is NaN. */
INLINE vec vec_max(vec a, vec b)
{
  return vec_select(a > b, a, b);
}

INLINE vec vec_min(vec a, vec b)
{
  return vec_select(a < b, a, b);
}

/* The one operation that GCC's vectors lack. */
INLINE vec vec_sqrt(vec x)
{
#if defined __AVX512F__
  /* _mm512_sqrt_ps() has an undefined operand, so that equal roots would be computed twice. */
  return (vec)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined __AVX2__
  return (vec)_mm256_sqrt_ps((__m256)x);
#elif defined __SSE2__
  return (vec)_mm_sqrt_ps((__m128)x);
#elif defined NEON
  return (vec)vsqrtq_f32((float32x4_t)x);
#else
  for (int i = 0; i < WIDTH; i++)
    x[i] = sqrtf(x[i]);
  return x;
#endif
}

INLINE struct pack pack_all(float x)
{
  struct pack p;
  for (int i = 0; i < VECTORS; i++)
    p.v[i] = vec_all(x);
  return p;
}

INLINE struct pack pack_load_full(const float *from)
{
  struct pack p;
  for (int i = 0; i < VECTORS; i++)
    p.v[i] = *(const vec_memory *)(from + i * WIDTH);
  return p;
}

/* The first n floats; the other lanes get `fill`. */
INLINE struct pack pack_load_or(const float *from, int64_t n, float fill)
{
  if (__builtin_expect(n >= LANES, 1))
    return pack_load_full(from);
  float lanes[LANES];
  for (int i = 0; i < LANES; i++)
    lanes[i] = i < n ? from[i] : fill;
  return pack_load_full(lanes);
}

INLINE struct pack pack_load(const float *from, int64_t n)
{
  return pack_load_or(from, n, 0);
}

INLINE void pack_store(float *to, int64_t n, struct pack p)
{
  if (__builtin_expect(n >= LANES, 1)) {
    for (int i = 0; i < VECTORS; i++)
      *(vec_memory *)(to + i * WIDTH) = p.v[i];
    return;
  }
  float lanes[LANES];
  for (int i = 0; i < VECTORS; i++)
    *(vec_memory *)(lanes + i * WIDTH) = p.v[i];
  for (int i = 0; i < n && i < LANES; i++)
    to[i] = lanes[i];
}

/* Element by element. */
#define PACK_OPERATION(name, value)                                                                \
  INLINE struct pack pack_##name(struct pack a, struct pack b)                                     \
  {                                                                                                \
    for (int i = 0; i < VECTORS; i++)                                                              \
      a.v[i] = value;                                                                              \
    return a;                                                                                      \
  }
PACK_OPERATION(add, a.v[i] + b.v[i])
PACK_OPERATION(sub, a.v[i] - b.v[i])
PACK_OPERATION(mul, a.v[i] * b.v[i])
PACK_OPERATION(max, vec_max(a.v[i], b.v[i]))

INLINE float pack_sum(struct pack p)
{
  float lanes[LANES];
  pack_store(lanes, LANES, p);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++)
      lanes[i] += lanes[i + half];
  return lanes[0];
}

INLINE float pack_largest(struct pack p)
{
  float lanes[LANES];
  pack_store(lanes, LANES, p);
  for (int i = 1; i < LANES; i++)
    lanes[0] = lanes[0] > lanes[i] ? lanes[0] : lanes[i];
  return lanes[0];
}

/* e^x to about 1.5 units in the last place: x = k ln 2 + r with |r| <= ln 2 / 2. The Taylor
 * polynomial of degree 7 gives e^r (remainder 5e-9), and k is added to the exponent. The constant
 * ln 2 is split in two so that k times the high part is exact (Cody and Waite). Below -87 the
 * result is 0; above 87 it stays e^87, whose inverse is still a normal number. NaN stays. */
INLINE vec vec_exp(vec x)
{
  const float least = -87, round = 12582912; /* 1.5 * 2^23: adding it rounds to an integer, which
                                                then stands in the low bits */
  vec clamped = vec_min(vec_all(87), vec_max(vec_all(least), x));
  vec shifted = clamped * 1.44269504f + round, k = shifted - round;
  vec r = clamped - k * 0.693359375f + k * 2.12194440e-4f;
  vec y = r * (1.0f / 5040) + 1.0f / 720;
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r * r + r + 1.0f;
  veci power = ((veci)shifted - (veci)vec_all(round) + 127) << 23;
  return (vec)((veci)(y * (vec)power) & ~(x < least));
}

INLINE struct pack pack_exp(struct pack p)
{
  for (int i = 0; i < VECTORS; i++)
    p.v[i] = vec_exp(p.v[i]);
  return p;
}

static void add(int64_t n, const float *a, const float *b, float *out)
{
  for (int64_t i = 0; i < n; i += LANES)
    pack_store(out + i, n - i, pack_add(pack_load(a + i, n - i), pack_load(b + i, n - i)));
}

/* Bypasses the caches, because the data are not read soon. `to` is aligned to the size of the
 * store. */
INLINE void stream_floats(float *to, vec x)
{
#if defined __AVX512F__
  _mm512_stream_ps(to, (__m512)x);
#elif defined __AVX2__
  _mm256_stream_ps(to, (__m256)x);
#elif defined __SSE2__
  _mm_stream_ps(to, (__m128)x);
#elif defined NEON
  __asm__("stnp %d1, %d2, %0"
          : "=Q"(*(vec_memory *)to)
          : "w"(x), "w"(vdupq_laneq_f64((float64x2_t)x, 1)));
#else
  *(vec_memory *)to = x;
#endif
}

INLINE void stream_end(void)
{
#if defined __SSE2__
  _mm_sfence(); /* a flag that is set next must not be visible before the streamed data */
#endif
}

static void add_around(int64_t n, const float *a, const float *b, float *out)
{
  const int64_t whole = (uintptr_t)out % (LANES * sizeof *out) == 0 ? n / LANES * LANES : 0;
  for (int64_t i = 0; i < whole; i += LANES) {
    const struct pack sum = pack_add(pack_load_full(a + i), pack_load_full(b + i));
    for (int v = 0; v < VECTORS; v++)
      stream_floats(out + i + v * WIDTH, sum.v[v]);
  }
  stream_end();
  add(n - whole, a + whole, b + whole, out + whole);
}

static void scale(int64_t n, float factor, float *x)
{
  for (int64_t i = 0; i < n; i += LANES)
    pack_store(x + i, n - i, pack_mul(pack_load(x + i, n - i), pack_all(factor)));
}

static float dot(int64_t n, const float *a, const float *b)
{
  struct pack sum = pack_all(0);
  for (int64_t i = 0; i < n; i += LANES)
    sum = pack_add(sum, pack_mul(pack_load(a + i, n - i), pack_load(b + i, n - i)));
  return pack_sum(sum);
}

static double sum_squares(int64_t n, const float *x)
{
  double lane[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++)
      lane[j] += (double)x[i + j] * x[i + j];
  for (; i < n; i++)
    lane[i % LANES] += (double)x[i] * x[i];
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int j = 0; j < half; j++)
      lane[j] += lane[j + half];
  return lane[0];
}

/* The tanh form is x sigma(z) with z = 2 sqrt(2 / pi) (x + 0.044715 x^3): one exponential, and no
 * cancellation in the left tail. */
#define GELU_SLOPE 1.5957691216f
#define GELU_CUBE (GELU_SLOPE * 0.044715f)

INLINE vec vec_sigmoid(vec z)
{
  return 1.0f / (1.0f + vec_exp(-z));
}

INLINE vec vec_gelu(vec x)
{
  return x * vec_sigmoid(x * (GELU_CUBE * x * x + GELU_SLOPE));
}

INLINE vec vec_gelu_slope(vec x)
{
  vec square = x * x, s = vec_sigmoid(x * (GELU_CUBE * square + GELU_SLOPE));
  return s + x * s * (1.0f - s) * (3 * GELU_CUBE * square + GELU_SLOPE);
}

static void bias_gelu(int64_t n, const float *bias, float *aux, float *c)
{
  for (int64_t i = 0; i < n; i += LANES) {
    struct pack x = pack_add(pack_load(c + i, n - i), pack_load(bias + i, n - i));
    pack_store(aux + i, n - i, x);
    for (int j = 0; j < VECTORS; j++)
      x.v[j] = vec_gelu(x.v[j]);
    pack_store(c + i, n - i, x);
  }
}

static void dgelu(int64_t n, const float *aux, float *c)
{
  for (int64_t i = 0; i < n; i += LANES) {
    struct pack x = pack_load(aux + i, n - i);
    for (int j = 0; j < VECTORS; j++)
      x.v[j] = vec_gelu_slope(x.v[j]);
    pack_store(c + i, n - i, pack_mul(pack_load(c + i, n - i), x));
  }
}

INLINE const float *row_of(const void *x, int64_t at)
{
  return x ? (const float *)x + at : NULL;
}

/* `centred`: a layer norm, whose rows are contiguous; else a root mean square norm. */
INLINE void norm_row(bool centred, const struct row_norm *op, int64_t row, int64_t group)
{
  const int64_t C = op->C, at = centred ? row * C : row * op->x_stride + group * C;
  const float *x = row_of(op->x, at), *addend = row_of(op->add, at), *gamma = op->gamma,
              *beta = op->beta;
  float *sum = addend ? (float *)op->sum + at : NULL,
        *y = (float *)op->y + (centred ? at : row * op->y_stride + group * C), centre = 0;
  struct pack total = pack_all(0);
  for (int64_t i = 0; i < C; i += LANES) {
    struct pack value = pack_load(x + i, C - i);
    if (addend) {
      value = pack_add(value, pack_load(addend + i, C - i));
      pack_store(sum + i, C - i, value);
    }
    total = pack_add(total, centred ? value : pack_mul(value, value));
  }
  x = addend ? sum : x;
  if (centred) {
    op->mean[row] = centre = pack_sum(total) / (float)C;
    total = pack_all(0);
    for (int64_t i = 0; i < C; i += LANES) {
      struct pack away = pack_sub(pack_load_or(x + i, C - i, centre), pack_all(centre));
      total = pack_add(total, pack_mul(away, away));
    }
  }
  const float inverse = 1 / sqrtf(pack_sum(total) / (float)C + op->eps);
  op->rstd[centred ? row : row * op->groups + group] = inverse;
  for (int64_t i = 0; i < C; i += LANES) {
    struct pack value = pack_load(x + i, C - i);
    if (centred)
      value = pack_sub(value, pack_all(centre));
    value = pack_mul(pack_mul(value, pack_all(inverse)), pack_load(gamma + i, C - i));
    pack_store(y + i, C - i, centred ? pack_add(value, pack_load(beta + i, C - i)) : value);
  }
}

static void norm(const struct row_norm *op, int64_t row, int64_t group)
{
  if (op->mean)
    norm_row(true, op, row, group);
  else
    norm_row(false, op, row, group);
}

/* With n = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - n mean(g n)). Without a mean,
 * dx = rstd (g - n mean(g n)), and dgamma += dy n if it is not NULL. */
INLINE void norm_row_backward(bool centred, const struct row_norm_backward *op, int64_t row,
                              int64_t group, float *dgamma)
{
  const int64_t C = op->C, column = centred ? 0 : group * C;
  const float *dy = (const float *)op->dy + row * (centred ? C : op->dy_stride) + column,
              *x = (const float *)op->x + row * (centred ? C : op->x_stride) + column,
              *gamma = op->gamma;
  float *dx = (float *)op->dx + row * (centred ? C : op->dx_stride) + column;
  const struct pack centre = pack_all(centred ? op->mean[row] : 0),
                    rstd = pack_all(op->rstd[centred ? row : row * op->groups + group]);
  struct pack sum_g = pack_all(0), sum_gn = pack_all(0);
  for (int64_t i = 0; i < C; i += LANES) {
    const struct pack d = pack_load(dy + i, C - i), factor = pack_load(gamma + i, C - i),
                      value = pack_load(x + i, C - i),
                      n = pack_mul(centred ? pack_sub(value, centre) : value, rstd);
    const struct pack g = pack_mul(d, factor), dn = pack_mul(d, n);
    sum_g = pack_add(sum_g, g);
    sum_gn = pack_add(sum_gn, centred ? pack_mul(g, n) : pack_mul(dn, factor));
    if (dgamma)
      pack_store(dgamma + i, C - i, pack_add(pack_load(dgamma + i, C - i), dn));
  }
  const struct pack mean_g = pack_all(pack_sum(sum_g) / (float)C),
                    mean_gn = pack_all(pack_sum(sum_gn) / (float)C);
  for (int64_t i = 0; i < C; i += LANES) {
    const struct pack g = pack_mul(pack_load(dy + i, C - i), pack_load(gamma + i, C - i)),
                      value = pack_load(x + i, C - i),
                      n = pack_mul(centred ? pack_sub(value, centre) : value, rstd);
    struct pack d =
        pack_mul(pack_sub(centred ? pack_sub(g, mean_g) : g, pack_mul(n, mean_gn)), rstd);
    if (op->dx_accumulate)
      d = pack_add(pack_load(dx + i, C - i), d);
    pack_store(dx + i, C - i, d);
  }
}

static void norm_backward(const struct row_norm_backward *op, int64_t row, int64_t group,
                          float *dgamma)
{
  if (op->mean)
    norm_row_backward(true, op, row, group, NULL);
  else
    norm_row_backward(false, op, row, group, dgamma);
}

/* In double, so that an angle of a hundred thousand turns is exact to fp32 precision. angle = k pi
 * / 2 + r with |r| <= pi / 4, and pi / 2 is split in two. The Taylor polynomials have remainders
 * below 1e-11. */
static void angles(int64_t n, float position, const float *inv_freq, float *cosine, float *sine)
{
  const double round = 6755399441055744.0; /* 1.5 * 2^52, as in vec_exp */
  for (int64_t i = 0; i < n; i += LANES) {
    float angle[LANES], c[LANES], s[LANES];
    pack_store(angle, LANES, pack_mul(pack_all(position), pack_load(inv_freq + i, n - i)));
    for (int j = 0; j < LANES; j++) {
      double shifted = (double)angle[j] * 0.63661977236758134308 + round, k = shifted - round;
      double r = ((double)angle[j] - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11,
             r2 = r * r;
      double sr =
          r +
          r * r2 *
              (-1.0 / 6 + r2 * (1.0 / 120 +
                                r2 * (-1.0 / 5040 + r2 * (1.0 / 362880 + r2 * (-1.0 / 39916800)))));
      double cr =
          1 +
          r2 * (-0.5 + r2 * (1.0 / 24 + r2 * (-1.0 / 720 +
                                              r2 * (1.0 / 40320 + r2 * (-1.0 / 3628800 +
                                                                        r2 * (1.0 / 479001600))))));
      int64_t quadrant;
      memcpy(&quadrant, &shifted, sizeof quadrant);
      double cc = quadrant & 1 ? sr : cr, ss = quadrant & 1 ? cr : sr;
      c[j] = (float)((quadrant + 1) & 2 ? -cc : cc);
      s[j] = (float)(quadrant & 2 ? -ss : ss);
    }
    pack_store(cosine + i, n - i, pack_load_full(c));
    pack_store(sine + i, n - i, pack_load_full(s));
  }
}

static void rotate(int64_t n, const float *cosine, const float *sine, float *low, float *high)
{
  for (int64_t i = 0; i < n; i += LANES) {
    struct pack c = pack_load(cosine + i, n - i), s = pack_load(sine + i, n - i),
                a = pack_load(low + i, n - i), b = pack_load(high + i, n - i);
    pack_store(low + i, n - i, pack_sub(pack_mul(a, c), pack_mul(b, s)));
    pack_store(high + i, n - i, pack_add(pack_mul(b, c), pack_mul(a, s)));
  }
}

static void swiglu(int64_t n, const float *g, const float *u, float *y)
{
  for (int64_t i = 0; i < n; i += LANES) {
    struct pack gate = pack_load(g + i, n - i), up = pack_load(u + i, n - i);
    for (int j = 0; j < VECTORS; j++)
      gate.v[j] = gate.v[j] * vec_sigmoid(gate.v[j]) * up.v[j];
    pack_store(y + i, n - i, gate);
  }
}

static void swiglu_backward(int64_t n, const float *g, const float *u, const float *dy, float *dg,
                            float *du, float *y)
{
  for (int64_t i = 0; i < n; i += LANES) {
    struct pack gate = pack_load(g + i, n - i), up = pack_load(u + i, n - i),
                d = pack_load(dy + i, n - i), dgate, dup, out;
    for (int j = 0; j < VECTORS; j++) {
      vec e = vec_exp(-gate.v[j]), s = 1.0f / (1.0f + e),
          silu = gate.v[j] * s; /* 1 - s is e s, without cancellation */
      dgate.v[j] = d.v[j] * up.v[j] * (s + silu * (e * s));
      dup.v[j] = d.v[j] * silu;
      out.v[j] = silu * up.v[j];
    }
    pack_store(dg + i, n - i, dgate);
    pack_store(du + i, n - i, dup);
    if (y)
      pack_store(y + i, n - i, out);
  }
}

INLINE void store_sum(float *to, int64_t n, struct pack sum, bool accumulate)
{
  pack_store(to, n, accumulate ? pack_add(pack_load(to, n), sum) : sum);
}

INLINE void strip_sums(int64_t rows, int64_t n, int packs, int64_t ld, const float *d,
                       bool accumulate, float *sum)
{
  struct pack s[STRIP / LANES];
  for (int p = 0; p < packs; p++)
    s[p] = pack_all(0);
  for (int64_t r = 0; r < rows; r++)
    for (int p = 0; p < packs; p++)
      s[p] = pack_add(s[p], pack_load(d + r * ld + p * LANES, n - p * LANES));
  for (int p = 0; p < packs; p++)
    store_sum(sum + p * LANES, n - p * LANES, s[p], accumulate);
}

static void column_sums(int64_t rows, int64_t n, int64_t ld, const float *d, bool accumulate,
                        float *sum)
{
  int64_t c = 0;
  for (; c + STRIP <= n; c += STRIP)
    strip_sums(rows, STRIP, STRIP / LANES, ld, d + c, accumulate, sum + c);
  for (; c < n; c += LANES)
    strip_sums(rows, n - c, 1, ld, d + c, accumulate, sum + c);
}

/* `packs` packs of columns from `column` on. */
INLINE void strip_norm_sums(const struct row_norm_backward *op, int64_t row, int64_t rows,
                            int64_t column, int64_t n, int packs)
{
  struct pack gamma[STRIP / LANES / 2], beta[STRIP / LANES / 2];
  const bool accumulate = op->accumulate || row > 0;
  for (int p = 0; p < packs; p++)
    gamma[p] = beta[p] = pack_all(0);
  for (int64_t r = row; r < row + rows; r++)
    for (int p = 0; p < packs; p++) {
      const int64_t at = r * op->C + column + p * LANES, left = n - p * LANES;
      const struct pack g = pack_load((const float *)op->dy + at, left),
                        x = pack_load((const float *)op->x + at, left);
      const struct pack normal =
          pack_mul(pack_sub(x, pack_all(op->mean[r])), pack_all(op->rstd[r]));
      gamma[p] = pack_add(gamma[p], pack_mul(g, normal));
      beta[p] = pack_add(beta[p], g);
    }
  for (int p = 0; p < packs; p++) {
    const int64_t at = column + p * LANES, left = n - p * LANES;
    if (op->dgamma)
      store_sum((float *)op->dgamma + at, left, gamma[p], accumulate);
    if (op->dbeta)
      store_sum((float *)op->dbeta + at, left, beta[p], accumulate);
  }
}

/* Two sums per column, so half as many columns as in column_sums() fill the registers. */
static void norm_sums(const struct row_norm_backward *op, int64_t row, int64_t rows, int64_t begin,
                      int64_t end)
{
  for (; begin + STRIP / 2 <= end; begin += STRIP / 2)
    strip_norm_sums(op, row, rows, begin, STRIP / 2, STRIP / LANES / 2);
  for (; begin < end; begin += LANES)
    strip_norm_sums(op, row, rows, begin, end - begin, 1);
}

INLINE float row_max(int64_t n, const float *x)
{
  struct pack max = pack_all(-INFINITY);
  for (int64_t i = 0; i < n; i += LANES)
    max = pack_max(max, pack_load_or(x + i, n - i, -INFINITY));
  return pack_largest(max);
}

static float softmax(int64_t n, float *s, float *max)
{
  float top = row_max(n, s);
  top = top > *max ? top : *max;
  struct pack sum = pack_all(0);
  for (int64_t i = 0; i < n; i += LANES) {
    struct pack e = pack_exp(pack_sub(pack_load_or(s + i, n - i, -INFINITY), pack_all(top)));
    pack_store(s + i, n - i, e);
    sum = pack_add(sum, e);
  }
  *max = top;
  return pack_sum(sum);
}

static void softmax_backward(int64_t n, float lse, float delta, float *s, float *dp)
{
  for (int64_t i = 0; i < n; i += LANES) {
    struct pack p = pack_exp(pack_sub(pack_load(s + i, n - i), pack_all(lse)));
    pack_store(s + i, n - i, p);
    pack_store(dp + i, n - i, pack_mul(p, pack_sub(pack_load(dp + i, n - i), pack_all(delta))));
  }
}

static double log_sum_exp(int64_t n, bool gradient, float factor, float *logits)
{
  enum {
    BLOCK = 64 * LANES
  }; /* sums of a block in fp32, of the blocks in double: a vocabulary is too long for fp32 alone */
  float top = row_max(n, logits);
  double total = 0;
  for (int64_t block = 0; block < n; block += BLOCK) {
    int64_t end = n - block < BLOCK ? n : block + BLOCK;
    struct pack sum = pack_all(0);
    for (int64_t i = block; i < end; i += LANES) {
      struct pack e =
          pack_exp(pack_sub(pack_load_or(logits + i, end - i, -INFINITY), pack_all(top)));
      if (gradient)
        pack_store(logits + i, end - i, e);
      sum = pack_add(sum, e);
    }
    total += (double)pack_sum(sum);
  }
  if (gradient)
    scale(n, (float)(factor / total), logits);
  return top + log(total);
}

/* Each file uses functions of the ones above it. */
// clang-format off
#include "device/host/kernels_exponent.h"
#include "device/host/kernels_quantise.h"
#include "device/host/kernels_lowrank.h"
#include "device/host/kernels_update.h"
#include "device/host/kernels_gemm.h"
// clang-format on

const struct kernels KERNELS = {
    .name = KERNELS_NAME,
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
#define KERNEL(result, name, parameters) .name = name,
#include "device/host/kernels_list.h"
};
