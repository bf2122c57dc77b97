/* A small GPT-2 on the ranks of a test: what the tests of the executor share. Failures inside are failures of the running test. */
#ifndef SLUICE_TESTS_EXEC_JOB_H
#define SLUICE_TESTS_EXEC_JOB_H

#include "exec/exec.h"

enum { JOB_BATCH = 180, JOB_SEQUENCE = 4, JOB_STEPS = 3, JOB_BLOCKS = 3, JOB_VOCAB = 37 };

struct job_setup {
  enum plan_mode mode;
  enum deck_strategy strategy;
  int group; /* of hybrid_shard; others: all ranks */
  int prefetch, recompute_every;
  int micros; /* micro-batches a rank and step; 0: 1 */
  bool reduce_every_micro;
  int threads; /* 0: 1 */
  const int *cores;
  int fail_on_rank, fail_on_step; /* loading fails on this rank in this step, if that is not 0 */
};

struct job {
  struct job_setup setup;
  struct comm *comm;
  struct device *device;
  struct model *model;
  struct deck deck;
  struct plan *plan;
  struct exec_memory memory;
  struct exec *exec;
};

/* The job of mpirun, once a program. */
struct comm *job_start_mpi(void);

/* Plan, arenas and executor, and the initial parameters. */
void job_open(struct job *job, struct comm *comm, const struct job_setup *setup);
void job_close(struct job *job);
/* The same in two halves, for tests that do something to the plan in between. */
void job_plan(struct job *job, struct comm *comm, const struct job_setup *setup);
enum status job_create_exec(struct job *job, const struct job_setup *setup);

/* Step `step` with a fixed learning rate. */
struct exec_result job_step(struct job *job, int64_t step);

/* The model's parameters on every rank, unit after unit, job_parameters() floats (mem_free). Replicas must agree. Drains. Collective. */
float *job_collect(struct job *job);
int64_t job_parameters(const struct job *job);

/* exec_load of every job: a pure function of (step, global sequence, position). */
int32_t job_token(int64_t step, int64_t sequence, int64_t position);

/* What a run leaves behind. */
struct job_record {
  double loss[JOB_STEPS], grad_norm[JOB_STEPS];
  float *params;
  int64_t n;
};
struct job_record job_run(struct comm *comm, const struct job_setup *setup);
void job_record_free(struct job_record *record);
void job_assert_same(const struct job_record *a, const struct job_record *b); /* bit for bit */

#endif
