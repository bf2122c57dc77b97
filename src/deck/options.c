/* Finds, assigns and checks values of a table of options. */
#include "deck/options.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/append.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/printable.h"
#include "base/prose.h"
#include "deck/options_set.h"

const char options_auto[] = "auto";
static const char unset_by[] = "default"; /* the origin of a value that is not set */
static const char chosen_by[] = "chosen at the start"; /* may be followed by the name of a file */

static void *field(const struct option_set *set, const struct option *option)
{
  return (char *)set->values + option->offset;
}

int options_find(const struct option *table, const char *name)
{
  for (int i = 0; table[i].name; i++)
    if (strcmp(table[i].name, name) == 0)
      return i;
  return -1;
}

int options_section_length(const char *name)
{
  const char *dot = strchr(name, '.');
  return dot ? (int)(dot - name) : 0;
}

bool options_begins_section(const struct option *table, const struct option *option)
{
  const int length = options_section_length(option->name);
  return option == table || length != options_section_length(option[-1].name) ||
         strncmp(option->name, option[-1].name, (size_t)length) != 0;
}

bool options_in_section(const char *name, const char *section)
{
  if (name[0] != section[0]) /* most calls end here */
    return false;
  const size_t length = strlen(section);
  return length > 0 && strncmp(name, section, length) == 0 && name[length] == '.';
}

int options_find_section(const struct option *table, const char *section)
{
  for (int i = 0; table[i].name; i++)
    if (options_in_section(table[i].name, section))
      return i;
  return -1;
}

/* --- error messages ------------------------------------------------------ */

enum { MOST = 64 }; /* letters of a name that are compared */

/* Levenshtein's distance. Names longer than the row are compared by their heads. */
int options_distance(const char *a, const char *b)
{
  int row[MOST + 1], columns = (int)strnlen(b, MOST);
  for (int j = 0; j <= columns; j++)
    row[j] = j;
  for (int i = 0; a[i] && i < MOST; i++) {
    int diagonal = row[0];
    row[0] = i + 1;
    for (int j = 0; j < columns; j++) {
      int best = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      if (row[j] + 1 < best)
        best = row[j] + 1;
      if (row[j + 1] + 1 < best)
        best = row[j + 1] + 1;
      row[j + 1] = best;
    }
  }
  return row[columns];
}

static const char *key_of(const char *name)
{
  const char *dot = strrchr(name, '.');
  return dot ? dot + 1 : name;
}

/* The distance of two names if it is small enough for a typing error: one letter, or a third of
 * them. Otherwise INT_MAX. */
static int typing_distance(const char *given, const char *known)
{
  const int letters = (int)strlen(given), most = letters < 6 ? 1 : letters / 3;
  const int longer = (int)strnlen(given, MOST) - (int)strnlen(known, MOST);
  if (abs(longer) > most)
    return INT_MAX; /* the distance is at least that */
  const int distance = options_distance(given, known);
  return distance <= most && distance < letters ? distance : INT_MAX;
}

/* The right key in the wrong section is nearer than a wrong key. */
static int name_distance(const char *given, const char *known)
{
  const int whole = typing_distance(given, known);
  const int key = typing_distance(key_of(given), key_of(known));
  return key == INT_MAX || whole < key + 2 ? whole : key + 2;
}

/* Whether `word` is one of the blank-separated `names`, whatever its case and with - or _. */
static bool has_word(const char *names, const char *word)
{
  const size_t length = strlen(word);
  for (const char *name = names; *name; name += strcspn(name, " "), name += strspn(name, " ")) {
    size_t same = 0;
    while (same < length &&
           name[same] == (word[same] == '-' ? '_' : tolower((unsigned char)word[same])))
      same++;
    if (same == length && strcspn(name, " ") == length)
      return true;
  }
  return false;
}

static const struct option_alias *find_alias(const struct option_alias *aliases, const char *name)
{
  for (const struct option_alias *alias = aliases; alias && alias->names; alias++)
    if (has_word(alias->names, key_of(name)))
      return alias;
  return NULL;
}

/* Suggests a key, or a section, which is a key's name up to one of its dots. Writes nothing if no
 * name is near. */
