/* The executor's guards, each made to fire, and its services. One process without MPI; where
 * windows are wanted, as one rank of two without the peer. Oracle: what exec.h promises. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <sched.h>

#include "base/mem.h"
#include "exec/engine.h"
#include "job.h"
#include "plan/ops.h"
#include "tests/test.h"

static struct comm *comm, *of_two; /* the only rank, and the first one of two */
static struct job job;
static struct exec_result result;

/* ---- failures ---- */

static int64_t broken_step;

static enum status load_or_fail(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  return step == broken_step && micro == 1 ? status_set(STATUS_IO, "shard 7 is gone")
                                           : job_load(arg, step, micro, out);
}

static enum status load_bad_token(void *arg, int64_t step, int micro, const struct model_batch *out)
{
  const enum status status = job_load(arg, step, micro, out);
  out->tokens[3] = JOB_VOCAB;
  return status;
}

/* Sequences have 4 tokens. */
static enum status load_bad_document(void *arg, int64_t step, int micro,
                                     const struct model_batch *out)
{
  const enum status status = job_load(arg, step, micro, out);
  int32_t *const at[] = {&out->first[5], &out->first[6], &out->positions[2], &out->positions[2]};
  *at[step] = (const int32_t[]){2, -1, JOB_CONTEXT, -1}[step];
  return status;
}

static void open_with(exec_load *load, const char *words)
{
  job_plan(&job, comm, "%s", words);
  must(job_reopen(&job, &(struct exec_config){.load = load, .load_arg = &job}));
}

TEST(a_failing_load_ends_the_step)
{
  broken_step = 6;
  open_with(load_or_fail, "micros=2");
  must(exec_step(job.exec, 5, 1, 0, &result));
  result.loss = -1;
  must_fail(exec_step(job.exec, 6, 2, 0, &result), STATUS_IO, "shard 7 is gone");
  assert_true(result.loss == -1);
  status_set(STATUS_OK, "something else");
  must_fail(exec_drain(job.exec), STATUS_IO, "shard 7 is gone");
  assert_int_equal(exec_step(job.exec, 7, 2, 0, &result), STATUS_IO);
  job_close(&job);
}

/* The sentence of a lane's thread reaches the caller. */
TEST(a_failing_lane_ends_the_step)
{
  open_with(load_bad_token, " ");
  must_fail(exec_step(job.exec, 0, 1, 0, &result), STATUS_INPUT, "37");
  job_close(&job);
}

static enum status load_bad_source(void *arg, int64_t step, int micro,
                                   const struct model_batch *out)
{
  const enum status status = job_load(arg, step, micro, out);
  out->sources[1] = step ? -1 : 2;
  return status;
}

TEST(a_wrong_source_ends_the_step)
{
  static const char *const words[] = {"a sequence of source 2 of 2",
                                      "a sequence of source -1 of 2"};
  for (int step = 0; step < 2; step++) {
    open_with(load_bad_source, "sources=2");
    must_fail(exec_step(job.exec, step, 1, 0, &result), STATUS_INTERNAL, words[step]);
    job_close(&job);
  }
}

TEST(a_step_can_be_skipped)
{
  job_open(&job, comm, " ");
  job_step(&job, 10);
  exec_skip(job.exec);
  must_fail(exec_step(job.exec, 11, 2, 0, &result), STATUS_INTERNAL, "where step 12 comes next");
  job_step(&job, 12);
  job_close(&job);
}

TEST(a_wrong_document_ends_the_step)
{
  static const char *const words[] = {
      "the document of token 5 of the batch begins at token 2 of its sequence, but must begin at 0 "
      "to 1",
      "token 6 of the batch begins at token -1", "has position 12, and model.context is 12",
      "token 2 of the batch has position -1"};
  for (int step = 0; step < 4; step++) {
    open_with(load_bad_document, "input=trivial");
    must_fail(exec_step(job.exec, step, 1, 0, &result), STATUS_INPUT, words[step]);
    job_close(&job);
  }
}

