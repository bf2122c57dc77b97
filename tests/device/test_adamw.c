/* AdamW on the host, in all types. Oracle: the sequence of operations of torch.optim.AdamW, element
 * by element in fp32, with the scalar conversions of dtype.h and rounding.h. Every instruction set
 * and every combination of types gives its bits. tests/optim/test_rules.c compares all
 * rules with their formulas. Stochastic rounding must have its expected frequencies. Moments in
 * fp16 have a code of their own. Every code is restored. The steps are those of fp32 moments within
 * a bound, and moments that are only rounded to fp16 exceed it. With block8,
 * a step decodes, updates in fp32 and encodes. An encoding in fp64 gives the same bits. */
#include "fixture.h"

#include <math.h>

#include "device/host/host.h"
#include "device/moments.h"
#include "device/rounding.h"

static struct update settings(int step, double decay)
{
  return (struct update){.lr = 1e-2,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .decay = decay,
                         .grad_scale = 0.5f,
                         .bias1 = 1 - pow(0.9, step),
                         .bias2 = 1 - pow(0.95, step)};
}

enum { MOST = 1003, TYPES = 3 };
static const enum dtype types[TYPES] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* Five arrays of `n` elements each, of any types. */
struct arrays {
  int64_t n;
  void *master, *grad, *m, *v, *copy;
};

static void *at(void *array, enum dtype type, int64_t i)
{
  return (char *)array + i * (int64_t)dtype_size(type);
}

static struct arrays arrays_create(int64_t n)
{
  const size_t size = (size_t)n * sizeof(float);
  return (struct arrays){n, bytes(size), bytes(size), bytes(size), bytes(size), bytes(size)};
}

/* From fp32 arrays, to the types of op; what the copy holds is not a number. */
static void arrays_set(const struct arrays *to, const struct update *op, const struct arrays *from)
{
  const size_t n = (size_t)to->n;
  dtype_convert(to->master, op->master, from->master, DTYPE_F32, n);
  dtype_convert(to->grad, op->grad, from->grad, DTYPE_F32, n);
  moments_encode(to->m, op->states, STATE_LINEAR, from->m, n);
  moments_encode(to->v, op->states, STATE_ROOT, from->v, n);
  memset(to->copy, 0xff, n * sizeof(float));
}

/* Normal numbers; every third so small that moments are subnormal in fp16, every ninth so that they
 * are in fp32; and some that are too large for moments in fp16. */
static struct arrays some_arrays(int64_t n)
{
  struct arrays a = {n,
                     normals(n, 1),
                     normals(n, 1),
                     normals(n, 0.1f),
                     normals(n, 0.1f),
                     bytes((size_t)n * sizeof(float))};
  float *p = a.master, *grad = a.grad, *m = a.m, *v = a.v;
  for (int64_t i = 0; i < n; i++) {
    v[i] *= v[i];
    if (i % 3 == 0) {
      p[i] *= 1e-5f;
      grad[i] *= i % 9 == 0 ? 1e-19f : 1e-8f;
      m[i] *= i % 9 == 0 ? 1e-38f : 1e-8f;
      v[i] *= i % 9 == 0 ? 1e-38f : 1e-17f;
    }
    if (i % 31 == 4)
      grad[i] *= 1000;
  }
  return a;
}

static struct arrays arrays_part(const struct arrays *a, const struct update *op, int64_t from,
                                 int64_t n)
{
  return (struct arrays){n,
                         at(a->master, op->master, from),
                         at(a->grad, op->grad, from),
                         at(a->m, op->states, from),
                         at(a->v, op->states, from),
                         at(a->copy, op->copy, from)};
}

static void assert_same_states(const struct update *op, const struct arrays *a,
                               const struct arrays *b)
{
  const size_t n = (size_t)a->n;
  assert_same_bits(a->master, b->master, n * dtype_size(op->master));
  assert_same_bits(a->m, b->m, n * dtype_size(op->states));
  assert_same_bits(a->v, b->v, n * dtype_size(op->states));
}

static float get(void *array, enum dtype type, int64_t i)
{
  float x;
  dtype_convert(&x, DTYPE_F32, at(array, type, i), type, 1);
  return x;
}

