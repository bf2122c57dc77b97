/* The loops over a row. Oracles: every variant that this processor runs is bitwise identical to the
 * plain one. The variants differ in vector width, and have one order of operations. Lengths and
 * addresses are odd. The functions of the C library in fp64 bound the error. */
#include "fixture.h"

#include <math.h>

#include "device/host/host.h"

static const int64_t lengths[] = {1, 5, 15, 16, 17, 40, 64, 101, 768, 2100};
enum { LENGTHS = sizeof lengths / sizeof lengths[0], MOST = 2100, ROWS = 7 };

/* Odd offsets: vectors must not count on alignment. */
struct material {
  float *x, *y, *bias;
};
struct result {
  float a[MOST + 3], b[MOST + 3], sums[MOST + 3], s[MOST + 3], dp[MOST + 3], logits[MOST + 3],
      scalar[4];
  double wide[2];
};

/* Kernels whose own tests do not compare instruction sets. */
static void run_all(const struct kernels *k, int64_t n, const struct material *in,
                    struct result *out)
{
  const size_t row = (size_t)n * sizeof(float);
  memset(out, 0, sizeof *out);
  out->scalar[0] = k->dot(n, in->x, in->y);
  out->wide[0] = k->sum_squares(n, in->x);
  memcpy(out->a + 1, in->x, row);
  k->scale(n, 0.3f, out->a + 1);
  k->add(n, out->a + 1, in->y, out->a + 1);
  k->bias_gelu(n, in->bias, out->b + 1, out->a + 1);
  k->dgelu(n, in->y, out->b + 1);
  k->column_sums(ROWS, n, n, in->x, false, out->sums + 1);
  k->column_sums(ROWS, n, n, in->y, true, out->sums + 1);
  memcpy(out->s + 1, in->x, row);
  out->scalar[2] = -INFINITY;
  out->scalar[1] = k->softmax(n, out->s + 1, &out->scalar[2]);
  memcpy(out->s + 1, in->x, row);
  memcpy(out->dp + 1, in->y, row);
  k->softmax_backward(n, 3.5f, 0.25f, out->s + 1, out->dp + 1);
  memcpy(out->logits + 1, in->y, row);
  out->wide[1] = k->log_sum_exp(n, false, 0, out->logits + 1);
  out->scalar[3] =
      (float)(out->wide[1] - k->log_sum_exp(n, true, 0.01f, out->logits + 1)); /* with the gradient,
                                                                                  too */
}

DEVICE_TEST(variants_give_the_same_bits)
{
  const struct material in = {normals(ROWS * MOST + 1, 3) + 1, normals(ROWS * MOST + 1, 5) + 1,
                              normals(MOST + 1, 1) + 1};
  struct result *plain = bytes(sizeof *plain), *other = bytes(sizeof *other);
  for (int l = 0; l < LENGTHS; l++) {
    run_all(kernels_variant(0), lengths[l], &in, plain);
    assert_true(plain->scalar[3] == 0);
    for (int v = 1; kernels_variant(v); v++) {
      run_all(kernels_variant(v), lengths[l], &in, other);
      assert_same_bits(plain, other, sizeof *plain);
    }
  }
}

DEVICE_TEST(variants_are_listed_from_plain_to_best)
{
  int n = 0;
  assert_string_equal(kernels_variant(0)->name, "generic");
  while (kernels_variant(n))
    n++;
  assert_ptr_equal(kernels_variant(n - 1), kernels_best());
  assert_null(kernels_variant(n + 5));
  assert_ptr_equal(((struct host_device *)device)->kernels, kernels_best());
  print_message("this processor runs: %s\n", kernels_best()->name);
}

/* Every 16-bit code; fp32 around every one of them, whose upper half is one, where numbers are
 * exact, tie, or nearly so in bf16 and in fp16. */
DEVICE_TEST(conversions_are_those_of_dtype)
{
  static const uint32_t low[] = {0,      1,      0xfff,  0x1000, 0x1001, 0x2000,
                                 0x3000, 0x5000, 0x7fff, 0x8000, 0x8001, 0xffff};
  enum { CODES = 1 << 16, LOW = sizeof low / sizeof low[0], WORDS = CODES * LOW };
  static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
  uint16_t *codes = bytes(CODES * sizeof *codes), *got_codes = bytes((WORDS + 1) * sizeof *codes),
           *want_codes = bytes(WORDS * sizeof *codes);
  uint32_t *words = bytes(WORDS * sizeof *words);
  float *got = nans(CODES + 1), *want = nans(CODES);
  for (uint32_t i = 0; i < WORDS; i++)
    words[i] = i / LOW << 16 | low[i % LOW];
  for (uint32_t i = 0; i < CODES; i++)
    codes[i] = (uint16_t)i;
  for (int v = 0; kernels_variant(v); v++)
    for (int t = 0; t < 2; t++) {
      const struct kernels *k = kernels_variant(v);
      dtype_convert(want, DTYPE_F32, codes, types[t], CODES);
      k->convert(CODES - 1, types[t], codes, DTYPE_F32, got + 1);
      k->convert(1, types[t], codes + CODES - 1, DTYPE_F32, got + CODES);
      assert_same_bits(got + 1, want, CODES * sizeof *got);
      dtype_convert(want_codes, types[t], words, DTYPE_F32, WORDS);
      k->convert(WORDS, DTYPE_F32, words, types[t], got_codes + 1);
      assert_same_bits(got_codes + 1, want_codes, WORDS * sizeof *codes);
      k->convert(CODES, types[t], codes, types[1 - t], got_codes);
      dtype_convert(want_codes, types[1 - t], want, DTYPE_F32, CODES);
      assert_same_bits(got_codes, want_codes, CODES * sizeof *codes);
    }
}

