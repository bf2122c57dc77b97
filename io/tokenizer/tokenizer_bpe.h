/* The common part of the tokenizers gpt2 and json: everything except loading their files. Private
 * to io/. */
#pragma once

#include "io/text/input.h"
#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/nfc.h"
#include "io/tokenizer/ops.h"
#include "io/tokenizer/split.h"

enum { TOKENIZER_STEPS_MOST = 32 };

/* Actions of a pre-tokenizer on a piece of text. */
enum tokenizer_step_kind {
  STEP_SPLIT,  /* cuts it */
  STEP_SPACE,  /* puts a space before it, unless it starts with one */
  STEP_SPELL,  /* spells its bytes as characters, as bpe_unspell() describes */
  STEP_UNSPELL /* the reverse */
};
struct tokenizer_step {
  enum tokenizer_step_kind kind;
  struct split *split; /* of STEP_SPLIT */
  struct text_buffer text, marks;
};

struct tokenizer_bpe {
  struct tokenizer base;
  struct bpe *bpe;
  struct tokenizer_step step[TOKENIZER_STEPS_MOST]; /* each takes the pieces of the one before it */
  int steps;
  struct nfc *nfc;                /* NULL: text is taken as it is */
  struct added_tokens added;      /* found in the text as it is */
  struct added_tokens added_late; /* found between those, in the normalized text */
  uint64_t pattern;               /* hash of the steps */
  char *texts;                    /* of the added tokens */
};

/* Parts of the ops table. */
void tokenizer_bpe_clear(struct tokenizer *tokenizer);
enum status tokenizer_bpe_encode(struct tokenizer *tokenizer, const char *text, size_t bytes,
                                 bool plain, const unsigned char *marks,
                                 struct tokenizer_tokens *out);
const char *tokenizer_bpe_text_of(const struct tokenizer *tokenizer, int32_t token, size_t *bytes);
uint64_t tokenizer_bpe_meaning(const struct tokenizer *tokenizer);

/* Add a step; `path` names the file in messages, `rule` is of STEP_SPLIT, else NULL. */
enum status tokenizer_bpe_add_step(struct tokenizer_bpe *tokenizer, const char *path,
                                   enum tokenizer_step_kind kind, const struct split_rule *rule);
