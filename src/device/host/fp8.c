/* Operands in fp8, group by group. */
#include "device/host/host.h"

enum {
  GRAIN = 4,           /* blocks of 128 x 128 elements */
  PART_GRAIN = 1 << 14 /* elements of a part */
};

/* Rows [i, i + height) and columns [j, j + width) of x share a scale. */
struct group {
  int64_t i, j, height, width;
};

static float element(const struct fp8_quantise *op, int64_t i, int64_t j)
{
  return f32_from_bf16(((const uint16_t *)op->x)[i * op->ld + j]);
}

static uint32_t largest_of(const struct fp8_quantise *op, struct group g)
{
  uint32_t largest = 0;
  for (int64_t i = g.i; i < g.i + g.height; i++)
    for (int64_t j = g.j; j < g.j + g.width; j++) {
      const uint32_t bits = f32_bits(element(op, i, j)) & 0x7fffffff;
      largest = bits > largest ? bits : largest;
    }
  return largest;
}

static void count(struct fp8_tally *tally, bool finite, uint32_t largest, struct group g)
{
  if (!finite)
    tally->saturated += (uint64_t)(g.height * g.width);
  else if (largest > tally->largest)
    tally->largest = largest;
}

/* Rows of codes are code_ld apart, and rows of scales scale_ld. */
struct coding {
  const struct fp8_quantise *op;
  int64_t code_ld, scale_ld;
  struct host_lane *lane;
};

static void code_group(const struct coding *coding, struct group g, struct fp8_tally *tally)
{
  const struct fp8_quantise *op = coding->op;
  const uint32_t largest = op->given ? 0 : largest_of(op, g);
  const float scale = op->given ? *op->given : fp8_scale(largest);
  const bool finite = scale == scale;
  const float inverse = finite ? fp8_inverse(scale) : 0;
  const int64_t row = op->transposed ? g.j : g.i, tile = (op->transposed ? g.i : g.j) / FP8_TILE;
  for (int64_t i = g.i; i < g.i + g.height; i++)
    for (int64_t j = g.j; j < g.j + g.width; j++)
      op->code[op->transposed ? j * coding->code_ld + i : i * coding->code_ld + j] =
          finite ? fp8_code(element(op, i, j), inverse) : FP8_NAN;
  op->scale[op->blocks ? row / FP8_TILE * coding->scale_ld + tile : tile * coding->scale_ld + row] =
      scale;
  if (!op->blocks)
    count(tally, finite, largest, g);
}

/* The block, or its tiles. */
static void code_block(const struct coding *coding, int64_t i, int64_t j, struct fp8_tally *tally)
{
  const struct fp8_quantise *op = coding->op;
  if (op->blocks) {
    code_group(coding, (struct group){i, j, FP8_TILE, FP8_TILE}, tally);
    return;
  }
  for (int64_t t = 0; t < FP8_TILE; t++)
    code_group(coding,
               op->transposed ? (struct group){i, j + t, FP8_TILE, 1}
                              : (struct group){i + t, j, 1, FP8_TILE},
               tally);
}

static void add_tally(struct host_lane *lane, const struct fp8_tally *tally)
{
  uint32_t most = atomic_load(&lane->fp8_largest);
  while (most < tally->largest &&
         !atomic_compare_exchange_weak(&lane->fp8_largest, &most, tally->largest))
    ;
  atomic_fetch_add(&lane->fp8_saturated, tally->saturated);
}

static void code_range(void *arg, int64_t begin, int64_t end)
{
  const struct coding *coding = arg;
  const int64_t across = coding->op->columns / FP8_TILE;
  struct fp8_tally tally = {0};
  for (int64_t block = begin; block < end; block++)
    code_block(coding, block / across * FP8_TILE, block % across * FP8_TILE, &tally);
  add_tally(coding->lane, &tally);
}

