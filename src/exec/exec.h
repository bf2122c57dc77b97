/* Runs a plan on lanes. Each lane has a driver thread (the io lane uses the calling thread). It
 * runs its instructions in order and waits for the tokens that they name. This is the only place
 * that orders work. It knows no policy: op and operands define an instruction. A running step
 * allocates nothing. */
#pragma once

#include "comm/comm.h"
#include "exec/op_counters.h"
#include "optim/optim.h"
#include "plan/plan.h"

struct exec;
struct watchdog;

/* The arenas. Plans of one job (train, eval) share the persistent one, so their persistent buffers
 * must have the same layout (checked). */
struct exec_memory {
  void *persistent[TIER_COUNT],
      *transient[TIER_COUNT]; /* For TIER_DISK both are NULL, because the arenas are in `store`, the
                                 transient one after the persistent one. For TIER_SHARED `transient`
                                 is this rank's. */
  int64_t persistent_bytes[TIER_COUNT], transient_bytes[TIER_COUNT];
  struct device *device;
  struct comm_shared *shared; /* the persistent arena of TIER_SHARED; NULL: none */
  struct comm_shared *
      regions; /* the transient arenas of the members of a group, one after the other; NULL: none */
  int64_t region_bytes; /* distance between the arenas of two members */
  struct store *store;  /* NULL: none */
};
/* Enough for every plan given. `nvme`: the folder for TIER_DISK. STATUS_MEMORY names tier, need and
 * the deck keys that would make it fit. Collective. */
enum status exec_memory_create(struct device *device, struct comm *comm, const char *nvme,
                               const struct plan *const plans[], int n, struct exec_memory *out);
void exec_memory_destroy(struct exec_memory *memory); /* takes a zeroed one; Collective */
/* Reads or writes a buffer of a plan in any tier. The other side is host memory, or device memory
 * if the device's memory is the host's. No step may be running. Local. */
enum status exec_memory_read(const struct exec_memory *memory, const struct plan *plan, int buffer,
                             int64_t offset, int64_t bytes, void *out);
enum status exec_memory_write(const struct exec_memory *memory, const struct plan *plan, int buffer,
                              int64_t offset, int64_t bytes, const void *data);

/* The input of a step. `load` fills the buffers of one micro-batch of one step. Buffers
 * that the plan does not have are NULL. Generation has only tokens, as many per sequence as
 * exec_set_window() set. `load` runs on the thread that calls exec_begin(). Documents and positions
 * are then checked. */
typedef enum status exec_load(void *arg, int64_t step, int micro, const struct model_batch *out);

/* One instruction of a traced step, in seconds since the release of the first traced step.
 * `rested`: no earlier step was running when the step was released. `spent`: the result of
 * op_counters_read(), valid during the call; NULL: nothing is counted. */
struct exec_event {
  int64_t step;
  int instr;
  bool rested;
  double begin_s, end_s;
  const int64_t *spent;
};
typedef void exec_trace(void *arg, const struct exec_event *event);

struct exec_config {
  const struct plan *plan;
  const struct model *model;
  struct device *device;
  struct device
      *host; /* for lanes that work on host memory; NULL: `device`, whose memory is host memory */
  struct comm *comm;
  struct exec_memory *memory;
  double copy_rate; /* simulated bytes/s of copies between tiers in one memory; 0: no limit */
  exec_load *load;
  void *load_arg;
  int threads;      /* of the compute, reduce and host lanes */
  const int *cores; /* `threads` logical CPUs that the compute lane's team shares. If a separate
                       device computes, all threads of the lanes that compute on the host share
                       them. The host lane's thread i then has the CPU cores[i] to itself if no CPU
                       is named twice. NULL: all CPUs of this process */
  int io_cpus; /* of the thread that reads and writes tiers on disk; 0: all CPUs of this process */
  const int *io_cores;
  exec_trace *trace; /* NULL: none. Called by exec_step() and exec_drain() for every instruction of
                        steps trace_from .. trace_to - 1 when its times are known */
  void *trace_arg;
  int64_t trace_from, trace_to;
  struct op_counters
      *counters; /* counters for every instruction; NULL: none. With counters, the same thread must
                    call exec_create(), exec_step() and exec_destroy() */
  double timeout_s; /* > 0: if a running step makes no progress for so long, the job ends with a
                       report (exec/watchdog.h) */
  struct watchdog *start; /* reports the progress of exec_create() to it; NULL: no reports */
};

/* Bytes of shared memory that the groups of a started plan hold on a node of `local_ranks` ranks
 * (comm_group_shared_bytes()). Local. */
int64_t exec_groups_shared_bytes(const struct plan *plan, int local_ranks);

/* Checks that all ranks hold plans with the same collectives. On a device that measures algorithms,
 * rank 0 tries the plan's operations on transient memory and gradients, and the other ranks get its
 * results. Only parameters, moments and frozen parameters keep their values. Collective. */
