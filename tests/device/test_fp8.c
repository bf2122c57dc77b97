/* Operands and products in fp8 on the host. Oracles: the conversion to e4m3 of base/dtype, which is
 * written apart from the rule. The definition of scales, in doubles. Codes of a transpose that was
 * made before. Codes of a whole weight for those of its parts. Products of the decoded operands in
 * doubles. With one scale per operand: the nearest of all codes. */
#include "fixture.h"

#include <float.h>
#include <math.h>

#include "base/mem.h"

static uint16_t *halves(const float *x, int64_t n)
{
  uint16_t *out = bytes((size_t)n * sizeof *out);
  dtype_convert(out, DTYPE_BF16, x, DTYPE_F32, (size_t)n);
  return out;
}

static float *widened(const uint16_t *x, int64_t n)
{
  float *out = bytes((size_t)n * sizeof *out);
  dtype_convert(out, DTYPE_F32, x, DTYPE_BF16, (size_t)n);
  return out;
}

/* Magnitudes from 2^-20 to 2^20, so that tiles have scales of their own. */
static uint16_t *varied(int64_t rows, int64_t columns)
{
  float *x = normals(rows * columns, 1);
  for (int64_t i = 0; i < rows * columns; i++)
    x[i] = ldexpf(x[i], (int)(i / 64 * 7 % 41) - 20);
  return halves(x, rows * columns);
}

/* y is n x k. */
struct operand {
  int64_t n, k;
  bool blocks;
  uint8_t *code;
  float *scale;
};

static int64_t scales_of(const struct operand *y)
{
  return y->blocks ? y->n / FP8_TILE * fp8_pitch(y->k) : y->n * (y->k / FP8_TILE);
}

static float scale_at(const struct operand *y, int64_t i, int64_t j)
{
  return y->blocks ? y->scale[i / FP8_TILE * fp8_pitch(y->k) + j / FP8_TILE]
                   : y->scale[j / FP8_TILE * y->n + i];
}

static struct operand quantise(const uint16_t *x, int64_t rows, int64_t columns, int64_t ld,
                               bool blocks, bool transposed)
{
  struct operand y = {.n = transposed ? columns : rows, .k = transposed ? rows : columns, blocks};
  y.code = bytes((size_t)(y.n * y.k));
  y.scale = nans(scales_of(&y));
  memset(y.code, 0x55, (size_t)(y.n * y.k));
  struct fp8_quantise op = {.rows = rows, .columns = columns, .ld = ld, .x = x, .blocks = blocks};
  op.transposed = transposed, op.code = y.code, op.scale = y.scale;
  assert_ok(half_ops->fp8_quantise(half_lane, &op));
  return y;
}

static float *decoded(const struct operand *y)
{
  float *value = bytes((size_t)(y->n * y->k) * sizeof *value);
  dtype_convert(value, DTYPE_F32, y->code, DTYPE_F8_E4M3, (size_t)(y->n * y->k));
  for (int64_t i = 0; i < y->n; i++)
    for (int64_t j = 0; j < y->k; j++)
      value[i * y->k + j] *= scale_at(y, i, j);
  return value;
}

DEVICE_TEST(scales_are_the_least_powers_of_two)
{
  for (uint32_t top = 0; top < 0x7f80; top++)
    for (int low = 0; low < 3; low++) {
      static const uint32_t lows[] = {0, 1, 0xffff};
      const uint32_t bits = top << 16 | lows[low];
      const float largest = f32_from_bits(bits), scale = fp8_scale(bits);
      int exponent;
      assert_true(frexpf(scale, &exponent) == 0.5f);
      assert_true((double)largest <= 448 * (double)scale);
      assert_true((double)largest > 224 * (double)scale || scale == FLT_MIN);
      assert_true(scale * fp8_inverse(scale) == 1);
    }
  assert_true(isnan(fp8_scale(0x7f800000)));
  assert_true(isnan(fp8_scale(0x7fc00000)));
}

/* Every bf16 number within the range of e4m3. */
DEVICE_TEST(codes_are_rounded_to_nearest)
{
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    const float x = f32_from_bf16((uint16_t)bits);
    uint8_t want;
    if (!(fabsf(x) <= 448))
      continue;
    dtype_convert(&want, DTYPE_F8_E4M3, &x, DTYPE_F32, 1);
    assert_int_equal(fp8_code(x, 1), want);
    float value;
    dtype_convert(&value, DTYPE_F32, &want, DTYPE_F8_E4M3, 1);
    assert_true(fp8_value(want, 2) == 2 * value);
  }
}

/* The largest magnitude of the group of (i, j) in the rows x columns that y was made from. */
static double largest_of(const struct operand *y, const float *x, int64_t i, int64_t j)
{
  const int64_t from = y->blocks ? i / FP8_TILE * FP8_TILE : i,
                to = y->blocks ? from + FP8_TILE : from + 1;
  float largest = 0;
  for (int64_t r = from; r < to; r++)
    for (int64_t c = j / FP8_TILE * FP8_TILE; c < j / FP8_TILE * FP8_TILE + FP8_TILE; c++)
      largest = fmaxf(largest, fabsf(x[r * y->k + c]));
  return largest;
}

