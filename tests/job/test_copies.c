/* Copies that differences of parameters are added to, on the host and on a device that lies apart.
 * Oracles: a function of group, name and element that fills all tensors; bit equality of ranks. */
/* ranks: 2 3 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "fixture.h"
#include "io/checkpoint/checkpoint.h"
#include "job/weights.h"
#include "tests/test.h"

static struct comm *comm;

struct kind {
  const char *strategy, *compute;
  bool apart, differs;
};

static void open_job(struct job *job, struct deck *deck, const struct kind *kind)
{
  char compute[32];
  fixture_deck(deck, "llama", kind->strategy, "world", "[model.layers.0.*norm*]");
  snprintf(compute, sizeof compute, "run.compute=%s", kind->compute);
  must(options_assign(deck->set, compute));
  if (kind->differs) {
    must(options_assign(deck->set, "compress.weights.codec=int4"));
    must(options_assign(deck->set, "compress.weights.delta=true"));
  }
  fixture_open(job, deck, comm, comm_rank(comm), comm_ranks(comm), kind->apart);
}

static void close_job(struct job *job, struct deck *deck)
{
  fixture_close(job);
  deck_destroy(deck);
}

static float value_of(const char *group, const char *name, int64_t e)
{
  uint32_t words[4];
  rng_block(rng_key_make((uint64_t)group[0], name), 0, (uint64_t)e, words);
  return (float)words[0] * 0x1p-31f - 1.0f;
}

static float rounded(float x, enum dtype type)
{
  return type == DTYPE_BF16 ? f32_from_bf16(bf16_from_f32(x)) : x;
}

static void fill(struct job *job)
{
  struct job_state *state = NULL;
  must(job_state_open(job, true, false, true, &state));
  for (int t = 0; t < state->n; t++) {
    const struct io_tensor *tensor = &state->tensor[t];
    const int64_t n = tensor->range.end - tensor->range.begin;
    float *values = NULL;
    if (n <= 0)
      continue;
    must(mem_new(MEM_DATA, (size_t)n, &values));
    for (int64_t e = 0; e < n; e++)
      values[e] = value_of(tensor->group, tensor->name, tensor->range.begin + e);
    fixture_put(tensor, values);
    mem_free(values);
  }
  must(job_state_commit(state));
  job_state_close(state);
  must(job_state_share_copies(job));
}

static void read_buffer(const struct job *job, int buffer, char **out)
{
  const struct plan_buffer *b = &job->plan[PLAN_TRAIN]->buffer[buffer];
  const char *from = (const char *)job->memory.persistent[b->tier] + b->offset;
  must(mem_alloc(MEM_DATA, (size_t)b->bytes, (void **)out));
  if (job->device->model.host_memory)
    memcpy(*out, from, (size_t)b->bytes);
  else
    apart_read(from, (size_t)b->bytes, *out);
}

/* Whole units, the same on all ranks: what is trained from this group, and what is frozen from the
 * model, which no difference changes. */
static void check_copies(const struct job *job, const char *trained)
{
  const struct plan *plan = job->plan[PLAN_TRAIN];
  for (int u = 0; u < job->model->units; u++) {
    const struct plan_buffer *copy = &plan->buffer[plan->unit[u].copy];
    const struct layout_unit *layout = &plan->unit[u].layout;
    char *bytes = NULL;
    read_buffer(job, plan->unit[u].copy, &bytes);
    must(comm_check_same(comm, copy->name, bytes, copy->bytes));
    for (int p = 0; p < layout->params; p++)
      for (int64_t e = 0; e < layout->elements[p]; e++) {
        const char *group = layout->frozen[p] ? "model" : trained;
        const float want =
            rounded(value_of(group, job->model->unit[u].param[p].name, e), copy->dtype);
        float got;
        dtype_convert(&got, DTYPE_F32,
                      bytes + (layout->offset[p] + e) * (int64_t)dtype_size(copy->dtype),
                      copy->dtype, 1);
        assert_true(got == want);
      }
    mem_free(bytes);
  }
}