static void put(void *array, enum dtype type, int64_t i, float x, bool stochastic, uint32_t bits)
{
  if (!stochastic || type == DTYPE_F32)
    dtype_convert(at(array, type, i), type, &x, DTYPE_F32, 1);
  else
    *(uint16_t *)at(array, type, i) =
        type == DTYPE_BF16 ? rounding_bf16(x, (uint16_t)bits) : rounding_fp16(x, (uint16_t)bits);
}

/* A moment, or of a second one in fp16 the root, both times 4096. */
static float get_moment(void *array, enum dtype type, bool second, int64_t i)
{
  const float x = get(array, type, i);
  if (type != DTYPE_F16)
    return x;
  return second ? (x / 4096) * (x / 4096) : x / 4096;
}

static void put_moment(void *array, enum dtype type, bool second, int64_t i, float x,
                       bool stochastic, uint32_t bits)
{
  if (type == DTYPE_F16) {
    x = second ? sqrtf(x) : x;
    x = isfinite(x) ? copysignf(fminf(fabsf(x), 65504.0f / 4096), x) * 4096 : x;
  }
  put(array, type, i, x, stochastic, bits);
}

/* One rounding per operation, in the order of torch. */
static void step_twin(const struct update *op, const struct arrays *a)
{
  const float shrink = (float)(1 - op->lr * op->decay), rest1 = (float)(1 - op->beta1),
              beta2 = (float)op->beta2, rest2 = (float)(1 - op->beta2), eps = (float)op->eps,
              root2 = (float)sqrt(op->bias2), step = (float)(op->lr / op->bias1);
  for (int64_t i = 0; i < a->n; i++) {
    float g = get(a->grad, op->grad, i) * op->grad_scale,
          m = get_moment(a->m, op->states, false, i), v = get_moment(a->v, op->states, true, i),
          p = get(a->master, op->master, i);
    m += rest1 * (g - m);
    v = beta2 * v + rest2 * g * g;
    p = shrink * p - step * m / (sqrtf(v) / root2 + eps);
    const uint32_t bits = rounding_bits(op->seed, op->first + i);
    put_moment(a->m, op->states, false, i, m, op->stochastic, bits & 0xffff);
    put_moment(a->v, op->states, true, i, v, op->stochastic, bits >> 16);
    put(a->master, op->master, i, p, op->stochastic,
        rounding_bits(op->seed ^ ROUNDING_MASTER, op->first + i) & 0xffff);
    put(a->copy, op->copy, i, p, false, 0);
  }
}

static enum status step_host(struct lane *lane, const struct update *op, const struct arrays *a,
                             bool copies)
{
  return ops->update(lane, a->n, op, a->master, a->grad, (void *[]){a->m, a->v},
                     copies ? a->copy : NULL);
}

DEVICE_TEST(outcome_scales_or_stops)
{
  const struct arrays input = some_arrays(MOST), got = arrays_create(MOST),
                      want = arrays_create(MOST);
  struct outcome outcome = {.grad_norm = INFINITY, .scale = 0.375, .finite = 0};
  struct update by_outcome = settings(3, 0.1), by_hand = settings(3, 0.1);
  by_hand.grad_scale = 0.375f;
  by_outcome.grad_scale = NAN; /* not read */
  by_outcome.outcome = &outcome;
  for (; outcome.finite < 2; outcome.finite++) {
    arrays_set(&got, &by_hand, &input);
    arrays_set(&want, &by_hand, &input);
    assert_ok(step_host(lanes[1], &by_outcome, &got, true));
    if (outcome.finite)
      assert_ok(step_host(lanes[1], &by_hand, &want, true));
    assert_same_states(&by_hand, &got, &want);
    assert_same_bits(got.copy, want.copy, MOST * sizeof(float));
  }
  assert_memory_not_equal(got.master, input.master, MOST * sizeof(float));
}

/* The combination of types with number `kind`; false after the last. */
static bool choose_types(int kind, struct update *op)
{
  const int rest = kind / (TYPES * TYPES * TYPES * TYPES);
  op->master = types[kind % TYPES];
  op->grad = types[kind / TYPES % TYPES];
  op->states = types[kind / (TYPES * TYPES) % TYPES];
  op->copy = types[kind / (TYPES * TYPES * TYPES) % TYPES];
  op->stochastic = rest == 1;
  return rest < 2;
}

