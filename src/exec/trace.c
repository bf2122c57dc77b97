/* The trace of steps: a span per instruction, and a summary of what ran next to computing. */
#include "exec/trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/results/trace.h"
#include "io/text/file.h"
#include "layout/mesh.h"
#include "plan/ops.h"

struct interval {
  double begin_s, end_s;
};

struct intervals {
  struct interval *item;
  int64_t n, room;
};

/* The beginning of the last traced step on the compute lane, and whether it was released while a
 * traced step was running. */
struct beginning {
  int64_t step;
  double begin_s;
  bool follows;
};

struct trace_run {
  const struct plan *plan;
  const struct trace_facts *facts;
  struct trace *timeline;
  char *summary_path;
  double begin_s, end_s;
  struct intervals compute, beside[PART_NOTHING];
  struct beginning last;
  struct intervals steady; /* from the beginning of a step between traced steps to the beginning of
                              the next one */
  struct trace_summary sum;
  struct status_record failure;
};

/* --- intervals ----------------------------------------------------------- */

static enum status add_interval(struct intervals *to, double begin_s, double end_s)
{
  const enum status status =
      mem_grow(MEM_META, (void **)&to->item, &to->room, to->n + 1, sizeof *to->item);
  if (!status)
    to->item[to->n++] = (struct interval){begin_s, end_s};
  return status;
}

static int by_begin(const void *a, const void *b)
{
  const double x = ((const struct interval *)a)->begin_s, y = ((const struct interval *)b)->begin_s;
  return (x > y) - (x < y);
}

/* Sorted, and none touches another. */
static void unite(struct intervals *set)
{
  int64_t kept = 0;
  if (set->n > 0)
    qsort(set->item, (size_t)set->n, sizeof *set->item, by_begin);
  for (int64_t i = 0; i < set->n; i++) {
    struct interval *last = &set->item[kept - (kept > 0)];
    if (kept > 0 && set->item[i].begin_s <= last->end_s)
      last->end_s = fmax(last->end_s, set->item[i].end_s);
    else
      set->item[kept++] = set->item[i];
  }
  set->n = kept;
}

static double length(const struct intervals *set)
{
  double sum = 0;
  for (int64_t i = 0; i < set->n; i++)
    sum += set->item[i].end_s - set->item[i].begin_s;
  return sum;
}

enum { MOST_SETS = 3 };

/* The time in which all of these unions of intervals run. */
static double common_length(int n, const struct intervals *const set[])
{
  double sum = 0;
  for (int64_t at[MOST_SETS] = {0};;) {
    double begin_s = -INFINITY, end_s = INFINITY;
    int first = 0; /* to end */
    for (int i = 0; i < n; i++) {
      if (at[i] == set[i]->n)
        return sum;
      const struct interval *x = &set[i]->item[at[i]];
      begin_s = fmax(begin_s, x->begin_s);
      first = x->end_s < end_s ? i : first;
      end_s = fmin(end_s, x->end_s);
    }
    sum += fmax(0, end_s - begin_s);
    at[first]++;
  }
}

/* --- events -------------------------------------------------------------- */

static void add_text(struct trace_span *span, const char *key, const char *text)
{
  span->arg[span->args++] = (struct trace_arg){.key = key, .text = text};
}

static void add_number(struct trace_span *span, const char *key, int64_t number)
{
  span->arg[span->args++] = (struct trace_arg){.key = key, .number = number};
}

/* Texts of a span. */
struct texts {
  char clip[32], lr_scale[32], beta[32];
  struct mesh_name group;
};

/* All attributes that change results or sizes. */
static void add_attributes(struct trace_span *span, const struct instr *instr, struct texts *texts)
{
  const struct attributes *attr = &instr->attr;
  if (attr->group != MESH_NONE) {
    texts->group = mesh_name(attr->group);
    add_text(span, "group", texts->group.text);
  }
  if (attr->codec.ops)
    add_text(span, "codec", attr->codec.ops->name);
  if (attr->codec.values && !(attr->codec.values->traits & CODEC_IDENTITY))
    add_text(span, "values", attr->codec.values->name);
  if (attr->fp8)
    add_text(span, "fp8", attr->fp8 == FP8_ALL ? "all" : "products");
  if (attr->clip > 0) {
    snprintf(texts->clip, sizeof texts->clip, "%g", attr->clip);
    add_text(span, "clip", texts->clip);
  }
  if (attr->beta > 0) {
    snprintf(texts->beta, sizeof texts->beta, "%g", attr->beta);
    add_text(span, "beta", texts->beta);
  }
  if (!op_rows[instr->op].updates)
    return;
  add_text(span, "optimizer", optim_ops(attr->optimizer)->name);
  if (attr->lr_scale != 0 && attr->lr_scale != 1) {
    snprintf(texts->lr_scale, sizeof texts->lr_scale, "%g", attr->lr_scale);
    add_text(span, "lr_scale", texts->lr_scale);
  }
  add_text(span, "rounding", attr->stochastic ? "stochastic" : "nearest");
  if (attr->stochastic)
    add_number(span, "seed", (int64_t)attr->seed);
}

