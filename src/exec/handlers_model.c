/* Calls of the model: tokens, forward and backward passes, loss. */
#include "exec/handlers.h"

/* In generation a step has as many tokens as exec_set_window() set. */
static struct model_shape shape_of(const struct call *call)
{
  const struct plan_input *input = &call->exec->plan->input;
  return (struct model_shape){.B = input->shape.micro_batch,
                              .T = input->mode == PLAN_GENERATE ? call->args->tokens
                                                                : input->shape.sequence};
}

static struct model_params params_of(const struct call *call, int flat, int scales)
{
  return (struct model_params){.flat = use(call, flat), .scales = use(call, scales)};
}

/* The targets lie after the tokens. */
static int32_t *targets_of(const struct call *call, void *tokens)
{
  const struct deck_shape *shape = &call->exec->plan->input.shape;
  return (int32_t *)tokens + shape->micro_batch * shape->sequence;
}

enum status run_load(const struct call *call)
{
  const struct exec_config *config = &call->exec->config;
  void *tokens = use(call, LOAD_TOKENS);
  return config->load(config->load_arg, call->args->step, call->instr->micro, tokens,
                      targets_of(call, tokens));
}

enum status run_embed(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->embed(model, call->lane, shape_of(call), call->args->past,
                           use(call, EMBED_PARAMS), use(call, EMBED_TOKENS), use(call, EMBED_OUT));
}

/* Also RECOMPUTE, which has no output. */
enum status run_forward(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->block_forward(model, call->lane, call->instr->unit, shape_of(call), NULL,
                                   params_of(call, FORWARD_PARAMS, FORWARD_SCALES),
                                   use(call, FORWARD_IN), use(call, FORWARD_OUT),
                                   use(call, FORWARD_SAVED), use(call, FORWARD_WORK));
}

enum status run_decode(const struct call *call)
{
  const struct model *model = model_of(call);
  const struct model_cache cache = {use(call, DECODE_CACHE), call->args->past,
                                    call->exec->plan->input.capacity};
  return model->ops->block_forward(model, call->lane, call->instr->unit, shape_of(call), &cache,
                                   (struct model_params){.flat = use(call, DECODE_PARAMS)},
                                   use(call, DECODE_IN), use(call, DECODE_OUT), NULL,
                                   use(call, DECODE_WORK));
}

static enum status zero_elements(const struct call *call, void *base, int64_t begin, int64_t end)
{
  int64_t size = (int64_t)dtype_size(call->lane->device->model.gradient);
  if (begin == end)
    return STATUS_OK;
  return call->lane->device->ops->zero(call->lane, (char *)base + begin * size,
                                       (size_t)((end - begin) * size));
}

/* Reductions, squares and updates use the whole gradient, but the model writes it only up to its
 * last parameter. So the rest is zeroed. */
static enum status zero_padding(const struct call *call, int i)
{
  const struct layout_unit *layout = &call->exec->plan->unit[call->instr->unit].layout;
  return use(call, i) && !adds(call, i)
             ? zero_elements(call, use(call, i), layout->used, layout->trained)
             : STATUS_OK;
}

enum status run_loss(const struct call *call)
{
  struct exactsum *loss = use(call, LOSS_SUM);
  const struct model *model = model_of(call);
  enum status status = zero_padding(call, LOSS_GRADS);
  if (status)
    return status;
  if (!adds(call, LOSS_SUM))
    status = call->lane->device->ops->zero(call->lane, loss, sizeof *loss);
  if (status)
    return status;
  return model->ops->head_loss(model, call->lane, shape_of(call), use(call, LOSS_PARAMS),
                               use(call, LOSS_IN), targets_of(call, use(call, LOSS_TOKENS)),
                               (float)(1 / call->exec->step_tokens), loss, use(call, LOSS_D),
                               adds(call, LOSS_GRADS), use(call, LOSS_GRADS), use(call, LOSS_WORK));
}

enum status run_logits(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->head_logits(model, call->lane, shape_of(call), use(call, LOGITS_PARAMS),
                                 use(call, LOGITS_IN), call->args->tokens - 1,
                                 use(call, LOGITS_OUT), use(call, LOGITS_WORK));
}

enum status run_backward(const struct call *call)
{
  const struct model *model = model_of(call);
  enum status status = zero_padding(call, BACKWARD_GRADS);
  if (status)
    return status;
  return model->ops->block_backward(
      model, call->lane, call->instr->unit, shape_of(call),
      params_of(call, BACKWARD_PARAMS, BACKWARD_SCALES), use(call, BACKWARD_IN),
      use(call, BACKWARD_SAVED), use(call, BACKWARD_D), adds(call, BACKWARD_GRADS),
      use(call, BACKWARD_GRADS), use(call, BACKWARD_WORK), use_bytes(call, BACKWARD_WORK));
}

enum status run_embed_backward(const struct call *call)
{
  const struct model *model = model_of(call);
  enum status status = zero_padding(call, EMBED_BACKWARD_GRADS);
  if (status)
    return status;
  return model->ops->embed_backward(model, call->lane, shape_of(call),
                                    use(call, EMBED_BACKWARD_TOKENS), use(call, EMBED_BACKWARD_D),
                                    adds(call, EMBED_BACKWARD_GRADS),
                                    use(call, EMBED_BACKWARD_GRADS));
}
