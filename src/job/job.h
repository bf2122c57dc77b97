/* A job: the common part of train, eval, generate and bench. Deck -> device -> model -> plans ->
 * memory -> executors. Its state as named tensors: job/state.h. */
#pragma once

#include "comm/comm.h"
#include "exec/exec.h"
#include "exec/trace.h"
#include "io/tokens/tokens.h"
#include "job/prefetch.h"
#include "topo/topo.h"

/* A job's device ("host", "cuda"), its compute type, and the transport between its ranks ("mpi",
 * "nccl"). */
struct job_place {
  const char *device;
  enum dtype compute;
  const char *transport;
  const char *precision; /* "fp32", "bf16", or "fp8": bf16 with products in fp8 */
};
/* From run.device, run.compute and comm.backend, on a node with `local_ranks` of the `ranks` ranks,
 * which all see its `gpus` GPUs. STATUS_USAGE or STATUS_UNSUPPORTED names settings that contradict
 * each other, or a missing part. Local, pure. */
enum status job_choose_place(const struct deck *deck, int ranks, int local_ranks, int gpus,
                             struct job_place *out);
/* Whether a rank on a device with such products in fp8 uses one scale per operand, by
 * run.fp8_scales. `product` names the device in the text of STATUS_UNSUPPORTED. Local, pure. */
enum status job_fp8_scales(const struct deck *deck, enum fp8_scales has, const char *product,
                           bool *tensor);
/* run.device=auto must mean the same on every rank: STATUS_USAGE if only some ranks see a GPU.
 * Collective. */
enum status job_check_same_place(struct comm *comm, const struct deck *deck, bool gpu);
/* Number of GPUs that this process sees, 0 if the deck has run.device=host. STATUS_LIBRARY if a
 * broken driver cannot count them. Local. */
enum status job_count_gpus(const struct deck *deck, int *out);

/* PCI addresses of the GPUs that this process sees, by ordinal, for topo_record(). Local. */
struct job_buses {
  int n;
  char text[TOPO_GPUS][24];
  const char *bus[TOPO_GPUS];
};
enum status job_list_buses(int gpus, struct job_buses *out);
/* The deck's settings for the cores of its ranks. */
struct topo_options job_topo_options(const struct deck *deck);
/* This rank's share of its machine, which it splits with the other ranks there. Collective. */
enum status job_create_topo(struct comm *comm, const struct job_buses *buses,
                            const struct topo_options *options, struct topo **out);

/* Plans by enum plan_mode. JOB_WARMUP: the training plan of the first compress.warmup updates,
 * which encode no gradients. */
enum { JOB_WARMUP = PLAN_GENERATE + 1, JOB_PLANS };

struct job {
  struct comm *comm;
  struct deck *deck;
  struct deck_shape shape; /* of the training plan, or of the first requested plan */
  struct topo *topo;
  struct job_place place;
  struct device *device;
  struct device
      *host;  /* for work in host memory next to a separate device; NULL: none, or `device` */
  char *nvme; /* folder for TIER_DISK */
  struct model *model;
  char *base; /* of adapters: a folder, a checkpoint, "": initial values; NULL: not loaded yet */
  uint64_t base_sum;            /* its checksum */
  float *scales;                /* of frozen parts in nf4 (compress/nf4.h), unit by unit */
  struct plan *plan[JOB_PLANS]; /* NULL if not requested */
  struct exec *exec[JOB_PLANS];
  /* One per plan that loads tokens. NULL in generation, where a step decides what the next one
   * loads. */
  struct prefetch *prefetch[JOB_PLANS];
  struct exec_memory memory;
  struct op_counters *counters; /* run.counters, for the training plan's executor, or NULL */
  struct trace_facts traced;
  struct trace_run *trace; /* of the training plan's executor, if train.trace is set */
  struct watchdog *start;  /* NULL: nothing watches the work before the steps */
  char *rates_of; /* of rank 0: machine and model of job_rates(); NULL: it was not called */
  int threads;
  double predicted_s; /* of a training step, by the choice of settings; 0: nothing was chosen */
  int64_t device_used, device_all; /* bytes of a device with memory of its own when the job took its
                                      place, before this process has loaded libraries for it; all
                                      0: unknown */
  int64_t resident_start;          /* VmRSS before the first allocation of the job */
};

