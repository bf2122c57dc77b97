/* Counters of the threads of lanes. Oracles: our own PAPI in front of the library's. Its events are
 * numbers that this program adds to, on the thread that reads them. Fresh pages fault once each. A
 * sleep is one switch. The threads have their own CPU clocks. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "config.h"
#include "exec/op_counters.h"
#include "tests/test.h"
#ifdef HAVE_PAPI
#include <papi.h>
#endif

enum { WORKERS = 3, PAGES = 500, SLEEPS = 10 };

static struct op_counters *counters;
static struct op_counters_lane *lane;
static struct team *team;
static int64_t spent[OP_COUNTERS];

/* `names`: with commas between them. */
static enum status create(const char *names)
{
  static char text[256];
  char *name[OP_COUNTERS + 1];
  int n = 0;
  snprintf(text, sizeof text, "%s", names);
  for (char *next = strtok(text, ","); next; next = strtok(NULL, ","))
    name[n++] = next;
  counters = NULL;
  return op_counters_create(COUNT_LANES, n, name, &counters);
}

/* A lane with so many workers; 1: no team. */
static void open_lane(int workers)
{
  must(workers > 1 ? team_create(workers, NULL, &team) : STATUS_OK);
  must(op_counters_lane_create(counters, team, &lane));
  must(op_counters_start(lane));
}

static void close_lane(void)
{
  op_counters_stop(lane);
  op_counters_lane_destroy(lane);
  team_destroy(team);
  team = NULL;
}

static int event_of(const char *key)
{
  for (int e = 0; e < op_counters_events(counters); e++)
    if (!strcmp(op_counters_key(counters, e), key))
      return e;
  return -1;
}

static void refused(const char *name, const char *says)
{
  assert_int_not_equal(create(name), STATUS_OK);
  assert_null(counters);
  if (!strstr(status_text(), says) || !strstr(status_text(), name) ||
      !strstr(status_text(), "run.counters=auto"))
    fail_msg("'%s' does not say '%s' of '%s'", status_text(), says, name);
}

/* --- a PAPI of our own --------------------------------------------------- */

#ifdef HAVE_PAPI

enum { FAKE_FIZZ = PAPI_NATIVE_MASK | 7, SETS = 64 };

static struct set {
  bool used, running;
  pthread_t owner;
  int n, code[OP_COUNTERS];
} sets[SETS];
static _Atomic int registered;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int refuse_code, refuse_with, most_events;
static _Atomic bool read_fails;
static _Thread_local long long cycles, instructions, misses, fizz;
static _Atomic int misuses;

static void reset(void)
{
  refuse_code = refuse_with = 0;
  most_events = OP_COUNTERS;
  atomic_store(&read_fails, false);
}

static void expect(bool good)
{
  atomic_fetch_add(&misuses, !good); /* no assertion may fail on a worker */
}

static struct set *find_set(int number)
{
  expect(number >= 0 && number < SETS && sets[number].used &&
         pthread_equal(sets[number].owner, pthread_self()));
  return &sets[number];
}

int PAPI_library_init(int version)
{
  return version;
}

int PAPI_thread_init(unsigned long (*id)(void))
{
  expect(id() == (unsigned long)pthread_self());
  return PAPI_OK;
}

int PAPI_register_thread(void)
{
  atomic_fetch_add(&registered, gettid() != getpid());
  return PAPI_OK;
}

int PAPI_unregister_thread(void)
{
  expect(gettid() != getpid());
  atomic_fetch_sub(&registered, 1);
  return PAPI_OK;
}

char *PAPI_strerror(int error)
{
  static char text[] = "made up";
  (void)error;
  return text;
}

int PAPI_event_name_to_code(const char *name, int *code)
{
  static const struct {
    const char *name;
    int code;
  } codes[] = {{"PAPI_TOT_CYC", PAPI_TOT_CYC},
               {"PAPI_TOT_INS", PAPI_TOT_INS},
               {"PAPI_L3_TCM", PAPI_L3_TCM},
               {"perf::FIZZ", FAKE_FIZZ}};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
    if (!strcmp(codes[i].name, name)) {
      *code = codes[i].code;
      return PAPI_OK;
    }
  return PAPI_ENOEVNT;
}

int PAPI_create_eventset(int *out)
{
  pthread_mutex_lock(&lock);
  for (*out = 0; *out < SETS && sets[*out].used; ++*out)
    continue;
  sets[*out] = (struct set){.used = true, .owner = pthread_self()};
  pthread_mutex_unlock(&lock);
  return PAPI_OK;
}

int PAPI_add_event(int number, int code)
{
  struct set *set = find_set(number);
  if (refuse_with && (code == refuse_code || !refuse_code))
    return refuse_with;
  if (set->n == most_events)
    return PAPI_ECNFLCT;
  for (int i = 0; i < set->n; i++)
    expect(set->code[i] != code);
  set->code[set->n++] = code;
  return PAPI_OK;
}

