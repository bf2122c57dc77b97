/* Counters of this process and of threads that it starts. Oracles: a loop whose instructions are known; fresh pages, each of which faults once; sleeps, each of
 * which is a switch; the threads' own CPU clocks. Machines that this one is not are made by a seccomp filter, under which the kernel answers
 * perf_event_open() with an error of our choice, in this program started again with the error as its argument. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "config.h"
#include "exec/counters.h"
#include "exec/tally.h"

enum { PAGES = 2000, SLEEPS = 30, TURNS = 50 * 1000 * 1000, SKIP = 77 };

#ifdef __SANITIZE_THREAD__
enum { FAULTS = 4 * PAGES }; /* its shadow of a page has pages of its own */
#else
enum { FAULTS = PAGES + PAGES / 2 };
#endif

#ifdef HAVE_PAPI
static const bool have_papi = true;
#else
static const bool have_papi = false;
#endif

static int forbidden; /* errno of perf_event_open(), 0: as the kernel pleases */

static int64_t cpu_ns(clockid_t clock)
{
  struct timespec t;
  assert_int_equal(clock_gettime(clock, &t), 0);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void sleep_ns(long ns)
{
  nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Threads that a library started when it was loaded may spin for a while before they sleep. */
static int wait_for_quiet(void **state)
{
  (void)state;
  int64_t before, after = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  int waits = 0;
  do {
    before = after;
    sleep_ns(20 * 1000 * 1000);
    after = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  } while (after - before > 1000 * 1000 && ++waits < 100);
  return 0;
}

/* PAGES faults, SLEEPS switches, and at least 2 instructions a turn (exactly 2 where the loop is ours). Returns the CPU time that it took. */
static void *work(void *ns)
{
  const int64_t start = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
  const long size = sysconf(_SC_PAGESIZE);
  char *page = mmap(NULL, (size_t)(PAGES * size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(page, MAP_FAILED);
  (void)madvise(page, (size_t)(PAGES * size), MADV_NOHUGEPAGE); /* a kernel without huge pages refuses */
  for (int i = 0; i < PAGES; i++)
    ((volatile char *)page)[i * size] = 1;
  assert_int_equal(munmap(page, (size_t)(PAGES * size)), 0);
#ifdef __x86_64__
  int64_t turns = TURNS;
  __asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(turns) : : "cc");
#else
  for (volatile int turns = TURNS; turns > 0; turns--)
    continue;
#endif
  for (int i = 0; i < SLEEPS; i++)
    sleep_ns(100 * 1000);
  *(int64_t *)ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - start;
  return NULL;
}

static void expect_between(int64_t value, double least, double most)
{
  if ((double)value < least || (double)value > most)
    fail_msg("%lld is not between %.0f and %.0f", (long long)value, least, most);
}

/* What `times` times work() costs, in whatever is counted here. */
static void expect_work(const int64_t value[], int times, int64_t ns)
{
  if (value[COUNTER_INSTRUCTIONS] >= 0)
    expect_between(value[COUNTER_INSTRUCTIONS], 2.0 * TURNS * times, 4.0 * TURNS * times);
  if (value[COUNTER_CYCLES] >= 0)
    expect_between(value[COUNTER_CYCLES], 0.2 * TURNS * times, 20.0 * TURNS * times);
  if (value[COUNTER_TASK_CLOCK] >= 0)
    expect_between(value[COUNTER_TASK_CLOCK], 0.8 * (double)ns, 1.2 * (double)ns + 2e7); /* starting a thread under ThreadSanitizer */
  if (value[COUNTER_PAGE_FAULTS] >= 0)
    expect_between(value[COUNTER_PAGE_FAULTS], PAGES * times, 1.0 * FAULTS * times);
  if (value[COUNTER_CONTEXT_SWITCHES] >= 0)
    expect_between(value[COUNTER_CONTEXT_SWITCHES], SLEEPS * times, 1e6);
}

static void expect_nothing(const int64_t value[])
{
  for (int kind = 0; kind < COUNTER_KINDS; kind++)
    assert_int_equal(value[kind], -1);
}

static void kinds_have_names(void **state)
{
  (void)state;
  for (enum counter a = 0; a < COUNTER_KINDS; a++) {
    assert_true(*counter_name(a));
    assert_non_null(counter_unit(a));
    for (enum counter b = 0; b < a; b++)
      assert_string_not_equal(counter_name(a), counter_name(b));
  }
}

static void no_handle_counts_nothing(void **state)
{
  (void)state;
  int64_t value[COUNTER_KINDS] = {0};
  counters_read(NULL, value);
  expect_nothing(value);
  assert_int_equal(counters_events(NULL), 0);
  assert_true(*counters_note(NULL));
  counters_destroy(NULL);
}

/* Hardware counters or the kernel's account, never some of each; and a note about all that is not there. */
static void what_is_counted_is_told(void **state)
{
  (void)state;
  int64_t value[COUNTER_KINDS];
  struct counters *counters = counters_create();
  assert_non_null(counters);
  counters_read(counters, value);
  int hardware = 0, kernel = 0;
  for (int kind = 0; kind < COUNTER_KINDS; kind++)
    *(kind <= COUNTER_L3_MISSES ? &hardware : &kernel) += value[kind] >= 0;
  print_message("%d events: %s\n", counters_events(counters), counters_note(counters));
  assert_int_equal(hardware + kernel, counters_events(counters));
  assert_int_equal(kernel, hardware ? 0 : 3);
  assert_int_equal(*counters_note(counters) == '\0', hardware == 3);
  if (!have_papi || forbidden)
    assert_int_equal(kernel, 3);
  if (!have_papi)
    assert_non_null(strstr(counters_note(counters), "--with-papi"));
  else if (forbidden == EPERM)
    assert_non_null(strstr(counters_note(counters), "perf_event_paranoid"));
  else if (forbidden == ENOSYS)
    assert_non_null(strstr(counters_note(counters), "PAPI_set_opt"));
  counters_destroy(counters);
}

/* The same of lanes, whose threads the kernel's account covers whatever is forbidden. */
static void what_lanes_count_is_told(void **state)
{
  (void)state;
  char name[] = "auto", *names[] = {name};
  struct tally *tally;
  if (tally_create(&(struct option_strings){.n = 1, .item = names}, &tally))
    fail_msg("%s", status_text());
  print_message("%d events: %s\n", tally_events(tally), tally_note(tally));
  assert_in_range(tally_events(tally), 3, 7);
  assert_int_equal(*tally_note(tally) == '\0', tally_events(tally) == 7);
  if (!have_papi || forbidden)
    assert_int_equal(tally_events(tally), 3);
  if (have_papi && forbidden == EPERM)
    assert_non_null(strstr(tally_note(tally), "perf_event_paranoid"));
  tally_destroy(tally);
}

static void work_here_and_in_threads_is_counted(void **state)
{
  (void)state;
  int64_t value[COUNTER_KINDS], ns[2];
  pthread_t thread;
  struct counters *counters = counters_create();
  assert_non_null(counters);

  work(&ns[0]);
  counters_read(counters, value);
  expect_work(value, 1, ns[0]);

  assert_int_equal(pthread_create(&thread, NULL, work, &ns[0]), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  counters_read(counters, value);
  expect_work(value, 1, ns[0]);

  assert_int_equal(pthread_create(&thread, NULL, work, &ns[0]), 0);
  work(&ns[1]);
  assert_int_equal(pthread_join(thread, NULL), 0);
  counters_read(counters, value);
  expect_work(value, 2, ns[0] + ns[1]);
  counters_destroy(counters);
}

static void reads_tell_what_is_new(void **state)
{
  (void)state;
  int64_t value[COUNTER_KINDS], ns;
  work(&ns); /* before creation: belongs to nobody */
  struct counters *counters = counters_create();
  assert_non_null(counters);
  for (int i = 0; i < 2; i++) {
    counters_read(counters, value);
    if (value[COUNTER_INSTRUCTIONS] >= 0)
      expect_between(value[COUNTER_INSTRUCTIONS], 0, TURNS);
    if (value[COUNTER_PAGE_FAULTS] >= 0)
      expect_between(value[COUNTER_PAGE_FAULTS], 0, PAGES / 2);
    if (value[COUNTER_TASK_CLOCK] >= 0)
      expect_between(value[COUNTER_TASK_CLOCK], 0, 0.5 * (double)ns);
    work(&ns);
    counters_read(counters, value);
  }
  counters_destroy(counters);
}

/* This program once more, where perf_event_open() fails with `error`. */
static void expect_success_with(int error)
{
  char number[16];
  int status;
  snprintf(number, sizeof number, "%d", error);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "test_counters", number, (char *)NULL);
    _exit(126);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == SKIP)
    skip();
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_machine_without_counters(void **state)
{
  (void)state;
  expect_success_with(ENOENT);
}

static void a_kernel_that_forbids(void **state)
{
  (void)state;
  expect_success_with(EPERM);
}

static void a_kernel_that_fails(void **state)
{
  (void)state;
  expect_success_with(ENOSYS);
}

static int forbid(int error)
{
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
  forbidden = error;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kinds_have_names),
      cmocka_unit_test(no_handle_counts_nothing),
      cmocka_unit_test(what_is_counted_is_told),
      cmocka_unit_test(what_lanes_count_is_told),
      cmocka_unit_test(work_here_and_in_threads_is_counted),
      cmocka_unit_test(reads_tell_what_is_new),
  };
  const struct CMUnitTest machines[] = {
      cmocka_unit_test(a_machine_without_counters),
      cmocka_unit_test(a_kernel_that_forbids),
      cmocka_unit_test(a_kernel_that_fails),
  };
  if (argc > 1 && forbid((int)strtol(argv[1], NULL, 10)) != 0)
    return SKIP;
  const int failed = cmocka_run_group_tests(tests, wait_for_quiet, NULL);
  return failed || forbidden ? failed : cmocka_run_group_tests(machines, NULL, NULL);
}
