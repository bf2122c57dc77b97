/* A text becomes pieces by the steps of the pre-tokenizer, and pieces become tokens. */
#include "io/tokenizer/tokenizer_bpe.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { TEXT_MOST = INT32_MAX / 4 };

void tokenizer_bpe_clear(struct tokenizer *tokenizer)
{
  struct tokenizer_bpe *t = (struct tokenizer_bpe *)tokenizer;
  bpe_destroy(t->bpe);
  for (int i = 0; i < t->steps; i++) {
    split_destroy(t->step[i].split);
    text_buffer_free(&t->step[i].text);
  }
  nfc_destroy(t->nfc);
  added_tokens_free(&t->added);
  added_tokens_free(&t->added_late);
  mem_free(t->texts);
}

/* ---- encoding */

static enum status reserve(struct tokenizer_tokens *out, size_t more)
{
  return mem_grow(MEM_DATA, (void **)&out->id, &out->room, out->n + (int64_t)more, sizeof *out->id);
}

static enum status rewrite(struct tokenizer_step *step, const char *text, size_t bytes)
{
  struct text_buffer *out = &step->text;
  char character[BPE_SPELLED_MOST];
  text_buffer_clear(out);
  if (step->kind == STEP_SPACE && *text != ' ')
    text_buffer_append(out, " ", 1);
  if (step->kind != STEP_SPELL)
    text_buffer_append(out, text, bytes);
  for (size_t i = 0; step->kind == STEP_SPELL && i < bytes; i++)
    text_buffer_append(out, character, bpe_spell_byte((unsigned char)text[i], character));
  if (!out->status && step->kind == STEP_UNSPELL)
    (void)bpe_unspell(text, bytes, out->data, &out->bytes); /* of characters of STEP_SPELL only */
  return out->status;
}

/* The steps from `first` on. A pattern looks at its piece only, never at the text around it. */
static enum status encode_pieces(struct tokenizer_bpe *t, int first, const char *text, size_t bytes,
                                 struct tokenizer_tokens *out)
{
  struct tokenizer_step *step = &t->step[first];
  enum status status = STATUS_OK;
  if (first == t->steps)
    return reserve(out, bytes) ?: bpe_encode_word(t->bpe, text, bytes, out->id, &out->n);
  if (step->kind != STEP_SPLIT)
    return rewrite(step, text, bytes)
               ?: encode_pieces(t, first + 1, step->text.data, step->text.bytes, out);
  for (size_t at = 0, begin, end; at < bytes && !status; at = end) {
    status = split_next(step->split, text, bytes, at, &begin, &end);
    if (!status && begin < end)
      status = encode_pieces(t, first + 1, text + begin, end - begin, out);
  }
  return status;
}

/* Passes the text around added tokens on: around those of the first kind, it is normalized, and
 * then the `late` ones are found in it. */
static enum status encode_around(struct tokenizer_bpe *t, bool late, const char *text, size_t bytes,
                                 bool plain, struct tokenizer_tokens *out);
static enum status encode_between(struct tokenizer_bpe *t, bool late, const char *text,
                                  size_t bytes, bool plain, struct tokenizer_tokens *out)
{
  if (late)
    return encode_pieces(t, 0, text, bytes, out);
  return (t->nfc ? nfc_text(t->nfc, text, bytes, &text, &bytes) : STATUS_OK)
             ?: encode_around(t, true, text, bytes, plain, out);
}

static enum status encode_around(struct tokenizer_bpe *t, bool late, const char *text, size_t bytes,
                                 bool plain, struct tokenizer_tokens *out)
{
  const struct added_tokens *added = late ? &t->added_late : &t->added;
  struct added_match match;
  enum status status = STATUS_OK;
  size_t taken = 0;
  for (size_t from = 0;
       !status && !plain && added_tokens_find(added, text, bytes, from, taken, &match);
       from = match.after) {
    if (match.begin > taken)
      status = encode_between(t, late, text + taken, match.begin - taken, plain, out);
    status = status ?: reserve(out, 1);
    if (!status)
      out->id[out->n++] = match.id;
    taken = match.end;
  }
  return !status && taken < bytes ? encode_between(t, late, text + taken, bytes - taken, plain, out)
                                  : status;
}

enum status tokenizer_bpe_encode(struct tokenizer *tokenizer, const char *text, size_t bytes,
                                 bool plain, struct tokenizer_tokens *out)
{
  struct tokenizer_bpe *t = (struct tokenizer_bpe *)tokenizer;
  if (bytes > TEXT_MOST)
    return status_set(
        STATUS_INPUT,
        "a text of %zu bytes is too long to encode in one piece; split it into texts of at most %d",
        bytes, TEXT_MOST);
  return encode_around(t, false, text, bytes, plain, out);
}

