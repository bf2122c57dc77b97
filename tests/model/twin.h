/* A second decoder, written from the formulas of the papers, with plain loops and double
 * everywhere. It is the oracle of the engine's forward pass. Central differences make it the oracle
 * of its gradients. It shares nothing with the engine but the names and places of the parameters.
 */
#pragma once

#include "model/model.h"

struct twin {
  const struct model *model;
  double **flat; /* by unit */
};

void twin_create(const struct model *model, void *const *params,
                 struct twin *out); /* params: fp32 flat buffers by unit */
void twin_destroy(struct twin *twin);

/* Sum of the losses, times their weights, of the rows with a target. */
double twin_loss(const struct twin *twin, struct model_shape s, const struct model_batch *in);
/* [B, V]: logits of row `position` of each sequence. */
void twin_logits(const struct twin *twin, struct model_shape s, const struct model_batch *in,
                 int64_t position, double *logits);
/* [R, C]: what the final norm makes of the last block's output. */
double *twin_final(const struct twin *twin, struct model_shape s, const struct model_batch *in);
/* [V, C]: the matrix of the head. */
const double *twin_head(const struct twin *twin);
