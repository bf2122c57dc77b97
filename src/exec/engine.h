/* Private part of exec.h, shared by the driver threads and the handlers of instructions. Only for
 * src/exec. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/team.h"
#include "device/lane.h"
#include "exec/exec.h"
#include "exec/watchdog.h"
#include "layout/mesh.h"

struct step_args {
  int64_t step, update, past, tokens, targets;
  double lr;
};

/* An interval of work, in seconds since the first step was released. */
struct stretch {
  double begin_s, end_s;
};

/* A lane and the thread that drives it (none for io: exec_step()'s caller). */
struct driver {
  struct exec *exec;
  struct lane *lane;
  struct thread *thread;
  const int *instr; /* its instructions, in the plan's order */
  int n;
  struct stretch *ran[2];                   /* its instructions in steps n and n - 1, at n & 1 */
  struct op_counters_sum counted[OP_COUNT]; /* of steps whose times were read */
  bool measures;                            /* operations, in a traced step; its thread's */
  struct op_counters_lane *counters;        /* NULL: nothing is counted */
};

/* An instruction's name, and its begin and end in steps n and n - 1, at n & 1. The token means that
 * the instruction is on its lane. The mark `end` means that it is complete. */
struct span {
  char name[96];
  struct mark *begin[2], *end[2];
  bool comm; /* a collective between ranks */
  int turn;  /* the collective that is issued before this one, turn_back steps earlier; -1: none */
  int turn_back;
  struct plan_sample *sample; /* of an ENCODE that measures */
};

/* A window, and the step (counted from create) whose parameters are in it. */
struct held {
  int buffer;
  int64_t step;
};

/* Steps whose arguments and results are kept: those in flight, and the step before them, by whose
 * gradient speculative units change their masters. A power of 2. */
enum { KEPT = 4 };

/* Results that lanes write and the host reads: memory that both can access. METRICS and the tally
 * of step n are at n % KEPT. */
struct results {
  struct plan_metrics *metrics[KEPT];
  struct exactsum *targets[KEPT]; /* of each source, that this rank has loaded */
  struct fp8_tally tally[KEPT];
  struct plan_sample sample[]; /* of all instructions that measure */
};

/* Times of step n are read after the release of step n + 1, and count from the release of step n
 * - 1. */
enum { BASES = 3 };

/* A communicator for each set of ranks and each lane in the plan, so that two lanes never share
 * one. */
struct exec_group {
  mesh_set set;
  enum plan_lane lane;
  bool parts;    /* all-gathers or reduce-scatters, not barriers and sums alone */
  bool by_nodes; /* all-gathers in two hops */
  struct comm_group *comm;
};
enum { EXEC_GROUPS = 16 };

struct exec {
  struct exec_config config;
  const struct plan *plan;
  void **pointer[2]; /* of each buffer, in even and in odd steps */
  bool *is_window;   /* of each buffer: parameters are held in it from its GATHER (or FETCH) to the
                        unit's RELEASE */
  int *parts;        /* of each buffer: number of windows that are it or parts of it */
  struct held *held; /* the windows that are held now, under `mutex` */
  int n_held;
  struct exec_group group[EXEC_GROUPS];
  int n_groups;
  struct token_board
      *board; /* a token for each instruction; the one after them counts the steps released */
  struct span *span;             /* of each instruction */
  int64_t (*spent)[OP_COUNTERS]; /* counts of each instruction in steps n and n - 1: exec_spent();
                                    NULL: not counted */
  struct mark *base[2][BASES]; /* release of step n at [.][n % BASES], on the device and, for lanes
                                  that work there, on the host */
  struct results *results;
  int32_t *sources; /* [KEPT][micros][B] of each sequence: struct model_batch; NULL: one source */
  int *order;       /* instructions by lane */
  struct driver driver[LANE_COUNT];
  int metrics; /* index of METRICS, -1: none */
  int tallied; /* index of the last instruction with products in fp8, -1: none. After it the tally
                  of the step goes to the results. */
  int64_t released, next_step;
  bool begun;                  /* exec_end() has not ended the step released last */
  double begun_s;              /* when it was released */
  int64_t drained;             /* steps released before the last exec_drain() */
  int64_t settled;             /* steps whose gradients all masters have */
  int64_t timed;               /* steps (counted from create) whose times were read */
  double release_s;            /* of step `timed`, as in struct stretch */
  double trace_s;              /* release of step `timed` since that of the first traced step */
  struct stretch *ran;         /* of all drivers */
  int64_t profile_from;        /* the first step of exec_profile() */
  struct exec_profile profile; /* since the last exec_profile() */
  int64_t past, tokens;        /* of generation, for the next steps */
  int64_t cached;              /* tokens per sequence in the cache */
  struct watchdog *watchdog;   /* NULL: none */
  struct step_args args[KEPT]; /* of step n (since create) at n % KEPT */
  int64_t targets;             /* over all ranks, of the next steps */
  pthread_mutex_t mutex;       /* of the first failure, and of the windows that are held */
  struct status_record failure;
};

