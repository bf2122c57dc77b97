/* A job in which nothing moves ends, and says where; one that moves, or rests, is left alone.
 * Oracles: the output, exit code and duration of mpirun, which this program starts on itself; the
 * bits of a run without a watchdog. */
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/progress.h"
#include "comm/ops.h"
#include "exec/watchdog.h"
#include "job.h"
#include "tests/comm/again.h"
#include "tests/test.h"

static const char *program;

enum { STUCK_STEP = 2 };

/* The behaviour of a stuck rank when it loads step 2. */
enum manner { SLEEPS, STOPS, LATE, RECOVERS, BREAKS, BREAKS_BUT_STOPPED_0 };

/* A process of mpirun runs a scene, with the job of this rank. */
static const struct scene {
  const char *name;
  void (*run)(void);
  enum manner manner;
  double limit_s;
} * scene;
static int stuck; /* the scene's rank */
static struct comm *comm;
static struct job job;

static _Atomic bool broken;

/* RECOVERS: the time at which a rank goes on that has paused in a collective. Its watchdog falls
 * silent a little after it, and answers just before it has gone on. */
static _Atomic double recovery_s;
static _Atomic bool pauses;
static const struct comm_transport_ops *mpi;

static enum status exchange(struct comm_group *group, struct lane *lane,
                            const struct comm_messages *messages)
{
  if (atomic_exchange(&pauses, false)) {
    atomic_store(&recovery_s, clock_s() + 9);
    clock_sleep_until(atomic_load(&recovery_s));
  }
  return mpi->exchange(group, lane, messages);
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

static enum status load(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  const enum manner manner = scene->manner;
  const int rank = comm_rank(comm);
  if (step == STUCK_STEP && rank == 0 && manner == BREAKS_BUT_STOPPED_0)
    raise(SIGSTOP);
  if (manner == RECOVERS && step > STUCK_STEP && rank == 0)
    sleep_s(0.4); /* the others wait for it most of the time */
  if (step == STUCK_STEP && (rank == stuck || stuck < 0)) {
    atomic_store(&broken, manner == BREAKS || manner == BREAKS_BUT_STOPPED_0);
    if (manner == STOPS)
      raise(SIGSTOP);
    atomic_store(&pauses, manner == RECOVERS);
    while (manner != LATE && manner != RECOVERS)
      pause();
    sleep_s(0.6);
  }
  return job_load(arg, step, micro, out);
}

static void need(enum status status, const char *what)
{
  if (!status)
    return;
  fprintf(stderr, "%s: %s\n", what, status_text());
  exit(1);
}

static void open_job(double limit_s)
{
  job_open(&job, comm, "prefetch=1");
  if (limit_s > 0)
    need(job_reopen(&job, &(struct exec_config){.timeout_s = limit_s}), "the executor");
}

static void run_step(int64_t step)
{
  struct exec_result result;
  need(exec_step(job.exec, step, step + 1, 0.01, &result), "a step");
}

static void train(void)
{
  mpi = comm->transport;
  static struct comm_transport_ops transport;
  transport = *mpi;
  transport.check = check_link;
  transport.exchange = exchange;
  comm->transport = &transport;
  open_job(0);
  need(
      job_reopen(
          &job, &(struct exec_config){.load = load, .load_arg = &job, .timeout_s = scene->limit_s}),
      "the executor");
  for (int step = 0; step < (scene->manner == RECOVERS ? 10 : 4); step++)
    run_step(step);
}

/* A rank never begins the step that the others are in. */
static void stay_away(void)
{
  open_job(1);
  for (int step = 0; step < 4; step++) {
    while (step == STUCK_STEP && comm_rank(comm) == stuck)
      pause();
    run_step(step);
  }
}

/* Same bits with a watchdog as without, and a pause between steps that is longer than the limit. */
static void rest(void)
{
  struct job_record plain = job_run(comm, "prefetch=1");
  open_job(0.5);
  for (int step = 0; step < JOB_STEPS; step++) {
    (void)job_step(&job, step);
    if (step == 1) {
      need(exec_drain(job.exec), "the drain");
      sleep_s(1.5);
    }
  }
  job_expect(&plain, job_end(&job));
  job.exec = NULL;
  job_record_free(&plain);
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
static void save_behind(void)
{
  open_job(1);
  atomic_store(&flushes, comm_rank(comm) == stuck);
  watchdog_enter(watchdog_of(job.exec), TASK_SAVE, ask, "the checkpoint of step %d", 40);
  const double end = clock_s() + (stuck < 0 ? 2.5 : 30);
  int64_t more = 1;
  for (int step = 0; more; step++) {
    run_step(step);
    atomic_fetch_add(&moved, stuck < 0);
    sleep_s(0.05);
    more = clock_s() < end;
    need(comm_max_i64(comm, &more, 1), "the end");
  }
  watchdog_leave(watchdog_of(job.exec), TASK_SAVE);
  sleep_s(stuck < 0 ? 1.5 : 0); /* what has ended is not missed */
}

/* A rank does not come to where the others meet it after a step. */
static void miss_meeting(void)
{
  int64_t all = 1;
  open_job(1);
  for (int step = 0; step < 3; step++) {
    run_step(step);
    need(exec_drain(job.exec), "the drain");
    while (step == STUCK_STEP && comm_rank(comm) == stuck)
      pause();
    watchdog_enter(watchdog_of(job.exec), TASK_MEET, NULL, "the meeting after step %d", step);
    need(comm_max_i64(comm, &all, 1), "the meeting");
    watchdog_leave(watchdog_of(job.exec), TASK_MEET);
  }
}

/* A checkpoint of which one rank writes for long. */
static void wait_for_a_writer(void)
{
  open_job(1);
  atomic_store(&flushes, comm_rank(comm) == 1);
  watchdog_enter(watchdog_of(job.exec), TASK_SAVE, ask, "the checkpoint of step %d", 40);
  for (int piece = 0; comm_rank(comm) == 1 && piece < 70; piece++) {
    atomic_fetch_add(&moved, 1);
    sleep_s(0.05);
  }
  need(comm_barrier(comm), "the others");
  watchdog_leave(watchdog_of(job.exec), TASK_SAVE);
}

/* --- the start of a job -------------------------------------------------- */

/* Rank `stuck` does not come to where the others wait; -1: rank 0 takes long, and the others wait
 * for it. */
static void begin(void)
{
  struct watchdog *start = NULL;
  need(watchdog_create(comm, NULL, 1, &start), "the watchdog");
  watchdog_start(start, "reading weights-%d", 7);
  while (comm_rank(comm) == stuck)
    pause();
  for (int piece = 0; stuck < 0 && comm_rank(comm) == 0 && piece < 50; piece++) {
    progress_add();
    sleep_s(0.05);
  }
  need(comm_barrier(comm), "the others");
  watchdog_started(start);
  sleep_s(1.5); /* what has ended is not missed */
  watchdog_destroy(start);
}

/* A transport's groups never come about on the rank `stuck`; -1: on all ranks. */
static enum status join(struct comm_group *group)
{
  comm_begin_call(group->comm);
  while (stuck == -1 || comm_rank(group->comm) == stuck)
    pause();
  return comm_end_call(group->comm, STATUS_OK);
}

static void join_groups(void)
{
  static struct comm_transport_ops transport;
  struct watchdog *start = NULL;
  open_job(0);
  need(watchdog_create(comm, NULL, 1, &start), "the watchdog");
  transport = *comm->transport;
  transport.open = join;
  comm->transport = &transport;
  need(job_reopen(&job, &(struct exec_config){.start = start}), "the executor");
}

static const struct scene scenes[] = {
    {"sleep", train, SLEEPS, 1},
    {"stop", train, STOPS, 1},
    {"stop12", train, STOPS, 12},
    {"break", train, BREAKS, 20},
    {"breakstop", train, BREAKS_BUT_STOPPED_0, 20},
    {"late", train, LATE, 20},
    {"recover", train, RECOVERS, 4},
    {"away", .run = stay_away},
    {"rest", .run = rest},
    {"save", .run = save_behind},
    {"writer", .run = wait_for_a_writer},
    {"meet", .run = miss_meeting},
    {"begin", .run = begin},
    {"join", .run = join_groups},
};
enum { SCENES = sizeof scenes / sizeof *scenes };

/* --- what mpirun says of it ---------------------------------------------- */

/* `words`: what it prints, or, after a !, what it does not; without any it prints nothing. */
struct row {
  int ranks;
  const char *scene;
  enum status end;
  const char *words[6];
};

static const struct again *check(const struct row *row)
{
  const struct again *run = again_run(program, row->ranks, row->scene);
  if (run->code != (row->end ? status_exit_code(row->end) : 0))
    fail_msg("%s: exit code %d:\n%s", row->scene, run->code, run->text);
  if (!row->words[0])
    assert_string_equal(run->text, "");
  if (row->end == STATUS_TIMEOUT)
    assert_true(run->seconds < 60); /* a loaded machine may need most to start and to end */
  for (int w = 0; w < 6 && row->words[w]; w++)
    if (row->words[w][0] != '!')
      again_says(run, row->words[w]);
    else if (strstr(run->text, row->words[w] + 1))
      fail_msg("%s: says '%s':\n%s", row->scene, row->words[w] + 1, run->text);
  return run;
}

static void check_rows(int n, const struct row rows[n])
{
  for (int r = 0; r < n; r++)
    check(&rows[r]);
}
#define ROWS(rows) (int)(sizeof(rows) / sizeof *(rows)), rows

#define NO_PROGRESS "sluice: rank 0: no progress for 1 s: "

TEST(a_rank_that_sleeps)
{
  const struct row row = {3,
                          "sleep 1",
                          STATUS_TIMEOUT,
                          {NO_PROGRESS "all ranks wait for rank 1, which is in LOAD m0 (#",
                           "; in LOAD m0 (#", " of step 2; ", "  io       in LOAD m0 (#",
                           ", which waits for GATHER h.", "!NO ANSWER"}};
  const struct again *run = check(&row);
  again_says(run, "rank 1: no progress for ");
  again_says(run, "collective ");
  const char *rank_0 = strstr(run->text, "\nrank 0: "), *rank_1 = strstr(run->text, "\nrank 1: "),
             *rank_2 = strstr(run->text, "\nrank 2: ");
  assert_true(rank_0 && rank_1 && rank_2 && rank_1 < rank_0 && rank_1 < rank_2);
}

/* With rank 0 stopped, one rank reports for all that see it. */
TEST(steps_in_which_nothing_moves)
{
  static const struct row rows[] = {
      /* clang-format off */
      {2, "sleep 0", STATUS_TIMEOUT,
       {NO_PROGRESS "all ranks wait for rank 0, which is in LOAD m0 (#"}},
      {1, "sleep 0", STATUS_TIMEOUT, {NO_PROGRESS "the only rank is in LOAD m0 (#"}},
      {3, "stop 2", STATUS_TIMEOUT,
       {"rank 2: NO ANSWER\n", "all ranks wait for rank 2, which does not answer",
        "!rank 0 does not answer", "!sluice: rank 1: "}},
      {2, "stop 0", STATUS_TIMEOUT,
       {"sluice: rank 1: no progress for 1 s, and rank 0 does not answer",
        "sluice: rank 1: no progress for "}},
      {5, "stop 0", STATUS_TIMEOUT,
       {"sluice: rank 1: no progress for 1 s, and rank 0 does not answer", "!sluice: rank 4: "}},
      {3, "away 1", STATUS_TIMEOUT,
       {"all ranks wait for rank 1, which is between steps, with step 1 complete"}},
      {3, "meet 2", STATUS_TIMEOUT,
       {NO_PROGRESS "all ranks wait for rank 2, which is between steps, with step 2 complete",
        "  besides  in the meeting after step 2\n"}},
      /* clang-format on */
  };
  check_rows(ROWS(rows));
}

/* The limit covers the time in which the rank may have paused. Two runs differ by the limit, and
 * both start and end alike. A question takes 5 s. */
TEST(a_silent_rank_ends_the_job_at_the_limit)
{
  const double base_s = again_run(program, 2, "stop 1")->seconds;
  const struct row row = {
      2, "stop12 1", STATUS_TIMEOUT, {"all ranks wait for rank 1, which does not answer"}};
  const struct again *run = check(&row);
  if (run->seconds - base_s > 11 + 5)
    fail_msg("a limit of 12 s takes %.1f s longer than one of 1 s", run->seconds - base_s);
}

TEST(transports_with_an_error)
{
  static const struct row rows[] = {
      /* clang-format off */
      {3, "break 1", STATUS_LIBRARY,
       {"sluice: rank 1 is in LOAD m0 (#", "sluice: rank 0: rank 1: the link is down\n"}},
      {4, "break -1", STATUS_LIBRARY,
       {"sluice: rank 0: the link is down (and 3 more ranks report the same)\n",
        "!sluice: rank 1", "!sluice: rank 2", "!sluice: rank 3"}},
      {2, "breakstop 1", STATUS_LIBRARY,
       {"sluice: rank 1: the link is down; rank 0 does not answer\n"}},
      /* clang-format on */
  };
  check_rows(ROWS(rows));
}

/* RECOVERS: at the second question rank 1 answers from the collective in which it paused. At the
 * third it has gone on. */
TEST(jobs_that_move_or_rest)
{
  static const struct row rows[] = {{2, "late 1"},  {2, "recover 1"}, {3, "rest", .words = {""}},
                                    {2, "save -1"}, {3, "writer"},    {2, "begin -1"}};
  check_rows(ROWS(rows));
}

#define JOINING                                                                                    \
  "starting: joining group shard of lane gather, transport mpi, waiting for the other ranks"
TEST(checkpoints_and_starts_that_are_stuck)
{
  static const struct row rows[] = {
      /* clang-format off */
      {3, "save 1", STATUS_TIMEOUT,
       {"sluice: rank 0: no progress of a checkpoint for 1 s: all ranks wait for rank 1, which is "
        "in the checkpoint of step 40, flushing its data to the disk",
        "  besides  in the checkpoint of step 40, waiting for the other ranks\n"}},
      {3, "begin 1", STATUS_TIMEOUT,
       {"sluice: rank 0: no progress of the job's start for 1 s: all ranks wait for rank 1, which "
        "is starting: reading weights-7\n",
        "; starting: reading weights-7, waiting for the other ranks; "}},
      {3, "join 2", STATUS_TIMEOUT,
       {"rank 2: no progress for ", "all ranks wait for rank 2, which is " JOINING}},
      {2, "join -1", STATUS_TIMEOUT,
       {"all ranks are in the same collectives, rank 0 " JOINING
        ": the transport does not complete them; run sluice doctor, and set NCCL_DEBUG=INFO to "
        "see NCCL's messages\n"}},
      /* clang-format on */
  };
  check_rows(ROWS(rows));
}

int main(int argc, char **argv)
{
  device_prepare(argv); /* as the program does, before a rank can warn of unknown processors */
  program = argv[0];
  for (int i = 0; i < SCENES && argc > 1; i++)
    if (strcmp(argv[1], scenes[i].name) == 0)
      scene = &scenes[i];
  if (!scene)
    return test_run(NULL, NULL);
  stuck = argc == 3 ? (int)strtol(argv[2], NULL, 10) : 0;
  comm = job_start_mpi();
  if (!comm)
    return 1;
  scene->run();
  if (job.exec)
    job_close(&job);
  comm_destroy(comm);
  return 0;
}
