/* Traced steps, and what is counted of them. Oracles: sums and overlaps of events made by hand,
 * computed here. A traced step has every instruction of the plan once, and none before the
 * instructions that it waits for. A run without a trace is bitwise identical. This program's own
 * getrusage() counts how often a thread is asked for. */
/* ranks: 1 2 3 */
#include <math.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/trace.h"
#include "io/text/file.h"
#include "io/text/json.h"
#include "job.h"
#include "plan/internal.h"
#include "plan/ops.h"
#include "tests/base/full.h"
#include "tests/test.h"

static _Atomic int64_t asked;

int getrusage(__rusage_who_t who, struct rusage *usage)
{
  atomic_fetch_add(&asked, (int)who == RUSAGE_THREAD);
  return (int)syscall(SYS_getrusage, who, usage);
}

static char folder[256], timeline[320], summary[320];
static struct trace_run *run;
static struct trace_summary sum;
static struct trace_facts facts;

static void paths_of(int rank)
{
  snprintf(timeline, sizeof timeline, "%s/trace/rank-%05d.json", folder, rank);
  snprintf(summary, sizeof summary, "%s/trace/summary-%05d.txt", folder, rank);
}

static void open_trace(const struct plan *of)
{
  char dir[300];
  snprintf(dir, sizeof dir, "%s/trace", folder);
  paths_of(of->input.rank);
  must(trace_run_open(dir, of, &facts, &run));
}

static void happened(int64_t step, int instr, double begin_ms, double end_ms)
{
  trace_run_event(
      run, &(struct exec_event){
               .step = step, .instr = instr, .begin_s = 1e-3 * begin_ms, .end_s = 1e-3 * end_ms});
}

static void near(double value, double expected)
{
  if (!(fabs(value - expected) <= 1e-12 * fmax(1, fabs(expected))))
    fail_msg("%.17g, not %.17g", value, expected);
}

static void expect_beside(enum plan_part part, double seconds, double exposed_s)
{
  near(sum.beside[part].seconds, seconds);
  near(sum.beside[part].exposed_s, exposed_s);
}

/* How often a file has this text. */
static int64_t count_in(const char *path, const char *words)
{
  char *text = NULL;
  size_t bytes;
  int64_t n = 0;
  must(file_read_all(path, 1 << 24, &text, &bytes));
  for (const char *at = strstr(text, words); at; at = strstr(at + 1, words))
    n++;
  mem_free(text);
  return n;
}

static void says(const char *path, const char *words)
{
  if (count_in(path, words) == 0)
    fail_msg("%s does not say '%s'", path, words);
}

static void summary_says(const char *line)
{
  says(summary, line);
}

static double field(struct json_file *file, const char *key)
{
  return json_get_real(json_find(json_root(file), key));
}

/* Oracle: the summary, number by number. */
static void expect_record(void)
{
  static const char *const names[] = {
      [PART_COMM] = "comm", [PART_COPY] = "copy", [PART_UPDATE] = "update", [PART_DISK] = "disk"};
  char path[320], key[32];
  struct results *results;
  snprintf(path, sizeof path, "%s/trace/results.jsonl", folder);
  must(results_open(path, &results));
  trace_record(results_begin(results, "trace"), &sum);
  must(results_end(results));
  must(results_close(results));
  struct json_file file;
  must(json_read(path, 1 << 24, &file));
  assert_true(field(&file, "first") == (double)sum.first &&
              field(&file, "steps") == (double)sum.steps);
  assert_true(field(&file, "steady_steps") == (double)sum.steady_steps &&
              field(&file, "step_s") == sum.step_s);
  assert_true(field(&file, "exposed_idle_s") == sum.idle_s);
  for (int part = 0; part < PART_NOTHING; part++) {
    snprintf(key, sizeof key, "busy_%s_s", names[part]);
    assert_true(field(&file, key) == sum.beside[part].seconds);
    snprintf(key, sizeof key, "exposed_%s_s", names[part]);
    assert_true(field(&file, key) == sum.beside[part].exposed_s);
  }
  must(file.status);
  json_close(&file);
  unlink(path);
}

static void remove_files(void)
{
  unlink(timeline);
  unlink(summary);
}

static struct comm *fake;
static struct job planned;
static const struct plan *plan; /* which nothing runs */