/* A sampler that is wrong about the targets of a step would train with another learning rate. */
TEST(targets_are_counted)
{
  job_open(&job, comm, "micros=2 targets=some");
  job_step(&job, 0);
  must_fail(exec_set_targets(job.exec, 0), STATUS_INTERNAL, "a loss over 0 targets");
  must(exec_set_targets(job.exec, job_targets(&job) + 1));
  must_fail(exec_step(job.exec, 1, 2, 0, &result), STATUS_INTERNAL,
            "step 1 has 411 targets, but its loss is that of 412");
  job_close(&job);
}

TEST(steps_count_up_by_one)
{
  job_open(&job, comm, " ");
  job_step(&job, 10);
  must_fail(exec_step(job.exec, 10, 2, 0, &result), STATUS_INTERNAL, "step 11");
  job_step(&job, 11);
  job_close(&job);
}

TEST(a_step_is_begun_and_ended_once)
{
  result.loss = -1;
  job_open(&job, comm, " ");
  assert_int_equal(exec_end(job.exec, &result), STATUS_INTERNAL);
  must(exec_begin(job.exec, 10, 1, 0));
  must_fail(exec_begin(job.exec, 11, 2, 0), STATUS_INTERNAL, "before step 10 was ended");
  assert_true(result.loss == -1);
  must(exec_end(job.exec, &result));
  assert_true(result.loss > 0);
  must_fail(exec_end(job.exec, &result), STATUS_INTERNAL, "not begun");
  must(exec_begin(job.exec, 11, 2, 0)); /* and given up */
  job_close(&job);
}

/* ---- windows: what the plan says is checked as it runs ---- */

static int find(const struct plan *plan, enum op op, int unit)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == op && plan->instr[i].unit == unit)
      return i;
  fail_msg("the plan has no such instruction");
  return -1;
}

static void refuses(const char *setup, void (*corrupt)(struct plan *plan), const char *sentence)
{
  job_plan(&job, of_two, "%s", setup);
  if (corrupt)
    corrupt(job.plan);
  must(job_create_exec(&job));
  must(exec_set_targets(job.exec, job_targets(&job) / 2)); /* the other rank sends zeros */
  must_fail(exec_step(job.exec, 4, 1, 0, &result), corrupt ? STATUS_INTERNAL : STATUS_OK, sentence);
  job_close(&job);
}

static void use_the_window_of_another(struct plan *plan)
{
  plan->instr[find(plan, OP_FORWARD, 2)].use[0].buffer =
      plan->instr[find(plan, OP_FORWARD, 1)].use[0].buffer;
}

static void gather_into_the_window_of_another(struct plan *plan)
{
  plan->instr[find(plan, OP_GATHER, 2)].use[1].buffer =
      plan->instr[find(plan, OP_GATHER, 1)].use[1].buffer;
}

/* After the gather: it waits for the same instruction as the use. */
static void release_before_the_use(struct plan *plan)
{
  int i = find(plan, OP_FORWARD, 1);
  assert_int_equal(plan->instr[i + 1].op, OP_RELEASE);
  struct instr forward = plan->instr[i];
  plan->instr[i] = plan->instr[i + 1];
  plan->instr[i].n_wait = forward.n_wait;
  memcpy(plan->instr[i].wait, forward.wait, sizeof forward.wait);
  plan->instr[i + 1] = forward;
}

static void add_wait(struct plan *plan, int instr, int other)
{
  struct instr *waits = &plan->instr[instr];
  assert_true(waits->n_wait < PLAN_MAX_WAIT);
  waits->wait[waits->n_wait++] = (struct plan_wait){other, 0};
}

/* Nobody uses and releases the one below before the other is asked for. */
static void lay_a_window_over_another(struct plan *plan)
{
  add_wait(plan, find(plan, OP_FORWARD, 1), find(plan, OP_GATHER, 2));
  struct plan_buffer *first = &plan->buffer[plan->instr[find(plan, OP_GATHER, 1)].use[1].buffer];
  plan->buffer[plan->instr[find(plan, OP_GATHER, 2)].use[1].buffer].offset =
      first->offset + first->bytes - 4;
}

