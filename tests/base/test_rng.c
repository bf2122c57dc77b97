/* Random numbers. Oracles: Random123's published known answers for Philox4x32-10; statistics with
 * their textbook bounds (the draws are fixed, so a test passes always or never). */
#include <math.h>

#include "base/rng.h"
#include "tests/test.h"

TEST(test_known_answers)
{
  static const struct {
    uint32_t key[2], counter[4], out[4];
  } known[] = {
      {{0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u}, {~0u, ~0u, ~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0xa4093822, 0x299f31d0},
       {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (int i = 0; i < 3; i++) {
    const uint32_t *c = known[i].counter;
    uint32_t out[4];
    struct rng_key key = {{known[i].key[0], known[i].key[1]}};
    rng_block(key, (uint64_t)c[3] << 32 | c[2], (uint64_t)c[1] << 32 | c[0], out);
    assert_memory_equal(out, known[i].out, sizeof out);
  }
}

TEST(test_keys_differ)
{
  static const char *const purposes[] = {"init", "order", "sample", ""};
  struct rng_key keys[64];
  int n = 0;
  for (uint64_t seed = 0; seed < 16; seed++)
    for (int p = 0; p < 4; p++)
      keys[n++] = rng_key_make(seed < 8 ? seed : seed << 40, purposes[p]);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++)
      assert_memory_not_equal(&keys[i], &keys[j], sizeof keys[i]);
}

/* chi-square of 256 cells, and every one of the 53 bits about half of the time */
TEST(test_uniform)
{
  enum { DRAWS = 1 << 17, CELLS = 256 };
  int cell[CELLS] = {0}, bit[53] = {0};
  struct rng_key key = rng_key_make(3, "test");
  for (uint64_t i = 0; i < DRAWS; i++) {
    double x = rng_uniform(key, 1, i);
    assert_true(x >= 0 && x < 1);
    cell[(int)(x * CELLS)]++;
    for (int b = 0; b < 53; b++)
      bit[b] += (int)((uint64_t)(x * 0x1p53) >> b & 1);
  }
  double chi = 0, expected = (double)DRAWS / CELLS;
  for (int c = 0; c < CELLS; c++)
    chi += (cell[c] - expected) * (cell[c] - expected) / expected;
  assert_true(chi > 255 - 5 * sqrt(2 * 255) && chi < 255 + 5 * sqrt(2 * 255));
  for (int b = 0; b < 53; b++)
    assert_true(fabs(bit[b] - DRAWS / 2.0) < 5 * sqrt(DRAWS) / 2);
}

static int compare(const void *a, const void *b)
{
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/* Kolmogorov and Smirnov's distance to the normal distribution; 1.95 / sqrt(n) is passed by 999 of
 * 1000 samples. */
TEST(test_normal)
{
  enum { DRAWS = 200000 };
  static float x[DRAWS];
  rng_fill_normal(rng_key_make(4, "test"), 7, 123, DRAWS, 3, 0.5f, x);
  double sum = 0, squares = 0, lag = 0, distance = 0;
  for (int i = 0; i < DRAWS; i++) {
    double z = (x[i] - 3) / 0.5;
    sum += z;
    squares += z * z;
    lag += i > 0 ? z * (x[i - 1] - 3) / 0.5 : 0;
  }
  assert_true(fabs(sum / DRAWS) < 5 / sqrt(DRAWS));
  assert_true(fabs(squares / DRAWS - 1) < 5 * sqrt(2.0 / DRAWS));
  assert_true(fabs(lag / DRAWS) < 5 / sqrt(DRAWS)); /* the two of a pair are independent */
  qsort(x, DRAWS, sizeof x[0], compare);
  for (int i = 0; i < DRAWS; i++)
    distance = fmax(distance, fabs(erfc(-(x[i] - 3) / 0.5 / sqrt(2)) / 2 - (i + 0.5) / DRAWS));
  assert_true(distance < 1.95 / sqrt(DRAWS));
}

/* Oracle: one fill of the whole. */
TEST(test_normal_any_split)
{
  enum { N = 101 };
  float whole[N], part[N], other[N];
  struct rng_key key = rng_key_make(5, "test");
  uint64_t first = (UINT64_C(1) << 40) + 1;
  rng_fill_normal(key, 2, first, N, 0, 1, whole);
  for (int cut = 0; cut <= N; cut++) {
    rng_fill_normal(key, 2, first, cut, 0, 1, part);
    rng_fill_normal(key, 2, first + (uint64_t)cut, N - cut, 0, 1, part + cut);
    assert_memory_equal(part, whole, sizeof whole);
  }
  rng_fill_normal(key, 3, first, N, 0, 1, other);
  assert_memory_not_equal(other, whole, sizeof whole);
}

static void check_bijection(struct rng_key key, uint64_t n)
{
  unsigned char *seen = calloc(n, 1);
  assert_non_null(seen);
  for (uint64_t i = 0; i < n; i++) {
    uint64_t image = rng_permute(key, 9, n, i);
    assert_true(image < n);
    assert_int_equal(seen[image]++, 0);
  }
  free(seen);
}

TEST(test_permute_is_one)
{
  struct rng_key key = rng_key_make(6, "order");
  for (uint64_t n = 1; n <= 300; n++)
    check_bijection(key, n);
  check_bijection(key, 65535);
  check_bijection(key, 65537);
  for (uint64_t i = 0; i < 100;
       i++) /* the largest domain, and one that wastes three quarters of it */
    assert_true(rng_permute(key, 0, UINT64_MAX, UINT64_MAX - 1 - i) < UINT64_MAX &&
                rng_permute(key, 0, (UINT64_C(1) << 62) + 1, i) <= UINT64_C(1) << 62);
}

/* Where two samples go together: all pairs of places equally often over epochs (chi-square). */
static void check_pairs(uint64_t n)
{
  enum { EPOCHS = 100000, MOST = 17 };
  int count[MOST][MOST] = {0};
  struct rng_key key = rng_key_make(7, "order");
  for (uint64_t epoch = 0; epoch < EPOCHS; epoch++)
    count[rng_permute(key, epoch, n, 0)][rng_permute(key, epoch, n, 1)]++;
  double chi = 0, pairs = (double)(n * (n - 1)), expected = EPOCHS / pairs;
  for (uint64_t i = 0; i < n; i++)
    for (uint64_t j = 0; j < n; j++)
      if (i == j)
        assert_int_equal(count[i][j], 0);
      else
        chi += (count[i][j] - expected) * (count[i][j] - expected) / expected;
  assert_true(chi < pairs - 1 + 5 * sqrt(2 * (pairs - 1)));
}

TEST(test_permute_is_fair)
{
  static const uint64_t sizes[] = {2, 4, 5, 6, 17};
  for (int i = 0; i < 5; i++)
    check_pairs(sizes[i]);
}

TEST_MAIN(NULL, NULL)
