#include "plan/policy.h"

#include "plan/plan.h"

/* The first `resident` units stay on the device, unless the group shares parameters or adds up
 * gradients on the host. */
static bool is_on_host(const struct deck_shape *shape, bool shares, int unit)
{
  return shape->host_state && (shares || unit >= shape->resident);
}

/* A share of the units in host memory, spread evenly. */
static bool is_on_disk(const struct deck_shape *shape, int unit)
{
  const int64_t nth = unit - shape->resident;
  return (int64_t)(shape->nvme_state * (double)(nth + 1)) > (int64_t)(shape->nvme_state * (double)nth);
}

static enum deck_keep keep_of(const struct plan_input *input, int unit)
{
  const struct deck_pattern *pattern = &input->shape.activations;
  const bool block = unit > 0 && unit <= input->model->blocks;
  return block && pattern->n > 0 ? (enum deck_keep)pattern->of[(unit - 1) % pattern->n] : KEEP_ACTIVATIONS;
}

struct unit_policy unit_policy_make(const struct plan_input *input, int unit)
{
  const struct deck_shape *shape = &input->shape;
  const int group = input->strategy == STRATEGY_NO_SHARD ? input->ranks : shape->group;
  const bool meets = shape->host_state && group > 1, full = meets && shape->params_full,
             reduces = meets && shape->cpu_reduce, narrow = input->device->compute != DTYPE_F32;
  struct unit_policy policy = {.host = is_on_host(shape, full || reduces, unit),
                               .window = input->device->compute,
                               .state = shape->moments,
                               .each_micro =
                                   shape->host_state || (group > 1 && shape->reduce_every_micro),
                               .immediate = shape->immediate,
                               .tight = shape->tight,
                               .keep = keep_of(input, unit)};
  (void)codec_find(shape->codec, &policy.codec); /* see build_check_input() */
  policy.disk = policy.host && is_on_disk(shape, unit);
  if (full)
    policy.working = WORKING_SHARED;
  else if (narrow && (policy.host || (!shape->host_state && shape->keep_working)))
    policy.working = WORKING_OWN;
  if (reduces)
    policy.sums = shape->one_node ? SUMS_SHARED : SUMS_HOST;
  return policy;
}
