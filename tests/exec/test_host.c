/* Masters in host memory, and inputs of blocks that wait elsewhere, do not change the numbers.
 * Oracle: losses, gradient norms and all parameters after three steps are bitwise identical to
 * those of the run that keeps everything on the device. That run has full_shard on the same number
 * of ranks, where sums are made in the same order. For 16-bit moments the run with fp32 moments is
 * a second oracle, within a bound. */
/* ranks: 1 2 3 4 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

/* References with one and with three micro-batches, with and without clipping. */
static struct job_record reference[2][2];
static struct comm *comm;
static bool half, beside;

static struct job_record run(struct job_setup setup)
{
  setup.half = half;
  setup.beside = beside;
  return job_run(comm, &setup);
}

/* One run is bitwise identical to a known one. */
static void same_as(const struct job_record *expected, struct job_setup setup)
{
  struct job_record record = run(setup);
  job_assert_same(&record, expected);
  job_record_free(&record);
}

static void same(struct job_setup setup)
{
  const bool cut = setup.micros == 3;
  setup.host = true;
  setup.reduce_every_micro = true;
  if (cut && comm_ranks(comm) == 1)
    return; /* one rank adds micro-batches up in another order: see one_rank() */
  same_as(&reference[cut][setup.no_clip], setup);
}

/* Both ways of parameters and all three of gradients: reduced by devices, by hosts, by hosts in
 * memory that they share. */
enum { WAYS = 6 };
static void take_way(struct job_setup *setup, int way)
{
  setup->params_full = way & 1;
  setup->cpu_reduce = way >= 2;
  setup->one_node = way >= 4;
}

static void same_all_ways(struct job_setup setup)
{
  for (int way = 0; way < WAYS; way++) {
    take_way(&setup, way);
    same(setup);
  }
}

static const struct deck_pattern recompute = {.n = 1, .of = {KEEP_INPUT}},
                                 host = {.n = 1, .of = {KEEP_INPUT_HOST}},
                                 nvme = {.n = 1, .of = {KEEP_INPUT_NVME}},
                                 turns = {.n = 3,
                                          .of = {KEEP_INPUT_HOST, KEEP_ACTIVATIONS,
                                                 KEEP_INPUT_NVME}},
                                 kept = {.n = 1, .of = {KEEP_ACTIVATIONS_HOST}},
                                 some = {.n = 2, .of = {KEEP_ACTIVATIONS_HOST, KEEP_INPUT_HOST}};

TEST(ways_of_parameters_and_gradients)
{
  same_all_ways((struct job_setup){.prefetch = 1});
  same_all_ways((struct job_setup){.prefetch = 1, .micros = 3});
}

TEST(windows)
{
  if (half)
    return;
  for (int prefetch = 0; prefetch <= 3; prefetch++)
    same_all_ways((struct job_setup){.prefetch = prefetch, .micros = prefetch & 1 ? 3 : 1});
}

/* Where masters are on the device too. Oracle: as above, the run whose updates come after the
 * norm. */
TEST(updates_at_once_on_the_device)
{
  const enum deck_strategy strategies[] = {STRATEGY_FULL_SHARD, STRATEGY_SHARD_GRAD_OP,
                                           STRATEGY_SHARD_OPTIM, STRATEGY_NO_SHARD};
  for (int s = 0; s < 4; s++)
    for (int cut = 0; cut < (comm_ranks(comm) > 1 ? 2 : 1); cut++)
      same_as(&reference[cut][true], (struct job_setup){.strategy = strategies[s],
                                                        .prefetch = 1,
                                                        .micros = cut ? 3 : 1,
                                                        .reduce_every_micro = true,
                                                        .no_clip = true,
                                                        .immediate = true});
}

static void same_with_a_copy(struct job_setup setup)
{
  struct job_record cast = run(setup);
  setup.keep_working = true;
  same_as(&cast, setup);
  job_record_free(&cast);
}

/* A copy in bf16 that the update leaves on the device, instead of one that each gather casts.
 * Oracle: the run that casts. In fp32 there is none. */
