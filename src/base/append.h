/* Texts of a fixed size that are appended to piece by piece: lists for messages. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Add formatted text to the string in `text`, an array of `size` bytes. If it does not fit,
 * it is cut. It always ends with a NUL. Local. */
void append_text(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* One more word of a command after a blank, quoted if a shell would read it otherwise. Local. */
void append_word(char *text, size_t size, const char *word);
/* "s" unless n is 1. */
const char *plural(int64_t n);
