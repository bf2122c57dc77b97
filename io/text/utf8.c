/* UTF-8, of which long runs of ASCII are checked eight bytes at a time. */
#include "io/text/utf8.h"

#include <string.h>

#include "base/mem.h"

/* Whether a character whose lead byte is not ASCII is well formed at text[0] (Unicode 15, table
 * 3-7), and its length. If it is not, the length is that of the bytes up to the one that cannot
 * continue it, at least one. */
static bool take_character(const unsigned char *text, size_t bytes, size_t *length)
{
  unsigned char lead = text[0], least = 0x80, most = 0xBF;
  size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  *length = 1;
  if (lead < 0xC2 || lead > 0xF4)
    return false;
  if (lead == 0xE0)
    least = 0xA0; /* below: overlong */
  else if (lead == 0xED)
    most = 0x9F; /* above: surrogates */
  else if (lead == 0xF0)
    least = 0x90;
  else if (lead == 0xF4)
    most = 0x8F; /* above: beyond U+10FFFF */
  if (bytes < 2 || text[1] < least || text[1] > most)
    return false;
  for (*length = 2; *length < want; ++*length)
    if (*length == bytes || (text[*length] & 0xC0) != 0x80)
      return false;
  return true;
}

/* Whether a byte of the word is 0. Words with a byte above 0x7F do not get here. */
static bool has_nul(uint64_t word)
{
  return ((word - 0x0101010101010101) & 0x8080808080808080) != 0;
}

static int64_t find_invalid(const char *text, size_t bytes, bool nul)
{
  const unsigned char *byte = (const unsigned char *)text;
  size_t i = 0;
  while (i < bytes) {
    uint64_t word;
    if (bytes - i >= sizeof word) {
      memcpy(&word, byte + i, sizeof word);
      if ((word & 0x8080808080808080) == 0 && !(nul && has_nul(word))) {
        i += sizeof word;
        continue;
      }
    }
    size_t length = 1;
    if (nul && byte[i] == 0)
      return (int64_t)i;
    if (byte[i] >= 0x80 && !take_character(byte + i, bytes - i, &length))
      return (int64_t)i;
    i += length;
  }
  return -1;
}

int64_t utf8_find_invalid(const char *text, size_t bytes)
{
  return find_invalid(text, bytes, false);
}

int64_t utf8_find_invalid_or_nul(const char *text, size_t bytes)
{
  return find_invalid(text, bytes, true);
}

enum status utf8_replace(const char *text, size_t bytes, char **out, int64_t *n, int64_t *room)
{
  static const char replacement[] = "\xEF\xBF\xBD";
  enum { LONGEST = sizeof replacement - 1 };
  for (size_t at = 0;;) {
    int64_t invalid = utf8_find_invalid_or_nul(text + at, bytes - at);
    size_t valid = invalid < 0 ? bytes - at : (size_t)invalid, broken;
    enum status status = mem_grow(MEM_DATA, (void **)out, room, *n + (int64_t)valid + LONGEST, 1);
    if (status)
      return status;
    memcpy(*out + *n, text + at, valid);
    *n += (int64_t)valid;
    if (invalid < 0)
      return STATUS_OK;
    memcpy(*out + *n, replacement, LONGEST);
    *n += LONGEST;
    at += valid;
    (void)take_character((const unsigned char *)text + at, bytes - at, &broken);
    at += broken;
  }
}
