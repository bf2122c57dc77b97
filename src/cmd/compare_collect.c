/* Reads the results of finished runs into rows of a table. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/compare.h"
#include "io/results/results.h"
#include "io/text/file.h"
#include "train/stats.h"

enum { RESULTS_MOST_BYTES = 1 << 30 };

struct reading {
  const struct matrix_run *run;
  int64_t warmup, since; /* since: steps since the last start */
  struct stats stats;
  struct matrix_result result;
};

static void take_step(struct reading *reading, const json_t *record)
{
  struct matrix_result *r = &reading->result;
  const json_t *step = json_object_get(record, "step");
  const double seconds = record_real(record, "seconds");
  if (json_is_integer(step))
    r->steps = json_integer_value(step);
  r->train_loss = record_real(record, "loss");
  r->seconds += isfinite(seconds) ? seconds : 0;
  *r->end = '\0';
  if (reading->since++ >= reading->warmup && isfinite(seconds))
    stats_add(&reading->stats, seconds);
}

static void take_evaluation(struct reading *reading, const json_t *record)
{
  struct matrix_result *r = &reading->result;
  r->val_step = record_real(record, "step");
  r->val_loss = record_real(record, "loss");
  r->val_ppl = record_real(record, "perplexity");
  if (!(r->best_val_loss <= r->val_loss)) { /* also true for the first one */
    r->best_val_loss = r->val_loss;
    r->best_val_ppl = r->val_ppl;
  }
  if (r->seconds <= reading->run->fixed_s)
    r->fixed_ppl = r->val_ppl;
  if (isnan(r->steps_to_target) && r->val_ppl <= reading->run->target) {
    r->steps_to_target = (double)r->steps;
    r->time_to_target_s = r->seconds;
  }
}

static void take_record(struct reading *reading, const json_t *record)
{
  struct matrix_result *r = &reading->result;
  const char *kind = record_text(record, "kind");
  if (!strcmp(kind, "step"))
    take_step(reading, record);
  if (!strcmp(kind, "eval"))
    take_evaluation(reading, record);
  if (!strcmp(kind, "run")) {
    snprintf(r->end, sizeof r->end, "%s", record_text(record, "end"));
    snprintf(r->hash, sizeof r->hash, "%s", record_text(record, "deck"));
    matrix_metrics_take(&r->metrics, record);
    reading->since = 0;
  }
}

/* A last line without a line break is incomplete, because the run was lost. */
static enum status take_lines(struct reading *reading, const char *text)
{
  const char *end;
  enum status status = STATUS_OK;
  for (; (end = strchr(text, '\n')) && !status; text = end + 1) {
    struct json_file file = {0};
    status = json_parse(reading->run->results, text, (size_t)(end - text), &file);
    if (!status)
      take_record(reading, file.root);
    json_close(&file);
  }
  return status;
}

static void take_times(struct reading *reading)
{
  struct matrix_result *r = &reading->result;
  if (reading->stats.n == 0)
    return;
  r->mean_s = stats_mean(&reading->stats);
  r->p50_s = stats_percentile(&reading->stats, 50);
  r->p90_s = stats_percentile(&reading->stats, 90);
  r->p95_s = stats_percentile(&reading->stats, 95);
  r->tokens_per_s = (double)reading->run->step_tokens / r->mean_s;
}

static int64_t count_lines(const char *text)
{
  int64_t lines = 0;
  for (; (text = strchr(text, '\n')); text++)
    lines++;
  return lines;
}

enum status matrix_result_read(const struct matrix_run *run, int64_t warmup,
                               struct matrix_result *out)
{
  struct reading reading = {.run = run,
                            .warmup = warmup,
                            .result = {.train_loss = NAN,
                                       .val_step = NAN,
                                       .val_loss = NAN,
                                       .val_ppl = NAN,
                                       .best_val_loss = NAN,
                                       .best_val_ppl = NAN,
                                       .tokens_per_s = NAN,
                                       .mean_s = NAN,
                                       .p50_s = NAN,
                                       .p90_s = NAN,
                                       .p95_s = NAN,
                                       .steps_to_target = NAN,
                                       .time_to_target_s = NAN,
                                       .fixed_ppl = NAN}};
  char *text = NULL;
  size_t bytes = 0;
  enum status status = STATUS_OK;
  if (file_exists(run->results)) {
    status = file_read_own(run->results, RESULTS_MOST_BYTES, &text, &bytes);
    if (!status)
      status = stats_create(count_lines(text), &reading.stats);
    if (!status)
      status = take_lines(&reading, text);
  }
  if (!status) {
    take_times(&reading);
    *out = reading.result;
  }
  stats_destroy(&reading.stats);
  mem_free(text);
  return status;
}

/* ---- numbers of a run, in the order of its line ---- */

enum { RESULT_NUMBERS = 17, NUMBERS = RESULT_NUMBERS + MATRIX_METRICS };
struct number {
  const char *key;
  double value;
};

