/* Ranks on whole machines. Oracles: golden files, read by eye once. The printed table is compared
 * with the known facts of each machine, which are written here. Cores are given once, and are near
 * the rank's GPU. Every assignment of four ranks to four GPUs is tried. After an intended change
 * write the golden files again and read the difference:
 *   SLUICE_GOLDEN=write top_srcdir=. tests/topo/test_machines */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/test.h"
#include "topo/topo.h"

enum { CPUS = 256, RANKS = 16, LISTS = 3 };

struct machine {
  const char
      *file; /* golden, and the machine of that name where `xml` is NULL and `synthetic` too */
  const char *xml, *synthetic;
  int cores;               /* hardware threads of core c are CPUs c, c + cores, ... */
  int gpus, ranks;         /* as asked: -1 and 0 for what the machine shows */
  int rows;                /* ranks that come out */
  const char *near[RANKS]; /* CPUs of the domain of each rank's GPU */
  const char *memory;      /* NUMA node of each rank; NULL: not looked at */
  char *mask[RANKS];
  struct topo_options options;
  const char *warning; /* a part of it; NULL: there is none */
  bool crowded;
};

#define BOUND .options = {.bind = true}
#define LEFT "0-15,32-47"
#define RIGHT "16-31,48-63"

// clang-format off
static struct machine machines[] = {
    {.file = "2s4g-ht", .cores = 32, .gpus = -1, .rows = 8,
     .near = {LEFT, LEFT, LEFT, LEFT, RIGHT, RIGHT, RIGHT, RIGHT}, .memory = "00001111", BOUND},
    {.file = "2s4g", .cores = 32, .gpus = -1, .rows = 8,
     .near = {"0-15", "0-15", "0-15", "0-15", "16-31", "16-31", "16-31", "16-31"}, BOUND},
    {.file = "2s4g-offline",
     .cores = 32,
     .gpus = -1,
     .rows = 8,
     .near = {"0-4,6-15,32-36,38-47", "0-4,6-15,32-36,38-47", "0-4,6-15,32-36,38-47",
              "0-4,6-15,32-36,38-47", "16-19,21-31,48-61", "16-19,21-31,48-61", "16-19,21-31,48-61",
              "16-19,21-31,48-61"},
     BOUND},
    {.file = "2s4g-allowed", .cores = 32, .gpus = 4, .ranks = 2, .rows = 2,
     .near = {"4-11", "4-11"}, BOUND},
    {.file = "nps4", .cores = 64, .gpus = -1, .rows = 4,
     .near = {"24-31", "8-15", "56-63", "40-47"}, .memory = "3175", BOUND},
    {.file = "1n8g", .cores = 24, .gpus = -1, .rows = 8,
     .near = {"0-47", "0-47", "0-47", "0-47", "0-47", "0-47", "0-47", "0-47"}, BOUND},
    {.file = "more-ranks",
     .xml = "one-side",
     .cores = 24,
     .gpus = -1,
     .ranks = 6,
     .rows = 6,
     .near = {"12-23,36-47", "12-23,36-47", "12-23,36-47", "12-23,36-47", "12-23,36-47",
              "12-23,36-47"},
     BOUND},
    {.file = "one-side", .cores = 24, .gpus = -1, .rows = 4,
     .near = {"12-23,36-47", "12-23,36-47", "12-23,36-47", "12-23,36-47"}, .memory = "1111", BOUND},
    {.file = "memory-alone", .cores = 16, .gpus = -1, .rows = 2,
     .near = {"0-7,16-23", "8-15,24-31"}, .memory = "01", BOUND},
    /* memory of GPUs is never that of a rank, wherever hwloc has it */
    {.file = "gh200", .cores = 32, .gpus = -1, .rows = 4, .near = {"0-7", "8-15", "16-23", "24-31"},
     .memory = "0123", BOUND},
    {.file = "gh200-gpu-first", .cores = 32, .gpus = -1, .rows = 4,
     .near = {"0-7", "8-15", "16-23", "24-31"}, .memory = "1357", BOUND},
    {.file = "gb200", .cores = 16, .gpus = -1, .rows = 4, .near = {"0-7", "0-7", "8-15", "8-15"},
     .memory = "0011", BOUND},
    {.file = "blind", .cores = 16, .gpus = -1, .rows = 3, .near = {"0-15", "0-15", "0-15"}, BOUND},
    {.file = "vm", .cores = 2, .gpus = -1, .ranks = 2, .rows = 2, .near = {"0", "1"}, BOUND},
    {.file = "assumed", .synthetic = "pack:2 numa:2 core:6 pu:1", .cores = 24, .gpus = 4, .rows = 4,
     .near = {"0-5", "6-11", "12-17", "18-23"}, BOUND},
    /* what a launcher does: the masks of mpirun --bind-to socket in the other order, of --bind-to
       core, and of srun with the wrong socket */
    {.file = "masks-socket", .xml = "2s4g-ht", .cores = 32, .gpus = -1, .ranks = 4, .rows = 4,
     .near = {RIGHT, LEFT, RIGHT, LEFT}, .mask = {RIGHT, LEFT, RIGHT, LEFT}, BOUND},
    {.file = "masks-core",
     .xml = "2s4g-ht",
     .cores = 32,
     .gpus = -1,
     .ranks = 2,
     .rows = 2,
     .near = {"3,35", "20,52"},
     .mask = {"3,35", "20,52"},
     BOUND,
     .warning = "left this rank one core (CPUs 3,35), and no rank has the other 15 near its GPU "
                "0000:18:00.0"},
    {.file = "masks-wrong",
     .xml = "one-side",
     .cores = 24,
     .gpus = -1,
     .ranks = 2,
     .rows = 2,
     .near = {"0-5", "6-11"},
     .mask = {"0-5", "6-11"},
     BOUND,
     .warning = "0 of the 6 cores that the launcher left this rank (CPUs 0-5) are near its GPU "
                "0000:82:00.0"},
    {.file = "masks-few",
     .xml = "one-side",
     .cores = 24,
     .gpus = -1,
     .ranks = 1,
     .rows = 1,
     .near = {"12-13"},
     .mask = {"4-13"},
     BOUND,
     .warning = "2 of the 10 cores that the launcher left this rank (CPUs 4-13) are near its GPU "
                "0000:82:00.0"},
    /* one GPU without a known place next to one with a place: the whole machine and a part of it
     * are wanted */
    {.file = "masks-nested", .xml = "blind", .cores = 16, .gpus = -1, .ranks = 3, .rows = 3,
     .near = {"0-15", "0-7", "0-15"}, .mask = {"0-15", "0-7", "0-15"}, BOUND},
    /* overrides */
    {.file = "lists",
     .xml = "nps4",
     .cores = 64,
     .gpus = -1,
     .rows = 4,
     .near = {"48-63", "0-15", "16-31", "32-47"},
     .options = {.bind = true,
                 .threads = 4,
                 .controller = 3,
                 .lists = 4,
                 .list = (char *[]){"48-63", "0-15", "16-31", "32-47"}}},
    {.file = "more-threads", .xml = "2s4g", .cores = 32, .gpus = -1, .rows = 8,
     .near = {"0-15", "0-15", "0-15", "0-15", "16-31", "16-31", "16-31", "16-31"},
     .options = {.bind = true, .threads = 3}},
    {.file = "mixed-threads", .xml = "1n8g", .cores = 24, .gpus = 2, .rows = 2,
     .near = {"0-7,24-31", "8-10"}, .mask = {"0-7,24-31", "8-10"},
     .options = {.bind = true, .threads = 3}},
    {.file = "unbound", .xml = "nps4", .cores = 64, .gpus = -1, .rows = 4,
     .near = {"0-63", "0-63", "0-63", "0-63"}},
    {.file = "crowded", .xml = "1n8g", .cores = 24, .gpus = 8, .ranks = 16, .rows = 16,
     .mask = {"0-7"}, BOUND, .crowded = true},
    /* more ranks than cores near their GPUs, but not than cores */
    {.file = "crowded-near", .xml = "one-side", .cores = 24, .gpus = -1, .ranks = 16, .rows = 16,
     BOUND, .crowded = true},
    /* memory: the node of a socket has none, or a core has no node; the picture is of domains */
    {.file = "no-dimms", .cores = 8, .gpus = -1, .ranks = 2, .rows = 2, .near = {"0-3", "4-7"},
     .memory = "23", BOUND},
    {.file = "bare", .cores = 16, .gpus = 4, .rows = 4, .near = {"0-3", "4-7", "8-11", "12-15"},
     .memory = "-12-", BOUND},
    {.file = "one-node", .synthetic = "numa:1 pack:2 core:1 pu:1", .cores = 2, .rows = 1,
     .near = {"0-1"}, BOUND},
    {.file = "one-core", .synthetic = "pack:2 numa:1 core:1 pu:1", .cores = 2, .rows = 1,
     .near = {"0-1"}, BOUND},
    /* domains of different sizes: a rank has cores of one; and GPUs of both packages */
    {.file = "unequal", .cores = 24, .gpus = 0, .ranks = 4, .rows = 4,
     .near = {"0-5,24-29", "6-11,30-35", "12-16,36-40", "18-22,42-46"}, .memory = "0123", BOUND},
    {.file = "snc3", .cores = 30, .gpus = -1, .ranks = 6, .rows = 6,
     .near = {"0-4", "15-19", "5-9", "20-24", "10-13", "25-28"}, .memory = "031425", BOUND},
    {.file = "few-ranks", .xml = "nps4", .cores = 64, .gpus = -1, .ranks = 2, .rows = 2,
     .near = {"24-31", "56-63"}, .memory = "37", BOUND},
    {.file = "few-alternate", .xml = "snc3", .cores = 30, .gpus = -1, .ranks = 2, .rows = 2,
     .near = {"0-13", "15-28"}, BOUND},
    /* srun --hint=nomultithread leaves one CPU of each core: nothing is wrong */
    {.file = "masks-threads", .xml = "unequal", .cores = 24, .gpus = -1, .rows = 4,
     .near = {"0-5", "6-11", "12-16", "18-22"}, .mask = {"0-23"}, BOUND},
    /* a GPU for every rank, though not all are near */
    {.file = "masks-even",
     .xml = "unequal",
     .cores = 24,
     .gpus = -1,
     .ranks = 5,
     .rows = 5,
     .near = {"0-5,24-29", "0-5,24-29", "6-11,30-35", "6-11,30-35", "6-11,30-35"},
     .mask = {"0-11,24-35"},
     BOUND,
     .warning = "rank 3: 0 of the 12 cores that the launcher left this rank (CPUs 0-11,24-35) are "
                "near its GPU 0000:41:00.0 (CPUs 12-16,36-40)"},
    {.file = "masks-overlap", .synthetic = "numa:1 core:4 pu:1", .cores = 4, .ranks = 3, .rows = 3,
     .near = {"2", "0", "3"}, .mask = {"0,2", "0,3", "3"}, BOUND},
    {.file = "masks-siblings", .synthetic = "numa:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)",
     .cores = 4, .ranks = 2, .rows = 2, .near = {"1,3,5,7", "0,2"}, .mask = {"0-7", "0,2"}, BOUND},
    {.file = "half", .cores = 4, .gpus = 2, .rows = 2, .near = {"2", "3"}, .memory = "11", BOUND},
    {.file = "withheld",
     .cores = 8,
     .gpus = -1,
     .rows = 1,
     .near = {"4-7"},
     BOUND,
     .warning = "0 of the 4 cores that a control group left this rank (CPUs 4-7) are near its GPU "
                "0000:11:00.0 (CPUs 0-3). Its data crosses "
                "between NUMA domains. Ask the batch system"},
};
// clang-format on
enum { MACHINES = sizeof machines / sizeof *machines };

