/* tokenizer.json of a Hugging Face folder, as far as byte-level BPE needs it. Every key that can
 * change tokens is either followed or refused. Ids are those of the library tokenizers. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/text/file.h"
#include "io/text/input.h"
#include "io/text/json_tree.h"
#include "io/tokenizer/tokenizer_bpe.h"

static const char main_name[] = "tokenizer.json", config_name[] = "tokenizer_config.json",
                  generation_name[] = "generation_config.json";

/* Additional data for loading. */
struct loader {
  struct tokenizer_bpe *t;
  const char *path;
  const struct json_node *root, *vocab;
  const struct json_node *config; /* of tokenizer_config.json; NULL: there is none */
  struct added_tokens added;      /* all of them */
  int64_t sorted;                 /* so many of them, which can be found */
  int64_t words;   /* tokens of the vocabulary; other added tokens have the ids from there on */
  int64_t bound;   /* the highest id of the vocabulary, plus 1 */
  int32_t behind;  /* token that the template puts after a text, -1: none */
  bool byte_level; /* the pre_tokenizer has had its ByteLevel */
  bool spelled;    /* a step after ByteLevel sees spelled bytes */
  bool prefix;     /* ByteLevel puts a space before a text */
};

/* ---- keys */

/* `known` ends with NULL. */
static enum status refuse_other_keys(const struct json_node *object, const char *const *known)
{
  for (const struct json_node *node = json_first(object); node; node = json_next(node)) {
    const char *key = json_key(node, NULL);
    size_t i = 0;
    while (known[i] && strcmp(known[i], key) != 0)
      i++;
    if (!known[i])
      return json_fail(node, "is not known to Sluice and may change tokens");
  }
  return STATUS_OK;
}

/* The library tokenizers ignores such keys in this object. `known` ends with NULL. */
static void warn_of_other_keys(const struct json_node *object, const char *const *known)
{
  for (const struct json_node *node = json_first(object); node; node = json_next(node)) {
    const char *key = json_key(node, NULL);
    bool is_set = json_kind(node) != JSON_NULL;
    size_t i = 0;
    while (known[i] && strcmp(known[i], key) != 0)
      i++;
    if (json_kind(node) == JSON_BOOL)
      (void)json_get_bool(node, &is_set);
    if (known[i] || !is_set)
      continue;
    (void)json_fail(node, "is not known to Sluice; it is ignored");
    log_warn_alike("%s", status_text());
  }
}

static enum status require(const struct json_node *object, const char *key, enum json_kind kind,
                           const struct json_node **out)
{
  static const char *const kinds[] = {"null",   "true or false", "a number",
                                      "a text", "a list",        "an object"};
  *out = json_find(object, key);
  if (!*out)
    return json_fail(object, "has no \"%s\"", key);
  return json_kind(*out) == kind ? STATUS_OK : json_fail(*out, "is not %s", kinds[kind]);
}

static enum status require_text(const struct json_node *object, const char *key,
                                const struct json_node **out, const char **text)
{
  enum status status = require(object, key, JSON_STRING, out);
  return status ? status : json_get_text(*out, text, NULL);
}

static enum status get_flag(const struct json_node *object, const char *key, bool otherwise,
                            bool *out)
{
  const struct json_node *node = json_find_said(object, key);
  *out = otherwise;
  return node ? json_get_bool(node, out) : STATUS_OK;
}

/* A setting that Sluice does not follow must be off: absent, null, false, 0 or an empty text. */
static enum status refuse_setting(const struct json_node *object, const char *key)
{
  const struct json_node *node = json_find_said(object, key);
  bool flag = false;
  double number = 0;
  size_t bytes = 0;
  const char *text;
  if (!node)
    return STATUS_OK;
  enum status status = json_kind(node) == JSON_BOOL     ? json_get_bool(node, &flag)
                       : json_kind(node) == JSON_NUMBER ? json_get_real(node, &number)
                       : json_kind(node) == JSON_STRING
                           ? json_get_text(node, &text, &bytes)
                           : json_fail(node, "is set, which Sluice does not support");
  if (status)
    return status;
  return flag || number != 0 || bytes > 0 ? json_fail(node, "is set, which Sluice does not support")
                                          : STATUS_OK;
}

/* The "type" of a part of the tokenizer. */
static enum status get_type(const struct json_node *object, const char **out)
{
  const struct json_node *type = NULL;
  if (json_kind(object) != JSON_OBJECT)
    return json_fail(object, "is not an object");
  return require_text(object, "type", &type, out);
}

static enum status refuse_type(const struct json_node *object, const char *type, const char *known)
{
  return json_fail(object, "is of type %s, which Sluice does not support; it knows %s", type,
                   known);
}

/* ---- tokens */

