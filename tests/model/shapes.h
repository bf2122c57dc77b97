/* One small model of every architecture and feature, sizes odd wherever they may be. */
#ifndef SLUICE_TESTS_MODEL_SHAPES_H
#define SLUICE_TESTS_MODEL_SHAPES_H

#include "model/model.h"

struct shape_case {
  const char *label;
  struct model_config config;
};
extern const struct shape_case shape_cases[];
extern const int shape_count;

#endif
