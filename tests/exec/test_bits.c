/* Choices that must not change the results. Oracle: losses, gradient norms and all parameters after
 * three steps are bitwise identical to those of full_shard on the same number of ranks (prefetch 1,
 * no recompute, one micro-batch). Runs with gradients sent in bf16 are compared with each other. */
/* ranks: 1 2 3 4 5 */
#include <math.h>

#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

static struct comm *comm;
static struct job_record reference;
static bool half;

static struct job_record run(struct job_setup setup)
{
  setup.half = half;
  return job_run(comm, &setup);
}

static void same_as_reference(const struct job_setup *setup)
{
  struct job_record record = run(*setup);
  job_assert_same(&record, &reference);
  job_record_free(&record);
}

static void training_moves(void **state)
{
  (void)state;
  assert_true(reference.loss[0] != reference.loss[1]);
  assert_true(reference.grad_norm[0] > 0);
  struct job job;
  job_open(&job, comm, &(struct job_setup){.half = half});
  float *initial = job_collect(&job);
  int64_t same = 0;
  for (int64_t i = 0; i < reference.n; i++)
    same += initial[i] == reference.params[i];
  assert_in_range(same, 0, reference.n / 4); /* rows of no token */
  mem_free(initial);
  job_close(&job);
}

static void two_runs(void **state)
{
  (void)state;
  same_as_reference(&(struct job_setup){.prefetch = 1});
}

/* Once it is begun a step comes to its end by itself, whatever its caller does meanwhile. */
static void steps_that_are_left_alone(void **state)
{
  (void)state;
  struct job job;
  struct job_record record = {0};
  job_open(&job, comm, &(struct job_setup){.prefetch = 1, .half = half});
  for (int64_t step = 0; step < JOB_STEPS; step++) {
    struct exec_result result = {0};
    int64_t all = comm_rank(comm);
    assert_int_equal(exec_begin(job.exec, step, step + 1, 0.01), STATUS_OK);
    assert_int_equal(comm_max_i64(comm, &all, 1), STATUS_OK);
    assert_int_equal(all, comm_ranks(comm) - 1);
    if (step > 0)
      assert_int_equal(exec_drain(job.exec), STATUS_OK);
    assert_int_equal(exec_end(job.exec, &result), STATUS_OK);
    record.loss[step] = result.loss;
    record.grad_norm[step] = result.grad_norm;
  }
  record.params = job_collect(&job);
  record.n = job_parameters(&job);
  job_assert_same(&record, &reference);
  job_record_free(&record);
  job_close(&job);
}

static void strategies(void **state)
{
  (void)state;
  for (int strategy = STRATEGY_SHARD_GRAD_OP; strategy <= STRATEGY_NO_SHARD; strategy++)
    same_as_reference(&(struct job_setup){.strategy = (enum deck_strategy)strategy, .prefetch = 1});
}

/* Oracle: full_shard by the same optimizer. */
static void other_optimizers(void **state)
{
  const enum optimizer optims[] = {OPTIM_lion, OPTIM_sgd, OPTIM_muon};
  const struct job_setup setups[] = {
      {.strategy = STRATEGY_NO_SHARD},
      {.strategy = STRATEGY_SHARD_OPTIM, .prefetch = 2, .micros = 3},
      {.strategy = STRATEGY_SHARD_GRAD_OP, .prefetch = 1, .threads = 3},
      {.strategy = STRATEGY_HYBRID_SHARD, .group = 1},
      {.prefetch = 1, .keep_working = true}};
  (void)state;
  for (size_t o = 0; o < sizeof optims / sizeof *optims; o++) {
    struct job_record want = run((struct job_setup){.prefetch = 1, .optim = optims[o]});
    for (size_t s = 0; s < sizeof setups / sizeof *setups; s++) {
      struct job_setup setup = setups[s];
      setup.optim = optims[o];
      struct job_record got = run(setup);
      job_assert_same(&got, &want);
      job_record_free(&got);
    }
    assert_true(want.loss[1] != reference.loss[1]);
    job_record_free(&want);
  }
}

/* Groups of a power of two are subtrees of the sum over all; so are groups of one. */
static void hybrid_groups(void **state)
{
  (void)state;
  for (int group = 1; group <= comm_ranks(comm); group *= 2)
    if (comm_ranks(comm) % group == 0)
      same_as_reference(
          &(struct job_setup){.strategy = STRATEGY_HYBRID_SHARD, .group = group, .prefetch = 1});
}

static void prefetch_depths(void **state)
{
  (void)state;
  same_as_reference(&(struct job_setup){.prefetch = 0});
  same_as_reference(&(struct job_setup){.prefetch = 2});
  same_as_reference(&(struct job_setup){.strategy = STRATEGY_SHARD_GRAD_OP, .prefetch = 9});
}

