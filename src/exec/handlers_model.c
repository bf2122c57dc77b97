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

/* The sources of the sequences of a micro-batch; NULL: they have one. */
static int32_t *sources_of(const struct call *call)
{
  const struct deck_shape *shape = &call->exec->plan->input.shape;
  const int64_t micro = call->n % KEPT * shape->micros + call->instr->micro;
  return call->exec->sources ? call->exec->sources + micro * shape->micro_batch : NULL;
}

/* Adds the targets of a micro-batch to those of the step, or its pairs. */
static enum status count_targets(const struct call *call, const struct model_batch *batch)
{
  const struct deck_shape *shape = &call->exec->plan->input.shape;
  const int sources = plan_sources(&call->exec->plan->input);
  struct exactsum *sum = call->exec->results->targets[call->n % KEPT];
  for (int s = 0; s < sources && call->instr->micro == 0; s++)
    exactsum_zero(&sum[s]);
  for (int64_t b = 0; b < shape->micro_batch; b++) {
    const int s = batch->sources ? batch->sources[b] : 0;
    int64_t n = 0;
    if (s < 0 || s >= sources)
      return status_set(STATUS_INTERNAL, "a sequence of source %d of %d", s, sources);
    if (batch->reference && b % 2 && batch->sources && s != batch->sources[b - 1])
      return status_set(STATUS_INTERNAL, "a pair of the sources %d and %d", batch->sources[b - 1],
                        s);
    if (batch->reference)
      n = b % 2;
    for (int64_t t = 0; t < shape->sequence && !batch->reference; t++)
      n += batch->targets[b * shape->sequence + t] >= 0;
    exactsum_add(&sum[s], (double)n);
    exactsum_normalize(&sum[s]);
  }
  return STATUS_OK;
}

/* Kernels rely on valid positions and documents. They check tokens and targets themselves. */
static enum status check_batch(const struct call *call, const struct model_batch *batch)
{
  const struct deck_shape *shape = &call->exec->plan->input.shape;
  const int64_t T = shape->sequence, context = model_of(call)->config.context;
  for (int64_t r = 0; r < shape->micro_batch * T; r++) {
    const int64_t position = batch->positions ? batch->positions[r] : 0,
                  first = batch->first ? batch->first[r] : 0,
                  before = batch->first && r % T > 0 ? batch->first[r - 1] : 0;
    if (position < 0 || position >= context)
      return status_set(STATUS_INPUT,
                        "token %lld of the batch has position %lld, and model.context is %lld",
                        (long long)r, (long long)position, (long long)context);
    if (first < before || first > r % T)
      return status_set(STATUS_INPUT,
                        "the document of token %lld of the batch begins at token %lld of its "
                        "sequence, but must begin at %lld to %lld",
                        (long long)r, (long long)first, (long long)before, (long long)(r % T));
  }
  return STATUS_OK;
}

enum status run_load(const struct call *call)
{
  const struct exec_config *config = &call->exec->config;
  const struct model_batch batch = {.tokens = use(call, LOAD_TOKENS),
                                    .targets = use(call, LOAD_TARGETS),
                                    .weights = use(call, LOAD_WEIGHTS),
                                    .positions = use(call, LOAD_POSITIONS),
                                    .first = use(call, LOAD_FIRST),
                                    .reference = use(call, LOAD_REFERENCE),
                                    .sources = sources_of(call)};
  enum status status = config->load(config->load_arg, call->args->step, call->instr->micro, &batch);
  if (batch.positions || batch.first)
    status = status ?: check_batch(call, &batch);
  return status || !batch.targets ? status : count_targets(call, &batch);
}

/* A call of a pass with the operands `params` and `scales`. scales -1: its unit has none. */
static struct model_call pass_of(const struct call *call, int params, int scales)
{
  return (struct model_call){
      .model = model_of(call),
      .lane = call->lane,
      .stage = call->instr->stage,
      .shape = shape_of(call),
      .params = {.flat = use(call, params), .scales = scales < 0 ? NULL : use(call, scales)}};
}

enum status run_embed(const struct call *call)
{
  struct model_call pass = pass_of(call, EMBED_PARAMS, -1);
  pass.past = call->args->past;
  pass.batch.tokens = use(call, EMBED_TOKENS);
  pass.batch.positions = use(call, EMBED_POSITIONS);
  pass.x_out = use(call, EMBED_OUT);
  return pass.model->ops->embed(&pass);
}

