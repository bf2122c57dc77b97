/* The embedding of tokens and, if the model has them, of positions. */
#include "model/decoder.h"

struct embedding {
  const void *tokens, *positions;
  void *dtokens, *dpositions;
};

static struct embedding bind(const struct model *model, struct model_params root, void *grads)
{
  const struct flat flat = flat_of(model, 0, root, grads);
  const int tokens = root_param(model, ROOT_TOKENS), positions = root_param(model, ROOT_POSITIONS);
  return (struct embedding){flat_param(&flat, tokens), flat_param(&flat, positions),
                            flat_grad(&flat, tokens), flat_grad(&flat, positions)};
}

enum status embedding_forward(const struct model_call *call)
{
  const struct embedding e = bind(call->model, call->params, NULL);
  const struct model_config *c = &call->model->config;
  const struct model_shape s = call->shape;
  if (call->past > c->context - s.T)
    return status_usage("a sequence of %lld tokens does not fit model.context %lld",
                        (long long)(call->past + s.T), (long long)c->context);
  return call->lane->device->ops->embedding(
      call->lane, shape_rows(s), s.T, c->width, c->vocab, call->token, e.tokens,
      element_at(e.positions, call->past * c->width, c->compute), call->x_out);
}

enum status embedding_backward(const struct model_call *call)
{
  const struct embedding e = bind(call->model, (struct model_params){0}, call->grads);
  const struct model_config *c = &call->model->config;
  const struct model_shape s = call->shape;
  const size_t row = (size_t)c->width * GRADIENT_BYTES;
  enum status status = STATUS_OK;
  const struct pass pass = {.lane = call->lane, .status = &status};
  if (e.dtokens && !call->accumulate)
    PASS_RUN(&pass, zero, e.dtokens, (size_t)c->vocab * row);
  if (e.dpositions && !call->accumulate) /* the row after the sequence too */
    PASS_RUN(&pass, zero, e.dpositions, (size_t)c->context * row);
  if (e.dtokens || e.dpositions)
    PASS_RUN(&pass, embedding_backward, shape_rows(s), s.T, c->width, c->vocab, call->token,
             call->d, e.dtokens, true, e.dpositions);
  return status;
}
