/* Hugging Face's config.json and names of tensors, for every architecture of the registry. If
 * config.json asks for a feature that Sluice does not have (a rope type, an activation, an
 * attention bias, quantised weights), it is refused by name. Keys that cannot change the numbers
 * are known and ignored. An unknown key whose name has a scale, a cap or a bias is refused unless
 * it is off. For any other unknown key there is one warning. */
#pragma once

#include "base/dtype.h"
#include "model/model.h"

enum { HF_TOKENS_MOST = 16, HF_TOKENS_NONE = -1 };

/* Token ids that stand for one thing: a text ends with any of several. n 0: not given.
 * HF_TOKENS_NONE: there is none. It is printed as null, because transformers has defaults for ids
 * that are not given. */
struct hf_tokens {
  int n;
  int64_t id[HF_TOKENS_MOST];
};

struct hf_config {
  struct model_config model; /* arch is static */
  enum dtype dtype;          /* torch_dtype / dtype: F32, BF16, F16; F32 if it is missing */
  struct hf_tokens bos, eos;
};

/* `path`: a config.json. STATUS_INPUT naming file and key. Local. */
enum status hf_config_read(const char *path, struct hf_config *out);
/* Only the token ids, of any model's config.json. Local. */
enum status hf_config_tokens(const char *path, struct hf_tokens *bos, struct hf_tokens *eos);
/* Text of a config.json that transformers loads as the same model; *out is the caller's (mem_free).
 * bos and eos that are not given are left out. Local. */
enum status hf_config_print(const struct hf_config *config, char **out);

/* Whether a tensor of a Hugging Face file that is no parameter may be ignored. Such tensors are
 * buffers of old versions ("attn.masked_bias", "rotary_emb.inv_freq") and a tied head. The caller
 * compares a tied head bitwise with the embedding. Local. */
enum hf_extra { HF_EXTRA_UNKNOWN, HF_EXTRA_BUFFER, HF_EXTRA_TIED_HEAD };
enum hf_extra hf_extra(const struct model *model, const char *name);
/* The name of a parameter without the prefix that base models leave out ("transformer.h.0..." ->
 * "h.0...", "model.layers..." -> "layers..."); NULL if it has none. */
const char *hf_base_name(const struct model *model, const char *name);
/* The parameter that a tied head shares. */
const char *hf_embedding_name(const struct model *model);

/* The settings of PEFT's LoRA, of which adapter_config.json has more. Plain bytes. */
struct hf_adapter {
  int64_t rank;
  double alpha;
  bool rslora;
  char base[4096];    /* base_model_name_or_path, "": null */
  char targets[4096]; /* as lora.targets: "[*.q_proj.weight, *.v_proj.weight]" */
};
/* STATUS_INPUT naming a key that changes the arithmetic and that Sluice does not have. A dropout
 * is ignored with a warning. Local. */
enum status hf_adapter_read(const char *path, struct hf_adapter *out);
/* Text of the adapter_config.json of a model's adapters; *out is the caller's (mem_free).
 * adapter->targets is not read. Local. */
enum status hf_adapter_print(const struct model *model, const struct hf_adapter *adapter,
                             char **out);
