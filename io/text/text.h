/* A text file as a stream of documents. Only one document, or one buffer, is in memory. Private to
 * io/.
 *
 * Plain text: a file's blocks. A block ends after the first blank line at or past TEXT_BLOCK_LEAST
 * bytes. If there is none before TEXT_BLOCK_MOST, it ends after the last line end, else the last
 * space, else the last character before it. JSON Lines (one object per line) and a JSON array of
 * objects: each object is a document. Its "title", if there is one, and its text are joined by a
 * newline; other keys are ignored. An object without a text that has "messages", or "prompt" and
 * "completion", is a conversation. One with "chosen" or "rejected" is a pair of them. A document
 * that holds only white space is skipped, but counted in `number`. A block of plain text is skipped
 * only if it is the whole file.
 *
 * Files may be compressed by gzip or zstd (io/text/source.h). The name's ending, without .gz or
 * .zst, selects the format. White space at the beginning is ignored.
 *   .txt             plain text
 *   .jsonl, .ndjson  an array if the file begins with '[' and then '{' or ']', else JSON Lines
 *   .json            an array if the file begins with '[', else JSON Lines
 *   others           '[' and '{': an array; '{' and '"': JSON Lines; else plain text */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/text/input.h"

enum { TEXT_BLOCK_LEAST = 16 << 10, TEXT_BLOCK_MOST = 1 << 20 };

/* Where a stream continues: the byte after a document, and the number of the next one. {0, 0} is
 * the beginning. */
struct text_position {
  int64_t byte, number;
};

struct text_document {
  const char *text; /* valid until the next call */
  size_t bytes;
  bool is_chat;      /* the text is the JSON object of a conversation, or of a pair */
  int64_t number;    /* 0, 1, 2, ... in the file */
  int64_t document;  /* likewise, but 0 for all blocks of a plain text */
  bool begins, ends; /* a document, as every object does; in plain text only the first block begins
                        one, and only the last block ends it */
  struct text_position after;
};

struct text_options {
  const char *key; /* of the text in objects; NULL: "text" */
  bool chats;      /* conversations are handed out; else they are objects without a text */
  /* TEXT_SKIP leaves out objects whose text is missing, no string, blank or not valid. In JSON
   * Lines an object has one line, and lines that are no JSON are left out too. Plain text is
   * refused as with TEXT_REFUSE. */
  enum text_invalid invalid;
};

struct text;
/* Whether the name of a file is that of JSON. */
bool text_is_json_name(const char *path);
/* options NULL: as they are if zeroed. */
enum status text_open(const char *path, struct text_position from,
                      const struct text_options *options, struct text **out);
/* Objects that were left out since the file was opened. Without TEXT_SKIP: blank ones. */
int64_t text_skipped(const struct text *text);
void text_close(struct text *text); /* takes NULL */
/* *found false at the end of the file. Broken UTF-8 or JSON, a missing or repeated text, too
 * large a document: STATUS_INPUT naming file and byte (from 0), and the line in JSON. */
enum status text_next(struct text *text, struct text_document *out, bool *found);
