/* JSON value by value. Only the string being read is in memory, and nesting is bounded. */
#include "io/text/jsonl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { DEPTH_MOST = 1000 };

/* The next byte, white space or not; -1 at the end of the file. */
static int look(struct text_input *input)
{
  return text_input_fill(input, 1) || input->at == input->end
             ? -1
             : (unsigned char)input->buffer[input->at];
}

/* Takes the next byte if it is this one. */
static bool take(struct text_input *input, int byte)
{
  const bool is = look(input) == byte;
  input->at += is;
  return is;
}

int jsonl_peek(struct text_input *input)
{
  for (;; input->at++) {
    const int byte = look(input);
    if ((byte != ' ' && byte != '\n' && byte != '\r' && byte != '\t') ||
        (byte == '\n' && input->one_line))
      return byte;
  }
}

void jsonl_unexpected(struct text_input *input, const char *expected)
{
  const int byte = look(input);
  const int64_t where = text_input_offset(input);
  if (byte < 0)
    text_input_fail(input, where, "the JSON text ends where %s is expected; the file is truncated",
                    expected);
  else
    text_input_fail(input, where,
                    byte > ' ' && byte < 0x7F
                        ? "broken JSON: %s is expected, found '%c'"
                        : "broken JSON: %s is expected, found the byte 0x%02X",
                    expected, byte);
}

void jsonl_expect(struct text_input *input, char byte, const char *expected)
{
  (void)jsonl_peek(input);
  if (!take(input, byte))
    jsonl_unexpected(input, expected);
}

bool jsonl_enter(struct text_input *input, char closing)
{
  (void)jsonl_peek(input);
  return !take(input, closing) && !input->status;
}

bool jsonl_more(struct text_input *input, char closing)
{
  (void)jsonl_peek(input);
  if (take(input, ','))
    return true;
  if (!take(input, closing))
    jsonl_unexpected(input, closing == '}' ? "',' or '}'" : "',' or ']'");
  return false;
}

static void append(struct text_input *input, int64_t begin, struct text_buffer *out,
                   const char *data, size_t bytes)
{
  if (out && !input->status)
    text_input_keep(input, begin, text_buffer_append(out, data, bytes));
}

static const char hex_digits[] = "0123456789abcdefABCDEF";

/* The four digits of \uXXXX. */
static unsigned hex4(struct text_input *input)
{
  char digits[5] = "";
  for (int i = 0; i < 4; i++) {
    const int byte = look(input);
    if (byte <= 0 || !strchr(hex_digits, byte)) {
      jsonl_unexpected(input, "a hexadecimal digit of \\uXXXX");
      return 0;
    }
    digits[i] = (char)byte;
    input->at++;
  }
  return (unsigned)strtoul(digits, NULL, 16);
}

/* The second half of a pair, \uDC00 .. \uDFFF, is taken if it is the next escape. Else 0. */
static unsigned take_low_half(struct text_input *input)
{
  enum { ESCAPE = 6 };
  char digits[5] = "";
  (void)text_input_fill(input, ESCAPE);
  const char *next = input->buffer + input->at;
  if (input->status || input->end - input->at < ESCAPE || next[0] != '\\' || next[1] != 'u')
    return 0;
  memcpy(digits, next + 2, 4);
  const unsigned value = (unsigned)strtoul(digits, NULL, 16);
  if (strspn(digits, hex_digits) != 4 || value < 0xDC00 || value > 0xDFFF)
    return 0;
  input->at += ESCAPE;
  return value;
}

/* After \u. `replaces`: U+FFFD for what is no character. */
static unsigned unicode_escape(struct text_input *input, int64_t escape, bool replaces)
{
  const unsigned code = hex4(input);
  const bool high = code >= 0xD800 && code <= 0xDBFF;
  const unsigned low = high ? take_low_half(input) : 0;
  const bool half = code >= 0xD800 && code <= 0xDFFF && !low;
  if (!replaces && code == 0)
    text_input_fail(input, escape, "\\u0000: a text holds no NUL");
  if (!replaces && half)
    text_input_fail(input, escape, "a \\u escape of half a surrogate pair, which is no character");
  input->replaced = input->replaced || half || code == 0;
  return half || code == 0 ? 0xFFFD
         : low             ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                           : code;
}

