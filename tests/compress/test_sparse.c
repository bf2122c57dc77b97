/* Sparsifiers on the host device. Oracles: the rank of an element, counted pair by pair. Coded
 * values are compared with base/dtype.h. x is the decoded message plus the residual. The
 * contraction that error feedback relies on (Stich et al. 2018, definition 2.1) holds in the mean
 * within 5 standard errors. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"
#include "device/rounding.h"
#include "fixture.h"

enum { BLOCK = 256 };

static uint64_t draws;

/* Normals with ties and zeros. */
static float *vectors(int64_t n)
{
  float *x = guarded(n * 4);
  rng_fill_normal(rng_key_make(1, "sparse"), draws++, 0, n, 0, 1, x);
  for (int64_t i = 0; i < n; i++)
    if (i % 5 == 0)
      x[i] = i % 3 ? -1.25f : i % 2 ? 1.25f : 0;
  return x;
}

static int64_t keep_of(const struct codec *codec)
{
  return (int64_t)ceil(codec->set.density * (double)codec->set.block);
}

/* Elements of the block that a message prefers to element i. */
static int64_t preferred(const struct codec *codec, const float *x, int64_t n, int64_t i)
{
  const bool ranked = strcmp(codec->ops->name, "topk") == 0;
  int64_t count = 0;
  for (int64_t j = 0; j < n; j++)
    if (ranked)
      count += fabsf(x[j]) > fabsf(x[i]) || (fabsf(x[j]) == fabsf(x[i]) && j < i);
    else
      count += fabs(x[j]) >= codec->set.threshold && j < i;
  return count;
}

static bool is_random_choice(const struct codec *codec, uint64_t seed, int64_t block, int64_t i)
{
  const uint32_t bits = rounding_bits(seed, block);
  for (int64_t j = 0; j < keep_of(codec); j++)
    if ((((bits & 0xffff) | 1) * j + (bits >> 16)) % codec->set.block == i)
      return true;
  return false;
}

/* The decoded value of x[at]. */
static float arrives(const struct codec *codec, uint64_t seed, const float *x, int64_t n,
                     int64_t at)
{
  const int64_t size = codec->set.block, block = at / size, i = at % size,
                length = n - block * size < size ? n - block * size : size;
  const float *from = x + block * size;
  float value = x[at];
  bool chosen = preferred(codec, from, length, i) < keep_of(codec);
  if (strcmp(codec->ops->name, "threshold") == 0)
    chosen = chosen && fabsf(value) >= (float)codec->set.threshold;
  if (strcmp(codec->ops->name, "randomk") == 0) {
    chosen = is_random_choice(codec, seed, block, i);
    value *= codec->feedback ? 1 : (float)size / (float)keep_of(codec);
  }
  if (strcmp(codec->values->name, "bf16") == 0)
    value = f32_from_bf16(bf16_from_f32(value));
  return chosen ? value : 0;
}

static const char *const cases[] = {
    "topk block=256 density=0.05",
    "topk feedback",
    "topk block=256 density=1",
    "topk+bf16 block=256 density=0.1",
    "threshold block=256 density=0.05 threshold=1.25",
    "threshold+bf16 block=512 density=0.5",
    "randomk block=256 density=0.125",
    "randomk block=1024 density=0.03 feedback",
    "randomk+bf16 block=256 density=0.1 feedback",
};
static const int64_t lengths[] = {1, 255, 256, 4097};

CODEC_TEST(the_chosen_elements_arrive)
{
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
      const struct codec codec = codec_of("%s", cases[c]);
      const int64_t n = lengths[l];
      const struct codec_pass pass = pass_of(&codec, lanes[1], n, 1, 77);
      const float *x = vectors(n), *out = decoded(&codec, &pass, encoded(&codec, &pass, x));
      for (int64_t i = 0; i < n; i++)
        assert_true(out[i] == arrives(&codec, 77, x, n, i));
    }
}

/* Values of two messages, as their codec changes them: both vectors at once, then one by one. */
static void through_values(const struct codec *codec, int64_t slots, float *values)
{
  const struct codec of_values = codec_of_values(codec);
  const struct codec_pass pass = pass_of(&of_values, lanes[1], slots, 2, 21);
  const char *codes = encoded(&of_values, &pass, values);
  for (int i = 0; i < 2; i++)
    memcpy(values + i * slots,
           decoded(&of_values, &pass, codes + i * of_values.ops->bytes(&of_values, slots)),
           (size_t)slots * 4);
}

/* A message with fp32 values, which the codec then changes, gives what a message with codes does.
 */
static void check_values(const char *name, int64_t n)
{
  const struct codec coded = codec_of("%s block=256 density=0.1 feedback", name);
  struct codec plain = coded;
  plain.values = &codec_none;
  const struct codec_pass pass = pass_of(&plain, lanes[1], n, 2, 21),
                          coded_pass = pass_of(&coded, lanes[1], n, 2, 21);
  const int64_t slots = (n + BLOCK - 1) / BLOCK * keep_of(&coded),
                bytes = plain.ops->bytes(&plain, n), at = bytes - (4 * slots + 255) / 256 * 256;
  float *x = vectors(2 * n), *values = guarded(2 * slots * 4);
  char *messages = encoded(&plain, &pass, x);
  for (int i = 0; i < 2; i++)
    memcpy(values + i * slots, messages + i * bytes + at, (size_t)slots * 4);
  through_values(&coded, slots, values);
  for (int i = 0; i < 2; i++)
    memcpy(messages + i * bytes + at, values + i * slots, (size_t)slots * 4);
  const float *want = summed(&plain, &pass, messages, bytes),
              *got = summed(&coded, &coded_pass, encoded(&coded, &coded_pass, x),
                            coded.ops->bytes(&coded, n));
  assert_memory_equal(got, want, (size_t)n * 4);
}

