/* Tokens that are read one step ahead. Oracles: the same steps without prefetch, bit for bit; what
 * the load itself has counted; and what LOAD took by the executor's own account. */
/* ranks: 1 2 */
#include <stdatomic.h>
#include <time.h>

#include "base/clock.h"
#include "job/prefetch.h"
#include "tests/exec/job.h"
#include "tests/test.h"

enum { MICROS = 3, SLOW_MS = 20 };

static struct comm *comm;

static void sleep_ms(int ms)
{
  const struct timespec pause = {.tv_nsec = ms * 1000000L};
  (void)nanosleep(&pause, NULL);
}

/* An exec_load that takes its time, and says what it was asked for. */
struct source {
  struct job *job;
  int pause_ms;
  int64_t fail_step; /* in its micro-batch 1; -1: never */
  _Atomic int64_t begun, ended;
};

static enum status load_slowly(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  struct source *source = arg;
  source->begun++;
  sleep_ms(source->pause_ms);
  const enum status status = step == source->fail_step && micro == 1
                                 ? status_set(STATUS_IO, "shard 7 is gone")
                                 : job_load(source->job, step, micro, out);
  source->ended++;
  return status;
}

/* That many reads have ended; no more begin of themselves. */
static void wait_for_reads(struct source *source, int64_t reads)
{
  const double end = clock_s() + 60;
  while (source->ended < reads && clock_s() < end)
    sleep_ms(1);
  sleep_ms(10);
  assert_int_equal(source->ended, reads);
  assert_int_equal(source->begun, reads);
}

/* A job that loads from `source`, through a prefetch thread that knows of `steps` steps where there
 * is one. */
static void open_job(struct job *job, struct comm *of, struct source *source, int64_t steps,
                     struct prefetch **prefetch)
{
  job_open(job, of, "micros=%d", MICROS);
  source->job = job;
  struct exec_config with = {.load = load_slowly, .load_arg = source};
  if (prefetch) {
    must(prefetch_create(job->plan, load_slowly, source, NULL, prefetch));
    with.load = prefetch_load;
    with.load_arg = *prefetch;
    prefetch_begin(*prefetch, 0, steps);
  }
  must(job_reopen(job, &with));
}

static void close_job(struct job *job, struct prefetch *prefetch)
{
  exec_destroy(job->exec);
  job->exec = NULL;
  prefetch_destroy(prefetch);
  job_close(job);
}

static struct job_record record_run(bool ahead)
{
  struct job job;
  struct prefetch *prefetch = NULL;
  struct source source = {.fail_step = -1};
  open_job(&job, comm, &source, JOB_STEPS, ahead ? &prefetch : NULL);
  for (int64_t step = 0; step < JOB_STEPS; step++)
    (void)job_step(&job, step);
  struct job_record record = job.record;
  record.params = job_collect(&job);
  record.n = job_parameters(&job);
  assert_int_equal(source.ended, JOB_STEPS * MICROS); /* none after the last step */
  close_job(&job, prefetch);
  return record;
}

TEST(the_bits_are_the_same)
{
  struct job_record at_once = record_run(false);
  job_expect(&at_once, record_run(true));
  job_record_free(&at_once);
}

/* Seconds of LOAD in `steps` steps after the first one. Each step lasts until everything that can
 * be read ahead has been read. */
static double load_seconds(struct source *source, int64_t steps, bool ahead)
{
  struct job job;
  struct prefetch *prefetch = NULL;
  struct exec_profile profile;
  open_job(&job, comm, source, steps + 1, ahead ? &prefetch : NULL);
  for (int64_t step = 0; step <= steps; step++) {
    job_step(&job, step);
    wait_for_reads(source, (ahead && step < steps ? step + 2 : step + 1) * MICROS);
    must(exec_drain(job.exec));
    if (step == 0)
      exec_profile(job.exec, &profile); /* forget it */
  }
  exec_profile(job.exec, &profile);
  close_job(&job, prefetch);
  return profile.op_s[OP_LOAD];
}

TEST(a_slow_read_hides_behind_the_step_before)
{
  enum { STEPS = 4 };
  const double reading = 1e-3 * SLOW_MS * MICROS * STEPS;
  struct source at_once = {.pause_ms = SLOW_MS, .fail_step = -1},
                ahead = {.pause_ms = SLOW_MS, .fail_step = -1};
  assert_true(load_seconds(&at_once, STEPS, false) >= reading);
  const double exposed = load_seconds(&ahead, STEPS, true);
  if (exposed > reading / 4)
    fail_msg("of %g s of reading %g s hold up the steps", reading, exposed);
}

/* The next step is whole when it is awaited. A skipped step makes room for the one after it.
 * Oracle: a run without it, whose later steps have other tokens. */