void host_fp8_code_into(struct lane *lane, const struct fp8_quantise *op, int64_t code_ld,
                        int64_t scale_ld)
{
  struct coding coding = {op, code_ld, scale_ld, (struct host_lane *)lane};
  host_run_ranges(lane, op->rows / FP8_TILE * (op->columns / FP8_TILE), GRAIN, code_range, &coding);
}

enum status host_check_fp8(const struct lane *lane)
{
  return lane->device->model.compute == DTYPE_BF16
             ? STATUS_OK
             : status_set(STATUS_UNSUPPORTED,
                          "the host device has fp8 only where it computes in bf16");
}

/* Scales that fill a row of blocks up to the pitch are 0. */
enum status host_fp8_quantise(struct lane *lane, const struct fp8_quantise *op)
{
  const int64_t n = op->transposed ? op->columns : op->rows,
                k = op->transposed ? op->rows : op->columns, pitch = fp8_pitch(k);
  enum status status = host_check_fp8(lane) ?: device_check_quantise(op);
  if (status)
    return status;
  for (int64_t i = 0; i < n / FP8_TILE && op->blocks; i++)
    for (int64_t t = k / FP8_TILE; t < pitch; t++)
      op->scale[i * pitch + t] = 0;
  host_fp8_code_into(lane, op, k, op->blocks ? pitch : n);
  if (!op->turned)
    return STATUS_OK;
  struct fp8_quantise turned = *op;
  turned.transposed = true;
  turned.code = op->turned;
  turned.scale = op->turned_scale;
  turned.turned = NULL;
  return host_fp8_quantise(lane, &turned);
}

/* ---- one scale per operand ---- */

struct unifying {
  const struct fp8_unify *op;
  float to;
};

/* Index of the scale of element (i, j). */
static int64_t scale_at(int64_t n, int64_t k, bool blocks, int64_t i, int64_t j)
{
  const int64_t tile = j / FP8_TILE;
  return blocks ? i / FP8_TILE * fp8_pitch(k) + tile : tile * n + i;
}

/* Scales are positive or NaN, so their bits are ordered like the scales, and NaN is the largest. */
static float largest_scale(const struct fp8_unify *op)
{
  uint32_t most = 0;
  for (int64_t i = 0; i < op->n; i += op->blocks ? FP8_TILE : 1)
    for (int64_t j = 0; j < op->k; j += FP8_TILE) {
      const uint32_t bits = f32_bits(op->scale[scale_at(op->n, op->k, op->blocks, i, j)]);
      most = bits > most ? bits : most;
    }
  return f32_from_bits(most);
}

/* begin and end count panels of FP8_TILE rows, so one thread has the whole of a block. */
static void unify_rows(void *arg, int64_t begin, int64_t end)
{
  const struct unifying *unifying = arg;
  const struct fp8_unify *op = unifying->op;
  const int64_t height = op->blocks ? FP8_TILE : 1;
  for (int64_t i = begin * FP8_TILE; i < end * FP8_TILE; i += height)
    for (int64_t j = 0; j < op->k; j += FP8_TILE) {
      float *const scale = op->scale + scale_at(op->n, op->k, op->blocks, i, j);
      for (int64_t r = i; r < i + height && *scale != unifying->to; r++)
        for (int64_t c = j; c < j + FP8_TILE; c++) {
          uint8_t *const code = &op->code[r * op->k + c];
          *code = fp8_recode(*code, *scale, unifying->to);
        }
      *scale = unifying->to;
    }
}

enum status host_fp8_unify(struct lane *lane, const struct fp8_unify *op)
{
  const enum status status = device_check_unify(op);
  if (status)
    return status;
  struct unifying unifying = {op, largest_scale(op)};
  host_run_ranges(lane, op->n / FP8_TILE, 1, unify_rows, &unifying);
  return STATUS_OK;
}

