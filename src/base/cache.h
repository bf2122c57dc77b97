/* Files of the user's cache, which processes on several machines may read and replace at any time.
 * Nothing depends on them: what cannot be read is found again. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* FOLDER/sluice-NAME, with - in place of blanks and slashes of the name. The folder is
 * $XDG_CACHE_HOME, otherwise $HOME/.cache, and is made if it is missing. NULL: neither is set, or
 * memory is out. The caller frees it with mem_free. Local. */
char *cache_path(const char *name);

/* The file appears under its name only when it is complete. A failure is logged for debugging, and
 * an older file stays as it is. Local. */
bool cache_write(const char *path, const void *data, size_t bytes);

/* Removes files FOLDER/sluice-KIND-* until `most` are left, the oldest ones first. Local. */
void cache_trim(const char *kind, int most);
