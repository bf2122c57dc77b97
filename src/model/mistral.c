/* Mistral 7B (Jiang et al. 2023, arXiv:2310.06825), as Hugging Face's MistralForCausalLM: a sliding
 * window in all blocks. */
#include "model/decoder.h"

const struct architecture model_mistral = DECODER("mistral", FEATURE_WINDOW);
