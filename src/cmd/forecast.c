#include "cmd/forecast.h"

#include <math.h>
#include <string.h>

#include "base/append.h"
#include "base/mem.h"
#include "cmd/fit.h"

static double tokens_of(const struct plan *plan)
{
  const struct deck_shape *shape = &plan->input.shape;
  return (double)(shape->micro_batch * shape->micros * shape->sequence * plan->input.ranks);
}

/* Whether any data are moved between tiers. */
static bool has_tiers(const struct plan_forecast *forecast, const struct plan *plan)
{
  return plan_is_on_host(plan, -1) ||
         forecast->busy_s[LANE_H2D] + forecast->busy_s[LANE_D2H] + forecast->busy_s[LANE_DISK] > 0;
}

static void print_step(const struct plan *plan, const struct plan_forecast *forecast)
{
  printf("\npredicted step %.4f s, %.0f tokens/s over all ranks, exposed communication %.4f s",
         forecast->step_s, tokens_of(plan) / forecast->step_s, forecast->exposed_comm_s);
  if (has_tiers(forecast, plan))
    printf(", copies %.4f s, updates %.4f s, disk %.4f s", forecast->exposed_copy_s,
           forecast->exposed_update_s, forecast->exposed_disk_s);
  putchar('\n');
  for (int lane = 0; lane < LANE_COUNT; lane++)
    if (forecast->busy_s[lane] > 0)
      printf("  %-8s busy %.4f s\n", plan_lane_name((enum plan_lane)lane), forecast->busy_s[lane]);
}

/* ---- the four combinations of transfers ---- */

enum { WAYS = 4 };
static const char *const params_names[] = {"shard", "full"};
static const char *const grads_names[] = {"gpu_reduce", "cpu_reduce"};

/* Bit 1: parameters, bit 0: gradients. */
static const char *params_of(int way)
{
  return params_names[way >> 1];
}

static const char *grads_of(int way)
{
  return grads_names[way & 1];
}

/* Resident units need the first combination. The others have none. */
static enum status try_way(const struct advise_case *job, int way, const struct plan_rates *rates,
                           struct advice *out)
{
  char set[96];
  snprintf(set, sizeof set, "transfer.params=%s transfer.grads=%s%s", params_of(way), grads_of(way),
           way ? " tiers.resident=0" : "");
  return advise_try(job, set, rates, out);
}

static void print_way(const struct advice *way, int index, int best)
{
  const struct plan_forecast *forecast = &way->measure.forecast;
  printf("  %-15s %-15s ", params_of(index), grads_of(index));
  if (way->possible)
    printf("%11.4f s  %11.4f s  %11.4f s  %11.4f s", forecast->step_s, forecast->exposed_comm_s,
           forecast->exposed_copy_s, forecast->exposed_update_s);
  else
    printf("a group spans nodes");
  const bool gone = strstr(way->name, "tiers.resident=0");
  const bool same = !*way->name && way->possible;
  printf("%s%s%s\n", index == best ? "  fastest" : "", same ? "  (this deck)" : "",
         gone ? "  (without tiers.resident)" : "");
}

static enum plan_lane busiest(const struct plan_forecast *forecast)
{
  int most = 0;
  for (int lane = 1; lane < LANE_COUNT; lane++)
    if (forecast->busy_s[lane] > forecast->busy_s[most])
      most = lane;
  return (enum plan_lane)most;
}

/* A combination whose cost is unknown counts as free, so it may look like the best. */
static void print_unknown(const struct plan_rates *rates)
{
  const struct {
    const char *name;
    double rate;
  } known[] = {{"link", rates->link_bytes},
               {"h2d", rates->h2d_bytes},
               {"d2h", rates->d2h_bytes},
               {"host_memory", rates->host_bytes},
               {"host_link", rates->host_link_bytes}};
  int n = 0;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].rate <= 0)
      printf("%s%s",
             n++ > 0 ? ", " : "without a rate, so that their work takes no time: ", known[i].name);
  if (n > 0)
    putchar('\n');
}

static void print_busy(const char *key, const char *choice, const struct advice *way,
                       enum plan_lane copies, enum plan_lane link)
{
  const double *busy = way->measure.forecast.busy_s;
  if (way->possible)
    printf("; %s=%s: %s busy %.3f s, %s %.3f s", key, choice, plan_lane_name(copies), busy[copies],
           plan_lane_name(link), busy[link]);
}

