/* Stochastic levels between 0 and the Euclidean norm of a block (Alistarh et al. 2017,
 * arXiv:1610.02132). The rule adds a random fraction of a level to an element, and rounds down. The
 * expected value is the element, rounded to 2^-14 levels. */
#pragma once

enum {
  qsgd_codes = 256,
  qsgd_scales = 1,
  qsgd_needs = QUANT_SQUARES | QUANT_RANDOM | QUANT_LEVELS,
  qsgd_block = 256
};

CODEC_FN struct quant_scale qsgd_scale(struct quant_stats s, const struct quantise *op)
{
  return quant_steps(sqrtf(s.squares), (float)op->levels);
}

CODEC_FN uint32_t qsgd_code(float x, struct quant_scale scale, const struct quantise *op,
                            uint32_t bits)
{
  /* Adding 768 = 1.5 * 2^23 * 2^-14 rounds x to a multiple of 2^-14 levels, if it is less than 256
   * levels. The upper 14 of the 16 random bits are the fraction, because the lower two never carry.
   * If squares are subnormal, the norm may be too small, but x is less than 156 levels. */
  const uint32_t levels = (f32_bits(x * scale.inverse + 768.0f) - 0x44400000) << 2;
  const int32_t level = (int32_t)(levels + bits) >> 16, most = op->levels;
  return (uint32_t)(level > most ? most : level < -most ? -most : level) & 0xff;
}

CODEC_FN float qsgd_value(uint32_t code, struct quant_scale scale)
{
  return quant_signed(code, 8) * scale.at[0];
}