static void gather_one_part_twice(struct plan *plan)
{
  int i = find(plan, OP_GATHER, 1);
  assert_int_equal(plan->instr[i + 1].op, OP_GATHER);
  plan->instr[i + 1] = plan->instr[i];
}

/* The compute lane goes on when the trained part is there. */
static void use_before_the_second_part(struct plan *plan)
{
  int gather = find(plan, OP_GATHER, 1), forward = find(plan, OP_FORWARD, 1);
  for (int w = 0; w < plan->instr[forward].n_wait; w++)
    if (plan->instr[forward].wait[w].instr == gather + 1)
      plan->instr[forward].wait[w].instr = gather;
  plan->instr[gather + 1].wait[plan->instr[gather + 1].n_wait++] = (struct plan_wait){forward, 0};
}

/* This rank's part of a window, which a GATHER completes. */
static void fetch_into_the_window_of_another(struct plan *plan)
{
  plan->instr[find(plan, OP_FETCH, 2)].use[1].buffer =
      plan->instr[find(plan, OP_FETCH, 1)].use[1].buffer;
}

/* The window below is in use then: after its GATHER, and before its use. */
static void fetch_over_the_window_of_another(struct plan *plan)
{
  lay_a_window_over_another(plan);
  add_wait(plan, find(plan, OP_FETCH, 2), find(plan, OP_GATHER, 1));
}

TEST(windows_hold_what_is_used)
{
#define TWO_PARTS "prefetch=1 frozen=*bias"
  static const struct {
    const char *setup;
    void (*corrupt)(struct plan *plan);
    const char *sentence;
  } cases[] = {
      /* clang-format off */
      {"prefetch=1", NULL, ""},
      {"prefetch=1", use_the_window_of_another, "FORWARD h.1 m0 (#"},
      {"prefetch=1", use_the_window_of_another, "params.h.0 belongs to another unit"},
      {"prefetch=1", gather_into_the_window_of_another, "belongs to another unit"},
      {"prefetch=1", release_before_the_use, "params.h.0 has not been gathered"},
      {"prefetch=1", lay_a_window_over_another, "lies over one that has not been released"},
      {TWO_PARTS, NULL, ""},
      {TWO_PARTS, use_the_window_of_another, "params.h.0 belongs to another unit"},
      {TWO_PARTS, release_before_the_use, "trained_window.h.0 has not been gathered"},
      {TWO_PARTS, use_before_the_second_part, "frozen_window.h.0 has not been gathered"},
      {TWO_PARTS, gather_one_part_twice,
       "trained_window.h.0 lies over one that has not been released"},
      {TWO_PARTS " shard_optim", NULL, ""},
      {"prefetch=1 host", NULL, ""},
      {"prefetch=1 host", fetch_into_the_window_of_another, "FETCH h.1"},
      {"prefetch=1 host", fetch_into_the_window_of_another, "mine.h.0 belongs to another unit"},
      {"prefetch=1 host", fetch_over_the_window_of_another, "FETCH h.1"},
      {"prefetch=1 host", fetch_over_the_window_of_another,
       "mine.h.1 lies over one that has not been released"},
      {"prefetch=1 host params_full", NULL, ""},
      {"prefetch=1 host params_full", fetch_into_the_window_of_another,
       "params.h.0 belongs to another unit"},
      /* clang-format on */
  };
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
    refuses(cases[c].setup, cases[c].corrupt, cases[c].sentence);
}

/* ---- memory ---- */

