/* Stochastic powers of two (Horvath et al. 2019, arXiv:1905.10988): a magnitude goes up to the next
 * power of two with the probability that makes the mean the element. The scale is the power of two
 * in the largest magnitude of a block. A code is a sign, and the number of halvings of four times
 * the scale, or 0 for zero. Numbers below 2^-125 times the scale become 0. */
#ifndef SLUICE_COMPRESS_RULE_NATURAL_H
#define SLUICE_COMPRESS_RULE_NATURAL_H

enum { natural_bits = 8, natural_scales = 1, natural_needs = QUANT_RANDOM };

QUANT_FN struct quant_scale natural_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  const float power = quant_float(quant_bits(s.max) & 0x7f800000); /* 0 if it is subnormal */
  const struct quant_scale scale = {{power, 0}, 0};
  return scale;
}

QUANT_FN uint32_t natural_code(float x, struct quant_scale scale, const struct quantise *op,
                               uint32_t bits)
{
  (void)op;
  const uint32_t top = (quant_bits(scale.at[0]) >> 23) + 2;
  const uint32_t magnitude = quant_bits(x) & 0x7fffffff;
  /* The mantissa is the probability, in steps of 2^-16. */
  const uint32_t power = (magnitude + (bits << 7) + 64) >> 23;
  const uint32_t code = power > 0 && top - power < 128 ? top - power : 0;
  return code | (x < 0 ? 0x80 : 0);
}

QUANT_FN float natural_value(uint32_t code, struct quant_scale scale)
{
  const uint32_t steps = code & 0x7f, power = steps ? (129 - steps) << 23 : 0;
  return quant_float(power | (code & 0x80) << 24) * scale.at[0];
}

#endif