static int by_text(const void *key, const void *item)
{
  const struct added_token *a = key, *b = item;
  int order = memcmp(a->text, b->text, a->bytes < b->bytes ? a->bytes : b->bytes);
  return order ? order : a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* The id of a token, spelled as in the file, -1 for none. */
static int64_t find_token(const struct loader *loader, const char *text)
{
  const struct json_node *node = json_find(loader->vocab, text);
  int64_t id = -1;
  if (node)
    return json_get_whole(node, 0, loader->bound - 1, &id) == STATUS_OK ? id : -1;
  const struct added_token key = {.text = text, .bytes = strlen(text)}, *found = NULL;
  if (loader->sorted > 0)
    found = bsearch(&key, loader->added.token, (size_t)loader->sorted, sizeof key, by_text);
  return found ? found->id : -1;
}

/* A name that spells no bytes can only belong to an added token. A special token that stands for
 * its own name is found before the splitting, and never made from text. */
static enum status load_word(const struct loader *loader, const struct json_node *node,
                             struct text_buffer *bytes)
{
  size_t length = 0, n = 0, taken = 0;
  int64_t id = 0;
  const char *key = json_key(node, &length);
  enum status status = json_get_whole(node, 0, loader->bound - 1, &id);
  if (status)
    return status;
  (void)bpe_token(loader->t->bpe, (int32_t)id, &taken);
  if (taken)
    return json_fail(node, "is the id %" PRId64 ", which another token has", id);
  if (length == 0)
    return json_fail(node, "is a token without bytes");
  bytes->bytes = 0;
  status = text_buffer_append(bytes, key, length);
  if (status)
    return status;
  bool spelled = bpe_unspell(key, length, bytes->data, &n);
  return bpe_set_token(loader->t->bpe, (int32_t)id, spelled ? bytes->data : key,
                       spelled ? n : length, spelled && !(loader->t->special[id] && n == length));
}

/* The library gives ids as they are, so that some may be missing. */
static enum status measure_vocab(struct loader *loader)
{
  enum status status = STATUS_OK;
  loader->words = json_length(loader->vocab);
  for (const struct json_node *node = json_first(loader->vocab); node && status == STATUS_OK;
       node = json_next(node)) {
    int64_t id = 0;
    status = json_get_whole(node, 0, BPE_VOCAB_MOST - 1, &id);
    if (status == STATUS_OK && id >= loader->bound)
      loader->bound = id + 1;
  }
  return status;
}

static enum status load_vocab(const struct loader *loader)
{
  struct text_buffer bytes = {0};
  enum status status = STATUS_OK;
  for (const struct json_node *node = json_first(loader->vocab); node && status == STATUS_OK;
       node = json_next(node))
    status = load_word(loader, node, &bytes);
  text_buffer_free(&bytes);
  int missing;
  if (status == STATUS_OK && !bpe_find_bytes(loader->t->bpe, &missing))
    status = json_fail(loader->vocab,
                       "has no token for the single byte 0x%02X; it is not a byte-level vocabulary",
                       missing);
  return status;
}

/* The pieces of a merge, "A B" or ["A", "B"], as the file spells them. They are concatenated in
 * `joined`. *left is the length of A. */
static enum status get_pieces(const struct json_node *node, struct text_buffer *joined,
                              size_t *left)
{
  const struct json_node *first = node, *second = node;
  const char *a, *b;
  size_t a_bytes, b_bytes;
  if (json_kind(node) == JSON_ARRAY) {
    first = json_first(node);
    second = first ? json_next(first) : NULL;
    if (json_length(node) != 2)
      return json_fail(node, "is not a pair of pieces");
  }
  enum status status = json_get_text(first, &a, &a_bytes);
  if (status == STATUS_OK)
    status = json_get_text(second, &b, &b_bytes);
  if (status)
    return status;
  if (first == second) {
    const char *space = strchr(a, ' ');
    b = space ? space + 1 : a + a_bytes;
    b_bytes = a_bytes - (size_t)(b - a);
    a_bytes = space ? (size_t)(space - a) : 0;
  }
  if (a_bytes == 0 || b_bytes == 0 || (first == second && memchr(b, ' ', b_bytes)))
    return json_fail(node,
                     "is not two pieces with one space between them, or a list of two pieces");
  joined->bytes = 0;
  *left = a_bytes;
  status = text_buffer_append(joined, a, a_bytes);
  return status == STATUS_OK ? text_buffer_append(joined, b, b_bytes) : status;
}

/* No text comes to a merge of a special token, or of a name that spells no bytes. The vocabulary
 * must have all three names nevertheless. */
static enum status check_unused_merge(const struct loader *loader, const struct json_node *node,
                                      struct text_buffer *joined)
{
  size_t left = 0;
  enum status status = get_pieces(node, joined, &left);
  if (status)
    return status;
  char *a = mem_printf("%.*s", (int)left, joined->data),
       *b = mem_printf("%.*s", (int)(joined->bytes - left), joined->data + left),
       *ab = a && b ? mem_printf("%s%s", a, b) : NULL;
  if (!ab)
    status = STATUS_MEMORY;
  else if (!json_find(loader->vocab, ab))
    status = json_fail(node, "makes a piece that is not in model.vocab");
  else if (!json_find(loader->vocab, a) || !json_find(loader->vocab, b))
    status = json_fail(node, "has a piece that is not in model.vocab");
  mem_free(a);
  mem_free(b);
  mem_free(ab);
  return status;
}

static bool is_version(const struct json_node *node)
{
  static const char version[] = "#version";
  const char *text = "";
  return json_kind(node) == JSON_STRING && json_get_text(node, &text, NULL) == STATUS_OK &&
         strncmp(text, version, sizeof version - 1) == 0;
}

/* A pair that is given again has the later rank. */
static enum status load_merge(const struct loader *loader, const struct json_node *node,
                              struct text_buffer *joined)
{
  struct bpe *bpe = loader->t->bpe;
  size_t left = 0, right = 0;
  enum status status = get_pieces(node, joined, &left);
  if (status)
    return status;
  const char *second = joined->data + left;
  if (!bpe_unspell(second, joined->bytes - left, joined->data + left, &right) ||
      !bpe_unspell(joined->data, left, joined->data, &left))
    return check_unused_merge(loader, node, joined);
  memmove(joined->data + left, second, right);
  int32_t a = bpe_find(bpe, joined->data, left), b = bpe_find(bpe, joined->data + left, right),
          ab = bpe_find(bpe, joined->data, left + right);
  if (a < 0 || b < 0 || ab < 0)
    return check_unused_merge(loader, node, joined);
  (void)bpe_add_merge(bpe, a, b, ab);
  return STATUS_OK;
}

static enum status load_merges(const struct loader *loader, const struct json_node *merges)
{
  struct text_buffer joined = {0};
  enum status status = bpe_reserve_merges(loader->t->bpe, json_length(merges));
  for (const struct json_node *node = json_first(merges); node && status == STATUS_OK;
       node = json_next(node))
    status = is_version(node) ? STATUS_OK : load_merge(loader, node, &joined);
  text_buffer_free(&joined);
  return status;
}

/* ---- added tokens */

static const struct json_node *decoder_of(const struct loader *loader)
{
  return loader->config ? json_find_said(loader->config, "added_tokens_decoder") : NULL;
}

/* The id of a token: "id" of added_tokens, or the key of added_tokens_decoder. */
static enum status read_id(const struct json_node *node, const struct json_node **where,
                           int64_t *out)
{
  const char *key = json_key(node, NULL);
  char *end = NULL;
  *where = node;
  if (!key) {
    enum status status = require(node, "id", JSON_NUMBER, where);
    return status ? status : json_get_whole(*where, 0, BPE_VOCAB_MOST - 1, out);
  }
  *out = isdigit((unsigned char)*key) ? strtoll(key, &end, 10) : -1;
  return end && !*end && *out < BPE_VOCAB_MOST ? STATUS_OK : json_fail(node, "is no id of a token");
}

static enum status read_added(struct loader *loader, const struct json_node *node, int64_t next,
                              char *text, struct added_token *out, bool *late)
{
  static const char *const known[] = {"id",     "content",    "single_word", "lstrip",
                                      "rstrip", "normalized", "special",     NULL};
  const struct json_node *id_node = NULL, *content_node = NULL;
  const char *content = NULL;
  int64_t id = -1;
  enum status status = read_id(node, &id_node, &id);
  if (status == STATUS_OK)
    status = require(node, "content", JSON_STRING, &content_node);
  if (status == STATUS_OK)
    status = json_get_text(content_node, &content, &out->bytes);
  if (status == STATUS_OK)
    status = refuse_setting(node, "single_word");
  if (status == STATUS_OK)
    status = get_flag(node, "lstrip", false, &out->takes_left);
  if (status == STATUS_OK)
    status = get_flag(node, "rstrip", false, &out->takes_right);
  if (status == STATUS_OK)
    status = get_flag(node, "normalized", true, late);
  if (status)
    return status;
  warn_of_other_keys(node, known);
  if (out->bytes == 0 || out->bytes > ADDED_TOKEN_BYTES_MOST)
    return json_fail(content_node, "has %zu bytes; 1 to %d are possible", out->bytes,
                     ADDED_TOKEN_BYTES_MOST);
  if (id != next) {
    (void)json_fail(id_node, "is %" PRId64 "; it is ignored, because %s %" PRId64, id,
                    json_find(loader->vocab, content) ? "in model.vocab this token has the id"
                                                      : "the next free id is",
                    next);
    log_warn_alike("%s", status_text());
  }
  memcpy(text, content, out->bytes + 1);
  out->text = text;
  out->id = (int32_t)next;
  return STATUS_OK;
}

/* The id that this added token must have: that of the vocabulary, or the next one. */
static int64_t expected_id(const struct loader *loader, const struct json_node *node, int64_t next)
{
  const struct json_node *content = json_find(node, "content");
  const char *text = "";
  if (content && json_kind(content) == JSON_STRING)
    (void)json_get_text(content, &text, NULL);
  const struct json_node *word = json_find(loader->vocab, text);
  int64_t id = next;
  return word && json_get_whole(word, 0, loader->bound - 1, &id) == STATUS_OK ? id : next;
}

static enum status add_one(struct loader *loader, const struct json_node *node, int64_t *next,
                           char **text)
{
  struct tokenizer_bpe *t = loader->t;
  struct added_token token = {0};
  int64_t expected = expected_id(loader, node, *next);
  bool late = false;
  enum status status = read_added(loader, node, expected, *text, &token, &late);
  if (status == STATUS_OK)
    status = get_flag(node, "special", false, &t->special[expected]);
  if (status)
    return status;
  const char *normal = token.text;
  size_t bytes = token.bytes;
  if (late && t->nfc)
    status = nfc_text(t->nfc, token.text, token.bytes, &normal, &bytes);
  if (status == STATUS_OK && normal != token.text)
    status = json_fail(
        node, "is searched for in normalized text, but is not in the normal form C itself");
  if (status == STATUS_OK)
    status = added_tokens_add(&loader->added, &token);
  if (status == STATUS_OK)
    status = added_tokens_add(late ? &t->added_late : &t->added, &token);
  if (status == STATUS_OK && !json_find(loader->vocab, token.text)) {
    status = bpe_set_token(t->bpe, token.id, token.text, token.bytes, false);
    ++*next;
  }
  *text += token.bytes + 1;
  return status;
}

static void sort_added(struct loader *loader)
{
  added_tokens_sort(&loader->added);
  loader->sorted = loader->added.count;
}

static enum status refuse_repeated(const struct loader *loader, const struct json_node *list)
{
  const struct added_tokens *added = &loader->added;
  for (int64_t i = 1; i < added->count; i++)
    if (by_text(&added->token[i - 1], &added->token[i]) == 0)
      return json_fail(list, "has the token \"%.80s\" twice", added->token[i].text);
  return STATUS_OK;
}

/* Adds the number of tokens of a list (NULL: none) that have ids after those of the vocabulary, of
 * which there are *vocab, and the bytes of all texts. */
static void measure_added(const struct loader *loader, const struct json_node *list, int64_t *vocab,
                          size_t *bytes)
{
  const int64_t taken = *vocab;
  for (const struct json_node *node = json_first(list); node; node = json_next(node)) {
    const struct json_node *content = json_find(node, "content"), *where;
    const char *text;
    size_t n = 0;
    int64_t id = 0;
    *vocab += json_key(node, NULL) ? read_id(node, &where, &id) == STATUS_OK && id >= taken
                                   : expected_id(loader, node, -1) < 0;
    if (content && json_kind(content) == JSON_STRING &&
        json_get_text(content, &text, &n) == STATUS_OK)
      *bytes += n + 1;
  }
}

/* added_tokens_decoder of tokenizer_config.json may add tokens after all others, but must not
 * contradict tokenizer.json. */
static enum status load_decoder(struct loader *loader, int64_t *next, char **text)
{
  for (const struct json_node *node = json_first(decoder_of(loader)); node;
       node = json_next(node)) {
    const struct json_node *where = NULL;
    const char *content = NULL;
    int64_t id = -1;
    enum status status = require_text(node, "content", &where, &content);
    if (status == STATUS_OK)
      status = read_id(node, &where, &id);
    if (status)
      return status;
    const int64_t known = find_token(loader, content);
    if (known < 0 && id == *next)
      status = add_one(loader, node, next, text);
    else if (known != id)
      status = json_fail(node,
                         "is neither that token of %s nor one with the next free id, which is "
                         "%" PRId64,
                         main_name, *next);
    if (status)
      return status;
  }
  sort_added(loader);
  return decoder_of(loader) ? refuse_repeated(loader, decoder_of(loader)) : STATUS_OK;
}

static enum status load_added(struct loader *loader, const struct json_node *list)
{
  struct tokenizer_bpe *t = loader->t;
  int64_t next = loader->words;
  char *text = t->texts;
  enum status status = STATUS_OK;
  for (const struct json_node *node = json_first(list); node && status == STATUS_OK;
       node = json_next(node))
    status = json_kind(node) == JSON_OBJECT ? add_one(loader, node, &next, &text)
                                            : json_fail(node, "is not an object");
  sort_added(loader);
  if (status == STATUS_OK && list)
    status = refuse_repeated(loader, list);
  if (status == STATUS_OK)
    status = load_decoder(loader, &next, &text);
  added_tokens_sort(&t->added);
  added_tokens_sort(&t->added_late);
  return status;
}

/* ---- the model */

/* unk_token, fuse_unk and byte_fallback are for text that has no tokens. Here all bytes have one.
 */
static enum status check_model(const struct json_node *model)
{
  static const char *const known[] = {"type",
                                      "dropout",
                                      "unk_token",
                                      "continuing_subword_prefix",
                                      "end_of_word_suffix",
                                      "fuse_unk",
                                      "byte_fallback",
                                      "ignore_merges",
                                      "vocab",
                                      "merges",
                                      NULL};
  static const char *const refused[] = {"dropout", "continuing_subword_prefix",
                                        "end_of_word_suffix"};
  const char *type = "BPE"; /* older files do not say */
  enum status status = json_find(model, "type") ? get_type(model, &type) : STATUS_OK;
  if (status == STATUS_OK && strcmp(type, "BPE") != 0)
    status = refuse_type(model, type, "BPE of bytes");
  for (size_t i = 0; i < sizeof refused / sizeof *refused && status == STATUS_OK; i++)
    status = refuse_setting(model, refused[i]);
  if (status == STATUS_OK)
    warn_of_other_keys(model, known);
  return status;
}

static enum status load_model(struct loader *loader)
{
  struct tokenizer_bpe *t = loader->t;
  const struct json_node *model = NULL, *merges = NULL,
                         *list = json_find_said(loader->root, "added_tokens");
  const struct json_node *decoder = decoder_of(loader);
  size_t text_bytes = 0;
  bool whole_words = false;
  enum status status = require(loader->root, "model", JSON_OBJECT, &model);
  if (status == STATUS_OK)
    status = check_model(model);
  if (status == STATUS_OK)
    status = require(model, "vocab", JSON_OBJECT, &loader->vocab);
  if (status == STATUS_OK)
    status = require(model, "merges", JSON_ARRAY, &merges);
  if (status == STATUS_OK)
    status = get_flag(model, "ignore_merges", false, &whole_words);
  if (status == STATUS_OK && list && json_kind(list) != JSON_ARRAY)
    status = json_fail(list, "is not a list");
  if (status)
    return status;
  status = measure_vocab(loader);
  if (status)
    return status;
  t->base.vocab = loader->words;
  measure_added(loader, list, &t->base.vocab, &text_bytes);
  measure_added(loader, decoder, &t->base.vocab, &text_bytes);
  if (t->base.vocab < loader->bound)
    t->base.vocab = loader->bound;
  status = bpe_create(t->base.vocab, &t->bpe);
  if (status == STATUS_OK)
    status = mem_new(MEM_DATA, t->base.vocab, &t->special);
  if (status == STATUS_OK)
    status = mem_new(MEM_DATA, text_bytes, &t->texts);
  if (status == STATUS_OK)
    status = load_added(loader, list);
  if (status == STATUS_OK)
    status = load_vocab(loader);
  if (status == STATUS_OK)
    status = load_merges(loader, merges);
  if (status == STATUS_OK && whole_words)
    bpe_take_whole_words(t->bpe);
  return status;
}

/* ---- what comes before and after the model */

/* A Sequence without parts changes nothing. */
static enum status load_normalizer(struct loader *loader, const struct json_node *node)
{
  const struct json_node *list = NULL;
  const char *type = NULL;
  enum status status = get_type(node, &type);
  if (status)
    return status;
  if (strcmp(type, "NFC") == 0)
    return loader->t->nfc ? STATUS_OK : nfc_create(&loader->t->nfc);
  if (strcmp(type, "Sequence") != 0)
    return refuse_type(node, type, "NFC and Sequences of it");
  status = require(node, "normalizers", JSON_ARRAY, &list);
  for (node = status ? NULL : json_first(list); node && status == STATUS_OK; node = json_next(node))
    status = load_normalizer(loader, node);
  return status;
}

static enum status add_split(struct loader *loader, const struct split_rule *rule)
{
  return tokenizer_bpe_add_step(loader->t, loader->path, STEP_SPLIT, rule);
}

/* Pre-tokenizers after ByteLevel see the characters that stand for the bytes. */
static enum status spell_bytes(struct loader *loader)
{
  if (!loader->byte_level || loader->spelled)
    return STATUS_OK;
  loader->spelled = true;
  return tokenizer_bpe_add_step(loader->t, loader->path, STEP_SPELL, NULL);
}

static enum status load_byte_level(struct loader *loader, const struct json_node *node)
{
  bool splits = false;
  if (loader->byte_level)
    return json_fail(node, "is a second ByteLevel");
  enum status status = get_flag(node, "add_prefix_space", true, &loader->prefix);
  if (status == STATUS_OK && loader->prefix)
    status = tokenizer_bpe_add_step(loader->t, loader->path, STEP_SPACE, NULL);
  if (status == STATUS_OK)
    status = get_flag(node, "use_regex", true, &splits);
  loader->byte_level = true;
  return status == STATUS_OK && splits
             ? add_split(loader, &(struct split_rule){.pattern = split_pattern("gpt2")})
             : status;
}

static enum status load_digits(struct loader *loader, const struct json_node *node)
{
  bool each = false;
  enum status status = get_flag(node, "individual_digits", false, &each);
  const struct split_rule rule = {.pattern = split_pattern(each ? "digit" : "digits")};
  return status == STATUS_OK ? add_split(loader, &rule) : status;
}

static enum status load_behavior(const struct json_node *split, enum split_behavior *out)
{
  static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  const struct json_node *node = NULL;
  const char *name = "";
  enum status status = require_text(split, "behavior", &node, &name);
  for (size_t i = 0; i < sizeof names / sizeof *names && status == STATUS_OK; i++)
    if (strcmp(name, names[i]) == 0) {
      *out = (enum split_behavior)i;
      return STATUS_OK;
    }
  return status ? status : json_fail(node, "is %s, which Sluice does not support", name);
}

static enum status load_punctuation(struct loader *loader, const struct json_node *node)
{
  struct split_rule rule = {.pattern = "[!-/:-@\\[-`{-~]|\\p{P}"};
  enum status status =
      json_find_said(node, "behavior") ? load_behavior(node, &rule.behavior) : STATUS_OK;
  return status ? status : add_split(loader, &rule);
}

static enum status load_split(struct loader *loader, const struct json_node *node)
{
  const struct json_node *object = NULL, *pattern = NULL;
  struct split_rule rule = {0};
  enum status status = get_flag(node, "invert", false, &rule.invert);
  if (status == STATUS_OK)
    status = load_behavior(node, &rule.behavior);
  if (status == STATUS_OK)
    status = require(node, "pattern", JSON_OBJECT, &object);
  if (status)
    return status;
  rule.literal = json_find(object, "String") != NULL;
  status = require_text(object, rule.literal ? "String" : "Regex", &pattern, &rule.pattern);
  return status == STATUS_OK ? add_split(loader, &rule) : status;
}

static enum status load_splits(struct loader *loader, const struct json_node *node)
{
  static const struct {
    const char *type;
    enum status (*load)(struct loader *, const struct json_node *);
  } known[] = {{"ByteLevel", load_byte_level},
               {"Digits", load_digits},
               {"Punctuation", load_punctuation},
               {"Split", load_split}};
  static const char *const keys[] = {
      "type",    "pretokenizers", "add_prefix_space", "trim_offsets",      "use_regex",
      "pattern", "behavior",      "invert",           "individual_digits", NULL};
  const struct json_node *list = NULL;
  const char *type = NULL;
  enum status status = get_type(node, &type);
  if (status)
    return status;
  warn_of_other_keys(node, keys);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(type, known[i].type) == 0) {
      status = spell_bytes(loader);
      return status ? status : known[i].load(loader, node);
    }
  if (strcmp(type, "Sequence") != 0)
    return refuse_type(node, type, "ByteLevel, Digits, Punctuation, Split, and Sequences of these");
  status = require(node, "pretokenizers", JSON_ARRAY, &list);
  for (node = status ? NULL : json_first(list); node && status == STATUS_OK; node = json_next(node))
    status = load_splits(loader, node);
  return status;
}

