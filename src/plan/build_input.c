/* Checks the request for a plan, and computes the sizes of its buffers. */
#include <math.h>

#include "plan/builder.h"

enum { MOST_VISITS = 1 << 20 };

static int64_t times(int64_t a, int64_t b)
{
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* Shapes that the device's kernels refuse. */
static enum status check_shapes(const struct plan_input *input)
{
  const struct device_model *device = input->device;
  const struct model_config *config = &input->model->config;
  const int64_t tokens = times(input->shape.micro_batch, input->shape.sequence),
                fp8 = input->model->fp8 ? device->most_fp8 : 0;
  const struct {
    const char *key;
    int64_t value, most;
    const char *where;
  } limits[] = {
      {"model.width", config->width, device->most_norm, ""},
      {"model.head_width", config->head_width, device->most_head, ""},
      {"data.micro_batch x data.sequence x model.heads", times(tokens, config->heads),
       device->most_queries, ""},
      {"data.micro_batch x data.sequence", tokens, fp8, " in fp8"},
      {"model.heads x model.head_width", config->heads * config->head_width, fp8, " in fp8"},
      {"model.ffn", config->ffn, fp8, " in fp8"}};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
    if (limits[i].most > 0 && limits[i].value > limits[i].most)
      return status_set(STATUS_UNSUPPORTED,
                        "%s is %lld, and the kernels for GPUs take at most %lld%s: lower it, or "
                        "set run.device=host",
                        limits[i].key, (long long)limits[i].value, (long long)limits[i].most,
                        limits[i].where);
  return STATUS_OK;
}

enum status plan_check_length(const struct plan_input *input)
{
  const int64_t micros = input->shape.micros, units = input->model->units;
  return micros <= MOST_VISITS / (2 * input->model->stages)
             ? STATUS_OK
             : status_usage("a step of %lld micro-batches through %lld units is too long a plan: "
                            "raise data.micro_batch",
                            (long long)micros, (long long)units);
}

static bool is_mesh(const struct plan_input *input)
{
  const struct mesh mesh = plan_mesh(input);
  return mesh_ranks(&mesh, MESH_WORLD) == input->ranks;
}

enum status build_check_input(const struct plan_input *input)
{
  const struct deck_shape *shape = &input->shape;
  if (input->ranks < 1 || input->rank < 0 || input->rank >= input->ranks)
    return status_usage("rank %d of %d ranks is not a place in a job", input->rank, input->ranks);
  if (shape->group < 1 || shape->ranks != input->ranks || !is_mesh(input))
    return status_usage("shard.group: groups of %d are no mesh of %d ranks", shape->group,
                        input->ranks);
  if (shape->micro_batch < 1 || shape->micros < 1 || shape->sequence < 1 || input->prefetch < 0)
    return status_usage("a plan needs at least one micro-batch of one sequence of one "
                        "token, and no negative prefetch");
  if (input->mode == PLAN_GENERATE && shape->micros != 1)
    return status_usage("generation works on one micro-batch a step, not %lld",
                        (long long)shape->micros);
  if (input->mode == PLAN_GENERATE && input->capacity < shape->sequence)
    return status_usage("a cache of %lld tokens cannot take the %lld new ones of a step",
                        (long long)input->capacity, (long long)shape->sequence);
  if (input->mode == PLAN_GENERATE && (input->weights || input->positions || input->documents))
    return status_usage("generation takes tokens, without weights, positions or documents");
  if (input->beta != 0 &&
      (!(input->beta > 0 && input->beta < INFINITY) || input->weights ||
       input->mode != PLAN_TRAIN || shape->sequence < 2 || shape->micro_batch % 2 != 0))
    return status_usage("a loss of pairs needs training, a finite beta above 0, no weights, "
                        "sequences of 2 tokens, and an even number of them in a micro-batch, not "
                        "%lld",
                        (long long)shape->micro_batch);
  if (input->model->blocks < 1)
    return status_usage("model.layers: a plan needs at least one decoder block");
  if ((input->device->compute != DTYPE_F32 && input->device->compute != DTYPE_BF16) ||
      input->device->gradient != DTYPE_F32)
    return status_set(STATUS_UNSUPPORTED,
                      "compute in %s with gradients in %s: plans are made for compute in fp32 or "
                      "bf16 with gradients in fp32",
                      dtype_name(input->device->compute), dtype_name(input->device->gradient));
  if (input->model->config.compute != input->device->compute)
    return status_set(STATUS_INTERNAL, "the model computes in %s, but its device in %s",
                      dtype_name(input->model->config.compute), dtype_name(input->device->compute));
  if (input->model->fp8 && input->mode != PLAN_GENERATE && shape->sequence % FP8_TILE != 0)
    return status_usage(
        "run.compute=fp8 needs sequences of a multiple of %d tokens, not %lld: change "
        "data.sequence, or use run.compute=bf16",
        FP8_TILE, (long long)shape->sequence);
  const enum status status = plan_check_length(input) ?: check_shapes(input);
  return status ? status : unit_policy_check(input);
}

static enum status size_from(size_t bytes, int64_t *out)
{
  if (bytes > (size_t)1 << 62)
    return status_usage(
        "a micro-batch needs more than 2^62 bytes: lower data.micro_batch or data.sequence");
  *out = (int64_t)bytes;
  return STATUS_OK;
}

/* Sizes of a stage of a block. */
static enum status measure_stage(struct builder *b, int stage, struct model_shape s)
{
  const struct plan_input *input = &b->plan->input;
  const struct model_ops *ops = b->model->ops;
  struct stage_buffers *const own = &b->stage[stage];
  const enum status status = size_from(ops->saved_bytes(b->model, stage, s), &own->saved_bytes);
  return status || input->mode != PLAN_GENERATE
             ? status
             : size_from(ops->cache_bytes(b->model, stage, s.B, input->capacity),
                         &own->cache_bytes);
}

enum status build_measure(struct builder *b)
{
  const struct plan_input *input = &b->plan->input;
  const struct model *model = input->model;
  struct sizes *const size = &b->size;
  const struct model_shape s = {input->shape.micro_batch, input->shape.sequence};
  const bool generates = input->mode == PLAN_GENERATE;
  const struct {
    enum model_work what;
    int64_t *size;
  } works[] = {{WORK_FORWARD, &size->work_forward},
               {WORK_FORWARD_SAVED, &size->work_forward_saved},
               {WORK_BACKWARD, &size->work_backward},
               {generates                   ? WORK_LOGITS
                : input->beta > 0           ? WORK_PREFERENCES
                : input->mode == PLAN_TRAIN ? WORK_LOSS_GRADIENT
                                            : WORK_LOSS,
                &size->work_loss},
               {WORK_DECODE, &size->work_decode}};
  const size_t n = sizeof works / sizeof *works - !generates;
  int64_t tokens;
  enum status status = layout_mul(s.B, s.T, &tokens);
  status = status ?: layout_mul(tokens, sizeof(int32_t), &tokens);
  status = status ?: layout_mul(s.B, model->config.vocab, &size->logits);
  status = status ?: layout_mul(size->logits, sizeof(float), &size->logits);
  status = status ?: size_from(model_stream_bytes(model, s), &size->x);
  for (size_t w = 0; w < n && !status; w++)
    status =
        size_from(model->ops->work_bytes(model, input->device, s, works[w].what, input->threads),
                  works[w].size);
  for (int t = 0; t < model->stages && !status; t++)
    if (model->stage[t].kind == STAGE_BLOCK)
      status = measure_stage(b, t, s);
  return status;
}
