/* What holds for every codec, on the host device. Oracles: rows of codecs.txt, the decoded message
 * of one vector, the pairwise tree of additions in fp32 for the bits of a sum, and the scalar
 * conversions of base/dtype.h for plain vectors. Bytes around each output guard its ends. */
#include "base/append.h"
#include "device/rounding.h"
#include "fixture.h"
#include "tests/rows.h"

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
} cases[] = {{"none", through_f32}, {"bf16", through_bf16}, {"fp16", through_fp16}};
enum { CASES = sizeof cases / sizeof cases[0] };

static const int64_t lengths[] = {1, 3, 17, 65537};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

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

static void round_trip(int which, int64_t n, struct lane *lane)
{
  enum { PARTS = 3 };
  const struct codec codec = codec_of("%s", cases[which].name);
  const struct codec_pass pass = pass_of(&codec, lane, n, PARTS, 0);
  const int64_t bytes = codec.ops->bytes(&codec, n);
  const float *x = vectors(PARTS * n, value);
  const char *messages = encoded(&codec, &pass, x);
  if (codec.ops->traits & CODEC_IDENTITY)
    assert_memory_equal(messages, x, (size_t)(PARTS * bytes));
  for (int part = 0; part < PARTS; part++) {
    const float *out = decoded(&codec, &pass, messages + part * bytes);
    for (int64_t i = 0; i < n; i++) {
      const float expected = cases[which].round(x[part * n + i]);
      assert_memory_equal(&out[i], &expected, sizeof expected);
    }
  }
}

CODEC_TEST(a_vector_comes_back_rounded_once)
{
  for (int which = 0; which < CASES; which++)
    for (int l = 0; l < LENGTHS; l++)
      for (int t = 0; t < 2; t++)
        round_trip(which, lengths[l], lanes[t]);
}

static float bounded(int64_t i)
{
  const uint32_t h = (uint32_t)(i + 1) * 2246822519u;
  return ((float)(h >> 8) - 8388608.0f) / 8388608.0f * ldexpf(1, (int)(h % 7));
}

/* As in a group of one: the message is the gradient, and the sum takes its place. */
CODEC_TEST(one_vector_is_its_own_sum)
{
  enum { N = 17 };
  const struct codec codec = codec_of("none");
  float *x = vectors(N, bounded), expected[N];
  memcpy(expected, x, sizeof expected);
  const struct codec_pass pass = {.lane = lanes[0], .n = N, .parts = 1};
  must(codec.ops->decode(&codec, &pass, x, N * 4, QUANT_SET, DTYPE_F32, x));
  assert_memory_equal(x, expected, sizeof expected);
  must(codec.ops->decode(&codec, &pass, x, N * 4, QUANT_ADD, DTYPE_F32, x));
  for (int i = 0; i < N; i++)
    assert_true(x[i] == 2 * expected[i]);
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
  const int64_t bytes = codec->ops->bytes(codec, n), size = PARTS * n * (int64_t)dtype_size(type);
  const struct codec_pass pass = pass_of(codec, lane, n, PARTS, 7);
  const char *messages = encoded(codec, &pass, vectors(PARTS * n, bounded));
  void *out = guarded(size);
  for (int64_t i = 0; i < PARTS * n; i++)
    put_element(out, type, i, 0.25f * (float)i);
  must(codec->ops->decode(codec, &pass, messages, bytes,
                          accumulate ? QUANT_ADD_EACH : QUANT_SET_EACH, type, out));
  for (int part = 0; part < PARTS; part++) {
    const float *one = decoded(codec, &pass, messages + part * bytes);
    for (int64_t i = 0; i < n; i++) {
      const int64_t at = part * n + i;
      const float before = rounded(0.25f * (float)at, type),
                  expected = rounded(accumulate ? before + one[i] : one[i], type);
      assert_true(element_of(out, type, at) == expected);
    }
  }
  release(NULL);
}

/* For every codec that is not for sums alone. Oracle: the sum of one message, and one rounding. */
CODEC_TEST(messages_are_decoded_one_by_one)
{
  static const char *const names[] = {
#define CODEC_NAME(name, kind, title, source) #name,
      CODEC_ROWS(CODEC_NAME) "topk+int8"};
#undef CODEC_NAME
  for (size_t c = 0; c < sizeof names / sizeof *names; c++)
    for (int way = 0; way < 4; way++) {
      const enum dtype type = way / 2 ? DTYPE_BF16 : DTYPE_F32;
      const struct codec codec = codec_of("%s feedback", names[c]);
      if (codec.ops->traits & (CODEC_FOR_SUMS | CODEC_NEEDS_MAX))
        continue; /* for sums alone */
      if (c < CASES && type != DTYPE_F32)
        continue; /* of plain vectors: see below */
      decode_all(&codec, 17, lanes[0], way % 2, type);
      decode_all(&codec, 65537, lanes[1], way % 2, type);
    }
  const struct codec plain = codec_of("bf16");
  const struct codec_pass pass = {.lane = lanes[0], .n = 1, .parts = 1};
  float nothing = 0;
  assert_int_equal(
      plain.ops->decode(&plain, &pass, &nothing, 2, QUANT_SET_EACH, DTYPE_BF16, &nothing),
      STATUS_UNSUPPORTED);
  assert_string_equal(status_text(), "codec bf16 decodes to fp32, not to bf16");
}

