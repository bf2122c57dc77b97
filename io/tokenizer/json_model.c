/* The model of tokenizer.json: the vocabulary and the merges of byte-level BPE. The file spells
 * bytes as characters. A name that spells no bytes can only belong to an added token. */
#include "io/tokenizer/json_loader.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

/* unk_token, fuse_unk and byte_fallback are for text that has no tokens. Here all bytes have one.
 * The type may be missing. */
static void check_model(struct json_loader *loader, struct json_node model)
{
  static const char known[] = "type dropout unk_token continuing_subword_prefix fuse_unk "
                              "end_of_word_suffix byte_fallback ignore_merges vocab merges";
  const struct json_node type = json_find(model, "type");
  if (type.value && strcmp(json_get_text(type), "BPE") != 0)
    json_fail(model, "is of type %s, which Sluice does not support; it knows BPE of bytes",
              json_get_text(type));
  json_refuse_setting(model, "dropout");
  json_refuse_setting(model, "continuing_subword_prefix");
  json_refuse_setting(model, "end_of_word_suffix");
  json_warn_of_others(loader, model, known);
}

/* --- the vocabulary ------------------------------------------------------ */

/* The library gives ids as they are, so that some may be missing. */
static void measure_vocab(struct json_loader *loader)
{
  loader->words = (int64_t)json_length(loader->vocab);
  for (struct json_node word = json_first(loader->vocab); json_more(word); word = json_next(word)) {
    const int64_t id = json_get_whole(word, 0, BPE_VOCAB_MOST - 1);
    if (id >= loader->bound)
      loader->bound = id + 1;
  }
}

/* A special token that stands for its own name is found before the splitting, and never made from
 * text. GPT-2's files have no added tokens, so each of their names must spell bytes. */
static void load_word(struct tokenizer_bpe *t, struct json_node word, struct text_buffer *bytes)
{
  const int32_t id = (int32_t)json_get_whole(word, 0, t->base.vocab - 1);
  const size_t length = strlen(word.key);
  size_t n = 0, taken = 0;
  (void)bpe_token(t->bpe, id, &taken);
  if (taken)
    json_fail(word, "is the id %" PRId32 ", which another token has", id);
  if (length == 0)
    json_fail(word, "is a token without bytes");
  text_buffer_clear(bytes);
  if (json_keep(word.file, text_buffer_append(bytes, word.key, length)))
    return;
  const bool spelled = bpe_unspell(word.key, length, bytes->data, &n),
             special = t->base.special && t->base.special[id] && n == length;
  if (!spelled && !t->base.special)
    json_fail(word, "has a character that stands for no byte; GPT-2's vocab.json spells bytes as "
                    "U+0021 to U+0143");
  json_keep(word.file, bpe_set_token(t->bpe, id, spelled ? bytes->data : word.key,
                                     spelled ? n : length, spelled && !special));
}

void json_load_vocab(struct tokenizer_bpe *t, struct json_node vocab)
{
  struct text_buffer bytes = {0};
  int missing;
  for (struct json_node word = json_first(vocab); json_more(word); word = json_next(word))
    load_word(t, word, &bytes);
  text_buffer_free(&bytes);
  if (!vocab.file->status && !bpe_find_bytes(t->bpe, &missing))
    json_fail(vocab, "has no token for the single byte 0x%02X; it is not a byte-level vocabulary",
              missing);
}

/* --- merges -------------------------------------------------------------- */

/* The pieces of a merge, "A B" or ["A", "B"], as the file spells them, with a NUL after each. */
struct pieces {
  struct text_buffer text;
  size_t left, right; /* bytes of each */
};

