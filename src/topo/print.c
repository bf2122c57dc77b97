/* What `sluice topo` prints. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "topo/place.h"

enum { PICTURE_WIDTH = 64 };

/* --- the table ------------------------------------------------------------------------------------------------------------------------------- */

enum column { RANK, GPU, NODES, CORES, CONTROLLER, IO, MATH, THREADS, COLUMNS };

static const char *const titles[COLUMNS] = {"rank", "GPU", "memory", "cores", "controller", "I/O", "math", "threads"};

/* All of these as snprintf does: the length is that of the whole text, whatever fits. */
static int print_set(hwloc_const_bitmap_t set, char *out, size_t size)
{
  return hwloc_bitmap_iszero(set) ? snprintf(out, size, "-") : hwloc_bitmap_list_snprintf(out, size, set);
}

static int print_part(const struct share *share, hwloc_const_bitmap_t part, char *out, size_t size)
{
  return share->split ? print_set(part, out, size) : snprintf(out, size, "-");
}

static int print_gpu(const struct topo *topo, const struct share *share, char *out, size_t size)
{
  if (share->ordinal < 0)
    return snprintf(out, size, "-");
  return snprintf(out, size, "%d %s", share->sees[share->ordinal], machine_bus_text(topo->gpu[share->sees[share->ordinal]].bus).text);
}

static int print_cell(const struct topo *topo, int rank, int column, char *out, size_t size)
{
  const struct share *share = &topo->share[rank];
  switch ((enum column)column) {
  case RANK: return snprintf(out, size, "%d", rank);
  case GPU: return print_gpu(topo, share, out, size);
  case NODES: return print_set(share->nodes, out, size);
  case CORES: return snprintf(out, size, "%d", share->cores);
  case CONTROLLER: return print_part(share, share->controller, out, size);
  case IO: return print_part(share, share->io, out, size);
  case MATH: return print_set(share->math, out, size);
  default: return snprintf(out, size, "%d", share->threads);
  }
}

static void print_line(const struct topo *topo, int rank, const int width[COLUMNS], char *cell, size_t size, FILE *to)
{
  for (int c = 0; c < COLUMNS; c++) {
    if (rank >= 0)
      print_cell(topo, rank, c, cell, size);
    fprintf(to, "%-*s%s", c == COLUMNS - 1 ? 0 : width[c], rank < 0 ? titles[c] : cell, c == COLUMNS - 1 ? "\n" : "  ");
  }
}

static enum status print_table(const struct topo *topo, FILE *to)
{
  int width[COLUMNS], widest = 0;
  char *cell;
  for (int c = 0; c < COLUMNS; c++) {
    width[c] = (int)strlen(titles[c]);
    for (int k = 0; k < topo->ranks; k++) {
      const int length = print_cell(topo, k, c, NULL, 0);
      width[c] = length > width[c] ? length : width[c];
    }
    widest = width[c] > widest ? width[c] : widest;
  }
  const enum status status = mem_alloc(MEM_META, (size_t)widest + 1, (void **)&cell);
  if (status)
    return status;
  for (int k = -1; k < topo->ranks; k++)
    print_line(topo, k, width, cell, (size_t)widest + 1, to);
  mem_free(cell);
  return STATUS_OK;
}

/* --- the picture ----------------------------------------------------------------------------------------------------------------------------- */

/* Of a core: whose it is, and for what. */
struct mark {
  char owner, role;
};

static char role_of(const struct share *share, hwloc_const_bitmap_t core)
{
  if (hwloc_bitmap_intersects(share->math, core))
    return 'm';
  if (hwloc_bitmap_intersects(share->io, core) && !hwloc_bitmap_intersects(share->controller, core))
    return 'i';
  return 'c';
}

static struct mark mark_of(const struct topo *topo, hwloc_const_bitmap_t core)
{
  static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  struct mark mark = {'.', '.'};
  for (int k = 0; k < topo->ranks; k++) {
    const struct share *share = &topo->share[k];
    if (!hwloc_bitmap_intersects(share->cpus, core))
      continue;
    const char role = role_of(share, core);
    mark.role = mark.role == '.' || mark.role == role ? role : '+';
    mark.owner = mark.owner != '.' ? '*' : k < (int)sizeof digits - 1 ? digits[k] : '#';
  }
  return mark;
}

