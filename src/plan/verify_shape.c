/* The required form of a plan, derived from its input and its units' layouts alone. Several parts
 * of verify use it. */
#include "plan/verify.h"

bool verify_on_host(const struct plan *plan, int unit)
{
  for (int u = 0; u < plan->input.model->units && unit < 0; u++)
    if (plan->unit[u].policy.host)
      return true;
  return unit >= 0 && plan->unit[unit].policy.host;
}

bool verify_squares_on_host(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->unit[unit].policy.host && plan->unit[unit].policy.sums == SUMS_DEVICE &&
         plan->input.shape.micros > 1;
}

bool verify_sums_shared(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->unit[unit].policy.sums == SUMS_SHARED;
}

bool verify_learns(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->input.mode == PLAN_TRAIN && plan->unit[unit].layout.trained > 0;
}

bool verify_embedding_learns(const struct plan *plan)
{
  const struct model_unit *unit = &plan->input.model->unit[0];
  for (int p = 0; p < unit->params; p++)
    if (verify_learns(plan, 0) && !plan->unit[0].layout.frozen[p] &&
        (plan->input.model->head > 0 || unit->param[p].kind == PARAM_EMBEDDING))
      return true;
  return false;
}

bool verify_is_block(const struct plan *plan, int unit)
{
  return unit > 0 && unit <= plan->input.model->blocks;
}

bool verify_recomputes(const struct plan *plan, int block)
{
  enum deck_keep keep = plan->unit[block].policy.keep;
  return keep == KEEP_INPUT || keep == KEEP_INPUT_HOST || keep == KEEP_INPUT_NVME;
}

bool verify_passes_back(const struct plan *plan, int block)
{
  if (verify_embedding_learns(plan))
    return true;
  for (int u = 1; u <= block; u++)
    if (verify_learns(plan, u))
      return true;
  return false;
}

bool verify_state_on_disk(const struct plan *plan, int unit)
{
  return verify_learns(plan, unit) && plan->states > 0 && plan->unit[unit].policy.disk;
}

bool verify_has_matrices(const struct plan *plan, int unit)
{
  return verify_learns(plan, unit) && optim_has_matrices(&plan->unit[unit].segments);
}

int64_t verify_state_elements(const struct plan *plan, int unit, int s)
{
  const struct plan_input *input = &plan->input;
  const int shards = input->strategy == STRATEGY_NO_SHARD ? 1 : input->shape.group;
  int64_t most = 0;
  for (int i = 0; s < plan->states && verify_learns(plan, unit) && i < shards; i++) {
    const int64_t part = plan->unit[unit].layout.trained / shards;
    const struct layout_range range = {i * part, (i + 1) * part};
    const int64_t n = optim_state_elements(&plan->unit[unit].segments, s, range);
    most = n > most ? n : most;
  }
  return most;
}

bool verify_has_working(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->unit[unit].policy.working != WORKING_NONE;
}

bool verify_has_trained(const struct plan *plan, int unit)
{
  return plan->unit[unit].layout.trained > 0;
}

bool verify_has_frozen(const struct plan *plan, int unit)
{
  return plan->unit[unit].layout.flat > plan->unit[unit].layout.trained;
}

bool verify_shares_scales(const struct plan *plan, int unit)
{
  (void)unit;
  return plan->input.strategy != STRATEGY_NO_SHARD && plan->input.shape.group > 1;
}

bool verify_keeps_codes(const struct plan *plan, int unit)
{
  return plan_gathers_codes(plan, unit) && plan->unit[unit].policy.keeps_codes &&
         verify_has_trained(plan, unit);
}

int64_t verify_scale_bytes(const struct plan *plan, int unit)
{
  const int64_t members = verify_shares_scales(plan, unit) ? plan->input.shape.group : 1,
                bytes = model_fp8_bytes(plan->input.model, unit), each = members * FP8_SHARE_ALIGN;
  return bytes % each == 0 ? bytes : (bytes / each + 1) * each;
}

bool verify_sends_gradients(const struct plan *plan, int unit)
{
  return plan->unit[unit].policy.grads.ops->traits & CODEC_IDENTITY;
}

struct codec verify_codec(const struct plan *plan, const struct instr *instr)
{
  const struct unit_policy *policy = &plan->unit[instr->unit].policy;
  const enum plan_group group = instr->attr.group;
  const bool encodes = policy->across == ACROSS_RANKS ||
                       (policy->across == ACROSS_REPLICAS && group == GROUP_REPLICAS) ||
                       (policy->across == ACROSS_NODES && group == GROUP_ACROSS);
  return encodes ? policy->grads : codec_as_it_is;
}

int64_t verify_encoded(const struct plan *plan, int unit)
{
  const struct deck_shape *shape = &plan->input.shape;
  const int64_t trained = plan->unit[unit].layout.trained;
  if (verify_sends_gradients(plan, unit))
    return 0;
  switch (plan->unit[unit].policy.across) {
  case ACROSS_RANKS: return shape->group > 1 ? trained : 0;
  case ACROSS_REPLICAS: return trained / shape->group;
  case ACROSS_NODES: return trained / shape->local_ranks;
  default: return 0;
  }
}

bool verify_has_residual(const struct plan *plan, int unit)
{
  return verify_learns(plan, unit) && plan->unit[unit].policy.residual.ops &&
         verify_encoded(plan, unit) > 0;
}

bool verify_moves_residual(const struct plan *plan, int unit)
{
  return verify_has_residual(plan, unit) &&
         plan->unit[unit].policy.residual_tier != DECK_RESIDUAL_DEVICE;
}

