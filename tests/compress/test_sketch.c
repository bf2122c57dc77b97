/* Codec countsketch on the host device. Oracles: a sketch and its estimates, written from the
 * description in compress/rule/sketch.h. The bound of Count Sketch by Chebyshev's inequality. The
 * squared error of zeros. Sums of messages that were decoded one by one. */
#include <float.h>
#include <math.h>

#include "compress/compress.h"
#include "compress/rule/sketch.h"
#include "device/device.h"
#include "device/lane.h"
#include "fixture.h"

enum { PARTS = 3, BLOCK = 1024, KEEP = 11, COLUMNS = 4 * KEEP };

static struct codec codec; /* blocks of 1024 elements, 1 in 100 arrives */

static float normal(uint64_t seed, int64_t i)
{
  float sum = -6;
  for (int k = 0; k < 12; k++)
    sum += (float)(sketch_mix(seed * 1000003 + (uint64_t)(12 * i + k)) >> 40) * 0x1p-24f;
  return sum;
}

/* A few large elements among small ones, as gradients have them. */
static float *vectors(uint64_t seed, int64_t n)
{
  float *x = guarded(n * 4);
  for (int64_t i = 0; i < n; i++)
    x[i] = normal(seed, i) * (sketch_mix(seed + (uint64_t)i) % 128 == 0 ? 30 : 0.1f);
  return x;
}

/* ---- the reference ---- */

struct row {
  uint64_t factor, offset;
};

static struct row row_of(uint64_t seed, int64_t block, int row)
{
  const uint64_t word = sketch_mix(seed ^ sketch_mix((uint64_t)(3 * block + row)));
  return (struct row){sketch_mix(word), sketch_mix(~word)};
}

/* The upper half of factor * i + offset: a sign, and a fraction of the columns. */
static int place(struct row row, int64_t i, int *sign)
{
  const uint64_t bits = (row.factor * (uint64_t)i + row.offset) >> 32;
  *sign = bits & 0x80000000 ? -1 : 1;
  return (int)((bits & 0x7fffffff) * COLUMNS / 0x80000000);
}

/* Estimates in steps of most / 2^20, from exact sums. */
static void estimate(uint64_t seed, int64_t block, int64_t m, const float *x, double *out)
{
  double table[3][COLUMNS] = {{0}}, most = 0;
  int sign;
  for (int64_t i = 0; i < m; i++)
    most = fmax(most, fabs((double)x[i]));
  const double step = most / (double)(1 << 20);
  for (int r = 0; r < 3; r++)
    for (int64_t i = 0; i < m; i++) {
      const int at = place(row_of(seed, block, r), i, &sign);
      table[r][at] += sign * rint((double)(x[i] * (float)(1 / (float)step)));
    }
  for (int64_t i = 0; i < m; i++) {
    double of[3];
    for (int r = 0; r < 3; r++) {
      const int at = place(row_of(seed, block, r), i, &sign);
      of[r] = sign * table[r][at];
    }
    const double median = fmax(fmin(of[0], of[1]), fmin(fmax(of[0], of[1]), of[2]));
    out[i] = step * fmax(fmin(median, 1 << 20), -(1 << 20));
  }
}

/* The k-th largest magnitude. */
static double ranked(int64_t m, const double *x, int k)
{
  double rank = INFINITY;
  for (int i = 0; i < k; i++) {
    double next = 0;
    int equal = 0;
    for (int64_t j = 0; j < m; j++)
      if (fabs(x[j]) < rank && fabs(x[j]) > next)
        next = fabs(x[j]);
    for (int64_t j = 0; j < m; j++)
      equal += fabs(x[j]) == next;
    rank = next;
    i += equal - 1;
  }
  return rank;
}

/* ---- tests ---- */

