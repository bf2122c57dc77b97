/* Quantisers on the host device. Oracles: a scalar reference, written element by element from the
 * description in compress/rule/quantise.h, with functions of the C library. Error bounds and means
 * over seeds. Sums of messages that were decoded one by one. */
#include <float.h>
#include <math.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "compress/compress.h"
#include "device/device.h"
#include "device/host/kernels.h"
#include "device/lane.h"
#include "device/rounding.h"
#include "fixture.h"

enum { PARTS = 2, SEED = 77, LANES_OF_BLOCK = 32 };

struct scales {
  float at[2];
};

/* ---- the reference of each rule ---- */

/* Per lane in ascending order, then halves of the lanes. */
static float lane_sum(const float *term, int64_t n)
{
  float lane[LANES_OF_BLOCK] = {0};
  for (int64_t i = 0; i < n; i++)
    lane[i % LANES_OF_BLOCK] += term[i];
  for (int width = LANES_OF_BLOCK / 2; width > 0; width /= 2)
    for (int l = 0; l < width; l++)
      lane[l] += lane[l + width];
  return lane[0];
}

static float most_of(const float *x, int64_t n)
{
  float most = 0;
  for (int64_t i = 0; i < n; i++)
    most = fmaxf(most, fabsf(x[i]));
  return most;
}

/* The sum over elements of this sign of their magnitudes, and how many there are. */
static float sum_of_sign(const float *x, int64_t n, bool negative, int *count)
{
  static float term[QUANT_MOST_BLOCK];
  *count = 0;
  for (int64_t i = 0; i < n; i++) {
    *count += (x[i] < 0) == negative;
    term[i] = (x[i] < 0) == negative ? fabsf(x[i]) : 0;
  }
  return lane_sum(term, n);
}

/* x with a significand of 8 bits, by a rounding function of the C library. */
static float rounded(float x, float (*round)(float))
{
  int exponent;
  const float significand = frexpf(x, &exponent);
  return ldexpf(round(ldexpf(significand, 8)), exponent - 8);
}

static struct scales by_steps(float size, float most)
{
  const float step = rounded(size / most, ceilf);
  return (struct scales){{step < FLT_MIN ? 0 : step}};
}

static struct scales qsgd_ref(const float *x, int64_t n)
{
  static float term[QUANT_MOST_BLOCK];
  for (int64_t i = 0; i < n; i++)
    term[i] = x[i] * x[i];
  return by_steps(sqrtf(lane_sum(term, n)), 127);
}

static struct scales natural_ref(const float *x, int64_t n)
{
  const float most = most_of(x, n);
  return (struct scales){{most < FLT_MIN ? 0 : ldexpf(1, ilogbf(most))}};
}

static struct scales onebit_ref(const float *x, int64_t n)
{
  int others, negatives;
  const float sum = sum_of_sign(x, n, false, &others), less = sum_of_sign(x, n, true, &negatives);
  return (struct scales){{others ? rounded(sum / (float)others, rintf) : 0,
                          negatives ? rounded(less / (float)negatives, rintf) : 0}};
}

static struct scales signsgd_ref(const float *x, int64_t n)
{
  static float term[QUANT_MOST_BLOCK];
  for (int64_t i = 0; i < n; i++)
    term[i] = fabsf(x[i]);
  return (struct scales){{rounded(lane_sum(term, n) / (float)n, rintf)}};
}

/* x in steps. */
static float in_steps(float x, const struct scales *s)
{
  return s->at[0] > 0 ? x * (1 / s->at[0]) : 0;
}

static float integer_number(float x, const struct scales *s, uint32_t bits)
{
  (void)bits;
  return rintf(in_steps(x, s));
}

/* To nearest even, with subnormals below 2^least. */
static float minifloat(float x, int mantissa, int least)
{
  const int exponent = x == 0 ? least : ilogbf(x);
  const float last = ldexpf(1, (exponent < least ? least : exponent) - mantissa);
  return rintf(x / last) * last;
}

