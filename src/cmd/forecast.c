/* The predicted time of a step, with and without a codec, and with more nodes. */
#include <math.h>
#include <stdio.h>

#include "base/append.h"
#include "cmd/plan.h"
#include "job/rates.h"

/* Work of an unknown rate takes no time, so a setting that needs much of it may look like the best.
 * A plan needs a rate if a slow one changes its step. */
static enum status print_unknown(const struct plan *plan, const struct plan_rates *rates,
                                 double step_s)
{
  static const char *const keys[] = {"link",      "h2d",       "d2h",       "host_memory",
                                     "host_link", "disk_read", "disk_write"};
  const char *before = "without a rate, so that their work takes no time: ", *after = "";
  enum status status = STATUS_OK;
  for (size_t i = 0; i < sizeof keys / sizeof *keys && !status; i++) {
    struct plan_rates slow = *rates;
    double *const rate = job_rates_value(&slow, job_rates_find(keys[i]));
    double slow_s = step_s;
    if (*rate > 0)
      continue;
    *rate = 1; /* bytes per second */
    status = search_price(plan, &slow, &slow_s);
    if (slow_s != step_s) {
      printf("%s%s", before, keys[i]);
      before = ", ";
      after = "\n";
    }
  }
  printf("%s", after);
  return status;
}

/* A step whose norm is above optim.clip is repaired. */
static enum status print_clipped(const struct plan *plan, const struct plan_rates *rates)
{
  struct plan_rates clipped = *rates;
  double step_s;
  clipped.clipped = true;
  const enum status status = search_price(plan, &clipped, &step_s);
  if (!status)
    printf("a step that is clipped takes %.4f s\n", step_s);
  return status;
}

enum status forecast_print_step(const struct plan_facts *facts)
{
  const struct plan *plan = facts->job.plans[0];
  const struct deck_shape *shape = &plan->input.shape;
  const double tokens = (double)(shape->rank_batch * shape->sequence * plan->input.ranks);
  struct plan_forecast forecast;
  const enum status status = plan_simulate(plan, facts->rates, &forecast);
  if (status)
    return status;
  printf("\npredicted step %.4f s, %.0f tokens/s over all ranks, exposed communication %.4f s",
         forecast.step_s, tokens / forecast.step_s, forecast.exposed_comm_s);
  const double *busy_s = forecast.busy_s;
  if (plan_is_on_host(plan, -1) ||
      busy_s[LANE_H2D] + busy_s[LANE_D2H] + busy_s[LANE_DISK] > 0) /* data move between tiers */
    printf(", copies %.4f s, updates %.4f s, disk %.4f s", forecast.exposed_copy_s,
           forecast.exposed_update_s, forecast.exposed_disk_s);
  putchar('\n');
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (busy_s[lane] > 0)
      printf("  %-8s busy %.4f s\n", plan_lane_name((enum plan_lane)lane), busy_s[lane]);
  const enum status printed = print_unknown(plan, facts->rates, forecast.step_s);
  return printed || !plan->input.policy.speculative ? printed : print_clipped(plan, facts->rates);
}

/* ---- codecs ---- */

/* The links of the search, in bytes/s. */
static const double slowest_link = 1e5, fastest_link = 1e13;

/* A plan with a codec, and the same job without it. */
struct pair {
  const struct plan *coded;
  struct plan *plain;
  const struct plan_rates *rates;
};

/* Whether the step of `coded` is shorter with another rate of the link. The other rates between
 * nodes keep their ratio to link. */
static enum status pays_at(const struct pair *pair, double link, bool *out)
{
  struct plan_rates rates = *pair->rates;
  double with = 0, without = 0;
  double *const others[] = {&rates.across_link_bytes, &rates.exchange_bytes,
                            &rates.across_exchange_bytes};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    *others[i] *= link / rates.link_bytes;
  rates.link_bytes = rates.host_link_bytes = link;
  const enum status status =
      search_price(pair->coded, &rates, &with) ?: search_price(pair->plain, &rates, &without);
  *out = with < without;
  return status;
}

/* Bisects the logarithm of the rate. The sign of the gain changes at most once, because the gain is
 * about linear in the time per byte. */
