/* Opens this machine or a file of hwloc, and refuses files that hwloc would misread. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/mem.h"
#include "base/open.h"
#include "topo/place.h"

enum { TOPO_CPUS = TOPO_MASK_WORDS * 64 };
enum {
  NVIDIA = 0x10de,
  DISPLAY = 0x03
}; /* PCI vendor, and the upper byte of the class of both GPUs that drive a display and those that
      do not */

enum status topo_check(int result, const char *call)
{
  return result >= 0 ? STATUS_OK
                     : status_set(STATUS_LIBRARY, "hwloc: %.*s failed: %s", (int)strcspn(call, "("),
                                  call, strerror(errno));
}

/* --- loading ------------------------------------------------------------- */

/* The PCI tree, which Linux shows, identifies GPUs. Other ways to find them start their drivers,
 * which takes seconds, or read the devices themselves. */
static enum status look_at_pci_only(hwloc_topology_t machine)
{
#if HWLOC_API_VERSION >= 0x20100
  static const char *const others[] = {"pci", "cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    (void)hwloc_topology_set_components(
        machine, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
        others[i]); /* it fails for object types that are not built in */
#endif
  return HWLOC(hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_IMPORTANT));
}

/* Whether the root element names a version beyond this hwloc's. */
static bool is_of_newer_hwloc(const char *xml)
{
  char head[1024];
  const bool found = open_read_text(xml, head, sizeof head);
  const char *root = found ? strstr(head, "<topology") : NULL;
  const char *version = root ? strstr(root, "version=\"") : NULL;
  return version &&
         strtol(version + strlen("version=\""), NULL, 10) > (long)(hwloc_get_api_version() >> 16);
}

static enum status refuse_xml(const char *xml)
{
  const unsigned version = hwloc_get_api_version() >> 16;
  if (is_of_newer_hwloc(xml))
    return status_set(
        STATUS_INPUT,
        "%s is of a newer hwloc than this program's, which is version %u: write it with "
        "lstopo --export-xml-flags v%u",
        xml, version, version);
  return status_set(STATUS_INPUT, "%s is not a machine that hwloc wrote (lstopo machine.xml)", xml);
}

/* hwloc tries to build a machine of any size. Its CPUs are the product of its levels. Parentheses
 * and brackets hold attributes and memory of a level. */
static bool is_too_large(const char *synthetic)
{
  double cpus = 1;
  int depth = 0;
  for (const char *at = synthetic; *at; at++) {
    const bool begins = at == synthetic || at[-1] == ':' || isspace((unsigned char)at[-1]);
    depth += (*at == '(' || *at == '[') - (*at == ')' || *at == ']');
    if (depth == 0 && begins && (*at == '-' || isdigit((unsigned char)*at)))
      cpus *= fmax(1, (double)strtoull(at, NULL, 0));
  }
  return cpus > TOPO_CPUS;
}

/* A set reaches to its largest number, however few CPUs it has. */
static bool has_number_beyond(const char *list, size_t length)
{
  const char *end = list + length;
  char *after;
  for (const char *at = list; at < end; at = isdigit((unsigned char)*at) ? after : at + 1)
    if (isdigit((unsigned char)*at) && strtoull(at, &after, 10) >= TOPO_CPUS)
      return true;
  return false;
}

static bool has_index_beyond(const char *synthetic)
{
  static const char key[] = "indexes=";
  for (const char *at = strstr(synthetic, key); at; at = strstr(at + 1, key))
    if (has_number_beyond(at + strlen(key), strcspn(at + strlen(key), " )")))
      return true;
  return false;
}

static enum status choose_synthetic(hwloc_topology_t machine, const char *synthetic)
{
  if (is_too_large(synthetic) || has_index_beyond(synthetic))
    return status_usage(
        "'%s' has more than %d CPUs, or indexes beyond them: describe a smaller machine", synthetic,
        TOPO_CPUS);
  if (hwloc_topology_set_synthetic(machine, synthetic) != 0)
    return status_usage(
        "'%s' is not a machine in hwloc's synthetic language: %s; try 'pack:2 numa:1 core:4 pu:2'",
        synthetic, strerror(errno));
  return STATUS_OK;
}

