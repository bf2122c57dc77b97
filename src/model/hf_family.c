/* The families of models whose configurations are known. */
#include "model/hf_family.h"

#include <string.h>

// clang-format off: one row a family
static const struct hf_family families[] = {
    {.arch = "gpt2", .bit = OF_GPT2, .causal = "GPT2LMHeadModel", .base = "GPT2Model",
     .prefix = "transformer.", .activation = "gelu_new", .tied = true, .context = 1024,
     .norm_eps = 1e-5},
    {.arch = "llama", .bit = OF_LLAMA, .causal = "LlamaForCausalLM", .base = "LlamaModel",
     .prefix = "model.", .activation = "silu", .context = 2048, .norm_eps = 1e-6},
    {.arch = "qwen2", .bit = OF_QWEN2, .causal = "Qwen2ForCausalLM", .base = "Qwen2Model",
     .prefix = "model.", .activation = "silu", .kv_heads = 32, .context = 32768, .window = 4096,
     .window_from = 28, .norm_eps = 1e-6},
    {.arch = "qwen3", .bit = OF_QWEN3, .causal = "Qwen3ForCausalLM", .base = "Qwen3Model",
     .prefix = "model.", .activation = "silu", .kv_heads = 32, .head_width = 128, .context = 32768,
     .window = 4096, .window_from = 28, .norm_eps = 1e-6},
    {.arch = "mistral", .bit = OF_MISTRAL, .causal = "MistralForCausalLM", .base = "MistralModel",
     .prefix = "model.", .activation = "silu", .kv_heads = 8, .context = 131072, .window = 4096,
     .norm_eps = 1e-6},
};
// clang-format on

const struct hf_family *hf_family_find(const char *arch)
{
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    if (!strcmp(families[i].arch, arch))
      return &families[i];
  return NULL;
}
