/* The engine of byte-level BPE: tokens as byte strings, merges by rank, and words into tokens. In a
 * word, of bytes at first, the adjacent pair of lowest rank is joined, the leftmost of equals
 * first, until no pair is left that can be joined. Private to io/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { BPE_VOCAB_MOST = 1 << 24 };

struct bpe;

/* Room for the tokens 0 .. vocab - 1, which have no bytes yet. */
enum status bpe_create(int64_t vocab, struct bpe **out);
void bpe_destroy(struct bpe *bpe); /* takes NULL */

/* Byte-level vocabularies spell bytes as characters: printable ones of Latin-1 stand for
 * themselves, the others in turn for U+0100 and up. */
enum { BPE_BYTES = 256, BPE_SPELLED_MOST = 2 /* bytes of such a character */ };
bool bpe_is_printable(int byte);
size_t bpe_spell_byte(int byte, char out[BPE_SPELLED_MOST]);
/* Writes the bytes that valid UTF-8 text stands for into `out`, which has room for `bytes`. False
 * if a character stands for no byte. */
bool bpe_unspell(const char *text, size_t bytes, char *out, size_t *n);

/* The bytes of a token, at least one. `of_text`: it may come out of text; bpe_find() finds it, and
 * no other token has these bytes. */
enum status bpe_set_token(struct bpe *bpe, int32_t id, const char *bytes, size_t n, bool of_text);
const char *bpe_token(const struct bpe *bpe, int32_t id, size_t *n);  /* *n 0: not given yet */
int32_t bpe_find(const struct bpe *bpe, const char *bytes, size_t n); /* -1: none */
/* The ids of two pieces that are spelled as characters, and of both joined; -1: none. `room` has
 * room for the bytes of both, and may be `left`. False: a character stands for no byte. */
bool bpe_find_merge(const struct bpe *bpe, const char *left, size_t left_bytes, const char *right,
                    size_t right_bytes, char *room, int32_t id[3]);
/* All bytes that UTF-8 has as tokens; false: *missing has none. */
bool bpe_find_bytes(struct bpe *bpe, int *missing);

/* `merges`: upper bound for the number of merges. `whole_words`: a word that is a token is that
 * token, whether merges make it or not. */
enum status bpe_reserve_merges(struct bpe *bpe, int64_t merges, bool whole_words);
/* Pairs added earlier have lower ranks. False: the pair was added before, and gets a new rank. */
bool bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t joined);
/* Whether a token can come out of text: it is a byte, a merge makes it, or it may be a whole
 * word. */
bool bpe_is_made(const struct bpe *bpe, int32_t id);

/* Continue a hash with everything that decides the tokens of a word: tokens by id, merges by
 * rank. */
uint64_t bpe_hash(const struct bpe *bpe, uint64_t hash);

/* Append the tokens of a word of at most INT32_MAX / 4 bytes; `tokens` has room for one a byte. */
enum status bpe_encode_word(struct bpe *bpe, const char *word, size_t bytes, int32_t *tokens,
                            int64_t *n);