static void check_groups(bool blocks)
{
  const int64_t rows = 256, columns = 384;
  const uint16_t *x = varied(rows, columns);
  const float *wide = widened(x, rows * columns);
  const struct operand y = quantise(x, rows, columns, columns, blocks, false);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      const float scale = scale_at(&y, i, j), scaled = wide[i * columns + j] / scale;
      uint8_t want;
      dtype_convert(&want, DTYPE_F8_E4M3, &scaled, DTYPE_F32, 1);
      assert_int_equal(y.code[i * columns + j], want);
      if (j % FP8_TILE == 0) {
        const double largest = largest_of(&y, wide, i, j);
        assert_true(largest <= 448.0 * scale && largest > 224.0 * scale);
      }
    }
}

DEVICE_TEST(groups_have_scales_of_their_own)
{
  check_groups(false);
  check_groups(true);
}

/* The same bits from the transpose, from rows that lie apart, and with the scales of pads 0. */
DEVICE_TEST(transposes_and_strides)
{
  const int64_t rows = 256, columns = 384, ld = 448;
  const uint16_t *x = varied(rows, columns);
  uint16_t *turned = bytes((size_t)(rows * columns) * 2), *apart = bytes((size_t)(rows * ld) * 2);
  memset(apart, 0xff, (size_t)(rows * ld) * 2);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++)
      apart[i * ld + j] = turned[j * rows + i] = x[i * columns + j];
  for (int blocks = 0; blocks < 2; blocks++) {
    const struct operand straight = quantise(turned, columns, rows, rows, blocks, false),
                         back = quantise(apart, rows, columns, ld, blocks, true);
    assert_int_equal(back.n, columns);
    assert_same_bits(back.code, straight.code, (size_t)(rows * columns));
    assert_same_bits(back.scale, straight.scale, (size_t)scales_of(&back) * sizeof(float));
    for (int64_t t = rows / FP8_TILE; blocks && t < fp8_pitch(rows); t++)
      assert_true(back.scale[t] == 0);
  }
}

/* An element makes its group NaN and no other. */
DEVICE_TEST(groups_that_are_not_finite)
{
  static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0xffc1};
  const int64_t n = 256;
  for (int b = 0; b < 4; b++)
    for (int blocks = 0; blocks < 2; blocks++) {
      uint16_t *x = varied(n, n);
      x[130 * n + 7] = bad[b];
      const struct operand y = quantise(x, n, n, n, blocks, false);
      const float *value = decoded(&y);
      for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
          const bool same = j < FP8_TILE && (blocks ? i >= FP8_TILE : i == 130);
          assert_true(!isfinite(value[i * n + j]) == same);
        }
    }
}

static struct fp8_tally tally_of(struct lane *of)
{
  struct fp8_tally tally = {.saturated = 77, .largest = 77};
  assert_ok(of->device->ops->fp8_tally(of, &tally));
  return tally;
}

/* Oracle: a count over the elements. */
static struct fp8_tally counted(const uint16_t *x, int64_t rows, int64_t columns, bool transposed)
{
  struct fp8_tally tally = {0};
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      const int64_t from = (transposed ? i : j) / FP8_TILE * FP8_TILE;
      bool finite = true;
      for (int64_t t = from; t < from + FP8_TILE; t++)
        finite &=
            (bool)isfinite(f32_from_bf16(transposed ? x[t * columns + j] : x[i * columns + t]));
      const uint32_t bits = (uint32_t)(x[i * columns + j] & 0x7fff) << 16;
      tally.saturated += !finite;
      tally.largest = finite && bits > tally.largest ? bits : tally.largest;
    }
  return tally;
}

static void assert_tally(struct fp8_tally want)
{
  const struct fp8_tally got = tally_of(half_lane);
  assert_true(got.saturated == want.saturated);
  assert_int_equal(got.largest, want.largest);
}

DEVICE_TEST(operands_are_tallied)
{
  const int64_t rows = 256, columns = 384;
  uint16_t *x = varied(rows, columns), *zeros = bytes((size_t)(rows * columns) * 2);
  memset(zeros, 0, (size_t)(rows * columns) * 2);
  (void)tally_of(half_lane);
  assert_tally((struct fp8_tally){0});
  (void)quantise(zeros, rows, columns, columns, false, false);
  assert_tally((struct fp8_tally){0});
  for (int bad = 0; bad < 3; bad++) {
    x[5 * columns + 7] = bad ? 0x7f80 : x[0];           /* an infinity */
    x[200 * columns + 130] = bad > 1 ? 0xffc1 : x[0];   /* a NaN */
    x[200 * columns + 131] = bad > 1 ? 0x7f80 : 0xc2f7; /* in the same tile */
    for (int transposed = 0; transposed < 2; transposed++) {
      const struct fp8_tally want = counted(x, rows, columns, transposed);
      assert_true(want.saturated == (uint64_t)FP8_TILE * (bad > 1 && transposed ? 3 : bad));
      (void)quantise(x, rows, columns, columns, true, transposed); /* blocks do not count */
      (void)quantise(x, rows, columns, columns, false, transposed);
      assert_tally(want);
      assert_tally((struct fp8_tally){0});
    }
  }
  /* Calls add up. The largest number of bf16 is finite. */
  (void)quantise(x, rows, columns, columns, false, false);
  (void)quantise(x, rows, columns, columns, false, false);
  zeros[9] = 0xff7f;
  (void)quantise(zeros, rows, columns, columns, false, false);
  assert_tally((struct fp8_tally){.saturated = 4 * FP8_TILE, .largest = 0x7f7f0000});
  assert_true(tally_of(lanes[0]).saturated == 0 && tally_of(lanes[0]).largest == 0);
}

