/* Memory of a rank is bound to the NUMA node of its cores, and where it lies is found. Oracles: the
 * calls that reach the kernel. This program records them and answers instead of the kernel, for
 * machines of several nodes. If this machine's kernel has NUMA policies, its report is an oracle
 * too. hwloc takes a machine from a file for this machine. */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "tests/test.h"
#include "topo/topo.h"

enum {
  DEFAULT = 0,
  PREFERRED = 1,
  BIND = 2,
  INTERLEAVE = 3,
  LOCAL = 4,
  PREFERRED_MANY = 5
}; /* policies, as in linux/mempolicy.h: what a node has no room for goes elsewhere */

static struct {
  int error; /* the error of the kernel; 0: it obeys */
  bool real; /* ask it */
  int given; /* what the process was started with */
  int calls, mode;
  unsigned long nodes;
} policy;
static int bound;      /* calls of sched_setaffinity() */
static cpu_set_t cpus; /* of the last one */
static cpu_set_t mask; /* what sched_getaffinity() answers; empty: ask the kernel */
static struct {
  const int *node; /* of each page asked for, in turn, or an error of it; NULL: ask the kernel */
  int n, error;    /* error: of the call */
  int64_t calls;
  const char *first, *last; /* pages asked for */
} pages;

typedef long system_call(long number, ...);

/* hwloc asks for one at a time. */
static long answer_page(const unsigned long word[6])
{
  const char *page = *(const char **)word[2]; // NOLINT(performance-no-int-to-ptr)
  if (pages.error) {
    errno = pages.error;
    return -1;
  }
  assert_int_equal(word[1], 1);
  pages.first = pages.calls == 0 ? page : pages.first;
  assert_true(pages.calls == 0 || page > pages.last);
  pages.last = page;
  *(int *)word[4] = pages.node[pages.calls++ % pages.n]; // NOLINT(performance-no-int-to-ptr)
  return 0;
}

/* libhwloc's calls come here first. */
long syscall(long number, ...)
{
  static system_call *real;
  unsigned long word[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++)
    word[i] = va_arg(list, unsigned long);
  va_end(list);
  if (number == SYS_set_mempolicy && !policy.real) {
    policy.calls++;
    policy.mode = (int)word[0];
    policy.nodes =
        word[1] ? *(const unsigned long *)word[1] : 0; // NOLINT(performance-no-int-to-ptr)
    errno = policy.error;
    return policy.error ? -1 : 0;
  }
  if (number == SYS_get_mempolicy && policy.given && word[0] && word[1]) {
    *(int *)word[0] = policy.given;        // NOLINT(performance-no-int-to-ptr)
    *(unsigned long *)word[1] |= 1UL << 1; // NOLINT(performance-no-int-to-ptr)
    return 0;
  }
  if (number == SYS_move_pages && pages.node)
    return answer_page(word);
  if (!__atomic_load_n(&real, __ATOMIC_RELAXED)) /* other libraries' threads come here, too */
    __atomic_store_n(&real, (system_call *)(uintptr_t)dlsym(RTLD_NEXT, "syscall"),
                     __ATOMIC_RELAXED);
  return __atomic_load_n(&real, __ATOMIC_RELAXED)(number, word[0], word[1], word[2], word[3],
                                                  word[4], word[5]);
}

/* The CPUs are not this machine's. */
int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
  (void)pid;
  memset(&cpus, 0, sizeof cpus);
  memcpy(&cpus, set, size < sizeof cpus ? size : sizeof cpus);
  bound++;
  return 0;
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
  if (CPU_COUNT(&mask) == 0)
    return syscall(SYS_sched_getaffinity, pid, size, set) < 0 ? -1 : 0;
  memset(set, 0, size);
  memcpy(set, &mask, size < sizeof mask ? size : sizeof mask);
  return 0;
}

/* A rank with the CPUs first to last of a machine and the GPU on `bus` (NULL: none). */
static struct topo *create(const char *machine, int first, int last, const char *bus, bool bind)
{
  static struct topo_record record;
  const struct topo_options options = {.bind = bind};
  const char *top = getenv("top_srcdir");
  struct topo *topo = NULL;
  char *path = mem_printf("%s/tests/topo/machines/%s.xml", top ? top : ".", machine);
  assert_non_null(path);
  setenv("HWLOC_XMLFILE", path, 1);
  setenv("HWLOC_THISSYSTEM", "1", 1);
  mem_free(path);
  CPU_ZERO(&mask);
  for (int cpu = first; cpu <= last; cpu++)
    CPU_SET((size_t)cpu, &mask);
  must(topo_record(bus != NULL, &bus, &record));
  memset(record.mask, 0, sizeof record.mask);
  for (int cpu = first; cpu <= last; cpu++)
    record.mask[cpu / 64] |= (int64_t)(1ULL << cpu % 64);
  if (topo_create_job(&record, 1, 0, &options, &topo))
    fail_msg("%s", status_text());
  return topo;
}

