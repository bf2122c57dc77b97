/* A job in which nothing moves ends, and says where; one that moves, or rests, is left alone.
 * Oracles: the output, exit code and duration of mpirun, which this program starts on itself; the
 * bits of a run without a watchdog. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/progress.h"
#include "comm/ops.h"
#include "exec/watchdog.h"
#include "reopen.h"
#include "tests/comm/again.h"
#include "tests/test.h"

static const char *program;

enum { STUCK_STEP = 2 };

/* The behaviour of a stuck rank when it loads step 2. */
enum manner { SLEEPS, STOPS, LATE, RECOVERS, BREAKS, BREAKS_BUT_STOPPED_0 };
struct trouble {
  struct job *job;
  int rank;
  enum manner manner;
};

static _Atomic bool broken;

/* RECOVERS: the time at which a rank goes on that has paused in a collective. Its watchdog falls
 * silent a little after it, and answers just before it has gone on. */
static _Atomic double recovery_s;
static _Atomic bool pauses;
static const struct comm_transport_ops *mpi;

static enum status exchange(struct comm_group *group, struct lane *lane, const void *sent,
                            int64_t bytes, void *received)
{
  if (atomic_exchange(&pauses, false)) {
    atomic_store(&recovery_s, clock_s() + 9);
    clock_sleep_until(atomic_load(&recovery_s));
  }
  return mpi->exchange(group, lane, sent, bytes, received);
}

static enum status check_link(struct comm_group *group)
{
  (void)group;
  const double s = atomic_load(&recovery_s);
  if (s > 0 && clock_s() > s - 8.4)
    clock_sleep_until(s - 0.1);
  return atomic_load(&broken) ? status_set(STATUS_LIBRARY, "the link is down") : STATUS_OK;
}

