/* Checkpoints: one HDF5 file per step, whose data all ranks write. The format is in
 * doc/reference/checkpoint.md. One thread at a time (io/hdf5/hdf5.h). */
#pragma once

#include <limits.h>
#include <stdio.h>

#include "comm/comm.h"
#include "io/checkpoint/state.h"
#include "io/text/file.h"
#include "io/tokens/tokens.h"

struct checkpoint_meta {
  int64_t step;        /* completed optimizer steps */
  int64_t samples;     /* sequences consumed: the position in the data order */
  int64_t skipped;     /* steps that the non-finite policy skipped */
  int64_t ranks;       /* that wrote it */
  int64_t local_ranks; /* of each of their nodes; 0: not known */
  uint64_t seed;
  uint64_t run;             /* id of the run that wrote it; 0: none */
  struct token_stream data; /* the training data */
  char compute[16];         /* type that the steps were computed in, "" if not known */
  uint64_t base_sum;        /* checksum of the base if the model has adapters; 0: it has none */
  char base[PATH_MAX];      /* folder or checkpoint of the base; "": initial values */
  char *deck;               /* the resolved deck as YAML */
  char *version;            /* of the program that wrote it */
};
void checkpoint_meta_free(struct checkpoint_meta *meta); /* takes a zeroed one */

/* Writes DIR/step-%08lld.h5 in a folder of its own next to it (io/text/scratch.h). Space is
 * allocated early and not filled. Ranks write their ranges, or send them to a rank that writes the
 * same block of the file. A CRC-32 per dataset is combined over ranks. Then come flush, fsync,
 * rename, and fsync of the folder. On failure nothing is left, and every earlier checkpoint is
 * untouched. Collective. */
enum status checkpoint_save(struct comm *comm, const char *dir, const struct checkpoint_meta *meta,
                            int n, const struct io_tensor *tensors, char **path_out);
/* The state of this process in a save, for a watchdog. A save that makes progress changes `moved`.
 * *doing is a constant text ("writing its data"), or NULL if there is no save. *waits: the process
 * waits for other ranks. Any thread. Local. */
void checkpoint_progress(int64_t *moved, const char **doing, bool *waits);

/* The same to `path`, which must not exist yet. Folders are made. Collective. */
enum status checkpoint_write(struct comm *comm, const char *path,
                             const struct checkpoint_meta *meta, int n,
                             const struct io_tensor *tensors);

/* Open, check signature, format, completeness; read the meta data. Collective. */
enum status checkpoint_read_meta(struct comm *comm, const char *path, struct checkpoint_meta *out);
/* Fills the ranges of `tensors`. Name, shape and type must match. An error names a missing or
 * misshapen tensor, and an extra tensor in one of the groups that are read. Every dataset's CRC is
 * verified; data that `move` took are verified when this returns. *damaged, if not NULL, says
 * whether the file itself failed, the same on all ranks. Otherwise the part that was read is
 * intact, but does not match the request. On failure, ranges may already have been filled.
 * Collective. */
enum status checkpoint_load(struct comm *comm, const char *path, int n, struct io_tensor *tensors,
                            bool *damaged);
/* Verify all datasets of a file: structure, meta data, checksums. Collective. */
enum status checkpoint_verify(struct comm *comm, const char *path);

/* The caller's way of using the checkpoint at `path`. *damaged: it failed because the file is
 * damaged; the same on all ranks. Collective. */
typedef enum status checkpoint_use(void *arg, const char *path, bool *damaged);
/* DIR/step-%08lld.h5, whether it exists or not. Local. */
struct file_path checkpoint_folder_path(const char *dir, int64_t step);

/* Use the newest DIR/step-*.h5. A damaged one (STATUS_INPUT or STATUS_IO) is skipped, and the log
 * says why. Any other failure is returned. *path_out is NULL if the folder has no step-*.h5. If all
 * are damaged, the call fails with STATUS_INPUT. `clean`: remove unfinished saves. Only the
 * run that owns the folder asks for it. Otherwise nothing is written. Collective. */
enum status checkpoint_use_newest(struct comm *comm, const char *dir, bool clean,
                                  checkpoint_use *use, void *arg, char **path_out);
/* The newest that verifies, for a caller that reads it later. */
enum status checkpoint_find(struct comm *comm, const char *dir, bool clean, char **path_out);
/* Number of step-*.h5 files in the folder. 0 if there is no folder. `clean`: remove unfinished
 * saves. Local. */
enum status checkpoint_count(const char *dir, bool clean, int64_t *n);
/* Renames every step-N.h5 with N > step to step-N.h5.stale, or step-N.h5.stale-2 and so on if there
 * is such a file. These are ignored from then on. For a run that continues from `step` and must not
 * meet checkpoints of another history. Rank 0 acts. Collective. */
enum status checkpoint_set_aside(struct comm *comm, const char *dir, int64_t step);
/* Deletes checkpoints that the run `run` wrote: the folder may hold those of another run, or copies
 * of the user. It keeps `saved` (the last save), the newest others of the run until `keep` are left
 * with it (0: all), and multiples of keep_every (0: none). Rank 0 acts. Collective. */
enum status checkpoint_prune(struct comm *comm, const char *dir, int64_t keep, int64_t keep_every,
                             int64_t saved, uint64_t run);

/* For `sluice ckpt`. One rank prints to `to`, as text or as JSON. Ls: one line per file. Show:
 * metadata and a table of tensors. Diff: names, shapes and values that differ between two files,
 * with the largest absolute difference and, of real numbers, the cosine of the angle between both
 * tensors. Without a difference, it prints that as a line of text. It sets *same. Local. */
enum status checkpoint_list(const char *dir, bool json, FILE *to);
enum status checkpoint_show(const char *path, bool json, FILE *to);
enum status checkpoint_diff(const char *a, const char *b, bool json, FILE *to, bool *same);
