/* Storage of an optimizer's states: one bit-exact definition for all devices. C and CUDA include
 * this.
 *
 * fp32 and bf16 store them as they are. fp16 has a quarter of their powers of two. A second moment,
 * about the square of the gradient, would be 0 there if the gradient is below 2e-4. So fp16 holds
 * the second moment's root. The update needs only the root, which takes half as many powers of two.
 * Both moments are scaled by 2^12:
 *
 *   First: code of 2^12 m.        Second: code of 2^12 sqrt(v).
 *
 * Why 2^12: normal numbers then begin at 2^-26 = 1.5e-8. A root loses parts below that, which are
 * negligible compared with eps = 1e-8, which is added to it. Subnormal numbers go down to 2^-36
 * = 1.5e-11. They end at 65504 / 2^12 = 15.99. No element of a gradient whose norm is clipped to 1
 * is that large. Larger finite numbers become this number, never infinity. Infinity and NaN stay.
 * (Shifting numbers into the range of fp16: Micikevicius et al. 2018, arXiv:1710.03740. Encoded
 * optimizer states: Dettmers et al. 2021, arXiv:2110.02861.)
 *
 * Decoding is exact in fp32, of the second moment too: 11 bits have a square of 22. The correctly
 * rounded root of that square is exact again, so decoding and encoding returns the same code.
 * Stochastic rounding applies to the number that is encoded.
 *
 * block8 stores 64 elements relative to the largest magnitude among them, their scale (Dettmers et
 * al. 2021, arXiv:2110.02861):
 *
 *   First: code of m / scale.     Second: code of sqrt(v) / scale.
 *
 *   m         | sign | 7 bits |   code 127 is 1, 8 codes per power of two
 *   sqrt(v)   |    8 bits     |   code 255 is 1, 16 codes per power of two
 *
 * Codes count down from 1 over the fp32 numbers with 3 or 4 bits of mantissa. So the largest m and
 * the largest root are exact. Code 0 is 0. An m below code 1 is rounded to code 0 or 1. A root
 * below code 1 becomes code 1 unless it is 0, because the update divides m by it.
 *
 * A scale is 0 or at least 2^-46, so that no decoded number is subnormal in fp32. If all m of a
 * block are smaller, they become 0. Smaller roots get the least scale. If an element is infinite or
 * NaN, its block decodes to NaN.
 *
 * Updates always round stochastically. If gradients get smaller, a step lowers v at most by the
 * share 1 - beta2. This is usually less than half the distance to the next code, so rounding to
 * nearest would keep v as it is. */
#pragma once

#include <float.h>
#include <math.h>
#include <stddef.h>

#include "base/bits.h"
#include "optim/rule/rules.h"

#define MOMENTS_SCALE 4096.0f
#define MOMENTS_MOST 15.9921875f /* 65504 / 2^12 */

BOTH_FN float moments_bounded(float x)
{
  if (x > MOMENTS_MOST && x <= FLT_MAX)
    return MOMENTS_MOST;
  return x < -MOMENTS_MOST && x >= -FLT_MAX ? -MOMENTS_MOST : x;
}

enum { MOMENTS_BLOCK = 64 };

struct moments_block {
  uint8_t code[MOMENTS_BLOCK];
  float scale;
};

/* fp32 patterns of 1 and of the least scale; bits of the mantissa that codes lack; largest code. */
#define MOMENTS_ONE 0x3f800000u
#define MOMENTS_LEAST 0x28800000u
#define MOMENTS_LACK(code) ((code) == STATE_ROOT ? 19 : 20)
#define MOMENTS_TOP(code) ((code) == STATE_ROOT ? 255u : 127u)

/* largest: bits of the largest magnitude of a block's elements, or of their roots. */
BOTH_FN float moments_scale(enum state_code code, uint32_t largest)
{
  const uint32_t small = code == STATE_ROOT && largest > 0 ? MOMENTS_LEAST : 0;
  if (largest >= 0x7f800000)
    return f32_from_bits(0x7fc00000);
  return f32_from_bits(largest >= MOMENTS_LEAST ? largest : small);
}

/* x: an element, or its root. bits: 16 random bits, or -1: to nearest, ties to even. */
BOTH_FN uint8_t moments_code(enum state_code code, float x, float scale, int32_t bits)
{
  const uint32_t word = f32_bits(x), lack = MOMENTS_LACK(code), top = MOMENTS_TOP(code),
                 share = f32_bits(f32_from_bits(word & 0x7fffffff) / scale),
                 nearest = (1u << (lack - 1)) - 1 + (share >> lack & 1),
                 up = bits < 0 ? nearest : (uint32_t)bits << (lack - 16),
                 below = (MOMENTS_ONE >> lack) - ((share + up) >> lack),
                 least = code == STATE_ROOT && share > 0 ? 1 : 0,
                 sign = code == STATE_ROOT ? 0 : word >> 31 << 7;
  return (uint8_t)(scale > 0 ? sign | (below < top ? top - below : least) : 0);
}

/* The element that a code of a block stands for. */
BOTH_FN float moments_element(enum state_code code, uint8_t stored, float scale)
{
  const uint32_t lack = MOMENTS_LACK(code), top = MOMENTS_TOP(code), magnitude = stored & top,
                 sign = code == STATE_ROOT ? 0 : (uint32_t)stored >> 7 << 31,
                 share = magnitude > 0 ? MOMENTS_ONE - ((top - magnitude) << lack) : 0;
  const float x = f32_from_bits(share | sign) * scale;
  return code == STATE_ROOT ? x * x : x;
}

/* For the host. x: the elements, which it overwrites. bits: random bits of each, or NULL: to
 * nearest. */
static inline void moments_encode_block(struct moments_block *to, enum state_code code, float *x,
                                        const int32_t *bits)
{
  uint32_t largest = 0;
  for (int j = 0; j < MOMENTS_BLOCK; j++) {
    x[j] = code == STATE_ROOT ? sqrtf(x[j]) : x[j];
    const uint32_t magnitude = f32_bits(x[j]) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = to->scale = moments_scale(code, largest);
  for (int j = 0; j < MOMENTS_BLOCK; j++)
    to->code[j] = moments_code(code, x[j], scale, bits ? bits[j] : -1);
}

/* For the host. Decodes the first n elements of blocks. */
static inline void moments_decode_blocks(float *to, enum state_code code,
                                         const struct moments_block *from, size_t n)
{
  for (size_t i = 0; i < n; i++)
    to[i] = moments_element(code, from[i / MOMENTS_BLOCK].code[i % MOMENTS_BLOCK],
                            from[i / MOMENTS_BLOCK].scale);
}

/* Converts n elements of a state between fp32 and their codes in fp32, bf16, fp16 or block8.
 * Encoding rounds to nearest. The elements that the last block lacks
 * are stored as zero. Buffers do not overlap. */
void moments_decode(float *to, enum dtype type, enum state_code code, const void *from, size_t n);
void moments_encode(void *to, enum dtype type, enum state_code code, const float *from, size_t n);
