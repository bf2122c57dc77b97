#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/append.h"
#include "base/mem.h"
#include "cmd/records.h"
#include "cmd/report.h"
#include "io/text/file.h"
#include "io/text/json_tree.h"
#include "train/stats.h"

enum { DECK_MOST_BYTES = 1 << 20 };

const struct report_fact report_facts[REPORT_FACTS] = {{"version", "Sluice"},
                                                       {"commit", "commit"},
                                                       {"time", "started"},
                                                       {"date", "date"},
                                                       {"hosts", "hosts"},
                                                       {"ranks", "ranks"},
                                                       {"threads", "threads"},
                                                       {"device", "device"},
                                                       {"gpus", "GPUs"},
                                                       {"compute", "computes in"},
                                                       {"mpi", "MPI"},
                                                       {"transport", "transport"},
                                                       {"parameters", "parameters"},
                                                       {"end", "end"}};

/* Numbers of step records, or of run records if no step has them. */
static const struct {
  const char *name;
  enum report_value value;
} keys[] = {{"comm_ratio", VALUE_COMM_SHARE},
            {"overlap_ratio", VALUE_OVERLAP},
            {"compress_time_ms", VALUE_ENCODE_MS},
            {"decompress_time_ms", VALUE_DECODE_MS},
            {"grad_rel_error", VALUE_ERROR}};
enum { KEYS = sizeof keys / sizeof *keys };

/* A traced step, as the last trace record has it. */
struct traced {
  double step_s, idle_s, comm_s, exposed_s;
};

/* Sums over the units of one step so far. */
struct errors {
  int64_t step, units;
  double seconds, sum;
};

struct reading {
  struct report_run *run;
  struct errors errors;
  int64_t warmup, since; /* since: steps since the last start */
  double seconds;        /* of all steps so far */
  int64_t counted, room; /* steps after the warm-up */
  double *time, counted_s, counted_tokens;
  double sum[KEYS], in_run[KEYS]; /* sum: over steps */
  int64_t sums[KEYS];
  double raw, messages, rank_steps; /* bytes of all ranks, and ranks x steps that sent them */
  struct traced traced;
};

static void add_event(struct report_run *run, enum report_event kind, int64_t step, double seconds)
{
  struct report_events *event = &run->event[kind];
  if (event->n < EVENT_STEPS)
    event->step[event->n] = step;
  event->n++;
  event->seconds += isfinite(seconds) ? seconds : 0;
}

static enum status add_time(struct reading *reading, double seconds, double rate)
{
  if (reading->since++ < reading->warmup || !isfinite(seconds))
    return STATUS_OK;
  const enum status status = mem_grow(MEM_META, (void **)&reading->time, &reading->room,
                                      reading->counted + 1, sizeof *reading->time);
  if (status)
    return status;
  reading->time[reading->counted++] = seconds;
  if (isfinite(rate)) {
    reading->counted_s += seconds;
    reading->counted_tokens += rate * seconds;
  }
  return STATUS_OK;
}

static void add_keys(struct reading *reading, const struct json_node *record)
{
  for (int i = 0; i < KEYS && reading->since > reading->warmup; i++) {
    const double value = record_real(record, keys[i].name);
    if (!isfinite(value))
      continue;
    reading->sum[i] += value;
    reading->sums[i]++;
  }
}

