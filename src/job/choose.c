/* Rank 0 searches, and sends the assignments to the other ranks. So all ranks agree, whatever their
 * own rates and memories are. */
#include "job/choose.h"

#include <stdio.h>
#include <string.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "exec/watchdog.h"
#include "job/private.h"
#include "job/rates.h"
#include "job/search.h"

/* ---- rates by description ---- */

/* The rates are those of a multiprocessor of a GPU, of a rank on a host, and of their links.
 * Network ports of a node are not known before its ranks use them. So each GPU counts as having a
 * port of 100 Gbit/s, and a node without GPUs as having one of 10 Gbit/s. */
struct plan_rates choose_nominal_rates(const struct device_model *model, int ranks, int local_ranks)
{
  const bool host = model->host_memory, several = local_ranks < ranks;
  const double network = host ? 1.2e9 : 12e9 * local_ranks;
  return (struct plan_rates){
      .gemm_flops = host ? 2e11 : model->gpu.multiprocessors * (model->gpu.hopper ? 5e12 : 2.5e12),
      .memory_bytes = host                ? 1e10
                      : model->gpu.hopper ? 3.5e12
                                          : 1.5e12,
      .link_bytes = several ? network
                    : host  ? 5e9
                            : 2e11,
      .node_link_bytes = host ? 5e9 : 2e11,
      .link_latency_s = several ? 3e-5 : 1e-5,
      .node_latency_s = 1e-5,
      .h2d_bytes = 2e10,
      .d2h_bytes = 2e10,
      .host_bytes = host ? 1e10 : 5e10,
      .host_link_bytes = several ? network / local_ranks : 5e9,
      .disk_write_bytes = 2e9,
      .disk_read_bytes = 4e9,
  };
}

static void fill(const struct plan_rates *nominal, double speed, struct plan_rates *rates)
{
  struct plan_rates from = *nominal;
  for (const struct option *row = job_rates_table; row->name; row++) {
    double *const rate = job_rates_value(rates, row);
    if (*rate <= 0)
      *rate = *job_rates_value(&from, row) * (strcmp(row->unit, "us") ? speed : 1 / speed);
  }
}

void choose_fill_rates(const struct plan_rates *nominal, struct plan_rates *rates)
{
  fill(nominal, 1, rates);
}

/* ---- the search ---- */

/* The smallest memories of all ranks. Collective. */
static enum status least_of_ranks(struct comm *comm, struct job_limits *limits)
{
  int64_t *const values[] = {&limits->device, &limits->host, &limits->shared, &limits->disk};
  enum { N = sizeof values / sizeof *values };
  int64_t most[N];
  for (int i = 0; i < N; i++)
    most[i] = *values[i] < 0 ? -INT64_MAX : -*values[i];
  const enum status status = comm_max_i64(comm, most, N);
  for (int i = 0; i < N; i++)
    *values[i] = most[i] == -INT64_MAX ? -1 : -most[i];
  return status;
}

/* Puts assignments before those of a choice. */
static void prefix(const char *text, struct choice *choice)
{
  char rest[sizeof choice->changes];
  memcpy(rest, choice->changes, sizeof rest);
  *choice->changes = '\0';
  append_text(choice->changes, sizeof choice->changes, "%s%s%s", text, *text && *rest ? " " : "",
              rest);
}

/* Keys of the order of sums by the description, then the others by measured rates. */
static enum status choose_once(const struct search *described, const struct search *measured,
                               struct chosen *out)
{
  struct search rest = *measured;
  struct settings by_description;
  struct choice defaults;
  struct deck deck;
  enum status status = search_best(described, true, &by_description)
      ?: search_try(measured, "", 0, 0, &defaults)
      ?: deck_vary(measured->deck, by_description.sums, &deck, out->text, sizeof out->text);
  if (status)
    return status;
  rest.deck = &deck;
  status = search_best(&rest, false, &out->best);
  prefix(out->text, &out->best.best);
  for (int i = 0; i < out->best.n; i++)
    prefix(out->text, &out->best.of[i]);
  /* If nothing fits, advice starts from the defaults. */
  snprintf(out->text, sizeof out->text, "%s", out->best.best.fits ? out->best.best.changes : "");
  out->step_s = out->best.best.step_s;
  out->default_s = defaults.step_s;
  out->default_fits = defaults.fits;
  deck_destroy(&deck);
  return status;
}

enum status choose_settings(const struct search *described, const struct search *measured,
                            struct chosen *out)
{
  const struct plan_rates known = measured->rates ? *measured->rates : (struct plan_rates){0};
  struct plan_rates rates = known, slow = known;
  struct search filled = *measured, in_free = *described;
  struct choice same;
  choose_fill_rates(described->rates, &rates);
  filled.rates = &rates;
  in_free.arg = measured->arg;
  enum status status = choose_once(described, &filled, out);
  if (!status && !out->best.best.fits)
    status = choose_once(&in_free, &filled, out);
  if (status || !out->best.best.fits)
    return status;
  fill(described->rates, 1e-3, &slow);
  filled.rates = &slow;
  status = search_try(&filled, out->text, 0, 0, &same);
  out->measured = same.step_s == out->step_s;
  return status;
}

