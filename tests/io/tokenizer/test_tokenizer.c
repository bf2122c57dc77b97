/* Oracles: the result of Python's `regex` and a plain quadratic BPE for awkward texts
 * (data/expected.txt, by data/make_bpe.py). A quadratic BPE in this file. decode(encode(x)) ==
 * x. */

#include <inttypes.h>
#include <time.h>
#include <unistd.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/text/file.h"
#include "io/text/utf8.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/split.h"
#include "io/tokenizer/tokenizer.h"
#include "tests/rows.h"

#define ROWS "tests/io/tokenizer/tokenizer.txt"

static void data_path(const char *name, char out[512])
{
  const char *top = getenv("top_srcdir");
  snprintf(out, 512, "%s/tests/io/data/%s", top ? top : ".", name);
}

static struct tokenizer *trained(void)
{
  struct tokenizer *tokenizer = NULL;
  char path[512];
  data_path("bpe", path);
  must(tokenizer_create("gpt2", path, &tokenizer));
  return tokenizer;
}

static void encode(struct tokenizer *tokenizer, const char *text, size_t bytes,
                   struct tokenizer_tokens *out)
{
  must(tokenizer_encode(tokenizer, text, bytes, false, out));
}

static void check_round_trip(struct tokenizer *tokenizer, const char *text, size_t bytes)
{
  struct tokenizer_tokens tokens = {0};
  char *back = NULL;
  int64_t n = 0, room = 0;
  encode(tokenizer, text, bytes, &tokens);
  must(tokenizer_decode(tokenizer, tokens.id, tokens.n, &back, &n, &room));
  assert_int_equal(n, bytes);
  if (bytes)
    assert_memory_equal(back, text, bytes);
  for (int64_t i = 0; i < tokens.n; i++)
    assert_int_not_equal(tokens.id[i], tokenizer_end_of_text(tokenizer));
  mem_free(tokens.id);
  mem_free(back);
}

/* ---- UTF-8 */

static void check_invalid(const char *text, const char *at)
{
  assert_int_equal(utf8_find_invalid(text, strlen(text)), atoi(at));
}

TEST(test_utf8)
{
  rows_each(ROWS, "invalid", check_invalid);
  assert_int_equal(utf8_find_invalid("", 0), -1);
  assert_int_equal(utf8_find_invalid("a\0b", 3), -1);
}

/* Every sequence of up to three bytes, and of four with a lead of four, against the definition:
 * decode, then compare with the one right spelling. */
