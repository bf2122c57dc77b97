/* Times of steps in a ring. */
#include "train/stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum status stats_create(int64_t room, struct stats *out)
{
  *out = (struct stats){.room = room < 1 ? 1 : room};
  return mem_new(MEM_META, out->room, &out->seconds);
}

void stats_destroy(struct stats *stats)
{
  mem_free(stats->seconds);
  *stats = (struct stats){0};
}

void stats_clear(struct stats *stats)
{
  stats->n = 0;
}

void stats_add(struct stats *stats, double seconds)
{
  stats->seconds[stats->n++ % stats->room] = seconds;
}

static int64_t stored(const struct stats *stats)
{
  return stats->n < stats->room ? stats->n : stats->room;
}

double stats_recent(const struct stats *stats, int64_t n)
{
  if (n > stored(stats))
    n = stored(stats);
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += stats->seconds[(stats->n - 1 - i) % stats->room];
  return n ? sum / (double)n : 0;
}

double stats_mean(const struct stats *stats)
{
  return stats_recent(stats, stored(stats));
}

static int ascending(const void *a, const void *b)
{
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts them. */
static double percentile(double *seconds, int64_t n, double p)
{
  if (n == 0)
    return 0;
  qsort(seconds, (size_t)n, sizeof *seconds, ascending);
  const int64_t rank = (int64_t)ceil(p / 100 * (double)n);
  return seconds[rank < 1 ? 0 : rank - 1];
}

double stats_high(const struct stats *stats)
{
  enum { LAST = 32 };
  double last[LAST];
  const int64_t n = stored(stats) < LAST ? stored(stats) : LAST;
  for (int64_t i = 0; i < n; i++)
    last[i] = stats->seconds[(stats->n - 1 - i) % stats->room];
  return percentile(last, n, 95);
}

double stats_percentile(struct stats *stats, double p)
{
  return percentile(stats->seconds, stored(stats), p);
}
