/* One small function an operation: what it does follows from its uses, whose order plan.h gives. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "base/clock.h"
#include "base/hash.h"
#include "exec/engine.h"
#include "io/store.h"

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
  return i < call->instr->n_use ? call->exec->pointer[call->instr->use[i].buffer] : NULL;
}

static bool adds(const struct call *call, int i)
{
  return i < call->instr->n_use && call->instr->use[i].access == ACCESS_ADD;
}

static int64_t use_bytes(const struct call *call, int i)
{
  return call->exec->plan->buffer[call->instr->use[i].buffer].bytes;
}

static const struct model *model_of(const struct call *call)
{
  return call->exec->config.model;
}

/* In generation a step has as many tokens as exec_set_window() said. */
static struct model_shape shape_of(const struct call *call)
{
  const struct plan_input *input = &call->exec->plan->input;
  return (struct model_shape){.B = input->shape.micro_batch, .T = input->mode == PLAN_GENERATE ? call->args->tokens : input->shape.sequence};
}

/* The targets lie behind the tokens. */
static int32_t *targets_of(const struct call *call, void *tokens)
{
  const struct deck_shape *shape = &call->exec->plan->input.shape;
  return (int32_t *)tokens + shape->micro_batch * shape->sequence;
}

/* gather -> get -> release: a window holds one unit of one step from its GATHERs to its RELEASE, and nothing else may touch its bytes. What is gathered is the
 * window itself, or parts of it. */
static enum status refuse_window(const struct call *call, int buffer, const char *why)
{
  char name[96];
  plan_instr_name(call->exec->plan, call->index, name, sizeof name);
  return status_set(STATUS_INTERNAL, "%s in step %" PRId64 ": the window %s %s", name, call->args->step, call->exec->plan->buffer[buffer].name, why);
}

static bool bytes_overlap(const struct exec *exec, int a, int b)
{
  const char *pa = exec->pointer[a], *pb = exec->pointer[b];
  return pa < pb + exec->plan->buffer[b].bytes && pb < pa + exec->plan->buffer[a].bytes;
}

static bool is_part(const struct exec *exec, int part, int window)
{
  return part == window || exec->plan->buffer[part].parent == window;
}

/* What is not held from its GATHER (or FETCH) on is a part of something that is. */
static bool is_window(const struct exec *exec, int buffer)
{
  return atomic_load_explicit(&exec->held[buffer], memory_order_relaxed) >= 0;
}

static enum status open_window(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  if (exec->plan->buffer[buffer].unit != call->instr->unit)
    return refuse_window(call, buffer, "belongs to another unit");
  for (int b = 0; b < exec->plan->buffers; b++)
    if (atomic_load_explicit(&exec->held[b], memory_order_relaxed) > 0 && bytes_overlap(exec, b, buffer))
      return refuse_window(call, buffer, "lies over one that has not been released");
  return STATUS_OK;
}

static enum status check_window(const struct call *call, int buffer)
{
  struct exec *exec = call->exec;
  if (exec->plan->buffer[buffer].unit != call->instr->unit)
    return refuse_window(call, buffer, "belongs to another unit");
  for (int b = 0; b < exec->plan->buffers; b++) {
    int64_t held = atomic_load_explicit(&exec->held[b], memory_order_relaxed);
    if (held >= 0 && held != call->n && is_part(exec, b, buffer))
      return refuse_window(call, b, held ? "holds the parameters of another step" : "has not been gathered");
  }
  return STATUS_OK;
}

static enum status run_load(const struct call *call)
{
  const struct exec_config *config = &call->exec->config;
  void *tokens = use(call, 0);
  return config->load(config->load_arg, call->args->step, call->instr->micro, tokens, targets_of(call, tokens));
}

