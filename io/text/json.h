/* A reader of JSON (RFC 8259) from a file's bytes. It builds no tree and holds only the string
 * being read, so files of any size can be read value by value. In strings that it hands out it
 * refuses \u0000 and escapes that are no character (half surrogate pairs), unless input->invalid
 * says otherwise. Values that it skips may have them, and may be NaN, Infinity or -Infinity, which
 * Python writes. Errors name file and byte. Private to io/. */
#ifndef SLUICE_IO_TEXT_JSON_H
#define SLUICE_IO_TEXT_JSON_H

#include "io/text/input.h"

/* The next byte that is not white space, not taken; -1 at the end of the file. */
enum status json_peek(struct text_input *input, int *byte);
/* Take `byte` after white space. `where` ends the error message. For "expected ',' or ']' after
 * ..." the caller uses json_unexpected(). */
enum status json_expect(struct text_input *input, char byte, const char *expected);
/* STATUS_INPUT: "expected EXPECTED, found ..." (or "the file ends where EXPECTED should be") at the
 * next byte. */
enum status json_unexpected(struct text_input *input, const char *expected);

/* The members of an object (`closing` '}') or the elements of an array (']'). Call it after the
 * opening bracket, and after each member or element. *more: another one follows; otherwise it takes
 * the closing bracket. */
enum status json_enter(struct text_input *input, char closing, bool *more);
enum status json_more(struct text_input *input, char closing, bool *more);

/* A string, appended to *out; out NULL: only checked. U+FFFD in place of an escape sets
 * input->replaced. */
enum status json_string(struct text_input *input, struct text_buffer *out);
/* A string that is only compared: U+FFFD in place of any such escape. */
enum status json_loose_string(struct text_input *input, struct text_buffer *out);
/* A whole number in 0 .. most. */
enum status json_whole(struct text_input *input, int64_t most, int64_t *out);
/* A number at the next byte, checked and skipped. */
enum status json_number(struct text_input *input);
/* Exactly `word` ("true", "false", "null") at the next byte. */
enum status json_literal(struct text_input *input, const char *word);
/* Any value, checked and skipped. */
enum status json_skip(struct text_input *input);

#endif
