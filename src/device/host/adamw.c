#include <math.h>

#include "device/host/host.h"

enum { GRAIN = 1 << 15 }; /* elements: half a megabyte of four arrays */

struct adamw_job {
  const struct kernels *kernels;
  struct adamw_scalars scalars;
  float *master, *m, *v, *copy;
  const float *grad;
};

static void run_range(void *arg, int64_t begin, int64_t end)
{
  const struct adamw_job *job = arg;
  job->kernels->adamw(end - begin, &job->scalars, job->master + begin, job->grad + begin, job->m + begin, job->v + begin,
                      job->copy ? job->copy + begin : NULL);
}

enum status host_adamw(struct lane *lane, int64_t n, const struct adamw *op, float *master, const void *grad, float *m, float *v, void *copy)
{
  struct adamw_job job = {.kernels = host_kernels(lane), .master = master, .m = m, .v = v, .copy = copy, .grad = grad};
  job.scalars = (struct adamw_scalars){.shrink = (float)(1 - op->lr * op->decay),
                                       .rest1 = (float)(1 - op->beta1),
                                       .beta2 = (float)op->beta2,
                                       .rest2 = (float)(1 - op->beta2),
                                       .root2 = (float)sqrt(op->bias2),
                                       .eps = (float)op->eps,
                                       .step = (float)(op->lr / op->bias1),
                                       .grad_scale = op->outcome ? (float)op->outcome->scale : op->grad_scale};
  if (op->outcome && !op->outcome->finite)
    return STATUS_OK;
  host_run_ranges(lane, n, GRAIN, run_range, &job);
  return STATUS_OK;
}
