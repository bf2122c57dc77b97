/* A plan replayed with a cost per instruction. Every lane takes its instructions in order, each when its waits are over.
 *
 * Lanes that work at the same time do not slow each other down in this, but in two ways. The rates of copies and of the host's memory are those of a rank while all ranks of its node do
 * the same, and copies while the other direction copies too: so they are measured. And the memory of the host carries what is copied, summed and updated in a step, in whatever order: a
 * step takes at least as long as that traffic does. */
#include <math.h>

#include "base/mem.h"
#include "plan/internal.h"

/* What can be imagined to take no time. */
enum part { PART_NOTHING, PART_COMM, PART_COPY, PART_UPDATE, PART_DISK };

/* Seconds, and bytes through the host's memory. */
struct cost {
  double seconds, host;
};

static double ratio(double work, double rate)
{
  return rate > 0 ? work / rate : 0;
}

static double bytes_of(const struct plan *plan, const struct instr *instr, int use)
{
  return (double)plan->buffer[instr->use[use].buffer].bytes;
}

/* Whether an operation goes through the host's memory, where the masters are there: for one that is told by the rate, whatever the device's memory is. */
static bool uses_host(const struct plan *plan, const struct instr *instr)
{
  return plan->input.shape.host_state &&
         (plan->on_host[instr->lane] || instr->lane == LANE_HOST || (instr->lane == LANE_REDUCE && plan->input.shape.cpu_reduce));
}

static double collective_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const double ranks = plan_instr_ranks(plan, instr), bytes = (double)plan_instr_bytes(plan, instr);
  const double link = uses_host(plan, instr) ? rates->host_link_bytes : rates->link_bytes;
  const double barrier = 2 * ceil(log2(ranks)) * rates->link_latency_s;
  if (instr->op == OP_PUBLISH)
    return barrier;
  if (instr->op == OP_SUM_SHARED) /* what it reads is its traffic */
    return 2 * barrier;
  if (instr->op == OP_METRICS)
    return 2 * ceil(log2(ranks)) * (ratio(bytes, link) + rates->link_latency_s); /* a tree, up and down */
  return ratio(bytes * (ranks - 1) / ranks, link) + rates->link_latency_s * (ranks - 1);
}

/* A sum on the host: what came from all members is read, the shard is written, or read and written. */
static double sum_traffic(const struct plan *plan, const struct instr *instr)
{
  switch (instr->op) {
  case OP_REDUCE:
  case OP_REPLICA_REDUCE: return bytes_of(plan, instr, 0) + bytes_of(plan, instr, 2) * (instr->use[2].access == ACCESS_ADD ? 2 : 1);
  case OP_SUM_SHARED: return bytes_of(plan, instr, 0) + bytes_of(plan, instr, 1) * (instr->use[1].access == ACCESS_ADD ? 2 : 1);
  default: return 0;
  }
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
  case OP_EMBED: return 2 * bytes_of(plan, instr, 2);
  case OP_EMBED_BACKWARD: return 3 * bytes_of(plan, instr, 1);
  case OP_LOAD:
  case OP_SQUARES:
  case OP_ADAM:
  case OP_ADAM_NOW:
  case OP_ACCUMULATE:
    for (int k = 0; k < instr->n_use; k++)
      bytes += bytes_of(plan, instr, k) * (instr->use[k].access == ACCESS_ADD ? 2 : 1);
    return bytes;
  default: return 0;
  }
}

/* A shard in fp32 on its way into a window of another type. One that lies in the window is there in its type. */
static double cast_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  if (instr->op != OP_GATHER || plan->input.device->compute == DTYPE_F32 ||
      plan_root(plan, instr->use[0].buffer, NULL) == plan_root(plan, instr->use[1].buffer, NULL))
    return 0;
  const double elements = bytes_of(plan, instr, 0) / sizeof(float);
  return ratio(elements * (double)(sizeof(float) + dtype_size(plan->input.device->compute)), rates->memory_bytes);
}

static double copy_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  return ratio(bytes_of(plan, instr, 1), instr->lane == LANE_H2D ? rates->h2d_bytes : rates->d2h_bytes);
}