static void check_codes(const struct operand *want, const uint8_t *code, const float *scale)
{
  assert_same_bits(code, want->code, (size_t)(want->n * want->k));
  assert_same_bits(scale, want->scale, (size_t)scales_of(want) * sizeof *scale);
}

/* The oracle: the two passes apart. Both operands count. */
DEVICE_TEST(an_operand_and_its_transpose)
{
  const int64_t rows = 256, columns = 384, ld = 400;
  uint16_t *x = varied(rows, ld);
  x[3 * ld + 5] = 0x7f80;
  (void)tally_of(half_lane);
  const struct operand plain = quantise(x, rows, columns, ld, false, false),
                       across = quantise(x, rows, columns, ld, false, true);
  const struct fp8_tally want = tally_of(half_lane);
  uint8_t *code = bytes((size_t)(rows * columns)), *turned = bytes((size_t)(rows * columns));
  float *scale = nans(scales_of(&plain)), *turned_scale = nans(scales_of(&across));
  struct fp8_quantise op = {.rows = rows, .columns = columns, .ld = ld, .x = x, .code = code};
  op.scale = scale, op.turned = turned, op.turned_scale = turned_scale;
  assert_ok(half_ops->fp8_quantise(half_lane, &op));
  check_codes(&plain, code, scale);
  check_codes(&across, turned, turned_scale);
  assert_true(want.saturated == 2 * FP8_TILE);
  assert_tally(want);
  op.blocks = true;
  assert_int_equal(half_ops->fp8_quantise(half_lane, &op), STATUS_INTERNAL);
  op.blocks = false;
  op.transposed = true;
  assert_int_equal(half_ops->fp8_quantise(half_lane, &op), STATUS_INTERNAL);
}

DEVICE_TEST(zeros_and_subnormals)
{
  const int64_t n = 128;
  uint16_t *x = bytes((size_t)(n * n) * 2);
  memset(x, 0, (size_t)(n * n) * 2);
  x[n] = 1; /* the smallest subnormal */
  x[2 * n] = bf16_from_f32(FLT_MIN);
  x[3 * n] = 0x7f60; /* 448 * 2^119 */
  x[4 * n] = 0x7f7f; /* the largest number, which rounds to 2^128 */
  const struct operand y = quantise(x, n, n, n, false, false);
  const float *value = decoded(&y);
  for (int64_t i = 0; i < n * n; i++)
    assert_true(i % n == 0 || value[i] == 0);
  assert_true(value[0] == 0 && value[n] == f32_from_bf16(1));
  assert_true(value[2 * n] == FLT_MIN);
  assert_true(value[3 * n] == f32_from_bf16(0x7f60));
  assert_true(isinf(value[4 * n]));
}

enum { MEMBERS = 3 };

/* Member m's part of x, or all of it. */
static struct fp8_part part_of(const void *x, enum dtype type, int64_t columns, const int64_t *cut,
                               float *scale, uint8_t *code)
{
  const char *from = (const char *)x + (size_t)*cut * dtype_size(type);
  struct fp8_part part = {.columns = columns, .begin = cut[0], .end = cut[1], .type = type};
  part.x = from, part.scale = scale, part.code = code ? code + *cut : NULL;
  return part;
}

/* Members have parts of a weight that end within blocks. Each raises the largest magnitudes. */
static float *scales_of_parts(const void *x, enum dtype type, int64_t rows, int64_t columns,
                              const int64_t *cut)
{
  const int64_t n = rows / FP8_TILE * fp8_pitch(columns);
  float *all = bytes((size_t)n * sizeof *all);
  memset(all, 0, (size_t)n * sizeof *all);
  for (int m = 0; m < MEMBERS; m++) {
    const struct fp8_part part = part_of(x, type, columns, cut + m, all, NULL);
    assert_ok(half_ops->fp8_largest(half_lane, &part));
  }
  assert_ok(half_ops->fp8_scales(half_lane, rows, columns, all));
  return all;
}

/* The parts are in fp32, which is rounded first, or in bf16. `bad`: an element is not finite, and a
 * block is zero. */
