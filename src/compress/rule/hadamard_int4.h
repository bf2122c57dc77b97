/* int4 of a Walsh-Hadamard transform, which spreads outliers (Jia et al. 2024,
 * arXiv:2410.15526). A sum is transformed back. */
#ifndef SLUICE_COMPRESS_RULE_HADAMARD_INT4_H
#define SLUICE_COMPRESS_RULE_HADAMARD_INT4_H

enum {
  hadamard_int4_codes = 16,
  hadamard_int4_scales = 1,
  hadamard_int4_needs = QUANT_ROTATE,
  hadamard_int4_block = 256
};

QUANT_FN struct quant_scale hadamard_int4_scale(struct quant_stats s, const struct quantise *op)
{
  return int4_scale(s, op);
}

QUANT_FN uint32_t hadamard_int4_code(float x, struct quant_scale scale, const struct quantise *op,
                                     uint32_t bits)
{
  return int4_code(x, scale, op, bits);
}

QUANT_FN float hadamard_int4_value(uint32_t code, struct quant_scale scale)
{
  return int4_value(code, scale);
}

#endif
