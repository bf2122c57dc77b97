#include "cmd/forecast.h"

#include "base/mem.h"
#include "cmd/fit.h"

static double tokens_of(const struct plan *plan)
{
  const struct deck_shape *shape = &plan->input.shape;
  return (double)(shape->micro_batch * shape->micros * shape->sequence * plan->input.ranks);
}

/* Whether anything goes between tiers. */
static bool has_tiers(const struct plan_forecast *forecast, const struct plan *plan)
{
  return plan->input.shape.host_state || forecast->busy_s[LANE_H2D] + forecast->busy_s[LANE_D2H] + forecast->busy_s[LANE_DISK] > 0;
}

static void print_step(const struct plan *plan, const struct plan_forecast *forecast, FILE *to)
{
  fprintf(to, "\npredicted step %.4f s, %.0f tokens/s over all ranks, exposed communication %.4f s", forecast->step_s,
          tokens_of(plan) / forecast->step_s, forecast->exposed_comm_s);
  if (has_tiers(forecast, plan))
    fprintf(to, ", copies %.4f s, updates %.4f s, disk %.4f s", forecast->exposed_copy_s, forecast->exposed_update_s, forecast->exposed_disk_s);
  fputc('\n', to);
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (forecast->busy_s[lane] > 0)
      fprintf(to, "  %-8s busy %.4f s\n", plan_lane_name((enum plan_lane)lane), forecast->busy_s[lane]);
}

/* What a line of a table is of: the deck's plan as it is, or another one, which was made for the line. */
struct choice {
  const struct plan *plan;
  struct plan *other; /* NULL: the deck's */
  struct plan_forecast forecast;
};

/* By the keys that the tables change. */
static bool is_same(const struct deck_shape *a, const struct deck_shape *b)
{
  return a->params_full == b->params_full && a->cpu_reduce == b->cpu_reduce && a->resident == b->resident;
}

/* out->other is to be destroyed, whatever the status. */
static enum status choose(const struct choice *deck, const struct deck_shape *shape, const struct plan_rates *rates, struct choice *out)
{
  struct plan_input input = deck->plan->input;
  *out = *deck;
  if (is_same(shape, &input.shape))
    return STATUS_OK;
  input.shape = *shape;
  const enum status status = plan_create(&input, &out->other);
  out->plan = out->other;
  return status ? status : plan_simulate(out->plan, rates, &out->forecast);
}

/* ---- the four ways ---- */

enum { WAYS = 4 };

struct way {
  bool params_full, cpu_reduce;
  bool possible; /* else those who would share parameters are not on one node */
  struct plan_forecast forecast;
  double fetch, land; /* bytes of this rank a step: parameters copied to the device, gradients copied from it */
  bool gathers;
};

static const char *params_name(const struct way *way)
{
  return way->params_full ? "full" : "shard";
}

static const char *grads_name(const struct way *way)
{
  return way->cpu_reduce ? "cpu_reduce" : "gpu_reduce";
}

static void count_bytes(const struct plan *plan, struct way *way)
{
  for (int i = 0; i < plan->n; i++) {
    const struct instr *instr = &plan->instr[i];
    switch (instr->op) {
    case OP_FETCH: way->fetch += (double)plan->buffer[instr->use[1].buffer].bytes; break;
    case OP_GATHER: way->gathers = true; break;
    case OP_FETCH_GRAD: way->land += (double)plan->buffer[instr->use[1].buffer].bytes; break;
    default: break;
    }
  }
}

static enum status predict(const struct choice *deck, const struct plan_rates *rates, int local_ranks, struct way *way)
{
  struct deck_shape shape = deck->plan->input.shape;
  struct choice choice;
  way->possible = !way->params_full || local_ranks % shape.group == 0;
  if (!way->possible)
    return STATUS_OK;
  shape.params_full = way->params_full;
  shape.cpu_reduce = way->cpu_reduce;
  const enum status status = choose(deck, &shape, rates, &choice);
  if (!status) {
    way->forecast = choice.forecast;
    count_bytes(choice.plan, way);
  }
  plan_destroy(choice.other);
  return status;
}

static void print_way(const struct plan *plan, const struct way *way, const struct way *best, FILE *to)
{
  const struct deck_shape *shape = &plan->input.shape;
  const bool chosen = way->params_full == shape->params_full && way->cpu_reduce == shape->cpu_reduce;
  fprintf(to, "  %-15s %-15s ", params_name(way), grads_name(way));
  if (way->possible)
    fprintf(to, "%11.4f s  %11.4f s  %11.4f s  %11.4f s", way->forecast.step_s, way->forecast.exposed_comm_s, way->forecast.exposed_copy_s,
            way->forecast.exposed_update_s);
  else
    fprintf(to, "a group spans nodes");
  const bool gone = shape->resident > 0 && (way->params_full || way->cpu_reduce); /* plan_create() lets none stay */
  fprintf(to, "%s%s%s\n", way == best ? "  fastest" : "", chosen ? "  (this deck)" : "", gone ? "  (without tiers.resident)" : "");
}

