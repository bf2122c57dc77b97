/* Masters in host memory, and inputs of blocks that wait elsewhere, do not change the numbers.
 * Oracle: losses, gradient norms and all parameters after three steps are bitwise identical to
 * those of the run that keeps everything on the device. That run has full_shard on the same number
 * of ranks, where sums are made in the same order. For 16-bit moments the run with fp32 moments is
 * a second oracle, within a bound. */
/* ranks: 1 2 3 4 */
#include <math.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

/* References with one and with three micro-batches, with and without clipping. */
static struct job_record reference[2][2];
static bool half;

/* Both ways of parameters and all three of gradients: reduced by devices, by hosts, by hosts in
 * memory that they share. */
enum { WAYS = 6 };
static const char *const ways[WAYS] = {"",
                                       "params_full",
                                       "cpu_reduce",
                                       "params_full cpu_reduce",
                                       "cpu_reduce one_node",
                                       "params_full cpu_reduce one_node"};

#define same(setup, ...) same_way(0, setup __VA_OPT__(, ) __VA_ARGS__)
static void same_way(int way, const char *format, ...) JOB_FORMAT(2);
static void same_way(int way, const char *format, ...)
{
  JOB_TEXT(setup, format);
  const bool cut = strstr(setup, "micros=3");
  if (cut && comm_ranks(job_comm) == 1)
    return; /* one rank adds micro-batches up in another order: see one_rank() */
  job_same(&reference[cut][strstr(setup, "no_clip") != NULL], "host each_micro %s %s", ways[way],
           setup);
}

static void same_all_ways(const char *format, ...) JOB_FORMAT(1);
static void same_all_ways(const char *format, ...)
{
  JOB_TEXT(setup, format);
  for (int way = 0; way < WAYS; way++)
    same_way(way, "%s", setup);
}

TEST(ways_of_parameters_and_gradients)
{
  same_all_ways("prefetch=1");
  same_all_ways("prefetch=1 micros=3");
}

TEST(windows)
{
  if (half)
    return;
  for (int prefetch = 0; prefetch <= 3; prefetch++)
    same_all_ways("prefetch=%d micros=%d", prefetch, prefetch & 1 ? 3 : 1);
}

/* Where masters are on the device too. Oracle: as above, the run whose updates come after the
 * norm. */
TEST(updates_at_once_on_the_device)
{
  static const char *const strategies[] = {"full_shard", "shard_grad_op", "shard_optim",
                                           "no_shard"};
  for (int s = 0; s < 4; s++)
    for (int cut = 0; cut < (comm_ranks(job_comm) > 1 ? 2 : 1); cut++)
      job_same(&reference[cut][true], "%s prefetch=1 micros=%d each_micro no_clip immediate",
               strategies[s], cut ? 3 : 1);
}

static void same_with_a_copy(const char *setup)
{
  struct job_record cast = job_run(job_comm, "%s", setup);
  job_same(&cast, "%s keep_working", setup);
  job_record_free(&cast);
}

/* A copy in bf16 that the update leaves on the device, instead of one that each gather casts.
 * Oracle: the run that casts. In fp32 there is none. */
TEST(copies_that_are_kept)
{
  static const char *const cuts[] = {"prefetch=0", "prefetch=1 micros=3"},
                           *const updates[] = {"", "each_micro no_clip immediate"};
  if (!half)
    return;
  for (int strategy = STRATEGY_FULL_SHARD; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int way = 0; way < 4; way++) {
      char setup[100];
      snprintf(setup, sizeof setup, "strategy=%d group=%d %s %s", strategy,
               comm_ranks(job_comm) == 4 ? 2 : 1, cuts[way / 2], updates[way % 2]);
      same_with_a_copy(setup);
    }
  same_with_a_copy("prefetch=1 frozen=*bias keeps=recompute");
  same_with_a_copy("prefetch=1 moments=bf16 stochastic micros=3");
}

