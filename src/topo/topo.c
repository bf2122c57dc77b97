/* Shares of ranks are computed from all ranks' records, alike on each rank. */
#include "topo/topo.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/cgroup.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/open.h"
#include "topo/place.h"

/* --- the record of a rank ------------------------------------------------ */

/* The boot id, not the host name, because containers on one machine share its cores under different
 * names. */
static uint64_t hash_machine(void)
{
  char text[256] = "";
  if (!open_read_text("/proc/sys/kernel/random/boot_id", text, sizeof text) &&
      gethostname(text, sizeof text - 1) != 0)
    text[0] = '\0';
  return hash_text(text);
}

/* An operating system that cannot report the mask restricts nothing. */
static void read_mask(void *mask, size_t bytes)
{
  memset(mask, 0, bytes);
  if (sched_getaffinity(0, bytes, mask) != 0)
    memset(mask, 0xff, bytes);
}

enum status topo_record(int gpus, const char *const bus[], struct topo_record *out)
{
  struct topo_record record = {.machine = (int64_t)(hash_machine() >> 1), .gpus = gpus};
  if (gpus > TOPO_GPUS)
    return status_set(
        STATUS_UNSUPPORTED,
        "this process sees %d GPUs, more than %d: let CUDA_VISIBLE_DEVICES name fewer", gpus,
        TOPO_GPUS);
  for (int g = 0; g < gpus; g++)
    if (machine_read_bus(bus[g], &record.gpu[g]))
      return STATUS_INTERNAL;
  read_mask(record.mask, sizeof record.mask);
  *out = record;
  return STATUS_OK;
}

/* --- creation ------------------------------------------------------------ */

/* Without shares, because their number may depend on the machine. finish() takes it over, also
 * after an error. */
static enum status create(const char *xml, const char *synthetic,
                          const struct topo_options *options, struct topo **out)
{
  *out = NULL;
  enum status status = mem_new(MEM_META, 1, out);
  if (status)
    return status;
  (*out)->options = *options;
  status = machine_load(xml, synthetic, &(*out)->machine);
  return status ? status : machine_find_domains(*out);
}

static enum status create_shares(struct topo *topo, int ranks)
{
  enum status status = mem_new(MEM_META, ranks, &topo->share);
  if (status)
    return status;
  topo->ranks = ranks;
  for (int k = 0; k < ranks && !status; k++)
    status = share_create(&topo->share[k]);
  return status;
}

/* The limits of a rank's cores except their location, in words; "" if there are none. */
static void describe_limits(const struct topo *topo, const struct share *share, char *out,
                            size_t size)
{
  const int total = machine_count_cores(topo->machine, machine_cpus(topo->machine));
  out[0] = '\0';
  if (share->cores < total)
    append_text(out, size, ", of %d cores in the machine", total);
  if (share->threads != share->cores)
    append_text(out, size, ", %d thread%s", share->threads, plural(share->threads));
  if (topo->quota > 0)
    append_text(out, size, ", CPU quota %.3g", topo->quota);
  if (share->rivals)
    append_text(out, size, ", %d ranks on fewer cores", share->rivals);
  if (share->ordinal >= 0)
    append_text(out, size, ", %s", machine_gpu_text(share_gpu(topo, share)->bus).text);
}

static enum status describe(struct topo *topo)
{
  const struct share *share = &topo->share[topo->self];
  const int nodes = hwloc_bitmap_weight(share->nodes);
  char limits[256];
  describe_limits(topo, share, limits, sizeof limits);
  topo->description = mem_printf(
      share->split ? "%d core%s %s%s%s (CPU%s %s)%s: controller on CPUs %s, I/O on %s, math on %s"
                   : "%d core%s %s%s%s (CPU%s %s)%s",
      share->cores, plural(share->cores), nodes == 0 ? "without local memory" : "of NUMA node",
      nodes > 1    ? "s "
      : nodes == 1 ? " "
                   : "",
      nodes ? list_text(share->nodes).text : "", plural(hwloc_bitmap_weight(share->cpus)),
      list_text(share->cpus).text, limits, list_text(share->controller).text,
      list_text(share->io).text, list_text(share->math).text);
  topo->own = (struct topo_own){.threads = share->threads,
                                .cpus = hwloc_bitmap_weight(share->math),
                                .cores = topo->options.bind ? share->cpu : NULL,
                                .io_cpus = share->io_cpus,
                                .io_cores = share->io_cpu,
                                .gpu = share->ordinal,
                                .bound = share_binds(topo, share),
                                .description = topo->description,
                                .warning = share->warning ? share->warning : ""};
  return topo->description ? STATUS_OK : STATUS_MEMORY;
}

