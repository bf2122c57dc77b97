/* The bytes of a text file through a buffer, each checked before it is handed out: UTF-8 without
 * NUL. Errors name the file and the byte, counted from 0. Private to io/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The treatment of bytes that are no UTF-8, NUL bytes, and escapes that are no character. */
enum text_invalid {
  TEXT_REFUSE,
  TEXT_REPLACE, /* U+FFFD in their place */
  TEXT_SKIP     /* leave out the record that has them */
};

/* Bytes that grow, with a limit. The first failure stays until text_buffer_clear(): later calls do
 * nothing. */
struct text_buffer {
  enum status status;
  char *data;
  size_t bytes;
  int64_t room;
  size_t most; /* bytes; 0: text_document_most */
};

struct text_input {
  enum status status; /* the first failure, which stays */
  char *path;
  struct text_source *source;
  char *buffer;
  size_t room;
  size_t at, end; /* buffer[at .. end) is checked and unread; `end` is never inside a character */
  size_t
      filled; /* buffer[end .. filled) is the beginning of a character whose rest is not read yet */
  int64_t base;              /* byte of the file in buffer[0] */
  bool at_eof;               /* the file has no bytes after `filled` */
  enum text_invalid invalid; /* unless TEXT_REFUSE, any bytes: the reader handles them */
  bool replaced;             /* the reader put U+FFFD into a string */
  bool by_lines;             /* messages name the line, too */
  bool one_line;             /* a line end is no white space of JSON */
  struct text_buffer *copy;  /* gets the bytes that are read; NULL: none does */
  size_t copied;             /* of buffer[0 .. at), those that it has, or that are before it */
};

enum status text_input_open(const char *path, enum text_invalid invalid, bool by_lines,
                            struct text_input **out);
void text_input_close(struct text_input *input); /* takes NULL */

/* Go on at byte `offset`, which begins a character. A byte order mark at byte 0 is skipped. */
enum status text_input_seek(struct text_input *input, int64_t offset);

/* Make at least `want` bytes readable at `at`, or all that are left. */
enum status text_input_fill(struct text_input *input, size_t want);

/* From here on, what is read is appended to *out, too. NULL ends this: the buffer then has all up
 * to the byte that is read next. */
enum status text_input_copy(struct text_input *input, struct text_buffer *out);

/* The byte of the file that is read next. */
static inline int64_t text_input_offset(const struct text_input *input)
{
  return input->base + (int64_t)input->at;
}

/* STATUS_INPUT with "PATH, byte OFFSET: TEXT", or "PATH, line N, byte OFFSET: TEXT". */
enum status text_input_fail(struct text_input *input, int64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Keeps a failure of another call, unless there was one before. Puts the same in front of the
 * sentence of STATUS_INPUT. Both return input->status. */
enum status text_input_keep(struct text_input *input, int64_t offset, enum status status);

extern size_t text_document_most; /* bytes of a document, or of any other string of a file: 256 MiB;
                                     tests lower it */
extern int64_t text_input_room;   /* bytes read at a time: 256 KiB; tests lower it */
void text_buffer_free(struct text_buffer *buffer);  /* takes a zeroed one */
void text_buffer_clear(struct text_buffer *buffer); /* keeps the memory */
/* STATUS_INPUT if the limit is exceeded. Returns buffer->status. */
enum status text_buffer_append(struct text_buffer *buffer, const char *data, size_t bytes);
/* A formatted text. Its NUL follows, and is not counted. */
enum status text_buffer_print(struct text_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