static void check_copies_of(const struct job *job)
{
  const enum dtype type = half ? DTYPE_BF16 : DTYPE_F32;
  float rounded[4096];
  for (int u = 0; u < job->model->units; u++) {
    const struct layout_range owned = job->plan->unit[u].owned;
    const int64_t n = owned.end - owned.begin;
    assert_true(job->plan->unit[u].working >= 0 || !half);
    if (job->plan->unit[u].working < 0)
      continue;
    assert_in_range(n, 1, 4096);
    dtype_convert(rounded, type, exec_pointer(job->exec, job->plan->unit[u].master), DTYPE_F32,
                  (size_t)n);
    assert_memory_equal(exec_pointer(job->exec, job->plan->unit[u].working), rounded,
                        (size_t)n * dtype_size(type));
  }
}

static void spoil(const struct job *job)
{
  const int working = job->plan->unit[1].working;
  memset(exec_pointer(job->exec, working), 0, (size_t)job->plan->buffer[working].bytes);
}

/* Proof that the step computes with the working copy. After each step it is the rounded masters,
 * padding included. A changed copy changes the loss. An evaluation reads it too. */
TEST(copies_are_what_is_gathered)
{
  if (!half)
    return;
  struct job job;
  job_open(&job, job_comm, "prefetch=1 keep_working");
  for (int step = 0; step < 2; step++) {
    assert_true(job_step(&job, step).loss == reference[0][0].loss[step]);
    must(exec_drain(job.exec));
    check_copies_of(&job);
  }
  spoil(&job);
  assert_true(job_step(&job, 2).loss != reference[0][0].loss[2]);
  job_close(&job);

  for (int spoilt = 0; spoilt < 2; spoilt++) {
    job_open(&job, job_comm, "eval prefetch=1 keep_working");
    if (spoilt)
      spoil(&job);
    assert_int_equal(job_step(&job, 0).loss == reference[0][0].loss[0], !spoilt);
    job_close(&job);
  }
}

TEST(updates_at_once)
{
  for (int micros = 1; micros <= 3; micros += 2) {
    same_all_ways("prefetch=1 micros=%d no_clip immediate", micros);
    same("prefetch=2 micros=%d no_clip", micros);
  }
}

static int clipped_steps(const struct job_record *record, double clip)
{
  int n = 0;
  for (int step = 0; step < JOB_STEPS; step++)
    n += record->grad_norm[step] > clip;
  return n;
}

/* Oracle: the run whose updates come after the norm, with another limit. */
static int same_when_clipped_to(double clip, const char *setup)
{
  struct job_record known = job_run(job_comm, "host clip=%.17g %s", clip, setup);
  const int clipped = clipped_steps(&known, clip);
  job_same(&known, "host clip=%.17g %s speculative", clip, setup);
  job_record_free(&known);
  return clipped;
}

/* The reference has clipped steps. Without clipping the norm is that of no clipped step. */
TEST(updates_before_the_norm)
{
  assert_true(clipped_steps(&reference[0][0], 0.5) > 0);
  for (int micros = 1; micros <= 3; micros += 2) {
    same_all_ways("prefetch=1 micros=%d speculative", micros);
    same("prefetch=2 micros=%d speculative no_clip threads=3", micros);
  }
  same("prefetch=1 speculative nvme_state=0.5");
  same("prefetch=1 speculative resident=1 keeps=host");
  for (int way = 0; way < WAYS; way++) {
    char setup[100];
    snprintf(setup, sizeof setup, "prefetch=1 moments=bf16 stochastic %s", ways[way]);
    assert_int_equal(same_when_clipped_to(1e-3, setup), JOB_STEPS);
    assert_int_equal(same_when_clipped_to(1e3, setup), 0);
  }
}

/* The first step is clipped and no other, or the reverse. */
TEST(some_steps_are_clipped)
{
  int mixed = 0;
  for (int step = 0; step < JOB_STEPS; step++) {
    const int clipped = same_when_clipped_to(reference[0][true].grad_norm[step], "prefetch=1");
    mixed += clipped > 0 && clipped < JOB_STEPS;
  }
  assert_true(mixed > 0);
}

