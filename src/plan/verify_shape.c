/* The required form of a plan, derived from its input and its units' layouts alone. Several parts
 * of verify use it. */
#include "plan/verify.h"

/* ---- conditions on a unit (-1: none) ---- */

static int64_t work_of(const struct codec *codec, int64_t elements)
{
  return codec_work(codec, elements, 1);
}

/* clang-format off */
#define IS(name, condition) \
  bool verify_##name(const struct plan *plan, int unit) { (void)unit; return condition; }
#define SHAPE plan->input.shape
#define OVER(set) mesh_ranks(&plan->mesh, set)
#define POLICY plan->unit[unit].policy
#define LAYOUT plan->unit[unit].layout

IS(trains, plan->input.mode == PLAN_TRAIN)
IS(generates, plan->input.mode == PLAN_GENERATE)
IS(evaluates, plan->input.mode != PLAN_GENERATE)
IS(has_weights, plan->input.weights)
IS(has_positions, plan->input.positions)
IS(has_documents, plan->input.documents)
IS(has_pairs, plan->input.beta > 0)
IS(turns_positions, plan->input.positions && plan->input.model->inv_freq)
IS(embeds_positions, plan->input.positions && !plan->input.model->inv_freq)
IS(gathers_grads, OVER(MESH_REPLICA) > 1 || (OVER(MESH_SHARD) > 1 && verify_shards(plan) == 1))
IS(loss_on_host, verify_evaluates(plan, unit) && plan->on_host[LANE_REDUCE])
IS(trains_embedding, verify_embedding_learns(plan))
IS(learns, unit >= 0 && verify_trains(plan, unit) && LAYOUT.trained > 0)
IS(has_trained, LAYOUT.trained > 0)
IS(has_frozen, LAYOUT.flat > LAYOUT.trained)
IS(has_matrices, verify_learns(plan, unit) && optim_has_matrices(&plan->unit[unit].segments))
IS(gathers_matrices, verify_has_matrices(plan, unit) && verify_shards(plan) > 1)
IS(has_working, unit >= 0 && POLICY.working != WORKING_NONE)
IS(wants_metrics, unit >= 0 && POLICY.timing == TIMING_DEFERRED)
IS(speculates, verify_learns(plan, unit) && POLICY.timing == TIMING_SPECULATIVE)
IS(state_on_disk, verify_learns(plan, unit) && plan->states > 0 && POLICY.disk)
IS(moves_state, verify_on_host(plan, unit) && verify_state_on_disk(plan, unit))
IS(shares_copy, verify_on_host(plan, unit) && POLICY.working == WORKING_SHARED)
IS(sums_on_device, unit >= 0 && POLICY.host && POLICY.sums == SUMS_DEVICE)
IS(squares_on_host, verify_sums_on_device(plan, unit) && SHAPE.micros > 1)
IS(sums_shared, unit >= 0 && POLICY.sums == SUMS_SHARED)
IS(exchanges_shared, OVER(MESH_SHARD) > 1 && verify_sums_shared(plan, unit))
IS(keeps_codes, plan_gathers_codes(plan, unit) && POLICY.keeps_codes && LAYOUT.trained > 0)
IS(sends_gradients, POLICY.grads.ops->traits & CODEC_IDENTITY)
IS(wants_largest, POLICY.grads.ops->traits & CODEC_NEEDS_MAX)
IS(has_residual, verify_learns(plan, unit) && POLICY.residual.ops && verify_encoded(plan, unit) > 0)
IS(moves_residual, verify_has_residual(plan, unit) && POLICY.residual_tier != DECK_RESIDUAL_DEVICE)
IS(stores_residual, verify_has_residual(plan, unit) && POLICY.residual_tier == DECK_RESIDUAL_NVME)
IS(spends, verify_has_residual(plan, unit) || POLICY.sample > 0)
IS(wants_decode_work, work_of(&POLICY.grads, LAYOUT.trained) > 0)
IS(wants_encode_work, POLICY.sample > 0 || verify_wants_decode_work(plan, unit) ||
   (verify_has_residual(plan, unit) && work_of(&POLICY.residual, LAYOUT.trained) > 0))
IS(encodes_params, unit >= 0 && POLICY.weights.ops)
IS(keeps_messages, unit >= 0 && POLICY.frozen == DTYPE_U8)
IS(keeps_copy, verify_encodes_params(plan, unit) && POLICY.difference)
IS(wants_params_work, verify_encodes_params(plan, unit) &&
   codec_work_each(&POLICY.weights, LAYOUT.flat, 1) > 0)
IS(recomputes, POLICY.keep == KEEP_INPUT || POLICY.keep == KEEP_INPUT_HOST ||
   POLICY.keep == KEEP_INPUT_NVME)
