/* Sketched messages, block by block (compress/rule/sketch.h). */
#include <float.h>
#include <math.h>

#include "device/host/host.h"

enum { GRAIN = 1 << 14 }; /* elements */

struct sketch_job {
  const struct kernels *kernels;
  const struct sketch *op;
  int64_t n, blocks; /* of a vector */
  int parts;         /* that are summed */
  int64_t stride;
  char *messages;
  enum scatter_mode mode;
  float *x;
};

static struct sketch_head *head_of(const struct sketch_job *job, int64_t part, int64_t block)
{
  return (void *)(job->messages + part * job->stride + block * sketch_block_bytes(job->op));
}

static float *elements_of(const struct sketch_job *job, int64_t part, int64_t block)
{
  return job->x + part * job->n + block * job->op->block;
}

static void count(const struct sketch *op, const struct sketch_key *key, int64_t m, const float *x,
                  float inverse, int32_t *counters)
{
  const uint32_t columns = sketch_columns(op);
  for (int row = 0; row < SKETCH_ROWS; row++)
    for (uint32_t i = 0; i < m; i++) {
      const uint32_t hash = sketch_hash(key[row], i);
      counters[row * columns + sketch_column(hash, columns)] +=
          sketch_signed(hash, sketch_round(x[i] * inverse));
    }
}

/* The largest number that `keep` magnitudes reach, 1 at least. */
static int32_t find_threshold(int64_t m, const int32_t *estimate, int64_t keep)
{
  int32_t threshold = 0;
  for (int bit = SKETCH_TOP_BIT; bit >= 0; bit--) {
    const int32_t next = threshold | 1 << bit;
    int32_t reached = 0;
    for (int64_t i = 0; i < m; i++)
      reached += sketch_magnitude(estimate[i]) >= next;
    threshold = reached >= keep ? next : threshold;
  }
  return sketch_most(threshold, 1);
}

static double fold(double *lane)
{
  for (int half = SKETCH_LANES / 2; half > 0; half /= 2)
    for (int l = 0; l < half; l++)
      lane[l] += lane[l + half];
  return lane[0];
}

static struct sketch_head settle(int64_t m, const float *x, const int32_t *estimate, float step,
                                 int64_t keep)
{
  double product[SKETCH_LANES] = {0}, square[SKETCH_LANES] = {0};
  const int32_t threshold = find_threshold(m, estimate, keep < m ? keep : m);
  for (int64_t i = 0; i < m; i++) {
    const double e = sketch_magnitude(estimate[i]) >= threshold ? estimate[i] : 0;
    product[i % SKETCH_LANES] += (double)x[i] * e;
    square[i % SKETCH_LANES] += e * e;
  }
  return (struct sketch_head){sketch_scale(step, fold(product), fold(square)), threshold};
}

/* largest: of all magnitudes of x; NaN or infinity if there is one. */
static void sketch_block(const struct sketch *op, int64_t block, int64_t m, const float *x,
                         float largest, struct sketch_head *head)
{
  int32_t estimate[SKETCH_MOST_BLOCK], *counters = (int32_t *)(head + 1);
  const int32_t limit = sketch_limit(op);
  const uint32_t columns = sketch_columns(op);
  struct sketch_key key[SKETCH_ROWS];
  memset(counters, 0, (size_t)SKETCH_ROWS * columns * sizeof *counters);
  if (!(largest <= FLT_MAX) || largest < SKETCH_LEAST) {
    const bool finite = largest <= FLT_MAX;
    *head = (struct sketch_head){finite ? 0 : NAN, finite ? INT32_MAX : 0};
    return;
  }
  for (int row = 0; row < SKETCH_ROWS; row++)
    key[row] = sketch_key_make(op, block, row);
  count(op, key, m, x, (float)limit / largest, counters);
  for (uint32_t i = 0; i < m; i++)
    estimate[i] = sketch_estimate(key, columns, limit, counters, i);
  *head = settle(m, x, estimate, largest / (float)limit, op->keep);
}

static void sketch_one(void *arg, int64_t part, int64_t block)
{
  const struct sketch_job *job = arg;
  const int64_t m = sketch_length(job->op, job->n, block);
  const float *x = elements_of(job, part, block);
  sketch_block(job->op, block, m, x, job->kernels->max_magnitude(m, x), head_of(job, part, block));
}

/* One block of one message. */
static void put_block(const struct sketch_job *job, int64_t part, int64_t block, float *out)
{
  const struct sketch *op = job->op;
  const struct sketch_head *head = head_of(job, part, block);
  const int64_t m = sketch_length(op, job->n, block);
  struct sketch_key key[SKETCH_ROWS];
  for (int row = 0; row < SKETCH_ROWS; row++)
    key[row] = sketch_key_make(op, block, row);
  for (uint32_t i = 0; i < m; i++) {
    const int32_t estimate =
        sketch_estimate(key, sketch_columns(op), sketch_limit(op), (const int32_t *)(head + 1), i);
    const float value = sketch_value(*head, estimate);
    out[i] = job->mode == SCATTER_SUBTRACT ? out[i] - value : out[i] + value;
  }
}

static void unsketch_one(void *arg, int64_t part, int64_t block)
{
  const struct sketch_job *job = arg;
  float *out = elements_of(job, part, block);
  if (job->mode == SCATTER_SET)
    memset(out, 0, (size_t)sketch_length(job->op, job->n, block) * sizeof *out);
  for (int i = 0; i < job->parts; i++)
    put_block(job, part + i, block, out);
}

static enum status run(struct lane *lane, struct sketch_job *job, int64_t vectors,
                       host_block *block)
{
  if (!sketch_is_valid(job->op) || job->n < 0)
    return status_set(STATUS_INTERNAL, "a sketch of %lld of %lld elements per block",
                      (long long)job->op->keep, (long long)job->op->block);
  job->blocks = sketch_blocks(job->op, job->n);
  host_run_blocks(lane, vectors, job->blocks, host_pieces(GRAIN, job->op->block), block, job);
  return STATUS_OK;
}

enum status host_sketch(struct lane *lane, const struct sketch *op, int64_t n, int parts,
                        const float *x, void *messages)
{
  struct sketch_job job = {.kernels = host_kernels(lane),
                           .op = op,
                           .n = n,
                           .stride = sketch_bytes(op, n),
                           .messages = messages,
                           .x = (float *)x};
  return run(lane, &job, parts, sketch_one);
}

enum status host_unsketch(struct lane *lane, const struct sketch *op, int64_t n, int parts,
                          const void *messages, int64_t stride, enum scatter_mode mode, float *out)
{
  const bool sum = mode != SCATTER_SUBTRACT;
  struct sketch_job job = {.op = op, .n = n, .parts = sum ? parts : 1, .stride = stride};
  job.messages = (char *)messages;
  job.mode = mode;
  job.x = out;
  return run(lane, &job, sum ? 1 : parts, unsketch_one);
}