static void suggest_nearest(const struct option *table, const char *name, char *out, size_t size)
{
  const char *nearest = "";
  int least = INT_MAX, length = 0;
  *out = '\0';
  for (const struct option *option = table; option->name; option++)
    for (int end = (int)strlen(option->name); end > 0; end--) {
      char known[64];
      if (option->name[end] && option->name[end] != '.')
        continue;
      snprintf(known, sizeof known, "%.*s", end, option->name);
      const int distance =
          option->name[end] ? typing_distance(name, known) : name_distance(name, known);
      if (distance < least) {
        nearest = option->name;
        length = end;
        least = distance;
      }
    }
  if (least == 0)
    snprintf(out, size, "; it is a section: name one of its keys, such as '%s'", nearest);
  else if (least < INT_MAX)
    snprintf(out, size, "; the nearest known key is '%.*s'", length, nearest);
}

void options_suggest(const struct option *table, const struct option_alias *aliases,
                     const char *name, char *out, size_t size)
{
  const struct option_alias *alias = find_alias(aliases, name);
  if (!alias)
    suggest_nearest(table, name, out, size);
  else if (!alias->key)
    snprintf(out, size, ": %s", alias->note);
  else
    snprintf(out, size, ": use %s%s%s%s", alias->key, alias->note ? " (" : "",
             alias->note ? alias->note : "", alias->note ? ")" : "");
}

/* " (with U+0435)": the first character outside of ASCII, which may look like one within. */
static struct foreign {
  char text[32];
} foreign(const char *text)
{
  struct foreign out = {""};
  while (*text && (unsigned char)*text < 0x80)
    text++;
  if (*text)
    snprintf(out.text, sizeof out.text, " (with U+%04X)", printable_at(text, strlen(text)).code);
  return out;
}

enum status options_unknown(const struct option_set *set, const char *where, const char *name)
{
  char suggestion[400];
  options_suggest(set->table, set->aliases, name, suggestion, sizeof suggestion);
  return status_usage("%s: unknown key '%s'%s%s", where, name, foreign(name).text, suggestion);
}

static void range_text(const struct option *option, char *out, size_t size)
{
  if (option->least == 0 && option->most == 0)
    snprintf(out, size, "%s", "");
  else if (isinf(option->most))
    snprintf(out, size, " of at least %.10g", option->least);
  else
    snprintf(out, size, " from %.10g to %.10g", option->least, option->most);
}

void options_append_choices(const struct option *option, char *out, size_t size)
{
  for (int i = 0; option->choices && option->choices[i]; i++)
    append_text(out, size, "%s%s", i ? ", " : "", option->choices[i]);
}

bool options_is_size(const struct option *option)
{
  return option->unit && strcmp(option->unit, OPTIONS_BYTES) == 0;
}

void options_expected(const struct option *option, char *out, size_t size)
{
  char range[80], choices[400] = "";
  range_text(option, range, sizeof range);
  options_append_choices(option, choices, sizeof choices);
  switch (option->type) {
  case OPTION_INT:
    snprintf(out, size,
             options_is_size(option) ? "a size%s, such as 8000000, 8M, 8Mi or 8MiB"
                                     : "an integer%s",
             range);
    return;
  case OPTION_REAL: snprintf(out, size, "a number%s", range); return;
  case OPTION_BOOL: snprintf(out, size, "true or false"); return;
  case OPTION_STRING: snprintf(out, size, "a string"); return;
  case OPTION_CHOICE:
    snprintf(out, size, option->choices[1] ? "one of %s" : "%s, the only choice in this version",
             choices);
    return;
  case OPTION_REALS: snprintf(out, size, "a list of %d numbers%s", option->count, range); return;
  case OPTION_INTS:
    snprintf(out, size, "a list of %d integers%s, or an empty one", option->count, range);
    return;
  case OPTION_STRINGS:
    snprintf(out, size, option->choices ? "a list of any of %s" : "a list of strings", choices);
    return;
  }
}

static bool is_list(enum option_type type)
{
  return type == OPTION_REALS || type == OPTION_INTS || type == OPTION_STRINGS;
}

