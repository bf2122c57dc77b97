/* Stochastic rounding of fp32 to 16 bits (Gupta et al. 2015, arXiv:1502.02551), one bit-exact
 * definition for all devices: C and CUDA include this.
 *
 * Random bits are a function of (seed, element) alone. The states of element i share
 * rounding_bits(seed, i): the first takes its low 16 bits, the second its high 16 bits. The master
 * takes the low 16 bits of rounding_bits(seed ^ ROUNDING_MASTER, i). Magnitudes are rounded. The
 * probability of rounding up (away from zero) is the distance to the lower neighbour over the
 * distance of the neighbours, in steps of 2^-16. Infinity stays, NaN stays NaN as in base/dtype.h,
 * and a number rounded up past the largest one is infinity. */
#pragma once

#include "base/bits.h"

#define ROUNDING_MASTER UINT64_C(0x6a09e667f3bcc909)

/* Multipliers of the mixing (Wellons, "Prospecting for hash functions", 2018), for vectorised
 * code. */
enum { ROUNDING_FIRST = 0x21f0aaad, ROUNDING_SECOND = 0x735a2d97 };

struct rounding_key {
  uint32_t before, between;
};

/* The part of the random bits that 2^32 consecutive elements share: a function of seed and element
 * >> 32. (The mixing is that of SplitMix64: Steele, Lea, Flood, OOPSLA 2014.) */
BOTH_FN struct rounding_key rounding_key_make(uint64_t seed, int64_t element)
{
  struct rounding_key key;
  uint64_t x = seed + UINT64_C(0x9e3779b97f4a7c15) * (((uint64_t)element >> 32) + 1);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  x ^= x >> 31;
  key.before = (uint32_t)x;
  key.between = (uint32_t)(x >> 32);
  return key;
}

/* `element`: its low 32 bits. Only 32-bit operations, so that it vectorises well. */
BOTH_FN uint32_t rounding_mix(struct rounding_key key, uint32_t element)
{
  uint32_t x = element ^ key.before;
  x = (x ^ x >> 16) * (uint32_t)ROUNDING_FIRST;
  x = (x ^ x >> 15) + key.between;
  x = (x ^ x >> 16) * (uint32_t)ROUNDING_SECOND;
  return x ^ x >> 15;
}

BOTH_FN uint32_t rounding_bits(uint64_t seed, int64_t element)
{
  return rounding_mix(rounding_key_make(seed, element), (uint32_t)element);
}

/* The 16-bit code of x, by 16 random bits. All bits 0 rounds towards zero. */
BOTH_FN uint16_t rounding_bf16(float x, uint16_t bits)
{
  const uint32_t word = f32_bits(x);
  if ((word & 0x7fffffff) > 0x7f800000)
    return (uint16_t)(word >> 16 | 0x40);
  return (uint16_t)((word + bits) >> 16);
}

BOTH_FN uint16_t rounding_fp16(float x, uint16_t bits)
{
  uint32_t word = f32_bits(x), code;
  const uint32_t sign = word >> 16 & 0x8000;
  word &= 0x7fffffff;
  if (word > 0x7f800000)
    return (uint16_t)(sign | 0x7e00);
  if (word < 0x38800000) { /* below 2^-14: in units of 2^-24, whole and rest, both exact */
    float units = (x < 0 ? -x : x) * 16777216.0f;
    code = (uint32_t)units;
    code += (units - (float)code) * 65536.0f > 65535.5f - (float)bits;
    return (uint16_t)(sign | code);
  }
  code = (word - 0x38000000 + (bits >> 3)) >> 13; /* 13 bits are dropped */
  return (uint16_t)(sign | (code > 0x7c00 ? 0x7c00 : code));
}
