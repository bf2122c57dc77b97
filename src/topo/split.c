/* Splits the cores of a machine among its ranks. Each rank has a set of cores that it may get. Sets
 * may be equal, disjoint, nested, or overlap in any way. Ranks with equal sets are a class.
 *
 * Cores are dealt out one by one, in rounds. If all cores of a class are taken, it takes one from
 * another class, which takes a free core instead (augmenting paths, Berge 1957). So as many ranks
 * as possible have their own cores, the smallest share is as large as possible, and no core that a
 * rank may get is left over. */
#include "base/mem.h"
#include "topo/place.h"

enum { FREE = -1 };

struct class {
  hwloc_const_bitmap_t near; /* CPUs, of its first rank */
  hwloc_bitmap_t choice;     /* the same as cores, numbered in the order of hwloc */
  int first, ranks;
  int cores, wanted; /* number of cores that it has, and that it will have */
  int next;  /* first core that may be free: a taken core may change its owner, but stays taken */
  bool full; /* no exchange leads to a free core */
};

struct split {
  const struct topo *topo;
  int classes, cores;
  struct class *class; /* the fewest cores to choose from first */
  hwloc_obj_t *core;
  int *owner;          /* of each core: its class, or FREE */
  int *queue, *parent; /* of a search: classes in the order of their visits; [class] its visitor */
  int *through;        /* [class] the core that its visitor would take from it */
};

/* --- exchanges ------------------------------------------------------------------------------- */

static int free_core(const struct split *split, struct class *class)
{
  while (class->next >= 0 && split->owner[class->next] != FREE)
    class->next = hwloc_bitmap_next(class->choice, class->next);
  return class->next;
}

/* Breadth-first search for a class with a free core. A step leads to the owner of a core that the
 * class may get. -1: there is none, and *visited classes are in the queue. */
static int search(const struct split *split, int from, int *visited)
{
  int tail = 0;
  for (int c = 0; c < split->classes; c++)
    split->parent[c] = -1;
  split->parent[from] = from;
  split->queue[tail++] = from;
  for (int head = 0; head < tail; head++) {
    struct class *class = &split->class[split->queue[head]];
    if (free_core(split, class) >= 0)
      return split->queue[head];
    for (int core = hwloc_bitmap_first(class->choice); core >= 0;
         core = hwloc_bitmap_next(class->choice, core)) {
      const int owner = split->owner[core];
      if (split->parent[owner] >= 0)
        continue;
      split->parent[owner] = split->queue[head];
      split->through[owner] = core;
      split->queue[tail++] = owner;
    }
  }
  *visited = tail;
  return -1;
}

/* Gives a class one more core; false if that is impossible. */
static bool grow(const struct split *split, int c)
{
  int visited, at = split->class[c].full ? -1 : search(split, c, &visited);
  if (split->class[c].full)
    return false;
  for (int v = 0; at < 0 && v < visited; v++)
    split->class[split->queue[v]].full = true; /* none of them reaches a free core */
  if (at < 0)
    return false;
  for (int core = free_core(split, &split->class[at]);;
       core = split->through[at], at = split->parent[at]) {
    split->owner[core] = at;
    if (at == c)
      break;
  }
  split->class[c].cores++;
  return true;
}

static void forget(struct split *split)
{
  for (int core = 0; core < split->cores; core++)
    split->owner[core] = FREE;
  for (int c = 0; c < split->classes; c++) {
    split->class[c].next = hwloc_bitmap_first(split->class[c].choice);
    split->class[c].full = false;
    split->class[c].cores = 0;
  }
}

/* The rounds only decide how many cores each class gets. Then the classes take them one after the
 * other, so that cores of a class are adjacent if possible. */
static void deal(struct split *split)
{
  forget(split);
  for (bool more = true; more;) {
    more = false;
    for (int c = 0; c < split->classes; c++)
      for (int k = 0; k < split->class[c].ranks && grow(split, c); k++)
        more = true;
  }
  for (int c = 0; c < split->classes; c++)
    split->class[c].wanted = split->class[c].cores;
  forget(split);
  for (int c = 0; c < split->classes; c++)
    for (int k = 0; k < split->class[c].wanted; k++)
      grow(split, c);
}

/* --- classes --------------------------------------------------------------------------------- */

static enum status find_choice(const struct split *split, struct class *class)
{
  enum status status = STATUS_OK;
  class->choice = hwloc_bitmap_alloc();
  if (!class->choice)
    return status_set(STATUS_MEMORY, "no memory for a set of cores");
  for (int core = 0; core < split->cores && !status; core++)
    if (hwloc_bitmap_intersects(split->core[core]->cpuset, class->near))
      status = topo_check(hwloc_bitmap_set(class->choice, (unsigned)core), "hwloc_bitmap_set");
  return status;
}

