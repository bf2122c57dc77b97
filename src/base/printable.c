#include "base/printable.h"

#include <ctype.h>
#include <string.h>

/* A character's bytes and whether it is a control; a byte that begins no UTF-8 character counts as
 * one character. */
struct character {
  size_t bytes;
  bool control;
};

static bool is_continuation(unsigned char byte)
{
  return (byte & 0xc0) == 0x80;
}

static struct character character_at(const unsigned char *text, size_t left)
{
  const unsigned char lead = text[0];
  if (lead < 0xc2)
    return (struct character){1, lead < 0x20 || (lead >= 0x7f && lead <= 0x9f)};
  const size_t most = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  size_t bytes = 1;
  while (bytes < most && bytes < left && is_continuation(text[bytes]))
    bytes++;
  if (bytes < most)
    return (struct character){1, false};
  return (struct character){bytes, lead == 0xc2 && text[1] <= 0x9f};
}

static char substitute(char control)
{
  return isspace((unsigned char)control) ? ' ' : '?';
}

void printable_make(char *text)
{
  const size_t bytes = strlen(text);
  size_t used = 0;
  struct character c;
  for (size_t at = 0; at < bytes; at += c.bytes) {
    c = character_at((const unsigned char *)text + at, bytes - at);
    if (c.control) {
      text[used++] = substitute(text[at]);
      continue;
    }
    memmove(text + used, text + at, c.bytes);
    used += c.bytes;
  }
  text[used] = '\0';
}

bool printable_is(const char *text)
{
  const size_t bytes = strlen(text);
  struct character c;
  for (size_t at = 0; at < bytes; at += c.bytes) {
    c = character_at((const unsigned char *)text + at, bytes - at);
    if (c.control)
      return false;
  }
  return true;
}

void printable_put(const char *text, size_t bytes, FILE *to)
{
  struct character c;
  for (size_t at = 0; at < bytes; at += c.bytes) {
    c = character_at((const unsigned char *)text + at, bytes - at);
    if (c.control && text[at] != '\n' && text[at] != '\t')
      putc(substitute(text[at]), to);
    else
      fwrite(text + at, 1, c.bytes, to);
  }
}