int PAPI_start(int number)
{
  find_set(number)->running = true;
  return PAPI_OK;
}

int PAPI_stop(int number, long long *values)
{
  expect(find_set(number)->running && !values);
  sets[number].running = false;
  return PAPI_OK;
}

int PAPI_read(int number, long long *values)
{
  const struct set *set = find_set(number);
  expect(set->running);
  if (atomic_load(&read_fails))
    return PAPI_ESYS;
  for (int i = 0; i < set->n; i++)
    values[i] = set->code[i] == PAPI_TOT_CYC   ? cycles
                : set->code[i] == PAPI_TOT_INS ? instructions
                : set->code[i] == PAPI_L3_TCM  ? misses
                                               : fizz;
  return PAPI_OK;
}

int PAPI_cleanup_eventset(int number)
{
  find_set(number)->n = 0;
  return PAPI_OK;
}

int PAPI_destroy_eventset(int *number)
{
  expect(!find_set(*number)->running && sets[*number].n == 0);
  sets[*number].used = false;
  *number = PAPI_NULL;
  return PAPI_OK;
}

/* All created sets are destroyed, and no thread used the set of another one. */
static void nothing_is_left(void)
{
  for (int i = 0; i < SETS; i++)
    assert_false(sets[i].used);
  assert_int_equal(atomic_load(&registered), 0);
  assert_int_equal(atomic_load(&misuses), 0);
}

/* Worker w: (w + 1) times the argument in instructions, a tenth of it in cycles' tens, and w
 * misses. */
static void spend(void *arg, int worker, int workers)
{
  const long long times = *(int *)arg;
  (void)workers;
  instructions += 100 * (worker + 1) * times;
  cycles += 10 * (worker + 1) * times;
  misses += worker;
}

TEST(each_thread_is_counted_by_lane_and_kind)
{
  const long line =
      sysconf(_SC_LEVEL1_DCACHE_LINESIZE) > 0 ? sysconf(_SC_LEVEL1_DCACHE_LINESIZE) : 64;
  reset();
  must(create("auto"));
  assert_string_equal(op_counters_note(counters), "");
  assert_int_equal(op_counters_events(counters), 7);
  const int ins = event_of("instructions"), cyc = event_of("cycles"), l3 = event_of("l3_misses"),
            memory = event_of("memory_bytes");
  open_lane(WORKERS);
  assert_int_equal(atomic_load(&registered), WORKERS - 1); /* this one is PAPI's own */
  const int64_t calls = mem_calls();
  for (int times = 1; times <= 4; times++) {
    instructions += 1000000; /* of this thread, between instructions: not counted */
    op_counters_begin(lane);
    team_run(team, spend, &times);
    op_counters_read(lane, spent);
    assert_int_equal(spent[ins], 600 * times);
    assert_int_equal(spent[cyc], 60 * times);
    assert_int_equal(spent[l3], 3);
    assert_int_equal(spent[memory], 3 * line);
  }
  assert_int_equal(mem_calls(), calls);
  close_lane();
  op_counters_destroy(counters);
  nothing_is_left();
}

TEST(events_are_chosen_by_name)
{
  reset();
  most_events = 2; /* memory_bytes and l3_misses are one */
  must(create("memory_bytes,perf::FIZZ,l3_misses"));
  assert_int_equal(op_counters_events(counters), 3);
  assert_string_equal(op_counters_key(counters, 1), "perf::FIZZ");
  open_lane(1);
  op_counters_begin(lane);
  fizz += 5;
  misses += 2;
  op_counters_read(lane, spent);
  assert_int_equal(spent[1], 5);
  assert_int_equal(spent[2], 2);
  close_lane();
  op_counters_destroy(counters);
  nothing_is_left();
}

/* auto goes without, and says so once; a name that was asked for does not. */
TEST(refused_counters_are_reported)
{
  reset();
  refused("perf::BUZZ", "papi_native_avail");
  refuse_with = PAPI_EPERM;
  refused("cycles", "kernel.perf_event_paranoid=2");
  must(create("auto"));
  assert_int_equal(op_counters_events(counters), 3);
  assert_string_equal(op_counters_key(counters, 0), "task_clock_ns");
  const char *cure = strstr(op_counters_note(counters), "kernel.perf_event_paranoid=2");
  assert_non_null(cure);
  assert_null(strstr(cure + 1, "kernel.perf_event_paranoid"));
  assert_non_null(strstr(op_counters_note(counters), ", memory_bytes"));
  op_counters_destroy(counters);
  refuse_with =
      PAPI_ECMP_DISABLED; /* what PAPI says instead where it has read the setting itself */
  refused("cycles", "kernel.perf_event_paranoid=2");

  refuse_with = PAPI_ENOEVNT;
  refuse_code = PAPI_L3_TCM;
  must(create("auto"));
  assert_int_equal(op_counters_events(counters), 5);
  assert_int_equal(event_of("l3_misses"), -1);
  assert_int_equal(strncmp(op_counters_note(counters),
                           "l3_misses is not counted: not available on this machine",
                           strlen("l3_misses is not counted: not available on this machine")),
                   0);
  assert_null(strstr(op_counters_note(counters), "instructions"));
  op_counters_destroy(counters);

  reset();
  most_events = 1;
  must_fail(create("cycles,instructions"), STATUS_LIBRARY,
            "run.counters: instructions: PAPI: PAPI_add_event: made up");
  nothing_is_left();
}

