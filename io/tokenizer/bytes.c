/* The tokenizer `bytes`: a token is a byte, and one more ends a text. */
#include "base/hash.h"
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

const struct tokenizer_ops tokenizer_bytes = {.name = "bytes",
                                              .bytes = sizeof(struct tokenizer),
                                              .load = bytes_load,
                                              .clear = bytes_clear,
                                              .encode = bytes_encode,
                                              .text_of = bytes_text_of,
                                              .meaning = bytes_meaning};
