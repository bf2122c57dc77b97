/* NormalFloat4 with double quantisation (Dettmers et al. 2023, QLoRA, arXiv:2305.14314). Blocks of
 * 64 elements share their largest magnitude, and a code stands for one of 16 fractions of it.
 * Magnitudes are coded as deviations from the mean of all magnitudes of a parameter: 256 of them
 * share the largest deviation, and a code of 8 bits stands for one of 256 fractions of it. Codes
 * are those of bitsandbytes: quantize_4bit() with quant_type nf4 and blocksize 64, and for
 * magnitudes the rule of its CUDA code. C and CUDA C++ include this page.
 *
 *   a parameter  |--64--|--64--| ..     |--64--|--64--| ..     |--64--|   4 bits per element
 *   magnitudes   |  m   |  m   | ..     |  m   |  m   | ..     |  m   |   8 bits each
 *   scales  mean |  largest of 256      |  largest of 256      |  .. |    fp32
 *   ranks        |- rank 0 -----|- rank 1 ------------|- rank 2 ----------
 *
 * Groups of 256 magnitudes are counted from the start of the parameter, wherever ranks are cut. All
 * ranks agree on scales before they code magnitudes: the mean is that of an exact sum, and the
 * largest deviation is a maximum. If a cut is inside a group, both ranks store its scale. So codes
 * do not depend on the number of ranks. A message:
 *
 *   | codes, 2 per byte, the first in the high half | 0 | codes of magnitudes, a byte per block | 0
 * | | number of segments, struct nf4_segment of each, a range of the scales of the vector | 0 |
 *
 * Zeros fill each part up to a multiple of 128 bytes. Elements that fill the last block are zeros.
 * A block with an element that is not finite has the magnitude NaN, so its parameter is NaN. A
 * magnitude that is decoded to less than zero counts as zero, or else it would turn signs. */
#pragma once

#include <stdint.h>

#include "base/bits.h"
#include "compress/rule/codecs.h"

enum {
  NF4_BLOCK = 64,
  NF4_GROUP = 256, /* magnitudes */
  NF4_WORD = 8,    /* elements whose codes fill 32 bits */
  NF4_LINE = 128
};

/* clang-format off */
#define NF4_VALUES                                                                                 \
  -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                        \
  -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,                       \
  0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,          \
  0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f

/* The values between 0 and 1 of create_dynamic_map(signed=True). */
#define NF4_STEPS                                                                                  \
  5.5000004e-7f, 3.2500002e-6f, 7.75e-6f, 2.1249998e-5f, 4.375e-5f, 6.625e-5f, 8.875e-5f,          \
  1.5625001e-4f, 2.6875004e-4f, 3.8125002e-4f, 4.9375003e-4f, 6.062501e-4f, 7.1875006e-4f,         \
  8.3125e-4f, 9.437501e-4f, 0.0012812499f, 0.00184375f, 0.00240625f, 0.00296875f, 0.0035312497f,   \
  0.00409375f, 0.0046562497f, 0.0052187503f, 0.00578125f, 0.00634375f, 0.00690625f, 0.00746875f,   \
  0.00803125f, 0.00859375f, 0.009156249f, 0.00971875f, 0.01140625f, 0.01421875f, 0.01703125f,      \
  0.019843752f, 0.02265625f, 0.02546875f, 0.028281251f, 0.03109375f, 0.03390625f, 0.036718752f,    \
  0.03953125f, 0.042343747f, 0.04515625f, 0.04796875f, 0.05078125f, 0.05359375f, 0.05640625f,      \
  0.059218753f, 0.06203125f, 0.06484375f, 0.067656256f, 0.070468746f, 0.07328125f, 0.07609375f,    \
  0.07890625f, 0.08171876f, 0.08453125f, 0.08734375f, 0.09015625f, 0.092968754f, 0.09578126f,      \
  0.09859375f, 0.107031256f, 0.12109375f, 0.13515624f, 0.14921875f, 0.16328125f, 0.17734376f,      \
  0.19140625f, 0.20546874f, 0.21953125f, 0.23359375f, 0.24765624f, 0.26171875f, 0.27578127f,       \
  0.28984374f, 0.30390626f, 0.31796873f, 0.33203125f, 0.34609374f, 0.36015624f, 0.37421876f,       \
  0.38828123f, 0.40234375f, 0.41640624f, 0.43046874f, 0.44453126f, 0.45859373f, 0.47265625f,       \
  0.4867187f, 0.50078124f, 0.5148437f, 0.5289062f, 0.54296875f, 0.5570313f, 0.5710938f,            \
  0.58515626f, 0.5992187f, 0.61328125f, 0.6273438f, 0.6414063f, 0.65546876f, 0.6695312f,           \
  0.68359375f, 0.6976563f, 0.7117188f, 0.72578126f, 0.7398437f, 0.75390625f, 0.7679688f,           \
  0.78203124f, 0.79609376f, 0.8101562f, 0.82421875f, 0.8382813f, 0.85234374f, 0.86640626f,         \
  0.8804687f, 0.89453125f, 0.9085938f, 0.92265624f, 0.93671876f, 0.9507812f, 0.96484375f,          \
  0.9789063f, 0.99296874f
/* clang-format on */

/* Before it is coded. */
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

/* A fraction of the largest deviation. They rise with their codes. */
CODEC_FN float nf4_fraction(int code, const float *steps)
{
  if (code == 127 || code == 255)
    return code == 255;
  return code > 127 ? steps[code - 128] : -steps[126 - code];
}

CODEC_FN float nf4_decoded_magnitude(float fraction, float largest, float mean)
{
  const float magnitude = fraction * largest + mean;
  return magnitude < 0 ? 0 : magnitude;
}

/* The blocks of a message from `begin` to the next segment's: those of a parameter, and of the gap
 * after it. */
struct nf4_segment {
  int64_t begin;       /* of the parameter; negative: it begins in another message */
  int64_t scale, last; /* of its first group, as if this message had it, and of the last one here */
  float mean;
};

CODEC_FN const struct nf4_segment *nf4_segment_of(const struct nf4_segment *segments, int64_t n,
                                                  int64_t block)
{
  while (n > 1 && segments[n - 1].begin > block)
    n--;
  return &segments[n - 1];
}

CODEC_FN int64_t nf4_scale_of(const struct nf4_segment *segment, int64_t block)
{
  const int64_t at = segment->scale + (block - segment->begin) / NF4_GROUP;
  return at < segment->last ? at : segment->last;
}

CODEC_FN int64_t nf4_line(int64_t bytes)
{
  return (bytes + NF4_LINE - 1) / NF4_LINE * NF4_LINE;
}

CODEC_FN int64_t nf4_blocks(int64_t n)
{
  return (n + NF4_BLOCK - 1) / NF4_BLOCK;
}

/* Where codes of magnitudes begin. */
CODEC_FN int64_t nf4_code_bytes(int64_t n)
{
  return nf4_line((n + 1) / 2);
}

/* Where segments begin, after their number. */
CODEC_FN int64_t nf4_segments_at(int64_t n)
{
  return nf4_code_bytes(n) + nf4_line(nf4_blocks(n)) + (int64_t)sizeof(int64_t);
}

/* Room for a message of n elements of at most `params` parameters. */
CODEC_FN int64_t nf4_bytes(int64_t n, int params)
{
  const int64_t segments = params * (int64_t)sizeof(struct nf4_segment),
                scales = nf4_blocks(n) / NF4_GROUP + 3 * params;
  return nf4_line(nf4_segments_at(n) + segments + scales * (int64_t)sizeof(float));
}
