/* The run, which the files of the training loop share. Private to src/train. */
#ifndef SLUICE_TRAIN_PRIVATE_H
#define SLUICE_TRAIN_PRIVATE_H

#include "io/results/events.h"
#include "io/results/results.h"
#include "train/checkpoint_writer.h"
#include "train/evaluate.h"
#include "train/stats.h"
#include "train/stop.h"
#include "train/train.h"

/* A step that was run. */
struct train_step {
  struct exec_result result;
  double lr, seconds;
  bool untold; /* results.jsonl and the line of progress have not heard of it yet */
};

/* The counts since this start, for the record of the run. */
struct train_metrics {
  int64_t timed;               /* steps after the warm-up */
  double steps_s, timed_s;     /* seconds of all steps, and of those */
  int64_t nonfinite, clipped;  /* steps */
  double val_loss, val_ppl;    /* of the last evaluation, NAN: none yet */
  int64_t target_step;         /* the first evaluation that reached eval.target, 0: none yet */
  double target_s;             /* steps_s at that evaluation */
  struct plan_sample *sample;  /* of each unit, over all ranks; NULL: nothing measures */
  int64_t samples;             /* units times steps that were measured */
  double error, cosine;        /* sums over them */
  double residual;             /* squared norm of all residuals at the last of them */
  struct exec_profile profile; /* of the timed steps, as far as it was taken */
  double profiled_s;           /* timed_s when it was taken last */
  int64_t profiled;            /* timed, likewise */
};

/* What lanes did in the timed steps since the last time. */
struct train_lanes {
  int64_t steps;
  double seconds;          /* of these steps */
  double busy[LANE_COUNT]; /* shares of them in which a lane of this rank ran an instruction */
  int slowest, fastest;    /* ranks, by the time in which their compute lanes did */
  double slowest_s, fastest_s;
};

/* Memory in use on this rank. */
struct train_memory {
  double looked_s;      /* clock_s() of the last look, 0: none yet */
  int64_t host, device; /* resident, -1: unknown; on the device */
  int64_t host_peak, device_peak; /* largest of these looks */
};

/* A run under way. */
struct train_run {
  struct comm *comm;
  const struct deck *deck;
  struct job *job;
  struct evaluator evaluator;
  struct data_order order;
  struct token_stream learned; /* training data of the checkpoint that is resumed */
  char *from;                  /* that checkpoint; NULL: a new run */
  struct results *results;     /* rank 0 */
  struct events *events;       /* rank 0: for TensorBoard; NULL: none */
  struct checkpoint_writer *writer;
  struct stats stats;
  struct train_metrics metrics;
  struct train_memory memory;
  char *checkpoint_dir, *results_path, *learned_path;
  int64_t first, step, skipped,
      bad;        /* step: completed steps; bad: how many of the last ones were skipped in a row */
  int64_t warmed; /* steps of the warm-up (compress.warmup) since this start */
  int64_t samples;
  struct train_step last;
  double first_loss;              /* of the first step since this start */
  double eval_loss, best_loss;    /* the last and the lowest validation loss since this start */
  int64_t best_step;              /* of best_loss, 0: no validation yet */
  double start_s, save_s, eval_s; /* save_s, eval_s: of the last one, 0: none yet */
  struct stop_file stop_file;     /* rank 0 */
  double end_s; /* of the job, in seconds since 1970; INFINITY: unknown. Rank 0's is heeded */
  int lock;     /* rank 0: the run folder, while this run writes it; -1: not open */
  bool made_folder;   /* rank 0: this run made the run folder, and has its lock */
  int64_t saved_step; /* of the newest checkpoint of this run, -1: none */
};

static inline bool train_leads(const struct train_run *run)
{
  return comm_rank(run->comm) == 0;
}

/* Whether what is done `every` so many steps (0: never) is done after that one. */
static inline bool train_is_due(int64_t step, int64_t every)
{
  return every > 0 && step % every == 0;
}

/* Where things lie in the run folder. Local. */
enum status train_folder_paths(struct train_run *run);
/* Makes the folder and locks it, before anything is written to it. STATUS_USAGE while another run
 * holds the lock, from the beginning of its start on. A file system without locks is warned of. On
 * rank 0. */
enum status train_folder_take(struct train_run *run);
/* The lock, and a folder that this run made and left empty. On any rank. */
void train_folder_release(struct train_run *run);
/* STATUS_USAGE if the folder holds a run already: a checkpoint, or results of a step. The folder of
 * a run that failed earlier is used: its log is appended to, and its deck is replaced.
 * Collective. */
enum status train_folder_refuse_used(struct train_run *run);
/* Writes deck and log, keeps the algorithms that the device has chosen, and opens the results and
 * the event file. Records after the run's step are removed. On rank 0. */
