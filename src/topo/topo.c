#include "topo/topo.h"

#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"

enum { LIST_SIZE = 96 };

struct topo {
  hwloc_topology_t machine;
  hwloc_bitmap_t share; /* all CPUs of this rank */
  bool crowded;         /* more ranks than cores */
  int threads, *cpu;
  char description[512];
};

struct request {
  double quota;
  int index, sharers, threads;
};

static enum status check(int result, const char *call)
{
  return result >= 0 ? STATUS_OK : status_set(STATUS_LIBRARY, "hwloc: %s failed: %s", call, strerror(errno));
}

/* The boot's id rather than the host's name: two containers on one machine share its cores, whatever they are called. */
static uint64_t hash_machine(void)
{
  char text[256] = "";
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  bool found = file && fgets(text, sizeof text, file);
  if (file)
    fclose(file);
  if (!found && gethostname(text, sizeof text - 1) != 0)
    text[0] = '\0';
  return hash_text(text);
}

int64_t topo_mask_id(void)
{
  unsigned char mask[1024] = {0}; /* 8,192 CPUs, the most that Linux can be built for */
  if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)mask) != 0)
    memset(mask, 0xff, sizeof mask);
  return (int64_t)(hash_bytes(hash_machine(), mask, sizeof mask) >> 1);
}

void topo_place(const int64_t *ids, int ranks, int rank, int *index, int *sharers)
{
  int before = 0, all = 0;
  for (int r = 0; r < ranks; r++)
    if (ids[r] == ids[rank]) {
      before += r < rank;
      all++;
    }
  *index = before;
  *sharers = all;
}

/* --- the share ------------------------------------------------------------------------------------------------------------------------------- */

/* Virtual machines may show no cores: then each CPU is one. */
static hwloc_obj_type_t core_type(hwloc_topology_t machine)
{
  return hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
}

/* The next core with a CPU in the mask. */
static hwloc_obj_t next_core(hwloc_topology_t machine, hwloc_const_bitmap_t mask, hwloc_obj_t core)
{
  do
    core = hwloc_get_next_obj_by_type(machine, core_type(machine), core);
  while (core && !hwloc_bitmap_intersects(core->cpuset, mask));
  return core;
}

static int count_cores(hwloc_topology_t machine, hwloc_const_bitmap_t mask)
{
  int n = 0;
  for (hwloc_obj_t core = next_core(machine, mask, NULL); core; core = next_core(machine, mask, core))
    n++;
  return n;
}

/* share = the CPUs of cores begin ... end - 1 of the mask. */
static enum status take_cores(hwloc_topology_t machine, hwloc_const_bitmap_t mask, int begin, int end, hwloc_bitmap_t share)
{
  enum status status = STATUS_OK;
  int n = 0;
  hwloc_bitmap_zero(share);
  for (hwloc_obj_t core = next_core(machine, mask, NULL); core && !status; core = next_core(machine, mask, core), n++)
    if (n >= begin && n < end)
      status = check(hwloc_bitmap_or(share, share, core->cpuset), "hwloc_bitmap_or");
  return status ? status : check(hwloc_bitmap_and(share, share, mask), "hwloc_bitmap_and");
}

/* The CPU of hardware thread `sibling` of a core, of those in the share; -1: it has fewer. */
static int cpu_of(hwloc_const_bitmap_t share, hwloc_obj_t core, int sibling)
{
  int cpu = -1;
  do
    do
      cpu = hwloc_bitmap_next(core->cpuset, cpu);
    while (cpu >= 0 && !hwloc_bitmap_isset(share, cpu));
  while (cpu >= 0 && sibling-- > 0);
  return cpu;
}