static void units_that_stay_gathered(void **state)
{
  (void)state;
  same_as_reference(&(struct job_setup){.prefetch = 1, .gathered = 1});
  same_as_reference(&(struct job_setup){.prefetch = 0, .gathered = 2, .micros = 3});
  same_as_reference(&(struct job_setup){.prefetch = 2, .gathered = 4, .recompute_every = 1});
  same_as_reference(&(struct job_setup){
      .strategy = STRATEGY_HYBRID_SHARD, .group = 1, .prefetch = 1, .gathered = 3});
}

static void recompute_choices(void **state)
{
  (void)state;
  same_as_reference(&(struct job_setup){.prefetch = 1, .recompute_every = 1});
  same_as_reference(&(struct job_setup){.prefetch = 0, .recompute_every = 2});
  same_as_reference(&(struct job_setup){.strategy = STRATEGY_NO_SHARD, .recompute_every = 2});
}

static void accumulation_splits(void **state)
{
  (void)state;
  same_as_reference(&(struct job_setup){.prefetch = 1, .micros = 3});
  same_as_reference(&(struct job_setup){
      .strategy = STRATEGY_SHARD_OPTIM, .prefetch = 2, .micros = 3, .recompute_every = 1});
  same_as_reference(&(struct job_setup){.strategy = STRATEGY_NO_SHARD, .micros = 3});
}

static void threads_of_the_compute_lane(void **state)
{
  (void)state;
  same_as_reference(&(struct job_setup){.prefetch = 1, .threads = 3});
}

/* Reducing after each micro-batch changes the order of a sum, the same way for every strategy. */
static void reducing_every_micro_batch(void **state)
{
  (void)state;
  struct job_record first =
      run((struct job_setup){.prefetch = 1, .micros = 3, .reduce_every_micro = true});
  for (int strategy = STRATEGY_SHARD_GRAD_OP; strategy <= STRATEGY_NO_SHARD; strategy++) {
    struct job_record record = run((struct job_setup){
        .strategy = (enum deck_strategy)strategy, .micros = 3, .reduce_every_micro = true});
    job_assert_same(&record, &first);
    job_record_free(&record);
  }
  /* One rank has nothing to reduce. */
  if (comm_ranks(comm) == 1)
    job_assert_same(&first, &reference);
  job_record_free(&first);
}

/* Steps that are drained in between, and a second executor on the same arenas that goes on where
 * the first one stopped. */
static void draining_and_going_on(void **state)
{
  (void)state;
  const struct job_setup setup = {.prefetch = 1, .half = half};
  struct job job;
  struct job_record record = {.n = reference.n};
  job_open(&job, comm, &setup);
  for (int step = 0; step < JOB_STEPS; step++) {
    struct exec_result result = job_step(&job, step);
    record.loss[step] = result.loss;
    record.grad_norm[step] = result.grad_norm;
    assert_int_equal(exec_drain(job.exec), STATUS_OK);
    if (step == 1) {
      exec_destroy(job.exec);
      assert_int_equal(job_create_exec(&job, &setup), STATUS_OK);
    }
  }
  record.params = job_collect(&job);
  job_assert_same(&record, &reference);
  job_record_free(&record);
  job_close(&job);
}

/* An evaluation of the initial parameters is the loss of the first step. */
static void evaluation(void **state)
{
  (void)state;
  struct job job;
  job_open(&job, comm,
           &(struct job_setup){.mode = PLAN_EVAL, .prefetch = 1, .micros = 3, .half = half});
  struct exec_result result = job_step(&job, 0);
  assert_true(result.loss == reference.loss[0]);
  assert_true(result.loss_sum / (JOB_BATCH * JOB_SEQUENCE) == result.loss);
  assert_true(result.finite);
  assert_true(result.grad_norm == 0);
  job_close(&job);
}

/* Tokens of all sequences in one piece of padded rows: another order of additions. Oracle: the
 * reference, within the rounding of fp32 over three steps. */
static void devices_that_do_not_work_by_sequence(void **state)
{
  (void)state;
  struct job_record record = run((struct job_setup){.prefetch = 1, .whole = true});
  const double bound = half ? 2e-2 : 1e-5;
  for (int step = 0; step < JOB_STEPS; step++) {
    assert_true(fabs(record.loss[step] - reference.loss[step]) < bound * reference.loss[step]);
    assert_true(fabs(record.grad_norm[step] - reference.grad_norm[step]) <
                bound * reference.grad_norm[step]);
  }
  job_record_free(&record);
}

/* In bf16 the loss is another, but not by much. */
static void bf16_is_near_fp32(void **state)
{
  (void)state;
  struct job_record full = job_run(comm, &(struct job_setup){.prefetch = 1});
  for (int step = 0; step < JOB_STEPS; step++) {
    assert_true(reference.loss[step] != full.loss[step]);
    assert_true(fabs(reference.loss[step] - full.loss[step]) < 2e-2 * full.loss[step]);
  }
  job_record_free(&full);
}

