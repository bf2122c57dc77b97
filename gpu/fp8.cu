/* Operands of products in fp8: a block of threads codes 128 x 128 elements, which it reads once. */
#include "gpu/fp8_block.cuh"
#include "gpu/kernels.h"

namespace {

using namespace fp8_block;

/* BOTH: x in tiles, and x^T. */
template <bool BLOCKS, bool TRANSPOSED, bool BOTH>
__global__ void __launch_bounds__(THREADS) code_operand(const fp8_quantise op, fp8_tally *tally)
{
  const place p = my_place();
  const int64_t i = (int64_t)blockIdx.y * FP8_TILE, j = (int64_t)blockIdx.x * FP8_TILE;
  const int64_t n = TRANSPOSED ? op.columns : op.rows, k = TRANSPOSED ? op.rows : op.columns,
                row = TRANSPOSED ? j : i, column = TRANSPOSED ? i : j;
  elements x;
  for (int r = 0; r < ROWS; r++)
    x[r] = load<bf16, EACH>((const bf16 *)op.x + (i + p.g * ROWS + r) * op.ld + j + p.c * EACH);
  if constexpr (BLOCKS) {
    code_block<TRANSPOSED>(x, k, row, column, op.given, op.code, op.scale);
  } else {
    seen_tiles seen;
    code_tiles<TRANSPOSED>(x, k, op.code + row * k + column, op.scale + column / FP8_TILE * n + row,
                           &seen);
    if constexpr (BOTH)
      code_tiles<true>(x, op.rows, op.turned + j * op.rows + i,
                       op.turned_scale + i / FP8_TILE * op.columns + j, &seen);
    tally_block(seen, tally);
  }
}

/* ---- one scale per operand ---- */

constexpr int WIDE = 16, UNIFY_THREADS = 256, UNIFY_ROWS = UNIFY_THREADS / (FP8_TILE / WIDE),
              UNIFY_EACH = FP8_TILE / UNIFY_ROWS;

/* The first `tiles` of each row of `pitch` scales belong to groups. Scales are positive or NaN, so
 * their bits are ordered like the scales, and NaN is the largest. */
__global__ void __launch_bounds__(UNIFY_THREADS)
    largest_scale(int64_t rows, int64_t tiles, int64_t pitch, const float *scale, uint32_t *most)
{
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  uint32_t mine = 0;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * pitch; i += step)
    if (pitch == tiles || i % pitch < tiles)
      mine = max(mine, __float_as_uint(scale[i]));
  mine = __reduce_max_sync(ALL_LANES, mine);
  if (threadIdx.x % 32 == 0 && mine > 0)
    atomicMax(most, mine);
}

/* A block of threads has 128 x 128 elements. Thread (g, c) of 32 x 8 has 4 rows of 16 of them, 32
 * rows apart. All threads read scales before the first thread writes one. */
template <bool BLOCKS>
__global__ void __launch_bounds__(UNIFY_THREADS)
    recode_operand(const fp8_unify op, const uint32_t *most)
{
  const int64_t i = (int64_t)blockIdx.y * FP8_TILE, tile = blockIdx.x;
  const int g = threadIdx.x / (FP8_TILE / WIDE), c = threadIdx.x % (FP8_TILE / WIDE);
  float *const scale =
      BLOCKS ? op.scale + blockIdx.y * fp8_pitch(op.k) + tile : op.scale + tile * op.n + i;
  uint4 *const code = (uint4 *)(op.code + (i + g) * op.k + tile * FP8_TILE + c * WIDE);
  const float to = __uint_as_float(*most);
  float from[UNIFY_EACH];
#pragma unroll
  for (int r = 0; r < UNIFY_EACH; r++)
    from[r] = scale[BLOCKS ? 0 : g + r * UNIFY_ROWS];
  __syncthreads();
  if (threadIdx.x < (BLOCKS ? 1 : FP8_TILE))
    scale[threadIdx.x] = to;
#pragma unroll
  for (int r = 0; r < UNIFY_EACH; r++) {
    if (from[r] == to)
      continue;
    uint4 *const at = code + r * UNIFY_ROWS * op.k / WIDE;
    const float factor = to == to ? from[r] * fp8_inverse(to) : to;
    uint4 x = *at;
    x.x = recodes_of(x.x, factor);
    x.y = recodes_of(x.y, factor);
    x.z = recodes_of(x.z, factor);
    x.w = recodes_of(x.w, factor);
    *at = x;
  }
}

/* ---- parts of a weight: a block of threads has 128 x 128 elements, a warp a row of them ---- */

constexpr int PART_THREADS = 256, LANES = 32, PER_LANE = FP8_TILE / LANES,
              PART_WARPS = PART_THREADS / LANES;

