/* Keys of a model: the keys that an architecture has, and their defaults. Units: their description
 * by an architecture, and the place of a parameter in the flat buffers of its unit. Private to
 * src/model. */
#pragma once

#include "model/model.h"

/* Properties of an architecture beyond layers, width, heads, context and vocab. */
enum feature {
  FEATURE_GROUPS = 1 << 0,      /* fewer key/value heads than heads: model.kv_heads */
  FEATURE_HEAD_WIDTH = 1 << 1,  /* model.head_width other than width / heads */
  FEATURE_FFN_4C = 1 << 2,      /* model.ffn is 4 width by default */
  FEATURE_ROPE = 1 << 3,        /* rotary positions: model.rope_* */
  FEATURE_UNTIED = 1 << 4,      /* model.tied may be false */
  FEATURE_WINDOW = 1 << 5,      /* model.window */
  FEATURE_WINDOW_FROM = 1 << 6, /* model.window_from */
  FEATURE_QKV_BIAS = 1 << 7,    /* biases of the q, k and v projections */
  FEATURE_QK_NORM = 1 << 8,     /* RMSNorm of each head's query and key, before they are turned */
  FEATURE_SWIGLU = 1 << 9,      /* a gate beside the up projection; otherwise tanh GELU */
  FEATURE_CONV1D = 1 << 10      /* matrices of blocks are [in, out] */
};

/* Replaces zeros by defaults. config->arch names the architecture in messages. */
enum status config_resolve(unsigned features, struct model_config *config);

/* out [D / 2] = theta^(-2i/D), scaled. In fp32, operation by operation as transformers computes
 * them, so that far positions are turned by the same angles. */
void config_frequencies(const struct rope_config *rope, int64_t D, float *out);

enum { UNIT_ROWS = 64 };
_Static_assert(UNIT_ROWS % DEVICE_CUDA_ROW_MULTIPLE == 0,
               "rows of logits run over the room of the vocabulary");

/* Sizes of parameters. QKV: the width of queries, keys and values together. */
enum dim { DIM_END, DIM_C, DIM_HD, DIM_KD, DIM_QKV, DIM_D, DIM_F, DIM_T, DIM_V, DIMS };

/* A row of a unit's description. */
struct unit_row {
  const char *name; /* after the unit's prefix; NULL: no such parameter */
  enum param_kind kind;
  enum param_init init;
  enum dim dim[LAYOUT_MAX_DIMS]; /* DIM_END ends it */
  bool padded;    /* padded with zero rows to a multiple of UNIT_ROWS, because products with an odd
                     vocabulary are slow */
  bool residual;  /* projects into the residual stream: initialised with the smaller deviation */
  unsigned needs; /* features without which there is no such parameter */
};

struct unit_description {
  const struct unit_row *row;
  int rows;
  unsigned features;
  const int64_t *size; /* by dim[] */
  float std, residual_std;
};

/* Names are `prefix` + row name. On failure *out is a unit that unit_free() takes. STATUS_USAGE
 * when a size overflows. */
enum status unit_create(const struct unit_description *description, const char *name,
                        const char *prefix, struct model_unit *out);
void unit_free(struct model_unit *unit); /* takes a zeroed one */

/* The parameter that row `row` describes; -1: there is none without the features it needs. */
int unit_param(const struct unit_row *rows, unsigned features, int row);

/* Whether matrices of blocks are [out, in] as in nn.Linear. The head's always is. */
bool model_is_transposed(const struct model *model);

/* Room for n more parameters, zeroed, which unit_pack() packs as well. */
enum status unit_grow(struct model_unit *unit, int n);

/* Packs again, according to the parameters' frozen flags. */
enum status unit_pack(struct model_unit *unit, int ranks);

/* Zero the gradient elements between the trained parameters of a stage, which nothing else writes
 * but which are reduced and summed with them. grads may be NULL. */
enum status unit_zero_gaps(const struct model *model, int stage, struct lane *lane, void *grads);

/* A stage of a block. */
struct stage_row {
  const char *name; /* NULL: the block has no other */
  unsigned parts;   /* that it computes, as the architecture names them; 0 ends the list */
  bool shares;      /* the unit of the stage before it; else it has a unit of its own */
};
/* Lists the stages of a model of `blocks` equal blocks, and makes room for its units.
 * STATUS_MEMORY.
 */
enum status stages_create(struct model *model, const struct stage_row *block);
