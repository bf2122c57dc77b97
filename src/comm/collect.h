/* Bytes of all ranks collected at rank 0, and how far the clocks of the nodes differ. For `sluice
 * doctor`; MPI jobs only. */
#pragma once

#include <stdint.h>

#include "comm/comm.h"

/* Every rank's `bytes` bytes at rank 0, in the order of ranks: all[ranks * bytes], not read
 * elsewhere. At most 1 GiB together. Collective. */
enum status comm_collect_bytes(struct comm *comm, const void *mine, int64_t bytes, void *all);

/* A message to a peer and back, in nanoseconds: sent and received by the asking rank's clock,
 * answered by the peer's clock. */
struct comm_echo {
  int64_t sent, answered, received;
};
/* Seconds that a clock is ahead of the asking one, plus or minus `error`, unless a clock was set
 * during the measurement. error < 0: not measured. */
struct comm_offset {
  double seconds, error;
};
/* From the fastest of n echoes. Its answer was sent in the middle of the round trip, plus or minus
 * half of it (Cristian, "Probabilistic clock synchronization", 1989). n >= 1. */
struct comm_offset comm_clock_offset(const struct comm_echo *echo, int n);
/* Difference of each node's wall clock from rank 0's. offset[ranks] is filled on rank 0, at the
 * lowest rank of each node; the other entries are not measured. Collective. */
enum status comm_collect_clocks(struct comm *comm, struct comm_offset *offset);

/* The lowest rank of this one's node. Local. */
int comm_node_leader(const struct comm *comm);
