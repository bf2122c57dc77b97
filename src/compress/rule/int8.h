/* Integers of 8 bits, the largest magnitude of a block is at most 127 (Dettmers 2016,
 * arXiv:1511.04561). */
#ifndef SLUICE_COMPRESS_RULE_INT8_H
#define SLUICE_COMPRESS_RULE_INT8_H

enum { int8_codes = 256, int8_scales = 1, int8_needs = 0, int8_block = 256 };

QUANT_FN struct quant_scale int8_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  return quant_steps(s.max, 127);
}

QUANT_FN uint32_t int8_code(float x, struct quant_scale scale, const struct quantise *op,
                            uint32_t bits)
{
  (void)op, (void)bits;
  return quant_round(x * scale.inverse) & 0xff;
}

QUANT_FN float int8_value(uint32_t code, struct quant_scale scale)
{
  return quant_signed(code, 8) * scale.at[0];
}

#endif
