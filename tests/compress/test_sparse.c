/* Sparsifiers on the host device. Oracles: the rank of an element, counted pair by pair. Coded
 * values are compared with base/dtype.h. x is the decoded message plus the residual. The
 * contraction that error feedback relies on (Stich et al. 2018, definition 2.1) holds in the mean
 * within 5 standard errors. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"
#include "device/rounding.h"
#include "fixture.h"

enum { PARTS = 3, BLOCK = 256 };

static uint64_t draws;

static struct codec codec_of(const char *name, struct codec_settings settings, bool feedback)
{
  struct codec codec;
  if (codec_make(name, &settings, feedback, &codec))
    fail_msg("%s", status_text());
  return codec;
}

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

/* Exactly the scratch memory that the codec asks for. */
static struct codec_pass pass_of(const struct codec *codec, int64_t n, int parts, uint64_t seed)
{
  return (struct codec_pass){lanes[1], n, parts, seed, guarded(codec_work(codec, n, parts))};
}

static void end_pass(const struct codec *codec, const struct codec_pass *pass)
{
  release(pass->work, codec_work(codec, pass->n, pass->parts));
}

static void encode(const struct codec *codec, int64_t n, int parts, uint64_t seed, const float *x,
                   void *messages)
{
  const struct codec_pass pass = pass_of(codec, n, parts, seed);
  assert_int_equal(codec->ops->encode(codec, &pass, x, messages), STATUS_OK);
  end_pass(codec, &pass);
}

static void decode_sum(const struct codec *codec, int64_t n, int parts, uint64_t seed,
                       const void *messages, int64_t stride, bool accumulate, float *out)
{
  const struct codec_pass pass = pass_of(codec, n, parts, seed);
  assert_int_equal(codec->ops->decode_sum(codec, &pass, messages, stride, accumulate, out),
                   STATUS_OK);
  end_pass(codec, &pass);
}

