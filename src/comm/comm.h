/* Groups of ranks, and collectives on lanes. There are two implementations. `mpi` uses
 * point-to-point messages and non-blocking collectives, and sleeps while it waits. `fake` is rank r
 * of P without peers, for dry runs. Its peers send zeros. Knows nothing of models or plans. A
 * transport moves the data of groups of an mpi job: MPI for host memory (shared memory inside a
 * node), NCCL or MPI for GPU memory.
 *
 * Every group owns one communicator per lane that uses it, so that two lanes never share an
 * ordering. Data collectives count bytes, in 64 bits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/exactsum.h"
#include "base/status.h"

struct device;
struct lane;
struct comm;       /* the job */
struct comm_group; /* an ordered subset of its ranks, on one lane */

/* Start MPI with MPI_THREAD_MULTIPLE and check that it was provided (mpi), or pretend (fake). Also
 * works without mpirun: one rank. Collective. */
enum status comm_create_mpi(int *argc, char ***argv, struct comm **out);
enum status comm_create_fake(int rank, int ranks, int local_ranks, struct comm **out);
void comm_destroy(struct comm *comm); /* takes NULL; Collective */

/* Ranks are numbered node by node. The numbers differ from those of a launcher that places ranks on
 * the nodes in turn. */
int comm_rank(const struct comm *comm);
int comm_ranks(const struct comm *comm);
int comm_local_rank(const struct comm *comm); /* among the ranks of this node (shared memory) */
int comm_local_ranks(const struct comm *comm);
/* "Open MPI 4.1.4, thread multiple, not CUDA-aware", and whether ranks were renumbered. */
const char *comm_description(const struct comm *comm);

/* The MPI_Comm of the job for io/, as a pointer to it (NULL for fake). */
void *comm_mpi(struct comm *comm);
/* The one check of MPI's return codes, here and in io/: STATUS_LIBRARY with "CALL failed: MPI's
 * text". */
enum status comm_mpi_check(int error, const char *call);
#define COMM_MPI(call) comm_mpi_check(call, #call)
/* At the end of a job a failure is logged, and the rest is cleaned up. */
#define COMM_MPI_WARN(call) comm_mpi_warn(call, #call)
void comm_mpi_warn(int error, const char *call);

/* Failing is a collective decision: every rank passes its own status. If any rank failed, all
 * return the status of the lowest failing rank, and its error text after "rank R: ". The text is
 * unchanged if all ranks hold the same one, so that an agreed failure names its rank once.
 * Collective. */
enum status comm_agree(struct comm *comm, enum status mine);
/* Print the recorded error and end the job on all ranks at once. For failures that only one rank
 * may know of. Local; does not return. */
void comm_abort(struct comm *comm, enum status status) __attribute__((noreturn));
/* The same if `status` is a failure. Local. */
void comm_must(struct comm *comm, enum status status);
/* End the job without MPI_Finalize(), after its error was printed. Collective; does not return. */
void comm_quit(struct comm *comm, int exit_code) __attribute__((noreturn));

/* Logs the warnings that ranks kept with log_warn_alike(). The lowest rank with a warning logs it,
 * with the number of other ranks that have it. Collective. */
enum status comm_say_warnings(struct comm *comm);

/* Control plane, blocking, on the calling thread. Collective. */
enum status comm_barrier(struct comm *comm);
enum status comm_broadcast(struct comm *comm, void *data, int64_t bytes, int root);
enum status comm_broadcast_text(struct comm *comm, char **text,
                                int root); /* non-roots receive a mem_strdup'ed copy */
enum status comm_sum_i64(struct comm *comm, int64_t *values, int n);
enum status comm_max_i64(struct comm *comm, int64_t *values, int n);
enum status comm_max_f64(struct comm *comm, double *values, int n);

/* All ranks hold the same `bytes` bytes? STATUS_INPUT naming `what` and the lowest rank that
 * differs. */
enum status comm_check_same(struct comm *comm, const char *what, const void *data, int64_t bytes);

/* The same ranks with communicators of their own, for a thread that must not wait for calls of
 * threads that use `comm`. Destroy it before comm. Collective. */
enum status comm_create_sibling(struct comm *comm, struct comm **out);

/* Zeroed host memory of `bytes` bytes, in whole pages. Each block of `size` consecutive ranks
 * shares one copy. Member i clears the i-th of equal parts, so its pages are on that member's NUMA
 * node. STATUS_UNSUPPORTED if a block spans nodes. Another member sees a store after a
 * comm_group_barrier() of both. Fake jobs have memory of their own. Collective. */
struct comm_shared;
enum status comm_shared_create(struct comm *comm, int size, int64_t bytes,
                               struct comm_shared **out);
void *comm_shared_memory(const struct comm_shared *shared);
void comm_shared_destroy(struct comm_shared *shared); /* takes NULL; Collective */
/* The folder whose file system holds that memory: Open MPI's osc_sm_backing_directory if the
 * environment sets it, otherwise /dev/shm. Local. */
const char *comm_shared_folder(void);

/* Sets the transport of groups that are created from now on. "mpi" (the default): host memory.
 * "mpi_device": memory of the device that comm_set_device() names. If MPI does not accept pointers
 * to it, data are staged through pinned host memory. Transport "nccl" needs a GPU per rank, the
 * calling thread's current one. A fake job accepts any name. STATUS_UNSUPPORTED, with the available
 * transports, if the build does not have it. Collective. */
enum status comm_set_transport(struct comm *comm, const char *name);
const char *comm_transport(const struct comm *comm);      /* its name; of a fake job "mpi" */
const char *comm_transport_text(const struct comm *comm); /* for messages: "nccl", "mpi, staged
                                                           through pinned memory of the host" */
