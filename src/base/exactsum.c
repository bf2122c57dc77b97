/* Digits of 32 bits in words of 64. A carry waits in its word until exactsum_normalize(). */
#include "base/exactsum.h"

#include <math.h>
#include <string.h>

/* Digit d is worth 2^(32 d - 1074): the lowest bit is the smallest subnormal, digit 65 ends above
 * the largest double, and the digits above it take the carries. Normalized: digits 0..66 in [0,
 * 2^32), the top digit holds the sign. */
enum { TOP = EXACTSUM_DIGITS - 1 };
static const int64_t digit_mask = 0xffffffff;

_Static_assert(sizeof(struct exactsum) == EXACTSUM_WORDS * sizeof(int64_t),
               "an accumulator is an array of int64 to the integer all-reduce");

void exactsum_zero(struct exactsum *sum)
{
  *sum = (struct exactsum){0};
}

static void add_special(struct exactsum *sum, double x)
{
  if (isnan(x))
    sum->nan++;
  else if (x > 0)
    sum->pos_inf++;
  else
    sum->neg_inf++;
}

void exactsum_add(struct exactsum *sum, double x)
{
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int exponent = (int)(bits >> 52 & 0x7ff);
  uint64_t mantissa = bits & ((UINT64_C(1) << 52) - 1);
  if (exponent == 0x7ff) {
    add_special(sum, x);
    return;
  }
  if (exponent > 0)
    mantissa |= UINT64_C(1) << 52;
  int place = exponent > 0 ? exponent - 1 : 0;
  unsigned __int128 shifted = (unsigned __int128)mantissa << (place & 31);
  int64_t sign = bits >> 63 ? -1 : 1, *digit = sum->digit + (place >> 5);
  digit[0] += sign * (int64_t)((uint64_t)shifted & (uint64_t)digit_mask);
  digit[1] += sign * (int64_t)((uint64_t)(shifted >> 32) & (uint64_t)digit_mask);
  digit[2] += sign * (int64_t)(uint64_t)(shifted >> 64);
}

void exactsum_normalize(struct exactsum *sum)
{
  for (int d = 0; d < TOP; d++) {
    sum->digit[d + 1] +=
        sum->digit[d] >>
        32; /* arithmetic: rounds towards minus infinity, so that what stays is not negative */
    sum->digit[d] &= digit_mask;
  }
}

void exactsum_merge(struct exactsum *sum, const struct exactsum *other)
{
  for (int d = 0; d < EXACTSUM_DIGITS; d++)
    sum->digit[d] += other->digit[d];
  sum->nan += other->nan;
  sum->pos_inf += other->pos_inf;
  sum->neg_inf += other->neg_inf;
}

static unsigned bit_at(const struct exactsum *sum, int bit)
{
  return (unsigned)(sum->digit[bit >> 5] >> (bit & 31)) & 1;
}

static int any_below(const struct exactsum *sum, int bit)
{
  for (int d = 0; d < bit >> 5; d++)
    if (sum->digit[d])
      return 1;
  return (sum->digit[bit >> 5] & ((INT64_C(1) << (bit & 31)) - 1)) != 0;
}

/* The 53 bits from `bit` upwards. */
static uint64_t mantissa_at(const struct exactsum *sum, int bit)
{
  unsigned __int128 window = 0;
  for (int d = 2; d >= 0; d--)
    window = window << 32 | (uint64_t)sum->digit[(bit >> 5) + d];
  return (uint64_t)(window >> (bit & 31)) & ((UINT64_C(1) << 53) - 1);
}

/* The magnitude of a normalized sum that is not negative, rounded to nearest even, as the bits of a
 * double. */
static uint64_t round_magnitude(const struct exactsum *sum)
{
  const uint64_t infinity = UINT64_C(0x7ff) << 52;
  int top = TOP;
  while (top > 0 && sum->digit[top] == 0)
    top--;
  if (top > 65)
    return infinity;
  if (sum->digit[top] == 0)
    return 0;
  int last = 32 * top + 63 - __builtin_clzll((uint64_t)sum->digit[top]) -
             52; /* place of the last of 53 bits */
  if (last <= 0) /* at most 53 bits long: exact, and its integer is its own encoding */
    return mantissa_at(sum, 0);
  if (last > 0x7fd)
    return infinity;
  uint64_t mantissa = mantissa_at(sum, last);
  uint64_t up = bit_at(sum, last - 1) && ((mantissa & 1) || any_below(sum, last - 1));
  return ((uint64_t)last << 52) + mantissa +
         up; /* the leading bit adds 1 to the exponent field; so does a carry out of the mantissa */
}

double exactsum_value(const struct exactsum *sum)
{
  if (sum->nan || (sum->pos_inf && sum->neg_inf))
    return NAN;
  if (sum->pos_inf || sum->neg_inf)
    return sum->pos_inf ? INFINITY : -INFINITY;

  struct exactsum magnitude = *sum;
  exactsum_normalize(&magnitude);
  int negative = magnitude.digit[TOP] < 0;
  if (negative) {
    for (int d = 0; d < EXACTSUM_DIGITS; d++)
      magnitude.digit[d] = -magnitude.digit[d];
    exactsum_normalize(&magnitude);
  }
  uint64_t bits = round_magnitude(&magnitude);
  double value;
  memcpy(&value, &bits, sizeof value);
  return negative ? -value : value;
}
