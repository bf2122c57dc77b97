/* Shared by the files of attention: strips of query rows, and the keys that they may see, one chunk
 * of keys at a time. */
#pragma once

#include "device/host/host.h"

enum {
  QUERIES = 64,
  KEYS = 512
}; /* most query rows of a strip; keys whose scores it holds at once: they stay in the second-level
      cache */

struct attention_job {
  const struct attention *op;
  const struct kernels *kernels;
  struct gemm_tally tally;
  float scale;
};

/* Rows [row, row + rows) of the queries that share a key/value head, `stacked` rows per token: the
 * heads one by one (stacked 1), or all that share it. */
struct strip {
  int64_t row, rows, stacked;
  int64_t q_stride, out_stride;
  const float *q, *k, *v; /* of the strip's first row; of the sequence's first key */
  const int32_t *first;   /* of the strip's first row; NULL: 0 */
  float *out, *scores;    /* scores [rows, attention_keys()] */
  float max[QUERIES], sum[QUERIES];
};

static inline int64_t attention_floats(int64_t n) /* whole cache lines */
{
  return host_pieces(n, LANES) * LANES;
}

int64_t attention_keys(const struct attention *op); /* leading dimension of the scores */
struct attention_job attention_start(struct lane *lane, const struct attention *op);

/* The first key or value of a sequence and key/value head. x: op's k or v. */
const float *attention_kv(const struct attention *op, const void *x, int64_t stride,
                          int64_t sequence, int64_t kv_head);

/* Keys [from, to). */
struct seen {
  int64_t from, to;
};
/* The keys that row r of the strip sees; that some row sees. */
struct seen attention_visible(const struct attention *op, const struct strip *strip, int64_t r);
struct seen attention_range(const struct attention *op, const struct strip *strip);

/* scores = scale q k^T for keys [key, key + n). attention_mask() writes zeros to the row of keys
 * that row r does not see. The result counts from `key`. */
void attention_scores(struct attention_job *job, const struct strip *strip, int64_t key, int64_t n);
struct seen attention_mask(const struct attention *op, const struct strip *strip, int64_t r,
                           int64_t key, int64_t n, float *row);

/* out = sum of exp(score - max) v over the keys, sum = the same without v; nothing seen: out
 * is 0 or unset, max is -infinity. */
void attention_meet(struct attention_job *job, struct strip *strip, struct seen keys);

/* Generation: queries after a cache of keys (attention_cached.c). */
int64_t attention_cached_floats(const struct attention *op, int threads);
void attention_cached(struct lane *lane, const struct attention *op);
