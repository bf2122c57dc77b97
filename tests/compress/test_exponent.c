/* Codec exponent on the host device, of fp32 and of bf16. Oracles: the vector itself, bit for bit.
 * A second packer and unpacker are written element by element from the description in
 * compress/rule/exponent.h. Messages are damaged on purpose. */
#include <math.h>

#include "compress/compress.h"
#include "compress/rule/exponent.h"
#include "device/device.h"
#include "device/host/kernels.h"
#include "device/lane.h"
#include "fixture.h"

enum { PARTS = 3, KINDS = 8 };

static struct codec codec;
static int size; /* of its elements */

static void use_type(enum dtype type)
{
  codec.type = type;
  size = (int)dtype_size(type);
}

/* CODEC_TEST() for both types. */
#define EXPONENT_TEST(name)                                                                        \
  static void test_##name(void);                                                                   \
  CODEC_TEST(name)                                                                                 \
  {                                                                                                \
    for (int bf16 = 0; bf16 < 2; bf16++) {                                                         \
      use_type(bf16 ? DTYPE_BF16 : DTYPE_F32);                                                     \
      test_##name();                                                                               \
      release(NULL);                                                                               \
    }                                                                                              \
    use_type(DTYPE_F32);                                                                           \
  }                                                                                                \
  static void test_##name(void)

static uint32_t hash(uint64_t i)
{
  uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return (uint32_t)(x >> 32);
}

/* Twelve uniform numbers have the deviation 1. */
static float normal(int64_t i)
{
  float sum = -6;
  for (int k = 0; k < 12; k++)
    sum += (float)hash((uint64_t)(12 * i + k)) * 0x1p-32f;
  return sum;
}

static uint32_t bits_of(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* Every kind of block: with short codes, with all widths, raw, of zeros, and mixed ones. */
static uint32_t wide_pattern(int kind, int64_t i)
{
  static const uint32_t special[] = {0,          0x80000000, 1,          0x807fffff,
                                     0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001,
                                     0xffffffff, 0x7f7fffff, 0x00800000, 0x3f800000};
  const uint32_t random = hash((uint64_t)i);
  switch (kind) {
  case 0: return bits_of(normal(i));
  case 1: return random; /* any exponent */
  case 2: return 0;
  case 3: return 0x3f800000 | (random & 0x807fffff); /* one exponent */
  case 4: return special[random % 12];
  case 5: return (uint32_t)(i / EXPONENT_BLOCK) % 2 ? 0 : bits_of(normal(i) * 1e-38f);
  case 6: /* codes of all widths from block to block */
    return (127 - random % (1u << ((uint32_t)(i / EXPONENT_BLOCK) % 8))) << 23 |
           (random >> 3 & 0x807fffff);
  default: return i % 1021 == 7 ? special[random % 12] : bits_of(normal(i) * 1e-4f);
  }
}

/* Elements of bf16 are not rounded. NaN is quiet there, as a cast makes it. */
static uint32_t pattern(int kind, int64_t i)
{
  const uint32_t wide = wide_pattern(kind, i), word = size == 4 ? wide : wide & 0xffff0000;
  return size == 2 && (word & 0x7fffffff) > 0x7f800000 ? word | 0x00400000 : word;
}

static float *vectors(int kind, int64_t n)
{
  float *x = guarded(n * 4);
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = pattern(kind, i);
    memcpy(&x[i], &bits, sizeof bits);
  }
  return x;
}

static const int64_t lengths[] = {1, 2, 31, 33, 1023, 1024, 1025, 5000, 70001};
enum { LENGTHS = sizeof lengths / sizeof lengths[0], MOST = 70001 };

/* ---- the reference ---- */

static int exponent_at(uint32_t bits)
{
  return (int)(bits >> 23 & 0xff);
}

/* Bytes of the data of a block with codes of `width` bits; -1: it has none of this width. */
static int64_t bytes_of_width(const uint32_t *x, int64_t m, int width, int largest)
{
  int64_t bytes = 128 * width + (size - 1) * m;
  for (int64_t i = 0; i < m; i++) {
    const int far = largest - exponent_at(x[i]);
    if (width == 0 && far > 0)
      return -1;
    bytes += width > 0 && width < 8 && far >= (1 << width) - 1;
  }
  return bytes;
}

