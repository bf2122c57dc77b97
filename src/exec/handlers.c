/* One small function per operation, which depends only on operands and attributes. run[] names
 * them. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "base/clock.h"
#include "base/hash.h"
#include "compress/compress.h"
#include "exec/engine.h"
#include "io/store/store.h"
#include "model/model.h"
#include "plan/ops.h"

struct call {
  struct exec *exec;
  struct lane *lane;
  const struct instr *instr;
  int index;
  int64_t n; /* the step, counted from create */
  const struct step_args *args;
};

static void *use(const struct call *call, int i)
{
  return call->instr->use[i].buffer < 0
             ? NULL
             : call->exec->pointer[call->n & 1][call->instr->use[i].buffer];
}

static bool adds(const struct call *call, int i)
{
  return call->instr->use[i].buffer >= 0 && call->instr->use[i].access == ACCESS_ADD;
}

static const struct plan_buffer *buffer_of(const struct call *call, int i)
{
  return &call->exec->plan->buffer[call->instr->use[i].buffer];
}

static struct comm_group *group_of(const struct call *call)
{
  return call->exec->group[call->instr->attr.group];
}

static int64_t use_bytes(const struct call *call, int i)
{
  return buffer_of(call, i)->bytes;
}

static const struct model *model_of(const struct call *call)
{
  return call->exec->config.model;
}

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

/* Gather -> get -> release: a window holds one unit of one step from its GATHERs to its RELEASE,
 * and no other instruction may touch its bytes. A GATHER writes the window itself, or parts of it.
 * The list of windows that are held is short, so no check walks through all buffers. */
static enum status refuse_window(const struct call *call, int buffer, const char *why)
{
  char name[96];
  plan_instr_name(call->exec->plan, call->index, name, sizeof name);
  return status_set(STATUS_INTERNAL, "%s in step %" PRId64 ": the window %s %s", name,
                    call->args->step, call->exec->plan->buffer[buffer].name, why);
}

static bool bytes_overlap(const struct exec *exec, int a, int b)
{
  const char *pa = exec->pointer[0][a], *pb = exec->pointer[0][b];
  return pa < pb + exec->plan->buffer[b].bytes && pb < pa + exec->plan->buffer[a].bytes;
}

static bool is_part(const struct exec *exec, int part, int window)
{
  return part == window || exec->plan->buffer[part].parent == window;
}

static enum status open_window(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  bool free = true;
  if (exec->plan->buffer[buffer].unit != call->instr->unit)
    return refuse_window(call, buffer, "belongs to another unit");
  pthread_mutex_lock(&exec->mutex);
  for (int h = 0; h < exec->n_held; h++)
    free &= !bytes_overlap(exec, exec->held[h].buffer, buffer);
  pthread_mutex_unlock(&exec->mutex);
  return free ? STATUS_OK : refuse_window(call, buffer, "lies over one that has not been released");
}

/* The window is held from here on, if the buffer is not gathered further into another one. */
static void hold_window(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  if (!exec->is_window[buffer])
    return;
  pthread_mutex_lock(&exec->mutex);
  exec->held[exec->n_held++] = (struct held){buffer, call->n};
  pthread_mutex_unlock(&exec->mutex);
}

/* The step whose parameters a part of a window holds; 0: none. */
static int64_t step_of(struct exec *exec, int buffer)
{
  int64_t step = 0;
  pthread_mutex_lock(&exec->mutex);
  for (int h = 0; h < exec->n_held; h++)
    if (exec->held[h].buffer == buffer)
      step = exec->held[h].step;
  pthread_mutex_unlock(&exec->mutex);
  return step;
}

static enum status refuse_part(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  for (int b = 0; b < exec->plan->buffers; b++) {
    const int64_t step =
        exec->is_window[b] && is_part(exec, b, buffer) ? step_of(exec, b) : call->n;
    if (step != call->n)
      return refuse_window(call, b,
                           step ? "holds the parameters of another step" : "has not been gathered");
  }
  return STATUS_OK;
}

static enum status check_window(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  int parts = 0;
  if (exec->plan->buffer[buffer].unit != call->instr->unit)
    return refuse_window(call, buffer, "belongs to another unit");
  pthread_mutex_lock(&exec->mutex);
  for (int h = 0; h < exec->n_held; h++)
    parts += exec->held[h].step == call->n && is_part(exec, exec->held[h].buffer, buffer);
  pthread_mutex_unlock(&exec->mutex);
  return parts == exec->parts[buffer] ? STATUS_OK : refuse_part(call, buffer);
}

static enum status run_load(const struct call *call)
{
  const struct exec_config *config = &call->exec->config;
  void *tokens = use(call, LOAD_TOKENS);
  return config->load(config->load_arg, call->args->step, call->instr->micro, tokens,
                      targets_of(call, tokens));
}

/* This rank's trained or frozen part of a unit in fp8, which operand k holds. */
static struct model_fp8_part part_of(const struct call *call, int k, bool frozen)
{
  const struct plan *plan = call->exec->plan;
  const int unit = call->instr->unit;
  return (struct model_fp8_part){.unit = unit,
                                 .layout = &plan->unit[unit].layout,
                                 .range = frozen ? plan->unit[unit].frozen_owned
                                                 : plan->unit[unit].owned,
                                 .type = buffer_of(call, k)->dtype,
                                 .x = use(call, k)};
}