/* Up to PICTURE_WIDTH cores from `core` on that are at its NUMA node. *next: the one behind them. */
static int print_row(const struct topo *topo, hwloc_obj_t core, hwloc_obj_t *next, FILE *to)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(topo->machine);
  hwloc_obj_t node = machine_node_of(core);
  char owner[2 * PICTURE_WIDTH + 1], role[2 * PICTURE_WIDTH + 1], before = 0;
  int n = 0, used = 0;
  for (; core && n < PICTURE_WIDTH && machine_node_of(core) == node; core = machine_next_core(topo->machine, whole, core), n++) {
    const struct mark mark = mark_of(topo, core->cpuset);
    if (n > 0 && mark.owner != before)
      owner[used] = role[used] = ' ', used++;
    before = mark.owner;
    owner[used] = mark.owner;
    role[used++] = mark.role;
  }
  fprintf(to, "    rank %.*s\n    for  %.*s\n", used, owner, used, role);
  *next = core;
  return n;
}

/* A GPU stands at the node where the first CPU near it is. */
static void print_gpus(const struct topo *topo, hwloc_const_bitmap_t cpus, FILE *to)
{
  for (int g = 0; g < topo->gpus; g++) {
    const struct gpu *gpu = &topo->gpu[g];
    bool used = false;
    if (!hwloc_bitmap_isset(cpus, (unsigned)hwloc_bitmap_first(gpu->near)))
      continue;
    fprintf(to, "    GPU %d %s%s", g, machine_bus_text(gpu->bus).text, hwloc_bitmap_isincluded(gpu->near, cpus) ? "" : " (and nodes below)");
    for (int k = 0; k < topo->ranks; k++) {
      const struct share *share = &topo->share[k];
      if (share->ordinal < 0 || share->sees[share->ordinal] != g)
        continue;
      fprintf(to, "%s%d", used ? ", " : ": rank ", k);
      used = true;
    }
    fputs(used ? "\n" : ": nobody\n", to);
  }
}

static void print_package(hwloc_obj_t core, hwloc_obj_t *last, FILE *to)
{
  hwloc_obj_t package = core;
  while (package && package->type != HWLOC_OBJ_PACKAGE)
    package = package->parent;
  if (package && package != *last)
    fprintf(to, "package %u\n", package->logical_index);
  *last = package;
}

static enum status print_cores(hwloc_obj_t node, int cores, hwloc_const_bitmap_t cpus, FILE *to)
{
  char *list = list_text(cpus);
  if (!list)
    return STATUS_MEMORY;
  fprintf(to, "  NUMA node %u: %d core%s, CPUs %s", node ? node->os_index : 0, cores, cores == 1 ? "" : "s", list);
  if (node && node->attr->numanode.local_memory > 0)
    fprintf(to, ", %.1f GiB", (double)node->attr->numanode.local_memory / (1 << 30));
  fputc('\n', to);
  mem_free(list);
  return STATUS_OK;
}

static enum status print_node(const struct topo *topo, hwloc_obj_t first, hwloc_obj_t *next, FILE *to)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(topo->machine);
  hwloc_obj_t node = machine_node_of(first), core = first;
  hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
  enum status status = cpus ? STATUS_OK : status_set(STATUS_MEMORY, "no memory for a set of CPUs");
  int cores = 0;
  for (; core && machine_node_of(core) == node && !status; core = machine_next_core(topo->machine, whole, core), cores++)
    status = topo_check(hwloc_bitmap_or(cpus, cpus, core->cpuset), "hwloc_bitmap_or");
  if (!status)
    status = print_cores(node, cores, cpus, to);
  if (!status) {
    for (core = first; core && cores > 0;)
      cores -= print_row(topo, core, &core, to);
    print_gpus(topo, cpus, to);
    *next = core;
  }
  hwloc_bitmap_free(cpus);
  return status;
}

static bool has_cores(const struct topo *topo, hwloc_obj_t node)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(topo->machine);
  for (hwloc_obj_t core = machine_next_core(topo->machine, whole, NULL); core; core = machine_next_core(topo->machine, whole, core))
    if (machine_node_of(core) == node)
      return true;
  return false;
}

static void print_memory_alone(const struct topo *topo, FILE *to)
{
  for (hwloc_obj_t node = hwloc_get_next_obj_by_type(topo->machine, HWLOC_OBJ_NUMANODE, NULL); node;
       node = hwloc_get_next_obj_by_type(topo->machine, HWLOC_OBJ_NUMANODE, node))
    if (!has_cores(topo, node))
      fprintf(to, "  NUMA node %u: memory alone%s%s, %.1f GiB, for no rank\n", node->os_index, node->subtype ? ", " : "",
              node->subtype ? node->subtype : "", (double)node->attr->numanode.local_memory / (1 << 30));
}

