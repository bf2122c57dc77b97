/* Reads the environment of launchers before MPI starts. */
#include "comm/launch.h"

#include <stdlib.h>

/* The first row that is set counts, for the rank and for the number of tasks. mpirun may start its
 * daemons as tasks of Slurm, so Slurm is the last. */
static const struct {
  const char *rank, *tasks;
} launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* mpirun of Open MPI */
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},   /* MVAPICH2 */
    {"PMI_RANK", "PMI_SIZE"}, /* MPICH, Intel MPI, Cray's PALS, srun --mpi=pmi2 */
    {"PMIX_RANK", NULL},      /* PRRTE, srun --mpi=pmix */
    {"PALS_RANKID", NULL},    /* Cray's PALS without PMI */
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers, SLURM = LAUNCHERS - 1 };

/* A job script is a process of Slurm too, and may start ranks. A task among several is one of
 * them. */
static bool starts_ranks(int launcher, int64_t tasks)
{
  return launcher != SLURM || tasks > 1;
}

struct launch launch_read(void)
{
  struct launch launch = {0};
  bool ranked = false;
  for (int i = 0; i < LAUNCHERS; i++) {
    const char *rank = getenv(launchers[i].rank);
    const char *tasks = launchers[i].tasks ? getenv(launchers[i].tasks) : NULL;
    const int64_t n = tasks ? strtoll(tasks, NULL, 10) : 0;
    if (tasks && !launch.told_by) {
      launch.tasks = n;
      launch.told_by = launchers[i].tasks;
    }
    if (rank && !ranked)
      launch.rank = strtol(rank, NULL, 10);
    ranked = ranked || rank;
    launch.launched = launch.launched || (rank && starts_ranks(i, n));
  }
  return launch;
}