/* Prints the busiest lane of the fastest combination, and the cost of each other choice. */
static void print_reason(const struct advice way[WAYS], int best)
{
  const struct plan_forecast *forecast = &way[best].measure.forecast;
  const enum plan_lane lane = busiest(forecast);
  printf("transfer.params=%s with transfer.grads=%s is predicted fastest, with the %s lane busy "
         "%.3f of %.3f s",
         params_of(best), grads_of(best), plan_lane_name(lane), forecast->busy_s[lane],
         forecast->step_s);
  print_busy("transfer.params", params_of(best), &way[best], LANE_H2D, LANE_GATHER);
  print_busy("transfer.params", params_of(best ^ 2), &way[best ^ 2], LANE_H2D, LANE_GATHER);
  print_busy("transfer.grads", grads_of(best), &way[best], LANE_D2H, LANE_REDUCE);
  print_busy("transfer.grads", grads_of(best ^ 1), &way[best ^ 1], LANE_D2H, LANE_REDUCE);
  putchar('\n');
}

static enum status print_ways(const struct advise_case *job, const struct plan_rates *rates)
{
  struct advice way[WAYS];
  int best = 0; /* the first one is always possible */
  for (int w = 0; w < WAYS; w++) {
    const enum status status = try_way(job, w, rates, &way[w]);
    if (status)
      return status;
    if (way[w].possible && way[w].measure.forecast.step_s < way[best].measure.forecast.step_s)
      best = w;
  }
  printf("\n  %-15s %-15s %13s  %13s  %13s  %13s\n", "transfer.params", "transfer.grads", "step",
         "exposed comm.", "copies", "updates");
  for (int w = 0; w < WAYS; w++)
    print_way(&way[w], w, best);
  print_reason(way, best);
  print_unknown(rates);
  return STATUS_OK;
}

/* ---- values of one key ---- */

/* step_s: NULL: not wanted. */
static enum status print_value(const struct advise_case *job, const struct plan_rates *rates,
                               const char *key, const char *value, double *step_s)
{
  char set[64];
  struct advice advice;
  snprintf(set, sizeof set, "%s=%s", key, value);
  const enum status status = advise_try(job, set, rates, &advice);
  if (!status && advice.possible)
    printf("  %-15s %11.4f s  %13s%s\n", value, advice.measure.forecast.step_s,
           mem_amount(advice.measure.tier[TIER_DEVICE]).text, *advice.name ? "" : "  (this deck)");
  if (!status && step_s)
    *step_s = advice.measure.forecast.step_s;
  return status;
}

static enum status print_number(const struct advise_case *job, const struct plan_rates *rates,
                                const char *key, int64_t number, double *step_s)
{
  char value[24];
  snprintf(value, sizeof value, "%lld", (long long)number);
  return print_value(job, rates, key, value, step_s);
}

static void print_heading(const char *key)
{
  printf("\n  %-15s %13s  %13s\n", key, "step", "device");
}

/* Up to the number that gains less than 1 % more, and as many as the deck asks for. */
static enum status print_resident(const struct advise_case *job, const struct plan_rates *rates)
{
  static const int numbers[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  const struct deck *deck = job->deck;
  const int64_t resident = deck->tiers.resident, units = job->plans[0]->input.model->units;
  enum status status = STATUS_OK;
  double before = INFINITY, step_s = 0;
  int64_t most = 0;
  if (deck->transfer.params == DECK_PARAMS_FULL || deck->transfer.grads == DECK_CPU_REDUCE)
    return STATUS_OK;
  print_heading("tiers.resident");
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers && numbers[i] < units && !status; i++) {
    most = numbers[i];
    status = print_number(job, rates, "tiers.resident", most, &step_s);
    if (step_s > 0.99 * before)
      break;
    before = step_s;
  }
  return status || resident <= most ? status
                                    : print_number(job, rates, "tiers.resident", resident, &step_s);
}

/* The deck's value of optim.update, or what auto has become. */
static const char *timing_of(const struct advise_case *job)
{
  const struct deck_policy *policy = &job->plans[0]->input.policy;
  return policy->speculative ? "speculative" : policy->immediate ? "immediate" : "deferred";
}

static enum status print_update(const struct advise_case *job, const struct plan_rates *rates,
                                const char *value)
{
  struct plan_rates clipped = *rates;
  struct advice advice, repaired;
  char set[64];
  clipped.clipped = true;
  snprintf(set, sizeof set, "optim.update=%s", value);
  enum status status = advise_try(job, set, rates, &advice);
  if (!status)
    status = advise_try(job, set, &clipped, &repaired);
  if (!status && advice.possible)
    printf("  %-15s %11.4f s  %11.4f s  %13s%s\n", value, advice.measure.forecast.step_s,
           repaired.measure.forecast.step_s, mem_amount(advice.measure.tier[TIER_HOST]).text,
           strcmp(value, timing_of(job)) == 0 ? "  (this deck)" : "");
  return status;
}

