/* A job: what train, eval, generate and bench share. Deck -> model -> plans -> memory -> executors, and the job's state as named tensors. */
#ifndef SLUICE_TRAIN_JOB_H
#define SLUICE_TRAIN_JOB_H

#include "comm/comm.h"
#include "exec/exec.h"
#include "io/state.h"
#include "topo/topo.h"

struct job {
  struct comm *comm;
  const struct deck *deck;
  struct deck_shape shape; /* of the training plan, or of the first plan asked for */
  struct topo *topo;
  struct device *device;
  struct model *model;
  struct plan *plan[3]; /* by enum plan_mode, NULL where not asked for */
  struct exec *exec[3];
  struct exec_memory memory;
  int threads;
  int64_t resident_start; /* VmRSS before the first allocation of the job */
};

/* Which plans a job needs. Training evaluates too.
 * JOB_EVAL: data.micro_batch sequences of a rank at a time, of data.sequence tokens (0: at most 8; model.context).
 * JOB_GENERATE: one sequence; data.sequence tokens fit into the cache (0: model.context, at most 2048), and a step takes at most 256 new ones of them
 * (plan->input.capacity, plan->input.shape.sequence). */
enum job_use { JOB_TRAIN, JOB_TRAIN_AND_EVAL, JOB_EVAL, JOB_GENERATE };

/* Everything up to memory; parameters are zero. `deck` must outlive the job. The log opens with what the job is. Collective. */
enum status job_create(struct comm *comm, const struct deck *deck, enum job_use use, struct job **out);
void job_destroy(struct job *job); /* takes NULL; Collective */

/* The model that a deck describes. Borrows the deck's strings. */
struct model_config job_model_config(const struct deck *deck);
/* The model itself, with the deck's frozen parameters, packed for `ranks` ranks. Local. */
enum status job_model(const struct deck *deck, int ranks, struct model **out);
/* Strategy, shape, capacity and prefetch of a plan, from its mode and ranks. Local. */
enum status job_shape(const struct deck *deck, enum job_use use, int local_ranks, struct plan_input *input);

/* What the arenas of plans of one job need on this rank: they share the persistent ones, and take turns in the transient ones. Local. */
struct job_arenas { int64_t persistent, transient; };
struct job_arenas job_arenas(int n, const struct plan *const plans[]);
/* What the plans of this job said that its arenas need on this rank. Local. */
int64_t job_planned_bytes(const struct job *job);

/* Lanes and groups of one plan. Collective. */
enum status job_start(struct job *job, enum plan_mode mode, exec_load *load, void *arg);

/* Parameters as the architecture's initialisation and run.seed have them; moments zero. Local. */
void job_init(struct job *job);

/* The job's state as named tensors: parameters, and with `moments` both of AdamW's, which frozen parameters do not have. `unique`: each element on exactly one rank (for saving), otherwise all that this
 * rank holds (for loading). The array is owned by the caller (mem_free). Local; all tiers must be at rest when the data are touched. */
enum status job_tensors(struct job *job, bool moments, bool unique, struct io_tensor **out, int *n);

#endif