enum status train_folder_open(struct train_run *run);
/* A run that goes on computes with the algorithms that it began with, whatever has been learned
 * elsewhere since. Another device, or another version of its libraries, has its own. On rank 0. */
enum status train_folder_recall(const struct train_run *run);

/* Opens the training data. A resumed run must see the samples that it would have seen without the
 * stop, unless data.reorder allows others. Collective. */
enum status train_open_data(struct train_run *run);
/* The state that the run begins with, and step and samples with it; `resume` as in train_run().
 * Collective. */
enum status train_start_state(struct train_run *run, const char *resume);
/* One at a time. Without steps to come (`leaving`) there is nothing to write behind. After a step
 * that was skipped older checkpoints stay: what is saved then may be a model that is lost.
 * Collective. */
enum status train_save(struct train_run *run, bool leaving);
/* Waits for the checkpoint that is written during the steps. Collective. */
enum status train_finish_save(struct train_run *run);

/* Tokens of one step of all ranks. */
int64_t train_step_tokens(const struct train_run *run);

/* The first record of each start, with names of hosts and GPUs of all ranks. Collective. */
enum status train_record_start(struct train_run *run);
/* Lines of results.jsonl, which rank 0 writes; on other ranks nothing. Local. */
enum status train_record_save(struct train_run *run, const struct checkpoint_writer_report *report);
enum status train_record_lanes(struct train_run *run, const struct train_lanes *lanes);
enum status train_record_evaluation(struct train_run *run, const struct evaluation *e);
/* Collective, because it sums up what ranks have sent. */
enum status train_record_run(struct train_run *run, const char *end, const char *reason,
                             double left_s);
enum status train_record_trace(struct train_run *run); /* ends the trace, on every rank */
/* Drains the training plan's executor, on every rank. */
enum status train_record_counters(struct train_run *run);
/* The last step's, and the line of progress, if they are not there yet: while the next step runs,
 * or before what else follows it. Local. */
enum status train_tell_step(struct train_run *run);

/* Looks up memory every few seconds at most. Local. */
const struct train_memory *train_look_at_memory(struct train_run *run);
/* Share of the peak (run.peak) that a step of so many seconds reaches. NAN: it is not known. */
double train_mfu(const struct train_run *run, double seconds);

/* Numbers for TensorBoard, which rank 0 writes; on other ranks nothing. Local. */
void train_show_step(struct train_run *run, const struct train_step *step);
void train_show_evaluation(struct train_run *run, const struct evaluation *e);
/* Means over units of the last measured step, and the norm of all residuals. NAN: not known. */
void train_show_messages(struct train_run *run, double error, double cosine, double residual);
void train_show_lanes(struct train_run *run, const struct train_lanes *lanes);

/* Starts the counts of the metrics. The steps' executor must be there. Local. */
enum status train_metrics_create(struct train_run *run);
void train_metrics_destroy(struct train_run *run);
/* Adds what lanes did since the last call, and records it. After exec_drain() of the training plan.
 * Collective. */
enum status train_take_profile(struct train_run *run);
/* A step that was run, before it counts in run->step. Local. */
void train_count_step(struct train_run *run, const struct train_step *step);
void train_count_evaluation(struct train_run *run, const struct evaluation *e);
/* After a step that measures what messages lose: adds up over ranks, and records it. Collective. */
enum status train_measure_messages(struct train_run *run);
/* Fields of the record of the run, which is open. After train_take_profile(). varying: bytes of
 * messages of varying length that all ranks have sent. On rank 0. */
void train_record_metrics(struct train_run *run, int64_t device_bytes, int64_t varying);

/* Why the run leaves: the same on all ranks but for `why`. */
struct train_leaving {
  enum stop_cause cause;
  int signal;
  double left_s;           /* of the job's time when it was decided, INFINITY: unknown */
  struct stop_costs costs; /* of staying; rank 0's */
  bool guessed;            /* what saving costs: no checkpoint was written yet; rank 0's */
  char why[224];           /* for people */
};
/* Finds when this run must end, and installs the signals that can stop it. This happens first,
 * because a job may be told to stop while it starts. Local. */
enum status train_prepare_stop(struct train_run *run);
/* Checks whether any rank was asked to stop, whether there is a reason to stop, and whether a
 * checkpoint that was written during the steps is ready, which is finished then. The answers are
 * the same on all ranks. `under_way`: a step is running, and the run leaves after it if it must.
 * The ranks meet during the step. If a request comes too late for that, the run leaves one step
 * later. Collective. */
enum status train_look_around(struct train_run *run, bool under_way, struct train_leaving *leaving);
/* The summary of a run that has saved what it saves at its end, in the log. Local. */
void train_say_end(const struct train_run *run, enum train_end end);
/* In the log. Local. */
void train_say_why(const struct train_run *run, const struct train_leaving *leaving);

#endif