static struct class *find_class(const struct split *split, hwloc_const_bitmap_t near)
{
  for (int c = 0; c < split->classes; c++)
    if (hwloc_bitmap_isequal(split->class[c].near, near))
      return &split->class[c];
  return NULL;
}

static void sort_last(struct split *split)
{
  const struct class last = split->class[split->classes - 1];
  const int cores = hwloc_bitmap_weight(last.choice);
  int at = split->classes - 1;
  for (; at > 0 && hwloc_bitmap_weight(split->class[at - 1].choice) > cores; at--)
    split->class[at] = split->class[at - 1];
  split->class[at] = last;
}

static enum status find_classes(struct split *split)
{
  enum status status = STATUS_OK;
  for (int k = 0; k < split->topo->ranks && !status; k++) {
    hwloc_const_bitmap_t near = split->topo->share[k].near;
    struct class *class = find_class(split, near);
    if (class) {
      class->ranks++;
      continue;
    }
    class = &split->class[split->classes++];
    *class = (struct class){.near = near, .first = k, .ranks = 1};
    status = find_choice(split, class);
    if (!status)
      sort_last(split);
  }
  return status;
}

static enum status create(const struct topo *topo, struct split *split)
{
  hwloc_const_bitmap_t whole = hwloc_topology_get_topology_cpuset(topo->machine);
  const size_t ranks = (size_t)topo->ranks,
               cores = (size_t)machine_count_cores(topo->machine, whole);
  *split = (struct split){.topo = topo};
  enum status status = mem_alloc(MEM_META, ranks * sizeof *split->class, (void **)&split->class);
  if (!status)
    status = mem_alloc(MEM_META, cores * sizeof(hwloc_obj_t), (void **)&split->core);
  if (!status)
    status = mem_alloc(MEM_META, cores * sizeof(int), (void **)&split->owner);
  if (!status)
    status = mem_alloc(MEM_META, ranks * sizeof(int), (void **)&split->queue);
  if (!status)
    status = mem_alloc(MEM_META, ranks * sizeof(int), (void **)&split->parent);
  if (!status)
    status = mem_alloc(MEM_META, ranks * sizeof(int), (void **)&split->through);
  for (hwloc_obj_t core = machine_next_core(topo->machine, whole, NULL); core && !status;
       core = machine_next_core(topo->machine, whole, core))
    split->core[split->cores++] = core;
  return status ? status : find_classes(split);
}

static void destroy(struct split *split)
{
  for (int c = 0; c < split->classes; c++)
    hwloc_bitmap_free(split->class[c].choice);
  mem_free(split->class);
  mem_free(split->core);
  mem_free(split->owner);
  mem_free(split->queue);
  mem_free(split->parent);
  mem_free(split->through);
}

/* --- ranks of a class ------------------------------------------------------------------------ */

/* The cores of a class. */
struct pool {
  hwloc_bitmap_t cpus, part; /* part: those of a group of domains */
  int ranks, cores, domains;
  int *domain; /* domains with some of the cores, as indices */
};

static enum status fill_part(const struct topo *topo, const struct pool *pool, int begin, int end)
{
  enum status status = STATUS_OK;
  hwloc_bitmap_zero(pool->part);
  for (int d = begin; d < end && !status; d++)
    status = topo_check(hwloc_bitmap_or(pool->part, pool->part, topo->domain[pool->domain[d]].cpus),
                        "hwloc_bitmap_or");
  return status
             ? status
             : topo_check(hwloc_bitmap_and(pool->part, pool->part, pool->cpus), "hwloc_bitmap_and");
}

/* A cut into groups fits if no rank gets less than half of an equal share. */
static enum status try_groups(const struct topo *topo, const struct pool *pool, int groups,
                              bool *fits)
{
  const int domains = pool->domains / groups, ranks = pool->ranks / groups;
  enum status status = STATUS_OK;
  *fits = pool->cores >= pool->ranks;
  for (int g = 0; g < groups && *fits && !status; g++) {
    status = fill_part(topo, pool, g * domains, (g + 1) * domains);
    const int each = machine_count_cores(topo->machine, pool->part) / ranks;
    *fits = each >= 1 && 2 * each >= pool->cores / pool->ranks;
  }
  return status;
}

