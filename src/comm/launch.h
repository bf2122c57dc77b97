/* The one list of the environment variables that launchers set for the processes they start. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The facts of this process that are known before MPI has started. */
struct launch {
  bool launched;       /* a launcher that starts ranks has started it */
  long rank;           /* 0 if it is unknown */
  int64_t tasks;       /* processes of the job, or of the step of Slurm; 0 if it is unknown */
  const char *told_by; /* the variable with `tasks`, or NULL */
};

/* Local. */
struct launch launch_read(void);
