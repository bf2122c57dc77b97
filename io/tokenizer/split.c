/* Hand-written code scans the known patterns. It is several times as fast as a regex engine and
 * gives the same words on every machine. Other patterns run on PCRE2. */
#include "io/tokenizer/split.h"

#include <stdint.h>
#include <string.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"
#include "io/text/input.h"
#include "io/text/utf8.h"
#include "io/tokenizer/split_classes.h"

struct split {
  const struct known *known; /* NULL: PCRE2 */
  enum split_behavior behavior;
  bool invert;
  struct split_classes classes;
  char *where;
  pcre2_code *code;
  pcre2_match_data *match;
};

/* ---- known patterns */

static size_t scan_gpt2(const struct split *split, const char *text, size_t bytes, size_t at);
static size_t scan_llama3(const struct split *split, const char *text, size_t bytes, size_t at);
static size_t scan_digits(const struct split *split, const char *text, size_t bytes, size_t at);

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct known {
  const char *name, *pattern;
  size_t (*scan)(const struct split *split, const char *text, size_t bytes, size_t at);
  int digits; /* longest word of numbers; 0: any */
} known[] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     scan_gpt2, 0},
    {"llama3", CONTRACTIONS "\\p{N}{1,3}" REST, scan_llama3, 3},
    {"qwen2", CONTRACTIONS "\\p{N}" REST, scan_llama3, 1},
    {"digit", "\\p{N}", scan_digits, 1},
    {"digits", "\\p{N}+", scan_digits, 0},
};

const char *split_pattern(const char *name)
{
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(known[i].name, name) == 0)
      return known[i].pattern;
  return NULL;
}

/* ---- scanning. Text is valid UTF-8, and `at` never inside a character. */

/* The class of the character at `at` < bytes, and where it ends. */
static inline enum split_class class_at(const struct split *split, const char *text, size_t at,
                                        size_t *end)
{
  size_t length;
  const uint32_t code = utf8_decode(text + at, &length);
  *end = at + length;
  return split_class_of(&split->classes, code);
}

/* The end of a run of one class. */
static inline size_t run_end(const struct split *split, const char *text, size_t bytes, size_t at,
                             enum split_class class)
{
  size_t next;
  while (at < bytes && class_at(split, text, at, &next) == class)
    at = next;
  return at;
}

static bool is_line_end(char byte)
{
  return byte == '\r' || byte == '\n';
}

/* 's|'t|'re|'ve|'m|'ll|'d at an apostrophe; its end, 0 for none. With `fold`, capitals too, and
 * U+017F, which folds to s. */
static size_t contraction_end(const char *text, size_t bytes, size_t at, bool fold)
{
  char letter[2] = {0};
  for (size_t i = 0; i < 2 && at + 1 + i < bytes; i++) {
    letter[i] = text[at + 1 + i];
    if (fold && letter[i] >= 'A' && letter[i] <= 'Z')
      letter[i] |= 0x20;
  }
  if (letter[0] == 's' || letter[0] == 't' || letter[0] == 'm' || letter[0] == 'd')
    return at + 2;
  bool pair = ((letter[0] == 'r' || letter[0] == 'v') && letter[1] == 'e') ||
              (letter[0] == 'l' && letter[1] == 'l') ||
              (fold && letter[0] == '\xC5' && letter[1] == '\xBF');
  return pair ? at + 3 : 0;
}

/* \s+(?!\S)|\s+ at white space that ends at `end`. If other text follows, the last character is
 * left out, unless it is the only one. */
static size_t space_end(const char *text, size_t bytes, size_t at, size_t end)
{
  size_t last = end - 1;
  if (end == bytes)
    return end;
  while (((unsigned char)text[last] & 0xC0) == 0x80)
    last--;
  return last > at ? last : end;
}

static size_t scan_gpt2(const struct split *split, const char *text, size_t bytes, size_t at)
{
  size_t next;
  enum split_class class = class_at(split, text, at, &next);
  size_t contraction = text[at] == '\'' ? contraction_end(text, bytes, at, false) : 0;
  if (contraction)
    return contraction;
  if (text[at] == ' ' && next < bytes) {
    size_t after;
    class = class_at(split, text, next, &after);
    if (class != SPLIT_SPACE)
      return run_end(split, text, bytes, after, class);
  }
  size_t end = run_end(split, text, bytes, next, class);
  return class == SPLIT_SPACE ? space_end(text, bytes, at, end) : end;
}

