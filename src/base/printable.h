/* Text of files, names and arguments, before it is shown on a terminal.
 *
 * No control may reach a terminal. It can move the cursor, forge a line, write to the clipboard or
 * turn the order of letters around. Controls are
 * - U+0000 to U+001F and U+007F to U+009F
 * - the marks of direction, and the separators of lines and paragraphs
 * - single bytes 80 to 9F that continue no UTF-8 character: terminals without UTF-8 obey them
 *
 * Some characters cannot be seen, such as the no-break space. Pages keep them because languages
 * need them. A line shows them, because there they are usually the mistake that it reports. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The character that `text` begins with. A byte that begins no UTF-8 character counts as one, whose
 * code is the byte. `left` is at least 1. Local. */
struct character {
  size_t bytes;
  uint32_t code;
};
struct character printable_at(const char *text, size_t left);

/* Whether a code point is a control. Local. */
bool printable_is_control(uint32_t code);

/* Whether it cannot be seen and is no control, such as the no-break space; and whether it is a
 * blank among these. Local. */
bool printable_is_unseen(uint32_t code);
bool printable_is_blank(uint32_t code);

/* Replace controls and characters that cannot be seen in `text`, an array of `size` bytes. White
 * space of ASCII becomes a blank, any other control a '?', and characters above U+00A0 their
 * number, such as <U+202E>. A text that gets too long is cut between characters. Made twice it is
 * the same. Local. */
void printable_make(char *text, size_t size);

/* Print one line, or a part of it, after printable_make(). Only line feeds at the ends of `format`
 * stay. A line of more than 8 KiB is cut. The caller asks the stream for errors. Local. */
void printable_print(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether `text` has no control. Local. */
bool printable_is(const char *text);

/* Write `bytes` bytes of a page of text. Its controls are replaced as by printable_make(), except
 * that line feeds and tabs stay. The caller asks the stream for errors. Local. */
void printable_put(const char *text, size_t bytes, FILE *to);