/* First one CPU of every core, then the second ones, ..., then round again. */
static void list_cpus(struct topo *topo)
{
  int n = 0, cpus = hwloc_bitmap_weight(topo->share);
  for (int sibling = 0; n < topo->threads && n < cpus; sibling++)
    for (hwloc_obj_t core = next_core(topo->machine, topo->share, NULL); core && n < topo->threads;
         core = next_core(topo->machine, topo->share, core)) {
      int cpu = cpu_of(topo->share, core, sibling);
      if (cpu >= 0)
        topo->cpu[n++] = cpu;
    }
  for (; n < topo->threads; n++)
    topo->cpu[n] = topo->cpu[n - cpus];
}

static int threads_of(const struct request *request, int cores)
{
  double granted = request->quota / request->sharers;
  if (request->threads > 0)
    return request->threads;
  if (request->quota > 0 && granted < cores)
    return granted < 1 ? 1 : (int)granted;
  return cores;
}

static enum status describe(struct topo *topo, const struct request *request, int cores, int total)
{
  char nodes[LIST_SIZE], cpus[LIST_SIZE], *out = topo->description;
  size_t size = sizeof topo->description, used;
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (!set)
    return status_set(STATUS_MEMORY, "no memory for a set of NUMA nodes");
  enum status status = check(hwloc_cpuset_to_nodeset(topo->machine, topo->share, set), "hwloc_cpuset_to_nodeset");
  if (!status)
    status = check(hwloc_bitmap_list_snprintf(nodes, sizeof nodes, set), "hwloc_bitmap_list_snprintf");
  bool one_node = hwloc_bitmap_weight(set) == 1, one_cpu = hwloc_bitmap_weight(topo->share) == 1;
  hwloc_bitmap_free(set);
  if (!status)
    status = check(hwloc_bitmap_list_snprintf(cpus, sizeof cpus, topo->share), "hwloc_bitmap_list_snprintf");
  if (status)
    return status;
  used = (size_t)snprintf(out, size, "%d core%s of NUMA node%s %s (CPU%s %s)", cores, cores == 1 ? "" : "s", one_node ? "" : "s", nodes,
                          one_cpu ? "" : "s", cpus);
  if (cores < total)
    used += (size_t)snprintf(out + used, size - used, ", of %d cores in the machine", total);
  if (topo->threads != cores)
    used += (size_t)snprintf(out + used, size - used, ", %d thread%s", topo->threads, topo->threads == 1 ? "" : "s");
  if (request->quota > 0)
    used += (size_t)snprintf(out + used, size - used, ", CPU quota %.3g", request->quota);
  if (topo->crowded)
    snprintf(out + used, size - used, ", %d ranks on fewer cores", request->sharers);
  return STATUS_OK;
}

static enum status take_share(struct topo *topo, hwloc_const_bitmap_t mask, const struct request *request)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(topo->machine);
  int64_t cores = count_cores(topo->machine, mask);
  void *cpus;
  if (cores == 0)
    return status_set(STATUS_LIBRARY, "hwloc finds no core among the CPUs that this process may use; check the binding options of mpirun or srun");
  topo->crowded = cores < request->sharers;
  int begin = (int)(cores * request->index / request->sharers);
  int end = topo->crowded ? begin + 1 : (int)(cores * (request->index + 1) / request->sharers);
  enum status status = take_cores(topo->machine, mask, begin, end, topo->share);
  if (status)
    return status;
  topo->threads = threads_of(request, end - begin);
  status = mem_alloc(MEM_META, (size_t)topo->threads * sizeof(int), &cpus);
  if (status)
    return status;
  topo->cpu = cpus;
  list_cpus(topo);
  return describe(topo, request, end - begin, count_cores(topo->machine, whole));
}

/* --- creation -------------------------------------------------------------------------------------------------------------------------------- */

static enum status load(const char *synthetic, hwloc_topology_t *out)
{
  hwloc_topology_t machine;
  enum status status = check(hwloc_topology_init(&machine), "hwloc_topology_init");
  if (status)
    return status;
  if (synthetic && hwloc_topology_set_synthetic(machine, synthetic) != 0)
    status = status_set(STATUS_USAGE, "'%s' is not a machine in hwloc's synthetic language: %s; try 'pack:2 numa:1 core:4 pu:2'", synthetic,
                        strerror(errno));
  if (!status)
    status = check(hwloc_topology_load(machine), "hwloc_topology_load");
  if (status) {
    hwloc_topology_destroy(machine);
    return status;
  }
  *out = machine;
  return STATUS_OK;
}

