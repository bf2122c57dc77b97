/* int8_global, whose messages have one scale for all ranks, and the largest magnitude that it
 * needs. Oracles: a loop over elements with functions of the C library; bounds that make sums of
 * codes fit into 8 bits; messages decoded one by one. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "compress/compress.h"
#include "device/device.h"
#include "device/host/kernels.h"
#include "device/lane.h"
#include "device/rounding.h"
#include "fixture.h"

static const int64_t lengths[] = {1, 31, 256, 1025, 200003};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static struct codec global(void)
{
  struct codec codec;
  assert_int_equal(codec_make("int8_global", NULL, false, &codec), STATUS_OK);
  return codec;
}

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
  assert_int_equal(device->ops->max_magnitude(lane, n, x, &out), STATUS_OK);
  return out;
}

/* ---- the largest magnitude ---- */

TEST(the_largest_magnitude_is_found_anywhere)
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
        release(x, n * 4);
        x = vector(n);
        assert_true(x[places[p]] == before);
      }
      release(x, n * 4);
    }
  assert_true(largest_by(lanes[1], 0, NULL) == 0);
}

TEST(all_instruction_sets_find_the_same)
{
  float *x = vector(1025);
  x[1024] = -0x1p-148f;
  for (int v = 0; kernels_variant(v); v++)
    for (int l = 0; l < 4; l++) {
      assert_true(kernels_variant(v)->max_magnitude(lengths[l], x) == most_of(x, lengths[l]));
      assert_true(kernels_variant(v)->max_magnitude(1, x + 1024) == 0x1p-148f);
    }
  release(x, 1025 * 4);
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
  const struct codec codec = global();
  const int64_t bytes = codec.ops->bytes(&codec, n), whole = n * parts;
  float *x = vector(whole), *out = guarded(n * 4);
  const float largest = most_of(x, whole), step = upper(largest / (float)(127 / parts));
  const uint16_t half = (uint16_t)(quant_bits(step) >> 16);
  const struct codec_pass pass = {.lane = lane, .n = n, .parts = parts, .largest = &largest};
  char *messages = guarded(parts * bytes);
  assert_int_equal(bytes, 128 + (n + 255) / 256 * 256);
  assert_int_equal(codec.ops->encode(&codec, &pass, x, messages), STATUS_OK);
  for (int part = 0; part < parts; part++) {
    const char *message = messages + part * bytes;
    const struct codec_pass one = {.lane = lane, .n = n, .parts = 1};
    assert_memory_equal(message, &half, sizeof half);
    for (int i = sizeof half; i < 128; i++)
      assert_int_equal(message[i], 0);
    assert_int_equal(codec.ops->decode_sum(&codec, &one, message, bytes, false, out), STATUS_OK);
    for (int64_t i = 0; i < n; i++) {
      const float value = x[part * n + i], code = rintf(value * (1 / step));
      assert_int_equal(code_at(message, i), (int)code);
      assert_true(fabsf(code) <= (float)(127 / parts));
      assert_true(out[i] == code * step);
      assert_true(fabs((double)value - out[i]) <= 0.5001 * step);
    }
  }
  release(messages, parts * bytes);
  release(out, n * 4);
  release(x, whole * 4);
}

TEST(messages_are_those_of_the_reference)
{
  static const int parts[] = {1, 2, 3, 7, 127};
  for (int p = 0; p < 5; p++)
    for (int l = 0; l < LENGTHS - 1; l++)
      for (int t = 0; t < 2; t++)
        check_message(lengths[l], parts[p], lanes[t]);
}

/* The largest code of each of so many ranks. */
TEST(sums_of_codes_fit_into_8_bits)
{
  const struct codec codec = global();
  for (int parts = 1; parts <= CODEC_MOST_PARTS; parts++) {
    const float x[2 * CODEC_MOST_PARTS] = {0.7f, -0.7f}, largest = 0.7f;
    const struct codec_pass pass = {.lane = lanes[0], .n = 2, .parts = parts, .largest = &largest};
    const int64_t bytes = codec.ops->bytes(&codec, 2);
    char *messages = guarded(parts * bytes);
    assert_int_equal(codec.ops->encode(&codec, &pass, x, messages), STATUS_OK);
    assert_int_equal(code_at(messages, 0), 127 / parts);
    assert_int_equal(code_at(messages, 1), -(127 / parts));
    assert_in_range(parts * code_at(messages, 0), 1, 127);
    release(messages, parts * bytes);
  }
}

/* ---- edges ---- */

/* The decoded values of three blocks of x. */
static void decode_with(float largest, float x, float *out)
{
  enum { N = 600 };
  const struct codec codec = global();
  const struct codec_pass pass = {.lane = lanes[0], .n = N, .parts = 1, .largest = &largest};
  const int64_t bytes = codec.ops->bytes(&codec, N);
  float *all = guarded(N * 4), *back = guarded(N * 4);
  char *message = guarded(bytes);
  for (int i = 0; i < N; i++)
    all[i] = x;
  codec.ops->encode(&codec, &pass, all, message);
  codec.ops->decode_sum(&codec, &pass, message, bytes, false, back);
  for (int i = 1; i < N; i++)
    assert_memory_equal(&back[i], &back[0], sizeof *back);
  *out = back[0];
  release(message, bytes);
  release(all, N * 4);
  release(back, N * 4);
}

/* A value of one rank has its effect on all ranks. */
TEST(one_number_that_is_not_finite_spoils_all)
{
  float out;
  const float bad[] = {INFINITY, NAN};
  for (int b = 0; b < 2; b++) {
    decode_with(bad[b], 0.5f, &out);
    assert_true(isnan(out));
  }
  decode_with(0, 0, &out);
  assert_true(out == 0);
  decode_with(0x1p-140f, 0x1p-140f, &out); /* a step below the normal numbers */
  assert_true(out == 0);
  decode_with(0x1.fcp127f, -0x1.fcp127f, &out);
  assert_true(isfinite(out) && out < -0.98f * FLT_MAX);
  decode_with(FLT_MAX, -FLT_MAX, &out); /* 127 steps of bf16 are more than the largest float */
  assert_true(isnan(out));
}

TEST_MAIN(start, stop)
