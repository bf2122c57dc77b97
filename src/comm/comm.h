/* Groups of ranks, and collectives on lanes. Implementations: `mpi` (MPI point to point and non-blocking collectives, waiting without burning the core)
 * and `fake` (rank r of P with no peers, for dry runs: data collectives leave the buffers as they are). Knows nothing of models or plans.
 *
 * Every group owns one communicator per lane that uses it, so that two lanes never share an ordering. Counts are 64-bit elements. */
#ifndef SLUICE_COMM_COMM_H
#define SLUICE_COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/exactsum.h"
#include "base/status.h"

struct lane;
struct comm;       /* the job */
struct comm_group; /* an ordered subset of its ranks, on one lane */

/* Start MPI with MPI_THREAD_MULTIPLE and check that it was provided (mpi), or pretend (fake). Also works without mpirun: one rank. Collective. */
enum status comm_create_mpi(int *argc, char ***argv, struct comm **out);
enum status comm_create_fake(int rank, int ranks, int local_ranks, struct comm **out);
void comm_destroy(struct comm *comm); /* takes NULL; Collective */

int comm_rank(const struct comm *comm);
int comm_ranks(const struct comm *comm);
int comm_local_rank(const struct comm *comm);  /* among the ranks of this node (shared memory) */
int comm_local_ranks(const struct comm *comm);
const char *comm_description(const struct comm *comm); /* "Open MPI 4.1.4, thread multiple, not CUDA-aware" */

/* The MPI_Comm of the job for io/, as a pointer to it (NULL for fake). */
void *comm_mpi(struct comm *comm);

/* Failing is a collective decision: every rank passes its own status; if any failed, all return that of the lowest failing rank, with its sentence
 * prefixed by "rank R: " when there is more than one. Collective. */
enum status comm_agree(struct comm *comm, enum status mine);
/* Print the recorded sentence and end the job on all ranks at once. For failures that only one rank may know of. Local; does not return. */
void comm_abort(struct comm *comm, enum status status) __attribute__((noreturn));

/* Control plane, blocking, on the calling thread. Collective. */
enum status comm_barrier(struct comm *comm);
enum status comm_broadcast(struct comm *comm, void *data, int64_t bytes, int root);
enum status comm_broadcast_text(struct comm *comm, char **text, int root); /* non-roots receive a mem_strdup'ed copy */
enum status comm_sum_i64(struct comm *comm, int64_t *values, int n);
enum status comm_max_i64(struct comm *comm, int64_t *values, int n);
enum status comm_max_f64(struct comm *comm, double *values, int n);
enum status comm_sum_exact(struct comm *comm, struct exactsum *sums, int n); /* normalized in, normalized out: the same bits at any rank count */
/* All ranks hold the same `bytes` bytes? STATUS_INTERNAL naming the lowest rank that differs, with `what` in the sentence. */
enum status comm_check_same(struct comm *comm, const char *what, const void *data, int64_t bytes);

/* Groups. COMM_WORLD: all. COMM_SHARD: blocks of `size` consecutive ranks. COMM_REPLICA: the ranks with the same index in their block. Collective. */
enum comm_kind { COMM_WORLD, COMM_SHARD, COMM_REPLICA };
enum status comm_group_create(struct comm *comm, enum comm_kind kind, int size, struct comm_group **out);
void comm_group_destroy(struct comm_group *group); /* takes NULL; Collective */
int comm_group_index(const struct comm_group *group);
int comm_group_size(const struct comm_group *group);

/* Data plane: blocking for the lane that calls, which sleeps while it waits. Each returns when the buffers may be reused. Collective over the group. */

/* full holds size * count elements; member i's part is at i * count. `shard` is this member's part: when it is not already at its place in `full` it is
 * copied there. All members end with all parts. */
enum status comm_all_gather(struct comm_group *group, struct lane *lane, const void *shard, int64_t count, enum dtype type, void *full);
/* Reduce-scatter as an exchange followed by a sum in a fixed order (device sum_parts): `full` holds size * count gradient elements, `staging` has room for as many;
 * shard (= or +=) the sum of all members' part `index`. shard may lie at its place inside `full` (then accumulate must be false). */
enum status comm_reduce_scatter(struct comm_group *group, struct lane *lane, void *full, int64_t count, enum dtype type, void *staging, bool accumulate, void *shard);
/* sums of normalized accumulators over the group, exact. */
enum status comm_group_sum_exact(struct comm_group *group, struct lane *lane, struct exactsum *sums, int n);

#endif
