/* The job, its groups and its control plane. The data plane is in a table of operations, the
 * transport. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/ops.h"
#include "comm/shm.h"
#include "config.h"
#include "device/device.h"
#include "device/lane.h"

static bool is_fake(const struct comm *comm)
{
  return comm->world == MPI_COMM_NULL;
}

void comm_destroy(struct comm *comm)
{
  if (comm && !is_fake(comm)) {
#ifdef HAVE_NCCL
    comm_nccl_end(comm);
#endif
    COMM_MPI_WARN(MPI_Comm_free(&comm->world));
    if (!comm->is_sibling)
      COMM_MPI_WARN(MPI_Finalize());
  }
  mem_free(comm);
}

enum status comm_create_sibling(struct comm *comm, struct comm **out)
{
  struct comm *sibling;
  enum status status = comm_agree(comm, mem_new(MEM_META, 1, &sibling));
  if (status)
    return status;
  *sibling = *comm;
  sibling->is_sibling = true;
  sibling->nccl = NULL;
  if (!is_fake(comm))
    status = comm_agree(comm, COMM_MPI(MPI_Comm_dup(comm->world, &sibling->world)));
  if (status)
    mem_free(sibling); /* freeing is collective, so it is impossible if some ranks lack the
                          communicator */
  else
    *out = sibling;
  return status;
}

int comm_rank(const struct comm *comm)
{
  return comm->rank;
}

int comm_ranks(const struct comm *comm)
{
  return comm->ranks;
}

int comm_local_rank(const struct comm *comm)
{
  return comm->local_rank;
}

int comm_local_ranks(const struct comm *comm)
{
  return comm->local_ranks;
}

const char *comm_description(const struct comm *comm)
{
  return comm->description;
}

void *comm_mpi(struct comm *comm)
{
  return is_fake(comm) ? NULL : &comm->world;
}

void comm_begin_call(struct comm *comm)
{
  atomic_fetch_add(&comm->begun, 1);
}

enum status comm_end_call(struct comm *comm, enum status status)
{
  atomic_fetch_add(&comm->ended, 1);
  return status;
}

static enum status fold(struct comm *comm, void *values, int64_t n, MPI_Datatype type, MPI_Op op)
{
  comm_begin_call(comm);
  return comm_end_call(comm, comm_mpi_fold(comm->world, values, n, type, op));
}

/* The failure of rank `from` on all ranks. */
static enum status take_failure(struct comm *comm, enum status mine, int from)
{
  struct status_record failure = {0};
  status_keep(&failure, mine);
  const enum status status = comm_broadcast(comm, &failure, sizeof failure, from);
  return status ? status : status_set(failure.code, "rank %d: %s", from, failure.text);
}

/* If all ranks hold the same error text, they agreed on it before, or all see one cause. Then it
 * names the rank already, or needs no rank. The last two values show this: the lowest hash of a
 * text, and the complement of the highest. */
enum status comm_agree(struct comm *comm, enum status mine)
{
  if (comm->ranks == 1)
    return mine;
  const uint64_t hash = hash_bytes(hash_text(status_text()), &mine, sizeof mine);
  const int64_t name = mine ? (int64_t)(hash >> 1) : -1;
  int64_t lowest[] = {mine ? comm->rank : comm->ranks, name, ~name};
  const enum status status = fold(comm, lowest, 3, MPI_INT64_T, MPI_MIN);
  if (status || lowest[0] == comm->ranks)
    return status;
  return lowest[1] == ~lowest[2] ? mine : take_failure(comm, mine, (int)lowest[0]);
}

/* mpirun of Open MPI 5 drops all output that it has not read from the ranks' pipes when a rank ends
 * the job. On a busy machine it reads late. */
static void wait_for_reader(int fd)
{
  struct stat file;
  const double end_s = clock_s() + 10;
  if (fstat(fd, &file) != 0 || !S_ISFIFO(file.st_mode))
    return;
  for (int unread; ioctl(fd, FIONREAD, &unread) == 0 && unread > 0 && clock_s() < end_s;)
    clock_sleep_until(clock_s() + 0.001);
}

static void hand_over_output(void)
{
  fflush(NULL);
  wait_for_reader(STDOUT_FILENO);
  wait_for_reader(STDERR_FILENO);
}

/* Aborts MPI's own world, because MPICH aborts another communicator by messages, which its ranks
 * receive only inside MPI calls. */
