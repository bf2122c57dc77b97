/* The metrics of communication and compression: counts of each step, and the record of a run.
 * doc/reference/results.md explains each key. */
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "compress/compress.h"
#include "exec/watchdog.h"
#include "job/rates.h"
#include "plan/ops.h"
#include "plan/traffic.h"
#include "train/private.h"

enum { LEARNED_STEPS = 3 };
static const double ms = 1e3, per_gb = 1e-9;

static struct exec *exec_of(const struct train_run *run)
{
  return run->job->exec[PLAN_TRAIN];
}

static const struct plan *plan_of(const struct train_run *run)
{
  return run->job->plan[PLAN_TRAIN];
}

enum status train_metrics_create(struct train_run *run)
{
  const struct plan *plan = plan_of(run);
  exec_profile_from(exec_of(run), run->first + run->deck->run.warmup);
  run->metrics = (struct train_metrics){.residual = NAN};
  bool encodes = false;
  for (int i = 0; i < plan->n && !encodes; i++)
    encodes = plan->instr[i].op == OP_ENCODE;
  if (run->deck->compress.sample == 0 || !encodes)
    return STATUS_OK;
  return mem_new(MEM_META, (size_t)plan->input.model->units, &run->metrics.sample);
}

/* ---- of each step ---- */

void train_count_step(struct train_run *run, const struct train_step *step)
{
  const bool timed = run->step - run->first >= run->deck->run.warmup && !run->job->exec[JOB_WARMUP];
  const double clip = run->deck->optim.clip;
  struct train_metrics *m = &run->metrics;
  if (timed && m->timed == 0)
    stats_clear(&run->stats);
  stats_add(&run->stats, step->seconds);
  m->steps_s += step->seconds;
  m->timed += timed;
  m->timed_s += timed ? step->seconds : 0;
  m->nonfinite += !step->result.finite;
  m->clipped += step->result.finite && clip > 0 && step->result.grad_norm > clip;
}

/* The ranks whose compute lanes worked longest and shortest, after the sums of times in us. */
static void put_paces(struct train_run *run, const int64_t *us)
{
  int slowest = 0, fastest = 0;
  for (int r = 1; r < comm_ranks(run->comm); r++) {
    slowest = us[r] > us[slowest] ? r : slowest;
    fastest = us[r] < us[fastest] ? r : fastest;
  }
  train_put(run, "slowest_rank", NULL, slowest);
  train_put(run, "slowest_seconds", NULL, 1e-6 * (double)us[slowest]);
  train_put(run, "fastest_rank", NULL, fastest);
  train_put(run, "fastest_seconds", NULL, 1e-6 * (double)us[fastest]);
}

/* The work of lanes in so many steps, which took so long. Collective. */
static enum status record_lanes(struct train_run *run, int64_t steps, double seconds,
                                const double busy_s[LANE_COUNT])
{
  const int ranks = comm_ranks(run->comm);
  int64_t *us = NULL;
  enum status status = comm_agree(run->comm, mem_new(MEM_META, ranks, &us));
  if (!status) {
    us[comm_rank(run->comm)] = (int64_t)(1e6 * busy_s[LANE_COMPUTE]);
    status = comm_sum_i64(run->comm, us, ranks);
  }
  if (!status) {
    train_begin(run, "lanes", true);
    train_put(run, "steps", NULL, (double)steps);
    train_put(run, "seconds", NULL, seconds);
    if (run->results)
      json_write_open(run->line, "busy", '{');
    for (int lane = 0; lane < LANE_COUNT; lane++) {
      const char *name = plan_lane_name((enum plan_lane)lane);
      char scalar[64];
      snprintf(scalar, sizeof scalar, "lanes_busy/%s", name);
      if (busy_s[lane] > 0)
        train_put(run, name, scalar, busy_s[lane] / seconds);
    }
    if (run->results)
      json_write_close(run->line, '}');
    put_paces(run, us);
    status = comm_agree(run->comm, train_end(run, "lanes", true));
  }
  mem_free(us);
  return status;
}