/* The scale is that of least squares, or one step. */
static void check_block(const float *x, const float *out, int64_t m, const double *guess)
{
  const double least = ranked(m, guess, m < KEEP ? (int)m : KEEP);
  double product = 0, square = 0;
  for (int64_t i = 0; i < m; i++)
    if (fabs(guess[i]) >= least) {
      product += x[i] * guess[i];
      square += guess[i] * guess[i];
    }
  const double factor = square > 0 ? fmax(0, fmin(1, product / square)) : 0;
  for (int64_t i = 0; i < m; i++) {
    const double expected = fabs(guess[i]) >= least ? factor * guess[i] : 0;
    assert_true(fabs(out[i] - expected) <= 1e-5 * fabs(expected));
  }
}

CODEC_TEST(messages_are_those_of_the_reference)
{
  static const int64_t lengths[] = {1, 2, 33, 1023, 1024, 1025, 5000};
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
    for (uint64_t seed = 1; seed <= 5; seed++) {
      const int64_t n = lengths[l];
      const struct codec_pass pass = pass_of(&codec, lanes[n % 2], n, PARTS, seed);
      float *x = vectors(seed, PARTS * n);
      char *messages = encoded(&codec, &pass, x);
      for (int part = 0; part < PARTS; part++) {
        const float *out = decoded(&codec, &pass, messages + part * codec.ops->bytes(&codec, n));
        for (int64_t block = 0; block * BLOCK < n; block++) {
          const int64_t m = n - block * BLOCK < BLOCK ? n - block * BLOCK : BLOCK;
          double guess[BLOCK];
          estimate(seed, block, m, x + part * n + block * BLOCK, guess);
          check_block(x + part * n + block * BLOCK, out + block * BLOCK, m, guess);
        }
      }
    }
}

/* By Chebyshev, an estimate of a row is off by more than sqrt(8 / columns) times the norm of the
 * other elements with a probability of at most 1/8. For a median of three rows it is at most
 * 3/64. */
CODEC_TEST(estimates_are_within_the_bound)
{
  int far = 0, all = 0;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    double guess[BLOCK];
    float *x = vectors(seed, BLOCK);
    const double norm = squares(BLOCK, x);
    estimate(seed, 0, BLOCK, x, guess);
    for (int64_t i = 0; i < BLOCK; i++) {
      const double bound = 8.0 / COLUMNS * (norm - (double)x[i] * x[i]);
      far += (guess[i] - x[i]) * (guess[i] - x[i]) > bound;
      all++;
    }
  }
  assert_true(64.0 * far <= 3.0 * all);
}

/* Each other element shares the counters of the large one in two of three rows with a probability
 * below 3 / COLUMNS^2. So fewer than two of 1023 are expected to seem as large, and 11 arrive. */
CODEC_TEST(a_heavy_hitter_arrives)
{
  enum { SEEDS = 200 };
  int arrived = 0;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    const struct codec_pass pass = pass_of(&codec, lanes[BLOCK % 2], BLOCK, 1, seed);
    float *x = guarded(BLOCK * 4);
    for (int64_t i = 0; i < BLOCK; i++)
      x[i] = 0.01f * normal(seed, i);
    x[3 * seed] = -10;
    arrived += decoded(&codec, &pass, encoded(&codec, &pass, x))[3 * seed] < 0;
  }
  assert_true(64 * arrived >= 61 * SEEDS);
}

/* The residual is at most the vector for any content. It is much smaller if few elements are
 * large. */
CODEC_TEST(messages_contract_every_input)
{
  enum { N = 5 * BLOCK + 7 };
  for (uint64_t seed = 1; seed <= 30; seed++)
    for (int kind = 0; kind < 3; kind++) {
      const struct codec_pass pass = pass_of(&codec, lanes[N % 2], N, 1, seed);
      float *x = vectors(seed, N);
      for (int64_t i = 0; kind > 0 && i < N; i++)
        x[i] = kind == 1 ? normal(seed, i) : 1.0f;
      const double before = squares(N, x);
      char *message = encoded(&codec, &pass, x);
      must(subtract(&codec, &pass, message, x));
      assert_true(squares(N, x) <= before * (kind == 0 ? 0.9 : 1 + 1e-6));
    }
}

