/* Spaces at the end of a query belong to the choice, because tokens begin with spaces. */
#include "io/tokens/choices.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/text/jsonl.h"
#include "io/text/utf8.h"

struct reader {
  struct text_input *input;
  struct tokenizer *tokenizer;
  const char *delimiter;
  int64_t context;
  struct choices *out;
  struct text_buffer key, number, query, texts, whole;
  size_t *end; /* of each choice in `texts` */
  int64_t n, end_room;
  bool has_query, has_choices;
  struct tokenizer_tokens tokens,
      given; /* of a row; of the query alone, without an end of spaces */
};

/* As str.rstrip() of Python. */
static bool is_space(uint32_t c)
{
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/* The bytes of a text without white space at its end. */
static size_t strip(const char *text, size_t bytes)
{
  size_t n = 0, length;
  for (size_t at = 0; at < bytes; at += length)
    if (!is_space(utf8_decode(text + at, &length)))
      n = at + length;
  return n;
}

static int32_t count_characters(const char *text, size_t bytes)
{
  int32_t n = 0;
  for (size_t at = 0, length; at < bytes; at += length, n++)
    utf8_decode(text + at, &length);
  return n;
}

/* Replaces the tokens by those of a text, after the begin of text if the tokenizer has one. A text
 * may begin with it itself. */
static enum status encode(struct reader *reader, const char *text, size_t bytes, bool begins)
{
  struct tokenizer_tokens *tokens = &reader->tokens;
  const int32_t begin = begins ? tokenizer_begin_of_text(reader->tokenizer) : -1;
  enum status status = mem_grow(MEM_DATA, (void **)&tokens->id, &tokens->room, 1, sizeof begin);
  tokens->n = 0;
  if (!status && begin >= 0)
    tokens->id[tokens->n++] = begin;
  status = status ?: tokenizer_encode(reader->tokenizer, text, bytes, false, tokens);
  if (!status && begin >= 0 && tokens->n > 1 && tokens->id[1] == begin)
    memmove(tokens->id, tokens->id + 1, (size_t)--tokens->n * sizeof begin);
  return status;
}

/* An empty query stands for the begin of text, else for the end of text. A continuation that begins
 * with this token has it once. */
static enum status put_prefix(struct reader *reader)
{
  struct tokenizer_tokens *tokens = &reader->tokens;
  const int32_t begin = tokenizer_begin_of_text(reader->tokenizer),
                prefix = begin >= 0 ? begin : tokenizer_end_of_text(reader->tokenizer);
  if (tokens->n > 0 && tokens->id[0] == prefix)
    return STATUS_OK;
  const enum status status =
      mem_grow(MEM_DATA, (void **)&tokens->id, &tokens->room, tokens->n + 1, sizeof prefix);
  if (!status) {
    memmove(tokens->id + 1, tokens->id, (size_t)tokens->n++ * sizeof prefix);
    tokens->id[0] = prefix;
  }
  return status;
}

/* Appends the row of the reader's tokens, of which the first `given` are the query's. They are
 * those of the query alone, even if the whole text has others there. */
static enum status add_row(struct reader *reader, int64_t given, int32_t characters)
{
  struct choices *out = reader->out;
  const struct tokenizer_tokens *tokens = &reader->tokens;
  const int64_t most = reader->context + 1, n = tokens->n < most ? tokens->n : most;
  const enum status status =
      mem_grow(MEM_DATA, (void **)&out->row, &out->row_room, out->rows + 1, sizeof *out->row)
          ?: mem_grow(MEM_DATA, (void **)&out->id, &out->id_room, out->ids + n, sizeof *out->id);
  if (status)
    return status;
  if (reader->query.bytes > 0)
    memcpy(tokens->id, reader->given.id, (size_t)given * sizeof *tokens->id);
  memcpy(out->id + out->ids, tokens->id + tokens->n - n, (size_t)n * sizeof *out->id);
  out->row[out->rows++] =
      (struct choices_row){out->ids, n, (int32_t)(tokens->n - given), characters};
  out->ids += n;
  out->longest = n - 1 > out->longest ? n - 1 : out->longest;
  return STATUS_OK;
}

static enum status encode_choice(struct reader *reader, int64_t c, int64_t given, int64_t begin)
{
  const size_t from = c > 0 ? reader->end[c - 1] : 0, bytes = reader->end[c] - from;
  const char *text = reader->texts.data + from;
  struct text_buffer *whole = &reader->whole;
  if (bytes == 0)
    return text_input_fail(reader->input, begin, "choice %lld is empty", (long long)c);
  text_buffer_clear(whole);
  text_buffer_append(whole, reader->query.data, reader->query.bytes);
  text_buffer_append(whole, reader->delimiter, strlen(reader->delimiter));
  text_buffer_append(whole, text, bytes);
  enum status status =
      whole->status ?: encode(reader, whole->data, whole->bytes, reader->query.bytes > 0);
  if (!status && reader->query.bytes == 0)
    status = put_prefix(reader);
  const int64_t scored = reader->tokens.n - given;
  if (!status && scored < 1)
    return text_input_fail(reader->input, begin, "choice %lld adds no token to its query",
                           (long long)c);
  if (!status && scored > reader->context)
    return text_input_fail(reader->input, begin,
                           "choice %lld has %lld tokens, more than the context of %lld",
                           (long long)c, (long long)scored, (long long)reader->context);
  return text_input_keep(reader->input, begin,
                         status ?: add_row(reader, given, count_characters(text, bytes)));
}

/* The object at `begin` becomes a question. */
static void add_question(struct reader *reader, int64_t begin)
{
  struct text_input *input = reader->input;
  struct choices *out = reader->out;
  char *end = NULL;
  if (!input->status && (!reader->has_query || !reader->has_choices || reader->number.bytes == 0))
    text_input_fail(input, begin, "a question has \"query\", \"choices\" and \"gold\"");
  if (!input->status && reader->n == 0)
    text_input_fail(input, begin, "\"choices\" is empty");
  text_input_keep(input, begin, text_buffer_append(&reader->number, "", 1));
  if (input->status)
    return;
  const long long gold = strtoll(reader->number.data, &end, 10);
  if (*end || gold < 0 || gold >= reader->n) {
    text_input_fail(input, begin, "\"gold\" is %.40s, but the choices are 0 to %lld",
                    reader->number.data, (long long)reader->n - 1);
    return;
  }
  const size_t bytes = strip(reader->query.data, reader->query.bytes);
  enum status status = mem_grow(MEM_DATA, (void **)&out->question, &out->question_room,
                                out->questions + 1, sizeof *out->question)
                           ?: encode(reader, reader->query.data, bytes, true);
  const struct tokenizer_tokens query = reader->tokens;
  const int64_t given = reader->query.bytes == 0 ? 1 : query.n;
  reader->tokens = reader->given;
  reader->given = query;
  text_input_keep(input, begin, status);
  if (!input->status && given == 0)
    text_input_fail(input, begin, "\"query\" holds only white space");
  if (!input->status)
    out->question[out->questions++] =
        (struct choices_question){out->rows, (int32_t)reader->n, (int32_t)gold};
  for (int64_t c = 0; c < reader->n && !input->status; c++)
    encode_choice(reader, c, given, begin);
}

static void read_choices(struct reader *reader)
{
  struct text_input *input = reader->input;
  text_buffer_clear(&reader->texts);
  reader->n = 0;
  jsonl_expect(input, '[', "an array of strings, '[',");
  for (bool more = jsonl_enter(input, ']'); more; more = jsonl_more(input, ']')) {
    jsonl_string(input, true, &reader->texts);
    text_input_keep(input, text_input_offset(input),
                    mem_grow(MEM_DATA, (void **)&reader->end, &reader->end_room, reader->n + 1,
                             sizeof *reader->end));
    if (!input->status)
      reader->end[reader->n++] = reader->texts.bytes;
  }
}

static void read_member(struct reader *reader)
{
  struct text_input *input = reader->input;
  text_buffer_clear(&reader->key);
  jsonl_string(input, false, &reader->key);
  text_input_keep(input, text_input_offset(input), text_buffer_append(&reader->key, "", 1));
  jsonl_expect(input, ':', "':'");
  (void)jsonl_peek(input);
  if (input->status)
    return;
  if (!strcmp(reader->key.data, "query")) {
    text_buffer_clear(&reader->query);
    jsonl_string(input, true, &reader->query);
    reader->has_query = true;
  } else if (!strcmp(reader->key.data, "choices")) {
    read_choices(reader);
    reader->has_choices = true;
  } else if (!strcmp(reader->key.data, "gold")) {
    text_buffer_clear(&reader->number);
    (void)text_input_copy(input, &reader->number);
    jsonl_skip(input);
    (void)text_input_copy(input, NULL);
  } else {
    jsonl_skip(input);
  }
}

/* Moves to the next line that is not blank. */
static bool next_line(struct text_input *input, bool ended)
{
  input->one_line = true;
  while (jsonl_peek(input) == '\n') {
    ended = true;
    input->at++;
  }
  if (!input->status && input->at < input->end && !ended)
    jsonl_unexpected(input, "the end of the line");
  return !input->status && input->at < input->end;
}

static void read_all(struct reader *reader)
{
  struct text_input *input = reader->input;
  while (next_line(input, reader->out->questions == 0)) {
    const int64_t begin = text_input_offset(input);
    reader->has_query = reader->has_choices = false;
    text_buffer_clear(&reader->number);
    jsonl_expect(input, '{', "an object, '{',");
    for (bool more = jsonl_enter(input, '}'); more; more = jsonl_more(input, '}'))
      read_member(reader);
    add_question(reader, begin);
  }
  if (!input->status && reader->out->questions == 0)
    status_set(input->status = STATUS_INPUT, "%s holds no question", input->path);
}

enum status choices_read(const char *path, const char *delimiter, struct tokenizer *tokenizer,
                         int64_t context, struct choices *out)
{
  struct reader reader = {
      .tokenizer = tokenizer, .delimiter = delimiter, .context = context, .out = out};
  *out = (struct choices){0};
  enum status status = text_input_open(path, TEXT_REFUSE, true, &reader.input);
  if (status)
    return status;
  read_all(&reader);
  status = reader.input->status;
  text_input_close(reader.input);
  text_buffer_free(&reader.key);
  text_buffer_free(&reader.number);
  text_buffer_free(&reader.query);
  text_buffer_free(&reader.texts);
  text_buffer_free(&reader.whole);
  mem_free(reader.end);
  mem_free(reader.tokens.id);
  mem_free(reader.given.id);
  return status;
}

enum status choices_share(struct comm *comm, struct choices *choices)
{
  const bool root = comm_rank(comm) == 0;
  int64_t n[] = {choices->questions, choices->rows, choices->ids, choices->longest};
  enum status status = comm_broadcast(comm, n, sizeof n, 0);
  if (!status && !root) {
    *choices = (struct choices){.questions = n[0], .rows = n[1], .ids = n[2], .longest = n[3]};
    status = mem_new(MEM_DATA, n[0], &choices->question)
                 ?: mem_new(MEM_DATA, n[1], &choices->row)
                 ?: mem_new(MEM_DATA, n[2], &choices->id);
  }
  return comm_agree(comm, status)
             ?: comm_broadcast(comm, choices->question,
                               n[0] * (int64_t)sizeof *choices->question, 0)
             ?: comm_broadcast(comm, choices->row, n[1] * (int64_t)sizeof *choices->row, 0)
             ?: comm_broadcast(comm, choices->id, n[2] * (int64_t)sizeof *choices->id, 0);
}

void choices_free(struct choices *choices)
{
  mem_free(choices->question);
  mem_free(choices->row);
  mem_free(choices->id);
  *choices = (struct choices){0};
}

int choices_best(const struct choices *choices, int64_t q, const double *score, bool normal)
{
  const struct choices_question *question = &choices->question[q];
  int best = 0;
  double most = 0;
  for (int c = 0; c < question->n; c++) {
    const int64_t r = question->first + c;
    const double own = normal ? score[r] / choices->row[r].characters : score[r];
    if (c == 0 || own > most) {
      best = c;
      most = own;
    }
  }
  return best;
}
