/* Training of a byte-level BPE vocabulary (Sennrich et al. 2016, arXiv:1508.07909), deterministic
 * at any number of ranks. All ranks count words. Pairs are merged by their count over the corpus;
 * among equal counts, the pair of lower ids is first (as in Hugging Face's BpeTrainer). */
#pragma once

#include "comm/comm.h"
#include "io/text/text.h"

struct bpe_train_config {
  int inputs;
  char *const *input; /* files or folders, as sluice prepare takes them */
  struct text_options text;
  const char *out;     /* folder: tokenizer.json and tokenizer_config.json, written when complete */
  const char *pattern; /* name of a split pattern: gpt2, llama3, qwen2 */
  int64_t vocab;       /* tokens in all: 256 bytes, merges, special tokens; at least 257 */
  int specials;
  char *const *special; /* special tokens, with ids after the merges; the first one is end of text;
                           none: "<|endoftext|>" */
  int64_t min_count;    /* pairs that occur less often are not merged */
  int64_t word_most;    /* bytes; longer words (as runs of white space) are not counted; 0: any */
};

struct bpe_train_result {
  int64_t files, documents, skipped, bytes, words, distinct_words,
      vocab; /* counted as by prepare */
  double seconds;
};

/* A corpus too small for `vocab` tokens: fewer come out, and a warning says how many. An existing
 * tokenizer.json in `out`: STATUS_USAGE. Collective. */
enum status bpe_train_run(struct comm *comm, const struct bpe_train_config *config,
                          struct bpe_train_result *result);
