/* Qwen3 (Yang et al. 2025, arXiv:2505.09388), as Hugging Face's Qwen3ForCausalLM: a norm of each
 * head's query and key; a window, if any, from some block on. */
#include "model/decoder.h"

const struct architecture model_qwen3 =
    DECODER("qwen3", FEATURE_WINDOW | FEATURE_WINDOW_FROM | FEATURE_QK_NORM);
