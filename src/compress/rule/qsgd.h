/* Stochastic levels between 0 and the Euclidean norm of a block (Alistarh et al. 2017,
 * arXiv:1610.02132). A magnitude goes up to the next level with the probability that makes the mean
 * the element. */
#ifndef SLUICE_COMPRESS_RULE_QSGD_H
#define SLUICE_COMPRESS_RULE_QSGD_H

enum { qsgd_bits = 8, qsgd_scales = 1, qsgd_needs = QUANT_SQUARES | QUANT_RANDOM | QUANT_LEVELS };

QUANT_FN struct quant_scale qsgd_scale(struct quant_stats s, const struct quantise *op)
{
  return quant_steps(sqrtf(s.squares), (float)op->levels);
}

QUANT_FN uint32_t qsgd_code(float x, struct quant_scale scale, const struct quantise *op,
                            uint32_t bits)
{
  const float q = quant_magnitude(x) * scale.inverse, most = (float)op->levels;
  const int32_t down = (int32_t)(q < most ? q : most);
  const int32_t up = ((float)bits + 0.5f) * 0x1p-16f < q - (float)down;
  const int32_t level = down + up < op->levels ? down + up : op->levels;
  return (uint32_t)(x < 0 ? -level : level) & 0xff;
}

QUANT_FN float qsgd_value(uint32_t code, struct quant_scale scale)
{
  return quant_signed(code, 8) * scale.at[0];
}

#endif
