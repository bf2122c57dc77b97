/* The state of a run, shared by the files of the training loop. Private to src/train. */
#pragma once

#include "io/results/events.h"
#include "io/results/results.h"
#include "io/text/file.h"
#include "io/text/lock.h"
#include "train/checkpoint_writer.h"
#include "train/evaluate.h"
#include "train/stats.h"
#include "train/stop.h"
#include "train/train.h"

/* A step that was run. */
struct train_step {
  struct exec_result result;
  double lr, seconds;
  bool untold;               /* not yet in results.jsonl and the progress line */
  struct data_counts counts; /* over all ranks */
  struct source_loss source[DECK_SOURCES];
};

/* The counts since this start, for the record of the run. */
struct train_metrics {
  int64_t timed;               /* steps after the warm-up */
  double steps_s, timed_s;     /* seconds of all steps, and of the timed steps */
  int64_t nonfinite, clipped;  /* steps */
  int64_t target_step;         /* the first evaluation that reached eval.target, 0: none yet */
  double target_s;             /* steps_s at that evaluation */
  struct plan_sample *sample;  /* of each unit, over all ranks; NULL: nothing measures */
  int64_t samples;             /* units times steps that were measured */
  double error, cosine;        /* sums over them */
  double residual;             /* squared norm of all residuals at the last of them */
  struct exec_profile profile; /* of the timed steps so far */
  double profiled_s;           /* timed_s at the last call */
  int64_t profiled;            /* timed, likewise */
  bool learned;                /* job_rates_learn() was called */
};

/* Memory in use on this rank. */
struct train_memory {
  double looked_s;                /* clock_s() of the last look, 0: none yet */
  int64_t host, device;           /* resident, -1: unknown; on the device */
  int64_t host_peak, device_peak; /* largest of these looks */
};

/* The reason to leave, as of the last look, the same on all ranks except `why`. */
struct train_leaving {
  enum stop_cause cause;
  int signal;
  double left_s;           /* seconds of the job that were left, INFINITY: unknown */
  struct stop_costs costs; /* cost of staying; rank 0's */
  bool guessed;  /* the cost of saving is an estimate, because no checkpoint was written yet; rank
                    0's */
  char why[224]; /* text for the log */
  enum status status; /* of the look */
};

/* A run in progress. */
struct train_run {
  struct comm *comm;
  const struct deck *deck;
  struct job *job;
  struct evaluator evaluator;
  struct data_sources data;
  struct data_order order;
  struct token_stream learned; /* training data of the checkpoint that is resumed */
  char *from;                  /* that checkpoint; NULL: a new run */
  struct results *results;     /* rank 0 */
  struct json_writer *line;    /* the record that is being written */
  uint64_t id;                 /* of the run over all its starts, results_identity() */
  struct events *events;       /* rank 0: for TensorBoard; NULL: none */
  struct checkpoint_writer *writer;
  struct stats stats;
  struct train_metrics metrics;
  struct train_memory memory;
  struct file_path checkpoint_dir, results_path, learned_path;
  int64_t first, step, skipped,
      bad; /* step: completed steps; bad: number of the last steps that were skipped in a row */
  int64_t warmed; /* steps of the warm-up (compress.warmup) since this start */
  int64_t samples;
  struct data_counts counts; /* of the next step, over all ranks */
  int64_t filled;            /* positions since this start that were not padding */
  struct train_step last;
  double first_loss;            /* of the first step since this start that had a loss */
  struct evaluation eval;       /* the last one since this start */
  double best_loss;             /* the lowest one since this start */
  int64_t eval_step, best_step; /* their steps, 0: no validation yet */
  double start_s, save_s;       /* save_s: of the last one, 0: none yet */
  struct stop_file stop_file;   /* rank 0 */
  /* Rank 0: end by run.minutes, by clock_s(), and of the Slurm job, in seconds since 1970.
   * INFINITY: there is none. The wall clock may be set at any time, so only Slurm's limit follows
   * it. */
  double end_s, job_end_s;
  struct folder_lock lock, checkpoint_lock; /* rank 0: of the run folder and its ckpt/ */
  int64_t saved_step;                       /* of the newest checkpoint of this run, -1: none */
  struct train_leaving leaving;
};

static inline bool train_leads(const struct train_run *run)
{
  return comm_rank(run->comm) == 0;
}

/* Whether work that is done every `every` steps (0: never) is due after this step. */
static inline bool train_is_due(int64_t step, int64_t every)
{
  return every > 0 && step % every == 0;
}

/* The last step of the run is validated too, so that the summary has the loss of the final state.
 */
static inline bool train_validates(const struct train_run *run, int64_t step)
{
  const int64_t every = run->deck->eval.every;
  return every > 0 && (step == run->deck->run.steps || train_is_due(step, every));
}

/* Paths in the run folder. Local. */
void train_folder_paths(struct train_run *run);
/* Makes the folder and locks it, before anything is written to it, and an existing ckpt/, as
 * folder_lock() does. On rank 0. */
enum status train_folder_take(struct train_run *run);
/* The refusals of train_folder_take() and train_folder_open(), as far as they are known before, and
 * whether train_folder_refuse_used() would refuse. Leaves nothing behind. On rank 0. */
enum status train_folder_check(const struct train_run *run, bool *used);
/* The refusal of a folder that holds a run. Local. */
enum status train_folder_refuse(const struct deck *deck);
/* Releases both locks, as folder_unlock() does. On any rank. */
void train_folder_release(struct train_run *run);
/* STATUS_USAGE if the folder holds a run already: a checkpoint, or results of a step. The folder of
 * a run that failed earlier is used: its log is appended to, and its deck is replaced.
 * Collective. */