static const char *top(void)
{
  const char *folder = getenv("top_srcdir");
  return folder ? folder : ".";
}

static enum status create(const struct machine *m, struct topo **out)
{
  char *xml = m->synthetic
                  ? NULL
                  : mem_printf("%s/tests/topo/machines/%s.xml", top(), m->xml ? m->xml : m->file);
  struct topo_scene scene = {.xml = xml,
                             .synthetic = m->synthetic,
                             .gpus = m->gpus,
                             .ranks = m->ranks,
                             .mask = (char **)m->mask};
  while (scene.masks < RANKS && m->mask[scene.masks])
    scene.masks++;
  const enum status status = topo_create_scene(&scene, &m->options, out);
  mem_free(xml);
  return status;
}

/* The caller frees it. */
static char *printed(const struct machine *m)
{
  struct topo *topo;
  char *text = NULL;
  size_t bytes;
  if (create(m, &topo))
    fail_msg("%s: %s", m->file, status_text());
  FILE *stream = open_memstream(&text, &bytes);
  assert_non_null(stream);
  assert_int_equal(topo_print(topo, stream), STATUS_OK);
  assert_int_equal(fclose(stream), 0);
  topo_destroy(topo);
  return text;
}

static void write_golden(const char *path, const char *text)
{
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
}

