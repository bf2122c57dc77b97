/* One sentence per thread. The first failure sets it, and callers forward the code. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"

enum { TEXT_SIZE = sizeof((struct status_record *)NULL)->text };

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
    [STATUS_TIMEOUT] = {"timeout", 10},
    [STATUS_ABORTED] = {"aborted", 11},
    [STATUS_INTERNAL] = {"internal", 70},
};

/* The arguments may point into `text` (a caller that rephrases status_text()), so the message is
 * written to a second buffer first. Messages quote files and their names, so control characters are
 * replaced. */
static void format_text(const char *suffix, const char *format, va_list args)
{
  char fresh[TEXT_SIZE];
  int length = vsnprintf(fresh, sizeof fresh, format, args);
  if (length < 0)
    snprintf(fresh, sizeof fresh, "%s", format);
  if (suffix && length >= 0 && length < TEXT_SIZE)
    snprintf(fresh + length, sizeof fresh - (size_t)length, ": %s", suffix);
  printable_make(fresh, sizeof fresh);
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
  if (!code)
    return code;
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

void status_keep(struct status_record *record, enum status code)
{
  if (record->code || !code)
    return;
  record->code = code;
  snprintf(record->text, sizeof record->text, "%s", text);
}

enum status status_restore(const struct status_record *record)
{
  if (record->code)
    memcpy(text, record->text, sizeof text);
  return record->code;
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

const struct exit_code exit_codes[] = {
    {0, "done"},
    {EXIT_VERDICT, "ckpt diff: the files differ; plan: it does not fit; doctor: there is a fault; "
                   "compare: a run failed"},
    {2, "the command line or the deck has an error"},
    {3, "an input is missing or cannot be used"},
    {4, "reading or writing failed: the file system may be full or broken"},
    {5, "out of memory: sluice plan shows how much a rank needs"},
    {6, "a library failed (MPI, HDF5, CUDA, NCCL, ...)"},
    {7, "a loss or a gradient was not finite (optim.nonfinite)"},
    {8, "this build or this machine does not support the request"},
    {9, "the schedule failed its verification: a bug in Sluice, please report it"},
    {10, "no progress within comm.timeout: the message names the rank that the others wait for"},
    {11, "another rank or thread failed first: its message is above"},
    {70, "a bug in Sluice, please report it"},
    {EXIT_UNFINISHED, "stopped early and saved: --resume auto continues"},
    {EXIT_SIGNAL, "signal N ended a rank; 137 (SIGKILL) usually means out of memory"},
};
const int exit_codes_count = sizeof exit_codes / sizeof exit_codes[0];

const char *exit_code_meaning(int code)
{
  for (int i = 0; i < exit_codes_count; i++)
    if (exit_codes[i].code == (code > EXIT_SIGNAL ? EXIT_SIGNAL : code))
      return exit_codes[i].meaning;
  return NULL;
}
