/* The state of a job as named fp32 tensors, wherever and in whatever type it lies: for
 * initialisation, for what loads and for what saves. */
#ifndef SLUICE_JOB_STATE_H
#define SLUICE_JOB_STATE_H

#include "io/checkpoint/state.h"
#include "job/job.h"

struct job_state_piece; /* what a rank holds of one kind in one unit */
struct job_state_part;  /* what of a piece is a tensor's */
struct job_state_merge; /* of residuals that other ranks have saved */

/* The job that saved a checkpoint, as far as residuals and copies of parameters depend on it. */
struct job_state_saved {
  int ranks;
  struct deck_policy policy; /* names the units that have residuals, and their type */
  bool copies;               /* compress.weights.delta: copies of parameters are there */
  struct encoded encoded;    /* the part of a unit that a residual is of */
};

struct job_state {
  struct io_tensor *tensor; /* "model" in the order of units and parameters, then each state of the
                               optimizer likewise */
  int n;

  const struct job *job; /* from here on the module's own */
  const struct plan *plan;
  struct job_state_piece *piece;
  struct job_state_part *part; /* of each tensor */
  int pieces;
  struct job_state_merge *merge;
  const struct job_state_saved *saved; /* NULL: as this job would save */
  void *block, *scratch;
  int64_t block_bytes;
  bool loads, pinned, copies; /* copies: as they were saved */
};

/* Parameters, and with `moments` the optimizer's state, which frozen parameters do not have.
 * `unique`: each element is on exactly one rank (for saving); otherwise all elements of this rank
 * (for loading). fp32 that the host can read is used in place: data point into it. Data on a
 * separate device go through a block of job_state_bytes(). It holds a copy of them or, with `load`,
 * zeros until it is filled. Data on disk, and 16-bit moments, have no data pointer. They are moved
 * piece by piece, without loss: as true moments in fp32, which give the same bits again
 * (device/moments.h). With `load` all moments on the disk that are not going to be filled are
 * zeroed. Nothing may be under way. Local. */
enum status job_state_open(const struct job *job, bool moments, bool unique, bool load,
                           struct job_state **out);
/* For loading with moments, and with residuals as they were saved. If as many ranks have encoded
 * the same parts, each takes its own. Otherwise each takes an equal share of their sum, because
 * only the sum over ranks changes parameters. `saved` must outlive the state. Local. */
enum status job_state_open_saved(const struct job *job, const struct job_state_saved *saved,
                                 struct job_state **out);
/* The filled data become the job's (`load`), and its working copy is made from them. Ranks that
 * share a copy may use it once all of them have committed. Padding between parameters is zero.
 * Local. */
enum status job_state_commit(struct job_state *state);
void job_state_close(struct job_state *state); /* takes NULL */
/* After job_state_commit() of all ranks: each rank completes its copies, which belong to
 * compress.weights.delta, by the other ranks' parts. Collective. */
enum status job_state_share_copies(const struct job *job);

/* Host memory for the state of this rank's plan with a separate device, as opened for loading.
 * Local. */
int64_t job_state_bytes(const struct plan *plan, bool moments);

/* Room in host memory for a copy of all that this rank saves, in the types that it has.
 * STATUS_MEMORY where it is not there. Local. */
enum status job_state_create_snapshot(const struct job *job, struct job_state **out);
/* The copy is that of now, until the next call, whatever the job does. Nothing may be under way in
 * it. Local. */
enum status job_state_take_snapshot(struct job_state *state);
int64_t job_state_snapshot_bytes(const struct job *job);

/* Parameters as the architecture's initialisation and run.seed have them; moments are zero in a new
 * job. Local. */
enum status job_state_init(const struct job *job);

#endif
