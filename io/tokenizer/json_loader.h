/* The parts of the tokenizer `json`. json.c has the folder and the end of text, json_added.c added
 * tokens, and json_model.c the vocabulary and the merges. json_parts.c has the steps before and
 * after the model. Failures stay in the files (io/text/json.h). Private to io/tokenizer. */
#pragma once

#include "io/text/json.h"
#include "io/tokenizer/tokenizer_bpe.h"

struct json_loader {
  struct tokenizer_bpe *t;
  struct json_file file, config; /* tokenizer.json; tokenizer_config.json, if it is there */
  struct json_node root, vocab;  /* of tokenizer.json */
  struct added_tokens added;     /* all of them */
  int64_t sorted;                /* so many of them, which can be found */
  int64_t words;   /* tokens of the vocabulary; other added tokens have the ids from there on */
  int64_t bound;   /* the highest id of the vocabulary, plus 1 */
  int32_t after;   /* token that the template puts after a text, -1: none */
  bool byte_level; /* the pre_tokenizer has had its ByteLevel */
  bool spelled;    /* a step after ByteLevel sees spelled bytes */
  bool prefix;     /* ByteLevel puts a space before a text */
  int warnings;
};

/* A boolean setting that may be missing or null. */
bool json_flag(struct json_node object, const char *key, bool otherwise);
/* A setting that Sluice does not follow must be off: absent, null, false, 0 or an empty text. */
void json_refuse_setting(struct json_node object, const char *key);
/* The library tokenizers ignores such keys in this object. `known` are words. */
void json_warn_of_others(struct json_loader *loader, struct json_node object, const char *known);
/* Whether there is room for one more warning about the folder's files. */
bool json_may_warn(struct json_loader *loader);

/* The id of a token, spelled as in the file, -1 for none. */
int64_t json_find_token(const struct json_loader *loader, const char *text);

/* Adds the ids that added tokens need beyond those of the vocabulary to *vocab, and the bytes of
 * their texts to *bytes. */
void json_measure_added(struct json_loader *loader, int64_t *vocab, size_t *bytes);
void json_load_added(struct json_loader *loader);

void json_load_model(struct json_loader *loader); /* calls the two functions above */

/* The names of all tokens and their ids, of tokenizer.json or of GPT-2's vocab.json. */
void json_load_vocab(struct tokenizer_bpe *t, struct json_node vocab);

void json_load_normalizer(struct json_loader *loader);
void json_load_pre_tokenizer(struct json_loader *loader);
void json_load_processor(struct json_loader *loader); /* post_processor */
