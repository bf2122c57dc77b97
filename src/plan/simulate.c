/* A plan replayed with a cost per instruction. Every lane takes its instructions in order, each when its waits are over.
 *
 * Lanes share nothing in this but the memory of the host: whatever goes through it at the same time, copies, sums and updates, shares its rate evenly, and none takes more than it would by
 * itself. Each operation is taken to use it evenly from its begin to its end. The rates of copies and of the host's memory are those of a rank while all ranks of its node do the same, and
 * of copies while the other direction copies too: so they are measured. Where copies of one rank alone are faster, it is taken to be the host's memory that holds those of all ranks up: by
 * itself a copy is as fast as alone, and its bytes weigh so much in that memory that all ranks' copies both ways just fill it. */
#include <math.h>

#include "base/mem.h"
#include "plan/internal.h"

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

/* Gradients that travel in a narrower type are read in fp32 and written in that type before. */
static double narrow_traffic(const struct plan *plan, const struct instr *instr)
{
  const bool narrows = plan_op_sums(instr->op) && instr->wire != DTYPE_F32;
  return narrows ? bytes_of(plan, instr, 0) + (double)plan_instr_bytes(plan, instr) : 0;
}

/* A sum on the host: all members' parts are read as they came, and the shard is written, or read
 * and written. */
static double sum_traffic(const struct plan *plan, const struct instr *instr)
{
  if (!plan_op_sums(instr->op))
    return 0;
  const int shard = instr->op == OP_SUM_SHARED ? 1 : 2;
  return narrow_traffic(plan, instr) + (double)plan_instr_bytes(plan, instr) +
         bytes_of(plan, instr, shard) * (instr->use[shard].access == ACCESS_ADD ? 2 : 1);
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

/* On the device, around a collective. Gradients may be narrowed. A shard in fp32 goes into a
 * window of another type. A shard that lies in the window, and the working copy, have that type
 * already; a rank that has all of the copy copies it. */
static double cast_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  if (plan_op_sums(instr->op))
    return uses_host(plan, instr) ? 0 : ratio(narrow_traffic(plan, instr), rates->memory_bytes);
  if (instr->op != OP_GATHER || plan->input.device->compute == DTYPE_F32 ||
      plan_root(plan, instr->use[0].buffer, NULL) == plan_root(plan, instr->use[1].buffer, NULL))
    return 0;
  if (plan->buffer[instr->use[0].buffer].purpose == PURPOSE_WORKING)
    return plan_instr_ranks(plan, instr) > 1 ? 0 : ratio(2 * bytes_of(plan, instr, 0), rates->memory_bytes);
  const double elements = bytes_of(plan, instr, 0) / sizeof(float);
  return ratio(elements * (double)(sizeof(float) + dtype_size(plan->input.device->compute)), rates->memory_bytes);
}

