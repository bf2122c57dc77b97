/* The tokenizer `json`: tokenizer.json of a Hugging Face folder, as far as byte-level BPE needs it.
 * Every key that can change tokens is either followed or refused. Ids are those of the library
 * tokenizers. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "io/text/file.h"
#include "io/tokenizer/json_loader.h"

enum { WARNINGS_MOST = 16 };

static const char main_name[] = "tokenizer.json", config_name[] = "tokenizer_config.json";

/* --- keys ---------------------------------------------------------------- */

bool json_flag(struct json_node object, const char *key, bool otherwise)
{
  const struct json_node node = json_find_set(object, key);
  return node.value ? json_get_bool(node) : otherwise;
}

static bool is_off(const json_t *value)
{
  const char *text = json_string_value(value);
  return !value || json_is_null(value) || json_is_false(value) || (text && !*text) ||
         (json_is_number(value) && json_number_value(value) == 0);
}

void json_refuse_setting(struct json_node object, const char *key)
{
  const struct json_node node = json_find(object, key);
  if (!is_off(node.value))
    json_fail(node, "is set, which Sluice does not support");
}

/* Whether the key is one of the words. */
static bool is_among(const char *words, const char *key)
{
  const size_t n = strlen(key);
  for (const char *word = words; *word; word += strspn(word, " ")) {
    const size_t bytes = strcspn(word, " ");
    if (bytes == n && memcmp(word, key, n) == 0)
      return true;
    word += bytes;
  }
  return false;
}

/* A place is searched from the root: without a limit, warnings would take quadratic time. */
bool json_may_warn(struct json_loader *loader)
{
  return loader->warnings++ < WARNINGS_MOST;
}

void json_warn_of_others(struct json_loader *loader, struct json_node object, const char *known)
{
  for (struct json_node node = json_first(object); json_more(node); node = json_next(node))
    if (!is_among(known, node.key) && !json_is_null(node.value) && !json_is_false(node.value) &&
        json_may_warn(loader))
      log_warn_alike("%s is not known to Sluice; it is ignored", json_place(node).text);
}

/* --- end of text --------------------------------------------------------- */

/* tokenizer_config.json must not contradict tokenizer.json about tokens. */
static void check_config(const struct json_loader *loader, struct json_node config)
{
  const struct json_node prefix = json_find_set(config, "add_prefix_space"),
                         begins = json_find(config, "add_bos_token");
  if (prefix.value && json_get_bool(prefix) != loader->prefix)
    json_fail(prefix, "contradicts the ByteLevel of %s", main_name);
  if (json_flag(config, "add_bos_token", false) && loader->t->base.begin_of_text < 0)
    log_warn_alike("%s is true, but the post_processor of %s puts no token before a text; Sluice "
                   "puts none, as transformers 5 does; set add_bos_token to false, or name the "
                   "token in a TemplateProcessing there",
                   json_place(begins).text, main_name);
}

/* "eos_token": a text, or an object with "content". */
static int64_t end_of_config(const struct json_loader *loader, struct json_node config)
{
  struct json_node node = json_find_set(config, "eos_token");
  if (!node.value)
    return -1;
  if (json_is_object(node.value))
    node = json_find(node, "content");
  const char *text = json_get_text(node);
  const int64_t id = json_find_token(loader, text);
  if (id < 0)
    json_fail(node, "is \"%.80s\", a token that %s does not have", text, main_name);
  return id;
}

/* A file of the folder that may be missing: *out zeroed. */
static enum status read_other(const struct json_loader *loader, const char *name,
                              struct json_file *out)
{
  const struct file_path path = file_path(loader->t->base.folder, name);
  *out = (struct json_file){0};
  enum status status =
      file_exists(path.text) ? json_read(path.text, TOKENIZER_FILE_MOST, out) : STATUS_OK;
  if (!status && out->root && !json_is_object(out->root))
    status = status_set(STATUS_INPUT, "%s: no object", path.text);
  return status;
}

