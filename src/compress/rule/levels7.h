/* Integers of 7 levels, the largest magnitude of a block is at most 3 (the uniform scales of Wang
 * et al. 2023, arXiv:2306.10209). A word of 32 bits holds 11 digits of base 7. */
#ifndef SLUICE_COMPRESS_RULE_LEVELS7_H
#define SLUICE_COMPRESS_RULE_LEVELS7_H

enum { levels7_codes = 7, levels7_scales = 1, levels7_needs = 0, levels7_block = 32 };

QUANT_FN struct quant_scale levels7_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  return quant_steps(s.max, 3);
}

QUANT_FN uint32_t levels7_code(float x, struct quant_scale scale, const struct quantise *op,
                               uint32_t bits)
{
  (void)op, (void)bits;
  return quant_round(x * scale.inverse) + 3;
}

QUANT_FN float levels7_value(uint32_t code, struct quant_scale scale)
{
  return ((float)(int32_t)code - 3) * scale.at[0];
}

#endif