/* The device whose memory "mpi_device" moves; it outlives the groups. Local. */
void comm_set_device(struct comm *comm, struct device *device);

/* Number of calls of this rank so far that wait for other ranks: collectives of the control plane,
 * and starts of a transport. Ranks in the same call have the same number. *waits: such a call is
 * running. Any thread. Local. */
void comm_calls(const struct comm *comm, int64_t *begun, bool *waits);

/* This rank's group among equal groups that partition the ranks of the job. Members are numbered in
 * the order of their ranks; first, last: the ranks of the first and the last one. */
struct comm_members {
  int size, index, first, last;
};
/* Groups of `size` ranks whose numbers are `apart` apart: with 1 they are blocks of consecutive
 * ranks. comm_group_create() refuses them if they do not fill the job. Local. */
struct comm_members comm_evenly(const struct comm *comm, int size, int apart);
/* Without `parts` the group is for barriers and exact sums: "mpi" allocates no shared memory for
 * it, nor for groups of other than consecutive ranks. Gathers and reductions still work, by
 * messages. STATUS_USAGE: such groups do not fill the job. STATUS_INTERNAL: ranks do not agree on
 * the members. Collective. */
enum status comm_group_create(struct comm *comm, struct comm_members members, bool parts,
                              struct comm_group **out);
/* The same for host memory, by "mpi", whatever comm_set_transport() says. Collective. */
enum status comm_group_create_on_host(struct comm *comm, struct comm_members members, bool parts,
                                      struct comm_group **out);
/* Bytes of shared memory that all groups of a node of `local_ranks` ranks hold if
 * comm_group_create() makes them with transport "mpi". They hold less if comm_shared_folder() has
 * no room. Local. */
int64_t comm_group_shared_bytes(int local_ranks, struct comm_members members);
/* All-gathers of the group have two hops from now on. `node`: blocks of consecutive members.
 * `across`: the members that have one index in their blocks, which gather first. Then each block
 * gathers what its members have. So each byte arrives once in a node that holds a block.
 * Collective. */
enum status comm_group_gather_by_nodes(struct comm_group *group, struct comm_members node,
                                       struct comm_members across);
/* The groups of these hops, which `group` owns; NULL: its gathers have one hop. Local. */
struct comm_group *comm_group_across(const struct comm_group *group);
struct comm_group *comm_group_node(const struct comm_group *group);
void comm_group_destroy(struct comm_group *group); /* takes NULL; Collective */
int comm_group_index(const struct comm_group *group);
int comm_group_size(const struct comm_group *group);
/* Whether its collectives are enqueued on the device (NCCL), not executed by the lane's thread
 * (MPI). Groups that share a device must then issue their collectives in one order on all ranks,
 * because a device may run its queues in the order of issue. Local. */
bool comm_group_is_enqueued(const struct comm_group *group);

/* Data plane, in the order of the lane. With MPI a call blocks the calling lane, which sleeps while
 * it waits. The call returns when the buffers may be reused (with "mpi_device": when work that
 * follows on the lane may reuse them). With NCCL calls are enqueued, as the device's own operations
 * are. Collective over the group. */

/* `full` holds size * bytes bytes; member i's part is at i * bytes. `shard` is this member's part:
 * at its place in `full`, or anywhere outside it. All members end with all parts.
 * `varying`: parts are messages of varying length, as in comm_exchange(). With two hops,
 * the hop inside a node moves all bytes. */
enum status comm_all_gather(struct comm_group *group, struct lane *lane, const void *shard,
                            int64_t bytes, bool varying, void *full);
/* Each member sends `bytes` bytes to every member, itself included: received[j * bytes] = the bytes
 * that member j has at sent[index * bytes]. Both hold size * bytes bytes and do not overlap. A fake
 * group receives zeros from members other than this one.
 * `varying`: messages of varying length. A message begins with its length in bytes, an int64_t,
 * which counts itself too and is at most `bytes`. Only so many bytes are sent, and the receiver's
 * bytes after them are undefined. STATUS_INPUT: this member has a message of an invalid length,
 * or received one. */
enum status comm_exchange(struct comm_group *group, struct lane *lane, const void *sent,
                          int64_t bytes, bool varying, void *received);
/* Bytes that this rank has sent to others in messages of varying length so far. Any thread.
 * Local. */
struct comm_varying {
  int64_t exchanged, gathered;
};
struct comm_varying comm_sent_varying(const struct comm *comm);
/* Returns when all members have called it. All members then see each other's earlier stores. It
 * uses MPI with every transport. The calling lane sleeps while it waits. */
enum status comm_group_barrier(struct comm_group *group);
/* Exact sums of normalized accumulators over the group, normalized. `sums` is memory that the
 * lane's operations work on. */
enum status comm_group_sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums,
                                 int n);
/* The most of each of n integers over the group, in place. They are memory that the lane's
 * operations work on. */
enum status comm_group_max_u32(struct comm_group *group, struct lane *lane, uint32_t *values,
                               int64_t n);
/* Registers memory from the device's alloc() that the collectives of this group will use. All
 * members use it at the same offsets, and it must live as long as the group. The transport may then
 * move data without copies of its own. Call it before the first step. It moves and changes no data.
 * Collective. */
enum status comm_group_register(struct comm_group *group, void *ptr, int64_t bytes);
/* An asynchronous error of the transport (a peer that died, a broken link), or STATUS_OK. Any
 * thread. Local. */
enum status comm_group_check(struct comm_group *group);
