/* Recognises files that the caller cannot read by their first bytes: an HTML page in place of a
 * download, a Git LFS pointer, an archive. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { FILE_KIND_BYTES = 512 }; /* so many bytes tell each kind, and fewer most of them */

struct file_kind {
  size_t at, bytes;                   /* place and length of `magic` */
  const char *magic, *is;             /* "a Parquet file" */
  const char *text_cure, *model_cure; /* if text is wanted, and if a file of a model is. The user
                                         replaces FILE and OUT. */
  bool weak;                          /* others may begin so: the file must hold controls too */
};

/* The kind of a binary file by its first bytes, NULL: none that is known. Local. */
const struct file_kind *file_kind_find(const char *start, size_t bytes);

/* STATUS_INPUT if the file is of a known kind: "PATH is KIND, not WANTED: the cure". `start`: its
 * first bytes, `bytes` of them, at least FILE_KIND_BYTES if it has as many. Local. */
enum status file_kind_refuse(const char *path, const char *wanted, const char *start, size_t bytes);