static enum status take_step(struct reading *reading, const struct json_node *record)
{
  static const struct {
    const char *key;
    double scale;
  } curves[CURVES] = {[CURVE_LOSS] = {"loss", 1},
                      [CURVE_LR] = {"lr", 1},
                      [CURVE_NORM] = {"grad_norm", 1},
                      [CURVE_RATE] = {"tokens_per_s", 1},
                      [CURVE_MFU] = {"mfu", 100},
                      [CURVE_HOST] = {"host_bytes", 1e-9},
                      [CURVE_DEVICE] = {"device_bytes", 1e-9}};
  struct report_run *run = reading->run;
  const int64_t step = record_whole(record, "step");
  const double seconds = record_real(record, "seconds"), rate = record_real(record, "tokens_per_s");
  enum status status = STATUS_OK;
  if (step == 0) /* steps count from 1 */
    return STATUS_OK;
  if (run->event[EVENT_START].n == 0 || reading->since == 0)
    add_event(run, EVENT_START, step - 1, 0);
  reading->seconds += isfinite(seconds) ? seconds : 0;
  for (int c = 0; c < CURVES && !status; c++)
    if (curves[c].key && json_find(record, curves[c].key))
      status = series_add(&run->curve[c], (double)step, reading->seconds,
                          curves[c].scale * record_real(record, curves[c].key));
  run->value[VALUE_STEPS] = (double)step;
  run->value[VALUE_TRAIN_LOSS] = record_real(record, "loss");
  run->value[VALUE_TOKENS] += isfinite(rate * seconds) ? rate * seconds : 0;
  if (!isfinite(record_real(record, "loss")) || !isfinite(record_real(record, "grad_norm")))
    add_event(run, EVENT_NONFINITE, step, 0);
  *run->end = '\0';
  if (!status)
    status = add_time(reading, seconds, rate);
  add_keys(reading, record);
  return status;
}

static enum status take_evaluation(struct reading *reading, const struct json_node *record)
{
  struct report_run *run = reading->run;
  const double loss = record_real(record, "loss"), ppl = record_real(record, "perplexity");
  const int64_t step = record_whole(record, "step");
  double *value = run->value;
  value[VALUE_VAL_STEP] = (double)step;
  value[VALUE_VAL_LOSS] = loss;
  value[VALUE_VAL_PPL] = ppl;
  if (isfinite(loss) && !(value[VALUE_BEST_LOSS] <= loss)) { /* also true for the first one */
    value[VALUE_BEST_LOSS] = loss;
    value[VALUE_BEST_PPL] = ppl;
  }
  add_event(run, EVENT_EVAL, step, record_real(record, "seconds"));
  return series_add(&run->curve[CURVE_VAL], (double)step, reading->seconds, loss);
}

static enum status end_errors(struct reading *reading)
{
  struct errors *errors = &reading->errors;
  const double mean = errors->sum / (double)errors->units;
  const enum status status = errors->units > 0
                                 ? series_add(&reading->run->curve[CURVE_ERROR],
                                              (double)errors->step, errors->seconds, mean)
                                 : STATUS_OK;
  *errors = (struct errors){0};
  return status;
}

/* A step has a record per unit. */
static enum status take_error(struct reading *reading, const struct json_node *record)
{
  struct errors *errors = &reading->errors;
  const int64_t step = record_whole(record, "step");
  const enum status status =
      errors->units > 0 && errors->step != step ? end_errors(reading) : STATUS_OK;
  errors->step = step;
  errors->seconds = reading->seconds;
  errors->sum += record_real(record, "grad_rel_error");
  errors->units++;
  return status;
}

static void take_trace(struct reading *reading, const struct json_node *record)
{
  reading->traced = (struct traced){.step_s = record_real(record, "step_s"),
                                    .idle_s = record_real(record, "exposed_idle_s"),
                                    .comm_s = record_real(record, "busy_comm_s"),
                                    .exposed_s = record_real(record, "exposed_comm_s")};
}

/* A text, a number, or a list of texts. NULL: something else, or no memory. */
static char *fact_text(const struct json_node *node)
{
  char list[2048] = "";
  const char *text = "";
  const enum json_kind kind = json_kind(node);
  if (kind == JSON_NUMBER)
    return mem_strdup(json_number_text(node));
  if (kind == JSON_STRING && !json_get_text(node, &text, NULL))
    return mem_strdup(text);
  for (const struct json_node *n = json_first(node); n && kind == JSON_ARRAY; n = json_next(n))
    if (json_kind(n) == JSON_STRING && !json_get_text(n, &text, NULL))
      append_text(list, sizeof list, "%s%s", *list ? ", " : "", text);
  return *list ? mem_strdup(list) : NULL;
}

/* "2026-11-24 03:53:30 UTC", from seconds since 1970. Another text stays as it is. */
static char *time_text(const struct json_node *node)
{
  char text[64] = "";
  struct tm utc;
  double seconds = 0;
  if (json_kind(node) != JSON_NUMBER || json_get_real(node, &seconds) || !(fabs(seconds) < 1e11))
    return fact_text(node);
  const time_t time = (time_t)seconds;
  if (gmtime_r(&time, &utc))
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return mem_strdup(text);
}