/* "eos_token_id" of a file: an id, or a list of them, of which the first one counts. -1: none. */
static enum status end_of_model(const struct json_loader *loader, const char *name, int64_t *end)
{
  struct json_file file;
  enum status status = read_other(loader, name, &file);
  struct json_node node = json_find_set(json_root(&file), "eos_token_id");
  if (json_is_array(node.value))
    node = json_first(node);
  if (!status && node.value)
    *end = json_get_whole(node, 0, loader->t->base.vocab - 1);
  status = status ?: file.status;
  json_close(&file);
  return status;
}

/* *end -1: no file tells it. */
static enum status find_end_of_text(struct json_loader *loader, int64_t *end)
{
  static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>"};
  static const char *const files[] = {"config.json", "generation_config.json"};
  struct json_node config = json_root(&loader->config);
  if (config.value) {
    check_config(loader, config);
    *end = end_of_config(loader, config);
  }
  enum status status = loader->config.status;
  for (int i = 0; i < 2 && *end < 0 && !status; i++) {
    status = end_of_model(loader, files[i], end);
    loader->t->base.says_end = *end >= 0;
  }
  for (int i = 0; i < 2 && *end < 0 && !status; i++)
    *end = json_find_token(loader, names[i]);
  return status;
}

static enum status load_end_of_text(struct json_loader *loader)
{
  const char *path = loader->file.path;
  struct tokenizer_bpe *t = loader->t;
  int64_t end = -1;
  enum status status = find_end_of_text(loader, &end);
  if (status)
    return status;
  if (end < 0)
    return status_set(STATUS_INPUT,
                      "%s: no token ends a text: there is no <|endoftext|>, no eos_token in %s and "
                      "no eos_token_id in config.json next to it; name the token as eos_token",
                      path, config_name);
  if (loader->after >= 0 && loader->after != end)
    return status_set(
        STATUS_INPUT,
        "%s: post_processor puts the token %d after a text, but texts end with the token %" PRId64,
        path, loader->after, end);
  t->base.end_of_text = (int32_t)end;
  if (bpe_is_made(t->bpe, t->base.end_of_text) ||
      (t->base.begin_of_text >= 0 && bpe_is_made(t->bpe, t->base.begin_of_text)))
    return status_set(STATUS_INPUT,
                      "%s: the token at the beginning or the end of a text can be made from text: "
                      "it must be a special token",
                      path);
  return STATUS_OK;
}

/* --- the folder ---------------------------------------------------------- */

static enum status load(struct json_loader *loader)
{
  static const char known[] = "version truncation padding added_tokens normalizer pre_tokenizer "
                              "post_processor decoder model";
  const struct json_node root = loader->root = json_get_object(json_root(&loader->file));
  for (struct json_node node = json_first(root); json_more(node); node = json_next(node))
    if (!is_among(known, node.key))
      json_fail(node, "is not known to Sluice and may change tokens");
  if (json_find_set(root, "truncation").value)
    log_warn_alike("%s: truncation is set; it is ignored, and texts keep their length",
                   loader->file.path);
  json_load_normalizer(loader);
  json_load_model(loader);
  if (loader->config.status)
    return loader->config.status;
  json_load_pre_tokenizer(loader);
  json_load_processor(loader);
  return loader->file.status ? loader->file.status : load_end_of_text(loader);
}

static enum status load_folder(struct tokenizer *tokenizer)
{
  struct json_loader loader = {.t = (struct tokenizer_bpe *)tokenizer, .after = -1};
  const struct file_path path = file_path(tokenizer->folder, main_name);
  enum status status =
      json_read(path.text, TOKENIZER_FILE_MOST, &loader.file)
      ?: read_other(&loader, config_name, &loader.config)
      ?: load(&loader);
  added_tokens_free(&loader.added);
  json_close(&loader.config);
  json_close(&loader.file);
  return status;
}

const struct tokenizer_ops tokenizer_json = {.name = "json",
                                             .bytes = sizeof(struct tokenizer_bpe),
                                             .files = {main_name},
                                             .extra = config_name,
                                             .load = load_folder,
                                             .clear = tokenizer_bpe_clear,
                                             .encode = tokenizer_bpe_encode,
                                             .text_of = tokenizer_bpe_text_of,
                                             .meaning = tokenizer_bpe_meaning};
