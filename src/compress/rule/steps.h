/* Rules whose one scale is a step, and whose code is an element in steps, to the nearest integer or
 * 8-bit float. No code is an infinity or NaN. A row has the number of codes, needs, the usual
 * block, the most steps of an element, the code of x steps, and the steps of a code.
 *
 * int8_global has as many steps as let the sum of all ranks' codes fit into 8 bits. A word of 32
 * bits holds 11 digits of levels7, or 10 of levels9. hadamard_int4 sends a transform, which spreads
 * outliers, and a sum is transformed back. */
#pragma once

/* clang-format off */
#define QUANT_STEP_ROWS(ROW) \
  ROW(int8, 256, 0, 256, 127, quant_round(x) & 0xff, quant_signed(code, 8)) \
  ROW(int8_global, 256, QUANT_GLOBAL, 256, op->levels, quant_round(x) & 0xff, \
      quant_signed(code, 8)) \
  ROW(int4, 16, 0, 64, 7, quant_round(x) & 0xf, quant_signed(code, 4)) \
  ROW(hadamard_int4, 16, QUANT_ROTATE, 256, 7, quant_round(x) & 0xf, quant_signed(code, 4)) \
  ROW(levels9, 9, 0, 32, 4, quant_round(x) + 4, ((float)(int32_t)code - 4)) \
  ROW(levels7, 7, 0, 32, 3, quant_round(x) + 3, ((float)(int32_t)code - 3)) \
  ROW(e4m3, 256, 0, 256, 448, quant_minifloat(x, 3, 120), quant_from_minifloat(code, 3, 120)) \
  ROW(e5m2, 256, 0, 256, 57344, quant_minifloat(x, 2, 112), quant_from_minifloat(code, 2, 112))
/* clang-format on */

#define QUANT_STEPS(name, codes, needs, block, most, code_of, steps_of)                            \
  enum { name##_codes = codes, name##_scales = 1, name##_needs = needs, name##_block = block };    \
  CODEC_FN struct quant_scale name##_scale(struct quant_stats s, const struct quantise *op)        \
  {                                                                                                \
    (void)op;                                                                                      \
    return quant_steps(s.max, (float)(most));                                                      \
  }                                                                                                \
  CODEC_FN uint32_t name##_code(float element, struct quant_scale scale,                           \
                                const struct quantise *op, uint32_t bits)                          \
  {                                                                                                \
    const float x = element * scale.inverse;                                                       \
    (void)op, (void)bits;                                                                          \
    return code_of;                                                                                \
  }                                                                                                \
  CODEC_FN float name##_value(uint32_t code, struct quant_scale scale)                             \
  {                                                                                                \
    return steps_of * scale.at[0];                                                                 \
  }
QUANT_STEP_ROWS(QUANT_STEPS)
#undef QUANT_STEPS