/* The parameters of a unit as it is fetched. */
static char *fetched_unit(const struct job *job, int u)
{
  const struct plan *plan = job->plan;
  return exec_pointer(job->exec,
                      plan->unit[u].working >= 0 ? plan->unit[u].working : plan->unit[u].master);
}

/* The second of three steps computes with a parameter that is no number. `heals`: REPAIR brings the
 * parameter back. Otherwise the test does so, after the step has changed nothing. */
static struct job_record run_with_a_bad_step(const char *setup, bool heals)
{
  enum { UNIT = 1 };
  struct exec_result result;
  struct job job;
  char was[4] = {0};
  job_open(&job, job_comm, "host prefetch=1 %s speculative=%d", setup, heals);
  for (int step = 0; step < JOB_STEPS; step++) {
    const int64_t update = step < 2 ? step + 1 : 2;
    if (step == 1) {
      must(exec_drain(job.exec));
      memcpy(was, fetched_unit(&job, UNIT), sizeof was);
      memset(fetched_unit(&job, UNIT), 0xff, sizeof was);
    }
    must(exec_step(job.exec, step, update, 0.01, &result));
    assert_int_equal(result.finite, step != 1);
    job.record.loss[step] = step == 1 ? 0 : result.loss;
    job.record.grad_norm[step] = step == 1 ? 0 : result.grad_norm;
    if (step == 1 && !heals) {
      must(exec_drain(job.exec));
      memcpy(fetched_unit(&job, UNIT), was, sizeof was);
      must(comm_agree(job_comm, STATUS_OK)); /* others may read it */
    }
  }
  return job_end(&job);
}

TEST(a_step_that_is_not_finite_changes_nothing)
{
  for (int way = 0; way < WAYS; way++) {
    struct job_record known = run_with_a_bad_step(ways[way], false);
    job_expect(&known, run_with_a_bad_step(ways[way], true));
    job_record_free(&known);
  }
}

/* After each step at rest the working copy is the masters in the compute type, whatever the step
 * was. */
static void check_rest(double clip)
{
  struct job job;
  job_open(&job, job_comm, "prefetch=1 host speculative clip=%g", clip);
  for (int step = 0; step < JOB_STEPS; step++) {
    job_step(&job, step);
    must(exec_drain(job.exec));
    check_copies_of(&job);
  }
  job_close(&job);
}

TEST(a_drain_leaves_no_pending_gradient)
{
  check_rest(1e-3);
  check_rest(1e3);
}

TEST(inputs_that_wait_elsewhere)
{
  static const char *const setups[] = {
      "keeps=recompute",
      "keeps=host micros=3",
      "keeps=nvme micros=3",
      "keeps=keep_host micros=3",
      "keeps=keep_host,host",
      "keeps=host,keep,nvme cpu_reduce",
      "keeps=host,keep,nvme cpu_reduce one_node micros=3",
  };
  for (int prefetch = 0; prefetch <= 2; prefetch++)
    for (size_t s = 0; s < sizeof setups / sizeof *setups; s++)
      same("prefetch=%d %s", prefetch, setups[s]);
}

/* The same with masters on the device. */
TEST(inputs_alone)
{
  static const char *const setups[] = {
      "prefetch=0 keeps=host", "prefetch=1 keeps=nvme", "prefetch=2 keeps=host,keep,nvme",
      "prefetch=0 keeps=keep_host", "prefetch=1 keeps=keep_host,host"};
  for (int s = 0; s < 5; s++)
    job_same(&reference[0][0], "%s", setups[s]);
}

TEST(moments_on_nvme)
{
  same("prefetch=1 nvme_state=1 micros=3");
  same("prefetch=0 nvme_state=0.5 params_full");
  same("prefetch=2 nvme_state=0.5 no_clip immediate");
}

