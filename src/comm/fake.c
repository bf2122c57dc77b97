/* Rank r of P without peers: sizes are checked, and no data move. */
#include <stdio.h>

#include "base/mem.h"
#include "comm/ops.h"
#include "device/device.h"
#include "device/lane.h"

static enum status all_gather(struct comm_group *group, struct lane *lane,
                              const struct comm_places *places, void *full)
{
  (void)group, (void)lane, (void)places, (void)full;
  return STATUS_OK;
}

/* Simulated peers send zeros, so a sum is this rank's own part. In place of a message of varying
 * length they send this rank's own, because zeros are no valid message. */
static enum status exchange(struct comm_group *group, struct lane *lane,
                            const struct comm_messages *m)
{
  const struct device_ops *ops = lane->device->ops;
  const char *mine = m->sent + group->index * m->apart;
  enum status status = STATUS_OK;
  for (int i = 0; i < group->size && !status; i++) {
    char *to = m->received + i * m->stride;
    if (to != mine)
      status = m->varying || i == group->index ? ops->copy(lane, to, mine, (size_t)m->bytes)
                                               : ops->zero(lane, to, (size_t)m->bytes);
  }
  return status;
}

static enum status sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums,
                             int n)
{
  (void)group, (void)lane, (void)sums, (void)n;
  return STATUS_OK;
}

static enum status max_u32(struct comm_group *group, struct lane *lane, uint32_t *values, int64_t n)
{
  (void)group, (void)lane, (void)values, (void)n;
  return STATUS_OK;
}

const struct comm_transport_ops comm_fake_transport = {
    .open = comm_transport_open_nothing,
    .close = comm_transport_close_nothing,
    .all_gather = all_gather,
    .exchange = exchange,
    .sum_exact = sum_exact,
    .max_u32 = max_u32,
    .check = comm_transport_check_nothing,
    .register_memory = comm_transport_register_nothing,
};

enum status comm_create_fake(int rank, int ranks, int local_ranks, struct comm **out)
{
  if (ranks < 1 || rank < 0 || rank >= ranks || local_ranks < 1)
    return status_usage("there is no rank %d of %d with %d on a node", rank, ranks, local_ranks);
  struct comm *comm;
  enum status status = mem_new(MEM_META, 1, &comm);
  if (status)
    return status;
  *comm = (struct comm){.world = MPI_COMM_NULL,
                        .transport = &comm_fake_transport,
                        .rank = rank,
                        .ranks = ranks,
                        .local_rank = rank % local_ranks,
                        .local_ranks = local_ranks,
                        .node = rank - rank % local_ranks};
  snprintf(comm->description, sizeof comm->description, "no MPI: rank %d of %d, alone", rank,
           ranks);
  *out = comm;
  return STATUS_OK;
}
