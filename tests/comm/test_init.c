/* A start of MPI that Sluice cannot do with. Oracle: MPI's own call, whose answer is another one
 * here. */
#include <mpi.h>

#include "comm/comm.h"
#include "tests/test.h"

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
  const int error = PMPI_Init_thread(argc, argv, required, provided);
  assert_int_equal(required, MPI_THREAD_MULTIPLE);
  *provided = MPI_THREAD_SERIALIZED;
  return error;
}

TEST(mpi_without_threads_is_refused)
{
  struct comm *job = NULL;
  assert_int_equal(comm_create_mpi(NULL, NULL, &job), STATUS_UNSUPPORTED);
  assert_null(job);
  must_say("(MPI_THREAD_MULTIPLE): use a build with thread support");
  assert_int_equal(MPI_Finalize(), MPI_SUCCESS);
}

TEST_MAIN(NULL, NULL)
