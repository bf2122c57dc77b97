/* Text of files, before it is shown on a terminal. A control character can move the cursor, forge a
 * line or write to the clipboard, so none may reach a terminal. Controls are U+0000 to U+001F,
 * U+007F to U+009F, and single bytes 80 to 9F that continue no UTF-8 character, which terminals
 * without UTF-8 obey. */
#ifndef SLUICE_BASE_PRINTABLE_H
#define SLUICE_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Replace the control characters of `text` in place: white space by a blank, any other by '?'. The
 * text never gets longer. Local. */
void printable_make(char *text);

/* Whether `text` has no control character. Local. */
bool printable_is(const char *text);

/* Write `bytes` bytes of a page of text with the same replacement, except that line feeds and tabs
 * stay. The caller asks the stream for errors. Local. */
void printable_put(const char *text, size_t bytes, FILE *to);

#endif
