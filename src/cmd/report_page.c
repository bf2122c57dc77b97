/* The page: one file without scripts, fonts or pictures from elsewhere. It has no date, so the same
 * records give the same bytes. */
#include <math.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/report.h"
#include "config.h"
#include "io/text/utf8.h"

static const char style[] =
    ":root{color-scheme:light dark;--back:#fff;--card:#f6f7f9;--text:#1c2024;--faint:#5d656e;"
    "--line:#d9dde2;--c0:#0072b2;--c1:#d55e00;--c2:#00876c;--c3:#b5478c;--c4:#8a6d00;--c5:#3d9fd6;"
    "--c6:#555}\n"
    "@media (prefers-color-scheme:dark){:root{--back:#14171a;--card:#1d2125;--text:#e6e8ea;"
    "--faint:#a3abb3;--line:#353b42;--c0:#4da3e0;--c1:#ff8b45;--c2:#2ec4a0;--c3:#ea9acb;"
    "--c4:#e3c246;--c5:#9ad5f7;--c6:#bbb}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:16px;max-width:1360px;background:var(--back);color:var(--text);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:24px;margin:8px 0 4px}h2{font-size:18px;margin:32px 0 8px}\n"
    "p{max-width:75ch;margin:4px 0 10px;color:var(--faint);overflow-wrap:anywhere}\n"
    ".wide{overflow-x:auto}\n"
    "table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:5px 7px;text-align:right;border-bottom:1px solid var(--line);"
    "white-space:nowrap;vertical-align:top}\n"
    "th{font-weight:600;color:var(--faint);white-space:normal;vertical-align:bottom}\n"
    "th:first-child,td:first-child{text-align:left;position:sticky;left:0;"
    "background:var(--back);min-width:min(14ch,40vw);max-width:40vw;white-space:normal;"
    "overflow-wrap:anywhere}\n"
    "th.text{text-align:left}"
    "td.text{text-align:left;white-space:normal;min-width:12ch;max-width:48ch;"
    "overflow-wrap:break-word}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,360px),1fr));"
    "gap:14px}\n"
    "figure{margin:0;padding:10px 8px 4px;background:var(--card);border-radius:8px}\n"
    "figcaption{font-weight:600;font-size:14px;margin:0 0 4px 6px}\n"
    "svg{display:block;width:100%;height:auto}\n"
    "svg text{font:13px system-ui,sans-serif;fill:var(--faint)}\n"
    "g text{fill:var(--text)}\n"
    ".grid{stroke:var(--line);fill:none}.axis{stroke:var(--faint);fill:none}\n"
    "g path{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}\n"
    ".thin path{stroke-width:1;stroke-opacity:.75}g path.bar{stroke-dasharray:none}\n"
    "g path.band{stroke-opacity:.25;stroke-linecap:butt;stroke-dasharray:none;stroke-width:1.6}\n"
    "g circle{stroke:none}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 16px;padding:8px 0;background:var(--back);"
    "font-size:13px;max-height:30vh;overflow-y:auto}\n"
    "section .legend{position:sticky;top:0;z-index:1}\n"
    ".legend label{cursor:pointer;overflow-wrap:anywhere}\n"
    ".legend svg{display:inline-block;width:28px;height:10px;vertical-align:middle}\n"
    ".p0{fill:var(--c0)}.p1{fill:var(--c4)}.p2{fill:var(--c1)}.p3{fill:var(--c6)}\n"
    "summary{cursor:pointer}pre{overflow-x:auto;padding:10px;background:var(--card);font-size:12px}"
    "\n"
    ".notes{padding:8px 12px;border-left:4px solid var(--c1);background:var(--card)}\n";

/* --- text ---------------------------------------------------------------------------------- */

static void put_character(const char *text, size_t bytes, FILE *to)
{
  static const char *const names[128] = {
      ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\''] = "&#39;"};
  const unsigned char c = (unsigned char)*text;
  const bool control =
      printable_is_control(printable_at(text, bytes).code) && c != '\t' && c != '\n';
  const bool no_character =
      bytes == 3 && (!memcmp(text, "\xEF\xBF\xBE", 3) || !memcmp(text, "\xEF\xBF\xBF", 3));
  if (control || no_character)
    fputs("\xEF\xBF\xBD", to);
  else if (c < 128 && names[c])
    fputs(names[c], to);
  else
    fwrite(text, 1, bytes, to);
}

