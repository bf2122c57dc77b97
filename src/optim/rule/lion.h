/* Lion (Chen et al. 2023, arXiv:2302.06675), algorithm 2:
 *   p *= 1 - lr decay;  p -= lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g */
#pragma once

struct lion_scalars {
  float shrink, step, beta1, rest1, beta2, rest2;
};

static inline struct lion_scalars lion_prepare(const struct update *op)
{
  const struct lion_scalars k = {.shrink = (float)(1 - op->lr * op->decay),
                                 .step = (float)op->lr,
                                 .beta1 = (float)op->beta1,
                                 .rest1 = (float)(1 - op->beta1),
                                 .beta2 = (float)op->beta2,
                                 .rest2 = (float)(1 - op->beta2)};
  return k;
}

RULE_ELEMENT RULE_REAL lion_element(const struct lion_scalars *k, RULE_REAL p, RULE_REAL g,
                                    RULE_REAL *state)
{
  const RULE_REAL direction = rule_sign(k->beta1 * state[0] + k->rest1 * g);
  state[0] = k->beta2 * state[0] + k->rest2 * g;
  return k->shrink * p - k->step * direction;
}