/* Also RECOMPUTE, which has no output. */
enum status run_forward(const struct call *call)
{
  struct model_call pass = pass_of(call, FORWARD_PARAMS, FORWARD_SCALES);
  pass.batch.positions = use(call, FORWARD_POSITIONS);
  pass.batch.first = use(call, FORWARD_FIRST);
  pass.x_in = use(call, FORWARD_IN);
  pass.x_out = use(call, FORWARD_OUT);
  pass.saved = use(call, FORWARD_SAVED);
  pass.work = use(call, FORWARD_WORK);
  return pass.model->ops->block_forward(&pass);
}

enum status run_decode(const struct call *call)
{
  const struct model_cache cache = {use(call, DECODE_CACHE), call->args->past,
                                    call->exec->plan->input.capacity};
  struct model_call pass = pass_of(call, DECODE_PARAMS, -1);
  pass.cache = &cache;
  pass.x_in = use(call, DECODE_IN);
  pass.x_out = use(call, DECODE_OUT);
  pass.work = use(call, DECODE_WORK);
  return pass.model->ops->block_forward(&pass);
}

/* The pass writes the gradient of operand i, or adds to it: its stage's part of the unit's.
 * Reductions, squares and updates use the whole gradient, but the model writes it only up to its
 * last parameter. So the rest is zeroed. */
static enum status take_grads(const struct call *call, int i, struct model_call *pass)
{
  const struct layout_unit *layout = &call->exec->plan->unit[call->instr->unit].layout;
  const struct layout_range part = model_stage_trained(model_of(call), call->instr->stage, layout);
  const int64_t size = (int64_t)dtype_size(call->lane->device->model.gradient);
  char *const grads = use(call, i);
  pass->accumulate = adds(call, i);
  if (!grads)
    return STATUS_OK;
  pass->grads = grads - part.begin * size;
  if (pass->accumulate || part.end <= layout->used)
    return STATUS_OK;
  return call->lane->device->ops->zero(call->lane, (char *)pass->grads + layout->used * size,
                                       (size_t)((part.end - layout->used) * size));
}

enum status run_loss(const struct call *call)
{
  struct exactsum *loss = use(call, LOSS_SUM);
  struct model_call pass = pass_of(call, LOSS_PARAMS, -1);
  enum status status = take_grads(call, LOSS_GRADS, &pass);
  if (!status && !adds(call, LOSS_SUM))
    status = call->lane->device->ops->zero(
        call->lane, loss, (size_t)plan_losses(&call->exec->plan->input) * sizeof *loss);
  if (status)
    return status;
  pass.x_in = use(call, LOSS_IN);
  pass.batch.targets = use(call, LOSS_TARGETS);
  pass.batch.weights = use(call, LOSS_WEIGHTS);
  pass.batch.sources = sources_of(call);
  pass.batch.reference = use(call, LOSS_REFERENCE);
  pass.scale = (float)(1 / (double)call->args->targets);
  pass.beta = call->instr->attr.beta;
  pass.loss = loss;
  pass.preferred = loss + plan_sources(&call->exec->plan->input);
  pass.d = use(call, LOSS_D);
  pass.work = use(call, LOSS_WORK);
  return pass.model->ops->head_loss(&pass);
}

enum status run_logits(const struct call *call)
{
  struct model_call pass = pass_of(call, LOGITS_PARAMS, -1);
  pass.x_in = use(call, LOGITS_IN);
  pass.position = call->args->tokens - 1;
  pass.logits = use(call, LOGITS_OUT);
  pass.work = use(call, LOGITS_WORK);
  return pass.model->ops->head_logits(&pass);
}

enum status run_backward(const struct call *call)
{
  struct model_call pass = pass_of(call, BACKWARD_PARAMS, BACKWARD_SCALES);
  const enum status status = take_grads(call, BACKWARD_GRADS, &pass);
  pass.batch.positions = use(call, BACKWARD_POSITIONS);
  pass.batch.first = use(call, BACKWARD_FIRST);
  pass.x_in = use(call, BACKWARD_IN);
  pass.saved = use(call, BACKWARD_SAVED);
  pass.d = use(call, BACKWARD_D);
  pass.work = use(call, BACKWARD_WORK);
  return status ? status : pass.model->ops->block_backward(&pass);
}

enum status run_embed_backward(const struct call *call)
{
  struct model_call pass = {.model = model_of(call), .lane = call->lane, .shape = shape_of(call)};
  const enum status status = take_grads(call, EMBED_BACKWARD_GRADS, &pass);
  pass.batch.tokens = use(call, EMBED_BACKWARD_TOKENS);
  pass.batch.positions = use(call, EMBED_BACKWARD_POSITIONS);
  pass.d = use(call, EMBED_BACKWARD_D);
  return status ? status : pass.model->ops->embed_backward(&pass);
}