static void draw(struct trace_run *run, const struct exec_event *event)
{
  const struct plan *plan = run->plan;
  const struct instr *instr = &plan->instr[event->instr];
  char name[96];
  struct texts texts;
  plan_instr_name(plan, event->instr, name, sizeof name);
  struct trace_span span = {.name = name,
                            .category = plan_op_name(instr->op),
                            .pid = plan->input.rank,
                            .tid = instr->lane,
                            .begin_s = event->begin_s,
                            .end_s = event->end_s};
  add_number(&span, "step", event->step);
  if (instr->unit >= 0)
    add_text(&span, "unit", plan->input.model->unit[instr->unit].name);
  if (instr->micro >= 0)
    add_number(&span, "micro", instr->micro);
  if (plan_instr_ranks(plan, instr) > 1)
    add_number(&span, "bytes", plan_instr_bytes(plan, instr));
  add_attributes(&span, instr, &texts);
  for (int e = 0; event->spent && e < op_counters_events(run->facts->counters); e++)
    if (event->spent[e] >= 0)
      add_number(&span, op_counters_key(run->facts->counters, e), event->spent[e]);
  trace_span(run->timeline, &span);
}

static void count_step(struct trace_run *run, const struct exec_event *event)
{
  struct trace_summary *sum = &run->sum;
  if (sum->steps == 0)
    sum->first = event->step;
  if (sum->steps == 0 || event->step != sum->last)
    sum->steps++;
  sum->last = event->step;
  run->begin_s = fmin(run->begin_s, event->begin_s);
  run->end_s = fmax(run->end_s, event->end_s);
}

static void count_instr(struct trace_run *run, const struct exec_event *event)
{
  const struct instr *instr = &run->plan->instr[event->instr];
  const double seconds = event->end_s - event->begin_s, ranks = plan_instr_ranks(run->plan, instr);
  struct trace_kind *kind = &run->sum.kind[instr->op];
  kind->count++;
  kind->seconds += seconds;
  if (ranks > 1 && instr->op != OP_METRICS)
    kind->wire_bytes += (double)plan_instr_bytes(run->plan, instr) * (ranks - 1) / ranks;
  run->sum.busy_s[instr->lane] += seconds;
  for (int e = 0; event->spent && e < op_counters_events(run->facts->counters); e++) {
    const int64_t spent = event->spent[e] > 0 ? event->spent[e] : 0;
    kind->spent[e] += spent;
    run->sum.spent[instr->lane][e] += spent;
  }
}

/* Only for the compute lane, whose instructions and steps come in order. */
static enum status note_beginning(struct trace_run *run, const struct exec_event *event)
{
  struct beginning *last = &run->last;
  const bool first = run->compute.n == 0,
             follows = !first && !event->rested && event->step == last->step + 1;
  enum status status = STATUS_OK;
  if (!first && event->step == last->step)
    return STATUS_OK;
  if (follows && last->follows) {
    status = add_interval(&run->steady, last->begin_s, event->begin_s);
    run->sum.steady_steps++;
  }
  *last = (struct beginning){event->step, event->begin_s, follows};
  return status;
}

void trace_run_event(void *arg, const struct exec_event *event)
{
  struct trace_run *run = arg;
  const struct instr *instr = &run->plan->instr[event->instr];
  const enum plan_part part = op_rows[instr->op].part;
  draw(run, event);
  count_step(run, event);
  count_instr(run, event);
  if (instr->lane == LANE_COMPUTE) {
    status_keep(&run->failure, note_beginning(run, event));
    status_keep(&run->failure, add_interval(&run->compute, event->begin_s, event->end_s));
  } else if (part != PART_NOTHING &&
             (part != PART_COMM || plan_instr_ranks(run->plan, instr) > 1)) {
    status_keep(&run->failure, add_interval(&run->beside[part], event->begin_s, event->end_s));
  }
}

/* --- the summary --------------------------------------------------------- */

