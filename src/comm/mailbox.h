/* Collectives of groups that lie inside a node, through memory that the members share: each puts what the others shall have into its box, from where they take it, piece by
 * piece, so that boxes stay in the caches. A member writes one half of its box while the others read the other one. For memory of the host; one lane a mailbox. */
#ifndef SLUICE_COMM_MAILBOX_H
#define SLUICE_COMM_MAILBOX_H

#include "comm/comm.h"

struct mailbox;

/* For each block of `size` consecutive ranks; *out is NULL where a block spans nodes, or where the node has no room for it (a warning says so). Collective. */
enum status mailbox_create(struct comm *comm, int size, struct mailbox **out);
void mailbox_destroy(struct mailbox *box); /* takes NULL; Collective */
/* Bytes of the memory that a block shares. */
int64_t mailbox_bytes(int size);

/* As in comm.h. Return when the buffers may be reused. Collective over the block. */
enum status mailbox_all_gather(struct mailbox *box, struct lane *lane, const void *shard,
                               int64_t bytes, void *full);
enum status mailbox_exchange(struct mailbox *box, struct lane *lane, const void *sent,
                             int64_t bytes, void *received);

/* Bytes of half a box, a multiple of 128, of the boxes that are made from now on: for tests. */
void mailbox_set_half(int64_t bytes);

#endif