static enum status load_pre_tokenizer(struct loader *loader)
{
  const struct json_node *node = NULL;
  enum status status = require(loader->root, "pre_tokenizer", JSON_OBJECT, &node);
  if (status == STATUS_OK)
    status = load_splits(loader, node);
  if (status == STATUS_OK && !loader->byte_level)
    status = json_fail(node, "has no ByteLevel, so its pieces are no bytes");
  return status == STATUS_OK && loader->spelled
             ? tokenizer_bpe_add_step(loader->t, loader->path, STEP_UNSPELL, NULL)
             : status;
}

/* ---- tokens around a text */

/* The one id of a special token of the template. */
static enum status template_id(const struct loader *loader, const struct json_node *template,
                               const struct json_node *piece, int32_t *out)
{
  const struct json_node *name_node = NULL, *tokens = NULL, *token = NULL, *ids = NULL;
  const char *name = NULL;
  int64_t id = -1;
  enum status status = require_text(piece, "id", &name_node, &name);
  if (status == STATUS_OK)
    status = require(template, "special_tokens", JSON_OBJECT, &tokens);
  if (status == STATUS_OK)
    status = require(tokens, name, JSON_OBJECT, &token);
  if (status == STATUS_OK)
    status = require(token, "ids", JSON_ARRAY, &ids);
  if (status == STATUS_OK && json_length(ids) != 1)
    status = json_fail(
        ids, "holds %" PRId64 " ids; Sluice puts one token before a text and one after it",
        json_length(ids));
  if (status == STATUS_OK)
    status = json_get_whole(json_first(ids), 0, loader->t->base.vocab - 1, &id);
  if (status == STATUS_OK)
    *out = (int32_t)id;
  return status;
}

