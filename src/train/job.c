#include "train/job.h"

#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "plan/arenas.h"
#include "train/job_state.h"

static int64_t least_of(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* Evaluation and generation see no batch: any number of ranks will do, and full sharding needs the least memory. Parameters lie where training had them. */
static void shape_without_batch(const struct deck *deck, struct plan_input *input)
{
  enum { EVAL_SEQUENCES = 8, NEW_TOKENS = 256, CACHED_TOKENS = 2048 };
  int64_t sequence = deck->data.sequence ? deck->data.sequence : deck->model.context;
  int64_t micro = deck->data.micro_batch ? deck->data.micro_batch : least_of(deck->data.batch, EVAL_SEQUENCES);
  if (input->mode == PLAN_GENERATE) {
    input->capacity = deck->data.sequence ? deck->data.sequence : least_of(deck->model.context, CACHED_TOKENS);
    sequence = least_of(input->capacity, NEW_TOKENS);
    micro = 1;
  }
  input->strategy = STRATEGY_FULL_SHARD;
  input->shape = (struct deck_shape){.ranks = input->ranks,
                                     .group = input->ranks,
                                     .replicas = 1,
                                     .rank_batch = micro,
                                     .micro_batch = micro,
                                     .micros = 1,
                                     .sequence = sequence,
                                     .reduce_every_micro = true,
                                     .host_state = deck->tiers.optimizer == DECK_TIER_HOST}; /* what did not fit in training does not fit here */
}

struct cited {
  char text[400];
};

/* "run.device (quickstart.yaml:12) is cuda" */
static struct cited cite(const struct deck *deck, const char *key, const char *value)
{
  struct cited cited;
  snprintf(cited.text, sizeof cited.text, "%s (%s) is %s", key, options_where(deck->set, key), value);
  return cited;
}

/* What a device apart does not do. */
static enum status check_device(const struct deck *deck, const struct plan_input *input)
{
  char rate[32];
  snprintf(rate, sizeof rate, "%g", deck->transfer.rate);
  if (input->device->host_memory)
    return STATUS_OK;
  if (deck->transfer.rate > 0)
    return status_set(STATUS_USAGE, "%s, which slows copies down where the device is the host: leave it out, or say run.device=host",
                      cite(deck, "transfer.rate", rate).text);
  return STATUS_OK;
}

enum status job_shape(const struct deck *deck, enum job_use use, int local_ranks, struct plan_input *input)
{
  input->prefetch = (int)deck->shard.prefetch;
  if (use == JOB_EVAL || use == JOB_GENERATE) {
    shape_without_batch(deck, input);
    return STATUS_OK;
  }
  input->strategy = (enum deck_strategy)deck->shard.strategy;
  enum status status = deck_resolve(deck, input->ranks, local_ranks, &input->shape);
  if (!status)
    status = check_device(deck, input);
  if (status)
    return status;
  if (input->mode == PLAN_EVAL) { /* during training: in the training's storage, one micro-batch a step */
    input->shape.micros = 1;
    input->shape.rank_batch = input->shape.micro_batch;
  }
  return STATUS_OK;
}

/* Whether all shard groups have their ranks on one node each, as every rank's plan must have it: then, and only then, the ranks before a rank on its node are some groups and those before it
 * in its own. */
static enum status find_groups(const struct job *job, struct plan_input *input)
{
  const int group = input->shape.group;
  int64_t most[] = {comm_local_rank(job->comm) % group != input->rank % group, group, -group};
  const enum status status = comm_max_i64(job->comm, most, 3);
  input->shape.one_node = most[0] == 0;
  if (status || most[1] == -most[2])
    return status;
  return status_set(STATUS_USAGE,
                    "nodes have between %lld and %lld ranks, and groups of a node are as large everywhere; start the same number of ranks on every "
                    "node, or set shard.group to a number",
                    (long long)-most[2], (long long)most[1]);
}

static enum status create_plans(struct job *job, enum job_use use)
{
  static const struct {
    int n;
    enum plan_mode mode[2];
  } plans_of[] = {
      [JOB_TRAIN] = {1, {PLAN_TRAIN}}, [JOB_TRAIN_AND_EVAL] = {2, {PLAN_TRAIN, PLAN_EVAL}},
      [JOB_EVAL] = {1, {PLAN_EVAL}},   [JOB_GENERATE] = {1, {PLAN_GENERATE}},
      [JOB_BENCH] = {1, {PLAN_TRAIN}},
  };
  for (int i = 0; i < plans_of[use].n; i++) {
    const enum plan_mode mode = plans_of[use].mode[i];
    struct plan_input input = {.mode = mode,
                               .rank = comm_rank(job->comm),
                               .ranks = comm_ranks(job->comm),
                               .model = job->model,
                               .device = job->device,
                               .threads = job->threads};
    enum status status = comm_agree(job->comm, job_shape(job->deck, use, comm_local_ranks(job->comm), &input));
    if (!status)
      status = find_groups(job, &input);
    if (status)
      return status;
    if (i == 0)
      job->shape = input.shape;
    status = comm_agree(job->comm, plan_create(&input, &job->plan[mode]));
    if (status)
      return status;
  }
  return STATUS_OK;
}

static int list_plans(const struct job *job, const struct plan *plans[JOB_PLANS])
{
  int n = 0;
  for (int mode = 0; mode < JOB_PLANS; mode++)
    if (job->plan[mode])
      plans[n++] = job->plan[mode];
  return n;
}

int64_t job_planned_bytes(const struct job *job)
{
  const struct plan *plans[JOB_PLANS];
  return job_arena_bytes(list_plans(job, plans), plans);
}

/* Collective. */
static enum status create_memory(struct job *job)
{
  const struct plan *plans[JOB_PLANS];
  const int n = list_plans(job, plans);
  return comm_agree(job->comm, exec_memory_create(job->device, job->comm, job->nvme, plans, n, &job->memory));
}

struct model_config job_model_config(const struct deck *deck)
{
  static const enum rope_scaling scalings[] = {[DECK_ROPE_NONE] = ROPE_PLAIN, [DECK_ROPE_LINEAR] = ROPE_LINEAR, [DECK_ROPE_LLAMA3] = ROPE_LLAMA3};
  return (struct model_config){.arch = deck->model.arch,
                               .layers = deck->model.layers,
                               .width = deck->model.width,
                               .heads = deck->model.heads,
                               .context = deck->model.context,
                               .vocab = deck->model.vocab,
                               .kv_heads = deck->model.kv_heads,
                               .head_width = deck->model.head_width,
                               .ffn = deck->model.ffn,
                               .window = deck->model.window,
                               .window_from = deck->model.window_from,
                               .tied = deck->model.tied,
                               .norm_eps = deck->model.norm_eps,
                               .init_std = deck->model.init_std,
                               .rope = {.theta = deck->model.rope_theta,
                                        .scaling = scalings[deck->model.rope_scaling],
                                        .factor = deck->model.rope_factor,
                                        .low_freq = deck->model.rope_low_freq,
                                        .high_freq = deck->model.rope_high_freq,
                                        .original = deck->model.rope_original}};
}

enum status job_model(const struct deck *deck, int ranks, struct model **out)
{
  const struct model_config config = job_model_config(deck);
  struct model *model = NULL;
  enum status status = model_create(&config, &model);
  if (!status)
    status = model_freeze(model, deck->train.freeze.n, deck->train.freeze.item, ranks);
  if (status)
    model_destroy(model);
  else
    *out = model;
  return status;
}

static enum status no_gpu(const struct deck *deck)
{
#ifdef HAVE_CUDA
  static const char missing[] = "no GPU is to be seen here: ask for one, look whether CUDA_VISIBLE_DEVICES hides it";
#else
  static const char missing[] = "this build has no CUDA: configure it with --with-cuda";
#endif
  return status_set(STATUS_UNSUPPORTED, "%s, but %s, or say run.device=host", cite(deck, "run.device", "cuda").text, missing);
}

#ifdef HAVE_NCCL
static const bool has_nccl = true;
#else
static const bool has_nccl = false;
#endif

static enum status choose_carrier(const struct deck *deck, int ranks, bool cuda, const char **out)
{
  const int backend = deck->comm.backend;
  if (backend == DECK_BACKEND_NCCL && !cuda)
    return status_set(STATUS_USAGE,
                      "%s, which carries data between GPUs, but the model is computed on the host: say comm.backend=mpi, or run.device=cuda",
                      cite(deck, "comm.backend", "nccl").text);
  if (!cuda || (ranks == 1 && backend != DECK_BACKEND_NCCL))
    *out = "mpi";
  else
    *out = backend == DECK_BACKEND_NCCL || (backend == DECK_BACKEND_AUTO && has_nccl) ? "nccl" : "mpi_device";
  return STATUS_OK;
}

enum status job_choose_place(const struct deck *deck, int ranks, int local_ranks, int gpus, struct job_place *out)
{
  const bool cuda = deck->run.device == DECK_DEVICE_CUDA || (deck->run.device == DECK_DEVICE_AUTO && gpus > 0);
  const bool bf16 = deck->run.compute == DECK_COMPUTE_BF16 || (deck->run.compute == DECK_COMPUTE_AUTO && cuda);
  const char *carrier = NULL;
  if (cuda && gpus == 0)
    return no_gpu(deck);
  if (cuda && local_ranks > gpus && gpus > 1)
    return status_set(STATUS_USAGE,
                      "this node has %d ranks, which need a GPU each, and they see %d: start no more than that on a node, or say run.device=host",
                      local_ranks, gpus);
  const enum status status = choose_carrier(deck, ranks, cuda, &carrier);
  if (status)
    return status;
  *out = (struct job_place){.device = cuda ? "cuda" : "host", .compute = bf16 ? DTYPE_BF16 : DTYPE_F32, .carrier = carrier};
  return STATUS_OK;
}

enum status job_check_same_place(struct comm *comm, const struct deck *deck, bool gpu)
{
  int64_t some[2] = {gpu, !gpu};
  const enum status status = comm_max_i64(comm, some, 2);
  if (status || deck->run.device != DECK_DEVICE_AUTO || !some[0] || !some[1])
    return status;
  return status_set(STATUS_USAGE, "%s, but some ranks see a GPU and some do not: start all of them where GPUs are, or say run.device=host",
                    cite(deck, "run.device", "auto").text);
}

/* Where each rank sees one GPU, it may be its own or that of all. */
static enum status find_shared_device(const struct job *job, int64_t *ids)
{
  const int ranks = comm_ranks(job->comm), rank = comm_rank(job->comm);
  ids[rank] = (int64_t)(hash_text(job->device->id) >> 1);
  enum status status = comm_sum_i64(job->comm, ids, ranks);
  for (int other = 0; other < ranks && !status; other++)
    if (*job->device->id && other != rank && ids[other] == ids[rank])
      status = status_set(STATUS_USAGE, "ranks %d and %d have the same GPU (%s), and each needs its own: start fewer ranks, or say run.device=host",
                          rank, other, job->device->product);
  return comm_agree(job->comm, status);
}

static enum status check_own_device(const struct job *job)
{
  void *ids = NULL;
  enum status status = comm_agree(job->comm, mem_alloc(MEM_META, (size_t)comm_ranks(job->comm) * sizeof(int64_t), &ids));
  if (!status)
    status = find_shared_device(job, ids);
  mem_free(ids);
  return status;
}

enum status job_count_gpus(const struct deck *deck, int *out)
{
  const int gpus = deck->run.device == DECK_DEVICE_HOST ? 0 : device_count("cuda");
  if (gpus < 0)
    return STATUS_LIBRARY; /* its sentence is there */
  *out = gpus;
  return STATUS_OK;
}

/* What the job computes on: *gpus of a rank to choose from, 0 for the host. Collective. */
static enum status choose_place(struct job *job, int *out)
{
  int gpus = 0;
  enum status status = comm_agree(job->comm, job_count_gpus(job->deck, &gpus));
  if (!status)
    status = job_check_same_place(job->comm, job->deck, gpus > 0);
  if (!status)
    status = job_choose_place(job->deck, comm_ranks(job->comm), comm_local_ranks(job->comm), gpus, &job->place);
  status = comm_agree(job->comm, status);
  if (!status)
    *out = strcmp(job->place.device, "host") == 0 ? 0 : gpus;
  return status;
}

static enum status take_cores(struct job *job, const struct topo_record *records)
{
  const struct deck *deck = job->deck;
  const struct topo_options options = {.bind = deck->topo.bind,
                                       .threads = (int)deck->run.threads,
                                       .controller = (int)deck->topo.controller,
                                       .lists = deck->topo.cores.n,
                                       .list = deck->topo.cores.item};
  enum status status = topo_create_job(records, comm_ranks(job->comm), comm_rank(job->comm), &options, &job->topo);
  if (!status)
    status = topo_bind(job->topo);
  if (status)
    return status;
  job->threads = topo_threads(job->topo);
  if (*topo_warning(job->topo))
    log_warn("%s", topo_warning(job->topo));
  return STATUS_OK;
}

static enum status make_record(const struct job *job, int gpus, struct topo_record *out)
{
  enum { BUS = 24 };
  char text[TOPO_GPUS][BUS];
  const char *bus[TOPO_GPUS];
  enum status status = STATUS_OK;
  for (int g = 0; g < gpus && g < TOPO_GPUS && !status; g++) {
    bus[g] = text[g];
    status = device_bus(job->place.device, g, text[g], BUS);
  }
  return status ? status : topo_record(gpus, bus, out);
}

/* Each rank gets a GPU, the cores near it, and these to itself: what this rank's threads are bound to. Collective. */
static enum status place_rank(struct job *job, int gpus)
{
  const int ranks = comm_ranks(job->comm), rank = comm_rank(job->comm);
  struct topo_record *records = NULL;
  enum status status = mem_alloc(MEM_META, (size_t)ranks * sizeof *records, (void **)&records);
  if (!status)
    status = make_record(job, gpus, &records[rank]);
  status = comm_agree(job->comm, status);
  if (!status)
    status = comm_sum_i64(job->comm, (int64_t *)records, ranks * TOPO_RECORD_WORDS);
  if (!status)
    status = comm_agree(job->comm, take_cores(job, records));
  mem_free(records);
  return status;
}

/* The device, and what carries its data. Collective. */
static enum status create_device(struct job *job)
{
  const int gpu = topo_gpu(job->topo);
  enum status status = device_create(job->place.device, gpu < 0 ? 0 : gpu, job->place.compute, &job->device);
  if (!status && !job->device->host_memory)
    status = device_create("host", 0, DTYPE_F32, &job->host);
  status = comm_agree(job->comm, status);
  if (!status)
    status = check_own_device(job);
  if (status)
    return status;
  job->device->plain_memory = strcmp(job->place.carrier, "nccl") != 0;
  comm_set_device(job->comm, job->device);
  return comm_set_carrier(job->comm, job->place.carrier);
}

static enum status name_nvme(struct job *job)
{
  const struct deck *deck = job->deck;
  job->nvme = *deck->tiers.nvme ? mem_strdup(deck->tiers.nvme) : mem_printf("%s/nvme", deck->run.dir);
  return job->nvme ? STATUS_OK : STATUS_MEMORY;
}

/* All that needs no memory of its own: what cannot fit fails here. Collective. */
static enum status create_parts(struct job *job, enum job_use use)
{
  const struct plan *plans[JOB_PLANS];
  enum status status = name_nvme(job);
  if (!status)
    status = job_model(job->deck, comm_ranks(job->comm), &job->model);
  status = comm_agree(job->comm, status);
  if (!status)
    status = create_plans(job, use);
  return status ? status : comm_agree(job->comm, job_check_fits(job, use, list_plans(job, plans), plans));
}

static bool is_typed(const struct deck *deck, const char *key)
{
  return strcmp(options_where(deck->set, key), OPTIONS_COMMAND_LINE) == 0;
}

/* Without a training step there is nothing for these keys to act on. Those of a deck were meant for its training; one that was just typed was meant for this. */
static void warn_ignored(const struct deck *deck, enum job_use use)
{
  const struct {
    const char *key;
    bool other; /* than what is done */
  } keys[] = {{"shard.strategy", deck->shard.strategy != STRATEGY_FULL_SHARD},
              {"shard.group", strcmp(deck->shard.group, "world") != 0 && strcmp(deck->shard.group, "auto") != 0},
              {"shard.reduce", deck->shard.reduce != REDUCE_AUTO},
              {"tiers.activations", strcmp(deck->tiers.activations, "keep") != 0},
              {"tiers.working", deck->tiers.working != DECK_WORKING_GATHER},
              {"transfer.grads", deck->transfer.grads != DECK_GPU_REDUCE},
              {"optim.update", deck->optim.update != DECK_UPDATE_AUTO},
              {"optim.state", deck->optim.state != DECK_STATE_HOST}};
  if (use != JOB_EVAL && use != JOB_GENERATE)
    return;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (keys[i].other && is_typed(deck, keys[i].key))
      log_warn("%s is for training and changes nothing here: parameters are sharded over all ranks, nothing is kept for a backward pass, and nothing "
               "is updated",
               keys[i].key);
}

static bool uses_lane(const struct plan *plan, enum plan_lane lane)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].lane == lane)
      return true;
  return false;
}

