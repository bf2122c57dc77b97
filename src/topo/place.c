/* Gives each rank of a node a GPU and cores of its own, near each other. */
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "topo/place.h"

static _Thread_local bool out_of_memory;

void sets_note(int result)
{
  out_of_memory = out_of_memory || result < 0;
}

enum status sets_status(void)
{
  const bool failed = out_of_memory;
  out_of_memory = false;
  return failed ? status_set(STATUS_MEMORY, "no memory for a set of CPUs") : STATUS_OK;
}

enum status set_create(hwloc_bitmap_t *out)
{
  *out = hwloc_bitmap_alloc();
  SET(*out ? 0 : -1);
  return *out ? STATUS_OK : sets_status();
}

enum status topo_join_masks(const struct topo *topo, hwloc_bitmap_t *out)
{
  const enum status status = set_create(out);
  for (int k = 0; k < topo->ranks && !status; k++)
    SET(hwloc_bitmap_or(*out, *out, topo->share[k].mask));
  return status;
}

/* --- a share ------------------------------------------------------------- */

enum status share_create(struct share *share)
{
  enum status status = STATUS_OK;
  share->ordinal = -1;
  for (int i = 0; i < SHARE_SETS && !status; i++)
    status = set_create(&share->set[i]);
  return status;
}

void share_destroy(struct share *share)
{
  for (int i = 0; i < SHARE_SETS; i++)
    hwloc_bitmap_free(share->set[i]);
  mem_free(share->cpu);
  mem_free(share->io_cpu);
  mem_free(share->warning);
}

const struct gpu *share_gpu(const struct topo *topo, const struct share *share)
{
  return share->ordinal < 0 ? NULL : &topo->gpu[share->sees[share->ordinal]];
}

/* --- GPUs ---------------------------------------------------------------- */

/* Assignments differ by chains of exchanges. In a chain each GPU gives one rank away and takes one,
 * so at most TOPO_GPUS ranks move. So a step of distance outweighs the order of these ranks, and an
 * uneven number of ranks outweighs their distance. A GPU that a rank does not see outweighs all of
 * that. */
enum { STEP_COST = 1 << 20, UNEVEN = 1 << 28, NEVER = 1 << 30 };
_Static_assert(TOPO_GPUS *TOPO_GPUS *TOPO_GPUS < STEP_COST, "order never outweighs distance");
_Static_assert(TOPO_GPUS * 4 * STEP_COST < UNEVEN, "distance never leaves a GPU idle");
_Static_assert(TOPO_GPUS * 4 * STEP_COST + UNEVEN < NEVER,
               "no rank has a GPU that it does not see");

/* Every row is assigned to a column. A column takes `room` rows. A row beyond `even` costs
 * UNEVEN. */
struct matching {
  int columns, even, room;
  const int64_t *cost; /* [rows][columns] */
  int *column_of;      /* of the rows that have been placed */
  int placed[TOPO_GPUS];
  int64_t way[TOPO_GPUS][TOPO_GPUS]; /* cost of moving a row from one column to another */
  int mover[TOPO_GPUS][TOPO_GPUS];   /* the row that moves; -1: none */
};

/* The cheapest moves of the rows before `row`. */
static void find_moves(struct matching *m, int row)
{
  memset(m->mover, -1, sizeof m->mover);
  for (int r = 0; r < row; r++) {
    const int64_t *cost = &m->cost[(int64_t)r * m->columns];
    const int at = m->column_of[r];
    for (int c = 0; c < m->columns; c++)
      if (m->mover[at][c] < 0 || cost[c] - cost[at] < m->way[at][c]) {
        m->way[at][c] = cost[c] - cost[at];
        m->mover[at][c] = r;
      }
  }
}

/* The cheapest column with room to end in. Moving other rows may help (Bellman-Ford, because a move
 * may have a negative cost). from: the previous column on the path to each column, -1: none. */