/* The times of an update, and of a step whose norm is above optim.clip. */
static enum status print_updates(const struct advise_case *job, const struct plan_rates *rates)
{
  static const char *const values[] = {"deferred", "immediate", "speculative"};
  enum status status = STATUS_OK;
  printf("\n  %-15s %13s  %13s  %13s\n", "optim.update", "step", "clipped step", "host");
  for (int v = 0; v < 3 && !status; v++)
    status = print_update(job, rates, values[v]);
  return status;
}

/* None, the embedding, half of the units, all, and what the deck asks for. */
static enum status print_gathered(const struct advise_case *job, const struct plan_rates *rates)
{
  const struct plan_input *input = &job->plans[0]->input;
  const int units = input->model->units;
  enum status status = STATUS_OK;
  if (!deck_shards_params(input->strategy) || input->shape.group == 1 || rates->link_bytes <= 0)
    return STATUS_OK;
  print_heading("shard.gathered");
  for (int n = 0; n <= units && !status; n++)
    if (n <= 1 || n == units / 2 || n == units || n == job->deck->shard.gathered)
      status = print_number(job, rates, "shard.gathered", n, NULL);
  return status;
}

/* ---- codecs ---- */

/* The step with another rate of the link. across_link keeps its ratio to link. */
static enum status step_at(const struct plan *plan, const struct plan_rates *rates, double link,
                           double *out)
{
  struct plan_rates other = *rates;
  struct plan_forecast forecast = {0};
  other.across_link_bytes *= link / rates->link_bytes;
  other.link_bytes = other.host_link_bytes = link;
  other.step_only = true;
  const enum status status = plan_simulate(plan, &other, &forecast);
  *out = forecast.step_s;
  return status;
}

/* The links of the search, in bytes/s. */
static const double slowest_link = 1e5, fastest_link = 1e13;

/* Where the step of `coded` is shorter than that of `plain`. */
struct pays {
  bool slow, fast; /* on the slowest and on the fastest link of the search */
  double link;     /* break-even rate in bytes/s, only if `slow` and `fast` differ */
};

static enum status pays_at(const struct plan *coded, const struct plan *plain,
                           const struct plan_rates *rates, double link, bool *out)
{
  double with, without;
  enum status status = step_at(coded, rates, link, &with);
  if (!status)
    status = step_at(plain, rates, link, &without);
  if (!status)
    *out = with < without;
  return status;
}

/* The search bisects the logarithm of the rate. It assumes that the sign of the gain changes at
 * most once, because the gain is about linear in the time per byte. */
static enum status break_even(const struct plan *coded, const struct plan *plain,
                              const struct plan_rates *rates, struct pays *out)
{
  enum { HALVINGS = 16 };
  double low = slowest_link, high = fastest_link;
  struct pays pays;
  enum status status = pays_at(coded, plain, rates, low, &pays.slow);
  if (!status)
    status = pays_at(coded, plain, rates, high, &pays.fast);
  for (int i = 0; i < HALVINGS && !status && pays.slow != pays.fast; i++) {
    const double link = sqrt(low * high);
    bool here;
    status = pays_at(coded, plain, rates, link, &here);
    if (!status)
      *(here == pays.slow ? &low : &high) = link;
  }
  if (status)
    return status;
  pays.link = sqrt(low * high);
  *out = pays;
  return STATUS_OK;
}

static void print_pays(const struct pays *pays)
{
  if (pays->slow == pays->fast)
    printf("on %s link from %g to %g GB/s\n", pays->slow ? "every" : "no", slowest_link * 1e-9,
           fastest_link * 1e-9);
  else
    printf("on links of %s than %.3g GB/s\n", pays->slow ? "less" : "more", pays->link * 1e-9);
}

/* The gain of the deck's codec of gradients, and the links on which it gains. */
static enum status print_codec(const struct advise_case *job, const struct plan_rates *rates,
                               double step_s)
{
  const struct plan *coded = job->plans[0];
  struct plan_forecast forecast;
  struct plan *plain = NULL;
  struct pays pays;
  enum status status = advise_plan(job,
                                   "compress.feedback=off compress.warmup=0 "
                                   "compress.grads.units=[] compress.grads.codec=none "
                                   "compress.grads.values=none compress.grads.block=0 "
                                   "compress.grads.levels=0 compress.grads.rank=0 "
                                   "compress.grads.density=0 compress.grads.threshold=0",
                                   true, &plain);
  if (status || !plain)
    return status;
  status = plan_simulate(plain, rates, &forecast);
  if (!status)
    status = break_even(coded, plain, rates, &pays);
  if (!status) {
    printf("\nwithout a codec the predicted step is %.4f s, %.2f times as long; the codec makes it "
           "shorter ",
           forecast.step_s, forecast.step_s / step_s);
    print_pays(&pays);
  }
  plan_destroy(plain);
  return status;
}