/* The lane's elements of row r of the block, and the place of the block's scale. */
struct tile {
  int64_t panel, row, column;
};

DEVICE tile my_tile(const fp8_part &op)
{
  const int64_t panel = op.begin / op.columns / FP8_TILE + blockIdx.y;
  return {panel, panel * FP8_TILE + threadIdx.x / LANES,
          (int64_t)blockIdx.x * FP8_TILE + threadIdx.x % LANES * PER_LANE};
}

DEVICE float *scale_of(const fp8_part &op, const tile &t)
{
  return op.scale + t.panel * fp8_pitch(op.columns) + blockIdx.x;
}

/* Calls use() for the lane's elements of each row of the block that are in the part, with their
 * number, rounded to bf16. */
template <typename T, typename F>
DEVICE void for_rows(const fp8_part &op, const tile &t, const F &use)
{
#pragma unroll 4
  for (int r = 0; r < FP8_TILE; r += PART_WARPS) {
    const int64_t e = (t.row + r) * op.columns + t.column;
    if (e < op.begin || e >= op.end)
      continue;
    const pack<T, PER_LANE> x = load<T, PER_LANE>((const T *)op.x + (e - op.begin));
    pack<bf16, PER_LANE> narrow;
    for (int i = 0; i < PER_LANE; i++)
      narrow.at[i] = from_float<bf16>(to_float(x.at[i]));
    use(e, narrow);
  }
}

template <typename T>
__global__ void __launch_bounds__(PART_THREADS) find_largest(const fp8_part op)
{
  const tile t = my_tile(op);
  uint32_t most = 0;
  for_rows<T>(op, t, [&](int64_t, const pack<bf16, PER_LANE> &x) {
    for (int i = 0; i < PER_LANE; i++)
      most = max(most, magnitude(x.at[i]));
  });
  most = over_block<PART_WARPS>(most);
  uint32_t *const out = (uint32_t *)scale_of(op, t);
  if (threadIdx.x == 0)
    *out = max(*out, most);
}

template <typename T> __global__ void __launch_bounds__(PART_THREADS) code_part(const fp8_part op)
{
  const tile t = my_tile(op);
  const float factor = factor_of(*scale_of(op, t));
  for_rows<T>(op, t, [&](int64_t e, const pack<bf16, PER_LANE> &x) {
    float wide[PER_LANE];
    for (int i = 0; i < PER_LANE; i++)
      wide[i] = to_float(x.at[i]);
    *(uint32_t *)(op.code + (e - op.begin)) = codes_of(wide, factor);
  });
}

/* A block of threads has a row of scales. */
__global__ void make_scales(int64_t tiles, int64_t pitch, float *scale)
{
  float *const row = scale + blockIdx.x * pitch;
  for (int64_t t = threadIdx.x; t < pitch; t += blockDim.x)
    row[t] = t < tiles ? fp8_scale(__float_as_uint(row[t])) : 0;
}

/* One block of threads: weights have few scales. */
__global__ void __launch_bounds__(PART_THREADS)
    make_one_scale(int64_t rows, int64_t tiles, int64_t pitch, float *scale)
{
  uint32_t most = 0;
  for (int64_t i = threadIdx.x; i < rows * pitch; i += PART_THREADS)
    if (i % pitch < tiles)
      most = max(most, __float_as_uint(scale[i]));
  most = over_block<PART_WARPS>(most);
  for (int64_t i = threadIdx.x; i < rows * pitch; i += PART_THREADS)
    scale[i] = i % pitch < tiles ? fp8_scale(most) : 0;
}

/* 4 x 4 bytes. */
DEVICE void turn_bytes(uint32_t (&w)[4])
{
  const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[0], w[1], 0x7362),
                 c = __byte_perm(w[2], w[3], 0x5140), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, c, 0x5410);
  w[1] = __byte_perm(a, c, 0x7632);
  w[2] = __byte_perm(b, d, 0x5410);
  w[3] = __byte_perm(b, d, 0x7632);
}

