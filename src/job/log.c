/* The first log lines of a job: its properties, and the keys that have no effect. */
#include "job/private.h"

#include <stdlib.h>
#include <string.h>

#include "base/append.h"
#include "base/log.h"
#include "base/mem.h"
#include "layout/mesh.h"
#include "plan/arenas.h"

static void warn_warmup(const struct deck *deck, enum job_use use)
{
  if (job_trains(use) && deck->optim.decay_steps == 0 && deck->optim.warmup > deck->run.steps)
    log_warn("optim.warmup is %lld steps, but the run has %lld: the learning rate does not reach "
             "optim.lr",
             (long long)deck->optim.warmup, (long long)deck->run.steps);
}

static bool uses_lane(const struct plan *plan, enum plan_lane lane)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].lane == lane)
      return true;
  return false;
}

static bool speculates(const struct plan *plan)
{
  for (int u = 0; u < plan->input.model->units; u++)
    if (plan->unit[u].policy.timing == TIMING_SPECULATIVE)
      return true;
  return false;
}

/* Facts that make a key useless: see facts_of(). */
/* clang-format off */
enum {
  ALWAYS, TRAINS, STEPLESS, HOST, DEVICE, ALONE, GATHERS_ONCE, FP32, PLAIN, UNTESTED, WAITING,
  COPYLESS, DISKLESS, EXACT, GROUPED, FACTS
};
/* clang-format on */

static const char for_training[] =
    "it is for training. Here parameters are sharded over all ranks, no activations are kept and "
    "nothing is updated";
static const char nothing_sent[] = "one rank sends no gradients",
                  nothing_gathered[] = "one rank gathers no parameters",
                  nothing_encoded[] = "gradients are not encoded (compress.grads.codec)";

/* clang-format off: one row per reason. `value`: NULL: all but the default */
static const struct {
  const char *key, *value;
  int when[2]; /* both of these facts */
  const char *why;
} useless[] = {
    {"shard.strategy", NULL, {STEPLESS}, for_training},
    {"shard.group", NULL, {STEPLESS}, for_training},
    {"shard.reduce", NULL, {STEPLESS}, for_training},
    {"tiers.activations", NULL, {STEPLESS}, for_training},
    {"tiers.working", NULL, {STEPLESS}, for_training},
    {"transfer.grads", NULL, {STEPLESS}, for_training},
    {"optim.update", NULL, {STEPLESS}, for_training},
    {"optim.state", NULL, {STEPLESS}, for_training},
    {"shard.group",
     NULL,
     {ALONE, GROUPED},
     "one rank is a group of its own, and more ranks must be a multiple of it"},
    {"shard.gathered",
     NULL,
     {TRAINS, HOST},
     "masters in host memory come to the device for each use (tiers.params)"},
    {"shard.gathered",
     NULL,
     {ALONE, FP32},
     "one rank computes with its fp32 masters, and gathers no parameters (run.compute)"},
    {"shard.gathered",
     NULL,
     {TRAINS, GATHERS_ONCE},
     "this strategy gathers no unit twice per step (shard.strategy)"},
    {"transfer.params", NULL, {DEVICE}, "parameters are on the device (tiers.params)"},
    {"tiers.working",
     NULL,
     {TRAINS, HOST},
     "masters in host memory always have a working copy, resident ones have none (tiers.params)"},
    {"tiers.working",
     NULL,
     {TRAINS, FP32},
     "the compute type is fp32, so the masters need no working copy (run.compute)"},
    {"compress.grads.codec", NULL, {ALONE}, nothing_sent},
    {"compress.grads.units", NULL, {ALONE}, nothing_sent},
    {"compress.weights.codec", NULL, {ALONE}, nothing_gathered},
    {"compress.sample", NULL, {ALONE}, nothing_encoded},
    {"compress.sample", NULL, {TRAINS, PLAIN}, nothing_encoded},
    {"eval.target", NULL, {TRAINS, UNTESTED}, "there are no validations (eval.every)"},
    {"optim.update",
     "speculative",
     {TRAINS, WAITING},
     "all units wait for the norm, because their moments are on NVMe (optim.state) or their "
     "parameters are encoded (compress.weights.codec)"},
    {"tiers.resident", NULL, {DEVICE}, "all masters are on the device (tiers.params)"},
    {"transfer.rate", NULL, {COPYLESS}, "no copies between tiers are simulated on the host device"},
    {"tiers.nvme",
     NULL,
     {DISKLESS},
     "nothing is offloaded to NVMe (optim.state, tiers.activations, tiers.residual)"},
    {"tiers.residual",
     NULL,
     {TRAINS, EXACT},
     "errors of messages are not kept (compress.feedback)"},
};
/* clang-format on */

