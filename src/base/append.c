/* Appending to a text of fixed size. What does not fit is cut, and the text always ends. */
#include "base/append.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void append_text(char *text, size_t size, const char *format, ...)
{
  const size_t used = strnlen(text, size);
  va_list values;
  va_start(values, format);
  vsnprintf(text + used, size - used, format, values);
  va_end(values);
}

void append_word(char *text, size_t size, const char *word)
{
  const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=,:+-@%";
  const char *quote = !*word || word[strspn(word, plain)] ? "'" : "";
  append_text(text, size, "%s%s", *text ? " " : "", quote);
  for (const char *c = word; *c; c++)
    append_text(text, size, "%.*s", *c == '\'' ? 4 : 1, *c == '\'' ? "'\\''" : c);
  append_text(text, size, "%s", quote);
}

const char *plural(int64_t n)
{
  return n == 1 ? "" : "s";
}