static void end_job(struct comm *comm, int exit_code) __attribute__((noreturn));
static void end_job(struct comm *comm, int exit_code)
{
  if (is_fake(comm))
    exit(exit_code);
  (void)MPI_Abort(MPI_COMM_WORLD, exit_code);
  _Exit(exit_code); /* at least this rank ends */
}

void comm_abort(struct comm *comm, enum status status)
{
  log_say_kept();
  fprintf(stderr, "sluice: rank %d: %s\n", comm->rank, status_text());
  hand_over_output();
  end_job(comm, status_exit_code(status));
}

void comm_must(struct comm *comm, enum status status)
{
  if (status)
    comm_abort(comm, status);
}

void comm_quit(struct comm *comm, int exit_code)
{
  hand_over_output();
  (void)comm_barrier(comm); /* no rank ends the job while the output of another one is unread */
  end_job(comm, exit_code);
}

void comm_calls(const struct comm *comm, int64_t *begun, bool *waits)
{
  const int64_t ended = atomic_load(
      &comm->ended); /* first, so that a call that begins in between counts as running */
  *begun = atomic_load(&comm->begun);
  *waits = *begun != ended;
}

enum status comm_barrier(struct comm *comm)
{
  comm_begin_call(comm);
  return comm_end_call(comm, comm_mpi_barrier(comm->world));
}

enum status comm_broadcast(struct comm *comm, void *data, int64_t bytes, int root)
{
  comm_begin_call(comm);
  return comm_end_call(comm, comm_mpi_broadcast(comm->world, data, bytes, root));
}

enum status comm_broadcast_text(struct comm *comm, char **text, int root)
{
  int64_t bytes = comm->rank == root ? (int64_t)strlen(*text) + 1 : 0;
  enum status status = comm_broadcast(comm, &bytes, sizeof bytes, root);
  if (status)
    return status;
  void *copy = NULL;
  status =
      comm_agree(comm, comm->rank == root ? STATUS_OK : mem_alloc(MEM_META, (size_t)bytes, &copy));
  if (!status)
    status = comm_broadcast(comm, comm->rank == root ? *text : copy, bytes, root);
  if (status)
    mem_free(copy);
  else if (comm->rank != root)
    *text = copy;
  return status;
}

enum status comm_sum_i64(struct comm *comm, int64_t *values, int n)
{
  return fold(comm, values, n, MPI_INT64_T, MPI_SUM);
}

enum status comm_max_i64(struct comm *comm, int64_t *values, int n)
{
  return fold(comm, values, n, MPI_INT64_T, MPI_MAX);
}

enum status comm_max_f64(struct comm *comm, double *values, int n)
{
  return fold(comm, values, n, MPI_DOUBLE, MPI_MAX);
}

/* The oldest warning of the lowest rank that has one. *said: there was one. */
static enum status say_warning(struct comm *comm, bool *said)
{
  uint64_t name = log_kept();
  int64_t lowest = name ? comm->rank : comm->ranks;
  enum status status = fold(comm, &lowest, 1, MPI_INT64_T, MPI_MIN);
  *said = !status && lowest < comm->ranks;
  if (!*said)
    return status;
  status = comm_broadcast(comm, &name, sizeof name, (int)lowest);
  int64_t having = log_keeps(name);
  status = status ?: comm_sum_i64(comm, &having, 1);
  if (!status)
    log_settle(name, comm->rank == lowest, having - 1);
  return status;
}

enum status comm_say_warnings(struct comm *comm)
{
  enum status status = STATUS_OK;
  for (bool said = true; !status && said;)
    status = say_warning(comm, &said);
  return status;
}

/* Compares with rank 0 piece by piece, so that no rank needs memory that another one may not
 * get. */
static enum status compare_with_root(struct comm *comm, const char *data, int64_t bytes,
                                     bool *differs)
{
  char piece[4096];
  int64_t root_bytes = bytes;
  enum status status = comm_broadcast(comm, &root_bytes, sizeof root_bytes, 0);
  *differs = root_bytes != bytes;
  for (int64_t done = 0; !status && done < root_bytes; done += (int64_t)sizeof piece) {
    const int64_t now = comm_smaller(root_bytes - done, (int64_t)sizeof piece);
    if (comm->rank == 0)
      memcpy(piece, data + done, (size_t)now);
    status = comm_broadcast(comm, piece, now, 0);
    *differs = *differs || memcmp(piece, data + done, (size_t)now) != 0;
  }
  return status;
}

