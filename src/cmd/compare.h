/* A matrix of runs: decks x rank counts x methods x seeds. sluice compare runs it and collects its
 * results. Private to src/cmd/compare*.c. */
#ifndef SLUICE_CMD_COMPARE_H
#define SLUICE_CMD_COMPARE_H

#include "cmd/cmd.h"
#include "io/text/json.h"
#include "plan/plan.h"

/* Keys of a matrix, in its file and on the command line. */
struct values {
  char *out;
  struct option_strings deck, ranks, seeds, common, methods;
  int64_t task, warmup;
  double time;
  bool list, collect;
};

enum matrix_state { RUN_NEW, RUN_STARTED, RUN_FINISHED };

struct matrix_run {
  char *name;                /* DECK-RANKS-METHOD-SEED */
  char *dir, *results, *log; /* run folder, its results.jsonl, output of the launcher */
  const char *deck;          /* path, owned by matrix.set */
  char *method;
  int64_t ranks, seed;
  int words; /* key=value after the deck */
  int64_t room;
  char **word;
  char hash[17]; /* of the resolved deck, as all below */
  int64_t steps, step_tokens;
  double target; /* eval.target */
  enum matrix_state state;
  /* Set after the results of all runs have been read once: seconds of all steps, and the time of
   * ppl_at_fixed_time. The seconds are NAN for an unfinished run. */
  double seconds, tokens_per_s, fixed_s;
};

struct matrix {
  const char *path;
  struct values values;
  struct option_set *set; /* owns the strings of values */
  int runs;
  struct matrix_run *run; /* the seeds of a method are neighbours */
};

/* Read the matrix file and the keys of the command line. Every deck of every run is resolved and
 * checked, and every run folder is looked at. STATUS_USAGE: a deck is wrong, or a folder holds a
 * run of another deck. Free with matrix_free. Local. */
enum status matrix_read(const struct arguments *arguments, struct matrix *out);
void matrix_free(struct matrix *matrix); /* takes a zeroed one */

/* Metrics that are in the record of each start of a run. */
enum { MATRIX_METRICS = 24 };
struct matrix_sum {
  bool known;
  double value, weight;
};
struct matrix_metrics {
  struct matrix_sum of[MATRIX_METRICS];
  double op_ms[OP_COUNT]; /* comm_time_ms_by_op */
  char model[256], dataset[256], codec[64], config[200], commit[64];
};
/* A field of a record: a number, a text. NAN and "" if the field is missing, null or of another
 * type. Local. */
double record_real(const json_t *record, const char *key);
const char *record_text(const json_t *record, const char *key);
/* From the record of one more start. Local. */
void matrix_metrics_take(struct matrix_metrics *metrics, const json_t *record);
const char *matrix_metric_key(int metric);
/* NAN: no record has it. Pure. */
double matrix_metric_value(const struct matrix_metrics *metrics, int metric);

/* The data about a run in results.jsonl. Missing numbers are NAN. */
struct matrix_result {
  int64_t steps;
  double train_loss, val_step, val_loss, val_ppl, best_val_loss, best_val_ppl;
  double tokens_per_s, mean_s, p50_s, p90_s, p95_s; /* without the warm-up steps of each start */
  double seconds;                                   /* of all steps */
  double steps_to_target, time_to_target_s, fixed_ppl;
  struct matrix_metrics metrics;
  char end[16];  /* of the last run record, "" if steps follow it or there is none */
  char hash[17]; /* of the same record */
};
/* No file: zero steps. Local. */
enum status matrix_result_read(const struct matrix_run *run, int64_t warmup,
                               struct matrix_result *out);

/* Start the ranks of a run and wait for their end. SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask
 * the run to save and leave. *code: exit code of the launcher. *stopped: such a signal came. Local.
 */
enum status matrix_launch(const struct matrix_run *run, int *code, bool *stopped);

/* Write OUT/results.jsonl and print a table of the methods. Local. */
enum status matrix_collect(struct matrix *matrix);

#endif
