/* Oracles: tables of words written by hand from the patterns. For patterns that are scanned by our
 * code, PCRE2 runs the same pattern over random text. Classes of characters are compared with
 * PCRE2's own, and a newer Unicode only adds to an older one. */

#include <utf8proc.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/tokenizer/split.h"
#include "io/tokenizer/split_classes.h"
#include "tests/rows.h"

static struct split *make(const char *pattern)
{
  struct split *split = NULL;
  must(split_create("tokenizer.json", &(struct split_rule){.pattern = pattern}, &split));
  return split;
}

/* In a group the pattern is no known one, and runs on PCRE2. */
static struct split *make_slow(const char *name)
{
  char pattern[512];
  snprintf(pattern, sizeof pattern, "(?:%s)", split_pattern(name));
  return make(pattern);
}

/* ---- tables */

/* Words separated by '|', which is in none of the texts. */
static void check_words(struct split *split, const char *words)
{
  char text[512], found[512] = "";
  size_t bytes = 0, n = 0;
  for (const char *c = words; *c; c++)
    if (*c != '|')
      text[bytes++] = *c;
  for (size_t at = 0, end; at < bytes; at = end) {
    must(split_next(split, text, bytes, at, &(size_t){0}, &end));
    assert_true(end > at && end <= bytes);
    if (at)
      found[n++] = '|';
    memcpy(found + n, text + at, end - at);
    n += end - at;
  }
  found[n] = '\0';
  assert_string_equal(found, words);
}

/* By our code, and by PCRE2. */
static void check_known(const char *words, const char *name)
{
  struct split *split = make(split_pattern(name)), *slow = make_slow(name);
  check_words(split, words);
  check_words(slow, words);
  split_destroy(split);
  split_destroy(slow);
}

TEST(test_known_patterns)
{
  rows_each("tests/io/tokenizer/split.txt", "known patterns", check_known);
}

/* ---- characters and random text, against PCRE2 */

static size_t spell(uint32_t code, char *out)
{
  return (size_t)utf8proc_encode_char((int32_t)code, (unsigned char *)out);
}

static bool is_surrogate(uint32_t code)
{
  return code >= 0xD800 && code < 0xE000;
}

/* Whether PCRE2 finds `c` in a class: "c." is a word of the pattern, or all of the text lies before
 * the next one. */
static bool pcre2_has(struct split *split, uint32_t c)
{
  char text[16];
  size_t bytes = spell(c, text), end;
  text[bytes] = '.';
  memcpy(text + bytes + 1, text, bytes);
  must(split_next(split, text, 2 * bytes + 1, 0, &(size_t){0}, &end));
  return end == bytes + 1;
}

/* By PCRE2, whose Unicode may be older or newer than ours. */
static struct split *finders[4];

static enum split_class pcre2_class(uint32_t c)
{
  for (int k = SPLIT_LETTER; k <= SPLIT_SPACE; k++)
    if (pcre2_has(finders[k], c))
      return (enum split_class)k;
  return SPLIT_OTHER;
}

FIXTURE(make_finders)
{
  finders[SPLIT_LETTER] = make("\\p{L}\\.");
  finders[SPLIT_NUMBER] = make("\\p{N}\\.");
  finders[SPLIT_SPACE] = make("\\s\\.");
  return 0;
}

FIXTURE(destroy_finders)
{
  for (int k = SPLIT_LETTER; k <= SPLIT_SPACE; k++)
    split_destroy(finders[k]);
  return 0;
}

static struct split_classes *make_classes(void)
{
  struct split_classes *classes = NULL;
  must(mem_alloc(MEM_DATA, sizeof *classes, (void **)&classes));
  split_classes_fill(classes);
  return classes;
}

TEST(test_classes)
{
  struct split_classes *classes = make_classes();
  int64_t count[4] = {0}, newer = 0, older = 0;
  for (uint32_t c = 0; c < 0x110000; c++) {
    enum split_class ours = split_class_of(classes, c),
                     theirs = is_surrogate(c) ? SPLIT_OTHER : pcre2_class(c);
    count[ours]++;
    newer += ours != theirs && theirs == SPLIT_OTHER;
    older += ours != theirs && ours == SPLIT_OTHER;
    if (ours != theirs && ours != SPLIT_OTHER && theirs != SPLIT_OTHER)
      fail_msg("U+%04X: class %d, and %d by PCRE2", c, (int)ours, (int)theirs);
  }
  assert_int_equal(count[SPLIT_LETTER], 141028); /* of Unicode 16 */
  assert_int_equal(count[SPLIT_NUMBER], 1911);
  assert_int_equal(count[SPLIT_SPACE], 25);
  assert_true(newer == 0 ||
              older == 0); /* of two versions of Unicode one has all characters of the other */
  mem_free(classes);
}

/* Text that separates the patterns: contractions, kinds of space, numbers, line ends, and
 * characters of all scripts. */
