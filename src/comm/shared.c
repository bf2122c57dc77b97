/* Memory that the ranks of a node share, with each rank's pages near its cores. */
#include <inttypes.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/team.h"
#include "comm/ops.h"

struct comm_shared {
  MPI_Comm members; /* of the block; MPI_COMM_NULL for a block of one and for a fake job */
  MPI_Win window;   /* MPI_WIN_NULL: not of all members */
  void *own;        /* of those blocks */
  void *memory;
  enum mem_tag tag;
  int64_t
      counted; /* bytes passed to mem_note(): by the first member only, because there is one copy */
};

static int64_t page_bytes(void)
{
  return sysconf(_SC_PAGESIZE);
}

static int64_t round_up(int64_t bytes, int64_t to)
{
  return (bytes + to - 1) / to * to;
}

static void *next_page(void *ptr)
{
  return (void *)(uintptr_t)round_up((int64_t)(uintptr_t)ptr, page_bytes());
}

static enum status refuse_span(int size)
{
  return status_set(STATUS_UNSUPPORTED,
                    "%d ranks share one copy of the parameters in host memory, so all must run on "
                    "one node: set shard.group=node with "
                    "shard.strategy=hybrid_shard, or transfer.params=shard",
                    size);
}

/* --- memory of one process ----------------------------------------------- */

/* Nodes of simulated peers follow from their numbers. A block of one is always inside a node.
 */
static enum status check_fake_blocks(const struct comm *comm, int size)
{
  for (int first = 0; first < comm->ranks; first += size)
    if (first / comm->local_ranks != (first + size - 1) / comm->local_ranks)
      return refuse_span(size);
  return STATUS_OK;
}

static enum status take_own(struct comm_shared *shared, int64_t bytes)
{
  enum status status = mem_alloc(shared->tag, (size_t)(bytes + page_bytes()), &shared->own);
  if (!status)
    shared->memory = next_page(shared->own);
  return status;
}

/* --- memory of a block of processes -------------------------------------- */

static enum status check_one_node(const struct comm *comm, MPI_Comm members, int size)
{
  int node = comm->node;
  const enum status status = COMM_MPI(MPI_Bcast(&node, 1, MPI_INT, 0, members));
  return status || node == comm->node ? status : refuse_span(size);
}

const char *comm_shared_folder(void)
{
  const char *set = getenv("OMPI_MCA_osc_sm_backing_directory");
  return set ? set : "/dev/shm";
}

/* MPI makes a file for it, and checks the free space on the first member only. If that member gave
 * up, the others would wait for it. */
static enum status check_room(const struct comm *comm, enum mem_tag tag, int size, int64_t bytes)
{
  const char *folder = comm_shared_folder();
  struct statvfs system;
  if (statvfs(folder, &system) != 0)
    return STATUS_OK; /* then MPI keeps it elsewhere */
  const int64_t blocks = (comm->local_ranks + size - 1) / size;
  const double need = (double)blocks * (double)bytes,
               have = (double)system.f_bavail * (double)system.f_frsize;
  if (need <= have)
    return STATUS_OK;
  return status_set(
      STATUS_MEMORY,
      "shared memory of the ranks of a node needs %s of %s, which has room for %s: make it larger "
      "(mount -o remount,size=..., a container's --shm-size)%s",
      mem_amount(need).text, folder, mem_amount(have).text,
      tag == MEM_ARENA_PERSISTENT
          ? ", or use less of it: transfer.params=shard, transfer.grads=gpu_reduce"
          : "");
}

/* The first member requests all of it. The page that it begins in may belong to MPI. */
static enum status open_window(struct comm *comm, struct comm_shared *shared, int place,
                               int64_t bytes)
{
  const MPI_Aint asked = place == 0 ? (MPI_Aint)(bytes + page_bytes()) : 0;
  void *mine;
  enum status status = COMM_MPI(
      MPI_Win_allocate_shared(asked, 1, MPI_INFO_NULL, shared->members, &mine, &shared->window));
  status = comm_agree(comm, status);
  if (status)
    shared->window = MPI_WIN_NULL; /* as for the members */
  return status;
}