bool verify_stores_residual(const struct plan *plan, int unit)
{
  return verify_has_residual(plan, unit) &&
         plan->unit[unit].policy.residual_tier == DECK_RESIDUAL_NVME;
}

bool verify_spends(const struct plan *plan, int unit)
{
  return verify_has_residual(plan, unit) || plan->unit[unit].policy.sample > 0;
}

bool verify_wants_decode_work(const struct plan *plan, int unit)
{
  return codec_work(&plan->unit[unit].policy.grads, plan->unit[unit].layout.trained, 1) > 0;
}

bool verify_wants_largest(const struct plan *plan, int unit)
{
  return plan->unit[unit].policy.grads.ops->traits & CODEC_NEEDS_MAX;
}

bool verify_wants_encode_work(const struct plan *plan, int unit)
{
  return plan->unit[unit].policy.sample > 0 || verify_wants_decode_work(plan, unit) ||
         (verify_has_residual(plan, unit) &&
          codec_work(&plan->unit[unit].policy.residual, plan->unit[unit].layout.trained, 1) > 0);
}

bool verify_encodes_params(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->unit[unit].policy.weights.ops;
}

bool verify_keeps_copy(const struct plan *plan, int unit)
{
  return verify_encodes_params(plan, unit) && plan->unit[unit].policy.difference;
}

bool verify_wants_params_work(const struct plan *plan, int unit)
{
  return verify_encodes_params(plan, unit) &&
         codec_work(&plan->unit[unit].policy.weights, plan->unit[unit].layout.flat, 1) > 0;
}

enum plan_group verify_group(const struct plan *plan, const struct instr *instr)
{
  const struct plan_input *input = &plan->input;
  const bool shards = input->strategy != STRATEGY_NO_SHARD && input->shape.group > 1;
  const bool coded = op_rows[instr->op].coded && instr->op != OP_SUM_SHARED;
  if (coded && plan->unit[instr->unit].policy.across == ACROSS_NODES)
    return instr->attr.group == GROUP_NODE ? GROUP_NODE : GROUP_ACROSS;
  if (coded && input->shape.replicas > 1)
    return instr->attr.group == GROUP_REPLICAS ? GROUP_REPLICAS : GROUP_REDUCE;
  if (op_rows[instr->op].group == GROUP_GATHER && !op_rows[instr->op].codes_params && !shards)
    return GROUP_NONE;
  return instr->op == OP_GATHER_GRADS && input->shape.replicas == 1 ? GROUP_REDUCE
                                                                    : op_rows[instr->op].group;
}

int64_t verify_members(const struct plan *plan, const struct instr *instr)
{
  switch (verify_group(plan, instr)) {
  case GROUP_NONE: return 1;
  case GROUP_REPLICAS: return plan->input.shape.replicas;
  case GROUP_NODE: return plan->input.shape.local_ranks;
  case GROUP_ACROSS: return plan->input.ranks / plan->input.shape.local_ranks;
  case GROUP_WORLD: return plan->input.ranks;
  default: return plan->input.shape.group;
  }
}

enum dtype verify_window_type(const struct plan *plan, int unit)
{
  return plan->unit[unit < 0 ? 0 : unit].policy.window;
}

bool verify_is_place(const struct plan *plan, int unit, int buffer, struct layout_range range)
{
  int64_t offset;
  const struct plan_buffer *window = &plan->buffer[plan_root(plan, buffer, &offset)],
                           *part = &plan->buffer[buffer];
  return window->unit == unit && window->dtype == verify_window_type(plan, unit) &&
         window->elements == plan->unit[unit].layout.flat &&
         offset == range.begin * (int64_t)dtype_size(window->dtype) &&
         part->elements == range.end - range.begin;
}

/* ---- optional operands ---- */

/* DIRECTION changes the state of matrices, UPDATE all others, and moves of state all. */
static bool works_on_state(const struct plan *plan, enum op op, int s)
{
  const bool of_matrices = plan->state[s].row->of == STATE_OF_MATRICES;
  return op == OP_DIRECTION ? of_matrices : op != OP_UPDATE || !of_matrices;
}

bool verify_wants(const struct plan *plan, const struct instr *instr, const struct operand *operand)
{
  if (operand->type == TYPE_STATE)
    return verify_state_elements(plan, instr->unit, operand->index) > 0 &&
           works_on_state(plan, instr->op, operand->index);
  const bool encoded =
      !op_rows[instr->op].coded || !(verify_codec(plan, instr).ops->traits & CODEC_IDENTITY);
  return !operand->wanted || (encoded && operand->wanted(plan, instr->unit));
}

bool verify_wants_saved(const struct plan *plan, int unit)
{
  return plan->input.mode == PLAN_TRAIN && verify_is_block(plan, unit) &&
         !verify_recomputes(plan, unit) && verify_passes_back(plan, unit);
}

bool verify_wants_stream_gradient(const struct plan *plan, int unit)
{
  (void)unit;
  return plan->input.mode == PLAN_TRAIN;
}

bool verify_speculates(const struct plan *plan, int unit)
{
  return verify_learns(plan, unit) && plan->unit[unit].policy.timing == TIMING_SPECULATIVE;
}

/* Whether a unit that learns needs squares. */
bool verify_wants_squares(const struct plan *plan, int unit)
{
  (void)unit;
  for (int u = 0; u < plan->input.model->units; u++)
    if (verify_learns(plan, u) && verify_squares_on_host(plan, u))
      return true;
  return false;
}

bool verify_wants_metrics(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->unit[unit].policy.timing == TIMING_DEFERRED;
}
