/* Digits of 32 bits in words of 64. A carry waits in its word until exactsum_normalize(). */
#include "base/exactsum.h"

#include <math.h>

#include "base/exactsum_value.h"

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
  const int64_t mask = 0xffffffff;
  int64_t sign = bits >> 63 ? -1 : 1, *digit = sum->digit + (place >> 5);
  digit[0] += sign * (int64_t)((uint64_t)shifted & (uint64_t)mask);
  digit[1] += sign * (int64_t)((uint64_t)(shifted >> 32) & (uint64_t)mask);
  digit[2] += sign * (int64_t)(uint64_t)(shifted >> 64);
}

void exactsum_normalize(struct exactsum *sum)
{
  exactsum_carry(sum->digit);
}

void exactsum_merge(struct exactsum *sum, const struct exactsum *other)
{
  for (int d = 0; d < EXACTSUM_DIGITS; d++)
    sum->digit[d] += other->digit[d];
  sum->nan += other->nan;
  sum->pos_inf += other->pos_inf;
  sum->neg_inf += other->neg_inf;
}

double exactsum_value(const struct exactsum *sum)
{
  struct exactsum magnitude = *sum;
  return exactsum_take_value(&magnitude);
}
