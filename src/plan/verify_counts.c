/* Nothing is missing: a sum lacks no part, and every unit learns what it has to. Of each operation there are as many as the shape asks for. */
#include "base/mem.h"
#include "plan/verify.h"

struct tally {
  int of[OP_COUNT];
};

/* What would be wrong without it. */
static const char *const loss_of[OP_COUNT] = {
    [OP_LOAD] = "it would work on old tokens",
    [OP_EMBED] = "nothing would enter the first block",
    [OP_FORWARD] = "nothing would pass through it",
    [OP_LOSS] = "the loss would lack a part",
    [OP_LOGITS] = "there would be no result",
    [OP_DECODE] = "nothing would pass through it",
    [OP_BACKWARD] = "its gradient would lack a part",
    [OP_EMBED_BACKWARD] = "its gradient would lack a part",
    [OP_REDUCE] = "its gradient would lack the other ranks' part",
    [OP_SUM_SHARED] = "its gradient would lack the other ranks' part",
    [OP_REPLICA_REDUCE] = "its gradient would lack the other replicas' part",
    [OP_GATHER_GRADS] = "it would be updated by a partial gradient",
    [OP_SQUARES] = "the gradient norm would lack a part",
    [OP_METRICS] = "loss and gradient norm would lack the other ranks' part",
    [OP_ADAM] = "its parameters would never change",
    [OP_ADAM_NOW] = "its parameters would never change",
    [OP_RECOMPUTE] = "its activations would be gone",
    [OP_PUBLISH] = "ranks would compute with parameters that others are still writing",
    [OP_SAVE_ACT] = "what its backward pass reads would be gone",
    [OP_WRITE_ACT] = "what its backward pass reads would be gone",
    [OP_READ_ACT] = "what its backward pass reads would not come back",
    [OP_FETCH_ACT] = "what its backward pass reads would not come back",
    [OP_FETCH_GRAD] = "its gradient would not come to the host",
    [OP_ACCUMULATE] = "its gradient would lack a part",
    [OP_READ_STATE] = "it would be updated without its moments",
    [OP_WRITE_STATE] = "its moments would never change",
    [OP_FETCH_LOSS] = "the loss would not come to the host",
};

/* Each micro-batch is reduced by itself, under its own number; otherwise the step is, under none. What goes to the host goes there from each. */
static bool reduces_micros(const struct plan *plan)
{
  const struct deck_shape *shape = &plan->input.shape;
  return (shape->reduce_every_micro || shape->host_state) && shape->micros > 1;
}

/* Whether replicas meet in each micro-batch, because what the devices send to the host is complete. */
static bool meets_micros(const struct plan *plan, int unit)
{
  return verify_on_host(plan, unit) && !plan->input.shape.cpu_reduce && reduces_micros(plan);
}

/* Whether what lands on the host is added there, because it has been reduced before, or need not be. */
static bool adds_on_host(const struct plan *plan)
{
  return plan->input.shape.host_state && (!plan->input.shape.cpu_reduce || plan->input.shape.group == 1);
}

/* Whether the gradient by a block's output is for anybody: the block, one before it, or the embedding. */
static bool passes_back(const struct plan *plan, int unit)
{
  if (verify_embedding_learns(plan))
    return true;
  for (int u = 1; u <= unit; u++)
    if (verify_learns(plan, u))
      return true;
  return false;
}

/* Of what lies between the forward and the backward pass of a block. What is wanted back almost at once may stay, whatever the deck says. */
static int due_between(const struct plan *plan, enum op op, int unit, const struct tally *tally)
{
  if (!verify_is_block(plan, unit) || plan->input.mode != PLAN_TRAIN || !passes_back(plan, unit))
    return 0;
  enum deck_keep keep = verify_keep_of(plan, unit);
  bool leaves = tally->of[OP_SAVE_ACT] > 0 && keep != KEEP_ACTIVATIONS && keep != KEEP_INPUT;
  switch (op) {
  case OP_RECOMPUTE: return verify_recomputes(plan, unit);
  case OP_SAVE_ACT:
  case OP_FETCH_ACT: return leaves;
  default: return leaves && keep == KEEP_INPUT_NVME;
  }
}

/* Of what only masters in host memory need; `micro` as below. */
static bool is_due_on_host(const struct plan *plan, enum op op, int unit, int micro)
{
  const struct deck_shape *shape = &plan->input.shape;
  if (!verify_on_host(plan, unit) || !verify_learns(plan, unit))
    return false;
  switch (op) {
  case OP_FETCH_GRAD: return (micro < 0) == !reduces_micros(plan);
  case OP_ACCUMULATE: return micro > 0 && adds_on_host(plan);
  case OP_READ_STATE:
  case OP_WRITE_STATE: return micro < 0 && verify_state_on_disk(plan, unit);
  default: return micro < 0 && shape->params_full;
  }
}

