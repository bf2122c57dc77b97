#include <math.h>

#include "device/host/host.h"

enum { GRAIN = 1 << 15 }; /* elements: half a megabyte of four arrays */

struct adamw_job {
  const struct kernels *kernels;
  struct adamw_pass pass;
  struct adamw_arrays arrays;
  uint64_t seed;
  int64_t first;
  bool traffic;
};

static struct adamw_arrays arrays_at(const struct adamw_job *job, int64_t i)
{
  const struct adamw_pass *pass = &job->pass;
  const struct adamw_arrays *a = &job->arrays;
  const int64_t moments = (int64_t)dtype_size(pass->moments);
  return (struct adamw_arrays){.master = (char *)a->master + i * (int64_t)dtype_size(pass->master),
                               .grad = (const char *)a->grad + i * (int64_t)dtype_size(pass->grad),
                               .m = (char *)a->m + i * moments,
                               .v = (char *)a->v + i * moments,
                               .copy = a->copy ? (char *)a->copy + i * (int64_t)dtype_size(pass->copy) : NULL};
}

/* In pieces that share the keys of their random bits. */
static void run_range(void *arg, int64_t begin, int64_t end)
{
  const struct adamw_job *job = arg;
  struct adamw_pass pass = job->pass;
  for (int64_t i = begin, n; i < end; i += n) {
    const int64_t element = job->first + i, left = ((int64_t)1 << 32) - (int64_t)(uint32_t)element;
    const struct adamw_arrays arrays = arrays_at(job, i);
    n = end - i < left ? end - i : left;
    pass.moments_key = rounding_key_make(job->seed, element);
    pass.master_key = rounding_key_make(job->seed ^ ROUNDING_MASTER, element);
    if (job->traffic)
      job->kernels->adamw_traffic(n, &pass, &arrays);
    else
      job->kernels->adamw(n, &pass, (uint32_t)element, &arrays);
  }
}

static enum status check_type(const char *what, enum dtype type)
{
  if (type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16)
    return STATUS_OK;
  return status_set(STATUS_UNSUPPORTED, "the %s of AdamW are kept in fp32, bf16 or fp16, not in %s", what, dtype_name(type));
}

static enum status check(int64_t n, const struct adamw *op)
{
  enum status status = check_type("masters", op->master);
  if (!status)
    status = check_type("gradients", op->grad);
  if (!status)
    status = check_type("moments", op->moments);
  if (!status)
    status = check_type("copies", op->copy);
  if (!status && (n < 0 || op->first < 0))
    status = status_set(STATUS_INTERNAL, "AdamW of %lld elements from number %lld", (long long)n, (long long)op->first);
  return status;
}

static struct adamw_job job_make(struct lane *lane, const struct adamw *op, const struct adamw_arrays *arrays)
{
  return (struct adamw_job){.kernels = host_kernels(lane),
                            .pass = {.scalars = {.shrink = (float)(1 - op->lr * op->decay),
                                                 .rest1 = (float)(1 - op->beta1),
                                                 .beta2 = (float)op->beta2,
                                                 .rest2 = (float)(1 - op->beta2),
                                                 .root2 = (float)sqrt(op->bias2),
                                                 .eps = (float)op->eps,
                                                 .step = (float)(op->lr / op->bias1),
                                                 .grad_scale = op->outcome ? (float)op->outcome->scale : op->grad_scale},
                                     .master = op->master,
                                     .grad = op->grad,
                                     .moments = op->moments,
                                     .copy = op->copy,
                                     .stochastic = op->stochastic},
                            .arrays = *arrays,
                            .seed = op->seed,
                            .first = op->first};
}

enum status host_adamw(struct lane *lane, int64_t n, const struct adamw *op, void *master, const void *grad, void *m, void *v, void *copy)
{
  struct adamw_job job = job_make(lane, op, &(struct adamw_arrays){master, grad, m, v, copy});
  enum status status = check(n, op);
  if (status || (op->outcome && !op->outcome->finite))
    return status;
  host_run_ranges(lane, n, GRAIN, run_range, &job);
  return STATUS_OK;
}

enum status host_adamw_traffic(struct lane *lane, int64_t n, const struct adamw *op, void *master, const void *grad, void *m, void *v, void *copy)
{
  struct adamw_job job = job_make(lane, op, &(struct adamw_arrays){master, grad, m, v, copy});
  job.traffic = true;
  enum status status = check(n, op);
  if (!status && n % 32 != 0)
    status = status_set(STATUS_INTERNAL, "the traffic of %lld elements: it is measured in multiples of 32", (long long)n);
  if (!status)
    host_run_ranges(lane, n, GRAIN, run_range, &job);
  return status;
}
