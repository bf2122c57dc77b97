/* The inner loops, once for each instruction set; the best that the processor has is chosen when
 * the device is created. All variants of a loop over a row, and of an optimizer, give bitwise
 * identical results. Sums run in LANES interleaved partial sums for any vector width, which are
 * then added as a tree. Nothing is contracted into fused multiply-adds. So each variant is a test
 * of the others. Matrix products are fused on purpose: all agree except "generic", which rounds
 * each product. */
#ifndef SLUICE_DEVICE_HOST_KERNELS_H
#define SLUICE_DEVICE_HOST_KERNELS_H

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

  void (*add)(int64_t n, const float *a, const float *b, float *out); /* out may be a or b */
  void (*add_around)(int64_t n, const float *a, const float *b,
                     float *out); /* stores to `out` bypass the caches if it is aligned to LANES
                                     floats, because it is not read soon */
  void (*scale)(int64_t n, float factor, float *x);
  float (*dot)(int64_t n, const float *a, const float *b);
  double (*sum_squares)(int64_t n, const float *x);

  void (*bias_gelu)(int64_t n, const float *bias, float *aux,
                    float *c);                          /* aux = c + bias; c = gelu(aux) */
  void (*dgelu)(int64_t n, const float *aux, float *c); /* c *= gelu'(aux) */

  /* One piece of a row. A layer norm has one per row. dgamma += the row's part of the sum, if not
   * NULL, except in a layer norm. */
  void (*norm)(const struct row_norm *op, int64_t row, int64_t group);
  void (*norm_backward)(const struct row_norm_backward *op, int64_t row, int64_t group,
                        float *dgamma);
  /* The sums of a layer norm, in columns [begin, end). Rows before `row` are in dgamma and dbeta.
   */
  void (*norm_sums)(const struct row_norm_backward *op, int64_t row, int64_t rows, int64_t begin,
                    int64_t end);

  /* Sums over rows, row after row, of `n` columns of a matrix with leading dimension ld. */
  void (*column_sums)(int64_t rows, int64_t n, int64_t ld, const float *d, bool accumulate,
                      float *sum);

  /* cosine and sine of the fp32 product position * inv_freq[i]; (low[i], high[i]) turned by them */
  void (*angles)(int64_t n, float position, const float *inv_freq, float *cosine, float *sine);
  void (*rotate)(int64_t n, const float *cosine, const float *sine, float *low, float *high);

  void (*swiglu)(int64_t n, const float *g, const float *u, float *y);
  /* y may be NULL, or dy; dg and du may be g and u */
  void (*swiglu_backward)(int64_t n, const float *g, const float *u, const float *dy, float *dg,
                          float *du, float *y);

  /* max = the largest of s and max; s = exp(s - max); returns the sum. */
  float (*softmax)(int64_t n, float *s, float *max);
  /* s = exp(s - lse), the probabilities p; dp = p * (dp - delta), the gradient by the scores */
  void (*softmax_backward)(int64_t n, float lse, float delta, float *s, float *dp);
  /* logits = factor * softmax(logits) if `gradient`; returns log of the sum of exponentials */
  double (*log_sum_exp)(int64_t n, bool gradient, float factor, float *logits);

  /* Between fp32, bf16 and fp16, to nearest; not in place */
  void (*convert)(int64_t n, enum dtype from, const void *src, enum dtype to, void *dst);

  /* One pass over n elements. The copy is stored around the caches. */
  void (*update)(int64_t n, const struct update_pass *pass, const struct update_arrays *a);
  /* The loads and stores of update() without its arithmetic, to measure the memory bandwidth. Only
   * the copy changes, to zeros. n is a multiple of 32, arrays begin cache lines, and only copy may
   * be NULL. */
  void (*update_traffic)(int64_t n, const struct update_pass *pass, const struct update_arrays *a);

  float (*max_magnitude)(int64_t n, const float *x); /* as device_ops */
  /* One frame of a message from m elements. number: of the frame among all frames of all
   * messages. */
  void (*quantise)(const struct quantise *op, int64_t number, int64_t m, const float *x,
                   struct quant_frame to);
  /* m elements of out from one frame of each of `parts` messages, `stride` bytes apart. */
  void (*dequantise)(const struct quantise *op, int parts, int64_t stride, struct quant_frame from,
                     enum quant_mode mode, int64_t m, float *out);

  /* One block of a message (compress/rule/exponent.h) of m elements: its form, its data of that
   * form, and the elements from these. The last one is false, and writes nothing, if the data
   * do not fit the form. */
  uint32_t (*exponent_measure)(int64_t m, const float *x);
  void (*exponent_pack)(uint32_t form, int64_t m, const float *x, void *to);
  bool (*exponent_unpack)(uint32_t form, int64_t m, const void *from, float *out);

  /* Low-rank messages (compress/rule/lowrank.h). x has n elements, followed by zeros.
   * sum[rank][block] = C^T M of `rows` rows of x, with coefficients c[rows][rank] */
  void (*lowrank_collect)(const struct lowrank *op, int64_t rows, int64_t n, const float *x,
                          const float *c, float *sum);
  /* last: no other round follows */
  void (*lowrank_orthonormalise)(const struct lowrank *op, bool last, float *basis);
  /* out[i] = the product of one row x and row i of the basis, i < rank */
  void (*lowrank_project)(const struct lowrank *op, int64_t n, const float *x, const float *basis,
                          int rank, float *out);
  /* m elements of a row of out from this row of `parts` messages */
  void (*lowrank_expand)(const struct lowrank *op, int parts, const struct lowrank_row *row,
                         enum quant_mode mode, int64_t m, float *out);

  /* Matrix products (kernels_gemm.h). Panels have tile_rows rows of a, or tile_columns columns of
   * b. A tile of c comes from one panel of each. With `along`, the panel's lanes are adjacent in
   * memory, otherwise they are ld apart. Lanes from n on are zero. */
  int tile_rows, tile_columns;
  void (*pack_rows)(bool along, int64_t n, int64_t k, const float *from, int64_t ld, float *to);
  void (*pack_columns)(bool along, int64_t n, int64_t k, const float *from, int64_t ld, float *to);
  /* c[rows, columns], of which one tile is computed, = (accumulate ? c : 0) + a b. */
  void (*multiply)(int64_t k, const float *a, const float *b, int64_t rows, int64_t columns,
                   bool accumulate, struct target c);
  /* A product of unpacked operands, for 1 <= m <= NARROW. It reads
   * neither trans_a nor alpha. */
  void (*multiply_narrow)(const struct gemm *g);
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

/* Variants that this processor can run, from plain to wide. NULL past the end. The last one is the
 * best. */
const struct kernels *kernels_variant(int index);
const struct kernels *kernels_best(void);

#endif
