/* The lines of the log that a person reads first: what the run will do, and the step lines with the
 * time at which it ends. */
#include "train/private.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/append.h"
#include "base/log.h"

struct short_text {
  char text[48];
};

static struct short_text count_text(int64_t n)
{
  struct short_text out;
  if (n < 1000000)
    snprintf(out.text, sizeof out.text, "%lld", (long long)n);
  else
    snprintf(out.text, sizeof out.text, n < 1000000000 ? "%.2f M" : "%.2f G",
             (double)n * (n < 1000000000 ? 1e-6 : 1e-9));
  return out;
}

/* The wall clock's time in so many seconds: "15:57", with the day if it is far away. */
static struct short_text time_in(double seconds)
{
  enum { NEAR_H = 18, WEEK_H = 6 * 24 };
  const double hours = seconds / 3600;
  const time_t at = time(NULL) + (time_t)seconds;
  struct short_text out = {""};
  struct tm local;
  if (localtime_r(&at, &local))
    strftime(out.text, sizeof out.text,
             hours < NEAR_H   ? "%H:%M"
             : hours < WEEK_H ? "%a %H:%M"
                              : "%d %b %H:%M",
             &local);
  return out;
}

static void say_source(const struct train_run *run, int s)
{
  const struct data_source *source = &run->data.of[s];
  const int64_t left = run->deck->run.steps - run->step,
                samples = data_part(&run->data, s, run->samples + left * run->deck->data.batch);
  const double times = (double)samples / (double)source->rows;
  char reads[64];
  if (times < 1)
    snprintf(reads, sizeof reads, "%.2g of the data", times);
  else
    snprintf(reads, sizeof reads, "the data %.1f times", times);
  log_info("data    %s: %s tokens; a step reads %lld x %lld = %lld%s, the run reads %s",
           source->dir, count_text(token_set_stream(source->set).tokens).text,
           (long long)run->deck->data.batch, (long long)run->job->shape.sequence,
           (long long)train_step_tokens(run), run->data.n > 1 ? " of all sources" : "", reads);
}

static void say_validation(const struct train_run *run)
{
  const struct deck *deck = run->deck;
  const struct data_sources *data = &run->evaluator.scan.data;
  char part[48] = "all of them", more[32] = "";
  if (deck->eval.every == 0)
    return;
  if (deck->eval.batches > 0)
    snprintf(part, sizeof part, "%lld batch%s", (long long)deck->eval.batches,
             deck->eval.batches == 1 ? "" : "es");
  if (data->n > 1)
    snprintf(more, sizeof more, " and %d more", data->n - 1);
  log_info("val     %s%s: %s tokens; %s every %lld step%s and at the end", data->of[0].dir, more,
           count_text(data_stream(data).tokens).text, part, (long long)deck->eval.every,
           plural(deck->eval.every));
}

void train_say_head(const struct train_run *run)
{
  const char *limit;
  const double left = train_seconds_left(run, &limit);
  char until[96] = "";
  for (int s = 0; s < run->data.n; s++)
    say_source(run, s);
  say_validation(run);
  if (isfinite(left))
    snprintf(until, sizeof until, ", at most until %s (%s)", time_in(left).text, limit);
  log_info("run     %s: steps %lld to %lld%s", run->deck->run.dir, (long long)run->step + 1,
           (long long)run->deck->run.steps, until);
}

/* A batch job may write its log for weeks. log.txt has every line. */
void train_say_step(const struct train_run *run, const struct train_step *last)
{
  enum { RECENT = 20, WATCHED_S = 2, BATCH_S = 60 };
  const double recent = stats_recent(&run->stats, RECENT);
  const char *limit;
  const double steps = recent * (double)(run->deck->run.steps - run->step),
               most = fmax(train_seconds_left(run, &limit), 0), left = fmin(steps, most);
  char norm[32];
  snprintf(norm, sizeof norm, last->result.grad_norm < 1e6 ? "%.3f" : "%.3e",
           last->result.grad_norm);
  log_progress(log_has_terminal() ? WATCHED_S : BATCH_S,
               "step %lld/%lld  loss %.4f  norm %s  lr %.2e  %.0f tokens/s  ETA %lld:%02lld:%02lld "
               "(%s%s%s)",
               (long long)run->step, (long long)run->deck->run.steps, last->result.loss, norm,
               last->lr, train_mean_tokens(run) / recent, (long long)left / 3600,
               (long long)left / 60 % 60, (long long)left % 60, time_in(left).text,
               most < steps ? ", " : "", most < steps ? limit : "");
}
