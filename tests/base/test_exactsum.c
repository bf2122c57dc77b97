/* Exact sums. Oracles: 128-bit integers, where the terms have one scale; Shewchuk's expansions
 * (Discrete Comput. Geom. 18, 1997), where they have many. */
#include <float.h>
#include <math.h>

#include "base/exactsum.h"
#include "base/rng.h"
#include "tests/test.h"

static double sum_of(const double *x, int n)
{
  struct exactsum sum;
  exactsum_zero(&sum);
  for (int i = 0; i < n; i++)
    exactsum_add(&sum, x[i]);
  return exactsum_value(&sum);
}

static void assert_same(double a, double b)
{
  if (memcmp(&a, &b, sizeof a) != 0)
    fail_msg("%a is not %a", a, b);
}

static uint64_t draw(uint64_t i)
{
  uint32_t words[4];
  rng_block(rng_key_make(8, "test"), 0, i, words);
  return (uint64_t)words[0] << 32 | words[1];
}

/* Any finite double, exponents from `least` on over a range of `range`. */
static double draw_double(uint64_t i, int least, int range)
{
  uint64_t bits = (draw(2 * i) & 0x800fffffffffffff) |
                  (uint64_t)(least + (int)(draw(2 * i + 1) % (uint64_t)range)) << 52;
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

TEST(test_against_integers)
{
  for (uint64_t trial = 0; trial < 200; trial++) {
    enum { N = 500 };
    double x[N];
    __int128 exact = 0;
    for (int i = 0; i < N; i++) {
      int64_t mantissa = (int64_t)draw(trial * N + (uint64_t)i) >> 11,
              shift = (int64_t)(draw(i) % 50);
      exact += (__int128)mantissa * ((__int128)1 << shift);
      x[i] = ldexp((double)mantissa, (int)shift - 1000);
    }
    assert_same(sum_of(x, N), ldexp((double)exact, -1000));
  }
}

/* Adds x to an expansion of numbers that do not overlap, smallest first. */
static int grow(double *part, int n, double x)
{
  int kept = 0;
  for (int i = 0; i < n; i++) {
    double y = part[i];
    if (fabs(x) < fabs(y)) {
      double t = x;
      x = y;
      y = t;
    }
    volatile double high = x + y, low = y - (high - x);
    if (low != 0)
      part[kept++] = low;
    x = high;
  }
  part[kept++] = x;
  return kept;
}

/* The expansion's value rounded once: from the top, until something is lost; then half cases are
 * looked at. */
static double round_expansion(const double *part, int n)
{
  volatile double high = 0, low = 0;
  while (n > 0) {
    double x = high, y = part[--n];
    high = x + y;
    low = y - (high - x);
    if (low != 0)
      break;
  }
  if (n > 0 && ((low < 0 && part[n - 1] < 0) || (low > 0 && part[n - 1] > 0))) {
    volatile double twice = low * 2, x = high + twice;
    if (twice == x - high)
      return x;
  }
  return high;
}

TEST(test_against_expansions)
{
  for (uint64_t trial = 0; trial < 300; trial++) {
    enum { N = 200 };
    static const int ranges[] = {1, 3, 60, 400, 2000};
    double x[N + N / 2], part[N * 2];
    int parts = 0, range = ranges[trial % 5], least = trial % 2 ? 0 : 2040 - range;
    for (int i = 0; i < N; i++)
      x[i] = draw_double(trial * N + (uint64_t)i, least, range);
    for (int i = 0; i < N / 2; i++) /* cancel half of them, later */
      x[N + i] = -x[i];
    for (int i = 0; i < N + N / 2; i++)
      parts = grow(part, parts, x[i]);
    assert_same(sum_of(x, N + N / 2), round_expansion(part, parts));
  }
}

TEST(test_order_and_merging)
{
  enum { N = 1000 };
  static double x[N];
  for (int i = 0; i < N; i++)
    x[i] = draw_double((uint64_t)i, 1, 2030);
  struct exactsum all;
  exactsum_zero(&all);
  for (int i = 0; i < N; i++)
    exactsum_add(&all, x[i]);
  exactsum_normalize(&all);
  for (int ranks = 1; ranks <= 9; ranks++) {
    struct exactsum total;
    exactsum_zero(&total);
    for (int r = ranks - 1; r >= 0; r--) {
      struct exactsum mine;
      exactsum_zero(&mine);
      for (int i = r; i < N; i += ranks)
        exactsum_add(&mine, x[(i * 7 + 3) % N]);
      exactsum_normalize(&mine);
      exactsum_merge(&total, &mine);
    }
    exactsum_normalize(&total);
    assert_memory_equal(&total, &all, sizeof all); /* not only the value: the digits too */
  }
}

TEST(test_rounding)
{
  static const struct {
    double term[4], sum;
  } known[] = {
      {{1, 0x1p-53}, 1},                      /* tie to even, down */
      {{1, 0x1p-52, 0x1p-53}, 1 + 0x1p-51},   /* tie to even, up */
      {{1, 0x1p-53, 0x1p-1074}, 1 + 0x1p-52}, /* a little above the tie */
      {{1, 0x1p-53, -0x1p-1074}, 1},
      {{-1, -0x1p-53, -0x1p-1074}, -1 - 0x1p-52},
      {{0x1p1023, 0x1p1023, -0x1p1023, -0x1p1023}, 0},
      {{0x1p1023, 0x1p1023, -0x1p1023, 1}, 0x1p1023}, /* beyond the range on the way */
      {{DBL_MAX, 0x1p969}, DBL_MAX},
      {{DBL_MAX, 0x1p970}, INFINITY}, /* half of the last place: rounds to the even 2^1024 */
      {{DBL_MAX, 0x1p970, -0x1p-1074}, DBL_MAX},
      {{-DBL_MAX, -DBL_MAX}, -INFINITY},
      {{0x1p-1074}, 0x1p-1074},
      {{0x1p-1074, 0x1p-1074, 0x1p-1074}, 3 * 0x1p-1074},
      {{0x1p-1022, -0x1p-1074}, 0x1p-1022 - 0x1p-1074}, /* largest subnormal */
      {{0x1p-1021, -0x1p-1074}, 0x1p-1021 - 0x1p-1074},
      {{1e16, 1, -1e16, 1}, 2},
      {{0x1p53, 1, 0x1p-1000}, 0x1p53 + 2},
      {{0, 0}, 0},
      {{-0.0, -0.0}, 0},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    assert_same(sum_of(known[i].term, 4), known[i].sum);
}

TEST(test_not_finite)
{
  assert_same(sum_of((double[]){1, INFINITY, -DBL_MAX}, 3), INFINITY);
  assert_same(sum_of((double[]){1, -INFINITY, DBL_MAX}, 3), -INFINITY);
  assert_true(isnan(sum_of((double[]){INFINITY, -INFINITY}, 2)));
  assert_true(isnan(sum_of((double[]){1, NAN, INFINITY}, 3)));

  struct exactsum a, b;
  exactsum_zero(&a);
  exactsum_zero(&b);
  exactsum_add(&a, INFINITY);
  exactsum_add(&b, 3);
  exactsum_merge(&b, &a);
  assert_same(exactsum_value(&b), INFINITY);
  exactsum_zero(&a);
  exactsum_add(&a, -INFINITY);
  exactsum_merge(&b, &a);
  assert_true(isnan(exactsum_value(&b)));
  exactsum_zero(&a);
  exactsum_add(&a, NAN);
  exactsum_zero(&b);
  exactsum_merge(&b, &a);
  assert_true(isnan(exactsum_value(&b)));
}

/* Many terms before the carries move: 2^20 of the digit-filling kind, then their negatives. */
TEST(test_carries)
{
  struct exactsum sum;
  exactsum_zero(&sum);
  for (int i = 0; i < 1 << 20; i++)
    exactsum_add(&sum, DBL_MAX);
  assert_same(exactsum_value(&sum), INFINITY);
  exactsum_normalize(&sum);
  for (int i = 0; i < 1 << 20; i++)
    exactsum_add(&sum, -DBL_MAX);
  exactsum_add(&sum, 42);
  assert_same(exactsum_value(&sum), 42);

  exactsum_zero(&sum);
  for (int i = 0; i < 1 << 20; i++)
    exactsum_add(&sum, -(1 - 0x1p-53));
  assert_same(exactsum_value(&sum), -(0x1p20 - 0x1p-33));
}

TEST_MAIN(NULL, NULL)
