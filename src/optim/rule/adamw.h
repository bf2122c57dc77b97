/* AdamW with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101), as
 * torch.optim.AdamW computes it.
 *   p *= 1 - lr decay;  m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g g;
 *   p -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps) */
#pragma once

#include <math.h>

struct adamw_scalars {
  float shrink, rest1, beta2, rest2, root2, eps, step;
};

static inline struct adamw_scalars adamw_prepare(const struct update *op)
{
  const struct adamw_scalars k = {.shrink = (float)(1 - op->lr * op->decay),
                                  .rest1 = (float)(1 - op->beta1),
                                  .beta2 = (float)op->beta2,
                                  .rest2 = (float)(1 - op->beta2),
                                  .root2 = (float)sqrt(op->bias2),
                                  .eps = (float)op->eps,
                                  .step = (float)(op->lr / op->bias1)};
  return k;
}

RULE_ELEMENT RULE_REAL adamw_element(const struct adamw_scalars *k, RULE_REAL p, RULE_REAL g,
                                     RULE_REAL *state)
{
  const RULE_REAL m = state[0] + k->rest1 * (g - state[0]);
  const RULE_REAL v = k->beta2 * state[1] + k->rest2 * g * g;
  state[0] = m;
  state[1] = v;
  return k->shrink * p - k->step * m / (rule_sqrt(v) / k->root2 + k->eps);
}
