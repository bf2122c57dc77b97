/* JSON value by value. Only the string being read is in memory, and nesting is bounded. */
#include "io/text/jsonl.h"

#include <string.h>

enum { DEPTH_MOST = 1000 };

/* The next byte, white space or not; -1 at the end of the file. */
static enum status look(struct text_input *input, int *byte)
{
  if (input->at == input->end) {
    enum status status = text_input_fill(input, 1);
    if (status)
      return status;
  }
  *byte = input->at < input->end ? (unsigned char)input->buffer[input->at] : -1;
  return STATUS_OK;
}

enum status jsonl_peek(struct text_input *input, int *byte)
{
  for (;;) {
    enum status status = look(input, byte);
    if (status || (*byte != ' ' && *byte != '\n' && *byte != '\r' && *byte != '\t') ||
        (*byte == '\n' && input->one_line))
      return status;
    input->at++;
  }
}

enum status jsonl_unexpected(struct text_input *input, const char *expected)
{
  int byte = -1;
  enum status status = look(input, &byte);
  if (status)
    return status;
  int64_t where = text_input_offset(input);
  if (byte < 0)
    return text_input_fail(
        input, where, "the JSON text ends where %s is expected; the file is truncated", expected);
  if (byte > ' ' && byte < 0x7F)
    return text_input_fail(input, where, "broken JSON: %s is expected, found '%c'", expected, byte);
  return text_input_fail(input, where, "broken JSON: %s is expected, found the byte 0x%02X",
                         expected, byte);
}

enum status jsonl_expect(struct text_input *input, char byte, const char *expected)
{
  int found = -1;
  enum status status = jsonl_peek(input, &found);
  if (status)
    return status;
  if (found != byte)
    return jsonl_unexpected(input, expected);
  input->at++;
  return STATUS_OK;
}

enum status jsonl_enter(struct text_input *input, char closing, bool *more)
{
  int byte = -1;
  enum status status = jsonl_peek(input, &byte);
  if (status)
    return status;
  *more = byte != closing;
  if (byte == closing)
    input->at++;
  return STATUS_OK;
}

enum status jsonl_more(struct text_input *input, char closing, bool *more)
{
  int byte = -1;
  enum status status = jsonl_peek(input, &byte);
  if (status)
    return status;
  if (byte != ',' && byte != closing)
    return jsonl_unexpected(input, closing == '}' ? "',' or '}'" : "',' or ']'");
  input->at++;
  *more = byte == ',';
  return STATUS_OK;
}

static enum status append(struct text_input *input, int64_t begin, struct text_buffer *out,
                          const char *data, size_t bytes)
{
  enum status status = out ? text_buffer_append(out, data, bytes) : STATUS_OK;
  return status == STATUS_INPUT ? text_input_prefix(input, begin, status) : status;
}