/* The work per step in `steady`. */
static void sum_up_besides(struct trace_run *run, int64_t steps)
{
  struct trace_summary *sum = &run->sum;
  const double n = (double)steps;
  unite(&run->compute);
  unite(&run->steady);
  sum->step_s = length(&run->steady) / n;
  sum->idle_s =
      sum->step_s -
      common_length(2, (const struct intervals *const[]){&run->compute, &run->steady}) / n;
  for (int part = 0; part < PART_NOTHING; part++) {
    struct intervals *others = &run->beside[part];
    unite(others);
    const double seconds =
                     common_length(2, (const struct intervals *const[]){others, &run->steady}),
                 covered = common_length(
                     3, (const struct intervals *const[]){others, &run->steady, &run->compute});
    sum->beside[part] =
        (struct trace_beside){.seconds = seconds / n, .exposed_s = (seconds - covered) / n};
  }
}

static void sum_up(struct trace_run *run)
{
  struct trace_summary *sum = &run->sum;
  if (sum->steps == 0)
    return;
  sum->seconds = run->end_s - run->begin_s;
  sum->link_bytes_s = run->facts->link_bytes_s;
  if (sum->steady_steps == 0)
    status_keep(&run->failure, add_interval(&run->steady, run->begin_s, run->end_s));
  sum_up_besides(run, sum->steady_steps > 0 ? sum->steady_steps : sum->steps);
}

static const struct {
  const char *key, *text;
} part_names[] = {[PART_COMM] = {"comm", "communication"},
                  [PART_COPY] = {"copy", "copies"},
                  [PART_UPDATE] = {"update", "updates"},
                  [PART_DISK] = {"disk", "disk"}};

/* NAN if there is nothing to hide. */
static double hidden(const struct trace_beside *beside)
{
  return beside->seconds > 0 ? 1 - beside->exposed_s / beside->seconds : NAN;
}

static void say_ratio(FILE *to, int width, double part, double whole)
{
  if (whole > 0)
    fprintf(to, "%*.1f %%", width, 100 * part / whole);
  else
    fprintf(to, "%*s", width + 2, "n/a");
}

/* A column of milliseconds per step, and one of their share. */
static void say_time(FILE *to, const struct trace_summary *sum, double seconds)
{
  fprintf(to, "%12.3f ", 1e3 * seconds / (double)sum->steps);
  say_ratio(to, 11, seconds, sum->seconds);
}

static void say_kinds(FILE *to, const struct trace_summary *sum, double link_bytes_s)
{
  fprintf(to, "\n%-16s %10s %12s %13s %10s %13s\n", "instruction", "count", "ms per step",
          "of the step", "GB/s", "of the link");
  for (int op = 0; op < OP_COUNT; op++) {
    const struct trace_kind *kind = &sum->kind[op];
    if (kind->count == 0)
      continue;
    fprintf(to, "%-16s %10" PRId64 " ", plan_op_name(op), kind->count);
    say_time(to, sum, kind->seconds);
    if (kind->wire_bytes > 0 && kind->seconds > 0) {
      fprintf(to, " %10.2f ", 1e-9 * kind->wire_bytes / kind->seconds);
      say_ratio(to, 11, kind->wire_bytes / kind->seconds, link_bytes_s);
    }
    fprintf(to, "\n");
  }
}

static const char *const class_names[CLASS_COUNT] = {[CLASS_PRODUCTS] = "products",
                                                     [CLASS_ATTENTION] = "attention",
                                                     [CLASS_NORMS] = "norms",
                                                     [CLASS_ACTIVATIONS] = "activations",
                                                     [CLASS_CLASSIFIER] = "classifier",
                                                     [CLASS_EMBEDDING] = "embedding",
                                                     [CLASS_SUMS] = "sums",
                                                     [CLASS_UPDATE] = "update"};

static void say_classes(FILE *to, const struct trace_run *run)
{
  const double steps = (double)run->sum.steps;
  bool any = false;
  for (int c = 0; c < CLASS_COUNT; c++) {
    const struct class_total *total = &run->facts->operations[c];
    const bool arithmetic = c == CLASS_PRODUCTS || c == CLASS_ATTENTION;
    if (total->calls == 0)
      continue;
    if (!any)
      fprintf(to, "\n%-16s %10s %12s %13s %10s\n", "operations", "per step", "ms per step",
              "of the step", "rate");
    any = true;
    fprintf(to, "%-16s %10.1f ", class_names[c], (double)total->calls / steps);
    say_time(to, &run->sum, total->seconds);
    if (total->seconds > 0)
      fprintf(to, " %10.1f %s", (arithmetic ? 1e-12 : 1e-9) * total->work / total->seconds,
              arithmetic ? "TFLOP/s" : "GB/s");
    fprintf(to, "\n");
  }
  if (any)
    fprintf(to, "Operations are timed one by one, which makes the traced steps a little slower. "
                "Operations that run at the same time on several lanes each count in full.\n");
}

