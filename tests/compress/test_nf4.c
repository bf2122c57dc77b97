/* NormalFloat4 on the host device. Oracles: codes, scales and values by the rules of bitsandbytes
 * (tests/fixtures/make_nf4.py), byte for byte; a vector on one rank; and a parameter by itself. */
#include <math.h>

#include "base/append.h"
#include "base/hash.h"
#include "compress/nf4.h"
#include "compress/rule/nf4.h"
#include "fixture.h"

enum { MOST = 400000 };

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

static void make_vector(uint32_t seed, int exponent, int64_t n, float *x)
{
  for (int64_t i = 0; i < n; i++) {
    seed = seed * 747796405 + 2891336453;
    x[i] = ldexpf((float)((int32_t)(seed >> 8) - (1 << 23)), exponent - 23);
  }
}

static void read_bytes(const char *text, int64_t n, void *out)
{
  assert_int_equal(strlen(text), 2 * n);
  for (int64_t i = 0; i < n; i++) {
    unsigned byte;
    assert_int_equal(sscanf(text + 2 * i, "%2x", &byte), 1);
    ((uint8_t *)out)[i] = (uint8_t)byte;
  }
}

/* "lcg:SEED:EXPONENT:PLACE:VALUE", or bytes in hexadecimal: all, or those of "blocks:". */
static void read_vector(const char *text, int64_t n, float *x)
{
  const bool negative = *text == '-';
  uint32_t seed;
  int exponent;
  long place;
  float value;
  const int fields =
      sscanf(text + negative, "lcg:%" SCNu32 ":%d:%ld:%f", &seed, &exponent, &place, &value);
  if (fields >= 2) {
    make_vector(seed, exponent, n, x);
    if (fields == 4)
      x[place] = value;
    for (int64_t i = 0; i < n && negative; i++)
      x[i] = -fabsf(x[i]);
    return;
  }
  const bool firsts = !strncmp(text, "blocks:", 7);
  memset(x, 0, (size_t)n * 4);
  read_bytes(text + (firsts ? 7 : 0), (firsts ? nf4_blocks(n) : n) * 4, x);
  for (int64_t block = firsts ? nf4_blocks(n) - 1 : 0; block > 0; block--) {
    x[block * NF4_BLOCK] = x[block];
    x[block] = 0;
  }
}

/* Scales of a message of a whole parameter: its mean, then the largest deviations. Zeros follow. */
static void check_scales(const char *name, const char *message, int64_t n, const char *want)
{
  const struct nf4_segment *segment = (const void *)(message + nf4_segments_at(n));
  const int64_t scales = nf4_scales(nf4_blocks(n));
  float *const found = guarded(4 * scales);
  memcpy(found, &segment->mean, 4);
  memcpy(found + 1, segment + 1, (size_t)(scales - 1) * 4);
  expect_bytes(name, "scales", found, 4 * scales, want);
  for (const char *at = (const char *)(segment + 1) + 4 * (scales - 1);
       at < message + nf4_bytes(n, 1); at++)
    assert_int_equal(*at, 0);
}

static void check_row(const struct codec *codec, struct lane *lane, char *field[8])
{
  static float x[MOST];
  const int64_t n = strtoll(field[1], NULL, 10), bytes = nf4_bytes(n, 1);
  const struct codec_pass pass = pass_of(codec, lane, n, 1, 0), twice = {lane, n, 2};
  read_vector(field[2], n, x);
  char *message = guarded(2 * bytes), *values = guarded(8 * n);
  must(codec->ops->encode(codec, &pass, x, message));
  expect_bytes(field[0], "codes", message, (n + 1) / 2, field[3]);
  check_scales(field[0], message, n, field[4]);
  expect_bytes(field[0], "codes of magnitudes", message + nf4_code_bytes(n), nf4_blocks(n),
               field[5]);
  for (int64_t i = nf4_code_bytes(n) + nf4_blocks(n); i < nf4_segments_at(n) - 8; i++)
    assert_int_equal(message[i], 0);
  must(codec->ops->decode(codec, &pass, message, bytes, QUANT_SET, DTYPE_BF16, values));
  expect_bytes(field[0], "values in bf16", values, 2 * n, field[7]);
  memcpy(message + bytes, message, (size_t)bytes);
  must(codec->ops->decode(codec, &twice, message, bytes, QUANT_SET_EACH, DTYPE_F32, values));
  expect_bytes(field[0], "values in fp32", values, 4 * n, field[6]);
  expect_bytes(field[0], "values of the second message", values + 4 * n, 4 * n, field[6]);
}

