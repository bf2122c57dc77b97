/* Counts of sockets, cores, memory and GPUs. */
#include "topo/topo.h"

#include <hwloc.h>
#include <stdio.h>

#include "base/cgroup.h"
#include "topo/place.h"

/* All CPUs if the operating system cannot report them. */
static int count_own(hwloc_topology_t machine)
{
  hwloc_bitmap_t mask = hwloc_bitmap_alloc();
  const bool told = mask && hwloc_get_cpubind(machine, mask, HWLOC_CPUBIND_THREAD) == 0;
  const int n = told ? machine_count_cores(machine, mask)
                     : hwloc_get_nbobjs_by_type(machine, machine_core_type(machine));
  hwloc_bitmap_free(mask);
  return n;
}

static int count_nodes(hwloc_topology_t machine)
{
  int n = 0;
  for (hwloc_obj_t node = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, NULL); node;
       node = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, node))
    n += node->attr->numanode.local_memory > 0;
  return n;
}

enum status topo_summary_read(struct topo_summary *out)
{
  const unsigned version = hwloc_get_api_version();
  hwloc_topology_t machine;
  enum status status = HWLOC(hwloc_topology_init(&machine));
  if (status)
    return status;
  status = HWLOC(hwloc_topology_load(machine));
  if (status) {
    hwloc_topology_destroy(machine);
    return status;
  }
  struct topo_summary summary = {.packages = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PACKAGE),
                                 .nodes = count_nodes(machine),
                                 .cores =
                                     hwloc_get_nbobjs_by_type(machine, machine_core_type(machine)),
                                 .cpus = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PU),
                                 .own_cores = count_own(machine),
                                 .quota = cgroup_limits().cpus};
  snprintf(summary.version, sizeof summary.version, "%u.%u", version >> 16, version >> 8 & 255);
  machine_is_described(machine, summary.described, sizeof summary.described);
  hwloc_topology_destroy(machine);
  *out = summary;
  return STATUS_OK;
}
