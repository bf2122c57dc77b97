/* The store is an HDF5 file that parallel HDF5 lays out and closes at start. From then on each
 * rank's dataset is a range of bytes in it. That rank alone moves them, with pread(2) and
 * pwrite(2). So a step neither calls HDF5 nor waits for its lock, which a checkpoint holds for
 * long. The datasets are contiguous, allocated early and never filled. So HDF5 has nothing to write
 * later, and the file is a whole HDF5 file at any time.
 *
 * Whole blocks go without the page cache if the disk allows that. A step reads its bytes once, much
 * later, and they are more than memory has room for. So the cache would only cost a copy and take
 * the memory that pinned buffers need.
 *
 * The file loses its name once all ranks have opened it, before it takes any room. So it goes with
 * the last of them, however they end. */
#include "io/store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/hdf5/hdf5.h"
#include "io/text/file.h"

enum {
  ALIGN_BYTES = 1 << 20, /* a rank's room begins and ends at a multiple */
  REST_BYTES = 2 << 20   /* upper bound for HDF5's metadata and the gap after it */
};

struct store {
  char *dir;
  int64_t room;   /* as the caller requested */
  int64_t begin;  /* of this rank's dataset in the file */
  int fd, direct; /* the file, through the page cache and past it; direct -1: not possible */
};

/* A store that is being made by the ranks of a node. */
struct making {
  struct store *store;
  struct comm *comm;
  MPI_Comm node; /* MPI_COMM_NULL without MPI */
  int index, ranks;
  char path[PATH_MAX];
  int64_t bytes,
      *node_bytes; /* of this rank, and of all ranks of the node; multiples of ALIGN_BYTES */
  bool named;      /* this rank made the file, so it must delete the name */
  int lock;        /* the named file, locked while it has a name; else -1 */
  hid_t file;
  struct hdf5_dataset dataset;
};

/* Room on the disk. */

static int64_t node_total(const struct making *making)
{
  int64_t total = REST_BYTES;
  for (int r = 0; r < making->ranks; r++)
    total += making->node_bytes[r];
  return total;
}

static enum status check_room(const struct making *making)
{
  int64_t have;
  const enum status status = store_free_bytes(making->store->dir, &have);
  if (status || node_total(making) <= have)
    return status;
  return status_set(STATUS_MEMORY,
                    "the %d rank%s of this node need %s on the disk of %s, which has %s free: name "
                    "a folder on a larger disk (tiers.nvme=FOLDER), lower optim.state_share, or "
                    "keep the activations in host memory (tiers.activations=host)",
                    making->ranks, making->ranks == 1 ? "" : "s",
                    mem_amount(node_total(making)).text, making->store->dir, mem_amount(have).text);
}

/* Making the file. */

/* MPI-IO makes files under longer names next to this one. The name is new, so only the job that
 * made it has files whose names begin with it. */
static void remove_files_of_mpi(const char *folder, const char *name)
{
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && (entry = readdir(dir));)
    if (!strncmp(entry->d_name, name, strlen(name)))
      (void)unlinkat(dirfd(dir), entry->d_name, 0);
  if (dir)
    closedir(dir);
}

static const char ending[] = ".h5", unique[] = "XXXXXX";

/* Whether this is a file of this user whose creator is gone. The creator locks the file as long as
 * it has a name. */
