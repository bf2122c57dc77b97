/* Shared by the parts that read config.json. The files are hf_read.c (the whole), hf_keys.c (the
 * table of keys), hf_names.c (families), hf_rope.c (rotary positions) and hf_window.c (windows).
 * Private to src/model/hf*.c. Failures stay in the file (io/text/json.h). */
#pragma once

#include "io/text/json.h"
#include "model/hf.h"

/* Properties of Hugging Face's configurations of one architecture. */
/* clang-format off */
enum hf_of {
  OF_GPT2 = 1, OF_LLAMA = 2, OF_QWEN2 = 4, OF_QWEN3 = 8, OF_MISTRAL = 16,
  OF_ROPE = OF_LLAMA | OF_QWEN2 | OF_QWEN3 | OF_MISTRAL,
  OF_ALL = OF_GPT2 | OF_ROPE
};
/* clang-format on */

struct hf_family {
  const char *arch; /* also model_type */
  enum hf_of bit;
  const char *causal, *base; /* classes; `base` lacks the head, and its tensors the prefix */
  const char *prefix;        /* "model." */
  const char *activation;    /* as it is written */
  /* Defaults of the class if config.json does not give them (transformers 5.x and 4.x). */
  bool tied;
  /* kv_heads 0: heads; head_width 0: width / heads */
  int64_t kv_heads, head_width, context, window, window_from;
  double norm_eps;
};

/* NULL: unknown. */
const struct hf_family *hf_family_find(const char *arch);
/* "gpt2, llama, ..." */
struct hf_names {
  char text[128];
};
struct hf_names hf_family_names(void);

extern const char *const hf_dtypes[]; /* names of F32, BF16 and F16 */
double hf_read_real(struct json_node node, double least, double most);
struct hf_tokens hf_read_tokens(struct json_node node); /* an id, or a list of them */
void hf_check_one(struct json_node node);               /* the number 1 */

/* Reads all keys of the family's table. */
void hf_apply_rules(struct json_node root, const struct hf_family *family, struct hf_config *out);
/* Keys that are not used: they are refused, or a warning names them. */
void hf_check_unknown(struct json_node root, const struct hf_family *family);

struct rope_config hf_read_rope(struct json_node root);
/* `out` has its layers. */
void hf_read_windows(struct json_node root, const struct hf_family *family,
                     struct model_config *out);
