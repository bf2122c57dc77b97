/* The families of models whose configurations are known, and Hugging Face's names of their
 * tensors. */
#include "model/hf_private.h"

#include <ctype.h>
#include <string.h>

#include "base/append.h"

/* clang-format off */
static const struct hf_family families[] = {
    /* arch, bit, causal, base, prefix, activation, */
    /*   tied, kv_heads, head_width, context, window, window_from, norm_eps */
    {"gpt2", OF_GPT2, "GPT2LMHeadModel", "GPT2Model", "transformer.", "gelu_new",
     true, 0, 0, 1024, 0, 0, 1e-5},
    {"llama", OF_LLAMA, "LlamaForCausalLM", "LlamaModel", "model.", "silu",
     false, 0, 0, 2048, 0, 0, 1e-6},
    {"qwen2", OF_QWEN2, "Qwen2ForCausalLM", "Qwen2Model", "model.", "silu",
     false, 32, 0, 32768, 4096, 28, 1e-6},
    {"qwen3", OF_QWEN3, "Qwen3ForCausalLM", "Qwen3Model", "model.", "silu",
     false, 32, 128, 32768, 4096, 28, 1e-6},
    {"mistral", OF_MISTRAL, "MistralForCausalLM", "MistralModel", "model.", "silu",
     false, 8, 0, 131072, 4096, 0, 1e-6},
};
/* clang-format on */

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
  return model->unit[0].param[0].name;
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
