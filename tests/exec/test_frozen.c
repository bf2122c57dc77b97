/* Frozen parameters, and a head that has a unit of its own. Oracles: the strategy full_shard on the
 * same number of ranks, bit for bit. Frozen parameters keep their initial bits. Trained parameters
 * equal those of the first step of a run that freezes nothing, with clipping off, because the norm
 * of all gradients differs. The gradients of an untied model equal those of the model called by
 * hand, unit after unit. */
/* ranks: 1 2 3 5 */

#include "base/mem.h"
#include "job.h"
#include "tests/test.h"

/* ---- what is frozen ---- */

static const char *const choices[] = {
    "llama",
    "frozen=*.bias,*.wpe.weight",                /* some of each unit */
    "llama frozen=*norm.weight,*.q_proj.weight", /* likewise, of a fused product too */
    /* the lower end; of the root the norm is left */
    "frozen=*.wte.weight,*.wpe.weight,*.h.0.*",
    "llama frozen=model.embed_tokens.*,model.layers.[01].*", /* the root and two blocks whole */
    "llama frozen=lm_head.*,model.norm.*,model.layers.2.*",  /* the upper end */
    "llama frozen=model.embed_tokens.*,model.layers.*",      /* all but the head */
    /* all but the norm in front of a tied head */
    "frozen=*.wte.weight,*.wpe.weight,transformer.h.*",
};
enum { CHOICES = sizeof choices / sizeof choices[0] };

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

static float *run(const char *setup, int steps, float **initial)
{
  struct job job;
  job_open(&job, job_comm, "%s", setup);
  if (initial)
    *initial = job_collect(&job);
  for (int step = 0; step < steps; step++)
    assert_true(job_step(&job, step).finite);
  return job_end(&job).params;
}