/* Odd lengths at odd places. With a copy, stores bypass the caches only if whole vectors of it are
 * aligned. Bytes before and after the arrays do not change. */
DEVICE_TEST(every_kind_gives_the_bits_of_the_twin)
{
  static const int64_t lengths[] = {0, 1, 3, 8, 17, 31, 64, 100, MOST - 41};
  enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
  const struct arrays input = some_arrays(MOST), got = arrays_create(MOST),
                      want = arrays_create(MOST), before = arrays_create(MOST);
  struct update op = settings(3, 0.1);
  op.seed = 0x123456789abcdef;
  op.first = ((int64_t)3 << 32) - 500; /* the upper half of the number changes on the way */
  for (int kind = 0; choose_types(kind, &op); kind++)
    for (int l = 0; l < LENGTHS; l++) {
      const int64_t from = (l * 7 + kind) % 41;
      const struct arrays part = arrays_part(&got, &op, from, lengths[l]),
                          twin = arrays_part(&want, &op, from, lengths[l]);
      arrays_set(&want, &op, &input);
      arrays_set(&before, &op, &input);
      step_twin(&op, &twin);
      for (int variant = 0; fixture_use(variant); variant++)
        for (int copies = 0; copies < 2; copies++) {
          arrays_set(&got, &op, &input);
          assert_ok(step_host(lanes[0], &op, &part, copies));
          assert_same_states(&op, &got, &want);
          assert_same_bits(got.copy, copies ? want.copy : before.copy, MOST * dtype_size(op.copy));
          assert_same_bits(got.grad, before.grad, MOST * dtype_size(op.grad));
        }
    }
  fixture_use(-1);
}

/* With beta1 = 0 and no moment the new one is the gradient: so every number around every 16-bit
 * code, infinity and NaN among them, is rounded. */
DEVICE_TEST(every_number_is_rounded_like_the_twin_s)
{
  static const uint32_t low[] = {0, 1, 0x2aaa, 0x7fff, 0x8000, 0xffff};
  enum { LOW = sizeof low / sizeof low[0], WORDS = LOW << 16 };
  const struct arrays input = arrays_create(WORDS), got = arrays_create(WORDS),
                      want = arrays_create(WORDS);
  struct update op = {.beta2 = 0.5, .eps = 1e-8, .grad_scale = 1, .bias1 = 1, .bias2 = 1};
  op.copy = DTYPE_BF16, op.stochastic = true;
  for (uint32_t i = 0; i < WORDS; i++)
    ((uint32_t *)input.grad)[i] = i / LOW << 16 | low[i % LOW];
  for (int type = 1; type < TYPES; type++)
    for (op.seed = 0; op.seed < 3; op.seed++) {
      op.states = types[type];
      arrays_set(&want, &op, &input);
      step_twin(&op, &want);
      for (int variant = 0; fixture_use(variant); variant++) {
        arrays_set(&got, &op, &input);
        assert_ok(step_host(lanes[1], &op, &got, true));
        assert_same_bits(got.m, want.m, WORDS * dtype_size(op.states));
        assert_same_bits(got.v, want.v, WORDS * dtype_size(op.states));
      }
    }
  fixture_use(-1);
}

/* n draws with probability p are within five standard deviations. */
static void assert_frequency(double count, double n, double p)
{
  if (!(fabs(count - n * p) <=
        5 * sqrt(n * p * (1 - p)) + n * 0x1p-17)) /* probabilities are multiples of 2^-16 */
    fail_msg("%.0f of %.0f, not %.1f", count, n, n * p);
}

/* The same number again and again, in both moments (beta1 = 0, beta2 = 0: they become g and g * g).
 * Each moment is rounded up with the frequency of its distance to the lower neighbour. The
 * frequency does not depend on the other moment, or on the element before. */