/* ---- decoding */

enum status tokenizer_bpe_decode(const struct tokenizer *tokenizer, const int32_t *tokens,
                                 int64_t n, char **text, int64_t *bytes, int64_t *room)
{
  const struct tokenizer_bpe *t = (const struct tokenizer_bpe *)tokenizer;
  for (int64_t i = 0; i < n; i++) {
    if (tokens[i] == tokenizer->end_of_text || tokens[i] == tokenizer->begin_of_text)
      continue;
    size_t length = 0;
    const char *piece = bpe_token(t->bpe, tokens[i], &length);
    enum status status = mem_grow(MEM_DATA, (void **)text, room, *bytes + (int64_t)length, 1);
    if (status)
      return status;
    memcpy(*text + *bytes, piece, length);
    *bytes += (int64_t)length;
  }
  return STATUS_OK;
}

/* ---- meaning */

static uint64_t hash_added(const struct added_token *token, bool special, bool late)
{
  const uint64_t words[] = {(uint64_t)token->id, token->takes_left, token->takes_right, special,
                            late};
  return hash_bytes(hash_bytes(HASH_START, token->text, token->bytes), words, sizeof words);
}

/* Hashes are added, so their order does not matter. `late` tokens are found in the normalized text,
 * the others in the original. */
static uint64_t hash_list(const struct tokenizer_bpe *t, const struct added_tokens *list, bool late)
{
  uint64_t sum = 0;
  for (int64_t i = 0; i < list->count; i++)
    sum += hash_added(&list->token[i], t->base.special[list->token[i].id], late);
  return sum;
}

/* GPT-2's two files have no added tokens. Their end of text is the added token of its
 * tokenizer.json. Beginning and end of text are chosen by the preparation and change no id. */
static uint64_t hash_all_added(const struct tokenizer_bpe *t)
{
  const bool late = t->nfc || (t->added.count > 0 && t->added_late.count > 0);
  size_t bytes = 0;
  if (t->base.special)
    return hash_list(t, &t->added, false) + hash_list(t, &t->added_late, late);
  const char *text = bpe_token(t->bpe, t->base.end_of_text, &bytes);
  return hash_added(&(struct added_token){.text = text, .bytes = bytes, .id = t->base.end_of_text},
                    true, false);
}

/* Whether the ids are those of the tokenizer `bytes`. There can be no merges, because no token of a
 * text has two bytes, and so the split does not matter. */
static bool is_bytes(const struct tokenizer_bpe *t)
{
  if (t->nfc || t->base.vocab != TOKENIZER_BYTES_VOCAB ||
      t->base.end_of_text != TOKENIZER_BYTES_END)
    return false;
  for (int32_t id = 0; id < TOKENIZER_BYTES_END; id++) {
    size_t bytes;
    const char *token = bpe_token(t->bpe, id, &bytes);
    if (bytes != 1 || (unsigned char)*token != id)
      return false;
  }
  return true;
}

uint64_t tokenizer_bpe_meaning(const struct tokenizer *tokenizer)
{
  const struct tokenizer_bpe *t = (const struct tokenizer_bpe *)tokenizer;
  if (is_bytes(t))
    return tokenizer_bytes.meaning(tokenizer);
  const uint64_t words[] = {t->pattern, t->nfc != NULL, hash_all_added(t)};
  return bpe_hash(t->bpe, hash_bytes(HASH_START, words, sizeof words));
}

enum status tokenizer_bpe_add_step(struct tokenizer_bpe *tokenizer, const char *path,
                                   enum tokenizer_step_kind kind, const struct split_rule *rule)
{
  static const struct split_rule none = {.pattern = ""};
  struct tokenizer_bpe *t = tokenizer;
  if (!rule)
    rule = &none;
  const uint64_t words[] = {t->pattern, kind, rule->behavior, rule->literal, rule->invert};
  const bool plain = !t->steps && !kind && !rule->behavior && !rule->literal && !rule->invert;
  const uint64_t hash = hash_text(rule->pattern);
  if (t->steps == TOKENIZER_STEPS_MOST)
    return status_set(STATUS_INPUT, "%s: the pre_tokenizer has more than %d steps", path,
                      TOKENIZER_STEPS_MOST);
  struct tokenizer_step *step = &t->step[t->steps];
  step->kind = kind;
  t->pattern = plain ? hash : hash_bytes(hash, words, sizeof words);
  enum status status = kind == STEP_SPLIT ? split_create(path, rule, &step->split) : STATUS_OK;
  t->steps += !status;
  return status;
}
