/* The output of `sluice topo`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "topo/place.h"

enum { PICTURE_WIDTH = 64 };

/* --- the table ----------------------------------------------------------- */

enum { COLUMNS = TOPO_COLUMNS };

static const char *const titles[COLUMNS] = {"rank",       "GPU", "memory", "cores",
                                            "controller", "I/O", "math",   "threads"};

/* All of these return the length of the whole text, as snprintf does. */
static int print_set(hwloc_const_bitmap_t set, char *out, size_t size)
{
  return hwloc_bitmap_iszero(set) ? snprintf(out, size, "-")
                                  : hwloc_bitmap_list_snprintf(out, size, set);
}

static int print_part(const struct share *share, hwloc_const_bitmap_t part, char *out, size_t size)
{
  return share->split ? print_set(part, out, size) : snprintf(out, size, "-");
}

static int print_gpu(const struct topo *topo, const struct share *share, char *out, size_t size)
{
  if (share->ordinal < 0)
    return snprintf(out, size, "-");
  return snprintf(out, size, "%d %s", share->sees[share->ordinal],
                  machine_bus_text(topo->gpu[share->sees[share->ordinal]].bus).text);
}

int topo_print_cell(const struct topo *topo, int rank, enum topo_column column, char *out,
                    size_t size)
{
  const struct share *share = &topo->share[rank];
  switch (column) {
  case TOPO_RANK: return snprintf(out, size, "%d", rank);
  case TOPO_GPU: return print_gpu(topo, share, out, size);
  case TOPO_NODES: return print_set(share->nodes, out, size);
  case TOPO_CORES: return snprintf(out, size, "%d", share->cores);
  case TOPO_CONTROLLER: return print_part(share, share->controller, out, size);
  case TOPO_IO: return print_part(share, share->io, out, size);
  case TOPO_MATH: return print_set(share->math, out, size);
  default: return snprintf(out, size, "%d", share->threads);
  }
}

static void print_line(const struct topo *topo, int rank, const int width[COLUMNS], char *cell,
                       size_t size, FILE *to)
{
  for (int c = 0; c < COLUMNS; c++) {
    if (rank >= 0)
      topo_print_cell(topo, rank, (enum topo_column)c, cell, size);
    fprintf(to, "%-*s%s", c == COLUMNS - 1 ? 0 : width[c], rank < 0 ? titles[c] : cell,
            c == COLUMNS - 1 ? "\n" : "  ");
  }
}