static bool is_character(const unsigned char *text, int bytes)
{
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  uint32_t code = bytes == 1 ? text[0] : text[0] & (0x7Fu >> bytes);
  if (bytes == 1)
    return text[0] < 0x80;
  if (text[0] >> (7 - bytes) != (0xFF >> (7 - bytes)) - 1)
    return false;
  for (int i = 1; i < bytes; i++) {
    if (text[i] >> 6 != 2)
      return false;
    code = code << 6 | (text[i] & 0x3F);
  }
  return code >= least[bytes] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

TEST(test_utf8_exhaustive)
{
  static const unsigned char edges[] = {0x00, 0x28, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                        0xBF, 0xC0, 0xC2, 0xE0, 0xED, 0xF4, 0xFF};
  for (unsigned lead = 0; lead < 256; lead++) /* the bytes after the lead from its edges only: 256 *
                                                 15^3 sequences of each length */
    for (unsigned a = 0; a < 15 * 15 * 15; a++) {
      unsigned char text[4] = {(unsigned char)lead, edges[a % 15], edges[a / 15 % 15],
                               edges[a / 225]};
      for (int bytes = 1; bytes <= 4; bytes++) {
        bool character = utf8_find_invalid((char *)text, (size_t)bytes) < 0;
        bool expected = false;
        for (unsigned cuts = 0; cuts < 1u << (bytes - 1) && !expected;
             cuts++) { /* some way to cut it into characters */
          int begin = 0;
          expected = true;
          for (int i = 1; i <= bytes && expected; i++)
            if (i == bytes || cuts >> (i - 1) & 1) {
              expected = is_character(text + begin, i - begin);
              begin = i;
            }
        }
        if (character != expected)
          fail_msg("%02X %02X %02X %02X, %d bytes: %s", text[0], text[1], text[2], text[3], bytes,
                   character ? "accepted" : "refused");
      }
    }
}

static void check_replaced(const char *text, const char *expected)
{
  char *out = NULL;
  int64_t n = 0, room = 0;
  must(utf8_replace("<", 1, &out, &n, &room)); /* appends */
  must(utf8_replace(text, strlen(text), &out, &n, &room));
  assert_int_equal(n, 1 + strlen(expected));
  assert_memory_equal(out + 1, expected, strlen(expected));
  assert_int_equal(utf8_find_invalid(out, (size_t)n), -1);
  mem_free(out);
}

/* The result of Python 3's bytes.decode("utf-8", "replace"). Table 3-8 of the Unicode Standard is
 * among the inputs. */
TEST(test_utf8_replace)
{
  check_replaced("", "");
  rows_each(ROWS, "replaced", check_replaced);
}

/* A valid random text of at most `most` bytes. */
static size_t random_text(struct rng_key key, uint64_t number, char *out, size_t most)
{
  size_t n = 0;
  for (uint64_t i = 0;; i++) {
    static const uint32_t spans[][2] = {{0x20, 0x7F},    {0x20, 0x7F},       {'a', 'z' + 1},
                                        {0x1, 0x20},     {' ', ' ' + 1},     {0x80, 0x800},
                                        {0x800, 0xD800}, {0x10000, 0x110000}};
    uint32_t draw[4];
    rng_block(key, number, i, draw);
    const uint32_t *span = spans[draw[0] % 8];
    unsigned char spelled[4];
    const size_t bytes =
        (size_t)utf8proc_encode_char((int32_t)(span[0] + draw[1] % (span[1] - span[0])), spelled);
    if (n + bytes > most || draw[2] % 64 == 0)
      return n;
    memcpy(out + n, spelled, bytes);
    n += bytes;
  }
}

TEST(test_round_trip)
{
  struct tokenizer *bytes = NULL, *gpt2 = trained();
  struct rng_key key = rng_key_make(1, "test text");
  char text[400];
  must(tokenizer_create("bytes", NULL, &bytes));
  for (uint64_t i = 0; i < 3000; i++) {
    size_t n = random_text(key, i, text, sizeof text);
    assert_int_equal(utf8_find_invalid(text, n), -1);
    check_round_trip(bytes, text, n);
    check_round_trip(gpt2, text, n);
  }
  tokenizer_destroy(bytes);
  tokenizer_destroy(gpt2);
  tokenizer_destroy(NULL);
}

/* ---- bytes */

TEST(test_bytes)
{
  struct tokenizer *tokenizer = NULL;
  struct tokenizer_tokens tokens = {0};
  char *text = NULL;
  int64_t bytes = 0, room = 0;
  must(tokenizer_create("bytes", NULL, &tokenizer));
  assert_string_equal(tokenizer_name(tokenizer), "bytes");
  assert_int_equal(tokenizer_vocab(tokenizer), 257);
  assert_int_equal(tokenizer_end_of_text(tokenizer), 256);
  encode(tokenizer, "A\xC3\xA9", 3, &tokens);
  encode(tokenizer, "z", 1, &tokens); /* appends */
  assert_int_equal(tokens.n, 4);
  assert_memory_equal(tokens.id, ((int32_t[]){'A', 0xC3, 0xA9, 'z'}), 4 * sizeof(int32_t));
  must(tokenizer_decode(tokenizer, (int32_t[]){'x', 256, 0xC3}, 3, &text, &bytes,
                        &room)); /* end of text gives nothing, half a character is passed on */
  assert_int_equal(bytes, 2);
  assert_memory_equal(text, "x\xC3", 2);
  assert_int_equal(tokenizer_decode(tokenizer, (int32_t[]){257}, 1, &text, &bytes, &room),
                   STATUS_INPUT);
  assert_int_equal(tokenizer_decode(tokenizer, (int32_t[]){-1}, 1, &text, &bytes, &room),
                   STATUS_INPUT);
  must_fail(tokenizer_encode(tokenizer, "ab\xFF", 3, false, &tokens), STATUS_INPUT, "byte 2");
  assert_int_equal(tokens.n, 4);
  mem_free(tokens.id);
  mem_free(text);
  tokenizer_destroy(tokenizer);
}

TEST(test_unknown_name)
{
  struct tokenizer *tokenizer = NULL;
  assert_int_equal(tokenizer_create("gpt3", NULL, &tokenizer), STATUS_USAGE);
  assert_int_equal(tokenizer_create("gpt2", NULL, &tokenizer), STATUS_USAGE);
  assert_int_equal(tokenizer_create("gpt2", "/no/such/folder", &tokenizer), STATUS_INPUT);
  assert_null(tokenizer);
}

/* ---- all of it */

/* One line of expected.txt. */
static void check_line(struct tokenizer *tokenizer, struct split *split, char *line, int64_t number)
{
  char text[8192], *tab = strchr(line, '\t');
  size_t bytes = 0, at = 0, end = 0;
  assert_non_null(tab);
  for (const char *c = line; c < tab; c += *c == '|' ? 1 : 2)
    if (*c != '|') {
      unsigned byte;
      assert_true(bytes < sizeof text && sscanf(c, "%2x", &byte) == 1);
      text[bytes++] = (char)byte;
    }
  for (const char *word = line; word < tab; word += strcspn(word, "|\t") + 1, at = end) {
    must(split_next(split, text, bytes, at, &(size_t){0}, &end));
    if (2 * (end - at) != strcspn(word, "|\t"))
      fail_msg("line %" PRId64 ": the word at byte %zu has %zu bytes", number, at, end - at);
  }
  assert_int_equal(at, bytes);

  struct tokenizer_tokens tokens = {0};
  encode(tokenizer, text, bytes, &tokens);
  char *at_id = tab + 1;
  for (int64_t i = 0; i < tokens.n; i++)
    assert_int_equal(tokens.id[i], strtol(at_id, &at_id, 10));
  assert_int_equal(*at_id, '\0');
  mem_free(tokens.id);
}

TEST(test_against_another_program)
{
  struct tokenizer *tokenizer = trained();
  struct split *split = NULL;
  char path[512], *text = NULL, *rest = NULL;
  size_t bytes = 0;
  int64_t lines = 0;
  must(split_create("GPT-2", &(struct split_rule){.pattern = split_pattern("gpt2")}, &split));
  data_path("expected.txt", path);
  must(file_read_all(path, 1 << 20, &text, &bytes));
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    check_line(tokenizer, split, line, ++lines);
  assert_true(lines > 400);
  assert_int_equal(tokenizer_vocab(tokenizer), 757);
  assert_int_equal(tokenizer_end_of_text(tokenizer), 756);
  mem_free(text);
  split_destroy(split);
  tokenizer_destroy(tokenizer);
}

/* ---- merging, against the definition: join the leftmost of the best pairs, start again */

static char folder[] = "/tmp/sluice-tokenizer-XXXXXX", vocab[64], merges_path[64];

/* In the folder: a vocabulary over the bytes, `merges` (lines "a b", printable ASCII) and end of
 * text. */
static void write_files(const char *merges)
{
  FILE *file = fopen(vocab, "w");
  assert_non_null(file);
  int next = 256, id = 0;
  fputc('{', file);
  for (int byte = 0; byte < 256; byte++) {
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    fprintf(file, "\"\\u%04x\": %d, ", printable ? byte : next++, id++);
  }
  for (const char *line = merges; *line; line += strcspn(line, "\n") + 1) {
    char left[64], right[64];
    assert_int_equal(sscanf(line, "%63s %63s", left, right), 2);
    fprintf(file, "\"%s%s\": %d, ", left, right, id++);
  }
  fprintf(file, "\"<|endoftext|>\": %d}", id);
  assert_int_equal(fclose(file), 0);
  must(file_write_all(merges_path, merges, strlen(merges)));
}

static struct tokenizer *make(const char *merges)
{
  struct tokenizer *tokenizer = NULL;
  write_files(merges);
  must(tokenizer_create("gpt2", folder, &tokenizer));
  return tokenizer;
}

/* A word of lower-case letters as pieces, joined by spaces. */
static void quadratic(const char *merges, const char *word, char *out)
{
  char piece[64][64];
  int n = 0;
  for (const char *c = word; *c; c++, n++)
    sprintf(piece[n], "%c", *c);
  for (;;) {
    char left[64], right[64];
    bool found = false;
    for (const char *line = merges; *line && !found; line += strcspn(line, "\n") + 1) {
      sscanf(line, "%63s %63s", left, right);
      for (int i = 0; i + 1 < n && !found; i++)
        found = strcmp(piece[i], left) == 0 && strcmp(piece[i + 1], right) == 0;
    }
    if (!found)
      break;
    int i = 0;
    while (strcmp(piece[i], left) != 0 || strcmp(piece[i + 1], right) != 0)
      i++;
    memcpy(piece[i] + strlen(left), right, strlen(right) + 1);
    memmove(piece[i + 1], piece[i + 2], (size_t)(--n - i - 1) * sizeof *piece);
  }
  *out = '\0';
  for (int i = 0; i < n; i++)
    sprintf(out + strlen(out), "%s%s", i ? " " : "", piece[i]);
}

static void check_word(struct tokenizer *tokenizer, const char *merges, const char *word)
{
  char expected[256], found[256] = "";
  struct tokenizer_tokens tokens = {0};
  quadratic(merges, word, expected);
  encode(tokenizer, word, strlen(word), &tokens);
  for (int64_t i = 0; i < tokens.n; i++) {
    char *text = NULL;
    int64_t bytes = 0, room = 0;
    must(tokenizer_decode(tokenizer, &tokens.id[i], 1, &text, &bytes, &room));
    sprintf(found + strlen(found), "%s%.*s", i ? " " : "", (int)bytes, text);
    mem_free(text);
  }
  assert_string_equal(found, expected);
  mem_free(tokens.id);
}

TEST(test_merging)
{
  static const char *const sets[] = {
      "a b\nab a\nb a\naba b\n",              /* occurrences that overlap */
      "a a\naa aa\naaaa a\nb b\nbb a\n",      /* runs */
      "b c\na b\nab c\nabc a\nd a\nabca b\n", /* a better rank shows up by joining a worse one */
      "a b\nab c\nabc a\nb c\nc a\nca b\nab d\n"};
  struct rng_key key = rng_key_make(1, "test words");
  for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
    struct tokenizer *tokenizer = make(sets[s]);
    for (uint64_t i = 0; i < 2000; i++) {
      char word[41];
      uint32_t draw[4];
      size_t n = 0;
      do {
        rng_block(key, i, n, draw);
        word[n++] = (char)('a' + draw[0] % (s == 1 ? 2 : 4));
      } while (n < 40 && draw[1] % 32);
      word[n] = '\0';
      check_word(tokenizer, sets[s], word);
    }
    tokenizer_destroy(tokenizer);
  }
}

