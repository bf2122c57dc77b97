/* The operations of a tokenizer; private part of tokenizer.h. Private to io/. */
#ifndef SLUICE_IO_TOKENIZER_OPS_H
#define SLUICE_IO_TOKENIZER_OPS_H

#include "io/tokenizer/tokenizer.h"

/* Every implementation's own struct begins with this. */
struct tokenizer {
  const struct tokenizer_ops *ops;
  int64_t vocab;
  int32_t end_of_text, begin_of_text; /* begin_of_text -1: none */
  uint32_t checksum;                  /* CRC-32 of its files, one after another; 0: it has none */
  uint64_t meaning;                   /* by ops->meaning, when it is loaded */
};

struct tokenizer_ops {
  const char *name;
  enum status (*create)(const char *folder, struct tokenizer **out);
  void (*destroy)(struct tokenizer *tokenizer);
  /* Text is valid UTF-8; plain: added tokens are text. */
  enum status (*encode)(struct tokenizer *tokenizer, const char *text, size_t bytes, bool plain,
                        struct tokenizer_tokens *out);
  enum status (*decode)(const struct tokenizer *tokenizer, const int32_t *tokens, int64_t n,
                        char **text, int64_t *bytes, int64_t *room); /* ids are in range */
  bool (*is_special)(const struct tokenizer *tokenizer,
                     int32_t token);                      /* besides beginning and end of text */
  uint64_t (*meaning)(const struct tokenizer *tokenizer); /* equal for tokenizers of one meaning */
  enum status (*copy)(const struct tokenizer *tokenizer, const char *folder);
};

extern const struct tokenizer_ops tokenizer_bytes;
extern const struct tokenizer_ops tokenizer_gpt2;
extern const struct tokenizer_ops tokenizer_json;

#endif