static void get_pieces(struct json_node merge, struct pieces *out)
{
  const bool pair = json_is_array(merge.value);
  const struct json_node first = pair ? json_first(merge) : merge;
  if (pair && json_length(merge) != 2)
    json_fail(merge, "is not a pair of pieces");
  const char *a = json_get_text(first), *space = pair ? a + strlen(a) : strchr(a, ' '),
             *b = pair    ? json_get_text(json_next(first))
                  : space ? space + 1
                          : "";
  out->left = space ? (size_t)(space - a) : 0;
  out->right = strlen(b);
  if (!out->left || !out->right || (!pair && strchr(b, ' ')))
    json_fail(merge, "is not two pieces with one space between them, or a list of two pieces");
  text_buffer_clear(&out->text);
  text_buffer_append(&out->text, a, out->left);
  text_buffer_append(&out->text, "", 1);
  json_keep(merge.file, text_buffer_append(&out->text, b, out->right + 1));
}

/* No text comes to a merge of a special token, or of a name that spells no bytes. The vocabulary
 * must have all three names nevertheless. */
static void check_unused_merge(const struct json_loader *loader, struct json_node merge,
                               struct pieces *pieces)
{
  get_pieces(merge, pieces);
  const json_t *vocab = loader->vocab.value;
  const char *a = pieces->text.data, *b = a + pieces->left + 1;
  char *joined = mem_printf("%s%s", a, b);
  if (!joined)
    json_keep(merge.file, STATUS_MEMORY);
  else if (!json_object_get(vocab, joined))
    json_fail(merge, "makes a piece that is not in model.vocab");
  else if (!json_object_get(vocab, a) || !json_object_get(vocab, b))
    json_fail(merge, "has a piece that is not in model.vocab");
  mem_free(joined);
}

/* A pair that is given again has the later rank. */
static void load_merge(const struct json_loader *loader, struct json_node merge,
                       struct pieces *pieces)
{
  struct bpe *bpe = loader->t->bpe;
  int32_t id[3];
  get_pieces(merge, pieces);
  if (merge.file->status)
    return;
  char *left = pieces->text.data, *right = left + pieces->left + 1;
  if (!bpe_find_merge(bpe, left, pieces->left, right, pieces->right, left, id) || id[0] < 0 ||
      id[1] < 0 || id[2] < 0)
    check_unused_merge(loader, merge, pieces);
  else
    (void)bpe_add_merge(bpe, id[0], id[1], id[2]);
}

static void load_merges(struct json_loader *loader, struct json_node merges, bool whole_words)
{
  static const char version[] = "#version";
  struct pieces pieces = {.left = 0};
  json_keep(&loader->file,
            bpe_reserve_merges(loader->t->bpe, (int64_t)json_length(merges), whole_words));
  for (struct json_node merge = json_first(merges); json_more(merge); merge = json_next(merge)) {
    const char *text = json_string_value(merge.value);
    if (!text || strncmp(text, version, sizeof version - 1) != 0)
      load_merge(loader, merge, &pieces);
  }
  text_buffer_free(&pieces.text);
}

/* --- the whole ----------------------------------------------------------- */

/* Room for all tokens. */
static enum status create_vocab(struct json_loader *loader)
{
  struct tokenizer_bpe *t = loader->t;
  size_t text_bytes = 0;
  t->base.vocab = loader->words;
  json_measure_added(loader, &t->base.vocab, &text_bytes);
  if (t->base.vocab < loader->bound)
    t->base.vocab = loader->bound;
  return bpe_create(t->base.vocab, &t->bpe)
         ?: mem_new(MEM_DATA, t->base.vocab, &t->base.special)
         ?: mem_new(MEM_DATA, text_bytes, &t->texts);
}

void json_load_model(struct json_loader *loader)
{
  const struct json_node model = json_get_object(json_find(loader->root, "model"));
  check_model(loader, model);
  loader->vocab = json_get_object(json_find(model, "vocab"));
  const struct json_node merges = json_get_array(json_find(model, "merges"));
  const bool whole_words = json_flag(model, "ignore_merges", false);
  measure_vocab(loader);
  if (loader->file.status || json_keep(&loader->file, create_vocab(loader)))
    return;
  json_load_added(loader);
  if (loader->file.status || loader->config.status)
    return;
  json_load_vocab(loader->t, loader->vocab);
  load_merges(loader, merges, whole_words);
}
