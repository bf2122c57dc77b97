/* Splits cores among ranks. Ranks that may get the same CPUs are a class. A class splits its CPUs
 * along NUMA domains if their number fits the number of ranks. Two classes never have a CPU in
 * common: masks that overlap without being equal are refused. */
#include "topo/place.h"

/* --- classes --------------------------------------------------------------------------------- */

static bool overlap(hwloc_const_bitmap_t a, hwloc_const_bitmap_t b)
{
  return hwloc_bitmap_intersects(a, b) && !hwloc_bitmap_isequal(a, b);
}

/* GPUs may be near parts of a mask that overlap: one near a socket, another near a domain of it.
 * Then the ranks of this mask split all of it. */
static void widen(const struct topo *topo, hwloc_const_bitmap_t mask)
{
  for (int k = 0; k < topo->ranks; k++)
    if (hwloc_bitmap_isequal(topo->share[k].mask, mask))
      SET(hwloc_bitmap_copy(topo->share[k].near, mask));
}

static enum status refuse(const struct topo *topo, int k, int other)
{
  return status_usage(
      "the masks of ranks %d and %d of a node overlap, but differ (CPUs %s and %s): "
      "give each rank its own CPUs, or all ranks the same (mpirun --bind-to none, "
      "srun --cpu-bind=none), or set topo.cores",
      k, other, list_text(topo->share[k].mask).text, list_text(topo->share[other].mask).text);
}

/* Without binding, cores are only counted. */
static enum status part_classes(const struct topo *topo)
{
  const struct share *share = topo->share;
  for (int pass = 0; pass < 2 && topo->options.bind; pass++)
    for (int other = 1; other < topo->ranks; other++)
      for (int k = 0; k < other; k++) {
        if (!overlap(share[k].near, share[other].near))
          continue;
        if (pass == 1)
          return refuse(topo, k, other);
        if (hwloc_bitmap_isequal(share[k].mask, share[other].mask))
          widen(topo, share[k].mask);
      }
  return STATUS_OK;
}

/* --- ranks of a class ------------------------------------------------------------------------ */

struct class {
  hwloc_const_bitmap_t cpus;
  hwloc_bitmap_t part; /* those of a group of domains */
  int ranks, cores, domains;
};

static void find_part(const struct topo *topo, const struct class *class, int begin, int end)
{
  hwloc_bitmap_zero(class->part);
  for (int d = 0, n = 0; d < topo->domains; d++)
    if (hwloc_bitmap_intersects(topo->domain[d].cpus, class->cpus) && n++ >= begin && n <= end)
      SET(hwloc_bitmap_or(class->part, class->part, topo->domain[d].cpus));
  SET(hwloc_bitmap_and(class->part, class->part, class->cpus));
}

/* A cut into groups fits if no rank gets less than half of an equal share. */
static bool fits(const struct topo *topo, const struct class *class, int groups)
{
  const int domains = class->domains / groups, ranks = class->ranks / groups;
  if (class->domains % groups != 0 || class->ranks % groups != 0 || class->cores < class->ranks)
    return false;
  for (int g = 0; g < groups; g++) {
    find_part(topo, class, g * domains, (g + 1) * domains);
    const int each = machine_count_cores(topo->machine, class->part) / ranks;
    if (each < 1 || 2 * each < class->cores / class->ranks)
      return false;
  }
  return true;
}

/* Part `index` of `sharers` of these cores; one core if they are too few. */
static void take(const struct topo *topo, struct share *share, hwloc_const_bitmap_t from, int index,
                 int sharers)
{
  const int cores = machine_count_cores(topo->machine, from);
  const int begin = (int)((int64_t)cores * index / sharers);
  const int end = share->rivals ? begin + 1 : (int)((int64_t)cores * (index + 1) / sharers);
  share->cores = end - begin;
  machine_take_cores(topo->machine, from, begin, end, share->cpus);
}

/* In the largest number of groups that divides both ranks and domains, so that a rank has cores of
 * few domains, even if one domain has a core more than another. Equal domains give equal shares. */
static void share_out(const struct topo *topo, const struct class *class, int first)
{
  int groups = class->domains, index = 0;
  while (groups > 1 && !fits(topo, class, groups))
    groups--;
  groups = groups > 1 ? groups : 1;
  const int ranks = class->ranks / groups, domains = class->domains / groups;
  for (int k = first; k < topo->ranks; k++) {
    struct share *share = &topo->share[k];
    if (!hwloc_bitmap_isequal(share->near, class->cpus))
      continue;
    if (index % ranks == 0)
      find_part(topo, class, index / ranks * domains, (index / ranks + 1) * domains);
    share->rivals = class->cores < class->ranks ? class->ranks : 0;
    take(topo, share, class->part, index++ % ranks, ranks);
  }
}

/* The class of a rank, if that is its first one. */
static bool find_class(const struct topo *topo, int first, struct class *class)
{
  class->cpus = topo->share[first].near;
  class->cores = machine_count_cores(topo->machine, class->cpus);
  class->ranks = class->domains = 0;
  for (int k = 0; k < topo->ranks; k++)
    if (hwloc_bitmap_isequal(topo->share[k].near, class->cpus)) {
      if (k < first)
        return false;
      class->ranks++;
    }
  for (int d = 0; d < topo->domains; d++)
    class->domains += hwloc_bitmap_intersects(topo->domain[d].cpus, class->cpus);
  return true;
}

enum status split_cores(const struct topo *topo)
{
  struct class class = {0};
  enum status status = part_classes(topo) ?: set_create(&class.part);
  for (int k = 0; k < topo->ranks && !status; k++)
    if (find_class(topo, k, &class))
      share_out(topo, &class, k);
  hwloc_bitmap_free(class.part);
  return status;
}
