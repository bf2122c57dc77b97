/* The file system that a folder lies on: which it is, who else has it, and what room it has. */
#ifndef SLUICE_IO_TEXT_FILE_SYSTEM_H
#define SLUICE_IO_TEXT_FILE_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* By its type. Some (fuse) are either, and some are not known. */
enum file_system_reach { REACH_UNKNOWN, REACH_NODE, REACH_SHARED };

struct file_system {
  char type[16]; /* "ext4", "nfs", ...; of one that is not known its number: "type 1badface" */
  enum file_system_reach reach;
  bool in_memory, one_writer; /* one_writer: a file that many nodes write is slow there */
  int64_t size, free;         /* bytes; free: what this user may write */
};

/* Facts of `dir`, or of the nearest of its parents that exists. STATUS_IO. Local. */
enum status file_system_read(const char *dir, struct file_system *out);
/* The folder itself, or the nearest of its parents that is there ("" is "."). mem_free. Local. */
enum status file_system_find_nearest(const char *dir, char **out);

#endif