static void save(const struct job *job, const char *path)
{
  struct checkpoint_meta meta = {
      .step = 3, .samples = 36, .ranks = comm_ranks(comm), .seed = 1, .version = (char *)"test"};
  struct job_state *state = NULL;
  must(options_print_yaml(job->deck->set, &meta.deck));
  must(job_state_open(job, true, true, false, &state));
  must(checkpoint_write(comm, path, &meta, state->n, state->tensor));
  job_state_close(state);
  mem_free(meta.deck);
}

static void take_away(const char *path)
{
  must(comm_barrier(comm));
  if (comm_rank(comm) == 0)
    assert_int_equal(unlink(path), 0);
  must(comm_barrier(comm));
}

static const struct kind kinds[] = {{"shard_grad_op", "fp32", false, true},
                                    {"shard_grad_op", "fp32", true, true},
                                    {"shard_optim", "bf16", false, true},
                                    {"shard_optim", "bf16", true, true}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* As a run begins: of masters. Then of a checkpoint, by the other device. */
TEST(copies_are_completed_by_all_ranks)
{
  char path[512];
  snprintf(path, sizeof path, "%s/copies.h5", (char *)*test_state);
  for (int k = 0; k < KINDS; k++) {
    struct kind plain = kinds[k];
    struct job job, other;
    struct deck deck, other_deck;
    plain.differs = false;
    open_job(&job, &deck, &plain);
    open_job(&other, &other_deck, &kinds[k]);
    fill(&job);
    save(&job, path);
    must(weights_resume(&other, path, &(bool){false}));
    check_copies(&other, "model");
    must(weights_load(&other, path));
    check_copies(&other, "model");
    close_job(&job, &deck);
    close_job(&other, &other_deck);
    take_away(path);
  }
}

TEST(copies_come_back_from_checkpoints)
{
  char path[512];
  snprintf(path, sizeof path, "%s/copies.h5", (char *)*test_state);
  for (int k = 0; k < KINDS; k++) {
    struct job job, other;
    struct deck deck, other_deck;
    open_job(&job, &deck, &kinds[k]);
    open_job(&other, &other_deck, &kinds[k ^ 1]);
    fill(&job);
    check_copies(&job, "copy");
    save(&job, path);
    must(weights_resume(&other, path, &(bool){false}));
    check_copies(&other, "copy");
    must(weights_load(&other, path)); /* as for a run that starts with these weights */
    check_copies(&other, "model");
    close_job(&job, &deck);
    close_job(&other, &other_deck);
    take_away(path);
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
    const struct plan *plan = job.plan[PLAN_TRAIN];
    for (int u = 0; u < job.model->units; u++) {
      const struct plan_buffer *copy = &plan->buffer[plan->unit[u].copy];
      const struct layout_unit *layout = &plan->unit[u].layout;
      char *bytes = NULL;
      read_buffer(&job, plan->unit[u].copy, &bytes);
      for (int p = 0; p < layout->params; p++)
        for (int64_t e = 0; e < layout->elements[p]; e++) {
          float want, got;
          model_init_param(job.model, (uint64_t)deck.run.seed, u, p,
                           (struct layout_range){e, e + 1}, &want);
          dtype_convert(&got, DTYPE_F32,
                        bytes + (layout->offset[p] + e) * (int64_t)dtype_size(copy->dtype),
                        copy->dtype, 1);
          assert_true(got == rounded(want, copy->dtype));
        }
      mem_free(bytes);
    }
    close_job(&job, &deck);
  }
}

static int start(void **state)
{
  const char *root = getenv("TMPDIR");
  char *dir = NULL;
  if (comm_rank(comm) == 0) {
    dir = mem_printf("%s/sluice-copies-XXXXXX", root && root[0] ? root : "/tmp");
    if (!dir || !mkdtemp(dir))
      return -1;
  }
  if (comm_broadcast_text(comm, &dir, 0))
    return -1;
  *state = dir;
  return 0;
}

static int stop(void **state)
{
  char *dir = *state;
  const int failed = comm_barrier(comm) != STATUS_OK || (comm_rank(comm) == 0 && rmdir(dir) != 0);
  mem_free(dir);
  return failed;
}

int main(int argc, char **argv)
{
  if (comm_create_mpi(&argc, &argv, &comm))
    return 1;
  const int failed = test_run(start, stop);
  comm_destroy(comm);
  return failed;
}