enum status train_take_profile(struct train_run *run)
{
  struct train_metrics *m = &run->metrics;
  const double seconds = m->timed_s - m->profiled_s;
  const int64_t steps = m->timed - m->profiled;
  struct exec_profile profile;
  enum status status = STATUS_OK;
  if (run->job->exec[JOB_WARMUP])
    return STATUS_OK;
  exec_profile(exec_of(run), &profile);
  for (size_t i = 0; i < sizeof profile / sizeof(double); i++) /* all fields are of type double */
    ((double *)&m->profile)[i] += ((const double *)&profile)[i];
  m->profiled_s = m->timed_s;
  m->profiled = m->timed;
  if (!m->learned && m->profile.steps >= LEARNED_STEPS) {
    status = job_rates_learn(run->job, &m->profile);
    m->learned = true;
  }
  return status || steps == 0 ? status : record_lanes(run, steps, seconds, profile.busy_s);
}

static enum status record_sample(struct train_run *run, int unit)
{
  struct train_metrics *m = &run->metrics;
  struct plan_sample *sample = &m->sample[unit];
  const double x = exactsum_value(&sample->elements), lost = exactsum_value(&sample->lost),
               sent = exactsum_value(&sample->decoded),
               residual = exactsum_value(&sample->residual);
  const bool feedback = plan_of(run)->unit[unit].policy.residual.ops;
  const double error = sqrt(lost / x), cosine = (x + sent - lost) / (2 * sqrt(x * sent));
  if (x == 0)
    return STATUS_OK;
  m->residual += residual;
  m->samples++;
  m->error += error;
  m->cosine += cosine;
  if (!run->results)
    return STATUS_OK;
  train_begin(run, "compression", false);
  json_write_text(run->line, "unit", plan_of(run)->input.model->unit[unit].name);
  json_write_real(run->line, "grad_rel_error", error);
  json_write_real(run->line, "grad_cos_sim", cosine);
  json_write_real(run->line, "residual_norm", feedback ? sqrt(residual) : NAN);
  return train_end(run, "compression", false);
}

/* Exact sums over the ranks are the same on all of them. */
enum status train_measure_messages(struct train_run *run)
{
  enum {
    WORDS = sizeof(struct plan_sample) / sizeof(int64_t),
    SUMS = sizeof(struct plan_sample) / sizeof(struct exactsum)
  };
  struct train_metrics *m = &run->metrics;
  const struct train_metrics before = *m;
  const int units = plan_of(run)->input.model->units;
  if (!m->sample || run->job->exec[JOB_WARMUP] ||
      !train_is_due(run->step, run->deck->compress.sample))
    return STATUS_OK;
  for (int u = 0; u < units; u++)
    exec_read_sample(exec_of(run), u, &m->sample[u]);
  watchdog_enter(watchdog_of(exec_of(run)), TASK_MEET, NULL,
                 "the sum of errors of messages in step %lld", (long long)run->step);
  enum status status = comm_sum_i64(run->comm, (int64_t *)m->sample, units * WORDS);
  watchdog_leave(watchdog_of(exec_of(run)), TASK_MEET);
  m->residual = 0;
  for (int i = 0; i < units * SUMS && !status; i++)
    exactsum_normalize((struct exactsum *)m->sample + i);
  for (int u = 0; u < units && !status; u++)
    status = record_sample(run, u);
  const double n = (double)(m->samples - before.samples);
  train_begin(run, NULL, true);
  train_put_known(run, NULL, "compression/grad_rel_error", (m->error - before.error) / n);
  train_put_known(run, NULL, "compression/grad_cos_sim", (m->cosine - before.cosine) / n);
  train_put_known(run, NULL, "compression/residual_norm",
                  deck_feedback(run->deck) ? sqrt(m->residual) : NAN);
  (void)train_end(run, NULL, true);
  return status;
}

/* ---- of the run ---- */

/* The last part of a path. */
static void record_base(struct json_writer *line, const char *key, const char *path)
{
  char text[PATH_MAX];
  snprintf(text, sizeof text, "%s", path);
  json_write_text(line, key, basename(text));
}

/* A word per setting that the codec has: PREFIXblock=256. */
static void print_settings(const struct codec_settings *set, const char *prefix, char *out,
                           size_t size)
{
  if (set->block)
    append_text(out, size, "%sblock=%lld ", prefix, (long long)set->block);
  if (set->levels)
    append_text(out, size, "%slevels=%d ", prefix, set->levels);
  if (set->rank)
    append_text(out, size, "%srank=%d ", prefix, set->rank);
  if (set->density > 0)
    append_text(out, size, "%sdensity=%g ", prefix, set->density);
  if (set->threshold > 0)
    append_text(out, size, "%sthreshold=%g ", prefix, set->threshold);
}

