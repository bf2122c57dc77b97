/* Escapes for controls, unseen characters and invalid UTF-8. */
#include "base/printable.h"

#include <ctype.h>
#include <stdarg.h>
#include <string.h>

enum { LINE = 8192 }; /* a line of two paths */
enum kind { PLAIN, UNSEEN, CONTROL };

struct range {
  uint32_t first, last;
};

static const struct range controls[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},     {0x61c, 0x61c},
    {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069},
};

/* Category Zs without U+0020. */
static const struct range blanks[] = {
    {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
    {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
};

/* These blanks, characters of no width, and those that Unicode ignores by default. */
static const struct range unseen[] = {
    {0xa0, 0xa0},       {0xad, 0xad},       {0x34f, 0x34f},   {0x115f, 0x1160}, {0x1680, 0x1680},
    {0x180b, 0x180f},   {0x2000, 0x200d},   {0x202f, 0x202f}, {0x205f, 0x206f}, {0x2800, 0x2800},
    {0x3000, 0x3000},   {0x3164, 0x3164},   {0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0xfff0, 0xfffb},
    {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
};

static bool is_in(uint32_t code, const struct range *range, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (code >= range[i].first && code <= range[i].last)
      return true;
  return false;
}

bool printable_is_control(uint32_t code)
{
  return is_in(code, controls, sizeof controls / sizeof *controls);
}

bool printable_is_unseen(uint32_t code)
{
  return is_in(code, unseen, sizeof unseen / sizeof *unseen);
}

bool printable_is_blank(uint32_t code)
{
  return is_in(code, blanks, sizeof blanks / sizeof *blanks);
}

static bool is_continuation(char byte)
{
  return ((unsigned char)byte & 0xc0) == 0x80;
}

struct character printable_at(const char *text, size_t left)
{
  const unsigned char lead = (unsigned char)*text;
  static const uint32_t least[] = {[3] = 0x800, [4] = 0x10000}; /* no longer form than needed */
  const size_t most = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  struct character c = {1, most == 1 ? lead : lead & (0x7fU >> most)};
  while (c.bytes < most && c.bytes < left && is_continuation(text[c.bytes]))
    c.code = c.code << 6 | ((unsigned char)text[c.bytes++] & 0x3f);
  const bool surrogate = c.code >= 0xd800 && c.code < 0xe000,
             whole = c.bytes == most && (most == 1 || (c.code >= least[most] && !surrogate));
  return whole && c.code <= 0x10ffff ? c : (struct character){1, lead};
}

/* The lead of a cut character is none of the controls below U+00A0. */
static enum kind kind_of(struct character c)
{
  if (printable_is_control(c.code))
    return CONTROL;
  return c.bytes > 1 && printable_is_unseen(c.code) ? UNSEEN : PLAIN;
}

struct substitute {
  char text[16];
};

static struct substitute substitute(uint32_t code)
{
  struct substitute out = {"?"};
  if (code < 0x80 && isspace((int)code))
    *out.text = ' ';
  else if (code >= 0xa0)
    snprintf(out.text, sizeof out.text, "<U+%04X>", code);
  return out;
}

static void copy(const char *text, char *out, size_t size)
{
  const size_t bytes = strlen(text);
  size_t used = 0;
  struct character c;
  for (size_t at = 0; at < bytes; at += c.bytes) {
    c = printable_at(text + at, bytes - at);
    const struct substitute shown = substitute(c.code);
    const bool plain = kind_of(c) == PLAIN;
    const size_t more = plain ? c.bytes : strlen(shown.text);
    if (used + more >= size)
      break;
    memcpy(out + used, plain ? text + at : shown.text, more);
    used += more;
  }
  out[used] = '\0';
}

/* Most texts need no change. */
static bool has(const char *text, enum kind least)
{
  const size_t bytes = strlen(text);
  struct character c;
  for (size_t at = 0; at < bytes; at += c.bytes) {
    c = printable_at(text + at, bytes - at);
    if (kind_of(c) >= least)
      return true;
  }
  return false;
}

void printable_make(char *text, size_t size)
{
  char made[LINE];
  if (!has(text, UNSEEN))
    return;
  copy(text, made, size < sizeof made ? size : sizeof made);
  memcpy(text, made, strlen(made) + 1);
}

void printable_print(FILE *to, const char *format, ...)
{
  char line[LINE];
  const size_t bytes = strlen(format);
  const bool ends = bytes > 0 && format[bytes - 1] == '\n';
  va_list args;
  for (; *format == '\n' && format[1]; format++)
    putc('\n', to);
  va_start(args, format);
  if (vsnprintf(line, sizeof line, format, args) < 0)
    *line = '\0';
  va_end(args);
  const size_t used = strlen(line);
  if (ends && used > 0 && line[used - 1] == '\n')
    line[used - 1] = '\0';
  printable_make(line, sizeof line);
  fputs(line, to);
  if (ends)
    putc('\n', to);
}

bool printable_is(const char *text)
{
  return !has(text, CONTROL);
}

void printable_put(const char *text, size_t bytes, FILE *to)
{
  struct character c;
  for (size_t at = 0; at < bytes; at += c.bytes) {
    c = printable_at(text + at, bytes - at);
    if (kind_of(c) == CONTROL && text[at] != '\n' && text[at] != '\t')
      fputs(substitute(c.code).text, to);
    else
      fwrite(text + at, 1, c.bytes, to);
  }
}
