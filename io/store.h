/* Bytes on the node's own disk that a run writes and reads again: activations and optimizer
 * state. They lie in one HDF5 file per node. Its ranks make it together through MPI-IO and lay
 * it out once, each rank its own dataset: allocated early, never filled, aligned. Transfers then
 * need no HDF5. The file is rewritten in place and goes with the last rank. */
#ifndef SLUICE_IO_STORE_H
#define SLUICE_IO_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/comm.h"

struct store;

/* Room for `bytes` bytes of this rank in the folder `dir`, which is made if it is missing.
 * STATUS_MEMORY says what the ranks of the node need, what the disk has free, and which deck
 * keys would make it fit; STATUS_IO names the file. Collective. */
enum status store_create(struct comm *comm, const char *dir, int64_t bytes, struct store **out);
/* [offset, offset + bytes) lies inside the rank's room, else STATUS_INTERNAL. STATUS_IO says
 * what the disk said, and that the file was cut where it ends too early. Any thread, several at
 * once; waits for no thread that uses HDF5. Local. */
enum status store_write(struct store *store, int64_t offset, int64_t bytes, const void *data);
enum status store_read(struct store *store, int64_t offset, int64_t bytes, void *data);
/* Whether transfers of whole blocks of 4096 bytes go past the page cache, between memory and an
 * offset that are both aligned to that: if the file system allows it. Local. */
bool store_is_direct(const struct store *store);
/* Closes the file, which has no name any more. Takes NULL; Local. */
void store_destroy(struct store *store);

/* Whether this process can make a store in `dir`, or make `dir` where it is missing, but for room: STATUS_IO names both the folder and the deck's key. Leaves nothing behind. Local. */
enum status store_check_folder(const char *dir);
/* Bytes that a user may still write on the file system of `dir` (of its nearest parent that exists). Local. */
enum status store_free_bytes(const char *dir, int64_t *out);

#endif
