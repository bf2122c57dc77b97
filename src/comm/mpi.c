/* Groups over MPI. A message above the limit of an int is sent in pieces. */
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/launch.h"
#include "comm/messages.h"
#include "comm/mpi_version.h"
#include "comm/ops.h"
#include "comm/shm.h"
#include "device/device.h"
#include "device/lane.h"

static int64_t count_limit = INT_MAX;

void comm_mpi_set_count_limit(int64_t limit)
{
  count_limit = limit;
}

/* MPICH adds the stack of its calls, one per line. The last one has the cause. */
enum status comm_mpi_check(int error, const char *call)
{
  if (error == MPI_SUCCESS)
    return STATUS_OK;
  char text[MPI_MAX_ERROR_STRING];
  int length, name = (int)strcspn(call, "(");
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS)
    snprintf(text, sizeof text, "error %d", error);
  const char *stack = strstr(text, ", error stack:\n"), *last = strrchr(text, '\n');
  if (stack)
    return status_set(STATUS_LIBRARY, "%.*s failed: %.*s: %s", name, call, (int)(stack - text),
                      text, last + 1);
  return status_set(STATUS_LIBRARY, "%.*s failed: %s", name, call, text);
}

void comm_mpi_warn(int error, const char *call)
{
  if (comm_mpi_check(error, call))
    log_warn("%s", status_text());
}

/* A sleeping thread is woken on time. It never calls sched_yield(): with a busy thread on the core,
 * that costs a whole time slice (milliseconds). */
void comm_rest(int64_t poll, int polls)
{
  enum { SLEEP_NS = 20000, MOST_SLEEP_NS = 50000 };
  double ns = SLEEP_NS;
  for (int64_t slept = polls; slept < poll && ns < MOST_SLEEP_NS; slept++)
    ns += ns / 4;
  if (poll >= polls)
    (void)nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL); /* or a signal wakes it early */
}

enum status comm_mpi_wait(int error, const char *call, MPI_Request *request)
{
  enum { POLLS = 20 };
  enum status status = comm_mpi_check(error, call);
  for (int64_t poll = 0; !status; poll++) {
    int done;
    status = comm_mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), call);
    if (status || done)
      return status;
    comm_rest(poll, POLLS);
  }
  return status;
}

/* Bytes as (count, datatype), because MPI counts are ints. */
struct span {
  int count;
  MPI_Datatype type; /* MPI_BYTE, or derived: free it with free_type() */
};

static enum status free_type(MPI_Datatype *type, enum status status)
{
  if (*type == MPI_BYTE)
    return status;
  const enum status freed = COMM_MPI(MPI_Type_free(type));
  return status ?: freed;
}

/* One element of a datatype that is `whole` chunks of `limit` bytes and a rest. */
static enum status derive(int64_t n, int64_t limit, MPI_Datatype *out)
{
  MPI_Datatype chunk, span = MPI_DATATYPE_NULL;
  int64_t whole = n / limit, rest = n % limit;
  if (whole > INT_MAX)
    return status_set(STATUS_UNSUPPORTED, "%lld bytes are more than one MPI call can move",
                      (long long)n);
  enum status status = COMM_MPI(MPI_Type_contiguous((int)limit, MPI_BYTE, &chunk));
  if (status)
    return status;
  status = COMM_MPI(MPI_Type_create_struct(2, (int[]){(int)whole, (int)rest},
                                           (MPI_Aint[]){0, (MPI_Aint)(whole * limit)},
                                           (MPI_Datatype[]){chunk, MPI_BYTE}, &span));
  status = free_type(&chunk, status) ?: COMM_MPI(MPI_Type_commit(&span));
  if (!status)
    *out = span;
  else if (span != MPI_DATATYPE_NULL)
    COMM_MPI_WARN(MPI_Type_free(&span));
  return status;
}

/* `n` bytes, of which a call places `members` such parts one after the other. Open MPI before 4.1.4
 * computes a part's place as member * count * extent, where member * count is an int. So one
 * datatype of extent n is used if that product is too large, and not only if n is. */
