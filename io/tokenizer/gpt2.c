/* GPT-2's two files. vocab.json: one object, tokens and their ids. merges.txt: one pair per line.
 * The first line is joined first. */
#include <string.h>

#include "base/mem.h"
#include "io/text/file.h"
#include "io/text/utf8.h"
#include "io/tokenizer/json_loader.h"

static const char vocab_name[] = "vocab.json", merges_name[] = "merges.txt",
                  end_of_text[] = "<|endoftext|>";

/* ---- vocab.json */

/* The ids are 0 .. n - 1, each once. */
static enum status load_vocab(struct tokenizer_bpe *t)
{
  const struct file_path path = file_path(t->base.folder, vocab_name);
  struct json_file file = {0};
  enum status status = json_read(path.text, TOKENIZER_FILE_MOST, &file);
  if (!status) {
    const struct json_node root = json_get_object(json_root(&file));
    t->base.vocab = (int64_t)json_length(root);
    if (!file.status && !json_keep(&file, bpe_create(t->base.vocab, &t->bpe)))
      json_load_vocab(t, root);
    status = file.status;
  }
  json_close(&file);
  if (status)
    return status;
  t->base.end_of_text = bpe_find(t->bpe, end_of_text, sizeof end_of_text - 1);
  return t->base.end_of_text >= 0
             ? STATUS_OK
             : status_set(STATUS_INPUT, "%s has no token %s", path.text, end_of_text);
}

/* ---- merges.txt */

static enum status line_fail(const struct tokenizer_bpe *t, int64_t line, const char *problem)
{
  return status_set(STATUS_INPUT, "%s, line %lld: %s", file_path(t->base.folder, merges_name).text,
                    (long long)line, problem);
}

/* "LEFT RIGHT", which is overwritten. */
static enum status read_merge(struct tokenizer_bpe *t, char *text, size_t bytes, int64_t line)
{
  struct bpe *bpe = t->bpe;
  const char *space = memchr(text, ' ', bytes);
  const size_t left = space ? (size_t)(space - text) : 0;
  int32_t id[3];
  if (left == 0 || left + 1 == bytes || memchr(space + 1, ' ', bytes - left - 1))
    return line_fail(t, line, "not two pieces with one space between them");
  if (!bpe_find_merge(bpe, text, left, space + 1, bytes - left - 1, text, id))
    return line_fail(t, line, "a character that stands for no byte");
  if (id[2] < 0)
    return line_fail(t, line, "the joined piece is not in vocab.json");
  if (id[0] < 0 || id[1] < 0)
    return line_fail(t, line, "a piece is not in vocab.json");
  if (!bpe_is_made(bpe, id[0]) || !bpe_is_made(bpe, id[1]))
    return line_fail(t, line, "a piece that is neither a byte nor made by an earlier line");
  if (id[2] == t->base.end_of_text)
    return line_fail(t, line, "the end of text cannot be made from text");
  return bpe_add_merge(bpe, id[0], id[1], id[2])
             ? STATUS_OK
             : line_fail(t, line, "a pair that was given before");
}

static enum status read_merges(struct tokenizer_bpe *t, char *text, size_t bytes)
{
  int64_t lines = 1, line = 1;
  for (size_t i = 0; i < bytes; i++)
    lines += text[i] == '\n';
  enum status status = bpe_reserve_merges(t->bpe, lines, false);
  for (char *at = text, *end = text + bytes; !status && at < end; line++) {
    char *stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop)
      stop = end;
    size_t length = (size_t)(stop - at);
    if (length && at[length - 1] == '\r')
      length--;
    if (line > 1 || length < 8 || memcmp(at, "#version", 8) != 0)
      status = read_merge(t, at, length, line);
    at = stop + (stop < end);
  }
  return status;
}

static enum status load_merges(struct tokenizer_bpe *t)
{
  const struct file_path path = file_path(t->base.folder, merges_name);
  char *text = NULL;
  size_t bytes = 0;
  enum status status = file_read_all(path.text, TOKENIZER_FILE_MOST, &text, &bytes);
  if (status)
    return status;
  int64_t invalid = utf8_find_invalid(text, bytes);
  if (invalid >= 0)
    status =
        status_set(STATUS_INPUT, "%s, byte %lld: not valid UTF-8", path.text, (long long)invalid);
  else
    status = read_merges(t, text, bytes);
  mem_free(text);
  return status;
}

/* ---- */

static enum status load(struct tokenizer *tokenizer)
{
  struct tokenizer_bpe *t = (struct tokenizer_bpe *)tokenizer;
  return load_vocab(t)
         ?: load_merges(t)
         ?: tokenizer_bpe_add_step(t, vocab_name, STEP_SPLIT,
                                   &(struct split_rule){.pattern = split_pattern("gpt2")});
}

const struct tokenizer_ops tokenizer_gpt2 = {.name = "gpt2",
                                             .bytes = sizeof(struct tokenizer_bpe),
                                             .files = {vocab_name, merges_name},
                                             .load = load,
                                             .clear = tokenizer_bpe_clear,
                                             .encode = tokenizer_bpe_encode,
                                             .text_of = tokenizer_bpe_text_of,
                                             .meaning = tokenizer_bpe_meaning};