static int search(const struct matching *m, int row, int from[TOPO_GPUS])
{
  int64_t least[TOPO_GPUS];
  int end = -1;
  for (int c = 0; c < m->columns; c++) {
    least[c] = m->cost[(int64_t)row * m->columns + c];
    from[c] = -1;
  }
  for (bool better = true; better;) {
    better = false;
    for (int a = 0; a < m->columns; a++)
      for (int b = 0; b < m->columns; b++)
        if (m->mover[a][b] >= 0 && least[a] + m->way[a][b] < least[b]) {
          least[b] = least[a] + m->way[a][b];
          from[b] = a;
          better = true;
        }
  }
  for (int c = 0; c < m->columns; c++) {
    least[c] += m->placed[c] >= m->even ? UNEVEN : 0;
    if (m->placed[c] < m->room && (end < 0 || least[c] < least[end]))
      end = c;
  }
  return end;
}

static void place_row(struct matching *m, int row)
{
  int from[TOPO_GPUS], column;
  find_moves(m, row);
  column = search(m, row, from);
  m->placed[column]++;
  for (; from[column] >= 0; column = from[column])
    m->column_of[m->mover[from[column]][column]] = column;
  m->column_of[row] = column;
}

/* Minimises the sum of costs: places one row after the other, each by the shortest path (Busacker
 * and Gowen 1960). There is room for all. */
static void match(int rows, int columns, const int64_t *cost, int *column_of)
{
  struct matching m = {.columns = columns,
                       .even = rows / columns,
                       .room = (rows + columns - 1) / columns,
                       .cost = cost,
                       .column_of = column_of};
  for (int r = 0; r < rows; r++)
    place_row(&m, r);
}

hwloc_obj_t topo_next_package(const struct topo *topo, hwloc_const_bitmap_t cpus,
                              hwloc_obj_t package)
{
  return hwloc_get_next_obj_covering_cpuset_by_type(topo->machine, cpus, HWLOC_OBJ_PACKAGE,
                                                    package);
}

/* 0: on the mask's CPUs; 1: on some of them; 2: in the same package; 3: elsewhere. */
static int distance(const struct topo *topo, hwloc_const_bitmap_t mask, hwloc_const_bitmap_t near)
{
  if (hwloc_bitmap_intersects(mask, near))
    return hwloc_bitmap_isincluded(mask, near) || hwloc_bitmap_isincluded(near, mask) ? 0 : 1;
  for (hwloc_obj_t package = NULL; (package = topo_next_package(topo, near, package));)
    if (hwloc_bitmap_intersects(package->cpuset, mask))
      return 2;
  return 3;
}

static int ordinal_of(const struct share *share, int gpu)
{
  for (int o = 0; o < share->visible; o++)
    if (share->sees[o] == gpu)
      return o;
  return -1;
}

static int package_of(const struct topo *topo, const struct gpu *gpu)
{
  hwloc_obj_t package = topo_next_package(topo, gpu->near, NULL);
  return package ? (int)package->logical_index : 0;
}

/* GPUs by package, each in the order of buses. */
static void order_gpus(const struct topo *topo, int order[TOPO_GPUS])
{
  for (int g = 0; g < topo->gpus; g++) {
    const int package = package_of(topo, &topo->gpu[g]);
    int at = g;
    for (; at > 0 && package_of(topo, &topo->gpu[order[at - 1]]) > package; at--)
      order[at] = order[at - 1];
    order[at] = g;
  }
}

/* The GPU of a rank if all are equally near. Fewer ranks than GPUs are spread, so that they have
 * the cores and the memory channels of all packages. */
static int expected_gpu(const struct topo *topo, int rank)
{
  int order[TOPO_GPUS];
  bool taken[TOPO_GPUS] = {false};
  if (topo->ranks >= topo->gpus)
    return (int)((int64_t)rank * topo->gpus / topo->ranks);
  order_gpus(topo, order);
  for (int k = 0; k < topo->ranks; k++)
    taken[order[k * topo->gpus / topo->ranks]] = true;
  int gpu = 0;
  for (int before = taken[0]; before <= rank; before += taken[gpu])
    gpu++;
  return gpu;
}

/* Distance first, then the order of the ranks. The square keeps this order if several assignments
 * are equally near. */
