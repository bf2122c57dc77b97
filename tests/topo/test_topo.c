/* Cores of a rank. Oracles: machines described in hwloc's synthetic language, whose answer is
 * known; the kernel's own mask for this one. */
#include <sched.h>

#include "base/append.h"
#include "base/mem.h"
#include "tests/test.h"
#include "topo/topo.h"

/* 2 sockets of 4 cores of 2 hardware threads, numbered as Linux does: threads of core c are CPUs c
 * and c + 8. */
static const char machine[] =
    "pack:2 numa:1 core:4 pu:2(indexes=0,8,1,9,2,10,3,11,4,12,5,13,6,14,7,15)";

/* Rank `index` of `sharers` that have the same mask (NULL: all CPUs). `of` NULL: this machine. */
static enum status create_alike(const char *of, const char *mask, double quota, int index,
                                int sharers, int threads, struct topo **out)
{
  char *masks[] = {(char *)mask};
  const struct topo_scene scene = {.synthetic = of,
                                   .masks = mask != NULL,
                                   .mask = masks,
                                   .quota = quota,
                                   .ranks = sharers,
                                   .self = index};
  return topo_create_scene(&scene, &(struct topo_options){.bind = true, .threads = threads}, out);
}

static enum status create_here(int index, int sharers, struct topo **out)
{
  return create_alike(NULL, NULL, 0, index, sharers, 0, out);
}

/* clang-format off */
static const struct {
  const char *mask;
  double quota;
  int index, sharers, threads;
  const char *cpus, *description; /* a list of CPUs, one per thread */
} shares[] = {
    {NULL, 0, 0, 1, 0, "0,1,2,3,4,5,6,7,", "8 cores of NUMA nodes 0-1 (CPUs 0-15)"},
    {NULL, 0, 0, 2, 0, "0,1,2,3,", "4 cores of NUMA node 0 (CPUs 0-3,8-11), of 8"},
    {NULL, 0, 1, 2, 0, "4,5,6,7,", "4 cores of NUMA node 1 (CPUs 4-7,12-15), of 8"},
    {NULL, 0, 1, 3, 0, "2,3,4,", "3 cores of NUMA nodes 0-1 (CPUs 2-4,10-12), of 8"},
    {NULL, 0, 7, 8, 0, "7,", "1 core of NUMA node 1 (CPUs 7,15), of 8"},
    /* a mask of its own: all of it, whatever its neighbours have */
    {"4-7,12-15", 0, 0, 1, 0, "4,5,6,7,", "4 cores of NUMA node 1 (CPUs 4-7,12-15), of 8"},
    {"2", 0, 0, 1, 0, "2,", "1 core of NUMA node 0 (CPU 2), of 8 cores in the machine"},
    /* a mask of second hardware threads, and a shared mask that is not all */
    {"8-11", 0, 0, 1, 0, "8,9,10,11,", "4 cores of NUMA node 0 (CPUs 8-11), of 8"},
    {"1,3,5,7", 0, 1, 2, 0, "5,7,", "2 cores of NUMA node 1 (CPUs 5,7), of 8"},
    /* run.threads: fewer than cores, hardware threads too, and more than there are CPUs */
    {NULL, 0, 0, 1, 3, "0,1,2,", "8 cores of NUMA nodes 0-1 (CPUs 0-15), 3 threads"},
    {NULL, 0, 1, 2, 6, "4,5,6,7,12,13,", "in the machine, 6 threads"},
    {"0,8,1", 0, 0, 1, 8, "0,1,8,0,1,8,0,1,", "2 cores of NUMA node 0 (CPUs 0-1,8), of 8"},
    /* more ranks than cores */
    {"0-1", 0, 2, 3, 0, "1,", "(CPU 1), of 8 cores in the machine, 3 ranks on fewer cores"},
    {"0-1", 0, 0, 3, 0, "0,", "(CPU 0), of 8 cores in the machine, 3 ranks on fewer cores"},
    /* a control group that grants less time than there are cores */
    {NULL, 2.5, 0, 1, 0, "0,1,", "(CPUs 0-15), 2 threads, CPU quota 2.5"},
    {NULL, 2.5, 1, 2, 0, "4,", "in the machine, 1 thread, CPU quota 2.5"},
    {NULL, 0.5, 0, 1, 0, "0,", "(CPUs 0-15), 1 thread, CPU quota 0.5"},
    {NULL, 2.5, 0, 1, 4, "0,1,2,3,", "(CPUs 0-15), 4 threads, CPU quota 2.5"},
    {NULL, 64, 0, 1, 0, "0,1,2,3,4,5,6,7,", "(CPUs 0-15), CPU quota 64"},
};
/* clang-format on */