/* Fills topo, place, device, host and threads of a job whose comm and deck are set, as the keys
 * run, topo and comm say, and sets the transport. Collective. */
enum status job_take_place(struct job *job);

/* The plans that a job needs. Training evaluates too. JOB_BENCH: training steps without loading and
 * saving; the caller has filled deck->rows. JOB_EVAL: data.micro_batch sequences of a rank at a
 * time, of data.sequence tokens (0: at most 8; model.context). JOB_GENERATE: one sequence.
 * data.sequence tokens fit into the cache (0: model.context, at most 2048), and a step takes at
 * most 256 new tokens (plan->input.capacity, plan->input.shape.sequence). */
enum job_use { JOB_TRAIN, JOB_TRAIN_AND_EVAL, JOB_EVAL, JOB_GENERATE, JOB_BENCH };
/* The use of a training run: with an evaluation, also if only the reference of dpo needs it. Pure.
 */
enum job_use job_training(const struct deck *deck);
/* Whether an evaluation sums the losses of each row apart. Pure. */
bool job_scores_rows(const struct deck *deck);

/* A job of which only the watchdog of its start exists. `deck` must outlive it. The caller destroys
 * *out, whatever the status. Collective. */
enum status job_begin(struct comm *comm, struct deck *deck, struct job **out);
/* Everything up to memory; parameters are zero. Keys of the deck that the program chooses get their
 * values. Logs the properties of the job first. Collective. */
enum status job_create(struct job *job, enum job_use use);
/* Checks whether a job can start as far as its memory: its place, cores, device, model and plans,
 * and whether they fit. Binds the calling thread. It logs the same messages as job_create().
 * Collective. */
enum status job_check(struct job *job, enum job_use use);
/* Frees model, plans and memory of a job that has not started. job_create() may make others.
 * Collective. */
void job_clear(struct job *job);
void job_destroy(struct job *job); /* takes NULL; Collective */

/* Whether the rows of a source hold whole documents. Local, pure. */
bool job_packs(const struct deck *deck, const struct token_set *set);
/* Random tokens for a deck whose model is known, with documents of this mean length: see
 * token_set_make(). Local. */
enum status job_make_data(const struct deck *deck, int64_t documents, struct token_set **out);
/* Fills deck->rows from `made`, or if it is NULL from the folders that the deck names, as far as
 * they are there. A mean is that of the first documents of a source. Collective. */
enum status job_look_at_data(struct comm *comm, struct deck *deck, struct token_set *made);

/* The model that a deck describes, with its frozen parameters, packed for `ranks` ranks. `compute`
 * is the type of a job_place. Local. */
enum status job_model(const struct deck *deck, enum dtype compute, int ranks, struct model **out);
/* Strategy, shape, capacity and prefetch of a plan, from its mode and ranks. Local. */
enum status job_shape(const struct deck *deck, enum job_use use, int local_ranks,
                      struct plan_input *input);

/* Logs the keys that have no effect together with the other keys: a warning for keys on the command
 * line, information for keys of a deck. Local. */
void job_warn_without_effect(const struct deck *deck, enum job_use use, int n,
                             const struct plan *const plans[]);

/* The folder for data on NVMe: tiers.nvme, or one in run.dir. mem_free; NULL if memory is out.
 * Local. */
char *job_nvme_folder(const struct deck *deck);
/* Whether a deck's training puts data there. */
bool job_uses_disk(const struct deck *deck);

/* The size of the arenas of one job's plans on this rank, over all tiers of memory. Local. */
int64_t job_arena_bytes(int n, const struct plan *const plans[]);

/* Memory that a rank with a separate device should be able to lock for RDMA. With less, it cannot
 * register the memory of one message of a unit. */
