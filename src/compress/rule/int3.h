/* Integers of 3 bits, clipped (the uniform quantiser of Max 1960, "Quantizing for minimum
 * distortion", IRE Transactions on Information Theory 6). The root mean square of a block is 1.5
 * steps, so the largest magnitude that is not clipped is two times this mean. With feedback the
 * clipped part of a large element comes with the next messages. */
#ifndef SLUICE_COMPRESS_RULE_INT3_H
#define SLUICE_COMPRESS_RULE_INT3_H

enum { int3_bits = 3, int3_scales = 1, int3_needs = QUANT_SQUARES };

QUANT_FN struct quant_scale int3_scale(struct quant_stats s, const struct quantise *op)
{
  (void)op;
  return quant_steps(sqrtf(s.squares / s.n), 1.5f);
}

QUANT_FN uint32_t int3_code(float x, struct quant_scale scale, const struct quantise *op,
                            uint32_t bits)
{
  (void)op, (void)bits;
  const int32_t level = (int32_t)quant_round(x * scale.inverse);
  return (uint32_t)(level > 3 ? 3 : level < -3 ? -3 : level) & 0x7;
}

QUANT_FN float int3_value(uint32_t code, struct quant_scale scale)
{
  return quant_signed(code, 3) * scale.at[0];
}

#endif