static void put_valid(const char *text, size_t bytes, FILE *to)
{
  for (size_t at = 0; at < bytes;) {
    size_t n = 1;
    while (at + n < bytes && ((unsigned char)text[at + n] & 0xc0) == 0x80)
      n++;
    put_character(text + at, n, to);
    at += n;
  }
}

void page_text(const char *text, FILE *to)
{
  for (size_t left = strlen(text); left > 0;) {
    const int64_t bad = utf8_find_invalid(text, left);
    const size_t good = bad < 0 ? left : (size_t)bad, done = good + (bad >= 0);
    put_valid(text, good, to);
    fputs(bad < 0 ? "" : "\xEF\xBF\xBD", to);
    text += done;
    left -= done;
  }
}

static void put_element(const char *name, const char *text, FILE *to)
{
  fprintf(to, "<%s>", name);
  page_text(text, to);
  fprintf(to, "</%.*s>", (int)strcspn(name, " "), name);
}

static void put_heading(const char *title, const char *text, FILE *to)
{
  put_element("h2", title, to);
  put_element("p", text, to);
  fputs("\n", to);
}

/* --- numbers ------------------------------------------------------------------------------- */

/* 1234567 as "1,234,567". */
static void print_count(double value, char *out, size_t size)
{
  char digits[32];
  if (!(fabs(value) < 1e15)) { /* no run has it, but a record may */
    snprintf(out, size, "%.3g", value);
    return;
  }
  const int n = snprintf(digits, sizeof digits, "%.0f", value);
  *out = '\0';
  for (int i = 0; i < n; i++)
    append_text(out, size, "%c%s", digits[i], i + 1 < n && (n - i - 1) % 3 == 0 ? "," : "");
}

struct report_number report_number(const struct report_column *column, double value)
{
  struct report_number n = {"-"};
  const int digits = column->digits;
  if (!isfinite(value))
    return n;
  switch (column->unit) {
  case UNIT_COUNT: print_count(value, n.text, sizeof n.text); break;
  case UNIT_REAL:
    snprintf(n.text, sizeof n.text, fabs(value) < 1e12 ? "%.*f" : "%.*g", digits, value);
    break;
  case UNIT_BYTES: snprintf(n.text, sizeof n.text, "%s", mem_amount(value).text); break;
  case UNIT_RATE: snprintf(n.text, sizeof n.text, "%.3g Gbit/s", 8e-9 * value); break;
  case UNIT_SHARE: snprintf(n.text, sizeof n.text, "%.*f %%", digits, 100 * value); break;
  case UNIT_CHANGE: snprintf(n.text, sizeof n.text, "%+.*f %%", digits, 100 * value); break;
  }
  return n;
}

static const struct report_column summary[] = {
    {VALUE_STEPS, UNIT_COUNT, 0, "steps", "last step"},
    {VALUE_TOKENS, UNIT_COUNT, 0, "tokens", "trained in all steps of the file"},
    {VALUE_TOKENS_PER_S, UNIT_COUNT, 0, "tokens/s", "over the steps that count"},
    {VALUE_P50_MS, UNIT_REAL, 2, "step p50, ms", "median time of the steps that count"},
    {VALUE_P95_MS, UNIT_REAL, 2, "p95, ms", "95 % of the steps are shorter"},
    {VALUE_TRAIN_LOSS, UNIT_REAL, 4, "train loss", "of the last step"},
    {VALUE_VAL_LOSS, UNIT_REAL, 4, "val loss", "of the last evaluation"},
    {VALUE_BEST_LOSS, UNIT_REAL, 4, "best", "smallest validation loss"},
    {VALUE_VAL_PPL, UNIT_REAL, 3, "val perplexity", "of the last evaluation"},
    {VALUE_VAL_STEP, UNIT_COUNT, 0, "at step", "of the last evaluation"},
    {VALUE_BEST_PPL, UNIT_REAL, 3, "best", "at the smallest validation loss"},
    {VALUE_RATIO, UNIT_REAL, 2, "ratio", "bytes of gradients in fp32 / bytes of messages"},
    {VALUE_SENT, UNIT_BYTES, 0, "sent", "bytes of gradient messages per rank and step"},
    {VALUE_ERROR, UNIT_SHARE, 2, "gradient error", "relative error of encoded gradients"},
    {VALUE_MEMORY, UNIT_BYTES, 0, "memory", "peak of a rank"},
    {VALUE_PPL_CHANGE, UNIT_CHANGE, 2, "perplexity change", "to the uncompressed runs"},
    {VALUE_STEP_CHANGE, UNIT_CHANGE, 1, "step time change", "to the uncompressed runs"}};
