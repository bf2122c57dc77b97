/* Number formats. Oracles: a code's value by the definition of its format (ldexp), for every code;
 * rounding by the midpoints of every pair of neighbours; the compiler's _Float16 where it has one.
 */
#include <math.h>

#include "base/dtype.h"
#include "base/rng.h"
#include "tests/test.h"

struct format {
  enum dtype type;
  int exponent, mantissa;
  uint32_t finite; /* largest finite code */
  int infinity;    /* has one */
};

static uint32_t encode(const struct format *to, float x)
{
  uint32_t code = 0;
  dtype_convert(&code, to->type, &x, DTYPE_F32, 1);
  return code;
}

static float decode(const struct format *from, uint32_t code)
{
  float x;
  dtype_convert(&x, DTYPE_F32, &code, from->type, 1);
  return x;
}

static const struct format formats[] = {
    {DTYPE_BF16, 8, 7, 0x7f7f, 1},
    {DTYPE_F16, 5, 10, 0x7bff, 1},
    {DTYPE_F8_E4M3, 4, 3, 0x7e, 0},
    {DTYPE_F8_E5M2, 5, 2, 0x7b, 1},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static double defined_value(const struct format *f, uint32_t magnitude)
{
  int bias = (1 << (f->exponent - 1)) - 1, exponent = (int)(magnitude >> f->mantissa);
  double mantissa = (double)(magnitude & ((1u << f->mantissa) - 1));
  if (exponent == 0)
    return ldexp(mantissa, 1 - bias - f->mantissa);
  return ldexp(mantissa + ldexp(1, f->mantissa), exponent - bias - f->mantissa);
}

static uint32_t sign_bit(const struct format *f)
{
  return 1u << (f->exponent + f->mantissa);
}

TEST(test_every_code)
{
  for (const struct format *f = formats; f < formats + FORMATS; f++)
    for (uint32_t code = 0; code < 2 * sign_bit(f); code++) {
      uint32_t magnitude = code & (sign_bit(f) - 1);
      float value = decode(f, code);
      assert_int_equal(signbit(value) != 0, code >= sign_bit(f));
      if (magnitude <= f->finite) {
        assert_true((double)fabsf(value) == defined_value(f, magnitude));
        assert_int_equal(encode(f, value), code);
      } else if (f->infinity && magnitude == f->finite + 1) {
        assert_true(isinf(value));
        assert_int_equal(encode(f, value), code);
      } else {
        assert_true(isnan(value));
        uint32_t back = encode(f, value);
        assert_true(isnan(decode(f, back)));
        assert_int_equal(back & sign_bit(f), code & sign_bit(f));
      }
    }
}

/* A NaN whose payload lies in the bits that are dropped must not turn into infinity. */
TEST(test_nan)
{
  static const uint32_t nans[] = {0x7f800001, 0x7fffffff, 0xff800001, 0x7fc00000, 0xffffffff};
  for (const struct format *f = formats; f < formats + FORMATS; f++)
    for (int i = 0; i < 5; i++) {
      float x;
      memcpy(&x, &nans[i], sizeof x);
      uint32_t code = encode(f, x);
      assert_true(isnan(decode(f, code)));
      assert_int_equal((code & sign_bit(f)) != 0, nans[i] >> 31);
    }
}

/* Everything between two neighbours goes to the nearer one, the middle to the even one. */
TEST(test_rounding)
{
  for (const struct format *f = formats; f < formats + FORMATS; f++)
    for (uint32_t code = 0; code < f->finite; code++) {
      float middle = (float)((defined_value(f, code) + defined_value(f, code + 1)) / 2);
      assert_int_equal(encode(f, middle), code + (code & 1));
      assert_int_equal(encode(f, nextafterf(middle, 0)), code);
      assert_int_equal(encode(f, nextafterf(middle, INFINITY)), code + 1);
      assert_int_equal(encode(f, -middle), (code + (code & 1)) | sign_bit(f));
    }
}

TEST(test_overflow)
{
  for (const struct format *f = formats; f < formats + FORMATS; f++) {
    double last = defined_value(f, f->finite), before = defined_value(f, f->finite - 1);
    float middle = (float)(last + (last - before) / 2);
    uint32_t over = f->finite + 1; /* infinity, or e4m3's NaN */
    if (f->finite & 1) {           /* a tie goes to the even code */
      assert_int_equal(encode(f, nextafterf(middle, 0)), f->finite);
      assert_int_equal(encode(f, middle), over);
    } else {
      assert_int_equal(encode(f, middle), f->finite);
      assert_int_equal(encode(f, nextafterf(middle, INFINITY)), over);
    }
    assert_int_equal(encode(f, 3.4028235e38f), over);
    assert_int_equal(encode(f, INFINITY), over);
    assert_int_equal(encode(f, -INFINITY), over | sign_bit(f));
  }
}

TEST(test_tiny)
{
  for (const struct format *f = formats; f < formats + FORMATS; f++) {
    float half = (float)(defined_value(f, 1) / 2);
    assert_int_equal(encode(f, 0.0f), 0);
    assert_int_equal(encode(f, -0.0f), sign_bit(f));
    assert_int_equal(encode(f, half), 0);
    assert_int_equal(encode(f, nextafterf(half, 1)), 1);
    if (f->type != DTYPE_BF16)
      assert_int_equal(encode(f, 1e-45f), 0);
  }
}

#ifdef __FLT16_MAX__
TEST(test_f16_against_compiler)
{
  struct rng_key key = rng_key_make(1, "test");
  for (uint64_t i = 0; i < 300000; i++) {
    uint32_t words[4];
    float x;
    _Float16 expected;
    uint16_t bits;
    rng_block(key, 0, i, words);
    words[0] = (words[0] & 0x8fffffff) |
               (words[1] & 1 ? 0x30000000 : 0x40000000); /* around fp16's range */
    memcpy(&x, &words[0], sizeof x);
    expected = (_Float16)x;
    memcpy(&bits, &expected, sizeof bits);
    assert_int_equal(f16_from_f32(x), bits);
  }
}
#else
static void test_f16_against_compiler(void **state)
{
  (void)state;
  skip();
}
#endif

/* Oracle: the scalar conversions, element by element. */
static void convert_and_compare(enum dtype from, enum dtype to, size_t n)
{
  static uint32_t src[3000], dst[3001], wide[3000], back[3000];
  struct rng_key key = rng_key_make(2, "test");
  for (size_t i = 0; i < n; i++) {
    float x;
    rng_fill_normal(key, 0, i, 1, 0, 30, &x);
    memcpy(&wide[i], &x, sizeof x);
  }
  memset(dst, 0xa5, sizeof dst);
  dtype_convert(src, from, wide, DTYPE_F32, n);
  dtype_convert(dst, to, src, from, n);
  assert_int_equal(((unsigned char *)dst)[n * dtype_size(to)], 0xa5);
  dtype_convert(wide, DTYPE_F32, src, from, n);
  for (size_t i = 0; i < n; i++) {
    float x;
    memcpy(&x, &wide[i], sizeof x);
    uint32_t code;
    memcpy(&code, &x, sizeof code);
    for (const struct format *f = formats; f < formats + FORMATS; f++)
      if (f->type == to)
        code = encode(f, x);
    memcpy((char *)back + i * dtype_size(to), &code, dtype_size(to));
  }
  assert_memory_equal(dst, back, n * dtype_size(to));
}

TEST(test_convert)
{
  static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3,
                                     DTYPE_F8_E5M2};
  static const size_t lengths[] = {0, 1, 1023, 1024, 1025, 3000};
  for (int from = 0; from < 5; from++)
    for (int to = 0; to < 5; to++)
      for (int length = 0; length < 6; length++)
        convert_and_compare(types[from], types[to], lengths[length]);
}

TEST(test_names)
{
  static const size_t sizes[DTYPE_COUNT] = {4, 2, 2, 1, 1, 8, 4, 1, 2, 4, 8, 8, 68};
  for (int type = 0; type < DTYPE_COUNT; type++)
    assert_int_equal(dtype_size((enum dtype)type), sizes[type]);
  assert_string_equal(dtype_name(DTYPE_BF16), "bf16");
  assert_int_equal(dtype_size(DTYPE_COUNT), 0);
}

/* A block8 has 64 codes of 8 bits and an fp32 scale. The last block may be incomplete. */
TEST(bytes_are_those_of_whole_blocks)
{
  for (int64_t n = 0; n <= 200; n++) {
    assert_int_equal(dtype_bytes(DTYPE_BF16, n), 2 * n);
    assert_int_equal(dtype_bytes(DTYPE_BLOCK8, n), (n + 63) / 64 * (64 + 4));
  }
  assert_int_equal(dtype_bytes(DTYPE_BLOCK8, (int64_t)64 << 40), (int64_t)68 << 40);
}

TEST_MAIN(NULL, NULL)