/* "single": special tokens around the sequence A. */
static enum status load_template(struct loader *loader, const struct json_node *template)
{
  const struct json_node *single = NULL;
  bool behind = false;
  enum status status = require(template, "single", JSON_ARRAY, &single);
  for (const struct json_node *node = status ? NULL : json_first(single);
       node && status == STATUS_OK; node = json_next(node)) {
    const struct json_node *special = json_find(node, "SpecialToken");
    int32_t *place = behind ? &loader->behind : &loader->t->base.begin_of_text;
    if (!special && (!json_find(node, "Sequence") || behind))
      return json_fail(node, "is neither a SpecialToken nor the one Sequence");
    if (!special)
      behind = true;
    else if (*place >= 0)
      return json_fail(
          node,
          "is a second token on one side of the text; Sluice puts one before it and one after it");
    else
      status = template_id(loader, template, special, place);
  }
  return status == STATUS_OK && !behind ? json_fail(single, "has no Sequence") : status;
}

static enum status load_processor(struct loader *loader, const struct json_node *node)
{
  const char *type = NULL;
  const struct json_node *list = NULL;
  enum status status = get_type(node, &type);
  if (status || strcmp(type, "ByteLevel") == 0) /* which moves offsets only */
    return status;
  if (strcmp(type, "TemplateProcessing") == 0)
    return loader->t->base.begin_of_text >= 0 || loader->behind >= 0
               ? json_fail(node, "is a second template")
               : load_template(loader, node);
  if (strcmp(type, "Sequence") != 0)
    return refuse_type(node, type, "ByteLevel, TemplateProcessing and Sequences of these");
  status = require(node, "processors", JSON_ARRAY, &list);
  for (node = status ? NULL : json_first(list); node && status == STATUS_OK; node = json_next(node))
    status = load_processor(loader, node);
  return status;
}