static enum status reject(const struct option *option, const struct option_given *given,
                          const char *text)
{
  char expected[600];
  options_expected(option, expected, sizeof expected);
  if (given->list && !is_list(option->type))
    return status_usage("%s: %s must be %s, not a list", given->where, option->name, expected);
  if ((option->type == OPTION_REALS || option->type == OPTION_INTS) && given->n != option->count)
    return status_usage("%s: %s must be %s, but %d %s given", given->where, option->name, expected,
                        given->n, given->n == 1 ? "was" : "were");
  const struct option_alias *meant = find_alias(option->aliases, text);
  return status_usage("%s: %s must be %s, not '%s'%s%s%s", given->where, option->name, expected,
                      text, foreign(text).text, meant ? ": use " : "", meant ? meant->key : "");
}

/* --- texts to values ----------------------------------------------------- */

static bool in_range(const struct option *option, double x)
{
  return (option->least == 0 && option->most == 0) || (x >= option->least && x <= option->most);
}

bool options_parse_scale(const char *suffix, bool bytes, int64_t *scale)
{
  static const char letters[] = "kMGT";
  const char *letter = *suffix ? strchr(letters, *suffix == 'K' ? 'k' : *suffix) : NULL;
  const bool binary = letter && suffix[1] == 'i';
  *scale = 1;
  for (const char *l = letters; letter && l <= letter; l++)
    *scale *= binary ? 1024 : 1000;
  const char *rest = suffix + (letter ? 1 + binary : 0);
  return !*rest || (bytes && strcmp(rest, "B") == 0);
}

/* value *= 10^power, if that is an integer which int64_t holds. */
static bool scale_decimal(int64_t *value, long power)
{
  for (; power > 0 && *value; power--)
    if (__builtin_mul_overflow(*value, 10, value))
      return false;
  for (; power < 0 && *value; power++, *value /= 10)
    if (*value % 10)
      return false;
  return true;
}

/* "12", "-3", "2e6" or "1.5e6": digits, and a point among them if an exponent follows. *end: the
 * text after the number. */
static bool parse_decimal(const char *text, int64_t *value, const char **end)
{
  const char *c = text + (*text == '-' || *text == '+');
  const int sign = *text == '-' ? -1 : 1;
  const char *point = NULL;
  *value = 0;
  if (!isdigit((unsigned char)*c))
    return false;
  for (; isdigit((unsigned char)*c) || (*c == '.' && !point); c++)
    if (*c == '.')
      point = c;
    else if (__builtin_mul_overflow(*value, 10, value) ||
             __builtin_add_overflow(*value, sign * (*c - '0'), value))
      return false;
  *end = c;
  if (*c != 'e' && *c != 'E')
    return !point;
  if (!isdigit((unsigned char)c[1 + (c[1] == '-' || c[1] == '+')]))
    return false;
  char *last;
  errno = 0;
  const long exponent = strtol(c + 1, &last, 10), places = point ? c - point - 1 : 0;
  *end = last;
  return !errno && labs(exponent) < 1000 && scale_decimal(value, exponent - places);
}

static bool parse_int(const struct option *option, const char *text, int64_t *out)
{
  const char *end;
  int64_t scale, number, value;
  if (!parse_decimal(text, &number, &end) ||
      !options_parse_scale(end, options_is_size(option), &scale) ||
      __builtin_mul_overflow(number, scale, &value) || !in_range(option, (double)value))
    return false;
  *out = value;
  return true;
}

bool options_parse_real(const char *text, double *out)
{
  char *end;
  if (!*text ||
      strspn(text, "0123456789+-.eE") != strlen(text)) /* no hexadecimal, no inf, no nan */
    return false;
  double value = strtod(text, &end);
  if (*end || !isfinite(value))
    return false;
  *out = value;
  return true;
}

bool options_parse_whole(const char *text, int64_t least, int64_t most, int64_t *out)
{
  char *end;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (errno || end == text || *end || value < least || value > most)
    return false;
  *out = value;
  return true;
}

static bool parse_real(const struct option *option, const char *text, double *out)
{
  double value;
  if (!options_parse_real(text, &value) || !in_range(option, value))
    return false;
  *out = value;
  return true;
}

