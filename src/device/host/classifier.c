/* Softmax and cross-entropy of rows of logits, with fp32 statistics. */
#include <string.h>

#include "device/host/host.h"

struct classifier_job {
  const struct kernels *kernels;
  int64_t V, ld;
  float *logits;
  const int32_t *target;
  float scale;
  bool gradient;
  double *loss;
};

static void run_row(void *arg, int64_t r, int worker)
{
  const struct classifier_job *job = arg;
  float *row = job->logits + r * job->ld;
  int32_t target = job->target[r];
  (void)worker;
  job->loss[r] = 0;
  if (job->gradient)
    memset(row + job->V, 0, (size_t)(job->ld - job->V) * sizeof *row);
  if (target >= 0) {
    double chosen = row[target]; /* before the gradient overwrites it */
    job->loss[r] = job->kernels->log_sum_exp(job->V, job->gradient, job->scale, row) - chosen;
    if (job->gradient)
      row[target] -= job->scale;
  } else if (job->gradient) {
    memset(row, 0, (size_t)job->V * sizeof *row);
  }
}

enum status host_cross_entropy(struct lane *lane, int64_t rows, int64_t V, int64_t ld, void *logits,
                               const int32_t *target, float scale, bool gradient, double *loss)
{
  for (int64_t r = 0; r < rows; r++)
    if (target[r] < -1 || target[r] >= V)
      return device_refuse_id("target", r, target[r], V);
  struct classifier_job job = {host_kernels(lane), V, ld, logits, target, scale, gradient, loss};
  host_run_tasks(lane, rows, run_row, &job);
  return STATUS_OK;
}