/* For the last but one of so many ranks, or the only one. */
static int make_plan(int ranks, const char *setup)
{
  must(comm_create_fake(ranks > 1 ? ranks - 2 : 0, ranks, ranks, &fake));
  job_plan(&planned, fake, "prefetch=1 %s", setup);
  plan = planned.plan;
  return 0;
}

FIXTURE(of_1)
{
  return make_plan(1, "");
}

FIXTURE(of_3)
{
  return make_plan(3, "");
}

FIXTURE(of_3_in_bf16)
{
  return make_plan(3, "codec=bf16 lr_scales=*:0.5");
}

FIXTURE(of_3_beside)
{
  return make_plan(3, "host beside resident=1");
}

FIXTURE(unmake)
{
  facts = (struct trace_facts){0};
  remove_files();
  job_close(&planned);
  comm_destroy(fake);
  return 0;
}

static int find_op(enum op op)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == op)
      return i;
  fail_msg("the plan has no %s", plan_op_name(op));
  return -1;
}

/* Milliseconds   compute 0 to 10 and 12 to 20, communication 2 to 3, 8 to 14 and 19 to 25: together
 * 1 + (2 + 2) + 1 of 13. */
TEST_WITH(sums_of_events, of_3, unmake)
{
  const int forward = find_op(OP_FORWARD), gather = find_op(OP_GATHER),
            reduce = find_op(OP_EXCHANGE), adam = find_op(OP_UPDATE);
  facts.link_bytes_s = 1e9;
  open_trace(plan);
  happened(5, forward, 0, 10);
  happened(5, gather, 2, 3);
  happened(5, gather, 8, 13);
  happened(5, reduce, 12.5, 14);
  happened(6, forward, 12, 20);
  happened(6, reduce, 19, 25);
  happened(6, adam, 1, 30);
  facts.operations[CLASS_PRODUCTS] = (struct class_total){7, 0.012, 6e12};
  facts.operations[CLASS_UPDATE] = (struct class_total){2, 0.003, 1.5e9};
  must(trace_run_close(run, &sum));

  assert_int_equal(sum.steady_steps, 0);
  near(sum.step_s, 0.015);
  near(sum.idle_s, 0.006);
  expect_beside(PART_COMM, 0.013 / 2, 0.007 / 2);
  expect_beside(PART_UPDATE, 0.029 / 2, 0.012 / 2); /* 1 to 30, without 0 to 10 and 12 to 20 */
  expect_beside(PART_COPY, 0, 0);
  expect_beside(PART_DISK, 0, 0);
  near(sum.busy_s[LANE_COMPUTE], 0.018);
  near(sum.busy_s[LANE_GATHER], 0.006);
  near(sum.busy_s[LANE_REDUCE], 0.0075);
  near(sum.busy_s[LANE_HOST], 0.029);
  near(sum.busy_s[LANE_IO], 0);
  assert_int_equal(sum.kind[OP_EXCHANGE].count, 2);
  assert_int_equal(sum.kind[OP_BACKWARD].count, 0);
  const double gathered = (double)plan->buffer[plan->instr[gather].use[1].buffer].bytes,
               reduced = (double)plan->buffer[plan->instr[reduce].use[0].buffer].bytes;
  near(sum.kind[OP_GATHER].wire_bytes, 2 * gathered * 2 / 3);
  near(sum.kind[OP_EXCHANGE].wire_bytes, 2 * reduced * 2 / 3);
  near(sum.kind[OP_FORWARD].wire_bytes, 0);

  char line[160];
  summary_says("rank 1 of 3: steps 5 to 6 in 30.000 ms, 15.000 ms per step\n");
  summary_says("FORWARD                   2        9.000        60.0 %\n");
  summary_says("products                3.5        6.000        40.0 %      500.0 TFLOP/s\n"
               "update                  1.0        1.500        10.0 %      500.0 GB/s\n");
  const double rate = 2 * gathered * 2 / 3 / 0.006;
  snprintf(line, sizeof line,
           "GATHER                    2        3.000        20.0 %% %10.2f %11.1f %%\n",
           1e-9 * rate, 1e-7 * rate);
  summary_says(line);
  summary_says("\ncommunication 6.500 ms per step, of which 3.500 ms are exposed (the compute lane "
               "runs nothing); overlap 0.462\nlink: 1.00 GB/s measured\n");
  summary_says("ranks.\nupdates 14.500 ms per step, of which 6.000 ms are exposed: 58.6 % hidden\n"
               "the compute lane runs nothing for 6.000 ms of 15.000 ms per step\nThese times are "
               "of all traced steps. ");
}

