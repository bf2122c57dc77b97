/* Teams and threads. Oracles: counting; the kernel's own answer to which CPU a thread runs on;
 * ThreadSanitizer in its build. */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/team.h"
#include "tests/test.h"

enum { MOST = 8 };

struct counts {
  int workers;
  int64_t calls[MOST][8];
}; /* plain, not atomic: team_run orders them */

static void count_call(void *arg, int worker, int workers)
{
  struct counts *counts = arg;
  counts->calls[worker][0]++;
  if (worker == 0)
    counts->workers = workers;
}

TEST(test_each_worker_once)
{
  for (int threads = 1; threads <= MOST; threads += threads) {
    enum { RUNS = 3000 };
    struct counts counts = {0};
    struct team *team;
    must(team_create(threads, NULL, &team));
    assert_int_equal(team_size(team), threads);
    int64_t calls = mem_calls();
    for (int64_t run = 1; run <= RUNS; run++) {
      team_run(team, count_call, &counts);
      for (int w = 0; w < threads; w++)
        assert_int_equal(counts.calls[w][0], run); /* all have finished when it returns */
      if (run % 1000 == 0)
        usleep(2000); /* long enough for the workers to fall asleep */
    }
    assert_int_equal(mem_calls(), calls);
    assert_int_equal(counts.workers, threads);
    team_destroy(team);
  }
}

TEST(test_no_team)
{
  struct counts counts = {0};
  struct team *team = NULL;
  assert_int_equal(team_size(NULL), 1);
  team_run(NULL, count_call, &counts);
  assert_int_equal(counts.calls[0][0], 1);
  assert_int_equal(counts.workers, 1);
  team_destroy(NULL);
  assert_int_equal(team_create(0, NULL, &team), STATUS_INTERNAL);
  assert_null(team);
}

static void slow_caller(void *arg, int worker, int workers)
{
  (void)workers;
  if (worker > 0)
    usleep(3000); /* the caller sleeps until the last worker is done */
  count_call(arg, worker, workers);
}

TEST(test_waiting_caller_is_woken)
{
  struct counts counts = {0};
  struct team *team;
  must(team_create(3, NULL, &team));
  for (int run = 1; run <= 20; run++) {
    team_run(team, slow_caller, &counts);
    assert_int_equal(counts.calls[1][0] + counts.calls[2][0], 2 * run);
  }
  team_destroy(team);
}

/* Slices lie end to end, start at multiples of the grain, and differ by at most one grain. */
static void check_slices(int64_t n, int64_t grain, int workers)
{
  int64_t at = 0, least = INT64_MAX, most = 0;
  for (int w = 0; w < workers; w++) {
    int64_t begin, end;
    team_slice(n, grain, w, workers, &begin, &end);
    assert_int_equal(begin, at);
    assert_true(end >= begin && end <= n);
    assert_true(begin % grain == 0 || begin == n);
    int64_t grains = (end - begin) / grain + ((end - begin) % grain != 0);
    least = grains < least ? grains : least;
    most = grains > most ? grains : most;
    at = end;
  }
  assert_int_equal(at, n);
  assert_true(most - least <= 1);
}

TEST(test_slices)
{
  static const int64_t lengths[] = {0, 1, 2, 7, 64, 1000, 4097, INT64_C(1) << 40, INT64_MAX};
  static const int64_t grains[] = {1, 3, 64, 1000, INT64_C(1) << 33};
  for (int n = 0; n < 9; n++)
    for (int g = 0; g < 5; g++)
      for (int workers = 1; workers <= 9; workers++)
        check_slices(lengths[n], grains[g], workers);
}

static void where_am_i(void *arg, int worker, int workers)
{
  (void)workers;
  ((int *)arg)[worker] = sched_getcpu();
}

TEST(test_binding)
{
  cpu_set_t mask;
  int cores[3] = {-1, -1, -1}, seen[3];
  struct team *team;
  assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
  for (int cpu = 0, n = 0; cpu < CPU_SETSIZE && n < 3; cpu++)
    if (CPU_ISSET(cpu, &mask))
      cores[n++] = cpu;
  for (int i = 1; i < 3; i++)
    cores[i] = cores[i] < 0 ? cores[i - 1] : cores[i];
  must(team_create(3, cores, &team));
  for (int run = 0; run < 50; run++) {
    team_run(team, where_am_i, seen);
    assert_int_equal(seen[1], cores[1]);
    assert_int_equal(seen[2], cores[2]);
  }
  const int swapped[3] = {cores[0], cores[2], cores[1]};
  must(team_pin(team, swapped));
  for (int run = 0; run < 50; run++) {
    team_run(team, where_am_i, seen);
    assert_int_equal(seen[1], cores[2]);
    assert_int_equal(seen[2], cores[1]);
  }
  must_fail(team_pin(team, (const int[]){0, cores[1], 8000}), STATUS_LIBRARY,
            "cannot bind thread 2 of 3 to CPU 8000");
  must(team_pin(NULL, cores));
  team_destroy(team);

  int64_t held = mem_usage(MEM_META).bytes;
  cores[2] = 8000; /* more than any machine has that runs this */
  must_fail(team_create(3, cores, &team), STATUS_LIBRARY, "thread 2 of 3 on CPU 8000");
  assert_int_equal(mem_usage(MEM_META).bytes, held);
}

static enum status body(void *arg)
{
  char name[16];
  if (pthread_getname_np(pthread_self(), name, sizeof name) != 0 ||
      strcmp(name, "a-name-of-16-by") != 0)
    return status_set(STATUS_INTERNAL, "the thread is called '%s'", name);
  *(int *)arg = 7;
  return STATUS_OK;
}

static enum status failing(void *arg)
{
  return status_set(STATUS_PLAN, "no way %s", (const char *)arg);
}

TEST(test_threads)
{
  int value = 0;
  struct thread *thread;
  must(thread_start("a-name-of-16-bytes", body, &value, &thread));
  must(thread_join(thread));
  assert_int_equal(value, 7);
  must(thread_start("fails", failing, "out", &thread));
  assert_int_equal(thread_join(thread), STATUS_PLAN);
  assert_string_equal(status_text(), "no way out");
  must(thread_join(NULL));
}

TEST_MAIN(NULL, NULL)
