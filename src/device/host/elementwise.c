/* Copies, casts, and sums of elements. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "device/host/host.h"

enum {
  GRAIN_BYTES = 1 << 18,
  GRAIN = 1 << 16
}; /* elements of a long array that a worker takes at once */

struct bytes_job {
  char *dst;
  const char *src;
};

static void zero_range(void *arg, int64_t begin, int64_t end)
{
  const struct bytes_job *job = arg;
  memset(job->dst + begin, 0, (size_t)(end - begin));
}

static void copy_range(void *arg, int64_t begin, int64_t end)
{
  const struct bytes_job *job = arg;
  memcpy(job->dst + begin, job->src + begin, (size_t)(end - begin));
}

enum status host_zero(struct lane *lane, void *dst, size_t bytes)
{
  struct bytes_job job = {.dst = dst};
  host_run_ranges(lane, (int64_t)bytes, GRAIN_BYTES, zero_range, &job);
  return STATUS_OK;
}

enum status host_copy(struct lane *lane, void *dst, const void *src, size_t bytes)
{
  struct bytes_job job = {dst, src};
  if (dst != src)
    host_run_ranges(lane, (int64_t)bytes, GRAIN_BYTES, copy_range, &job);
  return STATUS_OK;
}

struct rows_job {
  size_t bytes, dst_stride, src_stride;
  char *dst;
  const char *src;
};

static void copy_some_rows(void *arg, int64_t begin, int64_t end)
{
  const struct rows_job *job = arg;
  for (int64_t r = begin; r < end; r++)
    memcpy(job->dst + (size_t)r * job->dst_stride, job->src + (size_t)r * job->src_stride,
           job->bytes);
}

enum status host_copy_rows(struct lane *lane, int64_t rows, size_t bytes, void *dst,
                           size_t dst_stride, const void *src, size_t src_stride)
{
  struct rows_job job = {bytes, dst_stride, src_stride, dst, src};
  if (rows < 0 || dst_stride < bytes || src_stride < bytes)
    return status_set(STATUS_INTERNAL,
                      "a copy of %lld rows of %zu bytes, %zu apart, to rows %zu apart",
                      (long long)rows, bytes, src_stride, dst_stride);
  if (bytes > 0 && (dst != src || dst_stride != src_stride))
    host_run_ranges(lane, rows, bytes < GRAIN_BYTES ? GRAIN_BYTES / (int64_t)bytes : 1,
                    copy_some_rows, &job);
  return STATUS_OK;
}

struct cast_job {
  const struct kernels *kernels;
  enum dtype from, to;
  const char *src;
  char *dst;
};

static void cast_range(void *arg, int64_t begin, int64_t end)
{
  const struct cast_job *job = arg;
  job->kernels->convert(end - begin, job->from, job->src + (size_t)begin * dtype_size(job->from),
                        job->to, job->dst + (size_t)begin * dtype_size(job->to));
}

static bool is_floats(enum dtype type)
{
  return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16;
}

enum status host_cast(struct lane *lane, int64_t n, enum dtype from, const void *src, enum dtype to,
                      void *dst)
{
  struct cast_job job = {host_kernels(lane), from, to, src, dst};
  if (n < 0)
    return status_set(STATUS_INTERNAL, "a conversion of %lld elements", (long long)n);
  if (from == to)
    return host_copy(lane, dst, src, (size_t)n * dtype_size(from));
  if (!is_floats(from) || !is_floats(to))
    return status_set(STATUS_UNSUPPORTED,
                      "the host converts between fp32, bf16 and fp16, not from %s to %s",
                      dtype_name(from), dtype_name(to));
  host_run_ranges(lane, n, GRAIN, cast_range, &job);
  return STATUS_OK;
}

struct add_job {
  const struct kernels *kernels;
  const float *a, *b;
  float *out;
};

static void add_range(void *arg, int64_t begin, int64_t end)
{
  const struct add_job *job = arg;
  job->kernels->add(end - begin, job->a + begin, job->b + begin, job->out + begin);
}

enum status host_add(struct lane *lane, int64_t n, const void *a, const void *b, void *out)
{
  struct add_job job = {host_kernels(lane), a, b, out};
  host_run_ranges(lane, n, GRAIN, add_range, &job);
  return STATUS_OK;
}