static float e4m3_number(float x, const struct scales *s, uint32_t bits)
{
  (void)bits;
  return minifloat(in_steps(x, s), 3, -6);
}

static float e5m2_number(float x, const struct scales *s, uint32_t bits)
{
  (void)bits;
  return minifloat(in_steps(x, s), 2, -14);
}

static float qsgd_number(float x, const struct scales *s, uint32_t bits)
{
  const double steps = rint(in_steps(x, s) * 0x1p14) + (bits >> 2);
  return (float)fmax(fmin(floor(steps / 0x1p14), 127), -127);
}

/* In units of the block's largest power of two. */
static float natural_number(float x, const struct scales *s, uint32_t bits)
{
  if (s->at[0] == 0 || x == 0)
    return 0;
  const int exponent = ilogbf(x);
  const double down = ldexp(1, exponent), rest = fabs((double)x) / down - 1;
  const bool up = rest + (bits + 0.5) / 0x1p16 >= 1;
  const double units = ldexp(up ? 2 : 1, exponent) / s->at[0];
  return units < 0x1p-125 ? 0 : copysignf((float)units, x);
}

static float sign_number(float x, const struct scales *s, uint32_t bits)
{
  (void)s, (void)bits;
  return x < 0 ? -1 : 1;
}

/* Bounds of |x - decoded|. */
static double half_step(float x, const struct scales *s)
{
  (void)x;
  return 0.5001 * s->at[0];
}

/* Half of the last place: 4 bits of significand, or the least subnormal. */
static double e4m3_bound(float x, const struct scales *s)
{
  return fmax(fabs((double)x) / 16, s->at[0] * 0x1p-10) * 1.0001;
}

static double e5m2_bound(float x, const struct scales *s)
{
  return fmax(fabs((double)x) / 8, s->at[0] * 0x1p-17) * 1.0001;
}

static double whole_step(float x, const struct scales *s)
{
  (void)x;
  return 1.0001 * s->at[0];
}

static double own_size(float x, const struct scales *s)
{
  return fmax(fabs((double)x), s->at[0] * 0x1p-125);
}

static double sign_bound(float x, const struct scales *s)
{
  return fmax(fabs((double)x), fmax(s->at[0], s->at[1]));
}

static const struct rule {
  const char *name;
  int each, scales, block; /* each: codes in a word */
  unsigned traits;
  float most;                                           /* steps of the largest magnitude, or 0 */
  struct scales (*scale_by)(const float *x, int64_t n); /* if it is 0 */
  float (*number)(float x, const struct scales *s, uint32_t bits); /* that the code means */
  double (*bound)(float x, const struct scales *s);
} rules[] = {
    {"int8", 4, 1, 256, 0, 127, NULL, integer_number, half_step},
    {"int4", 8, 1, 64, 0, 7, NULL, integer_number, half_step},
    {"levels9", 10, 1, 32, 0, 4, NULL, integer_number, half_step},
    {"levels7", 11, 1, 32, 0, 3, NULL, integer_number, half_step},
    {"e4m3", 4, 1, 256, 0, 448, NULL, e4m3_number, e4m3_bound},
    {"e5m2", 4, 1, 256, 0, 57344, NULL, e5m2_number, e5m2_bound},
    {"qsgd", 4, 1, 256, CODEC_UNBIASED, 0, qsgd_ref, qsgd_number, whole_step},
    {"natural", 4, 1, 256, CODEC_UNBIASED, 0, natural_ref, natural_number, own_size},
    {"signsgd", 32, 1, 1024, CODEC_VOTE, 0, signsgd_ref, sign_number, sign_bound},
    {"onebit", 32, 2, 1024, 0, 0, onebit_ref, sign_number, sign_bound},
    {"hadamard_int4", 8, 1, 256, 0, 0, NULL, NULL, NULL},
};
enum { RULES = sizeof rules / sizeof rules[0], REFERENCES = RULES - 1, ROTATED = RULES - 1 };

