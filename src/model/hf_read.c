/* Reading config.json: the kind of model, each key by the table, and the checks of several keys. */
#include "model/hf_private.h"

#include <string.h>

enum { CONFIG_MOST = 1 << 20 };

/* NULL after a failure. */
static const struct hf_family *read_type(struct json_node root)
{
  const struct json_node node = json_find(root, "model_type");
  if (!node.value) {
    json_fail(root, "has no model_type: is it the config.json of a model?");
    return NULL;
  }
  const char *name = json_get_text(node);
  const struct hf_family *family = hf_family_find(name);
  if (!family)
    json_fail(node, "is \"%.40s\"; Sluice knows %s", name, hf_family_names().text);
  return family;
}

static void check_classes(struct json_node root, const struct hf_family *family)
{
  const struct json_node node = json_find_set(root, "architectures");
  if (node.value && !json_is_array(node.value))
    json_fail(node, "is not an array of names");
  for (struct json_node item = json_first(node); json_more(item); item = json_next(item)) {
    const char *name = json_get_text(item);
    if (strcmp(name, family->causal) != 0 && strcmp(name, family->base) != 0)
      json_fail(item, "is \"%.60s\"; Sluice reads %s and %s", name, family->causal, family->base);
  }
}

const char *const hf_dtypes[] = {
    [DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};

static enum dtype read_dtype(struct json_node root)
{
  struct json_node node = json_find_set(root, "dtype");
  if (!node.value)
    node = json_find_set(root, "torch_dtype");
  if (!node.value)
    return DTYPE_F32;
  const char *name = json_get_text(node), *bare = !strncmp(name, "torch.", 6) ? name + 6 : name;
  for (int type = 0; type < (int)(sizeof hf_dtypes / sizeof *hf_dtypes); type++)
    if (!strcmp(bare, hf_dtypes[type]))
      return type;
  json_fail(node, "is \"%.40s\"; Sluice reads float32, bfloat16 and float16", name);
  return DTYPE_F32;
}

/* If config.json has no head width, it is width / heads. */
static void check_heads(struct json_node root, const struct hf_family *family,
                        const struct model_config *model)
{
  const bool gpt2 = family->bit == OF_GPT2;
  const struct json_node width = json_find(root, gpt2 ? "n_embd" : "hidden_size");
  if (root.file->status || model->head_width)
    return;
  if (model->width / model->heads > MODEL_MOST_HEAD_WIDTH)
    json_fail(width, "is %lld, which gives each of %lld heads more than %d elements",
              (long long)model->width, (long long)model->heads, MODEL_MOST_HEAD_WIDTH);
  else if (model->width % model->heads != 0)
    json_fail(width, "is %lld, which %s %lld does not divide%s", (long long)model->width,
              gpt2 ? "n_head" : "num_attention_heads", (long long)model->heads,
              gpt2 ? "" : ", and there is no head_dim");
}

static void read_root(struct json_node root, struct hf_config *out)
{
  const struct hf_family *family = read_type(root);
  if (!family)
    return;
  *out = (struct hf_config){.model = {.arch = family->arch,
                                      .context = family->context,
                                      .head_width = family->head_width,
                                      .kv_heads = family->kv_heads,
                                      .tied = family->tied,
                                      .norm_eps = family->norm_eps,
                                      .init_std = 0.02}};
  check_classes(root, family);
  hf_apply_rules(root, family, out);
  check_heads(root, family, &out->model);
  out->dtype = read_dtype(root);
  if (family->bit & OF_ROPE) {
    out->model.rope = hf_read_rope(root);
    hf_read_windows(root, family, &out->model);
  }
  hf_check_unknown(root, family);
}

enum status hf_config_read(const char *path, struct hf_config *out)
{
  struct json_file file = {0};
  struct hf_config config = {0};
  enum status status = json_read(path, CONFIG_MOST, &file);
  if (!status) {
    read_root(json_root(&file), &config);
    status = file.status;
  }
  if (!status)
    *out = config;
  json_close(&file);
  return status;
}

static struct hf_tokens tokens_of(struct json_node root, const char *key)
{
  const struct json_node node = json_find_set(root, key);
  return node.value ? hf_read_tokens(node) : (struct hf_tokens){0};
}

enum status hf_config_tokens(const char *path, struct hf_tokens *bos, struct hf_tokens *eos)
{
  struct json_file file = {0};
  enum status status = json_read(path, CONFIG_MOST, &file);
  if (status)
    return status;
  const struct hf_tokens begin = tokens_of(json_root(&file), "bos_token_id"),
                         end = tokens_of(json_root(&file), "eos_token_id");
  status = file.status;
  json_close(&file);
  if (status)
    return status;
  *bos = begin;
  *eos = end;
  return STATUS_OK;
}