/* [^\s\p{L}\p{N}]+[\r\n]* */
static size_t other_end(const struct split *split, const char *text, size_t bytes, size_t at)
{
  size_t end = run_end(split, text, bytes, at, SPLIT_OTHER);
  while (end < bytes && is_line_end(text[end]))
    end++;
  return end;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t lines_end(const struct split *split, const char *text, size_t bytes, size_t at,
                        size_t next)
{
  size_t end = run_end(split, text, bytes, next, SPLIT_SPACE);
  for (size_t i = end; i > at; i--)
    if (is_line_end(text[i - 1]))
      return i;
  return space_end(text, bytes, at, end);
}

static size_t scan_llama3(const struct split *split, const char *text, size_t bytes, size_t at)
{
  size_t next, after;
  enum split_class class = class_at(split, text, at, &next);
  if (class == SPLIT_LETTER)
    return run_end(split, text, bytes, next, SPLIT_LETTER);
  if (class == SPLIT_NUMBER) {
    for (int n = 1; n < split->known->digits && next < bytes &&
                    class_at(split, text, next, &after) == SPLIT_NUMBER;
         n++)
      next = after;
    return next;
  }
  size_t contraction = text[at] == '\'' ? contraction_end(text, bytes, at, true) : 0;
  if (contraction)
    return contraction;
  enum split_class follower = next < bytes ? class_at(split, text, next, &after) : SPLIT_SPACE;
  if (follower == SPLIT_LETTER && !is_line_end(text[at]))
    return run_end(split, text, bytes, after, SPLIT_LETTER);
  if (class == SPLIT_OTHER || (text[at] == ' ' && follower == SPLIT_OTHER))
    return other_end(split, text, bytes, next);
  return lines_end(split, text, bytes, at, next);
}

/* A match or the text before the next one. */
static size_t scan_digits(const struct split *split, const char *text, size_t bytes, size_t at)
{
  size_t next, after;
  bool number = class_at(split, text, at, &next) == SPLIT_NUMBER;
  while (!(number && split->known->digits) && next < bytes &&
         (class_at(split, text, next, &after) == SPLIT_NUMBER) == number)
    next = after;
  return next;
}

/* ---- other patterns, from Oniguruma's language to PCRE2's. A construct that the two read
 * differently is spelled out, or refused. */

#define SPACES                                                                                     \
  "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{"  \
  "205f}\\x{3000}"
#define NOT_SPACES                                                                                 \
  "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"  \
  "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}"                                                         \
  "\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

struct translation {
  const char *where, *pattern, *at;
  struct text_buffer out;
  int in_class; /* how many classes are open */
};

static enum status refuse(const struct translation *t, const char *what)
{
  return status_set(STATUS_INPUT,
                    "%s: the split pattern has %s at its byte %zu, which Sluice does not "
                    "translate; the pattern is %s",
                    t->where, what, (size_t)(t->at - t->pattern), t->pattern);
}

static enum status append(struct translation *t, const char *text)
{
  return text_buffer_append(&t->out, text, strlen(text));
}

static enum status copy(struct translation *t, size_t bytes)
{
  enum status status = text_buffer_append(&t->out, t->at, bytes);
  t->at += bytes;
  return status;
}

/* \s and \S mean White_Space here, which differs slightly from PCRE2's. Few other escapes with a
 * letter mean the same in both. */
static enum status translate_escape(struct translation *t)
{
  char letter = t->at[1];
  const char *spelled = letter == 's'   ? (t->in_class ? SPACES : "[" SPACES "]")
                        : letter == 'S' ? (t->in_class ? NOT_SPACES : "[" NOT_SPACES "]")
                        : letter == 'd' ? "\\p{Nd}"
                        : letter == 'D' ? "\\P{Nd}"
                                        : NULL;
  if (spelled) {
    t->at += 2;
    return append(t, spelled);
  }
  bool braced = (letter == 'p' || letter == 'P' || letter == 'x') && t->at[2] == '{';
  bool alphanumeric =
      (letter >= '0' && letter <= '9') || ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z');
  if (letter == '\0' || (unsigned char)letter >= 0x80 ||
      (alphanumeric && !braced && !strchr("rntf", letter)))
    return refuse(t, "an escape");
  size_t name = strcspn(t->at, "}");
  return copy(t, braced ? name + (t->at[name] == '}') : 2);
}

/* A class within a class adds its characters. */
static enum status translate_in_class(struct translation *t)
{
  const bool opens = t->at[0] == '[', closes = t->at[0] == ']';
  if ((opens && (t->at[-1] == '-' || strchr("^:]", t->at[1]))) ||
      (t->at[0] == '&' && t->at[1] == '&') || (closes && t->in_class > 1 && t->at[1] == '-'))
    return refuse(t, "an unusual class within a class");
  t->in_class += opens - closes;
  if (opens || (closes && t->in_class > 0)) {
    t->at++;
    return STATUS_OK;
  }
  return copy(t, 1);
}

static enum status translate_group(struct translation *t)
{
  static const char *const groups[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
  for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
    if (strncmp(t->at, groups[i], strlen(groups[i])) == 0)
      return copy(t, strlen(groups[i]));
  return t->at[1] == '?' || t->at[1] == '*' ? refuse(t, "a group of an unusual kind") : copy(t, 1);
}

/* X{1,9}+ is (?:X{1,9})+ here, and X{1,9} without a second try in PCRE2. */
static enum status translate_repetition(struct translation *t)
{
  const size_t digits = strncmp(t->at, "{1,", 3) == 0 ? strspn(t->at + 3, "0123456789") : 0;
  if (t->at[1] == ',')
    return refuse(t, "a repetition without a lower bound");
  if (digits == 0 || strncmp(t->at + 3 + digits, "}+", 2) != 0)
    return copy(t, 1);
  t->at += 3 + digits + 1;
  return copy(t, 1);
}

static enum status translate_next(struct translation *t)
{
  if (t->at[0] == '\\')
    return translate_escape(t);
  if (t->in_class)
    return translate_in_class(t);
  switch (t->at[0]) {
  case '[':
    t->in_class = 1;
    size_t opening = t->at[1] == '^' ? 2 : 1;
    return t->at[opening] == ']' ? refuse(t, "an empty class") : copy(t, opening);
  case '(': return translate_group(t);
  case '.': t->at++; return append(t, "[^\\n]");
  case '{': return translate_repetition(t);
  case '}': return t->at[1] == '+' ? refuse(t, "a repeated repetition") : copy(t, 1);
  default: return copy(t, 1);
  }
}

static enum status translate(const char *where, const char *pattern, struct text_buffer *out)
{
  struct translation t = {.where = where, .pattern = pattern, .at = pattern};
  enum status status = STATUS_OK;
  while (!status && *t.at)
    status = translate_next(&t);
  status = status ?: text_buffer_append(&t.out, "", 1);
  if (status)
    text_buffer_free(&t.out);
  else
    *out = t.out;
  return status;
}

/* ^ and $ are the begin and the end of a line, which ends with a line feed. */
static pcre2_code *compile_lines(const char *pattern, uint32_t options, int *error,
                                 PCRE2_SIZE *offset)
{
  *error = PCRE2_ERROR_NOMEMORY;
  pcre2_compile_context *context = pcre2_compile_context_create(NULL);
  if (context)
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code *code = context ? pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                             options | PCRE2_UTF, error, offset, context)
                             : NULL;
  pcre2_compile_context_free(context);
  return code;
}

static enum status compile(struct split *split, const char *where, const struct split_rule *rule)
{
  const char *pattern = rule->pattern;
  struct text_buffer translated = {0};
  split->where = mem_strdup(where);
  enum status status = !split->where ? STATUS_MEMORY
                       : rule->literal
                           ? text_buffer_append(&translated, pattern, strlen(pattern) + 1)
                           : translate(where, pattern, &translated);
  if (status)
    return status;
  int error;
  uint32_t empty = 0;
  PCRE2_SIZE offset = 0;
  PCRE2_UCHAR complaint[256] = "";
  split->code = compile_lines(translated.data, rule->literal ? PCRE2_LITERAL : PCRE2_MULTILINE,
                              &error, &offset);
  if (!split->code) {
    pcre2_get_error_message(error, complaint, sizeof complaint);
    status = status_set(STATUS_INPUT,
                        "%s: the split pattern is no regular expression: %s at byte %zu of %s",
                        where, (char *)complaint, (size_t)offset, translated.data);
  }
  text_buffer_free(&translated);
  if (status)
    return status;
  if (!*pattern || pcre2_pattern_info(split->code, PCRE2_INFO_MATCHEMPTY, &empty) != 0 || empty)
    return status_set(STATUS_INPUT, "%s: the split pattern can match the empty text; it is %s",
                      where, pattern);
  error = pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE);
  if (error != 0 && error != PCRE2_ERROR_JIT_BADOPTION &&
      error != PCRE2_ERROR_NOMEMORY) /* without JIT it is slower, with the same words */
    return status_set(STATUS_LIBRARY, "PCRE2 cannot translate the split pattern of %s: error %d",
                      where, error);
  split->match = pcre2_match_data_create(1, NULL);
  return split->match ? STATUS_OK : status_set(STATUS_MEMORY, "no memory for PCRE2's match data");
}