/* ---- end of text */

/* tokenizer_config.json must not contradict tokenizer.json about tokens. */
static enum status check_config(const struct loader *loader, const struct json_node *config)
{
  const struct json_node *begins = json_find_said(config, "add_bos_token"),
                         *prefix = json_find_said(config, "add_prefix_space");
  bool begin = false, space = loader->prefix;
  enum status status = prefix ? json_get_bool(prefix, &space) : STATUS_OK;
  if (status == STATUS_OK && space != loader->prefix)
    status = json_fail(prefix, "contradicts the ByteLevel of %s", main_name);
  if (status == STATUS_OK && begins)
    status = json_get_bool(begins, &begin);
  if (status == STATUS_OK && begin && loader->t->base.begin_of_text < 0) {
    (void)json_fail(begins,
                    "is true, but the post_processor of %s puts no token before a text; Sluice "
                    "puts none, as transformers 5 does; set add_bos_token to false, or name the "
                    "token in a TemplateProcessing there",
                    main_name);
    log_warn_alike("%s", status_text());
  }
  return status;
}

/* "eos_token": a text, or an object with "content". */
static enum status end_of_config(const struct loader *loader, const struct json_node *config,
                                 int64_t *out)
{
  const struct json_node *node = json_find_said(config, "eos_token");
  const char *text = NULL;
  if (!node)
    return STATUS_OK;
  if (json_kind(node) == JSON_OBJECT) {
    enum status status = require(node, "content", JSON_STRING, &node);
    if (status)
      return status;
  }
  enum status status = json_get_text(node, &text, NULL);
  if (status)
    return status;
  *out = find_token(loader, text);
  return *out >= 0
             ? STATUS_OK
             : json_fail(node, "is \"%.80s\", a token that %s does not have", text, main_name);
}