static int64_t whole_lines(int64_t bytes)
{
  return (bytes + 15) / 16 * 16;
}

/* Bytes of the data of the best form. */
static int64_t bytes_of_block(const uint32_t *x, int64_t m)
{
  int64_t least = INT64_MAX;
  int largest = 0;
  uint32_t any = 0;
  for (int64_t i = 0; i < m; i++) {
    largest = exponent_at(x[i]) > largest ? exponent_at(x[i]) : largest;
    any |= x[i];
  }
  for (int width = 0; width <= 8; width++) {
    const int64_t bytes = bytes_of_width(x, m, width, largest);
    least = bytes >= 0 && bytes < least ? bytes : least;
  }
  return any == 0 ? 0 : whole_lines(least < size * m ? least : size * m);
}

static int64_t bytes_of_message(const uint32_t *x, int64_t n)
{
  const int64_t blocks = (n + 1023) / 1024;
  int64_t bytes = whole_lines(32 + 8 * blocks);
  for (int64_t b = 0; b < blocks; b++)
    bytes += bytes_of_block(x + 1024 * b, n - 1024 * b < 1024 ? n - 1024 * b : 1024);
  return bytes;
}

/* Element i of the block, read bit by bit. */
static uint32_t element_of(const unsigned char *data, int width, int largest, int64_t m, int64_t i)
{
  const unsigned char *low = data + 128 * width, *high = low + (size - 2) * m, *rest = high + m;
  int exponent = largest, escapes = 0;
  for (int64_t l = 0; l < 32; l++)
    for (int64_t k = 0; k < 32; k++) {
      int code = 0;
      for (int b = 0; b < width; b++)
        code |= (data[128 * b + 4 * l + k / 8] >> k % 8 & 1) << b;
      const bool escaped = width > 0 && width < 8 && code == (1 << width) - 1;
      if (32 * k + l == i)
        exponent = escaped ? rest[escapes] : largest - code;
      escapes += escaped;
    }
  return (uint32_t)(high[i] & 0x80) << 24 | (uint32_t)exponent << 23 |
         (uint32_t)(high[i] & 0x7f) << 16 |
         (size == 4 ? (uint32_t)low[2 * i + 1] << 8 | low[2 * i] : 0);
}

/* ---- tests ---- */

struct pack {
  struct codec_pass pass;
  float *x, *out;
  char *messages;
  int64_t bytes;
};

static struct pack pack(int kind, int64_t n, int parts, struct lane *lane)
{
  struct pack p = {.pass = pass_of(&codec, lane, n, parts, 0),
                   .x = vectors(kind, parts * n),
                   .out = guarded(parts * n * 4),
                   .bytes = codec.ops->bytes(&codec, n)};
  p.messages = encoded(&codec, &p.pass, p.x);
  return p;
}

static const struct exponent_header *header_of(const struct pack *p, int part)
{
  return (const void *)(p->messages + part * p->bytes);
}

static void each_comes_back(const struct pack *p)
{
  const int64_t n = p->pass.n;
  for (int part = 0; part < PARTS; part++) {
    const float *x = p->x + part * n;
    assert_memory_equal(decoded(&codec, &p->pass, p->messages + part * p->bytes), x, (size_t)n * 4);
    assert_int_equal(header_of(p, part)->bytes, bytes_of_message((const uint32_t *)x, n));
  }
}

EXPONENT_TEST(every_pattern_of_bits_comes_back)
{
  for (int kind = 0; kind < KINDS; kind++)
    for (int l = 0; l < LENGTHS; l++)
      for (int t = 0; t < 2; t++) {
        struct pack p = pack(kind, lengths[l], PARTS, lanes[t]);
        each_comes_back(&p);
      }
}

/* Bytes after the end of a message are not read: others replace them. */
EXPONENT_TEST(only_the_length_in_the_header_counts)
{
  for (int kind = 0; kind < KINDS; kind++) {
    struct pack p = pack(kind, 5000, PARTS, lanes[1]);
    for (int part = 0; part < PARTS; part++) {
      const int64_t bytes = header_of(&p, part)->bytes;
      assert_in_range(bytes, 1, p.bytes);
      memset(p.messages + part * p.bytes + bytes, 0x5a, (size_t)(p.bytes - bytes));
    }
    each_comes_back(&p);
  }
}