static void facts_of(const struct deck *deck, enum job_use use, int n,
                     const struct plan *const plans[], bool facts[FACTS])
{
  const struct plan *plan = plans[0];
  const struct plan_input *input = &plan->input;
  const struct plan_arenas disk = plan_arenas(n, plans, TIER_DISK);
  bool copies = false, trains = false;
  for (int p = 0; p < n; p++) {
    copies |= uses_lane(plans[p], LANE_H2D) || uses_lane(plans[p], LANE_D2H);
    trains |= plans[p]->input.mode == PLAN_TRAIN;
  }
  facts[ALWAYS] = true;
  facts[TRAINS] = trains;
  facts[STEPLESS] = use == JOB_EVAL || use == JOB_GENERATE;
  facts[HOST] = deck->tiers.params == DECK_TIER_HOST;
  facts[DEVICE] = !facts[HOST]; /* masters are there */
  facts[ALONE] = trains && input->ranks == 1;
  facts[FP32] = input->model->config.compute == DTYPE_F32;
  facts[GATHERS_ONCE] = !deck_shards_params(deck->shard.strategy) &&
                        (deck->shard.strategy != STRATEGY_NO_SHARD || facts[FP32]);
  facts[PLAIN] = !plan_encodes(plan);
  facts[UNTESTED] = deck->eval.every == 0;
  facts[WAITING] = !speculates(plan); /* all units wait for the norm */
  facts[COPYLESS] = !(copies && input->device->host_memory);
  facts[DISKLESS] = disk.persistent + disk.transient == 0;
  facts[EXACT] = !plan_keeps_residuals(plan);
  facts[GROUPED] = strtol(deck->shard.group, NULL, 10) > 1;
}

/* Whether a key has this value, or one that is not the default. */
static bool is_chosen(const struct deck *deck, const char *key, const char *value)
{
  const struct option *option = deck_table;
  char *now = NULL;
  while (strcmp(option->name, key) != 0)
    option++;
  const bool chosen = !options_print_value(option, deck, &now) &&
                      (value ? !strcmp(now, value) : strcmp(now, option->value) != 0);
  mem_free(now);
  return chosen;
}

/* A deck may have keys for other tiers or for training. A key on the command line was meant for
 * this job, so there is a warning. */
void job_warn_without_effect(const struct deck *deck, enum job_use use, int n,
                             const struct plan *const plans[])
{
  bool facts[FACTS];
  const char *last = "";
  facts_of(deck, use, n, plans, facts);
  for (size_t i = 0; i < sizeof useless / sizeof *useless; i++) {
    const char *key = useless[i].key;
    if (!facts[useless[i].when[0]] || !facts[useless[i].when[1]] || !strcmp(key, last) ||
        !is_chosen(deck, key, useless[i].value) || options_is_chosen(deck->set, key))
      continue;
    last = key;
    if (options_is_typed(deck->set, key))
      log_warn("%s is ignored: %s", key, useless[i].why);
    else if (!facts[STEPLESS])
      log_info("%s is ignored: %s", key, useless[i].why);
  }
}

/* The last unit tells it of all, except that some speculative plans defer a part of the units. */
static const char *when_updated(const struct plan *plan)
{
  if (speculates(plan))
    return "as soon as their gradients arrive, and repaired if they are clipped";
  return plan->unit[plan->input.model->units - 1].policy.timing == TIMING_IMMEDIATE
             ? "as soon as their gradients arrive"
             : "after the norm of all gradients is known";
}

/* The first units may be resident. The last unit is in host memory. */
static void log_tiers(const struct plan *plan)
{
  const struct unit_policy *last = &plan->unit[plan->input.model->units - 1].policy;
  const char *const hosts =
      last->sums == SUMS_SHARED ? "on the hosts, in shared memory" : "on the hosts";
  const double nvme = plan->input.policy.nvme_state;
  char disk[64] = "";
  int resident = 0;
  while (!plan->unit[resident].policy.host)
    resident++;
  if (nvme > 0)
    snprintf(disk, sizeof disk, " (moments of %.0f %% of the units are on NVMe)", 100 * nvme);
  if (resident > 0)
    log_info("the first %d unit%s: masters and moments are on the device and are updated there",
             resident, plural(resident));
  log_info("masters and %s moments: in host memory%s",
           dtype_name(state_type(&optim_ops(plan->input.optim.name)->state[0], last->state)), disk);
  log_info("parameters are copied to the device %s, gradients are reduced %s, units are updated %s",
           last->working == WORKING_SHARED ? "whole, from memory that a node shares" : "in shards",
           last->sums == SUMS_DEVICE ? "on the devices" : hosts, when_updated(plan));
}

/* The codec of gradients, and the storage of residuals. */
static void log_codecs(const struct job *job, const struct plan *plan)
{
  static const char *const homes[] = {[DECK_RESIDUAL_DEVICE] = "device memory",
                                      [DECK_RESIDUAL_HOST] = "host memory",
                                      [DECK_RESIDUAL_NVME] = "NVMe"};
  char codecs[256], residuals[96] = "", warmup[64] = "";
  if (!plan_encodes(plan) || comm_ranks(job->comm) == 1)
    return;
  plan_print_codecs(plan, codecs, sizeof codecs);
  if (plan_keeps_residuals(plan))
    snprintf(residuals, sizeof residuals, ", residuals in %s in %s", deck_feedback(job->deck),
             homes[job->deck->tiers.residual]);
  if (job->plan[JOB_WARMUP])
    snprintf(warmup, sizeof warmup, ", after %lld updates without a codec",
             (long long)job->deck->compress.warmup);
  log_info("gradients between ranks: %s%s%s", codecs, residuals, warmup);
}