DEVICE_TEST(stochastic_rounding_is_unbiased)
{
  enum { DRAWS = 1 << 20 };
  static const float numbers[] = {1.001f, -0.7f, 3e-5f, 1.7e-3f, 7e-8f, 12.3f, 3e-10f};
  const struct arrays a = arrays_create(DRAWS);
  struct update op = {.eps = 1e-8, .grad_scale = 1, .bias1 = 1, .bias2 = 1, .stochastic = true};
  for (int type = 1; type < TYPES; type++)
    for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
      const bool coded = types[type] == DTYPE_F16;
      const float g = numbers[k], first = coded ? g * 4096 : g,
                  second = coded ? sqrtf(g * g) * 4096 : g * g; /* what is rounded */
      op.states = types[type];
      op.seed = k;
      for (int i = 0; i < DRAWS; i++)
        ((float *)a.grad)[i] = g;
      memset(a.m, 0, DRAWS * sizeof(uint16_t));
      memset(a.v, 0, DRAWS * sizeof(uint16_t));
      assert_ok(step_host(lanes[1], &op, &a, false));
      const uint16_t *m = a.m, *v = a.v,
                     least_m = coded ? rounding_fp16(first, 0)
                                     : rounding_bf16(first, 0), /* towards zero */
          least_v = coded ? rounding_fp16(second, 0) : rounding_bf16(second, 0);
      uint16_t codes[2] = {least_m, (uint16_t)(least_m + 1)},
               squares[2] = {least_v, (uint16_t)(least_v + 1)};
      float near[2], near_square[2];
      dtype_convert(near, DTYPE_F32, codes, op.states, 2);
      dtype_convert(near_square, DTYPE_F32, squares, op.states, 2);
      const double up_m = ((double)first - near[0]) / ((double)near[1] - near[0]),
                   up_v = ((double)second - near_square[0]) /
                          ((double)near_square[1] - near_square[0]);
      double ups_m = 0, ups_v = 0, both = 0, again = 0;
      for (int i = 0; i < DRAWS; i++) {
        assert_in_range(m[i] - least_m, 0, 1);
        assert_in_range(v[i] - least_v, 0, 1);
        ups_m += m[i] - least_m;
        ups_v += v[i] - least_v;
        both += (m[i] - least_m) & (v[i] - least_v);
        again += i > 0 && m[i] != least_m && m[i - 1] != least_m;
      }
      assert_frequency(ups_m, DRAWS, up_m);
      assert_frequency(ups_v, DRAWS, up_v);
      assert_frequency(both, DRAWS, up_m * up_v);
      assert_frequency(again, DRAWS, up_m * up_m);
    }
}

/* --- moments in fp16 ----------------------------------------------------- */

enum { CODES = 1 << 16 };

static uint16_t magnitude(uint16_t code)
{
  return code & 0x7fff;
}

/* Oracle: arithmetic in fp64. A second moment has no sign: the code without it comes back. NaN
 * comes back as one. */
DEVICE_TEST(every_code_of_a_moment_comes_back)
{
  static uint16_t code[CODES], back[CODES];
  static float value[CODES];
  for (int i = 0; i < CODES; i++)
    code[i] = (uint16_t)i;
  for (int second = 0; second < 2; second++) {
    moments_decode(value, DTYPE_F16, second ? STATE_ROOT : STATE_LINEAR, code, CODES);
    moments_encode(back, DTYPE_F16, second ? STATE_ROOT : STATE_LINEAR, value, CODES);
    for (int i = 0; i < CODES; i++) {
      const double x = (double)f32_from_f16(code[i]) / 4096;
      if (magnitude(code[i]) > 0x7c00) {
        assert_true(isnan(value[i]) && magnitude(back[i]) == 0x7e00);
      } else {
        assert_true((double)value[i] == (second ? x * x : x));
        assert_int_equal(back[i], second ? magnitude(code[i]) : code[i]);
      }
    }
  }
}

/* With beta1 = beta2 = 1 and no gradient nothing is to change, however it is rounded: every finite
 * code, through every kernel. */
