/* Messages of exact vectors of fp32 or bf16 with short exponents: the layout, for C and CUDA C++.
 * It uses nothing but the C library. It uses integers only, so each bit pattern is restored. An
 * element of bf16 is the upper half of a word, whose lower half is zero. `size` is that of an
 * element.
 *
 * Exponents of neighbours are similar (Hershcovitch et al. 2024, arXiv:2411.05239; Zhang et al.
 * 2025, arXiv:2504.11651). A vector is cut into blocks of 1024 elements. The last one may be
 * shorter. An element has a code of `width` bits: how far its exponent is below the largest one of
 * the block. The largest code is an escape, and the exponent follows in a byte of its own. For
 * normally distributed elements width is 3, and an exponent takes 3.2 bits with escapes. Its
 * entropy is 2.5 bits. Each block is decoded by itself.
 *
 * A message is a header, a table with an entry per block, and the data of the blocks. Data of a
 * block with m elements, padded with zeros to a multiple of 16 bytes:
 *
 * - Planes: width * 32 words. Bit k of word l of plane b is bit b of the code of element 32 k + l.
 * - Low, only of fp32: the low 16 bits of each of the m elements.
 * - High: m bytes with the sign and the upper 7 bits of the fraction.
 * - Escaped exponents: one byte each, of elements l, 32 + l, ... for l = 0, then for l = 1, and so
 *   on.
 *
 * A block that would not become shorter holds its elements as they are. A block of zeros holds
 * nothing. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "compress/rule/codecs.h"

#define EXPONENT_USUAL_BITS 3.2 /* of an exponent, for normally distributed elements */

enum {
  EXPONENT_BLOCK = 1024,
  EXPONENT_LANES = 32,
  EXPONENT_ALIGN = 16, /* of a message, and of the data of a block */
  /* Widths of 0 to 8 are those of codes. A width of 8 needs no escape. */
  EXPONENT_WHOLE = 8,
  EXPONENT_RAW = 9,
  EXPONENT_ZEROS = 10
};

#define EXPONENT_MAGIC UINT64_C(0x31544e454e4f5058)

struct exponent_header {
  int64_t bytes; /* of the message, this header included */
  int64_t n;
  uint64_t magic, zero;
};

struct exponent_entry {
  uint32_t form; /* width | largest exponent << 8 | number of escapes << 16 */
  uint32_t at;   /* where the data begin in the message, in units of 16 bytes */
};

/* Statistics of a block of m elements. largest: the largest exponent. */
struct exponent_stats {
  uint32_t largest, any; /* any: all elements, or'ed */
  uint32_t far[8];       /* far[w]: elements with exponents that are 2^w - 1 or more below it */
};

CODEC_FN int exponent_width(uint32_t form)
{
  return (int)(form & 0xff);
}
CODEC_FN uint32_t exponent_largest(uint32_t form)
{
  return form >> 8 & 0xff;
}
CODEC_FN uint32_t exponent_escapes(uint32_t form)
{
  return form >> 16;
}

CODEC_FN int64_t exponent_round(int64_t bytes)
{
  return (bytes + EXPONENT_ALIGN - 1) / EXPONENT_ALIGN * EXPONENT_ALIGN;
}

CODEC_FN int64_t exponent_blocks(int64_t n)
{
  return (n + EXPONENT_BLOCK - 1) / EXPONENT_BLOCK;
}

/* Elements of a block of a vector. */
CODEC_FN int64_t exponent_length(int64_t n, int64_t block)
{
  const int64_t rest = n - block * EXPONENT_BLOCK;
  return rest < EXPONENT_BLOCK ? rest : EXPONENT_BLOCK;
}

/* Header and table. */
CODEC_FN int64_t exponent_table_bytes(int64_t n)
{
  return exponent_round((int64_t)sizeof(struct exponent_header) +
                        exponent_blocks(n) * (int64_t)sizeof(struct exponent_entry));
}

/* Capacity: all blocks are raw. */
CODEC_FN int64_t exponent_bytes(int64_t n, int size)
{
  return exponent_table_bytes(n) + exponent_round(size * n);
}

CODEC_FN int64_t exponent_low_at(int width)
{
  return width * EXPONENT_LANES * 4;
}

CODEC_FN int64_t exponent_high_at(int width, int64_t m, int size)
{
  return exponent_low_at(width) + (size - 2) * m;
}

/* Bytes of the data before the padding. */
CODEC_FN int64_t exponent_used(uint32_t form, int64_t m, int size)
{
  const int width = exponent_width(form);
  return width == EXPONENT_ZEROS ? 0
         : width == EXPONENT_RAW ? size * m
                                 : exponent_high_at(width, m, size) + m + exponent_escapes(form);
}

CODEC_FN int64_t exponent_data_bytes(uint32_t form, int64_t m, int size)
{
  return exponent_round(exponent_used(form, m, size));
}

/* The width that takes the fewest bytes, the smallest of several. */
CODEC_FN uint32_t exponent_form(const struct exponent_stats *s, int64_t m, int size)
{
  int best = EXPONENT_WHOLE;
  uint32_t least = EXPONENT_WHOLE * EXPONENT_LANES * 4, escapes = 0;
  if (s->any == 0)
    return EXPONENT_ZEROS;
  for (int width = EXPONENT_WHOLE - 1; width >= 1; width--) {
    const uint32_t bytes = (uint32_t)width * EXPONENT_LANES * 4 + s->far[width];
    if (bytes <= least) {
      least = bytes;
      best = width;
      escapes = s->far[width];
    }
  }
  if (s->far[1] == 0) {
    best = 0;
    escapes = 0;
  }
  const uint32_t form = (uint32_t)best | s->largest << 8 | escapes << 16;
  return exponent_data_bytes(form, m, size) < exponent_round(size * m) ? form : EXPONENT_RAW;
}

/* Whether an entry describes data of m elements within `bytes` bytes. */
CODEC_FN bool exponent_is_valid(struct exponent_entry entry, int64_t m, int size, int64_t first,
                                int64_t bytes)
{
  const int64_t at = (int64_t)entry.at * EXPONENT_ALIGN;
  return exponent_width(entry.form) <= EXPONENT_ZEROS && exponent_escapes(entry.form) <= m &&
         at >= first && at <= bytes && exponent_data_bytes(entry.form, m, size) <= bytes - at;
}

CODEC_FN bool exponent_header_is_valid(const struct exponent_header *header, int64_t n, int size)
{
  return header->magic == EXPONENT_MAGIC && header->n == n &&
         header->bytes >= exponent_table_bytes(n) && header->bytes <= exponent_bytes(n, size);
}

CODEC_FN uint32_t exponent_join(uint32_t exponent, uint32_t high, uint32_t low)
{
  return (high & 0x80) << 24 | (exponent & 0xff) << 23 | (high & 0x7f) << 16 | low;
}
