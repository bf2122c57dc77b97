/* Copies that differences of parameters are added to. A rank makes its part from its masters, or
 * loads it. The other parts come from the other ranks, so that all copies are bitwise identical. */
#include "base/mem.h"
#include "device/lane.h"
#include "job/state_private.h"

static char *pointer_of(const struct job *job, int buffer)
{
  const struct plan_buffer *b = &job_state_plan(job)->buffer[buffer];
  return (char *)job->memory.persistent[b->tier] + b->offset;
}

static enum status round_part(const struct job_state *state, struct lane *lane, int u, int master,
                              struct layout_range range)
{
  const struct job *job = state->job;
  const enum dtype type = job->place.compute;
  if (master < 0)
    return STATUS_OK;
  char *const to =
      pointer_of(job, state->plan->unit[u].copy) + range.begin * (int64_t)dtype_size(type);
  return lane->device->ops->cast(lane, range.end - range.begin, DTYPE_F32, pointer_of(job, master),
                                 type, to);
}

enum status job_state_round_copies(const struct job_state *state, struct lane *lane)
{
  const struct plan *plan = state->plan;
  enum status status = STATUS_OK;
  for (int u = 0; u < plan->input.model->units && !status; u++) {
    if (plan->unit[u].copy < 0)
      continue;
    if (!state->copies)
      status = round_part(state, lane, u, plan->unit[u].master, plan->unit[u].owned);
    if (!status)
      status = round_part(state, lane, u, plan->unit[u].frozen, plan->unit[u].frozen_owned);
  }
  return status;
}

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
  const enum status status = share_part(job, whole, trained);
  return status ? status : share_part(job, whole + trained, layout->flat * size - trained);
}

static enum status move(struct lane *lane, void *to, const void *from, int64_t bytes)
{
  const struct device_ops *ops = lane->device->ops;
  struct mark *mark = NULL;
  enum status status = ops->mark_create(lane->device, &mark);
  if (!status)
    status = ops->copy(lane, to, from, (size_t)bytes);
  if (!status)
    status = ops->mark_set(lane, mark);
  if (!status)
    status = ops->mark_wait(mark);
  ops->mark_destroy(mark);
  return status ? status : ops->lane_check(lane);
}

/* A copy through the host. */
static enum status share_apart(const struct job *job, struct lane *lane, int u)
{
  const struct plan *plan = job_state_plan(job);
  const int64_t bytes = plan->buffer[plan->unit[u].copy].bytes;
  void *const there = pointer_of(job, plan->unit[u].copy);
  char *here = NULL;
  enum status status = mem_alloc(MEM_IO, (size_t)bytes, (void **)&here);
  if (!status)
    status = move(lane, here, there, bytes);
  status = comm_agree(job->comm, status);
  if (!status)
    status = share_unit(job, u, here);
  if (!status)
    status = comm_agree(job->comm, move(lane, there, here, bytes));
  mem_free(here);
  return status;
}

enum status job_state_share_copies(const struct job *job)
{
  const struct plan *plan = job_state_plan(job);
  const struct device_ops *ops = job->device->ops;
  const bool apart = !job->device->model.host_memory;
  struct lane *lane = NULL;
  enum status status = STATUS_OK;
  if (!job_state_has_copies(plan))
    return STATUS_OK;
  if (apart)
    status = comm_agree(job->comm,
                        ops->lane_create(job->device, "copies", LANE_ROLE_BACKGROUND, 1, &lane));
  for (int u = 0; u < plan->input.model->units && !status; u++)
    if (plan->unit[u].copy >= 0)
      status = apart ? share_apart(job, lane, u)
                     : share_unit(job, u, pointer_of(job, plan->unit[u].copy));
  if (lane)
    ops->lane_destroy(lane);
  return status;
}