/* The largest number of groups that divides both ranks and domains, so that a rank has cores of few
 * domains, even if one domain has a core more than another. Equal domains give equal shares. */
static enum status count_groups(const struct topo *topo, const struct pool *pool, int *groups)
{
  enum status status = STATUS_OK;
  bool fits = false;
  *groups = pool->domains + 1;
  while (!fits && !status && --*groups > 1)
    if (pool->domains % *groups == 0 && pool->ranks % *groups == 0)
      status = try_groups(topo, pool, *groups, &fits);
  return status;
}

/* Part `index` of `sharers` of these cores; one core if they are too few. */
static enum status take(const struct topo *topo, struct share *share, hwloc_const_bitmap_t from,
                        int index, int sharers)
{
  const int cores = machine_count_cores(topo->machine, from);
  const int begin = (int)((int64_t)cores * index / sharers);
  const int end = share->crowded ? begin + 1 : (int)((int64_t)cores * (index + 1) / sharers);
  share->cores = end - begin;
  return machine_take_cores(topo->machine, from, begin, end, share->cpus);
}

static enum status share_pool(const struct split *split, const struct class *class,
                              const struct pool *pool, int rivals)
{
  const struct topo *topo = split->topo;
  int groups, index = 0;
  enum status status = count_groups(topo, pool, &groups);
  const int ranks = pool->ranks / groups, domains = pool->domains / groups;
  for (int k = class->first; k < topo->ranks && !status; k++) {
    struct share *share = &topo->share[k];
    if (!hwloc_bitmap_isequal(share->near, class->near))
      continue;
    if (index % ranks == 0)
      status = fill_part(topo, pool, index / ranks * domains, (index / ranks + 1) * domains);
    share->crowded = class->cores < class->ranks;
    share->rivals = rivals;
    if (!status)
      status = take(topo, share, pool->part, index++ % ranks, ranks);
  }
  return status;
}

/* A class without its own cores shares those of other classes. */
static enum status fill_pool(const struct split *split, int c, struct pool *pool)
{
  const struct topo *topo = split->topo;
  const struct class *class = &split->class[c];
  enum status status = STATUS_OK;
  pool->ranks = class->ranks;
  pool->domains = 0;
  hwloc_bitmap_zero(pool->cpus);
  for (int core = 0; core < split->cores && !status; core++)
    if (split->owner[core] == c)
      status = topo_check(hwloc_bitmap_or(pool->cpus, pool->cpus, split->core[core]->cpuset),
                          "hwloc_bitmap_or");
  if (!status && class->cores > 0)
    status = topo_check(hwloc_bitmap_and(pool->cpus, pool->cpus, class->near), "hwloc_bitmap_and");
  else if (!status)
    status = topo_check(hwloc_bitmap_copy(pool->cpus, class->near), "hwloc_bitmap_copy");
  pool->cores = machine_count_cores(topo->machine, pool->cpus);
  for (int d = 0; d < topo->domains; d++)
    if (hwloc_bitmap_intersects(topo->domain[d].cpus, pool->cpus))
      pool->domain[pool->domains++] = d;
  return status;
}

/* Ranks of a crowded class and of the classes that it competes with; 0: it is not crowded. */
static int count_rivals(const struct split *split, int c)
{
  int visited = 0, ranks = 0;
  if (split->class[c].cores >= split->class[c].ranks)
    return 0;
  search(split, c, &visited);
  for (int v = 0; v < visited; v++)
    ranks += split->class[split->queue[v]].ranks;
  return ranks;
}

static enum status share_out(const struct split *split)
{
  struct pool pool = {.cpus = hwloc_bitmap_alloc(), .part = hwloc_bitmap_alloc()};
  const bool found = pool.cpus && pool.part;
  enum status status = found ? STATUS_OK : status_set(STATUS_MEMORY, "no memory for a set of CPUs");
  if (!status)
    status = mem_alloc(MEM_META, (size_t)split->topo->domains * sizeof(int), (void **)&pool.domain);
  for (int c = 0; c < split->classes && !status; c++) {
    status = fill_pool(split, c, &pool);
    if (!status)
      status = share_pool(split, &split->class[c], &pool, count_rivals(split, c));
  }
  mem_free(pool.domain);
  hwloc_bitmap_free(pool.part);
  hwloc_bitmap_free(pool.cpus);
  return status;
}

enum status split_cores(const struct topo *topo)
{
  struct split split;
  enum status status = create(topo, &split);
  if (!status) {
    deal(&split);
    status = share_out(&split);
  }
  destroy(&split);
  return status;
}
