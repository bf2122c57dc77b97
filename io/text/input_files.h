/* The files of a corpus, in an order that depends only on their names. Private to io. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

struct input_file {
  char *path;
  /* Where in the path its name begins: the path below the input folder, or the last part of a
   * file's path. So it is the same wherever the data are stored. */
  size_t name;
  int64_t bytes;
  uint32_t crc32; /* of the first and the last MiB */
};

struct input_files {
  struct input_file *file;
  int64_t count, room, bytes;
};

/* The files that `n` paths of files and folders name. Rank 0 walks them and sends the list to all
 * ranks. Hidden files and folders (".name") and the folder of the output, `folder`, are skipped.
 * Collective. */
enum status input_files_list(struct comm *comm, int n, char *const *path, const char *folder,
                             struct input_files *out);
/* A part of the work on them. */
struct input_piece {
  int64_t bytes, number;
};

/* Takes one document of a piece. *byte: of its file, where the document ends. */
typedef enum status input_step(void *user, int64_t number, int64_t *byte, bool *finished);

/* Works on n pieces that all ranks pass alike. The largest piece goes to the rank with the least
 * work so far, and so on. All ranks learn within seconds of a rank that fails. `name` begins the
 * progress line. Afterwards the order of the pieces is another one. Collective. */
enum status input_files_work(struct comm *comm, const char *name, struct input_piece *piece,
                             int64_t n, input_step *step, void *user);

void input_files_free(struct input_files *inputs); /* takes a zeroed one */
