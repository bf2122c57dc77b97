#include "model/parts.h"

struct embedding embedding_bind(const struct flat *flat, int tokens, int positions)
{
  struct embedding e = {.tokens = flat_param(flat, tokens), .dtokens = flat_grad(flat, tokens)};
  if (positions >= 0) {
    e.positions = flat_param(flat, positions);
    e.dpositions = flat_grad(flat, positions);
  }
  return e;
}

enum status embedding_forward(const struct embedding *e, const struct model *model, struct lane *lane, struct model_shape s, int64_t past,
                              const int32_t *token, void *x)
{
  const struct model_config *c = &model->config;
  if (past > c->context - s.T)
    return status_set(STATUS_USAGE, "a sequence of %lld tokens does not fit model.context %lld", (long long)(past + s.T), (long long)c->context);
  return lane->device->ops->embedding(lane, shape_rows(s), s.T, c->width, c->vocab, token, e->tokens,
                                      element_at(e->positions, past * c->width, c->compute), x);
}

enum status embedding_backward(const struct embedding *e, const struct model *model, struct lane *lane, struct model_shape s, const int32_t *token,
                               const void *d, bool accumulate)
{
  const struct model_config *c = &model->config;
  const struct device *device = lane->device;
  size_t row = (size_t)c->width * GRADIENT_BYTES;
  enum status status = STATUS_OK;
  if (e->dtokens && !accumulate)
    status = device->ops->zero(lane, e->dtokens, (size_t)c->vocab * row);
  if (status == STATUS_OK && e->dpositions && !accumulate)
    status = device->ops->zero(lane, e->dpositions, (size_t)c->context * row); /* behind the sequence too */
  if (status == STATUS_OK && (e->dtokens || e->dpositions))
    status = device->ops->embedding_backward(lane, shape_rows(s), s.T, c->width, c->vocab, token, d, e->dtokens, true, e->dpositions);
  return status;
}
