/* LayerNorm and RMSNorm. Sums of gradients are added per tile, then in the order of tiles. */
#include "device/host/host.h"

enum { ROWS = 8, COLUMNS = STRIP }; /* what a worker takes at once */

struct forward_job {
  const struct kernels *kernels;
  const struct row_norm *op;
};

static void run_forward(void *arg, int64_t begin, int64_t end)
{
  const struct forward_job *job = arg;
  const struct row_norm *op = job->op;
  for (int64_t r = begin; r < end; r++) {
    int64_t at = r * op->C;
    job->kernels->layernorm(op->C, op->eps, (const float *)op->x + at,
                            op->add ? (const float *)op->add + at : NULL,
                            op->add ? (float *)op->sum + at : NULL, op->gamma, op->beta,
                            (float *)op->y + at, op->mean + r, op->rstd + r);
  }
}

enum status host_layernorm(struct lane *lane, const struct row_norm *op)
{
  struct forward_job job = {host_kernels(lane), op};
  host_run_ranges(lane, op->rows, ROWS, run_forward, &job);
  return STATUS_OK;
}

struct backward_job {
  const struct kernels *kernels;
  const struct row_norm_backward *op;
};

static void run_backward(void *arg, int64_t begin, int64_t end)
{
  const struct backward_job *job = arg;
  const struct row_norm_backward *op = job->op;
  for (int64_t r = begin; r < end; r++) {
    int64_t at = r * op->C;
    job->kernels->layernorm_backward(op->C, (const float *)op->dy + at, (const float *)op->x + at,
                                     op->gamma, op->mean[r], op->rstd[r], op->dx_accumulate,
                                     (float *)op->dx + at);
  }
}

static void run_parameter_sums(void *arg, int64_t begin, int64_t end)
{
  const struct backward_job *job = arg;
  const struct row_norm_backward *op = job->op;
  const int64_t tile = op->tile ? op->tile : op->rows;
  for (int64_t r = 0; r < op->rows; r += tile) {
    int64_t rows = op->rows - r < tile ? op->rows - r : tile, at = r * op->C + begin;
    job->kernels->layernorm_sums(rows, end - begin, op->C, (const float *)op->dy + at,
                                 (const float *)op->x + at, op->mean + r, op->rstd + r,
                                 op->accumulate || r > 0,
                                 op->dgamma ? (float *)op->dgamma + begin : NULL,
                                 op->dbeta ? (float *)op->dbeta + begin : NULL);
  }
}

enum status host_layernorm_backward(struct lane *lane, const struct row_norm_backward *op)
{
  struct backward_job job = {host_kernels(lane), op};
  if (op->dgamma || op->dbeta)
    host_run_ranges(lane, op->C, COLUMNS, run_parameter_sums,
                    &job); /* before dx, which may take dy's place */
  host_run_ranges(lane, op->rows, ROWS, run_backward, &job);
  return STATUS_OK;
}

size_t host_layernorm_workspace(const struct device_model *model, int64_t rows, int64_t C,
                                int threads)
{
  (void)model, (void)rows, (void)C, (void)threads;
  return 0; /* each worker sums its own columns, so there are no partial sums to keep */
}