TEST(misfit_names_a_cure)
{
  struct exec_memory memory;
  job_plan(&job, comm, " ");
  const struct plan *plans[] = {job.plan};
  int64_t bytes = job.plan->transient_bytes[TIER_DEVICE];
  for (int tier = TIER_DEVICE; tier <= TIER_HOST; tier++) {
    int64_t fits = job.plan->transient_bytes[tier];
    job.plan->transient_bytes[tier] = INT64_C(1) << 60;
    assert_int_equal(exec_memory_create(job.device, comm, "", plans, 1, &memory), STATUS_MEMORY);
    job.plan->transient_bytes[tier] = fits;
    must_fail(STATUS_MEMORY, STATUS_MEMORY,
              tier == TIER_DEVICE ? "1.00 EiB of device" : "1.00 EiB of host");
    must_fail(STATUS_MEMORY, STATUS_MEMORY, "shard.strategy");
    must_fail(STATUS_MEMORY, STATUS_MEMORY, "data.micro_batch");
    must_fail(STATUS_MEMORY, STATUS_MEMORY, "tiers.activations");
  }
  job.plan->transient_bytes[TIER_DEVICE] = bytes + 1; /* a plan that the arenas were not made for */
  assert_int_equal(job_create_exec(&job), STATUS_INTERNAL);
  job.plan->transient_bytes[TIER_DEVICE] = bytes;
  job_close(&job);
}

/* A communicator for each of them is more than any mesh needs. */
TEST(a_plan_has_a_few_groups)
{
  job_plan(&job, comm, "micros=2");
  assert_true(job.plan->n > EXEC_GROUPS);
  for (int i = 0; i <= EXEC_GROUPS; i++)
    job.plan->instr[i].attr.group = 1u + (mesh_set)i;
  must_fail(job_create_exec(&job), STATUS_INTERNAL, "a plan has more than 16 groups");
  assert_int_equal(exec_groups_shared_bytes(job.plan, 1), 0);
  job_close(&job);
}

TEST(plans_share_their_state)
{
  struct job train, eval, other, frozen;
  struct exec_memory memory;
  job_plan(&train, of_two, "prefetch=1");
  job_plan(&eval, of_two, "eval prefetch=2");
  job_plan(&other, of_two, "no_shard");
  job_plan(&frozen, of_two, "prefetch=1 frozen=*bias");
  const struct plan *good[] = {train.plan, eval.plan}, *bad[] = {train.plan, other.plan},
                    *apart[] = {train.plan, frozen.plan};
  int64_t before = mem_usage(MEM_ARENA_PERSISTENT).bytes + mem_usage(MEM_ARENA_TRANSIENT).bytes,
          most = 0;
  must(exec_memory_create(train.device, of_two, "", good, 2, &memory));
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    int64_t a = train.plan->transient_bytes[tier], b = eval.plan->transient_bytes[tier];
    most += train.plan->persistent_bytes[tier] + (a > b ? a : b);
  }
  assert_int_equal(
      mem_usage(MEM_ARENA_PERSISTENT).bytes + mem_usage(MEM_ARENA_TRANSIENT).bytes - before, most);
  exec_memory_destroy(&memory);
  assert_int_equal(exec_memory_create(train.device, of_two, "", bad, 2, &memory), STATUS_INTERNAL);
  assert_int_equal(exec_memory_create(train.device, of_two, "", apart, 2, &memory),
                   STATUS_INTERNAL);
  assert_int_equal(mem_usage(MEM_ARENA_PERSISTENT).bytes + mem_usage(MEM_ARENA_TRANSIENT).bytes,
                   before);
  job_close(&train);
  job_close(&eval);
  job_close(&other);
  job_close(&frozen);
}

/* ---- what a step leaves ---- */

/* Saves masters and moments, or compares them with what was saved. */
static void visit_states(char *saved, bool compares)
{
  for (int u = 0; u < job.model->units; u++) {
    const struct plan_unit *unit = &job.plan->unit[u];
    const int buffers[] = {unit->master, unit->state[0], unit->state[1]};
    for (int b = 0; b < 3; b++) {
      const size_t bytes = (size_t)job.plan->buffer[buffers[b]].bytes;
      const void *const state = exec_pointer(job.exec, buffers[b]);
      if (compares)
        assert_memory_equal(state, saved, bytes);
      else
        memcpy(saved, state, bytes);
      saved += bytes;
    }
  }
}