bool options_parse_bool(const char *text, bool *out)
{
  static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
  for (int i = 0; i < 6; i++)
    if (strcasecmp(text, words[i]) == 0) {
      *out = i % 2;
      return true;
    }
  return false;
}

static bool parse_choice(const struct option *option, const char *text, int *out)
{
  for (int i = 0; option->choices[i]; i++)
    if (strcmp(option->choices[i], text) == 0) {
      *out = i;
      return true;
    }
  return false;
}

static enum status store_string(char **to, const char *text)
{
  char *copy = mem_strdup(text);
  if (!copy)
    return STATUS_MEMORY;
  mem_free(*to);
  *to = copy;
  return STATUS_OK;
}

static size_t size_of(const struct option *option)
{
  static const size_t sizes[] = {[OPTION_INT] = sizeof(int64_t),
                                 [OPTION_REAL] = sizeof(double),
                                 [OPTION_BOOL] = sizeof(bool),
                                 [OPTION_STRING] = sizeof(char *),
                                 [OPTION_CHOICE] = sizeof(int),
                                 [OPTION_REALS] = sizeof(double),
                                 [OPTION_INTS] = sizeof(struct option_ints),
                                 [OPTION_STRINGS] = sizeof(struct option_strings)};
  return sizes[option->type] * (option->type == OPTION_REALS ? (size_t)option->count : 1);
}

/* Exactly `count` numbers; also none of OPTION_INTS. */
static enum status store_numbers(const struct option *option, const struct option_given *given,
                                 void *to)
{
  const bool reals = option->type == OPTION_REALS;
  union {
    struct option_ints ints;
    double real[OPTION_MOST_NUMBERS];
  } fresh = {.ints = {.n = given->n}};
  if (given->n != option->count && (reals || given->n != 0))
    return reject(option, given, "");
  for (int i = 0; i < given->n; i++)
    if (!(reals ? parse_real(option, given->item[i], &fresh.real[i])
                : parse_int(option, given->item[i], &fresh.ints.item[i])))
      return reject(option, given, given->item[i]);
  memcpy(to, &fresh, size_of(option));
  return STATUS_OK;
}

static void free_strings(struct option_strings *strings)
{
  for (int i = 0; i < strings->n; i++)
    mem_free(strings->item[i]);
  mem_free(strings->item);
  *strings = (struct option_strings){0};
}

static enum status store_strings(const struct option *option, const struct option_given *given,
                                 struct option_strings *to)
{
  struct option_strings fresh = {0};
  const struct option_given none = {.where = given->where, .list = true};
  if (!given->list && !*given->item[0])
    given = &none;
  for (int i = 0, choice; option->choices && i < given->n; i++)
    if (!parse_choice(option, given->item[i], &choice))
      return reject(option, given, given->item[i]);
  enum status status = mem_new(MEM_META, given->n, &fresh.item);
  for (; fresh.n < given->n && !status; fresh.n++)
    status = store_string(&fresh.item[fresh.n], given->item[fresh.n]);
  if (status) {
    free_strings(&fresh);
    return status;
  }
  free_strings(to);
  *to = fresh;
  return STATUS_OK;
}

static enum status store_scalar(const struct option *option, const struct option_given *given,
                                void *to)
{
  const char *text = given->item[0];
  bool good = false;
  switch (option->type) {
  case OPTION_INT: good = parse_int(option, text, to); break;
  case OPTION_REAL: good = parse_real(option, text, to); break;
  case OPTION_BOOL: good = options_parse_bool(text, to); break;
  case OPTION_CHOICE: good = parse_choice(option, text, to); break;
  case OPTION_STRING: return store_string(to, text);
  case OPTION_REALS:
  case OPTION_INTS:
  case OPTION_STRINGS: break;
  }
  return good ? STATUS_OK : reject(option, given, text);
}