static void check_parts(bool wide, bool bad)
{
  const int64_t rows = 384, columns = 640,
                cut[] = {0, 131 * columns + 64, 200 * columns + 8, rows * columns};
  float *x = widened(varied(rows, columns), rows * columns);
  for (int64_t i = 0; i < rows * columns; i++)
    x[i] *= 1.001f; /* no bf16 number */
  for (int64_t i = 0; i < FP8_TILE * FP8_TILE && bad; i++)
    x[i / FP8_TILE * columns + i % FP8_TILE] = 0;
  if (bad)
    x[300 * columns + 200] = NAN;
  const uint16_t *narrow = halves(x, rows * columns);
  const enum dtype type = wide ? DTYPE_F32 : DTYPE_BF16;
  const void *source = wide ? (const void *)x : narrow;
  const struct operand want = quantise(narrow, rows, columns, columns, true, false),
                       turned = quantise(narrow, rows, columns, columns, true, true);
  float *scale = scales_of_parts(source, type, rows, columns, cut);
  assert_same_bits(scale, want.scale, (size_t)scales_of(&want) * sizeof *scale);
  uint8_t *code = bytes((size_t)(rows * columns));
  for (int m = 0; m < MEMBERS; m++) {
    const struct fp8_part part = part_of(source, type, columns, cut + m, scale, code);
    assert_ok(half_ops->fp8_code(half_lane, &part));
  }
  assert_same_bits(code, want.code, (size_t)(rows * columns));
  uint8_t *back = bytes((size_t)(rows * columns));
  float *back_scale = nans(scales_of(&turned));
  for (int64_t first = 0, n = FP8_TILE; first < columns; first += n, n = columns - first) {
    const int64_t tile = first / FP8_TILE;
    assert_ok(half_ops->fp8_turn(
        half_lane, &(struct fp8_turn){.rows = rows,
                                      .columns = n,
                                      .ld = columns,
                                      .code = code + first,
                                      .scale = scale + tile,
                                      .turned = back + first * rows,
                                      .turned_scale = back_scale + tile * fp8_pitch(rows)}));
  }
  assert_same_bits(back, turned.code, (size_t)(rows * columns));
  assert_same_bits(back_scale, turned.scale, (size_t)scales_of(&turned) * sizeof *back_scale);
}

DEVICE_TEST(parts_have_the_codes_of_the_whole)
{
  for (int bad = 0; bad < 2; bad++) {
    check_parts(true, bad);
    check_parts(false, bad);
  }
}

/* The oracle: the output in bf16, coded afterwards. */
DEVICE_TEST(outputs_may_be_codes)
{
  const int64_t rows = 256, C = 384;
  uint8_t *code = bytes((size_t)(rows * C));
  float *scale = nans(rows * (C / FP8_TILE)), *mean = nans(rows), *rstd = nans(rows);
  uint16_t *x = varied(rows, C), *add = varied(rows, C), *sum = bytes((size_t)(rows * C) * 2),
           *sums = bytes((size_t)(rows * C) * 2), *y = bytes((size_t)(rows * C) * 2),
           *gamma = halves(normals(C, 1), C), *beta = halves(normals(C, 1), C);
  for (int way = 0; way < 4; way++) {
    struct row_norm op = {.rows = rows, .groups = 1, .C = C, .x_stride = C, .y_stride = C};
    op.eps = 1e-5f, op.x = x, op.add = way & 1 ? add : NULL, op.sum = sum, op.gamma = gamma;
    op.beta = way & 2 ? beta : NULL, op.y = y, op.mean = way & 2 ? mean : NULL, op.rstd = rstd;
    assert_ok(half_ops->norm(half_lane, &op));
    const struct operand want = quantise(y, rows, C, C, false, false);
    op.y = NULL, op.sum = sums, op.code = code, op.scale = scale;
    assert_ok(half_ops->norm(half_lane, &op));
    check_codes(&want, code, scale);
    if (way & 1)
      assert_same_bits(sums, sum, (size_t)(rows * C) * 2);
  }
  const uint16_t *gu = varied(rows, 2 * C);
  assert_ok(half_ops->swiglu(half_lane, rows, C, gu, y));
  const struct operand want = quantise(y, rows, C, C, false, false);
  assert_ok(half_ops->swiglu_coded(half_lane, rows, C, gu, code, scale));
  check_codes(&want, code, scale);
}

/* Columns [from, from + columns) of the gradient, coded afterwards, are the operand at `code`. */
static void check_gradient(const uint16_t *dgu, int64_t rows, int64_t ld, int64_t from,
                           int64_t columns, bool transposed, const uint8_t *code,
                           const float *scale)
{
  const struct operand want = quantise(dgu + from, rows, columns, ld, false, transposed);
  check_codes(&want, code + rows * from, scale + rows * from / FP8_TILE);
}

static const uint16_t *columns_of(const uint16_t *x, int64_t rows, int64_t ld, int64_t first,
                                  int64_t count)
{
  uint16_t *out = bytes((size_t)(rows * count) * sizeof *out);
  for (int64_t r = 0; r < rows; r++)
    memcpy(out + r * count, x + r * ld + first, (size_t)count * sizeof *out);
  return out;
}

/* The oracle: the gradient in bf16, coded afterwards, as one operand and as two. The gradient is
 * made at once, or in two calls for a tile of columns and for the rest. */