TEST(a_step_that_is_not_finite_changes_nothing)
{
  void *before;
  job_open(&job, comm, " ");
  job_step(&job, 0);
  must(exec_drain(job.exec));
  float *weight = (float *)exec_pointer(job.exec, job.plan->unit[2].master) +
                  job.plan->unit[2].layout.offset[2] + 1,
        good = *weight;
  *weight = NAN;
  must(mem_alloc(MEM_META, (size_t)job.memory.persistent_bytes[TIER_DEVICE], &before));
  visit_states(before, false);
  result = job_step(&job, 1);
  assert_false(result.finite);
  assert_true(isnan(result.loss));
  must(exec_drain(job.exec));
  visit_states(before, true);
  *weight = good;
  assert_true(job_step(&job, 2).finite);
  mem_free(before);
  job_close(&job);
}

TEST(the_update_number_sets_the_bias_correction)
{
  float moved[2];
  for (int run = 0; run < 2; run++) {
    job_open(&job, comm, " ");
    const float *weight = (float *)exec_pointer(job.exec, job.plan->unit[1].master) +
                          job.plan->unit[1].layout.offset[3]; /* a bias: it does not decay */
    float before = *weight;
    must(exec_step(job.exec, 0, run ? 1000 : 1, 0.01, &result));
    must(exec_drain(job.exec));
    moved[run] = fabsf(*weight - before);
    job_close(&job);
  }
  /* The first update of Adam is lr * g / (|g| + eps); without correction m is 0.1 g and sqrt(v) is
   * sqrt(0.05) |g|. */
  assert_true(fabsf(moved[0] - 0.01f) < 0.0005f);
  assert_true(fabsf(moved[1] - 0.01f * 0.1f / sqrtf(0.05f)) < 0.0005f);
}

static void expect_refused_window(int64_t past, int64_t tokens, const char *words)
{
  exec_set_window(job.exec, past, tokens);
  must_fail(exec_step(job.exec, 4, 1, 0, &result), STATUS_INTERNAL, words);
}

/* A refused call leaves the executor unchanged. */
TEST(generation_stays_inside_its_cache)
{
  job_open(&job, comm, "generate capacity=6");
  expect_refused_window(0, 0, "a step of 0 tokens was asked of a plan that takes 1 to 4");
  expect_refused_window(0, JOB_SEQUENCE + 1,
                        "a step of 5 tokens was asked of a plan that takes 1 to 4");
  expect_refused_window(1, 1, "a step after 1 tokens was requested, but 0 are in the cache");
  expect_refused_window(-1, 1, "a step after -1 tokens");
  job_generate(&job, 3, 0, 4);
  expect_refused_window(5, 1, "a step after 5 tokens was requested, but 4 are in the cache");
  expect_refused_window(4, 3, "3 tokens behind 4 do not fit into a cache of 6");
  job_generate(&job, 4, 4, 2);
  job_close(&job);
}

/* ---- services ---- */

TEST(times_are_told_once)
{
  struct exec_profile profile;
  job_open(&job, comm, "recompute=1");
  result = job_step(&job, 0);
  must(exec_drain(job.exec));
  exec_profile(job.exec, &profile);
  assert_true(result.seconds > 0);
  assert_true(profile.op_s[OP_FORWARD] > 0 && profile.op_s[OP_RECOMPUTE] > 0 &&
              profile.op_s[OP_BACKWARD] > 0 && profile.op_s[OP_UPDATE] > 0);
  double compute = 0;
  for (int op = 0; op < OP_COUNT; op++)
    compute += op_rows[op].lane == LANE_COMPUTE ? profile.op_s[op] : 0;
  assert_true(fabs(compute - profile.busy_s[LANE_COMPUTE]) < 1e-9);
  assert_true(profile.busy_s[LANE_HOST] == profile.op_s[OP_UPDATE]);
  assert_true(profile.wait_s[LANE_HOST] > 0);
  assert_true(profile.matmul_s > 0 && profile.matmul_s <= profile.busy_s[LANE_COMPUTE]);
  assert_true(profile.matmul_flops > 0);
  exec_profile(job.exec, &profile);
  assert_memory_equal(&profile, &(struct exec_profile){0}, sizeof profile);
  job_close(&job);
}

