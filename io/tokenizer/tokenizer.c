/* Calls of a tokenizer go to its kind; all text is checked to be UTF-8 first. */
#include "io/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/printable.h"
#include "io/text/file.h"
#include "io/text/utf8.h"
#include "io/tokenizer/ops.h"

static const struct tokenizer_ops *const tokenizers[] = {&tokenizer_bytes, &tokenizer_json,
                                                         &tokenizer_gpt2};

enum { FILES = 2 };

static enum status add_checksum(const char *folder, const char *name, uint32_t *crc)
{
  char *text = NULL;
  size_t bytes = 0;
  const enum status status =
      file_read_all(file_path(folder, name).text, TOKENIZER_FILE_MOST, &text, &bytes);
  if (!status)
    *crc = (uint32_t)crc32_z(*crc, (const Bytef *)text, bytes);
  mem_free(text);
  return status;
}

static enum status load(const struct tokenizer_ops *ops, const char *folder, struct tokenizer *out)
{
  *out = (struct tokenizer){.ops = ops, .begin_of_text = -1};
  if (*ops->files && !(out->folder = mem_strdup(folder)))
    return STATUS_MEMORY;
  enum status status = ops->load(out);
  for (int i = 0; i < FILES && ops->files[i] && !status; i++)
    status = add_checksum(folder, ops->files[i], &out->checksum);
  if (!status)
    out->meaning = ops->meaning(out);
  return status;
}

static enum status create(const struct tokenizer_ops *ops, const char *folder,
                          struct tokenizer **out)
{
  const char *const *files = ops->files;
  struct tokenizer *tokenizer = NULL;
  if (*files && !(folder && *folder))
    return status_usage("the tokenizer %s needs the folder that holds %s%s%s", ops->name, files[0],
                        files[1] ? " and " : "", files[1] ?: "");
  const enum status status =
      mem_alloc(MEM_DATA, ops->bytes, (void **)&tokenizer) ?: load(ops, folder, tokenizer);
  if (status)
    tokenizer_destroy(tokenizer);
  else
    *out = tokenizer;
  return status;
}

enum status tokenizer_create(const char *name, const char *folder, struct tokenizer **out)
{
  for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++)
    if (strcmp(tokenizers[i]->name, name) == 0)
      return create(tokenizers[i], folder, out);
  return status_usage("there is no tokenizer '%s'; use bytes, gpt2 or json", name);
}

const char *tokenizer_in_folder(const char *folder)
{
  if (!*folder)
    return NULL;
  for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
    const char *const *files = tokenizers[i]->files;
    if (files[0] && file_exists(file_path(folder, files[0]).text) &&
        (!files[1] || file_exists(file_path(folder, files[1]).text)))
      return tokenizers[i]->name;
  }
  return NULL;
}

static enum status refuse_word(const char *word)
{
  if (strcmp(word, tokenizer_gpt2.name) == 0)
    return status_usage(
        "tokenizer=gpt2 needs tokenizer_dir=, the folder that holds its vocab.json and merges.txt");
  if (file_is_hub_name(word))
    return status_usage(
        "there is no folder %s. That looks like a Hugging Face name: download it first "
        "(hf download %s --local-dir DIR), and set tokenizer=DIR",
        word, word);
  if (file_is_folder(word))
    return status_usage(
        "tokenizer=%s: the folder has neither tokenizer.json nor both vocab.json and merges.txt",
        word);
  return status_usage("there is no tokenizer '%s'; use bytes, or name a folder that holds "
                      "tokenizer.json, or vocab.json and merges.txt",
                      word);
}

enum status tokenizer_find(const char *word, const char *gpt2_folder, const char **name,
                           char **folder)
{
  const char *slash = strrchr(word, '/');
  if (*gpt2_folder && strcmp(word, tokenizer_gpt2.name) != 0)
    return status_usage("tokenizer_dir is for tokenizer=gpt2; use tokenizer=%s", gpt2_folder);
  *folder = NULL;
  *name = tokenizer_bytes.name;
  if (strcmp(word, tokenizer_bytes.name) == 0)
    return STATUS_OK;
  *name = *gpt2_folder ? tokenizer_gpt2.name : tokenizer_in_folder(word);
  if (*name) {
    *folder = mem_strdup(*gpt2_folder ? gpt2_folder : word);
  } else if (strcmp(slash ? slash + 1 : word, *tokenizer_json.files) == 0 && file_exists(word)) {
    *name = tokenizer_json.name;
    *folder = file_folder_of(word);
  } else {
    return refuse_word(word);
  }
  return *folder ? STATUS_OK : STATUS_MEMORY;
}

