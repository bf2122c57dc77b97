/* Text from a trained model, token by token. */
#ifndef SLUICE_TRAIN_GENERATE_H
#define SLUICE_TRAIN_GENERATE_H

#include "io/tokenizer.h"
#include "train/job.h"

struct generate_options {
  const char *prompt;
  int64_t tokens, top_k;
  double temperature;
  uint64_t seed;
}; /* temperature 0: the likeliest token; top_k 0: all */

/* Continue the prompt and write text to stdout as it comes (rank 0), in whole characters. The context slides: the last `context` tokens count. Collective. */
enum status generate_run(struct job *job, struct tokenizer *tokenizer, const struct generate_options *options);

/* Pick from logits [V]: a pure function of them, the options and the draw's number. Scratch [V] is overwritten. Local. */
int32_t generate_sample(const float *logits, int64_t V, const struct generate_options *options, int64_t draw, float *scratch);

#endif