/* Every kind of record has a time, and that of the start counts. */
static void take_facts(struct report_run *run, const struct json_node *record)
{
  const bool starts = !strcmp(record_text(record, "kind"), "start");
  for (int i = 0; i < REPORT_FACTS; i++) {
    const bool is_time = !strcmp(report_facts[i].key, "time");
    const struct json_node *node = json_find_said(record, report_facts[i].key);
    char *text = NULL;
    if (node && is_time)
      text = starts ? time_text(node) : NULL;
    else if (node)
      text = fact_text(node);
    if (!text)
      continue;
    mem_free(run->fact[i]);
    run->fact[i] = text;
  }
  if (json_find_said(record, "ranks"))
    run->ranks = record_whole(record, "ranks");
}

static void take_operations(struct report_run *run, const struct json_node *record)
{
  const struct json_node *node = json_first(json_find_said(record, "comm_time_ms_by_op"));
  run->ops = node ? 0 : run->ops;
  for (; node && run->ops < REPORT_OPS; node = json_next(node)) {
    struct report_op *op = &run->op[run->ops];
    double time = NAN;
    if (json_kind(node) == JSON_NUMBER)
      (void)json_get_real(node, &time);
    if (!json_key(node, NULL) || !isfinite(time))
      continue;
    snprintf(op->name, sizeof op->name, "%s", json_key(node, NULL));
    op->time = time;
    run->ops++;
  }
}

static void take_run(struct reading *reading, const struct json_node *record)
{
  struct report_run *run = reading->run;
  const double steps = (double)(record_whole(record, "step") - record_whole(record, "first_step"));
  const double raw = record_real(record, "bytes_raw_total"),
               messages = record_real(record, "bytes_compressed_total");
  const double peak = record_real(record, "mem_peak_alloc_gb"),
               arena = record_real(record, "arena_bytes");
  take_facts(run, record);
  take_operations(run, record);
  for (int i = 0; i < KEYS; i++) {
    const double value = record_real(record, keys[i].name);
    if (isfinite(value))
      reading->in_run[i] = value;
  }
  if (isfinite(raw) && isfinite(messages) && steps > 0) {
    reading->raw += raw;
    reading->messages += messages;
    reading->rank_steps += steps * (double)run->ranks;
  }
  run->value[VALUE_MEMORY] = isfinite(peak) ? 1e9 * peak : arena;
  run->skipped = record_whole(record, "skipped");
  snprintf(run->end, sizeof run->end, "%s", record_text(record, "end"));
  reading->since = 0;
}

static enum status take_record(void *arg, const struct json_node *record)
{
  struct reading *reading = arg;
  const char *kind = record_text(record, "kind");
  if (!strcmp(kind, "step"))
    return take_step(reading, record);
  if (!strcmp(kind, "eval"))
    return take_evaluation(reading, record);
  if (!strcmp(kind, "save"))
    add_event(reading->run, EVENT_SAVE, record_whole(record, "step"),
              record_real(record, "blocked_seconds"));
  if (!strcmp(kind, "compression"))
    return take_error(reading, record);
  if (!strcmp(kind, "lanes"))
    return series_add(&reading->run->curve[CURVE_COMPUTE], (double)record_whole(record, "step"),
                      reading->seconds,
                      100 * record_real(json_find_said(record, "busy"), "compute"));
  if (!strcmp(kind, "trace"))
    take_trace(reading, record);
  if (!strcmp(kind, "run"))
    take_run(reading, record);
  if (!strcmp(kind, "start")) {
    take_facts(reading->run, record);
    reading->since = 0;
  }
  return STATUS_OK;
}

