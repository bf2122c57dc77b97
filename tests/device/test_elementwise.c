/* Sums and additions. Oracles: for additions in a documented order the same additions in a plain
 * loop, bit for bit. For the others fp64. Results are bitwise identical over 1 to 4 threads, and
 * for a batch in one call and sequence by sequence. */
#include "fixture.h"

#include <math.h>

enum { LONG = 3 * 65536 + 77 }; /* more than a worker takes at once */

DEVICE_TEST(add_is_the_loop)
{
  float *a = normals(LONG, 1), *b = normals(LONG, 1), *want = nans(LONG);
  for (int i = 0; i < LONG; i++)
    want[i] = a[i] + b[i];
  for (int l = 0; l < LANE_SIZES; l++) {
    float *out = nans(LONG), *a2 = copy_of(a, LONG), *b2 = copy_of(b, LONG);
    assert_ok(ops->add(lanes[l], LONG, a, b, out));
    assert_ok(ops->add(lanes[l], LONG, a2, b, a2));
    assert_ok(ops->add(lanes[l], LONG, a, b2, b2));
    assert_same_bits(out, want, LONG * sizeof *out);
    assert_same_bits(a2, want, LONG * sizeof *out);
    assert_same_bits(b2, want, LONG * sizeof *out);
  }
}

DEVICE_TEST(bias_gradient_is_the_column_sum_however_it_is_split)
{
  enum { B = 3, T = 77, R = B * T };
  static const int64_t widths[] = {1, 40, 101, 200};
  for (int w = 0; w < 4; w++)
    for (int accumulate = 0; accumulate < 2; accumulate++) {
      int64_t n = widths[w], ld = n + 7;
      float *d = normals(R * ld, 1), *start = accumulate ? normals(n, 1) : nans(n), *first = NULL;
      double *want = doubles(n);
      for (int64_t i = 0; i < n; i++) {
        want[i] = accumulate ? start[i] : 0;
        for (int64_t r = 0; r < R; r++)
          want[i] += d[r * ld + i];
      }
      for (int l = 0; l < LANE_SIZES; l++)
        for (int each = 1; each <= B; each++) {
          float *db = copy_of(start, n);
          for (int b = 0; b < B; b += each)
            assert_ok(ops->bias_gradient(lanes[l], (B - b < each ? B - b : each) * T, n, T, ld,
                                         d + b * T * ld, accumulate || b > 0, db));
          for (int64_t i = 0; i < n; i++)
            assert_true(fabs(db[i] - want[i]) <=
                        2e-5); /* partial sums of 231 normals stay below 64, whose half unit is
                                  2e-6; they walk at random */
          if (first)
            assert_same_bits(db, first, (size_t)n * sizeof *db);
          first = db;
        }
    }
}

DEVICE_TEST(bias_gradient_guards_fire)
{
  float x[8] = {0};
  assert_int_equal(ops->bias_gradient(lanes[0], 2, 4, 2, 3, x, false, x),
                   STATUS_INTERNAL); /* rows that overlap */
  assert_int_equal(ops->bias_gradient(lanes[0], -1, 4, 2, 4, x, false, x), STATUS_INTERNAL);
  assert_int_equal(ops->bias_gradient(lanes[0], 2, -4, 2, 4, x, false, x), STATUS_INTERNAL);
  assert_int_equal(ops->bias_gradient(lanes[0], 2, 4, -2, 4, x, false, x), STATUS_INTERNAL);
}

/* Level by level: neighbours are added, an odd one passes. */
static float tree(float *x, int n)
{
  while (n > 1) {
    for (int i = 0; i < n / 2; i++)
      x[i] = x[2 * i] + x[2 * i + 1];
    if (n % 2)
      x[n / 2] = x[n - 1];
    n = n / 2 + n % 2;
  }
  return x[0];
}

/* The code of each element, whose value takes its place. */
static uint16_t *round_all(float *x, int64_t n, enum dtype type)
{
  uint16_t *narrow = bytes((size_t)n * sizeof *narrow);
  for (int64_t i = 0; i < n; i++) {
    narrow[i] = type == DTYPE_BF16 ? bf16_from_f32(x[i]) : f16_from_f32(x[i]);
    x[i] = type == DTYPE_BF16 ? f32_from_bf16(narrow[i]) : f32_from_f16(narrow[i]);
  }
  return narrow;
}