/* Tokens/s per rank, relative to the run on one rank with the same deck, method and seed. */
static double scaling_of(const struct matrix *matrix, const struct matrix_run *run,
                         double tokens_per_s)
{
  for (int i = 0; i < matrix->runs; i++) {
    const struct matrix_run *one = &matrix->run[i];
    if (one->ranks == 1 && one->seed == run->seed && !strcmp(one->deck, run->deck) &&
        !strcmp(one->method, run->method))
      return tokens_per_s / (double)run->ranks / one->tokens_per_s;
  }
  return NAN;
}

static void list_numbers(const struct matrix *matrix, const struct matrix_run *run,
                         const struct matrix_result *r, struct number out[NUMBERS])
{
  const struct number own[RESULT_NUMBERS] = {
      {"steps", (double)r->steps},
      {"train_loss", r->train_loss},
      {"val_step", r->val_step},
      {"val_loss", r->val_loss},
      {"val_ppl", r->val_ppl},
      {"best_val_loss", r->best_val_loss},
      {"best_val_ppl", r->best_val_ppl},
      {"tokens_per_s", r->tokens_per_s},
      {"step_time_ms_mean", 1e3 * r->mean_s},
      {"step_time_ms_p50", 1e3 * r->p50_s},
      {"step_time_ms_p90", 1e3 * r->p90_s},
      {"step_time_ms_p95", 1e3 * r->p95_s},
      {"time_s", r->seconds},
      {"scaling_efficiency", scaling_of(matrix, run, r->tokens_per_s)},
      {"time_to_target_ppl_s", r->time_to_target_s},
      {"steps_to_target", r->steps_to_target},
      {"ppl_at_fixed_time", r->fixed_ppl}};
  memcpy(out, own, sizeof own);
  for (int i = 0; i < MATRIX_METRICS; i++)
    out[RESULT_NUMBERS + i] =
        (struct number){matrix_metric_key(i), matrix_metric_value(&r->metrics, i)};
}

static enum status write_run(struct results *results, const struct matrix_run *run,
                             const struct matrix_result *r, const struct number number[NUMBERS])
{
  const struct matrix_metrics *m = &r->metrics;
  results_begin(results, "compare");
  results_text(results, "run_name", run->name);
  results_text(results, "deck", run->deck);
  results_int(results, "ranks", run->ranks);
  results_text(results, "method", run->method);
  results_int(results, "seed", run->seed);
  results_text(results, "deck_hash", run->hash);
  results_text(results, "end", *r->end ? r->end : "unfinished");
  results_text(results, "commit", m->commit);
  results_text(results, "model", m->model);
  results_text(results, "dataset", m->dataset);
  results_text(results, "compress_method", m->codec);
  results_text(results, "compress_config", m->config);
  for (int i = 0; i < NUMBERS; i++)
    results_real(results, number[i].key, number[i].value);
  results_begin_object(results, "comm_time_ms_by_op");
  for (int op = 0; op < OP_COUNT; op++)
    if (m->op_ms[op] > 0)
      results_real(results, plan_op_name((enum op)op), m->op_ms[op]);
  results_end_object(results);
  return results_end(results);
}

/* ---- seeds of a method ---- */

/* "MEAN +- DEVIATION", without a deviation for one seed. */
static void sample_print(const struct stats_sample *sample, int digits)
{
  char text[80] = "-";
  if (sample->n > 0)
    snprintf(text, sizeof text, "%.*f", digits, sample->mean);
  if (sample->n > 1)
    append_text(text, sizeof text, " +- %.*f", digits, stats_sample_deviation(sample));
  printf("  %-18s", text);
}

static const struct column {
  const char *name, *key;
  int digits;
} columns[] = {{"train loss", "train_loss", 4},
               {"val loss", "val_loss", 4},
               {"val ppl", "val_ppl", 3},
               {"ms per step", "step_time_ms_mean", 2},
               {"tokens/s", "tokens_per_s", 0}};
enum { COLUMNS = sizeof columns / sizeof *columns };

struct row {
  int finished;
  const char *key[NUMBERS];
  struct stats_sample sample[NUMBERS];
};

static void row_add(struct row *row, const struct number number[NUMBERS])
{
  row->finished++;
  for (int i = 0; i < NUMBERS; i++) {
    row->key[i] = number[i].key;
    stats_sample_add(&row->sample[i], number[i].value);
  }
}

/* Without finished runs there is no line. */
static enum status write_row(struct results *results, const struct matrix_run *run,
                             const struct row *row)
{
  if (row->finished == 0)
    return STATUS_OK;
  results_begin(results, "compare_method");
  results_text(results, "deck", run->deck);
  results_int(results, "ranks", run->ranks);
  results_text(results, "method", run->method);
  results_int(results, "runs", row->finished);
  for (int i = 0; i < NUMBERS; i++) {
    const struct stats_sample *sample = &row->sample[i];
    results_begin_object(results, row->key[i]);
    results_real(results, "mean", sample->n > 0 ? sample->mean : NAN);
    results_real(results, "std", stats_sample_deviation(sample));
    results_end_object(results);
  }
  return results_end(results);
}