/* On rank 0. `rates` may lack some. */
static enum status search_here(const struct job *job, enum job_use use,
                               const struct plan_rates *rates, const struct job_limits *whole,
                               const struct job_limits *now, struct chosen *out)
{
  const struct plan *plans[JOB_PLANS];
  const bool at_rest = !job_moves_state(job, use);
  const int local = comm_local_ranks(job->comm);
  const struct plan_rates nominal =
      choose_nominal_rates(&job->device->model, comm_ranks(job->comm), local);
  const struct job_site of_whole = {job, use, whole, at_rest}, of_now = {job, use, now, at_rest};
  const struct search described = {.deck = job->deck,
                                   .use = use,
                                   .local_ranks = local,
                                   .n = job_list_plans(job, plans),
                                   .plans = plans,
                                   .rates = &nominal,
                                   .rough = true,
                                   .judge = job_judge,
                                   .arg = &of_whole};
  struct search measured = described;
  measured.rates = rates;
  measured.arg = &of_now;
  return choose_settings(&described, &measured, out);
}

/* ---- the choice ---- */

/* Every free key gets a value, so that the deck of the run and its checkpoints hold the choice. */
enum status choose_apply(const char *text, struct deck *deck)
{
  enum status status = deck_choose(deck, text);
  for (const struct option *option = deck_table; option->name && !status; option++) {
    char *value = NULL;
    if (!options_is_free(deck->set, option))
      continue;
    status = options_print_value(option, deck, &value)
                 ?: options_choose(deck->set, option->name, value, NULL);
    mem_free(value);
  }
  return status ?: deck_check(deck);
}

/* All chosen keys, because one that a user sets may make other values of the rest the best ones.
 * "auto" sets nothing. */
static enum status list_chosen(const struct deck *deck, char *text, size_t size)
{
  enum status status = STATUS_OK;
  *text = '\0';
  for (const struct option *option = deck_table; option->name && !status; option++) {
    char *value = NULL;
    if (!options_is_chosen(deck->set, option->name))
      continue;
    status = options_print_value(option, deck, &value);
    if (!status && strcmp(value, "auto") != 0)
      append_text(text, size, " %s=%s", option->name, value);
    mem_free(value);
  }
  return status;
}

enum status choose_log(const struct job *job, const struct chosen *chosen)
{
  char words[sizeof chosen->text];
  char gain[64] = "";
  if (!chosen->best.best.fits)
    return STATUS_OK;
  const enum status status = list_chosen(job->deck, words, sizeof words);
  if (!chosen->default_fits)
    snprintf(gain, sizeof gain, " (the defaults do not fit)");
  else if (*chosen->text)
    snprintf(gain, sizeof gain, ", %.2f times as fast as with the defaults",
             chosen->default_s / chosen->step_s);
  if (!status && comm_rank(job->comm) == 0)
    log_info("chosen  %s: predicted step %.4g s%s%s; pin it with%s",
             *chosen->text ? chosen->text : "the defaults", chosen->step_s,
             chosen->measured ? "" : " by nominal rates", gain, words);
  return status;
}

enum status job_choose(struct job *job, enum job_use use, struct chosen *out)
{
  struct job_limits whole, now;
  struct plan_rates rates;
  *out = (struct chosen){.text = ""};
  if (!(job_trains(use) || use == JOB_BENCH) ||
      !search_is_free(job->deck, !job->device->model.host_memory,
                      comm_local_ranks(job->comm) < comm_ranks(job->comm)))
    return STATUS_OK;
  watchdog_start(job->start, "choosing settings");
  enum status status = comm_agree(job->comm, job_find_limits(job, false, &whole)
                                                 ?: job_find_limits(job, true, &now));
  status = status ?: least_of_ranks(job->comm, &whole) ?: least_of_ranks(job->comm, &now);
  if (status)
    return status;
  if (job_rates(job, &rates)) { /* a choice by nominal rates is better than no start */
    log_warn_alike("settings are chosen by nominal rates: %s", status_text());
    rates = (struct plan_rates){0};
  }
  if (comm_rank(job->comm) == 0)
    status = search_here(job, use, &rates, &whole, &now, out);
  status = comm_agree(job->comm, status) ?: comm_broadcast(job->comm, out, sizeof *out, 0);
  status = status ?: comm_agree(job->comm, choose_apply(out->text, job->deck));
  if (!status)
    job->predicted_s = out->measured ? out->step_s : 0;
  return status;
}

/* Whether all ranks can use the deck; if not, the status text says why. Collective. */
static enum status check_here(struct comm *comm, const struct deck *deck)
{
  struct plan_input input = {.rank = comm_rank(comm)};
  return comm_agree(comm, deck_resolve(deck, comm_ranks(comm), comm_local_ranks(comm), &input.shape,
                                       &input.policy))
             ?: job_check_nodes(comm, deck, &input);
}

/* Keys that the deck names as auto are chosen again. */
static enum status take(const struct deck *saved, const char *path, struct deck *deck)
{
  enum status status = STATUS_OK;
  for (const struct option *option = deck_table; option->name && !status; option++) {
    char *value = NULL;
    if (!options_is_free(deck->set, option) || options_is_freed(deck->set, option->name))
      continue;
    status = options_print_value(option, saved, &value);
    if (!status)
      status = options_choose(deck->set, option->name,
                              search_may_choose(option->name, value) ? value : option->value, path);
    mem_free(value);
  }
  return status;
}

enum status choose_again(struct comm *comm, const char *path, struct deck *deck)
{
  log_info("settings are chosen again, because those of %s do not go with this deck: %s", path,
           status_text());
  return comm_agree(comm, deck_unchoose(deck));
}

enum status choose_resumed(struct comm *comm, const struct deck *saved, const char *path,
                           struct deck *deck, bool *taken)
{
  char words[sizeof((struct chosen){0}.text)];
  enum status status =
      comm_agree(comm, take(saved, path, deck) ?: list_chosen(deck, words, sizeof words));
  *taken = false;
  if (status || !*words)
    return status;
  if (check_here(comm, deck))
    return choose_again(comm, path, deck);
  log_note("settings of %s:%s", path, words);
  *taken = true;
  return STATUS_OK;
}