static enum status choose_source(hwloc_topology_t machine, const char *xml, const char *synthetic)
{
  int fd = -1;
  const enum status status = xml ? open_regular(xml, OPEN_STREAM, &fd) : STATUS_OK;
  if (status)
    return status;
  if (fd >= 0)
    close(fd);
  if (xml && hwloc_topology_set_xml(machine, xml) != 0)
    return refuse_xml(xml);
  return synthetic ? choose_synthetic(machine, synthetic) : STATUS_OK;
}

/* Includes the CPUs that a control group withholds, because being near a GPU does not depend on
 * permission. */
enum status machine_load(const char *xml, const char *synthetic, hwloc_topology_t *out)
{
  hwloc_topology_t machine;
  enum status status = HWLOC(hwloc_topology_init(&machine));
  if (status)
    return status;
  status = choose_source(machine, xml, synthetic);
  if (!status)
    status = HWLOC(hwloc_topology_set_flags(machine, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED));
  status = status ?: look_at_pci_only(machine);
  if (!status && hwloc_topology_load(machine) != 0)
    status = xml ? refuse_xml(xml) : topo_check(-1, "hwloc_topology_load");
  if (status) {
    hwloc_topology_destroy(machine);
    return status;
  }
  *out = machine;
  return STATUS_OK;
}

/* hwloc takes the first of these variables that is set. */
bool machine_is_described(hwloc_topology_t machine, char *out, size_t size)
{
  static const char *const variable[] = {"HWLOC_FSROOT", "HWLOC_CPUID_PATH", "HWLOC_SYNTHETIC",
                                         "HWLOC_XMLFILE", "HWLOC_THISSYSTEM"};
  int v = 0;
  while (v < 4 && !getenv(variable[v]))
    v++;
  const bool described = !hwloc_topology_is_thissystem(machine);
  if (described)
    snprintf(out, size,
             "%s describes a machine, so no thread is bound to its cores: unset it, or set "
             "HWLOC_THISSYSTEM=1 if it describes this machine",
             variable[v]);
  else
    out[0] = '\0';
  return described;
}

enum status machine_read_cpus(const char *what, const char *list, hwloc_bitmap_t out)
{
  const bool spelled = *list && strspn(list, "0123456789,-") == strlen(list);
  if (spelled && has_number_beyond(list, strlen(list)))
    return status_usage("'%s'%s has a CPU beyond %d, the last that a machine can have", list, what,
                        TOPO_CPUS - 1);
  if (!spelled || hwloc_bitmap_list_sscanf(out, list) != 0)
    return status_usage("'%s' is not a list of CPUs%s, such as 0-7,16", list, what);
  return STATUS_OK;
}

/* --- cores --------------------------------------------------------------- */

/* Virtual machines may show no cores. Then each CPU counts as one. */
static hwloc_obj_type_t core_type(hwloc_topology_t machine)
{
  return hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
}

hwloc_obj_t machine_next_core(hwloc_topology_t machine, hwloc_const_bitmap_t mask, hwloc_obj_t core)
{
  return hwloc_get_next_obj_covering_cpuset_by_type(machine, mask, core_type(machine), core);
}

int machine_count_cores(hwloc_topology_t machine, hwloc_const_bitmap_t mask)
{
  int n = 0;
  for (hwloc_obj_t core = NULL; (core = machine_next_core(machine, mask, core));)
    n++;
  return n;
}

void machine_take_cores(hwloc_topology_t machine, hwloc_const_bitmap_t mask, int begin, int end,
                        hwloc_bitmap_t out)
{
  int n = 0;
  hwloc_bitmap_zero(out);
  for (hwloc_obj_t core = NULL; (core = machine_next_core(machine, mask, core)); n++)
    if (n >= begin && n < end)
      SET(hwloc_bitmap_or(out, out, core->cpuset));
  SET(hwloc_bitmap_and(out, out, mask));
}

/* --- domains --------------------------------------------------------------------------------- */

/* A socket without DIMMs has a NUMA node, too. If no sizes are known, all nodes may have memory. */
bool machine_has_memory(hwloc_topology_t machine, hwloc_obj_t node)
{
  return node->attr->numanode.local_memory > 0 || hwloc_get_root_obj(machine)->total_memory == 0;
}

