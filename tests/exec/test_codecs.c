/* Codecs in a step. Oracle: what ranks have given to their codec, added up by hand; and what the
 * messages have lost of it, rounded by hand to the type of the feedback. Between nodes: the
 * parameters of a run whose ranks encode all, bit for bit. */
/* ranks: 2 3 4 */
#include <math.h>

#include <math.h>
#include <mpi.h>

#include "base/mem.h"
#include "job.h"
#include "optim/optim.h"
#include "tests/test.h"

enum { STEPS = 3, MOST_UNITS = 8 };

/* ---- a codec that remembers ---- */

/* For one gradient: the encoded values of all parts, and the sum of this rank's part. */
struct seen {
  float *x, *sum;
  int64_t n, part;
  uint64_t seed, sum_seed;
};

/* By step, in the order of the plan. */
struct log {
  struct seen of[STEPS][MOST_UNITS];
  int encoded, summed;
};

static struct log *now;
static struct codec_ops spy;
static unsigned traits; /* of it */
static const struct codec_ops *spied = &codec_bf16;
static struct codec_ops verbatim; /* encodes a gradient as it is */

static float *copy_of(const float *x, int64_t n)
{
  float *copy = NULL;
  must(mem_new(MEM_META, (size_t)n, &copy));
  memcpy(copy, x, (size_t)n * sizeof *x);
  return copy;
}

static struct seen *next_of(int *count, int units)
{
  struct seen *seen = &now->of[*count / units][*count % units];
  ++*count;
  return seen;
}

static int units; /* that are encoded in a step */

static enum status spy_encode(const struct codec *codec, const struct codec_pass *pass,
                              const float *x, void *messages)
{
  struct seen *seen = next_of(&now->encoded, units);
  seen->n = pass->n * pass->parts;
  seen->x = copy_of(x, seen->n);
  seen->seed = pass->seed;
  return spied->encode(codec, pass, x, messages);
}

static enum status spy_decode(const struct codec *codec, const struct codec_pass *pass,
                              const void *messages, int64_t stride, enum quant_mode mode,
                              enum dtype type, void *out)
{
  const enum status status = spied->decode(codec, pass, messages, stride, mode, type, out);
  if (quant_takes_each(mode))
    return status;
  struct seen *seen = next_of(&now->summed, units);
  seen->part = pass->n;
  seen->sum_seed = pass->seed;
  seen->sum = copy_of(out, pass->n);
  return status;
}

typedef enum status make(const char *name, const struct codec_settings *settings, bool feedback,
                         struct codec *out);
make __real_codec_make, __wrap_codec_make;
enum status __wrap_codec_make(const char *name, const struct codec_settings *settings,
                              bool feedback, struct codec *out)
{
  const bool spies = name && strcmp(name, "spy") == 0,
             copies = name && strcmp(name, "verbatim") == 0;
  const char *real = spies ? spied->name : copies ? "none" : name;
  const enum status status = __real_codec_make(real, settings, feedback, out);
  spy = *spied;
  spy.name = "spy";
  spy.traits |= traits;
  spy.encode = spy_encode;
  spy.decode = spy_decode;
  verbatim = codec_none;
  verbatim.name = "verbatim";
  verbatim.traits = 0;
  if (spies || copies)
    out->ops = spies ? &spy : &verbatim;
  return status;
}

static void log_free(struct log *log)
{
  for (int s = 0; s < STEPS; s++)
    for (int i = 0; i < MOST_UNITS; i++) {
      mem_free(log->of[s][i].x);
      mem_free(log->of[s][i].sum);
    }
  *log = (struct log){0};
}

/* ---- by hand ---- */

static float rounded(float x, enum dtype type)
{
  uint16_t half;
  if (type == DTYPE_F32)
    return x;
  dtype_convert(&half, type, &x, DTYPE_F32, 1);
  dtype_convert(&x, DTYPE_F32, &half, type, 1);
  return x;
}

