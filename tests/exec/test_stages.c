/* Blocks as two stages: attention, then the feed-forward part. They read one unit, or each has its
 * own. Oracle: the same choices with one stage per block, bit for bit. The norm of all gradients
 * is summed in blocks of a unit's elements, so other units may change its last bits. In bf16 the
 * stream is rounded between the stages, so there the oracle is another plan of the same stages. */
/* ranks: 1 2 3 */
#include <math.h>

#include "base/mem.h"
#include "job.h"
#include "tests/model/stages.h"
#include "tests/test.h"

static struct job_record run(const struct stage_row *stages, const char *setup)
{
  stages_next = stages;
  struct job_record record = job_run(job_comm, "%s", setup);
  stages_next = NULL;
  return record;
}

/* Losses, parameters and norms, within a bound. */
static void compare(const struct stage_row *stages, const struct job_record *want,
                    const char *setup, double bound)
{
  struct job_record got = run(stages, setup);
  for (int step = 0; step < JOB_STEPS; step++)
    assert_true(fabs(got.grad_norm[step] - want->grad_norm[step]) <= bound * want->grad_norm[step]);
  if (got.n != want->n || memcmp(got.loss, want->loss, sizeof want->loss) ||
      memcmp(got.params, want->params, (size_t)want->n * sizeof *want->params))
    fail_msg("'%s' does not give the same bits", setup);
  job_record_free(&got);
}

/* Clips nothing, so that other norms change no parameter. */
static void own_units(const char *setup)
{
  char words[256];
  snprintf(words, sizeof words, "no_clip %s", setup);
  struct job_record want = run(NULL, words);
  compare(stages_own, &want, words, 1e-12);
  job_record_free(&want);
}

static void shared_unit(const char *setup)
{
  struct job_record want = run(NULL, setup);
  compare(stages_shared, &want, setup, 0);
  job_record_free(&want);
}

TEST(training)
{
  static const char *const setups[] = {
      "prefetch=1",
      "prefetch=0 recompute=1",
      "prefetch=2 recompute=2 micros=3 each_micro llama",
      "shard_grad_op prefetch=1 micros=3 each_micro",
      "shard_optim prefetch=2 micros=3 llama",
      "no_shard prefetch=1 micros=3 recompute=1",
      "no_shard micros=3 each_micro",
      "hybrid_shard group=1 prefetch=1 gathered=3",
      "prefetch=1 recompute=1 input=packed",
      "prefetch=1 llama input=packed recompute=2",
      "prefetch=1 micros=3 llama frozen=*mlp*",
      "prefetch=1 micros=3 each_micro llama frozen=*attn*",
      "shard_optim micros=3 frozen=*wte*,*wpe*,*.0.*",
      "prefetch=1 optim=muon llama",
      "prefetch=1 host keep=input_host",
      "prefetch=0 host keep=activations_host micros=3 llama",
      "prefetch=1 host keep=input_nvme nvme_state=0.5",
      "prefetch=1 host keeps=keep,host,keep_host immediate",
      "prefetch=2 host params_full cpu_reduce one_node speculative keep=input_host",
      "prefetch=1 late beside keep=activations_host",
  };
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++) {
    shared_unit(setups[s]);
    own_units(setups[s]);
  }
}

TEST(choices_in_bf16)
{
  static const char *const setups[] = {"prefetch=0 recompute=1",
                                       "shard_optim prefetch=2 micros=3 recompute=2",
                                       "no_shard prefetch=1 gathered=-1",
                                       "prefetch=1 host keep=input_nvme nvme_state=0.5",
                                       "prefetch=1 host params_full keep=activations_host",
                                       "shard_grad_op prefetch=1 keep_working micros=3"};
  struct job_record one = run(NULL, "prefetch=1 no_clip bf16"),
                    want = run(stages_shared, "prefetch=1 no_clip bf16");
  for (int step = 0; step < JOB_STEPS; step++)
    assert_true(fabs(want.loss[step] - one.loss[step]) < 1e-2 * one.loss[step]);
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++) {
    char words[256];
    snprintf(words, sizeof words, "no_clip bf16 %s", setups[s]);
    compare(stages_shared, &want, words, 0);
    compare(stages_own, &want, words, 1e-12);
  }
  job_record_free(&one);
  job_record_free(&want);
}

/* Codecs see the same vectors only if units are the same. */
TEST(codecs)
{
  static const char *const setups[] = {"prefetch=1 codec=int8 feedback=bf16 residual=host",
                                       "prefetch=1 micros=3 each_micro codec=int4 residual=nvme "
                                       "feedback=int8",
                                       "prefetch=1 weights=int8 recompute=1"};
  for (size_t s = 0; s < sizeof setups / sizeof *setups; s++)
    shared_unit(setups[s]);
}

TEST(evaluation_and_generation)
{
  static const struct stage_row *const lists[] = {stages_shared, stages_own};
  static const int64_t tokens[] = {3, 1, 4};
  static float want[3][JOB_BATCH * JOB_VOCAB];
  for (int llama = 0; llama < 2; llama++) {
    double loss = 0;
    for (int l = -1; l < 2; l++) {
      struct job job;
      stages_next = l < 0 ? NULL : lists[l];
      job_open(&job, job_comm, "eval prefetch=1 micros=3 llama=%d", llama);
      const double now = job_step(&job, 0).loss;
      assert_true(l < 0 || now == loss);
      loss = now;
      job_close(&job);
      job_open(&job, job_comm, "generate capacity=10 prefetch=1 llama=%d", llama);
      const int64_t n = job.plan->input.shape.micro_batch * JOB_VOCAB;
      for (int64_t w = 0, past = 0; w < 3; past += tokens[w++]) {
        const float *logits = job_generate(&job, w, past, tokens[w]);
        if (l < 0)
          memcpy(want[w], logits, (size_t)n * sizeof *logits);
        assert_memory_equal(logits, want[w], (size_t)n * sizeof *logits);
      }
      job_close(&job);
    }
  }
  stages_next = NULL;
}

TEST_MAIN(job_mpi_start, job_mpi_stop)