/* This rank's part of a window is made from its shard, at its place, where the types differ; the all-gather brings the others'. Of the compute type is what has been brought there, and the working copy. */
static enum status gather(const struct call *call)
{
  const struct exec *exec = call->exec;
  const struct device *device = call->lane->device;
  struct comm_group *group = exec->group[GROUP_GATHER];
  const enum dtype type = device->compute;
  const int shard = call->instr->use[0].buffer;
  const bool casts = type != DTYPE_F32 && !is_part(exec, shard, call->instr->use[1].buffer) && exec->plan->buffer[shard].purpose != PURPOSE_WORKING;
  const int64_t size = (int64_t)dtype_size(type), count = use_bytes(call, 0) / (casts ? (int64_t)sizeof(float) : size);
  const bool whole = count * size == use_bytes(call, 1);
  if (!casts && !whole)
    return comm_all_gather(group, call->lane, use(call, 0), count, type, use(call, 1));
  void *place = (char *)use(call, 1) + (whole ? 0 : comm_group_index(group) * count * size);
  enum status status = casts ? device->ops->cast(call->lane, count, DTYPE_F32, use(call, 0), type, place)
                             : device->ops->copy(call->lane, place, use(call, 0), (size_t)(count * size));
  return status || whole ? status : comm_all_gather(group, call->lane, place, count, type, use(call, 1));
}

static enum status run_gather(const struct call *call)
{
  struct exec *exec = call->exec;
  int window = call->instr->use[1].buffer;
  enum status status = open_window(call, window);
  if (!status)
    status = gather(call);
  if (!status)
    atomic_store_explicit(&exec->held[window], call->n, memory_order_relaxed);
  return status;
}

/* Between tiers. Where they are one memory a deck may say how fast a link would be. */
static enum status move(const struct call *call, int from, int to)
{
  const struct exec_config *config = &call->exec->config;
  const double rate = config->device->host_memory ? config->deck->transfer.rate * 1e9 : 0, start = clock_s();
  enum status status = call->lane->device->ops->copy(call->lane, use(call, to), use(call, from), (size_t)use_bytes(call, to));
  if (!status && rate > 0)
    clock_sleep_until(start + (double)use_bytes(call, to) / rate);
  return status;
}

static enum status run_move(const struct call *call)
{
  return move(call, 0, 1);
}

/* What a GATHER is going to complete is written here already. */
static enum status run_fetch(const struct call *call)
{
  struct exec *exec = call->exec;
  const int window = call->instr->use[1].buffer;
  enum status status = open_window(call, window);
  if (!status)
    status = run_move(call);
  if (!status && is_window(exec, window))
    atomic_store_explicit(&exec->held[window], call->n, memory_order_relaxed);
  return status;
}

static enum status run_publish(const struct call *call)
{
  return comm_group_barrier(call->exec->group[GROUP_GATHER]);
}

static enum status to_disk(const struct call *call, int from, int slot)
{
  return exec_memory_write(call->exec->config.memory, call->exec->plan, call->instr->use[slot].buffer, 0, use_bytes(call, slot), use(call, from));
}

static enum status from_disk(const struct call *call, int slot, int to)
{
  return exec_memory_read(call->exec->config.memory, call->exec->plan, call->instr->use[slot].buffer, 0, use_bytes(call, slot), use(call, to));
}

static enum status run_write_act(const struct call *call)
{
  return to_disk(call, 0, 1);
}

static enum status run_read_act(const struct call *call)
{
  return from_disk(call, 0, 1);
}

static enum status run_read_state(const struct call *call)
{
  const enum status status = from_disk(call, 0, 2);
  return status ? status : from_disk(call, 1, 3);
}

static enum status run_write_state(const struct call *call)
{
  const enum status status = to_disk(call, 0, 2);
  return status ? status : to_disk(call, 1, 3);
}

static enum status run_embed(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->embed(model, call->lane, shape_of(call), call->args->past, use(call, 0), use(call, 1), use(call, 2));
}

static enum status run_forward(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->block_forward(model, call->lane, call->instr->unit, shape_of(call), use(call, 0), use(call, 1), use(call, 2), use(call, 4),
                                   use(call, 3));
}

static enum status run_recompute(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->block_forward(model, call->lane, call->instr->unit, shape_of(call), use(call, 0), use(call, 1), NULL, use(call, 3),
                                   use(call, 2));
}

static enum status run_decode(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->block_decode(model, call->lane, call->instr->unit, shape_of(call), call->args->past, call->exec->plan->input.capacity,
                                  use(call, 0), use(call, 1), use(call, 2), use(call, 4), use(call, 3));
}

static enum status zero_elements(const struct call *call, void *base, int64_t begin, int64_t end)
{
  int64_t size = (int64_t)dtype_size(call->lane->device->gradient);
  if (begin == end)
    return STATUS_OK;
  return call->lane->device->ops->zero(call->lane, (char *)base + begin * size, (size_t)((end - begin) * size));
}

