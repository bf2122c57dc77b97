/* Signs, with the mean magnitude of a block (Bernstein et al. 2018, arXiv:1810.05291). A sum is a
 * majority vote: a tie is 0. */
#ifndef SLUICE_COMPRESS_RULE_SIGNSGD_H
#define SLUICE_COMPRESS_RULE_SIGNSGD_H

enum {
  signsgd_codes = 2,
  signsgd_scales = 1,
  signsgd_needs = QUANT_MAGNITUDES | QUANT_VOTES,
  signsgd_block = 1024
};

QUANT_FN struct quant_scale signsgd_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  const struct quant_scale scale = {{quant_nearest_half(s.magnitudes / s.n), 0}, 0};
  return scale;
}

QUANT_FN uint32_t signsgd_code(float x, struct quant_scale scale, const struct quantise *op,
                               uint32_t bits)
{
  (void)scale, (void)op, (void)bits;
  return x < 0;
}

QUANT_FN float signsgd_value(uint32_t code, struct quant_scale scale)
{
  return code ? -scale.at[0] : scale.at[0];
}

#endif