/* The processors of GH200 and GB200 reach a GPU's memory as a node. */
static bool is_gpu_memory(hwloc_obj_t node)
{
  return node->subtype && strcmp(node->subtype, "GPUMemory") == 0;
}

/* The first node with memory that is local to a core, of an object's memory children. Memory-side
 * caches are between the two. */
static hwloc_obj_t first_node(hwloc_topology_t machine, hwloc_obj_t core, hwloc_obj_t child)
{
  for (; child; child = child->next_sibling) {
    const bool local = child->type == HWLOC_OBJ_NUMANODE && machine_has_memory(machine, child) &&
                       !is_gpu_memory(child) &&
                       hwloc_bitmap_intersects(child->cpuset, core->cpuset);
    hwloc_obj_t node = local ? child : first_node(machine, core, child->memory_first_child);
    if (node)
      return node;
  }
  return NULL;
}

/* Memory without CPUs of its own (HBM, CXL) comes after the node of the cores, or hangs further
 * up. */
static hwloc_obj_t node_of(hwloc_topology_t machine, hwloc_obj_t core)
{
  hwloc_obj_t node = NULL;
  for (hwloc_obj_t around = core; around && !node; around = around->parent)
    node = first_node(machine, core, around->memory_first_child);
  return node;
}

/* Cores without local memory form a domain per package, because nothing else shows how near they
 * are. */
static enum status add_to_domain(struct topo *topo, hwloc_obj_t core)
{
  const struct domain wanted = {
      .node = node_of(topo->machine, core),
      .package = hwloc_get_ancestor_obj_by_type(topo->machine, HWLOC_OBJ_PACKAGE, core)};
  int d = 0;
  while (d < topo->domains && (topo->domain[d].node != wanted.node ||
                               (!wanted.node && topo->domain[d].package != wanted.package)))
    d++;
  struct domain *domain = &topo->domain[d];
  if (d == topo->domains) {
    *domain = wanted;
    topo->domains++;
    const enum status status = set_create(&domain->cpus);
    if (status)
      return status;
  }
  SET(hwloc_bitmap_or(domain->cpus, domain->cpus, core->cpuset));
  return STATUS_OK;
}

enum status machine_find_domains(struct topo *topo)
{
  hwloc_const_bitmap_t whole = machine_cpus(topo->machine);
  const size_t most = (size_t)machine_count_cores(topo->machine, whole);
  enum status status = mem_new(MEM_META, most, &topo->domain);
  for (hwloc_obj_t core = NULL; !status && (core = machine_next_core(topo->machine, whole, core));)
    status = add_to_domain(topo, core);
  return status;
}

/* --- GPUs ---------------------------------------------------------------- */

static int64_t pack_bus(unsigned domain, unsigned bus, unsigned device, unsigned function)
{
  return (int64_t)domain << 16 | bus << 8 | device << 3 | function;
}

enum status machine_read_bus(const char *text, int64_t *out)
{
  unsigned domain, bus, device, function = 0;
  char end;
  const int n = sscanf(text, "%x:%x:%x.%x%c", &domain, &bus, &device, &function, &end);
  if ((n != 3 && n != 4) || bus > 0xff || device > 0x1f || function > 7)
    return status_set(STATUS_INTERNAL,
                      "'%s' is not the place of a PCI device, such as 0000:1b:00.0", text);
  *out = pack_bus(domain, bus, device, function);
  return STATUS_OK;
}

struct bus_text machine_bus_text(int64_t bus)
{
  struct bus_text text = {"assumed"};
  if (bus >= 0)
    snprintf(text.text, sizeof text.text, "%04x:%02x:%02x.%x", (unsigned)(bus >> 16),
             (unsigned)(bus >> 8 & 0xff), (unsigned)(bus >> 3 & 0x1f), (unsigned)(bus & 7));
  return text;
}

struct bus_text machine_gpu_text(int64_t bus)
{
  struct bus_text text = {"assumed GPU"};
  if (bus >= 0)
    snprintf(text.text, sizeof text.text, "GPU %.24s", machine_bus_text(bus).text);
  return text;
}

