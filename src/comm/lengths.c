/* Lengths are copied from the heads of messages to the host, and then exchanged by MPI. */
#include "comm/lengths.h"

#include "comm/messages.h"
#include "device/device.h"
#include "device/lane.h"

enum status comm_lengths_create(struct comm_group *group, struct device *device,
                                struct comm_lengths *out)
{
  struct comm_lengths lengths;
  void *memory;
  enum status status = device->ops->alloc_host(
      device, MEM_META, 2 * (size_t)group->size * sizeof *lengths.sent, &memory);
  if (status)
    return status;
  lengths.sent = memory;
  lengths.received = lengths.sent + group->size;
  status = device->ops->mark_create(device, &lengths.mark);
  if (status)
    device->ops->release_host(device, memory);
  else
    *out = lengths;
  return status;
}

void comm_lengths_destroy(struct device *device, struct comm_lengths *lengths)
{
  if (!lengths->sent)
    return;
  device->ops->mark_destroy(lengths->mark);
  device->ops->release_host(device, lengths->sent);
}

static enum status fetch(struct comm_group *group, struct comm_lengths *lengths, struct lane *lane,
                         const struct comm_messages *m)
{
  const struct device_ops *ops = lane->device->ops;
  const size_t each = sizeof *lengths->sent;
  const int messages = m->apart ? group->size : 1;
  enum status status = ops->copy_rows(lane, messages, each, lengths->sent, each, m->sent,
                                      m->apart ? (size_t)m->apart : each);
  status = status ?: ops->mark_set(lane, lengths->mark) ?: ops->mark_wait(lengths->mark);
  for (int i = messages; i < group->size && !status; i++)
    lengths->sent[i] = lengths->sent[0];
  return status ? status : comm_check_varying(group, lengths->sent, (int64_t)each, m->bytes, true);
}

enum status comm_lengths_exchange(struct comm_group *group, struct comm_lengths *lengths,
                                  struct lane *lane, const struct comm_messages *m)
{
  MPI_Request request;
  enum status status = fetch(group, lengths, lane, m);
  if (!status)
    status = COMM_MPI_WAIT(MPI_Ialltoall(lengths->sent, 1, MPI_INT64_T, lengths->received, 1,
                                         MPI_INT64_T, group->members, &request),
                           &request);
  return status ? status
                : comm_check_varying(group, lengths->received, (int64_t)sizeof *lengths->received,
                                     m->bytes, false);
}