TEST(test_shares)
{
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    struct topo *topo;
    char cpus[64] = "";
    must(create_alike(machine, shares[i].mask, shares[i].quota, shares[i].index, shares[i].sharers,
                      shares[i].threads, &topo));
    for (int t = 0; t < topo_own(topo)->threads; t++)
      append_text(cpus, sizeof cpus, "%d,", topo_own(topo)->cores[t]);
    assert_string_equal(cpus, shares[i].cpus);
    if (!strstr(topo_own(topo)->description, shares[i].description))
      fail_msg("%s is not %s", topo_own(topo)->description, shares[i].description);
    topo_destroy(topo);
  }
}

/* Shares lie side by side and cover all cores, for any number of ranks up to the number of cores.
 * Some virtual machines show no cores, and some machines have more CPUs than a cpu_set_t holds. */
TEST(test_cover)
{
  static const struct {
    const char *machine;
    int cores, least, most; /* ranks */
  } cases[] = {{"pack:3 numa:1 core:8 pu:1", 24, 1, 24},
               {"numa:1 pu:6", 6, 2, 6},
               {"pack:16 numa:1 core:128 pu:1", 2048, 16, 16}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int ranks = cases[i].least; ranks <= cases[i].most; ranks++) {
      int next = 0;
      for (int rank = 0; rank < ranks; rank++) {
        struct topo *topo;
        must(create_alike(cases[i].machine, NULL, 0, rank, ranks, 0, &topo));
        assert_true(topo_own(topo)->threads >= 1);
        for (int t = 0; t < topo_own(topo)->threads; t++)
          assert_int_equal(topo_own(topo)->cores[t], next++);
        topo_destroy(topo);
      }
      assert_int_equal(next, cases[i].cores);
    }
}

TEST(test_this_machine)
{
  cpu_set_t mask, bound;
  struct topo *topo;
  assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
  must(create_here(0, 1, &topo));
  assert_true(topo_own(topo)->threads >= 1 && topo_own(topo)->threads <= CPU_COUNT(&mask));
  for (int t = 0; t < topo_own(topo)->threads; t++)
    assert_true(CPU_ISSET(topo_own(topo)->cores[t], &mask));
  topo_destroy(topo);

  int most =
      CPU_COUNT(&mask); /* a rank for every CPU: the last one gets one core, and is bound to it */
  must(create_here(most - 1, most, &topo));
  must(topo_bind(topo));
  assert_int_equal(sched_getaffinity(0, sizeof bound, &bound), 0);
  if (!strstr(topo_own(topo)->description, "on fewer cores"))
    assert_true(CPU_ISSET(topo_own(topo)->cores[0], &bound));
  topo_destroy(topo); /* binds the process to its CPUs again */
  assert_int_equal(sched_getaffinity(0, sizeof bound, &bound), 0);
  assert_true(CPU_EQUAL(&bound, &mask));

  must(create_here(most, most + 1, &topo)); /* crowded: left to the scheduler */
  must(topo_bind(topo));
  assert_int_equal(sched_getaffinity(0, sizeof bound, &bound), 0);
  assert_true(CPU_EQUAL(&bound, &mask));
  topo_destroy(topo);
}

/* --- ranks of a job that know of each other ------------------------------ */

static const struct topo_options bound = {.bind = true};

static struct topo *create_job(const struct topo_record *records, int ranks, int rank,
                               const struct topo_options *options)
{
  struct topo *topo;
  if (topo_create_job(records, ranks, rank, options, &topo))
    fail_msg("%s", status_text());
  return topo;
}

/* GPUs that no machine has: all CPUs are as near, and what is left is the ranks' order. */
static void make_record(const char *first, const char *second, struct topo_record *out)
{
  const char *const bus[] = {first, second};
  must(topo_record(second ? 2 : 1, bus, out));
}

static void assert_gpus(const struct topo_record records[3], int first, int last)
{
  struct topo *topo = create_job(records, 3, 0, &bound), *other = create_job(records, 3, 2, &bound);
  assert_int_equal(topo_own(topo)->gpu, first);
  assert_int_equal(topo_own(other)->gpu, last);
  topo_destroy(topo);
  topo_destroy(other);
}

TEST(test_job_gpus)
{
  static const char a[] = "00000000:FE:1E.0", b[] = "0000:fe:1f.0";
  static struct topo_record records[3];
  make_record(a, b, &records[0]);
  make_record(a, b, &records[1]);
  make_record(a, b, &records[2]);
  records[1].machine++; /* its neighbour in rank runs elsewhere */
  assert_gpus(records, 0, 1);
  make_record(b, a, &records[2]); /* the same two in another order: its second is its first */
  assert_gpus(records, 0, 0);
  make_record(a, NULL, &records[0]); /* srun --gpus-per-task=1: each sees its own */
  make_record(b, NULL, &records[2]);
  assert_gpus(records, 0, 0);
  make_record(a, NULL, &records[2]); /* both the same */
  assert_gpus(records, 0, 0);
  must(topo_record(0, NULL, &records[0]));
  assert_gpus(records, -1, 0);
}

