/* comm_abort() under mpirun: one rank fails while the others wait for it, and the whole job ends with that rank's sentence and exit code. Oracle: the
 * output and the exit code of mpirun, which this program starts on itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "comm/comm.h"

static const char *program;

static int fail_on_one_rank(int argc, char **argv)
{
  struct comm *job;
  if (comm_create_mpi(&argc, &argv, &job))
    return 1;
  if (comm_rank(job) == 1)
    comm_abort(job, status_set(STATUS_IO, "the disk is full"));
  (void)comm_barrier(job); /* that rank 1 never comes to */
  comm_destroy(job);
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
  assert_int_equal(WEXITSTATUS(ended), status_exit_code(STATUS_IO));
  assert_non_null(strstr(text, "sluice: rank 1: the disk is full\n"));
}

int main(int argc, char **argv)
{
  program = argv[0];
  if (argc == 2 && strcmp(argv[1], "fail") == 0)
    return fail_on_one_rank(argc, argv);
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_job_ends_with_the_sentence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