/* By itself, and what it takes of the host's memory. */
static struct cost copy_cost(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const bool up = instr->lane == LANE_H2D;
  const double bytes = bytes_of(plan, instr, 1), together = rates->h2d_bytes + rates->d2h_bytes;
  const double alone = up ? rates->h2d_alone_bytes : rates->d2h_alone_bytes, rate = up ? rates->h2d_bytes : rates->d2h_bytes;
  if (alone <= rate)
    return (struct cost){ratio(bytes, rate), bytes};
  return (struct cost){bytes / alone, bytes * fmax(1, ratio(rates->host_bytes, together))};
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

static struct cost cost_of(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const bool host = uses_host(plan, instr);
  switch (plan_op_part(instr->op)) {
  case PART_COPY: return copy_cost(plan, instr, rates);
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
static struct cost cost_without(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates, enum plan_part free)
{
  if (free == PART_NOTHING || plan_op_part(instr->op) != free)
    return cost_of(plan, instr, rates);
  return (struct cost){free == PART_COMM ? cast_s(plan, instr, rates) : 0, 0};
}

/* Until each is like the one before: what is deferred to the next step delays that one's end. The last is company for the one before it, which shares the host's memory with it. */
enum { STEPS = 5 };

struct runner {
  int time; /* the instruction that the lane runs, or is to run next, counted over all steps */
  bool runs;
  double since, speed; /* 1: as fast as by itself */
  double left, draw;   /* of it at `since`, seconds by itself; bytes a second through the host's memory, by itself */
};

struct replay {
  const struct plan *plan;
  const struct plan_rates *rates;
  enum plan_part free;
  struct runner lane[LANE_COUNT];
  double now, *end; /* of each instruction of each step; INFINITY while it has not ended */
};

static int next_on(const struct plan *plan, int lane, int time)
{
  while (time < STEPS * plan->n && (int)plan->instr[time % plan->n].lane != lane)
    time++;
  return time;
}

static void begin(struct replay *r)
{
  for (int time = 0; time < STEPS * r->plan->n; time++)
    r->end[time] = INFINITY;
  for (int lane = 0; lane < LANE_COUNT; lane++)
    r->lane[lane].time = next_on(r->plan, lane, 0);
}

static bool may_start(const struct replay *r, const struct runner *lane)
{
  const int n = r->plan->n, step = lane->time / n;
  if (lane->runs || step == STEPS)
    return false;
  const struct instr *instr = &r->plan->instr[lane->time % n];
  for (int w = 0; w < instr->n_wait; w++)
    if (step >= instr->wait[w].back && r->end[(step - instr->wait[w].back) * n + instr->wait[w].instr] > r->now)
      return false;
  return true;
}

static void start(const struct replay *r, struct runner *lane)
{
  const struct cost cost = cost_without(r->plan, &r->plan->instr[lane->time % r->plan->n], r->rates, r->free);
  *lane = (struct runner){lane->time, .runs = true, .since = r->now, .speed = 1, .left = cost.seconds, .draw = ratio(cost.host, cost.seconds)};
}

/* What one that runs may take of the host's memory, in bytes a second: those that want less leave the rest to the others. */
static double fair_share(const struct replay *r)
{
  double share = r->rates->host_bytes > 0 ? 0 : INFINITY;
  for (int round = 0; round < LANE_COUNT && isfinite(share); round++) {
    double rest = r->rates->host_bytes;
    int takers = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++)
      if (r->lane[lane].runs && r->lane[lane].draw > share)
        takers++;
      else if (r->lane[lane].runs)
        rest -= r->lane[lane].draw;
    share = takers > 0 ? rest / takers : INFINITY;
  }
  return share;
}

/* One whose speed stays ends when it was to end, to the bit. */
static void set_speed(struct runner *lane, double now, double speed)
{
  if (lane->speed == speed)
    return;
  lane->left = fmax(0, lane->left - (now - lane->since) * lane->speed);
  lane->since = now;
  lane->speed = speed;
}

static double end_of(const struct runner *lane)
{
  return lane->runs ? lane->since + lane->left / lane->speed : INFINITY;
}

/* To the next end of an instruction; false where nothing runs any more. */
static bool advance(struct replay *r)
{
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (may_start(r, &r->lane[lane]))
      start(r, &r->lane[lane]);
  const double share = fair_share(r);
  double next = INFINITY;
  for (int lane = 0; lane < LANE_COUNT; lane++) {
    if (r->lane[lane].runs)
      set_speed(&r->lane[lane], r->now, r->lane[lane].draw > share ? share / r->lane[lane].draw : 1);
    next = fmin(next, end_of(&r->lane[lane]));
  }
  if (isinf(next))
    return false;
  r->now = next;
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (end_of(&r->lane[lane]) <= next) {
      r->end[r->lane[lane].time] = next;
      r->lane[lane] = (struct runner){next_on(r->plan, lane, r->lane[lane].time + 1), .speed = 1};
    }
  return true;
}

static double latest(const double *end, int n)
{
  double last = 0;
  for (int i = 0; i < n; i++)
    last = fmax(last, end[i]);
  return last;
}

/* How much later a step ends than the one before, and at least as long as its traffic through the host's memory takes: lanes that wait for no other one run ahead, and have it to themselves.
 * `end` has room for all steps. */
static double replay(const struct plan *plan, const struct plan_rates *rates, enum plan_part free, double *end)
{
  struct replay r = {plan, rates, free, .end = end};
  const int n = plan->n;
  double host = 0;
  begin(&r);
  while (advance(&r))
    ;
  for (int i = 0; i < n; i++)
    host += cost_without(plan, &plan->instr[i], rates, free).host;
  return fmax(latest(&end[(STEPS - 2) * n], n) - latest(&end[(STEPS - 3) * n], n), ratio(host, rates->host_bytes));
}

/* How much shorter the step would be. Not at all, too, where what is left meets more of what it shares the host's memory with. */
static double exposed(const struct plan *plan, const struct plan_rates *rates, double step_s, enum plan_part free, double *end)
{
  return fmax(0, step_s - replay(plan, rates, free, end));
}

enum status plan_simulate(const struct plan *plan, const struct plan_rates *rates, struct plan_forecast *out)
{
  void *end;
  enum status status = mem_alloc(MEM_META, STEPS * (size_t)plan->n * sizeof(double), &end);
  if (status)
    return status;
  struct plan_forecast forecast = {.step_s = replay(plan, rates, PART_NOTHING, end)};
  forecast.exposed_comm_s = exposed(plan, rates, forecast.step_s, PART_COMM, end);
  forecast.exposed_copy_s = exposed(plan, rates, forecast.step_s, PART_COPY, end);
  forecast.exposed_update_s = exposed(plan, rates, forecast.step_s, PART_UPDATE, end);
  forecast.exposed_disk_s = exposed(plan, rates, forecast.step_s, PART_DISK, end);
  mem_free(end);
  for (int i = 0; i < plan->n; i++)
    forecast.busy_s[plan->instr[i].lane] += cost_of(plan, &plan->instr[i], rates).seconds;
  *out = forecast;
  return STATUS_OK;
}
