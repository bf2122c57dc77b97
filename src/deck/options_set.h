/* Shared by the files of the option set. Private to src/deck/options*.c. */
#pragma once

#include "deck/options.h"

enum { OPTIONS_DEPTH = 2 }; /* of sections: section.section.key */

struct option_origin {
  char *where; /* "quickstart.yaml:12", "command line" or "default"; NULL: not set */
  int read;    /* the reading that set it, to find duplicates */
  /* Likewise for sections. The first option of a section keeps it, at the number of dots in the
   * section's name. */
  int section_read[OPTIONS_DEPTH], section_line[OPTIONS_DEPTH];
};

struct option_set {
  const struct option *table;
  const struct option_alias *aliases; /* NULL: none */
  void *values;
  int n, reads;
  struct option_origin origin[];
};

/* Texts that were given for one option. */
struct option_given {
  const char *where;
  bool list;
  int n;
  int64_t room; /* of item[] */
  char **item;
};

/* Refuses what only a shell would read as meant, if the option is a path. Local. */
enum status options_check_paths(const struct option *option, const struct option_given *given);

/* The text that unsets an option which the program chooses. */
extern const char options_auto[];
/* Parse, and store with the origin. On failure the old value stands. */
enum status options_store(struct option_set *set, int index, const struct option_given *given);

/* Index of a name in the table, or of the first option of a section; -1. */
int options_find(const struct option *table, const char *name);
int options_find_section(const struct option *table, const char *section);
bool options_in_section(const char *name, const char *section);
/* Bytes of the outermost section of "section.key", 0 without one. */
int options_section_length(const char *name);
/* Whether the option before it is of another section, or there is none. */
bool options_begins_section(const struct option *table, const struct option *option);

/* STATUS_USAGE with the nearest known name. */
enum status options_unknown(const struct option_set *set, const char *where, const char *name);
/* Description of a valid value: "an integer of at least 1", "one of a, b". */
void options_expected(const struct option *option, char *out, size_t size);

/* Adds "a, b, c" to `out`. */
void options_append_choices(const struct option *option, char *out, size_t size);
/* Whether its unit is OPTIONS_BYTES. */
bool options_is_size(const struct option *option);

/* Blanks that only other programs know become blanks, and characters that cannot be seen vanish, as
 * they come with text that was copied. `quotes`: those in quotes and in comments of YAML stay.
 * Returns the bytes that are left of `bytes`. */
size_t options_clean(char *text, size_t bytes, bool quotes);

bool options_is_utf8(const char *text);
