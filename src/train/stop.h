/* Whether a run must stop before its last step: a signal on any rank, a file STOP in its folder, or
 * the end of its job. Rank 0 decides, and tells the others at the end of a step (leave.c). */
#ifndef SLUICE_TRAIN_STOP_H
#define SLUICE_TRAIN_STOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum stop_cause { STOP_NOT, STOP_END, STOP_FILE, STOP_SIGNAL };

/* The work of a run that stays before it can leave at the next boundary: due validations and
 * checkpoints, steps, and saving; in seconds. */
struct stop_costs {
  double due_s, step_s, save_s;
};
/* Time that the job must have left for the run to stay: all of those costs and a quarter more,
 * because they vary, and STOP_MARGIN_S to end the processes. Pure. */
#define STOP_MARGIN_S 10.0
double stop_lead(const struct stop_costs *costs);

/* Time that saving `bytes` may take on so many nodes before it was measured: 0.5 GB/s a node, at
 * most 4 GB/s, and a second. Pure. */
double stop_guess_save(int64_t bytes, int nodes);

/* When, in seconds since 1970, a job ends that began at `now`: at the earliest of what the
 * environment says (SLURM_JOB_END_TIME; NULL or empty: nothing) and of `minutes` from now (0: no
 * such limit). INFINITY: neither gives a time. STATUS_USAGE: `text` is not a time. One that is
 * past, as of a job whose limit was extended, is not heeded, with a warning. */
enum status stop_find_end(const char *text, double minutes, double now, double *out);

/* The file STOP of a run's folder. */
struct stop_file {
  char *path;
  double next_s;    /* when it is looked for again */
  char reason[160]; /* what it held: one line of printable characters */
};
enum status stop_file_open(const char *dir, struct stop_file *out);
void stop_file_close(struct stop_file *file); /* takes a zeroed one */
/* Whether it is there, looked at no more than once a second of `now_s`; true once: the file is
 * removed, and `reason` set. */
bool stop_file_take(struct stop_file *file, double now_s);

#endif
