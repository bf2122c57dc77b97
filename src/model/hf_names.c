/* The families of models whose configurations are known, and Hugging Face's names of their
 * tensors. */
#include "model/hf_private.h"

#include <ctype.h>
#include <string.h>

#include "base/append.h"

// clang-format off: one row a family
static const struct hf_family families[] = {
    {.arch = "gpt2",
     .bit = OF_GPT2,
     .causal = "GPT2LMHeadModel",
     .base = "GPT2Model",
     .prefix = "transformer.",
     .activation = "gelu_new",
     .tied = true,
     .context = 1024,
     .norm_eps = 1e-5},
    {.arch = "llama",
     .bit = OF_LLAMA,
     .causal = "LlamaForCausalLM",
     .base = "LlamaModel",
     .prefix = "model.",
     .activation = "silu",
     .context = 2048,
     .norm_eps = 1e-6},
    {.arch = "qwen2",
     .bit = OF_QWEN2,
     .causal = "Qwen2ForCausalLM",
     .base = "Qwen2Model",
     .prefix = "model.",
     .activation = "silu",
     .kv_heads = 32,
     .context = 32768,
     .window = 4096,
     .window_from = 28,
     .norm_eps = 1e-6},
    {.arch = "qwen3",
     .bit = OF_QWEN3,
     .causal = "Qwen3ForCausalLM",
     .base = "Qwen3Model",
     .prefix = "model.",
     .activation = "silu",
     .kv_heads = 32,
     .head_width = 128,
     .context = 32768,
     .window = 4096,
     .window_from = 28,
     .norm_eps = 1e-6},
    {.arch = "mistral",
     .bit = OF_MISTRAL,
     .causal = "MistralForCausalLM",
     .base = "MistralModel",
     .prefix = "model.",
     .activation = "silu",
     .kv_heads = 8,
     .context = 131072,
     .window = 4096,
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

struct hf_names hf_family_names(void)
{
  struct hf_names names = {.text = ""};
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    append_text(names.text, sizeof names.text, "%s%s", i > 0 ? ", " : "", families[i].arch);
  return names;
}

const char *hf_base_name(const struct model *model, const char *name)
{
  const struct hf_family *family = hf_family_find(model->config.arch);
  const size_t bytes = family ? strlen(family->prefix) : 0;
  return family && !strncmp(name, family->prefix, bytes) ? name + bytes : NULL;
}

const char *hf_embedding_name(const struct model *model)
{
  return !strcmp(model->config.arch, "gpt2") ? "transformer.wte.weight"
                                             : "model.embed_tokens.weight";
}

/* The part of a name after "BLOCKS.7.", or NULL. */
static const char *inside_block(const char *name, const char *blocks)
{
  const size_t bytes = strlen(blocks);
  if (strncmp(name, blocks, bytes) != 0 || !isdigit((unsigned char)name[bytes]))
    return NULL;
  const char *rest = name + bytes + strspn(name + bytes, "0123456789");
  return *rest == '.' ? rest + 1 : NULL;
}

enum hf_extra hf_extra(const struct model *model, const char *name)
{
  const bool gpt2 = !strcmp(model->config.arch, "gpt2");
  const char *base = hf_base_name(model, name),
             *buffer = inside_block(base ? base : name, gpt2 ? "h." : "layers.");
  if (model->config.tied && !strcmp(name, "lm_head.weight"))
    return HF_EXTRA_TIED_HEAD;
  if (buffer && gpt2 && (!strcmp(buffer, "attn.bias") || !strcmp(buffer, "attn.masked_bias")))
    return HF_EXTRA_BUFFER;
  if (buffer && !gpt2 && !strcmp(buffer, "self_attn.rotary_emb.inv_freq"))
    return HF_EXTRA_BUFFER;
  if (!gpt2 && !strcmp(base ? base : name, "rotary_emb.inv_freq"))
    return HF_EXTRA_BUFFER;
  return HF_EXTRA_UNKNOWN;
}
