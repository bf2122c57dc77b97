/* Jobs of several nodes: the bytes between them, the strategies by predicted time, and the number
 * of nodes up to which the job stays efficient. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "cmd/forecast.h"

static const enum deck_strategy strategies[] = {STRATEGY_FULL_SHARD, STRATEGY_SHARD_GRAD_OP,
                                                STRATEGY_SHARD_OPTIM, STRATEGY_NO_SHARD,
                                                STRATEGY_HYBRID_SHARD};
enum { STRATEGIES = sizeof strategies / sizeof *strategies };

/* Groups of hybrid sharding are nodes here, so a node of one rank has none. */
static bool is_choice(const struct advise_case *job, enum deck_strategy strategy)
{
  return strategy != STRATEGY_HYBRID_SHARD || strategy == job->plans[0]->input.strategy ||
         job->local_ranks > 1;
}

struct strategy_name {
  char text[48];
};

static struct strategy_name name_of(const struct plan *plan)
{
  struct strategy_name out;
  const enum deck_strategy strategy = plan->input.strategy;
  snprintf(out.text, sizeof out.text, strategy == STRATEGY_HYBRID_SHARD ? "%s, %d" : "%s",
           deck_strategy_name(strategy), plan->input.shape.group);
  return out;
}

/* ---- bytes ---- */

/* This strategy with groups of hybrid sharding that are nodes. How a node's ranks share parameters
 * sends nothing between nodes. */
static enum status plan_strategy(const struct advise_case *job, enum deck_strategy strategy,
                                 bool ordered, struct plan **out)
{
  char group[16], set[128];
  snprintf(group, sizeof group, strategy == STRATEGY_HYBRID_SHARD ? "%d" : "auto",
           job->local_ranks);
  snprintf(set, sizeof set,
           "shard.strategy=%s shard.group=%s shard.reduce=auto transfer.params=shard",
           deck_strategy_name(strategy), group);
  return advise_plan(job, set, ordered, out);
}

static enum status print_strategy(const struct advise_case *job, enum deck_strategy strategy,
                                  const struct traffic_model *model)
{
  const struct plan *plan = job->plans[0];
  const bool chosen = strategy == plan->input.strategy;
  const int64_t nodes = traffic_nodes(plan->input.ranks, model->local_ranks);
  struct plan *other = NULL;
  const enum status status = chosen ? STATUS_OK : plan_strategy(job, strategy, false, &other);
  if (status || (!chosen && !other))
    return status;
  if (other)
    plan = other;
  const struct traffic_bytes traffic = plan_traffic(plan, model);
  printf("  %-16s %12s %12s %12s %12s%s\n", name_of(plan).text,
         mem_amount((double)(traffic.gather / nodes)).text,
         mem_amount((double)(traffic.reduce / nodes)).text,
         mem_amount((double)(traffic.replicas / nodes)).text,
         mem_amount((double)(traffic.all / nodes)).text, chosen ? "  (this deck)" : "");
  plan_destroy(other);
  return STATUS_OK;
}

enum status forecast_print_traffic(const struct advise_case *job, const struct traffic_model *model)
{
  const struct plan *plan = job->plans[0];
  const int nodes = traffic_nodes(plan->input.ranks, model->local_ranks);
  enum status status = STATUS_OK;
  if (nodes == 1 || plan->input.mode != PLAN_TRAIN)
    return STATUS_OK;
  printf("\nsent by each of %d nodes of %d rank%s to others in a step; %s\n  %-16s %12s "
         "%12s %12s %12s\n",
         nodes, model->local_ranks, plural(model->local_ranks),
         model->ring ? "all-gathers go round in a ring"
                     : "in an all-gather each member sends its part to every other one",
         "strategy", "parameters", "gradients", "replicas", "all");
  for (size_t i = 0; i < STRATEGIES && !status; i++)
    if (is_choice(job, strategies[i]))
      status = print_strategy(job, strategies[i], model);
  return status;
}

/* ---- strategies by predicted time ---- */

struct candidate {
  struct strategy_name name;
  struct plan_forecast forecast;
  double device; /* bytes of a rank */
  bool chosen;
};

static enum status price(const struct plan *plan, const struct plan_rates *rates,
                         struct candidate *out)
{
  out->name = name_of(plan);
  out->device = (double)plan_tier_bytes(plan, TIER_DEVICE);
  return plan_simulate(plan, rates, &out->forecast);
}