/* On a boundary of a cache line and next to it. Bytes after the array do not change. */
DEVICE_TEST(sums_around_the_caches_are_sums)
{
  float line[MOST + 2] __attribute__((aligned(64)));
  const float *a = normals(MOST, 1), *b = normals(MOST, 1);
  for (int v = 0; kernels_variant(v); v++)
    for (int l = 0; l < LENGTHS; l++)
      for (int off = 0; off < 2; off++) {
        const int64_t n = lengths[l];
        memset(line, 0xff, sizeof line);
        kernels_variant(v)->add_around(n, a, b, line + off);
        for (int64_t i = 0; i < n; i++)
          assert_true(line[off + i] == a[i] + b[i]);
        assert_true(isnan(line[off + n]) && (off == 0 || isnan(line[0])));
      }
}

/* exp alone: the softmax of (x, 0) with x <= 0 leaves e^x in place of x. 1.5 units in the last
 * place are 1.8e-7. */
DEVICE_TEST(exponential_is_close)
{
  for (int v = 0; kernels_variant(v); v++)
    for (int i = 0; i <= 87000; i++) {
      float x[2] = {(float)(-i * 1e-3), 0}, max = -INFINITY, exact = x[0];
      float sum = kernels_variant(v)->softmax(2, x, &max);
      if (!(fabs(x[0] - exp(exact)) <= 1.8e-7 * exp(exact)))
        fail_msg("exp(%.9g) is %.9g, not %.9g", (double)exact, (double)x[0], exp(exact));
      assert_true(max == 0 && x[1] == 1 && sum == x[0] + 1);
    }
}

DEVICE_TEST(exponential_ends_in_zero_and_keeps_nan)
{
  for (int v = 0; kernels_variant(v); v++) {
    const struct kernels *k = kernels_variant(v);
    float x[4] = {0, -88, -1e30f, -INFINITY}, max = -INFINITY;
    assert_true(k->softmax(4, x, &max) == 1);
    assert_true(x[0] == 1 && x[1] == 0 && x[2] == 0 && x[3] == 0);
    for (int at = 0; at < 40; at++) { /* a NaN anywhere reaches the sum: a run must see it */
      float y[40] = {0};
      max = -INFINITY;
      y[at] = NAN;
      assert_true(isnan(k->softmax(40, y, &max)));
      float z[40] = {0};
      z[at] = INFINITY;
      assert_true(isnan(k->log_sum_exp(40, false, 0, z)));
    }
  }
}

DEVICE_TEST(gelu_is_close_and_survives_large_arguments)
{
  for (int v = 0; kernels_variant(v); v++)
    for (double at = -12; at <= 12; at += 1e-3) {
      float zero = 0, aux, c = (float)at, slope = 1;
      kernels_variant(v)->bias_gelu(1, &zero, &aux, &c);
      kernels_variant(v)->dgelu(1, &aux, &slope);
      double x = aux, u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), s = 1 / (1 + exp(-2 * u));
      /* relative, as far out as the exponential reaches: an error of u of e in z = 2 u is one of e
       * z in the sigmoid */
      double tolerance = 4e-7 + 2e-7 * fabs(2 * u);
      if (fabs(2 * u) < 86) {
        assert_true(fabs(c - x * s) <= tolerance * fabs(x * s));
      } else {
        assert_true(fabs(c - x * s) <= 1e-36 + 1e-7 * fabs(x) * s);
      }
      assert_true(
          fabs(slope - (s + x * s * (1 - s) * 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x))) <=
          2e-6); /* of a function between -0.13 and 1.13 */
    }
  for (int v = 0; kernels_variant(v); v++) {
    float zero = 0, aux, big = 1e18f, small = -1e18f, nan = NAN;
    kernels_variant(v)->bias_gelu(1, &zero, &aux, &big);
    assert_true(big == 1e18f);
    kernels_variant(v)->bias_gelu(1, &zero, &aux, &small);
    assert_true(fabsf(small) < 1e-15f);
    kernels_variant(v)->bias_gelu(1, &zero, &aux, &nan);
    assert_true(isnan(nan));
  }
}

DEVICE_TEST(softmax_goes_on_from_an_earlier_maximum)
{
  for (int v = 0; kernels_variant(v); v++) {
    float x[3] = {1, 2, 3}, y[3] = {1, 2, 3}, low = 2, high = 5;
    float sum = kernels_variant(v)->softmax(3, x, &low);
    assert_true(low == 3 && x[2] == 1);
    assert_true(fabs(sum - (1 + exp(-1) + exp(-2))) <= 1e-6);
    sum = kernels_variant(v)->softmax(3, y, &high);
    assert_true(high == 5);
    assert_true(fabs(sum - (exp(-2) + exp(-3) + exp(-4))) <= 1e-6);
  }
}

TEST_MAIN(fixture_create, fixture_destroy)
