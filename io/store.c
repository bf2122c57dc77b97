/* The store's transfers are HDF5's, through MPI-IO, independent of other ranks'.
 *
 * Past the page cache where it can be: what is written here is read once, much later, and is larger than memory has room for, so that the cache would only cost a copy and take the
 * memory that pinned buffers need. MPI-IO has no portable way to ask for direct I/O, but it works on a descriptor of this process, whose O_DIRECT can be set: it is, around every
 * call that moves whole blocks between aligned places, and never for metadata.
 *
 * The file has no name once all ranks have opened it, before it takes any room, so that it goes with the last of them, however they end. */
#include "io/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/file.h"
#include "io/hdf5.h"

enum {
  BLOCK_BYTES = 4096,    /* of any disk's blocks, the unit of direct I/O */
  ALIGN_BYTES = 1 << 20, /* a rank's room begins and ends at a multiple */
  REST_BYTES = 2 << 20,  /* more than HDF5's metadata takes, and the gap behind it */
  MOST_DESCRIPTORS = 4
};

struct store {
  struct comm *comm;
  MPI_Comm node; /* this node's ranks, MPI_COMM_NULL without MPI */
  int index, ranks;
  char *dir, *path;
  int64_t bytes, *node_bytes; /* this rank's, those of all ranks of the node: whole ALIGN_BYTES */
  int64_t room;               /* what the caller has asked for */
  bool made;                  /* by this rank */
  hid_t file;
  struct hdf5_dataset dataset;
  int64_t begin;                                 /* of the dataset in the file */
  int fd;                                        /* for a look at the file, never for its data */
  int descriptors, descriptor[MOST_DESCRIPTORS]; /* those of MPI-IO that take O_DIRECT */
};

/* Room on the disk. */

static int64_t node_total(const struct store *store)
{
  int64_t total = REST_BYTES;
  for (int r = 0; r < store->ranks; r++)
    total += store->node_bytes[r];
  return total;
}

static enum status check_room(const struct store *store)
{
  int64_t have;
  const enum status status = store_free_bytes(store->dir, &have);
  if (status || node_total(store) <= have)
    return status;
  return status_set(STATUS_MEMORY,
                    "the %d rank%s of this node need %s on the disk of %s, which has %s free: name a folder on a larger disk "
                    "(tiers.nvme=FOLDER), lower optim.state_share, or keep the activations in host memory (tiers.activations=host)",
                    store->ranks, store->ranks == 1 ? "" : "s", mem_amount(node_total(store)).text, store->dir, mem_amount(have).text);
}

/* Making the file. */

/* By the node's first rank, which makes the folder and an empty file, so that what forbids it is an error of one rank and not a failed collective call. Its name is new: what another run
 * uses, or has left behind, is never met. */
static enum status make_empty(struct store *store)
{
  static const char end[] = ".h5";
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, HOST_NAME_MAX); /* may stay empty */
  enum status status = store_check_folder(store->dir);
  if (!status)
    status = check_room(store);
  if (status)
    return status;
  status = file_make_folders(store->dir);
  if (status)
    return status_prefix(status, "tiers.nvme");
  store->path = mem_printf("%s/sluice-%s-XXXXXX%s", store->dir, host, end);
  if (!store->path)
    return STATUS_MEMORY;
  const int fd = mkostemps(store->path, (int)strlen(end), O_CLOEXEC);
  if (fd < 0)
    return status_set(STATUS_IO, "cannot create a file in %s (tiers.nvme): %s", store->dir, strerror(errno));
  store->made = true;
  status = file_reserve_open(fd, store->path, REST_BYTES); /* what opening and closing take if reserve() fails */
  close(fd);                                               /* nothing was written */
  return status;
}

static enum status share_path(struct store *store)
{
  int64_t bytes = store->path ? (int64_t)strlen(store->path) + 1 : 0;
  if (store->node == MPI_COMM_NULL)
    return STATUS_OK;
  enum status status = comm_mpi_check(MPI_Bcast(&bytes, 1, MPI_INT64_T, 0, store->node), "MPI_Bcast");
  if (!status && store->index != 0)
    status = mem_alloc(MEM_META, (size_t)bytes, (void **)&store->path);
  status = comm_agree(store->comm, status);
  return status ? status : comm_mpi_check(MPI_Bcast(store->path, (int)bytes, MPI_CHAR, 0, store->node), "MPI_Bcast");
}

static enum status drop_name(struct store *store)
{
  if (!store->made)
    return STATUS_OK;
  store->made = false;
  return unlink(store->path) == 0 ? STATUS_OK : status_set(STATUS_IO, "cannot delete %s: %s", store->path, strerror(errno));
}