static void say_lanes(FILE *to, const struct trace_summary *sum)
{
  fprintf(to, "\n%-27s %12s %13s\n", "lane", "ms per step", "of the step");
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    fprintf(to, "%-27s ", plan_lane_name(lane));
    say_time(to, sum, sum->busy_s[lane]);
    fprintf(to, "\n");
  }
}

static int column_width(const struct trace_run *run, int event)
{
  const int length = (int)strlen(op_counters_key(run->facts->counters, event));
  return length > 12 ? length : 12;
}

static void say_spent(FILE *to, const struct trace_run *run, const char *name,
                      const int64_t spent[OP_COUNTERS])
{
  fprintf(to, "%-16s", name);
  for (int e = 0; e < op_counters_events(run->facts->counters); e++)
    fprintf(to, " %*.6g", column_width(run, e), (double)spent[e] / (double)run->sum.steps);
  fprintf(to, "\n");
}

static void say_counters(FILE *to, const struct trace_run *run)
{
  const struct trace_summary *sum = &run->sum;
  if (!run->facts->counters)
    return;
  fprintf(to, "\n%-16s", "counted per step");
  for (int e = 0; e < op_counters_events(run->facts->counters); e++)
    fprintf(to, " %*s", column_width(run, e), op_counters_key(run->facts->counters, e));
  fprintf(to, "\n");
  for (int op = 0; op < OP_COUNT; op++)
    if (sum->kind[op].count > 0)
      say_spent(to, run, plan_op_name(op), sum->kind[op].spent);
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (sum->busy_s[lane] > 0)
      say_spent(to, run, plan_lane_name(lane), sum->spent[lane]);
  fprintf(to, "The counts are of the threads that drive lanes and of their workers, while they run "
              "instructions. Threads of libraries and GPUs are not counted.\n");
  if (*op_counters_note(run->facts->counters))
    fprintf(to, "%s\n", op_counters_note(run->facts->counters));
}

static void say_overlap(FILE *to, const struct trace_summary *sum, double link_bytes_s)
{
  const struct trace_beside *communication = &sum->beside[PART_COMM];
  fprintf(to,
          "\ncommunication %.3f ms per step, of which %.3f ms are exposed (the compute lane runs "
          "nothing); ",
          1e3 * communication->seconds, 1e3 * communication->exposed_s);
  if (communication->seconds > 0)
    fprintf(to, "overlap %.3f\n", hidden(communication));
  else
    fprintf(to, "overlap n/a\n");
  if (link_bytes_s > 0)
    fprintf(to, "link: %.2f GB/s measured\n", 1e-9 * link_bytes_s);
  else
    fprintf(to, "link: n/a\n");
  fprintf(to, "Times of collectives include waits for other ranks.\n");
}

static void say_besides(FILE *to, const struct trace_summary *sum)
{
  for (int part = PART_COPY; part < PART_NOTHING; part++) {
    const struct trace_beside *beside = &sum->beside[part];
    if (beside->seconds > 0)
      fprintf(to, "%s %.3f ms per step, of which %.3f ms are exposed: %.1f %% hidden\n",
              part_names[part].text, 1e3 * beside->seconds, 1e3 * beside->exposed_s,
              100 * hidden(beside));
  }
  fprintf(to, "the compute lane runs nothing for %.3f ms of %.3f ms per step\n", 1e3 * sum->idle_s,
          1e3 * sum->step_s);
  if (sum->steady_steps > 0)
    fprintf(to,
            "These times are of %" PRId64 " step%s between the first and the last traced step.\n",
            sum->steady_steps, sum->steady_steps == 1 ? "" : "s");
  else
    fprintf(
        to,
        "These times are of all traced steps. Work that the last step puts off counts as exposed. "
        "If three or more steps are traced, the first and the last one are left out.\n");
}