/* NVMe only if its rates are known, or if the deck asks for it. */
static enum status print_residuals(const struct advise_case *job, const struct plan_rates *rates)
{
  const bool disk = rates->disk_read_bytes > 0 && rates->disk_write_bytes > 0;
  if (!plan_keeps_residuals(job->plans[0]))
    return STATUS_OK;
  print_heading("tiers.residual");
  enum status status = print_value(job, rates, "tiers.residual", "device", NULL);
  if (!status)
    status = print_value(job, rates, "tiers.residual", "host", NULL);
  if (!status && (disk || job->deck->tiers.residual == DECK_RESIDUAL_NVME))
    status = print_value(job, rates, "tiers.residual", "nvme", NULL);
  return status;
}

enum status forecast_print_step(const struct plan *plan, const struct plan_rates *rates,
                                double *step_s)
{
  struct plan_forecast forecast;
  const enum status status = plan_simulate(plan, rates, &forecast);
  if (status)
    return status;
  print_step(plan, &forecast);
  *step_s = forecast.step_s;
  return STATUS_OK;
}

enum status forecast_print(const struct advise_case *job, const struct plan_rates *rates,
                           double step_s)
{
  const struct plan *plan = job->plans[0];
  enum status status = STATUS_OK;
  if (plan_encodes(plan) && plan->input.ranks > 1 && rates->link_bytes > 0)
    status = print_codec(job, rates, step_s);
  if (!status)
    status = print_residuals(job, rates);
  if (status || plan->input.mode != PLAN_TRAIN)
    return status;
  if (job->deck->tiers.optimizer != DECK_TIER_HOST)
    return print_gathered(job, rates);
  if (plan->input.shape.group > 1)
    status = print_ways(job, rates);
  if (!status)
    status = print_updates(job, rates);
  return status ? status : print_resident(job, rates);
}

/* ---- presets ---- */

enum { PRESETS = DECK_PRESETS - 1 };

static bool is_better(const struct advice *a, const struct advice *b)
{
  if (a->possible != b->possible || a->fits != b->fits)
    return a->possible != b->possible ? a->possible : a->fits;
  return a->measure.forecast.step_s < b->measure.forecast.step_s;
}

/* Equal presets keep their order. */
static void sort(int order[PRESETS], const struct advice advice[PRESETS])
{
  for (int i = 0; i < PRESETS; i++) {
    int at = i;
    for (; at > 0 && is_better(&advice[i], &advice[order[at - 1]]); at--)
      order[at] = order[at - 1];
    order[at] = i;
  }
}

static void print_preset(const struct deck *deck, int preset, const struct advice *advice,
                         bool timed)
{
  static const enum plan_tier tiers[] = {TIER_DEVICE, TIER_HOST, TIER_DISK};
  const struct advise_measure *measure = &advice->measure;
  const struct rooms *rooms = &measure->rooms;
  printf("  %-16s", deck_preset_name((enum deck_preset)preset));
  if (!advice->possible) {
    printf("  not with the other keys of this deck\n");
    return;
  }
  if (timed)
    printf("  %11.4f s", measure->forecast.step_s);
  for (size_t t = 0; t < sizeof tiers / sizeof *tiers; t++)
    printf("  %11s", mem_amount(measure->tier[tiers[t]]).text);
  if (rooms->have[ROOM_DEVICE] >= 0 || rooms->have[ROOM_HOST] >= 0 || rooms->have[ROOM_DISK] >= 0)
    fputs(advice->fits ? "  fits" : "  too large", stdout);
  printf("%s\n", deck->tiers.preset == preset ? "  (tiers.preset of this deck)" : "");
}

enum status forecast_print_presets(const struct advise_case *job, const struct plan_rates *rates)
{
  struct advice advice[PRESETS];
  struct plan_rates step = rates ? *rates : (struct plan_rates){0};
  int order[PRESETS];
  step.step_only = true;
  if (job->plans[0]->input.mode != PLAN_TRAIN)
    return STATUS_OK;
  for (int p = 0; p < PRESETS; p++) {
    char set[48];
    snprintf(set, sizeof set, "tiers.preset=%s", deck_preset_name((enum deck_preset)(p + 1)));
    const enum status status = advise_try(job, set, rates ? &step : NULL, &advice[p]);
    if (status)
      return status;
  }
  sort(order, advice);
  printf("\n  %-16s", "tiers.preset");
  if (rates)
    printf("  %13s", "step");
  printf("  %11s  %11s  %11s\n", "device", "host", "NVMe");
  for (int p = 0; p < PRESETS; p++)
    print_preset(job->deck, order[p] + 1, &advice[order[p]], rates);
  return STATUS_OK;
}