DEVICE_TEST(every_code_stays_in_a_step_that_changes_nothing)
{
  const struct arrays got = arrays_create(CODES), want = arrays_create(CODES);
  struct update op = {.beta1 = 1, .beta2 = 1, .eps = 1e-8, .grad_scale = 1, .bias1 = 1, .bias2 = 1};
  op.states = DTYPE_F16;
  for (int i = 0; i < CODES; i++) {
    ((uint16_t *)want.m)[i] =
        (i >> 10 & 31) == 31 || magnitude((uint16_t)i) == 0 ? 0 : (uint16_t)i; /* -0 + 0 is 0 */
    ((uint16_t *)want.v)[i] = magnitude(((uint16_t *)want.m)[i]);
  }
  for (op.seed = 0; op.seed < 4; op.seed++)
    for (int variant = 0; fixture_use(variant); variant++) {
      op.stochastic = op.seed > 0;
      memcpy(got.m, want.m, CODES * sizeof(uint16_t));
      memcpy(got.v, want.v, CODES * sizeof(uint16_t));
      assert_ok(step_host(lanes[1], &op, &got, false));
      assert_same_states(&op, &got, &want);
    }
  fixture_use(-1);
}

/* A finite number has a finite code, in the state's conversion and in every kernel. Infinity and
 * NaN have codes of their own. */
DEVICE_TEST(finite_moments_never_become_infinite)
{
  static const float large[] = {15.9921875f, 15.996f, 16,      -16,      17.5f,    -1e4f,     1e18f,
                                -1e18f,      1e35f,   FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN};
  enum { LARGE = sizeof large / sizeof large[0] };
  uint16_t code[LARGE];
  const struct arrays got = arrays_create(LARGE);
  struct update op = {.eps = 1e-8, .grad_scale = 1, .bias1 = 1, .bias2 = 1, .states = DTYPE_F16};
  moments_encode(code, DTYPE_F16, STATE_LINEAR, large, LARGE);
  for (op.seed = 0; op.seed < 4; op.seed++)
    for (int variant = 0; fixture_use(variant); variant++) {
      op.stochastic = op.seed > 0;
      memcpy(got.grad, large, sizeof large);
      memset(got.m, 0, sizeof code);
      memset(got.v, 0, sizeof code);
      assert_ok(step_host(lanes[1], &op, &got, false));
      const uint16_t *m = got.m, *v = got.v;
      for (int i = 0; i < LARGE; i++) {
        const int expected = isnan(large[i]) ? 0x7e00 : isinf(large[i]) ? 0x7c00 : 0x7bff;
        assert_int_equal(magnitude(code[i]), expected);
        assert_int_equal(magnitude(m[i]), expected);
        assert_int_equal(signbit(large[i]) != 0, m[i] >> 15);
        assert_int_equal(magnitude(v[i]), isfinite(large[i] * large[i]) ? 0x7bff
                                          : isnan(large[i])             ? 0x7e00
                                                            : 0x7c00); /* fp32's own end */
      }
    }
  fixture_use(-1);
}

/* The distance of the parameters from those of fp32 moments, as a share of the longest way, which
 * is lr per step. If `plain`, moments are rounded to plain fp16 between the steps. */
static double strays(float size, enum dtype moments, bool plain, bool stochastic)
{
  enum { FEW = 2048, LONG = 60 };
  const struct arrays exact = arrays_create(FEW), got = arrays_create(FEW);
  uint16_t *code = bytes(FEW * sizeof *code);
  double most = 0;
  for (int step = 1; step <= LONG; step++) {
    struct update op = settings(step, 0), other;
    op.lr = 1e-3, op.grad_scale = 1, op.seed = (uint64_t)step;
    other = op;
    other.states = moments;
    other.stochastic = stochastic;
    float *grad = normals(FEW, size);
    memcpy(exact.grad, grad, FEW * sizeof *grad);
    memcpy(got.grad, grad, FEW * sizeof *grad);
    assert_ok(step_host(lanes[1], &op, &exact, false));
    assert_ok(step_host(lanes[1], &other, &got, false));
    for (int k = 0; k < 2 && plain; k++) {
      float *moment = k ? got.v : got.m;
      dtype_convert(code, DTYPE_F16, moment, DTYPE_F32, FEW);
      dtype_convert(moment, DTYPE_F32, code, DTYPE_F16, FEW);
    }
  }
  for (int i = 0; i < FEW; i++) {
    const double stray =
        fabs((double)((float *)got.master)[i] - (double)((float *)exact.master)[i]);
    most = stray > most ? stray : most;
  }
  return most / (LONG * 1e-3);
}