/* The first units keep masters and moments on the device, and are updated there. */
TEST(resident_units)
{
  for (int resident = 1; resident <= 2; resident++)
    for (int micros = 1; micros <= 3; micros += 2) {
      same("resident=%d micros=%d", resident, micros);
      same("resident=%d micros=%d prefetch=1 keeps=host nvme_state=0.5", resident, micros);
      same("resident=%d micros=%d prefetch=2 no_clip immediate threads=2", resident, micros);
    }
  for (int group = 1; group <= comm_ranks(job_comm); group *= 2)
    if (comm_ranks(job_comm) % group == 0)
      same("hybrid_shard group=%d prefetch=1 resident=1", group);
}

TEST(threads_of_the_lanes)
{
  if (half)
    return;
  same_all_ways("prefetch=1 threads=3");
}

/* Replicas meet in another order of additions where a step is cut, but not where it is one
 * micro-batch. */
TEST(hybrid_groups)
{
  for (int group = 1; group <= comm_ranks(job_comm); group *= 2)
    if (comm_ranks(job_comm) % group == 0)
      same_all_ways("hybrid_shard group=%d prefetch=1", group);
}

/* A slow link changes when things happen and nothing else. Oracle for the link: what goes down it
 * in a step takes no less than its bytes over the rate. */
TEST(slow_links)
{
  struct job job;
  double bytes = 0;
  job_open(&job, job_comm, "host prefetch=1 keeps=host rate=1e-3");
  for (int i = 0; i < job.plan->n; i++)
    if (job.plan->instr[i].lane == LANE_H2D)
      bytes += (double)job.plan->buffer[job.plan->instr[i].use[1].buffer].bytes;
  const double start = clock_s();
  struct exec_result result = job_step(&job, 0);
  must(exec_drain(job.exec));
  assert_true(bytes > 0 && clock_s() - start >= bytes / (1e9 * job.setup.rate));
  assert_true(result.loss == reference[0][0].loss[0]);
  job_close(&job);
}

/* Several micro-batches of one rank: without a link between ranks the device adds them up inside of
 * its products. Oracle: the reference, within the rounding of fp32. */
TEST(one_rank)
{
  if (half || comm_ranks(job_comm) > 1)
    return;
  struct job_record record = job_run(job_comm, "host prefetch=1 micros=3 each_micro");
  const struct job_record *near = &reference[1][0];
  for (int step = 0; step < JOB_STEPS; step++) {
    assert_true(fabs(record.loss[step] - near->loss[step]) < 1e-4 * near->loss[step]);
    assert_true(fabs(record.grad_norm[step] - near->grad_norm[step]) <
                1e-4 * near->grad_norm[step]);
  }
  job_record_free(&record);
}

/* Frozen parameters come down the same ways. */
TEST(frozen_parameters)
{
  struct job_record expected = job_run(job_comm, "prefetch=1 frozen=*bias,*wte*");
  for (int way = 0; way <= WAYS; way++)
    job_same(&expected, "host prefetch=1 frozen=*bias,*wte* %s",
             way < WAYS ? ways[way] : "resident=1");
  job_record_free(&expected);
}

/* Parts that travel in 16 bits are rounded once, those of a rank's own too, wherever they are added
 * up. Oracle: the run on the device, which is not the reference's. */
TEST(narrow_parts)
{
  if (comm_ranks(job_comm) == 1)
    return; /* nothing travels */
  for (int micros = 1; micros <= 3; micros += 2) {
    struct job_record expected =
        job_run(job_comm, "prefetch=1 micros=%d each_micro codec=bf16", micros);
    assert_true(expected.loss[2] != reference[micros == 3][0].loss[2]);
    for (int way = 0; way < WAYS; way += 2)
      job_same(&expected, "host prefetch=1 micros=%d each_micro codec=bf16 %s", micros, ways[way]);
    job_record_free(&expected);
  }
}

/* Moments of 16 and 8 bits are the same wherever they are kept. So is stochastic rounding, because
 * its random bits are a function of the element. */
