/* The file system of a folder: its type, whether other nodes share it, and its free space. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Known from the type. Some types (fuse) may be local or shared. */
enum file_system_reach { REACH_UNKNOWN, REACH_NODE, REACH_SHARED };

struct file_system {
  char type[16]; /* "ext4", "nfs", ...; "type 1badface", with its number, for an unknown one */
  enum file_system_reach reach;
  bool in_memory, one_writer; /* one_writer: it is slow if many nodes write one file */
  int64_t size, free;         /* bytes; free: for this user */
};

/* Facts of `dir`, or of the nearest of its parents that exists. STATUS_IO. Local. */
enum status file_system_read(const char *dir, struct file_system *out);
/* The folder itself, or the nearest of its parents that is there ("" is "."). mem_free. Local. */
enum status file_system_find_nearest(const char *dir, char **out);
