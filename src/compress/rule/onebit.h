/* Signs, with the mean of the negative elements of a block and the mean of the other elements.
 * Source: Seide et al. 2014, "1-bit stochastic gradient descent and its application to
 * data-parallel distributed training of speech DNNs", Interspeech. */
#ifndef SLUICE_COMPRESS_RULE_ONEBIT_H
#define SLUICE_COMPRESS_RULE_ONEBIT_H

enum { onebit_codes = 2, onebit_scales = 2, onebit_needs = QUANT_SIGNS, onebit_block = 1024 };

QUANT_FN struct quant_scale onebit_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  const float others = s.n - s.negatives;
  const struct quant_scale scale = {
      {quant_nearest_half(others > 0 ? s.positive / others : 0),
       quant_nearest_half(s.negatives > 0 ? s.negative / s.negatives : 0)},
      0};
  return scale;
}

QUANT_FN uint32_t onebit_code(float x, struct quant_scale scale, const struct quantise *op,
                              uint32_t bits)
{
  (void)scale, (void)op, (void)bits;
  return x < 0;
}

QUANT_FN float onebit_value(uint32_t code, struct quant_scale scale)
{
  return code ? -scale.at[1] : scale.at[0];
}

#endif
