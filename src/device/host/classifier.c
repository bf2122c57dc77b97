/* Softmax and cross-entropy of rows of logits, with fp32 statistics. */
#include <string.h>

#include "base/exactsum.h"
#include "base/preference.h"
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

enum status host_prefer(struct lane *lane, const struct preference *op)
{
  (void)lane;
  for (int64_t k = 0; k < op->pairs; k++) {
    const double score[] = {exactsum_value(&op->score[2 * k]),
                            exactsum_value(&op->score[2 * k + 1])},
                 margin = preference_margin(op->beta, score, op->reference + 2 * k);
    const float weight = (float)(op->beta / (1 + exp(margin)));
    op->margin[k] = margin;
    op->loss[k] = preference_loss(margin);
    op->won[k] = margin > 0;
    for (int64_t t = 0; t < 2 * op->T; t++)
      op->weight[2 * k * op->T + t] = t < op->T ? weight : -weight;
  }
  return STATUS_OK;
}
