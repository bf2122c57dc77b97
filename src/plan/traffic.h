/* Bytes that collectives send from node to node in a step, counted pair by pair. Only payload
 * counts, without headers and the control plane. */
#pragma once

#include "plan/plan.h"

/* Properties of the transport. Messages of varying length count with their capacity. Each node has
 * a block of consecutive ranks. */
struct traffic_model {
  int local_ranks; /* of a node */
  bool ring;       /* all-gathers use a ring; else each member sends its part to all others */
};

/* Sent by all nodes together to others, in one step. */
struct traffic_bytes {
  int64_t gather; /* parameters */
  int64_t reduce; /* gradients, in the shard group */
  int64_t
      replicas; /* gradients between replicas, or without sharding: reduce-scatter and all-gather */
  int64_t sums; /* loss and norm */
  int64_t all;
};

/* Nodes that `ranks` ranks take up. Local. */
int traffic_nodes(int ranks, int local_ranks);
/* Gradients that this rank sends to other ranks in a step: as fp32, and as messages, with scales
 * and indices. Messages of varying length do not count: comm_sent_varying(). Gradients that ranks
 * of a node read in shared memory are not sent. Local, pure. */
struct gradient_bytes {
  int64_t raw, messages;
  int64_t indices;          /* of messages */
  int64_t elements, chosen; /* chosen: upper bound for the elements that have values in messages */
};
struct gradient_bytes plan_gradient_bytes(const struct plan *plan);
/* All bytes that this rank sends to other ranks in a step, by all-gathers and exchanges, without
 * what comm_sent_varying() counts. Local, pure. */
int64_t plan_sent_bytes(const struct plan *plan);

/* Messages that a rank sends in a step, at most: one to each other member of a hop of an
 * all-gather, and per block in an exchange; one per level of a tree in a sum, an all-reduce and a
 * barrier. Local, pure. */
struct message_count {
  int64_t all;
  int64_t scales; /* of weights in fp8 */
  int groups;     /* whose members send them, and meet at the start; each hop of gathers has one */
};
struct message_count plan_messages(const struct plan *plan);

/* Local, pure. */
struct traffic_bytes plan_traffic(const struct plan *plan, const struct traffic_model *model);