/* How many of an operation there must be for a unit (-1: none) and micro-batch (-1: the step), beside those of `tally`; -1: as many as there are. */
static int due(const struct plan *plan, enum op op, int unit, int micro, const struct tally *tally)
{
  const struct plan_input *input = &plan->input;
  bool train = input->mode == PLAN_TRAIN, generate = input->mode == PLAN_GENERATE, whole = micro < 0;
  switch (op) {
  case OP_LOAD: return unit < 0 && !whole;
  case OP_EMBED: return unit == 0 && !whole;
  case OP_FORWARD: return verify_is_block(plan, unit) && !whole && !generate;
  case OP_DECODE: return verify_is_block(plan, unit) && !whole && generate;
  case OP_LOSS: return unit == input->model->head && !whole && !generate;
  case OP_LOGITS: return unit == input->model->head && !whole && generate;
  case OP_BACKWARD: return verify_is_block(plan, unit) && !whole && train && passes_back(plan, unit);
  case OP_EMBED_BACKWARD: return unit == 0 && !whole && verify_embedding_learns(plan);
  case OP_REDUCE:
  case OP_SUM_SHARED:
    return verify_learns(plan, unit) && input->shape.group > 1 && whole == !reduces_micros(plan) && (op == OP_SUM_SHARED) == verify_sums_shared(plan);
  case OP_REPLICA_REDUCE: return verify_learns(plan, unit) && input->shape.replicas > 1 && whole == !meets_micros(plan, unit);
  case OP_GATHER_GRADS:
    return verify_learns(plan, unit) && whole == !meets_micros(plan, unit) &&
           (input->shape.replicas > 1 || (input->strategy == STRATEGY_NO_SHARD && input->shape.group > 1));
  case OP_SQUARES: return verify_learns(plan, unit) && whole;
  case OP_ADAM: return verify_learns(plan, unit) && whole && !input->shape.immediate;
  case OP_ADAM_NOW: return verify_learns(plan, unit) && whole && input->shape.immediate;
  case OP_RECOMPUTE:
  case OP_SAVE_ACT:
  case OP_WRITE_ACT:
  case OP_READ_ACT:
  case OP_FETCH_ACT: return whole ? 0 : due_between(plan, op, unit, tally);
  case OP_PUBLISH:
  case OP_FETCH_GRAD:
  case OP_ACCUMULATE:
  case OP_READ_STATE:
  case OP_WRITE_STATE: return is_due_on_host(plan, op, unit, micro);
  case OP_METRICS: return unit < 0 && whole && !generate;
  case OP_FETCH_LOSS: return unit < 0 && whole && !generate && input->shape.host_state && input->shape.cpu_reduce;
  default: return -1;
  }
}

static enum status check_tally(const struct plan *plan, const struct tally *tally, int unit, int micro)
{
  const char *name = unit < 0 ? "the step" : plan->input.model->unit[unit].name;
  char when[40] = "";
  if (micro >= 0)
    snprintf(when, sizeof when, " in micro-batch %d", micro);
  for (int op = 0; op < OP_COUNT; op++) {
    int needed = due(plan, (enum op)op, unit, micro, tally);
    if (needed < 0 || tally->of[op] == needed)
      continue;
    if (tally->of[op] == 0)
      return status_set(STATUS_PLAN, "%s has no %s%s: %s", name, op_traits[op].name, when, loss_of[op]);
    return status_set(STATUS_PLAN, "%s has %d %s%s where there must be %d", name, tally->of[op], op_traits[op].name,
                      micro >= 0 ? when : " for the whole step", needed);
  }
  return STATUS_OK;
}

enum status verify_counts(const struct plan *plan)
{
  int units = plan->input.model->units, micros = (int)plan->input.shape.micros;
  size_t width = (size_t)micros + 1;
  void *block;
  enum status status = mem_alloc(MEM_META, ((size_t)units + 1) * width * sizeof(struct tally), &block);
  if (status)
    return status;
  struct tally *tally = block;
  for (int i = 0; i < plan->n; i++)
    tally[(size_t)(plan->instr[i].unit + 1) * width + (size_t)(plan->instr[i].micro + 1)].of[plan->instr[i].op]++;
  for (int unit = -1; unit < units && !status; unit++)
    for (int micro = -1; micro < micros && !status; micro++)
      status = check_tally(plan, &tally[(size_t)(unit + 1) * width + (size_t)(micro + 1)], unit, micro);
  mem_free(block);
  return status;
}
