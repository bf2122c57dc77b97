/* Copies that differences of parameters are added to, on the host and on a device that lies apart.
 * Oracles: a function of group, name and element that fills all tensors; bit equality of ranks. */
/* ranks: 2 3 */

#include "base/mem.h"
#include "job/weights.h"
#include "ranks.h"

struct kind {
  const char *strategy, *compute;
  bool apart, differs;
};

static void open_job(struct job *job, struct deck *deck, const struct kind *kind)
{
  fixture_deck(deck, "llama", kind->strategy, "world", "[model.layers.0.*norm*]");
  fixture_assign(deck, kind->compute);
  if (kind->differs)
    fixture_assign(deck, "compress.weights.codec=int4 compress.weights.delta=true");
  fixture_open(job, deck, comm, comm_rank(comm), comm_ranks(comm), kind->apart);
}

static float rounded(float x, enum dtype type)
{
  return type == DTYPE_BF16 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

/* Whole units, the same on all ranks: what is trained from this group, and what is frozen from the
 * model, which no difference changes. NULL: the initial values. */
static void check_copies(const struct job *job, const char *trained)
{
  const struct plan *plan = job->plan[PLAN_TRAIN];
  for (int u = 0; u < job->model->units; u++) {
    const struct plan_buffer *copy = &plan->buffer[plan->unit[u].copy];
    const struct layout_unit *layout = &plan->unit[u].layout;
    char *bytes = NULL;
    ranks_read(job, plan->unit[u].copy, &bytes);
    must(comm_check_same(comm, copy->name, bytes, copy->bytes));
    for (int p = 0; p < layout->params; p++)
      for (int64_t e = 0; e < layout->elements[p]; e++) {
        const char *group = layout->frozen[p] ? "model" : trained;
        float got, want;
        if (trained)
          want = ranks_value(group, job->model->unit[u].param[p].name, e);
        else
          model_init_param(job->model, (uint64_t)job->deck->run.seed, u, p,
                           (struct layout_range){e, e + 1}, &want);
        dtype_convert(&got, DTYPE_F32,
                      bytes + (layout->offset[p] + e) * (int64_t)dtype_size(copy->dtype),
                      copy->dtype, 1);
        assert_true(got == rounded(want, copy->dtype));
      }
    mem_free(bytes);
  }
}

static const struct kind kinds[] = {{"shard_grad_op", "run.compute=fp32", false, true},
                                    {"shard_grad_op", "run.compute=fp32", true, true},
                                    {"shard_optim", "run.compute=bf16", false, true},
                                    {"shard_optim", "run.compute=bf16", true, true}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* As a run begins: of masters, or of a checkpoint, by the other device. */
TEST(copies_are_completed_by_all_ranks)
{
  for (int k = 0; k < 2 * KINDS; k++) {
    struct kind kind = kinds[k / 2];
    const bool saved = k % 2;
    struct job job, other;
    struct deck deck, other_deck;
    kind.differs = saved;
    open_job(&job, &deck, &kind);
    open_job(&other, &other_deck, &kinds[k / 2 ^ saved]);
    ranks_fill(&job, false);
    if (saved)
      check_copies(&job, "copy");
    ranks_save(&job);
    must(weights_resume(&other, ranks_file, &(bool){false}));
    check_copies(&other, saved ? "copy" : "model");
    must(weights_load(&other, ranks_file)); /* as for a run that starts with these weights */
    check_copies(&other, "model");
    fixture_end(&job);
    fixture_end(&other);
    ranks_remove();
  }
}

/* As a run is initialised, the masters of all ranks are the copy of each. */
TEST(a_new_run_has_copies_of_its_masters)
{
  for (int k = 0; k < KINDS; k++) {
    struct job job;
    struct deck deck;
    open_job(&job, &deck, &kinds[k]);
    must(weights_start(&job));
    check_copies(&job, NULL);
    fixture_end(&job);
  }
}

int main(int argc, char **argv)
{
  return ranks_main(argc, argv);
}
