/* One rank fails inside a step while its peers wait for it in collectives: comm_abort() ends the whole job. Oracle: the output and the exit code of mpirun,
 * which this program starts on itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "job.h"
#include "tests/comm/again.h"

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
  const struct again *run = again_run(program, 3, "fail");
  assert_int_equal(run->code, status_exit_code(STATUS_INPUT));
  again_says(run, "sluice: rank 1: no tokens for step 2\n");
}

int main(int argc, char **argv)
{
  program = argv[0];
  if (argc == 2 && strcmp(argv[1], "fail") == 0)
    return train_until_rank_1_fails();
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_job_ends_with_the_sentence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
