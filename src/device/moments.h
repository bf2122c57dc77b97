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
 * Stochastic rounding applies to the number that is encoded. */
#pragma once

#include <float.h>
#include <stddef.h>

#include "optim/rule/rules.h"

#if defined __CUDACC__
#define MOMENTS static inline __host__ __device__
#else
#define MOMENTS static inline
#endif

#define MOMENTS_SCALE 4096.0f
#define MOMENTS_MOST 15.9921875f /* 65504 / 2^12 */

MOMENTS float moments_bounded(float x)
{
  if (x > MOMENTS_MOST && x <= FLT_MAX)
    return MOMENTS_MOST;
  return x < -MOMENTS_MOST && x >= -FLT_MAX ? -MOMENTS_MOST : x;
}

/* Converts n elements of a state between fp32 and their codes in fp32, bf16 or fp16. Encoding
 * rounds to nearest. Buffers do not overlap. */
void moments_decode(float *to, enum dtype type, enum state_code code, const void *from, size_t n);
void moments_encode(void *to, enum dtype type, enum state_code code, const float *from, size_t n);
