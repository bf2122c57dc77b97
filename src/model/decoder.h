/* The decoder of all architectures, which are descriptions of it: features and rows of parameters.
 * Private to src/model. */
#pragma once

#include "model/parts.h"
#include "model/unit.h"

/* Parameters by unit, in the order of the flat buffer. ROOT_NORM and what follows are in the root
 * only with a tied head. */
enum root_row { ROOT_TOKENS, ROOT_POSITIONS, ROOT_NORM, ROOT_NORM_BIAS, ROOT_ROWS };
enum head_row { HEAD_NORM, HEAD_WEIGHT, HEAD_ROWS };
/* Weights with the same input are adjacent, so that one product can use them all. So are their
 * biases. A family with one matrix for q, k and v calls it Q_WEIGHT. */
/* clang-format off */
enum block_row {
  NORM_1, NORM_1_BIAS, Q_WEIGHT, K_WEIGHT, V_WEIGHT, Q_BIAS, K_BIAS, V_BIAS, Q_NORM, K_NORM,
  PROJECTION, PROJECTION_BIAS, NORM_2, NORM_2_BIAS, GATE, UP, UP_BIAS, DOWN, DOWN_BIAS, BLOCK_ROWS
};
/* clang-format on */
/* Parts of a block, which read the rows up to PROJECTION_BIAS, and those from NORM_2 on. */
enum block_part { ATTENTION = 1 << 0, FEED_FORWARD = 1 << 1, BLOCK_PARTS = 3 };

/* Architectures with the same names of parameters. */
struct family {
  const char *block_prefix; /* "model.layers." makes "model.layers.N.ROW" */
  struct unit_row root[ROOT_ROWS], head[HEAD_ROWS], block[BLOCK_ROWS];
};

struct architecture {
  const char *name;
  const struct family *family;
  unsigned features;             /* enum feature */
  const struct stage_row *stage; /* of a block */
};
/* STATUS_USAGE, with the list of names, if there is none. */
enum status architecture_find(const char *name, const struct architecture **out);

/* Fills unit[] and inv_freq. */
enum status decoder_create(struct model *model);
extern const struct model_ops decoder_ops;

int root_param(const struct model *model, enum root_row row); /* of unit 0; -1: none */