static double seconds(double bytes, double rate)
{
  return rate > 0 ? bytes / rate : 0;
}

static enum plan_lane busiest(const struct plan_forecast *forecast)
{
  int most = 0;
  for (int lane = 1; lane < LANE_COUNT; lane++)
    if (forecast->busy_s[lane] > forecast->busy_s[most])
      most = lane;
  return (enum plan_lane)most;
}

static void print_params(const struct way *way, const struct plan_rates *rates, FILE *to)
{
  fprintf(to, "%s: a rank copies %s a step to its device in %.3f s", params_name(way), mem_amount(way->fetch).text,
          seconds(way->fetch, rates->h2d_bytes));
  if (way->gathers)
    fprintf(to, ", and the link carries the rest in %.3f s", way->forecast.busy_s[LANE_GATHER]);
}

static void print_grads(const struct way *way, const struct plan_rates *rates, FILE *to)
{
  fprintf(to, "%s: it copies %s to the host in %.3f s, and %s reduce%s in %.3f s", grads_name(way), mem_amount(way->land).text,
          seconds(way->land, rates->d2h_bytes), way->cpu_reduce ? "hosts" : "the link", way->cpu_reduce ? "" : "s",
          way->forecast.busy_s[LANE_REDUCE]);
}

/* What costs nothing because nobody said what it costs may look like the best. */
static void print_unknown(const struct plan_rates *rates, FILE *to)
{
  const struct {
    const char *name;
    double rate;
  } known[] = {{"link=", rates->link_bytes},
               {"h2d=", rates->h2d_bytes},
               {"d2h=", rates->d2h_bytes},
               {"host_memory=", rates->host_bytes},
               {"host_link=", rates->host_link_bytes}};
  int n = 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].rate <= 0)
      fprintf(to, "%s%s", n++ > 0 ? ", " : "not given, and so without cost in this: ", known[i].name);
  if (n > 0)
    fputc('\n', to);
}

/* What bounds the fastest way, and what the other choice of each would cost in its place. */
static void print_reason(const struct way way[WAYS], const struct way *best, const struct plan_rates *rates, FILE *to)
{
  const enum plan_lane lane = busiest(&best->forecast);
  const struct way *other_params = &way[(int)(best - way) ^ 2], *other_grads = &way[(int)(best - way) ^ 1];
  fprintf(to, "transfer.params=%s with transfer.grads=%s is predicted fastest, with the %s lane busy %.3f of %.3f s; ", params_name(best),
          grads_name(best), plan_lane_name(lane), best->forecast.busy_s[lane], best->forecast.step_s);
  print_params(best, rates, to);
  if (other_params->possible) {
    fprintf(to, "; ");
    print_params(other_params, rates, to);
  }
  fprintf(to, "; ");
  print_grads(best, rates, to);
  fprintf(to, "; ");
  print_grads(other_grads, rates, to);
  fputc('\n', to);
}

static enum status print_ways(const struct choice *deck, const struct plan_rates *rates, int local_ranks, FILE *to)
{
  struct way way[WAYS] = {{0}};
  const struct way *best = &way[0]; /* the first one is always possible */
  for (int i = 0; i < WAYS; i++) {
    way[i].params_full = i & 2;
    way[i].cpu_reduce = i & 1;
    const enum status status = predict(deck, rates, local_ranks, &way[i]);
    if (status)
      return status;
    if (way[i].possible && way[i].forecast.step_s < best->forecast.step_s)
      best = &way[i];
  }
  fprintf(to, "\n  %-15s %-15s %13s  %13s  %13s  %13s\n", "transfer.params", "transfer.grads", "step", "exposed comm.", "copies", "updates");
  for (int i = 0; i < WAYS; i++)
    print_way(deck->plan, &way[i], best, to);
  print_reason(way, best, rates, to);
  print_unknown(rates, to);
  return STATUS_OK;
}

/* ---- units that stay on the device ---- */

static enum status print_with_resident(const struct choice *deck, const struct plan_rates *rates, int64_t units, FILE *to)
{
  struct deck_shape shape = deck->plan->input.shape;
  struct choice choice;
  shape.resident = units;
  const enum status status = choose(deck, &shape, rates, &choice);
  if (!status)
    fprintf(to, "  %-15lld %11.4f s  %13s%s\n", (long long)units, choice.forecast.step_s, mem_amount(plan_tier_bytes(choice.plan, TIER_DEVICE)).text,
            choice.plan == deck->plan ? "  (this deck)" : "");
  plan_destroy(choice.other);
  return status;
}

