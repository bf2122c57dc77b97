/* Softmax and cross-entropy of rows of logits, with fp32 statistics. */
#include <string.h>

#include "device/host/host.h"

struct classifier_job {
  const struct kernels *kernels;
  const struct cross_entropy *op;
};

static void run_row(void *arg, int64_t r, int worker)
{
  const struct classifier_job *job = arg;
  const struct cross_entropy *op = job->op;
  float *row = (float *)op->logits + r * op->ld;
  const int32_t target = op->target[r];
  const float weight = op->weight ? op->weight[r] : 1, scale = op->scale * weight;
  (void)worker;
  op->loss[r] = 0;
  if (op->gradient)
    memset(row + op->V, 0, (size_t)(op->ld - op->V) * sizeof *row);
  if (target >= 0) {
    const double chosen = row[target]; /* before the gradient overwrites it */
    op->loss[r] = weight * (job->kernels->log_sum_exp(op->V, op->gradient, scale, row) - chosen);
    if (op->gradient)
      row[target] -= scale;
  } else if (op->gradient) {
    memset(row, 0, (size_t)op->V * sizeof *row);
  }
}

enum status host_cross_entropy(struct lane *lane, const struct cross_entropy *op)
{
  for (int64_t r = 0; r < op->rows; r++)
    if (op->target[r] < -1 || op->target[r] >= op->V)
      return device_refuse_id("target", r, op->target[r], op->V);
  struct classifier_job job = {host_kernels(lane), op};
  host_run_tasks(lane, op->rows, run_row, &job);
  return STATUS_OK;
}
