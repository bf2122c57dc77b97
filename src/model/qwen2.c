/* Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671, arXiv:2412.15115), as Hugging Face's
 * Qwen2ForCausalLM: biases of q, k and v; a window, if any, from some block on. */
#include "model/decoder.h"

const struct architecture model_qwen2 =
    DECODER("qwen2", FEATURE_WINDOW | FEATURE_WINDOW_FROM | FEATURE_QKV_BIAS);