static const struct report_column break_even[] = {
    {VALUE_RATIO, UNIT_REAL, 2, "ratio", "bytes of gradients in fp32 / bytes of messages"},
    {VALUE_SAVED, UNIT_BYTES, 0, "saved", "bytes per rank and step"},
    {VALUE_ENCODE_MS, UNIT_REAL, 3, "encode, ms", "per step"},
    {VALUE_DECODE_MS, UNIT_REAL, 3, "decode, ms", "per step"},
    {VALUE_BREAK_EVEN, UNIT_RATE, 0, "break-even", "saved bytes / (encode + decode)"}};
static const struct report_column communication[] = {
    {VALUE_STEP_MS, UNIT_REAL, 2, "step, ms", "mean of the steps that count"},
    {VALUE_COMM_MS, UNIT_REAL, 2, "communication, ms", "per step"},
    {VALUE_COMM_SHARE, UNIT_SHARE, 1, "share of the step", "communication / step"},
    {VALUE_EXPOSED_MS, UNIT_REAL, 2, "exposed, ms", "communication while nothing computes"}};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* --- tables -------------------------------------------------------------------------------- */

static bool has_value(const struct report *report, enum report_value value)
{
  for (int g = 0; g < report->groups; g++)
    if (report->group[g].sample[value].n > 0)
      return true;
  return false;
}

static void put_name_cell(const struct report_group *group, FILE *to)
{
  put_element("td", group->label, to);
}

static void put_cell(const struct stats_sample *sample, const struct report_column *column,
                     FILE *to)
{
  const double deviation = stats_sample_deviation(sample);
  if (sample->n == 0) {
    fputs("<td>-</td>", to);
    return;
  }
  fprintf(to, "<td title=\"%.9g\">%s", sample->mean, report_number(column, sample->mean).text);
  if (deviation > 0 && column->unit == UNIT_REAL)
    fprintf(to, " \302\261 %.*f", column->digits, deviation);
  else if (deviation > 0 && column->unit == UNIT_COUNT)
    fprintf(to, " \302\261 %s", report_number(column, deviation).text);
  fputs("</td>", to);
}

static void put_column_names(const struct report *report, int n,
                             const struct report_column column[n], FILE *to)
{
  for (int c = 0; c < n; c++)
    if (has_value(report, column[c].value)) {
      fputs("<th title=\"", to);
      page_text(column[c].text, to);
      fputs("\">", to);
      page_text(column[c].name, to);
      fputs("</th>", to);
    }
}

static void put_cells(const struct report *report, const struct report_group *group, int n,
                      const struct report_column column[n], FILE *to)
{
  for (int c = 0; c < n; c++)
    if (has_value(report, column[c].value))
      put_cell(&group->sample[column[c].value], &column[c], to);
}

static bool has_seeds(const struct report *report)
{
  return report->groups < report->runs;
}

static void put_ranks_cell(const struct report *report, const struct report_group *group, FILE *to)
{
  const int64_t ranks = report->run[group->first].ranks;
  if (ranks > 0)
    fprintf(to, "<td>%lld</td>", (long long)ranks);
  else
    fputs("<td>-</td>", to);
}