static struct scales scale_of(const struct rule *rule, const float *x, int64_t n)
{
  return rule->most > 0 ? by_steps(most_of(x, n), rule->most) : rule->scale_by(x, n);
}

static const int64_t lengths[] = {1, 33, 256, 1025, 9000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

/* ---- fixtures ---- */

/* Numbers of both signs over 12 binary orders of magnitude, zeros among them. */
static float number(int64_t i)
{
  const uint32_t h = rounding_bits(5, i);
  return h % 37 == 0 ? 0 : ((float)(h >> 8) - 8388608.0f) * ldexpf(1, (int)(h % 12) - 30);
}

static float *vector(int64_t n, int64_t from)
{
  float *x = guarded(n * 4);
  for (int64_t i = 0; i < n; i++)
    x[i] = number(from + i);
  return x;
}

/* ---- layout of a message ---- */

static int64_t blocks_of(const struct codec *codec, int64_t n)
{
  return (n + codec->set.block - 1) / codec->set.block;
}

static bool has_frames(const struct rule *rule)
{
  return strncmp(rule->name, "levels", 6) == 0 || strcmp(rule->name, "int4") == 0;
}

/* The fewest blocks that have whole words of each lane. */
static int64_t frame_of(const struct codec *codec, const struct rule *rule)
{
  int64_t frame = codec->set.block;
  while (frame % (rule->each * (int64_t)LANES_OF_BLOCK) != 0)
    frame += codec->set.block;
  return frame;
}

static int64_t codes_begin(const struct codec *codec, const struct rule *rule, int64_t n)
{
  return (blocks_of(codec, n) * rule->scales * 2 + 127) / 128 * 128;
}

static struct scales scales_at(const struct codec *codec, const struct rule *rule, int64_t n,
                               const char *message, int64_t block)
{
  struct scales s = {{0}};
  for (int k = 0; k < rule->scales; k++)
    memcpy((char *)&s.at[k] + 2, message + (k * blocks_of(codec, n) + block) * 2, 2);
  return s;
}

/* ---- messages ---- */

/* Elements i and i + 32 share a word, if i / 32 is even. A lane's words are those of PCG's linear
 * congruential generator. */
static uint32_t random_bits(int64_t first, int64_t i)
{
  uint32_t state = rounding_bits(SEED, first + i % QUANT_LANES);
  for (int64_t pair = i / QUANT_LANES / 2; pair > 0; pair--)
    state = state * 747796405u + 2891336453u;
  const uint32_t high = state >> 16, low = (state & 0xffff) ^ high;
  return i / QUANT_LANES % 2 ? high : low;
}

/* Each element of a block against the reference. */
static void check_block(const struct rule *rule, const struct codec *codec, int64_t n, int64_t m,
                        const char *message, int64_t part, int64_t block, const float *x,
                        const float *out)
{
  const struct scales s = scales_at(codec, rule, n, message, block), want = scale_of(rule, x, m);
  const int64_t first = (part * blocks_of(codec, n) + block) * codec->set.block;
  assert_memory_equal(&s, &want, sizeof s);
  for (int64_t i = 0; i < m; i++) {
    const float code = rule->number(x[i], &s, random_bits(first, i));
    const float value = code * s.at[rule->scales > 1 && code < 0];
    assert_true(out[i] == value);
    assert_true(fabs((double)x[i] - out[i]) <= rule->bound(x[i], &s));
  }
}

static void check_messages(const struct rule *rule, int64_t block, int64_t n, struct lane *lane)
{
  const struct codec codec = codec_of("%s block=%" PRId64, rule->name, block);
  const struct codec_pass pass = pass_of(&codec, lane, n, PARTS, SEED);
  const int64_t bytes = codec.ops->bytes(&codec, n), blocks = blocks_of(&codec, n),
                codes = codes_begin(&codec, rule, n), frame = frame_of(&codec, rule),
                frames = (n + frame - 1) / frame;
  float *x = vector(PARTS * n, block);
  char *messages = encoded(&codec, &pass, x);
  assert_int_equal(bytes, codes + frames * frame / rule->each * 4);
  for (int part = 0; part < PARTS; part++) {
    const char *message = messages + part * bytes;
    float *out = decoded(&codec, &pass, message);
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t at = b * codec.set.block, left = n - at,
                    m = left < codec.set.block ? left : codec.set.block;
      check_block(rule, &codec, n, m, message, part, b, x + part * n + at, out + at);
    }
    for (int64_t i = blocks * rule->scales * 2; i < codes; i++)
      assert_int_equal(message[i], 0);
  }
}

