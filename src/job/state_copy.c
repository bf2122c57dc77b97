/* Copies that differences of parameters are added to. A rank makes its part from its masters, or
 * loads it. The other parts come from the other ranks, so that all copies are bitwise identical. */
#include "base/mem.h"
#include "device/lane.h"
#include "job/state_private.h"

/* From rank to rank, all parts of equal size. */
static enum status share_part(const struct job *job, char *part, int64_t bytes)
{
  const int ranks = comm_ranks(job->comm);
  enum status status = STATUS_OK;
  for (int rank = 0; rank < ranks && !status; rank++)
    status = comm_broadcast(job->comm, part + rank * (bytes / ranks), bytes / ranks, rank);
  return status;
}

static enum status share_unit(const struct job *job, int u, char *whole)
{
  const struct plan *plan = job_state_plan(job);
  const struct layout_unit *layout = &plan->unit[u].layout;
  const int64_t size = (int64_t)dtype_size(plan->buffer[plan->unit[u].copy].dtype),
                trained = layout->trained * size;
  return share_part(job, whole, trained)
             ?: share_part(job, whole + trained, layout->flat * size - trained);
}

struct move {
  void *to;
  const void *from;
  int64_t bytes;
};

static enum status move(struct lane *lane, const void *arg)
{
  const struct move *move = arg;
  return lane->device->ops->copy(lane, move->to, move->from, (size_t)move->bytes);
}

enum status job_state_copy(const struct job *job, void *to, const void *from, int64_t bytes)
{
  return job_state_on_lane(job->device, 1, move, &(struct move){to, from, bytes});
}

/* A copy through the host. */
static enum status share_apart(const struct job *job, int u)
{
  const struct plan *plan = job_state_plan(job);
  const int64_t bytes = plan->buffer[plan->unit[u].copy].bytes;
  void *const there = job_state_pointer(job, plan->unit[u].copy);
  char *here = NULL;
  enum status status = mem_new(MEM_IO, bytes, &here) ?: job_state_copy(job, here, there, bytes);
  status = comm_agree(job->comm, status) ?: share_unit(job, u, here);
  if (!status)
    status = comm_agree(job->comm, job_state_copy(job, there, here, bytes));
  mem_free(here);
  return status;
}

enum status job_state_share_copies(const struct job *job)
{
  const struct plan *plan = job_state_plan(job);
  enum status status = STATUS_OK;
  for (int u = 0; u < plan->input.model->units && !status; u++)
    if (plan->unit[u].copy >= 0)
      status = job->device->model.host_memory
                   ? share_unit(job, u, job_state_pointer(job, plan->unit[u].copy))
                   : share_apart(job, u);
  return status;
}
