/* Sliding windows in config.json: for all blocks, from some block on, or block by block. */
#include "model/hf_private.h"

#include <string.h>

/* Returns the number of blocks that see all tokens; the ones after them have the window. */
static int64_t read_layer_types(struct json_node node, int64_t layers)
{
  int64_t from = layers;
  if (!json_is_array(node.value) || (int64_t)json_length(node) != layers)
    json_fail(node, "is not an array of %lld names, one per block", (long long)layers);
  for (struct json_node item = json_first(node); json_more(item); item = json_next(item)) {
    const char *name = json_get_text(item);
    const bool slides = !strcmp(name, "sliding_attention");
    if (!slides && strcmp(name, "full_attention") != 0)
      json_fail(item, "is \"%.40s\"; Sluice knows full_attention and sliding_attention", name);
    if (!slides && from < (int64_t)item.index)
      json_fail(item, "is full_attention after a block of sliding_attention; in Sluice all blocks "
                      "from a first one on have the window");
    if (slides && from == layers)
      from = (int64_t)item.index;
  }
  return from;
}

/* The window according to all keys except layer_types. 0: there is none. */
static int64_t read_window(struct json_node root, const struct hf_family *family, bool optional,
                           int64_t *from)
{
  const struct json_node node = json_find(root, "sliding_window"),
                         use = json_find(root, "use_sliding_window"),
                         first = json_find(root, "max_window_layers");
  int64_t window = json_is_null(node.value) ? 0 : family->window;
  bool used = !optional;
  if (node.value && !json_is_null(node.value))
    window = json_get_whole(node, 1, 1 << 26);
  if (optional && use.value)
    used = json_get_bool(use);
  *from = family->window_from;
  if (optional && first.value)
    *from = json_get_whole(first, 0, INT32_MAX);
  return used ? window : 0;
}

void hf_read_windows(struct json_node root, const struct hf_family *family,
                     struct model_config *out)
{
  const struct json_node types = json_find_set(root, "layer_types");
  const bool optional = family->bit & (OF_QWEN2 | OF_QWEN3);
  int64_t from = 0;
  const int64_t window = family->window ? read_window(root, family, optional, &from) : 0,
                listed = types.value ? read_layer_types(types, out->layers) : 0;
  if (types.value && ((listed < out->layers && !window) || (!optional && window && listed > 0)))
    json_fail(types, "does not agree with the sliding window, which is %lld", (long long)window);
  if (types.value && optional)
    from = listed;
  if (window && from < out->layers) {
    out->window = window;
    out->window_from = from;
  }
}
