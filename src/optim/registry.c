/* The table of optimizers, from their rows. Files of matrix optimizers are part of this one. */
#include "optim/optim.h"

#include <math.h>

#include "device/lane.h"

#define RULE_MATRICES
#include "optim/rule/rules.h"

const struct optim_ops *optim_ops(enum optimizer optimizer)
{
#define OPTIM_ROW(name, title, source, ...)                                                        \
  [OPTIM_##name] = {#name, source, STATE_ROWS(__VA_ARGS__), {__VA_ARGS__}, OPTIM_##name, NULL},
#define OPTIM_MATRIX_ROW(name, title, source, rule, ...)                                           \
  [OPTIM_##name] = {#name, source, STATE_ROWS(__VA_ARGS__), {__VA_ARGS__}, OPTIM_##rule, &name},
  static const struct optim_ops table[OPTIM_COUNT] = {OPTIM_ELEMENTWISE(OPTIM_ROW)
                                                          OPTIM_MATRIX(OPTIM_MATRIX_ROW)};
#undef OPTIM_ROW
#undef OPTIM_MATRIX_ROW
  return &table[optimizer];
}
