/* Operands of matrix products in fp8, one bit-exact definition for all devices: C and CUDA include
 * this.
 *
 * A code is e4m3 (Micikevicius et al. 2022, arXiv:2209.05433), rounded to nearest, ties to even.
 * Groups of elements share a scale, as in DeepSeek-V3 (2024, arXiv:2412.19437): a tile of 128
 * elements along k, or a block of 128 x 128. The scale is the smallest power of two with which the
 * largest magnitude of the group is at most 448. So no code saturates, scaling is exact, and the
 * value of a code is exact in bf16. Only what rounds to 2^128 becomes an infinity.
 *
 * Some devices read one scale per operand. fp8_unify() codes an operand in groups again, with the
 * largest of its scales. Only codes that become subnormal are rounded. A weight in codes has one
 * scale from the start, see fp8_scales() in device.h.
 *
 * A group of zeros has zeros as codes. Scales are at least 2^-126, with which subnormals of bf16
 * have codes too. A group with an infinity or a NaN has NaN as scale and as codes. Products that
 * read it are NaN, so the step is not finite. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "compress/rule/quantise.h"

enum { FP8_TILE = 128, FP8_NAN = 0x7f };
enum { FP8_SCALE_PITCH = 4 }; /* rows of scales of blocks are multiples of it */

/* y = x, or x^T (`transposed`), in fp8: x is [rows, columns] in the device's compute type, with
 * rows `ld` elements apart. Rows and columns are multiples of FP8_TILE. y is n x k without gaps.
 * Tiles lie along k, and the scale of tile t of row i is scale[t * n + i]. The scale of block (i,
 * t) is scale[i * pitch + t] with fp8_pitch(k). These are cuBLASLt's layouts. code and scale are
 * aligned to 16 bytes.
 *
 * given: NULL, or the scale of all blocks: NaN, or at least the scale of each of them. Only with
 * `blocks`.
 *
 * turned, turned_scale: x^T in tiles as well, from the same pass over x. NULL: not wanted. Only
 * with y = x in tiles. */
struct fp8_quantise {
  int64_t rows, columns, ld;
  const void *x;
  bool blocks, transposed;
  const float *given;
  uint8_t *code;
  float *scale;
  uint8_t *turned;
  float *turned_scale;
};

/* An operand of n x k, laid out as y above, whose groups all get the largest of their scales, in
 * place. Both sizes are multiples of FP8_TILE. If a scale is NaN, all scales and codes are. A
 * second call changes nothing. */
struct fp8_unify {
  int64_t n, k;
  bool blocks;
  uint8_t *code;
  float *scale;
};

/* Outputs in fp8 of the backward pass of SwiGLU, laid out as y above. All sizes are multiples of
 * FP8_TILE. No output overlaps gu or dy.
 *
 * gu [rows, 2 F] is the input of swiglu_backward(). dy [rows, count] has the gradients by the
 * outputs [first, first + count). A call writes only what belongs to them.
 *
 * code is the gradient by gu, in tiles. With `apart` the gradients by g and by u are two operands
 * of rows x F, one after the other. Otherwise they are one operand of rows x 2 F.
 *
 * `turned` is its transpose in tiles, or NULL. `turned_apart` says of it what `apart` says of code.
 *
 * y_turned is the transpose of SwiGLU's output in blocks, or NULL. */
struct fp8_swiglu {
  int64_t rows, F, first, count;
  const void *gu, *dy;
  bool apart, turned_apart;
  uint8_t *code;
  float *scale;
  uint8_t *turned;
  float *turned_scale;
  uint8_t *y_turned;
  float *y_turned_scale;
};

/* Elements [begin, end) of a weight, row after row. A row has `columns` elements. Their type is
 * fp32 or bf16, and fp32 is rounded to bf16 first. x and code are at element `begin`. scale: of the
 * whole weight, in blocks. Ranks that have parts of one block find its scale together. So the codes
 * are those that fp8_quantise() gives the whole weight in bf16. begin and end are multiples of 4,
 * x is aligned to 16 bytes and code to 4. */
struct fp8_part {
  int64_t columns, begin, end;
  enum dtype type;
  const void *x;
  float *scale;
  uint8_t *code;
};

/* The codes of a weight in blocks, rows x columns of them, and their transpose. Rows of the whole
 * weight have `ld` elements. */
struct fp8_turn {
  int64_t rows, columns, ld;
  const uint8_t *code;
  const float *scale;
  uint8_t *turned;
  float *turned_scale;
};

/* A lane's tally of the operands that it has coded in tiles. Operands in blocks do not count. */
struct fp8_tally {
  uint64_t saturated; /* elements of tiles with an infinity or a NaN */
  uint32_t largest;   /* bits of the largest magnitude of all other tiles */
};

QUANT_CONST int64_t fp8_pitch(int64_t k)
{
  return (k / FP8_TILE + FP8_SCALE_PITCH - 1) / FP8_SCALE_PITCH * FP8_SCALE_PITCH;
}

/* The scale of a group by the bits of its largest magnitude. 448 is 1.75 * 2^8. */
CODEC_FN float fp8_scale(uint32_t largest)
{
  const uint32_t exponent = largest >> 23, above = (largest & 0x7fffff) > 0x600000;
  if (exponent == 0xff)
    return f32_from_bits(0x7fc00000);
  return f32_from_bits((exponent + above > 8 ? exponent + above - 8 : 1) << 23);
}

/* 1 / scale, of a scale that is not NaN. */
CODEC_FN float fp8_inverse(float scale)
{
  return f32_from_bits((254u << 23) - f32_bits(scale));
}

/* |x| / scale is at most 448. */
CODEC_FN uint8_t fp8_code(float x, float inverse)
{
  return (uint8_t)quant_minifloat(x * inverse, 3, 120);
}

CODEC_FN float fp8_value(uint8_t code, float scale)
{
  return quant_from_minifloat(code, 3, 120) * scale;
}

/* The code of the same value with scale `to`, rounded to nearest, ties to even. `from` is at most
 * `to`. If `to` is NaN, so is the code. */
CODEC_FN uint8_t fp8_recode(uint8_t code, float from, float to)
{
  if (to != to || (code & 0x7f) == FP8_NAN)
    return FP8_NAN;
  return fp8_code(fp8_value(code, 1), from * fp8_inverse(to));
}