static void put_summary(const struct report *report, FILE *to)
{
  const bool seeds = has_seeds(report);
  char text[400];
  snprintf(text, sizeof text,
           "%s Step times and tokens/s leave out the first %lld step%s after each start.%s",
           seeds ? "Mean and standard deviation over finished runs that differ only in the seed."
                 : "",
           (long long)report->warmup, plural(report->warmup),
           has_value(report, VALUE_RATIO)
               ? " The ratio is bytes of gradients in fp32 divided by bytes of messages."
               : "");
  put_heading("Summary", text + strspn(text, " "), to);
  fprintf(to, "<div class=\"wide\"><table id=\"summary\"><tr><th>%s</th>%s<th>ranks</th>",
          seeds ? "method" : "run", seeds ? "<th>finished</th>" : "");
  put_column_names(report, COUNT(summary), summary, to);
  fputs("</tr>\n", to);
  for (int g = 0; g < report->groups; g++) {
    const struct report_group *group = &report->group[g];
    fputs("<tr>", to);
    put_name_cell(group, to);
    if (seeds)
      fprintf(to, "<td>%d of %d</td>", group->finished, group->runs);
    put_ranks_cell(report, group, to);
    put_cells(report, group, COUNT(summary), summary, to);
    fputs("</tr>\n", to);
  }
  fputs("</table></div>\n", to);
}

/* --- charts -------------------------------------------------------------------------------- */

/* Room for the rows of one chart after the other. */
struct sketch {
  struct chart_row *row;      /* per run */
  struct report_point *point; /* CHART_PARTS per group */
};

static enum status make_sketch(const struct report *report, struct sketch *out)
{
  const enum status status = mem_new(MEM_META, report->runs, &out->row);
  return status ? status : mem_new(MEM_META, (int64_t)report->groups * CHART_PARTS, &out->point);
}

/* Colours repeat after CHART_STYLES methods. A box that is not checked hides the lines. */
static void put_legend(const struct report *report, FILE *to)
{
  fputs("<div class=\"legend\">", to);
  for (int g = 0; g < report->groups; g++) {
    fprintf(to,
            "<label><input type=\"checkbox\" id=\"m%d\" checked=\"checked\"/> " SVG
            "viewBox=\"0 0 28 "
            "10\" aria-hidden=\"true\"><g class=\"s%d\"><path d=\"M2 5H26\"/></g></svg> ",
            g, g % CHART_STYLES);
    page_text(report->group[g].label, to);
    fputs("</label>\n", to);
  }
  fputs("</div>\n", to);
}

static void put_styles(const struct report *report, FILE *to)
{
  static const char *const dashes[] = {"none", "7 4", "2 4"};
  enum { COLOURS = 7 };
  for (int s = 0; s < CHART_STYLES && s < report->groups; s++)
    fprintf(to, ".s%d path{stroke:var(--c%d);stroke-dasharray:%s}.s%d circle{fill:var(--c%d)}\n", s,
            s % COLOURS, dashes[s / COLOURS], s, s % COLOURS);
  for (int g = 0; g < report->groups; g++)
    fprintf(to, "body:has(#m%d:not(:checked)) .m%d{display:none}\n", g, g);
}

static void put_curve(const struct report *report, const struct sketch *sketch,
                      enum report_curve curve, const char *title, bool by_time, FILE *to)
{
  struct chart_row *row = sketch->row;
  for (int i = 0; i < report->runs; i++) {
    const struct report_run *run = &report->run[i];
    row[i] = (struct chart_row){.label = run->name,
                                .style = run->group,
                                .thin = report->group[run->group].runs > 1,
                                .n = run->curve[curve].n,
                                .point = run->curve[curve].point};
  }
  const struct chart chart = {.kind = CHART_LINES,
                              .title = title,
                              .x_name = by_time ? "sum of step times" : "step",
                              .by_time = by_time,
                              .rows = report->runs,
                              .row = row};
  chart_print(&chart, to);
}