static int hex_digit(int byte)
{
  if (byte >= '0' && byte <= '9')
    return byte - '0';
  byte |= 0x20;
  return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The four digits of \uXXXX. */
static enum status hex4(struct text_input *input, unsigned *out)
{
  unsigned value = 0;
  for (int i = 0; i < 4; i++) {
    int byte = -1;
    enum status status = look(input, &byte);
    if (status)
      return status;
    int digit = hex_digit(byte);
    if (digit < 0)
      return jsonl_unexpected(input, "a hexadecimal digit of \\uXXXX");
    value = value << 4 | (unsigned)digit;
    input->at++;
  }
  *out = value;
  return STATUS_OK;
}

static size_t utf8_from(unsigned code, char *out)
{
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  size_t bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (size_t i = bytes - 1; i > 0; i--, code >>= 6)
    out[i] = (char)(0x80 | (code & 0x3F));
  out[0] = (char)((0xF00 >> bytes) | code);
  return bytes;
}

/* The second half of a pair, \uDC00 .. \uDFFF, is taken if it is the next escape. */
static enum status take_low_half(struct text_input *input, unsigned *out)
{
  enum { ESCAPE = 6 };
  unsigned value = 0;
  enum status status = text_input_fill(input, ESCAPE);
  const char *next = input->buffer + input->at;
  if (status || input->end - input->at < ESCAPE || next[0] != '\\' || next[1] != 'u')
    return status;
  for (int i = 2; i < ESCAPE; i++) {
    const int digit = hex_digit((unsigned char)next[i]);
    if (digit < 0)
      return STATUS_OK;
    value = value << 4 | (unsigned)digit;
  }
  if (value < 0xDC00 || value > 0xDFFF)
    return STATUS_OK;
  input->at += ESCAPE;
  *out = value;
  return STATUS_OK;
}

/* After \u. `replaces`: U+FFFD for what is no character. */
static enum status unicode_escape(struct text_input *input, int64_t escape, bool replaces,
                                  unsigned *out)
{
  unsigned code = 0, low = 0;
  enum status status = hex4(input, &code);
  if (!status && code >= 0xD800 && code <= 0xDBFF)
    status = take_low_half(input, &low);
  if (status)
    return status;
  const bool half = code >= 0xD800 && code <= 0xDFFF && !low;
  if (!replaces && code == 0)
    return text_input_fail(input, escape, "\\u0000: a text holds no NUL");
  if (!replaces && half)
    return text_input_fail(input, escape,
                           "a \\u escape of half a surrogate pair, which is no character");
  input->replaced = input->replaced || half || code == 0;
  *out = half || code == 0 ? 0xFFFD
         : low             ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                           : code;
  return STATUS_OK;
}

/* After the backslash. `begin` is the byte of the string. */
static enum status escape_sequence(struct text_input *input, int64_t begin, bool replaces,
                                   struct text_buffer *out)
{
  static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
  int64_t escape = text_input_offset(input) - 1;
  int byte = -1;
  enum status status = look(input, &byte);
  if (status)
    return status;
  if (byte == 'u') {
    unsigned code = 0;
    char character[4];
    input->at++;
    status = unicode_escape(input, escape, replaces, &code);
    return status ? status : append(input, begin, out, character, utf8_from(code, character));
  }
  const char *name = byte > 0 ? strchr(names, byte) : NULL;
  if (!name)
    return jsonl_unexpected(input, "an escape, one of \"\\/bfnrtu,");
  input->at++;
  return append(input, begin, out, values + (name - names), 1);
}

/* Bytes before the next quote, backslash or control character. */
static size_t plain_run(const char *text, size_t bytes)
{
  size_t i = 0;
  while (i < bytes && text[i] != '"' && text[i] != '\\' && (unsigned char)text[i] >= 0x20)
    i++;
  return i;
}

static enum status string(struct text_input *input, bool replaces, struct text_buffer *out)
{
  int byte = -1;
  enum status status = jsonl_expect(input, '"', "a string");
  int64_t begin = text_input_offset(input) - 1;
  while (!status) {
    status = look(input, &byte);
    if (status)
      return status;
    if (byte < 0)
      return text_input_fail(
          input, text_input_offset(input),
          "the file ends inside the string that begins at byte %lld; it is truncated",
          (long long)begin);
    size_t run = plain_run(input->buffer + input->at, input->end - input->at);
    status = append(input, begin, out, input->buffer + input->at, run);
    input->at += run;
    if (status || input->at == input->end)
      continue;
    byte = (unsigned char)input->buffer[input->at];
    if (byte == 0 && input->invalid != TEXT_REFUSE) {
      status = append(input, begin, out, "", 1);
      input->at++;
      continue;
    }
    if (byte < 0x20)
      return text_input_fail(input, text_input_offset(input),
                             "the control character 0x%02X in a string; JSON asks for an escape",
                             byte);
    input->at++;
    if (byte == '"')
      return STATUS_OK;
    status = escape_sequence(input, begin, replaces, out);
  }
  return status;
}

enum status jsonl_string(struct text_input *input, struct text_buffer *out)
{
  const bool replaced = input->replaced;
  const enum status status = string(input, !out || input->invalid != TEXT_REFUSE, out);
  input->replaced = out ? input->replaced : replaced;
  return status;
}

enum status jsonl_loose_string(struct text_input *input, struct text_buffer *out)
{
  const bool replaced = input->replaced;
  const enum status status = string(input, true, out);
  input->replaced = replaced;
  return status;
}

static enum status digits(struct text_input *input)
{
  int byte = -1, count = 0;
  for (;; count++) {
    enum status status = look(input, &byte);
    if (status)
      return status;
    if (byte < '0' || byte > '9')
      return count ? STATUS_OK : jsonl_unexpected(input, "a digit");
    input->at++;
  }
}

static enum status skip_number(struct text_input *input)
{
  int byte = -1;
  enum status status = look(input, &byte);
  if (!status && byte == '-') {
    input->at++;
    status = look(input, &byte);
  }
  if (!status && byte == '0')
    input->at++; /* only a point or an exponent may follow: "01" ends here, and the caller finds the
                    1 */
  else if (!status)
    status = digits(input);
  if (!status)
    status = look(input, &byte);
  if (!status && byte == '.') {
    input->at++;
    status = digits(input);
  }
  if (!status)
    status = look(input, &byte);
  if (status || (byte != 'e' && byte != 'E'))
    return status;
  input->at++;
  status = look(input, &byte);
  if (!status && (byte == '+' || byte == '-'))
    input->at++;
  return status ? status : digits(input);
}

static enum status skip_word(struct text_input *input, const char *word)
{
  int byte = -1;
  for (const char *c = word; *c; c++) {
    enum status status = look(input, &byte);
    if (status)
      return status;
    if (byte != *c)
      return jsonl_unexpected(input, word);
    input->at++;
  }
  return STATUS_OK;
}

static enum status skip(struct text_input *input, int depth);

/* After the opening bracket. */
static enum status skip_members(struct text_input *input, bool object, int depth)
{
  const char closing = object ? '}' : ']';
  bool more = false;
  enum status status = jsonl_enter(input, closing, &more);
  while (!status && more) {
    if (object) {
      status = jsonl_string(input, NULL);
      if (!status)
        status = jsonl_expect(input, ':', "':'");
    }
    if (!status)
      status = skip(input, depth);
    if (!status)
      status = jsonl_more(input, closing, &more);
  }
  return status;
}

static enum status skip(struct text_input *input, int depth)
{
  int byte = -1;
  enum status status = jsonl_peek(input, &byte);
  if (status)
    return status;
  switch (byte) {
  case '{':
  case '[':
    if (depth == DEPTH_MOST)
      return text_input_fail(input, text_input_offset(input), "values nested more than %d deep",
                             DEPTH_MOST);
    input->at++;
    return skip_members(input, byte == '{', depth + 1);
  case '"': return jsonl_string(input, NULL);
  case 't': return skip_word(input, "true");
  case 'f': return skip_word(input, "false");
  case 'n': return skip_word(input, "null");
  case 'N': return skip_word(input, "NaN");
  case 'I': return skip_word(input, "Infinity");
  default:
    if (byte == '-') {
      status = text_input_fill(input, 2);
      if (status)
        return status;
      if (input->end - input->at > 1 && input->buffer[input->at + 1] == 'I')
        return skip_word(input, "-Infinity");
    }
    if (byte == '-' || (byte >= '0' && byte <= '9'))
      return skip_number(input);
    return jsonl_unexpected(input, "a value");
  }
}

enum status jsonl_skip(struct text_input *input)
{
  return skip(input, 0);
}