DEVICE_TEST(gradients_may_be_codes)
{
  const int64_t rows = 256, F = 384;
  const uint16_t *gu = varied(rows, 2 * F);
  uint16_t *dy = varied(rows, F), *dgu = bytes((size_t)(rows * 2 * F) * 2);
  uint8_t *code = bytes((size_t)(rows * 2 * F)), *turned = bytes((size_t)(rows * 2 * F));
  float *scale = nans(rows * 2 * F / FP8_TILE), *turned_scale = nans(rows * 2 * F / FP8_TILE);
  uint16_t *y = bytes((size_t)(rows * F) * 2);
  uint8_t *y_turned = bytes((size_t)(rows * F));
  float *y_scale = nans(rows * F / FP8_TILE);
  dy[7 * F + 9] = 0x7fc0;
  assert_ok(half_ops->swiglu_backward(half_lane, rows, F, gu, dy, dgu, y));
  const struct operand activation = quantise(y, rows, F, F, true, true);
  for (int way = 0; way < 32; way++) {
    const int64_t columns = way & 1 ? F : 2 * F, turned_columns = way & 2 ? F : 2 * F;
    struct fp8_swiglu op = {.rows = rows, .F = F, .gu = gu, .apart = way & 1};
    op.turned_apart = way & 2, op.code = code, op.scale = scale;
    op.turned = way & 4 ? NULL : turned, op.turned_scale = turned_scale;
    op.y_turned = way & 8 ? y_turned : NULL, op.y_turned_scale = y_scale;
    memset(y_turned, 0x55, (size_t)(rows * F));
    memset(code, 0x55, (size_t)(rows * 2 * F));
    memset(turned, 0x55, (size_t)(rows * 2 * F));
    for (float *const *to = (float *const[]){scale, turned_scale, NULL}; *to; to++)
      memset(*to, 0xff, (size_t)(rows * 2 * F / FP8_TILE) * sizeof **to);
    memset(y_scale, 0xff, (size_t)(rows * F / FP8_TILE) * sizeof *y_scale);
    for (int64_t first = 0, count = way & 16 ? F : FP8_TILE; first < F;
         first += count, count = F - first) {
      struct fp8_swiglu part = op;
      part.first = first;
      part.count = count;
      part.dy = columns_of(dy, rows, F, first, count);
      assert_ok(half_ops->swiglu_backward_coded(half_lane, &part));
    }
    for (int64_t from = 0; from < 2 * F; from += columns)
      check_gradient(dgu, rows, 2 * F, from, columns, false, code, scale);
    for (int64_t from = 0; from < 2 * F && op.turned; from += turned_columns)
      check_gradient(dgu, rows, 2 * F, from, turned_columns, true, turned, turned_scale);
    assert_true(op.turned || turned[0] == 0x55);
    if (op.y_turned)
      check_codes(&activation, y_turned, y_scale);
    else
      assert_int_equal(y_turned[0], 0x55);
  }
}

/* c = a b^T, of operands in fp8. */
static struct matmul product_of(const struct operand *a, const struct operand *b, void *c)
{
  return (struct matmul){.m = a->n,
                         .n = b->n,
                         .k = a->k,
                         .trans_b = true,
                         .a = a->code,
                         .b = b->code,
                         .a_scale = a->scale,
                         .b_scale = b->scale,
                         .lda = a->k,
                         .ldb = b->k,
                         .ldc = b->n,
                         .c = c};
}

/* The same in doubles, of the decoded operands. */
static const double *multiplied(const struct operand *a, const struct operand *b)
{
  const float *x = decoded(a), *y = decoded(b);
  double *c = doubles(a->n * b->n);
  for (int64_t i = 0; i < a->n; i++)
    for (int64_t j = 0; j < b->n; j++)
      for (int64_t t = 0; t < a->k; t++)
        c[i * b->n + j] += (double)x[i * a->k + t] * y[j * b->k + t];
  return c;
}

/* All products of e4m3 numbers are exact in fp32, and sums are fp32's; bf16 rounds by 2^-9. */
static void check_product(int64_t m, int64_t n, int64_t k, enum epilogue epilogue, bool add,
                          bool accumulate)
{
  const struct operand a = quantise(varied(m, k), m, k, k, false, false),
                       b = quantise(halves(normals(n * k, 0.02f), n * k), n, k, k, true, false);
  const float *wide_a = decoded(&a), *wide_b = decoded(&b);
  const float *bias = widened(halves(normals(n, 1), n), n),
              *before = widened(halves(normals(m * n, 1), m * n), m * n);
  uint16_t *c = halves(before, m * n);
  struct matmul op = product_of(&a, &b, c);
  op.accumulate = accumulate;
  op.epilogue = epilogue;
  op.bias = epilogue == EPILOGUE_BIAS ? halves(bias, n) : NULL;
  op.add = add ? halves(before, m * n) : NULL;
  assert_ok(half_ops->matmul(half_lane, &op));
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = (add || accumulate ? before[i * n + j] : 0) +
                   (epilogue == EPILOGUE_BIAS ? bias[j] : 0),
             size = fabs(sum);
      for (int64_t t = 0; t < k; t++) {
        const double term = (double)wide_a[i * k + t] * wide_b[j * k + t];
        sum += term;
        size += fabs(term);
      }
      const double error = fabs(f32_from_bf16(c[i * n + j]) - sum);
      assert_true(error <= ldexp(fabs(sum), -8) + (double)k * ldexp(size, -23));
    }
}

