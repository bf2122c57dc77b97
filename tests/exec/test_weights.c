/* Parameters that a codec gathers. Oracles: a run without codec that starts from the decoded
 * masters, made by hand. Strategies and ranks are bitwise identical to each other. A run without
 * codec is within a documented bound. */
/* ranks: 2 3 4 */
#include <string.h>

#include <mpi.h>

#include "base/mem.h"
#include "device/lane.h"
#include "job.h"
#include "tests/test.h"

enum { MOST_UNITS = 8 };

static struct comm *comm;
static struct device *device;
static struct lane *lane;

/* ---- by hand ---- */

static float rounded(float x, enum dtype type)
{
  return type == DTYPE_BF16 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

/* The decoded message of x. */
static void through(const struct codec *codec, int64_t n, const float *x, float *out)
{
  char *message = NULL, *work = NULL;
  assert_int_equal(mem_new(MEM_META, (size_t)codec->ops->bytes(codec, n), &message), STATUS_OK);
  assert_int_equal(mem_new(MEM_META, (size_t)codec_work(codec, n, 1) + 1, &work), STATUS_OK);
  const struct codec_pass pass = {.lane = lane, .n = n, .parts = 1, .work = work};
  assert_int_equal(codec->ops->encode(codec, &pass, x, message), STATUS_OK);
  must(codec->ops->decode(codec, &pass, message, codec->ops->bytes(codec, n), QUANT_SET, DTYPE_F32,
                          out));
  mem_free(message);
  mem_free(work);
}

/* This rank's parts of what is computed with, in fp32: trained, and what is frozen. */
struct copies {
  float *part[MOST_UNITS], *frozen[MOST_UNITS];
};

static float *part_of(const struct job *job, int buffer)
{
  float *part = NULL;
  if (buffer < 0)
    return NULL;
  const int64_t n = job->plan->buffer[buffer].elements;
  assert_int_equal(mem_new(MEM_META, (size_t)n, &part), STATUS_OK);
  memcpy(part, exec_pointer(job->exec, buffer), (size_t)n * sizeof *part);
  return part;
}

/* As a run begins: rounded masters. */
static struct copies copies_make(const struct job *job)
{
  const enum dtype type = job->device->model.compute;
  struct copies c = {{NULL}, {NULL}};
  for (int u = 0; u < job->model->units; u++) {
    c.part[u] = part_of(job, job->plan->unit[u].master);
    c.frozen[u] = part_of(job, job->plan->unit[u].frozen);
    for (int64_t i = 0; c.part[u] && i < job->plan->buffer[job->plan->unit[u].master].elements; i++)
      c.part[u][i] = rounded(c.part[u][i], type);
  }
  return c;
}

static void copies_free(struct copies *c)
{
  for (int u = 0; u < MOST_UNITS; u++) {
    mem_free(c->part[u]);
    mem_free(c->frozen[u]);
  }
}

static bool is_inside(const struct layout_unit *layout, int64_t i)
{
  bool inside = false;
  for (int p = 0; p < layout->params; p++)
    inside |= i >= layout->offset[p] && i < layout->offset[p] + layout->elements[p];
  return inside;
}

/* A new message of the master, or of its difference to the copy. Between parameters the copy is
 * zero. */
static void renew(const struct job *job, const struct codec *codec, int u, int master, float *part)
{
  const enum dtype type = job->device->model.compute;
  const int64_t n = job->plan->buffer[master].elements;
  float *x = part_of(job, master), *sent = NULL;
  assert_int_equal(mem_new(MEM_META, (size_t)n, &sent), STATUS_OK);
  for (int64_t i = 0; i < n && job->setup.difference; i++)
    x[i] -= part[i];
  through(codec, n, x, sent);
  for (int64_t i = 0; i < n; i++)
    part[i] = rounded(job->setup.difference ? part[i] + sent[i] : sent[i], type);
  for (int64_t i = 0; i < n && job->setup.difference; i++)
    if (!is_inside(&job->plan->unit[u].layout, job->plan->unit[u].owned.begin + i))
      part[i] = 0;
  mem_free(sent);
  mem_free(x);
}

static void put(const struct job *job, int buffer, const float *part)
{
  if (buffer >= 0)
    memcpy(exec_pointer(job->exec, buffer), part, (size_t)job->plan->buffer[buffer].bytes);
}

/* The masters of a job without codec become what the other's ranks compute with. */
static void follow(const struct job *job, const struct job *plain, struct copies *c)
{
  const struct codec *codec = &job->plan->unit[0].policy.weights;
  const enum dtype type = job->device->model.compute;
  for (int u = 0; u < job->model->units; u++) {
    const int master = job->plan->unit[u].master, frozen = job->plan->unit[u].frozen,
              working = plain->plan->unit[u].working;
    if (master >= 0)
      renew(job, codec, u, master, c->part[u]);
    if (frozen >= 0 && !job->setup.difference)
      renew(job, codec, u, frozen, c->frozen[u]);
    put(plain, plain->plan->unit[u].master, c->part[u]);
    put(plain, plain->plan->unit[u].frozen, c->frozen[u]);
    if (working >= 0)
      dtype_convert(exec_pointer(plain->exec, working), type, c->part[u], DTYPE_F32,
                    (size_t)plain->plan->buffer[working].elements);
  }
}

/* All ranks have the same copy, whose part of this rank is the one by hand. */
static void expect_copies(const struct job *job, const struct copies *c)
{
  for (int u = 0; u < job->model->units; u++) {
    const int copy = job->plan->unit[u].copy, mine = job->plan->unit[u].copy_mine;
    if (copy < 0)
      continue;
    assert_int_equal(comm_check_same(comm, "a copy", exec_pointer(job->exec, copy),
                                     job->plan->buffer[copy].bytes),
                     STATUS_OK);
    for (int64_t i = 0; mine >= 0 && i < job->plan->buffer[mine].elements; i++) {
      float value;
      dtype_convert(&value, DTYPE_F32,
                    (char *)exec_pointer(job->exec, mine) +
                        i * (int64_t)dtype_size(job->plan->buffer[mine].dtype),
                    job->plan->buffer[mine].dtype, 1);
      assert_true(value == c->part[u][i]);
    }
  }
}

static void compare_with_hand(const struct job_setup *setup)
{
  struct job_setup without = *setup;
  struct job job, plain;
  without.weights = NULL;
  without.difference = false;
  job_open(&job, comm, setup);
  job_open(&plain, comm, &without);
  struct copies copies = copies_make(&job);
  int64_t changed = 0;
  for (int step = 0; step < JOB_STEPS; step++) {
    follow(&job, &plain, &copies);
    const struct exec_result got = job_step(&job, step), want = job_step(&plain, step);
    assert_true(isfinite(got.loss) && got.loss == want.loss && got.grad_norm == want.grad_norm);
    assert_int_equal(exec_drain(job.exec), STATUS_OK);
    assert_int_equal(exec_drain(plain.exec), STATUS_OK);
    expect_copies(&job, &copies);
    for (int u = 0; u < job.model->units; u++)
      if (job.plan->unit[u].master >= 0)
        changed += memcmp(exec_pointer(job.exec, job.plan->unit[u].master), copies.part[u],
                          (size_t)job.plan->buffer[job.plan->unit[u].master].bytes) != 0;
  }
  assert_true(changed > 0);
  copies_free(&copies);
  job_close(&job);
  job_close(&plain);
}

static struct option_strings frozen_parts(void)
{
  static char pattern[] = "*.1.*", *patterns[] = {pattern};
  return (struct option_strings){.n = 1, .item = patterns};
}

TEST(ranks_compute_with_what_messages_say)
{
  // clang-format off
  const struct job_setup setups[] = {
      {.strategy = STRATEGY_FULL_SHARD, .prefetch = 1, .weights = "int8"},
      {.strategy = STRATEGY_FULL_SHARD, .weights = "bf16", .llama = true},
      {.strategy = STRATEGY_FULL_SHARD, .prefetch = 1, .weights = "int4", .half = true,
       .micros = 3},
      {.strategy = STRATEGY_FULL_SHARD, .weights = "hadamard_int4", .half = true, .llama = true,
       .freeze = frozen_parts()},
      {.strategy = STRATEGY_SHARD_GRAD_OP, .weights = "e4m3", .micros = 3},
      {.strategy = STRATEGY_SHARD_OPTIM, .weights = "e5m2", .half = true},
      {.strategy = STRATEGY_FULL_SHARD, .prefetch = 1, .weights = "int8", .host = true},
      {.strategy = STRATEGY_FULL_SHARD, .weights = "int8", .half = true, .host = true,
       .beside = true, .freeze = frozen_parts()},
  };
  // clang-format on
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++)
    compare_with_hand(&setups[s]);
}