static enum status run_measure(const struct call *call)
{
  const struct model *model = model_of(call);
  const struct device_ops *ops = call->lane->device->ops;
  struct comm_group *group = group_of(call);
  void *const scales = use(call, MEASURE_SCALES);
  const int64_t bytes = use_bytes(call, MEASURE_SCALES);
  enum status status = ops->zero(call->lane, scales, (size_t)bytes);
  for (int frozen = 0; frozen <= 1 && !status; frozen++) {
    const int k = frozen ? MEASURE_FROZEN : MEASURE_TRAINED;
    if (!use(call, k))
      continue;
    const struct model_fp8_part part = part_of(call, k, frozen);
    status = model_fp8_measure(model, call->lane, &part, scales);
  }
  if (status || !group)
    return status;
  return comm_exchange(group, call->lane, scales, bytes / comm_group_size(group),
                       use(call, MEASURE_RECEIVED));
}

/* This member's share, at its place among all. */
static enum status merge_share(const struct call *call, struct comm_group *group)
{
  const int members = comm_group_size(group);
  const int64_t bytes = use_bytes(call, SCALES_ALL) / members;
  char *const mine = (char *)use(call, SCALES_ALL) + comm_group_index(group) * bytes;
  const enum status status =
      call->lane->device->ops->fp8_merge(call->lane, bytes / (int64_t)sizeof(uint32_t), members,
                                         use(call, SCALES_RECEIVED), (uint32_t *)mine);
  return status ? status : comm_all_gather(group, call->lane, mine, bytes, use(call, SCALES_ALL));
}

static enum status run_gather_scales(const struct call *call)
{
  const struct model *model = model_of(call);
  struct comm_group *group = group_of(call);
  void *const scales = use(call, SCALES_ALL);
  enum status status = group ? merge_share(call, group) : STATUS_OK;
  if (!status)
    status = model_fp8_scale(model, call->lane, call->instr->unit, scales);
  if (status || !use(call, SCALES_CODES))
    return status;
  const struct model_fp8_part part = part_of(call, SCALES_TRAINED, false);
  return model_fp8_code(model, call->lane, &part, scales, use(call, SCALES_CODES));
}

/* This rank's part of a window, from a shard of another type. */
static enum status convert_shard(const struct call *call, void *place)
{
  const struct plan *plan = call->exec->plan;
  const struct plan_buffer *shard = buffer_of(call, GATHER_SHARD),
                           *window = buffer_of(call, GATHER_WHOLE);
  if (!use(call, GATHER_BY_SCALES))
    return call->lane->device->ops->cast(call->lane, shard->elements, shard->dtype,
                                         use(call, GATHER_SHARD), window->dtype, place);
  const int64_t begin = window->parent < 0 ? 0 : window->parent_offset; /* a byte per element */
  const bool frozen = begin >= plan->unit[call->instr->unit].layout.trained;
  const struct model_fp8_part part = part_of(call, GATHER_SHARD, frozen);
  return model_fp8_code(model_of(call), call->lane, &part, use(call, GATHER_BY_SCALES), place);
}

/* If the types differ, this rank's part of a window is cast from its shard, in place. The
 * all-gather brings the other ranks' parts. */
static enum status gather(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  struct comm_group *group = group_of(call);
  const struct plan_buffer *shard = buffer_of(call, GATHER_SHARD),
                           *window = buffer_of(call, GATHER_WHOLE);
  const int64_t count = shard->elements;
  const bool casts = shard->dtype != window->dtype;
  if (!casts && group)
    return comm_all_gather(group, call->lane, use(call, GATHER_SHARD), shard->bytes,
                           use(call, GATHER_WHOLE));
  const int64_t size = (int64_t)dtype_size(window->dtype);
  void *place =
      (char *)use(call, GATHER_WHOLE) + (group ? comm_group_index(group) * count * size : 0);
  enum status status =
      casts ? convert_shard(call, place)
            : ops->copy(call->lane, place, use(call, GATHER_SHARD), (size_t)(count * size));
  return status || !group
             ? status
             : comm_all_gather(group, call->lane, place, count * size, use(call, GATHER_WHOLE));
}

static enum status run_gather(const struct call *call)
{
  const int window = call->instr->use[GATHER_WHOLE].buffer;
  enum status status = open_window(call, window);
  if (!status)
    status = gather(call);
  if (!status)
    hold_window(call, window);
  return status;
}

/* A copy between tiers. */
static enum status run_move(const struct call *call)
{
  const struct exec_config *config = &call->exec->config;
  const double rate = config->device->model.host_memory ? config->copy_rate : 0, start = clock_s();
  enum status status = call->lane->device->ops->copy(
      call->lane, use(call, MOVE_TO), use(call, MOVE_FROM), (size_t)use_bytes(call, MOVE_TO));
  if (!status && rate > 0)
    clock_sleep_until(start + (double)use_bytes(call, MOVE_TO) / rate);
  return status;
}

/* The window that a later GATHER completes is already written here. */
static enum status run_fetch(const struct call *call)
{
  const int window = call->instr->use[MOVE_TO].buffer;
  enum status status = open_window(call, window);
  if (!status)
    status = run_move(call);
  if (!status)
    hold_window(call, window);
  return status;
}

static enum status run_publish(const struct call *call)
{
  return comm_group_barrier(group_of(call));
}

