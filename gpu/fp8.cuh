/* Codes and scales of fp8 in kernels, with the host's bits. Private to gpu/. */
#pragma once

#include <cuda_fp8.h>

#include "device/fp8.h"
#include "gpu/common.cuh"

DEVICE uint32_t magnitude(bf16 x)
{
  return (uint32_t)(__bfloat16_as_ushort(x) & 0x7fff) << 16;
}

/* Codes of 4 elements. A group with an element that is not finite has a scale of NaN. */
DEVICE uint32_t codes_of(const float *x, float factor)
{
  uint32_t word = 0;
#if __CUDA_ARCH__ >= 890
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const float2 pair = make_float2(x[i] * factor, x[i + 1] * factor);
    word |= (uint32_t)__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3) << (8 * i);
  }
#else
#pragma unroll
  for (int i = 0; i < 4; i++)
    word |= (uint32_t)(factor == factor && x[i] == x[i] ? fp8_code(x[i], factor) : FP8_NAN)
            << (8 * i);
#endif
  return word;
}

/* The factor of the elements of a group; NaN: all their codes are NaN. */
DEVICE float factor_of(float scale)
{
  return scale == scale ? fp8_inverse(scale) : scale;
}

/* fp8_recode() of 4 codes with scales whose ratio is `factor`. NaN: all become NaN. */
DEVICE uint32_t recodes_of(uint32_t word, float factor)
{
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const __half2_raw pair =
        __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(word >> (8 * i)), __NV_E4M3);
    const float2 wide = __half22float2(__half2(pair));
    x[i] = wide.x;
    x[i + 1] = wide.y;
  }
  return codes_of(x, factor);
}

/* A thread's tally of the tiles that it has coded. Each thread counts its own elements. */
struct seen_tiles {
  uint32_t largest = 0, saturated = 0;
  DEVICE void add(uint32_t most, uint32_t elements)
  {
    if (most < 0x7f800000)
      largest = max(largest, most);
    else
      saturated += elements;
  }
  DEVICE void merge_warp()
  {
    largest = __reduce_max_sync(ALL_LANES, largest);
    saturated = __reduce_add_sync(ALL_LANES, saturated);
  }
};

/* All threads of a block, which are whole warps, call it once. Integers have no order of sums. */
DEVICE void tally_block(seen_tiles mine, fp8_tally *tally)
{
  __shared__ uint2 warps[32];
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x, n = blockDim.x * blockDim.y / 32;
  mine.merge_warp();
  if (thread % 32 == 0)
    warps[thread / 32] = make_uint2(mine.largest, mine.saturated);
  __syncthreads();
  if (thread >= 32)
    return;
  const uint2 part = thread < n ? warps[thread] : make_uint2(0, 0);
  mine.largest = part.x;
  mine.saturated = part.y;
  mine.merge_warp();
  if (thread == 0 && mine.largest > 0)
    atomicMax(&tally->largest, mine.largest);
  if (thread == 0 && mine.saturated > 0)
    atomicAdd((unsigned long long *)&tally->saturated, mine.saturated);
}

/* A tile belongs to 16 neighbouring threads, which all call it, each with 8 of its elements in
 * bf16. They write its codes, and the first of them its scale. A row of a block's threads is a
 * multiple of 16, so two rows may share a warp. */
constexpr int TILE_LANES = 16, TILE_EACH = FP8_TILE / TILE_LANES;
DEVICE void code_tile(const pack<bf16, TILE_EACH> &x, uint8_t *code, float *scale, seen_tiles *seen)
{
  const unsigned lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32,
                 lanes = 0xFFFFu << (lane & TILE_LANES);
  uint32_t most = 0;
  float wide[TILE_EACH];
#pragma unroll
  for (int i = 0; i < TILE_EACH; i++) {
    most = max(most, magnitude(x.at[i]));
    wide[i] = to_float(x.at[i]);
  }
#pragma unroll
  for (int half = TILE_LANES / 2; half > 0; half /= 2)
    most = max(most, __shfl_xor_sync(lanes, most, half));
  seen->add(most, TILE_EACH);
  const float value = fp8_scale(most), factor = factor_of(value);
  const uint2 codes = {codes_of(wide, factor), codes_of(wide + 4, factor)};
  *(uint2 *)code = codes;
  if (threadIdx.x % TILE_LANES == 0)
    *scale = value;
}
