/* The learning rate of a step: warm-up, then constant, linear or cosine. */
#include <math.h>

#include "optim/optim.h"

double optim_learning_rate(const struct deck *deck, int64_t step)
{
  double lr = deck->optim.lr, least = deck->optim.min_lr;
  int64_t warmup = deck->optim.warmup,
          end = deck->optim.decay_steps > 0 ? deck->optim.decay_steps : deck->run.steps;
  if (step < warmup)
    return lr * (double)(step + 1) / (double)(warmup + 1);
  if (deck->optim.schedule == SCHEDULE_CONSTANT)
    return lr;
  double progress = step < end ? (double)(step - warmup) / (double)(end - warmup) : 1;
  double left =
      deck->optim.schedule == SCHEDULE_LINEAR ? 1 - progress : (1 + cos(M_PI * progress)) / 2;
  return lr * (least + (1 - least) * left);
}
