/* Pre-tokenization: splits a text into words, by the patterns of byte-level BPE tokenizers. The
 * patterns are written for other engines: GPT-2's for Python's `regex`, Llama-3's and Qwen's for
 * Oniguruma. Here they run on PCRE2 in UTF-8 mode, with \s spelled out as Unicode's White_Space. */
#ifndef SLUICE_IO_TOKENIZER_SPLIT_H
#define SLUICE_IO_TOKENIZER_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct split;

/* The known patterns by name: "gpt2", "llama3", "qwen2". NULL if there is none of that name. The
 * text is what tokenizer.json holds. */
const char *split_pattern(const char *name);

/* Compile a pattern (zero-terminated UTF-8). A pattern that is no regular expression, or can match
 * the empty text in a way that would never end: STATUS_INPUT naming `where` (a file) and the
 * engine's complaint with its offset. One thread at a time may use a split. */
enum status split_create(const char *where, const char *pattern, struct split **out);
void split_destroy(struct split *split); /* takes NULL */

/* The piece of valid UTF-8 text that begins at byte `at` < bytes ends before *end > at. It is a
 * match, or the text before the next match ("Isolated"). */
enum status split_next(struct split *split, const char *text, size_t bytes, size_t at, size_t *end);

#endif
