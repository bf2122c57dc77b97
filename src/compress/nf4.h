/* NormalFloat4 of vectors that are split over ranks. Their codes and magnitudes are made first.
 * Then all ranks agree on scales, and complete their messages (rule/nf4.h). The memory is the
 * host's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/exactsum.h"

extern const struct codec_ops codec_nf4;

/* A parameter of a vector, in blocks. Parameters are in the order of the vector, and the first one
 * begins at block 0. */
struct nf4_param {
  int64_t begin, blocks;
  int64_t scale; /* where its mean is in the scales of the vector; groups follow */
};

/* The magnitudes of blocks [begin, begin + blocks) of a vector. */
struct nf4_cut {
  int params;
  const struct nf4_param *param;
  int64_t begin, blocks;
  const float *magnitude;
};

/* Numbers in the scales of a parameter. Pure. */
int64_t nf4_scales(int64_t blocks);

/* The mean of a parameter is NaN as long as it is not known. The functions below leave scales with
 * known means as they are. */

/* sum[p] = the exact sum of magnitudes of parameter p in the cut, normalized. Local. */
void nf4_sum(const struct nf4_cut *cut, struct exactsum *sum);
/* scales = means, from sums of whole parameters, and the largest deviations from them in the cut.
 * The largest deviation of a whole group is a maximum over cuts. Local. */
void nf4_scale(const struct nf4_cut *cut, const struct exactsum *sum, float *scales);
/* Completes the message of the cut, which has n elements. `exact`, per parameter: magnitudes were
 * decoded from a message with these scales, and their codes are chosen to decode to the same
 * values. Local. */
void nf4_complete(const struct nf4_cut *cut, const float *scales, const bool *exact, int64_t n,
                  void *message);
