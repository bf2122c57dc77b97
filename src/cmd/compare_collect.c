#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "cmd/compare.h"
#include "io/results/results.h"
#include "io/text/file.h"
#include "io/text/json_tree.h"
#include "train/stats.h"

enum { RESULTS_MOST_BYTES = 1 << 30 };

struct reading {
  const struct matrix_run *run;
  int64_t warmup, since; /* since: steps since the last start */
  struct stats stats;
  struct matrix_result result;
};

/* NAN: there is none. A number that is not finite is written as null. */
static double real_of(const struct json_node *record, const char *key)
{
  const struct json_node *node = json_find_said(record, key);
  double value = NAN;
  if (node && json_kind(node) == JSON_NUMBER)
    (void)json_get_real(node, &value);
  return value;
}

/* "": there is none. */
static const char *text_of(const struct json_node *record, const char *key)
{
  const struct json_node *node = json_find_said(record, key);
  const char *text = "";
  if (node && json_kind(node) == JSON_STRING)
    (void)json_get_text(node, &text, NULL);
  return text;
}

static void take_step(struct reading *reading, const struct json_node *record)
{
  struct matrix_result *r = &reading->result;
  const struct json_node *step = json_find_said(record, "step");
  const double seconds = real_of(record, "seconds");
  if (step)
    (void)json_get_whole(step, 0, INT64_MAX, &r->steps);
  r->train_loss = real_of(record, "loss");
  r->seconds += isfinite(seconds) ? seconds : 0;
  *r->end = '\0';
  if (reading->since++ >= reading->warmup && isfinite(seconds))
    stats_add(&reading->stats, seconds);
}

static void take_evaluation(struct matrix_result *r, const struct json_node *record)
{
  r->val_loss = real_of(record, "loss");
  r->val_ppl = real_of(record, "perplexity");
  if (!(r->best_val_loss <= r->val_loss)) { /* also true for the first one */
    r->best_val_loss = r->val_loss;
    r->best_val_ppl = r->val_ppl;
  }
}

static void take_record(struct reading *reading, const struct json_node *record)
{
  struct matrix_result *r = &reading->result;
  const char *kind = text_of(record, "kind");
  if (!strcmp(kind, "step"))
    take_step(reading, record);
  if (!strcmp(kind, "eval"))
    take_evaluation(r, record);
  if (!strcmp(kind, "run")) {
    snprintf(r->end, sizeof r->end, "%s", text_of(record, "end"));
    snprintf(r->hash, sizeof r->hash, "%s", text_of(record, "deck"));
    reading->since = 0;
  }
}

