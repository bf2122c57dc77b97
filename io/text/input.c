/* A window over a text file. Bytes are handed out only after their UTF-8 is checked. */
#include "io/text/input.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "io/text/source.h"
#include "io/text/utf8.h"

enum { BOM_BYTES = 3 };

size_t text_document_most = (size_t)256 << 20;
int64_t text_input_room = 256 << 10;

static const char byte_order_mark[] = "\xEF\xBB\xBF";

/* Lines are counted when a message needs their number. */
static int64_t line_of(const struct text_input *input, int64_t offset)
{
  struct text_source *source = NULL;
  char piece[4096];
  int64_t line = 1;
  size_t got = 0;
  if (text_source_open(input->path, &source))
    return 0;
  for (int64_t left = offset; left > 0; left -= (int64_t)got) {
    const size_t want = left < (int64_t)sizeof piece ? (size_t)left : sizeof piece;
    if (text_source_read(source, piece, want, &got) || got == 0)
      break;
    for (size_t i = 0; i < got; i++)
      line += piece[i] == '\n';
  }
  text_source_close(source);
  return line;
}

enum status text_input_prefix(const struct text_input *input, int64_t offset, enum status status)
{
  char sentence[2048];
  snprintf(sentence, sizeof sentence, "%s", status_text());
  const int64_t line = input->by_lines ? line_of(input, offset) : 0;
  if (line > 0)
    return status_set(status, "%s, line %lld, byte %lld: %s", input->path, (long long)line,
                      (long long)offset, sentence);
  return status_set(status, "%s, byte %lld: %s", input->path, (long long)offset, sentence);
}

enum status text_input_fail(const struct text_input *input, int64_t offset, const char *format, ...)
{
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return text_input_prefix(input, offset, status_set(STATUS_INPUT, "%s", text));
}

enum status text_input_open(const char *path, enum text_invalid invalid, bool by_lines,
                            struct text_input **out)
{
  struct text_input *input = NULL;
  enum status status = mem_new(MEM_DATA, 1, &input);
  if (status)
    return status;
  *input = (struct text_input){.invalid = invalid,
                               .by_lines = by_lines,
                               .room = (size_t)text_input_room,
                               .path = mem_strdup(path)};
  status = input->path ? mem_new(MEM_DATA, text_input_room, &input->buffer) : STATUS_MEMORY;
  if (!status)
    status = text_source_open(input->path, &input->source);
  if (!status)
    status = text_input_seek(input, 0);
  if (status)
    text_input_close(input);
  else
    *out = input;
  return status;
}

void text_input_close(struct text_input *input)
{
  if (!input)
    return;
  text_source_close(input->source);
  mem_free(input->buffer);
  mem_free(input->path);
  mem_free(input);
}

enum status text_input_seek(struct text_input *input, int64_t offset)
{
  enum status status = text_source_seek(input->source, offset);
  if (status)
    return status;
  input->at = input->end = input->filled = 0;
  input->base = offset;
  input->at_eof = false;
  if (offset != 0)
    return STATUS_OK;
  status = text_input_fill(input, BOM_BYTES);
  if (!status && input->end >= BOM_BYTES && memcmp(input->buffer, byte_order_mark, BOM_BYTES) == 0)
    input->at = BOM_BYTES;
  return status;
}

static enum status make_room(struct text_input *input, size_t want)
{
  size_t kept = input->filled - input->at;
  memmove(input->buffer, input->buffer + input->at, kept);
  input->base += (int64_t)input->at;
  input->end -= input->at;
  input->filled = kept;
  input->at = 0;
  if (want <=
      input->room - 4) /* room for one more character, so that a read never asks for 0 bytes */
    return STATUS_OK;
  size_t room = 4 * want; /* so that a sliding window of `want` bytes is seldom moved */
  enum status status = mem_resize(MEM_DATA, room, (void **)&input->buffer);
  if (!status)
    input->room = room;
  return status;
}

/* Invalid bytes among the last three may be a character that the next read completes. */
static enum status check_fresh(struct text_input *input)
{
  const char *fresh = input->buffer + input->end;
  size_t bytes = input->filled - input->end;
  if (input->invalid != TEXT_REFUSE) {
    input->end = input->filled;
    return STATUS_OK;
  }
  int64_t invalid = utf8_find_invalid(fresh, bytes);
  const char *nul = memchr(fresh, '\0', invalid < 0 ? bytes : (size_t)invalid);
  if (nul)
    return text_input_fail(input, input->base + (nul - input->buffer),
                           "a NUL byte: this is not a text file");
  if (invalid < 0) {
    input->end = input->filled;
    return STATUS_OK;
  }
  int64_t where = input->base + (int64_t)input->end + invalid;
  if (!input->at_eof && bytes - (size_t)invalid <= 3) {
    input->end += (size_t)invalid;
    return STATUS_OK;
  }
  return text_input_fail(
      input, where,
      "not valid UTF-8 (0x%02X); convert the text to UTF-8 first (iconv), or repair it",
      (unsigned char)fresh[invalid]);
}

enum status text_input_fill(struct text_input *input, size_t want)
{
  if (input->end - input->at >= want || (input->at_eof && input->end == input->filled))
    return STATUS_OK;
  enum status status = make_room(input, want);
  while (!status && input->end < want && !input->at_eof) {
    size_t got = 0;
    status = text_source_read(input->source, input->buffer + input->filled,
                              input->room - input->filled, &got);
    if (status)
      return status;
    input->at_eof = got == 0;
    input->filled += got;
    status = check_fresh(input);
  }
  return status;
}

void text_buffer_free(struct text_buffer *buffer)
{
  mem_free(buffer->data);
  *buffer = (struct text_buffer){0};
}

enum status text_buffer_append(struct text_buffer *buffer, const char *data, size_t bytes)
{
  if (bytes > text_document_most || buffer->bytes > text_document_most - bytes)
    return status_set(STATUS_INPUT, "more than %zu MiB in one document; split it",
                      text_document_most >> 20);
  enum status status = mem_grow(MEM_DATA, (void **)&buffer->data, &buffer->room,
                                (int64_t)(buffer->bytes + bytes), 1);
  if (status)
    return status;
  if (bytes)
    memcpy(buffer->data + buffer->bytes, data, bytes);
  buffer->bytes += bytes;
  return STATUS_OK;
}

enum status text_buffer_append_line(struct text_buffer *buffer, const char *line)
{
  const enum status status = text_buffer_append(buffer, line, strlen(line));
  return status ? status : text_buffer_append(buffer, "\n", 1);
}