static void subtract(const struct codec *codec, int64_t n, int parts, uint64_t seed,
                     const void *messages, float *x)
{
  const struct codec_pass pass = pass_of(codec, n, parts, seed);
  assert_int_equal(codec->ops->subtract(codec, &pass, messages, x), STATUS_OK);
  end_pass(codec, &pass);
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

static const struct {
  const char *name;
  struct codec_settings settings;
  bool feedback;
} cases[] = {
    {"topk", {.block = BLOCK, .density = 0.05}, false},
    {"topk", {0}, true},
    {"topk", {.block = BLOCK, .density = 1}, false},
    {"topk+bf16", {.block = BLOCK, .density = 0.1}, false},
    {"threshold", {.block = BLOCK, .density = 0.05, .threshold = 1.25}, false},
    {"threshold+bf16", {.block = 512, .density = 0.5}, false},
    {"randomk", {.block = BLOCK, .density = 0.125}, false},
    {"randomk", {.block = 1024, .density = 0.03}, true},
    {"randomk+bf16", {.block = BLOCK, .density = 0.1}, true},
};
enum { CASES = sizeof cases / sizeof cases[0] };
static const int64_t lengths[] = {1, 255, 256, 4097};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static struct codec case_of(int c)
{
  return codec_of(cases[c].name, cases[c].settings, cases[c].feedback);
}

/* Messages lie `gap` bytes further apart than they must. Sums are message after message. */
static void check_sum(const struct codec *codec, int64_t n, int64_t gap, bool accumulate)
{
  const int64_t bytes = codec->ops->bytes(codec, n), stride = bytes + gap;
  float *x = vectors(PARTS * n), *out = vectors(n), *before = guarded(n * 4);
  char *messages = guarded(PARTS * stride);
  memcpy(before, out, (size_t)n * 4);
  for (int part = 0; part < PARTS; part++)
    encode(codec, n, 1, 77, x + part * n, messages + part * stride);
  decode_sum(codec, n, PARTS, 77, messages, stride, accumulate, out);
  for (int64_t i = 0; i < n; i++) {
    float want = accumulate ? before[i] : 0;
    for (int part = 0; part < PARTS; part++)
      want += arrives(codec, 77, x + part * n, n, i);
    assert_true(out[i] == want);
  }
  release(before, n * 4);
  release(out, n * 4);
  release(x, PARTS * n * 4);
  release(messages, PARTS * stride);
}

TEST(the_chosen_elements_arrive)
{
  for (int c = 0; c < CASES; c++)
    for (int l = 0; l < LENGTHS; l++) {
      const struct codec codec = case_of(c);
      check_sum(&codec, lengths[l], 0, false);
      check_sum(&codec, lengths[l], 512, true);
    }
}

/* Values of two messages, as their codec changes them: both vectors at once, then one by one. */
static void through_values(const struct codec *codec, int64_t slots, float *values)
{
  const struct codec of_values = codec_of_values(codec);
  const int64_t bytes = of_values.ops->bytes(&of_values, slots);
  char *codes = guarded(2 * bytes);
  encode(&of_values, slots, 2, 21, values, codes);
  for (int i = 0; i < 2; i++)
    decode_sum(&of_values, slots, 1, 21, codes + i * bytes, bytes, false, values + i * slots);
  release(codes, 2 * bytes);
}

/* A message with fp32 values, which the codec then changes, gives what a message with codes does.
 */
static void check_values(const char *name, const struct codec_settings *settings, int64_t n)
{
  const struct codec coded = codec_of(name, *settings, true);
  struct codec plain = coded;
  plain.values = codec_of("none", (struct codec_settings){0}, true).ops;
  const int64_t slots = (n + coded.set.block - 1) / coded.set.block * keep_of(&coded),
                bytes = coded.ops->bytes(&coded, n), plain_bytes = plain.ops->bytes(&plain, n),
                at = plain_bytes - (4 * slots + 255) / 256 * 256;
  float *x = vectors(2 * n), *want = guarded(n * 4), *got = guarded(n * 4),
        *values = guarded(2 * slots * 4);
  char *messages = guarded(2 * bytes), *plain_messages = guarded(2 * plain_bytes);
  encode(&plain, n, 2, 21, x, plain_messages);
  for (int i = 0; i < 2; i++)
    memcpy(values + i * slots, plain_messages + i * plain_bytes + at, (size_t)slots * 4);
  through_values(&coded, slots, values);
  for (int i = 0; i < 2; i++)
    memcpy(plain_messages + i * plain_bytes + at, values + i * slots, (size_t)slots * 4);
  decode_sum(&plain, n, 2, 21, plain_messages, plain_bytes, false, want);
  encode(&coded, n, 2, 21, x, messages);
  decode_sum(&coded, n, 2, 21, messages, bytes, false, got);
  assert_memory_equal(got, want, (size_t)n * 4);
  release(plain_messages, 2 * plain_bytes);
  release(messages, 2 * bytes);
  release(values, 2 * slots * 4);
  release(got, n * 4);
  release(want, n * 4);
  release(x, 2 * n * 4);
}

TEST(any_codec_may_code_the_values)
{
#define CODEC_POINTER(name, ...) &codec_##name,
  static const struct codec_ops *const all[] = {CODEC_ROWS(CODEC_POINTER)};
#undef CODEC_POINTER
  static const struct codec_settings settings = {.block = BLOCK, .density = 0.1};
  for (size_t s = 0; s < sizeof all / sizeof all[0]; s++)
    for (size_t v = 0; v < sizeof all / sizeof all[0]; v++) {
      char name[64];
      snprintf(name, sizeof name, "%s+%s", all[s]->name, all[v]->name);
      if (!(all[s]->traits & CODEC_SPARSE) ||
          all[v]->traits & (CODEC_HAS_VALUES | CODEC_NEEDS_MAX | CODEC_ALONE))
        continue;
      check_values(name, &settings, 1);
      check_values(name, &settings, 12345);
    }
}

static double squares(const float *x, int64_t n)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += (double)x[i] * x[i];
  return sum;
}

/* ||x - C(x)||^2 / ||x||^2 */
static double lost(const struct codec *codec, int64_t n, uint64_t seed, const float *x)
{
  const int64_t bytes = codec->ops->bytes(codec, n);
  float *left = guarded(n * 4);
  char *message = guarded(bytes);
  memcpy(left, x, (size_t)n * 4);
  encode(codec, n, 1, seed, x, message);
  subtract(codec, n, 1, seed, message, left);
  const double ratio = squares(left, n) / squares(x, n);
  release(message, bytes);
  release(left, n * 4);
  return ratio;
}