TEST(copies_get_what_differences_say)
{
  // clang-format off
  const struct job_setup setups[] = {
      {.strategy = STRATEGY_SHARD_GRAD_OP, .prefetch = 1, .weights = "int4", .difference = true},
      {.strategy = STRATEGY_SHARD_OPTIM, .weights = "int8", .half = true, .difference = true},
      {.strategy = STRATEGY_SHARD_OPTIM, .weights = "topk", .micros = 3, .difference = true},
      {.strategy = STRATEGY_SHARD_GRAD_OP, .weights = "topk+int8", .half = true, .llama = true,
       .freeze = frozen_parts(), .difference = true},
      {.strategy = STRATEGY_SHARD_GRAD_OP, .weights = "onebit", .llama = true,
       .freeze = frozen_parts(), .difference = true},
      {.strategy = STRATEGY_SHARD_OPTIM, .weights = "bf16", .difference = true},
  };
  // clang-format on
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++)
    compare_with_hand(&setups[s]);
}

static void expect_same_runs(const struct job_setup *a, const struct job_setup *b)
{
  struct job_record first = job_run(comm, a), second = job_run(comm, b);
  job_assert_same(&first, &second);
  job_record_free(&first);
  job_record_free(&second);
}

/* Shards are multiples of 256 elements, so that blocks of 256 are cut alike whatever the group.
 * Random bits are the same in all gathers of a step. */