static void start(const char *machine, int first, int last, const char *bus, bool bind)
{
  struct topo *topo = create(machine, first, last, bus, bind);
  policy.calls = bound = 0;
  must(topo_bind(topo));
  const int calls = policy.calls, mode = policy.mode, binds = bound;
  const bool undone = calls > 0 && !policy.error;
  const unsigned long nodes = policy.nodes;
  topo_destroy(topo);
  assert_int_equal(policy.calls, calls + undone);
  assert_true(!undone || policy.mode == DEFAULT);
  assert_true(binds > 0 ? bound > binds : bound == 0);
  assert_true(binds == 0 || CPU_EQUAL(&cpus, &mask));
  policy.calls = calls, policy.mode = mode, policy.nodes = nodes;
}

TEST(memory_is_bound_to_the_node_of_the_cores)
{
  static const struct {
    const char *machine, *bus;
    int first, last; /* CPU */
    unsigned long nodes;
  } known[] = {
      {"2s4g", "0000:18:00.0", 0, 31, 1UL << 0},
      {"2s4g", "0000:9a:00.0", 0, 31, 1UL << 1},
      {"2s4g-offline", "0000:db:00.0", 0, 63, 1UL << 1},
      {"nps4", "0000:01:00.0", 0, 63, 1UL << 3},
      {"nps4", "0000:c1:00.0", 0, 63, 1UL << 5},
      {"one-side", "0000:83:00.0", 0, 47, 1UL << 1},
      {"memory-alone", "0000:91:00.0", 0, 31, 1UL << 1}, /* not the HBM of this node */
      {"no-dimms", NULL, 4, 7, 1UL << 3},        /* not the socket's own node, which is empty */
      {"2s4g", "0000:9a:00.0", 0, 15, 1UL << 0}, /* the mask is elsewhere: where the threads are */
      {"2s4g", NULL, 0, 15, 1UL << 0},           /* a rank that computes on the host */
      {"2s4g", NULL, 20, 31, 1UL << 1},
      /* no choice: one node; the firmware does not tell, so near both; cores of both nodes; no
       * memory is local */
      {"1n8g", "0000:14:00.0", 0, 47, 0},
      {"blind", "0001:02:00.0", 0, 15, 0},
      {"2s4g", NULL, 0, 31, 0},
      {"bare", NULL, 0, 3, 0},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    start(known[i].machine, known[i].first, known[i].last, known[i].bus, true);
    assert_int_equal(policy.calls, known[i].nodes != 0);
    assert_true(!policy.calls || policy.mode == PREFERRED || policy.mode == PREFERRED_MANY);
    assert_true(!policy.calls || policy.nodes == known[i].nodes);
    assert_true(bound > 0);
  }
  start("2s4g", 0, 31, "0000:18:00.0", false);
  assert_true(policy.calls == 0 && bound == 0);
}

/* A container may forbid it. Threads are bound nevertheless, and a warning is printed. */
TEST(a_policy_that_was_given_is_kept)
{
  static const struct {
    int given, calls;
  } known[] = {{BIND, 0}, {INTERLEAVE, 0}, {PREFERRED, 0}, {LOCAL, 1}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    policy.given = known[i].given;
    start("2s4g", 0, 31, "0000:18:00.0", true);
    assert_int_equal(policy.calls, known[i].calls);
    assert_true(bound > 0);
  }
  policy.given = DEFAULT;
}

