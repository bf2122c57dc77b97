#include "job.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "late.h"

struct comm *job_start_mpi(void)
{
  static char name[] = "test", *args[] = {name, NULL};
  int argc = 1;
  char **argv = args;
  struct comm *comm;
  return comm_create_mpi(&argc, &argv, &comm) ? NULL : comm;
}

struct comm *job_comm;

int job_mpi_start(__attribute__((unused)) void **state)
{
  job_comm = job_start_mpi();
  return job_comm ? 0 : -1;
}

int job_mpi_stop(__attribute__((unused)) void **state)
{
  comm_destroy(job_comm);
  return 0;
}

int32_t job_token(int64_t step, int64_t sequence, int64_t position)
{
  uint64_t h = (uint64_t)(step * 1000003 + sequence * 8191 + position * 131 + 7) *
               UINT64_C(0x9e3779b97f4a7c15);
  return (int32_t)((h >> 33) % JOB_VOCAB);
}

static enum status load(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets)
{
  const struct job *job = arg;
  const struct deck_shape *shape = &job->plan->input.shape;
  if (job->setup.fail_on_step > 0 && step == job->setup.fail_on_step &&
      comm_rank(job->comm) == job->setup.fail_on_rank)
    return status_set(STATUS_INPUT, "no tokens for step %d", job->setup.fail_on_step);
  int64_t first = job->plan->input.rank * shape->rank_batch + micro * shape->micro_batch;
  if (job->setup.mode == PLAN_GENERATE) { /* all ranks the same sequences */
    for (int64_t b = 0; b < shape->micro_batch; b++)
      for (int64_t t = 0; t < job->tokens; t++)
        *tokens++ = job_token(0, b, job->past + t);
    return STATUS_OK;
  }
  for (int64_t b = 0; b < shape->micro_batch; b++)
    for (int64_t t = 0; t < shape->sequence; t++) {
      *tokens++ = job_token(step, first + b, t);
      *targets++ = job_token(step, first + b, t + 1);
    }
  return STATUS_OK;
}

static struct deck_pattern pattern_of(const struct job_setup *setup)
{
  struct deck_pattern pattern = {.n = setup->recompute_every, .of = {KEEP_INPUT}};
  return pattern.n > 0 ? pattern : setup->activations;
}

static const char *nvme_folder(void)
{
  const char *folder = getenv("TMPDIR");
  return folder && *folder ? folder : "/tmp";
}

/* "topk+int8" as a deck has it: two names. */
static const char *codec_of(const char *name)
{
  static char codec[32];
  if (!name || !strchr(name, '+'))
    return name;
  snprintf(codec, sizeof codec, "%.*s", (int)strcspn(name, "+"), name);
  return codec;
}

static const char *values_of(const char *name)
{
  return name && strchr(name, '+') ? strchr(name, '+') + 1 : NULL;
}

void job_plan(struct job *job, struct comm *comm, const struct job_setup *setup)
{
  static char norm[] = "norm", bias[] = "bias", *no_decay[] = {norm, bias};
  int ranks = comm_ranks(comm),
      group = setup->strategy == STRATEGY_HYBRID_SHARD ? setup->group : ranks,
      micros = setup->micros ? setup->micros : 1;
  struct model_config config = {.arch = "gpt2",
                                .layers = JOB_BLOCKS,
                                .width = 16,
                                .heads = 2,
                                .context = JOB_CONTEXT,
                                .vocab = JOB_VOCAB,
                                .tied = true,
                                .norm_eps = 1e-5,
                                .init_std = 0.2,
                                .compute = setup->half ? DTYPE_BF16 : DTYPE_F32};
  if (setup->llama) {
    config.arch = "llama";
    config.kv_heads = 1;
    config.ffn = 24;
    config.tied = false;
  }
  memset(job, 0, sizeof *job);
  job->setup = *setup;
  job->comm = comm;
  job->deck.optim.betas[0] = 0.9;
  job->deck.optim.betas[1] = 0.95;
  job->deck.optim.name = setup->optim;
  job->deck.optim.momentum = 0.9;
  job->deck.optim.nesterov = true;
  job->deck.optim.eps = setup->eps > 0 ? setup->eps : 1e-5;
  job->deck.optim.weight_decay = 0.1;
  job->deck.optim.clip = setup->clip > 0 ? setup->clip : setup->no_clip ? 0 : 0.5;
  job->deck.optim.rounding = setup->stochastic ? DECK_ROUND_STOCHASTIC : DECK_ROUND_NEAREST;
  job->deck.transfer.rate = setup->rate;
  job->deck.optim.no_decay = (struct option_strings){.n = 2, .item = no_decay};
  must(setup->late ? late_device_create(config.compute, &job->device)
                   : device_create("host", 0, config.compute, &job->device));
  if (setup->beside || setup->late)
    must(device_create("host", 0, DTYPE_F32, &job->host));
  if (setup->whole) {
    job->device->model.by_sequence = false;
    job->device->model.row_multiple = 64;
    job->device->model.chunk_logits = 64 * JOB_VOCAB;
  }
  must(model_create(&config, &job->model));
  must(model_freeze(job->model, setup->freeze.n, setup->freeze.item, ranks));
  assert_int_equal(JOB_BATCH % (ranks * micros), 0);
  const struct plan_input input = {
      .mode = setup->mode,
      .rank = comm_rank(comm),
      .ranks = ranks,
      .strategy = setup->strategy,
      .shape = {.ranks = ranks,
                .group = group,
                .replicas = ranks / group,
                .local_ranks = setup->local_ranks,
                .rank_batch = JOB_BATCH / ranks,
                .micro_batch = JOB_BATCH / ranks / micros,
                .micros = micros,
                .sequence = JOB_SEQUENCE},
      .policy = {.activations = pattern_of(setup),
                 .keep_working = setup->keep_working,
                 .host_state = setup->host,
                 .params_full = setup->params_full,
                 .cpu_reduce = setup->cpu_reduce,
                 .one_node = setup->one_node,
                 .immediate = setup->immediate,
                 .speculative = setup->speculative,
                 .moments = setup->moments,
                 .grads.codec = setup->codec,
                 .feedback = setup->feedback,
                 .weights = {.codec = codec_of(setup->weights),
                             .values = values_of(setup->weights)},
                 .difference = setup->difference,
                 .residual = setup->residual,
                 .sample = setup->sample,
                 .across_nodes = setup->local_ranks > 0,
                 .lr_scale = setup->lr_scale,
                 .nvme_state = setup->nvme_state,
                 .resident = setup->resident,
                 .gathered = setup->gathered,
                 .reduce_every_micro = setup->reduce_every_micro},
      .capacity = setup->capacity ? setup->capacity : JOB_SEQUENCE,
      .prefetch = setup->prefetch,
      .model = job->model,
      .device = &job->device->model,
      .threads = setup->threads ? setup->threads : 1,
      .optim = optim_settings(&job->deck),
  };
  must(plan_create(&input, &job->plan));
  const struct plan *plans[] = {job->plan};
  must(exec_memory_create(job->device, comm, nvme_folder(), plans, 1, &job->memory));
}

