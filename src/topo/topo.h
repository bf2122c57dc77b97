/* Which cores of this machine belong to this rank (hwloc). Knows nothing of MPI: the caller says how many ranks share the mask.
 *
 * A launcher either gives every rank its own mask (mpirun --bind-to socket, srun --cpu-bind=cores) or the same one to all (--bind-to none, a container).
 * topo_mask_id() tells the two apart: ranks with equal ids share their cores, which are then split among them in contiguous blocks. */
#ifndef SLUICE_TOPO_TOPO_H
#define SLUICE_TOPO_TOPO_H

#include <stdint.h>

#include "base/status.h"

struct topo;

/* A name of this machine and of the cores that this process may use (before topo_bind()); not negative. Local. */
int64_t topo_mask_id(void);
/* This rank's place among those with the same id, given everyone's: *index of *sharers. */
void topo_place(const int64_t *ids, int ranks, int rank, int *index, int *sharers);

/* The share of rank `index` of `sharers` in this process' cores. threads 0: one per physical core of the share, fewer where the control group grants less
 * time (CPU quota); otherwise as many as said, over the cores first, then over their hardware threads, then round again. Local. */
enum status topo_create(int index, int sharers, int threads, struct topo **out);
/* Likewise on a machine described in hwloc's synthetic language ("pack:2 numa:1 core:4 pu:2"), for tests and dry runs. mask: CPUs ("0-7,16"), NULL: all;
 * quota: CPUs' worth of time, 0: unlimited. */
enum status topo_create_synthetic(const char *machine, const char *mask, double quota, int index, int sharers, int threads, struct topo **out);
void topo_destroy(struct topo *topo); /* takes NULL */

int topo_threads(const struct topo *topo);              /* math threads of this rank, at least 1 */
const int *topo_cores(const struct topo *topo);         /* the logical CPU of each, for team_create() */
const char *topo_description(const struct topo *topo);  /* "2 cores of NUMA node 0 (CPUs 0-1)" */

/* Bind all threads that this process has to its share, hardware threads included; threads started later inherit it. A share that is crowded (more ranks than
 * cores) is left to the scheduler. */
enum status topo_bind(const struct topo *topo);

/* CPUs' worth of time that control groups grant a process (v2 cpu.max, v1 cpu.cfs_quota_us; the least of the group and those around it), 0: unlimited.
 * `groups`: a file such as /proc/self/cgroup; `root`: where the control groups are mounted. */
double topo_cpu_quota(const char *groups, const char *root);

#endif
