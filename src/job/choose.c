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

/* Of a multiprocessor of a GPU, a thread of a host, and their links. Network ports of a node are
 * not known before its ranks use them, so they count as one of 100 Gbit/s for each GPU, and of 10
 * Gbit/s for a node without GPUs. */
struct plan_rates choose_nominal_rates(const struct device_model *model, int threads, int ranks,
                                       int local_ranks)
{
  const bool host = model->host_memory, several = local_ranks < ranks;
  const double units = host ? threads : model->gpu.multiprocessors;
  const double network = host ? 1.2e9 : 12e9 * local_ranks;
  return (struct plan_rates){
      .gemm_flops = units * (host                ? 4e10
                             : model->gpu.hopper ? 5e12
                                                 : 2.5e12),
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

void choose_fill_rates(const struct plan_rates *nominal, struct plan_rates *rates)
{
  const double *const from[] = {&nominal->gemm_flops,      &nominal->memory_bytes,
                                &nominal->link_bytes,      &nominal->link_latency_s,
                                &nominal->h2d_bytes,       &nominal->d2h_bytes,
                                &nominal->host_bytes,      &nominal->host_link_bytes,
                                &nominal->disk_read_bytes, &nominal->disk_write_bytes};
  for (size_t i = 0; i < sizeof from / sizeof *from; i++) {
    double *to =
        (double *)(void *)((char *)rates + ((const char *)from[i] - (const char *)nominal));
    *to = *to > 0 ? *to : *from[i];
  }
}

/* ---- the search ---- */

/* Of all ranks. */
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
enum status choose_settings(const struct search *described, const struct search *measured,
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
  if (!out->best.best.fits) /* the advice of what does not fit is relative to the defaults */
    out->best.best = defaults;
  for (int i = 0; i < out->best.n; i++)
    prefix(out->text, &out->best.of[i]);
  snprintf(out->text, sizeof out->text, "%s", out->best.best.changes);
  out->step_s = out->best.best.step_s;
  out->default_s = defaults.step_s;
  out->default_fits = defaults.fits;
  deck_destroy(&deck);
  return status;
}

/* On rank 0. `rates` may lack some. */
static enum status search_here(const struct job *job, enum job_use use, struct plan_rates *rates,
                               const struct job_limits *whole, const struct job_limits *now,
                               struct chosen *out)
{
  const struct plan *plans[JOB_PLANS];
  const bool at_rest = !job_moves_state(job, use);
  const struct plan_rates nominal = choose_nominal_rates(
      &job->device->model, job->threads, comm_ranks(job->comm), comm_local_ranks(job->comm));
  const struct job_site of_whole = {job, use, whole, at_rest}, of_now = {job, use, now, at_rest};
  const struct search described = {.deck = job->deck,
                                   .use = use,
                                   .local_ranks = comm_local_ranks(job->comm),
                                   .n = job_list_plans(job, plans),
                                   .plans = plans,
                                   .rates = &nominal,
                                   .rough = true,
                                   .judge = job_judge,
                                   .arg = &of_whole};
  struct search measured = described;
  choose_fill_rates(&nominal, rates);
  measured.rates = rates;
  measured.arg = &of_now;
  return choose_settings(&described, &measured, out);
}

/* ---- the choice ---- */

static bool is_free(const struct deck *deck, const struct option *option)
{
  return option->chosen && !options_is_set(deck->set, option->name);
}

/* Every free key gets a value, so that the deck of the run and its checkpoints hold the choice. */
enum status choose_apply(const char *text, struct deck *deck)
{
  char words[sizeof((struct chosen){0}.text)], *rest = NULL;
  enum status status = STATUS_OK;
  snprintf(words, sizeof words, "%s", text);
  for (char *word = strtok_r(words, " ", &rest); word && !status;
       word = strtok_r(NULL, " ", &rest)) {
    char *value = strchr(word, '=');
    *value++ = '\0';
    status = options_choose(deck->set, word, value);
  }
  for (const struct option *option = deck_table; option->name && !status; option++) {
    char *value = NULL;
    if (!is_free(deck, option))
      continue;
    status =
        options_print_value(option, deck, &value) ?: options_choose(deck->set, option->name, value);
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
    if (strcmp(options_where(deck->set, option->name), OPTIONS_CHOSEN) != 0)
      continue;
    status = options_print_value(option, deck, &value);
    if (!status && strcmp(value, "auto") != 0)
      append_text(text, size, " %s=%s", option->name, value);
    mem_free(value);
  }
  return status;
}

static enum status log_choice(const struct job *job, const struct chosen *chosen)
{
  char words[sizeof chosen->text];
  char gain[64] = "";
  const enum status status = list_chosen(job->deck, words, sizeof words);
  if (!chosen->default_fits)
    snprintf(gain, sizeof gain, " (the defaults do not fit)");
  else if (*chosen->text)
    snprintf(gain, sizeof gain, ", %.2f times as fast as with the defaults",
             chosen->default_s / chosen->step_s);
  if (!status && comm_rank(job->comm) == 0)
    log_info("chosen  %s: predicted step %.4g s%s; pin it with%s",
             *chosen->text ? chosen->text : "the defaults", chosen->step_s, gain, words);
  return status;
}

enum status job_choose(struct job *job, enum job_use use, bool *changed)
{
  struct chosen chosen = {.text = ""};
  struct job_limits whole, now;
  struct plan_rates rates;
  *changed = false;
  if (!(job_trains(use) || use == JOB_BENCH) || !search_is_free(job->deck))
    return STATUS_OK;
  watchdog_start(job->start, "choosing settings");
  enum status status = comm_agree(job->comm, job_find_limits(job, false, &whole)
                                                 ?: job_find_limits(job, true, &now));
  status = status ?: least_of_ranks(job->comm, &whole) ?: least_of_ranks(job->comm, &now);
  status = status ?: job_rates(job, &rates);
  if (!status && comm_rank(job->comm) == 0)
    status = search_here(job, use, &rates, &whole, &now, &chosen);
  status = comm_agree(job->comm, status) ?: comm_broadcast(job->comm, &chosen, sizeof chosen, 0);
  status = status ?: comm_agree(job->comm, choose_apply(chosen.text, job->deck));
  if (status)
    return status;
  *changed = *chosen.text;
  job->predicted_s = chosen.step_s;
  return log_choice(job, &chosen);
}

enum status choose_resumed(const struct deck *saved, const char *path, struct deck *deck)
{
  enum status status = STATUS_OK;
  for (const struct option *option = deck_table; option->name && !status; option++) {
    char *value = NULL;
    if (!is_free(deck, option))
      continue;
    status = options_print_value(option, saved, &value)
                 ?: options_resolve_from(deck->set, path, option->name, value);
    mem_free(value);
  }
  if (status || !deck_check(deck))
    return status;
  log_info("settings are chosen again, because those of %s do not go with this deck: %s", path,
           status_text());
  for (const struct option *option = deck_table; option->name && !status; option++)
    if (option->chosen && !strcmp(options_where(deck->set, option->name), path))
      status = options_resolve_from(deck->set, path, option->name, "auto");
  return status;
}
