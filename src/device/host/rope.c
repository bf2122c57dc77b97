/* Rotary positions (Su et al. 2021, arXiv:2104.09864), halves of a head as in Llama. */
#include "device/host/host.h"

enum { TOKENS = 8, HALF = 128 }; /* positions that a worker takes at once; angles kept at once */

struct rope_job {
  const struct rope *op;
  const struct kernels *kernels;
};

/* Rows `first`, first + apart, .. have one position, whose angles serve all their heads. */
static void rotate_position(const struct rope_job *job, int64_t first, int64_t apart, int64_t from,
                            int64_t n)
{
  const struct rope *op = job->op;
  float cosine[HALF], sine[HALF];
  job->kernels->angles(n, (float)(op->position ? op->position[first] : op->past + first),
                       op->inv_freq + from, cosine, sine);
  for (int64_t i = 0; op->inverse && i < n; i++)
    sine[i] = -sine[i];
  for (int64_t r = first; r < op->rows; r += apart)
    for (int64_t h = 0; h < op->heads; h++) {
      float *low = (float *)op->x + r * op->stride + h * op->D + from;
      job->kernels->rotate(n, cosine, sine, low, low + op->D / 2);
    }
}

static void run_positions(void *arg, int64_t begin, int64_t end)
{
  const struct rope_job *job = arg;
  const int64_t half = job->op->D / 2, apart = job->op->position ? job->op->rows : job->op->T;
  for (int64_t t = begin; t < end; t++)
    for (int64_t from = 0; from < half; from += HALF)
      rotate_position(job, t, apart, from, half - from < HALF ? half - from : HALF);
}

enum status host_rope(struct lane *lane, const struct rope *op)
{
  struct rope_job job = {op, host_kernels(lane)};
  if (op->D < 2 || op->D % 2 != 0)
    return status_set(STATUS_INTERNAL, "rotary positions of heads of width %lld: it must be even",
                      (long long)op->D);
  if (op->rows < 0 || op->T < 1 || op->past < 0 || op->heads < 0 || op->stride < op->heads * op->D)
    return status_set(STATUS_INTERNAL,
                      "rotary positions of %lld rows of %lld heads of width %lld, %lld apart, %lld "
                      "tokens a sequence after %lld",
                      (long long)op->rows, (long long)op->heads, (long long)op->D,
                      (long long)op->stride, (long long)op->T, (long long)op->past);
  host_run_ranges(lane, op->position || op->rows < op->T ? op->rows : op->T, TOKENS, run_positions,
                  &job);
  return STATUS_OK;
}