/* As job_run(), with gradients that travel in bf16. */
static struct job_record run_narrow(struct job_setup setup)
{
  struct job job;
  struct job_record record = {0};
  setup.half = half;
  setup.codec = "bf16";
  job_open(&job, comm, &setup);
  for (int step = 0; step < JOB_STEPS; step++) {
    struct exec_result result = job_step(&job, step);
    record.loss[step] = result.loss;
    record.grad_norm[step] = result.grad_norm;
  }
  record.n = job_parameters(&job);
  record.params = job_collect(&job);
  job_close(&job);
  return record;
}

static void narrow_agrees(const struct job_record *narrow, struct job_setup setup)
{
  struct job_record record = run_narrow(setup);
  job_assert_same(&record, narrow);
  job_record_free(&record);
}

/* A rank's part of a gradient is rounded by 2^-9 of itself at most. The roundings of many elements
 * walk at random and move the norm by less than that. A loss depends on the gradients of the steps
 * before it, with a small learning rate: 1e-4. */
static void narrow_is_near(const struct job_record *narrow)
{
  assert_true(narrow->loss[0] == reference.loss[0]);
  assert_true(fabs(narrow->grad_norm[0] - reference.grad_norm[0]) < reference.grad_norm[0] / 512);
  for (int step = 1; step < JOB_STEPS; step++)
    assert_true(fabs(narrow->loss[step] - reference.loss[step]) < 1e-4 * reference.loss[step]);
}

/* Each strategy rounds the same parts, and a group of one rounds nothing. */
static void gradients_that_travel_in_bf16(void **state)
{
  (void)state;
  const int ranks = comm_ranks(comm);
  struct job_record narrow = run_narrow((struct job_setup){.prefetch = 1});
  if (ranks == 1)
    job_assert_same(&narrow, &reference);
  else
    assert_true(narrow.grad_norm[0] != reference.grad_norm[0]);
  narrow_is_near(&narrow);
  for (int strategy = STRATEGY_SHARD_GRAD_OP; strategy <= STRATEGY_NO_SHARD; strategy++)
    narrow_agrees(&narrow,
                  (struct job_setup){.strategy = (enum deck_strategy)strategy, .prefetch = 1});
  narrow_agrees(&narrow, (struct job_setup){.prefetch = 1, .micros = 3});
  narrow_agrees(&narrow,
                (struct job_setup){.strategy = STRATEGY_HYBRID_SHARD, .group = 1, .prefetch = 1});
  narrow_agrees(&narrow, (struct job_setup){
                             .strategy = STRATEGY_HYBRID_SHARD, .group = ranks, .prefetch = 1});
  job_record_free(&narrow);
  if (ranks != 4)
    return;
  narrow = run_narrow((struct job_setup){.strategy = STRATEGY_HYBRID_SHARD,
                                         .group = 2,
                                         .prefetch = 1}); /* rounds sums of two once more */
  narrow_is_near(&narrow);
  job_record_free(&narrow);
}

FIXTURE(start)
{
  reference = run((struct job_setup){.prefetch = 1});
  return 0;
}

FIXTURE(stop)
{
  job_record_free(&reference);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(training_moves),
      cmocka_unit_test(two_runs),
      cmocka_unit_test(steps_that_are_left_alone),
      cmocka_unit_test(strategies),
      cmocka_unit_test(other_optimizers),
      cmocka_unit_test(hybrid_groups),
      cmocka_unit_test(prefetch_depths),
      cmocka_unit_test(recompute_choices),
      cmocka_unit_test(units_that_stay_gathered),
      cmocka_unit_test(accumulation_splits),
      cmocka_unit_test(threads_of_the_compute_lane),
      cmocka_unit_test(gradients_that_travel_in_bf16),
      cmocka_unit_test(reducing_every_micro_batch),
      cmocka_unit_test(draining_and_going_on),
      cmocka_unit_test(evaluation),
      cmocka_unit_test(devices_that_do_not_work_by_sequence),
  };
  const struct CMUnitTest half_tests[] = {
      cmocka_unit_test(bf16_is_near_fp32),
      cmocka_unit_test(strategies),
      cmocka_unit_test(other_optimizers),
      cmocka_unit_test(hybrid_groups),
      cmocka_unit_test(recompute_choices),
      cmocka_unit_test(units_that_stay_gathered),
      cmocka_unit_test(accumulation_splits),
      cmocka_unit_test(reducing_every_micro_batch),
      cmocka_unit_test(evaluation),
      cmocka_unit_test(draining_and_going_on),
      cmocka_unit_test(devices_that_do_not_work_by_sequence),
  };
  comm = job_start_mpi();
  if (!comm)
    return 1;
  int failed = cmocka_run_group_tests_name("fp32", tests, start, stop);
  half = true;
  failed += cmocka_run_group_tests_name("bf16", half_tests, start, stop);
  comm_destroy(comm);
  return failed;
}