/* Two merges may give one piece: "abc" by the fifth line, while "abc a" is the fourth. It goes
 * first as soon as it is there, as in the reference library; GPT-2's own program would join all of
 * "a bc" before. */
TEST(test_better_pair_of_worse)
{
  static const char merges[] = "b c\na b\nab c\nabc a\na bc\n";
  struct tokenizer *tokenizer = NULL;
  write_files("b c\na b\nab c\nabc a\n"); /* a vocabulary names "abc" once */
  must(file_write_all(merges_path, merges, sizeof merges - 1));
  must(tokenizer_create("gpt2", folder, &tokenizer));
  struct tokenizer_tokens tokens = {0};
  encode(tokenizer, "abcabc", 6, &tokens);
  assert_int_equal(tokens.n, 2); /* abca bc, as the Rust library says */
  mem_free(tokens.id);
  check_word(tokenizer, merges, "abcabc");
  check_word(tokenizer, merges, "abcabcabcab");
  check_word(tokenizer, merges, "abcaabc");
  tokenizer_destroy(tokenizer);
}

TEST(test_long_words)
{
  enum { BYTES = 3 << 20 };
  struct tokenizer *tokenizer = trained();
  char *text = NULL;
  must(mem_alloc(MEM_DATA, BYTES, (void **)&text));
  memset(text, ' ', BYTES);
  check_round_trip(tokenizer, text, BYTES);
  memset(text, 'e', BYTES);
  check_round_trip(tokenizer, text, BYTES);
  memset(text, '!', BYTES);
  check_round_trip(tokenizer, text, BYTES);
  for (size_t i = 0; i < BYTES; i++)
    text[i] = "the"[i % 3];
  check_round_trip(tokenizer, text, BYTES);
  for (size_t i = 0; i + 3 <= BYTES; i += 3)
    memcpy(text + i, "\u3000", 3);
  check_round_trip(tokenizer, text, BYTES / 3 * 3);
  mem_free(text);
  tokenizer_destroy(tokenizer);
}

