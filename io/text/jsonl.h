/* A reader of JSON (RFC 8259) from a file's bytes. It builds no tree and holds only the string
 * being read, so files of any size can be read value by value. In strings that it hands out it
 * refuses \u0000 and escapes that are no character (half surrogate pairs), unless input->invalid
 * says otherwise. Values that it skips may have them, and may be NaN, Infinity or -Infinity, which
 * Python writes. Errors name file and byte.
 *
 * The first failure stays in input->status: later calls do nothing. Private to io/. */
#pragma once

#include "io/text/input.h"

/* The next byte that is not white space, not taken; -1 at the end of the file, or after a
 * failure. */
int jsonl_peek(struct text_input *input);
/* Takes `byte` after white space. */
void jsonl_expect(struct text_input *input, char byte, const char *expected);
/* STATUS_INPUT: "EXPECTED is expected, found ..." at the next byte. */
void jsonl_unexpected(struct text_input *input, const char *expected);

/* The members of an object (`closing` '}') or the elements of an array (']'). Call it after the
 * opening bracket, and after each member or element. True: another one follows; otherwise it takes
 * the closing bracket. */
bool jsonl_enter(struct text_input *input, char closing);
bool jsonl_more(struct text_input *input, char closing);

/* A string, appended to *out; out NULL: only checked. `kept`: U+FFFD in place of an escape sets
 * input->replaced, or is refused. Otherwise the string is only compared or checked, and may have
 * any escape. */
void jsonl_string(struct text_input *input, bool kept, struct text_buffer *out);
/* Any value, checked and skipped. */
void jsonl_skip(struct text_input *input);
