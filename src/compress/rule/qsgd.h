/* Stochastic levels between 0 and the Euclidean norm of a block (Alistarh et al. 2017,
 * arXiv:1610.02132). An element moves by up to half a level at random, and goes to the nearest
 * level. So the mean is the element. */
#ifndef SLUICE_COMPRESS_RULE_QSGD_H
#define SLUICE_COMPRESS_RULE_QSGD_H

enum {
  qsgd_codes = 256,
  qsgd_scales = 1,
  qsgd_needs = QUANT_SQUARES | QUANT_RANDOM | QUANT_LEVELS,
  qsgd_block = 256
};

QUANT_FN struct quant_scale qsgd_scale(struct quant_stats s, const struct quantise *op)
{
  return quant_steps(sqrtf(s.squares), (float)op->levels);
}

QUANT_FN uint32_t qsgd_code(float x, struct quant_scale scale, const struct quantise *op,
                            uint32_t bits)
{
  /* Uniform in (-1/2, 1/2): the random bits are a mantissa, so no integer is converted. */
  const float jitter = quant_float(0x3f800000 | bits << 7) - 1.49999237060546875f;
  const int32_t level = (int32_t)quant_round(x * scale.inverse + jitter), most = op->levels;
  return (uint32_t)(level > most ? most : level < -most ? -most : level) & 0xff;
}

QUANT_FN float qsgd_value(uint32_t code, struct quant_scale scale)
{
  return quant_signed(code, 8) * scale.at[0];
}

#endif