static enum status to_disk(const struct call *call, int from, int slot)
{
  return exec_memory_write(call->exec->config.memory, call->exec->plan,
                           call->instr->use[slot].buffer, 0, use_bytes(call, slot),
                           use(call, from));
}

static enum status from_disk(const struct call *call, int slot, int to)
{
  return exec_memory_read(call->exec->config.memory, call->exec->plan,
                          call->instr->use[slot].buffer, 0, use_bytes(call, slot), use(call, to));
}

static enum status run_write(const struct call *call)
{
  return to_disk(call, MOVE_FROM, MOVE_TO);
}

static enum status run_read(const struct call *call)
{
  return from_disk(call, MOVE_FROM, MOVE_TO);
}

static enum status run_read_state(const struct call *call)
{
  enum status status = STATUS_OK;
  for (int s = 0; s < RULE_STATES && !status; s++)
    if (use(call, STATE_TO + s))
      status = from_disk(call, STATE_FROM + s, STATE_TO + s);
  return status;
}

static enum status run_write_state(const struct call *call)
{
  enum status status = STATUS_OK;
  for (int s = 0; s < RULE_STATES && !status; s++)
    if (use(call, STATE_FROM + s))
      status = to_disk(call, STATE_FROM + s, STATE_TO + s);
  return status;
}

static enum status run_embed(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->embed(model, call->lane, shape_of(call), call->args->past,
                           use(call, EMBED_PARAMS), use(call, EMBED_TOKENS), use(call, EMBED_OUT));
}

/* Also RECOMPUTE, which has no output. */
static enum status run_forward(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->block_forward(model, call->lane, call->instr->unit, shape_of(call), NULL,
                                   params_of(call, FORWARD_PARAMS, FORWARD_SCALES),
                                   use(call, FORWARD_IN), use(call, FORWARD_OUT),
                                   use(call, FORWARD_SAVED), use(call, FORWARD_WORK));
}

static enum status run_decode(const struct call *call)
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

static enum status run_loss(const struct call *call)
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

static enum status run_logits(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->head_logits(model, call->lane, shape_of(call), use(call, LOGITS_PARAMS),
                                 use(call, LOGITS_IN), call->args->tokens - 1,
                                 use(call, LOGITS_OUT), use(call, LOGITS_WORK));
}

static enum status run_backward(const struct call *call)
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

static enum status run_embed_backward(const struct call *call)
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

static enum status run_release(const struct call *call)
{
  struct exec *exec = call->exec;
  int kept = 0;
  pthread_mutex_lock(&exec->mutex);
  for (int h = 0; h < exec->n_held; h++)
    if (!is_part(exec, exec->held[h].buffer, call->instr->use[RELEASE_PARAMS].buffer))
      exec->held[kept++] = exec->held[h];
  exec->n_held = kept;
  pthread_mutex_unlock(&exec->mutex);
  return STATUS_OK;
}

/* Random bits are new in each step, and different on each rank, unless messages of a sum must share
 * them. */
static uint64_t codec_seed(const struct call *call)
{
  const struct attributes *attr = &call->instr->attr;
  const bool common = attr->codec.ops->traits & CODEC_COMMON_SEED;
  const int64_t word[] = {(int64_t)attr->seed, call->args->step,
                          attr->group,         call->instr->unit,
                          call->instr->micro,  common ? -1 : call->exec->plan->input.rank};
  return hash_bytes(HASH_START, word, sizeof word);
}

/* One part per member of the group, of so many elements each. */
static struct codec_pass pass_of(const struct call *call, int64_t elements, void *work)
{
  return (struct codec_pass){.lane = call->lane,
                             .n = elements,
                             .parts = comm_group_size(group_of(call)),
                             .seed = codec_seed(call),
                             .work = work};
}

/* Elements of this rank's own part, so that all ranks together measure all parts. */
struct sample {
  int64_t n;
  const float *x; /* in the gradient */
  float *copy;
  struct plan_sample *sums;
};

static struct sample sample_of(const struct call *call, const struct codec_pass *pass)
{
  const int64_t n = plan_sampled(pass->n),
                before = use_bytes(call, ENCODE_WORK) - plan_sample_bytes(pass->n);
  char *place = (char *)use(call, ENCODE_WORK) + before / 256 * 256;
  return (struct sample){.n = n,
                         .x = (float *)use(call, ENCODE_GRADS) +
                              comm_group_index(group_of(call)) * pass->n,
                         .copy = (float *)(place + sizeof(struct plan_sample)),
                         .sums = (struct plan_sample *)place};
}

/* The gradient now holds the error of the messages. The copy minus this error is the decoded
 * message. */
static enum status measure_sample(const struct call *call, const struct codec_pass *pass,
                                  const struct sample *s)
{
  const struct device_ops *ops = call->lane->device->ops;
  struct plan_sample *out = call->exec->span[call->index].sample;
  enum status status = ops->zero(call->lane, s->sums, sizeof *s->sums);
  if (!status)
    status = ops->sum_squares(call->lane, s->n, s->copy, &s->sums->elements);
  if (!status)
    status = ops->sum_squares(call->lane, s->n, s->x, &s->sums->lost);
  if (!status)
    status = ops->subtract(call->lane, s->n, DTYPE_F32, s->x, s->copy);
  if (!status)
    status = ops->sum_squares(call->lane, s->n, s->copy, &s->sums->decoded);
  if (!status && use(call, ENCODE_RESIDUAL))
    status = ops->sum_squares(call->lane, pass->n * pass->parts, use(call, ENCODE_GRADS),
                              &s->sums->residual);
  return status ? status : ops->copy(call->lane, out, s->sums, sizeof *out);
}

