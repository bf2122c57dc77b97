/* A plan replayed with a cost per instruction. Every lane takes its instructions in order, each when its waits are over.
 *
 * Lanes share nothing in this but the memory of the host: whatever goes through it at the same time, copies, sums and updates, shares its rate evenly, and none takes more than it would by
 * itself. Each operation is taken to use it evenly from its begin to its end. The rates of copies and of the host's memory are those of a rank while all ranks of its node do the same, and
 * of copies while the other direction copies too: so they are measured. Where copies of one rank alone are faster, it is taken to be the host's memory that holds those of all ranks up: by
 * itself a copy is as fast as alone, and its bytes weigh so much in that memory that all ranks' copies both ways just fill it. */
#include <math.h>

#include "base/mem.h"
#include "plan/ops.h"

/* Seconds, bytes through the host's memory, and the seconds that are left if communication takes no
 * time. */
struct cost {
  double seconds, host, local;
};

static double ratio(double work, double rate)
{
  return rate > 0 ? work / rate : 0;
}

static double bytes_of(const struct plan *plan, const struct instr *instr, int k)
{
  return (double)plan->buffer[instr->use[k].buffer].bytes;
}

static bool has(const struct instr *instr, int k)
{
  return instr->use[k].buffer >= 0;
}

/* Bytes through the memory that the operation works on. */
static struct cost traffic_cost(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates,
                                double bytes)
{
  const bool host = plan->on_host[instr->lane];
  return (struct cost){.seconds = ratio(bytes, host ? rates->host_bytes : rates->memory_bytes), .host = host ? bytes : 0};
}

static struct cost flops_cost(double flops, const struct plan_rates *rates)
{
  return (struct cost){.seconds = ratio(flops, rates->gemm_flops)};
}

static struct model_shape shape_of(const struct plan *plan)
{
  return (struct model_shape){plan->input.shape.micro_batch, plan->input.shape.sequence};
}

/* An operation that does little else than read and write its operands: a change is both. */
struct cost cost_operands(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  double bytes = 0;
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (has(instr, k))
      bytes += bytes_of(plan, instr, k) * (instr->use[k].access == ACCESS_ADD ? 2 : 1);
  return traffic_cost(plan, instr, rates, bytes);
}

/* And what this rank makes of whole matrices. */
struct cost cost_update(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  struct cost cost = cost_operands(plan, instr, rates);
  if (has(instr, UPDATE_DIRECTION)) {
    const double flops = optim_transform_flops(&plan->segments[instr->unit], plan->owned[instr->unit]);
    cost.seconds += ratio(flops, rates->gemm_flops);
  }
  return cost;
}

struct cost cost_embed(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  return traffic_cost(plan, instr, rates, 2 * bytes_of(plan, instr, EMBED_OUT));
}

struct cost cost_embed_backward(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  return traffic_cost(plan, instr, rates, 3 * bytes_of(plan, instr, EMBED_BACKWARD_D));
}

struct cost cost_block(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  (void)instr;
  return flops_cost(plan->input.model->ops->block_flops(plan->input.model, shape_of(plan)), rates);
}

/* With respect to the input, and to the parameters if there are gradients of them. */
struct cost cost_backward(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const double flops = plan->input.model->ops->block_flops(plan->input.model, shape_of(plan));
  return flops_cost((1 + has(instr, BACKWARD_GRADS)) * flops, rates);
}

struct cost cost_loss(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const double flops = plan->input.model->ops->head_flops(plan->input.model, shape_of(plan));
  return flops_cost((1 + has(instr, LOSS_D) + has(instr, LOSS_GRADS)) * flops, rates);
}

/* Of one token of each sequence. */
struct cost cost_logits(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const struct model_shape s = shape_of(plan);
  (void)instr;
  return flops_cost(plan->input.model->ops->head_flops(plan->input.model, s) / (double)s.T, rates);
}

