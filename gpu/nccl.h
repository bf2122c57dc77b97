/* A group of GPUs of NCCL, for src/comm: collectives on a lane's stream, by copy engines if NCCL
 * can (2.28 or later). Environment variables of NCCL override the settings made here. Private to
 * gpu/ and src/comm. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct lane;
struct nccl_group;

enum { NCCL_ID_BYTES = 128 };
/* A new id for a group, made by one rank and handed to all of them. This rank's process then
 * introduces a part of the ranks to each other. Local. */
enum status nccl_id(void *id);
/* The number of ids by which a group of so many ranks starts fastest. Pure. */
int nccl_ids(int ranks);
/* Allocates the group before start() or split(), so that a failure of one member happens before
 * others wait for it. Local. */
enum status nccl_group_create(struct nccl_group **out);
/* NCCL's messages and traces contain `name`, so it must live as long as the group. */
struct nccl_member {
  const char *name;
  int size, index;
};
/* Starts a group on this thread's current GPU, which no other member may have. It carries no data:
 * others are split from it. ids: n ids, the same on all members. NCCL before 2.23 reads only the
 * first. Collective. */
enum status nccl_group_start(struct nccl_group *group, struct nccl_member member, int n, void *ids);
/* Starts the groups that the members of `parent` form by color, without ids, which at many ranks
 * takes less time. Groups share nothing with each other or with the parent, so each has an order
 * and an end of its own. one_node: all members are on one node. Its value is the same on all
 * members. Collective over the parent. */
enum status nccl_group_split(struct nccl_group *group, struct nccl_group *parent,
                             struct nccl_member member, int color, bool one_node);
void nccl_group_destroy(struct nccl_group *group); /* takes NULL; Collective if it was started */
/* Instead of destroy after an error: gives up running collectives and waits for no other member.
 * Takes NULL, and a group that was not started. Local. */
void nccl_group_abort(struct nccl_group *group);

/* Memory of this thread's GPU, at a multiple of 4096, that groups can register; not zeroed.
 * Local. */
enum status nccl_memory_create(size_t bytes, void **out);
void nccl_memory_destroy(void *ptr); /* takes NULL */
/* Registers memory by nccl_memory_create() that collectives will use. All members use the same
 * offsets, and the memory must live as long as the group. It becomes a window that the members'
 * copy engines reach, so that inside a node data move without a kernel. Up to four of them.
 * Collective. */
enum status nccl_group_register(struct nccl_group *group, void *ptr, int64_t bytes);

/* All-gathers of `pieces` arrays of size * bytes bytes, `apart` bytes apart from `full` on. This
 * member's parts are at their places. Enqueued on the lane. Collective. */
enum status nccl_all_gather(struct nccl_group *group, struct lane *lane, int64_t bytes, int pieces,
                            int64_t apart, void *full);
/* received[j * bytes] = the `bytes` bytes that member j has at sent[index * bytes]. The two do not
 * overlap. Enqueued on the lane. Collective. */
enum status nccl_exchange(struct nccl_group *group, struct lane *lane, const void *sent,
                          int64_t bytes, void *received);
/* sent_bytes[j] bytes from sent + j * apart go to member j, and received_bytes[j] bytes from it
 * arrive at received + j * stride. Both sides know these numbers. NULL: all are `bytes`. `apart` 0:
 * all get the same message, which is at its place in `received`. */
struct nccl_messages {
  int64_t bytes;
  const char *sent;
  int64_t apart;
  const int64_t *sent_bytes;
  char *received;
  int64_t stride;
  const int64_t *received_bytes;
};
/* Enqueued on the lane. Collective. */
enum status nccl_exchange_messages(struct nccl_group *group, struct lane *lane,
                                   const struct nccl_messages *messages);
/* The sums of 64-bit integers, and the most of 32-bit ones, in place. Enqueued on the lane.
 * Collective. */
enum status nccl_sum_i64(struct nccl_group *group, struct lane *lane, int64_t *values, int64_t n);
enum status nccl_max_u32(struct nccl_group *group, struct lane *lane, uint32_t *values, int64_t n);

/* An error that NCCL met since (a peer that died, a broken link): STATUS_LIBRARY with its sentence.
 * Any thread. Local. */
enum status nccl_group_check(struct nccl_group *group);