static int64_t cost_of(const struct topo *topo, int rank, int expected, int gpu)
{
  const struct share *share = &topo->share[rank];
  if (ordinal_of(share, gpu) < 0)
    return NEVER;
  return (int64_t)STEP_COST * distance(topo, share->mask, topo->gpu[gpu].near) +
         (gpu - expected) * (gpu - expected);
}

/* Every rank gets the nearest GPU that it sees. If the ranks see all GPUs, the numbers of ranks per
 * GPU differ by one at most. */
static enum status choose_gpus(struct topo *topo)
{
  if (topo->gpus == 0)
    return STATUS_OK;
  int64_t *cost = NULL;
  int *gpu = NULL;
  enum status status = mem_new(MEM_META, topo->ranks * topo->gpus, &cost);
  status = status ?: mem_new(MEM_META, topo->ranks, &gpu);
  for (int k = 0; k < topo->ranks && !status; k++) {
    const int expected = expected_gpu(topo, k);
    for (int g = 0; g < topo->gpus; g++)
      cost[(int64_t)k * topo->gpus + g] = cost_of(topo, k, expected, g);
  }
  if (!status)
    match(topo->ranks, topo->gpus, cost, gpu);
  for (int k = 0; k < topo->ranks && !status; k++) {
    struct share *share = &topo->share[k];
    const int ordinal = ordinal_of(share, gpu[k]);
    if (share->visible > 0) /* ranks that all see the same few share them */
      share->ordinal = ordinal < 0 ? 0 : ordinal;
  }
  mem_free(gpu);
  mem_free(cost);
  return status;
}

/* --- the near part of the mask ------------------------------------------- */

struct list_text list_text(hwloc_const_bitmap_t set)
{
  struct list_text list;
  hwloc_bitmap_list_snprintf(list.text, sizeof list.text, set);
  return list;
}

/* Cores with a CPU in `set` and one in `within`, and none in `outside` unless that is NULL. */
static int count_cores(hwloc_topology_t machine, hwloc_const_bitmap_t set,
                       hwloc_const_bitmap_t within, hwloc_const_bitmap_t outside)
{
  int n = 0;
  for (hwloc_obj_t core = NULL; (core = machine_next_core(machine, set, core));)
    n += hwloc_bitmap_intersects(core->cpuset, within) &&
         !(outside && hwloc_bitmap_intersects(core->cpuset, outside));
  return n;
}

static int count_withheld(const struct topo *topo, const struct gpu *gpu, hwloc_const_bitmap_t mask)
{
  return count_cores(topo->machine, gpu->near, hwloc_topology_get_allowed_cpuset(topo->machine),
                     mask);
}

/* A mask is wrong if most of its cores are far from the GPU and it lacks cores near the GPU. Cores
 * are compared, because a launcher may leave one CPU of each core. If no memory is left, the rank
 * has no warning. */
static void judge_mask(const struct topo *topo, struct share *share, const struct gpu *gpu,
                       int near)
{
  const int given = machine_count_cores(topo->machine, share->mask);
  if (count_cores(topo->machine, gpu->near, gpu->near, share->mask) == 0 || 2 * near >= given)
    return;
  const bool launcher = count_withheld(topo, gpu, share->mask) > 0;
  share->warning = mem_printf(
      "%d of the %d core%s that %s left this rank (CPU%s %s) %s near its %s (CPU%s %s). %s. %s",
      near, given, plural(given), launcher ? "the launcher" : "a control group",
      plural(hwloc_bitmap_weight(share->mask)), list_text(share->mask).text,
      near == 1 ? "is" : "are", machine_gpu_text(gpu->bus).text,
      plural(hwloc_bitmap_weight(gpu->near)), list_text(gpu->near).text,
      near == 0 ? "Its data crosses between NUMA domains" : "The others stay idle",
      launcher ? "Use mpirun --bind-to none or srun --cpu-bind=none, or set topo.cores"
               : "Ask the batch system or the container for cores near the GPU");
}