/* What is meant for other tiers than those that were chosen. A deck may say it, and have its tiers changed by a key; what was typed is a mistake. */
void job_warn_without_effect(const struct deck *deck, enum job_use use, int n, const struct plan *const plans[])
{
  const struct device *device = plans[0]->input.device;
  bool copies = false, trains = false;
  for (int p = 0; p < n; p++) {
    copies |= uses_lane(plans[p], LANE_H2D) || uses_lane(plans[p], LANE_D2H);
    trains |= plans[p]->input.mode == PLAN_TRAIN;
  }
  const struct plan_arenas disk = plan_arenas(n, plans, TIER_DISK);
  const bool host = deck->tiers.params == DECK_TIER_HOST;
  const struct {
    const char *key;
    bool idle;
    const char *why;
  } keys[] = {{"transfer.params", deck->transfer.params != DECK_PARAMS_SHARD && !host, "parameters are on the device (tiers.params)"},
              {"tiers.working", trains && deck->tiers.working == DECK_WORKING_KEEP && (host || device->compute == DTYPE_F32),
               host ? "masters in host memory have their copy beside them, and resident ones none (tiers.params)"
                    : "fp32 is computed with as it is (run.compute)"},
              {"tiers.resident", deck->tiers.resident > 0 && !host, "all masters are on the device (tiers.params)"},
              {"transfer.rate", deck->transfer.rate > 0 && !(copies && device->host_memory), "nothing is copied between tiers on the host device"},
              {"tiers.nvme", *deck->tiers.nvme && disk.persistent + disk.transient == 0, "nothing goes to NVMe (optim.state, tiers.activations)"}};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (keys[i].idle && is_typed(deck, keys[i].key))
      log_warn("%s changes nothing here: %s", keys[i].key, keys[i].why);
    else if (keys[i].idle && use != JOB_EVAL && use != JOB_GENERATE)
      log_info("%s changes nothing here: %s", keys[i].key, keys[i].why);
}