static enum status append_gpu(struct topo *topo, int64_t bus, hwloc_const_bitmap_t near)
{
  if (topo->gpus == TOPO_GPUS)
    return status_set(STATUS_UNSUPPORTED, "this machine has more than %d GPUs", TOPO_GPUS);
  hwloc_bitmap_t copy = hwloc_bitmap_dup(near);
  if (!copy)
    return status_set(STATUS_MEMORY, "no memory for a set of CPUs");
  topo->gpu[topo->gpus++] = (struct gpu){.bus = bus, .near = copy};
  return STATUS_OK;
}

static int64_t bus_of(hwloc_obj_t device)
{
  const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
  return pack_bus(pci->domain, pci->bus, pci->dev, pci->func);
}

/* If the firmware does not report the location, or a virtual machine hides it, hwloc has the device
 * at the root. Then all CPUs are near. */
enum status machine_add_gpu(struct topo *topo, int64_t bus, int *index)
{
  for (*index = 0; *index < topo->gpus; ++*index)
    if (topo->gpu[*index].bus == bus)
      return STATUS_OK;
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topo->machine, machine_bus_text(bus).text);
  hwloc_obj_t around = device ? hwloc_get_non_io_ancestor_obj(topo->machine, device) : NULL;
  const bool found = around && around->cpuset && !hwloc_bitmap_iszero(around->cpuset);
  return append_gpu(topo, bus, found ? around->cpuset : machine_cpus(topo->machine));
}

static bool is_gpu(hwloc_obj_t device)
{
  return device->attr->pcidev.vendor_id == NVIDIA && device->attr->pcidev.class_id >> 8 == DISPLAY;
}

/* The next GPU's bus beyond `after`; -1: there is none. */
static int64_t next_bus(hwloc_topology_t machine, int64_t after)
{
  int64_t least = -1;
  for (hwloc_obj_t device = NULL; (device = hwloc_get_next_pcidev(machine, device));)
    if (is_gpu(device) && bus_of(device) > after && (least < 0 || bus_of(device) < least))
      least = bus_of(device);
  return least;
}

enum status machine_find_gpus(struct topo *topo, int most)
{
  enum status status = STATUS_OK;
  int index = 0;
  for (int64_t bus = -1; !status && topo->gpus < most && (bus = next_bus(topo->machine, bus)) >= 0;)
    status = machine_add_gpu(topo, bus, &index);
  return status;
}

/* Number `index` of the domains with CPUs that may be used; NULL: there are fewer. */
static const struct domain *usable_domain(const struct topo *topo, int index)
{
  hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(topo->machine);
  for (int d = 0; d < topo->domains; d++)
    if (hwloc_bitmap_intersects(topo->domain[d].cpus, allowed) && index-- == 0)
      return &topo->domain[d];
  return NULL;
}

enum status machine_assume_gpus(struct topo *topo, int n)
{
  int usable = 0;
  enum status status = STATUS_OK;
  while (usable_domain(topo, usable))
    usable++;
  for (int g = 0; g < n && usable > 0 && !status; g++)
    status = append_gpu(topo, -1, usable_domain(topo, g * usable / n)->cpus);
  return status;
}

/* --- counts -------------------------------------------------------------- */

/* All CPUs if the operating system cannot report them. */
static int count_own(hwloc_topology_t machine)
{
  hwloc_bitmap_t mask = hwloc_bitmap_alloc();
  const bool told = mask && hwloc_get_cpubind(machine, mask, HWLOC_CPUBIND_THREAD) == 0;
  const int n = told ? machine_count_cores(machine, mask)
                     : hwloc_get_nbobjs_by_type(machine, core_type(machine));
  hwloc_bitmap_free(mask);
  return n;
}

static int count_nodes(hwloc_topology_t machine)
{
  int n = 0;
  for (hwloc_obj_t node = NULL;
       (node = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, node));)
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
  if (!status) {
    *out = (struct topo_summary){.packages = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PACKAGE),
                                 .nodes = count_nodes(machine),
                                 .cores = hwloc_get_nbobjs_by_type(machine, core_type(machine)),
                                 .cpus = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PU),
                                 .own_cores = count_own(machine),
                                 .quota = cgroup_limits().cpus};
    snprintf(out->version, sizeof out->version, "%u.%u", version >> 16, version >> 8 & 255);
    machine_is_described(machine, out->described, sizeof out->described);
  }
  hwloc_topology_destroy(machine);
  return status;
}
