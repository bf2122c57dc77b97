/* Sparse messages: the arguments of the operations select and scatter of a device, and the rules
 * of selection. C and CUDA C++ include this page. It uses nothing but the C library.
 *
 * A vector is cut into blocks of `block` elements. The last one may be shorter. A message has
 * `keep` slots per block. A slot is an index within the block and a value. An unused slot has
 * index SELECT_UNUSED and value 0. Instead of indices a message may have a bit per element: the
 * i-th bit that is set stands for the i-th slot.
 *
 * A keyed rule gives each element a key below 2^31. The slots of a block hold the `keep` elements
 * of the largest keys, in ascending order of index. Among equal keys, lower indices come first. A
 * key of 0 is never chosen. Rule NAME defines
 *   NAME_key(op, x)  the key of an element: that of 0 is 0
 *   NAME_ranked      0: all keys are 0 or 1, so no search for the smallest chosen key is needed
 * randomk needs no keys: positions follow from a seed, and no indices travel. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bits.h"
#include "compress/rule/codecs.h"

#define SELECT_ENUM(name, ...) SELECT_##name,
enum select_rule { CODEC_SPARSIFIERS(SELECT_ENUM) };
#undef SELECT_ENUM

enum {
  SELECT_LEAST_BLOCK = 256, /* a power of two, as every block */
  SELECT_MOST_BLOCK = 32768,
  SELECT_UNUSED = 0xffff, /* no index of a block */
};

struct selection {
  enum select_rule rule;
  int64_t block, keep; /* elements; slots per block, at most as many */
  float threshold;     /* threshold: the least magnitude that is chosen */
  float scale;         /* randomk: factor of the values */
  uint64_t seed;       /* randomk */
};

/* Slots of several messages: indices and values of message i lie i * index_stride and
 * i * value_stride bytes after those of message 0. randomk has no indices. */
struct slots {
  uint16_t *indices;
  float *values;
  int64_t index_stride, value_stride;
  uint32_t *bits; /* NULL, or instead of indices: select_words() per block */
};

/* SET, ADD: out = or += the sum of all messages. SUBTRACT, ADD_EACH: message i from or to the i-th
 * vector. */
enum scatter_mode { SCATTER_SET, SCATTER_ADD, SCATTER_SUBTRACT, SCATTER_ADD_EACH };

CODEC_FN bool scatter_takes_each(enum scatter_mode mode)
{
  return mode >= SCATTER_SUBTRACT;
}

CODEC_FN int64_t select_blocks(const struct selection *op, int64_t n)
{
  return (n + op->block - 1) / op->block;
}

/* Words of the bits of a block. Element i is bit i % 32 of word i / 32. */
CODEC_FN int64_t select_words(const struct selection *op)
{
  return op->block / 32;
}

/* Elements of a block of a vector of n elements. */
CODEC_FN int64_t select_length(const struct selection *op, int64_t n, int64_t block)
{
  const int64_t rest = n - block * op->block;
  return rest < op->block ? rest : op->block;
}

/* The slots of a block of message `part`. */
CODEC_FN uint16_t *select_indices(const struct selection *op, const struct slots *slots,
                                  int64_t part, int64_t block)
{
  return (uint16_t *)((char *)slots->indices + part * slots->index_stride) + block * op->keep;
}
CODEC_FN uint32_t *select_bits(const struct selection *op, const struct slots *slots, int64_t part,
                               int64_t block)
{
  char *base = (char *)slots->bits;
  return base ? (uint32_t *)(base + part * slots->index_stride) + block * select_words(op) : NULL;
}
CODEC_FN float *select_values(const struct selection *op, const struct slots *slots, int64_t part,
                              int64_t block)
{
  return (float *)((char *)slots->values + part * slots->value_stride) + block * op->keep;
}

CODEC_FN bool select_is_valid(const struct selection *op)
{
  return op->block >= SELECT_LEAST_BLOCK && op->block <= SELECT_MOST_BLOCK &&
         (op->block & (op->block - 1)) == 0 && op->keep >= 1 && op->keep <= op->block;
}

/* Order of magnitudes as integers: infinity comes after all numbers, and NaN after infinity. */
CODEC_FN uint32_t select_magnitude(float x)
{
  return f32_bits(x) & 0x7fffffff;
}

/* A search for the smallest chosen key reads its bits in passes. `shift` is the lowest bit of a
 * pass. Bits from `known` on are known from the passes before. */
enum { SELECT_PASSES = 3, SELECT_BINS = 1 << 11 };
CODEC_FN int select_shift(int pass)
{
  return 20 - 10 * pass;
}
CODEC_FN int select_known(int pass)
{
  return pass == 0 ? 31 : 30 - 10 * pass;
}
CODEC_FN uint32_t select_digit(uint32_t key, int pass)
{
  return key >> select_shift(pass) & ((1u << (select_known(pass) - select_shift(pass))) - 1);
}

/* topk: the largest magnitudes (also Lin et al. 2018, arXiv:1712.01887). threshold: magnitudes of a
 * threshold or more. If a block has more of them than slots, its first ones are chosen. */
enum { topk_ranked = 1, threshold_ranked = 0 };

CODEC_FN uint32_t topk_key(const struct selection *op, float x)
{
  (void)op;
  return select_magnitude(x);
}

CODEC_FN uint32_t threshold_key(const struct selection *op, float x)
{
  return select_magnitude(x) >= select_magnitude(op->threshold);
}

/* randomk: the element of slot `slot`. All positions of a block differ, because the factor is odd
 * and the block is a power of two. A uniform offset selects each element with probability keep /
 * block. bits: rounding_bits(seed, number of the block in its message). */
CODEC_FN int64_t randomk_index(const struct selection *op, uint32_t bits, int64_t slot)
{
  const uint32_t factor = bits | 1, offset = bits >> 16;
  return (factor * (uint32_t)slot + offset) & (uint32_t)(op->block - 1);
}