static void windows_agree(const char *codec, bool half)
{
  const struct job_setup full = {.strategy = STRATEGY_FULL_SHARD,
                                 .weights = codec,
                                 .half = half,
                                 .micros = 3,
                                 .prefetch = 1,
                                 .reduce_every_micro = true};
  struct job_setup others[] = {full, full, full};
  others[0].strategy = STRATEGY_SHARD_GRAD_OP;
  others[1].strategy = STRATEGY_SHARD_OPTIM;
  others[2].recompute_every = 1;
  others[2].prefetch = 0;
  struct job_record first = job_run(comm, &full);
  for (int i = 0; i < 3; i++) {
    struct job_record other = job_run(comm, &others[i]);
    job_assert_same(&first, &other);
    job_record_free(&other);
  }
  job_record_free(&first);
}

TEST(strategies_agree)
{
  windows_agree("int8", false);
  windows_agree("hadamard_int4", true);
  windows_agree("natural", true);
  windows_agree("qsgd", false);
  const struct job_setup full = {.strategy = STRATEGY_FULL_SHARD, .weights = "int8"};
  struct job_setup hybrid = full;
  hybrid.strategy = STRATEGY_HYBRID_SHARD;
  hybrid.group = 2;
  if (comm_ranks(comm) == 4)
    expect_same_runs(&full, &hybrid);
  const struct job_setup grads = {
      .strategy = STRATEGY_SHARD_GRAD_OP, .weights = "int4", .difference = true, .micros = 3};
  struct job_setup optim = grads;
  optim.strategy = STRATEGY_SHARD_OPTIM;
  expect_same_runs(&grads, &optim);
}

static void expect_zeros(const struct job *job, int u, int buffer, struct layout_range range)
{
  const struct layout_unit *layout = &job->plan->unit[u].layout;
  const int64_t size = (int64_t)dtype_size(job->plan->buffer[buffer].dtype);
  const char *part = exec_pointer(job->exec, buffer);
  for (int64_t i = range.begin; i < range.end; i++)
    for (int64_t b = 0; b < size && !is_inside(layout, i); b++)
      assert_int_equal(part[(i - range.begin) * size + b], 0);
}

