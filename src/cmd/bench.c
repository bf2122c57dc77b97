/* sluice bench: training steps on random tokens, the rates of a model's passes, and rows of decks
 * in one start. Its parts are in bench_*.c. */
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cmd/bench_frame.h"
#include "exec/op_counters.h"
#include "io/text/file.h"
#include "job/rates.h"
#include "job/state.h"
#include "plan/plan.h"
#include "plan/traffic.h"
#include "train/data.h"
#include "train/train.h"

struct values {
  int64_t steps, warmup, documents;
  double peak;
  char *results, *rates, *rows;
};

/* clang-format off */
static const struct option table[] = {
    {"steps", OPTION_INT, AT(steps), "10", .least = 1, .most = 1e6, .unit = "steps",
     .text = "Number of timed steps."},
    {"warmup", OPTION_INT, AT(warmup), "2", .least = 0, .most = 1e6, .unit = "steps",
     .text = "Steps before the clock starts. 0: the clock starts while all lanes are idle."},
    MADE_DOCUMENTS(documents),
    {"peak", OPTION_REAL, AT(peak), "0", .least = 0, .most = 1e9, .unit = "TFLOP/s",
     .text = "Measured matrix peak of a rank's device. With it the model FLOP/s utilization (MFU) "
             "is reported."},
    {"rates", OPTION_STRING, AT(rates), "", .path = true,
     .text = "File of sluice bench rates. Add this model's passes to it. sluice plan then predicts "
             "steps from them. Passes that are there already are replaced."},
    {"rows", OPTION_STRING, AT(rows), "", .path = true,
     .text = "File of rows, which are measured one after the other in one start. A line is a name "
             "and words key=value, which are added to those of the command line. # begins a "
             "comment. The lines of results= have the name as row. A row that is refused is "
             "recorded with the reason, and the others go on."},
    BENCH_RESULTS(results),
    {.name = NULL},
};
/* clang-format on */

struct measurement {
  const char *row; /* NULL: there are no rows */
  const struct job *job;
  const struct values *values;
  struct data_sources data;
  struct data_order order;
  struct data_counts counts; /* of the timed steps */
  struct stats stats;
  struct exec_profile profile;
  double pass[JOB_PASSES];      /* GFLOP/s */
  bool by_lane;                 /* run.counters has the threads' hardware counters */
  struct op_counters *counters; /* of the process on rank 0; otherwise NULL, as is the next */
  struct op_counters_lane *process;
  int64_t counted[OP_COUNTERS];
  struct trace_summary trace;
  int64_t device_used, device_all;
  struct comm_varying varying; /* per step */
  int64_t steps; /* that profile and counters are of: the timed ones, and the one before them */
  double seconds, loss; /* seconds: of the timed steps */
};

/* Runs one step after the other, as in training. Work that a step leaves after its metrics runs
 * during the next one. */
static void run_steps(struct job *job, int64_t first, int64_t n, struct measurement *out)
{
  struct exec *exec = job->exec[PLAN_TRAIN];
  out->counts = (struct data_counts){0};
  for (int64_t i = first; i < first + n; i++) {
    const double start = clock_s();
    struct exec_result result;
    struct data_counts counts;
    comm_must(job->comm, data_count(job, &out->order, i, &counts));
    comm_must(job->comm, exec_set_targets(exec, counts.targets));
    comm_must(job->comm, exec_step(exec, i, i + 1, job->deck->optim.lr, &result));
    if (i >= out->values->warmup)
      stats_add(&out->stats, clock_s() - start);
    out->loss = result.loss;
    out->counts.targets += counts.targets;
    out->counts.filled += counts.filled;
    out->counts.squares += counts.squares;
    log_progress(2, "step %lld  loss %.4f  %.3f s", (long long)i + 1, result.loss,
                 clock_s() - start);
  }
  log_progress_end();
}

/* The last step of the warm-up begins at rest. The clock runs from its end to the end of the last
 * step, so that work that a step leaves to the next counts once. */