/* Messages of x. If the error is kept or measured, x becomes the error. */
static enum status encode(const struct call *call, const struct codec_pass *pass)
{
  const struct codec *codec = &call->instr->attr.codec;
  const int64_t every = call->exec->plan->unit[call->instr->unit].policy.sample;
  const bool measures = every > 0 && exec_is_sampled(every, call->args->step);
  float *x = use(call, ENCODE_GRADS);
  void *messages = use(call, ENCODE_MESSAGES);
  struct sample sample = {0};
  enum status status = STATUS_OK;
  if (measures) {
    sample = sample_of(call, pass);
    status = call->lane->device->ops->copy(call->lane, sample.copy, sample.x,
                                           (size_t)sample.n * sizeof *sample.x);
  }
  if (!status)
    status = codec->ops->encode(codec, pass, x, messages);
  if (!status && (measures || use(call, ENCODE_RESIDUAL)))
    status = codec->ops->subtract(codec, pass, messages, x);
  return status || !measures ? status : measure_sample(call, pass, &sample);
}

/* The residual of earlier messages, added to the gradient. */
static enum status add_residual(const struct call *call, float *x, int64_t n, int residual,
                                void *work)
{
  const struct codec *lost = &call->exec->plan->unit[call->instr->unit].policy.residual;
  const struct codec_pass whole = {.lane = call->lane, .n = n, .parts = 1, .work = work};
  return lost->ops->decode_sum(lost, &whole, use(call, residual), use_bytes(call, residual), true,
                               x);
}

static enum status run_magnitude(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  struct comm_group *group = group_of(call);
  const int64_t n = buffer_of(call, MAGNITUDE_GRADS)->elements;
  float *x = use(call, MAGNITUDE_GRADS), *all = use(call, MAGNITUDE_ALL),
        *mine = all + comm_group_index(group);
  enum status status = STATUS_OK;
  if (use(call, MAGNITUDE_RESIDUAL))
    status = add_residual(call, x, n, MAGNITUDE_RESIDUAL, use(call, MAGNITUDE_WORK));
  if (!status)
    status = ops->max_magnitude(call->lane, n, x, mine);
  if (!status)
    status = comm_all_gather(group, call->lane, mine, sizeof *mine, all);
  return status ? status
                : ops->max_magnitude(call->lane, comm_group_size(group), all,
                                     use(call, MAGNITUDE_LARGEST));
}

/* Error feedback: Seide et al. 2014; Karimireddy et al. 2019, arXiv:1901.09847. The residual is the
 * gradient minus its messages. */
static enum status encode_with_feedback(const struct call *call, const struct codec_pass *pass)
{
  const struct codec *lost = &call->exec->plan->unit[call->instr->unit].policy.residual;
  float *x = use(call, ENCODE_GRADS);
  void *residual = use(call, ENCODE_RESIDUAL);
  struct codec_pass whole = *pass;
  whole.n *= whole.parts;
  whole.parts = 1;
  enum status status = STATUS_OK;
  if (!pass->largest)
    status = add_residual(call, x, whole.n, ENCODE_RESIDUAL, whole.work);
  if (!status)
    status = encode(call, pass);
  return status ? status : lost->ops->encode(lost, &whole, x, residual);
}

static enum status run_encode(const struct call *call)
{
  const int64_t part = buffer_of(call, ENCODE_GRADS)->elements / comm_group_size(group_of(call));
  struct codec_pass pass = pass_of(call, part, use(call, ENCODE_WORK));
  pass.largest = use(call, ENCODE_LARGEST);
  return use(call, ENCODE_RESIDUAL) ? encode_with_feedback(call, &pass) : encode(call, &pass);
}

/* All gathers of a step send the same messages. Replicas of a shard do, too. */
static uint64_t params_seed(const struct call *call)
{
  const struct attributes *attr = &call->instr->attr;
  const bool common = attr->codec.ops->traits & CODEC_COMMON_SEED;
  const int64_t word[] = {(int64_t)attr->seed, call->args->update, attr->group, call->instr->unit,
                          common ? -1 : comm_group_index(group_of(call))};
  return hash_bytes(HASH_START, word, sizeof word);
}

/* The shard minus the copy: the difference that the other ranks do not have yet. */
static enum status subtract_copy(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  const struct plan_buffer *copy = buffer_of(call, ENCODE_PARAMS_COPY);
  float *difference = use(call, ENCODE_PARAMS_DIFFERENCE);
  const enum status status = ops->copy(call->lane, difference, use(call, ENCODE_PARAMS_SHARD),
                                       (size_t)use_bytes(call, ENCODE_PARAMS_SHARD));
  return status ? status
                : ops->subtract(call->lane, copy->elements, copy->dtype,
                                use(call, ENCODE_PARAMS_COPY), difference);
}

static enum status run_encode_params(const struct call *call)
{
  const struct codec *codec = &call->instr->attr.codec;
  const struct codec_pass pass = {.lane = call->lane,
                                  .n = buffer_of(call, ENCODE_PARAMS_SHARD)->elements,
                                  .parts = 1,
                                  .seed = params_seed(call),
                                  .work = use(call, ENCODE_PARAMS_WORK)};
  const bool differs = use(call, ENCODE_PARAMS_DIFFERENCE) != NULL;
  const enum status status = differs ? subtract_copy(call) : STATUS_OK;
  return status ? status
                : codec->ops->encode(
                      codec, &pass,
                      use(call, differs ? ENCODE_PARAMS_DIFFERENCE : ENCODE_PARAMS_SHARD),
                      use(call, ENCODE_PARAMS_MESSAGE));
}

