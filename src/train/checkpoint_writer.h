/* Writes checkpoints, in the background if it can: the steps wait only for a copy of the state in
 * host memory. A thread with a communicator of its own writes the copy. */
#pragma once

#include "io/checkpoint/checkpoint.h"
#include "job/job.h"

struct checkpoint_writer;

/* For the checkpoints in folder `dir` of a job that has its executors. Both must outlive the
 * writer. Collective. */
enum status checkpoint_writer_create(struct job *job, const char *dir,
                                     struct checkpoint_writer **out);
/* Waits for a pending save, and logs whether it was written. Takes NULL; Collective. */
void checkpoint_writer_destroy(struct checkpoint_writer *writer);

/* The result of a save. `seconds`: from its begin until it was complete. `held_s`: time that the
 * steps waited for it. */
struct checkpoint_writer_report {
  int64_t step, bytes;
  double seconds, held_s;
  bool behind;
};

/* Save the current state; no step may be running. With `prune`, then remove older checkpoints by
 * the deck's rules. `since`: time (clock_s) at which the steps were stopped for it. With `behind`,
 * checkpoint.background, and memory for the copy, the call returns after the copy, else when the
 * file is complete. The save is pending until checkpoint_writer_finish(), and no other save may
 * begin. Nothing of `meta` is kept. A failure leaves earlier checkpoints as they are.
 * Collective. */
enum status checkpoint_writer_save(struct checkpoint_writer *writer,
                                   const struct checkpoint_meta *meta, bool behind, bool prune,
                                   double since);
/* The same on all ranks. Local. */
bool checkpoint_writer_is_pending(const struct checkpoint_writer *writer);
/* This rank still writes. Local. */
bool checkpoint_writer_is_writing(struct checkpoint_writer *writer);
/* Waits for the pending save and logs the result. The status is the same on all ranks. Without a
 * pending save: STATUS_INTERNAL. Collective. */
enum status checkpoint_writer_finish(struct checkpoint_writer *writer,
                                     struct checkpoint_writer_report *out);
