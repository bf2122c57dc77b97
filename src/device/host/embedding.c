/* Rows of a table by token. Gradients of a token are added in the order of its positions. */
#include <string.h>

#include "device/host/host.h"

enum { ROWS = 16, COLUMNS = STRIP };

struct embedding_job {
  const struct kernels *kernels;
  const struct embedding *op;
  const float *wte, *wpe, *dx;
  float *x, *dwte, *dwpe;
  bool wpe_accumulate;
};

static enum status check_tokens(const struct embedding *op)
{
  for (int64_t r = 0; r < op->rows; r++)
    if (op->token[r] < 0 || op->token[r] >= op->V)
      return device_refuse_id("token", r, op->token[r], op->V);
  return STATUS_OK;
}

static int64_t position_of(const struct embedding *op, int64_t r)
{
  return op->position ? op->position[r] : r % op->T;
}

static void look_up(void *arg, int64_t begin, int64_t end)
{
  const struct embedding_job *job = arg;
  const int64_t C = job->op->C;
  for (int64_t r = begin; r < end; r++) {
    const float *word = job->wte + job->op->token[r] * C;
    if (job->wpe)
      job->kernels->add(C, word, job->wpe + position_of(job->op, r) * C, job->x + r * C);
    else
      memcpy(job->x + r * C, word, (size_t)C * sizeof *word);
  }
}

enum status host_embedding(struct lane *lane, const struct embedding *op, const void *wte,
                           const void *wpe, void *x)
{
  const enum status status = check_tokens(op);
  if (status)
    return status;
  struct embedding_job job = {.kernels = host_kernels(lane), .op = op};
  job.wte = wte;
  job.wpe = wpe;
  job.x = x;
  host_run_ranges(lane, op->rows, ROWS, look_up, &job);
  return STATUS_OK;
}

/* A range of columns over all rows in order, so that two threads never add to one element. */
static void add_columns(void *arg, int64_t begin, int64_t end)
{
  const struct embedding_job *job = arg;
  const struct embedding *op = job->op;
  const int64_t C = op->C, n = end - begin;
  for (int64_t r = 0; r < op->rows; r++) {
    const float *dx = job->dx + r * C + begin;
    if (job->dwte) {
      float *word = job->dwte + op->token[r] * C + begin;
      job->kernels->add(n, word, dx, word);
    }
    if (!job->dwpe)
      continue;
    float *position = job->dwpe + position_of(op, r) * C + begin;
    if (r < op->T && !job->wpe_accumulate && !op->position)
      memcpy(position, dx, (size_t)n * sizeof *dx);
    else
      job->kernels->add(n, position, dx, position);
  }
}

enum status host_embedding_backward(struct lane *lane, const struct embedding *op, const void *dx,
                                    void *dwte, bool wpe_accumulate, void *dwpe)
{
  const enum status status = check_tokens(op);
  if (status)
    return status;
  struct embedding_job job = {.kernels = host_kernels(lane), .op = op};
  job.dx = dx;
  job.dwte = dwte;
  job.dwpe = dwpe;
  job.wpe_accumulate = wpe_accumulate;
  if (dwte || dwpe)
    host_run_ranges(lane, op->C, COLUMNS, add_columns, &job);
  return STATUS_OK;
}
