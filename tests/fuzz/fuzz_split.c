/* Splitting. The first byte below 3 chooses a known pattern, and the rest is a text: the scanner
 * written for the pattern must find the words that PCRE2 finds. Otherwise the rest is a pattern, a
 * zero byte, and a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "io/text/utf8.h"
#include "io/tokenizer/split.h"

static size_t next(struct split *split, struct fuzz_piece text, size_t at)
{
  size_t end = 0;
  if (!fuzz_accepted(split_next(split, text.text, text.bytes, at, &(size_t){0}, &end)))
    return text.bytes;
  fuzz_expect(end > at && end <= text.bytes, "a word is empty, or ends behind the text");
  fuzz_expect(end == text.bytes || ((unsigned char)text.text[end] & 0xC0) != 0x80,
              "a word ends inside of a character");
  return end;
}

/* In brackets it is another pattern, which runs on PCRE2. */
static struct split *engine_for(const char *pattern)
{
  char bracketed[1024];
  struct split *split = NULL;
  snprintf(bracketed, sizeof bracketed, "(?:%s)", pattern);
  fuzz_expect(split_create("known pattern", &(struct split_rule){.pattern = bracketed}, &split) ==
                  STATUS_OK,
              "a known pattern is no pattern");
  return split;
}

/* PCRE2 may be of an older Unicode than the scanner. `text` begins with a letter, so that what
 * comes before the first match is not empty. */
static bool all_assigned(const char *text, size_t bytes)
{
  static struct split *unassigned; /* until the process ends */
  size_t end = 0;
  if (!unassigned)
    fuzz_expect(split_create("unassigned", &(struct split_rule){.pattern = "\\p{Cn}"},
                             &unassigned) == STATUS_OK,
                "a general category is no pattern");
  fuzz_expect(split_next(unassigned, text, bytes, 0, &(size_t){0}, &end) == STATUS_OK,
              "a class cannot be looked for");
  return end == bytes;
}

static void compare(int known, struct fuzz_piece text)
{
  static const char *const name[] = {"gpt2", "llama3", "qwen2"};
  static struct split *scanner[3], *engine[3]; /* until the process ends */
  if (!scanner[known]) {
    fuzz_expect(split_create("known pattern",
                             &(struct split_rule){.pattern = split_pattern(name[known])},
                             &scanner[known]) == STATUS_OK,
                "a known pattern is unknown");
    engine[known] = engine_for(split_pattern(name[known]));
  }
  for (size_t at = 0, end; at < text.bytes; at = end) {
    end = next(scanner[known], text, at);
    fuzz_expect(end == next(engine[known], text, at), "the scanner and PCRE2 find different words");
  }
}

static void run_any(const char *pattern, struct fuzz_piece text)
{
  struct split *split = NULL;
  if (!fuzz_accepted(split_create("pattern", &(struct split_rule){.pattern = pattern}, &split)))
    return;
  for (size_t at = 0; at < text.bytes;)
    at = next(split, text, at);
  split_destroy(split);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  char pattern[512];
  struct fuzz_piece text = {(const char *)data + 1, size - 1}, first;
  if (size == 0)
    return 0;
  if (data[0] < 3) {
    const int known = data[0];
    char *copy = malloc(size);
    fuzz_expect(copy, "no memory");
    copy[0] = 'a';
    memcpy(copy + 1, text.text, text.bytes);
    if (utf8_find_invalid(text.text, text.bytes) < 0 && all_assigned(copy, size))
      compare(known, text);
    free(copy);
    return 0;
  }
  first = fuzz_cut(&text);
  if (first.bytes >= sizeof pattern || utf8_find_invalid(first.text, first.bytes) >= 0 ||
      utf8_find_invalid(text.text, text.bytes) >= 0)
    return 0;
  memcpy(pattern, first.text, first.bytes);
  pattern[first.bytes] = '\0';
  run_any(pattern, text);
  return 0;
}
