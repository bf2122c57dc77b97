/* The tokenizer `bytes`: a token is a byte, and one more ends a text. */
#include "base/hash.h"
#include "base/mem.h"
#include "io/tokenizer/bpe_train_merge.h"
#include "io/tokenizer/ops.h"

static enum status bytes_load(struct tokenizer *tokenizer)
{
  tokenizer->vocab = TOKENIZER_BYTES_VOCAB;
  tokenizer->end_of_text = TOKENIZER_BYTES_END;
  return STATUS_OK;
}

static void bytes_clear(struct tokenizer *tokenizer)
{
  (void)tokenizer;
}

static enum status bytes_encode(struct tokenizer *tokenizer, const char *text, size_t bytes,
                                bool plain, const unsigned char *marks,
                                struct tokenizer_tokens *out)
{
  (void)tokenizer, (void)plain;
  enum status status = tokenizer_tokens_reserve(out, bytes, marks);
  for (size_t i = 0; i < bytes && !status; i++) {
    if (marks)
      out->trained[out->n] = marks[i] & TOKENIZER_TRAINED;
    out->id[out->n++] = (unsigned char)text[i];
  }
  return status;
}

static const char *bytes_text_of(const struct tokenizer *tokenizer, int32_t token, size_t *bytes)
{
  static char text[TOKENIZER_BYTES_VOCAB];
  (void)tokenizer;
  text[token] = (char)token;
  *bytes = token != TOKENIZER_BYTES_END;
  return &text[token];
}

/* Each byte is its own id, so all such tokenizers are equal. */
static uint64_t bytes_meaning(const struct tokenizer *tokenizer)
{
  (void)tokenizer;
  return hash_text(tokenizer_bytes.name);
}

enum status tokenizer_write_bytes(const char *folder)
{
  char end[] = "<|endoftext|>", *special[] = {end};
  const struct bpe_train_config config = {
      .out = folder, .pattern = "gpt2", .specials = 1, .special = special};
  struct bpe_vocabulary vocabulary = {.merges = 0};
  enum status status = STATUS_OK;
  for (int byte = 0; byte < BPE_BYTES && !status; byte++)
    status = bpe_words_add(&vocabulary.tokens, &(char){(char)byte}, 1, 1, NULL);
  status = status ?: bpe_train_write(&config, &vocabulary);
  bpe_vocabulary_free(&vocabulary);
  return status;
}

const struct tokenizer_ops tokenizer_bytes = {.name = "bytes",
                                              .bytes = sizeof(struct tokenizer),
                                              .load = bytes_load,
                                              .clear = bytes_clear,
                                              .encode = bytes_encode,
                                              .text_of = bytes_text_of,
                                              .meaning = bytes_meaning};