#define JOB_LEAST_LOCK (INT64_C(1) << 30)
/* Resources of a node for all its ranks, except device memory; -1: unknown, or unlimited. */
struct job_limits {
  int64_t device; /* of one rank, for its arenas: device_model_room() */
  int64_t host;
  int64_t shared;   /* room in the file system of memory that processes share */
  int64_t disk;     /* room in `nvme` */
  int64_t lock;     /* of one rank: limit of locked memory (RLIMIT_MEMLOCK) */
  bool rdma;        /* devices for RDMA reach the ranks of other nodes */
  bool disk_shared; /* all nodes share the disk, so their ranks need the room together */
  bool no_folder;   /* `nvme` does not exist yet, and `disk` is the room where it would be made */
};
/* The part of `available` host memory that a job may use if its control groups set the limit
 * `limit`: the smaller of both. If the memory that the machine shows grows with use
 * (mem_total_grows()), the limit alone counts. -1: unknown. */
int64_t job_host_room(int64_t available, int64_t limit, bool grows);
/* Whether the arenas of plans fit within the limits. The host's arenas count with the copy of the
 * state that is used to load and save a separate device. STATUS_MEMORY names need and limit for
 * each memory. With `cures` it also names deck keys that make all of it fit, in the order of
 * their cost. Plans made with these keys prove it. Two cases only log a warning. The first is
 * that copy, if nothing will be saved or loaded. The second is memory beyond RLIMIT_MEMLOCK that
 * is registered with a separate device or for RDMA, because the registration may be refused.
 * Local, pure. */
enum status job_check_limits(const struct job *job, enum job_use use, int n,
                             const struct plan *const plans[], const struct job_limits *limits,
                             bool cures);
/* The same with the current limits. STATUS_IO if plans need a folder for NVMe that cannot be made
 * or written to. STATUS_USAGE if no key names such a folder, and the default in run.dir would not
 * be on the node's own disk. The lowest rank for which it does not fit looks for cures.
 * Collective. */
enum status job_check_fits(const struct job *job, enum job_use use, int n,
                           const struct plan *const plans[]);
/* The planned size of this job's arenas on this rank. Local. */
int64_t job_planned_bytes(const struct job *job);

/* The plan whose persistent buffers hold the state (those of a job's plans lie at the same
 * place). */
const struct plan *job_state_plan(const struct job *job);

/* Starts lanes and groups of one plan. `load` reads the input of its steps. In generation it runs
 * on the thread that runs the steps. Otherwise it runs one step ahead on a thread of its own, as
 * job_read_ahead() announces. With train.trace the training plan's steps are traced into the folder
 * `trace` of run.dir. Collective.
 */
enum status job_start(struct job *job, enum plan_mode mode, exec_load *load, void *arg);
/* Call job_start_warmup() after job_start() of the training plan, in a job with a plan for the
 * warm-up. Steps begin with that plan. job_end_warmup() waits for the last of them. Collective. */
enum status job_start_warmup(struct job *job);
enum status job_end_warmup(struct job *job);
/* The executor of the next training step. */
static inline struct exec *job_trainer(const struct job *job)
{
  return job->exec[JOB_WARMUP] ? job->exec[JOB_WARMUP] : job->exec[PLAN_TRAIN];
}
/* The next `steps` steps of that plan are those from `first` on: prefetch_begin(). Local. */
void job_read_ahead(struct job *job, enum plan_mode mode, int64_t first, int64_t steps);
/* Wait until the prefetch thread has read all micro-batches of a step, or return its failure.
 * Local.
 */
enum status job_await_read(struct job *job, enum plan_mode mode, int64_t step);
/* The next step of the plan, which was read, is not run. Local. */
void job_skip_step(struct job *job, enum plan_mode mode, struct exec *exec);
/* Floating-point operations of matrix products in a training step of all ranks, forward and
 * backward: of `tokens` tokens that are not padding, in documents whose lengths have this sum of
 * squares; 0: of whole rows. Local. */
double job_step_flops(const struct job *job, int64_t tokens, double squares);
/* Asks the kernel for the NUMA nodes of touched pages of arenas in host memory. Logs that the pages
 * are near the cores of rank 0, or the share that is not on the lowest rank with such pages. Logs
 * also if the kernel gives no answer. Logs nothing if nothing is bound. Local. */
void job_say_where_memory_lies(const struct job *job);
/* Ends the trace after the steps released so far, and completes its files. Without one *out is
 * zeroed. Local. */
enum status job_end_trace(struct job *job, struct trace_summary *out);