static void log_tiers(const struct job *job)
{
  const struct deck_shape *shape = &job->shape;
  const char *const hosts = shape->one_node ? "hosts, in memory that they share" : "hosts";
  char disk[64] = "";
  if (shape->nvme_state > 0)
    snprintf(disk, sizeof disk, ", moments of %.0f %% of the units on NVMe", 100 * shape->nvme_state);
  if (shape->resident > 0)
    log_info("of the first %lld unit%s masters and moments are on the device, and updated there", (long long)shape->resident,
             shape->resident == 1 ? "" : "s");
  log_info("masters and moments (%s) in host memory%s; parameters come %s, gradients are reduced by the %s, units are updated %s",
           dtype_name(shape->moments), disk, shape->params_full ? "whole from what a node shares" : "in shards",
           shape->cpu_reduce ? hosts : "devices", shape->immediate ? "as their gradients land" : "behind the norm of all gradients");
}

/* What hybrid sharding comes to here: nodes may be one, or have a rank each. */
static void log_groups(const struct job *job)
{
  const struct deck_shape *shape = &job->shape;
  if (shape->ranks == 1 || job_state_plan(job)->input.strategy != STRATEGY_HYBRID_SHARD)
    return;
  if (shape->group == shape->ranks)
    log_info("hybrid_shard: all %d ranks are one group, so this is full_shard", shape->ranks);
  else if (shape->group == 1)
    log_info("hybrid_shard: each rank is a group of its own, so nothing is sharded");
  else
    log_info("hybrid_shard: %d groups of %d ranks", shape->replicas, shape->group);
}