CODEC_TEST(bits_are_those_of_bitsandbytes)
{
  char path[512], line[4096], *field[8], *save;
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
    for (int f = 0; f < 8; f++)
      assert_non_null(field[f] = strtok_r(f ? NULL : line, " \n", &save));
    for (int lane = 0; lane < 2; lane++)
      check_row(&codec, lanes[lane], field);
    rows++;
  }
  fclose(file);
  assert_int_equal(rows, 22);
}

/* ---- a vector of several parameters on several ranks ---- */

/* With a gap after one of them, and one that is zero. */
static const int64_t sizes[] = {1, 40000, 63, 16385, 20000, 64, 65, 16384};
enum { PARAMS = sizeof sizes / sizeof *sizes, GAP = 300 /* blocks */, RANKS = 7 };

struct vector {
  struct nf4_param param[PARAMS];
  int64_t n; /* to the end of the last parameter */
  int64_t scales;
  float *x;
};

static struct vector make_params(void)
{
  struct vector v = {.n = 0};
  v.x = guarded(MOST * 4);
  memset(v.x, 0, MOST * 4);
  for (int p = 0; p < PARAMS; p++) {
    v.param[p] = (struct nf4_param){v.n / NF4_BLOCK, nf4_blocks(sizes[p]), v.scales};
    if (sizes[p] != 20000)
      make_vector(100 + (uint32_t)p, -p, sizes[p], v.x + v.n);
    if (sizes[p] == 16385)
      v.x[v.n + 5000] = 99;
    v.scales += nf4_scales(v.param[p].blocks);
    v.n += (v.param[p].blocks + (p == 1 ? GAP : 0)) * NF4_BLOCK;
  }
  return v;
}

/* Messages of all ranks, as they agree on scales. Known scales are those of decoded values. */
static char *encode_on(const struct vector *v, int ranks, int64_t shard, float *scales)
{
  const bool known = !isnan(*scales);
  const int64_t bytes = nf4_bytes(shard, PARAMS), blocks = shard / NF4_BLOCK;
  char *messages = guarded(ranks * bytes);
  float *const magnitude = guarded(ranks * blocks * 4), *const own = guarded(v->scales * 4);
  int64_t sum[PARAMS][EXACTSUM_WORDS] = {{0}};
  struct exactsum part[PARAMS];
  const bool exact[PARAMS] = {known, known, known, known, known, known, known, known};
  struct nf4_cut cut[RANKS];
  for (int r = 0; r < ranks; r++) {
    cut[r] = (struct nf4_cut){PARAMS, v->param, r * blocks, blocks, magnitude + r * blocks};
    must(device->ops->nf4_code(lanes[1], shard, v->x + r * shard, messages + r * bytes,
                               magnitude + r * blocks));
    nf4_sum(&cut[r], part);
    for (int p = 0; p < PARAMS; p++)
      for (int w = 0; w < EXACTSUM_WORDS; w++)
        sum[p][w] += ((const int64_t *)(const void *)&part[p])[w];
  }
  for (int r = 0; r < ranks && !known; r++) {
    for (int64_t i = 0; i < v->scales; i++)
      own[i] = NAN;
    nf4_scale(&cut[r], (const struct exactsum *)(const void *)sum, own);
    for (int64_t i = 0; i < v->scales; i++)
      scales[i] = r == 0 || own[i] > scales[i] ? own[i] : scales[i];
  }
  for (int r = 0; r < ranks; r++)
    nf4_complete(&cut[r], scales, exact, shard, messages + r * bytes);
  return messages;
}

