/* Llama (Touvron et al. 2023, arXiv:2302.13971; Llama 3: Grattafiori et al. 2024,
 * arXiv:2407.21783), as Hugging Face's LlamaForCausalLM: the decoder as it is. */
#include "model/decoder.h"

const struct architecture model_llama = DECODER("llama", 0);
