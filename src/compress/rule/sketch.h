/* Sketched messages: the arguments of the operations sketch and unsketch of a device, and the
 * layout of a message. C and CUDA C++ include this page. It uses nothing but the C library.
 *
 * A count sketch (Charikar et al. 2002) has SKETCH_ROWS rows of counters. In each row a hash gives
 * an element a column and a sign, and the counter adds the signed element. The estimate of an
 * element is the median of its signed counters, one of each row.
 *
 * Sketched-SGD (Ivkin et al. 2019, arXiv:1903.04488) adds the sketches of all ranks, and asks for
 * the exact values of the largest estimates in a second round. This codec differs: each message is
 * decoded by itself, there is no second round, and a sum is over decoded messages. So the sender
 * knows the decoded message, and feedback keeps exactly its error.
 *
 * A vector is cut into blocks of `block` elements. The last one may be shorter. Each block has a
 * struct sketch_head and SKETCH_ROWS * columns counters, which lie one after another. An element
 * decodes to scale * estimate if the magnitude of its estimate is `threshold` or more, and to 0
 * otherwise. The sender chooses the threshold so that `keep` elements are decoded, and more if
 * estimates are equal. It chooses the scale by least squares, so a message is never further from
 * the block than zeros are. The scale is at most one step.
 *
 * Counters are integers, so their sums have no order. An element is rounded to steps of
 * largest / limit, limit = 2^30 / block. A counter adds at most `block` elements of at most `limit`
 * steps, which is 2^30 and fits. An estimate beyond the limit is cut to it.
 *
 * A block that is not finite has a scale of NaN and a threshold of 0. A block without an element of
 * 2^-96 or more is sent as zeros. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bits.h"
#include "compress/rule/codecs.h"

enum {
  SKETCH_ROWS = 3,
  SKETCH_WIDTH = 4, /* columns per element that arrives */
  SKETCH_LEAST_BLOCK = 512,
  SKETCH_MOST_BLOCK = 4096,
  SKETCH_MOST_KEEP = SKETCH_MOST_BLOCK / 16,
  SKETCH_LANES = 256, /* lane l of a sum adds elements l, l + 256, ...; then halves are added */
  SKETCH_TOP_BIT = 21 /* of a limit */
};

#define SKETCH_LEAST 0x1p-96f

struct sketch {
  int64_t block, keep; /* elements; of which so many arrive */
  uint64_t seed;
};

struct sketch_head {
  float scale;
  int32_t threshold;
};

/* The hash key of a row of a block: Dietzfelbinger 1996, multiply-shift, which is pairwise
 * independent. */
struct sketch_key {
  uint64_t factor, offset;
};

CODEC_FN bool sketch_is_valid(const struct sketch *op)
{
  return op->block >= SKETCH_LEAST_BLOCK && op->block <= SKETCH_MOST_BLOCK &&
         (op->block & (op->block - 1)) == 0 && op->keep >= 1 && op->keep <= op->block / 16;
}

CODEC_FN int64_t sketch_blocks(const struct sketch *op, int64_t n)
{
  return (n + op->block - 1) / op->block;
}

/* Elements of a block of a vector. */
CODEC_FN int64_t sketch_length(const struct sketch *op, int64_t n, int64_t block)
{
  const int64_t rest = n - block * op->block;
  return rest < op->block ? rest : op->block;
}

/* Columns of a row. */
CODEC_FN uint32_t sketch_columns(const struct sketch *op)
{
  return (uint32_t)(SKETCH_WIDTH * op->keep);
}

CODEC_FN int64_t sketch_block_bytes(const struct sketch *op)
{
  return (int64_t)sizeof(struct sketch_head) + SKETCH_ROWS * (int64_t)sketch_columns(op) * 4;
}

CODEC_FN int64_t sketch_bytes(const struct sketch *op, int64_t n)
{
  return sketch_blocks(op, n) * sketch_block_bytes(op);
}

CODEC_FN int32_t sketch_limit(const struct sketch *op)
{
  return (int32_t)((1 << 30) / op->block);
}

/* SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
CODEC_FN uint64_t sketch_mix(uint64_t x)
{
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

CODEC_FN struct sketch_key sketch_key_make(const struct sketch *op, int64_t block, int row)
{
  const uint64_t word =
      sketch_mix(op->seed ^ sketch_mix((uint64_t)block * SKETCH_ROWS + (uint64_t)row));
  const struct sketch_key key = {sketch_mix(word), sketch_mix(~word)};
  return key;
}

/* 32 bits of element i of a block: the sign, and 31 bits that choose the column. */
CODEC_FN uint32_t sketch_hash(struct sketch_key key, uint32_t i)
{
  return (uint32_t)((key.factor * i + key.offset) >> 32);
}
CODEC_FN uint32_t sketch_column(uint32_t hash, uint32_t columns)
{
  return (uint32_t)((uint64_t)(hash & 0x7fffffff) * columns >> 31);
}
CODEC_FN int32_t sketch_signed(uint32_t hash, int32_t value)
{
  return hash >> 31 ? -value : value;
}

/* The nearest integer, ties to even. |x| < 2^22. */
CODEC_FN int32_t sketch_round(float x)
{
  const float shifted = x + 12582912.0f; /* 1.5 * 2^23: units are the last bit */
  return (int32_t)(f32_bits(shifted) - 0x4b400000);
}

CODEC_FN int32_t sketch_least(int32_t a, int32_t b)
{
  return a < b ? a : b;
}
CODEC_FN int32_t sketch_most(int32_t a, int32_t b)
{
  return a > b ? a : b;
}
CODEC_FN int32_t sketch_magnitude(int32_t x)
{
  return x < 0 ? -x : x;
}

/* The estimate of element i from the counters of its block. Damaged counters give some estimate
 * within the limit. */
CODEC_FN int32_t sketch_estimate(const struct sketch_key *key, uint32_t columns, int32_t limit,
                                 const int32_t *counters, uint32_t i)
{
  int32_t at[SKETCH_ROWS];
  for (int row = 0; row < SKETCH_ROWS; row++) {
    const uint32_t hash = sketch_hash(key[row], i);
    const int32_t counter = counters[row * columns + sketch_column(hash, columns)];
    at[row] = sketch_signed(hash, sketch_most(sketch_least(counter, limit), -limit));
  }
  return sketch_most(sketch_least(at[0], at[1]), sketch_least(sketch_most(at[0], at[1]), at[2]));
}

CODEC_FN float sketch_value(struct sketch_head head, int32_t estimate)
{
  return sketch_magnitude(estimate) >= head.threshold ? (float)estimate * head.scale : 0;
}

/* step: of a rounded element. product, square: sums over the elements that arrive, of element *
 * estimate, and of the estimate's square. */
CODEC_FN float sketch_scale(float step, double product, double square)
{
  const double best = square > 0 ? product / square : 0;
  return best <= 0 ? 0 : best >= (double)step ? step : (float)best;
}
