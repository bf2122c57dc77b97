/* Integers of 11 levels, the largest magnitude of a block is 5 (the uniform scales of Wang et
 * al. 2023, arXiv:2306.10209). A word of 32 bits holds 9 digits of base 11. */
#ifndef SLUICE_COMPRESS_RULE_LEVELS11_H
#define SLUICE_COMPRESS_RULE_LEVELS11_H

enum { levels11_codes = 11, levels11_scales = 1, levels11_needs = 0 };

QUANT_FN struct quant_scale levels11_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  return quant_steps(s.max, 5);
}

QUANT_FN uint32_t levels11_code(float x, struct quant_scale scale, const struct quantise *op,
                                uint32_t bits)
{
  (void)op, (void)bits;
  return quant_round(x * scale.inverse) + 5;
}

QUANT_FN float levels11_value(uint32_t code, struct quant_scale scale)
{
  return ((float)(int32_t)code - 5) * scale.at[0];
}

#endif