/* The part of this rank: messages of the ranks of its index on all nodes, in their order. */
static void expect_sum(const struct seen *seen, int local)
{
  const int ranks = comm_ranks(job_comm), nodes = ranks / local;
  const int64_t begin = comm_rank(job_comm) / local * seen->part;
  float *all = NULL;
  must(mem_new(MEM_META, (size_t)(seen->n * ranks), &all));
  MPI_Allgather(seen->x, (int)seen->n, MPI_FLOAT, all, (int)seen->n, MPI_FLOAT, MPI_COMM_WORLD);
  assert_int_equal(seen->part * nodes, seen->n);
  for (int64_t e = 0; e < seen->part; e++) {
    const float *x = all + comm_rank(job_comm) % local * seen->n + begin + e;
    float sum = rounded(x[0], DTYPE_BF16);
    for (int node = 1; node < nodes; node++)
      sum += rounded(x[node * local * seen->n], DTYPE_BF16);
    assert_memory_equal(&sum, &seen->sum[e], sizeof sum);
  }
  mem_free(all);
}

static float lost(float x, enum dtype type)
{
  return rounded(x - rounded(x, DTYPE_BF16), type);
}

/* Parameters of both runs are the same until a residual changes a sum, which it does in the second
 * step. Then x is the gradient and what was lost before. */
static void expect_feedback(const struct seen *without, const struct seen *with, int step,
                            enum dtype type)
{
  int64_t changed = 0;
  for (int64_t e = 0; e < with->n && step < 2; e++) {
    const float before = step > 0 ? lost(with[-MOST_UNITS].x[e], type) : 0,
                x = without->x[e] + before;
    changed += x != without->x[e];
    assert_true(x == with->x[e]);
  }
  assert_true(step != 1 || changed > 0);
}

static void read_residual(const struct job *job, int buffer, char *out)
{
  const struct plan_buffer *b = &job->plan->buffer[buffer];
  must(exec_memory_read(&job->memory, job->plan, buffer, 0, b->bytes, out));
}

/* The values that the plan keeps of the last step. */
static void expect_residual(const struct job *job, int unit, const struct seen *seen,
                            enum dtype type)
{
  const int64_t size = (int64_t)dtype_size(type);
  char *kept = NULL;
  assert_int_equal(job->plan->buffer[job->plan->unit[unit].residual].bytes, seen->n * size);
  must(mem_new(MEM_META, (size_t)(seen->n * size), &kept));
  read_residual(job, job->plan->unit[unit].residual, kept);
  for (int64_t e = 0; e < seen->n; e++) {
    float value;
    dtype_convert(&value, DTYPE_F32, kept + e * size, type, 1);
    assert_true(value == lost(seen->x[e], type));
  }
  mem_free(kept);
}

static int unit_of(const struct plan *plan, int nth)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_ENCODE && nth-- == 0)
      return plan->instr[i].unit;
  return -1;
}

static int count_encoded(const struct plan *plan)
{
  int n = 0;
  while (unit_of(plan, n) >= 0)
    n++;
  return n;
}

static void run(struct job *job, struct log *log, const char *format, ...) JOB_FORMAT(3);
static void run(struct job *job, struct log *log, const char *format, ...)
{
  JOB_TEXT(setup, format);
  *log = (struct log){0};
  now = log;
  job_open(job, job_comm, "%s", setup);
  units = count_encoded(job->plan);
  assert_true(units > 1 && units <= MOST_UNITS);
  for (int step = 0; step < STEPS; step++)
    job_step(job, step);
  must(exec_drain(job->exec));
}

/* Nodes have a rank each, or two of four. */
static const char *const setups[] = {
    "full_shard codec=spy llama",       "no_shard codec=spy",
    "full_shard codec=spy host bf16",   "full_shard codec=spy residual=host",
    "no_shard codec=spy residual=nvme", "hybrid_shard group=1 codec=spy local_ranks=1",
};
enum { SETUPS = sizeof setups / sizeof *setups };
static const char *const nodes[] = {
    "full_shard codec=spy llama local_ranks=2",
    "no_shard codec=spy micros=3 local_ranks=2",
    "hybrid_shard group=2 codec=spy local_ranks=2",
    "full_shard codec=spy host bf16 local_ranks=2",
};
enum { NODES = sizeof nodes / sizeof *nodes };

/* The set-ups for this number of ranks. */
static int choose_setups(const char *const **given)
{
  const bool four = comm_ranks(job_comm) == 4;
  *given = four ? nodes : setups;
  return four ? NODES : SETUPS;
}

static int local_of(const struct job *job)
{
  return job->setup.local_ranks > 0 ? job->setup.local_ranks : 1;
}

static double square(double x)
{
  return x * x;
}

/* A sum of fp64 squares in another order. */
static void expect_close(const struct exactsum *sum, double by_hand)
{
  assert_true(fabs(exactsum_value(sum) - by_hand) <= 1e-12 * by_hand);
}