DEVICE_TEST(products_are_within_their_bound)
{
  check_product(128, 256, 384, EPILOGUE_NONE, false, false);
  check_product(256, 128, 128, EPILOGUE_BIAS, false, false);
  check_product(128, 128, 256, EPILOGUE_BIAS, true, false);
  check_product(128, 128, 256, EPILOGUE_NONE, false, true);
}

/* A weight gradient, one operand in tiles and one in blocks: fp32, and bitwise one sequence after
 * the other. */
static void check_weight_gradient(bool a_blocks)
{
  const int64_t m = 128, n = 256, rows = 384, tile = 128;
  const uint16_t *dy = varied(rows, m), *x = varied(rows, n);
  float *all = nans(m * n), *each = nans(m * n);
  for (int64_t from = 0; from <= rows; from += tile) { /* last: all of them at once */
    const bool whole = from == rows;
    const int64_t first = whole ? 0 : from, k = whole ? rows : tile;
    const struct operand a = quantise(dy + first * m, k, m, m, a_blocks, true),
                         b = quantise(x + first * n, k, n, n, !a_blocks, true);
    struct matmul op = product_of(&a, &b, whole ? all : each);
    op.tile = tile, op.accumulate = !whole && from > 0, op.gradient = true, op.a_blocks = a_blocks;
    assert_ok(half_ops->matmul(half_lane, &op));
    if (whole)
      assert_near(all, multiplied(&a, &b), m * n, 1e-5);
  }
  assert_same_bits(all, each, (size_t)(m * n) * sizeof *all);
}

DEVICE_TEST(gradients_of_weights)
{
  check_weight_gradient(false);
  check_weight_gradient(true);
}

DEVICE_TEST(a_product_with_nan_is_nan)
{
  const int64_t n = 128;
  uint16_t *x = varied(n, n), *c = bytes((size_t)(n * n) * 2);
  x[5 * n + 3] = 0x7f80;
  const struct operand a = quantise(x, n, n, n, false, false),
                       b = quantise(varied(n, n), n, n, n, true, false);
  const struct matmul op = product_of(&a, &b, c);
  assert_ok(half_ops->matmul(half_lane, &op));
  for (int64_t i = 0; i < n * n; i++)
    assert_true(isnan(f32_from_bf16(c[i])) == (i / n == 5));
}

/* ---- one scale per operand ---- */

/* The nearest of the 127 magnitudes, in doubles. If two are equally near, the even one. */
static uint8_t nearest_code(uint8_t code, int gap)
{
  double best = INFINITY, size, value;
  uint8_t nearest = 0;
  float wide;
  if ((code & 0x7f) == FP8_NAN)
    return FP8_NAN;
  dtype_convert(&wide, DTYPE_F32, &code, DTYPE_F8_E4M3, 1);
  size = ldexp(fabs(wide), -gap);
  for (int c = 0; c < FP8_NAN; c++) {
    const uint8_t byte = (uint8_t)c;
    dtype_convert(&wide, DTYPE_F32, &byte, DTYPE_F8_E4M3, 1);
    value = fabs(size - wide);
    if (value < best || (value == best && c % 2 == 0)) {
      best = value;
      nearest = byte;
    }
  }
  return nearest | (code & 0x80);
}

DEVICE_TEST(codes_with_a_larger_scale)
{
  static const int exponents[] = {-126, -100, -20, 0, 1, 100, 120};
  static const int gaps[] = {0, 1, 2, 3, 6, 7, 8, 9, 10, 14, 15, 17, 18, 19, 40, 140, 246};
  for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++)
    for (size_t g = 0; g < sizeof gaps / sizeof *gaps; g++)
      for (int code = 0; code < 256 && exponents[e] + gaps[g] <= 120; code++) {
        const float from = ldexpf(1, exponents[e]), to = ldexpf(1, exponents[e] + gaps[g]);
        assert_int_equal(fp8_recode((uint8_t)code, from, to), nearest_code((uint8_t)code, gaps[g]));
        assert_int_equal(fp8_recode((uint8_t)code, from, NAN), FP8_NAN);
        assert_int_equal(fp8_recode((uint8_t)code, NAN, NAN), FP8_NAN);
      }
}

static bool is_pad(const struct operand *y, int64_t scale)
{
  return y->blocks && scale % fp8_pitch(y->k) >= y->k / FP8_TILE;
}

/* Pads may hold anything. They neither count nor change. */
static void fill_pads(const struct operand *y, float with)
{
  for (int64_t s = 0; s < scales_of(y); s++)
    if (is_pad(y, s))
      y->scale[s] = with;
}