static void compare_golden(const char *path, const char *text)
{
  char *known = calloc(1, strlen(text) + 2);
  FILE *file = fopen(path, "r");
  if (!file || !known)
    fail_msg("%s cannot be read", path);
  const size_t bytes = fread(known, 1, strlen(text) + 1, file);
  fclose(file);
  if (bytes != strlen(text) || memcmp(known, text, bytes) != 0)
    fail_msg("%s is not what is printed:\n%s", path, text);
  free(known);
}

TEST(machines_are_printed_as_in_the_golden_files)
{
  const char *golden = getenv("SLUICE_GOLDEN");
  for (int i = 0; i < MACHINES; i++) {
    char *text = printed(&machines[i]),
         *path = mem_printf("%s/tests/topo/golden/%s.txt", top(), machines[i].file);
    if (golden && strcmp(golden, "write") == 0)
      write_golden(path, text);
    else
      compare_golden(path, text);
    mem_free(path);
    free(text);
  }
}

/* --- what the table says ------------------------------------------------- */

static void read_list(const char *text, bool has[CPUS])
{
  memset(has, 0, CPUS * sizeof *has);
  for (const char *at = text; *at && *at != '-';) {
    char *end;
    const long first = strtol(at, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
    assert_true(end > at && first <= last && last < CPUS);
    for (long cpu = first; cpu <= last; cpu++)
      has[cpu] = true;
    at = *end == ',' ? end + 1 : end;
  }
}

struct row {
  int gpu, cores, threads;
  char memory;
  bool list[LISTS][CPUS]; /* controller, I/O, math */
};

static int read_rows(const char *text, struct row rows[RANKS])
{
  int n = 0, bytes;
  const char *at = strstr(text, "threads\n");
  assert_non_null(at);
  for (at += strlen("threads\n"); *at != '\n'; at = strchr(at, '\n') + 1, n++) {
    char gpu[32], memory[32], list[LISTS][128];
    int rank;
    assert_true(n < RANKS);
    assert_int_equal(sscanf(at, "%d %31s %n", &rank, gpu, &bytes), 2);
    rows[n].gpu = gpu[0] == '-' ? -1 : (int)strtol(gpu, NULL, 10);
    at += bytes;
    if (rows[n].gpu >= 0)
      at = strchr(at, ' ');
    assert_int_equal(sscanf(at, "%31s %d %127s %127s %127s %d", memory, &rows[n].cores, list[0],
                            list[1], list[2], &rows[n].threads),
                     6);
    assert_int_equal(rank, n);
    rows[n].memory = memory[1] ? '*' : memory[0];
    for (int l = 0; l < LISTS; l++)
      read_list(list[l], rows[n].list[l]);
  }
  return n;
}

/* Every core has one owner, the owner's parts are apart but for what I/O shares with the
 * controller, and all of it is near the GPU. */
static void check_rows(const struct machine *m, const struct row *rows)
{
  int owner[CPUS];
  for (int k = 0; m->memory && k < m->rows; k++)
    assert_int_equal(rows[k].memory, m->memory[k]);
  memset(owner, -1, sizeof owner);
  for (int k = 0; k < m->rows; k++) {
    bool near[CPUS];
    int cores = 0, math = 0;
    read_list(m->near[k], near);
    for (int core = 0; core < m->cores; core++) {
      bool mine = false, part[LISTS] = {false};
      for (int cpu = core; cpu < CPUS; cpu += m->cores)
        for (int l = 0; l < LISTS; l++) {
          if (rows[k].list[l][cpu] && !near[cpu])
            fail_msg("%s: CPU %d of rank %d is not near its GPU", m->file, cpu, k);
          part[l] = part[l] || rows[k].list[l][cpu];
          mine = mine || rows[k].list[l][cpu];
        }
      if (mine && owner[core] >= 0)
        fail_msg("%s: core %d is given to ranks %d and %d", m->file, core, owner[core], k);
      if (mine)
        owner[core] = k;
      if (part[2] && (part[0] || part[1]))
        fail_msg("%s: core %d of rank %d has math and more", m->file, core, k);
      cores += mine;
      math += part[2];
    }
    assert_int_equal(cores, rows[k].cores);
    assert_true(math > 0);
    assert_int_equal(rows[k].threads, m->options.threads ? m->options.threads : math);
  }
}

TEST(cores_are_given_once_and_near_the_gpu)
{
  for (int i = 0; i < MACHINES; i++) {
    static struct row rows[RANKS];
    char *text = printed(&machines[i]);
    const int n = read_rows(text, rows);
    assert_int_equal(n, machines[i].rows);
    if (!machines[i].crowded)
      check_rows(&machines[i], rows);
    if (machines[i].warning ? !strstr(text, machines[i].warning) : strstr(text, "warning") != NULL)
      fail_msg("%s warns otherwise:\n%s", machines[i].file, text);
    free(text);
  }
}

/* --- the nearest GPU ----------------------------------------------------- */

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

TEST(ranks_get_the_nearest_gpus)
{
  static const char *const masks[] = {"0-3", "4-7", "8-11", "12-15"};
  for (int p = 0; p < 256; p += 3) {
    const int node[4] = {p & 3, p >> 2 & 3, p >> 4 & 3, p >> 6};
    struct machine m = {.synthetic = "pack:2 numa:2 core:4 pu:1", .gpus = 4, .ranks = 4, BOUND};
    static struct row rows[RANKS];
    int all = 0, seen = 0;
    for (int k = 0; k < 4; k++)
      m.mask[k] = (char *)masks[node[k]];
    char *text = printed(&m);
    assert_int_equal(read_rows(text, rows), 4);
    for (int k = 0; k < 4; k++) {
      all += cost(node[k], rows[k].gpu);
      seen |= 1 << rows[k].gpu;
    }
    assert_int_equal(seen, 15); /* each its own */
    assert_int_equal(all, least_cost(node));
    free(text);
  }
}

/* The GPU of a rank, by the lines of the table that follow; -1 where there is none. */
static int next_gpu(const char **line, int rank)
{
  char *end;
  assert_int_equal(strtol(*line, &end, 10), rank);
  const int gpu = (int)strtol(end, NULL, 10);
  *line = strchr(*line, '\n') + 1;
  return gpu;
}

static char *print_scene(const struct topo_scene *scene)
{
  struct topo *topo;
  char *text = NULL;
  size_t bytes;
  if (topo_create_scene(scene, &(struct topo_options){.bind = true}, &topo))
    fail_msg("%s", status_text());
  FILE *stream = open_memstream(&text, &bytes);
  assert_non_null(stream);
  assert_int_equal(topo_print(topo, stream), STATUS_OK);
  assert_int_equal(fclose(stream), 0);
  topo_destroy(topo);
  return text;
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
  static const char *const masks[NODES] = {"0-3", "4-7", "8-11", "12-15"};
  static char *mask[MANY];
  static int node[MANY];
  int count[NODES] = {0}, taken[NODES * EACH] = {0}, at_home = 0, all = 0;
  for (int k = 0; k < MANY; k++) {
    node[k] = k * 7 % 16 < 9 ? 3 : k * 7 % 16 < 12 ? 0 : k * 7 % 16 < 14 ? 2 : 1;
    mask[k] = (char *)masks[node[k]];
    count[node[k]]++;
  }
  char *text = print_scene(&(struct topo_scene){.synthetic = "pack:2 numa:2 core:4 pu:1",
                                                .gpus = NODES * EACH,
                                                .ranks = MANY,
                                                .masks = MANY,
                                                .mask = mask});
  const char *line = strstr(text, "threads\n") + strlen("threads\n");
  for (int k = 0; k < MANY; k++) {
    const int gpu = next_gpu(&line, k);
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
  free(text);
}

/* --- masks that overlap ---------------------------------------------------------------------- */

enum { FEW = 6 };

/* "0,3" for bits 0 and 3. */
static char *list_of(unsigned bits)
{
  char text[2 * FEW + 1] = "";
  for (int cpu = 0; cpu < FEW; cpu++)
    if (bits >> cpu & 1)
      snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", *text ? "," : "", cpu);
  return mem_strdup(text);
}

/* Hall's theorem: each rank can have its own core unless k ranks have fewer than k cores. */
static bool can_be_apart(const unsigned *mask, int ranks)
{
  for (unsigned some = 1; some < 1U << ranks; some++) {
    unsigned cores = 0;
    for (int k = 0; k < ranks; k++)
      cores |= some >> k & 1 ? mask[k] : 0;
    if (__builtin_popcount(cores) < __builtin_popcount(some))
      return false;
  }
  return true;
}

/* Each rank has cores of its mask, no core has two ranks, and no core of a mask idles. */
static void check_apart(const char *text, const unsigned *mask, int ranks)
{
  static struct row rows[RANKS];
  unsigned given = 0, wanted = 0;
  assert_int_equal(read_rows(text, rows), ranks);
  for (int k = 0; k < ranks; k++) {
    unsigned own = 0;
    for (int cpu = 0; cpu < FEW; cpu++)
      own |= (unsigned)rows[k].list[2][cpu] << cpu;
    if (own == 0 || own & given || own & ~mask[k])
      fail_msg("rank %d shares a core, or has one that it may not:\n%s", k, text);
    given |= own;
    wanted |= mask[k];
  }
  if (given != wanted)
    fail_msg("a core is idle:\n%s", text);
}

TEST(ranks_have_their_own_cores_where_masks_overlap)
{
  uint32_t random = 1;
  int apart = 0, shared = 0;
  for (int i = 0; i < 300; i++) {
    unsigned mask[FEW];
    char *list[FEW];
    const int ranks = 2 + i % (FEW - 1);
    for (int k = 0; k < ranks; k++) {
      random = random * 1664525 + 1013904223; /* Numerical Recipes */
      mask[k] = (random >> 16) % ((1U << FEW) - 1) + 1;
      mask[k] &= i % 2 ? mask[k] : random >> 24 | 1U << k; /* half of them have fewer cores */
      mask[k] = mask[k] ? mask[k] : 1;
      list[k] = list_of(mask[k]);
    }
    char *text = print_scene(&(struct topo_scene){
        .synthetic = "numa:2 core:3 pu:1", .ranks = ranks, .masks = ranks, .mask = list});
    const bool possible = can_be_apart(mask, ranks);
    if (possible)
      check_apart(text, mask, ranks);
    if (possible == (strstr(text, "There are more ranks than cores") != NULL))
      fail_msg("sharing is told otherwise:\n%s", text);
    apart += possible;
    shared += !possible;
    for (int k = 0; k < ranks; k++)
      mem_free(list[k]);
    free(text);
  }
  assert_true(apart > 30 && shared > 30);
}

/* --- sentences ------------------------------------------------------------------------------- */

TEST(cores_without_local_memory_are_told)
{
  const struct machine m = {.file = "bare", .ranks = 4, BOUND};
  struct topo *topo = NULL;
  assert_int_equal(create(&m, &topo), STATUS_OK);
  assert_string_equal(topo_description(topo),
                      "4 cores without local memory (CPUs 0-3), of 16 cores in the machine");
  topo_destroy(topo);
}

/* Lists of CPUs are printed in full, however long: in the table, a warning and the description. */
TEST(long_lists_are_told_whole)
{
  char even[512] = "0", odd[512] = "1";
  for (int cpu = 2; cpu < 128; cpu += 2) {
    snprintf(even + strlen(even), sizeof even - strlen(even), ",%d", cpu);
    snprintf(odd + strlen(odd), sizeof odd - strlen(odd), ",%d", cpu + 1);
  }
  struct topo *topo;
  const struct topo_scene scene = {.synthetic = "pack:2 numa:1 core:128 pu:1",
                                   .gpus = 2,
                                   .ranks = 2,
                                   .masks = 2,
                                   .mask = (char *[]){even, odd}};
  char *text = print_scene(&scene),
       *warning =
           mem_printf("left this rank (CPUs %s) are near its assumed GPU (CPUs 128-255)", odd);
  char *description =
      mem_printf("64 cores of NUMA node 0 (CPUs %s), of 256 cores in the machine, 61 threads, "
                 "assumed GPU: controller on CPUs 0,2, I/O on 4, math on %s",
                 even, even + strlen("0,2,4,"));
  assert_non_null(strstr(text, warning));
  assert_non_null(strstr(text, even + strlen("0,2,4,"))); /* what is left for math */
  assert_non_null(strstr(text, odd + strlen("1,3,5,")));
  assert_int_equal(topo_create_scene(&scene, &(struct topo_options){.bind = true}, &topo),
                   STATUS_OK);
  assert_string_equal(topo_description(topo), description);
  topo_destroy(topo);
  mem_free(description);
  mem_free(warning);
  free(text);
}

/* --- guards -------------------------------------------------------------- */

static void refuse(const struct machine *m, enum status expected, const char *text)
{
  struct topo *topo = NULL;
  assert_int_equal(create(m, &topo), expected);
  if (!strstr(status_text(), text))
    fail_msg("'%s' is not in: %s", text, status_text());
  assert_null(topo);
}

FIXTURE(nothing_is_left)
{
  return mem_usage(MEM_META).bytes != 0;
}

TEST_WITH(misfit_is_refused, NULL, nothing_is_left)
{
  char *same[] = {"0-7", "7-15"}, *beyond[] = {"0-7", "100-120"}, *odd[] = {"0-7", "a-b"},
       *one[] = {"0-7"};
  refuse(&(struct machine){.file = "nowhere", BOUND}, STATUS_INPUT,
         "nowhere.xml: No such file or directory");
  refuse(&(struct machine){.synthetic = "bogus", BOUND}, STATUS_USAGE,
         "'bogus' is not a machine in hwloc's synthetic language");
  refuse(&(struct machine){.file = "nps4", .gpus = 6, BOUND}, STATUS_USAGE,
         "gpus is 6, but the machine shows 4");
  refuse(&(struct machine){.file = "nps4", .gpus = 33, BOUND}, STATUS_USAGE,
         "gpus is 33, and a machine has 32 at most");
  refuse(&(struct machine){.file = "nps4", .gpus = -1, .ranks = 3, .mask = {"0-7", "8-15"}, BOUND},
         STATUS_USAGE, "2 masks are given for 3 ranks");
  refuse(
      &(struct machine){
          .file = "nps4", .gpus = -1, .ranks = 2, .mask = {"0-7", "16-23", "8-15"}, BOUND},
      STATUS_USAGE,
      "3 masks are given for 2 ranks: give one per rank, or one for all. A mask with commas needs "
      "quotes");
  refuse(&(struct machine){.file = "nps4", .gpus = -1, .mask = {"4000000000"}, BOUND}, STATUS_USAGE,
         "'4000000000' has a CPU beyond 8191");
  refuse(&(struct machine){.synthetic = "pack:2 numa:1 core:4 pu:4294967295", BOUND}, STATUS_USAGE,
         "has more than 8192 CPUs");
  refuse(&(struct machine){.synthetic = "pack:64 core:64 pu:64", BOUND}, STATUS_USAGE,
         "has more than 8192 CPUs");
  refuse(&(struct machine){.synthetic = "pu:-1", BOUND}, STATUS_USAGE, "has more than 8192 CPUs");
  refuse(&(struct machine){.synthetic = "pu:2(indexes=0,4000000000)", BOUND}, STATUS_USAGE,
         "or indexes beyond them");
  refuse(&(struct machine){.file = "nps4", .gpus = -1, .mask = {"zero"}, BOUND}, STATUS_USAGE,
         "'zero' is not a list of CPUs");
  refuse(&(struct machine){.file = "nps4", .gpus = -1, .mask = {"200-210"}, BOUND}, STATUS_LIBRARY,
         "no core among the CPUs");
  refuse(&(struct machine){.file = "forbidden", BOUND}, STATUS_INPUT,
         "forbidden.xml allows its processes no CPU: give them some with mask=");
  struct machine two = {
      .file = "nps4", .gpus = -1, .ranks = 2, .options = {.bind = true, .lists = 2, .list = same}};
  refuse(&two, STATUS_USAGE,
         "topo.cores gives ranks 0 and 1 of a node the same CPUs (0-7 and 7-15)");
  two.options.list = beyond;
  refuse(&two, STATUS_USAGE,
         "topo.cores gives rank 1 of its node the CPUs 100-120, of which it may use 0-63");
  two.options.list = odd;
  refuse(&two, STATUS_USAGE, "'a-b' is not a list of CPUs in topo.cores");
  two.options = (struct topo_options){.bind = true, .lists = 1, .list = one};
  refuse(&two, STATUS_USAGE, "topo.cores has 1 list of CPUs for the 2 ranks of a node");
  refuse(&(struct machine){.file = "nps4", .gpus = -1, .options = {.bind = true, .controller = 8}},
         STATUS_USAGE, "topo.controller is 8, but rank 0 of its node has 8 cores");
}

TEST_WITH(a_file_that_hwloc_did_not_write_is_refused, NULL, nothing_is_left)
{
  char path[] = "/tmp/sluice-machine-XXXXXX";
  struct topo *topo = NULL;
  const int file = mkstemp(path);
  assert_true(file >= 0);
  FILE *stream = fdopen(file, "w");
  assert_non_null(stream);
  assert_true(fputs("<topology version=\"2.0\"><object type=\"Mach", stream) >= 0 &&
              fclose(stream) == 0);
  setenv("HWLOC_HIDE_ERRORS", "2", 1);
  assert_int_equal(topo_create_scene(&(struct topo_scene){.xml = path, .gpus = -1},
                                     &(struct topo_options){.bind = true}, &topo),
                   STATUS_INPUT);
  assert_non_null(strstr(status_text(), "is not a machine that hwloc wrote"));
  assert_int_equal(remove(path), 0);
}

/* hwloc 3 writes version 3.0. hwloc 2 reads no version but its own. */
TEST_WITH(a_file_of_a_newer_hwloc_is_named_so, NULL, nothing_is_left)
{
  char path[] = "/tmp/sluice-machine-XXXXXX";
  struct topo *topo = NULL;
  const int file = mkstemp(path);
  assert_true(file >= 0);
  FILE *stream = fdopen(file, "w");
  assert_non_null(stream);
  assert_true(
      fputs(
          "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
          "<topology version=\"9.0\">\n</topology>\n",
          stream) >= 0 &&
      fclose(stream) == 0);
  setenv("HWLOC_HIDE_ERRORS", "2", 1);
  assert_int_equal(topo_create_scene(&(struct topo_scene){.xml = path, .gpus = -1},
                                     &(struct topo_options){.bind = true}, &topo),
                   STATUS_INPUT);
  assert_non_null(strstr(status_text(), "is of a newer hwloc than this program's"));
  assert_int_equal(remove(path), 0);
}

TEST_MAIN(NULL, nothing_is_left)
