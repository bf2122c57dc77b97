/* A matrix of runs: decks x rank counts x methods x seeds. sluice compare runs it and
 * tools/compare.py collects its results. Private to src/cmd/compare*.c. */
#pragma once

#include "cmd/cmd.h"

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
  char *name;       /* DECK-RANKS-METHOD-SEED */
  char *dir, *log;  /* run folder, output of the launcher */
  const char *deck; /* path, owned by matrix.set */
  char *method;
  int64_t ranks, seed;
  int words; /* key=value after the deck */
  int64_t room;
  char **word;
  char hash[17]; /* of the resolved deck, as all below */
  int64_t steps, step_tokens;
  double target; /* eval.target */
  enum matrix_state state;
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

/* Start the ranks of a run and wait for their end. SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask
 * the run to save and leave. *code: exit code of the launcher. *stopped: such a signal came. Local.
 */
enum status matrix_launch(const struct matrix_run *run, int *code, bool *stopped);
