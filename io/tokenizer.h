/* Text to tokens and back. `bytes`: one token a byte, 0..255, and 256 = end of text. `gpt2`: byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019)
 * from a user's vocab.json and merges.txt, split by exactly GPT-2's pattern. */
#ifndef SLUICE_IO_TOKENIZER_H
#define SLUICE_IO_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct tokenizer;

/* name "bytes" (folder NULL) or "gpt2" (folder holds vocab.json and merges.txt). A damaged file: a sentence naming file and byte or line. */
enum status tokenizer_create(const char *name, const char *folder, struct tokenizer **out);
void tokenizer_destroy(struct tokenizer *tokenizer); /* takes NULL */
const char *tokenizer_name(const struct tokenizer *tokenizer);
int64_t tokenizer_vocab(const struct tokenizer *tokenizer);
int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);
uint32_t tokenizer_checksum(const struct tokenizer *tokenizer); /* CRC-32 of its files, one after another; 0 where it has none */

/* Append the tokens of valid UTF-8 text to *tokens (grown with mem_resize; *n used, *room allocated). */
enum status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t bytes, int32_t **tokens, int64_t *n, int64_t *room);
/* Append the bytes of the tokens to *text (same growing rule); end of text gives nothing. Bytes may be a part of a character. */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, int64_t n, char **text, int64_t *bytes, int64_t *room);

/* First byte of `text` that is not part of valid UTF-8, or -1. */
int64_t utf8_find_invalid(const char *text, size_t bytes);

#endif