static bool is_abandoned(int fd)
{
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
         flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/* A job that is killed before drop_name() leaves its file. The next store in this folder, on the
 * same host, removes it. Faults do not matter, because the file only takes room. */
static void remove_abandoned(const char *folder, const char *host)
{
  char *prefix = mem_printf("sluice-%s-", host);
  DIR *dir = prefix ? opendir(folder) : NULL;
  for (struct dirent *entry; dir && (entry = readdir(dir));) {
    const char *name = entry->d_name;
    const size_t before = strlen(prefix), length = strlen(name);
    if (strncmp(name, prefix, before) != 0 || length != before + strlen(unique) + strlen(ending) ||
        strcmp(name + length - strlen(ending), ending) != 0)
      continue;
    const int fd = openat(dirfd(dir), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
      continue;
    if (is_abandoned(fd))
      remove_files_of_mpi(folder, name);
    close(fd);
  }
  if (dir)
    closedir(dir);
  mem_free(prefix);
}

/* The lock tells other jobs that the name is in use. Returns false if another job removed the file
 * before it was locked: it then has no links. A file system without locks has no such job. */
static bool lock_name(int fd)
{
  struct stat info;
  (void)flock(fd, LOCK_EX);
  return fstat(fd, &info) != 0 || info.st_nlink > 0;
}

static enum status make_named(struct making *making, const char *host)
{
  do {
    if (making->lock >= 0)
      close(making->lock);
    const int bytes = snprintf(making->path, sizeof making->path, "%s/sluice-%s-%s%s",
                               making->store->dir, host, unique, ending);
    errno = ENAMETOOLONG;
    making->lock = bytes < (int)sizeof making->path
                       ? mkostemps(making->path, (int)strlen(ending), O_CLOEXEC)
                       : -1;
    if (making->lock < 0)
      return status_set(STATUS_IO, "cannot create a file in %s (tiers.nvme): %s",
                        making->store->dir, strerror(errno));
  } while (!lock_name(making->lock));
  making->named = true;
  return STATUS_OK;
}

/* By the node's first rank, which makes the folder and an empty file. So a fault is an error of
 * one rank and not a failed collective call. The name is new: the file of another run is never
 * met. */
static enum status make_empty(struct making *making)
{
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, HOST_NAME_MAX); /* may stay empty */
  enum status status = store_check_folder(making->store->dir);
  if (!status)
    remove_abandoned(making->store->dir, host);
  status = status ?: check_room(making)
                  ?: status_prefix(file_make_folders(making->store->dir), "tiers.nvme")
                  ?: make_named(making, host);
  /* space for opening and closing, if reserve() fails */
  return status ?: file_reserve_open(making->lock, making->path, REST_BYTES);
}

/* Collective, with the same result on all ranks. */
static enum status share_path(struct making *making)
{
  return making->node == MPI_COMM_NULL
             ? STATUS_OK
             : comm_agree(making->comm, COMM_MPI(MPI_Bcast(making->path, sizeof making->path,
                                                           MPI_CHAR, 0, making->node)));
}

/* No file stays after the job, however it ends. */
static enum status drop_name(struct making *making)
{
  if (!making->named)
    return STATUS_OK;
  making->named = false;
  const int error = unlink(making->path) == 0 ? 0 : errno;
  if (!error)
    remove_files_of_mpi(making->store->dir, strrchr(making->path, '/') + 1);
  close(making->lock); /* nothing was written */
  making->lock = -1;
  return error ? status_set(STATUS_IO, "cannot delete %s: %s", making->path, strerror(error))
               : STATUS_OK;
}

static enum status open_own(struct making *making)
{
  struct store *store = making->store;
  store->fd = open(making->path, O_RDWR | O_CLOEXEC);
  store->direct = open(making->path, O_RDWR | O_CLOEXEC | O_DIRECT);
  if (store->fd >= 0)
    return STATUS_OK;
  return status_set(STATUS_IO,
                    "%s, which another rank of this node made, cannot be opened here: %s",
                    making->path, strerror(errno));
}

static enum status find_node(struct making *making)
{
  const MPI_Comm *job = comm_mpi(making->comm);
  making->ranks = job ? comm_local_ranks(making->comm) : 1;
  making->index = job ? comm_local_rank(making->comm) : 0;
  making->node_bytes[making->index] = making->bytes;
  return job ? COMM_MPI(MPI_Comm_split_type(*job, MPI_COMM_TYPE_SHARED, comm_rank(making->comm),
                                            MPI_INFO_NULL, &making->node))
             : STATUS_OK;
}

static enum status gather_bytes(struct making *making)
{
  return making->node == MPI_COMM_NULL
             ? STATUS_OK
             : COMM_MPI(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, making->node_bytes, 1,
                                      MPI_INT64_T, making->node));
}

/* If the file is open or laid out on some ranks only, HDF5 cannot recover, because closing is
 * collective. All ranks are here, and one logs the error. */
static void __attribute__((noreturn)) give_up(struct making *making, enum status status)
{
  (void)drop_name(making); /* the first failure is the one to report */
  if (comm_rank(making->comm) != 0)
    (void)comm_barrier(making->comm);
  comm_abort(making->comm, status);
}

/* Collective, with the same result on all ranks. */
static enum status open_on_all(struct making *making)
{
  const enum status mine =
      hdf5_create_aligned(making->path, making->node == MPI_COMM_NULL ? NULL : &making->node,
                          ALIGN_BYTES, &making->file);
  int64_t opened = !mine;
  const enum status status = comm_agree(making->comm, status_prefix(mine, "%s", making->path));
  if (status && (comm_max_i64(making->comm, &opened, 1) || opened))
    give_up(making, status);
  return status;
}

