/* Reading config.json: the kind of model, each key by the table, and the checks of several keys. */
#include "model/hf_private.h"

#include <string.h>

enum { CONFIG_MOST = 1 << 20 };

static enum status read_type(const struct json_node *root, const struct hf_family **out)
{
  const char *name = NULL;
  const struct json_node *node = json_find(root, "model_type");
  if (json_kind(root) != JSON_OBJECT || !node)
    return json_fail(root, "has no model_type: is it the config.json of a model?");
  enum status status = json_get_text(node, &name, NULL);
  if (status)
    return status;
  *out = hf_family_find(name);
  return *out ? STATUS_OK
              : json_fail(node, "is \"%.40s\"; Sluice knows %s", name, hf_family_names().text);
}

static enum status check_classes(const struct json_node *root, const struct hf_family *family)
{
  const struct json_node *node = json_find_said(root, "architectures");
  enum status status = node && json_kind(node) != JSON_ARRAY
                           ? json_fail(node, "is not an array of names")
                           : STATUS_OK;
  for (const struct json_node *item = json_first(node); item && !status; item = json_next(item)) {
    const char *name = NULL;
    status = json_get_text(item, &name, NULL);
    if (!status && strcmp(name, family->causal) != 0 && strcmp(name, family->base) != 0)
      status = json_fail(item, "is \"%.60s\"; Sluice reads %s and %s", name, family->causal,
                         family->base);
  }
  return status;
}

static enum status read_dtype(const struct json_node *root, enum dtype *out)
{
  static const struct {
    const char *name;
    enum dtype type;
  } names[] = {{"float32", DTYPE_F32}, {"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}};
  const struct json_node *node = json_find_said(root, "dtype");
  const char *name = NULL;
  if (!node)
    node = json_find_said(root, "torch_dtype");
  if (!node)
    return STATUS_OK;
  enum status status = json_get_text(node, &name, NULL);
  if (status)
    return status;
  const char *bare = !strncmp(name, "torch.", 6) ? name + 6 : name;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(bare, names[i].name)) {
      *out = names[i].type;
      return STATUS_OK;
    }
  return json_fail(node, "is \"%.40s\"; Sluice reads float32, bfloat16 and float16", name);
}

/* If config.json has no head width, it is width / heads. */
static enum status check_heads(const struct json_node *root, const struct hf_family *family,
                               const struct model_config *model)
{
  const bool gpt2 = family->bit == OF_GPT2;
  if (model->head_width)
    return STATUS_OK;
  if (model->width / model->heads > MODEL_MOST_HEAD_WIDTH)
    return json_fail(json_find(root, gpt2 ? "n_embd" : "hidden_size"),
                     "is %lld, which gives each of %lld heads more than %d elements",
                     (long long)model->width, (long long)model->heads, MODEL_MOST_HEAD_WIDTH);
  if (model->width % model->heads == 0)
    return STATUS_OK;
  return json_fail(json_find(root, gpt2 ? "n_embd" : "hidden_size"),
                   "is %lld, which %s %lld does not divide%s", (long long)model->width,
                   gpt2 ? "n_head" : "num_attention_heads", (long long)model->heads,
                   gpt2 ? "" : ", and there is no head_dim");
}

static enum status read_root(const char *path, const struct json_node *root, struct hf_config *out)
{
  const struct hf_family *family = NULL;
  enum status status = read_type(root, &family);
  if (status)
    return status;
  struct hf_config config = {.model = {.arch = family->arch,
                                       .context = family->context,
                                       .head_width = family->head_width,
                                       .kv_heads = family->kv_heads,
                                       .tied = family->tied,
                                       .norm_eps = family->norm_eps,
                                       .init_std = 0.02},
                             .dtype = DTYPE_F32};
  status = check_classes(root, family);
  if (!status)
    status = hf_apply_rules(root, family, &config);
  if (!status)
    status = check_heads(root, family, &config.model);
  if (!status)
    status = read_dtype(root, &config.dtype);
  if (!status && family->bit & OF_ROPE)
    status = hf_read_rope(root, &config.model.rope);
  if (!status && family->bit & OF_ROPE)
    status = hf_read_windows(root, family, &config.model);
  if (!status)
    status = hf_check_unknown(path, root, family);
  if (!status)
    *out = config;
  return status;
}

enum status hf_config_read(const char *path, struct hf_config *out)
{
  struct json_tree *tree = NULL;
  enum status status = json_tree_read(path, CONFIG_MOST, &tree);
  if (!status)
    status = read_root(path, json_tree_root(tree), out);
  json_tree_free(tree);
  return status;
}

enum status hf_config_tokens(const char *path, struct hf_tokens *bos, struct hf_tokens *eos)
{
  struct json_tree *tree = NULL;
  enum status status = json_tree_read(path, CONFIG_MOST, &tree);
  if (status)
    return status;
  const struct json_node *root = json_tree_root(tree),
                         *first = json_find_said(root, "bos_token_id"),
                         *last = json_find_said(root, "eos_token_id");
  struct hf_tokens begin = {0}, end = {0};
  if (first)
    status = hf_read_tokens(first, &begin);
  if (!status && last)
    status = hf_read_tokens(last, &end);
  json_tree_free(tree);
  if (status)
    return status;
  *bos = begin;
  *eos = end;
  return STATUS_OK;
}
