/* Pre-tokenization: splits a text into words, by the patterns of byte-level BPE tokenizers. The
 * patterns are written for other engines: GPT-2's for Python's `regex`, Llama-3's and Qwen's for
 * Oniguruma. Here they run on PCRE2 in UTF-8 mode, with \s spelled out as Unicode's White_Space. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct split;

/* The fate of a match, as tokenizer.json names it. */
enum split_behavior {
  SPLIT_ISOLATED,      /* it is a piece of its own */
  SPLIT_REMOVED,       /* it is no piece */
  SPLIT_WITH_PREVIOUS, /* it is joined to the text before it */
  SPLIT_WITH_NEXT,     /* it is joined to the text after it */
  SPLIT_CONTIGUOUS     /* it is joined to its neighbours that match */
};

struct split_rule {
  const char *pattern; /* zero-terminated UTF-8 */
  enum split_behavior behavior;
  bool literal; /* the pattern stands for itself */
  bool invert;  /* the text between the matches counts as the matches */
};

/* The known patterns by name: "gpt2", "llama3", "qwen2", and "digit" and "digits" of the
 * pre-tokenizer Digits. NULL if there is none of that name. The text is what tokenizer.json holds.
 */
const char *split_pattern(const char *name);

/* Compile a rule. STATUS_INPUT if the pattern is no regular expression, or can match the empty text
 * in a way that would never end. The message names `where` (a file), and the engine's complaint
 * with its offset. One thread at a time may use a split. */
enum status split_create(const char *where, const struct split_rule *rule, struct split **out);
void split_destroy(struct split *split); /* takes NULL */

/* The first piece of valid UTF-8 text at byte `at` < bytes or after it. `at` is 0 or the end of a
 * piece. *begin = *end = bytes: there is none, because the rest is removed. */
enum status split_next(struct split *split, const char *text, size_t bytes, size_t at,
                       size_t *begin, size_t *end);
