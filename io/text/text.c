#include "io/text/text.h"

#include <string.h>

#include "base/mem.h"
#include "io/text/json.h"
#include "io/text/utf8.h"

enum text_format { TEXT_PLAIN, TEXT_JSON_LINES, TEXT_JSON_ARRAY };

struct text {
  struct text_input *input;
  enum text_format format;
  struct text_position at;
  size_t block;      /* plain text: bytes of the last block, still in the buffer */
  bool array_closed; /* the ']' of the array is read */
  struct text_buffer key, title, body, document;
  char *replaced; /* the document with U+FFFD in it */
  int64_t replaced_room;
};

static bool is_space(int byte)
{
  return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static bool is_blank(const char *text, size_t bytes)
{
  size_t i = 0;
  while (i < bytes && is_space(text[i]))
    i++;
  return i == bytes;
}

static bool ends_with(const char *name, const char *ending)
{
  size_t length = strlen(name), tail = strlen(ending);
  return length > tail && strcmp(name + length - tail, ending) == 0;
}

/* The first two bytes of a file that are not white space, 0 where there is none within the first
 * bytes. */
static enum status first_bytes(struct text_input *input, char out[2])
{
  enum { LOOK = 4096 };
  int found = 0;
  out[0] = out[1] = '\0';
  enum status status = text_input_fill(input, LOOK);
  for (size_t i = input->at; i < input->end && i < input->at + LOOK && found < 2; i++)
    if (!is_space(input->buffer[i]))
      out[found++] = input->buffer[i];
  return status;
}

static enum status find_format(const char *path, struct text_input *input, enum text_format *out)
{
  char first[2];
  enum status status = first_bytes(input, first);
  if (status)
    return status;
  if (ends_with(path, ".txt"))
    *out = TEXT_PLAIN;
  else if (ends_with(path, ".jsonl") || ends_with(path, ".ndjson"))
    *out = TEXT_JSON_LINES;
  else if (ends_with(path, ".json"))
    *out = first[0] == '[' ? TEXT_JSON_ARRAY : TEXT_JSON_LINES;
  else
    *out = memcmp(first, "[{", 2) == 0    ? TEXT_JSON_ARRAY
           : memcmp(first, "{\"", 2) == 0 ? TEXT_JSON_LINES
                                          : TEXT_PLAIN;
  return STATUS_OK;
}

static enum status open_text(const char *path, struct text_position from, bool replacing,
                             struct text **out)
{
  struct text *text = NULL;
  enum status status = mem_new(MEM_DATA, 1, &text);
  if (status)
    return status;
  text->at = from;
  status = replacing ? text_input_open_unchecked(path, &text->input)
                     : text_input_open(path, &text->input);
  if (status == STATUS_OK)
    status = find_format(path, text->input, &text->format);
  if (status == STATUS_OK && from.byte > 0)
    status = text_input_seek(text->input, from.byte);
  if (status)
    text_close(text);
  else
    *out = text;
  return status;
}

enum status text_open(const char *path, struct text_position from, struct text **out)
{
  return open_text(path, from, false, out);
}

enum status text_open_replacing(const char *path, struct text_position from, struct text **out)
{
  return open_text(path, from, true, out);
}

void text_close(struct text *text)
{
  if (!text)
    return;
  text_input_close(text->input);
  text_buffer_free(&text->key);
  text_buffer_free(&text->title);
  text_buffer_free(&text->body);
  text_buffer_free(&text->document);
  mem_free(text->replaced);
  mem_free(text);
}

/* The byte after the blank line that begins after the line end before `i`; 0 if that line is not
 * blank, or ends outside of the window. */
static size_t blank_line_end(const char *window, size_t bytes, size_t i)
{
  while (i < bytes && (window[i] == ' ' || window[i] == '\t' || window[i] == '\r'))
    i++;
  return i < bytes && window[i] == '\n' ? i + 1 : 0;
}

static bool continues(char byte)
{
  return ((unsigned char)byte & 0xC0) == 0x80;
}

/* Where the last character begins; `bytes` if the last bytes are no character. */
static size_t last_character(const char *window, size_t bytes)
{
  size_t begin = bytes - 1;
  while (begin + 4 > bytes && continues(window[begin]))
    begin--;
  return continues(window[begin]) ? bytes : begin;
}

/* Bytes of the first block of the window, which is TEXT_BLOCK_MOST long unless the file ends in
 * it. */
static size_t block_length(const char *window, size_t bytes)
{
  size_t last_line = 0, last_space = 0;
  for (size_t i = TEXT_BLOCK_LEAST; i < bytes;) {
    const char *line = memchr(window + i, '\n', bytes - i);
    if (!line)
      break;
    i = (size_t)(line - window) + 1;
    size_t blank = blank_line_end(window, bytes, i);
    if (blank)
      return blank;
    last_line = i;
  }
  if (bytes < TEXT_BLOCK_MOST)
    return bytes;
  if (last_line)
    return last_line;
  for (size_t i = bytes; i > TEXT_BLOCK_LEAST && !last_space; i--)
    if (window[i - 1] == ' ')
      last_space = i;
  return last_space ? last_space : last_character(window, bytes);
}

static enum status next_block(struct text *text, struct text_document *out, bool *found)
{
  struct text_input *input = text->input;
  input->at += text->block;
  text->block = 0;
  enum status status =
      text_input_fill(input, TEXT_BLOCK_MOST + 1); /* one byte more, to know the last block */
  if (status)
    return status;
  size_t left = input->end - input->at;
  const char *window = input->buffer + input->at;
  *found = left > 0;
  if (left == 0)
    return STATUS_OK;
  text->block = block_length(window, left < TEXT_BLOCK_MOST ? left : TEXT_BLOCK_MOST);
  text->at.byte = text_input_offset(input) + (int64_t)text->block;
  out->text = window;
  out->bytes = text->block;
  out->begins = text->at.number == 0;
  out->ends = text->block == left;
  return STATUS_OK;
}

/* One member of a document's object. */
static enum status read_member(struct text *text, bool *has_title, bool *has_text)
{
  struct text_input *input = text->input;
  int byte = -1;
  enum status status = json_peek(input, &byte);
  if (status)
    return status;
  int64_t begin = text_input_offset(input);
  text->key.bytes = 0;
  status = json_string(input, &text->key);
  if (status == STATUS_OK)
    status = json_expect(input, ':', "':'");
  if (status)
    return status;

  bool is_title = text->key.bytes == 5 && memcmp(text->key.data, "title", 5) == 0;
  bool is_text = text->key.bytes == 4 && memcmp(text->key.data, "text", 4) == 0;
  if (!is_title && !is_text)
    return json_skip(input);
  bool *has = is_title ? has_title : has_text;
  if (*has)
    return text_input_fail(input, begin, "a second \"%s\" in one object",
                           is_title ? "title" : "text");
  *has = true;
  status = json_peek(input, &byte);
  if (status)
    return status;
  if (byte != '"')
    return json_unexpected(input, is_title ? "a string as \"title\"" : "a string as \"text\"");
  return json_string(input, is_title ? &text->title : &text->body);
}

static enum status read_object(struct text *text)
{
  struct text_input *input = text->input;
  bool has_title = false, has_text = false, more = false;
  text->title.bytes = text->body.bytes = 0;
  enum status status = json_expect(input, '{', "an object, '{',");
  int64_t begin = text_input_offset(input) - 1;
  if (status == STATUS_OK)
    status = json_enter(input, '}', &more);
  while (status == STATUS_OK && more) {
    status = read_member(text, &has_title, &has_text);
    if (status == STATUS_OK)
      status = json_more(input, '}', &more);
  }
  if (status)
    return status;
  return has_text ? STATUS_OK : text_input_fail(input, begin, "an object without \"text\"");
}

/* title, newline, text. */
static enum status join(struct text *text, int64_t begin, struct text_document *out)
{
  out->text = text->body.data;
  out->bytes = text->body.bytes;
  if (text->title.bytes == 0)
    return STATUS_OK;
  text->document.bytes = 0;
  enum status status = text_buffer_append(&text->document, text->title.data, text->title.bytes);
  if (status == STATUS_OK)
    status = text_buffer_append(&text->document, "\n", 1);
  if (status == STATUS_OK)
    status = text_buffer_append(&text->document, text->body.data, text->body.bytes);
  out->text = text->document.data;
  out->bytes = text->document.bytes;
  return status == STATUS_INPUT
             ? status_prefix(status, "%s, byte %lld", text->input->path, (long long)begin)
             : status;
}

/* Moves to the next object of JSON Lines. The line of the last object must end before it. */
static enum status next_line(struct text *text, bool *found)
{
  struct text_input *input = text->input;
  bool line_ended = text->at.number == 0;
  int byte = -1;
  for (;;) {
    enum status status = text_input_fill(input, 1);
    if (status)
      return status;
    byte = input->at < input->end ? (unsigned char)input->buffer[input->at] : -1;
    if (byte != ' ' && byte != '\t' && byte != '\r' && byte != '\n')
      break;
    line_ended = line_ended || byte == '\n';
    input->at++;
  }
  *found = byte >= 0;
  return byte >= 0 && !line_ended ? json_unexpected(input, "the end of the line") : STATUS_OK;
}

/* Moves to the next object of an array; after the last one, to the end of the file. */
static enum status next_element(struct text *text, bool *found)
{
  struct text_input *input = text->input;
  int byte = -1;
  bool first = text->at.number == 0;
  *found = false;
  if (text->array_closed)
    return STATUS_OK;
  enum status status = first ? json_expect(input, '[', "an array, '[',") : STATUS_OK;
  if (status == STATUS_OK)
    status = json_peek(input, &byte);
  if (status)
    return status;
  if (byte != ']') {
    *found = true;
    return first ? STATUS_OK : json_expect(input, ',', "',' or ']'");
  }
  input->at++;
  text->array_closed = true;
  status = json_peek(input, &byte);
  return status == STATUS_OK && byte >= 0
             ? json_unexpected(input, "the end of the file after the array")
             : status;
}

static enum status next_json(struct text *text, struct text_document *out, bool *found)
{
  int byte = -1;
  enum status status =
      text->format == TEXT_JSON_ARRAY ? next_element(text, found) : next_line(text, found);
  if (status || !*found)
    return status;
  status = json_peek(text->input, &byte);
  int64_t begin = text_input_offset(text->input);
  if (status == STATUS_OK)
    status = read_object(text);
  if (status == STATUS_OK)
    status = join(text, begin, out);
  text->at.byte = text_input_offset(text->input);
  out->begins = out->ends = true;
  return status;
}

static enum status replace_invalid(struct text *text, struct text_document *out)
{
  int64_t bytes = 0;
  if (!text->input->unchecked || utf8_find_invalid(out->text, out->bytes) < 0)
    return STATUS_OK;
  enum status status =
      utf8_replace(out->text, out->bytes, &text->replaced, &bytes, &text->replaced_room);
  out->text = text->replaced;
  out->bytes = (size_t)bytes;
  return status;
}

enum status text_next(struct text *text, struct text_document *out, bool *found)
{
  for (;;) {
    enum status status =
        text->format == TEXT_PLAIN ? next_block(text, out, found) : next_json(text, out, found);
    if (status || !*found)
      return status;
    out->number = text->at.number++;
    out->after = text->at;
    if (!out->begins || !out->ends || !is_blank(out->text, out->bytes))
      return replace_invalid(text, out);
  }
}