enum status options_store(struct option_set *set, int index, const struct option_given *given)
{
  const struct option *option = &set->table[index];
  char *item[] = {(char *)option->value};
  const struct option_given unset = {.where = options_auto, .n = 1, .item = item};
  void *to = field(set, option);
  if (option->chosen && !given->list && strcmp(given->item[0], options_auto) == 0 &&
      strcmp(given->where, unset_by) != 0)
    given = &unset;
  enum status status = options_check_paths(option, given);
  if (status)
    return status;
  if (option->type == OPTION_REALS || option->type == OPTION_INTS)
    status = store_numbers(option, given, to);
  else if (option->type == OPTION_STRINGS)
    status = store_strings(option, given, to);
  else
    status = given->list ? reject(option, given, "") : store_scalar(option, given, to);
  return status ?: store_string(&set->origin[index].where, given->where);
}

/* --- "key=value" --------------------------------------------------------- */

static char *trim(char *text)
{
  while (isspace((unsigned char)*text))
    text++;
  size_t length = strlen(text);
  while (length > 0 && isspace((unsigned char)text[length - 1]))
    length--;
  text[length] = '\0';
  return text;
}

/* The end of what begins at `text` and stays as it is: a text in quotes or a comment. */
static const char *end_of_kept(const char *text, const char *end, char before)
{
  const char *last = NULL;
  if (!strchr(" \n[{,:", before))
    return text;
  if (*text == '"' || *text == '\'')
    last = memchr(text + 1, *text, (size_t)(end - text - 1));
  else if (*text == '#')
    last = memchr(text, '\n', (size_t)(end - text));
  return last ? last : text;
}

size_t options_clean(char *text, size_t bytes, bool quotes)
{
  const char *end = text + bytes;
  char *to = text;
  struct character c;
  for (const char *from = text; from < end; from += c.bytes) {
    const char *kept = quotes ? end_of_kept(from, end, to > text ? to[-1] : '\n') : from;
    memmove(to, from, (size_t)(kept - from));
    to += kept - from;
    from = kept;
    c = printable_at(from, (size_t)(end - from));
    if (c.bytes > 1 && printable_is_blank(c.code))
      *to++ = ' ';
    if (c.bytes > 1 && printable_is_unseen(c.code))
      continue;
    memmove(to, from, c.bytes);
    to += c.bytes;
  }
  return (size_t)(to - text);
}

/* The comma after the item at the start of `text`, or NULL. Commas between quotes do not count. */
static char *item_end(char *text)
{
  const char *start = text + strspn(text, " \t");
  char *close = *start == '"' || *start == '\'' ? strchr(start + 1, *start) : NULL;
  return strchr(close ? close : text, ',');
}

/* As in YAML, quotes around an item are not part of it. A shell passes them on if the whole list is
 * quoted. */
static char *unquote(char *text)
{
  const size_t length = strlen(text);
  if (length < 2 || (text[0] != '"' && text[0] != '\'') || text[length - 1] != text[0])
    return text;
  text[length - 1] = '\0';
  return text + 1;
}

/* Cuts "[a, b]", "a,b" or "['a', 'b']" in place. An empty text is an empty list. Returns the number
 * of items. */
static int split_list(char *text, char **item)
{
  text = trim(text);
  size_t length = strlen(text);
  if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
    text[length - 1] = '\0';
    text = trim(text + 1);
  }
  int n = 0;
  for (char *rest = *text ? text : NULL; rest;) {
    char *comma = item_end(rest);
    if (comma)
      *comma = '\0';
    item[n++] = unquote(trim(rest));
    rest = comma ? comma + 1 : NULL;
  }
  return n;
}

/* Without what cannot be seen, unless it separates two words, which a message then shows. `copy` is
 * one of `text`, of a list or of a word. */
static char *clean(char *copy, const char *text, bool list)
{
  copy[options_clean(copy, strlen(copy), false)] = '\0';
  if (strcmp(copy, text) == 0)
    return copy;
  char *word = trim(copy);
  return list || !strchr(word, ' ') ? word : memcpy(copy, text, strlen(text) + 1);
}

