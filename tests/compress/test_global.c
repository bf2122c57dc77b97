/* int8_global, whose messages have one scale for all ranks, and the largest magnitude that it
 * needs. Oracles: a loop over elements with functions of the C library; bounds that make sums of
 * codes fit into 8 bits; messages decoded one by one. */
#include <float.h>
#include <math.h>

#include "compress/compress.h"
#include "device/device.h"
#include "device/host/kernels.h"
#include "device/lane.h"
#include "device/rounding.h"
#include "fixture.h"

static const int64_t lengths[] = {1, 31, 256, 1025, 200003};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static float *vector(int64_t n)
{
  float *x = guarded(n * 4);
  for (int64_t i = 0; i < n; i++)
    x[i] = ((float)(rounding_bits(7, i) >> 8) - 8388608.0f) * 0x1p-30f;
  return x;
}

static float most_of(const float *x, int64_t n)
{
  float most = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmaxf(most, fabsf(x[i]));
  return most;
}

static float largest_by(struct lane *lane, int64_t n, const float *x)
{
  float out = -1;
  must(device->ops->max_magnitude(lane, n, x, &out));
  return out;
}

/* ---- the largest magnitude ---- */

CODEC_TEST(the_largest_magnitude_is_found_anywhere)
{
  for (int l = 0; l < LENGTHS; l++)
    for (int t = 0; t < 2; t++) {
      const int64_t n = lengths[l], places[] = {0, n / 2, n - 1};
      float *x = vector(n);
      assert_true(largest_by(lanes[t], n, x) == most_of(x, n));
      for (int p = 0; p < 3; p++) {
        const float before = x[places[p]];
        x[places[p]] = -3;
        assert_true(largest_by(lanes[t], n, x) == 3);
        x[places[p]] = -INFINITY;
        assert_true(largest_by(lanes[t], n, x) == INFINITY);
        x[(places[p] + n / 3) % n] = -NAN;
        assert_true(isnan(largest_by(lanes[t], n, x)));
        x = vector(n);
        assert_true(x[places[p]] == before);
      }
    }
  assert_true(largest_by(lanes[1], 0, NULL) == 0);
}

CODEC_TEST(all_instruction_sets_find_the_same)
{
  float *x = vector(1025);
  x[1024] = -0x1p-148f;
  for (int v = 0; kernels_variant(v); v++)
    for (int l = 0; l < 4; l++) {
      assert_true(kernels_variant(v)->max_magnitude(lengths[l], x) == most_of(x, lengths[l]));
      assert_true(kernels_variant(v)->max_magnitude(1, x + 1024) == 0x1p-148f);
    }
}

/* ---- messages ---- */

/* The code of an element as it lies in a word of a lane: see rule/quantise.h. */
static int code_at(const char *message, int64_t i)
{
  const int64_t in = i % 256, lane = in % 32, word = in / 32 / 4, byte = in / 32 % 4;
  return (int8_t)message[128 + i / 256 * 256 + (word * 32 + lane) * 4 + byte];
}

/* The least number with a significand of 8 bits that is not less than x. */
static float upper(float x)
{
  int exponent;
  const float significand = frexpf(x, &exponent);
  return ldexpf(ceilf(ldexpf(significand, 8)), exponent - 8);
}

/* Fewer levels if more ranks add up. */
static void check_message(int64_t n, int parts, struct lane *lane)
{
  const struct codec codec = codec_of("int8_global");
  const int64_t bytes = codec.ops->bytes(&codec, n), whole = n * parts;
  float *x = vector(whole);
  const float largest = most_of(x, whole), step = upper(largest / (float)(127 / parts));
  const uint16_t half = (uint16_t)(f32_bits(step) >> 16);
  const struct codec_pass pass = {.lane = lane, .n = n, .parts = parts, .largest = &largest};
  const char *messages = encoded(&codec, &pass, x);
  assert_int_equal(bytes, 128 + (n + 255) / 256 * 256);
  for (int part = 0; part < parts; part++) {
    const char *message = messages + part * bytes;
    const float *out = decoded(&codec, &pass, message);
    assert_memory_equal(message, &half, sizeof half);
    for (int i = sizeof half; i < 128; i++)
      assert_int_equal(message[i], 0);
    for (int64_t i = 0; i < n; i++) {
      const float value = x[part * n + i], code = rintf(value * (1 / step));
      assert_int_equal(code_at(message, i), (int)code);
      assert_true(fabsf(code) <= (float)(127 / parts));
      assert_true(out[i] == code * step);
      assert_true(fabs((double)value - out[i]) <= 0.5001 * step);
    }
  }
}

CODEC_TEST(messages_are_those_of_the_reference)
{
  static const int parts[] = {1, 2, 3, 7, 127};
  for (int p = 0; p < 5; p++)
    for (int l = 0; l < LENGTHS - 1; l++)
      for (int t = 0; t < 2; t++)
        check_message(lengths[l], parts[p], lanes[t]);
}

/* The largest code of each of so many ranks. */
CODEC_TEST(sums_of_codes_fit_into_8_bits)
{
  const struct codec codec = codec_of("int8_global");
  for (int parts = 1; parts <= CODEC_MOST_PARTS; parts++) {
    const float x[2 * CODEC_MOST_PARTS] = {0.7f, -0.7f}, largest = 0.7f;
    const struct codec_pass pass = {.lane = lanes[0], .n = 2, .parts = parts, .largest = &largest};
    const char *messages = encoded(&codec, &pass, x);
    assert_int_equal(code_at(messages, 0), 127 / parts);
    assert_int_equal(code_at(messages, 1), -(127 / parts));
    assert_in_range(parts * code_at(messages, 0), 1, 127);
  }
}

/* ---- edges ---- */

/* The decoded value of all elements of three blocks of x. */
static float decode_with(float largest, float x)
{
  enum { N = 600 };
  const struct codec codec = codec_of("int8_global");
  const struct codec_pass pass = {.lane = lanes[0], .n = N, .parts = 1, .largest = &largest};
  float all[N];
  for (int i = 0; i < N; i++)
    all[i] = x;
  const float *back = decoded(&codec, &pass, encoded(&codec, &pass, all));
  for (int i = 1; i < N; i++)
    assert_memory_equal(&back[i], &back[0], sizeof *back);
  return back[0];
}

/* A value of one rank has its effect on all ranks. */
CODEC_TEST(one_number_that_is_not_finite_spoils_all)
{
  assert_true(isnan(decode_with(INFINITY, 0.5f)));
  assert_true(isnan(decode_with(NAN, 0.5f)));
  assert_true(decode_with(0, 0) == 0);
  assert_true(decode_with(0x1p-140f, 0x1p-140f) == 0); /* a step below the normal numbers */
  const float most = decode_with(0x1.fcp127f, -0x1.fcp127f);
  assert_true(isfinite(most) && most < -0.98f * FLT_MAX);
  /* 127 steps of bf16 are more than the largest float */
  assert_true(isnan(decode_with(FLT_MAX, -FLT_MAX)));
}

TEST_MAIN(start, stop)