struct bias_job {
  const struct kernels *kernels;
  int64_t rows, tile, ld;
  const float *d;
  bool accumulate;
  float *db;
};

static void bias_columns(void *arg, int64_t begin, int64_t end)
{
  const struct bias_job *job = arg;
  for (int64_t r = 0; r < job->rows; r += job->tile) {
    int64_t rows = job->rows - r < job->tile ? job->rows - r : job->tile;
    job->kernels->column_sums(rows, end - begin, job->ld, job->d + r * job->ld + begin,
                              job->accumulate || r > 0, job->db + begin);
  }
}

enum status host_bias_gradient(struct lane *lane, int64_t rows, int64_t n, int64_t tile, int64_t ld,
                               const void *d, bool accumulate, void *db)
{
  struct bias_job job = {host_kernels(lane), rows, tile ? tile : rows, ld, d, accumulate, db};
  if (rows < 0 || n < 0 || tile < 0 || ld < n)
    return status_set(STATUS_INTERNAL,
                      "column sums of %lld x %lld elements, rows %lld apart, by %lld",
                      (long long)rows, (long long)n, (long long)ld, (long long)tile);
  host_run_ranges(lane, n, STRIP, bias_columns, &job);
  return STATUS_OK;
}

/* PIECE: elements summed at a time, in cache. DEPTH: levels of the tree; an int counts fewer than
 * 2^31 parts. MANY: from this number of elements on, a sum bypasses the caches. */
enum { PIECE = 512, DEPTH = 32, MANY = 1 << 22 };

struct parts_job {
  const struct kernels *kernels;
  int parts;
  enum dtype type;
  const char *base;
  int64_t stride;
  bool accumulate,
      around; /* around: the sum bypasses the caches, which would read the old data first */
  float *dst;
};

/* Elements [at, at + n) of a part: where they are, or widened in `work`. */
static const float *part_of_sum(const struct parts_job *job, int64_t at, int64_t n, int part,
                                float *work)
{
  const int64_t size = (int64_t)dtype_size(job->type);
  const char *from = job->base + (part * job->stride + at) * size;
  if (job->type == DTYPE_F32)
    return (const float *)from;
  job->kernels->convert(n, job->type, from, DTYPE_F32, work);
  return work;
}

/* Elements [at, at + n) of the sum of parts [first, first + count): the part itself, or in
 * work[0]. */
static const float *sum_tree(const struct parts_job *job, int64_t at, int64_t n, int first,
                             int count, float (*work)[PIECE])
{
  if (count == 1)
    return part_of_sum(job, at, n, first, work[0]);
  const int left = kernels_left(count);
  const float *a = sum_tree(job, at, n, first, left, work);
  const float *b = sum_tree(job, at, n, first + left, count - left, work + 1);
  job->kernels->add(n, a, b, work[0]);
  return work[0];
}

/* The tree's last addition goes to dst, which may be a part. */
static void sum_piece(const struct parts_job *job, int64_t at, int64_t n, float (*work)[PIECE])
{
  const int left = kernels_left(job->parts);
  const float *a = sum_tree(job, at, n, 0, left, work);
  const float *b = sum_tree(job, at, n, left, job->parts - left, work + 1);
  (job->around ? job->kernels->add_around : job->kernels->add)(n, a, b, job->dst + at);
}

static void sum_parts_range(void *arg, int64_t begin, int64_t end)
{
  const struct parts_job *job = arg;
  float work[DEPTH][PIECE];
  for (int64_t at = begin; at < end; at += PIECE) {
    int64_t n = end - at < PIECE ? end - at : PIECE;
    if (job->accumulate)
      job->kernels->add(n, job->dst + at, sum_tree(job, at, n, 0, job->parts, work), job->dst + at);
    else if (job->parts == 1)
      memmove(job->dst + at, part_of_sum(job, at, n, 0, work[0]),
              (size_t)n * sizeof *job->dst); /* the part may be dst itself */
    else
      sum_piece(job, at, n, work);
  }
}

