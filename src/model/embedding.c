/* The embedding of tokens and, if the model has them, of positions. */
#include "model/decoder.h"

static struct embedding rows_of(const struct model_call *call)
{
  const struct model_config *c = &call->model->config;
  return (struct embedding){.rows = shape_rows(call->shape),
                            .T = call->shape.T,
                            .C = c->width,
                            .V = c->vocab,
                            .P = c->context,
                            .token = call->batch.tokens,
                            .position = call->batch.positions};
}

enum status embedding_forward(const struct model_call *call)
{
  const struct flat root = flat_of(call->model, 0, call->params, NULL);
  const void *tokens = flat_param(&root, root_param(call->model, ROOT_TOKENS)),
             *positions = flat_param(&root, root_param(call->model, ROOT_POSITIONS));
  const struct model_config *c = &call->model->config;
  const struct model_shape s = call->shape;
  if (call->past > c->context - s.T)
    return status_usage("a sequence of %lld tokens does not fit model.context %lld",
                        (long long)(call->past + s.T), (long long)c->context);
  const struct embedding op = rows_of(call);
  return call->lane->device->ops->embedding(
      call->lane, &op, tokens, element_at(positions, call->past * c->width, c->compute),
      call->x_out);
}

enum status embedding_backward(const struct model_call *call)
{
  const struct flat root = flat_of(call->model, 0, (struct model_params){0}, call->grads);
  void *dtokens = flat_grad(&root, root_param(call->model, ROOT_TOKENS)),
       *dpositions = flat_grad(&root, root_param(call->model, ROOT_POSITIONS));
  const struct model_config *c = &call->model->config;
  const struct embedding op = rows_of(call);
  const size_t row = (size_t)c->width * GRADIENT_BYTES;
  enum status status = STATUS_OK;
  const struct pass pass = {.lane = call->lane, .status = &status};
  if (dtokens && !call->accumulate)
    PASS_RUN(&pass, zero, dtokens, (size_t)c->vocab * row);
  if (dpositions && !call->accumulate) /* the row after the sequence too */
    PASS_RUN(&pass, zero, dpositions, (size_t)c->context * row);
  if (dtokens || dpositions)
    PASS_RUN(&pass, embedding_backward, &op, call->d, dtokens, true, dpositions);
  return status;
}
