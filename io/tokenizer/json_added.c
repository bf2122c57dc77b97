/* Added tokens: added_tokens of tokenizer.json, then added_tokens_decoder of tokenizer_config.json,
 * which may add tokens after all others but must not contradict tokenizer.json. Ids are those of
 * the library tokenizers: that of the vocabulary, or the next free one. */
#include "io/tokenizer/json_loader.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* The id that this token has in the vocabulary, or `otherwise`. */
static int64_t id_of_word(const struct json_loader *loader, const char *text, int64_t otherwise)
{
  const json_t *word = text ? json_object_get(loader->vocab.value, text) : NULL;
  return word ? json_integer_value(word) : otherwise;
}

int64_t json_find_token(const struct json_loader *loader, const char *text)
{
  const struct added_token key = {.text = text, .bytes = strlen(text)}, *found = NULL;
  if (loader->sorted > 0)
    found = bsearch(&key, loader->added.token, (size_t)loader->sorted, sizeof key,
                    added_tokens_by_text);
  return id_of_word(loader, text, found ? found->id : -1);
}

/* "id" of added_tokens, or the key of added_tokens_decoder. */
static int64_t read_id(struct json_node token)
{
  char *end = NULL;
  if (!token.key)
    return json_get_whole(json_find(token, "id"), 0, BPE_VOCAB_MOST - 1);
  const int64_t id = isdigit((unsigned char)*token.key) ? strtoll(token.key, &end, 10) : -1;
  if (!end || *end || id >= BPE_VOCAB_MOST)
    json_fail(token, "is no id of a token");
  return id;
}

static struct json_node decoder_of(struct json_loader *loader)
{
  return json_find_set(json_root(&loader->config), "added_tokens_decoder");
}

static struct json_node list_of(const struct json_loader *loader)
{
  return json_find_set(loader->root, "added_tokens");
}

void json_measure_added(struct json_loader *loader, int64_t *vocab, size_t *bytes)
{
  const struct json_node lists[] = {list_of(loader), decoder_of(loader)};
  for (int i = 0; i < 2; i++) {
    const int64_t taken = *vocab;
    for (struct json_node node = json_first(lists[i]); node.value; node = json_next(node)) {
      const char *text = json_string_value(json_find(node, "content").value);
      *vocab += node.key ? strtoll(node.key, NULL, 10) >= taken : id_of_word(loader, text, -1) < 0;
      *bytes += text ? strlen(text) + 1 : 0;
    }
  }
}

/* Reads a token into *out, and its text into `text`. Returns whether it is searched for in
 * normalized text. */
static bool read_token(struct json_loader *loader, struct json_node node, int64_t id, char *text,
                       struct added_token *out)
{
  static const char known[] = "id content single_word lstrip rstrip normalized special";
  const struct json_node content = json_find(node, "content");
  const char *name = json_get_text(content);
  const int64_t written = read_id(node);
  *out = (struct added_token){.text = text,
                              .bytes = strlen(name),
                              .id = (int32_t)id,
                              .takes_left = json_flag(node, "lstrip", false),
                              .takes_right = json_flag(node, "rstrip", false),
                              .special = json_flag(node, "special", false)};
  json_refuse_setting(node, "single_word");
  json_warn_of_others(loader, node, known);
  if (out->bytes == 0 || out->bytes > ADDED_TOKEN_BYTES_MOST)
    json_fail(content, "has %zu bytes; 1 to %d are possible", out->bytes, ADDED_TOKEN_BYTES_MOST);
  if (node.file->status)
    return false;
  if (written != id && json_may_warn(loader))
    log_warn_alike("%s is %" PRId64 "; it is ignored, because %s %" PRId64,
                   json_place(node.key ? node : json_find(node, "id")).text, written,
                   id_of_word(loader, name, -1) >= 0 ? "in model.vocab this token has the id"
                                                     : "the next free id is",
                   id);
  memcpy(text, name, out->bytes + 1);
  return json_flag(node, "normalized", true);
}

static void add_token(struct json_loader *loader, struct json_node node, int64_t *next, char **text)
{
  struct tokenizer_bpe *t = loader->t;
  struct added_token token;
  const char *name = json_string_value(json_find(json_get_object(node), "content").value),
             *normal = NULL;
  const int64_t word = id_of_word(loader, name, -1), id = word >= 0 ? word : *next;
  size_t bytes = 0;
  const bool late = read_token(loader, node, id, *text, &token);
  if (node.file->status)
    return;
  t->base.special[id] = token.special;
  enum status status = STATUS_OK;
  if (late && t->nfc)
    status = nfc_text(t->nfc, token.text, token.bytes, &normal, &bytes, NULL);
  if (!status && normal && normal != token.text)
    status = json_fail(
        node, "is searched for in normalized text, but is not in the normal form C itself");
  if (!status)
    status = added_tokens_add(&loader->added, &token)
                 ?: added_tokens_add(late ? &t->added_late : &t->added, &token);
  if (!status && word < 0)
    status = bpe_set_token(t->bpe, token.id, token.text, token.bytes, false);
  json_keep(node.file, status);
  *next += word < 0;
  *text += token.bytes + 1;
}

/* Sorts the tokens that were added so far. */
static void refuse_repeated(struct json_loader *loader, struct json_node list)
{
  const struct added_tokens *added = &loader->added;
  added_tokens_sort(&loader->added);
  loader->sorted = added->count;
  for (int64_t i = 1; i < added->count; i++)
    if (added_tokens_by_text(&added->token[i - 1], &added->token[i]) == 0)
      json_fail(list, "has the token \"%.80s\" twice", added->token[i].text);
}

static void add_configured(struct json_loader *loader, struct json_node node, int64_t *next,
                           char **text)
{
  const char *name = json_get_text(json_find(node, "content"));
  const int64_t id = read_id(node), known = json_find_token(loader, name);
  if (known < 0 && id == *next)
    add_token(loader, node, next, text);
  else if (known != id)
    json_fail(node,
              "is neither that token of tokenizer.json nor one with the next free id, which is "
              "%" PRId64,
              *next);
}

void json_load_added(struct json_loader *loader)
{
  const struct json_node list = list_of(loader), decoder = decoder_of(loader);
  int64_t next = loader->words;
  char *text = loader->t->texts;
  if (list.value)
    json_get_array(list);
  for (struct json_node node = json_first(list); json_more(node); node = json_next(node))
    add_token(loader, node, &next, &text);
  refuse_repeated(loader, list);
  if (loader->file.status)
    return;
  for (struct json_node node = json_first(decoder); json_more(node); node = json_next(node))
    add_configured(loader, node, &next, &text);
  if (decoder.value)
    refuse_repeated(loader, decoder);
  added_tokens_sort(&loader->t->added);
  added_tokens_sort(&loader->t->added_late);
}
