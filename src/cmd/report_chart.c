/* One chart: axes with round ticks, and lines, dots or stacked bars. Coordinates are in units of a
 * view box, so the chart scales with the page. Colours and dashes are classes of its style. */
#include <math.h>
#include <string.h>

#include "cmd/report.h"

enum { WIDTH = 440, HEIGHT = 250, LEFT = 58, RIGHT = 14, TOP = 10, BOTTOM = 42, BAR = 38 };
enum { TICKS_MOST = 16, MARKS_MOST = 40, LABELS_MOST = 64, LETTER = 8, LETTER_HEIGHT = 15 };

struct axis {
  double least, most, step; /* log: of the logarithm, to base 10 */
  double begin, end;        /* in the view box */
  double scale;             /* of the values, such as 1/60 for minutes */
  bool log;
};

struct box {
  double x, y, width, height;
};

struct drawing {
  const struct chart *chart;
  FILE *to;
  struct axis x, y;
  int height, labels;
  struct box label[LABELS_MOST];
};

/* --- axes ---------------------------------------------------------------------------------- */

/* NAN: the axis has no place for the value. */
static double place(const struct axis *axis, double value)
{
  const double scaled = value * axis->scale, at = axis->log ? log10(scaled) : scaled;
  if (axis->log && !(scaled > 0))
    return NAN;
  return axis->begin + (at - axis->least) / (axis->most - axis->least) * (axis->end - axis->begin);
}

/* 1, 2 or 5 times a power of ten, so that the range has at most `ticks` steps. */
static double round_step(double range, int ticks)
{
  static const double factors[] = {1, 2, 5, 10};
  const double power = pow(10, floor(log10(range / ticks)));
  for (int i = 0; i < 3; i++)
    if (range / (factors[i] * power) <= ticks)
      return factors[i] * power;
  return factors[3] * power;
}

/* A logarithmic axis has labels at powers of ten, or, if it has few of them, also in between. */
static void set_log(struct axis *axis)
{
  axis->least = log10(axis->least);
  axis->most = log10(axis->most);
  if (axis->most - axis->least < 0.3) {
    axis->least -= 0.15;
    axis->most += 0.15;
  }
  const double pad = 0.04 * (axis->most - axis->least);
  axis->least -= pad;
  axis->most += pad;
  axis->step = fmax(1, ceil((axis->most - axis->least) / 6));
}

static void set_linear(struct axis *axis, int ticks, bool expand)
{
  const double size = fmax(fabs(axis->least), fabs(axis->most));
  if (!(axis->most - axis->least > 1e-9 * size)) {
    const double pad = size > 0 ? 0.05 * size : 1;
    axis->least -= pad;
    axis->most += pad;
  }
  axis->step = round_step(axis->most - axis->least, ticks);
  if (!expand)
    return;
  axis->least = axis->step * floor(axis->least / axis->step + 1e-9);
  axis->most = axis->step * ceil(axis->most / axis->step - 1e-9);
}

static struct axis make_axis(double least, double most, double log_from, int ticks, bool expand)
{
  struct axis axis = {.least = least, .most = most, .scale = 1};
  axis.log = least > 0 && most / least >= log_from;
  if (axis.log)
    set_log(&axis);
  else
    set_linear(&axis, ticks, expand);
  return axis;
}

/* "0.005", "20k", "3e-5": as short as the distance of the ticks allows. */
static void put_number(double value, double step, double most, FILE *to)
{
  static const char prefixes[] = "kMGTPE";
  const double size = fabs(most);
  char text[48];
  if (size >= 1e4) {
    int power = (int)(log10(size) + 1e-9) / 3;
    power = power > 6 ? 6 : power;
    fprintf(to, "%.6g%.1s", value / pow(1000, power), value != 0 ? prefixes + power - 1 : "");
  } else if (size < 1e-3 && value != 0) {
    snprintf(text, sizeof text, "%.3g", value);
    char *zero = strstr(text, "e-0");
    if (zero)
      memmove(zero + 2, zero + 3, strlen(zero + 3) + 1);
    fputs(text, to);
  } else {
    const int digits = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    fprintf(to, "%.*f", digits, fabs(value) < step / 2 ? 0 : value);
  }
}