static enum status measure(struct job *job, struct measurement *out)
{
  const struct values *values = out->values;
  out->job = job;
  enum status status = comm_agree(job->comm, stats_create(values->steps, &out->stats));
  if (status)
    return status;
  const int64_t before = values->warmup > 0;
  run_steps(job, 0, values->warmup - before, out);
  comm_must(job->comm, exec_drain(job->exec[PLAN_TRAIN]));
  exec_profile(job->exec[PLAN_TRAIN], &out->profile); /* forget the warm-up */
  const struct comm_varying varying = comm_sent_varying(job->comm);
  if (out->process)
    op_counters_read(out->process, out->counted);
  run_steps(job, values->warmup - before, before, out);
  const double start = clock_s();
  run_steps(job, values->warmup, values->steps, out);
  out->seconds = clock_s() - start;
  comm_must(job->comm, exec_drain(job->exec[PLAN_TRAIN]));
  out->steps = before + values->steps;
  out->varying = comm_sent_varying(job->comm);
  out->varying.exchanged = (out->varying.exchanged - varying.exchanged) / out->steps;
  out->varying.gathered = (out->varying.gathered - varying.gathered) / out->steps;
  if (out->process)
    op_counters_read(out->process, out->counted);
  exec_profile(job->exec[PLAN_TRAIN], &out->profile);
  job_pass_rates(job->plan[PLAN_TRAIN], &out->profile, out->pass);
  status = job_rates_learn(job, &out->profile);
  return status
             ?: comm_agree(job->comm, job->device->ops->memory(job->device, &out->device_used,
                                                               &out->device_all));
}

static double step_seconds(const struct measurement *m)
{
  return m->seconds / (double)m->stats.n;
}

/* The share of a step's time, from the seconds over all measured steps. */
static double share(const struct measurement *m, double seconds)
{
  return seconds / (double)m->steps / step_seconds(m);
}

static void print_counters(const struct measurement *m)
{
  double cycles = 0;
  if (m->by_lane)
    printf("%-22s by lane, as run.counters says: in the trace (train.trace)\n", "counters");
  if (!m->process)
    return;
  const char *note = op_counters_note(m->counters);
  printable_print(stdout, "%-22s per step, on rank 0%s%s\n", "counters", *note ? "; " : "", note);
  for (int e = 0; e < op_counters_events(m->counters); e++) {
    const char *key = op_counters_key(m->counters, e);
    const double count = (double)m->counted[e] / (double)m->steps;
    if (count < 0)
      continue;
    if (!strcmp(key, "cycles"))
      cycles = count;
    if (!strcmp(key, "instructions") && cycles > 0)
      printable_print(stdout, "  %-20s %.3g (%.2f per cycle)\n", key, count, count / cycles);
    else if (!strcmp(key, "task_clock_ns"))
      printf("  %-20s %.4f s (%.2f cores busy)\n", "task_clock", count * 1e-9,
             count * 1e-9 / step_seconds(m));
    else
      printable_print(stdout, "  %-20s %.3g\n", key, count);
  }
}

/* A count of the timed steps, per step. */
static double per_step(const struct measurement *m, int64_t count)
{
  return (double)count / (double)m->stats.n;
}

static double tokens_per_s(const struct measurement *m)
{
  return per_step(m, m->counts.filled) / step_seconds(m);
}

/* The share of the positions of all sequences. */
static double share_filled(const struct measurement *m)
{
  const struct job *job = m->job;
  return per_step(m, m->counts.filled) / (double)(job->deck->data.batch * job->shape.sequence);
}

/* Floating-point operations of one rank. */
static double model_flops(const struct measurement *m)
{
  const struct job *job = m->job;
  const double squares = data_is_whole(&m->data) ? 0 : per_step(m, m->counts.squares);
  return job_step_flops(job, (int64_t)per_step(m, m->counts.filled), squares) / step_seconds(m) /
         comm_ranks(job->comm);
}

static void print_speed(struct measurement *m)
{
  const int ranks = comm_ranks(m->job->comm);
  const double peak = m->values->peak;
  printf("%-22s %.0f tokens/s, %.0f per rank\n", "speed", tokens_per_s(m), tokens_per_s(m) / ranks);
  if (!data_is_whole(&m->data))
    printf("%-22s %.1f %% of positions filled, %.0f trained tokens/s, %.4g pairs of attention\n",
           "documents", 100 * share_filled(m), per_step(m, m->counts.targets) / step_seconds(m),
           per_step(m, m->counts.squares));
  printf("%-22s mean %.4f s, p50 %.4f, p90 %.4f, p95 %.4f\n", "step", step_seconds(m),
         stats_percentile(&m->stats, 50), stats_percentile(&m->stats, 90),
         stats_percentile(&m->stats, 95));
  if (m->profile.matmul_s > 0)
    printf("%-22s %.1f %% of the step, at %.1f GFLOP/s per rank\n", "matrix products",
           100 * share(m, m->profile.matmul_s),
           m->profile.matmul_flops / m->profile.matmul_s * 1e-9);
  printf("%-22s %.1f GFLOP/s, %.1f per rank (3 x forward)\n", "model",
         model_flops(m) * ranks * 1e-9, model_flops(m) * 1e-9);
  if (peak > 0)
    printf("%-22s %.1f %% of %.1f TFLOP/s\n", "MFU", 100 * model_flops(m) / (peak * 1e12), peak);
}

