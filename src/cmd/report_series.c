#include <math.h>

#include "base/mem.h"
#include "cmd/report.h"

/* fmin() and fmax() ignore a NAN. */
static void join(struct report_point *point, const struct report_point *next)
{
  point->low = fmin(point->low, next->low);
  point->high = fmax(point->high, next->high);
  point->sum += next->sum;
  point->finite += next->finite;
}

static void halve(struct report_series *series)
{
  series->n /= 2;
  series->joined *= 2;
  for (int64_t i = 0; i < series->n; i++) {
    const struct report_point second = series->point[2 * i + 1];
    series->point[i] = series->point[2 * i];
    join(&series->point[i], &second);
  }
}

enum status series_add(struct report_series *series, double step, double seconds, double value)
{
  const bool finite = isfinite(value);
  const double number = finite ? value : NAN;
  const struct report_point point = {step, seconds, number, number, finite ? value : 0, finite};
  if (series->n > 0 && series->last < series->joined) {
    join(&series->point[series->n - 1], &point);
    series->last++;
    return STATUS_OK;
  }
  if (series->n == SERIES_POINTS)
    halve(series);
  const enum status status = mem_grow(MEM_META, (void **)&series->point, &series->room,
                                      series->n + 1, sizeof *series->point);
  if (status)
    return status;
  series->point[series->n++] = point;
  series->joined += series->joined == 0;
  series->last = 1;
  return STATUS_OK;
}