/* dst, after it was `before` (NULL: not added to), is the sum of arrays `stride` elements apart. */
static void check_tree(const float *base, int64_t stride, int parts, int64_t n, const float *before,
                       const float *dst)
{
  float *x = bytes((size_t)parts * sizeof *x);
  for (int64_t i = 0; i < n; i++) {
    for (int p = 0; p < parts; p++)
      x[p] = base[p * stride + i];
    const float want = tree(x, parts);
    assert_true(dst[i] == (before ? before[i] + want : want));
  }
}

DEVICE_TEST(sum_parts_is_the_tree_in_fp32)
{
  enum { N = 1301, STRIDE = N + 5, MOST = 17 };
  static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  for (int t = 0; t < 3; t++) {
    float *base = normals(MOST * STRIDE, 1), *before = normals(N, 1);
    const void *stored = t ? (void *)round_all(base, MOST * STRIDE, types[t]) : base;
    for (int parts = 1; parts <= MOST; parts++)
      for (int accumulate = 0; accumulate < 2; accumulate++)
        for (int l = 0; l < LANE_SIZES; l++) {
          float *dst = accumulate ? copy_of(before, N) : nans(N);
          assert_ok(ops->sum_parts(lanes[l], N, parts, types[t], stored, STRIDE, accumulate, dst));
          check_tree(base, STRIDE, parts, N, accumulate ? before : NULL, dst);
        }
  }
}

DEVICE_TEST(a_difference_is_rounded_once)
{
  enum { N = 1301 };
  static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  for (int t = 0; t < 3; t++)
    for (int l = 0; l < LANE_SIZES; l++) {
      float *less = normals(N, 1), *x = normals(N, 1), *before = copy_of(x, N);
      const void *from = types[t] == DTYPE_F32 ? less : (void *)round_all(less, N, types[t]);
      assert_ok(ops->subtract(lanes[l], N, types[t], from, x));
      for (int i = 0; i < N; i++)
        assert_true(x[i] == before[i] - less[i]);
    }
  assert_int_equal(ops->subtract(lanes[0], 1, DTYPE_F64, NULL, NULL), STATUS_UNSUPPORTED);
}

/* As many as there are ranks in a large job, and more. */
DEVICE_TEST(sums_over_thousands_are_the_tree)
{
  enum { N = 3, MOST = 65539 };
  static const int counts[] = {1023, 1024, 4099, MOST};
  float *base = normals((int64_t)MOST * N, 1), dst[N];
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
    assert_ok(ops->sum_parts(lanes[1], N, counts[c], DTYPE_F32, base, N, false, dst));
    check_tree(base, N, counts[c], N, NULL, dst);
  }
}

/* So many elements that they are stored around the caches; on lines of the cache, and off them,
 * where no vector can be stored so. Bytes after the array do not change. */
DEVICE_TEST(long_sums_are_the_tree)
{
  enum { N = (1 << 22) + 37, MOST = 5 };
  float *base = normals((int64_t)MOST * N, 1), *room = bytes((N + 32) * sizeof *room);
  float *line = room + (64 - (uintptr_t)room % 64) % 64 / sizeof *room;
  for (int parts = 2; parts <= MOST; parts += 3)
    for (int off = 0; off < 2; off++) {
      float *dst = line + off;
      memset(dst, 0xff, (N + 1) * sizeof *dst);
      assert_ok(ops->sum_parts(lanes[1 + parts / 2], N, parts, DTYPE_F32, base, N, false, dst));
      check_tree(base, N, parts, N, NULL, dst);
      assert_true(isnan(dst[N]));
    }
  float *both = bytes(N * sizeof *both); /* and then in the place of a part */
  assert_ok(ops->sum_parts(lanes[1], N, 2, DTYPE_F32, base, N, false, both));
  assert_ok(ops->sum_parts(lanes[1], N, 2, DTYPE_F32, base, N, false, base));
  assert_memory_equal(base, both, N * sizeof *both);
}

