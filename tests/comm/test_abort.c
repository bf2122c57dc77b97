/* comm_abort() under mpirun: one rank fails while the others wait for it, and the whole job ends
 * with that rank's sentence and exit code. Oracle: the output and the exit code of mpirun, which
 * this program starts on itself. */

#include "comm/comm.h"
#include "tests/comm/again.h"
#include "tests/test.h"

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

TEST(the_job_ends_with_the_sentence)
{
  const struct again *run = again_run(program, 3, "fail");
  assert_int_equal(run->code, status_exit_code(STATUS_IO));
  again_says(run, "sluice: rank 1: the disk is full\n");
}

int main(int argc, char **argv)
{
  program = argv[0];
  if (argc == 2 && strcmp(argv[1], "fail") == 0)
    return fail_on_one_rank(argc, argv);
  return test_run(NULL, NULL);
}
