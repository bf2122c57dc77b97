/* Floating point of 8 bits, 5 bits of exponent and 2 of mantissa (Micikevicius et al. 2022,
 * arXiv:2209.05433). The largest magnitude of a block is at most 57344: no code is an
 * infinity or NaN. */
#ifndef SLUICE_COMPRESS_RULE_E5M2_H
#define SLUICE_COMPRESS_RULE_E5M2_H

enum { e5m2_codes = 256, e5m2_scales = 1, e5m2_needs = 0, e5m2_block = 256 };

QUANT_FN struct quant_scale e5m2_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  return quant_steps(s.max, 57344);
}

QUANT_FN uint32_t e5m2_code(float x, struct quant_scale scale, const struct quantise *op,
                            uint32_t bits)
{
  (void)op, (void)bits;
  return quant_minifloat(x * scale.inverse, 2, 112);
}

QUANT_FN float e5m2_value(uint32_t code, struct quant_scale scale)
{
  return quant_from_minifloat(code, 2, 112) * scale.at[0];
}

#endif