IS(wants_saved, verify_trains(plan, unit) && !verify_recomputes(plan, unit) &&
   verify_passes_back(plan, unit))
IS(needs_backward, verify_trains(plan, unit) && verify_passes_back(plan, unit))
IS(needs_recompute, verify_needs_backward(plan, unit) && verify_recomputes(plan, unit))
/* clang-format on */

/* ---- facts ---- */

bool verify_on_host(const struct plan *plan, int unit)
{
  for (int u = 0; u < plan->input.model->units && unit < 0; u++)
    if (plan->unit[u].policy.host)
      return true;
  return unit >= 0 && plan->unit[unit].policy.host;
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

bool verify_passes_back(const struct plan *plan, int unit)
{
  if (verify_embedding_learns(plan))
    return true;
  for (int u = 1; u <= unit; u++)
    if (verify_learns(plan, u))
      return true;
  return false;
}

int verify_shards(const struct plan *plan)
{
  return plan->input.strategy == STRATEGY_NO_SHARD ? 1 : mesh_ranks(&plan->mesh, MESH_SHARD);
}

int64_t verify_state_elements(const struct plan *plan, int unit, int s)
{
  const int shards = verify_shards(plan);
  int64_t most = 0;
  for (int i = 0; s < plan->states && verify_learns(plan, unit) && i < shards; i++) {
    const int64_t part = plan->unit[unit].layout.trained / shards;
    const struct layout_range range = {i * part, (i + 1) * part};
    const int64_t n = optim_state_elements(&plan->unit[unit].segments, s, range);
    most = n > most ? n : most;
  }
  return most;
}

struct codec verify_codec(const struct verify *v)
{
  const mesh_set group = v->instr->attr.group;
  const bool encodes =
      !v->plan->input.shape.two_hops || group == MESH_REPLICA || group == MESH_ACROSS;
  return encodes ? v->unit->policy.grads : codec_as_it_is;
}

bool verify_spans_nodes(const struct plan *plan)
{
  return mesh_ranks(&plan->mesh, MESH_ACROSS) > 1;
}

int64_t verify_encoded(const struct plan *plan, int unit)
{
  const int64_t trained = plan->unit[unit].layout.trained;
  if (verify_sends_gradients(plan, unit) || plan->input.ranks == 1)
    return 0;
  return trained / (plan->input.shape.two_hops ? mesh_ranks(&plan->mesh, MESH_INSIDE) : 1);
}

mesh_set verify_group(const struct verify *v)
{
  const int replicas = mesh_ranks(&v->plan->mesh, MESH_REPLICA);
  const mesh_set group = v->instr->attr.group;
  const bool coded = v->row->coded && v->instr->op != OP_SUM_SHARED;
  if (coded && group == MESH_REPLICA && replicas > 1)
    return MESH_REPLICA;
  if (coded && verify_spans_nodes(v->plan))
    return group == MESH_INSIDE ? MESH_INSIDE : MESH_ACROSS;
  if (v->row->lane == LANE_GATHER && verify_shards(v->plan) == 1)
    return MESH_NONE;
  return v->instr->op == OP_GATHER_GRADS && replicas == 1 ? MESH_SHARD : v->row->group;
}

int64_t verify_members(const struct verify *v)
{
  return mesh_ranks(&v->plan->mesh, verify_group(v));
}

enum dtype verify_window_type(const struct plan *plan, int unit)
{
  return plan->unit[unit < 0 ? 0 : unit].policy.window;
}

bool verify_is_place(const struct verify *v, int buffer, struct layout_range range)
{
  int64_t offset;
  const struct plan_buffer *window = &v->plan->buffer[plan_root(v->plan, buffer, &offset)],
                           *part = &v->plan->buffer[buffer];
  return window->unit == v->instr->unit &&
         window->dtype == verify_window_type(v->plan, v->instr->unit) &&
         window->elements == v->unit->layout.flat &&
         offset == range.begin * (int64_t)dtype_size(window->dtype) &&
         part->elements == range.end - range.begin;
}

/* ---- optional operands ---- */

/* DIRECTION changes the state of matrices, UPDATE all others, and moves of state all. */
static bool works_on_state(const struct plan *plan, enum op op, int s)
{
  const bool of_matrices = plan->state[s]->of == STATE_OF_MATRICES;
  return op == OP_DIRECTION ? of_matrices : op != OP_UPDATE || !of_matrices;
}

bool verify_wants(const struct verify *v, const struct operand *operand)
{
  if (operand->type == TYPE_STATE)
    return verify_state_elements(v->plan, v->instr->unit, operand->index) > 0 &&
           works_on_state(v->plan, v->instr->op, operand->index);
  const bool encoded = !v->row->coded || !(verify_codec(v).ops->traits & CODEC_IDENTITY);
  return !operand->wanted || (encoded && operand->wanted(v->plan, v->instr->unit));
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