/* Two bytes an element between ranks: gathers, of parameters in fp32, stay as they are. */
TEST_WITH(gradients_in_bf16_count_half, of_3_in_bf16, unmake)
{
  char line[160];
  const int gather = find_op(OP_GATHER), reduce = find_op(OP_EXCHANGE);
  facts.link_bytes_s = 1e9;
  open_trace(plan);
  happened(5, gather, 0, 1);
  happened(5, reduce, 1, 2);
  happened(5, find_op(OP_METRICS), 2, 3);
  happened(5, find_op(OP_UPDATE), 3, 4);
  must(trace_run_close(run, &sum));
  const double gathered = (double)plan->buffer[plan->instr[gather].use[1].buffer].bytes,
               reduced =
                   (double)plan->buffer[plan->instr[reduce].use[EXCHANGE_RECEIVED].buffer].bytes,
               rate = reduced * 2 / 3 / 0.001;
  near(sum.kind[OP_GATHER].wire_bytes, gathered * 2 / 3);
  near(sum.kind[OP_EXCHANGE].wire_bytes, reduced * 2 / 3);
  snprintf(line, sizeof line, " %10.2f %11.1f %%\n", 1e-9 * rate, 1e-7 * rate);
  summary_says(line);

  says(timeline, "\"group\":\"shard\",\"codec\":\"bf16\"");
  says(timeline, "\"group\":\"shard\"}");
  says(timeline, "\"optimizer\":\"adamw\",\"lr_scale\":\"0.5\",\"rounding\":\"nearest\"");
  says(timeline, "\"clip\":\"0.5\"");
}

static int find_on(enum op op, enum plan_lane lane)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == op && plan->instr[i].lane == lane)
      return i;
  fail_msg("the plan has no %s on the %s lane", plan_op_name(op), plan_lane_name(lane));
  return -1;
}

/* Times in milliseconds; steps take 100. From 100 to 200 the compute lane has a gap of 20. In it a
 * copy of 20 ends, and a gather of 5 and an update on the device run. Work that the step before has
 * deferred is hidden. A copy of the next step begins here and continues into that step. */
static void step_in_the_midst(int steps)
{
  const int forward = find_op(OP_FORWARD), fetch = find_op(OP_FETCH);
  open_trace(plan);
  happened(5, forward, 0, 100);
  happened(5, find_on(OP_UPDATE, LANE_HOST), 110, 130);
  happened(6, forward, 100, 150);
  happened(6, forward, 170, 200);
  happened(6, fetch, 140, 160);
  happened(6, find_op(OP_GATHER), 160, 165);
  happened(6, find_on(OP_UPDATE, LANE_REDUCE), 165, 167);
  happened(6, find_on(OP_SQUARES, LANE_REDUCE), 167, 169); /* is nothing of what is asked for */
  happened(7, forward, 200, 300);
  happened(7, fetch, 190, 205);
  if (steps > 3)
    happened(8, forward, 300, 500);
  must(trace_run_close(run, &sum));
  assert_int_equal(sum.steps, steps);
  assert_int_equal(sum.steady_steps, steps - 2);
  const double n = steps - 2;
  near(sum.step_s, 0.100);
  near(sum.idle_s, 0.020 / n);
  expect_beside(PART_COPY, steps > 3 ? 0.035 / n : 0.030, 0.010 / n);
  expect_beside(PART_UPDATE, 0.022 / n, 0.002 / n);
  expect_beside(PART_COMM, 0.005 / n, 0.005 / n);
  expect_beside(PART_DISK, 0, 0);
  summary_says(steps > 3
                   ? "\nThese times are of 2 steps between the first and the last traced step.\n"
                   : "\nThese times are of 1 step between the first and the last traced step.\n");
  expect_record();
}

TEST_WITH(ends_are_left_out, of_3_beside, unmake)
{
  step_in_the_midst(3);
  step_in_the_midst(4);
}

/* Step 7 was released at rest, 100 ms after the end of step 6. These two steps do not count,
 * because nothing of another step overlaps them. Step 12 is no neighbour of step 10. */