/* In each step a root has a relative rounding error of 2^-11 (stochastically 2^-10). It counts
 * twice in v, and v remembers 1 / (1 - beta2) = 20 steps. So sqrt(v) is off by 20 * 2^-11, and m by
 * 10 * 2^-11 of its largest value. This is 1.5 % of a step. The length of a step is at most (1 -
 * beta1) / sqrt(1 - beta2) / sqrt(1 - beta1^2 / beta2) lr = 1.2 lr. Below 1.5e-8 numbers are
 * rounded by 2^-37 = 7e-12 (2^-36). So sqrt(v) is off by 40 of these and m by 10, compared with eps
 * = 1e-8. This is 3.6 %. Together 5.4 % of lr, stochastically 11 %. */
DEVICE_TEST(small_gradients_move_as_with_fp32_moments)
{
  static const float sizes[] = {1, 1e-3f, 1e-5f, 1e-7f, 1e-8f, 1e-9f, 1e-10f};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    assert_true(strays(sizes[s], DTYPE_F16, false, false) <= 0.054);
    assert_true(strays(sizes[s], DTYPE_F16, false, true) <= 0.11);
    if (sizes[s] <= 1e-5f && sizes[s] >= 1e-7f)
      assert_true(strays(sizes[s], DTYPE_F32, true, false) >
                  1); /* a second moment of 0 is divided by */
  }
}

/* --- moments in block8 ----------------------------------------------------- */

enum { BLOCK = 64 };
static const enum state_code forms[2] = {STATE_LINEAR, STATE_ROOT};

/* The code of x in fp64: a sign, and steps of 1/8 or 1/16 of a power of two below the scale. */
static uint8_t block_code(bool root, double x, double scale, int bits)
{
  const int steps = root ? 16 : 8, top = root ? 255 : 127;
  const double share = (double)(float)(fabs(x) / scale);
  int exponent, code = 0;
  if (scale == 0 || isnan(scale))
    return 0;
  const double units = (2 * frexp(share, &exponent) - 1) * steps, whole = floor(units);
  if (share > 0)
    code = top + steps * (exponent - 1) + (int)whole + (units - whole + bits * 0x1p-16 >= 1);
  if (code <= 0)
    code = root && share > 0;
  return (uint8_t)(code | (!root && signbit(x) ? 128 : 0));
}

static void block_encode(bool root, const float *x, uint64_t seed, int64_t first, int64_t n,
                         struct moments_block *out)
{
  double largest = 0;
  for (int j = 0; j < n; j++) {
    const double magnitude = fabs(root ? (double)sqrtf(x[j]) : (double)x[j]);
    largest = !(magnitude <= largest) ? magnitude : largest;
  }
  if (largest > 0 && largest < 0x1p-46)
    largest = root ? 0x1p-46 : 0;
  out->scale = isfinite(largest) ? (float)largest : NAN;
  for (int j = 0; j < BLOCK; j++) {
    const uint32_t bits = rounding_bits(seed, first + j);
    const double number = j >= n ? 0 : root ? (double)sqrtf(x[j]) : (double)x[j];
    out->code[j] =
        block_code(root, number, (double)out->scale, (int)(root ? bits >> 16 : bits & 0xffff));
  }
}

