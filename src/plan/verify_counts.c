/* Nothing is missing: a sum lacks no part, and every unit learns what it has to. Of each operation there are as many as the shape asks for. */
#include "base/mem.h"
#include "plan/verify.h"

struct tally {
  int of[OP_COUNT];
};

/* Each micro-batch is reduced by itself, under its own number; otherwise the step is, under none. */
static bool reduces_micros(const struct plan *plan, int unit)
{
  return plan->policy[unit].each_micro && plan->input.shape.micros > 1;
}

/* Whether replicas meet in each micro-batch, because what the devices send to the host is complete. */
static bool meets_micros(const struct plan *plan, int unit)
{
  return verify_on_host(plan, unit) && plan->policy[unit].sums == SUMS_DEVICE && reduces_micros(plan, unit);
}

/* Whether what lands on the host is added there, because it has been reduced before, or need not be. */
static bool adds_on_host(const struct plan *plan, int unit)
{
  return plan->policy[unit].sums == SUMS_DEVICE;
}

static bool is_train(const struct plan *plan)
{
  return plan->input.mode == PLAN_TRAIN;
}

static bool is_generate(const struct plan *plan)
{
  return plan->input.mode == PLAN_GENERATE;
}

/* ---- the forward and the backward pass ---- */

int due_load(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)plan, (void)tally;
  return unit < 0 && micro >= 0;
}

int due_embed(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)plan, (void)tally;
  return unit == 0 && micro >= 0;
}

int due_forward(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return verify_is_block(plan, unit) && micro >= 0 && !is_generate(plan);
}

int due_decode(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return verify_is_block(plan, unit) && micro >= 0 && is_generate(plan);
}

int due_loss(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return unit == plan->input.model->head && micro >= 0 && !is_generate(plan);
}

int due_logits(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return unit == plan->input.model->head && micro >= 0 && is_generate(plan);
}

int due_backward(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return verify_is_block(plan, unit) && micro >= 0 && is_train(plan) && verify_passes_back(plan, unit);
}

int due_embed_backward(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return unit == 0 && micro >= 0 && verify_embedding_learns(plan);
}

/* ---- between the forward and the backward pass of a block ---- */

int due_recompute(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  return due_backward(plan, unit, micro, tally) && verify_recomputes(plan, unit);
}

/* Activations that are wanted back almost at once may stay, whatever the deck says. */
int due_kept_on_host(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  if (!due_backward(plan, unit, micro, tally) || tally->of[OP_SAVE_ACT] == 0)
    return 0;
  const enum deck_keep keep = verify_keep_of(plan, unit);
  return keep != KEEP_ACTIVATIONS && keep != KEEP_INPUT;
}

int due_kept_on_disk(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  return due_kept_on_host(plan, unit, micro, tally) && verify_keep_of(plan, unit) == KEEP_INPUT_NVME;
}

/* ---- gradients ---- */

static bool is_reduced(const struct plan *plan, int unit, int micro)
{
  return verify_learns(plan, unit) && plan->input.shape.group > 1 && (micro < 0) == !reduces_micros(plan, unit);
}

int due_sum_shared(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return is_reduced(plan, unit, micro) && verify_sums_shared(plan, unit);
}

static bool is_met(const struct plan *plan, int unit, int micro)
{
  return verify_learns(plan, unit) && (micro < 0) == !meets_micros(plan, unit);
}

/* Over the shard group, and over the replicas. */
int due_exchange(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return (is_reduced(plan, unit, micro) && !verify_sums_shared(plan, unit)) +
         (is_met(plan, unit, micro) && plan->input.shape.replicas > 1);
}

int due_encode(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  const int sums =
      due_exchange(plan, unit, micro, tally) + due_sum_shared(plan, unit, micro, tally);
  return sums > 0 && !verify_sends_gradients(plan, unit) ? sums : 0;
}

int due_gather_grads(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  const struct plan_input *input = &plan->input;
  (void)tally;
  return is_met(plan, unit, micro) &&
         (input->shape.replicas > 1 || (input->strategy == STRATEGY_NO_SHARD && input->shape.group > 1));
}

int due_squares(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return verify_learns(plan, unit) && micro < 0;
}

int due_metrics(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return unit < 0 && micro < 0 && !is_generate(plan);
}

int due_fetch_loss(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  return due_metrics(plan, unit, micro, tally) && plan->on_host[LANE_REDUCE];
}

/* ---- the update ---- */

int due_direction(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return verify_has_matrices(plan, unit) && micro < 0;
}

int due_gather_direction(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  const struct plan_input *input = &plan->input;
  return due_direction(plan, unit, micro, tally) && input->strategy != STRATEGY_NO_SHARD &&
         input->shape.group > 1;
}

int due_update(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return verify_learns(plan, unit) && micro < 0;
}

static bool learns_on_host(const struct plan *plan, int unit)
{
  return verify_on_host(plan, unit) && verify_learns(plan, unit);
}

int due_fetch_grad(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return learns_on_host(plan, unit) && (micro < 0) == !reduces_micros(plan, unit);
}

int due_accumulate(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return learns_on_host(plan, unit) && micro > 0 && adds_on_host(plan, unit);
}

int due_stored_state(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return learns_on_host(plan, unit) && micro < 0 && verify_state_on_disk(plan, unit);
}

int due_publish(const struct plan *plan, int unit, int micro, const struct tally *tally)
{
  (void)tally;
  return learns_on_host(plan, unit) && micro < 0 && plan->policy[unit].working == WORKING_SHARED;
}

/* ---- */

static enum status check_tally(const struct plan *plan, const struct tally *tally, int unit, int micro)
{
  const char *name = unit < 0 ? "the step" : plan->input.model->unit[unit].name;
  char when[40] = "";
  if (micro >= 0)
    snprintf(when, sizeof when, " in micro-batch %d", micro);
  for (int op = 0; op < OP_COUNT; op++) {
    const struct op_row *row = &op_rows[op];
    const int needed = row->due ? row->due(plan, unit, micro, tally) : tally->of[op];
    if (tally->of[op] == needed)
      continue;
    if (tally->of[op] == 0)
      return status_set(STATUS_PLAN, "%s has no %s%s: %s", name, row->name, when, row->without);
    return status_set(STATUS_PLAN, "%s has %d %s%s where there must be %d", name, tally->of[op], row->name,
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
