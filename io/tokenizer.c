#include "io/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "io/tokenizer_ops.h"

static const struct tokenizer_ops *const tokenizers[] = {&tokenizer_bytes, &tokenizer_gpt2};

enum status tokenizer_create(const char *name, const char *folder, struct tokenizer **out)
{
  for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++)
    if (strcmp(tokenizers[i]->name, name) == 0)
      return tokenizers[i]->create(folder, out);
  return status_set(STATUS_USAGE, "there is no tokenizer '%s'; use bytes or gpt2", name);
}

void tokenizer_destroy(struct tokenizer *tokenizer)
{
  if (tokenizer)
    tokenizer->ops->destroy(tokenizer);
}

const char *tokenizer_name(const struct tokenizer *tokenizer)
{
  return tokenizer->ops->name;
}

int64_t tokenizer_vocab(const struct tokenizer *tokenizer)
{
  return tokenizer->vocab;
}

int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer)
{
  return tokenizer->end_of_text;
}

uint32_t tokenizer_checksum(const struct tokenizer *tokenizer)
{
  return tokenizer->checksum;
}

enum status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t bytes, int32_t **tokens, int64_t *n, int64_t *room)
{
  int64_t invalid = utf8_find_invalid(text, bytes);
  if (invalid >= 0)
    return status_set(STATUS_INPUT, "the text is not valid UTF-8 at its byte %lld (0x%02X)", (long long)invalid, (unsigned char)text[invalid]);
  return tokenizer->ops->encode(tokenizer, text, bytes, tokens, n, room);
}

enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, int64_t n, char **text, int64_t *bytes, int64_t *room)
{
  for (int64_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= tokenizer->vocab)
      return status_set(STATUS_INPUT, "token %lld is %d, but the tokenizer '%s' has ids 0 to %lld", (long long)i, tokens[i], tokenizer->ops->name,
                        (long long)tokenizer->vocab - 1);
  return tokenizer->ops->decode(tokenizer, tokens, n, text, bytes, room);
}

/* The room to ask for; 0 if there is enough. */
static int64_t grown(int64_t used, int64_t more, int64_t room)
{
  if (more <= room - used)
    return 0;
  return used + more > room + room / 2 ? used + more : room + room / 2;
}

enum status tokenizer_reserve_tokens(int32_t **tokens, int64_t n, int64_t more, int64_t *room)
{
  int64_t fresh = grown(n, more, *room);
  enum status status = fresh ? mem_resize(MEM_DATA, (size_t)fresh * sizeof **tokens, (void **)tokens) : STATUS_OK;
  if (fresh && status == STATUS_OK)
    *room = fresh;
  return status;
}

enum status tokenizer_reserve_text(char **text, int64_t bytes, int64_t more, int64_t *room)
{
  int64_t fresh = grown(bytes, more, *room);
  enum status status = fresh ? mem_resize(MEM_DATA, (size_t)fresh, (void **)text) : STATUS_OK;
  if (fresh && status == STATUS_OK)
    *room = fresh;
  return status;
}

/* Bytes of the character at text[0], whose lead byte is not ASCII; 0 if it is not well formed (Unicode 15, table 3-7). */
static size_t character_length(const unsigned char *text, size_t bytes)
{
  unsigned char lead = text[0], least = 0x80, most = 0xBF;
  size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || length > bytes)
    return 0;
  if (lead == 0xE0)
    least = 0xA0; /* below: overlong */
  else if (lead == 0xED)
    most = 0x9F; /* above: surrogates */
  else if (lead == 0xF0)
    least = 0x90;
  else if (lead == 0xF4)
    most = 0x8F; /* above: beyond U+10FFFF */
  if (text[1] < least || text[1] > most)
    return 0;
  for (size_t i = 2; i < length; i++)
    if ((text[i] & 0xC0) != 0x80)
      return 0;
  return length;
}

int64_t utf8_find_invalid(const char *text, size_t bytes)
{
  const unsigned char *byte = (const unsigned char *)text;
  size_t i = 0;
  while (i < bytes) {
    uint64_t word;
    if (bytes - i >= sizeof word) {
      memcpy(&word, byte + i, sizeof word);
      if ((word & 0x8080808080808080) == 0) {
        i += sizeof word;
        continue;
      }
    }
    size_t length = byte[i] < 0x80 ? 1 : character_length(byte + i, bytes - i);
    if (length == 0)
      return (int64_t)i;
    i += length;
  }
  return -1;
}