/* Every code, next to the largest one, at the ends of the scale and in between. */
DEVICE_TEST(every_code_of_a_block_comes_back)
{
  static const float scales[] = {0x1p-46f, 3e-14f, 1e-7f, 1, 1.7f, 12345, 1.8e19f, FLT_MAX};
  for (int root = 0; root < 2; root++)
    for (int s = 0; s < 8 - root; s++)
      for (int first = 0; first < 256; first += BLOCK - 1) {
        struct moments_block block = {.scale = scales[s]}, back;
        float value[BLOCK];
        for (int j = 1; j < BLOCK; j++)
          block.code[j] = (uint8_t)(first + j - 1);
        block.code[0] = root ? 255 : 127;
        moments_decode(value, DTYPE_BLOCK8, forms[root], &block, BLOCK);
        moments_encode(&back, DTYPE_BLOCK8, forms[root], value, BLOCK);
        assert_true(value[0] == (root ? scales[s] * scales[s] : scales[s]));
        assert_same_bits(&back, &block, sizeof block);
        for (int j = 0; j < BLOCK; j++) {
          const int steps = root ? 16 : 8, code = block.code[j] & (root ? 255 : 127),
                    below = (root ? 255 : 127) - code;
          const double share = ldexp(1 + (steps - 1 - (below + steps - 1) % steps) / (double)steps,
                                     -((below + steps - 1) / steps)),
                       number = code ? share * (double)scales[s] : 0;
          const float near = (float)(!root && block.code[j] > 127 ? -number : number);
          assert_true(value[j] == (root ? near * near : near));
        }
      }
}

/* Numbers of any size, zeros, subnormal ones, and blocks that are not finite. Each becomes the
 * nearest code, and a decoded number gets its code again. */
DEVICE_TEST(blocks_hold_any_numbers)
{
  static const float sizes[] = {0, 1e-45f, 1e-38f, 1e-20f, 1e-13f, 1e-3f, 1, 1e15f, INFINITY, NAN};
  for (int root = 0; root < 2; root++)
    for (int s = 0; s < 10; s++)
      for (int n = 1; n <= BLOCK; n += 21) {
        float *x = normals(BLOCK, 1), value[BLOCK], again[BLOCK];
        struct moments_block block, back;
        for (int j = 0; j < BLOCK; j++)
          x[j] *= j % 5 == 0 ? 1e-6f : 1, x[j] = root ? x[j] * x[j] : x[j];
        for (int j = 0; j < BLOCK; j++)
          x[j] = isfinite(sizes[s]) ? x[j] * sizes[s] : j == n / 2 ? sizes[s] : x[j];
        moments_encode(&block, DTYPE_BLOCK8, forms[root], x, (size_t)n);
        moments_decode(value, DTYPE_BLOCK8, forms[root], &block, BLOCK);
        moments_encode(&back, DTYPE_BLOCK8, forms[root], value, BLOCK);
        moments_decode(again, DTYPE_BLOCK8, forms[root], &back, BLOCK);
        assert_same_bits(&back, &block, sizeof block);
        for (int j = 0; j < BLOCK; j++) {
          const double number = root ? sqrt(value[j]) : (double)value[j], want = j >= n ? 0
                                                                                 : root
                                                                                     ? sqrt(x[j])
                                                                                     : (double)x[j];
          assert_true(isnan(value[j]) == !isfinite(sizes[s]));
          if (isfinite(sizes[s]))
            assert_true(fabs(number - want) <= (root ? 0x1p-5 : 0x1p-4) * fabs(want) +
                                                   0x1p-15 * (double)block.scale + 0x1p-46);
        }
      }
}

/* Oracle: decoding, the update with fp32 states, and block_encode(). Several steps, because
 * the first one begins from zeros. The last block is incomplete. */
