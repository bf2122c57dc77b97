/* The embedding of tokens and, if the model has them, of positions. */
#include "model/decoder.h"

struct embedding {
  const void *tokens, *positions;
  void *dtokens, *dpositions;
};

static struct embedding bind(const struct model *model, const void *root, void *grads)
{
  const struct flat flat = flat_of(model, 0, root, grads);
  const int tokens = root_param(model, ROOT_TOKENS), positions = root_param(model, ROOT_POSITIONS);
  struct embedding e = {flat_param(&flat, tokens), NULL, flat_grad(&flat, tokens), NULL};
  if (positions >= 0) {
    e.positions = flat_param(&flat, positions);
    e.dpositions = flat_grad(&flat, positions);
  }
  return e;
}

enum status embedding_forward(const struct model *model, struct lane *lane, struct model_shape s,
                              int64_t past, const void *root, const int32_t *token, void *x)
{
  const struct embedding e = bind(model, root, NULL);
  const struct model_config *c = &model->config;
  if (past > c->context - s.T)
    return status_set(STATUS_USAGE, "a sequence of %lld tokens does not fit model.context %lld",
                      (long long)(past + s.T), (long long)c->context);
  return lane->device->ops->embedding(lane, shape_rows(s), s.T, c->width, c->vocab, token, e.tokens,
                                      element_at(e.positions, past * c->width, c->compute), x);
}

enum status embedding_backward(const struct model *model, struct lane *lane, struct model_shape s,
                               const int32_t *token, const void *d, bool accumulate, void *grads)
{
  const struct embedding e = bind(model, NULL, grads);
  const struct model_config *c = &model->config;
  const struct device *device = lane->device;
  size_t row = (size_t)c->width * GRADIENT_BYTES;
  enum status status = STATUS_OK;
  if (e.dtokens && !accumulate)
    status = device->ops->zero(lane, e.dtokens, (size_t)c->vocab * row);
  if (status == STATUS_OK && e.dpositions && !accumulate)
    status = device->ops->zero(lane, e.dpositions,
                               (size_t)c->context * row); /* the row after the sequence too */
  if (status == STATUS_OK && (e.dtokens || e.dpositions))
    status = device->ops->embedding_backward(lane, shape_rows(s), s.T, c->width, c->vocab, token, d,
                                             e.dtokens, true, e.dpositions);
  return status;
}