/* This rank's own part of the gradient, which is smaller than a sample. */
static void expect_sample(const struct job *job, int unit, const struct seen *seen)
{
  struct plan_sample sample;
  double elements = 0, lost_of_it = 0, decoded = 0, residual = 0;
  const float *mine = seen->x + comm_rank(job_comm) * seen->part;
  assert_true(seen->part < PLAN_SAMPLE);
  for (int64_t e = 0; e < seen->part; e++) {
    const float sent = rounded(mine[e], DTYPE_BF16);
    elements += square(mine[e]);
    lost_of_it += square(mine[e] - sent);
    decoded += square(sent);
  }
  for (int64_t e = 0; e < seen->n; e++)
    residual += square(seen->x[e] - rounded(seen->x[e], DTYPE_BF16));
  exec_read_sample(job->exec, unit, &sample);
  expect_close(&sample.elements, elements);
  expect_close(&sample.lost, lost_of_it);
  expect_close(&sample.decoded, decoded);
  expect_close(&sample.residual, job->setup.feedback ? residual : 0);
}

static void expect_same_sums(const struct log *a, const struct log *b)
{
  for (int i = 0; i < STEPS * units; i++) {
    const struct seen *x = &a->of[i / units][i % units], *y = &b->of[i / units][i % units];
    assert_memory_equal(x->x, y->x, (size_t)x->n * sizeof *x->x);
    assert_memory_equal(x->sum, y->sum, (size_t)x->part * sizeof *x->sum);
  }
}

/* Every second step is measured: the second of three. */
TEST(errors_of_messages_are_measured)
{
  static const char *const feedbacks[] = {"", "feedback=fp32"};
  for (int way = 0; way < 2 * SETUPS; way++) {
    struct job job = {0};
    struct log without, with;
    struct plan_sample none;
    run(&job, &without, "%s %s", setups[way / 2], feedbacks[way % 2]);
    exec_read_sample(job.exec, unit_of(job.plan, 0), &none);
    assert_true(exactsum_value(&none.elements) == 0);
    job_close(&job);
    run(&job, &with, "%s %s sample=2", setups[way / 2], feedbacks[way % 2]);
    for (int i = 0; i < units; i++)
      expect_sample(&job, unit_of(job.plan, i), &with.of[1][i]);
    expect_same_sums(&without, &with);
    job_close(&job);
    log_free(&without);
    log_free(&with);
  }
}

TEST(errors_of_messages_come_with_the_next_ones)
{
  static const struct {
    const char *name;
    enum dtype type;
  } feedbacks[] = {{"fp32", DTYPE_F32}, {"bf16", DTYPE_BF16}};
  const char *const *given;
  const int n = choose_setups(&given);
  for (int way = 0; way < 2 * n; way++) {
    const enum dtype type = feedbacks[way % 2].type;
    struct job job = {0};
    struct log without, with;
    run(&job, &without, "%s", given[way / 2]);
    job_close(&job);
    run(&job, &with, "%s feedback=%s", given[way / 2], feedbacks[way % 2].name);
    for (int step = 0; step < STEPS; step++)
      for (int i = 0; i < units; i++) {
        expect_sum(&with.of[step][i], local_of(&job));
        expect_feedback(&without.of[step][i], &with.of[step][i], step, type);
      }
    for (int i = 0; i < units; i++)
      expect_residual(&job, unit_of(job.plan, i), &with.of[STEPS - 1][i], type);
    job_close(&job);
    log_free(&without);
    log_free(&with);
  }
}

/* Two pairs of ranks add up as four ranks do. */
TEST(nodes_change_no_bit_of_what_is_not_lost)
{
  static const char *const ways[] = {
      "full_shard micros=3 each_micro", "shard_grad_op llama",
      "shard_optim micros=3",           "no_shard bf16",
      "hybrid_shard group=2 micros=3",  "full_shard host immediate no_clip",
  };
  if (comm_ranks(job_comm) != 4)
    return;
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
    struct job_record all = job_run(job_comm, "codec=verbatim %s", ways[w]);
    job_same(&all, "%s", ways[w]);
    job_same(&all, "%s local_ranks=2", ways[w]);
    job_same(&all, "codec=verbatim %s local_ranks=2", ways[w]);
    job_same(&all, "codec=verbatim %s local_ranks=2 feedback=fp32", ways[w]);
    job_record_free(&all);
  }
}