/* *n grows if the strategy goes with the other keys. Faster ones stand first. */
static enum status add_candidate(const struct advise_case *job, enum deck_strategy strategy,
                                 const struct plan_rates *rates, struct candidate list[STRATEGIES],
                                 int *n)
{
  struct candidate new = {.chosen = strategy == job->plans[0]->input.strategy};
  struct plan *other = NULL;
  enum status status = new.chosen ? STATUS_OK : plan_strategy(job, strategy, true, &other);
  if (status || (!new.chosen && !other))
    return status;
  status = price(new.chosen ? job->plans[0] : other, rates, &new);
  plan_destroy(other);
  if (status)
    return status;
  int at = (*n)++;
  for (; at > 0 && new.forecast.step_s < list[at - 1].forecast.step_s; at--)
    list[at] = list[at - 1];
  list[at] = new;
  return STATUS_OK;
}

static enum status print_ranked(const struct advise_case *job, const struct plan_rates *rates)
{
  struct candidate list[STRATEGIES];
  int n = 0;
  for (size_t i = 0; i < STRATEGIES; i++) {
    const enum status status = is_choice(job, strategies[i])
                                   ? add_candidate(job, strategies[i], rates, list, &n)
                                   : STATUS_OK;
    if (status)
      return status;
  }
  printf("\npredicted step by strategy, the fastest first\n  %-20s %13s %15s %13s\n", "strategy",
         "step", "exposed comm.", "device");
  for (int i = 0; i < n; i++)
    printf("  %-20s %11.4f s %13.4f s %13s%s\n", list[i].name.text, list[i].forecast.step_s,
           list[i].forecast.exposed_comm_s, mem_amount(list[i].device).text,
           list[i].chosen ? "  (this deck)" : "");
  return STATUS_OK;
}

/* ---- more nodes ---- */

enum { MOST_RANKS = 4096, BAR = 40 };
static const double KNEE = 0.9;

/* The step with as many sequences per rank as now; 0: the keys do not go with so many ranks. */
static enum status step_with(const struct advise_case *job, const struct plan_rates *rates,
                             int nodes, double *out)
{
  const struct deck_shape *shape = &job->plans[0]->input.shape;
  struct advise_case other = *job;
  struct plan_rates step = *rates;
  struct plan_forecast forecast = {0};
  struct plan *plan = NULL;
  char set[64];
  step.step_only = true;
  other.ranks = nodes * job->local_ranks;
  snprintf(set, sizeof set, "data.batch=%lld", (long long)(shape->rank_batch * other.ranks));
  enum status status = advise_plan(&other, set, true, &plan);
  if (!status && plan)
    status = plan_simulate(plan, &step, &forecast);
  plan_destroy(plan);
  *out = forecast.step_s;
  return status;
}

/* A bar of BAR signs is an efficiency of 100 %. */
static void print_row(const struct advise_case *job, int nodes, double step_s, double efficiency)
{
  const struct deck_shape *shape = &job->plans[0]->input.shape;
  char bar[BAR + 1] = "";
  memset(bar, '#', (size_t)(fmin(fmax(efficiency, 0), 1) * BAR + 0.5)); /* NAN has no bar */
  printf("  %6d %6d %11.4f s %17.0f %10.1f%%  %s%s\n", nodes, nodes * job->local_ranks, step_s,
         (double)(shape->rank_batch * shape->sequence) / step_s, 100 * efficiency, bar,
         nodes * job->local_ranks == shape->ranks ? "  (this job)" : "");
}

static enum status print_knee(const struct advise_case *job, const struct plan_rates *rates)
{
  double first = 0;
  int knee = 0, last = 0;
  printf("\nwith more nodes and the same work per rank (data.batch grows); efficiency is relative "
         "to the first row\n  %6s %6s %13s %17s %11s\n",
         "nodes", "ranks", "step", "tokens/s per rank", "efficiency");
  for (int nodes = 1; nodes * job->local_ranks <= MOST_RANKS; nodes *= 2) {
    double step_s;
    const enum status status = step_with(job, rates, nodes, &step_s);
    if (status)
      return status;
    if (step_s <= 0)
      continue;
    first = first > 0 ? first : step_s;
    print_row(job, nodes, step_s, first / step_s);
    last = nodes;
    if (first / step_s >= KNEE)
      knee = nodes;
  }
  if (knee == last)
    printf("no knee: efficiency is at least %.0f%% up to %d node%s\n", 100 * KNEE, last,
           plural(last));
  else
    printf("the knee is at %d node%s: with more, efficiency is below %.0f%%\n", knee, plural(knee),
           100 * KNEE);
  return STATUS_OK;
}

enum status forecast_print_nodes(const struct advise_case *job, const struct plan_rates *rates)
{
  const struct plan *plan = job->plans[0];
  if (traffic_nodes(plan->input.ranks, job->local_ranks) == 1 || plan->input.mode != PLAN_TRAIN)
    return STATUS_OK;
  enum status status = print_ranked(job, rates);
  if (!status)
    status = print_knee(job, rates);
  if (!status)
    puts("not modelled: other jobs on the links, links that slow down as the job grows, reading "
         "data, checkpoints, evaluation, failures");
  return status;
}
