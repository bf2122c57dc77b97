/* SwiGLU (Shazeer 2020, arXiv:2002.05202): silu(gate) * up. */
#include "device/host/host.h"

enum { ELEMENTS = 1 << 14 }; /* of y that a worker takes at once */

struct swiglu_job {
  const struct kernels *kernels;
  int64_t F;
  const float *gu, *dy;
  float *y, *dgu;
};

/* Elements [begin, end) of y, row by row. */
static void run_range(void *arg, int64_t begin, int64_t end)
{
  const struct swiglu_job *job = arg;
  int64_t F = job->F;
  for (int64_t at = begin, n; at < end; at += n) {
    int64_t row = at / F, column = at % F, g = row * 2 * F + column, u = g + F;
    n = F - column < end - at ? F - column : end - at;
    if (job->dgu)
      job->kernels->swiglu_backward(n, job->gu + g, job->gu + u, job->dy + at, job->dgu + g,
                                    job->dgu + u, job->y ? job->y + at : NULL);
    else
      job->kernels->swiglu(n, job->gu + g, job->gu + u, job->y + at);
  }
}

static enum status run(struct lane *lane, int64_t rows, const struct swiglu_job *job)
{
  if (rows < 0 || job->F < 0)
    return status_set(STATUS_INTERNAL, "SwiGLU of %lld rows of %lld elements", (long long)rows,
                      (long long)job->F);
  host_run_ranges(lane, rows * job->F, ELEMENTS, run_range, (void *)job);
  return STATUS_OK;
}

enum status host_swiglu(struct lane *lane, int64_t rows, int64_t F, const void *gu, void *y)
{
  return run(lane, rows,
             &(struct swiglu_job){.kernels = host_kernels(lane), .F = F, .gu = gu, .y = y});
}

enum status host_swiglu_backward(struct lane *lane, int64_t rows, int64_t F, const void *gu,
                                 const void *dy, void *dgu, void *y)
{
  return run(lane, rows,
             &(struct swiglu_job){
                 .kernels = host_kernels(lane), .F = F, .gu = gu, .dy = dy, .y = y, .dgu = dgu});
}