/* The codec of the first unit whose parameters are encoded. */
static void print_weights_codec(const struct plan *plan, char *out, size_t size)
{
  for (int u = 0; u < plan->input.model->units; u++) {
    const struct codec *codec = &plan->unit[u].policy.weights;
    char name[64];
    if (!codec->ops)
      continue;
    codec_print_name(codec, name, sizeof name);
    append_text(out, size, "weights=%s ", name);
    print_settings(&codec->set, "weights.", out, size);
    if (plan->unit[u].policy.difference)
      append_text(out, size, "delta=true ");
    return;
  }
}

static void record_codec(struct train_run *run)
{
  const char *feedback = deck_feedback(run->deck);
  const struct plan *plan = plan_of(run);
  char method[256], config[200] = "";
  int u = 0; /* the first unit whose codec is not `none` */
  while (u < plan->input.model->units - 1 &&
         plan->unit[u].policy.grads.ops->traits & CODEC_IDENTITY)
    u++;
  plan_print_codecs(plan, method, sizeof method);
  if (options_is_chosen(run->deck->set, "compress.grads.codec"))
    snprintf(method, sizeof method, "none"); /* the method of the deck, whose sums are the same */
  print_settings(&plan->unit[u].policy.grads.set, "", config, sizeof config);
  if (!options_is_chosen(run->deck->set, "compress.weights.codec"))
    print_weights_codec(plan, config, sizeof config);
  append_text(config, sizeof config, "feedback=%s", feedback ? feedback : "off");
  json_write_text(run->line, "compress_method", method);
  json_write_text(run->line, "compress_config", config);
}

void train_record_times(struct train_run *run, const char *prefix, double unit)
{
  static const int percentiles[] = {50, 90, 95};
  const bool any = run->metrics.timed > 0;
  char key[48];
  snprintf(key, sizeof key, "%smean", prefix);
  json_write_real(run->line, key, any ? unit * stats_mean(&run->stats) : NAN);
  for (int i = 0; i < 3; i++) {
    snprintf(key, sizeof key, "%sp%d", prefix, percentiles[i]);
    json_write_real(run->line, key,
                    any ? unit * stats_percentile(&run->stats, percentiles[i]) : NAN);
  }
}

static void record_communication(struct train_run *run, const struct exec_profile *profile)
{
  struct json_writer *line = run->line;
  const int64_t coded = run->step - run->first - run->warmed;
  const struct comm_varying all = comm_sent_varying(run->comm);
  const double varying = coded > 0 ? (double)(all.exchanged + all.gathered) / (double)coded : 0,
               sent = profile->steps * ((double)plan_sent_bytes(plan_of(run)) + varying);
  double comm_s = 0;
  for (int op = 0; op < OP_COUNT; op++)
    comm_s += profile->comm_s[op];
  json_write_real(line, "comm_time_ms_total", ms * comm_s);
  json_write_real(line, "comm_ratio", comm_s / run->metrics.timed_s);
  json_write_open(line, "comm_time_ms_by_op", '{');
  for (int op = 0; op < OP_COUNT; op++)
    if (profile->comm_s[op] > 0)
      json_write_real(line, plan_op_name((enum op)op), ms * profile->comm_s[op]);
  json_write_close(line, '}');
  json_write_real(line, "overlap_ratio", profile->hidden_s / comm_s);
  json_write_real(line, "effective_bw", comm_s > 0 ? per_gb * sent / comm_s : NAN);
  json_write_real(line, "scaling_efficiency", NAN); /* sluice compare knows other runs */
}

/* varying: bytes of gradients in messages of varying length that all ranks have sent. */
static void record_bytes(struct train_run *run, int64_t varying)
{
  struct json_writer *line = run->line;
  const struct gradient_bytes bytes = plan_gradient_bytes(plan_of(run));
  const int64_t ranks = comm_ranks(run->comm), all = (run->step - run->first) * ranks,
                warmed = run->warmed * ranks; /* whose messages are as large as gradients */
  const int64_t raw = all * bytes.raw,
                sent = warmed * bytes.raw + (all - warmed) * bytes.messages + varying;
  const double density = (double)bytes.chosen / (double)bytes.elements;
  json_write_int(line, "bytes_raw_total", raw);
  json_write_int(line, "bytes_compressed_total", sent);
  json_write_real(line, "compression_ratio", (double)raw / (double)sent);
  json_write_int(line, "index_bytes", (all - warmed) * bytes.indices);
  json_write_real(line, "density", density);
  json_write_real(line, "sparsity", 1 - density);
}

