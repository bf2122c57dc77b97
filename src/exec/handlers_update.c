/* Squares, metrics and updates. Speculative units are changed one step later than others. */
#include <math.h>
#include <stddef.h>

#include "base/hash.h"
#include "exec/handlers.h"

_Static_assert(offsetof(struct plan_metrics, of) ==
                   offsetof(struct plan_metrics, squares) + sizeof(struct exactsum),
               "squares, losses and targets are summed as one array");

enum status run_squares(const struct call *call)
{
  const struct device_ops *ops = call->lane->device->ops;
  void *const out = use(call, SQUARES_SUM);
  const bool metrics = call->instr->use[SQUARES_SUM].buffer == call->exec->plan->metrics;
  struct exactsum *sum = metrics ? &((struct plan_metrics *)out)->squares : out;
  enum status status =
      adds(call, SQUARES_SUM) ? STATUS_OK : ops->zero(call->lane, sum, sizeof *sum);
  return status ? status
                : ops->sum_squares(call->lane, buffer_of(call, SQUARES_GRADS)->elements,
                                   use(call, SQUARES_GRADS), sum);
}

enum status run_accumulate(const struct call *call)
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
  return ops->copy(call->lane, &metrics->scratch, use(call, METRICS_SQUARES),
                   sizeof metrics->scratch)
             ?: ops->merge_exact(call->lane, &metrics->scratch, &metrics->squares);
}

/* Adds up the losses of all sources. */
static enum status add_sources(const struct call *call, struct plan_metrics *metrics,
                               const struct exactsum **loss)
{
  const struct device_ops *ops = call->lane->device->ops;
  const int sources = plan_sources(&call->exec->plan->input);
  *loss = sources > 1 ? &metrics->scratch : metrics->of;
  if (sources == 1)
    return STATUS_OK;
  enum status status =
      ops->copy(call->lane, &metrics->scratch, metrics->of, sizeof metrics->scratch);
  for (int s = 1; s < sources && !status; s++)
    status = ops->merge_exact(call->lane, &metrics->of[s], &metrics->scratch);
  return status;
}

enum status run_metrics(const struct call *call)
{
  struct exec *exec = call->exec;
  const struct device_ops *ops = call->lane->device->ops;
  struct plan_metrics *metrics = use(call, METRICS_OUT);
  const struct plan_input *input = &exec->plan->input;
  const size_t sums = (size_t)plan_sources(input) * sizeof(struct exactsum),
               losses = (size_t)plan_losses(input) * sizeof(struct exactsum);
  const struct exactsum *loss = NULL;
  enum status status = STATUS_OK;
  if (!adds(call, METRICS_OUT)) /* no SQUARES added to it before: an evaluation, or all of them on
                                   the host */
    status = ops->zero(call->lane, &metrics->squares, sizeof metrics->squares);
  if (!status && use(call, METRICS_SQUARES))
    status = add_landed(call, metrics);
  if (!status)
    status = ops->copy(call->lane, metrics->of, use(call, METRICS_LOSS), losses);
  if (!status)
    status = ops->copy(call->lane, metrics->of + plan_losses(input),
                       exec->results->targets[call->n % KEPT], sums);
  status = status
      ?: comm_group_sum_exact(group_of(call), call->lane, &metrics->squares, plan_sums(input))
      ?: add_sources(call, metrics, &loss);
  if (!status)
    status = ops->conclude(call->lane, loss, &metrics->squares, call->instr->attr.clip,
                           &metrics->outcome);
  return status ? status
                : ops->copy(call->lane, exec->results->metrics[call->n % KEPT], metrics,
                            (size_t)plan_metrics_bytes(input));
}

_Static_assert((int)DIRECTION_METRICS == (int)UPDATE_METRICS, "outcome_of() serves both");
_Static_assert((int)REPAIR_METRICS == (int)UPDATE_METRICS &&
                   (int)REPAIR_GRADS == (int)UPDATE_GRADS &&
                   (int)REPAIR_MASTER == (int)UPDATE_MASTER &&
                   (int)REPAIR_WORKING == (int)UPDATE_WORKING,
               "UPDATE and REPAIR share their operands up to the working copy");

/* The host reads the results of METRICS. An update that waits for no other unit has no outcome. */
static const struct outcome *outcome_of(const struct call *call)
{
  const struct plan_metrics *metrics = use(call, UPDATE_METRICS);
  if (metrics && call->exec->plan->on_host[call->instr->lane])
    metrics = call->exec->results->metrics[call->n % KEPT];
  return metrics ? &metrics->outcome : NULL;
}

/* The random bits of a step and unit. */
static uint64_t rounding_seed(const struct call *call)
{
  const int64_t word[] = {(int64_t)call->instr->attr.seed, call->args->update, call->instr->unit};
  return hash_bytes(HASH_START, word, sizeof word);
}

/* All states that an operation changes have one type. */
static enum dtype states_type(const struct call *call)
{
  const struct operand *operand = op_rows[call->instr->op].operand;
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (operand[k].type == TYPE_STATE && call->instr->use[k].buffer >= 0)
      return buffer_of(call, k)->dtype;
  return DTYPE_F32;
}

