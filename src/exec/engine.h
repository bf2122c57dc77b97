/* Behind exec.h: what the driver threads and the handlers of instructions share. Only for src/exec. */
#ifndef SLUICE_EXEC_ENGINE_H
#define SLUICE_EXEC_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/team.h"
#include "device/lane.h"
#include "exec/exec.h"

/* A group on each lane that needs one: two lanes never share a communicator. */
enum group { GROUP_GATHER, GROUP_REDUCE, GROUP_REPLICAS, GROUP_WORLD, GROUP_COUNT };

struct step_args { int64_t step, update, past, tokens; double lr; };

/* A lane and the thread that drives it (none for io: exec_step()'s caller). Times are written by that thread alone and read when it rests. */
struct driver {
  struct exec *exec;
  struct lane *lane;
  struct thread *thread;
  const int *instr; /* its instructions, in the plan's order */
  int n;
  int64_t busy_ns, wait_ns, op_ns[OP_COUNT];
};

struct exec {
  struct exec_config config;
  const struct plan *plan;
  void **pointer;             /* of each buffer */
  _Atomic int64_t *held;      /* of each buffer: the step (counted from create) whose parameters were gathered into it; 0: none now, -1: nothing is ever */
  struct optim_segments *segments; /* of each unit, for ADAM */
  struct comm_group *group[GROUP_COUNT];
  struct token_board *board;  /* a token for each instruction; the one after them counts the steps released */
  int *order;                 /* instructions by lane */
  struct driver driver[LANE_COUNT];
  int metrics;                /* index of METRICS, -1: none */
  int64_t released, next_step;
  int64_t past, tokens;       /* of generation, for the steps to come */
  int64_t cached;             /* tokens a sequence that are in the cache */
  struct step_args args[2];   /* of step n (since create) at n & 1: at most two are in flight */
  double step_tokens;         /* over all ranks */
  pthread_mutex_t mutex;      /* of the first failure */
  enum status failed;
  char failure[2048];
};

/* Run instruction `index` of step `n` on its lane. */
enum status exec_run(struct exec *exec, struct lane *lane, int index, int64_t n);

/* Run the instructions of one lane for step n, each after what it waits for. */
enum status driver_step(struct driver *driver, int64_t n);
/* The body of a lane's thread: every step that is released, until the board is aborted. */
enum status driver_loop(void *arg);

/* Keep the first failure with its sentence and stop every lane. Returns what exec_failure() does. */
enum status exec_fail(struct exec *exec, enum status status);
/* The first failure, with its sentence for the calling thread. */
enum status exec_failure(struct exec *exec);

#endif
