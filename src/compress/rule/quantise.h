/* Quantised messages: the arguments of the operations quantise and dequantise of a device, the
 * layout of a message, and the rules. C and CUDA C++ include this page. It uses nothing but the C
 * library.
 *
 * A vector is cut into blocks. A block has one or two scales, and a code per element. A message
 * holds the scales of all blocks in bf16: the first scale of each block, then the second of each.
 * Zeros follow, up to a multiple of 128 bytes, then the codes.
 *
 * Codes are packed frame by frame. Zeros fill the last frame. Lane l of 32 owns elements l,
 * l + 32, ... of a frame. A word of 32 bits holds a chunk of a lane's codes: they are the digits of
 * a number, the first one is the lowest. If a code is one of a power of two, a digit has whole
 * bits. A chunk has as many codes as fit. Word w of lane l is word 32 w + l of the frame. A frame
 * is the fewest blocks that have whole words. If a rule has needs or 256 codes, its blocks fill
 * whole words, and a frame is one block.
 *
 * The rule of codec NAME, in steps.h, signs.h or NAME.h, defines
 *   NAME_codes  number of codes: 2 to 256. Codes are 0 to NAME_codes - 1
 *   NAME_scales scales per block: 1 or 2
 *   NAME_needs  QUANT_ flags
 *   NAME_block  usual elements of a block, a power of two
 *   NAME_scale(s, op)              scales of a block from its statistics: numbers of bf16, none is
 *                                  negative
 *   NAME_code(x, scale, op, bits)  code of an element; bits: 16 random bits, if the rule needs
 *                                  them. A rule without needs reads scale.inverse only
 *   NAME_value(code, scale)        number that a code stands for, NaN if the scales are NaN
 * With QUANT_GLOBAL a message has the scales of one block, which are those of all blocks. A rule
 * whose number of codes is not a power of two has one scale and no needs.
 * A block with an element, a sum or a scale that is not finite is sent as zeros with scales of NaN.
 * All elements of a block that have scales of 0 are 0.
 *
 * Sums have one order: a lane adds its elements in ascending order, then lanes l and l + 16 are
 * added, l and l + 8, and so on. No product and sum are fused. So results are
 * bitwise identical on all devices. */
#pragma once

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bits.h"
#include "compress/rule/codecs.h"

#if defined __CUDACC__
#define QUANT_CONST static constexpr __host__ __device__ __forceinline__
#else
#define QUANT_CONST CODEC_FN
#endif

#define QUANT_ENUM(name, kind, title, source) QUANT_##name,
enum quantiser { CODEC_QUANTISERS(QUANT_ENUM) QUANT_COUNT };
#undef QUANT_ENUM

enum {
  QUANT_LANES = 32,
  QUANT_MOST_BLOCK = 4096,
  QUANT_LINE = 128, /* alignment of a message, and of its codes */
  QUANT_ROTATED = 8 /* elements of a lane in a rotation */
};

/* Needs of a rule. A rule without QUANT_SUMS and QUANT_GLOBAL needs the largest magnitude of a
 * block. */
enum {
  QUANT_SIGNS = 1,       /* the sums over negative elements and over the others */
  QUANT_SQUARES = 2,     /* the sum of squares */
  QUANT_RANDOM = 4,      /* random bits */
  QUANT_VOTES = 8,       /* a sum is the sign of the sum of signs, times the sum of scales */
  QUANT_ROTATE = 16,     /* codes of a Walsh-Hadamard transform of the elements */
  QUANT_LEVELS = 32,     /* the setting `levels` */
  QUANT_MAGNITUDES = 64, /* the sum of magnitudes */
  QUANT_GLOBAL = 128,    /* the largest magnitude of all ranks' vectors instead of the block's */
  QUANT_SUMS = QUANT_SIGNS | QUANT_SQUARES | QUANT_MAGNITUDES
};

/* Messages of SET and ADD are summed in the order of sum_parts, out is one vector. The others take
 * each message by itself: message i is subtracted from out[i * n ..], written there, or added. */
enum quant_mode { QUANT_SET, QUANT_ADD, QUANT_SUBTRACT, QUANT_SET_EACH, QUANT_ADD_EACH };

