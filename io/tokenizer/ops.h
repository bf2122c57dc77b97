/* The operations of a tokenizer; private part of tokenizer.h. Private to io/. */
#pragma once

#include "io/tokenizer/tokenizer.h"

enum { TOKENIZER_FILE_MOST = 100 << 20 };

/* Every implementation's own struct begins with this. */
struct tokenizer {
  const struct tokenizer_ops *ops;
  int64_t vocab;
  int32_t end_of_text, begin_of_text; /* begin_of_text -1: none */
  uint32_t checksum;                  /* CRC-32 of its files, one after another; 0: it has none */
  uint64_t meaning;                   /* by ops->meaning, when it is loaded */
  char *folder;                       /* of its files; NULL: it has none */
  bool *special; /* [vocab] added tokens that are special; NULL: there are none */
  bool says_end; /* end of text is known from another file than those of the tokenizer */
};

struct tokenizer_ops {
  const char *name;
  size_t bytes;         /* of its own struct */
  const char *files[2]; /* that it is made from; NULL: no more */
  const char *extra;    /* a file that may be missing; NULL: there is none */
  /* Gets its struct zeroed, except ops, folder and begin_of_text. */
  enum status (*load)(struct tokenizer *tokenizer);
  void (*clear)(struct tokenizer *tokenizer); /* frees what load() made in its own part */
  /* Text is valid UTF-8; plain: added tokens are text; marks: NULL, or flags of each byte. */
  enum status (*encode)(struct tokenizer *tokenizer, const char *text, size_t bytes, bool plain,
                        const unsigned char *marks, struct tokenizer_tokens *out);
  const char *(*text_of)(const struct tokenizer *tokenizer, int32_t token,
                         size_t *bytes);                  /* the id is in range */
  uint64_t (*meaning)(const struct tokenizer *tokenizer); /* equal for tokenizers of one meaning */
};

/* Room for `more` tokens, and with marks also for whether they are trained. */
enum status tokenizer_tokens_reserve(struct tokenizer_tokens *out, size_t more,
                                     const unsigned char *marks);

extern const struct tokenizer_ops tokenizer_bytes;
extern const struct tokenizer_ops tokenizer_gpt2;
extern const struct tokenizer_ops tokenizer_json;
