/* The output of `sluice topo`. */
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "topo/place.h"

enum { PICTURE_WIDTH = 64 };

/* --- the table ----------------------------------------------------------- */

enum { COLUMNS = TOPO_COLUMNS };

static const char *const titles[COLUMNS] = {"rank",       "GPU", "memory", "cores",
                                            "controller", "I/O", "math",   "threads"};

/* All of these return the length of the text, as snprintf does. */
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
                  machine_bus_text(share_gpu(topo, share)->bus).text);
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

static void print_table(const struct topo *topo, FILE *to)
{
  int width[COLUMNS];
  char cell[TOPO_CELL];
  for (int c = 0; c < COLUMNS; c++) {
    width[c] = (int)strlen(titles[c]);
    for (int k = 0; k < topo->ranks; k++) {
      const int length = topo_print_cell(topo, k, (enum topo_column)c, cell, sizeof cell);
      width[c] = length > width[c] ? length : width[c];
    }
  }
  for (int k = -1; k < topo->ranks; k++)
    for (int c = 0; c < COLUMNS; c++) {
      if (k >= 0)
        topo_print_cell(topo, k, (enum topo_column)c, cell, sizeof cell);
      fprintf(to, "%-*s%s", c == COLUMNS - 1 ? 0 : width[c], k < 0 ? titles[c] : cell,
              c == COLUMNS - 1 ? "\n" : "  ");
    }
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

/* Indices of the packages of these CPUs. */
static void find_packages(const struct topo *topo, hwloc_const_bitmap_t cpus, hwloc_bitmap_t out)
{
  hwloc_bitmap_zero(out);
  for (hwloc_obj_t package = NULL; (package = topo_next_package(topo, cpus, package));)
    SET(hwloc_bitmap_set(out, package->logical_index));
}

static void print_domain(const struct topo *topo, const struct domain *domain, FILE *to)
{
  const int cores = machine_count_cores(topo->machine, domain->cpus);
  if (domain->node)
    fprintf(to, "  NUMA node %u: ", domain->node->os_index);
  else
    fputs("  no local memory: ", to);
  fprintf(to, "%d core%s, CPU%s %s", cores, plural(cores),
          plural(hwloc_bitmap_weight(domain->cpus)), list_text(domain->cpus).text);
  if (domain->node && domain->node->attr->numanode.local_memory > 0)
    fprintf(to, ", %.1f GiB", (double)domain->node->attr->numanode.local_memory / (1 << 30));
  fputc('\n', to);
  for (hwloc_obj_t core = NULL; machine_next_core(topo->machine, domain->cpus, core);)
    core = print_row(topo, domain->cpus, core, to);
  print_gpus(topo, domain->cpus, to);
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
  for (hwloc_obj_t node = NULL;
       (node = hwloc_get_next_obj_by_type(topo->machine, HWLOC_OBJ_NUMANODE, node));)
    if (!has_cores(topo, node) && machine_has_memory(topo->machine, node))
      fprintf(to, "  NUMA node %u: memory alone%s%s, %.1f GiB, for no rank\n", node->os_index,
              node->subtype ? ", " : "", node->subtype ? node->subtype : "",
              (double)node->attr->numanode.local_memory / (1 << 30));
}

/* Domains of the same packages are shown under one line. */
static enum status print_picture(const struct topo *topo, FILE *to)
{
  struct list_text last = {""}, list;
  hwloc_bitmap_t packages;
  const enum status status = set_create(&packages);
  for (int d = 0; d < topo->domains && !status; d++) {
    find_packages(topo, topo->domain[d].cpus, packages);
    list = list_text(packages);
    if (*list.text && strcmp(list.text, last.text) != 0)
      fprintf(to, "package%s %s\n", plural(hwloc_bitmap_weight(packages)), list.text);
    last = list;
    print_domain(topo, &topo->domain[d], to);
  }
  hwloc_bitmap_free(packages);
  print_memory_alone(topo, to);
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
  hwloc_const_bitmap_t whole = machine_cpus(topo->machine);
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
  hwloc_const_bitmap_t whole = machine_cpus(machine);
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

/* For ranks with a GPU; without one, lanes share the rank's cores (exec.h). The location of memory
 * is that of bound ranks, on a machine with several choices. */
static void print_uses(const struct topo *topo, FILE *to)
{
  int split = 0, own = 0, one = 0, several = 0, none = 0;
  for (int k = 0; k < topo->ranks; k++) {
    const struct share *share = &topo->share[k];
    const bool parts = share->split && share->ordinal >= 0, bound = share_binds(topo, share);
    split += parts;
    own += parts && share->threads <= hwloc_bitmap_weight(share->math);
    one += share_binds_memory(topo, share);
    several += bound && hwloc_bitmap_weight(share->nodes) > 1;
    none += bound && hwloc_bitmap_iszero(share->nodes);
  }
  const struct {
    bool holds;
    const char *sentence;
  } uses[] = {
      {split > 0 && own == split, "Each optimizer worker is bound to its own CPU."},
      {own > 0 && own < split, "Each optimizer worker is bound to its own CPU, except on ranks "
                               "with fewer CPUs for math than threads."},
      {split > 0 && own == 0, "Optimizer workers share CPUs, because ranks have fewer CPUs for "
                              "math than threads."},
      {one > 0, "Host memory of a rank comes from its NUMA node. If that is full, it comes from "
                "another one."},
      {several > 0, "Host memory of a rank with several NUMA nodes comes from the node of the "
                    "thread that touches it first."},
      {none > 0, "Host memory of a rank without a NUMA node comes from the nodes that the kernel "
                 "chooses."},
      {!topo->options.bind, "topo.bind=false: nothing is bound."},
  };
  for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
    if (uses[i].holds)
      fprintf(to, "%s\n", uses[i].sentence);
}

/* Names the cores that are too few. */
static enum status print_crowd(const struct topo *topo, FILE *to)
{
  hwloc_bitmap_t masks;
  bool crowded = false, near = false;
  const enum status status = topo_join_masks(topo, &masks);
  for (int k = 0; k < topo->ranks; k++) {
    const struct share *share = &topo->share[k];
    crowded = crowded || share->rivals;
    near = near || (share->rivals && !hwloc_bitmap_isequal(share->near, share->mask));
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

enum status topo_print(const struct topo *topo, FILE *to)
{
  print_machine(topo, to);
  print_table(topo, to);
  fputc('\n', to);
  enum status status = print_picture(topo, to);
  if (status)
    return status;
  fputs("\nc controller, i I/O, m math (optimizer workers), . unused, * shared by ranks\n", to);
  print_uses(topo, to);
  status = print_crowd(topo, to);
  for (int k = 0; k < topo->ranks; k++)
    if (topo->share[k].warning)
      fprintf(to, "warning: rank %d: %s\n", k, topo->share[k].warning);
  return status ? status : sets_status();
}