QUANT_CONST bool quant_takes_each(enum quant_mode mode)
{
  return mode >= QUANT_SUBTRACT;
}

struct quantise {
  enum quantiser rule;
  int64_t block; /* elements: from QUANT_LEAST_BLOCK to QUANT_LARGEST_BLOCK, a power of two */
  int levels;    /* QUANT_GLOBAL: 127 / ranks */
  /* Seed of the random bits, which are a function of it and of the number of frame and element. A
   * lane begins a frame with rounding_bits() of its first element, and goes on by quant_next(). Two
   * elements that follow each other share a word of 32 bits: the first has the low half. */
  uint64_t seed;
  const float *largest; /* QUANT_GLOBAL: no magnitude is larger; in memory of the device */
};

/* Magnitudes and sums that a rule does not need are 0. If an element is not finite, at least one of
 * those that it needs is not finite. */
struct quant_stats {
  float n;                             /* elements without those that fill the block */
  float max;                           /* magnitude */
  float positive, negative, negatives; /* sums of magnitudes; number of negative elements */
  float magnitudes, squares;
};

struct quant_scale {
  float at[2];   /* what the message holds */
  float inverse; /* for NAME_code */
};

CODEC_FN float quant_magnitude(float x)
{
  return f32_from_bits(f32_bits(x) & 0x7fffffff);
}

/* A scale that is not negative, as a message holds it. */
CODEC_FN uint16_t quant_half(float scale)
{
  return (uint16_t)(f32_bits(scale) >> 16);
}

CODEC_FN float quant_from_half(uint16_t half)
{
  return f32_from_bits((uint32_t)half << 16);
}

/* The nearest number of bf16 to x >= 0, ties to even, for means, which must not grow. The least one
 * that is not less, for steps, so that no element needs a code too many. NaN may become 0, so
 * quant_settle() also checks the statistics. */