/* A full disk must be found here and not by the flush of closing, which HDF5 does not survive. */
static enum status reserve(struct making *making)
{
  const enum status status =
      making->index == 0 ? file_reserve_open(making->store->fd, making->path, node_total(making))
                         : STATUS_OK;
  if (!status)
    return STATUS_OK;
  return check_room(making) /* another process has filled the disk since the first check */
             ?: status_prefix(status, "%s for the NVMe tier (tiers.nvme)",
                              mem_amount(node_total(making)).text);
}

/* A dataset for each rank that needs room. */
static enum status make_datasets(struct making *making)
{
  enum status status = STATUS_OK;
  for (int r = 0; r < making->ranks && !status; r++) {
    struct hdf5_dataset dataset = {.id = H5I_INVALID_HID};
    char name[32];
    if (making->node_bytes[r] == 0)
      continue;
    snprintf(name, sizeof name, "rank-%d", r);
    status = hdf5_create_dataset(making->file, name, DTYPE_U8, 1, &making->node_bytes[r], &dataset);
    if (!status && r == making->index)
      making->dataset = dataset;
    else
      status = hdf5_close(dataset.id, status);
  }
  return status_prefix(status, "%s", making->path);
}

/* Collective, with the same result on all ranks. */
static enum status lay_out(struct making *making)
{
  const enum status status = comm_agree(making->comm, make_datasets(making));
  if (status)
    give_up(making, status);
  return comm_agree(making->comm, making->bytes > 0
                                      ? hdf5_locate(&making->dataset, &making->store->begin)
                                      : STATUS_OK);
}

/* Closing sets the file's size: writing never extends it. HDF5 does not survive a failure of
 * closing. Collective. */
static enum status close_file(struct making *making, enum status so_far)
{
  const bool alone = making->node == MPI_COMM_NULL;
  enum status status = hdf5_close(making->dataset.id, STATUS_OK);
  status = alone ? hdf5_finish(making->file, status) : hdf5_close(making->file, status);
  status = comm_agree(making->comm, status_prefix(status, "%s", making->path));
  if (status && !so_far)
    give_up(making, status);
  return so_far;
}

static enum status check_size(const struct making *making)
{
  struct stat info;
  const struct store *store = making->store;
  if (fstat(store->fd, &info) != 0)
    return status_set(STATUS_IO, "%s: %s", making->path, strerror(errno));
  if (info.st_size < store->begin + making->bytes)
    return status_set(
        STATUS_IO, "%s has %lld bytes after HDF5 laid it out, but this rank's part ends at %lld",
        making->path, (long long)info.st_size, (long long)(store->begin + making->bytes));
  return STATUS_OK;
}

/* The file system may refuse the flag, or the first transfer. */
static void try_direct(struct making *making)
{
  struct store *store = making->store;
  char block[STORE_BLOCK] __attribute__((aligned(STORE_BLOCK)));
  const bool taken = making->bytes > 0 && store->begin % STORE_BLOCK == 0 && store->direct >= 0 &&
                     pread(store->direct, block, STORE_BLOCK, (off_t)store->begin) == STORE_BLOCK;
  if (!taken && store->direct >= 0) {
    close(store->direct);
    store->direct = -1;
  }
}

bool store_is_direct(const struct store *store)
{
  return store->direct >= 0;
}

/* Making it, and destroying it. */

static enum status make_file(struct making *making)
{
  enum status status =
      comm_agree(making->comm, making->index == 0 ? make_empty(making) : STATUS_OK);
  status = status ?: share_path(making)
           ?: comm_agree(making->comm, open_own(making))
           ?: open_on_all(making);
  if (status) {
    (void)comm_agree(making->comm, drop_name(making)); /* no rank returns before the file is gone */
    return status;
  }
  status = comm_agree(making->comm, drop_name(making))
           ?: comm_agree(making->comm, reserve(making))
           ?: lay_out(making);
  return close_file(making, status);
}

static enum status make(struct making *making)
{
  return comm_agree(making->comm, find_node(making))
         ?: comm_agree(making->comm, gather_bytes(making))
         ?: make_file(making)
         ?: comm_agree(making->comm, check_size(making));
}

static enum status start_making(const char *dir, int64_t bytes, struct making *making)
{
  if (bytes < 0)
    return status_set(STATUS_INTERNAL, "a store cannot have %lld bytes", (long long)bytes);
  const enum status status = mem_new(MEM_META, 1, &making->store);
  if (status)
    return status;
  *making->store = (struct store){.room = bytes, .fd = -1, .direct = -1, .dir = mem_strdup(dir)};
  making->bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
  if (!making->store->dir)
    return STATUS_MEMORY;
  return mem_new(MEM_META, comm_ranks(making->comm), &making->node_bytes);
}

