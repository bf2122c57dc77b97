/* Rows of a table by token. Gradients of a token are added in the order of its positions. */
#include <string.h>

#include "device/host/host.h"

enum { ROWS = 16, COLUMNS = STRIP };

struct embedding_job {
  const struct kernels *kernels;
  int64_t rows, T, C;
  const int32_t *token;
  const float *wte, *wpe, *dx;
  float *x, *dwte, *dwpe;
  bool wpe_accumulate;
};

static enum status check_tokens(int64_t rows, int64_t V, const int32_t *token)
{
  for (int64_t r = 0; r < rows; r++)
    if (token[r] < 0 || token[r] >= V)
      return device_refuse_id("token", r, token[r], V);
  return STATUS_OK;
}

static void look_up(void *arg, int64_t begin, int64_t end)
{
  const struct embedding_job *job = arg;
  int64_t C = job->C;
  for (int64_t r = begin; r < end; r++) {
    const float *word = job->wte + job->token[r] * C;
    if (job->wpe)
      job->kernels->add(C, word, job->wpe + r % job->T * C, job->x + r * C);
    else
      memcpy(job->x + r * C, word, (size_t)C * sizeof *word);
  }
}

enum status host_embedding(struct lane *lane, int64_t rows, int64_t T, int64_t C, int64_t V,
                           const int32_t *token, const void *wte, const void *wpe, void *x)
{
  enum status status = check_tokens(rows, V, token);
  if (status)
    return status;
  struct embedding_job job = {.kernels = host_kernels(lane), .rows = rows, .T = T, .C = C};
  job.token = token;
  job.wte = wte;
  job.wpe = wpe;
  job.x = x;
  host_run_ranges(lane, rows, ROWS, look_up, &job);
  return STATUS_OK;
}

/* A range of columns over all rows in order, so that two threads never add to one element. */
static void add_columns(void *arg, int64_t begin, int64_t end)
{
  const struct embedding_job *job = arg;
  int64_t C = job->C, n = end - begin;
  for (int64_t r = 0; r < job->rows; r++) {
    const float *dx = job->dx + r * C + begin;
    if (job->dwte) {
      float *word = job->dwte + job->token[r] * C + begin;
      job->kernels->add(n, word, dx, word);
    }
    if (!job->dwpe)
      continue;
    float *position = job->dwpe + r % job->T * C + begin;
    if (r < job->T && !job->wpe_accumulate)
      memcpy(position, dx, (size_t)n * sizeof *dx);
    else
      job->kernels->add(n, position, dx, position);
  }
}

enum status host_embedding_backward(struct lane *lane, int64_t rows, int64_t T, int64_t C,
                                    int64_t V, const int32_t *token, const void *dx, void *dwte,
                                    bool wpe_accumulate, void *dwpe)
{
  enum status status = check_tokens(rows, V, token);
  if (status)
    return status;
  struct embedding_job job = {.kernels = host_kernels(lane), .rows = rows, .T = T, .C = C};
  job.token = token;
  job.dx = dx;
  job.dwte = dwte;
  job.dwpe = dwpe;
  job.wpe_accumulate = wpe_accumulate;
  if (dwte || dwpe)
    host_run_ranges(lane, C, COLUMNS, add_columns, &job);
  return STATUS_OK;
}
