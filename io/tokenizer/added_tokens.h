/* Added tokens: texts that are found before all splitting. The leftmost match comes first, then the
 * longest. Private to io/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { ADDED_TOKEN_BYTES_MOST = 1024 };

struct added_token {
  const char *text; /* valid UTF-8, not empty; owned by the caller that adds it */
  size_t bytes;
  int32_t id;
  bool takes_left, takes_right; /* also the white space before or after it */
  bool special;
};

struct added_tokens {
  struct added_token *token; /* sorted by text once added_tokens_sort() was called */
  int64_t count, room;
  bool first[256];       /* bytes that one of them begins with */
  int first_bytes, only; /* the number of such bytes, and the last of them */
};

enum status added_tokens_add(struct added_tokens *set, const struct added_token *token);
/* Compares two tokens for qsort(3): -1, 0, 1. */
int added_tokens_by_text(const void *a, const void *b);
void added_tokens_sort(struct added_tokens *set);
void added_tokens_free(struct added_tokens *set); /* takes a zeroed one */

/* A token in text[at .. after), and with the white space that it takes in text[begin .. end). The
 * search goes on at `after`. */
struct added_match {
  size_t begin, end, at, after;
  int32_t id;
};

/* The first token found at byte `from` or later. White space before byte `taken` belongs to an
 * earlier token. `marks`: of enum tokenizer_mark, one a byte, or NULL. False: none. */
bool added_tokens_find(const struct added_tokens *set, const char *text, size_t bytes,
                       const unsigned char *marks, size_t from, size_t taken,
                       struct added_match *out);
