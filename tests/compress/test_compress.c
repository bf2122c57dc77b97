/* Codecs on the host device. Oracles: the scalar conversions of base/dtype.h for single elements,
 * and the pairwise tree of additions in fp32 for the bits of a sum. The error of a sum is compared
 * with a sum in fp64. A tree over P parts rounds each term at most ceil(log2 P) times, and
 * accumulation rounds once more. Each rounding is at most 2^-24 (Higham, "Accuracy and Stability of
 * Numerical Algorithms", section 4.2). Bytes around each output guard its ends. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compress/compress.h"
#include "device/device.h"
#include "device/lane.h"
#include "guard.h"
#include "tests/test.h"

enum { MOST_PARTS = 5, LANES = 2 };

static struct device *device;
static struct lane *lanes[LANES]; /* of 1 and 3 threads */

static float through_f32(float x)
{
  return x;
}

static float through_bf16(float x)
{
  return f32_from_bf16(bf16_from_f32(x));
}

static float through_fp16(float x)
{
  return f32_from_f16(f16_from_f32(x));
}

static const struct {
  const char *name;
  float (*round)(float x); /* the value of an element after encode and decode */
  int64_t size;            /* bytes per element */
  unsigned traits;
} cases[] = {{"none", through_f32, 4, CODEC_IDENTITY | CODEC_LOSSLESS},
             {"bf16", through_bf16, 2, 0},
             {"fp16", through_fp16, 2, 0}};
enum { CASES = sizeof cases / sizeof cases[0] };

static const int64_t lengths[] = {1, 3, 17, 65537};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static struct codec codec_of(int which)
{
  struct codec codec;
  assert_int_equal(codec_make(cases[which].name, NULL, false, &codec), STATUS_OK);
  return codec;
}

/* Values of many magnitudes, with zeros, a subnormal, ties of bf16, infinity and the largest float
 * among them. */
static float value(int64_t i)
{
  static const float special[] = {0.0f,      -0.0f,    0x1p-140f,      0x1.01p0f,
                                  0x1.03p0f, INFINITY, 0x1.fffffep127f};
  if (i % 97 < 7)
    return special[i % 97];
  const uint32_t h = (uint32_t)(i + 1) * 2654435761u;
  return ((float)(h >> 8) - 8388608.0f) * ldexpf(1, (int)(h % 31) - 40);
}

static float *vectors(int64_t n, float (*of)(int64_t i))
{
  float *x = guarded(n * 4);
  for (int64_t i = 0; i < n; i++)
    x[i] = of(i);
  return x;
}

/* subtract() leaves what the messages of x lost. */
static void check_loss(int which, const struct codec_pass *pass, const char *messages, float *x)
{
  const struct codec codec = codec_of(which);
  const int64_t all = pass->n * pass->parts;
  float *before = vectors(all, value);
  assert_int_equal(codec.ops->subtract(&codec, pass, messages, x), STATUS_OK);
  for (int64_t i = 0; i < all; i++) {
    const float expected = before[i] - cases[which].round(before[i]);
    if (expected == expected)
      assert_memory_equal(&x[i], &expected, sizeof expected);
    else
      assert_true(isnan(x[i])); /* infinity, less infinity */
  }
  release(before, all * 4);
}

static void round_trip(int which, int64_t n, struct lane *lane)
{
  enum { PARTS = 3 };
  const struct codec codec = codec_of(which);
  const int64_t bytes = codec.ops->bytes(&codec, n);
  float *x = vectors(PARTS * n, value), *out = guarded(n * 4);
  char *messages = guarded(PARTS * bytes);
  const struct codec_pass pass = {.lane = lane, .n = n, .parts = PARTS},
                          one = {.lane = lane, .n = n, .parts = 1};
  assert_int_equal(codec.ops->encode(&codec, &pass, x, messages), STATUS_OK);
  if (codec.ops->traits & CODEC_IDENTITY)
    assert_memory_equal(messages, x, (size_t)(PARTS * bytes));
  for (int part = 0; part < PARTS; part++) {
    assert_int_equal(
        codec.ops->decode_sum(&codec, &one, messages + part * bytes, bytes, false, out), STATUS_OK);
    for (int64_t i = 0; i < n; i++) {
      const float expected = cases[which].round(x[part * n + i]);
      assert_memory_equal(&out[i], &expected, sizeof expected);
    }
  }
  check_loss(which, &pass, messages, x);
  release(messages, PARTS * bytes);
  release(out, n * 4);
  release(x, PARTS * n * 4);
}

