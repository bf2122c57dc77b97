/* A test program that starts itself under mpirun, for what ends a job. Failures inside are failures
 * of the running test. */
#pragma once

struct again {
  int code; /* mpirun's exit code */
  double seconds;
  char text[1 << 16]; /* what all ranks wrote, to either output */
};

/* `program` with the arguments `how` on so many ranks, to its end. The result is there until the
 * next call. */
const struct again *again_run(const char *program, int ranks, const char *how);
void again_says(const struct again *run, const char *text);