static void log_job(const struct job *job)
{
  const int ranks = comm_ranks(job->comm);
  char frozen[48] = "";
  if (job->model->frozen > 0)
    snprintf(frozen, sizeof frozen, " (%.1f M frozen)", (double)job->model->frozen * 1e-6);
  log_info("%s: %.1f M parameters%s, %d rank%s (%s), %d thread%s each", job->deck->model.arch, (double)job->model->parameters * 1e-6, frozen, ranks,
           ranks == 1 ? "" : "s", comm_description(job->comm), job->threads, job->threads == 1 ? "" : "s");
  log_info("rank 0 runs on %s", topo_description(job->topo));
  log_info("device %s%s%s%s, computing in %s%s%s", job->place.device, *job->device->product ? " (" : "", job->device->product,
           *job->device->product ? ")" : "", dtype_name(job->place.compute), ranks > 1 ? ", data between ranks by " : "",
           ranks > 1 ? comm_carrier_text(job->comm) : "");
  log_groups(job);
  if (job->shape.host_state)
    log_tiers(job);
  else if (job->shape.immediate)
    log_info("units are updated as soon as their gradients are complete");
}

/* Up to its memory. *out is to be destroyed, whatever the status. Collective. */
static enum status begin(struct comm *comm, const struct deck *deck, enum job_use use, struct job **out)
{
  const int64_t resident = mem_resident_bytes();
  struct job *job = NULL;
  int gpus = 0;
  enum status status = comm_agree(comm, mem_alloc(MEM_META, sizeof *job, (void **)&job));
  *out = job;
  if (status)
    return status;
  job->comm = comm;
  job->deck = deck;
  job->resident_start = resident;
  status = choose_place(job, &gpus);
  if (!status)
    status = place_rank(job, gpus);
  if (!status)
    status = create_device(job);
  return status ? status : create_parts(job, use);
}