/* Transposes codes as store_columns() does. Thread (g, c) of 16 x 16 has 8 x 8 of them. */
__global__ void __launch_bounds__(PART_THREADS) turn_codes(const fp8_turn op)
{
  __shared__ uint2 turned[FP8_TILE][GROUPS];
  const place p = my_place();
  const int64_t i = (int64_t)blockIdx.y * FP8_TILE, j = (int64_t)blockIdx.x * FP8_TILE;
  uint2 x[EACH];
  for (int r = 0; r < EACH; r++)
    x[r] = *(const uint2 *)(op.code + (i + p.g * EACH + r) * op.ld + j + p.c * EACH);
  for (int half = 0; half < 2; half++) {
    uint32_t low[4], high[4];
    for (int r = 0; r < 4; r++) {
      low[r] = half ? x[r].y : x[r].x;
      high[r] = half ? x[r + 4].y : x[r + 4].x;
    }
    turn_bytes(low);
    turn_bytes(high);
    for (int c = 0; c < 4; c++)
      turned[p.c * EACH + half * 4 + c][p.g ^ p.c] = {low[c], high[c]};
  }
  const int64_t pitch = fp8_pitch(op.rows), rest = pitch - op.rows / FP8_TILE;
  float *const scales = op.turned_scale + blockIdx.x * pitch;
  if (threadIdx.x == 0)
    scales[blockIdx.y] = op.scale[blockIdx.y * fp8_pitch(op.ld) + blockIdx.x];
  if (blockIdx.y == 0 && threadIdx.x < rest)
    scales[op.rows / FP8_TILE + threadIdx.x] = 0;
  __syncthreads();
  for (int r = 0; r < EACH; r++) {
    const int row = r * GROUPS + p.g;
    *(uint2 *)(op.turned + (j + row) * op.rows + i + p.c * EACH) = turned[row][p.c ^ (row / EACH)];
  }
}

dim3 part_grid(const fp8_part *op)
{
  const int64_t first = op->begin / op->columns / FP8_TILE,
                last = (op->end - 1) / op->columns / FP8_TILE;
  return dim3((unsigned)(op->columns / FP8_TILE), (unsigned)(last - first + 1));
}

} // namespace

void gpu_fp8_largest(const struct gpu_launch *launch, const struct fp8_part *op)
{
  with_bf16(op->type == DTYPE_BF16, [&]<typename T>(T) {
    find_largest<T><<<part_grid(op), PART_THREADS, 0, launch->stream>>>(*op);
  });
}

void gpu_fp8_code(const struct gpu_launch *launch, const struct fp8_part *op)
{
  with_bf16(op->type == DTYPE_BF16, [&]<typename T>(T) {
    code_part<T><<<part_grid(op), PART_THREADS, 0, launch->stream>>>(*op);
  });
}

void gpu_fp8_scales(const struct gpu_launch *launch, int64_t rows, int64_t columns, float *scale)
{
  const int64_t tiles = columns / FP8_TILE, pitch = fp8_pitch(columns);
  if (launch->fp8_tensor)
    make_one_scale<<<1, PART_THREADS, 0, launch->stream>>>(rows / FP8_TILE, tiles, pitch, scale);
  else
    make_scales<<<(unsigned)(rows / FP8_TILE), LANES, 0, launch->stream>>>(tiles, pitch, scale);
}

void gpu_fp8_unify(const struct gpu_launch *launch, const struct fp8_unify *op)
{
  uint32_t *most = (uint32_t *)launch->work; /* 0 */
  const int64_t tiles = op->k / FP8_TILE, rows = op->blocks ? op->n / FP8_TILE : op->n,
                pitch = op->blocks ? fp8_pitch(op->k) : tiles;
  const dim3 grid((unsigned)tiles, (unsigned)(op->n / FP8_TILE));
  if (grid.x == 0 || grid.y == 0)
    return;
  largest_scale<<<blocks_within(launch, pieces_of(rows * pitch, UNIFY_THREADS), 4), UNIFY_THREADS,
                  0, launch->stream>>>(rows, tiles, pitch, op->scale, most);
  const auto kernel = op->blocks ? recode_operand<true> : recode_operand<false>;
  kernel<<<grid, UNIFY_THREADS, 0, launch->stream>>>(*op, most);
}

void gpu_fp8_turn(const struct gpu_launch *launch, const struct fp8_turn *op)
{
  const dim3 grid((unsigned)(op->columns / FP8_TILE), (unsigned)(op->rows / FP8_TILE));
  turn_codes<<<grid, PART_THREADS, 0, launch->stream>>>(*op);
}

void gpu_fp8_quantise(const struct gpu_launch *launch, const struct fp8_quantise *op)
{
  const dim3 grid((unsigned)(op->columns / FP8_TILE), (unsigned)(op->rows / FP8_TILE));
  if (grid.x == 0 || grid.y == 0)
    return;
  const auto kernel = op->blocks       ? op->transposed ? code_operand<true, true, false>
                                                        : code_operand<true, false, false>
                            : op->transposed ? code_operand<false, true, false>
                      : op->turned     ? code_operand<false, false, true>
                                       : code_operand<false, false, false>;
  kernel<<<grid, THREADS, 0, launch->stream>>>(*op, launch->tally);
}
