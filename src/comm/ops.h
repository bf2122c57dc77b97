/* Private part of comm.h. The control plane is MPI's. Communicators of a fake job are
 * MPI_COMM_NULL, and its collectives do nothing, because simulated peers pass the same values as
 * this rank. The transport of a group's data is chosen separately (struct comm_transport_ops: mpi,
 * nccl, fake). Only for src/comm and its tests. */
#pragma once

#include <mpi.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "comm/comm.h"

struct comm {
  MPI_Comm world;
  bool is_sibling;                            /* MPI ends with the other one */
  const struct comm_transport_ops *transport; /* of the groups that are created from now on */
  int rank, ranks, local_rank, local_ranks;   /* ranks of a node are consecutive */
  int node;                                   /* its lowest rank */
  struct device *device;                      /* of comm_set_device() */
  struct nccl_family *nccl;                   /* from the first group of "nccl" on */
  char description[160];
  _Atomic int64_t begun, ended;        /* comm_calls() */
  _Atomic int64_t exchanged, gathered; /* comm_sent_varying() */
};

struct comm_group {
  struct comm *comm;
  MPI_Comm members; /* numbered as in the group */
  const struct comm_transport_ops *transport;
  void *transport_data;             /* owned by the transport, from its open() to its close() */
  int index, size, first;           /* first: rank of member 0 */
  bool block;                       /* of consecutive ranks */
  bool parts;                       /* it is made for all-gathers and reduce-scatters */
  struct comm_group *node, *across; /* comm_group_gather_by_nodes(); NULL: gathers have one hop */
};

/* The data of an all-gather: `pieces` pieces of `bytes` bytes from each member. Piece p of member i
 * is at i * stride + p * apart. */
struct comm_places {
  int64_t bytes, stride;
  int pieces;
  int64_t apart;
};

/* A message to each member and one from each member, of at most `bytes` bytes. */
struct comm_messages {
  int64_t bytes;
  bool varying;
  const char *sent; /* `apart` bytes apart; 0: all get the same one, which is at its place in
                       `received` */
  int64_t apart;
  char *received; /* `stride` bytes apart */
  int64_t stride;
};

/* Groups of more than one; arguments as in comm.h. */
struct comm_transport_ops {
  bool enqueues; /* collectives are put on the lane's queue, and no thread waits for the others */

  /* Collective over the job. Lanes end before the groups that they use are closed. */
  enum status (*open)(struct comm_group *group);
  void (*close)(struct comm_group *group);

  /* This member's pieces are at their places. */
  enum status (*all_gather)(struct comm_group *group, struct lane *lane,
                            const struct comm_places *places, void *full);
  enum status (*exchange)(struct comm_group *group, struct lane *lane,
                          const struct comm_messages *messages);
  enum status (*sum_exact)(struct comm_group *group, struct lane *lane, struct exactsum *sums,
                           int n);
  enum status (*max_u32)(struct comm_group *group, struct lane *lane, uint32_t *values, int64_t n);
  enum status (*check)(struct comm_group *group);
  enum status (*register_memory)(struct comm_group *group, void *ptr, int64_t bytes);
};

extern const struct comm_transport_ops comm_mpi_transport, comm_mpi_device_transport,
    comm_fake_transport, comm_nccl_transport; /* the last with HAVE_NCCL only */

/* Ends what the groups of "nccl" share, after the last of them. Takes a job that has had none. With
 * HAVE_NCCL only. Collective. */
void comm_nccl_end(struct comm *comm);

/* Collectives of communicators, in memory of the host. The thread sleeps while it waits. fold: of n
 * elements of the type, in place. Collective. */
enum status comm_mpi_barrier(MPI_Comm members);
enum status comm_mpi_broadcast(MPI_Comm members, void *data, int64_t bytes, int root);
enum status comm_mpi_fold(MPI_Comm members, void *values, int64_t n, MPI_Datatype type, MPI_Op op);

/* From member 0, on all ranks of the job at once. Collective over the job. */
enum status comm_group_broadcast(struct comm_group *group, void *data, int64_t bytes);

/* Enclose calls that wait for other ranks, for comm_calls(). The second returns `status`. */
void comm_begin_call(struct comm *comm);
enum status comm_end_call(struct comm *comm, enum status status);

/* For transports that have nothing to do. */
enum status comm_transport_open_nothing(struct comm_group *group);
void comm_transport_close_nothing(struct comm_group *group);
enum status comm_transport_check_nothing(struct comm_group *group);
enum status comm_transport_register_nothing(struct comm_group *group, void *ptr, int64_t bytes);

/* Ranks and lanes share cores. So a thread that waits for others sleeps after its first `polls`
 * polls, each time a little longer. */
void comm_rest(int64_t poll, int polls);

static inline int64_t comm_smaller(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* The length of a message of comm_exchange(). */
int64_t comm_varying_length(const void *message);
/* Whether the lengths of the group's messages, `stride` bytes apart, are valid. Adds messages sent
 * to other members to the count. Local. */
enum status comm_check_varying(struct comm_group *group, const void *messages, int64_t stride,
                               int64_t bytes, bool sent);

/* Whether all members of each such group run on one node. All ranks of the job get the same
 * answer, even if they see different ones. Collective over the job. */
enum status comm_group_is_on_one_node(struct comm_group *group, bool *out);

/* Whether the ranks can be split into groups of `size`: STATUS_USAGE. */
enum status comm_check_group_size(const struct comm *comm, int size);

/* comm_shared_create(), which counts as arenas. */
enum status comm_shared_create_as(struct comm *comm, enum mem_tag tag, int size, int64_t bytes,
                                  struct comm_shared **out);

/* How comm_mpi_device_transport moves memory of this device, in words. */
const char *comm_mpi_device_way(const struct device *device);
/* For groups that are created from now on: whether they give device memory to MPI (-1: if MPI
 * accepts it), and the bytes of their messages (0: as usual). For tests. */
void comm_mpi_force_stage(int direct, int64_t piece);

/* Largest MPI count, in bytes, or in elements for sums. Longer data use one derived datatype. For
 * tests: INT_MAX is the limit of MPI's interface. */
void comm_mpi_set_count_limit(int64_t limit);
