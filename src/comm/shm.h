/* Collectives of groups inside a node, in shared memory. Each member puts the data for the others
 * into its box, piece by piece, and they read it from there. Pieces are small, so boxes stay in the
 * caches. A member writes one half of its box while the others read the other half. For host
 * memory; each instance serves one lane. */
#pragma once

#include "comm/comm.h"

struct shm;
struct comm_messages;

/* For each block of `size` consecutive ranks. *out is NULL if a block spans nodes, or, with a
 * warning, if the node has no room. Collective. */
enum status shm_create(struct comm *comm, int size, struct shm **out);
void shm_destroy(struct shm *box); /* takes NULL; Collective */
/* Bytes of the memory that a block shares. */
int64_t shm_bytes(int size);

/* As in comm.h; this member's part is at its place. Return when the buffers may be reused.
 * Collective over the block. */
enum status shm_all_gather(struct shm *box, struct lane *lane, int64_t bytes, void *full);
/* A length that is not valid moves no byte outside a message. */
enum status shm_exchange(struct shm *box, struct lane *lane, const struct comm_messages *messages);

/* Bytes of half a box, a multiple of 128, of the boxes that are made from now on: for tests. */
void shm_set_half(int64_t bytes);
