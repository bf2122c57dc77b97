/* What `sluice topo` prints. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "topo/place.h"

enum { CELL = 128, PICTURE_WIDTH = 64 };

struct cell {
  char text[CELL];
};

static struct cell set_cell(hwloc_const_bitmap_t set)
{
  struct cell cell = {"-"};
  if (!hwloc_bitmap_iszero(set))
    hwloc_bitmap_list_snprintf(cell.text, sizeof cell.text, set);
  return cell;
}

static struct cell number_cell(int n)
{
  struct cell cell;
  snprintf(cell.text, sizeof cell.text, "%d", n);
  return cell;
}

/* --- the table ------------------------------------------------------------------------------------------------------------------------------- */

static struct cell gpu_cell(const struct topo *topo, const struct share *share)
{
  struct cell cell = {"-"};
  if (share->ordinal >= 0)
    snprintf(cell.text, sizeof cell.text, "%d %s", share->sees[share->ordinal], machine_bus_text(topo->gpu[share->sees[share->ordinal]].bus).text);
  return cell;
}

enum column { RANK, GPU, NODES, CORES, CONTROLLER, IO, MATH, THREADS, COLUMNS };

static const char *const titles[COLUMNS] = {"rank", "GPU", "memory", "cores", "controller", "I/O", "math", "threads"};

static struct cell cell_of(const struct topo *topo, int rank, enum column column)
{
  const struct share *share = &topo->share[rank];
  static const struct cell none = {"-"};
  switch (column) {
  case RANK: return number_cell(rank);
  case GPU: return gpu_cell(topo, share);
  case NODES: return set_cell(share->nodes);
  case CORES: return number_cell(share->cores);
  case CONTROLLER: return share->split ? set_cell(share->controller) : none;
  case IO: return share->split ? set_cell(share->io) : none;
  case MATH: return set_cell(share->math);
  default: return number_cell(share->threads);
  }
}

static void print_table(const struct topo *topo, FILE *to)
{
  int width[COLUMNS];
  for (int c = 0; c < COLUMNS; c++) {
    width[c] = (int)strlen(titles[c]);
    for (int k = 0; k < topo->ranks; k++) {
      const int length = (int)strlen(cell_of(topo, k, (enum column)c).text);
      width[c] = length > width[c] ? length : width[c];
    }
  }
  for (int k = -1; k < topo->ranks; k++)
    for (int c = 0; c < COLUMNS; c++) {
      const struct cell cell = k < 0 ? (struct cell){""} : cell_of(topo, k, (enum column)c);
      fprintf(to, "%-*s%s", c == COLUMNS - 1 ? 0 : width[c], k < 0 ? titles[c] : cell.text, c == COLUMNS - 1 ? "\n" : "  ");
    }
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

static enum status print_node(const struct topo *topo, hwloc_obj_t first, hwloc_obj_t *next, FILE *to)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(topo->machine);
  hwloc_obj_t node = machine_node_of(first), core = first;
  hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
  enum status status = cpus ? STATUS_OK : status_set(STATUS_MEMORY, "no memory for a set of CPUs");
  int cores = 0;
  for (; core && machine_node_of(core) == node && !status; core = machine_next_core(topo->machine, whole, core), cores++)
    status = topo_check(hwloc_bitmap_or(cpus, cpus, core->cpuset), "hwloc_bitmap_or");
  if (!status) {
    fprintf(to, "  NUMA node %u: %d core%s, CPUs %s", node ? node->os_index : 0, cores, cores == 1 ? "" : "s", set_cell(cpus).text);
    if (node && node->attr->numanode.local_memory > 0)
      fprintf(to, ", %.1f GiB", (double)node->attr->numanode.local_memory / (1 << 30));
    fputc('\n', to);
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
    if (*topo->share[k].warning)
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

static void print_legend(const struct topo *topo, FILE *to)
{
  bool crowded = false;
  for (int k = 0; k < topo->ranks; k++)
    crowded = crowded || topo->share[k].crowded;
  fputs("\nc controller, i I/O, m math (optimizer workers), . nobody's, * of several ranks\n", to);
  print_workers(topo, to);
  if (crowded)
    fputs("There are more ranks than cores: they are left to the scheduler.\n", to);
  else if (!topo->options.bind)
    fputs("topo.bind=false: nothing is bound.\n", to);
}

enum status topo_print(const struct topo *topo, FILE *to)
{
  print_machine(topo, to);
  print_table(topo, to);
  fputc('\n', to);
  enum status status = print_picture(topo, to);
  if (status)
    return status;
  print_legend(topo, to);
  print_warnings(topo, to);
  return STATUS_OK;
}
