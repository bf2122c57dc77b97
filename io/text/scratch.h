/* A folder for a file that is being written. It belongs to this user alone (mode 0700), stands next
 * to the file's place, and is removed when the file has moved there. So another user who may write
 * there cannot put a link in place of the unfinished file, which all ranks open, and HDF5
 * several times, by name. The path of the file goes through a descriptor of the folder, so a folder
 * or link that takes the folder's name has no effect. */
#pragma once

#include <stdbool.h>

#include "comm/comm.h"

struct scratch {
  int fd;       /* of the folder */
  char *folder; /* DIR/.NAME.tmp-XXXXXX; NULL: there is none */
  char *file;   /* the unfinished file, as this process must open it; it has the folder's name */
  bool makes;   /* this process made the folder */
};

/* Makes the folder, and an empty file in it, for a file that will be `final`. On failure nothing
 * remains. Local. */
enum status scratch_make(const char *final, struct scratch *out);
/* Rank 0 has made it; the other ranks open it. Collective. */
enum status scratch_share(struct comm *comm, struct scratch *scratch);
/* Flushes the file and moves it to `final`. Local. */
enum status scratch_publish(struct scratch *scratch, const char *final);
/* Removes the folder with all files if this process made it. Takes a zeroed one. Local. */
void scratch_drop(struct scratch *scratch);
/* Names the folder in the current sentence, if that has a path which only a process understands.
 * Returns `status`. Local. */
enum status scratch_explain(const struct scratch *scratch, enum status status);

/* Whether an entry of a folder has the name of a scratch folder. Then *length is the length of
 * NAME, which begins at entry + 1. Local. */
bool scratch_parse(const char *entry, int *length);
/* Removes DIR/ENTRY if it is a scratch folder of this user that no process uses. Local. */
void scratch_clear(const char *dir, const char *entry);
/* The same for all that killed processes left for `final`. Local. */
void scratch_sweep(const char *final);
