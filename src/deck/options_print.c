/* Prints options as help, and values so that the parser reads them back exactly. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "deck/options.h"
#include "deck/options_set.h"

struct text {
  FILE *to;
  char *data;
  size_t size;
  enum status status;
};

/* "6e+02" becomes 600, and "1e-05" becomes 1e-5. A number with many zeros keeps its exponent:
 * "2e+12" becomes 2e12.
 */
static void write_plainly(char *digits, size_t size, double x)
{
  char *e = strchr(digits, 'e');
  if (!e)
    return;
  if (fabs(x) >= 1 &&
      fabs(x) < 1e9) /* an integer: it has fewer digits than places before the point */
    snprintf(digits, size, "%.0f", x);
  else
    snprintf(e, size - (size_t)(e - digits), "e%ld", strtol(e + 1, NULL, 10));
}

/* The shortest decimal that reads back to the same double. */
static void add_real(struct text *text, double x)
{
  char digits[40];
  for (int precision = 1; precision <= 17; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, x);
    if (strtod(digits, NULL) == x)
      break;
  }
  write_plainly(digits, sizeof digits, x);
  fputs(digits, text->to);
}

static bool is_plain(const char *string)
{
  if (!isalnum((unsigned char)*string) && *string != '/')
    return false;
  for (const char *c = string; *c; c++)
    if (!isalnum((unsigned char)*c) && !strchr("_./+-", *c) &&
        !(*c == ':' && isalnum((unsigned char)c[1])))
      return false;
  return true;
}

/* Characters that a YAML reader refuses or folds as a line break. */
static bool needs_code(uint32_t code)
{
  return printable_is_control(code) || code == 0xfeff || code == 0xfffe || code == 0xffff;
}

static void add_string(struct text *text, const char *string)
{
  if (is_plain(string)) {
    fputs(string, text->to);
    return;
  }
  if (!options_is_utf8(string))
    text->status =
        status_set(STATUS_INTERNAL, "a text that is not UTF-8 got into the options: '%s'", string);
  fputs("\"", text->to);
  for (struct character c; *string; string += c.bytes) {
    c = printable_at(string, strlen(string));
    if (needs_code(c.code))
      fprintf(text->to, "\\u%04x", c.code);
    else
      fprintf(text->to, "%s%.*s", c.code == '"' || c.code == '\\' ? "\\" : "", (int)c.bytes,
              string);
  }
  fputs("\"", text->to);
}

static void add_list(struct text *text, const struct option *option, const void *from)
{
  const struct option_ints *ints = from;
  const struct option_strings *strings = from;
  const int64_t n = option->type == OPTION_REALS  ? option->count
                    : option->type == OPTION_INTS ? ints->n
                                                  : strings->n;
  fputs("[", text->to);
  for (int i = 0; i < n; i++) {
    fputs(i ? ", " : "", text->to);
    if (option->type == OPTION_REALS)
      add_real(text, ((const double *)from)[i]);
    else if (option->type == OPTION_INTS)
      fprintf(text->to, "%" PRId64, ints->item[i]);
    else
      add_string(text, strings->item[i]);
  }
  fputs("]", text->to);
}

/* The path of a list of one path, else NULL. */
static const char *only_path(const struct option *option, const void *from)
{
  const struct option_strings *strings = from;
  return option->path && option->type == OPTION_STRINGS && strings->n == 1 ? strings->item[0]
                                                                           : NULL;
}

static void add_value(struct text *text, const struct option *option, const void *from)
{
  if (only_path(option, from)) {
    add_string(text, only_path(option, from));
    return;
  }
  switch (option->type) {
  case OPTION_INT: fprintf(text->to, "%" PRId64, *(const int64_t *)from); return;
  case OPTION_REAL: add_real(text, *(const double *)from); return;
  case OPTION_BOOL: fputs(*(const bool *)from ? "true" : "false", text->to); return;
  case OPTION_STRING: add_string(text, *(char *const *)from); return;
  case OPTION_CHOICE: fputs(option->choices[*(const int *)from], text->to); return;
  case OPTION_REALS:
  case OPTION_INTS:
  case OPTION_STRINGS: add_list(text, option, from); return;
  }
}

static enum status start(struct text *text)
{
  *text = (struct text){0};
  text->to = open_memstream(&text->data, &text->size);
  return text->to ? STATUS_OK : status_set(STATUS_MEMORY, "no memory for the text of options");
}

static enum status finish(struct text *text, char **out)
{
  if (fclose(text->to) && !text->status)
    text->status = status_set(STATUS_MEMORY, "no memory for the text of options");
  if (!text->status) {
    *out = mem_strdup(text->data);
    text->status = *out ? STATUS_OK : STATUS_MEMORY;
  }
  free(text->data);
  return text->status;
}

enum status options_print_value(const struct option *option, const void *values, char **out)
{
  const void *from = (const char *)values + option->offset;
  struct text text;
  if (start(&text))
    return STATUS_MEMORY;
  const char *path = only_path(option, from);
  if (option->type == OPTION_STRING || path)
    fputs(path ? path : *(char *const *)from, text.to);
  else
    add_value(&text, option, from);
  return finish(&text, out);
}

/* Prints the key, after the names of sections that the option before it is not in. */
static void add_key(struct text *text, const char *name, const char *before)
{
  const char *part = name;
  int level = 0;
  for (const char *dot; (dot = strchr(part, '.')); part = dot + 1, level++) {
    if (strncmp(name, before, (size_t)(dot + 1 - name)) == 0)
      continue;
    fprintf(text->to, "%*s%.*s:\n", 2 * level, "", (int)(dot - part), part);
  }
  fprintf(text->to, "%*s%s: ", 2 * level, "", part);
}

enum status options_print_yaml(const struct option_set *set, char **out)
{
  struct text text;
  if (start(&text))
    return STATUS_MEMORY;
  for (const struct option *option = set->table; option->name; option++) {
    add_key(&text, option->name, option == set->table ? "" : option[-1].name);
    if (options_is_free(set, option))
      fputs(options_auto, text.to);
    else
      add_value(&text, option, (const char *)set->values + option->offset);
    fputs("\n", text.to);
  }
  return finish(&text, out);
}

enum status options_print_named(const struct option_set *set, const char *name, char **out)
{
  const int index = options_find(set->table, name);
  if (index < 0)
    return options_unknown(set, "print", name);
  return options_print_value(&set->table[index], set->values, out);
}