/* Ranks without GPUs have the shares of ranks that are known to have the same mask. */
TEST(test_job_cores)
{
  static struct topo_record records[3];
  for (int r = 0; r < 3; r++)
    must(topo_record(0, NULL, &records[r]));
  records[1].machine++;
  for (int r = 0; r < 3; r++) {
    struct topo *topo = create_job(records, 3, r, &bound), *known;
    must(create_here(r / 2, r == 1 ? 1 : 2, &known));
    assert_string_equal(topo_own(topo)->description, topo_own(known)->description);
    assert_string_equal(topo_own(topo)->warning, "");
    topo_destroy(topo);
    topo_destroy(known);
  }
}

static void assert_affinity(const struct topo *topo, const cpu_set_t *mask, bool io)
{
  cpu_set_t now, math;
  const int *cores = topo_own(topo)->io_cores, n = topo_own(topo)->io_cpus;
  CPU_ZERO(&math);
  for (int t = 0; t < topo_own(topo)->threads; t++)
    CPU_SET(topo_own(topo)->cores[t], &math);
  assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
  assert_true(CPU_COUNT(&now) > 0 && CPU_COUNT(&now) < CPU_COUNT(mask));
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    assert_false(CPU_ISSET(cpu, &now) && (CPU_ISSET(cpu, &math) || !CPU_ISSET(cpu, mask)));
  assert_true(n > 0);
  for (int c = 0; c < n && io; c++)
    assert_true(CPU_ISSET(cores[c], &now));
}

/* Threads that exist are moved away from the cores for math; the kernel tells. */
TEST(test_parts)
{
  static struct topo_record record;
  cpu_set_t mask, now;
  assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
  make_record("0000:fe:1e.0", NULL, &record);
  struct topo *topo = create_job(&record, 1, 0, &(struct topo_options){.threads = 1});
  assert_null(topo_own(topo)->cores); /* not bound: nothing happens */
  must(topo_bind(topo));
  must(topo_bind_io(topo));
  assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
  assert_true(CPU_EQUAL(&now, &mask));
  topo_destroy(topo);
  topo = create_job(&record, 1, 0, &bound);
  if (strstr(topo_own(topo)->description, "controller")) { /* a second core */
    must(topo_bind(topo));
    assert_affinity(topo, &mask, false);
    must(topo_bind_io(topo));
    assert_affinity(topo, &mask, true);
  }
  topo_destroy(topo);
  assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
  assert_true(CPU_EQUAL(&now, &mask));
}

TEST(test_record_guards)
{
  static struct topo_record record = {.gpus = 77};
  const char *bus[] = {"here"};
  assert_int_equal(topo_record(1, bus, &record), STATUS_INTERNAL);
  assert_string_equal(status_text(),
                      "'here' is not the place of a PCI device, such as 0000:1b:00.0");
  bus[0] = "0000:1b:20.0"; /* 32 devices on a bus */
  assert_int_equal(topo_record(1, bus, &record), STATUS_INTERNAL);
  assert_int_equal(topo_record(TOPO_GPUS + 1, bus, &record), STATUS_UNSUPPORTED);
  assert_int_equal(record.gpus, 77);
}

/* hwloc itself fails to load. */
TEST(test_guards)
{
  struct topo *topo = NULL;
  setenv("HWLOC_XMLFILE", "/nowhere.xml", 1);
  setenv("HWLOC_COMPONENTS", "xml,stop", 1);
  must_fail(create_here(0, 1, &topo), STATUS_LIBRARY, "hwloc: hwloc_topology_load failed");
  assert_null(topo);
  unsetenv("HWLOC_XMLFILE");
  unsetenv("HWLOC_COMPONENTS");
  topo_destroy(NULL);
}

/* --- the nearest GPU ----------------------------------------------------- */

static struct topo *create_ranks(const char *synthetic, int gpus, int ranks, char *const *mask)
{
  struct topo *topo;
  const struct topo_scene scene = {
      .synthetic = synthetic, .gpus = gpus, .ranks = ranks, .masks = ranks, .mask = mask};
  must(topo_create_scene(&scene, &(struct topo_options){.bind = true}, &topo));
  return topo;
}

static int gpu_of(const struct topo *topo, int rank)
{
  char cell[64];
  topo_print_cell(topo, rank, TOPO_GPU, cell, sizeof cell);
  return (int)strtol(cell, NULL, 10);
}

/* The distances of 4 NUMA nodes, two per package. */
static int cost(int node, int gpu)
{
  return node == gpu ? 0 : node / 2 == gpu / 2 ? 2 : 3;
}

