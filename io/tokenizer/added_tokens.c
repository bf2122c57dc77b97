/* The search goes through the sorted texts by binary search, byte by byte. */
#include "io/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/text/utf8.h"
#include "io/tokenizer/tokenizer.h"

enum status added_tokens_add(struct added_tokens *set, const struct added_token *token)
{
  enum status status =
      mem_grow(MEM_DATA, (void **)&set->token, &set->room, set->count + 1, sizeof *set->token);
  if (status)
    return status;
  set->token[set->count++] = *token;
  unsigned char first = (unsigned char)token->text[0];
  set->first_bytes += !set->first[first];
  set->first[first] = true;
  set->only = first;
  return STATUS_OK;
}

int added_tokens_by_text(const void *a, const void *b)
{
  const struct added_token *x = a, *y = b;
  int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
  return order ? order : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

void added_tokens_sort(struct added_tokens *set)
{
  if (set->count > 0)
    qsort(set->token, (size_t)set->count, sizeof *set->token, added_tokens_by_text);
}

void added_tokens_free(struct added_tokens *set)
{
  mem_free(set->token);
  *set = (struct added_tokens){0};
}

/* Among the tokens [low, high), all longer than `depth` and equal before it, the first whose byte
 * there is `byte` or more. */
static int64_t lower_bound(const struct added_tokens *set, int64_t low, int64_t high, size_t depth,
                           int byte)
{
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if ((unsigned char)set->token[middle].text[depth] < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The longest token that `text` begins with, NULL for none. The range of tokens that agree with the
 * text is narrowed byte by byte. */
static const struct added_token *longest(const struct added_tokens *set, const char *text,
                                         size_t bytes, const unsigned char *marks)
{
  const struct added_token *found = NULL;
  int64_t low = 0, high = set->count;
  bool special = true; /* every byte so far may be of a special token */
  for (size_t depth = 0; low < high; depth++) {
    if (set->token[low].bytes == depth) { /* the shortest one comes first */
      found = special || !set->token[low].special ? &set->token[low] : found;
      low++;
    }
    special = special && (!marks || depth == bytes || marks[depth] & TOKENIZER_SPECIAL);
    if (depth == bytes)
      break;
    int byte = (unsigned char)text[depth];
    low = lower_bound(set, low, high, depth, byte);
    high = lower_bound(set, low, high, depth, byte + 1);
  }
  return found;
}

/* The next byte that a token may begin at; `bytes` for none. */
static size_t next_candidate(const struct added_tokens *set, const char *text, size_t bytes,
                             size_t at)
{
  if (set->first_bytes == 1) {
    const char *found = at < bytes ? memchr(text + at, set->only, bytes - at) : NULL;
    return found ? (size_t)(found - text) : bytes;
  }
  while (at < bytes && !set->first[(unsigned char)text[at]])
    at++;
  return at;
}

/* Unicode's White_Space. */
static bool is_space(uint32_t code)
{
  return code == ' ' || (code >= '\t' && code <= '\r') || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

static size_t spaces_begin(const char *text, size_t least, size_t end)
{
  for (size_t at = end, length; at > least;) {
    do
      at--;
    while (((unsigned char)text[at] & 0xC0) == 0x80);
    if (!is_space(utf8_decode(text + at, &length)))
      break;
    end = at;
  }
  return end;
}

static size_t spaces_end(const char *text, size_t bytes, size_t at)
{
  for (size_t length; at < bytes && is_space(utf8_decode(text + at, &length)); at += length)
    ;
  return at;
}

bool added_tokens_find(const struct added_tokens *set, const char *text, size_t bytes,
                       const unsigned char *marks, size_t from, size_t taken,
                       struct added_match *out)
{
  if (set->count == 0)
    return false;
  for (size_t at = next_candidate(set, text, bytes, from); at < bytes;
       at = next_candidate(set, text, bytes, at + 1)) {
    const struct added_token *token =
        longest(set, text + at, bytes - at, marks ? marks + at : NULL);
    if (!token)
      continue;
    size_t end = at + token->bytes;
    *out = (struct added_match){
        .begin = token->takes_left && taken < at ? spaces_begin(text, taken, at) : at,
        .end = token->takes_right ? spaces_end(text, bytes, end) : end,
        .at = at,
        .after = end,
        .id = token->id};
    return true;
  }
  return false;
}
