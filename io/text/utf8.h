/* Checks whether text is UTF-8, decodes it, and replaces invalid parts. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* First byte of `text` that is not part of valid UTF-8, or -1. */
int64_t utf8_find_invalid(const char *text, size_t bytes);
/* The same, where a NUL byte is not valid either. */
int64_t utf8_find_invalid_or_nul(const char *text, size_t bytes);
/* Append `text` to *out (grown with mem_resize; *n used, *room allocated). U+FFFD replaces each
 * maximal part that begins no character, and each part of a character that does not go on (Unicode
 * 15, section 3.9). Python's bytes.decode("utf-8", "replace") gives the same. U+FFFD replaces each
 * NUL byte, too. */
enum status utf8_replace(const char *text, size_t bytes, char **out, int64_t *n, int64_t *room);

/* The character that valid text begins with, and its length. */
static inline uint32_t utf8_decode(const char *text, size_t *bytes)
{
  const unsigned char *byte = (const unsigned char *)text;
  const size_t length = byte[0] < 0x80 ? 1 : byte[0] < 0xE0 ? 2 : byte[0] < 0xF0 ? 3 : 4;
  uint32_t code = length == 1 ? byte[0] : byte[0] & (0x7Fu >> length);
  for (size_t i = 1; i < length; i++)
    code = code << 6 | (byte[i] & 0x3Fu);
  *bytes = length;
  return code;
}
