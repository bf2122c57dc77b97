/* Low-rank messages: the arguments of the operations factorise and expand of a device, and the
 * order of their additions. C and CUDA C++ include this page. It uses nothing but the C library.
 *
 * A vector of n elements is a matrix M [rows][block]. Zeros fill the last row. A message has a
 * basis V [rank][block] with orthonormal or zero rows, and coefficients C [rows][rank]. It stands
 * for the product C V. C begins as random numbers. Each round computes:
 *
 *   V = C^T M, then its rows are made orthonormal
 *   C = M V^T
 *
 * Sums have one order, and no product and sum are fused. So results are bitwise identical on all
 * devices:
 *
 * - C^T M: each band of rows from zero, row after row. Bands as the device's sum_parts.
 * - Products of rows: lane l of 32 adds columns l, l + 32, ..., then lanes l and l + 16 are added,
 *   l and l + 8, and so on.
 * - C V: from zero, in ascending order of the rank. Messages as sum_parts.
 *
 * Row j of V is first scaled by a power of two, lowrank_scale(). It then loses its components along
 * all earlier rows, twice. The second time removes the rest that rounding left (Giraud et al. 2005,
 * Numerische Mathematik 101). A row that the second time makes shorter by half depends on
 * the earlier ones, so it becomes zeros. Before another round each row is scaled again, because
 * M V^T times M has the square of M's magnitude. If an element of M is not finite, all of C V is
 * not finite. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bits.h"
#include "compress/rule/codecs.h"

enum {
  LOWRANK_LANES = 32, /* a block is a multiple */
  LOWRANK_MOST_BLOCK = 16384,
  LOWRANK_MOST_RANK = 32,
  LOWRANK_LEAST_BAND = 64, /* rows */
  LOWRANK_MOST_BANDS = 128
};

struct lowrank {
  int64_t block; /* elements of a row */
  int rank, rounds;
  uint64_t seed;
};

/* Factors of several messages: those of message i lie i * stride bytes after those of message 0. */
struct factors {
  float *basis, *coefficients;
  int64_t stride;
};

CODEC_FN bool lowrank_is_valid(const struct lowrank *op)
{
  return op->block >= LOWRANK_LANES && op->block <= LOWRANK_MOST_BLOCK &&
         op->block % LOWRANK_LANES == 0 && op->rank >= 1 && op->rank <= LOWRANK_MOST_RANK &&
         op->rounds >= 1;
}

CODEC_FN int64_t lowrank_rows(const struct lowrank *op, int64_t n)
{
  return n / op->block + (n % op->block != 0);
}

/* Rows of a band of `rows` rows. The last band may have fewer. */
CODEC_FN int64_t lowrank_band(int64_t rows)
{
  const int64_t band = (rows + LOWRANK_MOST_BANDS - 1) / LOWRANK_MOST_BANDS;
  return band > LOWRANK_LEAST_BAND ? band : LOWRANK_LEAST_BAND;
}

CODEC_FN int64_t lowrank_bands(int64_t rows)
{
  return (rows + lowrank_band(rows) - 1) / lowrank_band(rows);
}

/* Floats of scratch memory of factorise(): C^T M of each band of each message. */
CODEC_FN int64_t lowrank_work(const struct lowrank *op, int64_t n, int parts)
{
  return parts * lowrank_bands(lowrank_rows(op, n)) * op->rank * op->block;
}

/* A number in [-1, 1) from random bits. */
CODEC_FN float lowrank_uniform(uint32_t bits)
{
  return (float)((int32_t)bits >> 8) * 0x1p-23f;
}

CODEC_FN uint32_t lowrank_magnitude(float x)
{
  return f32_bits(x) & 0x7fffffff;
}

/* A power of two that brings numbers of at most the magnitude `top` to at most 4. The largest one
 * is at least 2^-22 then, so no square is lost. */
CODEC_FN float lowrank_scale(uint32_t top)
{
  const uint32_t exponent = top >> 23;
  return f32_from_bits((exponent < 253 ? 254 - exponent : 1) << 23);
}

/* Whether a row of V depends on earlier ones: its squares before and after the second time. */
CODEC_FN bool lowrank_depends(float before, float after)
{
  return after < 0.25f * before || after == 0;
}
