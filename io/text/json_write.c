/* Numbers keep their digits, and no control character reaches a terminal. */
#include "io/text/json_write.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/printable.h"
#include "io/text/utf8.h"

/* Escapes all controls, because people look at JSON in terminals. */
static int put_escaped(const char *text, size_t bytes, FILE *to)
{
  int result = 0;
  struct character c;
  for (size_t at = 0; at < bytes && result >= 0; at += c.bytes) {
    c = printable_at(text + at, bytes - at);
    if (printable_is_control(c.code))
      result = fprintf(to, c.code == '\n' ? "\\n" : c.code == '\t' ? "\\t" : "\\u%04x", c.code);
    else if (c.code == '"' || c.code == '\\')
      result = fprintf(to, "\\%c", text[at]);
    else
      result = fwrite(text + at, 1, c.bytes, to) == c.bytes ? 0 : EOF;
  }
  return result;
}

int json_write_string(const char *text, FILE *to)
{
  int result = fputc('"', to);
  for (size_t left = strlen(text); left > 0 && result >= 0;) {
    const int64_t bad = utf8_find_invalid(text, left);
    const size_t good = bad < 0 ? left : (size_t)bad, done = good + (bad >= 0);
    result = put_escaped(text, good, to);
    if (bad >= 0 && result >= 0)
      result = fputs("\\ufffd", to);
    text += done;
    left -= done;
  }
  return result < 0 ? result : fputc('"', to);
}

static void put_line_break(const struct json_writer *writer)
{
  if (!writer->compact)
    fprintf(writer->to, "\n%*s", 2 * writer->depth, "");
}

static void begin_value(struct json_writer *writer, const char *key)
{
  if (writer->filled)
    fputc(',', writer->to);
  if (writer->depth > 0)
    put_line_break(writer);
  if (key) {
    (void)json_write_string(key, writer->to);
    fputs(writer->compact ? ":" : ": ", writer->to);
  }
  writer->filled = true;
}

void json_write_open(struct json_writer *writer, const char *key, char bracket)
{
  begin_value(writer, key);
  fputc(bracket, writer->to);
  writer->depth++;
  writer->filled = false;
}

void json_write_close(struct json_writer *writer, char bracket)
{
  writer->depth--;
  if (writer->filled)
    put_line_break(writer);
  fputc(bracket, writer->to);
  if (writer->depth == 0)
    fputc('\n', writer->to);
  writer->filled = true;
}

void json_write_text(struct json_writer *writer, const char *key, const char *text)
{
  begin_value(writer, key);
  if (text)
    (void)json_write_string(text, writer->to);
  else
    fputs("null", writer->to);
}

void json_write_int(struct json_writer *writer, const char *key, int64_t value)
{
  begin_value(writer, key);
  fprintf(writer->to, "%" PRId64, value);
}

void json_write_real(struct json_writer *writer, const char *key, double value)
{
  begin_value(writer, key);
  if (isfinite(value))
    fprintf(writer->to, "%.17g", value);
  else
    fputs("null", writer->to);
}

void json_write_number(struct json_writer *writer, const char *key, const char *text)
{
  begin_value(writer, key);
  fputs(text, writer->to);
}

void json_write_bool(struct json_writer *writer, const char *key, bool value)
{
  json_write_number(writer, key, value ? "true" : "false");
}
