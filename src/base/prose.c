/* Wrapping of help texts to columns, and their escapes for man pages. */
#include "base/prose.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LEAST_COLUMNS = 40, USUAL_COLUMNS = 80, MOST_COLUMNS = 100 };

int prose_columns(void)
{
  const char *text = getenv("COLUMNS");
  struct winsize window;
  long columns = text ? strtol(text, NULL, 10) : 0;
  if (columns <= 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0)
    columns = window.ws_col;
  if (columns <= 0)
    return USUAL_COLUMNS;
  return columns < LEAST_COLUMNS  ? LEAST_COLUMNS
         : columns > MOST_COLUMNS ? MOST_COLUMNS
                                  : (int)columns;
}

static size_t line_length(const char *text)
{
  return strcspn(text, "\n");
}

int prose_sentence(const char *text)
{
  const size_t length = line_length(text);
  size_t n = 0;
  while (n < length && !(text[n] == '.' && (n + 1 == length || text[n + 1] == ' ')))
    n++;
  return (int)n;
}

/* An item: where its name and its text begin, and their lengths. */
struct item {
  const char *name, *text;
  size_t name_length, text_length;
};

static bool read_item(const char *line, struct item *out)
{
  const size_t length = line_length(line);
  if (strncmp(line, "  ", 2) != 0)
    return false;
  const char *name = line + 2, *end = line + length, *gap = strstr(name, "  ");
  const char *text = gap && gap < end ? gap + strspn(gap, " ") : end;
  *out = (struct item){name, text, (size_t)((gap && gap < end ? gap : end) - name),
                       (size_t)(end - text)};
  return true;
}

/* Widest name of the items from `line` on. */
static size_t widest_name(const char *line)
{
  struct item item;
  size_t widest = 0;
  while (read_item(line, &item)) {
    widest = item.name_length > widest ? item.name_length : widest;
    line += line_length(line);
    line += *line == '\n';
  }
  return widest;
}

static void wrap(const char *text, size_t length, int at, int indent, int columns, FILE *to)
{
  bool first = true;
  for (size_t used = 0; used < length;) {
    const size_t word = strcspn(text + used, " \n");
    const size_t bytes = word < length - used ? word : length - used;
    if (!first && at + 1 + (int)bytes > columns) {
      fprintf(to, "\n%*s", indent, "");
      at = indent;
    } else if (!first) {
      fputc(' ', to);
      at++;
    }
    fwrite(text + used, 1, bytes, to);
    at += (int)bytes;
    first = false;
    used += bytes;
    used += strspn(text + used, " ");
  }
  fputc('\n', to);
}

void prose_wrap(const char *text, int at, int indent, int columns, FILE *to)
{
  wrap(text, line_length(text), at, indent, columns, to);
}

void prose_print(const char *text, int indent, int columns, FILE *to)
{
  struct item item;
  size_t widest = 0;
  for (bool listed = false; *text; text += *text == '\n') {
    const size_t length = line_length(text);
    const bool is_item = read_item(text, &item);
    if (is_item && !listed)
      widest = widest_name(text);
    listed = is_item;
    if (is_item) {
      const int column = indent + 2 + (int)widest + 2;
      fprintf(to, "%*s%-*.*s", indent + 2, "", (int)widest + 2, (int)item.name_length, item.name);
      wrap(item.text, item.text_length, column, column, columns, to);
    } else if (length == 0) {
      fputc('\n', to);
    } else {
      fprintf(to, "%*s", indent, "");
      wrap(text, length, indent, indent, columns, to);
    }
    text += length;
  }
}

/* Escapes characters that roff interprets: a backslash, a hyphen, a leading dot or quote. */
void prose_escape_man(const char *text, size_t length, FILE *to)
{
  if (length > 0 && (*text == '.' || *text == '\''))
    fputs("\\&", to);
  for (size_t i = 0; i < length; i++) {
    if (text[i] == '\\')
      fputs("\\e", to);
    else if (text[i] == '-')
      fputs("\\-", to);
    else
      fputc(text[i], to);
  }
}

void prose_print_man(const char *text, FILE *to)
{
  struct item item;
  bool listed = false, begun = false;
  for (; *text; text += *text == '\n') {
    const size_t length = line_length(text);
    const bool is_item = read_item(text, &item);
    if (is_item != listed)
      fputs(is_item ? ".RS\n" : ".RE\n", to);
    listed = is_item;
    if (is_item) {
      fputs(".TP\n\\fB", to);
      prose_escape_man(item.name, item.name_length, to);
      fputs("\\fR\n", to);
      prose_escape_man(item.text, item.text_length, to);
      fputc('\n', to);
    } else if (length > 0) {
      fputs(begun ? ".PP\n" : "", to);
      prose_escape_man(text, length, to);
      fputc('\n', to);
    }
    begun = true;
    text += length;
  }
  if (listed)
    fputs(".RE\n", to);
}
