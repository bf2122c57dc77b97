/* A small GPT-2 or Llama on the ranks of a test: what the tests of the executor share. Failures
 * inside are failures of the running test. */
#ifndef SLUICE_TESTS_EXEC_JOB_H
#define SLUICE_TESTS_EXEC_JOB_H

#include "exec/exec.h"

enum {
  JOB_BATCH = 180,
  JOB_SEQUENCE = 4,
  JOB_STEPS = 3,
  JOB_BLOCKS = 3,
  JOB_VOCAB = 37,
  JOB_CONTEXT = 12
};

struct job_setup {
  enum plan_mode mode;
  enum deck_strategy strategy;
  int group;                       /* of hybrid_shard; others: all ranks */
  int prefetch, recompute_every;   /* 0: nothing, K: every K-th block */
  struct deck_pattern activations; /* where recompute_every is 0 */
  int micros;                      /* micro-batches a rank and step; 0: 1 */
  bool reduce_every_micro;
  int threads;                    /* 0: 1 */
  const int *cores, *io_cores;    /* io_cores: one */
  int fail_on_rank, fail_on_step; /* loading fails on this rank in this step, if that is not 0 */
  bool llama;                     /* with a head of its own */
  struct option_strings freeze;
  bool no_clip;
  int64_t capacity;  /* PLAN_GENERATE; 0: JOB_SEQUENCE */
  bool half;         /* computes in bf16 */
  bool keep_working; /* and keeps a copy in it: deck_policy's */
  bool whole;        /* a device that does not work by sequence, with padded rows of logits */
  /* deck_policy's host_state and what goes with it */
  bool host, params_full, cpu_reduce, one_node, immediate, speculative;
  int local_ranks;              /* of made-up nodes, between which alone codecs work; 0: all */
  const char *codec, *feedback; /* of gradients between ranks, and of their residuals */
  const char *weights;          /* codec of gathered parameters */
  bool difference;              /* by which differences to a copy travel */
  enum deck_residual residual;  /* where that is kept */
  int64_t sample;               /* steps between measurements of that */
  bool beside;                  /* the host lanes have a device of their own, as next to a GPU */
  bool late;                    /* copies between tiers continue after the call: late.h */
  enum dtype moments;
  double nvme_state;
  int gathered, resident; /* units */
  bool stochastic;
  double rate; /* transfer.rate */
  enum optimizer optim;
  double clip, eps;           /* 0: those of job.c */
  double lr;                  /* 0: 0.01 */
  struct deck_units lr_scale; /* deck_policy's */
};

struct job {
  struct job_setup setup;
  struct comm *comm;
  struct device *device, *host; /* host: NULL: none of its own */
  struct model *model;
  struct deck deck;
  struct plan *plan;
  struct exec_memory memory;
  struct exec *exec;
  int64_t past, tokens; /* of the next step in generation: job_generate() */
};

/* The job of mpirun, once a program. */
struct comm *job_start_mpi(void);

/* The start and end of a test program that has it as job_comm. */
extern struct comm *job_comm;
int job_mpi_start(void **state);
int job_mpi_stop(void **state);

/* Plan, arenas and executor, and the initial parameters. */
void job_open(struct job *job, struct comm *comm, const struct job_setup *setup);
void job_close(struct job *job);
/* The same in two halves, for tests that do something to the plan in between. */
void job_plan(struct job *job, struct comm *comm, const struct job_setup *setup);
enum status job_create_exec(struct job *job, const struct job_setup *setup);

/* Step `step`. The learning rate is the same in all steps. */
struct exec_result job_step(struct job *job, int64_t step);

/* A step of generation: tokens [past, past + tokens) of the sequences of step 0, and the logits of
 * the last one. */
const float *job_generate(struct job *job, int64_t step, int64_t past, int64_t tokens);

/* The model's parameters on every rank, one after another in the order of the model, whatever is
 * frozen: job_parameters() floats (mem_free). All who have an element must agree on it. Drains.
 * Collective. */
float *job_collect(struct job *job);
int64_t job_parameters(const struct job *job);

/* A whole unit as initialised, laid out for its flat buffer (mem_free). */
float *job_initial_unit(const struct job *job, int unit);

/* exec_load of every job: a pure function of (step, global sequence, position). In generation
 * sequences have as many tokens as job.tokens, from job.past on. */
int32_t job_token(int64_t step, int64_t sequence, int64_t position);

/* The state after a run. */
struct job_record {
  double loss[JOB_STEPS], grad_norm[JOB_STEPS];
  float *params;
  int64_t n;
  int64_t copies; /* with `late`, those that were put off */
};
struct job_record job_run(struct comm *comm, const struct job_setup *setup);
void job_record_free(struct job_record *record);
void job_assert_same(const struct job_record *a, const struct job_record *b); /* bit for bit */

#endif
