/* Private to src/model: how an architecture describes its units, and where a unit's parameters lie in its flat buffers. */
#ifndef SLUICE_MODEL_UNIT_H
#define SLUICE_MODEL_UNIT_H

#include "model/model.h"

/* One explicit list of architectures is in model.c. */
extern const struct model_ops model_gpt2;

/* A row of a unit's description. `dim` indexes the architecture's array of sizes; 0 ends it. */
struct unit_row {
  const char *name; /* after the unit's prefix */
  enum param_kind kind;
  enum param_init init;
  int dim[LAYOUT_MAX_DIMS];
  bool residual; /* projects into the residual stream: initialised with the smaller deviation */
};

struct unit_description {
  const struct unit_row *row;
  int rows;
  const int64_t *size; /* by dim[] */
  float std, residual_std;
};

/* Names are `prefix` + row name. On failure *out is a unit that unit_free() takes. STATUS_USAGE when a size overflows. */
enum status unit_create(const struct unit_description *description, const char *name, const char *prefix, struct model_unit *out);
void unit_free(struct model_unit *unit); /* takes a zeroed one */

/* Zero the gradient elements between the unit's parameters, which nothing else writes but which are reduced and summed with them. */
enum status unit_zero_gaps(const struct model_unit *unit, struct lane *lane, void *grads);

#endif
