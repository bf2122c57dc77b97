/* Commands that only read results are Python scripts, in the folder tools/. Private to src/cmd. */
#pragma once

#include "cmd/cmd.h"

/* Become the script NAME.py, which gets the values of `table` as key=value, then --, then the
 * words. It is in the folder tools/ next to the program, as in a build, or in that of the
 * installation.
 * Returns only if it fails: STATUS_UNSUPPORTED without python3. Local. */
enum status script_become(const char *name, const struct option *table,
                          const struct option_set *set, int words, char *const word[]);
