/* What a plan has to be, from its input and its units' layouts alone: for several of verify's parts. */
#include "plan/verify.h"

bool verify_on_host(const struct plan *plan, int unit)
{
  return plan->input.shape.host_state && (unit < 0 || unit >= plan->input.shape.resident);
}

bool verify_squares_on_host(const struct plan *plan, int unit)
{
  return verify_on_host(plan, unit) && !plan->input.shape.cpu_reduce && plan->input.shape.micros > 1;
}

bool verify_any_squares_on_host(const struct plan *plan)
{
  for (int u = 0; u < plan->input.model->units; u++)
    if (verify_learns(plan, u) && verify_squares_on_host(plan, u))
      return true;
  return false;
}

bool verify_sums_shared(const struct plan *plan)
{
  const struct deck_shape *shape = &plan->input.shape;
  return shape->host_state && shape->cpu_reduce && shape->one_node && shape->group > 1;
}

bool verify_learns(const struct plan *plan, int unit)
{
  return unit >= 0 && plan->input.mode == PLAN_TRAIN && plan->layout[unit].trained > 0;
}

bool verify_embedding_learns(const struct plan *plan)
{
  const struct model_unit *unit = &plan->input.model->unit[0];
  for (int p = 0; p < unit->params; p++)
    if (verify_learns(plan, 0) && !plan->layout[0].frozen[p] && (plan->input.model->head > 0 || unit->param[p].kind == PARAM_EMBEDDING))
      return true;
  return false;
}

bool verify_is_block(const struct plan *plan, int unit)
{
  return unit > 0 && unit <= plan->input.model->blocks;
}

enum deck_keep verify_keep_of(const struct plan *plan, int block)
{
  const struct deck_pattern *pattern = &plan->input.shape.activations;
  return pattern->n > 0 ? (enum deck_keep)pattern->of[(block - 1) % pattern->n] : KEEP_ACTIVATIONS;
}

bool verify_recomputes(const struct plan *plan, int block)
{
  enum deck_keep keep = verify_keep_of(plan, block);
  return keep == KEEP_INPUT || keep == KEEP_INPUT_HOST || keep == KEEP_INPUT_NVME;
}

bool verify_state_on_disk(const struct plan *plan, int unit)
{
  return verify_learns(plan, unit) && plan->moment1[unit] >= 0 && plan->buffer[plan->moment1[unit]].tier == TIER_DISK;
}

int64_t verify_members(const struct plan *plan, enum op op)
{
  const struct plan_input *input = &plan->input;
  bool whole = input->strategy == STRATEGY_NO_SHARD;
  switch (op) {
  case OP_GATHER: return whole ? 1 : input->shape.group;
  case OP_REPLICA_REDUCE: return input->shape.replicas;
  case OP_GATHER_GRADS: return whole ? input->shape.group : input->shape.replicas;
  default: return input->shape.group;
  }
}

int64_t verify_element(const struct plan *plan)
{
  return (int64_t)dtype_size(plan->input.device->compute);
}

bool verify_is_place(const struct plan *plan, int unit, int buffer, struct layout_range range)
{
  int64_t offset, element = verify_element(plan);
  const struct plan_buffer *window = &plan->buffer[plan_root(plan, buffer, &offset)];
  return window->unit == unit && window->bytes == plan->layout[unit].flat * element && offset == range.begin * element &&
         plan->buffer[buffer].bytes == (range.end - range.begin) * element;
}