static struct operand duplicate(const struct operand *y)
{
  struct operand copy = *y;
  copy.code = bytes((size_t)(y->n * y->k));
  copy.scale = bytes((size_t)scales_of(y) * sizeof *copy.scale);
  memcpy(copy.code, y->code, (size_t)(y->n * y->k));
  memcpy(copy.scale, y->scale, (size_t)scales_of(y) * sizeof *copy.scale);
  return copy;
}

static void unify(const struct operand *y)
{
  assert_ok(half_ops->fp8_unify(
      half_lane,
      &(struct fp8_unify){
          .n = y->n, .k = y->k, .blocks = y->blocks, .code = y->code, .scale = y->scale}));
}

static void check_unified(const struct operand *before, const struct operand *y, bool bad)
{
  float largest = 0;
  for (int64_t s = 0; s < scales_of(y); s++)
    if (!is_pad(y, s))
      largest = fmaxf(largest, before->scale[s]);
  for (int64_t s = 0; s < scales_of(y); s++)
    if (is_pad(y, s))
      assert_same_bits(&y->scale[s], &before->scale[s], sizeof *y->scale);
    else
      assert_true(bad ? isnan(y->scale[s]) : y->scale[s] == largest);
  int other = 0, changed = 0;
  for (int64_t i = 0; i < y->n; i++)
    for (int64_t j = 0; j < y->k; j++) {
      const uint8_t was = before->code[i * y->k + j], is = y->code[i * y->k + j];
      const int gap = (int)log2f(largest / scale_at(before, i, j));
      assert_int_equal(is, bad ? FP8_NAN : nearest_code(was, gap));
      changed += !bad && fp8_value(is, largest) != fp8_value(was, scale_at(before, i, j));
      other += !bad && gap > 0;
    }
  assert_true(bad || (other > 0 && changed > 0));
}

/* Without pads, with pads, and in rows of one block. */
DEVICE_TEST(operands_get_one_scale)
{
  static const int64_t sizes[][2] = {{256, 512}, {384, 640}, {256, 128}};
  for (int i = 0; i < 3; i++)
    for (int blocks = 0; blocks < 2; blocks++)
      for (int bad = 0; bad < 2; bad++) {
        const int64_t n = sizes[i][0], k = sizes[i][1];
        uint16_t *x = varied(n, k);
        for (int64_t e = 0; e < n * k; e++) /* blocks have different scales, too */
          x[e] = (uint16_t)(x[e] + (e / k / FP8_TILE * 5 + e % k / FP8_TILE * 3) % 7 * 128);
        if (bad)
          x[200 * k + 77] = 0x7fc0;
        const struct operand y = quantise(x, n, k, k, blocks, false);
        fill_pads(&y, bad ? 0 : NAN);
        const struct operand before = duplicate(&y);
        unify(&y);
        check_unified(&before, &y, bad);
        const struct operand once = duplicate(&y);
        unify(&y);
        check_codes(&once, y.code, y.scale);
      }
}

/* All scales of blocks are `one`, and those of pads 0. */
static void check_scales(const float *scale, int64_t n, int64_t k, float one)
{
  for (int64_t s = 0; s < n / FP8_TILE * fp8_pitch(k); s++)
    assert_true(s % fp8_pitch(k) >= k / FP8_TILE ? scale[s] == 0
                : isnan(one)                     ? isnan(scale[s])
                                                 : scale[s] == one);
}

/* A weight gets its scale from its parts, and an operand from a part of its columns is given it.
 * Oracle: the definition of scales and codes. */
DEVICE_TEST(weights_get_one_scale)
{
  const int64_t rows = 384, columns = 640, n = rows * columns,
                cut[] = {0, 131 * columns + 64, 200 * columns + 8, n};
  for (int bad = 0; bad < 2; bad++) {
    uint16_t *x = varied(rows, columns);
    if (bad)
      x[300 * columns + 200] = 0x7f80;
    half->fp8_tensor = true;
    float *scale = scales_of_parts(x, DTYPE_BF16, rows, columns, cut), largest = 0;
    half->fp8_tensor = false;
    for (int64_t i = 0; i < n; i++)
      largest = fmaxf(largest, fabsf(f32_from_bf16(x[i])));
    const float one = bad ? NAN : fp8_scale(f32_bits(largest));
    check_scales(scale, rows, columns, one);
    const int64_t first = 128, count = 256;
    uint8_t *code = bytes((size_t)n), *turned = bytes((size_t)(count * rows));
    float *turned_scale = nans(count / FP8_TILE * fp8_pitch(rows));
    const struct fp8_part part =
        part_of(x, DTYPE_BF16, columns, (const int64_t[]){0, n}, scale, code);
    assert_ok(half_ops->fp8_code(half_lane, &part));
    struct fp8_quantise op = {.rows = rows, .columns = count, .ld = columns, .x = x + first};
    op.blocks = true, op.transposed = true, op.given = scale, op.code = turned;
    op.scale = turned_scale;
    assert_ok(half_ops->fp8_quantise(half_lane, &op));
    for (int64_t i = 0; i < n; i++) {
      const float scaled = f32_from_bf16(x[i]) / one;
      uint8_t want = FP8_NAN;
      if (!bad)
        dtype_convert(&want, DTYPE_F8_E4M3, &scaled, DTYPE_F32, 1);
      assert_int_equal(code[i], want);
      if (i % columns >= first && i % columns < first + count)
        assert_int_equal(turned[(i % columns - first) * rows + i / columns], want);
    }
    check_scales(turned_scale, count, rows, one);
    op.blocks = false;
    assert_int_equal(half_ops->fp8_quantise(half_lane, &op), STATUS_INTERNAL);
  }
}

