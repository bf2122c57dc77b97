/* Text for terminals and man pages.
 *
 * A text is lines of any length. A line is a paragraph; "  NAME  text" is an item of a list; an
 * empty line stays empty. A terminal gets lines of at most `columns`, except for longer words. The
 * texts of a list begin in one column. */
#pragma once

#include <stdio.h>

/* Columns for a text on standard output, 40 to 100: COLUMNS of the environment, or else the width
 * of the terminal; 80 if both are unknown. Local. */
int prose_columns(void);

/* Bytes of the first sentence of a text, without its full stop. Local. */
int prose_sentence(const char *text);

/* Print a text, every line `indent` columns to the right. Local. */
void prose_print(const char *text, int indent, int columns, FILE *to);

/* Print one paragraph that begins in column `at`; its other lines begin at `indent`. Local. */
void prose_wrap(const char *text, int at, int indent, int columns, FILE *to);

/* Print a text as man page source. Local. */
void prose_print_man(const char *text, FILE *to);

/* Print `length` bytes without a line break as man page source. Local. */
void prose_escape_man(const char *text, size_t length, FILE *to);