CODEC_TEST(messages_are_those_of_the_reference)
{
  for (int r = 0; r < REFERENCES; r++)
    for (int l = 0; l < LENGTHS; l++)
      for (int t = 0; t < 2; t++) {
        check_messages(&rules[r], rules[r].block, lengths[l], lanes[t]);
        const bool frames = has_frames(&rules[r]);
        const int64_t least = frames ? LANES_OF_BLOCK : rules[r].each * LANES_OF_BLOCK,
                      most = frames ? 256 : QUANT_MOST_BLOCK;
        for (int64_t block = least; block <= most; block *= frames ? 2 : most / least)
          check_messages(&rules[r], block, lengths[l], lanes[t]);
      }
}

/* Codes of int4 lie as the page says: the first three words of lane 5. */
CODEC_TEST(codes_lie_in_words_of_lanes)
{
  enum { N = 1024, LANE = 5 };
  const struct codec codec = codec_of("int4 block=256");
  const struct codec_pass pass = pass_of(&codec, lanes[0], N, 1, SEED);
  float x[N];
  for (int i = 0; i < N; i++)
    x[i] = i % 32 == 0 ? 7 : (float)(i / 32 % 15 - 7); /* all scales are 1 */
  char *message = encoded(&codec, &pass, x);
  for (int w = 0; w < 3; w++) {
    uint32_t word, want = 0;
    memcpy(&word, message + 128 + (w * 32 + LANE) * 4, 4);
    for (int k = 0; k < 8; k++)
      want |= (uint32_t)((w * 8 + k) % 15 - 7 + 16) % 16 << 4 * k;
    assert_int_equal(word, want);
  }
}

/* Element i of transform `lane` of 256 elements: row i / 4, lane + 8 (i % 4). */
static int of_transform(int lane, int i)
{
  return i / 4 * 32 + lane + i % 4 * 8;
}

/* Codes of levels7 are the digits of a number: both words of lane 5 in the second frame. */
CODEC_TEST(codes_are_digits)
{
  enum { FRAME = 704, N = 2 * FRAME, LANE = 5, EACH = 11 };
  const struct codec codec = codec_of("levels7 block=64");
  const struct codec_pass pass = pass_of(&codec, lanes[0], N, 1, SEED);
  float x[N];
  for (int i = 0; i < N; i++)
    x[i] = i % 32 == 0 ? 3 : (float)(i / 32 * 5 % 7 - 3); /* all scales are 1 */
  char *message = encoded(&codec, &pass, x);
  for (int w = 0; w < 2; w++) {
    uint32_t word, want = 0;
    memcpy(&word, message + 128 + (FRAME / EACH + 32 * w + LANE) * 4, 4);
    for (int k = EACH - 1; k >= 0; k--)
      want = want * 7 + (uint32_t)((FRAME / 32 + EACH * w + k) * 5 % 7);
    assert_int_equal(word, want);
  }
}

/* The transform in fp64, by the signs of its matrix. */
static void transform(const float *x, int lane, double *to)
{
  for (int k = 0; k < 32; k++) {
    to[k] = 0;
    for (int i = 0; i < 32; i++) {
      const double element = x[of_transform(lane, i)];
      to[k] += __builtin_parity((unsigned)(k & i)) ? -element : element;
    }
    to[k] /= sqrt(32);
  }
}

