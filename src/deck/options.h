/* One table of options drives the parser, `key=value`, --help, the man pages and the echo at start.
 *
 * A table describes the fields of a plain C struct. Values are set from YAML, from the command line
 * or by default. The origin of each value is kept, so that a later check can name file and line.
 * Knows nothing of MPI or devices. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

enum option_type {
  OPTION_INT,    /* int64_t; accepts 1k, 1M, 1G, 1Ki ..., and 1B, 1kB, 1KiB ... if the unit is
                    OPTIONS_BYTES */
  OPTION_REAL,   /* double */
  OPTION_BOOL,   /* bool: true/false/yes/no/on/off */
  OPTION_STRING, /* char *, owned by the option set */
  OPTION_CHOICE, /* int: index into `choices` */
  OPTION_REALS,  /* double[count], a YAML list of exactly `count` numbers */
  OPTION_INTS,   /* struct option_ints: a list of exactly `count` integers, or an empty one */
  OPTION_STRINGS /* struct option_strings: a list of any length; each item is one of `choices`, if
                    there are any */
};

enum { OPTION_MOST_NUMBERS = 2 };
struct option_ints {
  int64_t n, item[OPTION_MOST_NUMBERS];
};
struct option_strings {
  int n;
  char **item;
};
/* The first item, "" if there is none. */
static inline const char *options_first(const struct option_strings *strings)
{
  return strings->n > 0 ? strings->item[0] : "";
}

#define OPTIONS_BYTES "bytes"

struct option_alias;

struct option {
  const char *name; /* "shard.prefetch" (section.key), "compress.grads.codec" or "out" */
  enum option_type type;
  size_t offset; /* of the field in the struct */
  const char
      *value; /* default, as a user would write it; NULL: required; "" for an absent string */
  double least, most;         /* inclusive range of numbers; both 0: any */
  int count;                  /* OPTION_REALS, OPTION_INTS (at most OPTION_MOST_NUMBERS) */
  const char *const *choices; /* NULL-terminated */
  const char *unit;           /* "steps", "tokens", OPTIONS_BYTES, NULL */
  const char *text; /* for help and man pages (base/prose.h): a paragraph that begins with a short
                       sentence, and an optional list of the choices */
  const char *example; /* a value for help; NULL: see options_print_example() */
  bool rare;           /* left out of -h */
  bool unhashed;       /* left out of options_hash() */
  bool chosen;         /* OPTION_INT, OPTION_CHOICE, OPTION_STRING: unless it is set, the program
                          chooses its value at the start. The text "auto" unsets it. `value` is
                          used where nothing is chosen */
  bool path;  /* OPTION_STRING, OPTION_STRINGS: of files or folders. ~, $NAME, *, quotes and blanks
                 at an end are refused, because no shell replaces them here. A list of one path is
                 printed as the path */
  int effect; /* class of a value's effect, defined by the table; 0: none */
  const struct option_alias *aliases; /* OPTION_CHOICE: other names of choices, which the error
                                         message cites; NULL: none */
};

/* Names that other programs use for a key, or for a choice of OPTION_CHOICE. */
struct option_alias {
  const char *names; /* in lower case, without section, separated by blanks; NULL ends the table */
  const char *key;   /* in the option table; NULL: no such key. For a choice: its names */
  const char *note;  /* how to set it, or the difference; may be NULL if there is a key */
};

struct option_set; /* a struct's values, and where each came from */

/* All defaults. `table` ends with a NULL name and must outlive the set; `values` is the struct,
 * zeroed by the call. */
enum status options_create(const struct option *table, void *values, struct option_set **out);
/* Use `aliases` in the message for an unknown key. They must outlive the set. Local. */
void options_set_aliases(struct option_set *set, const struct option_alias *aliases);
void options_destroy(struct option_set *set); /* frees the strings in `values` too; takes NULL */

/* Read a YAML mapping (sections in sections; `label` names it in messages). The error for an
 * unknown key names the nearest known key. The error for a wrong type, a value out of range or a
 * duplicate key has file, line and the expected value. */
enum status options_read_text(struct option_set *set, const char *label, const char *text,
                              size_t bytes);
/* STATUS_USAGE if a deck has a NUL, or the mark of UTF-16 or UTF-32: it is damaged or not UTF-8.
 * Local. */
enum status options_check_text(const char *label, const char *text, size_t bytes);

/* "key=value" from the command line; lists as key=[a,b] or key=a,b, their items quoted or not. A
 * path alone is taken as it is. */
enum status options_assign(struct option_set *set, const char *assignment);