/* The axes whose groups have ranks of several nodes. */
static void log_axes(const struct job *job)
{
  static const mesh_set axes[] = {1 << AXIS_PIPELINE, MESH_REPLICA, MESH_SHARD, 1 << AXIS_TENSOR};
  const struct mesh *mesh = &job_state_plan(job)->mesh;
  const int local = comm_local_ranks(job->comm);
  char text[64] = "";
  size_t n = 0;
  if (local == comm_ranks(job->comm))
    return;
  for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
    if (mesh_crosses(mesh, axes[i], local))
      n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? ", " : "",
                            mesh_name(axes[i]).text);
  log_info("axes of the mesh that cross nodes: %s", n ? text : "none");
}

/* The groups of hybrid sharding in this job: there may be only one node, or one rank per node. */
static void log_groups(const struct job *job)
{
  const struct deck_shape *shape = &job->shape;
  const struct plan_input *input = &job_state_plan(job)->input;
  const int replicas = mesh_ranks(&job_state_plan(job)->mesh, MESH_REPLICA);
  if (shape->ranks == 1 || input->strategy != STRATEGY_HYBRID_SHARD)
    return;
  if (replicas == 1)
    log_info("hybrid_shard: all %d ranks are one group, which is the same as full_shard",
             shape->ranks);
  else if (shape->group == 1)
    log_info("hybrid_shard: each rank is a group of its own, so nothing is sharded");
  else
    log_info("hybrid_shard: %d groups of %d ranks%s", replicas, shape->group,
             input->policy.one_node ? "" : ", some of which span nodes");
}

/* Adapters need about ten times the rate that suits all parameters, which is 1e-5 to 1e-4 for AdamW
 * (Schulman et al. 2025, "LoRA Without Regret"), and 5e-7 to 1e-6 for preferences. */
static void log_adapters(const struct deck *deck)
{
  const double usual = deck->train.objective == OBJECTIVE_DPO ? 5e-6 : 1e-4;
  const bool adamw = deck->optim.name == OPTIM_adamw || deck->optim.name == OPTIM_adamw8bit;
  if (deck->lora.rank > 0 && adamw && deck->optim.lr < usual)
    log_info("optim.lr (%s) is %g, a rate for training all parameters: adapters usually need ten "
             "times that of full training, %g or more",
             options_where(deck->set, "optim.lr"), deck->optim.lr, usual);
  if (deck->lora.rank > 0 && !*deck->train.init)
    log_info("the base of the adapters is random, because train.init is empty");
}

/* The transport, cores and libraries are facts of the machine, for log.txt. */
static void log_job(const struct job *job, enum job_use use)
{
  const struct plan *plan = job_state_plan(job);
  const int ranks = comm_ranks(job->comm);
  const bool trains = job_trains(use);
  char frozen[48] = "";
  if (job->model->frozen > 0)
    snprintf(frozen, sizeof frozen, " (%.1f M frozen)", (double)job->model->frozen * 1e-6);
  log_info("model   %s: %.1f M parameters%s, %s%s%d rank%s x %d thread%s, device %s%s%s%s, "
           "computing in %s%s",
           job->deck->model.arch, (double)job->model->parameters * 1e-6, frozen,
           trains ? deck_strategy_name(job->deck->shard.strategy) : "", trains ? " on " : "", ranks,
           plural(ranks), job->threads, plural(job->threads), job->place.device,
           *job->device->product ? " (" : "", job->device->product,
           *job->device->product ? ")" : "", job->place.precision,
           job->model->fp8 && job->device->fp8_tensor ? " with one scale per operand" : "");
  log_note("%s", comm_description(job->comm));
  log_note("rank 0 runs on %s", topo_own(job->topo)->description);
  if (ranks > 1)
    log_note("transport between ranks: %s", comm_transport_text(job->comm));
  log_groups(job);
  log_axes(job);
  if (plan_is_on_host(plan, plan->input.model->units - 1))
    log_tiers(plan);
  else if (plan->unit[0].policy.timing == TIMING_IMMEDIATE)
    log_info("units are updated as soon as their gradients are complete");
  log_codecs(job, plan);
  if (trains)
    log_adapters(job->deck);
}

void job_log(const struct job *job, enum job_use use)
{
  const struct plan *plans[JOB_PLANS];
  log_job(job, use);
  if (comm_rank(job->comm) != 0)
    return;
  warn_warmup(job->deck, use);
  job_warn_without_effect(job->deck, use, job_list_plans(job, plans), plans);
}