/* ---- every codec ---- */

enum { MOST_PARTS = 17 };

static bool seen[CODECS];

/* "traits; settings; bytes of 1,000 elements and of 2^33". */
static void check_row(const char *text, const char *expected)
{
  static const char *const traits[] = {"identity", "lossless", "unbiased", "vote",  "sparse",
                                       "seed",     "low_rank", "variable", "alone", "max"};
  struct codec codec;
  char found[512] = "";
  must(codec_from(text, &codec));
  assert_true(*codec.ops->source);
  seen[codec_number(codec.ops)] = true;
  for (int t = 0; t < 10; t++)
    if (codec.ops->traits & 1U << t)
      append_text(found, sizeof found, "%s ", traits[t]);
  append_text(found, sizeof found, "block %lld, levels %d, rank %d, density %g, threshold %g, ",
              (long long)codec.set.block, codec.set.levels, codec.set.rank, codec.set.density,
              codec.set.threshold);
  append_text(found, sizeof found, "bytes %lld %lld %lld", (long long)codec.ops->bytes(&codec, 0),
              (long long)codec.ops->bytes(&codec, 1000),
              (long long)codec.ops->bytes(&codec, INT64_C(1) << 33));
  assert_string_equal(found, expected);
}

CODEC_TEST(a_codec_is_what_its_row_says)
{
  rows_each("tests/compress/codecs.txt", "rows", check_row);
  for (int c = 0; c < CODECS; c++)
    assert_true(seen[c]); /* each has a row, so the tests below hold for it */
}

static void check_refused(const char *text, const char *sentence)
{
  struct codec codec = {NULL};
  if (codec_from(text, &codec) != STATUS_USAGE)
    fail_msg("%s is taken", text);
  if (!strstr(status_text(), sentence))
    fail_msg("%s: %s", text, status_text());
  assert_null(codec.ops);
}

CODEC_TEST(bad_settings_are_refused)
{
  rows_each("tests/compress/codecs.txt", "refused", check_refused);
}

/* Vectors of one codec, their messages with a gap between them, and what each decodes to. */
struct trial {
  struct codec codec;
  int64_t n, bytes, stride;
  int parts;
  uint64_t seed;
  float largest, *x, *each;
  char *messages;
};

static struct codec_pass begin_pass(const struct trial *t, struct lane *lane)
{
  struct codec_pass pass = pass_of(&t->codec, lane, t->n, t->parts, t->seed);
  pass.largest = &t->largest;
  return pass;
}

static char *encode_all(const struct trial *t, struct lane *lane)
{
  const struct codec_pass pass = begin_pass(t, lane);
  return encoded(&t->codec, &pass, t->x);
}

/* The length of a message, without what its codec left as it was. */
static int64_t length_of(const struct trial *t, const char *message)
{
  int64_t length = t->bytes;
  if (t->codec.ops->traits & CODEC_VARIABLE && t->n > 0)
    memcpy(&length, message, sizeof length);
  return length;
}

/* Ends the trial before. */
static void begin_trial(struct trial *t, const char *text, int64_t n, int parts)
{
  release(NULL);
  *t = (struct trial){.codec = codec_of("%s", text),
                      .n = n,
                      .parts = parts,
                      .seed = 77,
                      .each = guarded(parts * n * 4)};
  t->bytes = t->codec.ops->bytes(&t->codec, n);
  t->stride = t->bytes + 256;
  t->x = vectors(parts * n, bounded);
  for (int64_t i = 0; i < parts * n; i++)
    t->largest = fmaxf(t->largest, fabsf(t->x[i]));
  char *close = encode_all(t, lanes[1]), *again = encode_all(t, lanes[0]);
  t->messages = guarded(parts * t->stride);
  for (int p = 0; p < parts; p++) {
    const char *message = close + p * t->bytes;
    assert_memory_equal(message, again + p * t->bytes, (size_t)length_of(t, message));
    memcpy(t->messages + p * t->stride, message, (size_t)t->bytes);
    const struct codec_pass pass = begin_pass(t, lanes[0]);
    memcpy(t->each + p * n, decoded(&t->codec, &pass, message), (size_t)n * 4);
  }
}

/* Sign of the sum of signs, times the sum of scales. */
static float vote(const float *value, int parts)
{
  float size[MOST_PARTS], votes = 0;
  for (int p = 0; p < parts; p++) {
    size[p] = fabsf(value[p]);
    votes += signbit(value[p]) ? -1 : 1;
  }
  return votes == 0 ? 0 : copysignf(tree_sum(size, parts), votes);
}

