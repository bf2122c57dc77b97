/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
 * numbers: as easy as 1, 2, 3", SC11). A draw is a pure function of (key, counter): no state, the
 * same on every rank and thread count. */
#pragma once

#include <stdint.h>

struct rng_key {
  uint32_t k[2];
};

/* A key for one purpose, from the run's seed and a purpose string ("init", "order", "sample"). */
struct rng_key rng_key_make(uint64_t seed, const char *purpose);

/* The 128-bit block number (hi, lo) of the stream `key`. */
void rng_block(struct rng_key key, uint64_t hi, uint64_t lo, uint32_t out[4]);

double rng_uniform(struct rng_key key, uint64_t hi, uint64_t lo); /* [0, 1), 53 bits */

/* out[i] = mean + std * normal number (first + i) of stream (key, hi), i < n: Box-Muller on pairs,
 * each element a pure function of its index. */
void rng_fill_normal(struct rng_key key, uint64_t hi, uint64_t first, int64_t n, float mean,
                     float std, float *out);

/* A pseudo-random permutation of 0..n-1 (keyed Feistel network with cycle walking): image of i.
 * O(1) memory. n >= 1, i < n. */
uint64_t rng_permute(struct rng_key key, uint64_t hi, uint64_t n, uint64_t i);