enum { RATES_MOST_BYTES = 1 << 16 };

/* The file without lines of passes, and those of this run after it. */
static enum status add_passes(const struct measurement *m)
{
  const char *path = m->values->rates;
  char *old = NULL, *text = NULL;
  size_t bytes = 0;
  enum status status = file_read_all(path, RATES_MOST_BYTES, &old, &bytes)
                           ?: job_rates_with_passes(old, m->pass, &text)
                           ?: file_write_all(path, text, strlen(text));
  mem_free(text);
  mem_free(old);
  return status;
}

static void print(struct measurement *m)
{
  const struct job *job = m->job;
  const struct exec_profile *p = &m->profile;
  printf("%-22s %s, %.1f M parameters, B %lld, T %lld, %s\n", "model", job->deck->model.arch,
         (double)job->model->parameters * 1e-6, (long long)job->deck->data.batch,
         (long long)job->shape.sequence, bench_size(job->comm, job->threads).text);
  printf("%-22s %s in %s, %s of %s in use on rank 0, %s planned\n", "device", job->place.device,
         job->place.precision, mem_amount((double)m->device_used).text,
         mem_amount((double)m->device_all).text,
         mem_amount((double)plan_tier_bytes(job->plan[PLAN_TRAIN], TIER_DEVICE)).text);
  print_speed(m);
  for (int i = 0; i < JOB_PASSES; i++)
    printf("%-22s %.1f GFLOP/s, %s\n", job_passes[i], m->pass[i],
           job_rates_find(job_passes[i])->text);
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (p->busy_s[lane] > 0)
      printf("lane %-17s busy %.1f %%, waiting %.1f %%\n", plan_lane_name((enum plan_lane)lane),
             100 * share(m, p->busy_s[lane]), 100 * share(m, p->wait_s[lane]));
  for (int op = 0; op < OP_COUNT; op++)
    if (p->op_s[op] > 0)
      printf("  %-20s %.1f %%\n", plan_op_name((enum op)op), 100 * share(m, p->op_s[op]));
  print_counters(m);
}

static void record_counters(struct json_writer *line, const struct measurement *m)
{
  if (!m->process)
    return;
  for (int e = 0; e < op_counters_events(m->counters); e++) {
    char key[64];
    snprintf(key, sizeof key, "step_%s", op_counters_key(m->counters, e));
    if (m->counted[e] >= 0)
      json_write_real(line, key, (double)m->counted[e] / (double)m->steps);
  }
  if (*op_counters_note(m->counters))
    json_write_text(line, "counters_note", op_counters_note(m->counters));
}

static void record(struct json_writer *line, void *arg)
{
  struct measurement *m = arg;
  const struct job *job = m->job;
  const double peak = m->values->peak;
  const struct plan *plan = job->plan[PLAN_TRAIN];
  const struct gradient_bytes bytes = plan_gradient_bytes(plan);
  const int64_t local_ranks = comm_local_ranks(job->comm);
  char key[64];
  if (m->row)
    json_write_text(line, "row", m->row);
  results_time(line);
  results_origin(line);
  train_record_job(line, job);
  json_write_int(line, "batch", job->deck->data.batch);
  json_write_int(line, "sequence", job->shape.sequence);
  json_write_int(line, "device_bytes", m->device_used);
  json_write_int(line, "planned_bytes", job_planned_bytes(job));
  train_record_tiers(line, plan);
  /* The sum over all ranks of the node of rank 0. A shard group shares some of them. */
  json_write_int(line, "node_host_bytes",
                 local_ranks * plan_tier_bytes(plan, TIER_HOST) +
                     local_ranks * plan_shared_bytes(plan) / job->shape.group);
  json_write_real(line, "step_s", step_seconds(m));
  json_write_real(line, "step_p50", stats_percentile(&m->stats, 50));
  json_write_int(line, "sent_bytes",
                 plan_sent_bytes(plan) + m->varying.exchanged + m->varying.gathered);
  json_write_int(line, "gradient_bytes", bytes.raw);
  json_write_int(line, "message_bytes", bytes.messages + m->varying.exchanged);
  json_write_real(line, "tokens_per_s", tokens_per_s(m));
  json_write_real(line, "tokens_per_s_rank", tokens_per_s(m) / comm_ranks(job->comm));
  if (!data_is_whole(&m->data)) {
    json_write_real(line, "filled", share_filled(m));
    json_write_real(line, "trained", per_step(m, m->counts.targets));
    json_write_real(line, "pairs", per_step(m, m->counts.squares));
  }
  json_write_real(line, "model_gflops_rank", model_flops(m) * 1e-9);
  if (peak > 0)
    json_write_real(line, "mfu", model_flops(m) / (peak * 1e12));
  if (m->profile.matmul_s > 0) {
    json_write_real(line, "matmul_share", share(m, m->profile.matmul_s));
    json_write_real(line, "matmul_gflops", m->profile.matmul_flops / m->profile.matmul_s * 1e-9);
  }
  for (int i = 0; i < JOB_PASSES; i++) {
    snprintf(key, sizeof key, "%s_gflops", job_passes[i]);
    json_write_real(line, key, m->pass[i]);
  }
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    snprintf(key, sizeof key, "busy_%s_s", plan_lane_name((enum plan_lane)lane));
    if (m->profile.busy_s[lane] > 0) /* seconds per step */
      json_write_real(line, key, m->profile.busy_s[lane] / (double)m->steps);
  }
  json_write_real(line, "loss", m->loss);
  record_counters(line, m);
}

