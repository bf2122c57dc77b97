/* The option table as short and long help, and as man page source. */
#include <math.h>
#include <string.h>

#include "base/append.h"
#include "base/prose.h"
#include "deck/options.h"
#include "deck/options_set.h"

enum { TOLD_MOST = 100, INDENT = 6 };

static bool lists_choices(const struct option *option)
{
  return strstr(option->text, "\n  ") != NULL;
}

/* ", at least 1", ", 0 to 8". A distant bound only catches mistakes, so a reader does not need
 * it. */
static void range_text(const struct option *option, char *out, size_t size)
{
  if (option->most > 0 && option->most <= TOLD_MOST)
    snprintf(out, size, ", %.10g to %.10g", option->least, option->most);
  else if (isfinite(option->least) && !options_is_size(option))
    snprintf(out, size, ", at least %.10g", option->least);
  else
    snprintf(out, size, "%s", "");
}

static void type_text(const struct option *option, char *out, size_t size)
{
  char range[80];
  range_text(option, range, sizeof range);
  switch (option->type) {
  case OPTION_INT:
    snprintf(out, size, "%s%s", options_is_size(option) ? "size, such as 8M or 8MiB" : "integer",
             range);
    return;
  case OPTION_REAL: snprintf(out, size, "number%s", range); return;
  case OPTION_BOOL: snprintf(out, size, "true or false"); return;
  case OPTION_STRING: snprintf(out, size, "string"); return;
  case OPTION_CHOICE:
    snprintf(out, size, "%s", lists_choices(option) ? "name" : option->choices[1] ? "one of " : "");
    if (!lists_choices(option))
      options_append_choices(option, out, size);
    return;
  case OPTION_REALS: snprintf(out, size, "list of %d numbers%s", option->count, range); return;
  case OPTION_INTS: snprintf(out, size, "list of %d integers%s", option->count, range); return;
  case OPTION_STRINGS:
    snprintf(out, size, "list of %s", option->choices ? "" : "strings");
    options_append_choices(option, out, size);
    return;
  }
}

/* Bytes of a unit's name, without the plural's s for one unit. */
static int unit_length(const char *unit, bool one)
{
  const int length = (int)strlen(unit);
  return one && length > 1 && unit[length - 1] == 's' ? length - 1 : length;
}

/* "integer, at least 1; default 100 steps" */
static void describe(const struct option *option, char *out, size_t size)
{
  char type[500];
  const char *unit = option->unit && !options_is_size(option) ? option->unit : "";
  const bool one = option->value && !strcmp(option->value, "1");
  type_text(option, type, sizeof type);
  if (!option->value)
    snprintf(out, size, "%s; required", type);
  else if (!*option->value || !strcmp(option->value, "[]"))
    snprintf(out, size, "%s%s%s; empty by default", type, *unit ? ", in " : "", unit);
  else if (option->chosen)
    snprintf(out, size, "%s%s%s; the program chooses it by default (auto)", type,
             *unit ? ", in " : "", unit);
  else
    snprintf(out, size, "%s; default %s%s%.*s", type, option->value, *unit ? " " : "",
             unit_length(unit, one), unit);
}

/* The first choice that is not the default, if there is one. */
static const char *other_choice(const struct option *option)
{
  for (int i = 0; option->choices[i]; i++)
    if (!option->value || strcmp(option->choices[i], option->value) != 0)
      return option->choices[i];
  return option->value;
}

void options_print_example(const struct option *option, char *out, size_t size)
{
  const char *value = option->value ? option->value : "";
  if (option->example)
    value = option->example;
  else if (option->type == OPTION_BOOL)
    value = strcmp(value, "true") ? "true" : "false";
  else if (option->type == OPTION_CHOICE)
    value = other_choice(option);
  snprintf(out, size, "%s", value);
}

/* "run.steps=2000", in quotes if a shell would cut it or expand it. false: no example. Keys of
 * commands have none, because the commands have examples. */
static bool assignment_text(const struct option *option, char *out, size_t size)
{
  char value[100];
  options_print_example(option, value, sizeof value);
  const char *quote = strpbrk(value, " *[") ? "'" : "";
  snprintf(out, size, "%s%s=%s%s", quote, option->name, value, quote);
  return *value && options_section_length(option->name) > 0;
}

/* Whether an option has the name `part` or is in the section `part`. NULL: it is. */
static bool is_part(const struct option *option, const char *part)
{
  return !part || !strcmp(option->name, part) || options_in_section(option->name, part);
}

/* The same for the name without its section. */
static bool is_key(const struct option *option, const char *key)
{
  const char *dot = strrchr(option->name, '.');
  return dot && !strcmp(dot + 1, key);
}

int options_print_brief(const struct option *table, bool with_rare, FILE *to)
{
  int width = 0, left_out = 0;
  for (const struct option *option = table; option->name; option++)
    if (with_rare || !option->rare)
      width = (int)strlen(option->name) > width ? (int)strlen(option->name) : width;
  for (const struct option *option = table; option->name; option++) {
    if (option->rare && !with_rare) {
      left_out++;
      continue;
    }
    if (option > table && options_begins_section(table, option))
      fputc('\n', to);
    fprintf(to, "  %-*s  %.*s\n", width, option->name, prose_sentence(option->text), option->text);
  }
  return left_out;
}

int options_print_help(const struct option *table, const char *part, int columns, FILE *to)
{
  int printed = 0;
  for (int by_key = 0; by_key < 2 && printed == 0; by_key++)
    for (const struct option *option = table; option->name; option++) {
      char description[600];
      if (by_key ? !is_key(option, part) : !is_part(option, part))
        continue;
      describe(option, description, sizeof description);
      append_text(description, sizeof description, ")");
      fprintf(to, "  %s  (", option->name);
      prose_wrap(description, (int)strlen(option->name) + 5, INDENT, columns, to);
      prose_print(option->text, INDENT, columns, to);
      if (assignment_text(option, description, sizeof description))
        fprintf(to, "%*sExample: %s\n", INDENT, "", description);
      fputc('\n', to);
      printed++;
    }
  return printed;
}

int options_print_mentions(const struct option *table, const char *word, FILE *to)
{
  int printed = 0;
  for (const struct option *option = table; option->name; option++) {
    if (!strcasestr(option->name, word) && !strcasestr(option->text, word))
      continue;
    fprintf(to, "  %-23s  %.*s\n", option->name, prose_sentence(option->text), option->text);
    printed++;
  }
  return printed;
}

void options_print_man(const struct option *table, FILE *to)
{
  for (const struct option *option = table; option->name; option++) {
    char description[600];
    describe(option, description, sizeof description);
    fputs(".TP\n\\fB", to);
    prose_escape_man(option->name, strlen(option->name), to);
    fputs("\\fR (", to);
    prose_escape_man(description, strlen(description), to);
    fputs(")\n", to);
    prose_print_man(option->text, to);
    if (assignment_text(option, description, sizeof description)) {
      fputs(".IP\nExample: ", to);
      prose_escape_man(description, strlen(description), to);
      fputc('\n', to);
    }
  }
}
