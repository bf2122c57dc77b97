#include "train/job.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"

static int64_t least_of(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* Evaluation and generation see no batch: any number of ranks will do, and full sharding needs the least memory. */
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
                                     .recompute_every = 0,
                                     .reduce_every_micro = true};
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
  if (status)
    return status;
  if (input->mode == PLAN_EVAL) { /* during training: in the training's storage, one micro-batch a step */
    input->shape.micros = 1;
    input->shape.rank_batch = input->shape.micro_batch;
  }
  return STATUS_OK;
}

static enum status create_plans(struct job *job, enum job_use use)
{
  static const struct {
    int n;
    enum plan_mode mode[2];
  } plans_of[] = {
      [JOB_TRAIN] = {1, {PLAN_TRAIN}},
      [JOB_TRAIN_AND_EVAL] = {2, {PLAN_TRAIN, PLAN_EVAL}},
      [JOB_EVAL] = {1, {PLAN_EVAL}},
      [JOB_GENERATE] = {1, {PLAN_GENERATE}},
  };
  for (int i = 0; i < plans_of[use].n; i++) {
    const enum plan_mode mode = plans_of[use].mode[i];
    struct plan_input input = {.mode = mode,
                               .rank = comm_rank(job->comm),
                               .ranks = comm_ranks(job->comm),
                               .model = job->model,
                               .device = job->device,
                               .threads = job->threads};
    enum status status = job_shape(job->deck, use, comm_local_ranks(job->comm), &input);
    if (status)
      return status;
    if (i == 0)
      job->shape = input.shape;
    status = plan_create(&input, &job->plan[mode]);
    if (status)
      return status;
  }
  return STATUS_OK;
}

struct job_arenas job_arenas(int n, const struct plan *const plans[])
{
  struct job_arenas sum = {0};
  for (int tier = 0; tier < TIER_COUNT; tier++) {
    struct job_arenas most = {0};
    for (int i = 0; i < n; i++) {
      if (plans[i]->persistent_bytes[tier] > most.persistent)
        most.persistent = plans[i]->persistent_bytes[tier];
      if (plans[i]->transient_bytes[tier] > most.transient)
        most.transient = plans[i]->transient_bytes[tier];
    }
    sum.persistent += most.persistent;
    sum.transient += most.transient;
  }
  return sum;
}

enum { MODES = 3 };

static int list_plans(const struct job *job, const struct plan *plans[MODES])
{
  int n = 0;
  for (int mode = 0; mode < MODES; mode++)
    if (job->plan[mode])
      plans[n++] = job->plan[mode];
  return n;
}

/* Pages are there only when they are touched, in the middle of a step: what cannot fit is refused here. */
static enum status check_fits(const struct job *job, enum job_use use, int n, const struct plan *const plans[])
{
  static const char train[] = "shard.strategy=full_shard, tiers.activations=recompute, or a smaller data.micro_batch";
  static const char *const cures[] = {[JOB_TRAIN] = train,
                                      [JOB_TRAIN_AND_EVAL] = train,
                                      [JOB_EVAL] = "a shorter data.sequence, or a smaller data.micro_batch",
                                      [JOB_GENERATE] = "or a shorter context="};
  const double GiB = 1 << 30;
  const int64_t have = mem_available_bytes();
  const int local = comm_local_ranks(job->comm);
  const struct job_arenas need = job_arenas(n, plans);
  const int64_t bytes = need.persistent + need.transient;
  if (have < 0 || (double)bytes * local <= (double)have)
    return STATUS_OK;
  return status_set(STATUS_MEMORY,
                    "a rank needs %.2f GiB of host memory (%.2f for what stays from step to step, %.2f for a step), the %d rank%s of this node "
                    "%.2f GiB, but only %.2f GiB are there: use more nodes, %s",
                    (double)bytes / GiB, (double)need.persistent / GiB, (double)need.transient / GiB, local, local == 1 ? "" : "s",
                    (double)bytes * local / GiB, (double)have / GiB, cures[use]);
}

int64_t job_planned_bytes(const struct job *job)
{
  const struct plan *plans[MODES];
  const int n = list_plans(job, plans);
  const struct job_arenas arenas = job_arenas(n, plans);
  return arenas.persistent + arenas.transient;
}

static enum status create_memory(struct job *job, enum job_use use)
{
  const struct plan *plans[MODES];
  const int n = list_plans(job, plans);
  const enum status status = check_fits(job, use, n, plans);
  return status ? status : exec_memory_create(job->device, plans, n, &job->memory);
}