EXPONENT_TEST(elements_lie_where_the_description_says)
{
  for (int kind = 0; kind < KINDS; kind++) {
    struct pack p = pack(kind, 2500, 1, lanes[0]);
    const struct exponent_entry *entry = (const void *)(p.messages + 32);
    for (int64_t i = 0; i < 2500; i += 3) {
      const int64_t m = i < 2048 ? 1024 : 2500 - 2048;
      const struct exponent_entry e = entry[i / 1024];
      const unsigned char *data = (const unsigned char *)p.messages + 16 * (int64_t)e.at;
      uint32_t got = 0;
      if ((e.form & 0xff) == EXPONENT_RAW)
        memcpy((char *)&got + 4 - size, data + i % 1024 * size, (size_t)size);
      else if ((e.form & 0xff) != EXPONENT_ZEROS)
        got = element_of(data, (int)(e.form & 0xff), (int)(e.form >> 8 & 0xff), m, i % 1024);
      assert_int_equal(got, pattern(kind, i));
    }
  }
}

/* All variants of the kernels make the same message, and read it. */
EXPONENT_TEST(all_kernels_give_the_same_bytes)
{
  static uint32_t x[EXPONENT_BLOCK], out[EXPONENT_BLOCK];
  static char data[2][4 * EXPONENT_BLOCK + 16];
  for (int kind = 0; kind < KINDS; kind++)
    for (int64_t m = 1; m <= EXPONENT_BLOCK; m += m < 60 ? 1 : 241)
      for (int which = 0; kernels_variant(which); which++) {
        const struct kernels *kernels = kernels_variant(which), *first = kernels_variant(0);
        for (int64_t i = 0; i < m; i++)
          x[i] = pattern(kind, i + 7 * m);
        const uint32_t form = kernels->exponent_measure(m, size, x);
        assert_int_equal(form, first->exponent_measure(m, size, x));
        memset(data, 0, sizeof data);
        first->exponent_pack(form, m, size, x, data[0]);
        kernels->exponent_pack(form, m, size, x, data[1]);
        assert_memory_equal(data[0], data[1], sizeof data[0]);
        assert_true(kernels->exponent_unpack(form, m, size, data[0], out));
        assert_memory_equal(out, x, (size_t)m * 4);
      }
}

/* Messages of bf16 are those of rounded vectors, as a device casts them. */
CODEC_TEST(other_vectors_are_rounded_to_bf16)
{
  enum { N = 5000 };
  static uint16_t narrow[N];
  static float wide[N];
  use_type(DTYPE_BF16);
  const struct codec_pass pass = pass_of(&codec, lanes[1], N, 1, 0);
  const int64_t bytes = codec.ops->bytes(&codec, N);
  for (int kind = 0; kind < KINDS; kind++) {
    float *x = guarded(N * 4);
    for (int64_t i = 0; i < N; i++) {
      const uint32_t bits = wide_pattern(kind, i);
      memcpy(&x[i], &bits, sizeof bits);
    }
    const struct device_ops *ops = lanes[0]->device->ops;
    must(ops->cast(lanes[0], N, DTYPE_F32, x, DTYPE_BF16, narrow));
    must(ops->cast(lanes[0], N, DTYPE_BF16, narrow, DTYPE_F32, wide));
    const char *const message = encoded(&codec, &pass, x), *const same =
                                                               encoded(&codec, &pass, wide);
    assert_memory_equal(message, same, (size_t)((const struct exponent_header *)same)->bytes);
    uint16_t *out = guarded(N * 2);
    must(codec.ops->decode(&codec, &pass, message, bytes, QUANT_SET_EACH, DTYPE_BF16, out));
    assert_memory_equal(out, narrow, sizeof narrow);
  }
  use_type(DTYPE_F32);
}

/* ---- damage ---- */

static void expect_damage(struct pack *p, const char *sentence)
{
  assert_int_equal(
      codec.ops->decode(&codec, &p->pass, p->messages, p->bytes, QUANT_SET, DTYPE_F32, p->out),
      STATUS_INPUT);
  assert_string_equal(status_text(), sentence);
  assert_int_equal(subtract(&codec, &p->pass, p->messages, p->out), STATUS_INPUT);
}