static void put_x_tick(const struct drawing *d, double at, double value, double step, double most)
{
  const double bottom = d->height - BOTTOM;
  fprintf(d->to,
          "<path class=\"grid\" d=\"M%.1f %dV%.1f\"/><text x=\"%.1f\" y=\"%.1f\" "
          "text-anchor=\"middle\">",
          at, TOP, bottom, at, bottom + 16);
  put_number(value, step, most, d->to);
  fputs("</text>\n", d->to);
}

static void put_y_tick(const struct drawing *d, double at, double value, double step, double most)
{
  fprintf(d->to,
          "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
          "text-anchor=\"end\">",
          LEFT, at, WIDTH - RIGHT, LEFT - 6, at + 4);
  put_number(value, step, most, d->to);
  fputs("</text>\n", d->to);
}

static void put_tick(const struct drawing *d, const struct axis *axis, double value, double step,
                     double most)
{
  const double at = place(axis, value / axis->scale);
  if (axis == &d->x)
    put_x_tick(d, at, value, step, most);
  else
    put_y_tick(d, at, value, step, most);
}

static void put_log_ticks(const struct drawing *d, const struct axis *axis)
{
  static const double factors[] = {1, 2, 5};
  const int between = axis->most - axis->least < 2.2 ? 3 : 1;
  for (double power = floor(axis->least); power <= axis->most; power++)
    for (int i = 0; i < between && fmod(power, axis->step) == 0; i++) {
      const double value = factors[i] * pow(10, power), at = log10(value);
      if (at > axis->least - 1e-9 && at < axis->most + 1e-9)
        put_tick(d, axis, value, value, value);
    }
}

static void put_ticks(const struct drawing *d, const struct axis *axis)
{
  if (axis->log) {
    put_log_ticks(d, axis);
    return;
  }
  const double most = fmax(fabs(axis->least), fabs(axis->most));
  const double first = ceil(axis->least / axis->step - 1e-9);
  for (int i = 0; i < TICKS_MOST && (first + i) * axis->step <= axis->most + 1e-9 * axis->step; i++)
    put_tick(d, axis, (first + i) * axis->step, axis->step, most);
}

/* --- the range of the data ----------------------------------------------------------------- */

struct range {
  double x_least, x_most, y_least, y_most;
};

static double x_of(const struct chart *chart, const struct report_point *point)
{
  return chart->by_time ? point->seconds : point->step;
}

static bool find_range(const struct chart *chart, struct range *range)
{
  *range = (struct range){INFINITY, -INFINITY, INFINITY, -INFINITY};
  for (int r = 0; r < chart->rows; r++)
    for (int64_t i = 0; i < chart->row[r].n; i++) {
      const struct report_point *point = &chart->row[r].point[i];
      const double x = x_of(chart, point);
      if (!isfinite(x) || !isfinite(point->low))
        continue;
      range->x_least = fmin(range->x_least, x);
      range->x_most = fmax(range->x_most, x);
      range->y_least = fmin(range->y_least, point->low);
      range->y_most = fmax(range->y_most, point->high);
    }
  return range->x_most >= range->x_least;
}

static double longest_bar(const struct chart *chart)
{
  double longest = 0;
  for (int r = 0; r < chart->rows; r++) {
    double sum = 0;
    for (int64_t i = 0; i < chart->row[r].n; i++)
      sum += isfinite(chart->row[r].point[i].high) ? chart->row[r].point[i].high : 0;
    longest = fmax(longest, sum);
  }
  return longest;
}

/* --- data ---------------------------------------------------------------------------------- */

static void begin_row(const struct drawing *d, const struct chart_row *row)
{
  fprintf(d->to, "<g class=\"s%d%s m%d\"><title>", row->style % CHART_STYLES,
          row->thin ? " thin" : "", row->style);
  page_text(row->label, d->to);
  fputs("</title>", d->to);
}

/* From the least to the largest value of each joined point. */
static void put_band(const struct drawing *d, const struct chart_row *row)
{
  fputs("<path class=\"band\" d=\"", d->to);
  for (int64_t i = 0; i < row->n; i++) {
    const struct report_point *point = &row->point[i];
    const double x = place(&d->x, x_of(d->chart, point));
    if (isfinite(x) && point->high > point->low)
      fprintf(d->to, "M%.1f %.1fV%.1f", x, place(&d->y, point->low), place(&d->y, point->high));
  }
  fputs("\"/>", d->to);
}

/* The line goes through the means. A point without a finite value is a gap. A point alone between
 * gaps is a dot. */
