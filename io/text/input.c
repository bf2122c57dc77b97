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

enum status text_input_keep(struct text_input *input, int64_t offset, enum status status)
{
  if (input->status)
    return input->status;
  if (status == STATUS_INPUT) {
    char sentence[2048], place[48] = "";
    snprintf(sentence, sizeof sentence, "%s", status_text());
    const int64_t line = input->by_lines ? line_of(input, offset) : 0;
    if (line > 0)
      snprintf(place, sizeof place, ", line %lld", (long long)line);
    status_set(status, "%s%s, byte %lld: %s", input->path, place, (long long)offset, sentence);
  }
  return input->status = status;
}

enum status text_input_fail(struct text_input *input, int64_t offset, const char *format, ...)
{
  char text[1024];
  va_list args;
  if (input->status)
    return input->status;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return text_input_keep(input, offset, status_set(STATUS_INPUT, "%s", text));
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
  status = (input->path ? mem_new(MEM_DATA, text_input_room, &input->buffer) : STATUS_MEMORY)
           ?: text_source_open(input->path, &input->source)
           ?: text_input_seek(input, 0);
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
  input->status = text_source_seek(input->source, offset);
  if (input->status)
    return input->status;
  input->at = input->end = input->filled = 0;
  input->base = offset;
  input->at_eof = false;
  if (offset == 0 && !text_input_fill(input, BOM_BYTES) && input->end >= BOM_BYTES &&
      memcmp(input->buffer, byte_order_mark, BOM_BYTES) == 0)
    input->at = BOM_BYTES;
  return input->status;
}

static enum status copy_read(struct text_input *input)
{
  const size_t from = input->copied;
  input->copied = input->at;
  return input->copy ? text_buffer_append(input->copy, input->buffer + from, input->at - from)
                     : STATUS_OK;
}

enum status text_input_copy(struct text_input *input, struct text_buffer *out)
{
  const enum status status = copy_read(input);
  input->copy = out;
  return text_input_keep(input, text_input_offset(input), status);
}

static enum status make_room(struct text_input *input, size_t want)
{
  const enum status copied = copy_read(input);
  if (copied)
    return text_input_keep(input, text_input_offset(input), copied);
  size_t kept = input->filled - input->at;
  input->copied = 0;
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
static void check_fresh(struct text_input *input)
{
  const char *fresh = input->buffer + input->end;
  const size_t bytes = input->filled - input->end;
  const int64_t invalid = input->invalid == TEXT_REFUSE ? utf8_find_invalid(fresh, bytes) : -1;
  const size_t valid = invalid < 0 ? bytes : (size_t)invalid;
  const char *nul = input->invalid == TEXT_REFUSE ? memchr(fresh, '\0', valid) : NULL;
  if (nul)
    text_input_fail(input, input->base + (nul - input->buffer),
                    "a NUL byte: this is not a text file");
  else if (invalid >= 0 && (input->at_eof || bytes - valid > 3))
    text_input_fail(
        input, input->base + (int64_t)input->end + invalid,
        "not valid UTF-8 (0x%02X); convert the text to UTF-8 first (iconv), or repair it",
        (unsigned char)fresh[invalid]);
  else
    input->end += valid;
}

enum status text_input_fill(struct text_input *input, size_t want)
{
  if (input->status || input->end - input->at >= want ||
      (input->at_eof && input->end == input->filled))
    return input->status;
  input->status = make_room(input, want);
  while (!input->status && input->end < want && !input->at_eof) {
    size_t got = 0;
    input->status = text_source_read(input->source, input->buffer + input->filled,
                                     input->room - input->filled, &got);
    if (input->status)
      break;
    input->at_eof = got == 0;
    input->filled += got;
    check_fresh(input);
  }
  return input->status;
}

void text_buffer_free(struct text_buffer *buffer)
{
  mem_free(buffer->data);
  *buffer = (struct text_buffer){0};
}

void text_buffer_clear(struct text_buffer *buffer)
{
  buffer->status = STATUS_OK;
  buffer->bytes = 0;
}

static enum status reserve(struct text_buffer *buffer, size_t bytes)
{
  const size_t most = buffer->most ?: text_document_most;
  if (buffer->status)
    return buffer->status;
  if (bytes > most || buffer->bytes > most - bytes)
    return buffer->status =
               status_set(STATUS_INPUT, "more than %zu MiB in one document; split it", most >> 20);
  return buffer->status = mem_grow(MEM_DATA, (void **)&buffer->data, &buffer->room,
                                   (int64_t)(buffer->bytes + bytes), 1);
}

enum status text_buffer_append(struct text_buffer *buffer, const char *data, size_t bytes)
{
  if (reserve(buffer, bytes))
    return buffer->status;
  if (bytes)
    memcpy(buffer->data + buffer->bytes, data, bytes);
  buffer->bytes += bytes;
  return STATUS_OK;
}

enum status text_buffer_print(struct text_buffer *buffer, const char *format, ...)
{
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const size_t bytes = (size_t)vsnprintf(NULL, 0, format, args);
  if (!reserve(buffer, bytes + 1)) {
    vsnprintf(buffer->data + buffer->bytes, bytes + 1, format, again);
    buffer->bytes += bytes;
  }
  va_end(again);
  va_end(args);
  return buffer->status;
}