enum status job_create_exec(struct job *job, const struct job_setup *setup)
{
  const struct exec_config config = {
      .plan = job->plan,
      .model = job->model,
      .device = job->device,
      .host = job->host,
      .comm = job->comm,
      .memory = &job->memory,
      .copy_rate = setup->rate * 1e9,
      .load = load,
      .load_arg = job,
      .threads = setup->threads ? setup->threads : 1,
      .cores = setup->cores,
      .io_cpus = setup->io_cores != NULL,
      .io_cores = setup->io_cores,
  };
  return exec_create(&config, &job->exec);
}

/* The part of parameter p on this rank: its address, and its range in `part`. NULL: nothing. */
static float *part_of(const struct job *job, int u, int p, struct layout_range *part)
{
  const struct plan *plan = job->plan;
  bool frozen = plan->unit[u].layout.frozen[p];
  struct layout_range owned = frozen ? plan->unit[u].frozen_owned : plan->unit[u].owned;
  *part = layout_param_part(&plan->unit[u].layout, p, owned);
  if (part->begin >= part->end)
    return NULL;
  return (float *)exec_pointer(job->exec, frozen ? plan->unit[u].frozen : plan->unit[u].master) +
         plan->unit[u].layout.offset[p] + part->begin - owned.begin;
}

/* Makes the working copies of the masters, and the shared copies of frozen parameters. */
static void make_working_copies(struct job *job)
{
  const struct plan *plan = job->plan;
  const enum dtype type = job->device->model.compute;
  for (int u = 0; u < job->model->units; u++) {
    const struct layout_range owned = plan->unit[u].owned, frozen = plan->unit[u].frozen_owned;
    if (plan->unit[u].working >= 0)
      dtype_convert(exec_pointer(job->exec, plan->unit[u].working), type,
                    exec_pointer(job->exec, plan->unit[u].master), DTYPE_F32,
                    (size_t)(owned.end - owned.begin));
    if (plan->unit[u].shared >= 0 && plan->unit[u].frozen >= 0)
      dtype_convert((char *)exec_pointer(job->exec, plan->unit[u].shared) +
                        frozen.begin * (int64_t)dtype_size(type),
                    type, exec_pointer(job->exec, plan->unit[u].frozen), DTYPE_F32,
                    (size_t)(frozen.end - frozen.begin));
  }
  must(comm_barrier(job->comm));
}

/* The copies hold whole units: an element is a function of its place. */
static void make_copies(struct job *job)
{
  const struct plan *plan = job->plan;
  for (int u = 0; u < job->model->units; u++) {
    if (plan->unit[u].copy < 0)
      continue;
    const struct layout_unit *layout = &plan->unit[u].layout;
    const enum dtype type = plan->buffer[plan->unit[u].copy].dtype;
    char *copy = exec_pointer(job->exec, plan->unit[u].copy);
    for (int p = 0; p < layout->params; p++) {
      const int64_t n = layout->elements[p];
      void *values;
      must(mem_alloc(MEM_META, (size_t)n * sizeof(float), &values));
      model_init_param(job->model, 1, u, p, (struct layout_range){0, n}, values);
      dtype_convert(copy + layout->offset[p] * (int64_t)dtype_size(type), type, values, DTYPE_F32,
                    (size_t)n);
      mem_free(values);
    }
  }
}