/* Takes over `topo`, whose shares have their masks and GPUs if `status` is STATUS_OK. */
static enum status finish(struct topo *topo, enum status status, struct topo **out)
{
  status = status ?: place_ranks(topo) ?: describe(topo);
  if (status)
    topo_destroy(topo);
  else
    *out = topo;
  return status;
}

/* --- of a job ------------------------------------------------------------ */

/* Keeps the CPUs of a mask that exist. A launcher may give others. */
static void keep_existing(const struct topo *topo, hwloc_bitmap_t mask)
{
  SET(hwloc_bitmap_and(mask, mask, machine_cpus(topo->machine)));
}

/* Another machine may have none of the CPUs of this process. */
static enum status read_record(struct topo *topo, struct share *share,
                               const struct topo_record *record)
{
  enum status status = STATUS_OK;
  for (unsigned word = 0; word < TOPO_MASK_WORDS; word++)
    SET(hwloc_bitmap_set_ith_ulong(share->mask, word, (unsigned long)record->mask[word]));
  keep_existing(topo, share->mask);
  if (!hwloc_topology_is_thissystem(topo->machine) && hwloc_bitmap_iszero(share->mask))
    SET(hwloc_bitmap_copy(share->mask, machine_cpus(topo->machine)));
  share->visible = (int)record->gpus;
  for (int g = 0; g < share->visible && !status; g++)
    status = machine_add_gpu(topo, record->gpu[g], &share->sees[g]);
  return status;
}

static enum status read_records(struct topo *topo, const struct topo_record *records, int ranks,
                                int rank)
{
  int here = 0;
  for (int r = 0; r < ranks; r++)
    here += records[r].machine == records[rank].machine;
  enum status status = create_shares(topo, here);
  for (int r = 0, k = 0; r < ranks && !status; r++) {
    if (records[r].machine != records[rank].machine)
      continue;
    if (r == rank)
      topo->self = k;
    status = read_record(topo, &topo->share[k++], &records[r]);
  }
  return status;
}

enum status topo_create_job(const struct topo_record *records, int ranks, int rank,
                            const struct topo_options *options, struct topo **out)
{
  struct topo *topo;
  enum status status = create(NULL, NULL, options, &topo);
  char why[256];
  if (!status && options->bind && machine_is_described(topo->machine, why, sizeof why)) {
    topo->options.bind = false;
    log_warn_alike("%s", why);
  }
  if (!status) {
    topo->quota = cgroup_limits().cpus;
    status = read_records(topo, records, ranks, rank);
  }
  return finish(topo, status, out);
}

/* --- of a scene ---------------------------------------------------------- */

static enum status find_scene_gpus(struct topo *topo, const struct topo_scene *scene)
{
  const int wanted = scene->gpus < 0 ? TOPO_GPUS : scene->gpus;
  enum status status = STATUS_OK;
  int index = 0;
  for (int g = 0; g < scene->buses && g < wanted && !status; g++) {
    int64_t bus;
    status = machine_read_bus(scene->bus[g], &bus) ?: machine_add_gpu(topo, bus, &index);
  }
  if (!status && scene->buses == 0)
    status = machine_find_gpus(topo, wanted);
  if (status || scene->gpus < 0 || topo->gpus == wanted)
    return status;
  if (topo->gpus > 0)
    return status_usage(
        "gpus is %d, but the machine shows %d: set gpus=%d or less, or leave it out", wanted,
        topo->gpus, topo->gpus);
  return machine_assume_gpus(topo, wanted);
}