enum status comm_check_same(struct comm *comm, const char *what, const void *data, int64_t bytes)
{
  bool differs;
  enum status status = compare_with_root(comm, data, bytes, &differs);
  int64_t lowest = differs ? comm->rank : comm->ranks;
  status = status ?: fold(comm, &lowest, 1, MPI_INT64_T, MPI_MIN);
  if (status || lowest == comm->ranks)
    return status;
  return status_set(STATUS_INPUT,
                    "%s of rank %" PRId64
                    " differs from that of rank 0: all ranks must run one program on one input",
                    what, lowest);
}

static const struct transport {
  const char *name;
  const struct comm_transport_ops *ops; /* NULL: not in this build */
} transports[] = {
    {"mpi", &comm_mpi_transport},
    {"mpi_device", &comm_mpi_device_transport},
#ifdef HAVE_NCCL
    {"nccl", &comm_nccl_transport},
#else
    {"nccl", NULL},
#endif
};
enum { TRANSPORTS = sizeof transports / sizeof transports[0] };

static enum status set_transport(struct comm *comm, const char *name)
{
  char known[64] = "";
  const char *cure = "";
  for (int i = 0; i < TRANSPORTS; i++) {
    const struct comm_transport_ops *ops = is_fake(comm) ? &comm_fake_transport : transports[i].ops;
    const bool asked = strcmp(transports[i].name, name) == 0;
    if (ops && asked) {
      comm->transport = ops;
      return STATUS_OK;
    }
    if (ops)
      append_text(known, sizeof known, "%s%s", *known ? ", " : "", transports[i].name);
    else if (asked)
      cure = ": configure it with --with-nccl, or set comm.backend=mpi";
  }
  return status_set(STATUS_UNSUPPORTED, "this build has no transport '%s'; it has: %s%s", name,
                    known, cure);
}

enum status comm_set_transport(struct comm *comm, const char *name)
{
  return comm_agree(comm, set_transport(comm, name));
}

const char *comm_transport(const struct comm *comm)
{
  for (int i = 0; i < TRANSPORTS; i++)
    if (transports[i].ops == comm->transport)
      return transports[i].name;
  return transports[0].name;
}

const char *comm_transport_text(const struct comm *comm)
{
  if (comm->transport == &comm_mpi_device_transport && comm->device)
    return comm_mpi_device_way(comm->device);
  return comm_transport(comm);
}

void comm_set_device(struct comm *comm, struct device *device)
{
  comm->device = device;
}

enum status comm_transport_open_nothing(struct comm_group *group)
{
  (void)group;
  return STATUS_OK;
}

void comm_transport_close_nothing(struct comm_group *group)
{
  (void)group;
}

enum status comm_transport_check_nothing(struct comm_group *group)
{
  (void)group;
  return STATUS_OK;
}

enum status comm_transport_register_nothing(struct comm_group *group, void *ptr, int64_t bytes)
{
  (void)group, (void)ptr, (void)bytes;
  return STATUS_OK;
}

enum status comm_check_group_size(const struct comm *comm, int size)
{
  if (size >= 1 && comm->ranks % size == 0)
    return STATUS_OK;
  return status_usage(
      "%d ranks cannot be split into groups of %d: the size of a group must divide their number",
      comm->ranks, size);
}

struct comm_members comm_evenly(const struct comm *comm, int size, int apart)
{
  if (size < 1 || apart < 1 || comm->ranks / size < apart || comm->ranks % (size * apart) != 0)
    return (struct comm_members){.size = size, .index = -1};
  const int first = comm->rank / (size * apart) * size * apart + comm->rank % apart;
  return (struct comm_members){.size = size,
                               .index = (comm->rank - first) / apart,
                               .first = first,
                               .last = first + (size - 1) * apart};
}

static bool is_block(struct comm_members members)
{
  return members.last - members.first == members.size - 1;
}

/* If blocks do not fill the node, one of them spans nodes, and no block has boxes in shared
 * memory. */
int64_t comm_group_shared_bytes(int local_ranks, struct comm_members members)
{
  if (members.size == 1 || !is_block(members) || local_ranks % members.size != 0)
    return 0;
  return local_ranks / members.size * shm_bytes(members.size);
}