/* Codes of a transform are off by half a step each, and the transform keeps lengths. */
static void check_rotation(const struct rule *rule, float most_code)
{
  enum { N = 2048, ROTATED_TOGETHER = 256 };
  const struct codec codec = codec_of("%s", rule->name);
  const struct codec_pass pass = pass_of(&codec, lanes[0], N, 1, SEED);
  float *x = vector(N, 3);
  x[700] = 1; /* larger than the others: its block's codes still tell them apart */
  char *message = encoded(&codec, &pass, x);
  float *out = decoded(&codec, &pass, message);
  for (int64_t b = 0; b < N / codec.set.block; b++) {
    const float step = scales_at(&codec, rule, N, message, b).at[0];
    double most = 0, row[32];
    for (int64_t at = b * codec.set.block; at < (b + 1) * codec.set.block; at += ROTATED_TOGETHER) {
      float error[ROTATED_TOGETHER];
      for (int i = 0; i < ROTATED_TOGETHER; i++)
        error[i] = x[at + i] - out[at + i];
      for (int lane = 0; lane < 8; lane++) {
        transform(x + at, lane, row);
        for (int k = 0; k < 32; k++)
          most = fmax(most, fabs(row[k]));
        transform(error, lane, row);
        for (int k = 0; k < 32; k++)
          assert_true(fabs(row[k]) <= 0.5001 * step);
      }
    }
    assert_true(step >= (1 - 1e-6) * most / most_code);
    assert_true(step <= (1 + 0x1p-7) * most / most_code); /* rounded up to bf16 */
  }
}

CODEC_TEST(a_rotation_keeps_the_length_of_errors)
{
  check_rotation(&rules[ROTATED], 7);
}

/* ---- edges ---- */

/* The decoded values of three blocks; the middle one has x[at] = value among `fill`. */
static float *middle_block(const struct codec *codec, float fill, float value)
{
  const int64_t block = codec->set.block, n = 3 * block;
  const struct codec_pass pass = pass_of(codec, lanes[0], n, 1, SEED);
  float *x = guarded(n * 4);
  for (int64_t i = 0; i < n; i++)
    x[i] = fill;
  x[block + 17] = value;
  return decoded(codec, &pass, encoded(codec, &pass, x));
}

CODEC_TEST(non_finite_elements_show_in_their_block)
{
  static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
  for (int r = 0; r < RULES; r++)
    for (int v = 0; v < 4; v++) {
      const struct codec codec = codec_of("%s", rules[r].name);
      const float half = 0.5f;
      const struct scales s =
          has_frames(&rules[r]) ? scale_of(&rules[r], &half, 1) : (struct scales){{0}};
      float *out = middle_block(&codec, half, bad[v]);
      for (int64_t i = 0; i < 3 * codec.set.block; i++) {
        assert_true(!isnan(out[i]) == (i / codec.set.block != 1));
        /* One frame may have all three blocks. */
        if (has_frames(&rules[r]) && i / codec.set.block != 1)
          assert_true(out[i] == rintf(0.5f / s.at[0]) * s.at[0]);
      }
    }
}

/* The scale of a block whose step would not be a normal number is 0, in the message too. */
CODEC_TEST(steps_below_the_normal_numbers_are_zero)
{
  for (int r = 0; r < REFERENCES; r++) {
    if (rules[r].number == sign_number)
      continue; /* its scale is a mean, not a step */
    const struct codec codec = codec_of("%s", rules[r].name);
    const int64_t n = codec.set.block;
    const struct codec_pass pass = pass_of(&codec, lanes[0], n, 1, SEED);
    float *x = vector(n, 9);
    for (int64_t i = 0; i < n; i++)
      x[i] *= 0x1p-130f;
    char *message = encoded(&codec, &pass, x);
    const struct scales s = scales_at(&codec, &rules[r], n, message, 0),
                        want = scale_of(&rules[r], x, n);
    assert_memory_equal(&s, &want, sizeof s);
  }
}