static enum status make_span(int64_t n, int members, struct span *out)
{
  const bool derived = n > count_limit / members;
  *out = (struct span){.count = derived ? 1 : (int)n, .type = MPI_BYTE};
  return derived ? derive(n, comm_smaller(n, count_limit), &out->type) : STATUS_OK;
}

enum status comm_mpi_barrier(MPI_Comm members)
{
  MPI_Request request;
  return members == MPI_COMM_NULL ? STATUS_OK
                                  : COMM_MPI_WAIT(MPI_Ibarrier(members, &request), &request);
}

enum status comm_mpi_broadcast(MPI_Comm members, void *data, int64_t bytes, int root)
{
  if (members == MPI_COMM_NULL)
    return STATUS_OK;
  struct span span;
  MPI_Request request;
  enum status status = make_span(bytes, 1, &span);
  if (!status)
    status =
        COMM_MPI_WAIT(MPI_Ibcast(data, span.count, span.type, root, members, &request), &request);
  return free_type(&span.type, status);
}

/* Sums and maxima cannot use derived datatypes, so they are made in pieces. */
enum status comm_mpi_fold(MPI_Comm members, void *values, int64_t n, MPI_Datatype type, MPI_Op op)
{
  if (members == MPI_COMM_NULL)
    return STATUS_OK;
  int size;
  enum status status = COMM_MPI(MPI_Type_size(type, &size));
  for (int64_t done = 0; !status && done < n; done += count_limit) {
    int64_t now = comm_smaller(n - done, count_limit);
    MPI_Request request;
    status = COMM_MPI_WAIT(MPI_Iallreduce(MPI_IN_PLACE, (char *)values + done * size, (int)now,
                                          type, op, members, &request),
                           &request);
  }
  return status;
}

/* A count per rank, and an element that counts as one. */
static enum status gather_counted(struct comm *comm, const void *mine, int n, MPI_Datatype element,
                                  int *counts, int *before, void *all)
{
  MPI_Request request;
  enum status status = COMM_MPI_WAIT(
      MPI_Iallgather(&n, 1, MPI_INT, counts, 1, MPI_INT, comm->world, &request), &request);
  for (int r = 1; r < comm->ranks && !status; r++)
    before[r] = before[r - 1] + counts[r - 1];
  return status
             ?: COMM_MPI_WAIT(MPI_Iallgatherv(mine, n, element, all, counts, before, element,
                                              comm->world, &request),
                              &request);
}

enum status comm_mpi_gather(struct comm *comm, enum mem_tag tag, const void *mine, int size,
                            int64_t *n, void **all)
{
  int *counts = NULL;
  void *memory = NULL;
  struct span element = {.type = MPI_BYTE};
  int64_t total = *n;
  enum status status = comm_sum_i64(comm, &total, 1);
  if (!status && total > count_limit)
    status = status_set(STATUS_UNSUPPORTED, "%lld elements are more than one MPI call can gather",
                        (long long)total);
  if (status)
    return status;
  status = mem_new(tag, 2 * comm->ranks, &counts)
      ?: mem_alloc(tag, (size_t)(total * size), &memory)
      ?: derive(size, size, &element.type);
  status = comm_agree(comm, status);
  if (!status) {
    comm_begin_call(comm);
    status = comm_end_call(comm, gather_counted(comm, mine, (int)*n, element.type, counts,
                                                counts + comm->ranks, memory));
  }
  status = free_type(&element.type, status);
  mem_free(counts);
  if (status) {
    mem_free(memory);
    return status;
  }
  *n = total;
  *all = memory;
  return STATUS_OK;
}

/* --- the transport: host memory, while the lane waits --- */

/* transport_data is the shm of a group inside a node. It is NULL if the group sends messages. */
static enum status open_shm(struct comm_group *group)
{
  if (!group->parts || !group->block)
    return STATUS_OK;
  struct shm *box = NULL;
  const enum status status = shm_create(group->comm, group->size, &box);
  group->transport_data = box;
  return status;
}

static void close_shm(struct comm_group *group)
{
  shm_destroy(group->transport_data);
}