static enum status report(struct measurement *m)
{
  print(m);
  enum status status = *m->values->rates ? add_passes(m) : STATUS_OK;
  if (!status && m->trace.steps > 0)
    status = bench_record(m->values->results, "trace", trace_record, &m->trace);
  return status ? status : bench_record(m->values->results, "bench", record, m);
}

static void close_counters(struct measurement *m)
{
  op_counters_stop(m->process);
  op_counters_lane_destroy(m->process);
  op_counters_destroy(m->counters);
  m->process = NULL;
  m->counters = NULL;
}

/* Counters are optional, so the measurement continues without them. They start before the job,
 * because its threads inherit them. */
static void open_counters(struct measurement *m)
{
  enum status status = op_counters_create(COUNT_PROCESS, 0, NULL, &m->counters)
      ?: op_counters_lane_create(m->counters, NULL, &m->process)
      ?: op_counters_start(m->process);
  if (!status)
    return;
  log_warn("nothing is counted: %s", status_text());
  close_counters(m);
}

static enum status run_deck(const struct arguments *arguments, const char *row)
{
  const struct values *values = arguments->values;
  struct measurement measurement = {.values = values, .row = row, .data.n = 1};
  struct token_set **set = &measurement.data.of[0].set;
  struct deck deck = {0};
  struct job *job = NULL;
  enum status status = deck_open(arguments, arguments->word[0], &deck);
  measurement.by_lane = !status && deck_counts(&deck);
  if (!status && !measurement.by_lane && comm_rank(arguments->comm) == 0)
    open_counters(&measurement);
  status = status
      ?: comm_agree(arguments->comm, job_make_data(&deck, values->documents, set))
      ?: job_look_at_data(arguments->comm, &deck, *set)
      ?: job_begin(arguments->comm, &deck, &job)
      ?: job_create(job, JOB_BENCH)
      ?: comm_agree(arguments->comm, job_state_init(job));
  if (!status) {
    measurement.order = (struct data_order){.data = &measurement.data,
                                            .seed = (uint64_t)deck.run.seed,
                                            .batch = deck.data.batch,
                                            .rank = comm_rank(arguments->comm),
                                            .shape = job->shape};
    status = data_take(arguments->comm, &deck, job->shape.sequence, &measurement.data)
                 ?: job_start(job, PLAN_TRAIN, data_load_train, &measurement.order);
    if (!status)
      job_read_ahead(job, PLAN_TRAIN, 0, values->warmup + values->steps);
    status = status
        ?: measure(job, &measurement)
        ?: comm_agree(arguments->comm, job_end_trace(job, &measurement.trace));
  }
  status = status
               ?: comm_agree(arguments->comm,
                             comm_rank(arguments->comm) == 0 ? report(&measurement) : STATUS_OK);
  job_destroy(job);
  data_close(&measurement.data);
  close_counters(&measurement);
  stats_destroy(&measurement.stats);
  deck_destroy(&deck);
  return status;
}

static void record_refused(struct json_writer *line, void *arg)
{
  json_write_text(line, "row", arg);
  json_write_text(line, "refused", status_text());
}

