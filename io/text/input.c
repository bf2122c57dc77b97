#include "io/text/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/open.h"
#include "io/text/utf8.h"

enum { BOM_BYTES = 3 };

size_t text_document_most = (size_t)256 << 20;
int64_t text_input_room = 256 << 10;

static const char byte_order_mark[] = "\xEF\xBB\xBF";

static enum status failed(const struct text_input *input, const char *doing)
{
  return status_set(STATUS_IO, "cannot %s %s: %s", doing, input->path, strerror(errno));
}

enum status text_input_fail(const struct text_input *input, int64_t offset, const char *format, ...)
{
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return status_set(STATUS_INPUT, "%s, byte %lld: %s", input->path, (long long)offset, text);
}

static enum status open_input(const char *path, bool unchecked, struct text_input **out)
{
  struct text_input *input = NULL;
  enum status status = mem_new(MEM_DATA, 1, &input);
  if (status)
    return status;
  *input = (struct text_input){
      .fd = -1, .unchecked = unchecked, .room = text_input_room, .path = mem_strdup(path)};
  status = input->path ? mem_new(MEM_DATA, text_input_room, &input->buffer) : STATUS_MEMORY;
  if (!status)
    input->fd = open(path, O_RDONLY | O_CLOEXEC);
  if (!status && input->fd < 0)
    status = open_unreadable(errno, path);
  if (!status)
    status = text_input_seek(input, 0);
  if (status)
    text_input_close(input);
  else
    *out = input;
  return status;
}

enum status text_input_open(const char *path, struct text_input **out)
{
  return open_input(path, false, out);
}

enum status text_input_open_unchecked(const char *path, struct text_input **out)
{
  return open_input(path, true, out);
}

void text_input_close(struct text_input *input)
{
  if (!input)
    return;
  if (input->fd >= 0)
    close(input->fd); /* was only read: nothing can be lost */
  mem_free(input->buffer);
  mem_free(input->path);
  mem_free(input);
}

enum status text_input_seek(struct text_input *input, int64_t offset)
{
  if (lseek(input->fd, (off_t)offset, SEEK_SET) != (off_t)offset)
    return failed(input, "seek in");
  input->at = input->end = input->filled = 0;
  input->base = offset;
  input->at_eof = false;
  if (offset != 0)
    return STATUS_OK;
  enum status status = text_input_fill(input, BOM_BYTES);
  if (status == STATUS_OK && input->end >= BOM_BYTES &&
      memcmp(input->buffer, byte_order_mark, BOM_BYTES) == 0)
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
  if (status == STATUS_OK)
    input->room = room;
  return status;
}

/* Invalid bytes among the last three may be a character that the next read completes. */
static enum status check_fresh(struct text_input *input)
{
  const char *fresh = input->buffer + input->end;
  size_t bytes = input->filled - input->end;
  int64_t invalid = input->unchecked ? -1 : utf8_find_invalid(fresh, bytes);
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
  int byte = (unsigned char)fresh[invalid];
  if (where == 0 && byte >= 0xFE)
    return text_input_fail(
        input, where, "the text is UTF-16; convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)");
  return text_input_fail(
      input, where,
      "not valid UTF-8 (0x%02X); convert the text to UTF-8 first (iconv), or repair it", byte);
}

enum status text_input_fill(struct text_input *input, size_t want)
{
  if (input->end - input->at >= want || (input->at_eof && input->end == input->filled))
    return STATUS_OK;
  enum status status = make_room(input, want);
  while (status == STATUS_OK && input->end < want && !input->at_eof) {
    ssize_t got = read(input->fd, input->buffer + input->filled, input->room - input->filled);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return failed(input, "read");
    input->at_eof = got == 0;
    input->filled += (size_t)got;
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
