/* Oracles: tables of words written by hand from the patterns. For patterns that are scanned by our
 * code, PCRE2 runs the same pattern over random text. Classes of characters are compared with
 * PCRE2's own, and a newer Unicode only adds to an older one. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/tokenizer/split.h"
#include "io/tokenizer/split_classes.h"
#include "tests/test.h"

#define OK(call) assert_status(STATUS_OK, (call))

static void assert_status(enum status want, enum status got)
{
  if (got != want)
    fail_msg("status %s instead of %s: %s", status_name(got), status_name(want), status_text());
}

static struct split *make(const char *pattern)
{
  struct split *split = NULL;
  OK(split_create("tokenizer.json", &(struct split_rule){.pattern = pattern}, &split));
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
    OK(split_next(split, text, bytes, at, &(size_t){0}, &end));
    assert_true(end > at && end <= bytes);
    if (at)
      found[n++] = '|';
    memcpy(found + n, text + at, end - at);
    n += end - at;
  }
  found[n] = '\0';
  assert_string_equal(found, words);
}

static void check_table(const char *name, const char *const *cases)
{
  struct split *split = make(split_pattern(name)), *slow = make_slow(name);
  for (; *cases; cases++) {
    check_words(split, *cases);
    check_words(slow, *cases);
  }
  split_destroy(split);
  split_destroy(slow);
}

TEST(test_gpt2)
{
  static const char *const cases[] = {"Hello| | world",
                                      "don|'t",
                                      " 123|abc",
                                      "abc|123",
                                      "trailing|   ",
                                      "  | leading",
                                      "a|\n|b",
                                      "a|\n|\n|b",
                                      "a| \n| b",
                                      "\n\n\n",
                                      "a|\r|\n|b",
                                      "DON|'|T",
                                      "we|'ve",
                                      "they|'re",
                                      "I|'ll",
                                      "I|'d",
                                      "I|'m",
                                      "it|'s|'s",
                                      " '|tis",
                                      " ''|s",
                                      "'s",
                                      "'",
                                      "'|l",
                                      "x|'|r",
                                      "x|'|\u017f",
                                      "x|?!",
                                      "x| ?!",
                                      "x|.|5",
                                      "a|_|b",
                                      " |\t|x",
                                      "x|\t\t",
                                      "a|\u00a0|b",
                                      "a|\u00a0|\u00a0|b",
                                      "\u3000|\u3000|\u5b57",
                                      "a|\u3000|b",
                                      "a| |\u00a0|b",
                                      "e|\u0301|t",
                                      "a|\u180e|b",
                                      " \u180e",
                                      "a|\xC2\x85|b",
                                      "a|\xC2\x85|\xC2\x85|b",
                                      "a|\u200b|b",
                                      "\u4f60\u597d|\uff0c|\u4e16\u754c",
                                      "a| \U0001f642\U0001f643|b",
                                      "\u2167\u00bd\u0664",
                                      "a|\x01\x02|b",
                                      "a|\x1c\x1f|b",
                                      "a| \x1f|b",
                                      NULL};
  check_table("gpt2", cases);
}

TEST(test_llama3)
{
  static const char *const cases[] = {"Hello| | world",
                                      "don|'t",
                                      "DON|'T| I|'LL| we|'Ve",
                                      "x|'\u017f|y",
                                      "'\u017f|\u017f",
                                      "'t|t",
                                      "'|1",
                                      "'",
                                      "''|s",
                                      "'l",
                                      "'re",
                                      "'r",
                                      " |123|456|7|abc",
                                      "a|\tb",
                                      "a|\u00a0b",
                                      "a|(b|)",
                                      "(|1|)",
                                      "a|\n\n|b",
                                      "a| \n| | b",
                                      "a|.\n\n|b",
                                      "a| ?!\r\n\r\n|b",
                                      "a| |\tb",
                                      "a|\r\n",
                                      "a|\n|\t ",
                                      "a|  \n \n|   | b",
                                      "\u0664\u0664\u0664|\u0664",
                                      "\u4f60\u597d|\uff0c\u4e16\u754c",
                                      "e|\u0301t",
                                      "a| \U0001f642\U0001f642\n|\u2028  ",
                                      "   ",
                                      " ",
                                      "\n",
                                      NULL};
  check_table("llama3", cases);
}

TEST(test_qwen2)
{
  static const char *const cases[] = {"x|1|2|3|\u0664", "a| |1| b", "DON|'T", "2|'s", NULL};
  check_table("qwen2", cases);
}

/* ---- characters and random text, against PCRE2 */