/* Ranks that share cores split them; the share is what this rank's threads are bound to. Collective. */
static enum status place_rank(struct job *job)
{
  const int ranks = comm_ranks(job->comm), rank = comm_rank(job->comm);
  int64_t *ids = NULL;
  int index = 0, sharers = 1;
  enum status status = comm_agree(job->comm, mem_alloc(MEM_META, (size_t)ranks * sizeof *ids, (void **)&ids));
  if (status)
    return status;
  ids[rank] = topo_mask_id();
  status = comm_sum_i64(job->comm, ids, ranks);
  if (!status)
    topo_place(ids, ranks, rank, &index, &sharers);
  mem_free(ids);
  if (!status)
    status = topo_create(index, sharers, (int)job->deck->run.threads, &job->topo);
  if (!status)
    status = topo_bind(job->topo);
  if (!status)
    job->threads = topo_threads(job->topo);
  return status;
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

static enum status create_parts(struct job *job, enum job_use use)
{
  const struct deck *deck = job->deck;
  enum status status = place_rank(job);
  if (status)
    return status;
  status = device_create("host", DTYPE_F32, &job->device);
  if (status)
    return status;
  status = job_model(deck, comm_ranks(job->comm), &job->model);
  if (status)
    return status;
  status = create_plans(job, use);
  if (status)
    return status;
  return create_memory(job, use);
}

/* Without a training step there is nothing for these keys to act on. Those of a deck were meant for its training; one that was just typed was meant for this. */
static void warn_ignored(const struct deck *deck, enum job_use use)
{
  const struct {
    const char *key;
    bool other; /* than what is done */
  } keys[] = {{"shard.strategy", deck->shard.strategy != STRATEGY_FULL_SHARD},
              {"shard.group", strcmp(deck->shard.group, "world") != 0},
              {"shard.reduce", deck->shard.reduce != REDUCE_AUTO},
              {"tiers.activations", strcmp(deck->tiers.activations, "keep") != 0}};
  if (use != JOB_EVAL && use != JOB_GENERATE)
    return;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (keys[i].other && !strcmp(options_where(deck->set, keys[i].key), OPTIONS_COMMAND_LINE))
      log_warn("%s is for training and changes nothing here: parameters are sharded over all ranks, and nothing is kept for a backward pass",
               keys[i].key);
}

enum status job_create(struct comm *comm, const struct deck *deck, enum job_use use, struct job **out)
{
  const int64_t resident = mem_resident_bytes();
  struct job *job = NULL;
  enum status status = mem_alloc(MEM_META, sizeof *job, (void **)&job);
  if (!status) {
    job->comm = comm;
    job->deck = deck;
    job->resident_start = resident;
    status = create_parts(job, use);
  }
  status = comm_agree(comm, status);
  if (status) {
    job_destroy(job);
    return status;
  }
  char frozen[48] = "";
  if (job->model->frozen > 0)
    snprintf(frozen, sizeof frozen, " (%.1f M frozen)", (double)job->model->frozen * 1e-6);
  log_info("%s: %.1f M parameters%s, %d rank%s (%s), %d thread%s each", deck->model.arch, (double)job->model->parameters * 1e-6, frozen,
           comm_ranks(comm), comm_ranks(comm) == 1 ? "" : "s", comm_description(comm), job->threads, job->threads == 1 ? "" : "s");
  log_info("rank 0 runs on %s", topo_description(job->topo));
  if (comm_rank(comm) == 0)
    warn_ignored(deck, use);
  *out = job;
  return STATUS_OK;
}

void job_destroy(struct job *job)
{
  if (!job)
    return;
  for (int mode = 0; mode < 3; mode++)
    exec_destroy(job->exec[mode]);
  exec_memory_destroy(&job->memory);
  for (int mode = 0; mode < 3; mode++)
    plan_destroy(job->plan[mode]);
  model_destroy(job->model);
  device_destroy(job->device);
  topo_destroy(job->topo);
  mem_free(job);
}

enum status job_start(struct job *job, enum plan_mode mode, exec_load *load, void *arg)
{
  const struct exec_config config = {.plan = job->plan[mode],
                                     .model = job->model,
                                     .device = job->device,
                                     .comm = job->comm,
                                     .memory = &job->memory,
                                     .deck = job->deck,
                                     .load = load,
                                     .load_arg = arg,
                                     .threads = job->threads,
                                     .cores = topo_cores(job->topo)};
  return exec_create(&config, &job->exec[mode]);
}

/* The plan whose persistent buffers hold the parameters (those of a job's plans lie at the same place). */
static const struct plan *any_plan(const struct job *job)
{
  for (int mode = 0; mode < 3; mode++)
    if (job->plan[mode])
      return job->plan[mode];
  return NULL;
}

static float *state_pointer(const struct job *job, const struct plan *plan, int buffer)
{
  const struct plan_buffer *b = &plan->buffer[buffer];
  return (float *)((char *)job->memory.persistent[b->tier] + b->offset);
}

/* What this rank keeps of one of a parameter's kinds: a buffer (-1: none) that holds a range of the unit's flat elements. */
struct holding {
  int buffer;
  struct layout_range range;
};

/* kind 0: the parameters; 1 and 2: the moments, which frozen ones do not have. */
static struct holding holding_of(const struct plan *plan, int u, int p, int kind)
{
  const int *const trained[3] = {plan->master, plan->moment1, plan->moment2};
  if (!plan->layout[u].frozen[p])
    return (struct holding){trained[kind][u], plan->owned[u]};
  return (struct holding){kind == 0 ? plan->frozen[u] : -1, plan->frozen_owned[u]};
}

/* Where element `part.begin` of parameter p lies. */
static float *param_pointer(const struct job *job, const struct plan *plan, int u, int p, const struct holding *holding, struct layout_range part)
{
  return state_pointer(job, plan, holding->buffer) + (plan->layout[u].offset[p] + part.begin - holding->range.begin);
}

void job_init(struct job *job)
{
  const struct plan *plan = any_plan(job);
  for (int u = 0; u < job->model->units; u++)
    for (int p = 0; p < job->model->unit[u].params; p++) {
      const struct holding holding = holding_of(plan, u, p, 0);
      const struct layout_range part = layout_param_part(&plan->layout[u], p, holding.range);
      if (part.begin < part.end)
        model_init_param(job->model, (uint64_t)job->deck->run.seed, u, p, part, param_pointer(job, plan, u, p, &holding, part));
    }
}

/* Of what a rank holds of a part of `all` elements, the piece that it alone writes: what several ranks hold is cut among them. */
static struct layout_range unique_range(const struct job *job, struct layout_range held, int64_t all)
{
  const int64_t size = held.end - held.begin;
  const int holders = size > 0 ? (int)(all / size) : 1; /* ranks that hold different shards */
  const int64_t piece = size / (comm_ranks(job->comm) / holders);
  const int index = holders == 1 ? comm_rank(job->comm) : comm_rank(job->comm) / holders;
  return (struct layout_range){held.begin + index * piece, held.begin + (index + 1) * piece};
}

static void describe_tensor(const struct job *job, const struct plan *plan, int u, int p, int kind, bool unique, struct io_tensor *out)
{
  static const char *const group[3] = {"model", "exp_avg", "exp_avg_sq"};
  const struct model_param *param = &job->model->unit[u].param[p];
  const struct layout_unit *layout = &plan->layout[u];
  const struct holding holding = holding_of(plan, u, p, kind);
  const int64_t all = layout->frozen[p] ? layout->flat - layout->trained : layout->trained;
  const struct layout_range range = unique ? unique_range(job, holding.range, all) : holding.range;
  *out = (struct io_tensor){.group = group[kind],
                            .name = param->name,
                            .type = DTYPE_F32,
                            .ndim = param->ndim,
                            .writer = true,
                            .range = layout_param_part(layout, p, range)};
  for (int d = 0; d < param->ndim; d++)
    out->shape[d] = param->shape[d];
  out->data = param_pointer(job, plan, u, p, &holding, out->range);
}

enum status job_tensors(struct job *job, bool moments, bool unique, struct io_tensor **out, int *n)
{
  const struct plan *plan = any_plan(job);
  const int kinds = moments ? 3 : 1;
  int params = 0;
  for (int u = 0; u < job->model->units; u++)
    params += job->model->unit[u].params;

  struct io_tensor *tensors = NULL;
  enum status status = mem_alloc(MEM_IO, (size_t)(params * kinds) * sizeof *tensors, (void **)&tensors);
  if (status)
    return status;
  int k = 0;
  for (int kind = 0; kind < kinds; kind++)
    for (int u = 0; u < job->model->units; u++)
      for (int p = 0; p < job->model->unit[u].params; p++)
        if (holding_of(plan, u, p, kind).buffer >= 0)
          describe_tensor(job, plan, u, p, kind, unique, &tensors[k++]);
  *out = tensors;
  *n = k;
  return STATUS_OK;
}