/* What this process may use. An operating system that cannot tell restricts nothing. */
static enum status own_mask(hwloc_topology_t machine, hwloc_bitmap_t mask)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(machine);
  if (hwloc_get_cpubind(machine, mask, HWLOC_CPUBIND_THREAD) != 0) {
    if (errno == ENOSYS)
      return check(hwloc_bitmap_copy(mask, whole), "hwloc_bitmap_copy");
    return check(-1, "hwloc_get_cpubind");
  }
  return check(hwloc_bitmap_and(mask, mask, whole), "hwloc_bitmap_and");
}

static enum status given_mask(hwloc_topology_t machine, const char *list, hwloc_bitmap_t mask)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(machine);
  if (!list)
    return check(hwloc_bitmap_copy(mask, whole), "hwloc_bitmap_copy");
  if (hwloc_bitmap_list_sscanf(mask, list) != 0)
    return status_set(STATUS_USAGE, "'%s' is not a list of CPUs, such as 0-7,16", list);
  return check(hwloc_bitmap_and(mask, mask, whole), "hwloc_bitmap_and");
}

static enum status create(const char *synthetic, const char *list, const struct request *request, struct topo **out)
{
  void *block;
  if (request->sharers < 1 || request->index < 0 || request->index >= request->sharers || request->threads < 0)
    return status_set(STATUS_INTERNAL, "rank %d of %d with %d threads cannot have a share of the cores", request->index, request->sharers,
                      request->threads);
  enum status status = mem_alloc(MEM_META, sizeof(struct topo), &block);
  if (status)
    return status;
  struct topo *topo = block;
  hwloc_bitmap_t mask = hwloc_bitmap_alloc();
  topo->share = hwloc_bitmap_alloc();
  if (!mask || !topo->share)
    status = status_set(STATUS_MEMORY, "no memory for a set of CPUs");
  if (!status)
    status = load(synthetic, &topo->machine);
  if (!status)
    status = synthetic ? given_mask(topo->machine, list, mask) : own_mask(topo->machine, mask);
  if (!status)
    status = take_share(topo, mask, request);
  hwloc_bitmap_free(mask);
  if (status)
    topo_destroy(topo);
  else
    *out = topo;
  return status;
}

enum status topo_create(int index, int sharers, int threads, struct topo **out)
{
  const struct request request = {
      .quota = topo_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup"), .index = index, .sharers = sharers, .threads = threads};
  return create(NULL, NULL, &request, out);
}

enum status topo_create_synthetic(const char *machine, const char *mask, double quota, int index, int sharers, int threads, struct topo **out)
{
  const struct request request = {.quota = quota, .index = index, .sharers = sharers, .threads = threads};
  return create(machine, mask, &request, out);
}

void topo_destroy(struct topo *topo)
{
  if (!topo)
    return;
  if (topo->machine)
    hwloc_topology_destroy(topo->machine);
  hwloc_bitmap_free(topo->share);
  mem_free(topo->cpu);
  mem_free(topo);
}

int topo_threads(const struct topo *topo)
{
  return topo->threads;
}

const int *topo_cores(const struct topo *topo)
{
  return topo->cpu;
}

const char *topo_description(const struct topo *topo)
{
  return topo->description;
}

enum status topo_bind(const struct topo *topo)
{
  if (!hwloc_topology_is_thissystem(topo->machine))
    return status_set(STATUS_UNSUPPORTED, "a process cannot be bound to the cores of a machine that is only described");
  if (topo->crowded)
    return STATUS_OK;
  return check(hwloc_set_cpubind(topo->machine, topo->share, HWLOC_CPUBIND_PROCESS), "hwloc_set_cpubind");
}