static void put_curves(const struct report *report, const struct sketch *sketch, FILE *to)
{
  bool any = false;
  for (int i = 0; i < report->runs; i++)
    any |= report->run[i].value[VALUE_STEPS] > 0;
  if (!any)
    return;
  put_heading(
      "Curves",
      "The line of a long series is a mean over neighbours, and the band behind it goes from "
      "the smallest to the largest value. A gap is a value that is not finite. A box in the "
      "legend hides a line.",
      to);
  fputs("<section>", to);
  put_legend(report, to);
  fputs("<div class=\"charts\">\n", to);
  put_curve(report, sketch, CURVE_LOSS, "Training loss", false, to);
  put_curve(report, sketch, CURVE_LOSS, "Training loss against time", true, to);
  put_curve(report, sketch, CURVE_VAL, "Validation loss", false, to);
  put_curve(report, sketch, CURVE_VAL, "Validation loss against time", true, to);
  put_curve(report, sketch, CURVE_LR, "Learning rate", false, to);
  put_curve(report, sketch, CURVE_NORM, "Gradient norm", false, to);
  put_curve(report, sketch, CURVE_RATE, "Tokens per second", false, to);
  put_curve(report, sketch, CURVE_MFU, "Model FLOP/s utilization, percent", false, to);
  put_curve(report, sketch, CURVE_HOST, "Host memory of rank 0, GB", false, to);
  put_curve(report, sketch, CURVE_DEVICE, "GPU memory of rank 0, GB", false, to);
  put_curve(report, sketch, CURVE_COMPUTE, "Compute lane of rank 0, percent busy", false, to);
  put_curve(report, sketch, CURVE_ERROR, "Relative error of encoded gradients", false, to);
  fputs("</div></section>\n", to);
}

/* Quality against ratio, if at least two methods have both. */
static void put_quality(const struct report *report, const struct sketch *sketch, FILE *to)
{
  struct chart_row *row = sketch->row;
  struct report_point *point = sketch->point;
  int rows = 0;
  for (int g = 0; g < report->groups; g++) {
    const struct stats_sample *x = &report->group[g].sample[VALUE_RATIO];
    const struct stats_sample *y = &report->group[g].sample[VALUE_VAL_PPL];
    if (x->n == 0 || y->n == 0)
      continue;
    const double deviation = y->n > 1 ? stats_sample_deviation(y) : 0;
    point[rows] = (struct report_point){
        .step = x->mean, .low = y->mean - deviation, .high = y->mean + deviation};
    row[rows] = (struct chart_row){report->group[g].label, g, false, 1, &point[rows]};
    rows++;
  }
  const struct chart chart = {.kind = CHART_DOTS,
                              .title = "Validation perplexity",
                              .x_name = "compression ratio",
                              .rows = rows,
                              .row = row};
  if (rows > 1 && has_value(report, VALUE_PPL_CHANGE)) {
    put_heading("Quality against compression",
                "Mean and standard deviation over seeds. Lower is better, and further right sends "
                "fewer bytes.",
                to);
    fputs("<div class=\"charts\">\n", to);
    chart_print(&chart, to);
    fputs("</div>\n", to);
  }
}

static double known(const struct stats_sample *sample)
{
  return sample->n > 0 ? sample->mean : 0;
}

enum { PART_COMPUTING, PART_CODEC, PART_EXPOSED, PART_OTHER };
static const char *const part_names[CHART_PARTS] = {[PART_COMPUTING] = "computing",
                                                    [PART_CODEC] = "encoding and decoding",
                                                    [PART_EXPOSED] = "exposed communication",
                                                    [PART_OTHER] = "other"};

/* Without traced steps the time of the compute lane is unknown, so it gets the rest. */
static void split_step(const struct report_group *group, struct report_point part[CHART_PARTS])
{
  const struct stats_sample *sample = group->sample;
  const double step = known(&sample[VALUE_STEP_MS]);
  const bool traced = sample[VALUE_BUSY_SHARE].n > 0;
  double rest = traced ? step * (1 - sample[VALUE_BUSY_SHARE].mean) : step;
  const double exposed = fmin(rest, known(&sample[VALUE_EXPOSED_MS]));
  rest -= exposed;
  const double codec = fmin(rest, known(&sample[VALUE_CODEC_MS]));
  rest -= codec;
  part[PART_COMPUTING].high = traced ? step * sample[VALUE_BUSY_SHARE].mean : rest;
  part[PART_CODEC].high = codec;
  part[PART_EXPOSED].high = exposed;
  part[PART_OTHER].high = traced ? rest : 0;
}