TEST(topk_contracts_every_input)
{
  enum { N = 16 * BLOCK };
  const struct codec codec =
      codec_of("topk", (struct codec_settings){.block = BLOCK, .density = 0.1}, true);
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
  release(x, N * 4);
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

TEST(randomk_contracts_in_the_mean)
{
  enum { N = 4 * BLOCK, SEEDS = 2000 };
  const struct codec codec =
      codec_of("randomk", (struct codec_settings){.block = BLOCK, .density = 0.1}, true);
  struct mean mean = {0};
  float *x = vectors(N);
  for (uint64_t seed = 0; seed < SEEDS; seed++)
    mean_add(&mean, lost(&codec, N, seed, x));
  expect_mean(&mean, 1 - (double)keep_of(&codec) / BLOCK);
  release(x, N * 4);
}

TEST(randomk_without_feedback_is_unbiased)
{
  enum { N = 300, SEEDS = 4000 };
  const struct codec codec =
      codec_of("randomk", (struct codec_settings){.block = BLOCK, .density = 0.25}, false);
  const int64_t bytes = codec.ops->bytes(&codec, N);
  struct mean mean[N] = {{0}};
  float *x = vectors(N), *out = guarded(N * 4);
  char *message = guarded(bytes);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    encode(&codec, N, 1, seed, x, message);
    decode_sum(&codec, N, 1, seed, message, bytes, false, out);
    for (int i = 0; i < N; i++)
      mean_add(&mean[i], out[i]);
  }
  for (int i = 0; i < N; i++)
    expect_mean(&mean[i], x[i]);
  release(message, bytes);
  release(out, N * 4);
  release(x, N * 4);
}

/* The step must see a gradient that is not finite. */
TEST(non_finite_elements_arrive)
{
  enum { N = 1000 };
  static const char *const names[] = {"topk", "threshold", "topk+bf16"};
  for (int c = 0; c < 3; c++) {
    const struct codec codec =
        codec_of(names[c], (struct codec_settings){.block = BLOCK, .density = 0.01}, true);
    const int64_t bytes = codec.ops->bytes(&codec, N);
    float *x = guarded(N * 4), *out = guarded(N * 4);
    char *message = guarded(bytes);
    memset(x, 0, N * 4);
    x[3] = NAN, x[300] = INFINITY, x[999] = -0x1.fffffep127f;
    encode(&codec, N, 1, 0, x, message);
    decode_sum(&codec, N, 1, 0, message, bytes, false, out);
    assert_true(isnan(out[3]));
    assert_true(out[300] == INFINITY);
    assert_true(out[999] <= x[999]);
    assert_true(out[998] == 0);
    release(message, bytes);
    release(out, N * 4);
    release(x, N * 4);
  }
}

TEST(a_message_has_its_stated_size)
{
  static const struct {
    const char *name;
    int64_t n, bytes;
  } sizes[] = {{"topk", 0, 0},
               {"topk", 1, 256 + 256},
               {"topk", 1000000, 20224 + 40192}, /* 245 blocks of 41 slots */
               {"topk+bf16", 1000000, 20224 + 20224},
               {"threshold", 1000000, 20224 + 40192},
               {"randomk", 1000000, 40192},
               {"topk", INT64_C(1) << 40, (INT64_C(41) << 28) * 6}};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const struct codec codec = codec_of(sizes[s].name, (struct codec_settings){0}, false);
    assert_true(codec.ops->bytes(&codec, sizes[s].n) == sizes[s].bytes);
  }
  /* A bit per element, if indices of 16 bits would take more. */
  const struct codec_settings many = {.density = 0.5}, few = {.density = 1.0 / 16};
  const struct codec half = codec_of("topk+int4", many, true),
                     sixteenth = codec_of("topk", few, true);
  int64_t index_bytes;
  /* Bits, scales, codes, and zeros up to a multiple of 256 bytes. */
  assert_int_equal(half.ops->bytes(&half, 40960), 5120 + 640 + 10240 + 128);
  assert_int_equal(half.ops->chosen(&half, 40960, &index_bytes), 20480);
  assert_int_equal(index_bytes, 5120);
  assert_int_equal(sixteenth.ops->chosen(&sixteenth, 40960, &index_bytes), 2560);
  assert_int_equal(index_bytes, 5120);
}

TEST_MAIN(start, stop)