/* By itself, and its part of the host's memory. */
struct cost cost_copy(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const bool up = instr->lane == LANE_H2D;
  const double bytes = bytes_of(plan, instr, MOVE_TO), together = rates->h2d_bytes + rates->d2h_bytes;
  const double alone = up ? rates->h2d_alone_bytes : rates->d2h_alone_bytes, rate = up ? rates->h2d_bytes : rates->d2h_bytes;
  if (alone <= rate)
    return (struct cost){.seconds = ratio(bytes, rate), .host = bytes};
  return (struct cost){.seconds = bytes / alone, .host = bytes * fmax(1, ratio(rates->host_bytes, together))};
}

struct cost cost_disk(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  double seconds = 0;
  for (int k = 0; k < PLAN_MAX_USE; k++)
    if (has(instr, k) && plan->buffer[instr->use[k].buffer].tier == TIER_DISK)
      seconds += ratio(bytes_of(plan, instr, k),
                       instr->use[k].access == ACCESS_READ ? rates->disk_read_bytes : rates->disk_write_bytes);
  return (struct cost){.seconds = seconds};
}

static double barrier_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  return 2 * ceil(log2(plan_instr_ranks(plan, instr))) * rates->link_latency_s;
}

struct cost cost_barrier(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  return (struct cost){.seconds = barrier_s(plan, instr, rates)};
}

static double link_of(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  return plan->on_host[instr->lane] ? rates->host_link_bytes : rates->link_bytes;
}

/* Up a tree and down. */
struct cost cost_tree(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const double bytes = (double)plan_instr_bytes(plan, instr), levels = ceil(log2(plan_instr_ranks(plan, instr)));
  return (struct cost){.seconds = 2 * levels * (ratio(bytes, link_of(plan, instr, rates)) + rates->link_latency_s)};
}

/* All parts but one's own. */
static double exchange_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const double ranks = plan_instr_ranks(plan, instr), bytes = (double)plan_instr_bytes(plan, instr);
  return ratio(bytes * (ranks - 1) / ranks, link_of(plan, instr, rates)) + rates->link_latency_s * (ranks - 1);
}

/* A shard of another type than the window's is cast on the device. A rank that has all of the working
 * copy copies it. */
static double place_s(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const struct plan_buffer *shard = &plan->buffer[instr->use[GATHER_SHARD].buffer],
                           *whole = &plan->buffer[instr->use[GATHER_WHOLE].buffer];
  const bool casts = shard->dtype != whole->dtype, copies = shard->purpose == PURPOSE_WORKING && plan_instr_ranks(plan, instr) == 1;
  const double elements = (double)shard->elements;
  return casts || copies ? ratio(elements * (double)(dtype_size(shard->dtype) + dtype_size(whole->dtype)), rates->memory_bytes) : 0;
}

struct cost cost_gather(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  const double local = place_s(plan, instr, rates);
  return (struct cost){exchange_s(plan, instr, rates) + local, 0, local};
}

struct cost cost_exchange(const struct plan *plan, const struct instr *instr,
                          const struct plan_rates *rates)
{
  return (struct cost){.seconds = exchange_s(plan, instr, rates)};
}

/* All members' messages are read as they came, and the shard is written, or read and written. */
struct cost cost_sum_shared(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  struct cost cost = cost_operands(plan, instr, rates);
  cost.seconds += 2 * barrier_s(plan, instr, rates);
  return cost;
}

static struct cost cost_of(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates)
{
  op_cost *const cost = op_rows[instr->op].cost;
  return cost ? cost(plan, instr, rates) : (struct cost){0};
}

/* With `free` taking no time. Casts around a collective stay. */
static struct cost cost_without(const struct plan *plan, const struct instr *instr, const struct plan_rates *rates, enum plan_part free)
{
  const struct cost cost = cost_of(plan, instr, rates);
  return op_rows[instr->op].part != free || free == PART_NOTHING ? cost : (struct cost){.seconds = cost.local};
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
  double *end;
  enum status status = mem_new(MEM_META, STEPS * plan->n, &end);
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