/* "DECK-RANKS-METHOD": the name of a run without its seed. */
static int group_length(const struct matrix_run *run)
{
  return (int)(strrchr(run->name, '-') - run->name);
}

static int widest_group(const struct matrix *matrix)
{
  int widest = (int)strlen("method");
  for (int i = 0; i < matrix->runs; i++)
    if (group_length(&matrix->run[i]) > widest)
      widest = group_length(&matrix->run[i]);
  return widest;
}

static void print_head(int width)
{
  printf("%-*s  runs", width, "method");
  for (int i = 0; i < COLUMNS; i++)
    printf("  %-18s", columns[i].name);
  printf("\n");
}

static const struct stats_sample *sample_of(const struct row *row, const char *key)
{
  static const struct stats_sample nothing;
  for (int i = 0; i < NUMBERS && row->finished > 0; i++)
    if (!strcmp(row->key[i], key))
      return &row->sample[i];
  return &nothing;
}

static void print_row(const struct matrix_run *run, int seeds, const struct row *row, int width)
{
  printable_print(stdout, "%-*.*s  %d/%d ", width, group_length(run), run->name, row->finished,
                  seeds);
  for (int c = 0; c < COLUMNS; c++)
    sample_print(sample_of(row, columns[c].key), columns[c].digits);
  printf("\n");
}

/* Only finished runs count in the table. A run that has not begun has no line in the file. */
static enum status collect_method(const struct matrix *matrix, int first, struct results *results,
                                  struct row *row)
{
  enum status status = STATUS_OK;
  for (int i = first; i < first + matrix->values.seeds.n && !status; i++) {
    const struct matrix_run *run = &matrix->run[i];
    struct matrix_result result;
    struct number number[NUMBERS];
    status = matrix_result_read(run, matrix->values.warmup, &result);
    if (status)
      return status;
    list_numbers(matrix, run, &result, number);
    if (result.steps > 0)
      status = write_run(results, run, &result, number);
    if (!strcmp(result.end, "finished"))
      row_add(row, number);
  }
  return status ? status : write_row(results, &matrix->run[first], row);
}

/* The shortest finished run of the same deck and ranks. NAN: none has finished. */
static double shortest(const struct matrix *matrix, const struct matrix_run *run)
{
  double seconds = NAN;
  for (int i = 0; i < matrix->runs; i++)
    if (matrix->run[i].ranks == run->ranks && !strcmp(matrix->run[i].deck, run->deck))
      seconds = fmin(seconds, matrix->run[i].seconds);
  return seconds;
}

/* Results of each run that do not depend on other runs. */
static enum status read_once(struct matrix *matrix)
{
  for (int i = 0; i < matrix->runs; i++) {
    struct matrix_run *run = &matrix->run[i];
    struct matrix_result result;
    run->fixed_s = NAN;
    const enum status status = matrix_result_read(run, matrix->values.warmup, &result);
    if (status)
      return status;
    run->tokens_per_s = result.tokens_per_s;
    run->seconds = strcmp(result.end, "finished") ? NAN : result.seconds;
  }
  for (int i = 0; i < matrix->runs; i++)
    matrix->run[i].fixed_s =
        matrix->values.time > 0 ? matrix->values.time : shortest(matrix, &matrix->run[i]);
  return STATUS_OK;
}

static enum status collect_to(struct matrix *matrix, struct results *results)
{
  const int seeds = matrix->values.seeds.n, width = widest_group(matrix);
  enum status status = read_once(matrix);
  if (!status)
    print_head(width);
  for (int i = 0; i < matrix->runs && !status; i += seeds) {
    struct row row = {0};
    status = collect_method(matrix, i, results, &row);
    if (!status)
      print_row(&matrix->run[i], seeds, &row, width);
  }
  return status;
}

static enum status write_all(struct matrix *matrix, const char *temporary, const char *path)
{
  struct results *results = NULL;
  (void)unlink(temporary); /* of a start that was lost */
  enum status status = results_open(temporary, &results);
  if (!status)
    status = collect_to(matrix, results);
  const enum status closed = results_close(results);
  if (!status)
    status = closed;
  if (!status)
    status = file_sync_rename(temporary, path);
  if (!status)
    log_info("the results of all runs are in %s", path);
  return status;
}

enum status matrix_collect(struct matrix *matrix)
{
  const char *out = matrix->values.out;
  char *path = mem_printf("%s/results.jsonl", out), *temporary = mem_printf("%s.tmp", path);
  enum status status = path && temporary ? file_make_folders(out) : STATUS_MEMORY;
  if (!status)
    status = write_all(matrix, temporary, path);
  mem_free(temporary);
  mem_free(path);
  return status;
}
