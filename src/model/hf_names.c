/* Hugging Face's names of tensors. */
#include "model/hf.h"

#include <ctype.h>
#include <string.h>

#include "model/hf_family.h"

const char *hf_base_name(const struct model *model, const char *name)
{
  const struct hf_family *family = hf_family_find(model->config.arch);
  const size_t bytes = family ? strlen(family->prefix) : 0;
  return family && !strncmp(name, family->prefix, bytes) ? name + bytes : NULL;
}

const char *hf_embedding_name(const struct model *model)
{
  return !strcmp(model->config.arch, "gpt2") ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

/* What follows "BLOCKS.7." in a name, or NULL. */
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
  const char *base = hf_base_name(model, name), *buffer = inside_block(base ? base : name, gpt2 ? "h." : "layers.");
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