static size_t spell(uint32_t code, char *out)
{
  size_t bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (size_t b = bytes - 1; b > 0; b--, code >>= 6)
    out[b] = (char)(0x80 | (code & 0x3F));
  out[0] = (char)(bytes == 1 ? code : (0xF00 >> bytes & 0xFF) | code);
  return bytes;
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
  OK(split_next(split, text, 2 * bytes + 1, 0, &(size_t){0}, &end));
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
  OK(mem_alloc(MEM_DATA, sizeof *classes, (void **)&classes));
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
        OK(split_next(split, text, bytes, at, &(size_t){0}, &end));
        OK(split_next(slow, text, bytes, at, &(size_t){0}, &want));
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

TEST(test_other_patterns)
{
  static const struct {
    const char *pattern, *words; /* no words: refused */
  } cases[] = {{"[0-9]", "ab|1|2|cd"},
               {"\\d{1,2}", "ab|12|3\u0664"},
               {"[^\\d]+", "1|ab|2"},
               {"[\\S]+", "ab|  |cd| |\u180e"},
               {"[^\\S]+", "ab| \u00a0|\u180ecd"},
               {"\\s|\\S", "a| |\u3000|b"},
               {".", "a|b|\n|c"},
               {"(?i:ab)c(?=d)", "x|aBc|d\nabc"},
               {"(?<=a)b|(?<!a)c", "a|b|b|c|ac"},
               {"a++|(b)*+x", "aa|bbx|b"},
               {"\\x{e9}|\\p{Lu}|\\P{L}|\\[|\\\\", "a|\u00e9|A|1|[|\\|b"},
               {"[]]", NULL},
               {"a|", NULL},
               {"a*", NULL},
               {"(?=a)", NULL},
               {"(", NULL},
               {"[a", NULL},
               {"\\p{NoSuchClass}x", NULL},
               {"\\wx", NULL},
               {"\\h", NULL},
               {"\\u0041", NULL},
               {"\\", NULL},
               {"\\x41", NULL},
               {"^a", "a|a\n|a|b"},
               {"a$", "ab|a|\nb|a"},
               {"[a[bc]d]+", "x|abcd|y"},
               {"[^a[b\\s]]+", "xyz|a|.|b"},
               {"[a[^b]]", NULL},
               {"[a-[b]]", NULL},
               {"[[a]-z]", NULL},
               {"[a[]b]", NULL},
               {"[a&&b]", NULL},
               {"a{,2}b", NULL},
               {"a{1,2}+", "x|aaaaa|b"},
               {"a{2,3}+", NULL},
               {"(?m:a)", NULL},
               {"(*FAIL)a", NULL},
               {"(?P<n>a)", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct split *split = NULL;
    if (cases[i].words) {
      split = make(cases[i].pattern);
      check_words(split, cases[i].words);
    } else {
      assert_status(STATUS_INPUT,
                    split_create("dir/tokenizer.json",
                                 &(struct split_rule){.pattern = cases[i].pattern}, &split));
      assert_non_null(strstr(status_text(), "dir/tokenizer.json: the split pattern "));
      assert_null(split);
    }
    split_destroy(split);
  }
}

/* A megabyte of one character; the last pattern needs memory for each of them. */
TEST(test_long)
{
  static const char *const names[] = {"gpt2", "llama3", "qwen2", NULL};
  const size_t bytes = 1 << 20;
  char *text = NULL;
  OK(mem_alloc(MEM_DATA, bytes, (void **)&text));
  for (int i = 0; i < 4; i++)
    for (const char *fill = " a"; *fill; fill++) {
      struct split *split = make(names[i] ? split_pattern(names[i]) : "(?:a|b|\\s)+(?=\\s|a)|.");
      size_t end = 0, but_one = names[i] && *fill == 'a' ? bytes : bytes - 2;
      memset(text, *fill, bytes);
      OK(split_next(split, text, bytes, 0, &(size_t){0}, &end));
      assert_int_equal(end, names[i] ? bytes : bytes - 1);
      text[bytes - 1] = 'x';
      OK(split_next(split, text, bytes, 0, &(size_t){0}, &end));
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
  assert_status(STATUS_INPUT, split_next(split, text, sizeof text - 1, 0, &(size_t){0}, &end));
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