static double disk_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  switch (instr->op) {
  case OP_WRITE_ACT: return ratio(bytes_of(plan, instr, 1), rates->disk_write_bytes);
  case OP_READ_ACT: return ratio(bytes_of(plan, instr, 0), rates->disk_read_bytes);
  case OP_WRITE_STATE: return ratio(bytes_of(plan, instr, 2) + bytes_of(plan, instr, 3), rates->disk_write_bytes);
  default: return ratio(bytes_of(plan, instr, 0) + bytes_of(plan, instr, 1), rates->disk_read_bytes);
  }
}

static enum part part_of(const struct instr *instr)
{
  switch (instr->op) {
  case OP_FETCH:
  case OP_FETCH_ACT:
  case OP_SAVE_ACT:
  case OP_FETCH_GRAD:
  case OP_FETCH_LOSS: return PART_COPY;
  case OP_READ_ACT:
  case OP_WRITE_ACT:
  case OP_READ_STATE:
  case OP_WRITE_STATE: return PART_DISK;
  case OP_ADAM:
  case OP_ADAM_NOW:
  case OP_ACCUMULATE: return PART_UPDATE;
  default: return op_traits[instr->op].collective ? PART_COMM : PART_NOTHING;
  }
}

static struct cost cost_of(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const bool host = uses_host(plan, instr);
  switch (part_of(instr)) {
  case PART_COPY: return (struct cost){copy_s(plan, instr, rates), bytes_of(plan, instr, 1)};
  case PART_DISK: return (struct cost){disk_s(plan, instr, rates), 0};
  case PART_COMM: {
    const double traffic = host ? sum_traffic(plan, instr) : 0;
    return (struct cost){collective_s(plan, instr, rates) + cast_s(plan, instr, rates) + ratio(traffic, rates->host_bytes), traffic};
  }
  default: break;
  }
  const double traffic = traffic_of(plan, instr);
  return (struct cost){ratio(flops_of(plan, instr), rates->gemm_flops) + ratio(traffic, host ? rates->host_bytes : rates->memory_bytes),
                       host ? traffic : 0};
}

/* With `free` taking no time. What is cast around a collective stays. */
static struct cost cost_without(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates, enum part free)
{
  if (free == PART_NOTHING || part_of(instr) != free)
    return cost_of(plan, instr, rates);
  return (struct cost){free == PART_COMM ? cast_s(plan, instr, rates) : 0, 0};
}

enum { STEPS = 4 }; /* until each is like the one before: what is deferred to the next step delays that one's end */

/* How much later the last step ends than the one before. `end` has room for all. */
static double replay(const struct plan *plan, const struct plan_rates *rates, enum part free, double *end)
{
  double lane_free[LANE_COUNT] = {0}, step_end[STEPS] = {0}, host = 0;
  for (int time = 0; time < STEPS * plan->n; time++) {
    const struct instr *instr = &plan->instr[time % plan->n];
    const struct cost cost = cost_without(plan, instr, rates, free);
    const int step = time / plan->n;
    double start = lane_free[instr->lane];
    for (int w = 0; w < instr->n_wait; w++)
      if (step >= instr->wait[w].back)
        start = fmax(start, end[(step - instr->wait[w].back) * plan->n + instr->wait[w].instr]);
    end[time] = lane_free[instr->lane] = start + cost.seconds;
    step_end[step] = fmax(step_end[step], end[time]);
    host += step == 0 ? cost.host : 0;
  }
  return fmax(step_end[STEPS - 1] - step_end[STEPS - 2], ratio(host, rates->host_bytes));
}

enum status plan_simulate(const struct plan *plan, const struct plan_rates *rates, struct plan_forecast *out)
{
  void *end;
  enum status status = mem_alloc(MEM_META, STEPS * (size_t)plan->n * sizeof(double), &end);
  if (status)
    return status;
  struct plan_forecast forecast = {.step_s = replay(plan, rates, PART_NOTHING, end)};
  forecast.exposed_comm_s = forecast.step_s - replay(plan, rates, PART_COMM, end);
  forecast.exposed_copy_s = forecast.step_s - replay(plan, rates, PART_COPY, end);
  forecast.exposed_update_s = forecast.step_s - replay(plan, rates, PART_UPDATE, end);
  forecast.exposed_disk_s = forecast.step_s - replay(plan, rates, PART_DISK, end);
  mem_free(end);
  for (int i = 0; i < plan->n; i++)
    forecast.busy_s[plan->instr[i].lane] += cost_of(plan, &plan->instr[i], rates).seconds;
  *out = forecast;
  return STATUS_OK;
}
