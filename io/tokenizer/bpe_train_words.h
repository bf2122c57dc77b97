/* Distinct byte strings with counts: the words of a corpus, the tokens of a vocabulary. Private to
 * io/. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

struct bpe_word {
  int64_t count;
  uint64_t begin; /* in the pool */
  uint32_t bytes, hash;
};

/* Words are numbered in the order in which they were added, and lie one after another in the pool.
 * Starts zeroed. */
struct bpe_words {
  struct bpe_word *word; /* [n] */
  int64_t n, room, pool_room;
  char *pool;
  uint64_t bytes;
  uint64_t *slot; /* a hash table: hash << 32 | number + 1, 0 where empty */
  uint64_t slots; /* a power of two */
};

/* Bytes of all words of a table, and one for each of them: UINT32_MAX / 3, because merges number
 * at most three places per byte with 32 bits. Tests lower it. */
extern uint64_t bpe_words_most;

/* Add `count` to a word, which is added if it is new. *number may be NULL. STATUS_UNSUPPORTED above
 * the limit. */
enum status bpe_words_add(struct bpe_words *words, const char *text, size_t bytes, int64_t count,
                          int64_t *number);
int64_t bpe_words_find(const struct bpe_words *words, const char *text,
                       size_t bytes);         /* number, or -1 */
void bpe_words_free(struct bpe_words *words); /* takes a zeroed one */

/* All ranks' words end in rank 0's table, whose order depends on the number of ranks; the other
 * tables are left empty. Collective. */
enum status bpe_words_gather(struct comm *comm, struct bpe_words *words);
