/* Words with counts -> a vocabulary of bytes and merges. Private to io/. */
#pragma once

#include "io/tokenizer/bpe.h"
#include "io/tokenizer/bpe_train.h"
#include "io/tokenizer/bpe_train_words.h"

struct bpe_merge {
  int32_t left, right;
};

struct bpe_vocabulary {
  struct bpe_words tokens; /* the number of a word is the id of the token */
  struct bpe_merge *merge;
  int64_t merges;
};

/* Merge pairs until there are `tokens` of them, or no pair occurs `min_count` times (and at least
 * once). Pairs whose join is one of `reserved` are left alone. *words is used up; it holds one at
 * least. The result does not depend on the words' order. Local. */
enum status bpe_merge_run(struct bpe_words *words, int64_t tokens, int64_t min_count,
                          const struct bpe_words *reserved, struct bpe_vocabulary *out);
void bpe_vocabulary_free(struct bpe_vocabulary *vocabulary); /* takes a zeroed one */

/* tokenizer_config.json, then tokenizer.json, in the format that transformers reads.
 * config->special holds at least one token; special tokens get ids after the vocabulary's.
 * Local. */
enum status bpe_train_write(const struct bpe_train_config *config,
                            const struct bpe_vocabulary *vocabulary);
