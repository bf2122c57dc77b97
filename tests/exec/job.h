/* A small GPT-2 or Llama on the ranks of a test: what the tests of the executor share. Failures
 * inside are failures of the running test. A line of words sets up a job: fixture_point() of
 * tests/plan/fixture.h, with the ranks of the communicator. */
#pragma once

#include <stdarg.h>
#include <stdio.h>

#include "exec/exec.h"
#include "tests/plan/fixture.h"

enum {
  JOB_BATCH = 180,
  JOB_SEQUENCE = 4,
  JOB_STEPS = 3,
  JOB_BLOCKS = 3,
  JOB_VOCAB = 37,
  JOB_CONTEXT = 12
};

/* The state after a run. */
struct job_record {
  double loss[JOB_STEPS], grad_norm[JOB_STEPS];
  float *params;
  int64_t n;
  int64_t copies; /* with `late`, those that were put off */
};

struct job {
  struct point setup;
  struct comm *comm;
  struct device *device, *host; /* host: NULL: none of its own */
  struct model *model;
  struct deck deck;
  struct plan *plan;
  struct exec_memory memory;
  struct exec *exec;
  int64_t past, tokens; /* of the next step in generation: job_generate() */
  struct job_record record;
};

#define JOB_FORMAT(n) __attribute__((format(printf, n, n + 1)))

/* The text of a variadic function. */
#define JOB_TEXT(text, format)                                                                     \
  char text[400];                                                                                  \
  va_list args;                                                                                    \
  va_start(args, format);                                                                          \
  vsnprintf(text, sizeof text, format, args);                                                      \
  va_end(args)

/* The job of mpirun, once a program. */
struct comm *job_start_mpi(void);

/* The start and end of a test program that has it as job_comm. */
extern struct comm *job_comm;
int job_mpi_start(void **state);
int job_mpi_stop(void **state);

/* Words that each setup begins with. */
extern const char *job_words;

/* Plan, arenas and executor, and the initial parameters. */
void job_open(struct job *job, struct comm *comm, const char *format, ...) JOB_FORMAT(3);
void job_close(struct job *job);
/* The same in two halves, for tests that do something to the plan in between. */
void job_plan(struct job *job, struct comm *comm, const char *format, ...) JOB_FORMAT(3);
enum status job_create_exec(struct job *job);
/* Starts the executor again over the same parameters. `with` sets trace, trace_arg, trace_from,
 * trace_to, counters, timeout_s, start, and load with load_arg. */
enum status job_reopen(struct job *job, const struct exec_config *with);

/* Step `step`, whose results the record of the job has then. The learning rate is the same in all
 * steps. */
struct exec_result job_step(struct job *job, int64_t step);

/* A step of generation: tokens [past, past + tokens) of the sequences of step 0, and the logits of
 * the last one. */
const float *job_generate(struct job *job, int64_t step, int64_t past, int64_t tokens);

/* The model's parameters on every rank, one after another in the order of the model, whatever is
 * frozen: job_parameters() floats (mem_free). All who have an element must agree on it. Drains.
 * Collective. */
float *job_collect(struct job *job);
int64_t job_parameters(const struct job *job);

/* The model called by hand, without a plan, with the initial parameters of whole units. Memory from
 * job_hand_room() ends with it. */
struct job_hand {
  const struct job *job;
  struct lane *lane;
  float *params[JOB_BLOCKS + 2];
  void *block[32];
  int blocks;
};
void job_hand_create(struct job_hand *hand, const struct job *job);
void *job_hand_room(struct job_hand *hand, size_t bytes);
void job_hand_destroy(struct job_hand *hand);

/* exec_load of every job, with the job as its argument: a pure function of (step, global sequence,
 * position). Targets: all, some of most sequences, those of the first half of the sequences, or all
 * of a batch whose second half repeats the first. In generation sequences have as many tokens as
 * job.tokens, from job.past on. */
enum status job_load(void *arg, int64_t step, int micro, const struct model_batch *out);
int64_t job_targets(const struct job *job); /* of a step */
int32_t job_token(int64_t step, int64_t sequence, int64_t position);

/* Closes the job. */
struct job_record job_end(struct job *job);
/* JOB_STEPS steps, all finite. */
struct job_record job_run(struct comm *comm, const char *format, ...) JOB_FORMAT(2);
void job_record_free(struct job_record *record);
/* The same bits: a record, which it frees, or the run of a setup on job_comm. With `late`, copies
 * were put off. */
void job_expect(const struct job_record *expected, struct job_record record);
void job_same(const struct job_record *expected, const char *format, ...) JOB_FORMAT(2);