static enum status open_own(struct store *store)
{
  store->fd = open(store->path, O_RDWR | O_CLOEXEC);
  if (store->fd >= 0)
    return STATUS_OK;
  return status_set(STATUS_IO, "%s, which another rank of this node made, cannot be opened here: %s", store->path, strerror(errno));
}

static enum status find_node(struct store *store)
{
  const MPI_Comm *job = comm_mpi(store->comm);
  store->ranks = 1;
  if (!job)
    return STATUS_OK;
  enum status status =
      comm_mpi_check(MPI_Comm_split_type(*job, MPI_COMM_TYPE_SHARED, comm_rank(store->comm), MPI_INFO_NULL, &store->node), "MPI_Comm_split_type");
  if (!status)
    status = comm_mpi_check(MPI_Comm_rank(store->node, &store->index), "MPI_Comm_rank");
  return status ? status : comm_mpi_check(MPI_Comm_size(store->node, &store->ranks), "MPI_Comm_size");
}

static enum status gather_bytes(struct store *store)
{
  store->node_bytes[store->index] = store->bytes;
  if (store->node == MPI_COMM_NULL)
    return STATUS_OK;
  return comm_mpi_check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, store->node_bytes, 1, MPI_INT64_T, store->node), "MPI_Allgather");
}

/* With the file open on some ranks only, or laid out on some, HDF5 has no way back: closing it is collective. All ranks are here, one speaks. */
static void __attribute__((noreturn)) give_up(const struct store *store, enum status status)
{
  if (store->made)
    (void)unlink(store->path);
  if (comm_rank(store->comm) != 0)
    (void)comm_barrier(store->comm);
  comm_abort(store->comm, status);
}

static enum status open_on_all(struct store *store)
{
  const enum status mine = hdf5_create_aligned(store->path, store->node == MPI_COMM_NULL ? NULL : &store->node, ALIGN_BYTES, &store->file);
  int64_t opened = !mine;
  const enum status status = comm_agree(store->comm, mine ? status_prefix(mine, "%s", store->path) : STATUS_OK);
  if (status && (comm_max_i64(store->comm, &opened, 1) || opened))
    give_up(store, status);
  return status;
}

static enum status flush(const struct store *store)
{
  hdf5_lock();
  const enum status status = hdf5_check(H5Fflush(store->file, H5F_SCOPE_LOCAL), STATUS_IO, "lay it out");
  hdf5_unlock();
  return status;
}

/* A full disk is to be found here, not by a flush, which HDF5 does not survive. */
static enum status reserve(struct store *store)
{
  const enum status status = store->index == 0 ? file_reserve_open(store->fd, store->path, node_total(store)) : STATUS_OK;
  const enum status filled = status ? check_room(store) : STATUS_OK; /* since it was looked at, by somebody else */
  if (filled)
    return filled;
  return status ? status_prefix(status, "%s for what goes to NVMe (tiers.nvme)", mem_amount(node_total(store)).text) : STATUS_OK;
}

/* A dataset for each rank that needs room. */
static enum status make_datasets(struct store *store)
{
  enum status status = STATUS_OK;
  for (int r = 0; r < store->ranks && !status; r++) {
    struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
    char name[32];
    if (store->node_bytes[r] == 0)
      continue;
    snprintf(name, sizeof name, "rank-%d", r);
    status = hdf5_create_dataset(store->file, name, DTYPE_U8, 1, &store->node_bytes[r], &dataset);
    if (!status && r == store->index)
      store->dataset = dataset;
    else
      status = hdf5_close(dataset.id, status);
  }
  return status ? status_prefix(status, "%s", store->path) : STATUS_OK;
}

/* The flush, which is collective, sets the file's size: writing never extends it. */
static enum status lay_out(struct store *store)
{
  enum status status = comm_agree(store->comm, make_datasets(store));
  if (!status)
    status = comm_agree(store->comm, flush(store));
  if (status)
    give_up(store, status);
  return store->bytes > 0 ? hdf5_locate(&store->dataset, &store->begin) : STATUS_OK;
}

/* Direct I/O. */

