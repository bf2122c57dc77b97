/* Attention of a few new tokens to many cached ones. All workers share the keys and values, so that
 * they are read once. The queries of all heads that share a key/value head are stacked. A task is
 * one strip of them with one span of the keys. The results of the spans are then combined, span
 * after span. Spans depend on the shape of a sequence alone, and so do the results. */
#include "device/host/attention.h"

#include <math.h>
#include <string.h>

enum {
  SPAN = 256,
  TASKS = 256
}; /* the least keys that are worth a task; tasks wanted for a sequence */

struct cached_job {
  struct attention_job base;
  int64_t group, rows,
      strips; /* heads that share a key/value head; their stacked query rows, and strips of those */
  int64_t wanted;                             /* spans that give enough tasks */
  int64_t first_key, span, spans, most_spans; /* the first key that any row sees; keys per span,
                                                 spans; the same before rounding */
  float *work, *parts; /* parts [batch, kv_heads, span]: out [rows, D], max [rows], sum [rows] */
};

static int64_t worker_floats(const struct attention *op)
{
  return QUERIES * attention_keys(op) + attention_floats(QUERIES * op->head_width);
}

static int64_t part_floats(const struct attention *op, int64_t rows)
{
  return attention_floats(rows * (op->head_width + 2));
}

static struct cached_job shape_of(const struct attention *op)
{
  struct cached_job job = {.group = op->heads / op->kv_heads};
  job.rows = op->tokens * job.group;
  job.strips = host_pieces(job.rows, QUERIES);
  job.first_key = op->window && op->past >= op->window ? op->past - op->window + 1 : 0;
  int64_t keys = op->past + op->tokens - job.first_key;
  job.wanted = host_pieces(TASKS, op->kv_heads * (job.strips ? job.strips : 1));
  job.most_spans = host_least(job.wanted, host_pieces(keys, SPAN));
  job.span = host_pieces(host_pieces(keys, job.most_spans), LANES) * LANES;
  job.spans = host_pieces(keys, job.span);
  return job;
}

/* Also enough for fewer tokens and a shorter past, so that a generator asks once. More tokens mean
 * more rows, but fewer spans. */
int64_t attention_cached_floats(const struct attention *op, int threads)
{
  struct attention shorter = *op;
  int64_t parts = 0, wanted = 2;
  for (shorter.tokens = 0; shorter.tokens < op->tokens;) {
    shorter.tokens = wanted > 1 ? shorter.tokens + 1 : op->tokens;
    struct cached_job job = shape_of(&shorter);
    int64_t floats = op->batch * op->kv_heads * job.most_spans * part_floats(op, job.rows);
    wanted = job.wanted;
    parts = floats > parts ? floats : parts;
  }
  return parts + threads * worker_floats(op);
}

static float *part_of(const struct cached_job *job, int64_t pair, int64_t span)
{
  return job->parts + (pair * job->spans + span) * part_floats(job->base.op, job->rows);
}

/* Token in the batch, and head, of row r of the stack of a sequence and key/value head. */
struct place {
  int64_t token, head;
};

static struct place place_of(const struct cached_job *job, int64_t pair, int64_t r)
{
  const struct attention *op = job->base.op;
  return (struct place){pair / op->kv_heads * op->tokens + r / job->group,
                        pair % op->kv_heads * job->group + r % job->group};
}

static void run_span(void *arg, int64_t i, int worker)
{
  struct cached_job *job = arg;
  const struct attention *op = job->base.op;
  int64_t span = i % job->spans, row = i / job->spans % job->strips * QUERIES,
          pair = i / job->spans / job->strips, D = op->head_width;
  float *scores = job->work + worker * worker_floats(op),
        *q = scores + QUERIES * attention_keys(op), *part = part_of(job, pair, span);
  struct strip strip = {
      .row = row,
      .rows = host_least(QUERIES, job->rows - row),
      .stacked = job->group,
      .q_stride = D,
      .out_stride = D,
      .q = q,
      .k = attention_kv(op, op->k, op->k_stride, pair / op->kv_heads, pair % op->kv_heads),
      .v = attention_kv(op, op->v, op->v_stride, pair / op->kv_heads, pair % op->kv_heads),
      .out = part + row * D,
      .scores = scores};
  for (int64_t r = 0; r < strip.rows; r++) {
    struct place place = place_of(job, pair, row + r);
    memcpy(q + r * D, (const float *)op->q + place.token * op->q_stride + place.head * D,
           (size_t)D * sizeof *q);
  }
  struct seen seen = attention_range(op, &strip);
  int64_t start = job->first_key + span * job->span;
  seen.from = seen.from > start ? seen.from : start;
  seen.to = host_least(seen.to, start + job->span);
  attention_meet(&job->base, &strip, seen);
  memcpy(part + job->rows * D + row, strip.max, (size_t)strip.rows * sizeof *part);
  memcpy(part + job->rows * (D + 1) + row, strip.sum, (size_t)strip.rows * sizeof *part);
}

static void join_row(const struct cached_job *job, int64_t pair, int64_t row)
{
  const struct attention *op = job->base.op;
  struct place place = place_of(job, pair, row);
  int64_t D = op->head_width;
  float *out = (float *)op->out + place.token * op->out_stride + place.head * D, max = -INFINITY,
        sum = 0;
  for (int64_t s = 0; s < job->spans; s++)
    max = fmaxf(max, part_of(job, pair, s)[job->rows * D + row]);
  memset(out, 0, (size_t)D * sizeof *out);
  for (int64_t s = 0; s < job->spans; s++) {
    const float *part = part_of(job, pair, s), *from = part + row * D,
                top = part[job->rows * D + row];
    float weight = expf(top - max);
    if (top == -INFINITY) /* the row sees nothing of this span */
      continue;
    sum += weight * part[job->rows * (D + 1) + row];
    for (int64_t d = 0; d < D; d++)
      out[d] += weight * from[d];
  }
  job->base.kernels->scale(D, 1 / sum, out);
  if (op->lse)
    op->lse[(place.token / op->tokens * op->heads + place.head) * op->tokens +
            place.token % op->tokens] = max + logf(sum);
}

static void run_join(void *arg, int64_t i, int worker)
{
  const struct cached_job *job = arg;
  int64_t first = i % job->strips * QUERIES;
  (void)worker;
  for (int64_t row = first; row < host_least(first + QUERIES, job->rows); row++)
    join_row(job, i / job->strips, row);
}

void attention_cached(struct lane *lane, const struct attention *op)
{
  struct cached_job job = shape_of(op);
  int64_t strips = op->batch * op->kv_heads * job.strips;
  job.base = attention_start(lane, op);
  job.work = op->work;
  job.parts = job.work + team_size(lane->team) * worker_floats(op);
  host_run_tasks(lane, strips * job.spans, run_span, &job);
  host_run_tasks(lane, strips, run_join, &job);
  host_tally(lane, &job.base.tally);
}