static enum status print_table(const struct topo *topo, FILE *to)
{
  int width[COLUMNS], widest = 0;
  char *cell;
  for (int c = 0; c < COLUMNS; c++) {
    width[c] = (int)strlen(titles[c]);
    for (int k = 0; k < topo->ranks; k++) {
      const int length = topo_print_cell(topo, k, (enum topo_column)c, NULL, 0);
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

/* --- the picture --------------------------------------------------------- */

/* The owner of a core, and its purpose. */
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

/* Prints up to PICTURE_WIDTH cores after `core` (NULL: from the first). Returns the last one. */
static hwloc_obj_t print_row(const struct topo *topo, hwloc_const_bitmap_t cpus, hwloc_obj_t core,
                             FILE *to)
{
  char owner[2 * PICTURE_WIDTH + 1], role[2 * PICTURE_WIDTH + 1], before = 0;
  int used = 0;
  for (int n = 0; n < PICTURE_WIDTH && machine_next_core(topo->machine, cpus, core); n++) {
    core = machine_next_core(topo->machine, cpus, core);
    const struct mark mark = mark_of(topo, core->cpuset);
    if (n > 0 && mark.owner != before)
      owner[used] = role[used] = ' ', used++;
    before = mark.owner;
    owner[used] = mark.owner;
    role[used++] = mark.role;
  }
  fprintf(to, "    rank %.*s\n    for  %.*s\n", used, owner, used, role);
  return core;
}

/* A GPU is shown at the node of the first CPU near it. */
static void print_gpus(const struct topo *topo, hwloc_const_bitmap_t cpus, FILE *to)
{
  for (int g = 0; g < topo->gpus; g++) {
    const struct gpu *gpu = &topo->gpu[g];
    bool used = false;
    if (!hwloc_bitmap_isset(cpus, (unsigned)hwloc_bitmap_first(gpu->near)))
      continue;
    fprintf(to, "    GPU %d %s%s", g, machine_bus_text(gpu->bus).text,
            hwloc_bitmap_isincluded(gpu->near, cpus) ? "" : " (and nodes below)");
    for (int k = 0; k < topo->ranks; k++) {
      const struct share *share = &topo->share[k];
      if (share->ordinal < 0 || share->sees[share->ordinal] != g)
        continue;
      fprintf(to, "%s%d", used ? ", " : ": rank ", k);
      used = true;
    }
    fputs(used ? "\n" : ": no rank\n", to);
  }
}

static enum status find_packages(const struct topo *topo, hwloc_const_bitmap_t cpus,
                                 hwloc_bitmap_t out)
{
  enum status status = STATUS_OK;
  hwloc_bitmap_zero(out);
  for (hwloc_obj_t package = hwloc_get_next_obj_by_type(topo->machine, HWLOC_OBJ_PACKAGE, NULL);
       package && !status;
       package = hwloc_get_next_obj_by_type(topo->machine, HWLOC_OBJ_PACKAGE, package))
    if (hwloc_bitmap_intersects(package->cpuset, cpus))
      status = topo_check(hwloc_bitmap_set(out, package->logical_index), "hwloc_bitmap_set");
  return status;
}

static enum status print_packages(hwloc_const_bitmap_t packages, FILE *to)
{
  char *list = list_text(packages);
  if (!list)
    return STATUS_MEMORY;
  if (*list)
    fprintf(to, "package%s %s\n", plural(hwloc_bitmap_weight(packages)), list);
  mem_free(list);
  return STATUS_OK;
}

static void print_cores(const struct topo *topo, const struct domain *domain, const char *list,
                        FILE *to)
{
  const int cores = machine_count_cores(topo->machine, domain->cpus);
  if (domain->node)
    fprintf(to, "  NUMA node %u: ", domain->node->os_index);
  else
    fputs("  no local memory: ", to);
  fprintf(to, "%d core%s, CPU%s %s", cores, plural(cores),
          plural(hwloc_bitmap_weight(domain->cpus)), list);
  if (domain->node && domain->node->attr->numanode.local_memory > 0)
    fprintf(to, ", %.1f GiB", (double)domain->node->attr->numanode.local_memory / (1 << 30));
  fputc('\n', to);
}

static enum status print_domain(const struct topo *topo, const struct domain *domain, FILE *to)
{
  char *list = list_text(domain->cpus);
  if (!list)
    return STATUS_MEMORY;
  print_cores(topo, domain, list, to);
  mem_free(list);
  for (hwloc_obj_t core = NULL; machine_next_core(topo->machine, domain->cpus, core);)
    core = print_row(topo, domain->cpus, core, to);
  print_gpus(topo, domain->cpus, to);
  return STATUS_OK;
}

static bool has_cores(const struct topo *topo, hwloc_obj_t node)
{
  for (int d = 0; d < topo->domains; d++)
    if (topo->domain[d].node == node)
      return true;
  return false;
}

static void print_memory_alone(const struct topo *topo, FILE *to)
{
  for (hwloc_obj_t node = hwloc_get_next_obj_by_type(topo->machine, HWLOC_OBJ_NUMANODE, NULL); node;
       node = hwloc_get_next_obj_by_type(topo->machine, HWLOC_OBJ_NUMANODE, node))
    if (!has_cores(topo, node) && machine_has_memory(topo->machine, node))
      fprintf(to, "  NUMA node %u: memory alone%s%s, %.1f GiB, for no rank\n", node->os_index,
              node->subtype ? ", " : "", node->subtype ? node->subtype : "",
              (double)node->attr->numanode.local_memory / (1 << 30));
}

/* Domains of the same packages are shown under one line. */
static enum status print_domains(const struct topo *topo, hwloc_bitmap_t last,
                                 hwloc_bitmap_t packages, FILE *to)
{
  enum status status = STATUS_OK;
  for (int d = 0; d < topo->domains && !status; d++) {
    status = find_packages(topo, topo->domain[d].cpus, packages);
    if (!status && !hwloc_bitmap_isequal(packages, last))
      status = print_packages(packages, to);
    if (!status)
      status = topo_check(hwloc_bitmap_copy(last, packages), "hwloc_bitmap_copy");
    if (!status)
      status = print_domain(topo, &topo->domain[d], to);
  }
  return status;
}

static enum status print_picture(const struct topo *topo, FILE *to)
{
  hwloc_bitmap_t last = hwloc_bitmap_alloc(), packages = hwloc_bitmap_alloc();
  const bool found = last && packages;
  enum status status =
      found ? STATUS_OK : status_set(STATUS_MEMORY, "no memory for a set of packages");
  if (!status)
    status = print_domains(topo, last, packages, to);
  if (!status)
    print_memory_alone(topo, to);
  hwloc_bitmap_free(packages);
  hwloc_bitmap_free(last);
  return status;
}

int topo_ranks(const struct topo *topo)
{
  return topo->ranks;
}

const char *topo_rank_warning(const struct topo *topo, int rank)
{
  return topo->share[rank].warning;
}

void topo_read_machine(const struct topo *topo, struct topo_machine *out)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(topo->machine);
  *out =
      (struct topo_machine){.packages = hwloc_get_nbobjs_by_type(topo->machine, HWLOC_OBJ_PACKAGE),
                            .nodes = hwloc_get_nbobjs_by_type(topo->machine, HWLOC_OBJ_NUMANODE),
                            .cores = machine_count_cores(topo->machine, whole),
                            .cpus = hwloc_bitmap_weight(whole),
                            .gpus = topo->gpus};
}

/* --- all of it ----------------------------------------------------------- */

/* The machine's CPUs include withheld ones, but not offline ones. */
static void print_unusable(hwloc_topology_t machine, FILE *to)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(machine);
  hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(machine);
  const int cpus = hwloc_bitmap_weight(whole), withheld = cpus - hwloc_bitmap_weight(allowed);
  const int offline = hwloc_bitmap_weight(hwloc_topology_get_complete_cpuset(machine)) - cpus;
  if (withheld > 0)
    fprintf(to, " (%d may not be used)", withheld);
  if (offline > 0)
    fprintf(to, " (and %d offline)", offline);
}

static void print_machine(const struct topo *topo, FILE *to)
{
  struct topo_machine machine;
  topo_read_machine(topo, &machine);
  if (machine.packages > 0)
    fprintf(to, "%d package%s, ", machine.packages, plural(machine.packages));
  fprintf(to, "%d NUMA node%s, %d core%s, %d CPU%s", machine.nodes, plural(machine.nodes),
          machine.cores, plural(machine.cores), machine.cpus, plural(machine.cpus));
  print_unusable(topo->machine, to);
  fprintf(to, ", %d GPU%s\n\n", topo->gpus, plural(topo->gpus));
}

static void print_warnings(const struct topo *topo, FILE *to)
{
  for (int k = 0; k < topo->ranks; k++)
    if (topo->share[k].warning)
      fprintf(to, "warning: rank %d: %s\n", k, topo->share[k].warning);
}

/* For ranks with a GPU; without one, lanes share the rank's cores (exec.h). */
static void print_workers(const struct topo *topo, FILE *to)
{
  int split = 0, own = 0;
  for (int k = 0; k < topo->ranks; k++) {
    const struct share *share = &topo->share[k];
    split += share->split && share->ordinal >= 0;
    own +=
        share->split && share->ordinal >= 0 && share->threads <= hwloc_bitmap_weight(share->math);
  }
  if (split > 0)
    fputs(
        own == split ? "Each optimizer worker is bound to its own CPU.\n"
        : own > 0
            ? "Each optimizer worker is bound to its own CPU, except on ranks with fewer CPUs for "
              "math than threads.\n"
            : "Optimizer workers share CPUs, because ranks have fewer CPUs for math than "
              "threads.\n",
        to);
}

/* The location of memory of bound ranks, on a machine with several choices. */
static void print_memory(const struct topo *topo, FILE *to)
{
  int one = 0, several = 0, none = 0;
  for (int k = 0; k < topo->ranks; k++) {
    const struct share *share = &topo->share[k];
    one += share_binds_memory(topo, share);
    several += share_binds(topo, share) && hwloc_bitmap_weight(share->nodes) > 1;
    none += share_binds(topo, share) && hwloc_bitmap_iszero(share->nodes);
  }
  if (one > 0)
    fputs("Host memory of a rank comes from its NUMA node. If that is full, it comes from another "
          "one.\n",
          to);
  if (several > 0)
    fputs("Host memory of a rank with several NUMA nodes comes from the node of the thread that "
          "touches it first.\n",
          to);
  if (none > 0)
    fputs(
        "Host memory of a rank without a NUMA node comes from the nodes that the kernel chooses.\n",
        to);
}

/* Names the cores that are too few. */
static enum status print_crowd(const struct topo *topo, FILE *to)
{
  hwloc_bitmap_t masks = hwloc_bitmap_alloc();
  bool crowded = false, near = false;
  enum status status = masks ? STATUS_OK : status_set(STATUS_MEMORY, "no memory for a set of CPUs");
  for (int k = 0; k < topo->ranks && !status; k++) {
    const struct share *share = &topo->share[k];
    crowded = crowded || share->crowded;
    near = near || (share->crowded && !hwloc_bitmap_isequal(share->near, share->mask));
    status = topo_check(hwloc_bitmap_or(masks, masks, share->mask), "hwloc_bitmap_or");
  }
  if (!status && crowded)
    fprintf(
        to,
        "There are more ranks than cores%s. The scheduler places the ranks that share a core.\n",
        machine_count_cores(topo->machine, masks) < topo->ranks ? ""
        : near                                                  ? " near a GPU"
                                                                : " in a mask of the launcher");
  hwloc_bitmap_free(masks);
  return status;
}

static enum status print_legend(const struct topo *topo, FILE *to)
{
  fputs("\nc controller, i I/O, m math (optimizer workers), . unused, * shared by ranks\n", to);
  print_workers(topo, to);
  print_memory(topo, to);
  if (!topo->options.bind)
    fputs("topo.bind=false: nothing is bound.\n", to);
  return print_crowd(topo, to);
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
  status = print_legend(topo, to);
  print_warnings(topo, to);
  return status;
}
