/* The inner loops, once for each instruction set; the best that the processor has is chosen when
 * the device is created. All variants of a loop over a row, and of an optimizer, give bitwise
 * identical results. Sums run in LANES interleaved partial sums for any vector width, which are
 * then added as a tree. Nothing is contracted into fused multiply-adds. So each variant is a test
 * of the others. Matrix products are fused on purpose: all agree except "generic", which rounds
 * each product. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "device/moments.h"
#include "device/rounding.h"

/* `op` and the values that a range of its elements shares. */
struct update_pass {
  struct update op;
  uint32_t first;   /* number of element 0; numbers do not go past 2^32 */
  float grad_scale; /* instead of op's, and of the outcome's */
  struct rounding_key states_key, master_key;
};

enum { UPDATE_BLOCKED = 1 << 11 }; /* most elements of a pass with states in blocks */

/* As device.h's update() has them. */
struct update_arrays {
  void *master;
  const void *grad;
  void *state[RULE_STATES], *copy;
};

enum {
  LANES = 16,
  STRIP = 4 * LANES,
  NARROW = 8
}; /* STRIP: columns that the column sums take at once */

/* A row in low-rank messages `stride` bytes apart: the bases and its coefficients. */
struct lowrank_row {
  const float *basis, *coefficients;
  int64_t stride;
};

/* A frame in a message (compress/rule/quantise.h). scale: of its first block. A block's scales lie
 * `apart` scales apart. */
struct quant_frame {
  int64_t apart;
  uint16_t *scale;
  uint32_t *words;
};

/* A matrix in memory: its first element, and the elements between rows. */
struct view {
  const float *at;
  int64_t ld;
};
struct target {
  float *at;
  int64_t ld;
};
/* c[m,n] = alpha op(a) op(b) + (accumulate ? c : 0), row-major. */
struct gemm {
  bool trans_a, trans_b, accumulate;
  int64_t m, n, k;
  float alpha;
  struct view a, b;
  struct target c;
};

struct kernels {
  const char *name; /* "generic", "avx2", "avx512", "neon" */

  int tile_rows, tile_columns; /* of matrix products */
#define KERNEL(result, name, parameters) result(*name) parameters;
#include "device/host/kernels_list.h"
};

/* Size of the left part of a sum over `count` > 1 parts: the largest power of two below it, so that
 * groups of 2^k neighbours are subtrees. */
static inline int kernels_left(int count)
{
  int left = 1;
  while (left < count - left)
    left *= 2;
  return left;
}

/* The tables that kernels.c chooses from. */
extern const struct kernels kernels_generic;
#if defined __x86_64__
extern const struct kernels kernels_avx2, kernels_avx512;
#elif defined __aarch64__
extern const struct kernels kernels_neon;
#endif

/* Variants that this processor can run, from plain to wide. NULL past the end. The last one is the
 * best. */
const struct kernels *kernels_variant(int index);
const struct kernels *kernels_best(void);
