#include "fixture.h"
#include "tests/test.h"

#include <mpi.h>

struct comm *job;

int start_job(void **state)
{
  (void)state;
  return comm_create_mpi(NULL, NULL, &job) ? -1 : 0;
}

int stop_job(void **state)
{
  (void)state;
  comm_destroy(job);
  return 0;
}

const char *failed(const char *call, int class)
{
  static char message[MPI_MAX_ERROR_STRING + 64];
  char text[MPI_MAX_ERROR_STRING];
  int length;
  assert_int_equal(MPI_Error_string(class, text, &length), MPI_SUCCESS);
  snprintf(message, sizeof message, "%s failed: %s", call, text);
  return message;
}
