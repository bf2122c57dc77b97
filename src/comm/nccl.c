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

/* The communicator of all ranks from which each group is split. It lives from the first group to
 * the end of the job. So ranks meet once, however many groups there are. */
struct nccl_family {
  struct nccl_group *all;
  int groups;
  bool broken; /* a group has failed, so the others may not come to an end that all must reach */
  int64_t ids[];
};

enum { ID_WORDS = NCCL_ID_BYTES / sizeof(int64_t) };

void comm_nccl_end(struct comm *comm)
{
  struct nccl_family *family = comm->nccl;
  if (!family)
    return;
  if (family->broken)
    nccl_group_abort(family->all);
  else
    nccl_group_destroy(family->all);
  mem_free(family);
  comm->nccl = NULL;
}

/* Whether the next group starts a family, because there is none, or because it is broken and all of
 * its groups have ended. One rank alone may know that. Collective. */
static enum status look_for_family(struct comm *comm, bool *starts)
{
  struct nccl_family *family = comm->nccl;
  int64_t any = !family || (family->broken && family->groups == 0);
  const enum status status = comm_max_i64(comm, &any, 1);
  *starts = any;
  if (status || !any || !family)
    return status;
  family->broken = true;
  comm_nccl_end(comm);
  return STATUS_OK;
}

/* Ranks at equal distances make the ids. The part that is local to a rank. */
static enum status create_family(struct comm *comm)
{
  const int n = nccl_ids(comm->ranks);
  struct nccl_family *family;
  void *memory;
  enum status status = mem_alloc(MEM_META, sizeof *family + (size_t)n * NCCL_ID_BYTES, &memory);
  if (status)
    return status;
  comm->nccl = family = memory;
  status = nccl_group_create(&family->all);
  for (int i = 0; i < n && !status; i++)
    if ((int)((int64_t)i * comm->ranks / n) == comm->rank)
      status = nccl_id(family->ids + i * ID_WORDS);
  return status;
}

/* Each id is zero on all ranks except one, so that the bits of all of them are the ids. NCCL waits
 * without end for a rank that is out of reach. */
static enum status start_family(struct comm *comm)
{
  struct nccl_family *family = comm->nccl;
  const struct nccl_member member = {"sluice", comm->ranks, comm->rank};
  const int n = nccl_ids(comm->ranks);
  comm_begin_call(comm);
  enum status status =
      comm_mpi_fold(comm->world, family->ids, (int64_t)n * ID_WORDS, MPI_INT64_T, MPI_BOR);
  status = comm_agree(comm, comm_end_call(comm, status));
  if (status)
    return status;
  comm_begin_call(comm);
  status = comm_end_call(comm, nccl_group_start(family->all, member, n, family->ids));
  return comm_agree(comm, status);
}

/* The part that is local to a member. */
static enum status create(struct comm_group *group, struct carried **out)
{
  struct carried *carried;
  struct device *device = group->comm->device;
  enum status status = group->comm->nccl ? STATUS_OK : create_family(group->comm);
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

static enum status split(struct comm_group *group, struct nccl_group *nccl)
{
  const char *const name = group->block ? "sluice-block" : "sluice-apart";
  const struct nccl_member member = {name, group->size, group->index};
  bool one_node;
  enum status status = comm_group_is_on_one_node(group, &one_node);
  if (status)
    return status;
  comm_begin_call(group->comm);
  status = nccl_group_split(nccl, group->comm->nccl->all, member, group->first, one_node);
  return comm_agree(group->comm, comm_end_call(group->comm, status));
}

/* NCCL would wait forever for a missing member, so all ranks agree before it is called. */
static enum status open_group(struct comm_group *group)
{
  struct comm *comm = group->comm;
  struct carried *carried = NULL;
  bool starts;
  enum status status = look_for_family(comm, &starts);
  if (status)
    return status;
  status = comm_agree(comm, create(group, &carried));
  if (!status && starts)
    status = start_family(comm);
  status = status ?: split(group, carried->nccl);
  if (!status) {
    comm->nccl->groups++;
    group->transport_data = carried;
    return STATUS_OK;
  }
  if (carried)
    nccl_group_abort(carried->nccl);
  forget(carried);
  if (comm->nccl)
    comm->nccl->broken = true;
  return status;
}

static void close_group(struct comm_group *group)
{
  struct nccl_family *family = group->comm->nccl;
  if (nccl_group_check(nccl_of(group))) {
    log_warn("%s", status_text());
    nccl_group_abort(nccl_of(group));
    family->broken = true;
  } else {
    nccl_group_destroy(nccl_of(group));
  }
  forget(group->transport_data);
  family->groups--;
}

/* NCCL gathers members without gaps. */
static enum status all_gather(struct comm_group *group, struct lane *lane,
                              const struct comm_places *places, void *full)
{
  if (places->stride != places->bytes)
    return nccl_exchange_messages(
        nccl_of(group), lane,
        &(struct nccl_messages){.bytes = places->bytes,
                                .sent = (char *)full + group->index * places->stride,
                                .received = full,
                                .stride = places->stride});
  return nccl_all_gather(nccl_of(group), lane, places->bytes, places->pieces, places->apart, full);
}

/* Copy engines move the parts. NCCL's own reduce-scatter would need multiprocessors. Messages of
 * varying length are enqueued, after the lane's thread has waited for the lengths. */
static enum status exchange(struct comm_group *group, struct lane *lane,
                            const struct comm_messages *m)
{
  struct carried *carried = group->transport_data;
  const struct nccl_messages messages = {.bytes = m->bytes,
                                         .sent = m->sent,
                                         .apart = m->apart,
                                         .sent_bytes = carried->lengths.sent,
                                         .received = m->received,
                                         .stride = m->stride,
                                         .received_bytes = carried->lengths.received};
  if (!m->varying)
    return nccl_exchange(carried->nccl, lane, m->sent, m->bytes, m->received);
  if (!carried->device)
    return status_set(STATUS_INTERNAL,
                      "NCCL cannot exchange messages of varying length, because no device is set");
  return comm_lengths_exchange(group, &carried->lengths, lane, m)
             ?: nccl_exchange_messages(carried->nccl, lane, &messages);
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

static enum status max_u32(struct comm_group *group, struct lane *lane, uint32_t *values, int64_t n)
{
  return nccl_max_u32(nccl_of(group), lane, values, n);
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
    .max_u32 = max_u32,
    .check = check,
    .register_memory = register_memory,
};