static void sleep_s(double seconds)
{
  const struct timespec time = {.tv_sec = (time_t)seconds,
                                .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
  (void)nanosleep(&time, NULL);
}

static enum status load(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets)
{
  const struct trouble *trouble = arg;
  const int rank = comm_rank(trouble->job->comm);
  if (step == STUCK_STEP && rank == 0 && trouble->manner == BREAKS_BUT_STOPPED_0)
    raise(SIGSTOP);
  if (trouble->manner == RECOVERS && step > STUCK_STEP && rank == 0)
    sleep_s(0.4); /* the others wait for it most of the time */
  if (step == STUCK_STEP && (rank == trouble->rank || trouble->rank < 0)) {
    atomic_store(&broken, trouble->manner == BREAKS || trouble->manner == BREAKS_BUT_STOPPED_0);
    if (trouble->manner == STOPS)
      raise(SIGSTOP);
    atomic_store(&pauses, trouble->manner == RECOVERS);
    while (trouble->manner != LATE && trouble->manner != RECOVERS)
      pause();
    sleep_s(0.6);
  }
  return job_load(trouble->job, step, micro, tokens, targets);
}

static int tell(const char *what)
{
  fprintf(stderr, "%s: %s\n", what, status_text());
  return 1;
}

static int train(int rank, enum manner manner, double limit_s)
{
  struct comm *comm = job_start_mpi();
  struct job job;
  struct exec_result result;
  if (!comm)
    return 1;
  mpi = comm->transport;
  struct comm_transport_ops transport = *mpi;
  transport.check = check_link;
  transport.exchange = exchange;
  comm->transport = &transport;
  job_open(&job, comm, &(struct job_setup){.prefetch = 1});
  struct trouble trouble = {.job = &job, .rank = rank, .manner = manner};
  if (job_reopen(&job,
                 &(struct exec_config){.load = load, .load_arg = &trouble, .timeout_s = limit_s}))
    return tell("the executor");
  for (int step = 0; step < (manner == RECOVERS ? 10 : 4); step++)
    if (exec_step(job.exec, step, step + 1, 0.01, &result))
      return tell("a step");
  job_close(&job);
  comm_destroy(comm);
  return 0;
}

/* Rank 1 never begins the step that the others are in. */
static int stay_away(void)
{
  struct comm *comm = job_start_mpi();
  struct job job;
  struct exec_result result;
  if (!comm)
    return 1;
  job_open(&job, comm, &(struct job_setup){.prefetch = 1});
  if (job_reopen(&job, &(struct exec_config){.timeout_s = 1}))
    return tell("the executor");
  for (int step = 0; step < 4; step++) {
    while (step == STUCK_STEP && comm_rank(comm) == 1)
      pause();
    if (exec_step(job.exec, step, step + 1, 0.01, &result))
      return tell("a step");
  }
  return 0;
}

/* Same bits with a watchdog as without, and a pause between steps that is longer than the limit. */
static int rest(void)
{
  struct comm *comm = job_start_mpi();
  const struct job_setup setup = {.prefetch = 1};
  struct job_record plain, watched = {0};
  struct job job;
  if (!comm)
    return 1;
  plain = job_run(comm, &setup);
  job_open(&job, comm, &setup);
  if (job_reopen(&job, &(struct exec_config){.timeout_s = 0.5}))
    return tell("the executor");
  for (int step = 0; step < JOB_STEPS; step++) {
    struct exec_result result = job_step(&job, step);
    watched.loss[step] = result.loss;
    watched.grad_norm[step] = result.grad_norm;
    if (step == 1 && exec_drain(job.exec))
      return tell("the drain");
    if (step == 1)
      sleep_s(1.5);
  }
  watched.n = job_parameters(&job);
  watched.params = job_collect(&job);
  const bool same = memcmp(plain.loss, watched.loss, sizeof plain.loss) == 0 &&
                    memcmp(plain.grad_norm, watched.grad_norm, sizeof plain.grad_norm) == 0 &&
                    plain.n == watched.n &&
                    memcmp(plain.params, watched.params, (size_t)plain.n * sizeof(float)) == 0;
  job_record_free(&plain);
  job_record_free(&watched);
  job_close(&job);
  comm_destroy(comm);
  return same ? 0 : 2;
}

/* --- tasks next to the steps -------------------------------------------- */

static _Atomic int64_t moved;
static _Atomic bool flushes;

static void ask(struct watchdog_place *out)
{
  const bool alone = atomic_load(&flushes);
  *out = (struct watchdog_place){.moved = atomic_load(&moved),
                                 .doing = alone ? "flushing its data to the disk"
                                                : "waiting for the other ranks",
                                 .waits = !alone};
}

/* A checkpoint in the background of steps that take seconds. It makes no progress on the rank
 * `stuck`, and the other ranks wait for it. -1: it is slow. */
static int save_behind(int stuck)
{
  struct comm *comm = job_start_mpi();
  struct job job;
  struct exec_result result;
  if (!comm)
    return 1;
  job_open(&job, comm, &(struct job_setup){.prefetch = 1});
  if (job_reopen(&job, &(struct exec_config){.timeout_s = 1}))
    return tell("the executor");
  atomic_store(&flushes, comm_rank(comm) == stuck);
  watchdog_enter(job.exec, TASK_SAVE, ask, "the checkpoint of step %d", 40);
  const double end = clock_s() + (stuck < 0 ? 2.5 : 30);
  int64_t more = 1;
  for (int step = 0; more; step++) {
    if (exec_step(job.exec, step, step + 1, 0.01, &result))
      return tell("a step");
    atomic_fetch_add(&moved, stuck < 0);
    sleep_s(0.05);
    more = clock_s() < end;
    if (comm_max_i64(comm, &more, 1))
      return tell("the end");
  }
  watchdog_leave(job.exec, TASK_SAVE);
  sleep_s(stuck < 0 ? 1.5 : 0); /* what has ended is not missed */
  job_close(&job);
  comm_destroy(comm);
  return 0;
}

/* A rank does not come to where the others meet it after a step. */
static int miss_meeting(int rank)
{
  struct comm *comm = job_start_mpi();
  struct job job;
  struct exec_result result;
  int64_t all = 1;
  if (!comm)
    return 1;
  job_open(&job, comm, &(struct job_setup){.prefetch = 1});
  if (job_reopen(&job, &(struct exec_config){.timeout_s = 1}))
    return tell("the executor");
  for (int step = 0; step < 3; step++) {
    if (exec_step(job.exec, step, step + 1, 0.01, &result) || exec_drain(job.exec))
      return tell("a step");
    while (step == STUCK_STEP && comm_rank(comm) == rank)
      pause();
    watchdog_enter(job.exec, TASK_MEET, NULL, "the meeting after step %d", step);
    if (comm_max_i64(comm, &all, 1))
      return tell("the meeting");
    watchdog_leave(job.exec, TASK_MEET);
  }
  return 0;
}

/* --- the start of a job -------------------------------------------------- */

/* Rank `stuck` does not come to where the others wait; -1: rank 0 takes long, and the others wait
 * for it. */
static int begin(int stuck)
{
  struct comm *comm = job_start_mpi();
  struct watchdog *start = NULL;
  if (!comm)
    return 1;
  if (watchdog_create(comm, NULL, 1, &start))
    return tell("the watchdog");
  watchdog_start(start, "reading weights-%d", 7);
  while (comm_rank(comm) == stuck)
    pause();
  for (int piece = 0; stuck < 0 && comm_rank(comm) == 0 && piece < 50; piece++) {
    progress_add();
    sleep_s(0.05);
  }
  if (comm_barrier(comm))
    return tell("the others");
  watchdog_started(start);
  sleep_s(1.5); /* what has ended is not missed */
  watchdog_destroy(start);
  comm_destroy(comm);
  return 0;
}

static int broken_rank; /* of which a transport's groups never come about */

static enum status join(struct comm_group *group)
{
  comm_begin_call(group->comm);
  while (broken_rank == -1 || comm_rank(group->comm) == broken_rank)
    pause();
  return comm_end_call(group->comm, STATUS_OK);
}

/* -1: on all ranks. */
static int join_groups(int stuck)
{
  struct comm *comm = job_start_mpi();
  struct watchdog *start = NULL;
  struct job job;
  if (!comm)
    return 1;
  broken_rank = stuck;
  job_open(&job, comm, &(struct job_setup){.prefetch = 1});
  if (watchdog_create(comm, NULL, 1, &start))
    return tell("the watchdog");
  struct comm_transport_ops transport = *comm->transport;
  transport.open = join;
  comm->transport = &transport;
  return job_reopen(&job, &(struct exec_config){.start = start}) ? tell("the executor") : 0;
}

/* --- a checkpoint of which one rank writes for long ---------------------- */

static void ask_unequal(struct watchdog_place *out)
{
  *out = (struct watchdog_place){.moved = atomic_load(&moved),
                                 .doing = "flushing its data to the disk",
                                 .waits = !atomic_load(&flushes)};
}

static int wait_for_a_writer(void)
{
  struct comm *comm = job_start_mpi();
  struct job job;
  if (!comm)
    return 1;
  job_open(&job, comm, &(struct job_setup){.prefetch = 1});
  if (job_reopen(&job, &(struct exec_config){.timeout_s = 1}))
    return tell("the executor");
  atomic_store(&flushes, comm_rank(comm) == 1);
  watchdog_enter(job.exec, TASK_SAVE, ask_unequal, "the checkpoint of step %d", 40);
  for (int piece = 0; comm_rank(comm) == 1 && piece < 70; piece++) {
    atomic_fetch_add(&moved, 1);
    sleep_s(0.05);
  }
  if (comm_barrier(comm))
    return tell("the others");
  watchdog_leave(job.exec, TASK_SAVE);
  job_close(&job);
  comm_destroy(comm);
  return 0;
}

/* --- what mpirun says of it ---------------------------------------------- */

static void ended_by_watchdog(const struct again *run)
{
  if (run->code != status_exit_code(STATUS_TIMEOUT))
    fail_msg("exit code %d:\n%s", run->code, run->text);
  assert_true(run->seconds < 60); /* of which a loaded machine may need most to start and to end */
}

TEST(a_rank_that_sleeps)
{
  const struct again *run = again_run(program, 3, "sleep 1");
  ended_by_watchdog(run);
  again_says(
      run,
      "sluice: rank 0: no progress for 1 s: all ranks wait for rank 1, which is in LOAD m0 (#");
  again_says(run, "rank 1: no progress for ");
  again_says(run, "; in LOAD m0 (#");
  again_says(run, " of step 2; ");
  again_says(run, "  io       in LOAD m0 (#");
  again_says(run, "collective ");
  again_says(run, ", which waits for GATHER h.");
  const char *rank_0 = strstr(run->text, "\nrank 0: "), *rank_1 = strstr(run->text, "\nrank 1: "),
             *rank_2 = strstr(run->text, "\nrank 2: ");
  assert_true(rank_0 && rank_1 && rank_2 && rank_1 < rank_0 && rank_1 < rank_2);
  assert_null(strstr(run->text, "NO ANSWER"));
}

TEST(rank_0_itself)
{
  const struct again *run = again_run(program, 2, "sleep 0");
  ended_by_watchdog(run);
  again_says(
      run,
      "sluice: rank 0: no progress for 1 s: all ranks wait for rank 0, which is in LOAD m0 (#");
}

TEST(a_single_rank)
{
  const struct again *run = again_run(program, 1, "sleep 0");
  ended_by_watchdog(run);
  again_says(run, "sluice: rank 0: no progress for 1 s: the only rank is in LOAD m0 (#");
}

TEST(a_process_that_is_stopped)
{
  const struct again *run = again_run(program, 3, "stop 2");
  ended_by_watchdog(run);
  again_says(run, "rank 2: NO ANSWER\n");
  again_says(run, "all ranks wait for rank 2, which does not answer");
  assert_null(strstr(run->text, "rank 0 does not answer"));
  assert_null(strstr(run->text, "sluice: rank 1: "));
}

/* The limit covers the time in which the rank may have paused. Two runs differ by the limit, and
 * both start and end alike. A question takes 5 s. */
TEST(a_silent_rank_ends_the_job_at_the_limit)
{
  const double base_s = again_run(program, 2, "stop 1")->seconds;
  const struct again *run = again_run(program, 2, "stop12 1");
  ended_by_watchdog(run);
  again_says(run, "all ranks wait for rank 1, which does not answer");
  if (run->seconds - base_s > 11 + 5)
    fail_msg("a limit of 12 s takes %.1f s longer than one of 1 s", run->seconds - base_s);
}

TEST(rank_0_is_stopped)
{
  const struct again *run = again_run(program, 2, "stop 0");
  ended_by_watchdog(run);
  again_says(run, "sluice: rank 1: no progress for 1 s, and rank 0 does not answer");
  again_says(run, "sluice: rank 1: no progress for ");
}

/* One rank tells it for all that see it. */
TEST(rank_0_is_stopped_among_many)
{
  const struct again *run = again_run(program, 5, "stop 0");
  ended_by_watchdog(run);
  again_says(run, "sluice: rank 1: no progress for 1 s, and rank 0 does not answer");
  assert_null(strstr(run->text, "sluice: rank 4: "));
}

TEST(a_rank_that_stays_between_steps)
{
  const struct again *run = again_run(program, 3, "away");
  ended_by_watchdog(run);
  again_says(run, "all ranks wait for rank 1, which is between steps, with step 1 complete");
}

TEST(a_transport_with_an_error)
{
  const struct again *run = again_run(program, 3, "break 1");
  assert_int_equal(run->code, status_exit_code(STATUS_LIBRARY));
  again_says(run, "sluice: rank 1 is in LOAD m0 (#");
  again_says(run, "sluice: rank 0: rank 1: the link is down\n");
}

TEST(a_transport_with_an_error_on_all_ranks)
{
  const struct again *run = again_run(program, 4, "break -1");
  assert_int_equal(run->code, status_exit_code(STATUS_LIBRARY));
  again_says(run, "sluice: rank 0: the link is down (and 3 more ranks report the same)\n");
  assert_null(strstr(run->text, "sluice: rank 1"));
  assert_null(strstr(run->text, "sluice: rank 2"));
  assert_null(strstr(run->text, "sluice: rank 3"));
}

TEST(a_transport_with_an_error_and_rank_0_stopped)
{
  const struct again *run = again_run(program, 2, "breakstop 1");
  assert_int_equal(run->code, status_exit_code(STATUS_LIBRARY));
  again_says(run, "sluice: rank 1: the link is down; rank 0 does not answer\n");
}

TEST(late_rank_that_moves)
{
  const struct again *run = again_run(program, 2, "late 1");
  if (run->code)
    fail_msg("exit code %d:\n%s", run->code, run->text);
  assert_string_equal(run->text, "");
}

/* At the second question rank 1 answers from the collective in which it paused. At the third it has
 * gone on. */
TEST(a_rank_that_recovers)
{
  const struct again *run = again_run(program, 2, "recover 1");
  if (run->code)
    fail_msg("exit code %d:\n%s", run->code, run->text);
  assert_string_equal(run->text, "");
}

TEST(a_rest_between_steps)
{
  const struct again *run = again_run(program, 3, "rest");
  if (run->code)
    fail_msg("exit code %d:\n%s", run->code, run->text);
}

TEST(a_checkpoint_that_is_stuck_behind_the_steps)
{
  const struct again *run = again_run(program, 3, "save 1");
  ended_by_watchdog(run);
  again_says(run, "sluice: rank 0: no progress of a checkpoint for 1 s: all ranks wait for rank "
                  "1, which is in the checkpoint of step 40, flushing its data to the disk");
  again_says(run, "  besides  in the checkpoint of step 40, waiting for the other ranks\n");
}

TEST(a_checkpoint_that_is_slow)
{
  const struct again *run = again_run(program, 2, "save -1");
  if (run->code)
    fail_msg("exit code %d:\n%s", run->code, run->text);
  assert_string_equal(run->text, "");
}

TEST(a_checkpoint_that_one_rank_writes_for_long)
{
  const struct again *run = again_run(program, 3, "writer");
  if (run->code)
    fail_msg("exit code %d:\n%s", run->code, run->text);
  assert_string_equal(run->text, "");
}

TEST(a_rank_that_does_not_start)
{
  const struct again *run = again_run(program, 3, "begin 1");
  ended_by_watchdog(run);
  again_says(run, "sluice: rank 0: no progress of the job's start for 1 s: all ranks wait for rank "
                  "1, which is starting: reading weights-7\n");
  again_says(run, "; starting: reading weights-7, waiting for the other ranks; ");
}

TEST(a_start_that_is_slow)
{
  const struct again *run = again_run(program, 2, "begin -1");
  if (run->code)
    fail_msg("exit code %d:\n%s", run->code, run->text);
  assert_string_equal(run->text, "");
}

TEST(a_group_that_one_rank_does_not_join)
{
  const struct again *run = again_run(program, 3, "join 2");
  ended_by_watchdog(run);
  again_says(run, "rank 2: no progress for ");
  again_says(run,
             "starting: joining the group for gathers, transport mpi, waiting for the other ranks");
  again_says(run, "all ranks wait for rank 2, which is starting: joining the group for gathers, "
                  "transport mpi, waiting for the other ranks");
}

TEST(a_group_that_none_can_join)
{
  const struct again *run = again_run(program, 2, "join -1");
  ended_by_watchdog(run);
  again_says(run,
             "all ranks are in the same collectives, rank 0 starting: joining the group for "
             "gathers, transport mpi, waiting for the other ranks: "
             "the transport does not complete them; run sluice doctor, and set NCCL_DEBUG=INFO to "
             "see NCCL's messages\n");
}

TEST(a_rank_that_misses_a_meeting)
{
  const struct again *run = again_run(program, 3, "meet 2");
  ended_by_watchdog(run);
  again_says(run, "sluice: rank 0: no progress for 1 s: all ranks wait for rank 2, which is "
                  "between steps, with step 2 complete");
  again_says(run, "  besides  in the meeting after step 2\n");
}

int main(int argc, char **argv)
{
  program = argv[0];
  const int rank = argc == 3 ? (int)strtol(argv[2], NULL, 10) : 0;
  if (argc > 1 && strcmp(argv[1], "sleep") == 0)
    return train(rank, SLEEPS, 1);
  if (argc > 1 && strcmp(argv[1], "stop") == 0)
    return train(rank, STOPS, 1);
  if (argc > 1 && strcmp(argv[1], "stop12") == 0)
    return train(rank, STOPS, 12);
  if (argc > 1 && strcmp(argv[1], "break") == 0)
    return train(rank, BREAKS, 20);
  if (argc > 1 && strcmp(argv[1], "breakstop") == 0)
    return train(rank, BREAKS_BUT_STOPPED_0, 20);
  if (argc > 1 && strcmp(argv[1], "begin") == 0)
    return begin(rank);
  if (argc > 1 && strcmp(argv[1], "join") == 0)
    return join_groups(rank);
  if (argc > 1 && strcmp(argv[1], "writer") == 0)
    return wait_for_a_writer();
  if (argc > 1 && strcmp(argv[1], "late") == 0)
    return train(rank, LATE, 20);
  if (argc > 1 && strcmp(argv[1], "recover") == 0)
    return train(rank, RECOVERS, 4);
  if (argc > 1 && strcmp(argv[1], "away") == 0)
    return stay_away();
  if (argc > 1 && strcmp(argv[1], "rest") == 0)
    return rest();
  if (argc > 1 && strcmp(argv[1], "save") == 0)
    return save_behind(rank);
  if (argc > 1 && strcmp(argv[1], "meet") == 0)
    return miss_meeting(rank);
  return test_run(NULL, NULL);
}