enum status job_check(struct comm *comm, const struct deck *deck, enum job_use use)
{
  struct job *job;
  const enum status status = begin(comm, deck, use, &job);
  job_destroy(job);
  return status;
}

enum status job_create(struct comm *comm, const struct deck *deck, enum job_use use, struct job **out)
{
  struct job *job;
  enum status status = begin(comm, deck, use, &job);
  if (!status)
    status = create_memory(job);
  if (status) {
    job_destroy(job);
    return status;
  }
  log_job(job);
  if (comm_rank(comm) == 0) {
    const struct plan *plans[JOB_PLANS];
    warn_ignored(deck, use);
    job_warn_without_effect(deck, use, list_plans(job, plans), plans);
  }
  *out = job;
  return STATUS_OK;
}

void job_destroy(struct job *job)
{
  if (!job)
    return;
  struct trace_summary unread;
  for (int mode = 0; mode < JOB_PLANS; mode++)
    exec_destroy(job->exec[mode]);
  if (trace_run_close(job->trace, &unread))
    log_warn("%s", status_text());
  tally_destroy(job->tally);
  exec_memory_destroy(&job->memory);
  for (int mode = 0; mode < JOB_PLANS; mode++)
    plan_destroy(job->plan[mode]);
  model_destroy(job->model);
  device_destroy(job->host);
  device_destroy(job->device);
  mem_free(job->nvme);
  topo_destroy(job->topo);
  mem_free(job);
}