static enum status print_links(const struct pair *pair)
{
  enum { HALVINGS = 16 };
  double low = slowest_link, high = fastest_link;
  bool slow, fast;
  enum status status = pays_at(pair, low, &slow) ?: pays_at(pair, high, &fast);
  for (int i = 0; i < HALVINGS && !status && slow != fast; i++) {
    const double link = sqrt(low * high);
    bool here;
    status = pays_at(pair, link, &here);
    *(here == slow ? &low : &high) = link;
  }
  if (status)
    return status;
  if (slow == fast)
    printf("on %s link from %g to %g GB/s\n", slow ? "every" : "no", low * 1e-9, high * 1e-9);
  else
    printf("on links of %s than %.3g GB/s\n", slow ? "less" : "more", sqrt(low * high) * 1e-9);
  return STATUS_OK;
}

/* The gain of the deck's codec of gradients, and the links on which it gains. */
static enum status print_codec(const struct plan_facts *facts)
{
  struct pair pair = {.coded = facts->job.plans[0], .rates = facts->rates};
  double coded, plain;
  enum status status = search_plan(&facts->job,
                                   "compress.feedback=off compress.warmup=0 "
                                   "compress.grads.units=[] compress.grads.codec=none "
                                   "compress.grads.values=none compress.grads.block=0 "
                                   "compress.grads.levels=0 compress.grads.rank=0 "
                                   "compress.grads.density=0 compress.grads.threshold=0",
                                   &pair.plain);
  if (status || !pair.plain)
    return status;
  status = search_price(pair.coded, facts->rates, &coded)
               ?: search_price(pair.plain, facts->rates, &plain);
  if (!status) {
    printf("\nwithout a codec the predicted step is %.4f s, %.2f times as long; the codec makes it "
           "shorter ",
           plain, plain / coded);
    status = print_links(&pair);
  }
  plan_destroy(pair.plain);
  return status;
}

/* ---- more nodes ---- */

/* The step with as many sequences per rank as now; 0: the keys do not go with so many ranks. */
static enum status step_with(const struct search *job, int ranks, double *step_s)
{
  struct choice choice;
  char batch[48];
  snprintf(batch, sizeof batch, "data.batch=%lld",
           (long long)(job->plans[0]->input.shape.rank_batch * ranks));
  const enum status status = search_try(job, batch, ranks, job->local_ranks, &choice);
  *step_s = choice.step_s;
  return status;
}

/* The next larger number of nodes: a power of two, or those of this job. */
static int next_nodes(int nodes, int own)
{
  int next = 1;
  while (next <= nodes)
    next *= 2;
  return nodes < own && own < next ? own : next;
}

static enum status print_nodes(const struct search *job)
{
  enum { MOST_RANKS = 4096 };
  static const double least = 0.8;
  const struct deck_shape *shape = &job->plans[0]->input.shape;
  const int own = traffic_nodes(shape->ranks, job->local_ranks),
            most = shape->ranks > MOST_RANKS ? shape->ranks : MOST_RANKS;
  double first = 0, step_s;
  int knee = 0, last = 0;
  printf("\nwith more nodes and the same work per rank (data.batch grows); efficiency is relative "
         "to the first row\n  %6s %6s %13s %17s %11s\n",
         "nodes", "ranks", "step", "tokens/s per rank", "efficiency");
  for (int nodes = 1; nodes * job->local_ranks <= most; nodes = next_nodes(nodes, own)) {
    const int ranks = nodes * job->local_ranks;
    const enum status status = step_with(job, ranks, &step_s);
    if (status)
      return status;
    if (step_s <= 0)
      continue;
    first = first > 0 ? first : step_s;
    printf("  %6d %6d %11.4f s %17.0f %10.1f%%%s\n", nodes, ranks, step_s,
           (double)(shape->rank_batch * shape->sequence) / step_s, 100 * first / step_s,
           ranks == shape->ranks ? "  (this job)" : "");
    if (knee == last && first / step_s >= least) /* no row before was below it */
      knee = nodes;
    last = nodes;
  }
  if (knee == last)
    printf("efficiency is at least %.0f%% up to %d node%s\n", 100 * least, last, plural(last));
  else
    printf("efficiency falls below %.0f%% beyond %d node%s\n", 100 * least, knee, plural(knee));
  puts("not modelled: other jobs on the links, links that slow down as the job grows, reading "
       "data, checkpoints, evaluation, failures");
  return STATUS_OK;
}

enum status forecast_print(const struct plan_facts *facts)
{
  const struct plan *plan = facts->job.plans[0];
  enum status status = STATUS_OK;
  if (plan_encodes(plan) && plan->input.ranks > 1 && facts->rates->link_bytes > 0)
    status = print_codec(facts);
  if (status || !facts->job.links)
    return status;
  return print_nodes(&facts->job);
}
