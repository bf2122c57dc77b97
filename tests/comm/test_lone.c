/* A process without launcher. Oracles: its exit code, if each thread of the MPI library continues
 * late, as on a busy machine. The kernel knows its children. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tests/test.h"

enum { MS = 1000000, LATE_MS = 200 };

/* The thread of Open MPI 4 sleeps in this function. */
int poll(struct pollfd *file, nfds_t files, int ms)
{
  const struct timespec limit = {ms / 1000, ms % 1000 * (long)MS}, late = {0, LATE_MS * (long)MS};
  const int ready = ppoll(file, files, ms < 0 ? NULL : &limit, NULL);
  if (gettid() != getpid())
    (void)nanosleep(&late, NULL);
  return ready;
}

static bool has_children(void)
{
  return waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;
}

/* Jobs that this process starts would inherit them. */
static bool leaves_variables(void)
{
  return getenv("OMPI_MCA_ess_singleton_isolated") || getenv("OMPI_MCA_orte_create_session_dirs") ||
         getenv("OMPI_MCA_pmix");
}

enum { FINE, NO_JOB, CHILDREN, VARIABLES };

static int start_alone(void)
{
  struct comm *job;
  signal(SIGSEGV, SIG_DFL); /* of cmocka */
  if (comm_create_mpi(NULL, NULL, &job))
    return NO_JOB;
  const int found = has_children() ? CHILDREN : leaves_variables() ? VARIABLES : FINE;
  comm_destroy(job);
  return found;
}

TEST(a_late_thread_of_the_library_does_no_harm)
{
  int status;
  const pid_t child = fork();
  if (child == 0)
    _exit(start_alone());
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status))
    fail_msg("signal %d", WTERMSIG(status));
  assert_int_equal(WEXITSTATUS(status), FINE);
}

TEST_MAIN(NULL, NULL)
