/* The bits of fp32 numbers, and functions with one definition for all devices. C and CUDA include
 * this. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined __CUDACC__
#define BOTH_FN static inline __host__ __device__
#else
#define BOTH_FN static inline
#endif

BOTH_FN uint32_t f32_bits(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

BOTH_FN float f32_from_bits(uint32_t bits)
{
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
