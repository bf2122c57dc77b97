/* Frozen parameters, and a head that has a unit of its own. Oracles: the strategy full_shard on the
 * same number of ranks, bit for bit. Frozen parameters keep their initial bits. Trained parameters
 * equal those of the first step of a run that freezes nothing, with clipping off, because the norm
 * of all gradients differs. The gradients of an untied model equal those of the model called by
 * hand, unit after unit. */
/* ranks: 1 2 3 */
#include <string.h>

#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

/* ---- what is frozen ---- */

struct choice {
  bool llama;
  int n;
  char pattern[3][32];
};

static const struct choice choices[] = {
    {true, 0, {""}},
    {false, 2, {"*.bias", "*.wpe.weight"}},         /* some of each unit */
    {true, 2, {"*norm.weight", "*.q_proj.weight"}}, /* likewise, of a fused product too */
    {false,
     3,
     {"*.wte.weight", "*.wpe.weight", "*.h.0.*"}}, /* the lower end; of the root the norm is left */
    {true, 2, {"model.embed_tokens.*", "model.layers.[01].*"}}, /* the root and two blocks whole */
    {true, 3, {"lm_head.*", "model.norm.*", "model.layers.2.*"}}, /* the upper end */
    {true, 2, {"model.embed_tokens.*", "model.layers.*"}},        /* all but the head */
    {false,
     3,
     {"*.wte.weight", "*.wpe.weight",
      "transformer.h.*"}} /* all but the norm in front of a tied head */
};
enum { CHOICES = sizeof choices / sizeof choices[0] };

struct patterns {
  char *item[3];
};

static struct job_setup setup_of(const struct choice *choice, struct patterns *patterns)
{
  for (int i = 0; i < 3; i++)
    patterns->item[i] = (char *)choice->pattern[i];
  return (struct job_setup){
      .prefetch = 1, .llama = choice->llama, .freeze = {.n = choice->n, .item = patterns->item}};
}

static void expect_same(const struct job_record *reference, struct job_setup setup,
                        void (*change)(struct job_setup *setup))
{
  change(&setup);
  struct job_record record = job_run(job_comm, &setup);
  job_assert_same(&record, reference);
  job_record_free(&record);
}

static void shard_grad_op(struct job_setup *setup)
{
  setup->strategy = STRATEGY_SHARD_GRAD_OP;
}
static void shard_optim(struct job_setup *setup)
{
  setup->strategy = STRATEGY_SHARD_OPTIM;
  setup->prefetch = 2;
}
static void no_shard(struct job_setup *setup)
{
  setup->strategy = STRATEGY_NO_SHARD;
}
static void hybrid_of_one(struct job_setup *setup)
{
  setup->strategy = STRATEGY_HYBRID_SHARD;
  setup->group = 1;
}
static void hybrid_of_two(struct job_setup *setup)
{
  setup->strategy = STRATEGY_HYBRID_SHARD;
  setup->group = comm_ranks(job_comm) % 2 == 0 ? 2 : comm_ranks(job_comm);
}
static void recompute(struct job_setup *setup)
{
  setup->recompute_every = 2;
  setup->prefetch = 0;
}
static void micro_batches(struct job_setup *setup)
{
  setup->micros = 3;
}
static void micro_batches_whole(struct job_setup *setup)
{
  setup->micros = 3;
  setup->strategy = STRATEGY_NO_SHARD;
  setup->threads = 2;
}

/* Calls with each parameter's place in what job_collect() returns. */
typedef void visit_param(const struct job *job, int u, int p, int64_t at, void *arg);

static void visit_params(const struct job *job, visit_param *visit, void *arg)
{
  int64_t at = 0;
  for (int u = 0; u < job->model->units; u++)
    for (int p = 0; p < job->model->unit[u].params; p++) {
      visit(job, u, p, at, arg);
      at += job->plan->unit[u].layout.elements[p];
    }
}

struct comparison {
  const float *before, *after, *full;
  int moved, kept;
};

static void compare_param(const struct job *job, int u, int p, int64_t at, void *arg)
{
  struct comparison *c = arg;
  const char *name = job->model->unit[u].param[p].name;
  size_t bytes = (size_t)job->plan->unit[u].layout.elements[p] * sizeof(float);
  bool moved = memcmp(c->before + at, c->after + at, bytes) != 0;
  if (job->plan->unit[u].layout.frozen[p] == moved)
    fail_msg("%s is %s and has %schanged", name, moved ? "frozen" : "trained", moved ? "" : "not ");
  if (moved && memcmp(c->full + at, c->after + at, bytes) != 0)
    fail_msg("%s has not learnt what it would if nothing were frozen", name);
  *(moved ? &c->moved : &c->kept) += 1;
}

