/* Generation with a cache of keys and values. Oracle: the model called by hand, unit after unit,
 * with whole parameters and a cache of its own: bit for bit, on any number of ranks. */
/* ranks: 1 2 3 */
#include <math.h>

#include "job.h"
#include "tests/test.h"

enum { CAPACITY = 10 };

struct hand {
  struct job_hand base;
  int64_t B;
  float *logits;
  void *x[2], *cache[JOB_BLOCKS + 1], *work;
};

static void hand_create(struct hand *h, const struct job *job)
{
  const struct model *model = job->model;
  const struct model_ops *ops = model->ops;
  *h = (struct hand){.B = job->plan->input.shape.micro_batch};
  job_hand_create(&h->base, job);
  const struct model_shape most = {h->B, JOB_SEQUENCE};
  size_t decode = ops->work_bytes(model, &job->device->model, most, WORK_DECODE, 1),
         logits = ops->work_bytes(model, &job->device->model, most, WORK_LOGITS, 1);
  for (int u = 1; u <= JOB_BLOCKS; u++)
    h->cache[u] = job_hand_room(&h->base, ops->cache_bytes(model, 1, h->B, CAPACITY));
  for (int i = 0; i < 2; i++)
    h->x[i] = job_hand_room(&h->base, model_stream_bytes(model, most));
  h->work = job_hand_room(&h->base, decode > logits ? decode : logits);
  h->logits = job_hand_room(&h->base, (size_t)(h->B * JOB_VOCAB) * sizeof(float));
}

static void hand_run(struct hand *h, int64_t past, int64_t T)
{
  const struct model *model = h->base.job->model;
  const struct model_shape s = {h->B, T};
  int32_t tokens[JOB_BATCH * JOB_SEQUENCE];
  for (int64_t i = 0; i < h->B * T; i++)
    tokens[i] = job_token(0, i / T, past + i % T);
  struct model_call call = {.model = model,
                            .lane = h->base.lane,
                            .shape = s,
                            .params = {.flat = h->base.params[0]},
                            .past = past,
                            .position = T - 1,
                            .batch = {.tokens = tokens},
                            .x_out = h->x[0],
                            .logits = h->logits,
                            .work = h->work};
  must(model->ops->embed(&call));
  for (int u = 1; u <= JOB_BLOCKS; u++) {
    call.stage = u;
    call.cache = &(struct model_cache){h->cache[u], past, CAPACITY};
    call.params.flat = h->base.params[u];
    call.x_in = h->x[(u - 1) & 1];
    call.x_out = h->x[u & 1];
    must(model->ops->block_forward(&call));
  }
  call.params.flat = h->base.params[model->head];
  call.x_in = h->x[JOB_BLOCKS & 1];
  must(model->ops->head_logits(&call));
}

static const struct {
  int64_t past, tokens;
} windows[] = {{0, 3}, {3, 1}, {4, 1}, {5, 4}, {9, 1},
               {0, 1}, {1, 4}, {5, 2}, {4, 2}}; /* the last goes back over what is there */
enum { WINDOWS = sizeof windows / sizeof windows[0] };

TEST(logits_are_those_by_hand)
{
  static const char *const setups[] = {"prefetch=1", "llama", "no_shard", "prefetch=2 frozen=*bias",
                                       "shard_optim llama frozen=*norm*"};
  for (int s = 0; s < 5; s++) {
    struct job job;
    struct hand hand;
    job_open(&job, job_comm, "generate capacity=%d %s", CAPACITY, setups[s]);
    hand_create(&hand, &job);
    for (int w = 0; w < WINDOWS; w++) {
      hand_run(&hand, windows[w].past, windows[w].tokens);
      const float *logits = job_generate(&job, w, windows[w].past, windows[w].tokens);
      assert_memory_equal(logits, hand.logits, (size_t)(hand.B * JOB_VOCAB) * sizeof *logits);
    }
    job_hand_destroy(&hand.base);
    job_close(&job);
  }
}

/* Logits are fp32 whatever they were computed in. Oracle: those of fp32, which are about 1, within
 * some roundings to bf16's eight bits; and they have no more bits than those. */
TEST(logits_in_bf16)
{
  for (int llama = 0; llama < 2; llama++) {
    struct job job;
    float full[JOB_VOCAB];
    job_open(&job, job_comm, "generate capacity=%d prefetch=1 llama=%d", CAPACITY, llama);
    memcpy(full, job_generate(&job, 0, 0, JOB_SEQUENCE), sizeof full);
    job_close(&job);
    job_open(&job, job_comm, "generate capacity=%d prefetch=1 llama=%d bf16", CAPACITY, llama);
    const float *logits = job_generate(&job, 0, 0, JOB_SEQUENCE);
    for (int i = 0; i < JOB_VOCAB; i++) {
      uint32_t bits;
      memcpy(&bits, &logits[i], sizeof bits);
      assert_int_equal(bits & 0xffff, 0);
      assert_true(fabsf(logits[i] - full[i]) <= 0.05f);
    }
    job_close(&job);
  }
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