static float largest_of(const float *x, int64_t n)
{
  float largest = 0;
  for (int64_t e = 0; e < n; e++)
    largest = fmaxf(largest, fabsf(x[e]));
  return largest;
}

/* The least number with a significand of 8 bits that is not less than x. */
static float upper(float x)
{
  int exponent;
  const float significand = frexpf(x, &exponent);
  return ldexpf(ceilf(ldexpf(significand, 8)), exponent - 8);
}

/* The part of this rank, in steps of the largest magnitude of all ranks of its index. */
static void expect_scaled_sum(const struct seen *seen, int local, const float *residual)
{
  const int ranks = comm_ranks(job_comm), members = ranks / local;
  const int64_t begin = comm_rank(job_comm) / local * seen->part;
  float *all = NULL, largest = 0;
  must(mem_new(MEM_META, (size_t)(seen->n * ranks), &all));
  MPI_Allgather(seen->x, (int)seen->n, MPI_FLOAT, all, (int)seen->n, MPI_FLOAT, MPI_COMM_WORLD);
  const float *x = all + comm_rank(job_comm) % local * seen->n;
  for (int member = 0; member < members; member++)
    largest = fmaxf(largest, largest_of(x + member * local * seen->n, seen->n));
  const float step = upper(largest / (float)(127 / members));
  for (int64_t e = 0; e < seen->part; e++) {
    float sum = rintf(x[begin + e] * (1 / step)) * step;
    for (int member = 1; member < members; member++)
      sum += rintf(x[member * local * seen->n + begin + e] * (1 / step)) * step;
    assert_true(sum == seen->sum[e]);
  }
  for (int64_t e = 0; residual && e < seen->n; e++)
    assert_true(residual[e] == seen->x[e] - rintf(seen->x[e] * (1 / step)) * step);
  mem_free(all);
}

TEST(one_scale_is_that_of_all_ranks)
{
  static const char *const feedbacks[] = {"", "feedback=fp32"};
  const char *const *given;
  const int n = choose_setups(&given);
  spied = &codec_int8_global;
  for (int way = 0; way < 2 * n; way++) {
    struct job job = {0};
    struct log log;
    run(&job, &log, "%s %s", given[way / 2], feedbacks[way % 2]);
    for (int step = 0; step < STEPS; step++)
      for (int i = 0; i < units; i++) {
        const int residual = job.plan->unit[unit_of(job.plan, i)].residual;
        expect_scaled_sum(&log.of[step][i], local_of(&job),
                          step < STEPS - 1 || residual < 0 ? NULL
                                                           : exec_pointer(job.exec, residual));
      }
    job_close(&job);
    log_free(&log);
  }
  spied = &codec_bf16;
}

/* Random bits: of each rank, step and unit others, and in the next run the same. */
TEST(seeds_differ_and_come_again)
{
  struct log first, again;
  struct job job = {0};
  const int ranks = comm_ranks(job_comm);
  run(&job, &first, "%s", setups[0]);
  job_close(&job);
  run(&job, &again, "%s", setups[0]);
  job_close(&job);
  uint64_t mine[STEPS * MOST_UNITS], all[4 * STEPS * MOST_UNITS];
  const int n = STEPS * units;
  for (int i = 0; i < n; i++) {
    mine[i] = first.of[i / units][i % units].seed;
    assert_true(mine[i] == again.of[i / units][i % units].seed);
  }
  MPI_Allgather(mine, n, MPI_UINT64_T, all, n, MPI_UINT64_T, MPI_COMM_WORLD);
  for (int i = 0; i < n * ranks; i++)
    for (int k = 0; k < i; k++)
      assert_true(all[i] != all[k]);
  log_free(&first);
  log_free(&again);
}

/* A codec without indices chooses the same elements on all ranks, others in each step and unit. */
TEST(seeds_of_a_sum_may_be_one)
{
  struct log log;
  struct job job = {0};
  traits = CODEC_COMMON_SEED;
  run(&job, &log, "%s", setups[0]);
  traits = 0;
  job_close(&job);
  for (int i = 0; i < STEPS * units; i++) {
    const struct seen *seen = &log.of[i / units][i % units];
    uint64_t first = seen->seed;
    MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    assert_true(seen->seed == first && seen->sum_seed == first);
    for (int k = 0; k < i; k++)
      assert_true(log.of[k / units][k % units].seed != first);
  }
  log_free(&log);
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