static enum status print_picture(const struct topo *topo, FILE *to)
{
  hwloc_obj_t package = NULL, core = machine_next_core(topo->machine, hwloc_topology_get_topology_cpuset(topo->machine), NULL);
  enum status status = STATUS_OK;
  while (core && !status) {
    print_package(core, &package, to);
    status = print_node(topo, core, &core, to);
  }
  if (!status)
    print_memory_alone(topo, to);
  return status;
}

/* --- all of it ------------------------------------------------------------------------------------------------------------------------------- */

static void print_count(int n, const char *what, FILE *to)
{
  fprintf(to, "%d %s%s", n, what, n == 1 ? "" : "s");
}

static void print_machine(const struct topo *topo, FILE *to)
{
  hwloc_topology_t machine = topo->machine;
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(machine);
  const int packages = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PACKAGE);
  const int offline = hwloc_bitmap_weight(hwloc_topology_get_complete_cpuset(machine)) - hwloc_bitmap_weight(whole);
  if (packages > 0) {
    print_count(packages, "package", to);
    fputs(", ", to);
  }
  print_count(hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE), "NUMA node", to);
  fputs(", ", to);
  print_count(machine_count_cores(machine, whole), "core", to);
  fputs(", ", to);
  print_count(hwloc_bitmap_weight(whole), "CPU", to);
  if (offline > 0)
    fprintf(to, " (and %d offline)", offline);
  fputs(", ", to);
  print_count(topo->gpus, "GPU", to);
  fputs("\n\n", to);
}

static void print_warnings(const struct topo *topo, FILE *to)
{
  for (int k = 0; k < topo->ranks; k++)
    if (topo->share[k].warning)
      fprintf(to, "warning: rank %d: %s\n", k, topo->share[k].warning);
}

/* Beside a GPU; elsewhere lanes share what a rank has (exec.h). */
static void print_workers(const struct topo *topo, FILE *to)
{
  int split = 0, own = 0;
  for (int k = 0; k < topo->ranks; k++) {
    const struct share *share = &topo->share[k];
    split += share->split && share->ordinal >= 0;
    own += share->split && share->ordinal >= 0 && share->threads <= hwloc_bitmap_weight(share->math);
  }
  if (split > 0)
    fputs(own == split ? "Optimizer workers are bound to a CPU each.\n"
          : own > 0    ? "Optimizer workers are bound to a CPU each, but where a rank has fewer CPUs for math than threads.\n"
                       : "Optimizer workers share CPUs, of which a rank has fewer for math than threads.\n",
          to);
}

/* Where there is a choice. */
static void print_memory(const struct topo *topo, FILE *to)
{
  int one = 0, several = 0;
  for (int k = 0; k < topo->ranks; k++) {
    one += share_binds_memory(topo, &topo->share[k]);
    several += share_binds(topo, &topo->share[k]) && hwloc_bitmap_weight(topo->share[k].nodes) > 1;
  }
  if (one > 0)
    fputs("Host memory of a rank comes from its NUMA node, and from another one only where that is full.\n", to);
  if (several > 0)
    fputs("Host memory of a rank with several NUMA nodes comes from that of the thread that touches it first.\n", to);
}

static void print_legend(const struct topo *topo, FILE *to)
{
  bool crowded = false;
  for (int k = 0; k < topo->ranks; k++)
    crowded = crowded || topo->share[k].crowded;
  fputs("\nc controller, i I/O, m math (optimizer workers), . nobody's, * of several ranks\n", to);
  print_workers(topo, to);
  print_memory(topo, to);
  if (crowded)
    fputs("There are more ranks than cores: they are left to the scheduler.\n", to);
  else if (!topo->options.bind)
    fputs("topo.bind=false: nothing is bound.\n", to);
}

enum status topo_print(const struct topo *topo, FILE *to)
{
  print_machine(topo, to);
  enum status status = print_table(topo, to);
  if (!status) {
    fputc('\n', to);
    status = print_picture(topo, to);
  }
  if (status)
    return status;
  print_legend(topo, to);
  print_warnings(topo, to);
  return STATUS_OK;
}
