/* utf8proc decomposes and composes characters. Marks are ordered here, because n of them then take
 * n log n steps. The characters that take part are compiled in, from the Unicode version of the
 * reference library's normalizer (9). Marks of later versions are ordinary characters there and
 * here. */
#include "io/tokenizer/nfc.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

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
  char *out;
  size_t bytes;
  int64_t room;
};

/* One check for all calls of utf8proc. */
static enum status check(utf8proc_ssize_t result)
{
  if (result >= 0)
    return STATUS_OK;
  return status_set(STATUS_LIBRARY, "utf8proc: %s", utf8proc_errmsg(result));
}

/* ---- which characters are inert */

/* Ranges of characters that are not inert: NFC may change them, or combine them with earlier ones.
 * Made by tests/io/tokenizer/unicode_tables.py. */
static const int32_t active_ranges[][2] = {
    {0x300, 0x34e},     {0x350, 0x36f},     {0x374, 0x374},     {0x37e, 0x37e},
    {0x387, 0x387},     {0x483, 0x487},     {0x591, 0x5bd},     {0x5bf, 0x5bf},
    {0x5c1, 0x5c2},     {0x5c4, 0x5c5},     {0x5c7, 0x5c7},     {0x610, 0x61a},
    {0x64b, 0x65f},     {0x670, 0x670},     {0x6d6, 0x6dc},     {0x6df, 0x6e4},
    {0x6e7, 0x6e8},     {0x6ea, 0x6ed},     {0x711, 0x711},     {0x730, 0x74a},
    {0x7eb, 0x7f3},     {0x816, 0x819},     {0x81b, 0x823},     {0x825, 0x827},
    {0x829, 0x82d},     {0x859, 0x85b},     {0x8d4, 0x8e1},     {0x8e3, 0x8ff},
    {0x93c, 0x93c},     {0x94d, 0x94d},     {0x951, 0x954},     {0x958, 0x95f},
    {0x9bc, 0x9bc},     {0x9be, 0x9be},     {0x9cd, 0x9cd},     {0x9d7, 0x9d7},
    {0x9dc, 0x9dd},     {0x9df, 0x9df},     {0xa33, 0xa33},     {0xa36, 0xa36},
    {0xa3c, 0xa3c},     {0xa4d, 0xa4d},     {0xa59, 0xa5b},     {0xa5e, 0xa5e},
    {0xabc, 0xabc},     {0xacd, 0xacd},     {0xb3c, 0xb3c},     {0xb3e, 0xb3e},
    {0xb4d, 0xb4d},     {0xb56, 0xb57},     {0xb5c, 0xb5d},     {0xbbe, 0xbbe},
    {0xbcd, 0xbcd},     {0xbd7, 0xbd7},     {0xc4d, 0xc4d},     {0xc55, 0xc56},
    {0xcbc, 0xcbc},     {0xcc2, 0xcc2},     {0xccd, 0xccd},     {0xcd5, 0xcd6},
    {0xd3e, 0xd3e},     {0xd4d, 0xd4d},     {0xd57, 0xd57},     {0xdca, 0xdca},
    {0xdcf, 0xdcf},     {0xddf, 0xddf},     {0xe38, 0xe3a},     {0xe48, 0xe4b},
    {0xeb8, 0xeb9},     {0xec8, 0xecb},     {0xf18, 0xf19},     {0xf35, 0xf35},
    {0xf37, 0xf37},     {0xf39, 0xf39},     {0xf43, 0xf43},     {0xf4d, 0xf4d},
    {0xf52, 0xf52},     {0xf57, 0xf57},     {0xf5c, 0xf5c},     {0xf69, 0xf69},
    {0xf71, 0xf76},     {0xf78, 0xf78},     {0xf7a, 0xf7d},     {0xf80, 0xf84},
    {0xf86, 0xf87},     {0xf93, 0xf93},     {0xf9d, 0xf9d},     {0xfa2, 0xfa2},
    {0xfa7, 0xfa7},     {0xfac, 0xfac},     {0xfb9, 0xfb9},     {0xfc6, 0xfc6},
    {0x102e, 0x102e},   {0x1037, 0x1037},   {0x1039, 0x103a},   {0x108d, 0x108d},
    {0x1161, 0x1175},   {0x11a8, 0x11c2},   {0x135d, 0x135f},   {0x1714, 0x1714},
    {0x1734, 0x1734},   {0x17d2, 0x17d2},   {0x17dd, 0x17dd},   {0x18a9, 0x18a9},
    {0x1939, 0x193b},   {0x1a17, 0x1a18},   {0x1a60, 0x1a60},   {0x1a75, 0x1a7c},
    {0x1a7f, 0x1a7f},   {0x1ab0, 0x1abd},   {0x1b34, 0x1b35},   {0x1b44, 0x1b44},
    {0x1b6b, 0x1b73},   {0x1baa, 0x1bab},   {0x1be6, 0x1be6},   {0x1bf2, 0x1bf3},
    {0x1c37, 0x1c37},   {0x1cd0, 0x1cd2},   {0x1cd4, 0x1ce0},   {0x1ce2, 0x1ce8},
    {0x1ced, 0x1ced},   {0x1cf4, 0x1cf4},   {0x1cf8, 0x1cf9},   {0x1dc0, 0x1df5},
    {0x1dfb, 0x1dff},   {0x1f71, 0x1f71},   {0x1f73, 0x1f73},   {0x1f75, 0x1f75},
    {0x1f77, 0x1f77},   {0x1f79, 0x1f79},   {0x1f7b, 0x1f7b},   {0x1f7d, 0x1f7d},
    {0x1fbb, 0x1fbb},   {0x1fbe, 0x1fbe},   {0x1fc9, 0x1fc9},   {0x1fcb, 0x1fcb},
    {0x1fd3, 0x1fd3},   {0x1fdb, 0x1fdb},   {0x1fe3, 0x1fe3},   {0x1feb, 0x1feb},
    {0x1fee, 0x1fef},   {0x1ff9, 0x1ff9},   {0x1ffb, 0x1ffb},   {0x1ffd, 0x1ffd},
    {0x2000, 0x2001},   {0x20d0, 0x20dc},   {0x20e1, 0x20e1},   {0x20e5, 0x20f0},
    {0x2126, 0x2126},   {0x212a, 0x212b},   {0x2329, 0x232a},   {0x2adc, 0x2adc},
    {0x2cef, 0x2cf1},   {0x2d7f, 0x2d7f},   {0x2de0, 0x2dff},   {0x302a, 0x302f},
    {0x3099, 0x309a},   {0xa66f, 0xa66f},   {0xa674, 0xa67d},   {0xa69e, 0xa69f},
    {0xa6f0, 0xa6f1},   {0xa806, 0xa806},   {0xa8c4, 0xa8c4},   {0xa8e0, 0xa8f1},
    {0xa92b, 0xa92d},   {0xa953, 0xa953},   {0xa9b3, 0xa9b3},   {0xa9c0, 0xa9c0},
    {0xaab0, 0xaab0},   {0xaab2, 0xaab4},   {0xaab7, 0xaab8},   {0xaabe, 0xaabf},
    {0xaac1, 0xaac1},   {0xaaf6, 0xaaf6},   {0xabed, 0xabed},   {0xf900, 0xfa0d},
    {0xfa10, 0xfa10},   {0xfa12, 0xfa12},   {0xfa15, 0xfa1e},   {0xfa20, 0xfa20},
    {0xfa22, 0xfa22},   {0xfa25, 0xfa26},   {0xfa2a, 0xfa6d},   {0xfa70, 0xfad9},
    {0xfb1d, 0xfb1f},   {0xfb2a, 0xfb36},   {0xfb38, 0xfb3c},   {0xfb3e, 0xfb3e},
    {0xfb40, 0xfb41},   {0xfb43, 0xfb44},   {0xfb46, 0xfb4e},   {0xfe20, 0xfe2f},
    {0x101fd, 0x101fd}, {0x102e0, 0x102e0}, {0x10376, 0x1037a}, {0x10a0d, 0x10a0d},
    {0x10a0f, 0x10a0f}, {0x10a38, 0x10a3a}, {0x10a3f, 0x10a3f}, {0x10ae5, 0x10ae6},
    {0x11046, 0x11046}, {0x1107f, 0x1107f}, {0x110b9, 0x110ba}, {0x11100, 0x11102},
    {0x11127, 0x11127}, {0x11133, 0x11134}, {0x11173, 0x11173}, {0x111c0, 0x111c0},
    {0x111ca, 0x111ca}, {0x11235, 0x11236}, {0x112e9, 0x112ea}, {0x1133c, 0x1133c},
    {0x1133e, 0x1133e}, {0x1134d, 0x1134d}, {0x11357, 0x11357}, {0x11366, 0x1136c},
    {0x11370, 0x11374}, {0x11442, 0x11442}, {0x11446, 0x11446}, {0x114b0, 0x114b0},
    {0x114ba, 0x114ba}, {0x114bd, 0x114bd}, {0x114c2, 0x114c3}, {0x115af, 0x115af},
    {0x115bf, 0x115c0}, {0x1163f, 0x1163f}, {0x116b6, 0x116b7}, {0x1172b, 0x1172b},
    {0x11c3f, 0x11c3f}, {0x16af0, 0x16af4}, {0x16b30, 0x16b36}, {0x1bc9e, 0x1bc9e},
    {0x1d15e, 0x1d169}, {0x1d16d, 0x1d172}, {0x1d17b, 0x1d182}, {0x1d185, 0x1d18b},
    {0x1d1aa, 0x1d1ad}, {0x1d1bb, 0x1d1c0}, {0x1d242, 0x1d244}, {0x1e000, 0x1e006},
    {0x1e008, 0x1e018}, {0x1e01b, 0x1e021}, {0x1e023, 0x1e024}, {0x1e026, 0x1e02a},
    {0x1e8d0, 0x1e8d6}, {0x1e944, 0x1e94a}, {0x2f800, 0x2fa1d},
};

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
  for (size_t i = 0; i < sizeof active_ranges / sizeof *active_ranges; i++)
    for (int32_t code = active_ranges[i][0]; code <= active_ranges[i][1]; code++)
      (*out)->active[code / 64] |= (uint64_t)1 << (code & 63);
  return STATUS_OK;
}