static enum status store_text(struct option_set *set, int index, const char *where,
                              const char *text)
{
  const struct option *option = &set->table[index];
  const bool lone = option->type == OPTION_STRING || (option->path && !strpbrk(text, "[,"));
  struct option_given given = {.where = where, .n = 1, .list = is_list(option->type) && !lone};
  char *copy = mem_strdup(text);
  if (!copy)
    return STATUS_MEMORY;
  enum status status = mem_new(MEM_META, 1 + strlen(text), &given.item);
  if (!status) {
    given.item[0] = copy;
    if (!lone)
      given.item[0] = clean(copy, text, given.list);
    if (given.list)
      given.n = split_list(copy, given.item);
    status = options_store(set, index, &given);
  }
  mem_free(given.item);
  mem_free(copy);
  return status;
}

bool options_is_utf8(const char *text)
{
  const char *end = text + strlen(text);
  for (struct character c; text < end; text += c.bytes) {
    c = printable_at(text, (size_t)(end - text));
    if (c.bytes == 1 && c.code >= 0x80)
      return false;
  }
  return true;
}

enum status options_resolve_from(struct option_set *set, const char *where, const char *name,
                                 const char *value)
{
  const int index = options_find(set->table, name);
  if (index < 0)
    return options_unknown(set, where, name);
  if (!options_is_utf8(value))
    return status_usage(
        "%s: the value of %s is not UTF-8; rename the file or set the terminal to UTF-8", where,
        name);
  return store_text(set, index, where, value);
}

enum status options_choose(struct option_set *set, const char *name, const char *value,
                           const char *before)
{
  char *where = mem_printf("%s%s%s", chosen_by, before ? " of " : "", before ? before : "");
  const enum status status = where ? options_resolve_from(set, where, name, value) : STATUS_MEMORY;
  mem_free(where);
  return status;
}

bool options_is_chosen(const struct option_set *set, const char *name)
{
  return strncmp(options_where(set, name), chosen_by, sizeof chosen_by - 1) == 0;
}

bool options_is_free(const struct option_set *set, const struct option *option)
{
  return option->chosen && !options_is_set(set, option->name);
}

bool options_is_freed(const struct option_set *set, const char *name)
{
  return strcmp(options_where(set, name), options_auto) == 0;
}

enum status options_assign(struct option_set *set, const char *assignment)
{
  static const char where[] = OPTIONS_COMMAND_LINE;
  const char *equals = strchr(assignment, '=');
  if (!equals || equals == assignment)
    return status_usage("%s: '%s' is not of the form key=value, such as %s=%s", where, assignment,
                        set->table[0].name, set->table[0].value ? set->table[0].value : "...");
  char *name = mem_printf("%.*s", (int)(equals - assignment), assignment);
  if (!name)
    return STATUS_MEMORY;
  const enum status status = options_resolve_from(set, where, name, equals + 1);
  mem_free(name);
  return status;
}

/* --- the set ------------------------------------------------------------- */

static enum status set_default(struct option_set *set, int index)
{
  const struct option *option = &set->table[index];
  if (option->value)
    return store_text(set, index, unset_by, option->value);
  return option->type == OPTION_STRING ? store_text(set, index, unset_by, "")
                                       : STATUS_OK; /* required option: readers never see NULL */
}

enum status options_unchoose(struct option_set *set)
{
  enum status status = STATUS_OK;
  for (int i = 0; i < set->n && !status; i++)
    if (options_is_chosen(set, set->table[i].name))
      status = set_default(set, i);
  return status;
}

enum status options_create(const struct option *table, void *values, struct option_set **out)
{
  int n = 0;
  struct option_set *set = NULL;
  for (; table[n].name; n++)
    memset((char *)values + table[n].offset, 0, size_of(&table[n]));
  enum status status =
      mem_alloc(MEM_META, sizeof(struct option_set) + (size_t)n * sizeof(struct option_origin),
                (void **)&set);
  if (status)
    return status;
  set->table = table;
  set->values = values;
  set->n = n;
  for (int i = 0; i < n && !status; i++)
    status = set_default(set, i);
  if (status)
    options_destroy(set);
  else
    *out = set;
  return status;
}

void options_set_aliases(struct option_set *set, const struct option_alias *aliases)
{
  set->aliases = aliases;
}

