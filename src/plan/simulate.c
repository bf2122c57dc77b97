/* A plan replayed with a cost per instruction. Every lane takes its instructions in order, each when its waits are over. */
#include <math.h>

#include "base/mem.h"
#include "plan/internal.h"

static double ratio(double work, double rate)
{
  return rate > 0 ? work / rate : 0;
}

static double collective_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  double ranks = plan_instr_ranks(plan, instr), bytes = (double)plan_instr_bytes(plan, instr);
  if (instr->op == OP_METRICS)
    return 2 * ceil(log2(ranks)) * (ratio(bytes, rates->link_bytes) + rates->link_latency_s); /* a tree, up and down */
  return ratio(bytes * (ranks - 1) / ranks, rates->link_bytes) + rates->link_latency_s * (ranks - 1);
}

static double flops_of(const struct plan *plan, const struct instr *instr)
{
  const struct model *model = plan->input.model;
  struct model_shape s = {plan->input.shape.micro_batch, plan->input.shape.sequence};
  switch (instr->op) {
  case OP_FORWARD:
  case OP_RECOMPUTE:
  case OP_DECODE: return model->ops->block_flops(model, s);
  case OP_BACKWARD: return (instr->n_use > 5 ? 2 : 1) * model->ops->block_flops(model, s); /* by the input; with gradients by the parameters too */
  case OP_LOSS: return (instr->n_use - 4) * model->ops->head_flops(model, s);              /* forward; by the input; by the parameters */
  case OP_LOGITS: return model->ops->head_flops(model, s) / (double)s.T;                   /* one token of each sequence */
  default: return 0;
  }
}

/* Bytes that pass through memory, of operations that do little else: what is changed is read and written. */
static double traffic_of(const struct plan *plan, const struct instr *instr)
{
  double bytes = 0;
  switch (instr->op) {
  case OP_EMBED: return 2 * (double)plan->buffer[instr->use[2].buffer].bytes;
  case OP_EMBED_BACKWARD: return 3 * (double)plan->buffer[instr->use[1].buffer].bytes;
  case OP_LOAD:
  case OP_SQUARES:
  case OP_ADAM:
    for (int k = 0; k < instr->n_use; k++)
      bytes += (double)plan->buffer[instr->use[k].buffer].bytes * (instr->use[k].access == ACCESS_ADD ? 2 : 1);
    return bytes;
  default: return 0;
  }
}

/* A shard in fp32 on its way into a window of another type. */
static double cast_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  if (instr->op != OP_GATHER || plan->input.device->compute == DTYPE_F32)
    return 0;
  double elements = (double)plan->buffer[instr->use[0].buffer].bytes / sizeof(float);
  return ratio(elements * (double)(sizeof(float) + dtype_size(plan->input.device->compute)), rates->memory_bytes);
}

static double cost_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  if (op_traits[instr->op].collective)
    return collective_s(plan, instr, rates) + cast_s(plan, instr, rates);
  return ratio(flops_of(plan, instr), rates->gemm_flops) + ratio(traffic_of(plan, instr), rates->memory_bytes);
}

/* How much later the second step ends than the first. `end` has room for both. */
static double replay(const struct plan *plan, const struct plan_rates *rates, double *end)
{
  double lane_free[LANE_COUNT] = {0}, step_end[2] = {0};
  for (int time = 0; time < 2 * plan->n; time++) {
    const struct instr *instr = &plan->instr[time % plan->n];
    int step = time / plan->n;
    double start = lane_free[instr->lane];
    for (int w = 0; w < instr->n_wait; w++)
      if (step >= instr->wait[w].back)
        start = fmax(start, end[(step - instr->wait[w].back) * plan->n + instr->wait[w].instr]);
    end[time] = lane_free[instr->lane] = start + cost_s(plan, instr, rates);
    step_end[step] = fmax(step_end[step], end[time]);
  }
  return step_end[1] - step_end[0];
}

enum status plan_simulate(const struct plan *plan, const struct plan_rates *rates, struct plan_forecast *out)
{
  void *end;
  enum status status = mem_alloc(MEM_META, 2 * (size_t)plan->n * sizeof(double), &end);
  if (status)
    return status;
  struct plan_rates silent = *rates;
  silent.link_bytes = silent.link_latency_s = 0;
  struct plan_forecast forecast = {.step_s = replay(plan, rates, end)};
  forecast.exposed_comm_s = forecast.step_s - replay(plan, &silent, end);
  mem_free(end);
  for (int i = 0; i < plan->n; i++)
    forecast.busy_s[plan->instr[i].lane] += cost_s(plan, &plan->instr[i], rates);
  *out = forecast;
  return STATUS_OK;
}
