/* Private part of exec.h, shared by the driver threads and the handlers of instructions. Only for
 * src/exec. */
#ifndef SLUICE_EXEC_ENGINE_H
#define SLUICE_EXEC_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/team.h"
#include "device/lane.h"
#include "exec/exec.h"
#include "exec/watchdog.h"

struct step_args {
  int64_t step, update, past, tokens;
  double lr;
};

/* When something ran, in seconds since the first step was released. */
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
  struct stretch *ran[2];                /* its instructions in steps n and n - 1, at n & 1 */
  double busy_s, wait_s, op_s[OP_COUNT]; /* of steps whose times were taken */
  double comm_s[OP_COUNT], hidden_s;     /* of them: collectives between ranks */
  bool measures;                         /* operations, in a traced step; its thread's */
  struct op_counters_lane *counters;     /* NULL: nothing is counted */
};

/* An instruction's name, and its begin and end in steps n and n - 1, at n & 1. A token says that an
 * instruction is on its lane; that it is complete, its end. */
struct span {
  char name[96];
  struct mark *begin[2], *end[2];
  bool comm; /* a collective between ranks */
  int turn; /* the collective that is issued before this one, of turn_back steps before; -1: none */
  int turn_back;
  struct plan_sample *sample; /* of ENCODE that measures: memory that host and lanes reach */
};

/* A window, and the step (counted from create) whose parameters are in it. */
struct held {
  int buffer;
  int64_t step;
};

/* Times of step n are taken after the release of step n + 1, and count from the release of step n -
 * 1. */
enum { BASES = 3 };

struct exec {
  struct exec_config config;
  const struct plan *plan;
  void **pointer;    /* of each buffer */
  bool *is_window;   /* of each buffer: parameters are held in it from its GATHER (or FETCH) to the
                        unit's RELEASE */
  int *parts;        /* of each buffer: how many windows are it or parts of it */
  struct held *held; /* the windows that are held now, under `mutex` */
  int n_held;
  struct comm_group
      *group[GROUP_COUNT]; /* each on one lane: two lanes never share a communicator */
  struct token_board
      *board; /* a token for each instruction; the one after them counts the steps released */
  struct span *span;             /* of each instruction */
  int64_t (*spent)[OP_COUNTERS]; /* by each instruction in steps n and n - 1: exec_spent(); NULL:
                                    not counted, or not traced */
  struct mark *base[2][BASES]; /* release of step n at [.][n % BASES], on the device and on the host
                                  of lanes that work there */
  struct plan_sample *samples; /* of all instructions that measure; NULL: there are none */
  struct plan_metrics
      *results; /* [2] what METRICS of step n found, at n & 1: memory that host and lanes reach */
  int *order;   /* instructions by lane */
  struct driver driver[LANE_COUNT];
  int metrics; /* index of METRICS, -1: none */
  int64_t released, next_step;
  bool begun;                /* the step released last has not been ended by exec_end() */
  double begun_s;            /* when it was released */
  int64_t drained;           /* steps released before the last exec_drain() */
  int64_t timed;             /* steps (counted from create) whose times were taken */
  double release_s;          /* of step `timed`, as in struct stretch */
  double trace_s;            /* release of step `timed` since that of the first traced step */
  struct stretch *ran;       /* of all drivers */
  int64_t profile_from;      /* the first step of exec_profile() */
  int64_t profiled;          /* steps since the last exec_profile() */
  int64_t past, tokens;      /* of generation, for the steps to come */
  int64_t cached;            /* tokens a sequence that are in the cache */
  struct watchdog *watchdog; /* NULL: none */
  struct step_args args[2];  /* of step n (since create) at n & 1: at most two are in flight */
  double step_tokens;        /* over all ranks */
  pthread_mutex_t mutex;     /* of the first failure, and of the windows that are held */
  enum status failed;
  char failure[2048];
};

/* The device that a lane works on. */
struct device *exec_device_of(const struct exec *exec, enum plan_lane lane);
/* Whether the lane is a host's next to a device, whose work continues after its calls return. An
 * operation there has finished when its token says so. */
bool exec_is_beside(const struct exec *exec, enum plan_lane lane);

/* Find the memory of each buffer of the plan in the arenas; NULL for those on the disk. */
enum status exec_place_buffers(struct exec *exec);

/* Run instruction `index` of step `n` on its lane. */
enum status exec_run(struct exec *exec, struct lane *lane, int index, int64_t n);
/* The same outside of any step, on the current contents of its buffers, to try an operation.
 * `tokens`: tokens per sequence, in generation. */
enum status exec_try(struct exec *exec, struct lane *lane, int index, int64_t tokens);
/* And what UPDATE `index`, of whole matrices, makes of their direction. */
enum status exec_try_matrices(struct exec *exec, struct lane *lane, int index);

/* Run the instructions of one lane for step n, each after what it waits for. */
enum status driver_step(struct driver *driver, int64_t n);
/* Whether the collective that instruction `index` of step n comes after is still to be issued. Any
 * thread. */
bool exec_waits_for_turn(const struct exec *exec, int index, int64_t n);
/* The body of a lane's thread: every step that is released, until the board is aborted. */
enum status driver_loop(void *arg);

/* Wait until every lane has put step n on its way, or has completed it. */
enum status exec_wait_issued(struct exec *exec, int64_t n);
enum status exec_wait_complete(struct exec *exec, int64_t n);

/* Marks of all instructions. */
enum status exec_marks_create(struct exec *exec);
/* Step n is released now, for the times of its instructions. */
enum status exec_mark_release(struct exec *exec, int64_t n);
void exec_marks_destroy(struct exec *exec);
bool exec_is_traced(const struct exec *exec, int64_t step);
/* Where what instruction `index` spent in step n is kept; NULL: nowhere. */
int64_t *exec_spent(const struct exec *exec, int index, int64_t n);
/* Take the times of steps up to n, which are complete. */
enum status exec_take_times(struct exec *exec, int64_t n);

/* Whether what messages lose is measured in a step, if that is done every so many steps. Steps
 * count from 0 here, and from 1 in results. */
static inline bool exec_is_sampled(int64_t every, int64_t step)
{
  return (step + 1) % every == 0;
}

/* How long of `one` any of the n stretches `by` ran. They are in order and do not overlap. `from`
 * skips those that end before `one` begins; 0 at first, and kept for a later `one`. */
double exec_covered(struct stretch one, int n, const struct stretch *by, int *from);

/* Let rank 0 try the operations of the compute lane and everybody learn what it found. Collective.
 */
enum status exec_autotune(struct exec *exec);

/* Keep the first failure with its sentence and stop every lane. Returns what exec_failure() does.
 */
enum status exec_fail(struct exec *exec, enum status status);
/* The first failure, with its sentence for the calling thread. */
enum status exec_failure(struct exec *exec);

#endif