TEST(trained_parameters_learn_the_same_and_frozen_ones_stay)
{
  for (int c = 1; c < CHOICES; c++) {
    char setup[200];
    float *before;
    snprintf(setup, sizeof setup, "prefetch=1 no_clip %s", choices[c]);
    float *after = run(setup, 1, &before),
          *full = run(strstr(setup, "llama") ? "prefetch=1 no_clip llama" : "prefetch=1 no_clip", 1,
                      NULL);
    struct comparison comparison = {.before = before, .after = after, .full = full};
    struct job job;
    job_plan(&job, job_comm, "%s", setup);
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
static void expect_kept(const char *choice, const struct job_record *record)
{
  struct job job;
  job_open(&job, job_comm, "prefetch=1 %s", choice);
  float *before = job_collect(&job);
  visit_params(&job, compare_kept, &(struct comparison){.before = before, .after = record->params});
  mem_free(before);
  job_close(&job);
}

/* Every choice meets half of the changes, and the next choice the others. */
TEST(strategies_agree)
{
  static const char *const changes[] = {
      "shard_grad_op", "shard_optim prefetch=2", "no_shard", "hybrid_shard group=1",
      "hybrid_shard",  "recompute=2 prefetch=0", "micros=3", "micros=3 no_shard threads=2"};
  const int ranks = comm_ranks(job_comm), group = ranks % 2 == 0 ? 2 : ranks;
  for (int c = 0; c < CHOICES; c++) {
    struct job_record reference = job_run(job_comm, "prefetch=1 %s", choices[c]);
    expect_kept(choices[c], &reference);
    for (size_t i = (size_t)c % 2; i < sizeof changes / sizeof changes[0]; i += 2)
      job_same(&reference, "prefetch=1 group=%d %s %s", group, choices[c], changes[i]);
    job_record_free(&reference);
  }
}

/* ---- frozen parts of a type of their own ---- */

/* Reference: fp32 shards of the values to which one message of a unit's whole frozen part decodes.
 * So no value depends on the cut into shards. */
TEST(frozen_parts_of_any_type_are_used_as_they_decode)
{
  static const char *const rows[] = {"bf16 base=bf16", "base=bf16", "eval bf16 base=bf16",
                                     "bf16 base=fp8", "eval base=nf4"};
  static const char *const changes[] = {"",
                                        "shard_grad_op",
                                        "shard_optim prefetch=2",
                                        "no_shard",
                                        "hybrid_shard group=1",
                                        "hybrid_shard micros=3",
                                        "recompute=2 prefetch=0 gathered=3",
                                        "host",
                                        "host beside",
                                        "host params_full",
                                        "host cpu_reduce",
                                        "keep_working",
                                        "speculative host"};
  const int ranks = comm_ranks(job_comm), group = ranks % 2 == 0 ? 2 : ranks;
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
    for (int c = 1; c < CHOICES; c++) {
      char setup[200];
      snprintf(setup, sizeof setup, "prefetch=1 group=%d %s %s", group, choices[c], rows[r]);
      char *base = strstr(setup, "base=");
      struct job_record want =
          job_run(job_comm, "%.*s rounded=%s", (int)(base - setup), setup, base + 5);
      for (size_t i = (size_t)c % 3; i < sizeof changes / sizeof *changes; i += 3)
        if (r < 3 || !strstr(changes[i], "params_full"))
          job_same(&want, "%s %s", setup, changes[i]);
      job_record_free(&want);
    }
}

TEST(logits_of_frozen_parts_are_those_of_their_values)
{
  static const char *const rows[] = {"bf16 %s=bf16", "host beside llama %s=bf16", "llama %s=fp8",
                                     "bf16 %s=nf4"};
  for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
    struct job job[2];
    char words[80];
    for (int plain = 0; plain < 2; plain++) {
      snprintf(words, sizeof words, rows[r], plain ? "rounded" : "base");
      job_open(&job[plain], job_comm, "generate capacity=8 frozen=*.[012].* %s", words);
    }
    for (int step = 0; step < 2; step++)
      assert_memory_equal(job_generate(&job[0], step, 2 * step, 2),
                          job_generate(&job[1], step, 2 * step, 2), JOB_VOCAB * sizeof(float));
    job_close(&job[0]);
    job_close(&job[1]);
  }
}

/* ---- the untied model by hand ---- */

enum { MOST_UNITS = JOB_BLOCKS + 2 };

/* One step on one rank without a plan. */
struct hand {
  struct job_hand base;
  struct model_shape shape;
  float *grads[MOST_UNITS];
  void *x[JOB_BLOCKS + 1], *saved[JOB_BLOCKS + 1], *d, *work;
  int32_t tokens[JOB_BATCH * JOB_SEQUENCE], targets[JOB_BATCH * JOB_SEQUENCE];
};

static void hand_create(struct hand *h, const struct job *job)
{
  const struct model *model = job->model;
  *h = (struct hand){.shape = {JOB_BATCH, JOB_SEQUENCE}};
  job_hand_create(&h->base, job);
  size_t stream = model_stream_bytes(model, h->shape), most = 0;
  for (int u = 0; u < model->units; u++)
    h->grads[u] = job_hand_room(&h->base, (size_t)model->unit[u].layout.flat * sizeof(float));
  for (int u = 0; u <= JOB_BLOCKS; u++) {
    h->x[u] = job_hand_room(&h->base, stream);
    h->saved[u] = job_hand_room(&h->base, model->ops->saved_bytes(model, 1, h->shape));
  }
  for (int what = WORK_FORWARD; what <= WORK_FORWARD_SAVED; what++) {
    size_t bytes =
        model->ops->work_bytes(model, &job->device->model, h->shape, (enum model_work)what, 1);
    most = bytes > most ? bytes : most;
  }
  h->d = job_hand_room(&h->base, stream);
  h->work = job_hand_room(&h->base, most);
  for (int i = 0; i < JOB_BATCH * JOB_SEQUENCE; i++) {
    h->tokens[i] = job_token(0, i / JOB_SEQUENCE, i % JOB_SEQUENCE);
    h->targets[i] = job_token(0, i / JOB_SEQUENCE, i % JOB_SEQUENCE + 1);
  }
}

static void hand_run(struct hand *h)
{
  const struct model *model = h->base.job->model;
  const struct model_ops *ops = model->ops;
  struct exactsum loss;
  exactsum_zero(&loss);
  struct model_call call = {.model = model,
                            .lane = h->base.lane,
                            .shape = h->shape,
                            .params = {.flat = h->base.params[0]},
                            .batch = {.tokens = h->tokens},
                            .x_out = h->x[0],
                            .work = h->work};
  must(ops->embed(&call));
  for (int u = 1; u <= JOB_BLOCKS; u++) {
    call.stage = u;
    call.params.flat = h->base.params[u];
    call.x_in = h->x[u - 1];
    call.x_out = h->x[u];
    call.saved = h->saved[u];
    must(ops->block_forward(&call));
  }
  int head = model->head;
  assert_int_equal(head, JOB_BLOCKS + 1);
  call.params.flat = h->base.params[head];
  call.x_in = h->x[JOB_BLOCKS];
  call.batch.targets = h->targets;
  call.scale = 1.0f / (JOB_BATCH * JOB_SEQUENCE);
  call.loss = &loss;
  call.d = h->d;
  call.grads = h->grads[head];
  must(ops->head_loss(&call));
  for (int u = JOB_BLOCKS; u >= 1; u--) {
    call.stage = u;
    call.params.flat = h->base.params[u];
    call.x_in = h->x[u - 1];
    call.saved = h->saved[u];
    call.grads = h->grads[u];
    must(ops->block_backward(&call));
  }
  call.batch.tokens = h->tokens;
  call.grads = h->grads[0];
  must(ops->embed_backward(&call));
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
  must(comm_create_fake(0, 1, 1, &alone));
  for (int micros = 1; micros <= 3; micros += 2) { /* the cut into micro-batches changes no bit */
    job_open(&job, alone, "llama micros=%d", micros);
    hand_create(&hand, &job);
    hand_run(&hand);
    job_step(&job, 0);
    must(exec_drain(job.exec));
    for (int u = 0; u < job.model->units; u++) {
      const float *grads = exec_pointer(job.exec, grads_of(job.plan, u));
      assert_memory_equal(grads, hand.grads[u],
                          (size_t)job.model->unit[u].layout.flat * sizeof *grads);
    }
    job_hand_destroy(&hand.base);
    job_close(&job);
  }
  comm_destroy(alone);
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