DEVICE_TEST(a_step_in_blocks_is_one_in_fp32_between_codes)
{
  enum { LONG = 64 * 100 + 37, BLOCKS = LONG / BLOCK + 1 };
  const struct arrays input = some_arrays(LONG), want = arrays_create(LONG),
                      got = arrays_create(LONG);
  struct moments_block *code[2];
  for (int variant = 0; fixture_use(variant); variant++) {
    memset(got.m, 0, BLOCKS * sizeof **code);
    memset(got.v, 0, BLOCKS * sizeof **code);
    memcpy(got.master, input.master, LONG * sizeof(float));
    for (int step = 1; step <= 3; step++) {
      struct update op = settings(step, 0.1), wide;
      op.seed = 77 * (uint64_t)step, op.first = ((int64_t)3 << 32) - 640;
      wide = op;
      op.states = DTYPE_BLOCK8;
      memcpy(want.master, got.master, LONG * sizeof(float));
      moments_decode(want.m, DTYPE_BLOCK8, STATE_LINEAR, got.m, LONG);
      moments_decode(want.v, DTYPE_BLOCK8, STATE_ROOT, got.v, LONG);
      memcpy(got.grad, normals(LONG, 1), LONG * sizeof(float));
      ((float *)got.grad)[200] = step == 2 ? INFINITY : 1; /* its block is lost, as in fp32 */
      memcpy(want.grad, got.grad, LONG * sizeof(float));
      assert_ok(step_host(lanes[1], &wide, &want, true));
      assert_ok(step_host(lanes[variant % LANE_SIZES], &op, &got, true));
      code[0] = got.m, code[1] = got.v;
      for (int s = 0; s < 2; s++)
        for (int b = 0; b < BLOCKS; b++) {
          struct moments_block block;
          block_encode(s, (float *)(s ? want.v : want.m) + b * BLOCK, op.seed, op.first + b * BLOCK,
                       LONG - b * BLOCK < BLOCK ? LONG - b * BLOCK : BLOCK, &block);
          assert_memory_equal(code[s][b].code, block.code, BLOCK);
          assert_true(code[s][b].scale == block.scale ||
                      (isnan(block.scale) && isnan(code[s][b].scale) && b == 200 / BLOCK));
        }
      for (int i = 0; i < LONG; i++)
        if (i / BLOCK != 200 / BLOCK)
          assert_same_bits((float *)got.master + i, (float *)want.master + i, sizeof(float));
    }
  }
  fixture_use(-1);
}

DEVICE_TEST(unknown_types_and_counts_are_refused)
{
  float x[32] = {0};
  for (int i = 0; i < 4; i++) {
    struct update op = settings(1, 0);
    enum dtype *type[] = {&op.master, &op.grad, &op.states, &op.copy};
    *type[i] = DTYPE_F8_E4M3;
    must_fail(ops->update(lanes[0], 1, &op, x, x, (void *[]){x, x}, x), STATUS_UNSUPPORTED,
              "fp8_e4m3");
    assert_int_equal(host_update_traffic(lanes[0], 32, &op, x, x, (void *[]){x, x}, x),
                     STATUS_UNSUPPORTED);
  }
  struct update op = settings(1, 0);
  assert_int_equal(ops->update(lanes[0], -1, &op, x, x, (void *[]){x, x}, x), STATUS_INTERNAL);
  op.first = -1;
  assert_int_equal(ops->update(lanes[0], 1, &op, x, x, (void *[]){x, x}, x), STATUS_INTERNAL);
  op.first = 0;
  op.states = DTYPE_BLOCK8, op.first = 32; /* inside a block */
  assert_int_equal(ops->update(lanes[0], 1, &op, x, x, (void *[]){x, x}, x), STATUS_INTERNAL);
  op.first = 0;
  assert_int_equal(host_update_traffic(lanes[0], 32, &op, x, x, (void *[]){x, x}, x),
                   STATUS_UNSUPPORTED);
  op.states = DTYPE_F32;
  assert_int_equal(host_update_traffic(lanes[0], 33, &op, x, x, (void *[]){x, x}, x),
                   STATUS_INTERNAL);
}

/* The reference values must be harmless. */
DEVICE_TEST(traffic_changes_the_copy_alone)
{
  enum { LINES = 992 };
  const float *zeros = bytes(LINES * sizeof *zeros);
  const struct arrays input = some_arrays(LINES), before = arrays_create(LINES),
                      got = arrays_create(LINES);
  struct update op = settings(3, 0.1);
  for (int variant = 0; fixture_use(variant); variant++)
    for (int kind = 0; choose_types(kind, &op); kind++)
      for (int copies = 0; copies < 2; copies++) {
        arrays_set(&before, &op, &input);
        arrays_set(&got, &op, &input);
        assert_ok(host_update_traffic(lanes[1], LINES, &op, got.master, got.grad,
                                      (void *[]){got.m, got.v}, copies ? got.copy : NULL));
        assert_same_states(&op, &got, &before);
        assert_same_bits(got.copy, copies ? zeros : before.copy, LINES * dtype_size(op.copy));
      }
  fixture_use(-1);
}

TEST_MAIN(fixture_create, fixture_destroy)