void nfc_destroy(struct nfc *nfc)
{
  if (!nfc)
    return;
  mem_free(nfc->codes);
  mem_free(nfc->keys);
  mem_free(nfc->out);
  mem_free(nfc);
}

/* ---- text */

static inline int32_t decode(const char *text, size_t *length)
{
  const unsigned char *byte = (const unsigned char *)text;
  if (byte[0] < 0x80) {
    *length = 1;
    return byte[0];
  }
  if (byte[0] < 0xE0) {
    *length = 2;
    return (byte[0] & 0x1F) << 6 | (byte[1] & 0x3F);
  }
  if (byte[0] < 0xF0) {
    *length = 3;
    return (byte[0] & 0x0F) << 12 | (byte[1] & 0x3F) << 6 | (byte[2] & 0x3F);
  }
  *length = 4;
  return (byte[0] & 0x07) << 18 | (byte[1] & 0x3F) << 12 | (byte[2] & 0x3F) << 6 | (byte[3] & 0x3F);
}

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
    if (!is_inert(nfc, decode(text + at, &length)))
      return at;
    *before = at;
    at += length;
  }
  return bytes;
}

static size_t find_inert(const struct nfc *nfc, const char *text, size_t bytes, size_t at)
{
  for (size_t length; at < bytes && !is_inert(nfc, decode(text + at, &length)); at += length)
    ;
  return at;
}