static void put_parts_legend(FILE *to)
{
  fputs("<div class=\"legend\">", to);
  for (int p = 0; p < CHART_PARTS; p++)
    fprintf(to,
            "<span>" SVG "viewBox=\"0 0 28 10\" aria-hidden=\"true\"><rect class=\"p%d\" x=\"2\" "
            "width=\"24\" height=\"10\"/></svg> %s</span>\n",
            p, part_names[p]);
  fputs("</div>\n", to);
}

static void put_steps(const struct report *report, const struct sketch *sketch, FILE *to)
{
  struct chart_row *row = sketch->row;
  struct report_point *part = sketch->point;
  int rows = 0;
  for (int g = 0; g < report->groups; g++) {
    const struct report_group *group = &report->group[g];
    if (group->sample[VALUE_STEP_MS].n == 0 ||
        group->sample[VALUE_EXPOSED_MS].n + group->sample[VALUE_BUSY_SHARE].n == 0)
      continue;
    split_step(group, &part[rows * CHART_PARTS]);
    row[rows] = (struct chart_row){group->label, g, false, CHART_PARTS, &part[rows * CHART_PARTS]};
    rows++;
  }
  const struct chart chart = {
      .kind = CHART_BARS, .title = "Mean step", .x_name = "milliseconds", .rows = rows, .row = row};
  if (rows > 0) {
    put_heading(
        "Where the time of a step goes",
        "Exposed communication is communication while nothing computes. Encoding and "
        "decoding next to computing take no time of the step. Shares come from all steps if "
        "they are recorded, otherwise from traced steps. Without traced steps, computing is "
        "the rest of the step. Other time is waiting, copies and updates, and the codec if "
        "its times are not recorded.",
        to);
    put_parts_legend(to);
    fputs("<div class=\"charts\">\n", to);
    chart_print(&chart, to);
    fputs("</div>\n", to);
  }
}

/* --- break-even of codecs ------------------------------------------------------------------ */

static void put_break_even(const struct report *report, FILE *to)
{
  if (!has_value(report, VALUE_BREAK_EVEN))
    return;
  put_heading("Break-even bandwidth",
              "Bandwidth = saved bytes / (encode time + decode time), per rank and step. On a link "
              "that is slower, the step with the codec is shorter than the step without it. On a "
              "faster link the codec costs more than it saves. This holds if neither runs next to "
              "computing.",
              to);
  fputs("<div class=\"wide\"><table id=\"breakeven\"><tr><th>method</th><th>ranks</th>", to);
  put_column_names(report, COUNT(break_even), break_even, to);
  fputs("</tr>\n", to);
  for (int g = 0; g < report->groups; g++) {
    if (report->group[g].sample[VALUE_BREAK_EVEN].n == 0)
      continue;
    fputs("<tr>", to);
    put_name_cell(&report->group[g], to);
    put_ranks_cell(report, &report->group[g], to);
    put_cells(report, &report->group[g], COUNT(break_even), break_even, to);
    fputs("</tr>\n", to);
  }
  fputs("</table></div>\n", to);
}

/* Share of an operation in the recorded communication of a run. NAN: it is not recorded. */
static double operation_share(const struct report_run *run, const char *name)
{
  double sum = 0, own = NAN;
  for (int i = 0; i < run->ops; i++) {
    sum += run->op[i].time;
    if (!strcmp(run->op[i].name, name))
      own = run->op[i].time;
  }
  return sum > 0 ? own / sum : NAN;
}

/* "EXCHANGE 20.1 %, GATHER 9.3 %": shares of the step, mean over the runs of a group. */
static void put_operations(const struct report *report, int g, FILE *to)
{
  const struct report_run *first = &report->run[report->group[g].first];
  const struct stats_sample *all = &report->group[g].sample[VALUE_COMM_SHARE];
  fputs("<td class=\"text\">", to);
  for (int i = 0; i < first->ops; i++) {
    double sum = 0;
    int n = 0;
    for (int r = 0; r < report->runs; r++) {
      const double share = operation_share(&report->run[r], first->op[i].name);
      if (report->run[r].group != g || !isfinite(share))
        continue;
      sum += share;
      n++;
    }
    fputs(i ? ", " : "", to);
    page_text(first->op[i].name, to);
    fprintf(to, " %.1f %%", n ? 100 * all->mean * sum / n : 0);
  }
  fputs("</td>", to);
}

