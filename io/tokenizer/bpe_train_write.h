/* A vocabulary as tokenizer.json and tokenizer_config.json. Private to io/. */
#ifndef SLUICE_IO_TOKENIZER_BPE_TRAIN_WRITE_H
#define SLUICE_IO_TOKENIZER_BPE_TRAIN_WRITE_H

#include "io/tokenizer/bpe_train.h"
#include "io/tokenizer/bpe_train_merge.h"

/* In the format that transformers reads; tokenizer.json last. config->special holds at least one
 * token; special tokens get ids after the vocabulary's. Local. */
enum status bpe_train_write(const struct bpe_train_config *config,
                            const struct bpe_vocabulary *vocabulary);

#endif
