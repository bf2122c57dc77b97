#include "optim/optim.h"

const struct optim_ops *optim_ops(enum optimizer optimizer)
{
#define OPTIM_ROW(name, title, source, ...)                                                        \
  [OPTIM_##name] = {#name, source, STATE_ROWS(__VA_ARGS__), {__VA_ARGS__}},
  static const struct optim_ops table[OPTIM_COUNT] = {OPTIM_ELEMENTWISE(OPTIM_ROW)};
#undef OPTIM_ROW
  return &table[optimizer];
}
