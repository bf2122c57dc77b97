/* Integers of 9 levels, the largest magnitude of a block is at most 4 (the uniform scales of Wang
 * et al. 2023, arXiv:2306.10209). A word of 32 bits holds 10 digits of base 9. */
#ifndef SLUICE_COMPRESS_RULE_LEVELS9_H
#define SLUICE_COMPRESS_RULE_LEVELS9_H

enum { levels9_codes = 9, levels9_scales = 1, levels9_needs = 0, levels9_block = 32 };

QUANT_FN struct quant_scale levels9_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  return quant_steps(s.max, 4);
}

QUANT_FN uint32_t levels9_code(float x, struct quant_scale scale, const struct quantise *op,
                               uint32_t bits)
{
  (void)op, (void)bits;
  return quant_round(x * scale.inverse) + 4;
}

QUANT_FN float levels9_value(uint32_t code, struct quant_scale scale)
{
  return ((float)(int32_t)code - 4) * scale.at[0];
}

#endif
