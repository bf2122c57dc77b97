/* The common part of the tokenizers gpt2 and json: everything except loading their files. Private
 * to io/. */
#ifndef SLUICE_IO_TOKENIZER_TOKENIZER_BPE_H
#define SLUICE_IO_TOKENIZER_TOKENIZER_BPE_H

#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/nfc.h"
#include "io/tokenizer/ops.h"
#include "io/tokenizer/split.h"

enum { TOKENIZER_SPLITS_MOST = 32 };

struct tokenizer_bpe {
  struct tokenizer base;
  struct bpe *bpe;
  struct split *split[TOKENIZER_SPLITS_MOST]; /* each one cuts the pieces of the one before it */
  int splits;
  struct nfc *nfc;                /* NULL: text is taken as it is */
  struct added_tokens added;      /* found in the text as it is */
  struct added_tokens added_late; /* found between those, in the normalized text */
  bool *special;                  /* [vocab]; NULL: none */
  uint64_t pattern;               /* hash of the splits */
  bool says_end; /* end of text is known from another file than those of the tokenizer */
  char *folder;
  char *texts; /* of the added tokens */
};

enum { TOKENIZER_FILE_MOST = 100 << 20 };

/* Zeroed except ops, folder and begin_of_text. */
enum status tokenizer_bpe_create(const struct tokenizer_ops *ops, const char *folder,
                                 struct tokenizer_bpe **out);

/* Parts of the ops table. */
void tokenizer_bpe_destroy(struct tokenizer *tokenizer);
enum status tokenizer_bpe_encode(struct tokenizer *tokenizer, const char *text, size_t bytes,
                                 bool plain, int32_t **tokens, int64_t *n, int64_t *room);
enum status tokenizer_bpe_decode(const struct tokenizer *tokenizer, const int32_t *tokens,
                                 int64_t n, char **text, int64_t *bytes, int64_t *room);
bool tokenizer_bpe_is_special(const struct tokenizer *tokenizer, int32_t token);
uint64_t tokenizer_bpe_meaning(const struct tokenizer *tokenizer);

/* Split the pieces of text by this rule too; `path` names the file in messages. */
enum status tokenizer_bpe_add_split(struct tokenizer_bpe *tokenizer, const char *path,
                                    const struct split_rule *rule);

/* Continue a CRC-32 with a file of the folder. */
enum status tokenizer_bpe_checksum(const struct tokenizer_bpe *tokenizer, const char *name,
                                   uint32_t *crc);
/* Write a file of the folder to another folder. A missing file is no error if it `may_miss`.
 */
enum status tokenizer_bpe_copy_file(const struct tokenizer_bpe *tokenizer, const char *name,
                                    const char *folder, bool may_miss);

#endif