static struct exponent_header *second_of(struct pack *p)
{
  return (void *)(p->messages + p->bytes);
}

CODEC_TEST(a_damaged_header_is_refused)
{
  struct pack p = pack(0, 3000, 2, lanes[1]);
  struct exponent_header *header = second_of(&p);
  const struct exponent_header good = *header;
  const struct exponent_header bad[] = {{.bytes = good.bytes, .n = good.n, .magic = good.magic ^ 1},
                                        {.bytes = good.bytes, .n = good.n + 1, .magic = good.magic},
                                        {.bytes = p.bytes + 1, .n = good.n, .magic = good.magic},
                                        {.bytes = 63, .n = good.n, .magic = good.magic}};
  for (int i = 0; i < 4; i++) {
    char sentence[160];
    *header = bad[i];
    snprintf(sentence, sizeof sentence,
             "message 1 of 2 is damaged: its header says %lld elements in %lld bytes, of 3000 in "
             "at most 12064",
             (long long)bad[i].n, (long long)bad[i].bytes);
    expect_damage(&p, sentence);
  }
}

CODEC_TEST(a_damaged_block_is_refused)
{
  static const char *const sentence = "message 1 of 2 is damaged: block 2 has no valid data";
  struct pack p = pack(0, 3000, 2, lanes[1]);
  struct exponent_entry *entry = (struct exponent_entry *)(second_of(&p) + 1) + 2;
  const struct exponent_entry good = *entry;
  const struct exponent_entry bad[] = {
      {(good.form & ~0xffu) | 11, good.at},          /* no width */
      {(good.form & 0xffff) | 1025u << 16, good.at}, /* more escapes than elements */
      {good.form + (1u << 16), good.at},             /* another number than the data have */
      {good.form + 1, good.at},                      /* another width than the data have */
      {EXPONENT_RAW, good.at},                       /* longer than the message */
      {good.form, 3},                                /* in the table */
      {good.form, (uint32_t)(second_of(&p)->bytes / 16)},
      {good.form, UINT32_MAX}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    *entry = bad[i];
    expect_damage(&p, sentence);
  }
  *entry = good;
  (void)summed(&codec, &p.pass, p.messages, p.bytes);
}

/* Any damage ends in a sentence or in numbers: the guards and the sanitizers see what is outside.
 */
EXPONENT_TEST(damaged_bytes_touch_nothing_outside)
{
  struct pack p = pack(7, 3000, 1, lanes[0]);
  for (uint64_t i = 0; i < 20000; i++) {
    unsigned char *at = (unsigned char *)p.messages + hash(i) % (i % 2 ? 64 : p.bytes);
    const unsigned char good = *at;
    *at = (unsigned char)hash(~i);
    (void)codec.ops->decode(&codec, &p.pass, p.messages, p.bytes, QUANT_SET, DTYPE_F32, p.out);
    *at = good;
  }
}

/* ---- facts ---- */

/* Exponents of normally distributed elements take 3.2 bits of 8, and there is an entry of 8 bytes.
 */
EXPONENT_TEST(normal_elements_take_27_or_11_bits)
{
  struct pack p = pack(0, MOST, 1, lanes[1]);
  const double bits = 8.0 * (double)header_of(&p, 0)->bytes / MOST, rest = 8 * size - 8;
  assert_true(bits > rest + 2.5 && bits < rest + 3.5);
  assert_true(fabs(codec_usual_bytes(&codec, MOST) * 8 / MOST / bits - 1) < 0.02);
}

EXPONENT_TEST(the_capacity_is_that_of_raw_blocks)
{
  for (int l = 0; l < LENGTHS; l++) {
    const int64_t n = lengths[l], blocks = (n + 1023) / 1024;
    assert_int_equal(codec.ops->bytes(&codec, n),
                     whole_lines(32 + 8 * blocks) + whole_lines(size * n));
    struct pack p = pack(1, n, 1, lanes[0]);
    assert_int_equal(header_of(&p, 0)->bytes, p.bytes);
  }
}

FIXTURE(make)
{
  must(codec_from("exponent", &codec));
  use_type(DTYPE_F32);
  return start(test_state);
}

TEST_MAIN(make, stop)