/* The settings of a pass. Of the operands, they depend only on the states' type. */
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
      .states = states_type(call),
      .stochastic = call->instr->attr.stochastic,
      .seed = rounding_seed(call),
  };
}

enum status run_direction(const struct call *call)
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

/* The arrays that UPDATE or REPAIR changes. */
struct target {
  const struct optim_segments *segments;
  struct layout_range mine;
  void *state[PLAN_MAX_STATE];
  struct optim_arrays arrays;
};

static void find_target(const struct call *call, struct target *t)
{
  const struct plan_unit *unit = &call->exec->plan->unit[call->instr->unit];
  const bool repairs = call->instr->op == OP_REPAIR;
  *t = (struct target){.segments = &unit->segments,
                       .mine = unit->owned,
                       .arrays = {use(call, UPDATE_MASTER), use(call, UPDATE_GRADS), t->state,
                                  use(call, UPDATE_WORKING)}};
  for (int s = 0; s < (repairs ? RULE_STATES : PLAN_MAX_STATE); s++)
    t->state[s] = use(call, (repairs ? (int)REPAIR_STATE : (int)UPDATE_STATE) + s);
}

static enum status update_matrices(const struct call *call, const struct target *t,
                                   const struct update *elements)
{
  void *const direction = use(call, UPDATE_DIRECTION);
  struct update op = *elements;
  op.grad = buffer_of(call, UPDATE_DIRECTION)->dtype;
  return optim_transform(call->lane, t->segments, t->mine, op.grad, direction,
                         use(call, UPDATE_WORK))
             ?: optim_apply(call->lane, t->segments, t->mine, &op, t->arrays.master, direction,
                            t->arrays.copy);
}

/* The same for the step before, whose gradient speculative units have not been changed by. */
static struct update pending_update(const struct call *call)
{
  const int64_t n = call->n - 1;
  const struct call before = call_of(call->exec, call->lane, call->index, n);
  struct update op = update_of(&before);
  op.outcome = &call->exec->results->metrics[n % KEPT]->outcome;
  return op;
}

static bool is_clipped(const struct outcome *outcome)
{
  return outcome->scale != 1; /* exactly 1 if the norm is not above optim.clip */
}

/* Whether UPDATE writes the working copy as if this step were not clipped. Equal on all ranks. */
static bool guesses(const struct call *call)
{
  return call->n == 1 || !is_clipped(&call->exec->results->metrics[(call->n - 1) % KEPT]->outcome);
}

/* The update by the pending gradient, which leaves the working copy. */
static enum status settle_pending(const struct call *call, const struct target *t,
                                  const struct update *op)
{
  const struct optim_arrays arrays = {t->arrays.master, use(call, UPDATE_PENDING), t->state, NULL};
  return optim_update(call->lane, t->segments, t->mine, op, &arrays);
}

/* This step's update changes the working copy alone, because it may be clipped: `next`. */
static enum status speculate(const struct call *call, const struct target *t,
                             const struct update *next)
{
  const bool waits = call->n - 1 > call->exec->settled;
  const struct update known = waits ? pending_update(call) : (struct update){0};
  if (!guesses(call))
    return waits ? settle_pending(call, t, &known) : STATUS_OK;
  return optim_speculate(call->lane, t->segments, t->mine, waits ? &known : NULL,
                         use(call, UPDATE_PENDING), next, &t->arrays);
}

enum status run_update(const struct call *call)
{
  struct update op = update_of(call);
  enum status status = STATUS_OK;
  struct target t;
  find_target(call, &t);
  if (t.arrays.copy)
    op.copy = buffer_of(call, UPDATE_WORKING)->dtype;
  if (use(call, UPDATE_PENDING))
    return speculate(call, &t, &op);
  if (use(call, UPDATE_DIRECTION))
    status = update_matrices(call, &t, &op);
  return status ? status : optim_update(call->lane, t.segments, t.mine, &op, &t.arrays);
}

enum status run_repair(const struct call *call)
{
  struct update op = update_of(call);
  struct target t;
  if (guesses(call) && op.outcome->finite && !is_clipped(op.outcome))
    return STATUS_OK;
  find_target(call, &t);
  op.copy = buffer_of(call, REPAIR_WORKING)->dtype;
  return optim_speculate(call->lane, t.segments, t.mine, NULL, NULL, &op, &t.arrays);
}

/* The gradient of the last step is the pending one of a step after it. */
static enum status settle(struct exec *exec, int index)
{
  struct lane *lane = exec->driver[exec->plan->instr[index].lane].lane;
  const struct call call = call_of(exec, lane, index, exec->released + 1);
  const struct update op = pending_update(&call);
  struct target t;
  find_target(&call, &t);
  return settle_pending(&call, &t, &op);
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
  const struct call call = call_of(exec, lane, index, 0);
  const struct plan_unit *unit = &exec->plan->unit[call.instr->unit];
  const struct layout_range all = {0, unit->layout.trained};
  const enum dtype type = buffer_of(&call, UPDATE_DIRECTION)->dtype;
  return optim_transform(lane, &unit->segments, all, type, use(&call, UPDATE_DIRECTION),
                         use(&call, UPDATE_WORK));
}