/* The pieces of a member, and after them those of the next member. */
static enum status make_places(const struct comm_places *places, int members, struct span *out)
{
  const int64_t n = places->bytes;
  if (places->pieces == 1 && places->stride == n)
    return make_span(n, members, out);
  MPI_Datatype piece, all = MPI_DATATYPE_NULL;
  enum status status = derive(n, comm_smaller(n, count_limit), &piece);
  if (status)
    return status;
  status = COMM_MPI(MPI_Type_create_hvector(places->pieces, 1, places->apart, piece, &all));
  status = free_type(&piece, status);
  if (!status) {
    piece = all;
    status = COMM_MPI(MPI_Type_create_resized(piece, 0, places->stride, &all));
    status = free_type(&piece, status) ?: COMM_MPI(MPI_Type_commit(&all));
  }
  *out = (struct span){.count = 1, .type = all};
  return status;
}

static enum status gather_places(struct comm_group *group, const struct comm_places *places,
                                 void *full)
{
  struct span s;
  MPI_Request request;
  enum status status = make_places(places, group->size, &s);
  if (!status)
    status = COMM_MPI_WAIT(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, full, s.count, s.type,
                                          group->members, &request),
                           &request);
  return free_type(&s.type, status);
}

/* Boxes are of members without gaps. */
static enum status all_gather(struct comm_group *group, struct lane *lane,
                              const struct comm_places *places, void *full)
{
  enum status status = STATUS_OK;
  if (!group->transport_data)
    return gather_places(group, places, full);
  for (int p = 0; p < places->pieces && !status; p++)
    status = shm_all_gather(group->transport_data, lane, places->bytes,
                            (char *)full + p * places->apart);
  return status;
}

static enum status exchange_parts(struct comm_group *group, const struct comm_messages *m)
{
  struct span s;
  MPI_Request request;
  enum status status = make_span(m->bytes, group->size, &s);
  if (!status)
    status = COMM_MPI_WAIT(MPI_Ialltoall(m->sent, s.count, s.type, m->received, s.count, s.type,
                                         group->members, &request),
                           &request);
  return free_type(&s.type, status);
}

/* Sends to the member `away` places further, receives from the member as far back. The receiver has
 * room for any message. */
static enum status swap_varying(struct comm_group *group, int away, const struct comm_messages *m)
{
  enum { TAG = 0 };
  const MPI_Comm members = group->members;
  const int target = (group->index + away) % group->size,
            source = (group->index + group->size - away) % group->size;
  const char *mine = m->sent + target * m->apart;
  struct span out = {.type = MPI_BYTE}, in = {.type = MPI_BYTE};
  MPI_Request request[2];
  enum status status = make_span(comm_varying_length(mine), 1, &out) ?: make_span(m->bytes, 1, &in);
  if (!status)
    status = COMM_MPI(MPI_Irecv(m->received + source * m->stride, in.count, in.type, source, TAG,
                                members, &request[0]));
  if (!status)
    status = COMM_MPI_WAIT(MPI_Isend(mine, out.count, out.type, target, TAG, members, &request[1]),
                           &request[1]);
  status = status ?: comm_mpi_wait(MPI_SUCCESS, "MPI_Irecv", &request[0]);
  return free_type(&in.type, free_type(&out.type, status));
}

static enum status exchange_varying(struct comm_group *group, struct lane *lane,
                                    const struct comm_messages *m)
{
  const char *own = m->sent + group->index * m->apart;
  enum status status = STATUS_OK;
  if (m->apart)
    status = lane->device->ops->copy(lane, m->received + group->index * m->stride, own,
                                     (size_t)comm_varying_length(own));
  for (int away = 1; away < group->size && !status; away++)
    status = swap_varying(group, away, m);
  return status;
}

static enum status exchange(struct comm_group *group, struct lane *lane,
                            const struct comm_messages *m)
{
  enum status status =
      m->varying ? comm_check_varying(group, m->sent, m->apart, m->bytes, true) : STATUS_OK;
  if (status)
    return status;
  if (group->transport_data)
    status = shm_exchange(group->transport_data, lane, m);
  else
    status = m->varying ? exchange_varying(group, lane, m) : exchange_parts(group, m);
  return status || !m->varying ? status
                               : comm_check_varying(group, m->received, m->stride, m->bytes, false);
}