/* Computes values from the sums of the file. */
static void finish_times(struct reading *reading)
{
  struct report_run *run = reading->run;
  double *value = run->value;
  struct stats stats = {.n = reading->counted, .room = reading->counted, .seconds = reading->time};
  for (int i = 0; i < KEYS; i++)
    value[keys[i].value] =
        reading->sums[i] > 0 ? reading->sum[i] / (double)reading->sums[i] : reading->in_run[i];
  if (stats.n > 0) {
    value[VALUE_STEP_MS] = 1e3 * stats_mean(&stats);
    value[VALUE_P50_MS] = 1e3 * stats_percentile(&stats, 50);
    value[VALUE_P95_MS] = 1e3 * stats_percentile(&stats, 95);
  }
  if (reading->counted_s > 0)
    value[VALUE_TOKENS_PER_S] = reading->counted_tokens / reading->counted_s;
  if (reading->messages > 0) {
    value[VALUE_RATIO] = reading->raw / reading->messages;
    value[VALUE_SENT] = reading->messages / reading->rank_steps;
    value[VALUE_SAVED] = (reading->raw - reading->messages) / reading->rank_steps;
  }
}

/* Communication: as recorded of all steps, otherwise of traced ones, which are put in proportion to
 * the mean step. */
static void finish_communication(struct reading *reading)
{
  double *value = reading->run->value;
  const struct traced *t = &reading->traced;
  const double step = value[VALUE_STEP_MS];
  value[VALUE_CODEC_MS] = value[VALUE_ENCODE_MS] + value[VALUE_DECODE_MS];
  value[VALUE_BREAK_EVEN] = value[VALUE_SAVED] > 0 && value[VALUE_CODEC_MS] > 0
                                ? 1e3 * value[VALUE_SAVED] / value[VALUE_CODEC_MS]
                                : NAN;
  if (!isfinite(value[VALUE_COMM_SHARE]) && t->step_s > 0)
    value[VALUE_COMM_SHARE] = t->comm_s / t->step_s;
  value[VALUE_COMM_MS] = value[VALUE_COMM_SHARE] * step;
  value[VALUE_EXPOSED_MS] = value[VALUE_COMM_MS] > 0
                                ? value[VALUE_COMM_MS] * (1 - value[VALUE_OVERLAP])
                                : value[VALUE_COMM_MS];
  if (!(t->step_s > 0))
    return;
  value[VALUE_BUSY_SHARE] = 1 - t->idle_s / t->step_s;
  if (!isfinite(value[VALUE_EXPOSED_MS]))
    value[VALUE_EXPOSED_MS] = step * t->exposed_s / t->step_s;
}

static int count_keys(void)
{
  int n = 0;
  while (deck_table[n].name)
    n++;
  return n;
}

/* The deck's values are kept as text. A deck of another version may have other keys. */
static enum status list_keys(struct report_run *run, const struct deck *deck)
{
  const int n = count_keys();
  enum status status = mem_new(MEM_META, n, &run->key);
  for (int i = 0; i < n && !status; i++)
    status = options_print_named(deck->set, deck_table[i].name, &run->key[i]);
  return status;
}

static enum status read_deck(struct report_run *run)
{
  char *path = mem_printf("%s/deck.yaml", run->path);
  size_t bytes = 0;
  struct deck deck = {0};
  enum status status = path ? STATUS_OK : STATUS_MEMORY;
  if (!status && !file_exists(path)) {
    mem_free(path);
    return STATUS_OK;
  }
  if (!status)
    status = file_read_own(path, DECK_MOST_BYTES, &run->deck_text, &bytes);
  if (!status)
    status = deck_load_text(&deck, path, run->deck_text, bytes, 0, NULL);
  if (!status)
    status = list_keys(run, &deck);
  run->seed = deck.run.seed;
  deck_destroy(&deck);
  mem_free(path);
  if (status && status != STATUS_MEMORY) {
    run->deck_failure = mem_strdup(status_text());
    status = run->deck_failure ? STATUS_OK : STATUS_MEMORY;
  }
  return status;
}

static enum status read_run(struct report_run *run, const char *results, int64_t warmup)
{
  struct reading reading = {.run = run, .warmup = warmup, .traced = {NAN, NAN, NAN, NAN}};
  for (int i = 0; i < VALUES; i++)
    run->value[i] = NAN;
  for (int i = 0; i < KEYS; i++)
    reading.in_run[i] = NAN;
  run->value[VALUE_STEPS] = run->value[VALUE_TOKENS] = 0;
  struct records records = {0};
  enum status status = records_read(results, &records, take_record, &reading);
  run->lines = records.lines;
  run->damaged = records.damaged;
  run->first_damaged = records.first_damaged;
  run->torn = records.torn;
  if (!status)
    status = end_errors(&reading);
  if (!status) {
    finish_times(&reading);
    finish_communication(&reading);
    status = read_deck(run);
  }
  mem_free(reading.time);
  return status;
}

