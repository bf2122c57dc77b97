/* Parameters that a codec gathers. Oracles: a run without codec that starts from the decoded
 * masters, made by hand. Strategies and ranks are bitwise identical to each other. A run without
 * codec is within a documented bound. */
/* ranks: 2 3 4 */

#include <mpi.h>

#include "base/mem.h"
#include "device/lane.h"
#include "job.h"
#include "tests/test.h"

enum { MOST_UNITS = 8 };

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
  must(mem_new(MEM_META, (size_t)codec->ops->bytes(codec, n), &message));
  must(mem_new(MEM_META, (size_t)codec_work(codec, n, 1) + 1, &work));
  const struct codec_pass pass = {.lane = lane, .n = n, .parts = 1, .work = work};
  must(codec->ops->encode(codec, &pass, x, message));
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
  must(mem_new(MEM_META, (size_t)n, &part));
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
  must(mem_new(MEM_META, (size_t)n, &sent));
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
    must(comm_check_same(job_comm, "a copy", exec_pointer(job->exec, copy),
                         job->plan->buffer[copy].bytes));
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

/* A setup without codec, and what the codec adds to it. */
struct coded {
  const char *plain, *codec;
};

static void compare_with_hand(const struct coded *setup)
{
  struct job job, plain;
  job_open(&job, job_comm, "%s %s", setup->plain, setup->codec);
  job_open(&plain, job_comm, "%s", setup->plain);
  struct copies copies = copies_make(&job);
  int64_t changed = 0;
  for (int step = 0; step < JOB_STEPS; step++) {
    follow(&job, &plain, &copies);
    const struct exec_result got = job_step(&job, step), want = job_step(&plain, step);
    assert_true(isfinite(got.loss) && got.loss == want.loss && got.grad_norm == want.grad_norm);
    must(exec_drain(job.exec));
    must(exec_drain(plain.exec));
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

TEST(ranks_compute_with_what_messages_say)
{
  static const struct coded setups[] = {
      {"full_shard prefetch=1", "weights=int8"},
      {"full_shard llama", "weights=bf16"},
      {"full_shard prefetch=1 bf16 micros=3", "weights=int4"},
      {"full_shard bf16 llama frozen=*.1.*", "weights=hadamard_int4"},
      {"shard_grad_op micros=3", "weights=e4m3"},
      {"shard_optim bf16", "weights=e5m2"},
      {"full_shard prefetch=1 host", "weights=int8"},
      {"full_shard bf16 host beside frozen=*.1.*", "weights=int8"},
      /* copies get what differences say */
      {"shard_grad_op prefetch=1", "weights=int4 difference"},
      {"shard_optim bf16", "weights=int8 difference"},
      {"shard_optim micros=3", "weights=topk difference"},
      {"shard_grad_op bf16 llama frozen=*.1.*", "weights=topk values=int8 difference"},
      {"shard_grad_op llama frozen=*.1.*", "weights=onebit difference"},
      {"shard_optim", "weights=bf16 difference"},
  };
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++)
    compare_with_hand(&setups[s]);
}

static void expect_same_runs(const char *a, const char *b)
{
  struct job_record first = job_run(job_comm, "%s", a);
  job_same(&first, "%s", b);
  job_record_free(&first);
}

/* Shards are multiples of 256 elements, so that blocks of 256 are cut alike whatever the group.
 * Random bits are the same in all gathers of a step. */
TEST(strategies_agree)
{
  static const char *const codecs[] = {"weights=int8", "weights=hadamard_int4 bf16",
                                       "weights=natural bf16", "weights=qsgd"};
  for (int c = 0; c < 4; c++) {
    struct job_record full = job_run(job_comm, "micros=3 prefetch=1 each_micro %s", codecs[c]);
    job_same(&full, "shard_grad_op micros=3 prefetch=1 each_micro %s", codecs[c]);
    job_same(&full, "shard_optim micros=3 prefetch=1 each_micro %s", codecs[c]);
    job_same(&full, "recompute=1 micros=3 each_micro %s", codecs[c]);
    job_record_free(&full);
  }
  if (comm_ranks(job_comm) == 4)
    expect_same_runs("weights=int8", "hybrid_shard group=2 weights=int8");
  expect_same_runs("shard_grad_op weights=int4 difference micros=3",
                   "shard_optim weights=int4 difference micros=3");
}

/* A lossless codec keeps what windows hold: fp32, or the compute type. */
TEST(a_lossless_codec_changes_nothing)
{
  static const char *const setups[] = {"prefetch=1",
                                       "micros=3 bf16",
                                       "prefetch=1 bf16 llama frozen=*.1.*",
                                       "recompute=1 bf16 host",
                                       "shard_grad_op bf16 micros=3",
                                       "shard_optim",
                                       "shard_optim bf16 micros=3",
                                       "hybrid_shard group=2",
                                       "hybrid_shard group=2 bf16 prefetch=1",
                                       "prefetch=1 local_ranks=2",
                                       "bf16 micros=3 local_ranks=2"};
  for (int s = 0; s < (comm_ranks(job_comm) == 4 ? 11 : 7); s++) {
    struct job_record plain = job_run(job_comm, "%s", setups[s]);
    const int64_t before = comm_sent_varying(job_comm).gathered;
    job_same(&plain, "%s weights=exponent", setups[s]);
    assert_true(comm_sent_varying(job_comm).gathered > before);
    job_record_free(&plain);
  }
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
  static const char *const setups[] = {
      "shard_optim codec=onebit weights=onebit difference",
      "shard_grad_op bf16 micros=3 each_micro codec=hadamard_int4 weights=hadamard_int4 "
      "frozen=*.1.* difference",
      "full_shard codec=signsgd weights=int8 host",
      "hybrid_shard group=2 codec=onebit weights=int8",
  };
  for (int s = 0; s < (comm_ranks(job_comm) == 4 ? 4 : 3); s++) {
    struct job job;
    job_open(&job, job_comm, "%s", setups[s]);
    for (int step = 0; step < JOB_STEPS; step++)
      job_step(&job, step);
    must(exec_drain(job.exec));
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
  expect_same_runs("eval", "eval weights=int4");
  expect_same_runs("eval bf16", "eval bf16 weights=int4");
  expect_same_runs("eval host", "eval host weights=int4");
  expect_same_runs("eval host bf16", "eval host bf16 weights=int4");
  expect_same_runs("eval shard_optim", "eval shard_optim weights=int4 difference");
  expect_same_runs("eval shard_optim bf16", "eval shard_optim bf16 weights=int4 difference");
}

/* The losses of a run without codec. A step of int8 is 1/127 of the largest of 256 elements, and of
 * int4 1/7. Differences are as small as updates are. */
TEST(losses_stay_near)
{
  static const struct {
    const char *codec;
    double bound;
  } cases[] = {{"int8", 2e-3}, {"int4", 2e-2}, {"int4 difference", 2e-3}};
  struct job_record plain = job_run(job_comm, "shard_grad_op");
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct job_record record = job_run(job_comm, "shard_grad_op weights=%s", cases[c].codec);
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
  if (job_mpi_start(NULL) || device_create("host", 0, DTYPE_F32, &device))
    return -1;
  return device->ops->lane_create(device, "hand", LANE_ROLE_COMPUTE, 1, &lane) ? -1 : 0;
}

FIXTURE(stop)
{
  device->ops->lane_destroy(lane);
  device_destroy(device);
  job_mpi_stop(NULL);
  return 0;
}

TEST_MAIN(start, stop)