/* The first CPU of this process, or the last one. */
static int end_cpu(int direction)
{
  cpu_set_t set;
  int cpu = direction > 0 ? 0 : CPU_SETSIZE - 1;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  while (!CPU_ISSET(cpu, &set))
    cpu += direction;
  return cpu;
}

TEST(the_compute_lane_keeps_to_its_cores)
{
  cpu_set_t before, after;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  job_open(&job, comm, "cores=%d", end_cpu(1));
  assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
  assert_true(CPU_EQUAL(&before, &after));
  job_step(&job, 0);
  job_close(&job);

  job_plan(&job, comm, "cores=8191");
  must_fail(job_create_exec(&job), STATUS_USAGE, "cores");
  job_close(&job);
}

/* Whether a thread of this process with that name runs on that CPU alone, as the kernel tells. */
static bool keeps_to(const char *name, int cpu)
{
  DIR *folder = opendir("/proc/self/task");
  bool found = false;
  assert_non_null(folder);
  for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
    char path[512], thread[32] = "";
    cpu_set_t set;
    snprintf(path, sizeof path, "/proc/self/task/%.200s/comm", entry->d_name);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(thread, sizeof thread, file))
      thread[0] = '\0';
    if (file)
      fclose(file);
    thread[strcspn(thread, "\n")] = '\0';
    if (strcmp(thread, name) == 0 &&
        sched_getaffinity((pid_t)strtol(entry->d_name, NULL, 10), sizeof set, &set) == 0)
      found = found || (CPU_COUNT(&set) == 1 && CPU_ISSET(cpu, &set));
  }
  closedir(folder);
  return found;
}

/* A host next to a device, and the disk. */
TEST(host_lanes_keep_to_their_cores)
{
  const int first = end_cpu(1), last = end_cpu(-1);
  job_open(&job, comm, "prefetch=1 host beside nvme_state=1 cores=%d io_cores=%d", first, last);
  job_step(&job, 0);
  assert_true(keeps_to("host", first));
  assert_true(keeps_to("disk", last));
  assert_true(first == last || !keeps_to("h2d", first));
  job_close(&job);

  job_plan(&job, comm, "prefetch=1 host beside nvme_state=1 io_cores=8191");
  must_fail(job_create_exec(&job), STATUS_USAGE, "a lane cannot be bound to its cores");
  job_close(&job);
}

/* One to a CPU, where there are as many; they share what there is where not. The kernel tells. */
TEST(the_optimizers_workers_have_a_cpu_each)
{
  const int cpu[2] = {end_cpu(1), end_cpu(-1)};
  char name[16];
  snprintf(
      name, sizeof name, "%s",
      program_invocation_short_name); /* workers have the name of the thread that started them */
  for (int twice = 0; twice < 2 && cpu[0] != cpu[1]; twice++) {
    job_open(&job, comm, "prefetch=1 host beside threads=%d cores=%d,%d,%d", twice ? 3 : 2, cpu[0],
             cpu[1], cpu[0]);
    job_step(&job, 0);
    assert_int_equal(keeps_to("host", cpu[0]), !twice);
    assert_int_equal(keeps_to(name, cpu[1]), !twice);
    job_close(&job);
  }
}

FIXTURE(start)
{
  return comm_create_fake(0, 1, 1, &comm) || comm_create_fake(0, 2, 2, &of_two);
}

FIXTURE(stop)
{
  comm_destroy(comm);
  comm_destroy(of_two);
  return 0;
}

TEST_MAIN(start, stop)