static int least_cost(const int node[4])
{
  int least = INT32_MAX;
  for (int p = 0; p < 256; p++) {
    const int gpu[4] = {p & 3, p >> 2 & 3, p >> 4 & 3, p >> 6};
    if (((1 << gpu[0]) | (1 << gpu[1]) | (1 << gpu[2]) | (1 << gpu[3])) != 15)
      continue;
    const int all = cost(node[0], gpu[0]) + cost(node[1], gpu[1]) + cost(node[2], gpu[2]) +
                    cost(node[3], gpu[3]);
    least = all < least ? all : least;
  }
  return least;
}

static char *const four_nodes[] = {"0-3", "4-7", "8-11", "12-15"};

TEST(ranks_get_the_nearest_gpus)
{
  for (int p = 0; p < 256; p += 3) {
    const int node[4] = {p & 3, p >> 2 & 3, p >> 4 & 3, p >> 6};
    char *const mask[4] = {four_nodes[node[0]], four_nodes[node[1]], four_nodes[node[2]],
                           four_nodes[node[3]]};
    struct topo *topo = create_ranks("pack:2 numa:2 core:4 pu:1", 4, 4, mask);
    int all = 0, seen = 0;
    for (int k = 0; k < 4; k++) {
      all += cost(node[k], gpu_of(topo, k));
      seen |= 1 << gpu_of(topo, k);
    }
    assert_int_equal(seen, 15); /* each its own */
    assert_int_equal(all, least_cost(node));
    topo_destroy(topo);
  }
}

static int least(int a, int b)
{
  return a < b ? a : b;
}

/* Thousands of ranks, most of them where few GPUs are. Oracle: with room for a quarter of them at
 * each node, as many as can stay at theirs, then in their package. */
TEST(thousands_of_ranks_get_the_nearest_gpus)
{
  enum { MANY = 4096, NODES = 4, ROOM = MANY / NODES, EACH = 8 };
  static char *mask[MANY];
  static int node[MANY];
  int count[NODES] = {0}, taken[NODES * EACH] = {0}, at_home = 0, all = 0;
  for (int k = 0; k < MANY; k++) {
    node[k] = k * 7 % 16 < 9 ? 3 : k * 7 % 16 < 12 ? 0 : k * 7 % 16 < 14 ? 2 : 1;
    mask[k] = four_nodes[node[k]];
    count[node[k]]++;
  }
  struct topo *topo = create_ranks("pack:2 numa:2 core:4 pu:1", NODES * EACH, MANY, mask);
  for (int k = 0; k < MANY; k++) {
    const int gpu = gpu_of(topo, k);
    assert_in_range(gpu, 0, NODES * EACH - 1);
    all += cost(node[k], gpu / EACH);
    taken[gpu]++;
  }
  for (int g = 0; g < NODES * EACH; g++)
    assert_int_equal(taken[g], MANY / (NODES * EACH));
  for (int n = 0; n < NODES; n++)
    at_home += least(count[n], ROOM);
  const int in_package =
      least(count[0] + count[1], 2 * ROOM) + least(count[2] + count[3], 2 * ROOM);
  assert_int_equal(all, 2 * (in_package - at_home) + 3 * (MANY - in_package));
  topo_destroy(topo);
}

/* Lists of CPUs are printed in full, however long: in the table, a warning and the description. */
TEST(long_lists_are_told_whole)
{
  char even[512] = "0", odd[512] = "1", math[512];
  for (int cpu = 2; cpu < 128; cpu += 2) {
    append_text(even, sizeof even, ",%d", cpu);
    append_text(odd, sizeof odd, ",%d", cpu + 1);
  }
  struct topo *topo = create_ranks("pack:2 numa:1 core:128 pu:1", 2, 2, (char *[]){even, odd});
  char *warning =
      mem_printf("left this rank (CPUs %s) are near its assumed GPU (CPUs 128-255)", odd);
  char *description =
      mem_printf("64 cores of NUMA node 0 (CPUs %s), of 256 cores in the machine, 61 threads, "
                 "assumed GPU: controller on CPUs 0,2, I/O on 4, math on %s",
                 even, even + strlen("0,2,4,"));
  topo_print_cell(topo, 1, TOPO_MATH, math, sizeof math);
  assert_string_equal(math, odd + strlen("1,3,5,"));
  assert_non_null(strstr(topo_rank_warning(topo, 1), warning));
  assert_string_equal(topo_own(topo)->description, description);
  topo_destroy(topo);
  mem_free(description);
  mem_free(warning);
}

int main(void)
{
  return test_run(NULL, NULL) || mem_usage(MEM_META).bytes != 0; /* nothing is left behind */
}
