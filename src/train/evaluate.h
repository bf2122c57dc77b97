/* Loss over a token set, in parallel, the same number at any rank count for the same per-sequence bits. */
#ifndef SLUICE_TRAIN_EVALUATE_H
#define SLUICE_TRAIN_EVALUATE_H

#include "io/tokens.h"
#include "train/data.h"
#include "train/job.h"

struct evaluation {
  double loss;          /* mean negative log likelihood a token, nats */
  double perplexity;    /* exp(loss) */
  double bits_per_byte; /* of the text that the tokens stand for */
  int64_t tokens;
  double seconds;
};

struct evaluator {
  struct job *job;
  struct data_scan scan;
  int64_t next_step; /* the eval executor's own count */
};

/* Opens the validation split and starts the job's evaluation plan. Collective. */
enum status evaluator_open(struct job *job, struct evaluator *out);
void evaluator_close(struct evaluator *evaluator); /* takes a zeroed one */

/* All windows, or the first `batches` batches of data.batch sequences: the same ones at any rank count. The training executor must be drained. Shows progress when `show`. Collective. */
enum status evaluator_run(struct evaluator *evaluator, int64_t batches, bool show, struct evaluation *out);

#endif