/* The epoch in which members load and store lasts as long as the window. */
static enum status enter_window(struct comm_shared *shared)
{
  MPI_Aint all;
  int unit;
  void *first;
  enum status status = COMM_MPI(MPI_Win_set_errhandler(shared->window, MPI_ERRORS_RETURN));
  status = status ?: COMM_MPI(MPI_Win_shared_query(shared->window, 0, &all, &unit, &first));
  status = status ?: COMM_MPI(MPI_Win_lock_all(MPI_MODE_NOCHECK, shared->window));
  if (!status)
    shared->memory = next_page(first);
  return status;
}

static void close_window(struct comm_shared *shared)
{
  COMM_MPI_WARN(MPI_Win_unlock_all(shared->window));
  COMM_MPI_WARN(MPI_Win_free(&shared->window));
}

/* The memory policy of the thread that touches a page first decides its node (topo_bind()). So each
 * member touches its part. */
static void clear_part(const struct comm_shared *shared, int place, int size, int64_t bytes)
{
  int64_t begin, end;
  team_slice(bytes, page_bytes(), place, size, &begin, &end);
  memset((char *)shared->memory + begin, 0, (size_t)(end - begin));
}

static enum status take_shared(struct comm *comm, struct comm_shared *shared, int size,
                               int64_t bytes)
{
  const int place = comm->rank % size;
  MPI_Comm members;
  enum status status =
      comm_agree(comm, COMM_MPI(MPI_Comm_split(comm->world, comm->rank / size, place, &members)));
  if (status)
    return status; /* freeing is collective, so it is impossible if some members lack the window */
  shared->members = members;
  status = check_one_node(comm, shared->members, size);
  status = status ?: check_room(comm, shared->tag, size, bytes);
  status = comm_agree(comm, status) ?: open_window(comm, shared, place, bytes);
  if (status)
    return status;
  status = enter_window(shared);
  if (!status)
    clear_part(shared, place, size, bytes);
  status = comm_agree(comm, status); /* and all parts are cleared */
  shared->counted = !status && place == 0 ? bytes : 0;
  mem_note(shared->tag, shared->counted);
  return status;
}

/* ------------------------------------------------------------------------- */

static enum status take(struct comm *comm, struct comm_shared *shared, int size, int64_t bytes)
{
  if (size > 1 && comm->world != MPI_COMM_NULL)
    return take_shared(comm, shared, size, bytes);
  enum status status = check_fake_blocks(comm, size);
  return comm_agree(comm, status ? status : take_own(shared, bytes));
}

enum status comm_shared_create_as(struct comm *comm, enum mem_tag tag, int size, int64_t bytes,
                                  struct comm_shared **out)
{
  struct comm_shared *shared;
  enum status status = comm_check_group_size(comm, size);
  if (!status && (bytes < 0 || bytes > INT64_MAX / 2))
    status = status_usage("%" PRId64 " bytes cannot be shared", bytes);
  status = status ?: comm_agree(comm, mem_new(MEM_META, 1, &shared));
  if (status)
    return status;
  *shared = (struct comm_shared){.members = MPI_COMM_NULL, .window = MPI_WIN_NULL, .tag = tag};
  status = take(comm, shared, size, round_up(bytes, page_bytes()));
  if (status)
    comm_shared_destroy(shared);
  else
    *out = shared;
  return status;
}

enum status comm_shared_create(struct comm *comm, int size, int64_t bytes, struct comm_shared **out)
{
  return comm_shared_create_as(comm, MEM_ARENA_PERSISTENT, size, bytes, out);
}

void *comm_shared_memory(const struct comm_shared *shared)
{
  return shared->memory;
}

void comm_shared_destroy(struct comm_shared *shared)
{
  if (!shared)
    return;
  if (shared->window != MPI_WIN_NULL)
    close_window(shared);
  if (shared->members != MPI_COMM_NULL)
    COMM_MPI_WARN(MPI_Comm_free(&shared->members));
  mem_note(shared->tag, -shared->counted);
  mem_free(shared->own);
  mem_free(shared);
}
