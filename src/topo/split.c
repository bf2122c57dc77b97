/* Splits cores among ranks. Ranks that may get the same CPUs are a class. A class splits its CPUs
 * along NUMA domains if their number fits the number of ranks. Two classes never have a CPU in
 * common: masks that overlap without being equal are refused. */
#include "base/mem.h"
#include "topo/place.h"

/* --- classes --------------------------------------------------------------------------------- */

static bool overlap(hwloc_const_bitmap_t a, hwloc_const_bitmap_t b)
{
  return hwloc_bitmap_intersects(a, b) && !hwloc_bitmap_isequal(a, b);
}

/* GPUs may be near parts of a mask that overlap: one near a socket, another near a domain of it.
 * Then the ranks of this mask split all of it. */
static enum status widen(const struct topo *topo, hwloc_const_bitmap_t mask)
{
  enum status status = STATUS_OK;
  for (int k = 0; k < topo->ranks && !status; k++)
    if (hwloc_bitmap_isequal(topo->share[k].mask, mask))
      status = HWLOC(hwloc_bitmap_copy(topo->share[k].near, mask));
  return status;
}

static enum status refuse(const struct topo *topo, int k, int other)
{
  return status_set(STATUS_USAGE,
                    "the masks of ranks %d and %d of a node overlap, but differ (CPUs %s and %s): "
                    "give each rank its own CPUs, or all ranks the same (mpirun --bind-to none, "
                    "srun --cpu-bind=none), or set topo.cores",
                    k, other, list_text(topo->share[k].mask).text,
                    list_text(topo->share[other].mask).text);
}

/* Without binding, cores are only counted. */
static enum status part_classes(const struct topo *topo)
{
  const struct share *share = topo->share;
  enum status status = STATUS_OK;
  for (int pass = 0; pass < 2 && topo->options.bind; pass++)
    for (int other = 1; other < topo->ranks; other++)
      for (int k = 0; k < other && !status; k++)
        if (overlap(share[k].near, share[other].near))
          status = pass == 0 && hwloc_bitmap_isequal(share[k].mask, share[other].mask)
                       ? widen(topo, share[k].mask)
                   : pass == 1 ? refuse(topo, k, other)
                               : STATUS_OK;
  return status;
}

/* --- ranks of a class ------------------------------------------------------------------------ */

struct class {
  hwloc_const_bitmap_t cpus;
  hwloc_bitmap_t part; /* those of a group of domains */
  int ranks, cores, domains;
};

static enum status find_part(const struct topo *topo, const struct class *class, int begin, int end)
{
  enum status status = STATUS_OK;
  hwloc_bitmap_zero(class->part);
  for (int d = 0, n = 0; d < topo->domains && !status; d++)
    if (hwloc_bitmap_intersects(topo->domain[d].cpus, class->cpus) && n++ >= begin && n <= end)
      status = HWLOC(hwloc_bitmap_or(class->part, class->part, topo->domain[d].cpus));
  return status ? status : HWLOC(hwloc_bitmap_and(class->part, class->part, class->cpus));
}

/* A cut into groups fits if no rank gets less than half of an equal share. */
static enum status try_groups(const struct topo *topo, const struct class *class, int groups,
                              bool *fits)
{
  const int domains = class->domains / groups, ranks = class->ranks / groups;
  enum status status = STATUS_OK;
  *fits = class->cores >= class->ranks;
  for (int g = 0; g < groups && *fits && !status; g++) {
    status = find_part(topo, class, g * domains, (g + 1) * domains);
    const int each = machine_count_cores(topo->machine, class->part) / ranks;
    *fits = each >= 1 && 2 * each >= class->cores / class->ranks;
  }
  return status;
}

/* The largest number of groups that divides both ranks and domains, so that a rank has cores of few
 * domains, even if one domain has a core more than another. Equal domains give equal shares. */
static enum status count_groups(const struct topo *topo, const struct class *class, int *groups)
{
  enum status status = STATUS_OK;
  bool fits = false;
  *groups = class->domains + 1;
  while (!fits && !status && --*groups > 1)
    if (class->domains % *groups == 0 && class->ranks % *groups == 0)
      status = try_groups(topo, class, *groups, &fits);
  return status;
}

/* Part `index` of `sharers` of these cores; one core if they are too few. */
static enum status take(const struct topo *topo, struct share *share, hwloc_const_bitmap_t from,
                        int index, int sharers)
{
  const int cores = machine_count_cores(topo->machine, from);
  const int begin = (int)((int64_t)cores * index / sharers);
  const int end = share->rivals ? begin + 1 : (int)((int64_t)cores * (index + 1) / sharers);
  share->cores = end - begin;
  return machine_take_cores(topo->machine, from, begin, end, share->cpus);
}

static enum status share_out(const struct topo *topo, const struct class *class, int first)
{
  int groups, index = 0;
  enum status status = count_groups(topo, class, &groups);
  const int ranks = class->ranks / groups, domains = class->domains / groups;
  for (int k = first; k < topo->ranks && !status; k++) {
    struct share *share = &topo->share[k];
    if (!hwloc_bitmap_isequal(share->near, class->cpus))
      continue;
    if (index % ranks == 0)
      status = find_part(topo, class, index / ranks * domains, (index / ranks + 1) * domains);
    share->rivals = class->cores < class->ranks ? class->ranks : 0;
    if (!status)
      status = take(topo, share, class->part, index++ % ranks, ranks);
  }
  return status;
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
  enum status status = part_classes(topo);
  if (!status)
    status = set_create(&class.part);
  for (int k = 0; k < topo->ranks && !status; k++)
    if (find_class(topo, k, &class))
      status = share_out(topo, &class, k);
  hwloc_bitmap_free(class.part);
  return status;
}