TEST(a_vector_comes_back_rounded_once)
{
  for (int which = 0; which < CASES; which++)
    for (int l = 0; l < LENGTHS; l++)
      for (int t = 0; t < LANES; t++)
        round_trip(which, lengths[l], lanes[t]);
}

static float bounded(int64_t i)
{
  const uint32_t h = (uint32_t)(i + 1) * 2246822519u;
  return ((float)(h >> 8) - 8388608.0f) / 8388608.0f * ldexpf(1, (int)(h % 7));
}

/* Adjacent pairs, then pairs of pairs; an odd one passes. */
static float tree_sum(const float *x, int n)
{
  int half = 1;
  if (n == 1)
    return x[0];
  while (2 * half < n)
    half *= 2;
  return tree_sum(x, half) + tree_sum(x + half, n - half);
}

static void check_element(const float *terms, int parts, bool accumulate, float before, float got)
{
  const float tree = tree_sum(terms, parts), expected = accumulate ? before + tree : tree;
  const int roundings = (int)ceil(log2(parts)) + 1;
  double sum = accumulate ? before : 0, size = fabs(sum);
  for (int p = 0; p < parts; p++) {
    sum += terms[p];
    size += fabs(terms[p]);
  }
  assert_memory_equal(&got, &expected, sizeof expected);
  assert_true(fabs(got - sum) <= roundings * 0x1.01p-24 * size);
}

/* Messages lie `gap` bytes further apart than they must. */
static void sum_up(int which, int64_t n, int parts, bool accumulate, int64_t gap)
{
  const struct codec codec = codec_of(which);
  const int64_t bytes = codec.ops->bytes(&codec, n), stride = bytes + gap,
                all = (parts - 1) * stride + bytes;
  float *x = vectors(parts * n, bounded), *out = guarded(n * 4);
  char *messages = guarded(all);
  const struct codec_pass pass = {.lane = lanes[1], .n = n, .parts = parts},
                          one = {.lane = lanes[1], .n = n, .parts = 1};
  for (int part = 0; part < parts; part++)
    assert_int_equal(codec.ops->encode(&codec, &one, x + part * n, messages + part * stride),
                     STATUS_OK);
  for (int64_t i = 0; accumulate && i < n; i++)
    out[i] = 0.25f * (float)i;
  assert_int_equal(codec.ops->decode_sum(&codec, &pass, messages, stride, accumulate, out),
                   STATUS_OK);
  for (int64_t i = 0; i < n; i++) {
    float terms[MOST_PARTS];
    for (int part = 0; part < parts; part++)
      terms[part] = cases[which].round(x[part * n + i]);
    check_element(terms, parts, accumulate, 0.25f * (float)i, out[i]);
  }
  release(messages, all);
  release(out, n * 4);
  release(x, parts * n * 4);
}

TEST(a_sum_is_the_tree_in_fp32)
{
  static const int parts[] = {1, 2, 3, MOST_PARTS};
  for (int which = 0; which < CASES; which++)
    for (int l = 0; l < LENGTHS; l++)
      for (int p = 0; p < 4; p++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
          sum_up(which, lengths[l], parts[p], accumulate, 0);
          sum_up(which, lengths[l], parts[p], accumulate, 12);
        }
}