/* These codecs make other numbers of zeros. A checkpoint does not hold what lies between
 * parameters. */
TEST(nothing_gathers_between_parameters)
{
  // clang-format off
  const struct job_setup setups[] = {
      {.strategy = STRATEGY_SHARD_OPTIM, .codec = "onebit", .weights = "onebit",
       .difference = true},
      {.strategy = STRATEGY_SHARD_GRAD_OP, .half = true, .micros = 3, .reduce_every_micro = true,
       .codec = "hadamard_int4", .weights = "hadamard_int4", .freeze = frozen_parts(),
       .difference = true},
      {.strategy = STRATEGY_FULL_SHARD, .codec = "signsgd", .weights = "int8", .host = true},
      {.strategy = STRATEGY_HYBRID_SHARD, .group = 2, .codec = "onebit", .weights = "int8"},
  };
  // clang-format on
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++) {
    struct job job;
    if (setups[s].group == 2 && comm_ranks(comm) != 4)
      continue;
    job_open(&job, comm, &setups[s]);
    for (int step = 0; step < JOB_STEPS; step++)
      job_step(&job, step);
    assert_int_equal(exec_drain(job.exec), STATUS_OK);
    for (int u = 0; u < job.model->units; u++) {
      if (job.plan->unit[u].master >= 0)
        expect_zeros(&job, u, job.plan->unit[u].master, job.plan->unit[u].owned);
      if (job.plan->unit[u].copy >= 0)
        expect_zeros(&job, u, job.plan->unit[u].copy,
                     (struct layout_range){0, job.plan->unit[u].layout.flat});
    }
    job_close(&job);
  }
}

/* Evaluation computes with the masters, which a checkpoint holds. */
TEST(evaluation_gathers_what_is_kept)
{
  for (int way = 0; way < 4; way++) {
    struct job_setup coded = {.mode = PLAN_EVAL,
                              .strategy = way / 2 ? STRATEGY_SHARD_OPTIM : STRATEGY_FULL_SHARD,
                              .weights = "int4",
                              .half = way % 2,
                              .difference = way / 2},
                     plain = coded;
    plain.weights = NULL;
    plain.difference = false;
    expect_same_runs(&coded, &plain);
    if (way >= 2)
      continue;
    coded.host = plain.host = true;
    expect_same_runs(&coded, &plain);
  }
}

/* The losses of a run without codec. A step of int8 is 1/127 of the largest of 256 elements, and of
 * int4 1/7. Differences are as small as updates are. */
TEST(losses_stay_near)
{
  static const struct {
    const char *codec;
    bool difference;
    double bound;
  } cases[] = {{"int8", false, 2e-3}, {"int4", false, 2e-2}, {"int4", true, 2e-3}};
  const struct job_setup setup = {.strategy = STRATEGY_SHARD_GRAD_OP};
  struct job_record plain = job_run(comm, &setup);
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct job_setup coded = setup;
    coded.weights = cases[c].codec;
    coded.difference = cases[c].difference;
    struct job_record record = job_run(comm, &coded);
    bool other = false;
    for (int step = 0; step < JOB_STEPS; step++) {
      if (fabs(record.loss[step] / plain.loss[step] - 1) > cases[c].bound)
        fail_msg("%s: %g, and %g without", cases[c].codec, record.loss[step], plain.loss[step]);
      other |= record.loss[step] != plain.loss[step];
    }
    assert_true(other);
    job_record_free(&record);
  }
  job_record_free(&plain);
}

FIXTURE(start)
{
  comm = job_start_mpi();
  if (!comm || device_create("host", 0, DTYPE_F32, &device))
    return -1;
  return device->ops->lane_create(device, "hand", LANE_ROLE_COMPUTE, 1, &lane) ? -1 : 0;
}

FIXTURE(stop)
{
  device->ops->lane_destroy(lane);
  device_destroy(device);
  comm_destroy(comm);
  return 0;
}

TEST_MAIN(start, stop)
