/* Lengths of messages in device memory, for transports that must know them before they move bytes:
 * those of varying length. */
#pragma once

#include "comm/ops.h"

struct mark;

struct comm_lengths {
  int64_t *sent, *received; /* pinned memory, one of each member */
  struct mark *mark;
};

/* For a group of an mpi job whose data are on this device. Local. */
enum status comm_lengths_create(struct comm_group *group, struct device *device,
                                struct comm_lengths *out);
void comm_lengths_destroy(struct device *device, struct comm_lengths *lengths); /* zeros: nothing */

/* Lengths of the messages to send, and of the incoming ones. Waits for the lane's work so far, then
 * exchanges lengths by MPI. Collective over the group. */
enum status comm_lengths_exchange(struct comm_group *group, struct comm_lengths *lengths,
                                  struct lane *lane, const struct comm_messages *messages);
