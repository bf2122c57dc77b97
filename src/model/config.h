/* Private to src/model: what the keys of a model may be, and what their zeros stand for. */
#ifndef SLUICE_MODEL_CONFIG_H
#define SLUICE_MODEL_CONFIG_H

#include "model/model.h"

/* What an architecture has beyond layers, width, heads, context and vocab. */
enum feature {
  FEATURE_GROUPS = 1 << 0,      /* fewer key/value heads than heads: model.kv_heads */
  FEATURE_HEAD_WIDTH = 1 << 1,  /* model.head_width other than width / heads */
  FEATURE_FFN_4C = 1 << 2,      /* model.ffn is 4 width where it is not said */
  FEATURE_ROPE = 1 << 3,        /* rotary positions: model.rope_* */
  FEATURE_UNTIED = 1 << 4,      /* model.tied may be false */
  FEATURE_WINDOW = 1 << 5,      /* model.window */
  FEATURE_WINDOW_FROM = 1 << 6, /* model.window_from */
  FEATURE_QKV_BIAS = 1 << 7,    /* biases of the q, k and v projections */
  FEATURE_QK_NORM = 1 << 8      /* RMSNorm of each head's query and key, before they are turned */
};

/* Replaces zeros by what they stand for. config->arch names the architecture in messages. */
enum status config_resolve(unsigned features, struct model_config *config);

/* out [D / 2] = theta^(-2i/D), scaled. In fp32, operation by operation as transformers computes them, so that far positions are turned by the same angles. */
void config_frequencies(const struct rope_config *rope, int64_t D, float *out);

#endif
