/* Low-rank messages: factors of vectors, and sums of their products. Work is shared by rows. */
#include "device/host/host.h"

enum { GRAIN = 1 << 16 }; /* elements */

struct job {
  const struct kernels *kernels;
  const struct lowrank *op;
  int64_t n, rows; /* of a vector */
  const float *x;
  const struct factors *factors;
  float *sums; /* C^T M of each band of each vector */
  bool last;   /* round */
  int parts;   /* summed by expand() */
  enum quant_mode mode;
  float *out;
};

static float *basis_of(const struct job *job, int64_t part)
{
  return (float *)(void *)((char *)job->factors->basis + part * job->factors->stride);
}

static float *coefficients_of(const struct job *job, int64_t part, int64_t row)
{
  char *base = (char *)job->factors->coefficients + part * job->factors->stride;
  return (float *)(void *)base + row * job->op->rank;
}

static int64_t basis_size(const struct job *job)
{
  return job->op->rank * job->op->block;
}

static void start_row(void *arg, int64_t part, int64_t row)
{
  const struct job *job = arg;
  const int rank = job->op->rank;
  for (int k = 0; k < rank; k++)
    coefficients_of(job, part, row)[k] =
        lowrank_uniform(rounding_bits(job->op->seed, (part * job->rows + row) * rank + k));
}

static void collect_band(void *arg, int64_t part, int64_t band)
{
  const struct job *job = arg;
  const int64_t height = lowrank_band(job->rows), row = band * height, left = job->rows - row,
                at = row * job->op->block;
  job->kernels->lowrank_collect(job->op, left < height ? left : height, job->n - at,
                                job->x + part * job->n + at, coefficients_of(job, part, row),
                                job->sums +
                                    (part * lowrank_bands(job->rows) + band) * basis_size(job));
}

static void orthonormalise_range(void *arg, int64_t begin, int64_t end)
{
  const struct job *job = arg;
  for (int64_t part = begin; part < end; part++)
    job->kernels->lowrank_orthonormalise(job->op, job->last, basis_of(job, part));
}

static void project_row(void *arg, int64_t part, int64_t row)
{
  const struct job *job = arg;
  const int64_t at = row * job->op->block;
  job->kernels->lowrank_project(job->op, job->n - at, job->x + part * job->n + at,
                                basis_of(job, part), job->op->rank,
                                coefficients_of(job, part, row));
}

static void expand_row(void *arg, int64_t part, int64_t row)
{
  const struct job *job = arg;
  const int64_t at = row * job->op->block, left = job->n - at,
                m = left < job->op->block ? left : job->op->block;
  const struct lowrank_row from = {basis_of(job, part), coefficients_of(job, part, row),
                                   job->factors->stride};
  job->kernels->lowrank_expand(job->op, job->parts, &from, job->mode, m,
                               job->out + part * job->n + at);
}

static enum status check(const struct lowrank *op, int64_t n)
{
  if (lowrank_is_valid(op) && n >= 0)
    return STATUS_OK;
  return status_set(STATUS_INTERNAL, "a message of rank %d with rows of %lld elements", op->rank,
                    (long long)op->block);
}

/* V = C^T M, made orthonormal; C = M V^T. */
static enum status run_round(struct lane *lane, struct job *job, int parts)
{
  const int64_t bands = lowrank_bands(job->rows), size = basis_size(job),
                grain = host_pieces(GRAIN, job->op->block);
  enum status status = STATUS_OK;
  host_run_blocks(lane, parts, bands, host_pieces(grain, lowrank_band(job->rows)), collect_band,
                  job);
  for (int part = 0; part < parts && !status; part++)
    status = host_sum_parts(lane, size, (int)bands, DTYPE_F32, job->sums + part * bands * size,
                            size, false, basis_of(job, part));
  if (status)
    return status;
  host_run_ranges(lane, parts, 1, orthonormalise_range, job);
  host_run_blocks(lane, parts, job->rows, grain, project_row, job);
  return STATUS_OK;
}

enum status host_factorise(struct lane *lane, const struct lowrank *op, int64_t n, int parts,
                           const float *x, const struct factors *factors, float *work)
{
  struct job job = {
      .kernels = host_kernels(lane), .op = op, .n = n, .x = x, .factors = factors, .sums = work};
  enum status status = check(op, n);
  if (status || n == 0)
    return status;
  job.rows = lowrank_rows(op, n);
  host_run_blocks(lane, parts, job.rows, GRAIN, start_row, &job);
  for (int round = 1; round <= op->rounds && !status; round++) {
    job.last = round == op->rounds;
    status = run_round(lane, &job, parts);
  }
  return status;
}

enum status host_expand(struct lane *lane, const struct lowrank *op, int64_t n, int parts,
                        const struct factors *factors, enum quant_mode mode, float *out)
{
  const bool apart = mode == QUANT_SUBTRACT;
  struct job job = {.kernels = host_kernels(lane), .op = op, .n = n, .factors = factors};
  job.parts = apart ? 1 : parts;
  job.mode = mode;
  job.out = out;
  enum status status = check(op, n);
  if (status)
    return status;
  job.rows = lowrank_rows(op, n);
  host_run_blocks(lane, apart ? parts : 1, job.rows, host_pieces(GRAIN, op->block), expand_row,
                  &job);
  return STATUS_OK;
}
