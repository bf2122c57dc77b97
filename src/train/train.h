/* The training loop: data, step, evaluation, checkpoints, signals, metrics. */
#ifndef SLUICE_TRAIN_TRAIN_H
#define SLUICE_TRAIN_TRAIN_H

#include "comm/comm.h"
#include "deck/deck.h"

/* How a run ended. */
enum train_end { TRAIN_FINISHED, TRAIN_UNFINISHED };

/* Trains as the deck says. `resume` is "none" (a run folder that already holds checkpoints is
 * refused), "auto" (the newest checkpoint of the run folder that verifies, or a fresh start), or
 * the path of a checkpoint. Failing leaves earlier checkpoints as they are. Collective. */
enum status train_run(struct comm *comm, const struct deck *deck, const char *resume,
                      enum train_end *end);

#endif
