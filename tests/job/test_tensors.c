/* A job's state as named tensors, for every strategy and with frozen parameters. Oracles: an
 * element-by-element count over all ranks of a job, one after another; and the initial values as
 * the model makes them whole. */

#include "fixture.h"
#include "tests/test.h"

enum { MOST_TENSORS = 128, MOST_ELEMENTS = 4096, MOST_RANKS = 4 };

/* How often each element of each tensor was met. */
struct tally {
  int n;
  char name[MOST_TENSORS][96]; /* "group name" */
  uint8_t count[MOST_TENSORS][MOST_ELEMENTS];
};

static struct tally tally;

static uint8_t *count_of(const struct io_tensor *t)
{
  char name[96];
  snprintf(name, sizeof name, "%s %s", t->group, t->name);
  for (int i = 0; i < tally.n; i++)
    if (strcmp(tally.name[i], name) == 0)
      return tally.count[i];
  assert_true(tally.n < MOST_TENSORS);
  memcpy(tally.name[tally.n], name, sizeof name);
  return tally.count[tally.n++];
}

static int64_t elements_of(const struct model *model, const char *name, int *unit, int *param)
{
  for (int u = 0; u < model->units; u++)
    for (int p = 0; p < model->unit[u].params; p++)
      if (strcmp(model->unit[u].param[p].name, name) == 0) {
        *unit = u;
        *param = p;
        return model->unit[u].layout.elements[p];
      }
  fail_msg("there is no parameter %s", name);
  return 0;
}

/* The bits of the initial parameter where it lies, and zero moments. */
static void check_values(const struct job *job, const struct io_tensor *t)
{
  float expected[MOST_ELEMENTS] = {0};
  int u = 0, p = 0;
  int64_t n = elements_of(job->model, t->name, &u, &p);
  assert_true(n <= MOST_ELEMENTS && t->range.begin >= 0 && t->range.end <= n);
  if (strcmp(t->group, "model") == 0)
    model_init_param(job->model, (uint64_t)job->deck->run.seed, u, p, (struct layout_range){0, n},
                     expected);
  if (t->range.begin < t->range.end)
    assert_memory_equal(t->data, expected + t->range.begin,
                        (size_t)(t->range.end - t->range.begin) * sizeof(float));
}

static void count_tensor(const struct io_tensor *held, const struct io_tensor *unique)
{
  assert_string_equal(held->name, unique->name);
  assert_string_equal(held->group, unique->group);
  uint8_t *count = count_of(unique);
  for (int64_t e = unique->range.begin; e < unique->range.end; e++) {
    assert_true(e >= held->range.begin && e < held->range.end);
    count[e]++;
  }
}

static void count_rank(struct deck *deck, int rank, int ranks, bool apart)
{
  struct job job;
  struct job_state *held, *unique;
  fixture_open(&job, deck, NULL, rank, ranks, apart);
  must(job_state_init(&job));
  must(job_state_open(&job, true, false, false, &held));
  must(job_state_open(&job, true, true, false, &unique));
  assert_int_equal(held->n, unique->n);
  for (int i = 0; i < held->n; i++) {
    check_values(&job, &held->tensor[i]);
    check_values(&job, &unique->tensor[i]);
    count_tensor(&held->tensor[i], &unique->tensor[i]);
  }
  job_state_close(held);
  job_state_close(unique);
  fixture_close(&job);
}

/* Every parameter once, and both moments of those that are trained. */
static void check_tally(struct deck *deck, int frozen_expected)
{
  struct model *model;
  int all = 0, frozen = 0;
  must(job_model(deck, DTYPE_F32, 1, &model));
  for (int u = 0; u < model->units; u++) {
    all += model->unit[u].params;
    for (int p = 0; p < model->unit[u].params; p++)
      frozen += model->unit[u].param[p].frozen;
  }
  assert_int_equal(frozen, frozen_expected);
  assert_int_equal(tally.n, 3 * all - 2 * frozen);
  for (int i = 0; i < tally.n; i++) {
    int u = 0, p = 0;
    int64_t n = elements_of(model, strchr(tally.name[i], ' ') + 1, &u, &p);
    assert_true(!model->unit[u].param[p].frozen || strncmp(tally.name[i], "model ", 6) == 0);
    for (int64_t e = 0; e < MOST_ELEMENTS; e++)
      if (tally.count[i][e] != (e < n))
        fail_msg("element %lld of %s is on %d ranks", (long long)e, tally.name[i],
                 tally.count[i][e]);
  }
  model_destroy(model);
}

static void check_job(int ranks, const char *arch, const char *strategy, const char *group,
                      const char *freeze, int frozen)
{
  struct deck deck;
  fixture_deck(&deck, arch, strategy, group, freeze);
  for (int apart = 0; apart < 2; apart++) {
    memset(&tally, 0, sizeof tally);
    for (int rank = 0; rank < ranks; rank++)
      count_rank(&deck, rank, ranks, apart);
    check_tally(&deck, frozen);
  }
  deck_destroy(&deck);
}