static void init_parameters(struct job *job)
{
  for (int u = 0; u < job->model->units; u++)
    for (int p = 0; p < job->model->unit[u].params; p++) {
      struct layout_range part;
      float *at = part_of(job, u, p, &part);
      if (at)
        model_init_param(job->model, 1, u, p, part, at);
    }
  make_working_copies(job);
  make_copies(job);
}

float *job_initial_unit(const struct job *job, int unit)
{
  const struct layout_unit *layout = &job->model->unit[unit].layout;
  void *flat;
  must(mem_alloc(MEM_META, (size_t)layout->flat * sizeof(float), &flat));
  for (int p = 0; p < layout->params; p++)
    model_init_param(job->model, 1, unit, p, (struct layout_range){0, layout->elements[p]},
                     (float *)flat + layout->offset[p]);
  return flat;
}

void job_open(struct job *job, struct comm *comm, const struct job_setup *setup)
{
  job_plan(job, comm, setup);
  must(job_create_exec(job, setup));
  init_parameters(job);
}

void job_close(struct job *job)
{
  exec_destroy(job->exec);
  exec_memory_destroy(&job->memory);
  plan_destroy(job->plan);
  model_destroy(job->model);
  device_destroy(job->device);
  device_destroy(job->host);
}

struct exec_result job_step(struct job *job, int64_t step)
{
  struct exec_result result = {0};
  const double lr = job->setup.lr > 0 ? job->setup.lr : 0.01;
  must(exec_step(job->exec, step, step + 1, lr, &result));
  return result;
}

const float *job_generate(struct job *job, int64_t step, int64_t past, int64_t tokens)
{
  struct exec_result result = {0};
  job->past = past;
  job->tokens = tokens;
  exec_set_window(job->exec, past, tokens);
  must(exec_step(job->exec, step, 1, 0, &result));
  return exec_pointer(job->exec, job->plan->logits);
}

int64_t job_parameters(const struct job *job)
{
  return job->model->parameters;
}

/* Each rank contributes the bits that it has, and otherwise a value below all bits. The largest
 * value, and the largest of the negated values, are equal if all owners agree. */
static void collect_param(struct job *job, int u, int p, float *out)
{
  int64_t n = job->plan->unit[u].layout.elements[p];
  struct layout_range part;
  const float *mine = part_of(job, u, p, &part);
  void *most, *least;
  must(mem_alloc(MEM_META, (size_t)n * sizeof(int64_t), &most));
  must(mem_alloc(MEM_META, (size_t)n * sizeof(int64_t), &least));
  int64_t *high = most, *low = least;
  for (int64_t i = 0; i < n; i++) {
    high[i] = low[i] = INT64_MIN;
    if (!mine || i < part.begin || i >= part.end)
      continue;
    uint32_t bits;
    memcpy(&bits, &mine[i - part.begin], sizeof bits);
    high[i] = bits;
    low[i] = -(int64_t)bits;
  }
  must(comm_max_i64(job->comm, high, (int)n));
  must(comm_max_i64(job->comm, low, (int)n));
  for (int64_t i = 0; i < n; i++) {
    assert_true(high[i] == -low[i]);
    uint32_t bits = (uint32_t)high[i];
    memcpy(&out[i], &bits, sizeof bits);
  }
  mem_free(most);
  mem_free(least);
}

float *job_collect(struct job *job)
{
  void *params;
  must(exec_drain(job->exec));
  must(mem_alloc(MEM_META, (size_t)job_parameters(job) * sizeof(float), &params));
  float *next = params;
  for (int u = 0; u < job->model->units; u++)
    for (int p = 0; p < job->model->unit[u].params; p++) {
      collect_param(job, u, p, next);
      next += job->plan->unit[u].layout.elements[p];
    }
  return params;
}

struct job_record job_run(struct comm *comm, const struct job_setup *setup)
{
  struct job job;
  struct job_record record = {0};
  job_open(&job, comm, setup);
  for (int step = 0; step < JOB_STEPS; step++) {
    struct exec_result result = job_step(&job, step);
    assert_true(result.finite);
    record.loss[step] = result.loss;
    record.grad_norm[step] = result.grad_norm;
  }
  record.n = job_parameters(&job);
  record.params = job_collect(&job);
  record.copies = setup->late ? late_device_copies(job.device) : 0;
  job_close(&job);
  return record;
}

void job_record_free(struct job_record *record)
{
  mem_free(record->params);
}

void job_assert_same(const struct job_record *a, const struct job_record *b)
{
  assert_memory_equal(a->loss, b->loss, sizeof a->loss);
  assert_memory_equal(a->grad_norm, b->grad_norm, sizeof a->grad_norm);
  assert_int_equal(a->n, b->n);
  assert_memory_equal(a->params, b->params, (size_t)a->n * sizeof(float));
}