/* A new gradient is whole, and what is reduced, squared and updated is all of it: the model writes it as far as its last parameter. */
static enum status zero_padding(const struct call *call, int i)
{
  const struct layout_unit *layout = &call->exec->plan->layout[call->instr->unit];
  return use(call, i) && !adds(call, i) ? zero_elements(call, use(call, i), layout->used, layout->trained) : STATUS_OK;
}

static enum status run_loss(const struct call *call)
{
  struct exactsum *loss = use(call, 3);
  const struct model *model = model_of(call);
  enum status status = zero_padding(call, 6);
  if (status)
    return status;
  if (!adds(call, 3))
    status = call->lane->device->ops->zero(call->lane, loss, sizeof *loss);
  if (status)
    return status;
  return model->ops->head_loss(model, call->lane, shape_of(call), use(call, 0), use(call, 1), targets_of(call, use(call, 2)),
                               (float)(1 / call->exec->step_tokens), loss, use(call, 5), adds(call, 6), use(call, 6), use(call, 4));
}

static enum status run_logits(const struct call *call)
{
  const struct model *model = model_of(call);
  return model->ops->head_logits(model, call->lane, shape_of(call), use(call, 0), use(call, 1), call->args->tokens - 1, use(call, 3), use(call, 2));
}

static enum status run_backward(const struct call *call)
{
  const struct model *model = model_of(call);
  enum status status = zero_padding(call, 5);
  if (status)
    return status;
  return model->ops->block_backward(model, call->lane, call->instr->unit, shape_of(call), use(call, 0), use(call, 1), use(call, 2), use(call, 3),
                                    adds(call, 5), use(call, 5), use(call, 4), use_bytes(call, 4));
}

static enum status run_embed_backward(const struct call *call)
{
  const struct model *model = model_of(call);
  enum status status = zero_padding(call, 2);
  if (status)
    return status;
  return model->ops->embed_backward(model, call->lane, shape_of(call), use(call, 0), use(call, 1), adds(call, 2), use(call, 2));
}

static enum status run_release(const struct call *call)
{
  struct exec *exec = call->exec;
  for (int b = 0; b < exec->plan->buffers; b++)
    if (is_part(exec, b, call->instr->use[0].buffer) && atomic_load_explicit(&exec->held[b], memory_order_relaxed) > 0)
      atomic_store_explicit(&exec->held[b], 0, memory_order_relaxed);
  return STATUS_OK;
}

static enum status reduce_scatter(const struct call *call, enum group group)
{
  const int64_t count = use_bytes(call, 2) / (int64_t)dtype_size(call->lane->device->gradient);
  return comm_reduce_scatter(call->exec->group[group], call->lane, use(call, 0), count,
                             call->instr->wire, use(call, 1), adds(call, 2), use(call, 2));
}

static enum status run_reduce(const struct call *call)
{
  return reduce_scatter(call, GROUP_REDUCE);
}

/* Casts n elements in the host's memory where they lie. Those of a narrower type fit in front of what is still to be cast, in runs that double: [n, 2n) of the wider one begin where [n, 2n)
 * of one half as wide end. The first run takes a detour. */
static enum status cast_in_place(const struct call *call, int64_t n, enum dtype from, enum dtype to, char *x)
{
  enum { FIRST = 64 };
  const struct device_ops *ops = call->lane->device->ops;
  const int64_t wide = (int64_t)dtype_size(from), narrow = (int64_t)dtype_size(to), first = n < FIRST ? n : FIRST;
  double run[FIRST];
  enum status status = ops->cast(call->lane, first, from, x, to, run);
  if (!status)
    status = ops->copy(call->lane, x, run, (size_t)(first * narrow));
  for (int64_t at = first, end; !status && at < n; at = end) {
    end = 2 * at < n ? 2 * at : n;
    status = ops->cast(call->lane, end - at, from, x + at * wide, to, x + at * narrow);
  }
  return status;
}