static void put_path(const struct drawing *d, const struct chart_row *row)
{
  bool pen = false;
  fputs("<path d=\"", d->to);
  for (int64_t i = 0; i < row->n; i++) {
    const struct report_point *point = &row->point[i];
    const double x = place(&d->x, x_of(d->chart, point));
    const double y = place(&d->y, point->sum / (double)point->finite);
    const bool drawn = isfinite(x) && isfinite(y);
    if (drawn)
      fprintf(d->to, pen ? "L%.1f %.1f" : "M%.1f %.1fh0", x, y);
    pen = drawn;
  }
  fputs("\"/>", d->to);
}

/* A series of few values shows each of them. */
static void put_marks(const struct drawing *d, const struct chart_row *row)
{
  for (int64_t i = 0; i < row->n && row->n <= MARKS_MOST; i++) {
    const struct report_point *point = &row->point[i];
    const double x = place(&d->x, x_of(d->chart, point)), y = place(&d->y, point->low);
    if (isfinite(x) && isfinite(y))
      fprintf(d->to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.2\"/>", x, y);
  }
}

static void put_line(const struct drawing *d, const struct chart_row *row)
{
  bool joined = false;
  for (int64_t i = 0; i < row->n; i++)
    joined |= row->point[i].high > row->point[i].low;
  begin_row(d, row);
  if (joined)
    put_band(d, row);
  put_path(d, row);
  put_marks(d, row);
  fputs("</g>\n", d->to);
}

static bool overlap(const struct box *a, const struct box *b)
{
  return a->x < b->x + b->width && b->x < a->x + a->width && a->y < b->y + b->height &&
         b->y < a->y + a->height;
}

static bool is_free(const struct drawing *d, const struct box *box)
{
  if (box->x < LEFT || box->x + box->width > WIDTH || box->y < 0 ||
      box->y + box->height > d->height - BOTTOM)
    return false;
  for (int i = 0; i < d->labels; i++)
    if (overlap(box, &d->label[i]))
      return false;
  return d->labels < LABELS_MOST;
}

static int letters(const char *text)
{
  int n = 0;
  for (; *text; text++)
    n += (*text & 0xc0) != 0x80;
  return n;
}

/* Next to the dot if a place is free there. Otherwise only the legend has the name. */
static void put_label(struct drawing *d, const char *text, double x, double y)
{
  const double width = LETTER * letters(text);
  const struct {
    const char *anchor;
    double x, left, top;
  } places[] = {{"start", x + 8, x + 8, y - 7},
                {"end", x - 8, x - 8 - width, y - 7},
                {"middle", x, x - width / 2, y - 9 - LETTER_HEIGHT},
                {"middle", x, x - width / 2, y + 9},
                {"start", x - 4, x - 4, y - 9 - LETTER_HEIGHT},
                {"start", x - 4, x - 4, y + 9}};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    const struct box box = {places[i].left, places[i].top, width, LETTER_HEIGHT};
    if (!is_free(d, &box))
      continue;
    d->label[d->labels++] = box;
    fprintf(d->to, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", places[i].x, box.y + 12,
            places[i].anchor);
    page_text(text, d->to);
    fputs("</text>", d->to);
    return;
  }
}

/* Dots take their places before names do. */
static void take_place(struct drawing *d, const struct chart_row *row)
{
  const struct report_point *point = row->point;
  const double x = place(&d->x, x_of(d->chart, point));
  const double y = (place(&d->y, point->low) + place(&d->y, point->high)) / 2;
  if (isfinite(x) && isfinite(y) && d->labels < LABELS_MOST / 2)
    d->label[d->labels++] = (struct box){x - 5, y - 5, 10, 10};
}

static void put_dot(struct drawing *d, const struct chart_row *row)
{
  const struct report_point *point = row->point;
  const double x = place(&d->x, x_of(d->chart, point));
  const double low = place(&d->y, point->low), high = place(&d->y, point->high);
  if (!isfinite(x) || !isfinite(low))
    return;
  begin_row(d, row);
  fprintf(d->to,
          "<path class=\"bar\" d=\"M%.1f %.1fV%.1f\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"/>",
          x, low, high, x, (low + high) / 2);
  put_label(d, row->label, x, (low + high) / 2);
  fputs("</g>\n", d->to);
}