static void free_group(struct comm_group *group)
{
  if (group->members != MPI_COMM_NULL)
    COMM_MPI_WARN(MPI_Comm_free(&group->members));
  mem_free(group);
}

static enum status check_members(const struct comm *comm, struct comm_members members)
{
  const enum status status = comm_check_group_size(comm, members.size);
  if (status || (members.index >= 0 && members.index < members.size))
    return status;
  return status_usage("%d ranks cannot be split into such groups of %d", comm->ranks, members.size);
}

/* Members have one first rank as their color. All ranks take one way, so one group of other than
 * consecutive ranks makes all of them such. */
static enum status split(struct comm_group *group)
{
  int size = 0, index = -1;
  int64_t scattered = !group->block;
  enum status status =
      COMM_MPI(MPI_Comm_split(group->comm->world, group->first, group->index, &group->members))
          ?: COMM_MPI(MPI_Comm_size(group->members, &size))
          ?: COMM_MPI(MPI_Comm_rank(group->members, &index));
  if (!status && (size != group->size || index != group->index))
    status = status_set(STATUS_INTERNAL,
                        "%d ranks are in the group of rank %d, this one as member %d, but it takes "
                        "itself for member %d of %d",
                        size, group->first, index, group->index, group->size);
  status = comm_agree(group->comm, status) ?: comm_max_i64(group->comm, &scattered, 1);
  group->block = scattered == 0;
  return status;
}

static enum status create_group(struct comm *comm, const struct comm_transport_ops *transport,
                                struct comm_members members, bool parts, struct comm_group **out)
{
  enum status status = comm_agree(comm, check_members(comm, members));
  if (status)
    return status;
  struct comm_group *group;
  status = comm_agree(comm, mem_new(MEM_META, 1, &group));
  if (status)
    return status;
  *group = (struct comm_group){.comm = comm,
                               .members = MPI_COMM_NULL,
                               .transport = transport,
                               .index = members.index,
                               .size = members.size,
                               .first = members.first,
                               .block = is_block(members),
                               .parts = parts};
  if (!is_fake(comm))
    status = split(group);
  if (status) {
    mem_free(group); /* and not the communicator, as for a sibling */
    return status;
  }
  if (group->size > 1)
    status = group->transport->open(group);
  if (status)
    free_group(group);
  else
    *out = group;
  return status;
}

enum status comm_group_create(struct comm *comm, struct comm_members members, bool parts,
                              struct comm_group **out)
{
  return create_group(comm, comm->transport, members, parts, out);
}

enum status comm_group_create_on_host(struct comm *comm, struct comm_members members, bool parts,
                                      struct comm_group **out)
{
  return create_group(comm, is_fake(comm) ? &comm_fake_transport : &comm_mpi_transport, members,
                      parts, out);
}

enum status comm_group_gather_by_nodes(struct comm_group *group, struct comm_members node,
                                       struct comm_members across)
{
  return create_group(group->comm, group->transport, node, true, &group->node)
             ?: create_group(group->comm, group->transport, across, true, &group->across);
}

struct comm_group *comm_group_across(const struct comm_group *group)
{
  return group->across;
}

struct comm_group *comm_group_node(const struct comm_group *group)
{
  return group->node;
}

void comm_group_destroy(struct comm_group *group)
{
  if (!group)
    return;
  comm_group_destroy(group->across);
  comm_group_destroy(group->node);
  if (group->size > 1)
    group->transport->close(group);
  free_group(group);
}

int comm_group_index(const struct comm_group *group)
{
  return group->index;
}

int comm_group_size(const struct comm_group *group)
{
  return group->size;
}

bool comm_group_is_enqueued(const struct comm_group *group)
{
  return group->size > 1 && group->transport->enqueues;
}

static enum status gather(struct comm_group *group, struct lane *lane, struct comm_places places,
                          void *full)
{
  return group->size == 1 ? STATUS_OK : group->transport->all_gather(group, lane, &places, full);
}

/* Messages of varying length are shortened where they cross between nodes. */
static enum status gather_parts(struct comm_group *group, struct lane *lane, int64_t bytes,
                                int64_t stride, bool varying, char *full)
{
  const struct comm_messages messages = {bytes, true, full + group->index * stride,
                                         0,     full, stride};
  return varying && group->size > 1
             ? group->transport->exchange(group, lane, &messages)
             : gather(group, lane, (struct comm_places){bytes, stride, 1, 0}, full);
}