TEST_WITH(a_rest_is_left_out, of_3_beside, unmake)
{
  const int forward = find_op(OP_FORWARD), fetch = find_op(OP_FETCH);
  static const double begins_ms[] = {0, 100, 300, 400, 500, 700, 0, 900};
  open_trace(plan);
  for (int step = 5; step <= 12; step++)
    if (step != 11) {
      const double begin_ms = begins_ms[step - 5];
      trace_run_event(run, &(struct exec_event){.step = step,
                                                .instr = forward,
                                                .rested = step == 7,
                                                .begin_s = 1e-3 * begin_ms,
                                                .end_s = 1e-3 * (begin_ms + 90)});
      happened(step, fetch, begin_ms + 80, begin_ms + 100);
    }
  must(trace_run_close(run, &sum));
  assert_int_equal(sum.steps, 7);
  assert_int_equal(sum.steady_steps, 2); /* 8 from 400 to 500, 9 from 500 to 700 */
  near(sum.step_s, 0.300 / 2);
  near(sum.idle_s, 0.120 / 2);
  expect_beside(PART_COPY, 0.040 / 2, 0.020 / 2);
}

TEST_WITH(one_rank_talks_to_nobody, of_1, unmake)
{
  open_trace(plan);
  happened(5, find_op(OP_METRICS), 0, 1);
  must(trace_run_close(run, &sum));
  expect_beside(PART_COMM, 0, 0);
  summary_says("overlap n/a\n");
}

TEST_WITH(spans_of_events, of_3, unmake)
{
  char name[96];
  const int gather = find_op(OP_GATHER);
  plan_instr_name(plan, gather, name, sizeof name);
  open_trace(plan);
  happened(5, gather, 2, 3);
  must(trace_run_close(run, &sum));
  summary_says("overlap 0.000\n");
  summary_says("link: n/a\n");
  assert_int_equal(count_in(summary, "operations"), 0); /* none was measured */

  char span[400];
  snprintf(span, sizeof span,
           "{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"cat\":\"GATHER\","
           "\"ts\":2000.000,\"dur\":1000.000,\"args\":{\"step\":5,\"unit\":\"%s\",\"micro\":0,"
           "\"bytes\":%lld,",
           LANE_GATHER, name, plan->input.model->unit[plan->instr[gather].unit].name,
           (long long)plan->buffer[plan->instr[gather].use[1].buffer].bytes);
  says(timeline, span);
}

static char faults[] = "page_faults", switches[] = "context_switches",
            *counted[] = {faults, switches};

static struct op_counters *open_counters(void)
{
  struct op_counters *counters;
  must(op_counters_create(COUNT_LANES, 2, counted, &counters));
  return counters;
}

static void spent(int64_t step, int instr, int64_t a, int64_t b)
{
  const int64_t both[OP_COUNTERS] = {a, b};
  trace_run_event(run, &(struct exec_event){
                           .step = step, .instr = instr, .begin_s = 1, .end_s = 2, .spent = both});
}

TEST_WITH(counters_of_events, of_3, unmake)
{
  const int forward = find_op(OP_FORWARD), backward = find_op(OP_BACKWARD),
            gather = find_op(OP_GATHER);
  struct op_counters *counters = open_counters();
  open_trace(plan);
  facts.counters = counters;
  spent(5, forward, 100, 3);
  spent(5, backward, 1000000, 0);
  spent(6, forward, 11, 4);
  spent(6, gather, -1, -1); /* not counted */
  must(trace_run_close(run, &sum));
  assert_int_equal(sum.kind[OP_FORWARD].spent[0], 111);
  assert_int_equal(sum.kind[OP_FORWARD].spent[1], 7);
  assert_int_equal(sum.kind[OP_GATHER].spent[0], 0);
  assert_int_equal(sum.spent[LANE_COMPUTE][0], 1000111);
  assert_int_equal(sum.spent[LANE_COMPUTE][1], 7);
  summary_says("\ncounted per step  page_faults context_switches\n");
  summary_says("\nFORWARD                  55.5              3.5\n");
  summary_says("\nBACKWARD               500000                0\n");
  summary_says("\ncompute                500056              3.5\n");

  says(timeline, "\"page_faults\":100,\"context_switches\":3}");
  assert_int_equal(count_in(timeline, "page_faults"), 3); /* none for what is not counted */
  op_counters_destroy(counters);
  facts.counters = NULL;
}

