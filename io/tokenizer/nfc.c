/* utf8proc decomposes and composes characters. Marks are ordered here, because n of them then take
 * n log n steps. The characters that take part are compiled in, from the Unicode version of the
 * reference library's normalizer (9). Marks of later versions are ordinary characters there and
 * here. */
#include "io/tokenizer/nfc.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "io/text/input.h"
#include "io/text/utf8.h"

enum {
  CODES = 0x30000,    /* all characters beyond are inert */
  EXPANSION_MOST = 18 /* code points of any decomposition: Unicode's own bound */
};

/* An inert character stays as it is in NFC and does not combine with characters before it. So text
 * may be cut before it. */
struct nfc {
  uint64_t active[CODES / 64]; /* characters that are not inert */
  int32_t *codes;              /* of the segment at hand */
  int64_t codes_room;
  uint64_t *keys; /* of a row of marks */
  int64_t keys_room;
  struct text_buffer out, marks;
};

/* One check for all calls of utf8proc. */
static enum status check(utf8proc_ssize_t result)
{
  if (result >= 0)
    return STATUS_OK;
  return status_set(STATUS_LIBRARY, "utf8proc: %s", utf8proc_errmsg(result));
}

/* ---- which characters are inert */

/* Runs of characters, inert ones and others in turn, by their lengths. NFC may change the others,
 * or combine them with earlier ones. Made by tests/io/tokenizer/unicode_tables.py. */
/* clang-format off */
static const int32_t runs[] = {
    768,79, 1,32, 4,1, 9,1, 8,1, 251,5, 265,45, 1,1, 1,2, 1,2, 1,1, 72,11, 48,21, 16,1, 101,7, 2,6,
    2,2, 1,4, 35,1, 30,27, 160,9, 34,4, 1,9, 1,3, 1,5, 43,3, 120,14, 1,29, 60,1, 16,1, 3,4, 3,8,
    92,1, 1,1, 14,1, 9,1, 4,2, 1,1, 83,1, 2,1, 5,1, 16,1, 11,3, 2,1, 93,1, 16,1, 110,1, 1,1, 14,1,
    8,2, 4,2, 96,1, 14,1, 9,1, 117,1, 7,2, 101,1, 5,1, 10,1, 7,2, 103,1, 14,1, 9,1, 114,1, 4,1,
    15,1, 88,3, 13,4, 108,2, 14,4, 76,2, 27,1, 1,1, 1,1, 9,1, 9,1, 4,1, 4,1, 4,1, 12,1, 7,6, 1,1,
    1,4, 2,5, 1,2, 11,1, 9,1, 4,1, 4,1, 4,1, 12,1, 12,1, 103,1, 8,1, 1,2, 82,1, 211,21, 50,27,
    410,3, 948,1, 31,1, 157,1, 10,1, 203,1, 143,3, 219,2, 71,1, 20,8, 2,1, 48,14, 118,2, 14,1, 38,9,
    54,2, 58,1, 11,2, 67,1, 152,3, 1,13, 1,7, 4,1, 6,1, 3,2, 198,54, 5,5, 369,1, 1,1, 1,1, 1,1, 1,1,
    1,1, 1,1, 61,1, 2,1, 10,1, 1,1, 7,1, 7,1, 7,1, 7,1, 2,2, 9,1, 1,1, 1,1, 2,2, 206,13, 4,1, 3,12,
    53,1, 3,2, 509,2, 1969,1, 530,3, 141,1, 96,32, 554,6, 105,2, 30164,1, 4,10, 32,2, 80,2, 276,1,
    189,1, 27,18, 57,3, 37,1, 95,1, 12,1, 239,1, 1,3, 2,2, 5,2, 1,1, 52,1, 246,1, 19730,270, 2,1,
    1,1, 2,10, 1,1, 1,1, 2,2, 3,68, 2,106, 67,3, 10,13, 1,5, 1,1, 1,2, 1,2, 1,9, 721,16, 973,1,
    226,1, 149,5, 1682,1, 1,1, 40,3, 4,1, 165,2, 1375,1, 56,1, 57,2, 69,3, 36,1, 11,2, 62,1, 76,1,
    9,1, 106,2, 178,2, 81,1, 1,1, 14,1, 9,1, 14,7, 3,5, 205,1, 3,1, 105,1, 9,1, 2,1, 4,2, 235,1,
    15,2, 126,1, 118,2, 115,1, 1299,1, 20144,5, 59,7, 20839,1, 5311,12, 3,6, 8,8, 2,7, 30,4, 13,6,
    129,3, 3515,7, 1,17, 2,7, 1,2, 1,5, 2213,7, 109,7, 69301,542,
};
/* clang-format on */

static inline bool is_inert(const struct nfc *nfc, int32_t code)
{
  return code >= CODES || !(nfc->active[code / 64] >> (code & 63) & 1);
}

static int combining_class(const struct nfc *nfc, int32_t code)
{
  return is_inert(nfc, code) ? 0 : utf8proc_get_property(code)->combining_class;
}

enum status nfc_create(struct nfc **out)
{
  enum status status = mem_new(MEM_DATA, 1, out);
  if (status)
    return status;
  /* a document that is not too long may become longer */
  (*out)->out.most = (*out)->marks.most = SIZE_MAX;
  int32_t code = 0;
  for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
    for (const int32_t end = code + runs[i]; code < end; code++)
      (*out)->active[code / 64] |= (uint64_t)(i % 2) << (code & 63);
  return STATUS_OK;
}

void nfc_destroy(struct nfc *nfc)
{
  if (!nfc)
    return;
  mem_free(nfc->codes);
  mem_free(nfc->keys);
  text_buffer_free(&nfc->out);
  text_buffer_free(&nfc->marks);
  mem_free(nfc);
}

