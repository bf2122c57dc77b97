/* NormalFloat4 on the host device. Oracle: codes, magnitudes and values that bitsandbytes makes
 * (tests/fixtures/make_nf4.py), byte for byte. */
#include "base/append.h"
#include "base/hash.h"
#include "compress/rule/nf4.h"
#include "fixture.h"

enum { MOST = 40000 };

static void expect_bytes(const char *name, const char *what, const void *bytes, int64_t n,
                         const char *want)
{
  char text[600] = "";
  if (n > 256)
    snprintf(text, sizeof text, "fnv:%016" PRIx64, hash_bytes(HASH_START, bytes, (size_t)n));
  for (int64_t i = 0; i < n && n <= 256; i++)
    append_text(text, sizeof text, "%02x", ((const uint8_t *)bytes)[i]);
  if (strcmp(text, want) != 0)
    fail_msg("%s: %s are %s, not %s", name, what, text, want);
}

/* "lcg:SEED:EXPONENT", or the bytes in hexadecimal. */
static void read_vector(const char *text, int64_t n, float *x)
{
  uint32_t seed;
  int exponent;
  if (sscanf(text, "lcg:%" SCNu32 ":%d", &seed, &exponent) == 2) {
    for (int64_t i = 0; i < n; i++) {
      seed = seed * 747796405 + 2891336453;
      x[i] = ldexpf((float)((int32_t)(seed >> 8) - (1 << 23)), exponent - 23);
    }
    return;
  }
  assert_int_equal(strlen(text), 8 * n);
  for (int64_t i = 0; i < 4 * n; i++) {
    unsigned byte;
    assert_int_equal(sscanf(text + 2 * i, "%2x", &byte), 1);
    ((uint8_t *)x)[i] = (uint8_t)byte;
  }
}

/* Blocks of 64 begin anywhere, so the message of a part is a part of the message. */
static void check_part(const struct codec *codec, struct codec_pass pass, const float *x,
                       const char *message)
{
  const int64_t n = pass.n, begin = pass.n / 3 / NF4_BLOCK * NF4_BLOCK;
  pass.n -= begin;
  char *part = guarded(nf4_bytes(pass.n));
  must(codec->ops->encode(codec, &pass, x + begin, part));
  assert_memory_equal(part, message + begin / 2, (size_t)(pass.n + 1) / 2);
  assert_memory_equal(part + nf4_code_bytes(pass.n),
                      message + nf4_code_bytes(n) + begin / NF4_BLOCK * 4,
                      (size_t)nf4_blocks(pass.n) * 4);
}

static void check_row(const struct codec *codec, struct lane *lane, char *field[7])
{
  static float x[MOST];
  const int64_t n = strtoll(field[1], NULL, 10), bytes = nf4_bytes(n);
  const struct codec_pass pass = {.lane = lane, .n = n, .parts = 1}, twice = {lane, n, 2};
  read_vector(field[2], n, x);
  char *message = guarded(2 * bytes), *values = guarded(8 * n);
  must(codec->ops->encode(codec, &pass, x, message));
  expect_bytes(field[0], "codes", message, (n + 1) / 2, field[3]);
  expect_bytes(field[0], "magnitudes", message + nf4_code_bytes(n), nf4_blocks(n) * 4, field[4]);
  for (int64_t i = nf4_code_bytes(n) + nf4_blocks(n) * 4; i < bytes; i++)
    assert_int_equal(message[i], 0);
  check_part(codec, pass, x, message);
  must(codec->ops->decode(codec, &pass, message, bytes, QUANT_SET, DTYPE_BF16, values));
  expect_bytes(field[0], "values in bf16", values, 2 * n, field[6]);
  memcpy(message + bytes, message, (size_t)bytes);
  must(codec->ops->decode(codec, &twice, message, bytes, QUANT_SET_EACH, DTYPE_F32, values));
  expect_bytes(field[0], "values in fp32", values, 4 * n, field[5]);
  expect_bytes(field[0], "values of the second message", values + 4 * n, 4 * n, field[5]);
}

CODEC_TEST(bits_are_those_of_bitsandbytes)
{
  char path[512], line[4096], *field[7], *save;
  int rows = 0;
  const char *top = getenv("top_srcdir");
  snprintf(path, sizeof path, "%s/tests/compress/nf4.txt", top ? top : ".");
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  struct codec codec;
  must(codec_make_frozen("nf4", &codec));
  while (fgets(line, sizeof line, file)) {
    if (*line == '#')
      continue;
    for (int f = 0; f < 7; f++)
      assert_non_null(field[f] = strtok_r(f ? NULL : line, " \n", &save));
    for (int lane = 0; lane < 2; lane++)
      check_row(&codec, lanes[lane], field);
    rows++;
  }
  fclose(file);
  assert_int_equal(rows, 15);
}

/* It is for frozen parameters alone. */
CODEC_TEST(vectors_are_not_added)
{
  struct codec codec;
  float out[NF4_BLOCK];
  char message[256] = {0};
  must(codec_make_frozen("nf4", &codec));
  const struct codec_pass two = {lanes[0], 32, 2};
  must_fail(codec.ops->decode(&codec, &two, message, 128, QUANT_SET, DTYPE_F32, out),
            STATUS_UNSUPPORTED, "vectors that are not summed");
  must_fail(codec_make("nf4", NULL, false, &codec), STATUS_USAGE, "there is no codec 'nf4'");
  must_fail(codec_make_frozen("int5", &codec), STATUS_USAGE, "there is no codec 'int5'");
}

TEST_MAIN(start, stop)
