/* Counters of a whole process: of its first thread and of threads that it starts. Oracles: a loop
 * whose instructions are known; fresh pages, each of which faults once; sleeps, each of which is a
 * switch; the threads' own CPU clocks. A seccomp filter simulates other machines: the kernel
 * answers perf_event_open() with an error of our choice. This program is started again with the
 * error as its argument. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "exec/op_counters.h"
#include "tests/test.h"

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
FIXTURE(wait_for_quiet)
{
  int64_t before, after = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  int waits = 0;
  do {
    before = after;
    sleep_ns(20 * 1000 * 1000);
    after = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  } while (after - before > 1000 * 1000 && ++waits < 100);
  return 0;
}

/* PAGES faults, SLEEPS switches, and at least 2 instructions a turn (exactly 2 where the loop is
 * ours). Returns the CPU time that it took. */
static void *work(void *ns)
{
  const int64_t start = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
  const long size = sysconf(_SC_PAGESIZE);
  char *page = mmap(NULL, (size_t)(PAGES * size), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(page, MAP_FAILED);
  (void)madvise(page, (size_t)(PAGES * size),
                MADV_NOHUGEPAGE); /* a kernel without huge pages refuses */
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

static struct op_counters *counters;
static struct op_counters_lane *process;

FIXTURE(open_process)
{
  must(op_counters_create(COUNT_PROCESS, 0, NULL, &counters));
  must(op_counters_lane_create(counters, NULL, &process));
  must(op_counters_start(process));
  return 0;
}

FIXTURE(close_process)
{
  op_counters_stop(process);
  op_counters_lane_destroy(process);
  op_counters_destroy(counters);
  return 0;
}

/* The count of an event since the last read; -1: the event is not counted. */
static int64_t of(const int64_t value[], const char *key)
{
  for (int e = 0; e < op_counters_events(counters); e++)
    if (!strcmp(op_counters_key(counters, e), key))
      return value[e];
  return -1;
}

static void expect(const int64_t value[], const char *key, double least, double most)
{
  if (of(value, key) >= 0)
    expect_between(of(value, key), least, most);
}

/* The cost of `times` calls of work(), in the unit of the counted event. */
static void expect_work(const int64_t value[], int times, int64_t ns)
{
  expect(value, "instructions", 2.0 * TURNS * times, 4.0 * TURNS * times);
  expect(value, "cycles", 0.2 * TURNS * times, 20.0 * TURNS * times);
  /* 2e7: starting a thread under ThreadSanitizer */
  expect(value, "task_clock_ns", 0.8 * (double)ns, 1.2 * (double)ns + 2e7);
  expect(value, "page_faults", PAGES * times, 1.0 * FAULTS * times);
  expect(value, "context_switches", SLEEPS * times, 1e6);
}

/* The kernel's account always, hardware counters if the machine has them; a note names the rest. */
static void expect_reported(const char *of_perf)
{
  const int events = op_counters_events(counters);
  const char *note = op_counters_note(counters);
  print_message("%d events: %s\n", events, note);
  assert_in_range(events, 3, 7);
  assert_int_equal(*note == '\0', events == 7);
  if (!have_papi || forbidden)
    assert_int_equal(events, 3);
  if (!have_papi)
    assert_non_null(strstr(note, "--with-papi"));
  else if (forbidden == EPERM)
    assert_non_null(strstr(note, "perf_event_paranoid"));
  else if (forbidden == ENOSYS)
    assert_non_null(strstr(note, of_perf));
}

TEST_WITH(counts_are_reported, open_process, close_process)
{
  int64_t value[OP_COUNTERS];
  op_counters_read(process, value);
  assert_true(of(value, "task_clock_ns") >= 0);
  assert_true(of(value, "page_faults") >= 0);
  assert_true(of(value, "context_switches") >= 0);
  expect_reported("PAPI_set_opt");
}

/* The same of lanes, whose threads the kernel's account covers whatever is forbidden. */
TEST(counts_of_lanes_are_reported)
{
  char name[] = "auto", *names[] = {name};
  must(op_counters_create(COUNT_LANES, 1, names, &counters));
  expect_reported("");
  op_counters_destroy(counters);
}

TEST_WITH(work_here_and_in_threads_is_counted, open_process, close_process)
{
  int64_t value[OP_COUNTERS], ns[2];
  pthread_t thread;

  op_counters_begin(process);
  work(&ns[0]);
  op_counters_read(process, value);
  expect_work(value, 1, ns[0]);

  assert_int_equal(pthread_create(&thread, NULL, work, &ns[0]), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  op_counters_read(process, value);
  expect_work(value, 1, ns[0]);

  assert_int_equal(pthread_create(&thread, NULL, work, &ns[0]), 0);
  work(&ns[1]);
  assert_int_equal(pthread_join(thread, NULL), 0);
  op_counters_read(process, value);
  expect_work(value, 2, ns[0] + ns[1]);
}

TEST(reads_tell_what_is_new)
{
  int64_t value[OP_COUNTERS], ns;
  work(&ns); /* before creation: not counted */
  open_process(NULL);
  for (int i = 0; i < 2; i++) {
    op_counters_read(process, value);
    expect(value, "instructions", 0, TURNS);
    expect(value, "page_faults", 0, PAGES / 2);
    expect(value, "task_clock_ns", 0, 0.5 * (double)ns);
    work(&ns);
    op_counters_read(process, value);
  }
  close_process(NULL);
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
    execl("/proc/self/exe", "test_op_counters_process", number, (char *)NULL);
    _exit(126);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == SKIP)
    skip();
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* A machine without counters, a kernel that forbids them, and one that fails. */
TEST(other_machines)
{
  static const int errors[] = {ENOENT, EPERM, ENOSYS};
  for (int e = 0; e < 3 && !forbidden; e++)
    expect_success_with(errors[e]);
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
  if (argc > 1 && forbid((int)strtol(argv[1], NULL, 10)) != 0)
    return SKIP;
  return test_run(wait_for_quiet, NULL);
}
