/* Rows of a text file for a test: what is given, and what must come of it.
 *
 *   == section
 *   given           one or more lines at the margin, each a case
 *     expected      lines with an indent, joined by blanks
 *
 * A line that begins with # is a comment. \n, \t, \f, \r and \xHH are bytes, \\ is a backslash.
 * $value in what is expected is the text after the first = of what is given, up to a blank. */
#pragma once

#include "tests/test.h"

enum { ROWS_LONGEST = 2048, ROWS_MOST_GIVEN = 32 };

typedef void rows_check(const char *given, const char *expected);

/* Bytes for escapes, in place. */
static inline void rows_unescape(char *text)
{
  static const char letters[] = "ntfr\\", bytes[] = "\n\t\f\r\\";
  char *to = text;
  for (const char *from = text; *from; to++) {
    const char *letter = *from == '\\' && from[1] ? strchr(letters, from[1]) : NULL;
    unsigned byte;
    if (letter) {
      *to = bytes[letter - letters];
      from += 2;
    } else if (*from == '\\' && sscanf(from, "\\x%2x", &byte) == 1) {
      *to = (char)byte;
      from += 4;
    } else {
      *to = *from++;
    }
  }
  *to = 0;
}

static inline void rows_run(rows_check *check, char given[][ROWS_LONGEST], int n,
                            const char *expected)
{
  for (int i = 0; i < n; i++) {
    char whole[2 * ROWS_LONGEST];
    const char *mark = strstr(expected, "$value"), *equal = strchr(given[i], '=');
    const int before = mark ? (int)(mark - expected) : 0;
    if (mark && equal)
      snprintf(whole, sizeof whole, "%.*s%.*s%s", before, expected, (int)strcspn(equal + 1, " "),
               equal + 1, mark + strlen("$value"));
    else
      snprintf(whole, sizeof whole, "%s", expected);
    rows_unescape(given[i]);
    rows_unescape(whole);
    check(given[i], whole);
  }
}

/* A file that is given as "NAME CONTENT". \0 in its content is a NUL. */
struct rows_file {
  char name[16], content[ROWS_LONGEST];
  size_t bytes;
};

static inline struct rows_file rows_file(const char *given)
{
  struct rows_file file = {""};
  const int n = (int)strcspn(given, " ");
  snprintf(file.name, sizeof file.name, "%.*s", n, given);
  for (const char *c = given + n + (given[n] == ' '); *c; c++) {
    const bool nul = strncmp(c, "\\0", 2) == 0;
    file.content[file.bytes++] = nul ? '\0' : *c;
    c += nul;
  }
  return file;
}

/* Calls check() for each case of `section` in file `path` below top_srcdir. NULL: of all sections.
 * A section has a row. */
static inline void rows_each(const char *path, const char *section, rows_check *check)
{
  static char given[ROWS_MOST_GIVEN][ROWS_LONGEST];
  char line[ROWS_LONGEST], expected[ROWS_LONGEST] = "", name[1024];
  const char *top = getenv("top_srcdir");
  bool inside = false;
  int n = 0, rows = 0;
  snprintf(name, sizeof name, "%s/%s", top ? top : ".", path);
  FILE *file = fopen(name, "r");
  if (!file)
    fail_msg("%s cannot be read", name);
  for (bool more = true; more;) {
    more = fgets(line, sizeof line, file) != NULL;
    const bool heading = !more || strncmp(line, "== ", 3) == 0;
    const char *text = line + (more ? strspn(line, " ") : 0);
    line[strcspn(line, "\n")] = 0;
    if (*expected && (heading || (*line && *line != ' ' && *line != '#'))) {
      rows_run(check, given, n, expected);
      rows += n;
      n = 0;
      *expected = 0;
    }
    if (heading) {
      assert_int_equal(n, 0);
      inside = more && (!section || strcmp(line + 3, section) == 0);
    } else if (inside && *line == ' ') {
      assert_true(n > 0 && strlen(expected) + strlen(text) + 2 < sizeof expected);
      strcat(strcat(expected, *expected ? " " : ""), text);
    } else if (inside && *line && *line != '#') {
      assert_true(n < ROWS_MOST_GIVEN);
      strcpy(given[n++], line);
    }
  }
  fclose(file);
  if (rows == 0)
    fail_msg("%s has no row in '%s'", name, section ? section : "any section");
}