static enum status write_summary(const struct trace_run *run)
{
  const struct trace_summary *sum = &run->sum;
  char *text = NULL;
  size_t bytes = 0;
  FILE *to = open_memstream(&text, &bytes);
  if (!to)
    return status_set(STATUS_MEMORY, "no memory for a trace's summary");
  fprintf(to, "rank %d of %d", run->plan->input.rank, run->plan->input.ranks);
  if (sum->steps == 0) {
    fprintf(to, ": no step was traced\n");
  } else {
    fprintf(to, ": steps %" PRId64 " to %" PRId64 " in %.3f ms, %.3f ms per step\n", sum->first,
            sum->last, 1e3 * sum->seconds, 1e3 * sum->seconds / (double)sum->steps);
    say_kinds(to, sum, run->facts->link_bytes_s);
    say_classes(to, run);
    say_lanes(to, sum);
    say_counters(to, run);
    say_overlap(to, sum, run->facts->link_bytes_s);
    say_besides(to, sum);
  }
  const enum status status = fclose(to) == 0
                                 ? file_write_all(run->summary_path, text, bytes)
                                 : status_set(STATUS_MEMORY, "no memory for a trace's summary");
  free(text);
  return status;
}

/* --- life ---------------------------------------------------------------- */

static enum status open_files(struct trace_run *run, const char *dir)
{
  const int rank = run->plan->input.rank;
  enum status status = file_make_folders(dir);
  if (status)
    return status;
  run->summary_path = mem_printf("%s/summary-%05d.txt", dir, rank);
  char *path = mem_printf("%s/rank-%05d.json", dir, rank);
  status = path && run->summary_path ? trace_create(path, &run->timeline) : STATUS_MEMORY;
  mem_free(path);
  return status;
}

static void release(struct trace_run *run)
{
  for (int part = 0; part < PART_NOTHING; part++)
    mem_free(run->beside[part].item);
  mem_free(run->compute.item);
  mem_free(run->steady.item);
  mem_free(run->summary_path);
  mem_free(run);
}

enum status trace_run_open(const char *dir, const struct plan *plan,
                           const struct trace_facts *facts, struct trace_run **out)
{
  struct trace_run *run;
  enum status status = mem_new(MEM_META, 1, &run);
  if (status)
    return status;
  run->plan = plan;
  run->facts = facts;
  run->begin_s = INFINITY;
  run->end_s = -INFINITY;
  status = open_files(run, dir);
  if (status) {
    release(run);
    return status;
  }
  char name[32];
  const int rank = plan->input.rank;
  snprintf(name, sizeof name, "rank %d", rank);
  trace_process(run->timeline, rank, name);
  for (int lane = 0; lane < LANE_COUNT; lane++)
    trace_lane(run->timeline, rank, lane, plan_lane_name(lane));
  *out = run;
  return STATUS_OK;
}

enum status trace_run_close(struct trace_run *run, struct trace_summary *out)
{
  *out = (struct trace_summary){0};
  if (!run)
    return STATUS_OK;
  status_keep(&run->failure, trace_close(run->timeline));
  sum_up(run);
  const enum status status = status_restore(&run->failure) ?: write_summary(run);
  if (!status)
    *out = run->sum;
  release(run);
  return status;
}

void trace_record(struct json_writer *line, void *summary)
{
  const struct trace_summary *sum = summary;
  results_time(line);
  json_write_int(line, "step", sum->last + 1);
  json_write_int(line, "first", sum->first);
  json_write_int(line, "steps", sum->steps);
  json_write_real(line, "seconds", sum->seconds);
  json_write_int(line, "steady_steps", sum->steady_steps);
  json_write_real(line, "step_s", sum->step_s);
  json_write_real(line, "exposed_idle_s", sum->idle_s);
  for (int part = 0; part < PART_NOTHING; part++) {
    char key[32];
    snprintf(key, sizeof key, "busy_%s_s", part_names[part].key);
    json_write_real(line, key, sum->beside[part].seconds);
    snprintf(key, sizeof key, "exposed_%s_s", part_names[part].key);
    json_write_real(line, key, sum->beside[part].exposed_s);
  }
  json_write_real(line, "overlap", hidden(&sum->beside[PART_COMM]));
  json_write_real(line, "link_bytes_per_s", sum->link_bytes_s);
  json_write_real(line, "gather_bytes_per_s",
                  (sum->kind[OP_GATHER].wire_bytes + sum->kind[OP_GATHER_MESSAGES].wire_bytes) /
                      (sum->kind[OP_GATHER].seconds + sum->kind[OP_GATHER_MESSAGES].seconds));
  json_write_real(line, "reduce_bytes_per_s",
                  sum->kind[OP_EXCHANGE].wire_bytes / sum->kind[OP_EXCHANGE].seconds);
}