const struct plan *job_state_plan(const struct job *job)
{
  for (int mode = 0; mode < JOB_PLANS; mode++)
    if (job->plan[mode])
      return job->plan[mode];
  return NULL;
}

static enum status measure_link(struct job *job)
{
  double bytes_s = 0;
  const enum status status = exec_measure_link(job->exec[PLAN_TRAIN], &bytes_s);
  trace_run_set_link(job->trace, bytes_s);
  return status;
}

static enum status open_trace(struct job *job)
{
  if (job->deck->train.trace.n == 0)
    return STATUS_OK;
  char *dir = mem_printf("%s/trace", job->deck->run.dir);
  const enum status status = dir ? trace_run_open(dir, job->plan[PLAN_TRAIN], 0, &job->trace) : STATUS_MEMORY;
  mem_free(dir);
  if (!status)
    trace_run_set_tally(job->trace, job->tally);
  return status;
}

static void log_tally(const struct job *job)
{
  char keys[2048] = "nothing";
  for (int e = 0, used = 0; e < tally_events(job->tally); e++)
    used += snprintf(keys + used, sizeof keys - (size_t)used, "%s%s", e ? ", " : "", tally_key(job->tally, e));
  if (comm_rank(job->comm) != 0)
    return;
  log_info("run.counters: of the threads that drive lanes and their teams' workers %s %s counted", keys, tally_events(job->tally) > 1 ? "are" : "is");
  if (*tally_note(job->tally))
    log_warn("run.counters: %s", tally_note(job->tally));
}