static enum status sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums,
                             int n)
{
  (void)lane;
  enum status status =
      comm_mpi_fold(group->members, sums, (int64_t)n * EXACTSUM_WORDS, MPI_INT64_T, MPI_SUM);
  for (int i = 0; !status && i < n; i++)
    exactsum_normalize(&sums[i]);
  return status;
}

static enum status max_u32(struct comm_group *group, struct lane *lane, uint32_t *values, int64_t n)
{
  (void)lane;
  return comm_mpi_fold(group->members, values, n, MPI_UINT32_T, MPI_MAX);
}

const struct comm_transport_ops comm_mpi_transport = {
    .open = open_shm,
    .close = close_shm,
    .all_gather = all_gather,
    .exchange = exchange,
    .sum_exact = sum_exact,
    .max_u32 = max_u32,
    .check = comm_transport_check_nothing,
    .register_memory = comm_transport_register_nothing,
};

enum status comm_mpi_version(char text[MPI_MAX_LIBRARY_VERSION_STRING])
{
  int length;
  const enum status status = COMM_MPI(MPI_Get_library_version(text, &length));
  if (!status)
    mpi_version_shorten(text);
  return status;
}

/* Cray MPICH takes pointers to GPU memory only if this variable switches it on. */
int comm_mpi_cuda_aware(void)
{
#if defined(MPIX_CUDA_AWARE_SUPPORT) /* Open MPI */
  return MPIX_Query_cuda_support() != 0;
#else
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  const char *cray = getenv("MPICH_GPU_SUPPORT_ENABLED");
  if (!comm_mpi_version(version) && !strncmp(version, "CRAY ", 5))
    return cray && !strcmp(cray, "1");
#if defined(MPIX_GPU_SUPPORT_CUDA) /* MPICH 4 */
  int supported;
  if (MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported) == MPI_SUCCESS)
    return supported != 0;
#endif
  return -1;
#endif
}

static enum status describe(struct comm *comm, bool renumbered)
{
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  const enum status status = comm_mpi_version(version);
  if (status)
    return status;
  const int aware = comm_mpi_cuda_aware();
  snprintf(comm->description, sizeof comm->description, "%.64s, thread multiple, %sCUDA-aware%s",
           version,
           aware > 0    ? ""
           : aware == 0 ? "not "
                        : "not known to be ",
           renumbered ? ", ranks renumbered node by node" : "");
  return STATUS_OK;
}

/* The node's ranks, and the lowest of them as the launcher numbers ranks. */
static enum status find_node(struct comm *comm, int launched, int *lowest)
{
  MPI_Comm node;
  enum status status = COMM_MPI(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, launched, MPI_INFO_NULL, &node));
  if (status)
    return status;
  *lowest = launched;
  status = COMM_MPI(MPI_Comm_rank(node, &comm->local_rank));
  status = status ?: COMM_MPI(MPI_Comm_size(node, &comm->local_ranks));
  status = status ?: COMM_MPI(MPI_Bcast(lowest, 1, MPI_INT, 0, node));
  enum status freed = COMM_MPI(MPI_Comm_free(&node));
  return status ? status : freed;
}

/* All of the launcher's ranks, numbered node by node however the launcher placed them: groups
 * are blocks of consecutive ranks, and a group of a node must not span nodes. Rank 0 stays rank
 * 0. */
static enum status number_ranks(struct comm *comm, int *launched)
{
  int lowest;
  enum status status = COMM_MPI(MPI_Comm_rank(MPI_COMM_WORLD, launched));
  status = status ?: find_node(comm, *launched, &lowest);
  /* Duplicates and splits inherit the error handler. */
  return status ? status : COMM_MPI(MPI_Comm_split(MPI_COMM_WORLD, 0, lowest, &comm->world));
}