/* mpirun binds a rank to one core by default. masks: of all ranks. */
static void judge_single_core(const struct topo *topo, struct share *share, const struct gpu *gpu,
                              hwloc_const_bitmap_t masks)
{
  const int idle = count_withheld(topo, gpu, masks);
  if (idle > 0)
    share->warning =
        mem_printf("the launcher left this rank one core (CPU%s %s), and no rank has the "
                   "other %d near its %s. Use mpirun --bind-to none or srun --cpu-bind=none",
                   plural(hwloc_bitmap_weight(share->mask)), list_text(share->mask).text, idle,
                   machine_gpu_text(gpu->bus).text);
}

static void find_near(const struct topo *topo, struct share *share, hwloc_const_bitmap_t masks)
{
  const struct gpu *gpu = share_gpu(topo, share);
  SET(hwloc_bitmap_copy(share->near, share->mask));
  if (!gpu || topo->options.lists > 0 || !topo->options.bind)
    return;
  const int near = count_cores(topo->machine, share->mask, gpu->near, NULL);
  judge_mask(topo, share, gpu, near);
  if (!share->warning && machine_count_cores(topo->machine, share->mask) == 1)
    judge_single_core(topo, share, gpu, masks);
  if (near > 0)
    SET(hwloc_bitmap_and(share->near, share->mask, gpu->near));
}

static enum status find_all_near(const struct topo *topo)
{
  hwloc_bitmap_t masks;
  const enum status status = topo_join_masks(topo, &masks);
  for (int k = 0; k < topo->ranks && !status; k++)
    find_near(topo, &topo->share[k], masks);
  hwloc_bitmap_free(masks);
  return status;
}

/* --- parts of a share ---------------------------------------------------- */

/* Two threads of a controller can be busy at the same time: the thread that enqueues, and MPI's
 * progress. */
static int controller_cores(const struct topo *topo, const struct share *share)
{
  enum { MANY = 8 };
  return topo->options.controller > 0 ? topo->options.controller : share->cores >= MANY ? 2 : 1;
}

static enum status split_share(const struct topo *topo, int rank, struct share *share)
{
  const bool gpu = share->ordinal >= 0, asked = topo->options.controller > 0;
  const int controller = controller_cores(topo, share);
  SET(hwloc_bitmap_copy(share->controller, share->cpus));
  SET(hwloc_bitmap_copy(share->io, share->cpus));
  SET(hwloc_bitmap_copy(share->math, share->cpus));
  if (!topo->options.bind || share->rivals || !(gpu || asked) || (share->cores == 1 && !asked))
    return STATUS_OK;
  if (controller >= share->cores)
    return status_usage(
        "topo.controller is %d, but rank %d of its node has %d core%s, which leaves "
        "none for math: lower it",
        controller, rank, share->cores, plural(share->cores));
  const int io = gpu && share->cores >= controller + 2; /* else I/O shares the controller's cores */
  hwloc_topology_t machine = topo->machine;
  share->split = true;
  machine_take_cores(machine, share->cpus, 0, controller, share->controller);
  machine_take_cores(machine, share->cpus, controller + io - 1, controller + io, share->io);
  machine_take_cores(machine, share->cpus, controller + io, share->cores, share->math);
  return STATUS_OK;
}

/* The CPU of hardware thread `sibling` of a core, of those in the set; -1: it has fewer. */
static int cpu_of(hwloc_const_bitmap_t set, hwloc_obj_t core, int sibling)
{
  int cpu = hwloc_bitmap_first(core->cpuset);
  while (cpu >= 0 && (!hwloc_bitmap_isset(set, (unsigned)cpu) || sibling-- > 0))
    cpu = hwloc_bitmap_next(core->cpuset, cpu);
  return cpu;
}

/* First one CPU of every core, then the second ones, ..., then round again. */
static void list_cpus(const struct topo *topo, struct share *share)
{
  hwloc_topology_t machine = topo->machine;
  int n = 0, cpus = hwloc_bitmap_weight(share->math);
  for (int sibling = 0; n < share->threads && n < cpus; sibling++)
    for (hwloc_obj_t core = NULL;
         n < share->threads && (core = machine_next_core(machine, share->math, core));) {
      int cpu = cpu_of(share->math, core, sibling);
      if (cpu >= 0)
        share->cpu[n++] = cpu;
    }
  for (; n < share->threads; n++)
    share->cpu[n] = share->cpu[n - cpus];
}