static float *decode_on(int ranks, int64_t shard, const char *messages)
{
  struct codec codec;
  const struct codec_pass pass = {lanes[0], shard, ranks};
  float *out = guarded(ranks * shard * 4);
  must(codec_make_frozen("nf4", &codec));
  must(codec.ops->decode(&codec, &pass, messages, nf4_bytes(shard, PARAMS), QUANT_SET_EACH,
                         DTYPE_F32, out));
  return out;
}

static int64_t shard_of(const struct vector *v, int ranks)
{
  return (v->n + 256 * ranks - 1) / (256 * ranks) * 256;
}

/* Nor do they depend on other parameters. */
CODEC_TEST(codes_do_not_depend_on_ranks)
{
  static const int counts[] = {1, 2, 3, 5, 7};
  const struct vector v = make_params();
  struct codec codec;
  float *scales[5];
  must(codec_make_frozen("nf4", &codec));
  for (int c = 0; c < 5; c++) {
    const int64_t shard = shard_of(&v, counts[c]);
    scales[c] = guarded(v.scales * 4);
    *scales[c] = NAN;
    const char *messages = encode_on(&v, counts[c], shard, scales[c]);
    assert_memory_equal(scales[c], scales[0], (size_t)v.scales * 4);
    const float *out = decode_on(counts[c], shard, messages);
    for (int p = 0; p < PARAMS; p++) {
      const struct codec_pass pass = pass_of(&codec, lanes[0], sizes[p], 1, 0);
      const int64_t begin = v.param[p].begin;
      const char *alone = encoded(&codec, &pass, v.x + begin * NF4_BLOCK);
      assert_memory_equal(decoded(&codec, &pass, alone), out + begin * NF4_BLOCK,
                          (size_t)sizes[p] * 4);
      for (int64_t i = 0; i < v.param[p].blocks; i++)
        assert_int_equal(alone[nf4_code_bytes(sizes[p]) + i],
                         messages[(begin + i) / (shard / NF4_BLOCK) * nf4_bytes(shard, PARAMS) +
                                  nf4_code_bytes(shard) + (begin + i) % (shard / NF4_BLOCK)]);
    }
    for (int64_t i = v.param[1].begin * NF4_BLOCK + sizes[1]; i < v.param[2].begin * NF4_BLOCK; i++)
      assert_true(out[i] == 0);
    for (int64_t i = v.n; i < counts[c] * shard; i++)
      assert_true(out[i] == 0);
  }
}

/* A checkpoint holds decoded values and scales. Zeros have no codes of their own. */
CODEC_TEST(decoded_values_with_their_scales_have_the_same_codes)
{
  struct vector v = make_params();
  for (int e = -104; e <= 104; e += 26) {
    float *scales = guarded(v.scales * 4);
    const int64_t shard = shard_of(&v, 3), more = shard_of(&v, 5);
    struct vector scaled = v;
    scaled.x = guarded(MOST * 4);
    for (int64_t i = 0; i < MOST; i++)
      scaled.x[i] = i % 7000 < 130 ? -0.0f : ldexpf(v.x[i], e);
    *scales = NAN;
    const float *first = decode_on(3, shard, encode_on(&scaled, 3, shard, scales));
    memcpy(scaled.x, first, (size_t)v.n * 4);
    const float *second = decode_on(5, more, encode_on(&scaled, 5, more, scales));
    int64_t zeros = 0;
    for (int64_t i = 0; i < v.n; i++) {
      assert_true(first[i] == second[i]);
      zeros += first[i] == 0;
    }
    assert_in_range(zeros, 20000, v.n / 2);
  }
}

TEST(a_large_unit_has_0_516_bytes_per_element)
{
  const int64_t n = INT64_C(218112000);
  assert_true((double)nf4_bytes(n, 9) / (double)n < 0.5 + 1.0 / 64 + 4.0 / 16384 + 1e-5);
  assert_true((double)nf4_bytes(n, 9) / (double)n > 0.5 + 1.0 / 64 + 4.0 / 16384);
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