TEST_WITH(a_trace_of_nothing, of_3, unmake)
{
  open_trace(plan);
  must(trace_run_close(run, &sum));
  assert_int_equal(sum.steps, 0);
  summary_says("rank 1 of 3: no step was traced\n");
  must(trace_run_close(NULL, &sum));
  assert_int_equal(sum.steps, 0);
}

TEST_WITH(a_folder_that_cannot_be, of_3, unmake)
{
  run = NULL;
  assert_int_equal(trace_run_open("/dev/null/trace", plan, &facts, &run), STATUS_IO);
  assert_null(run);
}

TEST_WITH(a_full_disk, of_3, unmake)
{
  char temporary[340];
  open_trace(plan); /* makes the folder */
  must(trace_run_close(run, &sum));
  remove_files();
  snprintf(temporary, sizeof temporary, "%s.tmp", timeline);
  open_trace(plan);
  assert_true(full_behind(temporary));
  happened(5, 0, 1, 2);
  must_fail(trace_run_close(run, &sum), STATUS_IO, "No space left on device");
  assert_int_equal(sum.steps, 0);
  assert_false(file_exists(timeline));
  assert_false(file_exists(summary));
}

/* The calls of a run's callback, per instruction of the traced steps. The first of them is step
 * 1. */
struct witness {
  int n, steps;
  struct exec_event *event;
  int *seen;
  int64_t spent[2]; /* of all */
};

static void see(void *arg, const struct exec_event *event)
{
  struct witness *witness = arg;
  assert_in_range(event->step, 1, witness->steps);
  const int place = (int)(event->step - 1) * witness->n + event->instr;
  witness->event[place] = *event;
  for (int e = 0; e < 2 && event->spent; e++) {
    assert_true(event->spent[e] >= 0);
    witness->spent[e] += event->spent[e];
  }
  witness->seen[place]++;
  trace_run_event(run, event);
}

static void witness_create(struct witness *witness, const struct plan *of, int steps)
{
  *witness = (struct witness){.n = of->n, .steps = steps};
  must(mem_new(MEM_META, steps * of->n, &witness->event));
  must(mem_new(MEM_META, steps * of->n, &witness->seen));
  open_trace(of);
}

static void witness_free(struct witness *witness)
{
  mem_free(witness->seen);
  mem_free(witness->event);
}

/* A device has one clock: between two of them times are not compared. */
static void each_waited(const struct job *job, const struct witness *witness)
{
  const struct plan *of = job->plan;
  for (int place = 0; place < witness->steps * of->n; place++) {
    const struct instr *instr = &of->instr[place % of->n];
    assert_int_equal(witness->seen[place], 1);
    assert_true(witness->event[place].begin_s <= witness->event[place].end_s);
    for (int w = 0; w < instr->n_wait; w++) {
      const int before = (place / of->n - instr->wait[w].back) * of->n + instr->wait[w].instr;
      if (before >= 0 && (!job->host || of->on_host[instr->lane] ==
                                            of->on_host[of->instr[instr->wait[w].instr].lane]))
        assert_true(witness->event[before].end_s <= witness->event[place].begin_s + 1e-9);
    }
  }
}

/* The events' numbers are the summary's, and steps 1 and 2 are a part of all steps. */
static void expect_spent(const struct job *job, const struct witness *witness)
{
  for (int e = 0; e < 2; e++) {
    int64_t of_kinds = 0, of_lanes = 0, of_run = 0;
    for (enum op op = 0; op < OP_COUNT; op++)
      of_kinds += sum.kind[op].spent[e];
    for (enum plan_lane lane = 0; lane < LANE_COUNT; lane++) {
      const struct op_counters_sum *sums = exec_counted(job->exec, lane);
      of_lanes += sum.spent[lane][e];
      for (enum op op = 0; sums && op < OP_COUNT; op++)
        of_run += sums[op].spent[e];
    }
    assert_int_equal(of_kinds, witness->spent[e]);
    assert_int_equal(of_lanes, witness->spent[e]);
    assert_true(of_run >= of_lanes);
  }
}

