/* The state of a job as named fp32 tensors, in any tier and type. For initialisation, loading and
 * saving. */
#pragma once

#include "io/checkpoint/state.h"
#include "job/job.h"

struct job_state_piece;  /* a rank's part of one kind in one unit */
struct job_state_part;   /* the part of a piece that belongs to a tensor */
struct job_state_coding; /* a frozen part that is decoded */
struct job_state_merge;  /* conversion of residuals that other ranks have saved */

/* The job that saved a checkpoint, as far as residuals and copies of parameters depend on it. */
struct job_state_saved {
  int ranks;
  struct deck_policy policy; /* names the units that have residuals, and their type */
  bool copies;               /* compress.weights.delta: it has copies of parameters */
  struct encoded encoded;    /* the part of a unit that a residual covers */
};

struct job_state {
  struct io_tensor *tensor; /* "model" in the order of units and parameters, then each state of the
                               optimizer likewise, then "nf4" */
  int n;

  const struct job *job; /* private from here on */
  const struct plan *plan;
  struct job_state_piece *piece;
  struct job_state_part *part; /* of each tensor */
  int pieces;
  struct job_state_merge *merge;
  struct job_state_coding *coding;     /* NULL: none yet */
  const struct job_state_saved *saved; /* NULL: as this job would save */
  void *block, *scratch;
  int64_t block_bytes;
  bool loads, pinned, copies; /* copies: as they were saved */
};

/* Memory for job->scales. Local. */
enum status job_state_make_scales(struct job *job);

/* Parameters, and with `moments` the optimizer's state, which frozen parameters do not have. With
 * `unique` (for saving), each element is on exactly one rank, and the base of adapters is left out.
 * Otherwise (for loading) all elements of this rank are included. If the host can read fp32 data,
 * pointers are into them. Data on a separate device go through a block of job_state_bytes(). It
 * holds a copy of them or, with `load`, zeros until it is filled. Data on disk, 16-bit moments, and
 * frozen parts that are kept as messages, have no data pointer. They are moved piece by piece, as
 * moments in fp32, from which the same codes are made again (device/moments.h). With `load` all
 * moments on the disk that will not be filled are zeroed. No step may be running. Local. */
enum status job_state_open(const struct job *job, bool moments, bool unique, bool load,
                           struct job_state **out);
/* For loading with moments, and with residuals as they were saved. If the same number of ranks
 * encoded the same parts, each takes its own residual. Otherwise each takes an equal share of the
 * sum, because only the sum over ranks changes parameters. `saved` must outlive the state.
 * Local. */
enum status job_state_open_saved(const struct job *job, const struct job_state_saved *saved,
                                 struct job_state **out);
/* The filled data become the job's (`load`), and its working copy is made from them. Ranks that
 * share a copy may use it once all of them have committed. Padding between parameters is zero.
 * Collective. */
enum status job_state_commit(struct job_state *state);
void job_state_close(struct job_state *state); /* takes NULL */
/* Fills a range of a tensor of any type with the fp32 elements that `source` writes to out[0 ..].
 * It calls `source` for one run after the other, by its range of the whole tensor. Several threads
 * may fill different ranges of a tensor in memory. Local. */
typedef enum status job_state_source(const void *arg, struct layout_range range, float *out);
enum status job_state_fill(const struct io_tensor *tensor, struct layout_range range,
                           job_state_source *source, const void *arg);
/* The same with the initial values of a parameter. Local. */
enum status job_state_init_param(const struct job_state *state, int unit, int param,
                                 const struct io_tensor *tensor, struct layout_range range);
/* The part of a parameter that only this rank would save: ranks that hold the same elements divide
 * them. Local. */
struct layout_range job_state_own(const struct job_state *state, int unit, int param);
/* After job_state_commit() of all ranks: each rank completes its copies, which belong to
 * compress.weights.delta, by the other ranks' parts. Collective. */
enum status job_state_share_copies(const struct job *job);

/* Host memory for the state of this rank's plan with a separate device, as opened for loading.
 * Frozen parts that are kept as messages are decoded there one by one. Local. */
int64_t job_state_bytes(const struct plan *plan, bool moments);

/* Allocates host memory for a copy of all data that this rank saves, in their own types.
 * STATUS_MEMORY if there is too little. Local. */
enum status job_state_create_snapshot(const struct job *job, struct job_state **out);
/* Copies the current state. The copy stays until the next call, whatever the job does. No step may
 * be running. Local. */
enum status job_state_take_snapshot(struct job_state *state);
int64_t job_state_snapshot_bytes(const struct job *job);

/* Sets parameters by the architecture's initialisation and run.seed. Moments are zero in a new job.
 * Collective. */
enum status job_state_init(const struct job *job);
/* Fills tensors[i] as state->tensor[i], for all parameters. Local. */
enum status job_state_init_tensors(struct job_state *state, const struct io_tensor *tensors);
