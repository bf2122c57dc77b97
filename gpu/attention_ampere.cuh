/* Tiles of attention by the products of a warp (mma.sync), for compute capability 8.0 and later.
 * Tiles lie in shared memory in rows of D elements and 16 bytes, so that eight rows of a matrix lie
 * in different banks. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "device/cuda_work.h"
#include "gpu/kernels.h"

namespace attention_ampere {

constexpr float LOG2_E = 1.4426950408889634f;

/* --- instructions -------------------------------------------------------- */

DEVICE uint32_t shared_address(const void *p)
{
  return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes to shared memory in the background; zeros if not `there`, and then `from` is not
 * read. */
DEVICE void copy16(uint32_t to, const void *from, bool there)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}

DEVICE void copy_commit()
{
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> DEVICE void copy_wait()
{
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Four 8 x 8 matrices; lane i says where row i % 8 of matrix i / 8 lies. */
DEVICE void load_matrices(uint32_t (&x)[4], uint32_t from)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}

DEVICE void load_transposed(uint32_t (&x)[4], uint32_t from)
{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}

DEVICE void product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE float exp2_fast(float x)
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Two floats as bf16, the first in the lower half. */
DEVICE uint32_t pack(float low, float high)
{
  uint32_t x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}

/* --- tiles --------------------------------------------------------------- */

/* ROWS rows of D elements each, which THREADS threads fetch, LANES of them a row. */
template <int D_, int ROWS_, int THREADS> struct tile {
  static constexpr int D = D_, ROWS = ROWS_, CHUNKS = D / 8,
                       LANES = CHUNKS <= 8    ? 8
                               : CHUNKS <= 16 ? 16
                                              : 32,
                       STEP = THREADS / LANES;
  static constexpr uint32_t PITCH = 2 * D + 16, BYTES = ROWS * PITCH;
  static_assert(D % 16 == 0 && CHUNKS <= 32 && ROWS % STEP == 0);

  template <bool WHOLE>
  static DEVICE void fetch_lane(uint32_t to, const __nv_bfloat16 *from, int64_t stride, int last)
  {
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
      copy16(to + i * PITCH, from, WHOLE || i < last);
      from += STEP * stride;
    }
  }

  /* `rows` rows of `width` elements from device memory; what is missing is 0. */
  static DEVICE void fetch(uint32_t to, const __nv_bfloat16 *from, int64_t stride, int rows,
                           int width)
  {
    const int chunk = threadIdx.x % LANES, row = threadIdx.x / LANES;
    to += row * PITCH + chunk * 16;
    from += row * stride + chunk * 8;
    if (LANES > CHUNKS && chunk >= CHUNKS)
      return;
    if (rows >= ROWS && width == D)
      fetch_lane<true>(to, from, stride, ROWS);
    else
      fetch_lane<false>(to, from, stride, chunk * 8 < width ? rows - row : 0);
  }

  /* Operand a from rows row .. row + 15 and columns k .. k + 15. */
  static DEVICE void a(uint32_t (&x)[4], uint32_t tile, int row, int k)
  {
    const int lane = threadIdx.x % 32;
    load_matrices(x, tile + (row + lane % 16) * PITCH + (k + lane / 16 * 8) * 2);
  }

  /* The same of the transposed tile: its columns are rows of a. */
  static DEVICE void a_transposed(uint32_t (&x)[4], uint32_t tile, int column, int k)
  {
    const int lane = threadIdx.x % 32;
    load_transposed(x, tile + (k + lane / 16 * 8 + lane % 8) * PITCH +
                           (column + lane / 8 % 2 * 8) * 2);
  }

  /* Operands b of two products from rows n .. n + 15 (columns of the product), columns k .. k + 15:
   * x[0], x[1] and x[2], x[3]. */
  static DEVICE void b(uint32_t (&x)[4], uint32_t tile, int n, int k)
  {
    const int lane = threadIdx.x % 32;
    load_matrices(x, tile + (n + lane / 16 * 8 + lane % 8) * PITCH + (k + lane / 8 % 2 * 8) * 2);
  }

  /* The same where rows k .. k + 15 are k's and columns n .. n + 15 are columns of the product. */
  static DEVICE void b_transposed(uint32_t (&x)[4], uint32_t tile, int n, int k)
  {
    const int lane = threadIdx.x % 32;
    load_transposed(x, tile + (k + lane / 8 % 2 * 8 + lane % 8) * PITCH + (n + lane / 16 * 8) * 2);
  }
};

/* Row and column of number e of a lane's 16 x 8 accumulators. */
DEVICE int row_of(int e)
{
  return threadIdx.x % 32 / 4 + e / 2 * 8;
}

DEVICE int column_of(int e)
{
  return threadIdx.x % 4 * 2 + e % 2;
}

/* Accumulators of M x N products to 0. */
template <int M, int N> DEVICE void clear(float (&x)[M][N][4])
{
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        x[m][n][e] = 0;
}

} // namespace attention_ampere