TEST(each_element_is_written_once)
{
  static const char *const strategies[] = {"full_shard", "shard_grad_op", "shard_optim",
                                           "no_shard"};
  for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
    for (int s = 0; s < 4; s++) {
      check_job(ranks, "gpt2", strategies[s], "world", "[]", 0);
      check_job(ranks, "gpt2", strategies[s], "world", "[*.bias]", 13);
      check_job(ranks, "llama", strategies[s], "world",
                "[model.embed_tokens.*,model.layers.0.*,lm_head.*]", 11);
    }
  check_job(4, "gpt2", "hybrid_shard", "2", "[*.bias]", 13);
  check_job(4, "llama", "hybrid_shard", "2", "[model.layers.*]", 18);
  check_job(2, "llama", "hybrid_shard", "1", "[model.layers.*.q_proj.*]", 2);
}

/* Sets all state to `from` on each rank, and gets what the rank would save. */
static void save_from(struct deck *deck, int ranks, bool apart, const float from[][MOST_ELEMENTS],
                      float to[][MOST_ELEMENTS])
{
  for (int rank = 0; rank < ranks; rank++) {
    struct job job;
    fixture_open(&job, deck, NULL, rank, ranks, apart);
    for (int load = 1; load >= 0; load--) {
      struct job_state *state;
      must(job_state_open(&job, true, !load, load, &state));
      assert_true(state->n <= MOST_TENSORS);
      for (int t = 0; t < state->n; t++) {
        const struct io_tensor *tensor = &state->tensor[t];
        const int64_t begin = tensor->range.begin;
        if (begin < tensor->range.end && load)
          fixture_put(tensor, from[t] + begin);
        else if (begin < tensor->range.end)
          fixture_get(tensor, to[t] + begin);
      }
      if (load)
        must(job_state_commit(state));
      job_state_close(state);
    }
    fixture_close(&job);
  }
}

/* Any number of ranks saves what one rank saves. Any number of ranks loads it and saves it again
 * unchanged. The fixture's pieces end inside blocks. */
TEST(blocks_of_moments_do_not_depend_on_ranks)
{
  static float any[MOST_TENSORS][MOST_ELEMENTS], saved[MOST_TENSORS][MOST_ELEMENTS],
      again[MOST_TENSORS][MOST_ELEMENTS];
  static const int ranks[] = {1, 3, 5, 2, 4, 7};
  for (int t = 0; t < MOST_TENSORS; t++)
    for (int e = 0; e < MOST_ELEMENTS; e++)
      any[t][e] = (float)((uint32_t)(t * MOST_ELEMENTS + e) * 2654435761u >> 8) * 1e-9f;
  for (int host = 0; host < 2; host++) {
    struct deck deck;
    fixture_deck(&deck, "gpt2", "full_shard", "world", "[]");
    fixture_assign(&deck, "optim.name=adamw8bit data.batch=420 data.micro_batch=1");
    if (host)
      fixture_assign(&deck, "tiers.params=host tiers.optimizer=host");
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
      save_from(&deck, ranks[r], r % 2, any, r == 0 ? saved : again);
      assert_true(r == 0 || memcmp(again, saved, sizeof saved) == 0);
      memset(again, 0, sizeof again);
      save_from(&deck, ranks[r], r % 2, saved, again);
      assert_memory_equal(again, saved, sizeof saved);
    }
    assert_memory_not_equal(saved, any, sizeof saved);
    deck_destroy(&deck);
  }
}

#define CONTEXT "model.context=4096 data.batch=12 "

/* Oracle: what job.h says of the plans. */
TEST(plans_without_a_batch_have_their_shapes)
{
  static const struct {
    enum job_use use;
    enum plan_mode mode;
    const char *deck;
    int64_t T, B, capacity;
  } row[] = {
      /* clang-format off */
      {JOB_EVAL, PLAN_EVAL, CONTEXT "data.sequence=0 data.micro_batch=0", 4096, 8, 0},
      {JOB_EVAL, PLAN_EVAL, CONTEXT "data.sequence=64 data.micro_batch=3", 64, 3, 0},
      {JOB_GENERATE, PLAN_GENERATE, CONTEXT "data.sequence=0 data.micro_batch=3", 256, 1, 2048},
      {JOB_GENERATE, PLAN_GENERATE, CONTEXT "data.sequence=4096 data.micro_batch=0", 256, 1, 4096},
      {JOB_GENERATE, PLAN_GENERATE, CONTEXT "data.sequence=100 data.micro_batch=0", 100, 1, 100},
      /* clang-format on */
  };
  for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
    struct deck deck;
    struct plan_input input = {.mode = row[r].mode, .ranks = 5};
    must(fixture_load(&deck, row[r].deck));
    must(job_shape(&deck, row[r].use, 5, &input));
    assert_int_equal(input.shape.sequence, row[r].T);
    assert_int_equal(input.shape.micro_batch, row[r].B);
    assert_int_equal(input.shape.group, 5);
    assert_int_equal(input.capacity, row[r].capacity);
    deck_destroy(&deck);
  }
}

TEST_MAIN(NULL, NULL)
