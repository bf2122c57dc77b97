/* Groups over NCCL. Calls are enqueued on the stream of a lane and return at once. */
#include "gpu/nccl.h"

#include "base/log.h"
#include "base/mem.h"
#include "comm/lengths.h"
#include "comm/ops.h"
#include "device/device.h"
#include "device/lane.h"

/* Data of the transport, one per group. */
struct carried {
  struct nccl_group *nccl;
  struct device *device;       /* of comm_set_device(), NULL if there is none */
  struct comm_lengths lengths; /* if there is a device */
};

static struct nccl_group *nccl_of(const struct comm_group *group)
{
  return ((struct carried *)group->transport_data)->nccl;
}

static void forget(struct carried *carried)
{
  if (carried)
    comm_lengths_destroy(carried->device, &carried->lengths);
  mem_free(carried);
}

/* The part that is local to a member. */
static enum status create(struct comm_group *group, void *id, struct carried **out)
{
  struct carried *carried;
  struct device *device = group->comm->device;
  enum status status = group->index == 0 ? nccl_id(id) : STATUS_OK;
  status = status ?: mem_new(MEM_META, 1, &carried);
  if (status)
    return status;
  carried->device = device;
  if (device)
    status = comm_lengths_create(group, device, &carried->lengths);
  status = status ?: nccl_group_create(&carried->nccl);
  if (status)
    forget(carried);
  else
    *out = carried;
  return status;
}

/* NCCL would wait forever for a missing member, so all ranks agree before it is called. */
static enum status open_group(struct comm_group *group)
{
  const char *const name = group->apart > 1 ? "sluice-apart" : "sluice-block";
  char id[NCCL_ID_BYTES] = "";
  struct carried *carried = NULL;
  bool one_node = false;
  enum status status = comm_agree(group->comm, create(group, id, &carried));
  status = status ?: comm_group_broadcast(group, id, sizeof id);
  status = status ?: comm_group_is_on_one_node(group, &one_node);
  if (!status) {
    comm_begin_call(group->comm); /* NCCL waits without end for a member that is out of reach */
    status = comm_end_call(group->comm, nccl_group_start(carried->nccl, name, id, one_node,
                                                         group->size, group->index));
    status = comm_agree(group->comm, status);
  }
  if (!status) {
    group->transport_data = carried;
  } else if (carried) {
    nccl_group_abort(carried->nccl);
    forget(carried);
  }
  return status;
}

static void close_group(struct comm_group *group)
{
  if (nccl_group_check(nccl_of(group))) {
    log_warn("%s", status_text());
    nccl_group_abort(nccl_of(group));
  } else {
    nccl_group_destroy(nccl_of(group));
  }
  forget(group->transport_data);
}

static enum status all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                              int64_t bytes, void *full)
{
  return nccl_all_gather(nccl_of(group), lane, shard, bytes, full);
}

/* Copy engines move the parts. NCCL's own reduce-scatter would need multiprocessors. Messages of
 * varying length are enqueued, after the lane's thread has waited for the lengths. */
static enum status exchange(struct comm_group *group, struct lane *lane, const void *sent,
                            int64_t bytes, bool varying, void *received)
{
  struct carried *carried = group->transport_data;
  if (!varying)
    return nccl_exchange(carried->nccl, lane, sent, bytes, received);
  if (!carried->device)
    return status_set(STATUS_INTERNAL,
                      "NCCL cannot exchange messages of varying length, because no device is set");
  return comm_lengths_exchange(group, &carried->lengths, lane, sent, bytes)
             ?: nccl_exchange_varying(carried->nccl, lane, sent, carried->lengths.sent, bytes,
                                      received, carried->lengths.received);
}

static enum status sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums,
                             int n)
{
  enum status status =
      nccl_sum_i64(nccl_of(group), lane, (int64_t *)sums, (int64_t)n * EXACTSUM_WORDS);
  for (int i = 0; !status && i < n; i++)
    status =
        lane->device->ops->sum_exact(lane, 0, NULL, &sums[i]); /* adds nothing and normalizes */
  return status;
}

static enum status check(struct comm_group *group)
{
  return nccl_group_check(nccl_of(group));
}

static enum status register_memory(struct comm_group *group, void *ptr, int64_t bytes)
{
  comm_begin_call(group->comm);
  return comm_end_call(group->comm, nccl_group_register(nccl_of(group), ptr, bytes));
}

const struct comm_transport_ops comm_nccl_transport = {
    .enqueues = true,
    .open = open_group,
    .close = close_group,
    .all_gather = all_gather,
    .exchange = exchange,
    .sum_exact = sum_exact,
    .check = check,
    .register_memory = register_memory,
};