void tokenizer_destroy(struct tokenizer *tokenizer)
{
  if (!tokenizer)
    return;
  tokenizer->ops->clear(tokenizer);
  mem_free(tokenizer->special);
  mem_free(tokenizer->folder);
  mem_free(tokenizer);
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
  snprintf(out.text, sizeof out.text, "'%s', %" PRId64 " tokens, %016" PRIx64, id->name, id->vocab,
           id->meaning);
  printable_make(out.text, sizeof out.text); /* the name may come from a file */
  return out;
}

enum tokenizer_match tokenizer_compare(const struct tokenizer_id *a, const struct tokenizer_id *b)
{
  if (!*a->name || !*b->name)
    return TOKENIZER_UNKNOWN;
  return a->meaning == b->meaning ? TOKENIZER_SAME : TOKENIZER_OTHER;
}

int32_t tokenizer_begin_of_text(const struct tokenizer *tokenizer)
{
  return tokenizer->begin_of_text;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t token)
{
  return token >= 0 &&
         (token == tokenizer->end_of_text || token == tokenizer->begin_of_text ||
          (tokenizer->special && token < tokenizer->vocab && tokenizer->special[token]));
}

static enum status copy_file(const struct tokenizer *tokenizer, const char *name,
                             const char *folder)
{
  char *text = NULL;
  size_t bytes = 0;
  const enum status status =
      file_read_all(file_path(tokenizer->folder, name).text, TOKENIZER_FILE_MOST, &text, &bytes)
          ?: file_write_all(file_path(folder, name).text, text, bytes);
  mem_free(text);
  return status;
}

/* If the end of text is known only from the model's configuration, which is no file of the
 * tokenizer, a small generation_config.json records it. */
enum status tokenizer_copy(const struct tokenizer *tokenizer, const char *folder)
{
  const struct tokenizer_ops *ops = tokenizer->ops;
  char text[64];
  enum status status = STATUS_OK;
  for (int i = 0; i < FILES && ops->files[i] && !status; i++)
    status = copy_file(tokenizer, ops->files[i], folder);
  if (!status && ops->extra && file_exists(file_path(tokenizer->folder, ops->extra).text))
    status = copy_file(tokenizer, ops->extra, folder);
  if (status || !tokenizer->says_end)
    return status;
  int bytes = snprintf(text, sizeof text, "{\"eos_token_id\": %d}\n", tokenizer->end_of_text);
  return file_write_all(file_path(folder, "generation_config.json").text, text, (size_t)bytes);
}

enum status tokenizer_tokens_reserve(struct tokenizer_tokens *out, size_t more,
                                     const unsigned char *marks)
{
  const int64_t n = out->n + (int64_t)more;
  enum status status = mem_grow(MEM_DATA, (void **)&out->id, &out->room, n, sizeof *out->id);
  if (marks && !status)
    status = mem_grow(MEM_DATA, (void **)&out->trained, &out->trained_room, n, 1);
  return status;
}

enum status tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t bytes,
                             bool plain, struct tokenizer_tokens *out)
{
  int64_t invalid = utf8_find_invalid(text, bytes);
  if (invalid >= 0)
    return status_set(STATUS_INPUT, "the text is not valid UTF-8 at its byte %lld (0x%02X)",
                      (long long)invalid, (unsigned char)text[invalid]);
  return tokenizer->ops->encode(tokenizer, text, bytes, plain, NULL, out);
}

enum status tokenizer_encode_marked(struct tokenizer *tokenizer, const char *text, size_t bytes,
                                    const unsigned char *marks, struct tokenizer_tokens *out)
{
  return tokenizer->ops->encode(tokenizer, text, bytes, false, marks, out);
}

const char *tokenizer_text_of(const struct tokenizer *tokenizer, int32_t token, size_t *bytes)
{
  return tokenizer->ops->text_of(tokenizer, token, bytes);
}

enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, int64_t n,
                             char **text, int64_t *bytes, int64_t *room)
{
  for (int64_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= tokenizer->vocab)
      return status_set(STATUS_INPUT, "token %lld is %d, but the tokenizer '%s' has ids 0 to %lld",
                        (long long)i, tokens[i], tokenizer->ops->name,
                        (long long)tokenizer->vocab - 1);
  for (int64_t i = 0; i < n; i++) {
    if (tokens[i] == tokenizer->end_of_text || tokens[i] == tokenizer->begin_of_text)
      continue;
    size_t length = 0;
    const char *piece = tokenizer->ops->text_of(tokenizer, tokens[i], &length);
    const enum status status = mem_grow(MEM_DATA, (void **)text, room, *bytes + (int64_t)length, 1);
    if (status)
      return status;
    memcpy(*text + *bytes, piece, length);
    *bytes += (int64_t)length;
  }
  return STATUS_OK;
}
