/* Text to tokens and back. Tokenizer `bytes`: one token per byte, 0..255, and 256 = end of text.
 * Tokenizers `gpt2` and `json`: byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909; Radford et
 * al. 2019). Tokenizer `gpt2` reads vocab.json and merges.txt. It splits by GPT-2's pattern, and
 * its only special token is the end of text. Tokenizer `json` reads the tokenizer.json of a Hugging
 * Face folder, as GPT-2, Llama 3, Qwen and others use it. A setting that may change tokens and is
 * not supported is refused. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct tokenizer;

enum { TOKENIZER_BYTES_END = 256, TOKENIZER_BYTES_VOCAB }; /* end of text and size of `bytes` */

/* `name` is "bytes" (folder NULL or any), "gpt2" (folder holds vocab.json and merges.txt) or "json"
 * (folder holds tokenizer.json). If the end of text is not <|endoftext|> or <|end_of_text|>, "json"
 * also needs tokenizer_config.json. A folder of token shards of `sluice prepare` holds its
 * tokenizer's files, and token_set_stream() has its name. The error for a damaged file names file
 * and byte, line or key. */
enum status tokenizer_create(const char *name, const char *folder, struct tokenizer **out);
/* "json" or "gpt2", by the files that the folder holds; NULL: neither. */
const char *tokenizer_in_folder(const char *folder);
/* Find the tokenizer that a user names. The word is "bytes", a folder with tokenizer.json ("json")
 * or with vocab.json and merges.txt ("gpt2"), or the path of a tokenizer.json. If `gpt2_folder` is
 * not "", the word is "gpt2". *folder is mem_free()d; NULL for bytes. Any other word:
 * STATUS_USAGE. */
enum status tokenizer_find(const char *word, const char *gpt2_folder, const char **name,
                           char **folder);
void tokenizer_destroy(struct tokenizer *tokenizer); /* takes NULL */
const char *tokenizer_name(const struct tokenizer *tokenizer);
int64_t tokenizer_vocab(const struct tokenizer *tokenizer);
int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);
int32_t tokenizer_begin_of_text(
    const struct tokenizer *tokenizer); /* token that is put before every text; -1: none */
/* The beginning or the end of text, or an added token that tokenizer.json calls special. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t token);

/* The identity of a tokenizer. Token folders and checkpoints keep it. */
enum { TOKENIZER_NAME = 16 };
struct tokenizer_id {
  char name[TOKENIZER_NAME]; /* "bytes", "gpt2", "json"; "": nothing is known */
  int64_t vocab;             /* ids are in [0, vocab) */
  uint32_t crc32;            /* of its files, one after another; 0: it has none */
  uint64_t meaning;          /* hash of the vocabulary in id order, the merges in their order, added
                              * tokens, split pattern and normal form */
};
struct tokenizer_id tokenizer_id(const struct tokenizer *tokenizer);
struct tokenizer_text {
  char text[80];
};
struct tokenizer_text tokenizer_id_text(
    const struct tokenizer_id *id); /* "'json', 512 tokens, 0123..." */
/* Tokenizers of one meaning are the same, whatever their files. TOKENIZER_UNKNOWN: nothing is known
 * of one of them. */
enum tokenizer_match { TOKENIZER_SAME, TOKENIZER_OTHER, TOKENIZER_UNKNOWN };
enum tokenizer_match tokenizer_compare(const struct tokenizer_id *a, const struct tokenizer_id *b);

/* Starts zeroed. The caller frees both arrays with mem_free. */
struct tokenizer_tokens {
  int32_t *id;
  uint8_t *trained; /* of tokenizer_encode_marked(): 1, or 0 */
  int64_t n, room, trained_room;
};
/* Append the tokens of valid UTF-8 text to *out, without beginning and end of text. Added tokens
 * (<|im_start|>) that are written in the text become those tokens, as in the reference library.
 * `plain`: they are ordinary text. For untrusted text, which must not contain control tokens. */
enum status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t bytes,
                             bool plain, struct tokenizer_tokens *out);
/* Flags of a byte of a text. */
enum tokenizer_mark {
  TOKENIZER_TRAINED = 1,
  TOKENIZER_SPECIAL = 2 /* it may be part of a special token that is written in the text */
};
/* The same for a text with a byte of flags for each of its bytes. A special token is found only
 * where all its bytes may be one; so the tokens are those of tokenizer_encode(, false, ) unless
 * others hold the name of one. A token is trained if all its bytes are. */
enum status tokenizer_encode_marked(struct tokenizer *tokenizer, const char *text, size_t bytes,
                                    const unsigned char *marks, struct tokenizer_tokens *out);
/* The bytes of a token, as they are found in a text; valid as long as the tokenizer. *bytes 0: the
 * end of text of `bytes`. */
const char *tokenizer_text_of(const struct tokenizer *tokenizer, int32_t token, size_t *bytes);
/* Append the bytes of the tokens to *text (*bytes used, *room allocated); beginning and end of text
 * give nothing, other added tokens their names. Bytes may be a part of a character. */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, int64_t n,
                             char **text, int64_t *bytes, int64_t *room);

/* Write the tokenizer's files to a folder, each when it is complete: tokenizer_create(name, folder)
 * there makes the same tokenizer. Local. */
enum status tokenizer_copy(const struct tokenizer *tokenizer, const char *folder);

/* Write the tokenizer `bytes` as a tokenizer.json and a tokenizer_config.json with the same ids,
 * for programs that need files. Loaded again, it has the meaning of `bytes`. In addition,
 * <|endoftext|> in a text becomes the end of text. Local. */
enum status tokenizer_write_bytes(const char *folder);
