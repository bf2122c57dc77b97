/* One rank fails inside a step while its peers wait for it in collectives: comm_abort() ends the whole job. Oracle: the output and the exit code of mpirun,
 * which this program starts on itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "job.h"

static const char *program;

static int train_until_rank_1_fails(void)
{
  struct comm *comm = job_start_mpi();
  struct job job;
  struct exec_result result;
  if (!comm)
    return 1;
  job_open(&job, comm, &(struct job_setup){.prefetch = 1, .fail_on_rank = 1, .fail_on_step = 2});
  for (int step = 0; step < JOB_STEPS; step++) {
    enum status status = exec_step(job.exec, step, step + 1, 0.01, &result);
    if (status)
      comm_abort(comm, status);
  }
  job_close(&job);
  comm_destroy(comm);
  return 0;
}

static void the_job_ends_with_the_sentence(void **state)
{
  (void)state;
  char command[4096], text[8192];
  const char *mpirun = getenv("MPIRUN");
  assert_non_null(mpirun);
  snprintf(command, sizeof command, "%s -n 3 %s fail 2>&1", mpirun, program);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t length = fread(text, 1, sizeof text - 1, pipe);
  text[length] = '\0';
  int ended = pclose(pipe);
  assert_true(WIFEXITED(ended));
  assert_int_equal(WEXITSTATUS(ended), status_exit_code(STATUS_INPUT));
  assert_non_null(strstr(text, "sluice: rank 1: no tokens for step 2\n"));
}

int main(int argc, char **argv)
{
  program = argv[0];
  if (argc == 2 && strcmp(argv[1], "fail") == 0)
    return train_until_rank_1_fails();
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_job_ends_with_the_sentence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
