#include "fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

void must(enum status status)
{
  if (status)
    fail_msg("%s", status_text());
}