/* As in a group of one: the message is the gradient, and the sum takes its place. */
TEST(one_vector_is_its_own_sum)
{
  enum { N = 17 };
  const struct codec codec = codec_of(0);
  float *x = vectors(N, bounded), expected[N];
  memcpy(expected, x, sizeof expected);
  const struct codec_pass pass = {.lane = lanes[0], .n = N, .parts = 1};
  assert_int_equal(codec.ops->decode_sum(&codec, &pass, x, N * 4, false, x), STATUS_OK);
  assert_memory_equal(x, expected, sizeof expected);
  assert_int_equal(codec.ops->decode_sum(&codec, &pass, x, N * 4, true, x), STATUS_OK);
  for (int i = 0; i < N; i++)
    assert_true(x[i] == 2 * expected[i]);
  release(x, N * 4);
}

static float rounded(float x, enum dtype type)
{
  return type == DTYPE_F32 ? x : f32_from_bf16(bf16_from_f32(x));
}

static float element_of(const void *x, enum dtype type, int64_t i)
{
  return type == DTYPE_F32 ? ((const float *)x)[i] : f32_from_bf16(((const uint16_t *)x)[i]);
}

static void put_element(void *x, enum dtype type, int64_t i, float value)
{
  if (type == DTYPE_F32)
    ((float *)x)[i] = value;
  else
    ((uint16_t *)x)[i] = bf16_from_f32(value);
}

/* A vector of each message, next to each other. */
static void decode_all(const struct codec *codec, int64_t n, struct lane *lane, bool accumulate,
                       enum dtype type)
{
  enum { PARTS = 3 };
  const int64_t bytes = codec->ops->bytes(codec, n), size = PARTS * n * (int64_t)dtype_size(type),
                work = codec_work(codec, n, PARTS) + 1;
  float *x = vectors(PARTS * n, bounded), *one = guarded(n * 4);
  char *messages = guarded(PARTS * bytes), *out = guarded(size), *room = guarded(work);
  struct codec_pass pass = {.lane = lane, .n = n, .parts = PARTS, .seed = 7, .work = room};
  for (int64_t i = 0; i < PARTS * n; i++)
    put_element(out, type, i, 0.25f * (float)i);
  assert_int_equal(codec->ops->encode(codec, &pass, x, messages), STATUS_OK);
  assert_int_equal(codec->ops->decode(codec, &pass, messages, accumulate, type, out), STATUS_OK);
  pass.parts = 1;
  for (int part = 0; part < PARTS; part++) {
    assert_int_equal(
        codec->ops->decode_sum(codec, &pass, messages + part * bytes, bytes, false, one),
        STATUS_OK);
    for (int64_t i = 0; i < n; i++) {
      const int64_t at = part * n + i;
      const float before = rounded(0.25f * (float)at, type),
                  expected = rounded(accumulate ? before + one[i] : one[i], type);
      assert_true(element_of(out, type, at) == expected);
    }
  }
  release(room, work);
  release(out, size);
  release(messages, PARTS * bytes);
  release(one, n * 4);
  release(x, PARTS * n * 4);
}

/* For every codec that is not for sums alone. Oracle: the sum of one message, and one rounding. */
TEST(messages_are_decoded_one_by_one)
{
  static const char *const names[] = {
#define CODEC_NAME(name, kind, title, source) #name,
      CODEC_ROWS(CODEC_NAME) "topk+int8"};
#undef CODEC_NAME
  for (size_t c = 0; c < sizeof names / sizeof *names; c++)
    for (int way = 0; way < 4; way++) {
      const enum dtype type = way / 2 ? DTYPE_BF16 : DTYPE_F32;
      struct codec codec;
      assert_int_equal(codec_make(names[c], NULL, true, &codec), STATUS_OK);
      if (codec.ops->traits & (CODEC_LOW_RANK | CODEC_ALONE | CODEC_NEEDS_MAX))
        continue; /* for sums alone */
      if (c < CASES && type != DTYPE_F32)
        continue; /* of plain vectors: see below */
      decode_all(&codec, 17, lanes[0], way % 2, type);
      decode_all(&codec, 65537, lanes[1], way % 2, type);
    }
  const struct codec plain = codec_of(1);
  const struct codec_pass pass = {.lane = lanes[0], .n = 1, .parts = 1};
  float nothing = 0;
  assert_int_equal(plain.ops->decode(&plain, &pass, &nothing, false, DTYPE_BF16, &nothing),
                   STATUS_UNSUPPORTED);
  assert_string_equal(status_text(), "codec bf16 decodes to fp32, not to bf16");
}

