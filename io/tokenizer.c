#include "io/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "io/file.h"
#include "io/tokenizer_ops.h"

static const struct tokenizer_ops *const tokenizers[] = {&tokenizer_bytes, &tokenizer_gpt2, &tokenizer_json};

static enum status create(const struct tokenizer_ops *ops, const char *folder,
                          struct tokenizer **out)
{
  const enum status status = ops->create(folder, out);
  if (status)
    return status;
  const uint64_t meaning = ops->meaning(*out);
  (*out)->meaning = meaning ? meaning : 1; /* 0 stands for one that is not known */
  return STATUS_OK;
}

enum status tokenizer_create(const char *name, const char *folder, struct tokenizer **out)
{
  for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++)
    if (strcmp(tokenizers[i]->name, name) == 0)
      return create(tokenizers[i], folder, out);
  return status_set(STATUS_USAGE, "there is no tokenizer '%s'; use bytes, gpt2 or json", name);
}

static bool holds(const char *folder, const char *name)
{
  char path[4096];
  return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path && file_exists(path);
}

const char *tokenizer_in_folder(const char *folder)
{
  if (!*folder)
    return NULL;
  if (holds(folder, "tokenizer.json"))
    return tokenizer_json.name;
  return holds(folder, "vocab.json") && holds(folder, "merges.txt") ? tokenizer_gpt2.name : NULL;
}

static enum status refuse_word(const char *word)
{
  if (strcmp(word, tokenizer_gpt2.name) == 0)
    return status_set(
        STATUS_USAGE,
        "tokenizer=gpt2 needs tokenizer_dir=, the folder that holds its vocab.json and merges.txt");
  if (file_is_hub_name(word))
    return status_set(STATUS_USAGE,
                      "there is no folder %s. That looks like a Hugging Face name: download it first "
                      "(hf download %s --local-dir DIR), and say tokenizer=DIR",
                      word, word);
  return status_set(STATUS_USAGE,
                    "there is no tokenizer '%s'; say bytes, or name a folder that holds "
                    "tokenizer.json, or vocab.json and merges.txt",
                    word);
}

static enum status find_without_folder(const char *word, const char **name, char **folder)
{
  static const char file[] = "tokenizer.json";
  const char *slash = strrchr(word, '/'), *last = slash ? slash + 1 : word;
  *folder = NULL;
  *name = tokenizer_bytes.name;
  if (strcmp(word, tokenizer_bytes.name) == 0)
    return STATUS_OK;
  *name = tokenizer_in_folder(word);
  if (*name) {
    *folder = mem_strdup(word);
  } else if (strcmp(last, file) == 0 && file_exists(word)) {
    *name = tokenizer_json.name;
    *folder =
        slash ? mem_printf("%.*s", (int)(slash == word ? 1 : slash - word), word) : mem_strdup(".");
  } else {
    return refuse_word(word);
  }
  return *folder ? STATUS_OK : STATUS_MEMORY;
}

enum status tokenizer_find(const char *word, const char *gpt2_folder, const char **name,
                           char **folder)
{
  if (!*gpt2_folder)
    return find_without_folder(word, name, folder);
  if (strcmp(word, tokenizer_gpt2.name) != 0)
    return status_set(STATUS_USAGE, "tokenizer_dir belongs to tokenizer=gpt2; say tokenizer=%s",
                      gpt2_folder);
  *name = tokenizer_gpt2.name;
  *folder = mem_strdup(gpt2_folder);
  return *folder ? STATUS_OK : STATUS_MEMORY;
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

struct tokenizer_id tokenizer_id(const struct tokenizer *tokenizer)
{
  struct tokenizer_id id = {
      .vocab = tokenizer->vocab, .crc32 = tokenizer->checksum, .meaning = tokenizer->meaning};
  snprintf(id.name, sizeof id.name, "%s", tokenizer->ops->name);
  return id;
}

struct tokenizer_text tokenizer_id_text(const struct tokenizer_id *id)
{
  struct tokenizer_text out;
  if (id->meaning)
    snprintf(out.text, sizeof out.text, "'%s', %" PRId64 " tokens, %016" PRIx64, id->name,
             id->vocab, id->meaning);
  else
    snprintf(out.text, sizeof out.text, "'%s', %" PRId64 " tokens, checksum %08" PRIx32, id->name,
             id->vocab, id->crc32);
  printable_make(out.text); /* the name may come from a file */
  return out;
}

enum tokenizer_match tokenizer_compare(const struct tokenizer_id *a, const struct tokenizer_id *b)
{
  if (!*a->name || !*b->name)
    return TOKENIZER_UNPROVEN;
  if (a->meaning && b->meaning)
    return a->meaning == b->meaning ? TOKENIZER_SAME : TOKENIZER_OTHER;
  if (a->vocab != b->vocab)
    return TOKENIZER_OTHER;
  return strcmp(a->name, b->name) == 0 && a->crc32 == b->crc32 ? TOKENIZER_SAME
                                                               : TOKENIZER_UNPROVEN;
}

int32_t tokenizer_begin_of_text(const struct tokenizer *tokenizer)
{
  return tokenizer->begin_of_text;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t token)
{
  return token >= 0 && (token == tokenizer->end_of_text || token == tokenizer->begin_of_text || tokenizer->ops->is_special(tokenizer, token));
}

enum status tokenizer_copy(const struct tokenizer *tokenizer, const char *folder)
{
  return tokenizer->ops->copy(tokenizer, folder);
}

static enum status encode(struct tokenizer *tokenizer, const char *text, size_t bytes, bool plain, int32_t **tokens, int64_t *n, int64_t *room)
{
  int64_t invalid = utf8_find_invalid(text, bytes);
  if (invalid >= 0)
    return status_set(STATUS_INPUT, "the text is not valid UTF-8 at its byte %lld (0x%02X)", (long long)invalid, (unsigned char)text[invalid]);
  return tokenizer->ops->encode(tokenizer, text, bytes, plain, tokens, n, room);
}

enum status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t bytes, int32_t **tokens, int64_t *n, int64_t *room)
{
  return encode(tokenizer, text, bytes, false, tokens, n, room);
}

