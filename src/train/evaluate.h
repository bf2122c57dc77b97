/* Loss over a token set, in parallel. It is the same at any rank count if results per sequence are
 * bitwise identical. */
#pragma once

#include "io/tokens/tokens.h"
#include "job/job.h"
#include "train/data.h"

struct evaluation {
  double loss;          /* mean negative log likelihood per token, nats */
  double perplexity;    /* exp(loss); NAN: of pairs */
  double bits_per_byte; /* loss / ln 2 / (mean bytes per token of the split); NAN: not all tokens
                           are scored */
  int64_t tokens;       /* that were scored; or pairs */
  int64_t all;          /* trained tokens of the split, or its pairs */
  bool limited;         /* `batches` has left out some */
  double seconds;
  double accuracy, margin; /* of pairs: the share with a margin above 0, and the mean margin; NAN */
  int sources;
  struct source_loss of[DECK_SOURCES];
};

struct evaluator {
  struct job *job;
  struct data_scan scan;
  int64_t next_step; /* the eval executor's own count */
  double *score;     /* of the rows of pairs; NULL: the data are tokens */
};

extern const char evaluator_cure[]; /* how to train without it, after a message */
/* Starts the job's evaluation plan, without data. Collective. */
enum status evaluator_start(struct job *job, struct evaluator *out);
/* Opens the validation split, which `maker` must have made, and starts the job's evaluation plan.
 * Collective. */
enum status evaluator_open(struct job *job, const struct data_maker *maker, struct evaluator *out);
/* The same for the rows of choices, which stay the caller's, of a job with deck->rows[1].apart and
 * data.sequence = choices->longest. Collective. */
enum status evaluator_open_choices(struct job *job, const struct choices *choices,
                                   struct evaluator *out);
void evaluator_close(struct evaluator *evaluator); /* takes a zeroed one */

/* With train.objective=dpo: the loss of pairs, by the references of the validation split, which
 * are set. Else scores every trained token of each source except its first, or only those of the
 * first `batches` batches of data.batch rows of each source. The same tokens at any rank count.
 * Rows are windows of the sequence length, or hold whole documents (data.pack). A token is scored
 * with the earlier tokens of its window or document as context. The training executor must be
 * drained. `interrupts` is called after each step, on all ranks. If it returns true on all of them,
 * the evaluation ends with false, and must not be repeated. NULL: shows progress instead.
 * Collective. */
bool evaluator_run(struct evaluator *evaluator, int64_t batches, bool (*interrupts)(void *arg),
                   void *arg, struct evaluation *out);

/* score[i]: the log-likelihood of the scored tokens of row i of the choices, without rounding of
 * their sum. Bitwise the same on any number of ranks if results per sequence are. Collective. */
void evaluator_score(struct evaluator *evaluator, double *score);
