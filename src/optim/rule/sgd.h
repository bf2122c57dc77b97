/* SGD with momentum (Sutskever et al. 2013), as torch.optim.SGD computes it without dampening:
 *   b = momentum b + g;  p -= lr (nesterov ? g + momentum b : b)
 * after p *= 1 - lr decay. Decay is decoupled (Loshchilov & Hutter 2019), as for the other
 * optimizers. It is not part of the momentum, of the gradient's norm and of its clipping. */
#pragma once

struct sgd_scalars {
  float shrink, step, momentum, look, now; /* direction: look b + now g */
};

static inline struct sgd_scalars sgd_prepare(const struct update *op)
{
  const struct sgd_scalars k = {.shrink = (float)(1 - op->lr * op->decay),
                                .step = (float)op->lr,
                                .momentum = (float)op->momentum,
                                .look = (float)(op->nesterov ? op->momentum : 1),
                                .now = (float)op->nesterov};
  return k;
}

RULE_ELEMENT RULE_REAL sgd_element(const struct sgd_scalars *k, RULE_REAL p, RULE_REAL g,
                                   RULE_REAL *state)
{
  state[0] = k->momentum * state[0] + g;
  return k->shrink * p - k->step * (k->look * state[0] + k->now * g);
}