static void put_bar(const struct drawing *d, const struct chart_row *row, int index)
{
  const double top = TOP + BAR * index;
  double sum = 0;
  fprintf(d->to, "<g><text x=\"%.1f\" y=\"%.1f\">", d->x.begin + 4, top + 13);
  page_text(row->label, d->to);
  fputs("</text>", d->to);
  for (int64_t i = 0; i < row->n; i++) {
    const double part = row->point[i].high;
    if (!(part > 0))
      continue;
    fprintf(d->to,
            "<rect class=\"p%lld\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"15\">"
            "<title>%.4g ms</title></rect>",
            (long long)i, place(&d->x, sum), top + 18, place(&d->x, sum + part) - place(&d->x, sum),
            part);
    sum += part;
  }
  fputs("</g>\n", d->to);
}

static void put_rows(struct drawing *d)
{
  const struct chart *chart = d->chart;
  for (int r = 0; r < chart->rows && chart->kind == CHART_DOTS; r++)
    take_place(d, &chart->row[r]);
  for (int r = 0; r < chart->rows; r++) {
    if (chart->kind == CHART_LINES)
      put_line(d, &chart->row[r]);
    if (chart->kind == CHART_DOTS)
      put_dot(d, &chart->row[r]);
    if (chart->kind == CHART_BARS)
      put_bar(d, &chart->row[r], r);
  }
}

/* --- the chart ----------------------------------------------------------------------------- */

struct clock {
  double scale;
  const char *name;
};

static struct clock clock_for(double seconds)
{
  if (seconds > 3 * 3600)
    return (struct clock){1.0 / 3600, "hours"};
  if (seconds > 3 * 60)
    return (struct clock){1.0 / 60, "minutes"};
  return (struct clock){1, "seconds"};
}

static void put_head(const struct drawing *d, const char *unit)
{
  const struct chart *chart = d->chart;
  const double bottom = d->height - BOTTOM;
  fputs("<figure><figcaption>", d->to);
  page_text(chart->title, d->to);
  fprintf(d->to, "</figcaption>\n" SVG "viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
          d->height);
  page_text(chart->title, d->to);
  fputs("\">\n", d->to);
  put_ticks(d, &d->x);
  if (chart->kind != CHART_BARS)
    put_ticks(d, &d->y);
  fprintf(d->to,
          "<path class=\"axis\" d=\"M%.1f %dV%.1fH%d\"/><text class=\"name\" x=\"%.1f\" y=\"%.1f\" "
          "text-anchor=\"middle\">",
          d->x.begin, TOP, bottom, WIDTH - RIGHT, (d->x.begin + d->x.end) / 2, bottom + 34);
  page_text(chart->x_name, d->to);
  if (*unit)
    fprintf(d->to, " (%s)", unit);
  fputs("</text>\n", d->to);
}

static bool set_bars(struct drawing *d)
{
  const double longest = longest_bar(d->chart);
  d->height = TOP + BAR * d->chart->rows + BOTTOM;
  d->x = make_axis(0, longest, INFINITY, 6, false);
  d->x.begin = RIGHT;
  d->x.end = WIDTH - RIGHT;
  return longest > 0;
}

/* Ranges of a factor of 30 are logarithmic. Ratios are so from a factor of 4. */
static bool set_plane(struct drawing *d, struct clock *clock)
{
  enum { LOG_FROM = 30, RATIO_LOG_FROM = 4, X_TICKS = 6, Y_TICKS = 6 };
  const bool dots = d->chart->kind == CHART_DOTS;
  struct range range;
  if (!find_range(d->chart, &range))
    return false;
  if (d->chart->by_time)
    *clock = clock_for(range.x_most);
  d->height = HEIGHT;
  d->x = make_axis(range.x_least * clock->scale, range.x_most * clock->scale,
                   dots ? RATIO_LOG_FROM : INFINITY, X_TICKS, dots);
  d->y = make_axis(range.y_least, range.y_most, LOG_FROM, Y_TICKS, true);
  d->x.scale = clock->scale;
  d->x.begin = LEFT;
  d->x.end = WIDTH - RIGHT;
  d->y.begin = HEIGHT - BOTTOM;
  d->y.end = TOP;
  return true;
}

void chart_print(const struct chart *chart, FILE *to)
{
  struct drawing d = {.chart = chart, .to = to};
  struct clock clock = {1, ""};
  if (!(chart->kind == CHART_BARS ? set_bars(&d) : set_plane(&d, &clock)))
    return;
  put_head(&d, clock.name);
  put_rows(&d);
  fputs("</svg></figure>\n", to);
}
