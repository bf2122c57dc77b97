#include "reopen.h"

enum status job_load(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets)
{
  const struct job *job = arg;
  const struct deck_shape *shape = &job->plan->input.shape;
  const int64_t first = job->plan->input.rank * shape->rank_batch + micro * shape->micro_batch;
  for (int64_t b = 0; b < shape->micro_batch; b++)
    for (int64_t t = 0; t < shape->sequence; t++) {
      *tokens++ = job_token(step, first + b, t);
      *targets++ = job_token(step, first + b, t + 1);
    }
  return STATUS_OK;
}

enum status job_reopen(struct job *job, const struct exec_config *with)
{
  struct exec_config config = *with;
  config.plan = job->plan;
  config.model = job->model;
  config.device = job->device;
  config.comm = job->comm;
  config.memory = &job->memory;
  config.copy_rate = job->deck.transfer.rate * 1e9;
  config.threads = 1;
  if (!config.load) {
    config.load = job_load;
    config.load_arg = job;
  }
  exec_destroy(job->exec);
  job->exec = NULL;
  return exec_create(&config, &job->exec);
}
