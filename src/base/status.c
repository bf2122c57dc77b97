#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"

enum { TEXT_SIZE = 2048 };

static _Thread_local char text[TEXT_SIZE];

static const struct {
  const char *name;
  int exit_code;
} codes[] = {
    [STATUS_OK] = {"ok", 0},
    [STATUS_USAGE] = {"usage", 2},
    [STATUS_INPUT] = {"input", 3},
    [STATUS_IO] = {"i/o", 4},
    [STATUS_MEMORY] = {"memory", 5},
    [STATUS_LIBRARY] = {"library", 6},
    [STATUS_NONFINITE] = {"non-finite", 7},
    [STATUS_UNSUPPORTED] = {"unsupported", 8},
    [STATUS_PLAN] = {"plan", 9},
    [STATUS_ABORTED] = {"aborted", 10},
    [STATUS_INTERNAL] = {"internal", 70},
};

/* The arguments may point into `text` (a caller that rephrases status_text()), so a second buffer
 * takes the sentence first. Sentences quote files and their names. */
static void format_text(const char *suffix, const char *format, va_list args)
{
  char fresh[TEXT_SIZE];
  int length = vsnprintf(fresh, sizeof fresh, format, args);
  if (length < 0)
    snprintf(fresh, sizeof fresh, "%s", format);
  if (suffix && length >= 0 && length < TEXT_SIZE)
    snprintf(fresh + length, sizeof fresh - (size_t)length, ": %s", suffix);
  printable_make(fresh);
  memcpy(text, fresh, sizeof text);
}

enum status status_set(enum status code, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  format_text(NULL, format, args);
  va_end(args);
  return code;
}

enum status status_prefix(enum status code, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  format_text(text, format, args);
  va_end(args);
  return code;
}

const char *status_text(void)
{
  return text;
}

static int known(enum status code)
{
  return (unsigned)code < sizeof codes / sizeof codes[0];
}

const char *status_name(enum status code)
{
  return known(code) ? codes[code].name : "unknown";
}

int status_exit_code(enum status code)
{
  return codes[known(code) ? code : STATUS_INTERNAL].exit_code;
}