/* Messages with few elements are added one after another, the others as a tree. */
static float sum_of(const struct trial *t, const float *value, bool accumulate, float before)
{
  const unsigned traits = t->codec.ops->traits;
  float sum = accumulate ? before : 0;
  if (traits & CODEC_VOTE)
    return sum + vote(value, t->parts);
  if (!(traits & (CODEC_SPARSE | CODEC_COMMON_SEED)))
    return accumulate ? before + tree_sum(value, t->parts) : tree_sum(value, t->parts);
  for (int p = 0; p < t->parts; p++)
    sum += value[p];
  return sum;
}

static void check_sum(const struct trial *t, bool accumulate)
{
  const bool rotated = t->codec.ops == &codec_hadamard_int4; /* is transformed after the sum */
  float *out = guarded(t->n * 4);
  for (int64_t i = 0; i < t->n; i++)
    out[i] = accumulate ? 0.25f * (float)i : NAN;
  const struct codec_pass pass = begin_pass(t, lanes[0]);
  must(t->codec.ops->decode(&t->codec, &pass, t->messages, t->stride,
                            accumulate ? QUANT_ADD : QUANT_SET, DTYPE_F32, out));
  for (int64_t i = 0; i < t->n; i++) {
    float value[MOST_PARTS];
    for (int p = 0; p < t->parts; p++)
      value[p] = t->each[p * t->n + i];
    const float want = sum_of(t, value, accumulate, 0.25f * (float)i);
    assert_true(rotated ? fabsf(out[i] - want) <= 1e-5f * (1 + fabsf(want)) : out[i] == want);
  }
}

/* Each vector loses what its own message says. */
static void check_loss(struct trial *t)
{
  const struct codec_pass pass = begin_pass(t, lanes[1]);
  char *messages = encode_all(t, lanes[0]);
  float *left = vectors(t->parts * t->n, bounded);
  must(subtract(&t->codec, &pass, messages, left));
  for (int64_t i = 0; i < t->parts * t->n; i++)
    assert_true(left[i] == t->x[i] - t->each[i]);
}

static void check_sums(const char *text, __attribute__((unused)) const char *expected)
{
  static const int64_t sizes[] = {0, 1, 77, 1300, 4097};
  static const int parts[] = {1, 2, 3, 5, MOST_PARTS};
  struct trial t;
  for (int s = 0; s < 5; s++)
    for (int p = 0; p < 5; p++) {
      begin_trial(&t, text, sizes[s], parts[p]);
      check_sum(&t, false);
      check_sum(&t, true);
      check_loss(&t);
    }
}

CODEC_TEST(sums_and_losses_are_of_decoded_messages)
{
  rows_each("tests/compress/codecs.txt", "rows", check_sums);
}

/* Equal vectors of one call, and calls of another seed, get bits of their own, where bits are
 * random. */
static void check_seed(const char *text, __attribute__((unused)) const char *expected)
{
  enum { N = 5000 };
  struct trial t;
  begin_trial(&t, text, N, 2);
  memcpy(t.x + N, t.x, N * sizeof *t.x);
  const unsigned traits = t.codec.ops->traits;
  const bool random = (traits & (CODEC_UNBIASED | CODEC_COMMON_SEED | CODEC_LOW_RANK)) != 0,
             apart = random && !(traits & CODEC_COMMON_SEED);
  char *first = encode_all(&t, lanes[0]), *same = encode_all(&t, lanes[0]);
  t.seed++;
  char *other = encode_all(&t, lanes[0]);
  const size_t n = (size_t)length_of(&t, first);
  assert_memory_equal(first, same, n);
  assert_true((memcmp(first, other, n) != 0) == random);
  assert_true((memcmp(first, first + t.bytes, n) != 0) == apart);
}

CODEC_TEST(a_message_is_a_function_of_vector_and_seed)
{
  rows_each("tests/compress/codecs.txt", "rows", check_seed);
}

/* Any bytes are a message. Guards around the output and the scratch memory are the oracle. A codec
 * of variable length refuses such a message (test_exponent.c). */
static void check_damage(const char *text, __attribute__((unused)) const char *expected)
{
  static const int64_t sizes[] = {1, 255, 4097};
  struct trial t;
  for (int s = 0; s < 3; s++)
    for (int turn = 0; turn < 20; turn++) {
      begin_trial(&t, text, sizes[s], 1);
      for (int64_t i = 0; i < t.bytes; i++)
        t.messages[i] = (char)(turn == 0 ? 0xff : rounding_bits((uint64_t)turn, i));
      const struct codec_pass pass = begin_pass(&t, lanes[0]);
      if (!(t.codec.ops->traits & CODEC_VARIABLE))
        (void)decoded(&t.codec, &pass, t.messages);
    }
}

CODEC_TEST(a_damaged_message_stays_in_bounds)
{
  rows_each("tests/compress/codecs.txt", "rows", check_damage);
}

/* Each part of a codec counts. */
CODEC_TEST(codecs_are_told_apart)
{
  const struct codec one = codec_of("none");
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

TEST_MAIN(start, stop)
