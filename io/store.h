/* Bytes on the node's own disk that a run writes and reads again: activations and optimizer state. One HDF5 file a node, which its ranks open together through MPI-IO, on a communicator of
 * their own; laid out once, each rank its own dataset (allocated early, never filled, aligned), rewritten in place, deleted at the end. */
#ifndef SLUICE_IO_STORE_H
#define SLUICE_IO_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/comm.h"

struct store;

/* Room for `bytes` bytes of this rank in the folder `dir`, which is made where it is missing. STATUS_MEMORY says what the ranks of the node need, what the disk has free, and which deck keys
 * would make it fit; STATUS_IO names the file. Collective. */
enum status store_create(struct comm *comm, const char *dir, int64_t bytes, struct store **out);
/* Any thread, one call at a time a process (others wait), pieces below 2 GiB. [offset, offset + bytes) is inside of the rank's room: STATUS_INTERNAL. Local. */
enum status store_write(struct store *store, int64_t offset, int64_t bytes, const void *data);
enum status store_read(struct store *store, int64_t offset, int64_t bytes, void *data);
/* Whether transfers of whole blocks of 4096 bytes, between memory and an offset that are both aligned to that, go past the page cache: where the file system lets them. Local. */
bool store_is_direct(const struct store *store);
/* Closes and deletes the file. Takes NULL; Collective. */
void store_destroy(struct store *store);

/* Whether this process can make a store in `dir`, or make `dir` where it is missing, but for room: STATUS_IO names both the folder and the deck's key. Leaves nothing behind. Local. */
enum status store_check_folder(const char *dir);
/* Bytes that a user may still write on the file system of `dir` (of its nearest parent that exists). Local. */
enum status store_free_bytes(const char *dir, int64_t *out);

#endif