static void record_codec_costs(struct train_run *run, const struct exec_profile *profile)
{
  const struct plan *plan = plan_of(run);
  const struct train_metrics *m = &run->metrics;
  const double steps = profile->steps, samples = (double)m->samples;
  const bool feedback = deck_feedback(run->deck);
  bool lossless = true;
  struct json_writer *line = run->line;
  const double encode_s = profile->op_s[OP_ENCODE] + profile->op_s[OP_ENCODE_PARAMS],
               decode_s = profile->op_s[OP_DECODE_SUM] + profile->op_s[OP_DECODE_PARAMS];
  int64_t extra = 0; /* collectives that the plan without a codec does not have */
  double extra_s = 0;
  for (int u = 0; u < plan->input.model->units; u++)
    lossless &= (plan->unit[u].policy.grads.ops->traits & CODEC_LOSSLESS) != 0;
  for (int i = 0; i < plan->n; i++)
    extra += op_rows[plan->instr[i].op].extra && plan_instr_ranks(plan, &plan->instr[i]) > 1;
  for (int op = 0; op < OP_COUNT; op++)
    extra_s += op_rows[op].extra ? profile->comm_s[op] : 0;
  json_write_real(line, "compress_time_ms", ms * encode_s / steps);
  json_write_real(line, "decompress_time_ms", ms * decode_s / steps);
  json_write_int(line, "extra_collectives", extra);
  json_write_real(line, "extra_collective_time_ms", ms * extra_s / steps);
  json_write_real(line, "residual_norm", feedback ? sqrt(m->residual) : NAN);
  json_write_real(line, "grad_rel_error", lossless ? 0 : m->error / samples);
  json_write_real(line, "grad_cos_sim", lossless ? 1 : m->cosine / samples);
}

static void record_quality(struct train_run *run)
{
  const struct train_metrics *m = &run->metrics;
  const bool known = run->eval_step > 0;
  struct json_writer *line = run->line;
  json_write_real(line, "train_loss", run->last.result.loss);
  json_write_real(line, "val_step", known ? (double)run->eval_step : NAN);
  json_write_real(line, "val_loss", known ? run->eval.loss : NAN);
  json_write_real(line, "val_ppl", known ? run->eval.perplexity : NAN);
  json_write_int(line, "nonfinite_steps", m->nonfinite);
  json_write_int(line, "clipped_steps", m->clipped);
}

static void record_dataset(struct train_run *run)
{
  char *text = NULL;
  if (!options_print_named(run->deck->set, "data.train", &text))
    json_write_text(run->line, "dataset", text);
  mem_free(text);
}

void train_record_metrics(struct train_run *run, int64_t used, int64_t varying)
{
  const struct deck *deck = run->deck;
  const struct exec_profile *profile = &run->metrics.profile;
  const struct exec_memory *memory = &run->job->memory;
  const int64_t arenas =
      memory->persistent_bytes[TIER_DEVICE] + memory->transient_bytes[TIER_DEVICE];
  record_base(run->line, "run_name", deck->run.dir);
  json_write_int(run->line, "world_size", comm_ranks(run->comm));
  record_base(run->line, "model", *deck->train.init ? deck->train.init : deck->model.arch);
  record_dataset(run);
  json_write_int(run->line, "max_length", run->job->shape.sequence);
  json_write_int(run->line, "batch_size", deck->data.batch);
  record_codec(run);
  json_write_int(run->line, "timed_steps", run->metrics.timed);
  train_record_times(run, "step_time_ms_", ms);
  record_communication(run, profile);
  record_bytes(run, varying);
  record_codec_costs(run, profile);
  record_quality(run);
  json_write_real(run->line, "mem_peak_alloc_gb", per_gb * (double)arenas);
  json_write_real(run->line, "mem_peak_reserved_gb", per_gb * (double)used);
  /* A start that continues a run does not know earlier results. */
  const bool reached = run->first == 0 && run->metrics.target_step > 0;
  json_write_real(run->line, "time_to_target_ppl_s", reached ? run->metrics.target_s : NAN);
  json_write_real(run->line, "steps_to_target", reached ? (double)run->metrics.target_step : NAN);
  json_write_real(run->line, "ppl_at_fixed_time", NAN); /* sluice compare knows the time */
}