enum status host_sum_parts(struct lane *lane, int64_t n, int parts, enum dtype type,
                           const void *base, int64_t stride, bool accumulate, void *dst)
{
  struct parts_job job = {host_kernels(lane), parts,     type, base, stride,
                          accumulate,         n >= MANY, dst};
  if (parts < 1)
    return status_set(STATUS_INTERNAL, "a sum over %d parts", parts);
  if (!is_floats(type))
    return status_set(STATUS_UNSUPPORTED, "a device sums parts of fp32, bf16 or fp16, not of %s",
                      dtype_name(type));
  host_run_ranges(lane, n, GRAIN, sum_parts_range, &job);
  return STATUS_OK;
}

static void subtract_range(void *arg, int64_t begin, int64_t end)
{
  const struct parts_job *job = arg;
  float work[PIECE];
  for (int64_t at = begin; at < end; at += PIECE) {
    const int64_t n = end - at < PIECE ? end - at : PIECE;
    const float *from = part_of_sum(job, at, n, 0, work);
    for (int64_t i = 0; i < n; i++)
      job->dst[at + i] -= from[i];
  }
}

enum status host_subtract(struct lane *lane, int64_t n, enum dtype type, const void *from, float *x)
{
  struct parts_job job = {.kernels = host_kernels(lane), .type = type, .base = from, .dst = x};
  if (!is_floats(type))
    return status_set(STATUS_UNSUPPORTED, "a device subtracts fp32, bf16 or fp16, not %s",
                      dtype_name(type));
  host_run_ranges(lane, n, GRAIN, subtract_range, &job);
  return STATUS_OK;
}

enum { CARRY_EVERY = 1 << 30 }; /* terms */

enum status host_sum_exact(struct lane *lane, int64_t n, const double *term, struct exactsum *sum)
{
  (void)lane;
  for (int64_t i = 0; i < n; i++) {
    if (i % CARRY_EVERY == 0)
      exactsum_normalize(sum);
    exactsum_add(sum, term[i]);
  }
  exactsum_normalize(sum);
  return STATUS_OK;
}

enum status host_merge_exact(struct lane *lane, const struct exactsum *other, struct exactsum *sum)
{
  (void)lane;
  exactsum_merge(sum, other);
  exactsum_normalize(sum);
  return STATUS_OK;
}

enum status host_conclude(struct lane *lane, const struct exactsum *loss,
                          const struct exactsum *squares, double clip, struct outcome *out)
{
  (void)lane;
  double sum = exactsum_value(loss), norm = sqrt(exactsum_value(squares));
  *out = (struct outcome){.loss_sum = sum,
                          .grad_norm = norm,
                          .scale = clip > 0 && norm > clip ? clip / norm : 1,
                          .finite = isfinite(sum) && isfinite(norm)};
  return STATUS_OK;
}

enum { SQUARES_BLOCK = 256 };

struct squares_job {
  const struct kernels *kernels;
  const float *x;
  pthread_mutex_t mutex;
  struct exactsum *sum;
};

static void square_range(void *arg, int64_t begin, int64_t end)
{
  struct squares_job *job = arg;
  struct exactsum mine;
  exactsum_zero(&mine);
  for (int64_t at = begin; at < end; at += SQUARES_BLOCK)
    exactsum_add(&mine, job->kernels->sum_squares(
                            end - at < SQUARES_BLOCK ? end - at : SQUARES_BLOCK, job->x + at));
  exactsum_normalize(&mine);
  pthread_mutex_lock(&job->mutex);
  exactsum_merge(job->sum, &mine);
  pthread_mutex_unlock(&job->mutex);
}

enum status host_sum_squares(struct lane *lane, int64_t n, const void *x, struct exactsum *sum)
{
  _Static_assert(GRAIN % SQUARES_BLOCK == 0, "blocks start where they would without threads");
  struct squares_job job = {
      .kernels = host_kernels(lane), .x = x, .mutex = PTHREAD_MUTEX_INITIALIZER, .sum = sum};
  exactsum_normalize(sum);
  host_run_ranges(lane, n, GRAIN, square_range, &job);
  exactsum_normalize(sum);
  return STATUS_OK;
}