/* Products read the first scale alone. */
DEVICE_TEST(products_with_one_scale)
{
  half->fp8_tensor = true;
  for (int blocks = 0; blocks < 2; blocks++) {
    const int64_t m = 128, n = 256, k = 384;
    const struct operand a = quantise(varied(m, k), m, k, k, blocks, false),
                         b = quantise(varied(n, k), n, k, k, !blocks, false);
    unify(&a);
    unify(&b);
    const double *want = multiplied(&a, &b);
    for (int64_t s = 1; s < scales_of(&a); s++)
      a.scale[s] = NAN;
    for (int64_t s = 1; s < scales_of(&b); s++)
      b.scale[s] = NAN;
    float *c = nans(m * n);
    struct matmul op = product_of(&a, &b, c);
    op.gradient = true;
    op.a_blocks = blocks;
    assert_ok(half_ops->matmul(half_lane, &op));
    assert_near(c, want, m * n, 1e-5);
  }
  half->fp8_tensor = false;
}

/* Compute capabilities of V100, A100, an RTX 3090, an L40S, an H100, a B200, a B300 and an RTX
 * 5090. */
DEVICE_TEST(products_of_gpus)
{
  static const struct {
    int major, minor;
    enum fp8_scales fp8;
  } known[] = {{7, 0, FP8_SCALES_NONE},    {8, 0, FP8_SCALES_NONE},    {8, 6, FP8_SCALES_NONE},
               {8, 9, FP8_SCALES_TENSOR},  {9, 0, FP8_SCALES_GROUPS},  {10, 0, FP8_SCALES_TENSOR},
               {10, 3, FP8_SCALES_TENSOR}, {12, 0, FP8_SCALES_TENSOR}, {9, 1, FP8_SCALES_NONE}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    assert_int_equal(device_cuda_fp8(known[i].major, known[i].minor), known[i].fp8);
}

DEVICE_TEST(refusals)
{
  uint16_t *x = varied(128, 192);
  uint8_t *code = bytes(128 * 192);
  float *scale = nans(128 * 2);
  const struct fp8_quantise op = {
      .rows = 128, .columns = 192, .ld = 192, .x = x, .code = code, .scale = scale};
  assert_int_equal(half_ops->fp8_quantise(half_lane, &op), STATUS_INTERNAL);
  assert_int_equal(device->model.fp8, FP8_SCALES_NONE);
  assert_int_equal(half->model.fp8, FP8_SCALES_GROUPS);
  assert_false(half->fp8_tensor);
  for (int i = 0; i < 2; i++) {
    const struct fp8_unify wrong = {
        .n = i ? 128 : 64, .k = i ? 192 : 128, .code = code, .scale = scale};
    assert_int_equal(half_ops->fp8_unify(half_lane, &wrong), STATUS_INTERNAL);
  }
  assert_int_equal(ops->fp8_quantise(lanes[0], &op), STATUS_UNSUPPORTED);
  assert_int_equal(ops->swiglu_coded(lanes[0], 128, 128, x, code, scale), STATUS_UNSUPPORTED);
  const struct fp8_swiglu gradient = {
      .rows = 128, .F = 128, .count = 128, .gu = x, .dy = x, .code = code};
  assert_int_equal(ops->swiglu_backward_coded(lanes[0], &gradient), STATUS_UNSUPPORTED);
  for (int i = 0; i < 5; i++) {
    struct fp8_swiglu wrong = gradient;
    wrong.rows = i == 0 ? 64 : 128;
    wrong.first = i == 1 ? 64 : i == 2 ? 128 : 0;
    wrong.count = i == 3 ? 0 : i == 4 ? 256 : 128;
    assert_int_equal(half_ops->swiglu_backward_coded(half_lane, &wrong), STATUS_INTERNAL);
  }
  for (int i = 0; i < 3; i++) {
    struct fp8_turn wrong = {.rows = i == 0 ? 64 : 128, .columns = 128};
    wrong.ld = i == 1 ? 0 : i == 2 ? 192 : 128, wrong.code = code, wrong.scale = scale;
    wrong.turned = code, wrong.turned_scale = scale;
    assert_int_equal(half_ops->fp8_turn(half_lane, &wrong), STATUS_INTERNAL);
  }
  const struct matmul product = {.m = 1, .n = 1, .k = 128, .a_scale = scale, .b_scale = scale};
  assert_int_equal(ops->matmul(lanes[0], &product), STATUS_UNSUPPORTED);
}

TEST_MAIN(fixture_create_half, fixture_destroy_half)