TEST(every_instruction_of_a_traced_run)
{
  struct job_record plain = job_run(job_comm, "prefetch=1 micros=2");
  struct job job;
  struct witness witness;
  struct class_total total[CLASS_COUNT];
  job_open(&job, job_comm, "prefetch=1 micros=2");
  witness_create(&witness, job.plan, 2);
  struct op_counters *counters = open_counters();
  facts.counters = counters;
  must(job_reopen(&job, &(struct exec_config){.trace = see,
                                              .trace_arg = &witness,
                                              .trace_from = 1,
                                              .trace_to = 3,
                                              .counters = counters}));
  for (int step = 0; step < JOB_STEPS; step++)
    (void)job_step(&job, step);
  must(exec_drain(job.exec));
  must(exec_measured(job.exec, total));
  for (int c = 0; c < CLASS_COUNT; c++)
    assert_int_equal(total[c].calls, 0); /* the host device does not measure */
  must(trace_run_close(run, &sum));
  expect_spent(&job, &witness);
  each_waited(&job, &witness);

  assert_int_equal(sum.steps, 2);
  int64_t count = 0;
  for (int op = 0; op < OP_COUNT; op++)
    count += sum.kind[op].count;
  assert_int_equal(count, 2 * job.plan->n);
  const struct trace_beside *communication = &sum.beside[PART_COMM];
  assert_true(communication->exposed_s <= communication->seconds &&
              communication->seconds <= sum.step_s);
  assert_int_equal(communication->seconds == 0, comm_ranks(job_comm) == 1);
  assert_int_equal(count_in(timeline, "\"ph\":"), 1 + 2 * LANE_COUNT + 2 * job.plan->n);

  remove_files();
  witness_free(&witness);
  job_expect(&plain, job_end(&job));
  job_record_free(&plain);
  op_counters_destroy(counters);
  facts.counters = NULL;
}

/* A lane runs one instruction after the other, through all steps. */
static void each_in_turn(const struct plan *of, const struct witness *witness)
{
  double free_s[LANE_COUNT];
  for (int lane = 0; lane < LANE_COUNT; lane++)
    free_s[lane] = -INFINITY;
  for (int place = 0; place < witness->steps * of->n; place++) {
    double *from = &free_s[of->instr[place % of->n].lane];
    assert_true(witness->event[place].begin_s >= *from - 1e-9);
    *from = witness->event[place].end_s;
  }
}

enum { STEPS = 4, RESTED = 3 };

/* Traces steps 1 to 4 of so many. Step 3 is released at rest. `profile`: from step 2 on. */
static void run_traced(struct job *job, struct witness *witness, const char *setup, int steps,
                       struct exec_profile *profile)
{
  job_open(job, job_comm, "%s", setup);
  witness_create(witness, job->plan, STEPS);
  must(job_reopen(job,
                  &(struct exec_config){
                      .trace = see, .trace_arg = witness, .trace_from = 1, .trace_to = 1 + STEPS}));
  exec_profile_from(job->exec, 2);
  for (int step = 0; step < steps; step++) {
    if (step == RESTED)
      must(exec_drain(job->exec));
    job_step(job, step);
  }
  must(exec_drain(job->exec));
  exec_profile(job->exec, profile);
  must(trace_run_close(run, &sum));
}

static void end_traced(struct job *job, struct witness *witness)
{
  remove_files();
  witness_free(witness);
  job_close(job);
}

/* Traced steps that are followed by others before their times are read. */
static void trace_followed_steps(const char *setup)
{
  struct job job;
  struct witness witness;
  struct exec_profile profile;
  run_traced(&job, &witness, setup, STEPS + 3, &profile);
  for (int place = 0; place < STEPS * job.plan->n; place++)
    assert_int_equal(witness.event[place].rested, 1 + place / job.plan->n == RESTED);
  each_waited(&job, &witness);
  each_in_turn(job.plan, &witness);
  end_traced(&job, &witness);
}

TEST(steps_follow_each_other)
{
  trace_followed_steps("prefetch=1");
  trace_followed_steps("prefetch=1 host beside");
}

static double common_s(const struct exec_event *a, const struct exec_event *b)
{
  return fmax(0, fmin(a->end_s, b->end_s) - fmax(a->begin_s, b->begin_s));
}

/* The profile of the steps from place `first` on, per instruction, compared with all known
 * times. */