enum status exec_create(const struct exec_config *config, struct exec **out);
void exec_destroy(struct exec *exec); /* drains; takes NULL; Collective */

struct exec_result {
  double loss;      /* mean over the step's targets, bitwise identical on every rank */
  double loss_sum;  /* its sum over the tokens that have a target */
  double grad_norm; /* before clipping */
  bool finite;      /* false: immediate updates have been applied, others have changed nothing */
  /* Of each source of the plan's data: its part of loss_sum without rounding, and the number of its
   * targets. The executor's, valid until the next step. */
  const struct exactsum *loss_exact, *targets_exact;
  double margin, accuracy; /* of pairs: the mean margin, and the share of those above 0 */
  double seconds;          /* from the release of this step to its metrics */
  bool fp8;                /* units have products in fp8 */
  struct fp8_tally tally;  /* of the operands that this rank coded in the step */
};

/* First, exec_begin() releases step `step` with learning rate `lr` and drives the io lane. The rest
 * of the step needs nothing from the caller, which may do other work. Then exec_end() returns when
 * the step's metrics are known. Updates may still be running. For a plan without METRICS it returns
 * when the whole step is complete, with a zeroed result. One call of exec_step() does both.
 * `update` is the 1-based number of the optimizer's update (steps that were skipped as not finite
 * do not count). The first call may have any `step`, later ones count up by one. Collective. After
 * a failure of this rank the lanes have stopped, and peers may wait in a collective forever: call
 * comm_abort(). */
enum status exec_begin(struct exec *exec, int64_t step, int64_t update, double lr);
enum status exec_end(struct exec *exec, struct exec_result *result);
enum status exec_step(struct exec *exec, int64_t step, int64_t update, double lr,
                      struct exec_result *result);
/* The step that would come next is not run, and changes nothing. No step is running. Local. */
void exec_skip(struct exec *exec);
/* The error of the messages of a unit's gradient in the last step that measured it, on this rank:
 * sums over all messages, and the residual. Normalized. Zeros if nothing is measured. Call it after
 * exec_end(). Local. */
void exec_read_sample(const struct exec *exec, int unit, struct plan_sample *out);
/* Wait until every instruction released so far is complete, and change the masters of speculative
 * units by the gradients that wait for the next step. Then all tiers are at rest. Local. */
enum status exec_drain(struct exec *exec);

/* The window for generation (PLAN_GENERATE) of the steps released from now on. It has `tokens` new
 * tokens after `past` tokens that earlier steps put into the cache. `tokens` is 1 ..
 * shape.sequence, and `load` fills as many per sequence, contiguously. The logits are those of the
 * last new token. A past of 0 starts again. The initial values are 0 and shape.sequence. No step
 * may be running. A step refuses values that do not fit: STATUS_INTERNAL. */
void exec_set_window(struct exec *exec, int64_t past, int64_t tokens);

/* The number of targets of each step that is released from now on: of all ranks and micro-batches,
 * at least 1 (checked: STATUS_INTERNAL). It divides the loss. Before the first call it is the
 * number of tokens of a step. METRICS adds up the targets that the ranks have loaded, and
 * exec_end() refuses another sum. */
enum status exec_set_targets(struct exec *exec, int64_t targets);

/* The address of a buffer of the plan: in device memory, except tokens and logits. */
void *exec_pointer(const struct exec *exec, int buffer);

/* Rate of the link between the members of this rank's shard group, in bytes per second, counted as
 * the bus bandwidth of NCCL's tests. It comes from an all-gather of up to 256 MiB of the transient
 * memory; 0 if nothing is gathered between ranks. Call it before the first step. Collective. */
enum status exec_measure_link(struct exec *exec, double *bytes_s);

/* Times since the last call, in seconds. busy_s: a lane ran instructions. Collectives include the
 * wait for peers. wait_s: a lane waited for tokens between its first and its last instruction of a
 * step. For the compute lane, if the device counts them: GEMM time and operations. Only
 * after exec_drain(). */
struct exec_profile {
  double busy_s[LANE_COUNT], wait_s[LANE_COUNT], op_s[OP_COUNT], matmul_s, matmul_flops, steps;
  double comm_s[OP_COUNT]; /* collectives between ranks, with their waits for other ranks */
  double hidden_s;         /* part of comm_s while an instruction of the compute lane ran */
};
void exec_profile(struct exec *exec, struct exec_profile *out);
/* Leave steps before `step` out of the profile, except for matrix products. By default all steps
 * count. Local. */
void exec_profile_from(struct exec *exec, int64_t step);

/* Counters of the instructions of a lane so far, [OP_COUNT]; NULL: the lane is not counted. Only
 * after exec_drain(). Local. */
const struct op_counters_sum *exec_counted(const struct exec *exec, enum plan_lane lane);

/* Time of the operations of the traced steps, over all lanes that a thread drives; zeros if the
 * device does not measure. Only after exec_drain(). Local. */
enum status exec_measured(struct exec *exec, struct class_total total[CLASS_COUNT]);