/* As a reduce-scatter, whose parts are taken where the members have them: everybody's are there behind the first barrier, and read by all behind the second. */
static enum status run_sum_shared(const struct call *call)
{
  const struct exec *exec = call->exec;
  const struct exec_memory *memory = exec->config.memory;
  struct comm_group *group = exec->group[GROUP_REDUCE];
  const enum dtype type = call->lane->device->gradient, wire = call->instr->wire;
  const int64_t count = use_bytes(call, 1) / (int64_t)dtype_size(type), size = (int64_t)dtype_size(wire);
  char *mine = use(call, 0);
  const char *first = (const char *)comm_shared_memory(memory->regions) + (mine - (char *)memory->transient[TIER_SHARED]);
  enum status status = wire == type ? STATUS_OK : cast_in_place(call, use_bytes(call, 0) / (int64_t)dtype_size(type), type, wire, mine);
  if (!status)
    status = comm_group_barrier(group);
  if (!status)
    status = call->lane->device->ops->sum_parts(call->lane, count, comm_group_size(group), wire, first + comm_group_index(group) * count * size,
                                                memory->region_bytes / size, adds(call, 1), use(call, 1));
  return status ? status : comm_group_barrier(group);
}

static enum status run_replica_reduce(const struct call *call)
{
  return reduce_scatter(call, GROUP_REPLICAS);
}

static enum status run_gather_grads(const struct call *call)
{
  struct exec *exec = call->exec;
  enum dtype type = call->lane->device->gradient;
  int64_t count = use_bytes(call, 0) / (int64_t)dtype_size(type);
  enum group group = exec->plan->input.shape.replicas > 1 ? GROUP_REPLICAS : GROUP_REDUCE;
  return comm_all_gather(exec->group[group], call->lane, use(call, 0), count, type, use(call, 1));
}

static enum status run_squares(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  struct plan_metrics *metrics = use(call, 1);
  enum status status = adds(call, 1) ? STATUS_OK : ops->zero(call->lane, &metrics->squares, sizeof metrics->squares);
  return status ? status : ops->sum_squares(call->lane, use_bytes(call, 0) / (int64_t)sizeof(float), use(call, 0), &metrics->squares);
}

_Static_assert(offsetof(struct plan_metrics, squares) == 0, "SQUARES sum into metrics or into squares alone");
_Static_assert(offsetof(struct plan_metrics, loss) == sizeof(struct exactsum), "squares and loss are summed as one array");

static enum status run_accumulate(const struct call *call)
{
  const int64_t n = use_bytes(call, 1) / (int64_t)sizeof(float);
  return call->lane->device->ops->sum_parts(call->lane, n, 1, DTYPE_F32, use(call, 0), n, true, use(call, 1));
}

/* The squares of what is on the host. */
static enum status add_landed(const struct call *call, struct plan_metrics *metrics)
{
  const struct device_ops *ops = call->lane->device->ops;
  const enum status status = ops->copy(call->lane, &metrics->landed, use(call, 2), sizeof metrics->landed);
  return status ? status : ops->merge_exact(call->lane, &metrics->landed, &metrics->squares);
}

static enum status run_metrics(const struct call *call)
{
  struct exec *exec = call->exec;
  const struct device_ops *ops = call->lane->device->ops;
  struct plan_metrics *metrics = use(call, 1);
  enum status status = STATUS_OK;
  if (!adds(call, 1)) /* no SQUARES before into it: an evaluation, or all of them on the host */
    status = ops->zero(call->lane, &metrics->squares, sizeof metrics->squares);
  if (!status && call->instr->n_use > 2)
    status = add_landed(call, metrics);
  if (!status)
    status = ops->copy(call->lane, &metrics->loss, use(call, 0), sizeof metrics->loss);
  if (!status)
    status = comm_group_sum_exact(exec->group[GROUP_WORLD], call->lane, &metrics->squares, 2);
  if (!status)
    status = ops->conclude(call->lane, &metrics->loss, &metrics->squares, exec->config.deck->optim.clip, &metrics->outcome);
  return status ? status : ops->copy(call->lane, &exec->results[call->n & 1], metrics, sizeof *metrics);
}

/* The host reads what METRICS has left for it. */
static const struct outcome *outcome_of(const struct call *call)
{
  const struct plan_metrics *metrics = call->exec->plan->on_host[call->instr->lane] ? &call->exec->results[call->n & 1] : use(call, 0);
  return &metrics->outcome;
}

/* The random bits of a step and unit. */
static uint64_t rounding_seed(const struct call *call)
{
  const int64_t word[] = {call->exec->config.deck->run.seed, call->args->update, call->instr->unit};
  return hash_bytes(HASH_START, word, sizeof word);
}

