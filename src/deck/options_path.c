/* Paths as a user writes them for a shell. No shell reads a deck, and a shell leaves the ~ of
 * key=~/x alone, so such a path would name another file without a word. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deck/options_set.h"

enum { CURE_BYTES = 1200 };

/* "$NAME", "${NAME}", "$(COMMAND)" or "`COMMAND`". */
static bool has_variable(const char *text)
{
  for (const char *at = text; (at = strchr(at, '$')); at++)
    if (isalpha((unsigned char)at[1]) || (at[1] && strchr("_{(", at[1])))
      return true;
  return strchr(text, '`') != NULL;
}

/* A list in place of a path has a message of its own. */
static bool has_pattern(const char *text)
{
  const char *open = strchr(text, '[');
  return strpbrk(text, "*?") || (open && open != text && strchr(open, ']'));
}

static bool is_quoted(const char *text)
{
  const size_t length = strlen(text);
  return length > 1 && (*text == '"' || *text == '\'') && text[length - 1] == *text;
}

/* "s3://...", "https://..." */
static bool is_url(const char *text)
{
  const char *end = strstr(text, "://");
  for (; end && text < end && (isalnum((unsigned char)*text) || strchr("+.-", *text)); text++)
    ;
  return text == end;
}

static bool has_end_blank(const char *text)
{
  return *text && (isspace((unsigned char)*text) || isspace((unsigned char)text[strlen(text) - 1]));
}

static void cure_home(const char *text, char cure[CURE_BYTES])
{
  const char *home = getenv("HOME");
  if (home && *home && (text[1] == '/' || !text[1]))
    snprintf(cure, CURE_BYTES, "only a shell replaces ~: write %s%s", home, text + 1);
  else
    snprintf(cure, CURE_BYTES,
             "only a shell replaces ~: write the whole path, or ./%s for a file of that name",
             text);
}

/* Writes the fault and its cure. False: there is none. A name that exists is taken as it is. */
static bool explain(const char *text, char cure[CURE_BYTES])
{
  if (*text == '~') {
    cure_home(text, cure);
    return true;
  }
  const char *words =
      has_variable(text)    ? "only a shell replaces a variable or a command: write its value"
      : has_pattern(text)   ? "only a shell replaces a pattern: write one path without *, ? and []"
      : is_url(text)        ? "only files and folders are read and written: name one, or mount it"
      : is_quoted(text)     ? "the quotation marks would be part of the name: remove them"
      : has_end_blank(text) ? "a blank or a line end at an end of it would be part of the name: "
                              "remove it"
                            : NULL;
  if (!words || access(text, F_OK) == 0)
    return false;
  snprintf(cure, CURE_BYTES, "%s", words);
  return true;
}

enum status options_check_paths(const struct option *option, const struct option_given *given)
{
  char cure[CURE_BYTES];
  for (int i = 0; option->path && i < given->n; i++)
    if (explain(given->item[i], cure))
      return status_usage("%s: %s is the path '%s', and %s", given->where, option->name,
                          given->item[i], cure);
  return STATUS_OK;
}