/* A finite decimal number. false: anything else. */
bool options_parse_real(const char *text, double *out);
/* A decimal integer from `least` to `most`, without a suffix. false: anything else. */
bool options_parse_whole(const char *text, int64_t least, int64_t most, int64_t *out);

/* The suffix of a number: empty, a letter of kMGT (powers of 1000), or the letter and an i (powers
 * of 1024). With `bytes`, a B may follow. False: any other text. */
bool options_parse_scale(const char *suffix, bool bytes, int64_t *scale);

/* A value of OPTION_BOOL. false: anything else. */
bool options_parse_bool(const char *text, bool *out);

/* Required options that were never set: STATUS_USAGE naming the first. */
enum status options_check_required(const struct option_set *set);

bool options_is_set(const struct option_set *set,
                    const char *name); /* set by a file or the command line, not by default */
#define OPTIONS_COMMAND_LINE "command line"
/* "quickstart.yaml:12", OPTIONS_COMMAND_LINE or "default": for messages of later checks. */
const char *options_where(const struct option_set *set, const char *name);
bool options_is_typed(const struct option_set *set, const char *name); /* on the command line */
/* The beginning of a label of options_read_text() for the defaults of a site, and whether a value
 * came from there. */
#define OPTIONS_SITE "site defaults, "
bool options_is_site(const struct option_set *set, const char *name);
/* Set a value that the program found itself. The echo shows it as if a user had written it. Same
 * rules as options_assign. `where` is its origin, such as a file that was read. */
enum status options_resolve_from(struct option_set *set, const char *where, const char *name,
                                 const char *value);

/* Set a value that the program has chosen, now or (`before`) when it wrote this file; NULL: now.
 * options_hash() has the default in its place, because a choice may depend on measured times. */
enum status options_choose(struct option_set *set, const char *name, const char *value,
                           const char *before);
bool options_is_chosen(const struct option_set *set, const char *name);
/* Give all chosen options their defaults again, as if nothing had been chosen. Local. */
enum status options_unchoose(struct option_set *set);
/* Whether the program may still choose this option of the set's table. Local. */
bool options_is_free(const struct option_set *set, const struct option *option);
/* Whether a file or the command line says "auto". Local. */
bool options_is_freed(const struct option_set *set, const char *name);

/* A copy of `from`, its values in `values`, and where they come from. Free with options_destroy.
 * Local. */
enum status options_copy(const struct option_set *from, void *values, struct option_set **out);

bool options_has(const struct option *table, const char *name);
/* Writes a suggestion for `name`, which is not in the table: the key of an alias, or the name with
 * the nearest spelling. The text follows "unknown key 'x'". `aliases` may be NULL. Local. */
void options_suggest(const struct option *table, const struct option_alias *aliases,
                     const char *name, char *out, size_t size);

/* Edit distance of two names: letters inserted, deleted or replaced. It finds the name that the
 * user meant. */
int options_distance(const char *a, const char *b);

/* A 64-bit hash of the values. The same in every run and on every machine. Local. */
uint64_t options_hash(const struct option_set *set);

/* The resolved values as YAML that options_read_text reads back to the same values, bit for bit. An
 * option that the program may still choose is "auto". *out is owned by the caller (mem_free). */
enum status options_print_yaml(const struct option_set *set, char **out);
/* The value of one option as text that the caller owns (mem_free): a text as it is, all others as
 * in YAML. Local. */
enum status options_print_value(const struct option *option, const void *values, char **out);
/* Likewise by name. STATUS_USAGE: no such key. Local. */
enum status options_print_named(const struct option_set *set, const char *name, char **out);
/* The table for help. The short form is one line per option: name and first sentence. It returns
 * the number of rare options that it left out. The long form
 * has type, default, unit and the whole text of the options of section `part`, or of the option of
 * this name; NULL: all. If there is none, it takes the options whose names end in `part`. It
 * returns the number of options that it printed. Local. */
int options_print_brief(const struct option *table, bool with_rare, FILE *to);
/* A value to show, as on a command line: option->example, the other value of OPTION_BOOL, the first
 * choice that is not the default, or else the default. Local. */
void options_print_example(const struct option *option, char *out, size_t size);
int options_print_help(const struct option *table, const char *part, int columns, FILE *to);
/* One line per option whose name or text has `word`, in any case. Returns their number. Local. */
int options_print_mentions(const struct option *table, const char *word, FILE *to);
/* The table as man page source (.TP entries). Local. */
void options_print_man(const struct option *table, FILE *to);
