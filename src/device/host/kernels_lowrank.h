/* Part of kernels_body.h: low-rank messages (compress/rule/lowrank.h). */

/* Elements of a row that expand() sums over messages at once. */
enum { EXPAND_STRIP = 256, EXPAND_DEPTH = 33 };

/* sum += C^T M of `count` rows, of which the first n elements exist. */
INLINE void collect_few(int count, const struct lowrank *op, int64_t n, const float *x,
                        const float *c, float *sum)
{
  for (int64_t at = 0; at < op->block; at += LANES) {
    struct pack row[4];
    for (int i = 0; i < count; i++)
      row[i] = pack_load(x + i * op->block + at, n - i * op->block - at);
    for (int k = 0; k < op->rank; k++) {
      struct pack s = pack_load_full(sum + k * op->block + at);
      for (int i = 0; i < count; i++)
        s = pack_add(s, pack_mul(pack_all(c[i * op->rank + k]), row[i]));
      pack_store(sum + k * op->block + at, LANES, s);
    }
  }
}

static void lowrank_collect(const struct lowrank *op, int64_t rows, int64_t n, const float *x,
                            const float *c, float *sum)
{
  int64_t r = 0;
  memset(sum, 0, (size_t)(op->rank * op->block) * sizeof *sum);
  for (; r + 4 <= rows; r += 4)
    collect_few(4, op, n - r * op->block, x + r * op->block, c + r * op->rank, sum);
  for (; r < rows; r++)
    collect_few(1, op, n - r * op->block, x + r * op->block, c + r * op->rank, sum);
}

/* out[i] = the product of a row, which ends after n elements, and basis row i < count. */
INLINE void project_few(int count, int64_t block, int64_t n, const float *x, const float *basis,
                        float *out)
{
  struct pack low[4], high[4];
  for (int i = 0; i < count; i++)
    low[i] = high[i] = pack_all(0);
  for (int64_t at = 0; at < block; at += LOWRANK_LANES) {
    const struct pack a = pack_load(x + at, n - at), b = pack_load(x + at + LANES, n - at - LANES);
    for (int i = 0; i < count; i++) {
      const float *v = basis + i * block + at;
      low[i] = pack_add(low[i], pack_mul(a, pack_load_full(v)));
      high[i] = pack_add(high[i], pack_mul(b, pack_load_full(v + LANES)));
    }
  }
  for (int i = 0; i < count; i++)
    out[i] = pack_sum(pack_add(low[i], high[i]));
}

static void lowrank_project(const struct lowrank *op, int64_t n, const float *x, const float *basis,
                            int rank, float *out)
{
  int k = 0;
  for (; k + 4 <= rank; k += 4)
    project_few(4, op->block, n, x, basis + k * op->block, out + k);
  for (; k < rank; k++)
    project_few(1, op->block, n, x, basis + k * op->block, out + k);
}

INLINE float row_squares(int64_t block, const float *v)
{
  float sum;
  project_few(1, block, block, v, v, &sum);
  return sum;
}

/* v -= its components along rows k < count of the basis. */
static void remove_components(const struct lowrank *op, int count, const float *basis, float *v)
{
  float along[LOWRANK_MOST_RANK];
  lowrank_project(op, op->block, v, basis, count, along);
  for (int64_t at = 0; at < op->block; at += LANES) {
    struct pack p = pack_load_full(v + at);
    for (int k = 0; k < count; k++)
      p = pack_sub(p, pack_mul(pack_all(along[k]), pack_load_full(basis + k * op->block + at)));
    pack_store(v + at, LANES, p);
  }
}

static void lowrank_orthonormalise(const struct lowrank *op, bool last, float *basis)
{
  float scales[LOWRANK_MOST_RANK];
  for (int k = 0; k < op->rank; k++) {
    float *v = basis + k * op->block;
    scales[k] = lowrank_scale(f32_bits(largest(op->block, v)));
    scale(op->block, scales[k], v);
    remove_components(op, k, basis, v);
    const float before = row_squares(op->block, v);
    remove_components(op, k, basis, v);
    const float after = row_squares(op->block, v);
    if (lowrank_depends(before, after))
      memset(v, 0, (size_t)op->block * sizeof *v);
    else
      scale(op->block, 1 / sqrtf(after), v);
  }
  for (int k = 0; k < op->rank && !last; k++)
    scale(op->block, scales[k], basis + k * op->block);
}

/* The sum of messages [first, first + count) at m elements of the row, in work[0]. */
static void expand_strip(const struct lowrank *op, const struct lowrank_row *row, int64_t from,
                         int64_t m, int first, int count, float (*work)[EXPAND_STRIP])
{
  if (count > 1) {
    const int left = kernels_left(count);
    expand_strip(op, row, from, m, first, left, work);
    expand_strip(op, row, from, m, first + left, count - left, work + 1);
    add(m, work[0], work[1], work[0]);
    return;
  }
  const int64_t skip = first * row->stride;
  const float *basis = (const float *)(const void *)((const char *)row->basis + skip) + from,
              *c = (const float *)(const void *)((const char *)row->coefficients + skip);
  for (int64_t at = 0; at < m; at += LANES) {
    struct pack sum = pack_all(0);
    for (int k = 0; k < op->rank; k++)
      sum = pack_add(sum, pack_mul(pack_all(c[k]), pack_load_full(basis + k * op->block + at)));
    pack_store(work[0] + at, LANES, sum);
  }
}

static void lowrank_expand(const struct lowrank *op, int parts, const struct lowrank_row *row,
                           enum quant_mode mode, int64_t m, float *out)
{
  float work[EXPAND_DEPTH][EXPAND_STRIP];
  for (int64_t at = 0; at < m; at += EXPAND_STRIP) {
    const int64_t strip = m - at < EXPAND_STRIP ? m - at : EXPAND_STRIP;
    expand_strip(op, row, at, strip, 0, parts, work);
    put_group(mode, strip, work[0], out + at);
  }
}
