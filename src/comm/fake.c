/* Rank r of P without peers: sizes are checked, and no data move. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/ops.h"
#include "device/device.h"
#include "device/lane.h"

static void destroy(struct comm *comm)
{
  mem_free(comm);
}

static enum status create_sibling(struct comm *comm, struct comm **out)
{
  struct comm *sibling;
  enum status status = mem_new(MEM_META, 1, &sibling);
  if (status)
    return status;
  *sibling = *comm;
  *out = sibling;
  return STATUS_OK;
}

static void *no_mpi(struct comm *comm)
{
  (void)comm;
  return NULL;
}

static void __attribute__((noreturn)) end_process(struct comm *comm, int exit_code)
{
  (void)comm;
  exit(exit_code);
}

static enum status barrier(struct comm *comm)
{
  (void)comm;
  return STATUS_OK;
}

/* Simulated peers pass the same values as this rank. */
static enum status broadcast(struct comm *comm, void *data, int64_t bytes, int root)
{
  (void)comm, (void)data, (void)bytes, (void)root;
  return STATUS_OK;
}

static enum status fold(struct comm *comm, enum comm_fold how, void *values, int64_t n)
{
  (void)comm, (void)how, (void)values, (void)n;
  return STATUS_OK;
}

static enum status group_create(struct comm *comm, int color, int index, struct comm_group **out)
{
  (void)comm, (void)color, (void)index;
  return mem_new(MEM_META, 1, out);
}

static void group_destroy(struct comm_group *group)
{
  mem_free(group);
}

static enum status group_broadcast(struct comm_group *group, void *data, int64_t bytes)
{
  (void)group, (void)data, (void)bytes;
  return STATUS_OK;
}

static enum status group_barrier(struct comm_group *group)
{
  (void)group;
  return STATUS_OK;
}

static enum status all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                              int64_t bytes, void *full)
{
  char *place = (char *)full + group->index * bytes;
  return shard == place ? STATUS_OK : lane->device->ops->copy(lane, place, shard, (size_t)bytes);
}

/* Simulated peers send zeros, so a sum is this rank's own part. In place of a message of varying
 * length they send this rank's own, because zeros are no valid message. */
static enum status exchange(struct comm_group *group, struct lane *lane, const void *sent,
                            int64_t bytes, bool varying, void *received)
{
  const struct device_ops *ops = lane->device->ops;
  const char *mine = (const char *)sent + group->index * bytes;
  enum status status = STATUS_OK;
  for (int i = 0; i < group->size && !status; i++) {
    char *to = (char *)received + i * bytes;
    status = varying || i == group->index ? ops->copy(lane, to, mine, (size_t)bytes)
                                          : ops->zero(lane, to, (size_t)bytes);
  }
  return status;
}

static enum status sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums,
                             int n)
{
  (void)group, (void)lane, (void)sums, (void)n;
  return STATUS_OK;
}

static const struct comm_transport_ops fake_transport = {
    .open = comm_transport_open_nothing,
    .close = comm_transport_close_nothing,
    .all_gather = all_gather,
    .exchange = exchange,
    .sum_exact = sum_exact,
    .check = comm_transport_check_nothing,
    .register_memory = comm_transport_register_nothing,
};

static const struct comm_ops fake_ops = {
    .stand_in = &fake_transport,
    .destroy = destroy,
    .create_sibling = create_sibling,
    .mpi = no_mpi,
    .abort = end_process,
    .barrier = barrier,
    .broadcast = broadcast,
    .fold = fold,
    .group_create = group_create,
    .group_destroy = group_destroy,
    .group_broadcast = group_broadcast,
    .group_barrier = group_barrier,
};

enum status comm_create_fake(int rank, int ranks, int local_ranks, struct comm **out)
{
  if (ranks < 1 || rank < 0 || rank >= ranks || local_ranks < 1)
    return status_usage("there is no rank %d of %d with %d on a node", rank, ranks, local_ranks);
  struct comm *comm;
  enum status status = mem_new(MEM_META, 1, &comm);
  if (status)
    return status;
  *comm = (struct comm){.ops = &fake_ops,
                        .transport = &fake_transport,
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