enum status comm_all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                            int64_t bytes, bool varying, void *full)
{
  char *mine = (char *)full + group->index * bytes;
  const enum status status =
      shard == mine ? STATUS_OK : lane->device->ops->copy(lane, mine, shard, (size_t)bytes);
  if (status || !group->across)
    return status ?: gather_parts(group, lane, bytes, bytes, varying, full);
  const int64_t block = group->node->size * bytes;
  return gather_parts(group->across, lane, bytes, block, varying,
                      (char *)full + group->node->index * bytes)
             ?: gather(group->node, lane,
                       (struct comm_places){bytes, bytes, group->across->size, block}, full);
}

/* A group of one has no message to shorten. */
enum status comm_exchange(struct comm_group *group, struct lane *lane, const void *sent,
                          int64_t bytes, bool varying, void *received)
{
  const struct comm_messages messages = {bytes, varying, sent, bytes, received, bytes};
  if (group->size > 1)
    return group->transport->exchange(group, lane, &messages);
  return lane->device->ops->copy(lane, received, sent, (size_t)bytes);
}

struct comm_varying comm_sent_varying(const struct comm *comm)
{
  return (struct comm_varying){atomic_load(&comm->exchanged), atomic_load(&comm->gathered)};
}

int64_t comm_varying_length(const void *message)
{
  int64_t length;
  memcpy(&length, message, sizeof length);
  return length;
}

enum status comm_check_varying(struct comm_group *group, const void *messages, int64_t stride,
                               int64_t bytes, bool sent)
{
  int64_t others = 0;
  for (int i = 0; i < group->size; i++) {
    const int64_t length = comm_varying_length((const char *)messages + i * stride);
    if (length < (int64_t)sizeof length || length > bytes)
      return status_set(STATUS_INPUT,
                        "the message %s member %d of a group is damaged: it says that it has %lld "
                        "bytes, of at most %lld",
                        sent ? "for" : "from", i, (long long)length, (long long)bytes);
    others += i == group->index ? 0 : length;
  }
  if (sent)
    atomic_fetch_add(stride ? &group->comm->exchanged : &group->comm->gathered, others);
  return STATUS_OK;
}

enum status comm_group_sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums,
                                 int n)
{
  return group->size == 1 ? STATUS_OK : group->transport->sum_exact(group, lane, sums, n);
}

enum status comm_group_max_u32(struct comm_group *group, struct lane *lane, uint32_t *values,
                               int64_t n)
{
  return group->size == 1 ? STATUS_OK : group->transport->max_u32(group, lane, values, n);
}

/* MPI's messages do not order accesses to other memory. So this fence completes stores before the
 * first message, and keeps loads after the last. */
enum status comm_group_barrier(struct comm_group *group)
{
  if (group->size == 1)
    return STATUS_OK;
  __sync_synchronize();
  enum status status = comm_mpi_barrier(group->members);
  __sync_synchronize();
  return status;
}

enum status comm_group_check(struct comm_group *group)
{
  const enum status status = group->size == 1 ? STATUS_OK : group->transport->check(group);
  return status || !group->across
             ? status
             : comm_group_check(group->node) ?: comm_group_check(group->across);
}

enum status comm_group_register(struct comm_group *group, void *ptr, int64_t bytes)
{
  const enum status status =
      group->size == 1 ? STATUS_OK : group->transport->register_memory(group, ptr, bytes);
  return status || !group->across ? status
                                  : comm_group_register(group->node, ptr, bytes)
                                        ?: comm_group_register(group->across, ptr, bytes);
}

enum status comm_group_broadcast(struct comm_group *group, void *data, int64_t bytes)
{
  comm_begin_call(group->comm);
  return comm_agree(group->comm,
                    comm_end_call(group->comm, comm_mpi_broadcast(group->members, data, bytes, 0)));
}

enum status comm_group_is_on_one_node(struct comm_group *group, bool *out)
{
  struct comm *comm = group->comm;
  int first = comm->node;
  enum status status = comm_group_broadcast(group, &first, sizeof first);
  int64_t apart = first != comm->node;
  status = status ?: comm_max_i64(comm, &apart, 1);
  if (!status)
    *out = apart == 0;
  return status;
}