/* A line of the file of rows: a name and words for the deck. It is cut into words. */
static enum status run_row(const struct arguments *arguments, char *line)
{
  const char *blanks = " \t\r";
  const struct values *values = arguments->values;
  struct arguments row = *arguments;
  char *rest = NULL, *name = strtok_r(line, blanks, &rest);
  if (!name)
    return STATUS_OK;
  enum status status = comm_agree(
      arguments->comm,
      mem_new(MEM_META, arguments->assignments + (int64_t)strlen(rest) + 1, &row.assignment));
  if (status)
    return status;
  for (int i = 0; i < arguments->assignments; i++)
    row.assignment[i] = arguments->assignment[i];
  for (char *word; (word = strtok_r(NULL, blanks, &rest));)
    row.assignment[row.assignments++] = word;
  log_info("row %s", name);
  status = run_deck(&row, name);
  mem_free(row.assignment);
  if (status != STATUS_USAGE)
    return status;
  log_warn("row %s: %s", name, status_text());
  return comm_agree(arguments->comm,
                    comm_rank(arguments->comm) == 0
                        ? bench_record(values->results, "bench", record_refused, name)
                        : STATUS_OK);
}

enum { ROWS_MOST_BYTES = 1 << 20 };

static enum status run_rows(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  char *text = NULL;
  size_t bytes = 0;
  enum status status = STATUS_OK;
  if (comm_rank(arguments->comm) == 0)
    status = file_read_all(values->rows, ROWS_MOST_BYTES, &text, &bytes);
  status = comm_agree(arguments->comm, status) ?: comm_broadcast_text(arguments->comm, &text, 0);
  char *rest = NULL;
  for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line && !status;
       line = strtok_r(NULL, "\n", &rest)) {
    line[strcspn(line, "#")] = '\0';
    status = run_row(arguments, line);
  }
  mem_free(text);
  return status;
}

static enum status run(const struct arguments *arguments)
{
  const struct values *values = arguments->values;
  char *text = NULL;
  size_t bytes = 0;
  enum status status = STATUS_OK;
  if (comm_rank(arguments->comm) == 0 && *values->rates) /* before anything is measured */
    status = file_read_all(values->rates, RATES_MOST_BYTES, &text, &bytes)
                 ?: file_check_write(values->rates, 2 * RATES_MOST_BYTES);
  mem_free(text);
  status =
      comm_agree(arguments->comm, status) ?: bench_check_results(arguments->comm, values->results);
  return status ?: *values->rows ? run_rows(arguments) : run_deck(arguments, NULL);
}

static const struct command *const parts[] = {&bench_adam, &bench_io, &bench_rates, NULL};

const struct command command_bench = {
    .name = "bench",
    .usage = "DECK [steps=10] [warmup=2] [documents=0] [peak=TFLOP/s] [key=value ...] | "
             "adam [key=value ...] | io [key=value ...] | rates [key=value ...]",
    .summary = "measure training steps, the optimizer, NVMe and rates",
    .text = "sluice bench DECK runs the deck's training step on random tokens, without "
            "checkpoints or a log file. It reports tokens per second, the rate of the matrix "
            "products (with peak= also the MFU), device memory and how busy each lane was. With "
            "documents= it also reports how full sequences are, and how many tokens are trained.\n"
            "\n"
            "On rank 0 it counts processor time, page faults and context switches, and through "
            "PAPI cycles, instructions and last-level cache misses. With train.trace= another "
            "line of results= has the time of communication, copies, updates and the disk in the "
            "traced steps, and how much of it was exposed.\n"
            "\n"
            "Three more measurements have a page of their own:\n"
            "  adam  the host's AdamW step, compared with the memory bandwidth: sluice bench adam "
            "--help\n"
            "  io  the NVMe store, compared with direct I/O: sluice bench io --help\n"
            "  rates  the rates that sluice plan predicts from: sluice bench rates --help",
    .examples = "  mpirun -n 4 --bind-to none sluice bench inputs/qwen2.5-7b.yaml peak=790\n"
                "  sluice bench inputs/qwen2.5-7b.yaml model.layers=2 rates=rates.yaml\n"
                "  sluice bench adam threads=16\n"
                "  mpirun -n 4 --bind-to none sluice bench rates out=rates.yaml dir=/local/disk\n",
    .options = table,
    .parts = parts,
    .values_size = sizeof(struct values),
    .takes_deck = true,
    .lists_keys = true,
    .uses_mpi = true,
    .words = {1, 1},
    .run = run,
};
