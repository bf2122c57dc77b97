/* Picking a token from logits. */
#pragma once

#include <stdint.h>

struct sample_options {
  double temperature; /* 0: the likeliest token, among equals the one with the lowest id */
  int64_t top_k;      /* among the k likeliest; 0: all */
  double top_p;       /* of these, among the smallest set that holds this share of their probability
                         (Holtzman et al. 2019, arXiv:1904.09751); 1: all */
  uint64_t seed;
};

/* Pick from logits [V], at least one of them finite and none +inf or NaN: a pure function of them,
 * the options and the draw's number. Temperature comes first, then top_k, then top_p. Among equals
 * at a cut, lower ids come first. O(V): nothing is sorted. Scratch [V] is overwritten. Local. */
int32_t sample_token(const float *logits, int64_t V, const struct sample_options *options,
                     int64_t draw, uint64_t *scratch);