TEST(test_no_allocation)
{
  struct tokenizer *tokenizer = trained();
  char path[512], *text = NULL;
  size_t bytes = 0;
  struct tokenizer_tokens tokens = {0};
  data_path("corpus.txt", path);
  must(file_read_all(path, 1 << 20, &text, &bytes));
  encode(tokenizer, text, bytes, &tokens);
  int64_t calls = mem_calls(), n = tokens.n;
  for (int i = 0; i < 10; i++) {
    tokens.n = 0;
    encode(tokenizer, text, bytes, &tokens);
    assert_int_equal(tokens.n, n);
  }
  assert_int_equal(mem_calls(), calls);
  assert_true((size_t)n < bytes / 2);
  mem_free(tokens.id);
  mem_free(text);
  tokenizer_destroy(tokenizer);
}

/* ---- damaged files */

/* The file with `from` (its first occurrence) replaced by `to`. */
static void damage(const char *name, const char *from, const char *to)
{
  char path[64], *text = NULL;
  size_t bytes = 0;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  must(file_read_all(path, 1 << 20, &text, &bytes));
  char *at = strstr(text, from);
  assert_non_null(at);
  char *changed = mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  assert_non_null(changed);
  must(file_write_all(path, changed, strlen(changed)));
  mem_free(changed);
  mem_free(text);
}