TEST(narrow_moments)
{
  static const char *const kinds[] = {"moments=bf16", "moments=bf16 stochastic", "moments=fp16",
                                      "moments=fp16 stochastic", "optim=adamw8bit"},
                           *const places[] = {"resident=1", "params_full",
                                              "resident=1 nvme_state=0.5",
                                              "params_full nvme_state=0.5"};
  for (int kind = 0; kind < 5; kind++) {
    struct job_record expected = job_run(job_comm, "prefetch=1 %s", kinds[kind]);
    assert_true(expected.loss[2] != reference[0][0].loss[2]);
    assert_true(fabs(expected.loss[2] - reference[0][0].loss[2]) < 1e-2 * reference[0][0].loss[2]);
    for (int place = 0; place < 4; place++)
      job_same(&expected, "prefetch=1 %s host %s", kinds[kind], places[place]);
    job_record_free(&expected);
  }
}

/* Moments of this rank as a plain conversion to fp16 leaves them. */
static void round_moments(const struct job *job)
{
  uint16_t rounded[4096];
  for (int u = 0; u < job->model->units; u++) {
    float *const moments[] = {exec_pointer(job->exec, job->plan->unit[u].state[0]),
                              exec_pointer(job->exec, job->plan->unit[u].state[1])};
    const int64_t n = job->plan->unit[u].owned.end - job->plan->unit[u].owned.begin;
    assert_in_range(n, 1, 4096);
    for (int i = 0; i < 2; i++) {
      dtype_convert(rounded, DTYPE_F16, moments[i], DTYPE_F32, (size_t)n);
      dtype_convert(moments[i], DTYPE_F32, rounded, DTYPE_F16, (size_t)n);
    }
  }
}

/* The loss, before or after so many steps, where the gradient's elements are as small as those of a
 * large model: about 1e-5. */
static double loss_after(int steps, const char *moments, bool plain)
{
  struct exec_result result = {0};
  struct job job;
  job_open(&job, job_comm, "prefetch=1 clip=5e-4 eps=1e-8 moments=%s", moments);
  for (int step = 0; step <= steps; step++) {
    result = job_step(&job, step);
    must(exec_drain(job.exec));
    if (plain)
      round_moments(&job);
  }
  job_close(&job);
  return result.loss;
}

/* Parameters differ from those of fp32 moments by at most 5.4 % of the longest way that they can
 * go, stochastically 11 % (tests/device/test_adamw.c). At most this share of the decrease of the
 * loss is lost or gained. A second moment of 0, where plain fp16 has no smaller number, makes steps
 * of any length. Errors of 8-bit moments are larger, but have no bias. So they cancel over
 * elements, and 1 % is far above the measured 0.03 %. */
TEST(narrow_moments_learn_as_in_fp32)
{
  enum { STEPS = 12 };
  if (half)
    return;
  const double before = loss_after(0, "fp32", false), after = loss_after(STEPS, "fp32", false),
               learned = before - after;
  assert_true(learned > 0.05 * before);
  assert_true(fabs(loss_after(STEPS, "fp16", false) - after) <= 0.054 * learned);
  assert_true(fabs(loss_after(STEPS, "fp16 stochastic", false) - after) <= 0.11 * learned);
  assert_true(fabs(loss_after(STEPS, "fp32 optim=adamw8bit", false) - after) <= 0.01 * learned);
  assert_true(fabs(loss_after(STEPS, "fp32", true) - after) > learned);
}

FIXTURE(start)
{
  for (int i = 0; i < 4; i++)
    reference[i / 2][i % 2] = job_run(job_comm, "prefetch=1 micros=%d each_micro %s", i / 2 ? 3 : 1,
                                      i % 2 ? "no_clip" : "");
  return 0;
}

FIXTURE(stop)
{
  for (int i = 0; i < 4; i++)
    job_record_free(&reference[i / 2][i % 2]);
  return 0;
}

int main(void)
{
  if (job_mpi_start(NULL))
    return 1;
  int failed = test_run(start, stop);
  half = true;
  job_words = "bf16 beside"; /* with the host beside the device */
  failed += test_run(start, stop);
  job_mpi_stop(NULL);
  return failed;
}
