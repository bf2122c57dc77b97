/* The digits of an exact sum: their carries, and the value that they stand for. One definition for
 * all devices. C and CUDA include this.
 *
 * Digit d is worth 2^(32 d - 1074): the lowest bit is the smallest subnormal, digit 65 ends above
 * the largest double, and the digits above it take the carries. Normalized: digits 0..66 in [0,
 * 2^32), the top digit holds the sign. */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "base/bits.h"
#include "base/exactsum.h"

enum { EXACTSUM_TOP = EXACTSUM_DIGITS - 1 };

BOTH_FN void exactsum_carry(int64_t *digit)
{
  for (int d = 0; d < EXACTSUM_TOP; d++) {
    digit[d + 1] += digit[d] >> 32; /* arithmetic: rounds towards minus infinity, so that what
                                       stays is not negative */
    digit[d] &= 0xffffffff;
  }
}

BOTH_FN bool exactsum_any_below(const int64_t *digit, int bit)
{
  for (int d = 0; d < bit >> 5; d++)
    if (digit[d])
      return true;
  return (digit[bit >> 5] & ((INT64_C(1) << (bit & 31)) - 1)) != 0;
}

/* The 53 bits from `bit` upwards. */
BOTH_FN uint64_t exactsum_mantissa_at(const int64_t *digit, int bit)
{
  const int64_t *from = digit + (bit >> 5);
  const int shift = bit & 31;
  const uint64_t low = (uint64_t)from[0] | (uint64_t)from[1] << 32;
  const uint64_t window = shift ? low >> shift | (uint64_t)from[2] << (64 - shift) : low;
  return window & ((UINT64_C(1) << 53) - 1);
}

/* The magnitude of a normalized sum that is not negative, rounded to nearest even, as the bits of a
 * double. */
BOTH_FN uint64_t exactsum_round(const int64_t *digit)
{
  const uint64_t infinity = UINT64_C(0x7ff) << 52;
  int top = EXACTSUM_TOP, last;
  while (top > 0 && digit[top] == 0)
    top--;
  if (top > 65)
    return infinity;
  if (digit[top] == 0)
    return 0;
  for (last = 32 * top - 53; digit[top] >> (last + 53 - 32 * top) != 0;)
    last++;      /* place of the last of 53 bits */
  if (last <= 0) /* at most 53 bits long: exact, and its integer is its own encoding */
    return exactsum_mantissa_at(digit, 0);
  if (last > 0x7fd)
    return infinity;
  const uint64_t mantissa = exactsum_mantissa_at(digit, last);
  const bool half = digit[(last - 1) >> 5] >> ((last - 1) & 31) & 1;
  const uint64_t up = half && ((mantissa & 1) || exactsum_any_below(digit, last - 1));
  /* The leading bit adds 1 to the exponent field; so does a carry out of the mantissa. */
  return ((uint64_t)last << 52) + mantissa + up;
}

/* As exactsum_value(), but it overwrites the digits. */
BOTH_FN double exactsum_take_value(struct exactsum *sum)
{
  uint64_t bits = UINT64_C(0x7ff) << 52;
  bool negative = !sum->pos_inf;
  if (sum->nan || (sum->pos_inf && sum->neg_inf)) {
    bits |= UINT64_C(1) << 51;
    negative = false;
  } else if (!sum->pos_inf && !sum->neg_inf) {
    exactsum_carry(sum->digit);
    negative = sum->digit[EXACTSUM_TOP] < 0;
    if (negative) {
      for (int d = 0; d < EXACTSUM_DIGITS; d++)
        sum->digit[d] = -sum->digit[d];
      exactsum_carry(sum->digit);
    }
    bits = exactsum_round(sum->digit);
  }
  bits |= (uint64_t)negative << 63;
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
