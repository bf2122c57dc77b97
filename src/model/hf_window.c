/* Sliding windows in config.json: for all blocks, from some block on, or block by block. */
#include "model/hf_private.h"

#include <string.h>

/* Blocks 0 .. from - 1 see all tokens, later blocks have the window. */
static enum status read_layer_types(const struct json_node *node, const struct model_config *model,
                                    int64_t *from)
{
  int64_t i = 0;
  *from = model->layers;
  if (json_kind(node) != JSON_ARRAY || json_length(node) != model->layers)
    return json_fail(node, "is not an array of %lld names, one per block",
                     (long long)model->layers);
  for (const struct json_node *item = json_first(node); item; item = json_next(item), i++) {
    const char *name = NULL;
    enum status status = json_get_text(item, &name, NULL);
    if (status)
      return status;
    const bool slides = !strcmp(name, "sliding_attention");
    if (!slides && strcmp(name, "full_attention") != 0)
      return json_fail(item, "is \"%.40s\"; Sluice knows full_attention and sliding_attention",
                       name);
    if (!slides && *from < i)
      return json_fail(item, "is full_attention after a block of sliding_attention; in Sluice all "
                             "blocks from a first one on have the window");
    if (slides && *from == model->layers)
      *from = i;
  }
  return STATUS_OK;
}

/* The window according to all keys except layer_types. */
static enum status read_window(const struct json_node *root, const struct hf_family *family,
                               int64_t *window, int64_t *from)
{
  const struct json_node *node = json_find(root, "sliding_window"),
                         *use = json_find(root, "use_sliding_window"),
                         *first = json_find(root, "max_window_layers");
  const bool optional = family->bit & (OF_QWEN2 | OF_QWEN3);
  bool used = !optional;
  enum status status = STATUS_OK;
  *window = family->window;
  *from = family->window_from;
  if (node && json_kind(node) == JSON_NULL)
    *window = 0;
  else if (node)
    status = json_get_whole(node, 1, 1 << 26, window);
  if (!status && optional && use)
    status = json_get_bool(use, &used);
  if (!status && optional && first)
    status = json_get_whole(first, 0, INT32_MAX, from);
  if (!used)
    *window = 0;
  return status;
}

enum status hf_read_windows(const struct json_node *root, const struct hf_family *family,
                            struct model_config *out)
{
  const struct json_node *types = json_find_said(root, "layer_types");
  int64_t window = 0, from = 0, listed = 0;
  enum status status = family->window ? read_window(root, family, &window, &from) : STATUS_OK;
  if (!status && types)
    status = read_layer_types(types, out, &listed);
  if (status)
    return status;
  const bool fixed = !(family->bit & (OF_QWEN2 | OF_QWEN3)); /* if there is no list */
  if (types && ((listed < out->layers && !window) || (fixed && window && listed > 0)))
    return json_fail(types, "does not agree with the sliding window, which is %lld",
                     (long long)window);
  if (types && !fixed)
    from = listed;
  if (window && from < out->layers) {
    out->window = window;
    out->window_from = from;
  }
  return STATUS_OK;
}