CODEC_FN float quant_nearest_half(float x)
{
  const uint32_t bits = f32_bits(x);
  return f32_from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

CODEC_FN float quant_upper_half(float x)
{
  return f32_from_bits((f32_bits(x) + 0xffff) & 0xffff0000);
}

/* The step is max / most, rounded up to bf16. So an element has at most `most` steps, except for a
 * rounding error of fp32, which NAME_code rounds away. A subnormal step becomes 0. If step * most
 * overflows, the step is infinite, and the block decodes to NaN. */
CODEC_FN struct quant_scale quant_steps(float max, float most)
{
  float step = quant_upper_half(max / most);
  if (step * most > FLT_MAX)
    step = INFINITY;
  struct quant_scale scale = {{0, 0}, 0};
  if (step >= FLT_MIN) {
    scale.at[0] = step;
    scale.inverse = 1 / step;
  }
  return scale;
}

/* The nearest integer, ties to even, in two's complement. |x| < 2^22. */
CODEC_FN uint32_t quant_round(float x)
{
  return f32_bits(x + 12582912.0f) - 0x4b400000; /* 1.5 * 2^23: units are the last bit */
}

/* The next state of a lane's random bits, and the word of a state. A step of a linear congruential
 * generator and one mixing of its halves (O'Neill 2014, "PCG") are cheaper than a hash. */
CODEC_FN uint32_t quant_next(uint32_t state)
{
  return state * 747796405u + 2891336453u;
}

CODEC_FN uint32_t quant_random(uint32_t state)
{
  return state ^ state >> 16;
}

/* The integer that the low bits of `code` are. */
CODEC_FN float quant_signed(uint32_t code, int bits)
{
  return (float)((int32_t)(code << (32 - bits)) >> (32 - bits));
}

/* 8-bit numbers with `mantissa` bits after the point, and subnormals. Exponents are `down` less
 * than those of fp32. |x| rounds to a number of the format, to nearest, ties to even. */
CODEC_FN uint32_t quant_minifloat(float x, int mantissa, uint32_t down)
{
  const int drop = 23 - mantissa;
  const uint32_t word = f32_bits(x), magnitude = word & 0x7fffffff;
  const uint32_t even = magnitude >> drop & 1;
  const uint32_t normal =
      ((magnitude + (1u << (drop - 1)) - 1 + even) >> drop) - (down << mantissa);
  const float unit = f32_from_bits((down - (uint32_t)mantissa + 24) << 23); /* its ulp: code 1 */
  const uint32_t subnormal = f32_bits(f32_from_bits(magnitude) + unit) & 0xff;
  return (magnitude >= (down + 1) << 23 ? normal : subnormal) | (word >> 24 & 0x80);
}

CODEC_FN float quant_from_minifloat(uint32_t code, int mantissa, uint32_t down)
{
  const float x =
      f32_from_bits((code & 0x7f) << (23 - mantissa)) * f32_from_bits((127 + down) << 23);
  return f32_from_bits(f32_bits(x) | (code & 0x80) << 24);
}

#include "compress/rule/natural.h"
#include "compress/rule/qsgd.h"
#include "compress/rule/signs.h"
#include "compress/rule/steps.h"

/* The parts of a rule, by a number that is a constant in each loop. */
#define QUANT_CODES(name, kind, title, source) rule == QUANT_##name ? name##_codes:
#define QUANT_SCALES(name, kind, title, source) rule == QUANT_##name ? name##_scales:
#define QUANT_NEEDS(name, kind, title, source) rule == QUANT_##name ? name##_needs:
#define QUANT_BLOCK(name, kind, title, source) rule == QUANT_##name ? name##_block:
QUANT_CONST uint32_t quant_codes_of(enum quantiser rule)
{
  return CODEC_QUANTISERS(QUANT_CODES) 256;
}

QUANT_CONST int quant_scales_of(enum quantiser rule)
{
  return CODEC_QUANTISERS(QUANT_SCALES) 1;
}

QUANT_CONST int quant_needs_of(enum quantiser rule)
{
  return CODEC_QUANTISERS(QUANT_NEEDS) 0;
}

/* A chunk: codes in a word, the most with codes^chunk <= 2^32. The least block: a chunk of each
 * lane, or a row of an element per lane if a frame may have several blocks. */
#define QUANT_CHUNK(codes)                                                                         \
  ((codes) == 2 ? 32 : (codes) == 7 ? 11 : (codes) == 9 ? 10 : (codes) == 16 ? 8 : 4)
#define QUANT_HAS_FRAMES(codes, needs) ((codes) < 256 && (needs) == 0)
#define QUANT_LEAST_BLOCK(codes, needs)                                                            \
  (QUANT_HAS_FRAMES(codes, needs) ? QUANT_LANES : QUANT_CHUNK(codes) * QUANT_LANES)
#define QUANT_LARGEST_BLOCK(codes, needs)                                                          \
  (QUANT_HAS_FRAMES(codes, needs) ? 256 : (int)QUANT_MOST_BLOCK)
#define QUANT_IS_BLOCK(block, codes, needs)                                                        \
  ((block) >= QUANT_LEAST_BLOCK(codes, needs) && (block) <= QUANT_LARGEST_BLOCK(codes, needs) &&   \
   ((block) & ((block)-1)) == 0)

QUANT_CONST int quant_chunk_of(enum quantiser rule)
{
  return QUANT_CHUNK(quant_codes_of(rule));
}

QUANT_CONST int quant_usual_block_of(enum quantiser rule)
{
  return CODEC_QUANTISERS(QUANT_BLOCK) 0;
}

QUANT_CONST bool quant_has_frames(enum quantiser rule)
{
  return QUANT_HAS_FRAMES(quant_codes_of(rule), quant_needs_of(rule));
}

/* Elements of a frame of a valid block: at most QUANT_MOST_BLOCK. No more than QUANT_LANES blocks.
 */
QUANT_CONST int64_t quant_frame_of(enum quantiser rule, int64_t block)
{
  int64_t frame = block;
  while (frame % (quant_chunk_of(rule) * QUANT_LANES) > 0)
    frame += block;
  return frame;
}
#undef QUANT_CODES
#undef QUANT_SCALES
#undef QUANT_NEEDS
#undef QUANT_BLOCK

#define QUANT_CASE(name, kind, title, source)                                                      \
  case QUANT_##name: scale = name##_scale(s, op); break;
/* False: the block is not finite, and its elements count as zeros. */
CODEC_FN bool quant_settle(enum quantiser rule, struct quant_stats s, const struct quantise *op,
                           struct quant_scale *out)
{
  struct quant_scale scale = {{0, 0}, 0};
  switch (rule) {
    CODEC_QUANTISERS(QUANT_CASE)
  default: break;
  }
  const bool finite = s.max <= FLT_MAX && s.positive <= FLT_MAX && s.negative <= FLT_MAX &&
                      s.magnitudes <= FLT_MAX && s.squares <= FLT_MAX && scale.at[0] <= FLT_MAX &&
                      scale.at[1] <= FLT_MAX;
  if (!finite) {
    scale.at[0] = scale.at[1] = f32_from_bits(0x7fc00000);
    scale.inverse = 0;
  }
  *out = scale;
  return finite;
}
#undef QUANT_CASE

#define QUANT_CASE(name, kind, title, source)                                                      \
  case QUANT_##name: return name##_code(x, scale, op, bits);
CODEC_FN uint32_t quant_code(enum quantiser rule, float x, struct quant_scale scale,
                             const struct quantise *op, uint32_t bits)
{
  switch (rule) {
    CODEC_QUANTISERS(QUANT_CASE)
  default: return 0;
  }
}
#undef QUANT_CASE

#define QUANT_CASE(name, kind, title, source)                                                      \
  case QUANT_##name: return name##_value(code, scale);
CODEC_FN float quant_value(enum quantiser rule, uint32_t code, struct quant_scale scale)
{
  switch (rule) {
    CODEC_QUANTISERS(QUANT_CASE)
  default: return 0;
  }
}
#undef QUANT_CASE

/* A transform is over 32 elements: QUANT_ROTATED that follow each other in a lane, and the lanes
 * l, l + 8, l + 16 and l + 24. Most of its sums need no other lane. Butterflies of elements that
 * are 4, 2 and 1 apart come first, then those of lanes that are 16 and 8 apart. The factor is 1 /
 * sqrt(32), so the transform is its own inverse. */
#define QUANT_ROTATION 0.17677669529663687f

/* The argument is a power of two below 2^31. */
CODEC_FN int quant_log2(int64_t power)
{
#if defined __CUDA_ARCH__
  return __ffs((int)power) - 1;
#else
  return __builtin_ctz((unsigned)power);
#endif
}

CODEC_FN int64_t quant_blocks(const struct quantise *op, int64_t n)
{
  return (n + op->block - 1) / op->block;
}

/* Larger blocks would overflow the frames of devices. */
CODEC_FN bool quant_is_valid(const struct quantise *op)
{
  const int codes = (int)quant_codes_of(op->rule), needs = quant_needs_of(op->rule);
  return QUANT_IS_BLOCK(op->block, codes, needs);
}

CODEC_FN int64_t quant_frame(const struct quantise *op)
{
  return quant_frame_of(op->rule, op->block);
}

CODEC_FN int64_t quant_frames(const struct quantise *op, int64_t n)
{
  const int64_t frame = quant_frame(op);
  return (n + frame - 1) / frame;
}

/* Where the first scale of a block is among those of its message. */
CODEC_FN int64_t quant_scale_at(const struct quantise *op, int64_t block)
{
  return quant_needs_of(op->rule) & QUANT_GLOBAL ? 0 : block;
}

/* Scales of a message of n elements. */
CODEC_FN int64_t quant_scale_count(const struct quantise *op, int64_t n)
{
  const bool one = n > 0 && quant_needs_of(op->rule) & QUANT_GLOBAL;
  return (one ? 1 : quant_blocks(op, n)) * quant_scales_of(op->rule);
}

/* Bytes of scales of a message of n elements, where its codes begin. */
CODEC_FN int64_t quant_scale_bytes(const struct quantise *op, int64_t n)
{
  const int64_t bytes = quant_scale_count(op, n) * (int64_t)sizeof(uint16_t);
  return (bytes + QUANT_LINE - 1) / QUANT_LINE * QUANT_LINE;
}

/* Words of codes of a frame. */
CODEC_FN int64_t quant_words(const struct quantise *op)
{
  return quant_frame(op) / quant_chunk_of(op->rule);
}

CODEC_FN int64_t quant_bytes(const struct quantise *op, int64_t n)
{
  return quant_scale_bytes(op, n) + quant_frames(op, n) * quant_words(op) * 4;
}