CODEC_TEST(tiny_numbers_are_finite_and_zeros_are_zeros)
{
  /* The square of the last two is half of the least subnormal number, so their norm is too small.
   */
  static const float tiny[] = {0,       -0.0f,     0x1p-149f,   -0x1p-149f,  0x1p-127f,
                               FLT_MIN, 0x1p-120f, 0x1.b9p-75f, -0x1.b9p-75f};
  for (int r = 0; r < RULES; r++)
    for (int v = 0; v < 9; v++) {
      const struct codec codec = codec_of("%s", rules[r].name);
      float *out = middle_block(&codec, 0, tiny[v]);
      const float same = out[codec.set.block + 17];
      assert_true(same == 0 || (same > 0) == (tiny[v] > 0));
      for (int64_t i = 0; i < 3 * codec.set.block; i++) {
        assert_true(fabsf(out[i]) <= 2 * fabsf(tiny[v]));
        if (i / codec.set.block != 1)
          assert_true(out[i] == 0);
      }
    }
}

/* Powers of two below the largest float, because natural may double. The largest floats are those
 * whose scale is not finite, because it is rounded up. */
CODEC_TEST(large_numbers_are_finite)
{
  for (int r = 0; r < RULES; r++) {
    const struct codec codec = codec_of("%s", rules[r].name);
    const bool squares = !strcmp(rules[r].name, "qsgd"), sums = r == ROTATED || rules[r].each == 32;
    float *out = middle_block(&codec, 0, squares ? 0x1p63f : sums ? 0x1p122f : FLT_MAX / 2);
    for (int64_t i = 0; i < 3 * codec.set.block; i++)
      assert_true(isfinite(out[i]));
  }
  const char *const steps[] = {"int8", "int4", "levels9", "levels7", "e4m3", "e5m2"};
  for (int r = 0; r < 6; r++) {
    const struct codec codec = codec_of("%s", steps[r]);
    float *out = middle_block(&codec, 0, 0x1.fcp127f);
    assert_true(isfinite(out[codec.set.block + 17]));
    out = middle_block(&codec, 0, FLT_MAX);
    assert_true(isnan(out[codec.set.block + 17]));
  }
}

/* Oracle: the arithmetic of NaN. */
CODEC_TEST(a_scale_of_nan_gives_nan)
{
  enum { N = 3000 };
  for (int r = 0; r < RULES; r++) {
    const struct codec codec = codec_of("%s", rules[r].name);
    const struct codec_pass pass = pass_of(&codec, lanes[0], N, 1, SEED);
    const int64_t bytes = codec.ops->bytes(&codec, N);
    char *message = guarded(bytes);
    memset(message, 0xff, (size_t)bytes);
    const float *out = decoded(&codec, &pass, message);
    for (int i = 0; i < N; i++)
      assert_true(isnan(out[i]));
  }
}

/* ---- random bits ---- */

enum { SEEDS = 4000, ELEMENTS = 256 };

/* The variance of a choice between two neighbours is the product of the distances. */
static double variance_of(const char *name, float x, float step)
{
  const double size = fabs((double)x),
               down = strcmp(name, "qsgd") == 0 ? floor(size / step) * step
                      : size > 0                ? ldexp(1, ilogb(size))
                                                : 0,
               up = strcmp(name, "qsgd") == 0 ? down + step : 2 * down;
  return (size - down) * (up - size);
}

CODEC_TEST(the_mean_over_seeds_is_the_vector)
{
  for (int r = 0; r < RULES; r++) {
    if (!(rules[r].traits & CODEC_UNBIASED))
      continue;
    const struct codec codec = codec_of("%s", rules[r].name);
    struct codec_pass pass = pass_of(&codec, lanes[0], ELEMENTS, 1, SEED);
    double sum[ELEMENTS] = {0};
    float *x = vector(ELEMENTS, 9), step = 0;
    for (pass.seed = 0; pass.seed < SEEDS; pass.seed++) {
      char *message = encoded(&codec, &pass, x);
      float *out = decoded(&codec, &pass, message);
      for (int i = 0; i < ELEMENTS; i++)
        sum[i] += out[i];
      step = scales_at(&codec, &rules[r], ELEMENTS, message, 0).at[0];
    }
    for (int i = 0; i < ELEMENTS; i++) {
      const double error = sqrt(variance_of(rules[r].name, x[i], step) / SEEDS);
      assert_true(fabs(sum[i] / SEEDS - x[i]) <= 5 * error + 1e-5 * fabs((double)x[i]));
    }
  }
}