static void check_damaged(const char *given, const char *says)
{
  char row[ROWS_LONGEST];
  strcpy(row, given);
  char *from = strstr(row, ": "), *to = strstr(row, " => ");
  struct tokenizer *tokenizer = NULL;
  *from = *to = '\0';
  write_files("a b\nab c\nabc d\n");
  damage(row, from + strlen(": "), to + strlen(" => "));
  enum status status = tokenizer_create("gpt2", folder, &tokenizer);
  if (status != STATUS_INPUT || !strstr(status_text(), says))
    fail_msg("%s: %s '%s' instead of '%s'", given, status_name(status), status_text(), says);
}

TEST(test_damaged_files)
{
  rows_each(ROWS, "damaged", check_damaged);
}

/* A file whose merges could spell the special token. */
TEST(test_end_of_text_from_merges)
{
  static const char merges[] = "< |\n<| e\n<|e n\n<|en d\n<|end o\n<|endo f\n<|endof t\n<|endoft "
                               "e\n<|endofte x\n<|endoftex t\n<|endoftext |\n";
  struct tokenizer *tokenizer = make(merges); /* up to "<|endoftext|": text may look like it */
  check_round_trip(tokenizer, "<|endoftext|>", 13);
  tokenizer_destroy(tokenizer);
  tokenizer = NULL;
  damage("merges.txt", "<|endoftext |\n", "<|endoftext |\n<|endoftext| >\n");
  must_fail(tokenizer_create("gpt2", folder, &tokenizer), STATUS_INPUT,
            "merges.txt, line 12: the end of text cannot be made");
}

TEST(test_checksum)
{
  struct tokenizer *one = make("a b\nab c\n"), *two = NULL;
  damage("merges.txt", "a b\n", "#version: 0.2\r\na b\r\n");
  must(tokenizer_create("gpt2", folder, &two));
  const struct tokenizer_id first = tokenizer_id(one), second = tokenizer_id(two);
  assert_int_not_equal(first.crc32, second.crc32);
  assert_int_equal(tokenizer_compare(&first, &second),
                   TOKENIZER_SAME); /* other line ends, the same merges */
  assert_int_equal(tokenizer_compare(&first, &(struct tokenizer_id){.name = ""}),
                   TOKENIZER_UNKNOWN);
  check_word(two, "a b\nab c\n", "abcab");
  tokenizer_destroy(one);
  tokenizer_destroy(two);
}

/* ---- names that a stranger chose */

/* The hash of 16 bytes that knows no seed, up to its last step. */
static uint64_t unseeded(uint64_t first)
{
  const uint64_t hash = (UINT64_C(0x9E3779B97F4A7C15) ^ 16 ^ first) * UINT64_C(0xFF51AFD7ED558CCD);
  return hash ^ hash >> 32;
}

static double seconds_to_fill(bool chosen)
{
  enum { TOKENS = 20000 };
  struct bpe *bpe = NULL;
  must(bpe_create(TOKENS, &bpe));
  const clock_t begin = clock();
  for (int i = 0; i < TOKENS; i++) {
    const uint64_t first = (uint64_t)i, words[2] = {first, chosen ? unseeded(first) : first};
    must(bpe_set_token(bpe, i, (const char *)words, sizeof words, true));
  }
  const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  bpe_destroy(bpe);
  return seconds;
}

/* Oracle: as many other tokens. Without a seed the chosen ones share one slot, and take the square
 * of their number. */
TEST(test_chosen_names)
{
  const double plain = seconds_to_fill(false), chosen = seconds_to_fill(true);
  assert_true(chosen < 20 * plain + 0.05);
}

FIXTURE(set_up)
{
  if (!mkdtemp(folder))
    return 1;
  snprintf(vocab, sizeof vocab, "%s/vocab.json", folder);
  snprintf(merges_path, sizeof merges_path, "%s/merges.txt", folder);
  return 0;
}

FIXTURE(tear_down)
{
  return unlink(vocab) || unlink(merges_path) || rmdir(folder);
}

TEST_MAIN(set_up, tear_down)