/* ---- text */

/* The first character at `at` or later that is not inert, `bytes` for none. *before: start of the
 * character before it, or its own start if it is the first. */
static size_t find_active(const struct nfc *nfc, const char *text, size_t bytes, size_t at,
                          size_t *before)
{
  *before = at;
  while (at < bytes) {
    uint64_t word;
    size_t length;
    if (bytes - at > sizeof word) {
      memcpy(&word, text + at, sizeof word);
      if ((word & 0x8080808080808080) == 0) {
        at += sizeof word;
        *before = at - 1;
        continue;
      }
    }
    if (!is_inert(nfc, (int32_t)utf8_decode(text + at, &length)))
      return at;
    *before = at;
    at += length;
  }
  return bytes;
}

static int by_key(const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Sorts a row of marks by combining class. Marks of one class keep their order. */
static enum status sort_marks(struct nfc *nfc, int32_t *marks, int64_t n)
{
  bool sorted = true;
  enum status status =
      mem_grow(MEM_DATA, (void **)&nfc->keys, &nfc->keys_room, n, (int64_t)sizeof *nfc->keys);
  if (status)
    return status;
  for (int64_t i = 0; i < n; i++) {
    uint64_t class = (uint64_t)combining_class(nfc, marks[i]);
    nfc->keys[i] = class << 56 | (uint64_t)i << 21 | (uint32_t)marks[i];
    sorted = sorted && (i == 0 || nfc->keys[i - 1] < nfc->keys[i]);
  }
  if (sorted)
    return STATUS_OK;
  qsort(nfc->keys, (size_t)n, sizeof *nfc->keys, by_key);
  for (int64_t i = 0; i < n; i++)
    marks[i] = (int32_t)(nfc->keys[i] & 0x1FFFFF);
  return STATUS_OK;
}

static enum status decompose(struct nfc *nfc, const char *text, size_t bytes, int64_t *n)
{
  int last = 0;
  *n = 0;
  for (size_t at = 0, length; at < bytes; at += length) {
    enum status status = mem_grow(MEM_DATA, (void **)&nfc->codes, &nfc->codes_room,
                                  *n + EXPANSION_MOST, (int64_t)sizeof *nfc->codes);
    if (status)
      return status;
    utf8proc_ssize_t parts =
        utf8proc_decompose_char((int32_t)utf8_decode(text + at, &length), nfc->codes + *n,
                                EXPANSION_MOST, UTF8PROC_STABLE | UTF8PROC_COMPOSE, &last);
    status = check(parts);
    if (status)
      return status;
    *n += parts;
  }
  return STATUS_OK;
}

/* Decompose, put marks in order, compose. */
static enum status append_segment(struct nfc *nfc, const char *text, size_t bytes)
{
  int64_t n = 0;
  enum status status = decompose(nfc, text, bytes, &n);
  for (int64_t i = 0, end; i < n && !status; i = end + 1) {
    for (end = i; end < n && combining_class(nfc, nfc->codes[end]) != 0;)
      end++;
    status = end - i > 1 ? sort_marks(nfc, nfc->codes + i, end - i) : STATUS_OK;
  }
  if (status)
    return status;
  n = utf8proc_normalize_utf32(nfc->codes, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  status = check(n);
  for (int64_t i = 0; i < n && !status; i++) {
    char spelled[4];
    status = text_buffer_append(
        &nfc->out, spelled,
        (size_t)utf8proc_encode_char(nfc->codes[i], (utf8proc_uint8_t *)spelled));
  }
  return status;
}

/* Marks of a part of the text, for what was appended to the output for it. */
static enum status append_marks(struct nfc *nfc, const char *text, const unsigned char *marks,
                                size_t bytes)
{
  const size_t more = nfc->out.bytes - nfc->marks.bytes;
  unsigned char all = 0xFF;
  if (more == bytes && memcmp(nfc->out.data + nfc->marks.bytes, text, bytes) == 0)
    return text_buffer_append(&nfc->marks, (const char *)marks, bytes);
  for (size_t i = 0; i < bytes; i++)
    all &= marks[i];
  for (size_t i = 0; i < more; i++)
    text_buffer_append(&nfc->marks, (const char *)&all, 1);
  return nfc->marks.status;
}

enum status nfc_text(struct nfc *nfc, const char *text, size_t bytes, const char **out,
                     size_t *out_bytes, const unsigned char **marks)
{
  const unsigned char *of = marks ? *marks : NULL;
  size_t before, active = find_active(nfc, text, bytes, 0, &before), done = 0;
  text_buffer_clear(&nfc->out);
  text_buffer_clear(&nfc->marks);
  while (active < bytes) {
    size_t end = active, length;
    while (end < bytes && !is_inert(nfc, (int32_t)utf8_decode(text + end, &length)))
      end += length;
    enum status status = text_buffer_append(&nfc->out, text + done, before - done);
    if (of && !status)
      status = append_marks(nfc, text + done, of + done, before - done);
    status = status ?: append_segment(nfc, text + before, end - before);
    if (of && !status)
      status = append_marks(nfc, text + before, of + before, end - before);
    if (status)
      return status;
    done = end;
    active = find_active(nfc, text, bytes, end, &before);
  }
  *out = text;
  *out_bytes = bytes;
  if (done == 0)
    return STATUS_OK;
  enum status status = text_buffer_append(&nfc->out, text + done, bytes - done);
  if (of && !status)
    status = append_marks(nfc, text + done, of + done, bytes - done);
  if (of)
    *marks = (const unsigned char *)nfc->marks.data;
  *out = nfc->out.data;
  *out_bytes = nfc->out.bytes;
  return status;
}
