/* Warnings that ranks have alike: comm_say_warnings() under mpirun, of which this program starts a
 * job of itself. Oracle: what the job writes, counted. */

#include "base/log.h"
#include "comm/comm.h"
#include "tests/comm/again.h"
#include "tests/test.h"

static const char *program;

/* All of three ranks warn of one thing, each with a number of its own. The last two warn of two
 * more things at one place, in the same order and twice. The last one warns alone. */
static void warn(int rank)
{
  log_warn_alike("all are slow, by %d", rank);
  for (int i = 0; i < 4 && rank > 0; i++)
    log_warn_alike("key %d is passed over", i % 2);
  if (rank == 2)
    log_warn_alike("a disk is full");
}

static int warn_on_all_ranks(bool ends)
{
  struct comm *job;
  if (comm_create_mpi(NULL, NULL, &job))
    return 1;
  log_set_rank(comm_rank(job));
  log_keep_alike(true);
  warn(comm_rank(job));
  if (ends && comm_rank(job) == 1)
    comm_abort(job, status_set(STATUS_IO, "it ends here"));
  enum status status =
      ends ? comm_barrier(job) : comm_say_warnings(job); /* a barrier that rank 1 never comes to */
  if (!status)
    status = comm_say_warnings(job); /* what was said is not said again */
  comm_destroy(job);
  return status != STATUS_OK;
}

static int count(const char *in, const char *what)
{
  int n = 0;
  for (const char *at = in; (at = strstr(at, what)); at++)
    n++;
  return n;
}

TEST(equal_warnings_are_logged_once)
{
  const struct again *run = again_run(program, 3, "warn");
  assert_int_equal(run->code, 0);
  assert_int_equal(count(run->text, "warning: "), 4);
  again_says(run, "warning: all are slow, by 0 (also on 2 other ranks)\n");
  assert_int_equal(count(run->text, ": warning: all"), 0); /* by rank 0, which has no name */
  again_says(run, "rank 1: warning: key 0 is passed over (also on 1 other rank)\n");
  again_says(run, "rank 1: warning: key 1 is passed over (also on 1 other rank)\n");
  again_says(run, "rank 2: warning: a disk is full\n");
}

TEST(aborting_rank_logs_its_own_warnings_first)
{
  const struct again *run = again_run(program, 3, "end");
  assert_int_equal(run->code, status_exit_code(STATUS_IO));
  again_says(run, "rank 1: warning: all are slow, by 1\nrank 1: warning: key 0 is passed "
                  "over\nrank 1: warning: key 1 is passed over\nsluice: rank "
                  "1: it ends here\n");
}

int main(int argc, char **argv)
{
  program = argv[0];
  if (argc == 2)
    return warn_on_all_ranks(strcmp(argv[1], "end") == 0);
  return test_run(NULL, NULL);
}