static float *run(const struct job_setup *setup, int steps, float **initial)
{
  struct job job;
  job_open(&job, job_comm, setup);
  if (initial)
    *initial = job_collect(&job);
  for (int step = 0; step < steps; step++)
    assert_true(job_step(&job, step).finite);
  float *params = job_collect(&job);
  job_close(&job);
  return params;
}

TEST(trained_parameters_learn_the_same_and_frozen_ones_stay)
{
  for (int c = 1; c < CHOICES; c++) {
    struct patterns patterns;
    struct job_setup setup = setup_of(&choices[c], &patterns), all = setup;
    struct comparison comparison = {0};
    float *before;
    setup.no_clip = all.no_clip = true;
    all.freeze.n = 0;
    float *after = run(&setup, 1, &before), *full = run(&all, 1, NULL);
    comparison = (struct comparison){.before = before, .after = after, .full = full};
    struct job job;
    job_plan(&job, job_comm, &setup);
    visit_params(&job, compare_param, &comparison);
    assert_true(comparison.moved > 0 && comparison.kept > 0);
    job_close(&job);
    mem_free(before);
    mem_free(after);
    mem_free(full);
  }
}

static void compare_kept(const struct job *job, int u, int p, int64_t at, void *arg)
{
  const struct comparison *c = arg;
  if (job->plan->unit[u].layout.frozen[p])
    assert_memory_equal(c->before + at, c->after + at,
                        (size_t)job->plan->unit[u].layout.elements[p] * sizeof(float));
}

/* After all steps of the record. */
static void expect_kept(const struct job_setup *setup, const struct job_record *record)
{
  struct job job;
  job_open(&job, job_comm, setup);
  float *before = job_collect(&job);
  visit_params(&job, compare_kept, &(struct comparison){.before = before, .after = record->params});
  mem_free(before);
  job_close(&job);
}

/* Every choice meets half of the changes, and the next choice the others. */
TEST(strategies_agree)
{
  static void (*const changes[])(struct job_setup *) = {
      shard_grad_op, shard_optim, no_shard,      hybrid_of_one,
      hybrid_of_two, recompute,   micro_batches, micro_batches_whole};
  for (int c = 0; c < CHOICES; c++) {
    struct patterns patterns;
    struct job_setup setup = setup_of(&choices[c], &patterns);
    struct job_record reference = job_run(job_comm, &setup);
    expect_kept(&setup, &reference);
    for (size_t i = (size_t)c % 2; i < sizeof changes / sizeof changes[0]; i += 2)
      expect_same(&reference, setup, changes[i]);
    job_record_free(&reference);
  }
}

/* ---- the untied model by hand ---- */

enum { MOST_UNITS = JOB_BLOCKS + 2 };

/* One step on one rank without a plan. */
struct hand {
  const struct job *job;
  struct lane *lane;
  struct model_shape shape;
  float *params[MOST_UNITS], *grads[MOST_UNITS];
  void *x[JOB_BLOCKS + 1], *saved[JOB_BLOCKS + 1], *d, *work;
  int64_t backward_bytes; /* of work */
  int32_t tokens[JOB_BATCH * JOB_SEQUENCE], targets[JOB_BATCH * JOB_SEQUENCE];
};

static void *room(size_t bytes)
{
  void *block;
  assert_int_equal(mem_alloc(MEM_META, bytes, &block), STATUS_OK);
  return block;
}