DEVICE_TEST(sum_may_take_the_place_of_a_part)
{
  enum { N = 1301, PARTS = 5 };
  float *base = normals(PARTS * N, 1), *apart = nans(N);
  assert_ok(ops->sum_parts(lanes[1], N, PARTS, DTYPE_F32, base, N, false, apart));
  for (int at = 0; at < PARTS; at++) {
    float *within = copy_of(base, PARTS * N);
    assert_ok(ops->sum_parts(lanes[1], N, PARTS, DTYPE_F32, within, N, false, within + at * N));
    assert_same_bits(within + at * N, apart, N * sizeof *apart);
  }
  float *alone = copy_of(base, N);
  assert_ok(ops->sum_parts(lanes[1], N, 1, DTYPE_F32, alone, N, false, alone));
  assert_same_bits(alone, base, N * sizeof *alone);
  assert_int_equal(ops->sum_parts(lanes[1], N, 0, DTYPE_F32, base, N, false, alone),
                   STATUS_INTERNAL);
  assert_int_equal(ops->sum_parts(lanes[1], N, 1, DTYPE_F64, base, N, false, alone),
                   STATUS_UNSUPPORTED);
}

DEVICE_TEST(squares_are_exact_over_blocks_threads_and_cuts)
{
  float *x = normals(LONG, 1);
  long double want = 0;
  struct exactsum whole;
  for (int i = 0; i < LONG; i++)
    want += (long double)x[i] * x[i];
  exactsum_zero(&whole);
  exactsum_add(&whole, 3.5); /* what was there stays */
  assert_ok(ops->sum_squares(lanes[0], LONG, x, &whole));
  double value = exactsum_value(&whole);
  assert_true(fabsl(value - want - 3.5L) <=
              1e-14L * want); /* a block's 256 terms add up in 16 lanes of double */
  for (int l = 0; l < LANE_SIZES; l++)
    for (int64_t cut = 256; cut < LONG; cut += 256 * 97) {
      struct exactsum parts;
      exactsum_zero(&parts);
      exactsum_add(&parts, 3.5);
      assert_ok(ops->sum_squares(lanes[l], LONG - cut, x + cut, &parts));
      assert_ok(ops->sum_squares(lanes[l], cut, x, &parts));
      struct exactsum normal = parts;
      exactsum_normalize(&normal);
      assert_same_bits(&parts, &normal, sizeof parts);
      double again = exactsum_value(&parts);
      assert_same_bits(&again, &value, sizeof value);
    }
  x[LONG - 1] = INFINITY;
  assert_ok(ops->sum_squares(lanes[1], LONG, x, &whole));
  assert_true(isinf(exactsum_value(&whole)));
  x[70000] = NAN;
  assert_ok(ops->sum_squares(lanes[1], LONG, x, &whole));
  assert_true(isnan(exactsum_value(&whole)));
}

DEVICE_TEST(sums_of_terms_are_exact)
{
  enum { N = 5003 };
  double *term = doubles(N);
  struct exactsum want, got;
  exactsum_zero(&want);
  for (int i = 0; i < N; i++) {
    term[i] = ldexp(i % 2 ? 1.0 / (i + 1) : -1.0 / (i + 3), i % 400 - 200);
    exactsum_add(&want, term[i]);
  }
  exactsum_normalize(&want);
  for (int l = 0; l < LANE_SIZES; l++)
    for (int cut = 0; cut <= N; cut += 1667) {
      exactsum_zero(&got);
      assert_ok(ops->sum_exact(lanes[l], N - cut, term + cut, &got));
      assert_ok(ops->sum_exact(lanes[l], cut, term, &got));
      assert_same_bits(&got, &want, sizeof got); /* the digits: so both are normalized */
    }
  exactsum_zero(&got);
  exactsum_zero(&want);
  exactsum_add(&got, -3); /* normalized though nothing is added */
  exactsum_add(&want, -3);
  exactsum_normalize(&want);
  assert_true(memcmp(&got, &want, sizeof got) != 0);
  assert_ok(ops->sum_exact(lanes[0], 0, term, &got));
  assert_same_bits(&got, &want, sizeof got);
}

/* Oracle: the sum of both lists of terms. */
DEVICE_TEST(exact_sums_are_merged)
{
  enum { N = 211 };
  double term[2 * N];
  struct exactsum want, sum[2];
  for (int i = 0; i < 2 * N; i++)
    term[i] = ldexp(i % 3 ? 1.0 / (i + 1) : -1.0 / (i + 3), i % 300 - 150);
  exactsum_zero(&want);
  assert_ok(ops->sum_exact(lanes[0], 2 * (int64_t)N, term, &want));
  for (int h = 0; h < 2; h++) {
    exactsum_zero(&sum[h]);
    assert_ok(ops->sum_exact(lanes[0], N, term + h * N, &sum[h]));
  }
  const struct exactsum other = sum[1];
  assert_ok(ops->merge_exact(lanes[0], &sum[1], &sum[0]));
  assert_same_bits(&sum[0], &want, sizeof want);
  assert_same_bits(&sum[1], &other, sizeof other);
}