enum status train_folder_refuse_used(struct train_run *run);
/* Writes deck and log, keeps the algorithms that the device has chosen, and opens the results and
 * the event file. Records after the run's step are removed. On rank 0. */
enum status train_folder_open(struct train_run *run);
/* A resumed run uses the algorithms that it began with, even if the cache has newer ones. Another
 * device, or another version of its libraries, has its own. On rank 0. */
enum status train_folder_recall(const struct train_run *run);

/* Opens the training data. A resumed run must see the samples that it would have seen without the
 * stop, unless data.reorder allows others. Collective. */
enum status train_open_data(struct train_run *run);
/* Creates the job, which has begun, and loads the initial state, step and samples. `resume` as in
 * train_run(). Keys that the program may choose get the values of the checkpoint that is loaded, if
 * as many ranks have written it. Collective. */
enum status train_start_state(struct train_run *run, const char *resume);
/* One at a time. If no steps follow (`leaving`), it does not write in the background. After a
 * skipped step older checkpoints stay, because the saved model may be diverging. Collective. */
enum status train_save(struct train_run *run, bool leaving);
/* Waits for the checkpoint that is written during the steps. Collective. */
enum status train_finish_save(struct train_run *run);

/* Seconds until run.minutes or the Slurm job ends, INFINITY: neither does. `limit` names which
 * comes first. On rank 0. */
double train_seconds_left(const struct train_run *run, const char **limit);
/* Logs the data, the steps and their limit, before the first one. On rank 0. */
void train_say_head(const struct train_run *run);
/* The progress line of a step. */
void train_say_step(const struct train_run *run, const struct train_step *last);
/* Positions of one step of all ranks. */
int64_t train_step_tokens(const struct train_run *run);
/* The mean number of tokens of a step since this start, without padding. */
double train_mean_tokens(const struct train_run *run);

/* The first record of each start, with names of hosts and GPUs of all ranks. Collective. */
enum status train_record_start(struct train_run *run);
/* Lines of results.jsonl, which rank 0 writes; on other ranks nothing. Local. */
enum status train_record_save(struct train_run *run, const struct checkpoint_writer_report *report);
enum status train_record_evaluation(struct train_run *run, const struct evaluation *e);
/* Collective, because it adds up the bytes that ranks have sent. */
enum status train_record_run(struct train_run *run, const char *end, const char *reason,
                             double left_s);
enum status train_record_trace(struct train_run *run); /* ends the trace, on every rank */
/* Drains the training plan's executor, on every rank. */
enum status train_record_counters(struct train_run *run);
/* Writes the record of the last step and the progress line, if they were not written yet. Called
 * while the next step runs, or before other work after the step. Collective. */
enum status train_tell_step(struct train_run *run);

/* If there are several sources, their losses and tokens in the open record. Local. */
void train_put_sources(struct train_run *run, int n, const struct source_loss *source);
/* A record with time and step: begin, its numbers, end. kind NULL: no line of results.jsonl.
 * `shown`: TensorBoard shows numbers of it. On ranks other than 0 nothing is written. Local. */
void train_begin(struct train_run *run, const char *kind, bool shown);
enum status train_end(struct train_run *run, const char *kind, bool shown);
/* A number, by its key in results.jsonl and its name in TensorBoard. NULL: it is not there. */
void train_put(struct train_run *run, const char *key, const char *scalar, double value);
/* A number that is NAN if it is not known. TensorBoard does not show it then. */
void train_put_known(struct train_run *run, const char *key, const char *scalar, double value);

/* Starts the counts of the metrics. The steps' executor must be there. Local. */
enum status train_metrics_create(struct train_run *run);
/* Adds the work of lanes since the last call, and records it. After exec_drain() of the training
 * plan. Collective. */
enum status train_take_profile(struct train_run *run);
/* Counts a step, before it is added to run->step. Local. */
void train_count_step(struct train_run *run, const struct train_step *step);
/* After a step that measures errors of messages: adds them up over ranks, and records them.
 * Collective. */
enum status train_measure_messages(struct train_run *run);
/* The mean and percentiles of the seconds of timed steps, times `unit`: PREFIXmean, PREFIXp50. */
void train_record_times(struct train_run *run, const char *prefix, double unit);
/* Fields of the record of the run, which is open. After train_take_profile(). used: bytes of
 * memory that the process has on its device. varying: bytes of messages of varying length that all
 * ranks have sent. On rank 0. */
void train_record_metrics(struct train_run *run, int64_t used, int64_t varying);

/* Finds when this run must end, and installs the signals that can stop it. This happens first,
 * because a job may be asked to stop while it starts. Local. */
enum status train_prepare_stop(struct train_run *run);
/* DURING_STEP: the ranks exchange messages during the step, and the run leaves after it if it must.
 * If a request comes too late for that, the run leaves one step later. */
enum train_moment { AFTER_STEP, DURING_STEP, DURING_VALIDATION };
/* Checks whether any rank was asked to stop, and whether there is a reason to stop. If a checkpoint
 * that was written during the steps is complete, it is finished. The answers are the same on all
 * ranks. Collective. */
enum status train_look_around(struct train_run *run, enum train_moment moment);
/* Logs the summary of a run, after its last save. Local. */
void train_say_end(const struct train_run *run, enum train_end end);
/* Logs the reason. Local. */
void train_say_why(const struct train_run *run);
