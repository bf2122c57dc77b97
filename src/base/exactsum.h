/* Exact, order-independent sums of doubles: a Kulisch accumulator in carry-save form (U. Kulisch,
 * "Computer Arithmetic and Validity", 2013; digits as in J. Neal, "Fast exact summation using small
 * and large superaccumulators", 2015).
 *
 * The digits are plain integers, so the accumulators of many ranks add up with an integer
 * all-reduce. The result is bitwise identical for any number of ranks, any sharding and any order.
 * Used for the loss and for the global gradient norm. */
#pragma once

#include <stdint.h>

enum { EXACTSUM_DIGITS = 68 }; /* 32 bits of value per digit, covers the whole range of double */

struct exactsum {
  int64_t digit[EXACTSUM_DIGITS];
  int64_t nan, pos_inf, neg_inf;
}; /* an array of 71 int64: sums elementwise */
enum { EXACTSUM_WORDS = EXACTSUM_DIGITS + 3 };

void exactsum_zero(struct exactsum *sum);
void exactsum_add(struct exactsum *sum,
                  double x); /* at most 2^30 additions between calls of exactsum_normalize() */
void exactsum_normalize(
    struct exactsum *sum); /* propagate carries: call before adding accumulators to each other */
void exactsum_merge(struct exactsum *sum,
                    const struct exactsum *other); /* both normalized; at most 2^30 merges */
double exactsum_value(
    const struct exactsum *sum); /* correctly rounded; NaN or infinity if the terms have one */