/* The device that a lane works on. */
struct device *exec_device_of(const struct exec *exec, enum plan_lane lane);
/* Whether this is a host lane next to a device whose work continues after calls return. An
 * operation of such a lane has finished when its token is reached. */
bool exec_is_beside(const struct exec *exec, enum plan_lane lane);
/* The communicator of a set on a lane; NULL: no instruction has it. */
struct comm_group *exec_group(const struct exec *exec, mesh_set set, enum plan_lane lane);

/* Find the memory of each buffer of the plan in the arenas; NULL for those on the disk. */
enum status exec_place_buffers(struct exec *exec);

/* The buffer into which an instruction brings parameters of its unit; -1: none. */
int exec_window_of(const struct instr *instr);
/* Run instruction `index` of step `n` on its lane. */
enum status exec_run(struct exec *exec, struct lane *lane, int index, int64_t n);
/* The same outside any step, on the current contents of its buffers, to try an operation. `tokens`:
 * tokens per sequence, in generation. */
enum status exec_try(struct exec *exec, struct lane *lane, int index, int64_t tokens);
/* Change masters and states by the gradients of the last step that still wait. No step is running.
 */
enum status exec_settle(struct exec *exec);
/* The same for the transformation of the direction by UPDATE `index` of whole matrices. */
enum status exec_try_matrices(struct exec *exec, struct lane *lane, int index);

/* Run the instructions of one lane for step n, each after its waits. */
enum status driver_step(struct driver *driver, int64_t n);
/* Whether the collective before instruction `index` of step n has not been issued yet. Any
 * thread. */
bool exec_waits_for_turn(const struct exec *exec, int index, int64_t n);
/* The body of a lane's thread: runs every released step, until the board is aborted. */
enum status driver_loop(void *arg);

/* Wait until every lane has issued step n, or has completed it. */
enum status exec_wait_issued(struct exec *exec, int64_t n);
enum status exec_wait_complete(struct exec *exec, int64_t n);

/* Marks of all instructions. */
enum status exec_marks_create(struct exec *exec);
/* Step n is released now, for the times of its instructions. */
enum status exec_mark_release(struct exec *exec, int64_t n);
void exec_marks_destroy(struct exec *exec);
bool exec_is_traced(const struct exec *exec, int64_t step);
/* The place for the counts of instruction `index` in step n; NULL: none. */
int64_t *exec_spent(const struct exec *exec, int index, int64_t n);
/* Read the times of steps up to n, which are complete. */
enum status exec_take_times(struct exec *exec, int64_t n);

/* Rank 0 tries the operations of the compute lane, and all ranks get its results. Collective.
 */
enum status exec_autotune(struct exec *exec);

/* Keep the first failure with its error text and stop every lane. Returns the same as
 * exec_failure().
 */
enum status exec_fail(struct exec *exec, enum status status);
/* The first failure. Sets its error text for the calling thread. */
enum status exec_failure(struct exec *exec);