/* ---- instruction sets, settings ---- */

CODEC_TEST(all_instruction_sets_give_the_same_bits)
{
  enum { M = 990, LARGE = 1024 };
  float *x = vector(M, 6);
  const float largest = most_of(x, M);
  for (int r = 0; r < QUANT_COUNT; r++) {
    const int block = quant_has_frames((enum quantiser)r) ? 256 : LARGE;
    const struct quantise op = {(enum quantiser)r, block, 127, SEED, &largest};
    const int64_t whole = quant_frame(&op), m = whole < M ? whole : M;
    uint32_t words[2][LARGE / 4] = {{0}};
    uint16_t scale[2][LARGE / 256] = {{0}};
    float out[2][M] = {{0}};
    for (int v = 0; kernels_variant(v); v++) {
      const struct kernels *k = kernels_variant(v);
      const struct quant_frame frame = {1, scale[v > 0], words[v > 0]};
      k->quantise(&op, 3, m, x, frame);
      k->dequantise(&op, 1, 0, frame, QUANT_SET, m, out[v > 0]);
      if (v == 0)
        continue;
      assert_memory_equal(scale[1], scale[0], sizeof scale[0]);
      assert_memory_equal(words[1], words[0], sizeof words[0]);
      assert_memory_equal(out[1], out[0], sizeof out[0]);
    }
  }
}

/* codec_make() makes no such blocks, and devices refuse them. */
CODEC_TEST(devices_refuse_other_blocks)
{
  static const struct quantise bad[] = {{.rule = QUANT_levels9, .block = 512},
                                        {.rule = QUANT_levels7, .block = 16},
                                        {.rule = QUANT_int4, .block = 300}};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(device->ops->quantise(lanes[0], &bad[i], 0, 1, NULL, NULL), STATUS_INTERNAL);
    must_fail(device->ops->dequantise(lanes[0], &bad[i], 0, 1, NULL, 0, QUANT_SET, DTYPE_F32, NULL),
              STATUS_INTERNAL, "a message with blocks of ");
  }
}

/* A run with train.frozen=fp8 that is resumed has the same messages. Messages in nf4 need their
 * scales (test_nf4.c). */
CODEC_TEST(a_decoded_message_is_encoded_to_the_same_message)
{
  enum { N = 5000 };
  for (int e = -130; e <= 130; e += 26) {
    struct codec codec;
    must(codec_make_frozen("fp8", &codec));
    const struct codec_pass pass = pass_of(&codec, lanes[0], N, 1, SEED);
    float *x = vector(N, e);
    for (int i = 0; i < N; i++)
      x[i] = i % 700 < 30 ? -0.0f : ldexpf(x[i], e);
    char *message = encoded(&codec, &pass, x);
    assert_memory_equal(encoded(&codec, &pass, decoded(&codec, &pass, message)), message,
                        codec.ops->bytes(&codec, N));
  }
}

/* Fewer levels, larger steps. */
CODEC_TEST(levels_are_of_the_norm)
{
  enum { N = 256 };
  const struct codec codec = codec_of("qsgd levels=3");
  const struct codec_pass pass = pass_of(&codec, lanes[0], N, 1, SEED);
  float x[N] = {[17] = -3, [40] = 4}; /* the norm is 5 */
  char *message = encoded(&codec, &pass, x);
  float *out = decoded(&codec, &pass, message);
  const float step = rounded(5.0f / 3, ceilf);
  assert_true(out[17] == -step || out[17] == -2 * step);
  assert_true(out[40] == 2 * step || out[40] == 3 * step);
}

TEST_MAIN(start, stop)