enum status tokenizer_encode_plain(struct tokenizer *tokenizer, const char *text, size_t bytes, int32_t **tokens, int64_t *n, int64_t *room)
{
  return encode(tokenizer, text, bytes, true, tokens, n, room);
}

enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, int64_t n, char **text, int64_t *bytes, int64_t *room)
{
  for (int64_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= tokenizer->vocab)
      return status_set(STATUS_INPUT, "token %lld is %d, but the tokenizer '%s' has ids 0 to %lld", (long long)i, tokens[i], tokenizer->ops->name,
                        (long long)tokenizer->vocab - 1);
  return tokenizer->ops->decode(tokenizer, tokens, n, text, bytes, room);
}

enum status tokenizer_reserve_tokens(int32_t **tokens, int64_t n, int64_t more, int64_t *room)
{
  return mem_grow(MEM_DATA, (void **)tokens, room, n + more, (int64_t)sizeof **tokens);
}

enum status tokenizer_reserve_text(char **text, int64_t bytes, int64_t more, int64_t *room)
{
  return mem_grow(MEM_DATA, (void **)text, room, bytes + more, 1);
}

/* Whether a character whose lead byte is not ASCII is well formed at text[0] (Unicode 15, table 3-7), and its length; where it is not, the bytes up to the one that
 * cannot go on, at least one. */
static bool take_character(const unsigned char *text, size_t bytes, size_t *length)
{
  unsigned char lead = text[0], least = 0x80, most = 0xBF;
  size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  *length = 1;
  if (lead < 0xC2 || lead > 0xF4)
    return false;
  if (lead == 0xE0)
    least = 0xA0; /* below: overlong */
  else if (lead == 0xED)
    most = 0x9F; /* above: surrogates */
  else if (lead == 0xF0)
    least = 0x90;
  else if (lead == 0xF4)
    most = 0x8F; /* above: beyond U+10FFFF */
  if (bytes < 2 || text[1] < least || text[1] > most)
    return false;
  for (*length = 2; *length < want; ++*length)
    if (*length == bytes || (text[*length] & 0xC0) != 0x80)
      return false;
  return true;
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
    size_t length = 1;
    if (byte[i] >= 0x80 && !take_character(byte + i, bytes - i, &length))
      return (int64_t)i;
    i += length;
  }
  return -1;
}

enum status utf8_replace(const char *text, size_t bytes, char **out, int64_t *n, int64_t *room)
{
  static const char replacement[] = "\xEF\xBF\xBD";
  enum { LONGEST = sizeof replacement - 1 };
  for (size_t at = 0;;) {
    int64_t invalid = utf8_find_invalid(text + at, bytes - at);
    size_t valid = invalid < 0 ? bytes - at : (size_t)invalid, broken;
    enum status status = tokenizer_reserve_text(out, *n, (int64_t)valid + LONGEST, room);
    if (status)
      return status;
    memcpy(*out + *n, text + at, valid);
    *n += (int64_t)valid;
    if (invalid < 0)
      return STATUS_OK;
    memcpy(*out + *n, replacement, LONGEST);
    *n += LONGEST;
    at += valid;
    (void)take_character((const unsigned char *)text + at, bytes - at, &broken);
    at += broken;
  }
}