/* "eos_token_id": an id, or a list of them, of which the first one counts. */
static enum status end_of_model(const struct loader *loader, const struct json_node *config,
                                int64_t *out)
{
  const struct json_node *node = json_find_said(config, "eos_token_id");
  if (node && json_kind(node) == JSON_ARRAY)
    node = json_first(node);
  return node ? json_get_whole(node, 0, loader->t->base.vocab - 1, out) : STATUS_OK;
}

/* A file of the folder that may be missing: *out NULL. */
static enum status read_other(const struct loader *loader, const char *name, struct json_tree **out)
{
  char *path = mem_printf("%s/%s", loader->t->folder, name);
  if (!path)
    return STATUS_MEMORY;
  *out = NULL;
  enum status status =
      file_exists(path) ? json_tree_read(path, TOKENIZER_FILE_MOST, out) : STATUS_OK;
  if (status == STATUS_OK && *out && json_kind(json_tree_root(*out)) != JSON_OBJECT)
    status = status_set(STATUS_INPUT, "%s: no object", path);
  mem_free(path);
  return status;
}

static enum status find_end_of_text(const struct loader *loader, int64_t *end)
{
  static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>"};
  static const char *const files[] = {"config.json", generation_name};
  struct tokenizer_bpe *t = loader->t;
  enum status status = loader->config ? check_config(loader, loader->config) : STATUS_OK;
  if (status == STATUS_OK && loader->config)
    status = end_of_config(loader, loader->config, end);
  for (int i = 0; i < 2 && *end < 0 && status == STATUS_OK; i++) {
    struct json_tree *tree;
    status = read_other(loader, files[i], &tree);
    if (status == STATUS_OK && tree)
      status = end_of_model(loader, json_tree_root(tree), end);
    json_tree_free(tree);
    t->says_end = *end >= 0;
  }
  if (status)
    return status;
  for (size_t i = 0; i < sizeof names / sizeof *names && *end < 0; i++)
    *end = find_token(loader, names[i]);
  return STATUS_OK;
}

