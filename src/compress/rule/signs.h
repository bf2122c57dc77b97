/* Rules whose code is the sign of an element. */
#pragma once

enum { onebit_codes = 2, onebit_scales = 2, onebit_needs = QUANT_SIGNS, onebit_block = 1024 };
enum { signsgd_codes = 2, signsgd_scales = 1, signsgd_block = 1024 };
enum { signsgd_needs = QUANT_MAGNITUDES | QUANT_VOTES }; /* a tie of votes is 0 */

/* The mean of the other elements, and the mean magnitude of the negative ones. */
CODEC_FN struct quant_scale onebit_scale(struct quant_stats s, const struct quantise *op)
{
  const float others = s.n - s.negatives;
  const struct quant_scale scale = {
      {quant_nearest_half(others > 0 ? s.positive / others : 0),
       quant_nearest_half(s.negatives > 0 ? s.negative / s.negatives : 0)},
      0};
  (void)op;
  return scale;
}

/* The mean magnitude. */
CODEC_FN struct quant_scale signsgd_scale(struct quant_stats s, const struct quantise *op)
{
  const struct quant_scale scale = {{quant_nearest_half(s.magnitudes / s.n), 0}, 0};
  (void)op;
  return scale;
}

CODEC_FN uint32_t signsgd_code(float x, struct quant_scale scale, const struct quantise *op,
                               uint32_t bits)
{
  (void)scale, (void)op, (void)bits;
  return x < 0;
}

CODEC_FN uint32_t onebit_code(float x, struct quant_scale scale, const struct quantise *op,
                              uint32_t bits)
{
  return signsgd_code(x, scale, op, bits);
}

CODEC_FN float signsgd_value(uint32_t code, struct quant_scale scale)
{
  return code ? -scale.at[0] : scale.at[0];
}

CODEC_FN float onebit_value(uint32_t code, struct quant_scale scale)
{
  return code ? -scale.at[1] : scale.at[0];
}