/* The CPUs that this process may use. An operating system that cannot report them restricts
 * nothing. */
static enum status own_mask(const struct topo *topo, hwloc_bitmap_t mask)
{
  const bool found = hwloc_get_cpubind(topo->machine, mask, HWLOC_CPUBIND_THREAD) == 0;
  if (!found && errno != ENOSYS)
    return topo_check(-1, "hwloc_get_cpubind");
  if (!found)
    SET(hwloc_bitmap_copy(mask, machine_cpus(topo->machine)));
  keep_existing(topo, mask);
  return STATUS_OK;
}

static enum status scene_mask(const struct topo *topo, const struct topo_scene *scene, int rank,
                              hwloc_bitmap_t mask)
{
  hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(topo->machine);
  enum status status = STATUS_OK;
  if (scene->masks > 0)
    status = machine_read_cpus("", scene->mask[scene->masks == 1 ? 0 : rank], mask);
  else if (!scene->xml && !scene->synthetic)
    status = own_mask(topo, mask);
  else if (!hwloc_bitmap_intersects(allowed, machine_cpus(topo->machine)))
    status = status_set(STATUS_INPUT, "%s allows its processes no CPU: give them some with mask=",
                        scene->xml ? scene->xml : scene->synthetic);
  else
    SET(hwloc_bitmap_copy(mask, allowed));
  keep_existing(topo, mask);
  return status;
}

static enum status set_scene(struct topo *topo, const struct topo_scene *scene)
{
  enum status status = find_scene_gpus(topo, scene);
  const int ranks = scene->ranks > 0 ? scene->ranks : topo->gpus > 0 ? topo->gpus : 1;
  if (!status && scene->masks > 1 && scene->masks != ranks)
    status = status_usage(
        "%d masks are given for %d rank%s: give one per rank, or one for all. A mask with "
        "commas needs quotes, as mask=[\"0-3,8-11\"]",
        scene->masks, ranks, plural(ranks));
  status = status ?: create_shares(topo, ranks);
  for (int k = 0; k < ranks && !status; k++) {
    struct share *share = &topo->share[k];
    status = scene_mask(topo, scene, k, share->mask);
    share->visible = topo->gpus;
    for (int g = 0; g < topo->gpus; g++)
      share->sees[g] = g;
  }
  return status;
}

enum status topo_create_scene(const struct topo_scene *scene, const struct topo_options *options,
                              struct topo **out)
{
  struct topo *topo;
  enum status status = create(scene->xml, scene->synthetic, options, &topo);
  if (!status) {
    topo->self = scene->self;
    topo->quota = scene->xml || scene->synthetic ? scene->quota : cgroup_limits().cpus;
    status = set_scene(topo, scene);
  }
  return finish(topo, status, out);
}

static const struct share *own_share(const struct topo *topo)
{
  return &topo->share[topo->self];
}

static void unbind(const struct topo *topo)
{
  if (topo->before && hwloc_set_cpubind(topo->machine, topo->before, HWLOC_CPUBIND_PROCESS) != 0)
    log_warn("this rank stays bound to a part of its CPUs: %s", strerror(errno));
  if (topo->memory_bound &&
      hwloc_set_membind(topo->machine, hwloc_topology_get_topology_nodeset(topo->machine),
                        HWLOC_MEMBIND_DEFAULT, HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) != 0)
    log_warn("the memory of this rank stays bound to a NUMA node: %s", strerror(errno));
}

void topo_destroy(struct topo *topo)
{
  if (!topo)
    return;
  unbind(topo);
  hwloc_bitmap_free(topo->before);
  for (int k = 0; k < topo->ranks; k++)
    share_destroy(&topo->share[k]);
  for (int g = 0; g < topo->gpus; g++)
    hwloc_bitmap_free(topo->gpu[g].near);
  for (int d = 0; d < topo->domains; d++)
    hwloc_bitmap_free(topo->domain[d].cpus);
  if (topo->machine)
    hwloc_topology_destroy(topo->machine);
  mem_free(topo->domain);
  mem_free(topo->share);
  mem_free(topo->description);
  mem_free(topo);
}