static enum status run_gather_messages(const struct call *call)
{
  return comm_all_gather(group_of(call), call->lane, use(call, GATHER_MESSAGES_MINE),
                         use_bytes(call, GATHER_MESSAGES_MINE), use(call, GATHER_MESSAGES_ALL));
}

/* A codec may turn zeros into other numbers. Zeros between parameters must stay, because masters
 * and copies are encoded with them. `part`: elements [begin, end) of the trained part. */
static enum status zero_gaps(const struct call *call, char *part, int64_t begin, int64_t end,
                             int64_t size)
{
  const struct layout_unit *layout = &call->exec->plan->unit[call->instr->unit].layout;
  enum status status = STATUS_OK;
  int64_t at = 0;
  for (int p = 0; p <= layout->params && !status; p++) {
    if (p < layout->params && layout->frozen[p])
      continue;
    const int64_t next = p < layout->params ? layout->offset[p] : layout->trained,
                  from = at > begin ? at : begin, to = next < end ? next : end;
    if (from < to)
      status = call->lane->device->ops->zero(call->lane, part + (from - begin) * size,
                                             (size_t)((to - from) * size));
    at = p < layout->params ? next + layout->elements[p] : next;
  }
  return status;
}

static enum status decode_params(const struct call *call)
{
  const struct codec *codec = &call->instr->attr.codec;
  const struct plan_buffer *whole = buffer_of(call, DECODE_PARAMS_WHOLE);
  const int members = comm_group_size(group_of(call));
  const struct codec_pass pass = {.lane = call->lane,
                                  .n = whole->elements / members,
                                  .parts = members,
                                  .seed = params_seed(call),
                                  .work = use(call, DECODE_PARAMS_WORK)};
  const bool copies = adds(call, DECODE_PARAMS_WHOLE);
  const enum status status =
      codec->ops->decode(codec, &pass, use(call, DECODE_PARAMS_MESSAGES), copies, whole->dtype,
                         use(call, DECODE_PARAMS_WHOLE));
  return status || !copies ? status
                           : zero_gaps(call, use(call, DECODE_PARAMS_WHOLE), 0, whole->elements,
                                       (int64_t)dtype_size(whole->dtype));
}

static enum status run_decode_params(const struct call *call)
{
  const int window = call->instr->use[DECODE_PARAMS_WHOLE].buffer;
  enum status status = open_window(call, window);
  if (!status)
    status = decode_params(call);
  if (!status)
    hold_window(call, window);
  return status;
}

static enum status run_exchange(const struct call *call)
{
  struct comm_group *group = group_of(call);
  const int blocks = call->instr->attr.blocks;
  const int64_t bytes = use_bytes(call, EXCHANGE_RECEIVED) / blocks;
  const char *sent = use(call, EXCHANGE_SENT);
  char *received = use(call, EXCHANGE_RECEIVED);
  const bool varying = call->instr->attr.codec.ops->traits & CODEC_VARIABLE;
  enum status status = STATUS_OK;
  for (int b = 0; b < blocks && !status; b++)
    status = (varying ? comm_exchange_varying : comm_exchange)(
        group, call->lane, sent + b * bytes, bytes / comm_group_size(group), received + b * bytes);
  return status;
}

/* The flat element at which this member's part of an encoded sum begins. */
static int64_t part_begin(const struct call *call, int64_t elements)
{
  const struct exec *exec = call->exec;
  const int index = comm_group_index(group_of(call));
  switch (call->instr->attr.group) {
  case GROUP_REPLICAS: return exec->plan->unit[call->instr->unit].owned.begin + index * elements;
  case GROUP_ACROSS:
    return (index * (int64_t)comm_group_size(exec->group[GROUP_NODE]) +
            comm_group_index(exec->group[GROUP_NODE])) *
           elements;
  default: return index * elements;
  }
}

/* Messages from all members for `out`, which is `elements` of operand `shard`, `stride` bytes
 * apart. */
static enum status decode_sum(const struct call *call, const void *messages, int64_t stride,
                              int shard, int64_t elements, float *out, void *work)
{
  const struct codec *codec = &call->instr->attr.codec;
  const struct codec_pass pass = pass_of(call, elements, work);
  const enum status status =
      codec->ops->decode_sum(codec, &pass, messages, stride, adds(call, shard), out);
  const int64_t begin = part_begin(call, elements);
  return status || codec->ops->traits & CODEC_IDENTITY
             ? status
             : zero_gaps(call, (char *)out, begin, begin + elements, sizeof(float));
}

static enum status run_decode_sum(const struct call *call)
{
  const int blocks = call->instr->attr.blocks, members = comm_group_size(group_of(call));
  const int64_t bytes = use_bytes(call, DECODE_SUM_MESSAGES) / blocks,
                elements = buffer_of(call, DECODE_SUM_SHARD)->elements / blocks;
  const char *messages = use(call, DECODE_SUM_MESSAGES);
  float *shard = use(call, DECODE_SUM_SHARD);
  enum status status = STATUS_OK;
  for (int b = 0; b < blocks && !status; b++)
    status = decode_sum(call, messages + b * bytes, bytes / members, DECODE_SUM_SHARD, elements,
                        shard + b * elements, use(call, DECODE_SUM_WORK));
  return status;
}