void options_destroy(struct option_set *set)
{
  if (!set)
    return;
  for (int i = 0; i < set->n; i++) {
    const struct option *option = &set->table[i];
    mem_free(set->origin[i].where);
    if (option->type == OPTION_STRING)
      mem_free(*(char **)field(set, option));
    if (option->type == OPTION_STRINGS)
      free_strings(field(set, option));
    memset(field(set, option), 0, size_of(option));
  }
  mem_free(set);
}

static enum status copy_option(const struct option_set *from, struct option_set *to, int index)
{
  const struct option *option = &from->table[index];
  const char *where = options_where(from, option->name);
  char *text = NULL;
  if (option->type == OPTION_STRINGS) { /* as text, items would be quoted */
    const struct option_strings *strings = field(from, option);
    return options_store(to, index,
                         &(struct option_given){
                             .where = where, .list = true, .n = strings->n, .item = strings->item});
  }
  const enum status status =
      options_print_value(option, from->values, &text) ?: store_text(to, index, where, text);
  mem_free(text);
  return status;
}

enum status options_copy(const struct option_set *from, void *values, struct option_set **out)
{
  struct option_set *set = NULL;
  enum status status = options_create(from->table, values, &set);
  for (int i = 0; i < from->n && !status; i++)
    status = copy_option(from, set, i);
  if (status) {
    options_destroy(set);
    return status;
  }
  set->aliases = from->aliases;
  *out = set;
  return STATUS_OK;
}

enum status options_check_required(const struct option_set *set)
{
  for (int i = 0; i < set->n; i++) {
    const struct option *option = &set->table[i];
    if (option->value || options_is_set(set, option->name))
      continue;
    char expected[600];
    options_expected(option, expected, sizeof expected);
    return status_usage("%s is missing: set %s=..., %s: %.*s", option->name, option->name, expected,
                        prose_sentence(option->text), option->text);
  }
  return STATUS_OK;
}

bool options_has(const struct option *table, const char *name)
{
  return options_find(table, name) >= 0;
}

bool options_is_set(const struct option_set *set, const char *name)
{
  return strcmp(options_where(set, name), unset_by) != 0 && !options_is_freed(set, name);
}

const char *options_where(const struct option_set *set, const char *name)
{
  int index = options_find(set->table, name);
  return index >= 0 && set->origin[index].where ? set->origin[index].where : unset_by;
}

bool options_is_typed(const struct option_set *set, const char *name)
{
  return strcmp(options_where(set, name), OPTIONS_COMMAND_LINE) == 0;
}

bool options_is_site(const struct option_set *set, const char *name)
{
  return strncmp(options_where(set, name), OPTIONS_SITE, sizeof OPTIONS_SITE - 1) == 0;
}

static uint64_t hash_string(uint64_t hash, const char *text)
{
  return hash_bytes(hash, text, strlen(text) + 1);
}

static uint64_t hash_value(uint64_t hash, const struct option *option, const void *from)
{
  const struct option_strings *strings = from;
  if (option->type == OPTION_STRING)
    return hash_string(hash, *(char *const *)from);
  if (option->type == OPTION_CHOICE) /* by name: an index may change from version to version */
    return hash_string(hash, option->choices[*(const int *)from]);
  if (option->type != OPTION_STRINGS)
    return hash_bytes(hash, from, size_of(option));
  hash = hash_bytes(hash, &strings->n, sizeof strings->n);
  for (int i = 0; i < strings->n; i++)
    hash = hash_string(hash, strings->item[i]);
  return hash;
}

/* Adds the default of an option that the program chooses: an integer, a choice or a text. */
static uint64_t hash_default(uint64_t hash, const struct option *option)
{
  const int64_t number = strtoll(option->value, NULL, 10);
  return option->type == OPTION_INT ? hash_bytes(hash, &number, sizeof number)
                                    : hash_string(hash, option->value);
}

uint64_t options_hash(const struct option_set *set)
{
  uint64_t hash = HASH_START;
  for (const struct option *option = set->table; option->name; option++)
    if (!option->unhashed) {
      hash = hash_string(hash, option->name);
      hash = options_is_chosen(set, option->name) ? hash_default(hash, option)
                                                  : hash_value(hash, option, field(set, option));
    }
  return hash;
}