/* --- use ----------------------------------------------------------------- */

const struct topo_own *topo_own(const struct topo *topo)
{
  return &topo->own;
}

bool share_binds(const struct topo *topo, const struct share *share)
{
  return topo->options.bind && !share->rivals;
}

bool share_binds_memory(const struct topo *topo, const struct share *share)
{
  return share_binds(topo, share) && hwloc_bitmap_weight(share->nodes) == 1 &&
         hwloc_get_nbobjs_by_type(topo->machine, HWLOC_OBJ_NUMANODE) > 1;
}

/* A policy other than the kernel's default, chosen for this process before it started. */
static bool was_given_policy(const struct topo *topo)
{
  hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
  hwloc_membind_policy_t policy = HWLOC_MEMBIND_DEFAULT;
  const bool known =
      nodes && hwloc_get_membind(topo->machine, nodes, &policy,
                                 HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) == 0;
  hwloc_bitmap_free(nodes);
  return known && policy != HWLOC_MEMBIND_DEFAULT && policy != HWLOC_MEMBIND_FIRSTTOUCH;
}

/* The policy of the calling thread, not of a memory area, because threads inherit it. Code that
 * creates pages for such a thread follows it too: a driver of pinned memory, whose pages cannot be
 * bound later, and files that processes share. Without HWLOC_MEMBIND_STRICT the node is only
 * preferred. If it is full, pages come from other nodes. */
static void bind_memory(struct topo *topo)
{
  const struct share *share = own_share(topo);
  if (!share_binds_memory(topo, share))
    return;
  if (was_given_policy(topo)) {
    log_note("memory is placed where numactl or srun --mem-bind asked for it, not on the NUMA node "
             "of this rank's cores");
    return;
  }
  topo->memory_bound = hwloc_set_membind(topo->machine, share->nodes, HWLOC_MEMBIND_BIND,
                                         HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) == 0;
  if (!topo->memory_bound)
    log_warn_alike(
        "memory is not bound to the NUMA node of this rank's cores, only its threads are: %s%s",
        strerror(errno), errno == EPERM ? "; a container needs CAP_SYS_NICE for it" : "");
}

enum status topo_bind(struct topo *topo)
{
  const struct share *share = own_share(topo);
  if (!share_binds(topo, share))
    return STATUS_OK;
  if (!topo->before) {
    enum status status = set_create(&topo->before) ?: own_mask(topo, topo->before);
    if (status)
      return status;
  }
  bind_memory(topo);
  return HWLOC(hwloc_set_cpubind(topo->machine, share->controller, HWLOC_CPUBIND_PROCESS));
}

enum status topo_bind_io(const struct topo *topo)
{
  const struct share *share = own_share(topo);
  return share->split ? HWLOC(hwloc_set_cpubind(topo->machine, share->io, HWLOC_CPUBIND_THREAD))
                      : STATUS_OK;
}

enum status topo_find_pages(const struct topo *topo, const void *memory, int64_t bytes,
                            struct topo_pages *pages)
{
  enum { MOST = 1024 };
  const struct share *share = own_share(topo);
  const int64_t page = sysconf(_SC_PAGESIZE), all = (bytes + page - 1) / page,
                asked = all < MOST ? all : MOST;
  if (hwloc_bitmap_iszero(share->nodes))
    return status_set(STATUS_UNSUPPORTED, "the cores of this rank have no local memory");
  hwloc_bitmap_t nodes;
  enum status status = set_create(&nodes);
  for (int64_t i = 0; i < asked && !status; i++) {
    const char *at = (const char *)memory + i * all / asked * page;
    if (hwloc_get_area_memlocation(topo->machine, at, 1, nodes, HWLOC_MEMBIND_BYNODESET) != 0)
      status = status_set(STATUS_UNSUPPORTED, "the kernel does not report where memory is: %s",
                          strerror(errno));
    else if (hwloc_bitmap_iszero(nodes))
      pages->nowhere++;
    else if (hwloc_bitmap_isincluded(nodes, share->nodes))
      pages->near++;
    else
      pages->far++;
  }
  hwloc_bitmap_free(nodes);
  return status;
}
