/* Loss over a token set, in parallel, the same number at any rank count for the same per-sequence
 * bits. */
#ifndef SLUICE_TRAIN_EVALUATE_H
#define SLUICE_TRAIN_EVALUATE_H

#include "io/tokens/tokens.h"
#include "job/job.h"
#include "train/data.h"

struct evaluation {
  double loss;          /* mean negative log likelihood a token, nats */
  double perplexity;    /* exp(loss) */
  double bits_per_byte; /* loss / ln 2 / (bytes a token of the split stands for, on average) */
  int64_t tokens;       /* that were scored */
  int64_t all;          /* that the split has to score */
  double seconds;
};

struct evaluator {
  struct job *job;
  struct data_scan scan;
  int64_t next_step; /* the eval executor's own count */
};

/* Opens the validation split, which `maker` must have made, and starts the job's evaluation plan.
 * Collective. */
enum status evaluator_open(struct job *job, const struct data_maker *maker, struct evaluator *out);
void evaluator_close(struct evaluator *evaluator); /* takes a zeroed one */

/* Every token of the split but its first, which nothing foretells; or only the first `batches`
 * batches of data.batch sequences. The same ones at any rank count. The split is cut into windows
 * of the sequence length, and a token is scored given those before it in its window. The training
 * executor must be drained. Shows progress when `show`. Collective. */
void evaluator_run(struct evaluator *evaluator, int64_t batches, bool show, struct evaluation *out);

#endif
