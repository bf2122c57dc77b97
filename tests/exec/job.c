#include "job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"

struct comm *job_start_mpi(void)
{
  static char name[] = "test", *args[] = {name, NULL};
  int argc = 1;
  char **argv = args;
  struct comm *comm;
  return comm_create_mpi(&argc, &argv, &comm) ? NULL : comm;
}

static void check(enum status status)
{
  if (status)
    fail_msg("%s", status_text());
}

int32_t job_token(int64_t step, int64_t sequence, int64_t position)
{
  uint64_t h = (uint64_t)(step * 1000003 + sequence * 8191 + position * 131 + 7) * UINT64_C(0x9e3779b97f4a7c15);
  return (int32_t)((h >> 33) % JOB_VOCAB);
}

static enum status load(void *arg, int64_t step, int micro, int32_t *tokens, int32_t *targets)
{
  const struct job *job = arg;
  const struct deck_shape *shape = &job->plan->input.shape;
  if (job->setup.fail_on_step > 0 && step == job->setup.fail_on_step && comm_rank(job->comm) == job->setup.fail_on_rank)
    return status_set(STATUS_INPUT, "no tokens for step %d", job->setup.fail_on_step);
  int64_t first = job->plan->input.rank * shape->rank_batch + micro * shape->micro_batch;
  for (int64_t b = 0; b < shape->micro_batch; b++)
    for (int64_t t = 0; t < shape->sequence; t++) {
      *tokens++ = job_token(step, first + b, t);
      *targets++ = job_token(step, first + b, t + 1);
    }
  return STATUS_OK;
}

void job_plan(struct job *job, struct comm *comm, const struct job_setup *setup)
{
  static char norm[] = "norm", bias[] = "bias", *no_decay[] = {norm, bias};
  int ranks = comm_ranks(comm), group = setup->strategy == STRATEGY_HYBRID_SHARD ? setup->group : ranks, micros = setup->micros ? setup->micros : 1;
  const struct model_config config = {
      .arch = "gpt2", .layers = JOB_BLOCKS, .width = 16, .heads = 2, .context = 12, .vocab = JOB_VOCAB, .norm_eps = 1e-5, .init_std = 0.2};
  memset(job, 0, sizeof *job);
  job->setup = *setup;
  job->comm = comm;
  job->deck.optim.betas[0] = 0.9;
  job->deck.optim.betas[1] = 0.95;
  job->deck.optim.eps = 1e-5;
  job->deck.optim.weight_decay = 0.1;
  job->deck.optim.clip = 0.5;
  job->deck.optim.no_decay = (struct option_strings){.n = 2, .item = no_decay};
  check(device_create("host", DTYPE_F32, &job->device));
  check(model_create(&config, &job->model));
  assert_int_equal(JOB_BATCH % (ranks * micros), 0);
  const struct plan_input input = {
      .mode = setup->mode,
      .rank = comm_rank(comm),
      .ranks = ranks,
      .strategy = setup->strategy,
      .shape = {.ranks = ranks,
                .group = group,
                .replicas = ranks / group,
                .rank_batch = JOB_BATCH / ranks,
                .micro_batch = JOB_BATCH / ranks / micros,
                .micros = micros,
                .sequence = JOB_SEQUENCE,
                .recompute_every = setup->recompute_every,
                .reduce_every_micro = setup->reduce_every_micro},
      .prefetch = setup->prefetch,
      .model = job->model,
      .device = job->device,
      .threads = setup->threads ? setup->threads : 1,
  };
  check(plan_create(&input, &job->plan));
  const struct plan *plans[] = {job->plan};
  check(exec_memory_create(job->device, plans, 1, &job->memory));
}

enum status job_create_exec(struct job *job, const struct job_setup *setup)
{
  const struct exec_config config = {
      .plan = job->plan,
      .model = job->model,
      .device = job->device,
      .comm = job->comm,
      .memory = &job->memory,
      .deck = &job->deck,
      .load = load,
      .load_arg = job,
      .threads = setup->threads ? setup->threads : 1,
      .cores = setup->cores,
  };
  return exec_create(&config, &job->exec);
}

/* Of each parameter, the part that this rank owns. */
static void init_parameters(struct job *job)
{
  for (int u = 0; u < job->model->units; u++) {
    struct layout_range owned = job->plan->owned[u];
    const struct layout_unit *layout = &job->plan->layout[u];
    float *master = exec_pointer(job->exec, job->plan->master[u]);
    for (int p = 0; p < layout->params; p++) {
      struct layout_range part = layout_param_part(layout, p, owned);
      if (part.begin < part.end)
        model_init_param(job->model, 1, u, p, part, master + layout->offset[p] + part.begin - owned.begin);
    }
  }
}

void job_open(struct job *job, struct comm *comm, const struct job_setup *setup)
{
  job_plan(job, comm, setup);
  check(job_create_exec(job, setup));
  init_parameters(job);
}

void job_close(struct job *job)
{
  exec_destroy(job->exec);
  exec_memory_destroy(&job->memory);
  plan_destroy(job->plan);
  model_destroy(job->model);
  device_destroy(job->device);
}

struct exec_result job_step(struct job *job, int64_t step)
{
  struct exec_result result = {0};
  check(exec_step(job->exec, step, step + 1, 0.01, &result));
  return result;
}

int64_t job_parameters(const struct job *job)
{
  int64_t n = 0;
  for (int u = 0; u < job->model->units; u++)
    n += job->plan->layout[u].used;
  return n;
}

/* Each rank puts in the bits that it owns and otherwise less than any bits; the largest and the smallest (as the largest of the negated) are the same
 * where all owners agree. */
static void collect_unit(struct job *job, int u, float *out)
{
  struct layout_range owned = job->plan->owned[u];
  int64_t used = job->plan->layout[u].used;
  const float *master = exec_pointer(job->exec, job->plan->master[u]);
  void *most, *least;
  check(mem_alloc(MEM_META, (size_t)used * sizeof(int64_t), &most));
  check(mem_alloc(MEM_META, (size_t)used * sizeof(int64_t), &least));
  int64_t *high = most, *low = least;
  for (int64_t i = 0; i < used; i++) {
    high[i] = low[i] = INT64_MIN;
    if (i < owned.begin || i >= owned.end)
      continue;
    uint32_t bits;
    memcpy(&bits, &master[i - owned.begin], sizeof bits);
    high[i] = bits;
    low[i] = -(int64_t)bits;
  }
  check(comm_max_i64(job->comm, high, (int)used));
  check(comm_max_i64(job->comm, low, (int)used));
  for (int64_t i = 0; i < used; i++) {
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
  check(exec_drain(job->exec));
  check(mem_alloc(MEM_META, (size_t)job_parameters(job) * sizeof(float), &params));
  float *next = params;
  for (int u = 0; u < job->model->units; u++) {
    collect_unit(job, u, next);
    next += job->plan->layout[u].used;
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