/* A long row of white space may need more stack than compiled code has; the interpreter takes it
 * from the heap. */
static enum status match_next(struct split *split, const char *text, size_t bytes, size_t at,
                              size_t *end, bool *matches)
{
  int matched =
      pcre2_match(split->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, split->match, NULL);
  if (matched == PCRE2_ERROR_JIT_STACKLIMIT)
    matched = pcre2_match(split->code, (PCRE2_SPTR)text, bytes, at,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, split->match, NULL);
  if (matched == PCRE2_ERROR_MATCHLIMIT || matched == PCRE2_ERROR_DEPTHLIMIT ||
      matched == PCRE2_ERROR_HEAPLIMIT)
    return status_set(STATUS_INPUT,
                      "%s: the split pattern takes too many steps at byte %zu of a text",
                      split->where, at);
  if (matched < 0 && matched != PCRE2_ERROR_NOMATCH) /* 0: a match whose groups are not kept */
    return status_set(STATUS_LIBRARY, "PCRE2 cannot split the text at its byte %zu: error %d", at,
                      matched);
  const PCRE2_SIZE *found = pcre2_get_ovector_pointer(split->match);
  *matches = matched != PCRE2_ERROR_NOMATCH && found[0] == at;
  *end = matched == PCRE2_ERROR_NOMATCH ? bytes : *matches ? found[1] : found[0];
  return STATUS_OK;
}