/* A last line without a line break is one that a lost run did not complete. */
static enum status take_lines(struct reading *reading, const char *text)
{
  const char *end;
  enum status status = STATUS_OK;
  for (; (end = strchr(text, '\n')) && !status; text = end + 1) {
    struct json_tree *tree = NULL;
    status = json_tree_parse(reading->run->results, text, (size_t)(end - text), &tree);
    if (!status)
      take_record(reading, json_tree_root(tree));
    json_tree_free(tree);
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
  struct reading reading = {
      .run = run,
      .warmup = warmup,
      .result = {0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0, "", ""}};
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

static enum status write_run(struct results *results, const struct matrix_run *run,
                             const struct matrix_result *r)
{
  results_begin(results, "compare");
  results_text(results, "run_name", run->name);
  results_text(results, "deck", run->deck);
  results_int(results, "ranks", run->ranks);
  results_text(results, "method", run->method);
  results_int(results, "seed", run->seed);
  results_text(results, "deck_hash", run->hash);
  results_text(results, "end", *r->end ? r->end : "unfinished");
  results_int(results, "steps", r->steps);
  results_real(results, "train_loss", r->train_loss);
  results_real(results, "val_loss", r->val_loss);
  results_real(results, "val_ppl", r->val_ppl);
  results_real(results, "best_val_loss", r->best_val_loss);
  results_real(results, "best_val_ppl", r->best_val_ppl);
  results_real(results, "tokens_per_s", r->tokens_per_s);
  results_real(results, "step_time_ms_mean", 1e3 * r->mean_s);
  results_real(results, "step_time_ms_p50", 1e3 * r->p50_s);
  results_real(results, "step_time_ms_p90", 1e3 * r->p90_s);
  results_real(results, "step_time_ms_p95", 1e3 * r->p95_s);
  results_real(results, "time_s", r->seconds);
  return results_end(results);
}

/* Numbers of the seeds of one method (Welford's algorithm). */
struct sample {
  int n;
  double mean, squares; /* squares: of the differences to the mean */
};

static void sample_add(struct sample *sample, double value)
{
  if (!isfinite(value))
    return;
  const double difference = value - sample->mean;
  sample->mean += difference / ++sample->n;
  sample->squares += difference * (value - sample->mean);
}

/* "MEAN +- DEVIATION", without a deviation for one seed. */
static void sample_print(const struct sample *sample, int digits)
{
  char text[80] = "-";
  if (sample->n > 0)
    snprintf(text, sizeof text, "%.*f", digits, sample->mean);
  if (sample->n > 1)
    append_text(text, sizeof text, " +- %.*f", digits, sqrt(sample->squares / (sample->n - 1)));
  printf("  %-18s", text);
}

enum { TRAIN_LOSS, VAL_LOSS, VAL_PPL, STEP_MS, TOKENS_PER_S, COLUMNS };
static const struct column {
  const char *name;
  int digits;
} columns[COLUMNS] = {[TRAIN_LOSS] = {"train loss", 4},
                      [VAL_LOSS] = {"val loss", 4},
                      [VAL_PPL] = {"val ppl", 3},
                      [STEP_MS] = {"ms per step", 2},
                      [TOKENS_PER_S] = {"tokens/s", 0}};

struct row {
  int finished;
  struct sample sample[COLUMNS];
};

static void row_add(struct row *row, const struct matrix_result *r)
{
  const double value[COLUMNS] = {r->train_loss, r->val_loss, r->val_ppl, 1e3 * r->mean_s,
                                 r->tokens_per_s};
  row->finished++;
  for (int i = 0; i < COLUMNS; i++)
    sample_add(&row->sample[i], value[i]);
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

static void print_row(const struct matrix_run *run, int seeds, const struct row *row, int width)
{
  printf("%-*.*s  %d/%d ", width, group_length(run), run->name, row->finished, seeds);
  for (int i = 0; i < COLUMNS; i++)
    sample_print(&row->sample[i], columns[i].digits);
  printf("\n");
}

/* Only finished runs count in the table. A run that has not begun has no line in the file. */
static enum status collect_method(const struct matrix *matrix, int first, struct results *results,
                                  struct row *row)
{
  enum status status = STATUS_OK;
  for (int i = first; i < first + matrix->values.seeds.n && !status; i++) {
    struct matrix_result result;
    status = matrix_result_read(&matrix->run[i], matrix->values.warmup, &result);
    if (!status && result.steps > 0)
      status = write_run(results, &matrix->run[i], &result);
    if (!status && !strcmp(result.end, "finished"))
      row_add(row, &result);
  }
  return status;
}

static enum status collect_to(const struct matrix *matrix, struct results *results)
{
  const int seeds = matrix->values.seeds.n, width = widest_group(matrix);
  enum status status = STATUS_OK;
  print_head(width);
  for (int i = 0; i < matrix->runs && !status; i += seeds) {
    struct row row = {0};
    status = collect_method(matrix, i, results, &row);
    if (!status)
      print_row(&matrix->run[i], seeds, &row, width);
  }
  return status;
}

static enum status write_all(const struct matrix *matrix, const char *temporary, const char *path)
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

enum status matrix_collect(const struct matrix *matrix)
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
