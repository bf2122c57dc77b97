/* Writes checkpoints, behind the next steps where it may: the steps are held up for a copy of the state in host memory, which a thread writes by a communicator of its own. */
#ifndef SLUICE_TRAIN_CHECKPOINT_WRITER_H
#define SLUICE_TRAIN_CHECKPOINT_WRITER_H

#include "io/checkpoint/checkpoint.h"
#include "job/job.h"

struct checkpoint_writer;

/* For the checkpoints in folder `dir` of a job whose executors stand. Both must outlive it. Collective. */
enum status checkpoint_writer_create(struct job *job, const char *dir, struct checkpoint_writer **out);
/* Waits for a save that is under way, and says in the log whether it was written if it was not finished (checkpoint_writer_finish()). Takes NULL; Collective. */
void checkpoint_writer_destroy(struct checkpoint_writer *writer);

/* What became of a save. `seconds`: from its beginning until it was complete; `held_s`: for how long it held up the steps, waiting for it included. */
struct checkpoint_writer_report { int64_t step, bytes; double seconds, held_s; bool behind; };

/* Save the state of now, in which nothing may be under way, and with `prune` remove older ones behind it as the deck says; `since` is when (clock_s) the steps were stopped for it. With `behind`, where checkpoint.background is
 * set and the memory for the copy is there, it returns as soon as the copy is made, elsewhere when the file is complete. Then the save is pending until checkpoint_writer_finish(), and none other
 * may begin. Nothing of `meta` is kept. Failing leaves earlier checkpoints as they are. Collective. */
enum status checkpoint_writer_save(struct checkpoint_writer *writer,
                                   const struct checkpoint_meta *meta, bool behind, bool prune,
                                   double since);
/* The same on all ranks. Local. */
bool checkpoint_writer_is_pending(const struct checkpoint_writer *writer);
/* This rank still writes. Local. */
bool checkpoint_writer_is_writing(struct checkpoint_writer *writer);
/* Waits for the pending save, and says in the log what was saved. The status is the same on all ranks. Without a pending one: STATUS_INTERNAL. Collective. */
enum status checkpoint_writer_finish(struct checkpoint_writer *writer,
                                     struct checkpoint_writer_report *out);

#endif
