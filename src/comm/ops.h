/* Behind comm.h: the table that an implementation fills. Only for src/comm and its tests. */
#ifndef SLUICE_COMM_OPS_H
#define SLUICE_COMM_OPS_H

#include "comm/comm.h"

/* An implementation's own structs begin with these two. */
struct comm {
  const struct comm_ops *ops;
  int rank, ranks, local_rank, local_ranks;
  char description[128];
};

struct comm_group {
  struct comm *comm;
  int index, size;
};

enum comm_fold { FOLD_SUM_I64, FOLD_MAX_I64, FOLD_MAX_F64, FOLD_MIN_I64 };

struct comm_ops {
  void (*destroy)(struct comm *comm);
  void *(*mpi)(struct comm *comm);
  void (*abort)(struct comm *comm, int exit_code) __attribute__((noreturn));

  enum status (*barrier)(struct comm *comm);
  enum status (*broadcast)(struct comm *comm, void *data, int64_t bytes, int root);
  enum status (*fold)(struct comm *comm, enum comm_fold fold, void *values, int64_t n); /* n 8-byte elements in place */

  /* The ranks of one `color`, ordered by `index`. */
  enum status (*group_create)(struct comm *comm, int color, int index, struct comm_group **out);
  void (*group_destroy)(struct comm_group *group);
  /* Groups of more than one. `shard` is NULL when it is at its place already. */
  enum status (*all_gather)(struct comm_group *group, const void *shard, int64_t count, enum dtype type, void *full);
  /* received[j * count] = what member j has at sent[index * count] */
  enum status (*exchange)(struct comm_group *group, const void *sent, int64_t count, enum dtype type, void *received);
  enum status (*group_sum)(struct comm_group *group, int64_t *values, int64_t n);
};

/* Elements that one MPI count may say; more travel as one derived datatype. For tests: INT_MAX is what MPI's interface allows. */
void comm_mpi_set_count_limit(int64_t limit);

#endif