static enum status append(struct nfc *nfc, const char *text, size_t bytes)
{
  if (bytes == 0)
    return STATUS_OK;
  enum status status =
      mem_grow(MEM_DATA, (void **)&nfc->out, &nfc->room, (int64_t)(nfc->bytes + bytes), 1);
  if (status)
    return status;
  memcpy(nfc->out + nfc->bytes, text, bytes);
  nfc->bytes += bytes;
  return STATUS_OK;
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
        utf8proc_decompose_char(decode(text + at, &length), nfc->codes + *n, EXPANSION_MOST,
                                UTF8PROC_STABLE | UTF8PROC_COMPOSE, &last);
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
    status = append(nfc, spelled,
                    (size_t)utf8proc_encode_char(nfc->codes[i], (utf8proc_uint8_t *)spelled));
  }
  return status;
}

enum status nfc_text(struct nfc *nfc, const char *text, size_t bytes, const char **out,
                     size_t *out_bytes)
{
  size_t before, active = find_active(nfc, text, bytes, 0, &before), done = 0;
  nfc->bytes = 0;
  while (active < bytes) {
    size_t end = find_inert(nfc, text, bytes, active);
    enum status status = append(nfc, text + done, before - done);
    if (!status)
      status = append_segment(nfc, text + before, end - before);
    if (status)
      return status;
    done = end;
    active = find_active(nfc, text, bytes, end, &before);
  }
  *out = text;
  *out_bytes = bytes;
  if (done == 0)
    return STATUS_OK;
  enum status status = append(nfc, text + done, bytes - done);
  *out = nfc->out;
  *out_bytes = nfc->bytes;
  return status;
}