/* ---- */

enum status split_create(const char *where, const struct split_rule *rule, struct split **out)
{
  struct split *split = NULL;
  enum status status = mem_new(MEM_DATA, 1, &split);
  if (status)
    return status;
  split->behavior = rule->behavior;
  split->invert = rule->invert;
  for (size_t i = 0; i < sizeof known / sizeof *known && !rule->literal; i++)
    if (strcmp(rule->pattern, known[i].pattern) == 0)
      split->known = &known[i];
  if (split->known)
    split_classes_fill(&split->classes);
  else
    status = compile(split, where, rule);
  if (status)
    split_destroy(split);
  else
    *out = split;
  return status;
}

void split_destroy(struct split *split)
{
  if (!split)
    return;
  pcre2_match_data_free(split->match);
  pcre2_code_free(split->code);
  mem_free(split->where);
  mem_free(split);
}

/* A match, or the text before the next one, which begins at `at`. *matches: as `invert` has it. */
static enum status find_segment(struct split *split, const char *text, size_t bytes, size_t at,
                                size_t *end, bool *matches)
{
  enum status status = STATUS_OK;
  size_t next;
  *matches = !split->known || split->known->scan != scan_digits ||
             class_at(split, text, at, &next) == SPLIT_NUMBER;
  if (split->known)
    *end = split->known->scan(split, text, bytes, at);
  else
    status = match_next(split, text, bytes, at, end, matches);
  *matches = *matches != split->invert;
  return status;
}

static bool joins(enum split_behavior behavior, bool matches, bool next)
{
  return behavior == SPLIT_WITH_PREVIOUS ? !matches && next
         : behavior == SPLIT_WITH_NEXT   ? matches && !next
                                         : behavior == SPLIT_CONTIGUOUS && matches == next;
}

enum status split_next(struct split *split, const char *text, size_t bytes, size_t at,
                       size_t *begin, size_t *end)
{
  bool matches = false, next_matches = false;
  size_t next = bytes;
  enum status status = find_segment(split, text, bytes, at, end, &matches);
  while (!status && split->behavior == SPLIT_REMOVED && matches && at < bytes) {
    at = *end;
    if (at < bytes)
      status = find_segment(split, text, bytes, at, end, &matches);
  }
  *begin = at;
  if (split->behavior == SPLIT_ISOLATED || split->behavior == SPLIT_REMOVED)
    return status;
  while (!status && *end < bytes) {
    status = find_segment(split, text, bytes, *end, &next, &next_matches);
    if (status || !joins(split->behavior, matches, next_matches))
      break;
    *end = next;
    if (split->behavior != SPLIT_CONTIGUOUS)
      break;
  }
  return status;
}