static bool any_operations(const struct report *report)
{
  for (int i = 0; i < report->runs; i++)
    if (report->run[i].ops > 0)
      return true;
  return false;
}

static void put_communication_row(const struct report *report, int g, FILE *to)
{
  fputs("<tr>", to);
  put_name_cell(&report->group[g], to);
  put_ranks_cell(report, &report->group[g], to);
  put_cells(report, &report->group[g], COUNT(communication), communication, to);
  if (any_operations(report))
    put_operations(report, g, to);
  fputs("</tr>\n", to);
}

/* Rank counts of one deck follow each other. */
static void put_communication(const struct report *report, FILE *to)
{
  if (!has_value(report, VALUE_COMM_SHARE))
    return;
  put_heading("Communication",
              "If communication limits a run, its share of the step grows with the number of ranks "
              "of the same deck. An operation's number is its share of the step.",
              to);
  fputs("<div class=\"wide\"><table id=\"communication\"><tr><th>method</th><th>ranks</th>", to);
  put_column_names(report, COUNT(communication), communication, to);
  fputs(any_operations(report) ? "<th class=\"text\">by operation</th></tr>\n" : "</tr>\n", to);
  for (int g = 0; g < report->groups; g++) {
    const struct report_run *run = &report->run[report->group[g].first];
    bool earlier = false;
    for (int b = 0; b < g; b++)
      earlier |= report_same_deck(run, &report->run[report->group[b].first], false);
    for (int b = g; b < report->groups && !earlier; b++)
      if (b == g || report_same_deck(run, &report->run[report->group[b].first], false))
        put_communication_row(report, b, to);
  }
  fputs("</table></div>\n", to);
}

/* --- events -------------------------------------------------------------------------------- */

/* "3, at steps 10, 20, 30". Starts after the first one are resumes. */
static void put_event_cell(const struct report_events *event, int64_t from, const char *what,
                           FILE *to)
{
  const int64_t n = event->n > from ? event->n - from : 0;
  fprintf(to, "<td class=\"text\">%lld", (long long)n);
  for (int64_t i = from; i < event->n && i < EVENT_STEPS; i++)
    fprintf(to, "%s%lld", i == from ? n > 1 ? ", at steps " : ", at step " : ", ",
            (long long)event->step[i]);
  fputs(event->n > EVENT_STEPS ? ", ..." : "", to);
  if (event->seconds > 0)
    fprintf(to, " (%.3g s %s)", event->seconds, what);
  fputs("</td>", to);
}

static void put_events(const struct report *report, FILE *to)
{
  put_heading("Events", "A resume is a start at a later step.", to);
  fputs("<div class=\"wide\"><table id=\"events\"><tr><th>run</th><th>end</th>"
        "<th class=\"text\">resumes</th><th class=\"text\">saves</th>"
        "<th class=\"text\">evaluations</th><th class=\"text\">steps not finite</th>"
        "<th>skipped</th></tr>\n",
        to);
  for (int i = 0; i < report->runs; i++) {
    const struct report_run *run = &report->run[i];
    fputs("<tr>", to);
    put_element("td", run->name, to);
    put_element("td", *run->end ? run->end : "no record", to);
    put_event_cell(&run->event[EVENT_START], 1, "", to);
    put_event_cell(&run->event[EVENT_SAVE], 0, "of training held", to);
    put_event_cell(&run->event[EVENT_EVAL], 0, "in all", to);
    put_event_cell(&run->event[EVENT_NONFINITE], 0, "", to);
    fprintf(to, "<td>%lld</td></tr>\n", (long long)run->skipped);
  }
  fputs("</table></div>\n", to);
}

/* --- settings ------------------------------------------------------------------------------ */

static bool is_shown(const struct report *report, int key)
{
  const char *name = deck_table[key].name, *value = NULL;
  bool differs = false;
  if (!strcmp(name, "run.dir") || !strcmp(name, "run.seed"))
    return false;
  for (int i = 0; i < report->runs && !differs; i++) {
    char **keys = report->run[i].key;
    differs = keys && value && strcmp(value, keys[key]) != 0;
    value = keys ? keys[key] : value;
  }
  return differs;
}

