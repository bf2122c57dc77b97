/* NormalFloat4 (Dettmers et al. 2023, QLoRA, arXiv:2305.14314): blocks of 64 elements share their
 * largest magnitude, and a code stands for one of 16 fractions of it. Codes and values are those of
 * bitsandbytes, bit for bit: quantize_4bit() and dequantize_4bit() with blocksize 64, quant_type
 * nf4. C and CUDA C++ include this page.
 *
 *   | codes, 2 per byte, the first in the high half | 0 | magnitudes of blocks, fp32 | 0 |
 *
 * Zeros follow codes and magnitudes, up to multiples of 128 bytes. Elements that fill the last
 * block are zeros. A block with an element that is not finite has the magnitude NaN, as for
 * bitsandbytes a block with NaN has, and codes of 15. */
#pragma once

#include <stdint.h>

#include "base/bits.h"
#include "compress/rule/codecs.h"

enum { NF4_BLOCK = 64, NF4_WORD = 8 /* elements whose codes fill 32 bits */, NF4_LINE = 128 };

/* clang-format off */
#define NF4_VALUES                                                                                 \
  -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                        \
  -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,                       \
  0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,          \
  0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f
/* clang-format on */

/* As a message holds it. */
CODEC_FN float nf4_magnitude(uint32_t largest)
{
  return f32_from_bits(largest < 0x7f800000 ? largest : 0x7fc00000);
}

/* For nf4_code(). Smaller magnitudes count as 1e-38, whose inverse is finite. */
CODEC_FN float nf4_inverse(float magnitude)
{
  return 1 / (magnitude < 1e-38f ? 1e-38f : magnitude);
}

/* The code of x: the number of means of neighbouring values that x / magnitude is not at most. */
CODEC_FN uint32_t nf4_code(float x, float inverse)
{
  const float value[] = {NF4_VALUES}, fraction = x * inverse;
  uint32_t code = 0;
#if defined __CUDACC__
#pragma unroll
#endif
  for (int i = 0; i < 15; i++)
    code += !(fraction <= (value[i] + value[i + 1]) / 2);
  return code;
}

/* The lowest bit of the code of element i in a word of codes, which is little-endian. */
CODEC_FN int nf4_shift(int i)
{
  return i / 2 * 8 + (i % 2 ? 0 : 4);
}

CODEC_FN int64_t nf4_blocks(int64_t n)
{
  return (n + NF4_BLOCK - 1) / NF4_BLOCK;
}

/* Where the magnitudes begin. */
CODEC_FN int64_t nf4_code_bytes(int64_t n)
{
  return (n + 2 * NF4_LINE - 1) / (2 * NF4_LINE) * NF4_LINE;
}

CODEC_FN int64_t nf4_bytes(int64_t n)
{
  return nf4_code_bytes(n) + (nf4_blocks(n) * 4 + NF4_LINE - 1) / NF4_LINE * NF4_LINE;
}