/* The last part of a path, without slashes at the end. */
static char *base_name(const char *path)
{
  size_t end = strlen(path);
  while (end > 1 && path[end - 1] == '/')
    end--;
  size_t begin = end;
  while (begin > 0 && path[begin - 1] != '/')
    begin--;
  return mem_printf("%.*s", (int)(end - begin), path + begin);
}

static enum status add_run(struct report *report, const char *path, const char *results,
                           bool nested)
{
  enum status status = mem_grow(MEM_META, (void **)&report->run, &report->run_room,
                                (int64_t)report->runs + 1, sizeof *report->run);
  if (status)
    return status;
  struct report_run *run = &report->run[report->runs++];
  *run = (struct report_run){.nested = nested, .group = -1};
  run->path = mem_strdup(path);
  run->name = base_name(path);
  if (!run->path || !run->name)
    return STATUS_MEMORY;
  return read_run(run, results, report->warmup);
}

/* Whether a folder is among the runs under any name. */
static bool is_read(const struct report *report, const char *path)
{
  struct stat own, other;
  for (int i = 0; i < report->runs && stat(path, &own) == 0; i++)
    if (stat(report->run[i].path, &other) == 0 && own.st_dev == other.st_dev &&
        own.st_ino == other.st_ino)
      return true;
  return false;
}

/* A folder that is named twice is read once. *found: whether it has results. */
static enum status add_folder(struct report *report, const char *path, bool nested, bool *found)
{
  char *results = mem_printf("%s/results.jsonl", path);
  enum status status = results ? STATUS_OK : STATUS_MEMORY;
  *found = results && file_exists(results);
  if (*found && !is_read(report, path))
    status = add_run(report, path, results, nested);
  mem_free(results);
  return status;
}

static int is_visible(const struct dirent *entry)
{
  return entry->d_name[0] != '.';
}

static enum status add_subfolders(struct report *report, const char *path, bool *found)
{
  struct dirent **entry = NULL;
  enum status status = STATUS_OK;
  const int n = scandir(path, &entry, is_visible, versionsort);
  *found = false;
  for (int i = 0; i < n; i++) {
    char *sub = status ? NULL : mem_printf("%s/%s", path, entry[i]->d_name);
    bool one = false;
    if (!status)
      status = sub ? add_folder(report, sub, true, &one) : STATUS_MEMORY;
    *found |= one;
    mem_free(sub);
    free(entry[i]);
  }
  free(entry);
  return status;
}

/* A run folder has a deck. The parent folder of the runs of sluice compare has results, but no
 * deck. */
enum status report_read(struct report *report, const char *path)
{
  char *deck = mem_printf("%s/deck.yaml", path);
  bool found = false;
  enum status status = deck ? STATUS_OK : STATUS_MEMORY;
  if (!status && !file_is_folder(path))
    status = status_set(STATUS_INPUT, "there is no folder %s", path);
  if (!status && !file_exists(deck))
    status = add_subfolders(report, path, &found);
  if (!status && !found)
    status = add_folder(report, path, false, &found);
  if (!status && !found)
    status = status_set(STATUS_INPUT,
                        "%s holds no results.jsonl: name a run folder, or the folder of the runs "
                        "of sluice compare",
                        path);
  mem_free(deck);
  return status;
}

static void free_run(struct report_run *run)
{
  for (int i = 0; run->key && i < count_keys(); i++)
    mem_free(run->key[i]);
  for (int i = 0; i < CURVES; i++)
    mem_free(run->curve[i].point);
  for (int i = 0; i < REPORT_FACTS; i++)
    mem_free(run->fact[i]);
  mem_free(run->key);
  mem_free(run->deck_text);
  mem_free(run->deck_failure);
  mem_free(run->path);
  mem_free(run->name);
}

void report_free(struct report *report)
{
  for (int i = 0; i < report->runs; i++)
    free_run(&report->run[i]);
  for (int i = 0; i < report->groups; i++)
    mem_free(report->group[i].label);
  mem_free(report->run);
  mem_free(report->group);
  *report = (struct report){0};
}