static void expect_profile(const struct job *job, const struct witness *witness, int first,
                           const struct exec_profile *profile)
{
  const struct plan *of = job->plan;
  double comm_s[OP_COUNT] = {0}, hidden_s = 0;
  for (int place = first; place < witness->steps * of->n; place++) {
    const struct instr *instr = &of->instr[place % of->n];
    const struct exec_event *event = &witness->event[place];
    if (op_rows[instr->op].part != PART_COMM || plan_instr_ranks(of, instr) == 1)
      continue;
    comm_s[instr->op] += event->end_s - event->begin_s;
    for (int other = 0; other < witness->steps * of->n; other++)
      if (of->instr[other % of->n].lane == LANE_COMPUTE)
        hidden_s += common_s(event, &witness->event[other]);
  }
  for (int op = 0; op < OP_COUNT; op++)
    near(profile->comm_s[op], comm_s[op]);
  near(profile->hidden_s, hidden_s);
  assert_int_equal(profile->comm_s[OP_EXCHANGE] > 0, comm_ranks(job_comm) > 1);
}

/* Steps 2 to 4, of which step 3 begins at rest. Step 1 ends next to step 2. */
static void profile_steps(const char *setup)
{
  struct job job;
  struct witness witness;
  struct exec_profile profile;
  run_traced(&job, &witness, setup, 1 + STEPS, &profile);
  assert_int_equal(profile.steps, STEPS - 1);
  expect_profile(&job, &witness, job.plan->n, &profile);
  end_traced(&job, &witness);
}

TEST(profiles_are_those_of_events)
{
  profile_steps("prefetch=1");
  profile_steps("no_shard micros=2");
}

/* The steps of a job, of which the last ones allocate nothing. */
static void run_steps(struct job *job)
{
  int64_t calls = 0;
  for (int step = 0; step < JOB_STEPS; step++) {
    (void)job_step(job, step);
    if (step > 0)
      assert_int_equal(mem_calls(), calls);
    calls = mem_calls();
  }
  must(exec_drain(job->exec));
  assert_int_equal(mem_calls(), calls);
}

static int64_t instructions_of(const struct plan *of, enum plan_lane lane, enum op op)
{
  int64_t n = 0;
  for (int i = 0; i < of->n; i++)
    n += of->instr[i].lane == lane && of->instr[i].op == op;
  return n;
}

static void expect_counted(const struct job *job, const struct op_counters *counters)
{
  for (enum plan_lane lane = 0; lane < LANE_COUNT; lane++) {
    const struct op_counters_sum *sums = exec_counted(job->exec, lane);
    for (enum op op = 0; op < OP_COUNT; op++) {
      assert_int_equal(counters && sums ? sums[op].count : 0,
                       counters ? JOB_STEPS * instructions_of(job->plan, lane, op) : 0);
      for (int e = 0; sums && e < op_counters_events(counters); e++)
        assert_true(sums[op].spent[e] >= 0);
    }
  }
}

/* Off: not one question. On: two an instruction, one a lane at its start, and the same bits. */
TEST(a_run_that_is_counted)
{
  struct job_record plain = {0};
  struct op_counters *counters = open_counters();
  for (int on = 0; on < 2; on++) {
    struct job job;
    job_open(&job, job_comm, "prefetch=1 micros=2");
    atomic_store(&asked, 0);
    must(job_reopen(&job, &(struct exec_config){.counters = on ? counters : NULL}));
    run_steps(&job);
    int lanes = 0;
    for (enum plan_lane lane = 0; lane < LANE_COUNT; lane++) {
      assert_true(on || !exec_counted(job.exec, lane));
      lanes += exec_counted(job.exec, lane) != NULL;
    }
    assert_int_equal(atomic_load(&asked), on ? lanes + 2 * (int64_t)JOB_STEPS * job.plan->n : 0);
    expect_counted(&job, on ? counters : NULL);
    if (on)
      job_expect(&plain, job_end(&job));
    else
      plain = job_end(&job);
  }
  job_record_free(&plain);
  op_counters_destroy(counters);
  facts.counters = NULL;
}

FIXTURE(start)
{
  const char *where = getenv("TMPDIR");
  const int failed = job_mpi_start(NULL);
  snprintf(folder, sizeof folder, "%s/sluice-trace-XXXXXX", where ? where : "/tmp");
  return failed || !mkdtemp(folder);
}

FIXTURE(stop)
{
  char dir[300];
  snprintf(dir, sizeof dir, "%s/trace", folder);
  job_mpi_stop(NULL);
  return rmdir(dir) || rmdir(folder);
}

TEST_MAIN(start, stop)