TEST(a_kernel_that_forbids_it_costs_a_warning)
{
  char text[512] = "";
  int ends[2];
  const int before = dup(STDERR_FILENO);
  assert_true(before >= 0 && pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
  policy.error = EPERM;
  start("2s4g", 0, 31, "0000:9a:00.0", true);
  policy.error = 0;
  assert_true(fflush(stderr) == 0 && dup2(before, STDERR_FILENO) >= 0 && close(ends[1]) == 0);
  assert_true(read(ends[0], text, sizeof text - 1) > 0);
  assert_true(close(ends[0]) == 0 && close(before) == 0);
  assert_non_null(strstr(text, "memory is not bound to the NUMA node of this rank's cores, only "
                               "its threads are: Operation not permitted; a container needs"));
  assert_int_equal(policy.calls, 1);
  assert_true(bound > 0);
}

static void check_pages(const struct topo *topo, const char *memory, int64_t bytes, int64_t near,
                        int64_t far, int64_t nowhere)
{
  struct topo_pages found = {0};
  pages.calls = 0;
  must(topo_find_pages(topo, memory, bytes, &found));
  assert_true(found.near == near && found.far == far && found.nowhere == nowhere);
}

TEST(pages_are_found_near_far_and_nowhere)
{
  static const int given[] = {1, 1, 0, 1, -ENOENT};
  const int64_t page = sysconf(_SC_PAGESIZE);
  char *memory = (char *)(page * 1000); // NOLINT(performance-no-int-to-ptr)
  struct topo_pages found = {0};
  struct topo *topo = create("2s4g", 0, 31, "0000:9a:00.0", true);
  pages.node = given;
  pages.n = sizeof given / sizeof *given;
  check_pages(topo, memory, 10 * page, 6, 2, 2);
  assert_ptr_equal(pages.first, memory);
  assert_ptr_equal(pages.last, memory + 9 * page);
  check_pages(topo, memory, 1, 1, 0, 0);
  check_pages(topo, memory, 0, 0, 0, 0);
  check_pages(topo, memory, page << 30, 615, 205, 204); /* many: 1,024 from all over it */
  assert_true(pages.last - memory > (page << 30) / 1024 * 1022);
  pages.error = EPERM;
  assert_int_equal(topo_find_pages(topo, memory, page, &found), STATUS_UNSUPPORTED);
  must_say("the kernel does not report where memory is: Operation not permitted");
  pages.error = 0;
  topo_destroy(topo);
  topo = create("bare", 0, 3, NULL, true); /* no page is far if no memory is local */
  assert_string_equal(topo_own(topo)->description,
                      "4 cores without local memory (CPUs 0-3), of 16 cores in the machine");
  must_fail(topo_find_pages(topo, memory, page, &found), STATUS_UNSUPPORTED,
            "the cores of this rank have no local memory");
  pages.node = NULL;
  topo_destroy(topo);
}

/* This machine's own word for memory of this process; on one of several nodes it may be any of
 * them. */
TEST(the_kernel_reports_pages)
{
  enum { PAGES = 64 };
  void *memory;
  struct topo_pages found = {0};
  struct topo *topo = NULL;
  unsetenv("HWLOC_XMLFILE");
  CPU_ZERO(&mask);
  must(topo_create_scene(&(struct topo_scene){.ranks = 1},
                         &(struct topo_options){.bind = true, .threads = 1}, &topo));
  const size_t bytes = (size_t)PAGES * (size_t)sysconf(_SC_PAGESIZE);
  must(mem_alloc(MEM_META, bytes, &memory)); /* and cleared, thus touched */
  if (topo_find_pages(topo, memory, (int64_t)bytes, &found) == STATUS_UNSUPPORTED)
    fprintf(stderr, "this kernel does not tell where memory lies\n");
  else
    assert_int_equal(found.near + found.far, PAGES);
  mem_free(memory);
  topo_destroy(topo);
}

/* Every machine has a node 0. */
TEST(the_kernel_reports_the_policy)
{
  int mode = -1;
  unsigned long nodes[16] = {1};
  policy.real = true;
  if (syscall(SYS_set_mempolicy, PREFERRED, nodes, sizeof nodes * 8) != 0 ||
      syscall(SYS_set_mempolicy, DEFAULT, NULL, 0) != 0) {
    policy.real = false;
    skip();
  }
  struct topo *topo = create("2s4g", 0, 31, "0000:18:00.0", true);
  must(topo_bind(topo));
  nodes[0] = 0;
  assert_int_equal(syscall(SYS_get_mempolicy, &mode, nodes, sizeof nodes * 8, NULL, 0UL), 0);
  assert_true(mode == PREFERRED || mode == PREFERRED_MANY);
  assert_int_equal(nodes[0], 1);
  topo_destroy(topo);
  assert_int_equal(syscall(SYS_get_mempolicy, &mode, NULL, 0UL, NULL, 0UL), 0);
  policy.real = false;
  assert_int_equal(mode, DEFAULT);
}

int main(void)
{
  return test_run(NULL, NULL) || mem_usage(MEM_META).bytes != 0;
}
