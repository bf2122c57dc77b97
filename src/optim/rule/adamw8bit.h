/* AdamW (adamw.h) with both moments in block8, which device/moments.h defines (Dettmers et al.
 * 2021, "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861). */
#pragma once

#include "optim/rule/adamw.h"

struct adamw8bit_scalars {
  struct adamw_scalars adamw;
};

static inline struct adamw8bit_scalars adamw8bit_prepare(const struct update *op)
{
  const struct adamw8bit_scalars k = {adamw_prepare(op)};
  return k;
}

RULE_ELEMENT RULE_REAL adamw8bit_element(const struct adamw8bit_scalars *k, RULE_REAL p,
                                         RULE_REAL g, RULE_REAL *state)
{
  return adamw_element(&k->adamw, p, g, state);
}