static enum status load_end_of_text(struct loader *loader)
{
  const char *path = loader->path;
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
  if (loader->behind >= 0 && loader->behind != end)
    return status_set(
        STATUS_INPUT,
        "%s: post_processor puts the token %d after a text, but texts end with the token %" PRId64,
        path, loader->behind, end);
  t->base.end_of_text = (int32_t)end;
  if (bpe_is_made(t->bpe, t->base.end_of_text) ||
      (t->base.begin_of_text >= 0 && bpe_is_made(t->bpe, t->base.begin_of_text)))
    return status_set(STATUS_INPUT,
                      "%s: the token at the beginning or the end of a text can be made from text: "
                      "it must be a special token",
                      path);
  return STATUS_OK;
}

/* ---- */

static enum status load(struct loader *loader)
{
  static const char *const known[] = {
      "version",       "truncation",     "padding", "added_tokens", "normalizer",
      "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
  if (json_kind(loader->root) != JSON_OBJECT)
    return json_fail(loader->root, "is not an object");
  const struct json_node *processor = json_find_said(loader->root, "post_processor"),
                         *normalizer = json_find_said(loader->root, "normalizer");
  enum status status = refuse_other_keys(loader->root, known);
  if (status == STATUS_OK && json_find_said(loader->root, "truncation"))
    log_warn_alike("%s: truncation is set; it is ignored, and texts keep their length",
                   loader->path);
  if (status == STATUS_OK && normalizer)
    status = load_normalizer(loader, normalizer);
  if (status == STATUS_OK)
    status = load_model(loader);
  if (status == STATUS_OK)
    status = load_pre_tokenizer(loader);
  if (status == STATUS_OK && processor)
    status = load_processor(loader, processor);
  return status == STATUS_OK ? load_end_of_text(loader) : status;
}

static enum status load_file(struct tokenizer_bpe *t, const char *path)
{
  struct json_tree *tree = NULL;
  enum status status = json_tree_read(path, TOKENIZER_FILE_MOST, &tree);
  if (status)
    return status;
  struct loader loader = {.t = t, .path = path, .root = json_tree_root(tree), .behind = -1};
  struct json_tree *config = NULL;
  status = read_other(&loader, config_name, &config);
  loader.config = config ? json_tree_root(config) : NULL;
  if (status == STATUS_OK)
    status = load(&loader);
  added_tokens_free(&loader.added);
  json_tree_free(config);
  json_tree_free(tree);
  return status == STATUS_OK ? tokenizer_bpe_checksum(t, main_name, &t->base.checksum) : status;
}

static enum status json_create(const char *folder, struct tokenizer **out)
{
  if (!folder || !folder[0])
    return status_set(STATUS_USAGE, "the tokenizer json needs the folder that holds %s", main_name);
  struct tokenizer_bpe *t = NULL;
  enum status status = tokenizer_bpe_create(&tokenizer_json, folder, &t);
  if (status)
    return status;
  char *path = mem_printf("%s/%s", folder, main_name);
  status = path ? load_file(t, path) : STATUS_MEMORY;
  mem_free(path);
  if (status)
    tokenizer_bpe_destroy(&t->base);
  else
    *out = &t->base;
  return status;
}

/* If the end of text is known only from the model's configuration, which is no file of the
 * tokenizer, a small config.json records it. */
static enum status json_copy(const struct tokenizer *tokenizer, const char *folder)
{
  const struct tokenizer_bpe *t = (const struct tokenizer_bpe *)tokenizer;
  char text[64];
  enum status status = tokenizer_bpe_copy_file(t, main_name, folder, false);
  if (status == STATUS_OK)
    status = tokenizer_bpe_copy_file(t, config_name, folder, true);
  if (status || !t->says_end)
    return status;
  char *path = mem_printf("%s/%s", folder, generation_name);
  if (!path)
    return STATUS_MEMORY;
  int bytes = snprintf(text, sizeof text, "{\"eos_token_id\": %d}\n", tokenizer->end_of_text);
  status = file_write_all(path, text, (size_t)bytes);
  mem_free(path);
  return status;
}

const struct tokenizer_ops tokenizer_json = {.name = "json",
                                             .create = json_create,
                                             .destroy = tokenizer_bpe_destroy,
                                             .encode = tokenizer_bpe_encode,
                                             .decode = tokenizer_bpe_decode,
                                             .is_special = tokenizer_bpe_is_special,
                                             .meaning = tokenizer_bpe_meaning,
                                             .copy = json_copy};
