/* Stochastic powers of two (Horvath et al. 2019, arXiv:1905.10988): a magnitude goes up to the next
 * power of two with the probability that makes the mean the element. The scale is the power of two
 * in the largest magnitude of a block. A code is a sign and an exponent above that of
 * natural_base(), or 0 for zero. Numbers below 2^-125 times the scale become 0. */
#pragma once

enum { natural_codes = 256, natural_scales = 1, natural_needs = QUANT_RANDOM, natural_block = 256 };

CODEC_FN struct quant_scale natural_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  const float power = f32_from_bits(f32_bits(s.max) & 0x7f800000); /* 0 if it is subnormal */
  const struct quant_scale scale = {{power, 0}, 0};
  return scale;
}

CODEC_FN uint32_t natural_exponent(struct quant_scale scale)
{
  return f32_bits(scale.at[0]) >> 23 & 0xff;
}

/* Exponent field below that of code 1. Code 127 is twice the scale. */
CODEC_FN uint32_t natural_base(struct quant_scale scale)
{
  const uint32_t exponent = natural_exponent(scale);
  return exponent > 126 ? exponent - 126 : 0;
}

CODEC_FN uint32_t natural_code(float x, struct quant_scale scale, const struct quantise *op,
                               uint32_t bits)
{
  (void)op;
  const uint32_t base = natural_base(scale), word = f32_bits(x);
  /* The mantissa is the probability, in steps of 2^-16. */
  const uint32_t power = ((word & 0x7fffffff) + (bits << 7 | 64)) >> 23;
  return (power > base ? power - base : 0) | (word >> 24 & 0x80);
}

CODEC_FN float natural_value(uint32_t code, struct quant_scale scale)
{
  const uint32_t steps = code & 0x7f, least = 127 + natural_base(scale) - natural_exponent(scale);
  const uint32_t power = steps ? (steps + least) << 23 : 0;
  return f32_from_bits(power | (code & 0x80) << 24) * scale.at[0];
}
