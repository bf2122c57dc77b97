/* Floating point of 8 bits, 4 bits of exponent and 3 of mantissa (Micikevicius et al. 2022,
 * arXiv:2209.05433). The largest magnitude of a block is at most 448: no code is an
 * infinity or NaN. */
#ifndef SLUICE_COMPRESS_RULE_E4M3_H
#define SLUICE_COMPRESS_RULE_E4M3_H

enum { e4m3_codes = 256, e4m3_scales = 1, e4m3_needs = 0, e4m3_block = 256 };

QUANT_FN struct quant_scale e4m3_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  return quant_steps(s.max, 448);
}

QUANT_FN uint32_t e4m3_code(float x, struct quant_scale scale, const struct quantise *op,
                            uint32_t bits)
{
  (void)op, (void)bits;
  return quant_minifloat(x * scale.inverse, 3, 120);
}

QUANT_FN float e4m3_value(uint32_t code, struct quant_scale scale)
{
  return quant_from_minifloat(code, 3, 120) * scale.at[0];
}

#endif
