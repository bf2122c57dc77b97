/* Integers of 8 bits with one scale for all ranks (the shared scale of Wen et al. 2017,
 * arXiv:1705.07878). The largest magnitude is at most 127 / ranks steps. So the sum of all ranks'
 * codes fits into 8 bits. */
#ifndef SLUICE_COMPRESS_RULE_INT8_GLOBAL_H
#define SLUICE_COMPRESS_RULE_INT8_GLOBAL_H

enum {
  int8_global_codes = 256,
  int8_global_scales = 1,
  int8_global_needs = QUANT_GLOBAL,
  int8_global_block = 256
};

QUANT_FN struct quant_scale int8_global_scale(struct quant_stats s, const struct quantise *op)
{
  return quant_steps(s.max, (float)op->levels);
}

QUANT_FN uint32_t int8_global_code(float x, struct quant_scale scale, const struct quantise *op,
                                   uint32_t bits)
{
  return int8_code(x, scale, op, bits);
}

QUANT_FN float int8_global_value(uint32_t code, struct quant_scale scale)
{
  return int8_value(code, scale);
}

#endif