static int threads_of(const struct topo *topo, const struct share *share)
{
  const int cores = machine_count_cores(topo->machine, share->math);
  const double granted = topo->quota / share->sharers;
  if (topo->options.threads > 0)
    return topo->options.threads;
  if (topo->quota > 0 && granted < cores)
    return granted < 1 ? 1 : (int)granted;
  return cores;
}

static enum status list_parts(const struct topo *topo, struct share *share)
{
  const int n = share->split ? hwloc_bitmap_weight(share->io) : 0;
  share->threads = threads_of(topo, share);
  enum status status = mem_new(MEM_META, share->threads, &share->cpu);
  status = status ?: mem_new(MEM_META, n, &share->io_cpu);
  if (status)
    return status;
  list_cpus(topo, share);
  for (int cpu = hwloc_bitmap_first(share->io); share->io_cpus < n;
       cpu = hwloc_bitmap_next(share->io, cpu))
    share->io_cpu[share->io_cpus++] = cpu;
  return STATUS_OK;
}

static void find_nodes(const struct topo *topo, struct share *share)
{
  hwloc_bitmap_zero(share->nodes);
  for (int d = 0; d < topo->domains; d++) {
    const struct domain *domain = &topo->domain[d];
    if (domain->node && hwloc_bitmap_intersects(domain->cpus, share->cpus))
      SET(hwloc_bitmap_set(share->nodes, domain->node->os_index));
  }
}

/* --- all of it ----------------------------------------------------------- */

static enum status read_list(struct topo *topo, int rank, const char *what, hwloc_bitmap_t list)
{
  struct share *share = &topo->share[rank];
  enum status status = machine_read_cpus(what, topo->options.list[rank], list);
  if (status)
    return status;
  if (hwloc_bitmap_iszero(list) || !hwloc_bitmap_isincluded(list, share->mask))
    return status_usage("topo.cores gives rank %d of its node the CPUs %s, of which it may use %s: "
                        "correct it, or let the launcher leave the cores alone",
                        rank, topo->options.list[rank], list_text(share->mask).text);
  for (int k = 0; k < rank; k++)
    if (hwloc_bitmap_intersects(topo->share[k].mask, list))
      return status_usage("topo.cores gives ranks %d and %d of a node the same CPUs (%s and %s)", k,
                          rank, topo->options.list[k], topo->options.list[rank]);
  SET(hwloc_bitmap_copy(share->mask, list));
  return STATUS_OK;
}

static enum status take_lists(struct topo *topo)
{
  const struct topo_options *options = &topo->options;
  if (options->lists == 0)
    return STATUS_OK;
  if (options->lists < topo->ranks)
    return status_usage(
        "topo.cores has %d list%s of CPUs for the %d ranks of a node: give every one its own",
        options->lists, plural(options->lists), topo->ranks);
  hwloc_bitmap_t list;
  enum status status = set_create(&list);
  for (int k = 0; k < topo->ranks && !status; k++)
    status = read_list(topo, k, " in topo.cores", list);
  hwloc_bitmap_free(list);
  return status;
}

static enum status check_masks(struct topo *topo)
{
  for (int k = 0; k < topo->ranks; k++) {
    struct share *share = &topo->share[k];
    if (machine_count_cores(topo->machine, share->mask) == 0)
      return status_set(STATUS_LIBRARY, "hwloc finds no core among the CPUs that this process may "
                                        "use; check the binding options of mpirun or srun");
    share->sharers = 0;
    for (int other = 0; other < topo->ranks; other++)
      share->sharers += hwloc_bitmap_isequal(share->mask, topo->share[other].mask);
  }
  return STATUS_OK;
}

enum status place_ranks(struct topo *topo)
{
  enum status status = check_masks(topo) ?: take_lists(topo) ?: choose_gpus(topo);
  status = status ?: find_all_near(topo) ?: split_cores(topo);
  for (int k = 0; k < topo->ranks && !status; k++) {
    status = split_share(topo, k, &topo->share[k]) ?: list_parts(topo, &topo->share[k]);
    find_nodes(topo, &topo->share[k]);
  }
  return status ? status : sets_status();
}