/* After the backslash. `begin` is the byte of the string. */
static void escape_sequence(struct text_input *input, int64_t begin, bool replaces,
                            struct text_buffer *out)
{
  static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  const int64_t escape = text_input_offset(input) - 1;
  if (take(input, 'u')) {
    unsigned char character[4];
    const unsigned code = unicode_escape(input, escape, replaces);
    append(input, begin, out, (char *)character,
           (size_t)utf8proc_encode_char((int32_t)code, character));
    return;
  }
  const int byte = look(input);
  const char *name = byte > 0 ? strchr(names, byte) : NULL;
  if (!name) {
    jsonl_unexpected(input, "an escape, one of \"\\/bfnrtu,");
    return;
  }
  input->at++;
  append(input, begin, out, values + (name - names), 1);
}

/* Bytes before the next quote, backslash or control character. */
static size_t plain_run(const char *text, size_t bytes)
{
  size_t i = 0;
  while (i < bytes && text[i] != '"' && text[i] != '\\' && (unsigned char)text[i] >= 0x20)
    i++;
  return i;
}

static void string(struct text_input *input, bool replaces, struct text_buffer *out)
{
  jsonl_expect(input, '"', "a string");
  const int64_t begin = text_input_offset(input) - 1;
  while (!input->status) {
    if (look(input) < 0) {
      text_input_fail(input, text_input_offset(input),
                      "the file ends inside the string that begins at byte %lld; it is truncated",
                      (long long)begin);
      return;
    }
    const size_t run = plain_run(input->buffer + input->at, input->end - input->at);
    append(input, begin, out, input->buffer + input->at, run);
    input->at += run;
    if (input->status || input->at == input->end)
      continue;
    const int byte = (unsigned char)input->buffer[input->at];
    if (byte < 0x20 && (byte != 0 || input->invalid == TEXT_REFUSE)) {
      text_input_fail(input, text_input_offset(input),
                      "the control character 0x%02X in a string; JSON asks for an escape", byte);
      return;
    }
    input->at++;
    if (byte == '"')
      return;
    if (byte == 0)
      append(input, begin, out, "", 1);
    else
      escape_sequence(input, begin, replaces, out);
  }
}

void jsonl_string(struct text_input *input, bool kept, struct text_buffer *out)
{
  const bool replaced = input->replaced;
  string(input, !kept || input->invalid != TEXT_REFUSE, out);
  input->replaced = kept ? input->replaced : replaced;
}

static void digits(struct text_input *input)
{
  int byte = look(input);
  if (byte < '0' || byte > '9')
    jsonl_unexpected(input, "a digit");
  for (; byte >= '0' && byte <= '9'; byte = look(input))
    input->at++;
}

static void skip_number(struct text_input *input)
{
  (void)take(input, '-');
  if (!take(input, '0')) /* "01" ends after the 0, and the caller finds the 1 */
    digits(input);
  if (take(input, '.'))
    digits(input);
  if (!take(input, 'e') && !take(input, 'E'))
    return;
  if (!take(input, '+'))
    (void)take(input, '-');
  digits(input);
}

static void skip_word(struct text_input *input, const char *word)
{
  for (const char *c = word; *c; c++)
    if (!take(input, *c)) {
      jsonl_unexpected(input, word);
      return;
    }
}

static void skip(struct text_input *input, int depth);

/* After the opening bracket. */
static void skip_members(struct text_input *input, bool object, int depth)
{
  const char closing = object ? '}' : ']';
  for (bool more = jsonl_enter(input, closing); more; more = jsonl_more(input, closing)) {
    if (object) {
      jsonl_string(input, false, NULL);
      jsonl_expect(input, ':', "':'");
    }
    skip(input, depth);
  }
}

static void skip(struct text_input *input, int depth)
{
  const int byte = jsonl_peek(input);
  switch (byte) {
  case '{':
  case '[':
    input->at++;
    if (depth < DEPTH_MOST)
      skip_members(input, byte == '{', depth + 1);
    else
      text_input_fail(input, text_input_offset(input) - 1, "values nested more than %d deep",
                      DEPTH_MOST);
    return;
  case '"': jsonl_string(input, false, NULL); return;
  case 't': skip_word(input, "true"); return;
  case 'f': skip_word(input, "false"); return;
  case 'n': skip_word(input, "null"); return;
  case 'N': skip_word(input, "NaN"); return;
  case 'I': skip_word(input, "Infinity"); return;
  default:
    if (byte == '-' && !text_input_fill(input, 2) && input->end - input->at > 1 &&
        input->buffer[input->at + 1] == 'I')
      skip_word(input, "-Infinity");
    else if (byte == '-' || (byte >= '0' && byte <= '9'))
      skip_number(input);
    else
      jsonl_unexpected(input, "a value");
  }
}

void jsonl_skip(struct text_input *input)
{
  skip(input, 0);
}