/* A few, and as many as the deck asks for. */
static enum status print_resident(const struct choice *deck, const struct plan_rates *rates, FILE *to)
{
  enum { MOST = 3 };
  const struct plan_input *input = &deck->plan->input;
  const struct deck_shape *shape = &input->shape;
  enum status status = STATUS_OK;
  if (shape->params_full || shape->cpu_reduce)
    return STATUS_OK;
  fprintf(to, "\n  %-15s %13s  %13s\n", "tiers.resident", "step", "device");
  for (int units = 0; units <= MOST && units < input->model->units && !status; units++)
    status = print_with_resident(deck, rates, units, to);
  return status || shape->resident <= MOST ? status : print_with_resident(deck, rates, shape->resident, to);
}

enum status forecast_print(const struct plan *plan, const struct plan_rates *rates, int local_ranks, FILE *to)
{
  struct choice deck = {.plan = plan};
  enum status status = plan_simulate(plan, rates, &deck.forecast);
  if (status)
    return status;
  print_step(plan, &deck.forecast, to);
  if (!plan->input.shape.host_state || plan->input.mode != PLAN_TRAIN)
    return STATUS_OK;
  if (plan->input.shape.group > 1)
    status = print_ways(&deck, rates, local_ranks, to);
  return status ? status : print_resident(&deck, rates, to);
}

/* ---- between nodes ---- */

/* This strategy in place of the plan's, where it is another: groups of hybrid sharding are nodes. */
static struct plan_input with_strategy(const struct plan *plan, enum deck_strategy strategy, int local_ranks)
{
  struct plan_input input = plan->input;
  struct deck_shape *shape = &input.shape;
  if (strategy == input.strategy)
    return input;
  input.strategy = strategy;
  shape->group = strategy == STRATEGY_HYBRID_SHARD ? local_ranks : strategy == STRATEGY_NO_SHARD ? 1 : input.ranks;
  shape->replicas = input.ranks / shape->group;
  shape->one_node = local_ranks % shape->group == 0;
  shape->params_full = shape->params_full && shape->one_node;
  shape->reduce_every_micro = strategy != STRATEGY_SHARD_OPTIM && strategy != STRATEGY_NO_SHARD;
  return input;
}

static bool is_possible(const struct plan *plan, enum deck_strategy strategy, int local_ranks)
{
  const struct plan_input *input = &plan->input;
  const bool whole_or_hybrid = strategy == STRATEGY_FULL_SHARD || strategy == STRATEGY_HYBRID_SHARD;
  return strategy == input->strategy || ((whole_or_hybrid || !input->shape.host_state) &&
                                         (strategy != STRATEGY_HYBRID_SHARD || (local_ranks > 1 && input->ranks % local_ranks == 0)));
}

static enum status print_strategy(const struct plan *plan, enum deck_strategy strategy,
                                  const struct traffic_model *model, FILE *to)
{
  const struct plan_input input = with_strategy(plan, strategy, model->local_ranks);
  const int64_t nodes = traffic_nodes(input.ranks, model->local_ranks);
  const bool chosen = strategy == plan->input.strategy;
  struct plan *other = NULL;
  char name[48];
  const enum status status = chosen ? STATUS_OK : plan_create(&input, &other);
  if (status)
    return status;
  const struct traffic_bytes traffic = plan_traffic(chosen ? plan : other, model);
  snprintf(name, sizeof name, strategy == STRATEGY_HYBRID_SHARD ? "%s, %d" : "%s", deck_strategy_name(strategy), input.shape.group);
  fprintf(to, "  %-20s %19s %19s %19s %19s%s\n", name, fit_count(traffic.gather / nodes).text,
          fit_count(traffic.reduce / nodes).text, fit_count(traffic.replicas / nodes).text,
          fit_count(traffic.all / nodes).text, chosen ? "  (this deck)" : "");
  plan_destroy(other);
  return STATUS_OK;
}

enum status forecast_print_traffic(const struct plan *plan, const struct traffic_model *model,
                                   FILE *to)
{
  static const enum deck_strategy strategies[] = {STRATEGY_FULL_SHARD, STRATEGY_SHARD_GRAD_OP, STRATEGY_SHARD_OPTIM, STRATEGY_NO_SHARD,
                                                  STRATEGY_HYBRID_SHARD};
  const int nodes = traffic_nodes(plan->input.ranks, model->local_ranks);
  enum status status = STATUS_OK;
  if (nodes == 1 || plan->input.mode != PLAN_TRAIN)
    return STATUS_OK;
  fprintf(to, "\nbytes that each of %d nodes of %d rank%s sends to others in a step; %s\n  %-20s %19s %19s %19s %19s\n", nodes, model->local_ranks,
          model->local_ranks == 1 ? "" : "s",
          model->ring ? "all-gathers go round in a ring" : "in an all-gather each member sends its part to every other one", "strategy", "parameters",
          "gradients", "replicas", "all");
  for (size_t i = 0; i < sizeof strategies / sizeof *strategies && !status; i++)
    if (is_possible(plan, strategies[i], model->local_ranks))
      status = print_strategy(plan, strategies[i], model, to);
  return status;
}
