/* Bytes on the node's own disk that a run writes and reads again: activations and optimizer
 * state. They lie in one HDF5 file per node. The ranks of the node create it together through
 * MPI-IO. Each rank has its own dataset: allocated early, never filled, aligned. Transfers then
 * need no HDF5. The file is rewritten in place and removed when the last rank closes it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/comm.h"

struct store;

/* The unit of direct I/O, a multiple of any disk's blocks, and the first whole one in `memory`. */
enum { STORE_BLOCK = 4096 };
static inline char *store_align(void *memory)
{
  return (char *)memory + (STORE_BLOCK - (uintptr_t)memory % STORE_BLOCK) % STORE_BLOCK;
}

/* Room for `bytes` bytes of this rank in the folder `dir`, which is made if it is missing.
 * STATUS_MEMORY has the need of the node's ranks, the free space of the disk, and the deck keys
 * that would make it fit; STATUS_IO names the file. Collective. */
enum status store_create(struct comm *comm, const char *dir, int64_t bytes, struct store **out);
/* [offset, offset + bytes) lies inside the rank's room, else STATUS_INTERNAL. STATUS_IO has
 * the error of the disk, or says that the file was cut. Any thread, several at once. Waits for no
 * thread that uses HDF5. Local. */
enum status store_write(struct store *store, int64_t offset, int64_t bytes, const void *data);
enum status store_read(struct store *store, int64_t offset, int64_t bytes, void *data);
/* Whether the file system lets transfers bypass the page cache. Such a transfer has whole blocks of
 * STORE_BLOCK bytes, at an offset and in memory that are aligned to a block. Local. */
bool store_is_direct(const struct store *store);
/* Closes the file, which no longer has a name. Takes NULL; Local. */
void store_destroy(struct store *store);

/* Whether this process can make a store in `dir`, and `dir` itself if it is missing. Free space is
 * not checked. STATUS_IO names the folder and the deck's key. Leaves nothing behind. Local. */
enum status store_check_folder(const char *dir);
/* Bytes that a user may still write on the file system of `dir` (of its nearest parent that
 * exists). Local. */
enum status store_free_bytes(const char *dir, int64_t *out);
