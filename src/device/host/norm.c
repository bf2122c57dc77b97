#include "device/host/host.h"

enum { ROWS = 8, COLUMNS = STRIP }; /* what a worker takes at once */

struct forward_job {
  const struct kernels *kernels;
  int64_t C;
  float eps;
  const float *x, *add, *gamma, *beta;
  float *sum, *y, *mean, *rstd;
};

static void run_forward(void *arg, int64_t begin, int64_t end)
{
  const struct forward_job *job = arg;
  for (int64_t r = begin; r < end; r++) {
    int64_t at = r * job->C;
    job->kernels->layernorm(job->C, job->eps, job->x + at, job->add ? job->add + at : NULL, job->add ? job->sum + at : NULL, job->gamma, job->beta,
                            job->y + at, job->mean + r, job->rstd + r);
  }
}

enum status host_layernorm(struct lane *lane, int64_t rows, int64_t C, float eps, const void *x, const void *add, void *sum, const void *gamma,
                           const void *beta, void *y, float *mean, float *rstd)
{
  struct forward_job job = {host_kernels(lane), C, eps, x, add, gamma, beta, sum, y, mean, rstd};
  host_run_ranges(lane, rows, ROWS, run_forward, &job);
  return STATUS_OK;
}

struct backward_job {
  const struct kernels *kernels;
  int64_t rows, C, tile;
  const float *dy, *x, *gamma, *mean, *rstd;
  bool dx_accumulate, accumulate;
  float *dx, *dgamma, *dbeta;
};

static void run_backward(void *arg, int64_t begin, int64_t end)
{
  const struct backward_job *job = arg;
  for (int64_t r = begin; r < end; r++) {
    int64_t at = r * job->C;
    job->kernels->layernorm_backward(job->C, job->dy + at, job->x + at, job->gamma, job->mean[r], job->rstd[r], job->dx_accumulate, job->dx + at);
  }
}

static void run_parameter_sums(void *arg, int64_t begin, int64_t end)
{
  const struct backward_job *job = arg;
  for (int64_t r = 0; r < job->rows; r += job->tile) {
    int64_t rows = job->rows - r < job->tile ? job->rows - r : job->tile, at = r * job->C + begin;
    job->kernels->layernorm_sums(rows, end - begin, job->C, job->dy + at, job->x + at, job->mean + r, job->rstd + r, job->accumulate || r > 0,
                                 job->dgamma ? job->dgamma + begin : NULL, job->dbeta ? job->dbeta + begin : NULL);
  }
}

enum status host_layernorm_backward(struct lane *lane, int64_t rows, int64_t C, int64_t tile, const void *dy, const void *x, const void *gamma,
                                    const float *mean, const float *rstd, bool dx_accumulate, void *dx, bool accumulate, void *dgamma, void *dbeta,
                                    void *work)
{
  struct backward_job job = {host_kernels(lane), rows, C, tile ? tile : rows, dy, x, gamma, mean, rstd, dx_accumulate, accumulate, dx, dgamma, dbeta};
  (void)work;
  if (dgamma || dbeta)
    host_run_ranges(lane, C, COLUMNS, run_parameter_sums, &job); /* before dx, which may take dy's place */
  host_run_ranges(lane, rows, ROWS, run_backward, &job);
  return STATUS_OK;
}

size_t host_layernorm_workspace(const struct device_model *model, int64_t rows, int64_t C,
                                int threads)
{
  (void)model, (void)rows, (void)C, (void)threads;
  return 0; /* columns are summed by whoever owns them: no partial sums to keep */
}