enum status store_create(struct comm *comm, const char *dir, int64_t bytes, struct store **out)
{
  struct making making = {.comm = comm,
                          .node = MPI_COMM_NULL,
                          .lock = -1,
                          .file = H5I_INVALID_HID,
                          .dataset = {.id = H5I_INVALID_HID}};
  const enum status status = comm_agree(comm, start_making(dir, bytes, &making)) ?: make(&making);
  if (making.node != MPI_COMM_NULL)
    COMM_MPI_WARN(MPI_Comm_free(&making.node));
  mem_free(making.node_bytes);
  if (status) {
    store_destroy(making.store);
    return status;
  }
  try_direct(&making);
  *out = making.store;
  return STATUS_OK;
}

void store_destroy(struct store *store)
{
  if (!store)
    return;
  if (store->fd >= 0)
    close(store->fd); /* the data are not needed any more */
  if (store->direct >= 0)
    close(store->direct);
  mem_free(store->dir);
  mem_free(store);
}

/* Transfers. */

/* The bytes that one system call moves. */
struct piece {
  int64_t offset, bytes;
  bool reads, direct;
  char *data;
};

/* The next piece of `left` bytes: up to the first whole block, then whole blocks, then the rest.
 * All of it goes through the page cache if memory and file are not aligned alike. */
static void choose_piece(const struct store *store, int64_t left, struct piece *piece)
{
  const int64_t into = piece->offset % STORE_BLOCK;
  const bool alike = store->direct >= 0 && (int64_t)((uintptr_t)piece->data % STORE_BLOCK) == into;
  piece->direct = alike && into == 0 && left >= STORE_BLOCK;
  piece->bytes = left;
  if (piece->direct)
    piece->bytes = left / STORE_BLOCK * STORE_BLOCK;
  else if (alike && into > 0 && left > STORE_BLOCK - into)
    piece->bytes = STORE_BLOCK - into;
}

/* Linux moves less than 2 GiB in one call, and less than that at a limit or at the file's end. */
static ssize_t move_by(int fd, const struct store *store, const struct piece *piece)
{
  const off_t at = (off_t)(store->begin + piece->offset);
  ssize_t moved;
  do
    moved = piece->reads ? pread(fd, piece->data, (size_t)piece->bytes, at)
                         : pwrite(fd, piece->data, (size_t)piece->bytes, at);
  while (moved < 0 && errno == EINTR);
  return moved;
}

/* If a file size limit lies inside a block, direct I/O returns EINVAL. The page cache moves the
 * bytes before the limit, and then reports the limit. */
static ssize_t move(const struct store *store, const struct piece *piece)
{
  const ssize_t moved = move_by(piece->direct ? store->direct : store->fd, store, piece);
  return moved < 0 && errno == EINVAL && piece->direct ? move_by(store->fd, store, piece) : moved;
}

/* A call that failed returned -1 and left `error`. A call that moved nothing met the file's end,
 * or a full disk. */
static enum status explain(const struct store *store, const struct piece *piece, ssize_t moved,
                           int error)
{
  char room[64] = "";
  int64_t have;
  if (!store_free_bytes(store->dir, &have))
    snprintf(room, sizeof room, ", whose disk has %s free", mem_amount(have).text);
  return status_set(STATUS_IO, "cannot %s %lld bytes at %lld of the store in %s%s: %s",
                    piece->reads ? "read" : "write", (long long)piece->bytes,
                    (long long)piece->offset, store->dir, room,
                    moved < 0 ? strerror(error)
                    : piece->reads
                        ? "the file is shorter than it was made: another program has truncated it"
                        : "the disk is full");
}

static enum status transfer(const struct store *store, int64_t bytes, struct piece piece)
{
  if (piece.offset < 0 || bytes < 0 || piece.offset > store->room ||
      bytes > store->room - piece.offset)
    return status_set(STATUS_INTERNAL, "%lld bytes at %lld are outside a store of %lld bytes",
                      (long long)bytes, (long long)piece.offset, (long long)store->room);
  while (bytes > 0) {
    choose_piece(store, bytes, &piece);
    const ssize_t moved = move(store, &piece);
    if (moved <= 0)
      return explain(store, &piece, moved, errno);
    piece.offset += moved;
    bytes -= moved;
    piece.data += moved;
  }
  return STATUS_OK;
}

enum status store_write(struct store *store, int64_t offset, int64_t bytes, const void *data)
{
  return transfer(store, bytes, (struct piece){.offset = offset, .data = (char *)data});
}

enum status store_read(struct store *store, int64_t offset, int64_t bytes, void *data)
{
  return transfer(store, bytes, (struct piece){.offset = offset, .reads = true, .data = data});
}