CODEC_TEST(any_codec_may_code_the_values)
{
#define CODEC_POINTER(name, ...) &codec_##name,
  static const struct codec_ops *const all[] = {CODEC_ROWS(CODEC_POINTER)};
#undef CODEC_POINTER
  for (size_t s = 0; s < sizeof all / sizeof all[0]; s++)
    for (size_t v = 0; v < sizeof all / sizeof all[0]; v++) {
      char name[64];
      snprintf(name, sizeof name, "%s+%s", all[s]->name, all[v]->name);
      if (!(all[s]->traits & CODEC_SPARSE) ||
          all[v]->traits & (CODEC_HAS_VALUES | CODEC_NEEDS_MAX | CODEC_ALONE | CODEC_VARIABLE))
        continue;
      check_values(name, 1);
      check_values(name, 12345);
    }
}

/* ||x - C(x)||^2 / ||x||^2 */
static double lost(const struct codec *codec, int64_t n, uint64_t seed, const float *x)
{
  const struct codec_pass pass = pass_of(codec, lanes[1], n, 1, seed);
  float *left = guarded(n * 4);
  memcpy(left, x, (size_t)n * 4);
  must(subtract(codec, &pass, encoded(codec, &pass, x), left));
  return squares(n, left) / squares(n, x);
}

CODEC_TEST(topk_contracts_every_input)
{
  enum { N = 16 * BLOCK };
  const struct codec codec = codec_of("topk block=256 density=0.1 feedback");
  const double most = 1 - (double)keep_of(&codec) / BLOCK;
  float *x = vectors(N);
  for (int power = 0; power < 3; power++) {
    assert_true(lost(&codec, N, 0, x) < most);
    for (int i = 0; i < N; i++)
      x[i] *= x[i] * x[i];
  }
  for (int i = 0; i < N; i++)
    x[i] = i % 2 ? 1 : -1; /* the worst input: all are equal */
  assert_true(fabs(lost(&codec, N, 0, x) - most) <= 1e-12);
}

/* A mean over seeds, and its standard error. */
struct mean {
  double sum, squares;
  int count;
};

static void mean_add(struct mean *mean, double x)
{
  mean->sum += x;
  mean->squares += x * x;
  mean->count++;
}

static void expect_mean(const struct mean *mean, double want)
{
  const double got = mean->sum / mean->count,
               variance = fmax(mean->squares / mean->count - got * got, 0);
  if (!(fabs(got - want) <= 5 * sqrt(variance / mean->count) + 1e-6 * fabs(want)))
    fail_msg("a mean is %g, not %g", got, want);
}

CODEC_TEST(randomk_contracts_in_the_mean)
{
  enum { N = 4 * BLOCK, SEEDS = 2000 };
  const struct codec codec = codec_of("randomk block=256 density=0.1 feedback");
  struct mean mean = {0};
  float *x = vectors(N);
  for (uint64_t seed = 0; seed < SEEDS; seed++)
    mean_add(&mean, lost(&codec, N, seed, x));
  expect_mean(&mean, 1 - (double)keep_of(&codec) / BLOCK);
}

CODEC_TEST(randomk_without_feedback_is_unbiased)
{
  enum { N = 300, SEEDS = 4000 };
  const struct codec codec = codec_of("randomk block=256 density=0.25");
  struct codec_pass pass = pass_of(&codec, lanes[1], N, 1, 0);
  struct mean mean[N] = {{0}};
  float *x = vectors(N);
  for (; pass.seed < SEEDS; pass.seed++) {
    const float *out = decoded(&codec, &pass, encoded(&codec, &pass, x));
    for (int i = 0; i < N; i++)
      mean_add(&mean[i], out[i]);
  }
  for (int i = 0; i < N; i++)
    expect_mean(&mean[i], x[i]);
}

/* The step must see a gradient that is not finite. */
CODEC_TEST(non_finite_elements_arrive)
{
  enum { N = 1000 };
  static const char *const names[] = {"topk", "threshold", "topk+bf16"};
  for (int c = 0; c < 3; c++) {
    const struct codec codec = codec_of("%s block=256 density=0.01 feedback", names[c]);
    const struct codec_pass pass = pass_of(&codec, lanes[1], N, 1, 0);
    float x[N] = {[3] = NAN, [300] = INFINITY, [999] = -0x1.fffffep127f};
    const float *out = decoded(&codec, &pass, encoded(&codec, &pass, x));
    assert_true(isnan(out[3]));
    assert_true(out[300] == INFINITY);
    assert_true(out[999] <= x[999]);
    assert_true(out[998] == 0);
  }
}

/* A bit per element, if indices of 16 bits would take more. */
CODEC_TEST(indices_are_as_short_as_possible)
{
  const struct codec half = codec_of("topk+int4 density=0.5 feedback"),
                     sixteenth = codec_of("topk density=0.0625 feedback");
  int64_t index_bytes;
  assert_int_equal(half.ops->chosen(&half, 40960, &index_bytes), 20480);
  assert_int_equal(index_bytes, 5120);
  assert_int_equal(sixteenth.ops->chosen(&sixteenth, 40960, &index_bytes), 2560);
  assert_int_equal(index_bytes, 5120);
}

TEST_MAIN(start, stop)
