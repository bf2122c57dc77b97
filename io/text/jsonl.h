/* A reader of JSON (RFC 8259) from a file's bytes. It builds no tree and holds only the string
 * being read, so files of any size can be read value by value. In strings that it hands out it
 * refuses \u0000 and escapes that are no character (half surrogate pairs), unless input->invalid
 * says otherwise. Values that it skips may have them, and may be NaN, Infinity or -Infinity, which
 * Python writes. Errors name file and byte. Private to io/. */
#ifndef SLUICE_IO_TEXT_JSONL_H
#define SLUICE_IO_TEXT_JSONL_H

#include "io/text/input.h"

/* The next byte that is not white space, not taken; -1 at the end of the file. */
enum status jsonl_peek(struct text_input *input, int *byte);
/* Take `byte` after white space. `where` ends the error message. For "expected ',' or ']' after
 * ..." the caller uses jsonl_unexpected(). */
enum status jsonl_expect(struct text_input *input, char byte, const char *expected);
/* STATUS_INPUT: "expected EXPECTED, found ..." (or "the file ends where EXPECTED should be") at the
 * next byte. */
enum status jsonl_unexpected(struct text_input *input, const char *expected);

/* The members of an object (`closing` '}') or the elements of an array (']'). Call it after the
 * opening bracket, and after each member or element. *more: another one follows; otherwise it takes
 * the closing bracket. */
enum status jsonl_enter(struct text_input *input, char closing, bool *more);
enum status jsonl_more(struct text_input *input, char closing, bool *more);

/* A string, appended to *out; out NULL: only checked. U+FFFD in place of an escape sets
 * input->replaced. */
enum status jsonl_string(struct text_input *input, struct text_buffer *out);
/* A string that is only compared: U+FFFD in place of any such escape. */
enum status jsonl_loose_string(struct text_input *input, struct text_buffer *out);
/* Any value, checked and skipped. */
enum status jsonl_skip(struct text_input *input);

#endif
