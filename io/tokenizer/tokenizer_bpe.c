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
    text_buffer_free(&t->step[i].marks);
  }
  nfc_destroy(t->nfc);
  added_tokens_free(&t->added);
  added_tokens_free(&t->added_late);
  mem_free(t->texts);
}

/* ---- encoding */

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

/* Flags of the rewritten text: of a byte and its spelling, and of the text's first byte for a
 * space before it. */
static enum status rewrite_marks(struct tokenizer_step *step, const char *text, size_t bytes,
                                 const unsigned char **marks)
{
  struct text_buffer *out = &step->marks;
  char character[BPE_SPELLED_MOST];
  if (!*marks)
    return STATUS_OK;
  const char *flags = (const char *)*marks;
  text_buffer_clear(out);
  if (step->kind == STEP_SPACE && *text != ' ')
    text_buffer_append(out, flags, 1);
  for (size_t i = 0; i < bytes; i++) {
    const bool continues = ((unsigned char)text[i] & 0xC0) == 0x80;
    size_t n = step->kind == STEP_SPELL ? bpe_spell_byte((unsigned char)text[i], character)
                                        : step->kind != STEP_UNSPELL || !continues;
    for (; n > 0; n--)
      text_buffer_append(out, flags + i, 1);
  }
  *marks = (const unsigned char *)out->data;
  return out->status;
}

/* Whether the tokens from `first` on are trained. Their bytes are those of a word. */
static void mark_tokens(const struct tokenizer_bpe *t, int64_t first, const unsigned char *marks,
                        struct tokenizer_tokens *out)
{
  for (size_t bytes; first < out->n; first++, marks += bytes) {
    unsigned char all = TOKENIZER_TRAINED;
    (void)bpe_token(t->bpe, out->id[first], &bytes);
    for (size_t i = 0; i < bytes; i++)
      all &= marks[i];
    out->trained[first] = all;
  }
}

static enum status encode_word(struct tokenizer_bpe *t, const char *text, size_t bytes,
                               const unsigned char *marks, struct tokenizer_tokens *out)
{
  const int64_t first = out->n;
  const enum status status = tokenizer_tokens_reserve(out, bytes, marks)
                                 ?: bpe_encode_word(t->bpe, text, bytes, out->id, &out->n);
  if (marks && !status)
    mark_tokens(t, first, marks, out);
  return status;
}

/* The steps from `first` on. A pattern looks at its piece only, never at the text around it. */
static enum status encode_pieces(struct tokenizer_bpe *t, int first, const char *text, size_t bytes,
                                 const unsigned char *marks, struct tokenizer_tokens *out)
{
  struct tokenizer_step *step = &t->step[first];
  enum status status = STATUS_OK;
  if (first == t->steps)
    return encode_word(t, text, bytes, marks, out);
  if (step->kind != STEP_SPLIT)
    return rewrite(step, text, bytes)
               ?: rewrite_marks(step, text, bytes, &marks)
               ?: encode_pieces(t, first + 1, step->text.data, step->text.bytes, marks, out);
  for (size_t at = 0, begin, end; at < bytes && !status; at = end) {
    status = split_next(step->split, text, bytes, at, &begin, &end);
    if (!status && begin < end)
      status =
          encode_pieces(t, first + 1, text + begin, end - begin, marks ? marks + begin : NULL, out);
  }
  return status;
}

/* A text, its flags or NULL, and whether added tokens are text. */
struct piece {
  const char *text;
  size_t bytes;
  const unsigned char *marks;
  bool plain;
};

static struct piece part_of(const struct piece *piece, size_t begin, size_t end)
{
  return (struct piece){piece->text + begin, end - begin,
                        piece->marks ? piece->marks + begin : NULL, piece->plain};
}

/* Passes the text around added tokens on: around those of the first kind, it is normalized, and
 * then the `late` ones are found in it. */
static enum status encode_around(struct tokenizer_bpe *t, bool late, const struct piece *piece,
                                 struct tokenizer_tokens *out);
static enum status encode_between(struct tokenizer_bpe *t, bool late, struct piece piece,
                                  struct tokenizer_tokens *out)
{
  if (late)
    return encode_pieces(t, 0, piece.text, piece.bytes, piece.marks, out);
  return (t->nfc
              ? nfc_text(t->nfc, piece.text, piece.bytes, &piece.text, &piece.bytes, &piece.marks)
              : STATUS_OK)
             ?: encode_around(t, true, &piece, out);
}

static enum status add_match(const struct piece *piece, const struct added_match *match,
                             struct tokenizer_tokens *out)
{
  const enum status status = tokenizer_tokens_reserve(out, 1, piece->marks);
  if (status)
    return status;
  if (piece->marks) {
    out->trained[out->n] = TOKENIZER_TRAINED;
    for (size_t i = match->at; i < match->after; i++)
      out->trained[out->n] &= piece->marks[i];
  }
  out->id[out->n++] = match->id;
  return STATUS_OK;
}

static enum status encode_around(struct tokenizer_bpe *t, bool late, const struct piece *piece,
                                 struct tokenizer_tokens *out)
{
  const struct added_tokens *added = late ? &t->added_late : &t->added;
  struct added_match match;
  enum status status = STATUS_OK;
  size_t taken = 0;
  for (size_t from = 0;
       !status && !piece->plain &&
       added_tokens_find(added, piece->text, piece->bytes, piece->marks, from, taken, &match);
       from = match.after) {
    if (match.begin > taken)
      status = encode_between(t, late, part_of(piece, taken, match.begin), out);
    status = status ?: add_match(piece, &match, out);
    taken = match.end;
  }
  return !status && taken < piece->bytes
             ? encode_between(t, late, part_of(piece, taken, piece->bytes), out)
             : status;
}

enum status tokenizer_bpe_encode(struct tokenizer *tokenizer, const char *text, size_t bytes,
                                 bool plain, const unsigned char *marks,
                                 struct tokenizer_tokens *out)
{
  struct tokenizer_bpe *t = (struct tokenizer_bpe *)tokenizer;
  if (bytes > TEXT_MOST)
    return status_set(
        STATUS_INPUT,
        "a text of %zu bytes is too long to encode in one piece; split it into texts of at most %d",
        bytes, TEXT_MOST);
  return encode_around(t, false, &(struct piece){text, bytes, marks, plain}, out);
}

const char *tokenizer_bpe_text_of(const struct tokenizer *tokenizer, int32_t token, size_t *bytes)
{
  return bpe_token(((const struct tokenizer_bpe *)tokenizer)->bpe, token, bytes);
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