TEST(steps_are_awaited_and_skipped)
{
  struct job job;
  struct prefetch *prefetch;
  struct source source = {.pause_ms = 2, .fail_step = 3};
  open_job(&job, comm, &source, 4, &prefetch);
  must(prefetch_await(prefetch, 0));
  assert_int_equal(source.ended, MICROS);
  job_step(&job, 0);
  must(prefetch_await(prefetch, 1));
  assert_int_equal(source.ended, 2 * MICROS);
  prefetch_skip(prefetch);
  exec_skip(job.exec);
  must(prefetch_await(prefetch, 2));
  job_step(&job, 2);
  must_fail(prefetch_await(prefetch, 3), STATUS_IO, "shard 7 is gone");
  const double after_skip = job.record.loss[2];
  close_job(&job, prefetch);
  source = (struct source){.fail_step = -1};
  open_job(&job, comm, &source, 0, NULL);
  job_step(&job, 0);
  exec_skip(job.exec);
  job_step(&job, 2);
  assert_true(job.record.loss[2] == after_skip);
  close_job(&job, NULL);
}

/* Not before: the steps ahead of it are whole. */
TEST(a_failure_is_told_by_the_step_that_it_belongs_to)
{
  struct job job;
  struct comm *alone;
  struct prefetch *prefetch;
  struct exec_result result = {.loss = -1};
  struct source source = {.fail_step = 2};
  must(comm_create_fake(0, 1, 1, &alone));
  open_job(&job, alone, &source, 10, &prefetch);
  job_step(&job, 0);
  wait_for_reads(&source, 2 * MICROS);
  job_step(&job, 1);
  wait_for_reads(&source, 2 * MICROS + 2); /* the failed one, and none after it */
  must(exec_drain(job.exec));
  assert_int_equal(exec_step(job.exec, 2, 3, 0.01, &result), STATUS_IO);
  assert_string_equal(status_text(), "shard 7 is gone");
  assert_true(result.loss == -1);
  close_job(&job, prefetch);
  assert_int_equal(source.begun, 2 * MICROS + 2);
  comm_destroy(alone);
}

/* ---- the prefetch by itself ---- */

static enum status take(struct prefetch *prefetch, const struct job *job, int64_t step, int micro)
{
  int32_t room[10][JOB_BATCH * JOB_SEQUENCE];
  const struct model_batch got = {room[0], room[1], (float *)room[2], room[3], room[4]},
                           want = {room[5], room[6], (float *)room[7], room[8], room[9]};
  const size_t bytes =
      (size_t)(job->plan->input.shape.micro_batch * job->plan->input.shape.sequence) *
      sizeof **room;
  const enum status status = prefetch_load(prefetch, step, micro, &got);
  if (status)
    return status;
  must(job_load((void *)job, step, micro, &want));
  for (int i = 0; i < 5; i++)
    assert_memory_equal(room[i], room[5 + i], bytes);
  return STATUS_OK;
}

TEST(only_announced_data_are_read)
{
  struct job job;
  struct prefetch *prefetch;
  struct source source = {.job = &job, .fail_step = -1};
  job_plan(&job, comm, "micros=%d input=packed", MICROS);
  must(prefetch_create(job.plan, load_slowly, &source, NULL, &prefetch));
  assert_int_equal(take(prefetch, &job, 0, 0), STATUS_INTERNAL);
  wait_for_reads(&source, 0);
  for (int64_t round = 0; round < 3; round++) { /* evaluations, of one step and more */
    const int64_t first = 7 * round;
    prefetch_begin(prefetch, first, round + 1);
    assert_int_equal(take(prefetch, &job, first, 1), STATUS_INTERNAL);
    for (int64_t i = 0; i < (round + 1) * MICROS; i++)
      must(take(prefetch, &job, first + i / MICROS, (int)(i % MICROS)));
    must_fail(take(prefetch, &job, first + round + 1, 0), STATUS_INTERNAL,
              "not the next one that was announced");
    wait_for_reads(&source, (round + 1) * (round + 2) / 2 * MICROS);
  }
  prefetch_destroy(prefetch);
  job_close(&job);
}

TEST(an_early_end_ends_the_read_under_way)
{
  struct job job;
  struct prefetch *prefetch;
  struct source source = {.job = &job, .pause_ms = SLOW_MS, .fail_step = -1};
  job_plan(&job, comm, "micros=%d input=packed", MICROS);
  must(prefetch_create(job.plan, load_slowly, &source, NULL, &prefetch));
  prefetch_begin(prefetch, 0, 100);
  must(take(prefetch, &job, 0, 0));
  prefetch_destroy(prefetch);
  const int64_t begun = source.begun;
  assert_int_equal(source.ended, begun);
  assert_true(begun <= MICROS + 1);
  sleep_ms(2 * SLOW_MS);
  assert_int_equal(source.begun, begun);
  prefetch_destroy(NULL);
  job_close(&job);
}

int main(void)
{
  comm = job_start_mpi();
  if (!comm)
    return 1;
  int failed = test_run(NULL, NULL);
  comm_destroy(comm);
  return failed;
}