TEST(copies_that_are_kept)
{
  if (!half)
    return;
  static char bias[] = "*bias", *names[] = {bias};
  for (int strategy = STRATEGY_FULL_SHARD; strategy <= STRATEGY_HYBRID_SHARD; strategy++)
    for (int cut = 0; cut < 2; cut++)
      for (int at_once = 0; at_once < 2; at_once++)
        same_with_a_copy((struct job_setup){.strategy = (enum deck_strategy)strategy,
                                            .group = comm_ranks(comm) == 4 ? 2 : 1,
                                            .prefetch = cut,
                                            .micros = cut ? 3 : 1,
                                            .reduce_every_micro = at_once,
                                            .no_clip = at_once,
                                            .immediate = at_once});
  same_with_a_copy((struct job_setup){
      .prefetch = 1, .freeze = {.n = 1, .item = names}, .activations = recompute});
  same_with_a_copy(
      (struct job_setup){.prefetch = 1, .moments = DTYPE_BF16, .stochastic = true, .micros = 3});
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

/* Proof that the step computes with the working copy. After each step it is the rounded masters,
 * padding included. A changed copy changes the loss. An evaluation reads it too. */
TEST(copies_are_what_is_gathered)
{
  if (!half)
    return;
  const struct job_setup setup = {
      .prefetch = 1, .half = half, .beside = beside, .keep_working = true};
  struct job job;
  job_open(&job, comm, &setup);
  for (int step = 0; step < 2; step++) {
    assert_true(job_step(&job, step).loss == reference[0][0].loss[step]);
    assert_int_equal(exec_drain(job.exec), STATUS_OK);
    check_copies_of(&job);
  }
  memset(exec_pointer(job.exec, job.plan->unit[1].working), 0,
         (size_t)job.plan->buffer[job.plan->unit[1].working].bytes);
  assert_true(job_step(&job, 2).loss != reference[0][0].loss[2]);
  job_close(&job);

  for (int spoilt = 0; spoilt < 2; spoilt++) {
    struct job_setup eval = setup;
    eval.mode = PLAN_EVAL;
    job_open(&job, comm, &eval);
    if (spoilt)
      memset(exec_pointer(job.exec, job.plan->unit[1].working), 0,
             (size_t)job.plan->buffer[job.plan->unit[1].working].bytes);
    assert_int_equal(job_step(&job, 0).loss == reference[0][0].loss[0], !spoilt);
    job_close(&job);
  }
}

TEST(updates_at_once)
{
  for (int micros = 1; micros <= 3; micros += 2) {
    same_all_ways(
        (struct job_setup){.prefetch = 1, .micros = micros, .no_clip = true, .immediate = true});
    same((struct job_setup){.prefetch = 2, .micros = micros, .no_clip = true});
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
static void same_when_clipped_to(double clip, int clipped, struct job_setup setup)
{
  setup.host = true;
  setup.clip = clip;
  struct job_record known = run(setup);
  setup.speculative = true;
  same_as(&known, setup);
  assert_int_equal(clipped_steps(&known, clip), clipped);
  job_record_free(&known);
}

/* The reference has clipped steps. Without clipping the norm is that of no clipped step. */
TEST(updates_before_the_norm)
{
  assert_true(clipped_steps(&reference[0][0], 0.5) > 0);
  for (int micros = 1; micros <= 3; micros += 2) {
    same_all_ways((struct job_setup){.prefetch = 1, .micros = micros, .speculative = true});
    same((struct job_setup){
        .prefetch = 2, .micros = micros, .speculative = true, .no_clip = true, .threads = 3});
  }
  same((struct job_setup){.prefetch = 1, .speculative = true, .nvme_state = 0.5});
  same((struct job_setup){.prefetch = 1, .speculative = true, .resident = 1, .activations = host});
  for (int way = 0; way < WAYS; way++) {
    struct job_setup setup = {.prefetch = 1, .moments = DTYPE_BF16, .stochastic = true};
    take_way(&setup, way);
    same_when_clipped_to(1e-3, JOB_STEPS, setup);
    same_when_clipped_to(1e3, 0, setup);
  }
}

/* The first step is clipped and no other, or the reverse. */
TEST(some_steps_are_clipped)
{
  const struct job_record *free = &reference[0][true];
  const double *norm = free->grad_norm;
  int mixed = 0;
  for (int step = 0; step < JOB_STEPS; step++) {
    struct job_setup setup = {.host = true, .prefetch = 1, .clip = norm[step]};
    struct job_record known = run(setup);
    const int clipped = clipped_steps(&known, setup.clip);
    job_record_free(&known);
    mixed += clipped > 0 && clipped < JOB_STEPS;
    same_when_clipped_to(setup.clip, clipped, setup);
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
static struct job_record run_with_a_bad_step(struct job_setup setup, bool heals)
{
  enum { UNIT = 1 };
  struct job_record record = {.n = 0};
  struct exec_result result;
  struct job job;
  char was[4] = {0};
  setup.half = half;
  setup.beside = beside;
  job_open(&job, comm, &setup);
  for (int step = 0; step < JOB_STEPS; step++) {
    const int64_t update = step < 2 ? step + 1 : 2;
    if (step == 1) {
      assert_int_equal(exec_drain(job.exec), STATUS_OK);
      memcpy(was, fetched_unit(&job, UNIT), sizeof was);
      memset(fetched_unit(&job, UNIT), 0xff, sizeof was);
    }
    assert_int_equal(exec_step(job.exec, step, update, 0.01, &result), STATUS_OK);
    assert_int_equal(result.finite, step != 1);
    record.loss[step] = step == 1 ? 0 : result.loss;
    record.grad_norm[step] = step == 1 ? 0 : result.grad_norm;
    if (step == 1 && !heals) {
      assert_int_equal(exec_drain(job.exec), STATUS_OK);
      memcpy(fetched_unit(&job, UNIT), was, sizeof was);
      assert_int_equal(comm_agree(comm, STATUS_OK), STATUS_OK); /* others may read it */
    }
  }
  record.params = job_collect(&job);
  record.n = job_parameters(&job);
  job_close(&job);
  return record;
}

TEST(a_step_that_is_not_finite_changes_nothing)
{
  for (int way = 0; way < WAYS; way++) {
    struct job_setup setup = {.host = true, .prefetch = 1};
    take_way(&setup, way);
    struct job_record known = run_with_a_bad_step(setup, false);
    setup.speculative = true;
    struct job_record guessed = run_with_a_bad_step(setup, true);
    job_assert_same(&guessed, &known);
    job_record_free(&guessed);
    job_record_free(&known);
  }
}

/* After each step at rest the working copy is the masters in the compute type, whatever the step
 * was. */
static void check_rest(double clip)
{
  const struct job_setup setup = {.half = half,
                                  .beside = beside,
                                  .prefetch = 1,
                                  .host = true,
                                  .speculative = true,
                                  .clip = clip};
  struct job job;
  job_open(&job, comm, &setup);
  for (int step = 0; step < JOB_STEPS; step++) {
    job_step(&job, step);
    assert_int_equal(exec_drain(job.exec), STATUS_OK);
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
  for (int prefetch = 0; prefetch <= 2; prefetch++) {
    same((struct job_setup){.prefetch = prefetch, .activations = recompute});
    same((struct job_setup){.prefetch = prefetch, .activations = host, .micros = 3});
    same((struct job_setup){.prefetch = prefetch, .activations = nvme, .micros = 3});
    same((struct job_setup){.prefetch = prefetch, .activations = kept, .micros = 3});
    same((struct job_setup){.prefetch = prefetch, .activations = some});
    same((struct job_setup){.prefetch = prefetch, .activations = turns, .cpu_reduce = true});
    same((struct job_setup){.prefetch = prefetch,
                            .activations = turns,
                            .cpu_reduce = true,
                            .one_node = true,
                            .micros = 3});
  }
}

/* The same with masters on the device. */
TEST(inputs_alone)
{
  const struct deck_pattern *const patterns[] = {&host, &nvme, &turns, &kept, &some};
  for (int p = 0; p < 5; p++)
    same_as(&reference[0][0], (struct job_setup){.prefetch = p % 3, .activations = *patterns[p]});
}

TEST(moments_on_nvme)
{
  same((struct job_setup){.prefetch = 1, .nvme_state = 1, .micros = 3});
  same((struct job_setup){.prefetch = 0, .nvme_state = 0.5, .params_full = true});
  same((struct job_setup){.prefetch = 2, .nvme_state = 0.5, .no_clip = true, .immediate = true});
}

/* The first units keep masters and moments on the device, and are updated there. */
TEST(resident_units)
{
  for (int resident = 1; resident <= 2; resident++)
    for (int micros = 1; micros <= 3; micros += 2) {
      same((struct job_setup){.resident = resident, .micros = micros});
      same((struct job_setup){.resident = resident,
                              .micros = micros,
                              .prefetch = 1,
                              .activations = host,
                              .nvme_state = 0.5});
      same((struct job_setup){.resident = resident,
                              .micros = micros,
                              .prefetch = 2,
                              .no_clip = true,
                              .immediate = true,
                              .threads = 2});
    }
  for (int group = 1; group <= comm_ranks(comm); group *= 2)
    if (comm_ranks(comm) % group == 0)
      same((struct job_setup){
          .strategy = STRATEGY_HYBRID_SHARD, .group = group, .prefetch = 1, .resident = 1});
}

TEST(threads_of_the_lanes)
{
  if (half)
    return;
  same_all_ways((struct job_setup){.prefetch = 1, .threads = 3});
}

/* Replicas meet in another order of additions where a step is cut, but not where it is one
 * micro-batch. */
TEST(hybrid_groups)
{
  for (int group = 1; group <= comm_ranks(comm); group *= 2)
    if (comm_ranks(comm) % group == 0)
      same_all_ways(
          (struct job_setup){.strategy = STRATEGY_HYBRID_SHARD, .group = group, .prefetch = 1});
}

/* A slow link changes when things happen and nothing else. Oracle for the link: what goes down it
 * in a step takes no less than its bytes over the rate. */
TEST(slow_links)
{
  const double rate = 1e-3;
  const struct job_setup setup = {.host = true,
                                  .prefetch = 1,
                                  .activations = host,
                                  .rate = rate,
                                  .half = half,
                                  .beside = beside};
  struct job job;
  double bytes = 0;
  job_open(&job, comm, &setup);
  for (int i = 0; i < job.plan->n; i++)
    if (job.plan->instr[i].lane == LANE_H2D)
      bytes += (double)job.plan->buffer[job.plan->instr[i].use[1].buffer].bytes;
  const double start = clock_s();
  struct exec_result result = job_step(&job, 0);
  assert_int_equal(exec_drain(job.exec), STATUS_OK);
  assert_true(bytes > 0 && clock_s() - start >= bytes / (1e9 * rate));
  assert_true(result.loss == reference[0][0].loss[0]);
  job_close(&job);
}

/* Several micro-batches of one rank: without a link between ranks the device adds them up inside of
 * its products. Oracle: the reference, within the rounding of fp32. */
TEST(one_rank)
{
  if (half || comm_ranks(comm) > 1)
    return;
  struct job_record record =
      run((struct job_setup){.host = true, .prefetch = 1, .micros = 3, .reduce_every_micro = true});
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
  static char bias[] = "*bias", embedding[] = "*wte*", *names[] = {bias, embedding};
  const struct option_strings freeze = {.n = 2, .item = names};
  struct job_record expected = run((struct job_setup){.prefetch = 1, .freeze = freeze});
  for (int way = 0; way <= WAYS; way++) {
    struct job_setup setup = {.host = true, .prefetch = 1, .freeze = freeze};
    if (way < WAYS)
      take_way(&setup, way);
    else
      setup.resident = 1;
    same_as(&expected, setup);
  }
  job_record_free(&expected);
}

/* Parts that travel in 16 bits are rounded once, those of a rank's own too, wherever they are added
 * up. Oracle: the run on the device, which is not the reference's. */
TEST(narrow_parts)
{
  for (int micros = 1; micros <= 3; micros += 2) {
    const struct job_setup setup = {
        .prefetch = 1, .micros = micros, .reduce_every_micro = true, .codec = "bf16"};
    if (comm_ranks(comm) == 1)
      return; /* nothing travels */
    struct job_record expected = run(setup);
    assert_true(expected.loss[2] != reference[micros == 3][0].loss[2]);
    for (int way = 0; way < WAYS; way += 2) {
      struct job_setup offload = setup;
      offload.host = true;
      take_way(&offload, way);
      same_as(&expected, offload);
    }
    job_record_free(&expected);
  }
}

/* 16-bit moments: the same wherever they are kept, and rounding that is a function of the element
 * is the same too. */
TEST(narrow_moments)
{
  for (int kind = 0; kind < 4; kind++) {
    const struct job_setup setup = {
        .prefetch = 1, .moments = kind & 2 ? DTYPE_F16 : DTYPE_BF16, .stochastic = kind & 1};
    struct job_record expected = run(setup);
    assert_true(expected.loss[2] != reference[0][0].loss[2]);
    assert_true(fabs(expected.loss[2] - reference[0][0].loss[2]) < 1e-2 * reference[0][0].loss[2]);
    for (int way = 0; way < 4; way++) {
      struct job_setup offload = setup;
      offload.host = true;
      offload.params_full = way & 1;
      offload.nvme_state = way & 2 ? 0.5 : 0;
      offload.resident = way & 1 ? 0 : 1;
      same_as(&expected, offload);
    }
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
static double loss_after(int steps, enum dtype moments, bool stochastic, bool plain)
{
  const struct job_setup setup = {.prefetch = 1,
                                  .moments = moments,
                                  .stochastic = stochastic,
                                  .half = half,
                                  .beside = beside,
                                  .clip = 5e-4,
                                  .eps = 1e-8};
  struct exec_result result = {0};
  struct job job;
  job_open(&job, comm, &setup);
  for (int step = 0; step <= steps; step++) {
    result = job_step(&job, step);
    assert_int_equal(exec_drain(job.exec), STATUS_OK);
    if (plain)
      round_moments(&job);
  }
  job_close(&job);
  return result.loss;
}

/* Parameters differ from those of fp32 moments by at most 5.4 % of the longest way that they can
 * go, stochastically 11 % (tests/device/test_adamw.c). At most this share of the decrease of the
 * loss is lost or gained. A second moment of 0, where plain fp16 has no smaller number, makes steps
 * of any length. */
TEST(moments_in_fp16_learn_as_in_fp32)
{
  enum { STEPS = 12 };
  if (half)
    return;
  const double before = loss_after(0, DTYPE_F32, false, false),
               after = loss_after(STEPS, DTYPE_F32, false, false), learned = before - after;
  assert_true(learned > 0.05 * before);
  assert_true(fabs(loss_after(STEPS, DTYPE_F16, false, false) - after) <= 0.054 * learned);
  assert_true(fabs(loss_after(STEPS, DTYPE_F16, true, false) - after) <= 0.11 * learned);
  assert_true(fabs(loss_after(STEPS, DTYPE_F32, false, true) - after) > learned);
}

FIXTURE(start)
{
  for (int i = 0; i < 4; i++)
    reference[i / 2][i % 2] = run((struct job_setup){
        .prefetch = 1, .micros = i / 2 ? 3 : 1, .reduce_every_micro = true, .no_clip = i % 2});
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
  comm = job_start_mpi();
  if (!comm)
    return 1;
  int failed = test_run(start, stop);
  half = beside = true; /* bf16, with the host beside the device */
  failed += test_run(start, stop);
  comm_destroy(comm);
  return failed;
}
