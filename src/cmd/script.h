/* Commands that only read results are Python scripts, in the folder tools/. Private to src/cmd. */
#pragma once

#include "cmd/cmd.h"

/* The command that starts the script NAME.py with the words: argv for exec(3), NULL at the end.
 * packages: the script may use those of the user, and PYTHONPATH. The script is in the folder
 * tools/ next to the program, as in a build, or in that of the installation. The words are
 * mem_free()d, with the command or at once. A word that is NULL: STATUS_MEMORY. Local. */
enum status script_command(const char *name, bool packages, int words, char *const word[],
                           char ***argv);
void script_command_free(char **argv); /* takes NULL */

/* Become the script NAME.py, which gets the values of `table` as key=value, then --, then the
 * words. Returns only if it fails: STATUS_UNSUPPORTED without python3. Local. */
enum status script_become(const char *name, const struct option *table,
                          const struct option_set *set, int words, char *const word[]);