/* Messages are read in the senders' memory. After the first barrier all are complete. After the
 * second one all have been read. */
static enum status run_sum_shared(const struct call *call)
{
  const struct exec_memory *memory = call->exec->config.memory;
  struct comm_group *group = group_of(call);
  const int64_t bytes = use_bytes(call, SUM_SHARED_SENT) / comm_group_size(group);
  const char *mine = use(call, SUM_SHARED_SENT);
  const char *first = (const char *)comm_shared_memory(memory->regions) +
                      (mine - (char *)memory->transient[TIER_SHARED]);
  enum status status = comm_group_barrier(group);
  if (!status)
    status = decode_sum(call, first + comm_group_index(group) * bytes, memory->region_bytes,
                        SUM_SHARED_SHARD, buffer_of(call, SUM_SHARED_SHARD)->elements,
                        use(call, SUM_SHARED_SHARD), NULL);
  return status ? status : comm_group_barrier(group);
}

static enum status run_gather_grads(const struct call *call)
{
  return comm_all_gather(group_of(call), call->lane, use(call, GATHER_GRADS_PIECE),
                         use_bytes(call, GATHER_GRADS_PIECE), use(call, GATHER_GRADS_WHOLE));
}

static enum status run_squares(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  struct plan_metrics *metrics = use(call, SQUARES_SUM);
  enum status status = adds(call, SQUARES_SUM)
                           ? STATUS_OK
                           : ops->zero(call->lane, &metrics->squares, sizeof metrics->squares);
  return status ? status
                : ops->sum_squares(call->lane, buffer_of(call, SQUARES_GRADS)->elements,
                                   use(call, SQUARES_GRADS), &metrics->squares);
}

_Static_assert(offsetof(struct plan_metrics, squares) == 0,
               "SQUARES sum into metrics or into squares alone");
_Static_assert(offsetof(struct plan_metrics, loss) == sizeof(struct exactsum),
               "squares and loss are summed as one array");

static enum status run_accumulate(const struct call *call)
{
  const int64_t n = buffer_of(call, ACCUMULATE_GRADS)->elements;
  return call->lane->device->ops->sum_parts(call->lane, n, 1, DTYPE_F32,
                                            use(call, ACCUMULATE_LANDED), n, true,
                                            use(call, ACCUMULATE_GRADS));
}

/* The squares of gradients on the host. */
static enum status add_landed(const struct call *call, struct plan_metrics *metrics)
{
  const struct device_ops *ops = call->lane->device->ops;
  const enum status status =
      ops->copy(call->lane, &metrics->landed, use(call, METRICS_SQUARES), sizeof metrics->landed);
  return status ? status : ops->merge_exact(call->lane, &metrics->landed, &metrics->squares);
}

static enum status run_metrics(const struct call *call)
{
  struct exec *exec = call->exec;
  const struct device_ops *ops = call->lane->device->ops;
  struct plan_metrics *metrics = use(call, METRICS_OUT);
  enum status status = STATUS_OK;
  if (!adds(call, METRICS_OUT)) /* no SQUARES added to it before: an evaluation, or all of them on
                                   the host */
    status = ops->zero(call->lane, &metrics->squares, sizeof metrics->squares);
  if (!status && use(call, METRICS_SQUARES))
    status = add_landed(call, metrics);
  if (!status)
    status = ops->copy(call->lane, &metrics->loss, use(call, METRICS_LOSS), sizeof metrics->loss);
  if (!status)
    status = comm_group_sum_exact(group_of(call), call->lane, &metrics->squares, 2);
  if (!status)
    status = ops->conclude(call->lane, &metrics->loss, &metrics->squares, call->instr->attr.clip,
                           &metrics->outcome);
  return status ? status
                : ops->copy(call->lane, &exec->results[call->n % KEPT], metrics, sizeof *metrics);
}

_Static_assert((int)REPAIR_METRICS == (int)UPDATE_METRICS, "outcome_of() serves both");

/* The host reads the results of METRICS. An update that waits for no other unit has no outcome. */
static const struct outcome *outcome_of(const struct call *call)
{
  const struct plan_metrics *metrics = use(call, UPDATE_METRICS);
  if (metrics && call->exec->plan->on_host[call->instr->lane])
    metrics = &call->exec->results[call->n % KEPT];
  return metrics ? &metrics->outcome : NULL;
}

/* The random bits of a step and unit. */
static uint64_t rounding_seed(const struct call *call)
{
  const int64_t word[] = {(int64_t)call->instr->attr.seed, call->args->update, call->instr->unit};
  return hash_bytes(HASH_START, word, sizeof word);
}

/* The settings of a pass that do not depend on operands. */
static struct update update_of(const struct call *call)
{
  const struct plan *plan = call->exec->plan;
  const struct optim_settings *optim = &plan->input.optim;
  return (struct update){
      .rule = call->instr->attr.optimizer,
      .lr = call->args->lr * call->instr->attr.lr_scale,
      .beta1 = optim->beta1,
      .beta2 = optim->beta2,
      .momentum = optim->momentum,
      .nesterov = optim->nesterov,
      .eps = optim->eps,
      .decay = optim->decay,
      .grad_scale = 1,
      .bias1 = 1 - pow(optim->beta1, (double)call->args->update),
      .bias2 = 1 - pow(optim->beta2, (double)call->args->update),
      .outcome = outcome_of(call),
      .states = plan->unit[call->instr->unit].policy.state,
      .stochastic = call->instr->attr.stochastic,
      .seed = rounding_seed(call),
  };
}