static uint32_t random_character(const struct split_classes *classes, const uint32_t draw[4])
{
  static const char contractions[] = "''''srtvemldSRTVEMLD", spaces[] = "     \t\r\n\n\v\f",
                    others[] = ".,!?-_(\"#\x01\x1f\x7f";
  static const uint16_t wide[] = {0x85,   0xA0,   0x1680, 0x180E, 0x2000, 0x2028,
                                  0x3000, 0x200B, 0xFEFF, 0x17F,  0x212A, 0x2019};
  switch (draw[0] % 8) {
  case 0: return (unsigned char)contractions[draw[1] % (sizeof contractions - 1)];
  case 1: return (unsigned char)spaces[draw[1] % (sizeof spaces - 1)];
  case 2: return (unsigned char)others[draw[1] % (sizeof others - 1)];
  case 3: return '0' + draw[1] % 10;
  case 4: return wide[draw[1] % (sizeof wide / sizeof *wide)];
  case 5: return 'a' + draw[1] % 26;
  default: break;
  }
  uint32_t code = draw[1] % (draw[0] % 8 == 6 ? 0x3000 : 0x20000);
  return is_surrogate(code) || split_class_of(classes, code) != pcre2_class(code) ? 0xE9 : code;
}

static size_t random_text(const struct split_classes *classes, struct rng_key key, uint64_t number,
                          char out[256])
{
  uint32_t draw[4];
  size_t bytes = 0;
  rng_block(key, number, 0, draw);
  for (uint32_t k = 1, characters = 1 + draw[0] % 24; k <= characters; k++) {
    rng_block(key, number, k, draw);
    uint32_t c = random_character(classes, draw);
    for (uint32_t repeat = draw[2] % 4 ? 1 : 1 + draw[3] % 4; repeat > 0 && bytes < 250; repeat--)
      bytes += spell(c, out + bytes);
  }
  return bytes;
}

TEST(test_random)
{
  static const char *const names[] = {"gpt2", "llama3", "qwen2"};
  struct split_classes *classes = make_classes();
  struct rng_key key = rng_key_make(1, "test split");
  char text[256];
  for (uint64_t n = 0; n < 3; n++) {
    struct split *split = make(split_pattern(names[n])), *slow = make_slow(names[n]);
    for (uint64_t i = 0; i < 20000; i++) {
      size_t bytes = random_text(classes, key, n << 32 | i, text);
      for (size_t at = 0, end = 0, want = 0; at < bytes; at = end) {
        must(split_next(split, text, bytes, at, &(size_t){0}, &end));
        must(split_next(slow, text, bytes, at, &(size_t){0}, &want));
        if (end != want)
          fail_msg("%s, text %d: the word at byte %zu ends at %zu, and at %zu by PCRE2: %.*s",
                   names[n], (int)i, at, end, want, (int)bytes, text);
      }
    }
    split_destroy(split);
    split_destroy(slow);
  }
  mem_free(classes);
}

/* ---- other patterns */

static void check_pattern(const char *pattern, const char *words)
{
  struct split *split = NULL;
  if (strcmp(words, "refused") != 0) {
    split = make(pattern);
    check_words(split, words);
  } else {
    must_fail(split_create("dir/tokenizer.json", &(struct split_rule){.pattern = pattern}, &split),
              STATUS_INPUT, "dir/tokenizer.json: the split pattern ");
    assert_null(split);
  }
  split_destroy(split);
}

TEST(test_other_patterns)
{
  rows_each("tests/io/tokenizer/split.txt", "other patterns", check_pattern);
}

/* A megabyte of one character; the last pattern needs memory for each of them. */
TEST(test_long)
{
  static const char *const names[] = {"gpt2", "llama3", "qwen2", NULL};
  const size_t bytes = 1 << 20;
  char *text = NULL;
  must(mem_alloc(MEM_DATA, bytes, (void **)&text));
  for (int i = 0; i < 4; i++)
    for (const char *fill = " a"; *fill; fill++) {
      struct split *split = make(names[i] ? split_pattern(names[i]) : "(?:a|b|\\s)+(?=\\s|a)|.");
      size_t end = 0, but_one = names[i] && *fill == 'a' ? bytes : bytes - 2;
      memset(text, *fill, bytes);
      must(split_next(split, text, bytes, 0, &(size_t){0}, &end));
      assert_int_equal(end, names[i] ? bytes : bytes - 1);
      text[bytes - 1] = 'x';
      must(split_next(split, text, bytes, 0, &(size_t){0}, &end));
      assert_int_equal(end, but_one);
      split_destroy(split);
    }
  mem_free(text);
}

/* A pattern that tries all ways to cut a row of letters, and finds none. */
TEST(test_too_many_steps)
{
  static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad";
  struct split *split = make("(?:a+)+[bc]|d");
  size_t end = 0;
  assert_int_equal(split_next(split, text, sizeof text - 1, 0, &(size_t){0}, &end), STATUS_INPUT);
  assert_non_null(strstr(
      status_text(), "tokenizer.json: the split pattern takes too many steps at byte 0 of a text"));
  split_destroy(split);
}

TEST(test_names)
{
  assert_null(split_pattern("gpt5"));
  assert_string_equal(
      split_pattern("gpt2"),
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
  assert_string_equal(split_pattern("llama3"), "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?"
                                               "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                               "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
  assert_string_equal(split_pattern("qwen2"), "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?"
                                              "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                              "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
  split_destroy(NULL);
}

TEST_MAIN(make_finders, destroy_finders)