static void put_key_row(const struct report *report, int key, FILE *to)
{
  fputs("<tr>", to);
  put_element("td", deck_table[key].name, to);
  for (int g = 0; g < report->groups; g++) {
    char **keys = report->run[report->group[g].first].key;
    put_element("td class=\"text\"", keys ? keys[key] : "-", to);
  }
  fputs("</tr>\n", to);
}

static void put_differences(const struct report *report, FILE *to)
{
  bool any = false;
  for (int k = 0; deck_table[k].name; k++) {
    if (!is_shown(report, k))
      continue;
    if (!any) {
      put_heading("Keys that differ", "Of the resolved decks, without run.dir and run.seed.", to);
      fputs("<div class=\"wide\"><table id=\"keys\"><tr><th>key</th>", to);
      for (int g = 0; g < report->groups; g++)
        put_element("th class=\"text\"", report->group[g].label, to);
      fputs("</tr>\n", to);
    }
    any = true;
    put_key_row(report, k, to);
  }
  fputs(any ? "</table></div>\n" : "", to);
}

static void put_facts(const struct report_run *run, FILE *to)
{
  fputs("<table>", to);
  for (int i = 0; i < REPORT_FACTS; i++)
    if (run->fact[i]) {
      fputs("<tr>", to);
      put_element("td", report_facts[i].name, to);
      put_element("td class=\"text\"", run->fact[i], to);
      fputs("</tr>", to);
    }
  fputs("</table>\n", to);
}

static void put_decks(const struct report *report, FILE *to)
{
  put_heading("Runs in detail",
              has_seeds(report) ? "The first run of each method, and its resolved deck."
                                : "Each run and its resolved deck.",
              to);
  for (int g = 0; g < report->groups; g++) {
    const struct report_run *run = &report->run[report->group[g].first];
    fputs("<details><summary>", to);
    page_text(report->group[g].label, to);
    fputs("</summary>\n", to);
    put_element("p", run->path, to);
    put_facts(run, to);
    if (run->deck_text)
      put_element("pre", run->deck_text, to);
    fputs("</details>\n", to);
  }
}

static void put_notes(const struct report *report, FILE *to)
{
  bool any = false;
  for (int i = 0; i < report->runs; i++) {
    struct report_note note[REPORT_NOTES];
    const int n = report_notes(&report->run[i], note);
    for (int k = 0; k < n; k++) {
      fputs(any ? "<br/>" : "<div class=\"notes\">", to);
      page_text(note[k].text, to);
      fputs("\n", to);
      any = true;
    }
  }
  fputs(any ? "</div>\n" : "", to);
}

static void put_title(const struct report *report, FILE *to)
{
  fputs("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head>"
        "<meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"
        "<title>Training report</title>\n<style>\n",
        to);
  fputs(style, to);
  put_styles(report, to);
  fputs("</style></head>\n<body>\n<h1>Training report</h1>\n", to);
  fprintf(to, "<p>%d run%s", report->runs, plural(report->runs));
  if (has_seeds(report))
    fprintf(to, ", %d method%s", report->groups, plural(report->groups));
  fprintf(to, ". Written by Sluice %s.</p>\n", PACKAGE_VERSION);
}

static void put_all(const struct report *report, const struct sketch *sketch, FILE *to)
{
  put_title(report, to);
  put_notes(report, to);
  put_summary(report, to);
  put_curves(report, sketch, to);
  put_quality(report, sketch, to);
  put_steps(report, sketch, to);
  put_break_even(report, to);
  put_communication(report, to);
  put_events(report, to);
  put_differences(report, to);
  put_decks(report, to);
  fputs("</body></html>\n", to);
}

enum status page_print(const struct report *report, FILE *to)
{
  struct sketch sketch = {0};
  const enum status status = make_sketch(report, &sketch);
  if (!status)
    put_all(report, &sketch, to);
  mem_free(sketch.row);
  mem_free(sketch.point);
  return status;
}
