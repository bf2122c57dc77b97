/* The training loop: data, step, evaluation, checkpoints, signals, metrics. */
#pragma once

#include "comm/comm.h"
#include "deck/deck.h"
#include "io/results/results.h"
#include "job/job.h"

/* The end of a run. */
enum train_end { TRAIN_FINISHED, TRAIN_UNFINISHED };

/* Trains as the deck describes. With `resume` "none", a run folder that already holds checkpoints
 * is refused. With "auto", the run continues from the newest checkpoint of the run folder that
 * verifies, or starts new. Any other text is the path of a checkpoint. After a failure earlier
 * checkpoints are unchanged. Collective. */
enum status train_run(struct comm *comm, struct deck *deck, const char *resume,
                      enum train_end *end);

/* Refuses what train_run() with `resume` "none" would refuse of the run folder, of train.init, and
 * of the data. Nothing is trained, and nothing is left behind. If the folder holds a run of the
 * deck that ended before run.steps and can continue, it is not refused: *stopped is the step of its
 * newest checkpoint, otherwise 0. Collective. */
enum status train_check_folder(struct comm *comm, const struct deck *deck, int64_t *stopped);
/* Bytes of a checkpoint, if all parameters are trained, and those that are free for it. */
enum status train_check_space(struct comm *comm, const struct deck *deck, int64_t *need,
                              int64_t *free);
enum status train_check_weights(struct comm *comm, const struct deck *deck);
enum status train_check_data(struct comm *comm, const struct deck *deck, int64_t *tokens);

/* Fields of a record: where a job runs, and its size. Local. */
void train_record_job(struct json_writer *line, const struct job *job);
/* Fields of a record: bytes of a plan on this rank, per tier. Local. */
void train_record_tiers(struct json_writer *line, const struct plan *plan);