_Static_assert((int)DIRECTION_METRICS == (int)UPDATE_METRICS, "outcome_of() serves both");

static enum status run_direction(const struct call *call)
{
  const struct plan *plan = call->exec->plan;
  const int unit = call->instr->unit;
  const struct layout_range mine = plan->unit[unit].owned;
  struct update op = update_of(call);
  op.copy = buffer_of(call, DIRECTION_OUT)->dtype;
  char *const out = use(call, DIRECTION_OUT);
  void *const state[PLAN_MAX_STATE] = {use(call, DIRECTION_STATE)};
  return optim_direction(call->lane, &plan->unit[unit].segments, mine, &op,
                         use(call, DIRECTION_GRADS), state,
                         out - mine.begin * (int64_t)dtype_size(op.copy));
}

static enum status run_gather_direction(const struct call *call)
{
  return comm_all_gather(group_of(call), call->lane, use(call, GATHER_DIRECTION_PIECE),
                         use_bytes(call, GATHER_DIRECTION_PIECE),
                         use(call, GATHER_DIRECTION_WHOLE));
}

static enum status update_matrices(const struct call *call, const struct update *elements)
{
  const struct plan *plan = call->exec->plan;
  const struct optim_segments *segments = &plan->unit[call->instr->unit].segments;
  const struct layout_range mine = plan->unit[call->instr->unit].owned;
  void *const direction = use(call, UPDATE_DIRECTION);
  struct update op = *elements;
  op.grad = buffer_of(call, UPDATE_DIRECTION)->dtype;
  const enum status status =
      optim_transform(call->lane, segments, mine, op.grad, direction, use(call, UPDATE_WORK));
  return status ? status
                : optim_apply(call->lane, segments, mine, &op, use(call, UPDATE_MASTER), direction,
                              use(call, UPDATE_WORKING));
}

/* The same for the step before, whose gradient speculative units have not been changed by. */
static struct update pending_update(const struct call *call)
{
  struct exec *exec = call->exec;
  const int64_t n = call->n - 1;
  struct call before = *call;
  before.n = n;
  before.args = &exec->args[n % KEPT];
  struct update op = update_of(&before);
  op.outcome = &exec->results[n % KEPT].outcome;
  return op;
}

static bool is_clipped(const struct outcome *outcome)
{
  return outcome->scale != 1; /* exactly 1 if the norm is not above optim.clip */
}

/* Whether UPDATE writes the working copy as if this step were not clipped. Equal on all ranks. */
static bool guesses(const struct call *call)
{
  return call->n == 1 || !is_clipped(&call->exec->results[(call->n - 1) % KEPT].outcome);
}

/* This step's update changes the working copy alone, because it may be clipped: `next`. */
static enum status speculate(const struct call *call, struct update next, void *const *state)
{
  const struct plan *plan = call->exec->plan;
  const int unit = call->instr->unit;
  const bool waits = call->n - 1 > call->exec->settled;
  const struct update known = waits ? pending_update(call) : (struct update){0};
  if (!guesses(call))
    return waits ? optim_update(call->lane, &plan->unit[unit].segments, plan->unit[unit].owned,
                                &known, use(call, UPDATE_MASTER), use(call, UPDATE_PENDING), state,
                                NULL)
                 : STATUS_OK;
  return optim_speculate(call->lane, &plan->unit[unit].segments, plan->unit[unit].owned,
                         waits ? &known : NULL, use(call, UPDATE_PENDING), &next,
                         use(call, UPDATE_GRADS), use(call, UPDATE_MASTER), state,
                         use(call, UPDATE_WORKING));
}

static enum status run_update(const struct call *call)
{
  const struct plan *plan = call->exec->plan;
  const int unit = call->instr->unit;
  struct update op = update_of(call);
  enum status status = STATUS_OK;
  void *state[PLAN_MAX_STATE];
  for (int s = 0; s < PLAN_MAX_STATE; s++)
    state[s] = use(call, UPDATE_STATE + s);
  if (use(call, UPDATE_WORKING))
    op.copy = buffer_of(call, UPDATE_WORKING)->dtype;
  if (use(call, UPDATE_PENDING))
    return speculate(call, op, state);
  if (use(call, UPDATE_DIRECTION))
    status = update_matrices(call, &op);
  return status ? status
                : optim_update(call->lane, &plan->unit[unit].segments, plan->unit[unit].owned, &op,
                               use(call, UPDATE_MASTER), use(call, UPDATE_GRADS), state,
                               use(call, UPDATE_WORKING));
}

static enum status run_repair(const struct call *call)
{
  const struct plan *plan = call->exec->plan;
  const int unit = call->instr->unit;
  struct update op = update_of(call);
  void *state[PLAN_MAX_STATE] = {NULL};
  if (guesses(call) && op.outcome->finite && !is_clipped(op.outcome))
    return STATUS_OK;
  for (int s = 0; s < RULE_STATES; s++)
    state[s] = use(call, REPAIR_STATE + s);
  op.copy = buffer_of(call, REPAIR_WORKING)->dtype;
  return optim_speculate(call->lane, &plan->unit[unit].segments, plan->unit[unit].owned, NULL, NULL,
                         &op, use(call, REPAIR_GRADS), use(call, REPAIR_MASTER), state,
                         use(call, REPAIR_WORKING));
}

