#include "model/parts.h"

size_t cache_bytes(const struct model *model, struct device *device, int64_t B, int64_t capacity)
{
  const struct model_config *c = &model->config;
  struct carve total = {0};
  carve(&total, shape_rows((struct model_shape){B, capacity}), 2 * c->kv_heads * c->head_width, dtype_size(device->compute));
  return total.used;
}

/* A first chunk attends to itself, as in training, and needs other workspace than those behind it. */
size_t cache_scratch(const struct model *model, struct device *device, struct attention op, int threads)
{
  op.past = 0;
  size_t first = device->ops->attention_workspace(device, &op, threads);
  op.past = model->config.context - 1;
  size_t later = device->ops->attention_workspace(device, &op, threads);
  return first > later ? first : later;
}

/* A row of keys or values [K, D] at a time: rows of the products and of the cache are not equally far apart. */
enum status cache_append(struct lane *lane, const struct cache *cache, struct attention *op)
{
  const struct device *device = lane->device;
  const int64_t width = op->kv_heads * op->head_width, row = 2 * width;
  const size_t bytes = (size_t)width * dtype_size(device->compute);
  for (int64_t r = 0; r < op->batch * op->tokens; r++) {
    int64_t place = r / op->tokens * cache->capacity + cache->past + r % op->tokens;
    char *at = (char *)cache->base + (size_t)(place * row) * dtype_size(device->compute);
    enum status status = device->ops->copy(lane, at, element_at(op->k, r * op->k_stride, device), bytes);
    if (status == STATUS_OK)
      status = device->ops->copy(lane, at + bytes, element_at(op->v, r * op->v_stride, device), bytes);
    if (status)
      return status;
  }
  if (cache->past == 0)
    return STATUS_OK; /* the new ones are all there is */
  op->past = cache->past;
  op->k = cache->base;
  op->v = element_at(cache->base, width, device);
  op->k_stride = op->v_stride = row;
  op->kv_batch_stride = cache->capacity * row;
  return STATUS_OK;
}