static enum status open_tally(struct job *job)
{
  if (!deck_counts(job->deck))
    return STATUS_OK;
  const enum status status = tally_create(&job->deck->run.counters, &job->tally);
  if (!status)
    log_tally(job);
  return status;
}

/* What watches the training steps. */
static enum status open_instruments(struct job *job)
{
  const enum status status = open_tally(job);
  return status ? status : open_trace(job);
}

enum status job_start(struct job *job, enum plan_mode mode, exec_load *load, void *arg)
{
  enum status status = comm_agree(job->comm, mode == PLAN_TRAIN ? open_instruments(job) : STATUS_OK);
  if (status)
    return status;
  const int *io_cores;
  const int io_cpus = topo_io_cores(job->topo, &io_cores);
  const struct exec_config config = {.plan = job->plan[mode],
                                     .model = job->model,
                                     .device = job->device,
                                     .host = job->host,
                                     .comm = job->comm,
                                     .memory = &job->memory,
                                     .deck = job->deck,
                                     .load = load,
                                     .load_arg = arg,
                                     .threads = job->threads,
                                     .cores = topo_cores(job->topo),
                                     .io_cpus = io_cpus,
                                     .io_cores = io_cores,
                                     .trace = job->trace && mode == PLAN_TRAIN ? trace_run_event : NULL,
                                     .trace_arg = job->trace,
                                     .trace_from = job->deck->train.trace.item[0],
                                     .trace_to = job->deck->train.trace.item[1],
                                     .tally = mode == PLAN_TRAIN ? job->tally : NULL,
                                     .timeout_s = job->deck->comm.timeout};
  status = exec_create(&config, &job->exec[mode]);
  if (!status && mode == PLAN_TRAIN)
    job_say_where_memory_lies(job);
  return status || !config.trace ? status : measure_link(job);
}

enum status job_end_trace(struct job *job, struct trace_summary *out)
{
  *out = (struct trace_summary){0};
  if (!job->trace)
    return STATUS_OK;
  struct class_total total[CLASS_COUNT];
  enum status status = exec_drain(job->exec[PLAN_TRAIN]);
  if (!status)
    status = exec_measured(job->exec[PLAN_TRAIN], total);
  if (status)
    return status;
  trace_run_set_classes(job->trace, total);
  status = trace_run_close(job->trace, out);
  job->trace = NULL; /* no step is traced behind this one: the caller runs none */
  return status;
}
