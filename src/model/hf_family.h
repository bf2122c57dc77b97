/* Private to src/model/hf*.c: what Hugging Face's configurations of one architecture have to themselves. */
#ifndef SLUICE_MODEL_HF_FAMILY_H
#define SLUICE_MODEL_HF_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum hf_of { OF_GPT2 = 1, OF_LLAMA = 2, OF_QWEN2 = 4, OF_QWEN3 = 8, OF_MISTRAL = 16, OF_ROPE = OF_LLAMA | OF_QWEN2 | OF_QWEN3 | OF_MISTRAL, OF_ALL = OF_GPT2 | OF_ROPE };

struct hf_family {
  const char *arch;           /* also model_type */
  enum hf_of bit;
  const char *causal, *base;  /* classes; `base` lacks the head, and its tensors the prefix */
  const char *prefix;         /* "model." */
  const char *activation;     /* as it is written */
  /* What the class takes where config.json does not say it (transformers 5.x; 4.x is the same). */
  bool tied;
  int64_t kv_heads, head_width, context, window, window_from; /* kv_heads 0: heads; head_width 0: width / heads */
  double norm_eps;
};

/* NULL: unknown. */
const struct hf_family *hf_family_find(const char *arch);

#endif