/* With feedback a constant vector arrives in the mean over steps: what is left stays bounded. */
CODEC_TEST(feedback_brings_all_elements)
{
  enum { N = BLOCK, STEPS = 600 };
  float *x = vectors(3, N), *left = guarded(N * 4), *sum = guarded(N * 4);
  memset(left, 0, N * 4);
  memset(sum, 0, N * 4);
  for (uint64_t step = 0; step < STEPS; step++) {
    const struct codec_pass pass = pass_of(&codec, lanes[N % 2], N, 1, step);
    for (int64_t i = 0; i < N; i++)
      left[i] += x[i];
    char *message = encoded(&codec, &pass, left);
    must(codec.ops->decode(&codec, &pass, message, codec.ops->bytes(&codec, N), QUANT_ADD,
                           DTYPE_F32, sum));
    must(subtract(&codec, &pass, message, left));
  }
  for (int64_t i = 0; i < N; i++)
    sum[i] = sum[i] / STEPS - x[i];
  assert_true(squares(N, sum) < 0.05 * squares(N, x));
}

/* The largest counters: all elements are the largest, and of the signs of one row. */
CODEC_TEST(counters_do_not_overflow)
{
  for (int64_t block = SKETCH_LEAST_BLOCK; block <= SKETCH_MOST_BLOCK; block *= 2) {
    const struct sketch op = {.block = block, .keep = 1, .seed = 5};
    const struct sketch_key key = sketch_key_make(&op, 0, 1);
    float *x = guarded(block * 4);
    int32_t *message = guarded(sketch_bytes(&op, block)), most = 0;
    for (int64_t i = 0; i < block; i++)
      x[i] = sketch_hash(key, (uint32_t)i) >> 31 ? -FLT_MAX : FLT_MAX;
    must(device->ops->sketch(lanes[0], &op, block, 1, x, message));
    int64_t sum = 0;
    for (int c = 0; c < 4; c++) {
      sum += message[2 + 4 + c];
      most = message[2 + 4 + c] > most ? message[2 + 4 + c] : most;
    }
    assert_int_equal(sum, 1 << 30);
    assert_true(most > (1 << 30) / 8);
    must(device->ops->unsketch(lanes[0], &op, block, 1, message, 0, SCATTER_SET, x));
    for (int64_t i = 0; i < block; i++)
      assert_true(isfinite(x[i]));
  }
}

CODEC_TEST(special_blocks)
{
  static const float bad[] = {INFINITY, -INFINITY, NAN};
  enum { N = 3 * BLOCK };
  for (int b = 0; b < 3; b++) {
    const struct codec_pass pass = pass_of(&codec, lanes[N % 2], N, 1, 4);
    float *x = vectors(1, N);
    memset(x, 0, BLOCK * 4);
    x[5] = 0x1p-130f;
    x[2 * BLOCK + 17] = bad[b];
    const float *out = decoded(&codec, &pass, encoded(&codec, &pass, x));
    for (int64_t i = 0; i < N; i++)
      assert_true(i < BLOCK ? out[i] == 0 : i < 2 * BLOCK ? isfinite(out[i]) : isnan(out[i]));
  }
}

CODEC_TEST(a_device_refuses_other_blocks)
{
  const struct sketch bad = {.block = 1000, .keep = 1};
  assert_int_equal(device->ops->sketch(lanes[0], &bad, 1, 1, NULL, NULL), STATUS_INTERNAL);
  assert_int_equal(device->ops->unsketch(lanes[0], &bad, 1, 1, NULL, 0, SCATTER_SET, NULL),
                   STATUS_INTERNAL);
}

FIXTURE(make)
{
  must(codec_from("countsketch block=1024 feedback", &codec));
  return start(test_state);
}

TEST_MAIN(make, stop)