/* The gradient of the last step is the pending one of a step after it. */
static enum status settle(struct exec *exec, int index)
{
  const struct plan *plan = exec->plan;
  const struct instr *instr = &plan->instr[index];
  const struct call call = {.exec = exec,
                            .lane = exec->driver[instr->lane].lane,
                            .instr = instr,
                            .index = index,
                            .n = exec->released + 1};
  const struct update op = pending_update(&call);
  void *state[PLAN_MAX_STATE];
  for (int s = 0; s < PLAN_MAX_STATE; s++)
    state[s] = use(&call, UPDATE_STATE + s);
  return optim_update(call.lane, &plan->unit[instr->unit].segments, plan->unit[instr->unit].owned,
                      &op, use(&call, UPDATE_MASTER), use(&call, UPDATE_PENDING), state, NULL);
}

enum status exec_settle(struct exec *exec)
{
  const struct plan *plan = exec->plan;
  enum status status = STATUS_OK;
  for (int i = 0; i < plan->n && exec->settled < exec->released && !status; i++)
    if (plan->instr[i].op == OP_UPDATE && plan->instr[i].use[UPDATE_PENDING].buffer >= 0)
      status = settle(exec, i);
  exec->settled = exec->released;
  return status;
}

/* The products of an update of whole matrices, which change no parameter. */
enum status exec_try_matrices(struct exec *exec, struct lane *lane, int index)
{
  const struct plan *plan = exec->plan;
  const struct instr *instr = &plan->instr[index];
  const struct call call = {.exec = exec, .lane = lane, .instr = instr, .index = index};
  const struct layout_range all = {0, plan->unit[instr->unit].layout.trained};
  const enum dtype type = buffer_of(&call, UPDATE_DIRECTION)->dtype;
  return optim_transform(lane, &plan->unit[instr->unit].segments, all, type,
                         use(&call, UPDATE_DIRECTION), use(&call, UPDATE_WORK));
}

typedef enum status op_run(const struct call *call);

static op_run *const run[OP_COUNT] = {
    [OP_LOAD] = run_load,
    [OP_GATHER] = run_gather,
    [OP_MEASURE] = run_measure,
    [OP_GATHER_SCALES] = run_gather_scales,
    [OP_ENCODE_PARAMS] = run_encode_params,
    [OP_GATHER_MESSAGES] = run_gather_messages,
    [OP_DECODE_PARAMS] = run_decode_params,
    [OP_EMBED] = run_embed,
    [OP_FORWARD] = run_forward,
    [OP_RECOMPUTE] = run_forward,
    [OP_LOSS] = run_loss,
    [OP_LOGITS] = run_logits,
    [OP_DECODE] = run_decode,
    [OP_BACKWARD] = run_backward,
    [OP_EMBED_BACKWARD] = run_embed_backward,
    [OP_RELEASE] = run_release,
    [OP_MAGNITUDE] = run_magnitude,
    [OP_ENCODE] = run_encode,
    [OP_READ_RESIDUAL] = run_read,
    [OP_FETCH_RESIDUAL] = run_move,
    [OP_SAVE_RESIDUAL] = run_move,
    [OP_WRITE_RESIDUAL] = run_write,
    [OP_EXCHANGE] = run_exchange,
    [OP_DECODE_SUM] = run_decode_sum,
    [OP_GATHER_GRADS] = run_gather_grads,
    [OP_SQUARES] = run_squares,
    [OP_METRICS] = run_metrics,
    [OP_DIRECTION] = run_direction,
    [OP_GATHER_DIRECTION] = run_gather_direction,
    [OP_UPDATE] = run_update,
    [OP_REPAIR] = run_repair,
    [OP_FETCH] = run_fetch,
    [OP_PUBLISH] = run_publish,
    [OP_SAVE_ACT] = run_move,
    [OP_WRITE_ACT] = run_write,
    [OP_READ_ACT] = run_read,
    [OP_FETCH_ACT] = run_move,
    [OP_FETCH_GRAD] = run_move,
    [OP_ACCUMULATE] = run_accumulate,
    [OP_READ_STATE] = run_read_state,
    [OP_WRITE_STATE] = run_write_state,
    [OP_FETCH_LOSS] = run_move,
    [OP_SUM_SHARED] = run_sum_shared,
};

enum status exec_run(struct exec *exec, struct lane *lane, int index, int64_t n)
{
  const struct instr *instr = &exec->plan->instr[index];
  const struct call call = {.exec = exec,
                            .lane = lane,
                            .instr = instr,
                            .index = index,
                            .n = n,
                            .args = &exec->args[n % KEPT]};
  enum status status =
      op_rows[instr->op].params ? check_window(&call, instr->use[0].buffer) : STATUS_OK;
  return status ? status : run[instr->op](&call);
}

enum status exec_try(struct exec *exec, struct lane *lane, int index, int64_t tokens)
{
  const struct step_args args = {.tokens = tokens};
  const struct instr *instr = &exec->plan->instr[index];
  const struct call call = {
      .exec = exec, .lane = lane, .instr = instr, .index = index, .args = &args};
  return instr->op == OP_RELEASE ? STATUS_OK : run[instr->op](&call);
}
