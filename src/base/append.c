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

const char *plural(int64_t n)
{
  return n == 1 ? "" : "s";
}
