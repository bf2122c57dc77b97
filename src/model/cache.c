/* Keys and values of generated tokens, appended position by position. */
#include "model/parts.h"

size_t cache_bytes(const struct model *model, int64_t B, int64_t capacity)
{
  const struct model_config *c = &model->config;
  struct carve total = {0};
  carve(&total, shape_rows((struct model_shape){B, capacity}), 2 * c->kv_heads * c->head_width,
        dtype_size(c->compute));
  return total.used;
}

/* A first chunk attends to itself, as in training, and needs a different workspace from later
 * chunks. */
size_t cache_scratch(const struct model *model, const struct device_model *device,
                     struct attention op, int threads)
{
  op.past = 0;
  size_t first = device->attention_workspace(device, &op, threads);
  op.past = model->config.context - 1;
  size_t later = device->attention_workspace(device, &op, threads);
  return first > later ? first : later;
}

/* Copies rows of keys or values [K, D]. The products and the cache have different row strides.
 */
void cache_append(const struct pass *pass, const struct model_cache *cache, struct attention *op)
{
  const int64_t width = op->kv_heads * op->head_width, row = 2 * width;
  const size_t size = dtype_size(pass->type), bytes = (size_t)width * size;
  for (int64_t b = 0; b < op->batch; b++) {
    char *at = (char *)cache->base + (size_t)((b * cache->capacity + cache->past) * row) * size;
    const void *k = element_at(op->k, b * op->tokens * op->k_stride, pass->type),
               *v = element_at(op->v, b * op->tokens * op->v_stride, pass->type);
    PASS_RUN(pass, copy_rows, op->tokens, bytes, at, (size_t)row * size, k,
             (size_t)op->k_stride * size);
    PASS_RUN(pass, copy_rows, op->tokens, bytes, at + bytes, (size_t)row * size, v,
             (size_t)op->v_stride * size);
  }
  if (cache->past == 0)
    return; /* there are only the new tokens */
  op->past = cache->past;
  op->k = cache->base;
  op->v = element_at(cache->base, width, pass->type);
  op->k_stride = op->v_stride = row;
  op->kv_batch_stride = cache->capacity * row;
}
