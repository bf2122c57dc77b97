#include "gpu/nccl.h"

#include "base/log.h"
#include "comm/ops.h"
#include "device/device.h"
#include "device/lane.h"

/* All that a member does alone. */
static enum status prepare(const struct comm_group *group, void *id, struct nccl_group **out)
{
  enum status status = group->index == 0 ? nccl_id(id) : STATUS_OK;
  return status ? status : nccl_group_create(out);
}

/* NCCL waits for a member that never comes: all ranks agree before it is called. */
static enum status open_group(struct comm_group *group)
{
  static const char *const names[] = {[COMM_WORLD] = "sluice-world", [COMM_SHARD] = "sluice-shard", [COMM_REPLICA] = "sluice-replica"};
  char id[NCCL_ID_BYTES] = "";
  struct nccl_group *nccl = NULL;
  bool one_node = false;
  enum status status = comm_agree(group->comm, prepare(group, id, &nccl));
  if (!status)
    status = comm_agree(group->comm, group->comm->ops->group_broadcast(group, id, sizeof id));
  if (!status)
    status = comm_group_is_on_one_node(group, &one_node);
  if (!status) {
    comm_begin_call(group->comm); /* NCCL waits without end for a member that is out of reach */
    status = comm_end_call(group->comm, nccl_group_start(nccl, names[group->kind], id, one_node, group->size, group->index));
    status = comm_agree(group->comm, status);
  }
  if (status)
    nccl_group_abort(nccl);
  else
    group->carrier_data = nccl;
  return status;
}

static void close_group(struct comm_group *group)
{
  if (nccl_group_check(group->carrier_data)) {
    log_warn("%s", status_text());
    nccl_group_abort(group->carrier_data);
  } else {
    nccl_group_destroy(group->carrier_data);
  }
}

static enum status all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                              int64_t bytes, void *full)
{
  return nccl_all_gather(group->carrier_data, lane, shard, bytes, full);
}

/* Copy engines move the parts, where NCCL's own reduce-scatter needs multiprocessors. */
static enum status exchange(struct comm_group *group, struct lane *lane, const void *sent,
                            int64_t bytes, void *received)
{
  return nccl_exchange(group->carrier_data, lane, sent, bytes, received);
}

static enum status sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums, int n)
{
  enum status status =
      nccl_sum_i64(group->carrier_data, lane, (int64_t *)sums, (int64_t)n * EXACTSUM_WORDS);
  for (int i = 0; !status && i < n; i++)
    status = lane->device->ops->sum_exact(lane, 0, NULL, &sums[i]); /* adds nothing and normalizes */
  return status;
}

static enum status check(struct comm_group *group)
{
  return nccl_group_check(group->carrier_data);
}

static enum status register_memory(struct comm_group *group, void *ptr, int64_t bytes)
{
  comm_begin_call(group->comm);
  return comm_end_call(group->comm, nccl_group_register(group->carrier_data, ptr, bytes));
}

const struct comm_carrier_ops comm_nccl_carrier = {
    .open = open_group,
    .close = close_group,
    .all_gather = all_gather,
    .exchange = exchange,
    .sum_exact = sum_exact,
    .check = check,
    .register_memory = register_memory,
};
