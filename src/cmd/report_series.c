#include <math.h>

#include "base/mem.h"
#include "cmd/report.h"

/* fmin() and fmax() ignore a NAN. */
static void join(struct report_point *point, double low, double high)
{
  point->low = fmin(point->low, low);
  point->high = fmax(point->high, high);
}

static void halve(struct report_series *series)
{
  series->n /= 2;
  series->joined *= 2;
  for (int64_t i = 0; i < series->n; i++) {
    const struct report_point second = series->point[2 * i + 1];
    series->point[i] = series->point[2 * i];
    join(&series->point[i], second.low, second.high);
  }
}

enum status series_add(struct report_series *series, double step, double seconds, double value)
{
  const double number = isfinite(value) ? value : NAN;
  if (series->n > 0 && series->last < series->joined) {
    join(&series->point[series->n - 1], number, number);
    series->last++;
    return STATUS_OK;
  }
  if (series->n == SERIES_POINTS)
    halve(series);
  const enum status status = mem_grow(MEM_META, (void **)&series->point, &series->room,
                                      series->n + 1, sizeof *series->point);
  if (status)
    return status;
  series->point[series->n++] = (struct report_point){step, seconds, number, number};
  series->joined += series->joined == 0;
  series->last = 1;
  return STATUS_OK;
}