static bool set_direct(int fd, bool direct)
{
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* The file system may refuse the flag, or the first transfer. */
static bool takes_direct(int fd, int64_t begin, void *block)
{
  const bool taken = set_direct(fd, true) && pread(fd, block, BLOCK_BYTES, (off_t)begin) == BLOCK_BYTES;
  return set_direct(fd, false) && taken;
}

/* The open descriptors of this process that are the store's file, but its own: MPI-IO's. */
static void find_descriptors(struct store *store, void *block)
{
  struct stat mine, other;
  DIR *folder = opendir("/proc/self/fd");
  if (!folder || fstat(store->fd, &mine) != 0) {
    if (folder)
      closedir(folder);
    return;
  }
  for (struct dirent *item; (item = readdir(folder)) != NULL && store->descriptors < MOST_DESCRIPTORS;) {
    const int fd = (int)strtol(item->d_name, NULL, 10);
    if (item->d_name[0] == '.' || fd == store->fd || fstat(fd, &other) != 0 || other.st_dev != mine.st_dev || other.st_ino != mine.st_ino)
      continue;
    if (takes_direct(fd, store->begin, block))
      store->descriptor[store->descriptors++] = fd;
  }
  closedir(folder);
}

static enum status prepare_direct(struct store *store)
{
  char *blocks = NULL;
  if (store->bytes == 0 || store->begin % BLOCK_BYTES != 0)
    return STATUS_OK;
  const enum status status = mem_alloc(MEM_IO, 2 * (size_t)BLOCK_BYTES, (void **)&blocks);
  if (status)
    return status;
  find_descriptors(store, blocks + (BLOCK_BYTES - (uintptr_t)blocks % BLOCK_BYTES) % BLOCK_BYTES);
  mem_free(blocks);
  return STATUS_OK;
}

bool store_is_direct(const struct store *store)
{
  return store->descriptors > 0;
}

/* Creating and destroying. */

static enum status create(struct store *store)
{
  const bool first = store->index == 0;
  enum status status = comm_agree(store->comm, gather_bytes(store));
  if (!status)
    status = comm_agree(store->comm, first ? make_empty(store) : STATUS_OK);
  if (!status)
    status = comm_agree(store->comm, share_path(store));
  if (!status)
    status = comm_agree(store->comm, open_own(store));
  if (!status)
    status = open_on_all(store);
  if (!status)
    status = comm_agree(store->comm, drop_name(store));
  if (!status)
    status = comm_agree(store->comm, reserve(store));
  if (!status)
    status = comm_agree(store->comm, lay_out(store));
  if (!status)
    status = comm_agree(store->comm, prepare_direct(store));
  if (store->made)
    (void)unlink(store->path); /* the first failure is the one to tell */
  return comm_agree(store->comm, status);
}

enum status store_create(struct comm *comm, const char *dir, int64_t bytes, struct store **out)
{
  struct store *store = NULL;
  enum status status = bytes < 0 ? status_set(STATUS_INTERNAL, "a store of %lld bytes is asked for", (long long)bytes) : STATUS_OK;
  if (!status)
    status = mem_alloc(MEM_META, sizeof *store, (void **)&store);
  if (!status) {
    *store = (struct store){.comm = comm,
                            .node = MPI_COMM_NULL,
                            .room = bytes,
                            .bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES,
                            .file = H5I_INVALID_HID,
                            .dataset = {.id = H5I_INVALID_HID},
                            .fd = -1,
                            .dir = mem_strdup(dir)};
    status = store->dir ? mem_alloc(MEM_META, (size_t)comm_ranks(comm) * sizeof *store->node_bytes, (void **)&store->node_bytes) : STATUS_MEMORY;
  }
  status = comm_agree(comm, status);
  if (!status)
    status = comm_agree(comm, find_node(store));
  if (!status)
    status = create(store);
  if (status) {
    store_destroy(store);
    return status;
  }
  *out = store;
  return STATUS_OK;
}

void store_destroy(struct store *store)
{
  if (!store)
    return;
  enum status status = hdf5_close(store->dataset.id, STATUS_OK);
  status = store->node == MPI_COMM_NULL ? hdf5_finish(store->file, status) : hdf5_close(store->file, status);
  if (!status && store->node != MPI_COMM_NULL)
    status = comm_mpi_check(MPI_Comm_free(&store->node), "MPI_Comm_free");
  if (status)
    log_warn("%s: %s", store->path ? store->path : store->dir, status_text());
  if (store->fd >= 0)
    close(store->fd); /* nothing was written through it */
  mem_free(store->node_bytes);
  mem_free(store->path);
  mem_free(store->dir);
  mem_free(store);
}

/* Transfers. */

/* What one call of HDF5 moves. */
struct piece {
  int64_t offset, bytes;
  bool direct;
  char *read_to; /* one of the two is NULL */
  const char *write_from;
};

static int64_t least(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* The next piece of `left` bytes: up to the first whole block, then whole blocks, then the rest; all of it through the page cache where memory and file are not aligned alike. */
static void choose_piece(const struct store *store, int64_t left, struct piece *piece)
{
  const uintptr_t place = piece->read_to ? (uintptr_t)piece->read_to : (uintptr_t)piece->write_from;
  const int64_t into = piece->offset % BLOCK_BYTES, blocks = left / BLOCK_BYTES * BLOCK_BYTES;
  const int64_t most = hdf5_transfer_bytes < BLOCK_BYTES ? BLOCK_BYTES : hdf5_transfer_bytes / BLOCK_BYTES * BLOCK_BYTES;
  const bool alike = store->descriptors > 0 && hdf5_transfer_bytes >= BLOCK_BYTES && (int64_t)(place % BLOCK_BYTES) == into;
  piece->direct = alike && into == 0 && blocks > 0;
  if (piece->direct)
    piece->bytes = least(blocks, most);
  else if (alike && into > 0)
    piece->bytes = least(left, BLOCK_BYTES - into);
  else
    piece->bytes = least(left, most);
}

static enum status switch_direct(const struct store *store, bool direct)
{
  for (int i = 0; i < store->descriptors; i++)
    if (!set_direct(store->descriptor[i], direct))
      return status_set(STATUS_IO, "cannot switch direct I/O %s: %s", direct ? "on" : "off", strerror(errno));
  return STATUS_OK;
}

/* The lock keeps the flag and the call together. */
static enum status move(const struct store *store, const struct piece *piece)
{
  const struct layout_range range = {piece->offset, piece->offset + piece->bytes};
  hdf5_lock();
  enum status status = piece->direct ? switch_direct(store, true) : STATUS_OK;
  if (!status)
    status = piece->read_to ? hdf5_read(&store->dataset, range, piece->read_to) : hdf5_write(&store->dataset, range, piece->write_from);
  if (piece->direct) {
    const enum status back = switch_direct(store, false);
    status = status ? status : back;
  }
  hdf5_unlock();
  return status;
}

/* Reads what MPI-IO has just read: from the page cache, if it is there. */
static enum status read_again(const struct store *store, const struct piece *piece)
{
  char scratch[16384];
  for (int64_t at = 0; at < piece->bytes;) {
    const ssize_t got =
        pread(store->fd, scratch, (size_t)least(piece->bytes - at, (int64_t)sizeof scratch), (off_t)(store->begin + piece->offset + at));
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return status_set(STATUS_IO, "%s", got < 0 ? strerror(errno) : "the file ends too early");
    at += got;
  }
  return STATUS_OK;
}

/* HDF5 passes a short read off as zeros. The file's end cannot be the cause, unless the file was cut; a bad spot on the disk can, beyond which the cache's reader gives nothing
 * (direct I/O fails as a whole). */
static enum status check_is_whole(const struct store *store, const struct piece *piece)
{
  static const char zeros[64];
  struct stat info;
  if (fstat(store->fd, &info) != 0)
    return status_set(STATUS_IO, "%s", strerror(errno));
  if (info.st_size < store->begin + piece->offset + piece->bytes)
    return status_set(STATUS_IO, "the file is shorter than it was made: something has cut it");
  const size_t tail = (size_t)least(piece->bytes, sizeof zeros);
  if (piece->direct || memcmp(piece->read_to + piece->bytes - tail, zeros, tail) != 0)
    return STATUS_OK;
  return read_again(store, piece);
}

/* HDF5 does not say why, MPI-IO does not say it well; most often the disk is full. */
static enum status explain(const struct store *store, const struct piece *piece, enum status status)
{
  char reason[1024], room[64] = "";
  int64_t have;
  snprintf(reason, sizeof reason, "%s", status_text());
  if (!store_free_bytes(store->dir, &have))
    snprintf(room, sizeof room, ", whose disk has %s free", mem_amount(have).text);
  return status_set(status, "cannot %s %lld bytes at %lld of the store in %s%s: %s", piece->read_to ? "read" : "write", (long long)piece->bytes,
                    (long long)piece->offset, store->dir, room, reason);
}

static enum status transfer(struct store *store, int64_t bytes, struct piece piece)
{
  if (piece.offset < 0 || bytes < 0 || piece.offset > store->room || bytes > store->room - piece.offset)
    return status_set(STATUS_INTERNAL, "%lld bytes at %lld of a store of %lld are asked for", (long long)bytes, (long long)piece.offset,
                      (long long)store->room);
  while (bytes > 0) {
    choose_piece(store, bytes, &piece);
    enum status status = move(store, &piece);
    if (!status && piece.read_to)
      status = check_is_whole(store, &piece);
    if (status)
      return explain(store, &piece, status);
    piece.offset += piece.bytes;
    bytes -= piece.bytes;
    if (piece.read_to)
      piece.read_to += piece.bytes;
    else
      piece.write_from += piece.bytes;
  }
  return STATUS_OK;
}

enum status store_write(struct store *store, int64_t offset, int64_t bytes, const void *data)
{
  return transfer(store, bytes, (struct piece){.offset = offset, .write_from = data});
}

enum status store_read(struct store *store, int64_t offset, int64_t bytes, void *data)
{
  return transfer(store, bytes, (struct piece){.offset = offset, .read_to = data});
}