/* The uses are `grads` and what follows it. */
static enum status update(const struct call *call, int grads, const struct outcome *outcome)
{
  const struct exec *exec = call->exec;
  const struct deck *deck = exec->config.deck;
  int unit = call->instr->unit;
  const struct update op = {
      .lr = call->args->lr,
      .beta1 = deck->optim.betas[0],
      .beta2 = deck->optim.betas[1],
      .momentum = deck->optim.momentum,
      .nesterov = deck->optim.nesterov,
      .eps = deck->optim.eps,
      .decay = deck->optim.weight_decay,
      .grad_scale = 1,
      .bias1 = 1 - pow(deck->optim.betas[0], (double)call->args->update),
      .bias2 = 1 - pow(deck->optim.betas[1], (double)call->args->update),
      .outcome = outcome,
      .states = exec->plan->input.shape.moments,
      .copy = exec->config.device->compute,
      .stochastic = deck->optim.rounding == DECK_ROUND_STOCHASTIC,
      .seed = rounding_seed(call),
  };
  return optim_update(call->lane, &exec->segments[unit], exec->plan->owned[unit], &op,
                      use(call, grads + 1), use(call, grads),
                      (void *[]){use(call, grads + 2), use(call, grads + 3)}, use(call, grads + 4));
}

static enum status run_adam(const struct call *call)
{
  return update(call, 1, outcome_of(call));
}

static enum status run_adam_now(const struct call *call)
{
  return update(call, 0, NULL);
}

static const struct {
  enum status (*run)(const struct call *call);
  bool params; /* use 0 is a unit's parameters */
} handlers[OP_COUNT] = {
    [OP_LOAD] = {run_load, false},
    [OP_GATHER] = {run_gather, false},
    [OP_EMBED] = {run_embed, true},
    [OP_FORWARD] = {run_forward, true},
    [OP_RECOMPUTE] = {run_recompute, true},
    [OP_LOSS] = {run_loss, true},
    [OP_LOGITS] = {run_logits, true},
    [OP_DECODE] = {run_decode, true},
    [OP_BACKWARD] = {run_backward, true},
    [OP_EMBED_BACKWARD] = {run_embed_backward, false},
    [OP_RELEASE] = {run_release, true},
    [OP_REDUCE] = {run_reduce, false},
    [OP_REPLICA_REDUCE] = {run_replica_reduce, false},
    [OP_GATHER_GRADS] = {run_gather_grads, false},
    [OP_SQUARES] = {run_squares, false},
    [OP_METRICS] = {run_metrics, false},
    [OP_ADAM] = {run_adam, false},
    [OP_FETCH] = {run_fetch, false},
    [OP_PUBLISH] = {run_publish, false},
    [OP_SAVE_ACT] = {run_move, false},
    [OP_WRITE_ACT] = {run_write_act, false},
    [OP_READ_ACT] = {run_read_act, false},
    [OP_FETCH_ACT] = {run_move, false},
    [OP_FETCH_GRAD] = {run_move, false},
    [OP_ACCUMULATE] = {run_accumulate, false},
    [OP_READ_STATE] = {run_read_state, false},
    [OP_WRITE_STATE] = {run_write_state, false},
    [OP_ADAM_NOW] = {run_adam_now, false},
    [OP_FETCH_LOSS] = {run_move, false},
    [OP_SUM_SHARED] = {run_sum_shared, false},
};

enum status exec_run(struct exec *exec, struct lane *lane, int index, int64_t n)
{
  const struct instr *instr = &exec->plan->instr[index];
  const struct call call = {.exec = exec, .lane = lane, .instr = instr, .index = index, .n = n, .args = &exec->args[n & 1]};
  enum status status = handlers[instr->op].params ? check_window(&call, instr->use[0].buffer) : STATUS_OK;
  return status ? status : handlers[instr->op].run(&call);
}

enum status exec_try(struct exec *exec, struct lane *lane, int index, int64_t tokens)
{
  const struct step_args args = {.tokens = tokens};
  const struct instr *instr = &exec->plan->instr[index];
  const struct call call = {.exec = exec, .lane = lane, .instr = instr, .index = index, .args = &args};
  return instr->op == OP_RELEASE ? STATUS_OK : handlers[instr->op].run(&call);
}
