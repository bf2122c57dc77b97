/* Recognises files that the caller cannot read by their first bytes: an HTML page in place of a
 * download, a Git LFS pointer, an archive. */
#ifndef SLUICE_IO_TEXT_FILE_KIND_H
#define SLUICE_IO_TEXT_FILE_KIND_H

#include <stddef.h>

#include "base/status.h"

enum { FILE_KIND_BYTES = 512 }; /* so many bytes tell each kind, and fewer most of them */

/* STATUS_INPUT if the file is of a known kind: "PATH is KIND, not WANTED: the cure". `start`: its
 * first bytes, `bytes` of them, at least FILE_KIND_BYTES if it has as many. Local. */
enum status file_kind_refuse(const char *path, const char *wanted, const char *start, size_t bytes);

#endif