static struct outcome conclude(double loss, double squares, double clip)
{
  struct exactsum a, b;
  struct outcome out;
  memset(&out, 0xff, sizeof out);
  exactsum_zero(&a);
  exactsum_zero(&b);
  assert_ok(ops->sum_exact(lanes[0], 1, &loss, &a));
  assert_ok(ops->sum_exact(lanes[0], 1, &squares, &b));
  assert_ok(ops->conclude(lanes[0], &a, &b, clip, &out));
  return out;
}

DEVICE_TEST(outcome_is_what_the_sums_say)
{
  static const struct {
    double loss, squares, clip;
    struct outcome want;
  } known[] = {
      {7.25, 9, 0, {7.25, 3, 1, 1}}, /* no clip */
      {7.25, 9, 3, {7.25, 3, 1, 1}}, {7.25, 9, 4, {7.25, 3, 1, 1}},
      {-1, 16, 1, {-1, 4, 0.25, 1}}, {1, 0, 1, {1, 0, 1, 1}},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    struct outcome got = conclude(known[i].loss, known[i].squares, known[i].clip);
    assert_same_bits(&got, &known[i].want, sizeof got);
  }
  assert_true(conclude(NAN, 4, 1).finite == 0);
  assert_true(conclude(INFINITY, 4, 1).finite == 0);
  assert_true(conclude(1, NAN, 1).finite == 0);
  assert_true(conclude(1, INFINITY, 1).finite == 0);
}

/* Oracle: the scalar conversions, on every bf16 number and on fp32 numbers around the ties between
 * two. */
DEVICE_TEST(casts_round_to_nearest)
{
  enum { N = 3 << 16 };
  uint16_t *all = bytes(N * sizeof *all), *rounded = bytes(N * sizeof *rounded);
  float *wide = nans(N), *ties = bytes(N * sizeof *ties);
  for (uint32_t i = 0; i < N; i++) {
    uint32_t bits = (i / 3 << 16 | 0x7fff) + i % 3; /* just below a tie, on it, just above */
    all[i] = (uint16_t)i;
    memcpy(&ties[i], &bits, sizeof bits);
  }
  for (int l = 0; l < LANE_SIZES; l++) {
    assert_ok(ops->cast(lanes[l], N, DTYPE_BF16, all, DTYPE_F32, wide));
    assert_ok(ops->cast(lanes[l], N, DTYPE_F32, ties, DTYPE_BF16, rounded));
    for (int i = 0; i < N; i++) {
      float want = f32_from_bf16(all[i]);
      assert_same_bits(&wide[i], &want, sizeof want);
      assert_int_equal(rounded[i], bf16_from_f32(ties[i]));
    }
    assert_int_equal(rounded[3 * 0x3f80 + 1], 0x3f80); /* tie to even, down */
    assert_int_equal(rounded[3 * 0x3f81 + 1], 0x3f82); /* up */
    assert_ok(ops->cast(lanes[l], N, DTYPE_BF16, all, DTYPE_BF16, rounded));
    assert_memory_equal(rounded, all, N * sizeof *all);
    assert_ok(ops->cast(lanes[l], N, DTYPE_F32, wide, DTYPE_F32, wide)); /* a copy onto itself */
  }
  assert_ok(ops->cast(lanes[2], N, DTYPE_BF16, all, DTYPE_F16, rounded));
  for (int i = 0; i < N; i++)
    assert_int_equal(rounded[i], f16_from_f32(f32_from_bf16(all[i])));
  must_fail(ops->cast(lanes[0], 1, DTYPE_F32, wide, DTYPE_F8_E4M3, rounded), STATUS_UNSUPPORTED,
            "fp8_e4m3");
  assert_int_equal(ops->cast(lanes[0], 1, DTYPE_F64, rounded, DTYPE_F32, wide), STATUS_UNSUPPORTED);
  assert_int_equal(ops->cast(lanes[0], -1, DTYPE_F32, wide, DTYPE_BF16, rounded), STATUS_INTERNAL);
}

TEST_MAIN(fixture_create, fixture_destroy)
