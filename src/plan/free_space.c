/* The tree that free_space.h describes. */
#include "plan/free_space.h"

#include <string.h>

#include "base/mem.h"
#include "layout/layout.h"

/* Runs of taken bytes, in order, with gaps between them. */
struct runs {
  struct layout_range *run;
  int64_t n, room;
};

/* Node 1 is all the time, 2i and 2i + 1 are the halves of i, and `leaves` + t is moment t. The
 * bytes taken at a node are its `within`, and `through` of its ancestors. */
struct free_space {
  int leaves;
  struct runs *within; /* [2 * leaves] of buffers that live at some moments of the node */
  struct runs
      *through; /* [leaves] of buffers that live at all moments; for a leaf it is `within` */
};

enum { FEW = 4, MOST_SEEN = 4 * 32 };

/* The first run that ends at or after `at`. */
static int64_t find_run(const struct runs *runs, int64_t at)
{
  int64_t low = 0, high = runs->n;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (runs->run[middle].end < at)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* From `at` on, the first place with a gap for `bytes`. */
static int64_t find_gap(const struct runs *runs, int64_t at, int64_t bytes)
{
  for (int64_t r = find_run(runs, at); r < runs->n && runs->run[r].begin - at < bytes; r++)
    at = runs->run[r].end;
  return at;
}

static enum status add_run(struct runs *runs, struct layout_range added)
{
  int64_t first = find_run(runs, added.begin), behind = first;
  for (; behind < runs->n && runs->run[behind].begin <= added.end; behind++)
    if (runs->run[behind].end > added.end)
      added.end = runs->run[behind].end;
  if (behind > first && runs->run[first].begin < added.begin)
    added.begin = runs->run[first].begin;
  enum status status = runs->n < runs->room ? STATUS_OK
                                            : mem_grow(MEM_META, (void **)&runs->run, &runs->room,
                                                       runs->n + FEW, sizeof *runs->run);
  if (status)
    return status;
  memmove(&runs->run[first + 1], &runs->run[behind],
          (size_t)(runs->n - behind) * sizeof *runs->run);
  runs->run[first] = added;
  runs->n += 1 - (behind - first);
  return STATUS_OK;
}

static void see(const struct runs *runs, const struct runs **seen, int *n)
{
  if (runs->n > 0)
    seen[(*n)++] = runs;
}

/* The lists that together hold all bytes taken at any of these moments. */
static int list_runs(const struct free_space *space, int first, int last, const struct runs **seen)
{
  int n = 0;
  for (int low = first + space->leaves, behind = last + space->leaves + 1; low < behind;
       low /= 2, behind /= 2) {
    if (low % 2)
      see(&space->within[low++], seen, &n);
    if (behind % 2)
      see(&space->within[--behind], seen, &n);
  }
  for (int low = (first + space->leaves) / 2, high = (last + space->leaves) / 2; high > 0;
       low /= 2, high /= 2) {
    see(&space->through[high], seen, &n);
    if (low != high)
      see(&space->through[low], seen, &n);
  }
  return n;
}

int64_t free_space_find(const struct free_space *space, int first, int last, int64_t bytes)
{
  const struct runs *seen[MOST_SEEN];
  int n = list_runs(space, first, last, seen), agree = 0;
  int64_t at = 0;
  for (int i = 0; agree < n; i = i + 1 < n ? i + 1 : 0) {
    int64_t before = at;
    at = find_gap(seen[i], at, bytes);
    agree = at == before ? agree + 1 : 1;
  }
  return at;
}

static enum status take_all_of(struct free_space *space, int node, struct layout_range bytes)
{
  enum status status = add_run(&space->within[node], bytes);
  return status || node >= space->leaves ? status : add_run(&space->through[node], bytes);
}

enum status free_space_take(struct free_space *space, int first, int last, int64_t begin,
                            int64_t end)
{
  const struct layout_range bytes = {begin, end};
  enum status status = STATUS_OK;
  for (int low = first + space->leaves, behind = last + space->leaves + 1; low < behind && !status;
       low /= 2, behind /= 2) {
    if (low % 2)
      status = take_all_of(space, low++, bytes);
    if (behind % 2 && !status)
      status = take_all_of(space, --behind, bytes);
  }
  for (int low = (first + space->leaves) / 2, high = (last + space->leaves) / 2;
       high > 0 && !status; low /= 2, high /= 2) {
    status = add_run(&space->within[high], bytes);
    if (low != high && !status)
      status = add_run(&space->within[low], bytes);
  }
  return status;
}

void free_space_clear(struct free_space *space)
{
  for (int node = 0; node < 2 * space->leaves; node++)
    space->within[node].n = 0;
  for (int node = 0; node < space->leaves; node++)
    space->through[node].n = 0;
}

enum status free_space_create(int moments, struct free_space **out)
{
  struct free_space *space;
  enum status status = mem_new(MEM_META, 1, &space);
  if (status)
    return status;
  for (space->leaves = 1; space->leaves < moments;)
    space->leaves *= 2;
  status = mem_new(MEM_META, 2 * space->leaves, &space->within);
  status = status ?: mem_new(MEM_META, space->leaves, &space->through);
  if (status)
    free_space_destroy(space);
  else
    *out = space;
  return status;
}

void free_space_destroy(struct free_space *space)
{
  if (!space)
    return;
  for (int node = 0; space->within && node < 2 * space->leaves; node++)
    mem_free(space->within[node].run);
  for (int node = 0; space->through && node < space->leaves; node++)
    mem_free(space->through[node].run);
  mem_free(space->through);
  mem_free(space->within);
  mem_free(space);
}
