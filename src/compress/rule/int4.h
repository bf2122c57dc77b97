/* Integers of 4 bits, the largest magnitude of a block is at most 7 (Wang et al. 2023,
 * arXiv:2306.10209). */
#ifndef SLUICE_COMPRESS_RULE_INT4_H
#define SLUICE_COMPRESS_RULE_INT4_H

enum { int4_codes = 16, int4_scales = 1, int4_needs = 0, int4_block = 64 };

QUANT_FN struct quant_scale int4_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  return quant_steps(s.max, 7);
}

QUANT_FN uint32_t int4_code(float x, struct quant_scale scale, const struct quantise *op,
                            uint32_t bits)
{
  (void)op, (void)bits;
  return quant_round(x * scale.inverse) & 0xf;
}

QUANT_FN float int4_value(uint32_t code, struct quant_scale scale)
{
  return quant_signed(code, 4) * scale.at[0];
}

#endif