static enum status find_ranks(struct comm *comm, int launched)
{
  enum status status = COMM_MPI(MPI_Comm_rank(comm->world, &comm->rank));
  status = status ?: COMM_MPI(MPI_Comm_size(comm->world, &comm->ranks));
  int renumbered = comm->rank != launched;
  comm->node = comm->rank - comm->local_rank;
  if (!status)
    status = COMM_MPI(MPI_Allreduce(MPI_IN_PLACE, &renumbered, 1, MPI_INT, MPI_MAX, comm->world));
  return status ? status : describe(comm, renumbered);
}

static enum status set_default(const char *name, const char *value)
{
  if (setenv(name, value, 0) == 0)
    return STATUS_OK;
  return status_set(STATUS_MEMORY, "cannot set an environment variable: %s", strerror(errno));
}

/* Open MPI sets up shared file pointers for each file that MPI-IO opens. Sluice uses none. Each
 * component has a fault. With sm any user of the node can make the semaphore first and hang the
 * job. With the others a rank that cannot open one more file leaves its peers waiting. With a
 * negative priority Open MPI selects no component. The excluded ones make files even if they lose.
 * A process without launcher has no folder for sm, and no peers. */
static enum status prevent_shared_pointers(void)
{
  const char *const components = launch_read().launched ? "^lockedfile,individual" : "individual";
  const enum status status = set_default("OMPI_MCA_sharedfp", components);
  return status ? status : set_default("OMPI_MCA_sharedfp_sm_priority", "-1");
}

/* A process without launcher has no peers, so it needs no transport and no daemon. Looking for a
 * transport takes up to 1.2 seconds, and Open MPI 5 makes a file in /dev/shm that only a launcher
 * removes. Open MPI 4 starts a daemon, whose client lets MPI_Finalize() unload the code of an event
 * that no thread has handled yet. Without it all such processes have one name, so they must not
 * share folders. Open MPI sets OMPI_MCA_pmix then. Jobs that the process starts itself need all of
 * this. */
static enum status init_mpi(int *argc, char ***argv, int *provided)
{
  static const char *const alone[][2] = {{"OMPI_MCA_btl", "self"},
                                         {"OMPI_MCA_pml", "ob1"},
                                         {"OMPI_MCA_ess_singleton_isolated", "1"},
                                         {"OMPI_MCA_orte_create_session_dirs", "0"},
                                         {"OMPI_MCA_pmix", NULL}};
  enum { ALONE = sizeof alone / sizeof *alone };
  bool is_set[ALONE];
  for (int i = 0; i < ALONE; i++) {
    is_set[i] = launch_read().launched || getenv(alone[i][0]);
    if (!is_set[i] && alone[i][1] && set_default(alone[i][0], alone[i][1]))
      return STATUS_MEMORY;
  }
  const int error = MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, provided);
  for (int i = 0; i < ALONE; i++)
    if (!is_set[i])
      (void)unsetenv(alone[i][0]);
  return comm_mpi_check(error, "MPI_Init_thread");
}

static enum status start_mpi(int *argc, char ***argv)
{
  int provided;
  enum status status = prevent_shared_pointers() ?: init_mpi(argc, argv, &provided);
  if (status)
    return status;
  if (provided < MPI_THREAD_MULTIPLE)
    return status_set(STATUS_UNSUPPORTED,
                      "this MPI library provides thread level %d, not %d (MPI_THREAD_MULTIPLE): "
                      "use a build with thread support",
                      provided, MPI_THREAD_MULTIPLE);
  status = COMM_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  return status ? status : COMM_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
}

enum status comm_create_mpi(int *argc, char ***argv, struct comm **out)
{
  enum status status = start_mpi(argc, argv);
  if (status)
    return status;
  struct comm *comm;
  status = mem_new(MEM_META, 1, &comm);
  if (status)
    return status;
  comm->transport = &comm_mpi_transport;
  int launched;
  status = number_ranks(comm, &launched);
  if (status)
    goto free_comm;
  status = find_ranks(comm, launched);
  if (status)
    goto free_world;
  *out = comm;
  return STATUS_OK;

free_world:
  COMM_MPI_WARN(MPI_Comm_free(&comm->world));
free_comm:
  mem_free(comm);
  return status;
}
