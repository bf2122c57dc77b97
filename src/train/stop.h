/* Whether a run must stop before its last step: a signal on any rank, a file STOP in its folder, or
 * the end of its job. Rank 0 decides, and the other ranks get its decision at the end of a step
 * (leave.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "io/text/file.h"

enum stop_cause { STOP_NOT, STOP_END, STOP_FILE, STOP_SIGNAL };

/* Costs, in seconds, if a run stays until the end of the next step: due validations and
 * checkpoints, steps, and saving. */
struct stop_costs {
  double due_s, step_s, save_s;
};
/* Time that the job must have left for the run to stay: these costs plus 25 %, because they vary,
 * and STOP_MARGIN_S to end the processes. Pure. */
#define STOP_MARGIN_S 10.0
double stop_lead(const struct stop_costs *costs);

/* Estimated time of saving `bytes` on so many nodes before the first save: 0.5 GB/s per node, at
 * most 4 GB/s, and a second. Pure. */
double stop_guess_save(int64_t bytes, int nodes);

/* End of a Slurm job, in seconds since 1970, from `text` (SLURM_JOB_END_TIME; NULL or empty: none).
 * INFINITY: there is none. STATUS_USAGE: `text` is not a time. A time before `now`, as after an
 * extension of the job, is ignored with a warning. */
enum status stop_find_end(const char *text, double now, double *out);

/* The file STOP of a run's folder. */
struct stop_file {
  struct file_path path;
  double next_s;    /* time of the next look */
  char reason[160]; /* its content: one line of printable characters */
};
/* Removes a file that is there before the start, with a warning. The run that it was meant for has
 * ended. */
void stop_file_drop(const struct stop_file *file);
/* Whether the file exists. It looks at most once per second of `now_s`. If it exists, the file is
 * removed, `reason` is set, and true is returned once. */
bool stop_file_take(struct stop_file *file, double now_s);