/* Counters are an extra: the run goes on. */
TEST(a_lane_that_cannot_be_read_is_lost)
{
  reset();
  must(create("instructions"));
  open_lane(1);
  for (int i = 0; i < 4; i++) {
    op_counters_begin(lane);
    instructions += 10;
    atomic_store(&read_fails, i == 1);
    op_counters_read(lane, spent);
    assert_int_equal(spent[0], i == 0 ? 10 : -1);
  }
  close_lane();

  must(op_counters_lane_create(counters, NULL, &lane));
  refuse_with = PAPI_EPERM; /* since the counters was created */
  must_fail(op_counters_start(lane), STATUS_LIBRARY, "perf_event_paranoid");
  close_lane();
  op_counters_destroy(counters);
  nothing_is_left();
}

#else

TEST(a_build_without_papi)
{
  must(create("auto"));
  assert_int_equal(op_counters_events(counters), 3);
  assert_non_null(strstr(op_counters_note(counters), "--with-papi"));
  op_counters_destroy(counters);
  refused("cycles", "--with-papi");
}

#endif

/* --- the kernel's account ------------------------------------------------ */

static _Atomic int64_t cpu_ns;

static int64_t clock_of_thread(void)
{
  struct timespec t = {0};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Worker w: (w + 1) * PAGES faults and SLEEPS switches. */
static void work(void *arg, int worker, int workers)
{
  const int64_t start = clock_of_thread();
  const size_t size = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)(worker + 1) * PAGES * size;
  (void)arg, (void)workers;
  volatile char *page =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)madvise((void *)page, bytes, MADV_NOHUGEPAGE); /* a kernel without huge pages refuses */
  for (size_t i = 0; i < bytes; i += size)
    page[i] = 1; /* without memory the program ends here */
  munmap((void *)page, bytes);
  for (int i = 0; i < SLEEPS; i++)
    nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
  atomic_fetch_add(&cpu_ns, clock_of_thread() - start);
}

static void between(int64_t value, double least, double most)
{
  if ((double)value < least || (double)value > most)
    fail_msg("%lld is not between %.0f and %.0f", (long long)value, least, most);
}

TEST(the_kernels_account_of_each_thread)
{
  enum {
    ALL_PAGES = PAGES * WORKERS * (WORKERS + 1) / 2,
    SHADOW = 4
  }; /* ThreadSanitizer's shadow of a page has pages of its own */
  must(create("task_clock,page_faults,context_switches"));
  assert_string_equal(op_counters_note(counters), "");
  open_lane(WORKERS);
  work(NULL, 0, 1); /* on this thread, before: not counted */
  atomic_store(&cpu_ns, 0);
  op_counters_begin(lane);
  team_run(team, work, NULL);
  op_counters_read(lane, spent);
  between(spent[0], 0.8 * (double)atomic_load(&cpu_ns), 1.2 * (double)atomic_load(&cpu_ns) + 2e7);
  between(spent[1], ALL_PAGES, SHADOW * ALL_PAGES);
  between(spent[2], SLEEPS * WORKERS, 1e5);
  op_counters_begin(lane);
  op_counters_read(lane, spent);
  between(spent[1], 0, PAGES / 2.0); /* no more than what a spin costs */
  close_lane();
  op_counters_destroy(counters);
}

TEST(too_many_events)
{
  const int n = OP_COUNTERS + 1;
  static char faults[] = "page_faults", *names[OP_COUNTERS + 1];
  counters = NULL;
  for (int i = 0; i < n; i++)
    names[i] = faults;
  assert_int_equal(op_counters_create(COUNT_LANES, n, names, &counters), STATUS_INTERNAL);
  assert_null(counters);
}

TEST(nothing_takes_nothing)
{
  assert_int_equal(op_counters_events(NULL), 0);
  must(op_counters_start(NULL));
  op_counters_stop(NULL);
  op_counters_lane_destroy(NULL);
  op_counters_destroy(NULL);
}

TEST_MAIN(NULL, NULL)