TEST(a_codec_is_what_its_row_says)
{
  for (int which = 0; which < CASES; which++) {
    const struct codec codec = codec_of(which);
    assert_string_equal(codec.ops->name, cases[which].name);
    assert_true(*codec.ops->source);
    assert_int_equal(codec.ops->traits, cases[which].traits);
    for (int l = 0; l < LENGTHS; l++)
      assert_int_equal(codec.ops->bytes(&codec, lengths[l]), cases[which].size * lengths[l]);
    assert_true(codec.ops->bytes(&codec, INT64_C(1) << 33) == cases[which].size << 33);
  }
}

static void refused(const char *name, const struct codec_settings *settings, const char *why)
{
  struct codec codec = {NULL};
  assert_int_equal(codec_make(name, settings, false, &codec), STATUS_USAGE);
  assert_non_null(strstr(status_text(), why));
  assert_null(codec.ops);
}

TEST(an_unknown_codec_is_refused)
{
  refused("fp8", NULL, "there is no codec 'fp8': use one of none, bf16, fp16");
  refused("", NULL, "there is no codec ''");
  refused("bf16+zip", NULL, "there is no codec 'zip'");
  refused("bf16+none", NULL, "codec bf16 has no values that codec none could code");
}

TEST(a_setting_that_a_codec_lacks_is_refused)
{
  refused("none", &(struct codec_settings){.block = 256}, "codec none has no block");
  refused("bf16", &(struct codec_settings){.levels = 7}, "codec bf16 has no levels");
  refused("bf16", &(struct codec_settings){.density = 0.01}, "codec bf16 has no density");
  refused("bf16", &(struct codec_settings){.threshold = NAN}, "codec bf16 has no threshold");
}

/* Each part of a codec counts. */
TEST(codecs_are_told_apart)
{
  const struct codec one = codec_of(0);
  struct codec other[7] = {one, one, one, one, one, one, one};
  other[0].ops = &codec_bf16;
  other[1].values = &codec_bf16;
  other[2].set.block = 1;
  other[3].set.levels = 1;
  other[4].set.density = 1;
  other[5].set.threshold = 1;
  other[6].feedback = true;
  assert_true(codec_equal(&one, &one));
  for (int i = 0; i < 7; i++) {
    assert_false(codec_equal(&one, &other[i]));
    assert_false(codec_equal(&other[i], &one));
    assert_true(codec_hash(1, &one) != codec_hash(1, &other[i]));
    for (int j = 0; j < i; j++)
      assert_true(codec_hash(1, &other[j]) != codec_hash(1, &other[i]));
  }
  assert_true(codec_hash(1, &(struct codec){NULL}) == 1);
}

FIXTURE(start)
{
  if (device_create("host", 0, DTYPE_F32, &device) ||
      device->ops->lane_create(device, "one", LANE_ROLE_COMPUTE, 1, &lanes[0]))
    return -1;
  return device->ops->lane_create(device, "three", LANE_ROLE_COMPUTE, 3, &lanes[1]) ? -1 : 0;
}

FIXTURE(stop)
{
  for (int t = 0; t < LANES; t++)
    device->ops->lane_destroy(lanes[t]);
  device_destroy(device);
  return 0;
}

TEST_MAIN(start, stop)
