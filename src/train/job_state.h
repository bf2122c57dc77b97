/* The state of a job as named tensors in memory of the host, whatever memory its device has: for initialisation, for what loads and for what saves. */
#ifndef SLUICE_TRAIN_JOB_STATE_H
#define SLUICE_TRAIN_JOB_STATE_H

#include "io/state.h"
#include "train/job.h"

struct job_state_piece; /* what a rank holds of one kind in one unit */

struct job_state {
  struct io_tensor *tensor; /* "model" in the order of units and parameters, then "exp_avg" and "exp_avg_sq" likewise */
  int n;

  const struct job *job; /* from here on the module's own */
  struct job_state_piece *piece;
  int pieces;
  void *block;
  bool loads;
};

/* Parameters, and with `moments` both of AdamW's, which frozen parameters do not have. `unique`: each element on exactly one rank (for saving), otherwise all that this rank
 * holds (for loading). Where the host reads the device's memory data point into it; elsewhere into a block of job_state_bytes() that holds a copy of it or, with `load`, zeros
 * until they are filled. Nothing may be under way on the device. Local. */
enum status job_state_open(const struct job *job, bool moments, bool unique, bool load, struct job_state **out);
/* What was filled is the device's (`load`). Padding between parameters is zero. Local. */
enum status job_state_commit(struct job_state *state);
void job_state_close(struct job_state *state); /* takes NULL */

/* Of the state of this rank's plan, as opened for loading. Local. */
int64_t job_state_bytes(const struct plan *plan, bool moments);

/* Parameters as the architecture's initialisation and run.seed have them; moments are zero in a new job. Local. */
enum status job_state_init(const struct job *job);

#endif
