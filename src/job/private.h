/* Functions that the files of src/job share. Private to src/job. */
#pragma once

#include "job/job.h"
#include "job/search.h"

struct job_cited {
  char text[400];
};
/* "run.device (quickstart.yaml:12) is cuda" */
struct job_cited job_cite(const struct deck *deck, const char *key, const char *value);

static inline bool job_trains(enum job_use use)
{
  return use == JOB_TRAIN || use == JOB_TRAIN_AND_EVAL;
}

/* Lists the plans that exist. Returns their number. */
int job_list_plans(const struct job *job, const struct plan *plans[JOB_PLANS]);

/* Compares the nodes of all ranks, because input->rank, input->shape and input->policy, which a
 * deck gives, know only this rank's node. Sets policy.one_node, whether each shard group is on one
 * node, and clears shape.two_hops on unequal nodes. STATUS_USAGE on all ranks: groups differ, or
 * shard.hops=2 on unequal nodes. Collective. */
enum status job_check_nodes(struct comm *comm, const struct deck *deck, struct plan_input *input);

/* Ranks of the smallest and of the largest node. Collective. */
enum status job_find_nodes(struct comm *comm, int *least, int *most);

/* Whether the job's folder for TIER_DISK can be used, and its free room. STATUS_IO if no folder can
 * be made. STATUS_USAGE if no key names one and the default would not be on the node's own disk.
 * Warns if nodes share a folder that a key names. Local. */
enum status job_check_disk(const struct job *job, struct job_limits *out);
/* The free room for a job that does not use it yet; 0 if it cannot use the folder. Local. */
void job_look_at_disk(const struct job *job, struct job_limits *out);

/* Logs the properties of the job and, on rank 0, the keys that have no effect. Local. */
void job_log(const struct job *job, enum job_use use);

/* A job's use of the memories of its node. at_rest: nothing moves its state. */
struct job_site {
  const struct job *job;
  enum job_use use;
  const struct job_limits *limits;
  bool at_rest;
};
/* The needs of plans, and the limits of a struct job_site: search.judge. Local. */
void job_judge(const void *site, int local, int n, const struct plan *const plans[],
               struct rooms *out);
/* Whether the job will move the state through the host, because it loads parameters or saves
 * checkpoints. Local. */
bool job_moves_state(const struct job *job, enum job_use use);
/* The limits of this rank except disk: what is free now, or the whole memory of the machine. Local.
 */
enum status job_find_limits(const struct job *job, bool free, struct job_limits *out);
