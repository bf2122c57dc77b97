/* Tiles and fragments of attention on Hopper. Tiles lie in shared memory as the copy engine's
 * 128-byte swizzle writes them: panels of 64 columns, rows of 128 bytes. Accumulators: thread t of
 * a warpgroup has the row and column of acc_row() and acc_column(). */
#pragma once

#include "gpu/hopper.cuh"

namespace attention_tiles {

using namespace hopper;

constexpr int ROW = 128,
              K_STEP =
                  16 * ROW; /* bytes of a panel's row; of a product's 16 rows, where rows are k's */
constexpr float LOG2_E = 1.4426950408889634f;

/* A ring's place, and the parity of its full barriers. */
template <int N> struct ring {
  uint32_t at = 0, parity = 0;
  DEVICE void next()
  {
    if (++at == N) {
      at = 0;
      parity ^= 1;
    }
  }
};

/* Row and column of register r of thread t's accumulators. */
DEVICE constexpr int acc_row(int t, int r)
{
  return t / 32 * 16 + t % 32 / 4 + r / 2 % 2 * 8;
}

DEVICE constexpr int acc_column(int t, int r)
{
  return r / 4 * 8 + t % 4 * 2 + r % 2;
}

/* A matrix in shared memory, as products take it. Rows that are no k's: 8 of them are 1024 bytes.
 * Rows that are k's: likewise, and a panel lies `panel` bytes after the previous one. */
DEVICE uint64_t descriptor(uint32_t address, uint32_t panel)
{
  return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(panel >> 4) << 16 |
         (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same some bytes later. The sum never carries out of the address, because shared memory is
 * small. */
DEVICE uint64_t behind(uint64_t d, uint32_t bytes)
{
  return (d & 0xffffffff00000000ull) | (uint32_t)((uint32_t)d + (bytes >> 4));
}

/* Rows `row` (of this thread's fragment) and row + 8, where they are less than `rows`, from a
 * fragment of N columns (a multiple of 16), times scale. */
template <int N>
DEVICE void write_rows(__nv_bfloat16 *to, int64_t stride, int row, int rows,
                       const float (&x)[N / 2], float scale)
{
#pragma unroll
  for (int low = 0; low < 2; low++) {
    const int r = row + low * 8;
#pragma unroll
    for (int c = 0; c < N / 32; c++) {
      uint32_t word[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int e = 4 * (4 * c + k) + 2 * low;
        word[k] = pack(x[e] * scale, x[e + 1] * scale);
      }
      quad_transpose(word);
      if (r < rows)
        *(uint4 *)(to + (int64_t)r * stride + 32 * c + threadIdx.x % 4 * 8) =
            make_uint4(word[0], word[1], word[2], word[3]);
    }
#pragma unroll
    for (int k = N / 32 * 4; k < N / 8; k++)
      if (r < rows)
        *(uint32_t *)(to + (int64_t)r * stride + 8 * k + threadIdx.x % 4 * 2) =
            pack(x[4 * k + 2 * low] * scale, x[4 * k + 2 * low + 1] * scale);
  }
}

/* --- the host's side ----------------------------------------------------- */

/* Describes [batch][tokens][heads][D] to the copy engine, in boxes of 64 elements x `rows` tokens.
 * The runtime library finds the driver's function, so nothing is linked with the driver. */
inline cudaError_t encode(CUtensorMap *map, const void *from, int64_t D, int64_t heads,
                          int64_t tokens, int64_t batch, int64_t stride, int rows)
{
  void *at = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000,
                                                             cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
    return error != cudaSuccess ? error : cudaErrorNotSupported;
  const cuuint64_t dims[4] = {(cuuint64_t)D, (cuuint64_t)heads, (cuuint64_t)tokens,
                              (cuuint64_t)batch};
  const cuuint64_t strides[3] = {(cuuint64_t)D * 2, (cuuint64_t)stride * 2,
                                 (cuuint64_t)(tokens * stride) * 2};
  const cuuint32_t box[4] = {64, 1, (cuuint32_t)rows, 1}, steps[4] = {1, 1, 1, 1};
  const CUresult result = ((decltype(&cuTensorMapEncodeTiled))at)(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)from, dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

} // namespace attention_tiles