static void hand_create(struct hand *h, const struct job *job)
{
  const struct model *model = job->model;
  *h = (struct hand){.job = job, .shape = {JOB_BATCH, JOB_SEQUENCE}};
  assert_int_equal(
      job->device->ops->lane_create(job->device, "hand", LANE_ROLE_COMPUTE, 1, &h->lane),
      STATUS_OK);
  size_t stream = model_stream_bytes(model, h->shape), most = 0;
  for (int u = 0; u < model->units; u++) {
    h->params[u] = job_initial_unit(job, u);
    h->grads[u] = room((size_t)model->unit[u].layout.flat * sizeof(float));
  }
  for (int u = 0; u <= JOB_BLOCKS; u++) {
    h->x[u] = room(stream);
    h->saved[u] = room(model->ops->saved_bytes(model, h->shape));
  }
  for (int what = WORK_FORWARD; what <= WORK_FORWARD_SAVED; what++) {
    size_t bytes =
        model->ops->work_bytes(model, &job->device->model, h->shape, (enum model_work)what, 1);
    most = bytes > most ? bytes : most;
  }
  h->d = room(stream);
  h->work = room(most);
  h->backward_bytes =
      (int64_t)model->ops->work_bytes(model, &job->device->model, h->shape, WORK_BACKWARD, 1);
  for (int i = 0; i < JOB_BATCH * JOB_SEQUENCE; i++) {
    h->tokens[i] = job_token(0, i / JOB_SEQUENCE, i % JOB_SEQUENCE);
    h->targets[i] = job_token(0, i / JOB_SEQUENCE, i % JOB_SEQUENCE + 1);
  }
}

static void hand_destroy(struct hand *h)
{
  for (int u = 0; u < h->job->model->units; u++) {
    mem_free(h->params[u]);
    mem_free(h->grads[u]);
  }
  for (int u = 0; u <= JOB_BLOCKS; u++) {
    mem_free(h->x[u]);
    mem_free(h->saved[u]);
  }
  mem_free(h->d);
  mem_free(h->work);
  h->job->device->ops->lane_destroy(h->lane);
}

static void hand_run(struct hand *h)
{
  const struct model *model = h->job->model;
  const struct model_ops *ops = model->ops;
  struct exactsum loss;
  exactsum_zero(&loss);
  struct model_call call = {.model = model,
                            .lane = h->lane,
                            .shape = h->shape,
                            .params = {.flat = h->params[0]},
                            .token = h->tokens,
                            .x_out = h->x[0],
                            .work = h->work};
  assert_int_equal(ops->embed(&call), STATUS_OK);
  for (int u = 1; u <= JOB_BLOCKS; u++) {
    call.unit = u;
    call.params.flat = h->params[u];
    call.x_in = h->x[u - 1];
    call.x_out = h->x[u];
    call.saved = h->saved[u];
    assert_int_equal(ops->block_forward(&call), STATUS_OK);
  }
  int head = model->head;
  assert_int_equal(head, JOB_BLOCKS + 1);
  call.params.flat = h->params[head];
  call.x_in = h->x[JOB_BLOCKS];
  call.token = h->targets;
  call.scale = 1.0f / (JOB_BATCH * JOB_SEQUENCE);
  call.loss = &loss;
  call.d = h->d;
  call.grads = h->grads[head];
  assert_int_equal(ops->head_loss(&call), STATUS_OK);
  call.work_bytes = h->backward_bytes;
  for (int u = JOB_BLOCKS; u >= 1; u--) {
    call.unit = u;
    call.params.flat = h->params[u];
    call.x_in = h->x[u - 1];
    call.saved = h->saved[u];
    call.grads = h->grads[u];
    assert_int_equal(ops->block_backward(&call), STATUS_OK);
  }
  call.token = h->tokens;
  call.grads = h->grads[0];
  assert_int_equal(ops->embed_backward(&call), STATUS_OK);
}

static int grads_of(const struct plan *plan, int unit)
{
  for (int i = 0; i < plan->n; i++)
    if (plan->instr[i].op == OP_UPDATE && plan->instr[i].unit == unit)
      return plan->instr[i].use[1].buffer;
  return -1;
}

TEST(gradients_of_an_untied_model_are_those_by_hand)
{
  struct comm *alone;
  struct hand hand;
  struct job job;
  assert_int_equal(comm_create_fake(0, 1, 1, &alone), STATUS_OK);
  for (int micros = 1; micros <= 3; micros += 2) { /* the cut into micro-batches changes no bit */
    job_open(&job, alone, &(struct job_setup){.llama = true, .micros = micros});
    hand_create(&hand, &job);
    hand_run(&hand);
    job_step(&job, 0);
    assert_int_equal(exec_drain(job.exec), STATUS_OK);
    for (int u = 0; u < job.model->units; u++) {
      const float *grads = exec_pointer(job.exec, grads_of(job.plan, u));
      assert_memory_equal(grads, hand.grads[u],
                          (size_t)job.model->unit[u].layout.flat * sizeof *grads);
    }
    hand_destroy(&hand);
    job_close(&job);
  }
  comm_destroy(alone);
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
