/* The reference of train.objective=dpo: log-likelihoods of the conversations by the model that the
 * run began with. They are computed once and kept in the run folder. */
#pragma once

#include "io/text/file.h"
#include "train/evaluate.h"

struct file_path reference_path(const struct deck *deck);
/* Scores all rows of `data` by the job's parameters, and sets the sources' references. The
 * evaluator has started. Collective. */
enum status reference_make(struct evaluator *evaluator, struct data_sources *data);
/* Writes those of both splits; val NULL: there are none. Collective. */
enum status reference_keep(struct comm *comm, const struct deck *deck,
                           const struct data_sources *train, const struct data_sources *val);
/* Takes the references of a split from the file. STATUS_INPUT, with the command that makes it, if
 * it is missing or of other conversations. Collective. */
enum status reference_take(struct comm *comm, const struct deck *deck, enum token_split split,
                           struct data_sources *data);