enum status host_fp8_tally(struct lane *lane, struct fp8_tally *out)
{
  struct host_lane *host = (struct host_lane *)lane;
  *out = (struct fp8_tally){.saturated = atomic_exchange(&host->fp8_saturated, 0),
                            .largest = atomic_exchange(&host->fp8_largest, 0)};
  return STATUS_OK;
}

/* ---- parts of a weight ---- */

static float *scale_of(const struct fp8_part *op, int64_t e)
{
  return &op->scale[e / op->columns / FP8_TILE * fp8_pitch(op->columns) +
                    e % op->columns / FP8_TILE];
}

/* Rounded to bf16. */
static float part_element(const struct fp8_part *op, int64_t e)
{
  const int64_t i = e - op->begin;
  return f32_from_bf16(op->type == DTYPE_F32 ? bf16_from_f32(((const float *)op->x)[i])
                                             : ((const uint16_t *)op->x)[i]);
}

enum status host_fp8_largest(struct lane *lane, const struct fp8_part *op)
{
  (void)lane;
  for (int64_t e = op->begin; e < op->end; e++) {
    const uint32_t bits = f32_bits(part_element(op, e)) & 0x7fffffff;
    float *const most = scale_of(op, e);
    if (bits > f32_bits(*most))
      *most = f32_from_bits(bits);
  }
  return STATUS_OK;
}

enum status host_fp8_scales(struct lane *lane, int64_t rows, int64_t columns, float *scale)
{
  const int64_t pitch = fp8_pitch(columns);
  uint32_t most = 0;
  for (int64_t i = 0; i < rows / FP8_TILE * pitch; i++)
    if (i % pitch < columns / FP8_TILE && f32_bits(scale[i]) > most)
      most = f32_bits(scale[i]);
  for (int64_t i = 0; i < rows / FP8_TILE * pitch; i++) {
    const uint32_t largest = lane->device->fp8_tensor ? most : f32_bits(scale[i]);
    scale[i] = i % pitch < columns / FP8_TILE ? fp8_scale(largest) : 0;
  }
  return STATUS_OK;
}

static void code_part(void *arg, int64_t begin, int64_t end)
{
  const struct fp8_part *op = arg;
  for (int64_t i = begin; i < end; i++) {
    const float scale = *scale_of(op, op->begin + i);
    op->code[i] =
        scale == scale ? fp8_code(part_element(op, op->begin + i), fp8_inverse(scale)) : FP8_NAN;
  }
}

enum status host_fp8_code(struct lane *lane, const struct fp8_part *op)
{
  host_run_ranges(lane, op->end - op->begin, PART_GRAIN, code_part, (void *)op);
  return STATUS_OK;
}

/* Rows of the transpose. */
static void turn_rows(void *arg, int64_t begin, int64_t end)
{
  const struct fp8_turn *op = arg;
  for (int64_t j = begin; j < end; j++)
    for (int64_t i = 0; i < op->rows; i++)
      op->turned[j * op->rows + i] = op->code[i * op->ld + j];
}

enum status host_fp8_turn(struct lane *lane, const struct fp8_turn *op)
{
  const int64_t pitch = fp8_pitch(op->ld), turned_pitch = fp8_pitch(op->rows);
  const enum status status = device_check_turn(op);
  if (status)
    return status;
  for (int64_t i = 0; i < op->columns / FP8_TILE; i++)
    for (int64_t t = 0; t < turned_pitch; t++)
      op->turned_scale[i * turned_pitch + t] =
          t < op->rows / FP8_TILE ? op->scale[t * pitch + i] : 0;
  host_run_ranges(lane, op->columns, FP8_TILE, turn_rows, (void *)op);
  return STATUS_OK;
}

void host_fp8_decode(int64_t n, int64_t k, bool blocks, bool tensor, const uint8_t *code,
                     const float *scale, float *y)
{
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < k; j++)
      y[i * k + j] = fp8_value(code[i * k + j], scale[tensor ? 0 : scale_at(n, k, blocks, i, j)]);
}
